"""Text files become fields, block by block: the last place where names are bytes between separators.

Comes from streams.py (decompressed bytes), goes to encode.py. While one block's names are being looked up, the
next one is read, decompressed, checked and scanned in other threads.
"""

from __future__ import annotations

import codecs
from collections.abc import Generator
from contextlib import closing
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from grash.data import scan
from grash.data.dialect import ROLES, Dialect, separator_name
from grash.data.intern import HashedFields, hashed_fields
from grash.data.streams import SourceStream, ahead
from grash.data.words import SLACK
from grash.errors import InputError

BLOCK = 1 << 24
MAX_LINE = 1 << 26
SAMPLE = 1 << 16
_BOM = codecs.BOM_UTF8


@dataclass(frozen=True, eq=False)
class Fields:
    """The wanted columns of some lines (rows), in groups: one HashedFields of rows × columns for each group.

    next_byte, next_line: where the text goes on after them.
    """

    path: Path
    first_line: int
    n_rows: int
    groups: tuple[HashedFields, ...]
    next_byte: int = 0
    next_line: int = 1

    def text(self, row: int, group: int, column: int = 0) -> str:
        buffer, starts, lengths, _ = self.groups[group]
        at = row * (len(starts) // self.n_rows) + column
        return buffer[starts[at] : starts[at] + lengths[at]].tobytes().decode("utf-8", "replace")

    def place(self, row: int) -> str:
        """The file and line of a row, for errors."""
        buffer, starts = self.groups[0][:2]
        before = buffer[: starts[row * (len(starts) // self.n_rows)]]
        line = self.first_line + int(np.count_nonzero(before == ord("\n")))
        return f"{self.path}, line {line:,}"


class TextSource:
    """A text stream whose first bytes have been looked at; a byte order mark is left out."""

    def __init__(self, stream: SourceStream | Any, path: Path) -> None:
        self.path = path
        self._stream = stream
        self._start = stream.read(SAMPLE)
        while 0 < len(self._start) < SAMPLE and (more := stream.read(SAMPLE - len(self._start))):
            self._start += more
        self._start = self._start.removeprefix(_BOM)
        self._at, self._line = 0, 1

    def go_on_at(self, byte: int, line: int) -> None:
        """Passes over what lies before a place that Fields named (next_byte, next_line) in an earlier reading."""
        beyond = byte - len(self._start)
        self._start = self._start[byte:]
        if beyond > 0:
            self._stream.skip(beyond)
        self._at, self._line = byte, line

    @property
    def sample(self) -> bytes:
        """The first lines, whole ones if there is at least one."""
        cut = self._start.rfind(b"\n") + 1
        return self._start[:cut] if cut and len(self._start) >= SAMPLE - len(_BOM) else self._start

    def fields(
        self, dialect: Dialect, *, wanted: tuple[tuple[int, ...], ...], skip_lines: int = 0
    ) -> Generator[Fields, None, None]:
        """Fields of the wanted groups of columns, after so many lines that are skipped; to be closed."""
        place = (self._at, self._line)
        return ahead(_scan_blocks(self.path, ahead(self._blocks()), dialect, wanted, skip_lines, place))

    def _blocks(self) -> Generator[bytes, None, None]:
        if self._start:
            yield self._start
        while block := self._stream.read(BLOCK):
            yield block


def _scan_blocks(
    path: Path,
    blocks: Generator[bytes, None, None],
    dialect: Dialect,
    wanted: tuple[tuple[int, ...], ...],
    skip_lines: int,
    place: tuple[int, int],
) -> Generator[Fields, None, None]:
    carry, (at, line) = b"", place
    with closing(blocks):
        for block in chain(blocks, (b"",)):
            final = not block
            raw = bytearray().join((carry, block, bytes(SLACK)))
            size = len(raw) - SLACK
            end = size if final else raw.rfind(b"\n", 0, size) + 1
            _check_utf8(raw, end, path, line)
            start, n_skipped, skip_lines = _after_lines(raw, end, skip_lines)
            line += n_skipped
            fields, used, n_lines = _scan(path, line, raw, start, end, final, dialect, wanted)
            line, at = line + n_lines, at + start + used
            carry = bytes(raw[start + used : size])
            if len(carry) > MAX_LINE:
                raise InputError(
                    f"{path}, line {line:,}: the line does not end within {MAX_LINE >> 20} MiB, so this is not a "
                    f"file of names{' (or a quote is never closed)' if dialect.quotes else ''}."
                )
            if fields.n_rows:
                yield replace(fields, next_byte=at, next_line=line)


def _scan(
    path: Path, line: int, raw: bytearray, start: int, end: int, final: bool,
    dialect: Dialect, wanted: tuple[tuple[int, ...], ...],
) -> tuple[Fields, int, int]:  # fmt: skip
    """(fields of the whole lines of raw[start:end], bytes used, lines used)."""
    buffer = np.frombuffer(raw, np.uint8)[start:]
    columns = np.array([column for group in wanted for column in group], np.int64)
    starts = np.empty((raw.count(b"\n", start, end) + 1, len(columns)), np.int32)
    lengths, status = np.empty_like(starts), np.zeros(3, np.int64)
    n_rows, used = scan.scan_lines(
        buffer, end - start, final, dialect.separator, dialect.quotes, columns, dialect.n_columns,
        starts, lengths, status,
    )  # fmt: skip
    if status[0] != scan.FINE:
        raise InputError(_complaint(f"{path}, line {line + int(status[1]):,}", status, dialect))
    groups, at = [], 0
    for group in wanted:
        part = (slice(n_rows), slice(at, at + len(group)))
        groups.append(hashed_fields(buffer, starts[part].ravel(), lengths[part].ravel()))
        at += len(group)
    return Fields(path, line, n_rows, tuple(groups)), used, int(status[1])


def _after_lines(raw: bytearray, end: int, n: int) -> tuple[int, int, int]:
    """(position after n lines with content and the blank ones before them, lines passed, n still to pass)."""
    at, passed = 0, 0
    while n > 0 and at < end:
        newline = raw.find(b"\n", at, end)
        stop = end if newline < 0 else newline
        n -= 1 if raw[at:stop].strip(b" \t\r") else 0
        at, passed = min(stop + 1, end), passed + 1
    return at, passed, n


def _check_utf8(raw: bytearray, end: int, path: Path, line: int) -> None:
    if raw.isascii():
        return
    try:
        codecs.utf_8_decode(memoryview(raw)[:end], "strict", True)
    except UnicodeDecodeError as error:
        line += raw.count(b"\n", 0, error.start)
        raise InputError(
            f"{path}, line {line:,}: the byte 0x{raw[error.start]:02x} is no UTF-8 text ({error.reason}): "
            f"convert the file to UTF-8."
        ) from None


def _complaint(place: str, status: NDArray[np.int64], dialect: Dialect) -> str:
    code, found = int(status[0]), int(status[2])
    if code == scan.COLUMNS:
        needed = dialect.n_columns or max(dialect.columns) + 1
        more = "" if dialect.n_columns else " or more"
        hint = f"separated by {separator_name(dialect.separator)}"
        if found > needed:
            hint += "; say which to take with columns (--columns)"
        elif not dialect.n_columns:
            hint += "; columns are counted from 0"
        return f"{place}: {found} columns were found, and {needed}{more} are needed ({hint})."
    if code == scan.EMPTY:
        what = ROLES[(0, 2, 1)[found]] if len(dialect.columns) == 3 else "name"
        return f"{place}: the {what} is empty, and every field needs a name."
    if code == scan.UNCLOSED:
        return f'{place}: a quote (") is opened and never closed.'
    return f'{place}: something follows a closing quote ("); a quote inside a field is written twice.'
