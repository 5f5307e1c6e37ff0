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
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import ClassVar, Literal

import torch
from torch import Tensor

from grash.errors import ConfigError
from grash.kernels.pair_scores import Pair, pair_gradients, pair_scores, row_scores
from grash.kernels.storage import to_float32

Side = Literal["head", "tail"]
SIDES: tuple[Side, Side] = ("head", "tail")


PassBack = Callable[[Tensor], tuple[Tensor, Tensor]]  # gradient of queries → gradients of known and relation rows


@dataclass(frozen=True)
class Weight:
    """A tensor that a model has beside its tables, e.g. the filters of a convolution."""

    shape: tuple[int, ...]
    init: Literal["xavier", "uniform", "zeros", "ones"] = "xavier"  # xavier: normal; uniform: from −1 to 1
    trained: bool = True  # False: running statistics, which a step computes without a gradient


class KgeModel(ABC):
    """A model with entity (E, D) and relation (R, width), or (2R, width) with reciprocals; float32 on one device.

    Entities may be stored in bf16; computations use float32. weights: further tensors by name (`weight_shapes`).
    """

    name: ClassVar[str]
    dim_multiple: ClassVar[int] = 1  # by which the dimension must be divisible
    needs_reciprocal: ClassVar[bool] = False  # whether it can only ask for tails
    additive: ClassVar[bool] = False  # whether the score (with norm 1) is a sum over coordinates of dim_multiple floats
    dropouts: ClassVar[tuple[str, ...]] = ()  # the settings of dropout inside its query
    n_biases: ClassVar[int] = 0  # floats at the end of an entity's row that are no part of its dimension; 0 at first

    def __init__(
        self,
        entity: Tensor,
        relation: Tensor,
        *,
        reciprocal: bool = False,
        norm: int = 1,
        weights: dict[str, Tensor] | None = None,
    ) -> None:
        self.entity, self.relation, self.weights = entity, relation, weights or {}
        self.reciprocal, self.norm = reciprocal, norm
        self.n_entities, self.dim = len(entity), entity.shape[1] - self.n_biases
        self.n_relations = len(relation) // 2 if reciprocal else len(relation)
        width = self.relation_width(self.dim)
        if relation.shape[1] != width:
            raise ValueError(f"{self.name} with entities {tuple(entity.shape)} needs relations (R, {width})")
        shapes = {name: weight.shape for name, weight in self.weight_shapes(self.dim).items()}
        if {name: tuple(tensor.shape) for name, tensor in self.weights.items()} != shapes:
            raise ValueError(f"{self.name} with entities {tuple(entity.shape)} needs weights {shapes}")

    @property
    @abstractmethod
    def pair(self) -> Pair:
        """The kind of comparison of a query and a candidate."""

    @property
    def is_additive(self) -> bool:
        """Whether rows of several such models side by side score the sum of their scores."""
        return self.additive and self.pair != "l2"

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

    @abstractmethod
    def fitted_relation(self, head: Tensor, tail: Tensor) -> Tensor:
        """head (B, D), tail (B, D) → (width,): a relation row that fits these pairs, a start for training."""

    @staticmethod
    def relation_width(dim: int) -> int:
        """Return the floats per relation for entities of `dim` floats."""
        return dim

    @classmethod
    def entity_width(cls, dim: int) -> int:
        """Return the floats of an entity's row: its dimension and its biases."""
        return dim + cls.n_biases

    @classmethod
    def query_width(cls, dim: int) -> int:
        """Return the floats of a candidate, if it has more than an entity's row; else those of the row."""
        return cls.entity_width(dim)

    @classmethod
    def weight_shapes(cls, dim: int) -> dict[str, Weight]:
        """Return the weights beside the tables, by name."""
        return {}

    def pair_of(self, side: Side) -> Pair:
        """Return the comparison of a query with candidates for `side`."""
        return self.pair

    def query_forward(self, known: Tensor, relation: Tensor, side: Side) -> tuple[Tensor, PassBack]:
        """Return `query` and the function that passes its gradient back."""
        back = partial(self.query_gradient, known=known, relation=relation, side=side)
        return self.query(known, relation, side), back

    def candidate_forward(self, rows: Tensor, side: Side) -> tuple[Tensor, Callable[[Tensor], Tensor]]:
        """Return `candidate` and the function that passes its gradient back."""
        return self.candidate(rows, side), partial(self.candidate_gradient, side=side)

    def candidate(self, rows: Tensor, side: Side) -> Tensor:
        """Entity rows (…, D) → candidates (…, W) for `side`; a view where no arithmetic is needed."""
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
        return row_scores(queries, self.candidate(to_float32(self.entity[answer]), seen), self.pair_of(seen))

    def score_tails(self, heads: Tensor, relations: Tensor) -> Tensor:
        """heads (B,), relations (B,) → (B, E): scores of every entity as the tail."""
        queries, seen = self.queries(heads, relations, "tail")
        return pair_scores(queries, self.candidate(to_float32(self.entity), seen), self.pair_of(seen))

    def score_heads(self, relations: Tensor, tails: Tensor) -> Tensor:
        """relations (B,), tails (B,) → (B, E): scores of every entity as the head."""
        queries, seen = self.queries(tails, relations, "head")
        return pair_scores(queries, self.candidate(to_float32(self.entity), seen), self.pair_of(seen))

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
        n = cls.dim_multiple
        if dim < 1 or dim % n:
            need = {1: "1 or more", 2: "an even number, 2 or more"}.get(n, f"a multiple of {n}")
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

    def fitted_relation(self, head: Tensor, tail: Tensor) -> Tensor:
        """Return the mean of the features, as long as relation rows are on average."""
        row = self.relation_features(head, tail).mean(0)
        return row * (self.relation.norm(dim=1).mean() / row.norm().clamp_min(1e-30))

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


def model_tensors(model: KgeModel) -> dict[str, Tensor]:
    """Return tables and weights by their names in a file."""
    tables = {"entity": model.entity, "relation": model.relation}
    return tables | {f"weight.{name}": weight for name, weight in model.weights.items()}
