"""Load a graph as a Dataset: from files, folders, or triples in memory, with ids, names and splits.

`grash prepare` calls prepare(); every command that takes a dataset calls load_dataset(). from_triples() is for
programs that already have the triples. How a source was read, checked and split is recorded in the provenance.
"""

from __future__ import annotations

import logging
import os
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from grash.data.arrays import Duplicates, Mask, Triples, find_duplicates, select_rows, used_ids
from grash.data.dataset import MAX_ID, ROLES, SPLITS, Dataset
from grash.data.readers import dictionaries, tables
from grash.data.readers.rdf import RDF_FORMATS, read_rdf_file
from grash.data.readers.source import Layout, SourceOptions, dataset_name, open_source, recognize
from grash.data.readers.tables import Columns, edge_columns, frame_columns, is_frame
from grash.data.readers.text import (
    TextSource,
    describe_text_format,
    read_text_file,
)
from grash.data.split import HELD_OUT, split_off
from grash.data.vocabulary import Encoder, Interner, Vocabulary
from grash.errors import ConfigError, InputError
from grash.files import check_absent, repair_folder
from grash.formatting import counted
from grash.keywords import ReadKeywords, SplitKeywords, with_keywords

if TYPE_CHECKING:
    from typing_extensions import Unpack

BUNDLED = {"world": Path(__file__).parent / "bundled" / "world.tsv"}
Watch = Callable[[str, float, int], None]  # receives the current step, its share done, and the triples so far

_FILE_OPTIONS = ("separator", "header", "columns", "bad_lines", "literals", "format")
Source = Dataset | str | Path
_log = logging.getLogger(__name__)


def as_dataset(source: Source) -> Dataset:
    return source if isinstance(source, Dataset) else load_dataset(source)


@with_keywords(ReadKeywords)
def load_dataset(source: Path | str, options: SourceOptions | None = None, **changes: Unpack[ReadKeywords]) -> Dataset:
    """Return the dataset of a source: an encoded folder is memory-mapped, all other files and folders are read.

    "world" is bundled; a public dataset, e.g. "FB15k-237", is downloaded on first use (`grash datasets` lists them).
    """
    path, options = _located(source, SourceOptions.of(options, changes))
    if is_bundled(path):
        graph = load_dataset(BUNDLED[str(path).lower()], options)
        return replace(graph, provenance={**graph.provenance, "source": f"{source}, bundled with grash"})
    layout = recognize(path, file_format=options.format)
    if layout.kind != "encoded":
        return _read(layout, options)
    if options != SourceOptions():
        raise ConfigError(f"{path} is already encoded, so options for reading it have no effect. Leave them out.")
    return Dataset.load(path)


@with_keywords(SplitKeywords)
def from_triples(
    train: Any,
    valid: Any = None,
    test: Any = None,
    *,
    name: str = "unnamed",
    ids: bool = False,
    **options: Unpack[SplitKeywords],
) -> Dataset:
    """Return the dataset of triples in memory, as `load_dataset` does for the same triples in a file.

    train, valid, test: sequences of (head, relation, tail), NumPy arrays (n, 3) or data frames with the columns head,
    relation, tail, or with three columns (see `from_dataframe`). Strings and integers are names: 5 is the name "5".
    With ids=True integers are ids, as in a .npy file, and there are no names. Missing splits are split off train.
    options: duplicates, valid_fraction, test_fraction, n_valid, n_test, seed.
    """
    given = {"train": train, "valid": valid, "test": test}
    columns = {split: _columns(rows, split) for split, rows in given.items() if rows is not None}
    return _from_columns(columns, name, ids=ids, options=options)


@with_keywords(SplitKeywords)
def from_dataframe(
    train: Any,
    valid: Any = None,
    test: Any = None,
    *,
    columns: str | Sequence[int | str] | None = None,
    name: str = "unnamed",
    **options: Unpack[SplitKeywords],
) -> Dataset:
    """Return the dataset of tables: pandas, polars, pyarrow, a DuckDB relation, or anything with the Arrow PyCapsule
    interface or the dataframe interchange protocol.

    columns: names (in any case) or places of head, relation and tail, e.g. ("start", "type", "end"). By default those
    named head, relation and tail (or subject, predicate, object), or the only three. Strings and integers are names.
    options: as in `from_triples`.
    """
    roles = [str(options[role]) for role in ROLES if role in options]  # type: ignore[literal-required]
    if len(roles) == 3:
        raise ConfigError(f"Columns are given together: give columns={tuple(roles)}.")
    splitting_options(options)
    given = {"train": train, "valid": valid, "test": test}
    found = {split: frame_columns(frame, split, columns) for split, frame in given.items() if frame is not None}
    return _from_columns(found, name, options=options)


