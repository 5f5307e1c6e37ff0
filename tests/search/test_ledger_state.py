"""The state of a search as a fold over its events: what runs, what counts, what a restart forgets."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import settings as examples
from hypothesis import strategies as st

from grash.search.ledger import LEDGER_FILE, SearchState, read_ledger
from grash.search.trial import MACHINE_FAULTS, Configuration, Round, Trial, TrialResult
from table_engine import NumberGraphs, decide, essence, quick_settings, run_search


def plan(number: int) -> dict[str, Any]:
    settings = quick_settings(n_trials=4, eta=2, guard_rails=False)
    return decide(settings, NumberGraphs(settings)).rounds[number - 1].plan.to_json()


def at(*events: dict[str, Any], max_retries: int = 1) -> SearchState:
    """A search of four configurations after these events."""
    settings = {"max_retries": max_retries}
    begin = {
        "event": "search_started",
        "settings": settings,
        "dataset": {},
        "sizes": [4, 2],
        "budget": 2.0,
        "at": "now",
    }
    made = [Configuration(i, {}, "table").to_json() for i in range(4)]
    return SearchState.replay([begin, {"event": "configurations_proposed", "configurations": made}, *events])


def started(number: int, *, round_number: int = 1) -> dict[str, Any]:
    return {"event": "trial_started", "round": round_number, "number": number, "attempt": 1, "device": "cpu"}


def ended(number: int, status: Any = "ok", mrr: float | None = 0.5, *, round_number: int = 1) -> dict[str, Any]:
    result = TrialResult(round_number, number, 1, status, mrr=mrr if status == "ok" else None, cost=0.25, seconds=2.0)
    return {"event": "trial_ended", "result": result.to_json()}


OPEN = {"event": "round_opened", "plan": plan(1)}


def test_the_first_line_says_what_the_search_is() -> None:
    state = at()
    assert (state.sizes, state.planned_trials, state.budget, state.started_at) == ([4, 2], 4, 2.0, "now")
    assert state.max_retries == 1 and sorted(state.configurations) == [0, 1, 2, 3]


def test_a_trial_runs_from_its_start_to_its_end() -> None:
    state = at(OPEN, started(2), started(3), ended(2))
    assert list(state.rounds[0].running) == [3] and list(state.rounds[0].results) == [2]
    assert state.rounds[0].cost == state.spent == 0.25 and state.rounds[0].seconds == 2.0


@pytest.mark.parametrize("event", [{"event": "search_resumed"}, {"event": "search_stopped", "reason": "interrupted"}])
def test_nothing_runs_after_a_stop_or_a_restart(event: dict[str, Any]) -> None:
    state = at(OPEN, started(1), {"event": "trial_started", "round": 0, "number": 1, "attempt": 1}, event)
    assert state.rounds[0].running == {} and state.final_running is None
    assert state.stopped == event.get("reason")
    state.apply(started(1))
    assert state.stopped is None


@pytest.mark.parametrize("status", MACHINE_FAULTS)
def test_a_machines_fault_counts_only_when_its_retries_are_used_up(status: Any) -> None:
    state = at(OPEN, ended(0, status))
    assert state.rounds[0].results == {} and len(state.rounds[0].attempts[0]) == 1
    state.apply(ended(0, status))
    assert state.rounds[0].results[0].status == status and state.rounds[0].seconds == 4.0
    assert at(OPEN, ended(0, status), ended(0)).rounds[0].results[0].status == "ok"
    assert at(OPEN, ended(0, status), max_retries=0).rounds[0].results[0].status == status


@pytest.mark.parametrize("status", ["diverged", "timeout", "error"])
def test_a_trials_own_failure_counts_at_once(status: Any) -> None:
    assert at(OPEN, ended(0, status)).rounds[0].results[0].status == status


def test_faults_of_both_kinds_share_the_retries() -> None:
    state = at(OPEN, ended(0, "out_of_memory"), ended(0, "killed"))
    assert state.rounds[0].results[0].status == "killed"


def test_the_incumbent_is_the_best_of_the_highest_round_that_has_one() -> None:
    state = at(OPEN)
    assert state.incumbent() is None
    for event in (ended(0, mrr=0.4), ended(1, mrr=0.6), ended(2, mrr=0.1), ended(3, "error")):
        state.apply(event)
    assert state.incumbent() == state.rounds[0].results[1]
    assert state.entrants(1) == [0, 1, 2, 3] and state.entrants(2) == [1, 0]
    state.apply({"event": "round_opened", "plan": plan(2)})
    assert state.incumbent() == state.rounds[0].results[1]
    state.apply(ended(0, mrr=0.2, round_number=2))
    best = state.incumbent()
    assert best is not None and (best.round, best.number) == (2, 0)


def test_the_final_training_belongs_to_its_winner() -> None:
    state = at(OPEN, {"event": "winner_chosen", "number": 1}, ended(1, "killed", round_number=0))
    assert state.final is None
    state.apply(ended(1, mrr=0.7, round_number=0))
    assert state.final is not None and state.final.mrr == 0.7
    state.apply({"event": "search_extended", "sizes": [6, 3], "budget": 4.0, "settings": {"n_trials": 6}})
    assert state.winner is None and state.final is None and state.settings["n_trials"] == 6
    state.apply({"event": "winner_chosen", "number": 1})
    assert state.final is not None


def test_the_time_is_that_of_all_drivers() -> None:
    state = at(OPEN, {**started(0), "elapsed": 5.0}, {"event": "search_resumed", "elapsed": 5.5})
    assert state.seconds == 5.5


def test_what_the_driver_knows_is_what_its_ledger_says(tmp_path: Path) -> None:
    settings = quick_settings(n_trials=6, eta=3)
    state, _ = run_search(tmp_path, NumberGraphs(settings), faults={(1, 2): ["diverged"]})
    replayed = SearchState.replay(read_ledger(tmp_path / LEDGER_FILE))
    assert essence(replayed) == essence(state) and replayed == state


@given(st.data())
@examples(max_examples=30)
def test_results_and_rounds_survive_json(data: st.DataObject) -> None:
    import json

    number = st.floats(0, 1)
    result = TrialResult(
        1, 2, 3, data.draw(st.sampled_from(["ok", "diverged", "error"])), mrr=data.draw(st.none() | number),
        interval=data.draw(st.none() | st.tuples(number, number)), history=[{"epoch": 1.0}], cost=data.draw(number),
        message=data.draw(st.text()),
    )  # fmt: skip
    assert TrialResult.from_json(json.loads(json.dumps(result.to_json()))) == result
    round_ = Round.from_json(plan(1))
    assert Round.from_json(json.loads(json.dumps(round_.to_json()))) == round_
    assert round_.epochs == round_.positives / round_.n_train


def test_a_task_has_a_name_for_people() -> None:
    task = Trial(2, 7, 1, {}, ())
    assert task.name == "configuration 7 in round 2"
    assert Trial(0, 7, 1, {}, (), final=True).name == "the final training"


def final_of(number: int) -> dict:
    return {"event": "trial_ended", "result": TrialResult(0, number, 1, "ok", mrr=0.5).to_json()}


def test_a_winner_whose_model_was_replaced_is_trained_again() -> None:
    state = SearchState()
    for event in (
        {"event": "winner_chosen", "number": 1},
        final_of(1),
        {"event": "winner_chosen", "number": 2},
        final_of(2),
    ):
        state.apply(event)
    assert state.final is not None and state.final.number == 2
    state.apply({"event": "winner_chosen", "number": 1})
    assert state.final is None
    state.apply(final_of(1))
    assert state.final is not None and state.final.number == 1
