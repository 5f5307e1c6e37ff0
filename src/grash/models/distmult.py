"""DistMult (Yang et al., 2015): Σ h·r·t."""

from __future__ import annotations

from torch import Tensor

from grash.models.base import DotModel, Side


class DistMult(DotModel):
    name = "distmult"
    additive = True

    def query(self, known: Tensor, relation: Tensor, side: Side) -> Tensor:
        return known * relation

    def query_gradient(self, upstream: Tensor, known: Tensor, relation: Tensor, side: Side) -> tuple[Tensor, Tensor]:
        return upstream * relation, upstream * known

    def relation_features(self, head: Tensor, tail: Tensor) -> Tensor:
        return head * tail

    def relation_features_gradient(self, upstream: Tensor, head: Tensor, tail: Tensor) -> tuple[Tensor, Tensor]:
        return upstream * tail, upstream * head
