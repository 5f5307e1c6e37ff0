"""Encode a source larger than memory: file by file the same dataset that load.py would make.

names.py reads the source into a spill folder beside the result and numbers the names; then duplicates are found, one
part of the triples after the other, and the splits are written from file to file. Killed at any point, the same
command resumes from the last commit of the reading, or from the step it was in.
"""

from __future__ import annotations

import logging
import shutil
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numba import njit

from grash.data import provenance
from grash.data.arrays import ArrayWriter, Mask, Rows, Triples, in_blocks, release_pages, select_rows
from grash.data.dataset import DATASET_FILE, SPLITS, Dataset
from grash.data.external.names import SpillReader, Watch, merge_generations
from grash.data.external.spill import MANIFEST, Spill, map_rows
from grash.data.interning import Integer
from grash.data.readers import dictionaries, tables
from grash.data.readers.folders import Layout, dataset_name
from grash.data.readers.options import SourceOptions
from grash.data.split import HELD_OUT, HeldOut, held_out_rows, missing_splits
from grash.data.triple_set import TripleSet
from grash.data.vocabulary import Vocabulary
from grash.errors import ConfigError, InputError, OutputError
from grash.files import atomic_file, atomic_folder, check_replaceable

_ROWS = 1 << 20
_PER_ROW = 2 * (12 + 8) + 14 + 1  # bytes to find duplicates: triple and row number, twice; hash table slot; mark
_log = logging.getLogger(__name__)


def prepare_large(
    layout: Layout, out: Path, options: SourceOptions, *, memory: int, overwrite: bool, watch: Watch | None
) -> None:
    """Encode a source into the folder `out` in about `memory` bytes, with a temporary folder OUT.spill.

    The spill takes about as much disk as the result, plus the triples once more if the names did not fit or the ids
    are not int32.
    """
    watch = watch or (lambda what, share, n_triples: None)
    check_replaceable(out, overwrite=overwrite, kind="an encoded dataset", marker=DATASET_FILE)
    with Spill(_spill_folder(out), _identity(layout, options)) as spill:
        if spill.resumed:
            _log.info("Resuming from %s with %d triples.", spill.folder, sum(spill.state.rows.values()))
        folder, work = spill.folder / "dataset", spill.folder / "work"
        shutil.rmtree(folder, ignore_errors=True)
        for path in (folder, work):
            path.mkdir(exist_ok=True)
        for partial in (*spill.folder.glob(".*.part"), *work.glob(".*.part")):
            partial.unlink()  # left by a kill
        try:
            fields = _encode(layout, options, spill, folder, work, memory, watch)
        except (InputError, ConfigError):
            spill.remove()  # the source or the options have to change, so nothing here can be used again
            raise
        except OSError as error:
            then = "Fix the problem, then run the same command again to resume."
            raise OutputError(spill.folder, error.strerror or str(error), then=then) from error
        with atomic_folder(out, overwrite=overwrite, checksums=True) as temporary:
            for file in folder.iterdir():
                file.rename(temporary / file.name)
            watch("fingerprint", 0.0, 0)
            Dataset.complete_folder(temporary, **fields)
            spill.record_result(temporary / DATASET_FILE)
        spill.remove()


def was_finished(layout: Layout, out: Path, options: SourceOptions) -> bool:
    """Return whether an earlier call made `out` from this source but was stopped before removing its spill; remove it."""
    return Spill(_spill_folder(out), _identity(layout, options)).remove_if_finished(out / DATASET_FILE)


def was_started(out: Path) -> bool:
    """Return whether an earlier call for this result was stopped."""
    return (_spill_folder(out) / MANIFEST).exists()


def _spill_folder(out: Path) -> Path:
    return out.with_name(f"{out.name}.spill")


def _identity(layout: Layout, options: SourceOptions) -> dict[str, Any]:
    """Return what the spill belongs to; other files or options start from the beginning."""
    states = {role: path.stat() for role, path in layout.files.items()}
    files = {role: [str(layout.files[role].resolve()), s.st_size, s.st_mtime_ns] for role, s in states.items()}
    return {"files": files, "options": asdict(options)}


