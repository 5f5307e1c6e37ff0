"""NDArray[np.uint8] eight at a time: unaligned words, the hash of a name, cache prefetch; all inside numba.

Used by intern.py and vocabulary.py. The hash decides where a name lies in a saved index, so a change of it
is a change of the file format.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir  # type: ignore[import-untyped]
from numba import njit, types
from numba.extending import intrinsic
from numpy.typing import NDArray

Whole = Any  # an integer inside numba code, of Python or of numpy
SLACK = 8  # bytes that must follow the last name of a buffer, since words are read whole

_SEED = np.uint64(0x2545F4914F6CDD1D)
_STEP = np.uint64(0x9E3779B97F4A7C15)
_LAST = np.uint64(0xD6E8FEB86659FD93)
_HALF = np.uint64(32)
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
