"""Scores, softmax and gradients of the step for wide dot products, and of KvsAll: matrix products with a stored matrix
of weights, from which KvsAll subtracts the targets of its labels.

    score_products       a tile of B × N scores: exponentials relative to the tile's maximum in bf16, maxima and sums
    merge_products       merge the tiles of every row: normalizers, losses, gradients of the positives' scores
    weigh_products       normalize the weights, in place
    query_products       weights · candidates, in parts of CHUNK candidates
    candidate_products   weightsᵀ · queries

6·B·N·D FLOP of bf16 products with sums in float32, and 8·B·N bytes of weights. `step_score_triton` needs no such
matrix, but computes the scores twice and holds whole rows in registers, which leaves room for small tiles only when
rows are wide: with 512 floats, a step of 1vsAll over 14,541 entities took 1,063 µs on an H200, and takes 307 here.
"""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from grash.kernels import step
from grash.kernels.compile_ahead import launch
from grash.kernels.step import TILE, StepSpace
from grash.kernels.step_rows_triton import (
    FACTORS,
    LN2,
    LOG2E,
    PER_TRIAL,
    advance_clock,
    adversarial_factor,
    batch_bounds,
    first_candidate,
    initial_maximum,
    label_targets,
    load_count,
    load_labels,
    normalize,
    side_at,
    side_queries,
    softplus,
)

COLUMNS, INNER = 128, 64  # floats of a row that a product computes, and terms of its sum that it loads at once
CANDIDATES = 64  # of a program of `candidate_products`
WEIGHED = 32  # rows of a program of `weigh_products`
MERGED, TILES_AT_ONCE = 8, 64  # rows of a program of `merge_products`, and tiles that it loads at once
_GROUPED: tl.constexpr = tl.constexpr(4)  # tiles of rows that pass the same candidates, which stay in the L2 cache


