"""Choosing settings for a time, without training: laws over graphs, machines and times."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from grash.errors import ConfigError
from grash.search.settings import SearchSettings, make_settings
from grash.search.time_limit import (
    LEVELS,
    Choice,
    GraphSizes,
    Machine,
    Speed,
    TimeLimit,
    choose_settings,
    estimate,
    measured_models,
)
from grash.training.config import MAX_SEED

SCORES = {"complex": [200.0, 4068.0, 1000.0, 4068.0], "rotate": [100.0, 2000.0], "transe": [50.0, 2000.0]}
GIVEN = {"models": ("rotate",), "dim": 48, "max_epochs": 7.0, "n_trials": 12, "eta": 2}


def sizes(n_entities: int = 2034, n_train: int = 32_888, least: float = 1.0) -> GraphSizes:
    shares = tuple((part / 16, min(1.0, 1.3 * part / 16)) for part in range(1, 17))
    return GraphSizes(n_entities, n_train, 1827, 1828, least, shares)


def machine(slowness: float = 1.0, **fields: Any) -> Machine:
    speed = Speed(1e-6, 1e-8, 5e-11, 5e-12).scaled(train=slowness, rank=slowness)
    return Machine("2 CPU cores", dict.fromkeys(SCORES, speed), **fields)


graph_sizes = st.builds(
    sizes, st.integers(10, 10**7), st.integers(100, 10**8), st.sampled_from([0.001, 0.01, 0.1, 0.5, 1.0])
)
machines = st.builds(
    machine, st.floats(0.01, 100), workers=st.integers(1, 64), start_seconds=st.floats(0, 10),
    final_factor=st.floats(0.1, 20),
)  # fmt: skip
seconds = st.floats(1, 1e6)
fixed = st.dictionaries(st.sampled_from(sorted(GIVEN)), st.none(), max_size=5).map(lambda d: {k: GIVEN[k] for k in d})


def choose(time: float, graph: GraphSizes, on: list[Machine], given: dict[str, Any]) -> Choice | None:
    try:
        return choose_settings(time, graph, on, SCORES, given, used=0.05 * time)
    except ConfigError:
        return None


@settings(max_examples=150)
@given(seconds, graph_sizes, machines, fixed)
def test_never_plans_more_than_the_time(time: float, graph: GraphSizes, on: Machine, given: dict[str, Any]) -> None:
    choice = choose(time, graph, [on], given)
    if choice is not None:
        assert choice.planned <= 0.9 * time * (1 + 1e-9)
        assert choice.planned == pytest.approx(choice.used + sum(choice.seconds.values()))
        assert all(value >= 0 for value in choice.seconds.values())


@settings(max_examples=100)
@given(seconds, st.floats(1, 50), graph_sizes, st.lists(machines, min_size=1, max_size=2), fixed)
def test_more_time_is_never_a_less_thorough_search(
    time: float, factor: float, graph: GraphSizes, on: list[Machine], given: dict[str, Any]
) -> None:
    less, more = choose(time, graph, on, given), choose(factor * time, graph, on, given)
    if less is not None:
        assert more is not None
        assert (more.level, more.settings["max_epochs"]) >= (less.level, less.settings["max_epochs"])


@settings(max_examples=100)
@given(seconds, st.floats(1, 50), graph_sizes, machines)
def test_a_faster_machine_never_has_a_less_thorough_search(
    time: float, factor: float, graph: GraphSizes, on: Machine
) -> None:
    faster = Machine(**{**vars(on), "speeds": {m: s.scaled(train=1 / factor) for m, s in on.speeds.items()}})
    slow, fast = choose(time, graph, [on], {}), choose(time, graph, [faster], {})
    if slow is not None:
        assert fast is not None
        assert (fast.level, fast.settings["max_epochs"]) >= (slow.level, slow.settings["max_epochs"])


@settings(max_examples=100)
@given(seconds, graph_sizes, machines, fixed)
def test_what_is_given_is_kept_and_the_rest_is_valid(
    time: float, graph: GraphSizes, on: Machine, given: dict[str, Any]
) -> None:
    choice = choose(time, graph, [on], given)
    if choice is not None:
        assert {name: choice.settings[name] for name in given} == given
        assert make_settings({**choice.settings, "time": time}).time == time
        assert not any(name in text for text in choice.cut for name in ("dim",) if name in given)
        assert all(line and "\n" not in line for line in choice.sentences())


def test_longer_times_search_more_on_a_graph_of_2_034_entities() -> None:
    chosen = [choose_settings(t, sizes(), [machine()], SCORES).settings for t in (3, 20, 60, 300, 36000)]
    trials = [s["n_trials"] for s in chosen]
    assert trials == sorted(trials) and trials[0] == 1 and trials[-1] == LEVELS[-1].n_trials
    assert [s["dim"] for s in chosen] == sorted(s["dim"] for s in chosen)


@pytest.mark.parametrize("time", [3, 20, 300, 36000])
def test_models_that_are_too_slow_are_in_no_level_and_change_nothing_else(time: float) -> None:
    usual = choose_settings(time, sizes(), [machine()], SCORES)
    kept = tuple(model for model in usual.settings["models"] if model != "transe")
    without = choose_settings(time, sizes(), [machine()], SCORES, too_slow={"transe"})
    assert without.settings["models"] == kept and without.given == ()
    if usual.settings["models"] == ("complex",):
        assert without == usual
        one = choose_settings(time, sizes(), [machine()], SCORES, too_slow={"complex"})
        assert one.settings["models"] == ("rotate",)


def test_a_short_time_says_what_is_cut() -> None:
    choice = choose_settings(8, sizes(), [machine(slowness=20)], SCORES)
    text = "\n".join(choice.sentences())
    assert "instead of 128" in text and "epochs instead of 100" in text and "all rounds" in text
    assert choice.settings["n_trials"] == 1
    long = choose_settings(1e6, sizes(), [machine()], SCORES)
    assert not long.cut and not any("cut" in line for line in long.sentences())


def test_what_was_measured_is_said_as_seconds_of_this_graph() -> None:
    fast, slow = (choose_settings(600, sizes(), [machine(slowness)], SCORES) for slowness in (1.0, 20.0))
    dim = fast.settings["dim"]
    speed, scores = fast.machine.speeds["complex"], SCORES["complex"][0]
    assert fast.epoch == pytest.approx(32_888 * speed.train(dim, scores))
    assert fast.validation == pytest.approx(speed.validate(sizes().n_valid, 2034, dim))
    assert f"for an epoch of complex with dim {dim} on the full graph" in fast.sentences()[1]
    assert slow.sentences()[-2].startswith("planned: ") and "late" not in " ".join(slow.sentences())


def test_the_way_to_run_trials_that_allows_more_is_chosen() -> None:
    several = machine(workers=2, start_seconds=4.0)
    in_turn = machine(engine="sequential")
    assert choose_settings(9, sizes(), [in_turn, several], SCORES).machine.engine == "sequential"
    assert choose_settings(120, sizes(), [in_turn, several], SCORES).machine.workers == 2


def test_a_time_that_is_too_short_names_the_time_that_is_needed() -> None:
    with pytest.raises(ConfigError, match=r"time=1 \(seconds\) is too short: .* Give .* or more\."):
        choose_settings(1, sizes(n_train=10**8), [machine()], SCORES)
    with pytest.raises(ConfigError, match=r"dim=4096, max_epochs=500.* leave out some of these settings"):
        choose_settings(10, sizes(), [machine()], SCORES, {"dim": 4096, "max_epochs": 500.0})


def test_a_start_that_takes_longer_than_the_time_leaves_the_smallest_search_and_says_that_it_is_late() -> None:
    choice = choose_settings(30, sizes(), [machine()], SCORES, used=45.0)
    assert "late: 30 s is too short, the smallest search ends after about" in "\n".join(choice.sentences())
    assert not any(line.startswith("planned") for line in choice.sentences())
    assert choice.level == 0 and choice.settings["n_trials"] == 1
    assert 45 < choice.planned < choice.limit == choice.to_json()["limit"] < 60
    assert any(line.startswith("late: ") for line in choice.sentences())
    in_time = choose_settings(30, sizes(), [machine()], SCORES, used=5.0)
    assert in_time.limit == 30 and not any(line.startswith("late: ") for line in in_time.sentences())


def test_compiling_is_not_part_of_the_time(monkeypatch: pytest.MonkeyPatch) -> None:
    compiled = 3.0
    monkeypatch.setattr("grash.search.time_limit.compile_seconds", lambda: compiled)
    limit = TimeLimit.of("30s", began=100.0)
    compiled = 20.0
    assert limit.without_compiling() == TimeLimit(30.0, 117.0, 20.0)
    text = choose_settings(30, sizes(), [machine()], SCORES, used=5.0, compiled=17.0).sentences()[0]
    assert "Compiling took 17 s more" in text


def test_configurations_of_the_user_all_enter_the_first_round() -> None:
    assert choose_settings(20, sizes(), [machine()], SCORES, n_initial=6).settings["n_trials"] >= 6


def test_a_model_that_does_not_fit_into_memory_is_not_chosen() -> None:
    assert choose_settings(1e6, sizes(), [machine(max_dim=128)], SCORES).settings["dim"] == 128


def test_without_final_training_the_rounds_have_all_the_time() -> None:
    choice = choose_settings(60, sizes(), [machine()], SCORES, final_train=False)
    assert "final training" not in choice.seconds and "test" not in choice.seconds


def test_estimates_grow_with_epochs_and_dimension() -> None:
    small = {"models": ("complex",), "dim": 64, "n_trials": 16, "eta": 4, "budget": 3.0, "max_epochs": 20.0}
    for name, value in (("dim", 128), ("max_epochs", 40.0), ("budget", 4.0)):
        less, more = (estimate(s, sizes(), machine(), SCORES) for s in (small, {**small, name: value}))
        assert sum(more.values()) > sum(less.values())


def test_calibration_has_its_time_after_the_test() -> None:
    chosen = {"models": ("complex",), "dim": 64, "n_trials": 16, "eta": 4, "budget": 3.0, "max_epochs": 20.0}
    for graph in (sizes(), replace(sizes(), n_test=0)):
        parts = estimate(chosen, graph, machine(slowness=1e4), SCORES)
        speed = machine(slowness=1e4).speeds["complex"]
        assert parts["test"] > speed.validate(graph.n_test + graph.n_valid + 250, graph.n_entities, 64) > 10


def test_other_models_are_measured_only_in_long_searches() -> None:
    assert measured_models(300, {}) == ("complex",)
    assert measured_models(1200, {}) == ("complex", "rotate", "transe")
    assert measured_models(1200, {"models": ("cp",)}) == ("cp",)


def test_machines_survive_json() -> None:
    choice = choose_settings(60, sizes(), [machine(workers=2)], SCORES)
    assert Machine.from_json(choice.to_json()["machine"]) == choice.machine


def test_times_are_seconds_or_have_a_unit() -> None:
    assert [TimeLimit.of(t, 0.0).seconds for t in (90, "90", "90s", "1.5m", " 2 H ")] == [90, 90, 90, 90, 7200]
    assert SearchSettings(time=None).time is None and make_settings({"time": "10m", "seed": MAX_SEED}).time == 600


@pytest.mark.parametrize(
    "given", ["", "10x", "ten", "-5m", "0", 0, -1, float("nan"), float("inf"), True, "1e9h", "5 m 3"]
)
def test_what_is_no_time_is_an_error_with_an_example(given: Any) -> None:
    with pytest.raises(ConfigError, match=r"is not a duration: give seconds, or .* 90s, 10m or 2h"):
        TimeLimit.of(given, 0.0)