def _encode(
    layout: Layout, options: SourceOptions, spill: Spill, folder: Path, work: Path, memory: int, watch: Watch
) -> dict[str, Any]:
    """Write splits and vocabularies into `folder`; return the other fields of the dataset."""
    notes: Mapping[str, Any]
    read_as = provenance.text_entries(layout, options)
    if layout.formats["train"] == "npy":
        spill.commit(spill.state)  # so that a later call recognizes the spill
        splits, n_entities, n_relations, notes = _open_arrays(layout, folder, work)
    else:
        SpillReader(layout, options, spill, memory, watch).run()
        notes = spill.state.notes
        provenance.log_skipped_literals(notes)
        left = _remaining(memory, 4 * sum(spill.state.names.values()))
        merged, counts = merge_generations(spill, folder, work, left, watch)
        splits = {split: ids for split, ids in merged.items() if split in layout.files}
        n_entities, n_relations = counts["entities"], counts["relations"]
    provenance.check_not_empty(layout, len(splits["train"]), notes)
    watch("looking for duplicates", 0.0, len(splits["train"]))
    entries = {**provenance.source_entries(layout, notes), **read_as}
    keep = options.duplicates == "keep"
    given = {split: splits[split] for split in HELD_OUT if split in layout.files}
    marks = (1 + keep) * len(splits["train"]) + sum(map(len, given.values()))  # a byte per triple
    _warn_of_excess(memory, max(marks, (1 + keep) * len(splits["train"]) + 4 * n_entities))
    found = find_duplicates(splits["train"], given, _remaining(memory, marks), all_copies=keep)
    entries |= provenance.duplicate_entries(int(np.count_nonzero(found.repeated)), options)
    in_test = None
    if len(given) == 2:
        of_test = find_duplicates(given["test"], {"valid": given["valid"]}, _remaining(memory, marks))
        in_test = of_test.also_in_train["valid"]
    entries |= provenance.overlap_entries(splits, found.also_in_train, in_test, n_entities, n_relations)
    if not keep:
        splits["train"] = _without_duplicates(splits["train"], found.repeated, work)
    all_copies = found.all_copies
    del found
    watch("splitting", 0.0, len(splits["train"]))
    entries |= _write_splits(splits, n_entities, n_relations, options, all_copies, folder)
    name = dataset_name(layout.path)
    return {"n_entities": n_entities, "n_relations": n_relations, "name": name, "provenance": entries}


