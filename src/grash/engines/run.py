"""The one path of every training: plan memory, build, train, validate, keep the best.

Trials of a search and the final training go through here alike; only the dataset and the config differ.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from grash.data.dataset import Dataset
from grash.data.known import KnownAnswers
from grash.engines.device import choose_device
from grash.engines.memory import check_memory, plan_memory
from grash.errors import ConfigError, InputError
from grash.evaluation.evaluate import sampled
from grash.evaluation.metrics import mrr, mrr_interval
from grash.evaluation.ranking import Ranker, Ranks
from grash.models import KgeModel
from grash.training.batches import Batches
from grash.training.config import TrainConfig
from grash.training.initial import initial_model
from grash.training.loop import train
from grash.training.pulse import Progress
from grash.training.state import TrainState, Validation, load_state, save_state

log = logging.getLogger(__name__)
_MOST_THREADS = 4096


@dataclass(frozen=True, eq=False)
class Outcome:
    """A finished training: the model of the best validation, and how it got there."""

    model: KgeModel
    history: list[Validation]
    best: Validation | None
    interval: tuple[float, float] | None  # of the best validation's MRR
    steps: int
    planned_steps: int
    seconds: float


class Validator:
    """Filtered MRR on the valid split, filtered by train and valid; remembers the ranks of the best."""

    def __init__(self, dataset: Dataset, device: torch.device, *, sample: int | None = None, seed: int = 0) -> None:
        triples = sampled(dataset.valid, sample, seed)
        known = KnownAnswers.of(dataset.train, dataset.valid, n_relations=dataset.n_relations, asked=triples)
        self.ranker = Ranker(triples, known, dataset.n_entities, device)
        self.seed = seed
        self.begin()

    def begin(self, *, work_bytes: int | None = None) -> None:
        """Forgets the run before; a smaller work space changes no rank."""
        self.work_bytes = work_bytes
        self.best: tuple[float, Ranks] | None = None

    def __call__(self, model: KgeModel) -> float:
        ranks = self.ranker.rank(model, work_bytes=self.work_bytes)
        found = mrr(ranks)
        if self.best is None or found > self.best[0]:
            self.best = (found, ranks)
        return found

    def interval(self, model: KgeModel, found: float) -> tuple[float, float]:
        """Of the best validation, whose weights the model has; ranked again if it lies before an interruption."""
        if self.best is None or self.best[0] != found:
            self.best = (found, self.ranker.rank(model, work_bytes=self.work_bytes))
        return mrr_interval(self.best[1], seed=self.seed)


@torch.no_grad()
def run_training(
    dataset: Dataset,
    config: TrainConfig,
    *,
    device: str = "auto",
    threads: int | None = None,
    checkpoint: Path | None = None,
    valid_sample: int | None = None,
    watch: Callable[[Progress], None] | None = None,
    keys: tuple[Tensor, Tensor] | None = None,
    validator: Validator | None = None,
    begin: Callable[[TrainState], None] | None = None,
    keep: Callable[[TrainState], None] | None = None,
    belongs_to: dict[str, Any] | None = None,
) -> Outcome:
    """Trains on the dataset's train split, validating on its valid split (if it has one).

    checkpoint: a folder that is written from time to time and on an interrupt; if it is there already and belongs
    to the same settings and dataset, training goes on from it, to the same weights bit for bit on a CPU.
    For trials of a search: keys are the ids of entities and relations in the full graph, validator is made once for a
    round, begin fills a fresh state from an earlier round, keep is as in `train`, belongs_to tells runs apart.
    """
    if not len(dataset.train):
        raise InputError(f"{dataset.name} has no training triples.")
    use_threads(threads)
    where = choose_device(device)
    plan = plan_memory(config, dataset.n_entities, dataset.n_relations, len(dataset.train), where)
    log.info("memory on %s: %s", where, plan.sentence())
    check_memory(plan, config, where)

    entity_keys, relation_keys = keys or (None, None)
    model = initial_model(
        config,
        dataset.n_entities,
        dataset.n_relations,
        device=where,
        entity_keys=entity_keys,
        relation_keys=relation_keys,
    )
    state = TrainState.fresh(model, config)
    batches = Batches(dataset.train, dataset.n_entities, dataset.n_relations, config, where)
    owner = run_identity(dataset, config, valid_sample) | (belongs_to or {})
    save = None
    if checkpoint is not None:
        save = _saver(checkpoint, owner)
    if checkpoint is not None and (checkpoint / "state.json").is_file():
        load_state(state, checkpoint, belongs_to=owner)
        log.info("goes on from %s at step %d", checkpoint, state.step)
    elif checkpoint is not None and (checkpoint.is_file() or (checkpoint.is_dir() and any(checkpoint.iterdir()))):
        raise InputError(f"{checkpoint} holds no checkpoint, so it is not overwritten: give another folder.")
    elif begin is not None:
        begin(state)
    if validator is None and len(dataset.valid):
        validator = Validator(dataset, where, sample=valid_sample, seed=config.seed)
    train(state, batches, config, validate=validator, watch=watch, save=save, keep=keep)
    best = state.best_validation
    interval = None if validator is None or best is None else validator.interval(model, best.mrr)
    return Outcome(model, state.history, best, interval, state.step, batches.plan.n_steps, state.seconds)


def use_threads(threads: int | None) -> None:
    """Computes with that many CPU threads from now on; None leaves the number as it is."""
    if threads is None:
        return
    if not isinstance(threads, int) or isinstance(threads, bool) or not 1 <= threads <= _MOST_THREADS:
        raise ConfigError(f"threads={threads!r}: give a whole number from 1 to {_MOST_THREADS:,}.")
    torch.set_num_threads(threads)


def run_identity(dataset: Dataset, config: TrainConfig, valid_sample: int | None) -> dict[str, Any]:
    """What a checkpoint belongs to: whatever changes a number of the run."""
    return {"config": config.model_dump(), "dataset": dataset.fingerprint, "valid_sample": valid_sample}


def _saver(folder: Path, belongs_to: dict[str, Any]) -> Callable[[TrainState], None]:
    def save(state: TrainState) -> None:
        save_state(state, folder, belongs_to=belongs_to)

    return save
