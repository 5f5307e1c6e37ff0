"""Counts the candidates that score above a query's true answer, and those that tie with it, without a B × E matrix.

Ranks must not depend on tile sizes, threads or the library of the matrix product, so two kinds of scores are used. A
fast product gives scores with a known error bound, and candidates clearly above or below the true answer are counted
from it. The few within the bound are decided by the exact score: the float32 nearest to the sum in float64.
`count_above` is the reference for any device, with loops for a CPU. On CUDA, where `use_kernels` returns True, the
kernels of `count_above_triton` count all queries in few launches. `best_candidates`, for predictions, decides in the
same way, and so does `best_listed` on a CPU, where each query has its own candidates. `LogSums` sums exp(score) over
the same tiles, for probabilities, with the fast scores.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numba
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from grash.errors import Diverged
from grash.kernels.device import use_torch_threads, use_triton, why_no_triton
from grash.kernels.pair_scores import Pair, pair_scores, row_scores
from grash.kernels.storage import to_float32

OUT_OF_RANGE = "The model's scores leave the range of float32, so they cannot be ranked: train the model again."
MAX_WIDTH = 2048  # floats of a row that the kernels support
# absolute error of float32 near its smallest number: of a product, of a square under a root
LOST: dict[Pair, float] = {"dot": 1e-30, "l1": 1e-30, "l2": 1e-12, "modulus": 1e-12}
_UNIT = 2.0**-24  # half a unit in the last place of 1, float32
_BLOCK = 256  # scores counted together
_ROWS_IN_CACHE = 1024  # rows of the table that are scored with all queries in turn
_EXACT_ELEMENTS = 1 << 22  # elements (pairs × width) scored exactly at once


class FilterRuns(NamedTuple):
    """Candidates to skip for query i: answers[first[i] : last[i]], ascending. Queries may share a run."""

    first: NDArray[np.int64]
    last: NDArray[np.int64]
    answers: NDArray[np.int32]

    @classmethod
    def of(cls, lists: Sequence[NDArray[np.integer]]) -> FilterRuns:
        """Return a run of each list of ids."""
        last = np.cumsum([len(ids) for ids in lists], dtype=np.int64)
        ids = np.concatenate([np.empty(0, np.int64), *lists]).astype(np.int32)
        return cls(np.concatenate([[0], last])[:-1], last, ids)

    def take(self, rows: Sequence[int] | NDArray[np.integer]) -> FilterRuns:
        """Return the runs of these queries."""
        return FilterRuns(self.first[rows], self.last[rows], self.answers)


@dataclass(frozen=True, eq=False)
class CountBatch:
    """A batch of queries and their counts so far."""

    queries: Tensor  # (B, W)
    truth: Tensor  # (B,) ids of the true answers
    exact: Tensor  # (B,) `exact_scores` of the true answers
    skip: FilterRuns
    counts: Tensor  # (2, B) int64: candidates above, ties

    @classmethod
    def of(cls, queries: Tensor, truth: Tensor, exact: Tensor, skip: FilterRuns) -> CountBatch:
        """Return a batch with counts of 0."""
        counts = torch.zeros(2, len(queries), dtype=torch.int64, device=queries.device)
        return cls(queries, truth, exact, skip, counts)


@dataclass(frozen=True, eq=False)
class TruthIndex:
    """Which of the Q queries each of the B truths answers, int32, for `count_above_triton`.

    Queries with many truths come first, since a tile takes as long as its longest query.
    """

    query: Tensor  # (B,) the query of each truth
    order: Tensor  # (B,) the truths sorted by query
    starts: Tensor  # (Q + 1,) where the truths of a query start in `order`


def why_not(candidates: Tensor) -> list[str]:
    """Return the reasons why the kernels of `count_above_triton` cannot serve these candidates (E, W)."""
    reasons = why_no_triton(candidates.device)
    if candidates.shape[1] > MAX_WIDTH:
        reasons.append(f"rows of {candidates.shape[1]} floats are wider than {MAX_WIDTH}")
    if candidates.dtype not in (torch.float32, torch.bfloat16):
        reasons.append(f"rows are {candidates.dtype}, not float32 or bfloat16")
    return reasons


def use_kernels(candidates: Tensor, pair: Pair = "dot") -> bool:
    """Whether the kernels count. GRASH_KERNELS=reference forbids them; GRASH_KERNELS=triton requires them on CUDA,
    but for a model's own function."""
    if callable(pair):
        return False
    return use_triton(why_not(candidates), candidates.device, what="the counting kernels")


