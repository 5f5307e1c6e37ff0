"""SimplE (Kazemi and Poole, 2018): ½ Σ (h₁·r₁·t₂ + h₂·r₂·t₁), rows in halves.

The first half of an entity's row is its part as a head, the second its part as a tail; a relation has a part for each
direction.
"""

from __future__ import annotations

from torch import Tensor

from grash.models.autograd import AutogradModel
from grash.models.base import Side, halves, joined


class SimplE(AutogradModel):
    name = "simple"
    dim_multiple = 2
    additive = True

    def query(self, known: Tensor, relation: Tensor, side: Side) -> Tensor:
        (first, second), (there, back) = halves(known), halves(relation)
        if side == "tail":  # compared with t₁, t₂
            return joined(second * back, first * there) / 2
        return joined(second * there, first * back) / 2  # compared with h₁, h₂
