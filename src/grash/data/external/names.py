"""A source larger than memory is read once: ids go to the spill as they are given, names whenever they are many.

Comes from text.py and rdf.py, goes to spill.py. Names are numbered by first appearance, as in memory, as long as they
fit; then a generation ends, and the numbering begins anew with the next line. unite.py puts the generations together.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Generator, Iterator
from contextlib import ExitStack, closing
from dataclasses import replace
from itertools import islice
from pathlib import Path

import numpy as np
from numba import njit
from numpy.typing import NDArray

from grash.data.arrays import in_blocks
from grash.data.dataset import SPLITS
from grash.data.encoder import Encoder, Triples, triple_dialect, triple_fields
from grash.data.external.spill import STEMS, Mark, Spill, map_rows, stored_names
from grash.data.interning import HashedFields, Interner, Whole
from grash.data.readers.folders import Layout
from grash.data.readers.options import SourceOptions
from grash.data.readers.rdf import RDF_FORMATS, rdf_blocks
from grash.data.readers.streams import SourceStream, open_source
from grash.data.readers.text import TextSource
from grash.data.split import Triples as Triples_unite_import
from grash.data.vocabulary import VocabularyWriter, end_to_end
from grash.files import atomic_file

Watch = Callable[[str, float, int], None]  # told what is being done, the share that is done, triples so far
Piece = tuple[Callable[[Encoder], Triples], int, int]  # what gives the ids; then next_byte, next_line

ROWS = 1 << 23  # between two marks: some seconds of work
_GROWTH = 3  # a table that is enlarged is there twice, the new one twice as large


def gather(layout: Layout, options: SourceOptions, spill: Spill, room: int, watch: Watch) -> None:
    """Reads into the spill what it does not hold yet of a source; names take up to `room` bytes meanwhile."""
    _Gathering(layout, options, spill, room, watch).run()


class _Gathering:
    def __init__(self, layout: Layout, options: SourceOptions, spill: Spill, room: int, watch: Watch) -> None:
        self.layout, self.options, self.spill, self.room, self.watch = layout, options, spill, room, watch
        sizes: dict[str, int] = {split: layout.files[split].stat().st_size for split in SPLITS if split in layout.files}
        self.n_bytes = max(1, sum(sizes.values()))
        self.before = {split: sum(list(sizes.values())[:i]) for i, split in enumerate(sizes)}

    def run(self) -> None:
        splits = list(self.before)
        if self.spill.mark.split is not None:
            self._begin_generation()
        while (split := self.spill.mark.split) is not None:
            notes = Counter(self.spill.mark.notes)
            with open_source(self.layout.files[split]) as stream:
                self._read(split, stream, notes)
            following = splits[splits.index(split) + 1 :]
            self._commit(split=following[0] if following else None, next_byte=0, next_line=1, notes=dict(notes))

    def _read(self, split: str, stream: SourceStream, notes: Counter[str]) -> None:
        since = 0
        with closing(self._pieces(split, stream, notes)) as pieces:
            for encode, byte, line in pieces:
                ids = encode(self.encoder)
                self.spill.add_rows(split, ids)
                self.rows[split] += len(ids)
                since += len(ids)
                full = _GROWTH * sum(interner.n_bytes for interner in self._interners()) > self.room
                if full or since >= ROWS:
                    self._commit(next_byte=byte, next_line=line)
                    share = (self.before[split] + stream.place) / self.n_bytes
                    self.watch("reading", min(1.0, share), sum(self.rows.values()))
                    since = 0
                if full:
                    self._begin_generation()

    def _pieces(self, split: str, stream: SourceStream, notes: Counter[str]) -> Generator[Piece, None, None]:
        """What comes after the mark."""
        mark, path, file_format = self.spill.mark, self.layout.files[split], self.layout.formats[split]
        if file_format in RDF_FORMATS:
            return _rdf_pieces(stream, file_format, self.options, notes, mark.next_byte)
        return _text_pieces(stream, path, self.options, mark)

    def _begin_generation(self) -> None:
        self.encoder = Encoder()
        self.rows = dict(self.spill.mark.rows)
        self.written = dict.fromkeys(STEMS, 0)
        self.spill.begin_generation()

    def _commit(self, **where: object) -> None:
        mark = self.spill.mark
        names, name_bytes = dict(mark.names), dict(mark.name_bytes)
        for stem, interner in zip(STEMS, self._interners()):
            text, lengths = interner.since(self.written[stem])
            self.spill.add_names(stem, text, lengths)
            self.written[stem] += len(lengths)
            names[stem] += len(lengths)
            name_bytes[stem] += len(text)
        changed = {"rows": dict(self.rows), "names": names, "name_bytes": name_bytes}
        self.spill.commit(replace(mark, **changed, **where))  # type: ignore[arg-type]

    def _interners(self) -> tuple[Interner, Interner]:
        return self.encoder.entities, self.encoder.relations


def _text_pieces(stream: SourceStream, path: Path, options: SourceOptions, mark: Mark) -> Generator[Piece, None, None]:
    source = TextSource(stream, path)
    dialect = triple_dialect(source, options)
    skip_lines = int(dialect.header) if mark.next_byte == 0 else 0
    source.go_on_at(mark.next_byte, mark.next_line)
    with closing(triple_fields(source, dialect, skip_lines=skip_lines)) as blocks:
        for fields in blocks:
            yield (lambda encoder, fields=fields: encoder.fields(fields)), fields.next_byte, fields.next_line  # type: ignore[misc]


def _rdf_pieces(
    stream: SourceStream, file_format: str, options: SourceOptions, notes: Counter[str], n_read: int
) -> Generator[Piece, None, None]:
    """RDF has no place to begin from but the start: blocks that have been read are parsed again and passed over."""
    blocks = rdf_blocks(stream, file_format, options, notes)
    for number, block in enumerate(islice(blocks, n_read, None), n_read + 1):
        yield (lambda encoder, block=block: encoder.names(*zip(*block))), number, 1  # type: ignore[misc]


# = Generations of names become one vocabulary, numbered by first appearance as if all had been in memory at once.
# =
# = Comes from spill.py; goes to large.py. A name of a later generation is looked up among those of the earlier ones by the
# = same exact table as everywhere (intern.py), one part of all hashes after the other, as many parts as memory asks for.
# = Names of a generation stand in the order of their first appearance, so walking through them in order, and giving the
# = next id to each that no earlier one equals, gives every name the id that it would have had.

_PER_NAME = 3 * 45  # bytes of the table while it is enlarged
_MOST_PARTS = 256  # each has files of its own
_ROWS = 1 << 20


def unite(
    spill: Spill, folder: Path, work: Path, room: int, watch: Watch
) -> tuple[dict[str, Triples_unite_import], dict[str, int]]:
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
    with atomic_file(work / f"{stem}.new") as aside, ExitStack() as stack:
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
    with atomic_file(sizes_file) as aside:
        sizes.tofile(aside)
    return sizes


def _look_up_part(place: Path, n_names: int) -> int:
    """Writes where among the distinct names of a part each of its names is; returns how many distinct ones it has."""
    found = place.with_suffix(".places")
    if found.exists():
        return int(np.fromfile(found, np.int32).max(initial=-1)) + 1
    interner = Interner()
    with atomic_file(found) as aside, aside.open("wb") as file:
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
        with atomic_file(work / f"{split}.ids") as aside, aside.open("wb") as file:
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
def _apply(triples: Triples_unite_import, entity: NDArray[np.int32], relation: NDArray[np.int32]) -> Whole:
    for row in range(triples.shape[0]):
        triples[row, 0] = entity[triples[row, 0]]
        triples[row, 1] = relation[triples[row, 1]]
        triples[row, 2] = entity[triples[row, 2]]
