"""The checkpoint of a training whose rows are spread over ranks: that of `state`, written and read in parts.

The folder is like that of one process, so that any number of ranks, or `grash train` alone, goes on with it.
"""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

from safetensors import SafetensorError

from grash.errors import FormatError, InputError
from grash.files import read_json, write_json
from grash.training.sharded_company import Company
from grash.training.sharded_rows import Shard
from grash.training.sharded_tables import read_rows, shared_folder, write_tables
from grash.training.state import SCHEMA, VERSION, TrainState, Validation, _difference, state_tensors

_TENSORS = "tensors.safetensors"


def save_shard(state: TrainState, folder: Path, *, belongs_to: dict[str, Any], shard: Shard, company: Company) -> None:
    """Writes this rank's part of the checkpoint: the folder is replaced when all ranks have written theirs."""
    with shared_folder(folder, company, overwrite=True) as aside:
        tensors = state_tensors(state)
        spread = {name for name in tensors if _is_spread(name)}
        write_tables(aside / _TENSORS, tensors, spread, shard, company)
        if company.rank == 0:
            write_json(aside / "state.json", _record(state, belongs_to))


def load_shard(state: TrainState, folder: Path, *, belongs_to: dict[str, Any], shard: Shard) -> None:
    """Fills a fresh state of this rank's rows from a checkpoint that belongs to the same run."""
    record = read_json(folder / "state.json", schema=SCHEMA, version=VERSION)
    owner = record.get("belongs_to")
    if not isinstance(owner, dict):
        raise FormatError(f"{folder} is a damaged checkpoint (it does not say what it belongs to): remove it.")
    for key, value in belongs_to.items():
        if owner.get(key) != value:
            raise InputError(_difference(folder, key, owner.get(key), value))
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
        _take(state, record)
    except (SafetensorError, KeyError, TypeError, ValueError, RuntimeError, OSError) as error:
        raise FormatError(f"{folder} is a damaged checkpoint ({error}): remove it to start anew.") from error


def _is_spread(name: str) -> bool:
    return name.removeprefix("best.").split(".")[0] == "entity"


def _record(state: TrainState, belongs_to: dict[str, Any]) -> dict[str, Any]:
    """As `state.save_state` writes it."""
    plateau = state.plateau
    return {
        "schema": SCHEMA,
        "version": VERSION,
        "belongs_to": belongs_to,
        "step": state.step,
        "seconds": state.seconds,
        "loss_sum": state.loss_sum,
        "loss_steps": state.loss_steps,
        "first_loss": state.first_loss,
        "plateau": {
            "scale": plateau.scale,
            "waited": plateau.waited,
            "best": plateau.best if state.history else None,
        },
        "history": [asdict(v) for v in state.history],
        "has_best": bool(state.best),
    }


def _take(state: TrainState, record: dict[str, Any]) -> None:
    state.step, state.seconds = record["step"], record["seconds"]
    state.loss_sum, state.loss_steps = record["loss_sum"], record["loss_steps"]
    state.first_loss = record["first_loss"]
    plateau = record["plateau"]
    state.plateau.scale, state.plateau.waited = plateau["scale"], plateau["waited"]
    state.plateau.best = float("-inf") if plateau["best"] is None else plateau["best"]
    state.history = [Validation(**v) for v in record["history"]]
