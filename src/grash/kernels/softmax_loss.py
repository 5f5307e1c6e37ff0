"""Cross-entropy of a positive against its negatives, with its gradient, in one pass over the scores.

Bytes for B × N scores: 8·B·N (read once, gradient written once); a row stays in the cache between its maximum, its
exponentials and their scaling. The reference makes five passes. The loop has its own exponential, a polynomial with a
relative error below 2·10⁻⁷ (tested), since numba without a vector library calls the scalar one.
"""

from __future__ import annotations

import numba
import numpy as np
import torch
from torch import Tensor

from grash.kernels.device import use_torch_threads, use_triton, why_no_triton

LossAndGradients = tuple[Tensor, Tensor, Tensor]  # loss, gradients (B,) of positives and (B, N) of negatives

_LEAST = np.int32(-0x7F800001)  # `_ordered` of −∞
_LANES = 16  # sums of a row side by side: the compiler may not reorder one (docs/decisions/0038), but vectorizes these


def softmax_loss(
    positive: Tensor, negative: Tensor, *, scale: float = 1.0, overwrite: bool = False
) -> LossAndGradients:
    """Return Σ loss and its gradients, times `scale`, for positive (B,) and negative (B, N), −∞ if there is none.

    With `overwrite`, the gradient may overwrite `negative`, which halves the bytes in the cache.
    """
    if runs_on_triton(positive):
        from grash.kernels import softmax_loss_triton

        return softmax_loss_triton.softmax_loss(positive, negative, scale=scale, overwrite=overwrite)
    if positive.device.type != "cpu" or positive.dtype != torch.float32:
        return softmax_loss_reference(positive, negative, scale=scale)
    use_torch_threads()
    positive, for_negative = positive.contiguous(), negative.contiguous()
    if for_negative is negative and not overwrite:
        for_negative = negative.clone()
    for_positive = torch.empty_like(positive)
    arrays = [x.numpy() for x in (positive, for_positive, for_negative)]
    loss = _softmax_loop(*arrays, np.float32(scale))  # type: ignore[call-arg]
    return torch.from_numpy(np.array(loss, np.float32)), for_positive, for_negative


def runs_on_triton(scores: Tensor) -> bool:
    """Return whether `softmax_loss_triton` computes the losses of these scores."""
    if scores.device.type == "cpu" or scores.dtype != torch.float32:
        return False
    return use_triton(why_no_triton(scores.device), scores.device, what="the kernels of losses")


def mask_scores(scores: Tensor, rows: Tensor, columns: Tensor, kept: Tensor) -> None:
    """Set scores[rows[k], columns[k]] to −∞ where kept[k] is False; scores (B, N) on a CPU, in place."""
    _mask_loop(*(x.numpy() for x in (scores, rows, columns, kept)))


def softmax_loss_reference(positive: Tensor, negative: Tensor, *, scale: float = 1.0) -> LossAndGradients:
    """Reference of `softmax_loss`."""
    total = torch.logaddexp(positive, torch.logsumexp(negative, 1))
    for_negative = torch.exp(negative - total[:, None]).mul_(scale)
    return (total - positive).sum() * scale, torch.expm1(positive - total) * scale, for_negative


@numba.njit(cache=True, inline="always")
def _exp(x):  # type: ignore[no-untyped-def]
    """Return e^x for x ≤ 0, and 0 below −87: 2^n · e^f with |f| ≤ ½·ln 2 and a Taylor polynomial of degree 7."""
    safe = max(x, np.float32(-87.0))
    n = np.floor(safe * np.float32(1.4426950408889634) + np.float32(0.5))
    f = (safe - n * np.float32(0.693359375)) + n * np.float32(2.12194440e-4)  # ln 2 in two parts
    p = np.float32(1 / 5040)
    p = p * f + np.float32(1 / 720)
    p = p * f + np.float32(1 / 120)
    p = p * f + np.float32(1 / 24)
    p = p * f + np.float32(1 / 6)
    p = p * f + np.float32(0.5)
    p = p * f + np.float32(1.0)
    p = p * f + np.float32(1.0)
    power = np.int32((np.int32(n) + np.int32(127)) << np.int32(23)).view(np.float32)
    return p * power * np.float32(x >= np.float32(-87.0))


@numba.njit(cache=True, inline="always")
def _ordered(bits):  # type: ignore[no-untyped-def]
    """Map the bits of a float32 to an integer with the order of the floats, NaNs beyond the infinities.

    It is its own inverse. LLVM vectorizes a maximum of integers, but not of floats, where it must check for NaNs.
    """
    return np.int32(bits ^ ((bits >> np.int32(31)) & np.int32(0x7FFFFFFF)))


@numba.njit(cache=True, parallel=True, fastmath={"contract", "nsz"}, error_model="numpy")
def _softmax_loop(positive, for_positive, x, scale):  # type: ignore[no-untyped-def]
    """Return the loss, summed in the order of the rows for any number of threads.

    x: the scores, overwritten by their gradient, since LLVM does not vectorize over two arrays that may overlap.
    """
    losses = np.empty(positive.shape[0], np.float32)
    n = x.shape[1]
    truths, others_bits = positive.view(np.int32), x.view(np.int32)
    for i in numba.prange(x.shape[0]):
        low = top = _ordered(truths[i])
        for j in range(n):
            place = _ordered(others_bits[i, j])
            low, top = min(low, place), max(top, place)
        high = np.int32(_ordered(top)).view(np.float32)
        sums, even = np.zeros(_LANES, np.float32), n - n % _LANES
        for start in range(0, even, _LANES):
            for k in range(_LANES):
                grown = _exp(x[i, start + k] - high)
                x[i, start + k] = grown
                sums[k] += grown
        for k in range(n - even):
            grown = _exp(x[i, even + k] - high)
            x[i, even + k] = grown
            sums[k] += grown
        others = np.float32(0.0)
        for k in range(_LANES):
            others += sums[k]
        total = _exp(positive[i] - high) + others
        if low < _LEAST or not np.isfinite(high):
            total = np.float32(np.nan)
        share = scale / total
        for j in range(n):
            x[i, j] *= share
        for_positive[i] = -others * share
        losses[i] = np.log(total) + (high - positive[i])
    loss = 0.0
    for i in range(losses.shape[0]):
        loss += losses[i]
    return loss * scale


@numba.njit(cache=True)
def _mask_loop(scores, rows, columns, kept):  # type: ignore[no-untyped-def]
    for k in range(rows.shape[0]):
        if not kept[k]:
            scores[rows[k], columns[k]] = -np.inf
