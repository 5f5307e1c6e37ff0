"""The training loop: batch → gradients → update, and a validation now and then; for one training or for a stack.

Trainings of a stack have the same graph, plan and precision and make their steps together; what becomes of one does not
depend on the others. The loop is given the functions that validate, so it knows nothing of ranking.
"""

from __future__ import annotations

import copy
import functools
import signal
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from grash.errors import Diverged, OutputError
from grash.kernels.device import matmul_precision
from grash.kernels.random import key_at
from grash.models import KgeModel
from grash.training.batches import Batches
from grash.training.checkpoint import TrainState, Validation, step_of
from grash.training.config import TrainConfig
from grash.training.fused import FusedSteps, serves, take_out
from grash.training.gradients import step_gradients
from grash.training.optimizers import rate_at

_UNREAD = 64  # plain steps on a device before the host looks at their losses


class Steps(Protocol):
    """Makes steps of all trainings of a stack."""

    def advance(self, stop: int) -> Tensor:
        """Makes one or more steps, none beyond `stop`, and moves the states on; losses (steps, T), on the device."""

    def leave(self, places: Sequence[int]) -> None:
        """Takes trainings out, from the last place to the first; each time the last one left gets the free place."""


def train(
    state: TrainState,
    batches: Batches,
    config: TrainConfig,
    *,
    validate: Callable[[KgeModel], float] | None = None,
    watch: Callable[[Progress], None] | None = None,
    save: Callable[[TrainState], None] | None = None,
    save_every_seconds: float = 120.0,
    keep: Callable[[TrainState], None] | None = None,
) -> None:
    """Trains from where `state` stands to the end of the plan, or until patience runs out: a stack of one.

    `state.model` ends with the weights of the best validation, or of the last step if nothing validates."""
    training = Training(config, watch=watch, keep=keep).started(state, batches, validate, save)
    [error] = train_stack([training], save_every_seconds=save_every_seconds)
    if error is not None:
        raise error


def train_stack(
    trainings: Sequence[Training],
    *,
    save_every_seconds: float = 120.0,
    steps_of: Callable[[Sequence[Training]], Steps] | None = None,
) -> list[Exception | None]:
    """Trains all of them to their ends; for each, None or what ended it (Diverged, or what its own calls raised).

    All stand at the same step. On an interrupt all are saved. steps_of: what makes the steps, by default the fused
    kernels where they serve, else `train_step` for each in turn."""
    live = list(trainings)
    if not live:
        return []
    _check_alike(live)
    pulse = Pulse(live, save_every_seconds)
    try:
        with one_handler():
            _train_live(live, pulse, steps_of or steps_for)
    except KeyboardInterrupt:
        pulse.flush()
        pulse.save()
        raise
    return [training.error for training in trainings]


def _check_alike(live: list[Training]) -> None:
    first = live[0]
    for other in live[1:]:
        if other.state.step != first.state.step or vars(other.batches.plan) != vars(first.batches.plan):
            raise ValueError("trainings of a stack need the same plan, and stand at the same step of it")
        if other.config.precision != first.config.precision:
            raise ValueError("trainings of a stack need the same precision")


def _train_live(live: list[Training], pulse: Pulse, steps_of: Callable[[Sequence[Training]], Steps]) -> None:
    """From one stop to the next; who has ended or failed leaves `live`."""
    steps: Steps | None = None
    while True:
        if any(training.error for training in live):
            pulse.flush()
        stops = [_stop(training) for training in live]
        over = [place for place, stop in enumerate(stops) if stop is None or live[place].error is not None]
        if over:
            _dismiss(live, over, steps)
            if not live:
                return
            continue
        if steps is None:
            steps = steps_of(live)
        stop = min(stop for stop in stops if stop is not None)
        _advance(live, pulse, steps, stop)
        pulse.flush()
        if any(training.error for training in live):
            continue  # what is due now is still due without them
        validate_now([t for t, due in zip(live, stops) if due == stop and t.validate is not None])
        if any(training.keep_best or _stop(training) is not None for training in live):
            pulse.validated()  # of a trial that has ended, nothing but its scores is wanted


