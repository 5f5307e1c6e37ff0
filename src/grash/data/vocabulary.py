"""Names become ids, and ids become names again, without a Python object per name.

Comes from the fields of readers/text.py and the strings of readers/rdf.py. The Interner gives each distinct name the
next id: all names are in one byte blob with 8-byte offsets; its index is an open-addressing hash table of 8-byte
slots (32 bits of hash, 32 of id + 1). Fields are looked up in batches whose cache lines are prefetched; without that,
each lookup in a large graph waits for memory three times (benchmarks/records/2026-11-15_encode).

A Vocabulary is the finished, read-only form. A folder of a dataset or model has three .npy files for each, which are
memory-mapped: STEM.names.npy (all names as UTF-8 bytes), STEM.offsets.npy (int64, n + 1), STEM.index.npy (int32 slots).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numba import njit
from numpy.typing import ArrayLike, NDArray

from grash.data.arrays import (
    ArrayWriter,
    Integer,
    Triples,
    in_blocks,
    map_array,
    prefetch,
    release_pages,
    word_at,
)
from grash.errors import FormatError, InputError, UnknownName

Bytes = NDArray[np.uint8]
Offsets = NDArray[np.int64]
Hashes = NDArray[np.uint32]
Slots = NDArray[np.uint64]
SLACK = 8  # bytes that must follow the last name of a buffer, since whole words are read
MAX_NAMES = 2**31 - 2

_BATCH = 64
_LOAD = 0.6  # the slots are doubled beyond this load factor
_SEED = np.uint64(0x2545F4914F6CDD1D)
_STEP = np.uint64(0x9E3779B97F4A7C15)
_LAST = np.uint64(0xD6E8FEB86659FD93)
_HALF = np.uint64(32)
_LOW = np.uint64(0xFFFFFFFF)
_ALL = np.uint64(0xFFFFFFFFFFFFFFFF)
_ONE = np.uint64(1)
_EMPTY = np.uint64(0)
_BITS_PER_BYTE = np.uint64(8)
_WORD_BITS = np.uint64(64)

_ABSENT, _DAMAGED = -1, -2
_LOOKUPS = 64  # of single names until a compiled loop is loaded for them
_BLOCK = 1 << 22
_KIND_OF_STEM = {"entities": "entity", "relations": "relation"}

# Costs of a suggested name: tenths of a typing error. A name that ends with the query after a separator (the last part
# of an IRI) costs a bit more than one error. A name that begins with the query, or nearly, or whose last words it is,
# costs more, growing with the rest.
_ERROR, _IRI_END, _BEGINNING = 10, 12, 14
_NO_MATCH = 1 << 30
_MAX_DISTANCE = 4
_LETTERS_PER_ERROR = 4  # of a query that a name begins with: one error from 4 letters on, two from 8 on
_MOST_COMPARED = 1000  # names that difflib compares, at 20 µs each
_MOST_LISTED = 12  # names that an error lists


class HashedFields(NamedTuple):
    """Names as slices of a uint8 buffer that ends with SLACK bytes: starts, lengths, hashes (n,)."""

    buffer: Bytes
    starts: NDArray[Any]
    lengths: NDArray[Any]
    hashes: Hashes


class _Table(NamedTuple):
    """The arrays of an interner: a hash table, the bytes of the names, their offsets, and counters."""

    slots: Slots
    blob: Bytes
    offsets: Offsets
    state: Offsets  # names, bytes used, repeats, bytes needed by the next batch


class Interner:
    """The names seen so far, with ids by first appearance. Takes 8 bytes of offset and 13 to 27 of slots per name.

    With `keep_repeats`, every name gets its own id; a repeated name is counted and found under its first id.
    """

    def __init__(self, *, keep_repeats: bool = False) -> None:
        self.keep_repeats = keep_repeats
        offsets, state = np.zeros(1025, np.int64), np.zeros(4, np.int64)
        self._table = _Table(np.zeros(1024, np.uint64), np.empty(16384, np.uint8), offsets, state)

    def __len__(self) -> int:
        return int(self._table.state[0])

    @property
    def n_repeats(self) -> int:
        return int(self._table.state[2])

    def add(self, names: Sequence[str]) -> NDArray[np.int32]:
        """Return the ids (n,) of names; add new names."""
        return self.add_fields(_as_fields(names))

    def add_fields(self, fields: HashedFields) -> NDArray[np.int32]:
        """Return the ids (n,) of fields; add new names."""
        ids = np.empty(len(fields.starts), np.int32)
        done = 0
        while True:
            done = _intern(fields, done, self.keep_repeats, self._table, ids)
            if done == len(ids):
                return ids
            self._make_room(_BATCH)

    def arrays(self) -> tuple[Bytes, Offsets, NDArray[np.int32]]:
        """Return the bytes of all names, their offsets (n + 1,), and the index: int32 slots (id + 1; 0 is empty)."""
        slots, blob, offsets, state = self._table
        return blob[: state[1]], offsets[: len(self) + 1], (slots & _LOW).astype(np.int32)

    def names_from(self, first: int) -> tuple[Bytes, NDArray[np.int32]]:
        """Return the concatenated bytes of the names from id `first` on, and their lengths."""
        offsets = self._table.offsets[first : len(self) + 1]
        return self._table.blob[offsets[0] : offsets[-1]], np.diff(offsets).astype(np.int32)

    @property
    def n_bytes(self) -> int:
        """Memory that the names take."""
        return self._table.slots.nbytes + 8 * len(self) + int(self._table.state[1])

    def _make_room(self, n_more: int) -> None:
        slots, blob, offsets, state = self._table
        wanted = len(self) + n_more
        if wanted > MAX_NAMES:
            raise InputError(f"There are more than {MAX_NAMES:,} distinct names, but ids are 32-bit integers.")
        while wanted > _LOAD * len(slots):
            slots = _doubled(slots)
        if wanted >= len(offsets):
            offsets = _enlarged(offsets, len(self) + 1, 2 * wanted)
        used, more = int(state[1]), int(state[3])
        if used + more + SLACK > len(blob):
            blob = _enlarged(blob, used, 2 * (used + more + SLACK))
        self._table = _Table(slots, blob, offsets, state)


class Encoder:
    """The interners of a graph. Ids go by first appearance, heads before tails within a line."""

    def __init__(self) -> None:
        self.entities, self.relations = Interner(), Interner()

    def encode_fields(self, ends: HashedFields, relations: HashedFields) -> Triples:
        """Return the ids (n, 3) of fields: head and tail of each row in turn (2n,), relations (n,)."""
        ids = np.empty((len(relations.starts), 3), np.int32)
        ids[:, ::2] = self.entities.add_fields(ends).reshape(-1, 2)
        ids[:, 1] = self.relations.add_fields(relations)
        return ids

    def encode(self, heads: Sequence[str], relations: Sequence[str], tails: Sequence[str]) -> Triples:
        """Return the ids (n, 3) of three sequences of names."""
        ends = [name for pair in zip(heads, tails) for name in pair]
        return self.encode_fields(_as_fields(ends), _as_fields(relations))


def hashed_fields(buffer: Bytes, starts: NDArray[Any], lengths: NDArray[Any]) -> HashedFields:
    """Return fields with their hashes."""
    hashes = np.empty(len(starts), np.uint32)
    _hash_fields(buffer, starts, lengths, hashes)
    return HashedFields(buffer, starts, lengths, hashes)


def _as_fields(names: Sequence[str]) -> HashedFields:
    encoded = [name.encode("utf-8", "surrogatepass") for name in names]
    lengths = np.fromiter(map(len, encoded), np.int64, len(encoded))
    buffer = np.frombuffer(bytearray().join((*encoded, bytes(SLACK))), np.uint8)
    return hashed_fields(buffer, np.cumsum(lengths) - lengths, lengths)


@njit(cache=True, nogil=True)
def _hash_fields(buffer: Bytes, starts: NDArray[Any], lengths: NDArray[Any], hashes: Hashes) -> None:
    for i in range(starts.size):
        hashes[i] = np.uint32(hash_name(buffer, np.int64(starts[i]), np.int64(lengths[i])))


@njit(cache=True, nogil=True)
def _intern(fields: HashedFields, done: Integer, keep: bool, table: _Table, ids: NDArray[np.int32]) -> Integer:
    """Look up the fields from `done` on. Return the number done; less than n means that more space is needed."""
    buffer, starts, lengths, hashes = fields
    slots, blob, offsets, state = table
    room = min(offsets.size - 1, int(_LOAD * slots.size))
    near = np.empty(_BATCH, np.int64)
    while done < ids.size:
        stop = min(done + _BATCH, ids.size)
        wanted = np.int64(0)
        for i in range(done, stop):
            wanted += np.int64(lengths[i])
        state[3] = wanted
        if state[0] + stop - done > room or state[1] + wanted + SLACK > blob.size:
            return done
        _find_near(hashes, done, stop, slots, blob, offsets, near)
        for i in range(done, stop):
            start, length, found = np.int64(starts[i]), np.int64(lengths[i]), near[i - done]
            if keep or not _is_name(blob, offsets, found, buffer, start, length):
                h = np.uint64(hashes[i])
                found = _resolve(buffer, start, length, h, keep, slots, blob, offsets, state)
            ids[i] = found
        done = stop
    return done


@njit(cache=True, nogil=True)
def _find_near(
    hashes: Hashes, done: Integer, stop: Integer, slots: Slots, blob: Bytes, offsets: Offsets, near: Offsets
) -> None:
    """Fill `near` with the first id of the same hash (nearly always the right one), or -1.

    Prefetches the cache lines of all slots, then of all offsets, then of all names.
    """
    mask = np.uint64(slots.size - 1)
    for i in range(done, stop):
        prefetch(slots, np.int64(np.uint64(hashes[i]) & mask))
    for i in range(done, stop):
        h = np.uint64(hashes[i])
        position = h & mask
        slot = slots[np.int64(position)]
        while slot != _EMPTY and slot >> _HALF != h:
            position = (position + np.uint64(1)) & mask
            slot = slots[np.int64(position)]
        found = np.int64(slot & _LOW) - 1
        near[i - done] = found
        if found >= 0:
            prefetch(offsets, found)
    for i in range(stop - done):
        if near[i] >= 0:
            prefetch(blob, offsets[near[i]])


@njit(cache=True, nogil=True, inline="always")
def _is_name(blob: Bytes, offsets: Offsets, found: Integer, buffer: Bytes, start: Integer, length: Integer) -> bool:
    """Return whether the name with id `found` (-1: none) equals buffer[start : start + length]."""
    same = found >= 0 and offsets[found + 1] - offsets[found] == length
    if same:
        same = same_name(blob, offsets[found], buffer, start, length)
    return same


@njit(cache=True, nogil=True)
def _resolve(
    buffer: Bytes,
    start: Integer,
    length: Integer,
    h: Any,
    keep: bool,
    slots: Slots,
    blob: Bytes,
    offsets: Offsets,
    state: Offsets,
) -> Integer:
    """Return the id of one name; append it if it is new or if repeats are kept."""
    mask = np.uint64(slots.size - 1)
    position = h & mask
    while True:
        slot = slots[np.int64(position)]
        if slot == _EMPTY:
            slots[np.int64(position)] = (h << _HALF) | np.uint64(state[0] + 1)
            break
        if slot >> _HALF == h:
            found = np.int64(slot & _LOW) - 1
            if _is_name(blob, offsets, found, buffer, start, length):
                if not keep:
                    return found
                state[2] += 1
                break
        position = (position + np.uint64(1)) & mask
    new, used = state[0], state[1]
    for i in range(length):
        blob[used + i] = buffer[start + i]
    offsets[new + 1] = used + length
    state[0], state[1] = new + 1, used + length
    return new


def _doubled(slots: Slots) -> Slots:
    larger = np.empty(2 * len(slots), np.uint64)  # unlike np.zeros, this uses huge pages
    larger.fill(0)
    _move_slots(slots, larger)
    return larger


@njit(cache=True, nogil=True)
def _move_slots(slots: Slots, larger: Slots) -> None:
    mask = np.uint64(larger.size - 1)
    for i in range(slots.size):
        slot = slots[i]
        if slot != _EMPTY:
            position = (slot >> _HALF) & mask
            while larger[np.int64(position)] != _EMPTY:
                position = (position + np.uint64(1)) & mask
            larger[np.int64(position)] = slot


def _enlarged(array: NDArray, used: int, size: int) -> NDArray:
    larger = np.empty(size, array.dtype)  # pages beyond `used` are not touched
    larger[:used] = array[:used]
    return larger


@njit(cache=True, nogil=True)
def hash_name(buffer: Bytes, start: Integer, length: Integer) -> Any:
    """Return the 32-bit hash of buffer[start : start + length] (followed by SLACK bytes) as a uint64.

    It determines the position of a name in a saved index, so a change of it changes the file format.
    """
    h = _SEED ^ (np.uint64(length) * _LAST)
    for at in range(start, start + (length & ~7), 8):
        h = (h ^ word_at(buffer, at)) * _STEP
        h ^= h >> _HALF
    last = (_ONE << (np.uint64(length & 7) * _BITS_PER_BYTE)) - _ONE  # the 0 to 7 bytes after the whole words
    h = (h ^ (word_at(buffer, start + (length & ~7)) & last)) * _STEP
    h ^= h >> _HALF
    h *= _LAST
    return h >> _HALF


@njit(cache=True, nogil=True, inline="always")
def same_name(left: Bytes, left_start: Integer, right: Bytes, right_start: Integer, length: Integer) -> bool:
    """Return whether two names of equal length are the same; both buffers end with SLACK bytes.

    Inlined, since a call with two arrays costs more than the comparison.
    """
    whole = length & ~7
    at = 0
    while at < whole and word_at(left, left_start + at) == word_at(right, right_start + at):
        at += 8
    same = at == whole
    if same and length > whole:
        mask = _ALL >> (_WORD_BITS - np.uint64(length - whole) * _BITS_PER_BYTE)
        differ = word_at(left, left_start + at) ^ word_at(right, right_start + at)
        same = differ & mask == np.uint64(0)
    return same


class Vocabulary:
    """n names. `kind` (entity, relation) is used in error messages."""

    def __init__(
        self,
        names: Bytes,
        offsets: Offsets,
        index: NDArray[np.int32],
        *,
        kind: str = "entity",
        source: str = "the vocabulary",
    ) -> None:
        self._names, self._offsets, self._index = (_read_only(a) for a in (names, offsets, index))
        self.kind = kind
        self._source = source
        self._lookups = 0
        _check_offsets(self._offsets, len(names), source)
        if len(index) < 1 or len(index) & (len(index) - 1):
            raise FormatError(f"{source} is damaged: its index has {len(index):,} slots, not a power of two.")

    @classmethod
    def from_names(cls, names: Iterable[str], *, kind: str = "entity") -> Vocabulary:
        """Return a vocabulary in which the i-th name has the id i. A repeated name is found under its first id."""
        interner = Interner(keep_repeats=True)
        names = iter(names)
        while block := list(islice(names, 100_000)):
            interner.add(block)
        return cls.from_interner(interner, kind=kind)

    @classmethod
    def from_interner(cls, interner: Interner, *, kind: str = "entity") -> Vocabulary:
        return cls(*interner.arrays(), kind=kind)

    def __len__(self) -> int:
        return len(self._offsets) - 1

    def __iter__(self) -> Iterator[str]:
        return (self.name(i) for i in range(len(self)))

    def __repr__(self) -> str:
        return f"Vocabulary({len(self):,} names, kind={self.kind!r})"

    @property
    def arrays(self) -> tuple[Bytes, Offsets]:
        """The bytes of all names, and their offsets (n + 1,)."""
        return self._names, self._offsets

    def name(self, i: int) -> str:
        """Return the name with id i."""
        if not 0 <= i < len(self):
            raise UnknownName(f"{self.kind} id", str(i), hint=f"Ids go from 0 to {len(self) - 1:,}.")
        raw = self._names[self._offsets[i] : self._offsets[i + 1]].tobytes()
        try:
            return raw.decode("utf-8")
        except UnicodeDecodeError as error:
            raise FormatError(f"{self._source} is damaged: the name of {self.kind} {i} is not UTF-8.") from error

    def names(self, ids: ArrayLike) -> list[str]:
        """Return the names of ids (k,)."""
        return [self.name(int(i)) for i in np.asarray(ids).reshape(-1)]

    def find(self, name: str) -> int | None:
        """Return the id of a name, or None."""
        query, length = _as_bytes(name)
        self._lookups += 1
        probe = _probe if self._lookups > _LOOKUPS else _probe_in_python
        found = int(probe(self._index, self._offsets, self._names, query, length))
        if found == _DAMAGED:
            raise FormatError(f"{self._source} is damaged: its index points outside of its names.")
        return None if found == _ABSENT else found

    def id(self, name: str) -> int:
        """Return the id of a name. Raises UnknownName with suggestions."""
        found = self.find(name)
        if found is None:
            raise self.unknown(name)
        return found

    def unknown(self, name: str) -> UnknownName:
        """Return the error for a name that is not here: with similar names, or with all of them if they are few."""
        near = self.suggest(name)
        listed = not near and 0 < len(self) <= _MOST_LISTED
        return UnknownName(self.kind, name, near, hint=f"There are: {', '.join(self)}." if listed else "")

    def suggest(self, name: str, k: int = 3) -> list[str]:
        """Return up to k similar names, best first: other case, typing errors, beginnings, last words, ends of IRIs.

        Scans all names; about a second for 5 million. If they are few, names with similar parts count, too.
        """
        query, length = _as_bytes(name)
        if k < 1 or length == 0:
            return []
        lowered = np.frombuffer(query[:length].tobytes().lower(), np.uint8)
        costs, ids = np.full(k, _NO_MATCH, np.int64), np.full(k, -1, np.int64)
        limit = min(_MAX_DISTANCE, max(1, length // 3))
        _find_similar(self._names, self._offsets, lowered, limit, costs, ids)
        found = self.names(ids[costs < _NO_MATCH])
        return found if found or len(self) > _MOST_COMPARED else self._alike(name, k)

    def _alike(self, name: str, k: int) -> list[str]:
        """Return up to k names that share most of their letters with this one, in their order."""
        import difflib  # takes longer than all of `import grash`

        lowered = {other.lower(): other for other in reversed(list(self))}
        return [lowered[other] for other in difflib.get_close_matches(name.lower(), lowered, n=k)]

    def iris_ending_in(self, local: str, most: int = 100) -> list[str]:
        """Return the IRIs whose part after the last # or / is this one, letter by letter; the first `most` by id."""
        query, length = _as_bytes(local)
        if not length:
            return []
        same = np.flatnonzero(self._local_hashes == _hash_bytes(query, 0, length))
        named = map(self.name, same.tolist())
        fitting = (iri for iri in named if "://" in iri and iri.replace("#", "/").rpartition("/")[2] == local)
        return list(islice(fitting, most))

    @cached_property
    def _local_hashes(self) -> Hashes:
        """A hash of what follows the last # or / of each name (n,), made when the first end of an IRI is looked for."""
        return _hash_local_parts(self._names, self._offsets)

    def subset(self, ids: NDArray[np.integer]) -> Vocabulary:
        """Return a vocabulary in which the name of ids[i] has the id i."""
        return Vocabulary.from_interner(self._interned(ids), kind=self.kind)

    def extended(self, names: Sequence[str]) -> Vocabulary:
        """Return a vocabulary with more names, whose ids follow those of before."""
        interner = self._interned(np.arange(len(self)))
        interner.add(names)
        return Vocabulary.from_interner(interner, kind=self.kind)

    def _interned(self, ids: NDArray[np.integer]) -> Interner:
        first = self._offsets[ids]
        lengths = self._offsets[np.asarray(ids) + 1] - first
        buffer = np.zeros(int(lengths.sum()) + SLACK, np.uint8)
        _copy_slices(self._names, first, lengths, buffer)
        interner = Interner(keep_repeats=True)
        interner.add_fields(hashed_fields(buffer, np.cumsum(lengths) - lengths, lengths))
        return interner

    def save(self, folder: Path, stem: str) -> None:
        """Write the three files into a folder. The caller makes it atomic."""
        for part, array in (("names", self._names), ("offsets", self._offsets), ("index", self._index)):
            np.save(Path(folder) / f"{stem}.{part}.npy", array, allow_pickle=False)

    @classmethod
    def load(cls, folder: Path, stem: str, *, kind: str | None = None) -> Vocabulary:
        """Return the vocabulary of a folder, memory-mapped. Raises FormatError if its files are damaged."""
        folder = Path(folder)
        names = map_array(folder / f"{stem}.names.npy", np.uint8, (None,))
        offsets = map_array(folder / f"{stem}.offsets.npy", np.int64, (None,))
        index = map_array(folder / f"{stem}.index.npy", np.int32, (None,))
        kind = kind or _KIND_OF_STEM.get(stem, stem)
        return cls(names, offsets, index, kind=kind, source=f"The vocabulary {folder / stem}")

    def digest_into(self, digest: Any) -> None:
        """Update a hashlib digest with names and offsets, in the order of ids."""
        for array in (self._offsets, self._names):
            for _, block in in_blocks(array, _BLOCK):
                digest.update(np.ascontiguousarray(block).data)


