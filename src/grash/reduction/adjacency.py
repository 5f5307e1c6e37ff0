"""Who stands beside whom: the entity graph of the triples as rows of neighbours, without a global sort.

Comes from a dataset's train split; goes to peel.py and walks.py. Rows are filled by a counting sort over entities
(8 bytes of offset per entity, 8 bytes of neighbours per triple); direction and relation are forgotten.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numba import njit
from numpy.typing import NDArray

from grash.data.words import prefetch

Triples = NDArray[np.int32]
Count = Literal["neighbours", "triples"]

_AHEAD = 32  # how far before its turn a neighbour's mark is asked for


@dataclass(frozen=True, eq=False)
class Adjacency:
    """The neighbours of entity e are neighbours[starts[e] : starts[e + 1]]; loops are not among them.

    starts (E + 1,) int64; neighbours int32.
    """

    starts: NDArray[np.int64]
    neighbours: NDArray[np.int32]


def adjacency_of(triples: Triples, n_entities: int, count: Count) -> Adjacency:
    """The neighbours of every entity: each once (`neighbours`), or once per triple with it (`triples`). O(n + E)."""
    starts = np.empty(n_entities + 1, np.int64)
    starts.fill(0)  # unlike np.zeros, in huge pages
    _count_ends(triples, starts)
    np.cumsum(starts, out=starts)
    neighbours = np.empty(int(starts[-1]), np.int32)
    _fill_rows(triples, starts, neighbours)
    if count == "neighbours":
        seen_by = np.empty(n_entities, np.int32)
        seen_by.fill(-1)
        neighbours = neighbours[: _drop_repeats(starts, neighbours, seen_by)]
    return Adjacency(starts, neighbours)


def incident_rows(triples: Triples, n_entities: int) -> Adjacency:
    """The same with the numbers of the triples in place of the neighbours: those of every entity, a loop once."""
    starts = np.zeros(n_entities + 1, np.int64)
    _count_ends(triples, starts)
    np.add.at(starts, triples[triples[:, 0] == triples[:, 2], 0], 1)
    np.cumsum(starts, out=starts)
    rows = np.empty(int(starts[-1]), np.int32)
    _fill_incident(triples, starts, rows)
    return Adjacency(starts, rows)


@njit(cache=True, nogil=True)
def _count_ends(triples: Triples, counts: NDArray[np.int64]) -> None:
    for row in range(triples.shape[0]):
        head, tail = triples[row, 0], triples[row, 2]
        if head != tail:
            counts[head] += 1
            counts[tail] += 1


@njit(cache=True, nogil=True)
def _fill_rows(triples: Triples, ends: NDArray[np.int64], neighbours: NDArray[np.int32]) -> None:
    """Fills every row from its end to its start, so that `ends`, where rows end, becomes where they start."""
    for row in range(triples.shape[0]):
        head, tail = triples[row, 0], triples[row, 2]
        if head != tail:
            ends[head] -= 1
            neighbours[ends[head]] = tail
            ends[tail] -= 1
            neighbours[ends[tail]] = head


@njit(cache=True, nogil=True)
def _drop_repeats(starts: NDArray[np.int64], neighbours: NDArray[np.int32], seen_by: NDArray[np.int32]) -> int:
    """Keeps each neighbour once, closes the gaps in place, and returns how many are left."""
    kept, begin = 0, starts[0]
    for entity in range(starts.size - 1):
        end = starts[entity + 1]
        starts[entity] = kept
        for i in range(begin, end):
            other = neighbours[i]
            if i + _AHEAD < neighbours.size:
                prefetch(seen_by, np.int64(neighbours[i + _AHEAD]))
            if seen_by[other] != entity:
                seen_by[other] = entity
                neighbours[kept] = other
                kept += 1
        begin = end
    starts[starts.size - 1] = kept
    return kept


@njit(cache=True, nogil=True)
def _fill_incident(triples: Triples, ends: NDArray[np.int64], rows: NDArray[np.int32]) -> None:
    for row in range(triples.shape[0]):
        head, tail = triples[row, 0], triples[row, 2]
        ends[head] -= 1
        rows[ends[head]] = row
        if head != tail:
            ends[tail] -= 1
            rows[ends[tail]] = row
