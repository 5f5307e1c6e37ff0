"""CP (Hitchcock, 1927; Lacroix et al., 2018): Σ h₁·r·t₂.

The first half of an entity's row is its part as a head, the second half its part as a tail. A relation has D/2 floats.
"""

from __future__ import annotations

import torch
from torch import Tensor

from grash.models.base import DotModel, Side, halves, joined


class CP(DotModel):
    name = "cp"
    dim_multiple = 2
    additive = True

    @staticmethod
    def relation_width(dim: int) -> int:
        return dim // 2

    def query(self, known: Tensor, relation: Tensor, side: Side) -> Tensor:
        return _part(known, _other(side)) * relation

    def query_gradient(self, upstream: Tensor, known: Tensor, relation: Tensor, side: Side) -> tuple[Tensor, Tensor]:
        for_known = self.candidate_gradient(upstream * relation, _other(side))
        return for_known, upstream * _part(known, _other(side))

    def candidate(self, rows: Tensor, side: Side) -> Tensor:
        return _part(rows, side)

    def candidate_gradient(self, upstream: Tensor, side: Side) -> Tensor:
        zeros = torch.zeros_like(upstream)
        return joined(upstream, zeros) if side == "head" else joined(zeros, upstream)

    def relation_features(self, head: Tensor, tail: Tensor) -> Tensor:
        return _part(head, "head") * _part(tail, "tail")

    def relation_features_gradient(self, upstream: Tensor, head: Tensor, tail: Tensor) -> tuple[Tensor, Tensor]:
        for_head = self.candidate_gradient(upstream * _part(tail, "tail"), "head")
        return for_head, self.candidate_gradient(upstream * _part(head, "head"), "tail")


def _part(rows: Tensor, side: Side) -> Tensor:
    return halves(rows)[0 if side == "head" else 1]


def _other(side: Side) -> Side:
    return "head" if side == "tail" else "tail"
