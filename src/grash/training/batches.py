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

from grash.data.known_answers import AnswerIndex, KnownAnswers, expand
from grash.kernels.random import BatchSampler, key_at, key_of, permuted, permuted_rows, uniform
from grash.models.base import SIDES, Side
from grash.training.config import TrainConfig


@dataclass(frozen=True)
class Negatives:
    """ids: (N,) shared by the batch, or (B, N) of each positive's own. What is no negative (the truth, or a known
    fact): for shared ones the pairs (rows[k], columns[k]) where real[k] is False, for own ones where `blocked`."""

    ids: Tensor
    rows: Tensor | None = None
    columns: Tensor | None = None
    real: Tensor | None = None
    blocked: Tensor | None = None

    def mask(self, scores: Tensor) -> None:
        """Sets the scores (B, N) of what is no negative to −∞, without a host decision."""
        if self.blocked is not None:
            scores.masked_fill_(self.blocked, -torch.inf)
        else:
            assert self.real is not None
            place = (self.rows, self.columns)
            scores[place] = torch.where(self.real, scores[place], -torch.inf)


@dataclass(frozen=True)
class Batch:
    """triples (B, 3) on the device, negatives per side that is asked."""

    triples: Tensor
    negatives: dict[Side, Negatives]


@dataclass(frozen=True)
class Questions:
    """A KvsAll batch of one side: known (B,), relations (B,), and the true (rows[k], answers[k])."""

    side: Side
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

    def steps_to(self, epoch: float) -> int:
        """Steps after which so many epochs have been seen, one at least."""
        return self.steps_at(min(self.total, max(1, round(epoch * self.n_examples))))

    @property
    def whole_steps(self) -> int:
        """Steps that a longer run would make just so: all but a last one that is cut short inside its epoch."""
        whole, rest = divmod(self.total, self.n_examples)
        return whole * self.steps_per_epoch + rest // self.batch_size

    def epoch_after(self, step: int) -> float:
        """Epochs that have been seen after so many steps."""
        return self.examples_before(step) / self.n_examples

    def places(self, step: int) -> tuple[int, int, int]:
        """(epoch, first, last) of the places in that epoch's order that the step sees."""
        epoch, index = divmod(step, self.steps_per_epoch)
        last = min((index + 1) * self.batch_size, self.n_examples, self.total - epoch * self.n_examples)
        return epoch, index * self.batch_size, last

    def examples_before(self, step: int) -> int:
        epoch, index = divmod(step, self.steps_per_epoch)
        return min(self.total, epoch * self.n_examples + index * self.batch_size)


def needs_index(config: TrainConfig) -> bool:
    """Whether the answers to a question are looked up in training."""
    return config.training == "kvsall" or config.negatives_filtered


