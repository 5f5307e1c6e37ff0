"""Last launches of the step: gradients of heads, tails and relations, then one Adagrad update per row.

`triple_gradients` merges the softmax parts of narrow dot products (others are merged before), passes the gradients of
queries and answers to the rows of the batch, one per occurrence, and computes the losses with their penalties. Bytes
for `splits` parts per side: 8·D·splits·B read, 12 to 16·D·B written.

The updates sum the occurrences of a row in a fixed order. One program writes a row: the one of its first occurrence in
the batch, else of its position among the candidate tails, else among the candidate heads. The positions of an entity in
the other lists come from the inverse permutations (`step_draw_triton`). If relations are predicted, every relation is
updated. Bytes for n rows: 20·n·D, as in `row_update`; 16·n·D for bf16 entities, which are rounded stochastically.
"""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from grash.kernels.compile_ahead import launch
from grash.kernels.random_triton import key_at, load_key
from grash.kernels.step import WINDOW, StepSpace
from grash.kernels.step_rows_triton import (
    EXACT,
    FACTORS,
    PER_TRIAL,
    batch_bounds,
    batch_masks,
    candidate_mask,
    compose,
    compose_gradient,
    label_share,
    load_count,
    load_halves,
    merge_parts,
    pair_gradient,
    penalty,
    round_halves,
    store_halves,
)

ROWS = 8  # positives of a program of `triple_gradients`; fewer if rows are wide
LINES, _SUMMED = 4, 1024  # rows of a program of the updates; losses added at once
_PI: tl.constexpr = tl.constexpr(3.141592653589793)
_WINDOW: tl.constexpr = tl.constexpr(WINDOW)


