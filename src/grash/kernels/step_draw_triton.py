"""First two launches of the step: draw the batch and compose its queries, then find repeated rows.

`draw` reads the step counter, draws the same positives and negatives as `training/batches` (in 1vsAll the position of
an entity is its id), gathers their rows and composes the queries; in KvsAll it draws questions and marks their answers.
Bytes for B positives and N candidates: 4·D·(3·B + N) read, 2 or 4·D·(2·B + N) written. `order` sorts the 2·B ids by
counting: 4·B² comparisons, no size depends on the data.
"""

from __future__ import annotations

import math

import torch
import triton
import triton.language as tl
from torch import Tensor

from grash.kernels.compile_ahead import launch
from grash.kernels.random_triton import key_at, load_key, permute_block
from grash.kernels.step import LABELS, NO_ID, Examples, StepSpace
from grash.kernels.step_rows_triton import (
    EXACT,
    FACTORS,
    PER_TRIAL,
    batch_bounds,
    batch_masks,
    candidate_mask,
    compose,
    load_halves,
    pair_score,
    penalty,
    store_halves,
)

ROWS, DRAWN = 8, 32  # positives and candidates of a program; fewer if rows are wide
_SORTED, _AGAINST = 8, 256
_ANSWERS: tl.constexpr = tl.constexpr(256)  # of a question that are marked at once
_LABELS: tl.constexpr = tl.constexpr(LABELS)
_NO_ID: tl.constexpr = tl.constexpr(NO_ID)


