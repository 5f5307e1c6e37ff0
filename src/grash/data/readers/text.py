"""Text files of triples become fields and ids, block by block.

Comes from source.py (decompressed bytes). The separator, quotes, header and columns are guessed from the first lines,
unless SourceOptions give them; where the first line may be a header or a triple, the user is asked. A numba scanner
finds the fields of a block (about a nanosecond per byte); while the names of one block are looked up, other threads
read, decompress, check and scan the next one. Lines that are not triples are counted in the same pass (BadLines).
"""

from __future__ import annotations

import codecs
import csv
import logging
import re
import shlex
from collections import Counter
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
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
    is_order,
    open_source,
    parse_columns,
    parse_separator,
    separator_option,
    without_compression_suffix,
)
from grash.data.vocabulary import SLACK, Bytes, Encoder, HashedFields, hashed_fields
from grash.errors import InputError
from grash.files import atomic_file
from grash.formatting import printable

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

# Why a line is bad. With it go the number of columns found, or the wanted column that is empty.
_COLUMNS, _EMPTY, _UNCLOSED, _AFTER_QUOTE = range(4)
_NEWLINE, _RETURN, _SPACE, _TAB, _QUOTE = 10, 13, 32, 9, 34

_SEPARATOR_NAMES = {9: "tabs", 44: "commas", 59: "semicolons", 124: "bars", WHITESPACE: "spaces or tabs"}
_CANDIDATES = (9, 44, 59, 124, WHITESPACE)  # separators in order of preference
_QUOTED = (44, 59)  # separators of files in which fields may be quoted; elsewhere quotes belong to names
_BLANKS = " \t\r"
_N_LINES = 1000  # lines of the sample that a guess looks at
_N_SHOWN = 10  # bad lines
_BOM = codecs.BOM_UTF8
_NUMBER = re.compile(r"[+-]?\d+([.,]\d+)?")
_CODE = re.compile(r"(?:(\D{1,40})\d+|([\w.-]{1,40}:)\S.*)")
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Dialect:
    """How a text file writes its triples."""

    separator: int
    columns: tuple[int, ...]  # of head, relation and tail, counted from 0
    n_columns: int
    header_lines: int = 0
    separator_guessed: bool = False

    @property
    def quotes(self) -> bool:
        return self.separator in _QUOTED

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
    n_bad: int = 0  # lines that were left out

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
    """A text stream with a sample of its first lines; a byte order mark is skipped.

    `notes` counts the lines that are left out; without options, every bad line is an error.
    """

    def __init__(
        self,
        stream: SourceStream | Any,
        path: Path,
        options: SourceOptions | None = None,
        notes: Counter[str] | None = None,
    ) -> None:
        self.path, self.options, self.notes = path, options, Counter() if notes is None else notes
        self._stream = stream
        start, n_newlines = bytearray(), 0
        while len(start) < SAMPLE or (not n_newlines and len(start) <= MAX_LINE):  # one line at least
            if not (more := stream.read(SAMPLE)):
                break
            start += more
            n_newlines += more.count(b"\n")
        self._start = bytes(start.removeprefix(_BOM))
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

    def guess_dialect(self) -> Dialect:
        given = self.options or SourceOptions()
        how = {"separator": given.separator, "header": given.header, "columns": given.columns}
        return guess_dialect(self.sample, self.path, **how)  # type: ignore[arg-type]

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
        """Yield fields. After the first bad line that is not to be left out, only look for the others and raise."""
        rest, at, line = b"", self._at, self._line
        with closing(blocks), BadLines(self.path, self.options, dialect, self.sample) as bad:
            for block in blocks:
                final = not block
                raw = bytearray().join((rest, block, bytes(SLACK)))
                size = len(raw) - SLACK
                end = size if final else raw.rfind(b"\n", 0, size) + 1
                _check_utf8(raw, end, self.path, line)
                start, n_skipped, skip_lines = _skip_lines(raw, end, skip_lines)
                line, n_before = line + n_skipped, bad.count
                fields, used, n_lines = _scan(self.path, line, raw, start, end, final, dialect, wanted, bad)
                line, at, bad.n_good = line + n_lines, at + start + used, bad.n_good + fields.n_rows
                rest = bytes(raw[start + used : size])
                if len(rest) > MAX_LINE:
                    raise InputError(
                        f"{self.path}, line {line:,}: the line does not end within {MAX_LINE >> 20} MiB. This is not a "
                        f"text file of triples{' (or a quote is never closed)' if dialect.quotes else ''}."
                    )
                n_bad = bad.count - n_before
                if (bad.are_left_out or not bad.count) and (fields.n_rows or n_bad):
                    yield replace(fields, next_byte=at, next_line=line, n_bad=n_bad)


