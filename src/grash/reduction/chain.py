"""The peel order read backwards: a chain of nested subgraphs, from the innermost core out to the whole graph.

Comes from peel.py; goes to cut.py. The prefix of p entities has all train triples among them, loops and parallel ones
included. Counting at which p each triple comes in gives the size of every prefix at once.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numba import njit
from numpy.typing import NDArray

from grash.data.dataset import Dataset
from grash.errors import InputError
from grash.reduction.adjacency import Triples
from grash.reduction.peel import Peeling


@dataclass(frozen=True, eq=False)
class Chain:
    """enters (n,) int32: the smallest prefix that has a train triple. n_triples (E + 1,) int64: those of prefix p.

    Costs O(n + E) to make, 4 bytes per triple and 8 per entity to keep: make it once for several cuts.
    """

    peeling: Peeling
    enters: NDArray[np.int32]
    n_triples: NDArray[np.int64]

    def core_at(self, n_triples: int) -> int:
        """The core number of the last entity that a prefix with so many triples needs."""
        p = max(1, int(np.searchsorted(self.n_triples, n_triples)))
        return self.peeling.core_at(len(self.peeling.order) - p) if len(self.peeling.order) else 0


@dataclass(frozen=True, eq=False)
class Occurring:
    """How many entities and relations the triples of prefix p have: each (E + 1,) int32."""

    n_entities: NDArray[np.int32]
    n_relations: NDArray[np.int32]


def chain_of(dataset: Dataset, peeling: Peeling) -> Chain:
    """The chain of a dataset's train split."""
    n_entities = dataset.n_entities
    if len(peeling.order) != n_entities:
        raise InputError(
            f"The peeling is of {len(peeling.order):,} entities and the dataset has {n_entities:,}: peel this dataset."
        )
    size = np.empty(n_entities, np.int32)  # of the smallest prefix that has the entity
    size[peeling.order] = np.arange(n_entities, 0, -1, dtype=np.int32)
    enters = np.empty(len(dataset.train), np.int32)
    n_triples = np.empty(n_entities + 1, np.int64)
    n_triples.fill(0)  # unlike np.zeros, in huge pages
    _enter(dataset.train, size, enters, n_triples)
    return Chain(peeling, enters, np.cumsum(n_triples, out=n_triples))


def occurring_in(chain: Chain, dataset: Dataset) -> Occurring:
    """The entities and relations of every prefix. O(n + E)."""
    never = dataset.n_entities + 1
    entity_first = np.full(dataset.n_entities, never, np.int32)
    relation_first = np.full(dataset.n_relations, never, np.int32)
    _first_use(dataset.train, chain.enters, entity_first, relation_first)
    return Occurring(*(_cumulated(first, never) for first in (entity_first, relation_first)))


def first_with(chain: Chain, dataset: Dataset, n_entities: int) -> int:
    """The smallest prefix whose triples have so many entities; beyond the last one if none has. As `occurring_in` would
    say, but only the triples of inner prefixes are looked at: O(n) to find them, sequentially."""
    if n_entities <= 0:
        return 0
    reach = min(n_entities, dataset.n_entities)
    while True:
        rows = np.flatnonzero(chain.enters <= reach)
        rows = rows[np.argsort(chain.enters[rows], kind="stable")]
        _, first = np.unique(dataset.train[rows][:, [0, 2]], return_index=True)
        if len(first) >= n_entities:
            return int(chain.enters[rows[np.sort(first)[n_entities - 1] // 2]])
        if reach == dataset.n_entities:
            return reach + 1
        reach = min(4 * reach, dataset.n_entities)


def _cumulated(first: NDArray[np.int32], never: int) -> NDArray[np.int32]:
    return np.cumsum(np.bincount(first, minlength=never + 1)[:never], dtype=np.int32)


@njit(cache=True, nogil=True)
def _enter(train: Triples, size: NDArray[np.int32], enters: NDArray[np.int32], counts: NDArray[np.int64]) -> None:
    for row in range(train.shape[0]):
        p = max(size[train[row, 0]], size[train[row, 2]])
        enters[row] = p
        counts[p] += 1


@njit(cache=True, nogil=True)
def _first_use(
    train: Triples, enters: NDArray[np.int32], entity_first: NDArray[np.int32], relation_first: NDArray[np.int32]
) -> None:
    for row in range(train.shape[0]):
        head, relation, tail = train[row, 0], train[row, 1], train[row, 2]
        p = enters[row]
        entity_first[head] = min(entity_first[head], p)
        entity_first[tail] = min(entity_first[tail], p)
        relation_first[relation] = min(relation_first[relation], p)
