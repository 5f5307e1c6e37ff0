"""Text files become fields, block by block: the last place where names are bytes between separators.

Comes from streams.py (decompressed bytes), goes to encode.py. While one block's names are being looked up, the
next one is read, decompressed, checked and scanned in other threads.
"""

from __future__ import annotations

import codecs
import csv
import io
from collections.abc import Generator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray

from grash.data.interning import SLACK, HashedFields, Whole, hashed_fields
from grash.data.readers.streams import SourceStream, ahead
from grash.errors import ConfigError, InputError

# = Bytes become fields: where each wanted column of each line starts and ends. Used by text.py.
# =
# = One pass over a block of whole lines, in numba, about a nanosecond per byte.

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
    n_rows, used = scan_lines(
        buffer, end - start, final, dialect.separator, dialect.quotes, columns, dialect.n_columns,
        starts, lengths, status,
    )  # fmt: skip
    if status[0] != FINE:
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
    if code == COLUMNS:
        needed = dialect.n_columns or max(dialect.columns) + 1
        more = "" if dialect.n_columns else " or more"
        hint = f"separated by {separator_name(dialect.separator)}"
        if found > needed:
            hint += "; say which to take with columns (--columns)"
        elif not dialect.n_columns:
            hint += "; columns are counted from 0"
        return f"{place}: {found} columns were found, and {needed}{more} are needed ({hint})."
    if code == EMPTY:
        what = ROLES[(0, 2, 1)[found]] if len(dialect.columns) == 3 else "name"
        return f"{place}: the {what} is empty, and every field needs a name."
    if code == UNCLOSED:
        return f'{place}: a quote (") is opened and never closed.'
    return f'{place}: something follows a closing quote ("); a quote inside a field is written twice.'


# = How a text file writes its triples: separator, quotes, header, which column is what. Guessed from its first lines.
# =
# = Goes to text.py. Everything guessed can be said instead (SourceOptions).

ROLES = ("head", "relation", "tail")
HEADER_WORDS = {
    "head": ("head", "h", "subject", "subj", "s", "source", "src", "from", "start", "head_id", "head_name"),
    "relation": ("relation", "r", "rel", "predicate", "pred", "p", "property", "edge", "edge_type", "type")
    + ("label", "relationship", "relation_id", "relation_name"),
    "tail": ("tail", "t", "object", "obj", "o", "target", "dst", "dest", "to", "end", "tail_id", "tail_name"),
}
SEPARATOR_NAMES = {9: "tabs", 44: "commas", 59: "semicolons", 124: "bars", WHITESPACE: "spaces or tabs"}

_WORDS = {"tab": 9, "comma": 44, "semicolon": 59, "space": 32, "whitespace": WHITESPACE}
_MARKS = (9, 44, 59, 124)  # separators that are one character, in the order in which they are believed
_BLANKS = " \t\r"
_N_LINES = 200


@dataclass(frozen=True)
class Dialect:
    """`columns` are the places of head, relation and tail; `n_columns` is 0 where a file may have more."""

    separator: int
    quotes: bool
    header: bool
    columns: tuple[int, ...]
    n_columns: int


def parse_columns(columns: str | Sequence[int] | None) -> tuple[tuple[int, ...] | None, int]:
    """((head, relation, tail) places or None, exact number of columns or 0) of a `columns` option.

    "htr" says what each of three columns is; (0, 2, 1) or "0,2,1" says where head, relation and tail stand.
    """
    if columns is None:
        return None, 3
    if isinstance(columns, str) and sorted(columns.lower()) == ["h", "r", "t"]:
        return tuple(columns.lower().index(role) for role in "hrt"), 3
    try:
        places = [int(c) for c in (columns.split(",") if isinstance(columns, str) else columns)]
    except (ValueError, TypeError):
        places = []
    if len(places) != 3 or len(set(places)) != 3 or min(places) < 0:
        raise ConfigError(
            f"columns={columns!r} does not say which columns are head, relation and tail: give an order such as "
            f'"htr", or three different places counted from 0 such as (0, 2, 1).'
        )
    return tuple(places), 0


def parse_separator(separator: str | None) -> int | None:
    """The byte of a `separator` option: one ASCII character, tab, comma, semicolon, space or whitespace."""
    if separator is None or separator == "auto":
        return None
    if separator in _WORDS:
        return _WORDS[separator]
    if separator == "\\t":
        return 9
    if len(separator) == 1 and separator.isascii() and separator not in '\n\r"':
        return ord(separator)
    raise ConfigError(f"separator={separator!r} is not usable: give one character, or tab, comma or whitespace.")


