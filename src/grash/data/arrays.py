"""Arrays of triples and .npy files: memory-mapped, walked through in blocks, or written in parts."""

from __future__ import annotations

import mmap
import warnings
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from numba import njit
from numpy.typing import DTypeLike, NDArray

from grash.errors import FormatError

Triples = NDArray[np.int32]  # (n, 3): head, relation, tail
Mask = NDArray[np.bool_]
Rows = NDArray[np.int64]  # row numbers


def map_array(path: Path, dtype: DTypeLike, shape: tuple[int | None, ...]) -> NDArray:
    """Return the array of a .npy file, memory-mapped read-only. Raises FormatError for another dtype or shape.

    None in `shape` means any length.
    """
    try:
        array = open_array(path)
    except FileNotFoundError:
        raise FormatError(f"{path} is missing: the folder is incomplete. Create it again.") from None
    except (ValueError, OSError) as error:
        raise FormatError(f"{path} is damaged ({error}). Create the folder again.") from error
    fits = array.ndim == len(shape) and all(n in (None, m) for n, m in zip(shape, array.shape))
    if array.dtype != np.dtype(dtype) or not fits or not array.flags.c_contiguous:
        wanted = " × ".join("n" if n is None else f"{n:,}" for n in shape)
        found = " × ".join(f"{n:,}" for n in array.shape)
        raise FormatError(
            f"{path} is damaged: found {array.dtype} of {found or 'no shape'}, expected {np.dtype(dtype)} of {wanted}. "
            f"Create the folder again."
        )
    return array


def open_array(path: Path) -> NDArray:
    """Return the array of a .npy file, memory-mapped read-only. Raises OSError, or ValueError with a reason."""
    with path.open("rb") as file:
        if file.read(6) != b"\x93NUMPY":
            raise ValueError("its first bytes are not those of a .npy file")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # a questionable header fails the checks that follow
            return np.asarray(np.load(path, mmap_mode="r", allow_pickle=False))
    except OSError:
        raise
    except Exception as error:  # NumPy's header reader raises errors of tokenize, ast, struct and mmap
        reason = str(error) or type(error).__name__
        raise ValueError(
            "it contains Python objects, which are not loaded" if "Python objects" in reason else reason
        ) from error


def in_blocks(array: NDArray, n_rows: int) -> Iterator[tuple[int, NDArray]]:
    """Yield (first row, rows) of an array in blocks of `n_rows`.

    Pages of a mapped file are released after each block, so a walk holds no more than a block in memory.
    """
    for start in range(0, len(array), n_rows):
        yield start, array[start : start + n_rows]
        release_pages(array)


def release_pages(array: NDArray) -> None:
    """Release the pages of an array that is mapped from a file; they are read again on demand."""
    mapping = _mapping_of(array)
    if mapping is not None:
        mapping.madvise(mmap.MADV_DONTNEED)


def _mapping_of(array: object) -> mmap.mmap | None:
    """Return the mapping of an array, unless releasing it could lose private changes."""
    while isinstance(array, np.ndarray):
        if isinstance(array, np.memmap):
            shared = array.mode in ("r", "r+", "w+") and hasattr(mmap, "MADV_DONTNEED")
            return getattr(array, "_mmap", None) if shared else None
        array = array.base
    return None


def select_rows(triples: Triples, mask: Mask) -> Triples:
    """Return triples[mask], several times faster than NumPy on such short rows."""
    kept = np.empty((int(np.count_nonzero(mask)), 3), np.int32)
    _copy_rows(triples, mask, kept)
    return kept


@njit(cache=True, nogil=True)
def _copy_rows(triples: Triples, mask: Mask, kept: Triples) -> None:
    to = 0
    for row in range(mask.size):
        if mask[row]:
            kept[to, 0], kept[to, 1], kept[to, 2] = triples[row, 0], triples[row, 1], triples[row, 2]
            to += 1


class ArrayWriter:
    """Write a .npy file in parts along its first axis; its length goes into the header at the end."""

    def __init__(self, path: Path, dtype: DTypeLike, row: tuple[int, ...] = ()) -> None:
        self._file = path.open("wb")
        self._dtype, self._row = np.dtype(dtype), row
        self.n_rows = 0
        self._header_bytes = self._write_header()

    def append(self, part: NDArray) -> None:
        """Append rows (n, *row)."""
        self._file.write(np.ascontiguousarray(part, self._dtype).data)
        self.n_rows += len(part)

    def __enter__(self) -> ArrayWriter:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        with self._file:
            if kind is None:
                self._file.seek(0)
                if self._write_header() != self._header_bytes:
                    raise ValueError(f"The header of a .npy file does not fit at {self.n_rows:,} rows.")

    def _write_header(self) -> int:
        shape = (self.n_rows, *self._row)
        header = {"descr": np.lib.format.dtype_to_descr(self._dtype), "fortran_order": False, "shape": shape}
        np.lib.format.write_array_header_1_0(self._file, header)
        return self._file.tell()
