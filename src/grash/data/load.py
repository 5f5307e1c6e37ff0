"""Load a graph as a Dataset: from files, folders, or triples in memory, with ids, names and splits.

`grash prepare` calls prepare(); every command that takes a dataset calls load_dataset(). from_triples() is for
programs that already have the triples.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from grash.data import provenance
from grash.data.arrays import Mask, Triples, select_rows
from grash.data.dataset import MAX_ID, ROLES, SPLITS, Dataset
from grash.data.external.memory import check_limit, memory_limit, must_read_in_parts, usable_memory
from grash.data.external.names import Watch
from grash.data.external.prepare import prepare_large, was_finished, was_started
from grash.data.interning import Encoder
from grash.data.readers import dictionaries, tables
from grash.data.readers.folders import Layout, dataset_name, recognize
from grash.data.readers.options import SourceOptions
from grash.data.readers.rdf import RDF_FORMATS, read_rdf_file
from grash.data.readers.text import columns_by_name, read_text_file
from grash.data.split import HELD_OUT, held_out_rows, missing_splits
from grash.data.triple_set import TripleSet
from grash.data.vocabulary import Vocabulary
from grash.errors import ConfigError, InputError
from grash.files import check_absent, repair_folder

BUNDLED = {"world": Path(__file__).parent / "bundled" / "world.tsv"}

_FILE_OPTIONS = ("separator", "header", "columns", "literals", "format")
Columns = list[Any]  # head, relation, tail: a list or an array (n,) each


def load_dataset(source: Path | str, options: SourceOptions | None = None, **changes: Any) -> Dataset:
    """Return the dataset of a source: an encoded folder is memory-mapped, "world" is bundled, all else is read."""
    options = SourceOptions.of(options, changes)
    path = _path(source)
    if _is_bundled(path):
        graph = load_dataset(BUNDLED[str(source)], options)
        return replace(graph, provenance={**graph.provenance, "source": f"{source}, bundled with grash"})
    layout = recognize(path, file_format=options.format)
    if layout.kind != "encoded":
        return _read(layout, options)
    if options != SourceOptions():
        raise ConfigError(f"{path} is already encoded, so options for reading it have no effect. Leave them out.")
    return Dataset.load(path)


def from_triples(train: Any, valid: Any = None, test: Any = None, *, name: str = "unnamed", **options: Any) -> Dataset:
    """Return the dataset of triples in memory, as `load_dataset` does for the same triples in a file.

    train, valid, test: sequences of (head, relation, tail), NumPy arrays (n, 3) or data frames (pandas, polars) with
    the columns head, relation, tail, or with three columns. Strings are names, integers are ids. Missing splits are
    split off train. options: duplicates, valid_fraction, test_fraction, n_valid, n_test, seed.
    """
    chosen = splitting_options(options)
    splits, encoder = _encode_splits({"train": train, "valid": valid, "test": test})
    if encoder is None:
        graph = _Graph(splits, *dictionaries.count_ids(splits, {}, {}))
    else:
        graph = _named_graph(splits, encoder)
    return _make_dataset(graph, chosen, name, {"source": "triples in memory", "layout": "memory", "files": {}})


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
    """Encode a source into the folder `out` and return the dataset, memory-mapped.

    memory: limit such as "8G" (default: half of the machine's memory). A source that may need more is read in parts
    with a temporary folder OUT.spill; if that is killed, the same call resumes. The result is the same. `watch` then
    receives the current step, its share done, and the number of triples so far.
    """
    path, out, chosen = _path(source), Path(out), SourceOptions.of(options, changes)
    limit = memory_limit(memory)
    repair_folder(out)
    layout = None if _is_bundled(path) else recognize(path, file_format=chosen.format)
    if layout is not None and was_finished(layout, out, chosen):
        return Dataset.load(out)
    if not overwrite:
        check_absent(out)
    if layout is not None and memory is not None:
        check_limit(layout, limit)
    usable = usable_memory(limit)
    if layout is not None and must_read_in_parts(layout, usable, strict=memory is not None, started=was_started(out)):
        prepare_large(layout, out, chosen, memory=usable, overwrite=overwrite, watch=watch)
    else:
        load_dataset(path, chosen).save(out, overwrite=overwrite)
    return Dataset.load(out)


def _path(source: Any) -> Path:
    if not isinstance(source, str | os.PathLike):
        raise InputError(
            f"Got a {type(source).__name__}, expected the path of a file or folder. Create a dataset of triples in "
            f"memory with grash.from_triples(train, valid, test)."
        )
    return Path(source)


def _is_bundled(path: Path) -> bool:
    return str(path) in BUNDLED and not path.exists()


@dataclass
class _Graph:
    """Triples by split (train always), with the names of ids if they are known."""

    splits: dict[str, Triples]
    n_entities: int
    n_relations: int
    entities: Vocabulary | None = None
    relations: Vocabulary | None = None
    notes: dict[str, Any] = field(default_factory=dict)


def _read(layout: Layout, options: SourceOptions) -> Dataset:
    read_as = provenance.text_entries(layout, options)
    if layout.kind in ("libkge", "dictionaries", "openke"):
        graph = _read_dictionaries(layout, options)
    elif layout.formats["train"] in ("npy", "npz"):
        graph = _read_arrays(layout)
    else:
        graph = _read_names(layout, options)
    provenance.check_not_empty(layout, len(graph.splits["train"]), graph.notes)
    entries = {**provenance.source_entries(layout, graph.notes), **read_as}
    return _make_dataset(graph, options, dataset_name(layout.path), entries)


def _read_names(layout: Layout, options: SourceOptions) -> _Graph:
    """Read files of names in any format, train first."""
    encoder, notes = Encoder(), Counter[str]()
    splits: dict[str, Triples] = {}
    for split in SPLITS:
        if split in layout.files:
            path, file_format = layout.files[split], layout.formats[split]
            if file_format in RDF_FORMATS:
                splits[split] = read_rdf_file(path, file_format, encoder, options, notes)
            elif file_format == "parquet":
                splits[split] = tables.read_parquet_file(path, encoder, options)
            else:
                splits[split] = read_text_file(path, encoder, options)
    provenance.log_skipped_literals(notes)
    return _named_graph(splits, encoder, dict(notes))


def _read_arrays(layout: Layout) -> _Graph:
    if layout.formats["train"] == "npz":
        splits = tables.read_npz_file(layout.files["train"])
    else:
        splits = {s: tables.read_npy_file(layout.files[s]) for s in SPLITS if s in layout.files}
    names = dictionaries.read_names(layout.files)
    counts = dictionaries.count_ids(splits, names, layout.files)
    entities = Vocabulary.from_interner(names["entities"]) if "entities" in names else None
    relations = Vocabulary.from_interner(names["relations"], kind="relation") if "relations" in names else None
    return _Graph(splits, *counts, entities, relations, provenance.repeated_name_entries(names))


def _read_dictionaries(layout: Layout, options: SourceOptions) -> _Graph:
    if layout.kind == "libkge":
        return _named_graph(*dictionaries.read_libkge(layout.files))
    if layout.kind == "openke":
        return _named_graph(*dictionaries.read_openke(layout.files))
    splits, encoder, triples_by = dictionaries.read_rotate(layout.files, options)
    return _named_graph(splits, encoder, {"triples_by": triples_by})


def _named_graph(splits: dict[str, Triples], encoder: Encoder, notes: dict[str, Any] | None = None) -> _Graph:
    entities, relations = encoder.entities, encoder.relations
    repeated = provenance.repeated_name_entries({"entities": entities, "relations": relations})
    names = (Vocabulary.from_interner(entities), Vocabulary.from_interner(relations, kind="relation"))
    return _Graph(splits, len(entities), len(relations), *names, {**(notes or {}), **repeated})


def _make_dataset(graph: _Graph, options: SourceOptions, name: str, entries: dict[str, Any]) -> Dataset:
    """Drop duplicates, split off missing splits, and record both with the overlap of splits in the provenance."""
    splits = graph.splits
    known = TripleSet(splits["train"])
    keep = None
    if options.duplicates == "keep":  # moving one copy to valid would leave another in train
        keep = TripleSet(select_rows(splits["train"], known.repeated)).contains(splits["train"])
    elif known.n_repeated:
        splits["train"] = select_rows(splits["train"], ~known.repeated)
    entries |= provenance.duplicate_entries(known.n_repeated, options)
    shared = {split: known.contains(splits[split]) for split in HELD_OUT if split in splits}
    del known
    in_test = TripleSet(splits["test"]).contains(splits["valid"]) if len(shared) == 2 else None
    entries |= provenance.overlap_entries(splits, shared, in_test, graph.n_entities, graph.n_relations)
    entries |= _split_off_missing(graph, options, keep)
    return Dataset(
        **{split: splits[split] for split in SPLITS},
        n_entities=graph.n_entities,
        n_relations=graph.n_relations,
        entities=graph.entities,
        relations=graph.relations,
        name=name,
        provenance=entries,
    )


def _split_off_missing(graph: _Graph, options: SourceOptions, keep: Mask | None) -> dict[str, Any]:
    """Split valid and test off train if the source has none."""
    wanted = missing_splits(graph.splits, options, len(graph.splits["train"]))
    if not wanted:
        return {}
    train, sizes = graph.splits["train"], {split: wanted.get(split, 0) for split in HELD_OUT}
    in_train = np.ones(len(train), bool)
    held_out = held_out_rows(train, graph.n_entities, graph.n_relations, **sizes, seed=options.seed, keep=keep)
    for split, rows in zip(HELD_OUT, held_out):
        in_train[rows] = False
        if split in wanted:
            graph.splits[split] = train[rows]
    graph.splits["train"] = select_rows(train, in_train)
    return provenance.split_entries(wanted, {split: len(graph.splits[split]) for split in wanted}, options.seed)


def splitting_options(options: Mapping[str, Any]) -> SourceOptions:
    """Return the options for duplicates and splits. Raises ConfigError for an option that only files have."""
    for name in _FILE_OPTIONS:
        if name in options:
            raise ConfigError(f"{name} is an option for files, but the triples are in memory. Leave it out.")
    return SourceOptions.of(None, dict(options))


def _encode_splits(given: Mapping[str, Any]) -> tuple[dict[str, Triples], Encoder | None]:
    """Return (triples (n, 3) by split, encoder of their names or None for ids); None is a missing split."""
    columns = {split: _columns(given[split], split) for split in SPLITS if given[split] is not None}
    if "train" not in columns or len(columns["train"][0]) == 0:
        raise InputError("train contains no triples. Give at least one.")
    has_ids = {split: _are_ids(parts) for split, parts in columns.items() if len(parts[0])}
    if len(set(has_ids.values())) > 1:
        ids, names = (" and ".join(s for s, found in has_ids.items() if found is kind) for kind in (True, False))
        raise InputError(f"{ids} has integers, which are ids, but {names} has names. Give the same in every split.")
    if has_ids["train"]:
        return {split: _ids(parts, split) for split, parts in columns.items()}, None
    encoder = Encoder()
    named = {split: [_names(part, split, role) for part, role in zip(ps, ROLES)] for split, ps in columns.items()}
    return {split: encoder.encode(*parts) for split, parts in named.items()}, encoder


def _columns(given: Any, split: str) -> Columns:
    """Return the heads, relations and tails of a split."""
    expected = "expected triples (head, relation, tail) in a sequence, an array (n, 3) or a data frame"
    if isinstance(given, str | bytes | os.PathLike | Mapping | set | frozenset):
        raise InputError(f"{split} is a {type(given).__name__}, {expected}. Read files with load_dataset.")
    if hasattr(given, "to_numpy") and hasattr(given, "columns"):
        return _frame_columns(given, split)
    if hasattr(given, "__array__"):
        array = np.asarray(given)
        if array.dtype.names is None:
            if array.ndim != 2 or array.shape[1] != 3:
                raise InputError(f"{split} has the shape {array.shape}, expected (n, 3): head, relation, tail.")
            return list(array.T)
        given = array.tolist()
    if not isinstance(given, Iterable):
        raise InputError(f"{split} is a {type(given).__name__}, {expected}.")
    rows = [_row(row, number, split) for number, row in enumerate(given)]
    return list(map(list, zip(*rows))) if rows else [[], [], []]


def _frame_columns(frame: Any, split: str) -> Columns:
    """Return the columns named head, relation and tail (or subject, predicate, object, …), or the only three."""
    labels = list(frame.columns)
    columns = columns_by_name([str(label) for label in labels]) or ((0, 1, 2) if len(labels) == 3 else None)
    if columns is None or len(set(labels)) < len(labels):
        found = ", ".join(map(str, labels)) or "none"
        raise InputError(f"{split} has the columns {found}. Name three of them head, relation and tail.")
    return [frame[labels[column]].to_numpy() for column in columns]


def _row(row: Any, number: int, split: str) -> tuple[Any, ...]:
    parts = tuple(row) if isinstance(row, Iterable) and not isinstance(row, str | bytes) else ()
    if len(parts) != 3:
        raise InputError(f"Row {number:,} of {split} is {row!r}, expected (head, relation, tail).")
    return parts


def _are_ids(columns: Columns) -> bool:
    return all(
        part.dtype.kind in "iu"
        if isinstance(part, np.ndarray) and part.dtype.kind != "O"
        else all(map(_is_integer, part))
        for part in columns
    )


def _is_integer(value: Any) -> bool:
    return isinstance(value, int | np.integer) and not isinstance(value, bool)


def _ids(columns: Columns, split: str) -> Triples:
    ids = np.empty((len(columns[0]), 3), np.int32)
    for column, part in enumerate(columns):
        values = np.asarray(part) if len(part) else ids[:, column]
        outside = np.flatnonzero((values < 0) | (values > MAX_ID))
        if len(outside):
            row = int(outside[0])
            raise InputError(
                f"Row {row:,} of {split} has the {ROLES[column]} id {values[row]}, expected 0 to {MAX_ID:,}."
            )
        ids[:, column] = values
    return ids


def _names(column: Any, split: str, role: str) -> list[str]:
    """Return the names of a column; integers among names are names, as in a file."""
    values = column.tolist() if isinstance(column, np.ndarray) else column
    names = [value if isinstance(value, str) else str(value) if _is_integer(value) else "" for value in values]
    try:
        "".join(names).encode()
    except UnicodeEncodeError as error:
        raise InputError(f"A {role} of {split} cannot be encoded as UTF-8: {error.reason}.") from None
    if not all(names):
        number = names.index("")
        raise InputError(f"Row {number:,} of {split} has the {role} {values[number]!r}, expected a string.")
    return names
