"""Filtered ranks of true answers among all entities, both slots: by counting, no matrix of scores.

Comes from a model and triples, goes to `metrics`. The rank of an answer is 1 + the number of other candidates that
score higher + half of those that score the same; candidates that are known to be true are left out (the filter).
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from grash.data.known import KnownAnswers
from grash.errors import Diverged
from grash.evaluation.counting import Counting, counting_bytes
from grash.evaluation.far import count_far
from grash.evaluation.questions import Question
from grash.kernels.count_above import NO_ORDER, count_above, exact_scores, largest_row, serves
from grash.kernels.current import make_current
from grash.kernels.far_rows import is_far
from grash.kernels.random import key_at, key_of, permuted_rows
from grash.models import KgeModel
from grash.models.base import SLOTS, Slot

_QUESTIONS = 1 << 16  # asked together
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


class Ranker:
    """Ranks the same triples under one model after another (validation), or once (test)."""

    def __init__(self, triples: NDArray[np.int32], known: KnownAnswers, n_entities: int, device: torch.device) -> None:
        make_current(device)
        self.triples, self.n_entities, self.device = np.ascontiguousarray(triples), n_entities, device
        parts = [self.triples[i : i + _QUESTIONS] for i in range(0, len(self.triples), _QUESTIONS)]
        self.questions = {s: [Question(part, known, s, device, n_entities) for part in parts] for s in SLOTS}

    def rank(self, model: KgeModel, *, work_bytes: int | None = None) -> Ranks:
        """The ranks under this model. `work_bytes` bounds the score tile of the plain path; ranks do not depend on
        it."""
        return self.begin(model, work_bytes=work_bytes)()

    def rank_many(self, models: Sequence[KgeModel]) -> list[Ranks | Diverged]:
        """The ranks under each model, all of them begun before the first is read."""
        return [_or_diverged(begun) for begun in [self.begin(model) for model in models]]

    @torch.no_grad()
    def begin(self, model: KgeModel, *, work_bytes: int | None = None) -> Callable[[], Ranks]:
        """Begins, and gives what waits for the ranks. The counting kernels are under way then, and the model must stay
        as it is; on the plain path nothing happens before the ranks are asked for."""
        if not serves(model.candidate(model.entity[:0], "tail")):
            return functools.partial(self._rank_plainly, model, work_bytes)
        return functools.partial(self._read, Counting(model, [q for slot in SLOTS for q in self.questions[slot]]))

    @torch.no_grad()
    def _read(self, counting: Counting) -> Ranks:
        found = counting.read()
        if found is None:
            raise not_finite(counting.model) or Diverged(NO_ORDER)
        n = len(found) // 2
        return self._ranks({"head": found[:n], "tail": found[n:]})

    def _ranks(self, counts: dict[Slot, list[NDArray[np.int64]]]) -> Ranks:
        slots = {}
        for slot, parts in counts.items():
            above, ties = np.concatenate([np.empty((2, 0), np.int64), *parts], 1)
            others = np.concatenate([np.empty(0, np.int64), *(q.others for q in self.questions[slot])])
            slots[slot] = SlotRanks(above, ties, others)
        return Ranks(self.triples, head=slots["head"], tail=slots["tail"])

    @torch.no_grad()
    def _rank_plainly(self, model: KgeModel, work_bytes: int | None) -> Ranks:
        far = is_far(model.entity)
        diverged = not_finite(model, entities=not far)  # which `count_far` looks at as it goes
        if diverged:
            raise diverged
        batch, tile = plan_tiles(len(self.triples), self.n_entities, work_bytes or default_work_bytes(self.device))
        if far:
            found = count_far(model, [q for s in SLOTS for q in self.questions[s]], batch, tile)
            return self._ranks({"head": found[: len(found) // 2], "tail": found[len(found) // 2 :]})
        return self._ranks({s: [_count_plainly(model, q, batch, tile) for q in self.questions[s]] for s in SLOTS})


def _or_diverged(begun: Callable[[], Ranks]) -> Ranks | Diverged:
    try:
        return begun()
    except Diverged as error:
        return error


def _count_plainly(model: KgeModel, question: Question, batch: int, tile: int) -> NDArray[np.int64]:
    """(2, B): above and ties, a batch of questions and a tile of candidates at a time."""
    counts = []
    largest = None
    for first in range(0, len(question), batch):
        last = min(first + batch, len(question))
        part = slice(first, last)
        queries, seen = model.queries(question.known[part], question.relations[part], question.slot)
        candidates = model.candidate(model.entity, seen)
        if largest is None:
            largest = largest_row(candidates, model.pair)
        answers, skip = question.answers[part], question.runs(first, last)
        found = count_above(queries, candidates, answers, skip, model.pair, tile=tile, largest=largest)
        counts.append(torch.stack(found))
    return torch.cat(counts, 1).cpu().numpy()


def ranking_bytes(
    n_triples: int, n_filtered: int, n_entities: int, width: int, device: torch.device, *, far: bool = False
) -> int:
    """Bytes on the device that ranking n_triples takes beside the model. n_filtered: known answers to their distinct
    questions, both slots together; width: floats of a query; far: the table lies elsewhere."""
    if not n_triples:
        return 0
    if serves(torch.empty(0, width, device=device)):
        return counting_bytes(n_triples, _QUESTIONS, n_filtered, n_entities, width, far=far)
    return 2 * default_work_bytes(device)


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
    make_current(device)
    diverged = not_finite(model)
    if diverged:
        raise diverged
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
    real = (drawn != answers[:, None]) & ~question.knows(first, drawn)
    truth = exact_scores(queries, model.candidate(model.entity[answers], seen), model.pair)
    candidates = model.candidate(model.entity, seen)
    above, ties = torch.zeros(len(drawn), dtype=torch.int64, device=drawn.device), torch.zeros_like(answers)
    for part, genuine in zip(drawn.split(_TOGETHER, 1), real.split(_TOGETHER, 1)):
        asked = queries.repeat_interleave(part.shape[1], 0)
        scores = exact_scores(asked, candidates[part.reshape(-1)], model.pair).reshape(part.shape)
        above += ((scores > truth[:, None]) & genuine).sum(1)
        ties += ((scores == truth[:, None]) & genuine).sum(1)
    return above, ties, real.sum(1)


def not_finite(model: KgeModel, *, entities: bool = True) -> Diverged | None:
    tables = (model.entity.split(_ROWS) if entities else (), model.relation.split(_ROWS))
    if all(torch.isfinite(part).all() for table in tables for part in table):
        return None
    return Diverged("The model holds NaN or infinite numbers, so its scores have no order: train it anew.")


def _joined(parts: list[Tensor]) -> NDArray[np.int64]:
    return torch.cat(parts).cpu().numpy() if parts else np.empty(0, np.int64)