def _stop(training: Training) -> int | None:
    t = training
    return next_stop(t.state, t.batches, t.config, validates=t.validate is not None, valid_at=t.valid_at)


def _advance(live: list[Training], pulse: Pulse, steps: Steps, stop: int) -> None:
    """Steps up to `stop`, or until some training has failed."""
    state, whole = live[0].state, live[0].batches.plan.whole_steps
    keeps = any(training.keep is not None for training in live)
    with matmul_precision(live[0].config.precision):
        while state.step < stop and not any(training.error for training in live):
            if keeps and state.step == whole:
                pulse.flush()
                for training in live:
                    _keep(training)
            with undisturbed():
                pulse.add(steps.advance(min(stop, whole) if keeps and state.step < whole else stop))
            pulse.see()


def _dismiss(live: list[Training], places: list[int], steps: Steps | None) -> None:
    """Ends the trainings at these places; the others move up as `Steps.leave` says."""
    last = len(places) == len(live)
    ending = [live[place] for place in places if live[place].error is None]
    for training in ending:
        if training.state.step == training.batches.plan.whole_steps:
            _keep(training)
        if training.save is not None and not last:
            training.save(training.state)  # the stack goes on, and may be stopped, without it
    with undisturbed():  # an interrupt in between would save tables in the middle of a move
        for training in ending:
            training.state.restore_best()
        if steps is not None and not last:
            steps.leave(places)
        take_out(live, places)


def _keep(training: Training) -> None:
    if training.keep is not None and training.error is None:
        with _blaming(training):
            training.keep(training.state)


def steps_for(trainings: Sequence[Training]) -> Steps:
    """The fused kernels where they serve, else plain steps."""
    configs, batches = [t.config for t in trainings], trainings[0].batches
    if all(serves(config, batches.device) for config in configs):
        return FusedSteps([t.state for t in trainings], batches, configs)
    return PlainSteps(trainings)


class PlainSteps:
    """`train_step` for one training after the other: the twin of FusedSteps."""

    def __init__(self, trainings: Sequence[Training]) -> None:
        self.trainings = list(trainings)
        self.window = 1 if trainings[0].batches.device.type == "cpu" else _UNREAD

    def advance(self, stop: int) -> Tensor:
        losses = []
        for _ in range(min(stop - self.trainings[0].state.step, self.window)):
            for training in self.trainings:
                train_step(training.state, training.batches, training.config)
                losses.append(training.state.unread.pop())
        return torch.stack(losses).view(-1, len(self.trainings))

    def leave(self, places: Sequence[int]) -> None:
        take_out(self.trainings, places)


def train_step(state: TrainState, batches: Batches, config: TrainConfig) -> None:
    """One step; its loss, a scalar on the device, joins the unread ones."""
    step, model = state.step, state.model
    batch = batches.questions(step) if config.training == "kvsall" else batches.positives(step)
    drops = config.dropout_entity or config.dropout_relation
    result = step_gradients(model, batch, config, key_at(config.own_key("dropout"), step) if drops else 0)
    rate = rate_at(config, batches.plan.examples_before(step) / batches.plan.n_examples, state.plateau)
    with undisturbed():
        state.entity_optimizer.update(model.entity, result.entity, rate, step + 1)
        state.relation_optimizer.update(model.relation, result.relation, rate, step + 1)
        model.after_step()
        state.step = step + 1
        state.unread.append(result.loss)


def next_stop(
    state: TrainState, batches: Batches, config: TrainConfig, *, validates: bool, valid_at: Sequence[float] = ()
) -> int | None:
    """The step up to which to train before the next validation, or the end; None when the run is over.

    A validation that was due when a run was stopped is still due when it goes on."""
    n_steps = batches.plan.n_steps
    if _out_of_patience(state, config):
        return None
    if not validates:
        return n_steps if state.step < n_steps else None
    seen = state.history[-1].step if state.history else 0
    return next_validation(seen, batches, config, valid_at) if seen < n_steps else None


