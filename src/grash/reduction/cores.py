"""Core numbers and peel order: entities are taken away one by one, always one with the fewest neighbors left.

Comes from adjacency.py; goes to chain.py, where the order read backwards is a chain of nested subgraphs. One array of
4 bytes per entity describes them all, and is all that is ever stored of them (stored.py).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

import numpy as np
from numba import njit
from numpy.typing import NDArray

from grash.data.arrays import open_array
from grash.data.dataset import Dataset
from grash.data.interning import Whole, prefetch
from grash.files import atomic_file

Ids = NDArray[np.int32]
_AHEAD, _FIRST = 16, 4  # how far before its turn a queued entity is asked for, and how many of its neighbors
_NONE = -1


@dataclass(frozen=True, eq=False)
class Peeling:
    """order (E,) int32: entities as they are taken away. order[core_starts[k]:] is the k-core, k = 0 … k_max + 1."""

    order: NDArray[np.int32]
    core_starts: NDArray[np.int64]
    degree: Degree

    @property
    def k_max(self) -> int:
        return len(self.core_starts) - 2

    def core_numbers(self) -> NDArray[np.int32]:
        """The largest k for which each entity is in the k-core (E,)."""
        cores = np.empty(len(self.order), np.int32)
        cores[self.order] = np.repeat(np.arange(self.k_max + 1, dtype=np.int32), np.diff(self.core_starts))
        return cores

    def core_at(self, place: int) -> int:
        """The core number of order[place]."""
        return int(np.searchsorted(self.core_starts, place, side="right")) - 1


def peel(train: Triples, n_entities: int, degree: Degree = "neighbors") -> Peeling:
    """The peeling of the entity graph of train (n, 3) (paper, Sec. 4.1).

    `neighbors`: other entities an entity shares a triple with, each once; loops do not count. `triples`: every
    triple counts for both of its ends, so a loop counts twice, as in igraph. Every step takes an entity that has the
    fewest left; among several it goes by id where a shell begins, then first come, first served. Entities without any
    come first of all. O(n + E) time; 8 bytes per triple and 32 per entity on top of the input.
    """
    adjacency = adjacency_of(train, n_entities, degree)
    n_linked = np.diff(adjacency.starts).astype(np.int32)
    if degree == "triples":
        _add_loops(train, n_linked)
    order = np.empty(n_entities, np.int32)
    most = (
        math.isqrt(2 * int(n_linked.sum(dtype=np.int64))) + 2
    )  # core numbers that differ sum up to the degrees at most
    ks, firsts = np.empty(most, np.int64), np.empty(most, np.int64)
    n_shells = _peel(adjacency.starts, adjacency.neighbors, n_linked, order, ks, firsts)
    return Peeling(order, _core_starts(ks[:n_shells], firsts[:n_shells], n_entities), degree)


def _core_starts(ks: NDArray[np.int64], firsts: NDArray[np.int64], n_entities: int) -> NDArray[np.int64]:
    """From the core numbers that occur, ascending, and the places where they begin."""
    k_max = int(ks[-1]) if len(ks) else 0
    starts = np.append(firsts, n_entities)[np.searchsorted(ks, np.arange(k_max + 2))]
    return np.ascontiguousarray(starts, np.int64)


@njit(cache=True, nogil=True)
def _add_loops(train: Triples, degree: Ids) -> None:
    for row in range(train.shape[0]):
        if train[row, 0] == train[row, 2]:
            degree[train[row, 0]] += 2


@njit(cache=True, nogil=True)
def _peel(
    starts: NDArray[np.int64],
    neighbors: Ids,
    degree: Ids,
    order: Ids,
    ks: NDArray[np.int64],
    firsts: NDArray[np.int64],
) -> Whole:
    """Shell by shell, k ascending: all that are left and have k go into a queue, which takes up those that fall to k.

    Looking through what is left for every k costs no more than the sum of all core numbers, which is O(n + E).
    """
    left = np.arange(order.size).astype(np.int32)
    queue, before, after = np.empty_like(order), np.empty_like(order), np.empty_like(order)
    n_left, n_done, n_shells = order.size, 0, 0
    heads, tails = np.full(64, _NONE, np.int32), np.empty(64, np.int32)
    while True:
        n_left, k = _still_there(left, n_left, degree)
        if n_left == 0:
            return n_shells
        ks[n_shells], firsts[n_shells] = k, n_done
        n_shells += 1
        if k > heads.size:
            heads, tails = np.full(2 * k, _NONE, np.int32), np.empty(2 * k, np.int32)
        n_queued = _having(k, left, n_left, degree, queue)
        n_done = _peel_shell(
            k, starts, neighbors, degree, order, n_done, queue, n_queued, heads, tails, before, after
        )  # fmt: skip


@njit(cache=True, nogil=True)
def _still_there(left: Ids, n_left: Whole, degree: Ids) -> tuple[Whole, Whole]:
    """Closes the gaps in `left`; returns how many there are and the smallest degree."""
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
def _having(k: Whole, left: Ids, n_left: Whole, degree: Ids, queue: Ids) -> Whole:
    n_queued = 0
    for i in range(n_left):
        if degree[left[i]] == k:
            queue[n_queued] = left[i]
            n_queued += 1
    return n_queued


@njit(cache=True, nogil=True)
def _peel_shell(
    k: Whole,
    starts: NDArray[np.int64],
    neighbors: Ids,
    degree: Ids,
    order: Ids,
    n_done: Whole,
    queue: Ids,
    n_queued: Whole,
    heads: Ids,
    tails: Ids,
    before: Ids,
    after: Ids,
) -> Whole:
    """Takes away the entities with k neighbors left, and those that fall to k or below on the way.

    Those with exactly k wait in the queue. Those that have fallen below move on to a list for their degree
    (heads, tails; before, after link its members), and go first.
    """
    n_read, lowest = 0, k  # the lowest list that has members, or k
    while True:
        if lowest < k:
            entity = heads[lowest]
            heads[lowest] = after[entity]
            while lowest < k and heads[lowest] == _NONE:
                lowest += 1
        elif n_read < n_queued:
            entity = queue[n_read]
            n_read += 1
            if n_read + _AHEAD < n_queued:
                _ask_for(queue, n_read, starts, neighbors, degree)
            if degree[entity] < 0:  # it went with a list
                continue
        else:
            return n_done
        degree[entity] = -1
        order[n_done] = entity
        n_done += 1
        for i in range(starts[entity], starts[entity + 1]):
            other = neighbors[i]
            d = degree[other] - 1
            if d < -1:  # gone already
                continue
            degree[other] = d
            if d == k:
                queue[n_queued] = other
                n_queued += 1
            elif d < k:
                _move_down(other, d, k, heads, tails, before, after)
                lowest = min(lowest, d)


@njit(cache=True, nogil=True, inline="always")
def _ask_for(queue: Ids, n_read: Whole, starts: NDArray[np.int64], neighbors: Ids, degree: Ids) -> None:
    """Cache lines of those whose turn comes soon: offset first, then row, then the degrees of the first in it."""
    prefetch(starts, np.int64(queue[n_read + _AHEAD]))
    prefetch(neighbors, starts[queue[n_read + _AHEAD // 2]])
    soon = queue[n_read + _AHEAD // 4]
    for i in range(starts[soon], min(starts[soon] + _FIRST, starts[soon + 1])):
        prefetch(degree, np.int64(neighbors[i]))


@njit(cache=True, nogil=True, inline="always")
def _move_down(entity: Whole, d: Whole, k: Whole, heads: Ids, tails: Ids, before: Ids, after: Ids) -> None:
    """From the list for d + 1 (if that is below k) to the end of the list for d."""
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


# = Who stands beside whom: the entity graph of the triples as rows of neighbors, without a global sort.
# =
# = Comes from a dataset's train split; goes to peel.py and walks.py. Rows are filled by a counting sort over entities
# = (8 bytes of offset per entity, 8 bytes of neighbors per triple); direction and relation are forgotten.

Triples = NDArray[np.int32]
Degree = Literal["neighbors", "triples"]

_AHEAD_adjacency = 32  # how far before its turn a neighbor's mark is asked for


@dataclass(frozen=True, eq=False)
class Adjacency:
    """The neighbors of entity e are neighbors[starts[e] : starts[e + 1]]; loops are not among them.

    starts (E + 1,) int64; neighbors int32.
    """

    starts: NDArray[np.int64]
    neighbors: NDArray[np.int32]


def adjacency_of(triples: Triples, n_entities: int, degree: Degree) -> Adjacency:
    """The neighbors of every entity: each once (`neighbors`), or once per triple with it (`triples`). O(n + E)."""
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


def incident_rows(triples: Triples, n_entities: int) -> Adjacency:
    """The same with the numbers of the triples in place of the neighbors: those of every entity, a loop once."""
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
def _fill_rows(triples: Triples, ends: NDArray[np.int64], neighbors: NDArray[np.int32]) -> None:
    """Fills every row from its end to its start, so that `ends`, where rows end, becomes where they start."""
    for row in range(triples.shape[0]):
        head, tail = triples[row, 0], triples[row, 2]
        if head != tail:
            ends[head] -= 1
            neighbors[ends[head]] = tail
            ends[tail] -= 1
            neighbors[ends[tail]] = head


@njit(cache=True, nogil=True)
def _drop_repeats(starts: NDArray[np.int64], neighbors: NDArray[np.int32], seen_by: NDArray[np.int32]) -> int:
    """Keeps each neighbor once, closes the gaps in place, and returns how many are left."""
    kept, begin = 0, starts[0]
    for entity in range(starts.size - 1):
        end = starts[entity + 1]
        starts[entity] = kept
        for i in range(begin, end):
            other = neighbors[i]
            if i + _AHEAD_adjacency < neighbors.size:
                prefetch(seen_by, np.int64(neighbors[i + _AHEAD_adjacency]))
            if seen_by[other] != entity:
                seen_by[other] = entity
                neighbors[kept] = other
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


# = A peeling on disk: one .npy of int32, about 4 bytes per entity, from which every subgraph can be cut.
# =
# =     version, definition, k_max, E | SHA-256 of the dataset (8) | entities of each core number (k_max + 1) | order (E)
# =
# = Comes from peel.py; is read again whenever the same dataset is.

_LAYOUT = 1
_HEAD = 4 + 8


def peeling_of(dataset: Dataset, degree: Degree = "neighbors", cache: Path | None = None) -> Peeling:
    """The peeling of a dataset's train split: the one in the file `cache` if it is of this dataset and definition,
    else computed, and written there."""
    if cache is None:
        return peel(dataset.train, dataset.n_entities, degree)
    cache = Path(cache)
    stored = _read(cache, dataset, degree)
    if stored is not None:
        return stored
    peeling = peel(dataset.train, dataset.n_entities, degree)
    store_peeling(dataset, peeling, cache)
    return peeling


def store_peeling(dataset: Dataset, peeling: Peeling, path: Path) -> None:
    """Writes the peeling of a dataset, for `peeling_of` to find."""
    with atomic_file(path) as aside, aside.open("wb") as file:
        np.save(file, np.concatenate([_head(dataset, peeling), peeling.order]), allow_pickle=False)


def _read(path: Path, dataset: Dataset, degree: Degree) -> Peeling | None:
    """The peeling in a file, or None if the file is absent, damaged, or of another dataset or definition."""
    try:
        array = open_array(path)
    except (OSError, ValueError):
        return None
    if array.dtype != np.int32 or array.ndim != 1 or len(array) < _HEAD:
        return None
    k_max, n_shells = int(array[2]), int(array[2]) + 1
    order = array[_HEAD + max(0, n_shells) :]
    sizes = array[_HEAD : _HEAD + max(0, n_shells)].astype(np.int64)
    if len(order) != dataset.n_entities or k_max < 0 or (sizes < 0).any() or sizes.sum() != len(order):
        return None
    peeling = Peeling(order, np.concatenate([[0], np.cumsum(sizes)]), degree)
    if not np.array_equal(array[: _HEAD + n_shells], _head(dataset, peeling)) or not _is_permutation(order):
        return None
    return peeling


def _head(dataset: Dataset, peeling: Peeling) -> NDArray[np.int32]:
    counts = [_LAYOUT, get_args(Degree).index(peeling.degree), peeling.k_max, dataset.n_entities]
    fingerprint = np.frombuffer(bytes.fromhex(dataset.fingerprint), "<i4")
    return np.concatenate([counts, fingerprint, np.diff(peeling.core_starts)]).astype(np.int32)


def _is_permutation(order: NDArray[np.int32]) -> bool:
    if len(order) and (order.min() < 0 or order.max() >= len(order)):
        return False
    seen = np.zeros(len(order), bool)
    seen[order] = True
    return bool(seen.all())
