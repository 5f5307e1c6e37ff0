"""Which reductions foretell full training (paper, Fig. 3 and Tab. 1): the cells of the study, and its page.

Comes from foretell.py, which reads a store; goes to a page with ρ by technique and budget, how far techniques lie
apart, what they cost, and every score in a Parquet file.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal

from grash.errors import ConfigError
from grash.study.cells import Cell, cells_on
from grash.study.foretell import (
    BUDGETS,
    REDUCTIONS,
    REFERENCE,
    Found,
    Reduction,
    analyse,
    differences,
    full_scores,
    full_valid,
    place_of,
)
from grash.study.pages import Page, Rows, Value, share_words, with_interval
from grash.study.plots import Series, line_plot
from grash.study.statistics import LEARNS, Correlation
from grash.study.store import Store

Which = Literal["all", "learning", "tested"]
_NONE = "no such graph"
_WORDS = {
    "triples": "triple sampling", "walk": "random walk", "kgtuner": "KGTuner's walk", "ladder": "k-core ladder",
    "chain": "chain", "epochs": "epochs", "combined": "combined",
}  # fmt: skip
_COSTS = (
    "Medians over the configurations of a technique: entities, model (tables of one configuration), one validation, "
    "and a trial (its steps and two validations). Seconds are a configuration's share of those of the batch that it "
    "was trained in, of so many `together`: batches differ in size, and the first graph of a run has the start of the "
    "process in it, so that seconds of different batches compare roughly."
)
_APART = (
    "ρ of a technique less that of `combined` at the same budget. Both are over the same n configurations, also in "
    "every resample of the 95 % interval, so that these differences tell more than the intervals above. ▲ and ▼: the "
    "interval lies on one side of 0, each by itself; without a mark the two cannot be told apart."
)


def transfer_cells(
    n: int, *, reductions: Sequence[Reduction] = REDUCTIONS, budgets: Sequence[float] = BUDGETS
) -> list[Cell]:
    """The full trainings first, then from the cheapest graph to the dearest."""
    cells = cells_on("whole", 1.0, range(n))
    for budget in sorted(budgets):
        for reduction in reductions:
            technique, graph, epochs = place_of(reduction, budget)
            if technique != "whole":
                cells += cells_on(technique, graph, range(n), upto=epochs)
    return cells


def transfer_page(store: Store, n: int, *, command: str, reductions: Sequence[Reduction] = REDUCTIONS) -> Page:
    """The page of a graph: a plot and a table of ρ, how far techniques lie apart, the same for those that learn, and
    costs."""
    meta, found = store.meta, analyse(store, n, reductions=reductions)
    truth, full = full_scores(store, n), full_valid(store, n)
    learn = sum(v > LEARNS for v in truth.values())
    devices = sorted({e.device for e in store.entries.values()})
    name = f"transfer-{store.path.stem}"
    page = Page(
        name, f"Which reductions foretell full training: {meta['dataset']}", command,
        ", ".join(devices), raw=_raw(found, full), more={".parquet": _scores(found, truth, full)},
    )  # fmt: skip
    page.add(
        f"{meta['model']}, d = {meta['dim']}, `{meta['label']}` space, E = {meta['epochs']:g}: {len(truth)} of {n} "
        f"configurations trained in full, of which {learn} learn (test MRR above {LEARNS}). Spearman's ρ between the "
        f"score at a budget (the better of the validations at its half and its end, on that graph's own validation "
        f"triples) and the best validation of the full training, with a 95 % bootstrap interval over configurations; "
        f"below, the same with its test MRR. What diverges scores 0. A budget "
        f"is the share of a full run's triples that one training sees; `combined` takes the root of it from the graph "
        f"(chain) and from the epochs. A technique rests on the n configurations that it has at all its budgets, so "
        f"that lines of different n are over different ones; every score is in the Parquet file above.",
        "## All configurations",
        (name, _plot(found, "all", reductions), "ρ against budget, all configurations"),
        _matrix(found, "all", reductions),
    )
    if REFERENCE in reductions and len(reductions) > 1:
        page.add(
            "## Difference to combined",
            _APART,
            _apart(found, full, reductions),
        )
    page.add(
        f"## Those that learn (test MRR above {LEARNS})",
        (f"{name}-learning", _plot(found, "learning", reductions), "ρ, those that learn"),
        _matrix(found, "learning", reductions),
        "## With the test MRR of the full training, all configurations",
        _matrix(found, "tested", reductions),
        "## What a training costs",
        _COSTS,
        _costs(found, reductions),
    )
    return page


def check_reductions(names: str) -> tuple[Reduction, ...]:
    """The reductions in a list with commas."""
    chosen = tuple(name.strip() for name in names.split(",") if name.strip())
    for name in chosen:
        if name not in REDUCTIONS:
            raise ConfigError(f"There is no technique {name!r}: give some of {', '.join(REDUCTIONS)}.")
    return tuple(r for r in REDUCTIONS if r in chosen)


def _plot(found: list[Found], which: Which, reductions: Sequence[Reduction]) -> str:
    series = []
    for reduction in reductions:
        points = [
            (f.budget, c.rho, c.low, c.high)
            for f in found
            if f.reduction == reduction and (c := getattr(f, which)).rho is not None
        ]
        series.append(Series(_WORDS[reduction], tuple(points)))
    low = min((v for s in series for p in s.points for v in p[1:] if v is not None), default=0.0)
    ticks = [(b, share_words(b)) for b in BUDGETS]
    return line_plot(
        series, title="Rank correlation with full training", x_label="budget: share of a full run's cost",
        y_label="Spearman's ρ", xs=ticks, log_x=True, y_range=(min(0.9, math.floor(low * 10) / 10), 1.0),
    )  # fmt: skip


def _matrix(found: list[Found], which: Which, reductions: Sequence[Reduction]) -> Rows:
    """A row per technique: over how many configurations, and ρ at every budget."""
    budgets = sorted({f.budget for f in found})
    rows: list[tuple[Value, ...]] = []
    for reduction in reductions:
        mine = {f.budget: f for f in found if f.reduction == reduction}
        cells = [_NONE if mine[b].impossible else _words_of(getattr(mine[b], which)) for b in budgets]
        rows.append((_WORDS[reduction], max(getattr(f, which).n for f in mine.values()), *cells))
    return Rows(("technique", "n", *(share_words(b) for b in budgets)), tuple(rows))


def _apart(found: list[Found], full: dict[int, float], reductions: Sequence[Reduction]) -> Rows:
    """The differences to `combined`, with a mark where there is one."""
    budgets, pairs = sorted({f.budget for f in found}), differences(found, full)
    rows: list[tuple[Value, ...]] = []
    for reduction in (r for r in reductions if r != REFERENCE):
        mine = [pairs[reduction, b] for b in budgets]
        none = {f.budget for f in found if f.reduction == reduction and f.impossible}
        cells = [_NONE if b in none else _signed(c) for b, c in zip(budgets, mine)]
        rows.append((_WORDS[reduction], max(c.n for c in mine), *cells))
    return Rows(("technique", "n", *(share_words(b) for b in budgets)), tuple(rows))


def _signed(c: Correlation) -> str | None:
    if c.rho is None or c.low is None or c.high is None:
        return "–" if c.n else None
    mark = "▲ " if c.low > 0 else "▼ " if c.high < 0 else ""
    return f"{mark}{c.rho:+.2f} [{c.low:+.2f}, {c.high:+.2f}]"


def _words_of(c: Correlation) -> str | None:
    """None where nothing was run; a dash where a rank correlation of so few says nothing."""
    return with_interval(c.rho, c.low, c.high) if c.rho is not None else "–" if c.n else None


def _costs(found: list[Found], reductions: Sequence[Reduction]) -> Rows:
    headings = (
        "technique",
        "budget",
        "n",
        "entities",
        "triples",
        "model, MB",
        "validation, ms",
        "trial, s",
        "together",
    )
    rows: list[tuple[Value, ...]] = []
    for reduction in reductions:
        mine = [f for f in found if f.reduction == reduction]
        if any(f.n_entities is not None or f.impossible for f in mine):
            rows += [(_WORDS[reduction], share_words(f.budget), len(f.counted), *_cost_cells(f)) for f in mine]
        else:
            rows.append((_WORDS[reduction], None, 0, *(None,) * 6))  # one line, as in the tables of ρ
    return Rows(headings, tuple(rows))


def _cost_cells(f: Found) -> tuple[Value, ...]:
    if f.n_entities is None:
        return (_NONE if f.impossible else None,) * 6
    assert f.model_bytes is not None and f.valid_seconds is not None
    return f.n_entities, f.n_train, f.model_bytes / 1e6, 1e3 * f.valid_seconds, f.seconds, f.together


def _raw(found: list[Found], full: dict[int, float]) -> Rows:
    pairs, nothing = differences(found, full), Correlation(0, None)
    headings = ("technique", "budget", "n", "rho", "low", "high", "n_learning", "rho_learning", "low_learning",
                "high_learning", "rho_test", "low_test", "high_test", "n_to_combined",
                "to_combined", "low_to_combined", "high_to_combined",
                "entities", "triples", "model_bytes", "valid_seconds", "seconds", "together", "scores")  # fmt: skip
    rows = [
        (f.reduction, f.budget, f.all.n, f.all.rho, f.all.low, f.all.high, f.learning.n, f.learning.rho,
         f.learning.low, f.learning.high, f.tested.rho, f.tested.low, f.tested.high,
         (d := pairs.get((f.reduction, f.budget), nothing)).n, d.rho, d.low, d.high,
         f.n_entities, f.n_train, f.model_bytes, f.valid_seconds, f.seconds, f.together, len(f.scores))
        for f in found
    ]  # fmt: skip
    return Rows(headings, tuple(rows))


def _scores(found: list[Found], truth: dict[int, float], full: dict[int, float]) -> Rows:
    """Every score beside what it is compared with. counted: 1 for those that ρ is over."""
    headings = ("configuration", "technique", "budget", "score", "full_valid_mrr", "full_test_mrr", "counted")
    rows = [
        (number, f.reduction, f.budget, score, full[number], truth[number], int(number in f.counted))
        for f in found for number, score in sorted(f.scores.items())
    ]  # fmt: skip
    return Rows(headings, tuple(rows))
