"""Run trainings: plan memory, build models, train, validate, keep the best.

Trials of a search and the final training take this path; only the dataset and the configuration differ. Trainings on
one graph that fit in memory together are trained together, as a stack.
"""

from __future__ import annotations

import copy
import gc
import logging
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import cached_property
from operator import itemgetter
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from grash.data.arrays import Triples
from grash.data.dataset import Dataset
from grash.data.known_answers import KnownAnswers
from grash.engines.memory import (
    MemoryPlan,
    choose_device,
    choose_placement,
    fits,
    free_disk,
    plan_memory,
)
from grash.errors import ConfigError, InputError, OutputError, is_memory_error
from grash.evaluation.evaluate import sample_triples
from grash.evaluation.metrics import Metric, mrr, mrr_interval, score
from grash.evaluation.ranking import Ranker, Ranks
from grash.files import repair_folder
from grash.formatting import format_bytes
from grash.kernels.device import set_current_device
from grash.kernels.storage import Placement
from grash.models import KgeModel
from grash.training.batches import Batches, needs_index, triples_on
from grash.training.checkpoint import TrainState, load_state, save_state
from grash.training.config import TrainConfig
from grash.training.fused import compile_stacks, stack_states, uses_fused_step
from grash.training.initial import initial_model
from grash.training.loop import Found, Training, train_stack

log = logging.getLogger(__name__)

_MAX_THREADS = 4096
_RESERVED_DISK = 1 << 30  # bytes that a checkpoint leaves free on its disk
_STACK_FIELDS = (
    "batch_size", "model", "dim", "norm", "reciprocal", "training", "loss", "optimizer", "precision", "storage",
    "epochs", "seed",
)  # fmt: skip

Ended = TrainState | Exception  # a finished training (its optimizer state is freed), or why it failed


def run_training(
    dataset: Dataset,
    config: TrainConfig,
    *,
    device: str = "auto",
    threads: int | None = None,
    valid_sample: int | None = None,
    keys: tuple[Tensor, Tensor] | None = None,
    **options: Any,
) -> TrainState:
    """Train on the dataset's train split, validate on its valid split (if it has one), and return the final state.

    keys, valid_sample: see `TrainingData`. options: fields of `Training`, such as checkpoint and watch.
    """
    set_threads(threads)
    data = TrainingData(dataset, choose_device(device), keys=keys, valid_sample=valid_sample, seed=config.seed)
    [[(_, ended)]] = run_trainings(data, [Training(config, **options)])
    if isinstance(ended, Exception):
        raise ended
    return ended


@torch.no_grad()
def run_trainings(
    data: TrainingData, trainings: Sequence[Training], *, work_bytes: int | None = None
) -> Iterator[list[tuple[int, Ended]]]:
    """Run all trainings. After each stack, yield (index in trainings, how it ended) for its members.

    Models of a stack share one allocation, which is freed when none of them is referenced any more. A stack that runs
    out of memory is tried again in two parts. work_bytes limits the work space of ranking. Stacks share the time until
    their deadlines.
    """
    if data.device.type == "cuda":
        _ = data.validator  # its filter is part of the memory plan
    for training in trainings:
        if training.checkpoint is not None:
            repair_folder(training.checkpoint)
    parts = _compiled_first(data, trainings, stacks(data, trainings))
    while parts:
        part = parts.pop(0)
        limited = [_limited(training, 1 + len(parts)) for training in trainings]
        ended = _try_stack(data, limited, part, work_bytes)
        if ended is None:
            parts[:0] = _smaller(trainings, part)
        else:
            yield ended
            del ended  # otherwise its models stay in memory while the next stack is built


def _limited(training: Training, n_stacks: int) -> Training:
    """Return the training with its share of the time until its deadline, if this many stacks are still to be run."""
    if training.deadline is None or n_stacks == 1:
        return training
    now = time.monotonic()
    return replace(training, deadline=now + (training.deadline - now) / n_stacks)


def stacks(data: TrainingData, trainings: Sequence[Training]) -> list[list[int]]:
    """Return the indices of trainings that are trained together, one list per stack."""
    return [part for group in _groups(data, trainings) for part in _split(data, trainings, group)]


def can_stack(config: TrainConfig, device: torch.device) -> bool:
    """Return whether trainings like this one are trained together: on a GPU by the fused step, on a CPU in turn."""
    return device.type == "cpu" or uses_fused_step(config, device)


