"""The middle of the step: softmax parts become normalisers, and what arrives at queries and answers becomes gradients
of the batch's heads, tails and relations, one row per occurrence; the loss of every positive, penalties included.

For distances the parts are joined before (`step_distance_triton`). Bytes for `splits` parts a slot: 8·D·splits·B read,
12 to 16·D·B written.
"""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from grash.kernels.compile_ahead import launch
from grash.kernels.rows_triton import (
    batch_masks,
    candidate_mask,
    compose,
    compose_gradient,
    load_halves,
    pair_gradient,
    store_halves,
)
from grash.kernels.step import StepSpace
from grash.kernels.step_slots_triton import EXACT, FACTORS, PER_TRIAL, bounds, joined

ROWS = 8  # positives of a program; of wide rows half as many


def ends(space: StepSpace, plan: Tensor, trials: Tensor, factors: Tensor, entity: Tensor, relation: Tensor) -> None:
    """Fills for_ends, for_relations (T, 2, B, P) and row_losses (T, B); for dot products the normalisers (T, S, B) too:
    logarithms in base 2, ∞ where there is no positive."""
    shape = space.shape
    rows = ROWS // 2 if shape.wide else ROWS
    known = space.normaliser if shape.pair == "dot" else space.slot_losses
    launch(
        _ends, (shape.rows // rows, shape.trials),
        space.clock, plan, trials, factors, entity, relation, space.ids, space.positive,
        space.maxima, space.sums, space.costs, space.partial, known, space.pull,
        space.for_ends, space.for_relations, space.row_losses,
        shape.batch, space.splits, shape.n_relations, entity.shape[1], relation.shape[1],
        BATCH=shape.rows, SLOTS=shape.slots, DIM=shape.dim, WIDTH=shape.width, HALF=shape.half, PAD=shape.padded_half,
        COMPOSE=shape.compose, PAIR=shape.pair, RECIPROCAL=shape.reciprocal, DROPOUT=shape.dropout,
        EVERYONE=shape.everyone, ADVERSARIAL=shape.adversarial, ROWS=rows, num_warps=4, **EXACT,
    )  # fmt: skip


@triton.jit(do_not_specialize=["splits", "n_relations", "entity_rows", "relation_rows"])
def _ends(  # type: ignore[no-untyped-def]
    clock, plan, trials, factors, entity, relation, ids, positive, maxima, sums, costs, partial, known, pull,
    for_ends, for_relations, row_losses, batch, splits, n_relations, entity_rows, relation_rows,
    BATCH: tl.constexpr, SLOTS: tl.constexpr, DIM: tl.constexpr, WIDTH: tl.constexpr, HALF: tl.constexpr,
    PAD: tl.constexpr, COMPOSE: tl.constexpr, PAIR: tl.constexpr, RECIPROCAL: tl.constexpr, DROPOUT: tl.constexpr,
    EVERYONE: tl.constexpr, ADVERSARIAL: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    row, trial = tl.program_id(0) * ROWS + tl.arange(0, ROWS), tl.program_id(1).to(tl.int64)
    step = tl.load(clock) - 1
    _, first, last = bounds(plan, step, batch)
    live = (row < batch) & (first + row < last)
    share = 1.0 / tl.maximum(last - first, 1).to(tl.float32)
    trials += trial * PER_TRIAL
    factors += trial * FACTORS
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

    # the head is asked: what is known is the tail
    qr, qi = compose(tr, ti, br, bi, COMPOSE, not RECIPROCAL)
    ar, ai = hr, hi
    if DROPOUT and EVERYONE:  # the truth is one of the candidates, under the candidates' mask
        n0, n1 = candidate_mask(heads, 0, step, trials, factors, HALF, PAD)
        ar, ai = raw_hr * n0, raw_hi * n1
    ur, ui, fhr, fhi, loss = _arrived(
        0, trial, row, live, share, trials, factors, positive, maxima, sums, costs, partial, known, pull, splits,
        qr, qi, ar, ai, BATCH, SLOTS, PAD, PAIR, ADVERSARIAL,
    )  # fmt: skip
    gtr, gti, gbr, gbi = compose_gradient(ur, ui, tr, ti, br, bi, COMPOSE, not RECIPROCAL)
    # the tail is asked
    qr, qi = compose(hr, hi, rr, ri, COMPOSE, False)
    ar, ai = tr, ti
    if DROPOUT and EVERYONE:
        n2, n3 = candidate_mask(tails, 1, step, trials, factors, HALF, PAD)
        ar, ai = raw_tr * n2, raw_ti * n3
    ur, ui, ftr, fti, more_loss = _arrived(
        1, trial, row, live, share, trials, factors, positive, maxima, sums, costs, partial, known, pull, splits,
        qr, qi, ar, ai, BATCH, SLOTS, PAD, PAIR, ADVERSARIAL,
    )  # fmt: skip
    ghr, ghi, grr, gri = compose_gradient(ur, ui, hr, hi, rr, ri, COMPOSE, False)
    loss += more_loss
    if not EVERYONE:
        ghr, ghi, gtr, gti = fhr + ghr, fhi + ghi, gtr + ftr, gti + fti
    elif DROPOUT:
        fhr, fhi, ftr, fti = fhr * n0, fhi * n1, ftr * n2, fti * n3
    if SLOTS == 3:  # the relation is asked, of its rows as they are
        qr, qi = compose(tr, ti, hr, hi, COMPOSE, True)
        ur, ui, frr, fri, more_loss = _arrived(
            2, trial, row, live, share * tl.load(factors + 4), trials, factors, positive, maxima, sums, costs, partial,
            known, pull, splits, qr, qi, raw_rr, raw_ri, BATCH, SLOTS, PAD, PAIR, ADVERSARIAL,
        )  # fmt: skip
        more_tr, more_ti, more_hr, more_hi = compose_gradient(ur, ui, tr, ti, hr, hi, COMPOSE, True)
        ghr, ghi, gtr, gti, loss = ghr + more_hr, ghi + more_hi, gtr + more_tr, gti + more_ti, loss + more_loss
    if not RECIPROCAL:
        grr, gri = grr + gbr, gri + gbi
    if DROPOUT:
        ghr, ghi, gtr, gti = ghr * m0, ghi * m1, gtr * m2, gti * m3
        grr, gri, gbr, gbi = grr * m4, gri * m5, gbr * m6, gbi * m7
    if EVERYONE:
        ghr, ghi, gtr, gti = ghr + fhr, ghi + fhi, gtr + ftr, gti + fti
    if SLOTS == 3:
        grr, gri = grr + frr, gri + fri

    kind, weight = tl.load(trials + 8), tl.load(factors + 2) * share
    if kind > 0:
        value, pr, pi = _penalty(raw_hr, raw_hi, kind, weight)
        ghr, ghi, loss = ghr + pr, ghi + pi, loss + value
        value, pr, pi = _penalty(raw_tr, raw_ti, kind, weight)
        gtr, gti, loss = gtr + pr, gti + pi, loss + value
    kind, weight = tl.load(trials + 9), tl.load(factors + 3) * share
    if kind > 0:  # of two rows for both directions, those that are asked
        forward, backward = weight, weight
        if RECIPROCAL:
            forward = tl.where(tl.load(trials + 1) > 0, weight, 0.0)
            backward = tl.where(tl.load(trials) > 0, weight, 0.0)
        value, pr, pi = _penalty(raw_rr, raw_ri, kind, forward)
        grr, gri, loss = grr + pr, gri + pi, loss + value
        if RECIPROCAL:
            value, pr, pi = _penalty(raw_br, raw_bi, kind, backward)
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
    slot, trial, row, live, share, trials, factors, positive, maxima, sums, costs, partial, known, pull, splits,
    qr, qi, ar, ai,
    BATCH: tl.constexpr, SLOTS: tl.constexpr, PAD: tl.constexpr, PAIR: tl.constexpr, ADVERSARIAL: tl.constexpr,
):  # fmt: skip
    """What arrives at a slot's queries and at their answers (four blocks), and the loss: the parts in their order."""
    used = tl.cdiv(tl.load(trials + slot), tl.load(trials + 3))
    at = trial * SLOTS + slot
    ur, ui = tl.zeros_like(qr), tl.zeros_like(qi)
    if PAIR == "dot":
        top, bound, inverse, weight, loss = joined(
            at, row, slot, trials, factors, positive, maxima, sums, costs, splits, BATCH, ADVERSARIAL
        )
        for split in range(used):
            here = (at * splits + split) * BATCH + row
            part = tl.exp2(tl.load(maxima + here) - top)
            first, second = load_halves(partial, here, live, 2 * PAD, PAD, PAD)
            ur += part[:, None] * first
            ui += part[:, None] * second
        tl.store(known + at * BATCH + row, tl.where(live, bound, float("inf")))
        ur, ui = ur * (share * inverse)[:, None], ui * (share * inverse)[:, None]
    else:
        for split in range(used):
            first, second = load_halves(partial, (at * splits + split) * BATCH + row, live, 2 * PAD, PAD, PAD)
            ur += first
            ui += second
        loss = tl.load(known + at * BATCH + row)
        weight = tl.load(pull + at * BATCH + row)
        ur, ui = ur * share, ui * share
    more_r, more_i, for_r, for_i = pair_gradient(weight * share, qr, qi, ar, ai, PAIR)
    return ur + more_r, ui + more_i, for_r, for_i, loss * share


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
