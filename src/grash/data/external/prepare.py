"""Encode a source larger than memory: file by file the same dataset that load.py would make, within a memory limit.

spill.py reads the source into a folder beside the result and numbers the names; then duplicates are found, one
part of the triples after the other, and the splits are written from file to file. Killed at any point, the same
command resumes from the last commit of the reading, or from the step it was in.
"""

from __future__ import annotations

import logging
import shutil
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from grash.data import load
from grash.data.arrays import ArrayWriter, Mask, Triples, in_blocks, open_array, release_pages, select_rows
from grash.data.dataset import DATASET_FILE, SPLITS, Dataset
from grash.data.external.spill import FORMATS, MANIFEST, Spill, SpillReader, map_rows, merge_generations
from grash.data.readers import dictionaries, tables
from grash.data.readers.source import Layout, SourceOptions, dataset_name, machine_bytes, open_source
from grash.data.split import HELD_OUT, split_off
from grash.data.vocabulary import Vocabulary
from grash.errors import ConfigError, InputError, OutputError
from grash.files import atomic_file, atomic_folder, beside, check_replaceable
from grash.formatting import format_bytes, parse_size

_ROWS = 1 << 20
MIN_LIMIT = 1 << 30
_DEFAULT_FRACTION = 0.5  # of the memory of the machine or container
_OVERHEAD = 3 << 28  # of a limit, for Python, its libraries and blocks of text
_LIBRARIES = 3 << 27  # of that, without the text: 0.35 GiB measured

_PER_NAME = 60
_PER_ROW = 2 * 12 + 14  # ids twice, and the table of duplicates
_PER_LINE = _PER_ROW + 2 * _PER_NAME  # with two names that occur nowhere else
_EXPANSION = 8  # likely ratio of uncompressed to compressed size
_MAX_EXPANSION = 1032  # of gzip; other formats reach less with text
_SAMPLE = 1 << 16
_NAMES = ("entities", "relations")
_READ_IN_PARTS = {"file": {*FORMATS, "npy"}, "splits": {*FORMATS}, "arrays": {"npy"}}  # formats by kind of layout
_log = logging.getLogger(__name__)


