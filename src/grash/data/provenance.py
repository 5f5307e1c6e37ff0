"""The provenance of a dataset: entries that record, and log, how a source was read, checked and split.

Used by load.py and external/prepare.py, so both report the same. `grash describe` prints it (Reading).
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from grash.data.arrays import Mask, Triples, in_blocks
from grash.data.dataset import SPLITS
from grash.data.interning import Interner
from grash.data.readers.folders import Layout
from grash.data.readers.options import SourceOptions
from grash.data.readers.streams import open_source
from grash.data.readers.text import TextSource, possible_header
from grash.data.split import HeldOut
from grash.errors import InputError

_ROWS = 1 << 20
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Reading:
    """How a source was read."""

    duplicates_dropped: int
    split_off: dict[str, int]  # triples by split
    split_seed: int | None
    read_as: dict[str, dict[str, Any]]  # by split, separator, header and columns of text files


def reading_of(provenance: Mapping[str, Any]) -> Reading | None:
    """Return how a dataset was read, or None if it was not read from a source."""
    repeated = provenance.get("repeated_in_train")
    if repeated is None or "reduction" in provenance:
        return None
    split_off = provenance.get("split_off", {})
    dropped = 0 if repeated["kept"] else repeated["count"]
    return Reading(dropped, split_off.get("got", {}), split_off.get("seed"), provenance.get("read_as", {}))


def source_entries(layout: Layout, notes: Mapping[str, Any]) -> dict[str, Any]:
    files = {role: path.name for role, path in layout.files.items()}
    return {"source": str(layout.path), "layout": layout.kind, "files": files, **notes}


def text_entries(layout: Layout, options: SourceOptions) -> dict[str, Any]:
    """Return {"read_as": separator, header and columns by split} of text files of names, else {}.

    Logs one line for files that are read alike, and warns if a first line may be a header.
    """
    if layout.kind not in ("file", "splits"):
        return {}
    read_as = {s: _text_format(layout, s, options) for s in SPLITS if layout.formats.get(s) == "text"}
    files: dict[str, list[str]] = {}
    for split, entry in read_as.items():
        files.setdefault(describe_text_format(entry), []).append(layout.files[split].name)
    for description, names in files.items():
        _log.info("%s: %s.", ", ".join(names), description)
    return {"read_as": read_as} if read_as else {}


def describe_text_format(entry: dict[str, Any]) -> str:
    """Return an entry of read_as in words: separated by tabs, no header, columns 0, 1, 2 (head, relation, tail)."""
    header = "a header" if entry["header"] else "no header"
    columns = ", ".join(map(str, entry["columns"]))
    return f"separated by {entry['separator']}, {header}, columns {columns} (head, relation, tail)"


def _text_format(layout: Layout, split: str, options: SourceOptions) -> dict[str, Any]:
    path = layout.files[split]
    with open_source(path) as stream:
        source = TextSource(stream, path)
    dialect = source.guess_dialect(options)
    first = possible_header(source.sample, dialect) if options.header is None else None
    if first is not None:
        message = "%s: the first line (%s) looks like a header but is read as a triple. Give --header or --no-header."
        _log.warning(message, path, ", ".join(first))
    return {"separator": dialect.separator_name, "header": dialect.header, "columns": list(dialect.columns)}


def log_skipped_literals(notes: Mapping[str, int]) -> None:
    if notes.get("literals_skipped"):
        _log.info("%d triples with literals were skipped.", notes["literals_skipped"])


def check_not_empty(layout: Layout, n_triples: int, notes: Mapping[str, Any]) -> None:
    """Raise InputError for a source without triples."""
    if n_triples:
        return
    skipped = notes.get("literals_skipped", 0)
    hint = f" {skipped:,} triples with literals were skipped; keep them with --literals keep." if skipped else ""
    raise InputError(f"{layout.files['train']} contains no triples.{hint}")


def repeated_name_entries(interners: Mapping[str, Interner]) -> dict[str, int]:
    """Return, and warn about, the number of repeated names of sources that list names."""
    notes = {}
    for stem, interner in interners.items():
        if interner.n_repeats:
            notes[f"repeated_names_of_{stem}"] = interner.n_repeats
            _log.warning("%d names of %s repeat others; lookups find only the first.", interner.n_repeats, stem)
    return notes


def duplicate_entries(n_repeated: int, options: SourceOptions) -> dict[str, Any]:
    if options.duplicates == "drop" and n_repeated:
        _log.info("%d duplicate triples of train were dropped.", n_repeated)
    return {"repeated_in_train": {"count": n_repeated, "kept": options.duplicates == "keep"}}


def overlap_entries(
    splits: Mapping[str, Triples],
    also_in_train: Mapping[HeldOut, Mask],
    valid_in_test: Mask | None,
    n_entities: int,
    n_relations: int,
) -> dict[str, Any]:
    """Count the triples of given valid and test that are also in train, and their entities and relations that are not."""
    if not also_in_train:
        return {}
    entity_seen, relation_seen = np.zeros(n_entities, bool), np.zeros(n_relations, bool)
    for _, train in in_blocks(splits["train"], _ROWS):
        entity_seen[train[:, 0]] = entity_seen[train[:, 2]] = relation_seen[train[:, 1]] = True
    counts: dict[str, Any] = {"also_in_train": {}, "unseen_in_train": {}}
    for split, shared in also_in_train.items():
        triples = splits[split]
        overlap = int(np.count_nonzero(shared))
        entities = len(np.unique(triples[:, ::2][~entity_seen[triples[:, ::2]]]))
        relations = len(np.unique(triples[:, 1][~relation_seen[triples[:, 1]]]))
        counts["also_in_train"][split] = overlap
        counts["unseen_in_train"][split] = {"entities": entities, "relations": relations}
        if overlap:
            _log.warning("%d triples of %s are also in train; they are kept.", overlap, split)
        if entities or relations:
            _log.warning("%s has %d entities and %d relations that are not in train.", split, entities, relations)
    if valid_in_test is not None:
        counts["valid_in_test"] = int(np.count_nonzero(valid_in_test))
        if counts["valid_in_test"]:
            _log.warning("%d of %d valid triples are also in test.", counts["valid_in_test"], len(valid_in_test))
    return counts


def split_entries(wanted: dict[HeldOut, int], got: dict[HeldOut, int], seed: int) -> dict[str, Any]:
    """Return, and log, what was split off train."""
    if not wanted:
        return {}
    counts = " and ".join(f"{count:,} {split}" for split, count in got.items())
    missing = " and ".join(wanted)
    _log.info("The source has no %s: %s triples were split off train with seed %d.", missing, counts, seed)
    return {"split_off": {"seed": seed, "wanted": wanted, "got": got}}
