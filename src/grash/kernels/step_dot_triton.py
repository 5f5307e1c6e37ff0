"""Scores, softmax and both gradients of the step for dot products, as flash attention does it: no B × N matrix.

    score    per chunk of candidates: the running maximum, the sum of exponentials and their sum times candidates
    spread   per tile of candidates: scores again, their shares of the softmax, and those times queries
8·B·N·D FLOP of matrix products (6 without the second look at the scores); the factors in bf16 or tf32, sums in float32.
Exponents are kept in base 2. A share enters its product times 2¹⁵, so that a small one keeps its digits.
"""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from grash.kernels.compile_ahead import launch
from grash.kernels.step import StepSpace
from grash.kernels.step_slots_triton import (
    FACTORS,
    LOG2E,
    PER_TRIAL,
    REACH,
    beginning,
    move_on,
    opening,
    own_part,
    own_shares,
    slot_at,
    softplus,
)


def score(space: StepSpace, trials: Tensor, factors: Tensor) -> None:
    """Fills maxima, sums, costs (T, S, splits, B) and partial (T, S, splits, B, P); moves the clock on."""
    shape, tile = space.shape, tiles(space)
    launch(
        _score, (shape.rows // tile["LONG"], shape.slots * space.splits, shape.trials),
        space.clock, trials, factors, space.truths, space.positive, space.queries, space.block,
        space.maxima, space.sums, space.costs, space.partial, space.splits,
        shape.first_tail, shape.first_relation, shape.candidates,
        BATCH=shape.rows, SLOTS=shape.slots, P=shape.padded, ADVERSARIAL=shape.adversarial,
        FAR=shape.candidates * shape.padded >= REACH, PRECISION=_precision(space), **tile,
    )  # fmt: skip


def spread(space: StepSpace, trials: Tensor, factors: Tensor) -> None:
    """Fills for_candidates (T, 1, N, P), yet to be divided by the number of positives."""
    shape, tile = space.shape, tiles(space)
    launch(
        _spread, (shape.candidates // tile["LONG"], shape.trials),
        trials, factors, space.truths, space.normaliser, space.queries, space.block, space.for_candidates,
        shape.first_tail, shape.first_relation, shape.candidates,
        BATCH=shape.rows, SLOTS=shape.slots, SHARED=shape.shared, P=shape.padded, ADVERSARIAL=shape.adversarial,
        PRECISION=_precision(space), **tile,
    )  # fmt: skip


def tiles(space: StepSpace) -> dict[str, int]:
    """LONG rows stay, SHORT ones pass by; by the width of a row and of its floats, never by the number of trials."""
    shape = space.shape
    wide = shape.padded > 128
    if shape.products == "bf16":
        short = 32 if shape.wide else 64
        return {"LONG": 64, "SHORT": short, "num_warps": 8 if wide else 4, "num_stages": 2 if shape.wide else 3}
    if shape.wide:
        return {"LONG": 64, "SHORT": 16, "num_warps": 8, "num_stages": 2}
    short = 32 if wide or shape.products == "tf32x3" else 64
    return {"LONG": 128, "SHORT": short, "num_warps": 8, "num_stages": 2}


def _precision(space: StepSpace) -> str:
    return "tf32" if space.shape.products == "bf16" else space.shape.products


@triton.jit(do_not_specialize=["splits"])
def _score(  # type: ignore[no-untyped-def]
    clock, trials, factors, truths, positive, queries, block, maxima, sums, costs, partial, splits,
    first_tail, first_relation, candidates,
    BATCH: tl.constexpr, SLOTS: tl.constexpr, P: tl.constexpr, ADVERSARIAL: tl.constexpr, FAR: tl.constexpr,
    PRECISION: tl.constexpr, LONG: tl.constexpr, SHORT: tl.constexpr,
):  # fmt: skip
    """FAR: the candidates' floats are more than 32 bits count (1vsAll of 4.6 million entities with 512 each)."""
    move_on(clock)
    trial, slot, split, begin, end = own_part(trials, splits)
    if begin < end:
        row, c = tl.program_id(0) * LONG + tl.arange(0, LONG), tl.arange(0, P)
        at = (trial * SLOTS + slot) * BATCH
        q = tl.load(queries + (at + row)[:, None] * P + c[None, :])
        truth = tl.load(truths + slot * BATCH + row)
        top, alpha, gamma, alone = opening(tl.load(positive + at + row), slot, factors + trial * FACTORS, ADVERSARIAL)
        total, cost = tl.zeros((LONG,), tl.float32), tl.zeros((LONG,), tl.float32)
        pull = tl.zeros((LONG, P), tl.float32)
        block += (trial * candidates + beginning(slot, first_tail, first_relation)) * P
        for first in range(begin, end, SHORT):
            place = first + tl.arange(0, SHORT)
            line = place
            if FAR:
                line = place.to(tl.int64)
            e = tl.load(block + line[:, None] * P + c[None, :])
            s = tl.dot(q, tl.trans(e), input_precision=PRECISION)
            exponent = s * (alpha * LOG2E)
            other = (place[None, :] < end) & (place[None, :] != truth[:, None])
            exponent = tl.where(other, exponent, -float("inf"))
            higher = tl.maximum(top, tl.max(exponent, 1))
            share = tl.exp2(exponent - higher[:, None])
            shrink = tl.exp2(top - higher)
            total = total * shrink + tl.sum(share, 1)
            if ADVERSARIAL:
                cost = cost * shrink + tl.sum(share * softplus(s + gamma), 1)
                share *= own_shares(s, alone, gamma)
            pull = tl.dot(share.to(e.dtype), e, pull * shrink[:, None], input_precision=PRECISION)
            top = higher
        at = ((trial * SLOTS + slot) * splits + split) * BATCH
        tl.store(maxima + at + row, top)
        tl.store(sums + at + row, total)
        if ADVERSARIAL:
            tl.store(costs + at + row, cost)
        tl.store(partial + (at + row)[:, None] * P + c[None, :], pull)


@triton.jit
def _spread(  # type: ignore[no-untyped-def]
    trials, factors, truths, normaliser, queries, block, out, first_tail, first_relation, candidates,
    BATCH: tl.constexpr, SLOTS: tl.constexpr, SHARED: tl.constexpr, P: tl.constexpr, ADVERSARIAL: tl.constexpr,
    PRECISION: tl.constexpr, LONG: tl.constexpr, SHORT: tl.constexpr,
):  # fmt: skip
    tile, trial = tl.program_id(0), tl.program_id(1).to(tl.int64)
    slot = slot_at(tile * LONG, first_tail, first_relation)
    j = tile * LONG + tl.arange(0, LONG)
    place, c = j - beginning(slot, first_tail, first_relation), tl.arange(0, P)
    if tile * LONG - beginning(slot, first_tail, first_relation) < tl.load(trials + trial * PER_TRIAL + slot):
        e = tl.load(block + (trial * candidates + j)[:, None] * P + c[None, :])
        _, alpha, gamma, alone = opening(tl.zeros((SHORT,), tl.float32), slot, factors + trial * FACTORS, ADVERSARIAL)
        at = trial * SLOTS * BATCH
        mine = _spread_from(slot * BATCH, slot * BATCH + BATCH, e, place, alone, alpha, gamma, truths, normaliser + at,
                            queries + at * P, P, ADVERSARIAL, PRECISION, LONG, SHORT)  # fmt: skip
        if SHARED:  # heads are asked for the same candidates; summed apart, as where they are not the same
            mine += _spread_from(0, tl.where(slot == 1, BATCH, 0), e, place, alone, alpha, gamma, truths,
                                 normaliser + at, queries + at * P, P, ADVERSARIAL, PRECISION, LONG, SHORT)  # fmt: skip
        tl.store(out + (trial * candidates + j)[:, None] * P + c[None, :], mine * (2.0**-15))


@triton.jit
def _spread_from(  # type: ignore[no-untyped-def]
    begin, end, e, place, alone, alpha, gamma, truths, normaliser, queries,
    P: tl.constexpr, ADVERSARIAL: tl.constexpr, PRECISION: tl.constexpr, LONG: tl.constexpr, SHORT: tl.constexpr,
):  # fmt: skip
    """What arrives at a tile of candidates from the queries begin … end − 1: (LONG, P)."""
    c = tl.arange(0, P)
    total = tl.zeros((LONG, P), tl.float32)
    for first in range(begin, end, SHORT):
        row = first + tl.arange(0, SHORT)
        q = tl.load(queries + row[:, None] * P + c[None, :])
        truth = tl.load(truths + row)
        bound = tl.load(normaliser + row) - 15
        s = tl.dot(e, tl.trans(q), input_precision=PRECISION)
        share = tl.exp2(s * (alpha * LOG2E) - bound[None, :])
        if ADVERSARIAL:
            share *= own_shares(s, alone, gamma)
        share = tl.where(place[:, None] != truth[None, :], share, 0.0)
        total = tl.dot(share.to(q.dtype), q, total, input_precision=PRECISION)
    return total
