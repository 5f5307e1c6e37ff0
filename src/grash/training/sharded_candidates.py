"""What a rank compares the queries of a whole batch with: the candidates among its own rows.

Comes from `sharded_step`, which passes queries in and their gradients on. Three kinds: all of the rank's rows (1vsAll);
those negatives of the batch that it has; of each query's own negatives those that it has.
"""

from __future__ import annotations

import torch
from torch import Tensor

from grash.kernels import pair_loops
from grash.kernels.pair_scores import Pair, pair_gradients, pair_scores, row_gradients, row_scores
from grash.kernels.random import keep_mask
from grash.models.base import KgeModel, Slot
from grash.training.batches import Batch, Negatives
from grash.training.config import TrainConfig
from grash.training.gradients import Gradient
from grash.training.sharded_company import wide
from grash.training.sharded_rows import Shard


class Candidates:
    """Of one slot. scores (B, n): −∞ where an entry is no negative, or another rank's."""

    def __init__(
        self,
        model: KgeModel,
        config: TrainConfig,
        batch: Batch,
        slot: Slot,
        queries: Tensor,
        shard: Shard,
        key: int,
    ) -> None:
        self.model, self.queries = model, queries.contiguous()
        self.ids: Tensor | None = None  # local rows; None: all of them
        self.pairs: tuple[Tensor, Tensor] | None = None  # (row, column) in scores of queries' own negatives
        negatives = batch.negatives.get(slot)
        if negatives is not None and negatives.ids.dim() == 2:
            self.pairs = _own_pairs(negatives, shard)
            self.ids = negatives.ids[self.pairs] - shard.first
        elif negatives is not None:
            self.ids = negatives.ids[shard.has(negatives.ids)] - shard.first
        _, self.seen = model.asked(batch.triples[:0, 1], slot)
        rows = model.entity if self.ids is None else model.entity.index_select(0, self.ids)
        self.mask: Tensor | None = None
        if config.dropout_entity:
            places = torch.arange(len(shard), device=rows.device) if self.ids is None else self.ids
            self.mask = keep_mask(places + shard.first, rows.shape[1], config.dropout_entity, key).to(rows.dtype)
            rows = rows * self.mask
        self.rows = model.candidate(rows, self.seen)
        self.scores = self._scored(negatives)
        answers = batch.triples[:, 0 if slot == "head" else 2]
        if negatives is None:
            mine = torch.nonzero(shard.has(answers))[:, 0]
            self.scores[mine, answers[mine] - shard.first] = -torch.inf
        elif self.pairs is None:
            _leave_out(self.scores, negatives, shard)

    def settle(self, for_negative: Tensor, into: Gradient) -> Tensor:
        """(B, n) for the scores → this rank's share (B, W), `wide`, for the queries; the candidates' rows go `into` the
        entities' gradient."""
        pair = self.model.pair
        if self.pairs is None:
            for_queries, for_rows = wide_gradients(self.queries, self.rows, self.scores, for_negative, pair)
        else:
            asking = self.queries[self.pairs[0]]
            per_pair, for_rows = row_gradients(asking, self.rows, for_negative[self.pairs], pair)
            # sorts and adds in a fixed order, where index_add would use atomics
            for_queries = wide(torch.zeros_like(self.queries))
            for_queries.index_put_((self.pairs[0],), per_pair.to(for_queries.dtype), accumulate=True)
        given = self.model.candidate_gradient(for_rows, self.seen)
        into.add(self.ids, given if self.mask is None else given * self.mask)
        return for_queries

    def _scored(self, negatives: Negatives | None) -> Tensor:
        if self.pairs is None:
            return pair_scores(self.queries, self.rows, self.model.pair)
        assert negatives is not None
        scores = self.rows.new_full(negatives.ids.shape, -torch.inf)
        scores[self.pairs] = row_scores(self.queries[self.pairs[0]], self.rows, self.model.pair)
        return scores


def wide_gradients(
    queries: Tensor, rows: Tensor, scores: Tensor, upstream: Tensor, pair: Pair
) -> tuple[Tensor, Tensor]:
    """`pair_gradients`, with sums for the queries that are `wide`: other ranks' shares are added to them."""
    if queries.device.type != "cpu":
        return pair_gradients(queries, rows, scores, upstream, pair)
    if pair == "dot":
        return wide(upstream) @ wide(rows), upstream.T @ queries
    if pair != "l2" and pair_loops.serve(queries):
        return pair_loops.gradients(queries, rows, upstream, pair, torch.float64)
    doubles = [wide(x) for x in (queries, rows, scores, upstream)]
    for_queries, for_rows = pair_gradients(doubles[0], doubles[1], doubles[2], doubles[3], pair)
    return for_queries, for_rows.to(rows.dtype)


def _own_pairs(negatives: Negatives, shard: Shard) -> tuple[Tensor, Tensor]:
    """Where the (B, N) negatives of each query are real and this rank's."""
    real = shard.has(negatives.ids)
    if negatives.blocked is not None:
        real &= ~negatives.blocked
    rows, columns = torch.nonzero(real, as_tuple=True)
    return rows, columns


def _leave_out(scores: Tensor, negatives: Negatives, shard: Shard) -> None:
    """Truths and known facts among this rank's shared negatives get −∞."""
    assert negatives.rows is not None and negatives.columns is not None and negatives.real is not None
    mine = shard.has(negatives.ids)
    column = torch.cumsum(mine, 0) - 1  # of a negative of the batch in the scores of this rank
    out = ~negatives.real & mine[negatives.columns]
    scores[negatives.rows[out], column[negatives.columns[out]]] = -torch.inf
