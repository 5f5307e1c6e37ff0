"""Stacks with unfused steps on a CPU: each training ends as if it were alone, whatever happens to the others."""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any
from unittest import mock

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from grash.errors import Diverged, OutputError
from grash.models import KgeModel
from grash.training.batches import Batches
from grash.training.checkpoint import TrainState, state_tensors
from grash.training.config import TrainConfig, make_config
from grash.training.fused import stack_states, swap_remove, swap_tables
from grash.training.initial import initial_model
from grash.training.loop import Monitor, Training, UnfusedSteps, train_stack
from oracles import random_triples

CPU = torch.device("cpu")
E, R = 15, 3
TRAIN = np.unique(random_triples(5, 70, E, R), axis=0).astype(np.int32)


@dataclass
class Trial:
    """A configuration, the step after which its table is spoilt, and what was seen of it."""

    config: TrainConfig
    spoilt_after: int | None = None
    kept: list[dict[str, torch.Tensor]] = field(default_factory=list)
    state: TrainState | None = None

    def training(self, state: TrainState, **calls: Any) -> Training:
        self.state = state

        def keep(s: TrainState) -> None:
            self.kept.append({k: v.clone() for k, v in state_tensors(s).items()})

        save = calls.pop("save", None)
        training = Training(self.config, keep=keep, **calls)
        return training.started(state, Batches(TRAIN, E, R, self.config, CPU), score, save)

    def seen(self, error: Exception | None) -> dict[str, Any]:
        """All that must not depend on neighbors."""
        assert self.state is not None
        state = self.state
        if error is not None:
            return {"error": str(error), "epoch": getattr(error, "epoch", None), "history": list(state.history)}
        tensors = {k: v.numpy().tobytes() for k, v in state_tensors(state).items()}
        kept = [{k: v.numpy().tobytes() for k, v in one.items()} for one in self.kept]
        numbers = (state.step, state.loss_sum, state.loss_steps, state.first_loss, state.plateau)
        return {"tensors": tensors, "kept": kept, "history": list(state.history), "numbers": numbers}


def score(model: KgeModel) -> float:
    """Return a number that rises and falls with the weights, in place of an MRR."""
    if not torch.isfinite(model.entity).all():
        raise Diverged("The model holds NaN.")
    return float(model.entity.sum().sin().abs())


def fresh(config: TrainConfig) -> TrainState:
    return TrainState.fresh(initial_model(config, E, R), config)


class Spoiling(UnfusedSteps):
    """Unfused steps that fill some trials' tables with NaN."""

    spoilt: dict[int, int] = {}  # step by variation

    def advance(self, stop: int) -> torch.Tensor:
        losses = super().advance(stop)
        for training in self.trainings:
            if self.spoilt.get(training.config.variation) == training.state.step:
                training.state.model.entity.fill_(float("nan"))
        return losses


def together(trials: Sequence[Trial], **calls: Any) -> list[Exception | None]:
    Spoiling.spoilt = {t.config.variation: t.spoilt_after for t in trials if t.spoilt_after is not None}
    states = stack_states([fresh(t.config) for t in trials], n=len(trials))
    return train_stack([t.training(s, **calls) for t, s in zip(trials, states)], make_steps=Spoiling)


def alone(trial: Trial) -> dict[str, Any]:
    single = Trial(trial.config, trial.spoilt_after)
    [error] = together([single])
    return single.seen(error)


def config_of(number: int, shared: dict[str, Any], **own: Any) -> TrainConfig:
    start = {"dim": 4, "batch_size": 16, "negatives_head": 4, "negatives_tail": 4, "patience": None, "lr": 0.1}
    return make_config({**start, **shared, **own, "variation": number})


SHARED = st.fixed_dictionaries({
    "epochs": st.sampled_from([0.3, 1.0, 2.6, 4.0]),
    "batch_size": st.sampled_from([7, 16, 100]),
    "valid_every": st.sampled_from([0.5, 1.3, 2.0]),
    "optimizer": st.sampled_from(["adagrad", "adam", "sgd"]),
})  # fmt: skip
OWN = st.fixed_dictionaries({
    "lr": st.sampled_from([0.02, 0.3, 1e25]),
    "negatives_head": st.integers(1, 20),
    "dropout_entity": st.sampled_from([0.0, 0.3]),
    "patience": st.sampled_from([None, 1, 2]),
    "schedule": st.sampled_from(["constant", "plateau", "cosine"]),
    "schedule_patience": st.just(0),
})  # fmt: skip
TRIALS = st.tuples(
    SHARED, st.lists(st.tuples(OWN, st.sampled_from([None, None, 1, 3, 9])), min_size=1, max_size=5)
).map(lambda drawn: [Trial(config_of(i, drawn[0], **own), spoilt) for i, (own, spoilt) in enumerate(drawn[1])])


