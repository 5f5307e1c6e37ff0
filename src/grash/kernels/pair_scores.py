"""Scores of queries against candidates, and their gradients, by hand.

Four ways to compare a query q with a candidate c, both of width W:

    dot      Σ q·c                                   ComplEx, DistMult, RESCAL, CP
    l1       −Σ |q − c|                              TransE, norm 1
    l2       −√Σ (q − c)²                            TransE and RotatE, norm 2
    modulus  −Σ √((q − c)²_re + (q − c)²_im)         RotatE, norm 1; first half real, second half imaginary

`pair_scores` compares every query with every candidate (B, W) × (N, W) → (B, N): six such products are the
training step. `row_scores` compares along matching leading shapes: positives, and negatives of their own.
Cost of a dot pair: 2·W FLOP forward, 4·W backward; l1 and modulus never build (B, N, W).
Where a distance is 0, its gradient is taken as 0.
"""

from __future__ import annotations

import math
from typing import Literal

import torch
from torch import Tensor

from grash.kernels import pair_loops

Pair = Literal["dot", "l1", "l2", "modulus"]

_ONEDNN = getattr(torch.ops.mkldnn, "_linear_pointwise", None) if torch.backends.mkldnn.is_available() else None
_TILE = 1 << 24  # elements of (B, n, W) that the plain distance forms build at once
_TILES: dict[Pair, float] = {"dot": 0, "l2": 0, "l1": 2, "modulus": 4.25}  # of that size, that they hold at a time


def pair_scores(queries: Tensor, candidates: Tensor, pair: Pair) -> Tensor:
    """(B, W), (N, W) → (B, N) scores of every query with every candidate."""
    _match_width(queries, candidates)
    if pair == "dot":
        return queries @ candidates.T
    if pair == "l2":
        return _l2_scores(queries, candidates)
    if pair_loops.serve(queries):
        return pair_loops.scores(queries, candidates, pair)
    return pair_scores_plain(queries, candidates, pair)


def pair_gradients(
    queries: Tensor, candidates: Tensor, scores: Tensor, upstream: Tensor, pair: Pair
) -> tuple[Tensor, Tensor]:
    """Gradients of Σ upstream·scores: (B, W) for the queries and (N, W) for the candidates.

    scores, upstream: (B, N); scores as `pair_scores` gave them (entries masked to −∞ have upstream 0).
    """
    if pair == "dot":
        return _product(upstream, candidates), upstream.T @ queries
    if pair == "l2":
        return _l2_gradients(queries, candidates, scores, upstream)
    if pair_loops.serve(queries):
        return pair_loops.gradients(queries, candidates, upstream, pair)
    return pair_gradients_plain(queries, candidates, upstream, pair)


def row_scores(queries: Tensor, candidates: Tensor, pair: Pair) -> Tensor:
    """(…, W), (…, W) → (…) scores along the last axis; leading axes broadcast."""
    _match_width(queries, candidates)
    if pair == "dot":
        return (queries * candidates).sum(-1)
    return -_length(queries - candidates, pair)


def row_gradients(queries: Tensor, candidates: Tensor, upstream: Tensor, pair: Pair) -> tuple[Tensor, Tensor]:
    """Gradients of Σ upstream·row_scores, each in the broadcast shape (…, W)."""
    if pair == "dot":
        return upstream[..., None] * candidates, upstream[..., None] * queries
    toward_query = -upstream[..., None] * _direction(queries - candidates, pair)
    return toward_query, -toward_query


def add_row_gradients(for_queries: Tensor, queries: Tensor, candidates: Tensor, upstream: Tensor, pair: Pair) -> Tensor:
    """Adds the queries' part of `row_gradients` to for_queries (B, W) in place; gives back the candidates' part."""
    if pair == "dot":
        for_queries.addcmul_(upstream[:, None], candidates)
        return upstream[:, None] * queries
    more, for_candidates = row_gradients(queries, candidates, upstream, pair)
    for_queries.add_(more)
    return for_candidates


