"""Device functions that the step's kernels share: rows, queries, scores, dropout, and the parts of a softmax.

A block of rows is two blocks (n, PAD), its first and second half (for complex numbers the real and imaginary parts),
padded with zeros. A row of phases is half as long and has no second half.
    compose  product known·relation; complex the same for complex numbers; sum known + relation; rotation by phases
    BACK     query for the head: relation conjugated, subtracted or rotated backward (product: no change)
A side is 0 (heads), 1 (tails), 2 or 3 (relations and inverse relations among the same candidates, always with the
softmax loss). Exponents are in base 2. Losses:
    softmax            log Σ exp(score) − positive, with the positive among the scores
    self-adversarial   softplus(−γ − positive) + Σ w·softplus(γ + score), w = softmax(α·score) without the positive
"""

from __future__ import annotations

import triton
import triton.language as tl

from grash.kernels.random_triton import dropout_block, key_at, load_key, random_bits_block
from grash.kernels.step import FLOATS, INTS, LABELS, LOWEST

LOG2E: tl.constexpr = tl.constexpr(1.4426950408889634)
LN2: tl.constexpr = tl.constexpr(0.6931471805599453)
PER_TRIAL: tl.constexpr = tl.constexpr(INTS)
FACTORS: tl.constexpr = tl.constexpr(FLOATS)
# No fused multiply-add where another trial of the stack (its dropout, its predicted relations) changes the code around
# it: a factor of 1 and an added 0 then change no bit.
EXACT = {"enable_fp_fusion": False}
INT32_LIMIT = 2**31  # elements within reach of 32-bit offsets
_LOWEST: tl.constexpr = tl.constexpr(LOWEST)
_LABELS: tl.constexpr = tl.constexpr(LABELS)
_TINY: tl.constexpr = tl.constexpr(1e-30)  # replaces a length of 0, where the difference is 0 too


@triton.jit
def load_halves(table, ids, live, WIDTH: tl.constexpr, HALF: tl.constexpr, PAD: tl.constexpr):  # type: ignore[no-untyped-def]
    """Load rows: table (rows, WIDTH), ids (n,) → two blocks (n, PAD) of float32; zeros where not `live`."""
    c = tl.arange(0, PAD)
    at = table + ids.to(tl.int64)[:, None] * WIDTH + c[None, :]
    inside = live[:, None] & (c[None, :] < HALF)
    first = tl.load(at, mask=inside, other=0.0).to(tl.float32)
    if WIDTH > HALF:
        second = tl.load(at + HALF, mask=inside, other=0.0).to(tl.float32)
    else:
        second = tl.zeros_like(first)
    return first, second


@triton.jit
def store_halves(table, ids, first, second, live, WIDTH: tl.constexpr, HALF: tl.constexpr, PAD: tl.constexpr):  # type: ignore[no-untyped-def]
    c = tl.arange(0, PAD)
    at = table + ids.to(tl.int64)[:, None] * WIDTH + c[None, :]
    inside = live[:, None] & (c[None, :] < HALF)
    tl.store(at, first.to(table.dtype.element_ty), mask=inside)
    if WIDTH > HALF:
        tl.store(at + HALF, second.to(table.dtype.element_ty), mask=inside)


@triton.jit
def round_halves(first, second, ids, low, high, HALF: tl.constexpr, PAD: tl.constexpr):  # type: ignore[no-untyped-def]
    """`storage.round_stochastically` of both blocks, with random bits of rows and columns."""
    c = tl.arange(0, PAD)
    return _rounded(first, random_bits_block(ids, c, low, high)), _rounded(
        second, random_bits_block(ids, c + HALF, low, high)
    )


@triton.jit
def _rounded(x, random):  # type: ignore[no-untyped-def]
    bits = (x.to(tl.uint32, bitcast=True) + (random & 0xFFFF)) & 0xFFFF0000
    return tl.where(x == x, bits.to(tl.float32, bitcast=True), x)


@triton.jit
def compose(kr, ki, rr, ri, COMPOSE: tl.constexpr, BACK: tl.constexpr):  # type: ignore[no-untyped-def]
    """Return the queries of known rows and relation rows."""
    if COMPOSE == "product":
        return kr * rr, ki * ri
    if COMPOSE == "sum":
        if BACK:
            return kr - rr, ki - ri
        return kr + rr, ki + ri
    a, b = _factor(rr, ri, COMPOSE, BACK)
    return kr * a - ki * b, kr * b + ki * a


