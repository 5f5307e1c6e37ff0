"""Ranking by the plain form where the entity table lies in a file (`kernels/far_rows`): it is walked through once for
many questions, a piece after the other, instead of once for every batch of them.

Comes from `questions` and a model, goes to `ranking`; on a card `counting` does the same by its kernels.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from grash.errors import Diverged
from grash.evaluation.questions import Question
from grash.kernels.count_above import Runs, count_rows, exact_scores, largest_row
from grash.kernels.far_rows import pieces
from grash.models import KgeModel
from grash.models.base import Slot

_ASKED = 1 << 17  # queries that meet a piece
_PIECE_BYTES = 64 << 20


@dataclass(frozen=True, eq=False)
class _Batch:
    """Some queries (B, W) of a question, the exact scores of their truths, what is skipped, and the counts so far."""

    queries: Tensor
    seen: Slot
    exact: Tensor
    truth: Tensor
    skip: Runs
    counts: Tensor  # (2, B): above and ties


def count_far(model: KgeModel, questions: Sequence[Question], batch: int, tile: int) -> list[NDArray[np.int64]]:
    """For each question (2, B): above and ties. `batch` queries meet `tile` candidates at a time."""
    found: list[list[Tensor]] = [[] for _ in questions]
    waiting: list[_Batch] = []
    for place, question in enumerate(questions):
        for first in range(0, len(question), batch):
            waiting.append(_batch(model, question, first, min(first + batch, len(question))))
            found[place].append(waiting[-1].counts)
            if sum(len(b.queries) for b in waiting) >= _ASKED:
                _walk(model, waiting, tile)
                waiting = []
    _walk(model, waiting, tile)
    return [torch.cat(parts, 1).cpu().numpy() for parts in found]


def _batch(model: KgeModel, question: Question, first: int, last: int) -> _Batch:
    part = slice(first, last)
    queries, seen = model.queries(question.known[part], question.relations[part], question.slot)
    truth = question.answers[part]
    exact = exact_scores(queries, model.candidate(model.entity[truth], seen), model.pair)
    counts = torch.zeros(2, last - first, dtype=torch.int64, device=queries.device)
    return _Batch(queries, seen, exact, truth, question.runs(first, last), counts)


def _walk(model: KgeModel, batches: Sequence[_Batch], tile: int) -> None:
    """Every batch meets every piece of the table; all are looked at for what has no order."""
    if not batches:
        return
    for first, rows in pieces(model.entity, max(1, _PIECE_BYTES // (4 * model.dim))):
        if not torch.isfinite(rows).all():
            raise Diverged("The model holds NaN or infinite numbers, so its scores have no order: train it anew.")
        candidates = {seen: model.candidate(rows, seen) for seen in {b.seen for b in batches}}
        largest = {seen: largest_row(some, model.pair) for seen, some in candidates.items()}
        for b in batches:
            some, most = candidates[b.seen], largest[b.seen]
            count_rows(b.queries, some, first, b.exact, b.truth, b.skip, model.pair, tile, most, *b.counts)
