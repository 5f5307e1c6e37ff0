"""TPE without fidelities: full runs one after the other, each the most promising member given those before it.

With the three runs of B = 3 there is little to learn from; it is here to be compared at larger budgets too.
"""

from __future__ import annotations

import numpy as np

from grash.study.draws import draw
from grash.study.methods.trace import Trace, Tracker
from grash.study.parzen import next_member
from grash.study.recorded import Recorded


def run(bench: Recorded, rng: np.random.Generator, budget: float, *, first: int = 2, top: float = 0.2) -> Trace:
    """first: runs at random before there is a model."""
    tracker, order = Tracker(bench, budget), draw(bench, rng, bench.n)
    free = np.ones(bench.n, bool)
    scores: list[float] = []
    while tracker.affords(1.0) and free.any():
        seen = tracker.first
        member = order[len(seen)] if len(seen) < first else next_member(bench.points, seen, scores, free, top=top)
        free[member] = False
        tracker.first.append(member)
        scores.append(float(tracker.run_in_full([member])[0]))
    return tracker.trace()
