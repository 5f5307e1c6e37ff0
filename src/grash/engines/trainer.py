"""The one path of every training: plan memory, build, train, validate, keep the best.

Trials of a search and the final training go through here alike; only the dataset and the config differ. Trainings on
one graph that fit together are trained together.
"""

from __future__ import annotations

import copy
import gc
import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from operator import itemgetter
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from grash.data.dataset import Dataset
from grash.data.known_answers import KnownAnswers
from grash.engines.device import choose_device
from grash.engines.memory import MemoryPlan, Placed, fits, free_disk, is_memory_error, place_training, plan_stack
from grash.errors import ConfigError, InputError, OutputError
from grash.evaluation.evaluate import sampled
from grash.evaluation.metrics import mrr, mrr_interval
from grash.evaluation.ranking import Ranker, Ranks
from grash.files import repair_folder
from grash.formatting import format_bytes
from grash.kernels.device import make_current
from grash.models import KgeModel
from grash.training.batches import Batches, needs_index, triples_on
from grash.training.checkpoint import TrainState, Validation, load_state, save_state, step_of
from grash.training.config import TrainConfig
from grash.training.fused import compile_stacks, serves, stack_states
from grash.training.initial import initial_model
from grash.training.loop import Progress, Training, train_stack
from grash.training.placement import Placement

log = logging.getLogger(__name__)


_MOST_THREADS = 4096
LEFT_FREE = 1 << 30  # of a disk, for everything else there, after a checkpoint of more
_ALIKE = (
    "batch_size", "model", "dim", "norm", "reciprocal", "training", "loss", "optimizer", "precision", "storage",
    "epochs", "seed",
)  # fmt: skip


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


@dataclass(frozen=True, eq=False)
class Job:
    """A training to run. checkpoint: a folder that is written from time to time and on an interrupt; if it is there
    already and belongs to the same settings and dataset, training goes on from it, to the same weights bit for bit.
    For trials of a search: begin fills a fresh state from an earlier round, which stood at step begins_at; keep is as
    in `Training`; belongs_to tells runs isolated. For studies: valid_at as in `Training`, and no interval of the best
    validation, which would take longer than itself. placement: where its entities lie if it is trained alone, as in
    `placing`; together with others they lie on the device. Files of it are made beside the checkpoint. weights as in
    `Training`: without them the outcome's model has the last ones."""

    config: TrainConfig
    checkpoint: Path | None = None
    watch: Callable[[Progress], None] | None = None
    begin: Callable[[TrainState], None] | None = None
    begins_at: int = 0
    keep: Callable[[TrainState], None] | None = None
    belongs_to: dict[str, Any] = field(default_factory=dict)
    valid_at: Sequence[float] = ()
    interval: bool = True
    placement: str = "auto"
    weights: bool = True

    @property
    def folder(self) -> Path | None:
        """Where files of its placement may be made."""
        return None if self.checkpoint is None else self.checkpoint.absolute().parent

    @property
    def has_checkpoint(self) -> bool:
        return self.checkpoint is not None and (self.checkpoint / "state.json").is_file()

    def first_step(self) -> int:
        """Where it goes on; a checkpoint that cannot be read says so when it is loaded."""
        if self.checkpoint is None or not self.has_checkpoint:
            return self.begins_at
        return step_of(self.checkpoint) or 0


Ended = Outcome | Exception


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
    begin: Callable[[TrainState], None] | None = None,
    keep: Callable[[TrainState], None] | None = None,
    placement: str = "auto",
) -> Outcome:
    """Trains on the dataset's train split, validating on its valid split (if it has one). See `Job` and `Ground`."""
    use_threads(threads)
    ground = Ground(dataset, choose_device(device), keys=keys, valid_sample=valid_sample, seed=config.seed)
    [[(_, ended)]] = run_trainings(ground, [Job(config, checkpoint, watch, begin, keep=keep, placement=placement)])
    if isinstance(ended, Exception):
        raise ended
    return ended


@torch.no_grad()
def run_trainings(
    ground: Ground, jobs: Sequence[Job], *, work_bytes: int | None = None
) -> Iterator[list[tuple[int, Ended]]]:
    """Runs all jobs; after every stack, (place in jobs, what became of it) of those that were trained together.

    Models of a stack lie in one memory, which is free when none of them is held any more. A stack that runs out of
    memory is tried again in two parts; work_bytes bounds the work space of ranking."""
    if ground.device.type == "cuda":
        _ = ground.validator  # its filter is part of the memory plan
    for job in jobs:
        if job.checkpoint is not None:
            repair_folder(job.checkpoint)
    parts = _ready_first(ground, jobs, stacks(ground, jobs))
    while parts:
        part = parts.pop(0)
        ended = _attempt(ground, jobs, part, work_bytes)
        if ended is None:
            parts[:0] = _smaller(jobs, part)
        else:
            yield ended
            del ended  # or its models stay while the next stack is made


