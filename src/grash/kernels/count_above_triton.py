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

from grash.kernels import count_exact_triton as exact
from grash.kernels.compile_ahead import launch
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
    exact.truths(queries, candidates, truth, asked.asks, largest, pair, edges, bad)
    count_rows(queries, candidates, edges, asked, pair, shape, out=out, open_pairs=open_pairs)
    exact.leave_out(queries, candidates, edges, known.pairs, known.runs, pair, out)


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
        exact.decide(queries, part, edges, asked.asks, near, found, pair, out)


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
    largest = exact.sizes(candidates, pair).max()
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
