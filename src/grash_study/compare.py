"""Compare methods on a table over many seeds, and write the page of a comparison.

A seed gives all methods the same random order of the pool, so they are compared in pairs. Intervals are over seeds:
they show how certain a mean over draws from this pool is, and nothing about another pool.
"""

from __future__ import annotations

import math
import re
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from grash.errors import ConfigError
from grash_study.methods import Method, Trace
from grash_study.pages import Page, Rows, Series, Value, bar_plot, line_plot, with_interval, write_page
from grash_study.pool import pool_name
from grash_study.recorded import Recorded
from grash_study.statistics import LEARNS, RESAMPLES, spearman
from grash_study.store import rounded

_N_COSTS = 320  # costs at which incumbents are compared
_FIRST_COST = 0.01  # of a full run
_BUDGET = 3.0  # pages of other budgets have it in their name
BY_VALIDATION = "best validation of its n, all trained in full"
BY_TEST = "best test MRR of its n, all trained in full"
Floats = NDArray[np.float64]
Interval = tuple[float, float]


@dataclass(frozen=True, eq=False)
class Row:
    """One method over S seeds. Intervals are of 95 %."""

    name: str
    cost: float
    most: float  # highest cost of a seed
    mrr: float  # mean test MRR of the picks
    mrr_interval: Interval
    found: float  # mrr over that of the best among the members that it started with
    found_interval: Interval
    gain: float  # mrr minus that of the reference, seed by seed
    gain_interval: Interval
    wins: float  # share of the seeds in which its pick is better than that of the reference
    losses: float
    kept: tuple[float, ...]  # best member that is left at each level, over the best that it started with
    curve: Floats  # (costs,) mean test MRR of the incumbents; NaN if a seed has none yet
    milliseconds: float
    picks: NDArray[np.int64]  # (S,) numbers in the pool; −1 if nothing was found
    costs: Floats  # (S,)
    picked: Floats  # (S,) test MRR of the picks
    best: Floats  # (S,) of the best that it started with

    @property
    def ran(self) -> bool:
        """Whether any seed trained anything: a budget may be too small for a method."""
        return self.most > 0

    @property
    def different(self) -> int:
        """Number of configurations that were picked over all seeds."""
        return len(set(self.picks[self.picks >= 0].tolist()))


@dataclass(frozen=True, eq=False)
class Comparison:
    """All methods on one table."""

    bench: Recorded
    budget: float
    seeds: int
    reference: str
    rows: tuple[Row, ...]
    costs: Floats  # (C,) at which curves were evaluated
    ceilings: tuple[Row, ...]  # choosing by validation and by test, after full trainings of the reference's members

    def row(self, name: str) -> Row:
        return next(r for r in self.all_rows if r.name == name)

    @property
    def all_rows(self) -> tuple[Row, ...]:
        return (*self.rows, *self.ceilings)


def compare(
    bench: Recorded,
    methods: Sequence[Method],
    *,
    seeds: int = 1000,
    budget: float = 3.0,
    say: Callable[[str], None] = lambda line: None,
) -> Comparison:
    """Run every method once per seed; one that does not suit this table is left out. The first is the reference."""
    names = [m.name for m in methods]
    if not names or len(set(names)) < len(names) or seeds < 2:
        raise ConfigError(
            f"{len(names)} methods ({', '.join(names)}) over {seeds} seeds: give methods with different names, and 2 "
            f"seeds or more."
        )
    reference = names[0]
    costs = np.geomspace(_FIRST_COST, max(m.budget or budget for m in methods), _N_COSTS)
    counts = np.random.default_rng(0).multinomial(seeds, np.full(seeds, 1 / seeds), size=RESAMPLES) / seeds
    runs = {}
    for method in methods:
        start = time.perf_counter()
        try:
            traces = [method(bench, seed, budget) for seed in range(seeds)]
        except ConfigError as error:
            if method.name == reference:
                raise
            say(f"{bench.name}: {method.name} is left out. {error}")
            continue
        milliseconds = 1e3 * (time.perf_counter() - start) / seeds
        runs[method.name] = (traces, milliseconds)
        say(f"{bench.name}: {method.name}, {milliseconds:.2f} ms a search")
    base = np.array([t.test_mrr(bench) for t in runs[reference][0]])
    rows = [_row(bench, name, *found, base, costs, counts) for name, found in runs.items()]
    judges = ((BY_VALIDATION, np.nan_to_num(bench.full_scores)), (BY_TEST, bench.truth))
    ceilings = [
        _row(bench, name, [_all_in_full(bench, t.first, judge) for t in runs[reference][0]], 0.0, base, costs, counts)
        for name, judge in judges
    ]
    return Comparison(bench, budget, seeds, reference, tuple(rows), costs, tuple(ceilings))


