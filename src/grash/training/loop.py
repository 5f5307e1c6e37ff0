"""The training loop: take steps, validate now and then, keep the best weights.

One training or several run together, as a stack: same graph, same plan, same precision. Each ends with the result it
would have alone. The loop is given functions that validate, watch and save, so it knows nothing about ranking.
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
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from grash.errors import Diverged, OutputError
from grash.kernels.device import matmul_precision
from grash.kernels.random import key_at
from grash.models import KgeModel
from grash.training.batches import Batches
from grash.training.captured import CapturedSteps, uses_captured_step
from grash.training.checkpoint import TrainState, Validation, checkpoint_step
from grash.training.config import DROPOUTS, TrainConfig
from grash.training.fused import load_fused_steps, swap_remove, uses_fused_step
from grash.training.gradients import Gradient, StepGradients, step_gradients
from grash.training.optimizers import as_table, rate_at

DIVERGED = 1e3  # a loss above this times (1 + the first loss)
_STEPS_AHEAD = 64  # unfused steps on a GPU before the host reads their losses
_UNREAD_STEPS = 63  # losses that may be unread on a CPU
_REPORT_SECONDS = 0.1  # between two reports to a watcher
Found = float | tuple[float, float]  # by a validation: the MRR, or the MRR and the metric that decides
_DISK_BYTES_PER_SECOND = 2e9  # assumed until the first checkpoint has been timed


@dataclass(frozen=True)
class Progress:
    """What a watcher receives during training."""

    step: int
    n_steps: int
    epoch: float
    loss: float  # mean since the last validation
    examples_per_second: float
    seconds: float
    seconds_left: float
    best_mrr: float | None
    epochs: float = 0.0  # at the end


@dataclass(eq=False)
class Training:
    """One training: what to run and, in the copy that `started` returns, its state while it runs.

    What its functions raise ends this training and no other of its stack."""

    config: TrainConfig
    checkpoint: Path | None = None  # folder to save to and to resume from, with the same weights bit for bit
    watch: Callable[[Progress], None] | None = None
    initialize: Callable[[TrainState], None] | None = None  # fills a new state from the round before
    initial_step: int = 0  # of the state that `initialize` fills
    keep: Callable[[TrainState], None] | None = None  # receives the state at the last step that a longer run shares
    belongs_to: dict[str, Any] = field(default_factory=dict)  # further identity of the checkpoint
    valid_at: Sequence[float] = ()  # epochs after which to validate, instead of every `valid_every`
    interval: bool = True  # compute the confidence interval of the best validation
    placement: str = "auto"  # where the entities are stored if it is trained alone
    keep_best: bool = True  # end with the weights of the best validation, and `keep` these; False avoids the copy
    deadline: float | None = None  # of time.monotonic(): it then validates once more and ends
    state: TrainState = field(init=False, repr=False)
    batches: Batches = field(init=False, repr=False)
    validate: Callable[[KgeModel], Found] | None = field(init=False, repr=False, default=None)  # returns the MRR
    save: Callable[[TrainState], None] | None = field(init=False, repr=False, default=None)
    error: Exception | None = field(init=False, default=None)  # what ended it early

    def started(
        self,
        state: TrainState,
        batches: Batches,
        validate: Callable[[KgeModel], Found] | None = None,
        save: Callable[[TrainState], None] | None = None,
    ) -> Training:
        """Return a copy that trains this state. save: called between steps, now and then and on an interrupt; a run
        that resumes from the state it receives continues exactly."""
        running = copy.copy(self)
        running.state, running.batches, running.validate, running.save = state, batches, validate, save
        return running

    @property
    def has_checkpoint(self) -> bool:
        return self.checkpoint is not None and (self.checkpoint / "state.json").is_file()

    @property
    def is_late(self) -> bool:
        return self.deadline is not None and time.monotonic() >= self.deadline

    def first_step(self) -> int:
        """Return the step at which it starts. A checkpoint that cannot be read raises when it is loaded."""
        if self.checkpoint is None or not self.has_checkpoint:
            return self.initial_step
        return checkpoint_step(self.checkpoint) or 0

    def fail(self, error: Exception) -> None:
        """End this training with the error; a disk that cannot be written ends the whole stack."""
        if isinstance(error, OutputError):
            raise error
        if isinstance(error, Diverged):
            error.epoch, error.history = self.batches.plan.epoch_after(self.state.step), list(self.state.history)
            error.__traceback__ = None  # nobody needs it, and it would keep the tables alive
        self.error = error

    @contextmanager
    def catching_errors(self) -> Iterator[None]:
        """Make what the block raises this training's error."""
        try:
            yield
        except Exception as error:
            self.fail(error)


