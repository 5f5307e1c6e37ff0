"""Bytes become fields: where each wanted column of each line starts and ends. Used by text.py.

One pass over a block of whole lines, in numba, about a nanosecond per byte.
"""

from __future__ import annotations

import numpy as np
from numba import njit
from numpy.typing import NDArray

from grash.data.words import Whole

WHITESPACE = -1  # a separator: any run of spaces and tabs
NOTHING = -2  # a separator: the line is the field

# What stopped a scan (status[0]); status[1] is the line, counted from 0, status[2] the columns found or the
# wanted column that is empty.
FINE, COLUMNS, EMPTY, UNCLOSED, AFTER_QUOTE = range(5)

_NEWLINE, _RETURN, _SPACE, _TAB, _QUOTE = 10, 13, 32, 9, 34


@njit(cache=True, nogil=True)
def scan_lines(
    buffer: NDArray[np.uint8],
    end: Whole,
    final: bool,
    separator: Whole,
    quotes: bool,
    wanted: NDArray[np.int64],
    n_columns: Whole,
    starts: NDArray[np.int32],
    lengths: NDArray[np.int32],
    status: NDArray[np.int64],
) -> tuple[Whole, Whole]:
    """(rows found, bytes used) of buffer[:end], which ends with a newline unless it is the `final` one.

    starts and lengths (rows, k) take the k wanted columns; a quoted field is unquoted in place. Lines of nothing
    but spaces and tabs are passed over, unless the line is the field. n_columns is the exact number of columns, or
    0 for any that holds the wanted ones. Where a quoted field goes on beyond the end, the line is left for the next
    block.
    """
    slots = np.full(max(wanted.max() + 1, n_columns) + 1, -1, np.int64)
    for k in range(wanted.size):
        slots[wanted[k]] = k
    row, at = 0, 0
    status[0], status[1] = FINE, 0
    while at < end:
        begin, column, n_lines, more = at, 0, 1, True
        may_be_blank = buffer[at] <= _SPACE and separator != NOTHING
        if may_be_blank and _at_line_end(buffer, _skip_blanks(buffer, at, end), end):
            at = _past_newline(buffer, at, end)
            status[1] += 1
            continue
        while more:
            if separator == WHITESPACE:
                at = _skip_blanks(buffer, at, end)
                if column > 0 and _at_line_end(buffer, at, end):
                    at = _past_newline(buffer, at, end)
                    break
            start = at + 1 if quotes and at < end and buffer[at] == _QUOTE else at
            doubled = False
            if start > at:
                stop, at, n_breaks, doubled = _quoted_field(buffer, start, end, separator)
                n_lines += n_breaks
                if at < 0:
                    status[0] = FINE if stop == end and not final else UNCLOSED if stop == end else AFTER_QUOTE
                    return row, begin
            else:
                stop, at = _plain_field(buffer, at, end, separator)
            slot = slots[min(column, slots.size - 1)]
            if slot >= 0:
                starts[row, slot] = start
                lengths[row, slot] = start - stop if doubled else stop - start  # negative: to be undoubled
            column += 1
            more = at < end and buffer[at] != _NEWLINE
            at += 1
        if (n_columns > 0 and column != n_columns) or column < slots.size - 1:
            status[0], status[2] = COLUMNS, column
            return row, begin
        for k in range(wanted.size):
            if lengths[row, k] < 0:
                lengths[row, k] = _undouble(buffer, starts[row, k], -lengths[row, k])
            if lengths[row, k] == 0:
                status[0], status[2] = EMPTY, k
                return row, begin
        row += 1
        status[1] += n_lines
    return row, min(at, end)


@njit(cache=True, nogil=True)
def _plain_field(buffer: NDArray[np.uint8], at: Whole, end: Whole, separator: Whole) -> tuple[Whole, Whole]:
    """(end of the field, position of what ends it); a return before a newline is no part of the field."""
    start = at
    if separator == WHITESPACE:
        while at < end and buffer[at] != _NEWLINE and buffer[at] != _SPACE and buffer[at] != _TAB:
            at += 1
    else:
        while at < end and buffer[at] != _NEWLINE and buffer[at] != separator:
            at += 1
    if at > start and buffer[at - 1] == _RETURN and (at == end or buffer[at] == _NEWLINE):
        return at - 1, at
    return at, at


@njit(cache=True, nogil=True)
def _quoted_field(
    buffer: NDArray[np.uint8], start: Whole, end: Whole, separator: Whole
) -> tuple[Whole, Whole, Whole, bool]:
    """(end of the field, position of what ends it, newlines inside, whether it has doubled quotes).

    The position is -1 where there is no closing quote (the end is then that of the buffer), or where
    something else than a separator or newline follows it.
    """
    stop, n_breaks, doubled = _closing_quote(buffer, start, end)
    at = stop + 1
    if at < end and buffer[at] == _RETURN and (at + 1 == end or buffer[at + 1] == _NEWLINE):
        at += 1
    if stop == end or (at < end and buffer[at] != separator and buffer[at] != _NEWLINE):
        at = -1
    return stop, at, n_breaks, doubled


@njit(cache=True, nogil=True)
def _skip_blanks(buffer: NDArray[np.uint8], at: Whole, end: Whole) -> Whole:
    while at < end and (buffer[at] == _SPACE or buffer[at] == _TAB):
        at += 1
    return at


@njit(cache=True, nogil=True)
def _at_line_end(buffer: NDArray[np.uint8], at: Whole, end: Whole) -> bool:
    if at >= end or buffer[at] == _NEWLINE:
        return True
    return buffer[at] == _RETURN and (at + 1 >= end or buffer[at + 1] == _NEWLINE)


@njit(cache=True, nogil=True)
def _past_newline(buffer: NDArray[np.uint8], at: Whole, end: Whole) -> Whole:
    while at < end and buffer[at] != _NEWLINE:
        at += 1
    return at + 1


@njit(cache=True, nogil=True)
def _closing_quote(buffer: NDArray[np.uint8], at: Whole, end: Whole) -> tuple[Whole, Whole, bool]:
    """(where the closing quote is, newlines before it, whether there are doubled quotes); `end` if none."""
    n_breaks, doubled = 0, False
    while at < end:
        if buffer[at] == _QUOTE:
            if at + 1 >= end or buffer[at + 1] != _QUOTE:
                return at, n_breaks, doubled
            doubled = True
            at += 1
        elif buffer[at] == _NEWLINE:
            n_breaks += 1
        at += 1
    return end, n_breaks, doubled


@njit(cache=True, nogil=True)
def _undouble(buffer: NDArray[np.uint8], start: Whole, length: Whole) -> Whole:
    """Turns "" into " within a field; returns its new length."""
    to, at = start, start
    while at < start + length:
        buffer[to] = buffer[at]
        at += 2 if buffer[at] == _QUOTE else 1
        to += 1
    return to - start
