"""Which reductions foretell full training (paper, Fig. 3 and Tab. 1): the cells of the study, and its page.

Comes from foretell.py, which reads a store; goes to a page with ρ by technique and budget, how far techniques lie
isolated, what they cost, and every score in a Parquet file.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import median_low
from typing import Any, Literal

from grash.errors import ConfigError
from grash_study.cells import HALVES, Cell, Entry, Technique, cells_on, rounded
from grash_study.pages import Page, Rows, Value, share_words, with_interval
from grash_study.plots import Series, line_plot
from grash_study.statistics import LEARNS, Correlation, rho_difference, spearman
from grash_study.store import Store

# = What reductions foretell of full training: scores by technique and budget, rank correlations, costs.
# =
# = A technique at budget b gives every configuration a score at b of a full run's cost; Spearman's ρ compares these with
# = the validation MRR of the full trainings, as the paper does, and beside it with their test MRR. What diverges scores 0.
# = Comes from a store, goes to transfer.py.

Reduction = Literal["triples", "walk", "kgtuner", "k-core", "core-order", "epochs", "combined"]
REDUCTIONS: tuple[Reduction, ...] = ("triples", "walk", "kgtuner", "k-core", "core-order", "epochs", "combined")
BUDGETS = HALVES[:-1]
REFERENCE: Reduction = "combined"
_FEWEST = 3  # configurations that a rank correlation says something of


@dataclass(frozen=True)
class Found:
    """One technique at one budget: ρ with full validation over all configurations and over those that learn, ρ with
    the test MRR over all, and what one training takes. impossible: there is no such graph.

    scores: all that are there, by number; counted: the numbers that ρ is over, the same at every budget.
    """

    reduction: Reduction
    budget: float
    all: Correlation
    learning: Correlation
    tested: Correlation
    impossible: bool = False
    scores: dict[int, float] = field(default_factory=dict)
    counted: tuple[int, ...] = ()
    n_entities: int | None = None
    n_train: int | None = None
    model_bytes: int | None = None
    valid_seconds: float | None = None
    seconds: float | None = None
    together: int | None = None


def place_of(reduction: Reduction, budget: float) -> tuple[Technique, float, float]:
    """(technique, graph fraction, epoch fraction) of a reduction at a budget; combined takes the root of both."""
    if reduction == "epochs":
        return "whole", 1.0, rounded(budget)
    if reduction == "combined":
        return "core-order", rounded(math.sqrt(budget)), rounded(math.sqrt(budget))
    return reduction, rounded(budget), 1.0


def analyse(
    store: Store, n: int, *, reductions: Sequence[Reduction] = REDUCTIONS, budgets: Sequence[float] = BUDGETS
) -> list[Found]:
    """What the store says so far, over the first n configurations."""
    truth, full = full_scores(store, n), full_valid(store, n)
    return [f for r in reductions for f in _technique(store, r, sorted(budgets), truth, full)]


def differences(found: Sequence[Found], full: dict[int, float]) -> dict[tuple[Reduction, float], Correlation]:
    """ρ of every technique less that of `combined` at the same budget, over the configurations that both have."""
    base = {f.budget: f for f in found if f.reduction == REFERENCE}
    pairs = [(f, base[f.budget]) for f in found if f.reduction != REFERENCE and f.budget in base]
    return {(f.reduction, f.budget): _difference(f, other, full) for f, other in pairs}


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


def _technique(
    store: Store, reduction: Reduction, budgets: Sequence[float], truth: dict[int, float], full: dict[int, float]
) -> list[Found]:
    """At all budgets, over the configurations that all of them have; a budget with hardly any counts as not run."""
    entries, scores = {}, {}
    for budget in budgets:
        technique, graph, epochs = place_of(reduction, budget)
        mine = {n: e for n in truth if (e := store.entry(n, technique, graph)) is not None}
        entries[budget] = mine
        scores[budget] = {n: score for n, e in mine.items() if (score := e.score(epochs)) is not None}
    shared = set(truth).intersection(*(s for s in scores.values() if len(s) >= _FEWEST))
    return [_found(reduction, b, entries[b], scores[b], shared, truth, full) for b in budgets]


def _found(
    reduction: Reduction, budget: float, entries: dict[int, Entry], scores: dict[int, float], shared: set[int],
    truth: dict[int, float], full: dict[int, float],
) -> Found:  # fmt: skip
    counted = sorted(shared if len(scores) >= _FEWEST else scores)
    learning = [n for n in counted if truth[n] > LEARNS]
    found = [
        spearman([scores[n] for n in chosen], [against[n] for n in chosen])
        for chosen, against in ((counted, full), (learning, full), (counted, truth))
    ]
    impossible = not scores and any(e.status == "impossible" for e in entries.values())
    cost = _cost([entries[n] for n in counted], place_of(reduction, budget)[2])
    return Found(reduction, budget, found[0], found[1], found[2], impossible, scores, tuple(counted), **cost)


def _difference(found: Found, other: Found, full: dict[int, float]) -> Correlation:
    both = [n for n in found.counted if n in other.scores]
    return rho_difference([found.scores[n] for n in both], [other.scores[n] for n in both], [full[n] for n in both])


def _cost(entries: list[Entry], epochs: float) -> dict[str, Any]:
    """Of the trials that ran, each number's middle: a trial takes its share of the steps' seconds, and two
    validations."""
    ran = [e for e in entries if e.status == "ok"]
    if not ran:
        return {}
    names = ("n_entities", "n_train", "model_bytes", "valid_seconds", "together")
    seconds = [e.train_seconds * min(1.0, epochs / e.marks[-1]) + 2 * e.valid_seconds for e in ran]
    return {**{name: median_low(getattr(e, name) for e in ran) for name in names}, "seconds": median_low(seconds)}


Which = Literal["all", "learning", "tested"]
_NONE = "no such graph"
_WORDS = {
    "triples": "triple sampling", "walk": "random walk", "kgtuner": "KGTuner's walk", "k-core": "k-core ladder",
    "core-order": "core-order", "epochs": "epochs", "combined": "combined",
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
    "interval lies on one side of 0, each by itself; without a mark the two cannot be told isolated."
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
    """The page of a graph: a plot and a table of ρ, how far techniques lie isolated, the same for those that learn, and
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
