"""A source larger than memory becomes an encoded dataset: the same one, file by file, that prepare.py would make.

prepare.py comes here when a source may need more memory than it is given. The walk: gather.py reads it into a spill
folder beside the result, unite.py numbers the names, repeats.py finds duplicates, and the splits are written from file
to file. Killed at any point, it goes on from the last mark of the reading, or from the step it was in.
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
from numpy.typing import NDArray

from grash.data.arrays import ArrayWriter, give_back, in_blocks
from grash.data.checks import (
    HELD_OUT,
    HeldOut,
    check_some,
    look_at_given,
    missing_splits,
    origin,
    say_repeats,
    say_skipped,
    say_split,
    say_understood,
)
from grash.data.dataset import DATASET_FILE, SPLITS, Dataset
from grash.data.external.names import Watch, gather, unite
from grash.data.external.spill import MANIFEST, Spill, map_rows
from grash.data.interning import Interner, Whole
from grash.data.readers import arrays as numbered
from grash.data.readers import tables
from grash.data.readers.folders import Layout, dataset_name
from grash.data.readers.options import SourceOptions
from grash.data.split import Triples, held_out_rows, rows_where
from grash.data.triple_set import Triples as Triples_repeats_import
from grash.data.triple_set import TripleSet
from grash.data.vocabulary import Vocabulary
from grash.errors import ConfigError, InputError, OutputError
from grash.files import atomic_file, atomic_folder

_ROWS = 1 << 20
_log = logging.getLogger(__name__)


def prepare_large(
    layout: Layout, out: Path, options: SourceOptions, *, room: int, overwrite: bool, watch: Watch | None
) -> None:
    """Encodes a source into the folder `out` in about `room` bytes of memory, by way of OUT.spill.

    On disk, the spill takes about as much as the result and, where names did not fit or ids are no int32, once more the
    triples.
    """
    watch = watch or (lambda what, share, n_triples: None)
    if out.exists() and not (out / DATASET_FILE).is_file():
        raise InputError(f"{out} holds no encoded dataset, so it is not overwritten: give another folder.")
    with Spill(_spill_folder(out), _identity(layout, options)) as spill:
        if spill.resumed:
            there = sum(spill.mark.rows.values())
            _log.info("Goes on from %s%s.", spill.folder, f": {there} triples are there" if there else "")
        folder, work = spill.folder / "dataset", spill.folder / "work"
        shutil.rmtree(folder, ignore_errors=True)
        for place in (folder, work):
            place.mkdir(exist_ok=True)
        for left in (*spill.folder.glob(".*.part"), *work.glob(".*.part")):
            left.unlink()  # files that were being written at a kill
        try:
            about = _encode(layout, options, spill, folder, work, room, watch)
        except (InputError, ConfigError):
            spill.remove()  # what is wrong has to be changed, and then it is another source
            raise
        except OSError as error:
            reason = error.strerror or str(error)
            raise OutputError(spill.folder, reason, then="With that mended, the same command goes on.") from error
        with atomic_folder(out, overwrite=overwrite) as aside:
            for file in folder.iterdir():
                file.rename(aside / file.name)
            watch("fingerprint", 0.0, 0)
            Dataset.seal(aside, **about)
            spill.seal(aside / DATASET_FILE)
        spill.remove()


def was_finished(layout: Layout, out: Path, options: SourceOptions) -> bool:
    """Whether `out` is what an earlier call made of this source and was stopped at clearing up, which is done here."""
    return Spill(_spill_folder(out), _identity(layout, options)).remove_if_sealed(out / DATASET_FILE)


def was_begun(out: Path) -> bool:
    """Whether an earlier call for a result at this place was stopped on its way."""
    return (_spill_folder(out) / MANIFEST).exists()


def _spill_folder(out: Path) -> Path:
    return out.with_name(f"{out.name}.spill")


def _identity(layout: Layout, options: SourceOptions) -> dict[str, Any]:
    """What the spill is of: other files or other options begin anew."""
    states = {role: path.stat() for role, path in layout.files.items()}
    files = {role: [str(layout.files[role].resolve()), s.st_size, s.st_mtime_ns] for role, s in states.items()}
    return {"files": files, "options": asdict(options)}


def _encode(
    layout: Layout, options: SourceOptions, spill: Spill, folder: Path, work: Path, room: int, watch: Watch
) -> dict[str, Any]:
    """Writes splits and vocabularies into `folder`; returns what else a dataset has."""
    notes: Mapping[str, Any]
    read_as = say_understood(layout, options)
    if layout.formats["train"] == "npy":
        spill.commit(spill.mark)  # so that the same call is known again
        splits, n_entities, n_relations, notes = _arrays(layout, folder, work)
    else:
        gather(layout, options, spill, room, watch)
        notes = spill.mark.notes
        say_skipped(notes)
        united, counts = unite(spill, folder, work, _left(room, 4 * sum(spill.mark.names.values())), watch)
        splits = {split: ids for split, ids in united.items() if split in layout.files}
        n_entities, n_relations = counts["entities"], counts["relations"]
    check_some(layout, len(splits["train"]), notes)
    watch("looking for duplicates", 0.0, len(splits["train"]))
    given = {split: splits[split] for split in HELD_OUT if split in layout.files}
    keep = options.duplicates == "keep"
    besides = (1 + keep) * len(splits["train"]) + sum(map(len, given.values()))  # a mark of each triple
    _say_excess(room, max(besides, (1 + keep) * len(splits["train"]) + 4 * n_entities))
    repeats = find_repeats(splits["train"], given, _left(room, besides), again=keep)
    provenance = {**origin(layout, notes), **read_as}
    provenance |= say_repeats(int(np.count_nonzero(repeats.repeated)), options)
    in_test = None
    if len(given) == 2:
        in_test = find_repeats(given["test"], {"valid": given["valid"]}, _left(room, besides)).also_in_train["valid"]
    provenance |= look_at_given(splits, repeats.also_in_train, in_test, n_entities, n_relations)
    if options.duplicates == "drop":
        splits["train"] = _without_repeats(splits["train"], repeats, work)
    stay = repeats.again
    del repeats
    watch("splitting", 0.0, len(splits["train"]))
    provenance |= _write_splits(splits, n_entities, n_relations, options, stay, folder)
    return {
        "n_entities": n_entities,
        "n_relations": n_relations,
        "name": dataset_name(layout.path),
        "provenance": provenance,
    }


def repeated_names(interners: Mapping[str, Interner | None]) -> dict[str, int]:
    """Says how many names repeat others, where a source lists them; for the provenance too."""
    notes = {}
    for what, interner in interners.items():
        if interner is not None and interner.n_repeats:
            notes[f"repeated_names_of_{what}"] = interner.n_repeats
            _log.warning("%d names of %s repeat others: only the first of each is found.", interner.n_repeats, what)
    return notes


def _left(room: int, besides: int) -> int:
    """What is left of the room beside so many bytes; some of it always, or parts would be too many."""
    return max(room - besides, room // 8)


def _say_excess(room: int, besides: int) -> None:
    over = besides + room // 8 - room
    if over > 0:
        _log.warning(
            "The marks of so many triples and names take %d MiB: about %d MiB more than the limit will be taken.",
            besides >> 20, (over >> 20) + 1,
        )  # fmt: skip


def _arrays(layout: Layout, folder: Path, work: Path) -> tuple[dict[str, Triples], int, int, dict[str, int]]:
    """(ids by split, n_entities, n_relations, notes) of arrays, mapped: int32 as they are, others from a copy."""
    splits: dict[str, Triples] = {s: _mapped(layout.files[s], work / f"{s}.ids") for s in SPLITS if s in layout.files}
    stems = [stem for stem in ("entities", "relations") if stem in layout.files]
    names: dict[str, Any] = {stem: numbered.read_name_lines(layout.files[stem]) for stem in stems}
    for stem, interner in names.items():
        Vocabulary.from_interner(interner).save(folder, stem)
    largest = {split: _largest(triples) for split, triples in splits.items()}
    return splits, *numbered.array_counts(largest, names, layout.files), repeated_names(names)


def _mapped(path: Path, copy: Path) -> Triples:
    array = tables.open_ids(path)
    if array.dtype == np.int32 and array.flags.c_contiguous:
        return array
    if not copy.exists():
        with atomic_file(copy) as aside, aside.open("wb") as file:
            for _, block in in_blocks(array, _ROWS):
                file.write(np.ascontiguousarray(block, np.int32).data)
    return map_rows(copy, len(array))


def _largest(triples: Triples) -> Triples:
    """The largest ids of each column (1, 3), without holding the pages of a mapped array."""
    found = [block.max(axis=0) for _, block in in_blocks(triples, _ROWS)]
    return np.array(found, np.int32).reshape(-1, 3)


def _without_repeats(train: Triples, repeats: Repeats, work: Path) -> Triples:
    """Train without the rows that repeat others, mapped from a file of its own."""
    n_kept = len(train) - int(np.count_nonzero(repeats.repeated))
    if n_kept == len(train):
        return train
    with atomic_file(work / "train.kept") as aside, aside.open("wb") as file:
        for start, block in in_blocks(train, _ROWS):
            file.write(rows_where(block, ~repeats.repeated[start : start + _ROWS]).data)
    return map_rows(work / "train.kept", n_kept)


def _write_splits(
    splits: dict[str, Triples],
    n_entities: int,
    n_relations: int,
    options: SourceOptions,
    stay: NDArray[np.bool_] | None,
    folder: Path,
) -> dict[str, Any]:
    """Writes train.npy, valid.npy and test.npy; those that are missing are split off train."""
    train = splits["train"]
    wanted = missing_splits(splits, options, len(train))
    rows: tuple[NDArray[np.int64], ...] = ()
    if wanted:
        rows = held_out_rows(
            train, n_entities, n_relations,
            valid=wanted.get("valid", 0), test=wanted.get("test", 0), seed=options.seed, stay=stay,
        )  # fmt: skip
    in_train = np.ones(len(train), bool)
    for missing, mine in zip(HELD_OUT, rows):
        in_train[mine] = False
        if missing in wanted:
            splits[missing] = train[mine]
    give_back(train)  # rows here and there map much of the file
    for split in SPLITS:
        with ArrayWriter(folder / f"{split}.npy", np.int32, (3,)) as file:
            for start, block in in_blocks(splits[split], _ROWS):
                file.append(rows_where(block, in_train[start : start + _ROWS]) if split == "train" else block)
    return say_split(wanted, {split: len(splits[split]) for split in wanted}, options.seed)


# = Which triples repeat, where their table does not fit into memory: some of all triples at a time, by their hash.
# =
# = Used by large.py; duplicates.py is what does the work on each part.

_PER_ROW = 2 * (12 + 8) + 14 + 1  # bytes: the triple and its row number, twice while they are gathered; slot; mark


@dataclass(frozen=True, eq=False)
class Repeats:
    """repeated (n,): rows of train that an earlier row equals. also_in_train: which rows of other splits stand there.
    again (n,), if asked for: rows of train that any other row equals, the first of them too."""

    repeated: NDArray[np.bool_]
    also_in_train: dict[HeldOut, NDArray[np.bool_]]
    again: NDArray[np.bool_] | None = None


def find_repeats(
    train: Triples_repeats_import, others: dict[HeldOut, Triples_repeats_import], room: int, *, again: bool = False
) -> Repeats:
    """The repeats of train (n, 3), mapped, and what others share with it, in about `room` bytes."""
    n_parts = max(1, -(-_PER_ROW * len(train) // max(1, room)))
    repeated = np.zeros(len(train), bool)
    everywhere = np.zeros(len(train), bool) if again else None
    shared = {split: np.zeros(len(triples), bool) for split, triples in others.items()}
    for part in range(n_parts):
        rows, mine = _of_part(train, part, n_parts)
        known = TripleSet(mine)
        repeated[rows] = known.repeated
        if everywhere is not None:
            everywhere[rows] = TripleSet(rows_where(mine, known.repeated)).contains(mine)
        for split, triples in others.items():
            shared[split] |= known.contains(triples)
    return Repeats(repeated, shared, everywhere)


def _of_part(
    train: Triples_repeats_import, part: int, n_parts: int
) -> tuple[slice | NDArray[np.int64], Triples_repeats_import]:
    """The rows that belong to a part, and their triples in memory."""
    if n_parts == 1:
        whole = np.empty_like(train)
        for start, block in in_blocks(train, _ROWS):
            whole[start : start + len(block)] = block
        return slice(None), whole
    rows, triples = [], []
    for start, block in in_blocks(train, _ROWS):
        mine = np.empty(len(block), bool)
        _mark_part(block, part, n_parts, mine)
        rows.append(start + np.flatnonzero(mine))
        triples.append(rows_where(block, mine))
    return np.concatenate(rows), np.concatenate(triples)


@njit(cache=True, nogil=True)
def _mark_part(triples: Triples_repeats_import, part: Whole, n_parts: Whole, mine: NDArray[np.bool_]) -> None:
    for row in range(triples.shape[0]):
        h = np.uint64(triples[row, 0]) << np.uint64(32) | np.uint64(triples[row, 2])
        h = (h ^ (np.uint64(triples[row, 1]) * np.uint64(0xD6E8FEB86659FD93))) * np.uint64(0x9E3779B97F4A7C15)
        mine[row] = ((h >> np.uint64(32)) * np.uint64(n_parts)) >> np.uint64(32) == np.uint64(part)