@triton.jit
def compose_gradient(ur, ui, kr, ki, rr, ri, COMPOSE: tl.constexpr, BACK: tl.constexpr):  # type: ignore[no-untyped-def]
    """Return the gradients of known rows and of relation rows, four blocks, from those of the queries."""
    if COMPOSE == "product":
        return ur * rr, ui * ri, ur * kr, ui * ki
    if COMPOSE == "sum":
        if BACK:
            return ur, ui, -ur, -ui
        return ur, ui, ur, ui
    a, b = _factor(rr, ri, COMPOSE, BACK)
    along, across = ur * kr + ui * ki, ui * kr - ur * ki
    if COMPOSE == "rotation":
        across = across * a - along * b
        along = tl.zeros_like(across)
        if BACK:
            return ur * a + ui * b, ui * a - ur * b, -across, along
        return ur * a + ui * b, ui * a - ur * b, across, along
    if BACK:
        return ur * a + ui * b, ui * a - ur * b, along, -across
    return ur * a + ui * b, ui * a - ur * b, along, across


@triton.jit
def _factor(rr, ri, COMPOSE: tl.constexpr, BACK: tl.constexpr):  # type: ignore[no-untyped-def]
    """Return the complex factor of a known coordinate."""
    if COMPOSE == "rotation":
        a, b = tl.cos(rr), tl.sin(rr)
    else:
        a, b = rr, ri
    if BACK:
        return a, -b
    return a, b


@triton.jit
def pair_score(qr, qi, cr, ci, PAIR: tl.constexpr):  # type: ignore[no-untyped-def]
    """Return (n,) scores of queries and candidates row by row, four blocks (n, PAD)."""
    if PAIR == "dot":
        return tl.sum(qr * cr + qi * ci, 1)
    dr, di = qr - cr, qi - ci
    if PAIR == "l1":
        return -tl.sum(tl.abs(dr) + tl.abs(di), 1)
    if PAIR == "l2":
        return -tl.sqrt_rn(tl.sum(dr * dr + di * di, 1))
    return -tl.sum(tl.sqrt_rn(dr * dr + di * di), 1)


@triton.jit
def pair_gradient(weight, qr, qi, cr, ci, PAIR: tl.constexpr):  # type: ignore[no-untyped-def]
    """Return the gradients of Σ weight·score, weight (n,), for queries and candidates: four blocks."""
    w = weight[:, None]
    if PAIR == "dot":
        return w * cr, w * ci, w * qr, w * qi
    dr, di = qr - cr, qi - ci
    if PAIR == "l1":
        gr, gi = w * _sign(dr), w * _sign(di)
    elif PAIR == "l2":
        length = tl.sqrt_rn(tl.sum(dr * dr + di * di, 1))[:, None]
        share = w / tl.maximum(length, _TINY)
        gr, gi = share * dr, share * di
    else:
        share = w / tl.maximum(tl.sqrt_rn(dr * dr + di * di), _TINY)
        gr, gi = share * dr, share * di
    return -gr, -gi, gr, gi


@triton.jit
def _sign(x):  # type: ignore[no-untyped-def]
    return tl.where(x > 0, 1.0, tl.where(x < 0, -1.0, 0.0))


@triton.jit
def penalty(first, second, kind, weight):  # type: ignore[no-untyped-def]
    """Return (w/p)·Σ |x|^p of each row and its gradient, weight (n,); kind 4 is p = 3 of complex moduli."""
    a, b = tl.abs(first), tl.abs(second)
    modulus = tl.sqrt_rn(first * first + second * second)
    size = tl.where(kind == 1, 1.0 / tl.maximum(a, 1e-30), tl.where(kind == 2, 1.0, tl.where(kind == 3, a, modulus)))
    other = tl.where(kind == 1, 1.0 / tl.maximum(b, 1e-30), tl.where(kind == 2, 1.0, tl.where(kind == 3, b, modulus)))
    gradient, other_gradient = first * size, second * other
    values = tl.sum(first * gradient + second * other_gradient, 1)
    power = tl.minimum(kind, 3).to(tl.float32)
    return weight / power * values, weight[:, None] * gradient, weight[:, None] * other_gradient


@triton.jit
def label_targets(count, n, smoothing):  # type: ignore[no-untyped-def]
    """Return the targets of n candidates, and what a label adds to it, from the numbers of labels (`label_loss`).

    Both are 0 where there is no question."""
    count = count.to(tl.float32)
    low, more = tl.where(smoothing > 0, 1.0 / n, 0.0), 1.0 - smoothing
    whole = tl.where(count > 0, more * count + low * n, float("inf"))
    return low / whole, more / whole


@triton.jit
def label_share(answered, candidates):  # type: ignore[no-untyped-def]
    """Return 1 / the number of labels of the batch, by which penalties of KvsAll are divided."""
    return 1.0 / tl.maximum(tl.load(answered + candidates), 1).to(tl.float32)


