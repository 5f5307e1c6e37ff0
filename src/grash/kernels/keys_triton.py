"""Random numbers inside other Triton kernels: keys, permutations and dropout factors as device functions.

The arithmetic of `random`, bit for bit, for kernels that must not wait for the host: a step's key follows from a
counter in device memory. A key is two uint32, low and high; either may be a scalar or a block.
"""

from __future__ import annotations

import triton
import triton.language as tl

GOLDEN: tl.constexpr = tl.constexpr(0x9E3779B9)
_M1: tl.constexpr = tl.constexpr(0x7FEB352D)
_M2: tl.constexpr = tl.constexpr(0x846CA68B)
_ROUNDS: tl.constexpr = tl.constexpr(8)


@triton.jit
def load_key(keys, at):  # type: ignore[no-untyped-def]
    """keys: int32 pairs (low, high) → the pair at `at`."""
    low = tl.load(keys + 2 * at).to(tl.uint32, bitcast=True)
    high = tl.load(keys + 2 * at + 1).to(tl.uint32, bitcast=True)
    return low, high


@triton.jit
def key_at(low, high, index):  # type: ignore[no-untyped-def]
    """`random.key_at`: the key of place `index` (int64, not negative) in the stream (low, high)."""
    a = mix(low ^ (index & 0xFFFFFFFF).to(tl.uint32))
    b = mix(high ^ (index >> 32).to(tl.uint32) ^ a)
    return b, mix(a ^ mix(b ^ tl.full((), GOLDEN, tl.uint32)))


@triton.jit
def permuted(x, n, side, low, high, INVERSE: tl.constexpr):  # type: ignore[no-untyped-def]
    """`random.permuted` of a block x of values in range(n), uint32. Walks on only while a value lies outside."""
    x = _feistel(x, side, low, high, INVERSE)
    while tl.max((x >= n).to(tl.int32), 0) > 0:
        x = tl.where(x < n, x, _feistel(x, side, low, high, INVERSE))
    return x


@triton.jit
def kept(rows, columns, low, high, threshold, scale):  # type: ignore[no-untyped-def]
    """`random.keep_mask`: rows (n,) of 32 bits, columns (m,) → (n, m) factors, 0 or `scale`."""
    return tl.where(random_bits(rows, columns, low, high) >= threshold, scale, 0.0)


@triton.jit
def random_bits(rows, columns, low, high):  # type: ignore[no-untyped-def]
    """`random.random_bits`: rows (n,) of 32 bits, columns (m,) → (n, m) uint32."""
    first = rows.to(tl.uint32)
    a = mix(first ^ low)
    b = mix((first * GOLDEN).to(tl.uint32) ^ high)
    return mix(mix(a[:, None] + (columns.to(tl.uint32) * GOLDEN).to(tl.uint32)[None, :]) ^ b[:, None])


@triton.jit
def mix(x):  # type: ignore[no-untyped-def]
    x = x ^ (x >> 16)
    x = (x * _M1).to(tl.uint32)
    x = x ^ (x >> 15)
    x = (x * _M2).to(tl.uint32)
    return x ^ (x >> 16)


@triton.jit
def spread_bits(bits, side):  # type: ignore[no-untyped-def]
    """32 random bits → range(side), side below 2¹⁶: the upper half of their product."""
    return ((bits >> 16) * side + (((bits & 0xFFFF) * side) >> 16)) >> 16


@triton.jit
def _feistel(x, side, low, high, INVERSE: tl.constexpr):  # type: ignore[no-untyped-def]
    """A loop, not eight rounds written out: Triton's passes take time by the square of the operations (`draw`: 5 s, now
    2), and LLVM writes the rounds out after them, to the same instructions."""
    left = x // side
    right = x - left * side
    number = tl.full((), (_ROUNDS - 1) * GOLDEN & 0xFFFFFFFF if INVERSE else 0, tl.uint32)
    for _ in range(_ROUNDS):
        key = mix(low ^ mix(high + number))
        if INVERSE:
            moved = right + side - spread_bits(mix(left ^ key), side)
            right = left
            left = tl.where(moved >= side, moved - side, moved)
            number -= GOLDEN
        else:
            moved = left + spread_bits(mix(right ^ key), side)
            left = right
            right = tl.where(moved >= side, moved - side, moved)
            number += GOLDEN
    return left * side + right
