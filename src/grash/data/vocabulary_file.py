"""The files of a vocabulary (vocabulary.py), written without holding it in memory. Used by unite.py."""

from __future__ import annotations

from pathlib import Path
from types import TracebackType

import numpy as np
from numba import njit
from numpy.typing import NDArray

from grash.data.arrays import ArrayWriter, give_back
from grash.data.intern import MAX_NAMES, HashedFields
from grash.errors import InputError

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
