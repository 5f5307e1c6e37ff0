"""TransE (Bordes et al., 2013): −‖h + r − t‖, norm 1 or 2; no normalization of entities."""

from __future__ import annotations

from torch import Tensor

from grash.kernels.pair_scores import Pair, pair_gradients, pair_scores
from grash.models.base import KgeModel, Side


class TransE(KgeModel):
    name = "transe"
    additive = True

    @property
    def pair(self) -> Pair:
        return "l1" if self.norm == 1 else "l2"

    def query(self, known: Tensor, relation: Tensor, side: Side) -> Tensor:
        return known + relation if side == "tail" else known - relation

    def query_gradient(self, upstream: Tensor, known: Tensor, relation: Tensor, side: Side) -> tuple[Tensor, Tensor]:
        return upstream, upstream if side == "tail" else -upstream

    def fitted_relation(self, head: Tensor, tail: Tensor) -> Tensor:
        return (tail - head).mean(0)

    def relation_scores(self, head: Tensor, tail: Tensor, relations: Tensor) -> Tensor:
        return pair_scores(tail - head, relations, self.pair)

    def relation_scores_gradient(
        self, upstream: Tensor, scores: Tensor, head: Tensor, tail: Tensor, relations: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        for_tail, for_relations = pair_gradients(tail - head, relations, scores, upstream, self.pair)
        return -for_tail, for_tail, for_relations
