"""Where a training stands: all that is needed to go on exactly, in memory and as a checkpoint folder.

    state.json              schema, version, step, history, plateau, what it belongs to
    tensors.safetensors     tables, optimizer state, and the tables of the best validation
Random numbers need no state: they follow from the seed and the step.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from torch import Tensor

from grash.errors import FormatError, InputError
from grash.files import atomic_folder, read_json, write_json
from grash.kernels.host_rows import copy_rows
from grash.models import KgeModel
from grash.models.store import read_tensors, write_tensors
from grash.training.config import AS_BEFORE, TrainConfig
from grash.training.optimizers import Plateau, TableOptimizer, rounding_key
from grash.training.placement import Placement

SCHEMA, VERSION = "grash-checkpoint", 1


@dataclass(frozen=True)
class Validation:
    """One look at the validation triples: after `step` steps, at `epoch`, with the mean loss since the last."""

    step: int
    epoch: float
    loss: float
    mrr: float
    lr: float


@dataclass
class TrainState:
    model: KgeModel
    entity_optimizer: TableOptimizer
    relation_optimizer: TableOptimizer
    plateau: Plateau
    step: int = 0
    seconds: float = 0.0
    loss_sum: float = 0.0  # since the last validation
    loss_steps: int = 0
    first_loss: float | None = None
    unread: list[Tensor] = field(default_factory=list)  # losses of steps that nobody has looked at yet
    history: list[Validation] = field(default_factory=list)
    best: dict[str, Tensor] = field(default_factory=dict)  # tables of the best validation, on the host
    placement: Placement = field(default_factory=Placement)
    interval: tuple[float, float] | None = None  # of the best validation's MRR

    @classmethod
    def fresh(cls, model: KgeModel, config: TrainConfig, placement: Placement | None = None) -> TrainState:
        """placement: where the model's entity table lies, and so its optimizer's state; with the table by default."""
        return cls(
            model,
            TableOptimizer(config.optimizer, model.entity, placement, key=rounding_key(config)),
            TableOptimizer(config.optimizer, model.relation),
            Plateau(config.schedule_factor, config.schedule_patience),
            placement=placement or Placement(),
        )

    @property
    def nbytes(self) -> int:
        """Of all tables, those of a checkpoint."""
        return sum(t.nbytes for t in state_tensors(self).values())

    @property
    def best_validation(self) -> Validation | None:
        return max(self.history, key=lambda v: (v.mrr, -v.step), default=None)

    @property
    def validations_since_best(self) -> int:
        best = self.best_validation
        return 0 if best is None else sum(v.step > best.step for v in self.history)

    def keep_best(self) -> None:
        """Copies the tables if the latest validation is the best, over those of the one before."""
        if self.best_validation is self.history[-1]:
            self.make_best()
            copy_rows(self.model.entity, self.best["entity"])
            copy_rows(self.model.relation, self.best["relation"])

    def make_best(self) -> None:
        """Room for the best tables, if there is none yet."""
        if not self.best:
            model = self.model
            self.best = {"entity": self.placement.kept(model.entity), "relation": self.placement.kept(model.relation)}

    def restore_best(self) -> None:
        if self.best:
            copy_rows(self.best["entity"], self.model.entity)
            copy_rows(self.best["relation"], self.model.relation)

    def release(self) -> None:
        """Free what only training needs: the optimizer state and the copy of the best tables."""
        for optimizer in (self.entity_optimizer, self.relation_optimizer):
            optimizer.release()
        self.best = {}


def save_state(state: TrainState, folder: Path, *, belongs_to: dict[str, Any]) -> None:
    """Writes the checkpoint, wholly or not at all; an older one stays until the new one is complete."""
    with atomic_folder(folder, overwrite=True) as aside:
        write_tensors(state_tensors(state), aside / "tensors.safetensors")
        write_json(aside / "state.json", state_record(state, belongs_to))


def load_state(state: TrainState, folder: Path, *, belongs_to: dict[str, Any]) -> None:
    """Fills a fresh state from a checkpoint that belongs to the same run."""
    record = read_record(folder, belongs_to)
    try:
        if record["has_best"]:
            state.make_best()
        read_tensors(folder / "tensors.safetensors", state_tensors(state))
        take_record(state, record)
    except (SafetensorError, KeyError, TypeError, ValueError, RuntimeError, OSError) as error:
        raise FormatError(f"{folder} is a damaged checkpoint ({error}): remove it to start anew.") from error


def state_record(state: TrainState, belongs_to: dict[str, Any]) -> dict[str, Any]:
    """The content of state.json: all but the tables."""
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
        "plateau": {"scale": plateau.scale, "waited": plateau.waited, "best": plateau.best if state.history else None},
        "history": [asdict(v) for v in state.history],
        "has_best": bool(state.best),
        "interval": None if state.interval is None else list(state.interval),
    }


def read_record(folder: Path, belongs_to: dict[str, Any]) -> dict[str, Any]:
    """The state.json of a checkpoint, if it is one of the same run."""
    record = read_json(folder / "state.json", schema=SCHEMA, version=VERSION)
    owner = record.get("belongs_to")
    if not isinstance(owner, dict):
        raise FormatError(f"{folder} is a damaged checkpoint (it does not say what it belongs to): remove it.")
    given, stored = belongs_to.get("config"), owner.get("config")
    if isinstance(given, dict) and isinstance(stored, dict):  # what could not be set then had the value it began with
        owner["config"] = {k: v for k, v in AS_BEFORE.items() if k in given} | stored
    for key, value in belongs_to.items():
        if owner.get(key) != value:
            raise InputError(_difference(folder, key, owner.get(key), value))
    return record


def take_record(state: TrainState, record: dict[str, Any]) -> None:
    """Brings the state to where the record stands, but for the tables."""
    state.step, state.seconds = record["step"], record["seconds"]
    state.loss_sum, state.loss_steps = record["loss_sum"], record["loss_steps"]
    state.first_loss = record["first_loss"]
    plateau = record["plateau"]
    state.plateau.scale, state.plateau.waited = plateau["scale"], plateau["waited"]
    state.plateau.best = float("-inf") if plateau["best"] is None else plateau["best"]
    state.history = [Validation(**v) for v in record["history"]]
    interval = record.get("interval")
    state.interval = None if interval is None else (float(interval[0]), float(interval[1]))


def step_of(folder: Path) -> int | None:
    """The step of the checkpoint in the folder; None where there is none that can be read."""
    try:
        return int(json.loads((folder / "state.json").read_text(encoding="utf-8"))["step"])
    except (OSError, ValueError, KeyError, TypeError):
        return None


def state_tensors(state: TrainState) -> dict[str, Tensor]:
    tensors: dict[str, Tensor] = {"entity": state.model.entity, "relation": state.model.relation}
    tensors |= {f"entity.{name}": t for name, t in state.entity_optimizer.state.items()}
    tensors |= {f"relation.{name}": t for name, t in state.relation_optimizer.state.items()}
    return tensors | {f"best.{name}": t for name, t in state.best.items()}


def _difference(folder: Path, key: str, stored: Any, given: Any) -> str:
    if isinstance(stored, dict) and isinstance(given, dict):
        changed = sorted(k for k in stored.keys() | given.keys() if stored.get(k) != given.get(k))
        what = ", ".join(f"{k}: {stored.get(k)} there, {given.get(k)} now" for k in changed)
    else:
        what = f"{key}: {stored} there, {given} now"
    return (
        f"{folder} is the checkpoint of another run ({what}): give the same settings or another folder, or remove it "
        f"(--restart on the command line) to begin anew."
    )