@with_keywords(SplitKeywords)
def from_networkx(
    graph: Any,
    *,
    relation: str = "relation",
    default: str | None = None,
    name: str = "unnamed",
    **options: Unpack[SplitKeywords],
) -> Dataset:
    """Return the dataset of a NetworkX graph: one triple per edge, in its direction.

    relation: the edge attribute with the relation; in a multigraph, an edge without it has its key. default: relation
    of edges without both. Nodes are strings or integers. options: as in `from_triples`.
    """
    return _from_columns({"train": edge_columns(graph, relation, default)}, name, options=options)


def _from_columns(columns: dict[str, Columns], name: str, *, ids: bool = False, options: Mapping[str, Any]) -> Dataset:
    """Return the dataset of heads, relations and tails by split; ids: they are numbers, not names."""
    chosen = splitting_options(options)
    if "train" not in columns or len(columns["train"][0]) == 0:
        raise InputError("train contains no triples. Give at least one.")
    if ids:
        splits = {split: _ids(parts, split) for split, parts in columns.items()}
        graph = _Graph(splits, *dictionaries.count_ids(splits, {}, {}))
    else:
        encoder = Encoder()
        named = {split: [_names(part, split, role) for part, role in zip(ps, ROLES)] for split, ps in columns.items()}
        graph = _named_graph({split: encoder.encode(*parts) for split, parts in named.items()}, encoder)
    return _make_dataset(graph, chosen, name, {"source": "triples in memory", "layout": "memory", "files": {}})


@with_keywords(ReadKeywords)
def prepare(
    source: Path | str,
    out: Path,
    options: SourceOptions | None = None,
    *,
    overwrite: bool = False,
    memory: str | int | None = None,
    watch: Watch | None = None,
    **changes: Unpack[ReadKeywords],
) -> Dataset:
    """Encode a source into the folder `out` and return the dataset, memory-mapped.

    memory: limit such as "8G" (default: half of the machine's memory). A source that may need more is read in parts
    with a temporary folder OUT.spill; if that is killed, the same call resumes. The result is the same. `watch` then
    receives the current step, its share done, and the number of triples so far.
    """
    from grash.data.external import prepare as large

    (path, chosen), out = _located(source, SourceOptions.of(options, changes)), Path(out)
    limit = large.memory_limit(memory)
    repair_folder(out)
    layout = None if is_bundled(path) else recognize(path, file_format=chosen.format)
    if layout is not None and large.was_finished(layout, out, chosen):
        return Dataset.load(out)
    if not overwrite:
        check_absent(out)
    if layout is not None and memory is not None:
        large.check_limit(layout, limit)
    usable, started = large.usable_memory(limit), large.was_started(out)
    if layout is not None and large.must_read_in_parts(layout, usable, strict=memory is not None, started=started):
        large.prepare_large(layout, out, chosen, memory=usable, overwrite=overwrite, watch=watch)
    else:
        load_dataset(path, chosen).save(out, overwrite=overwrite)
    return Dataset.load(out)


def _located(source: Any, options: SourceOptions) -> tuple[Path, SourceOptions]:
    """Return the path of a source and how to read it; the name of a public dataset is that of no file or folder."""
    from grash.data import catalog

    path = _path(source)
    entry = catalog.named_entry(str(source))
    if entry is None or path.exists():
        return path, options
    if options.columns is None and entry.columns != ",".join(ROLES):
        in_order = sorted(entry.columns.split(",")) == sorted(ROLES)
        columns = "".join(role[0] for role in entry.columns.split(",")) if in_order else entry.columns
        options = replace(options, columns=columns)
    return catalog.fetch(entry), options


