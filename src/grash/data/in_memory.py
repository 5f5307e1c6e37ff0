"""Triples that a program holds (sequences, arrays, data frames) become ids. Goes to prepare.py, as a file's would."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from grash.data.dataset import MAX_ID, SPLITS
from grash.data.dialect import ROLES, places_by_name
from grash.data.encode import Encoder, Triples
from grash.data.options import SourceOptions
from grash.errors import ConfigError, InputError

_OF_FILES = ("separator", "header", "columns", "literals", "format")
Columns = list[Any]  # head, relation, tail: a list or an array (n,) each


def splitting_options(options: Mapping[str, Any]) -> SourceOptions:
    """The options for duplicates and splits; ConfigError for one that says how a file is read."""
    for name in _OF_FILES:
        if name in options:
            raise ConfigError(f"{name} says how a file is read, and triples in memory are given: leave it out.")
    return SourceOptions.of(None, dict(options))


def given_splits(given: Mapping[str, Any]) -> tuple[dict[str, Triples], Encoder | None]:
    """(triples (n, 3) by split, the names) of what is given for each split, None where nothing is; ids have no names.

    A split is a sequence of (head, relation, tail), an array (n, 3) or a data frame.
    """
    columns = {split: _columns(given[split], split) for split in SPLITS if given[split] is not None}
    if "train" not in columns or len(columns["train"][0]) == 0:
        raise InputError("train holds no triples: give some.")
    numbered = {split: _are_ids(parts) for split, parts in columns.items() if len(parts[0])}
    if len(set(numbered.values())) > 1:
        by_kind = [" and ".join(s for s, ids in numbered.items() if ids is kind) for kind in (True, False)]
        raise InputError(f"{by_kind[0]}: integers, which are ids. {by_kind[1]}: names. Give the same in every split.")
    if numbered["train"]:
        return {split: _ids(parts, split) for split, parts in columns.items()}, None
    encoder = Encoder()
    named = {split: [_names(part, split, role) for part, role in zip(ps, ROLES)] for split, ps in columns.items()}
    return {split: encoder.names(*parts) for split, parts in named.items()}, encoder


def _columns(given: Any, split: str) -> Columns:
    """Heads, relations and tails of what is given for a split."""
    if isinstance(given, str | bytes | os.PathLike | Mapping | set | frozenset):
        raise InputError(
            f"{split} is a {type(given).__name__}, and triples are needed: (head, relation, tail) in a sequence, an "
            f"array (n, 3) or a data frame. Files are read by load_dataset."
        )
    if hasattr(given, "to_numpy") and hasattr(given, "columns"):
        return _frame_columns(given, split)
    if hasattr(given, "__array__"):
        array = np.asarray(given)
        if array.dtype.names is None:
            if array.ndim != 2 or array.shape[1] != 3:
                raise InputError(f"{split} has the shape {array.shape}, and (n, 3) is needed: head, relation, tail.")
            return list(array.T)
        given = array.tolist()
    if not isinstance(given, Iterable):
        raise InputError(f"{split} is a {type(given).__name__}, and triples are needed: (head, relation, tail).")
    rows = [_three(row, number, split) for number, row in enumerate(given)]
    return list(map(list, zip(*rows))) if rows else [[], [], []]


def _frame_columns(frame: Any, split: str) -> Columns:
    """The columns called head, relation and tail (or subject, predicate, object, …), else the only three."""
    labels = list(frame.columns)
    places = places_by_name([str(label) for label in labels]) or ((0, 1, 2) if len(labels) == 3 else None)
    if places is None or len(set(labels)) < len(labels):
        found = ", ".join(map(str, labels)) or "none"
        raise InputError(f"{split} has the columns {found}: name three of them head, relation and tail.")
    return [frame[labels[place]].to_numpy() for place in places]


def _three(row: Any, number: int, split: str) -> tuple[Any, ...]:
    parts = tuple(row) if isinstance(row, Iterable) and not isinstance(row, str | bytes) else ()
    if len(parts) != 3:
        raise InputError(f"Row {number:,} of {split} is {row!r}: three parts are needed, (head, relation, tail).")
    return parts


def _are_ids(columns: Columns) -> bool:
    return all(
        part.dtype.kind in "iu"
        if isinstance(part, np.ndarray) and part.dtype.kind != "O"
        else all(map(_is_whole, part))
        for part in columns
    )


def _is_whole(value: Any) -> bool:
    return isinstance(value, int | np.integer) and not isinstance(value, bool)


def _ids(columns: Columns, split: str) -> Triples:
    ids = np.empty((len(columns[0]), 3), np.int32)
    for place, part in enumerate(columns):
        values = np.asarray(part) if len(part) else ids[:, place]
        outside = np.flatnonzero((values < 0) | (values > MAX_ID))
        if len(outside):
            row = int(outside[0])
            raise InputError(
                f"Row {row:,} of {split} has the {ROLES[place]} id {values[row]}, and 0 to {MAX_ID:,} are possible."
            )
        ids[:, place] = values
    return ids


def _names(column: Any, split: str, role: str) -> list[str]:
    """The names of a column; integers among names are names, as in a file."""
    values = column.tolist() if isinstance(column, np.ndarray) else column
    names = [value if isinstance(value, str) else str(value) if _is_whole(value) else "" for value in values]
    try:
        "".join(names).encode()
    except UnicodeEncodeError as error:
        raise InputError(f"A {role} of {split} is no text that UTF-8 can hold: {error.reason}.") from None
    if not all(names):
        number = names.index("")
        raise InputError(
            f"Row {number:,} of {split} has the {role} {values[number]!r}, and a name is needed: a string."
        )
    return names
