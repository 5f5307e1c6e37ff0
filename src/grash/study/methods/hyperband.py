"""Hyperband over our rounds: several searches of fewer rounds each, which all end in the same last round.

Bracket k begins with round k of the search and goes through the rest of them, at their fidelities, with a part
2/(s + 1) of their trials (s rounds): together they cost the budget. All finalists are compared on one graph, with the
held-out triples of a search's last round.
"""

from __future__ import annotations

import numpy as np

from grash.search.schedule import round_sizes
from grash.study.draws import draw
from grash.study.methods.rungs import split
from grash.study.methods.trace import Trace, Tracker, best_first
from grash.study.recorded import Recorded


def run(
    bench: Recorded, rng: np.random.Generator, budget: float, *, n: int = 64, eta: int = 4, rails: bool = True
) -> Trace:
    """The brackets one after the other, the one with most configurations first."""
    sizes = round_sizes(min(n, bench.n), eta)
    rounds = len(sizes)
    fidelities = [min(1.0, budget / rounds / size) for size in sizes]
    counts = [max(1, int(size * 2 / (rounds + 1) + 1e-9)) for size in sizes]
    order = draw(bench, rng, bench.n)
    tracker, at = Tracker(bench, budget), 0
    for bracket in range(rounds):
        entrants = order[at : at + counts[bracket]]
        at += len(entrants)
        tracker.first += entrants
        for i in range(bracket, rounds):
            g, e = split(bench, fidelities[i], rails=rails)
            entrants = entrants[: counts[i]]
            if not entrants or not tracker.affords(g * e * len(entrants)):
                break
            judge = bench.last_judge(g) if i == rounds - 1 else bench
            seen = judge.part_seen(g, e)
            entrants = best_first(entrants, tracker.bill(entrants, judge.scores(g, e), g, e, level=i, seen=seen))
    return tracker.trace()
