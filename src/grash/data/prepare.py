"""A source becomes a Dataset: the whole walk from files to ids, names, splits and what there is to say about them.

`grash prepare` calls prepare(); every command that takes a dataset calls load_dataset().
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from grash.data import numbered, tables
from grash.data.dataset import SPLITS, Dataset
from grash.data.duplicates import TripleSet
from grash.data.encode import Encoder, Triples
from grash.data.intern import Interner
from grash.data.layouts import Layout, dataset_name, recognise
from grash.data.options import SourceOptions
from grash.data.rdf import RDF_FORMATS, rdf_file
from grash.data.split import rows_where, split_triples
from grash.data.vocabulary import Vocabulary
from grash.errors import ConfigError, InputError

BUNDLED = {"world": Path(__file__).parent / "bundled" / "world.tsv"}
_NO_TRIPLES = np.empty((0, 3), np.int32)
_log = logging.getLogger(__name__)


def load_dataset(source: Path | str, options: SourceOptions | None = None, **changes: Any) -> Dataset:
    """The dataset of a source: an encoded folder is mapped, "world" is the bundled graph, all else is read."""
    options = SourceOptions.of(options, changes)
    path = Path(source)
    if not path.exists() and str(source) in BUNDLED:
        graph = read_source(BUNDLED[str(source)], options)
        return replace(graph, provenance={**graph.provenance, "source": f"{source}, bundled with grash"})
    layout = recognise(path, file_format=options.format)
    if layout.kind != "encoded":
        return _read(layout, options)
    if options != SourceOptions():
        raise ConfigError(f"{path} is encoded already, so that options for reading it have no effect: leave them out.")
    return Dataset.load(path)


def prepare(
    source: Path | str,
    out: Path,
    options: SourceOptions | None = None,
    *,
    overwrite: bool = False,
    **changes: Any,
) -> Dataset:
    """Encodes a source into the folder `out`, wholly or not at all; returns the dataset, mapped."""
    out = Path(out)
    if out.exists() and not overwrite:
        raise InputError(f"{out} exists already: give another folder, or allow overwriting it.")
    load_dataset(source, options, **changes).save(out, overwrite=overwrite)
    return Dataset.load(out)


def read_source(source: Path | str, options: SourceOptions | None = None, **changes: Any) -> Dataset:
    """The dataset of a file or folder in any of the known layouts, read into memory."""
    options = SourceOptions.of(options, changes)
    layout = recognise(Path(source), file_format=options.format)
    return Dataset.load(layout.path) if layout.kind == "encoded" else _read(layout, options)


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
    graph = _READERS[layout.kind](layout, options)
    if not len(graph.splits["train"]):
        skipped = graph.notes.get("literals_skipped", 0)
        hint = (
            f" ({skipped:,} triples with literals were skipped; literals=keep, or --literals keep, takes them)"
            if skipped
            else ""
        )
        raise InputError(f"{layout.files['train']} holds no triples{hint}.")
    provenance = {
        "source": str(layout.path),
        "layout": layout.kind,
        "files": {role: path.name for role, path in layout.files.items()},
        **graph.notes,
    }
    known = TripleSet(graph.splits["train"])
    stay = _repeating(graph.splits["train"], known) if options.duplicates == "keep" else None
    provenance["repeated_in_train"] = {"count": known.n_repeated, "kept": options.duplicates == "keep"}
    if options.duplicates == "drop" and known.n_repeated:
        _log.info("%d triples of train repeat others and were dropped.", known.n_repeated)
        graph.splits["train"] = rows_where(graph.splits["train"], ~known.repeated)
    provenance.update(_look_at_given(graph, known))
    del known
    provenance.update(_split_off_missing(graph, options, stay))
    return Dataset(
        **{split: graph.splits[split] for split in SPLITS},
        n_entities=graph.n_entities,
        n_relations=graph.n_relations,
        entities=graph.entities,
        relations=graph.relations,
        name=dataset_name(layout.path),
        provenance=provenance,
    )


def _repeating(triples: Triples, known: TripleSet) -> NDArray[np.bool_]:
    """Marks the triples that occur more than once; moving one copy to valid would leave another in train."""
    return TripleSet(rows_where(triples, known.repeated)).contains(triples)


def _look_at_given(graph: _Graph, known: TripleSet) -> dict[str, Any]:
    """Counts, for the valid and test that a source has, what also stands in train and what train has not seen."""
    given = [split for split in ("valid", "test") if split in graph.splits]
    if not given:
        return {}
    entity_seen, relation_seen = np.zeros(graph.n_entities, bool), np.zeros(graph.n_relations, bool)
    train = graph.splits["train"]
    entity_seen[train[:, 0]] = entity_seen[train[:, 2]] = relation_seen[train[:, 1]] = True
    counts: dict[str, Any] = {"also_in_train": {}, "unseen_in_train": {}}
    for split in given:
        triples = graph.splits[split]
        overlap = int(np.count_nonzero(known.contains(triples)))
        entities = len(np.unique(triples[:, ::2][~entity_seen[triples[:, ::2]]]))
        relations = len(np.unique(triples[:, 1][~relation_seen[triples[:, 1]]]))
        counts["also_in_train"][split] = overlap
        counts["unseen_in_train"][split] = {"entities": entities, "relations": relations}
        if overlap:
            _log.warning("%d triples of %s also stand in train; they are kept.", overlap, split)
        if entities or relations:
            _log.warning("%s has %d entities and %d relations that train has not seen.", split, entities, relations)
    return counts


def _split_off_missing(graph: _Graph, options: SourceOptions, stay: NDArray[np.bool_] | None) -> dict[str, Any]:
    """Splits valid and test off train where the source has none."""
    train = graph.splits["train"]
    wanted = {s: 0 if s in graph.splits else options.n_split_off(s, len(train)) for s in _HELD_OUT}
    missing = [split for split in _HELD_OUT if split not in graph.splits]
    if not missing:
        return {}
    _check_counts({split: wanted[split] for split in missing}, len(train), options)
    parts = split_triples(
        train, graph.n_entities, graph.n_relations,
        valid=wanted["valid"], test=wanted["test"], seed=options.seed, stay=stay,
    )  # fmt: skip
    graph.splits["train"] = parts[0]
    for split, part in zip(_HELD_OUT, parts[1:]):
        if split in missing:
            graph.splits[split] = part
    got = {split: len(graph.splits[split]) for split in missing}
    _log.info(
        "The source has no %s: %s were split off train with seed %d.",
        " and ".join(missing), _in_words(got), options.seed,
    )  # fmt: skip
    return {"split_off": {"seed": options.seed, "wanted": {s: wanted[s] for s in missing}, "got": got}}


def _check_counts(wanted: dict[Literal["valid", "test"], int], n_triples: int, options: SourceOptions) -> None:
    """Refuses counts that leave nothing for train; shares are below 1 already."""
    counted = [f"n_{split}" for split in wanted if getattr(options, f"n_{split}") is not None]
    if counted and sum(wanted.values()) >= n_triples:
        flags = " and ".join(f"--{name.replace('_', '-')}" for name in counted)
        raise ConfigError(
            f"{_in_words(wanted)} are to be split off, and the source has {n_triples:,} triples for train, valid and "
            f"test: give a smaller {' and '.join(counted)} ({flags})."
        )


def _in_words(counts: Mapping[Literal["valid", "test"], int]) -> str:
    return " and ".join(f"{count:,} {split}" for split, count in counts.items()) + " triples"


_HELD_OUT: tuple[Literal["valid"], Literal["test"]] = ("valid", "test")


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
    if notes["literals_skipped"]:
        _log.info("%d triples with literals were skipped.", notes["literals_skipped"])
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
    return _Graph(splits, n_entities, n_relations, entities, relations, _repeated_names(names))


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
    notes = {**(notes or {}), **_repeated_names({"entities": entities, "relations": relations})}
    named = (_vocabulary(entities, "entities"), _vocabulary(relations, "relations"))
    return _Graph(splits, len(entities), len(relations), *named, notes)


def _repeated_names(interners: Mapping[str, Interner | None]) -> dict[str, int]:
    notes = {}
    for what, interner in interners.items():
        if interner is not None and interner.n_repeats:
            notes[f"repeated_names_of_{what}"] = interner.n_repeats
            _log.warning("%d names of %s repeat others: only the first of each is found.", interner.n_repeats, what)
    return notes


def _vocabulary(interner: Interner | None, stem: str) -> Vocabulary | None:
    kind = "entity" if stem == "entities" else "relation"
    return None if interner is None else Vocabulary.from_interner(interner, kind=kind)
