"""The training loop: batch → gradients → update, and a validation now and then.

It is given the function that validates, so it knows nothing of ranking.
"""

from __future__ import annotations

from collections.abc import Callable

from grash.errors import Diverged
from grash.kernels.precision import products
from grash.kernels.random import key_at
from grash.models import KgeModel
from grash.training.batches import Batches
from grash.training.config import TrainConfig
from grash.training.fusable import serves
from grash.training.fused import FusedSteps
from grash.training.gradients import step_gradients
from grash.training.pulse import Progress, Pulse, one_handler, undisturbed
from grash.training.rates import rate_at
from grash.training.state import TrainState, Validation


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
    """Trains from where `state` stands to the end of the plan, or until patience runs out.

    `state.model` ends with the weights of the best validation, or of the last step if nothing validates. `save` is
    called between two steps, from time to time and on an interrupt: the state it sees continues exactly. `keep` is
    given the state from which a longer run would go on.
    """
    pulse = Pulse(state, batches, watch, save, save_every_seconds)
    advance, whole = _stepper(state, batches, config), batches.plan.whole_steps
    try:
        with one_handler():
            while (stop := next_stop(state, batches, config, validates=validate is not None)) is not None:
                with products(config.precision):
                    while state.step < stop:
                        if keep is not None and state.step == whole:
                            pulse.flush()
                            keep(state)
                        advance(stop if keep is None or state.step >= whole else min(stop, whole))
                        pulse.see()
                pulse.flush()
                if validate is not None:
                    _validate(state, batches, config, validate)
                    pulse.validated()
        if keep is not None and state.step == whole:
            keep(state)
    except KeyboardInterrupt:
        pulse.flush()
        pulse.save()
        raise
    except Diverged as error:
        error.epoch = batches.plan.epoch_after(state.step)
        raise
    state.restore_best()


def _stepper(state: TrainState, batches: Batches, config: TrainConfig) -> Callable[[int], None]:
    """What makes a step or more, up to a given one: the fused kernels where they serve, else `train_step`."""
    if serves(config, batches.device):
        return FusedSteps([state], batches, [config]).advance
    return lambda stop: train_step(state, batches, config)


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


def next_stop(state: TrainState, batches: Batches, config: TrainConfig, *, validates: bool) -> int | None:
    """The step up to which to train before the next validation, or the end; None when the run is over.

    A validation that was due when a run was stopped is still due when it goes on."""
    n_steps = batches.plan.n_steps
    if _out_of_patience(state, config):
        return None
    if not validates:
        return n_steps if state.step < n_steps else None
    seen = state.history[-1].step if state.history else 0
    return next_validation(seen, batches, config) if seen < n_steps else None


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
    with undisturbed():
        state.history.append(Validation(state.step, epoch, loss, mrr, rate))
        state.loss_sum, state.loss_steps = 0.0, 0
        state.plateau.see(mrr)
        state.keep_best()


def _out_of_patience(state: TrainState, config: TrainConfig) -> bool:
    return config.patience is not None and state.validations_since_best >= config.patience
