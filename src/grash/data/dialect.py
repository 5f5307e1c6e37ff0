"""How a text file writes its triples: separator, quotes, header, which column is what. Guessed from its first lines.

Goes to text.py. Everything guessed can be said instead (SourceOptions).
"""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from grash.data.scan import WHITESPACE
from grash.errors import ConfigError, InputError

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