@pytest.mark.slow
@settings(max_examples=60)
@given(TRIALS)
def test_a_training_is_the_same_alone_and_among_others(trials: list[Trial]) -> None:
    errors = together(trials)
    for trial, error in zip(trials, errors):
        assert trial.seen(error) == alone(trial)


class Late(Monitor):
    """Reads a window when the next one has run, as on a GPU."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self.most_unread = self.left_unread = 1


@pytest.mark.slow
@settings(max_examples=40)
@given(TRIALS, st.integers(1, 7))
def test_windows_that_are_read_late_change_nothing(trials: list[Trial], window: int) -> None:
    class Windows(UnfusedSteps):
        def __init__(self, trainings: Sequence[Training]) -> None:
            super().__init__(trainings)
            self.window = window

    trials = [Trial(trial.config) for trial in trials]
    states = [fresh(trial.config) for trial in trials]
    with mock.patch("grash.training.loop.Monitor", Late):
        errors = train_stack([t.training(s) for t, s in zip(trials, states)], make_steps=Windows)
    assert [t.seen(e) for t, e in zip(trials, errors)] == [alone(t) for t in trials]


@settings(max_examples=40)
@given(TRIALS, st.integers(1, 12))
def test_a_stopped_stack_saves_all_and_each_resumes_exactly(trials: list[Trial], at: int) -> None:
    saved: dict[int, TrainState] = {}

    def watch(progress: Any) -> None:
        if progress.step == at:
            raise KeyboardInterrupt

    def save(state: TrainState) -> None:
        number = next(t.config.variation for t in trials if t.state is state)
        saved[number] = copy.deepcopy(state)

    clock = iter(range(10**9))
    with mock.patch.object(time, "monotonic", lambda: float(next(clock))):  # watchers get a report after every step
        try:
            errors = together(trials, watch=watch, save=save)
        except KeyboardInterrupt:
            errors = []
    if errors:
        return  # it ended before that step
    for trial in trials:
        whole = alone(trial)
        if trial.config.variation not in saved:
            assert "error" in whole
            continue
        again = Trial(trial.config, trial.spoilt_after, kept=[])
        [error] = train_stack([again.training(saved[trial.config.variation])], make_steps=Spoiling)
        found = again.seen(error)
        found["kept"], whole["kept"] = found.get("kept", [])[-1:], whole.get("kept", [])[-1:]
        assert not found["kept"] or found["kept"] == whole["kept"]  # kept before the stop, or after it
        assert {**found, "kept": None} == {**whole, "kept": None}


def test_trainings_with_and_without_the_last_validation_resume_together() -> None:
    """An interrupt among the validations of a stack leaves some done and some due, all at the same step."""
    trials = [Trial(config_of(i, {"epochs": 2.0, "valid_every": 1.0})) for i in range(3)]
    calls = []

    def validate(model: KgeModel) -> float:
        calls.append(model)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return score(model)

    states = [fresh(t.config) for t in trials]
    trainings = [t.training(s) for t, s in zip(trials, states)]
    for training in trainings:
        training.validate = validate
    with pytest.raises(KeyboardInterrupt):
        train_stack(trainings)
    assert [len(s.history) for s in states] == [1, 0, 0]
    errors = train_stack([t.training(s) for t, s in zip(trials, states)])
    assert [t.seen(e) for t, e in zip(trials, errors)] == [alone(t) for t in trials]


def test_an_error_of_a_watcher_ends_its_training_and_a_full_disk_all() -> None:
    class Enough(Exception):
        pass

    def watching(error: Exception) -> tuple[list[Trial], Callable[[], list[Exception | None]]]:
        trials = [Trial(config_of(i, {"epochs": 3.0})) for i in range(3)]
        trainings = [t.training(fresh(t.config)) for t in trials]

        def watch(progress: Any) -> None:
            raise error

        trainings[1].watch = watch
        return trials, lambda: train_stack(trainings)

    clock = iter(range(10**9))
    with mock.patch.object(time, "monotonic", lambda: float(next(clock))):
        trials, run = watching(Enough("thank you"))
        errors = run()
        with pytest.raises(OutputError):
            watching(OutputError("x", "No space left on device"))[1]()
    assert errors[0] is None and errors[2] is None and isinstance(errors[1], Enough)
    assert [trials[i].seen(None) for i in (0, 2)] == [alone(trials[i]) for i in (0, 2)]


def test_the_time_of_a_stack_is_shared() -> None:
    trials = [Trial(config_of(i, {"epochs": 2.0})) for i in range(4)]
    began = time.monotonic()
    together(trials)
    seconds = [t.state.seconds for t in trials if t.state is not None]
    assert sum(seconds) <= time.monotonic() - began and max(seconds) - min(seconds) < 1e-6


@pytest.mark.parametrize("keep_best", [True, False])
def test_a_trial_that_has_ended_is_not_saved(keep_best: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its scores are all that is wanted of it; the tables of a training are."""
    seen = []
    monkeypatch.setattr(Monitor, "after_validation", lambda monitor: seen.append(monitor.live[0].state.step))
    trials = [Trial(config_of(i, {"epochs": 2.0, "valid_every": 1.0})) for i in range(2)]
    train_stack([t.training(fresh(t.config), keep_best=keep_best) for t in trials])
    assert trials[0].state is not None
    half, end = (v.step for v in trials[0].state.history)
    assert seen == ([half, end] if keep_best else [half])


