"""Extend a search: more trials or a larger budget for a search whose rounds are all open (`--extend`).

More trials: new configurations enter round 1, and every round takes as many as a search of that size would.
A larger budget: the rounds after the first take more survivors, each round an equal part of what is added.
Fidelities stay and no trial runs twice. New trials can displace survivors of before, so the budget grows by the most
that this can cost.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from typing import Any

from grash.errors import ConfigError
from grash.search.ledger import SearchState
from grash.search.schedule import round_sizes
from grash.search.settings import SearchSettings

_PARTS = 64  # steps in which a budget is tried


def plan_extension(
    state: SearchState,
    settings: SearchSettings,
    *,
    n_trials: int | None = None,
    budget: float | None = None,
    relative_costs: Sequence[float] = (),
) -> dict[str, Any]:
    """Return the fields of the event `search_extended`: sizes of the rounds, the budget they take, new settings.

    relative_costs: of all configurations, the new ones included (default: 1 each).
    """
    _check(state, settings, n_trials, budget)
    fidelities = [Fraction(past.plan.fidelity) for past in state.rounds]
    largest_first = sorted((Fraction(c) for c in relative_costs), reverse=True)
    costs = largest_first or [Fraction(1)] * (n_trials or state.sizes[0])
    if n_trials is not None:
        sizes = _sizes_for(n_trials, settings.eta, state.sizes)
    else:
        added = Fraction(str(budget)) - Fraction(str(state.budget))
        sizes = _more_survivors(state.sizes, fidelities, added, costs)
        if sizes == state.sizes:
            raise ConfigError(
                f"--budget {budget:g} pays for no further trial in a later round: give more, or give --n-trials for "
                f"more configurations in the first round."
            )
    total = float(Fraction(str(state.budget)) + _largest_cost(sizes, state.sizes, fidelities, costs))
    return {"sizes": sizes, "budget": total, "settings": {"n_trials": sizes[0], "budget": total}}


def _check(state: SearchState, settings: SearchSettings, n_trials: int | None, budget: float | None) -> None:
    if settings.warm_start != "off":
        raise ConfigError(
            "--extend does not work with a warm start, which has dropped its weights: start a new search."
        )
    if not state.sizes:
        raise ConfigError("--extend adds trials to rounds, and a search of one trial has none: start a new search.")
    if len(state.rounds) < len(state.sizes):
        raise ConfigError("--extend needs a search whose rounds are all open: run `grash resume` first.")
    if (n_trials is None) == (budget is None):
        raise ConfigError("--extend needs either --n-trials or --budget, larger than before.")
    if n_trials is not None and n_trials <= state.sizes[0]:
        raise ConfigError(f"--n-trials {n_trials} adds nothing: the search already has {state.sizes[0]}.")
    if budget is not None and Fraction(str(budget)) <= Fraction(str(state.budget)):
        raise ConfigError(f"--budget {budget:g} adds nothing: the search already has {state.budget:g}.")


def _sizes_for(n_trials: int, eta: int, before: list[int]) -> list[int]:
    """Return the sizes of the same rounds for more trials; no round gets fewer than it had."""
    wanted = round_sizes(n_trials, eta)
    return [max(n, wanted[i] if i < len(wanted) else 2) for i, n in enumerate(before)]


def _more_survivors(sizes: list[int], fidelities: list[Fraction], added: Fraction, costs: list[Fraction]) -> list[int]:
    """Return the largest sizes of later rounds that cannot cost more than what is added."""
    mean = sum(costs, Fraction(0)) / len(costs)
    for parts in range(_PARTS, 0, -1) if len(sizes) > 1 else ():
        part = added * parts / _PARTS / (len(sizes) - 1)
        larger = [sizes[0]]
        for i in range(1, len(sizes)):
            larger.append(min(larger[-1], sizes[i] + int(part / fidelities[i] / mean)))
        if _largest_cost(larger, sizes, fidelities, costs) <= added:
            return larger
    return list(sizes)


def _largest_cost(sizes: list[int], before: list[int], fidelities: list[Fraction], costs: list[Fraction]) -> Fraction:
    """Return the most that the trials of an extension can cost.

    If m trials are new in a round, at most m reach the next one by their scores, and every survivor that they displace
    leaves one more place to fill. costs: largest first.
    """
    total, new, added = Fraction(0), 0, 0
    for i, (size, previous) in enumerate(zip(sizes, before)):
        displaced, added = max(0, new - added), size - previous
        new = min(size, max(new, added + displaced)) if i else added
        total += fidelities[i] * sum(costs[:new], Fraction(0))
    return total
