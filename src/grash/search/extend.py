"""More trials or more budget for a search that has been made: fidelities stay, nothing is run twice (D14).

More trials: new configurations enter round 1, and every round takes as many as a search of that size would. More
budget: the rounds after the first take more survivors, each round an equal part of what is added.
"""

from __future__ import annotations

from fractions import Fraction
from typing import Any

from grash.errors import ConfigError
from grash.search.schedule import round_sizes
from grash.search.settings import SearchSettings
from grash.search.state import SearchState


def extension(
    state: SearchState, settings: SearchSettings, *, n_trials: int | None = None, budget: float | None = None
) -> dict[str, Any]:
    """The fields of the event `extended`: sizes of the rounds, the budget that they take, what was asked for."""
    if settings.warm_start != "off":
        raise ConfigError("--extend needs weights of earlier rounds that a warm start has dropped: begin a new search.")
    if not state.rounds or len(state.rounds) < len(state.sizes):
        raise ConfigError(
            "--extend adds to a search whose rounds are all open: let `grash resume` bring it there first."
        )
    if (n_trials is None) == (budget is None):
        raise ConfigError("--extend needs either --n-trials or --budget, larger than before.")
    costs = [Fraction(past.plan.fidelity) for past in state.rounds]
    if n_trials is not None:
        if n_trials <= state.sizes[0]:
            raise ConfigError(f"--n-trials {n_trials} is no extension: the search has {state.sizes[0]} already.")
        sizes = _grown(n_trials, settings.eta, state.sizes)
    else:
        assert budget is not None
        added = Fraction(str(budget)) - Fraction(str(state.budget))
        if added <= 0:
            raise ConfigError(f"--budget {budget:g} is no extension: the search has {state.budget:g} already.")
        sizes = _more_survivors(state.sizes, costs, added)
        if sizes == state.sizes:
            raise ConfigError(
                f"--budget {budget:g} buys no further trial in a later round: give more, or --n-trials for more "
                f"configurations in the first."
            )
    more = sum((costs[i] * (sizes[i] - state.sizes[i]) for i in range(len(sizes))), Fraction(0))
    return {"sizes": sizes, "budget": float(Fraction(str(state.budget)) + more), "settings": {"n_trials": sizes[0]}}


def _grown(n_trials: int, eta: int, before: list[int]) -> list[int]:
    """Sizes of the same rounds for more trials; never fewer in a round than it had."""
    wanted = round_sizes(n_trials, eta)
    return [max(n, wanted[i] if i < len(wanted) else 2) for i, n in enumerate(before)]


def _more_survivors(sizes: list[int], costs: list[Fraction], added: Fraction) -> list[int]:
    if len(sizes) < 2:
        return list(sizes)
    part = added / (len(sizes) - 1)
    grown = [sizes[0]]
    for i in range(1, len(sizes)):
        grown.append(min(grown[-1], sizes[i] + int(part / costs[i])))
    return grown
