"""Folders whose triples are numbers, with the names in files beside them: LibKGE, RotatE/DGL-KE, OpenKE, arrays.

Comes from layouts.py (which files are what), goes to prepare.py. The ids stay those of the files.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from grash.data.dataset import SPLITS
from grash.data.encoder import Encoder, Triples, numbers, read_triples, triple_dialect
from grash.data.interning import SLACK, Interner, hashed_fields
from grash.data.readers.options import SourceOptions
from grash.data.readers.streams import open_source
from grash.data.readers.text import NOTHING, WHITESPACE, Dialect, Fields, TextSource, guess_dialect, split_line
from grash.data.vocabulary import Vocabulary
from grash.errors import InputError

Files = dict[str, Path]
Columns = str | tuple[int, ...]


def numbered_splits(files: Files, entities: Interner, relations: Interner, columns: str) -> dict[str, Triples]:
    """The triples (n, 3) of files of ids, checked against the names; `columns` such as "hrt"."""
    limits = {"entity": (len(entities), files["entities"]), "relation": (len(relations), files["relations"])}
    return _each(files, lambda path: _id_file(path, columns, limits))


def counted_splits(files: Files) -> tuple[Interner, Interner, dict[str, Triples]]:
    """(entities, relations, triples by split) of an OpenKE folder: a count first, then head, tail, relation."""
    entities = read_dictionary(files["entities"], id_column=1, counted=True)
    relations = read_dictionary(files["relations"], id_column=1, counted=True)
    limits = {"entity": (len(entities), files["entities"]), "relation": (len(relations), files["relations"])}
    splits = _each(files, lambda path: _id_file(path, "htr", limits, counted=True))
    return entities, relations, splits


def named_or_numbered_splits(
    files: Files, entities: Interner, relations: Interner, options: SourceOptions
) -> tuple[dict[str, Triples], str]:
    """(triples by split, "names" or "ids"): what the first lines of train hold where both are possible."""
    encoder = Encoder()
    encoder.entities, encoder.relations = entities, relations
    n_names = (len(entities), len(relations))
    if _first_lines_are_names(files["train"], encoder, options):
        return _each(files, lambda path: _name_file(path, encoder, n_names, files, options)), "names"
    limits = {"entity": (n_names[0], files["entities"]), "relation": (n_names[1], files["relations"])}
    columns = options.columns or "hrt"
    return _each(files, lambda path: _id_file(path, columns, limits)), "ids"


def read_dictionary(path: Path, *, id_column: int | None, counted: bool = False) -> Interner:
    """The names of a file of ids and names, by id. id_column None: 0 if that column holds a number, else 1."""
    interner = Interner(keep_repeats=True)
    with open_source(path) as stream:
        source = TextSource(stream, path)
        lines = [line for line in source.sample.decode("utf-8", "replace").splitlines() if line.strip()]
        first = lines[1 if counted and len(lines) > 1 else 0] if lines else ""
        dialect = Dialect(9 if "\t" in first else WHITESPACE, False, False, (0, 1), 2)
        if id_column is None:
            fields = split_line(first, dialect.separator)
            id_column = 0 if fields and fields[0].strip().isdecimal() else 1
        ids = [np.empty(0, np.int64)]
        wanted = ((1 - id_column,), (id_column,))
        with closing(source.fields(dialect, wanted=wanted, skip_lines=int(counted))) as blocks:
            for block in blocks:
                interner.add_fields(block.groups[0])
                ids.append(numbers(block, 1, "id")[:, 0])
    if counted:
        _check_counted(path, lines, len(interner))
    ordered = _in_order_of(interner, np.concatenate(ids), path)
    ordered.keep_repeats = False
    return ordered


def read_name_lines(path: Path) -> Interner:
    """The names of a file in which line i (from 0) names id i."""
    interner = Interner(keep_repeats=True)
    with open_source(path) as stream:
        whole_lines = Dialect(NOTHING, False, False, (0,), 1)
        with closing(TextSource(stream, path).fields(whole_lines, wanted=((0,),))) as blocks:
            for block in blocks:
                interner.add_fields(block.groups[0])
    interner.keep_repeats = False
    return interner


def _each(files: Files, read: Callable[[Path], Triples]) -> dict[str, Triples]:
    return {split: read(files[split]) for split in SPLITS if split in files}


def _in_order_of(interner: Interner, ids: NDArray[np.int64], path: Path) -> Interner:
    """The interner with name i at ids[i], which must be 0 … n-1 in any order."""
    n = len(ids)
    if np.array_equal(ids, np.arange(n)):
        return interner
    order = np.argsort(ids, kind="stable")
    wrong = np.flatnonzero(ids[order] != np.arange(n))
    if len(wrong):
        at = int(wrong[0])
        problem = "is missing" if ids[order[at]] > at else f"or {int(ids[order[at]])} is given twice"
        raise InputError(f"{path} names {n:,} ids, and they should be 0 to {n - 1:,}: {at} {problem}.")
    names, offsets, _ = interner.arrays()
    buffer = np.concatenate((names, np.zeros(SLACK, np.uint8)))
    ordered = Interner(keep_repeats=True)
    ordered.add_fields(hashed_fields(buffer, offsets[order], offsets[order + 1] - offsets[order]))
    return ordered


def _id_file(path: Path, columns: Columns, limits: dict[str, tuple[int, Path]], *, counted: bool = False) -> Triples:
    def checked(fields: Fields) -> Triples:
        ids = np.empty((fields.n_rows, 3), np.int64)
        ids[:, ::2] = numbers(fields, 0, "id of an entity")
        ids[:, 1:2] = numbers(fields, 1, "id of a relation")
        for kind, part in (("entity", ids[:, ::2]), ("relation", ids[:, 1:2])):
            n, names = limits[kind]
            if part.max(initial=-1) >= n:
                row, column = (int(i) for i in np.argwhere(part >= n)[0])
                raise InputError(
                    f"{fields.place(row)}: there is no {kind} {part[row, column]}, since {names.name} names "
                    f"0 to {n - 1:,}."
                )
        return ids.astype(np.int32)

    with open_source(path) as stream:
        source = TextSource(stream, path)
        dialect = guess_dialect(source.sample, path, header=False, columns=columns)
        triples = read_triples(source, dialect, checked, skip_lines=int(counted))
        if counted:
            _check_counted(path, source.sample.decode("utf-8", "replace").splitlines(), len(triples))
    return triples


def _name_file(path: Path, encoder: Encoder, n_names: tuple[int, int], files: Files, options: SourceOptions) -> Triples:
    def known(fields: Fields) -> Triples:
        ids = encoder.fields(fields)
        for kind, part, group, n in (("entity", ids[:, ::2], 0, n_names[0]), ("relation", ids[:, 1:2], 1, n_names[1])):
            if part.max(initial=-1) >= n:
                row, column = (int(i) for i in np.argwhere(part >= n)[0])
                names = files["entities" if kind == "entity" else "relations"].name
                name = fields.text(row, group, column)
                raise InputError(f"{fields.place(row)}: the {kind} {name!r} is not in {names}.")
        return ids

    with open_source(path) as stream:
        source = TextSource(stream, path)
        return read_triples(source, triple_dialect(source, options), known)


def _first_lines_are_names(path: Path, encoder: Encoder, options: SourceOptions) -> bool:
    """Whether the first lines hold known names; also where they hold neither names nor numbers."""
    with open_source(path) as stream:
        source = TextSource(stream, path)
        dialect = triple_dialect(source, options)
    lines = [line for line in source.sample.decode("utf-8", "replace").split("\n") if line.strip()][:1000]
    rows = [split_line(line.rstrip("\r"), dialect.separator) for line in lines[dialect.header :]]
    rows = [row for row in rows if len(row) > max(dialect.columns)]
    heads, relations, tails = ([row[c] for row in rows] for c in dialect.columns)
    known = (_all_known(encoder.entities, heads + tails), _all_known(encoder.relations, relations))
    return all(known) or not all(field.isdecimal() for field in heads + relations + tails)


def _all_known(interner: Interner, names: list[str]) -> bool:
    vocabulary = Vocabulary.from_interner(interner)
    return all(vocabulary.find(name) is not None for name in names)


def _check_counted(path: Path, lines: list[str], n: int) -> None:
    count = next((line.strip() for line in lines if line.strip()), "")
    if not count.isdecimal():
        raise InputError(f"{path}, line 1: {count[:40]!r} stands where the number of lines that follow should be.")
    if int(count[:20]) != n:
        raise InputError(f"{path} says that {int(count[:20]):,} lines follow, and {n:,} do: it is cut off or edited.")


def array_counts(splits: dict[str, Triples], names: dict[str, Interner | None], files: Files) -> tuple[int, int]:
    """(n_entities, n_relations): one more than the largest id, or the number of names where they say more."""
    counts: list[int] = []
    for stem, column in (("entities", slice(0, 3, 2)), ("relations", slice(1, 2))):
        largest = max((int(t[:, column].max(initial=-1)) for t in splits.values()), default=-1)
        named: Any = names.get(stem)
        if named is not None and largest >= len(named):
            raise InputError(
                f"The largest id among the {stem} is {largest:,}, and {files[stem]} names only {len(named):,}: "
                f"every id needs a line, counted from 0."
            )
        counts.append(largest + 1 if named is None else len(named))
    return counts[0], counts[1]
