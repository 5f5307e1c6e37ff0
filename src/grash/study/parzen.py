"""Which members are promising, by the densities of good and bad ones (TPE), over a pool instead of a whole space.

The ratio of two Parzen densities, as TPE ranks candidates, with every member as a candidate: parameter by parameter, as
first published, since the members of a pool lie too far apart for kernels over all parameters at once. A uniform
component keeps either density above zero.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from grash.study.points import Points


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
