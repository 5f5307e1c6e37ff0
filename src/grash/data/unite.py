"""Generations of names become one vocabulary, numbered by first appearance as if all had been in memory at once.

Comes from spill.py; goes to large.py. A name of a later generation is looked up among those of the earlier ones by the
same exact table as everywhere (intern.py), one part of all hashes after the other, as many parts as memory asks for.
Names of a generation stand in the order of their first appearance, so walking through them in order, and giving the
next id to each that no earlier one equals, gives every name the id that it would have had.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import numpy as np
from numba import njit
from numpy.typing import NDArray

from grash.data.arrays import in_blocks
from grash.data.gather import Watch
from grash.data.intern import HashedFields, Interner
from grash.data.spill import STEMS, Spill, map_rows, stored_names
from grash.data.split import Triples
from grash.data.vocabulary_file import VocabularyWriter, end_to_end
from grash.data.words import Whole
from grash.files import whole_file

_PER_NAME = 3 * 45  # bytes of the table while it is enlarged
_MOST_PARTS = 256  # each has files of its own
_ROWS = 1 << 20


def unite(spill: Spill, folder: Path, work: Path, room: int, watch: Watch) -> tuple[dict[str, Triples], dict[str, int]]:
    """(ids (n, 3) by split, mapped; how many names there are by stem). The vocabularies are written to `folder`.

    What is in `work` from an earlier attempt is used again where it is whole.
    """
    single = len(spill.generations) == 1
    counts = {}
    for stem in STEMS:
        writer = VocabularyWriter(folder, stem, work)
        with writer:
            for block in spill.names(stem) if single else _distinct(spill, stem, work, room, watch):
                writer.append(block)
        counts[stem] = writer.n_names
        writer.index(room)
    if single:
        return {split: spill.rows(split) for split in spill.mark.rows}, counts
    _renumber(spill, work, watch)
    return {split: map_rows(work / f"{split}.ids", n) for split, n in spill.mark.rows.items()}, counts


def _distinct(spill: Spill, stem: str, work: Path, room: int, watch: Watch) -> Iterator[HashedFields]:
    """The names that no earlier one equals, in order; writes the id of every spilled name (STEM.new) on the way."""
    n_spilled = spill.mark.names[stem]
    n_parts = min(_MOST_PARTS, 1 << max(0, -(-_PER_NAME * n_spilled // max(1, room)) - 1).bit_length())
    sizes = _deal_names(spill, stem, work, n_parts, watch)
    starts = np.zeros(n_parts + 1, np.int64)
    for part in range(n_parts):
        starts[part + 1] = starts[part] + _look_up_part(work / f"{stem}-{part}-of-{n_parts}", sizes[part])
        watch(f"comparing names of {stem}", (part + 1) / n_parts, 0)
    ids = np.empty(starts[-1], np.int32)  # of the distinct names of each part, in the order in which it first had them
    seen, state = np.zeros(n_parts, np.int64), np.zeros(1, np.int64)
    with whole_file(work / f"{stem}.new") as aside, ExitStack() as stack:
        new_ids = stack.enter_context(aside.open("wb"))
        files = [stack.enter_context((work / f"{stem}-{p}-of-{n_parts}.places").open("rb")) for p in range(n_parts)]
        for block in spill.names(stem):
            parts = _parts(block.hashes, n_parts)
            order = np.argsort(parts, kind="stable")
            counts = np.bincount(parts, minlength=n_parts)
            found = np.empty(len(parts), np.int32)
            found[order] = np.concatenate([np.fromfile(f, np.int32, n) for f, n in zip(files, counts)])
            fresh = np.zeros(len(parts), bool)
            _number(parts, found, starts, seen, ids, state, fresh)
            new_ids.write(found.data)
            yield HashedFields(block.buffer, block.starts[fresh], block.lengths[fresh], block.hashes[fresh])


def _deal_names(spill: Spill, stem: str, work: Path, n_parts: int, watch: Watch) -> NDArray[np.int64]:
    """Writes the names of each part into files of its own, in order; returns how many there are of each."""
    sizes_file = work / f"{stem}.sizes-of-{n_parts}"
    if sizes_file.exists():
        return np.fromfile(sizes_file, np.int64)
    sizes, done = np.zeros(n_parts, np.int64), 0
    with ExitStack() as stack:
        places = [work / f"{stem}-{part}-of-{n_parts}" for part in range(n_parts)]
        files = [[stack.enter_context(p.with_suffix(s).open("wb")) for s in (".names", ".lengths")] for p in places]
        for block in spill.names(stem):
            parts = _parts(block.hashes, n_parts)
            order = np.argsort(parts, kind="stable")
            counts = np.bincount(parts, minlength=n_parts)
            text, lengths = end_to_end(block.buffer, block.starts[order], block.lengths[order])
            ends = np.concatenate([[0], np.cumsum(lengths)])
            for (names, sizes_of), stop, n in zip(files, np.cumsum(counts), counts):
                names.write(text[ends[stop - n] : ends[stop]].data)
                sizes_of.write(lengths[stop - n : stop].astype(np.int32).data)
            sizes += counts
            done += len(parts)
            watch(f"sorting names of {stem}", done / spill.mark.names[stem], 0)
    with whole_file(sizes_file) as aside:
        sizes.tofile(aside)
    return sizes


def _look_up_part(place: Path, n_names: int) -> int:
    """Writes where among the distinct names of a part each of its names is; returns how many distinct ones it has."""
    found = place.with_suffix(".places")
    if found.exists():
        return int(np.fromfile(found, np.int32).max(initial=-1)) + 1
    interner = Interner()
    with whole_file(found) as aside, aside.open("wb") as file:
        for block in stored_names(place, n_names):
            file.write(interner.add_fields(block).data)
    for suffix in (".names", ".lengths"):
        place.with_suffix(suffix).unlink()
    return len(interner)


def _parts(hashes: NDArray[np.uint32], n_parts: int) -> NDArray[np.int16]:
    """The part of each hash, by its upper bits: the lower ones say where it lies in the table of its part."""
    return ((hashes.astype(np.uint64) * np.uint64(n_parts)) >> np.uint64(32)).astype(np.int16)


@njit(cache=True, nogil=True)
def _number(
    parts: NDArray[np.int16],
    found: NDArray[np.int32],
    starts: NDArray[np.int64],
    seen: NDArray[np.int64],
    ids: NDArray[np.int32],
    state: NDArray[np.int64],
    fresh: NDArray[np.bool_],
) -> None:
    """Turns places in a part (found) into ids; marks those that are there for the first time."""
    for i in range(found.size):
        part = parts[i]
        at = starts[part] + found[i]
        if found[i] == seen[part]:
            seen[part] += 1
            ids[at] = state[0]
            state[0] += 1
            fresh[i] = True
        found[i] = ids[at]


def _renumber(spill: Spill, work: Path, watch: Watch) -> None:
    """Writes SPLIT.ids with the ids that hold for all generations."""
    ends = [*spill.generations[1:], spill.mark]
    for split, n_rows in spill.mark.rows.items():
        rows, done = spill.rows(split), 0
        with whole_file(work / f"{split}.ids") as aside, aside.open("wb") as file:
            for begun, end in zip(spill.generations, ends):
                new = [_new_ids(work, stem, begun.names[stem], end.names[stem]) for stem in STEMS]
                for _, mapped in in_blocks(rows[begun.rows[split] : end.rows[split]], _ROWS):
                    block = np.array(mapped)
                    _apply(block, *new)
                    file.write(block.data)
                    done += len(block)
                    watch(f"renumbering {split}", done / n_rows, done)


def _new_ids(work: Path, stem: str, first: int, last: int) -> NDArray[np.int32]:
    return np.fromfile(work / f"{stem}.new", np.int32, last - first, offset=4 * first)


@njit(cache=True, nogil=True)
def _apply(triples: Triples, entity: NDArray[np.int32], relation: NDArray[np.int32]) -> Whole:
    for row in range(triples.shape[0]):
        triples[row, 0] = entity[triples[row, 0]]
        triples[row, 1] = relation[triples[row, 1]]
        triples[row, 2] = entity[triples[row, 2]]
