"""More trials, more budget: nothing is run twice, fidelities stay, and the bill keeps within the budget shown."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import settings as examples
from hypothesis import strategies as st

from grash.errors import ConfigError
from grash.search.ledger import LEDGER_FILE, SearchState
from grash.search.schedule import plan_extension
from grash.search.trial import Configuration
from table_engine import NumberGraphs, bill, decide, essence, quick_settings, run_search, without_waits


@pytest.fixture(autouse=True)
def quick() -> Iterator[None]:
    with without_waits():
        yield


def made(**changes: Any) -> tuple[Any, NumberGraphs, SearchState]:
    settings = quick_settings(**{"guard_rails": False, **changes})
    graphs = NumberGraphs(settings, n_train=64_000)
    return settings, graphs, decide(settings, graphs)


def test_more_trials_make_every_round_as_large_as_theirs_and_the_budget_covers_the_worst() -> None:
    settings, _, state = made()
    more = plan_extension(state, settings, n_trials=80)
    assert more["sizes"] == [80, 20, 5] and more["settings"] == {"n_trials": 80, "budget": 5.5}
    # 16 of 1/64; 16 of them may all go on at 1/16; and five of those at 1/4
    assert more["budget"] == 3 + 16 / 64 + 16 / 16 + 5 / 4


def test_more_budget_buys_survivors_even_if_new_ones_push_old_ones_out() -> None:
    settings, _, state = made()
    more = plan_extension(state, settings, budget=4.0)
    assert more["sizes"][0] == 64 and more["sizes"] > [64, 16, 4] and 3 < more["budget"] <= 4
    one_later_round = made(n_trials=16, eta=4, budget=2.0)
    assert plan_extension(one_later_round[2], one_later_round[0], budget=3.0) == {
        "sizes": [16, 8], "budget": 3.0, "settings": {"n_trials": 16, "budget": 3.0},
    }  # fmt: skip


@pytest.mark.parametrize(
    ("wanted", "sentence"),
    [
        ({"n_trials": 64}, "--n-trials 64 adds nothing: the search already has 64"),
        ({"n_trials": 3}, "--n-trials 3 adds nothing"),
        ({"budget": 3.0}, "--budget 3 adds nothing: the search already has 3"),
        ({"budget": -1.0}, "budget=-1.0 is not valid: give a larger number, above 0"),
        ({"budget": 3.01}, "--budget 3.01 pays for no further trial in a later round: give more"),
        ({}, "--extend needs either --n-trials or --budget"),
        ({"n_trials": 80, "budget": 5.0}, "--extend needs either --n-trials or --budget"),
    ],
)
def test_what_is_no_extension_is_refused_in_a_sentence(wanted: dict[str, Any], sentence: str) -> None:
    settings, _, state = made()
    with pytest.raises(ConfigError, match=sentence):
        plan_extension(state, settings, **wanted)


def test_a_search_that_cannot_be_extended_says_why() -> None:
    settings, graphs, state = made()
    with pytest.raises(ConfigError, match="with a warm start, which has dropped its weights: start a new search"):
        plan_extension(state, settings.model_copy(update={"warm_start": "weights"}), n_trials=80)
    state.rounds.pop()
    with pytest.raises(ConfigError, match="whose rounds are all open: run `grash resume` first"):
        plan_extension(state, settings, n_trials=80)
    alone = made(n_trials=1)
    with pytest.raises(ConfigError, match="of one trial has none: start a new search"):
        plan_extension(alone[2], alone[0], n_trials=8)
    one_round = made(n_trials=4, eta=4)
    with pytest.raises(ConfigError, match="pays for no further trial in a later round"):
        plan_extension(one_round[2], one_round[0], budget=9.0)


@given(st.data())
@examples(max_examples=150)
def test_after_any_extensions_the_bill_keeps_within_the_budget_shown(data: st.DataObject) -> None:
    settings = quick_settings(
        guard_rails=False, variant=data.draw(st.sampled_from(["combined", "graph", "epoch"])), max_retries=0,
        n_trials=data.draw(st.integers(2, 20)), eta=data.draw(st.integers(2, 5)),
        budget=data.draw(st.sampled_from([1.0, 3.0, 7.5])),
    )  # fmt: skip
    graphs = NumberGraphs(settings)
    random = Random(data.draw(st.integers(0, 10**6)))
    prices = [random.uniform(0.1, 10) for _ in range(80)] if data.draw(st.booleans()) else None
    scores = {(r, n): random.random() for r in range(1, 7) for n in range(80)}
    often = data.draw(st.sampled_from([0.0, 0.2]))
    faults: Any = {key: ["error"] for key in scores if random.random() < often}
    run: Any = {"score": lambda r, n: scores[r, n], "faults": faults, "prices": prices}
    state = decide(settings, graphs, **run)
    for _ in range(data.draw(st.integers(1, 2))):
        plans = [past.plan for past in state.rounds]
        before = {(i, n): r for i, past in enumerate(state.rounds) for n, r in past.results.items()}
        if data.draw(st.booleans()):
            wanted: Any = {"n_trials": state.sizes[0] + data.draw(st.integers(1, 20))}
        else:
            wanted = {"budget": state.budget + data.draw(st.floats(0.01, 5))}
        try:
            fields = plan_extension(state, settings, relative_costs=prices or (), **wanted)
        except ConfigError:  # too little for one trial, or a search that failed in an early round
            return
        assert fields["budget"] <= wanted.get("budget", float("inf")) + 1e-9 and fields["budget"] >= state.budget
        state.apply({"event": "search_extended", **fields})
        state = decide(settings, graphs, state=state, kept=False, **run)
        assert [past.plan for past in state.rounds] == plans
        assert all(state.rounds[i].results[n] is r for (i, n), r in before.items())
        assert bill(state, settings, graphs.n_train) <= state.budget * (1 + 1e-12)


def test_more_trials_end_where_a_search_of_that_size_at_these_fidelities_would(tmp_path: Path) -> None:
    settings = quick_settings(n_trials=8, eta=2, guard_rails=False)
    graphs = NumberGraphs(settings)
    first, engine = run_search(tmp_path, graphs)
    before = set(engine.ran)
    state, engine = run_search(tmp_path, graphs, extend={"n_trials": 14})
    assert state.sizes == [14, 7, 4] and sorted(state.configurations) == list(range(14))
    assert not {t[:2] for t in engine.ran if t[0]} & {t[:2] for t in before}, "nothing is run twice"
    assert [c.values for c in list(state.configurations.values())[:8]] == [
        c.values for c in first.configurations.values()
    ]
    entrants = list(range(14))
    for past, places in zip(state.rounds, [7, 4, 1]):
        entrants = sorted(entrants, key=lambda n, past=past: -past.results[n].mrr)[:places]
    assert [state.winner] == entrants and state.finished and state.final is not None


def test_a_winner_that_stays_is_not_trained_again(tmp_path: Path) -> None:
    settings = quick_settings(n_trials=4, eta=2, guard_rails=False)
    graphs = NumberGraphs(settings)
    best_is_first: Any = {"score": lambda r, n: -float(n)}
    run_search(tmp_path, graphs, **best_is_first)
    state, engine = run_search(tmp_path, graphs, extend={"n_trials": 8}, **best_is_first)
    assert state.winner == 0 and not [t for t in engine.ran if t[0] == 0]


def test_the_extended_search_is_refused_without_a_trace(tmp_path: Path) -> None:
    settings = quick_settings(n_trials=4, eta=2, guard_rails=False)
    graphs = NumberGraphs(settings)
    run_search(tmp_path, graphs)
    before = (tmp_path / LEDGER_FILE).read_bytes()
    with pytest.raises(ConfigError, match="adds nothing"):
        run_search(tmp_path, graphs, extend={"n_trials": 2})
    assert (tmp_path / LEDGER_FILE).read_bytes() == before


@pytest.mark.parametrize("variant", ["combined", "epoch"])
def test_an_extended_search_cut_after_any_line_goes_on_to_the_same_end(tmp_path: Path, variant: str) -> None:
    settings = quick_settings(n_trials=4, eta=2, guard_rails=False, variant=variant, final_train=False)
    graphs = NumberGraphs(settings)
    run_search(tmp_path / "whole", graphs)
    expected, _ = run_search(tmp_path / "whole", graphs, extend={"n_trials": 7})
    lines = (tmp_path / "whole" / LEDGER_FILE).read_bytes().splitlines(keepends=True)
    asked = next(i for i, line in enumerate(lines) if line.startswith(b'{"event":"search_extended"'))
    for count in range(asked + 1, len(lines) + 1):
        cut = tmp_path / f"cut-{count}"
        cut.mkdir()
        (cut / LEDGER_FILE).write_bytes(b"".join(lines[:count]))
        again = essence(run_search(cut, graphs)[0])
        if variant == "combined":
            assert again == essence(expected)
        else:  # states of the first part are gone in either case; whoever starts anew is billed for all of it
            assert again["winner"] == expected.winner and again["sizes"] == expected.sizes
        shutil.rmtree(cut)


def test_new_configurations_are_numbered_on(tmp_path: Path) -> None:
    state = SearchState()
    state.apply(
        {"event": "configurations_proposed", "configurations": [Configuration(i, {}, "a").to_json() for i in range(2)]}
    )
    state.apply({"event": "configurations_proposed", "configurations": [Configuration(2, {}, "b").to_json()]})
    assert [c.origin for c in state.configurations.values()] == ["a", "a", "b"]


@pytest.mark.parametrize("wanted", [{"n_trials": 10**9}, {"budget": 1e300}, {"budget": float("nan")}])
def test_an_extension_stays_within_the_ranges_of_the_settings(wanted: dict[str, Any]) -> None:
    settings, _, state = made()
    with pytest.raises(ConfigError, match=r"(n_trials|budget)=.* is not valid: give"):
        plan_extension(state, settings, **wanted)
