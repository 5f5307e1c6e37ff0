"""Which pool members enter a search: at random, near the portfolio's proposals, or in waves that a model proposes.

Comes from recorded.py and points.py; goes to the methods that begin with many configurations.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from grash.errors import UnknownName
from grash.search.proposals import propose
from grash_study.recorded import Points, Recorded

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
    """`count` different members. The order of a seed's random draws is the same for every method.

    waves: a share `first` of them at random, the rest proposed by a model of their `scores` (n,) in the first round,
    `batch` at a time (all at once by default), each with the chance `uniform` of being random all the same.
    """
    order = [int(i) for i in rng.permutation(bench.n)]
    if how == "random":
        return order[:count]
    if how == "portfolio":
        return near_portfolio(bench, int(rng.integers(2**31)), count)
    if how != "waves" or scores is None:
        raise UnknownName("draw", how, DRAWS)
    wave = max(1, round(first * count))
    return propose_in_turn(
        bench.points, order, count, lambda i: float(scores[i]), first=wave,
        batch=max(1, count - wave) if batch is None else batch, uniform=uniform, rng=rng,
    )  # fmt: skip


def near_portfolio(bench: Recorded, seed: int, count: int) -> list[int]:
    """For each of the portfolio's proposals the nearest member that is still free.

    A table has no other configurations than its pool's, so this shows the portfolio's taste and not its winners.
    """
    meta, points = bench.table.meta, bench.points
    made = propose(points.space, "portfolio", count, seed=seed, model=meta["model"], n_entities=bench.n_entities)
    free = np.ones(bench.n, bool)
    chosen = []
    for proposal in made:
        numbers, codes = points.place(proposal.values)
        far = np.square(points.numbers - numbers).sum(axis=1) + (points.codes != codes).sum(axis=1)
        chosen.append(int(np.argmin(np.where(free, far, np.inf))))
        free[chosen[-1]] = False
    return chosen


# = Which members are promising, by the densities of good and bad ones (TPE), over a pool instead of a whole space.
# =
# = The ratio of two Parzen densities, as TPE ranks candidates, with every member as a candidate: parameter by parameter, as
# = first published, since the members of a pool lie too far apart for kernels over all parameters at once. A uniform
# = component keeps either density above zero.


def promise(points: Points, seen: Sequence[int], scores: Sequence[float], *, top: float = 0.2) -> NDArray[np.float64]:
    """(n,) log of the density of good members over that of the rest. top: the share of those seen that are good.

    scores of those seen; NaN (diverged) is worse than any number.
    """
    order = np.argsort(-np.nan_to_num(np.asarray(scores, float), nan=-np.inf), kind="stable")
    n_good = max(1, math.ceil(top * len(order)))
    numbers = np.asarray(seen)
    good, bad = (_densities(points, numbers[part]) for part in (order[:n_good], order[n_good:]))
    return np.where(points.counts.T, np.log(good) - np.log(bad), 0.0).sum(axis=0)


def next_member(
    points: Points, seen: Sequence[int], scores: Sequence[float], free: NDArray[np.bool_], *, top: float = 0.2
) -> int:
    """The most promising member that is free."""
    return int(np.argmax(np.where(free, promise(points, seen, scores, top=top), -np.inf)))


def propose_in_turn(
    points: Points,
    order: Sequence[int],
    count: int,
    score: Callable[[int], float],
    *,
    first: int,
    batch: int = 1,
    uniform: float = 0.0,
    rng: np.random.Generator,
    top: float = 0.2,
) -> list[int]:
    """`count` members: the first of an order, then those that the model proposes, `batch` at a time.

    score tells what a member that was proposed came to. uniform: the chance that a member comes from the order all the
    same. A batch is the most promising ones together.
    """
    chosen = list(order[: min(first, count)])
    free = np.ones(len(points.numbers), bool)
    free[chosen] = False
    scores = [score(i) for i in chosen]
    while len(chosen) < count:
        rated = promise(points, chosen, scores, top=top) if chosen else np.zeros(len(free))
        for _ in range(min(batch, count - len(chosen))):
            if rng.random() < uniform or not scores:
                picked = next(i for i in order if free[i])
            else:
                picked = int(np.argmax(np.where(free, rated, -np.inf)))
            free[picked] = False
            chosen.append(picked)
        scores += [score(i) for i in chosen[len(scores) :]]
    return chosen


def _densities(points: Points, at: NDArray[np.int64]) -> NDArray[np.float64]:
    """(P, n) of every parameter at every member: a kernel at each of these members, and a uniform one."""
    chosen = np.zeros(len(points.numbers))
    chosen[at] = 1.0
    return (1.0 + chosen @ points.kernels) / (1.0 + points.counts.T @ chosen)[:, None]


# = A Gaussian process over (pool member, graph): a product of two Matérn 5/2 kernels, fitted on a small grid.
# =
# = For methods that learn on small graphs which members are good on the full one. Some tens of observations at most: every
# = fit is a few Cholesky factors of that size.

Matrix = NDArray[np.float64]
_LENGTHS = (0.5, 1.0, 2.0)  # of members, in distances of the unit cube
_REACHES = (0.5, 1.5)  # of graphs, in distances of their signatures
_NOISE = 1e-2  # variance, of standardised scores


class Process:
    """distances (n, n) between members; signatures (G, S) of the graphs."""

    def __init__(self, distances: Matrix, signatures: Matrix) -> None:
        apart = np.sqrt(np.square(signatures[:, None] - signatures[None]).sum(axis=2))
        self._members = [matern(distances / length) for length in _LENGTHS]
        self._graphs = [matern(apart / reach) for reach in _REACHES]
        self._seen: list[tuple[int, int]] = []
        self._scores: list[float] = []

    def see(self, member: int, graph: int, score: float) -> None:
        self._seen.append((member, graph))
        self._scores.append(score)

    def guess(self, graph: int) -> tuple[Matrix, Matrix]:
        """(n,) mean and (n,) standard deviation of every member's score on a graph."""
        n = len(self._members[0])
        if not self._seen:
            return np.zeros(n), np.ones(n)
        members, graphs = (np.array(column) for column in zip(*self._seen))
        scores = np.array(self._scores)
        center, scale = scores.mean(), scores.std() or 1.0
        observed = (scores - center) / scale
        best: tuple[float, Matrix, Matrix] | None = None
        for near in self._members:
            for alike in self._graphs:
                inner = near[np.ix_(members, members)] * alike[np.ix_(graphs, graphs)]
                factor = np.linalg.cholesky(inner + _NOISE * np.eye(len(scores)))
                half = np.linalg.solve(factor, observed)
                likelihood = -0.5 * float(half @ half) - float(np.log(np.diag(factor)).sum())
                if best is None or likelihood > best[0]:
                    reach = np.linalg.solve(factor, (near[:, members] * alike[graph, graphs]).T)  # (m, n)
                    best = (likelihood, reach.T @ half, 1.0 - np.square(reach).sum(axis=0))
        assert best is not None
        return center + scale * best[1], scale * np.sqrt(np.maximum(best[2], 1e-12))


def matern(distances: Matrix) -> Matrix:
    """The Matérn 5/2 kernel of variance 1 and length 1."""
    far = math.sqrt(5) * distances
    return (1 + far + far**2 / 3) * np.exp(-far)
