"""Arrays on disk: .npy files that are mapped into memory, with a sentence where one is damaged, or written in parts."""

from __future__ import annotations

import mmap
import warnings
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType

import numpy as np
from numpy.typing import DTypeLike, NDArray

from grash.errors import FormatError


def map_array(path: Path, dtype: DTypeLike, shape: tuple[int | None, ...]) -> NDArray:
    """The array of a .npy file, mapped read-only, checked for its dtype and shape (None: any length)."""
    try:
        array = open_array(path)
    except FileNotFoundError:
        raise FormatError(f"{path} is missing: the folder is incomplete, make it anew.") from None
    except (ValueError, OSError) as error:
        raise FormatError(f"{path} is damaged ({error}): make the folder anew.") from error
    fits = array.ndim == len(shape) and all(n in (None, m) for n, m in zip(shape, array.shape))
    if array.dtype != np.dtype(dtype) or not fits or not array.flags.c_contiguous:
        wanted = " × ".join("n" if n is None else f"{n:,}" for n in shape)
        found = " × ".join(f"{n:,}" for n in array.shape)
        raise FormatError(
            f"{path} holds {array.dtype} of {found or 'no shape'}, and {np.dtype(dtype)} of {wanted} is "
            f"needed: the folder is damaged, make it anew."
        )
    return array


def open_array(path: Path) -> NDArray:
    """The array of a .npy file, mapped read-only; OSError, or ValueError with a reason, if that cannot be."""
    with path.open("rb") as file:
        if file.read(6) != b"\x93NUMPY":
            raise ValueError("its first bytes are not those of a .npy file")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # a header that needs a second look will fail the checks that follow
            return np.asarray(np.load(path, mmap_mode="r", allow_pickle=False))
    except OSError:
        raise
    except Exception as error:  # numpy's header reader lets errors of tokenize, ast, struct and mmap through
        reason = str(error) or type(error).__name__
        raise ValueError(
            "it holds Python objects, which are not loaded" if "Python objects" in reason else reason
        ) from error


def in_blocks(array: NDArray, n_rows: int) -> Iterator[tuple[int, NDArray]]:
    """(first row, rows) of an array, so many at a time.

    Pages of a mapped file are given back on the way: a walk through a file holds no more of it than a block.
    """
    for start in range(0, len(array), n_rows):
        yield start, array[start : start + n_rows]
        give_back(array)


def give_back(array: NDArray) -> None:
    """Lets go of the pages of an array that is mapped from a file; they are read again when they are asked for."""
    mapping = _mapping_of(array)
    if mapping is not None:
        mapping.madvise(mmap.MADV_DONTNEED)


def _mapping_of(array: object) -> mmap.mmap | None:
    """What maps an array from a file, where nothing that was written to it could be lost."""
    while isinstance(array, np.ndarray):
        if isinstance(array, np.memmap):
            shared = array.mode in ("r", "r+", "w+") and hasattr(mmap, "MADV_DONTNEED")
            return getattr(array, "_mmap", None) if shared else None
        array = array.base
    return None


class ArrayWriter:
    """A .npy file that is written part by part, along its first axis; how long it is stands in its head at the end."""

    def __init__(self, path: Path, dtype: DTypeLike, row: tuple[int, ...] = ()) -> None:
        self._file = path.open("wb")
        self._dtype, self._row = np.dtype(dtype), row
        self.n_rows = 0
        self._head_bytes = self._write_head()

    def append(self, part: NDArray) -> None:
        """Rows (n, *row) behind those that are there."""
        self._file.write(np.ascontiguousarray(part, self._dtype).data)
        self.n_rows += len(part)

    def __enter__(self) -> ArrayWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._file:
            if kind is None:
                self._file.seek(0)
                if self._write_head() != self._head_bytes:
                    raise ValueError(f"The head of a .npy file has outgrown its place at {self.n_rows:,} rows.")

    def _write_head(self) -> int:
        shape = (self.n_rows, *self._row)
        about = {"descr": np.lib.format.dtype_to_descr(self._dtype), "fortran_order": False, "shape": shape}
        np.lib.format.write_array_header_1_0(self._file, about)
        return self._file.tell()
