"""The training loop of one rank among several: `loop.train`, with all that must be decided together decided together.

Ranks make the same steps, see the same losses and validate at the same steps. Clocks and Ctrl-C differ between them,
so whether to save or to stop is agreed upon after every few steps, in the word that adds up the losses.
"""

from __future__ import annotations

import logging
import math
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from grash.kernels.device import matmul_precision
from grash.kernels.random import key_at
from grash.training.distributed.communication import Company
from grash.training.distributed.step import sharded_gradients, sharded_questions
from grash.training.distributed.tables import Shard
from grash.training.loop import Pulse, Training, next_stop, validate_now
from grash.training.optimizers import rate_at

log = logging.getLogger(__name__)


_MOST_STEPS = 32  # between two words about losses, clocks and Ctrl-C
_MOST_SECONDS = 1.0  # of these
_LONG_SAVING = 20.0  # seconds; a launcher may kill ranks 30 seconds after Ctrl-C


def train_shard(training: Training, shard: Shard, company: Company, *, save_every_seconds: float = 120.0) -> None:
    """Trains to the end of the plan, or until patience runs out; the state ends with the best validation's weights.

    training.save and training.validate are called on all ranks at once. On an interrupt of any rank all save, and
    KeyboardInterrupt is raised on all. What follows, test and model, may fail, so the end is saved too."""
    state, pulse = training.state, Pulse([training], math.inf)
    wishes = _Wishes(save_every_seconds, leads=company.rank == 0, stands=state.step)
    with _patient(wishes):
        while (stop := _stop(training)) is not None:
            with matmul_precision(training.config.precision):
                while state.step < stop:
                    losses = _steps(training, min(stop, state.step + wishes.steps), shard, company)
                    _hear(pulse, wishes, losses, company)
                    _raise(training)
                    if wishes.agreed:
                        _save(training, wishes)
            if training.validate is not None:
                validate_now([training])
                _raise(training)
                wishes.hear(company.total(wishes.tensor(share=1 / 8)))
                if wishes.agreed:
                    _save(training, wishes)
        if state.step > wishes.stands:
            _save(training, wishes)
        wishes.hear(company.total(wishes.tensor()))  # a Ctrl-C since the last word
        if wishes.interrupted:
            raise KeyboardInterrupt
    state.restore_best()


def sharded_step(training: Training, shard: Shard, company: Company) -> Tensor:
    """`loop.train_step` in company: moves the state on by one step; this rank's share of the loss."""
    state, batches, config = training.state, training.batches, training.config
    step, model = state.step, state.model
    drops = config.dropout_entity or config.dropout_relation
    key = key_at(config.own_key("dropout"), step) if drops else 0
    if config.training == "kvsall":
        result = sharded_questions(model, batches.questions(step), config, key, shard=shard, company=company)
    else:
        result = sharded_gradients(model, batches.positives(step), config, key, shard=shard, company=company)
    rate = rate_at(config, batches.plan.examples_before(step) / batches.plan.n_examples, state.plateau)
    state.entity_optimizer.update(model.entity, result.entity, rate, step + 1)
    state.relation_optimizer.update(model.relation, result.relation, rate, step + 1)
    model.after_step()
    state.step = step + 1
    return result.loss


def _steps(training: Training, stop: int, shard: Shard, company: Company) -> Tensor:
    """(steps,) this rank's shares of their losses."""
    return torch.stack([sharded_step(training, shard, company) for _ in range(stop - training.state.step)])


def _stop(training: Training) -> int | None:
    validates = training.validate is not None
    return next_stop(training.state, training.batches, training.config, validates=validates)


class _Wishes:
    """What this rank would do, and what all agreed upon: to save, by the clock of the rank that leads; to stop, because
    of anybody's Ctrl-C; how many steps to make before the next word, by the leader's clock again."""

    def __init__(self, save_every_seconds: float, *, leads: bool, stands: int) -> None:
        self.save_every_seconds, self.leads = save_every_seconds, leads
        self.stands = stands  # the step of the last checkpoint
        self.saved = self.heard = time.monotonic()
        self.saving = 0.0  # seconds that the last saving took: no more than a tenth of it all is spent so
        self.pressed = False
        self.agreed, self.interrupted, self.steps = False, False, 1

    def tensor(self, *, share: float = 1.0) -> Tensor:
        """(3,): save, after that share of the usual time; stop; steps."""
        now, each = time.monotonic(), (time.monotonic() - self.heard) / self.steps
        late = now - self.saved > share * max(self.save_every_seconds, 10 * self.saving)
        steps = min(max(int(_MOST_SECONDS / max(each, 1e-9)), 1), _MOST_STEPS)
        return torch.tensor([self.leads and late, self.pressed, steps * self.leads], dtype=torch.float32)

    def hear(self, total: Tensor) -> None:
        """The sum of all ranks' wishes: some rank's wish is everybody's."""
        save, stop, steps = total.tolist()
        self.interrupted, self.steps = stop > 0, int(steps)
        self.agreed, self.heard = save > 0 or self.interrupted, time.monotonic()


def _hear(pulse: Pulse, wishes: _Wishes, losses: Tensor, company: Company) -> None:
    """One word of all ranks: their shares of the losses, and their wishes."""
    total = company.total(torch.cat([losses, wishes.tensor().to(losses.device)]))
    pulse.add(total[:-3, None])
    pulse.flush()
    pulse.see()
    wishes.hear(total[-3:])


def _save(training: Training, wishes: _Wishes) -> None:
    began = time.monotonic()
    if training.save is not None:
        training.save(training.state)
    wishes.saved = wishes.heard = time.monotonic()
    before, wishes.saving, wishes.agreed = wishes.saving, wishes.saved - began, False
    wishes.stands = training.state.step
    if wishes.saving > _LONG_SAVING >= before:
        log.warning(
            "Saving a checkpoint takes %.0f s, and torchrun kills ranks 30 s after Ctrl-C unless its shutdown timeout "
            "is longer: a run that is stopped so goes on from the checkpoint before.",
            wishes.saving,
        )
    if wishes.interrupted:
        raise KeyboardInterrupt


def _raise(training: Training) -> None:
    if training.error is not None:
        raise training.error


@contextmanager
def _patient(wishes: _Wishes) -> Iterator[None]:
    """Ctrl-C is a wish: a rank that left at once would take the others down before anything is saved. Where a second
    one is meant to end all at once, torchrun says so with SIGTERM (`engines/farewell`)."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before: Callable[..., object] | int | None = signal.getsignal(signal.SIGINT)

    def wish(*_: object) -> None:
        wishes.pressed = True

    signal.signal(signal.SIGINT, wish)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