def next_validation(step: int, batches: Batches, config: TrainConfig, valid_at: Sequence[float] = ()) -> int:
    """The step after which the next validation is due: multiples of valid_every, or the given epochs; and the end."""
    plan = batches.plan
    if valid_at:
        return min((due for epoch in valid_at if (due := plan.steps_to(epoch)) > step), default=plan.n_steps)
    every = config.valid_every * plan.n_examples
    number = int(plan.examples_before(step) / every)
    while True:
        number += 1
        due = plan.steps_at(min(round(number * every), plan.total))
        if due > step:
            return min(due, plan.n_steps)


def validate_now(trainings: Sequence[Training]) -> None:
    """Validates all of them; where that is possible, each is begun before the first is waited for."""
    begun: list[tuple[Training, Callable[[], float]]] = []
    for training in trainings:
        with _blaming(training):
            begun.append((training, _begin(training)))
    for training, wait in begun:
        mrr = None
        with _blaming(training):
            mrr = wait()
        if mrr is not None:
            _validated(training, mrr)


def _begin(training: Training) -> Callable[[], float]:
    validate, model = training.validate, training.state.model
    assert validate is not None
    return validate.begin(model) if isinstance(validate, Begins) else functools.partial(validate, model)


@contextmanager
def _blaming(training: Training) -> Iterator[None]:
    try:
        yield
    except Exception as error:
        training.blame(error)


def _validated(training: Training, mrr: float) -> None:
    state, config, plan = training.state, training.config, training.batches.plan
    epoch = plan.examples_before(state.step) / plan.n_examples
    loss = state.loss_sum / max(1, state.loss_steps)
    rate = rate_at(config, epoch, state.plateau)
    with undisturbed():
        state.history.append(Validation(state.step, epoch, loss, mrr, rate))
        state.loss_sum, state.loss_steps = 0.0, 0
        state.plateau.see(mrr)
        if training.keep_best:
            state.keep_best()


def _out_of_patience(state: TrainState, config: TrainConfig) -> bool:
    return config.patience is not None and state.validations_since_best >= config.patience


# = Beside the training loop: reads losses, spots divergence, tells watchers, saves now and then.

EXPLODED = 1e3  # times (1 + the first loss)
_STEPS = 63  # whose losses may be unread on a CPU
_DISK_RATE = 2e9  # bytes per second that a disk is thought to take, before the first saving shows it


@dataclass(frozen=True)
class Progress:
    """What a watcher is told while training goes on."""

    step: int
    n_steps: int
    epoch: float
    loss: float
    examples_per_second: float
    seconds: float
    seconds_left: float
    best_mrr: float | None


@runtime_checkable
class Begins(Protocol):
    """A validation of which several can be under way before the first is waited for."""

    def begin(self, model: KgeModel) -> Callable[[], float]:
        """Begins, and gives what waits for the MRR; the model stays as it is until then."""


@dataclass(eq=False)
class Training:
    """One training: what to run and, in the copy that `started` returns, its state while it runs."""

    config: TrainConfig
    checkpoint: Path | None = None  # folder to save to and to resume from, with the same weights bit for bit
    watch: Callable[[Progress], None] | None = None
    initialize: Callable[[TrainState], None] | None = None  # fills a new state from the round before
    initial_step: int = 0  # of the state that `initialize` fills
    keep: Callable[[TrainState], None] | None = None  # receives the state from which a longer run would continue
    belongs_to: dict[str, Any] = field(default_factory=dict)  # further identity of the checkpoint
    valid_at: Sequence[float] = ()  # epochs after which to validate, instead of every `valid_every`
    interval: bool = True  # compute the confidence interval of the best validation
    placement: str = "auto"  # where the entities are stored if it is trained alone
    keep_best: bool = True  # end with the weights of the best validation; False saves copying them
    state: TrainState = field(init=False, repr=False)
    batches: Batches = field(init=False, repr=False)
    validate: Callable[[KgeModel], float] | None = field(init=False, repr=False, default=None)
    save: Callable[[TrainState], None] | None = field(init=False, repr=False, default=None)
    error: Exception | None = field(init=False, default=None)

    def started(
        self,
        state: TrainState,
        batches: Batches,
        validate: Callable[[KgeModel], float] | None = None,
        save: Callable[[TrainState], None] | None = None,
    ) -> Training:
        """Return a copy that trains this state. save is called between two steps, from time to time and on an
        interrupt; a run that resumes from the state it receives continues exactly."""
        running = copy.copy(self)
        running.state, running.batches, running.validate, running.save = state, batches, validate, save
        return running

    @property
    def has_checkpoint(self) -> bool:
        return self.checkpoint is not None and (self.checkpoint / "state.json").is_file()

    def first_step(self) -> int:
        """Return the step at which it starts. A checkpoint that cannot be read raises when it is loaded."""
        if self.checkpoint is None or not self.has_checkpoint:
            return self.initial_step
        return step_of(self.checkpoint) or 0

    def blame(self, error: Exception) -> None:
        """What a training's own calls raise ends it and no other; a full disk is nobody's fault and stops all."""
        if isinstance(error, OutputError):
            raise error
        if isinstance(error, Diverged):
            error.epoch, error.history = self.batches.plan.epoch_after(self.state.step), list(self.state.history)
            error.__traceback__ = None  # nothing to look for there, and it would keep the tables alive
        self.error = error


