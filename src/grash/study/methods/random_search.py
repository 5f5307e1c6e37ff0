"""Random search with full training: as many full runs as the budget pays for, the best validation wins."""

from __future__ import annotations

import numpy as np

from grash.study.draws import draw
from grash.study.methods.trace import Trace, Tracker
from grash.study.recorded import Recorded


def run(bench: Recorded, rng: np.random.Generator, budget: float) -> Trace:
    """A run that diverges is billed for what it saw, and another one takes the rest."""
    tracker = Tracker(bench, budget)
    for member in draw(bench, rng, bench.n):
        if not tracker.affords(1.0):
            break
        tracker.first.append(member)
        tracker.run_in_full([member])
    return tracker.trace()