def stacks(ground: Ground, jobs: Sequence[Job]) -> list[list[int]]:
    """The places of jobs that are trained together, stack by stack."""
    return [part for group in _groups(ground, jobs) for part in _split(ground, jobs, group)]


def _smaller(jobs: Sequence[Job], part: list[int]) -> list[list[int]]:
    """What memory had no room for together: first what does not stand at the same step any more, since some had left
    the stack when their checkpoints were written; else two halves."""
    by_step: dict[int, list[int]] = {}
    for place in part:
        by_step.setdefault(jobs[place].first_step(), []).append(place)
    if len(by_step) > 1:
        return list(by_step.values())
    return [part[: len(part) // 2], part[len(part) // 2 :]]


def _ready_first(ground: Ground, jobs: Sequence[Job], parts: list[list[int]]) -> list[list[int]]:
    """The stacks; on a card what they lack is compiled by other threads from now on, and those that lack nothing come
    first."""
    fused = [part for part in parts if serves(jobs[part[0]].config, ground.device)]
    if not fused:
        return parts
    lacks = compile_stacks([[jobs[place].config for place in part] for part in fused], *ground.sizes)
    waits = {part[0] for part, lacking in zip(fused, lacks) if lacking}
    return sorted(parts, key=lambda part: part[0] in waits)


def together(config: TrainConfig, device: torch.device) -> bool:
    """Whether trainings like this one are trained together: on a card by the fused step, on a CPU in turn."""
    return device.type == "cpu" or serves(config, device)


def likeness(config: TrainConfig) -> tuple[Any, ...]:
    """What trainings on one graph must have in common to be trained together."""
    return *(getattr(config, name) for name in _ALIKE), config.relation_prediction > 0


def _groups(ground: Ground, jobs: Sequence[Job]) -> list[list[int]]:
    """Places of jobs that can share a stack; the largest first in each, so that parts of it are alike in size."""
    groups: dict[Any, list[int]] = {}
    for place, job in enumerate(jobs):
        alike: Any = place
        if together(job.config, ground.device):
            alike = (*likeness(job.config), job.first_step())
        groups.setdefault(alike, []).append(place)
    sizes = [job.config.negatives_head + job.config.negatives_tail for job in jobs]
    return [sorted(group, key=lambda place: -sizes[place]) for group in groups.values()]


def _split(ground: Ground, jobs: Sequence[Job], group: list[int]) -> list[list[int]]:
    """As few parts as memory admits, of about equal size."""
    configs = [jobs[place].config for place in group]
    fitting, too_many = 1, len(group) + 1
    while too_many - fitting > 1:
        middle = (fitting + too_many) // 2
        if fits(ground.plan(configs[:middle]), ground.device):
            fitting = middle
        else:
            too_many = middle
    n_parts = -(-len(group) // fitting)
    size = -(-len(group) // n_parts)
    return [group[first : first + size] for first in range(0, len(group), size)]


def _attempt(
    ground: Ground, jobs: Sequence[Job], part: list[int], work_bytes: int | None
) -> list[tuple[int, Ended]] | None:
    """What became of the jobs; None if memory ran out and fewer at a time may do."""
    if ground.device.type == "cuda":  # a small table in a block kept from the last stack would keep all of it
        torch.cuda.empty_cache()
    try:
        return sorted(zip(part, _run_stack(ground, [jobs[place] for place in part], work_bytes)), key=itemgetter(0))
    except OutputError:
        raise
    except Exception as error:
        if len(part) > 1 and is_memory_error(error):
            log.warning("%d trainings together: %s Tried again in two parts.", len(part), str(error).split("\n")[0])
        else:
            return [(place, error) for place in part]
    gc.collect()  # the error is gone here; what it held may stand in circles
    return None


def _run_stack(ground: Ground, jobs: Sequence[Job], work_bytes: int | None) -> list[Ended]:
    """Trains these together."""
    placement = Placement()
    if len(jobs) == 1:
        placed = ground.place(jobs[0].config, asked=jobs[0].placement, folder=jobs[0].folder, weights=jobs[0].weights)
        placement, sentence = placed.placement, placed.sentence()
    else:
        sentence = ground.plan([job.config for job in jobs], weights=any(job.weights for job in jobs)).sentence()
    log.info("memory on %s: %s", ground.device, sentence)
    ended: dict[int, Ended] = {}

    def states() -> Iterator[TrainState]:
        for place, job in enumerate(jobs):
            try:
                yield _state(ground, job, placement)
            except Exception as error:
                if is_memory_error(error):
                    raise
                ended[place] = error

    made = stack_states(states(), n=len(jobs))
    begun = [place for place in range(len(jobs)) if place not in ended]
    trainings = [_training(ground, jobs[place], state, work_bytes) for place, state in zip(begun, made)]
    for place, training, error in zip(begun, trainings, train_stack(trainings)):
        ended[place] = _outcome(training, jobs[place]) if error is None else error
    return [ended[place] for place in range(len(jobs))]


def _state(ground: Ground, job: Job, placement: Placement) -> TrainState:
    """Fresh, or where the checkpoint or the earlier round stands."""
    entity_keys, relation_keys = ground.keys or (None, None)
    model = initial_model(
        job.config, *ground.sizes, device=ground.device, entity_keys=entity_keys, relation_keys=relation_keys,
        placement=placement,
    )  # fmt: skip
    state, checkpoint = TrainState.fresh(model, job.config, placement), job.checkpoint
    if checkpoint is not None and job.has_checkpoint:
        load_state(state, checkpoint, belongs_to=_owner(ground, job))
        log.info("goes on from %s at step %d", checkpoint, state.step)
    elif checkpoint is not None and (checkpoint.is_file() or (checkpoint.is_dir() and any(checkpoint.iterdir()))):
        raise InputError(f"{checkpoint} holds no checkpoint, so it is not overwritten: give another folder.")
    elif job.begin is not None:
        job.begin(state)
    return state


def _training(ground: Ground, job: Job, state: TrainState, work_bytes: int | None) -> Training:
    save, checkpoint = None, job.checkpoint
    validate = None if ground.validator is None else ground.validator.another(work_bytes=work_bytes)
    if checkpoint is not None:
        save = _saver(checkpoint, _owner(ground, job), None if job.weights or not job.interval else validate)
    batches = ground.batches(job.config)
    return Training(state, batches, job.config, validate, job.watch, save, job.keep, job.valid_at, job.weights)


def _outcome(training: Training, job: Job) -> Ended:
    state, validate = training.state, training.validate
    best, interval = state.best_validation, None
    if job.interval and isinstance(validate, Validator) and best is not None:
        try:
            known = job.weights or validate.remembers(best.mrr)
            interval = validate.interval(state.model, best.mrr) if known else state.interval
        except Exception as error:
            return error
    n_steps = training.batches.plan.n_steps
    return Outcome(state.model, state.history, best, interval, state.step, n_steps, state.seconds)


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


def _owner(ground: Ground, job: Job) -> dict[str, Any]:
    return run_identity(ground.dataset, job.config, ground.valid_sample) | job.belongs_to


def _saver(folder: Path, belongs_to: dict[str, Any], validator: Validator | None) -> Callable[[TrainState], None]:
    """validator: of a training that keeps no best weights, so that the interval of the best validation is saved. A disk
    without room for the checkpoint does not end the training: it goes on without one, and says so once."""
    said = False

    def save(state: TrainState) -> None:
        nonlocal said
        need, free = state.nbytes, free_disk(folder)
        if need + min(need, LEFT_FREE) > free:
            if not said:
                log.warning(
                    "no checkpoint in %s: it takes %s and %s are free, of which some must stay. Training goes on, and "
                    "cannot be resumed from here.",
                    folder, format_bytes(need), format_bytes(free),
                )  # fmt: skip
            said = True
            return
        best = state.best_validation
        if validator is not None and best is not None and validator.remembers(best.mrr):
            state.interval = validator.interval(state.model, best.mrr)
        save_state(state, folder, belongs_to=belongs_to)

    return save


# = What all trainings on one graph share on a device: triples, and validation with its filter.
# =
# = Comes from a dataset or a round's subgraph, goes to `run`; kept as long as there are trainings on that graph.


class Validator:
    """Filtered MRR on the valid split, filtered by train and valid; remembers the ranks of the best."""

    def __init__(self, dataset: Dataset, device: torch.device, *, sample: int | None = None, seed: int = 0) -> None:
        triples = sampled(dataset.valid, sample, seed)
        known = KnownAnswers.of(dataset.train, dataset.valid, n_relations=dataset.n_relations, asked=triples)
        self.ranker = Ranker(triples, known, dataset.n_entities, device)
        self.seed = seed
        self.work_bytes: int | None = None
        self.best: tuple[float, Ranks] | None = None

    @property
    def n_filtered(self) -> int:
        """Known answers to the questions of both slots."""
        return sum(len(q.filtered) for questions in self.ranker.questions.values() for q in questions)

    def another(self, *, work_bytes: int | None = None) -> Validator:
        """For another training, with the same triples and filter."""
        fresh = copy.copy(self)
        fresh.work_bytes, fresh.best = work_bytes, None
        return fresh

    def __call__(self, model: KgeModel) -> float:
        return self.begin(model)()

    def begin(self, model: KgeModel) -> Callable[[], float]:
        """Begins, and gives what waits for the MRR."""
        begun = self.ranker.begin(model, work_bytes=self.work_bytes)

        def read() -> float:
            ranks = begun()
            found = mrr(ranks)
            if self.best is None or found > self.best[0]:
                self.best = (found, ranks)
            return found

        return read

    def remembers(self, found: float) -> bool:
        """Whether the best validation was this one, and not before an interruption."""
        return self.best is not None and self.best[0] == found

    def interval(self, model: KgeModel, found: float) -> tuple[float, float]:
        """Of the best validation; ranked again with the model, which then has its weights, if it is not remembered."""
        if self.best is None or not self.remembers(found):
            self.best = (found, self.ranker.rank(model, work_bytes=self.work_bytes))
        return mrr_interval(self.best[1], seed=self.seed)


class Ground:
    """A dataset on a device, for all trainings on it: its triples, its validation questions and their filter, each
    brought there once, when first needed. keys: ids of entities and relations in the full graph, of a subgraph."""

    def __init__(
        self,
        dataset: Dataset,
        device: torch.device,
        *,
        keys: tuple[Tensor, Tensor] | None = None,
        valid_sample: int | None = None,
        seed: int = 0,
    ) -> None:
        if not len(dataset.train):
            raise InputError(f"{dataset.name} has no training triples.")
        make_current(device)
        self.dataset, self.device, self.valid_sample, self.seed = dataset, device, valid_sample, seed
        self.keys = keys
        self.sizes = (dataset.n_entities, dataset.n_relations)

    @cached_property
    def train(self) -> Tensor:
        return triples_on(self.dataset.train, self.device)

    @cached_property
    def known(self) -> KnownAnswers:
        """The index of train, for trainings that look into it."""
        return KnownAnswers.of(self.dataset.train, n_relations=self.dataset.n_relations)

    @cached_property
    def validator(self) -> Validator | None:
        if not len(self.dataset.valid):
            return None
        return Validator(self.dataset, self.device, sample=self.valid_sample, seed=self.seed)

    def plan(self, configs: Sequence[TrainConfig], *, weights: bool = False) -> MemoryPlan:
        """What trainings with these configurations, trained together, take. weights: their best ones are kept."""
        return plan_stack(
            configs, *self.sizes, len(self.dataset.train), self.device, n_valid=self.n_valid,
            n_filtered=self._n_filtered, weights=weights,
        )  # fmt: skip

    def place(
        self, config: TrainConfig, *, asked: str = "auto", folder: Path | None = None, weights: bool = True
    ) -> Placed:
        """Where the tables of one training lie; see `place_training`."""
        return place_training(
            config, *self.sizes, len(self.dataset.train), self.device, asked=asked, folder=folder,
            n_valid=self.n_valid, n_filtered=self._n_filtered, weights=weights,
        )  # fmt: skip

    @property
    def n_valid(self) -> int:
        """Triples that a validation looks at."""
        n = len(self.dataset.valid)
        return n if self.valid_sample is None else min(n, self.valid_sample)

    @property
    def _n_filtered(self) -> int | None:
        """Counted where the validator has been made; else there will be a guess."""
        made = self.__dict__.get("validator")
        return None if made is None else made.n_filtered

    def batches(self, config: TrainConfig) -> Batches:
        known = self.known if needs_index(config) else None
        return Batches(self.dataset.train, *self.sizes, config, self.device, on_device=self.train, known=known)
