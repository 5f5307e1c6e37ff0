"""Which triples repeat, where their table does not fit into memory: some of all triples at a time, by their hash.

Used by large.py; duplicates.py is what does the work on each part.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numba import njit
from numpy.typing import NDArray

from grash.data.account import HeldOut
from grash.data.arrays import in_blocks
from grash.data.duplicates import Triples, TripleSet
from grash.data.split import rows_where
from grash.data.words import Whole

_PER_ROW = 2 * (12 + 8) + 14 + 1  # bytes: the triple and its row number, twice while they are gathered; slot; mark
_ROWS = 1 << 20


@dataclass(frozen=True, eq=False)
class Repeats:
    """repeated (n,): rows of train that an earlier row equals. also_in_train: which rows of other splits stand there.
    again (n,), if asked for: rows of train that any other row equals, the first of them too."""

    repeated: NDArray[np.bool_]
    also_in_train: dict[HeldOut, NDArray[np.bool_]]
    again: NDArray[np.bool_] | None = None


def find_repeats(train: Triples, others: dict[HeldOut, Triples], room: int, *, again: bool = False) -> Repeats:
    """The repeats of train (n, 3), mapped, and what others share with it, in about `room` bytes."""
    n_parts = max(1, -(-_PER_ROW * len(train) // max(1, room)))
    repeated = np.zeros(len(train), bool)
    everywhere = np.zeros(len(train), bool) if again else None
    shared = {split: np.zeros(len(triples), bool) for split, triples in others.items()}
    for part in range(n_parts):
        rows, mine = _of_part(train, part, n_parts)
        known = TripleSet(mine)
        repeated[rows] = known.repeated
        if everywhere is not None:
            everywhere[rows] = TripleSet(rows_where(mine, known.repeated)).contains(mine)
        for split, triples in others.items():
            shared[split] |= known.contains(triples)
    return Repeats(repeated, shared, everywhere)


def _of_part(train: Triples, part: int, n_parts: int) -> tuple[slice | NDArray[np.int64], Triples]:
    """The rows that belong to a part, and their triples in memory."""
    if n_parts == 1:
        whole = np.empty_like(train)
        for start, block in in_blocks(train, _ROWS):
            whole[start : start + len(block)] = block
        return slice(None), whole
    rows, triples = [], []
    for start, block in in_blocks(train, _ROWS):
        mine = np.empty(len(block), bool)
        _mark_part(block, part, n_parts, mine)
        rows.append(start + np.flatnonzero(mine))
        triples.append(rows_where(block, mine))
    return np.concatenate(rows), np.concatenate(triples)


@njit(cache=True, nogil=True)
def _mark_part(triples: Triples, part: Whole, n_parts: Whole, mine: NDArray[np.bool_]) -> None:
    for row in range(triples.shape[0]):
        h = np.uint64(triples[row, 0]) << np.uint64(32) | np.uint64(triples[row, 2])
        h = (h ^ (np.uint64(triples[row, 1]) * np.uint64(0xD6E8FEB86659FD93))) * np.uint64(0x9E3779B97F4A7C15)
        mine[row] = ((h >> np.uint64(32)) * np.uint64(n_parts)) >> np.uint64(32) == np.uint64(part)