def triple_gradients(
    space: StepSpace, plan: Tensor, trials: Tensor, factors: Tensor, entity: Tensor, relation: Tensor
) -> None:
    """Fill entity_gradients, relation_gradients (T, 2, B, P) and row_losses (T, B).

    For narrow dot products also the normalizers (T, S, B): logarithms in base 2, ∞ where there is no positive.
    """
    shape = space.shape
    rows = max(1, ROWS // shape.wide)
    merged = shape.pair != "dot" or shape.by_products
    known = space.side_losses if merged else space.normalizer
    launch(
        _triple_gradients, (shape.rows // rows, shape.trials),
        space.clock, plan, trials, factors, entity, relation, space.ids, space.positive,
        space.maxima, space.sums, space.costs, space.partial, known, space.for_positive,
        space.entity_gradients, space.relation_gradients, space.row_losses,
        shape.batch, space.splits, shape.n_relations, entity.shape[1], relation.shape[1],
        BATCH=shape.rows, SIDES=shape.sides, DIM=shape.dim, WIDTH=shape.width, HALF=shape.half, PAD=shape.padded_half,
        COMPOSE=shape.compose, PAIR=shape.pair, RECIPROCAL=shape.reciprocal, DROPOUT=shape.dropout,
        ONE_VS_ALL=shape.one_vs_all, ADVERSARIAL=shape.adversarial, MERGED=merged, ROWS=rows, num_warps=4, **EXACT,
    )  # fmt: skip


@triton.jit(do_not_specialize=["splits", "n_relations", "entity_rows", "relation_rows"])
def _triple_gradients(  # type: ignore[no-untyped-def]
    clock, plan, trials, factors, entity, relation, ids, positive, maxima, sums, costs, partial, known,
    for_positive, entity_gradients, relation_gradients, row_losses, batch, splits, n_relations, entity_rows,
    relation_rows,
    BATCH: tl.constexpr, SIDES: tl.constexpr, DIM: tl.constexpr, WIDTH: tl.constexpr, HALF: tl.constexpr,
    PAD: tl.constexpr, COMPOSE: tl.constexpr, PAIR: tl.constexpr, RECIPROCAL: tl.constexpr, DROPOUT: tl.constexpr,
    ONE_VS_ALL: tl.constexpr, ADVERSARIAL: tl.constexpr, MERGED: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    row, trial = tl.program_id(0) * ROWS + tl.arange(0, ROWS), tl.program_id(1).to(tl.int64)
    step = tl.load(clock) - 1
    _, first, last = batch_bounds(plan, step, batch)
    live = (row < batch) & (first + row < last)
    share = 1.0 / tl.maximum(last - first, 1).to(tl.float32)
    trials += trial * PER_TRIAL
    factors += trial * FACTORS
    entity += trial * entity_rows * DIM
    relation += trial * relation_rows * WIDTH
    heads, tails = tl.load(ids + row), tl.load(ids + BATCH + row)
    relations = tl.load(ids + 2 * BATCH + row)
    inverse = relations + n_relations if RECIPROCAL else relations
    raw_hr, raw_hi = load_halves(entity, heads, live, DIM, HALF, PAD)
    raw_tr, raw_ti = load_halves(entity, tails, live, DIM, HALF, PAD)
    raw_rr, raw_ri = load_halves(relation, relations, live, WIDTH, HALF, PAD)
    raw_br, raw_bi = load_halves(relation, inverse, live, WIDTH, HALF, PAD)
    hr, hi, tr, ti, rr, ri, br, bi = raw_hr, raw_hi, raw_tr, raw_ti, raw_rr, raw_ri, raw_br, raw_bi
    if DROPOUT:
        m0, m1, m2, m3, m4, m5, m6, m7 = batch_masks(row, step, trials, factors, HALF, PAD, RECIPROCAL)
        hr, hi, tr, ti, rr, ri, br, bi = hr * m0, hi * m1, tr * m2, ti * m3, rr * m4, ri * m5, br * m6, bi * m7

    # query for the head: the tail is known
    qr, qi = compose(tr, ti, br, bi, COMPOSE, not RECIPROCAL)
    ar, ai = hr, hi
    if DROPOUT and ONE_VS_ALL:  # the true answer is a candidate, with the candidates' mask
        n0, n1 = candidate_mask(heads, 0, step, trials, factors, HALF, PAD)
        ar, ai = raw_hr * n0, raw_hi * n1
    ur, ui, fhr, fhi, loss = _side_gradients(
        0, trial, row, live, share, trials, factors, positive, maxima, sums, costs, partial, known,
        for_positive, splits, qr, qi, ar, ai, BATCH, SIDES, PAD, PAIR, ADVERSARIAL, MERGED,
    )  # fmt: skip
    gtr, gti, gbr, gbi = compose_gradient(ur, ui, tr, ti, br, bi, COMPOSE, not RECIPROCAL)
    # query for the tail
    qr, qi = compose(hr, hi, rr, ri, COMPOSE, False)
    ar, ai = tr, ti
    if DROPOUT and ONE_VS_ALL:
        n2, n3 = candidate_mask(tails, 1, step, trials, factors, HALF, PAD)
        ar, ai = raw_tr * n2, raw_ti * n3
    ur, ui, ftr, fti, more_loss = _side_gradients(
        1, trial, row, live, share, trials, factors, positive, maxima, sums, costs, partial, known,
        for_positive, splits, qr, qi, ar, ai, BATCH, SIDES, PAD, PAIR, ADVERSARIAL, MERGED,
    )  # fmt: skip
    ghr, ghi, grr, gri = compose_gradient(ur, ui, hr, hi, rr, ri, COMPOSE, False)
    loss += more_loss
    if not ONE_VS_ALL:
        ghr, ghi, gtr, gti = fhr + ghr, fhi + ghi, gtr + ftr, gti + fti
    elif DROPOUT:
        fhr, fhi, ftr, fti = fhr * n0, fhi * n1, ftr * n2, fti * n3
    if SIDES > 2:  # query for the relation, with its row before dropout
        qr, qi = compose(tr, ti, hr, hi, COMPOSE, True)
        ur, ui, frr, fri, more_loss = _side_gradients(
            2, trial, row, live, share * tl.load(factors + 4), trials, factors, positive, maxima, sums, costs, partial,
            known, for_positive, splits, qr, qi, raw_rr, raw_ri, BATCH, SIDES, PAD, PAIR, ADVERSARIAL, MERGED,
        )  # fmt: skip
        more_tr, more_ti, more_hr, more_hi = compose_gradient(ur, ui, tr, ti, hr, hi, COMPOSE, True)
        ghr, ghi, gtr, gti, loss = ghr + more_hr, ghi + more_hi, gtr + more_tr, gti + more_ti, loss + more_loss
    if SIDES == 4:  # query for the inverse relation
        qr, qi = compose(hr, hi, tr, ti, COMPOSE, True)
        ur, ui, fbr, fbi, more_loss = _side_gradients(
            3, trial, row, live, share * tl.load(factors + 4), trials, factors, positive, maxima, sums, costs, partial,
            known, for_positive, splits, qr, qi, raw_br, raw_bi, BATCH, SIDES, PAD, PAIR, ADVERSARIAL, MERGED,
        )  # fmt: skip
        more_hr, more_hi, more_tr, more_ti = compose_gradient(ur, ui, hr, hi, tr, ti, COMPOSE, True)
        ghr, ghi, gtr, gti, loss = ghr + more_hr, ghi + more_hi, gtr + more_tr, gti + more_ti, loss + more_loss
    if not RECIPROCAL:
        grr, gri = grr + gbr, gri + gbi
    if DROPOUT:
        ghr, ghi, gtr, gti = ghr * m0, ghi * m1, gtr * m2, gti * m3
        grr, gri, gbr, gbi = grr * m4, gri * m5, gbr * m6, gbi * m7
    if ONE_VS_ALL:
        ghr, ghi, gtr, gti = ghr + fhr, ghi + fhi, gtr + ftr, gti + fti
    if SIDES > 2:
        grr, gri = grr + frr, gri + fri
    if SIDES == 4:
        gbr, gbi = gbr + fbr, gbi + fbi

    once = live.to(tl.float32)
    kind, weight = tl.load(trials + 8), tl.load(factors + 2) * share * once
    if kind > 0:
        value, pr, pi = penalty(raw_hr, raw_hi, kind, weight)
        ghr, ghi, loss = ghr + pr, ghi + pi, loss + value
        value, pr, pi = penalty(raw_tr, raw_ti, kind, weight)
        gtr, gti, loss = gtr + pr, gti + pi, loss + value
    kind, weight = tl.load(trials + 9), tl.load(factors + 3) * share * once
    if kind > 0:  # with reciprocals, the rows of the directions with queries
        forward, backward = weight, weight
        if RECIPROCAL:
            forward = tl.where(tl.load(trials + 1) > 0, weight, 0.0)
            backward = tl.where(tl.load(trials) > 0, weight, 0.0)
        value, pr, pi = penalty(raw_rr, raw_ri, kind, forward)
        grr, gri, loss = grr + pr, gri + pi, loss + value
        if RECIPROCAL:
            value, pr, pi = penalty(raw_br, raw_bi, kind, backward)
            gbr, gbi, loss = gbr + pr, gbi + pi, loss + value
    tl.store(row_losses + trial * BATCH + row, tl.where(live, loss, 0.0))
    at = trial * 2 * BATCH + row
    everywhere = row < BATCH
    store_halves(entity_gradients, at, ghr, ghi, everywhere, 2 * PAD, PAD, PAD)
    store_halves(entity_gradients, at + BATCH, gtr, gti, everywhere, 2 * PAD, PAD, PAD)
    store_halves(relation_gradients, at, grr, gri, everywhere, 2 * PAD, PAD, PAD)
    if RECIPROCAL:
        store_halves(relation_gradients, at + BATCH, gbr, gbi, everywhere, 2 * PAD, PAD, PAD)


@triton.jit
def _side_gradients(  # type: ignore[no-untyped-def]
    side, trial, row, live, share, trials, factors, positive, maxima, sums, costs, partial, known, for_positive,
    splits, qr, qi, ar, ai,
    BATCH: tl.constexpr, SIDES: tl.constexpr, PAD: tl.constexpr, PAIR: tl.constexpr, ADVERSARIAL: tl.constexpr,
    MERGED: tl.constexpr,
):  # fmt: skip
    """Return the gradients of a side's queries and answers (four blocks) and the loss, summing parts in order."""
    used = tl.cdiv(load_count(trials, side), tl.load(trials + 3))
    at = trial * SIDES + side
    ur, ui = tl.zeros_like(qr), tl.zeros_like(qi)
    if not MERGED:
        top, bound, inverse, weight, loss = merge_parts(
            at, row, side, trials, factors, positive, maxima, sums, costs, splits, BATCH, ADVERSARIAL
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
        weight = tl.load(for_positive + at * BATCH + row)
        ur, ui = ur * share, ui * share
    more_r, more_i, for_r, for_i = pair_gradient(weight * share, qr, qi, ar, ai, PAIR)
    return ur + more_r, ui + more_i, for_r, for_i, loss * share


def question_gradients(
    space: StepSpace, plan: Tensor, trials: Tensor, factors: Tensor, entity: Tensor, relation: Tensor
) -> None:
    """`triple_gradients` of KvsAll: the gradients of known entities and relations, (T, 2, B, P), whose second half is
    not used, and row_losses (T, B)."""
    shape = space.shape
    rows = max(1, ROWS // shape.wide)
    launch(
        _question_gradients, (shape.rows // rows, shape.trials),
        space.clock, plan, trials, factors, entity, relation, space.ids, space.asked, space.answered, space.partial,
        space.side_losses, space.entity_gradients, space.relation_gradients, space.row_losses,
        shape.batch, space.splits, entity.shape[1], relation.shape[1], shape.candidates,
        BATCH=shape.rows, DIM=shape.dim, WIDTH=shape.width, HALF=shape.half, PAD=shape.padded_half,
        COMPOSE=shape.compose, ROWS=rows, num_warps=4, **EXACT,
    )  # fmt: skip


@triton.jit(do_not_specialize=["splits", "entity_rows", "relation_rows"])
def _question_gradients(  # type: ignore[no-untyped-def]
    clock, plan, trials, factors, entity, relation, ids, asked, answered, partial, losses,
    entity_gradients, relation_gradients, row_losses, batch, splits, entity_rows, relation_rows, candidates,
    BATCH: tl.constexpr, DIM: tl.constexpr, WIDTH: tl.constexpr, HALF: tl.constexpr, PAD: tl.constexpr,
    COMPOSE: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    row, trial = tl.program_id(0) * ROWS + tl.arange(0, ROWS), tl.program_id(1).to(tl.int64)
    _, first, last = batch_bounds(plan, tl.load(clock) - 1, batch)
    live = (row < batch) & (first + row < last)
    share = 1.0 / tl.maximum(last - first, 1).to(tl.float32)
    trials += trial * PER_TRIAL
    factors += trial * FACTORS
    known, relations = tl.load(ids + row), tl.load(ids + 2 * BATCH + row)
    kr, ki = load_halves(entity + trial * entity_rows * DIM, known, live, DIM, HALF, PAD)
    rr, ri = load_halves(relation + trial * relation_rows * WIDTH, relations, live, WIDTH, HALF, PAD)
    sign = tl.load(asked + BATCH + row).to(tl.float32)[:, None]
    ur, ui = tl.zeros_like(kr), tl.zeros_like(ki)
    for split in range(tl.cdiv(tl.load(trials), tl.load(trials + 3))):
        more_r, more_i = load_halves(partial, (trial * splits + split) * BATCH + row, live, 2 * PAD, PAD, PAD)
        ur += more_r
        ui += more_i
    gkr, gki, grr, gri = compose_gradient(ur * share, ui * share, kr, ki, rr, ri * sign, COMPOSE, False)
    gri *= sign
    loss = tl.load(losses + trial * BATCH + row) * share
    of_labels = tl.load(asked + row) * label_share(answered, candidates)
    kind = tl.load(trials + 8)
    if kind > 0:
        value, pr, pi = penalty(kr, ki, kind, tl.load(factors + 2) * of_labels)
        gkr, gki, loss = gkr + pr, gki + pi, loss + value
    kind = tl.load(trials + 9)
    if kind > 0:
        value, pr, pi = penalty(rr, ri, kind, tl.load(factors + 3) * of_labels)
        grr, gri, loss = grr + pr, gri + pi, loss + value
    tl.store(row_losses + trial * BATCH + row, tl.where(live, loss, 0.0))
    at, everywhere = trial * 2 * BATCH + row, row < BATCH
    store_halves(entity_gradients, at, gkr, gki, everywhere, 2 * PAD, PAD, PAD)
    store_halves(relation_gradients, at, grr, gri, everywhere, 2 * PAD, PAD, PAD)


def update_entities(
    space: StepSpace, plan: Tensor, trials: Tensor, factors: Tensor, keys: Tensor, table: Tensor, squares: Tensor,
    eps: float,
) -> None:  # fmt: skip
    """Update table (T, E, D) and squares, of the same shape or (T, E, 1) if row-wise.

    One warp for four rows: many small programs have more rows in flight than few large ones (10 µs a step, not 17).
    """
    shape = space.shape
    launch(
        _update_entities, ((2 * shape.rows + shape.first_relation) // LINES, shape.trials),
        space.clock, plan, trials, factors, keys, space.rates, table, squares, space.ids, space.positions,
        space.negatives, space.other_positions, space.seen, space.order, space.start, space.count,
        space.entity_gradients, space.candidate_gradients, space.answered, shape.batch, table.shape[1], eps,
        shape.first_tail, shape.candidates, BATCH=shape.rows, BATCH_PARTS=shape.batch_parts, SHARED=shape.shared,
        KVSALL=shape.kvsall,
        DIM=shape.dim, HALF=shape.half, PAD=shape.padded_half, DROPOUT=shape.dropout, ROWWISE=shape.rowwise,
        BF16=shape.bf16, LINES=LINES, AT_ONCE=8, num_warps=shape.wide, **EXACT,
    )  # fmt: skip


def update_relations(
    space: StepSpace, plan: Tensor, trials: Tensor, factors: Tensor, table: Tensor, squares: Tensor, eps: float
) -> None:
    """Update the relations (T, R, width), whose runs are long, and write the losses (T,) of the step.

    There is a program for every relation, which finds its run, or for every line of the batch if these are fewer.
    """
    shape = space.shape
    lines = shape.rows * (2 if shape.reciprocal else 1)
    by_id = table.shape[1] <= lines or shape.predicted > 0
    launch(
        _update_relations, ((table.shape[1] if by_id else lines) + 1, shape.trials),
        space.clock, plan, trials, factors, space.rates, table, squares, space.ids, space.order, space.start,
        space.count, space.relation_gradients, space.candidate_gradients, space.row_losses, space.losses,
        space.answered, space.answer_penalties, shape.batch, table.shape[1], eps, shape.first_relation,
        shape.candidates,
        BATCH=shape.rows, KVSALL=shape.kvsall, LINES=lines, BY_ID=by_id, PREDICTED=shape.predicted > 0,
        BATCH_PARTS=shape.batch_parts,
        WIDTH=shape.width, HALF=shape.half, PAD=shape.padded_half, ROWWISE=shape.rowwise,
        WRAP=shape.compose == "rotation", AT_ONCE=64 // shape.wide, SUMMED=_SUMMED, num_warps=8,
        **EXACT,
    )  # fmt: skip


@triton.jit(do_not_specialize=["rows"])
def _update_entities(  # type: ignore[no-untyped-def]
    clock, plan, trials, factors, keys, rates, table, squares, ids, positions, negatives, other_positions, seen,
    order, start, count, entity_gradients, candidate_gradients, answered, batch, rows, eps, first_tail, candidates,
    BATCH: tl.constexpr, BATCH_PARTS: tl.constexpr, SHARED: tl.constexpr, KVSALL: tl.constexpr,
    DIM: tl.constexpr, HALF: tl.constexpr, PAD: tl.constexpr, DROPOUT: tl.constexpr, ROWWISE: tl.constexpr,
    BF16: tl.constexpr, LINES: tl.constexpr, AT_ONCE: tl.constexpr,
):  # fmt: skip
    tile, trial = tl.program_id(0), tl.program_id(1).to(tl.int64)
    step = tl.load(clock) - 1
    low, high = step, step
    if BF16:
        low, high = load_key(keys, 3)
        low, high = key_at(low, high, step)
    _, first, last = batch_bounds(plan, step, batch)
    share = 1.0 / tl.maximum(last - first, 1).to(tl.float32)
    rate = tl.load(rates + (step % _WINDOW) * tl.num_programs(1) + trial)
    trials += trial * PER_TRIAL
    factors += trial * FACTORS
    entity_gradients += trial * 4 * BATCH * PAD
    candidate_gradients += trial * BATCH_PARTS * candidates * 2 * PAD
    table += trial * rows * DIM
    squares += trial * rows * (1 if ROWWISE else DIM)
    if tile < 2 * BATCH // LINES:
        line = tile * LINES + tl.arange(0, LINES)
        length = tl.load(count + line)
        if tl.max(length, 0) > 0:
            mine = length > 0
            row = tl.load(ids + line)
            gr, gi = load_halves(entity_gradients, line, mine, 2 * PAD, PAD, PAD)  # first occurrence of a run
            if tl.max(length, 0) > 1:
                for k in tl.static_range(LINES):
                    more = tl.load(count + tile * LINES + k) - 1
                    if more > 0:
                        at = order + tl.load(start + tile * LINES + k) + 1
                        run_r, run_i = _sum_run(entity_gradients, at, more, PAD, AT_ONCE)
                        here = (tl.arange(0, LINES) == k)[:, None]
                        gr += tl.where(here, run_r, 0.0)
                        gi += tl.where(here, run_i, 0.0)
            cr, ci = tl.zeros_like(gr), tl.zeros_like(gi)
            for side in tl.static_range(1 if SHARED else 0, 2):
                place = tl.load(positions + side * 2 * BATCH + line)
                drawn = mine & (place < tl.load(trials + side))
                if tl.max(drawn.to(tl.int32), 0) > 0:
                    more_r, more_i = _candidate_gradient(
                        candidate_gradients, place + side * first_tail, row, drawn, side, step, trials, factors,
                        candidates, BATCH_PARTS, HALF, PAD, DROPOUT,
                    )  # fmt: skip
                    cr += more_r
                    ci += more_i
            gr += cr * share
            gi += ci * share
            if KVSALL:
                gr, gi = _penalize_answers(
                    gr, gi, table, row, mine, answered, candidates, trials, factors, DIM, HALF, PAD
                )
            _adagrad(table, squares, row, gr, gi, mine, rate, eps, low, high, DIM, HALF, PAD, ROWWISE, False, BF16)
    else:
        j = (tile - 2 * BATCH // LINES) * LINES + tl.arange(0, LINES)
        side = ((tile - 2 * BATCH // LINES) * LINES >= first_tail).to(tl.int32)
        drawn = j - side * first_tail < tl.load(trials + side)
        other_position = tl.load(other_positions + j)
        both = (other_position < tl.load(trials + 1 - side)) & (not SHARED)
        # rows of the batch are updated above; a negative of both sides is updated at its tail position
        mine = drawn & (tl.load(seen + j) != (step + 1).to(tl.int32)) & ((side == 1) | (both == 0))
        if tl.max(mine.to(tl.int32), 0) > 0:
            row = tl.load(negatives + j)
            gr, gi = _candidate_gradient(
                candidate_gradients, j, row, mine, side, step, trials, factors,
                candidates, BATCH_PARTS, HALF, PAD, DROPOUT,
            )  # fmt: skip
            twice = mine & both
            if tl.max(twice.to(tl.int32), 0) > 0:
                cr, ci = _candidate_gradient(
                    candidate_gradients, other_position, row, twice, 0, step, trials, factors,
                    candidates, BATCH_PARTS, HALF, PAD, DROPOUT,
                )  # fmt: skip
                gr += cr
                gi += ci
            gr, gi = gr * share, gi * share
            if KVSALL:
                gr, gi = _penalize_answers(
                    gr, gi, table, row, mine, answered, candidates, trials, factors, DIM, HALF, PAD
                )
            _adagrad(table, squares, row, gr, gi, mine, rate, eps, low, high, DIM, HALF, PAD, ROWWISE, False, BF16)


@triton.jit
def _penalize_answers(  # type: ignore[no-untyped-def]
    gr, gi, table, row, live, answered, candidates, trials, factors,
    DIM: tl.constexpr, HALF: tl.constexpr, PAD: tl.constexpr,
):  # fmt: skip
    """Add the gradient of the penalty on rows as answers of KvsAll."""
    kind = tl.load(trials + 8)
    if kind > 0:
        often = tl.load(answered + row, mask=live, other=0)
        first, second = load_halves(table, row, often > 0, DIM, HALF, PAD)
        _, pr, pi = penalty(first, second, kind, tl.load(factors + 2) * often * label_share(answered, candidates))
        gr += pr
        gi += pi
    return gr, gi


@triton.jit(do_not_specialize=["rows"])
def _update_relations(  # type: ignore[no-untyped-def]
    clock, plan, trials, factors, rates, table, squares, ids, order, start, count, gradients, candidate_gradients,
    row_losses, losses, answered, answer_penalties, batch, rows, eps, first_relation, candidates,
    BATCH: tl.constexpr, KVSALL: tl.constexpr, LINES: tl.constexpr, BY_ID: tl.constexpr, PREDICTED: tl.constexpr,
    BATCH_PARTS: tl.constexpr,
    WIDTH: tl.constexpr, HALF: tl.constexpr, PAD: tl.constexpr, ROWWISE: tl.constexpr, WRAP: tl.constexpr,
    AT_ONCE: tl.constexpr, SUMMED: tl.constexpr,
):  # fmt: skip
    line, trial = tl.program_id(0), tl.program_id(1).to(tl.int64)
    step = tl.load(clock) - 1
    window = (step % _WINDOW) * tl.num_programs(1) + trial
    if line == tl.num_programs(0) - 1:
        total = tl.zeros((SUMMED,), tl.float32)
        for begin in range(0, BATCH, SUMMED):
            i = begin + tl.arange(0, SUMMED)
            total += tl.load(row_losses + trial * BATCH + i, mask=i < BATCH, other=0.0)
        loss = tl.sum(total, 0)
        if KVSALL:
            total = tl.zeros((SUMMED,), tl.float32)
            for begin in range(0, candidates, SUMMED):
                i = begin + tl.arange(0, SUMMED)
                often = tl.load(answered + i, mask=i < candidates, other=0)
                total += often * tl.load(answer_penalties + trial * candidates + i, mask=often > 0, other=0.0)
            loss += tl.sum(total, 0) * label_share(answered, candidates)
        tl.store(losses + window, loss)
    else:
        if BY_ID:
            row, at, length = _find_run(ids + 2 * BATCH, line, LINES, SUMMED)
        else:
            row, at = tl.load(ids + 2 * BATCH + line), tl.load(start + 2 * BATCH + line)
            length = tl.load(count + 2 * BATCH + line)
        predicted = 0
        if PREDICTED:
            predicted = tl.load(trials + trial * PER_TRIAL + 2)
        if (length > 0) | (row < predicted):
            gr, gi = _sum_run(gradients + trial * 4 * BATCH * PAD, order + 2 * BATCH + at, length, PAD, AT_ONCE)
            here = row + tl.zeros((1,), tl.int32)
            if PREDICTED:
                _, first, last = batch_bounds(plan, step, batch)
                share = tl.load(factors + trial * FACTORS + 4) / tl.maximum(last - first, 1).to(tl.float32)
                candidate_gradients += trial * BATCH_PARTS * candidates * 2 * PAD
                more_r, more_i = _candidate_gradient(
                    candidate_gradients, first_relation + here, here, here < predicted, 2, step, trials, factors,
                    candidates, BATCH_PARTS, HALF, PAD, False,
                )  # fmt: skip
                gr += more_r * share
                gi += more_i * share
            table += trial * rows * WIDTH
            squares += trial * rows * (1 if ROWWISE else WIDTH)
            _adagrad(table, squares, here, gr, gi, here >= 0, tl.load(rates + window), eps, step, step, WIDTH, HALF,
                     PAD, ROWWISE, WRAP, False)  # fmt: skip


@triton.jit
def _find_run(ids, wanted, LINES: tl.constexpr, SUMMED: tl.constexpr):  # type: ignore[no-untyped-def]
    """Return (id, start, length) of the run of `wanted` in the sorted ids."""
    less = tl.zeros((SUMMED,), tl.int32)
    equal = less
    for begin in range(0, LINES, SUMMED):
        i = begin + tl.arange(0, SUMMED)
        other = tl.load(ids + i, mask=i < LINES, other=2**31 - 1)
        less += (other < wanted).to(tl.int32)
        equal += (other == wanted).to(tl.int32)
    return wanted, tl.sum(less, 0), tl.sum(equal, 0)


@triton.jit
def _sum_run(rows, order, length, PAD: tl.constexpr, AT_ONCE: tl.constexpr):  # type: ignore[no-untyped-def]
    """Return the sum of a run of occurrences: two blocks (1, PAD)."""
    c = tl.arange(0, PAD)
    first, second = tl.zeros((1, PAD), tl.float32), tl.zeros((1, PAD), tl.float32)
    for begin in range(0, length, AT_ONCE):
        i = begin + tl.arange(0, AT_ONCE)
        inside = i < length
        at = tl.load(order + i, mask=inside, other=0)[:, None] * (2 * PAD) + c[None, :]
        first += tl.sum(tl.load(rows + at, mask=inside[:, None], other=0.0), 0)[None, :]
        second += tl.sum(tl.load(rows + at + PAD, mask=inside[:, None], other=0.0), 0)[None, :]
    return first, second


@triton.jit
def _candidate_gradient(  # type: ignore[no-untyped-def]
    rows, at, ids, live, side, step, trials, factors,
    candidates, BATCH_PARTS: tl.constexpr, HALF: tl.constexpr, PAD: tl.constexpr, DROPOUT: tl.constexpr,
):  # fmt: skip
    """Sum the parts of candidates' gradients in order, not yet divided by the number of positives."""
    first, second = load_halves(rows, at, live, 2 * PAD, PAD, PAD)
    for part in tl.static_range(1, BATCH_PARTS):
        # all parts together may need 64-bit offsets
        more_first, more_second = load_halves(rows, at.to(tl.int64) + part * candidates, live, 2 * PAD, PAD, PAD)
        first += more_first
        second += more_second
    if DROPOUT:
        mask_first, mask_second = candidate_mask(ids, side, step, trials, factors, HALF, PAD)
        first *= mask_first
        second *= mask_second
    return first, second


@triton.jit
def _adagrad(  # type: ignore[no-untyped-def]
    table, squares, row, gr, gi, live, rate, eps, low, high,
    WIDTH: tl.constexpr, HALF: tl.constexpr, PAD: tl.constexpr, ROWWISE: tl.constexpr, WRAP: tl.constexpr,
    BF16: tl.constexpr,
):  # fmt: skip
    """Update rows; low, high: the key for the stochastic rounding of bf16 rows."""
    first, second = load_halves(table, row, live, WIDTH, HALF, PAD)
    if ROWWISE:
        inside = tl.arange(0, PAD)[None, :] < HALF  # the gradient of the padding may be anything
        square = tl.sum(tl.where(inside, gr * gr + gi * gi, 0.0), 1)
        grown = tl.load(squares + row, mask=live, other=0.0) + square / WIDTH
        tl.store(squares + row, grown, mask=live)
        size = tl.sqrt(grown)[:, None] + eps
        first -= rate * (gr / size)
        second -= rate * (gi / size)
    else:
        sr, si = load_halves(squares, row, live, WIDTH, HALF, PAD)
        sr, si = sr + gr * gr, si + gi * gi
        store_halves(squares, row, sr, si, live, WIDTH, HALF, PAD)
        first -= rate * (gr / (tl.sqrt(sr) + eps))
        second -= rate * (gi / (tl.sqrt(si) + eps))
    if WRAP:
        turned = first + _PI
        first = turned - tl.floor(turned * (0.5 / _PI)) * (2 * _PI) - _PI
    if BF16:
        first, second = round_halves(first, second, row, low, high, HALF, PAD)
    store_halves(table, row, first, second, live, WIDTH, HALF, PAD)
