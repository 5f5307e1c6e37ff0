"""Callbacks receive what happens in a search, in order, and their errors stop it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from engines.searches import small_search
from grash.search.callbacks import Callback, RunningSearch
from grash.search.trial import TrialResult


class Recorder(Callback):
    def __init__(self) -> None:
        self.calls: list[tuple[Any, ...]] = []

    def on_plan(self, search: RunningSearch) -> None:
        self.calls.append(("plan", tuple(search.state.sizes)))

    def on_trial_start(self, search: RunningSearch, round: int, number: int) -> None:
        self.calls.append(("start", round, number))

    def on_progress(self, search: RunningSearch, round: int, number: int, progress: Any) -> None:
        assert search.progress[round, number] is progress and search.devices == ("cpu",)

    def on_trial_end(self, search: RunningSearch, result: TrialResult) -> None:
        self.calls.append(("end", result.round, result.number))

    def on_round_end(self, search: RunningSearch, round: int) -> None:
        self.calls.append(("round", round, search.state.rounds[round - 1].survivors))

    def on_end(self, search: RunningSearch) -> None:
        self.calls.append(("finished", search.state.finished, search.folder))


@pytest.mark.slow
def test_a_callback_hears_plan_trials_rounds_and_end_in_order(tmp_path: Path) -> None:
    heard = Recorder()
    state = small_search(tmp_path / "run", n_trials=4).run(callbacks=[heard]).state
    kinds = [call[0] for call in heard.calls]
    assert kinds[0] == "plan" and kinds[-1] == "finished" and kinds.count("plan") == kinds.count("finished") == 1
    n_trials = sum(len(r.results) for r in state.rounds) + 1
    assert kinds.count("start") == kinds.count("end") == n_trials
    assert [c[1:] for c in heard.calls if c[0] == "round"] == [(r.plan.number, r.survivors) for r in state.rounds]
    assert heard.calls[0] == ("plan", tuple(state.sizes)) and heard.calls[-1][1:] == (True, tmp_path / "run")
    for kind, *trial in heard.calls:
        if kind == "end":
            assert heard.calls.index(("start", *trial)) < heard.calls.index(("end", *trial))


@pytest.mark.slow
def test_an_error_of_a_callback_stops_the_search_and_on_end_is_still_called(tmp_path: Path) -> None:
    class Refuses(Recorder):
        def on_trial_end(self, search: RunningSearch, result: TrialResult) -> None:
            raise LookupError("enough")

        def on_end(self, search: RunningSearch) -> None:
            super().on_end(search)
            raise ValueError("the end, too")

    refuses = Refuses()
    with pytest.raises(LookupError, match="enough"):
        small_search(tmp_path / "run", n_trials=4).run(callbacks=[refuses])
    assert refuses.calls[-1][:2] == ("finished", False)
    resumed = Recorder()
    assert small_search(tmp_path / "run", n_trials=4).run(callbacks=[resumed]).state.finished
    assert resumed.calls[0][0] == "plan"


def test_methods_that_are_not_overridden_call_on_change(tmp_path: Path) -> None:
    class Counts(Callback):
        n = 0

        def on_change(self, search: RunningSearch) -> None:
            self.n += 1

    counts = Counts()
    small_search(tmp_path / "run", n_trials=2, final_train=False).run(callbacks=[counts])
    assert counts.n >= len((tmp_path / "run" / "ledger.jsonl").read_text().splitlines())
