"""The configurations of the first round, each with its origin: `random`, `sobol` or `portfolio`.

More of them always begin with fewer of them, so that a search can be extended. Comes from `space.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from grash.errors import ConfigError
from grash.kernels.random import key_of
from grash.search.portfolio import from_prior, winners_in
from grash.search.space import Space
from grash.training.config import TrainConfig

How = Literal["random", "sobol", "portfolio"]
# One in four uniform, one in four a winner, the rest from the prior. The very first is a winner; of two or more
# proposals at least a quarter is uniform, wherever one stops.
_FIRST = ("winner", "uniform", "prior", "prior")
_THEN = ("uniform", "winner", "prior", "prior")


@dataclass(frozen=True)
class Proposal:
    """Values for a training, and where they come from: `random`, `sobol`, `portfolio:NAME`, `prior`, `uniform`,
    `user:FILE` or `run:NAME`."""

    values: dict[str, Any]
    origin: str


def propose(
    space: Space, how: How, count: int, *, seed: int, model: str, start: int = 0, n_entities: int | None = None
) -> list[Proposal]:
    """Proposals number start … start + count − 1 of this space, seed and model.

    n_entities of the dataset: winners from graphs of similar size come first.
    """
    if how == "random":
        return [Proposal(space.configuration(row), "random") for row in space.points(seed, count, start=start)]
    if how == "sobol":
        return [Proposal(space.configuration(row), "sobol") for row in _sobol(space, seed, start + count)[start:]]
    if how == "portfolio":
        return _portfolio(space, start + count, seed, model, n_entities)[start:]
    raise ConfigError(f"proposals={how!r} is not known: give random, sobol or portfolio.")


def initial(space: Space, values: Mapping[str, Any], source: str) -> Proposal:
    """A configuration given by a user (`user:FILE`) or taken from another run (`run:NAME`), if it lies in the space."""
    return Proposal(space.check(values, source=source.partition(":")[2] or source), source)


def _sobol(space: Space, seed: int, count: int) -> NDArray[np.float64]:
    """(count, D) points of a scrambled Sobol sequence. A name has its own dimension, whatever the space."""
    import torch
    from torch.quasirandom import SobolEngine

    names = list(TrainConfig.model_fields)
    engine = SobolEngine(len(names), scramble=True, seed=key_of(seed, "sobol") >> 1)
    if not space.searched or not count:
        return np.empty((count, len(space.searched)))
    drawn = engine.draw(count, dtype=torch.float64).numpy()
    return drawn[:, [names.index(name) for name in space.searched]]


def _portfolio(space: Space, count: int, seed: int, model: str, n_entities: int | None) -> list[Proposal]:
    winners = [
        Proposal(values, f"portfolio:{name}") for name, values in winners_in(space, model, n_entities).values.items()
    ]
    uniform = [Proposal(space.configuration(row), "uniform") for row in space.points(seed, count)]
    prior = [Proposal(v, "prior") for v in from_prior(space, model, space.points(seed, count, stream="prior"))]
    found: list[Proposal] = []
    used = {"winner": 0, "uniform": 0, "prior": 0}
    for i in range(count):
        kind = (_FIRST if i < len(_FIRST) else _THEN)[i % len(_THEN)]
        if kind == "winner" and used["winner"] >= len(winners):
            kind = "prior"
        source = {"winner": winners, "uniform": uniform, "prior": prior}[kind]
        found.append(source[used[kind]])
        used[kind] += 1
    return found
