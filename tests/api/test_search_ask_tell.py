"""Trainers of one's own: trials are asked for, and their scores told."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from engines.searches import small_search
from grash.api.search import Search, SearchResult
from grash.errors import InputError
from grash.reduction.subgraph import pairs_are_isolated
from grash.search import schedule
from grash.search.graphs import SearchGraphs


def test_ask_and_tell_promote_as_an_engine_would(tmp_path: Path, finished: SearchResult) -> None:
    scores = {(past.plan.number, n): r.mrr for past in finished.state.rounds for n, r in past.results.items()}
    search = small_search(tmp_path / "run")
    asked = []
    while (trial := search.ask()) is not None:
        past = finished.state.rounds[trial.round - 1]
        assert (trial.dataset.n_entities, len(trial.dataset.train)) == (past.plan.n_entities, past.plan.n_train)
        assert trial.config.epochs == past.plan.epochs and trial.config.variation == trial.number
        asked.append((trial.round, trial.number))
        search.tell(trial, scores[trial.round, trial.number], seconds=1.5)
    search.close()
    state = search.result.state
    assert set(asked) == set(scores) and state.finished
    assert [past.survivors for past in state.rounds] == [past.survivors for past in finished.state.rounds]
    assert state.winner == finished.state.winner and state.spent == pytest.approx(finished.state.spent)
    assert search.result.best_config == finished.best_config
    with pytest.raises(InputError, match="has no trained model"):
        _ = search.result.model


def test_an_outside_trainer_is_billed_what_it_trains_also_where_an_engine_would_go_on(tmp_path: Path) -> None:
    search, trained = small_search(tmp_path / "run", variant="epoch", n_trials=8, max_epochs=8), 0.0
    while (trial := search.ask()) is not None:
        trained += trial.config.epochs * len(trial.dataset.train) / (8 * search.graphs.n_train)
        search.tell(trial, 0.1 + 0.01 * trial.number)
    search.close()
    state = search.result.state
    assert len(state.rounds) == 3 and state.rounds[1].plan.continues
    assert state.spent == pytest.approx(trained) and trained <= state.budget * (1 + 1e-9)


def test_several_trials_are_out_at_once_and_a_round_waits_for_them(tmp_path: Path) -> None:
    search = small_search(tmp_path / "run")
    trials = [search.ask() for _ in range(6)]
    assert [t.number for t in trials if t is not None] == [0, 1, 2, 3, 4, 5] and search.ask() is None
    for trial in reversed(trials):
        assert trial is not None
        assert search.ask() is None
        search.tell(trial, None if trial.number == 0 else trial.number / 10)
    following = search.ask()
    assert following is not None and (following.round, following.number) == (2, 5)
    search.close()
    first = search.result.state.rounds[0]
    assert first.results[0].status == "diverged" and first.survivors == [5, 4, 3]


def test_ask_and_tell_survive_closing_and_reopening(tmp_path: Path) -> None:
    def score(trial: Any) -> float:
        return (trial.number * 7 % 6) / 10 + trial.round

    one_go = small_search(tmp_path / "a")
    while (trial := one_go.ask()) is not None:
        one_go.tell(trial, score(trial))
    one_go.close()
    for step in range(100):
        search = small_search(tmp_path / "b") if step % 2 else reopened(tmp_path / "b")
        told, lost = search.ask(), search.ask()
        if told is None:
            search.close()
            break
        search.tell(told, score(told))
        search.close()
        if lost is not None:
            again = small_search(tmp_path / "b").ask
            assert (reborn := again()) is not None and reborn.trial == lost.trial
            again.__self__.close()  # type: ignore[attr-defined]
    states = [SearchResult.load(tmp_path / name).state for name in "ab"]
    assert states[1].finished and states[0].winner == states[1].winner
    assert [p.survivors for p in states[0].rounds] == [p.survivors for p in states[1].rounds]
    assert states[0].spent == states[1].spent


def reopened(folder: Path) -> Search:
    return Search.open(folder, engine="sequential") if (folder / "search.yaml").is_file() else small_search(folder)


def test_scores_that_are_none_and_scores_told_twice_are_refused(tmp_path: Path) -> None:
    search = small_search(tmp_path / "run")
    trial = search.ask()
    assert trial is not None
    for bad in (float("nan"), float("inf")):
        with pytest.raises(InputError, match=r"mrr=(nan|inf) of configuration 0 in round 1 is no score"):
            search.tell(trial, bad)
    search.tell(trial, 0.5)
    with pytest.raises(InputError, match="Configuration 0 in round 1 already has a result"):
        search.tell(trial, 0.7)
    search.close()
    assert search.result.state.rounds[0].results[0].mrr == 0.5


def test_the_trials_of_the_last_round_hold_out_isolated_pairs(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(SearchGraphs, "valid_pairs_isolated", True)
    monkeypatch.setattr(schedule, "MIN_VALID", 5)
    search, lies = small_search(tmp_path / "run", final_train=False, finalists=0), set()
    while (trial := search.ask()) is not None:
        data = trial.dataset
        lies.add((trial.round, pairs_are_isolated(data.valid, data.train, data.n_entities)))
        search.tell(trial, 0.1 + 0.01 * trial.number)
    search.close()
    plans = [past.plan for past in search.result.state.rounds]
    assert not any(p.whole for p in plans) and [p.isolated for p in plans] == [False] * (len(plans) - 1) + [True]
    assert lies == {(p.number, p.isolated) for p in plans}