def count_above(
    batch: CountBatch, candidates: Tensor, pair: Pair, *, tile: int, largest: Tensor, first: int = 0
) -> None:
    """Add to batch.counts the candidates (E, W) above the truth and those that tie; they have the ids from `first` on.

    The candidates in `batch.skip` and the truth itself are left out. `tile` candidates are scored at a time, with
    B × tile floats of work space; bf16 rows become float32 tile by tile. largest: `largest_row` of these candidates
    or of more.
    """
    above, ties = batch.counts
    slack = error_bound(batch.queries, largest, pair, batch.exact)
    low, high = batch.exact - slack, batch.exact + slack
    for begin in range(0, len(candidates), tile):
        part = to_float32(candidates[begin : begin + tile])
        scores = _fast_scores(batch.queries, part, pair)
        _mask_truth(scores, batch.truth - (first + begin))
        _mask_runs(scores, batch.skip, first + begin)
        rows, columns = _count_tile(scores, low, high, above)
        _count_exactly(batch, part, rows, columns, pair, above, ties)


def exact_scores(queries: Tensor, answers: Tensor, pair: Pair) -> Tensor:
    """(n, W), (n, W) → (n,) float32: the score that defines ranks, summed in float64 and rounded once."""
    places = torch.arange(len(queries), device=queries.device)
    return _exact_pairs(queries, answers, places, places, pair)