class Pulse:
    """Of a stack. Losses of some steps (a window) are copied to the host while the next window is under way, so that a
    device never waits; on a CPU, where a window is one step, they are looked at together now and then, for less work.
    `live` is the loop's own list of trainings, in the order of the losses' columns."""

    def __init__(self, live: list[Training], save_every_seconds: float) -> None:
        self.live, self.save_every_seconds = live, save_every_seconds
        self.plan, device = live[0].batches.plan, live[0].batches.device
        self.most, self.ahead = (_STEPS, 0) if device.type == "cpu" else (1, 1)  # unread windows: most, and afterwards
        self.windows: deque[tuple[int, Tensor, torch.cuda.Event | None]] = deque()
        self.start_step = live[0].state.step
        self.start = self.counted = self.saved = self.told = time.monotonic()
        self.saving = sum(t.state.nbytes for t in live if t.save is not None) / _DISK_RATE  # later: the last one's

    def add(self, losses: Tensor) -> None:
        """losses (steps, T) of the last steps, on the device: their way to the host begins."""
        first = self.live[0].state.step - len(losses)
        arrived = None
        if losses.is_cuda:
            losses = losses.to("cpu", non_blocking=True)
            arrived = torch.cuda.Event()
            arrived.record()
        self.windows.append((first, losses, arrived))

    def see(self) -> None:
        """Between two windows: reads what has arrived, tells watchers, saves."""
        now = time.monotonic()
        if now - self.told > 0.1:
            self.told = now
            self._read()
            self._tell()
        elif len(self.windows) > self.most:
            self._read()
        if now - self.saved > self._save_after():
            self.flush()
            self.save()

    def flush(self) -> None:
        """Reads all losses; a training whose loss is none any more gets its error."""
        self._read(ahead=0)
        self._count_seconds()

    def validated(self) -> None:
        """A validation is worth keeping, unless everything up to it could be done again in a moment, or saving takes
        long."""
        if time.monotonic() - self.saved > self._save_after() / (8 if self.saving <= 1 else 1):
            self.save()

    def save(self) -> None:
        began = time.monotonic()
        for training in self.live:
            if training.save is not None and training.error is None:
                training.save(training.state)
        self.saved = time.monotonic()
        self.saving = self.saved - began

    def _save_after(self) -> float:
        """Seconds between two savings. Tables of many gigabytes take their time: no more than a tenth of it all."""
        return max(self.save_every_seconds, 10 * self.saving if self.saving > 1 else 0.0)

    def _read(self, ahead: int | None = None) -> None:
        """Reads all windows but the last `ahead`."""
        n = len(self.windows) - (self.ahead if ahead is None else ahead)
        if n <= 0:
            return
        arrived = self.windows[n - 1][2]
        if arrived is not None:
            arrived.synchronize()
        with undisturbed():
            taken = [self.windows.popleft() for _ in range(n)]
            self._take(taken[0][0], np.concatenate([losses.numpy() for _, losses, _ in taken]).astype(np.float64))

    def _take(self, first: int, losses: NDArray[np.float64]) -> None:
        """Adds up losses (steps, T), each trial's in the order of its steps, as Python would one by one."""
        states = [training.state for training in self.live]
        begun = [loss if s.first_loss is None else s.first_loss for s, loss in zip(states, losses[0].tolist())]
        with np.errstate(invalid="ignore", over="ignore"):
            bad = ~np.isfinite(losses) | (losses > EXPLODED * (1 + np.abs(np.asarray(begun))))
            sums = np.cumsum(np.concatenate([[[s.loss_sum for s in states]], losses]), axis=0)[-1].tolist()
        failed = bad.any(0).tolist()
        for i, (training, state) in enumerate(zip(self.live, states)):
            state.first_loss = begun[i]
            if failed[i] and training.error is None:
                number = int(bad[:, i].argmax())
                training.error = self._diverged(training, first + number + 1, losses[number, i])
            state.loss_sum = sums[i]
            state.loss_steps += len(losses)

    def _diverged(self, training: Training, step: int, loss: float) -> Diverged:
        error = Diverged(
            f"Training diverged at step {step}: the loss is {loss:.4g} (it began at {training.state.first_loss:.4g}). "
            f"Try a lower learning rate."
        )
        error.epoch = self.plan.epoch_after(step)  # also where it is noticed later
        error.history = list(training.state.history)
        return error

    def _count_seconds(self) -> None:
        """A training is charged its share of the time that it spends in company."""
        now = time.monotonic()
        for training in self.live:
            training.state.seconds += (now - self.counted) / len(self.live)
        self.counted = now

    def _tell(self) -> None:
        self._count_seconds()
        for training in self.live:
            if training.watch is not None and training.error is None:
                try:
                    training.watch(self.progress(training.state))
                except Exception as error:
                    training.blame(error)

    def progress(self, state: TrainState) -> Progress:
        plan = self.plan
        seconds = max(time.monotonic() - self.start, 1e-9)
        seen = plan.examples_before(state.step) - plan.examples_before(self.start_step)
        rate = seen / seconds
        best = state.best_validation
        return Progress(
            step=state.step,
            n_steps=plan.n_steps,
            epoch=plan.examples_before(state.step) / plan.n_examples,
            loss=state.loss_sum / max(1, state.loss_steps),
            examples_per_second=rate,
            seconds=state.seconds,
            seconds_left=(plan.total - plan.examples_before(state.step)) / max(rate, 1e-9),
            best_mrr=None if best is None else best.mrr,
        )


