"""A source becomes a Dataset: the whole walk from files to ids, names, splits and what there is to say about them.

`grash prepare` calls prepare(); every command that takes a dataset calls load_dataset(). from_triples() is for
programs that hold the triples already.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from grash.data.checks import (
    HELD_OUT,
    check_some,
    look_at_given,
    missing_splits,
    origin,
    say_repeats,
    say_skipped,
    say_split,
    say_understood,
)
from grash.data.dataset import MAX_ID, SPLITS, Dataset
from grash.data.encoder import Encoder, Triples
from grash.data.external.memory import check_limit, memory_limit, read_in_parts, room_within
from grash.data.external.names import Watch
from grash.data.external.prepare import prepare_large, repeated_names, was_begun, was_finished
from grash.data.interning import Interner
from grash.data.readers import arrays as numbered
from grash.data.readers import tables
from grash.data.readers.folders import Layout, dataset_name, recognize
from grash.data.readers.options import SourceOptions
from grash.data.readers.rdf import RDF_FORMATS, rdf_file
from grash.data.readers.text import ROLES, places_by_name
from grash.data.split import rows_where, split_triples
from grash.data.triple_set import TripleSet
from grash.data.vocabulary import Vocabulary
from grash.errors import ConfigError, InputError
from grash.files import repair_folder

BUNDLED = {"world": Path(__file__).parent / "bundled" / "world.tsv"}


def load_dataset(source: Path | str, options: SourceOptions | None = None, **changes: Any) -> Dataset:
    """The dataset of a source: an encoded folder is mapped, "world" is the bundled graph, all else is read."""
    options = SourceOptions.of(options, changes)
    path = _path(source)
    if not path.exists() and str(source) in BUNDLED:
        graph = read_source(BUNDLED[str(source)], options)
        return replace(graph, provenance={**graph.provenance, "source": f"{source}, bundled with grash"})
    layout = recognize(path, file_format=options.format)
    if layout.kind != "encoded":
        return _read(layout, options)
    if options != SourceOptions():
        raise ConfigError(f"{path} is encoded already, so that options for reading it have no effect: leave them out.")
    return Dataset.load(path)


def from_triples(train: Any, valid: Any = None, test: Any = None, *, name: str = "unnamed", **options: Any) -> Dataset:
    """The dataset of triples in memory: what `load_dataset` makes of the same triples in a file.

    train, valid, test: sequences of (head, relation, tail), NumPy arrays (n, 3) or data frames (pandas, polars: the
    columns head, relation, tail, else the only three). Strings are names, integers are ids. What is not given is split
    off train. options: duplicates, valid_fraction, test_fraction, n_valid, n_test, seed, as in SourceOptions.
    """
    chosen = splitting_options(options)
    splits, encoder = given_splits({"train": train, "valid": valid, "test": test})
    if encoder is None:
        graph = _Graph(splits, *numbered.array_counts(splits, {}, {}))
    else:
        graph = _named_graph(splits, encoder.entities, encoder.relations)
    return _made(graph, chosen, name, {"source": "triples in memory", "layout": "memory", "files": {}})


def prepare(
    source: Path | str,
    out: Path,
    options: SourceOptions | None = None,
    *,
    overwrite: bool = False,
    memory: str | int | None = None,
    watch: Watch | None = None,
    **changes: Any,
) -> Dataset:
    """Encodes a source into the folder `out`, wholly or not at all; returns the dataset, mapped.

    memory: what it may take, as 8G; half of the machine's by default. A source that might need more when it is read at
    once is read in parts, by way of a folder OUT.spill, from which the same call goes on if it was killed; the result
    is the same. watch is told then what is being done, the share that is done, and the triples so far.
    """
    source, out, chosen = str(_path(source)), Path(out), SourceOptions.of(options, changes)
    limit = memory_limit(memory)
    repair_folder(out)
    layout = recognize(Path(source), file_format=chosen.format) if Path(source).exists() else None
    if layout is not None and was_finished(layout, out, chosen):
        return Dataset.load(out)
    if out.exists() and not overwrite:
        raise InputError(
            f"{out} already exists. Choose another folder, or replace it with --overwrite (overwrite=True)."
        )
    if layout is not None and memory is not None:
        check_limit(layout, limit)
    room = room_within(limit)
    if layout is not None and read_in_parts(layout, room, strict=memory is not None, begun=was_begun(out)):
        prepare_large(layout, out, chosen, room=room, overwrite=overwrite, watch=watch)
    else:
        load_dataset(source, chosen).save(out, overwrite=overwrite)
    return Dataset.load(out)


def read_source(source: Path | str, options: SourceOptions | None = None, **changes: Any) -> Dataset:
    """The dataset of a file or folder in any of the known layouts, read into memory."""
    options = SourceOptions.of(options, changes)
    layout = recognize(_path(source), file_format=options.format)
    return Dataset.load(layout.path) if layout.kind == "encoded" else _read(layout, options)


def _path(source: Any) -> Path:
    if not isinstance(source, str | os.PathLike):
        raise InputError(
            f"A {type(source).__name__} is given, and a graph is read from a file or folder: give its path, or make a "
            f"dataset of triples in memory with grash.from_triples(train, valid, test)."
        )
    return Path(source)


@dataclass
class _Graph:
    """What was read: triples by split (train always), and who is who."""

    splits: dict[str, Triples]
    n_entities: int
    n_relations: int
    entities: Vocabulary | None = None
    relations: Vocabulary | None = None
    notes: dict[str, Any] = field(default_factory=dict)


def _read(layout: Layout, options: SourceOptions) -> Dataset:
    read_as = say_understood(layout, options)
    graph = _READERS[layout.kind](layout, options)
    check_some(layout, len(graph.splits["train"]), graph.notes)
    return _made(graph, options, dataset_name(layout.path), {**origin(layout, graph.notes), **read_as})


def _made(graph: _Graph, options: SourceOptions, name: str, provenance: dict[str, Any]) -> Dataset:
    """The dataset of what was read: repeats dropped, splits that are missing split off, and all of it said."""
    known = TripleSet(graph.splits["train"])
    stay = _repeating(graph.splits["train"], known) if options.duplicates == "keep" else None
    provenance.update(say_repeats(known.n_repeated, options))
    if options.duplicates == "drop" and known.n_repeated:
        graph.splits["train"] = rows_where(graph.splits["train"], ~known.repeated)
    shared = {split: known.contains(graph.splits[split]) for split in HELD_OUT if split in graph.splits}
    del known
    in_test = TripleSet(graph.splits["test"]).contains(graph.splits["valid"]) if len(shared) == 2 else None
    provenance.update(look_at_given(graph.splits, shared, in_test, graph.n_entities, graph.n_relations))
    provenance.update(_split_off_missing(graph, options, stay))
    return Dataset(
        **{split: graph.splits[split] for split in SPLITS},
        n_entities=graph.n_entities,
        n_relations=graph.n_relations,
        entities=graph.entities,
        relations=graph.relations,
        name=name,
        provenance=provenance,
    )


def _repeating(triples: Triples, known: TripleSet) -> NDArray[np.bool_]:
    """Marks the triples that occur more than once; moving one copy to valid would leave another in train."""
    return TripleSet(rows_where(triples, known.repeated)).contains(triples)


def _split_off_missing(graph: _Graph, options: SourceOptions, stay: NDArray[np.bool_] | None) -> dict[str, Any]:
    """Splits valid and test off train where the source has none."""
    train = graph.splits["train"]
    wanted = missing_splits(graph.splits, options, len(train))
    if not wanted:
        return {}
    parts = split_triples(
        train, graph.n_entities, graph.n_relations,
        valid=wanted.get("valid", 0), test=wanted.get("test", 0), seed=options.seed, stay=stay,
    )  # fmt: skip
    graph.splits["train"] = parts[0]
    graph.splits.update({split: part for split, part in zip(HELD_OUT, parts[1:]) if split in wanted})
    return say_split(wanted, {split: len(graph.splits[split]) for split in wanted}, options.seed)


def _read_files(layout: Layout, options: SourceOptions) -> _Graph:
    """Files of names, in any format, train first."""
    if layout.formats["train"] in ("npy", "npz"):
        return _read_arrays(layout, options)
    encoder, notes = Encoder(), Counter[str]()
    splits: dict[str, Triples] = {}
    for split in SPLITS:
        if split in layout.files:
            path, file_format = layout.files[split], layout.formats[split]
            if file_format in RDF_FORMATS:
                splits[split] = rdf_file(path, file_format, encoder, options, notes)
            elif file_format == "parquet":
                splits[split] = tables.parquet_file(path, encoder, options)
            else:
                splits[split] = encoder.text_file(path, options)
    say_skipped(notes)
    return _named_graph(splits, encoder.entities, encoder.relations, dict(notes))


def _read_arrays(layout: Layout, options: SourceOptions) -> _Graph:
    if layout.formats["train"] == "npz":
        splits = tables.archive_file(layout.files["train"])
    else:
        splits = {s: tables.array_file(layout.files[s]) for s in SPLITS if s in layout.files}
    stems = [stem for stem in ("entities", "relations") if stem in layout.files]
    names: dict[str, Interner | None] = {stem: numbered.read_name_lines(layout.files[stem]) for stem in stems}
    n_entities, n_relations = numbered.array_counts(splits, names, layout.files)
    entities, relations = (_vocabulary(names.get(stem), stem) for stem in ("entities", "relations"))
    return _Graph(splits, n_entities, n_relations, entities, relations, repeated_names(names))


def _read_libkge(layout: Layout, options: SourceOptions) -> _Graph:
    entities = numbered.read_dictionary(layout.files["entities"], id_column=0)
    relations = numbered.read_dictionary(layout.files["relations"], id_column=0)
    splits = numbered.numbered_splits(layout.files, entities, relations, "hrt")
    return _named_graph(splits, entities, relations)


def _read_dictionaries(layout: Layout, options: SourceOptions) -> _Graph:
    entities = numbered.read_dictionary(layout.files["entities"], id_column=None)
    relations = numbered.read_dictionary(layout.files["relations"], id_column=None)
    splits, found = numbered.named_or_numbered_splits(layout.files, entities, relations, options)
    return _named_graph(splits, entities, relations, {"triples_by": found})


def _read_openke(layout: Layout, options: SourceOptions) -> _Graph:
    entities, relations, splits = numbered.counted_splits(layout.files)
    return _named_graph(splits, entities, relations)


_READERS = {
    "file": _read_files,
    "splits": _read_files,
    "arrays": _read_arrays,
    "libkge": _read_libkge,
    "dictionaries": _read_dictionaries,
    "openke": _read_openke,
}


def _named_graph(
    splits: dict[str, Triples], entities: Interner, relations: Interner, notes: dict[str, Any] | None = None
) -> _Graph:
    notes = {**(notes or {}), **repeated_names({"entities": entities, "relations": relations})}
    named = (_vocabulary(entities, "entities"), _vocabulary(relations, "relations"))
    return _Graph(splits, len(entities), len(relations), *named, notes)


def _vocabulary(interner: Interner | None, stem: str) -> Vocabulary | None:
    kind = "entity" if stem == "entities" else "relation"
    return None if interner is None else Vocabulary.from_interner(interner, kind=kind)


# = Triples that a program holds (sequences, arrays, data frames) become ids. Goes to prepare.py, as a file's would.

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
