"""The training loop: batch → gradients → update, and a validation now and then.

It is given the function that validates, so it knows nothing of ranking.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from grash.errors import Diverged
from grash.kernels.random import key_at, key_of
from grash.models import KgeModel
from grash.training.batches import Batches
from grash.training.config import TrainConfig
from grash.training.gradients import step_gradients
from grash.training.rates import rate_at
from grash.training.state import TrainState, Validation

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


def train(
    state: TrainState,
    batches: Batches,
    config: TrainConfig,
    *,
    validate: Callable[[KgeModel], float] | None = None,
    watch: Callable[[Progress], None] | None = None,
    save: Callable[[TrainState], None] | None = None,
    save_every_seconds: float = 120.0,
) -> None:
    """Trains from where `state` stands to the end of the plan, or until patience runs out.

    `state.model` ends with the weights of the best validation, or of the last step if nothing validates. `save` is
    called between two steps, from time to time and on an interrupt: the state it sees continues exactly.
    """
    pulse = _Pulse(state, batches, watch, save, save_every_seconds)
    try:
        while state.step < batches.plan.n_steps and not _out_of_patience(state, config):
            end = next_validation(state.step, batches, config)
            while state.step < end:
                pulse.see(train_step(state, batches, config))
            pulse.flush()
            if validate is not None:
                _validate(state, batches, config, validate)
                if save is not None:
                    pulse.save()
    except KeyboardInterrupt:
        pulse.flush()
        if save is not None:
            pulse.save()
        raise
    state.restore_best()


def train_step(state: TrainState, batches: Batches, config: TrainConfig) -> Tensor:
    """One step; the loss as a scalar on the device."""
    step, model = state.step, state.model
    batch = batches.questions(step) if config.training == "kvsall" else batches.positives(step)
    result = step_gradients(model, batch, config, key_at(key_of(config.seed, "dropout"), step))
    rate = rate_at(config, batches.plan.examples_before(step) / batches.plan.n_examples, state.plateau)
    state.entity_optimizer.update(model.entity, result.entity, rate, step + 1)
    state.relation_optimizer.update(model.relation, result.relation, rate, step + 1)
    model.after_step()
    state.step = step + 1
    return result.loss


def next_validation(step: int, batches: Batches, config: TrainConfig) -> int:
    """The step after which the next validation is due: multiples of valid_every, and the end."""
    plan = batches.plan
    every = config.valid_every * plan.n_examples
    number = int(plan.examples_before(step) / every)
    while True:
        number += 1
        due = plan.steps_at(min(round(number * every), plan.total))
        if due > step:
            return min(due, plan.n_steps)


def _validate(state: TrainState, batches: Batches, config: TrainConfig, validate: Callable[[KgeModel], float]) -> None:
    mrr = validate(state.model)
    epoch = batches.plan.examples_before(state.step) / batches.plan.n_examples
    loss = state.loss_sum / max(1, state.loss_steps)
    rate = rate_at(config, epoch, state.plateau)
    state.history.append(Validation(state.step, epoch, loss, mrr, rate))
    state.loss_sum, state.loss_steps = 0.0, 0
    state.plateau.see(mrr)
    state.keep_best()


def _out_of_patience(state: TrainState, config: TrainConfig) -> bool:
    return config.patience is not None and state.validations_since_best >= config.patience


class _Pulse:
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
        self.losses: list[Tensor] = []
        self.start, self.start_step, self.before = time.monotonic(), state.step, state.seconds
        self.saved = self.told = self.start

    def see(self, loss: Tensor) -> None:
        self.losses.append(loss)
        if len(self.losses) < self.every:
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
        losses = torch.stack(self.losses).tolist() if self.losses else []
        first_step = self.state.step - len(losses)
        self.losses = []
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
