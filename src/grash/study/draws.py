"""Which pool members enter a search: at random, near the portfolio's proposals, or in waves that a model proposes.

Comes from recorded.py and points.py; goes to the methods that begin with many configurations.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from grash.errors import UnknownName
from grash.search.proposals import propose
from grash.study.parzen import propose_in_turn
from grash.study.recorded import Recorded

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
