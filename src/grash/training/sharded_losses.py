"""The losses of `losses`, where every rank has scored some of the negatives.

    negative (B, n)   scores of this rank's negatives, −∞ where an entry is none
    reach (B,)        log Σ exp of the negatives of all ranks, where the loss needs it (`reach_of`, `joint_reach`);
                      float64 on a CPU (`sharded_company.wide`)
A loss falls into what each rank adds for its negatives, and what one of them adds for the positives.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from grash.training.config import TrainConfig
from grash.training.sharded_company import wide

_TOGETHER = 1 << 22  # scores that are summed at a time


def reach_of(negative: Tensor, config: TrainConfig) -> Tensor | None:
    """(B,) of this rank's negatives; None where the loss looks at each alone."""
    if config.loss == "softmax":
        return wide_logsumexp(negative)
    if config.loss == "self_adversarial":
        return wide_logsumexp(_sharpened(negative, config))
    return None


def wide_logsumexp(scores: Tensor) -> Tensor:
    """(B, n) → (B,), some rows at a time, since there may be as many columns as entities."""
    rows = max(1, _TOGETHER // max(1, scores.shape[1]))
    return torch.cat([torch.logsumexp(wide(part), 1) for part in scores.split(rows)])


def joint_reach(reaches: Tensor) -> Tensor:
    """(size, B) of all ranks → (B,)."""
    return torch.logsumexp(reaches, 0)


def negative_part(
    positive: Tensor, negative: Tensor, reach: Tensor | None, config: TrainConfig
) -> tuple[Tensor, Tensor, Tensor]:
    """(loss, for_positive (B,), for_negative (B, n)): what this rank's negatives add to each."""
    nothing = torch.zeros_like(positive)
    if config.loss == "softmax":
        assert reach is not None
        return nothing.sum(), nothing, (negative - _total(positive, reach)[:, None]).exp_()
    if config.loss == "bce":
        shifted = negative + config.offset
        return F.softplus(shifted).sum(), nothing, torch.sigmoid(shifted)
    if config.loss == "margin":
        short = (config.margin - positive[:, None] + negative).clamp_min(0)
        active = (short > 0).to(positive.dtype)
        return short.sum(), -active.sum(1), active
    assert reach is not None
    # a question without negatives has the reach −∞, and −∞ + ∞ is no number
    weights = torch.exp(_sharpened(negative, config) - reach.to(negative.dtype)[:, None]).nan_to_num(0.0)
    shifted = negative + config.margin
    return (weights * F.softplus(shifted)).sum(), nothing, weights * torch.sigmoid(shifted)


def positive_part(positive: Tensor, reach: Tensor | None, config: TrainConfig) -> tuple[Tensor, Tensor]:
    """(loss, for_positive (B,)): what the positives add, beside what each rank's negatives say about them."""
    if config.loss == "softmax":
        assert reach is not None
        total = _total(positive, reach)
        return (total - positive).sum(), torch.expm1(positive - total)
    if config.loss == "margin":
        return positive.new_zeros(()), torch.zeros_like(positive)
    shifted = positive + (config.offset if config.loss == "bce" else config.margin)
    return F.softplus(-shifted).sum(), torch.sigmoid(shifted) - 1


def _total(positive: Tensor, reach: Tensor) -> Tensor:
    """(B,) log Σ exp of a positive and its negatives."""
    return torch.logaddexp(positive.to(reach.dtype), reach).to(positive.dtype)


def _sharpened(negative: Tensor, config: TrainConfig) -> Tensor:
    absent = negative == -torch.inf  # the temperature may be 0, and 0·∞ is no number
    return (config.temperature * negative).masked_fill_(absent, -torch.inf)
