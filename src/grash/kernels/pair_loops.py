"""Fast CPU form of the l1 and modulus pairs of `pair_scores`: loops over (query, candidate), no (B, N, W) array.

float32 on a CPU only. Rows are shared out over threads; each row is summed by one thread in a fixed order, so the
result does not depend on their number. The compiler may not reorder sums either (0038), so scores of many candidates
are summed side by side, coordinate by coordinate, from a table that is laid across.
"""

from __future__ import annotations

import numba
import numpy as np
import torch
from torch import Tensor

from grash.kernels.threads import use_torch_threads


def serve(queries: Tensor) -> bool:
    return queries.device.type == "cpu" and queries.dtype == torch.float32


def scores(queries: Tensor, candidates: Tensor, pair: str) -> Tensor:
    out = torch.empty(len(queries), len(candidates))
    use_torch_threads()
    loop = _l1_scores if pair == "l1" else _modulus_scores
    loop(_array(queries), _array(candidates.T), out.numpy())
    return out


def gradients(
    queries: Tensor, candidates: Tensor, upstream: Tensor, pair: str, dtype: torch.dtype = torch.float32
) -> tuple[Tensor, Tensor]:
    """dtype: of the sums for the queries."""
    q, c, g = _array(queries), _array(candidates), _array(upstream)
    for_queries, for_candidates = torch.zeros(q.shape, dtype=dtype), torch.zeros(c.shape)
    use_torch_threads()
    loop = _l1_gradient if pair == "l1" else _modulus_gradient
    loop(q, c, g, for_queries.numpy())
    loop(c, q, _array(upstream.T), for_candidates.numpy())
    return for_queries, for_candidates


def _array(x: Tensor) -> np.ndarray:
    return np.asarray(x.contiguous().numpy())


@numba.njit(cache=True, parallel=True)
def _l1_scores(q, c, out):  # type: ignore[no-untyped-def]
    """q (B, W), c (W, N), out (B, N); four coordinates at a time, so that a row of out is written a fourth as often."""
    width, fours = q.shape[1], q.shape[1] // 4 * 4
    for i in numba.prange(q.shape[0]):
        out[i] = 0
        for k in range(0, fours, 4):
            a, b, d, e = q[i, k], q[i, k + 1], q[i, k + 2], q[i, k + 3]
            for j in range(c.shape[1]):
                out[i, j] = (
                    out[i, j] - abs(a - c[k, j]) - abs(b - c[k + 1, j]) - abs(d - c[k + 2, j]) - abs(e - c[k + 3, j])
                )
        for k in range(fours, width):
            a = q[i, k]
            for j in range(c.shape[1]):
                out[i, j] -= abs(a - c[k, j])


@numba.njit(cache=True, parallel=True)
def _modulus_scores(q, c, out):  # type: ignore[no-untyped-def]
    half = q.shape[1] // 2
    for i in numba.prange(q.shape[0]):
        out[i] = 0
        for k in range(half):
            a, b = q[i, k], q[i, half + k]
            for j in range(c.shape[1]):
                re, im = a - c[k, j], b - c[half + k, j]
                out[i, j] -= np.sqrt(re * re + im * im)


@numba.njit(cache=True, parallel=True)
def _l1_gradient(x, y, g, out):  # type: ignore[no-untyped-def]
    """out[i] = −Σⱼ g[i, j]·sign(x[i] − y[j])"""
    for i in numba.prange(x.shape[0]):
        for j in range(y.shape[0]):
            w = g[i, j]
            if w != 0:
                for k in range(x.shape[1]):
                    d = x[i, k] - y[j, k]
                    out[i, k] -= w * (np.float32(d > 0) - np.float32(d < 0))


@numba.njit(cache=True, parallel=True)
def _modulus_gradient(x, y, g, out):  # type: ignore[no-untyped-def]
    """out[i] = −Σⱼ g[i, j]·(x[i] − y[j]) / |x[i] − y[j]|, complex by halves"""
    half = x.shape[1] // 2
    for i in numba.prange(x.shape[0]):
        for j in range(y.shape[0]):
            w = g[i, j]
            if w != 0:
                for k in range(half):
                    re = x[i, k] - y[j, k]
                    im = x[i, half + k] - y[j, half + k]
                    square = re * re + im * im
                    scale = w / np.sqrt(square) if square > 0 else np.float32(0)
                    out[i, k] -= scale * re
                    out[i, half + k] -= scale * im
