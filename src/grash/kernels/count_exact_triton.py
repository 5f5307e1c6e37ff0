"""The exact side of counting on CUDA: scores in float64, rounded once, for the pairs that need them.

    sizes      the largest size of a row, in one pass over the table
    truths     the true answers' scores, and how far from them the fast product can be trusted
    decide     the candidates that the fast product left open, each counted by its exact score
    leave_out  the filter: a question's known answers are scored once, whichever of them is asked for, and each
               query takes off those that were counted
A pair reads 8·W bytes. Sums are trees of one shape for every pair, so equal rows have equal scores. Counters lie
anywhere in one tensor, so their alignment is not compiled in: heads and tails would need kernels of their own.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from grash.kernels.compile_ahead import launch
from grash.kernels.count_above import LOST
from grash.kernels.pair_scores import Pair

_ELEMENTS = 1024  # of a tile: rows × half a row, padded
_AT_ONCE = 1024  # filtered scores compared at once
_PROGRAMS = 2112  # that share the open pairs, however many these are: 16 for each of 132 multiprocessors
_UNIT: tl.constexpr = tl.constexpr(2.0**-24)
_INFINITE: tl.constexpr = tl.constexpr(float("inf"))


def sizes(rows: Tensor, pair: Pair) -> Tensor:
    """(E, W) → (blocks,) float32: the largest size of each block's rows; ∞ where a number is NaN or infinite."""
    width = rows.shape[1]
    padded = triton.next_power_of_2(max(1, width))
    together = max(1, 4096 // padded)
    out = rows.new_empty(-(-len(rows) // together), dtype=torch.float32)
    launch(
        _sizes, (len(out),), rows, rows.stride(0), out, len(rows),
        W=width, SQUARES=pair in ("dot", "l2"), ROWS=together, P=padded, num_warps=4,
    )  # fmt: skip
    return out


def truths(
    queries: Tensor, candidates: Tensor, truth: Tensor, asks: Tensor, largest: Tensor, pair: Pair, edges: Tensor,
    bad: Tensor,
) -> None:  # fmt: skip
    """asks (B,) int32: the query whose answer each truth (B,) is. Fills edges (3, B padded): the exact score, and below
    and above it what the fast product cannot tell apart (∞ in the padding). Sets bad (1,) where a score may leave
    float32."""
    tile = _tile(queries)
    launch(
        _truths, (-(-edges.shape[1] // tile["ROWS"]),),
        queries, candidates, candidates.stride(0), truth, asks, largest, edges, bad, len(truth), edges.shape[1],
        PAIR=pair, LOST=LOST[pair], **tile,
    )  # fmt: skip


def decide(
    queries: Tensor, candidates: Tensor, edges: Tensor, asks: Tensor, near: Tensor, found: Tensor, pair: Pair,
    out: Tensor,
) -> None:  # fmt: skip
    """Adds to out (2, B), above and ties, the open pairs near (2, room): truth and candidate; found (1,) says how
    many."""
    room = near.shape[1]
    tile = _tile(queries)
    programs = min(_PROGRAMS, -(-room // tile["ROWS"]))
    launch(
        _decide, (programs,),
        queries, candidates, candidates.stride(0), edges, asks, near, found, room, out, len(asks), programs,
        PAIR=pair, **tile,
    )  # fmt: skip


def leave_out(
    queries: Tensor, candidates: Tensor, edges: Tensor, pairs: Tensor, runs: Tensor, pair: Pair, out: Tensor
) -> None:
    """Takes from out (2, B) what is filtered. pairs (2, m): a query and a known answer; runs (3, B): where the known
    answers to a truth's query begin and end in pairs, and 1 if the truth is among them."""
    n, tile = pairs.shape[1], _tile(queries)
    scores = queries.new_empty(n)
    if n:
        launch(
            _filtered, (-(-n // tile["ROWS"]),),
            queries, candidates, candidates.stride(0), pairs, scores, n, PAIR=pair, **tile,
        )  # fmt: skip
    launch(_leave_out, (runs.shape[1],), scores, edges, runs, out, runs.shape[1], BLOCK=_AT_ONCE, num_warps=4)


def _tile(queries: Tensor) -> dict[str, int]:
    """One shape for all pairs of this width, and so one order of summation."""
    width = queries.shape[1]
    padded = triton.next_power_of_2(max(1, -(-width // 2)))
    return {"W": width, "P": padded, "ROWS": max(1, _ELEMENTS // padded), "num_warps": 4}


@triton.jit(do_not_specialize=["n"])
def _sizes(rows, stride, out, n, W: tl.constexpr, SQUARES: tl.constexpr, ROWS: tl.constexpr, P: tl.constexpr):  # type: ignore[no-untyped-def]
    block = tl.program_id(0)
    row, c = block * ROWS + tl.arange(0, ROWS), tl.arange(0, P)
    inside = (row < n)[:, None] & (c < W)[None, :]
    x = tl.load(rows + row.to(tl.int64)[:, None] * stride + c[None, :], mask=inside, other=0.0)
    x = tl.abs(x.to(tl.float32))
    x = tl.where(x == x, x, _INFINITE)
    size = tl.sqrt_rn(tl.sum(x * x, 1)) if SQUARES else tl.sum(x, 1)
    tl.store(out + block, tl.max(size, 0))


@triton.jit
def _exact(  # type: ignore[no-untyped-def]
    queries, row, candidates, stride, column, live,
    PAIR: tl.constexpr, W: tl.constexpr, P: tl.constexpr,
):  # fmt: skip
    """Scores of queries `row` with candidates `column`, (ROWS,) each; a row is read in two halves, for the modulus."""
    c = tl.arange(0, P)
    first, second = c < (W + 1) // 2, c < W // 2
    q = queries + row.to(tl.int64)[:, None] * W + c[None, :]
    e = candidates + column.to(tl.int64)[:, None] * stride + c[None, :]
    low, high = live[:, None] & first[None, :], live[:, None] & second[None, :]
    qr = tl.load(q, mask=low, other=0.0).to(tl.float64)
    qi = tl.load(q + (W + 1) // 2, mask=high, other=0.0).to(tl.float64)
    er = tl.load(e, mask=low, other=0.0).to(tl.float32).to(tl.float64)  # by float32, where rows are in bf16
    ei = tl.load(e + (W + 1) // 2, mask=high, other=0.0).to(tl.float32).to(tl.float64)
    if PAIR == "dot":
        score = tl.sum(qr * er + qi * ei, 1)
    elif PAIR == "l1":
        score = -tl.sum(tl.abs(qr - er) + tl.abs(qi - ei), 1)
    elif PAIR == "l2":
        score = -tl.sqrt(tl.sum((qr - er) * (qr - er) + (qi - ei) * (qi - ei), 1))
    else:
        score = -tl.sum(tl.sqrt((qr - er) * (qr - er) + (qi - ei) * (qi - ei)), 1)
    return score.to(tl.float32)


@triton.jit(do_not_specialize=["truth", "bad", "n", "padded"])
def _truths(  # type: ignore[no-untyped-def]
    queries, candidates, stride, truth, asks, largest, edges, bad, n, padded,
    PAIR: tl.constexpr, LOST: tl.constexpr, W: tl.constexpr, P: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    row, c = tl.program_id(0) * ROWS + tl.arange(0, ROWS), tl.arange(0, P)
    live = row < n
    query = tl.load(asks + row, mask=live, other=0)
    score = _exact(queries, query, candidates, stride, tl.load(truth + row, mask=live, other=0), live, PAIR, W, P)
    q = queries + query.to(tl.int64)[:, None] * W + c[None, :]
    qr = tl.load(q, mask=live[:, None] & (c < (W + 1) // 2)[None, :], other=0.0)
    qi = tl.load(q + (W + 1) // 2, mask=live[:, None] & (c < W // 2)[None, :], other=0.0)
    if (PAIR == "dot") or (PAIR == "l2"):
        size = tl.sqrt_rn(tl.sum(qr * qr + qi * qi, 1))
    else:
        size = tl.sum(tl.abs(qr) + tl.abs(qi), 1)
    most = tl.load(largest)
    # as error_bound says; but differences are squared here, not expanded: nothing cancels, so what a distance is off
    # by is a share of itself, and what is near the truth is off by the same share of the truth's
    if PAIR == "dot":
        reach = size * most
        slack = (W + 8) * _UNIT * reach + LOST
    else:
        reach = size + most
        slack = (W + 8) * _UNIT * tl.abs(score) + LOST
        reach = reach * reach
    lost = live & ((reach < _INFINITE) == 0)  # NaN too
    if tl.sum(lost.to(tl.int32), 0) > 0:
        tl.store(bad, 1)
    inside = row < padded
    tl.store(edges + row, tl.where(live, score, _INFINITE), mask=inside)
    tl.store(edges + padded + row, tl.where(live, score - slack, _INFINITE), mask=inside)
    tl.store(edges + 2 * padded + row, tl.where(live, score + slack, _INFINITE), mask=inside)


@triton.jit(do_not_specialize=["found", "room", "out", "n", "programs"])
def _decide(  # type: ignore[no-untyped-def]
    queries, candidates, stride, edges, asks, near, found, room, out, n, programs,
    PAIR: tl.constexpr, W: tl.constexpr, P: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    last = tl.minimum(tl.load(found), room)
    one = tl.full((ROWS,), 1, tl.int64)
    for first in range(tl.program_id(0) * ROWS, last, programs * ROWS):
        i = first + tl.arange(0, ROWS)
        live = i < last
        row, column = tl.load(near + i, mask=live, other=0), tl.load(near + room + i, mask=live, other=0)
        query = tl.load(asks + row, mask=live, other=0)
        score = _exact(queries, query, candidates, stride, column, live, PAIR, W, P)
        truth = tl.load(edges + row)
        tl.atomic_add(out + row, one, mask=live & (score > truth), sem="relaxed")
        tl.atomic_add(out + n + row, one, mask=live & (score == truth), sem="relaxed")


@triton.jit(do_not_specialize=["n"])
def _filtered(  # type: ignore[no-untyped-def]
    queries, candidates, stride, pairs, scores, n,
    PAIR: tl.constexpr, W: tl.constexpr, P: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    i = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    live = i < n
    row, column = tl.load(pairs + i, mask=live, other=0), tl.load(pairs + n + i, mask=live, other=0)
    tl.store(scores + i, _exact(queries, row, candidates, stride, column, live, PAIR, W, P), mask=live)


@triton.jit(do_not_specialize=["out", "n"])
def _leave_out(scores, edges, runs, out, n, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    row = tl.program_id(0)
    truth = tl.load(edges + row)
    above, ties = tl.zeros((BLOCK,), tl.int32), tl.zeros((BLOCK,), tl.int32)
    last = tl.load(runs + n + row)
    for first in range(tl.load(runs + row), last, BLOCK):
        i = first + tl.arange(0, BLOCK)
        score = tl.load(scores + i, mask=i < last, other=-_INFINITE)
        above += (score > truth).to(tl.int32)
        ties += (score == truth).to(tl.int32)
    itself = 1 - tl.load(runs + 2 * n + row)  # the truth ties with itself; among the known it was just taken off
    tl.store(out + row, tl.load(out + row) - tl.sum(above, 0))
    tl.store(out + n + row, tl.load(out + n + row) - tl.sum(ties, 0) - itself)
