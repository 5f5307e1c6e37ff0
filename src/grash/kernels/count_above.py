"""How many candidates score above a query's true answer, and how many score the same, without a B × E matrix.

Ranks must not depend on tile sizes, threads or the library behind the matrix product, so two arithmetics share the
work. A fast product proposes scores with a known error bound; candidates that it places clearly above or below the
true answer are counted from it. The few that lie within the bound are decided by the exact score: the float32
nearest to the sum in float64. The truth is scored by the same arithmetic as those it is compared with.
`count_above` is the plain form for any device, with loops for a CPU; on CUDA `count_above_triton` counts all queries
in few launches, and `serves` says when.
"""

from __future__ import annotations

import importlib.util
import os
from typing import NamedTuple

import numba
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from grash.errors import ConfigError, Diverged
from grash.kernels.device import use_torch_threads
from grash.kernels.half_rows import wide
from grash.kernels.pair_scores import Pair, pair_scores, row_scores

NO_ORDER = "The model's scores leave the range of float32, so they have no order: train it anew."
WIDEST = 1024  # floats of a row that the kernels take
# what float32 loses below its smallest number: of a product, of a square under a root
LOST: dict[Pair, float] = {"dot": 1e-30, "l1": 1e-30, "l2": 1e-12, "modulus": 1e-12}
_UNIT = 2.0**-24  # half a unit in the last place of 1, float32
_BLOCK = 256  # scores counted together
_DECIDE = 1 << 22  # elements (pairs × width) decided at once


class Runs(NamedTuple):
    """Candidates to leave out: of query i answers[first[i] : last[i]], ascending. Queries may share a run: a question
    that many ask has its answers once, however many these are."""

    first: NDArray[np.int64]
    last: NDArray[np.int64]
    answers: NDArray[np.int32]


def why_not(candidates: Tensor) -> list[str]:
    """What keeps the counting kernels (`count_above_triton`) from these candidates (E, W); empty if nothing does."""
    reasons = []
    if candidates.device.type != "cuda":
        reasons.append(f"the device is {candidates.device.type}, not cuda")
    if importlib.util.find_spec("triton") is None:
        reasons.append("Triton is not installed")
    if candidates.shape[1] > WIDEST:
        reasons.append(f"rows of {candidates.shape[1]} floats are wider than {WIDEST}")
    if candidates.dtype not in (torch.float32, torch.bfloat16):
        reasons.append(f"rows are {candidates.dtype}, not float32 or bfloat16")
    return reasons


def serves(candidates: Tensor) -> bool:
    """Whether the kernels count; GRASH_KERNELS=reference keeps the plain form, GRASH_KERNELS=triton demands them on a
    CUDA device."""
    choice = os.environ.get("GRASH_KERNELS", "")
    reasons = why_not(candidates)
    if choice == "triton" and reasons and candidates.device.type == "cuda":
        raise ConfigError(f"GRASH_KERNELS=triton, but the counting kernels cannot serve this: {'; '.join(reasons)}.")
    return choice != "reference" and not reasons


