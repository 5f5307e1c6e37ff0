"""The state of a training: everything needed to resume it exactly, in memory and as a checkpoint folder.

    state.json              schema, version, the run it belongs to, step, history, plateau
    tensors.safetensors     tables, weights, optimizer state, and the tables and weights of the best validation

Random numbers need no state: they are computed from the seed and the step.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from torch import Tensor

from grash.errors import FormatError, GrashError, InputError
from grash.files import atomic_folder, beside, read_json, verify_folder, write_json
from grash.kernels.storage import Placement, copy_rows
from grash.models import KgeModel
from grash.models.base import model_tensors
from grash.models.store import read_tensors, write_tensors
from grash.training.config import TrainConfig
from grash.training.optimizers import Plateau, TableOptimizer, as_table, rounding_key

SCHEMA, VERSION = "grash-checkpoint", 1
_COUNTERS = ("step", "seconds", "loss_sum", "loss_steps", "first_loss")


@dataclass(frozen=True)
class Validation:
    """The result of one validation."""

    step: int  # steps made before it
    epoch: float
    loss: float  # mean since the validation before
    mrr: float
    lr: float
    score: float | None = None  # the metric of the search, if it is not the MRR

    @property
    def value(self) -> float:
        """What decides which validation is the best."""
        return self.mrr if self.score is None else self.score

    def to_json(self) -> dict[str, float]:
        return {name: value for name, value in asdict(self).items() if value is not None}


@dataclass
class TrainState:
    """Tables, weights, optimizers and counters of one training."""

    model: KgeModel
    entity_optimizer: TableOptimizer
    relation_optimizer: TableOptimizer
    plateau: Plateau
    step: int = 0
    seconds: float = 0.0
    loss_sum: float = 0.0  # since the last validation
    loss_steps: int = 0
    first_loss: float | None = None
    history: list[Validation] = field(default_factory=list)
    best: dict[str, Tensor] = field(default_factory=dict)  # tables of the best validation, in host memory or on disk
    placement: Placement = field(default_factory=Placement)
    interval: tuple[float, float] | None = None  # of the best validation's MRR
    weight_optimizers: dict[str, TableOptimizer] = field(default_factory=dict)  # of the weights beside the tables

    @classmethod
    def fresh(cls, model: KgeModel, config: TrainConfig, placement: Placement | None = None) -> TrainState:
        """Return the state before the first step. placement: of the entities' optimizer state, default: the table's."""
        return cls(
            model,
            TableOptimizer(config.optimizer, model.entity, placement, key=rounding_key(config)),
            TableOptimizer(config.optimizer, model.relation),
            Plateau(config.schedule_factor, config.schedule_patience),
            placement=placement or Placement(),
            weight_optimizers={
                name: TableOptimizer(config.optimizer, as_table(model.weights[name]))
                for name, weight in model.weight_shapes(model.dim).items()
                if weight.trained
            },
        )

    @property
    def nbytes(self) -> int:
        """Bytes of all tensors of a checkpoint."""
        return sum(t.nbytes for t in state_tensors(self).values())

    @property
    def best_validation(self) -> Validation | None:
        return max(self.history, key=lambda v: (v.value, -v.step), default=None)

    @property
    def validations_since_best(self) -> int:
        best = self.best_validation
        return 0 if best is None else sum(v.step > best.step for v in self.history)

    def keep_best(self) -> None:
        """Copy the tables if the latest validation is the best so far."""
        if self.best_validation is self.history[-1]:
            self.allocate_best()
            for name, tensor in model_tensors(self.model).items():
                copy_rows(tensor, self.best[name])

    def allocate_best(self) -> None:
        """Allocate memory for the best tables, unless this was done before."""
        if not self.best:
            self.best = {
                name: self.placement.best_rows(as_table(tensor)).view(tensor.shape)
                for name, tensor in model_tensors(self.model).items()
            }

    def restore_best(self) -> None:
        """Copy the tables of the best validation back into the model."""
        for name, tensor in model_tensors(self.model).items() if self.best else ():
            copy_rows(self.best[name], tensor)

    def release(self) -> None:
        """Free what only training needs: the optimizer state and the copy of the best tables."""
        for optimizer in (self.entity_optimizer, self.relation_optimizer, *self.weight_optimizers.values()):
            optimizer.release()
        self.best = {}


def state_tensors(state: TrainState) -> dict[str, Tensor]:
    """Return all tensors of a state by their names in a checkpoint."""
    tensors = model_tensors(state.model)
    tensors |= {f"entity.{name}": t for name, t in state.entity_optimizer.state.items()}
    tensors |= {f"relation.{name}": t for name, t in state.relation_optimizer.state.items()}
    for weight, optimizer in state.weight_optimizers.items():
        tensors |= {f"weight_optimizer.{weight}.{name}": t for name, t in optimizer.state.items()}
    return tensors | {f"best.{name}": t for name, t in state.best.items()}


def save_state(state: TrainState, folder: Path, *, belongs_to: dict[str, Any]) -> None:
    """Write the checkpoint of the run `belongs_to`; an older one stays until the new one is complete."""
    with atomic_folder(folder, overwrite=True, checksums=True) as temporary:
        write_tensors(state_tensors(state), temporary / "tensors.safetensors")
        write_json(temporary / "state.json", state_record(state, belongs_to))


def load_state(state: TrainState, folder: Path, *, belongs_to: dict[str, Any]) -> None:
    """Fill a new state from a checkpoint; raise InputError if it belongs to another run."""
    record = read_record(folder, belongs_to)
    verify_folder(folder)
    with checkpoint_errors(folder):
        if record["has_best"]:
            state.allocate_best()
        read_tensors(folder / "tensors.safetensors", state_tensors(state))
        restore_record(state, record)


def checkpoint_folder(folder: str | Path) -> Path:
    """Return where a training into this model folder saves its checkpoint: beside it."""
    return beside(Path(folder), ".checkpoint")


def checkpoint_belongs_to(folder: Path, belongs_to: dict[str, Any]) -> bool:
    """Return whether the folder holds a checkpoint of this run."""
    try:
        read_record(folder, belongs_to)
    except GrashError:
        return False
    return True


def checkpoint_step(folder: Path) -> int | None:
    """Return the step of the checkpoint in the folder, or None if there is none that can be read."""
    try:
        return int(json.loads((folder / "state.json").read_text(encoding="utf-8"))["step"])
    except (OSError, ValueError, KeyError, TypeError):
        return None


def read_record(folder: Path, belongs_to: dict[str, Any]) -> dict[str, Any]:
    """Return the content of state.json; raise InputError if the checkpoint belongs to another run."""
    record = read_json(folder / "state.json", schema=SCHEMA, version=VERSION)
    owner = record.get("belongs_to")
    if not isinstance(owner, dict):
        raise FormatError(f"{folder} is a damaged checkpoint (it does not name its run): remove it to start again.")
    if owner != belongs_to:
        raise InputError(
            f"{folder} is the checkpoint of another run ({_differences(owner, belongs_to)}): use the same settings or "
            f"another folder, or remove it (--restart on the command line) to start again."
        )
    return record


def state_record(state: TrainState, belongs_to: dict[str, Any]) -> dict[str, Any]:
    """Return the content of state.json: everything but the tensors."""
    plateau = state.plateau
    return {
        "schema": SCHEMA,
        "version": VERSION,
        "belongs_to": belongs_to,
        **{name: getattr(state, name) for name in _COUNTERS},
        "plateau": {"scale": plateau.scale, "waited": plateau.waited, "best": plateau.best if state.history else None},
        "history": [v.to_json() for v in state.history],
        "has_best": bool(state.best),
        "interval": None if state.interval is None else list(state.interval),
    }


def restore_record(state: TrainState, record: dict[str, Any]) -> None:
    """Set everything but the tensors from the content of state.json."""
    for name in _COUNTERS:
        setattr(state, name, record[name])
    plateau = record["plateau"]
    state.plateau.scale, state.plateau.waited = plateau["scale"], plateau["waited"]
    state.plateau.best = float("-inf") if plateau["best"] is None else plateau["best"]
    state.history = [Validation(**v) for v in record["history"]]
    interval = record["interval"]
    state.interval = None if interval is None else (float(interval[0]), float(interval[1]))


@contextmanager
def checkpoint_errors(folder: Path) -> Iterator[None]:
    """Turn what a damaged file raises into a FormatError."""
    try:
        yield
    except (SafetensorError, KeyError, TypeError, ValueError, RuntimeError, OSError) as error:
        raise FormatError(f"{folder} is a damaged checkpoint ({error}): remove it to start again.") from error


def _differences(stored: dict[str, Any], given: dict[str, Any]) -> str:
    """Name the settings that differ, those of nested records one by one."""
    found = []
    for key in sorted(stored.keys() | given.keys()):
        there, now = stored.get(key), given.get(key)
        if isinstance(there, dict) and isinstance(now, dict):
            found += [_differences(there, now)] if there != now else []
        elif there != now:
            found.append(f"{key}: {there} there, {now} now")
    return ", ".join(found)
