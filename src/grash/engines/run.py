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

from grash.data.dataset import Dataset
from grash.data.known import KnownAnswers
from grash.engines.device import choose_device
from grash.engines.memory import check_memory, plan_memory
from grash.errors import ConfigError, InputError
from grash.evaluation.evaluate import sampled
from grash.evaluation.metrics import mrr
from grash.evaluation.ranking import Ranker
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
    steps: int
    planned_steps: int
    seconds: float


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
) -> Outcome:
    """Trains on the dataset's train split, validating on its valid split (if it has one).

    checkpoint: a folder that is written from time to time and on an interrupt; if it is there already and belongs
    to the same settings and dataset, training goes on from it, to the same weights bit for bit on a CPU.
    """
    if not len(dataset.train):
        raise InputError(f"{dataset.name} has no training triples.")
    use_threads(threads)
    where = choose_device(device)
    plan = plan_memory(config, dataset.n_entities, dataset.n_relations, len(dataset.train), where)
    log.info("memory on %s: %s", where, plan.sentence())
    check_memory(plan, config, where)

    model = initial_model(config, dataset.n_entities, dataset.n_relations, device=where)
    state = TrainState.fresh(model, config)
    batches = Batches(dataset.train, dataset.n_entities, dataset.n_relations, config, where)
    belongs_to = run_identity(dataset, config, valid_sample)
    save = None
    if checkpoint is not None:
        if (checkpoint / "state.json").is_file():
            load_state(state, checkpoint, belongs_to=belongs_to)
            log.info("goes on from %s at step %d", checkpoint, state.step)
        elif checkpoint.is_file() or (checkpoint.is_dir() and any(checkpoint.iterdir())):
            raise InputError(f"{checkpoint} holds no checkpoint, so it is not overwritten: give another folder.")
        save = _saver(checkpoint, belongs_to)
    train(
        state,
        batches,
        config,
        validate=_validator(dataset, config, where, valid_sample),
        watch=watch,
        save=save,
    )
    best = state.best_validation
    return Outcome(model, state.history, best, state.step, batches.plan.n_steps, state.seconds)


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


def _validator(
    dataset: Dataset, config: TrainConfig, device: torch.device, sample: int | None
) -> Callable[[KgeModel], float] | None:
    """Filtered MRR on the valid split, filtered by train and valid."""
    if not len(dataset.valid):
        return None
    triples = sampled(dataset.valid, sample, config.seed)
    known = KnownAnswers.of(dataset.train, dataset.valid, n_relations=dataset.n_relations, asked=triples)
    ranker = Ranker(triples, known, dataset.n_entities, device)
    return lambda model: mrr(ranker.rank(model))


def _saver(folder: Path, belongs_to: dict[str, Any]) -> Callable[[TrainState], None]:
    def save(state: TrainState) -> None:
        save_state(state, folder, belongs_to=belongs_to)

    return save
