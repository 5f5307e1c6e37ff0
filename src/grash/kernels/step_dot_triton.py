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

from grash.kernels.step import INTS, StepSpace

_LOG2E: tl.constexpr = tl.constexpr(1.4426950408889634)
_INTS: tl.constexpr = tl.constexpr(INTS)


def score(space: StepSpace, trials: Tensor) -> None:
    """Fills maxima, sums (T, 2, splits, B) and partial (T, 2, splits, B, P); moves the clock on."""
    shape, tile = space.shape, tiles(space)
    _score[(shape.rows // tile["LONG"], 2 * space.splits, shape.trials)](
        space.clock, trials, space.places, space.positive, space.queries, space.block,
        space.maxima, space.sums, space.partial, space.splits,
        BATCH=shape.rows, first_tail=shape.first_tail, candidates=shape.candidates, P=shape.padded,
        PRECISION=_precision(space), **tile,
    )  # fmt: skip


def spread(space: StepSpace, trials: Tensor) -> None:
    """Fills for_candidates (T, 1, N, P), yet to be divided by the number of positives."""
    shape, tile = space.shape, tiles(space)
    _spread[(shape.candidates // tile["LONG"], shape.trials)](
        trials, space.places, space.normaliser, space.queries, space.block, space.for_candidates,
        BATCH=shape.rows, first_tail=shape.first_tail, candidates=shape.candidates, P=shape.padded,
        PRECISION=_precision(space), **tile,
    )  # fmt: skip


def tiles(space: StepSpace) -> dict[str, int]:
    """LONG rows stay, SHORT ones pass by; by the width of a row and of its floats, never by the number of trials."""
    wide = space.shape.padded > 128
    if space.shape.products == "bf16":
        return {"LONG": 64, "SHORT": 64, "num_warps": 8 if wide else 4, "num_stages": 3}
    short = 32 if wide or space.shape.products == "tf32x3" else 64
    return {"LONG": 128, "SHORT": short, "num_warps": 8, "num_stages": 2}


def _precision(space: StepSpace) -> str:
    return "tf32" if space.shape.products == "bf16" else space.shape.products


@triton.jit(do_not_specialize=["splits"])
def _score(  # type: ignore[no-untyped-def]
    clock, trials, places, positive, queries, block, maxima, sums, partial, splits,
    BATCH: tl.constexpr, first_tail, candidates, P: tl.constexpr,
    PRECISION: tl.constexpr, LONG: tl.constexpr, SHORT: tl.constexpr,
):  # fmt: skip
    tile, part, trial = tl.program_id(0), tl.program_id(1), tl.program_id(2).to(tl.int64)
    slot, split = part // splits, part % splits
    if (tile == 0) & (part == 0) & (trial == 0):
        tl.store(clock, tl.load(clock) + 1)
    n = tl.load(trials + trial * _INTS + slot)
    chunk = tl.load(trials + trial * _INTS + 2 + slot)
    if split * chunk < n:
        begin, end = split * chunk, tl.minimum(split * chunk + chunk, n)
        row, c = tile * LONG + tl.arange(0, LONG), tl.arange(0, P)
        at = (trial * 2 + slot) * BATCH
        q = tl.load(queries + (at + row)[:, None] * P + c[None, :])
        truth = tl.load(places + slot * 3 * BATCH + row)  # heads among heads, tails among tails
        top = tl.load(positive + at + row) * _LOG2E
        total = tl.zeros((LONG,), tl.float32)
        pull = tl.zeros((LONG, P), tl.float32)
        block += (trial * candidates + slot * first_tail) * P
        for first in range(begin, end, SHORT):
            place = first + tl.arange(0, SHORT)
            e = tl.load(block + place[:, None] * P + c[None, :])
            s = tl.dot(q, tl.trans(e), input_precision=PRECISION) * _LOG2E
            s = tl.where((place[None, :] < end) & (place[None, :] != truth[:, None]), s, -float("inf"))
            higher = tl.maximum(top, tl.max(s, 1))
            share = tl.exp2(s - higher[:, None])
            shrink = tl.exp2(top - higher)
            total = total * shrink + tl.sum(share, 1)
            pull = tl.dot(share.to(e.dtype), e, pull * shrink[:, None], input_precision=PRECISION)
            top = higher
        at = ((trial * 2 + slot) * splits + split) * BATCH
        tl.store(maxima + at + row, top)
        tl.store(sums + at + row, total)
        tl.store(partial + (at + row)[:, None] * P + c[None, :], pull)


@triton.jit
def _spread(  # type: ignore[no-untyped-def]
    trials, places, normaliser, queries, block, out,
    BATCH: tl.constexpr, first_tail, candidates, P: tl.constexpr,
    PRECISION: tl.constexpr, LONG: tl.constexpr, SHORT: tl.constexpr,
):  # fmt: skip
    tile, trial = tl.program_id(0), tl.program_id(1).to(tl.int64)
    slot = (tile * LONG >= first_tail).to(tl.int32)
    j = tile * LONG + tl.arange(0, LONG)
    place, c = j - slot * first_tail, tl.arange(0, P)
    if tile * LONG - slot * first_tail < tl.load(trials + trial * _INTS + slot):
        e = tl.load(block + (trial * candidates + j)[:, None] * P + c[None, :])
        at = (trial * 2 + slot) * BATCH
        total = tl.zeros((LONG, P), tl.float32)
        for first in range(0, BATCH, SHORT):
            row = first + tl.arange(0, SHORT)
            q = tl.load(queries + (at + row)[:, None] * P + c[None, :])
            truth = tl.load(places + slot * 3 * BATCH + row)
            bound = tl.load(normaliser + at + row) - 15
            s = tl.dot(e, tl.trans(q), input_precision=PRECISION) * _LOG2E
            share = tl.where(place[:, None] != truth[None, :], tl.exp2(s - bound[None, :]), 0.0)
            total = tl.dot(share.to(q.dtype), q, total, input_precision=PRECISION)
        tl.store(out + (trial * candidates + j)[:, None] * P + c[None, :], total * (2.0**-15))