def stack_key(config: TrainConfig) -> tuple[Any, ...]:
    """Return the values that trainings on one graph must share to be trained together."""
    return *(getattr(config, name) for name in _STACK_FIELDS), config.relation_prediction > 0


def set_threads(threads: int | None) -> None:
    """Set the number of CPU threads; None leaves it unchanged."""
    if threads is None:
        return
    if not isinstance(threads, int) or isinstance(threads, bool) or not 1 <= threads <= _MAX_THREADS:
        raise ConfigError(f"threads={threads!r}: give a whole number from 1 to {_MAX_THREADS:,}.")
    torch.set_num_threads(threads)


def run_identity(dataset: Dataset, config: TrainConfig, valid_sample: int | None) -> dict[str, Any]:
    """Return what a checkpoint belongs to: everything that changes a number of the run."""
    return {"config": config.model_dump(), "dataset": dataset.fingerprint, "valid_sample": valid_sample}


def has_checkpoint(folder: Path) -> bool:
    """Return whether the folder holds a checkpoint; raise InputError if it holds something else."""
    if (folder / "state.json").is_file():
        return True
    if folder.is_file() or (folder.is_dir() and any(folder.iterdir())):
        raise InputError(f"{folder} holds no checkpoint, so it is not overwritten: give another folder.")
    return False


def checkpoint_fits(n_bytes: int, free: int) -> bool:
    """Return whether a checkpoint of this size leaves enough of the free bytes of a disk."""
    return n_bytes + min(n_bytes, _RESERVED_DISK) <= free


def warn_no_checkpoint(folder: Path, n_bytes: int, free: int) -> None:
    """Log that a checkpoint is skipped; a full disk does not end the training."""
    log.warning(
        "Checkpoint %s skipped: it needs %s, only %s is free. Training continues but cannot be resumed from here.",
        folder, format_bytes(n_bytes), format_bytes(free),
    )  # fmt: skip


def _compiled_first(data: TrainingData, trainings: Sequence[Training], parts: list[list[int]]) -> list[list[int]]:
    """Return the stacks ordered for a GPU: missing kernels compile in other threads, stacks that need none go first."""
    fused = [part for part in parts if uses_fused_step(trainings[part[0]].config, data.device)]
    if not fused:
        return parts
    missing = compile_stacks([[trainings[i].config for i in part] for part in fused], *data.sizes, data.device)
    waiting = {part[0] for part, kernels in zip(fused, missing) if kernels}
    return sorted(parts, key=lambda part: part[0] in waiting)


def _groups(data: TrainingData, trainings: Sequence[Training]) -> list[list[int]]:
    """Return indices of trainings that can share a stack, most negatives first, so that parts are alike in size."""
    groups: dict[Any, list[int]] = {}
    for i, training in enumerate(trainings):
        key: Any = i
        if can_stack(training.config, data.device):
            key = (*stack_key(training.config), training.first_step())
        groups.setdefault(key, []).append(i)
    sizes = [training.config.negatives_head + training.config.negatives_tail for training in trainings]
    return [sorted(group, key=lambda i: -sizes[i]) for group in groups.values()]


