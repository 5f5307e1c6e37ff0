"""Scores of queries and candidates, and their gradients.

A pair of a query q and a candidate c, both of width W, is scored in one of four ways, or by a function of a model,
(…, W), (…, C) → (…), whose gradients come from autograd:

    dot      Σ q·c                                   ComplEx, DistMult, RESCAL, CP
    l1       −Σ |q − c|                              TransE, norm 1
    l2       −√Σ (q − c)²                            TransE and RotatE, norm 2
    modulus  −Σ √((q − c)²_re + (q − c)²_im)         RotatE, norm 1; first half real, second half imaginary

`pair_scores` compares every query with every candidate, (B, W) × (N, W) → (B, N); a training step is six such
products. `row_scores` compares along matching leading shapes, for positives and for negatives of a single query.
A dot pair costs 2·W FLOP forward and 4·W backward; l1 and modulus never build (B, N, W). The gradient of a distance of
0 is 0. On a CPU, l1 and modulus in float32 are loops over (query, candidate): each row is summed by one thread in a
fixed order, so the result does not depend on the number of threads. The compiler may not reorder sums
(docs/decisions/0038), so the scores of many candidates are summed side by side, from a transposed table.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Literal

import numba
import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from grash.kernels.device import use_torch_threads

Pair = Literal["dot", "l1", "l2", "modulus"] | Callable[[Tensor, Tensor], Tensor]

_ONEDNN = getattr(torch.ops.mkldnn, "_linear_pointwise", None) if torch.backends.mkldnn.is_available() else None
_ALIGNED = 64  # columns to whose multiples scores are padded on a GPU
_LEAST_PADDED = 512
_TILE = 1 << 24  # elements of (B, n, W) that the reference of distances builds at once
_TILES: dict[Pair, float] = {"dot": 0, "l2": 0, "l1": 2, "modulus": 3.5}  # tiles of this size in memory at a time
_FUNCTION_TILES = 8  # of a model's function, with what autograd keeps


def pair_scores(queries: Tensor, candidates: Tensor, pair: Pair) -> Tensor:
    """Score every query with every candidate: (B, W), (N, W) → (B, N)."""
    if callable(pair):
        return pair_scores_reference(queries, candidates, pair)
    _match_width(queries, candidates)
    if pair == "dot":
        pad = _padding(queries, len(candidates))
        return _padded_product(queries, candidates, pad) if pad else queries @ candidates.T
    if pair == "l2":
        return _l2_scores(queries, candidates)
    if not use_loops(queries):
        return pair_scores_reference(queries, candidates, pair)
    out = torch.empty(len(queries), len(candidates))
    use_torch_threads()
    loop = _l1_scores if pair == "l1" else _modulus_scores
    loop(_array(queries), _array(candidates.T), out.numpy())
    return out


def pair_gradients(
    queries: Tensor, candidates: Tensor, scores: Tensor, upstream: Tensor, pair: Pair
) -> tuple[Tensor, Tensor]:
    """Return the gradients of Σ upstream·scores: (B, W) for the queries and (N, W) for the candidates.

    scores, upstream: (B, N); scores from `pair_scores` (entries masked to −∞ have upstream 0).
    """
    if pair == "dot":
        if pad := _padding(queries, len(candidates)):
            return _padded_gradients(queries, candidates, upstream, pad)
        return _product(upstream, candidates), upstream.T @ queries
    if pair == "l2":
        return _l2_gradients(queries, candidates, scores, upstream)
    if callable(pair):
        return _function_gradients(queries, candidates, upstream, pair)
    if use_loops(queries):
        return loop_gradients(queries, candidates, upstream, pair)
    return pair_gradients_reference(queries, candidates, upstream, pair)


def row_scores(queries: Tensor, candidates: Tensor, pair: Pair) -> Tensor:
    """Score along the last axis: (…, W), (…, W) → (…); leading axes broadcast."""
    if callable(pair):
        return pair(queries, candidates)
    _match_width(queries, candidates)
    if pair == "dot":
        return (queries * candidates).sum(-1)
    return -_length(queries - candidates, pair)


def row_gradients(queries: Tensor, candidates: Tensor, upstream: Tensor, pair: Pair) -> tuple[Tensor, Tensor]:
    """Return the gradients of Σ upstream·row_scores, each in the broadcast shape (…, W)."""
    if pair == "dot":
        return upstream[..., None] * candidates, upstream[..., None] * queries
    if callable(pair):
        leading = upstream.shape
        leaves = [x.expand(*leading, x.shape[-1]).detach().requires_grad_() for x in (queries, candidates)]
        with torch.enable_grad():
            scores = pair(*leaves)
        for_queries, for_candidates = torch.autograd.grad(scores, leaves, upstream, materialize_grads=True)
        return for_queries, for_candidates
    toward_query = -upstream[..., None] * _direction(queries - candidates, pair)
    return toward_query, -toward_query


def add_row_gradients(for_queries: Tensor, queries: Tensor, candidates: Tensor, upstream: Tensor, pair: Pair) -> Tensor:
    """Add the queries' part of `row_gradients` to for_queries (B, W) in place; return the candidates' part."""
    if pair == "dot":
        for_queries.addcmul_(upstream[:, None], candidates)
        return upstream[:, None] * queries
    more, for_candidates = row_gradients(queries, candidates, upstream, pair)
    for_queries.add_(more)
    return for_candidates


def pair_scores_reference(queries: Tensor, candidates: Tensor, pair: Pair) -> Tensor:
    """Reference of `pair_scores`: broadcasting, a tile of candidates at a time."""
    tiles = [row_scores(queries[:, None, :], tile[None, :, :], pair) for tile in _tiles(candidates, len(queries))]
    return torch.cat(tiles, 1) if tiles else queries.new_empty(len(queries), 0)


def pair_gradients_reference(
    queries: Tensor, candidates: Tensor, upstream: Tensor, pair: Pair
) -> tuple[Tensor, Tensor]:
    """Reference of `pair_gradients`."""
    for_queries = torch.zeros_like(queries)
    for_candidates = []
    start = 0
    for tile in _tiles(candidates, len(queries)):
        part = upstream[:, start : start + len(tile)]
        gq, gc = row_gradients(queries[:, None, :], tile[None, :, :], part, pair)
        for_queries += _sum_over(gq, 1)
        for_candidates.append(_sum_over(gc, 0))
        start += len(tile)
        del gq, gc
    return for_queries, torch.cat(for_candidates) if for_candidates else torch.zeros_like(candidates)


def _function_gradients(
    queries: Tensor, candidates: Tensor, upstream: Tensor, pair: Callable[[Tensor, Tensor], Tensor]
) -> tuple[Tensor, Tensor]:
    """`pair_gradients` of a model's function: each tile is scored again, with autograd."""
    for_queries, for_candidates, start = torch.zeros_like(queries), [torch.zeros_like(candidates[:0])], 0
    for tile in _tiles(candidates, len(queries)):
        leaves = queries.detach().requires_grad_(), tile.detach().requires_grad_()
        with torch.enable_grad():
            scores = pair(leaves[0][:, None, :], leaves[1][None, :, :])
        part = upstream[:, start : start + len(tile)]
        of_queries, of_tile = torch.autograd.grad(scores, leaves, part, materialize_grads=True)
        for_queries += of_queries
        for_candidates.append(of_tile)
        start += len(tile)
    return for_queries, torch.cat(for_candidates)


