"""Whole searches on a table, in milliseconds: what a round asks for is answered by recorded trainings, and decided by
the real code (`search.halving.next_action`, unchanged). Comes from recorded.py, goes to methods/."""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction

import numpy as np

from grash.errors import ConfigError
from grash.search.halving import new_state, simulate
from grash.search.ledger import SearchState
from grash.search.schedule import cost_of, fitting_trials, plan_round, round_sizes
from grash.search.settings import SearchSettings
from grash.search.trial import Configuration, Round, TrialResult
from grash_study.recorded import Recorded, Scores


def first_round(bench: Recorded, settings: SearchSettings) -> Round:
    """The plan of the first round, which depends on no result."""
    n = entering(bench, settings)
    share = settings.full_budget / max(1, len(round_sizes(n, settings.eta)))
    return plan_round(1, min(share / n, Fraction(1)), share, n, settings, bench)


def round_scores(bench: Recorded, plan: Round, settings: SearchSettings) -> Scores:
    """(n,) by what every member would be judged in a round: its score and its trend, NaN if it diverges."""
    (g, e), there = _fidelity(plan, settings), bench.judge(plan.isolated)
    return there.scores(g, e) + plan.trend * there.rises(g, e)


def _fidelity(plan: Round, settings: SearchSettings) -> tuple[float, float]:
    return (1.0 if plan.whole else plan.graph_fraction), min(1.0, plan.epochs / settings.max_epochs)


def entering(bench: Recorded, settings: SearchSettings) -> int:
    """How many configurations enter the first round: as settings and rails want it."""
    n = fitting_trials(settings, bench)
    if n > bench.n:
        raise ConfigError(f"n_trials={n} are more than the {bench.n} configurations of the table: give fewer.")
    return n


def planned(bench: Recorded, settings: SearchSettings) -> list[Round]:
    """The rounds of a search where no trial diverges."""
    state = search(bench, range(entering(bench, settings)), settings, diverging=False)
    return [past.plan for past in state.rounds]


def search(bench: Recorded, numbers: Sequence[int], settings: SearchSettings, *, diverging: bool = True) -> SearchState:
    """A whole search among these pool members, decided by the real code; configuration i is member numbers[i].
    diverging: if not, what diverges scores 0 after all its epochs."""

    def run_trials(number: int, configurations: Sequence[int]) -> list[TrialResult]:
        return _run_trials(bench, state, settings, number, [(i, numbers[i]) for i in configurations], diverging)

    state = new_state(settings, [Configuration(i, {}, "table") for i in range(len(numbers))])
    return simulate(state, settings, bench, run_trials)


def _run_trials(
    bench: Recorded,
    state: SearchState,
    settings: SearchSettings,
    number: int,
    trials: list[tuple[int, int]],
    diverging: bool,
) -> list[TrialResult]:
    """Return what an engine would that does exactly what the round planned."""
    plan = state.rounds[number - 1].plan
    (g, e), there = _fidelity(plan, settings), bench.judge(plan.isolated)
    scores, rises, seen = (found.tolist() for found in (there.scores(g, e), there.rises(g, e), there.part_seen(g, e)))
    if not diverging:
        scores = np.nan_to_num(scores).tolist()
    before = state.rounds[number - 2].plan.positives if plan.continues else 0
    whole = float(cost_of(plan.positives - before, settings, bench.n_train))
    results = []
    for i, member in trials:
        if math.isnan(scores[member]):
            positives = max(0, math.floor(plan.positives * seen[member]) - before)
            cost = float(cost_of(positives, settings, bench.n_train))
            results.append(TrialResult(number, i, 1, "diverged", positives=positives, cost=cost, message="diverged"))
        else:
            positives = plan.positives - before
            seen_twice = [{"mrr": scores[member] - rises[member]}, {"mrr": scores[member]}]  # no rise: the same twice
            results.append(
                TrialResult(number, i, 1, "ok", mrr=scores[member], history=seen_twice, positives=positives, cost=whole)
            )
    return results
