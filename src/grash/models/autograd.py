"""Models whose gradients come from autograd: a class defines its score and nothing else (docs/how-to/add-a-model.md).

    ScoreModel      defines `formula`, the score of rows of heads, relations and tails
    AutogradModel   defines `query`, which is compared with candidates in one product; may have weights beside the
                    tables, dropout inside the query and batch normalization

A step calls `begin_step`, the forward passes, and `end_step`, which returns what the weights have collected. Outside a
step there is no dropout, and batch normalization uses its running statistics. Ranking computes queries in float64, so
that their bits do not depend on the size of a batch.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from grash.errors import ConfigError
from grash.kernels.pair_scores import Pair, row_scores
from grash.kernels.random import Key, keep_mask
from grash.models.base import KgeModel, PassBack, Side, Weight, joined

_MOMENTUM = 0.1  # of running statistics, as in PyTorch
_FLOATS = 1 << 24  # of queries computed together in float64, or of relations scored together


@dataclass
class WeightStep:
    """What the weights of a model need and collect in one step."""

    rates: Mapping[str, float] = field(default_factory=dict)  # of dropout, by setting
    keys: Sequence[Key] = ()  # of the masks that are drawn, in their order
    n_masks: int = 0  # drawn so far
    gradients: dict[str, Tensor] = field(default_factory=dict)
    statistics: dict[str, Tensor] = field(default_factory=dict)  # new values of weights that are not trained


class AutogradModel(KgeModel):
    """A model that defines `query` and, where a candidate is not an entity's row, `candidate`, in PyTorch.

    `query` must be a function of its arguments and of `self.weights`, row by row (but for batch normalization)."""

    step: WeightStep | None = None  # None: evaluation

    @property
    def pair(self) -> Pair:
        return "dot"

    @classmethod
    def query_floats(cls, dim: int) -> int:
        """Return about how many floats autograd keeps for one query, for the memory plan."""
        return 4 * dim

    def dropped(self, values: Tensor, setting: str, *, channels: bool = False) -> Tensor:
        """Apply dropout at the rate of a setting to values (B, …); channels: drop whole channels of (B, C, …)."""
        rate = 0.0 if self.step is None else self.step.rates.get(setting, 0.0)
        if self.step is None or not rate:
            return values
        if self.step.n_masks == len(self.step.keys):
            raise ValueError(f"{self.name} draws more than {len(self.step.keys)} dropout masks in a step")
        key = self.step.keys[self.step.n_masks]
        self.step.n_masks += 1
        shape = (*values.shape[:2], *[1] * (values.dim() - 2)) if channels else values.shape
        rows = torch.arange(len(values), device=values.device)
        width = torch.Size(shape[1:]).numel()
        return values * keep_mask(rows, width, rate, key).to(values.dtype).view(shape)

    def normalized(self, values: Tensor, name: str) -> Tensor:
        """Apply batch normalization to values (B, C, …), by the weights of `batch_norm(name, C)`."""
        scale, shift = self.weights.get(f"{name}.scale"), self.weights.get(f"{name}.shift")
        names = f"{name}.mean", f"{name}.variance"
        mean, variance = (self.weights[n] for n in names)
        if self.step is None or values.numel() <= values.shape[1]:  # one value has no variance
            return F.batch_norm(values, mean, variance, scale, shift)
        mean, variance = (self.step.statistics.get(n, self.weights[n]).clone() for n in names)
        found = F.batch_norm(values, mean, variance, scale, shift, training=True, momentum=_MOMENTUM)
        self.step.statistics |= dict(zip(names, (mean, variance)))
        return found

    def begin_step(self, rates: Mapping[str, float], keys: Sequence[Key]) -> None:
        """Enter a training step. rates: of the settings in `dropouts`; keys: of its masks."""
        self.step = WeightStep(rates, keys)

    def end_step(self) -> WeightStep:
        """Leave the step; return the gradients and the new statistics of the weights."""
        ended, self.step = self.step or WeightStep(), None
        return ended

    def query_forward(self, known: Tensor, relation: Tensor, side: Side) -> tuple[Tensor, PassBack]:
        rows = known.detach().requires_grad_(), relation.detach().requires_grad_()
        trained = [name for name, weight in self.weight_shapes(self.dim).items() if weight.trained]
        leaves = {name: self.weights[name].detach().requires_grad_() for name in trained}
        with torch.enable_grad(), self._using(leaves):
            queries = self.query(*rows, side)

        def back(upstream: Tensor) -> tuple[Tensor, Tensor]:
            inputs = [*rows, *leaves.values()]
            found = torch.autograd.grad(queries, inputs, upstream, materialize_grads=True)
            collected = {} if self.step is None else self.step.gradients
            for name, gradient in zip(leaves, found[2:]):
                collected[name] = collected[name] + gradient if name in collected else gradient
            return found[0], found[1]

        return queries.detach(), back

    def candidate_forward(self, rows: Tensor, side: Side) -> tuple[Tensor, Callable[[Tensor], Tensor]]:
        leaf = rows.detach().requires_grad_()
        with torch.enable_grad():
            candidates = self.candidate(leaf, side)
        if candidates is leaf:
            return rows, lambda upstream: upstream
        return candidates.detach(), lambda upstream: torch.autograd.grad(candidates, leaf, upstream)[0]

    def query_gradient(self, upstream: Tensor, known: Tensor, relation: Tensor, side: Side) -> tuple[Tensor, Tensor]:
        return self.query_forward(known, relation, side)[1](upstream)

    def query_to_rank(self, known: Tensor, relation: Tensor, side: Side) -> Tensor:
        size = max(1, _FLOATS // self.query_floats(self.dim))
        with self._using({name: weight.double() for name, weight in self.weights.items()}):
            parts = [
                self.query(k.double(), r.double(), side).to(known.dtype)
                for k, r in zip(known.split(size), relation.split(size))
            ]
        return parts[0] if len(parts) == 1 else torch.cat(parts)

    def fitted_relation(self, head: Tensor, tail: Tensor) -> Tensor:
        """Return the mean relation; no formula fits all of these models."""
        return self.relation.mean(0)

    def relation_scores(self, head: Tensor, tail: Tensor, relations: Tensor) -> Tensor:
        return torch.cat([self._between(head, tail, part) for part in self._parts(relations, len(head))], 1)

    def relation_scores_gradient(
        self, upstream: Tensor, scores: Tensor, head: Tensor, tail: Tensor, relations: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        for_head, for_tail, for_relations = torch.zeros_like(head), torch.zeros_like(tail), []
        for part, above in zip(self._parts(relations, len(head)), self._parts(upstream.T, len(head))):
            leaves = [rows.detach().requires_grad_() for rows in (head, tail, part)]
            with torch.enable_grad():
                found = self._between(*leaves)
            of_head, of_tail, of_part = torch.autograd.grad(found, leaves, above.T, materialize_grads=True)
            for_head += of_head
            for_tail += of_tail
            for_relations.append(of_part)
        return for_head, for_tail, torch.cat(for_relations)

    def _between(self, head: Tensor, tail: Tensor, relations: Tensor) -> Tensor:
        """head, tail (B, D), relations (r, width) → (B, r)."""
        n = len(relations)
        queries = self.query(head.repeat_interleave(n, 0), relations.repeat(len(head), 1), "tail")
        answers = self.candidate(tail.repeat_interleave(n, 0), "tail")
        return row_scores(queries, answers, self.pair_of("tail")).view(len(head), n)

    def _parts(self, rows: Tensor, batch: int) -> tuple[Tensor, ...]:
        """Split rows of relations, so that a batch with all of a part fits into the work space."""
        return rows.split(max(1, _FLOATS // max(1, batch * self.query_floats(self.dim))))

    @contextmanager
    def _using(self, weights: Mapping[str, Tensor]) -> Iterator[None]:
        stored, self.weights = self.weights, {**self.weights, **weights}
        try:
            yield
        finally:
            self.weights = stored


class ScoreModel(AutogradModel):
    """A model that defines `formula`. A query is the rows of the known entity and of the relation, side by side."""

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        if cls.weight_shapes.__func__ is not KgeModel.weight_shapes.__func__:  # type: ignore[attr-defined]
            raise TypeError(f"{cls.__name__} has weights beside its tables: derive it from AutogradModel.")

    @abstractmethod
    def formula(self, head: Tensor, relation: Tensor, tail: Tensor) -> Tensor:
        """head (…, D), relation (…, width), tail (…, D) → (…): scores; leading axes broadcast."""

    @property
    def pair(self) -> Pair:
        return self.pair_of("tail")

    def pair_of(self, side: Side) -> Pair:
        return partial(self._compare, side=side)

    def query(self, known: Tensor, relation: Tensor, side: Side) -> Tensor:
        return joined(known, relation)

    def _compare(self, queries: Tensor, candidates: Tensor, side: Side) -> Tensor:
        width = self.entity_width(self.dim)
        known, relation = queries[..., :width], queries[..., width:]
        ends = (known, candidates) if side == "tail" else (candidates, known)
        scores = self.formula(ends[0], relation, ends[1])
        expected = torch.broadcast_shapes(known.shape[:-1], candidates.shape[:-1])
        if scores.shape != expected:
            rows = " and ".join(str(tuple(end.shape)) for end in (known, candidates))
            raise ConfigError(
                f"The formula of {self.name} returned scores of shape {tuple(scores.shape)} for rows of shapes {rows}. "
                f"It must return {tuple(expected)}: one score per triple, e.g. `.sum(-1)` over the last axis."
            )
        return scores


def batch_norm(name: str, n_channels: int, *, affine: bool = False) -> dict[str, Weight]:
    """Return the weights of `normalized`. affine: with a trained scale and shift of each channel."""
    shape = (n_channels,)
    found = {f"{name}.mean": Weight(shape, "zeros", False), f"{name}.variance": Weight(shape, "ones", False)}
    return found | ({f"{name}.scale": Weight(shape, "ones"), f"{name}.shift": Weight(shape, "zeros")} if affine else {})
