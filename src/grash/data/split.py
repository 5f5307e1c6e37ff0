"""Split a graph into train, valid and test so that every entity and relation occurs in train.

Used by load.py for sources without valid or test, and by reduction for the validation data of subgraphs.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from typing import Any, Literal

import numpy as np
from numba import njit
from numpy.typing import NDArray

from grash.data.arrays import Integer, Mask, Rows, Triples, in_blocks
from grash.data.readers.source import SourceOptions
from grash.errors import ConfigError, InputError

HeldOut = Literal["valid", "test"]
HELD_OUT: tuple[HeldOut, HeldOut] = ("valid", "test")
Counts = NDArray[np.int32]

_BLOCK = 1 << 16
_ROWS = 1 << 22
_log = logging.getLogger(__name__)


def split_off(
    splits: dict[str, Triples], n_entities: int, n_relations: int, options: SourceOptions, keep: Mask | None = None
) -> tuple[Mask, dict[str, Any]]:
    """Add the missing ones of valid and test to `splits`; return the rows (n,) that stay in train, and what to record.

    Rows marked in `keep` (n,) stay in train.
    """
    train = splits["train"]
    in_train = np.ones(len(train), bool)
    wanted = _missing_splits(splits, options, len(train))
    if not wanted:
        return in_train, {}
    sizes = {split: wanted.get(split, 0) for split in HELD_OUT}
    held_out = held_out_rows(train, n_entities, n_relations, **sizes, seed=options.seed, keep=keep)
    for split, rows in zip(HELD_OUT, held_out):
        in_train[rows] = False
        if split in wanted:
            splits[split] = train[rows]
    got = {split: len(splits[split]) for split in wanted}
    counts = " and ".join(f"{count:,} {split}" for split, count in got.items())
    missing = " and ".join(wanted)
    _log.info("The source has no %s: %s triples were split off train with seed %d.", missing, counts, options.seed)
    return in_train, {"split_off": {"seed": options.seed, "wanted": wanted, "got": got}}


def _missing_splits(given: Mapping[str, Any], options: SourceOptions, n_train: int) -> dict[HeldOut, int]:
    """Return how many triples to split off train for each split that a source does not have."""
    wanted = {split: options.n_split_off(split, n_train) for split in HELD_OUT if split not in given}
    counted = [f"n_{split}" for split in wanted if getattr(options, f"n_{split}") is not None]
    if counted and sum(wanted.values()) >= n_train:  # fractions are below 1 already
        flags = " and ".join(f"--{name.replace('_', '-')}" for name in counted)
        counts = " and ".join(f"{count:,} {split}" for split, count in wanted.items())
        raise ConfigError(
            f"Cannot split off {counts} triples: the source has {n_train:,} in all. "
            f"Give a smaller {' and '.join(counted)} ({flags})."
        )
    return wanted


def held_out_rows(
    triples: Triples, n_entities: int, n_relations: int, *, valid: int, test: int, seed: int, keep: Mask | None = None
) -> tuple[Rows, Rows]:
    """Return the rows of a random valid and test of these sizes of triples (n, 3), each ascending.

    Every entity and relation keeps a triple in train. If that leaves fewer triples than wanted, valid and test get
    proportionally less, with a warning. Rows marked in `keep` (n,) stay in train. O(n).
    """
    if valid < 0 or test < 0:
        raise InputError(f"Cannot split off valid={valid} and test={test} triples: give 0 or more.")
    rows = movable_rows(triples, n_entities, n_relations, valid + test, seed, keep)
    n_valid = valid if len(rows) == valid + test else round(len(rows) * valid / max(1, valid + test))
    if len(rows) < valid + test:
        if not len(rows):
            _log.warning("No triple could be split off: each is the only one of an entity or relation.")
        else:
            reason = "every entity and relation keeps a triple in train"
            _log.warning("Only %d of %d triples could be split off: %s.", len(rows), valid + test, reason)
    return np.sort(rows[:n_valid]), np.sort(rows[n_valid:])


def movable_rows(
    triples: Triples, n_entities: int, n_relations: int, wanted: int, seed: int, keep: Mask | None
) -> Rows:
    """Return up to `wanted` rows that can leave train together, in random order."""
    if wanted == 0 or len(triples) == 0:
        return np.empty(0, np.int64)
    entity_counts = np.empty(n_entities, np.int32)
    entity_counts.fill(0)  # unlike np.zeros, this uses huge pages
    relation_counts = np.zeros(n_relations, np.int32)
    for _, block in in_blocks(triples, _ROWS):
        _count(block, entity_counts, relation_counts)
    seen = np.zeros(len(triples), bool) if keep is None else keep.copy()
    taken = np.empty(min(wanted, len(triples)), np.int64)
    n_taken = 0
    for order in _random_rows(seen, wanted, seed):
        n_taken = _take(triples, order, seen, entity_counts, relation_counts, taken, n_taken)
        if n_taken == len(taken):
            break
    return taken[:n_taken]


def _random_rows(seen: Mask, wanted: int, seed: int) -> Iterator[Rows]:
    """Yield all rows in random order, in blocks. A row may repeat; it is then skipped as seen.

    If few rows are wanted, drawing them is cheaper than a permutation of all.
    """
    random, n = np.random.default_rng(seed), len(seen)
    n_drawn = 0
    while wanted < n // 8 and n_drawn < n // 2:
        n_drawn += _BLOCK
        yield random.integers(0, n, _BLOCK)
    yield random.permutation(np.flatnonzero(~seen))


@njit(cache=True, nogil=True)
def _count(triples: Triples, entity_counts: Counts, relation_counts: Counts) -> None:
    """Count the triples of each entity (a loop counts once) and relation."""
    for row in range(triples.shape[0]):
        head, relation, tail = triples[row]
        entity_counts[head] += 1
        if tail != head:
            entity_counts[tail] += 1
        relation_counts[relation] += 1


@njit(cache=True, nogil=True)
def _take(
    triples: Triples,
    order: Rows,
    seen: Mask,
    entity_counts: Counts,
    relation_counts: Counts,
    taken: Rows,
    n_taken: Integer,
) -> Integer:
    """Take each row whose entities and relation keep another triple, until `taken` is full. Return the number taken."""
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
