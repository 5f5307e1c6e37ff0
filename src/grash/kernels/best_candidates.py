"""The k best candidates of each query, for predictions, without a B × E matrix.

As in `count_above`, a fast product preselects and the exact score (float64, rounded once) decides, so answers and their
order depend neither on tile sizes nor on the device. Equal scores are ordered by ascending id.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from grash.kernels.count_above import error_bound, exact_scores, largest_row
from grash.kernels.pair_scores import Pair, pair_scores

_RESCORED = 1 << 16  # pairs scored exactly at once


def best_candidates(
    queries: Tensor,
    rows: Callable[[int, int], Tensor],
    n_candidates: int,
    k: int,
    pair: Pair,
    *,
    skip_rows: Tensor,
    skip_columns: Tensor,
    tile: int,
) -> tuple[Tensor, Tensor, Tensor]:
    """queries (B, W) → (row, id, score), each (m,): by ascending row, then by descending score, at most k per row.

    rows(start, stop) returns candidates (stop − start, W). Candidate skip_columns[j] is left out for query
    skip_rows[j]; skip_columns ascends. `tile` candidates are scored at a time: B × tile floats of work space.
    """
    device = queries.device
    empty = torch.empty(0, dtype=torch.int64, device=device)
    best = (empty, empty, queries.new_empty(0, dtype=torch.float32))
    for start in range(0, n_candidates if k > 0 else 0, tile):
        stop = min(start + tile, n_candidates)
        candidates = rows(start, stop)
        scores = pair_scores(queries, candidates, pair)
        first, last = torch.searchsorted(skip_columns, torch.tensor([start, stop], device=device)).tolist()
        scores[skip_rows[first:last], skip_columns[first:last] - start] = -torch.inf
        slack = error_bound(queries, largest_row(candidates, pair), pair)
        bound = torch.maximum(_worst_kept(best, len(queries), k), _kth(scores, k) - slack) - slack
        row, column = torch.nonzero((scores >= bound[:, None]) & (scores > -torch.inf), as_tuple=True)
        exact = _exact(queries, candidates, row, column, pair)
        best = _keep(torch.cat([best[0], row]), torch.cat([best[1], column + start]), torch.cat([best[2], exact]), k)
    return best


def _kth(scores: Tensor, k: int) -> Tensor:
    """(B, T) → (B,): the k-th largest, −∞ if there are fewer."""
    if scores.shape[1] < k:
        return scores.new_full((len(scores),), -torch.inf)
    return torch.topk(scores, k, dim=1, sorted=True).values[:, -1]


def _worst_kept(best: tuple[Tensor, Tensor, Tensor], n_queries: int, k: int) -> Tensor:
    """Return (B,): the k-th best score so far, −∞ if there are fewer."""
    row, _, score = best
    count = torch.bincount(row, minlength=n_queries)
    worst = torch.full((n_queries,), -torch.inf, device=score.device)
    full = torch.nonzero(count == k).flatten()
    worst[full] = score[torch.cumsum(count, 0)[full] - 1]
    return worst


def _exact(queries: Tensor, candidates: Tensor, row: Tensor, column: Tensor, pair: Pair) -> Tensor:
    parts = [
        exact_scores(queries[r], candidates[c], pair) for r, c in zip(row.split(_RESCORED), column.split(_RESCORED))
    ]
    return torch.cat(parts) if parts else torch.empty(0, device=queries.device)


def _keep(row: Tensor, column: Tensor, score: Tensor, k: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return the k best of each row, by score, then by id: three stable sorts, the weakest key first."""
    order = torch.argsort(column, stable=True)
    order = order[torch.argsort(score[order], stable=True, descending=True)]
    order = order[torch.argsort(row[order], stable=True)]
    row, column, score = row[order], column[order], score[order]
    count = torch.bincount(row)
    place = torch.arange(len(row), device=row.device) - (torch.cumsum(count, 0) - count)[row]
    kept = place < k
    return row[kept], column[kept], score[kept]
