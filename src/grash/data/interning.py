"""Names become ids: the interner gives each distinct name the next id, without a Python object per name.

Comes from the fields of readers/text.py and the strings of readers/rdf.py; goes to vocabulary.py. All names are in one
byte blob with 8-byte offsets. The index is an open-addressing hash table of 8-byte slots (32 bits of hash, 32 of
id + 1). Fields are looked up in batches whose cache lines are prefetched; without that, each lookup in a large graph
waits for memory three times (benchmarks/records/2026-11-15_encode).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from llvmlite import ir
from numba import njit, types
from numba.extending import intrinsic
from numpy.typing import NDArray

from grash.data.arrays import Triples
from grash.errors import InputError

Integer = Any  # an integer inside numba code, of Python or NumPy
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
_EMPTY = np.uint64(0)
_BITS_PER_BYTE = np.uint64(8)
_WORD_BITS = np.uint64(64)


class HashedFields(NamedTuple):
    """Names as slices of a uint8 buffer that ends with SLACK bytes: starts, lengths, hashes (n,)."""

    buffer: Bytes
    starts: NDArray[Any]
    lengths: NDArray[Any]
    hashes: Hashes


class Interner:
    """The names seen so far, with ids by first appearance. Takes 8 bytes of offset and 13 to 27 of slots per name.

    With `keep_repeats`, every name gets its own id; a repeated name is counted and found under its first id.
    """

    def __init__(self, *, keep_repeats: bool = False) -> None:
        self.keep_repeats = keep_repeats
        self._slots = np.zeros(1024, np.uint64)
        self._blob = np.empty(16384, np.uint8)
        self._offsets = np.zeros(1025, np.int64)
        self._state = np.zeros(4, np.int64)  # names, bytes used, repeats, bytes needed by the next batch

    def __len__(self) -> int:
        return int(self._state[0])

    @property
    def n_repeats(self) -> int:
        return int(self._state[2])

    def add(self, names: Sequence[str]) -> NDArray[np.int32]:
        """Return the ids (n,) of names; add new names."""
        return self.add_fields(_as_fields(names))

    def add_fields(self, fields: HashedFields) -> NDArray[np.int32]:
        """Return the ids (n,) of fields; add new names."""
        ids = np.empty(len(fields.starts), np.int32)
        done = 0
        while True:
            done = _intern(*fields, done, self.keep_repeats, self._slots, self._blob, self._offsets, self._state, ids)
            if done == len(ids):
                return ids
            self._make_room(_BATCH)

    def arrays(self) -> tuple[Bytes, Offsets, NDArray[np.int32]]:
        """Return the bytes of all names, their offsets (n + 1,), and the index: int32 slots (id + 1; 0 is empty)."""
        index = (self._slots & _LOW).astype(np.int32)
        return self._blob[: self._state[1]], self._offsets[: len(self) + 1], index

    def names_from(self, first: int) -> tuple[Bytes, NDArray[np.int32]]:
        """Return the concatenated bytes of the names from id `first` on, and their lengths."""
        offsets = self._offsets[first : len(self) + 1]
        return self._blob[offsets[0] : self._state[1]], np.diff(offsets).astype(np.int32)

    @property
    def n_bytes(self) -> int:
        """Memory that the names take."""
        return self._slots.nbytes + 8 * len(self) + int(self._state[1])

    def _make_room(self, n_more: int) -> None:
        wanted = len(self) + n_more
        if wanted > MAX_NAMES:
            raise InputError(f"There are more than {MAX_NAMES:,} distinct names, but ids are 32-bit integers.")
        while wanted > _LOAD * len(self._slots):
            self._slots = _doubled(self._slots)
        if wanted >= len(self._offsets):
            self._offsets = _enlarged(self._offsets, len(self) + 1, 2 * wanted)
        used, more = int(self._state[1]), int(self._state[3])
        if used + more + SLACK > len(self._blob):
            self._blob = _enlarged(self._blob, used, 2 * (used + more + SLACK))


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
def _intern(
    buffer: Bytes,
    starts: NDArray[Any],
    lengths: NDArray[Any],
    hashes: Hashes,
    done: Integer,
    keep: bool,
    slots: Slots,
    blob: Bytes,
    offsets: Offsets,
    state: Offsets,
    ids: NDArray[np.int32],
) -> Integer:
    """Look up the fields from `done` on. Return the number done; less than n means that more space is needed."""
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
    return _append(buffer, start, length, blob, offsets, state)


@njit(cache=True, nogil=True)
def _append(buffer: Bytes, start: Integer, length: Integer, blob: Bytes, offsets: Offsets, state: Offsets) -> Integer:
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


@njit(cache=True, nogil=True)
def last_word(buffer: Bytes, start: Integer, length: Integer) -> Any:
    """Return the last 0 to 7 bytes of a name after its whole words, padded with zeros, as a uint64."""
    left = np.uint64(length & 7)
    if left == np.uint64(0):
        return np.uint64(0)
    mask = _ALL >> (_WORD_BITS - left * _BITS_PER_BYTE)
    return word_at(buffer, start + (length & ~7)) & mask


@njit(cache=True, nogil=True)
def hash_name(buffer: Bytes, start: Integer, length: Integer) -> Any:
    """Return the 32-bit hash of buffer[start : start + length] (followed by SLACK bytes) as a uint64.

    It determines the position of a name in a saved index, so a change of it changes the file format.
    """
    h = _SEED ^ (np.uint64(length) * _LAST)
    for at in range(start, start + (length & ~7), 8):
        h = (h ^ word_at(buffer, at)) * _STEP
        h ^= h >> _HALF
    h = (h ^ last_word(buffer, start, length)) * _STEP
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
