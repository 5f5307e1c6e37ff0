"""Triton form of `random`, with the same bits: functions for other kernels, and kernels of one launch each.

The functions serve kernels that must not wait for the host: the key of a step comes from a counter in device memory. A
key is two uint32, low and high; each may be a scalar or a block. The kernels receive keys as two signed 32-bit scalars,
so that a new key compiles nothing, or load them from device memory. The reference form of a permutation would be
hundreds of small kernels.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from grash.kernels.random import Key

GOLDEN: tl.constexpr = tl.constexpr(0x9E3779B9)
_M1: tl.constexpr = tl.constexpr(0x7FEB352D)
_M2: tl.constexpr = tl.constexpr(0x846CA68B)
_ROUNDS: tl.constexpr = tl.constexpr(8)
_BLOCK = 256


def permuted(places: Tensor, n: int, radix: int, key: Key, *, inverse: bool) -> Tensor:
    flat = places.reshape(-1).to(torch.int64).contiguous()  # a column of triples is strided
    out = torch.empty_like(flat)
    _launch_permute(flat, out, 1, n, radix, key, inverse=inverse)
    return out.reshape(places.shape)


def permuted_rows(n_rows: int, count: int, n: int, radix: int, key: Key, device: torch.device) -> Tensor:
    out = torch.empty((n_rows, count), dtype=torch.int64, device=device)
    _launch_permute(out, out, count, n, radix, key, by_row=True)
    return out


def _launch_permute(
    places: Tensor,
    out: Tensor,
    count: int,
    n: int,
    radix: int,
    key: Key,
    *,
    inverse: bool = False,
    by_row: bool = False,
) -> None:
    if out.numel():
        grid = (triton.cdiv(out.numel(), _BLOCK),)
        sizes = out.numel(), count, n, radix
        low, high, stored = _parts(key, out)
        _permute[grid](places, out, *sizes, low, high, stored, STORED=stored is not out, INVERSE=inverse,
                       BY_ROW=by_row, BLOCK=_BLOCK)  # fmt: skip


def random_bits(rows: Tensor, width: int, key: Key) -> Tensor:
    out = torch.empty((len(rows), width), dtype=torch.int32, device=rows.device)
    _launch_bits(rows, out, width, key, 0, 0.0, mask=False)
    return out


def keep_mask(rows: Tensor, width: int, threshold: int, scale: float, key: Key) -> Tensor:
    out = torch.empty((len(rows), width), dtype=torch.float32, device=rows.device)
    _launch_bits(rows, out, width, key, threshold, scale, mask=True)
    return out


def _launch_bits(rows: Tensor, out: Tensor, width: int, key: Key, threshold: int, scale: float, *, mask: bool) -> None:
    if out.numel():
        block = min(triton.next_power_of_2(width), 1024)
        grid = (len(rows), triton.cdiv(width, block))
        low, high, stored = _parts(key, out)
        _bits[grid](rows.to(torch.int64).contiguous(), out, width, low, high, stored, _signed(threshold), scale,
                    STORED=stored is not out, MASK=mask, BLOCK=block)  # fmt: skip


def _parts(key: Key, other: Tensor) -> tuple[int, int, Tensor]:
    """Return a key as two scalars and, if it is in memory, as a tensor of int32; otherwise `other`."""
    if isinstance(key, Tensor):
        return 0, 0, key.view(torch.int32)
    return _signed(key & 0xFFFFFFFF), _signed((key >> 32) & 0xFFFFFFFF), other


def _signed(x: int) -> int:
    return x - 2**32 if x >= 2**31 else x


@triton.jit
def load_key(keys, at):  # type: ignore[no-untyped-def]
    """Load the key at `at` of int32 pairs (low, high)."""
    low = tl.load(keys + 2 * at).to(tl.uint32, bitcast=True)
    high = tl.load(keys + 2 * at + 1).to(tl.uint32, bitcast=True)
    return low, high


@triton.jit
def key_at(low, high, index):  # type: ignore[no-untyped-def]
    """`random.key_at`: derive the key of `index` (int64, not negative) from the stream (low, high)."""
    a = mix(low ^ (index & 0xFFFFFFFF).to(tl.uint32))
    b = mix(high ^ (index >> 32).to(tl.uint32) ^ a)
    return b, mix(a ^ mix(b ^ tl.full((), GOLDEN, tl.uint32)))


@triton.jit
def permute_block(x, n, radix, low, high, INVERSE: tl.constexpr, BY_ROW: tl.constexpr = False, row=0):  # type: ignore[no-untyped-def]
    """`random.permuted` of a block x of values in range(n), uint32; repeats while a value is outside.

    BY_ROW: `random.permuted_rows`, where every row (a block, uint32) has its own permutation.
    """
    x = _feistel(x, radix, low, high, INVERSE, BY_ROW, row)
    while tl.max((x >= n).to(tl.int32), 0) > 0:
        x = tl.where(x < n, x, _feistel(x, radix, low, high, INVERSE, BY_ROW, row))
    return x


@triton.jit
def dropout_block(rows, columns, low, high, threshold, scale):  # type: ignore[no-untyped-def]
    """`random.keep_mask`: rows (n,) of 32 bits, columns (m,) → (n, m) factors, 0 or `scale`."""
    return tl.where(random_bits_block(rows, columns, low, high) >= threshold, scale, 0.0)


@triton.jit
def random_bits_block(rows, columns, low, high):  # type: ignore[no-untyped-def]
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
def spread_bits(bits, radix):  # type: ignore[no-untyped-def]
    """Map 32 random bits to range(radix), radix below 2¹⁶: the upper half of their product."""
    return ((bits >> 16) * radix + (((bits & 0xFFFF) * radix) >> 16)) >> 16


@triton.jit
def _feistel(x, radix, low, high, INVERSE: tl.constexpr, BY_ROW: tl.constexpr, row):  # type: ignore[no-untyped-def]
    """Apply 8 rounds in a loop: unrolled here, they make Triton compile slowly (`draw`: 5 s instead of 2).

    LLVM unrolls the loop later, to the same instructions.
    """
    left = x // radix
    right = x - left * radix
    number = tl.full((), (_ROUNDS - 1) * GOLDEN & 0xFFFFFFFF if INVERSE else 0, tl.uint32)
    for _ in range(_ROUNDS):
        key = mix(low ^ mix(high + number))
        if BY_ROW:
            key = mix(mix(row ^ low) ^ key)
        if INVERSE:
            moved = right + radix - spread_bits(mix(left ^ key), radix)
            right = left
            left = tl.where(moved >= radix, moved - radix, moved)
            number -= GOLDEN
        else:
            moved = left + spread_bits(mix(right ^ key), radix)
            left = right
            right = tl.where(moved >= radix, moved - radix, moved)
            number += GOLDEN
    return left * radix + right


@triton.jit(do_not_specialize=["total", "count", "n", "radix", "low", "high"])
def _permute(  # type: ignore[no-untyped-def]
    places, out, total, count, n, radix, low, high, key,
    STORED: tl.constexpr, INVERSE: tl.constexpr, BY_ROW: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    live = at < total
    low, high, radix, n = low.to(tl.uint32), high.to(tl.uint32), radix.to(tl.uint32), n.to(tl.uint32)
    if STORED:
        low, high = load_key(key, 0)
    if BY_ROW:
        x = (at % count).to(tl.uint32)
    else:
        x = tl.load(places + at, mask=live, other=0).to(tl.uint32)
    x = permute_block(x, n, radix, low, high, INVERSE, BY_ROW, (at // count).to(tl.uint32))
    tl.store(out + at, x.to(tl.int64), mask=live)


@triton.jit(do_not_specialize=["width", "low", "high", "threshold"])
def _bits(  # type: ignore[no-untyped-def]
    rows, out, width, low, high, key, threshold, scale, STORED: tl.constexpr, MASK: tl.constexpr, BLOCK: tl.constexpr
):
    low, high = low.to(tl.uint32), high.to(tl.uint32)
    if STORED:
        low, high = load_key(key, 0)
    line = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    row = tl.load(rows + line)
    first = (row & 0xFFFFFFFF).to(tl.uint32)
    a = mix(first ^ low)
    b = mix((first * GOLDEN).to(tl.uint32) ^ (row >> 32).to(tl.uint32) ^ high)
    bits = mix(mix((a + column.to(tl.uint32) * GOLDEN).to(tl.uint32)) ^ b)
    if MASK:
        value = tl.where(bits >= threshold.to(tl.uint32), scale, 0.0)
    else:
        value = bits.to(tl.int32, bitcast=True)
    tl.store(out + line * width + column, value, mask=column < width)
