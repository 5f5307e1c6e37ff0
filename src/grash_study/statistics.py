"""Spearman's rank correlation with a bootstrap interval over configurations, and means of a few seeds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

RESAMPLES = 2000
LEARNS = 0.05  # test MRR of a full training above which a configuration has learned something


@dataclass(frozen=True)
class Correlation:
    """A rank correlation, or the difference of two; None for fewer than three pairs or if one side is constant."""

    n: int
    rho: float | None
    low: float | None = None  # 95 % interval
    high: float | None = None


def spearman(first: ArrayLike, second: ArrayLike, *, seed: int = 0, resamples: int = RESAMPLES) -> Correlation:
    """Return Spearman's ρ with a percentile bootstrap over pairs; resamples with a constant side are left out."""
    return _with_interval([(first, second, 1)], seed, resamples)


def rho_difference(
    first: ArrayLike, second: ArrayLike, truth: ArrayLike, *, seed: int = 0, resamples: int = RESAMPLES
) -> Correlation:
    """Return ρ(first, truth) − ρ(second, truth); both are over the same configurations in every resample."""
    return _with_interval([(first, truth, 1), (second, truth, -1)], seed, resamples)


def mean_interval(values: Sequence[float]) -> tuple[float | None, float | None, float | None]:
    """Return (mean, low, high) with Student's 95 % interval; None where there are too few values."""
    from scipy import stats

    if len(values) < 2:
        return (values[0] if values else None), None, None
    mean, error = float(np.mean(values)), float(stats.sem(values))
    half = float(stats.t.ppf(0.975, len(values) - 1)) * error
    return mean, mean - half, mean + half


def _with_interval(terms: list[tuple[ArrayLike, ArrayLike, int]], seed: int, resamples: int) -> Correlation:
    """Return the sum of sign · ρ(a, b) over terms (a, b, sign)."""
    sides = [(np.asarray(a, float), np.asarray(b, float), sign) for a, b, sign in terms]
    n = len(sides[0][0])
    if n < 3:
        return Correlation(n, None)
    rho = float(sum(sign * _rhos(a[None], b[None])[0] for a, b, sign in sides))
    if np.isnan(rho):
        return Correlation(n, None)
    counts = np.random.default_rng(seed).multinomial(n, np.full(n, 1 / n), size=resamples)
    drawn = np.repeat(np.tile(np.arange(n), resamples), counts.ravel()).reshape(resamples, n)
    rhos = np.sum([sign * _rhos(a[drawn], b[drawn]) for a, b, sign in sides], axis=0)
    rhos = rhos[~np.isnan(rhos)]
    low, high = np.quantile(rhos, [0.025, 0.975]) if len(rhos) else (rho, rho)
    return Correlation(n, rho, float(low), float(high))


def _rhos(a: NDArray[np.float64], b: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return Spearman's ρ (R,) of each row of a and b (R, n); NaN where a side is constant."""
    from scipy.stats import rankdata

    p, q = (rankdata(side, axis=1) - (side.shape[1] + 1) / 2 for side in (a, b))
    norms = np.sqrt(np.square(p).sum(axis=1) * np.square(q).sum(axis=1))
    return np.divide((p * q).sum(axis=1), norms, out=np.full(len(a), np.nan), where=norms > 0)
