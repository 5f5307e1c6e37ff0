"""Which positives a step sees, and which negatives are drawn for them.

Everything is a function of (seed, step): an epoch's order is a keyed permutation of the triples that is never
stored, and negatives without replacement are the first places of a keyed permutation of the entities. So any step
can be made at any time, on any device, and a run that was stopped goes on exactly where it was.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from grash.data.known import KnownAnswers, expand
from grash.kernels.random import key_at, key_of, permuted, permuted_rows, uniform
from grash.models.base import SLOTS, Slot
from grash.training.config import TrainConfig


@dataclass(frozen=True)
class Negatives:
    """ids: (N,) shared by the batch, or (B, N). Where `real` is False at entry k, the pair
    (rows[k], columns[k]) is no negative."""

    ids: Tensor
    rows: Tensor
    columns: Tensor
    real: Tensor


@dataclass(frozen=True)
class Batch:
    """triples (B, 3) on the device, negatives per slot that is asked."""

    triples: Tensor
    negatives: dict[Slot, Negatives]


@dataclass(frozen=True)
class Questions:
    """A KvsAll batch of one slot: known (B,), relations (B,), and the true (rows[k], answers[k])."""

    slot: Slot
    known: Tensor
    relations: Tensor
    rows: Tensor
    answers: Tensor


class Plan:
    """The exact steps of a run: `total` examples in `n_steps` batches, the last of each epoch cut short.

    An example is a positive, or a question with kvsall."""

    def __init__(self, n_examples: int, batch_size: int, epochs: float) -> None:
        self.n_examples, self.batch_size = n_examples, batch_size
        self.total = max(1, round(epochs * n_examples))
        self.steps_per_epoch = math.ceil(n_examples / batch_size)
        self.n_steps = self.steps_at(self.total)

    def steps_at(self, examples: int) -> int:
        """Steps after which that many examples have been seen."""
        whole, rest = divmod(examples, self.n_examples)
        return whole * self.steps_per_epoch + math.ceil(rest / self.batch_size)

    def places(self, step: int) -> tuple[int, int, int]:
        """(epoch, first, last) of the places in that epoch's order that the step sees."""
        epoch, index = divmod(step, self.steps_per_epoch)
        last = min((index + 1) * self.batch_size, self.n_examples, self.total - epoch * self.n_examples)
        return epoch, index * self.batch_size, last

    def examples_before(self, step: int) -> int:
        epoch, index = divmod(step, self.steps_per_epoch)
        return min(self.total, epoch * self.n_examples + index * self.batch_size)


