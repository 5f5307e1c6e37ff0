"""What the step's Triton kernels share: the positives of a step, a program's part of a slot's candidates, and how the
parts of a softmax become a loss.

A slot is 0 (heads), 1 (tails) or 2 (relations, by the softmax whatever the loss). Exponents are kept in base 2.
    softmax            log Σ exp(score) − positive, the positive among the scores
    self-adversarial   softplus(−γ − positive) + Σ w·softplus(γ + score), w = softmax(α·score) without the positive
"""

from __future__ import annotations

import triton
import triton.language as tl

from grash.kernels.step import FLOATS, INTS

LOG2E: tl.constexpr = tl.constexpr(1.4426950408889634)
LN2: tl.constexpr = tl.constexpr(0.6931471805599453)
PER_TRIAL: tl.constexpr = tl.constexpr(INTS)
FACTORS: tl.constexpr = tl.constexpr(FLOATS)
# No product is fused with a sum where a neighbour in the stack (its dropout, its predicted relations) changes the code
# around it: a factor of 1 and an added 0 then change no bit.
EXACT = {"enable_fp_fusion": False}
REACH = 2**31  # elements that an offset of 32 bits reaches
_LOWEST: tl.constexpr = tl.constexpr(-1e30)  # below every exponent, and finite


@triton.jit
def bounds(plan, step, batch):  # type: ignore[no-untyped-def]
    """(epoch, first, last): the places in the epoch's order that the step sees (`Plan.places`)."""
    n, total, per_epoch = tl.load(plan), tl.load(plan + 1), tl.load(plan + 2)
    epoch = step // per_epoch
    first = (step - epoch * per_epoch) * batch
    last = tl.minimum(tl.minimum(first + batch, n), total - epoch * n)
    return epoch, first, last


@triton.jit
def beginning(slot, first_tail, first_relation):  # type: ignore[no-untyped-def]
    """Where a slot's candidates begin."""
    return tl.where(slot == 2, first_relation, slot * first_tail)


@triton.jit
def slot_at(place, first_tail, first_relation):  # type: ignore[no-untyped-def]
    """The slot of the candidate at this place."""
    return tl.where(place >= first_relation, 2, tl.where(place >= first_tail, 1, 0))


@triton.jit
def own_part(trials, splits):  # type: ignore[no-untyped-def]
    """(trial, slot, split, begin, end) of a program with ids (tile, slot and split, trial): its candidates."""
    part, trial = tl.program_id(1), tl.program_id(2).to(tl.int64)
    slot, split = part // splits, part % splits
    n, chunk = tl.load(trials + trial * PER_TRIAL + slot), tl.load(trials + trial * PER_TRIAL + 3)
    return trial, slot, split, split * chunk, tl.minimum(split * chunk + chunk, n)


@triton.jit
def move_on(clock):  # type: ignore[no-untyped-def]
    """The next step, by the first of all programs."""
    if (tl.program_id(0) == 0) & (tl.program_id(1) == 0) & (tl.program_id(2) == 0):
        tl.store(clock, tl.load(clock) + 1)


@triton.jit
def opening(positive, slot, factors, ADVERSARIAL: tl.constexpr):  # type: ignore[no-untyped-def]
    """(top, alpha, gamma, alone): the exponent from which a row's maximum starts, the scores' factor, what is added to
    them, and whether the negatives are weighed without the positive (a trial by the softmax has α below 0)."""
    top = positive * LOG2E
    if ADVERSARIAL:
        alpha = tl.load(factors + 6)
        alone = (alpha >= 0) & (slot < 2)
        return tl.where(alone, _LOWEST, top), tl.where(alone, alpha, 1.0), tl.load(factors + 5), alone
    return top, 1.0, 0.0, False


@triton.jit
def own_shares(score, alone, gamma):  # type: ignore[no-untyped-def]
    """Of the self-adversarial loss: what a negative's weight is multiplied with in the gradient; else 1."""
    return tl.where(alone, tl.sigmoid(score + gamma), 1.0)


@triton.jit
def softplus(x):  # type: ignore[no-untyped-def]
    return tl.maximum(x, 0.0) + tl.log2(1.0 + tl.exp2(-tl.abs(x) * LOG2E)) * LN2


@triton.jit
def joined(  # type: ignore[no-untyped-def]
    at, row, slot, trials, factors, positive, maxima, sums, costs, splits, BATCH: tl.constexpr,
    ADVERSARIAL: tl.constexpr,
):  # fmt: skip
    """The parts of slot `at` = trial·S + slot in their order → (top, bound, inverse, pull, loss), each (n,): the
    highest exponent, the logarithm in base 2 by which weights are normalised, 1 / Σ exp2(exponent − top), the gradient
    of the positive's score, the loss."""
    truth = tl.load(positive + at * BATCH + row)
    top, _, gamma, alone = opening(truth, slot, factors, ADVERSARIAL)
    n = tl.load(trials + slot)
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
    total = tl.exp2(own - top) + others
    bound, inverse, pull = top + tl.log2(total), 1.0 / total, -others / total
    loss = (bound - own) * LN2
    if ADVERSARIAL:
        asked = n > 0
        share = tl.where(others > 0, 1.0 / tl.where(others > 0, others, 1.0), 0.0)
        share = tl.where(others == others, share, others)  # a trial that has diverged stays so
        away = tl.where(asked, softplus(-truth - gamma), 0.0) + cost * share
        bound = tl.where(alone, tl.where(others > 0, top + tl.log2(tl.maximum(others, 1e-38)), float("inf")), bound)
        inverse, loss = tl.where(alone, share, inverse), tl.where(alone, away, loss)
        pull = tl.where(alone, tl.where(asked, tl.sigmoid(truth + gamma) - 1.0, 0.0), pull)
    return top, bound, inverse, pull, loss
