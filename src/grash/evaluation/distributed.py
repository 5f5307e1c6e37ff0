"""Filtered ranks under a model whose entity rows are distributed over processes: each counts its own rows.

Comes from `engines/distributed`, goes to `metrics`. Every process embeds a part of the queries and sends it to all,
with the exact scores of the true answers. Counts are integers decided by exact scores, so their sum over the processes
equals the count of one process.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from grash.data.dataset import Dataset, SplitName
from grash.data.known_answers import KnownAnswers
from grash.errors import Diverged
from grash.evaluation.evaluate import evaluation_of, select_triples
from grash.evaluation.metrics import Evaluation
from grash.evaluation.ranking import NOT_FINITE, Ranker, Ranks, SideQueries, default_work_bytes, is_finite, plan_tiles
from grash.kernels.count_above import CountBatch, count_above, exact_scores, largest_row
from grash.models import KgeModel
from grash.training.distributed.communication import ProcessGroup, RowExchange, Shard


class DistributedRanker:
    """Ranks the same triples under several models; all processes call it together and get the same ranks."""

    def __init__(
        self, triples: NDArray[np.int32], known: KnownAnswers, shard: Shard, group: ProcessGroup, device: torch.device
    ) -> None:
        self.ranker = Ranker(triples, known, shard.n_rows, device)  # for its queries
        self.shard, self.group, self.device = shard, group, device

    @torch.no_grad()
    def rank(self, model: KgeModel) -> Ranks:
        """Return the ranks; the model holds the entity rows of this process, and all relations."""
        finite = is_finite(model)
        if self.group.any(not finite):
            raise Diverged("The rows of another process contain NaN or infinite numbers." if finite else NOT_FINITE)
        work_bytes = default_work_bytes(self.device)
        batch, tile = plan_tiles(len(self.ranker.triples), max(1, len(self.shard)), work_bytes)
        batch = int(self.group.all_gather(torch.tensor(batch)).min())
        return self.ranker.ranks_of([self._count(model, side, batch, tile) for side in self.ranker.queries])

    def _count(self, model: KgeModel, side: SideQueries, batch: int, tile: int) -> NDArray[np.int64]:
        """Return (2, B), above and ties, counted by all processes."""
        _, seen = model.asked(side.relations[:0], side.side)
        candidates = model.candidate(model.entity, seen)
        largest = self.group.all_gather(largest_row(candidates, model.pair)).max()
        counts = torch.zeros(2, len(side), dtype=torch.int64, device=self.device)
        for first in range(0, len(side), batch):
            rows = slice(first, min(first + batch, len(side)))
            queries, exact = self._queries(model, side, rows)
            some = CountBatch(queries, side.answers[rows], exact, side.runs(rows.start, rows.stop), counts[:, rows])
            count_above(some, candidates, model.pair, tile=tile, largest=largest, first=self.shard.first)
        return self.group.all_reduce(counts).cpu().numpy()

    def _queries(self, model: KgeModel, side: SideQueries, rows: slice) -> tuple[Tensor, Tensor]:
        """Return the queries (B, W) and the exact scores (B,) of their answers, each process computing a part."""
        group, size = self.group, rows.stop - rows.start
        ids = [group.split(ids[rows]) for ids in (side.known, side.answers)]
        fetched = RowExchange([torch.cat(pair) for pair in zip(*ids)], self.shard).fetch(model.entity)
        part = group.own_slice(size)
        known, answers = fetched.split([part.stop - part.start] * 2)
        relations, seen = model.asked(side.relations[rows][part], side.side)
        queries = model.query_to_rank(known, model.relation[relations], seen)
        exact = exact_scores(queries, model.candidate(answers, seen), model.pair)
        gathered = group.gather_slices(torch.cat([queries, exact[:, None]], 1), size)
        return gathered[:, :-1].contiguous(), gathered[:, -1].contiguous()


def evaluate_distributed(
    model: KgeModel, dataset: Dataset, shard: Shard, group: ProcessGroup, *, sample: int | None = None, seed: int = 0
) -> Evaluation:
    """Evaluate the test split like `evaluate`, by all processes together."""
    triples, n_unseen = select_triples(dataset, "test", sample, "keep", seed)
    names: tuple[SplitName, ...] = ("train", "valid", "test")
    known = KnownAnswers.of(*(dataset.split(n) for n in names), n_relations=dataset.n_relations, asked=triples)
    ranks = DistributedRanker(triples, known, shard, group, model.entity.device).rank(model)
    about: dict[str, Any] = {"n_unseen": n_unseen, "filter": names, "known": known}
    return evaluation_of(ranks, dataset, split="test", unseen="keep", **about, seed=seed)
