"""Core numbers and the peel order of a graph (paper, Sec. 4.1), and the file that caches them.

Peeling removes entities one by one, always one with the fewest neighbors left. The order read backwards describes
nested subgraphs (`subgraph.py`): one array of 4 bytes per entity, which is all that is ever stored of them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

import numpy as np
from numba import njit
from numpy.typing import NDArray

from grash.data.arrays import Integer, open_array, prefetch
from grash.data.dataset import Dataset
from grash.files import atomic_file

Triples = NDArray[np.int32]
Ids = NDArray[np.int32]
Offsets = NDArray[np.int64]
Degree = Literal["neighbors", "triples"]
_NONE = -1
_QUEUE_AHEAD, _ROW_AHEAD = 16, 4  # entities that are prefetched before their turn, and neighbors of each
_MARKS_AHEAD = 32  # neighbors whose mark is prefetched
_FILE_VERSION = 1
_HEADER = 4 + 8  # version, degree, k_max, E; SHA-256 of the dataset


@dataclass(frozen=True, eq=False)
class Peeling:
    """The order in which entities are removed, and where each core starts."""

    order: Ids  # (E,) entities in the order of removal
    core_starts: Offsets  # order[core_starts[k]:] is the k-core, for k = 0 … k_max + 1
    degree: Degree  # what was counted

    @property
    def k_max(self) -> int:
        return len(self.core_starts) - 2

    def core_numbers(self) -> Ids:
        """Return (E,) the largest k for which each entity is in the k-core."""
        cores = np.empty(len(self.order), np.int32)
        cores[self.order] = np.repeat(np.arange(self.k_max + 1, dtype=np.int32), np.diff(self.core_starts))
        return cores

    def core_at(self, position: int) -> int:
        """Return the core number of order[position]."""
        return int(np.searchsorted(self.core_starts, position, side="right")) - 1


def peel(train: Triples, n_entities: int, degree: Degree = "neighbors") -> Peeling:
    """Return the peeling of the entity graph of train (n, 3).

    degree: `neighbors` counts each other entity in a triple with this one once, and no loops; `triples` counts every
    triple for both of its entities, so a loop counts twice, as in igraph (docs/decisions/0002). Ties are broken by id
    at the start of a shell, then by order of arrival. O(n + E) time, 8 bytes per triple and 32 per entity on top of
    the input.
    """
    adjacency = entity_adjacency(train, n_entities, degree)
    n_linked = np.diff(adjacency.starts).astype(np.int32)
    if degree == "triples":
        _add_loops(train, n_linked)
    order = np.empty(n_entities, np.int32)
    max_shells = math.isqrt(2 * int(n_linked.sum(dtype=np.int64))) + 2  # distinct core numbers add up to the degrees
    ks, firsts = np.empty(max_shells, np.int64), np.empty(max_shells, np.int64)
    n_shells = _peel(adjacency.starts, adjacency.neighbors, n_linked, order, ks, firsts)
    ks, firsts = ks[:n_shells], np.append(firsts[:n_shells], n_entities)  # core numbers that occur, and their starts
    core_starts = firsts[np.searchsorted(ks, np.arange((int(ks[-1]) if len(ks) else 0) + 2))]
    return Peeling(order, core_starts, degree)


def cached_peeling(dataset: Dataset, degree: Degree = "neighbors", cache: Path | None = None) -> Peeling:
    """Return the peeling of a dataset's train split, from the file `cache` if it is of this dataset and degree.

    Otherwise it is computed and, with `cache`, written there.
    """
    peeling = None if cache is None else _read(Path(cache), dataset, degree)
    if peeling is None:
        peeling = peel(dataset.train, dataset.n_entities, degree)
        if cache is not None:
            save_peeling(dataset, peeling, cache)
    return peeling


def save_peeling(dataset: Dataset, peeling: Peeling, path: Path) -> None:
    """Write a peeling for `cached_peeling`, about 4 bytes per entity.

    One int32 array: header, number of entities of each core number (k_max + 1), order (E).
    """
    with atomic_file(path) as temporary, temporary.open("wb") as file:
        np.save(file, np.concatenate([_header(dataset, peeling), peeling.order]), allow_pickle=False)


@dataclass(frozen=True, eq=False)
class Adjacency:
    """Rows of neighbors: those of entity e are neighbors[starts[e] : starts[e + 1]]."""

    starts: Offsets  # (E + 1,)
    neighbors: Ids


def entity_adjacency(triples: Triples, n_entities: int, degree: Degree) -> Adjacency:
    """Return the neighbors of every entity, without loops: each once, or (`triples`) once per triple.

    A counting sort over entities, O(n + E): 8 bytes of offset per entity and 8 bytes of neighbors per triple.
    """
    starts = np.empty(n_entities + 1, np.int64)
    starts.fill(0)  # unlike np.zeros, in huge pages
    _count_ends(triples, starts)
    np.cumsum(starts, out=starts)
    neighbors = np.empty(int(starts[-1]), np.int32)
    _fill_rows(triples, starts, neighbors)
    if degree == "neighbors":
        seen_by = np.empty(n_entities, np.int32)
        seen_by.fill(-1)
        neighbors = neighbors[: _drop_repeats(starts, neighbors, seen_by)]
    return Adjacency(starts, neighbors)


def incident_triples(triples: Triples, n_entities: int) -> Adjacency:
    """Return the row numbers of the triples of every entity; a loop is listed once."""
    starts = np.zeros(n_entities + 1, np.int64)
    _count_ends(triples, starts)
    np.add.at(starts, triples[triples[:, 0] == triples[:, 2], 0], 1)
    np.cumsum(starts, out=starts)
    rows = np.empty(int(starts[-1]), np.int32)
    _fill_incident(triples, starts, rows)
    return Adjacency(starts, rows)


@njit(cache=True, nogil=True)
def _add_loops(train: Triples, degree: Ids) -> None:
    for row in range(train.shape[0]):
        if train[row, 0] == train[row, 2]:
            degree[train[row, 0]] += 2


@njit(cache=True, nogil=True)
def _peel(starts: Offsets, neighbors: Ids, degree: Ids, order: Ids, ks: Offsets, firsts: Offsets) -> Integer:
    """Peel shell by shell, k ascending: a queue holds all entities of degree k, and those that drop to k join it.

    Scanning the remaining entities for every k costs at most the sum of all core numbers, which is O(n + E).
    """
    left = np.arange(order.size).astype(np.int32)
    queue, before, after = np.empty_like(order), np.empty_like(order), np.empty_like(order)
    n_left, n_done, n_shells = order.size, 0, 0
    heads, tails = np.full(64, _NONE, np.int32), np.empty(64, np.int32)
    while True:
        n_left, k = _compact(left, n_left, degree)
        if n_left == 0:
            return n_shells
        ks[n_shells], firsts[n_shells] = k, n_done
        n_shells += 1
        if k > heads.size:
            heads, tails = np.full(2 * k, _NONE, np.int32), np.empty(2 * k, np.int32)
        n_queued = 0
        for i in range(n_left):
            if degree[left[i]] == k:
                queue[n_queued] = left[i]
                n_queued += 1
        n_done = _peel_shell(
            k, starts, neighbors, degree, order, n_done, queue, n_queued, heads, tails, before, after
        )  # fmt: skip


@njit(cache=True, nogil=True)
def _compact(left: Ids, n_left: Integer, degree: Ids) -> tuple[Integer, Integer]:
    """Remove peeled entities from `left`; return how many remain and their smallest degree."""
    n_kept, smallest = 0, np.int64(2**31)
    for i in range(n_left):
        entity = left[i]
        d = np.int64(degree[entity])
        if d >= 0:
            left[n_kept] = entity
            n_kept += 1
            smallest = min(smallest, d)
    return n_kept, smallest


@njit(cache=True, nogil=True)
def _peel_shell(
    k: Integer, starts: Offsets, neighbors: Ids, degree: Ids, order: Ids, n_done: Integer, queue: Ids,
    n_queued: Integer, heads: Ids, tails: Ids, before: Ids, after: Ids,
) -> Integer:  # fmt: skip
    """Remove the entities of degree k, and those that drop to k or below meanwhile.

    Entities of degree k wait in the queue. Those below k are in a linked list for their degree (heads, tails; before,
    after) and are removed first.
    """
    n_read, lowest = 0, k  # the lowest list that is not empty, or k
    while True:
        if lowest < k:
            entity = heads[lowest]
            heads[lowest] = after[entity]
            while lowest < k and heads[lowest] == _NONE:
                lowest += 1
        elif n_read < n_queued:
            entity = queue[n_read]
            n_read += 1
            if n_read + _QUEUE_AHEAD < n_queued:
                _prefetch_ahead(queue, n_read, starts, neighbors, degree)
            if degree[entity] < 0:  # removed from a list
                continue
        else:
            return n_done
        degree[entity] = -1
        order[n_done] = entity
        n_done += 1
        for i in range(starts[entity], starts[entity + 1]):
            other = neighbors[i]
            d = degree[other] - 1
            if d < -1:  # already removed
                continue
            degree[other] = d
            if d == k:
                queue[n_queued] = other
                n_queued += 1
            elif d < k:
                _move_down(other, d, k, heads, tails, before, after)
                lowest = min(lowest, d)


@njit(cache=True, nogil=True, inline="always")
def _prefetch_ahead(queue: Ids, n_read: Integer, starts: Offsets, neighbors: Ids, degree: Ids) -> None:
    """Prefetch for entities whose turn comes soon: first the offset, then the row, then degrees of its neighbors."""
    prefetch(starts, np.int64(queue[n_read + _QUEUE_AHEAD]))
    prefetch(neighbors, starts[queue[n_read + _QUEUE_AHEAD // 2]])
    soon = queue[n_read + _QUEUE_AHEAD // 4]
    for i in range(starts[soon], min(starts[soon] + _ROW_AHEAD, starts[soon + 1])):
        prefetch(degree, np.int64(neighbors[i]))


@njit(cache=True, nogil=True, inline="always")
def _move_down(entity: Integer, d: Integer, k: Integer, heads: Ids, tails: Ids, before: Ids, after: Ids) -> None:
    """Move an entity from the list of degree d + 1 (if that is below k) to the end of the list of degree d."""
    if d + 1 < k:
        previous, following = before[entity], after[entity]
        if heads[d + 1] == entity:
            heads[d + 1] = following
        else:
            after[previous] = following
        if tails[d + 1] == entity:
            tails[d + 1] = previous
        else:
            before[following] = previous
    if heads[d] == _NONE:
        heads[d] = entity
    else:
        after[tails[d]] = entity
        before[entity] = tails[d]
    tails[d] = entity
    after[entity] = _NONE


@njit(cache=True, nogil=True)
def _count_ends(triples: Triples, counts: Offsets) -> None:
    for row in range(triples.shape[0]):
        head, tail = triples[row, 0], triples[row, 2]
        if head != tail:
            counts[head] += 1
            counts[tail] += 1


@njit(cache=True, nogil=True)
def _fill_rows(triples: Triples, ends: Offsets, neighbors: Ids) -> None:
    """Fill every row from its end to its start; `ends` holds the ends of the rows and then their starts."""
    for row in range(triples.shape[0]):
        head, tail = triples[row, 0], triples[row, 2]
        if head != tail:
            ends[head] -= 1
            neighbors[ends[head]] = tail
            ends[tail] -= 1
            neighbors[ends[tail]] = head


@njit(cache=True, nogil=True)
def _drop_repeats(starts: Offsets, neighbors: Ids, seen_by: Ids) -> int:
    """Keep each neighbor once, close the gaps in place, and return how many are left."""
    kept, begin = 0, starts[0]
    for entity in range(starts.size - 1):
        end = starts[entity + 1]
        starts[entity] = kept
        for i in range(begin, end):
            other = neighbors[i]
            if i + _MARKS_AHEAD < neighbors.size:
                prefetch(seen_by, np.int64(neighbors[i + _MARKS_AHEAD]))
            if seen_by[other] != entity:
                seen_by[other] = entity
                neighbors[kept] = other
                kept += 1
        begin = end
    starts[starts.size - 1] = kept
    return kept


@njit(cache=True, nogil=True)
def _fill_incident(triples: Triples, ends: Offsets, rows: Ids) -> None:
    for row in range(triples.shape[0]):
        head, tail = triples[row, 0], triples[row, 2]
        ends[head] -= 1
        rows[ends[head]] = row
        if head != tail:
            ends[tail] -= 1
            rows[ends[tail]] = row


def _read(path: Path, dataset: Dataset, degree: Degree) -> Peeling | None:
    """Return the peeling in a file; None if it is absent, damaged, or of another dataset or degree."""
    try:
        array = open_array(path)
    except (OSError, ValueError):
        return None
    if array.dtype != np.int32 or array.ndim != 1 or len(array) < _HEADER or array[2] < 0:
        return None
    n_shells = int(array[2]) + 1
    sizes, order = array[_HEADER : _HEADER + n_shells].astype(np.int64), array[_HEADER + n_shells :]
    if len(order) != dataset.n_entities or (sizes < 0).any() or sizes.sum() != len(order):
        return None
    peeling = Peeling(order, np.concatenate([[0], np.cumsum(sizes)]), degree)
    if not np.array_equal(array[: _HEADER + n_shells], _header(dataset, peeling)):
        return None
    if len(order) and (order.min() < 0 or order.max() >= len(order)):
        return None
    seen = np.zeros(len(order), bool)
    seen[order] = True
    return peeling if seen.all() else None


def _header(dataset: Dataset, peeling: Peeling) -> Ids:
    counts = [_FILE_VERSION, get_args(Degree).index(peeling.degree), peeling.k_max, dataset.n_entities]
    fingerprint = np.frombuffer(bytes.fromhex(dataset.fingerprint), "<i4")
    return np.concatenate([counts, fingerprint, np.diff(peeling.core_starts)]).astype(np.int32)