@dataclass
class Startable:
    """A validation that is started, then waited for; `calls` lists both."""

    calls: list[str]
    name: str
    fails: str = ""

    def __call__(self, model: KgeModel) -> float:
        raise AssertionError("it can be begun")

    def begin(self, model: KgeModel) -> Callable[[], float]:
        self.calls.append(f"begin {self.name}")
        if self.fails == "begin":
            raise Diverged("at once")
        return self.read

    def read(self) -> float:
        self.calls.append(f"read {self.name}")
        if self.fails == "read":
            raise Diverged("in the end")
        return 0.5


def test_all_validations_of_a_stack_start_before_the_first_is_waited_for() -> None:
    calls: list[str] = []
    trials = [Trial(config_of(i, {"epochs": 2.0, "valid_every": 1.0})) for i in range(4)]
    trainings = [t.training(fresh(t.config)) for t in trials]
    for training, fails, name in zip(trainings, ("", "begin", "read", ""), "abcd"):
        training.validate = Startable(calls, name, fails)
    errors = train_stack(trainings)
    first = [f"begin {n}" for n in "abcd"] + [f"read {n}" for n in "acd"]
    assert calls == [*first, "begin a", "begin d", "read a", "read d"]
    assert [str(e) if e else None for e in errors] == [None, "at once", "in the end", None]
    assert [[v.mrr for v in t.state.history] for t in trainings] == [[0.5, 0.5], [], [], [0.5, 0.5]]


def test_trainings_with_other_plans_are_refused() -> None:
    one, other = (Trial(config_of(i, {"epochs": 1.0 + i})) for i in range(2))
    with pytest.raises(ValueError, match="same plan"):
        train_stack([t.training(fresh(t.config)) for t in (one, other)])
    assert train_stack([]) == []


@given(st.lists(st.lists(st.floats(-5, 5, width=32), min_size=3, max_size=3), min_size=1, max_size=70), st.floats(0, 9))
def test_losses_are_added_as_one_by_one(rows: list[list[float]], before: float) -> None:
    states = [fresh(config_of(i, {})) for i in range(3)]
    for state in states:
        state.loss_sum, state.step = before, len(rows)
    trials = [Trial(config_of(i, {})) for i in range(3)]
    monitor = Monitor([t.training(s) for t, s in zip(trials, states)], 100.0)
    monitor.add(torch.tensor(rows))
    monitor.read_all()
    for i, state in enumerate(states):
        total = before
        for row in torch.tensor(rows)[:, i].tolist():
            total += row
        assert state.loss_sum == total and state.loss_steps == len(rows)
        assert state.first_loss == torch.tensor(rows)[0, i].item()


def test_states_keep_their_values_when_slabs_are_exchanged() -> None:
    config = config_of(0, {"optimizer": "adam"})
    states = [fresh(config.changed(variation=i)) for i in range(4)]
    before = [{k: v.clone() for k, v in state_tensors(s).items()} for s in states]
    stack_states(iter(states), n=4)
    places = [s.model.entity.data_ptr() for s in states]
    assert [p - places[0] for p in places] == [i * states[0].model.entity.nbytes for i in range(4)]
    swap_tables(states[1], states[3])
    assert [s.model.entity.data_ptr() for s in states] == [places[i] for i in (0, 3, 2, 1)]
    for state, held in zip(states, before):
        assert all(torch.equal(v, held[k]) for k, v in state_tensors(state).items())


@given(st.integers(1, 8), st.data())
def test_free_indices_are_filled_from_the_end(n: int, data: Any) -> None:
    places = sorted(data.draw(st.sets(st.integers(0, n - 1))))
    row = list(range(n))
    swap_remove(row, places)
    assert sorted(row) == [i for i in range(n) if i not in places]
    assert all(row[i] == i for i in range(len(row)) if i not in places)