def draw(
    space: StepSpace, plan: Tensor, keys: Tensor, trials: Tensor, factors: Tensor, examples: Examples,
    entity: Tensor, relation: Tensor,
) -> None:  # fmt: skip
    """Draw the batch and fill the queries and candidates of the work space.

    plan (3,) int64: examples per epoch, examples of the run, steps per epoch. keys (4, 2) int32: order, heads, tails,
    rounding. trials (T, INTS), factors (T, FLOATS): settings. entity (T, E, D), relation (T, R, width).
    """
    train, answers = examples
    if space.shape.kvsall:
        space.labels.zero_()
        space.answered.zero_()
    elif train.dtype != torch.int32 or not train.is_contiguous():
        raise ValueError(f"train is {train.dtype} with strides {train.stride()}: give a contiguous int32 tensor.")
    shape = space.shape
    rows, drawn = max(1, ROWS // shape.wide), max(1, DRAWN // shape.wide)
    grid = (shape.rows // rows + shape.candidates // drawn, shape.trials)
    across = (space.queries_across, space.block_across) if shape.pair != "dot" else (space.queries, space.block)
    launch(
        _draw, grid,
        space.clock, plan, keys, trials, factors, train, entity, relation,
        space.ids, space.positions, space.truths, space.negatives, space.other_positions, space.seen,
        space.queries, space.block, space.positive, *across,
        answers, space.labels, space.asked, space.answered, space.answer_penalties,
        shape.batch, shape.n_entities, _radix(shape.n_entities), _radix(train.shape[-1 if shape.kvsall else 0]),
        shape.n_relations,
        entity.shape[1], relation.shape[1], shape.first_tail, shape.first_relation, shape.candidates,
        BATCH=shape.rows, SIDES=shape.sides, DIM=shape.dim, WIDTH=shape.width, HALF=shape.half, PAD=shape.padded_half,
        COMPOSE=shape.compose, PAIR=shape.pair, RECIPROCAL=shape.reciprocal, DROPOUT=shape.dropout,
        ONE_VS_ALL=shape.one_vs_all, KVSALL=shape.kvsall, ROWS=rows, DRAWN=drawn, num_warps=4, **EXACT,
    )  # fmt: skip


def order(space: StepSpace) -> None:
    """Sort the occurrences of ids (2, 2·B) by id, then by position.

    The first occurrence of an id gets the start and length of its run; all others get the length 0.
    """
    n = 2 * space.shape.rows
    launch(
        _order, (n // _SORTED, 2),
        space.ids, space.order, space.start, space.count, n, SORTED=_SORTED, AGAINST=_AGAINST, num_warps=4,
    )  # fmt: skip


def _radix(n: int) -> int:
    return math.isqrt(max(n - 1, 0)) + 1


@triton.jit(do_not_specialize=["n_entities", "radix", "train_radix", "n_relations", "entity_rows", "relation_rows"])
def _draw(  # type: ignore[no-untyped-def]
    clock, plan, keys, trials, factors, train, entity, relation,
    ids, positions, truths, negatives, other_positions, seen, queries, block, positive, queries_across, block_across,
    answers, labels, asked, answered, answer_penalties,
    batch, n_entities, radix, train_radix, n_relations, entity_rows, relation_rows,
    first_tail, first_relation, candidates,
    BATCH: tl.constexpr, SIDES: tl.constexpr,
    DIM: tl.constexpr, WIDTH: tl.constexpr, HALF: tl.constexpr, PAD: tl.constexpr,
    COMPOSE: tl.constexpr, PAIR: tl.constexpr, RECIPROCAL: tl.constexpr, DROPOUT: tl.constexpr,
    ONE_VS_ALL: tl.constexpr, KVSALL: tl.constexpr, ROWS: tl.constexpr, DRAWN: tl.constexpr,
):  # fmt: skip
    tile, trial = tl.program_id(0), tl.program_id(1).to(tl.int64)
    step = tl.load(clock)
    entity += trial * entity_rows * DIM
    relation += trial * relation_rows * WIDTH
    trials += trial * PER_TRIAL
    factors += trial * FACTORS
    if tile < BATCH // ROWS:
        if KVSALL:
            _draw_questions(
                tile, trial, step, plan, keys, train, answers, entity, relation, ids, positions, seen, queries, labels,
                asked, answered, batch, train_radix, n_relations, candidates, BATCH, DIM, WIDTH, HALF, PAD, COMPOSE,
                RECIPROCAL, ROWS,
            )  # fmt: skip
        else:
            _draw_positives(
                tile, trial, step, plan, keys, trials, factors, train, entity, relation, ids, positions, truths, seen,
                queries, positive, queries_across, batch, n_entities, radix, train_radix, n_relations, first_tail,
                first_relation, BATCH, SIDES, DIM, WIDTH, HALF, PAD, COMPOSE, PAIR, RECIPROCAL, DROPOUT, ONE_VS_ALL,
                ROWS,
            )  # fmt: skip
    else:
        first = (tile - BATCH // ROWS) * DRAWN
        if first < first_relation:
            _draw_candidates(
                first, trial, step, keys, trials, factors, entity, negatives, other_positions, block, block_across,
                answer_penalties, n_entities, radix, first_tail, candidates, DIM, HALF, PAD, PAIR, DROPOUT, ONE_VS_ALL,
                KVSALL, DRAWN,
            )  # fmt: skip
        elif SIDES > 2:
            j = first + tl.arange(0, DRAWN)
            live = j - first_relation < tl.load(trials + 2)
            re, im = load_halves(relation, j - first_relation, live, WIDTH, HALF, PAD)
            _store_block(block, block_across, trial, j, re, im, live, candidates, PAD, PAIR)


@triton.jit
def _draw_positives(  # type: ignore[no-untyped-def]
    tile, trial, step, plan, keys, trials, factors, train, entity, relation, ids, positions, truths, seen,
    queries, positive, queries_across, batch, n_entities, radix, train_radix, n_relations, first_tail, first_relation,
    BATCH: tl.constexpr, SIDES: tl.constexpr,
    DIM: tl.constexpr, WIDTH: tl.constexpr, HALF: tl.constexpr, PAD: tl.constexpr,
    COMPOSE: tl.constexpr, PAIR: tl.constexpr, RECIPROCAL: tl.constexpr, DROPOUT: tl.constexpr,
    ONE_VS_ALL: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    epoch, first, last = batch_bounds(plan, step, batch)
    row = tile * ROWS + tl.arange(0, ROWS)
    live = (row < batch) & (first + row < last)
    low, high = load_key(keys, 0)
    low, high = key_at(low, high, epoch)
    at = _places(row, live, first, plan, train_radix, low, high) * 3
    heads = tl.load(train + at, mask=live, other=0)
    relations = tl.load(train + at + 1, mask=live, other=0)
    tails = tl.load(train + at + 2, mask=live, other=0)
    inverse = relations + n_relations if RECIPROCAL else relations
    if trial == 0:
        tl.store(ids + row, tl.where(live, heads, _NO_ID))
        tl.store(ids + BATCH + row, tl.where(live, tails, _NO_ID))
        tl.store(ids + 2 * BATCH + row, tl.where(live, relations, _NO_ID))
        tl.store(ids + 3 * BATCH + row, tl.where(live & (inverse != relations), inverse, _NO_ID))
        tl.store(truths + 2 * BATCH + row, tl.where(live, relations, _NO_ID))
        tl.store(truths + 3 * BATCH + row, tl.where(live, inverse, _NO_ID))
        _find_positions(
            tile, step, first, last, plan, keys, train, positions, truths, seen, batch, n_entities, radix,
            train_radix, low, high, first_tail, first_relation, BATCH, ONE_VS_ALL, ROWS,
        )  # fmt: skip

    hr, hi = load_halves(entity, heads, live, DIM, HALF, PAD)
    tr, ti = load_halves(entity, tails, live, DIM, HALF, PAD)
    rr, ri = load_halves(relation, relations, live, WIDTH, HALF, PAD)
    br, bi = load_halves(relation, inverse, live, WIDTH, HALF, PAD)
    raw_rr, raw_ri, raw_br, raw_bi = rr, ri, br, bi
    ahr, ahi, atr, ati = hr, hi, tr, ti  # the true answers, as they are scored
    if DROPOUT:
        m0, m1, m2, m3, m4, m5, m6, m7 = batch_masks(row, step, trials, factors, HALF, PAD, RECIPROCAL)
        hr, hi, tr, ti = hr * m0, hi * m1, tr * m2, ti * m3
        rr, ri, br, bi = rr * m4, ri * m5, br * m6, bi * m7
        if ONE_VS_ALL:  # the true answer is a candidate, with the candidates' mask
            m0, m1 = candidate_mask(heads, 0, step, trials, factors, HALF, PAD)
            m2, m3 = candidate_mask(tails, 1, step, trials, factors, HALF, PAD)
        ahr, ahi, atr, ati = ahr * m0, ahi * m1, atr * m2, ati * m3
    positive += trial * SIDES * BATCH + row
    qr, qi = compose(tr, ti, br, bi, COMPOSE, not RECIPROCAL)
    tl.store(positive, pair_score(qr, qi, ahr, ahi, PAIR))
    _store_queries(queries, queries_across, trial * SIDES, row, qr, qi, BATCH, PAD, PAIR)
    qr, qi = compose(hr, hi, rr, ri, COMPOSE, False)
    tl.store(positive + BATCH, pair_score(qr, qi, atr, ati, PAIR))
    _store_queries(queries, queries_across, trial * SIDES + 1, row, qr, qi, BATCH, PAD, PAIR)
    if SIDES > 2:  # query for the relation: t·conj(h), or t − h
        qr, qi = compose(tr, ti, hr, hi, COMPOSE, True)
        tl.store(positive + 2 * BATCH, pair_score(qr, qi, raw_rr, raw_ri, PAIR))
        _store_queries(queries, queries_across, trial * SIDES + 2, row, qr, qi, BATCH, PAD, PAIR)
    if SIDES == 4:  # query for the inverse relation
        qr, qi = compose(hr, hi, tr, ti, COMPOSE, True)
        tl.store(positive + 3 * BATCH, pair_score(qr, qi, raw_br, raw_bi, PAIR))
        _store_queries(queries, queries_across, trial * SIDES + 3, row, qr, qi, BATCH, PAD, PAIR)


@triton.jit
def _places(row, live, first, plan, train_radix, low, high):  # type: ignore[no-untyped-def]
    """Return the places of the examples at these positions of the epoch's order."""
    place = tl.where(live, first + row, 0).to(tl.uint32)
    found = permute_block(place, tl.load(plan).to(tl.uint32), train_radix.to(tl.uint32), low, high, False)
    return found.to(tl.int64)


@triton.jit
def _draw_questions(  # type: ignore[no-untyped-def]
    tile, trial, step, plan, keys, questions, answers, entity, relation, ids, positions, seen, queries, labels,
    asked, answered, batch, radix, n_relations, candidates,
    BATCH: tl.constexpr, DIM: tl.constexpr, WIDTH: tl.constexpr, HALF: tl.constexpr, PAD: tl.constexpr,
    COMPOSE: tl.constexpr, RECIPROCAL: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    """Draw a tile of KvsAll's questions, mark their answers and compose their queries."""
    epoch, first, last = batch_bounds(plan, step, batch)
    row = tile * ROWS + tl.arange(0, ROWS)
    live = (row < batch) & (first + row < last)
    low, high = load_key(keys, 0)
    low, high = key_at(low, high, epoch)
    n = tl.load(plan)
    at = questions + _places(row, live, first, plan, radix, low, high)
    known = tl.load(at, mask=live, other=0).to(tl.int32)
    relations = tl.load(at + n, mask=live, other=0).to(tl.int32)
    sign = tl.full((ROWS,), 1, tl.int32)
    if not RECIPROCAL:  # a question for heads has the row of the relation, for complex numbers conjugated
        if COMPOSE == "complex":
            sign = tl.where(relations >= n_relations, -1, 1)
        relations = tl.where(relations >= n_relations, relations - n_relations, relations)
    if trial == 0:
        count = tl.load(at + 3 * n, mask=live, other=0).to(tl.int32)
        tl.store(ids + row, tl.where(live, known, _NO_ID))
        tl.store(ids + 2 * BATCH + row, tl.where(live, relations, _NO_ID))
        tl.store(positions + row, known)
        tl.store(seen + known, (step + 1).to(tl.int32), mask=live)
        tl.store(asked + row, count)
        tl.store(asked + BATCH + row, sign)
        tl.atomic_add(answered + candidates, tl.sum(count, 0), sem="relaxed")  # integers: in any order the same sum
        begin = tl.load(at + 2 * n, mask=live, other=0)[:, None]
        line = labels + (row * (candidates // _LABELS))[:, None]
        for number in range(0, tl.max(count, 0), _ANSWERS):
            i = number + tl.arange(0, _ANSWERS)[None, :]
            inside = i < count[:, None]
            answer = tl.load(answers + begin + i, mask=inside, other=0)
            bit = tl.full((ROWS, _ANSWERS), 1, tl.int32) << (answer % _LABELS)
            tl.atomic_or(line + answer // _LABELS, bit, mask=inside, sem="relaxed")
            tl.atomic_add(answered + answer, tl.full((ROWS, _ANSWERS), 1, tl.int32), mask=inside, sem="relaxed")
    kr, ki = load_halves(entity, known, live, DIM, HALF, PAD)
    rr, ri = load_halves(relation, relations, live, WIDTH, HALF, PAD)
    qr, qi = compose(kr, ki, rr, ri * sign[:, None], COMPOSE, False)
    store_halves(queries + trial * BATCH * 2 * PAD, row, qr, qi, row < BATCH, 2 * PAD, PAD, PAD)


@triton.jit
def _find_positions(  # type: ignore[no-untyped-def]
    tile, step, first, last, plan, keys, train, positions, truths, seen, batch, n_entities, radix, train_radix, low,
    high,
    first_tail, first_relation, BATCH: tl.constexpr, ONE_VS_ALL: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    """Find the positions of heads and tails among the candidates of both sides: four per positive, as one block."""
    j = tl.arange(0, 4 * ROWS)
    row = tile * ROWS + j % ROWS
    is_tail, side = (j // ROWS) % 2, j // (2 * ROWS)
    live = (row < batch) & (first + row < last)
    at = _places(row, live, first, plan, train_radix, low, high) * 3
    place = tl.load(train + at + 2 * is_tail, mask=live, other=0)
    if not ONE_VS_ALL:
        head_low, head_high = load_key(keys, 1)
        tail_low, tail_high = load_key(keys, 2)
        head_low, head_high = key_at(head_low, head_high, step)
        tail_low, tail_high = key_at(tail_low, tail_high, step)
        low = tl.where(side == 0, head_low, tail_low)
        high = tl.where(side == 0, head_high, tail_high)
        n, a = n_entities.to(tl.uint32), radix.to(tl.uint32)
        place = permute_block(place.to(tl.uint32), n, a, low, high, True).to(tl.int32)
    place = tl.where(live, place, _NO_ID)
    tl.store(positions + side * 2 * BATCH + is_tail * BATCH + row, place)
    tl.store(truths + side * BATCH + row, place, mask=is_tail == side)
    room = tl.where(side == 0, first_tail, first_relation - first_tail)
    tl.store(seen + side * first_tail + place, (step + 1).to(tl.int32), mask=place < room)


@triton.jit
def _draw_candidates(  # type: ignore[no-untyped-def]
    first, trial, step, keys, trials, factors, entity, negatives, other_positions, block, block_across,
    answer_penalties, n_entities, radix,
    first_tail, candidates, DIM: tl.constexpr, HALF: tl.constexpr, PAD: tl.constexpr,
    PAIR: tl.constexpr, DROPOUT: tl.constexpr, ONE_VS_ALL: tl.constexpr, KVSALL: tl.constexpr, DRAWN: tl.constexpr,
):  # fmt: skip
    """Draw a tile of negatives of one side, find their positions on the other side, and gather their rows."""
    j = first + tl.arange(0, DRAWN)
    side = (first >= first_tail).to(tl.int32)
    place = j - side * first_tail
    live = (place < tl.load(trials + side)) & (place < n_entities)
    drawn = tl.where(place < n_entities, place, 0).to(tl.uint32)
    other_position = drawn
    if not ONE_VS_ALL:
        n, a = n_entities.to(tl.uint32), radix.to(tl.uint32)
        low, high = load_key(keys, 1 + side)
        low, high = key_at(low, high, step)
        drawn = permute_block(drawn, n, a, low, high, False)
        if trial == 0:
            low, high = load_key(keys, 2 - side)
            low, high = key_at(low, high, step)
            other_position = permute_block(drawn, n, a, low, high, True)
    if trial == 0:
        tl.store(negatives + j, drawn.to(tl.int32))
        tl.store(other_positions + j, other_position.to(tl.int32))
    re, im = load_halves(entity, drawn, live, DIM, HALF, PAD)
    if KVSALL:
        kind = tl.load(trials + 8)
        if kind > 0:
            value, _, _ = penalty(re, im, kind, tl.load(factors + 2) + tl.zeros((DRAWN,), tl.float32))
            tl.store(answer_penalties + trial * candidates + j, value)
    if DROPOUT:
        mask_re, mask_im = candidate_mask(drawn, side, step, trials, factors, HALF, PAD)
        re *= mask_re
        im *= mask_im
    _store_block(block, block_across, trial, j, re, im, live, candidates, PAD, PAIR)


@triton.jit
def _store_block(block, across, trial, j, first, second, live, candidates, PAD: tl.constexpr, PAIR: tl.constexpr):  # type: ignore[no-untyped-def]
    store_halves(block + trial * candidates * 2 * PAD, j, first, second, live, 2 * PAD, PAD, PAD)
    if PAIR != "dot":
        _store_across(across + trial * 2 * PAD * candidates, j, first, second, live, candidates, PAD)


@triton.jit
def _store_queries(queries, across, at, row, qr, qi, BATCH: tl.constexpr, PAD: tl.constexpr, PAIR: tl.constexpr):  # type: ignore[no-untyped-def]
    live = row < BATCH
    store_halves(queries + at * BATCH * 2 * PAD, row, qr, qi, live, 2 * PAD, PAD, PAD)
    if PAIR != "dot":
        _store_across(across + at * 2 * PAD * BATCH, row, qr, qi, live, BATCH, PAD)


@triton.jit
def _store_across(across, at, first, second, live, LENGTH: tl.constexpr, PAD: tl.constexpr):  # type: ignore[no-untyped-def]
    """Store rows as columns of (P, LENGTH), for loops over coordinates."""
    c = tl.arange(0, PAD)
    where = across + c[None, :] * LENGTH + at[:, None]
    tl.store(where, first, mask=live[:, None])
    tl.store(where + PAD * LENGTH, second, mask=live[:, None])


@triton.jit
def _order(ids, order, start, count, n, SORTED: tl.constexpr, AGAINST: tl.constexpr):  # type: ignore[no-untyped-def]
    table = tl.program_id(1) * n
    i = tl.program_id(0) * SORTED + tl.arange(0, SORTED)
    mine = tl.load(ids + table + i)
    less = tl.zeros((SORTED, AGAINST), tl.int32)
    before, equal = less, less
    for first in range(0, n, AGAINST):  # counted lane by lane: a sum over lanes in the loop took 19 µs instead of 7
        j = first + tl.arange(0, AGAINST)
        other = tl.load(ids + table + j, mask=j < n, other=_NO_ID)[None, :]
        same = (other == mine[:, None]) & (j[None, :] < n)
        less += (other < mine[:, None]).to(tl.int32)
        equal += same.to(tl.int32)
        before += (same & (j[None, :] < i[:, None])).to(tl.int32)
    below, earlier = tl.sum(less, 1), tl.sum(before, 1)
    tl.store(order + table + below + earlier, i)
    tl.store(start + table + i, below)
    tl.store(count + table + i, tl.where((earlier == 0) & (mine != _NO_ID), tl.sum(equal, 1), 0))
