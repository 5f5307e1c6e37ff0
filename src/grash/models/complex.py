"""ComplEx (Trouillon et al., 2016): Re Σ h·r·conj(t) over complex coordinates."""

from __future__ import annotations

from torch import Tensor

from grash.kernels.complex_product import product, product_gradient, product_reference
from grash.models.base import DotModel, Side


class ComplEx(DotModel):
    name = "complex"
    dim_multiple = 2
    additive = True

    def query(self, known: Tensor, relation: Tensor, side: Side) -> Tensor:
        return product(known, relation, conjugate=side == "head")

    def query_to_rank(self, known: Tensor, relation: Tensor, side: Side) -> Tensor:
        """Return queries that are the same with and without Triton."""
        multiply = product if known.device.type == "cpu" else product_reference
        return multiply(known, relation, conjugate=side == "head")

    def query_gradient(self, upstream: Tensor, known: Tensor, relation: Tensor, side: Side) -> tuple[Tensor, Tensor]:
        return product_gradient(upstream, known, relation, conjugate=side == "head")

    def relation_features(self, head: Tensor, tail: Tensor) -> Tensor:
        return product(tail, head, conjugate=True)

    def relation_features_gradient(self, upstream: Tensor, head: Tensor, tail: Tensor) -> tuple[Tensor, Tensor]:
        for_tail, for_head = product_gradient(upstream, tail, head, conjugate=True)
        return for_head, for_tail
