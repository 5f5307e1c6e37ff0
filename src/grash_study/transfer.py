"""How well reductions predict full training (paper, Fig. 3 and Tab. 1): the cells of the study, and its page.

A technique at budget b gives every configuration a score at b of the cost of a full run. Spearman's ρ compares these
with the best validation MRR of the full trainings, as the paper does, and with their test MRR.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from statistics import median_low
from typing import Any, Literal

from grash.errors import ConfigError
from grash_study.pages import Page, Rows, Series, Value, line_plot, with_interval
from grash_study.statistics import LEARNS, Correlation, rho_difference, spearman
from grash_study.store import HALVES, Cell, Entry, Store, Technique, cells_on, rounded

Reduction = Literal["triples", "walk", "kgtuner", "k-core", "core-order", "epochs", "combined"]
REDUCTIONS: tuple[Reduction, ...] = ("triples", "walk", "kgtuner", "k-core", "core-order", "epochs", "combined")
BUDGETS = HALVES[:-1]
REFERENCE: Reduction = "combined"
_MIN_CONFIGURATIONS = 3  # for a rank correlation
_NO_GRAPH = "no such graph"
_NAMES = {
    "triples": "triple sampling", "walk": "random walk", "kgtuner": "KGTuner's walk", "k-core": "k-core",
    "core-order": "core order", "epochs": "epochs", "combined": "combined",
}  # fmt: skip
_COSTS = ("entities", "triples", "model_bytes", "valid_seconds", "seconds", "together")  # columns of the CSV
_ABOUT_COSTS = (
    "Medians over the configurations of a technique: entities, model (tables of one configuration), one validation, "
    "and a trial (its steps and two validations). Seconds are a configuration's part of the batch that it was trained "
    "in, with `together` others. Batches differ in size, and the first graph of a run includes the start of the "
    "process, so compare seconds of different batches with care."
)
_ABOUT_DIFFERENCES = (
    "ρ of a technique minus that of `combined` at the same budget. Both are over the same n configurations, in every "
    "resample of the 95 % interval too, so these differences are more precise than the intervals above. ▲ and ▼: the "
    "interval is on one side of 0. Without a mark there is no clear difference."
)


@dataclass(frozen=True)
class Found:
    """One technique at one budget."""

    reduction: Reduction
    budget: float
    all: Correlation  # with full validation, over all configurations
    learning: Correlation  # the same over those that learn
    tested: Correlation  # with the test MRR, over all
    impossible: bool = False  # there is no such graph
    scores: dict[int, float] = field(default_factory=dict)  # by configuration
    counted: tuple[int, ...] = ()  # the configurations that ρ is over, the same at every budget
    cost: tuple[Any, ...] = (None,) * 6  # medians of _COSTS; None if no trial ran


def check_reductions(names: str) -> tuple[Reduction, ...]:
    """Return the reductions of a list with commas."""
    chosen = [name.strip() for name in names.split(",") if name.strip()]
    for name in chosen:
        if name not in REDUCTIONS:
            raise ConfigError(f"There is no technique {name!r}: give some of {', '.join(REDUCTIONS)}.")
    return tuple(r for r in REDUCTIONS if r in chosen)


def transfer_cells(
    n: int, *, reductions: Sequence[Reduction] = REDUCTIONS, budgets: Sequence[float] = BUDGETS
) -> list[Cell]:
    """Return the full trainings first, then the others from the smallest to the largest budget."""
    cells = cells_on("whole", 1.0, range(n))
    for budget in sorted(budgets):
        for reduction in reductions:
            technique, graph, epochs = _fidelity(reduction, budget)
            if technique != "whole":
                cells += cells_on(technique, graph, range(n), upto=epochs)
    return cells


def analyze(
    store: Store, n: int, *, reductions: Sequence[Reduction] = REDUCTIONS, budgets: Sequence[float] = BUDGETS
) -> list[Found]:
    """Return the correlations of what the store has so far, over the first n configurations."""
    truth, full = full_test(store, n), full_valid(store, n)
    return [f for r in reductions for f in _analyze_technique(store, r, sorted(budgets), truth, full)]


def differences(found: Sequence[Found], full: dict[int, float]) -> dict[tuple[Reduction, float], Correlation]:
    """Return ρ of every technique minus that of `combined` at the same budget, over the configurations of both."""
    base = {f.budget: f for f in found if f.reduction == REFERENCE}
    differ = {}
    for f in (f for f in found if f.reduction != REFERENCE and f.budget in base):
        other = base[f.budget]
        both = [n for n in f.counted if n in other.scores]
        mine, theirs, truth = ([values[n] for n in both] for values in (f.scores, other.scores, full))
        differ[f.reduction, f.budget] = rho_difference(mine, theirs, truth)
    return differ


def full_test(store: Store, n: int) -> dict[int, float]:
    """Return the test MRR of the full trainings that are there; 0 for those that diverged."""
    return {number: e.test["mrr"] if e.test else 0.0 for number, e in store.full_trainings(n).items()}


def full_valid(store: Store, n: int) -> dict[int, float]:
    """Return the best validation MRR of the full trainings that are there; 0 for those that diverged."""
    found = store.full_trainings(n).items()
    return {number: max(mrr for _, mrr, _ in e.curve) if e.status == "ok" else 0.0 for number, e in found}


def transfer_page(store: Store, n: int, *, command: str, reductions: Sequence[Reduction] = REDUCTIONS) -> Page:
    """Return the page of a graph: ρ, differences, the same for those that learn, and costs."""
    meta, found = store.meta, analyze(store, n, reductions=reductions)
    truth, full = full_test(store, n), full_valid(store, n)
    learn = sum(v > LEARNS for v in truth.values())
    differ = differences(found, full)
    name = f"transfer-{store.path.stem}"
    page = Page(
        name, f"Which reductions predict full training: {meta['dataset']}", command, store.devices,
        raw=_raw(found, differ), more={".parquet": _scores(found, truth, full)},
    )  # fmt: skip
    page.add(
        f"{meta['model']}, d = {meta['dim']}, `{meta['label']}` space, E = {meta['epochs']:g}: {len(truth)} of {n} "
        f"configurations trained in full, of which {learn} learn (test MRR above {LEARNS}). Spearman's ρ between the "
        f"score at a budget (the better of the validations at its half and its end, on that graph's own validation "
        f"triples) and the best validation of the full training, with a 95 % bootstrap interval over configurations; "
        f"below, the same with its test MRR. What diverges scores 0. A budget is the share of a full run's triples "
        f"that a training sees; `combined` takes its root from the graph (core order) and from the epochs. ρ of "
        f"a technique is over the n configurations that it has at all its budgets, so rows of different n are over "
        f"different configurations. Every score is in the Parquet file above.",
        "## All configurations",
        (name, _plot(found, "all", reductions), "ρ by budget, all configurations"),
        _matrix(found, "all", reductions),
    )
    others = [r for r in reductions if r != REFERENCE]
    if REFERENCE in reductions and others:
        page.add("## Difference to combined", _ABOUT_DIFFERENCES, _by_budget(found, differ, others, _signed))
    page.add(
        f"## Those that learn (test MRR above {LEARNS})",
        (f"{name}-learning", _plot(found, "learning", reductions), "ρ, those that learn"),
        _matrix(found, "learning", reductions),
        "## With the test MRR of the full training, all configurations",
        _matrix(found, "tested", reductions),
        "## What a training costs",
        _ABOUT_COSTS,
        _costs(found, reductions),
    )
    return page


def _fidelity(reduction: Reduction, budget: float) -> tuple[Technique, float, float]:
    """Return (technique, graph fraction, epoch fraction) of a reduction at a budget."""
    if reduction == "epochs":
        return "whole", 1.0, rounded(budget)
    if reduction == "combined":
        return "core-order", rounded(math.sqrt(budget)), rounded(math.sqrt(budget))
    return reduction, rounded(budget), 1.0


def _analyze_technique(
    store: Store, reduction: Reduction, budgets: Sequence[float], truth: dict[int, float], full: dict[int, float]
) -> list[Found]:
    """Return it at all budgets, over the configurations that all of them have; a budget with hardly any is not run."""
    entries, scores = {}, {}
    for budget in budgets:
        technique, graph, epochs = _fidelity(reduction, budget)
        entries[budget] = {n: e for n in truth if (e := store.entry(n, technique, graph)) is not None}
        scores[budget] = {n: score for n, e in entries[budget].items() if (score := e.score(epochs)) is not None}
    shared = set(truth).intersection(*(s for s in scores.values() if len(s) >= _MIN_CONFIGURATIONS))
    results = []
    for b in budgets:
        counted = sorted(shared if len(scores[b]) >= _MIN_CONFIGURATIONS else scores[b])
        learning = [n for n in counted if truth[n] > LEARNS]
        rhos = [
            spearman([scores[b][n] for n in chosen], [against[n] for n in chosen])
            for chosen, against in ((counted, full), (learning, full), (counted, truth))
        ]
        impossible = not scores[b] and any(e.status == "impossible" for e in entries[b].values())
        cost = _cost([entries[b][n] for n in counted], _fidelity(reduction, b)[2])
        results.append(Found(reduction, b, rhos[0], rhos[1], rhos[2], impossible, scores[b], tuple(counted), cost))
    return results


def _cost(entries: list[Entry], epochs: float) -> tuple[Any, ...]:
    """Return the medians of the trials that ran; a trial has its part of the steps and two validations."""
    costs = [
        (e.n_entities, e.n_train, e.model_bytes, e.valid_seconds,
         e.train_seconds * min(1.0, epochs / e.marks[-1]) + 2 * e.valid_seconds, e.together)
        for e in entries if e.status == "ok"
    ]  # fmt: skip
    return tuple(median_low(column) for column in zip(*costs)) or (None,) * len(_COSTS)


def _plot(found: list[Found], which: str, reductions: Sequence[Reduction]) -> str:
    series = []
    for reduction in reductions:
        rhos = [(f.budget, getattr(f, which)) for f in found if f.reduction == reduction]
        points = tuple((budget, c.rho, c.low, c.high) for budget, c in rhos if c.rho is not None)
        series.append(Series(_NAMES[reduction], points))
    low = min((v for s in series for p in s.points for v in p[1:] if v is not None), default=0.0)
    return line_plot(
        series, title="Rank correlation with full training", x_label="budget: share of a full run's cost",
        y_label="Spearman's ρ", xs=[(b, str(Fraction(b))) for b in BUDGETS], log_x=True,
        y_range=(min(0.9, math.floor(low * 10) / 10), 1.02),
    )  # fmt: skip


def _matrix(found: list[Found], which: str, reductions: Sequence[Reduction]) -> Rows:
    """Return a row per technique: the number of configurations, and ρ at every budget."""
    rhos = {(f.reduction, f.budget): getattr(f, which) for f in found}
    return _by_budget(found, rhos, reductions, _rho_text)


def _by_budget(
    found: list[Found],
    rhos: Mapping[tuple[Reduction, float], Correlation],
    reductions: Sequence[Reduction],
    text: Callable[[Correlation], str | None],
) -> Rows:
    budgets = sorted({f.budget for f in found})
    impossible = {(f.reduction, f.budget) for f in found if f.impossible}
    rows: list[tuple[Value, ...]] = []
    for r in reductions:
        cells = [_NO_GRAPH if (r, b) in impossible else text(rhos[r, b]) for b in budgets]
        rows.append((_NAMES[r], max(rhos[r, b].n for b in budgets), *cells))
    return Rows(("technique", "n", *(str(Fraction(b)) for b in budgets)), tuple(rows))


def _signed(c: Correlation) -> str | None:
    if c.rho is None or c.low is None or c.high is None:
        return "–" if c.n else None
    mark = "▲ " if c.low > 0 else "▼ " if c.high < 0 else ""
    return f"{mark}{c.rho:+.2f} [{c.low:+.2f}, {c.high:+.2f}]"


def _rho_text(c: Correlation) -> str | None:
    """Return None where nothing was run, and a dash for too few configurations."""
    return with_interval(c.rho, c.low, c.high) if c.rho is not None else "–" if c.n else None


def _costs(found: list[Found], reductions: Sequence[Reduction]) -> Rows:
    rows: list[tuple[Value, ...]] = []
    for reduction in reductions:
        mine = [f for f in found if f.reduction == reduction]
        if all(f.cost[0] is None and not f.impossible for f in mine):
            rows.append((_NAMES[reduction], None, 0, *(None,) * 6))
            continue
        for f in mine:
            costs: tuple[Value, ...] = (_NO_GRAPH if f.impossible else None,) * 6
            if f.cost[0] is not None:
                n_entities, n_train, n_bytes, valid_seconds, seconds, together = f.cost
                costs = n_entities, n_train, n_bytes / 1e6, 1e3 * valid_seconds, seconds, together
            rows.append((_NAMES[reduction], str(Fraction(f.budget)), len(f.counted), *costs))
    headings = (
        "technique", "budget", "n", "entities", "triples", "model, MB", "validation, ms", "trial, s", "together",
    )  # fmt: skip
    return Rows(headings, tuple(rows))


def _raw(found: list[Found], differ: dict[tuple[Reduction, float], Correlation]) -> Rows:
    nothing = Correlation(0, None)
    headings = (
        "technique", "budget", "n", "rho", "low", "high", "n_learning", "rho_learning", "low_learning",
        "high_learning", "rho_test", "low_test", "high_test", "n_to_combined", "to_combined", "low_to_combined",
        "high_to_combined", *_COSTS, "scores",
    )  # fmt: skip
    rows = [
        (f.reduction, f.budget, f.all.n, f.all.rho, f.all.low, f.all.high, f.learning.n, f.learning.rho,
         f.learning.low, f.learning.high, f.tested.rho, f.tested.low, f.tested.high,
         (d := differ.get((f.reduction, f.budget), nothing)).n, d.rho, d.low, d.high,
         *f.cost, len(f.scores))
        for f in found
    ]  # fmt: skip
    return Rows(headings, tuple(rows))


def _scores(found: list[Found], truth: dict[int, float], full: dict[int, float]) -> Rows:
    """Return every score beside what it is compared with. counted: 1 for those that ρ is over."""
    headings = ("configuration", "technique", "budget", "score", "full_valid_mrr", "full_test_mrr", "counted")
    rows = [
        (number, f.reduction, f.budget, score, full[number], truth[number], int(number in f.counted))
        for f in found for number, score in sorted(f.scores.items())
    ]  # fmt: skip
    return Rows(headings, tuple(rows))
