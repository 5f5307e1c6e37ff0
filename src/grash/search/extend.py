"""More trials or more budget for a search that has been made: fidelities stay, nothing is run twice (D14).

More trials: new configurations enter round 1, and every round takes as many as a search of that size would. More
budget: the rounds after the first take more survivors, each round an equal part of what is added. What is new can push
out what was promoted before, so the budget grows by what that may cost at most.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from typing import Any

from grash.errors import ConfigError
from grash.search.schedule import round_sizes
from grash.search.settings import SearchSettings
from grash.search.state import SearchState

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
