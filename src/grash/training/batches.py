"""The batches of a training: the positives of each step, and the negatives drawn for them.

A batch depends on the seed and the step alone: the order of an epoch is a keyed permutation of the triples, which is
never stored, and negatives without replacement are the first items of a keyed permutation of the entities. So the
batch of any step can be made at any time on any device, and a resumed run sees the same batches.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from grash.data.known_answers import AnswerIndex, KnownAnswers, expand
from grash.kernels.random import BatchSampler, Key, key_at, key_of, key_value, permuted, permuted_rows, uniform
from grash.models.base import SIDES, Side
from grash.training.config import TrainConfig


@dataclass(frozen=True)
class Negatives:
    """Negatives of one side: ids (N,) shared by the batch, or (B, N), each positive's own.

    An id that is no negative (the true answer, or a known fact) is masked: with shared ids the pairs
    (rows[k], columns[k]) where real[k] is False, with own ids where `blocked` (B, N) is True."""

    ids: Tensor
    rows: Tensor | None = None
    columns: Tensor | None = None
    real: Tensor | None = None
    blocked: Tensor | None = None

    def mask(self, scores: Tensor) -> None:
        """Set the masked scores (B, N) to −∞, without waiting for the device."""
        if self.blocked is not None:
            scores.masked_fill_(self.blocked, -torch.inf)
        else:
            assert self.real is not None
            pairs = (self.rows, self.columns)
            scores[pairs] = scores[pairs].masked_fill_(~self.real, -torch.inf)


@dataclass(frozen=True)
class Batch:
    """Positive triples (B, 3) on the device, and the negatives of each predicted side."""

    triples: Tensor
    negatives: dict[Side, Negatives]


@dataclass(frozen=True)
class Draw:
    """The numbers that decide the batch of a step. In a captured CUDA graph (`captured`), all but the size are tensors
    (1,) of int64 in device memory."""

    size: int
    first: int | Tensor  # position in the order of the epoch
    order: Key  # of that order
    negatives: Mapping[Side, Key]


@dataclass(frozen=True)
class Questions:
    """A KvsAll batch of one side: known (B,), relations (B,), and the true (rows[k], answers[k])."""

    side: Side
    known: Tensor
    relations: Tensor
    rows: Tensor
    answers: Tensor


@dataclass(frozen=True)
class QuestionRuns:
    """The same, where question i has the answers[first[i] : first[i] + count[i]]: no size depends on the answers."""

    side: Side
    known: Tensor
    relations: Tensor
    first: Tensor
    count: Tensor
    answers: Tensor

    def as_pairs(self) -> Questions:
        """Return them as pairs; waits for the device."""
        runs = (part.cpu().numpy() for part in (self.first, self.count, self.answers))
        rows, answers = (torch.from_numpy(part).to(self.known.device, torch.int64) for part in expand(*runs))
        return Questions(self.side, self.known, self.relations, rows, answers)


class Plan:
    """The steps of a run: `total` examples in `n_steps` batches; the last batch of each epoch may be shorter.

    An example is a positive, or a question with kvsall."""

    def __init__(self, n_examples: int, batch_size: int, epochs: float) -> None:
        self.n_examples, self.batch_size = n_examples, batch_size
        self.total = max(1, round(epochs * n_examples))
        self.steps_per_epoch = math.ceil(n_examples / batch_size)
        self.n_steps = self.steps_at(self.total)

    def steps_at(self, examples: int) -> int:
        """Return the number of steps after which this many examples have been seen."""
        whole, rest = divmod(examples, self.n_examples)
        return whole * self.steps_per_epoch + math.ceil(rest / self.batch_size)

    def steps_to(self, epoch: float) -> int:
        """Return the number of steps, at least 1, after which this many epochs have been seen."""
        return self.steps_at(min(self.total, max(1, round(epoch * self.n_examples))))

    @property
    def full_steps(self) -> int:
        """Steps that are the same in a longer run: all except a last one that is cut short within its epoch."""
        whole, rest = divmod(self.total, self.n_examples)
        return whole * self.steps_per_epoch + rest // self.batch_size

    def epoch_after(self, step: int) -> float:
        """Return how many epochs have been seen after this many steps."""
        return self.examples_before(step) / self.n_examples

    def positions(self, step: int) -> tuple[int, int, int]:
        """Return (epoch, first, last): the step's positions in the order of that epoch."""
        epoch, index = divmod(step, self.steps_per_epoch)
        last = min((index + 1) * self.batch_size, self.n_examples, self.total - epoch * self.n_examples)
        return epoch, index * self.batch_size, last

    def examples_before(self, step: int) -> int:
        epoch, index = divmod(step, self.steps_per_epoch)
        return min(self.total, epoch * self.n_examples + index * self.batch_size)


