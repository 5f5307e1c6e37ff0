"""A Gaussian process over (pool member, graph): a product of two Matérn 5/2 kernels, fitted on a small grid.

For methods that learn on small graphs which members are good on the full one. Some tens of observations at most: every
fit is a few Cholesky factors of that size.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

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
        centre, scale = scores.mean(), scores.std() or 1.0
        observed = (scores - centre) / scale
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
        return centre + scale * best[1], scale * np.sqrt(np.maximum(best[2], 1e-12))


def matern(distances: Matrix) -> Matrix:
    """The Matérn 5/2 kernel of variance 1 and length 1."""
    far = math.sqrt(5) * distances
    return (1 + far + far**2 / 3) * np.exp(-far)