@triton.jit
def load_labels(labels, row, start, width, SIZE: tl.constexpr):  # type: ignore[no-untyped-def]
    """Return 1 where one of SIZE candidates, the first at `start`, is an answer, else 0: (rows, SIZE).

    Both are multiples of the bits of a word, which is loaded once and shared by its candidates: a block that is loaded
    for each of them has to change its layout to meet scores, and Triton 3.6 did that wrongly for booleans on a Hopper.
    """
    at = labels + row * (width // _LABELS) + start // _LABELS
    place = tl.arange(0, SIZE)[None, :]
    words = tl.load(at)[:, None]
    for i in tl.static_range(1, SIZE // _LABELS):
        words = tl.where(place // _LABELS == i, tl.load(at + i)[:, None], words)
    return (words >> (place % _LABELS)) & 1


@triton.jit
def batch_masks(row, step, trials, factors, HALF: tl.constexpr, PAD: tl.constexpr, RECIPROCAL: tl.constexpr):  # type: ignore[no-untyped-def]
    """Return dropout factors of heads, tails, relations and inverse relations: eight blocks (n, PAD).

    Every occurrence has its own; without reciprocals both directions use the same relation row.
    """
    low, high = load_key(trials, 2)
    low, high = key_at(low, high, step)
    entity_bound = tl.load(trials + 6).to(tl.uint32, bitcast=True)
    relation_bound = tl.load(trials + 7).to(tl.uint32, bitcast=True)
    entity_scale, relation_scale = tl.load(factors), tl.load(factors + 1)
    hr, hi = _mask(row, low, high, step * 0, entity_bound, entity_scale, HALF, PAD)
    tr, ti = _mask(row, low, high, step * 0 + 1, entity_bound, entity_scale, HALF, PAD)
    rr, ri = _mask(row, low, high, step * 0 + 2, relation_bound, relation_scale, HALF, PAD)
    if RECIPROCAL:
        br, bi = _mask(row, low, high, step * 0 + 3, relation_bound, relation_scale, HALF, PAD)
    else:
        br, bi = rr, ri
    return hr, hi, tr, ti, rr, ri, br, bi


@triton.jit
def candidate_mask(ids, side, step, trials, factors, HALF: tl.constexpr, PAD: tl.constexpr):  # type: ignore[no-untyped-def]
    """Return dropout factors of candidates, two blocks (n, PAD), one per entity, step and side with queries."""
    low, high = load_key(trials, 2)
    low, high = key_at(low, high, step)
    bound = tl.load(trials + 6).to(tl.uint32, bitcast=True)
    number = tl.where(tl.load(trials) > 0, side, 0)
    return _mask(ids, low, high, step * 0 + 4 + number, bound, tl.load(factors), HALF, PAD)


@triton.jit
def _mask(rows, low, high, stream, bound, scale, HALF: tl.constexpr, PAD: tl.constexpr):  # type: ignore[no-untyped-def]
    c = tl.arange(0, PAD)
    low, high = key_at(low, high, stream)
    return dropout_block(rows, c, low, high, bound, scale), dropout_block(rows, c + HALF, low, high, bound, scale)


@triton.jit
def batch_bounds(plan, step, batch):  # type: ignore[no-untyped-def]
    """Return (epoch, first, last): the positions of the step in the epoch's order (`training/batches`)."""
    n, total, per_epoch = tl.load(plan), tl.load(plan + 1), tl.load(plan + 2)
    epoch = step // per_epoch
    first = (step - epoch * per_epoch) * batch
    last = tl.minimum(tl.minimum(first + batch, n), total - epoch * n)
    return epoch, first, last


@triton.jit
def first_candidate(side, first_tail, first_relation):  # type: ignore[no-untyped-def]
    """Return where the candidates of a side start."""
    return tl.where(side >= 2, first_relation, side * first_tail)


@triton.jit
def load_count(trials, side):  # type: ignore[no-untyped-def]
    """Return the number of candidates of a side; both directions of relations have the same."""
    return tl.load(trials + tl.minimum(side, 2))


@triton.jit
def side_at(place, first_tail, first_relation):  # type: ignore[no-untyped-def]
    """Return the side of the candidate at this position; the first, if it is one of two sides."""
    return tl.where(place >= first_relation, 2, tl.where(place >= first_tail, 1, 0))


@triton.jit
def side_queries(side, BATCH: tl.constexpr, SIDES: tl.constexpr):  # type: ignore[no-untyped-def]
    """Return how many queries are compared with the candidates that start at `first_candidate(side)`."""
    if SIDES == 4:  # those of inverse relations follow
        return tl.where(side == 2, 2 * BATCH, BATCH)
    return BATCH


@triton.jit
def program_part(trials, splits):  # type: ignore[no-untyped-def]
    """Return (trial, side, split, begin, end): the candidates of a program with ids (tile, side and split, trial)."""
    part, trial = tl.program_id(1), tl.program_id(2).to(tl.int64)
    side, split = part // splits, part % splits
    trials += trial * PER_TRIAL
    n, chunk = load_count(trials, side), tl.load(trials + 3)
    return trial, side, split, split * chunk, tl.minimum(split * chunk + chunk, n)


@triton.jit
def advance_clock(clock):  # type: ignore[no-untyped-def]
    """Advance the step counter, in the first program only."""
    if (tl.program_id(0) == 0) & (tl.program_id(1) == 0) & (tl.program_id(2) == 0):
        tl.store(clock, tl.load(clock) + 1)


@triton.jit
def initial_maximum(positive, side, factors, ADVERSARIAL: tl.constexpr):  # type: ignore[no-untyped-def]
    """Return (top, alpha, gamma, alone): the start of a row's running maximum, factor and offset of the scores.

    alone: whether the negatives are weighted without the positive (trials with the softmax loss have α below 0).
    """
    top = positive * LOG2E
    if ADVERSARIAL:
        alpha = tl.load(factors + 6)
        alone = (alpha >= 0) & (side < 2)
        return tl.where(alone, _LOWEST, top), tl.where(alone, alpha, 1.0), tl.load(factors + 5), alone
    return top, 1.0, 0.0, False


@triton.jit
def adversarial_factor(score, alone, gamma):  # type: ignore[no-untyped-def]
    """Return the factor of a negative's weight in the gradient of the self-adversarial loss; else 1."""
    return tl.where(alone, tl.sigmoid(score + gamma), 1.0)


@triton.jit
def softplus(x):  # type: ignore[no-untyped-def]
    return tl.maximum(x, 0.0) + tl.log2(1.0 + tl.exp2(-tl.abs(x) * LOG2E)) * LN2


@triton.jit
def merge_parts(  # type: ignore[no-untyped-def]
    at, row, side, trials, factors, positive, maxima, sums, costs, splits, BATCH: tl.constexpr,
    ADVERSARIAL: tl.constexpr,
):  # fmt: skip
    """Merge the parts of a side in order; at = trial·S + side → (top, bound, inverse, for_positive, loss), (n,)
    each.

    top: the highest exponent. bound: the logarithm in base 2 that normalizes weights. inverse: 1 / Σ exp2(exponent −
    top). for_positive: the gradient of the positive's score.
    """
    truth = tl.load(positive + at * BATCH + row)
    top, _, gamma, alone = initial_maximum(truth, side, factors, ADVERSARIAL)
    n = load_count(trials, side)
    used = tl.cdiv(n, tl.load(trials + 3))
    here = at * splits * BATCH + row
    own = top
    for split in range(used):
        top = tl.maximum(top, tl.load(maxima + here + split * BATCH))
    others, cost = tl.zeros_like(truth), tl.zeros_like(truth)
    for split in range(used):
        part = tl.exp2(tl.load(maxima + here + split * BATCH) - top)
        others += part * tl.load(sums + here + split * BATCH)
        if ADVERSARIAL:
            cost += part * tl.load(costs + here + split * BATCH)
    bound, inverse, for_positive, loss = normalize(top, own, others, cost, truth, n, gamma, alone, ADVERSARIAL)
    return top, bound, inverse, for_positive, loss


@triton.jit
def normalize(top, own, others, cost, truth, n, gamma, alone, ADVERSARIAL: tl.constexpr):  # type: ignore[no-untyped-def]
    """Return (bound, inverse, for_positive, loss) of merged rows, as in `merge_parts`.

    own: exponent of the positive, or the lowest if it has no part. others: Σ exp2(exponent − top) of the negatives.
    """
    total = tl.exp2(own - top) + others
    bound, inverse, for_positive = top + tl.log2(total), 1.0 / total, -others / total
    loss = (bound - own) * LN2
    if ADVERSARIAL:
        asked = n > 0
        share = tl.where(others > 0, 1.0 / tl.where(others > 0, others, 1.0), 0.0)
        share = tl.where(others == others, share, others)  # NaN stays NaN
        away = tl.where(asked, softplus(-truth - gamma), 0.0) + cost * share
        bound = tl.where(alone, tl.where(others > 0, top + tl.log2(tl.maximum(others, 1e-38)), float("inf")), bound)
        inverse, loss = tl.where(alone, share, inverse), tl.where(alone, away, loss)
        for_positive = tl.where(alone, tl.where(asked, tl.sigmoid(truth + gamma) - 1.0, 0.0), for_positive)
    return bound, inverse, for_positive, loss