def tile_bytes(n_queries: int, n_candidates: int, width: int, pair: Pair, device: torch.device) -> int:
    """Return the bytes that `pair_scores` and `pair_gradients` need in addition to their inputs and results."""
    if (device.type == "cpu" and not callable(pair)) or not n_queries * n_candidates * width:
        return 0  # loops that build no tile
    most = max(1, _TILE // (n_queries * width))
    tiles = _FUNCTION_TILES if callable(pair) else _TILES[pair]
    return math.ceil(4 * tiles * n_queries * min(most, n_candidates) * width)


def use_loops(queries: Tensor) -> bool:
    """Whether l1 and modulus are computed by loops."""
    return queries.device.type == "cpu" and queries.dtype == torch.float32


def loop_gradients(
    queries: Tensor, candidates: Tensor, upstream: Tensor, pair: Pair, dtype: torch.dtype = torch.float32
) -> tuple[Tensor, Tensor]:
    """`pair_gradients` of l1 and modulus by loops; dtype: of the sums for the queries."""
    q, c, g = _array(queries), _array(candidates), _array(upstream)
    for_queries, for_candidates = torch.zeros(q.shape, dtype=dtype), torch.zeros(c.shape)
    use_torch_threads()
    loop = _l1_gradient if pair == "l1" else _modulus_gradient
    loop(q, c, g, for_queries.numpy())
    loop(c, q, _array(upstream.T), for_candidates.numpy())
    return for_queries, for_candidates


def _array(x: Tensor) -> np.ndarray:
    return np.asarray(x.contiguous().numpy())


def _tiles(candidates: Tensor, n_queries: int) -> tuple[Tensor, ...]:
    width = max(candidates.shape[-1], 1)
    return candidates.split(max(1, _TILE // (max(n_queries, 1) * width))) if len(candidates) else ()


def _sum_over(tile: Tensor, dim: int) -> Tensor:
    """Sum over an axis, one half added to the other in place: `sum` may need two more tiles on a GPU."""
    rows = tile.transpose(0, dim)
    while len(rows) > 1:
        half = len(rows) // 2
        rows[:half] += rows[-half:]
        rows = rows[: len(rows) - half]
    return rows[0].clone() if len(rows) else tile.sum(dim)


def _l2_scores(queries: Tensor, candidates: Tensor) -> Tensor:
    """Return −√(‖q‖² + ‖c‖² − 2 q·c) from one matrix product; the square is never below 0."""
    squares = torch.addmm(candidates.square().sum(1)[None, :], queries, candidates.T, alpha=-2)
    squares += queries.square().sum(1)[:, None]
    return squares.clamp_min_(0).sqrt_().neg_()


def _l2_gradients(queries: Tensor, candidates: Tensor, scores: Tensor, upstream: Tensor) -> tuple[Tensor, Tensor]:
    weights = (upstream / scores).masked_fill_(~(scores < 0), 0)  # −upstream / distance; −∞ has upstream 0
    for_queries = weights.sum(1)[:, None] * queries - weights @ candidates
    for_candidates = weights.sum(0)[:, None] * candidates - weights.T @ queries
    return for_queries, for_candidates


def _length(difference: Tensor, pair: Pair) -> Tensor:
    if pair == "l1":
        return difference.abs().sum(-1)
    if pair == "l2":
        return difference.square().sum(-1).sqrt()
    real, imaginary = difference.chunk(2, -1)
    return (real.square() + imaginary.square()).sqrt().sum(-1)


def _direction(difference: Tensor, pair: Pair) -> Tensor:
    """Return the gradient of the length, 0 where the length is 0."""
    if pair == "l1":
        return difference.sign()
    if pair == "l2":
        length = difference.square().sum(-1, keepdim=True).sqrt()
        return (difference / length).masked_fill_(~(length > 0), 0)
    real, imaginary = difference.chunk(2, -1)
    modulus = (real.square() + imaginary.square()).sqrt()
    modulus = torch.cat([modulus, modulus], -1)
    return (difference / modulus).masked_fill_(~(modulus > 0), 0)


def _product(a: Tensor, b: Tensor) -> Tensor:
    """Return a @ b. On a CPU, oneDNN takes 10 % less time for few columns (record cpu_step), where it is available.

    The operator is the one that compiled linear layers use.
    """
    if _ONEDNN is None or a.device.type != "cpu" or a.dtype != torch.float32 or not (a.numel() and b.numel()):
        return a @ b
    return _ONEDNN(a, b.T, None, "none", [], "")


def _padding(queries: Tensor, n: int) -> int:
    """Return by how many columns to pad n scores on a GPU: a matrix whose rows are not aligned to 16 bytes is
    multiplied three times more slowly (14,541 entities on an H200)."""
    return -n % _ALIGNED if queries.is_cuda and n >= _LEAST_PADDED and n % 4 and not queries.requires_grad else 0


def _padded_product(queries: Tensor, candidates: Tensor, pad: int) -> Tensor:
    """Return queries @ candidates.T, whose rows are followed by `pad` zeros."""
    return (queries @ F.pad(candidates, (0, 0, 0, pad)).T)[:, : len(candidates)]


def _padded_gradients(queries: Tensor, candidates: Tensor, upstream: Tensor, pad: int) -> tuple[Tensor, Tensor]:
    """`pair_gradients` of dot products. upstream: often what `_padded_product` returned, overwritten."""
    rows, n = upstream.shape
    if upstream.stride() == (n + pad, 1):
        whole = upstream.as_strided((rows, n + pad), (n + pad, 1))
    else:
        whole = F.pad(upstream, (0, pad))
    return whole @ F.pad(candidates, (0, 0, 0, pad)), (whole.T @ queries)[:n]


def _match_width(queries: Tensor, candidates: Tensor) -> None:
    if queries.shape[-1] != candidates.shape[-1]:
        raise ValueError(f"queries {tuple(queries.shape)} and candidates {tuple(candidates.shape)} differ in width")


@numba.njit(cache=True, parallel=True)
def _l1_scores(q, c, out):  # type: ignore[no-untyped-def]
    """q (B, W), c (W, N), out (B, N); four coordinates at a time, to write a row of out a fourth as often."""
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