class Steps(Protocol):
    """Takes the steps of all trainings of a stack."""

    def advance(self, stop: int) -> Tensor:
        """Take one or more steps, none beyond `stop`, and update the states; losses (steps, T), on the device."""

    def remove(self, indices: Sequence[int]) -> None:
        """Remove trainings, from the last index to the first; each time the last training takes the free index."""


def train_stack(
    trainings: Sequence[Training],
    *,
    save_every_seconds: float = 120.0,
    make_steps: Callable[[Sequence[Training]], Steps] | None = None,
) -> list[Exception | None]:
    """Train all to their ends; return for each None, or the error that ended it: Diverged, or what a function raised.

    All start at the same step. On an interrupt all are saved. make_steps: by default `steps_for`."""
    live = list(trainings)
    if not live:
        return []
    _check_compatible(live)
    monitor = Monitor(live, save_every_seconds)
    try:
        with delayed_interrupts():
            _train(live, monitor, make_steps or steps_for)
    except KeyboardInterrupt:
        monitor.read_all()
        monitor.save()
        raise
    return [training.error for training in trainings]


def _check_compatible(live: list[Training]) -> None:
    first = live[0]
    for other in live[1:]:
        if other.state.step != first.state.step or vars(other.batches.plan) != vars(first.batches.plan):
            raise ValueError("trainings of a stack need the same plan and the same step")
        if other.config.precision != first.config.precision:
            raise ValueError("trainings of a stack need the same precision")


def _train(live: list[Training], monitor: Monitor, make_steps: Callable[[Sequence[Training]], Steps]) -> None:
    """Train from one validation to the next; trainings that end or fail leave `live`."""
    steps: Steps | None = None
    while live:
        if any(training.error for training in live):
            monitor.read_all()
        stops = [next_stop(training) for training in live]
        ended = [i for i, stop in enumerate(stops) if stop is None or live[i].error is not None]
        if ended:
            monitor.report()
            _end(live, ended, steps)
            continue
        steps = steps or make_steps(live)
        stop = min(stop for stop in stops if stop is not None)
        _advance(live, monitor, steps, stop)
        monitor.read_all()
        if any(training.error for training in live):
            continue  # the validation is still due, without the failed ones
        step = live[0].state.step  # before `stop` if a training is late
        validate_all([t for t, due in zip(live, stops) if (due == step or t.is_late) and t.validate is not None])
        if any(training.keep_best or next_stop(training) is not None for training in live):
            monitor.after_validation()  # only the scores of a trial that has ended are needed, no checkpoint


def _advance(live: list[Training], monitor: Monitor, steps: Steps, stop: int) -> None:
    """Take steps up to `stop`, or until some training has failed."""
    state, full_steps = live[0].state, live[0].batches.plan.full_steps
    keeps = any(training.keep is not None for training in live)
    with matmul_precision(live[0].config.precision):
        while state.step < stop and not any(training.error or training.is_late for training in live):
            if keeps and state.step == full_steps:
                monitor.read_all()
                for training in live:
                    _keep(training)
            with uninterrupted():
                monitor.add(steps.advance(min(stop, full_steps) if keeps and state.step < full_steps else stop))
            monitor.after_steps()


def _end(live: list[Training], indices: list[int], steps: Steps | None) -> None:
    """Remove the trainings at these indices; those that did not fail get their best weights."""
    all_end = len(indices) == len(live)
    finished = [live[i] for i in indices if live[i].error is None]
    for training in finished:
        if training.state.step == training.batches.plan.full_steps or training.keep_best:
            _keep(training)  # best weights are complete only at the end, which may be an early stop
        if training.save is not None and not all_end:
            training.save(training.state)  # the rest of the stack may be interrupted later
    with uninterrupted():  # an interrupt would save tables that are being moved
        for training in finished:
            training.state.restore_best()
        if steps is not None and not all_end:
            steps.remove(indices)
        swap_remove(live, indices)