def _path(source: Any) -> Path:
    if not isinstance(source, str | os.PathLike):
        if is_frame(source):
            how = "a data frame with grash.from_dataframe(train, valid, test)"
        elif hasattr(source, "is_multigraph"):
            how = "a NetworkX graph with grash.from_networkx(graph)"
        else:
            how = "triples in memory with grash.from_triples(train, valid, test)"
        given = "None" if source is None else f"a value of type {type(source).__name__}"
        raise InputError(f"Got {given}, expected the path of a file or folder. Create a dataset of {how}.")
    if not str(source):
        raise InputError("The path of the graph is empty: give a file, a folder, or a name from `grash datasets`.")
    return Path(source)


def is_bundled(path: Path) -> bool:
    """Return whether this names a bundled graph, and no file or folder."""
    return str(path).lower() in BUNDLED and not path.exists()


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
    read_as = text_entries(layout, options)
    if layout.kind in ("libkge", "dictionaries", "openke"):
        graph = _named_graph(*dictionaries.read_dictionaries(layout, options))
    elif layout.formats["train"] in ("npy", "npz"):
        graph = _read_arrays(layout)
    else:
        graph = _read_names(layout, options)
    check_not_empty(layout, len(graph.splits["train"]), {**graph.notes, **read_as})
    entries = {**source_entries(layout, graph.notes), **read_as}
    return _make_dataset(graph, options, dataset_name(layout.path), entries)


def _read_names(layout: Layout, options: SourceOptions) -> _Graph:
    """Read files of names in any format, train first."""
    encoder, notes, prefixes = Encoder(), Counter[str](), dict[str, str]()
    splits: dict[str, Triples] = {}
    for split in SPLITS:
        if split in layout.files:
            path, file_format = layout.files[split], layout.formats[split]
            if file_format in RDF_FORMATS:
                splits[split] = read_rdf_file(path, file_format, encoder, options, notes, prefixes)
            elif file_format == "parquet":
                splits[split] = tables.read_parquet_file(path, encoder, options)
            elif file_format == "text":
                splits[split] = read_text_file(path, encoder, options, notes)
            else:
                raise InputError(
                    f"{path} is of the format {file_format}, which cannot be mixed with {layout.formats['train']}: "
                    f"give the splits in one format."
                )
    log_skipped_literals(notes)
    return _named_graph(splits, encoder, {**notes, **({"prefixes": prefixes} if prefixes else {})})


def _read_arrays(layout: Layout) -> _Graph:
    if layout.formats["train"] == "npz":
        splits = tables.read_npz_file(layout.files["train"])
    else:
        splits = {s: tables.read_npy_file(layout.files[s]) for s in SPLITS if s in layout.files}
    names = dictionaries.read_name_files(layout.files)
    counts = dictionaries.count_ids(splits, names, layout.files)
    entities = Vocabulary.from_interner(names["entities"]) if "entities" in names else None
    relations = Vocabulary.from_interner(names["relations"], kind="relation") if "relations" in names else None
    return _Graph(splits, *counts, entities, relations, repeated_name_entries(names))


def _named_graph(splits: dict[str, Triples], encoder: Encoder, notes: dict[str, Any] | None = None) -> _Graph:
    entities, relations = encoder.entities, encoder.relations
    repeated = repeated_name_entries({"entities": entities, "relations": relations})
    names = (Vocabulary.from_interner(entities), Vocabulary.from_interner(relations, kind="relation"))
    return _Graph(splits, len(entities), len(relations), *names, {**(notes or {}), **repeated})


def _make_dataset(graph: _Graph, options: SourceOptions, name: str, entries: dict[str, Any]) -> Dataset:
    """Drop duplicates, split off missing splits, and record both with the overlap of splits in the provenance."""
    splits, counts = graph.splits, (graph.n_entities, graph.n_relations)
    found, checked = check_splits(splits, *counts, options)
    if options.duplicates == "drop" and found.repeated.any():
        splits["train"] = select_rows(splits["train"], ~found.repeated)
    in_train, split_entries = split_off(splits, *counts, options, found.all_copies)
    if split_entries:
        splits["train"] = select_rows(splits["train"], in_train)
    return Dataset(
        **{split: splits[split] for split in SPLITS},
        n_entities=graph.n_entities,
        n_relations=graph.n_relations,
        entities=graph.entities,
        relations=graph.relations,
        name=name,
        provenance={**entries, **checked, **split_entries},
    )


