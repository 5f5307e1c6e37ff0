"""A search in the manner of AutoNE (KDD 2019): small subgraphs teach a Gaussian process, which then asks for full runs.

Five configurations on each of five subgraphs, as far as a third of the budget goes; the process sees the configuration
and a signature of its graph, and the full graph is one more signature. Then the member with the best upper bound on the
full graph is run in full, again and again. AutoNE's signature is a heat trace of the graph; a table knows its sizes.
"""

from __future__ import annotations

import numpy as np

from grash.study.draws import draw
from grash.study.gaussian import Process
from grash.study.methods.trace import Trace, Tracker
from grash.study.recorded import Recorded

KAPPA = 2.576  # standard deviations in the upper bound, as published
LARGEST = 1 / 8  # of the graph: what still counts as a small subgraph


def run(
    bench: Recorded, rng: np.random.Generator, budget: float, *, subgraphs: int = 5, each: int = 5, part: float = 1 / 3
) -> Trace:
    """part: the share of the budget that subgraphs may take."""
    order = draw(bench, rng, bench.n)
    tracker, process = Tracker(bench, budget), Process(bench.points.distances, signatures(bench))
    small = [i for i, g in enumerate(bench.fractions) if g <= LARGEST] or [0]
    for _ in range(subgraphs):
        at = small[int(rng.integers(len(small)))]
        g = float(bench.fractions[at])
        for _ in range(each):
            if len(tracker.first) == len(order) or tracker.cost + g > part * budget + 1e-9:
                break
            member = order[len(tracker.first)]
            tracker.first.append(member)
            process.see(member, at, float(np.nan_to_num(tracker.run([member], g, 1.0, level=0)[0])))
    full, free = len(bench.fractions) - 1, np.ones(bench.n, bool)
    while tracker.affords(1.0) and free.any():
        mean, deviation = process.guess(full)
        member = int(np.argmax(np.where(free, mean + KAPPA * deviation, -np.inf)))
        free[member] = False
        if member not in tracker.first:
            tracker.first.append(member)
        process.see(member, full, float(np.nan_to_num(tracker.run_in_full([member], level=1)[0])))
    return tracker.trace()


def signatures(bench: Recorded) -> np.ndarray:
    """(G, 3) of the graphs: logarithms of entities, triples and triples per entity, each from 0 to 1."""
    entities, triples = (np.log(np.maximum(1, bench.sizes[name])) for name in ("entities", "triples"))
    raw = np.stack([entities, triples, triples - entities], axis=1)
    spread = raw.max(axis=0) - raw.min(axis=0)
    return (raw - raw.min(axis=0)) / np.where(spread > 0, spread, 1.0)
