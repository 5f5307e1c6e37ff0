"""Losses with hand-written gradients with respect to the scores, and penalties on the size of rows.

For one side, `positive` (B,) holds the scores of the true answers and `negative` (B, N) those of the others, −∞ where
an entry is no negative (the true answer itself, or a known fact). A loss returns its sum over the batch (a scalar
tensor) and the gradients (B,) and (B, N) of that sum, all times `scale` (1 / B in a step).
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from grash.kernels.softmax_loss import LossAndGradients, softmax_loss
from grash.training.config import Penalty, TrainConfig


def side_loss(
    positive: Tensor, negative: Tensor, config: TrainConfig, *, scale: float = 1.0, overwrite: bool = False
) -> LossAndGradients:
    """Return the configured loss and its gradients; `overwrite`: the gradient may reuse the memory of `negative`."""
    if positive.shape[0] != negative.shape[0]:
        raise ValueError(f"positive {tuple(positive.shape)} and negative {tuple(negative.shape)} differ in B")
    if config.loss == "softmax":
        return softmax_loss(positive, negative, scale=scale, overwrite=overwrite)
    if config.loss == "bce":
        graded = bce(positive, negative, config.offset)
    elif config.loss == "margin":
        graded = margin(positive, negative, config.margin)
    else:
        graded = self_adversarial(positive, negative, config.margin, config.temperature)
    loss, for_positive, for_negative = graded
    return loss * scale, for_positive * scale, for_negative.mul_(scale)


def bce(positive: Tensor, negative: Tensor, offset: float) -> LossAndGradients:
    """Binary cross-entropy of σ(score + offset), summed over all entries."""
    p, n = positive + offset, negative + offset
    loss = F.softplus(-p).sum() + F.softplus(n).sum()
    return loss, torch.sigmoid(p) - 1, torch.sigmoid(n)


def margin(positive: Tensor, negative: Tensor, gap: float) -> LossAndGradients:
    """Σ max(0, gap − positive + negative)."""
    short = (gap - positive[:, None] + negative).clamp_min(0)
    active = (short > 0).to(positive.dtype)
    return short.sum(), -active.sum(1), active


def self_adversarial(positive: Tensor, negative: Tensor, gamma: float, alpha: float) -> LossAndGradients:
    """−log σ(γ + positive) − Σ w·log σ(−γ − negative), w = softmax(α·negative), not differentiated
    (Sun et al., 2019)."""
    weights = torch.softmax(scaled_scores(negative, alpha), 1).nan_to_num(0.0)
    n = negative + gamma
    loss = F.softplus(-positive - gamma).sum() + (weights * F.softplus(n)).sum()
    return loss, torch.sigmoid(positive + gamma) - 1, weights * torch.sigmoid(n)


def scaled_scores(negative: Tensor, alpha: float) -> Tensor:
    """Return α·negative, −∞ where negative is: α may be 0, and 0·∞ is NaN."""
    absent = negative == -torch.inf
    return (alpha * negative).masked_fill_(absent, -torch.inf)


def label_loss(scores: Tensor, labels: Tensor, config: TrainConfig) -> tuple[Tensor, Tensor]:
    """KvsAll: scores (B, E) against labels (B, E) of 0 and 1 → loss summed over the batch, gradient (B, E).

    Smoothed labels are (1 − s)·label + 1/E. softmax compares with the labels normalized to sum 1 and subtracts
    their entropy (Kullback-Leibler divergence); bce compares entry by entry.
    """
    labels = smooth_labels(labels, config.label_smoothing, labels.shape[1])
    if config.loss == "bce":
        return label_bce(scores, labels, config.offset)
    return label_divergence(torch.log_softmax(scores, 1), labels / labels.sum(1, keepdim=True))


def smooth_labels(labels: Tensor, smoothing: float, n_entities: int) -> Tensor:
    return (1 - smoothing) * labels + 1.0 / n_entities if smoothing else labels


def label_bce(scores: Tensor, labels: Tensor, offset: float) -> tuple[Tensor, Tensor]:
    logits = scores + offset
    loss = F.binary_cross_entropy_with_logits(logits, labels, reduction="sum")
    return loss, torch.sigmoid(logits) - labels


def label_divergence(log_probabilities: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
    loss = torch.xlogy(target, target).sum() - (target * log_probabilities).sum()
    return loss, log_probabilities.exp() - target


POWERS: dict[Penalty, int | None] = {  # of the penalties on rows; None: none, or not on rows (`add_dura`)
    "none": None, "l1": 1, "l2": 2, "l3": 3, "n3": 3, "dura": None,
}  # fmt: skip


def power_penalty(
    rows: Tensor, weight: float | Tensor, kind: Penalty, *, moduli: bool, counts: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """rows (n, D) → (w/p)·Σ |x|^p as a scalar, and its gradient (n, D); row i counts counts[i] times.

    With `moduli`, n3 is (w/3)·Σ |z|³ over complex moduli. A penalty of the batch's rows has w = weight / B."""
    p = POWERS[kind]
    assert p is not None, f"{kind} is no penalty on rows"
    if kind == "n3" and moduli:
        half = rows.shape[-1] // 2
        size = (rows[..., :half].square() + rows[..., half:].square()).sqrt()
        gradient = weight * rows * torch.cat([size, size], -1)
    else:
        size = rows.abs()
        gradient = weight * rows.sign() if p == 1 else weight * rows * size.pow(p - 2)
    values = size.pow(p).sum(-1)
    if counts is not None:
        values, gradient = values * counts, gradient * counts[:, None]
    return (weight / p) * values.sum(), gradient


def complex_rows(config: TrainConfig, table: str) -> bool:
    """Return whether this table's rows hold real parts, then imaginary parts."""
    return config.model == "complex" or (config.model == "rotate" and table == "entity")
