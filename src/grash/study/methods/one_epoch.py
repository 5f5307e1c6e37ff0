"""One epoch, then the best k in full (Egele et al. 2023, arXiv 2307.15422): all enter the full graph for one epoch.

Those that go on continue from their first epoch, and only the rest is billed.
"""

from __future__ import annotations

import math

import numpy as np

from grash.study.draws import draw
from grash.study.methods.trace import Trace, Tracker, best_first
from grash.study.recorded import Recorded


def run(bench: Recorded, rng: np.random.Generator, budget: float, *, n: int = 64, least: int = 2) -> Trace:
    """n configurations, or as many as leave the budget for `least` full runs; then as many full runs as it pays for."""
    epoch = min(1.0, 1.0 / bench.max_epochs)
    fitting = math.floor((budget - least * (1.0 - epoch)) / epoch + 1e-9)
    fitting = (
        fitting if fitting >= 2 else math.floor(budget / epoch + 1e-9)
    )  # too little for full runs: the best of one
    tracker = Tracker(bench, budget)
    members = draw(bench, rng, min(n, fitting, bench.n))
    tracker.first += members
    scores = tracker.run(members, 1.0, epoch, level=0)
    for member in best_first(members, scores):
        if not tracker.affords(1.0 - epoch):
            break
        tracker.run_in_full([member], level=1, paid=epoch)
    return tracker.trace()