def anytime(bench: Recorded, traces: Sequence[Trace], costs: Floats) -> Floats:
    """Return (C,) mean test MRR of the incumbents at these costs; NaN if a seed has none yet."""
    total = np.zeros(len(costs))
    for trace in (t for t in traces if t.points):
        at = np.array([cost for cost, _ in trace.points])
        truth = bench.truth[[member for _, member in trace.points]]
        last = np.searchsorted(at, costs * (1 + 1e-9), side="right") - 1
        total += np.where(last >= 0, truth[last], np.nan)
    return total / len(traces)


def _all_in_full(bench: Recorded, first: Sequence[int], judge: Floats) -> Trace:
    """Return a search that trains all its members in full, and takes the best by `judge` (n,)."""
    cost = float(bench.part_seen(1.0, 1.0)[list(first)].sum())
    pick = max(first, key=lambda member: float(judge[member]))
    return Trace(((cost, pick),), pick, tuple(first), cost, (tuple(first),))


def _row(
    bench: Recorded, name: str, traces: list[Trace], milliseconds: float, base: Floats, costs: Floats, counts: Floats
) -> Row:
    picked = np.array([t.test_mrr(bench) for t in traces])
    best = np.array([bench.best_of(t.first) for t in traces])
    spent = np.array([t.cost for t in traces])
    means, least = counts @ picked, 1e-12
    depth = max(len(t.levels) for t in traces)
    left = [[bench.best_of(t.levels[i]) if i < len(t.levels) else 0.0 for t in traces] for i in range(depth)]
    return Row(
        name=name,
        cost=float(spent.mean()),
        most=float(spent.max()),
        mrr=float(picked.mean()),
        mrr_interval=_interval(means),
        found=float(picked.mean() / max(best.mean(), least)),
        found_interval=_interval(means / np.maximum(counts @ best, least)),
        gain=float((picked - base).mean()),
        gain_interval=_interval(counts @ (picked - base)),
        wins=float((picked > base).mean()),
        losses=float((picked < base).mean()),
        kept=tuple(float(np.mean(level) / max(best.mean(), least)) for level in left),
        curve=anytime(bench, traces, costs),
        milliseconds=milliseconds,
        picks=np.array([-1 if t.pick is None else bench.members[t.pick] for t in traces]),
        costs=spent,
        picked=picked,
        best=best,
    )


def _interval(means: Floats) -> Interval:
    low, high = np.quantile(means, [0.025, 0.975])
    return float(low), float(high)


_TITLES = {"methods": "Methods compared", "sweep": "Changes of the default search"}
_RAW = (
    "graph", "method", "seeds", "budget", "cost", "most_cost", "test_mrr", "test_mrr_low", "test_mrr_high",
    "of_its_best", "of_its_best_low", "of_its_best_high", "gain", "gain_low", "gain_high", "better", "worse",
    "best_left", "milliseconds", "different_picks",
)  # fmt: skip
_EXPLAINED = "docs/reference/methods.md explains methods, rows and columns, and what a table cannot judge."


def write_methods_page(found: Comparison, folder: Path, *, kind: str = "methods", command: str = "") -> Path:
    """Write the page, its numbers and plots into a folder; return the page's path.

    kind: methods, sweep or settings-FILE; it is part of file names, as is a budget other than 3.
    """
    meta, bench = found.bench.table.meta, found.bench
    name = _file_name(found, kind, pool_name(meta))
    page = Page(name, _title(kind, bench.name), command, _machines([found]), raw=_raw(found))
    page.more[".parquet"] = _seeds(found)
    page.add(
        f"{meta['model']}, d = {meta['dim']}, E = {meta['epochs']:g}, space `{meta.get('label', meta['space'])}`: "
        f"{bench.n} configurations, {found.seeds:,} seeds, B = {found.budget:g} full runs. Compared with "
        f"**{found.reference}** seed by seed; the Parquet file has what every seed picked. "
        + _caveat(str(bench.n), found.seeds),
        summary(found),
        *([(f"{name}-curves", _curves(found), "Test MRR of the incumbent by cost")] if kind == "methods" else []),
        (f"{name}-gains", _gains(found), "Gain in test MRR over the reference"),
        "## How well the rounds of the default search predict",
        f"Spearman's ρ between a round's scores and the best validation of the full trainings, over the whole pool and "
        f"over those that learn (test MRR above {LEARNS}), and with the test MRR. What diverges scores 0.",
        _rounds(found),
        _EXPLAINED,
    )
    return write_page(page, folder)