class BadLines:
    """Lines of a file that are not triples: their number, the first ones with reasons, and all in a file if wanted.

    At the end of the file they are an InputError, or with bad_lines="skip" a warning.
    """

    def __init__(self, path: Path, options: SourceOptions | None, dialect: Dialect, sample: bytes) -> None:
        self._sample = sample
        self.path, self.dialect, self.how = path, dialect, None if options is None else options.bad_lines
        self.are_left_out = self.how == "skip"
        self.count = self.n_good = 0
        self._first: list[tuple[int, str]] = []
        self._widest = 0
        self._list = Path(f"{path.name}.bad-lines.txt")
        self._stack = ExitStack()
        self._file: Any = None

    def __enter__(self) -> BadLines:
        return self

    def __exit__(self, kind: type[BaseException] | None, *details: Any) -> None:
        self._stack.__exit__(kind, *details)
        if kind is None and self.count:
            if not self.are_left_out:
                raise InputError(self._message())
            verb = "line was" if self.count == 1 else "lines were"
            _log.warning("%s: %d %s left out: %s.", self.path, self.count, verb, self._shown())

    def add(self, found: NDArray[np.int64], buffer: Bytes, first_line: int) -> None:
        """Add lines (n, 5): line counted from 0, why it is bad, with what, its first and last byte in the buffer."""
        self.count += len(found)
        self._widest = max(self._widest, int(found[found[:, 1] == _COLUMNS, 2].max(initial=0)))
        for line, kind, value, start, stop in found[: None if self.how == "list" else _N_SHOWN].tolist():
            reason = _bad_reason(kind, value, self.dialect)
            if len(self._first) < _N_SHOWN:
                self._first.append((first_line + line, reason))
            if self.how == "list":
                text = buffer[start:stop].tobytes().rstrip(b"\r\n").replace(b"\n", b"\\n")
                self._open_list().write(b"%d\t%s\t%s\n" % (first_line + line, reason.encode(), text))

    def _open_list(self) -> Any:
        if self._file is None:
            temporary = self._stack.enter_context(atomic_file(self._list))
            self._file = self._stack.enter_context(temporary.open("wb"))
        return self._file

    def _shown(self) -> str:
        by_reason: dict[str, list[str]] = {}
        for line, reason in self._first:
            by_reason.setdefault(reason, []).append(f"{line:,}")
        shown = [f"line{'s' * (len(n) > 1)} {', '.join(n)}: {reason}" for reason, n in by_reason.items()]
        return "; ".join(shown) + ("; …" if self.count > len(self._first) else "")

    def _message(self) -> str:
        dialect, (line, reason) = self.dialect, self._first[0]
        how = f"separator{' guessed' if dialect.separator_guessed else ''}: {dialect.separator_name}"
        parts = [f"{self.path}, line {line:,}: {reason}{f' ({how})' if reason.startswith('found') else ''}."]
        if self.count > 1:
            parts.append(f"In all, {self.count:,} lines cannot be read: {self._shown()}.")
        if self.how == "list":
            parts.append(f"{self._list.resolve()} lists all of them.")
        wide = self._widest > dialect.n_columns
        if not (wide or self.n_good or dialect.separator_guessed) and self._widest:
            parts.append(f"The separator does not fit: {_another_separator(self._sample, dialect.n_columns)}.")
            return " ".join(parts)
        if wide and not self.n_good:
            parts.append(_columns_hint(self._sample, dialect.separator))
            return " ".join(parts)
        if self._widest and self.count >= self.n_good:  # most lines: the guesses are wrong, not the lines
            parts += ["Give the separator with --separator."] if dialect.separator_guessed else []
            if wide:
                parts.append(_columns_hint(self._sample, dialect.separator))
        if self.how is not None:
            lists = "" if self.how == "list" else ", or list them in a file with --bad-lines list"
            parts.append(f"Correct the file, or leave such lines out with --bad-lines skip{lists}.")
        return " ".join(parts)


