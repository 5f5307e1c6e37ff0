"""Filtered ranks of true answers among all entities, both slots, in tiles planned from free memory.

Comes from a model and triples, goes to `metrics`. The rank of an answer is 1 + the number of other candidates that
score higher + half of those that score the same; candidates that are known to be true are left out (the filter).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from grash.data.known import KnownAnswers
from grash.errors import Diverged
from grash.kernels.count_above import count_above, exact_scores, largest_row
from grash.kernels.random import key_at, key_of, permuted_rows
from grash.models import KgeModel
from grash.models.base import SLOTS, Slot

_MIN_TILE = 1024
_MAX_QUERIES = 1024
_TOGETHER = 128  # drawn candidates scored together, for each of 256 questions
_ROWS = 1 << 16  # rows of a table looked at together


@dataclass(frozen=True, eq=False)
class SlotRanks:
    """For n triples: how many candidates score above the truth, how many the same, out of how many others."""

    above: NDArray[np.int64]
    ties: NDArray[np.int64]
    others: NDArray[np.int64]

    @property
    def optimistic(self) -> NDArray[np.floating]:
        return 1.0 + self.above

    @property
    def mean(self) -> NDArray[np.floating]:
        return 1.0 + self.above + self.ties / 2

    @property
    def pessimistic(self) -> NDArray[np.floating]:
        return 1.0 + self.above + self.ties


@dataclass(frozen=True, eq=False)
class Ranks:
    """Ranks of n triples (n, 3), each by its head and by its tail."""

    triples: NDArray[np.int32]
    head: SlotRanks
    tail: SlotRanks


class Question:
    """The questions of one slot with their filter, on the device; made once, ranked as often as one likes."""

    def __init__(
        self,
        triples: NDArray[np.int32],
        known: KnownAnswers,
        slot: Slot,
        device: torch.device,
        n_entities: int,
    ) -> None:
        heads, relations, tails = triples.astype(np.int64).T
        self.slot: Slot = slot
        known_ids, answers = (heads, tails) if slot == "tail" else (tails, heads)
        self.known, self.relations, self.answers = (
            torch.from_numpy(np.ascontiguousarray(x)).to(device) for x in (known_ids, relations, answers)
        )
        rows, columns = known.of_slot(slot).pairs(known_ids, relations)
        other = columns != answers[rows]
        self.rows, self.columns = rows[other], columns[other].astype(np.int64)
        self.others = n_entities - 1 - np.bincount(self.rows, minlength=len(triples))
        self.starts = np.searchsorted(self.rows, np.arange(len(triples) + 1))
        self.device = device
        self._skips: dict[tuple[int, int], tuple[Tensor, Tensor]] = {}

    def skips(self, first: int, last: int) -> tuple[Tensor, Tensor]:
        """(row − first, column) of the filtered candidates of questions first…last, columns ascending."""
        if (first, last) not in self._skips:
            part = slice(self.starts[first], self.starts[last])
            rows, columns = self.rows[part] - first, self.columns[part]
            order = np.argsort(columns, kind="stable")
            pair = (torch.from_numpy(rows[order]), torch.from_numpy(columns[order]))
            self._skips[first, last] = (pair[0].to(self.device), pair[1].to(self.device))
        return self._skips[first, last]


class Ranker:
    """Ranks the same triples under one model after another (validation), or once (test)."""

    def __init__(self, triples: NDArray[np.int32], known: KnownAnswers, n_entities: int, device: torch.device) -> None:
        self.triples, self.n_entities, self.device = np.ascontiguousarray(triples), n_entities, device
        self.questions = {s: Question(self.triples, known, s, device, n_entities) for s in SLOTS}

    @torch.no_grad()
    def rank(self, model: KgeModel, *, work_bytes: int | None = None) -> Ranks:
        """The ranks under this model. `work_bytes` bounds the score tile; ranks do not depend on it."""
        _check_finite(model)
        batch, tile = plan_tiles(len(self.triples), self.n_entities, work_bytes or default_work_bytes(self.device))
        slots = {slot: self._rank_slot(model, q, batch, tile) for slot, q in self.questions.items()}
        return Ranks(self.triples, head=slots["head"], tail=slots["tail"])

    def _rank_slot(self, model: KgeModel, question: Question, batch: int, tile: int) -> SlotRanks:
        above, ties = [], []
        largest = None
        for first in range(0, len(self.triples), batch):
            last = min(first + batch, len(self.triples))
            part = slice(first, last)
            queries, seen = model.queries(question.known[part], question.relations[part], question.slot)
            rows, columns = question.skips(first, last)
            candidates = model.candidate(model.entity, seen)
            if largest is None:
                largest = largest_row(candidates, model.pair)
            a, t = count_above(
                queries,
                candidates,
                question.answers[part],
                rows,
                columns,
                model.pair,
                tile=tile,
                largest=largest,
            )
            above.append(a)
            ties.append(t)
        return SlotRanks(_joined(above), _joined(ties), question.others)


def default_work_bytes(device: torch.device) -> int:
    """A tile that stays in a CPU's cache, or a share of a card's free memory."""
    if device.type == "cpu":
        return 8 << 20
    free, _ = torch.cuda.mem_get_info(device)
    return min(2 << 30, free // 4)


def plan_tiles(n_queries: int, n_entities: int, work_bytes: int) -> tuple[int, int]:
    """(queries, candidates) scored at a time, so that a tile of float32 scores fits into work_bytes."""
    batch = max(1, min(_MAX_QUERIES, n_queries))
    cells = max(1, work_bytes // 4)
    if cells // batch < _MIN_TILE:
        batch = max(1, cells // _MIN_TILE)
    return batch, max(1, min(n_entities, cells // batch))


@torch.no_grad()
def rank_against_sample(
    model: KgeModel,
    triples: NDArray[np.int32],
    known: KnownAnswers,
    *,
    n_candidates: int,
    seed: int,
    device: torch.device,
) -> Ranks:
    """Ranks among `n_candidates` entities drawn per question, known answers left out.

    A different quantity from ranks among all entities, and not comparable with it: its metrics carry the number
    in their names.
    """
    _check_finite(model)
    n_candidates = min(n_candidates, model.n_entities)
    slots = {}
    for slot in SLOTS:
        question = Question(triples, known, slot, device, model.n_entities)
        key = key_of(seed, "candidates", slot)
        parts: list[list[Tensor]] = [[], [], []]
        for first in range(0, len(triples), 256):
            last = min(first + 256, len(triples))
            drawn = permuted_rows(last - first, n_candidates, model.n_entities, key_at(key, first), device)
            for store, value in zip(parts, _sampled_counts(model, question, first, last, drawn)):
                store.append(value)
        slots[slot] = SlotRanks(*(_joined(p) for p in parts))
    return Ranks(np.ascontiguousarray(triples), head=slots["head"], tail=slots["tail"])


def _sampled_counts(
    model: KgeModel, question: Question, first: int, last: int, drawn: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    part = slice(first, last)
    queries, seen = model.queries(question.known[part], question.relations[part], question.slot)
    answers = question.answers[part]
    real = drawn != answers[:, None]
    rows, columns = question.skips(first, last)
    for row, column in zip(rows.split(4096), columns.split(4096)):
        hit, place = torch.nonzero(drawn[row] == column[:, None], as_tuple=True)
        real[row[hit], place] = False
    truth = exact_scores(queries, model.candidate(model.entity[answers], seen), model.pair)
    candidates = model.candidate(model.entity, seen)
    above, ties = torch.zeros(len(drawn), dtype=torch.int64, device=drawn.device), torch.zeros_like(answers)
    for part, genuine in zip(drawn.split(_TOGETHER, 1), real.split(_TOGETHER, 1)):
        asked = queries.repeat_interleave(part.shape[1], 0)
        scores = exact_scores(asked, candidates[part.reshape(-1)], model.pair).reshape(part.shape)
        above += ((scores > truth[:, None]) & genuine).sum(1)
        ties += ((scores == truth[:, None]) & genuine).sum(1)
    return above, ties, real.sum(1)


def _check_finite(model: KgeModel) -> None:
    tables = (model.entity.split(_ROWS), model.relation.split(_ROWS))
    if not all(torch.isfinite(part).all() for table in tables for part in table):
        raise Diverged("The model holds NaN or infinite numbers, so its scores have no order: train it anew.")


def _joined(parts: list[Tensor]) -> NDArray[np.int64]:
    return torch.cat(parts).cpu().numpy() if parts else np.empty(0, np.int64)