def write_overview(several: Sequence[Comparison], folder: Path, *, kind: str = "methods", command: str = "") -> Path:
    """Write one page over several tables: every method's gain on each, and its mean relative to the reference's MRR."""
    first = several[0]
    names = list(dict.fromkeys(r.name for found in several for r in found.all_rows))
    rows = [(name, *(_gain_cell(found, name) for found in several), _mean_gain(several, name)) for name in names]
    pools = [pool_name(found.bench.table.meta) for found in several]
    raw = Rows(_RAW, tuple(row for found in several for row in _raw(found).rows))
    name = _file_name(first, kind, "overview")
    page = Page(name, _title(kind, "all tables"), command, _machines(several), raw=raw)
    page.add(
        f"Test MRR of the pick at B = {first.budget:g}, mean over {first.seeds:,} seeds, and its gain over "
        f"**{first.reference}**: ▲ and ▼ if the 95 % interval is on one side of 0. The last column is the mean of the "
        f"gains relative to the reference's MRR. Pages of the tables: "
        + ", ".join(f"[{pool}]({_file_name(f, kind, pool)}.md)" for pool, f in zip(pools, several))
        + ". "
        + _caveat(" or ".join(dict.fromkeys(str(f.bench.n) for f in several)), first.seeds),
        Rows(("method", *pools, "mean gain"), tuple(rows)),
        f"The last two rows train all n configurations of **{first.reference}** in full; the very last profits from "
        f"noise of the test triples.",
        _EXPLAINED,
    )
    return write_page(page, folder)


def curve_points(found: Comparison, row: Row) -> tuple[tuple[float, float, None, None], ...]:
    """Return the line of a method: from where all seeds have an incumbent to where every seed has its pick."""
    before = [(float(c), float(v)) for c, v in zip(found.costs, row.curve) if not math.isnan(v) and c < row.most]
    return tuple((c, v, None, None) for c, v in [*before, (row.most, row.mrr)])


def _caveat(n: str, seeds: int) -> str:
    return (
        f"All seeds on a table draw from one pool of {n} configurations, each trained once: {seeds:,} seeds are not "
        f"{seeds:,} independent graphs, pools or trainings, and the intervals (95 %, over seeds) do not cover others; "
        f"a method that draws most of the pool differs little between seeds."
    )


def _title(kind: str, graph: str) -> str:
    own = f"The default search and the settings of `{kind.removeprefix('settings-')}`"
    return f"{_TITLES.get(kind, own)} on {graph}"


def _file_name(found: Comparison, kind: str, rest: str) -> str:
    kind = re.sub(r"[^\w.-]+", "_", kind)
    return f"{kind}-{rest}" + ("" if found.budget == _BUDGET else f"-b{found.budget:g}")


def _machines(several: Sequence[Comparison]) -> str:
    devices = sorted({str(found.bench.table.meta.get("device", "")) for found in several} - {""})
    trained = f"{', '.join(devices)} (the trainings) and " if devices else ""
    return f"{trained}the CPU of the machine that wrote this page (the searches)"


def summary(found: Comparison) -> Rows:
    """Return the main table of a page: a row per method."""
    headings = (
        "method", "cost", "test MRR", "of its best", "gain", "better, worse", "different picks", "best left",
        "ms a search",
    )  # fmt: skip
    rows: list[tuple[Value, ...]] = []
    for r in found.all_rows:
        ceiling, name = r in found.ceilings, f"**{r.name}**" if r.name == found.reference else r.name
        low, high = r.gain_interval
        gains = (f"{r.gain:+.4f} [{low:+.4f}, {high:+.4f}]", f"{r.wins:.0%}, {r.losses:.0%}")
        numbers: tuple[Value, ...] = (
            with_interval(r.mrr, *r.mrr_interval, 4), with_interval(r.found, *r.found_interval, 3),
            *(("", "") if r.name == found.reference else gains), r.different, " ".join(f"{k:.3f}" for k in r.kept),
        ) if r.ran else ("–", "–", "–", "–", r.different, "–")  # fmt: skip
        milliseconds = "" if ceiling else f"{r.milliseconds:.1f}"
        rows.append((f"*{name}*" if ceiling else name, f"{r.cost:.2f}", *numbers, milliseconds))
    return Rows(headings, tuple(rows))


