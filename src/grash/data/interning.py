"""Names become numbers: an interner that gives each distinct name the next id.

Comes from the scanned fields of text.py and the strings of rdf.py; goes to vocabulary.py. All names lie in
one byte blob with 8-byte offsets; the index is a power of two of 8-byte slots (32 bits of hash, 32 of id+1),
probed linearly. Fields are resolved in batches whose cache lines are asked for beforehand: without that, each
lookup in a large graph waits for memory three times in turn (benchmarks/records/2026-11-15_encode).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from llvmlite import ir
from numba import njit, types
from numba.extending import intrinsic
from numpy.typing import NDArray

from grash.errors import InputError

BATCH = 64
MAX_NAMES = 2**31 - 2
_LOAD = 0.6  # slots are doubled beyond this share

_HALF = np.uint64(32)
_LOW = np.uint64(0xFFFFFFFF)
_EMPTY = np.uint64(0)


class HashedFields(NamedTuple):
    """Names as pieces of a uint8 buffer that ends in SLACK bytes: starts, lengths, hashes (n,)."""

    buffer: NDArray[np.uint8]
    starts: NDArray[Any]
    lengths: NDArray[Any]
    hashes: NDArray[np.uint32]


class Interner:
    """Names seen so far. Ids go by first appearance; 8 bytes of offset and 13 to 27 of slots per name.

    With `keep_repeats`, every name gets its own id; a repeated one is counted and found under its first.
    """

    def __init__(self, *, keep_repeats: bool = False) -> None:
        self.keep_repeats = keep_repeats
        self._slots = np.zeros(1024, np.uint64)
        self._blob = np.empty(16384, np.uint8)
        self._offsets = np.zeros(1025, np.int64)
        self._state = np.zeros(4, np.int64)  # names, bytes used, repeats, bytes wanted by the next batch

    def __len__(self) -> int:
        return int(self._state[0])

    @property
    def n_repeats(self) -> int:
        return int(self._state[2])

    def add(self, names: Sequence[str]) -> NDArray[np.int32]:
        """The ids (n,) of names, new ones included."""
        return self.add_fields(_as_fields(names))

    def add_fields(self, fields: HashedFields) -> NDArray[np.int32]:
        """The ids (n,) of fields, new ones included."""
        ids = np.empty(len(fields.starts), np.int32)
        done = 0
        while True:
            done = _intern(*fields, done, self.keep_repeats, self._slots, self._blob, self._offsets, self._state, ids)
            if done == len(ids):
                return ids
            self._make_room(BATCH)

    def arrays(self) -> tuple[NDArray[np.uint8], NDArray[np.int64], NDArray[np.int32]]:
        """The bytes of all names, their offsets (n + 1,), and the index: int32 slots (id + 1; 0 is empty)."""
        index = (self._slots & _LOW).astype(np.int32)
        return self._blob[: self._state[1]], self._offsets[: len(self) + 1], index

    def since(self, first: int) -> tuple[NDArray[np.uint8], NDArray[np.int32]]:
        """The bytes of the names from id `first` on, end to end, and the length of each."""
        offsets = self._offsets[first : len(self) + 1]
        return self._blob[offsets[0] : self._state[1]], np.diff(offsets).astype(np.int32)

    @property
    def n_bytes(self) -> int:
        """Memory that the names take now."""
        return self._slots.nbytes + 8 * len(self) + int(self._state[1])

    def _make_room(self, n_more: int) -> None:
        wanted = len(self) + n_more
        if wanted > MAX_NAMES:
            raise InputError(f"There are more than {MAX_NAMES:,} distinct names, and ids are 32-bit numbers.")
        while wanted > _LOAD * len(self._slots):
            self._slots = _doubled(self._slots)
        if wanted >= len(self._offsets):
            self._offsets = _enlarged(self._offsets, len(self) + 1, 2 * wanted)
        used, more = int(self._state[1]), int(self._state[3])
        if used + more + SLACK > len(self._blob):
            self._blob = _enlarged(self._blob, used, 2 * (used + more + SLACK))


def hashed_fields(buffer: NDArray[np.uint8], starts: NDArray[Any], lengths: NDArray[Any]) -> HashedFields:
    """Fields with their hashes computed."""
    hashes = np.empty(len(starts), np.uint32)
    _hash_fields(buffer, starts, lengths, hashes)
    return HashedFields(buffer, starts, lengths, hashes)


def _as_fields(names: Sequence[str]) -> HashedFields:
    encoded = [name.encode("utf-8", "surrogatepass") for name in names]
    lengths = np.fromiter(map(len, encoded), np.int64, len(encoded))
    buffer = np.frombuffer(bytearray().join((*encoded, bytes(SLACK))), np.uint8)
    return hashed_fields(buffer, np.cumsum(lengths) - lengths, lengths)


@njit(cache=True, nogil=True)
def _hash_fields(
    buffer: NDArray[np.uint8], starts: NDArray[Any], lengths: NDArray[Any], hashes: NDArray[np.uint32]
) -> None:
    for i in range(starts.size):
        hashes[i] = np.uint32(hash_name(buffer, np.int64(starts[i]), np.int64(lengths[i])))


@njit(cache=True, nogil=True)
def _intern(
    buffer: NDArray[np.uint8],
    starts: NDArray[Any],
    lengths: NDArray[Any],
    hashes: NDArray[np.uint32],
    done: Whole,
    keep: bool,
    slots: NDArray[np.uint64],
    blob: NDArray[np.uint8],
    offsets: NDArray[np.int64],
    state: NDArray[np.int64],
    ids: NDArray[np.int32],
) -> Whole:
    """Resolves fields from `done` on; returns the first that was not (short of n: there is no room)."""
    room = min(offsets.size - 1, int(_LOAD * slots.size))
    near = np.empty(BATCH, np.int64)
    while done < ids.size:
        stop = min(done + BATCH, ids.size)
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
    hashes: NDArray[np.uint32],
    done: Whole,
    stop: Whole,
    slots: NDArray[np.uint64],
    blob: NDArray[np.uint8],
    offsets: NDArray[np.int64],
    near: NDArray[np.int64],
) -> None:
    """Fills near with the first id whose hash is that of the field (nearly always the right one), or -1.

    Asks for the cache lines of all slots, then of all offsets, then of all names, so that they come together.
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
def _is_name(
    blob: NDArray[np.uint8],
    offsets: NDArray[np.int64],
    found: Whole,
    buffer: NDArray[np.uint8],
    start: Whole,
    length: Whole,
) -> bool:
    """Whether the name with id `found` (-1: none) is buffer[start : start + length]."""
    same = found >= 0 and offsets[found + 1] - offsets[found] == length
    if same:
        same = same_name(blob, offsets[found], buffer, start, length)
    return same


