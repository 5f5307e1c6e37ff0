"""RESCAL (Nickel et al., 2011): hᵀ·M·t with a D × D matrix per relation, stored as a row of D² floats."""

from __future__ import annotations

import torch
from torch import Tensor

from grash.models.base import DotModel, Side


class Rescal(DotModel):
    name = "rescal"

    @staticmethod
    def relation_width(dim: int) -> int:
        return dim * dim

    def query(self, known: Tensor, relation: Tensor, side: Side) -> Tensor:
        matrix = self._matrices(relation, side)
        return torch.bmm(known[:, None, :], matrix).squeeze(1)

    def query_to_rank(self, known: Tensor, relation: Tensor, side: Side) -> Tensor:
        """Return queries from float64, since the last bits of a batched float32 product depend on its size."""
        return self.query(known.double(), relation.double(), side).to(known.dtype)

    def query_gradient(self, upstream: Tensor, known: Tensor, relation: Tensor, side: Side) -> tuple[Tensor, Tensor]:
        matrix = self._matrices(relation, side)
        for_known = torch.bmm(matrix, upstream[:, :, None]).squeeze(2)
        outer = known[:, :, None] * upstream[:, None, :]
        return for_known, (outer if side == "tail" else outer.mT).flatten(1)

    def relation_features(self, head: Tensor, tail: Tensor) -> Tensor:
        return (head[:, :, None] * tail[:, None, :]).flatten(1)

    def relation_features_gradient(self, upstream: Tensor, head: Tensor, tail: Tensor) -> tuple[Tensor, Tensor]:
        matrix = self._matrices(upstream, "tail")
        for_head = torch.bmm(matrix, tail[:, :, None]).squeeze(2)
        return for_head, torch.bmm(head[:, None, :], matrix).squeeze(1)

    def _matrices(self, relation: Tensor, side: Side) -> Tensor:
        """(B, D²) → (B, D, D), so that query = known · matrix."""
        matrix = relation.reshape(len(relation), self.dim, self.dim)
        return matrix if side == "tail" else matrix.mT
