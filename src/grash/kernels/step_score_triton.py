"""Scores, softmax and gradients of the step, for dot products and for distances.

Dot products, like flash attention, without a B × N matrix:
    score_dot                     per chunk of candidates: running maximum, sum of exponentials, and their sum times
                                  the candidates
    candidate_gradient_dot        per tile of candidates: the scores again, their softmax, and that times the queries
8·B·N·D FLOP of matrix products (6 without computing the scores twice), with factors in bf16 or tf32 and sums in
float32. A softmax value enters its product times 2¹⁵, so that small values keep their digits.

Distances (l1, l2, modulus), in float32 without matrix units:
    score_distance                a tile of B × N distances, coordinate by coordinate; the scores are kept
    weigh_distance                normalizers; scores become weights, stored also transposed (8·B·N bytes)
    query_gradient_distance       a tile of queries with a chunk of candidates, one candidate at a time
    candidate_gradient_distance   a tile of candidates with a part of the batch, one query at a time
2 operations forward and 4 to 6 backward per pair and coordinate, twice; a modulus adds a special function each time.
"""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from grash.kernels.compile_ahead import launch
from grash.kernels.step import TILE, StepSpace
from grash.kernels.step_rows_triton import (
    FACTORS,
    INT32_LIMIT,
    LOG2E,
    PER_TRIAL,
    advance_clock,
    adversarial_factor,
    batch_bounds,
    first_candidate,
    initial_maximum,
    merge_parts,
    program_part,
    side_at,
    side_queries,
    softplus,
)

SCORE = {"BM": 8, "BN": 128, "num_warps": 1}  # 8 × 4 pairs of a thread take 12 loads a coordinate
GRADIENT = {"BM": 32, "BK": 64, "num_warps": 4}
_UNROLLED: tl.constexpr = tl.constexpr(4)  # iterations whose loads are in flight together
_TINY: tl.constexpr = tl.constexpr(1e-30)  # keeps the inverse of a square root finite: no distance, no gradient
_WEIGHED = 32


