"""Names of entities or relations by id, and ids by name, without a Python object per name.

Comes from intern.py; lies in a dataset or model folder as three .npy files that are mapped, not read:
STEM.names.npy (all names as UTF-8 bytes), STEM.offsets.npy (int64, n + 1), STEM.index.npy (int32 slots).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from numba import njit
from numpy.typing import ArrayLike, NDArray

from grash.data.arrays import in_blocks, map_array
from grash.data.intern import Interner, hashed_fields
from grash.data.suggest import nearest_names
from grash.data.vocabulary_file import lay_out
from grash.data.words import SLACK, Whole, hash_name
from grash.errors import FormatError, UnknownName

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
        """Writes the three files into a folder that the caller makes whole (files.whole_folder)."""
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
