"""Spearman's rank correlation with a bootstrap interval over configurations, by matrix products.

Goes to transfer.py and methods_page.py. A resample is a row of counts, so that the ranks of a thousand resamples are
one product with the matrix that says which value lies below which.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

RESAMPLES = 2000
LEARNS = 0.05  # test MRR of a full training above which a configuration has learnt something


@dataclass(frozen=True)
class Correlation:
    """rho with its 95 % interval over n pairs; None where one side is constant or there are fewer than three."""

    n: int
    rho: float | None
    low: float | None = None
    high: float | None = None


def spearman(first: ArrayLike, second: ArrayLike, *, seed: int = 0, resamples: int = RESAMPLES) -> Correlation:
    """Ties get their mean rank. Percentile bootstrap over pairs; resamples with a constant side are left out."""
    a, b = np.asarray(first, float), np.asarray(second, float)
    n = len(a)
    if n < 3:
        return Correlation(n, None)
    rho = float(weighted_rho(a, b, np.ones((1, n)))[0])
    if np.isnan(rho):
        return Correlation(n, None)
    counts = np.random.default_rng(seed).multinomial(n, np.full(n, 1 / n), size=resamples)
    drawn = weighted_rho(a, b, counts.astype(float))
    drawn = drawn[~np.isnan(drawn)]
    low, high = np.quantile(drawn, [0.025, 0.975]) if len(drawn) else (rho, rho)
    return Correlation(n, rho, float(low), float(high))


def weighted_rho(a: NDArray[np.float64], b: NDArray[np.float64], counts: NDArray[np.float64]) -> NDArray[np.float64]:
    """Spearman's ρ (R,) of pairs (n,), pair i taken counts[r, i] times; NaN where a side is constant."""
    p, q = _ranks(a, counts), _ranks(b, counts)
    n = counts.sum(axis=1)
    middle = ((n + 1) / 2)[:, None]
    p, q = p - middle, q - middle
    up = (counts * p * q).sum(axis=1)
    down = (counts * p * p).sum(axis=1) * (counts * q * q).sum(axis=1)
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.where(down > 0, up / np.sqrt(np.where(down > 0, down, 1.0)), np.nan)


def _ranks(values: NDArray[np.float64], counts: NDArray[np.float64]) -> NDArray[np.float64]:
    """(R, n) mean ranks of the values in each resample: those below, and half of those that are equal."""
    below = (values[:, None] < values[None, :]).astype(float)
    equal = (values[:, None] == values[None, :]).astype(float)
    return counts @ below + (counts @ equal + 1) / 2
