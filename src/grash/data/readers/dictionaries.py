"""Read folders of ids with dictionaries of names: LibKGE, RotatE and DGL-KE, OpenKE, and names beside arrays.

Comes from folders.py (the layout), goes to load.py. The ids stay those of the files.
"""

from __future__ import annotations

from collections import Counter
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray

from grash.data.arrays import Integer, Triples
from grash.data.dataset import MAX_ID, SPLITS
from grash.data.readers.source import Layout, SourceOptions, open_source
from grash.data.readers.text import (
    WHITESPACE,
    WHOLE_LINE,
    Dialect,
    Fields,
    TextSource,
    guess_dialect,
    read_triples,
    split_line,
)
from grash.data.vocabulary import SLACK, Bytes, Encoder, Interner, Vocabulary, hashed_fields
from grash.errors import InputError

Files = dict[str, Path]  # by role: train, valid, test, entities, relations

_COLUMNS = {"entities": slice(0, 3, 2), "relations": slice(1, 2)}  # of triples
_KINDS = {"entities": "entity", "relations": "relation"}


def read_dictionaries(layout: Layout, options: SourceOptions) -> tuple[dict[str, Triples], Encoder, dict[str, Any]]:
    """Return (triples by split, encoder, notes) of a folder of triples with dictionaries of names.

    LibKGE: dictionaries of id and name, triples of ids. OpenKE: each file begins with its number of lines; triples are
    head, tail, relation. RotatE and DGL-KE: the triples are "names" or "ids", by the first lines of train.
    """
    files, counted = layout.files, layout.kind == "openke"
    id_column = {"libkge": 0, "openke": 1}.get(layout.kind)
    encoder, notes = Encoder(), Counter[str]()
    encoder.entities = _read_dictionary(files["entities"], id_column, counted)
    encoder.relations = _read_dictionary(files["relations"], id_column, counted)
    columns: Any = {"libkge": "hrt", "openke": "htr"}.get(layout.kind) or options.columns or "hrt"
    named = layout.kind == "dictionaries" and _first_lines_are_names(files["train"], encoder, options)
    n_names = {"entities": len(encoder.entities), "relations": len(encoder.relations)}
    splits: dict[str, Triples] = {}
    for split in SPLITS:
        if split in files and named:
            splits[split] = _read_names(files[split], encoder, n_names, files, options, notes)
        elif split in files:
            splits[split] = _read_ids(files[split], columns, n_names, files, counted, options, notes)
    by = {"triples_by": "names" if named else "ids"} if layout.kind == "dictionaries" else {}
    return splits, encoder, {**by, **notes}


def read_name_files(files: Files) -> dict[str, Interner]:
    """Return the names beside arrays by stem (entities, relations), if there are any: line i (from 0) names id i."""
    return {stem: _read_name_lines(files[stem]) for stem in _COLUMNS if stem in files}


def _read_name_lines(path: Path) -> Interner:
    interner = Interner(keep_repeats=True)
    with open_source(path) as stream:
        lines = Dialect(WHOLE_LINE, (0,), 1)
        with closing(TextSource(stream, path).fields(lines, wanted=((0,),))) as blocks:
            for block in blocks:
                interner.add_fields(block.groups[0])
    interner.keep_repeats = False
    return interner


def count_ids(splits: dict[str, Triples], names: dict[str, Interner], files: Files) -> tuple[int, int]:
    """Return (n_entities, n_relations): the number of names, or one more than the largest id without names."""
    counts: list[int] = []
    for stem, columns in _COLUMNS.items():
        largest = max((int(triples[:, columns].max(initial=-1)) for triples in splits.values()), default=-1)
        if stem in names and largest >= len(names[stem]):
            raise InputError(
                f"The largest id of {stem} is {largest:,}, but {files[stem]} names only {len(names[stem]):,}. "
                f"Every id needs a line, counted from 0."
            )
        counts.append(len(names[stem]) if stem in names else largest + 1)
    return counts[0], counts[1]


def _read_dictionary(path: Path, id_column: int | None, counted: bool) -> Interner:
    """Return the names of a file of ids and names, by id. id_column None: 0 if that column has a number, else 1."""
    interner = Interner(keep_repeats=True)
    with open_source(path) as stream:
        source = TextSource(stream, path)
        lines = [line for line in source.sample.decode("utf-8", "replace").splitlines() if line.strip()]
        first = lines[1 if counted and len(lines) > 1 else 0] if lines else ""
        dialect = Dialect(9 if "\t" in first else WHITESPACE, (0, 1), 2)
        if id_column is None:
            fields = split_line(first, dialect.separator)
            id_column = 0 if fields and fields[0].strip().isdecimal() else 1
        ids = [np.empty(0, np.int64)]
        wanted = ((1 - id_column,), (id_column,))
        with closing(source.fields(dialect, wanted=wanted, skip_lines=int(counted))) as blocks:
            for block in blocks:
                interner.add_fields(block.groups[0])
                ids.append(_integers(block, 1, "an id")[:, 0])
    if counted:
        _check_line_count(path, lines, len(interner))
    ordered = _ordered_by_id(interner, np.concatenate(ids), path)
    ordered.keep_repeats = False
    return ordered


