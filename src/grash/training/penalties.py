"""Penalties on the size of rows, with their gradients.

weighted (follows the batch; B positives, an entity once as a head and once as a tail):
    l1, l2, l3   (w/p)·Σ |x|^p / B
    n3           (w/3)·Σ |z|³ / B, over complex moduli for ComplEx and RotatE's entities, else |x|³
    dura         w·Σ (‖query‖² + ‖answer‖²) / B over the asked slots (Zhang et al., 2020); in `gradients.py`
unweighted (the whole table, every step): (w/p)·Σ |x|^p, not divided.
"""

from __future__ import annotations

import torch
from torch import Tensor

from grash.training.config import TrainConfig

_POWERS = {"l1": 1, "l2": 2, "l3": 3, "n3": 3}


def power_penalty(
    rows: Tensor, weight: float, kind: str, *, moduli: bool, counts: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """rows (n, D) → (w/p)·Σ |x|^p as a scalar, and its gradient (n, D); row i counts counts[i] times."""
    p = _POWERS[kind]
    if kind == "n3" and moduli:
        size = _sizes(rows)
        gradient = weight * rows * torch.cat([size, size], -1)
    else:
        size = rows.abs()
        gradient = weight * rows.sign() if p == 1 else weight * rows * size.pow(p - 2)
    values = size.pow(p).sum(-1)
    if counts is not None:
        values, gradient = values * counts, gradient * counts[:, None]
    return (weight / p) * values.sum(), gradient


def complex_rows(config: TrainConfig, table: str) -> bool:
    """Whether this table's rows are complex numbers in halves."""
    return config.model == "complex" or (config.model == "rotate" and table == "entity")


def _sizes(rows: Tensor) -> Tensor:
    half = rows.shape[-1] // 2
    return (rows[..., :half].square() + rows[..., half:].square()).sqrt()
