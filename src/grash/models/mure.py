"""MuRE (Balažević et al., 2019): −‖R∘h + r − t‖² + b_h + c_t, with biases of h as a head and of t as a tail.

A relation's row is R, then r (2D floats). An entity's row ends with its two biases. The square is expanded, so that
one product scores all candidates: a candidate is c, c∘c, its bias and 1.
"""

from __future__ import annotations

import torch
from torch import Tensor

from grash.kernels.storage import to_float32
from grash.models.autograd import AutogradModel
from grash.models.base import Side, halves


class MuRE(AutogradModel):
    name = "mure"
    n_biases = 2

    @staticmethod
    def relation_width(dim: int) -> int:
        return 2 * dim

    @classmethod
    def query_width(cls, dim: int) -> int:
        return 2 * dim + 2

    def query(self, known: Tensor, relation: Tensor, side: Side) -> Tensor:
        (scale, shift), row = halves(relation), known[..., : self.dim]
        if side == "tail":  # −‖moved − t‖²
            moved, scale = scale * row + shift, torch.ones_like(row)
        else:  # −‖scale∘h − moved‖²
            moved = row - shift
        rest = known[..., self._bias("tail" if side == "head" else "head"), None] - moved.square().sum(-1, keepdim=True)
        return torch.cat([2 * scale * moved, -scale.square(), torch.ones_like(rest), rest], -1)

    def candidate(self, rows: Tensor, side: Side) -> Tensor:
        rows = to_float32(rows)
        row, bias = rows[..., : self.dim], rows[..., self._bias(side), None]
        return torch.cat([row, row.square(), bias, torch.ones_like(bias)], -1)

    def _bias(self, side: Side) -> int:
        """Return the place of an entity's bias on this side of a triple."""
        return self.dim if side == "head" else self.dim + 1
