"""The checkpoint of a training whose rows are spread over ranks: that of `state`, written and read in parts.

The folder is like that of one process, so that any number of ranks, or `grash train` alone, goes on with it.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from safetensors import SafetensorError

from grash.errors import FormatError
from grash.files import write_json
from grash.training.sharded_company import Company
from grash.training.sharded_rows import Shard
from grash.training.sharded_tables import read_rows, shared_folder, write_tables
from grash.training.state import TrainState, read_record, state_record, state_tensors, take_record

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
