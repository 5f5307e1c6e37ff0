"""What a generated graph is made of: groups of entities, kinds of relations, and the tails that both lead to.

Used by generate.py. Every triple is a function of the seed and its place, so that any part can be made by itself; what
an entity heads is made in one go, which is why no triple can come twice. A model that has found the groups answers as
well as `oracle_tail_mrr` says, and none can do better than by luck.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numba import njit
from numpy.typing import NDArray

from grash.data.dataset import MAX_ID
from grash.data.duplicates import TripleSet
from grash.data.words import Whole
from grash.errors import ConfigError

Triples = NDArray[np.int32]

GROUP_SIZE = 32
MOST_KINDS = 8
_TRIES = 16  # at what the groups say, before a triple that is there already becomes any other one
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_M1, _M2 = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)
_S30, _S27, _S31, _S11 = np.uint64(30), np.uint64(27), np.uint64(31), np.uint64(11)


@dataclass(frozen=True)
class PlantedGraph:
    """A graph of exactly so many entities and relations, all of which occur, and distinct triples.

    Entities have places 0 … E - 1, the busiest first; ids are places in another order (`ids_of`). The heads' degrees
    fall as the root of the place, those of the tails by groups and within them, both as place^(-2/3). A relation's kind
    and a head's group say which group the tail is in; a share `noise` of the triples has any tail.
    """

    n_entities: int
    n_relations: int
    n_triples: int
    seed: int = 0
    noise: float = 0.1

    def __post_init__(self) -> None:
        if not 2 <= self.n_entities <= MAX_ID:
            raise ConfigError(f"{self.n_entities:,} entities were asked for, and 2 to {MAX_ID:,} are possible.")
        if not 1 <= self.n_relations <= self.n_entities:
            raise ConfigError(
                f"{self.n_relations:,} relations were asked for, and from 1 up to as many as there are entities "
                f"({self.n_entities:,}) are possible: each is the relation of some entity's first triple."
            )
        if self.n_triples < self.n_entities:
            raise ConfigError(
                f"{self.n_triples:,} triples were asked for with {self.n_entities:,} entities, and every entity is "
                f"the head of one: give at least as many triples as entities."
            )
        if self.degree(0) > self.n_relations * (self.n_entities - 1) // 2:
            raise ConfigError(
                f"{self.n_triples:,} distinct triples are too many for {self.n_entities:,} entities and "
                f"{self.n_relations:,} relations: give fewer triples, more entities or more relations."
            )
        if not 0 <= self.noise <= 1:
            raise ConfigError(f"noise={self.noise}, and a share from 0 to 1 is needed.")
        if not 0 <= self.seed < 2**63:
            raise ConfigError(f"seed={self.seed}, and a number from 0 to 2**63 - 1 is needed.")

    @property
    def n_groups(self) -> int:
        return -(-self.n_entities // GROUP_SIZE)

    @property
    def n_kinds(self) -> int:
        return min(MOST_KINDS, self.n_relations)

    def degree(self, place: int) -> int:
        """How many triples the entity at a place is the head of: 1 and more."""
        return int(self.rows_before(place + 1) - self.rows_before(place))

    def rows_before(self, place: int) -> int:
        """How many triples have their head at an earlier place."""
        return place + int(_extra_before(place, self.n_entities, self.n_triples - self.n_entities))

    def triples(self, first: int, last: int) -> Triples:
        """The triples (m, 3), in ids, whose heads are at the places from first up to last, one head after the other."""
        begin = self.rows_before(first)
        triples = np.empty((self.rows_before(last) - begin, 3), np.int32)
        widest = max((self.degree(place) for place in range(first, min(last, first + 3))), default=1)
        step, shift = self._spread()
        _fill(
            first, last, self.n_entities, self.n_relations, self.n_triples - self.n_entities, self.n_groups,
            self.n_kinds, self.noise, np.uint64(self.seed), step, shift, 1 << int(4 * widest).bit_length(), triples,
        )  # fmt: skip
        return triples

    def first_rows(self, first: int, last: int) -> NDArray[np.int64]:
        """Which rows of triples(first, last) are the first of their head."""
        rows = np.empty(last - first, np.int64)
        _rows_before(first, self.n_entities, self.n_triples - self.n_entities, rows)
        return rows - self.rows_before(first)

    def ids_of(self, places: NDArray[np.integer]) -> NDArray[np.int64]:
        step, shift = self._spread()
        return (np.asarray(places, np.int64) * step + shift) % self.n_entities

    def places_of(self, ids: NDArray[np.integer]) -> NDArray[np.int64]:
        step, shift = self._spread()
        return (np.asarray(ids, np.int64) - shift) % self.n_entities * pow(step, -1, self.n_entities) % self.n_entities

    def _spread(self) -> tuple[int, int]:
        """A step that meets every id once, and where it begins: neighbours in place are strangers in memory."""
        random = np.random.default_rng([self.seed, 1])
        while True:
            step = int(random.integers(1, self.n_entities))
            if math.gcd(step, self.n_entities) == 1:
                return step, int(random.integers(self.n_entities))


def oracle_tail_mrr(graph: PlantedGraph, asked: Triples, known: TripleSet) -> float:
    """The filtered MRR over the tails of `asked` (m, 3) of one who knows every group and how busy its members are.

    Members of the right group are ranked by how often they are drawn, without those that are known answers; a tail
    outside of the group (noise) is counted as found in the middle of all entities. `known`: the triples of all splits.
    """
    if not len(asked):
        return 0.0
    heads, tails = graph.places_of(asked[:, 0]), graph.places_of(asked[:, 2])
    groups = np.empty(len(asked), np.int64)
    _tail_groups(heads % graph.n_groups, asked[:, 1] % graph.n_kinds, np.uint64(graph.seed), graph.n_groups, groups)
    members = np.arange(GROUP_SIZE)[None, :]
    places = groups[:, None] + graph.n_groups * members  # (m, GROUP_SIZE)
    others = np.empty((*places.shape, 3), np.int32)
    others[:, :, :2] = asked[:, None, :2]
    others[:, :, 2] = graph.ids_of(np.minimum(places, graph.n_entities - 1))
    rank_in_group = tails // graph.n_groups
    open_ones = ~known.contains(others.reshape(-1, 3)).reshape(places.shape) & (places < graph.n_entities)
    rank = 1 + np.count_nonzero(open_ones & (members < rank_in_group[:, None]), axis=1)
    return float(np.mean(1 / np.where(tails % graph.n_groups == groups, rank, graph.n_entities / 2)))


@njit(cache=True, nogil=True)
def _extra_before(place: Whole, n_entities: Whole, n_extra: Whole) -> Whole:
    """Triples beyond the first of each head, up to a place: all of them at the last, exactly."""
    return np.int64(n_extra * math.sqrt(place / n_entities))


@njit(cache=True, nogil=True)
def _rows_before(first: Whole, n_entities: Whole, n_extra: Whole, rows: NDArray[np.int64]) -> None:
    for i in range(rows.size):
        rows[i] = first + i + _extra_before(first + i, n_entities, n_extra)


@njit(cache=True, nogil=True, inline="always")
def _mixed(x: Whole) -> Whole:
    x = (x ^ (x >> _S30)) * _M1
    x = (x ^ (x >> _S27)) * _M2
    return x ^ (x >> _S31)


@njit(cache=True, nogil=True, inline="always")
def _uniform(key: Whole, number: Whole) -> Whole:
    """The number-th draw from 0 to below 1 of a key."""
    return np.float64(_mixed(key + np.uint64(number) * _GOLDEN) >> _S11) * (1.0 / 9007199254740992.0)


@njit(cache=True, nogil=True, inline="always")
def _skewed(u: Whole, n: Whole) -> Whole:
    return min(n - 1, np.int64(n * (u * u * u)))


@njit(cache=True, nogil=True, inline="always")
def _tail_group(group: Whole, kind: Whole, seed: Whole, n_groups: Whole) -> Whole:
    key = _mixed(_mixed(seed ^ _M1) + np.uint64(group) * _GOLDEN)
    return _skewed(_uniform(key, kind), n_groups)


@njit(cache=True, nogil=True)
def _tail_groups(
    groups: NDArray[np.int64], kinds: NDArray[np.int32], seed: Whole, n_groups: Whole, found: NDArray[np.int64]
) -> None:
    for i in range(found.size):
        found[i] = _tail_group(groups[i], kinds[i], seed, n_groups)


@njit(cache=True, nogil=True)
def _fill(
    first: Whole, last: Whole, n_entities: Whole, n_relations: Whole, n_extra: Whole, n_groups: Whole,
    n_kinds: Whole, noise: float, seed: Whole, step: Whole, shift: Whole, n_slots: Whole, triples: Triples,
) -> None:  # fmt: skip
    """Head by head. What a head has already lies in slots, stamped with the head, so that they are never cleared."""
    pairs, stamps = np.empty(n_slots, np.int64), np.zeros(n_slots, np.int32)
    row = 0
    for place in range(first, last):
        n = 1 + _extra_before(place + 1, n_entities, n_extra) - _extra_before(place, n_entities, n_extra)
        stamp = np.int32(place - first + 1)
        head_key = _mixed(_mixed(seed) + np.uint64(place) * _GOLDEN)
        for k in range(n):
            attempt = 0
            while True:
                key = _mixed(head_key + np.uint64(k * 4096 + attempt + 1) * _GOLDEN)
                relation, tail = _draw(key, attempt, place, n_entities, n_relations, n_groups, n_kinds, noise, seed)
                if k == 0 and place < n_relations:
                    relation = place
                    tail = (
                        tail
                        if attempt > 0
                        else _planted_tail(key, place, relation, n_entities, n_groups, n_kinds, seed)
                    )
                if tail != place and _is_new(np.int64(relation) << 32 | tail, stamp, pairs, stamps):
                    break
                attempt += 1
            triples[row, 0] = (place * step + shift) % n_entities
            triples[row, 1] = relation
            triples[row, 2] = (tail * step + shift) % n_entities
            row += 1


@njit(cache=True, nogil=True, inline="always")
def _draw(
    key: Whole, attempt: Whole, place: Whole, n_entities: Whole, n_relations: Whole, n_groups: Whole,
    n_kinds: Whole, noise: float, seed: Whole,
) -> tuple[Whole, Whole]:  # fmt: skip
    """(relation, place of the tail)"""
    if attempt >= _TRIES:
        relation, tail = np.int64(n_relations * _uniform(key, 0)), np.int64(n_entities * _uniform(key, 1))
    else:
        relation = _skewed(_uniform(key, 0), n_relations)
        if _uniform(key, 1) < noise:
            tail = np.int64(n_entities * _uniform(key, 2))
        else:
            tail = _planted_tail(key, place, relation, n_entities, n_groups, n_kinds, seed)
    return relation, min(tail, n_entities - 1)


@njit(cache=True, nogil=True, inline="always")
def _planted_tail(
    key: Whole, place: Whole, relation: Whole, n_entities: Whole, n_groups: Whole, n_kinds: Whole, seed: Whole
) -> Whole:
    group = _tail_group(place % n_groups, relation % n_kinds, seed, n_groups)
    size = (n_entities - group + n_groups - 1) // n_groups
    return group + n_groups * _skewed(_uniform(key, 3), size)


@njit(cache=True, nogil=True, inline="always")
def _is_new(pair: Whole, stamp: Whole, pairs: NDArray[np.int64], stamps: NDArray[np.int32]) -> bool:
    """Whether the head that belongs to a stamp has not had this pair yet; it has then."""
    at = np.int64(_mixed(np.uint64(pair)) & np.uint64(pairs.size - 1))
    new = True
    while new and stamps[at] == stamp:
        new = pairs[at] != pair
        at = (at + 1) & (pairs.size - 1)
    if new:
        pairs[at], stamps[at] = pair, stamp
    return new
