"""What a method did, in the unit all share: its incumbent after every trial, against what had been billed by then."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from grash.study.recorded import Recorded, Scores

_SLACK = 1e-9  # of a full run: what adding floats may cost


@dataclass(frozen=True)
class Trace:
    """points: (cost so far in full runs, incumbent) whenever that one changed; pick: what it would train in full, None
    if nothing has a score; first: the members that it chose among. Members are places in `Recorded`'s arrays."""

    points: tuple[tuple[float, int], ...]
    pick: int | None
    first: tuple[int, ...]
    cost: float
    levels: tuple[tuple[int, ...], ...] = ()  # members that were trained at each level, the cheapest first

    def test_mrr(self, bench: Recorded) -> float:
        """Of the pick, trained in full; 0 where there is none."""
        return 0.0 if self.pick is None else float(bench.truth[self.pick])


@dataclass
class Tracker:
    """Bills trials and remembers incumbents. Trials of a later level outrank those before it, whatever their score:
    scores of different graphs are not compared."""

    bench: Recorded
    budget: float
    cost: float = 0.0
    points: list[tuple[float, int]] = field(default_factory=list)
    first: list[int] = field(default_factory=list)
    levels: dict[int, list[int]] = field(default_factory=dict)
    _level: int = -1
    _best: tuple[float, int] | None = None

    def affords(self, cost: float) -> bool:
        return self.cost + cost <= self.budget + _SLACK

    def run(self, members: Sequence[int], g: float, e: float, *, level: int = 0) -> Scores:
        """Trials of members on a graph fraction for an epoch fraction, one after the other: (m,) scores, NaN if
        diverged."""
        return self.bill(members, self.bench.scores(g, e), g, e, level=level)

    def run_in_full(self, members: Sequence[int], *, level: int = 0, paid: float = 0.0) -> Scores:
        """Full runs that are validated all along: their best validations count."""
        return self.bill(members, self.bench.full_scores, 1.0, 1.0, level=level, paid=paid)

    def bill(
        self, members: Sequence[int], scores: Scores, g: float, e: float, *, level: int = 0, paid: float = 0.0,
        seen: Scores | None = None,
    ) -> Scores:  # fmt: skip
        """(m,) of all members' scores (n,), noted and paid for. paid: the part of their epochs that they had before and
        go on from, not billed again. seen: the part that they come to, if not as the table has it."""
        seen = self.bench.part_seen(g, e) if seen is None else seen
        self.levels.setdefault(level, []).extend(members)
        for i in members:
            self.cost += g * max(0.0, float(seen[i]) * e - paid)
            self._note(float(scores[i]), i, level)
        return scores[list(members)]

    def trace(self) -> Trace:
        pick = None if self._best is None else self._best[1]
        levels = tuple(tuple(self.levels[level]) for level in sorted(self.levels))
        return Trace(tuple(self.points), pick, tuple(self.first), self.cost, levels)

    def _note(self, score: float, member: int, level: int) -> None:
        if math.isnan(score):
            return
        if self._best is None or level > self._level or (level == self._level and score > self._best[0]):
            self._best, self._level = (score, member), level
            self.points.append((self.cost, member))


def best_first(members: Sequence[int], scores: Scores) -> list[int]:
    """Members with a score, the best first; ties keep their order."""
    order = np.argsort(-np.nan_to_num(scores, nan=-np.inf), kind="stable")
    return [members[i] for i in order if not math.isnan(scores[i])]
