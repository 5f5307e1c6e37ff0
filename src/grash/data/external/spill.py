"""Read a source larger than memory once, into a spill folder, and give its names ids as if all were in memory.

Names are numbered in memory as long as they fit. Then a generation of names ends: it is written to the spill folder,
and numbering starts from 0 with the next line. Afterwards the generations are merged into one vocabulary: a name of a
later generation is looked up among the earlier ones with the same exact hash table (vocabulary.py), one part of the
hashes after the other. Names within a generation are in order of first appearance, so a walk through all of them that
gives the next id to each new name yields the ids that reading in memory would give.

The folder has append-only files. Its manifest records up to where they are complete; anything behind that is cut off
when the folder is opened again, so the same command resumes from the last commit.

    manifest.json           the source it belongs to; the last committed state; the state at which each generation of
                            names began; at the end, the checksum of the dataset that replaces it
    SPLIT.ids               int32 (n, 3), in ids of its generation
    STEM.names, .lengths    the concatenated names of all generations (entities, relations), and their lengths, int32
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shutil
from collections import Counter
from collections.abc import Callable, Generator, Iterator
from contextlib import ExitStack, closing, suppress
from dataclasses import asdict, dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import IO, Any

import numpy as np
from numba import njit
from numpy.typing import NDArray

from grash.data.arrays import Triples, in_blocks
from grash.data.dataset import SPLITS
from grash.data.load import Watch
from grash.data.readers.rdf import RDF_FORMATS, rdf_blocks
from grash.data.readers.source import Layout, SourceOptions, SourceStream, open_source
from grash.data.readers.text import TextSource
from grash.data.vocabulary import (
    SLACK,
    Encoder,
    HashedFields,
    Interner,
    VocabularyWriter,
    concatenate_names,
    hashed_fields,
)
from grash.errors import FormatError, InputError, OutputError
from grash.files import atomic_file, read_json, write_json

STEMS = ("entities", "relations")
MANIFEST = "manifest.json"
_SCHEMA, _VERSION = "grash-spill", 1
_NAMES = 1 << 20  # names per block


@dataclass(frozen=True)
class SpillState:
    """How much is in the spill, and where reading continues."""

    split: str | None  # being read; None after the last one
    next_byte: int = 0
    next_line: int = 1
    rows: dict[str, int] = field(default_factory=lambda: dict.fromkeys(SPLITS, 0))  # by split
    names: dict[str, int] = field(default_factory=lambda: dict.fromkeys(STEMS, 0))  # by stem
    name_bytes: dict[str, int] = field(default_factory=lambda: dict.fromkeys(STEMS, 0))
    notes: dict[str, int] = field(default_factory=dict)  # counted in the completed splits


class Spill:
    """The spill folder, locked by this process between `__enter__` and `__exit__`."""

    def __init__(self, folder: Path, belongs_to: dict[str, Any]) -> None:
        self.folder = folder
        self.belongs_to = json.loads(json.dumps(belongs_to))
        self.state = SpillState(SPLITS[0])
        self.generations: list[SpillState] = []
        self.result_checksum: str | None = None
        self.resumed = False
        self._files: dict[str, IO[bytes]] = {}

    def __enter__(self) -> Spill:
        self._lock_folder()
        try:
            self._open()
        except BaseException:
            self._close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._close()

    def add_rows(self, split: str, ids: Triples) -> None:
        self._files[f"{split}.ids"].write(ids.data)

    def add_names(self, stem: str, text: NDArray[np.uint8], lengths: NDArray[np.int32]) -> None:
        self._files[f"{stem}.names"].write(text.data)
        self._files[f"{stem}.lengths"].write(lengths.data)

    def begin_generation(self) -> None:
        """From here on, ids start from 0 again."""
        self.generations.append(self.state)

    def commit(self, state: SpillState) -> None:
        """Make everything added so far permanent."""
        for file in self._files.values():
            file.flush()
            os.fsync(file.fileno())
        self.state = state
        self._write_manifest()

    def record_result(self, description: Path) -> None:
        """Record the dataset.json of the finished dataset; only the removal of the spill remains."""
        self.result_checksum = _checksum(description)
        self._write_manifest()

    def remove_if_finished(self, description: Path) -> bool:
        """Remove the spill if the dataset of this dataset.json was made from it; return whether. Not inside `with`."""
        if not self.folder.is_dir() or not description.is_file():
            return False
        self._lock_folder()
        try:
            found = self._read_manifest()
            self.result_checksum = found.get("result_checksum") if found else None
            done = self.result_checksum is not None and self.result_checksum == _checksum(description)
            if done or not any(path.name != ".lock" for path in self.folder.iterdir()):
                self.remove()
            return done
        finally:
            self._lock.close()

    def rows(self, split: str) -> Triples:
        """Return the ids (n, 3) of a split, memory-mapped."""
        return map_rows(self.folder / f"{split}.ids", self.state.rows[split])

    def names(self, stem: str) -> Iterator[HashedFields]:
        """Yield the names of all generations, in blocks."""
        return stored_names(self.folder / stem, self.state.names[stem])

    def remove(self) -> None:
        """Delete the folder. The manifest of a finished spill goes last, so an interrupted removal is detected."""
        manifest = self.folder / MANIFEST
        if self.result_checksum is None:
            manifest.unlink(missing_ok=True)
        else:
            self._write_manifest(removing=True)
        for path in self.folder.iterdir():
            if path != manifest:
                with suppress(OSError):
                    _delete(path)
        shutil.rmtree(self.folder, ignore_errors=True)

    def _lock_folder(self) -> None:
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            self._lock = (self.folder / ".lock").open("a")
        except OSError as error:
            raise OutputError(self.folder, error.strerror or str(error)) from error
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            self._lock.close()
            raise InputError(f"{self.folder} is in use by another process. Wait for it, or stop it.") from error

    def _write_manifest(self, *, removing: bool = False) -> None:
        content = {
            "schema": _SCHEMA,
            "version": _VERSION,
            "belongs_to": self.belongs_to,
            "state": asdict(self.state),
            "generations": [asdict(state) for state in self.generations],
            "result_checksum": self.result_checksum,
            "removing": removing,
        }
        write_json(self.folder / MANIFEST, content)

    def _close(self) -> None:
        for file in self._files.values():
            file.close()
        self._lock.close()

    def _open(self) -> None:
        """Resume a spill of this source, cut off at its last commit; delete any other."""
        found = self._read_manifest()
        if found is None or found.get("removing"):
            _clear(self.folder)
        else:
            self.state = SpillState(**found["state"])
            self.generations = [SpillState(**state) for state in found["generations"]]
            self.resumed = True
        sizes = {f"{split}.ids": 12 * n for split, n in self.state.rows.items()}
        sizes |= {f"{stem}.lengths": 4 * n for stem, n in self.state.names.items()}
        sizes |= {f"{stem}.names": n for stem, n in self.state.name_bytes.items()}
        for name, size in sizes.items():
            path = self.folder / name
            if size and (not path.exists() or path.stat().st_size < size):
                raise FormatError(f"{path} is shorter than its manifest states. Delete {self.folder} and start again.")
            self._files[name] = path.open("r+b" if path.exists() else "w+b")
            self._files[name].truncate(size)
            self._files[name].seek(size)

    def _read_manifest(self) -> dict[str, Any] | None:
        if not (self.folder / MANIFEST).exists():
            return None
        found = read_json(self.folder / MANIFEST, schema=_SCHEMA, version=_VERSION)
        return found if found.get("belongs_to") == self.belongs_to else None


def stored_names(store: Path, n_names: int) -> Iterator[HashedFields]:
    """Yield the first names of the files STORE.names and STORE.lengths, in blocks."""
    with store.with_suffix(".names").open("rb") as text, store.with_suffix(".lengths").open("rb") as sizes:
        for start in range(0, n_names, _NAMES):
            lengths = np.fromfile(sizes, np.int32, min(_NAMES, n_names - start)).astype(np.int64)
            raw = np.frombuffer(text.read(int(lengths.sum())) + bytes(SLACK), np.uint8)
            yield hashed_fields(raw, np.cumsum(lengths) - lengths, lengths)


def map_rows(path: Path, n_rows: int) -> Triples:
    """Return the first rows (n, 3) of a raw int32 file, memory-mapped read-only."""
    if n_rows == 0:
        return np.empty((0, 3), np.int32)
    return np.asarray(np.memmap(path, np.int32, "r", shape=(n_rows, 3)))


def _clear(folder: Path) -> None:
    known = {f"{split}.ids" for split in SPLITS} | {f"{s}.{part}" for s in STEMS for part in ("names", "lengths")}
    known |= {MANIFEST, ".lock", "dataset", "work"}  # the last two belong to later steps
    others = [p.name for p in folder.iterdir() if p.name not in known and not p.name.endswith(".part")]
    if others:
        raise InputError(f"{folder} contains {others[0]}, which grash did not write. Move it away.")
    for path in folder.iterdir():
        if path.name != ".lock":
            _delete(path)


def _delete(path: Path) -> None:
    shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)


def _checksum(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


FORMATS = ("text", *RDF_FORMATS)  # that `SpillReader` can read
Block = tuple[Callable[[Encoder], Triples], int, int, int]  # function that returns ids; next_byte, next_line, n_bad

COMMIT_ROWS = 1 << 23  # between two commits: some seconds of work
_GROWTH = 3  # a growing table exists twice, the new one with twice the size
_PER_NAME = 3 * 45  # bytes of the table while it grows
_MAX_PARTS = 256  # each has its own files
_ROWS = 1 << 20


class SpillReader:
    """Read the rest of a source into the spill; names take up to `memory` bytes meanwhile."""

    def __init__(self, layout: Layout, options: SourceOptions, spill: Spill, memory: int, watch: Watch) -> None:
        self.layout, self.options, self.spill, self.memory, self.watch = layout, options, spill, memory, watch
        sizes: dict[str, int] = {split: layout.files[split].stat().st_size for split in SPLITS if split in layout.files}
        self.n_bytes = max(1, sum(sizes.values()))
        self.bytes_before = {split: sum(list(sizes.values())[:i]) for i, split in enumerate(sizes)}

    def run(self) -> None:
        splits = list(self.bytes_before)
        if self.spill.state.split is not None:
            self._begin_generation()
        while (split := self.spill.state.split) is not None:
            notes = Counter(self.spill.state.notes)
            with open_source(self.layout.files[split]) as stream:
                self._read(split, stream, notes)
            following = splits[splits.index(split) + 1 :]
            self._commit(split=following[0] if following else None, next_byte=0, next_line=1, notes=dict(notes))

    def _read(self, split: str, stream: SourceStream, notes: Counter[str]) -> None:
        n_uncommitted = 0
        with closing(self._blocks(split, stream, notes)) as blocks:
            for encode, byte, line, n_bad in blocks:
                if n_bad:
                    notes["bad_lines_skipped"] += n_bad
                ids = encode(self.encoder)
                self.spill.add_rows(split, ids)
                self.rows[split] += len(ids)
                n_uncommitted += len(ids)
                full = _GROWTH * sum(interner.n_bytes for interner in self._interners()) > self.memory
                if full or n_uncommitted >= COMMIT_ROWS:
                    # RDF is parsed from its start again, so its notes are only complete at its end
                    so_far = {} if self.layout.formats[split] in RDF_FORMATS else {"notes": dict(notes)}
                    self._commit(next_byte=byte, next_line=line, **so_far)
                    share = (self.bytes_before[split] + stream.position) / self.n_bytes
                    self.watch("reading", min(1.0, share), sum(self.rows.values()))
                    n_uncommitted = 0
                if full:
                    self._begin_generation()

    def _blocks(self, split: str, stream: SourceStream, notes: Counter[str]) -> Generator[Block, None, None]:
        """Yield the blocks after the last commit."""
        state, path, file_format = self.spill.state, self.layout.files[split], self.layout.formats[split]
        if file_format in RDF_FORMATS:
            return _rdf_blocks(stream, file_format, self.options, notes, state.next_byte)
        assert file_format == "text", f"{path} is {file_format}, which is not in FORMATS"
        return _text_blocks(stream, path, self.options, state)

    def _begin_generation(self) -> None:
        self.encoder = Encoder()
        self.rows = dict(self.spill.state.rows)
        self.n_written = dict.fromkeys(STEMS, 0)
        self.spill.begin_generation()

    def _commit(self, **position: object) -> None:
        state = self.spill.state
        names, name_bytes = dict(state.names), dict(state.name_bytes)
        for stem, interner in zip(STEMS, self._interners()):
            text, lengths = interner.names_from(self.n_written[stem])
            self.spill.add_names(stem, text, lengths)
            self.n_written[stem] += len(lengths)
            names[stem] += len(lengths)
            name_bytes[stem] += len(text)
        changed = {"rows": dict(self.rows), "names": names, "name_bytes": name_bytes}
        self.spill.commit(replace(state, **changed, **position))  # type: ignore[arg-type]

    def _interners(self) -> tuple[Interner, Interner]:
        return self.encoder.entities, self.encoder.relations


def _text_blocks(
    stream: SourceStream, path: Path, options: SourceOptions, state: SpillState
) -> Generator[Block, None, None]:
    source = TextSource(stream, path, options)
    dialect = source.guess_dialect()
    skip_lines = dialect.header_lines if state.next_byte == 0 else 0
    source.resume_at(state.next_byte, state.next_line)
    with closing(source.triple_fields(dialect, skip_lines=skip_lines)) as blocks:
        for fields in blocks:
            yield (
                (lambda encoder, groups=fields.groups: encoder.encode_fields(*groups)),  # type: ignore[misc]
                fields.next_byte,
                fields.next_line,
                fields.n_bad,
            )


def _rdf_blocks(
    stream: SourceStream, file_format: str, options: SourceOptions, notes: Counter[str], n_read: int
) -> Generator[Block, None, None]:
    """Yield blocks of an RDF file. It can only be parsed from the start, so blocks already read are skipped."""
    blocks = rdf_blocks(stream, file_format, options, notes)
    for number, block in enumerate(islice(blocks, n_read, None), n_read + 1):
        yield (lambda encoder, block=block: encoder.encode(*zip(*block))), number, 1, 0  # type: ignore[misc]


def merge_generations(
    spill: Spill, folder: Path, work: Path, memory: int, watch: Watch
) -> tuple[dict[str, Triples], dict[str, int]]:
    """Write the vocabularies to `folder`; return (ids (n, 3) by split, memory-mapped; number of names by stem).

    Complete files of an earlier attempt in `work` are used.
    """
    single = len(spill.generations) == 1
    counts = {}
    for stem in STEMS:
        writer = VocabularyWriter(folder, stem, work)
        with writer:
            for block in spill.names(stem) if single else _distinct_names(spill, stem, work, memory, watch):
                writer.append(block)
        counts[stem] = writer.n_names
        writer.write_index(memory)
    if single:
        return {split: spill.rows(split) for split in spill.state.rows}, counts
    _renumber(spill, work, watch)
    return {split: map_rows(work / f"{split}.ids", n) for split, n in spill.state.rows.items()}, counts


def _distinct_names(spill: Spill, stem: str, work: Path, memory: int, watch: Watch) -> Iterator[HashedFields]:
    """Yield the first occurrences of names in order; write the id of every spilled name (STEM.new) on the way."""
    n_spilled = spill.state.names[stem]
    n_parts = min(_MAX_PARTS, 1 << max(0, -(-_PER_NAME * n_spilled // max(1, memory)) - 1).bit_length())
    stores = [work / f"{stem}-{part}-of-{n_parts}" for part in range(n_parts)]
    sizes = _partition_names(spill, stem, work / f"{stem}.sizes-of-{n_parts}", stores, watch)
    starts = np.zeros(n_parts + 1, np.int64)
    for part, store in enumerate(stores):
        starts[part + 1] = starts[part] + _number_part(store, sizes[part])
        watch(f"comparing names of {stem}", (part + 1) / n_parts, 0)
    ids = np.empty(starts[-1], np.int32)  # of the distinct names of each part, by their first appearance in it
    n_seen, state = np.zeros(n_parts, np.int64), np.zeros(1, np.int64)
    with atomic_file(work / f"{stem}.new") as temporary, ExitStack() as stack:
        new_ids = stack.enter_context(temporary.open("wb"))
        files = [stack.enter_context(store.with_suffix(".numbers").open("rb")) for store in stores]
        for block in spill.names(stem):
            parts, order, counts = _parts(block.hashes, n_parts)
            numbers = np.empty(len(parts), np.int32)
            numbers[order] = np.concatenate([np.fromfile(f, np.int32, n) for f, n in zip(files, counts)])
            fresh = np.zeros(len(parts), bool)
            _assign_ids(parts, numbers, starts, n_seen, ids, state, fresh)
            new_ids.write(numbers.data)
            yield HashedFields(block.buffer, block.starts[fresh], block.lengths[fresh], block.hashes[fresh])


def _partition_names(spill: Spill, stem: str, sizes_file: Path, stores: list[Path], watch: Watch) -> NDArray[np.int64]:
    """Write the names of each part into its own files, in order; return their numbers."""
    if sizes_file.exists():
        return np.fromfile(sizes_file, np.int64)
    sizes, done = np.zeros(len(stores), np.int64), 0
    with ExitStack() as stack:
        files = [[stack.enter_context(p.with_suffix(s).open("wb")) for s in (".names", ".lengths")] for p in stores]
        for block in spill.names(stem):
            parts, order, counts = _parts(block.hashes, len(stores))
            lengths = block.lengths[order]
            text = concatenate_names(block.buffer, block.starts[order], lengths)
            ends = np.concatenate([[0], np.cumsum(lengths)])
            for (names, sizes_of), stop, n in zip(files, np.cumsum(counts), counts):
                names.write(text[ends[stop - n] : ends[stop]].data)
                sizes_of.write(lengths[stop - n : stop].astype(np.int32).data)
            sizes += counts
            done += len(parts)
            watch(f"sorting names of {stem}", done / spill.state.names[stem], 0)
    with atomic_file(sizes_file) as temporary:
        sizes.tofile(temporary)
    return sizes


def _number_part(store: Path, n_names: int) -> int:
    """Write the number of each name of a part among its distinct names; return how many distinct names it has."""
    numbers = store.with_suffix(".numbers")
    if numbers.exists():
        return int(np.fromfile(numbers, np.int32).max(initial=-1)) + 1
    interner = Interner()
    with atomic_file(numbers) as temporary, temporary.open("wb") as file:
        for block in stored_names(store, n_names):
            file.write(interner.add_fields(block).data)
    for suffix in (".names", ".lengths"):
        store.with_suffix(suffix).unlink()
    return len(interner)


def _parts(hashes: NDArray[np.uint32], n_parts: int) -> tuple[NDArray[np.int16], NDArray[np.int64], NDArray[np.int64]]:
    """Return the part of each hash, the order by part, and the size of each part.

    Uses the upper bits: the lower ones determine the place in the table of a part.
    """
    parts = ((hashes.astype(np.uint64) * np.uint64(n_parts)) >> np.uint64(32)).astype(np.int16)
    return parts, np.argsort(parts, kind="stable"), np.bincount(parts, minlength=n_parts)


@njit(cache=True, nogil=True)
def _assign_ids(
    parts: NDArray[np.int16],
    numbers: NDArray[np.int32],
    starts: NDArray[np.int64],
    n_seen: NDArray[np.int64],
    ids: NDArray[np.int32],
    state: NDArray[np.int64],
    fresh: NDArray[np.bool_],
) -> None:
    """Turn numbers within a part into ids, in place; mark the first occurrences of names."""
    for i in range(numbers.size):
        part = parts[i]
        at = starts[part] + numbers[i]
        if numbers[i] == n_seen[part]:
            n_seen[part] += 1
            ids[at] = state[0]
            state[0] += 1
            fresh[i] = True
        numbers[i] = ids[at]


def _renumber(spill: Spill, work: Path, watch: Watch) -> None:
    """Write SPLIT.ids with the ids of the merged vocabulary."""
    ends = [*spill.generations[1:], spill.state]
    for split, n_rows in spill.state.rows.items():
        rows, done = spill.rows(split), 0
        with atomic_file(work / f"{split}.ids") as temporary, temporary.open("wb") as file:
            for start, end in zip(spill.generations, ends):
                new = [_new_ids(work, stem, start.names[stem], end.names[stem]) for stem in STEMS]
                for _, mapped in in_blocks(rows[start.rows[split] : end.rows[split]], _ROWS):
                    block = np.array(mapped)
                    _replace_ids(block, *new)
                    file.write(block.data)
                    done += len(block)
                    watch(f"renumbering {split}", done / n_rows, done)


def _new_ids(work: Path, stem: str, first: int, last: int) -> NDArray[np.int32]:
    return np.fromfile(work / f"{stem}.new", np.int32, last - first, offset=4 * first)


@njit(cache=True, nogil=True)
def _replace_ids(triples: Triples, entity: NDArray[np.int32], relation: NDArray[np.int32]) -> None:
    for row in range(triples.shape[0]):
        triples[row, 0] = entity[triples[row, 0]]
        triples[row, 1] = relation[triples[row, 1]]
        triples[row, 2] = entity[triples[row, 2]]
