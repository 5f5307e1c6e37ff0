"""GraSH as it is: the decisions of `search.halving` on recorded results, under any preset and settings.

`preset="paper"` has no rails and carries nothing; that it cuts whole cores (ladder) and how it scales negatives are no
part of a table, whose graphs are cut by the chain.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from grash.search.state import SearchState
from grash.study.draws import draw
from grash.study.methods.trace import Trace
from grash.study.recorded import Recorded
from grash.study.table_search import entering, first_round, round_scores, search


def run(
    bench: Recorded,
    rng: np.random.Generator,
    budget: float,
    *,
    preset: str = "default",
    how: str = "random",
    first: float = 0.5,
    batch: int | None = None,
    uniform: float = 0.0,
    **settings: Any,
) -> Trace:
    """One search. how, first, batch, uniform: where its configurations come from (`draws.draw`)."""
    made = bench.settings(preset, budget, tuple(settings.items()))
    n = entering(bench, made)
    scores = round_scores(bench, first_round(bench, made), made) if how == "waves" else None
    numbers = draw(bench, rng, n, how=how, scores=scores, first=first, batch=batch, uniform=uniform)
    return _trace(search(bench, numbers, made), numbers)


def _trace(state: SearchState, numbers: list[int]) -> Trace:
    """The incumbent after every trial: the best so far of the highest round that has a score."""
    points: list[tuple[float, int]] = []
    cost = 0.0
    for past in state.rounds:
        best = -1.0
        for i, result in past.results.items():
            cost += result.cost
            if result.mrr is not None and (judged := result.mrr + past.plan.trend * result.rise) > best:
                best = judged
                points.append((cost, numbers[i]))
    pick = None if state.winner is None else numbers[state.winner]
    levels = tuple(tuple(numbers[i] for i in past.results) for past in state.rounds)
    return Trace(tuple(points), pick, tuple(numbers), cost, levels)