def check_splits(
    splits: Mapping[str, Triples],
    n_entities: int,
    n_relations: int,
    options: SourceOptions,
    memory: int | None = None,
) -> tuple[Duplicates, dict[str, Any]]:
    """Find duplicates of train and what given valid and test share with it; return, and log, the entries for both.

    memory: bytes to use for memory-mapped splits. Duplicates that are kept are marked in `all_copies`: moving one copy
    to valid would leave another in train.
    """
    keep, train = options.duplicates == "keep", splits["train"]
    given: dict[str, Triples] = {split: splits[split] for split in HELD_OUT if split in splits}
    found = find_duplicates(train, given, memory, all_copies=keep)
    n_repeated = int(np.count_nonzero(found.repeated))
    if n_repeated and not keep:
        _log.info("%d duplicate triples of train were dropped.", n_repeated)
    entries: dict[str, Any] = {"repeated_in_train": {"count": n_repeated, "kept": keep}}
    if given:
        entries |= _overlap_entries(train, given, found.also_in_train, n_entities, n_relations)
    if len(given) == 2:
        in_test = find_duplicates(given["test"], {"valid": given["valid"]}, memory).also_in_train["valid"]
        entries["valid_in_test"] = int(np.count_nonzero(in_test))
        if entries["valid_in_test"]:
            _log.warning("%d of %d valid triples are also in test.", entries["valid_in_test"], len(in_test))
    return found, entries


def _overlap_entries(
    train: Triples, given: Mapping[str, Triples], also_in_train: Mapping[str, Mask], n_entities: int, n_relations: int
) -> dict[str, Any]:
    """Count the triples of valid and test that are also in train, and their entities and relations that are not."""
    entity_seen, relation_seen = used_ids(train, n_entities, n_relations)
    counts: dict[str, Any] = {"also_in_train": {}, "unseen_in_train": {}}
    for split, triples in given.items():
        overlap = int(np.count_nonzero(also_in_train[split]))
        entities = len(np.unique(triples[:, ::2][~entity_seen[triples[:, ::2]]]))
        relations = len(np.unique(triples[:, 1][~relation_seen[triples[:, 1]]]))
        counts["also_in_train"][split] = overlap
        counts["unseen_in_train"][split] = {"entities": entities, "relations": relations}
        if overlap:
            _log.warning("%d triples of %s are also in train; they are kept.", overlap, split)
        if entities or relations:
            _log.warning("%s has %d entities and %d relations that are not in train.", split, entities, relations)
    return counts


def source_entries(layout: Layout, notes: Mapping[str, Any]) -> dict[str, Any]:
    files = {role: path.name for role, path in layout.files.items()}
    return {"source": str(layout.path), "layout": layout.kind, "files": files, **notes}


def text_entries(layout: Layout, options: SourceOptions) -> dict[str, Any]:
    """Return {"read_as": separator, header and columns by split} of text files of names, else {}.

    Logs one line for files that are read alike. Raises ConfigError for bad_lines of a source without text.
    """
    if options.bad_lines != "error" and layout.formats and "text" not in layout.formats.values():
        raise ConfigError(
            f"bad_lines={options.bad_lines!r} is for text files, and {layout.path} has none. Leave it out."
        )
    if layout.kind not in ("file", "splits"):
        return {}
    read_as = {s: _text_format(layout, s, options) for s in SPLITS if layout.formats.get(s) == "text"}
    files: dict[str, list[str]] = {}
    for split, entry in read_as.items():
        files.setdefault(describe_text_format(entry), []).append(layout.files[split].name)
    for description, names in files.items():
        _log.info("%s: %s.", ", ".join(names), description)
    return {"read_as": read_as} if read_as else {}


def _text_format(layout: Layout, split: str, options: SourceOptions) -> dict[str, Any]:
    path = layout.files[split]
    with open_source(path) as stream:
        dialect = TextSource(stream, path, options).guess_dialect()
    header = dialect.header_lines > 0
    return {"separator": dialect.separator_name, "header": header, "columns": list(dialect.columns)}