def _columns_hint(sample: bytes, separator: int) -> str:
    """Return how to choose columns, with those of the first line whose words name the roles as the example."""
    first = _split_lines(_first_lines(sample)[:1], separator)[0]
    found = [[name for name in first if any(_role(word) == role for word in name.split())] for role in ROLES]
    named = ",".join(name for names in found for name in names) if all(len(names) == 1 for names in found) else "0,1,2"
    return (
        f"The first line has {', '.join(first)[:200]}: give the columns of head, relation and tail, by name or counted "
        f"from 0, e.g. --columns {shlex.quote(named)}."
    )


def _another_separator(sample: bytes, n_columns: int) -> str:
    """Return what to do if the given separator divides no line: the one that divides all of the first lines, if any."""
    lines = _first_lines(sample)
    found = [s for s in _CANDIDATES if all(len(record) == n_columns for record in _split_lines(lines, s))]
    return (
        f"give --separator {separator_option(found[0])}" if found else "give another with --separator, or leave it out"
    )


def _bad_reason(kind: int, value: int, dialect: Dialect) -> str:
    if kind == _COLUMNS:
        return f"found {value} column{'' if value == 1 else 's'}, expected {dialect.n_columns}"
    if kind == _EMPTY:
        return f"the {ROLES[(0, 2, 1)[value]] if len(dialect.columns) == 3 else 'name'} is empty"
    return 'a quote (") is opened and never closed' if kind == _UNCLOSED else 'text follows a closing quote (")'


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


def read_text_file(path: Path, encoder: Encoder, options: SourceOptions, notes: Counter[str]) -> Triples:
    """Return the triples (n, 3) of a text file of names; `notes` counts the lines left out."""
    with open_source(path) as stream:
        source = TextSource(stream, path, options, notes)
        return read_triples(source, source.guess_dialect(), lambda fields: encoder.encode_fields(*fields.groups))


def read_triples(
    source: TextSource, dialect: Dialect, encode: Callable[[Fields], Triples], *, skip_lines: int = 0
) -> Triples:
    """Return the triples (n, 3) of a text source; `encode` turns each block of fields into ids."""
    with closing(source.triple_fields(dialect, skip_lines=skip_lines + dialect.header_lines)) as blocks:
        return concatenate_blocks(encode(fields) for fields in _with_notes(blocks, source.notes) if fields.n_rows)


def _with_notes(blocks: Iterable[Fields], notes: Counter[str]) -> Iterator[Fields]:
    """Yield the same blocks, and count the lines they left out."""
    for fields in blocks:
        if fields.n_bad:
            notes["bad_lines_skipped"] += fields.n_bad
        yield fields


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
    columns: str | Sequence[int | str] | None = None,
) -> Dialect:
    """Return the dialect of a file that begins with `sample`. Raises InputError if it is unclear.

    The separator is guessed without regard to the places in `columns`, so a column that does not exist is an
    InputError instead of being found with another separator. Every line must have as many columns as the header, or
    three if `columns` does not choose some, or as many as most of the first lines.
    """
    wanted = parse_columns(columns)
    by_name = wanted is not None and isinstance(wanted[0], str)
    chosen, lines = parse_separator(separator), _first_lines(sample)
    guessed = chosen is None
    if chosen is None:
        chosen = _guess_separator(path, lines, header, wanted if by_name else None, columns is None)
    records = _split_lines(lines, chosen)
    first = records[0] if records else []
    n_columns = 3
    if wanted is None and header is not False and (named := columns_by_name(first)):
        header, positions, n_columns = True, named, len(first)
    elif by_name:
        header, positions, n_columns = True, named_columns(path, first, wanted, header), len(first)  # type: ignore[arg-type]
    else:
        positions = (0, 1, 2) if wanted is None else wanted  # type: ignore[assignment]
        if columns is not None and not is_order(columns):
            n_columns = len(first) if header else _usual_width(records)
            _check_columns_exist(path, positions, n_columns, Dialect(chosen, positions, n_columns))
        elif header and first and len(first) != n_columns:
            raise InputError(
                f"{path}: the header has {len(first)} columns ({', '.join(first)[:200]}), expected 3. Choose three of "
                f"them with --columns, by name or counted from 0."
            )
    if header is None:
        header = _first_line_is_header(path, records, positions, n_columns)
    header_lines = 1 + sum(field.count("\n") for field in first) if header else 0
    return Dialect(chosen, positions, n_columns, header_lines, guessed)


