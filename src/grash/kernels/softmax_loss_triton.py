"""Triton form of `softmax_loss`, and the loss of KvsAll without a matrix of labels; a program per row of scores.

Bytes for B × N scores: 12·B·N (read twice, the gradient written once); the second reading finds most in the cache. The
answers of a question are a run of a list, so labels cost a few bytes per answer instead of several passes over B × E.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

_BLOCK = 4096  # scores of a row that are read at once
_ANSWERS = 128  # answers that are read at once


def softmax_loss(positive: Tensor, negative: Tensor, *, scale: float, overwrite: bool) -> tuple[Tensor, Tensor, Tensor]:
    """`softmax_loss.softmax_loss` on a CUDA device."""
    positive, negative = positive.contiguous(), _by_rows(negative)
    for_negative = negative if overwrite else torch.empty_like(negative)
    for_positive, losses = torch.empty_like(positive), torch.empty_like(positive)
    if len(positive):
        _softmax[(len(positive),)](
            positive, negative, for_positive, for_negative, losses, negative.shape[1], negative.stride(0),
            for_negative.stride(0), scale, **_block(negative),
        )  # fmt: skip
    return losses.sum() * scale, for_positive, for_negative


def label_loss(
    scores: Tensor, first: Tensor, count: Tensor, answers: Tensor, *,
    smoothing: float, offset: float, bce: bool, scale: float,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Return the loss of KvsAll, summed and times `scale`, and its gradient, which overwrites the scores (B, E).

    Question i has the labels answers[first[i] : first[i] + count[i]], which are distinct; first, count (B,) int64,
    answers int32. See `training/losses.label_loss`."""
    losses, scores = torch.empty(len(scores), device=scores.device), _by_rows(scores)
    if len(scores):
        _labels[(len(scores),)](
            scores, first, count, answers, losses, scores.shape[1], scores.stride(0), smoothing, offset, scale,
            BCE=bce, ANSWERS=_ANSWERS, **_block(scores),
        )  # fmt: skip
    return losses.sum() * scale, scores


def answer_counts(first: Tensor, count: Tensor, answers: Tensor, n_entities: int) -> Tensor:
    """Return how often each entity is an answer of these questions: (E,) float32."""
    counts = torch.zeros(n_entities, dtype=torch.int32, device=answers.device)
    if len(first):
        _count[(len(first),)](first, count, answers, counts, ANSWERS=_ANSWERS)
    return counts.to(torch.float32)


def _by_rows(scores: Tensor) -> Tensor:
    """Return scores whose rows are contiguous; there may be padding between them."""
    return scores if scores.stride(1) == 1 else scores.contiguous()


def _block(scores: Tensor) -> dict[str, int]:
    block = min(_BLOCK, max(128, triton.next_power_of_2(scores.shape[1])))
    return {"BLOCK": block, "num_warps": 8 if block >= 2048 else 4}


@triton.jit(do_not_specialize=["n"])
def _softmax(  # type: ignore[no-untyped-def]
    positive, negative, for_positive, for_negative, losses, n, stride, other_stride, scale, BLOCK: tl.constexpr
):
    i = tl.program_id(0).to(tl.int64)
    truth = tl.load(positive + i)
    high, total, _ = _row_sums(negative + i * stride, truth, n, BLOCK)
    own = tl.exp(truth - high)
    share = scale / (total + own)
    for begin in range(0, n, BLOCK):
        at = begin + tl.arange(0, BLOCK)
        x = tl.load(negative + i * stride + at, mask=at < n, other=float("-inf"))
        tl.store(for_negative + i * other_stride + at, tl.exp(x - high) * share, mask=at < n)
    tl.store(for_positive + i, -total * share)
    tl.store(losses + i, tl.log(total + own) + (high - truth))


