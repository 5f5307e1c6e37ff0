"""Which pool members enter a search: in random order, near the portfolio's proposals, or proposed by Optuna's TPE.

A table has no other configurations than its pool's: a proposed point is replaced by the nearest free member.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from grash.errors import UnknownName
from grash.search.named_spaces import space_of
from grash.search.proposals import propose
from grash.search.space import Space
from grash_study.recorded import Recorded

DRAWS = ("random", "portfolio", "waves")


def draw(
    bench: Recorded,
    rng: np.random.Generator,
    count: int,
    *,
    how: str = "random",
    scores: NDArray[np.float64] | None = None,
    first: float = 0.5,
    batch: int | None = None,
    uniform: float = 0.0,
) -> list[int]:
    """Return `count` different members. The random order of a seed is the same for every method.

    waves: a share `first` is random, the rest is proposed by TPE from `scores` (n,) in the first round, `batch` at a
    time (default: all at once); with probability `uniform`, one of these is random too.
    """
    order = [int(i) for i in rng.permutation(bench.n)]
    if how == "random":
        return order[:count]
    if how == "portfolio":
        return _near_portfolio(bench, int(rng.integers(2**31)), count)
    if how != "waves" or scores is None:
        raise UnknownName("draw", how, DRAWS)
    chosen = order[: max(1, round(first * count))]
    free = np.ones(bench.n, bool)
    free[chosen] = False
    proposer = Proposer(points_of(bench))
    for member in chosen:
        proposer.see(member, scores[member])
    while len(chosen) < count:
        wave = []
        for _ in range(min(batch or count, count - len(chosen))):
            by_chance = rng.random() < uniform
            wave.append(next(i for i in order if free[i]) if by_chance else proposer.propose(free))
            free[wave[-1]] = False
        for member in wave:
            proposer.see(member, scores[member])
        chosen += wave
    return chosen


@dataclass(frozen=True, eq=False)
class Points:
    """Pool members as points."""

    space: Space
    numbers: NDArray[np.float64]  # (n, D) in [0, 1]; 0.5 where a parameter is not used
    codes: NDArray[np.int64]  # (n, C) of choices; −1 where a parameter is not used
    used: NDArray[np.bool_]  # (n, D + C)
    n_choices: tuple[int, ...]  # of each column of codes

    def nearest(self, numbers: NDArray[np.float64], codes: NDArray[np.int64], free: NDArray[np.bool_]) -> int:
        """Return the free member nearest to a point; two different choices have distance 1."""
        squares = np.square(self.numbers - numbers).sum(axis=1) + (self.codes != codes).sum(axis=1)
        return int(np.argmin(np.where(free, squares, np.inf)))

    @cached_property
    def features(self) -> NDArray[np.float64]:
        """(n, D + all choices) numbers, and choices as one-hot columns with the same distances as `nearest`."""
        one_hot = [(column[:, None] == np.arange(k)) / np.sqrt(2) for column, k in zip(self.codes.T, self.n_choices)]
        return np.concatenate([self.numbers, *one_hot], axis=1)


@lru_cache(maxsize=8)
def points_of(bench: Recorded) -> Points:
    """Return the members of a table as points of the space that they were drawn from."""
    return make_points(bench.table.meta, [bench.table.configurations[i] for i in bench.members])


def make_points(meta: Mapping[str, Any], configurations: list[dict[str, Any]]) -> Points:
    space = space_of(meta["space"], meta["model"], n_entities=meta.get("n_entities"))
    space = space.with_fixed({**({} if "dim" in space.searched else {"dim": meta["dim"]}), **meta.get("fixed", {})})
    known = [space.check(values) for values in configurations]
    numbers, codes = (np.stack(column) for column in zip(*(_point(space, values) for values in known)))
    columns = sorted(space.searched, key=lambda n: space.parameters[n].kind == "choice")  # numbers first
    used = np.array([[name in values for name in columns] for values in known])
    choices = [space.parameters[n] for n in space.searched if space.parameters[n].kind == "choice"]
    return Points(space, numbers, codes, used, tuple(len(c.values) for c in choices))


class Proposer:
    """TPE over the members of a pool: Optuna's densities of good and other members, parameter by parameter.

    Optuna's sampler draws points, of which a pool has few; its own estimators rate every member instead.
    """

    def __init__(self, points: Points) -> None:
        from optuna.distributions import CategoricalDistribution, FloatDistribution
        from optuna.samplers import TPESampler

        self.seen: list[int] = []
        self._scores: list[float] = []
        self._values = [*points.numbers.T, *points.codes.T]  # a column (n,) per parameter
        self._used = points.used.T
        choices = [CategoricalDistribution(tuple(range(k))) for k in points.n_choices]
        self._distributions = [*(FloatDistribution(0, 1) for _ in points.numbers.T), *choices]
        self._sampler = TPESampler()

    def see(self, member: int, score: float) -> None:
        """Learn the score of a member; NaN (diverged) is below all others."""
        self.seen.append(member)
        self._scores.append(-1.0 if np.isnan(score) else float(score))

    def propose(self, free: NDArray[np.bool_]) -> int:
        """Return the free member with the highest ratio of densities."""
        n_best = min(math.ceil(0.1 * len(self._scores)), 25)  # Optuna's default gamma
        best = np.argsort(-np.array(self._scores), kind="stable")[:n_best]
        is_good = np.isin(np.arange(len(self.seen)), best)
        parts = [np.array(self.seen, int)[which] for which in (is_good, ~is_good)]
        ratio = np.zeros(len(free))
        for values, used, distribution in zip(self._values, self._used, self._distributions):
            good, others = (self._log_density(values, part[used[part]], distribution) for part in parts)
            ratio += np.where(used, good - others, 0.0)
        return int(np.argmax(np.where(free, ratio, -np.inf)))

    def _log_density(self, values: NDArray[Any], at: NDArray[np.int64], distribution: Any) -> NDArray[np.float64]:
        """Return (n,) log density of a parameter at every member, estimated from those in `at`."""
        made = self._sampler._parzen_estimator_cls(
            {"x": values[at]}, {"x": distribution}, self._sampler._parzen_estimator_parameters
        )
        return made.log_pdf({"x": np.maximum(values, 0)})  # where a choice is not used (−1), any will do


def _near_portfolio(bench: Recorded, seed: int, count: int) -> list[int]:
    """Return the nearest free member of each of the portfolio's proposals: its taste, not its winners."""
    points, model = points_of(bench), bench.table.meta["model"]
    free = np.ones(bench.n, bool)
    chosen = []
    for proposal in propose(points.space, "portfolio", count, seed=seed, model=model, n_entities=bench.n_entities):
        chosen.append(points.nearest(*_point(points.space, proposal.values), free))
        free[chosen[-1]] = False
    return chosen


def _point(space: Space, values: Mapping[str, Any]) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """Return (D,) numbers and (C,) codes of a configuration."""
    numbers, codes = [], []
    for name in space.searched:
        parameter = space.parameters[name]
        if parameter.kind != "choice":
            numbers.append(parameter.point(values[name]) if name in values else 0.5)
        else:
            codes.append(int(parameter.point(values[name]) * len(parameter.values)) if name in values else -1)
    return np.array(numbers), np.array(codes, np.int64)
