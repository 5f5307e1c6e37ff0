"""Which reductions foretell full training (paper, Fig. 3 and Tab. 1): rank correlation by technique and budget.

A technique at budget b gives every configuration a score at b of a full run's cost; Spearman's ρ compares these with
the validation MRR of the full trainings, as the paper does, and beside it with their test MRR. What diverges scores
0. Beside that, what a technique costs. Comes from a store, goes to a page.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any, Literal

from grash.errors import ConfigError
from grash.study.cells import HALVES, Cell, Entry, Technique, cells_on, rounded
from grash.study.pages import Page, Rows, Value, share_words, with_interval
from grash.study.plots import Series, line_plot
from grash.study.statistics import LEARNS, Correlation, spearman
from grash.study.store import Store

Reduction = Literal["triples", "walk", "kgtuner", "ladder", "chain", "epochs", "combined"]
REDUCTIONS: tuple[Reduction, ...] = ("triples", "walk", "kgtuner", "ladder", "chain", "epochs", "combined")
BUDGETS = HALVES[:-1]
_NONE = "no such graph"
_WORDS = {
    "triples": "triple sampling", "walk": "random walk", "kgtuner": "KGTuner's walk", "ladder": "k-core ladder",
    "chain": "chain", "epochs": "epochs", "combined": "combined",
}  # fmt: skip


@dataclass(frozen=True)
class Found:
    """One technique at one budget: ρ with full validation over all configurations and over those that learn, ρ with
    the test MRR over all, and what one training takes. impossible: there is no such graph."""

    reduction: Reduction
    budget: float
    all: Correlation
    learning: Correlation
    tested: Correlation
    impossible: bool = False
    n_entities: int | None = None
    n_train: int | None = None
    model_bytes: int | None = None
    valid_seconds: float | None = None
    seconds: float | None = None


def place_of(reduction: Reduction, budget: float) -> tuple[Technique, float, float]:
    """(technique, graph fraction, epoch fraction) of a reduction at a budget; combined takes the root of both."""
    if reduction == "epochs":
        return "whole", 1.0, rounded(budget)
    if reduction == "combined":
        return "chain", rounded(math.sqrt(budget)), rounded(math.sqrt(budget))
    return reduction, rounded(budget), 1.0


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


def analyse(
    store: Store, n: int, *, reductions: Sequence[Reduction] = REDUCTIONS, budgets: Sequence[float] = BUDGETS
) -> list[Found]:
    """What the store says so far, over the first n configurations."""
    truth, full = full_scores(store, n), full_valid(store, n)
    return [_found(store, r, b, truth, full) for r in reductions for b in sorted(budgets)]


def full_scores(store: Store, n: int) -> dict[int, float]:
    """Test MRR of the full trainings that are there; 0 for those that diverged."""
    return {number: e.test["mrr"] if e.test else 0.0 for number, e in _full(store, n).items()}


def full_valid(store: Store, n: int) -> dict[int, float]:
    """The best validation of the full trainings that are there; 0 for those that diverged."""
    found = _full(store, n).items()
    return {number: max(mrr for _, mrr, _ in e.curve) if e.status == "ok" else 0.0 for number, e in found}


def _full(store: Store, n: int) -> dict[int, Entry]:
    found = {number: store.entry(number, "whole", 1.0) for number in range(n)}
    return {number: e for number, e in found.items() if e is not None and e.worked and e.marks[-1] == 1}


def transfer_page(store: Store, n: int, *, command: str, reductions: Sequence[Reduction] = REDUCTIONS) -> Page:
    """The page of a graph: a plot and a table of ρ, the same for those that learn, and costs."""
    meta, found = store.meta, analyse(store, n, reductions=reductions)
    truth = full_scores(store, n)
    learn = sum(v > LEARNS for v in truth.values())
    devices = sorted({e.device for e in store.entries.values()})
    name = f"transfer-{store.path.stem}"
    page = Page(
        name, f"Which reductions foretell full training: {meta['dataset']}", command,
        ", ".join(devices), raw=_raw(found),
    )  # fmt: skip
    page.add(
        f"{meta['model']}, d = {meta['dim']}, `{meta['label']}` space, E = {meta['epochs']:g}: {len(truth)} of {n} "
        f"configurations trained in full, of which {learn} learn (test MRR above {LEARNS}). Spearman's ρ between the "
        f"score at a budget (the better of the validations at its half and its end, on that graph's own validation "
        f"triples) and the best validation of the full training, with a 95 % bootstrap interval over configurations; "
        f"below, the same with its test MRR. What diverges scores 0. A budget "
        f"is the share of a full run's triples that one training sees; `combined` takes the root of it from the graph "
        f"(chain) and from the epochs.",
        "## All configurations",
        (name, _plot(found, "all", reductions), "ρ against budget, all configurations"),
        _matrix(found, "all", reductions),
        f"## Those that learn (test MRR above {LEARNS})",
        (f"{name}-learning", _plot(found, "learning", reductions), "ρ, those that learn"),
        _matrix(found, "learning", reductions),
        "## With the test MRR of the full training, all configurations",
        _matrix(found, "tested", reductions),
        "## What a training costs",
        "Entities, model (tables of one configuration), one validation, and a trial (its steps and two validations), "
        "per configuration among those that were trained together.",
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


def _found(store: Store, reduction: Reduction, budget: float, truth: dict[int, float], full: dict[int, float]) -> Found:
    technique, graph, epochs = place_of(reduction, budget)
    entries = {n: e for n in truth if (e := store.entry(n, technique, graph)) is not None}
    scores = {n: score for n, e in entries.items() if (score := e.score(epochs)) is not None}
    both = sorted(scores)
    learning = [n for n in both if truth[n] > LEARNS]
    found = [
        spearman([scores[n] for n in chosen], [against[n] for n in chosen])
        for chosen, against in ((both, full), (learning, full), (both, truth))
    ]
    impossible = not both and any(e.status == "impossible" for e in entries.values())
    cost = _cost([entries[n] for n in both], epochs)
    return Found(reduction, budget, found[0], found[1], found[2], impossible, **cost)


def _cost(entries: list[Entry], epochs: float) -> dict[str, Any]:
    """Of one trial in the middle of all: its share of the steps' seconds, and two validations."""
    ran = [e for e in entries if e.status == "ok"]
    if not ran:
        return {}
    first = ran[0]
    return {
        "n_entities": first.n_entities, "n_train": first.n_train, "model_bytes": first.model_bytes,
        "valid_seconds": median(e.valid_seconds for e in ran),
        "seconds": median(e.train_seconds * min(1.0, epochs / e.marks[-1]) + 2 * e.valid_seconds for e in ran),
    }  # fmt: skip


