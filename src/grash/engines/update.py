"""Continue the training of a model on a graph that has grown (`data/growth.py`).

Rows of known entities and relations are kept and trained further. Rows of new ones start where the triples that name
them point at: for a triple (new, r, t), at the query (?, r, t), whose score with a row is largest in its own direction.
A model folder has no optimizer state, so it is rebuilt: half an epoch over the old triples (a whole one of few steps)
adds up squared gradients without moving a row (docs/decisions/0059, 0063).
With `freeze`, the sums of old rows are so large that they do not move, and only new rows learn.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from grash.data.arrays import Triples
from grash.data.dataset import Dataset
from grash.data.growth import GraphDiff, Growth
from grash.data.known_answers import KnownAnswers
from grash.engines.trainer import TrainingData, run_trainings, set_threads
from grash.errors import ConfigError
from grash.evaluation.evaluate import sample_triples
from grash.evaluation.metrics import mrr
from grash.evaluation.ranking import Ranker
from grash.formatting import format_duration, printable
from grash.kernels.storage import to_float32
from grash.models import KgeModel
from grash.models.autograd import AutogradModel
from grash.models.base import SIDES, model_tensors
from grash.training.checkpoint import TrainState, Validation, state_tensors
from grash.training.config import TrainConfig
from grash.training.initial import initial_model
from grash.training.loop import Progress, Training

NewRows = Literal["triples", "neighbors", "random"]
NEW_ROWS: tuple[NewRows, ...] = ("triples", "neighbors", "random")

_SHARE = 0.125  # of the epochs of the earlier training, by default
_STILL = 1e-30  # a learning rate that moves nothing
_FROZEN_REPLAY = 4.0  # old triples per new one while old rows are frozen: new rows must not outrank them
_FROZEN = 1e30  # a sum of squares that leaves nothing of a step
_LENGTH = 0.5  # of a new row in dot-product models, in mean rows: at 1, new entities outrank true answers
_PASSES = 3  # over triples of new entities, whose neighbors may be new, too
_ROWS = 1 << 15  # triples embedded at a time
_VALID = 500  # triples of a validation; more where there are few entities, so that ranking takes little time:
_SCORES = 20_000_000  # of a validation and side
_RANKED = 300  # triples ranked for a metric of the report
CALIBRATED = 1000  # questions per side of the calibration
_REBUILT = 0.5  # epochs that rebuild the optimizer state
_FEW_STEPS = 40  # an epoch with fewer steps is used whole
_MANY_NEW = 0.02  # of train: from then on, old rows learn as after one epoch


@dataclass(frozen=True)
class UpdateSettings:
    """How a model is updated."""

    epochs: float | None = None  # passes over the examples; None: 12.5 % of those before, none with freeze
    replay: float | None = None  # old triples per new one to train on; None: all of them
    freeze: bool = False  # old rows stay as they are
    new_rows: NewRows = "triples"  # how new rows start: their triples' queries, the mean of neighbors, at random

    def __post_init__(self) -> None:
        if self.epochs is not None and not 0 <= self.epochs <= 1e6:
            raise ConfigError(f"epochs={self.epochs} is not possible: give 0 or more.")
        if self.replay is not None and not 0 <= self.replay <= 1e6:
            raise ConfigError(f"replay={self.replay} is not possible: give 0 or more old triples per new one.")
        if self.new_rows not in NEW_ROWS:
            raise ConfigError(f"new_rows={self.new_rows!r} is unknown: give {', '.join(NEW_ROWS)}.")


@dataclass(frozen=True)
class Change:
    """The filtered MRR of the same triples before and after an update."""

    what: str
    n: int  # triples ranked
    before: float | None  # None if the model could not rank them: they have new names
    after: float


@dataclass(frozen=True)
class Drift:
    """How far old rows moved: the length of the difference, divided by the mean length of a row."""

    mean: float
    largest: float
    n_moved: int  # rows that changed at all
    n_rows: int


@dataclass(frozen=True)
class UpdateReport:
    """What an update changed, and what it cost."""

    diff: GraphDiff
    changes: tuple[Change, ...]
    entity_drift: Drift
    relation_drift: Drift
    optimizer_state: str  # rebuilt, or not needed
    n_examples: int  # triples of an epoch of the update; 0 if nothing was trained
    positives: int  # triples passed to a step, also to rebuild the optimizer state
    epochs_of_all: float  # the same, as epochs over the whole train split
    seconds: float

    def __repr__(self) -> str:
        lines = [f"UpdateReport: {format_duration(self.seconds)}", *self.diff.sentences()]
        for change in self.changes:
            before = "–" if change.before is None else f"{change.before:.4f}"
            lines.append(f"MRR of {change.what} ({change.n:,} triples): {before} → {change.after:.4f}")
        return "\n".join(map(printable, lines))

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


@torch.no_grad()
def update_model(
    model: KgeModel,
    growth: Growth,
    config: TrainConfig,
    settings: UpdateSettings,
    *,
    epochs_before: float,
    threads: int | None = None,
    watch: Callable[[Progress], None] | None = None,
) -> tuple[KgeModel, list[Validation], UpdateReport]:
    """Return the updated model, its validations and the report. The model given does not change.

    epochs_before: of the training that made the model.
    """
    set_threads(threads)
    began, device = time.monotonic(), model.entity.device
    chosen = _update_config(config, settings, epochs_before)
    before = _Before(model, growth)
    if settings.epochs == 0 or (settings.freeze and settings.epochs is None):
        grown = initial_model(chosen, growth.dataset.n_entities, growth.dataset.n_relations, device=device)
        _fill(TrainState.fresh(grown, chosen), before, {}, settings)
        history: list[Validation] = []
        n_examples, positives, state = 0, 0, "not needed"
    else:
        examples = _examples(growth, config, settings)
        kept = (
            {} if settings.freeze else _rebuilt_state(model, growth.before, config, _epochs_kept(growth, epochs_before))
        )
        n_valid = max(_VALID, _SCORES // growth.dataset.n_entities)
        data = TrainingData(growth.dataset, device, valid_sample=n_valid, seed=config.seed, examples=examples)
        training = Training(
            chosen, watch=watch, initialize=lambda state: _fill(state, before, kept, settings), interval=False
        )
        [[(_, ended)]] = run_trainings(data, [training])
        if isinstance(ended, Exception):
            raise ended
        grown, history = ended.model, ended.history
        last = history[-1].epoch if history else chosen.epochs
        n_examples = len(examples)
        rebuilt = 0.0 if settings.freeze else _rebuilt_epochs(config, growth.before)
        positives = round(last * n_examples) + round(rebuilt * len(growth.before.train))
        state = "not needed" if settings.freeze else "rebuilt"
    if settings.freeze:
        before.restore(grown)  # RotatE's phases are wrapped in every step, which may round them
    changes = tuple(_changes(model, grown, growth, config.seed, trained=n_examples > 0))
    report = UpdateReport(
        growth.diff, changes, _drift(model.entity, grown.entity),
        _drift(before.relation_rows(model), before.relation_rows(grown)), state, n_examples, positives,
        positives / len(growth.dataset.train), time.monotonic() - began,
    )  # fmt: skip
    return grown, history, report


def _examples(growth: Growth, config: TrainConfig, settings: UpdateSettings) -> Triples:
    """Return the triples to train on: all of train, or the new ones with a sample of the old."""
    train, added, whole = growth.dataset.train, growth.added, config.training == "kvsall"
    if whole and settings.replay is not None:
        raise ConfigError("training=kvsall trains on whole answers, not on a part of the triples: leave out replay.")
    replay = _FROZEN_REPLAY if settings.freeze and settings.replay is None else settings.replay
    if whole or replay is None or not len(added):
        return train
    n_old = len(train) - len(added)
    drawn = np.random.default_rng(config.seed).permutation(n_old)[: round(replay * len(added))]
    return np.ascontiguousarray(np.concatenate([train[np.sort(drawn)], added]))


def _update_config(config: TrainConfig, settings: UpdateSettings, epochs_before: float) -> TrainConfig:
    epochs = max(1.0, _SHARE * epochs_before) if settings.epochs is None else settings.epochs or 1.0
    changes: dict[str, Any] = {"epochs": epochs, "valid_every": max(epochs / 4, 1e-9), "warmup_epochs": 0.0}
    changes["schedule"] = "plateau" if config.schedule == "plateau" else "constant"
    if settings.freeze and config.optimizer not in ("adagrad", "row_adagrad"):
        changes["optimizer"] = "adagrad"
    return config.changed(**changes)


class _Before:
    """Where the rows of the model before are in the tables of the model after."""

    def __init__(self, model: KgeModel, growth: Growth) -> None:
        self.model, self.growth = model, growth
        old, new = growth.before.n_relations, growth.dataset.n_relations
        ids = torch.arange(old)
        self.relations = torch.cat([ids, ids + new]) if model.reciprocal else ids

    def relation_rows(self, model: KgeModel) -> Tensor:
        return model.relation if model is self.model else model.relation[self.relations.to(model.relation.device)]

    def restore(self, grown: KgeModel) -> None:
        grown.entity[: len(self.model.entity)] = self.model.entity.to(grown.entity.dtype)
        grown.relation[self.relations.to(grown.relation.device)] = self.model.relation
        for name, weight in self.model.weights.items():
            grown.weights[name].copy_(weight)


def _rebuilt_epochs(config: TrainConfig, dataset: Dataset) -> float:
    """Return the passes over the old triples that rebuild the optimizer state."""
    few = config.training == "kvsall" or len(dataset.train) < _FEW_STEPS * config.batch_size
    return 1.0 if few else _REBUILT


def _epochs_kept(growth: Growth, epochs_before: float) -> float:
    """Return of how many epochs the rebuilt sums of squares are: of one where many triples changed, so that old rows
    learn; of all earlier ones where hardly any did, so that they stay where they are (decision 0063)."""
    share = (len(growth.added) + growth.diff.n_removed) / len(growth.dataset.train)
    return float(max(1.0, epochs_before) ** max(0.0, 1 - share / _MANY_NEW))


def _rebuilt_state(
    model: KgeModel, dataset: Dataset, config: TrainConfig, epochs_kept: float = 1.0
) -> dict[str, Tensor]:
    """Return the tensors of the optimizers after an epoch over the old triples that moves nothing.

    Sums of squares after a part of an epoch are scaled to `epochs_kept` whole ones.
    """
    epochs = _rebuilt_epochs(config, dataset)
    still = config.changed(lr=_STILL, epochs=epochs, schedule="constant", warmup_epochs=0.0, patience=None)
    kept: dict[str, Tensor] = {}

    def initialize(state: TrainState) -> None:
        state.model.entity.copy_(model.entity)
        state.model.relation.copy_(model.relation)
        for name, weight in model.weights.items():
            state.model.weights[name].copy_(weight)

    def keep(state: TrainState) -> None:
        tables = model_tensors(state.model)
        for name, tensor in state_tensors(state).items():
            if name not in tables:
                kept[name] = tensor * (epochs_kept / epochs) if name.endswith("squares") else tensor.clone()

    data = TrainingData(replace(dataset, valid=dataset.valid[:0]), model.entity.device, seed=config.seed)
    training = Training(still, initialize=initialize, keep=keep, interval=False, keep_best=False)
    [[(_, ended)]] = run_trainings(data, [training])
    if isinstance(ended, Exception):
        raise ended
    return kept


def _fill(state: TrainState, before: _Before, kept: dict[str, Tensor], settings: UpdateSettings) -> None:
    """Fill a new state: old rows and their optimizer state, then the rows of new entities and relations."""
    before.restore(state.model)
    n_entities = len(before.model.entity)
    for name, tensor in state_tensors(state).items():
        rows: Any = slice(None)  # of a weight
        if name.startswith(("entity.", "relation.")):
            rows = slice(0, n_entities) if name.startswith("entity") else before.relations.to(tensor.device)
        if name in kept:
            tensor[rows] = kept[name].to(tensor.device)
        elif settings.freeze and name.endswith("squares"):
            tensor[rows] = _FROZEN
    if settings.new_rows != "random":
        simple = not isinstance(state.model, AutogradModel)  # a query of other models is no row
        fill_new_rows(state.model, before.growth, settings.new_rows if simple else "neighbors")


def fill_new_rows(model: KgeModel, growth: Growth, how: NewRows) -> None:
    """Set the rows of new entities and relations from the triples of train that name them.

    A row without such a triple, or whose triples name only rows without one, keeps its random values.
    """
    n_old, triples = growth.before.n_entities, growth.dataset.train
    entities = np.arange(growth.dataset.n_entities) < n_old
    relations = np.arange(growth.dataset.n_relations) < growth.before.n_relations
    touching = triples[~(entities[triples[:, 0]] & relations[triples[:, 1]] & entities[triples[:, 2]])]
    size = to_float32(model.entity[:n_old]).norm(dim=1).mean()
    for _ in range(_PASSES):
        _fill_relations(model, touching, entities, relations)
        _fill_entities(model, touching, entities, relations, how, size)


def _fill_relations(
    model: KgeModel, triples: Triples, entities: NDArray[np.bool_], relations: NDArray[np.bool_]
) -> None:
    """Set the rows of new relations from the triples between known entities, and mark these relations."""
    usable = triples[entities[triples[:, 0]] & ~relations[triples[:, 1]] & entities[triples[:, 2]]]
    for relation in np.unique(usable[:, 1]).tolist():
        ids = torch.from_numpy(usable[usable[:, 1] == relation][:_ROWS].astype(np.int64)).to(model.entity.device)
        head, tail = to_float32(model.entity[ids[:, 0]]), to_float32(model.entity[ids[:, 2]])
        model.relation[relation] = model.fitted_relation(head, tail)
        if model.reciprocal:
            model.relation[relation + model.n_relations] = model.fitted_relation(tail, head)
        relations[relation] = True


def _fill_entities(
    model: KgeModel, triples: Triples, entities: NDArray[np.bool_], relations: NDArray[np.bool_], how: NewRows,
    size: Tensor,
) -> None:  # fmt: skip
    """Set the rows of new entities to the mean of what their triples with known rows point at, and mark them."""
    table = model.entity
    sums = torch.zeros(len(entities), table.shape[1], device=table.device)
    counts = torch.zeros(len(entities), device=table.device)
    for side in SIDES:
        answer, end = (2, 0) if side == "tail" else (0, 2)
        usable = triples[~entities[triples[:, answer]] & relations[triples[:, 1]] & entities[triples[:, end]]]
        for first in range(0, len(usable), _ROWS):
            ids = torch.from_numpy(usable[first : first + _ROWS].astype(np.int64)).to(table.device)
            rows = to_float32(table[ids[:, end]])
            if how == "triples":
                queries, seen = model.queries(ids[:, end], ids[:, 1], side)
                rows = model.candidate_gradient(queries, seen)
                if model.pair == "dot":
                    rows = torch.nn.functional.normalize(rows, dim=1) * (_LENGTH * size)
            sums.index_add_(0, ids[:, answer], rows)
            counts.index_add_(0, ids[:, answer], torch.ones(len(ids), device=table.device))
    found = torch.nonzero(counts).flatten()
    rows = sums[found] / counts[found, None]
    table[found] = rows.to(table.dtype)
    entities[found.cpu().numpy()] = True


def _changes(before: KgeModel, after: KgeModel, growth: Growth, seed: int, *, trained: bool) -> list[Change]:
    """Return the MRR of held-out and of new triples before and after; candidates are the entities of each graph.

    Triples with new names, which the model before cannot rank, are separate.
    """
    old, new = growth.before, growth.dataset
    kept_test = sample_triples(old.test, _RANKED, seed)
    rows = [("old test triples", kept_test), ("new test triples", new.test[len(old.test) :])]
    rows.append(("new triples, now trained on" if trained else "new triples", growth.added))
    if growth.diff.n_removed:  # places in the splits changed
        rows = [("test triples", sample_triples(new.test, _RANKED, seed)), rows[-1]]
    changes = []
    for what, triples in rows:
        known = (triples < np.array([old.n_entities, old.n_relations, old.n_entities])).all(1)
        chosen, unknown = (sample_triples(triples[part], _RANKED, seed) for part in (known, ~known))
        if len(chosen):
            changes.append(Change(what, len(chosen), _mrr(before, chosen, old), _mrr(after, chosen, new)))
        if len(unknown):
            changes.append(Change(f"{what}, with new names", len(unknown), None, _mrr(after, unknown, new)))
    return changes


def _mrr(model: KgeModel, triples: Triples, dataset: Dataset) -> float:
    splits = dataset.train, dataset.valid, dataset.test
    known = KnownAnswers.of(*splits, triples, n_relations=dataset.n_relations, asked=triples)
    return mrr(Ranker(triples, known, dataset.n_entities, model.entity.device).rank(model))


def _drift(before: Tensor, after: Tensor) -> Drift:
    old, new = to_float32(before), to_float32(after[: len(before)])
    moved = (new - old).norm(dim=1)
    scale = float(old.norm(dim=1).mean()) or 1.0
    return Drift(float(moved.mean()) / scale, float(moved.max()) / scale, int((moved > 0).sum()), len(old))