def _split(data: TrainingData, trainings: Sequence[Training], group: list[int]) -> list[list[int]]:
    """Return the group in as few parts as memory allows, of about equal size."""
    configs = [trainings[i].config for i in group]
    fitting, too_many = 1, len(group) + 1
    while too_many - fitting > 1:
        middle = (fitting + too_many) // 2
        if fits(data.plan_memory(configs[:middle]), data.device):
            fitting = middle
        else:
            too_many = middle
    n_parts = -(-len(group) // fitting)
    size = -(-len(group) // n_parts)
    return [group[first : first + size] for first in range(0, len(group), size)]


def _try_stack(
    data: TrainingData, trainings: Sequence[Training], part: list[int], work_bytes: int | None
) -> list[tuple[int, Ended]] | None:
    """Return how the trainings ended, or None if memory ran out and a smaller stack may fit."""
    if data.device.type == "cuda":  # a small table in a cached block of the last stack would keep the whole block
        torch.cuda.empty_cache()
    try:
        return sorted(zip(part, _run_stack(data, [trainings[i] for i in part], work_bytes)), key=itemgetter(0))
    except OutputError:
        raise
    except Exception as error:
        if len(part) > 1 and is_memory_error(error):
            log.warning("%d trainings together: %s Trying again in two parts.", len(part), str(error).split("\n")[0])
        else:
            return [(i, error) for i in part]
    gc.collect()  # the error is gone here, but reference cycles may still hold what it held
    return None


def _smaller(trainings: Sequence[Training], part: list[int]) -> list[list[int]]:
    """Return a stack that did not fit in parts: by first step if checkpoints now differ in it, otherwise in halves."""
    by_step: dict[int, list[int]] = {}
    for i in part:
        by_step.setdefault(trainings[i].first_step(), []).append(i)
    if len(by_step) > 1:
        return list(by_step.values())
    return [part[: len(part) // 2], part[len(part) // 2 :]]


def _run_stack(data: TrainingData, trainings: Sequence[Training], work_bytes: int | None) -> list[Ended]:
    """Train these together and return how each ended."""
    first = trainings[0]
    if len(trainings) == 1:
        folder = None if first.checkpoint is None else first.checkpoint.absolute().parent
        plan = data.choose_placement(first.config, placement=first.placement, folder=folder, keep_best=first.keep_best)
    else:
        keep_best = any(training.keep_best for training in trainings)
        plan = data.plan_memory([training.config for training in trainings], keep_best=keep_best)
    log.info("memory on %s: %s", data.device, plan)
    ended: dict[int, Ended] = {}

    def states() -> Iterator[TrainState]:
        for i, training in enumerate(trainings):
            try:
                yield _initial_state(data, training, plan.placement)
            except Exception as error:
                if is_memory_error(error):
                    raise
                ended[i] = error

    built = stack_states(states(), n=len(trainings))
    started = [i for i in range(len(trainings)) if i not in ended]
    running = []
    for i, state in zip(started, built):
        training, validate = trainings[i], None if data.validator is None else data.validator.copy(work_bytes)
        save = None if training.checkpoint is None else _saver(data, training, training.checkpoint, validate)
        running.append(training.started(state, data.batches(training.config), validate, save))
    for i, training, error in zip(started, running, train_stack(running)):
        ended[i] = _finish(training) if error is None else error
    return [ended[i] for i in range(len(trainings))]


def _initial_state(data: TrainingData, training: Training, placement: Placement) -> TrainState:
    """Return a new state, the checkpoint's, or one filled from the round before."""
    entity_keys, relation_keys = data.keys or (None, None)
    model = initial_model(
        training.config, *data.sizes, device=data.device, entity_keys=entity_keys, relation_keys=relation_keys,
        placement=placement,
    )  # fmt: skip
    state, folder = TrainState.fresh(model, training.config, placement), training.checkpoint
    if folder is not None and has_checkpoint(folder):
        load_state(state, folder, belongs_to=_identity(data, training))
        log.info("resuming from %s at step %d", folder, state.step)
    elif training.initialize is not None:
        training.initialize(state)
    return state


def _saver(
    data: TrainingData, training: Training, folder: Path, validator: Validator | None
) -> Callable[[TrainState], None]:
    """Return the function that saves checkpoints, and warns once if the disk is too full.

    A training that does not keep its best weights cannot rank them again, so it saves the interval, too.
    """
    identity, warned = _identity(data, training), False
    if training.keep_best or not training.interval:
        validator = None

    def save(state: TrainState) -> None:
        nonlocal warned
        n_bytes, free = state.nbytes, free_disk(folder)
        if not checkpoint_fits(n_bytes, free):
            if not warned:
                warn_no_checkpoint(folder, n_bytes, free)
            warned = True
            return
        best = state.best_validation
        if validator is not None and best is not None and validator.remembers(best.value):
            state.interval = validator.interval(state.model, best.value)
        save_state(state, folder, belongs_to=identity)

    return save


def _finish(training: Training) -> Ended:
    """Return the state with the interval of the best validation and without what only training needs."""
    state, validator = training.state, training.validate
    best = state.best_validation
    if not training.interval:
        state.interval = None
    elif isinstance(validator, Validator) and best is not None:
        try:
            if training.keep_best or validator.remembers(best.value):
                state.interval = validator.interval(state.model, best.value)
        except Exception as error:
            return error
    state.release()
    return state


def _identity(data: TrainingData, training: Training) -> dict[str, Any]:
    return run_identity(data.dataset, training.config, data.valid_sample) | training.belongs_to


class Validator:
    """Computes a metric of the valid split, filtered by train and valid; remembers the ranks of the best."""

    def __init__(
        self,
        dataset: Dataset,
        device: torch.device,
        *,
        sample: int | None = None,
        seed: int = 0,
        metric: Metric = "mrr",
    ) -> None:
        triples = sample_triples(dataset.valid, sample, seed)
        known = KnownAnswers.of(dataset.train, dataset.valid, n_relations=dataset.n_relations, asked=triples)
        self.ranker = Ranker(triples, known, dataset.n_entities, device)
        self.seed, self.metric = seed, metric
        self.work_bytes: int | None = None
        self.best: tuple[float, Ranks] | None = None

    @property
    def n_filtered(self) -> int:
        """Number of known answers to the questions of both sides."""
        return self.ranker.n_filtered

    def copy(self, work_bytes: int | None = None) -> Validator:
        """Return a validator for another training, with the same triples and filter."""
        other = copy.copy(self)
        other.work_bytes, other.best = work_bytes, None
        return other

    def __call__(self, model: KgeModel) -> Found:
        return self.begin(model)()

    def begin(self, model: KgeModel) -> Callable[[], Found]:
        """Start ranking and return a function that waits for the MRR, and for the metric if it is another."""
        wait = self.ranker.start(model, work_bytes=self.work_bytes)

        def read() -> Found:
            ranks = wait()
            found = score(ranks, self.metric)
            if self.best is None or found > self.best[0]:
                self.best = (found, ranks)
            return found if self.metric == "mrr" else (mrr(ranks), found)

        return read

    def remembers(self, found: float) -> bool:
        """Return whether the remembered ranks have this score; they do not if it was reached before an interruption."""
        return self.best is not None and self.best[0] == found

    def interval(self, model: KgeModel, found: float) -> tuple[float, float]:
        """Return the interval of the best MRR. If it is not remembered, rank with the model, which has its weights."""
        if self.best is None or not self.remembers(found):
            self.best = (found, self.ranker.rank(model, work_bytes=self.work_bytes))
        return mrr_interval(self.best[1], seed=self.seed, often=True)


class TrainingData:
    """A dataset on a device, shared by all trainings on it: triples, validation questions and their filter.

    Each part is moved there once, when it is first needed. keys: for a subgraph, ids of its entities and relations in
    the full graph. valid_sample: number of validation triples, if not all. examples: triples to train on, if not all of
    the train split; known answers are still those of the whole split.
    """

    def __init__(
        self,
        dataset: Dataset,
        device: torch.device,
        *,
        keys: tuple[Tensor, Tensor] | None = None,
        valid_sample: int | None = None,
        seed: int = 0,
        metric: Metric = "mrr",
        examples: Triples | None = None,
    ) -> None:
        if not len(dataset.train):
            raise InputError(f"{dataset.name} has no training triples.")
        set_current_device(device)
        self.dataset, self.device, self.valid_sample, self.seed = dataset, device, valid_sample, seed
        self.keys, self.metric = keys, metric
        self.examples = dataset.train if examples is None else examples
        self.sizes = (dataset.n_entities, dataset.n_relations)
        self.n_valid = len(dataset.valid) if valid_sample is None else min(len(dataset.valid), valid_sample)
        self._n_filtered: int | None = None  # counted with the validator; the memory plan guesses before

    @cached_property
    def train(self) -> Tensor:
        return triples_on(self.examples, self.device)

    @cached_property
    def known(self) -> KnownAnswers:
        """Index of the train split, for trainings that need it."""
        return KnownAnswers.of(self.dataset.train, n_relations=self.dataset.n_relations)

    @cached_property
    def validator(self) -> Validator | None:
        if not len(self.dataset.valid):
            return None
        validator = Validator(self.dataset, self.device, sample=self.valid_sample, seed=self.seed, metric=self.metric)
        self._n_filtered = validator.n_filtered
        return validator

    def plan_memory(self, configs: Sequence[TrainConfig], *, keep_best: bool = False) -> MemoryPlan:
        """Return the memory plan of a stack of trainings with these configurations."""
        return plan_memory(
            configs, *self.sizes, len(self.dataset.train), self.device, n_valid=self.n_valid,
            n_filtered=self._n_filtered, keep_best=keep_best,
        )  # fmt: skip

    def choose_placement(
        self, config: TrainConfig, *, placement: str = "auto", folder: Path | None = None, keep_best: bool = True
    ) -> MemoryPlan:
        """Return the plan of one training with its placement; see `memory.choose_placement`."""
        return choose_placement(
            config, *self.sizes, len(self.dataset.train), self.device, placement=placement, folder=folder,
            n_valid=self.n_valid, n_filtered=self._n_filtered, keep_best=keep_best,
        )  # fmt: skip

    def batches(self, config: TrainConfig) -> Batches:
        known = self.known if needs_index(config) else None
        return Batches(self.examples, *self.sizes, config, self.device, on_device=self.train, known=known)
