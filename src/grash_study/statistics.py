"""Spearman's rank correlation with a bootstrap interval over configurations, by matrix products; means of few seeds.

Goes to transfer.py, methods_page.py and confirm_page.py. A resample is a row of counts, so that the ranks of a thousand
resamples are one product with the matrix that says which value lies below which.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

RESAMPLES = 2000
LEARNS = 0.05  # test MRR of a full training above which a configuration has learnt something
_STUDENT = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228)  # 97.5 %, 1 … 10 degrees of freedom


@dataclass(frozen=True)
class Correlation:
    """rho, or a difference of two, with its 95 % interval over n pairs; None where one side is constant or there are
    fewer than three."""

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


def rho_difference(
    first: ArrayLike, second: ArrayLike, truth: ArrayLike, *, seed: int = 0, resamples: int = RESAMPLES
) -> Correlation:
    """ρ(first, truth) − ρ(second, truth) with its interval: both over the same configurations in every resample, so
    that what makes a resample easy for both cancels out."""
    a, b, t = (np.asarray(side, float) for side in (first, second, truth))
    n = len(t)
    if n < 3:
        return Correlation(n, None)
    once = np.ones((1, n))
    difference = float(weighted_rho(a, t, once)[0] - weighted_rho(b, t, once)[0])
    if np.isnan(difference):
        return Correlation(n, None)
    counts = np.random.default_rng(seed).multinomial(n, np.full(n, 1 / n), size=resamples).astype(float)
    drawn = weighted_rho(a, t, counts) - weighted_rho(b, t, counts)
    drawn = drawn[~np.isnan(drawn)]
    low, high = np.quantile(drawn, [0.025, 0.975]) if len(drawn) else (difference, difference)
    return Correlation(n, difference, float(low), float(high))


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


def mean_interval(values: Sequence[float]) -> tuple[float | None, float | None, float | None]:
    """(mean, low, high) of independent values with Student's 95 % interval: a few seeds are too few to resample. None
    where there is no value, or only one to make an interval of."""
    if not values:
        return None, None, None
    n, mean = len(values), math.fsum(values) / len(values)
    if n == 1:
        return mean, None, None
    variance = math.fsum((v - mean) ** 2 for v in values) / (n - 1)
    half = student(n - 1) * math.sqrt(variance / n)
    return mean, mean - half, mean + half


def student(freedom: int) -> float:
    """The 97.5 % quantile of Student's t; above 10 degrees of freedom by its expansion, right to 0.001."""
    if freedom <= len(_STUDENT):
        return _STUDENT[freedom - 1]
    return 1.959964 + 2.372271 / freedom + 2.822499 / freedom**2 + 2.555851 / freedom**3
