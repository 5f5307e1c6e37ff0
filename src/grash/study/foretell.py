"""What reductions foretell of full training: scores by technique and budget, rank correlations, costs.

A technique at budget b gives every configuration a score at b of a full run's cost; Spearman's ρ compares these with
the validation MRR of the full trainings, as the paper does, and beside it with their test MRR. What diverges scores 0.
Comes from a store, goes to transfer.py.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import median_low
from typing import Any, Literal

from grash.study.cells import HALVES, Entry, Technique, rounded
from grash.study.statistics import LEARNS, Correlation, rho_difference, spearman
from grash.study.store import Store

Reduction = Literal["triples", "walk", "kgtuner", "ladder", "chain", "epochs", "combined"]
REDUCTIONS: tuple[Reduction, ...] = ("triples", "walk", "kgtuner", "ladder", "chain", "epochs", "combined")
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
        return "chain", rounded(math.sqrt(budget)), rounded(math.sqrt(budget))
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
