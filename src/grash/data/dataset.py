"""Dataset: a graph as three arrays of ids, with the names of entities and relations, in memory or memory-mapped.

Comes from load.py. Training, ranking and prediction take a Dataset and use ids only. On disk: dataset.json, train.npy,
valid.npy, test.npy, and the vocabularies if names are known.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import numpy as np

from grash.data.arrays import Mask, Triples, in_blocks, map_array, used_ids
from grash.data.vocabulary import Vocabulary
from grash.errors import FormatError, InputError
from grash.files import atomic_folder, check_replaceable, read_json, verify_folder, write_json
from grash.formatting import counted, html_table

SCHEMA, VERSION = "grash-dataset", 1
DATASET_FILE = "dataset.json"
SplitName = Literal["train", "valid", "test"]
SPLITS: tuple[SplitName, ...] = ("train", "valid", "test")
MAX_ID = 2**31 - 1

ROLES = ("head", "relation", "tail")  # columns of triples

_ROWS = 1 << 20  # rows per block, which stays in the cache


@dataclass(frozen=True, eq=False)
class Dataset:
    """Three splits of triples (n, 3) int32: head, relation and tail ids, C-contiguous, possibly mapped read-only."""

    train: Triples
    valid: Triples
    test: Triples
    n_entities: int
    n_relations: int
    entities: Vocabulary | None = None  # None if only ids are known
    relations: Vocabulary | None = None
    name: str = "unnamed"
    provenance: dict[str, Any] = field(default_factory=dict)  # JSON: source, dropped duplicates, split-off triples, …
    _stored_fingerprint: str | None = field(default=None, init=False, repr=False)  # from dataset.json

    def __post_init__(self) -> None:
        _check_count("entities", self.n_entities, self.entities)
        _check_count("relations", self.n_relations, self.relations)
        for split in SPLITS:
            _check_triples(self.split(split), split, self.n_entities, self.n_relations)

    def __repr__(self) -> str:
        sizes = " + ".join(f"{len(self.split(split)):,}" for split in SPLITS)
        counts = f"{counted(self.n_entities, 'entity', 'entities')}, {counted(self.n_relations, 'relation')}"
        return f"Dataset({self.name!r}: {counts}, {sizes} triples)"

    def _repr_html_(self) -> str:
        counts = f"{counted(self.n_entities, 'entity', 'entities')}, {counted(self.n_relations, 'relation')}"
        rows = [(split, len(self.split(split)), ", ".join(self._example(split))) for split in SPLITS]
        return html_table(f"{self.name}: {counts}", ("split", "triples", "first triple"), rows)

    def _example(self, split: SplitName) -> list[str]:
        """Return the names, or ids, of the first triple of a split; nothing if it is empty."""
        vocabularies = (self.entities, self.relations, self.entities)
        first = self.split(split)[0].tolist() if len(self.split(split)) else []
        return [str(i) if v is None else v.name(i) for v, i in zip(vocabularies, first)]

    def split(self, name: SplitName) -> Triples:
        """Return the triples (n, 3) of train, valid or test."""
        if name not in SPLITS:
            raise InputError(f"There is no split {name!r}. A dataset has train, valid and test.")
        return getattr(self, name)

    @cached_property
    def seen_in_train(self) -> tuple[Mask, Mask] | None:
        """Which entities (E,) and which relations (R,) have a training triple; None if all have, as a split that is
        made here leaves them. One pass over train, if reading the graph has found others."""
        unseen = self.provenance.get("unseen_in_train", {}).values()
        if not any(count for counts in unseen for count in counts.values()):
            return None
        return used_ids(self.train, self.n_entities, self.n_relations)

    def with_valid_in_train(self) -> Dataset:
        """Return a dataset whose train has the triples of valid too, and whose valid is empty: for the model that is
        used in the end, once its settings are chosen. There is no validation then, and no early stopping."""
        provenance = {**self.provenance, "valid_in_train": len(self.valid)}
        train = np.concatenate([self.train, self.valid])
        return replace(self, train=train, valid=self.valid[:0], provenance=provenance)

    @cached_property
    def fingerprint(self) -> str:
        """SHA-256 (hex) of counts, triples and names."""
        return self._stored_fingerprint or self._digest(self.entities, self.relations)

    @cached_property
    def unnamed_fingerprint(self) -> str:
        """Fingerprint of the same dataset without names. Trained models depend on ids alone."""
        return self.fingerprint if self.entities is self.relations is None else self._digest(None, None)

    def _digest(self, *vocabularies: Vocabulary | None) -> str:
        digest = hashlib.sha256()
        counts = [self.n_entities, self.n_relations, *(len(self.split(s)) for s in SPLITS)]
        counts += [-1 if v is None else len(v) for v in vocabularies]
        digest.update(np.array(counts, "<i8").data)
        for split in SPLITS:
            for _, block in in_blocks(self.split(split), _ROWS):
                digest.update(block.data)
        for vocabulary in vocabularies:
            if vocabulary is not None:
                vocabulary.digest_into(digest)
        return digest.hexdigest()

    def save(self, folder: Path, *, overwrite: bool = False) -> None:
        """Write the folder atomically. With `overwrite`, replace an encoded dataset."""
        folder = Path(folder)
        check_replaceable(folder, overwrite=overwrite, kind="an encoded dataset", marker=DATASET_FILE)
        with atomic_folder(folder, overwrite=overwrite, checksums=True) as temporary:
            for split in SPLITS:
                np.save(temporary / f"{split}.npy", self.split(split), allow_pickle=False)
            for stem, vocabulary in (("entities", self.entities), ("relations", self.relations)):
                if vocabulary is not None:
                    vocabulary.save(temporary, stem)
            write_json(temporary / DATASET_FILE, self._metadata())

    @classmethod
    def complete_folder(cls, folder: Path, **fields: Any) -> Dataset:
        """Write dataset.json into a folder that already has the arrays and, if names are known, the vocabularies.

        fields: n_entities, n_relations, name, provenance.
        """
        parts: dict[str, Any] = {split: map_array(folder / f"{split}.npy", np.int32, (None, 3)) for split in SPLITS}
        for stem in ("entities", "relations"):
            if (folder / f"{stem}.names.npy").exists():
                parts[stem] = Vocabulary.load(folder, stem)
        dataset = cls(**parts, **fields)
        write_json(folder / DATASET_FILE, dataset._metadata())
        return dataset

    @classmethod
    def load(cls, folder: Path, *, verify: bool = True) -> Dataset:
        """Return the dataset of a folder, memory-mapped. With `verify`, its files are compared with their checksums."""
        folder = Path(folder)
        if not (folder / DATASET_FILE).is_file():
            raise InputError(f"{folder} is not an encoded dataset: it has no {DATASET_FILE}.")
        meta = read_json(folder / DATASET_FILE, schema=SCHEMA, version=VERSION)
        if verify:
            verify_folder(folder)
        dataset = _from_metadata(cls, folder, meta)
        object.__setattr__(dataset, "_stored_fingerprint", meta["fingerprint"])
        return dataset

    def _metadata(self) -> dict[str, Any]:
        return {
            "schema": SCHEMA,
            "version": VERSION,
            "name": self.name,
            "n_entities": int(self.n_entities),
            "n_relations": int(self.n_relations),
            "n_triples": {split: len(self.split(split)) for split in SPLITS},
            "entity_names": self.entities is not None,
            "relation_names": self.relations is not None,
            "fingerprint": self.fingerprint,
            "provenance": self.provenance,
        }


def _from_metadata(cls: type[Dataset], folder: Path, meta: dict[str, Any]) -> Dataset:
    try:
        n_triples = {split: int(meta["n_triples"][split]) for split in SPLITS}
        counts: dict[str, Any] = {key: int(meta[key]) for key in ("n_entities", "n_relations")}
        named = (bool(meta["entity_names"]), bool(meta["relation_names"]))
        name, provenance, _ = str(meta["name"]), dict(meta["provenance"]), str(meta["fingerprint"])
    except (KeyError, TypeError, ValueError) as error:
        reason = f"{type(error).__name__}: {error}"
        raise FormatError(f"{folder / DATASET_FILE} is damaged ({reason}). Create the dataset again.") from error
    parts: dict[str, Any] = {s: map_array(folder / f"{s}.npy", np.int32, (n_triples[s], 3)) for s in SPLITS}
    entities = Vocabulary.load(folder, "entities") if named[0] else None
    relations = Vocabulary.load(folder, "relations") if named[1] else None
    try:
        return cls(**parts, **counts, entities=entities, relations=relations, name=name, provenance=provenance)
    except InputError as error:
        raise FormatError(f"{folder} is damaged: {error}") from error


def _check_count(what: str, n: int, vocabulary: Vocabulary | None) -> None:
    if not 0 <= n <= MAX_ID:
        raise InputError(f"n_{what}={n} is out of range: it must be 0 to {MAX_ID:,}.")
    if vocabulary is not None and len(vocabulary) != n:
        raise InputError(f"n_{what}={n:,}, but there are names of {len(vocabulary):,} {what}.")


def _check_triples(triples: Triples, split: str, n_entities: int, n_relations: int) -> None:
    if not isinstance(triples, np.ndarray) or triples.ndim != 2 or triples.shape[1] != 3:
        shape = getattr(triples, "shape", type(triples).__name__)
        raise InputError(f"{split} has the shape {shape}, expected (n, 3): head, relation, tail.")
    if triples.dtype != np.int32 or not triples.flags.c_contiguous:
        raise InputError(f"{split} is {triples.dtype}, expected a C-contiguous array of int32.")
    for start, block in in_blocks(triples, _ROWS):
        for column, n in enumerate((n_entities, n_relations, n_entities)):
            ids = block[:, column]
            if ids.min() < 0 or ids.max() >= n:
                row = int(np.argmax((ids < 0) | (ids >= n)))
                raise InputError(
                    f"Row {start + row:,} of {split} has the {ROLES[column]} id {ids[row]}, expected 0 to {n - 1:,}."
                )