def _plot(found: list[Found], which: Literal["all", "learning"], reductions: Sequence[Reduction]) -> str:
    series = []
    for reduction in reductions:
        points = [
            (f.budget, c.rho, c.low, c.high)
            for f in found
            if f.reduction == reduction and (c := getattr(f, which)).rho is not None
        ]
        series.append(Series(_WORDS[reduction], tuple(points)))
    low = min((p[1] for s in series for p in s.points), default=0.0)
    ticks = [(b, share_words(b)) for b in BUDGETS]
    return line_plot(
        series, title="Rank correlation with full training", x_label="budget: share of a full run's cost",
        y_label="Spearman's ρ", xs=ticks, log_x=True, y_range=(min(0.0, math.floor(low * 5) / 5), 1.0),
    )  # fmt: skip


def _matrix(found: list[Found], which: Literal["all", "learning", "tested"], reductions: Sequence[Reduction]) -> Rows:
    budgets = sorted({f.budget for f in found})
    rows = []
    for reduction in reductions:
        mine = {f.budget: f for f in found if f.reduction == reduction}
        cells = [_NONE if mine[b].impossible else _words_of(getattr(mine[b], which)) for b in budgets]
        rows.append((_WORDS[reduction], *cells))
    return Rows(("technique", *(share_words(b) for b in budgets)), tuple(rows))


def _words_of(c: Correlation) -> str | None:
    """None where nothing was run; a dash where a rank correlation of so few says nothing."""
    return with_interval(c.rho, c.low, c.high) if c.rho is not None else "–" if c.n else None


def _costs(found: list[Found], reductions: Sequence[Reduction]) -> Rows:
    headings = ("technique", "budget", "entities", "triples", "model, MB", "validation, ms", "trial, s")
    rows: list[tuple[Value, ...]] = []
    for reduction in reductions:
        mine = [f for f in found if f.reduction == reduction]
        if any(f.n_entities is not None or f.impossible for f in mine):
            rows += [(_WORDS[reduction], share_words(f.budget), *_cost_cells(f)) for f in mine]
        else:
            rows.append((_WORDS[reduction], *(None,) * 6))  # one line, as in the tables of ρ
    return Rows(headings, tuple(rows))


def _cost_cells(f: Found) -> tuple[Value, ...]:
    if f.n_entities is None:
        return (_NONE if f.impossible else None,) * 5
    assert f.model_bytes is not None and f.valid_seconds is not None
    return f.n_entities, f.n_train, f.model_bytes / 1e6, 1e3 * f.valid_seconds, f.seconds


def _raw(found: list[Found]) -> Rows:
    headings = ("technique", "budget", "n", "rho", "low", "high", "n_learning", "rho_learning", "low_learning",
                "high_learning", "rho_test", "low_test", "high_test",
                "entities", "triples", "model_bytes", "valid_seconds", "seconds")  # fmt: skip
    rows = [
        (f.reduction, f.budget, f.all.n, f.all.rho, f.all.low, f.all.high, f.learning.n, f.learning.rho,
         f.learning.low, f.learning.high, f.tested.rho, f.tested.low, f.tested.high,
         f.n_entities, f.n_train, f.model_bytes, f.valid_seconds, f.seconds)
        for f in found
    ]  # fmt: skip
    return Rows(headings, tuple(rows))
