"""What every model is: two embedding tables, and a way to turn (known entity, relation) into a query.

A triple's score compares a query with a candidate row (`kernels/pair_scores`):

    score(h, r, t) = pair(query(h, r), t)      when the tail is asked
                   = pair(query(t, r), h)      when the head is asked

so all candidates of a query are scored by one product, and every gradient is the pair's gradient passed through
`query_gradient`. Letters: B queries, E entities, R relations, D floats per entity. The dimension counts floats:
a ComplEx row of D floats holds D/2 complex numbers, first all real parts, then all imaginary parts.

With reciprocal relations the head is asked as the tail of the inverse relation r + R, which has its own row.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar, Literal

import torch
from torch import Tensor

from grash.errors import ConfigError
from grash.kernels.bf16_rows import to_float32
from grash.kernels.pair_scores import Pair, pair_gradients, pair_scores, row_scores

Side = Literal["head", "tail"]
SIDES: tuple[Side, Side] = ("head", "tail")


class KgeModel(ABC):
    """entity: (E, D), relation: (R, width) or with reciprocals (2R, width); float32 on one device. Entities may be
    kept in bf16: they are computed with in float32."""

    name: ClassVar[str]
    even: ClassVar[bool] = False  # the dimension must be even

    def __init__(self, entity: Tensor, relation: Tensor, *, reciprocal: bool = False, norm: int = 1) -> None:
        self.entity, self.relation = entity, relation
        self.reciprocal, self.norm = reciprocal, norm
        self.n_entities, self.dim = entity.shape
        self.n_relations = len(relation) // 2 if reciprocal else len(relation)
        width = self.relation_width(self.dim)
        if relation.shape[1] != width:
            raise ValueError(f"{self.name} with entities {tuple(entity.shape)} needs relations (R, {width})")

    @property
    @abstractmethod
    def pair(self) -> Pair:
        """How a query and a candidate are compared."""

    @abstractmethod
    def query(self, known: Tensor, relation: Tensor, side: Side) -> Tensor:
        """(B, D) rows of the known entities, (B, width) rows of the relations → (B, W) queries for `side`."""

    @abstractmethod
    def query_gradient(self, upstream: Tensor, known: Tensor, relation: Tensor, side: Side) -> tuple[Tensor, Tensor]:
        """upstream (B, W) → gradients for known (B, D) and relation (B, width)."""

    @abstractmethod
    def relation_scores(self, head: Tensor, tail: Tensor, relations: Tensor) -> Tensor:
        """(B, D), (B, D), (R, width) → (B, R): every relation between the two ends."""

    @abstractmethod
    def relation_scores_gradient(
        self, upstream: Tensor, scores: Tensor, head: Tensor, tail: Tensor, relations: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """upstream, scores (B, R) → gradients for head, tail and relations."""

    @staticmethod
    def relation_width(dim: int) -> int:
        """Floats of a relation's row for entities of `dim` floats."""
        return dim

    def candidate(self, rows: Tensor, side: Side) -> Tensor:
        """(…, D) entity rows → (…, W) as they stand in `side`; a view."""
        return rows

    def candidate_gradient(self, upstream: Tensor, side: Side) -> Tensor:
        """(…, W) → (…, D)."""
        return upstream

    def asked(self, relations: Tensor, side: Side) -> tuple[Tensor, Side]:
        """Relation ids (B,) and the side as the model sees them: reciprocals turn heads into tails."""
        if self.reciprocal and side == "head":
            return relations + self.n_relations, "tail"
        return relations, side

    def score(self, triples: Tensor, *, side: Side = "tail") -> Tensor:
        """triples (B, 3) → (B,), by the score under which `side` is ranked (the same for both without
        reciprocals)."""
        heads, relations, tails = triples.T
        known, answer = (heads, tails) if side == "tail" else (tails, heads)
        queries, seen = self.queries(known, relations, side)
        return row_scores(queries, self.candidate(to_float32(self.entity[answer]), seen), self.pair)

    def score_tails(self, heads: Tensor, relations: Tensor) -> Tensor:
        """(B,), (B,) → (B, E): every entity as the tail."""
        queries, seen = self.queries(heads, relations, "tail")
        return pair_scores(queries, self.candidate(to_float32(self.entity), seen), self.pair)

    def score_heads(self, relations: Tensor, tails: Tensor) -> Tensor:
        """(B,), (B,) → (B, E): every entity as the head."""
        queries, seen = self.queries(tails, relations, "head")
        return pair_scores(queries, self.candidate(to_float32(self.entity), seen), self.pair)

    def queries(self, known: Tensor, relations: Tensor, side: Side) -> tuple[Tensor, Side]:
        """Queries (B, W) for ids, and the side whose candidates they are compared with."""
        rows, seen = self.asked(relations, side)
        return self.query_to_rank(to_float32(self.entity[known]), self.relation[rows], seen), seen

    def query_to_rank(self, known: Tensor, relation: Tensor, side: Side) -> Tensor:
        """`query` with bits that do not depend on how many are made together."""
        return self.query(known, relation, side)

    def after_step(self) -> None:  # noqa: B027, most models need nothing
        """Brings the tables back into the model's domain."""

    @classmethod
    def check_dim(cls, dim: int) -> None:
        if dim < 1 or (cls.even and dim % 2):
            need = "an even number, 2 or more" if cls.even else "1 or more"
            raise ConfigError(f"dim={dim} does not suit {cls.name}: give {need}.")


class DotModel(KgeModel):
    """A model whose score is linear in the relation: Σ relation · meeting(head, tail)."""

    @property
    def pair(self) -> Pair:
        return "dot"

    @abstractmethod
    def meeting(self, head: Tensor, tail: Tensor) -> Tensor:
        """(B, D), (B, D) → (B, width): what a relation row is multiplied with."""

    @abstractmethod
    def meeting_gradient(self, upstream: Tensor, head: Tensor, tail: Tensor) -> tuple[Tensor, Tensor]:
        """(B, width) → (B, D), (B, D)."""

    def relation_scores(self, head: Tensor, tail: Tensor, relations: Tensor) -> Tensor:
        return self.meeting(head, tail) @ relations.T

    def relation_scores_gradient(
        self, upstream: Tensor, scores: Tensor, head: Tensor, tail: Tensor, relations: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        meeting = self.meeting(head, tail)
        for_meeting, for_relations = pair_gradients(meeting, relations, scores, upstream, "dot")
        return *self.meeting_gradient(for_meeting, head, tail), for_relations


def halves(rows: Tensor) -> tuple[Tensor, Tensor]:
    """Real and imaginary halves, or a row's two roles; views."""
    half = rows.shape[-1] // 2
    return rows[..., :half], rows[..., half:]


def joined(first: Tensor, second: Tensor) -> Tensor:
    return torch.cat([first, second], -1)