class Batches:
    """Makes the batch of any step from `train` (n, 3), which it keeps on the device."""

    def __init__(
        self,
        train: NDArray[np.int32],
        n_entities: int,
        n_relations: int,
        config: TrainConfig,
        device: torch.device,
        on_device: Tensor | None = None,
        known: KnownAnswers | None = None,
    ) -> None:
        """on_device: `train` as it is there already, to be shared; known: its index, likewise (`needs_index`)."""
        self.config, self.device = config, device
        self.n_entities, self.n_relations = n_entities, n_relations
        self.known = None
        if needs_index(config):
            self.known = KnownAnswers.of(train, n_relations=n_relations) if known is None else known
        n_examples = len(train)
        if config.training == "kvsall" and self.known is not None:
            n_examples = len(self.known.head) + len(self.known.tail)
        self.plan = Plan(n_examples, config.batch_size, config.epochs)
        self.train = triples_on(train, device) if on_device is None else on_device
        self._order_key = key_of(config.seed, "order")
        self._negatives_keys = {side: key_of(config.seed, "negatives", side) for side in SIDES}
        counts: dict[Side, int] = {"head": config.negatives_head, "tail": config.negatives_tail}
        self._counts = {side: count for side, count in counts.items() if count}
        self._at_once = self._draw_at_once() if device.type == "cpu" else None
        self._weights = _cumulative_counts(train, n_entities) if config.negatives_sampling == "frequency" else None

    def positives(self, step: int) -> Batch:
        """The batch of a step of negative sampling or 1vsAll."""
        if self._at_once is not None:
            triples, rows, drawn = self._at_once.draw(step, *self.plan.places(step))
            return Batch(triples, {s: Negatives(ids, rows, *at) for s, (ids, *at) in zip(self._counts, drawn)})
        triples = self.train[self._places(step)].to(torch.int64)
        if self.config.training == "1vsall":
            return Batch(triples, {})
        return Batch(triples, {s: self._negatives(triples, s, n, step) for s, n in self._counts.items()})

    def questions(self, step: int) -> list[Questions]:
        """The batch of a step of KvsAll, by side; reciprocals ask everything as tails, so there is one group."""
        assert self.known is not None
        places = self._places(step).cpu().numpy()
        n_tail = len(self.known.tail)
        groups: list[tuple[Side, AnswerIndex, NDArray[np.int64]]] = [
            ("tail", self.known.tail, places[places < n_tail]),
            ("head", self.known.head, places[places >= n_tail] - n_tail),
        ]
        parts = [(side, _lookup(index, chosen)) for side, index, chosen in groups if len(chosen)]
        if self.config.reciprocal:
            parts = [("tail", _joined_lookups(parts, self.n_relations))]
        return [Questions(side, *(self._tensor(a) for a in arrays)) for side, arrays in parts]

    def _draw_at_once(self) -> BatchSampler | None:
        """Positives and negatives of the usual kind are drawn in one loop on a CPU, the same as by `_negatives`."""
        config, keys = self.config, self._negatives_keys
        unusual = config.negatives_replacement or config.negatives_filtered or config.negatives_sampling != "uniform"
        if config.training != "negative_sampling" or unusual or not config.negatives_shared:
            return None
        sides = [(keys[s], min(n, self.n_entities), 0 if s == "head" else 2) for s, n in self._counts.items()]
        return BatchSampler(self.train, self._order_key, self.n_entities, sides)

    def _places(self, step: int) -> Tensor:
        epoch, first, last = self.plan.places(step)
        places = torch.arange(first, last, device=self.device)
        return permuted(places, self.plan.n_examples, key_at(self._order_key, epoch))

    def _negatives(self, triples: Tensor, side: Side, count: int, step: int) -> Negatives:
        key = key_at(self._negatives_keys[side], step)
        answers = triples[:, 0 if side == "head" else 2].contiguous()
        rows = torch.arange(len(triples), device=self.device)
        if self.config.negatives_filtered:
            rows, answers = self._known_pairs(triples, side)
        distinct = not self.config.negatives_replacement
        if distinct:
            count = min(count, self.n_entities)
        if not self.config.negatives_shared:
            ids = self._draw(len(triples), count, key, distinct)
            return _masked_own(ids, rows, answers, self.n_entities)
        if distinct and self._weights is None:
            ids = permuted(torch.arange(count, device=self.device), self.n_entities, key)
            places = permuted(answers, self.n_entities, key, inverse=True)
            if self.config.negatives_filtered:  # several answers a row: no two entries may meet at the clamp
                drawn = places < count
                rows, places = rows[drawn], places[drawn]
            return Negatives(ids, rows, places.clamp_max(count - 1), places >= count)
        return _masked_shared(self._draw(1, count, key, distinct)[0], rows, answers)

    def _draw(self, n_rows: int, count: int, key: int, distinct: bool) -> Tensor:
        """(n_rows, count) entity ids, distinct within a row if asked."""
        if distinct and self._weights is None:
            return permuted_rows(n_rows, count, self.n_entities, key, self.device)
        if distinct:
            return torch.stack([self._draw_weighted(count, key_at(key, row)) for row in range(n_rows)])
        point = _fine_uniform(n_rows, count, key, self.device)
        if self._weights is None:
            return (point * self.n_entities).to(torch.int64)
        ids = np.searchsorted(self._weights, point.cpu().numpy() * self._weights[-1], side="right")
        return self._tensor(ids)

    def _draw_weighted(self, count: int, key: int) -> Tensor:
        """Weighted and distinct: the `count` smallest of exponential clocks (Efraimidis and Spirakis)."""
        assert self._weights is not None
        ticks = -torch.log(uniform(torch.arange(self.n_entities), 1, key)[:, 0].double())
        clocks = ticks / torch.from_numpy(np.diff(self._weights, prepend=0))
        return clocks.topk(count, largest=False).indices.to(self.device)

    def _known_pairs(self, triples: Tensor, side: Side) -> tuple[Tensor, Tensor]:
        assert self.known is not None
        heads, relations, tails = triples.cpu().numpy().T
        known = tails if side == "head" else heads
        rows, answers = self.known.of_side(side).pairs(known, relations)
        return self._tensor(rows), self._tensor(answers)

    def _tensor(self, array: NDArray[np.integer]) -> Tensor:
        return torch.from_numpy(array.astype(np.int64)).to(self.device)


