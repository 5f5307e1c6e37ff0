"""PairRE (Chao et al., 2021): −‖h∘r₁ − t∘r₂‖, norm 1 or 2, with entities of length 1; a relation is r₁, then r₂."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from grash.models.autograd import ScoreModel
from grash.models.base import halves


class PairRE(ScoreModel):
    name = "pairre"

    @staticmethod
    def relation_width(dim: int) -> int:
        return 2 * dim

    def formula(self, head: Tensor, relation: Tensor, tail: Tensor) -> Tensor:
        of_head, of_tail = halves(relation)
        difference = F.normalize(head, dim=-1) * of_head - F.normalize(tail, dim=-1) * of_tail
        return -torch.linalg.vector_norm(difference, ord=self.norm, dim=-1)
