"""The finalists' rounds of real searches: on the full graph, outside the budget, resumed and continued exactly."""

from __future__ import annotations

import itertools
from contextlib import suppress
from dataclasses import replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import pytest
import torch

import grash
from engines.searches import essence, shifts, small_search, state_of
from grash.api.search import Search
from grash.engines.driver import Driver
from grash.report import summary
from grash.report.live import round_cells
from grash.search import ledger, schedule
from grash.search.callbacks import OnChange
from grash.search.ledger import LEDGER_FILE, SearchState, read_ledger
from grash.search.trial import Trial
from grash.training import loop
from grash.training.config import make_config

FINALISTS: dict[str, Any] = {"finalists": 4, "n_trials": 9, "eta": 3}


@pytest.fixture(autouse=True)
def small_graph(monkeypatch: pytest.MonkeyPatch) -> None:
    compare_on_a_small_graph(monkeypatch)
    monkeypatch.setattr(loop, "_REPORT_SECONDS", -1.0)


def compare_on_a_small_graph(patch: pytest.MonkeyPatch) -> None:
    """Compare finalists with few validation triples, and all three of them: their MRRs differ much."""
    patch.setattr(schedule, "MIN_VALID", 10)
    patch.setattr(ledger, "FINALIST_MARGIN", 0.9)
    patch.setattr(ledger, "CLOSE_MARGINS", (0.9, 0.9))


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("whole") / "run"
    with pytest.MonkeyPatch.context() as patch:
        compare_on_a_small_graph(patch)
        small_search(folder, **FINALISTS).run()
    return folder


def test_finalists_train_on_the_full_graph_and_the_winner_continues(whole: Path) -> None:
    state = state_of(whole)
    halving, comparisons = state.rounds[:-3], state.rounds[-3:]
    assert state.sizes == [9, 3, 3, 3, 2] and not halving[-1].plan.whole
    for finalists in comparisons:
        assert finalists.plan.compares_finalists and finalists.plan.whole
        assert finalists.plan.n_train == len(shifts().train)
    assert [len(r.history) for r in halving[-1].results.values()] == [4, 4, 4]
    assert state.spent == pytest.approx(sum(past.cost for past in halving)) and state.spent <= state.budget
    end = comparisons[-1]
    assert state.winner == end.best(1)[0] and end.plan.to_the_end
    assert state.final is not None and state.winner is not None
    if state.continued_by_final(state.winner) is None:
        assert state.final.history[0]["epoch"] < comparisons[1].plan.epochs
    else:  # nothing is left to train
        assert state.final.history == end.results[state.winner].history


def test_the_closest_finalists_continue_to_the_epochs_of_the_last_round(whole: Path) -> None:
    state = state_of(whole)
    last, first, second = state.rounds[-4:-1]
    assert set(second.results) == set(first.survivors or [])
    assert first.plan.epochs == pytest.approx(last.plan.epochs / 4, rel=0.05)
    assert second.plan.epochs == pytest.approx(last.plan.epochs, rel=0.05) and second.plan.continues
    for number, result in second.results.items():
        assert result.positives == second.plan.positives - first.plan.positives
        config = make_config(state.configurations[number].values)
        alone = grash.train(shifts(), config.changed(epochs=second.plan.epochs), device="cpu", threads=1)
        assert result.history[-1]["mrr"] == alone.history[-1]["mrr"]


