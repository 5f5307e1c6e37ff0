"""Arrays of triples: .npy files that are memory-mapped or written in parts, and duplicate triples.

TripleSet is an exact set of triples, stored as row numbers in a hash table. A slot has 32 bits: a row number, and in
the free bits a piece of the hash, so the row of another triple is seldom read. It takes 7 to 14 bytes per triple on top
of the input.
"""

from __future__ import annotations

import mmap
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from llvmlite import ir
from numba import njit, types
from numba.extending import intrinsic
from numpy.typing import DTypeLike, NDArray

from grash.errors import FormatError, InputError

Triples = NDArray[np.int32]  # (n, 3): head, relation, tail
Mask = NDArray[np.bool_]
Rows = NDArray[np.int64]  # row numbers
Integer = Any  # an integer inside numba code, of Python or NumPy

_ROWS = 1 << 20  # per block
_PER_ROW = 2 * (12 + 8) + 14 + 1  # bytes to find duplicates: triple and row number, twice; hash table slot; mark
_BATCH = 64
_MAX_TRIPLES = 2**32 - 2
_STEP = np.uint64(0x9E3779B97F4A7C15)
_LAST = np.uint64(0xD6E8FEB86659FD93)
_HALF = np.uint64(32)
_ONE = np.uint64(1)


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
    if path.exists() and not path.is_file():  # a pipe would wait forever
        raise ValueError("it is not a regular file")
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


