"""Names of entities or relations by id, and ids by name, without a Python object per name.

Comes from interning.py. A folder of a dataset or model has three .npy files per vocabulary, which are memory-mapped:
STEM.names.npy (all names as UTF-8 bytes), STEM.offsets.npy (int64, n + 1), STEM.index.npy (int32 slots of a hash table).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from numba import njit
from numpy.typing import ArrayLike, NDArray

from grash.data.arrays import ArrayWriter, in_blocks, map_array, release_pages
from grash.data.interning import (
    MAX_NAMES,
    SLACK,
    Bytes,
    HashedFields,
    Integer,
    Interner,
    Offsets,
    hash_name,
    hashed_fields,
)
from grash.errors import FormatError, InputError, UnknownName

_ABSENT, _DAMAGED = -1, -2
_BLOCK = 1 << 22
_LOAD = 0.6  # of the index
_KIND_OF_STEM = {"entities": "entity", "relations": "relation"}

# Costs of a suggested name: tenths of a typing error. A name that ends with the query after a separator (the last part
# of an IRI) costs a bit more than one error. A name that begins with the query costs more, growing with the rest.
_ERROR, _IRI_END, _BEGINNING = 10, 12, 14
_NO_MATCH = 1 << 30
_MAX_DISTANCE = 4


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
        found = int(_probe(self._index, self._offsets, self._names, query, length))
        if found == _DAMAGED:
            raise FormatError(f"{self._source} is damaged: its index points outside of its names.")
        return None if found == _ABSENT else found

    def id(self, name: str) -> int:
        """Return the id of a name. Raises UnknownName with suggestions."""
        found = self.find(name)
        if found is None:
            raise UnknownName(self.kind, name, self.suggest(name))
        return found

    def suggest(self, name: str, k: int = 3) -> list[str]:
        """Return up to k similar names, best first: other case, typing errors, beginnings, ends of IRIs.

        Scans all names; about a second for 5 million.
        """
        query, length = _as_bytes(name)
        if k < 1 or length == 0:
            return []
        lowered = np.frombuffer(query[:length].tobytes().lower(), np.uint8)
        costs, ids = np.full(k, _NO_MATCH, np.int64), np.full(k, -1, np.int64)
        limit = min(_MAX_DISTANCE, max(1, length // 3))
        _find_similar(self._names, self._offsets, lowered, limit, costs, ids)
        return self.names(ids[costs < _NO_MATCH])

    def subset(self, ids: NDArray[np.integer]) -> Vocabulary:
        """Return a vocabulary in which the name of ids[i] has the id i."""
        first = self._offsets[ids]
        lengths = self._offsets[np.asarray(ids) + 1] - first
        buffer = np.zeros(int(lengths.sum()) + SLACK, np.uint8)
        _copy_slices(self._names, first, lengths, buffer)
        interner = Interner(keep_repeats=True)
        interner.add_fields(hashed_fields(buffer, np.cumsum(lengths) - lengths, lengths))
        return Vocabulary.from_interner(interner, kind=self.kind)

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
    """Write the files of a vocabulary without holding it in memory: distinct names in the order of ids, then the index."""

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
def _find_similar(
    names: Bytes, offsets: Offsets, query: Bytes, limit: Integer, costs: NDArray[np.int64], ids: NDArray[np.int64]
) -> None:
    """Keep the names of lowest cost, sorted by cost, then by id."""
    rows = np.empty((2, 2 * limit + 1), np.int64)
    k = costs.size
    for i in range(offsets.size - 1):
        cost = _cost(names, offsets[i], offsets[i + 1], query, limit, rows)
        if cost >= costs[k - 1]:
            continue
        at = k - 1
        while at > 0 and costs[at - 1] > cost:
            costs[at], ids[at] = costs[at - 1], ids[at - 1]
            at -= 1
        costs[at], ids[at] = cost, i


@njit(cache=True, nogil=True)
def _cost(
    names: Bytes, start: Integer, stop: Integer, query: Bytes, limit: Integer, rows: NDArray[np.int64]
) -> Integer:
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
    if abs(length - wanted) > limit:
        return _NO_MATCH
    left, right = length - same - tail, wanted - same - tail
    distance = _bounded_distance(names, start + same, left, query, same, right, limit, rows)
    return distance * _ERROR if distance <= limit else _NO_MATCH


@njit(cache=True, nogil=True)
def _bounded_distance(
    a: Bytes,
    a_start: Integer,
    n: Integer,
    b: Bytes,
    b_start: Integer,
    m: Integer,
    limit: Integer,
    rows: NDArray[np.int64],
) -> Integer:
    """Return the edit distance of a[a_start:][:n] and b[b_start:][:m], or limit + 1 if it is larger.

    Computes only the cells within `limit` of the diagonal: column j of row i is at j - i + limit.
    """
    if n == 0 or m == 0:
        return max(n, m)
    width = 2 * limit + 1
    above, here = rows[0], rows[1]
    for at in range(width):
        above[at] = at - limit if at >= limit else limit + 1
    for i in range(1, n + 1):
        best = limit + 1
        for at in range(width):
            j = i + at - limit
            value = limit + 1
            if j == 0:
                value = i
            elif 0 < j <= m:
                value = above[at] + (_lower(a[a_start + i - 1]) != b[b_start + j - 1])
                if at + 1 < width:
                    value = min(value, above[at + 1] + 1)
                if at > 0:
                    value = min(value, here[at - 1] + 1)
            here[at] = min(value, limit + 1)
            best = min(best, here[at])
        if best > limit:
            return limit + 1
        above, here = here, above
    return above[m - n + limit]


@njit(cache=True, nogil=True)
def _lower(byte: Any) -> Any:
    return byte + 32 if 65 <= byte <= 90 else np.int64(byte)


@njit(cache=True, nogil=True)
def _is_separator(byte: Any) -> bool:
    return byte == 47 or byte == 35 or byte == 58 or byte == 95  # / # : _
