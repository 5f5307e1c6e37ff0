"""Successive halving: decide what a search does next (paper, Algorithm 1).

    propose n configurations
    for each round: fix its graph and its epochs, run all its trials, keep the best 1/η
    compare the finalists on the full graph, if there are several
    train the winner in full

`next_action` is a pure function of the state. A search that was killed therefore resumes from its ledger alone, and
the same results lead to the same winner, in whatever order and on whatever device the trials ran.
`advance` is the loop around it; `grash.engines.driver` runs the trials, `simulate` answers them from memory.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any

from grash.search.ledger import Event, SearchState
from grash.search.proposals import make_configurations
from grash.search.schedule import Graphs, plan_next_round
from grash.search.settings import SearchSettings
from grash.search.trial import Configuration, TrialResult


@dataclass(frozen=True)
class RunTrials:
    """Run these configurations: they have no result in this round yet. Round 0 is the final training."""

    round: int
    numbers: tuple[int, ...]


def next_action(state: SearchState, settings: SearchSettings, graphs: Graphs) -> Event | RunTrials | None:
    """Return what the search does next: record an event, run trials, or nothing at its end."""
    n_trials = state.sizes[0] if state.sizes else 1
    if len(state.configurations) < n_trials:
        proposed = make_configurations(settings, graphs.n_entities, n_trials, n_train=graphs.n_train)
        new = [c.to_json() for c in proposed if c.number not in state.configurations]
        return {"event": "configurations_proposed", "configurations": new}
    entrants = sorted(state.configurations)[:n_trials]
    for round_number in range(1, len(state.sizes) + 1):
        if round_number > len(state.rounds):
            past = state.rounds[-1].plan if state.rounds else None
            if past is not None and past.finalists_follow and (len(entrants) == 1 or past.is_complete):
                break  # there is nothing to compare, or nothing left to train
            return {"event": "round_opened", "plan": plan_next_round(state, settings, graphs).to_json()}
        current = state.rounds[round_number - 1]
        missing = tuple(number for number in entrants if number not in current.results)
        if missing:
            return RunTrials(round_number, missing)
        survivors = state.survivors(round_number, entrants)
        if not survivors:
            if current.plan.compares_finalists:
                break  # all finalists failed: the best of the last round wins
            return _finish(state, failed=_why_all_failed(round_number, current.results.values()))
        if current.survivors != survivors:
            return {"event": "round_closed", "round": round_number, "survivors": survivors}
        entrants = survivors
    winner, final = entrants[0], state.final
    if state.winner != winner:  # none yet, or an extension has found a better one
        return {"event": "winner_chosen", "number": winner}
    if settings.final_train and final is None:
        return RunTrials(0, (winner,))
    if final is None or final.status == "ok":
        return _finish(state, failed="")
    return _finish(state, failed=f"The final training failed: {final.message or final.status}")


def advance(
    state: SearchState,
    settings: SearchSettings,
    graphs: Graphs,
    record: Callable[..., None],
    change: Callable[[Event | RunTrials | None], Event | None] | None = None,
) -> RunTrials | None:
    """Decide and record until there are trials to run, and return these; None when the search has ended.

    record(event, **fields) must apply the event to `state`. change(action): an event to record before an action, which
    is then decided again.
    """
    while True:
        action = next_action(state, settings, graphs)
        if change is not None and (event := change(action)) is not None:
            record(**event)
            continue
        if action is None or isinstance(action, RunTrials):
            return action
        record(**action)


def simulate(
    state: SearchState,
    settings: SearchSettings,
    graphs: Graphs,
    run_trials: Callable[[int, Sequence[int]], list[TrialResult]],
) -> SearchState:
    """Continue a search in memory, without engine and ledger, and return its state at the end.

    run_trials(round, numbers) returns a result for each configuration; round 0 is the final training.
    """

    def record(event: str, **fields: Any) -> None:
        state.apply({"event": event, **fields})

    while action := advance(state, settings, graphs, record):
        for result in run_trials(action.round, action.numbers):
            record("trial_ended", result=result.to_json())
    return state


def new_state(settings: SearchSettings, configurations: Sequence[Configuration], sizes: list[int]) -> SearchState:
    """Return the state of a search, for `simulate`, that has proposed these configurations and run nothing.

    sizes: number of trials of each round, from `planned_sizes`; from `round_sizes`, finalists are not compared.
    """
    return SearchState(
        sizes=sizes,
        planned_trials=len(configurations),
        budget=settings.budget,
        max_retries=settings.max_retries,
        configurations={c.number: c for c in configurations},
    )


def _finish(state: SearchState, *, failed: str) -> Event | None:
    """Return the event that ends a search, unless it is recorded. failed: why there is no winner or no model."""
    return None if state.finished and state.failed == failed else {"event": "search_finished", "failed": failed}


def _why_all_failed(round_number: int, results: Collection[TrialResult]) -> str:
    counts = Counter(result.status for result in results).most_common()
    first = next((r.message for r in results if r.message), "")
    listed = ", ".join(f"{count} {status}" for status, count in counts)
    return f"No trial of round {round_number} has a score ({listed}). First message: {first}"
