"""Triples of complex rows asked from both ends: queries and true scores in one loop, and their gradients in another.

    tail query = head·forward        score = ⟨tail query, tail⟩
    head query = tail·backward       score = ⟨head query, head⟩         backward conjugated if `conjugate`
Rows are read where they stand in their tables, so that nothing is gathered: 24·B·D bytes forward and 48·B·D back, where
gathers, products, scores and sums one after the other move four times as many. Rows are stored in halves (first all real
parts). It is ComplEx's step on a CPU before and after its matrix products.
"""

from __future__ import annotations

from dataclasses import dataclass

import numba
import numpy as np
import torch
from torch import Tensor

from grash.kernels.complex_product import product_gradient_plain, product_plain
from grash.kernels.threads import use_torch_threads


@dataclass(frozen=True)
class Ends:
    """B triples: entity (E, D), relation (R, D); heads, tails, forward, backward (B,) ids of rows in them.

    Where forward and backward are the same tensor, their gradients come back as one."""

    entity: Tensor
    relation: Tensor
    heads: Tensor
    tails: Tensor
    forward: Tensor
    backward: Tensor
    conjugate: bool

    def arrays(self) -> list[np.ndarray]:
        parts = (self.entity, self.relation, self.heads, self.tails, self.forward, self.backward)
        return [part.contiguous().numpy() for part in parts]

    @property
    def sign(self) -> np.float32:
        return np.float32(-1 if self.conjugate else 1)


Asked = tuple[Tensor, Tensor]  # of (tail, head): queries (B, D) each, or a number (B,) each


def loops_serve(*tables: Tensor) -> bool:
    return all(t.device.type == "cpu" and t.dtype == torch.float32 and t.is_contiguous() for t in tables)


def end_queries(ends: Ends) -> tuple[Asked, Asked]:
    """(tail queries, head queries) and (scores of the true tails, scores of the true heads)."""
    if not loops_serve(ends.entity, ends.relation):
        return end_queries_plain(ends)
    use_torch_threads()
    shape = (len(ends.heads), ends.entity.shape[1])
    queries = torch.empty(shape), torch.empty(shape)
    scores = torch.empty(shape[0]), torch.empty(shape[0])
    _query_loop(*ends.arrays(), ends.sign, *(x.numpy() for x in (*queries, *scores)))  # type: ignore[call-arg]
    return queries, scores


def end_queries_plain(ends: Ends) -> tuple[Asked, Asked]:
    """The plain form of `end_queries`."""
    head, tail = ends.entity[ends.heads], ends.entity[ends.tails]
    for_tail = product_plain(head, ends.relation[ends.forward])
    for_head = product_plain(tail, ends.relation[ends.backward], conjugate=ends.conjugate)
    return (for_tail, for_head), ((for_tail * tail).sum(1), (for_head * head).sum(1))


def end_gradients(ends: Ends, queries: Asked, for_queries: Asked, for_scores: Asked) -> tuple[Tensor, ...]:
    """Gradients of Σ for_queries·queries + Σ for_scores·scores: rows (B, D) for heads, tails, forward and backward;
    without the last where forward and backward are one."""
    if not loops_serve(ends.entity, ends.relation):
        return end_gradients_plain(ends, queries, for_queries, for_scores)
    use_torch_threads()
    apart = ends.forward is not ends.backward
    rows = torch.empty(4 if apart else 3, *queries[0].shape)
    given = [x.contiguous().numpy() for x in (*queries, *for_queries, *for_scores)]
    _gradient_loop(*ends.arrays(), ends.sign, *given, rows.numpy())  # type: ignore[call-arg]
    return rows.unbind()


def end_gradients_plain(ends: Ends, queries: Asked, for_queries: Asked, for_scores: Asked) -> tuple[Tensor, ...]:
    """The plain form of `end_gradients`."""
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


@numba.njit(cache=True, parallel=True, fastmath={"contract", "reassoc", "nsz"})
def _query_loop(  # type: ignore[no-untyped-def]
    entity, relation, heads, tails, forward, backward, sign, for_tail, for_head, tail_scores, head_scores
):
    half = entity.shape[1] // 2
    for i in numba.prange(heads.shape[0]):
        h, t, f, b = entity[heads[i]], entity[tails[i]], relation[forward[i]], relation[backward[i]]
        tail_score, head_score = np.float32(0), np.float32(0)
        for k in range(half):
            hr, hi, tr, ti = h[k], h[half + k], t[k], t[half + k]
            fr, fi, br, bi = f[k], f[half + k], b[k], sign * b[half + k]
            qr, qi = hr * fr - hi * fi, hr * fi + hi * fr
            pr, pi = tr * br - ti * bi, tr * bi + ti * br
            for_tail[i, k], for_tail[i, half + k] = qr, qi
            for_head[i, k], for_head[i, half + k] = pr, pi
            tail_score += qr * tr + qi * ti
            head_score += pr * hr + pi * hi
        tail_scores[i], head_scores[i] = tail_score, head_score


@numba.njit(cache=True, parallel=True, fastmath={"contract", "reassoc", "nsz"})
def _gradient_loop(  # type: ignore[no-untyped-def]
    entity, relation, heads, tails, forward, backward, sign, q, p, for_q, for_p, to_tail, to_head, rows
):
    """q, p: the queries for tails and heads; rows: (3 or 4, B, D)."""
    half = entity.shape[1] // 2
    apart = rows.shape[0] == 4
    for i in numba.prange(heads.shape[0]):
        h, t, f, b = entity[heads[i]], entity[tails[i]], relation[forward[i]], relation[backward[i]]
        x, y = to_tail[i], to_head[i]
        for k in range(half):
            j = half + k
            hr, hi, tr, ti, fr, fi, br, bi = h[k], h[j], t[k], t[j], f[k], f[j], b[k], sign * b[j]
            ur, ui = for_q[i, k] + x * tr, for_q[i, j] + x * ti
            vr, vi = for_p[i, k] + y * hr, for_p[i, j] + y * hi
            rows[0, i, k], rows[0, i, j] = ur * fr + ui * fi + y * p[i, k], ui * fr - ur * fi + y * p[i, j]
            rows[1, i, k], rows[1, i, j] = vr * br + vi * bi + x * q[i, k], vi * br - vr * bi + x * q[i, j]
            gr, gi = ur * hr + ui * hi, ui * hr - ur * hi
            er, ei = vr * tr + vi * ti, sign * (vi * tr - vr * ti)
            if apart:
                rows[2, i, k], rows[2, i, j], rows[3, i, k], rows[3, i, j] = gr, gi, er, ei
            else:
                rows[2, i, k], rows[2, i, j] = gr + er, gi + ei
