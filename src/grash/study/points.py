"""Pool members as points: numbers in the unit cube of their space, choices as codes, and how far apart they are.

Comes from recorded.py; goes to parzen.py and gaussian.py, which guess from the members seen which others are good, and
to draws.py.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from grash.search.space import Space
from grash.search.spaces import space_of

_WIDTH = 0.15  # standard deviation of a number's kernel, in the unit interval
_LEAK = 0.25  # of a choice's weight to its other values


@dataclass(frozen=True, eq=False)
class Points:
    """numbers (n, D) in [0, 1], 0.5 where a parameter does not count; codes (n, C) of choices, −1 where it does not.

    counts (n, D + C): whether a parameter counts, numbers first.
    """

    space: Space
    numbers: NDArray[np.float64]
    codes: NDArray[np.int64]
    counts: NDArray[np.bool_]
    n_choices: tuple[int, ...]  # of each column of codes

    @cached_property
    def distances(self) -> NDArray[np.float64]:
        """(n, n) in the unit cube; two choices that differ are as far apart as the ends of a range."""
        squares = np.square(self.numbers[:, None] - self.numbers[None]).sum(axis=2)
        return np.sqrt(squares + (self.codes[:, None] != self.codes[None]).sum(axis=2))

    @cached_property
    def kernels(self) -> NDArray[np.float64]:
        """(D + C, n, n): the density at member j of a kernel around member i, by parameter, over the uniform one; 0
        where it does not count for both. Normal within [0, 1] for numbers, Aitchison-Aitken for choices."""
        found = [_normal(column) for column in self.numbers.T]
        for column, k in zip(self.codes.T, self.n_choices):
            found.append(np.where(column[:, None] == column[None], k * (1 - _LEAK), k * _LEAK / max(1, k - 1)))
        both = self.counts.T[:, :, None] & self.counts.T[:, None, :]
        return np.where(both, np.stack(found), 0.0)

    def place(self, values: Mapping[str, Any]) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
        """(D,) numbers and (C,) codes of a configuration of the space."""
        return _placed(self.space, values)


def points_of(meta: Mapping[str, Any], configurations: list[dict[str, Any]]) -> Points:
    """The points of these configurations (values of trainings) in the space that a table was drawn from."""
    space = space_of(meta["space"], meta["model"], n_entities=meta.get("n_entities"))
    space = space.fixing({**({} if "dim" in space.searched else {"dim": meta["dim"]}), **meta.get("fixed", {})})
    known = [space.check(values) for values in configurations]
    numbers, codes = (np.stack(column) for column in zip(*(_placed(space, values) for values in known)))
    order = sorted(
        space.searched, key=lambda n: space.parameters[n].kind == "choice"
    )  # numbers first, else as they are
    counts = np.array([[name in values for name in order] for values in known])
    choices = [space.parameters[n] for n in space.searched if space.parameters[n].kind == "choice"]
    return Points(space, numbers, codes, counts, tuple(len(c.values) for c in choices))


def _normal(places: NDArray[np.float64]) -> NDArray[np.float64]:
    """(n, n) normal densities around places (n,), each cut off at 0 and 1."""
    inside = [math.erf((1 - c) / (_WIDTH * math.sqrt(2))) + math.erf(c / (_WIDTH * math.sqrt(2))) for c in places]
    bell = np.exp(-np.square(places[:, None] - places[None]) / (2 * _WIDTH**2))
    return bell / (_WIDTH * math.sqrt(2 * math.pi) * 0.5 * np.array(inside)[:, None])


def _placed(space: Space, values: Mapping[str, Any]) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    numbers, codes = [], []
    for name in space.searched:
        parameter = space.parameters[name]
        if parameter.kind != "choice":
            numbers.append(parameter.point(values[name]) if name in values else 0.5)
        else:
            code = int(parameter.point(values[name]) * len(parameter.values)) if name in values else -1
            codes.append(code)
    return np.array(numbers), np.array(codes, np.int64)
