"""Filtered ranks of true answers among all entities, for both sides, by counting and without a matrix of scores.

The rank of an answer is 1 + the number of other candidates that score higher + half of those that tie. Candidates known
to be true are left out (the filter). Comes from a model and triples, goes to `metrics`. `Ranker` counts in one of two
ways, with equal results: `CudaCounts` queues the kernels of `count_above_triton`, and the host reads once at the end;
`count_in_tiles` is the reference for any device. Both read an offloaded entity table block by block.

Letters: n triples, B queries of a batch, Q distinct queries, E entities, W floats of a query, m known answers.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from grash.data.candidates import Candidates
from grash.data.known_answers import KnownAnswers, expand
from grash.errors import Diverged
from grash.kernels.count_above import (
    OUT_OF_RANGE,
    CountBatch,
    FilterRuns,
    TruthIndex,
    count_above,
    exact_scores,
    largest_row,
    use_kernels,
)
from grash.kernels.device import set_current_device
from grash.kernels.random import key_at, key_of, permuted_rows
from grash.kernels.storage import is_offloaded, row_blocks, to_float32
from grash.models import KgeModel
from grash.models.base import SIDES, Side

if TYPE_CHECKING:
    from grash.kernels.count_above_triton import CountShape

NOT_FINITE = "The model contains NaN or infinite numbers, so its scores cannot be ranked: train the model again."
_MAX_TRIPLES = 1 << 16  # triples whose filters are in one `SideQueries`
_MIN_TILE, _MAX_BATCH = 1024, 1024  # candidates and queries scored at a time
_SAMPLED_BATCH, _SAMPLED_TILE = 256, 128  # queries and drawn candidates scored at a time
_FINITE_ROWS = 1 << 16  # rows checked at a time
_GROUP = 1 << 17  # queries that share one pass over an offloaded table
_BLOCK_BYTES = 64 << 20  # of an offloaded table, read at a time by a CPU
_QUERY_FLOATS, _QUERY_COPIES = 1 << 21, 6  # floats of rows that become queries at a time; copies of them meanwhile


@dataclass(frozen=True, eq=False)
class SideRanks:
    """Counts for n triples on one side."""

    above: NDArray[np.int64]  # (n,) candidates that score higher than the true answer
    ties: NDArray[np.int64]  # (n,) candidates with the same score
    others: NDArray[np.int64]  # (n,) candidates after the filter, without the true answer
    n_candidates: int = 0  # before the filter; 0 if each question has its own

    @property
    def known(self) -> NDArray[np.int64]:
        """(n,) known answers of each question, with the true one; 0 if each question has its own candidates."""
        return np.maximum(0, self.n_candidates - self.others)

    @property
    def optimistic(self) -> NDArray[np.floating]:
        return 1.0 + self.above

    @property
    def mean(self) -> NDArray[np.floating]:
        return 1.0 + self.above + self.ties / 2

    @property
    def pessimistic(self) -> NDArray[np.floating]:
        return 1.0 + self.above + self.ties


@dataclass(frozen=True, eq=False)
class Ranks:
    """Ranks of n triples (n, 3), as the answer to (?, r, t) and to (h, r, ?)."""

    triples: NDArray[np.int32]
    head: SideRanks
    tail: SideRanks


class Ranker:
    """Ranks the same triples under several models (validation), or under one (test).

    Set `durations` to a list to collect the seconds of every ranking; each is then finished before `start` returns.
    """

    def __init__(self, triples: NDArray[np.int32], known: KnownAnswers, n_entities: int, device: torch.device) -> None:
        set_current_device(device)
        self.triples, self.n_entities, self.device = np.ascontiguousarray(triples), n_entities, device
        self.durations: list[float] | None = None
        parts = [self.triples[i : i + _MAX_TRIPLES] for i in range(0, len(self.triples), _MAX_TRIPLES)]
        self.queries = [SideQueries(part, known, side, device, n_entities) for side in SIDES for part in parts]

    @property
    def n_filtered(self) -> int:
        """Number of known answers of the distinct queries of both sides."""
        return sum(len(queries.filtered) for queries in self.queries)

    def rank(self, model: KgeModel, *, work_bytes: int | None = None) -> Ranks:
        """Return the ranks under this model. `work_bytes` limits the score tile of the reference, not the result."""
        return self.start(model, work_bytes=work_bytes)()

    def rank_many(self, models: Sequence[KgeModel]) -> list[Ranks | Diverged]:
        """Return the ranks under each model, all of them started before the first is read."""
        results: list[Ranks | Diverged] = []
        for read in [self.start(model) for model in models]:
            try:
                results.append(read())
            except Diverged as error:
                results.append(error)
        return results

    def start(self, model: KgeModel, *, work_bytes: int | None = None) -> Callable[[], Ranks]:
        """Start to rank, and return a function that waits for the ranks; the model must not change until then.

        The counting kernels are queued at once. The reference starts when the function is called.
        """
        if self.durations is None:
            return self._start(model, work_bytes)
        self._synchronize()
        began = time.monotonic()
        try:
            ranks = self._start(model, work_bytes)()
        finally:
            self._synchronize()
            self.durations.append(time.monotonic() - began)
        return lambda: ranks

    def ranks_of(self, counts: Sequence[NDArray[np.int64]]) -> Ranks:
        """counts: (2, B) above and ties for each of self.queries."""
        sides = {}
        for side in SIDES:
            parts = [(found, q.others) for found, q in zip(counts, self.queries) if q.side == side]
            above, ties = np.concatenate([np.empty((2, 0), np.int64), *(found for found, _ in parts)], 1)
            others = np.concatenate([np.empty(0, np.int64), *(others for _, others in parts)])
            sides[side] = SideRanks(above, ties, others, self.n_entities)
        return Ranks(self.triples, head=sides["head"], tail=sides["tail"])

    @torch.no_grad()
    def _start(self, model: KgeModel, work_bytes: int | None) -> Callable[[], Ranks]:
        if use_kernels(model.candidate(model.entity[:0], "tail"), model.pair):
            return partial(self._read, CudaCounts(model, self.queries))
        return partial(self._rank_in_tiles, model, work_bytes)

    @torch.no_grad()
    def _read(self, counts: CudaCounts) -> Ranks:
        found = counts.read()
        if found is None:
            raise Diverged(OUT_OF_RANGE if is_finite(counts.model) else NOT_FINITE)
        return self.ranks_of(found)

    @torch.no_grad()
    def _rank_in_tiles(self, model: KgeModel, work_bytes: int | None) -> Ranks:
        if not is_finite(model, entities=not is_offloaded(model.entity)):
            raise Diverged(NOT_FINITE)
        batch, tile = plan_tiles(len(self.triples), self.n_entities, work_bytes or default_work_bytes(self.device))
        return self.ranks_of(count_in_tiles(model, self.queries, batch, tile))

    def _synchronize(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)


def is_finite(model: KgeModel, *, entities: bool = True) -> bool:
    """Whether tables and weights contain neither NaN nor infinity."""
    tables = (*([model.entity] if entities else []), model.relation, *model.weights.values())
    return all(bool(torch.isfinite(part).all()) for table in tables for part in table.split(_FINITE_ROWS))


def plan_tiles(n_queries: int, n_entities: int, work_bytes: int) -> tuple[int, int]:
    """Return the queries and candidates to score at a time, so that their float32 scores fit into work_bytes."""
    batch = max(1, min(_MAX_BATCH, n_queries))
    cells = max(1, work_bytes // 4)
    if cells // batch < _MIN_TILE:
        batch = max(1, cells // _MIN_TILE)
    return batch, max(1, min(n_entities, cells // batch))


def default_work_bytes(device: torch.device) -> int:
    """Return the bytes of a score tile that stays in a CPU's cache, or a share of a GPU's free memory."""
    if device.type == "cpu":
        return 8 << 20
    free, _ = torch.cuda.mem_get_info(device)
    return min(2 << 30, free // 4)


def ranking_bytes(
    n_triples: int, n_filtered: int, n_entities: int, width: int, device: torch.device, *, offloaded: bool = False
) -> int:
    """Return the bytes on the device that ranking takes in addition to the model.

    n_filtered: known answers of the distinct queries of both sides. width: floats of a query. offloaded: the entity
    table is in host memory.
    """
    if not n_triples:
        return 0
    if not use_kernels(torch.empty(0, width, device=device)):
        return 2 * default_work_bytes(device)
    from grash.kernels.count_above_triton import BLOCK_BYTES, PART_BYTES, CountShape

    together = min(n_triples, _MAX_TRIPLES)
    shape = CountShape.of(together, n_entities, width, max_bytes=BLOCK_BYTES if offloaded else PART_BYTES)
    filters = 2 * n_triples * (24 + 12 + 16) + 8 * n_filtered
    numbers = 8 * (1 + 4 * n_triples + 2 * -(-n_triples // _MAX_TRIPLES) * shape.n_parts(n_entities))
    queries = 4 * together * width
    gathered = _QUERY_COPIES * 4 * min(_QUERY_FLOATS, together * width)
    if offloaded:  # two blocks of the table; queries and truths of a whole group
        group = min(2 * n_triples, max(_GROUP, together))
        queries = 2 * 4 * group * width + 2 * 4 * min(shape.part, n_entities) * width
    return filters + numbers + queries + max(gathered, shape.bytes + 4 * n_filtered)


@torch.no_grad()
def rank_against_sample(
    model: KgeModel, triples: NDArray[np.int32], known: KnownAnswers, *, n_candidates: int, seed: int,
    device: torch.device,
) -> Ranks:  # fmt: skip
    """Rank among `n_candidates` entities drawn for each query, without known answers.

    These ranks are not comparable with ranks among all entities; the names of their metrics contain the number.
    """
    set_current_device(device)
    if not is_finite(model):
        raise Diverged(NOT_FINITE)
    n_candidates = min(n_candidates, model.n_entities)
    sides = {}
    for side in SIDES:
        queries = SideQueries(triples, known, side, device, model.n_entities)
        key = key_of(seed, "candidates", side)
        counts = [torch.empty(3, 0, dtype=torch.int64, device=device)]
        for first in range(0, len(triples), _SAMPLED_BATCH):
            n_rows = min(_SAMPLED_BATCH, len(triples) - first)
            drawn = permuted_rows(n_rows, n_candidates, model.n_entities, key_at(key, first), device)
            counts.append(_sampled_counts(model, queries, first, drawn))
        sides[side] = SideRanks(*torch.cat(counts, 1).cpu().numpy())
    return Ranks(np.ascontiguousarray(triples), head=sides["head"], tail=sides["tail"])


def _sampled_counts(model: KgeModel, side_queries: SideQueries, first: int, drawn: Tensor) -> Tensor:
    """drawn (B, n) candidates for the rows from `first` on → (3, B): above, ties and others."""
    rows = slice(first, first + len(drawn))
    queries, seen = side_queries.embed(model, rows)
    answers = side_queries.answers[rows]
    valid = (drawn != answers[:, None]) & ~side_queries.is_known(first, drawn)
    pair = model.pair_of(seen)
    truth = exact_scores(queries, model.candidate(model.entity[answers], seen), pair)
    candidates = model.candidate(model.entity, seen)
    above, ties = torch.zeros_like(answers), torch.zeros_like(answers)
    for tile, counted in zip(drawn.split(_SAMPLED_TILE, 1), valid.split(_SAMPLED_TILE, 1)):
        repeated = queries.repeat_interleave(tile.shape[1], 0)
        scores = exact_scores(repeated, candidates[tile.reshape(-1)], pair).reshape(tile.shape)
        above += ((scores > truth[:, None]) & counted).sum(1)
        ties += ((scores == truth[:, None]) & counted).sum(1)
    return torch.stack([above, ties, valid.sum(1)])


@torch.no_grad()
def rank_among(
    model: KgeModel, triples: NDArray[np.int32], known: KnownAnswers, candidates: Candidates, *, device: torch.device
) -> Ranks:
    """Rank among the candidates of each relation and side, without known answers; the truth is always a candidate.

    These ranks are not comparable with ranks among all entities; their metrics have other names.
    """
    set_current_device(device)
    if not is_finite(model):
        raise Diverged(NOT_FINITE)
    sides = {}
    for side in SIDES:
        queries = SideQueries(triples, known, side, device, model.n_entities)
        counts = np.zeros((3, len(triples)), np.int64)
        for relation in np.unique(triples[:, 1]).tolist():
            rows = np.flatnonzero(triples[:, 1] == relation)
            counts[:, rows] = _counts_among(model, queries, rows, candidates(relation, side))
        sides[side] = SideRanks(*counts)
    return Ranks(np.ascontiguousarray(triples), head=sides["head"], tail=sides["tail"])


def _counts_among(
    model: KgeModel, side: SideQueries, rows: NDArray[np.int64], ids: NDArray[np.int64]
) -> NDArray[np.int64]:
    """Return (3, B), above, ties and others, of some rows among the entities `ids`, ascending."""
    entity = model.entity[torch.from_numpy(ids).to(side.device)]
    _, seen = model.asked(side.relations[:0], side.side)
    table, pair = model.candidate(to_float32(entity), seen), model.pair_of(seen)
    largest = largest_row(table, pair)
    batch, tile = plan_tiles(len(rows), max(1, len(ids)), default_work_bytes(side.device))
    found = []
    for start in range(0, len(rows), batch):
        part = rows[start : start + batch]
        places, truth = side.places_among(part, ids)
        chosen = torch.from_numpy(part).to(side.device)
        queries, _ = side.embed(model, chosen)
        exact = exact_scores(queries, model.candidate(to_float32(model.entity[side.answers[chosen]]), seen), pair)
        counted = CountBatch.of(queries, torch.from_numpy(truth).to(side.device), exact, places)
        count_above(counted, table, pair, tile=tile, largest=largest)
        left_out = places.last - places.first
        others = len(ids) - left_out - ((truth >= 0) & ~side.truth_known[part])
        found.append(np.concatenate([counted.counts.cpu().numpy(), others[None]]))
    return np.concatenate(found, 1)


@dataclass(frozen=True, eq=False)
class DistinctQueries:
    """The Q distinct queries in the form of the counting kernels, int32 on the device."""

    rows: Tensor  # (Q,) a row of each query; queries of many rows come first
    index: TruthIndex  # which query each row asks
    known: Tensor  # (2, m) a query and a known answer
    runs: Tensor  # (3, B) where the known answers of a row start and end in `known`; 1 if its truth is among them


class SideQueries:
    """The queries of one side of B triples with their filter, on the device.

    Many triples ask the same query ("which files are in this directory?"), so known answers are stored once per
    distinct query: the 10,000 test triples of DebianKG-files have 695 million filtered head candidates, but 7 million
    known answers.
    """

    def __init__(
        self, triples: NDArray[np.int32], known: KnownAnswers, side: Side, device: torch.device, n_entities: int
    ) -> None:
        heads, relations, tails = triples.astype(np.int64).T
        self.side, self.device, self.n_entities = side, device, n_entities
        known_ids, self.truth = (heads, tails) if side == "tail" else (tails, heads)
        self.known, self.relations, self.answers = (
            torch.from_numpy(np.ascontiguousarray(x)).to(device) for x in (known_ids, relations, self.truth)
        )
        index = known.of_side(side)
        # (Q,) a row of each distinct query; (B,) the number of each row's query
        self.query_rows, self.numbers = _distinct(known_ids * index.n_relations + relations)
        first, count = index.runs(known_ids[self.query_rows], relations[self.query_rows])
        # (m,) number of the query and known answer, query by query
        self.filtered_query, self.filtered = expand(first, count, index.answers)
        ends = np.cumsum(count)
        self.first, self.last = (ends - count)[self.numbers], ends[self.numbers]  # (B,) run of a row in `filtered`
        self.truth_known = contains(self._pairs(), self.numbers * n_entities + self.truth)
        self.others = n_entities - 1 - (self.last - self.first) + self.truth_known

    def __len__(self) -> int:
        return len(self.truth)

    def embed(self, model: KgeModel, rows: slice | Tensor) -> tuple[Tensor, Side]:
        """Return the query embeddings (B, W) of some rows, and the side whose candidates they are compared with."""
        return model.queries(self.known[rows], self.relations[rows], self.side)

    def runs(self, first: int, last: int) -> FilterRuns:
        """Return the filter of the rows first … last − 1; it may contain the truth, which is never counted."""
        return FilterRuns(self.first[first:last], self.last[first:last], self.filtered)

    def places_among(self, rows: NDArray[np.int64], ids: NDArray[np.int64]) -> tuple[FilterRuns, NDArray[np.int64]]:
        """Return the filter of some rows as places in `ids`, ascending, and where their truths are (−1: nowhere)."""
        numbers, of_row = np.unique(self.numbers[rows], return_inverse=True)
        runs = {int(n): (self.first[r], self.last[r]) for n, r in zip(self.numbers[rows], rows)}
        places = FilterRuns.of([_places(ids, self.filtered[slice(*runs[int(n)])]) for n in numbers])
        truth = self.truth[rows]
        return places.take(of_row), np.where(contains(ids, truth), np.searchsorted(ids, truth), -1)

    def is_known(self, first: int, drawn: Tensor) -> Tensor:
        """drawn (B, n) entities for the rows from `first` on → (B, n): whether they are known answers."""
        numbers = self.numbers[first : first + len(drawn), None]
        return torch.from_numpy(contains(self._sorted_pairs, numbers * self.n_entities + drawn.cpu().numpy())).to(
            drawn.device
        )

    @cached_property
    def _sorted_pairs(self) -> NDArray[np.int64]:
        """The numbers of `_pairs`, kept: 8 bytes per known answer, needed only to rank among drawn candidates."""
        return self._pairs()

    def _pairs(self) -> NDArray[np.int64]:
        """Return (m,) ascending numbers, each for a query and a known answer."""
        return self.filtered_query * self.n_entities + self.filtered

    @cached_property
    def distinct(self) -> DistinctQueries:
        def send(values: NDArray[np.integer]) -> Tensor:
            return torch.from_numpy(values.astype(np.int32)).to(self.device)

        ends = np.cumsum(np.bincount(self.numbers, minlength=len(self.query_rows)))
        order = np.argsort(self.numbers, kind="stable")
        return DistinctQueries(
            rows=send(self.query_rows),
            index=TruthIndex(send(self.numbers), send(order), send(np.concatenate([[0], ends]))),
            known=send(np.stack([self.filtered_query, self.filtered])),
            runs=send(np.stack([self.first, self.last, self.truth_known])),
        )


def _distinct(keys: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return a place of each distinct key, the most frequent first, and for each place the number of its key."""
    _, places, numbers, count = np.unique(keys, return_index=True, return_inverse=True, return_counts=True)
    order = np.argsort(-count, kind="stable")
    rank = np.empty_like(order)
    rank[order] = np.arange(len(order))
    return places[order], rank[numbers]