@njit(cache=True, nogil=True)
def _resolve(
    buffer: NDArray[np.uint8],
    start: Whole,
    length: Whole,
    h: Any,
    keep: bool,
    slots: NDArray[np.uint64],
    blob: NDArray[np.uint8],
    offsets: NDArray[np.int64],
    state: NDArray[np.int64],
) -> Whole:
    """The id of one name, which is appended if it is new (or if repeats are kept)."""
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
    return _append(buffer, start, length, blob, offsets, state)


@njit(cache=True, nogil=True)
def _append(
    buffer: NDArray[np.uint8],
    start: Whole,
    length: Whole,
    blob: NDArray[np.uint8],
    offsets: NDArray[np.int64],
    state: NDArray[np.int64],
) -> Whole:
    new, used = state[0], state[1]
    for i in range(length):
        blob[used + i] = buffer[start + i]
    offsets[new + 1] = used + length
    state[0], state[1] = new + 1, used + length
    return new


def _doubled(slots: NDArray[np.uint64]) -> NDArray[np.uint64]:
    larger = np.empty(2 * len(slots), np.uint64)  # numpy's own memory, in huge pages where the system has them
    larger.fill(0)
    _move_slots(slots, larger)
    return larger


@njit(cache=True, nogil=True)
def _move_slots(slots: NDArray[np.uint64], larger: NDArray[np.uint64]) -> None:
    mask = np.uint64(larger.size - 1)
    for i in range(slots.size):
        slot = slots[i]
        if slot != _EMPTY:
            position = (slot >> _HALF) & mask
            while larger[np.int64(position)] != _EMPTY:
                position = (position + np.uint64(1)) & mask
            larger[np.int64(position)] = slot


def _enlarged(array: NDArray, used: int, size: int) -> NDArray:
    larger = np.empty(size, array.dtype)  # memory beyond `used` is not touched before it is needed
    larger[:used] = array[:used]
    return larger


# = NDArray[np.uint8] eight at a time: unaligned words, the hash of a name, cache prefetch; all inside numba.
# =
# = Used by intern.py and vocabulary.py. The hash decides where a name lies in a saved index, so a change of it
# = is a change of the file format.

Whole = Any  # an integer inside numba code, of Python or of numpy
SLACK = 8  # bytes that must follow the last name of a buffer, since words are read whole

_SEED = np.uint64(0x2545F4914F6CDD1D)
_STEP = np.uint64(0x9E3779B97F4A7C15)
_LAST = np.uint64(0xD6E8FEB86659FD93)

_ALL = np.uint64(0xFFFFFFFFFFFFFFFF)
_BITS_PER_BYTE = np.uint64(8)
_WORD_BITS = np.uint64(64)


def _word_at(typing_context: Any, buffer: Any, index: Any) -> Any:
    """word_at(buffer, i): bytes i … i+7 of a uint8 array as one uint64, at any alignment."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        pointer = _element(context, builder, signature, arguments)
        return builder.load(builder.bitcast(pointer, ir.IntType(64).as_pointer()), align=1)

    return types.uint64(buffer, types.intp), generate


def _prefetch(typing_context: Any, array: Any, index: Any) -> Any:
    """prefetch(array, i): asks for the cache line of array[i]; no effect on any value."""

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


@njit(cache=True, nogil=True)
def last_word(buffer: NDArray[np.uint8], start: Whole, length: Whole) -> Any:
    """The 0 to 7 bytes that are left over after the whole words of a name, padded with zeros, as a uint64."""
    left = np.uint64(length & 7)
    if left == np.uint64(0):
        return np.uint64(0)
    mask = _ALL >> (_WORD_BITS - left * _BITS_PER_BYTE)
    return word_at(buffer, start + (length & ~7)) & mask


@njit(cache=True, nogil=True)
def hash_name(buffer: NDArray[np.uint8], start: Whole, length: Whole) -> Any:
    """The 32-bit hash of buffer[start : start + length] (uint8 with SLACK bytes after it), as a uint64."""
    h = _SEED ^ (np.uint64(length) * _LAST)
    for at in range(start, start + (length & ~7), 8):
        h = (h ^ word_at(buffer, at)) * _STEP
        h ^= h >> _HALF
    h = (h ^ last_word(buffer, start, length)) * _STEP
    h ^= h >> _HALF
    h *= _LAST
    return h >> _HALF


@njit(cache=True, nogil=True, inline="always")
def same_name(
    left: NDArray[np.uint8], left_start: Whole, right: NDArray[np.uint8], right_start: Whole, length: Whole
) -> bool:
    """Whether two names of equal length hold the same bytes; both buffers end in SLACK.

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