def guess_dialect(
    sample: bytes,
    path: Path,
    *,
    separator: str | None = None,
    header: bool | None = None,
    columns: str | Sequence[int] | None = None,
) -> Dialect:
    """The dialect of a file that begins with `sample` (whole lines as far as there are any).

    The separator is guessed without regard to `columns`, so that a column that does not exist is refused with an
    InputError instead of being found by another separator.
    """
    places, n_columns = parse_columns(columns)
    lines = _lines(sample)
    chosen = parse_separator(separator)
    if chosen is None:
        wide = columns is None and header is not False
        chosen = (_separator_of_header(lines) if wide else None) or _guess_separator(lines, exact=n_columns > 0)
    fields = split_line(lines[0], chosen) if lines else []
    if places is None:
        places = places_by_name(fields) if header is not False else None
        n_columns = len(fields) if places else n_columns
        return Dialect(chosen, chosen == 44, places is not None or header is True, places or (0, 1, 2), n_columns)
    if n_columns == 0 and b"\n" in sample:
        _check_places(sample, lines, path, chosen, places)
    words = [fields[p] for p in places if p < len(fields)]
    if header is None:
        header = len(words) == 3 and all(_role(word) is not None for word in words)
    return Dialect(chosen, chosen == 44, header, places, n_columns)


def header_in_doubt(sample: bytes, dialect: Dialect) -> list[str] | None:
    """The head, relation and tail of the first line if it is read as a triple and one of them is a word of headers
    that no other of the first lines has."""
    rows = [split_line(line, dialect.separator) for line in _lines(sample)]
    if dialect.header or len(rows) < 3 or len(rows[0]) <= max(dialect.columns):
        return None
    others = {_plain(field) for row in rows[1:] for field in row}
    first = [rows[0][place] for place in dialect.columns]
    # a single letter is no sign: small graphs are often written with them
    doubtful = any(_role(field) and len(_plain(field)) > 1 and _plain(field) not in others for field in first)
    return first if doubtful else None


def separator_name(separator: int) -> str:
    """The separator in words."""
    return SEPARATOR_NAMES.get(separator, repr(chr(max(0, separator))))


def split_line(line: str, separator: int) -> list[str]:
    """The fields of one line."""
    if separator == WHITESPACE:
        return line.split()
    if separator == 44:
        try:
            return next(csv.reader([line]), [])
        except csv.Error:  # a guess needs no more; the scanner says what is wrong, with the line
            return line.split(",")
    return line.split(chr(separator))


def _lines(sample: bytes) -> list[str]:
    """The first lines that are not blank."""
    lines = [line.rstrip("\r") for line in sample.decode("utf-8", "replace").split("\n")]
    return [line for line in lines if line.strip(_BLANKS)][:_N_LINES]


def _separator_of_header(lines: list[str]) -> int | None:
    """The separator by which the first line names head, relation and tail among more columns, which most lines have."""
    for separator in _MARKS:
        n = len(fields := split_line(lines[0], separator)) if lines else 0
        if n > 3 and places_by_name(fields):
            same = sum(len(split_line(line, separator)) == n for line in lines)
            if 2 * same > len(lines):
                return separator
    return None


def _guess_separator(lines: list[str], *, exact: bool) -> int:
    """The separator that gives three columns (or more, if not exact) in most lines; tab before comma before others.

    Spaces within names look like separators too: where every line has tabs, they are never taken for them.
    """
    best, best_share = None, 0.0
    for separator in (*_MARKS, WHITESPACE):
        counts = [len(split_line(line, separator)) for line in lines]
        share = sum(n == 3 if exact else n >= 3 for n in counts) / max(1, len(lines))
        if share > best_share:
            best, best_share = separator, share
    if best == WHITESPACE and _all_by_tabs(lines):
        return 9
    if best is not None:
        return best
    text = "\n".join(lines)
    return next((s for s in _MARKS if chr(s) in text), WHITESPACE if " " in text else 9)


def _all_by_tabs(lines: list[str]) -> bool:
    """Whether every line has single tabs between something; runs of tabs would be an alignment."""
    return all("\t" in line and all(field.strip() for field in line.split("\t")) for line in lines)


def _check_places(sample: bytes, lines: list[str], path: Path, separator: int, places: tuple[int, ...]) -> None:
    """Refuses a column that none of the first lines has."""
    rows = [split_line(line, separator) for line in lines]
    if separator == 44 and b'"' in sample:  # where a quoted field may go on in the next line
        try:
            rows = list(csv.reader(io.StringIO(sample.decode("utf-8", "replace"))))
        except csv.Error:
            return  # said with the line when it is read
    n = max(map(len, rows), default=0)
    if not 0 < n <= max(places):
        return
    there = "one column, 0" if n == 1 else f"{n} columns, 0 to {n - 1}"
    raise InputError(
        f"{path} has {there} (separated by {separator_name(separator)}), and columns={','.join(map(str, places))} asks "
        f"for column {max(places)}: counting begins at 0. If something else separates them, say it with separator "
        f"(--separator)."
    )


def _plain(word: str) -> str:
    return word.strip().strip('"<>?').lower()


def _role(word: str) -> str | None:
    word = _plain(word)
    return next((role for role in ROLES if word in HEADER_WORDS[role]), None)


def places_by_name(names: Sequence[str]) -> tuple[int, ...] | None:
    """Where head, relation and tail stand among named columns, of which there may be more; None if unclear."""
    roles = [_role(name) for name in names]
    if any(roles.count(role) != 1 for role in ROLES):
        return None
    return tuple(roles.index(role) for role in ROLES)