def log_skipped_literals(notes: Mapping[str, int]) -> None:
    if notes.get("literals_skipped"):
        _log.info("%d triples with literals were skipped.", notes["literals_skipped"])


def check_not_empty(layout: Layout, n_triples: int, entries: Mapping[str, Any]) -> None:
    """Raise InputError for a source without triples. entries: how it was read."""
    if n_triples:
        return
    skipped, hint = entries.get("literals_skipped", 0), ""
    if skipped:
        were = f"{counted(skipped, 'triple')} with literals {'was' if skipped == 1 else 'were'}"
        hint = f" {were} skipped: keep {'it' if skipped == 1 else 'them'} with --literals keep."
    elif entries.get("read_as", {}).get("train", {}).get("header"):
        hint = " Its one line was taken as a header: if it is a triple, give --no-header (header=False)."
    raise InputError(f"{layout.files['train']} contains no triples.{hint}")


def repeated_name_entries(interners: Mapping[str, Interner]) -> dict[str, int]:
    """Return, and warn about, the number of repeated names of sources that list names."""
    notes = {}
    for stem, interner in interners.items():
        if interner.n_repeats:
            notes[f"repeated_names_of_{stem}"] = interner.n_repeats
            _log.warning("%d names of %s repeat others; lookups find only the first.", interner.n_repeats, stem)
    return notes


def splitting_options(options: Mapping[str, Any]) -> SourceOptions:
    """Return the options for duplicates and splits. Raises ConfigError for an option that only files have."""
    for name in _FILE_OPTIONS:
        if name in options:
            raise ConfigError(f"{name} is an option for files, but the triples are in memory. Leave it out.")
    return SourceOptions.of(None, dict(options))


def _columns(given: Any, split: str) -> Columns:
    """Return the heads, relations and tails of a split."""
    expected = "expected triples (head, relation, tail) in a sequence, an array (n, 3) or a data frame"
    if isinstance(given, str | bytes | os.PathLike | Mapping | set | frozenset):
        raise InputError(f"{split} is a {type(given).__name__}, {expected}. Read files with load_dataset.")
    if is_frame(given):
        return frame_columns(given, split)
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


def _row(row: Any, number: int, split: str) -> tuple[Any, ...]:
    parts = tuple(row) if isinstance(row, Iterable) and not isinstance(row, str | bytes) else ()
    if len(parts) != 3:
        raise InputError(f"Row {number:,} of {split} is {row!r}, expected (head, relation, tail).")
    return parts


def _is_integer(value: Any) -> bool:
    return isinstance(value, int | np.integer) and not isinstance(value, bool)


def _ids(columns: Columns, split: str) -> Triples:
    ids = np.empty((len(columns[0]), 3), np.int32)
    for column, part in enumerate(columns):
        values = part if isinstance(part, np.ndarray) and part.dtype.kind in "iu" else np.array(part, object)
        bad = np.zeros(len(values), bool) if values.dtype != object else ~np.fromiter(map(_is_integer, values), bool)
        bad[~bad] = (values[~bad] < 0) | (values[~bad] > MAX_ID)
        if bad.any():
            expected = f"an id from 0 to {MAX_ID:,}. Leave out ids=True if it is a name"
            raise _wrong_row(values, int(np.argmax(bad)), split, ROLES[column], expected)
        ids[:, column] = values
    return ids


def _names(column: Any, split: str, role: str) -> list[str]:
    """Return the names of a column; an integer is the name with its digits, as in a file."""
    values = column.tolist() if isinstance(column, np.ndarray) else column
    names = [value if isinstance(value, str) else str(value) if _is_integer(value) else "" for value in values]
    try:
        "".join(names).encode()
    except UnicodeEncodeError as error:
        raise InputError(f"A {role} of {split} cannot be encoded as UTF-8: {error.reason}.") from None
    if not all(names):
        raise _wrong_row(values, names.index(""), split, role, "a string or an integer")
    return names


def _wrong_row(values: Any, row: int, split: str, role: str, expected: str) -> InputError:
    """Return the error about the first row of values (n,) that is None, else about this row."""
    for number, value in enumerate(values):
        if value is None:
            return InputError(f"Row {number:,} of {split} has no {role}.")
    return InputError(f"Row {row:,} of {split} has the {role} {values[row]!r}, expected {expected}.")
