"""Tables stored in bf16: rows are read as float32, which is exact, and written with stochastic rounding.

A number is rounded to one of its two neighbors in bf16, with probabilities that keep its mean: 16 random bits are added
to the 16 bits that are cut off. So updates much smaller than the precision of bf16 add up, where rounding to the
nearest would lose them. The bits depend only on a key, the row's id and the column (`random`), not on order, threads or
device. A number that bf16 represents exactly does not change.
"""

from __future__ import annotations

import numba
import numpy as np
import torch
from torch import Tensor

from grash.kernels.device import use_torch_threads
from grash.kernels.random import _GOLDEN, _mix_u32, _row_keys, random_bits


def is_bf16(table: Tensor) -> bool:
    return table.dtype == torch.bfloat16


def to_float32(rows: Tensor) -> Tensor:
    """Return bf16 rows as float32, and all other rows unchanged."""
    return rows.float() if rows.dtype == torch.bfloat16 else rows


def gather_float32(table: Tensor, ids: list[Tensor]) -> tuple[Tensor, list[Tensor]]:
    """Return a float32 table of the rows at all ids (n,) of the list, and the ids of these rows in it."""
    places = torch.arange(sum(len(part) for part in ids), device=table.device)
    return to_float32(table.index_select(0, torch.cat(ids))), list(places.split([len(part) for part in ids]))


def round_stochastically(rows: Tensor, ids: Tensor, key: int) -> Tensor:
    """Round rows (n, D) float32 of the ids (n,) to (n, D) bf16; NaN stays NaN."""
    if rows.device.type != "cpu":
        return round_stochastically_reference(rows, random_bits(ids, rows.shape[1], key))
    out = torch.empty(rows.shape, dtype=torch.bfloat16)
    use_torch_threads()
    bits = rows.contiguous().view(torch.int32).numpy().view(np.uint32)
    places = np.ascontiguousarray(ids.numpy(), dtype=np.int64)
    _round_loop(bits, places, key & 0xFFFFFFFF, key >> 32, out.view(torch.int16).numpy().view(np.uint16))
    return out


def round_stochastically_reference(rows: Tensor, random: Tensor) -> Tensor:
    """Reference of `round_stochastically`; random (n, D) int32, of which the low 16 bits are used."""
    kept = (rows.view(torch.int32) + (random & 0xFFFF)) & -(1 << 16)
    return torch.where(torch.isnan(rows), rows, kept.view(torch.float32)).bfloat16()


@numba.njit(cache=True, parallel=True)
def _round_loop(bits, ids, k1, k2, out):  # type: ignore[no-untyped-def]
    for i in numba.prange(bits.shape[0]):
        a, b = _row_keys(ids[i], k1, k2)
        for j in range(bits.shape[1]):
            random = _mix_u32(_mix_u32(np.uint32(a + np.uint32(np.uint32(j) * np.uint32(_GOLDEN)))) ^ b)
            x = bits[i, j]
            if x & np.uint32(0x7FFFFFFF) > np.uint32(0x7F800000):
                out[i, j] = np.uint16(0x7FC0)
            else:
                out[i, j] = np.uint16(np.uint32(x + (random & np.uint32(0xFFFF))) >> np.uint32(16))