def prepare_large(
    layout: Layout, out: Path, options: SourceOptions, *, memory: int, overwrite: bool, watch: load.Watch | None
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
    """Return whether an earlier call made `out` from this source but left its spill; remove it."""
    return Spill(_spill_folder(out), _identity(layout, options)).remove_if_finished(out / DATASET_FILE)


def was_started(out: Path) -> bool:
    """Return whether an earlier call for this result was stopped."""
    return (_spill_folder(out) / MANIFEST).exists()


def _spill_folder(out: Path) -> Path:
    return beside(out, ".spill")


def _identity(layout: Layout, options: SourceOptions) -> dict[str, Any]:
    """Return what the spill belongs to; other files or options start from the beginning."""
    states = {role: path.stat() for role, path in layout.files.items()}
    files = {role: [str(layout.files[role].resolve()), s.st_size, s.st_mtime_ns] for role, s in states.items()}
    return {"files": files, "options": asdict(options)}


def _encode(
    layout: Layout, options: SourceOptions, spill: Spill, folder: Path, work: Path, memory: int, watch: load.Watch
) -> dict[str, Any]:
    """Write splits and vocabularies into `folder`; return the other fields of the dataset."""
    notes: Mapping[str, Any]
    read_as = load.text_entries(layout, options)
    if layout.formats["train"] == "npy":
        spill.commit(spill.state)  # so that a later call recognizes the spill
        splits, n_entities, n_relations, notes = _open_arrays(layout, folder, work)
    else:
        SpillReader(layout, options, spill, memory, watch).run()
        notes = spill.state.notes
        load.log_skipped_literals(notes)
        left = _remaining(memory, 4 * sum(spill.state.names.values()))
        merged, counts = merge_generations(spill, folder, work, left, watch)
        splits = {split: ids for split, ids in merged.items() if split in layout.files}
        n_entities, n_relations = counts["entities"], counts["relations"]
    load.check_not_empty(layout, len(splits["train"]), {**notes, **read_as})
    n_train = len(splits["train"])
    watch("looking for duplicates", 0.0, n_train)
    n_masks = 1 + (options.duplicates == "keep")  # of train, a byte per triple
    marks = n_masks * n_train + sum(len(splits[split]) for split in HELD_OUT if split in splits)
    _warn_of_excess(memory, max(marks, n_masks * n_train + 4 * n_entities))
    found, checked = load.check_splits(splits, n_entities, n_relations, options, _remaining(memory, marks))
    if options.duplicates == "drop":
        splits["train"] = _without_duplicates(splits["train"], found.repeated, work)
    watch("splitting", 0.0, len(splits["train"]))
    in_train, split_entries = split_off(splits, n_entities, n_relations, options, found.all_copies)
    _write_splits(splits, in_train, folder)
    entries = {**load.source_entries(layout, notes), **read_as, **checked, **split_entries}
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
    """Return (ids by split, n_entities, n_relations, notes) of arrays, memory-mapped: int32 directly, others copied."""
    splits: dict[str, Triples] = {s: _map_ids(layout.files[s], work / f"{s}.ids") for s in SPLITS if s in layout.files}
    names = dictionaries.read_name_files(layout.files)
    for stem, interner in names.items():
        Vocabulary.from_interner(interner).save(folder, stem)
    largest = {split: _largest_ids(triples) for split, triples in splits.items()}
    counts = dictionaries.count_ids(largest, names, layout.files)
    return splits, *counts, load.repeated_name_entries(names)


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


def _write_splits(splits: Mapping[str, Triples], in_train: Mask, folder: Path) -> None:
    """Write train.npy, valid.npy and test.npy."""
    release_pages(splits["train"])  # scattered rows, which were split off, map much of the file
    for split in SPLITS:
        with ArrayWriter(folder / f"{split}.npy", np.int32, (3,)) as file:
            for start, block in in_blocks(splits[split], _ROWS):
                file.append(select_rows(block, in_train[start : start + _ROWS]) if split == "train" else block)


def memory_limit(given: str | int | None) -> int:
    """Return a limit in bytes from a number or a text such as 8G or 500M; None: half of the machine's memory."""
    if given is None:
        return max(MIN_LIMIT, int(_DEFAULT_FRACTION * machine_bytes()))
    limit = int(parse_size(given, "memory"))
    if limit < MIN_LIMIT:
        raise ConfigError(f"memory={given!r} is too little. Give 1G or more.")
    return limit


def usable_memory(limit: int) -> int:
    """Return what a limit leaves for names and triples."""
    return limit - _OVERHEAD


def must_read_in_parts(layout: Layout, usable: int, *, strict: bool, started: bool = False) -> bool:
    """Return whether a source is read in parts: because that was started, or because it may exceed `usable` bytes.

    strict: assume the maximum expansion of compressed files instead of the likely one.
    """
    return _can_read_in_parts(layout) and (started or bytes_at_once(layout, strict=strict) > usable)


def bytes_at_once(layout: Layout, *, strict: bool = False) -> int:
    """Return the bytes that reading a source at once may take, with as many names as its lines allow."""
    return sum(_estimate(layout, role, strict) for role in layout.files)


def check_limit(layout: Layout, limit: int) -> None:
    """Warn if a source that can only be read at once may exceed a given limit. Raises InputError if it must."""
    in_parts = _can_read_in_parts(layout)
    roles = [role for role in layout.files if role in _NAMES or not in_parts]
    if not roles:
        return
    what = f"The names beside {layout.path}" if in_parts else str(layout.path)
    advice = "Text, and arrays of ids without names, can be read in parts"
    least = sum(_minimum(layout, role) for role in roles)
    if least > limit:
        raise InputError(
            f"{what} can only be read at once, which takes more than {format_bytes(least)}, but the limit is "
            f"{format_bytes(limit)}. Give more memory (--memory). {advice}."
        )
    likely = sum(_estimate(layout, role, False) for role in roles) + _LIBRARIES
    if likely > limit:
        message = "%s can only be read at once, which may take %s, more than the limit of %s. %s."
        _log.warning(message, what, format_bytes(likely), format_bytes(limit), advice)


def _can_read_in_parts(layout: Layout) -> bool:
    return {*layout.formats.values()} <= _READ_IN_PARTS.get(layout.kind, set()) and bool(layout.formats)


def _estimate(layout: Layout, role: str, strict: bool) -> int:
    path, file_format = layout.files[role], layout.formats.get(role, "text")
    size = path.stat().st_size
    if file_format == "npy":
        return _PER_ROW * _npy_rows(path)
    if file_format == "npz":
        return sum(max(n_bytes + 12 * n_rows, _PER_ROW * n_rows) for n_bytes, n_rows in tables.npz_sizes(path))
    if file_format == "parquet":
        return _EXPANSION * size + _PER_LINE * tables.parquet_rows(path)
    try:
        with open_source(path) as stream:
            sample, compressed = stream.read(_SAMPLE), stream.compression is not None
    except InputError:
        return 0  # reported when the file is read
    if compressed:
        size *= _MAX_EXPANSION if strict else _EXPANSION
    n_lines = size * (sample.count(b"\n") + 1) // max(1, len(sample))
    if role in _NAMES:
        return size + _PER_NAME * n_lines
    return _PER_ROW * n_lines if {*_NAMES} <= {*layout.files} else size + _PER_LINE * n_lines


def _npy_rows(path: Path) -> int:
    try:
        array = open_array(path)
    except (ValueError, OSError):
        return 0
    return len(array) if array.ndim else 0


def _minimum(layout: Layout, role: str) -> int:
    """Return the bytes that a file which is read at once takes at least."""
    if layout.formats.get(role) == "npz":
        return sum(n_bytes for n_bytes, _ in tables.npz_sizes(layout.files[role]))
    return layout.files[role].stat().st_size