def _gain_cell(found: Comparison, name: str) -> str:
    row = next((r for r in found.all_rows if r.name == name), None)
    if row is None or not row.ran:
        return "–"
    low, high = row.gain_interval
    sign = "▲" if low > 0 else "▼" if high < 0 else "="
    return f"{row.mrr:.4f}" if name == found.reference else f"{row.mrr:.4f} {sign} {row.gain:+.4f}"


def _mean_gain(several: Sequence[Comparison], name: str) -> str:
    """Return the mean over the tables; a dash if the method trained nothing on one of them."""
    gains = [
        r.gain / max(found.row(found.reference).mrr, 1e-12)
        for found in several
        for r in found.all_rows
        if r.name == name and r.ran
    ]
    return "–" if len(gains) < len(several) else f"{np.mean(gains):+.2%}"


def _curves(found: Comparison) -> str:
    return line_plot(
        [Series(r.name, curve_points(found, r)) for r in found.rows if r.ran],
        title=f"{found.bench.name}: mean over {found.seeds:,} seeds",
        x_label="cost so far, in full runs",
        y_label="test MRR of the incumbent",
        log_x=True,
        size=(9.0, 5.0),
    )


def _gains(found: Comparison) -> str:
    """The best by test MRR is not shown: no search can aim at it."""
    shown = [r for r in (*found.rows, *found.ceilings[:1]) if r.name != found.reference and r.ran]
    title = f"{found.bench.name}: gain over {found.reference}, paired"
    bars = [(r.name, r.gain, *r.gain_interval) for r in shown]
    highlighted = [r.name for r in found.ceilings]
    return bar_plot(bars, title=title, x_label="gain in test MRR", mark=0.0, highlighted=highlighted)


def _rounds(found: Comparison) -> Rows:
    """Return the rounds of the default search on this table, and how well their scores order the whole pool."""
    bench = found.bench
    settings = bench.settings("default", found.budget, ())
    full, everyone, learns = np.nan_to_num(bench.full_scores), np.ones(bench.n, bool), bench.truth > LEARNS
    rows: list[tuple[Value, ...]] = []
    for plan in bench.planned(settings):
        scores = np.nan_to_num(bench.round_scores(plan, settings))
        rhos = [
            spearman(scores[who], truth[who])
            for who, truth in ((everyone, full), (learns, full), (everyone, bench.truth))
        ]
        graph = 1.0 if plan.whole else plan.graph_fraction
        head = (plan.number, plan.n_trials, f"{graph:.3f}", f"{plan.epochs:.2f}", plan.n_entities)
        rows.append((*head, *(with_interval(c.rho, c.low, c.high) or "–" for c in rhos)))
    headings = ("round", "trials", "graph", "epochs", "entities", "ρ, all", "ρ, those that learn", "ρ with test MRR")
    return Rows(headings, tuple(rows))


def _raw(found: Comparison) -> Rows:
    rows: list[tuple[Value, ...]] = []
    for r in found.all_rows:
        numbers = (
            r.mrr, *r.mrr_interval, r.found, *r.found_interval, r.gain, *r.gain_interval, r.wins, r.losses,
        )  # fmt: skip
        short: list[Value] = [rounded(v, 6) for v in (r.cost, r.most)]
        short += [rounded(v, 6) if r.ran else None for v in numbers]
        kept = " ".join(f"{k:.4f}" for k in r.kept) if r.ran else ""
        head = (found.bench.name, r.name, found.seeds, found.budget)
        rows.append((*head, *short, kept, round(r.milliseconds, 3), r.different))
    return Rows(_RAW, tuple(rows))


def _seeds(found: Comparison) -> Rows:
    """Return a row per method and seed: what was picked, its cost and test MRR, and that of the best at hand."""
    columns = ((r.name, zip(*(c.tolist() for c in (r.picks, r.costs, r.picked, r.best)))) for r in found.all_rows)
    rows = tuple((name, seed, *numbers) for name, seeds in columns for seed, numbers in enumerate(seeds))
    return Rows(("method", "seed", "pick", "cost", "test_mrr", "best_at_hand"), rows)
