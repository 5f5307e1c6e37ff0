"""Successive halving: decide what a search does next (paper, Algorithm 1).

    propose n configurations
    for each round: fix its graph and its epochs, run all its trials, keep the best 1/η
    train the winner in full

`next_action` is a pure function of the state. A search that was killed therefore resumes from its ledger alone, and
the same results lead to the same winner, in whatever order and on whatever device the trials ran.
`advance` is the loop around it; `grash.engines.driver` runs the trials, `simulate` answers them from memory.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from grash.search.ledger import SearchState
from grash.search.proposals import make_configurations
from grash.search.schedule import Graphs, cost_of, fidelity_of, plan_round, round_sizes
from grash.search.settings import SearchSettings
from grash.search.trial import Configuration, Round, TrialResult


@dataclass(frozen=True)
class ProposeConfigurations:
    """Draw configurations until there are `count` of them."""

    count: int


@dataclass(frozen=True)
class OpenRound:
    """Start the next round with this plan."""

    plan: Round


@dataclass(frozen=True)
class RunTrials:
    """Run these configurations: they have no result in this round yet."""

    round: int
    numbers: tuple[int, ...]


@dataclass(frozen=True)
class CloseRound:
    """End a round: these configurations advance, best first."""

    round: int
    survivors: tuple[int, ...]


@dataclass(frozen=True)
class ChooseWinner:
    """Record the best configuration of the last round."""

    number: int


@dataclass(frozen=True)
class TrainWinner:
    """Train the winner on the full graph."""

    number: int


@dataclass(frozen=True)
class Finish:
    """End the search; `failed` is empty, or the reason why there is no winner or no model."""

    failed: str = ""


Action = ProposeConfigurations | OpenRound | RunTrials | CloseRound | ChooseWinner | TrainWinner | Finish


def next_action(state: SearchState, settings: SearchSettings, graphs: Graphs) -> Action:
    """Return what the search does next."""
    n_trials = state.sizes[0] if state.sizes else 1
    if len(state.configurations) < n_trials:
        return ProposeConfigurations(n_trials)
    entrants = sorted(state.configurations)[:n_trials]
    for number in range(1, len(state.sizes) + 1):
        if number > len(state.rounds):
            return OpenRound(_plan_next_round(state, settings, graphs))
        current = state.rounds[number - 1]
        missing = tuple(n for n in entrants if n not in current.results)
        if missing:
            return RunTrials(number, missing)
        n_survivors = state.sizes[number] if number < len(state.sizes) else 1
        survivors = current.best(n_survivors, entrants)
        if not survivors:
            return Finish(failed=_why_all_failed(number, current.results.values()))
        if current.survivors != survivors:
            return CloseRound(number, tuple(survivors))
        entrants = survivors
    if state.winner != entrants[0]:  # none yet, or an extension has found a better one
        return ChooseWinner(entrants[0])
    if settings.final_train and state.final is None:
        return TrainWinner(state.winner)
    final = state.final
    if final is None or final.status == "ok":
        return Finish()
    return Finish(failed=f"The final training failed: {final.message or final.status}")


def advance(
    state: SearchState, settings: SearchSettings, graphs: Graphs, record: Callable[..., None]
) -> RunTrials | TrainWinner | Finish:
    """Decide and record until trials have to run or the search has ended; return that action.

    record(event, **fields) must apply the event to `state`.
    """
    while True:
        action = next_action(state, settings, graphs)
        match action:
            case RunTrials() | TrainWinner():
                return action
            case ProposeConfigurations(count):
                proposed = make_configurations(settings, graphs.n_entities, count)
                new = [c.to_json() for c in proposed if c.number not in state.configurations]
                record("configurations_proposed", configurations=new)
            case OpenRound(plan):
                record("round_opened", plan=plan.to_json())
            case CloseRound(number, survivors):
                record("round_closed", round=number, survivors=list(survivors))
            case ChooseWinner(number):
                record("winner_chosen", number=number)
            case Finish(failed):
                if state.finished and state.failed == failed:
                    return action
                record("search_finished", failed=failed)


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

    while True:
        match advance(state, settings, graphs, record):
            case RunTrials(number, numbers):
                results = run_trials(number, numbers)
            case TrainWinner(number):
                results = run_trials(0, [number])
            case Finish():
                return state
        for result in results:
            record("trial_ended", result=result.to_json())


def new_state(settings: SearchSettings, configurations: Sequence[Configuration]) -> SearchState:
    """Return the state of a search, for `simulate`, that has proposed these configurations and run nothing."""
    return SearchState(
        sizes=round_sizes(len(configurations), settings.eta),
        planned_trials=len(configurations),
        budget=settings.budget,
        max_retries=settings.max_retries,
        configurations={c.number: c for c in configurations},
    )


def _plan_next_round(state: SearchState, settings: SearchSettings, graphs: Graphs) -> Round:
    """Return the plan of the first round that is not open yet: its budget, and the fidelity which that pays for."""
    number = len(state.rounds) + 1
    sizes = round_sizes(state.planned_trials, settings.eta)  # an extension keeps the fidelities as they were planned
    budgets, fidelity = round_budgets(state, settings, graphs), Fraction(0)
    for i, budget in enumerate(budgets):  # all rounds again: their recorded fidelities are floats, these are exact
        costs = [state.configurations[n].relative_cost for n in state.entrants(i + 1)]
        affordable = fidelity_of(budget * len(costs) / sizes[i], costs)
        fidelity = max(fidelity, min(affordable, _next_round_fidelity(budgets[0], costs, sizes[i + 1 :])))
    previous = [past.plan for past in state.rounds]
    return plan_round(number, fidelity, budgets[-1], sizes[number - 1], settings, graphs, previous)


def round_budgets(state: SearchState, settings: SearchSettings, graphs: Graphs) -> list[Fraction]:
    """Return the exact budget of every open round and of the next one.

    Each has B / rounds. With `carry_over`, the next one also gets what was left: by trials that diverged, and by a
    round whose fidelity was capped at 1.
    """
    base = settings.full_budget / max(1, len(round_sizes(state.planned_trials, settings.eta)))
    budgets, seen = [base], 0
    for past in state.rounds:
        planned = past.plan.positives - (seen if past.plan.continues else 0)
        seen = past.plan.positives
        left = Fraction(0)
        if settings.carry_over:
            costs = {n: Fraction(state.configurations[n].relative_cost) for n in past.results}
            unused = (
                costs[n] * max(0, planned - r.positives) for n, r in past.results.items() if r.status == "diverged"
            )
            left += cost_of(1, settings, graphs.n_train) * sum(unused, Fraction(0))
            if past.plan.fidelity == 1.0:
                left += max(Fraction(0), budgets[-1] - sum(costs.values(), Fraction(0)))
        budgets.append(base + left)
    return budgets


def _next_round_fidelity(base: Fraction, costs: list[float], next_sizes: list[int]) -> Fraction:
    """Return the fidelity that the next round can afford for its most expensive entrants from its own budget.

    A carried-over budget may not lift a round above it: survivors could not continue at a lower fidelity.
    """
    if not next_sizes or not costs:
        return Fraction(1)
    return base / sum((Fraction(c) for c in sorted(costs)[-next_sizes[0] :]), Fraction(0))


def _why_all_failed(number: int, results: Collection[TrialResult]) -> str:
    counts = Counter(result.status for result in results).most_common()
    first = next((r.message for r in results if r.message), "")
    listed = ", ".join(f"{count} {status}" for status, count in counts)
    return f"No trial of round {number} has a score ({listed}). First message: {first}"
