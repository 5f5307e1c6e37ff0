"""The search, decided: what comes next, given what is recorded (paper, Algorithm 1).

    propose n configurations
    for each round: fix its graph and epochs, run every configuration that entered, keep the best ⌈n/η⌉
    train the winner in full

`next_action` is a pure function of the state, so a search that was killed goes on from its ledger alone, and the same
results lead to the same winner whoever computed them and in whatever order. `grash.engines.driver` acts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from grash.errors import ConfigError
from grash.search.ledger import SearchState
from grash.search.schedule import Graphs, cost_of, fidelity_of, plan_round, round_sizes
from grash.search.settings import SearchSettings
from grash.search.trial import Round


@dataclass(frozen=True)
class Propose:
    """Draw configurations until there are `count`."""

    count: int


@dataclass(frozen=True)
class OpenRound:
    plan: Round


@dataclass(frozen=True)
class RunTrials:
    """These configurations of the round have no result yet."""

    round: int
    numbers: tuple[int, ...]


@dataclass(frozen=True)
class CloseRound:
    round: int
    survivors: tuple[int, ...]


@dataclass(frozen=True)
class Win:
    number: int


@dataclass(frozen=True)
class TrainWinner:
    number: int


@dataclass(frozen=True)
class Finish:
    failed: str = ""


Action = Propose | OpenRound | RunTrials | CloseRound | Win | TrainWinner | Finish


def next_action(state: SearchState, settings: SearchSettings, graphs: Graphs) -> Action:
    """What the search does next."""
    n_trials = state.sizes[0] if state.sizes else 1
    if len(state.configurations) < n_trials:
        return Propose(n_trials)
    survivors = sorted(state.configurations)[:n_trials]
    for number in range(1, len(state.sizes) + 1):
        if len(state.rounds) < number:
            return OpenRound(_next_round(state, settings, graphs))
        this = state.rounds[number - 1]
        entrants = state.entrants(number)
        open_ones = tuple(n for n in entrants if n not in this.results)
        if open_ones:
            return RunTrials(number, open_ones)
        places = state.sizes[number] if number < len(state.sizes) else 1
        survivors = this.best(places, entrants)
        if not survivors:
            return Finish(failed=_why_nothing_is_left(state, number))
        if this.survivors != survivors:
            return CloseRound(number, tuple(survivors))
    if state.winner != survivors[0]:  # not said yet, or another one before rounds were run again
        return Win(survivors[0])
    if settings.final_train and state.final is None:
        return TrainWinner(state.winner)
    final = state.final
    failed = "" if final is None or final.status == "ok" else final.message or final.status
    return Finish(failed=f"The final training failed: {failed}" if failed else "")


def _next_round(state: SearchState, settings: SearchSettings, graphs: Graphs) -> Round:
    """The plan of the first round that is not open yet: its share of the budget, and what that buys."""
    number = len(state.rounds) + 1
    sizes = round_sizes(state.planned_trials, settings.eta)  # an extension leaves fidelities as they were planned
    found, fidelity = shares(state, settings, graphs), Fraction(0)
    for i, share in enumerate(found):  # of the open rounds once more: a float of theirs would not be exact
        prices = [state.configurations[n].relative_cost for n in state.entrants(i + 1)]
        bought = fidelity_of(share * len(prices) / sizes[i], prices)
        fidelity = max(fidelity, min(bought, _most_that_lasts(found[0], prices, sizes[i + 1 :])))
    before = [past.plan for past in state.rounds]
    return plan_round(number, fidelity, found[-1], sizes[number - 1], settings, graphs, before)


def _most_that_lasts(base: Fraction, prices: list[float], next_sizes: list[int]) -> Fraction:
    """The fidelity that the next round can still give to its dearest entrants from its own share: what is carried may
    not lift a round above the one after it, whose survivors could not go on from there."""
    if not next_sizes or not prices:
        return Fraction(1)
    return base / sum((Fraction(p) for p in sorted(prices)[-next_sizes[0] :]), Fraction(0))


def shares(state: SearchState, settings: SearchSettings, graphs: Graphs) -> list[Fraction]:
    """Exact shares of the budget: of every open round and of the next. B/s each, and what is carried over: the surplus
    of the cap at f = 1, and what diverged trials did not use."""
    base = settings.full_budget / max(1, len(round_sizes(state.planned_trials, settings.eta)))
    found, seen = [base], 0
    for past in state.rounds:
        planned = past.plan.positives - (seen if past.plan.continues else 0)
        seen = past.plan.positives
        carried = Fraction(0)
        if settings.carry_over:
            prices = {n: Fraction(state.configurations[n].relative_cost) for n in past.results}
            unused = (
                prices[n] * max(0, planned - r.positives) for n, r in past.results.items() if r.status == "diverged"
            )
            carried += cost_of(1, settings, graphs.n_train) * sum(unused, Fraction(0))
            if past.plan.fidelity == 1.0:
                carried += max(Fraction(0), found[-1] - sum(prices.values(), Fraction(0)))
        found.append(base + carried)
    return found


def _why_nothing_is_left(state: SearchState, number: int) -> str:
    results = list(state.rounds[number - 1].results.values())
    kinds: dict[str, int] = {}
    for result in results:
        kinds[result.status] = kinds.get(result.status, 0) + 1
    counts = ", ".join(f"{count} {kind}" for kind, count in sorted(kinds.items(), key=lambda kc: -kc[1]))
    first = next((r.message for r in results if r.message), "")
    return f"No trial of round {number} has a score ({counts}). The first said: {first}"


# = More trials or more budget for a search that has been made: fidelities stay, nothing is run twice (D14).
# =
# = More trials: new configurations enter round 1, and every round takes as many as a search of that size would. More
# = budget: the rounds after the first take more survivors, each round an equal part of what is added. What is new can push
# = out what was promoted before, so the budget grows by what that may cost at most.

_PARTS = 64  # steps in which a budget is tried


def extension(
    state: SearchState,
    settings: SearchSettings,
    *,
    n_trials: int | None = None,
    budget: float | None = None,
    prices: Sequence[float] = (),
) -> dict[str, Any]:
    """The fields of the event `extended`: sizes of the rounds, the budget that they take, what was asked for.

    prices: of all configurations, the new ones included; 1 each if none are given.
    """
    if settings.warm_start != "off":
        raise ConfigError("--extend needs weights of earlier rounds that a warm start has dropped: begin a new search.")
    if not state.sizes:
        raise ConfigError("--extend adds to the rounds of a search, and one trial has none: begin a new search.")
    if len(state.rounds) < len(state.sizes):
        raise ConfigError(
            "--extend adds to a search whose rounds are all open: let `grash resume` bring it there first."
        )
    if (n_trials is None) == (budget is None):
        raise ConfigError("--extend needs either --n-trials or --budget, larger than before.")
    fidelities = [Fraction(past.plan.fidelity) for past in state.rounds]
    dearest = sorted((Fraction(p) for p in prices), reverse=True) or [Fraction(1)] * (n_trials or state.sizes[0])
    if n_trials is not None:
        if n_trials <= state.sizes[0]:
            raise ConfigError(f"--n-trials {n_trials} is no extension: the search has {state.sizes[0]} already.")
        sizes = _grown(n_trials, settings.eta, state.sizes)
    else:
        assert budget is not None
        added = Fraction(str(budget)) - Fraction(str(state.budget))
        if added <= 0:
            raise ConfigError(f"--budget {budget:g} is no extension: the search has {state.budget:g} already.")
        sizes = _more_survivors(state.sizes, fidelities, added, dearest)
        if sizes == state.sizes:
            raise ConfigError(
                f"--budget {budget:g} buys no further trial in a later round: give more, or --n-trials for more "
                f"configurations in the first."
            )
    more = _most_cost(sizes, state.sizes, fidelities, dearest)
    grown = float(Fraction(str(state.budget)) + more)
    return {"sizes": sizes, "budget": grown, "settings": {"n_trials": sizes[0], "budget": grown}}


def _grown(n_trials: int, eta: int, before: list[int]) -> list[int]:
    """Sizes of the same rounds for more trials; never fewer in a round than it had."""
    wanted = round_sizes(n_trials, eta)
    return [max(n, wanted[i] if i < len(wanted) else 2) for i, n in enumerate(before)]


def _more_survivors(
    sizes: list[int], fidelities: list[Fraction], added: Fraction, dearest: list[Fraction]
) -> list[int]:
    """The largest sizes of later rounds that cannot cost more than what is added."""
    mean = sum(dearest, Fraction(0)) / len(dearest)
    for parts in range(_PARTS, 0, -1) if len(sizes) > 1 else ():
        part = added * parts / _PARTS / (len(sizes) - 1)
        grown = [sizes[0]]
        for i in range(1, len(sizes)):
            grown.append(min(grown[-1], sizes[i] + int(part / fidelities[i] / mean)))
        if _most_cost(grown, sizes, fidelities, dearest) <= added:
            return grown
    return list(sizes)


def _most_cost(sizes: list[int], before: list[int], fidelities: list[Fraction], dearest: list[Fraction]) -> Fraction:
    """What the trials that an extension runs can cost at most. If m are new to a round, at most m get to the next by
    their scores, and each that was pushed out on the way leaves one more place to fill."""
    total, new, grown = Fraction(0), 0, 0
    for i, (size, was) in enumerate(zip(sizes, before)):
        pushed_out, grown = max(0, new - grown), size - was
        new = min(size, max(new, grown + pushed_out)) if i else grown
        total += fidelities[i] * sum(dearest[:new], Fraction(0))
    return total
