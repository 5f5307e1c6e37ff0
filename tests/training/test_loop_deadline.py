"""A training with a deadline: it validates once more at the step it has reached, and keeps its best weights."""

from __future__ import annotations

import time

import pytest
import torch

from grash.engines.trainer import TrainingData, run_trainings
from grash.training.checkpoint import TrainState
from grash.training.loop import Training
from training.test_loop import settings_of, small_graph


def trained(deadline: float | None, **values: float) -> TrainState:
    data = TrainingData(small_graph(), torch.device("cpu"))
    [ended] = list(run_trainings(data, [Training(settings_of(**values), deadline=deadline)]))
    state = ended[0][1]
    assert isinstance(state, TrainState)
    return state


def test_a_late_training_validates_at_its_step_and_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = trained(None, epochs=20, valid_every=5)
    clock = iter(range(10**9))
    monkeypatch.setattr(time, "monotonic", lambda: float(next(clock)))
    late = trained(100.0, epochs=20, valid_every=5)
    assert 0 < late.history[-1].step == late.step < whole.step
    assert [(v.step, v.mrr) for v in late.history[:-1]] == [
        (v.step, v.mrr) for v in whole.history if v.step < late.history[-1].step
    ]


def test_a_training_that_begins_late_is_validated_as_it_is() -> None:
    late = trained(time.monotonic() - 1, epochs=20, valid_every=5)
    assert [v.step for v in late.history] == [0]


def test_a_deadline_that_is_never_reached_changes_nothing() -> None:
    assert torch.equal(trained(time.monotonic() + 1e6).model.entity, trained(None).model.entity)


def test_trainings_that_run_in_turn_share_the_time(monkeypatch: pytest.MonkeyPatch) -> None:
    data, clock = TrainingData(small_graph(), torch.device("cpu")), iter(range(10**9))
    monkeypatch.setattr(time, "monotonic", lambda: float(next(clock)))
    config = settings_of(epochs=2000, valid_every=500)
    trainings = [Training(config.changed(model=m), deadline=900.0) for m in ("complex", "distmult", "transe")]
    steps = [state.step for [(_, state)] in run_trainings(data, trainings) if isinstance(state, TrainState)]
    assert len(steps) == 3 and min(steps) > 0 and max(steps) < 2 * min(steps)