def needs_index(config: TrainConfig) -> bool:
    """Return whether training needs an index of known answers."""
    return config.training == "kvsall" or config.negatives_filtered


class Batches:
    """Makes the batch of any step from the training triples (n, 3), which are stored on the device."""

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
        """on_device: `train` on the device; known: its index (see `needs_index`). Trainings may share both."""
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

    def draw_of(self, step: int) -> Draw:
        """Return what decides the batch of a step."""
        epoch, first, last = self.plan.positions(step)
        negatives = {side: key_at(self._negatives_keys[side], step) for side in self._counts}
        return Draw(last - first, first, key_at(self._order_key, epoch), negatives)

    def positives(self, step: int | Draw) -> Batch:
        """Return the batch of a step of negative sampling or 1vsAll."""
        if self._at_once is not None and isinstance(step, int):
            triples, rows, drawn = self._at_once.draw(step, *self.plan.positions(step))
            return Batch(triples, {s: Negatives(ids, rows, *at) for s, (ids, *at) in zip(self._counts, drawn)})
        draw = self.draw_of(step) if isinstance(step, int) else step
        triples = self.train[self._places(draw)].to(torch.int64)
        if self.config.training == "1vsall":
            return Batch(triples, {})
        negatives = {s: self._negatives(triples, s, n, draw.negatives[s]) for s, n in self._counts.items()}
        return Batch(triples, negatives)

    def questions(self, step: int) -> list[Questions]:
        """Return the batch of a step of KvsAll, by side; with reciprocals everything is a question for tails."""
        assert self.known is not None
        places = self._places(self.draw_of(step)).cpu().numpy()
        n_tail = len(self.known.tail)
        groups: list[tuple[Side, AnswerIndex, NDArray[np.int64]]] = [
            ("tail", self.known.tail, places[places < n_tail]),
            ("head", self.known.head, places[places >= n_tail] - n_tail),
        ]
        parts = [(side, _lookup(index, chosen)) for side, index, chosen in groups if len(chosen)]
        if self.config.reciprocal:
            parts = [("tail", _joined_lookups(parts, self.n_relations))]
        return [Questions(side, *(self._tensor(a) for a in arrays)) for side, arrays in parts]

    def question_runs(self, draw: Draw) -> QuestionRuns:
        """Return `questions` with reciprocals, looked up on the device."""
        questions, answers = self.questions_on_device
        places = self._places(draw)
        assert self.known is not None
        places = places[torch.argsort((places >= len(self.known.tail)).to(torch.int8), stable=True)]
        known, relations, first, count = questions[:, places].unbind(0)
        return QuestionRuns("tail", known, relations, first, count, answers)

    @cached_property
    def questions_on_device(self) -> tuple[Tensor, Tensor]:
        """Known entity, relation, first answer and number of answers of every question, (4, q) int64, and all answers.
        Questions for heads follow those for tails, as questions for tails of the inverse relations."""
        assert self.known is not None
        tail, head = self.known.tail, self.known.head
        columns = [
            np.concatenate([tail.keys // self.n_relations, head.keys // self.n_relations]),
            np.concatenate([tail.keys % self.n_relations, head.keys % self.n_relations + self.n_relations]),
            np.concatenate([tail.starts[:-1], head.starts[:-1] + len(tail.answers)]),
            np.concatenate([np.diff(tail.starts), np.diff(head.starts)]),
        ]
        answers = torch.from_numpy(np.concatenate([tail.answers, head.answers])).to(self.device)
        return self._tensor(np.stack(columns)), answers

    def _draw_at_once(self) -> BatchSampler | None:
        """On a CPU, draw positives and the default kind of negatives in one loop; equals `_negatives`."""
        config, keys = self.config, self._negatives_keys
        special = config.negatives_replacement or config.negatives_filtered or config.negatives_sampling != "uniform"
        if config.training != "negative_sampling" or special or not config.negatives_shared:
            return None
        sides = [(keys[s], min(n, self.n_entities), 0 if s == "head" else 2) for s, n in self._counts.items()]
        return BatchSampler(self.train, self._order_key, self.n_entities, sides)

    def _places(self, draw: Draw) -> Tensor:
        places = torch.arange(draw.size, device=self.device) + draw.first
        return permuted(places, self.plan.n_examples, draw.order)

    def _negatives(self, triples: Tensor, side: Side, count: int, key: Key) -> Negatives:
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
            columns = permuted(answers, self.n_entities, key, inverse=True)
            if self.config.negatives_filtered:  # several answers per row: no two may share a column after the clamp
                drawn = columns < count
                rows, columns = rows[drawn], columns[drawn]
            return Negatives(ids, rows, columns.clamp_max(count - 1), columns >= count)
        return _masked_shared(self._draw(1, count, key, distinct)[0], rows, answers)

    def _draw(self, n_rows: int, count: int, key: Key, distinct: bool) -> Tensor:
        """Return entity ids (n_rows, count), distinct within a row if wanted."""
        if distinct and self._weights is None:
            return permuted_rows(n_rows, count, self.n_entities, key, self.device)
        if distinct:
            return torch.stack([self._draw_weighted(count, key_at(key_value(key), row)) for row in range(n_rows)])
        point = _fine_uniform(n_rows, count, key, self.device)
        if self._weights is None:
            return (point * self.n_entities).to(torch.int64)
        ids = np.searchsorted(self._weights, point.cpu().numpy() * self._weights[-1], side="right")
        return self._tensor(ids)

    def _draw_weighted(self, count: int, key: int) -> Tensor:
        """Draw weighted and distinct ids: the `count` smallest of exponential clocks (Efraimidis and Spirakis)."""
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
    """Return triples (n, 3) as contiguous int32 on the device."""
    rows = np.ascontiguousarray(train, np.int32)
    # a memory-mapped array is read-only, which torch does not support
    return torch.from_numpy(rows if rows.flags.writeable else rows.copy()).to(device)


Lookup = tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64], NDArray[np.int32]]


