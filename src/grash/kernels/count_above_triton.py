"""Counts the candidates above each true answer on CUDA: all queries and candidates in few launches, no score stored.

    score_truths        the exact scores of the true answers, and bounds within which a float32 score is undecided
    for a part of the candidates:
        transpose       its rows, so that one coordinate of many candidates is contiguous
        count           a tile of queries meets one tile of candidates after another, in float32; a score is compared
                        with all truths of its query
        decide          the undecided ("open") pairs by their exact scores: float64, rounded once
    subtract_filtered   the known answers of a query are scored once; each truth subtracts those that were counted

2·W FLOP a pair (distances: two operations a coordinate, a modulus one special function more). The table is read once
and written transposed once; then tiles come from the caches: 8 × 256 pairs read 1,056 bytes a coordinate. An exact pair
reads 8·W bytes, and its sum is a tree of one shape for every pair, so equal rows have equal scores.
Counts are sums of integers, and the list of open pairs has no order, so no result depends on tiles or parts. Whether
the list was too short is read with the counts, at the end; the caller then repeats the count with more parts.
The alignment of counters is not compiled in, since they start anywhere in one tensor.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
import triton
import triton.language as tl
from torch import Tensor

from grash.kernels.compile_ahead import launch
from grash.kernels.count_above import LOST, TruthIndex
from grash.kernels.pair_scores import Pair

# queries × candidates of a tile, for one warp: as many as its registers hold; UNROLLED coordinates of the loop. Square
# roots are slow, so for them many warps matter more than large tiles
TILES: dict[Pair, dict[str, int]] = {
    "dot": {"BM": 8, "BN": 256, "UNROLLED": 4, "num_warps": 1},
    "l1": {"BM": 8, "BN": 256, "UNROLLED": 4, "num_warps": 1},
    "l2": {"BM": 8, "BN": 256, "UNROLLED": 4, "num_warps": 1},
    "modulus": {"BM": 8, "BN": 128, "UNROLLED": 2, "num_warps": 1, "maxnreg": 80},
}
_ROWS, _COLUMNS, _HALF = 16, 256, 4  # queries, candidates and half rows are padded to multiples: full tiles of any pair
PART_BYTES = 512 << 20  # candidates transposed at a time
BLOCK_BYTES = 128 << 20  # the same for an offloaded table, of which two blocks are on the device as well
_MIN_OPEN, _MAX_OPEN = 1 << 18, 1 << 26  # limits of the list of open pairs
_PAIRS_PER_OPEN = 256  # one pair in 256 may be open
_MAX_TILES = 16  # tiles of candidates per program
_PROGRAMS = 12_000  # enough to keep a GPU busy to the end
_ELEMENTS = 1024  # of a tile of exact scores: rows × half a row, padded
_FILTERED_AT_ONCE = 1024  # filtered scores compared at once
_EXACT_PROGRAMS = 2112  # that share the open pairs: 16 for each of 132 multiprocessors
_INFINITE: tl.constexpr = tl.constexpr(float("inf"))
_UNIT: tl.constexpr = tl.constexpr(2.0**-24)


@dataclass(frozen=True)
class CountShape:
    """Padded sizes of a count of B truths of queries of width W against E candidates."""

    half: int  # floats of half a row
    truths: int  # there are at most as many queries
    part: int  # candidates counted at a time
    max_open: int  # pairs of a part that may be open

    @classmethod
    def of(cls, n_truths: int, n_candidates: int, width: int, *, max_bytes: int = PART_BYTES) -> CountShape:
        """Return a shape with parts of at most `max_bytes`.

        Of random rows one pair in 10,000 is open; there is space for 39 (fewer only if one tile of truths fills it).
        """
        half, truths = _round_up(max(1, -(-width // 2)), _HALF), _round_up(max(1, n_truths), _ROWS)
        most = min(max_bytes // (8 * half), _MAX_OPEN * _PAIRS_PER_OPEN // truths)
        part = _round_up(max(1, min(n_candidates, most)), _COLUMNS)
        max_open = max(_MIN_OPEN, truths * _COLUMNS, min(_MAX_OPEN, truths * part // _PAIRS_PER_OPEN))
        return cls(half, truths, part, min(truths * part, max_open))

    def finer(self) -> CountShape:
        """Return a shape with 16 times as many parts and the same list, which always holds the pairs of one tile."""
        return replace(self, part=_round_up(-(-self.part // 16), _COLUMNS))

    def n_parts(self, n_candidates: int) -> int:
        return -(-n_candidates // self.part)

    @property
    def bytes(self) -> int:
        """Bytes of the work space without queries and filter, if every truth has its own query."""
        return 8 * self.half * (self.part + self.truths) + 12 * self.truths + 8 * self.max_open


def largest_sizes(rows: Tensor, pair: Pair) -> Tensor:
    """(E, W) → (blocks,) float32: the largest size of a row in each block; ∞ if it holds NaN or infinity."""
    width = rows.shape[1]
    padded = triton.next_power_of_2(max(1, width))
    together = max(1, 4096 // padded)
    out = rows.new_empty(-(-len(rows) // together), dtype=torch.float32)
    launch(
        _sizes, (len(out),), rows, rows.stride(0), out, len(rows),
        W=width, SQUARES=pair in ("dot", "l2"), ROWS=together, P=padded, num_warps=4,
    )  # fmt: skip
    return out


def score_truths(
    queries: Tensor, candidates: Tensor, truth: Tensor, query: Tensor, largest: Tensor, pair: Pair, bounds: Tensor,
    bad: Tensor,
) -> None:  # fmt: skip
    """Fill bounds (3, B padded): the exact scores of the truths, the lower and the upper bound of an open score.

    queries (Q, W), candidates (E, W), truth (B,) ids, query (B,) int32 as in `TruthIndex`, largest (1,): size of a
    candidate. The padding is ∞. Sets bad (1,) to 1 if a score may leave the range of float32.
    """
    tile = _exact_tile(queries)
    launch(
        _truths, (-(-bounds.shape[1] // tile["ROWS"]),),
        queries, candidates, candidates.stride(0), truth, query, largest, bounds, bad, len(truth), bounds.shape[1],
        PAIR=pair, LOST=LOST[pair], **tile,
    )  # fmt: skip


def count_candidates(
    queries: Tensor, candidates: Tensor, bounds: Tensor, index: TruthIndex, pair: Pair, shape: CountShape, *,
    out: Tensor, n_open: Tensor,
) -> None:  # fmt: skip
    """Add to out (2, B) int64 the candidates above each truth and those that tie, including filtered and true ones.

    candidates (E, W) may be a block of all. n_open (parts,) int64, zeros before: open pairs of each part; if one
    exceeds shape.max_open, `out` is wrong.
    """
    tile = TILES[pair]
    n_tiles = -(-len(queries) // tile["BM"])
    across = _transpose_tiles(queries, tile["BM"], queries.new_zeros(2 * shape.half * n_tiles * tile["BM"]))
    block = queries.new_zeros(2 * shape.half * shape.part)
    open_pairs = torch.empty(2, shape.max_open, dtype=torch.int32, device=queries.device)
    exact = _exact_tile(queries)
    programs = min(_EXACT_PROGRAMS, -(-shape.max_open // exact["ROWS"]))
    for i in range(shape.n_parts(len(candidates))):
        part = candidates[i * shape.part : (i + 1) * shape.part]
        _transpose_tiles(part, tile["BN"], block)
        found = n_open[i : i + 1].view(torch.int32)  # its low half: no program adds once the list is full
        tiles = (n_tiles, -(-len(part) // tile["BN"]))
        length = max(1, min(_MAX_TILES, tiles[0] * tiles[1] // _PROGRAMS))
        launch(
            _count, (tiles[0], -(-tiles[1] // length)),
            across, block, bounds, index.order, index.starts, out, open_pairs, found, shape.max_open, len(part),
            len(queries), length, shape.truths, HALF=shape.half, PAIR=pair, **tile,
        )  # fmt: skip
        launch(
            _decide, (programs,),
            queries, part, part.stride(0), bounds, index.query, open_pairs, found, shape.max_open, out,
            len(index.query), programs, PAIR=pair, **exact,
        )  # fmt: skip


def _transpose_tiles(rows: Tensor, together: int, out: Tensor) -> Tensor:
    """(n, W) → out (tiles, 2, half, together), flat: coordinate by coordinate within a tile of rows.

    Both halves of a row are padded; the padding of `out` keeps its zeros.
    """
    n, width = rows.shape
    first, whole = -(-width // 2), n // together
    half = _round_up(max(1, first), _HALF)
    tiles = out.view(-1, 2, half, together)
    for i, part in enumerate((rows[:, :first], rows[:, first:])):
        columns = part.shape[1]
        tiles[:whole, i, :columns].copy_(part[: whole * together].unflatten(0, (whole, together)).transpose(1, 2))
        if n > whole * together:
            tiles[whole, i, :columns, : n - whole * together].copy_(part[whole * together :].T)
    return out


def subtract_filtered(
    queries: Tensor, candidates: Tensor, bounds: Tensor, known: Tensor, runs: Tensor, pair: Pair, out: Tensor
) -> None:
    """Subtract the filtered candidates and the truth itself from out (2, B).

    known (2, m): a query and a known answer. runs (3, B): where the known answers of a truth's query start and end in
    `known`, and 1 if the truth is among them. All int32.
    """
    n, tile = known.shape[1], _exact_tile(queries)
    scores = queries.new_empty(n)
    if n:
        launch(
            _filtered, (-(-n // tile["ROWS"]),),
            queries, candidates, candidates.stride(0), known, scores, n, PAIR=pair, **tile,
        )  # fmt: skip
    launch(
        _leave_out, (runs.shape[1],),
        scores, bounds, runs, out, runs.shape[1], BLOCK=_FILTERED_AT_ONCE, num_warps=4,
    )  # fmt: skip


def _exact_tile(queries: Tensor) -> dict[str, int]:
    """Return one tile shape for all pairs of this width, and so one order of summation."""
    width = queries.shape[1]
    padded = triton.next_power_of_2(max(1, -(-width // 2)))
    return {"W": width, "P": padded, "ROWS": max(1, _ELEMENTS // padded), "num_warps": 4}


def dry_run_count(width: int, pair: Pair, dtype: torch.dtype = torch.float32) -> None:
    """Launch the count of rows of this width on meta tensors, for `compile_ahead.dry_run`.

    The numbers of rows may be any: they are not compiled into the kernels. dtype: of the candidates.
    """

    def integers(*size: int, dtype: torch.dtype = torch.int32) -> Tensor:
        return torch.empty(size, dtype=dtype, device="meta")

    queries, candidates = integers(_ROWS, width, dtype=torch.float32), integers(_COLUMNS, width, dtype=dtype)
    index = TruthIndex(integers(_ROWS), integers(_ROWS), integers(_ROWS + 1))
    shape, out = CountShape.of(len(queries), len(candidates), width), integers(2, _ROWS, dtype=torch.int64)
    largest, bounds = largest_sizes(candidates, pair).max(), queries.new_empty(3, shape.truths)
    score_truths(queries, candidates, out[0], index.query, largest, pair, bounds, out[0])
    count_candidates(queries, candidates, bounds, index, pair, shape, out=out, n_open=out[0])
    subtract_filtered(queries, candidates, bounds, integers(2, _ROWS), integers(3, _ROWS), pair, out)


def _round_up(n: int, multiple: int) -> int:
    return -(-n // multiple) * multiple


@triton.jit(do_not_specialize=["above", "found", "max_open", "n", "Q", "length"])
def _count(  # type: ignore[no-untyped-def]
    queries, block, bounds, order, starts, above, open_pairs, found, max_open, n, Q, length, rows,
    HALF: tl.constexpr, PAIR: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, UNROLLED: tl.constexpr,
):  # fmt: skip
    """Programs of all tiles of queries run together on one tile of candidates, which stays in the caches."""
    query = tl.program_id(0) * BM + tl.arange(0, BM)
    first = tl.load(starts + query, mask=query < Q, other=0)
    last = tl.load(starts + query + 1, mask=query < Q, other=0)
    most = tl.max(last - first, 0)
    queries += tl.program_id(0) * (2 * HALF * BM)
    begin = tl.program_id(1) * length
    for tile in range(begin, tl.minimum(begin + length, tl.cdiv(n, BN))):
        column = tile * BN + tl.arange(0, BN)
        score = _scores(queries, block + tile * (2 * HALF * BN), HALF, PAIR, BM, BN, UNROLLED)
        # padding is neither above nor open, even if a bound is −∞ (a model that has diverged)
        score = tl.where((column < n)[None, :], score, float("nan"))
        for k in range(most):
            live = first + k < last
            truth = tl.load(order + first + k, mask=live, other=0)
            low = tl.load(bounds + rows + truth, mask=live, other=_INFINITE)
            high = tl.load(bounds + 2 * rows + truth, mask=live, other=_INFINITE)
            higher = tl.sum((score > high[:, None]).to(tl.int32), 1)
            reach = tl.sum((score >= low[:, None]).to(tl.int32), 1)
            tl.atomic_add(above + truth, higher.to(tl.int64), mask=live & (higher > 0), sem="relaxed")
            if (tl.sum(reach - higher, 0) > 0) & (tl.load(found) <= max_open):
                # row by row: all at once would double the registers and so halve the number of warps
                for i in range(BM):
                    this = tl.arange(0, BM) == i
                    if tl.sum(tl.where(this, reach - higher, 0), 0) > 0:
                        one = tl.sum(tl.where(this[:, None], score, 0.0), 0)
                        lowest, highest = tl.sum(tl.where(this, low, 0.0), 0), tl.sum(tl.where(this, high, 0.0), 0)
                        is_open = (one >= lowest) & (one <= highest)
                        place = tl.atomic_add(found + tl.zeros((BN,), tl.int32), 1, mask=is_open, sem="relaxed")
                        kept = is_open & (place < max_open)
                        tl.store(
                            open_pairs + place,
                            tl.sum(tl.where(this, truth, 0), 0) + tl.zeros((BN,), tl.int32),
                            mask=kept,
                        )
                        tl.store(open_pairs + max_open + place, column, mask=kept)


@triton.jit
def _scores(  # type: ignore[no-untyped-def]
    queries, block,
    HALF: tl.constexpr, PAIR: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, UNROLLED: tl.constexpr,
):  # fmt: skip
    """Score a tile of queries (2, HALF, BM) and one of candidates (2, HALF, BN): (BM, BN) in float32."""
    # loaded with two axes: the tile then has the layout of this load, and no data moves between threads
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
    """Score queries `row` with candidates `column`, (ROWS,) each; a row is read in two halves, for the modulus."""
    c = tl.arange(0, P)
    first, second = c < (W + 1) // 2, c < W // 2
    q = queries + row.to(tl.int64)[:, None] * W + c[None, :]
    e = candidates + column.to(tl.int64)[:, None] * stride + c[None, :]
    low, high = live[:, None] & first[None, :], live[:, None] & second[None, :]
    qr = tl.load(q, mask=low, other=0.0).to(tl.float64)
    qi = tl.load(q + (W + 1) // 2, mask=high, other=0.0).to(tl.float64)
    er = tl.load(e, mask=low, other=0.0).to(tl.float32).to(tl.float64)  # via float32: rows may be bf16
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
    queries, candidates, stride, truth, query_of, largest, bounds, bad, n, padded,
    PAIR: tl.constexpr, LOST: tl.constexpr, W: tl.constexpr, P: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    row, c = tl.program_id(0) * ROWS + tl.arange(0, ROWS), tl.arange(0, P)
    live = row < n
    query = tl.load(query_of + row, mask=live, other=0)
    score = _exact(queries, query, candidates, stride, tl.load(truth + row, mask=live, other=0), live, PAIR, W, P)
    q = queries + query.to(tl.int64)[:, None] * W + c[None, :]
    qr = tl.load(q, mask=live[:, None] & (c < (W + 1) // 2)[None, :], other=0.0)
    qi = tl.load(q + (W + 1) // 2, mask=live[:, None] & (c < W // 2)[None, :], other=0.0)
    if (PAIR == "dot") or (PAIR == "l2"):
        size = tl.sqrt_rn(tl.sum(qr * qr + qi * qi, 1))
    else:
        size = tl.sum(tl.abs(qr) + tl.abs(qi), 1)
    most = tl.load(largest)
    # as in `error_bound`; but differences are squared here, not expanded, so nothing cancels: the error of a distance
    # is proportional to it, and open_pairs the truth to the distance of the truth
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
    tl.store(bounds + row, tl.where(live, score, _INFINITE), mask=inside)
    tl.store(bounds + padded + row, tl.where(live, score - slack, _INFINITE), mask=inside)
    tl.store(bounds + 2 * padded + row, tl.where(live, score + slack, _INFINITE), mask=inside)


@triton.jit(do_not_specialize=["found", "max_open", "out", "n", "programs"])
def _decide(  # type: ignore[no-untyped-def]
    queries, candidates, stride, bounds, query_of, open_pairs, found, max_open, out, n, programs,
    PAIR: tl.constexpr, W: tl.constexpr, P: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    last = tl.minimum(tl.load(found), max_open)
    one = tl.full((ROWS,), 1, tl.int64)
    for first in range(tl.program_id(0) * ROWS, last, programs * ROWS):
        i = first + tl.arange(0, ROWS)
        live = i < last
        row, column = (
            tl.load(open_pairs + i, mask=live, other=0),
            tl.load(open_pairs + max_open + i, mask=live, other=0),
        )
        query = tl.load(query_of + row, mask=live, other=0)
        score = _exact(queries, query, candidates, stride, column, live, PAIR, W, P)
        truth = tl.load(bounds + row)
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
def _leave_out(scores, bounds, runs, out, n, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    row = tl.program_id(0)
    truth = tl.load(bounds + row)
    above, ties = tl.zeros((BLOCK,), tl.int32), tl.zeros((BLOCK,), tl.int32)
    last = tl.load(runs + n + row)
    for first in range(tl.load(runs + row), last, BLOCK):
        i = first + tl.arange(0, BLOCK)
        score = tl.load(scores + i, mask=i < last, other=-_INFINITE)
        above += (score > truth).to(tl.int32)
        ties += (score == truth).to(tl.int32)
    itself = 1 - tl.load(runs + 2 * n + row)  # the truth ties with itself, unless it was subtracted as known
    tl.store(out + row, tl.load(out + row) - tl.sum(above, 0))
    tl.store(out + n + row, tl.load(out + n + row) - tl.sum(ties, 0) - itself)