def _keep(training: Training) -> None:
    if training.keep is not None and training.error is None:
        with training.catching_errors():
            training.keep(training.state)


def steps_for(trainings: Sequence[Training]) -> Steps:
    """Return the fused steps where they apply to all trainings, else the unfused ones, captured where possible."""
    configs, states, batches = [t.config for t in trainings], [t.state for t in trainings], trainings[0].batches
    steps = None
    if all(uses_fused_step(config, batches.device) for config in configs):
        steps = load_fused_steps(states, batches, configs)
    if steps is None and all(uses_captured_step(config, batches.device) for config in configs):
        return CapturedSteps(states, [t.batches for t in trainings], configs)
    return steps or UnfusedSteps(trainings)


class UnfusedSteps:
    """Calls `train_step` for one training after the other: the slow twin of FusedSteps."""

    def __init__(self, trainings: Sequence[Training]) -> None:
        self.trainings = list(trainings)
        self.window = 1 if trainings[0].batches.device.type == "cpu" else _STEPS_AHEAD

    def advance(self, stop: int) -> Tensor:
        n_steps = min(stop - self.trainings[0].state.step, self.window)
        losses = [train_step(t.state, t.batches, t.config) for _ in range(n_steps) for t in self.trainings]
        return torch.stack(losses).view(-1, len(self.trainings))

    def remove(self, indices: Sequence[int]) -> None:
        swap_remove(self.trainings, indices)


def train_step(
    state: TrainState, batches: Batches, config: TrainConfig, gradients: Callable[..., StepGradients] = step_gradients
) -> Tensor:
    """Take one step and return its loss, a scalar on the device. gradients: called as `step_gradients`."""
    step, model, plan = state.step, state.model, batches.plan
    batch = batches.questions(step) if config.training == "kvsall" else batches.positives(step)
    drops = any(getattr(config, name) for name in DROPOUTS)
    result = gradients(model, batch, config, key_at(config.own_key("dropout"), step) if drops else 0)
    rate = rate_at(config, plan.epoch_after(step), state.plateau)
    with uninterrupted():
        state.entity_optimizer.update(model.entity, result.entity, rate, step + 1)
        state.relation_optimizer.update(model.relation, result.relation, rate, step + 1)
        for name, gradient in result.weights.items():
            weight = as_table(model.weights[name])
            state.weight_optimizers[name].update(
                weight, Gradient(dense=gradient.contiguous().view_as(weight)), rate, step + 1
            )
        for name, statistic in result.statistics.items():
            model.weights[name].copy_(statistic)
        model.after_step()
        state.step = step + 1
    return result.loss


def next_stop(training: Training) -> int | None:
    """Return the step of the next validation or of the end; None when the training is over.

    A validation that was due when a training was interrupted is still due when it resumes; one that was due before the
    state of an earlier round is not."""
    state, n_steps, patience = training.state, training.batches.plan.n_steps, training.config.patience
    if patience is not None and state.validations_since_best >= patience:
        return None
    if training.is_late and (training.validate is None or (state.history and state.history[-1].step == state.step)):
        return None
    if training.validate is None:
        return n_steps if state.step < n_steps else None
    last = state.history[-1].step if state.history else max(0, training.initial_step - 1)
    return next_validation(last, training.batches, training.config, training.valid_at) if last < n_steps else None


def next_validation(step: int, batches: Batches, config: TrainConfig, valid_at: Sequence[float] = ()) -> int:
    """Return the step of the first validation after `step`: at a multiple of valid_every, `valid_at`, or the end."""
    plan = batches.plan
    if valid_at:
        return min((due for epoch in valid_at if (due := plan.steps_to(epoch)) > step), default=plan.n_steps)
    every = config.valid_every * plan.n_examples
    before = plan.examples_before(step)
    number = max(int(before / every), int((before + 0.5) / every) - 1)  # fewer round to at most `before`
    while True:
        number += 1
        due = plan.steps_at(min(round(number * every), plan.total))
        if due > step:
            return min(due, plan.n_steps)