def _places(ids: NDArray[np.int64], wanted: NDArray[np.int32]) -> NDArray[np.int64]:
    """Return where wanted entities are in `ids`, both ascending; leaves out those that are not there."""
    return np.searchsorted(ids, wanted[contains(ids, wanted)])


def contains(ascending: NDArray[np.int64], wanted: NDArray[np.integer]) -> NDArray[np.bool_]:
    """Return (n,): whether each of the wanted numbers (n,) is there."""
    place = np.searchsorted(ascending, wanted)
    found = place < len(ascending)
    found[found] = ascending[place[found]] == wanted[found]
    return found


def count_in_tiles(model: KgeModel, sides: Sequence[SideQueries], batch: int, tile: int) -> list[NDArray[np.int64]]:
    """Return (2, B), above and ties, for each of `sides`; scores `batch` queries with `tile` candidates at a time.

    An offloaded table is read in blocks, once for up to _GROUP queries; a table in memory is one block.
    """
    offloaded = is_offloaded(model.entity)
    block = max(1, _BLOCK_BYTES // (4 * model.entity.shape[1])) if offloaded else max(1, model.n_entities)
    found: list[list[Tensor]] = [[] for _ in sides]
    waiting: list[tuple[CountBatch, Side]] = []
    largest: dict[Any, Tensor] = {}  # by first row of a block and side
    for counts, side in zip(found, sides):
        for first in range(0, len(side), batch):
            rows = slice(first, min(first + batch, len(side)))
            queries, seen = side.embed(model, rows)
            truth = side.answers[rows]
            exact = exact_scores(queries, model.candidate(model.entity[truth], seen), model.pair_of(seen))
            waiting.append((CountBatch.of(queries, truth, exact, side.runs(rows.start, rows.stop)), seen))
            counts.append(waiting[-1][0].counts)
            if not offloaded or sum(len(b.queries) for b, _ in waiting) >= _GROUP:
                _count_blocks(model, waiting, block, tile, largest)
                waiting = []
    _count_blocks(model, waiting, block, tile, largest)
    return [torch.cat(parts, 1).cpu().numpy() for parts in found]


def _count_blocks(
    model: KgeModel, batches: Sequence[tuple[CountBatch, Side]], block: int, tile: int, largest: dict[Any, Tensor]
) -> None:
    """Compare every batch with every block of the table. largest: by (first row, side), filled here."""
    for first, rows in row_blocks(model.entity, block) if batches else ():
        for batch, seen in batches:
            candidates, pair = model.candidate(rows, seen), model.pair_of(seen)
            if (first, seen) not in largest:
                if is_offloaded(model.entity) and not torch.isfinite(rows).all():
                    raise Diverged(NOT_FINITE)
                largest[first, seen] = largest_row(candidates, pair)
            count_above(batch, candidates, pair, tile=tile, largest=largest[first, seen], first=first)


@dataclass(frozen=True, eq=False)
class _Queued:
    """The queries of one side on the device, and where their counts go."""

    distinct: DistinctQueries
    shape: CountShape
    queries: Tensor  # (Q, W), each distinct query once
    seen: Side
    rows: Tensor  # (E, W) all candidates with `truth` as ids; or (B, W) the rows of the truths
    truth: Tensor
    bounds: Tensor
    counts: Tensor  # (2, B)
    n_open: Tensor  # (blocks, parts of a block)


class CudaCounts:
    """Counts of one model, queued on the device. An offloaded table is copied to the device block by block.

    Filters stay on the device between rankings; queries and work space live until their launches end.
    """

    def __init__(self, model: KgeModel, sides: Sequence[SideQueries], shapes: Sequence[CountShape] = ()) -> None:
        from grash.kernels.count_above_triton import BLOCK_BYTES, PART_BYTES, CountShape

        self.model, self.sides, self.offloaded = model, sides, is_offloaded(model.entity)
        width = model.candidate(model.entity[:0], "tail").shape[1]
        most = BLOCK_BYTES if self.offloaded else PART_BYTES
        self.shapes = shapes or [CountShape.of(len(s), model.n_entities, width, max_bytes=most) for s in sides]
        self.block = max((s.part for s in self.shapes), default=1) if self.offloaded else max(1, model.n_entities)
        n_blocks = -(-model.n_entities // self.block)
        # one tensor, read at once: a flag for numbers that cannot be ranked; for each side counts and open pairs
        self.sizes = [(2 * len(side), n_blocks * shape.n_parts(self.block)) for side, shape in zip(sides, self.shapes)]
        lengths = [1, *(n for pair in self.sizes for n in pair)]
        self.numbers = torch.zeros(sum(lengths), dtype=torch.int64, device=model.entity.device)
        bad, *rest = self.numbers.split(lengths)
        bad.copy_(~torch.isfinite(model.relation).all())
        largest: dict[tuple[int, Side], Tensor] = {}
        for group in self._groups():  # no name refers to the queries of a group while the next ones are made
            self._count(
                [self._queue(i, rest[2 * i].view(2, -1), rest[2 * i + 1].view(n_blocks, -1)) for i in group],
                {} if self.offloaded else largest,
                bad,
            )

    def read(self) -> list[NDArray[np.int64]] | None:
        """Wait, and return (2, B), above and ties, for each side; None if scores cannot be ranked.

        Sides with too many open pairs are counted again in smaller parts.
        """
        values = self.numbers.cpu().numpy()
        if values[0]:
            return None
        found, again, place = [], [], 1
        for i, (n_counts, n_parts) in enumerate(self.sizes):
            end = place + n_counts
            found.append(values[place:end].reshape(2, -1))
            place = end + n_parts
            if (values[end:place] > self.shapes[i].max_open).any():
                again.append(i)
        if again:
            finer = CudaCounts(self.model, [self.sides[i] for i in again], [self.shapes[i].finer() for i in again])
            for i, counts in zip(again, finer.read() or []):
                found[i] = counts
        return found

    def _groups(self) -> list[list[int]]:
        """Return the places of sides to count together: one by one, or up to _GROUP queries of an offloaded table."""
        groups: list[list[int]] = []
        for i, side in enumerate(self.sides):
            together = len(side) + sum(len(self.sides[j]) for j in groups[-1]) if groups else 0
            if self.offloaded and groups and together <= _GROUP:
                groups[-1].append(i)
            else:
                groups.append([i])
        return groups

    def _queue(self, i: int, counts: Tensor, n_open: Tensor) -> _Queued:
        model, side, shape = self.model, self.sides[i], self.shapes[i]
        queries, seen = self._embed(side)
        rows, truth = model.candidate(model.entity, seen), side.answers
        if self.offloaded:
            rows = model.candidate(model.entity[truth], seen).contiguous()
            truth = torch.arange(len(truth), device=truth.device)
        bounds = queries.new_empty(3, shape.truths)
        return _Queued(side.distinct, shape, queries, seen, rows, truth, bounds, counts, n_open)

    def _embed(self, side: SideQueries) -> tuple[Tensor, Side]:
        """Return the distinct queries (Q, W), contiguous, and the side whose candidates they are compared with."""
        together = max(1, _QUERY_FLOATS // max(self.model.entity.shape[1], self.model.relation.shape[1]))
        parts = [side.embed(self.model, rows)[0].contiguous() for rows in side.distinct.rows.split(together)]
        _, seen = self.model.asked(side.relations[:0], side.side)
        return parts[0] if len(parts) == 1 else torch.cat(parts), seen

    def _count(self, queued: list[_Queued], largest: dict[tuple[int, Side], Tensor], bad: Tensor) -> None:
        """largest: sizes of candidates by their address and side; a copy of another side may reuse the address."""
        from grash.kernels.count_above_triton import count_candidates, largest_sizes, score_truths, subtract_filtered

        model, pair = self.model, self.model.pair
        for first, block in row_blocks(model.entity, self.block):
            if first:
                largest.clear()
            for q in queued:
                candidates = model.candidate(block, q.seen)
                place, index = (candidates.data_ptr(), q.seen), q.distinct.index
                if place not in largest:
                    largest[place] = largest_sizes(candidates, pair).max()
                score_truths(q.queries, q.rows, q.truth, index.query, largest[place], pair, q.bounds, bad)
                n_open = q.n_open[first // self.block]
                count_candidates(q.queries, candidates, q.bounds, index, pair, q.shape, out=q.counts, n_open=n_open)
        for q in queued:
            everyone = model.candidate(model.entity, q.seen)
            subtract_filtered(q.queries, everyone, q.bounds, q.distinct.known, q.distinct.runs, pair, q.counts)
