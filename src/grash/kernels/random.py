"""Random numbers without state: a value depends only on its key and its position, not on the device or the order.

Batches, negatives, initial rows and dropout are drawn here, so a run can be stopped, resumed, moved and stacked without
changing a number. The mixing function is a 32-bit avalanche (xor-shift and multiply twice). Every function has three
forms with the same bits: torch integer arithmetic (any device), numba loops (CPU) and Triton (`random_triton`, CUDA).
"""

from __future__ import annotations

import functools
import hashlib
import math
from collections.abc import Sequence

import numba
import numpy as np
import torch
from torch import Tensor

from grash.kernels.device import use_triton, why_no_triton

_GOLDEN = 0x9E3779B9
_M1, _M2 = 0x7FEB352D, 0x846CA68B
_ROUNDS = 8
_CHUNK = 1 << 24  # elements mixed at once by the reference

Key = int | Tensor  # 64 bits, or a tensor (1,) of int64 that holds them: a captured CUDA graph reads keys from memory


def key_of(*parts: object) -> int:
    """Return a 64-bit key for a named stream, e.g. key_of(seed, "negatives", step)."""
    text = "\x1f".join(str(part) for part in parts).encode()
    return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "little")


def key_at(key: int, index: int) -> int:
    """Return the key at `index` of the stream `key`; cheaper than `key_of` in a loop."""
    low = _mix_int((key & 0xFFFFFFFF) ^ (index & 0xFFFFFFFF))
    high = _mix_int(((key >> 32) & 0xFFFFFFFF) ^ ((index >> 32) & 0xFFFFFFFF) ^ low)
    return (_mix_int(low ^ _mix_int(high ^ _GOLDEN)) << 32) | high


def key_value(key: Key) -> int:
    """Return the bits of a key; waits for the device if it is in memory there."""
    return key if isinstance(key, int) else int(key) & 0xFFFFFFFFFFFFFFFF


def permuted(places: Tensor, n: int, key: Key, *, inverse: bool = False) -> Tensor:
    """Return π(places), where π is the permutation of range(n) given by `key`; with `inverse`, π⁻¹.

    places: integer tensor of any shape with values in range(n) → int64 of the same shape. The first N places give N
    distinct values, so a prefix of them is a sample without replacement, without a table of n < 2³¹ entries. π is a
    Feistel network over radix² ≥ n values, repeated while the result is outside range(n).
    """
    radix = math.isqrt(max(n - 1, 0)) + 1
    if _on_triton(places.device):
        from grash.kernels import random_triton

        return random_triton.permuted(places, n, radix, key, inverse=inverse)
    keys = _round_keys(key_value(key))
    if places.device.type == "cpu":
        flat = np.ascontiguousarray(places.reshape(-1).numpy(), dtype=np.int64)
        moved = _permute_loop(flat, n, radix, np.array(keys, dtype=np.uint32), inverse)
        return torch.from_numpy(moved).reshape(places.shape)
    return permuted_reference(places.to(torch.int64), n, radix, keys, inverse=inverse)


def permuted_reference(x: Tensor, n: int, radix: int, keys: Sequence[int | Tensor], *, inverse: bool = False) -> Tensor:
    """Reference of `permuted`. It repeats often enough with probability 1 − 10⁻¹⁸, without asking the host."""
    result = _feistel(x, radix, keys, inverse)
    outside = 1 - n / (radix * radix)
    for _ in range(max(1, math.ceil(math.log(1e-18) / math.log(outside))) if outside > 0 else 0):
        result = torch.where(result < n, result, _feistel(result, radix, keys, inverse))
    return result


def permuted_rows(n_rows: int, count: int, n: int, key: Key, device: torch.device) -> Tensor:
    """Return (n_rows, count) int64: `count` distinct values of range(n) per row, each row by its own permutation."""
    radix = math.isqrt(max(n - 1, 0)) + 1
    if _on_triton(device):
        from grash.kernels import random_triton

        return random_triton.permuted_rows(n_rows, count, n, radix, key, device)
    keys = _row_round_keys(n_rows, key_value(key), torch.device("cpu"))
    places = torch.arange(count, device=device)
    if device.type == "cpu":
        rows = _permute_rows_loop(places.numpy(), n, radix, keys.to(torch.int64).numpy().astype(np.uint32))
        return torch.from_numpy(rows)
    columns = [keys[:, i : i + 1].to(device) for i in range(_ROUNDS)]
    return permuted_reference(places[None, :].expand(n_rows, -1), n, radix, columns)


