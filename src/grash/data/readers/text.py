"""Text files of triples become fields and ids, block by block.

Comes from streams.py (decompressed bytes). The separator, quotes, header and columns are guessed from the first lines,
unless SourceOptions give them. A numba scanner finds the fields of a block (about a nanosecond per byte); while the
names of one block are looked up, other threads read, decompress, check and scan the next one.
"""

from __future__ import annotations

import codecs
import csv
import io
from collections.abc import Callable, Generator, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numba import njit
from numpy.typing import NDArray

from grash.data.arrays import Integer, Triples
from grash.data.dataset import ROLES
from grash.data.readers.source import (
    WHITESPACE,
    SourceOptions,
    SourceStream,
    open_source,
    parse_columns,
    parse_separator,
)
from grash.data.vocabulary import SLACK, Bytes, Encoder, HashedFields, hashed_fields
from grash.errors import InputError

Groups = tuple[tuple[int, ...], ...]  # of columns
T = TypeVar("T")

WHOLE_LINE = -2  # separator: the line is the only field
BLOCK = 1 << 24
MAX_LINE = 1 << 26
SAMPLE = 1 << 16
HEADER_WORDS = {
    "head": ("head", "h", "subject", "subj", "s", "source", "src", "from", "start", "head_id", "head_name"),
    "relation": ("relation", "r", "rel", "predicate", "pred", "p", "property", "edge", "edge_type", "type")
    + ("label", "relationship", "relation_id", "relation_name"),
    "tail": ("tail", "t", "object", "obj", "o", "target", "dst", "dest", "to", "end", "tail_id", "tail_name"),
}

# What stopped a scan (status[0]); status[1] is the line, counted from 0; status[2] is the number of columns found, or
# the wanted column that is empty.
_FINE, _COLUMNS, _EMPTY, _UNCLOSED, _AFTER_QUOTE = range(5)
_NEWLINE, _RETURN, _SPACE, _TAB, _QUOTE = 10, 13, 32, 9, 34

_SEPARATOR_NAMES = {9: "tabs", 44: "commas", 59: "semicolons", 124: "bars", WHITESPACE: "spaces or tabs"}
_CANDIDATES = (9, 44, 59, 124)  # separators of one character, in order of preference
_BLANKS = " \t\r"
_N_LINES = 200  # lines of the sample that a guess looks at
_BOM = codecs.BOM_UTF8


@dataclass(frozen=True)
class Dialect:
    """How a text file writes its triples."""

    separator: int
    quotes: bool
    header: bool
    columns: tuple[int, ...]  # of head, relation and tail, counted from 0
    n_columns: int  # exact number of columns; 0 if a file may have more than the wanted ones
    separator_guessed: bool = False

    @property
    def separator_name(self) -> str:
        return _SEPARATOR_NAMES.get(self.separator, repr(chr(max(0, self.separator))))


