"""Names of entities or relations by id, and ids by name, without a Python object per name.

Comes from intern.py; lies in a dataset or model folder as three .npy files that are mapped, not read:
STEM.names.npy (all names as UTF-8 bytes), STEM.offsets.npy (int64, n + 1), STEM.index.npy (int32 slots).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
from numba import njit
from numpy.typing import ArrayLike, NDArray

from grash.data.arrays import ArrayWriter, give_back, in_blocks, map_array
from grash.data.interning import MAX_NAMES, SLACK, HashedFields, Interner, Whole, hash_name, hashed_fields
from grash.errors import FormatError, InputError, UnknownName

_ABSENT, _DAMAGED = -1, -2
_BLOCK = 1 << 22
_KIND_OF_STEM = {"entities": "entity", "relations": "relation"}


class Vocabulary:
    """n names. `kind` (entity, relation) is the word for one of them in errors."""

    def __init__(
        self,
        names: NDArray[np.uint8],
        offsets: NDArray[np.int64],
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
            raise FormatError(f"{source} is damaged: its index has {len(index):,} slots, no power of two.")

    @classmethod
    def from_names(cls, names: Iterable[str], *, kind: str = "entity") -> Vocabulary:
        """The vocabulary in which the i-th name has the id i; a repeated name is found under its first id."""
        interner = Interner(keep_repeats=True)
        names = iter(names)
        while block := list(islice(names, 100_000)):
            interner.add(block)
        return cls(*interner.arrays(), kind=kind)

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
        """The name with id i."""
        if not 0 <= i < len(self):
            raise UnknownName(f"{self.kind} id", str(i), hint=f"Ids go from 0 to {len(self) - 1:,}.")
        raw = self._names[self._offsets[i] : self._offsets[i + 1]].tobytes()
        try:
            return raw.decode("utf-8")
        except UnicodeDecodeError as error:
            raise FormatError(f"{self._source} is damaged: the name of {self.kind} {i} is no UTF-8.") from error

    def names(self, ids: ArrayLike) -> list[str]:
        """The names of ids (k,)."""
        return [self.name(int(i)) for i in np.asarray(ids).reshape(-1)]

    def find(self, name: str) -> int | None:
        """The id of a name, or None."""
        query, length = _as_bytes(name)
        found = int(_probe(self._index, self._offsets, self._names, query, length))
        if found == _DAMAGED:
            raise FormatError(f"{self._source} is damaged: its index points outside of its names.")
        return None if found == _ABSENT else found

    def id(self, name: str) -> int:
        """The id of a name; UnknownName, with suggestions, if there is none."""
        found = self.find(name)
        if found is None:
            raise UnknownName(self.kind, name, self.suggest(name))
        return found

    def suggest(self, name: str, k: int = 3) -> list[str]:
        """Up to k names that one may have meant, best first: other case, typing errors, beginnings, IRI ends.

        About a second at 5 million names.
        """
        query, length = _as_bytes(name)
        return self.names(nearest_names(self._names, self._offsets, query[:length], k))

    def subset(self, ids: NDArray[np.integer]) -> Vocabulary:
        """The vocabulary of the names of ids (k,), in which the name of ids[i] has the id i."""
        first = self._offsets[ids]
        lengths = self._offsets[np.asarray(ids) + 1] - first
        starts = np.cumsum(lengths) - lengths
        buffer = np.zeros(int(lengths.sum()) + SLACK, np.uint8)
        lay_out(self._names, first, lengths, buffer)
        interner = Interner(keep_repeats=True)
        interner.add_fields(hashed_fields(buffer, starts, lengths))
        return Vocabulary.from_interner(interner, kind=self.kind)

    def save(self, folder: Path, stem: str) -> None:
        """Writes the three files into a folder that the caller makes whole (files.atomic_folder)."""
        for part, array in self._parts():
            np.save(Path(folder) / f"{stem}.{part}.npy", array, allow_pickle=False)

    @classmethod
    def load(cls, folder: Path, stem: str, *, kind: str | None = None) -> Vocabulary:
        """The vocabulary of a folder, mapped; FormatError if its files are damaged."""
        folder = Path(folder)
        names = map_array(folder / f"{stem}.names.npy", np.uint8, (None,))
        offsets = map_array(folder / f"{stem}.offsets.npy", np.int64, (None,))
        index = map_array(folder / f"{stem}.index.npy", np.int32, (None,))
        kind = kind or _KIND_OF_STEM.get(stem, stem)
        return cls(names, offsets, index, kind=kind, source=f"The vocabulary {folder / stem}")

    def digest_into(self, digest: Any) -> None:
        """Feeds names and offsets to a hashlib digest, in the order of ids."""
        for array in (self._offsets, self._names):
            for _, block in in_blocks(array, _BLOCK):
                digest.update(np.ascontiguousarray(block).data)

    def _parts(self) -> list[tuple[str, NDArray]]:
        return [("names", self._names), ("offsets", self._offsets), ("index", self._index)]


@njit(cache=True)
def _probe(
    index: NDArray[np.int32],
    offsets: NDArray[np.int64],
    names: NDArray[np.uint8],
    query: NDArray[np.uint8],
    length: Whole,
) -> Whole:
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


def _as_bytes(name: str) -> tuple[NDArray[np.uint8], int]:
    raw = name.encode("utf-8", "surrogatepass")
    return np.frombuffer(raw + bytes(SLACK), np.uint8), len(raw)


def _read_only(array: NDArray) -> NDArray:
    array = array.view()
    array.flags.writeable = False
    return array


def _check_offsets(offsets: NDArray[np.int64], n_bytes: int, source: str) -> None:
    if len(offsets) < 1 or offsets[0] != 0 or offsets[-1] != n_bytes:
        raise FormatError(f"{source} is damaged: its names take {n_bytes:,} bytes, not what its offsets say.")
    for start in range(0, len(offsets) - 1, _BLOCK):
        block = offsets[start : start + _BLOCK + 1]
        if (block[1:] < block[:-1]).any():
            raise FormatError(f"{source} is damaged: its offsets are out of order.")


# = The files of a vocabulary (vocabulary.py), written without holding it in memory. Used by unite.py.

_LOAD = 0.6
_HASHES = 1 << 22


class VocabularyWriter:
    """Names in the order of their ids, appended in blocks of distinct ones; then the index."""

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
        text, lengths = end_to_end(block.buffer, block.starts, block.lengths)
        self._names.append(text)
        self._offsets.append(self._n_bytes + np.cumsum(lengths))
        self._hashes.write(np.ascontiguousarray(block.hashes).data)
        self.n_names, self._n_bytes = self.n_names + len(lengths), self._n_bytes + len(text)
        if self.n_names > MAX_NAMES:
            raise InputError(f"There are more than {MAX_NAMES:,} distinct names, and ids are 32-bit numbers.")

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._hashes.close()
        self._names.__exit__(kind, error, trace)
        self._offsets.__exit__(kind, error, trace)

    def index(self, room: int) -> None:
        """Writes the index, after all names: one stretch of slots after the other, each at most `room` bytes."""
        size = 1 << max(10, int(np.ceil(self.n_names / _LOAD)).bit_length())
        path = self._folder / f"{self._stem}.index.npy"
        slots = np.lib.format.open_memmap(path, "w+", np.int32, (size,))
        stretch = max(1024, room // 8)
        for low in range(0, size, stretch):
            with self._hash_file.open("rb") as file:
                for first in range(0, self.n_names, _HASHES):
                    hashes = np.frombuffer(file.read(4 * min(_HASHES, self.n_names - first)), np.uint32)
                    _fill_index(hashes, first, np.asarray(slots), low, min(low + stretch, size))
            give_back(slots)
        slots.flush()
        self._hash_file.unlink()


def end_to_end(
    buffer: NDArray[np.uint8], starts: NDArray[np.int64], lengths: NDArray[np.int64]
) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """The bytes of some names without what lies between them, and their lengths."""
    text = np.empty(int(lengths.sum()), np.uint8)
    lay_out(buffer, starts, lengths, text)
    return text, lengths


@njit(cache=True, nogil=True)
def lay_out(
    buffer: NDArray[np.uint8], starts: NDArray[np.int64], lengths: NDArray[np.int64], text: NDArray[np.uint8]
) -> None:
    """Lays pieces of a buffer end to end."""
    to = 0
    for i in range(starts.size):
        for at in range(starts[i], starts[i] + lengths[i]):
            text[to] = buffer[at]
            to += 1


@njit(cache=True, nogil=True)
def _fill_index(hashes: NDArray[np.uint32], first: int, slots: NDArray[np.int32], low: int, high: int) -> None:
    """Puts the names whose place is between low and high into the next free slot from there on."""
    mask = slots.size - 1
    for i in range(hashes.size):
        at = np.int64(hashes[i]) & mask
        if low <= at < high:
            while slots[at] != 0:
                at = (at + 1) & mask
            slots[at] = first + i + 1


# = Which names one may have meant: a scan over all names for near misses. Used by vocabulary.py.
# =
# = The price of a name, in tenths of a typing error (ASCII case is free): the edit distance where it is small;
# = a bit more than one error for a name that ends in the query after a separator (the last part of an IRI); more
# = than that, and growing with the length of the rest, for a name that begins with it.

_ERROR, _IRI_END, _BEGINNING = 10, 12, 14
_OFFLOADED = 1 << 30
_MAX_DISTANCE = 4


def nearest_names(
    names: NDArray[np.uint8], offsets: NDArray[np.int64], query: NDArray[np.uint8], k: int
) -> NDArray[np.int64]:
    """The ids of up to k names with the lowest price for a query (bytes), best first, then by id.

    O(bytes of all names), most of them left after their first bytes.
    """
    if k < 1 or len(query) == 0:
        return np.empty(0, np.int64)
    prices = np.full(k, _OFFLOADED, np.int64)
    ids = np.full(k, -1, np.int64)
    _scan(names, offsets, _lowered(query), min(_MAX_DISTANCE, max(1, len(query) // 3)), prices, ids)
    return ids[prices < _OFFLOADED]


def _lowered(query: NDArray[np.uint8]) -> NDArray[np.uint8]:
    return np.frombuffer(query.tobytes().lower(), np.uint8)


@njit(cache=True, nogil=True)
def _scan(
    names: NDArray[np.uint8],
    offsets: NDArray[np.int64],
    query: NDArray[np.uint8],
    limit: Whole,
    prices: NDArray[np.int64],
    ids: NDArray[np.int64],
) -> None:
    """Keeps the lowest prices, sorted."""
    rows = np.empty((2, 2 * limit + 1), np.int64)
    k = prices.size
    for i in range(offsets.size - 1):
        price = _price(names, offsets[i], offsets[i + 1], query, limit, rows)
        if price >= prices[k - 1]:
            continue
        at = k - 1
        while at > 0 and prices[at - 1] > price:
            prices[at], ids[at] = prices[at - 1], ids[at - 1]
            at -= 1
        prices[at], ids[at] = price, i


@njit(cache=True, nogil=True)
def _price(
    names: NDArray[np.uint8],
    start: Whole,
    stop: Whole,
    query: NDArray[np.uint8],
    limit: Whole,
    rows: NDArray[np.int64],
) -> Whole:
    length, wanted = stop - start, query.size
    same = 0  # length of the common beginning
    while same < min(length, wanted) and _lower(names[start + same]) == query[same]:
        same += 1
    if same == wanted:
        if length == wanted:
            return 0
        beginning = _BEGINNING + min(length - wanted, 20 * _ERROR)
        return min(beginning, (length - wanted) * _ERROR) if length - wanted <= limit else beginning
    tail = 0  # length of the common end of what is left
    while tail < min(length, wanted) - same and _lower(names[stop - 1 - tail]) == query[wanted - 1 - tail]:
        tail += 1
    if tail == wanted and _is_separator(names[stop - 1 - tail]):
        return _IRI_END
    if abs(length - wanted) > limit:
        return _OFFLOADED
    left, right = length - same - tail, wanted - same - tail
    distance = _bounded_distance(names, start + same, left, query, same, right, limit, rows)
    return distance * _ERROR if distance <= limit else _OFFLOADED


@njit(cache=True, nogil=True)
def _bounded_distance(
    a: NDArray[np.uint8],
    a_start: Whole,
    n: Whole,
    b: NDArray[np.uint8],
    b_start: Whole,
    m: Whole,
    limit: Whole,
    rows: NDArray[np.int64],
) -> Whole:
    """The edit distance of a[a_start:][:n] and b[b_start:][:m], or limit + 1 if it is larger.

    Only the cells within `limit` of the diagonal are computed: column j of row i stands at j - i + limit.
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