def pair_scores_plain(queries: Tensor, candidates: Tensor, pair: Pair) -> Tensor:
    """The plain form of `pair_scores`: broadcasting, a tile of candidates at a time."""
    tiles = [row_scores(queries[:, None, :], tile[None, :, :], pair) for tile in _tiles(candidates, len(queries))]
    return torch.cat(tiles, 1) if tiles else queries.new_empty(len(queries), 0)


def pair_gradients_plain(queries: Tensor, candidates: Tensor, upstream: Tensor, pair: Pair) -> tuple[Tensor, Tensor]:
    """The plain form of `pair_gradients`."""
    for_queries = torch.zeros_like(queries)
    for_candidates = []
    start = 0
    for tile in _tiles(candidates, len(queries)):
        part = upstream[:, start : start + len(tile)]
        gq, gc = row_gradients(queries[:, None, :], tile[None, :, :], part, pair)
        for_queries += _sum_over(gq, 1)
        for_candidates.append(_sum_over(gc, 0))
        start += len(tile)
        del gq, gc  # before the next two are made
    return for_queries, torch.cat(for_candidates) if for_candidates else torch.zeros_like(candidates)


def tile_bytes(n_queries: int, n_candidates: int, width: int, pair: Pair, device: torch.device) -> int:
    """What `pair_scores` and `pair_gradients` take at a time beside what they are given and give back, in float32."""
    if device.type == "cpu" or not n_queries * n_candidates * width:
        return 0  # loops that build no tile
    most = max(1, _TILE // (n_queries * width))
    return math.ceil(4 * _TILES[pair] * n_queries * min(most, n_candidates) * width)


def _tiles(candidates: Tensor, n_queries: int) -> tuple[Tensor, ...]:
    width = max(candidates.shape[-1], 1)
    return candidates.split(max(1, _TILE // (max(n_queries, 1) * width))) if len(candidates) else ()


def _sum_over(tile: Tensor, dim: int) -> Tensor:
    """The sum over an axis, half added to half in place: `sum` may take twice the tile beside it on a card."""
    rows = tile.transpose(0, dim)
    while len(rows) > 1:
        half = len(rows) // 2
        rows[:half] += rows[-half:]
        rows = rows[: len(rows) - half]
    return rows[0].clone() if len(rows) else tile.sum(dim)


def _l2_scores(queries: Tensor, candidates: Tensor) -> Tensor:
    """−distance from one matrix product: ‖q‖² + ‖c‖² − 2 q·c, never below 0."""
    squares = torch.addmm(candidates.square().sum(1)[None, :], queries, candidates.T, alpha=-2)
    squares += queries.square().sum(1)[:, None]
    return squares.clamp_min_(0).sqrt_().neg_()


def _l2_gradients(queries: Tensor, candidates: Tensor, scores: Tensor, upstream: Tensor) -> tuple[Tensor, Tensor]:
    weights = torch.where(scores < 0, upstream / scores, 0)  # −upstream / distance; −∞ has upstream 0
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
    """The gradient of the length, 0 where the length is 0."""
    if pair == "l1":
        return difference.sign()
    if pair == "l2":
        length = difference.square().sum(-1, keepdim=True).sqrt()
        return torch.where(length > 0, difference / length, 0)
    real, imaginary = difference.chunk(2, -1)
    modulus = (real.square() + imaginary.square()).sqrt()
    modulus = torch.cat([modulus, modulus], -1)
    return torch.where(modulus > 0, difference / modulus, 0)


def _product(a: Tensor, b: Tensor) -> Tensor:
    """a @ b. On a CPU by oneDNN, whose kernel for few columns takes a tenth less time than the usual one (record
    cpu_step); the operator is that of compiled linear layers, and where it is missing, the usual one serves."""
    if _ONEDNN is None or a.device.type != "cpu" or a.dtype != torch.float32 or not (a.numel() and b.numel()):
        return a @ b
    return _ONEDNN(a, b.T, None, "none", [], "")


def _match_width(queries: Tensor, candidates: Tensor) -> None:
    if queries.shape[-1] != candidates.shape[-1]:
        raise ValueError(f"queries {tuple(queries.shape)} and candidates {tuple(candidates.shape)} differ in width")
