"""Halving as it could be: the laboratory for rounds that the search does not know yet.

With its defaults it decides as GraSH does. What can be changed: the sizes and shares of the rounds, how a fidelity is
split between graph and epochs (`lean`), how large the rails want a graph, and promotion of ties.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from grash.errors import ConfigError
from grash.search.schedule import (
    MIN_VALID,
    MOST_OF_A_GRAPH,
    least_fraction,
    min_entities,
    round_sizes,
)
from grash.search.settings import SearchSettings
from grash.study.draws import draw
from grash.study.methods.trace import Trace, Tracker, best_first
from grash.study.recorded import Recorded, Scores

_DEVIATION = 0.35  # of a reciprocal rank, about; two ranks per validation triple


def run(
    bench: Recorded,
    rng: np.random.Generator,
    budget: float,
    *,
    n: int = 64,
    eta: int = 4,
    sizes: Sequence[int] | None = None,
    shares: Sequence[float] | None = None,
    lean: float | Sequence[float] = 0.5,
    rails: bool = True,
    entities: int | None = None,
    valid: int = MIN_VALID,
    whole_above: float = MOST_OF_A_GRAPH,
    carry: bool = True,
    continues: bool = False,
    trend: float | Sequence[float] = SearchSettings.model_fields["trend"].default,
    apart: bool = True,
    ties: float = 0.0,
    most: float = 2.0,
    how: str = "random",
    first: float = 0.5,
    batch: int | None = None,
    uniform: float = 0.0,
) -> Trace:
    """sizes of the rounds instead of n and eta; shares of the budget (equal ones by default).

    lean: the exponent of the graph fraction, g = f^lean, for all rounds or one each: 0 is epochs only, 1 graph only.
    rails: at least so many entities (as the search has it by default) and validation triples, and one epoch; the whole
    graph where that takes more of it than whole_above.
    continues: survivors of a round on the whole graph go on from their weights, if the next is on it too: what they
    have trained is not paid again, and buys more epochs.
    trend: what a rise from half of the epochs to all of them adds to a score, in all rounds or one each.
    apart: the last round holds out as that of a search does by default, where the table has it.
    ties: those that lie within so many standard errors of the last place go on too, up to `most` times the places.
    how, first, batch, uniform: where configurations come from (`draws.draw`).
    """
    rules = _Rules(bench, rails, entities, valid, whole_above)
    wanted = list(sizes) if sizes is not None else rules.fitting(min(n, bench.n), eta, budget)
    parts = _parts(budget, shares, len(wanted))
    leans, trends = (_each(name, given, len(wanted)) for name, given in (("lean", lean), ("trend", trend)))

    def judge(i: int, g: float) -> Recorded:
        return bench.last_judge(g) if apart and i + 1 == len(wanted) else bench

    def judged(i: int, g: float, e: float) -> Scores:
        return judge(i, g).scores(g, e) + trends[i] * judge(i, g).rises(g, e)

    scores = judged(0, *rules.split(min(1.0, parts[0] / wanted[0]), leans[0])) if how == "waves" else None
    entrants = draw(bench, rng, wanted[0], how=how, scores=scores, first=first, batch=batch, uniform=uniform)
    tracker = Tracker(bench, budget, first=list(entrants))
    purse, had = 0.0, 0.0  # what was not spent; epochs that survivors go on from
    for i, part in enumerate(parts):
        purse = part + (purse if carry else 0.0)
        g, e = rules.split(min(1.0, purse / len(entrants) + had), leans[i])
        if g < 1 and had:  # a smaller graph begins anew
            had = 0.0
            g, e = rules.split(min(1.0, purse / len(entrants)), leans[i])
        before = tracker.cost
        seen = judge(i, g).part_seen(g, e)
        scores = tracker.bill(entrants, judged(i, g, e), g, e, level=i, paid=had, seen=seen)
        purse -= tracker.cost - before
        had = e if continues and g == 1 else 0.0
        entrants = _promoted(bench, entrants, scores, g, wanted[i + 1] if i + 1 < len(wanted) else 1, ties, most)
        if not entrants:
            break
    return tracker.trace()


@dataclass(frozen=True, eq=False)
class _Rules:
    """The guard rails, if any: how a fidelity is split, and how many trials the first round can have."""

    bench: Recorded
    rails: bool
    entities: int | None
    valid: int
    whole_above: float

    def split(self, fidelity: float, lean: float) -> tuple[float, float]:
        return split(
            self.bench, fidelity, lean=lean, rails=self.rails, entities=self.entities, valid=self.valid,
            whole_above=self.whole_above,
        )  # fmt: skip

    def fitting(self, n: int, eta: int, budget: float) -> list[int]:
        """Sizes of the rounds; fewer trials where one epoch on the smallest graph would cost more, as in the search."""
        wanted = self.entities or min_entities(self.bench)
        least = least_fraction(self.bench, wanted, self.valid, self.whole_above) / self.bench.max_epochs
        if not self.rails or self.bench.max_epochs < 1:
            return round_sizes(n, eta)
        for fewer in range(n, 1, -1):
            sizes = round_sizes(fewer, eta)
            if min(1.0, budget / len(sizes) / fewer) >= min(1.0, least):
                return sizes
        return round_sizes(n, eta)


def split(
    bench: Recorded,
    fidelity: float,
    *,
    lean: float = 0.5,
    rails: bool = True,
    entities: int | None = None,
    valid: int = MIN_VALID,
    whole_above: float = MOST_OF_A_GRAPH,
) -> tuple[float, float]:
    """(g, e) of a fidelity, as `search.schedule` splits it for lean = 1/2."""
    g = fidelity**lean
    if rails:
        g = max(g, least_fraction(bench, entities or min_entities(bench), valid, whole_above))
        g = min(g, fidelity * bench.max_epochs) if bench.max_epochs >= 1 else g
    g = min(1.0, g)
    if bench.shape((g,)).whole:
        g = 1.0
    return g, min(1.0, fidelity / g)


def _each(name: str, given: float | Sequence[float], n_rounds: int) -> list[float]:
    """What was given for all rounds or one each, round by round."""
    if isinstance(given, int | float):
        return [float(given)] * n_rounds
    if len(given) < n_rounds:
        raise ConfigError(f"{name}={tuple(given)} has {len(given)} values for {n_rounds} rounds: give one each.")
    return [float(v) for v in given]


def _parts(budget: float, shares: Sequence[float] | None, n_rounds: int) -> list[float]:
    if shares is None:
        return [budget / n_rounds] * n_rounds
    if len(shares) != n_rounds or sum(shares) > 1 + 1e-9 or min(shares) <= 0:
        raise ConfigError(f"shares={tuple(shares)}: give {n_rounds} shares above 0 that sum to at most 1.")
    return [budget * share for share in shares]


def _promoted(
    bench: Recorded, members: list[int], scores: Scores, g: float, places: int, ties: float, most: float
) -> list[int]:
    """The best, and with them those that cannot be told from the last of them."""
    order = best_first(members, scores)
    if not ties or places >= len(order):
        return order[:places]
    found = dict(zip(members, scores.tolist()))
    error = _DEVIATION / math.sqrt(2 * max(1, bench.shape((g,)).n_valid))
    near = sum(found[m] >= found[order[places - 1]] - ties * error for m in order)
    return order[: min(near, math.floor(most * places))]
