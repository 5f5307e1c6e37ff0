"""Methods against each other on a table, over many seeds: what they pick, what that cost, and what they had to hand.

Comes from methods/; goes to methods_page.py. A seed gives all methods the same random order of the pool, so that they
are compared in pairs. Intervals are over seeds: they say how sure a mean over draws from this pool is, and nothing
about another pool.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from grash.errors import ConfigError
from grash_study.methods import Method, Trace
from grash_study.recorded import Recorded
from grash_study.statistics import RESAMPLES

_GRID = 320  # costs at which incumbents are looked at
_FIRST_COST = 0.01  # of a full run
BY_VALIDATION = "best validation of its n, all trained in full"
BY_TEST = "best test MRR of its n, all trained in full"
Floats = NDArray[np.float64]
Interval = tuple[float, float]


@dataclass(frozen=True, eq=False)
class Row:
    """One method over S seeds. mrr: mean test MRR of the picks; found: mrr over that of the best among the members that
    it began with, in the mean; gain: mrr less the reference's, seed by seed. Intervals are of 95 %.

    kept: the best member still in the race at each level, over the best that it began with, in the mean. curve
    (costs,): mean test MRR of the incumbents, NaN where a seed has none yet.
    """

    name: str
    cost: float
    most: float  # that a seed cost
    mrr: float
    mrr_interval: Interval
    found: float
    found_interval: Interval
    gain: float
    gain_interval: Interval
    wins: float  # shares of the seeds in which its pick is better than the reference's
    losses: float
    kept: tuple[float, ...]
    curve: Floats
    milliseconds: float
    picks: NDArray[np.int64]  # (S,) numbers in the pool; −1 where nothing was found
    costs: Floats
    picked: Floats  # (S,) test MRR of the picks
    best: Floats  # (S,) of the best that it began with

    @property
    def ran(self) -> bool:
        """Whether any seed trained anything: a budget may be too small for all that a method does."""
        return self.most > 0

    @property
    def different(self) -> int:
        """How many configurations were picked over all seeds."""
        return len(set(self.picks[self.picks >= 0].tolist()))


@dataclass(frozen=True, eq=False)
class Comparison:
    """All methods on one table. costs (C,): where curves were looked at. ceilings: what choosing with full trainings of
    all members that the reference began with would come to, by validation and by test. notes: what the table lacks, and
    whose rounds were scored on another graph than asked."""

    bench: Recorded
    budget: float
    seeds: int
    reference: str
    rows: tuple[Row, ...]
    costs: Floats
    ceilings: tuple[Row, ...] = ()
    notes: tuple[str, ...] = ()

    def row(self, name: str) -> Row:
        return next(r for r in self.rows if r.name == name)


def compare(
    bench: Recorded,
    methods: Sequence[Method],
    *,
    seeds: int = 1000,
    budget: float = 3.0,
    reference: str | None = None,
    tell: Callable[[str], None] | None = None,
) -> Comparison:
    """Every method once per seed; one that this table does not suit is left out. reference: the method that the others
    are compared with, the first by default."""
    names = [m.name for m in methods]
    reference = names[0] if reference is None else reference
    if len(set(names)) < len(names) or reference not in names or seeds < 2:
        raise ConfigError(
            f"{len(names)} methods ({', '.join(names)}), compared with {reference!r} over {seeds} seeds: give methods "
            f"with different names, one of them as the reference, and 2 seeds or more."
        )
    longest = max(m.budget or budget for m in methods)
    costs = np.geomspace(_FIRST_COST, longest, _GRID)
    counts = np.random.default_rng(0).multinomial(seeds, np.full(seeds, 1 / seeds), size=RESAMPLES) / seeds
    first = next(m for m in methods if m.name == reference)
    runs, asked = {}, {}
    for method in [first, *(m for m in methods if m is not first)]:
        bench.asked.clear()
        try:
            runs[method.name] = _all_seeds(bench, method, seeds, budget)
        except ConfigError as error:
            if method is first:
                raise
            _say(tell, f"{bench.name}: {method.name} is left out. {error}")
        else:
            asked[method.name] = set(bench.asked)
            _say(tell, f"{bench.name}: {method.name}, {runs[method.name][1]:.2f} ms a search")
    notes = (*bench.notes, *_elsewhere(bench, asked))
    for note in notes:
        _say(tell, f"{bench.name}: {note}")
    base = np.array([t.test_mrr(bench) for t in runs[reference][0]])
    rows = [_row(bench, name, *runs[name], base, costs, counts) for name in names if name in runs]
    judges = ((BY_VALIDATION, np.nan_to_num(bench.full_scores)), (BY_TEST, bench.truth))
    ceilings = [
        _row(bench, name, [_in_full(bench, t.first, judge) for t in runs[reference][0]], 0.0, base, costs, counts)
        for name, judge in judges
    ]
    return Comparison(bench, budget, seeds, reference, tuple(rows), costs, tuple(ceilings), notes)


def _all_seeds(bench: Recorded, method: Method, seeds: int, budget: float) -> tuple[list[Trace], float]:
    """The searches of seeds 0 … S − 1, and the milliseconds that one took."""
    began = time.perf_counter()
    traces = [method(bench, seed, budget) for seed in range(seeds)]
    return traces, 1e3 * (time.perf_counter() - began) / seeds


def _elsewhere(bench: Recorded, asked: Mapping[str, set[float]]) -> list[str]:
    """A sentence where rounds were scored on another graph than asked: on which, of which methods, for which g."""
    found: dict[float, dict[str, list[float]]] = {}
    for name, fractions in asked.items():
        for g in sorted(fractions):
            if (there := bench.answered_by(g)) is not None:
                found.setdefault(there, {}).setdefault(name, []).append(g)
    return [
        f"Some rounds were scored on a {'smaller' if there < 1 else 'larger'} graph than asked, g = {there:.3g}, since "
        f"the table has no subgraph as large as they ask for: "
        + "; ".join(f"{name} (g = {_listed(fractions)})" for name, fractions in methods.items())
        + "."
        for there, methods in found.items()
    ]


def _listed(fractions: Sequence[float]) -> str:
    return ", ".join(dict.fromkeys(f"{g:.3g}" for g in fractions))


def _in_full(bench: Recorded, first: Sequence[int], judge: Floats) -> Trace:
    """A search that trains all that it begins with in full, and takes the best by `judge` (n,)."""
    cost = float(bench.part_seen(1.0, 1.0)[list(first)].sum())
    pick = max(first, key=lambda member: float(judge[member]))
    return Trace(((cost, pick),), pick, tuple(first), cost, (tuple(first),))


def _say(tell: Callable[[str], None] | None, sentence: str) -> None:
    if tell is not None:
        tell(sentence)


def _row(
    bench: Recorded, name: str, traces: list[Trace], milliseconds: float, base: Floats, costs: Floats, counts: Floats
) -> Row:
    picked = np.array([t.test_mrr(bench) for t in traces])
    best = np.array([bench.best_of(t.first) for t in traces])
    spent = np.array([t.cost for t in traces])
    means = counts @ picked
    shares = means / np.maximum(counts @ best, 1e-12)
    return Row(
        name=name,
        cost=float(spent.mean()),
        most=float(spent.max()),
        mrr=float(picked.mean()),
        mrr_interval=_interval(means),
        found=float(picked.mean() / max(best.mean(), 1e-12)),
        found_interval=_interval(shares),
        gain=float((picked - base).mean()),
        gain_interval=_interval(counts @ (picked - base)),
        wins=float((picked > base).mean()),
        losses=float((picked < base).mean()),
        kept=_kept(bench, traces, best),
        curve=anytime(bench, traces, costs),
        milliseconds=milliseconds,
        picks=np.array([-1 if t.pick is None else bench.members[t.pick] for t in traces]),
        costs=spent,
        picked=picked,
        best=best,
    )


def anytime(bench: Recorded, traces: Sequence[Trace], costs: Floats) -> Floats:
    """(C,) mean test MRR of the incumbents once so much has been spent; NaN where a seed has none yet."""
    total = np.zeros(len(costs))
    for trace in traces:
        if not trace.points:
            continue
        at = np.array([cost for cost, _ in trace.points])
        truth = bench.truth[[member for _, member in trace.points]]
        last = np.searchsorted(at, costs * (1 + 1e-9), side="right") - 1
        total += np.where(last >= 0, truth[last], np.nan)
    return total / len(traces)


def _kept(bench: Recorded, traces: Sequence[Trace], best: Floats) -> tuple[float, ...]:
    """Where the best is lost: level by level, what the best of those that were trained there comes to."""
    depth = max(len(t.levels) for t in traces)
    found = []
    for level in range(depth):
        left = np.array([bench.best_of(t.levels[level]) if level < len(t.levels) else 0.0 for t in traces])
        found.append(float(left.mean() / max(best.mean(), 1e-12)))
    return tuple(found)


def _interval(means: Floats) -> Interval:
    low, high = np.quantile(means, [0.025, 0.975])
    return float(low), float(high)