class VocabularyWriter:
    """Write the files of a vocabulary without holding it in memory: distinct names by id, then the index."""

    def __init__(self, folder: Path, stem: str, work: Path) -> None:
        self._folder, self._stem = folder, stem
        self._hash_file = work / f"{stem}.hashes"
        self.n_names, self._n_bytes = 0, 0

    def __enter__(self) -> VocabularyWriter:
        self._names = ArrayWriter(self._folder / f"{self._stem}.names.npy", np.uint8)
        self._offsets = ArrayWriter(self._folder / f"{self._stem}.offsets.npy", np.int64)
        self._offsets.append(np.zeros(1, np.int64))
        self._hashes = self._hash_file.open("wb")
        return self

    def append(self, block: HashedFields) -> None:
        text = concatenate_names(block.buffer, block.starts, block.lengths)
        self._names.append(text)
        self._offsets.append(self._n_bytes + np.cumsum(block.lengths))
        self._hashes.write(np.ascontiguousarray(block.hashes).data)
        self.n_names, self._n_bytes = self.n_names + len(block.lengths), self._n_bytes + len(text)
        if self.n_names > MAX_NAMES:
            raise InputError(f"There are more than {MAX_NAMES:,} distinct names, but ids are 32-bit integers.")

    def __exit__(self, kind: type[BaseException] | None, *details: object) -> None:
        self._hashes.close()
        self._names.__exit__(kind, *details)
        self._offsets.__exit__(kind, *details)

    def write_index(self, memory: int) -> None:
        """Write the index after all names, in ranges of slots that take at most `memory` bytes each."""
        size = 1 << max(10, int(np.ceil(self.n_names / _LOAD)).bit_length())
        path = self._folder / f"{self._stem}.index.npy"
        slots = np.lib.format.open_memmap(path, "w+", np.int32, (size,))
        n_slots = max(1024, memory // 8)
        for low in range(0, size, n_slots):
            with self._hash_file.open("rb") as file:
                for first in range(0, self.n_names, _BLOCK):
                    hashes = np.frombuffer(file.read(4 * min(_BLOCK, self.n_names - first)), np.uint32)
                    _fill_index(hashes, first, np.asarray(slots), low, min(low + n_slots, size))
            release_pages(slots)
        slots.flush()
        self._hash_file.unlink()


def concatenate_names(buffer: Bytes, starts: Offsets, lengths: Offsets) -> Bytes:
    """Return the bytes of some slices of a buffer, without gaps."""
    text = np.empty(int(lengths.sum()), np.uint8)
    _copy_slices(buffer, starts, lengths, text)
    return text


@njit(cache=True, nogil=True)
def _copy_slices(buffer: Bytes, starts: Offsets, lengths: Offsets, text: Bytes) -> None:
    to = 0
    for i in range(starts.size):
        for at in range(starts[i], starts[i] + lengths[i]):
            text[to] = buffer[at]
            to += 1


@njit(cache=True, nogil=True)
def _fill_index(hashes: NDArray[np.uint32], first: int, slots: NDArray[np.int32], low: int, high: int) -> None:
    """Insert the names whose hash belongs to slots low … high - 1 into the next free slot."""
    mask = slots.size - 1
    for i in range(hashes.size):
        at = np.int64(hashes[i]) & mask
        if low <= at < high:
            while slots[at] != 0:
                at = (at + 1) & mask
            slots[at] = first + i + 1


@njit(cache=True)
def _probe(index: NDArray[np.int32], offsets: Offsets, names: Bytes, query: Bytes, length: Integer) -> Integer:
    mask = np.uint64(index.size - 1)
    position = hash_name(query, 0, length) & mask
    for _ in range(index.size):
        found = np.int64(index[np.int64(position)]) - 1
        if found == _ABSENT:
            return _ABSENT
        if found < 0 or found >= offsets.size - 1:
            return _DAMAGED
        start = offsets[found]
        if offsets[found + 1] - start == length:
            same = True
            for i in range(length):
                if names[start + i] != query[i]:
                    same = False
                    break
            if same:
                return found
        position = (position + np.uint64(1)) & mask
    return _ABSENT


def _probe_in_python(
    index: NDArray[np.int32], offsets: Offsets, names: Bytes, query: Bytes, length: Integer
) -> Integer:
    """`_probe` without numba, which takes 0.3 s to load its first function: for a few names."""
    raw, mask = query[:length].tobytes(), len(index) - 1
    position = _hash_in_python(raw) & mask
    for _ in range(len(index)):
        found = int(index[position]) - 1
        if found == _ABSENT:
            return _ABSENT
        if not 0 <= found < len(offsets) - 1:
            return _DAMAGED
        if names[offsets[found] : offsets[found + 1]].tobytes() == raw:
            return found
        position = (position + 1) & mask
    return _ABSENT


def _hash_in_python(raw: bytes) -> int:
    """`hash_name` of all bytes, with Python's integers."""
    words = [int.from_bytes(raw[at : at + 8], "little") for at in range(0, len(raw) + 1, 8)]
    h = int(_SEED) ^ (len(raw) * int(_LAST) & int(_ALL))
    for word in words:
        h = (h ^ word) * int(_STEP) & int(_ALL)
        h ^= h >> 32
    return (h * int(_LAST) & int(_ALL)) >> 32


def _as_bytes(name: str) -> tuple[Bytes, int]:
    raw = name.encode("utf-8", "surrogatepass")
    return np.frombuffer(raw + bytes(SLACK), np.uint8), len(raw)


def _read_only(array: NDArray) -> NDArray:
    array = array.view()
    array.flags.writeable = False
    return array


def _check_offsets(offsets: Offsets, n_bytes: int, source: str) -> None:
    if len(offsets) < 1 or offsets[0] != 0 or offsets[-1] != n_bytes:
        raise FormatError(f"{source} is damaged: its offsets do not match the {n_bytes:,} bytes of its names.")
    for start in range(0, len(offsets) - 1, _BLOCK):
        block = offsets[start : start + _BLOCK + 1]
        if (block[1:] < block[:-1]).any():
            raise FormatError(f"{source} is damaged: its offsets are out of order.")


@njit(cache=True, nogil=True)
def _hash_local_parts(names: Bytes, offsets: Offsets) -> Hashes:
    hashes = np.empty(offsets.size - 1, np.uint32)
    for i in range(hashes.size):
        start = offsets[i + 1]
        while start > offsets[i] and names[start - 1] != 47 and names[start - 1] != 35:  # / #
            start -= 1
        hashes[i] = _hash_bytes(names, start, offsets[i + 1])
    return hashes


@njit(cache=True, nogil=True)
def _hash_bytes(names: Bytes, start: Integer, stop: Integer) -> Any:
    """Return FNV-1a of a slice; unlike `hash_name`, it reads no byte beyond."""
    h = np.uint32(2166136261)
    for at in range(start, stop):
        h = np.uint32((h ^ np.uint32(names[at])) * np.uint32(16777619))
    return h


@njit(cache=True, nogil=True)
def _find_similar(
    names: Bytes, offsets: Offsets, query: Bytes, limit: Integer, costs: NDArray[np.int64], ids: NDArray[np.int64]
) -> None:
    """Keep the names of lowest cost, sorted by cost, then by id."""
    row = np.empty(query.size + 1, np.int64)
    k = costs.size
    for i in range(offsets.size - 1):
        cost = _cost(names, offsets[i], offsets[i + 1], query, limit, row)
        if cost >= costs[k - 1]:
            continue
        at = k - 1
        while at > 0 and costs[at - 1] > cost:
            costs[at], ids[at] = costs[at - 1], ids[at - 1]
            at -= 1
        costs[at], ids[at] = cost, i


@njit(cache=True, nogil=True)
def _cost(names: Bytes, start: Integer, stop: Integer, query: Bytes, limit: Integer, row: NDArray[np.int64]) -> Integer:
    length, wanted = stop - start, query.size
    same = 0  # length of the common beginning
    while same < min(length, wanted) and _lower(names[start + same]) == query[same]:
        same += 1
    if same == wanted:
        if length == wanted:
            return 0
        beginning = _BEGINNING + min(length - wanted, 20 * _ERROR)
        return min(beginning, (length - wanted) * _ERROR) if length - wanted <= limit else beginning
    tail = 0  # length of the common end of the rest
    while tail < min(length, wanted) - same and _lower(names[stop - 1 - tail]) == query[wanted - 1 - tail]:
        tail += 1
    if tail == wanted and _is_separator(names[stop - 1 - tail]):
        return _IRI_END
    if tail == wanted and names[stop - 1 - tail] == 32:  # the last words
        return _BEGINNING + min(length - wanted, 20 * _ERROR)
    if abs(length - wanted) <= limit:
        distance = _distance(names, start + same, length - same - tail, query, same, wanted - same - tail, limit, row)
        if distance <= limit:
            return distance * _ERROR
    few, nearest = min(limit, wanted // _LETTERS_PER_ERROR), _NO_MATCH
    if same == 0 or few == 0 or length < wanted:  # a beginning has its first letter right, which spares most names
        return _NO_MATCH
    for part in range(max(same, wanted - few), min(length, wanted + few) + 1):
        nearest = min(nearest, _distance(names, start + same, part - same, query, same, wanted - same, few, row))
    return _BEGINNING + nearest * _ERROR + min(length - wanted, 20 * _ERROR) if nearest <= few else _NO_MATCH


@njit(cache=True, nogil=True)
def _distance(
    a: Bytes, at: Integer, n: Integer, b: Bytes, b_at: Integer, m: Integer, limit: Integer, row: NDArray[np.int64]
) -> Integer:
    """Return the edit distance of a[at:][:n] and b[b_at:][:m], or any number beyond the limit if it is larger."""
    for j in range(m + 1):
        row[j] = j
    for i in range(n):
        diagonal, row[0] = row[0], i + 1
        best = row[0]
        for j in range(m):
            changed = diagonal + (_lower(a[at + i]) != b[b_at + j])
            diagonal = row[j + 1]
            row[j + 1] = min(changed, row[j] + 1, diagonal + 1)
            best = min(best, row[j + 1])
        if best > limit:
            return best
    return row[m]


@njit(cache=True, nogil=True)
def _lower(byte: Any) -> Any:
    return byte + 32 if 65 <= byte <= 90 else np.int64(byte)


@njit(cache=True, nogil=True)
def _is_separator(byte: Any) -> bool:
    return byte == 47 or byte == 35 or byte == 58 or byte == 95  # / # : _