def count_above(
    queries: Tensor,
    candidates: Tensor,
    truth: Tensor,
    skip: Runs,
    pair: Pair,
    *,
    tile: int,
    largest: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """queries (B, W), candidates (E, W), truth (B,) ids → (above, ties), each (B,) int64. Candidates in bf16 become
    float32 a tile at a time.

    What `skip` names is left out, and the truth itself always is. `tile` candidates are scored at a time: B × tile
    floats of work space. `largest`: largest_row(candidates), for callers with many batches.
    """
    exact = exact_scores(queries, candidates[truth], pair)
    above, ties = (torch.zeros(len(queries), dtype=torch.int64, device=queries.device) for _ in range(2))
    bound = largest_row(candidates, pair) if largest is None else largest
    count_rows(queries, candidates, 0, exact, truth, skip, pair, tile, bound, above, ties)
    return above, ties


def count_rows(
    queries: Tensor,
    candidates: Tensor,
    first: int,
    exact: Tensor,
    truth: Tensor,
    skip: Runs,
    pair: Pair,
    tile: int,
    largest: Tensor,
    above: Tensor,
    ties: Tensor,
) -> None:
    """Adds to above and ties (B,) those of some candidates, which begin with the id `first`; exact (B,) are the truths'
    scores, `largest` is the largest_row of these candidates or of more, the others are as in `count_above`."""
    slack = error_bound(queries, largest, pair)
    low, high = exact - slack, exact + slack
    everyone = torch.arange(len(queries), device=queries.device)
    for begin in range(0, len(candidates), tile):
        part = wide(candidates[begin : begin + tile])
        start, stop = first + begin, first + begin + len(part)
        scores = pair_scores(queries, part, pair)
        _leave_out(scores, everyone, truth, start, stop)
        _skip(scores, skip, start)
        near_rows, near_columns = _count_tile(scores, low, high, above)
        _decide(queries, part, near_rows, near_columns, exact, pair, above, ties)


def exact_scores(queries: Tensor, answers: Tensor, pair: Pair) -> Tensor:
    """(n, W), (n, W) → (n,) float32: the score that ranks are defined by, summed in float64 and rounded once."""
    parts = [
        row_scores(q.double(), a.double(), pair).float()
        for q, a in zip(queries.split(_rows(queries)), answers.split(_rows(answers)))
    ]
    return torch.cat(parts) if parts else queries.new_empty(0)


def _rows(x: Tensor) -> int:
    return max(1, _DECIDE // max(1, x.shape[-1]))


def largest_row(rows: Tensor, pair: Pair) -> Tensor:
    """The largest size of a row, as `error_bound` needs it: a scalar, read in parts."""
    order = 2 if pair in ("dot", "l2") else 1
    parts = [wide(part).norm(p=order, dim=1).max() for part in rows.split(_rows(rows)) if len(part)]
    return torch.stack(parts).max() if parts else wide(rows).new_zeros(())


def error_bound(queries: Tensor, largest: Tensor, pair: Pair) -> Tensor:
    """(B,) bound on |fast − exact| for each query with any candidate of size up to `largest`.

    A sum of n products in any order is off by at most n·u·Σ|terms|, u = 2⁻²⁴ (Higham, Accuracy and Stability,
    §3.1); a few units more for the roundings around it. Beyond float32 there is no bound, and no rank.
    """
    share = (queries.shape[-1] + 8) * _UNIT
    sizes = queries.norm(p=2 if pair in ("dot", "l2") else 1, dim=1)
    reach = sizes * largest if pair == "dot" else sizes + largest
    if not torch.isfinite(reach if pair == "dot" else reach.square()).all():
        raise Diverged(NO_ORDER)
    if pair == "l2":  # from ‖q‖² + ‖c‖² − 2 q·c; an error e in the square moves its root by at most √e
        return share**0.5 * reach + LOST[pair]
    return (1 if pair == "dot" else 2) * share * reach + LOST[pair]


def _leave_out(scores: Tensor, rows: Tensor, columns: Tensor, start: int, stop: int) -> None:
    inside = (columns >= start) & (columns < stop)
    place = torch.where(inside, columns - start, 0)
    scores[rows, place] = torch.where(inside, -torch.inf, scores[rows, place])


def _skip(scores: Tensor, skip: Runs, start: int) -> None:
    """Sets what is left out to −∞; the tile begins with the candidate `start`."""
    begin, end = np.empty_like(skip.first), np.empty_like(skip.last)
    _inside_loop(skip.first, skip.last, skip.answers, start, start + scores.shape[1], begin, end)
    if scores.device.type == "cpu":
        use_torch_threads()
        _skip_loop(scores.numpy(), begin, end, skip.answers, start)
        return
    count = end - begin
    rows = np.repeat(np.arange(len(count)), count)
    places = np.arange(len(rows)) + np.repeat(begin - (np.cumsum(count) - count), count)
    columns = skip.answers[places].astype(np.int64) - start
    scores[torch.from_numpy(rows).to(scores.device), torch.from_numpy(columns).to(scores.device)] = -torch.inf


def _count_tile(scores: Tensor, low: Tensor, high: Tensor, above: Tensor) -> tuple[Tensor, Tensor]:
    """Adds the clearly higher ones to `above`; gives back the (row, column) of those within the bound."""
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


def _decide(
    queries: Tensor,
    candidates: Tensor,
    rows: Tensor,
    columns: Tensor,
    exact: Tensor,
    pair: Pair,
    above: Tensor,
    ties: Tensor,
) -> None:
    """Counts the near ones by their exact scores."""
    for r, c in zip(rows.split(_rows(queries)), columns.split(_rows(queries))):
        scores = row_scores(queries[r].double(), candidates[c].double(), pair).float()
        above += torch.bincount(r[scores > exact[r]], minlength=len(above))
        ties += torch.bincount(r[scores == exact[r]], minlength=len(ties))


@numba.njit(cache=True, parallel=True)
def _count_loop(scores, low, high, above, near):  # type: ignore[no-untyped-def]
    """Counts above the bound; near[i, b] is how many of block b lie within it."""
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
    """Of each run the part begin … end whose answers lie in start … stop."""
    for i in range(first.shape[0]):
        run = answers[first[i] : last[i]]
        begin[i] = first[i] + np.searchsorted(run, start)
        end[i] = first[i] + np.searchsorted(run, stop)


@numba.njit(cache=True, parallel=True)
def _skip_loop(scores, begin, end, answers, start):  # type: ignore[no-untyped-def]
    for i in numba.prange(scores.shape[0]):
        for k in range(begin[i], end[i]):
            scores[i, answers[k] - start] = -np.inf
