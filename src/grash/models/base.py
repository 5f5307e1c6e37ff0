"""Base classes of models: two embedding tables, and a query embedding for a known entity and a relation.

The score of a triple compares a query with a candidate row (`kernels/pair_scores`):

    score(h, r, t) = pair(query(h, r), t)      for the tail query (h, r, ?)
                   = pair(query(t, r), h)      for the head query (?, r, t)

So one product scores all candidates of a query, and every gradient is the gradient of the pair passed through
`query_gradient`. Letters: B queries, E entities, R relations, D floats per entity, W floats per query. The dimension
counts floats: a ComplEx row of D floats holds D/2 complex numbers, first all real parts, then all imaginary parts.

With reciprocal relations the head query (?, r, t) is the tail query (t, r + R, ?); relation r + R has its own row.
Variables: `known` is the entity of a query, `side` the side that is missing, `seen` the side as the model computes it
(tail for every query of a model with reciprocals).
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
    """A model with entity (E, D) and relation (R, width), or (2R, width) with reciprocals; float32 on one device.

    Entities may be stored in bf16; computations use float32.
    """

    name: ClassVar[str]
    even_dim: ClassVar[bool] = False  # whether the dimension must be even

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
        """The kind of comparison of a query and a candidate."""

    @abstractmethod
    def query(self, known: Tensor, relation: Tensor, side: Side) -> Tensor:
        """known (B, D), relation (B, width) → queries (B, W) for `side`."""

    @abstractmethod
    def query_gradient(self, upstream: Tensor, known: Tensor, relation: Tensor, side: Side) -> tuple[Tensor, Tensor]:
        """upstream (B, W) → gradients for known (B, D) and relation (B, width)."""

    @abstractmethod
    def relation_scores(self, head: Tensor, tail: Tensor, relations: Tensor) -> Tensor:
        """head (B, D), tail (B, D), relations (R, width) → (B, R): scores of every relation between head and tail."""

    @abstractmethod
    def relation_scores_gradient(
        self, upstream: Tensor, scores: Tensor, head: Tensor, tail: Tensor, relations: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """upstream, scores (B, R) → gradients for head, tail and relations."""

    @staticmethod
    def relation_width(dim: int) -> int:
        """Return the floats per relation for entities of `dim` floats."""
        return dim

    def candidate(self, rows: Tensor, side: Side) -> Tensor:
        """Entity rows (…, D) → candidates (…, W) for `side`; a view."""
        return rows

    def candidate_gradient(self, upstream: Tensor, side: Side) -> Tensor:
        """Gradient of candidates (…, W) → gradient of entity rows (…, D)."""
        return upstream

    def asked(self, relations: Tensor, side: Side) -> tuple[Tensor, Side]:
        """Return relation ids (B,) and side as the model computes them: reciprocals turn head into tail queries."""
        if self.reciprocal and side == "head":
            return relations + self.n_relations, "tail"
        return relations, side

    def score(self, triples: Tensor, *, side: Side = "tail") -> Tensor:
        """triples (B, 3) → (B,): the scores that rank `side`; without reciprocals they are equal for both sides."""
        heads, relations, tails = triples.T
        known, answer = (heads, tails) if side == "tail" else (tails, heads)
        queries, seen = self.queries(known, relations, side)
        return row_scores(queries, self.candidate(to_float32(self.entity[answer]), seen), self.pair)

    def score_tails(self, heads: Tensor, relations: Tensor) -> Tensor:
        """heads (B,), relations (B,) → (B, E): scores of every entity as the tail."""
        queries, seen = self.queries(heads, relations, "tail")
        return pair_scores(queries, self.candidate(to_float32(self.entity), seen), self.pair)

    def score_heads(self, relations: Tensor, tails: Tensor) -> Tensor:
        """relations (B,), tails (B,) → (B, E): scores of every entity as the head."""
        queries, seen = self.queries(tails, relations, "head")
        return pair_scores(queries, self.candidate(to_float32(self.entity), seen), self.pair)

    def queries(self, known: Tensor, relations: Tensor, side: Side) -> tuple[Tensor, Side]:
        """Return the queries (B, W) of ids (B,), (B,), and the side whose candidates they are compared with."""
        rows, seen = self.asked(relations, side)
        return self.query_to_rank(to_float32(self.entity[known]), self.relation[rows], seen), seen

    def query_to_rank(self, known: Tensor, relation: Tensor, side: Side) -> Tensor:
        """Return `query` with bits that do not depend on the size of the batch."""
        return self.query(known, relation, side)

    def after_step(self) -> None:  # noqa: B027, most models need nothing
        """Project the tables into the domain of the model."""

    @classmethod
    def check_dim(cls, dim: int) -> None:
        """Raise ConfigError unless the model can have this dimension."""
        if dim < 1 or (cls.even_dim and dim % 2):
            need = "an even number, 2 or more" if cls.even_dim else "1 or more"
            raise ConfigError(f"dim={dim} is not possible for {cls.name}: give {need}.")


class DotModel(KgeModel):
    """A model whose score is linear in the relation: Σ relation · relation_features(head, tail)."""

    @property
    def pair(self) -> Pair:
        return "dot"

    @abstractmethod
    def relation_features(self, head: Tensor, tail: Tensor) -> Tensor:
        """head (B, D), tail (B, D) → (B, width): the factors of a relation row in the score."""

    @abstractmethod
    def relation_features_gradient(self, upstream: Tensor, head: Tensor, tail: Tensor) -> tuple[Tensor, Tensor]:
        """upstream (B, width) → gradients for head (B, D) and tail (B, D)."""

    def relation_scores(self, head: Tensor, tail: Tensor, relations: Tensor) -> Tensor:
        return self.relation_features(head, tail) @ relations.T

    def relation_scores_gradient(
        self, upstream: Tensor, scores: Tensor, head: Tensor, tail: Tensor, relations: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        features = self.relation_features(head, tail)
        for_features, for_relations = pair_gradients(features, relations, scores, upstream, "dot")
        return *self.relation_features_gradient(for_features, head, tail), for_relations


def halves(rows: Tensor) -> tuple[Tensor, Tensor]:
    """Return the two halves of rows (real and imaginary parts, or head and tail part) as views."""
    half = rows.shape[-1] // 2
    return rows[..., :half], rows[..., half:]


def joined(first: Tensor, second: Tensor) -> Tensor:
    return torch.cat([first, second], -1)
