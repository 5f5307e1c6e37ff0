"""Filtered ranks under a model whose entity rows are spread over ranks: each counts among its own, counts are added.

Comes from `engines/distributed`, goes to `metrics`. Every rank makes the queries of a part of the questions and tells
them to all, with the exact scores of their answers (`count_above`). A count is a whole number, decided by exact scores
alone, so the sum is that of one process. (Two meanings of a word: the *rank* of an answer, and a process.)
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from grash.data.dataset import Dataset, SplitName
from grash.data.known_answers import KnownAnswers
from grash.errors import Diverged
from grash.evaluation.evaluate import chosen_triples, evaluation_of
from grash.evaluation.metrics import Evaluation
from grash.evaluation.ranking import Question, Ranker, Ranks, SlotRanks, default_work_bytes, not_finite, plan_tiles
from grash.kernels.count_above import count_rows, exact_scores, largest_row
from grash.models import KgeModel
from grash.models.base import SIDES
from grash.training.distributed.communication import Company
from grash.training.distributed.tables import Route, Shard


class ShardedRanker:
    """Ranks the same triples under one model after another; all ranks call it at once and get the same."""

    def __init__(
        self, triples: NDArray[np.int32], known: KnownAnswers, shard: Shard, company: Company, device: torch.device
    ) -> None:
        self.plain = Ranker(triples, known, shard.n_rows, device)  # its questions, not its counting
        self.shard, self.company, self.device = shard, company, device

    @torch.no_grad()
    def rank(self, model: KgeModel) -> Ranks:
        """model: this rank's rows, and all relations."""
        if self.company.any(not_finite(model) is not None):
            raise not_finite(model) or Diverged("The rows of another rank hold NaN or infinite numbers.")
        n = len(self.plain.triples)
        tiles = plan_tiles(n, max(1, len(self.shard)), default_work_bytes(self.device))
        batch = int(self.company.gather(torch.tensor(tiles[0])).min())
        sides = {}
        for side in SIDES:
            questions = self.plain.questions[side]
            parts = [self._count(model, q, batch, tiles[1]) for q in questions]
            above, ties = np.concatenate([np.empty((2, 0), np.int64), *parts], 1)
            others = np.concatenate([np.empty(0, np.int64), *(q.others for q in questions)])
            sides[side] = SlotRanks(above, ties, others)
        return Ranks(self.plain.triples, head=sides["head"], tail=sides["tail"])

    def _count(self, model: KgeModel, question: Question, batch: int, tile: int) -> NDArray[np.int64]:
        """(2, B): above and ties, a batch of questions at a time."""
        _, seen = model.asked(question.relations[:0], question.side)
        candidates = model.candidate(model.entity, seen)
        largest = self.company.gather(largest_row(candidates, model.pair)).max()
        counts = torch.zeros(2, len(question), dtype=torch.int64, device=self.device)
        for first in range(0, len(question), batch):
            last = min(first + batch, len(question))
            queries, exact = self._queries(model, question, first, last)
            asked = queries, candidates, self.shard.first, exact, question.answers[first:last]
            count_rows(*asked, question.runs(first, last), model.pair, tile, largest, *counts[:, first:last])
        return self.company.total(counts).cpu().numpy()

    def _queries(self, model: KgeModel, question: Question, first: int, last: int) -> tuple[Tensor, Tensor]:
        """(B, W) queries of a batch, and the exact scores (B,) of their answers, made in parts and told to all."""
        company, span = self.company, slice(first, last)
        ends = [company.parts(ids[span]) for ids in (question.known, question.answers)]
        rows = Route([torch.cat(pair) for pair in zip(*ends)], self.shard, company).fetch(model.entity)
        part = company.part(last - first)
        known, answers = rows.split([part.stop - part.start] * 2)
        ids, seen = model.asked(question.relations[span][part], question.side)
        queries = model.query_to_rank(known, model.relation[ids], seen)
        exact = exact_scores(queries, model.candidate(answers, seen), model.pair)
        told = company.gather_parts(torch.cat([queries, exact[:, None]], 1), last - first)
        return told[:, :-1].contiguous(), told[:, -1].contiguous()


def evaluate_shard(
    model: KgeModel,
    dataset: Dataset,
    shard: Shard,
    company: Company,
    *,
    sample: int | None = None,
    seed: int = 0,
) -> Evaluation:
    """`evaluate` of the test split, in company."""
    triples, n_unseen = chosen_triples(dataset, "test", sample, "keep", seed)
    names: tuple[SplitName, ...] = ("train", "valid", "test")
    known = KnownAnswers.of(*(dataset.split(n) for n in names), n_relations=dataset.n_relations, asked=triples)
    ranks = ShardedRanker(triples, known, shard, company, model.entity.device).rank(model)
    return evaluation_of(ranks, dataset, split="test", unseen="keep", n_unseen=n_unseen, filter=names, seed=seed)
