"""QuatE (Zhang et al., 2019): (h ⊗ r/|r|) · t over quaternions; rows in quarters: real parts, then i, j, k."""

from __future__ import annotations

import torch
from torch import Tensor

from grash.models.autograd import AutogradModel
from grash.models.base import Side

_SMALLEST = 1e-12  # length by which a relation of 0 is divided


class QuatE(AutogradModel):
    name = "quate"
    dim_multiple = 4
    additive = True

    def query(self, known: Tensor, relation: Tensor, side: Side) -> Tensor:
        """A turn keeps lengths, so a head query turns the tail back, by the conjugate of the relation."""
        a, b, c, d = known.chunk(4, -1)
        p, u, v, w = _unit(relation)
        if side == "head":
            u, v, w = -u, -v, -w
        return torch.cat(
            [
                a * p - b * u - c * v - d * w,
                a * u + b * p + c * w - d * v,
                a * v - b * w + c * p + d * u,
                a * w + b * v - c * u + d * p,
            ],
            -1,
        )


def _unit(rows: Tensor) -> tuple[Tensor, ...]:
    """Return the four parts of quaternions of length 1."""
    parts = rows.unflatten(-1, (4, -1))
    length = parts.square().sum(-2, keepdim=True).clamp_min(_SMALLEST**2).sqrt()
    return (parts / length).unbind(-2)