class Batches:
    """Makes the batch of any step. `train` (n, 3) stays on the host if it is memory-mapped or the device is full."""

    def __init__(
        self,
        train: NDArray[np.int32],
        n_entities: int,
        n_relations: int,
        config: TrainConfig,
        device: torch.device,
    ) -> None:
        self.config, self.device, self.n_entities = config, device, n_entities
        self.known = None
        if config.training == "kvsall" or config.negatives_filtered:
            self.known = KnownAnswers.of(train, n_relations=n_relations)
        n_examples = len(train)
        if config.training == "kvsall" and self.known is not None:
            n_examples = len(self.known.head) + len(self.known.tail)
        self.plan = Plan(n_examples, config.batch_size, config.epochs)
        self.train = torch.from_numpy(np.ascontiguousarray(train)).to(device)
        self._order_key = key_of(config.seed, "order")
        self._negatives_keys = {slot: key_of(config.seed, "negatives", slot) for slot in SLOTS}
        self._weights = _cumulative_counts(train, n_entities) if config.negatives_sampling == "frequency" else None

    def positives(self, step: int) -> Batch:
        """The batch of a step of negative sampling or 1vsAll."""
        triples = self.train[self._places(step)].to(torch.int64)
        if self.config.training == "1vsall":
            return Batch(triples, {})
        counts: dict[Slot, int] = {"head": self.config.negatives_head, "tail": self.config.negatives_tail}
        return Batch(triples, {s: self._negatives(triples, s, n, step) for s, n in counts.items() if n})

    def questions(self, step: int) -> list[Questions]:
        """The batch of a step of KvsAll, by slot."""
        assert self.known is not None
        places = self._places(step).cpu().numpy()
        n_tail = len(self.known.tail)
        result = []
        for slot, chosen in (
            ("tail", places[places < n_tail]),
            ("head", places[places >= n_tail] - n_tail),
        ):
            index = self.known.tail if slot == "tail" else self.known.head
            first = index.starts[chosen]
            rows, answers = expand(first, index.starts[chosen + 1] - first, index.answers)
            arrays = (
                index.keys[chosen] // index.n_relations,
                index.keys[chosen] % index.n_relations,
                rows,
                answers,
            )
            if len(chosen):
                result.append(Questions(slot, *(self._tensor(a) for a in arrays)))  # type: ignore[arg-type]
        return result

    def _places(self, step: int) -> Tensor:
        epoch, first, last = self.plan.places(step)
        places = torch.arange(first, last, device=self.device)
        return permuted(places, self.plan.n_examples, key_at(self._order_key, epoch))

    def _negatives(self, triples: Tensor, slot: Slot, count: int, step: int) -> Negatives:
        key = key_at(self._negatives_keys[slot], step)
        answers = triples[:, 0 if slot == "head" else 2]
        rows = torch.arange(len(triples), device=self.device)
        if self.config.negatives_filtered:
            rows, answers = self._known_pairs(triples, slot)
        distinct = not self.config.negatives_replacement
        if distinct:
            count = min(count, self.n_entities)
        if not self.config.negatives_shared:
            return _masked_own(self._draw(len(triples), count, key, distinct), rows, answers)
        if distinct and self._weights is None:
            ids = permuted(torch.arange(count, device=self.device), self.n_entities, key)
            places = permuted(answers, self.n_entities, key, inverse=True)
            return Negatives(ids, rows, places.clamp_max(count - 1), places >= count)
        return _masked_shared(self._draw(1, count, key, distinct)[0], rows, answers)

    def _draw(self, n_rows: int, count: int, key: int, distinct: bool) -> Tensor:
        """(n_rows, count) entity ids, distinct within a row if asked."""
        if distinct and self._weights is None:
            return permuted_rows(n_rows, count, self.n_entities, key, self.device)
        if distinct:
            return torch.stack([self._draw_weighted(count, key_at(key, row)) for row in range(n_rows)])
        point = _fine_uniform(torch.arange(n_rows * count, device=self.device), key)
        if self._weights is None:
            return (point * self.n_entities).to(torch.int64).reshape(n_rows, count)
        ids = np.searchsorted(self._weights, point.cpu().numpy() * self._weights[-1], side="right")
        return self._tensor(ids).reshape(n_rows, count)

    def _draw_weighted(self, count: int, key: int) -> Tensor:
        """Weighted and distinct: the `count` smallest of exponential clocks (Efraimidis and Spirakis)."""
        assert self._weights is not None
        ticks = -torch.log(uniform(torch.arange(self.n_entities), 1, key)[:, 0].double())
        clocks = ticks / torch.from_numpy(np.diff(self._weights, prepend=0))
        return clocks.topk(count, largest=False).indices.to(self.device)

    def _known_pairs(self, triples: Tensor, slot: Slot) -> tuple[Tensor, Tensor]:
        assert self.known is not None
        heads, relations, tails = triples.cpu().numpy().T
        known = tails if slot == "head" else heads
        rows, answers = self.known.of_slot(slot).pairs(known, relations)
        return self._tensor(rows), self._tensor(answers)

    def _tensor(self, array: NDArray[np.integer]) -> Tensor:
        return torch.from_numpy(array.astype(np.int64)).to(self.device)


def _masked_shared(ids: Tensor, rows: Tensor, answers: Tensor) -> Negatives:
    """Every column that holds a row's answer is masked; ids (N,) may repeat."""
    order = torch.argsort(ids)
    ordered = ids[order]
    first = torch.searchsorted(ordered, answers).cpu().numpy()
    count = torch.searchsorted(ordered, answers, right=True).cpu().numpy() - first
    which, columns = expand(first, count, order.cpu().numpy())
    hit = torch.from_numpy(columns).to(ids.device)
    return Negatives(ids, rows[torch.from_numpy(which).to(ids.device)], hit, torch.zeros_like(hit, dtype=torch.bool))


def _masked_own(ids: Tensor, rows: Tensor, answers: Tensor) -> Negatives:
    """ids (B, N): entries of a row that equal one of its answers are masked."""
    pair, columns = torch.nonzero(ids[rows] == answers[:, None], as_tuple=True)
    return Negatives(ids, rows[pair], columns, torch.zeros_like(columns, dtype=torch.bool))


def _fine_uniform(places: Tensor, key: int) -> Tensor:
    """Uniform doubles in [0, 1) with 46 random bits, fine enough for any number of entities: (n,)."""
    coarse = uniform(places, 2, key).double()
    return ((coarse[:, 0] - 2.0**-24) + coarse[:, 1] * 2.0**-23).clamp(0, 1 - 2.0**-46)


def _cumulative_counts(train: NDArray[np.int32], n_entities: int) -> NDArray[np.float64]:
    """Σ (count + 1) up to each entity: how often it stands in train, unseen ones once."""
    counts = np.bincount(train[:, 0], minlength=n_entities) + np.bincount(train[:, 2], minlength=n_entities)
    return np.cumsum(counts + 1.0)
