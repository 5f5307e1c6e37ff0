"""Core numbers and peel order: entities are taken away one by one, always one with the fewest neighbours left.

Comes from adjacency.py; goes to chain.py, where the order read backwards is a chain of nested subgraphs. One array of
4 bytes per entity describes them all, and is all that is ever stored of them (stored.py).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numba import njit
from numpy.typing import NDArray

from grash.data.words import Whole, prefetch
from grash.reduction.adjacency import Count, Triples, adjacency_of

Ids = NDArray[np.int32]
_AHEAD, _FIRST = 16, 4  # how far before its turn a queued entity is asked for, and how many of its neighbours
_NONE = -1


@dataclass(frozen=True, eq=False)
class Peeling:
    """order (E,) int32: entities as they are taken away. order[core_starts[k]:] is the k-core, k = 0 … k_max + 1."""

    order: NDArray[np.int32]
    core_starts: NDArray[np.int64]
    count: Count

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


def peel(train: Triples, n_entities: int, count: Count = "neighbours") -> Peeling:
    """The peeling of the entity graph of train (n, 3) (paper, Sec. 4.1).

    `neighbours`: other entities an entity shares a triple with, each once; loops do not count. `triples`: every
    triple counts for both of its ends, so a loop counts twice, as in igraph. Every step takes an entity that has the
    fewest left; among several it goes by id where a shell begins, then first come, first served. Entities without any
    come first of all. O(n + E) time; 8 bytes per triple and 32 per entity on top of the input.
    """
    adjacency = adjacency_of(train, n_entities, count)
    degree = np.diff(adjacency.starts).astype(np.int32)
    if count == "triples":
        _add_loops(train, degree)
    order = np.empty(n_entities, np.int32)
    most = math.isqrt(2 * int(degree.sum(dtype=np.int64))) + 2  # core numbers that differ sum up to the degrees at most
    ks, firsts = np.empty(most, np.int64), np.empty(most, np.int64)
    n_shells = _peel(adjacency.starts, adjacency.neighbours, degree, order, ks, firsts)
    return Peeling(order, _core_starts(ks[:n_shells], firsts[:n_shells], n_entities), count)


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
    neighbours: Ids,
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
            k, starts, neighbours, degree, order, n_done, queue, n_queued, heads, tails, before, after
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
    neighbours: Ids,
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
    """Takes away the entities with k neighbours left, and those that fall to k or below on the way.

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
                _ask_for(queue, n_read, starts, neighbours, degree)
            if degree[entity] < 0:  # it went with a list
                continue
        else:
            return n_done
        degree[entity] = -1
        order[n_done] = entity
        n_done += 1
        for i in range(starts[entity], starts[entity + 1]):
            other = neighbours[i]
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
def _ask_for(queue: Ids, n_read: Whole, starts: NDArray[np.int64], neighbours: Ids, degree: Ids) -> None:
    """Cache lines of those whose turn comes soon: offset first, then row, then the degrees of the first in it."""
    prefetch(starts, np.int64(queue[n_read + _AHEAD]))
    prefetch(neighbours, starts[queue[n_read + _AHEAD // 2]])
    soon = queue[n_read + _AHEAD // 4]
    for i in range(starts[soon], min(starts[soon] + _FIRST, starts[soon + 1])):
        prefetch(degree, np.int64(neighbours[i]))


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
