"""One graph becomes train, valid and test, without leaving anything of valid or test unseen in train.

Used by prepare.py for sources that have no splits of their own.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator

import numpy as np
from numba import njit
from numpy.typing import NDArray

from grash.data.arrays import in_blocks
from grash.data.interning import Whole
from grash.errors import InputError

Triples = NDArray[np.int32]
_BLOCK = 1 << 16
_ROWS = 1 << 22
_log = logging.getLogger(__name__)


def split_triples(
    triples: Triples,
    n_entities: int,
    n_relations: int,
    *,
    valid: int,
    test: int,
    seed: int,
    stay: NDArray[np.bool_] | None = None,
) -> tuple[Triples, Triples, Triples]:
    """(train, valid, test) of triples (n, 3): a random valid and test of these sizes, each in the given order.

    Every entity and relation of the whole keeps a triple in train; where that leaves fewer triples than wanted,
    valid and test get what there is, in proportion, and a warning says so. Rows marked in `stay` (n,) remain in
    train. The same seed gives the same split. O(n).
    """
    held_out = held_out_rows(triples, n_entities, n_relations, valid=valid, test=test, seed=seed, stay=stay)
    in_train = np.ones(len(triples), bool)
    for rows in held_out:
        in_train[rows] = False
    return rows_where(triples, in_train), triples[held_out[0]], triples[held_out[1]]


def held_out_rows(
    triples: Triples,
    n_entities: int,
    n_relations: int,
    *,
    valid: int,
    test: int,
    seed: int,
    stay: NDArray[np.bool_] | None = None,
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The rows of valid and of test of such a split, ascending."""
    if valid < 0 or test < 0:
        raise InputError(f"valid={valid} and test={test} are to be split off, and 0 or more is needed.")
    rows = movable_rows(triples, n_entities, n_relations, valid + test, seed, stay)
    n_valid = valid if len(rows) == valid + test else round(len(rows) * valid / max(1, valid + test))
    if len(rows) < valid + test:
        _log.warning(
            "Only %d of %d triples could be split off for valid and test: every entity and relation "
            "keeps a triple in train.",
            len(rows), valid + test,
        )  # fmt: skip
    return np.sort(rows[:n_valid]), np.sort(rows[n_valid:])


def rows_where(triples: Triples, mask: NDArray[np.bool_]) -> Triples:
    """triples[mask], several times faster than numpy on rows as short as these."""
    kept = np.empty((int(np.count_nonzero(mask)), 3), np.int32)
    _copy_rows(triples, mask, kept)
    return kept


@njit(cache=True, nogil=True)
def _copy_rows(triples: Triples, mask: NDArray[np.bool_], kept: Triples) -> None:
    to = 0
    for row in range(mask.size):
        if mask[row]:
            kept[to, 0], kept[to, 1], kept[to, 2] = triples[row, 0], triples[row, 1], triples[row, 2]
            to += 1


def movable_rows(
    triples: Triples,
    n_entities: int,
    n_relations: int,
    wanted: int,
    seed: int,
    stay: NDArray[np.bool_] | None,
) -> NDArray[np.int64]:
    """Up to `wanted` rows that can leave train together, in random order."""
    if wanted == 0 or len(triples) == 0:
        return np.empty(0, np.int64)
    entity_counts = np.empty(n_entities, np.int32)
    entity_counts.fill(0)  # unlike np.zeros, in huge pages
    relation_counts = np.zeros(n_relations, np.int32)
    for _, block in in_blocks(triples, _ROWS):
        _count(block, entity_counts, relation_counts)
    seen = np.zeros(len(triples), bool) if stay is None else stay.copy()
    taken = np.empty(min(wanted, len(triples)), np.int64)
    n_taken = 0
    for order in _random_rows(seen, wanted, seed):
        n_taken = _take(triples, order, seen, entity_counts, relation_counts, taken, n_taken)
        if n_taken == len(taken):
            break
    return taken[:n_taken]


def _random_rows(seen: NDArray[np.bool_], wanted: int, seed: int) -> Iterator[NDArray[np.int64]]:
    """All rows in random order, in blocks; a row may come again, and is then passed over as seen.

    Where few are wanted, drawing them costs less than a permutation of all.
    """
    random, n = np.random.default_rng(seed), len(seen)
    n_drawn = 0
    while wanted < n // 8 and n_drawn < n // 2:
        n_drawn += _BLOCK
        yield random.integers(0, n, _BLOCK)
    yield random.permutation(np.flatnonzero(~seen))


@njit(cache=True, nogil=True)
def _count(triples: Triples, entity_counts: NDArray[np.int32], relation_counts: NDArray[np.int32]) -> None:
    """Triples of each entity (a loop counts once) and relation."""
    for row in range(triples.shape[0]):
        head, relation, tail = triples[row]
        entity_counts[head] += 1
        if tail != head:
            entity_counts[tail] += 1
        relation_counts[relation] += 1


@njit(cache=True, nogil=True)
def _take(
    triples: Triples,
    order: NDArray[np.int64],
    seen: NDArray[np.bool_],
    entity_counts: NDArray[np.int32],
    relation_counts: NDArray[np.int32],
    taken: NDArray[np.int64],
    n_taken: Whole,
) -> Whole:
    """Takes each row whose ends and relation keep another triple, until `taken` is full; returns how many."""
    for row in order:
        if n_taken == taken.size:
            break
        if seen[row]:
            continue
        seen[row] = True
        head, relation, tail = triples[row]
        if entity_counts[head] > 1 and entity_counts[tail] > 1 and relation_counts[relation] > 1:
            entity_counts[head] -= 1
            if tail != head:
                entity_counts[tail] -= 1
            relation_counts[relation] -= 1
            taken[n_taken] = row
            n_taken += 1
    return n_taken