def distinct(keys: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the distinct keys, ascending; sorts the array given.

    `np.unique` of NumPy 2.4 looks them up in a table: .8 s for a million, which are sorted in 5 ms.
    """
    keys.sort()
    return keys[np.append(True, keys[1:] != keys[:-1])] if len(keys) else keys


def in_blocks(array: NDArray, n_rows: int) -> Iterator[tuple[int, NDArray]]:
    """Yield (first row, rows) of an array in blocks of `n_rows`.

    Pages of a mapped file are released after each block, so a walk holds no more than a block in memory.
    """
    for start in range(0, len(array), n_rows):
        yield start, array[start : start + n_rows]
        release_pages(array)


def used_ids(triples: Triples, n_entities: int, n_relations: int) -> tuple[Mask, Mask]:
    """Return which entities (E,) and which relations (R,) triples (n, 3) have."""
    entities, relations = np.zeros(n_entities, np.bool_), np.zeros(n_relations, np.bool_)
    for _, block in in_blocks(triples, _ROWS):
        entities[block[:, 0]] = entities[block[:, 2]] = relations[block[:, 1]] = True
    return entities, relations


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


def _word_at(typing_context: Any, buffer: Any, index: Any) -> Any:
    """word_at(buffer, i): return bytes i … i+7 of a uint8 array as one uint64, at any alignment."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        pointer = _element(context, builder, signature, arguments)
        return builder.load(builder.bitcast(pointer, ir.IntType(64).as_pointer()), align=1)

    return types.uint64(buffer, types.intp), generate


def _prefetch(typing_context: Any, array: Any, index: Any) -> Any:
    """prefetch(array, i): prefetch the cache line of array[i]; changes no value."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        int32, pointer_type = ir.IntType(32), ir.IntType(8).as_pointer()
        pointer = builder.bitcast(_element(context, builder, signature, arguments), pointer_type)
        kind = ir.FunctionType(ir.VoidType(), [pointer_type, int32, int32, int32])
        function = builder.module.declare_intrinsic("llvm.prefetch", [pointer_type], kind)
        builder.call(function, [pointer, int32(0), int32(3), int32(1)])
        return context.get_dummy_value()

    return types.none(array, types.intp), generate


def _element(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
    array = context.make_array(signature.args[0])(context, builder, arguments[0])
    return builder.gep(array.data, [arguments[1]])


word_at: Any = intrinsic(_word_at)
prefetch: Any = intrinsic(_prefetch)


class TripleSet:
    """The distinct rows of triples (n, 3). `repeated` (n,) marks the rows that equal an earlier row."""

    def __init__(self, triples: Triples) -> None:
        if len(triples) > _MAX_TRIPLES:
            raise InputError(f"A split has {len(triples):,} triples, but at most {_MAX_TRIPLES:,} are possible.")
        self._triples = triples
        self._row_bits = np.uint64(len(triples).bit_length())
        self._slots = np.empty(1 << max(4, int(len(triples) * 1.6).bit_length()), np.uint32)
        self._slots.fill(0)  # unlike np.zeros, this uses huge pages
        self.repeated = np.zeros(len(triples), bool)
        _fill(triples, self._slots, self._row_bits, self.repeated)

    @property
    def n_repeated(self) -> int:
        return int(np.count_nonzero(self.repeated))

    def contains(self, triples: Triples) -> Mask:
        """Return which rows (m,) of other triples (m, 3) are in the set."""
        found = np.zeros(len(triples), bool)
        _look_up(triples, self._triples, self._slots, self._row_bits, found)
        return found


@njit(cache=True, nogil=True)
def _fill(triples: Triples, slots: NDArray[np.uint32], row_bits: Integer, repeated: Mask) -> None:
    mask = np.uint64(slots.size - 1)
    hashes = np.empty(_BATCH, np.uint64)
    for start in range(0, triples.shape[0], _BATCH):
        stop = min(start + _BATCH, triples.shape[0])
        for row in range(start, stop):
            h = _hash(triples, row)
            hashes[row - start] = h
            prefetch(slots, np.int64(h & mask))
        for row in range(start, stop):
            h = hashes[row - start]
            at = _slot_of(triples, row, h, triples, slots, row_bits)
            if slots[at] == 0:
                slots[at] = np.uint32(((h >> _HALF) >> row_bits) << row_bits | np.uint64(row + 1))
            else:
                repeated[row] = True


@njit(cache=True, nogil=True)
def _look_up(triples: Triples, kept: Triples, slots: NDArray[np.uint32], row_bits: Integer, found: Mask) -> None:
    for row in range(triples.shape[0]):
        at = _slot_of(triples, row, _hash(triples, row), kept, slots, row_bits)
        found[row] = slots[at] > 0


@njit(cache=True, nogil=True, inline="always")
def _hash(triples: Triples, row: Integer) -> Integer:
    h = (np.uint64(triples[row, 0]) << _HALF) | np.uint64(triples[row, 2])
    h = (h ^ (h >> _HALF)) * _STEP
    h = (h ^ (h >> _HALF) ^ np.uint64(triples[row, 1])) * _LAST
    return h ^ (h >> _HALF)


@njit(cache=True, nogil=True, inline="always")
def _slot_of(
    triples: Triples, row: Integer, h: Integer, kept: Triples, slots: NDArray[np.uint32], row_bits: Integer
) -> Integer:
    """Return the slot of a triple equal to triples[row], or the empty slot where it belongs."""
    mask = np.uint64(slots.size - 1)
    rows = (_ONE << row_bits) - _ONE
    piece = (h >> _HALF) >> row_bits
    at = np.int64(h & mask)
    while slots[at] != 0:
        slot = np.uint64(slots[at])
        if slot >> row_bits == piece:
            other = np.int64(slot & rows) - 1
            if (
                kept[other, 0] == triples[row, 0]
                and kept[other, 2] == triples[row, 2]
                and kept[other, 1] == triples[row, 1]
            ):
                break
        at = (at + 1) & (slots.size - 1)
    return at


@dataclass(frozen=True, eq=False)
class Duplicates:
    repeated: Mask  # (n,) rows of train that equal an earlier row
    also_in_train: dict[str, Mask]  # rows of other splits
    all_copies: Mask | None = None  # (n,) rows of train that equal any other row, if requested


def find_duplicates(
    train: Triples, others: Mapping[str, Triples], memory: int | None = None, *, all_copies: bool = False
) -> Duplicates:
    """Find the duplicates of train (n, 3), and what others share with it.

    memory: take about so many bytes, for arrays that are memory-mapped; None: read train in place.
    """
    n_parts = max(1, -(-_PER_ROW * len(train) // max(1, memory))) if memory is not None else 1
    repeated = np.zeros(len(train), bool)
    copies = np.zeros(len(train), bool) if all_copies else None
    shared = {split: np.zeros(len(triples), bool) for split, triples in others.items()}
    for part in range(n_parts):
        rows, triples = (slice(None), train) if memory is None else _part_of(train, part, n_parts)
        known = TripleSet(triples)
        repeated[rows] = known.repeated
        if copies is not None:
            copies[rows] = TripleSet(select_rows(triples, known.repeated)).contains(triples)
        for split, other in others.items():
            shared[split] |= known.contains(other)
    return Duplicates(repeated, shared, copies)


def _part_of(train: Triples, part: int, n_parts: int) -> tuple[Rows, Triples]:
    """Return the rows whose hash belongs to a part, and their triples in memory."""
    rows, triples = [np.empty(0, np.int64)], [np.empty((0, 3), np.int32)]
    for start, block in in_blocks(train, _ROWS):
        inside = np.empty(len(block), bool)
        _mark_part(block, part, n_parts, inside)
        rows.append(start + np.flatnonzero(inside))
        triples.append(select_rows(block, inside))
    return np.concatenate(rows), np.concatenate(triples)


@njit(cache=True, nogil=True)
def _mark_part(triples: Triples, part: Integer, n_parts: Integer, inside: Mask) -> None:
    for row in range(triples.shape[0]):
        h = (_hash(triples, row) * _STEP) >> _HALF  # mixed again: a set uses the other bits of its hash
        inside[row] = (h * np.uint64(n_parts)) >> _HALF == np.uint64(part)
