"""Ranking by the counting kernels on CUDA: all launches are queued, the host reads once, at the end.

Comes from `questions` and a model, goes to `ranking`. Ids and filters stay on the device between rankings; queries and
work space live as long as their launches.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from grash.evaluation.questions import Question
from grash.models import KgeModel

if TYPE_CHECKING:
    from grash.kernels.count_above_triton import Shape

_GATHERED = 1 << 21  # floats of rows that become queries together
_TOGETHER = 6  # such blocks while they do


class Counting:
    """One model's answers to the questions, under way on the device."""

    def __init__(self, model: KgeModel, questions: Sequence[Question], shapes: Sequence[Shape] | None = None) -> None:
        from grash.kernels.count_above_triton import Filter, Shape, count
        from grash.kernels.count_exact_triton import sizes

        self.model, self.questions = model, questions
        width = model.candidate(model.entity[:0], "tail").shape[1]
        self.shapes = shapes or [Shape.of(len(q), model.n_entities, width) for q in questions]
        counters = [s.parts(model.n_entities) for s in self.shapes]
        self.numbers = torch.zeros(
            1 + sum(2 * len(q) for q in questions) + sum(counters), dtype=torch.int64, device=model.entity.device
        )
        bad, *rest = self.numbers.split([1, *(n for q, c in zip(questions, counters) for n in (2 * len(q), c))])
        bad.copy_(~torch.isfinite(model.relation).all())
        largest: dict[int, Tensor] = {}
        for question, shape, out, found in zip(questions, self.shapes, rest[::2], rest[1::2]):
            queries, candidates = _queries(model, question)
            where = candidates.data_ptr()
            if where not in largest:
                largest[where] = sizes(candidates, model.pair).max()
            count(
                queries, candidates, question.answers, largest[where], Filter(*question.filter()), model.pair, shape,
                out=out.view(2, -1), open_pairs=found, bad=bad,
            )  # fmt: skip

    def read(self) -> list[NDArray[np.int64]] | None:
        """For each of the questions (2, B): above and ties. None if the model's scores have no order. The one wait;
        where too many pairs stayed open, those questions are counted again in smaller parts."""
        values = self.numbers.cpu().numpy()
        if values[0]:
            return None
        found, again, place = [], [], 1
        for i, (question, shape) in enumerate(zip(self.questions, self.shapes)):
            end = place + 2 * len(question)
            found.append(values[place:end].reshape(2, -1))
            place = end + shape.parts(self.model.n_entities)
            if (values[end:place] > shape.room).any():
                again.append(i)
        if again:
            finer = Counting(self.model, [self.questions[i] for i in again], [self.shapes[i].finer() for i in again])
            for i, counts in zip(again, finer.read() or []):
                found[i] = counts
        return found


def counting_bytes(n_triples: int, together: int, n_filtered: int, n_entities: int, width: int) -> int:
    """Bytes on the device for the questions of both slots, at most `together` of them asked at a time, with n_filtered
    known answers of distinct questions: what stays, and what the work takes on top."""
    from grash.kernels.count_above_triton import Shape

    asked = min(n_triples, together)
    shape = Shape.of(asked, n_entities, width)
    stays = 2 * n_triples * (24 + 12) + 8 * n_filtered
    numbers = 8 * (1 + 4 * n_triples + 2 * -(-n_triples // together) * shape.parts(n_entities))
    queries = 4 * asked * width
    gathered = _TOGETHER * 4 * min(_GATHERED, asked * width)
    return stays + numbers + queries + max(gathered, shape.bytes + 4 * n_filtered)


def _queries(model: KgeModel, question: Question) -> tuple[Tensor, Tensor]:
    """(B, W) contiguous, and the candidates (E, W) they meet."""
    rows = max(1, _GATHERED // max(model.dim, model.relation.shape[1]))
    parts = [
        model.queries(known, relations, question.slot)[0].contiguous()
        for known, relations in zip(question.known.split(rows), question.relations.split(rows))
    ]
    _, seen = model.asked(question.relations[:0], question.slot)
    return parts[0] if len(parts) == 1 else torch.cat(parts), model.candidate(model.entity, seen)
