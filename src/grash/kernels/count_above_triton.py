"""Counting candidates above a query's truths on CUDA: all queries and all candidates in few launches, no score kept.

    for a part of the candidates:   turn   its rows across, so that a coordinate of many lies side by side
                                    count  a tile of queries meets one tile of candidates after another, in float32;
                                           a score is compared with all truths of its query
                                    decide the pairs within the error bound, in float64 (`count_exact_triton`)
    then                            leave out what is filtered, and the truth itself
2·W FLOP a pair (distances: two operations a coordinate, a modulus one special function more). The table is read once
and written across once, and from then on tiles are read from the caches: 8 × 256 pairs read 1,056 bytes a coordinate.
Counts are sums of integers and open pairs an unordered list, so no result depends on tiles, parts or order. Whether
the list was too short is read with the counts, at the end: then the caller asks again with more parts.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
import triton
import triton.language as tl
from torch import Tensor

from grash.kernels.compile_ahead import launch
from grash.kernels.count_above import LOST
from grash.kernels.pair_scores import Pair

# queries × candidates of a tile, by one warp: as many as its registers hold; coordinates written out in the loop. Roots
# come slowly, so for them many warps count more than large tiles
TILES: dict[Pair, dict[str, int]] = {
    "dot": {"BM": 8, "BN": 256, "UNROLLED": 4, "num_warps": 1},
    "l1": {"BM": 8, "BN": 256, "UNROLLED": 4, "num_warps": 1},
    "l2": {"BM": 8, "BN": 256, "UNROLLED": 4, "num_warps": 1},
    "modulus": {"BM": 8, "BN": 128, "UNROLLED": 2, "num_warps": 1, "maxnreg": 80},
}
_ROWS, _COLUMNS, _HALF = (
    16,
    256,
    4,
)  # to which queries, candidates and halves of rows are padded: whole tiles of any pair
PART_BYTES = 512 << 20  # candidates turned across at a time
PIECE_BYTES = 128 << 20  # the same of a table that lies elsewhere: two pieces of it are on the device beside them
_LEAST_ROOM, _MOST_ROOM = 1 << 18, 1 << 26
_PAIRS_A_PLACE = 256  # one in 256 pairs may stay open
_LONGEST = 16  # tiles of candidates that a program meets
_PROGRAMS = 12_000  # enough to keep a card busy to the end
_INFINITE: tl.constexpr = tl.constexpr(float("inf"))


@dataclass(frozen=True, eq=False)
class Asked:
    """Which of the Q queries each of the B truths answers, int32: asks (B,), that query; order (B,), the truths by
    query; starts (Q + 1,), where a query's begin in it. Queries with many truths come first: a tile takes as long as
    its longest."""

    asks: Tensor
    order: Tensor
    starts: Tensor


@dataclass(frozen=True, eq=False)
class Filter:
    """Known answers on the device, as `count_exact_triton.leave_out` takes them: pairs (2, m), runs (3, B), int32."""

    pairs: Tensor
    runs: Tensor


@dataclass(frozen=True)
class Shape:
    """What a count of B truths of queries of width W against E candidates takes: floats of half a row (padded), truths
    (padded; there are not more queries), candidates of a part (padded), pairs that may stay open in a part."""

    half: int
    truths: int
    part: int
    room: int

    @classmethod
    def of(cls, n_truths: int, n_candidates: int, width: int, *, most_bytes: int = PART_BYTES) -> Shape:
        """In parts of at most so many bytes; of random rows one pair in 10,000 stays open, there is room for 39 (for
        fewer only where truths are so many that one tile of them fills it)."""
        half, truths = _up(max(1, -(-width // 2)), _HALF), _up(max(1, n_truths), _ROWS)
        most = min(most_bytes // (8 * half), _MOST_ROOM * _PAIRS_A_PLACE // truths)
        part = _up(max(1, min(n_candidates, most)), _COLUMNS)
        room = max(_LEAST_ROOM, truths * _COLUMNS, min(_MOST_ROOM, truths * part // _PAIRS_A_PLACE))
        return cls(half, truths, part, min(truths * part, room))

    def finer(self) -> Shape:
        """Sixteen times as many parts with the same room; one tile's pairs always find room."""
        return replace(self, part=_up(-(-self.part // 16), _COLUMNS))

    def parts(self, n_candidates: int) -> int:
        return -(-n_candidates // self.part)

    @property
    def bytes(self) -> int:
        """Of the work space, without queries and filter, if no two truths answer the same query."""
        return 8 * self.half * (self.part + self.truths) + 12 * self.truths + 8 * self.room


def count(
    queries: Tensor,
    candidates: Tensor,
    truth: Tensor,
    asked: Asked,
    largest: Tensor,
    known: Filter,
    pair: Pair,
    shape: Shape,
    *,
    out: Tensor,
    open_pairs: Tensor,
    bad: Tensor,
) -> None:
    """queries (Q, W), candidates (E, W) (rows may lie apart), truth (B,) ids, largest (1,) size of a candidate.

    Fills out (2, B), zeros before: above and ties, filtered. open_pairs (parts,), zeros before: those of each part;
    where one exceeds shape.room, out is wrong. bad (1,) becomes 1 where float32 does not reach. All int64.
    """
    edges = queries.new_empty(3, shape.truths)
    truths(queries, candidates, truth, asked.asks, largest, pair, edges, bad)
    count_rows(queries, candidates, edges, asked, pair, shape, out=out, open_pairs=open_pairs)
    leave_out(queries, candidates, edges, known.pairs, known.runs, pair, out)


def count_rows(
    queries: Tensor, candidates: Tensor, edges: Tensor, asked: Asked, pair: Pair, shape: Shape, *,
    out: Tensor, open_pairs: Tensor,
) -> None:  # fmt: skip
    """The counting alone, against candidates that may be some of all: adds to out (2, B) what lies above the edges
    (3, B padded, from `count_exact_triton.truths`) and what ties, neither filtered nor without the truth itself."""
    tile = TILES[pair]
    n_tiles = -(-len(queries) // tile["BM"])
    across = _turned(queries, tile["BM"], queries.new_zeros(2 * shape.half * n_tiles * tile["BM"]))
    block = queries.new_zeros(2 * shape.half * shape.part)
    near = torch.empty(2, shape.room, dtype=torch.int32, device=queries.device)
    for i in range(shape.parts(len(candidates))):
        part = candidates[i * shape.part : (i + 1) * shape.part]
        _turned(part, tile["BN"], block)
        found = open_pairs[i : i + 1].view(torch.int32)  # its low half: no program adds once the list is full
        tiles = (n_tiles, -(-len(part) // tile["BN"]))
        length = max(1, min(_LONGEST, tiles[0] * tiles[1] // _PROGRAMS))
        launch(
            _count, (tiles[0], -(-tiles[1] // length)),
            across, block, edges, asked.order, asked.starts, out, near, found, shape.room, len(part), len(queries),
            length, shape.truths, HALF=shape.half, PAIR=pair, **tile,
        )  # fmt: skip
        decide(queries, part, edges, asked.asks, near, found, pair, out)


def rehearse(width: int, pair: Pair, dtype: torch.dtype = torch.float32) -> None:
    """Launches what `count` does for rows of this width, by tensors without memory (`rehearsal`). How many
    rows there are compiles nothing anew. dtype: of the candidates."""
    queries, candidates = (
        torch.empty(_ROWS, width, device="meta"),
        torch.empty(_COLUMNS, width, dtype=dtype, device="meta"),
    )
    known = Filter(*(torch.empty(n, _ROWS, dtype=torch.int32, device="meta") for n in (2, 3)))
    asked = Asked(*(torch.empty(n, dtype=torch.int32, device="meta") for n in (_ROWS, _ROWS, _ROWS + 1)))
    numbers = torch.empty(2, _ROWS, dtype=torch.int64, device="meta")
    shape = Shape.of(len(queries), len(candidates), width)
    largest = sizes(candidates, pair).max()
    count(queries, candidates, numbers[0], asked, largest, known, pair, shape,
          out=numbers, open_pairs=numbers[0], bad=numbers[0])  # fmt: skip


def _turned(rows: Tensor, together: int, out: Tensor) -> Tensor:
    """(n, W) → out (tiles, 2, half, together), flat: tile by tile of rows and in it coordinate by coordinate, both
    halves of a row padded; zeros stay in the padding."""
    n, width = rows.shape
    first, whole = -(-width // 2), n // together
    half = _up(max(1, first), _HALF)
    tiles = out.view(-1, 2, half, together)
    for side, part in enumerate((rows[:, :first], rows[:, first:])):
        columns = part.shape[1]
        tiles[:whole, side, :columns].copy_(part[: whole * together].unflatten(0, (whole, together)).transpose(1, 2))
        if n > whole * together:
            tiles[whole, side, :columns, : n - whole * together].copy_(part[whole * together :].T)
    return out


def _up(n: int, step: int) -> int:
    return -(-n // step) * step


@triton.jit(do_not_specialize=["above", "found", "room", "n", "Q", "length"])
def _count(  # type: ignore[no-untyped-def]
    queries, block, edges, order, starts, above, near, found, room, n, Q, length, rows,
    HALF: tl.constexpr, PAIR: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, UNROLLED: tl.constexpr,
):  # fmt: skip
    """Programs of one tile of candidates and all tiles of queries run together: the candidates stay in the caches."""
    query = tl.program_id(0) * BM + tl.arange(0, BM)
    first = tl.load(starts + query, mask=query < Q, other=0)
    last = tl.load(starts + query + 1, mask=query < Q, other=0)
    most = tl.max(last - first, 0)
    queries += tl.program_id(0) * (2 * HALF * BM)
    begin = tl.program_id(1) * length
    for tile in range(begin, tl.minimum(begin + length, tl.cdiv(n, BN))):
        column = tile * BN + tl.arange(0, BN)
        score = _scores(queries, block + tile * (2 * HALF * BN), HALF, PAIR, BM, BN, UNROLLED)
        # padding compares as neither above nor open, also where the bound reaches to −∞ (a model that has diverged)
        score = tl.where((column < n)[None, :], score, float("nan"))
        for k in range(most):
            live = first + k < last
            truth = tl.load(order + first + k, mask=live, other=0)
            low = tl.load(edges + rows + truth, mask=live, other=_INFINITE)
            high = tl.load(edges + 2 * rows + truth, mask=live, other=_INFINITE)
            higher = tl.sum((score > high[:, None]).to(tl.int32), 1)
            reach = tl.sum((score >= low[:, None]).to(tl.int32), 1)
            tl.atomic_add(above + truth, higher.to(tl.int64), mask=live & (higher > 0), sem="relaxed")
            if (tl.sum(reach - higher, 0) > 0) & (tl.load(found) <= room):
                # row by row: all at once would double the registers, and with them halve the warps that run
                for i in range(BM):
                    this = tl.arange(0, BM) == i
                    if tl.sum(tl.where(this, reach - higher, 0), 0) > 0:
                        one = tl.sum(tl.where(this[:, None], score, 0.0), 0)
                        lowest, highest = tl.sum(tl.where(this, low, 0.0), 0), tl.sum(tl.where(this, high, 0.0), 0)
                        open_ = (one >= lowest) & (one <= highest)
                        place = tl.atomic_add(found + tl.zeros((BN,), tl.int32), 1, mask=open_, sem="relaxed")
                        kept = open_ & (place < room)
                        tl.store(
                            near + place, tl.sum(tl.where(this, truth, 0), 0) + tl.zeros((BN,), tl.int32), mask=kept
                        )
                        tl.store(near + room + place, column, mask=kept)


@triton.jit
def _scores(  # type: ignore[no-untyped-def]
    queries, block,
    HALF: tl.constexpr, PAIR: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, UNROLLED: tl.constexpr,
):  # fmt: skip
    """A tile of queries (2, HALF, BM) with one of candidates (2, HALF, BN) → (BM, BN), in float32."""
    # loaded with two axes: the tile then takes the layout of this load, and nothing is moved between threads
    queries += tl.arange(0, BM)[:, None]
    block += tl.arange(0, BN)[None, :]
    total = tl.zeros((BM, BN), tl.float32)
    for first in range(0, HALF, UNROLLED):
        for k in tl.static_range(UNROLLED):
            q, e = queries + (first + k) * BM, block + (first + k) * BN
            qr, er = tl.load(q), tl.load(e)
            qi, ei = tl.load(q + HALF * BM), tl.load(e + HALF * BN)
            if PAIR == "dot":
                total += qr * er
                total += qi * ei
            elif PAIR == "l1":
                total += tl.abs(qr - er)
                total += tl.abs(qi - ei)
            elif PAIR == "l2":
                total += (qr - er) * (qr - er)
                total += (qi - ei) * (qi - ei)
            else:
                total += tl.sqrt((qr - er) * (qr - er) + (qi - ei) * (qi - ei))
    if PAIR == "l2":
        total = tl.sqrt_rn(total)
    return total if PAIR == "dot" else -total


# = The exact side of counting on CUDA: scores in float64, rounded once, for the pairs that need them.
# =
# =     sizes      the largest size of a row, in one pass over the table
# =     truths     the true answers' scores, and how far from them the fast product can be trusted
# =     decide     the candidates that the fast product left open, each counted by its exact score
# =     leave_out  the filter: a question's known answers are scored once, whichever of them is asked for, and each
# =                query takes off those that were counted
# = A pair reads 8·W bytes. Sums are trees of one shape for every pair, so equal rows have equal scores. Counters lie
# = anywhere in one tensor, so their alignment is not compiled in: heads and tails would need kernels of their own.

_ELEMENTS = 1024  # of a tile: rows × half a row, padded
_AT_ONCE = 1024  # filtered scores compared at once
_PROGRAMS_count_exact_triton = (
    2112  # that share the open pairs, however many these are: 16 for each of 132 multiprocessors
)
_UNIT: tl.constexpr = tl.constexpr(2.0**-24)


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
    programs = min(_PROGRAMS_count_exact_triton, -(-room // tile["ROWS"]))
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
