"""An exact set of triples, stored as row numbers in a hash table; finds duplicates and triples shared by splits.

A slot has 32 bits: a row number, and in the free bits a piece of the hash, so the row of another triple is seldom read.
Takes 7 to 14 bytes per triple on top of the input.
"""

from __future__ import annotations

import numpy as np
from numba import njit
from numpy.typing import NDArray

from grash.data.arrays import Triples
from grash.data.interning import Integer, prefetch
from grash.errors import InputError

_BATCH = 64
_MAX_TRIPLES = 2**32 - 2
_STEP = np.uint64(0x9E3779B97F4A7C15)
_LAST = np.uint64(0xD6E8FEB86659FD93)
_HALF = np.uint64(32)
_ONE = np.uint64(1)


class TripleSet:
    """The distinct rows of triples (n, 3). `repeated` (n,) marks the rows that equal an earlier row."""

    def __init__(self, triples: Triples) -> None:
        if len(triples) > _MAX_TRIPLES:
            raise InputError(f"A split has {len(triples):,} triples, but at most {_MAX_TRIPLES:,} are possible.")
        self._triples = triples
        self._row_bits = np.uint64(len(triples).bit_length())
        self._slots = np.empty(1 << max(4, int(len(triples) * 1.6).bit_length()), np.uint32)
        self._slots.fill(0)  # unlike np.zeros, this uses huge pages
        self.repeated = np.zeros(len(triples), bool)
        _fill(triples, self._slots, self._row_bits, self.repeated)

    @property
    def n_repeated(self) -> int:
        return int(np.count_nonzero(self.repeated))

    def contains(self, triples: Triples) -> NDArray[np.bool_]:
        """Return which rows (m,) of other triples (m, 3) are in the set."""
        found = np.zeros(len(triples), bool)
        _look_up(triples, self._triples, self._slots, self._row_bits, found)
        return found


@njit(cache=True, nogil=True)
def _fill(triples: Triples, slots: NDArray[np.uint32], row_bits: Integer, repeated: NDArray[np.bool_]) -> None:
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
    triples: Triples, kept: Triples, slots: NDArray[np.uint32], row_bits: Integer, found: NDArray[np.bool_]
) -> None:
    for row in range(triples.shape[0]):
        at = _slot_of(triples, row, _hash(triples, row), kept, slots, row_bits)
        found[row] = slots[at] > 0


@njit(cache=True, nogil=True, inline="always")
def _hash(triples: Triples, row: Integer) -> Integer:
    h = (np.uint64(triples[row, 0]) << _HALF) | np.uint64(triples[row, 2])
    h = (h ^ (h >> _HALF)) * _STEP
    h = (h ^ (h >> _HALF) ^ np.uint64(triples[row, 1])) * _LAST
    return h ^ (h >> _HALF)


@njit(cache=True, nogil=True, inline="always")
def _slot_of(
    triples: Triples, row: Integer, h: Integer, kept: Triples, slots: NDArray[np.uint32], row_bits: Integer
) -> Integer:
    """Return the slot of a triple equal to triples[row], or the empty slot where it belongs."""
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
