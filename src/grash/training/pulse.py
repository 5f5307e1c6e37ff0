"""Beside the training loop: reads losses, spots divergence, tells the watcher, saves now and then."""

from __future__ import annotations

import math
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType

import torch

from grash.errors import Diverged
from grash.training.batches import Batches
from grash.training.state import TrainState

EXPLODED = 1e3  # times (1 + the first loss)


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


class Pulse:
    """Reads losses now and then (never between the steps of a device), tells the watcher, saves, spots divergence."""

    def __init__(
        self,
        state: TrainState,
        batches: Batches,
        watch: Callable[[Progress], None] | None,
        save: Callable[[TrainState], None] | None,
        save_every_seconds: float,
    ) -> None:
        self.state, self.plan, self.watch = state, batches.plan, watch
        self._save, self.save_every_seconds = save, save_every_seconds
        self.every = 1 if batches.device.type == "cpu" else 64
        self.start, self.start_step, self.before = time.monotonic(), state.step, state.seconds
        self.saved = self.told = self.start

    def see(self) -> None:
        if len(self.state.unread) < self.every:
            return
        self.flush()
        now = time.monotonic()
        if self.watch is not None and now - self.told > 0.1:
            self.told = now
            self.watch(self.progress())
        if self._save is not None and now - self.saved > self.save_every_seconds:
            self.save()

    def flush(self) -> None:
        """Reads the losses seen since the last time; raises Diverged."""
        losses = torch.stack(self.state.unread).tolist() if self.state.unread else []
        first_step = self.state.step - len(losses)
        self.state.unread = []
        for number, loss in enumerate(losses):
            if self.state.first_loss is None:
                self.state.first_loss = loss
            limit = EXPLODED * (1 + abs(self.state.first_loss))
            if not math.isfinite(loss) or loss > limit:
                raise Diverged(
                    f"Training diverged at step {first_step + number + 1}: the loss is {loss:.4g} (it began at "
                    f"{self.state.first_loss:.4g}). Try a lower learning rate."
                )
            self.state.loss_sum += loss
        self.state.loss_steps += len(losses)
        self.state.seconds = self.before + time.monotonic() - self.start

    def validated(self) -> None:
        """A validation is worth keeping, unless everything up to it could be done again in a moment."""
        if time.monotonic() - self.saved > self.save_every_seconds / 8:
            self.save()

    def save(self) -> None:
        if self._save is not None:
            self._save(self.state)
            self.saved = time.monotonic()

    def progress(self) -> Progress:
        state, plan = self.state, self.plan
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
    """Inside `one_handler`, Ctrl-C waits until the block is done: no state is saved in the middle of a change.

    It only sets a flag: handlers set and put back at every step would cost a few per cent of one."""

    def __enter__(self) -> None:
        if _Patient.current is not None:
            _Patient.current.busy = True

    def __exit__(self, *_: object) -> None:
        if _Patient.current is not None:
            _Patient.current.busy = False
            _Patient.current.hand_on()


class _Patient:
    """A handler of SIGINT that waits while `busy`, then hands on to the one before it."""

    current: _Patient | None = None

    def __init__(self, before: Callable[[int, FrameType | None], object]) -> None:
        self.before, self.busy = before, False
        self.pressed: list[tuple[int, FrameType | None]] = []

    def __call__(self, number: int, frame: FrameType | None) -> None:
        self.pressed.append((number, frame))
        if not self.busy:
            self.hand_on()

    def hand_on(self) -> None:
        while self.pressed:
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
