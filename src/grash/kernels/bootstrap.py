"""Means of resampled values, for bootstrap intervals.

4·R·n bytes of indices are read for R resamples of n values; the values stay in the cache.
"""

from __future__ import annotations

import numba
import numpy as np
from numpy.typing import NDArray


def resampled_means(values: NDArray[np.float64], draws: NDArray[np.integer]) -> NDArray[np.float64]:
    """values (n,), draws (R, n) indices → (R,) means, each summed in the order of its draws."""
    return _means_loop(np.ascontiguousarray(values, np.float64), draws)


def resampled_means_reference(values: NDArray[np.float64], draws: NDArray[np.integer]) -> NDArray[np.float64]:
    """Reference of `resampled_means`."""
    return np.array([values[chosen].mean() for chosen in draws])


@numba.njit(cache=True)
def _means_loop(values, draws):  # type: ignore[no-untyped-def]
    means = np.empty(draws.shape[0])
    for r in range(draws.shape[0]):
        # four sums at a time, since each addition waits for the one before
        a = b = c = d = 0.0
        whole = draws.shape[1] - draws.shape[1] % 4
        for i in range(0, whole, 4):
            a += values[draws[r, i]]
            b += values[draws[r, i + 1]]
            c += values[draws[r, i + 2]]
            d += values[draws[r, i + 3]]
        for i in range(whole, draws.shape[1]):
            a += values[draws[r, i]]
        means[r] = (a + b + (c + d)) / max(1, draws.shape[1])
    return means