def _lookup(index: AnswerIndex, chosen: NDArray[np.int64]) -> Lookup:
    """Return (known, relations, rows, answers) of the chosen questions."""
    first = index.starts[chosen]
    rows, answers = expand(first, index.starts[chosen + 1] - first, index.answers)
    return index.keys[chosen] // index.n_relations, index.keys[chosen] % index.n_relations, rows, answers


def _joined_lookups(parts: list[tuple[Side, Lookup]], n_relations: int) -> Lookup:
    """Return all questions as questions for tails: those for heads use the inverse relations."""
    joined: list[Lookup] = []
    n = 0
    for side, (known, relations, rows, answers) in parts:
        joined.append((known, relations + (n_relations if side == "head" else 0), rows + n, answers))
        n += len(known)
    known, relations, rows, answers = (np.concatenate(arrays) for arrays in zip(*joined))
    return known, relations, rows, answers


def _masked_shared(ids: Tensor, rows: Tensor, answers: Tensor) -> Negatives:
    """Mask every column that holds an answer of the row; ids (N,) may repeat."""
    order = torch.argsort(ids)
    ordered = ids[order]
    first = torch.searchsorted(ordered, answers).cpu().numpy()
    count = torch.searchsorted(ordered, answers, right=True).cpu().numpy() - first
    which, columns = expand(first, count, order.cpu().numpy())
    hit = torch.from_numpy(columns).to(ids.device)
    return Negatives(ids, rows[torch.from_numpy(which).to(ids.device)], hit, torch.zeros_like(hit, dtype=torch.bool))


def _masked_own(ids: Tensor, rows: Tensor, answers: Tensor, n_entities: int) -> Negatives:
    """Mask ids (B, N) that are an answer of their row; rows ascend, and so do the answers of a row."""
    wanted = rows * n_entities + answers
    keys = torch.arange(len(ids), device=ids.device)[:, None] * n_entities + ids
    place = torch.searchsorted(wanted, keys).clamp_max(len(wanted) - 1)
    return Negatives(ids, blocked=wanted[place] == keys)


def _fine_uniform(n_rows: int, count: int, key: Key, device: torch.device) -> Tensor:
    """Return doubles (n_rows, count), uniform in [0, 1) with 46 random bits, enough for any number of entities.

    In every row, a smaller count is a prefix of a larger one."""
    coarse = uniform(torch.arange(n_rows, device=device), 2 * count, key).double()
    return ((coarse[:, 0::2] - 2.0**-24) + coarse[:, 1::2] * 2.0**-23).clamp(0, 1 - 2.0**-46)


def _cumulative_counts(train: NDArray[np.int32], n_entities: int) -> NDArray[np.float64]:
    """Return Σ (count + 1) up to each entity; count: in how many places of train it occurs."""
    counts = np.bincount(train[:, 0], minlength=n_entities) + np.bincount(train[:, 2], minlength=n_entities)
    return np.cumsum(counts + 1.0)
