"""Ranking by the counting kernels on CUDA: all launches are queued, the host reads once, at the end.

Comes from `questions` and a model, goes to `ranking`. Ids and filters stay on the device between rankings; queries and
work space live as long as their launches.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from grash.evaluation.questions import Question
from grash.kernels.far_rows import is_far, pieces
from grash.models import KgeModel
from grash.models.base import Slot

if TYPE_CHECKING:
    from grash.kernels.count_above_triton import Asked, Shape

_GATHERED = 1 << 21  # floats of rows that become queries together
_TOGETHER = 6  # such blocks while they do
_ASKED = 1 << 17  # queries that meet a piece of a table that lies elsewhere


@dataclass(frozen=True, eq=False)
class _Asked:
    """A question under way: queries (Q, W), each distinct one once, where its truths stand, and where the counts go."""

    question: Question
    shape: Shape
    asked: Asked
    queries: Tensor
    seen: Slot
    rows: Tensor  # (E, W) candidates with `truth` as ids, or (B, W), the truths alone
    truth: Tensor
    edges: Tensor
    out: Tensor
    open_pairs: Tensor  # (pieces, parts of a piece)


class Counting:
    """One model's answers to the questions, under way on the device. A table that lies elsewhere comes to it piece by
    piece, and each piece meets as many questions as there are, up to _ASKED queries."""

    def __init__(self, model: KgeModel, questions: Sequence[Question], shapes: Sequence[Shape] | None = None) -> None:
        from grash.kernels.count_above_triton import PART_BYTES, PIECE_BYTES, Shape

        self.model, self.questions, self.far = model, questions, is_far(model.entity)
        width = model.candidate(model.entity[:0], "tail").shape[1]
        most = PIECE_BYTES if self.far else PART_BYTES
        self.shapes = shapes or [Shape.of(len(q), model.n_entities, width, most_bytes=most) for q in questions]
        self.piece = max((s.part for s in self.shapes), default=1) if self.far else max(1, model.n_entities)
        n_pieces = -(-model.n_entities // self.piece)
        self.counters = [n_pieces * s.parts(self.piece) for s in self.shapes]
        self.numbers = torch.zeros(
            1 + sum(2 * len(q) for q in questions) + sum(self.counters), dtype=torch.int64, device=model.entity.device
        )
        bad, *rest = self.numbers.split([1, *(n for q, c in zip(questions, self.counters) for n in (2 * len(q), c))])
        bad.copy_(~torch.isfinite(model.relation).all())
        largest: dict[int, Tensor] = {}
        for group in self._groups():  # no name holds a group's queries while the next one's are made
            self._count(
                [self._ask(i, rest[2 * i].view(2, -1), rest[2 * i + 1].view(n_pieces, -1)) for i in group],
                {} if self.far else largest,
                bad,
            )

    def _groups(self) -> list[list[int]]:
        """Places of questions that are asked together: one by one, or as many as meet a piece."""
        groups: list[list[int]] = []
        for i, question in enumerate(self.questions):
            together = len(question) + sum(len(self.questions[j]) for j in groups[-1]) if groups else 0
            if self.far and groups and together <= _ASKED:
                groups[-1].append(i)
            else:
                groups.append([i])
        return groups

    def _ask(self, i: int, out: Tensor, open_pairs: Tensor) -> _Asked:
        from grash.kernels.count_above_triton import Asked

        model, question, shape = self.model, self.questions[i], self.shapes[i]
        distinct = question.distinct
        asked = Asked(distinct.asks, distinct.order, distinct.starts)
        queries, seen = _queries(model, question)
        rows, truth = model.candidate(model.entity, seen), question.answers
        if self.far:
            rows = model.candidate(model.entity[truth], seen).contiguous()
            truth = torch.arange(len(truth), device=truth.device)
        edges = queries.new_empty(3, shape.truths)
        return _Asked(question, shape, asked, queries, seen, rows, truth, edges, out, open_pairs)

    def _count(self, asked: list[_Asked], largest: dict[int, Tensor], bad: Tensor) -> None:
        """largest: sizes of candidates by where these lie, which several questions share."""
        from grash.kernels.count_above_triton import count_rows
        from grash.kernels.count_exact_triton import leave_out, sizes, truths

        model, pair = self.model, self.model.pair
        for first, rows in pieces(model.entity, self.piece):
            if first:
                largest.clear()
            for a in asked:
                candidates = model.candidate(rows, a.seen)
                where = candidates.data_ptr()
                if where not in largest:
                    largest[where] = sizes(candidates, pair).max()
                truths(a.queries, a.rows, a.truth, a.asked.asks, largest[where], pair, a.edges, bad)
                open_pairs = a.open_pairs[first // self.piece]
                count_rows(a.queries, candidates, a.edges, a.asked, pair, a.shape, out=a.out, open_pairs=open_pairs)
        for a in asked:
            everyone = model.candidate(model.entity, a.seen)
            distinct = a.question.distinct
            leave_out(a.queries, everyone, a.edges, distinct.pairs, distinct.runs, pair, a.out)

    def read(self) -> list[NDArray[np.int64]] | None:
        """For each of the questions (2, B): above and ties. None if the model's scores have no order. The one wait;
        where too many pairs stayed open, those questions are counted again in smaller parts."""
        values = self.numbers.cpu().numpy()
        if values[0]:
            return None
        found, again, place = [], [], 1
        for i, (question, shape, counters) in enumerate(zip(self.questions, self.shapes, self.counters)):
            end = place + 2 * len(question)
            found.append(values[place:end].reshape(2, -1))
            place = end + counters
            if (values[end:place] > shape.room).any():
                again.append(i)
        if again:
            finer = Counting(self.model, [self.questions[i] for i in again], [self.shapes[i].finer() for i in again])
            for i, counts in zip(again, finer.read() or []):
                found[i] = counts
        return found


def counting_bytes(
    n_triples: int, together: int, n_filtered: int, n_entities: int, width: int, *, far: bool = False
) -> int:
    """Bytes on the device for the questions of both slots, at most `together` of them asked at a time, with n_filtered
    known answers of distinct questions: what stays, and what the work takes on top. far: the table lies elsewhere."""
    from grash.kernels.count_above_triton import PART_BYTES, PIECE_BYTES, Shape

    asked = min(n_triples, together)
    shape = Shape.of(asked, n_entities, width, most_bytes=PIECE_BYTES if far else PART_BYTES)
    stays = 2 * n_triples * (24 + 12 + 16) + 8 * n_filtered
    numbers = 8 * (1 + 4 * n_triples + 2 * -(-n_triples // together) * shape.parts(n_entities))
    queries = 4 * asked * width
    gathered = _TOGETHER * 4 * min(_GATHERED, asked * width)
    if far:  # two pieces of the table; queries and truths of a whole group
        group = min(2 * n_triples, max(_ASKED, asked))
        queries = 2 * 4 * group * width + 2 * 4 * min(shape.part, n_entities) * width
    return stays + numbers + queries + max(gathered, shape.bytes + 4 * n_filtered)


def _queries(model: KgeModel, question: Question) -> tuple[Tensor, Slot]:
    """(Q, W) contiguous, one for each distinct question, and the slot whose candidates they meet."""
    rows = max(1, _GATHERED // max(model.dim, model.relation.shape[1]))
    parts = [
        model.queries(question.known[part], question.relations[part], question.slot)[0].contiguous()
        for part in question.distinct.asking.split(rows)
    ]
    _, seen = model.asked(question.relations[:0], question.slot)
    return parts[0] if len(parts) == 1 else torch.cat(parts), seen