def validate_all(trainings: Sequence[Training]) -> None:
    """Validate all trainings. A validation with a method `begin(model)` is started before the first is waited for; it
    returns a function that waits for the MRR, and the model does not change until then."""
    started: list[tuple[Training, Callable[[], Found]]] = []
    for training in trainings:
        with training.catching_errors():
            validate, model = training.validate, training.state.model
            assert validate is not None
            begin: Callable[[KgeModel], Callable[[], Found]] | None = getattr(validate, "begin", None)
            started.append((training, functools.partial(validate, model) if begin is None else begin(model)))
    for training, wait in started:
        found: Found | None = None
        with training.catching_errors():
            found = wait()
        if found is not None:
            _add_validation(training, found)


def _add_validation(training: Training, found: Found) -> None:
    state, config = training.state, training.config
    mrr, score = found if isinstance(found, tuple) else (found, None)
    epoch = training.batches.plan.epoch_after(state.step)
    loss = state.loss_sum / max(1, state.loss_steps)
    rate = rate_at(config, epoch, state.plateau)
    with uninterrupted():
        state.history.append(Validation(state.step, epoch, loss, mrr, rate, score))
        state.loss_sum, state.loss_steps = 0.0, 0
        state.plateau.see(state.history[-1].value)
        if training.keep_best:
            state.keep_best()


class Monitor:
    """Reads the losses of a stack, detects divergence, reports progress and saves checkpoints.

    Losses of some steps (a window) are copied to the host while the next window runs, so a GPU never waits. On a CPU a
    window is one step, and many are read together, which is less work. `live` is the loop's own list of trainings, in
    the order of the losses' columns."""

    def __init__(self, live: list[Training], save_every_seconds: float) -> None:
        self.live, self.save_every_seconds = live, save_every_seconds
        self.plan, device = live[0].batches.plan, live[0].batches.device
        # windows that may be unread: between two reads, and after one
        self.most_unread, self.left_unread = (_UNREAD_STEPS, 0) if device.type == "cpu" else (1, 1)
        self.windows: deque[tuple[int, Tensor, torch.cuda.Event | None]] = deque()
        self.start_step = live[0].state.step
        self.start = self.counted = self.saved = self.reported = time.monotonic()
        n_bytes = sum(t.state.nbytes for t in live if t.save is not None)
        self.save_seconds = n_bytes / _DISK_BYTES_PER_SECOND  # later: those of the last checkpoint

    def add(self, losses: Tensor) -> None:
        """Start to copy losses (steps, T) of the last steps to the host."""
        first = self.live[0].state.step - len(losses)
        copied = None
        if losses.is_cuda:
            losses = losses.to("cpu", non_blocking=True)
            copied = torch.cuda.Event()
            copied.record()
        self.windows.append((first, losses, copied))

    def after_steps(self) -> None:
        """Read losses, report to watchers and save, each if it is time to."""
        now = time.monotonic()
        if now - self.reported > _REPORT_SECONDS:
            self.reported = now
            self._read()
            self.report()
        elif len(self.windows) > self.most_unread:
            self._read()
        if now - self.saved > self._save_interval():
            self.read_all()
            self.save()

    def after_validation(self) -> None:
        """Save sooner than between validations, unless saving takes long."""
        if time.monotonic() - self.saved > self._save_interval() / (8 if self.save_seconds <= 1 else 1):
            self.save()

    def read_all(self) -> None:
        """Read all losses; a training that has diverged gets its error."""
        self._read(left_unread=0)
        self._count_seconds()

    def save(self) -> None:
        """Save every training that has not failed."""
        began = time.monotonic()
        for training in self.live:
            if training.save is not None and training.error is None:
                training.save(training.state)
        self.saved = time.monotonic()
        self.save_seconds = self.saved - began

    def _save_interval(self) -> float:
        """Seconds between two saves: large tables must not take more than a tenth of the time."""
        return max(self.save_every_seconds, 10 * self.save_seconds if self.save_seconds > 1 else 0.0)

    def _read(self, left_unread: int | None = None) -> None:
        n = len(self.windows) - (self.left_unread if left_unread is None else left_unread)
        if n <= 0:
            return
        copied = self.windows[n - 1][2]
        if copied is not None:
            copied.synchronize()
        with uninterrupted():
            read = [self.windows.popleft() for _ in range(n)]
            self._sum(read[0][0], np.concatenate([losses.numpy() for _, losses, _ in read]).astype(np.float64))

    def _sum(self, first: int, losses: NDArray[np.float64]) -> None:
        """Add losses (steps, T) from step `first` on, each training's in the order of its steps, one by one."""
        states = [training.state for training in self.live]
        begun = [loss if s.first_loss is None else s.first_loss for s, loss in zip(states, losses[0].tolist())]
        with np.errstate(invalid="ignore", over="ignore"):
            bad = ~np.isfinite(losses) | (losses > DIVERGED * (1 + np.abs(np.asarray(begun))))
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
        error.epoch = self.plan.epoch_after(step)  # losses may be read some steps later
        error.history = list(training.state.history)
        return error

    def _count_seconds(self) -> None:
        """Charge each training its share of the time since the last call."""
        now = time.monotonic()
        for training in self.live:
            training.state.seconds += (now - self.counted) / len(self.live)
        self.counted = now

    def report(self) -> None:
        """Report to watchers, also when a training has ended: the last report has its last validation."""
        self._count_seconds()
        for training in self.live:
            if training.watch is not None and training.error is None:
                with training.catching_errors():
                    training.watch(self._progress(training))

    def _progress(self, training: Training) -> Progress:
        plan, state, best = self.plan, training.state, training.state.best_validation
        last_loss = state.history[-1].loss if state.history else 0.0
        seen = plan.examples_before(state.step)
        rate = (seen - plan.examples_before(self.start_step)) / max(time.monotonic() - self.start, 1e-9)
        return Progress(
            step=state.step,
            n_steps=plan.n_steps,
            epoch=plan.epoch_after(state.step),
            loss=state.loss_sum / state.loss_steps if state.loss_steps else last_loss,
            examples_per_second=rate,
            seconds=state.seconds,
            seconds_left=0.0 if next_stop(training) is None else (plan.total - seen) / max(rate, 1e-9),
            best_mrr=None if best is None else best.mrr,
            epochs=plan.epoch_after(plan.n_steps),
        )


