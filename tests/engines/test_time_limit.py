"""A search within a time behind the real driver and ledger, with an engine that looks scores up and moves the clock."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from grash.engines.driver import Driver
from grash.kernels.device import count_compiling
from grash.search import time_limit
from grash.search.ledger import LEDGER_FILE, SearchState, encode, read_ledger
from grash.search.run_folder import SEARCH_FILE, RunFolder
from grash.search.settings import make_settings
from grash.search.time_limit import Choice, GraphSizes, Machine, Speed, TimeLimit, choose_settings, final_seconds
from grash.search.trial import Trial, TrialResult
from table_engine import SPACE, NumberGraphs, TableEngine, essence

SPEED = Speed(2e-6, 1e-9, 1e-10, 1e-11)


class Clock:
    """A time that only the engine moves."""

    def __init__(self, now: float = 1000.0) -> None:
        self.now = now

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


class TimedTable(TableEngine):
    """Trials take `slowness` times the measured seconds, and end at their limit like real ones.

    Trainings to the end then have a score, and their history has the epoch that they reached.
    """

    def __init__(
        self, *args: Any, clock: Clock, slowness: float, dies_after: int | None = None, **options: Any
    ) -> None:
        super().__init__(*args, **options)
        self.clock, self.slowness, self.dies_after = clock, slowness, dies_after

    def _result(self, trial: Trial) -> TrialResult:
        if self.dies_after is not None and len(self.ran) > self.dies_after:
            raise KeyboardInterrupt
        n_train = self.graphs.shape(trial.fractions or (1.0,), trial.isolated).n_train
        positives = (trial.config["epochs"] - trial.epochs_before) * n_train
        scores = trial.config["negatives_head"] + trial.config["negatives_tail"] + 2
        per_positive = self.slowness * SPEED.train(trial.config["dim"], scores)
        seconds = positives * per_positive
        limit = trial.seconds_limit
        assert limit is not None
        late = seconds > limit
        self.clock.now += min(seconds, limit) if late else seconds
        if late and not trial.in_full:
            return trial.result("timeout", message="The time for the rounds was over.", seconds=limit)
        result = replace(super()._result(trial), seconds=min(seconds, limit) if late else seconds)
        if not trial.in_full:
            return result
        reached = trial.epochs_before + result.seconds / per_positive / n_train
        history = [{"epoch": reached, "mrr": result.mrr}]
        return replace(result, history=history, out_of_time=late and not trial.final)


def choose(seconds: float, n_train: int = 100_000, *, final_train: bool = True, **given: Any) -> Choice:
    shares = tuple((part / 16, part / 16) for part in range(1, 17))
    sizes = GraphSizes(20_000, n_train, 5000, 5000, 0.1, shares)
    machine = Machine("2 CPU cores", {"complex": SPEED})
    return choose_settings(seconds, sizes, [machine], {"complex": [600.0]}, given, used=1.0, final_train=final_train)


def timed_search(
    path: Path, choice: Choice, slowness: float, *, clock: Clock, more: float | None = None, final_train: bool = True,
    **engine: Any,
) -> tuple[SearchState, TimedTable]:  # fmt: skip
    """Begin a search within a time, or resume it; `more` replaces the time that is left.

    Scores are so close that there are several finalists.
    """
    engine = {"score": lambda r, n: 0.5 - 0.001 * n, **engine}
    chosen = make_settings({
        "space": SPACE, "proposals": "random", **choice.settings, "time": choice.time, "final_train": final_train,
    })  # fmt: skip
    graphs = NumberGraphs(chosen)
    with RunFolder(path) as folder, mock.patch("grash.engines.driver.time", clock):
        begun = (path / LEDGER_FILE).is_file()
        (path / SEARCH_FILE).touch()
        table = TimedTable(graphs, path, clock=clock, slowness=slowness, **engine)
        limit = (
            TimeLimit.of(choice.time, clock.now - choice.used) if not begun else more and TimeLimit.of(more, clock.now)
        )
        driver = Driver(folder, graphs, table, choice=choice, limit=limit or None)  # type: ignore[arg-type]
        return driver.run(), table


@pytest.mark.slow
@settings(max_examples=40, deadline=None)
@given(st.floats(4, 600), st.floats(0.2, 8), st.integers(1, 3))
def test_a_search_ends_in_time_however_wrong_the_measurement_was(
    tmp_path_factory: pytest.TempPathFactory, seconds: float, slowness: float, workers: int
) -> None:
    path, clock = tmp_path_factory.mktemp("timed"), Clock()
    choice = choose(seconds)
    state, _ = timed_search(path, choice, slowness, clock=clock, max_running=workers)
    assert state.finished and not state.failed and state.final is not None
    assert clock.now - 1000.0 + choice.used <= 1.1 * seconds
    fine = make_settings({**choice.settings, "space": SPACE, "proposals": "random"})
    assert state.spent <= fine.budget + 1e-9
    assert essence(SearchState.replay(read_ledger(path / LEDGER_FILE))) == essence(state)


def test_compiling_while_the_search_runs_is_not_part_of_the_time(tmp_path: Path) -> None:
    class Compiling(TimedTable):
        def _result(self, trial: Trial) -> TrialResult:
            self.clock.now += 7.0  # e.g. the first calibration after an installation
            count_compiling(7.0)
            return super()._result(trial)

    clock, plain = Clock(), Clock()
    with mock.patch(f"{__name__}.TimedTable", Compiling):
        compiled, table = timed_search(tmp_path / "a", choose(60.0), 1.0, clock=clock)
    expected, _ = timed_search(tmp_path / "b", choose(60.0), 1.0, clock=plain)
    assert compiled.changes == expected.changes and compiled.seconds == pytest.approx(expected.seconds, abs=0.01)
    assert clock.now - plain.now == pytest.approx(7.0 * len(table.ran))


def test_a_search_that_is_as_fast_as_measured_runs_as_planned(tmp_path: Path) -> None:
    choice = choose(300.0)
    state, table = timed_search(tmp_path / "a", choice, 1.0, clock=Clock())
    assert len(state.rounds) == len(state.sizes) and not any("in time" in text for text in state.changes)
    assert len([r for r in table.ran if r[0] == 1]) == choice.settings["n_trials"]


def test_a_fast_machine_trains_the_winner_longer_unless_epochs_are_given(tmp_path: Path) -> None:
    choice = choose(60.0)
    state, _ = timed_search(tmp_path / "a", choice, 0.2, clock=Clock())
    assert state.final_epochs > choice.settings["max_epochs"] and "because time is left" in state.changes[-1]
    state, _ = timed_search(tmp_path / "b", choose(60.0, max_epochs=20.0), 0.2, clock=Clock())
    assert state.final_epochs == 20.0


def test_a_slow_machine_cuts_finalists_rounds_and_epochs_and_says_so(tmp_path: Path) -> None:
    said = {
        slowness: " ".join(timed_search(tmp_path / str(slowness), choose(300.0), slowness, clock=Clock())[0].changes)
        for slowness in (1.5, 2.0, 3.0, 6.0)
    }
    assert "finalists are not compared" in said[1.5] + said[2.0] + said[3.0]
    assert "rounds end after round 1" in said[6.0] and "expected until the time is over" in said[6.0]


@pytest.mark.parametrize("slowness", [1.2, 1.5, 2.0, 2.5, 3.0, 4.0])
def test_a_round_that_is_cut_still_trains_longer_than_the_one_before(tmp_path: Path, slowness: float) -> None:
    state, _ = timed_search(tmp_path / "a", choose(300.0), slowness, clock=Clock())
    positives = [past.plan.positives for past in state.rounds if not past.plan.compares_finalists]
    assert all(later >= 1.2 * earlier for earlier, later in zip(positives, positives[1:]))


@pytest.mark.parametrize("slowness", [1.1, 1.3, 1.5])
def test_no_finalist_is_late_on_a_machine_whose_pace_is_known(tmp_path: Path, slowness: float) -> None:
    state, _ = timed_search(tmp_path / "a", choose(300.0), slowness, clock=Clock())
    assert all(r.status == "ok" for past in state.rounds for r in past.results.values())


def test_no_comparison_opens_after_the_time_for_rounds(tmp_path: Path) -> None:
    state, _ = timed_search(tmp_path / "a", choose(300.0, max_epochs=20.0), 1.0, clock=Clock())
    del state.rounds[-2:]  # that trains to the end, and the comparison before
    state.sizes = state.planned_sizes = state.sizes[:-1]
    fine, action = make_settings(state.settings), {"event": "round_opened"}
    reserved = -time_limit.rounds_end(state, fine, 0.0)
    full = fine.max_epochs * time_limit._final_epoch_seconds(state, None)  # type: ignore[operator]
    assert full < reserved < 1.2 * full < 0.3 * state.time_given  # no more than the final training needs
    for left, sizes in ((0.5 * state.time_given, None), (0.99 * reserved, state.sizes[:-1])):
        change = time_limit.plan_change(state, fine, NumberGraphs(fine), action, left)
        assert (change and change["sizes"]) == sizes


@pytest.mark.parametrize(("seconds", "slowness"), [(60.0, 1.0), (60.0, 1.1), (300.0, 1.05), (600.0, 1.0)])
def test_finalists_are_trained_to_the_end_in_the_time_of_the_final_training(
    tmp_path: Path, seconds: float, slowness: float
) -> None:
    clock, choice = Clock(), choose(seconds)
    state, _ = timed_search(tmp_path / "a", choice, slowness, clock=clock)
    end, last = state.rounds[-1], state.final
    assert end.plan.to_the_end and not any(r.out_of_time for r in end.results.values()) and last is not None
    assert last.history[-1]["epoch"] >= choice.settings["max_epochs"]
    began = clock.now - 1000.0 + choice.used - last.seconds
    assert began > 0.7 * seconds and clock.now - 1000.0 + choice.used <= 1.01 * seconds


def test_finalists_that_become_slower_share_the_time_that_is_left(tmp_path: Path) -> None:
    class Slowing(TimedTable):
        def _result(self, trial: Trial) -> TrialResult:
            self.slowness = 4.0 if trial.in_full else 1.0
            return super()._result(trial)

    clock, choice = Clock(), choose(300.0)
    with mock.patch(f"{__name__}.TimedTable", Slowing):
        state, _ = timed_search(tmp_path / "a", choice, 1.0, clock=clock)
    end = state.rounds[-1]
    reached = [result.history[-1]["epoch"] for result in end.results.values()]
    assert end.plan.to_the_end and all(r.out_of_time for r in end.results.values()) and state.final is not None
    assert reached[0] == pytest.approx(reached[1], rel=0.05)
    assert state.final.history[-1]["epoch"] >= reached[0] > state.rounds[-2].plan.epochs
    assert clock.now - 1000.0 + choice.used <= 1.01 * 300


def test_rounds_that_are_late_leave_the_final_training_at_most_30_percent_of_the_time(tmp_path: Path) -> None:
    state, _ = timed_search(tmp_path / "a", choose(300.0), 1.0, clock=Clock())
    fine = make_settings(state.settings)
    assert 300.0 - time_limit.rounds_end(state, fine, 300.0) < 0.3 * 300
    longer = make_settings({**state.settings, "max_epochs": 10 * fine.max_epochs})
    assert time_limit.rounds_end(state, longer, 300.0) == pytest.approx(0.7 * 300)
    del state.rounds[:]  # nothing is known of the final training
    assert time_limit.rounds_end(state, fine, 300.0) == pytest.approx(0.7 * 300)


@pytest.mark.parametrize("seconds", [300.0, 600.0])
def test_comparisons_that_were_cut_are_planned_again_if_they_fit_later(tmp_path: Path, seconds: float) -> None:
    state, _ = timed_search(tmp_path / "a", choose(seconds), 1.2, clock=Clock())
    assert state.rounds[-1].plan.to_the_end and state.sizes == state.planned_sizes
    cut, again = (text for text in state.changes if text.startswith("finalists"))
    assert cut.endswith("to end in time")
    assert again == "finalists are trained to the end on the full graph after all: time is left"


def test_when_no_trial_of_the_first_round_ends_the_first_configuration_is_trained(tmp_path: Path) -> None:
    state, _ = timed_search(tmp_path / "a", choose(300.0), 1000.0, clock=Clock())
    assert state.winner == 0 and state.final is not None and "wins untested" in state.changes[0]


@pytest.mark.parametrize("slowness", [0.3, 1.0, 3.0])
def test_a_killed_search_resumes_with_the_same_decisions(
    tmp_path: Path, slowness: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(RunFolder, "tidy", lambda self, state: None)  # finalists continue from their saved states
    choice = choose(120.0)
    whole, _ = timed_search(tmp_path / "whole", choice, slowness, clock=Clock())
    events = read_ledger(tmp_path / "whole" / LEDGER_FILE)
    for n in range(2, len(events), 7):
        path, total = tmp_path / str(n), 0
        shutil.copytree(tmp_path / "whole", path, ignore=shutil.ignore_patterns(LEDGER_FILE))
        with (path / LEDGER_FILE).open("wb") as file:
            for event in events[:n]:
                line, total = encode({k: v for k, v in event.items() if k != "sum"}, total)
                file.write(line)
        again, _ = timed_search(path, choice, slowness, clock=Clock(5000.0))
        assert essence(again) == essence(whole) and again.changes == whole.changes
        assert again.final_epochs == whole.final_epochs
        shutil.rmtree(path)


def test_a_search_whose_time_is_over_ends_with_a_tenth_of_it_or_with_what_is_given(tmp_path: Path) -> None:
    choice, clock = choose(120.0), Clock()
    with pytest.raises(KeyboardInterrupt):
        timed_search(tmp_path / "a", choice, 1.0, clock=clock, dies_after=3)
    shutil.copytree(tmp_path / "a", tmp_path / "b")
    for name, more, least, most in (("a", None, 0.0, 20.0), ("b", 500.0, 300.0, 510.0)):
        stopped = {"event": "search_stopped", "reason": "interrupted", "elapsed": 150.0}
        line, _ = encode(stopped, _last_sum(tmp_path / name))
        with (tmp_path / name / LEDGER_FILE).open("ab") as file:
            file.write(line)
        clock = Clock(0.0)
        state, _ = timed_search(tmp_path / name, choice, 1.0, clock=clock, more=more)
        assert state.finished and state.final is not None and least <= clock.now <= most


def test_a_resumed_search_with_less_time_still_runs_its_rounds(tmp_path: Path) -> None:
    choice, clock = choose(120.0), Clock()
    with pytest.raises(KeyboardInterrupt):
        timed_search(tmp_path / "a", choice, 1.0, clock=clock, dies_after=3)
    clock = Clock(0.0)
    state, _ = timed_search(tmp_path / "a", choice, 1.0, clock=clock, more=0.25 * choice.time)
    assert [r.status for r in state.rounds[0].results.values()].count("ok") > 3
    assert state.finished and state.final is not None and clock.now <= 1.1 * 0.25 * choice.time
    assert state.time_given == SearchState.replay(read_ledger(tmp_path / "a" / LEDGER_FILE)).time_given == 30.0


def test_the_final_training_has_the_epochs_of_the_comparison_that_it_continues(tmp_path: Path) -> None:
    state, _ = timed_search(tmp_path / "a", choose(120.0), 0.9, clock=Clock())
    del state.rounds[-1]  # that trains to the end
    last, winner = state.rounds[-1].plan, state.winner
    assert last.compares_finalists and last.continues and winner is not None
    few = final_seconds(state, 10.0) / time_limit._final_epoch_seconds(state, winner)  # type: ignore[operator]
    change = time_limit._final_change(state, make_settings(state.settings), 10.0)
    assert change["why"] and few + last.epochs < state.settings["max_epochs"]
    assert f"about {time_limit._round_down(few + last.epochs):g} expected" in change["why"][0]
    values = state.configurations[winner].values
    values["schedule"] = "cosine"  # its final training starts again
    change = time_limit._final_change(state, make_settings(state.settings), 10.0)
    assert change["final_epochs"] == time_limit._round_down(few)


def test_a_winner_that_the_end_of_the_time_cut_off_is_trained_further(tmp_path: Path) -> None:
    state, _ = timed_search(tmp_path / "a", choose(300.0, n_trials=8), 1.0, clock=Clock())
    end, winner, fine = state.rounds[-1], state.winner, make_settings(state.settings)
    assert end.plan.to_the_end and winner is not None
    history = [{"epoch": 0.8 * fine.max_epochs, "mrr": end.results[winner].mrr}]
    end.results[winner] = replace(end.results[winner], history=history)
    assert time_limit._final_change(state, fine, 5.0) == {"final_epochs": fine.max_epochs, "why": []}  # by itself
    end.results[winner] = replace(end.results[winner], out_of_time=True)
    few = final_seconds(state, 5.0) / time_limit._final_epoch_seconds(state, winner)  # type: ignore[operator]
    [why] = time_limit._final_change(state, fine, 5.0)["why"]
    assert f"about {time_limit._round_down(few + 0.8 * fine.max_epochs):g} expected" in why


def test_a_winner_that_was_better_before_starts_again_only_if_there_is_time(tmp_path: Path) -> None:
    state, _ = timed_search(tmp_path / "a", choose(300.0, n_trials=8), 1.0, clock=Clock())
    before, end, winner, fine = state.rounds[-2], state.rounds[-1], state.winner, make_settings(state.settings)
    assert end.plan.to_the_end and winner is not None and state.continued_by_final(winner) is end
    before.results[winner] = replace(before.results[winner], mrr=0.9)
    assert state.continued_by_final(winner) is None
    assert "final_continues" not in time_limit._final_change(state, fine, 300.0)
    change = time_limit._final_change(state, fine, 5.0)
    assert change["final_epochs"] == fine.max_epochs and "too short to start again" in change["why"][0]
    state.apply({"event": "plan_changed", **change})
    assert state.continued_by_final(winner) is end


def test_a_finalist_whose_learning_rate_has_a_fixed_length_is_trained_from_the_beginning(tmp_path: Path) -> None:
    state, _ = timed_search(tmp_path / "a", choose(300.0, n_trials=8), 1.0, clock=Clock())
    del state.rounds[-1]  # that trains to the end
    fine = make_settings(state.settings)
    continued = time_limit._rest_of_rounds(state, fine, NumberGraphs(fine), state.sizes, 1.0)
    for configuration in state.configurations.values():
        configuration.values["schedule"] = "cosine"
    again = time_limit._rest_of_rounds(state, fine, NumberGraphs(fine), state.sizes, 1.0)
    assert again > 1.5 * continued


def test_budgets_that_were_cut_stay_cut_at_the_next_change(tmp_path: Path) -> None:
    state, _ = timed_search(tmp_path / "a", choose(300.0), 1.0, clock=Clock())
    fine, action = make_settings(state.settings), {"event": "round_opened"}
    graphs, whole = NumberGraphs(fine), list(state.sizes)
    del state.rounds[1:]
    before = time_limit._rest_of_rounds(state, fine, graphs, whole[:3], 1.0)
    state.apply({"event": "plan_changed", "round": 2, "share": 0.5, "why": []})
    state.changed_after = 0
    assert time_limit._rest_of_rounds(state, fine, graphs, whole[:3], 1.0) == pytest.approx(0.5 * before, rel=0.1)
    lefts = (left for left in range(300, 90, -1) if time_limit.plan_change(state, fine, graphs, action, left))
    change = time_limit.plan_change(state, fine, graphs, action, next(lefts))
    assert (
        change is not None and change["share"] == 0.5 and len(change["why"]) == 1 and "budget" not in change["why"][0]
    )
    state.apply({"event": "plan_changed", **change})
    assert state.shares[2] == state.shares[3] == 0.5


def test_the_rest_of_the_rounds_counts_the_validations_of_each_comparison(tmp_path: Path) -> None:
    state, _ = timed_search(tmp_path / "a", choose(300.0, n_trials=8), 1.0, clock=Clock())
    assert state.sizes == [8, 2, 2, 2, 2]
    del state.rounds[1:]
    speed = {"positive": 0.0, "per_dim": 0.0, "per_score": 0.0, "rank": 1e-9}  # all seconds are validations
    machine = {**state.time_plan["machine"], "speeds": {"complex": speed}, "trial_seconds": 0.0}
    state.time_plan = {**state.time_plan, "machine": machine}
    fine = make_settings(state.settings)
    halving, once, twice, to_the_end = (
        time_limit._rest_of_rounds(state, fine, NumberGraphs(fine), state.sizes[:n], 1.0) for n in (2, 3, 4, 5)
    )
    assert twice - once == pytest.approx(4 * (once - halving)) and halving > 0
    assert to_the_end - twice == pytest.approx(10 * (once - halving))


def test_finalists_that_are_trained_to_the_end_share_the_pace_of_the_final_training(tmp_path: Path) -> None:
    state, _ = timed_search(tmp_path / "a", choose(300.0, n_trials=8), 1.0, clock=Clock())
    del state.rounds[-1]
    fine = make_settings(state.settings)

    def seconds(factor: float, workers: int) -> float:
        machine = {**state.time_plan["machine"], "final_factor": factor, "workers": workers}
        state.time_plan = {**state.time_plan, "machine": machine}
        return time_limit._rest_of_rounds(state, fine, NumberGraphs(fine), state.sizes, 1.0)

    one = seconds(1.0, 2)  # each has a core
    assert seconds(1.0, 1) == pytest.approx(2 * one)  # in turn
    assert seconds(0.3, 2) == pytest.approx(0.6 * one)  # many cores: each has half of them
    assert seconds(0.9, 2) == pytest.approx(one)
    assert seconds(3.0, 1) == pytest.approx(3 * one)  # a GPU on which a stack is faster than one alone


def test_without_final_training_late_rounds_have_all_the_time(tmp_path: Path) -> None:
    choice, clock = choose(60.0, final_train=False, n_trials=8), Clock()
    state, _ = timed_search(tmp_path / "a", choice, 1.3, clock=clock, final_train=False)
    assert {r.status for past in state.rounds for r in past.results.values()} == {"ok"}
    assert 0.7 * 60 < clock.now - 1000.0 + choice.used <= 60


def _last_sum(path: Path) -> int:
    last = (path / LEDGER_FILE).read_bytes().splitlines()[-1]
    return int(last[-10:-2], 16)