class undisturbed:  # noqa: N801 (reads as a word in `with undisturbed():`)
    """Inside `one_handler`, Ctrl-C waits until the (outermost) block is done: no state is saved in the middle of a
    change.

    It only counts: handlers set and put back at every step would cost a few per cent of one."""

    def __enter__(self) -> None:
        if _Patient.current is not None:
            _Patient.current.busy += 1

    def __exit__(self, *_: object) -> None:
        if _Patient.current is not None:
            _Patient.current.busy -= 1
            _Patient.current.hand_on()


class _Patient:
    """A handler of SIGINT that waits while `busy`, then hands on to the one before it."""

    current: _Patient | None = None

    def __init__(self, before: Callable[[int, FrameType | None], object]) -> None:
        self.before, self.busy = before, 0
        self.pressed: list[tuple[int, FrameType | None]] = []

    def __call__(self, number: int, frame: FrameType | None) -> None:
        self.pressed.append((number, frame))
        self.hand_on()

    def hand_on(self) -> None:
        while self.pressed and not self.busy:
            self.before(*self.pressed.pop(0))


@contextmanager
def one_handler() -> Iterator[None]:
    """One handler of SIGINT for all `undisturbed` blocks inside, in the main thread."""
    before = signal.getsignal(signal.SIGINT)
    nested = _Patient.current is not None
    if nested or threading.current_thread() is not threading.main_thread() or not callable(before):
        yield
        return
    patient = _Patient.current = _Patient(before)
    signal.signal(signal.SIGINT, patient)
    try:
        yield
    finally:
        _Patient.current = None
        signal.signal(signal.SIGINT, before)
        patient.hand_on()
