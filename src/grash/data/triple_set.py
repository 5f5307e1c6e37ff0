"""Which triples repeat: an exact set of triples, kept as row numbers in a hash table. Used by prepare.py.

A slot is 32 bits: a row number, and in the bits it leaves free a piece of the hash, so that a slot that belongs
to another triple is seldom followed to its row. 7 to 14 bytes per triple on top of the input.
"""

from __future__ import annotations

import numpy as np
from numba import njit
from numpy.typing import NDArray

from grash.data.interning import Whole, prefetch
from grash.errors import InputError

Triples = NDArray[np.int32]

_BATCH = 64
_MOST = 2**32 - 2
_STEP = np.uint64(0x9E3779B97F4A7C15)
_LAST = np.uint64(0xD6E8FEB86659FD93)
_HALF = np.uint64(32)
_ONE = np.uint64(1)


class TripleSet:
    """The distinct rows of triples (n, 3). `repeated` (n,) marks rows that an earlier row equals."""

    def __init__(self, triples: Triples) -> None:
        if len(triples) > _MOST:
            raise InputError(f"There are {len(triples):,} triples in a split, and {_MOST:,} are the most.")
        self._triples = triples
        self._row_bits = np.uint64(len(triples).bit_length())
        self._slots = np.empty(1 << max(4, int(len(triples) * 1.6).bit_length()), np.uint32)
        self._slots.fill(0)  # unlike np.zeros, in huge pages
        self.repeated = np.zeros(len(triples), bool)
        _fill(triples, self._slots, self._row_bits, self.repeated)

    @property
    def n_repeated(self) -> int:
        return int(np.count_nonzero(self.repeated))

    def contains(self, triples: Triples) -> NDArray[np.bool_]:
        """Which rows (m,) of other triples (m, 3) are in the set."""
        found = np.zeros(len(triples), bool)
        _look_up(triples, self._triples, self._slots, self._row_bits, found)
        return found


@njit(cache=True, nogil=True)
def _fill(triples: Triples, slots: NDArray[np.uint32], row_bits: Whole, repeated: NDArray[np.bool_]) -> None:
    mask = np.uint64(slots.size - 1)
    hashes = np.empty(_BATCH, np.uint64)
    for start in range(0, triples.shape[0], _BATCH):
        stop = min(start + _BATCH, triples.shape[0])
        for row in range(start, stop):
            h = _hash(triples, row)
            hashes[row - start] = h
            prefetch(slots, np.int64(h & mask))
        for row in range(start, stop):
            h = hashes[row - start]
            at = _slot_of(triples, row, h, triples, slots, row_bits)
            if slots[at] == 0:
                slots[at] = np.uint32(((h >> _HALF) >> row_bits) << row_bits | np.uint64(row + 1))
            else:
                repeated[row] = True


@njit(cache=True, nogil=True)
def _look_up(
    triples: Triples,
    kept: Triples,
    slots: NDArray[np.uint32],
    row_bits: Whole,
    found: NDArray[np.bool_],
) -> None:
    for row in range(triples.shape[0]):
        at = _slot_of(triples, row, _hash(triples, row), kept, slots, row_bits)
        found[row] = slots[at] > 0


@njit(cache=True, nogil=True, inline="always")
def _hash(triples: Triples, row: Whole) -> Whole:
    h = (np.uint64(triples[row, 0]) << _HALF) | np.uint64(triples[row, 2])
    h = (h ^ (h >> _HALF)) * _STEP
    h = (h ^ (h >> _HALF) ^ np.uint64(triples[row, 1])) * _LAST
    return h ^ (h >> _HALF)


@njit(cache=True, nogil=True, inline="always")
def _slot_of(
    triples: Triples, row: Whole, h: Whole, kept: Triples, slots: NDArray[np.uint32], row_bits: Whole
) -> Whole:
    """The slot that holds a triple equal to triples[row], or the empty one where it would stand."""
    mask = np.uint64(slots.size - 1)
    rows = (_ONE << row_bits) - _ONE
    piece = (h >> _HALF) >> row_bits
    at = np.int64(h & mask)
    while slots[at] != 0:
        slot = np.uint64(slots[at])
        if slot >> row_bits == piece:
            other = np.int64(slot & rows) - 1
            if (
                kept[other, 0] == triples[row, 0]
                and kept[other, 2] == triples[row, 2]
                and kept[other, 1] == triples[row, 1]
            ):
                break
        at = (at + 1) & (slots.size - 1)
    return at