def test_they_have_threads_of_the_final_training(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[int] = []
    monkeypatch.setattr("grash.engines.local.set_threads", seen.append)
    small_search(tmp_path / "run", **FINALISTS, final_threads=8).run()
    assert set(seen[:-3]) == {1} and seen[-3:] == [4, 4, 8]


def test_the_final_training_is_billed_from_where_the_time_cut_its_comparison_off(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def limited(self: Driver, trial: Trial, n_left: int) -> Trial:
        return replace(trial, seconds_limit=0.0) if trial.keep_best else trial

    monkeypatch.setattr(Driver, "_limited", limited)
    small_search(tmp_path / "run", **FINALISTS, max_epochs=2).run()
    state = state_of(tmp_path / "run")
    second, end = state.rounds[-2:]
    assert state.winner is not None and state.final is not None and state.continued_by_final(state.winner) is end
    assert all(r.out_of_time and r.positives == 0 for r in end.results.values())
    before = state.final.epochs_before
    assert before == end.ended_at(state.winner) == pytest.approx(second.plan.epochs, rel=0.01)  # its last full batch
    assert state.final.positives == round((2 - before) * len(shifts().train))
    late = f"stopped after {before:.3g} of 2 epochs: the time was over"
    assert (tmp_path / "run" / "log.txt").read_text(encoding="utf-8").count(late) == 2


def test_the_winner_is_the_same_without_a_final_training(whole: Path, tmp_path: Path) -> None:
    small_search(tmp_path / "run", **FINALISTS, final_train=False).run()
    state, expected = state_of(tmp_path / "run"), state_of(whole)
    assert state.rounds[-1].plan.to_the_end and state.winner == expected.winner and state.final is None


def test_the_final_model_is_that_of_an_uninterrupted_training(whole: Path) -> None:
    state = state_of(whole)
    assert state.winner is not None
    config = make_config(state.configurations[state.winner].values)
    alone = grash.train(shifts(), config, device="cpu", threads=1)
    assert torch.equal(grash.Model.load(whole, device="cpu").kge.entity, alone.kge.entity)


def test_the_time_left_counts_all_comparisons_before_they_open(whole: Path) -> None:
    events = read_ledger(whole / LEDGER_FILE)
    first, second, end = (past.plan for past in state_of(whole).rounds[-3:])
    early = SearchState.replay(itertools.takewhile(lambda e: e["event"] != "round_closed", events))
    expected = [early.budget / 2, 3 * first.cost, 3 * second.cost, 2 * end.cost]
    assert [summary._cost_left(early, number) for number in (2, 3, 4, 5)] == pytest.approx(expected, rel=0.05)


@pytest.mark.parametrize(
    ("given", "sizes"),
    [({"variant": "graph"}, [9, 3, 3, 3]), ({"guard_rails": True, "max_epochs": 10}, [9, 3, 2])],
)
def test_a_full_last_round_or_full_epochs_are_expected_before_it_opens(
    tmp_path: Path, given: dict[str, Any], sizes: list[int]
) -> None:
    small_search(tmp_path / "run", **{**FINALISTS, **given}).run()
    events, state = read_ledger(tmp_path / "run" / LEDGER_FILE), state_of(tmp_path / "run")
    early = SearchState.replay(itertools.takewhile(lambda e: e["event"] != "round_closed", events))
    assert early.sizes == sizes and len(state.rounds) == len(sizes)
    for past in state.rounds[2:]:
        number = past.plan.number
        expected = sizes[number - 1] * past.plan.cost
        assert summary._cost_left(early, number) == pytest.approx(expected, rel=0.05)
        assert early.trains_to_the_end(number) == past.plan.to_the_end
    assert summary._share_before(early) == 1.0  # the final training has nothing left


def test_status_and_report_show_that_finalists_are_outside_the_budget(whole: Path) -> None:
    rounds = summary.summarize(state_of(whole), datetime.now(timezone.utc))["rounds"]
    assert [round_cells(entry)[-1] == "on top" for entry in rounds] == [False, False, True, True, True]
    page = (whole / "report.html").read_text(encoding="utf-8")
    for name in ("round 3, finalists", "round 4, finalists"):
        assert f"<td>{name}</td><td>3</td><td>outside the budget</td>" in page
    assert "<td>round 5, finalists</td><td>2</td><td>outside the budget</td>" in page
    assert "<td>all of them</td><td>12</td>" in page


def test_the_pace_of_finalists_counts_though_they_are_not_billed(whole: Path) -> None:
    state = state_of(whole)
    last = state.rounds[-1]
    pace = last.seconds / (len(last.results) * last.plan.cost)
    assert summary._seconds_per_cost(state) == pytest.approx(pace)


@pytest.mark.slow
@pytest.mark.parametrize("stop_in", [2, 3, 4, 5])
def test_a_search_stopped_around_the_finalists_resumes_to_the_same_end(
    whole: Path, tmp_path: Path, stop_in: int
) -> None:
    def watch(state: Any, progress: Any, devices: Any) -> None:
        if any(number == stop_in for number, _ in progress):
            raise KeyboardInterrupt

    with suppress(KeyboardInterrupt):
        small_search(tmp_path / "run", **FINALISTS).run(callbacks=[OnChange(watch)])
    assert not state_of(tmp_path / "run").finished
    Search.open(tmp_path / "run", engine="sequential", device="cpu").run()
    assert essence(tmp_path / "run") == essence(whole)


@pytest.mark.slow
def test_workers_find_the_same_finalists(whole: Path, tmp_path: Path) -> None:
    small_search(tmp_path / "run", **FINALISTS, engine="processes", workers=2).run()
    found, expected = essence(tmp_path / "run"), essence(whole)
    assert found["winner"] == expected["winner"] and found["results"] == expected["results"]


def test_the_estimate_of_seconds_counts_the_validations_of_each_round(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("grash.engines.plan.probe_validation", lambda data, config: 1.0)
    monkeypatch.setattr("grash.engines.plan._probe_steps", lambda data, configs: 0.0)
    plan = small_search(tmp_path / "run", **FINALISTS).plan()
    assert [(r.n_trials, r.seconds) for r in plan.rounds] == [
        (9, 9 * 2.0), (3, 3 * 4.0), (3, 3 * 1.0), (3, 3 * 4.0), (2, 2 * 10.0)
    ]  # fmt: skip
    assert plan.final is not None and plan.final.seconds == 0.0  # the winner is trained already


def test_finalists_whose_states_do_not_fit_on_the_disk_start_again(
    whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("grash.engines.local.free_disk", lambda folder: 0)
    small_search(tmp_path / "run", **FINALISTS).run()
    state, saved = state_of(tmp_path / "run"), state_of(whole)
    assert state.finished and state.winner == saved.winner and state.final is not None
    for past in state.rounds[-2:]:
        assert past.plan.continues and {r.epochs_before for r in past.results.values()} == {0.0}
    for number, result in state.rounds[-2].results.items():  # a state would have changed nothing but the cost
        assert result.mrr == saved.rounds[-2].results[number].mrr
    assert state.final.positives == round(4 * len(shifts().train))
    assert "State of configuration" in caplog.text and "only 0 B is free. If its training is continued" in caplog.text


def test_the_plan_reserves_no_disk_for_finalists_that_are_not_saved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    saved = small_search(tmp_path / "run", **FINALISTS).plan(probe=False)
    assert [r.disk_bytes > 0 for r in saved.rounds] == [False, False, True, True, True]
    monkeypatch.setattr(ledger, "KEPT_BYTES", 1)
    assert [r.disk_bytes for r in small_search(tmp_path / "run", **FINALISTS).plan(probe=False).rounds] == [0, 0, 0]


def test_an_outside_trainer_is_asked_for_no_finalists(tmp_path: Path) -> None:
    """Their comparison needs validations during the last round, which `tell` does not take."""
    search = small_search(tmp_path / "run", **FINALISTS)
    while (trial := search.ask()) is not None:
        assert trial.config.valid_every == trial.config.epochs / 2
        search.tell(trial, 0.1 + 0.01 * trial.number)
    search.close()
    state = search.result.state
    assert state.sizes == [9, 3] and state.finished and state.spent <= state.budget