def columns_by_name(names: Sequence[str]) -> tuple[int, ...] | None:
    """Return the columns of head, relation and tail by the names of all columns, or None if they are unclear."""
    roles = [_role(name) for name in names]
    if any(roles.count(role) != 1 for role in ROLES):
        return None
    return tuple(roles.index(role) for role in ROLES)


def _first_line_is_header(path: Path, records: list[list[str]], positions: tuple[int, ...], n_columns: int) -> bool:
    """Return whether the first line names the columns, judged by the lines below it. Raises InputError if in doubt.

    A line whose entities or relation occur again below is a triple. Otherwise two columns of numbers below other names
    make it a header. One column of numbers, two columns of IRIs or codes such as Q42, or a word that names a column
    leave doubt.
    """
    rows = [[record[p] for p in positions] for record in records if len(record) == n_columns]
    if len(rows) < 2 or len(records[0]) != n_columns:
        return False
    first, heads, relations, tails = rows[0], *map(list, zip(*rows[1:]))
    roles = [_role(word) for word in first]
    if None not in roles:
        return True
    if first[1] in relations or not {first[0], first[2]}.isdisjoint({*heads, *tails}):
        return False
    kinds = [(_kind_of_all(values), _kind(word)) for values, word in zip((heads, relations, tails), first)]
    differs = [below for below, own in kinds if below and (own is None or (below == "number" != own))]
    if differs.count("number") > 1 and len(rows) > 3:
        return True
    # a single letter is no sign: small graphs are often written with them
    named = any(role and len(_normalized(word)) > 1 for role, word in zip(roles, first))
    if named or len(differs) >= (1 if "number" in differs and len(rows) > 2 else 2):
        shown = [", ".join(row) for row in rows[:2]]
        raise InputError(
            f"{path}: the first line ({shown[0]}) may be a header or a triple. With --header (header=True) the first "
            f"triple is ({shown[1]}); with --no-header (header=False) it is ({shown[0]}). Give one of the two."
        )
    return False


def _kind_of_all(values: list[str]) -> str | None:
    """Return the kind of all values, "codes" for several kinds, or None if a value has none."""
    kinds = set(map(_kind, values))
    return None if None in kinds else kinds.pop() if len(kinds) == 1 else "codes"


def _kind(value: str) -> str | None:
    """Return what a value looks like: a number, an IRI, a path, a code (Q42, gene:BRCA); None for any other name."""
    if _NUMBER.fullmatch(value.strip()):
        return "number"
    if "://" in value:
        return "IRI"
    code = _CODE.fullmatch(value)
    return "path" if value.startswith("/") else code[1] or code[2] if code else None


def describe_text_format(entry: dict[str, Any]) -> str:
    """Return an entry of read_as in words: separated by tabs, no header, columns 0, 1, 2 (head, relation, tail)."""
    header = "a header" if entry["header"] else "no header"
    columns = ", ".join(map(str, entry["columns"]))
    return f"separated by {entry['separator']}, {header}, columns {columns} (head, relation, tail)"


def split_line(line: str, separator: int) -> list[str]:
    """Return the fields of one line."""
    return (_split_lines([line], separator) or [[]])[0]


def _split_lines(lines: list[str], separator: int) -> list[list[str]]:
    """Return the fields of each record. A line that cannot be read is split at the separators."""
    if separator == WHITESPACE:
        return [[field for field in line.replace("\t", " ").split(" ") if field] for line in lines]
    if separator not in _QUOTED or not any('"' in line for line in lines):
        return [line.split(chr(separator)) for line in lines]
    records: list[list[str]] = []
    at = 0
    while at < len(lines):
        reader = csv.reader([f"{line}\n" for line in lines[at:]], delimiter=chr(separator), strict=True)
        n_read = 0
        try:
            for record in reader:
                records.append(record)
                n_read = reader.line_num
            break
        except csv.Error:  # the scanner reports it with its line
            records.append(lines[at + n_read].split(chr(separator)))
            at += n_read + 1
    return records