def _remaining(memory: int, taken: int) -> int:
    """Return the memory beside `taken` bytes, at least an eighth, or there would be too many parts."""
    return max(memory - taken, memory // 8)


def _warn_of_excess(memory: int, taken: int) -> None:
    excess = taken + memory // 8 - memory
    if excess > 0:
        message = "Marks of triples and names take %d MiB: about %d MiB more than the limit will be used."
        _log.warning(message, taken >> 20, (excess >> 20) + 1)


def _open_arrays(layout: Layout, folder: Path, work: Path) -> tuple[dict[str, Triples], int, int, dict[str, int]]:
    """Return (ids by split, n_entities, n_relations, notes) of arrays, memory-mapped: int32 directly, others as a copy."""
    splits: dict[str, Triples] = {s: _map_ids(layout.files[s], work / f"{s}.ids") for s in SPLITS if s in layout.files}
    names = dictionaries.read_names(layout.files)
    for stem, interner in names.items():
        Vocabulary.from_interner(interner).save(folder, stem)
    largest = {split: _largest_ids(triples) for split, triples in splits.items()}
    counts = dictionaries.count_ids(largest, names, layout.files)
    return splits, *counts, provenance.repeated_name_entries(names)


def _map_ids(path: Path, copy: Path) -> Triples:
    array = tables.open_ids(path)
    if array.dtype == np.int32 and array.flags.c_contiguous:
        return array
    if not copy.exists():
        with atomic_file(copy) as temporary, temporary.open("wb") as file:
            for _, block in in_blocks(array, _ROWS):
                file.write(np.ascontiguousarray(block, np.int32).data)
    return map_rows(copy, len(array))


def _largest_ids(triples: Triples) -> Triples:
    """Return the largest ids of each block (m, 3), without keeping the pages of a mapped array."""
    found = [block.max(axis=0) for _, block in in_blocks(triples, _ROWS)]
    return np.array(found, np.int32).reshape(-1, 3)


def _without_duplicates(train: Triples, repeated: Mask, work: Path) -> Triples:
    """Return train without repeated rows, memory-mapped from a separate file."""
    n_kept = len(train) - int(np.count_nonzero(repeated))
    if n_kept == len(train):
        return train
    with atomic_file(work / "train.kept") as temporary, temporary.open("wb") as file:
        for start, block in in_blocks(train, _ROWS):
            file.write(select_rows(block, ~repeated[start : start + _ROWS]).data)
    return map_rows(work / "train.kept", n_kept)


def _write_splits(
    splits: dict[str, Triples],
    n_entities: int,
    n_relations: int,
    options: SourceOptions,
    keep: Mask | None,
    folder: Path,
) -> dict[str, Any]:
    """Write train.npy, valid.npy and test.npy; split off missing ones from train."""
    train = splits["train"]
    wanted = missing_splits(splits, options, len(train))
    rows: tuple[Rows, ...] = ()
    if wanted:
        sizes = {split: wanted.get(split, 0) for split in HELD_OUT}
        rows = held_out_rows(train, n_entities, n_relations, **sizes, seed=options.seed, keep=keep)
    in_train = np.ones(len(train), bool)
    for missing, held_out in zip(HELD_OUT, rows):
        in_train[held_out] = False
        if missing in wanted:
            splits[missing] = train[held_out]
    release_pages(train)  # scattered rows map much of the file
    for split in SPLITS:
        with ArrayWriter(folder / f"{split}.npy", np.int32, (3,)) as file:
            for start, block in in_blocks(splits[split], _ROWS):
                file.append(select_rows(block, in_train[start : start + _ROWS]) if split == "train" else block)
    return provenance.split_entries(wanted, {split: len(splits[split]) for split in wanted}, options.seed)


@dataclass(frozen=True, eq=False)
class Duplicates:
    repeated: Mask  # (n,) rows of train that equal an earlier row
    also_in_train: dict[HeldOut, Mask]  # rows of other splits
    all_copies: Mask | None = None  # (n,) rows of train that equal any other row, if requested


def find_duplicates(
    train: Triples, others: dict[HeldOut, Triples], memory: int, *, all_copies: bool = False
) -> Duplicates:
    """Find the duplicates of train (n, 3), memory-mapped, and what others share with it, in about `memory` bytes."""
    n_parts = max(1, -(-_PER_ROW * len(train) // max(1, memory)))
    repeated = np.zeros(len(train), bool)
    copies = np.zeros(len(train), bool) if all_copies else None
    shared = {split: np.zeros(len(triples), bool) for split, triples in others.items()}
    for part in range(n_parts):
        rows, triples = _part_of(train, part, n_parts)
        known = TripleSet(triples)
        repeated[rows] = known.repeated
        if copies is not None:
            copies[rows] = TripleSet(select_rows(triples, known.repeated)).contains(triples)
        for split, other in others.items():
            shared[split] |= known.contains(other)
    return Duplicates(repeated, shared, copies)


def _part_of(train: Triples, part: int, n_parts: int) -> tuple[slice | Rows, Triples]:
    """Return the rows whose hash belongs to a part, and their triples in memory."""
    if n_parts == 1:
        copy = np.empty_like(train)
        for start, block in in_blocks(train, _ROWS):
            copy[start : start + len(block)] = block
        return slice(None), copy
    rows, triples = [], []
    for start, block in in_blocks(train, _ROWS):
        inside = np.empty(len(block), bool)
        _mark_part(block, part, n_parts, inside)
        rows.append(start + np.flatnonzero(inside))
        triples.append(select_rows(block, inside))
    return np.concatenate(rows), np.concatenate(triples)


@njit(cache=True, nogil=True)
def _mark_part(triples: Triples, part: Integer, n_parts: Integer, inside: Mask) -> None:
    for row in range(triples.shape[0]):
        h = np.uint64(triples[row, 0]) << np.uint64(32) | np.uint64(triples[row, 2])
        h = (h ^ (np.uint64(triples[row, 1]) * np.uint64(0xD6E8FEB86659FD93))) * np.uint64(0x9E3779B97F4A7C15)
        inside[row] = ((h >> np.uint64(32)) * np.uint64(n_parts)) >> np.uint64(32) == np.uint64(part)
