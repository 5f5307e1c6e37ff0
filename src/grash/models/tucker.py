"""TuckER (Balažević et al., 2019): Σ W_ijk·r_i·h_j·t_k, with a core W (D, D, D) that all relations share.

As in the authors' code, heads and queries are normalized over the batch, and dropout applies to the head, to the matrix
r·W and to the query. It asks for tails only, so it needs reciprocal relations.
"""

from __future__ import annotations

import torch
from torch import Tensor

from grash.models.autograd import AutogradModel, batch_norm
from grash.models.base import Side, Weight


class TuckER(AutogradModel):
    name = "tucker"
    needs_reciprocal = True
    dropouts = ("dropout_input", "dropout_features", "dropout_query")

    @classmethod
    def weight_shapes(cls, dim: int) -> dict[str, Weight]:
        norms = batch_norm("input_norm", dim, affine=True) | batch_norm("query_norm", dim, affine=True)
        return {"core": Weight((dim, dim, dim), "uniform"), **norms}

    @classmethod
    def query_floats(cls, dim: int) -> int:
        return 3 * dim * dim  # the matrix, its mask and its gradient

    def query(self, known: Tensor, relation: Tensor, side: Side) -> Tensor:
        core, n = self.weights["core"], self.dim
        head = self.dropped(self.normalized(known, "input_norm"), "dropout_input")
        matrix = self.dropped((relation @ core.view(n, n * n)).view(-1, n, n), "dropout_features")
        found = torch.bmm(head[:, None, :], matrix).squeeze(1)
        return self.dropped(self.normalized(found, "query_norm"), "dropout_query")