@triton.jit
def _row_sums(row, least, n, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    """Return (high, Σ e^(x − high), Σ x) of a row of n scores; high is its maximum, at least `least`."""
    high = tl.zeros((BLOCK,), tl.float32) + least
    total, plain = tl.zeros((BLOCK,), tl.float32), tl.zeros((BLOCK,), tl.float32)
    for begin in range(0, n, BLOCK):
        at = begin + tl.arange(0, BLOCK)
        x = tl.load(row + at, mask=at < n, other=float("-inf"))
        now = tl.maximum(high, x)
        total = total * tl.exp(high - now) + tl.exp(x - now)
        plain += tl.where(at < n, x, 0.0)
        high = now
    top = tl.max(high, 0)
    return top, tl.sum(total * tl.exp(high - top), 0), tl.sum(plain, 0)


@triton.jit(do_not_specialize=["n"])
def _labels(  # type: ignore[no-untyped-def]
    scores, first, count, answers, losses, n, stride, smoothing, offset, scale,
    BCE: tl.constexpr, ANSWERS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    i = tl.program_id(0).to(tl.int64)
    row = scores + i * stride
    length = tl.load(count + i)
    answers += tl.load(first + i)
    size = length.to(tl.float32)
    # the targets of an entity that is no answer, and what an answer has more
    low = tl.where(smoothing > 0, 1.0 / n, 0.0)
    more = 1.0 - smoothing
    hits = tl.zeros((ANSWERS,), tl.float32)  # Σ of the answers' scores
    for begin in range(0, length, ANSWERS):
        at = begin + tl.arange(0, ANSWERS)
        place = tl.load(answers + at, mask=at < length, other=0)
        hits += tl.load(row + place, mask=at < length, other=0.0)
    hit = tl.sum(hits, 0)
    if BCE:
        total, plain = tl.zeros((BLOCK,), tl.float32), tl.zeros((BLOCK,), tl.float32)
        for begin in range(0, n, BLOCK):
            at = begin + tl.arange(0, BLOCK)
            x = tl.load(row + at, mask=at < n, other=0.0) + offset
            soft = tl.maximum(x, 0.0) + tl.log(1.0 + tl.exp(-tl.abs(x)))
            total += tl.where(at < n, soft, 0.0)
            plain += tl.where(at < n, x, 0.0)
        loss = tl.sum(total, 0) - low * tl.sum(plain, 0) - more * (hit + offset * size)
        high, normalizer = 0.0, 1.0
    else:
        high, normalizer, plain_sum = _row_sums(row, tl.load(row), n, BLOCK)
        whole = more * size + low * n  # to which the targets are normalized
        low, more = low / whole, more / whole
        both = low + more
        log_sum = tl.log(normalizer) + high
        entropy = size * both * tl.log(both) + tl.where(low > 0, (n - size) * low * tl.log(tl.maximum(low, 1e-30)), 0.0)
        loss = entropy - low * (plain_sum - n * log_sum) - more * (hit - size * log_sum)
    tl.store(losses + i, loss)
    tl.debug_barrier()  # all of the row has been read
    for begin in range(0, n, BLOCK):
        at = begin + tl.arange(0, BLOCK)
        x = tl.load(row + at, mask=at < n, other=0.0)
        tl.store(row + at, (_probability(x, offset, high, normalizer, BCE) - low) * scale, mask=at < n)
    tl.debug_barrier()  # then the answers, which other threads have just written
    for begin in range(0, length, ANSWERS):
        at = begin + tl.arange(0, ANSWERS)
        place = tl.load(answers + at, mask=at < length, other=0)
        x = tl.load(row + place, mask=at < length, other=0.0)
        tl.store(row + place, x - more * scale, mask=at < length)


@triton.jit
def _probability(x, offset, high, normalizer, BCE: tl.constexpr):  # type: ignore[no-untyped-def]
    if BCE:
        return 1.0 / (1.0 + tl.exp(-(x + offset)))
    return tl.exp(x - high) / normalizer


@triton.jit
def _count(first, count, answers, counts, ANSWERS: tl.constexpr):  # type: ignore[no-untyped-def]
    """Add integers atomically: their sum does not depend on the order."""
    i = tl.program_id(0).to(tl.int64)
    length = tl.load(count + i)
    answers += tl.load(first + i)
    for begin in range(0, length, ANSWERS):
        at = begin + tl.arange(0, ANSWERS)
        place = tl.load(answers + at, mask=at < length, other=0)
        tl.atomic_add(counts + place, 1, mask=at < length)