def _first_lines(sample: bytes) -> list[str]:
    """Return the first lines that are not blank."""
    lines = [line.rstrip("\r") for line in sample.decode("utf-8", "replace").split("\n")]
    return [line for line in lines if line.strip(_BLANKS)][:_N_LINES]


def _guess_separator(
    path: Path, lines: list[str], header: bool | None, names: Sequence[int | str] | None, any_columns: bool
) -> int:
    """Return the separator with which most lines have the same number of columns, three or more.

    One with which the first line names the columns comes first. Of equal ones, three columns are preferred. If two
    divide every line into three columns, it is tabs, which are rare in names; in a .csv file, or without tabs, the user
    is asked. Spaces inside names look like separators; if every line has tabs, spaces are not used.
    """
    best, best_score = None, (0.0, False, False)
    divide_all = []
    all_tabs = all(_has_single_tabs(line) for line in lines)
    for separator in _CANDIDATES:
        records = _split_lines(lines, separator)
        first, width = records[0] if records else [], _usual_width(records)
        share = sum(len(record) == width for record in records) / max(1, len(records))
        if separator != WHITESPACE and share > 0.5 and len(first) == width > 2 and header is not False:
            found = {_normalized(name) for name in first}
            if (names and found >= {_normalized(str(name)) for name in names}) or (
                any_columns and width > 3 and columns_by_name(first)
            ):
                return separator
        cuts_quotes = any(field.count('"') % 2 for record in records for field in record)
        if share == 1 and width == 3 and separator != WHITESPACE and not cuts_quotes:
            divide_all.append(separator)
        score = (share, all_tabs and separator == 9, width == 3)
        if width >= 3 and score > best_score:
            best, best_score = separator, score
    if len(divide_all) > 1:
        return _one_of_separators(path, lines[0], divide_all)
    if best == WHITESPACE and all_tabs:
        return 9
    if best is not None:
        return best
    text = "\n".join(lines)
    return next((s for s in _CANDIDATES if s > 0 and chr(s) in text), WHITESPACE if " " in text else 9)


def _one_of_separators(path: Path, line: str, separators: list[int]) -> int:
    """Return the one of several possible separators that is likely. Raises InputError if none is."""
    if 9 in separators and Path(without_compression_suffix(path.name)).suffix.lower() != ".csv":
        return 9
    readings = (f"{_SEPARATOR_NAMES[s]} ({' | '.join(split_line(line, s))})" for s in separators)
    raise InputError(
        f"{path}: every line has three columns with more than one separator: {', '.join(readings)}. Give the right one "
        f"with --separator."
    )


def _usual_width(records: list[list[str]]) -> int:
    widths = Counter(map(len, records))
    return widths.most_common(1)[0][0] if widths else 0


def named_columns(
    path: Path | str, header: list[str], names: Sequence[str], given: bool | None = None, *,
    where: str = " in its first line", option: str = "--columns",
) -> tuple[int, ...]:  # fmt: skip
    """Return the columns of a header by their names, in any case. where, option: for the message of an error."""
    found = [_normalized(name) for name in header]
    if given is False:
        raise InputError(f"{path}: columns={','.join(names)} are names, which need a header. Leave out --no-header.")
    for name in names:
        if found.count(_normalized(name)) != 1:
            problem = "no column" if _normalized(name) not in found else "more than one column"
            raise InputError(
                f"{path} has {problem} {name!r}{where} ({printable(', '.join(header))}). Give three of these names, or "
                f"places counted from 0, with {option}."
            )
    return tuple(found.index(_normalized(name)) for name in names)


def _has_single_tabs(line: str) -> bool:
    """Return whether a line has single tabs between fields; runs of tabs would be an alignment."""
    return "\t" in line and all(field.strip() for field in line.split("\t"))


def _check_columns_exist(path: Path, columns: tuple[int, ...], n: int, dialect: Dialect) -> None:
    """Raise InputError if the lines do not have a wanted column."""
    if not 0 < n <= max(columns):
        return
    found = "1 column, number 0" if n == 1 else f"{n} columns, numbers 0 to {n - 1}"
    raise InputError(
        f"{path} has {found} (separated by {dialect.separator_name}), but columns={','.join(map(str, columns))} needs "
        f"column {max(columns)}. Columns are counted from 0. Give other columns with --columns, or the separator with "
        f"--separator."
    )


