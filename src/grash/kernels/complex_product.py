"""Products of complex numbers stored in halves (first all real parts, then all imaginary parts), and their gradients.

    product(a, b) = a·b, or a·conj(b)        (B, D), (B, D) → (B, D)
One pass each; the plain forms make four and eight. They are ComplEx's queries.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numba
import numpy as np
import torch
from torch import Tensor

from grash.kernels.device import use_torch_threads


def product(a: Tensor, b: Tensor, *, conjugate: bool = False) -> Tensor:
    """a·b, or a·conj(b)."""
    if not _loops_serve(a, b):
        return product_plain(a, b, conjugate=conjugate)
    use_torch_threads()
    out = torch.empty_like(a)
    _product_loop(a.numpy(), b.numpy(), out.numpy(), -1.0 if conjugate else 1.0)
    return out


def product_plain(a: Tensor, b: Tensor, *, conjugate: bool = False) -> Tensor:
    """The plain form of `product`."""
    (ar, ai), (br, bi) = a.chunk(2, -1), b.chunk(2, -1)
    if conjugate:
        return torch.cat([ar * br + ai * bi, ai * br - ar * bi], -1)
    return torch.cat([ar * br - ai * bi, ar * bi + ai * br], -1)


def product_gradient(upstream: Tensor, a: Tensor, b: Tensor, *, conjugate: bool = False) -> tuple[Tensor, Tensor]:
    """Gradients of Σ upstream·product(a, b) for a and for b."""
    if not _loops_serve(upstream, a, b):
        return product_gradient_plain(upstream, a, b, conjugate=conjugate)
    use_torch_threads()
    for_a, for_b = torch.empty_like(a), torch.empty_like(b)
    arrays = [x.numpy() for x in (upstream, a, b, for_a, for_b)]
    _gradient_loop(*arrays, -1.0 if conjugate else 1.0)  # type: ignore[call-arg]
    return for_a, for_b


def product_gradient_plain(upstream: Tensor, a: Tensor, b: Tensor, *, conjugate: bool = False) -> tuple[Tensor, Tensor]:
    """The plain form of `product_gradient`: u·conj(b) and u·conj(a), or u·b and a·conj(u)."""
    if conjugate:
        return product_plain(upstream, b), product_plain(a, upstream, conjugate=True)
    return product_plain(upstream, b, conjugate=True), product_plain(upstream, a, conjugate=True)


def _loops_serve(*tensors: Tensor) -> bool:
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
def _gradient_loop(u, a, b, for_a, for_b, sign):  # type: ignore[no-untyped-def]
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


# = Triples of complex rows asked from both ends: queries, true scores and the rows that both are compared with in one
# = call, and their gradients in another.
# =
# =     tail query = head·forward        score = ⟨tail query, tail⟩
# =     head query = tail·backward       score = ⟨head query, head⟩         backward conjugated if `conjugate`
# = Rows are read where they stand in their tables: 24·B·D bytes forward and 48·B·D back, where gathers, products, scores
# = and sums one after the other move 80 and 116. Rows are stored in halves (real parts, then imaginary parts).
# = It is ComplEx's step on a CPU before and after its matrix products.


@dataclass(frozen=True)
class TripleBatch:
    """B triples: entity (E, D), relation (R, D); heads, tails, forward, backward (B,) ids of rows in them. others:
    (N,) entities that the tails, and (M,) that the heads are compared with."""

    entity: Tensor
    relation: Tensor
    heads: Tensor
    tails: Tensor
    forward: Tensor
    backward: Tensor
    others: tuple[Tensor, Tensor]
    conjugate: bool

    @cached_property
    def arrays(self) -> list[np.ndarray]:
        parts = (self.entity, self.relation, self.heads, self.tails, self.forward, self.backward)
        return [part.contiguous().numpy() for part in parts]

    @property
    def sign(self) -> np.float32:
        return np.float32(-1 if self.conjugate else 1)


Asked = tuple[Tensor, Tensor]  # of (tail, head): queries (B, D) each, a number (B,) each, or rows (N, D) and (M, D)


def _loops_serve_complex_ends(*tables: Tensor) -> bool:
    return all(t.device.type == "cpu" and t.dtype == torch.float32 and t.is_contiguous() for t in tables)


def both_queries(ends: TripleBatch) -> tuple[Asked, Asked, Asked]:
    """(tail queries, head queries), (scores of the true tails, of the true heads), (rows of the others, of both)."""
    if not _loops_serve_complex_ends(ends.entity, ends.relation):
        return end_queries_plain(ends)
    use_torch_threads()
    size, width = len(ends.heads), ends.entity.shape[1]
    queries = torch.empty(size, width), torch.empty(size, width)
    scores = torch.empty(size), torch.empty(size)
    rows = torch.empty(len(ends.others[0]), width), torch.empty(len(ends.others[1]), width)
    given = [x.numpy() for x in (*ends.others, *queries, *scores, *rows)]
    _query_loop(*ends.arrays, ends.sign, *given)  # type: ignore[call-arg]
    return queries, scores, rows


def end_queries_plain(ends: TripleBatch) -> tuple[Asked, Asked, Asked]:
    """The plain form of `both_queries`."""
    head, tail = ends.entity[ends.heads], ends.entity[ends.tails]
    for_tail = product_plain(head, ends.relation[ends.forward])
    for_head = product_plain(tail, ends.relation[ends.backward], conjugate=ends.conjugate)
    rows = ends.entity[ends.others[0]], ends.entity[ends.others[1]]
    return (for_tail, for_head), ((for_tail * tail).sum(1), (for_head * head).sum(1)), rows


def both_gradients(ends: TripleBatch, queries: Asked, for_queries: Asked, for_scores: Asked) -> tuple[Tensor, ...]:
    """Gradients of Σ for_queries·queries + Σ for_scores·scores: rows (B, D) for heads, tails, forward
    and backward, the last two as one where they are the same tensor."""
    if not _loops_serve_complex_ends(ends.entity, ends.relation):
        return end_gradients_plain(ends, queries, for_queries, for_scores)
    use_torch_threads()
    rows = [torch.empty(queries[0].shape) for _ in range(3)]
    if ends.forward is not ends.backward:
        rows.append(torch.zeros(queries[0].shape))
    given = [x.contiguous().numpy() for x in (*queries, *for_queries, *for_scores, *rows[:3], rows[-1])]
    _gradient_loop_complex_ends(*ends.arrays, ends.sign, *given)  # type: ignore[call-arg]
    return tuple(rows)


def end_gradients_plain(ends: TripleBatch, queries: Asked, for_queries: Asked, for_scores: Asked) -> tuple[Tensor, ...]:
    """The plain form of `both_gradients`."""
    head, tail = ends.entity[ends.heads], ends.entity[ends.tails]
    forward, backward = ends.relation[ends.forward], ends.relation[ends.backward]
    to_tail, to_head = (weight[:, None] for weight in for_scores)
    for_head, for_forward = product_gradient_plain(for_queries[0] + to_tail * tail, head, forward)
    for_tail, for_backward = product_gradient_plain(
        for_queries[1] + to_head * head, tail, backward, conjugate=ends.conjugate
    )
    for_head, for_tail = for_head + to_head * queries[1], for_tail + to_tail * queries[0]
    if ends.forward is ends.backward:
        return for_head, for_tail, for_forward + for_backward
    return for_head, for_tail, for_forward, for_backward


@numba.njit(cache=True, inline="always")
def _dot(x, y):  # type: ignore[no-untyped-def]
    """In four sums, of a fourth of the coordinates each: the compiler may not reorder them (0038), and waits less."""
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
    entity, relation, heads, tails, forward, backward, sign,
    not_tails, not_heads, for_tail, for_head, tail_scores, head_scores, tail_rows, head_rows,
):  # fmt: skip
    half = entity.shape[1] // 2
    for i in numba.prange(heads.shape[0]):
        h, t, f, b = entity[heads[i]], entity[tails[i]], relation[forward[i]], relation[backward[i]]
        for k in range(half):
            j = half + k
            for_tail[i, k], for_tail[i, j] = h[k] * f[k] - h[j] * f[j], h[k] * f[j] + h[j] * f[k]
        for k in range(half):
            j = half + k
            bi = sign * b[j]
            for_head[i, k], for_head[i, j] = t[k] * b[k] - t[j] * bi, t[k] * bi + t[j] * b[k]
        tail_scores[i], head_scores[i] = _dot(for_tail[i], t), _dot(for_head[i], h)
    n = not_tails.shape[0]
    for i in numba.prange(n + not_heads.shape[0]):
        source, target = (entity[not_tails[i]], tail_rows[i]) if i < n else (entity[not_heads[i - n]], head_rows[i - n])
        for k in range(2 * half):
            target[k] = source[k]


@numba.njit(cache=True, parallel=True, fastmath={"contract"})
def _gradient_loop_complex_ends(  # type: ignore[no-untyped-def]
    entity, relation, heads, tails, forward, backward, sign, q, p, for_q, for_p, to_tail, to_head, gh, gt, gf, gb
):
    """q, p: queries for tails and heads; gh, gt, gf: gradients of heads, tails and forward; that of backward is added
    to gb."""
    half = entity.shape[1] // 2
    for i in numba.prange(heads.shape[0]):
        h, t, f, b = entity[heads[i]], entity[tails[i]], relation[forward[i]], relation[backward[i]]
        x, y = to_tail[i], to_head[i]
        for k in range(half):  # one loop per end: with eight arrays to write in one, LLVM does not vectorise
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