@dataclass(frozen=True, eq=False)
class Fields:
    """The wanted columns of some lines, in groups: one HashedFields of rows × columns for each group."""

    path: Path
    first_line: int
    n_rows: int
    groups: tuple[HashedFields, ...]
    next_byte: int = 0  # where the text continues after these lines
    next_line: int = 1

    def text(self, row: int, group: int, column: int = 0) -> str:
        buffer, starts, lengths, _ = self.groups[group]
        at = row * (len(starts) // self.n_rows) + column
        return buffer[starts[at] : starts[at] + lengths[at]].tobytes().decode("utf-8", "replace")

    def location(self, row: int) -> str:
        """Return file and line of a row, for errors."""
        buffer, starts = self.groups[0][:2]
        before = buffer[: starts[row * (len(starts) // self.n_rows)]]
        line = self.first_line + int(np.count_nonzero(before == _NEWLINE))
        return f"{self.path}, line {line:,}"


class TextSource:
    """A text stream with a sample of its first lines; a byte order mark is skipped."""

    def __init__(self, stream: SourceStream | Any, path: Path) -> None:
        self.path = path
        self._stream = stream
        self._start = stream.read(SAMPLE)
        while 0 < len(self._start) < SAMPLE and (more := stream.read(SAMPLE - len(self._start))):
            self._start += more
        self._start = self._start.removeprefix(_BOM)
        self._at, self._line = 0, 1

    def resume_at(self, byte: int, line: int) -> None:
        """Skip the text before a position (next_byte, next_line) of Fields of an earlier reading."""
        beyond = byte - len(self._start)
        self._start = self._start[byte:]
        if beyond > 0:
            self._stream.skip(beyond)
        self._at, self._line = byte, line

    @property
    def sample(self) -> bytes:
        """The first lines, complete ones if there is at least one."""
        cut = self._start.rfind(b"\n") + 1
        return self._start[:cut] if cut and len(self._start) >= SAMPLE - len(_BOM) else self._start

    def guess_dialect(self, options: SourceOptions) -> Dialect:
        given = {"separator": options.separator, "header": options.header, "columns": options.columns}
        return guess_dialect(self.sample, self.path, **given)  # type: ignore[arg-type]

    def triple_fields(self, dialect: Dialect, *, skip_lines: int) -> Generator[Fields, None, None]:
        """Yield the fields in two groups: head and tail, and relation. To be closed."""
        head, relation, tail = dialect.columns
        return self.fields(dialect, wanted=((head, tail), (relation,)), skip_lines=skip_lines)

    def fields(self, dialect: Dialect, *, wanted: Groups, skip_lines: int = 0) -> Generator[Fields, None, None]:
        """Yield the fields of the wanted groups of columns, after `skip_lines` lines. To be closed."""
        return in_background(self._scan_blocks(in_background(self._blocks()), dialect, wanted, skip_lines))

    def _blocks(self) -> Generator[bytes, None, None]:
        """Yield the text; an empty block ends it."""
        if self._start:
            yield self._start
        while block := self._stream.read(BLOCK):
            yield block
        yield b""

    def _scan_blocks(
        self, blocks: Generator[bytes, None, None], dialect: Dialect, wanted: Groups, skip_lines: int
    ) -> Generator[Fields, None, None]:
        rest, at, line = b"", self._at, self._line
        with closing(blocks):
            for block in blocks:
                final = not block
                raw = bytearray().join((rest, block, bytes(SLACK)))
                size = len(raw) - SLACK
                end = size if final else raw.rfind(b"\n", 0, size) + 1
                _check_utf8(raw, end, self.path, line)
                start, n_skipped, skip_lines = _skip_lines(raw, end, skip_lines)
                line += n_skipped
                fields, used, n_lines = _scan(self.path, line, raw, start, end, final, dialect, wanted)
                line, at = line + n_lines, at + start + used
                rest = bytes(raw[start + used : size])
                if len(rest) > MAX_LINE:
                    raise InputError(
                        f"{self.path}, line {line:,}: the line does not end within {MAX_LINE >> 20} MiB. This is not a "
                        f"text file of triples{' (or a quote is never closed)' if dialect.quotes else ''}."
                    )
                if fields.n_rows:
                    yield replace(fields, next_byte=at, next_line=line)


def in_background(items: Generator[T, None, None]) -> Generator[T, None, None]:
    """Yield the same items; a thread prepares the next one while the caller works on this one.

    Close it (contextlib.closing) if it is not read to the end, so that its thread ends.
    """
    end: Any = object()
    thread = ThreadPoolExecutor(1)
    try:
        following = thread.submit(next, items, end)
        while (item := following.result()) is not end:
            following = thread.submit(next, items, end)
            yield item
    finally:
        thread.shutdown()
        items.close()


def read_text_file(path: Path, encoder: Encoder, options: SourceOptions) -> Triples:
    """Return the triples (n, 3) of a text file of names."""
    with open_source(path) as stream:
        source = TextSource(stream, path)
        return read_triples(source, source.guess_dialect(options), lambda fields: encoder.encode_fields(*fields.groups))


def read_triples(
    source: TextSource, dialect: Dialect, encode: Callable[[Fields], Triples], *, skip_lines: int = 0
) -> Triples:
    """Return the triples (n, 3) of a text source; `encode` turns each block of fields into ids."""
    with closing(source.triple_fields(dialect, skip_lines=skip_lines + dialect.header)) as blocks:
        return concatenate_blocks(map(encode, blocks))


def concatenate_blocks(blocks: Iterable[Triples]) -> Triples:
    """Return blocks (n_i, 3) as one array; each block is freed after it is copied."""
    waiting = list(blocks)
    waiting.reverse()
    if len(waiting) == 1:
        return waiting[0]
    triples = np.empty((sum(map(len, waiting)), 3), np.int32)
    at = 0
    while waiting:
        block = waiting.pop()
        triples[at : at + len(block)] = block
        at += len(block)
    return triples


def guess_dialect(
    sample: bytes,
    path: Path,
    *,
    separator: str | None = None,
    header: bool | None = None,
    columns: str | Sequence[int] | None = None,
) -> Dialect:
    """Return the dialect of a file that begins with `sample`.

    The separator is guessed without regard to `columns`, so a column that does not exist is an InputError instead of
    being found with another separator.
    """
    positions, n_columns = parse_columns(columns)
    lines = _first_lines(sample)
    given = parse_separator(separator)
    chosen = given
    if chosen is None:
        wide = columns is None and header is not False
        chosen = (_separator_of_header(lines) if wide else None) or _guess_separator(lines, exact=n_columns > 0)
    fields = split_line(lines[0], chosen) if lines else []
    if positions is None:
        positions = columns_by_name(fields) if header is not False else None
        n_columns = len(fields) if positions else n_columns
        header, positions = positions is not None or header is True, positions or (0, 1, 2)
        return Dialect(chosen, chosen == 44, header, positions, n_columns, given is None)
    if n_columns == 0 and b"\n" in sample:
        _check_columns_exist(sample, lines, path, Dialect(chosen, False, False, positions, 0))
    words = [fields[p] for p in positions if p < len(fields)]
    if header is None:
        header = len(words) == 3 and all(_role(word) is not None for word in words)
    return Dialect(chosen, chosen == 44, header, positions, n_columns, given is None)


def columns_by_name(names: Sequence[str]) -> tuple[int, ...] | None:
    """Return the columns of head, relation and tail by the names of all columns, or None if they are unclear."""
    roles = [_role(name) for name in names]
    if any(roles.count(role) != 1 for role in ROLES):
        return None
    return tuple(roles.index(role) for role in ROLES)


def possible_header(sample: bytes, dialect: Dialect) -> list[str] | None:
    """Return the first line if it is read as a triple but has a header word that occurs in no other line."""
    rows = [split_line(line, dialect.separator) for line in _first_lines(sample)]
    if dialect.header or len(rows) < 3 or len(rows[0]) <= max(dialect.columns):
        return None
    others = {_normalized(field) for row in rows[1:] for field in row}
    first = [rows[0][column] for column in dialect.columns]
    # a single letter is no sign: small graphs are often written with them
    doubtful = any(_role(f) and len(_normalized(f)) > 1 and _normalized(f) not in others for f in first)
    return first if doubtful else None


def describe_text_format(entry: dict[str, Any]) -> str:
    """Return an entry of read_as in words: separated by tabs, no header, columns 0, 1, 2 (head, relation, tail)."""
    header = "a header" if entry["header"] else "no header"
    columns = ", ".join(map(str, entry["columns"]))
    return f"separated by {entry['separator']}, {header}, columns {columns} (head, relation, tail)"


def split_line(line: str, separator: int) -> list[str]:
    """Return the fields of one line."""
    if separator == WHITESPACE:
        return line.split()
    if separator == 44:
        try:
            return next(csv.reader([line]), [])
        except csv.Error:  # good enough for a guess; the scanner reports the error with its line
            return line.split(",")
    return line.split(chr(separator))


def _first_lines(sample: bytes) -> list[str]:
    """Return the first lines that are not blank."""
    lines = [line.rstrip("\r") for line in sample.decode("utf-8", "replace").split("\n")]
    return [line for line in lines if line.strip(_BLANKS)][:_N_LINES]


def _separator_of_header(lines: list[str]) -> int | None:
    """Return the separator with which the first line names head, relation and tail among more columns."""
    for separator in _CANDIDATES:
        n = len(fields := split_line(lines[0], separator)) if lines else 0
        if n > 3 and columns_by_name(fields):
            same = sum(len(split_line(line, separator)) == n for line in lines)
            if 2 * same > len(lines):
                return separator
    return None


def _guess_separator(lines: list[str], *, exact: bool) -> int:
    """Return the separator that gives three columns (or more, if not exact) in most lines; tab is preferred.

    Spaces inside names look like separators; if every line has tabs, spaces are not used.
    """
    best, best_share = None, 0.0
    for separator in (*_CANDIDATES, WHITESPACE):
        counts = [len(split_line(line, separator)) for line in lines]
        share = sum(n == 3 if exact else n >= 3 for n in counts) / max(1, len(lines))
        if share > best_share:
            best, best_share = separator, share
    if best == WHITESPACE and all(_has_single_tabs(line) for line in lines):
        return 9
    if best is not None:
        return best
    text = "\n".join(lines)
    return next((s for s in _CANDIDATES if chr(s) in text), WHITESPACE if " " in text else 9)


def _has_single_tabs(line: str) -> bool:
    """Return whether a line has single tabs between fields; runs of tabs would be an alignment."""
    return "\t" in line and all(field.strip() for field in line.split("\t"))


def _check_columns_exist(sample: bytes, lines: list[str], path: Path, dialect: Dialect) -> None:
    """Raise InputError if none of the first lines has a wanted column."""
    rows = [split_line(line, dialect.separator) for line in lines]
    if dialect.separator == 44 and b'"' in sample:  # a quoted field may continue on the next line
        try:
            rows = list(csv.reader(io.StringIO(sample.decode("utf-8", "replace"))))
        except csv.Error:
            return  # reported with the line when the file is read
    n = max(map(len, rows), default=0)
    if not 0 < n <= max(dialect.columns):
        return
    found = "1 column, number 0" if n == 1 else f"{n} columns, numbers 0 to {n - 1}"
    raise InputError(
        f"{path} has {found} (separated by {dialect.separator_name}), but columns="
        f"{','.join(map(str, dialect.columns))} needs column {max(dialect.columns)}. Columns are counted from 0. Give "
        f"other columns with --columns, or the separator with --separator."
    )


def _normalized(word: str) -> str:
    return word.strip().strip('"<>?').lower()


def _role(word: str) -> str | None:
    word = _normalized(word)
    return next((role for role in ROLES if word in HEADER_WORDS[role]), None)


def _scan(
    path: Path, line: int, raw: bytearray, start: int, end: int, final: bool, dialect: Dialect, wanted: Groups
) -> tuple[Fields, int, int]:
    """Return (fields of the complete lines of raw[start:end], bytes used, lines used)."""
    buffer = np.frombuffer(raw, np.uint8)[start:]
    columns = np.array([column for group in wanted for column in group], np.int64)
    starts = np.empty((raw.count(b"\n", start, end) + 1, len(columns)), np.int32)
    lengths, status = np.empty_like(starts), np.zeros(3, np.int64)
    how = (dialect.separator, dialect.quotes, columns, dialect.n_columns)
    n_rows, used = _scan_lines(buffer, end - start, final, *how, starts, lengths, status)
    if status[0] != _FINE:
        raise InputError(_scan_error(f"{path}, line {line + int(status[1]):,}", status, dialect))
    groups, at = [], 0
    for group in wanted:
        part = (slice(n_rows), slice(at, at + len(group)))
        groups.append(hashed_fields(buffer, starts[part].ravel(), lengths[part].ravel()))
        at += len(group)
    return Fields(path, line, n_rows, tuple(groups)), used, int(status[1])


def _skip_lines(raw: bytearray, end: int, n: int) -> tuple[int, int, int]:
    """Return (position after n lines with content and the blank ones before them, lines skipped, n still to skip)."""
    at, skipped = 0, 0
    while n > 0 and at < end:
        newline = raw.find(b"\n", at, end)
        stop = end if newline < 0 else newline
        n -= 1 if raw[at:stop].strip(b" \t\r") else 0
        at, skipped = min(stop + 1, end), skipped + 1
    return at, skipped, n


def _check_utf8(raw: bytearray, end: int, path: Path, line: int) -> None:
    if raw.isascii():
        return
    try:
        codecs.utf_8_decode(memoryview(raw)[:end], "strict", True)
    except UnicodeDecodeError as error:
        line += raw.count(b"\n", 0, error.start)
        raise InputError(
            f"{path}, line {line:,}: the byte 0x{raw[error.start]:02x} is not UTF-8 ({error.reason}). "
            f"Convert the file to UTF-8."
        ) from None


def _scan_error(location: str, status: NDArray[np.int64], dialect: Dialect) -> str:
    code, found = int(status[0]), int(status[2])
    if code == _COLUMNS:
        return f"{location}: {_width_error(found, dialect)}"
    if code == _EMPTY:
        what = ROLES[(0, 2, 1)[found]] if len(dialect.columns) == 3 else "name"
        return f"{location}: the {what} is empty. Every field needs a name."
    if code == _UNCLOSED:
        return f'{location}: a quote (") is opened and never closed.'
    return f'{location}: text follows a closing quote ("). Write a quote inside a field twice.'


def _width_error(found: int, dialect: Dialect) -> str:
    needed = dialect.n_columns or max(dialect.columns) + 1
    expected = f"{needed}{'' if dialect.n_columns else ' or more'}"
    how = "separator guessed" if dialect.separator_guessed else "separator"
    advice = []
    if dialect.separator_guessed:
        advice.append("the separator with --separator")
    if found > needed or not dialect.n_columns:
        advice.append("the columns of head, relation and tail, counted from 0, with --columns")
    return (
        f"found {found} column{'' if found == 1 else 's'}, expected {expected} ({how}: {dialect.separator_name})."
        + (f" Give {', or '.join(advice)}." if advice else "")
    )


@njit(cache=True, nogil=True)
def _scan_lines(
    buffer: Bytes,
    end: Integer,
    final: bool,
    separator: Integer,
    quotes: bool,
    wanted: NDArray[np.int64],
    n_columns: Integer,
    starts: NDArray[np.int32],
    lengths: NDArray[np.int32],
    status: NDArray[np.int64],
) -> tuple[Integer, Integer]:
    """Return (rows found, bytes used) of buffer[:end], which ends with a newline unless it is the `final` one.

    starts and lengths (rows, k) receive the k wanted columns; quoted fields are unquoted in place. Lines of spaces and
    tabs only are skipped, unless the line is the field. n_columns is the exact number of columns, or 0 for any number
    with the wanted ones. If a quoted field continues beyond the end, the line is left for the next block.
    """
    targets = np.full(max(wanted.max() + 1, n_columns) + 1, -1, np.int64)
    for k in range(wanted.size):
        targets[wanted[k]] = k
    row, at = 0, 0
    status[0], status[1] = _FINE, 0
    while at < end:
        begin, column, n_lines, more = at, 0, 1, True
        may_be_blank = buffer[at] <= _SPACE and separator != WHOLE_LINE
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
                    status[0] = _FINE if stop == end and not final else _UNCLOSED if stop == end else _AFTER_QUOTE
                    return row, begin
            else:
                stop, at = _plain_field(buffer, at, end, separator)
            target = targets[min(column, targets.size - 1)]
            if target >= 0:
                starts[row, target] = start
                lengths[row, target] = start - stop if doubled else stop - start  # negative: has doubled quotes
            column += 1
            more = at < end and buffer[at] != _NEWLINE
            at += 1
        if (n_columns > 0 and column != n_columns) or column < targets.size - 1:
            status[0], status[2] = _COLUMNS, column
            return row, begin
        for k in range(wanted.size):
            if lengths[row, k] < 0:
                lengths[row, k] = _undouble(buffer, starts[row, k], -lengths[row, k])
            if lengths[row, k] == 0:
                status[0], status[2] = _EMPTY, k
                return row, begin
        row += 1
        status[1] += n_lines
    return row, min(at, end)


@njit(cache=True, nogil=True)
def _plain_field(buffer: Bytes, at: Integer, end: Integer, separator: Integer) -> tuple[Integer, Integer]:
    """Return (end of the field, position of what ends it); a return before a newline does not belong to the field."""
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
    buffer: Bytes, start: Integer, end: Integer, separator: Integer
) -> tuple[Integer, Integer, Integer, bool]:
    """Return (end of the field, position of what ends it, newlines inside, whether it has doubled quotes).

    The position is -1 if there is no closing quote (the end is then that of the buffer), or if anything but a
    separator or newline follows it.
    """
    stop, n_breaks, doubled = _closing_quote(buffer, start, end)
    at = stop + 1
    if at < end and buffer[at] == _RETURN and (at + 1 == end or buffer[at + 1] == _NEWLINE):
        at += 1
    if stop == end or (at < end and buffer[at] != separator and buffer[at] != _NEWLINE):
        at = -1
    return stop, at, n_breaks, doubled


@njit(cache=True, nogil=True)
def _skip_blanks(buffer: Bytes, at: Integer, end: Integer) -> Integer:
    while at < end and (buffer[at] == _SPACE or buffer[at] == _TAB):
        at += 1
    return at


@njit(cache=True, nogil=True)
def _at_line_end(buffer: Bytes, at: Integer, end: Integer) -> bool:
    if at >= end or buffer[at] == _NEWLINE:
        return True
    return buffer[at] == _RETURN and (at + 1 >= end or buffer[at + 1] == _NEWLINE)


@njit(cache=True, nogil=True)
def _past_newline(buffer: Bytes, at: Integer, end: Integer) -> Integer:
    while at < end and buffer[at] != _NEWLINE:
        at += 1
    return at + 1


@njit(cache=True, nogil=True)
def _closing_quote(buffer: Bytes, at: Integer, end: Integer) -> tuple[Integer, Integer, bool]:
    """Return (position of the closing quote, or `end`; newlines before it; whether there are doubled quotes)."""
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
def _undouble(buffer: Bytes, start: Integer, length: Integer) -> Integer:
    """Turn "" into " within a field and return its new length."""
    to, at = start, start
    while at < start + length:
        buffer[to] = buffer[at]
        at += 2 if buffer[at] == _QUOTE else 1
        to += 1
    return to - start