def _rows(x: Tensor) -> int:
    return max(1, _EXACT_ELEMENTS // max(1, x.shape[-1]))


def _fast_scores(queries: Tensor, candidates: Tensor, pair: Pair) -> Tensor:
    """Return scores (B, n) with the error of `error_bound`; a model's function has none, so it runs in float64."""
    if callable(pair):
        return pair_scores(queries.double(), candidates.double(), pair).float()
    return pair_scores(queries, candidates, pair)


def largest_row(rows: Tensor, pair: Pair) -> Tensor:
    """Return the largest size of a row, a scalar, for `error_bound`; reads the rows in parts."""
    if callable(pair):
        return to_float32(rows[:0]).new_zeros(())
    order = 2 if pair in ("dot", "l2") else 1
    parts = [to_float32(part).norm(p=order, dim=1).max() for part in rows.split(_rows(rows)) if len(part)]
    return torch.stack(parts).max() if parts else to_float32(rows).new_zeros(())


def error_bound(queries: Tensor, largest: Tensor, pair: Pair, near: Tensor | None = None) -> Tensor:
    """Return (B,) bounds on |fast − exact| for each query with any candidate of a size up to `largest`.

    A sum of n products in any order has an error of at most n·u·Σ|terms|, u = 2⁻²⁴ (Higham, Accuracy and Stability,
    §3.1); a few units more cover the other roundings. Beyond the range of float32 there is no bound, and no rank.
    near (B,): scores with which others are compared. Those of a model's function, from float64, err in the last place.
    """
    if callable(pair):
        assert near is not None
        if near.isnan().any() or (near == torch.inf).any():
            raise Diverged(OUT_OF_RANGE)
        return 4 * _UNIT * near.abs() + LOST["dot"]
    share = (queries.shape[-1] + 8) * _UNIT
    sizes = queries.norm(p=2 if pair in ("dot", "l2") else 1, dim=1)
    reach = sizes * largest if pair == "dot" else sizes + largest
    if not torch.isfinite(reach if pair == "dot" else reach.square()).all():
        raise Diverged(OUT_OF_RANGE)
    if pair == "l2":  # from ‖q‖² + ‖c‖² − 2 q·c; an error e in the square changes its root by at most √e
        return share**0.5 * reach + LOST[pair]
    return (1 if pair == "dot" else 2) * share * reach + LOST[pair]


def _mask_truth(scores: Tensor, columns: Tensor) -> None:
    """Set scores[i, columns[i]] to −∞ where the column is inside the tile."""
    rows = torch.arange(len(scores), device=scores.device)
    inside = (columns >= 0) & (columns < scores.shape[1])
    columns = torch.where(inside, columns, 0)
    scores[rows, columns] = torch.where(inside, -torch.inf, scores[rows, columns])


def _mask_runs(scores: Tensor, skip: FilterRuns, start: int) -> None:
    """Set the skipped candidates to −∞; the tile begins with the candidate `start`."""
    begin, end = np.empty_like(skip.first), np.empty_like(skip.last)
    _inside_loop(skip.first, skip.last, skip.answers, start, start + scores.shape[1], begin, end)
    if scores.device.type == "cpu":
        use_torch_threads()
        _mask_loop(scores.numpy(), begin, end, skip.answers, start)
        return
    count = end - begin
    rows = np.repeat(np.arange(len(count)), count)
    places = np.arange(len(rows)) + np.repeat(begin - (np.cumsum(count) - count), count)
    columns = skip.answers[places].astype(np.int64) - start
    scores[torch.from_numpy(rows).to(scores.device), torch.from_numpy(columns).to(scores.device)] = -torch.inf


def _count_tile(scores: Tensor, low: Tensor, high: Tensor, above: Tensor) -> tuple[Tensor, Tensor]:
    """Add the clearly higher scores to `above`; return (row, column) of those within the bound."""
    if scores.device.type != "cpu":
        above += (scores > high[:, None]).sum(1)
        rows, columns = torch.nonzero((scores >= low[:, None]) & (scores <= high[:, None]), as_tuple=True)
        return rows, columns
    use_torch_threads()
    arrays = (scores.numpy(), low.numpy(), high.numpy())
    near = np.zeros((len(scores), -(-scores.shape[1] // _BLOCK)), np.int32)
    _count_loop(*arrays, above.numpy(), near)
    counts = near.sum(1, dtype=np.int64)
    found = np.empty(int(counts.sum()), np.int64)
    _near_loop(*arrays, near, np.cumsum(counts) - counts, found)
    return torch.from_numpy(np.repeat(np.arange(len(scores)), counts)), torch.from_numpy(found)


def _count_exactly(
    batch: CountBatch, candidates: Tensor, rows: Tensor, columns: Tensor, pair: Pair, above: Tensor, ties: Tensor
) -> None:
    """Count the pairs (rows[k], columns[k]) by their exact scores."""
    scores, truths = _exact_pairs(batch.queries, candidates, rows, columns, pair), batch.exact[rows]
    above += torch.bincount(rows[scores > truths], minlength=len(above))
    ties += torch.bincount(rows[scores == truths], minlength=len(ties))


def _exact_pairs(queries: Tensor, candidates: Tensor, rows: Tensor, columns: Tensor, pair: Pair) -> Tensor:
    """Return (n,) `exact_scores` of queries[rows] and candidates[columns]."""
    parts = zip(rows.split(_rows(queries)), columns.split(_rows(queries)))
    scores = [row_scores(queries[r].double(), candidates[c].double(), pair).float() for r, c in parts]
    return torch.cat(scores) if scores else queries.new_empty(0)


class LogSums:
    """log Σ exp(score / temperature) of each query over its candidates, without those that are left out.

    Candidate skip_columns[j] is left out for query skip_rows[j]; skip_columns ascends. `values` (T, B) has a row for
    each of T temperatures. The scores are those of the fast product, which suffice for probabilities.
    """

    def __init__(self, n_queries: int, temperatures: Sequence[float], skip_rows: Tensor, skip_columns: Tensor) -> None:
        self.temperatures, self.skip_rows, self.skip_columns = temperatures, skip_rows, skip_columns
        shape = len(temperatures), n_queries
        self.values = torch.full(shape, -torch.inf, dtype=torch.float64, device=skip_rows.device)

    def add(self, scores: Tensor, start: int) -> None:
        """Add a tile of scores (B, n) of the candidates from `start` on. The tile is the same afterwards."""
        ends = torch.tensor([start, start + scores.shape[1]], device=scores.device)
        first, last = torch.searchsorted(self.skip_columns, ends).tolist()
        places = self.skip_rows[first:last], self.skip_columns[first:last] - start
        kept = scores[places]
        scores[places] = -torch.inf
        largest = scores.amax(1, keepdim=True).clamp_min(torch.finfo(scores.dtype).min)
        for value, temperature in zip(self.values, self.temperatures):
            part = (scores - largest).div_(temperature).exp_().sum(1).log_() + largest.squeeze(1) / temperature
            torch.logaddexp(value, part.double(), out=value)
        scores[places] = kept


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
    sums: LogSums | None = None,
    largest: Tensor | None = None,
    mask: Callable[[Tensor, int], None] | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """queries (B, W) → (row, id, score), each (m,): by ascending row, then by descending score, at most k per row.

    rows(start, stop) returns candidates (stop − start, W). Candidate skip_columns[j] is left out for query
    skip_rows[j]; skip_columns ascends. `tile` candidates are scored at a time: B × tile floats of work space. `sums`
    receives the scores of all candidates. largest: `largest_row` of all candidates, if it is known. mask(scores,
    start) may set scores (B, n) of the candidates from `start` on to −∞, to leave them out.
    """
    device, k = queries.device, min(k, n_candidates)
    empty = torch.empty(0, dtype=torch.int64, device=device)
    best = (empty, empty, queries.new_empty(0, dtype=torch.float32))
    for start in range(0, n_candidates if k > 0 else 0, tile):
        stop = min(start + tile, n_candidates)
        candidates = rows(start, stop)
        scores = _fast_scores(queries, candidates, pair)
        if callable(pair) and scores.isnan().any():  # of the others, `error_bound` finds out
            raise Diverged(OUT_OF_RANGE)
        if sums is not None:
            sums.add(scores, start)
        first, last = torch.searchsorted(skip_columns, torch.tensor([start, stop], device=device)).tolist()
        scores[skip_rows[first:last], skip_columns[first:last] - start] = -torch.inf
        if mask is not None:
            mask(scores, start)
        kth, worst = _kth(scores, k), _worst_kept(best, len(queries), k)
        size = largest_row(candidates, pair) if largest is None else largest
        slack = error_bound(queries, size, pair, torch.maximum(kth, worst))
        row, column = _at_least(scores, torch.maximum(worst, kth - slack) - slack)
        exact = _exact_pairs(queries, candidates, row, column, pair)
        best = _keep(torch.cat([best[0], row]), torch.cat([best[1], column + start]), torch.cat([best[2], exact]), k)
    return best


class ListedScores:
    """Fast scores of the candidates that are listed for each of B queries; float32 on a CPU, dot products."""

    def __init__(self, listed: FilterRuns) -> None:
        self.listed = listed
        self.starts = np.concatenate(
            [[0], np.cumsum(listed.last - listed.first)]
        )  # query i: starts[i] to starts[i + 1]
        self.values = np.empty(int(self.starts[-1]), np.float32)

    def compute(self, queries: Tensor, table: Tensor) -> None:
        """Score the listed rows of `table` (E, W), which pass through the cache once for all queries (B, W)."""
        use_torch_threads()
        _listed_scores(queries.contiguous().numpy(), table.numpy(), *self.listed, self.starts, self.values)

    def pick(self, scores: Tensor, start: int) -> None:
        """Take the listed ones of the scores (B, n) of all candidates from `start` on."""
        use_torch_threads()
        _pick_listed(scores.numpy(), start, *self.listed, self.starts, self.values)


def best_listed(
    queries: Tensor, table: Tensor, found: ListedScores, k: int, *, skip: FilterRuns, largest: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Return what `best_candidates` does, among the rows of `table` (E, W) that are listed for each query (B, W).

    largest: `largest_row` of the table. Changes the scores found: skipped candidates get −∞.
    """
    use_torch_threads()
    listed, starts, scores = found.listed, found.starts, found.values
    k = min(k, len(table))  # as many floats are reserved
    _skip_listed(*listed, *skip, starts, scores)
    kth = np.empty(len(queries), np.float32)
    _kth_loop(scores, starts, k, kth)
    bound = torch.from_numpy(kth) - 2 * error_bound(queries, largest, "dot")
    row, place = _from_bound(scores, starts, bound.numpy())
    column = torch.from_numpy(listed.answers[listed.first[row] + place].astype(np.int64))
    rows = torch.from_numpy(row)
    return _keep(rows, column, _exact_pairs(queries, table, rows, column, "dot"), k)


def _from_bound(
    scores: NDArray[np.float32], starts: NDArray[np.int64], bound: NDArray[np.float32]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return (row, place in the row) of the scores that reach the bound of their row; −∞ never does."""
    low, counts = np.maximum(bound, np.finfo(np.float32).min), np.zeros(len(bound), np.int64)
    _count_from(scores, starts, low, counts)
    found = np.empty(int(counts.sum()), np.int64)
    _columns_from(scores, starts, low, np.cumsum(counts) - counts, found)
    return np.repeat(np.arange(len(bound)), counts), found


def _uses_loops(scores: Tensor) -> bool:
    """Return whether compiled loops are used: for a few questions, loading them takes longer than they save."""
    return scores.device.type == "cpu" and len(scores) > 8


def _kth(scores: Tensor, k: int) -> Tensor:
    """(B, T) → (B,): the k-th largest, −∞ if there are fewer."""
    if scores.shape[1] < k:
        return scores.new_full((len(scores),), -torch.inf)
    if not _uses_loops(scores):
        return torch.topk(scores, k, dim=1, sorted=True).values[:, -1]
    use_torch_threads()
    kth = np.empty(len(scores), np.float32)
    _kth_loop(scores.numpy().reshape(-1), _row_starts(scores), k, kth)
    return torch.from_numpy(kth)


def _row_starts(scores: Tensor) -> NDArray[np.int64]:
    return np.arange(len(scores) + 1) * scores.shape[1]


def _at_least(scores: Tensor, bound: Tensor) -> tuple[Tensor, Tensor]:
    """Return (row, column) of the scores (B, T) that reach the bound (B,); −∞ never does."""
    if not _uses_loops(scores):
        row, column = torch.nonzero((scores >= bound[:, None]) & (scores > -torch.inf), as_tuple=True)
        return row, column
    use_torch_threads()
    rows, columns = _from_bound(scores.numpy().reshape(-1), _row_starts(scores), bound.numpy())
    return torch.from_numpy(rows), torch.from_numpy(columns)


def _worst_kept(best: tuple[Tensor, Tensor, Tensor], n_queries: int, k: int) -> Tensor:
    """Return (B,): the k-th best score so far, −∞ if there are fewer."""
    row, _, score = best
    count = torch.bincount(row, minlength=n_queries)
    worst = torch.full((n_queries,), -torch.inf, device=score.device)
    full = torch.nonzero(count == k).flatten()
    worst[full] = score[torch.cumsum(count, 0)[full] - 1]
    return worst


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


@numba.njit(cache=True, fastmath={"nnan", "nsz", "reassoc"})
def _block_max(scores, start, stop):  # type: ignore[no-untyped-def]
    largest = scores[start]
    for j in range(start + 1, stop):
        largest = max(largest, scores[j])
    return largest


@numba.njit(cache=True, fastmath={"contract", "nsz", "reassoc"})
def _dot(query, row):  # type: ignore[no-untyped-def]
    total = np.float32(0)
    for j in range(len(query)):
        total += query[j] * row[j]
    return total


@numba.njit(cache=True, parallel=True)
def _listed_scores(queries, table, first, last, ids, starts, scores):  # type: ignore[no-untyped-def]
    """Fill scores[starts[i]:starts[i + 1]] with the dot products of query i and the rows listed for it.

    A block of rows stays in the cache while the queries take turns; the sums may be in any order (`error_bound`).
    """
    for block in numba.prange(-(-table.shape[0] // _ROWS_IN_CACHE)):
        for i in range(queries.shape[0]):
            run = ids[first[i] : last[i]]
            begin = np.searchsorted(run, block * _ROWS_IN_CACHE)
            end = np.searchsorted(run, (block + 1) * _ROWS_IN_CACHE)
            for j in range(begin, end):
                scores[starts[i] + j] = _dot(queries[i], table[run[j]])


@numba.njit(cache=True, parallel=True)
def _pick_listed(tile, start, first, last, ids, starts, scores):  # type: ignore[no-untyped-def]
    for i in numba.prange(tile.shape[0]):
        run = ids[first[i] : last[i]]
        for j in range(np.searchsorted(run, start), np.searchsorted(run, start + tile.shape[1])):
            scores[starts[i] + j] = tile[i, run[j] - start]


@numba.njit(cache=True)
def _skip_listed(first, last, ids, skip_first, skip_last, skipped, starts, scores):  # type: ignore[no-untyped-def]
    for i in range(len(first)):
        run = ids[first[i] : last[i]]
        for j in range(skip_first[i], skip_last[i]):
            place = np.searchsorted(run, skipped[j])
            if place < len(run) and run[place] == skipped[j]:
                scores[starts[i] + place] = -np.inf


@numba.njit(cache=True, parallel=True)
def _kth_loop(scores, starts, k, kth):  # type: ignore[no-untyped-def]
    """Fill kth with the k-th largest of each row scores[starts[i]:starts[i + 1]], −∞ if it has fewer.

    It is the root of a heap of the k best, which few scores enter.
    """
    for i in numba.prange(len(kth)):
        heap = np.full(k, np.float32(-np.inf), np.float32)
        for start in range(starts[i], starts[i + 1], _BLOCK):
            stop = min(start + _BLOCK, starts[i + 1])
            if _block_max(scores, start, stop) <= heap[0]:
                continue
            for j in range(start, stop):
                value = scores[j]
                if value <= heap[0]:
                    continue
                at = 0
                while 2 * at + 1 < k:
                    child = 2 * at + 1
                    if child + 1 < k and heap[child + 1] < heap[child]:
                        child += 1
                    if heap[child] >= value:
                        break
                    heap[at] = heap[child]
                    at = child
                heap[at] = value
        kth[i] = heap[0]


@numba.njit(cache=True, parallel=True)
def _count_from(scores, starts, low, counts):  # type: ignore[no-untyped-def]
    for i in numba.prange(len(low)):
        total = np.int64(0)
        for start in range(starts[i], starts[i + 1], _BLOCK):
            stop = min(start + _BLOCK, starts[i + 1])
            if _block_max(scores, start, stop) >= low[i]:
                for j in range(start, stop):
                    total += np.int64(scores[j] >= low[i])
        counts[i] = total


@numba.njit(cache=True, parallel=True)
def _columns_from(scores, starts, low, places, columns):  # type: ignore[no-untyped-def]
    for i in numba.prange(len(low)):
        at = places[i]
        for start in range(starts[i], starts[i + 1], _BLOCK):
            stop = min(start + _BLOCK, starts[i + 1])
            if _block_max(scores, start, stop) >= low[i]:
                for j in range(start, stop):
                    if scores[j] >= low[i]:
                        columns[at] = j - starts[i]
                        at += 1


@numba.njit(cache=True, parallel=True)
def _count_loop(scores, low, high, above, near):  # type: ignore[no-untyped-def]
    """Count scores above the bound; near[i, b] is the number within it in block b."""
    for i in numba.prange(scores.shape[0]):
        lo, hi = low[i], high[i]
        total = np.int64(0)
        for b in range(near.shape[1]):
            n_above, n_reach = np.int32(0), np.int32(0)
            for j in range(b * _BLOCK, min((b + 1) * _BLOCK, scores.shape[1])):
                n_above += np.int32(scores[i, j] > hi)
                n_reach += np.int32(scores[i, j] >= lo)
            near[i, b] = n_reach - n_above
            total += n_above
        above[i] += total


@numba.njit(cache=True)
def _near_loop(scores, low, high, near, starts, columns):  # type: ignore[no-untyped-def]
    for i in range(scores.shape[0]):
        k = starts[i]
        for b in range(near.shape[1]):
            if near[i, b]:
                for j in range(b * _BLOCK, min((b + 1) * _BLOCK, scores.shape[1])):
                    if scores[i, j] >= low[i] and not scores[i, j] > high[i]:
                        columns[k] = j
                        k += 1


@numba.njit(cache=True)
def _inside_loop(first, last, answers, start, stop, begin, end):  # type: ignore[no-untyped-def]
    """Find the part begin … end of each run whose answers are in start … stop."""
    for i in range(first.shape[0]):
        run = answers[first[i] : last[i]]
        begin[i] = first[i] + np.searchsorted(run, start)
        end[i] = first[i] + np.searchsorted(run, stop)


@numba.njit(cache=True, parallel=True)
def _mask_loop(scores, begin, end, answers, start):  # type: ignore[no-untyped-def]
    for i in numba.prange(scores.shape[0]):
        for k in range(begin[i], end[i]):
            scores[i, answers[k] - start] = -np.inf
