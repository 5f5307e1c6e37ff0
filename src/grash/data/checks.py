"""What is said about a source once it is read: what its splits share, what is split off.

Used by prepare.py and large.py, so that both say the same.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from grash.data.arrays import in_blocks
from grash.data.dataset import SPLITS
from grash.data.encoder import triple_dialect
from grash.data.readers.folders import Layout
from grash.data.readers.options import SourceOptions
from grash.data.readers.streams import open_source
from grash.data.readers.text import TextSource, header_in_doubt, separator_name
from grash.data.split import Triples
from grash.errors import ConfigError, InputError

HeldOut = Literal["valid", "test"]
HELD_OUT: tuple[HeldOut, HeldOut] = ("valid", "test")
_ROWS = 1 << 20
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Reading:
    """What became of a source when it was read. read_as: by split, how its text was understood, if it was text."""

    repeats_dropped: int
    split_off: dict[str, int]
    split_seed: int | None
    read_as: dict[str, dict[str, Any]]


def reading_of(provenance: Mapping[str, Any]) -> Reading | None:
    """What the provenance of a dataset says about its reading; None if it was not made by reading a source."""
    repeated = provenance.get("repeated_in_train")
    if repeated is None or "reduction" in provenance:
        return None
    split_off = provenance.get("split_off", {})
    dropped = 0 if repeated["kept"] else repeated["count"]
    return Reading(dropped, split_off.get("got", {}), split_off.get("seed"), provenance.get("read_as", {}))


def origin(layout: Layout, notes: Mapping[str, Any]) -> dict[str, Any]:
    """Where a dataset comes from, the beginning of its provenance."""
    files = {role: path.name for role, path in layout.files.items()}
    return {"source": str(layout.path), "layout": layout.kind, "files": files, **notes}


def check_some(layout: Layout, n_triples: int, notes: Mapping[str, Any]) -> None:
    """Refuses a source without triples."""
    if n_triples:
        return
    skipped = notes.get("literals_skipped", 0)
    hint = (
        f" ({skipped:,} triples with literals were skipped; literals=keep, or --literals keep, takes them)"
        if skipped
        else ""
    )
    raise InputError(f"{layout.files['train']} holds no triples{hint}.")


def say_repeats(n_repeated: int, options: SourceOptions) -> dict[str, Any]:
    if options.duplicates == "drop" and n_repeated:
        _log.info("%d triples of train repeat others and were dropped.", n_repeated)
    return {"repeated_in_train": {"count": n_repeated, "kept": options.duplicates == "keep"}}


def look_at_given(
    splits: Mapping[str, Triples],
    also_in_train: Mapping[HeldOut, NDArray[np.bool_]],
    valid_in_test: NDArray[np.bool_] | None,
    n_entities: int,
    n_relations: int,
) -> dict[str, Any]:
    """Counts, for the valid and test that a source has, what also stands in train, what train has not seen, and if it
    has both, what of valid stands in test."""
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
            _log.warning("%d triples of %s also stand in train; they are kept.", overlap, split)
        if entities or relations:
            _log.warning("%s has %d entities and %d relations that train has not seen.", split, entities, relations)
    if valid_in_test is not None:
        counts["valid_in_test"] = int(np.count_nonzero(valid_in_test))
        if counts["valid_in_test"]:
            _log.warning("%d of %d valid triples stand in test too.", counts["valid_in_test"], len(valid_in_test))
    return counts


def missing_splits(given: Mapping[str, Any], options: SourceOptions, n_train: int) -> dict[HeldOut, int]:
    """How many triples are to be split off train for each split that a source does not have."""
    wanted = {split: options.n_split_off(split, n_train) for split in HELD_OUT if split not in given}
    counted = [f"n_{split}" for split in wanted if getattr(options, f"n_{split}") is not None]
    if counted and sum(wanted.values()) >= n_train:  # shares are below 1 already
        flags = " and ".join(f"--{name.replace('_', '-')}" for name in counted)
        raise ConfigError(
            f"{_in_words(wanted)} are to be split off, and the source has {n_train:,} triples for train, valid and "
            f"test: give a smaller {' and '.join(counted)} ({flags})."
        )
    return wanted


def say_split(wanted: dict[HeldOut, int], got: dict[HeldOut, int], seed: int) -> dict[str, Any]:
    """What was split off, for the provenance."""
    if not wanted:
        return {}
    _log.info("The source has no %s: %s were split off train with seed %d.", " and ".join(wanted), _in_words(got), seed)
    return {"split_off": {"seed": seed, "wanted": wanted, "got": got}}


def say_skipped(notes: Mapping[str, int]) -> None:
    if notes.get("literals_skipped"):
        _log.info("%d triples with literals were skipped.", notes["literals_skipped"])


def _in_words(counts: Mapping[HeldOut, int]) -> str:
    return " and ".join(f"{count:,} {split}" for split, count in counts.items()) + " triples"


# = How the text files of a source are understood, said before they are read, so that a wrong guess can be seen.
# =
# = Comes from layouts.py (which files there are); what it returns goes into the provenance, whichever way a source is read.


def say_understood(layout: Layout, options: SourceOptions) -> dict[str, Any]:
    """{"read_as": by split, separator, header and columns} of text files of names; nothing of other sources.

    Says so for all files that are alike in one line, and warns of a first line that may be a header. Takes the first
    bytes of each file.
    """
    if layout.kind not in ("file", "splits"):
        return {}
    read_as = {s: _look_at(layout, s, options) for s in SPLITS if layout.formats.get(s) == "text"}
    lines: dict[str, list[str]] = {}
    for split, found in read_as.items():
        lines.setdefault(in_words(found), []).append(layout.files[split].name)
    for words, names in lines.items():
        _log.info("%s: %s.", ", ".join(names), words)
    return {"read_as": read_as} if read_as else {}


def in_words(read_as: dict[str, Any]) -> str:
    """A file's entry of read_as: separated by tabs, no header, columns 0, 1, 2 (head, relation, tail)."""
    header = "a header" if read_as["header"] else "no header"
    places = ", ".join(map(str, read_as["columns"]))
    return f"separated by {read_as['separator']}, {header}, columns {places} (head, relation, tail)"


def _look_at(layout: Layout, split: str, options: SourceOptions) -> dict[str, Any]:
    path = layout.files[split]
    with open_source(path) as stream:
        source = TextSource(stream, path)
    dialect = triple_dialect(source, options)
    doubtful = header_in_doubt(source.sample, dialect) if options.header is None else None
    if doubtful is not None:
        _log.warning(
            "%s: the first line (%s) looks like a header, and is read as a triple: say whether it is one with header "
            "(--header or --no-header).", path, ", ".join(doubtful),
        )  # fmt: skip
    return {
        "separator": separator_name(dialect.separator),
        "header": dialect.header,
        "columns": list(dialect.columns),
    }
