"""Products of complex rows, and ComplEx's queries for both sides of a batch of triples, with their gradients.

A complex row is stored in halves: first all real parts, then all imaginary parts.

    product(a, b) = a·b, or a·conj(b)         (B, D), (B, D) → (B, D); one pass, the reference makes four
    tail query = head·relation                score = ⟨tail query, tail⟩
    head query = tail·inverse relation        score = ⟨head query, head⟩; without reciprocals tail·conj(relation)

`both_queries` and `both_gradients` are ComplEx's step on a CPU before and after its matrix products. They read rows
directly from the tables: 24·B·D bytes forward and 48·B·D backward, instead of 80 and 116 in separate operations.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numba
import numpy as np
import torch
from torch import Tensor

from grash.kernels.device import use_torch_threads, use_triton, why_no_triton

BothSides = tuple[Tensor, Tensor]  # for (tail, head): queries (B, D), numbers (B,), or candidate rows (N, D)


def product(a: Tensor, b: Tensor, *, conjugate: bool = False) -> Tensor:
    """Return a·b, or a·conj(b)."""
    if _use_triton(a, b):
        from grash.kernels import complex_product_triton

        return complex_product_triton.product(a, b, conjugate=conjugate)
    if not _use_loops(a, b):
        return product_reference(a, b, conjugate=conjugate)
    use_torch_threads()
    out = torch.empty_like(a)
    _product_loop(a.numpy(), b.numpy(), out.numpy(), -1.0 if conjugate else 1.0)
    return out


def product_reference(a: Tensor, b: Tensor, *, conjugate: bool = False) -> Tensor:
    (ar, ai), (br, bi) = a.chunk(2, -1), b.chunk(2, -1)
    if conjugate:
        return torch.cat([ar * br + ai * bi, ai * br - ar * bi], -1)
    return torch.cat([ar * br - ai * bi, ar * bi + ai * br], -1)


def product_gradient(upstream: Tensor, a: Tensor, b: Tensor, *, conjugate: bool = False) -> tuple[Tensor, Tensor]:
    """Return the gradients of Σ upstream·product(a, b) for a and for b."""
    if _use_triton(upstream, a, b):
        from grash.kernels import complex_product_triton

        return complex_product_triton.product_gradient(upstream, a, b, conjugate=conjugate)
    if not _use_loops(upstream, a, b):
        return product_gradient_reference(upstream, a, b, conjugate=conjugate)
    use_torch_threads()
    for_a, for_b = torch.empty_like(a), torch.empty_like(b)
    arrays = [x.numpy() for x in (upstream, a, b, for_a, for_b)]
    _product_gradient_loop(*arrays, -1.0 if conjugate else 1.0)  # type: ignore[call-arg]
    return for_a, for_b


def product_gradient_reference(
    upstream: Tensor, a: Tensor, b: Tensor, *, conjugate: bool = False
) -> tuple[Tensor, Tensor]:
    """u·conj(b) and u·conj(a); with `conjugate`, u·b and a·conj(u)."""
    if conjugate:
        return product_reference(upstream, b), product_reference(a, upstream, conjugate=True)
    return product_reference(upstream, b, conjugate=True), product_reference(upstream, a, conjugate=True)


@dataclass(frozen=True)
class TripleBatch:
    """B triples as rows of the tables, and the negatives of both sides."""

    entity: Tensor  # (E, D)
    relation: Tensor  # (R, D)
    heads: Tensor  # (B,) ids, as the next three
    tails: Tensor
    relations: Tensor  # rows of the relations for tail queries
    inverse_relations: Tensor  # and for head queries
    negatives: BothSides  # ids (N,) to compare with the tails, (M,) with the heads
    conjugate: bool

    @cached_property
    def arrays(self) -> list[np.ndarray]:
        parts = (self.entity, self.relation, self.heads, self.tails, self.relations, self.inverse_relations)
        return [part.contiguous().numpy() for part in parts]

    @property
    def sign(self) -> np.float32:
        return np.float32(-1 if self.conjugate else 1)


def both_queries(batch: TripleBatch) -> tuple[BothSides, BothSides, BothSides]:
    """Return the queries, the scores of the true answers, and the rows of the negatives, each for (tail, head)."""
    if not _use_loops(batch.entity, batch.relation):
        return both_queries_reference(batch)
    use_torch_threads()
    size, width = len(batch.heads), batch.entity.shape[1]
    queries = torch.empty(size, width), torch.empty(size, width)
    scores = torch.empty(size), torch.empty(size)
    rows = torch.empty(len(batch.negatives[0]), width), torch.empty(len(batch.negatives[1]), width)
    arrays = [x.numpy() for x in (*batch.negatives, *queries, *scores, *rows)]
    _query_loop(*batch.arrays, batch.sign, *arrays)  # type: ignore[call-arg]
    return queries, scores, rows


def both_queries_reference(batch: TripleBatch) -> tuple[BothSides, BothSides, BothSides]:
    head, tail = batch.entity[batch.heads], batch.entity[batch.tails]
    for_tail = product_reference(head, batch.relation[batch.relations])
    for_head = product_reference(tail, batch.relation[batch.inverse_relations], conjugate=batch.conjugate)
    rows = batch.entity[batch.negatives[0]], batch.entity[batch.negatives[1]]
    return (for_tail, for_head), ((for_tail * tail).sum(1), (for_head * head).sum(1)), rows


def both_gradients(
    batch: TripleBatch, queries: BothSides, for_queries: BothSides, for_scores: BothSides
) -> tuple[Tensor, ...]:
    """Return the gradients of Σ for_queries·queries + Σ for_scores·scores, rows (B, D) each.

    They are for heads, tails, relations and inverse relations; the last two are one if they are the same tensor.
    """
    if not _use_loops(batch.entity, batch.relation):
        return both_gradients_reference(batch, queries, for_queries, for_scores)
    use_torch_threads()
    rows = [torch.empty(queries[0].shape) for _ in range(3)]
    if batch.relations is not batch.inverse_relations:
        rows.append(torch.zeros(queries[0].shape))
    arrays = [x.contiguous().numpy() for x in (*queries, *for_queries, *for_scores, *rows[:3], rows[-1])]
    _gradient_loop(*batch.arrays, batch.sign, *arrays)  # type: ignore[call-arg]
    return tuple(rows)


def both_gradients_reference(
    batch: TripleBatch, queries: BothSides, for_queries: BothSides, for_scores: BothSides
) -> tuple[Tensor, ...]:
    head, tail = batch.entity[batch.heads], batch.entity[batch.tails]
    relation, inverse = batch.relation[batch.relations], batch.relation[batch.inverse_relations]
    to_tail, to_head = (weight[:, None] for weight in for_scores)
    for_head, for_relation = product_gradient_reference(for_queries[0] + to_tail * tail, head, relation)
    for_tail, for_inverse = product_gradient_reference(
        for_queries[1] + to_head * head, tail, inverse, conjugate=batch.conjugate
    )
    for_head, for_tail = for_head + to_head * queries[1], for_tail + to_tail * queries[0]
    if batch.relations is batch.inverse_relations:
        return for_head, for_tail, for_relation + for_inverse
    return for_head, for_tail, for_relation, for_inverse


def _use_triton(*tensors: Tensor) -> bool:
    device, shape = tensors[0].device, tensors[0].shape
    if device.type == "cpu" or not all(
        t.dtype == torch.float32 and t.is_contiguous() and t.shape == shape and not t.requires_grad for t in tensors
    ):
        return False
    return use_triton(why_no_triton(device), device, what="the kernels of complex products")


def _use_loops(*tensors: Tensor) -> bool:
    return all(t.device.type == "cpu" and t.dtype == torch.float32 and t.is_contiguous() for t in tensors)


@numba.njit(cache=True, parallel=True, fastmath={"contract"})
def _product_loop(a, b, out, sign):  # type: ignore[no-untyped-def]
    half = a.shape[1] // 2
    s = a.dtype.type(sign)
    for i in numba.prange(a.shape[0]):
        for k in range(half):
            ar, ai, br, bi = a[i, k], a[i, half + k], b[i, k], s * b[i, half + k]
            out[i, k] = ar * br - ai * bi
            out[i, half + k] = ar * bi + ai * br


@numba.njit(cache=True, parallel=True, fastmath={"contract"})
def _product_gradient_loop(u, a, b, for_a, for_b, sign):  # type: ignore[no-untyped-def]
    half = a.shape[1] // 2
    s = a.dtype.type(sign)
    for i in numba.prange(a.shape[0]):
        for k in range(half):
            ur, ui = u[i, k], u[i, half + k]
            ar, ai, br, bi = a[i, k], a[i, half + k], b[i, k], s * b[i, half + k]
            for_a[i, k] = ur * br + ui * bi
            for_a[i, half + k] = ui * br - ur * bi
            for_b[i, k] = ur * ar + ui * ai
            for_b[i, half + k] = s * (ui * ar - ur * ai)


@numba.njit(cache=True, inline="always")
def _dot(x, y):  # type: ignore[no-untyped-def]
    """Sum a fourth of the coordinates each in four sums: the compiler may not reorder one (docs/decisions/0038)."""
    fourth = x.shape[0] // 4
    a = b = c = d = np.float32(0)
    for k in range(fourth):
        a += x[k] * y[k]
        b += x[fourth + k] * y[fourth + k]
        c += x[2 * fourth + k] * y[2 * fourth + k]
        d += x[3 * fourth + k] * y[3 * fourth + k]
    for k in range(4 * fourth, x.shape[0]):
        a += x[k] * y[k]
    return (a + b) + (c + d)


@numba.njit(cache=True, parallel=True, fastmath={"contract"})
def _query_loop(  # type: ignore[no-untyped-def]
    entity, relation, heads, tails, relations, inverse, sign,
    tail_negatives, head_negatives, for_tail, for_head, tail_scores, head_scores, tail_rows, head_rows,
):  # fmt: skip
    half = entity.shape[1] // 2
    for i in numba.prange(heads.shape[0]):
        h, t, f, b = entity[heads[i]], entity[tails[i]], relation[relations[i]], relation[inverse[i]]
        for k in range(half):
            j = half + k
            for_tail[i, k], for_tail[i, j] = h[k] * f[k] - h[j] * f[j], h[k] * f[j] + h[j] * f[k]
        for k in range(half):
            j = half + k
            bi = sign * b[j]
            for_head[i, k], for_head[i, j] = t[k] * b[k] - t[j] * bi, t[k] * bi + t[j] * b[k]
        tail_scores[i], head_scores[i] = _dot(for_tail[i], t), _dot(for_head[i], h)
    n = tail_negatives.shape[0]
    for i in numba.prange(n + head_negatives.shape[0]):
        source, target = (
            (entity[tail_negatives[i]], tail_rows[i]) if i < n else (entity[head_negatives[i - n]], head_rows[i - n])
        )
        for k in range(2 * half):
            target[k] = source[k]


@numba.njit(cache=True, parallel=True, fastmath={"contract"})
def _gradient_loop(  # type: ignore[no-untyped-def]
    entity, relation, heads, tails, relations, inverse, sign, q, p, for_q, for_p, to_tail, to_head, gh, gt, gf, gb
):
    """q, p: queries for tails and heads. gh, gt, gf: gradients of heads, tails and relations.

    The gradient of the inverse relations is added to gb.
    """
    half = entity.shape[1] // 2
    for i in numba.prange(heads.shape[0]):
        h, t, f, b = entity[heads[i]], entity[tails[i]], relation[relations[i]], relation[inverse[i]]
        x, y = to_tail[i], to_head[i]
        for k in range(half):  # one loop per side: LLVM does not vectorize a loop that writes eight arrays
            j = half + k
            ur, ui = for_q[i, k] + x * t[k], for_q[i, j] + x * t[j]
            gh[i, k], gh[i, j] = ur * f[k] + ui * f[j] + y * p[i, k], ui * f[k] - ur * f[j] + y * p[i, j]
            gf[i, k], gf[i, j] = ur * h[k] + ui * h[j], ui * h[k] - ur * h[j]
        for k in range(half):
            j = half + k
            vr, vi, bi = for_p[i, k] + y * h[k], for_p[i, j] + y * h[j], sign * b[j]
            gt[i, k], gt[i, j] = vr * b[k] + vi * bi + x * q[i, k], vi * b[k] - vr * bi + x * q[i, j]
            gb[i, k] += vr * t[k] + vi * t[j]
            gb[i, j] += sign * (vi * t[k] - vr * t[j])