def _ordered_by_id(interner: Interner, ids: NDArray[np.int64], path: Path) -> Interner:
    """Return the interner with name i at ids[i], which must be a permutation of 0 … n-1."""
    n = len(ids)
    if np.array_equal(ids, np.arange(n)):
        return interner
    order = np.argsort(ids, kind="stable")
    wrong = np.flatnonzero(ids[order] != np.arange(n))
    if len(wrong):
        at = int(wrong[0])
        problem = f"{at} is missing" if ids[order[at]] > at else f"{int(ids[order[at]])} is given twice"
        raise InputError(f"{path} has {n:,} ids, expected each of 0 to {n - 1:,} once: {problem}.")
    names, offsets, _ = interner.arrays()
    buffer = np.concatenate((names, np.zeros(SLACK, np.uint8)))
    ordered = Interner(keep_repeats=True)
    ordered.add_fields(hashed_fields(buffer, offsets[order], offsets[order + 1] - offsets[order]))
    return ordered


def _read_ids(
    path: Path,
    columns: Any,
    n_names: dict[str, int],
    files: Files,
    counted: bool,
    options: SourceOptions,
    notes: Counter[str],
) -> Triples:
    def checked(fields: Fields) -> Triples:
        ids = np.empty((fields.n_rows, 3), np.int64)
        ids[:, ::2] = _integers(fields, 0, "an entity id")
        ids[:, 1:2] = _integers(fields, 1, "a relation id")
        for stem, row, column in _outside(ids, n_names):
            value = ids[row, _COLUMNS[stem]][column]
            raise InputError(
                f"{fields.location(row)}: {_KINDS[stem]} {value} does not exist; {files[stem].name} has ids 0 to "
                f"{n_names[stem] - 1:,}."
            )
        return ids.astype(np.int32)

    with open_source(path) as stream:
        source = TextSource(stream, path, options, notes)
        dialect = guess_dialect(source.sample, path, header=False, columns=columns)
        triples = read_triples(source, dialect, checked, skip_lines=int(counted))
        if counted:
            _check_line_count(path, source.sample.decode("utf-8", "replace").splitlines(), len(triples))
    return triples


def _read_names(
    path: Path, encoder: Encoder, n_names: dict[str, int], files: Files, options: SourceOptions, notes: Counter[str]
) -> Triples:
    def known(fields: Fields) -> Triples:
        ids = encoder.encode_fields(*fields.groups)
        for stem, row, column in _outside(ids, n_names):
            name = fields.text(row, 0 if stem == "entities" else 1, column)
            raise InputError(f"{fields.location(row)}: the {_KINDS[stem]} {name!r} is not in {files[stem].name}.")
        return ids

    with open_source(path) as stream:
        source = TextSource(stream, path, options, notes)
        return read_triples(source, source.guess_dialect(), known)


def _outside(ids: NDArray[Any], n_names: dict[str, int]) -> list[tuple[str, int, int]]:
    """Return (stem, row, column among its columns) of the first id of each kind that has no name."""
    found = []
    for stem, columns in _COLUMNS.items():
        part = ids[:, columns]
        if part.max(initial=-1) >= n_names[stem]:
            row, column = np.argwhere(part >= n_names[stem])[0]
            found.append((stem, int(row), int(column)))
    return found


def _first_lines_are_names(path: Path, encoder: Encoder, options: SourceOptions) -> bool:
    """Return whether the first lines consist of known names, or of neither names nor numbers."""
    with open_source(path) as stream:
        source = TextSource(stream, path, options)
        dialect = source.guess_dialect()
    lines = [line for line in source.sample.decode("utf-8", "replace").split("\n") if line.strip()][:1000]
    rows = [split_line(line.rstrip("\r"), dialect.separator) for line in lines[dialect.header_lines :]]
    rows = [row for row in rows if len(row) > max(dialect.columns)]
    heads, relations, tails = ([row[c] for row in rows] for c in dialect.columns)
    fields = [(encoder.entities, heads + tails), (encoder.relations, relations)]
    if not all(name.isdecimal() for _, names in fields for name in names):
        return True
    known = [(Vocabulary.from_interner(interner), names) for interner, names in fields]
    return all(vocabulary.find(name) is not None for vocabulary, names in known for name in names)


def _check_line_count(path: Path, lines: list[str], n: int) -> None:
    count = next((line.strip() for line in lines if line.strip()), "")
    if not count.isdecimal():
        raise InputError(f"{path}, line 1: found {count[:40]!r}, expected the number of lines that follow.")
    if int(count[:20]) != n:
        raise InputError(f"{path} announces {int(count[:20]):,} lines but has {n:,}: it is truncated or edited.")


def _integers(fields: Fields, group: int, what: str) -> NDArray[np.int64]:
    """Return the non-negative integers (rows, columns) of a group. Raises InputError with the line of another."""
    hashed = fields.groups[group]
    values = np.empty((fields.n_rows, len(hashed.starts) // max(1, fields.n_rows)), np.int64)
    bad = _parse_integers(hashed.buffer, hashed.starts, hashed.lengths, values.reshape(-1))
    if bad >= 0:
        row, column = divmod(bad, values.shape[1])
        found = fields.text(row, group, column)
        raise InputError(f"{fields.location(row)}: found {found!r}, expected {what}: a number from 0 to {MAX_ID:,}.")
    return values


@njit(cache=True, nogil=True)
def _parse_integers(buffer: Bytes, starts: NDArray[Any], lengths: NDArray[Any], values: NDArray[np.int64]) -> Integer:
    """Fill values; return the first row that is not a number, or -1."""
    for row in range(starts.size):
        value = np.int64(0)
        if lengths[row] > 10 or lengths[row] < 1:
            return row
        for at in range(starts[row], starts[row] + lengths[row]):
            digit = np.int64(buffer[at]) - 48
            if digit < 0 or digit > 9:
                return row
            value = value * 10 + digit
        if value > MAX_ID:
            return row
        values[row] = value
    return -1