def score_products(space: StepSpace, trials: Tensor, factors: Tensor) -> None:
    """Fill weights (T, S, B, W) and the maxima, sums and costs of tiles (T, S, W / TILE, B); advance the counter."""
    shape = space.shape
    launch(
        _score_products, (shape.rows // TILE * (shape.widest_side // TILE), shape.sides, shape.trials),
        space.clock, trials, factors, space.truths, space.positive, space.queries, space.block, space.weights,
        space.tile_maxima, space.tile_sums, space.tile_costs, space.labels, space.asked,
        shape.first_tail, shape.first_relation, shape.candidates, shape.widest_side,
        BATCH=shape.rows, SIDES=shape.sides, P=shape.padded, ADVERSARIAL=shape.adversarial, KVSALL=shape.kvsall,
        SIZE=TILE, INNER=min(INNER, shape.padded), **_pipeline(space),
    )  # fmt: skip


def merge_products(space: StepSpace, plan: Tensor, trials: Tensor, factors: Tensor) -> None:
    """Fill normalizer, side_losses and for_positive (T, S, B), not yet divided by the number of positives."""
    shape = space.shape
    launch(
        _merge_products, (shape.rows // MERGED, shape.sides, shape.trials),
        space.clock, plan, trials, factors, space.positive, space.tile_maxima, space.tile_sums, space.tile_costs,
        space.normalizer, space.side_losses, space.for_positive, space.asked, shape.batch, shape.widest_side // TILE,
        BATCH=shape.rows, SIDES=shape.sides, ADVERSARIAL=shape.adversarial, KVSALL=shape.kvsall, ROWS=MERGED,
        AT_ONCE=TILES_AT_ONCE, SIZE=TILE, num_warps=1,
    )  # fmt: skip


def weigh_products(space: StepSpace, trials: Tensor, factors: Tensor) -> None:
    """Divide the weights (T, S, B, W) by the sum of their row; in KvsAll, subtract the targets."""
    shape = space.shape
    launch(
        _weigh_products, (shape.rows // WEIGHED * (shape.widest_side // TILE), shape.sides, shape.trials),
        trials, factors, space.weights, space.tile_maxima, space.normalizer, space.labels, space.asked,
        shape.widest_side,
        BATCH=shape.rows, SIDES=shape.sides, KVSALL=shape.kvsall, ROWS=WEIGHED, SIZE=TILE, num_warps=4,
    )  # fmt: skip


def query_products(space: StepSpace, trials: Tensor) -> None:
    """Fill partial (T, S, splits, B, P), the gradients of the queries, not yet divided by the number of positives."""
    shape = space.shape
    columns = min(COLUMNS, shape.padded)
    launch(
        _query_products, (shape.rows // TILE * (shape.padded // columns), shape.sides * space.splits, shape.trials),
        trials, space.weights, space.block, space.partial, space.splits,
        shape.first_tail, shape.first_relation, shape.candidates, shape.widest_side,
        BATCH=shape.rows, SIDES=shape.sides, P=shape.padded, CHUNK=step.PRODUCT_CHUNK,
        SIZE=TILE, COLUMNS=columns, INNER=INNER, **_pipeline(space),
    )  # fmt: skip


def candidate_products(space: StepSpace, trials: Tensor) -> None:
    """Fill candidate_gradients (T, 1, N, P), not yet divided by the number of positives."""
    shape = space.shape
    columns = min(COLUMNS, shape.padded)
    launch(
        _candidate_products, (shape.candidates // CANDIDATES * (shape.padded // columns), shape.trials),
        trials, space.weights, space.queries, space.candidate_gradients,
        shape.first_tail, shape.first_relation, shape.candidates, shape.widest_side,
        BATCH=shape.rows, SIDES=shape.sides, SHARED=shape.shared, P=shape.padded,
        SIZE=CANDIDATES, COLUMNS=columns, INNER=INNER, **_pipeline(space),
    )  # fmt: skip


def _pipeline(space: StepSpace) -> dict[str, int]:
    """Four warps are fastest on a Hopper; on other GPUs they have too few registers for a tile."""
    return {"num_warps": 4 if space.shape.card.capability[0] == 9 else 8, "num_stages": 3}


@triton.jit
def _score_products(  # type: ignore[no-untyped-def]
    clock, trials, factors, truths, positive, queries, block, weights, maxima, sums, costs, labels, asked,
    first_tail, first_relation, candidates, width,
    BATCH: tl.constexpr, SIDES: tl.constexpr, P: tl.constexpr, ADVERSARIAL: tl.constexpr, KVSALL: tl.constexpr,
    SIZE: tl.constexpr, INNER: tl.constexpr,
):  # fmt: skip
    advance_clock(clock)
    side, trial = tl.program_id(1), tl.program_id(2).to(tl.int64)
    n, tiles = load_count(trials + trial * PER_TRIAL, side), width // SIZE
    group = tl.program_id(0) // (_GROUPED * tiles)
    together = tl.minimum(BATCH // SIZE - group * _GROUPED, _GROUPED)
    inside = tl.program_id(0) % (_GROUPED * tiles)
    tile = inside // together
    if tile * SIZE < n:
        row = (group * _GROUPED + inside % together) * SIZE + tl.arange(0, SIZE)
        place, c = tile * SIZE + tl.arange(0, SIZE), tl.arange(0, INNER)
        at = (trial * SIDES + side) * BATCH
        q = queries + (at + row)[:, None] * P + c[None, :]
        j = trial * candidates + first_candidate(side, first_tail, first_relation) + place
        e = block + j[:, None] * P + c[None, :]
        s = tl.zeros((SIZE, SIZE), tl.float32)
        for first in range(0, P, INNER):
            s = tl.dot(tl.load(q + first), tl.trans(tl.load(e + first)), s)
        here = ((trial * SIDES + side) * tiles + tile) * BATCH + row
        if KVSALL:
            low, more = label_targets(tl.load(asked + row), n, tl.load(factors + trial * FACTORS + 7))
            hits = tl.sum(tl.where(load_labels(labels, row, tile * SIZE, width, SIZE) > 0, s, 0.0), 1)
            tl.store(costs + here, low * tl.sum(s, 1) + more * hits)  # scores of the padding are 0
        truth = tl.load(truths + side * BATCH + row)
        top, alpha, gamma, alone = initial_maximum(
            tl.load(positive + at + row), side, factors + trial * FACTORS, ADVERSARIAL
        )
        other = (place[None, :] < n) & (place[None, :] != truth[:, None])
        exponent = tl.where(other, s * (alpha * LOG2E), -float("inf"))
        top = tl.maximum(top, tl.max(exponent, 1))
        weight = tl.exp2(exponent - top[:, None])
        tl.store(maxima + here, top)
        tl.store(sums + here, tl.sum(weight, 1))
        if ADVERSARIAL:
            tl.store(costs + here, tl.sum(weight * softplus(s + gamma), 1))
            weight *= adversarial_factor(s, alone, gamma)
        tl.store(weights + (at + row)[:, None] * width + place[None, :], weight.to(weights.dtype.element_ty))


@triton.jit(do_not_specialize=["tiles"])
def _merge_products(  # type: ignore[no-untyped-def]
    clock, plan, trials, factors, positive, maxima, sums, costs, normalizer, side_losses, for_positive, asked, batch,
    tiles,
    BATCH: tl.constexpr, SIDES: tl.constexpr, ADVERSARIAL: tl.constexpr, KVSALL: tl.constexpr, ROWS: tl.constexpr,
    AT_ONCE: tl.constexpr, SIZE: tl.constexpr,
):  # fmt: skip
    row, side, trial = tl.program_id(0) * ROWS + tl.arange(0, ROWS), tl.program_id(1), tl.program_id(2).to(tl.int64)
    _, first, last = batch_bounds(plan, tl.load(clock) - 1, batch)
    live = (row < batch) & (first + row < last)
    factors += trial * FACTORS
    at = trial * SIDES + side
    n = load_count(trials + trial * PER_TRIAL, side)
    used = tl.cdiv(n, SIZE)
    truth = tl.load(positive + at * BATCH + row)
    own, _, gamma, alone = initial_maximum(truth, side, factors, ADVERSARIAL)
    top = own
    for begin in range(0, used, AT_ONCE):
        i = begin + tl.arange(0, AT_ONCE)
        here = (at * tiles + i)[:, None] * BATCH + row[None, :]
        top = tl.maximum(top, tl.max(tl.load(maxima + here, mask=(i < used)[:, None], other=-float("inf")), 0))
    others, cost = tl.zeros_like(truth), tl.zeros_like(truth)
    for begin in range(0, used, AT_ONCE):
        i = begin + tl.arange(0, AT_ONCE)
        here, inside = (at * tiles + i)[:, None] * BATCH + row[None, :], (i < used)[:, None]
        part = tl.exp2(tl.load(maxima + here, mask=inside, other=-float("inf")) - top[None, :])
        others += tl.sum(part * tl.load(sums + here, mask=inside, other=0.0), 0)
        if ADVERSARIAL:
            cost += tl.sum(part * tl.load(costs + here, mask=inside, other=0.0), 0)
        if KVSALL:
            cost += tl.sum(tl.load(costs + here, mask=inside, other=0.0), 0)
    bound, _, weight, loss = normalize(top, own, others, cost, truth, n, gamma, alone, ADVERSARIAL)
    if KVSALL:  # the divergence from the targets
        count = tl.load(asked + row)
        low, more = label_targets(count, n, tl.load(factors + 7))
        loss = bound * LN2 - cost + count * _entropy(low + more) + (n - count) * _entropy(low)
    tl.store(normalizer + at * BATCH + row, tl.where(live, bound, float("inf")))
    tl.store(side_losses + at * BATCH + row, tl.where(live, loss, 0.0))
    tl.store(for_positive + at * BATCH + row, tl.where(live, weight, 0.0))


@triton.jit
def _entropy(x):  # type: ignore[no-untyped-def]
    return tl.where(x > 0, x * tl.log2(tl.where(x > 0, x, 1.0)) * LN2, 0.0)


@triton.jit
def _weigh_products(  # type: ignore[no-untyped-def]
    trials, factors, weights, maxima, normalizer, labels, asked, width,
    BATCH: tl.constexpr, SIDES: tl.constexpr, KVSALL: tl.constexpr, ROWS: tl.constexpr, SIZE: tl.constexpr,
):  # fmt: skip
    side, trial = tl.program_id(1), tl.program_id(2).to(tl.int64)
    tiles = width // SIZE
    tile = tl.program_id(0) % tiles
    n = load_count(trials + trial * PER_TRIAL, side)
    if tile * SIZE < n:
        row, place = tl.program_id(0) // tiles * ROWS + tl.arange(0, ROWS), tile * SIZE + tl.arange(0, SIZE)
        at = trial * SIDES + side
        factor = tl.exp2(tl.load(maxima + (at * tiles + tile) * BATCH + row) - tl.load(normalizer + at * BATCH + row))
        here = weights + (at * BATCH + row)[:, None] * width + place[None, :]
        weight = tl.load(here).to(tl.float32) * factor[:, None]
        if KVSALL:
            low, more = label_targets(tl.load(asked + row), n, tl.load(factors + trial * FACTORS + 7))
            found = load_labels(labels, row, tile * SIZE, width, SIZE)
            weight -= tl.where(found > 0, (low + more)[:, None], low[:, None])
            weight = tl.where(place[None, :] < n, weight, 0.0)
        tl.store(here, weight.to(weights.dtype.element_ty))


@triton.jit(do_not_specialize=["splits"])
def _query_products(  # type: ignore[no-untyped-def]
    trials, weights, block, partial, splits, first_tail, first_relation, candidates, width,
    BATCH: tl.constexpr, SIDES: tl.constexpr, P: tl.constexpr, CHUNK: tl.constexpr,
    SIZE: tl.constexpr, COLUMNS: tl.constexpr, INNER: tl.constexpr,
):  # fmt: skip
    side, split, trial = tl.program_id(1) // splits, tl.program_id(1) % splits, tl.program_id(2).to(tl.int64)
    begin = split * CHUNK  # not loaded: the compiler has to see that it is a multiple of INNER
    left = load_count(trials + trial * PER_TRIAL, side) - begin
    if left > 0:
        row = tl.program_id(0) // (P // COLUMNS) * SIZE + tl.arange(0, SIZE)
        column, k = tl.program_id(0) % (P // COLUMNS) * COLUMNS + tl.arange(0, COLUMNS), tl.arange(0, INNER)
        at = trial * SIDES + side
        w = weights + (at * BATCH + row)[:, None] * width + (begin + k)[None, :]
        j = trial * candidates + first_candidate(side, first_tail, first_relation) + begin + k
        e = block + j[:, None] * P + column[None, :]
        total = tl.zeros((SIZE, COLUMNS), tl.float32)
        for _ in range(tl.cdiv(tl.minimum(left, CHUNK), INNER)):  # weights of the padding are 0
            total = tl.dot(tl.load(w), tl.load(e), total)
            w += INNER
            e += INNER * P
        tl.store(partial + ((at * splits + split) * BATCH + row)[:, None] * P + column[None, :], total)


@triton.jit
def _candidate_products(  # type: ignore[no-untyped-def]
    trials, weights, queries, out, first_tail, first_relation, candidates, width,
    BATCH: tl.constexpr, SIDES: tl.constexpr, SHARED: tl.constexpr, P: tl.constexpr,
    SIZE: tl.constexpr, COLUMNS: tl.constexpr, INNER: tl.constexpr,
):  # fmt: skip
    tile, trial = tl.program_id(0) // (P // COLUMNS), tl.program_id(1).to(tl.int64)
    side = side_at(tile * SIZE, first_tail, first_relation)
    start = tile * SIZE - first_candidate(side, first_tail, first_relation)
    if start < tl.load(trials + trial * PER_TRIAL + side):
        place = start + tl.arange(0, SIZE)
        column = tl.program_id(0) % (P // COLUMNS) * COLUMNS + tl.arange(0, COLUMNS)
        at = (trial * SIDES + side) * BATCH
        asked = side_queries(side, BATCH, SIDES)
        total = _weighted_queries(at, asked, weights, queries, place, column, width, P, SIZE, COLUMNS, INNER)
        if SHARED:  # heads have the same candidates; summed separately, as if they were others
            n = tl.where(side == 1, BATCH, 0)
            at = trial * SIDES * BATCH
            total += _weighted_queries(at, n, weights, queries, place, column, width, P, SIZE, COLUMNS, INNER)
        j = trial * candidates + tile * SIZE + tl.arange(0, SIZE)
        tl.store(out + j[:, None] * P + column[None, :], total)


@triton.jit
def _weighted_queries(  # type: ignore[no-untyped-def]
    at, n, weights, queries, place, column, width,
    P: tl.constexpr, SIZE: tl.constexpr, COLUMNS: tl.constexpr, INNER: tl.constexpr,
):  # fmt: skip
    """Return the sums (SIZE, COLUMNS) of n queries, from the one at `at`, times the weights of a tile of candidates."""
    k = tl.arange(0, INNER)
    w = weights + (at + k)[:, None] * width + place[None, :]
    q = queries + (at + k)[:, None] * P + column[None, :]
    total = tl.zeros((SIZE, COLUMNS), tl.float32)
    for _ in range(0, n, INNER):
        total = tl.dot(tl.trans(tl.load(w)), tl.load(q), total)
        w += INNER * width  # step by step, since B × W may be above 2³¹
        q += INNER * P
    return total