@contextmanager
def delayed_interrupts() -> Iterator[None]:
    """Install one handler of SIGINT for all `uninterrupted` blocks inside; does nothing outside the main thread."""
    before = signal.getsignal(signal.SIGINT)
    nested = _Handler.current is not None
    if nested or threading.current_thread() is not threading.main_thread() or not callable(before):
        yield
        return
    handler = _Handler.current = _Handler(before)
    signal.signal(signal.SIGINT, handler)
    try:
        yield
    finally:
        _Handler.current = None
        signal.signal(signal.SIGINT, before)
        handler.pass_on()


class uninterrupted:  # noqa: N801 (reads as a word in `with uninterrupted():`)
    """Inside `delayed_interrupts`, Ctrl-C waits for the end of the (outermost) block.

    It only counts: setting and restoring a handler at every step would cost a few percent of a step."""

    def __enter__(self) -> None:
        if _Handler.current is not None:
            _Handler.current.blocks += 1

    def __exit__(self, *_: object) -> None:
        if _Handler.current is not None:
            _Handler.current.blocks -= 1
            _Handler.current.pass_on()


class _Handler:
    """A handler of SIGINT that waits while `blocks` is not 0, then calls the handler before it."""

    current: _Handler | None = None

    def __init__(self, before: Callable[[int, FrameType | None], object]) -> None:
        self.before, self.blocks = before, 0
        self.received: list[tuple[int, FrameType | None]] = []

    def __call__(self, number: int, frame: FrameType | None) -> None:
        self.received.append((number, frame))
        self.pass_on()

    def pass_on(self) -> None:
        while self.received and not self.blocks:
            self.before(*self.received.pop(0))