def random_bits(rows: Tensor, width: int, key: Key) -> Tensor:
    """Return 32 random bits for each (row, column): rows (n,) integers → (n, width) int32, to be read as unsigned.

    Entry (i, j) depends only on key, rows[i] and j.
    """
    if _on_triton(rows.device):
        from grash.kernels import random_triton

        return random_triton.random_bits(rows, width, key)
    value = key_value(key)
    k1, k2 = value & 0xFFFFFFFF, value >> 32
    if rows.device.type == "cpu":
        bits = _bits_loop(np.ascontiguousarray(rows.numpy(), dtype=np.int64), width, k1, k2)
        return torch.from_numpy(bits)
    out = torch.empty((len(rows), width), dtype=torch.int32, device=rows.device)
    step = max(1, _CHUNK // max(width, 1))
    for i in range(0, len(rows), step):
        out[i : i + step] = bits_reference(rows[i : i + step], width, k1, k2)
    return out


def bits_reference(rows: Tensor, width: int, k1: int, k2: int) -> Tensor:
    """Reference of `random_bits`."""
    rows = rows.to(torch.int64)
    low, high = rows & 0xFFFFFFFF, rows >> 32
    a = _mix(low ^ k1)[:, None]
    b = _mix((low * _GOLDEN & 0xFFFFFFFF) ^ high ^ k2)[:, None]
    columns = torch.arange(width, device=rows.device, dtype=torch.int64)[None, :]
    bits = _mix(_mix((a + columns * _GOLDEN) & 0xFFFFFFFF) ^ b)
    return bits.to(torch.int32)  # wraps: the low 32 bits


def uniform(rows: Tensor, width: int, key: Key) -> Tensor:
    """Return uniform floats in (0, 1) for each (row, column): (n, width) float32, odd multiples of 2⁻²⁴."""
    bits = random_bits(rows, width, key)
    return (((bits >> 9) & 0x7FFFFF).to(torch.float32) + 0.5) * 2.0**-23


def normal(rows: Tensor, width: int, key: int) -> Tensor:
    """Return standard normal floats for each (row, column): (n, width), by the Box–Muller method."""
    u1 = uniform(rows, width, key)
    u2 = uniform(rows, width, key_at(key, 1))
    return torch.sqrt(-2.0 * torch.log(u1)) * torch.cos((2.0 * math.pi) * u2)


def keep_mask(rows: Tensor, width: int, rate: float, key: Key) -> Tensor:
    """Return dropout factors, 0 with probability `rate`, else 1 / (1 − rate): rows (n,) → (n, width) float32."""
    threshold = min(round(rate * 2**32), 2**32 - 1)
    scale = 1.0 / (1.0 - rate)
    if rows.device.type == "cpu":
        places, value = np.ascontiguousarray(rows.numpy(), dtype=np.int64), key_value(key)
        k1, k2 = value & 0xFFFFFFFF, value >> 32
        return torch.from_numpy(_mask_loop(places, width, k1, k2, threshold, np.float32(scale)))
    if _on_triton(rows.device):
        from grash.kernels import random_triton

        return random_triton.keep_mask(rows, width, threshold, scale, key)
    bits = random_bits(rows, width, key)
    # unsigned comparison through signed integers: flip the sign bit on both sides
    kept = (bits ^ -(2**31)) >= threshold - 2**31
    return kept.to(torch.float32) * scale


class BatchSampler:
    """Draws all that a step with shared negatives needs, in one loop on a CPU.

    The numbers are those of `key_at` and `permuted`. Call by call they cost 0.4 ms a step, of which 0.05 ms is
    arithmetic: between matrix products every other call finds the caches cold.
    """

    def __init__(self, train: Tensor, order_key: int, n_entities: int, sides: Sequence[tuple[int, int, int]]) -> None:
        """train (n, 3) on a CPU; order_key: stream of the epochs' orders.

        sides: for each the stream of its negatives, their number, and the column of `train` with the true answers.
        """
        self._train, self._n_entities = train.numpy(), n_entities
        self._keys = np.array([order_key, *(key for key, _, _ in sides)], dtype=np.uint64)
        self._counts = np.array([count for _, count, _ in sides], dtype=np.int64)
        self._truths = np.array([column for _, _, column in sides], dtype=np.int64)

    def draw(
        self, step: int, epoch: int, first: int, last: int
    ) -> tuple[Tensor, Tensor, list[tuple[Tensor, Tensor, Tensor]]]:
        """Draw the batch at the places first … last − 1 of the epoch's order.

        Returns triples (B, 3) int64, rows (B,) = 0 … B − 1, and for each side its negatives (N,), the columns (B,) of
        the true answers among them (N − 1 if absent), and whether they are absent (B,).
        """
        fixed = self._train, self._keys, self._n_entities, self._counts, self._truths
        columns, rows, ids, places, absent = _draw_loop(*fixed, step, epoch, first, last)
        sides = [
            (torch.from_numpy(ids[s, : self._counts[s]]), torch.from_numpy(places[s]), torch.from_numpy(absent[s]))
            for s in range(len(ids))
        ]
        return torch.from_numpy(columns.T), torch.from_numpy(rows), sides


def _on_triton(device: torch.device) -> bool:
    return device.type != "cpu" and use_triton(why_no_triton(device), device, what="the kernels of random numbers")


@functools.lru_cache(maxsize=8)  # a step needs the keys of its negatives twice
def _round_keys(key: int) -> list[int]:
    return [_mix_int((key & 0xFFFFFFFF) ^ _mix_int((key >> 32) + i * _GOLDEN)) for i in range(_ROUNDS)]


def _row_round_keys(n_rows: int, key: int, device: torch.device) -> Tensor:
    """Return (n_rows, rounds) keys, each 32 bits in int64."""
    rows = torch.arange(n_rows, device=device)[:, None]
    rounds = torch.tensor(_round_keys(key), device=device)[None, :]
    return _mix(_mix(rows ^ (key & 0xFFFFFFFF)) ^ rounds)


def _feistel(x: Tensor, radix: int, keys: Sequence[int | Tensor], inverse: bool) -> Tensor:
    left, right = x // radix, x % radix
    if inverse:
        for key in reversed(keys):
            left, right = (right - (_mix(left ^ key) * radix >> 32)) % radix, left
    else:
        for key in keys:
            left, right = right, (left + (_mix(right ^ key) * radix >> 32)) % radix
    return left * radix + right


def _mix(x: Tensor) -> Tensor:
    """Mix 32 bits in int64 arithmetic; only the low 32 bits of a product matter, so it may overflow."""
    x = x ^ (x >> 16)
    x = (x * _M1) & 0xFFFFFFFF
    x = x ^ (x >> 15)
    x = (x * _M2) & 0xFFFFFFFF
    return x ^ (x >> 16)


def _mix_int(x: int) -> int:
    x &= 0xFFFFFFFF
    x ^= x >> 16
    x = (x * _M1) & 0xFFFFFFFF
    x ^= x >> 15
    x = (x * _M2) & 0xFFFFFFFF
    return x ^ (x >> 16)


@numba.njit(cache=True, inline="always")
def _mix_u32(x):  # type: ignore[no-untyped-def]
    x = np.uint32(x)
    x ^= x >> np.uint32(16)
    x = np.uint32(x * np.uint32(_M1))
    x ^= x >> np.uint32(15)
    x = np.uint32(x * np.uint32(_M2))
    return np.uint32(x ^ (x >> np.uint32(16)))


@numba.njit(cache=True)
def _permute_loop(places, n, radix, keys, inverse):  # type: ignore[no-untyped-def]
    """Permute all places one round at a time, which compiles to vector instructions; then repeat the few outside."""
    count = places.shape[0]
    radix = np.uint32(radix)
    left, right = np.empty(count, np.uint32), np.empty(count, np.uint32)
    for i in range(count):
        left[i], right[i] = places[i] // radix, places[i] % radix
    _feistel_rounds(left, right, radix, keys, inverse)
    out = np.empty(count, np.int64)
    l1, r1 = np.empty(1, np.uint32), np.empty(1, np.uint32)
    for i in range(count):
        x = np.uint32(left[i] * radix + right[i])
        while x >= n:
            l1[0], r1[0] = x // radix, x % radix
            _feistel_rounds(l1, r1, radix, keys, inverse)
            x = np.uint32(l1[0] * radix + r1[0])
        out[i] = x
    return out


@numba.njit(cache=True)
def _feistel_rounds(left, right, radix, keys, inverse):  # type: ignore[no-untyped-def]
    for r in range(keys.shape[0]):
        key = keys[keys.shape[0] - 1 - r] if inverse else keys[r]
        for i in range(left.shape[0]):
            ahead, moving = (left[i], right[i]) if inverse else (right[i], left[i])
            shift = np.uint32((np.uint64(_mix_u32(ahead ^ key)) * np.uint64(radix)) >> np.uint64(32))
            if inverse:
                moved = moving - shift if moving >= shift else moving + radix - shift
                left[i], right[i] = np.uint32(moved), ahead
            else:
                moved = moving + shift
                left[i], right[i] = ahead, np.uint32(moved - radix if moved >= radix else moved)


@numba.njit(cache=True)
def _permute_rows_loop(places, n, radix, keys):  # type: ignore[no-untyped-def]
    out = np.empty((keys.shape[0], places.shape[0]), np.int64)
    for i in range(keys.shape[0]):
        row = _permute_loop(places, n, radix, keys[i], False)
        for j in range(places.shape[0]):  # assigning a slice takes numba a second longer to compile
            out[i, j] = row[j]
    return out


@numba.njit(cache=True, inline="always")
def _row_keys(row, k1, k2):  # type: ignore[no-untyped-def]
    low, high = np.uint32(row & 0xFFFFFFFF), np.uint32(row >> 32)
    a = _mix_u32(low ^ np.uint32(k1))
    b = _mix_u32(np.uint32(low * np.uint32(_GOLDEN)) ^ high ^ np.uint32(k2))
    return a, b


@numba.njit(cache=True)
def _bits_loop(rows, width, k1, k2):  # type: ignore[no-untyped-def]
    out = np.empty((rows.shape[0], width), np.int32)
    for i in range(rows.shape[0]):
        a, b = _row_keys(rows[i], k1, k2)
        for j in range(width):
            x = np.uint32(a + np.uint32(np.uint32(j) * np.uint32(_GOLDEN)))
            out[i, j] = np.int32(_mix_u32(_mix_u32(x) ^ b))
    return out


@numba.njit(cache=True)
def _mask_loop(rows, width, k1, k2, threshold, scale):  # type: ignore[no-untyped-def]
    out = np.empty((rows.shape[0], width), np.float32)
    limit = np.uint32(threshold)
    for i in range(rows.shape[0]):
        a, b = _row_keys(rows[i], k1, k2)
        for j in range(width):
            x = np.uint32(a + np.uint32(np.uint32(j) * np.uint32(_GOLDEN)))
            out[i, j] = scale if _mix_u32(_mix_u32(x) ^ b) >= limit else np.float32(0)
    return out


@numba.njit(cache=True)
def _draw_loop(train, keys, n_entities, counts, truths, step, epoch, first, last):  # type: ignore[no-untyped-def]
    rows = np.arange(last - first)
    columns = np.empty((3, rows.shape[0]), np.int64)
    order = _permuted(rows + first, train.shape[0], keys[0], epoch, False)
    for i in range(rows.shape[0]):
        for k in range(3):
            columns[k, i] = train[order[i], k]
    ids = np.empty((counts.shape[0], counts.max()), np.int64)
    places = np.empty((counts.shape[0], rows.shape[0]), np.int64)
    absent = np.empty(places.shape, np.bool_)
    for s in range(counts.shape[0]):
        drawn = _permuted(np.arange(counts[s]), n_entities, keys[1 + s], step, False)
        for i in range(counts[s]):
            ids[s, i] = drawn[i]
        found = _permuted(columns[truths[s]], n_entities, keys[1 + s], step, True)
        for i in range(rows.shape[0]):
            absent[s, i] = found[i] >= counts[s]
            places[s, i] = min(found[i], counts[s] - 1)
    return columns, rows, ids, places, absent


@numba.njit(cache=True)
def _permuted(places, n, stream, index, inverse):  # type: ignore[no-untyped-def]
    """permuted(places, n, key_at(stream, index))."""
    x, y = np.uint32(stream) ^ np.uint32(index), np.uint32(stream >> np.uint64(32)) ^ np.uint32(index >> 32)
    first = _mix_u32(x)
    low = _mix_u32(y ^ first)
    high = _mix_u32(first ^ _mix_u32(low ^ np.uint32(_GOLDEN)))
    keys = np.empty(_ROUNDS, np.uint32)
    for i in range(_ROUNDS):
        keys[i] = _mix_u32(low ^ _mix_u32(np.uint32(high + np.uint32(np.uint32(i) * np.uint32(_GOLDEN)))))
    radix = np.int64(np.sqrt(max(n - 1, 0))) + 1  # exact, as n < 2³¹
    return _permute_loop(places, n, radix, keys, inverse)
