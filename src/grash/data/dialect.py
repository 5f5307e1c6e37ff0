"""How a text file writes its triples: separator, quotes, header, which column is what. Guessed from its first lines.

Goes to text.py. Everything guessed can be said instead (SourceOptions).
"""

from __future__ import annotations

import csv
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from grash.data.scan import WHITESPACE
from grash.errors import ConfigError

ROLES = ("head", "relation", "tail")
HEADER_WORDS = {
    "head": ("head", "h", "subject", "subj", "s", "source", "src", "from", "start", "head_id", "head_name"),
    "relation": ("relation", "r", "rel", "predicate", "pred", "p", "property", "edge", "edge_type", "type")
    + ("label", "relationship", "relation_id", "relation_name"),
    "tail": ("tail", "t", "object", "obj", "o", "target", "dst", "dest", "to", "end", "tail_id", "tail_name"),
}
SEPARATOR_NAMES = {9: "tabs", 44: "commas", 59: "semicolons", 124: "bars", WHITESPACE: "spaces or tabs"}

_WORDS = {"tab": 9, "comma": 44, "semicolon": 59, "space": 32, "whitespace": WHITESPACE}
_GUESSES = (9, 44, 59, 124, WHITESPACE)
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
    """The dialect of a file that begins with `sample` (whole lines as far as there are any)."""
    places, n_columns = parse_columns(columns)
    needed = n_columns or max(places or (2,)) + 1
    lines = [line.rstrip("\r") for line in sample.decode("utf-8", "replace").split("\n")]
    lines = [line for line in lines if line.strip()][:_N_LINES]
    chosen = parse_separator(separator)
    if chosen is None:
        chosen = _guess_separator(lines, needed, exact=n_columns > 0)
    fields = split_line(lines[0], chosen) if lines else []
    if places is None:
        places = _places_of_header(fields) if header is not False else None
        return Dialect(chosen, chosen == 44, places is not None or header is True, places or (0, 1, 2), n_columns)
    words = [fields[p] for p in places if p < len(fields)]
    if header is None:
        header = len(words) == 3 and all(_role(word) is not None for word in words)
    return Dialect(chosen, chosen == 44, header, places, n_columns)


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


def _guess_separator(lines: list[str], needed: int, *, exact: bool) -> int:
    """The separator that gives the needed number of columns in most lines; tab before comma before others."""
    best, best_share = None, 0.0
    for separator in _GUESSES:
        counts = [len(split_line(line, separator)) for line in lines]
        share = sum(n == needed if exact else n >= needed for n in counts) / max(1, len(lines))
        if share > best_share:
            best, best_share = separator, share
    if best is not None:
        return best
    text = "\n".join(lines)
    return next((s for s in (9, 44, 59, 124) if chr(s) in text), WHITESPACE if " " in text else 9)


def _role(word: str) -> str | None:
    word = word.strip().strip('"<>?').lower()
    return next((role for role in ROLES if word in HEADER_WORDS[role]), None)


def _places_of_header(fields: list[str]) -> tuple[int, ...] | None:
    """Where head, relation and tail stand if the fields are the words of a header, else None."""
    roles = [_role(field) for field in fields]
    if len(roles) == 3 and sorted(filter(None, roles)) == sorted(ROLES):
        return tuple(roles.index(role) for role in ROLES)
    return None


def places_by_name(names: Sequence[str]) -> tuple[int, ...] | None:
    """Where head, relation and tail stand among named columns, of which there may be more; None if unclear."""
    roles = [_role(name) for name in names]
    if any(roles.count(role) != 1 for role in ROLES):
        return None
    return tuple(roles.index(role) for role in ROLES)