def triples_on(train: NDArray[np.int32], device: torch.device) -> Tensor:
    """(n, 3) int32 on the device, row after row, as kernels read them."""
    rows = np.ascontiguousarray(train, np.int32)
    # a mapped array is read-only, which torch does not know
    return torch.from_numpy(rows if rows.flags.writeable else rows.copy()).to(device)


Lookup = tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64], NDArray[np.int32]]


def _lookup(index: AnswerIndex, chosen: NDArray[np.int64]) -> Lookup:
    """(known, relations, rows, answers) of the chosen questions."""
    first = index.starts[chosen]
    rows, answers = expand(first, index.starts[chosen + 1] - first, index.answers)
    return index.keys[chosen] // index.n_relations, index.keys[chosen] % index.n_relations, rows, answers


def _joined_lookups(parts: list[tuple[Side, Lookup]], n_relations: int) -> Lookup:
    """One group of questions for tails, heads asked through the inverse relations."""
    known, relations, rows, answers = [], [], [], []
    n = 0
    for side, part in parts:
        known.append(part[0])
        relations.append(part[1] + (n_relations if side == "head" else 0))
        rows.append(part[2] + n)
        answers.append(part[3])
        n += len(part[0])
    return np.concatenate(known), np.concatenate(relations), np.concatenate(rows), np.concatenate(answers)


def _masked_shared(ids: Tensor, rows: Tensor, answers: Tensor) -> Negatives:
    """Every column that holds a row's answer is masked; ids (N,) may repeat."""
    order = torch.argsort(ids)
    ordered = ids[order]
    first = torch.searchsorted(ordered, answers).cpu().numpy()
    count = torch.searchsorted(ordered, answers, right=True).cpu().numpy() - first
    which, columns = expand(first, count, order.cpu().numpy())
    hit = torch.from_numpy(columns).to(ids.device)
    return Negatives(ids, rows[torch.from_numpy(which).to(ids.device)], hit, torch.zeros_like(hit, dtype=torch.bool))


def _masked_own(ids: Tensor, rows: Tensor, answers: Tensor, n_entities: int) -> Negatives:
    """ids (B, N): entries of a row that equal one of its answers are blocked. Rows ascend, answers in a row too."""
    wanted = rows * n_entities + answers
    keys = torch.arange(len(ids), device=ids.device)[:, None] * n_entities + ids
    place = torch.searchsorted(wanted, keys).clamp_max(len(wanted) - 1)
    return Negatives(ids, blocked=wanted[place] == keys)


def _fine_uniform(n_rows: int, count: int, key: int, device: torch.device) -> Tensor:
    """Uniform doubles in [0, 1) with 46 random bits, fine enough for any number of entities: (n_rows, count);
    a smaller count is a prefix in every row."""
    coarse = uniform(torch.arange(n_rows, device=device), 2 * count, key).double()
    return ((coarse[:, 0::2] - 2.0**-24) + coarse[:, 1::2] * 2.0**-23).clamp(0, 1 - 2.0**-46)


def _cumulative_counts(train: NDArray[np.int32], n_entities: int) -> NDArray[np.float64]:
    """Σ (count + 1) up to each entity: how often it stands in train, unseen ones once."""
    counts = np.bincount(train[:, 0], minlength=n_entities) + np.bincount(train[:, 2], minlength=n_entities)
    return np.cumsum(counts + 1.0)
