"""The checkpoint of a training whose rows are spread over ranks: that of `state`, written and read in parts.

The folder is like that of one process, so that any number of ranks, or `grash train` alone, goes on with it.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError

from grash.data.dataset import Dataset
from grash.errors import FormatError
from grash.files import write_json
from grash.models import KgeModel, model_class
from grash.models.store import write_record
from grash.training.checkpoint import TrainState, read_record, state_record, state_tensors, take_record
from grash.training.config import TrainConfig
from grash.training.distributed.communication import Company
from grash.training.distributed.tables import Shard, read_rows, shared_folder, write_tables, write_together
from grash.training.initial import initial_model

_TENSORS = "tensors.safetensors"


def save_shard(state: TrainState, folder: Path, *, belongs_to: dict[str, Any], shard: Shard, company: Company) -> None:
    """Writes this rank's part of the checkpoint: the folder is replaced when all ranks have written theirs."""
    with shared_folder(folder, company, overwrite=True) as aside:
        tensors = state_tensors(state)
        spread = {name for name in tensors if _is_spread(name)}
        write_tables(aside / _TENSORS, tensors, spread, shard, company)
        if company.rank == 0:
            write_json(aside / "state.json", state_record(state, belongs_to))


def load_shard(state: TrainState, folder: Path, *, belongs_to: dict[str, Any], shard: Shard) -> None:
    """Fills a fresh state of this rank's rows from a checkpoint that belongs to the same run."""
    record = read_record(folder, belongs_to)
    path = folder / _TENSORS
    try:
        if record["has_best"]:
            state.best = {"entity": read_rows(path, "best.entity", shard), "relation": read_rows(path, "best.relation")}
        for name, tensor in state_tensors(state).items():
            if not name.startswith("best."):
                rows = read_rows(path, name, shard if _is_spread(name) else None)
                if rows.shape != tensor.shape:
                    raise ValueError(f"{name} has another shape")
                tensor.copy_(rows)
        take_record(state, record)
    except (SafetensorError, KeyError, TypeError, ValueError, RuntimeError, OSError) as error:
        raise FormatError(f"{folder} is a damaged checkpoint ({error}): remove it to start anew.") from error


def _is_spread(name: str) -> bool:
    return name.removeprefix("best.").split(".")[0] == "entity"


# = A fresh training of one rank: its rows of the initial entity table, all relations, and optimizers for both.


def fresh_shard(config: TrainConfig, n_relations: int, shard: Shard, device: torch.device) -> TrainState:
    """The rows that a training in one process would begin with (xavier_uniform: up to the last bit)."""
    nothing = torch.empty(0, dtype=torch.int64)
    own = torch.arange(shard.first, shard.last)
    law = _law_of_whole_table(config, shard.n_rows)
    entity = initial_model(law, len(own), 0, device=device, entity_keys=own, relation_keys=nothing).entity
    relation = initial_model(config, 0, n_relations, device=device, entity_keys=nothing).relation
    model = model_class(config.model)(entity, relation, reciprocal=config.reciprocal, norm=config.norm)
    return TrainState.fresh(model, config)


def _law_of_whole_table(config: TrainConfig, n_entities: int) -> TrainConfig:
    """Glorot's laws depend on the rows of a table; said with their numbers, they are the same for a part of it."""
    spread = 2.0 / (n_entities + config.dim)
    if config.init == "xavier_normal":
        return config.changed(init="normal", init_std=math.sqrt(spread))
    if config.init == "xavier_uniform":
        bound = math.sqrt(3 * spread)
        return config.changed(init="uniform", init_low=-bound, init_high=bound)
    return config


# = The model folder of a training whose rows are spread over ranks: an ordinary one, each rank writing its rows.

_TABLES = "embeddings.safetensors"


def save_model_shard(
    model: KgeModel,
    dataset: Dataset,
    folder: Path,
    *,
    about: dict[str, Any],
    shard: Shard,
    company: Company,
    overwrite: bool = False,
) -> None:
    """Writes this rank's part of the folder, which is there when all have written theirs.

    model: this rank's rows, and all relations. about: config, evaluation and history, as in `models.store`."""
    with shared_folder(folder, company, overwrite=overwrite) as aside:
        tables = {"entity": model.entity, "relation": model.relation}
        write_tables(aside / _TABLES, tables, {"entity"}, shard, company)

        def finish() -> None:
            dataset.save(aside / "dataset")
            write_record(aside, model, dataset, about)

        write_together(folder, company, finish if company.rank == 0 else lambda: None)
