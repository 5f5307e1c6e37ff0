"""Two stages in the manner of KGTuner (ACL 2022): a model-based search on a fifth of the graph, then its best in full.

As published: 50 trials for all epochs on the subgraph and ten full runs, which cost about 20; a smaller budget is cut
down alike. Its classifier of the best quarter (BORE, random forest) is here the ratio of densities that it estimates;
its subgraph by random walks is a fifth of the graph along the table's chain, and its shrunken space the pool's.
"""

from __future__ import annotations

import math

import numpy as np

from grash.study.draws import draw
from grash.study.methods.trace import Trace, Tracker, best_first
from grash.study.parzen import next_member
from grash.study.recorded import Recorded

GRAPH = 0.2
GOOD = 0.25  # of the trials: what its classifier learns to tell from the rest


def run(bench: Recorded, rng: np.random.Generator, budget: float) -> Trace:
    """Half of the budget each, with at least two full runs where it pays for them."""
    in_full = max(2, math.floor(budget / 2)) if budget >= 2 + 2 * GRAPH else 0
    n = min(bench.n, math.floor((budget - in_full) / GRAPH + 1e-9))
    tracker, order = Tracker(bench, budget), draw(bench, rng, bench.n)
    first, free = max(2, n // 5), np.ones(bench.n, bool)
    scores: list[float] = []
    for _ in range(n):
        seen = tracker.first
        random = len(seen) < first
        member = order[len(seen)] if random else next_member(bench.points, seen, scores, free, top=GOOD)
        free[member] = False
        tracker.first.append(member)
        scores.append(float(tracker.run([member], GRAPH, 1.0, level=0)[0]))
    for member in best_first(tracker.first, np.array(scores))[:in_full]:
        tracker.run_in_full([member], level=1)
    return tracker.trace()
