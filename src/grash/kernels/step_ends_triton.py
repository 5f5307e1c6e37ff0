"""The middle of the step: softmax parts become normalisers, and what arrives at queries and answers becomes gradients
of the batch's heads, tails and relations, one row per occurrence; the loss of every positive, penalties included.

For distances the normalisers are known before (`step_distance_triton`). Bytes for S splits a slot: 8·D·S·B read, 12 to
16·D·B written.
"""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from grash.kernels.rows_triton import batch_masks, compose, compose_gradient, load_halves, pair_gradient, store_halves
from grash.kernels.step import INTS, StepSpace
from grash.kernels.step_draw_triton import bounds

_ROWS = 8
_LOG2E: tl.constexpr = tl.constexpr(1.4426950408889634)
_LN2: tl.constexpr = tl.constexpr(0.6931471805599453)
_INTS: tl.constexpr = tl.constexpr(INTS)


def ends(space: StepSpace, plan: Tensor, trials: Tensor, factors: Tensor, entity: Tensor, relation: Tensor) -> None:
    """Fills for_ends, for_relations (T, 2, B, P) and row_losses (T, B); for dot products the normalisers (T, 2, B) too:
    logarithms in base 2, ∞ where there is no positive."""
    shape = space.shape
    _ends[(shape.rows // _ROWS, shape.trials)](
        space.clock, plan, trials, factors, entity, relation, space.ids, space.positive,
        space.maxima, space.sums, space.partial, space.normaliser, space.pull,
        space.for_ends, space.for_relations, space.row_losses,
        shape.batch, space.splits, shape.n_relations, entity.shape[1], relation.shape[1],
        BATCH=shape.rows, DIM=shape.dim, WIDTH=shape.width, HALF=shape.half, PAD=shape.padded_half,
        COMPOSE=shape.compose, PAIR=shape.pair, RECIPROCAL=shape.reciprocal, DROPOUT=shape.dropout,
        ROWS=_ROWS, num_warps=4,
    )  # fmt: skip


@triton.jit
def splits_used(trials, slot):  # type: ignore[no-untyped-def]
    n, chunk = tl.load(trials + slot), tl.load(trials + 2 + slot)
    return (n + chunk - 1) // chunk


@triton.jit
def highest(maxima, truth, row, used, BATCH: tl.constexpr):  # type: ignore[no-untyped-def]
    top = truth
    for split in range(used):
        top = tl.maximum(top, tl.load(maxima + split * BATCH + row))
    return top


@triton.jit(do_not_specialize=["splits", "n_relations", "entity_rows", "relation_rows"])
def _ends(  # type: ignore[no-untyped-def]
    clock, plan, trials, factors, entity, relation, ids, positive, maxima, sums, partial, normaliser, pull,
    for_ends, for_relations, row_losses, batch, splits, n_relations, entity_rows, relation_rows,
    BATCH: tl.constexpr, DIM: tl.constexpr, WIDTH: tl.constexpr, HALF: tl.constexpr, PAD: tl.constexpr,
    COMPOSE: tl.constexpr, PAIR: tl.constexpr, RECIPROCAL: tl.constexpr, DROPOUT: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    row, trial = tl.program_id(0) * ROWS + tl.arange(0, ROWS), tl.program_id(1).to(tl.int64)
    step = tl.load(clock) - 1
    _, first, last = bounds(plan, step, batch)
    live = (row < batch) & (first + row < last)
    share = 1.0 / tl.maximum(last - first, 1).to(tl.float32)
    trials += trial * _INTS
    factors += trial * 4
    entity += trial * entity_rows * DIM
    relation += trial * relation_rows * WIDTH
    heads, tails = tl.load(ids + row), tl.load(ids + BATCH + row)
    kinds = tl.load(ids + 2 * BATCH + row)
    back = kinds + n_relations if RECIPROCAL else kinds
    raw_hr, raw_hi = load_halves(entity, heads, live, DIM, HALF, PAD)
    raw_tr, raw_ti = load_halves(entity, tails, live, DIM, HALF, PAD)
    raw_rr, raw_ri = load_halves(relation, kinds, live, WIDTH, HALF, PAD)
    raw_br, raw_bi = load_halves(relation, back, live, WIDTH, HALF, PAD)
    hr, hi, tr, ti, rr, ri, br, bi = raw_hr, raw_hi, raw_tr, raw_ti, raw_rr, raw_ri, raw_br, raw_bi
    if DROPOUT:
        m0, m1, m2, m3, m4, m5, m6, m7 = batch_masks(row, step, trials, factors, HALF, PAD, RECIPROCAL)
        hr, hi, tr, ti, rr, ri, br, bi = hr * m0, hi * m1, tr * m2, ti * m3, rr * m4, ri * m5, br * m6, bi * m7

    qr, qi = compose(tr, ti, br, bi, COMPOSE, not RECIPROCAL)
    ur, ui, ghr, ghi, loss = _arrived(
        0, trial, row, live, share, trials, positive, maxima, sums, partial, normaliser, pull, splits,
        qr, qi, hr, hi, BATCH, PAD, PAIR,
    )  # fmt: skip
    gtr, gti, gbr, gbi = compose_gradient(ur, ui, tr, ti, br, bi, COMPOSE, not RECIPROCAL)
    qr, qi = compose(hr, hi, rr, ri, COMPOSE, False)
    ur, ui, more_tr, more_ti, more_loss = _arrived(
        1, trial, row, live, share, trials, positive, maxima, sums, partial, normaliser, pull, splits,
        qr, qi, tr, ti, BATCH, PAD, PAIR,
    )  # fmt: skip
    more_hr, more_hi, grr, gri = compose_gradient(ur, ui, hr, hi, rr, ri, COMPOSE, False)
    ghr, ghi, gtr, gti, loss = ghr + more_hr, ghi + more_hi, gtr + more_tr, gti + more_ti, loss + more_loss
    if not RECIPROCAL:
        grr, gri = grr + gbr, gri + gbi
    if DROPOUT:
        ghr, ghi, gtr, gti = ghr * m0, ghi * m1, gtr * m2, gti * m3
        grr, gri, gbr, gbi = grr * m4, gri * m5, gbr * m6, gbi * m7

    kind, weight = tl.load(trials + 8), tl.load(factors + 2) * share
    if kind > 0:
        value, pr, pi = _penalty(raw_hr, raw_hi, kind, weight)
        ghr, ghi, loss = ghr + pr, ghi + pi, loss + value
        value, pr, pi = _penalty(raw_tr, raw_ti, kind, weight)
        gtr, gti, loss = gtr + pr, gti + pi, loss + value
    kind, weight = tl.load(trials + 9), tl.load(factors + 3) * share
    if kind > 0:
        value, pr, pi = _penalty(raw_rr, raw_ri, kind, weight)
        grr, gri, loss = grr + pr, gri + pi, loss + value
        if RECIPROCAL:
            value, pr, pi = _penalty(raw_br, raw_bi, kind, weight)
            gbr, gbi, loss = gbr + pr, gbi + pi, loss + value
    tl.store(row_losses + trial * BATCH + row, tl.where(live, loss, 0.0))
    at = trial * 2 * BATCH + row
    everywhere = row < BATCH
    store_halves(for_ends, at, ghr, ghi, everywhere, 2 * PAD, PAD, PAD)
    store_halves(for_ends, at + BATCH, gtr, gti, everywhere, 2 * PAD, PAD, PAD)
    store_halves(for_relations, at, grr, gri, everywhere, 2 * PAD, PAD, PAD)
    if RECIPROCAL:
        store_halves(for_relations, at + BATCH, gbr, gbi, everywhere, 2 * PAD, PAD, PAD)


@triton.jit
def _arrived(  # type: ignore[no-untyped-def]
    slot, trial, row, live, share, trials, positive, maxima, sums, partial, normaliser, pull, splits,
    qr, qi, ar, ai, BATCH: tl.constexpr, PAD: tl.constexpr, PAIR: tl.constexpr,
):  # fmt: skip
    """What arrives at a slot's queries and at their answers (four blocks), and the loss: the parts in their order."""
    used = splits_used(trials, slot)
    at = trial * 2 + slot
    truth = tl.load(positive + at * BATCH + row) * _LOG2E
    ur, ui = tl.zeros_like(qr), tl.zeros_like(qi)
    if PAIR == "dot":
        top = highest(maxima + at * splits * BATCH, truth, row, used, BATCH)
        others = tl.zeros_like(truth)
        for split in range(used):
            here = (at * splits + split) * BATCH + row
            part = tl.exp2(tl.load(maxima + here) - top)
            others += part * tl.load(sums + here)
            first, second = load_halves(partial, here, live, 2 * PAD, PAD, PAD)
            ur += part[:, None] * first
            ui += part[:, None] * second
        total = tl.exp2(truth - top) + others
        log_total = top + tl.log2(total)
        tl.store(normaliser + at * BATCH + row, tl.where(live, log_total, float("inf")))
        weight = -others / total * share
        ur, ui = ur * (share / total)[:, None], ui * (share / total)[:, None]
    else:
        for split in range(used):
            first, second = load_halves(partial, (at * splits + split) * BATCH + row, live, 2 * PAD, PAD, PAD)
            ur += first
            ui += second
        log_total = tl.load(normaliser + at * BATCH + row)
        weight = tl.load(pull + at * BATCH + row)
        ur, ui = ur * share, ui * share
    more_r, more_i, for_r, for_i = pair_gradient(weight, qr, qi, ar, ai, PAIR)
    return ur + more_r, ui + more_i, for_r, for_i, (log_total - truth) * _LN2 * share


@triton.jit
def _penalty(first, second, kind, weight):  # type: ignore[no-untyped-def]
    """(w/p)·Σ |x|^p of each row, and its gradient; kind 4 is p = 3 of complex moduli."""
    a, b = tl.abs(first), tl.abs(second)
    modulus = tl.sqrt_rn(first * first + second * second)
    size = tl.where(kind == 1, 1.0 / tl.maximum(a, 1e-30), tl.where(kind == 2, 1.0, tl.where(kind == 3, a, modulus)))
    other = tl.where(kind == 1, 1.0 / tl.maximum(b, 1e-30), tl.where(kind == 2, 1.0, tl.where(kind == 3, b, modulus)))
    gradient, other_gradient = first * size, second * other
    values = tl.sum(first * gradient + second * other_gradient, 1)
    power = tl.minimum(kind, 3).to(tl.float32)
    return weight / power * values, weight * gradient, weight * other_gradient