def score_dot(space: StepSpace, trials: Tensor, factors: Tensor) -> None:
    """Fill maxima, sums, costs (T, S, splits, B) and partial (T, S, splits, B, P); advance the step counter."""
    shape, tile = space.shape, space.shape.dot_tile
    launch(
        _score_dot, (shape.rows // tile["BLOCK_M"], shape.sides * space.splits, shape.trials),
        space.clock, trials, factors, space.truths, space.positive, space.queries, space.block,
        space.maxima, space.sums, space.costs, space.partial, space.splits,
        shape.first_tail, shape.first_relation, shape.candidates,
        BATCH=shape.rows, SIDES=shape.sides, P=shape.padded, ADVERSARIAL=shape.adversarial,
        INT64=shape.candidates * shape.padded >= INT32_LIMIT, PRECISION=_precision(space), **tile,
    )  # fmt: skip


def candidate_gradient_dot(space: StepSpace, trials: Tensor, factors: Tensor) -> None:
    """Fill candidate_gradients (T, 1, N, P), not yet divided by the number of positives."""
    shape, tile = space.shape, space.shape.dot_tile
    launch(
        _candidate_gradient_dot, (shape.candidates // tile["BLOCK_M"], shape.trials),
        trials, factors, space.truths, space.normalizer, space.queries, space.block, space.candidate_gradients,
        shape.first_tail, shape.first_relation, shape.candidates,
        BATCH=shape.rows, SIDES=shape.sides, SHARED=shape.shared, P=shape.padded, ADVERSARIAL=shape.adversarial,
        PRECISION=_precision(space), **tile,
    )  # fmt: skip


def _precision(space: StepSpace) -> str:
    return "tf32" if space.shape.products == "bf16" else space.shape.products


@triton.jit(do_not_specialize=["splits"])
def _score_dot(  # type: ignore[no-untyped-def]
    clock, trials, factors, truths, positive, queries, block, maxima, sums, costs, partial, splits,
    first_tail, first_relation, candidates,
    BATCH: tl.constexpr, SIDES: tl.constexpr, P: tl.constexpr, ADVERSARIAL: tl.constexpr, INT64: tl.constexpr,
    PRECISION: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """INT64: the candidates need 64-bit offsets (e.g. 1vsAll with 4.6 million entities of 512 floats)."""
    advance_clock(clock)
    trial, side, split, begin, end = program_part(trials, splits)
    if begin < end:
        row, c = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M), tl.arange(0, P)
        at = (trial * SIDES + side) * BATCH
        q = tl.load(queries + (at + row)[:, None] * P + c[None, :])
        truth = tl.load(truths + side * BATCH + row)
        top, alpha, gamma, alone = initial_maximum(
            tl.load(positive + at + row), side, factors + trial * FACTORS, ADVERSARIAL
        )
        total, cost = tl.zeros((BLOCK_M,), tl.float32), tl.zeros((BLOCK_M,), tl.float32)
        for_positive = tl.zeros((BLOCK_M, P), tl.float32)
        block += (trial * candidates + first_candidate(side, first_tail, first_relation)) * P
        for first in range(begin, end, BLOCK_N):
            place = first + tl.arange(0, BLOCK_N)
            line = place
            if INT64:
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
                share *= adversarial_factor(s, alone, gamma)
            for_positive = tl.dot(share.to(e.dtype), e, for_positive * shrink[:, None], input_precision=PRECISION)
            top = higher
        at = ((trial * SIDES + side) * splits + split) * BATCH
        tl.store(maxima + at + row, top)
        tl.store(sums + at + row, total)
        if ADVERSARIAL:
            tl.store(costs + at + row, cost)
        tl.store(partial + (at + row)[:, None] * P + c[None, :], for_positive)


@triton.jit
def _candidate_gradient_dot(  # type: ignore[no-untyped-def]
    trials, factors, truths, normalizer, queries, block, out, first_tail, first_relation, candidates,
    BATCH: tl.constexpr, SIDES: tl.constexpr, SHARED: tl.constexpr, P: tl.constexpr, ADVERSARIAL: tl.constexpr,
    PRECISION: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    tile, trial = tl.program_id(0), tl.program_id(1).to(tl.int64)
    side = side_at(tile * BLOCK_M, first_tail, first_relation)
    j = tile * BLOCK_M + tl.arange(0, BLOCK_M)
    place, c = j - first_candidate(side, first_tail, first_relation), tl.arange(0, P)
    if tile * BLOCK_M - first_candidate(side, first_tail, first_relation) < tl.load(trials + trial * PER_TRIAL + side):
        e = tl.load(block + (trial * candidates + j)[:, None] * P + c[None, :])
        _, alpha, gamma, alone = initial_maximum(
            tl.zeros((BLOCK_N,), tl.float32), side, factors + trial * FACTORS, ADVERSARIAL
        )
        at = trial * SIDES * BATCH
        mine = _gradient_from(
            side * BATCH, side * BATCH + side_queries(side, BATCH, SIDES), e, place, alone, alpha, gamma, truths,
            normalizer + at, queries + at * P, P, ADVERSARIAL, PRECISION, BLOCK_M, BLOCK_N,
        )  # fmt: skip
        if SHARED:  # heads have the same candidates; summed separately, as if they were others
            mine += _gradient_from(
                0, tl.where(side == 1, BATCH, 0), e, place, alone, alpha, gamma, truths, normalizer + at,
                queries + at * P, P, ADVERSARIAL, PRECISION, BLOCK_M, BLOCK_N,
            )  # fmt: skip
        tl.store(out + (trial * candidates + j)[:, None] * P + c[None, :], mine * (2.0**-15))


@triton.jit
def _gradient_from(  # type: ignore[no-untyped-def]
    begin, end, e, place, alone, alpha, gamma, truths, normalizer, queries,
    P: tl.constexpr, ADVERSARIAL: tl.constexpr, PRECISION: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """Return the gradient (BLOCK_M, P) of a tile of candidates from the queries begin … end − 1."""
    c = tl.arange(0, P)
    total = tl.zeros((BLOCK_M, P), tl.float32)
    for first in range(begin, end, BLOCK_N):
        row = first + tl.arange(0, BLOCK_N)
        q = tl.load(queries + row[:, None] * P + c[None, :])
        truth = tl.load(truths + row)
        bound = tl.load(normalizer + row) - 15
        s = tl.dot(e, tl.trans(q), input_precision=PRECISION)
        share = tl.exp2(s * (alpha * LOG2E) - bound[None, :])
        if ADVERSARIAL:
            share *= adversarial_factor(s, alone, gamma)
        share = tl.where(place[:, None] != truth[None, :], share, 0.0)
        total = tl.dot(share.to(q.dtype), q, total, input_precision=PRECISION)
    return total


def score_distance(space: StepSpace, trials: Tensor, factors: Tensor) -> None:
    """Fill scores (T, B, N), maxima, sums and costs (T, S, splits, B); advance the step counter."""
    shape = space.shape
    launch(
        _score_distance, (shape.rows // SCORE["BM"], shape.sides * space.splits, shape.trials),
        space.clock, trials, factors, space.truths, space.positive, space.queries_across, space.block_across,
        space.scores, space.maxima, space.sums, space.costs, space.splits,
        shape.first_tail, shape.first_relation, shape.candidates,
        BATCH=shape.rows, SIDES=shape.sides, PAD=shape.padded_half, PAIR=shape.pair, ADVERSARIAL=shape.adversarial,
        BM=SCORE["BM"], BN=SCORE["BN"], num_warps=SCORE["num_warps"],
    )  # fmt: skip


def weigh_distance(space: StepSpace, plan: Tensor, trials: Tensor, factors: Tensor) -> None:
    """Turn scores into weights of the gradient (l2: divided by the distance), also transposed (T, N, B).

    Fill side_losses and for_positive, the gradient of the positive's score, both (T, S, B) and not yet divided by
    the number of positives.
    """
    shape = space.shape
    launch(
        _weigh_distance, (shape.rows // _WEIGHED, shape.candidates // TILE, shape.trials),
        space.clock, plan, trials, factors, space.positive, space.maxima, space.sums, space.costs,
        space.scores, space.scores_across, space.side_losses, space.for_positive, shape.batch, space.splits,
        shape.first_tail, shape.first_relation, shape.candidates,
        BATCH=shape.rows, SIDES=shape.sides, PAIR=shape.pair, ADVERSARIAL=shape.adversarial,
        ROWS=_WEIGHED, COLUMNS=TILE, num_warps=4,
    )  # fmt: skip


def query_gradient_distance(space: StepSpace, trials: Tensor) -> None:
    """Fill partial (T, S, splits, B, P), the gradients of the queries, not yet divided by the number of positives."""
    shape = space.shape
    columns = shape.padded_half // min(GRADIENT["BK"], shape.padded_half)
    launch(
        _query_gradient_distance, (shape.rows // GRADIENT["BM"] * columns, shape.sides * space.splits, shape.trials),
        trials, space.queries, space.block, space.scores_across, space.partial, space.splits,
        shape.first_tail, shape.first_relation, shape.candidates,
        BATCH=shape.rows, SIDES=shape.sides, PAD=shape.padded_half, PAIR=shape.pair,
        BM=GRADIENT["BM"], BK=min(GRADIENT["BK"], shape.padded_half), num_warps=GRADIENT["num_warps"],
    )  # fmt: skip


def candidate_gradient_distance(space: StepSpace, trials: Tensor) -> None:
    """Fill candidate_gradients (T, batch_parts, N, P), not yet divided by the number of positives."""
    shape = space.shape
    columns = shape.padded_half // min(GRADIENT["BK"], shape.padded_half)
    launch(
        _candidate_gradient_distance, (shape.candidates // GRADIENT["BM"] * columns, shape.batch_parts, shape.trials),
        trials, space.queries, space.block, space.scores, space.candidate_gradients,
        shape.first_tail, shape.first_relation, shape.candidates,
        BATCH=shape.rows, SIDES=shape.sides, BATCH_PARTS=shape.batch_parts, PAD=shape.padded_half, PAIR=shape.pair,
        INT64=shape.rows * shape.candidates >= INT32_LIMIT,
        BN=GRADIENT["BM"], BK=min(GRADIENT["BK"], shape.padded_half), num_warps=GRADIENT["num_warps"],
    )  # fmt: skip


@triton.jit(do_not_specialize=["splits"])
def _score_distance(  # type: ignore[no-untyped-def]
    clock, trials, factors, truths, positive, queries, block, scores, maxima, sums, costs, splits,
    first_tail, first_relation, candidates,
    BATCH: tl.constexpr, SIDES: tl.constexpr, PAD: tl.constexpr, PAIR: tl.constexpr, ADVERSARIAL: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr,
):  # fmt: skip
    advance_clock(clock)
    trial, side, split, begin, end = program_part(trials, splits)
    if begin < end:
        row = tl.program_id(0) * BM + tl.arange(0, BM)
        at = trial * SIDES + side
        truth = tl.load(truths + side * BATCH + row)
        top, alpha, gamma, alone = initial_maximum(
            tl.load(positive + at * BATCH + row), side, factors + trial * FACTORS, ADVERSARIAL
        )
        total, cost = tl.zeros((BM,), tl.float32), tl.zeros((BM,), tl.float32)
        q = queries + at * 2 * PAD * BATCH + row
        here = first_candidate(side, first_tail, first_relation)
        for first in range(begin, end, BN):
            place = first + tl.arange(0, BN)
            j = here + place
            away = _distances(q, block + trial * 2 * PAD * candidates + j,
                              BATCH, candidates, PAD, PAIR, BM, BN)  # fmt: skip
            other = (place[None, :] < end) & (place[None, :] != truth[:, None])
            s = tl.where(other, -away * LOG2E, -float("inf"))
            tl.store(scores + (trial * BATCH + row)[:, None] * candidates + j[None, :], s)
            if ADVERSARIAL:
                s = tl.where(other, -away * (alpha * LOG2E), -float("inf"))
            higher = tl.maximum(top, tl.max(s, 1))
            share, shrink = tl.exp2(s - higher[:, None]), tl.exp2(top - higher)
            total = total * shrink + tl.sum(share, 1)
            if ADVERSARIAL:
                cost = cost * shrink + tl.sum(share * softplus(gamma - away), 1)
            top = higher
        at = (at * splits + split) * BATCH
        tl.store(maxima + at + row, top)
        tl.store(sums + at + row, total)
        if ADVERSARIAL:
            tl.store(costs + at + row, cost)


@triton.jit
def _distances(  # type: ignore[no-untyped-def]
    queries, block, BATCH: tl.constexpr, candidates, PAD: tl.constexpr,
    PAIR: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr,
):  # fmt: skip
    """Return distances (BM, BN); queries (BM,), block (BN,): pointers to the first coordinates."""
    total = tl.zeros((BM, BN), tl.float32)
    for first in range(0, PAD, _UNROLLED):
        for k in tl.static_range(_UNROLLED):
            q, e = queries + (first + k) * BATCH, block + (first + k) * candidates
            dr = tl.load(q)[:, None] - tl.load(e)[None, :]
            di = tl.load(q + PAD * BATCH)[:, None] - tl.load(e + PAD * candidates)[None, :]
            if PAIR == "l1":
                total += tl.abs(dr)
                total += tl.abs(di)
            elif PAIR == "l2":
                total += dr * dr
                total += di * di
            else:
                square = dr * dr + (di * di + _TINY)
                total += square * tl.rsqrt(square)
    return tl.sqrt_rn(total) if PAIR == "l2" else total


@triton.jit(do_not_specialize=["splits"])
def _weigh_distance(  # type: ignore[no-untyped-def]
    clock, plan, trials, factors, positive, maxima, sums, costs, scores, across, side_losses, for_positive,
    batch, splits, first_tail, first_relation, candidates,
    BATCH: tl.constexpr, SIDES: tl.constexpr, PAIR: tl.constexpr, ADVERSARIAL: tl.constexpr,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    column, trial = tl.program_id(1), tl.program_id(2).to(tl.int64)
    row, j = tl.program_id(0) * ROWS + tl.arange(0, ROWS), column * COLUMNS + tl.arange(0, COLUMNS)
    side = side_at(column * COLUMNS, first_tail, first_relation)
    trials += trial * PER_TRIAL
    factors += trial * FACTORS
    place = column * COLUMNS - first_candidate(side, first_tail, first_relation)
    if place < tl.load(trials + side):
        _, first, last = batch_bounds(plan, tl.load(clock) - 1, batch)
        live = (row < batch) & (first + row < last)
        at = trial * SIDES + side
        _, bound, _, weight, loss = merge_parts(
            at, row, side, trials, factors, positive, maxima, sums, costs, splits, BATCH, ADVERSARIAL
        )
        bound = tl.where(live, bound, float("inf"))
        if place == 0:
            tl.store(side_losses + at * BATCH + row, tl.where(live, loss, 0.0))
            tl.store(for_positive + at * BATCH + row, tl.where(live, weight, 0.0))
        where = scores + (trial * BATCH + row)[:, None] * candidates + j[None, :]
        s = tl.load(where)
        if ADVERSARIAL:
            _, alpha, gamma, alone = initial_maximum(tl.zeros((ROWS,), tl.float32), side, factors, ADVERSARIAL)
            weight = tl.where(s > -float("inf"), tl.exp2(s * alpha - bound[:, None]), 0.0)
            weight *= adversarial_factor(s * (1 / LOG2E), alone, gamma)
        else:
            weight = tl.exp2(s - bound[:, None])
        if PAIR == "l2":
            weight = tl.where((s < 0) & (weight > 0), weight / tl.maximum(s * (-1 / LOG2E), _TINY), 0.0)
        tl.store(where, weight)
        tl.store(across + (trial * candidates + j)[None, :] * BATCH + row[:, None], weight)


@triton.jit(do_not_specialize=["splits"])
def _query_gradient_distance(  # type: ignore[no-untyped-def]
    trials, queries, block, weights, partial, splits, first_tail, first_relation, candidates,
    BATCH: tl.constexpr, SIDES: tl.constexpr, PAD: tl.constexpr, PAIR: tl.constexpr,
    BM: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    tile, column = tl.program_id(0) // (PAD // BK), tl.program_id(0) % (PAD // BK)
    trial, side, split, begin, end = program_part(trials, splits)
    if begin < end:
        row, c = tile * BM + tl.arange(0, BM), column * BK + tl.arange(0, BK)
        at = trial * SIDES + side
        q = queries + (at * BATCH + row)[:, None] * (2 * PAD) + c[None, :]
        qr, qi = tl.load(q), tl.load(q + PAD)
        gr, gi = tl.zeros((BM, BK), tl.float32), tl.zeros((BM, BK), tl.float32)
        here = trial * candidates + first_candidate(side, first_tail, first_relation)
        for first in range(begin, end, _UNROLLED):
            for k in tl.static_range(_UNROLLED):
                place = first + k
                weight = tl.load(weights + (here + place) * BATCH + row, mask=place + row * 0 < end, other=0.0)
                e = block + (here + place) * (2 * PAD) + c
                dr, di = qr - tl.load(e)[None, :], qi - tl.load(e + PAD)[None, :]
                gr, gi = _add_direction(gr, gi, dr, di, weight[:, None], PAIR)
        out = partial + ((at * splits + split) * BATCH + row)[:, None] * (2 * PAD) + c[None, :]
        tl.store(out, -gr)
        tl.store(out + PAD, -gi)


@triton.jit
def _candidate_gradient_distance(  # type: ignore[no-untyped-def]
    trials, queries, block, weights, out, first_tail, first_relation, candidates,
    BATCH: tl.constexpr, SIDES: tl.constexpr, BATCH_PARTS: tl.constexpr, PAD: tl.constexpr, PAIR: tl.constexpr,
    INT64: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """INT64: the weights B × N need 64-bit offsets."""
    part, trial = tl.program_id(1), tl.program_id(2).to(tl.int64)
    tile, column = tl.program_id(0) // (PAD // BK), tl.program_id(0) % (PAD // BK)
    side = side_at(tile * BN, first_tail, first_relation)
    j, c = tile * BN + tl.arange(0, BN), column * BK + tl.arange(0, BK)
    if tile * BN - first_candidate(side, first_tail, first_relation) < tl.load(trials + trial * PER_TRIAL + side):
        e = block + (trial * candidates + j)[:, None] * (2 * PAD) + c[None, :]
        er, ei = tl.load(e), tl.load(e + PAD)
        gr, gi = tl.zeros((BN, BK), tl.float32), tl.zeros((BN, BK), tl.float32)
        queries += (trial * SIDES + side) * BATCH * 2 * PAD
        weights += trial * BATCH * candidates
        for first in range(part * (BATCH // BATCH_PARTS), (part + 1) * (BATCH // BATCH_PARTS), _UNROLLED):
            for k in tl.static_range(_UNROLLED):
                line = first + k
                if INT64:
                    line = line.to(tl.int64)
                weight = tl.load(weights + line * candidates + j)
                q = queries + (first + k) * (2 * PAD) + c
                dr, di = tl.load(q)[None, :] - er, tl.load(q + PAD)[None, :] - ei
                gr, gi = _add_direction(gr, gi, dr, di, weight[:, None], PAIR)
        put = out + ((trial * BATCH_PARTS + part) * candidates + j)[:, None] * (2 * PAD) + c[None, :]
        tl.store(put, gr)
        tl.store(put + PAD, gi)


@triton.jit
def _add_direction(gr, gi, dr, di, weight, PAIR: tl.constexpr):  # type: ignore[no-untyped-def]
    """Add the direction of (dr, di) times the weight; nothing if the distance is 0.

    l1 takes the sign of +0 as positive: equal floats are one pair in millions, and coordinates that dropout made equal
    get no gradient.
    """
    if PAIR == "l1":
        gr += _copy_sign(weight, dr)
        gi += _copy_sign(weight, di)
    elif PAIR == "l2":
        gr += weight * dr
        gi += weight * di
    else:
        share = weight * tl.rsqrt(dr * dr + (di * di + _TINY))
        gr += share * dr
        gi += share * di
    return gr, gi


@triton.jit
def _copy_sign(weight, x):  # type: ignore[no-untyped-def]
    """Return the weight (0 or more) with the sign of x, by one operation on bits."""
    bits = weight.to(tl.int32, bitcast=True) | (x.to(tl.int32, bitcast=True) & -2147483648)
    return bits.to(tl.float32, bitcast=True)