def _normalized(word: str) -> str:
    return word.strip().strip('"<>?').lower()


def _role(word: str) -> str | None:
    word = _normalized(word)
    return next((role for role in ROLES if word in HEADER_WORDS[role]), None)


def _scan(
    path: Path,
    line: int,
    raw: bytearray,
    start: int,
    end: int,
    final: bool,
    dialect: Dialect,
    wanted: Groups,
    bad: BadLines,
) -> tuple[Fields, int, int]:
    """Return (fields of the complete lines of raw[start:end], bytes used, lines used); add the bad ones to `bad`."""
    buffer = np.frombuffer(raw, np.uint8)[start:]
    columns = np.array([column for group in wanted for column in group], np.int64)
    n_lines = raw.count(b"\n", start, end) + 1
    starts = np.empty((n_lines, len(columns)), np.int32)
    lengths, counts, found = np.empty_like(starts), np.zeros(4, np.int64), np.empty((n_lines, 5), np.int64)
    how = (dialect.separator, dialect.quotes, columns, dialect.n_columns)
    _scan_lines(buffer, end - start, final, *how, starts, lengths, found, counts)
    n_rows, n_bad, n_lines = counts.tolist()[:3]
    if n_bad:
        bad.add(found[:n_bad], buffer, line)
    groups, at = [], 0
    for group in wanted:
        part = (slice(n_rows), slice(at, at + len(group)))
        groups.append(hashed_fields(buffer, starts[part].ravel(), lengths[part].ravel()))
        at += len(group)
    return Fields(path, line, n_rows, tuple(groups)), int(counts[3]), n_lines


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
    bad: NDArray[np.int64],
    counts: NDArray[np.int64],
) -> None:
    """Find the fields of buffer[:end], which ends with a newline unless it is the `final` one.

    starts and lengths (rows, k) receive the k wanted columns; quoted fields are unquoted in place. bad (m, 5) receives
    the lines that are not rows: line, why, with what, first and last byte. counts: rows, bad lines, lines used, bytes
    used. Lines of spaces and tabs only are skipped, unless the line is the field. If a quoted field continues beyond
    the end, the line is left for the next block. After a wrong quote, the next line of text is tried.
    """
    targets = np.full(max(wanted.max() + 1, n_columns) + 1, -1, np.int64)
    for k in range(wanted.size):
        targets[wanted[k]] = k
    row, n_bad, line, at = 0, 0, 0, 0
    while at < end:
        begin, column, n_lines, more, wrong, value = at, 0, 1, True, -1, 0
        may_be_blank = buffer[at] <= _SPACE and separator != WHOLE_LINE
        if may_be_blank and _at_line_end(buffer, _skip_blanks(buffer, at, end), end):
            at = _past_newline(buffer, at, end)
            line += 1
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
                    wrong = _UNCLOSED if stop == end else _AFTER_QUOTE
                    break
            else:
                stop, at = _plain_field(buffer, at, end, separator)
            target = targets[min(column, targets.size - 1)]
            if target >= 0:
                starts[row, target] = start
                lengths[row, target] = start - stop if doubled else stop - start  # negative: has doubled quotes
            column += 1
            more = at < end and buffer[at] != _NEWLINE
            at += 1
        if wrong == _UNCLOSED and not final:
            counts[0], counts[1], counts[2], counts[3] = row, n_bad, line, begin
            return
        if wrong >= 0:
            at, n_lines = _past_newline(buffer, begin, end), 1
        elif column != n_columns:
            wrong, value = _COLUMNS, column
        else:
            for k in range(wanted.size):
                if lengths[row, k] == 0 and wrong < 0:
                    wrong, value = _EMPTY, k
        if wrong >= 0:
            bad[n_bad, 0], bad[n_bad, 1], bad[n_bad, 2], bad[n_bad, 3] = line, wrong, value, begin
            bad[n_bad, 4] = min(at, end)
            n_bad += 1
        else:
            for k in range(wanted.size):
                if lengths[row, k] < 0:
                    lengths[row, k] = _undouble(buffer, starts[row, k], -lengths[row, k])
            row += 1
        line += n_lines
    counts[0], counts[1], counts[2], counts[3] = row, n_bad, line, min(at, end)


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
