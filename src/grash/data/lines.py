"""Ids become lines of text, Q17 tab P3 tab Q4: generated graphs as files of names. Used by generate.py."""

from __future__ import annotations

import numpy as np
from numba import njit
from numpy.typing import NDArray

from grash.data.words import Whole

_MOST = 3 * 12  # bytes of a line: three letters with up to ten digits, each with what follows it
_ROWS = 1 << 20


def as_lines(triples: NDArray[np.int32]) -> bytearray:
    """The lines of triples (n, 3)."""
    text = bytearray()
    buffer = np.empty(_MOST * min(_ROWS, len(triples)), np.uint8)
    for start in range(0, len(triples), _ROWS):
        used = _write_lines(triples[start : start + _ROWS], buffer)
        text += buffer[:used].data
    return text


@njit(cache=True, nogil=True)
def _write_lines(triples: NDArray[np.int32], buffer: NDArray[np.uint8]) -> Whole:
    at = 0
    for row in range(triples.shape[0]):
        for column in range(3):
            buffer[at] = ord("P") if column == 1 else ord("Q")
            at = _write_number(np.int64(triples[row, column]), buffer, at + 1)
            buffer[at] = ord("\n") if column == 2 else ord("\t")
            at += 1
    return at


@njit(cache=True, nogil=True, inline="always")
def _write_number(value: Whole, buffer: NDArray[np.uint8], at: Whole) -> Whole:
    """Writes the digits of a number; returns where they end."""
    end, rest = at + 1, value
    while rest >= 10:
        rest //= 10
        end += 1
    place = end
    while place > at:
        place -= 1
        buffer[place] = 48 + value % 10
        value //= 10
    return end
