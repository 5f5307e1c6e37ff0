"""The training loop of one rank among several: `training.loop` for one training, with decisions made by all ranks.

Ranks take the same steps, see the same losses and validate at the same steps. Their clocks and Ctrl-C differ, so every
few steps they agree whether to save or to stop, in the collective that sums the losses.
"""

from __future__ import annotations

import functools
import logging
import math
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from grash.kernels.device import matmul_precision
from grash.training.distributed.communication import Shard
from grash.training.distributed.step import distributed_gradients
from grash.training.loop import Monitor, Training, next_stop, train_step, validate_all

log = logging.getLogger(__name__)

_MOST_STEPS = 32  # between two agreements
_MOST_SECONDS = 1.0  # of these steps
_LONG_SAVE_SECONDS = 20.0  # a launcher may kill ranks 30 seconds after Ctrl-C


def train_distributed(training: Training, shard: Shard, *, save_every_seconds: float = 120.0) -> None:
    """Train to the end; the state then holds this rank's rows of the best validation.

    training.save and training.validate are called on all ranks together. If one rank is interrupted, all save and raise
    KeyboardInterrupt. The end is saved too, because the test that follows may fail."""
    state, monitor = training.state, Monitor([training], math.inf)
    agreement = _Agreement(shard, save_every_seconds, saved_step=state.step)
    with _interrupts_noted(agreement):
        while (stop := next_stop(training)) is not None:
            with matmul_precision(training.config.precision):
                while state.step < stop:
                    losses = _steps(training, min(stop, state.step + agreement.steps), shard)
                    total = agreement.reach(losses)
                    monitor.add(total[:, None])
                    monitor.read_all()
                    monitor.after_steps()
                    _raise_error(training)
                    agreement.save_if_due(training)
            if training.validate is not None:
                validate_all([training])
                _raise_error(training)
                agreement.reach(share=1 / 8)
                agreement.save_if_due(training)
        if state.step > agreement.saved_step:
            agreement.save(training)
        agreement.reach()  # Ctrl-C since the last one
        if agreement.interrupted:
            raise KeyboardInterrupt
    state.restore_best()


def distributed_step(training: Training, shard: Shard) -> Tensor:
    """Take one step and return this rank's part of its loss."""
    gradients = functools.partial(distributed_gradients, shard=shard)
    return train_step(training.state, training.batches, training.config, gradients)


def _steps(training: Training, stop: int, shard: Shard) -> Tensor:
    """Take steps up to `stop`; return this rank's parts of their losses (steps,)."""
    return torch.stack([distributed_step(training, shard) for _ in range(stop - training.state.step)])


def _raise_error(training: Training) -> None:
    if training.error is not None:
        raise training.error


class _Agreement:
    """What all ranks do next: save, by the clock of rank 0; stop, after Ctrl-C on any rank; and how many steps to take
    before the next agreement, by the clock of rank 0."""

    def __init__(self, shard: Shard, save_every_seconds: float, *, saved_step: int) -> None:
        self.group, self.save_every_seconds, self.saved_step = shard.group, save_every_seconds, saved_step
        self.saved = self.reached = time.monotonic()
        self.save_seconds = 0.0  # of the last checkpoint
        self.ctrl_c = False  # on this rank
        self.save_due, self.interrupted, self.steps = False, False, 1

    def reach(self, losses: Tensor | None = None, *, share: float = 1.0) -> Tensor:
        """Agree with all ranks; return the sums of their losses (steps,). share: of the usual time between saves."""
        wishes = self._wishes(share)
        total = self.group.all_reduce(wishes if losses is None else torch.cat([losses, wishes.to(losses.device)]))
        save, stop, steps = total[-3:].tolist()
        self.interrupted, self.steps = stop > 0, int(steps)
        self.save_due, self.reached = save > 0 or self.interrupted, time.monotonic()
        return total[:-3]

    def _wishes(self, share: float) -> Tensor:
        """Return (3,): save, stop, number of steps; summed over ranks, a wish of one is everyone's."""
        leads, now = self.group.rank == 0, time.monotonic()
        seconds_per_step = (now - self.reached) / self.steps
        # saving takes at most a tenth of the time
        late = now - self.saved > share * max(self.save_every_seconds, 10 * self.save_seconds)
        steps = min(max(int(_MOST_SECONDS / max(seconds_per_step, 1e-9)), 1), _MOST_STEPS)
        return torch.tensor([leads and late, self.ctrl_c, steps * leads], dtype=torch.float32)

    def save_if_due(self, training: Training) -> None:
        if self.save_due:
            self.save(training)

    def save(self, training: Training) -> None:
        """Save on all ranks; then raise KeyboardInterrupt if some rank was interrupted."""
        began, before = time.monotonic(), self.save_seconds
        if training.save is not None:
            training.save(training.state)
        self.saved = self.reached = time.monotonic()
        self.save_seconds, self.save_due, self.saved_step = self.saved - began, False, training.state.step
        if self.save_seconds > _LONG_SAVE_SECONDS >= before:
            log.warning(
                "Saving a checkpoint takes %.0f s, but torchrun kills ranks 30 s after Ctrl-C by default: an "
                "interrupted run may have to resume from the checkpoint before. Set a longer shutdown timeout.",
                self.save_seconds,
            )
        if self.interrupted:
            raise KeyboardInterrupt


@contextmanager
def _interrupts_noted(agreement: _Agreement) -> Iterator[None]:
    """Note Ctrl-C instead of raising: a rank that ended at once would end the others before they have saved.

    torchrun ends all ranks at once with SIGTERM (`engines/distributed`)."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.getsignal(signal.SIGINT)

    def note(*_: object) -> None:
        agreement.ctrl_c = True

    signal.signal(signal.SIGINT, note)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
