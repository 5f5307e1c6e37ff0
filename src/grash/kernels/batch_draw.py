"""All that a step with shared negatives draws, in one loop on a CPU: its positives, its negatives, and where among
those the truths stand.

The numbers are those of `random.key_at` and `random.permuted`, bit for bit. Call by call they cost 0.4 ms a step, of
which 0.05 is arithmetic: between matrix products every other call finds the caches cold.
"""

from __future__ import annotations

from collections.abc import Sequence

import numba
import numpy as np
import torch
from torch import Tensor

from grash.kernels.random import _GOLDEN, _ROUNDS, _mix_u32, _permute_loop

Found = tuple[Tensor, Tensor, Tensor]


class BatchDraw:
    """train (n, 3) on a CPU, in the order of `order_key`; slots: for each the key of its negatives, how many of
    n_entities are drawn, and the column of `train` that holds its truths."""

    def __init__(self, train: Tensor, order_key: int, n_entities: int, slots: Sequence[tuple[int, int, int]]) -> None:
        self._train, self._n_entities = train.numpy(), n_entities
        self._keys = np.array([order_key, *(key for key, _, _ in slots)], dtype=np.uint64)
        self._counts = np.array([count for _, count, _ in slots], dtype=np.int64)
        self._truths = np.array([column for _, _, column in slots], dtype=np.int64)

    def at(self, step: int, epoch: int, first: int, last: int) -> tuple[Tensor, Tensor, list[Found]]:
        """Places first to last of the epoch's order: triples (B, 3) int64, rows (B,) = 0 … B − 1, and per slot its
        negatives (N,), the columns (B,) of the truths among them, N − 1 where the last, (B,), says they are not."""
        fixed = self._train, self._keys, self._n_entities, self._counts, self._truths
        columns, rows, ids, places, absent = _draw_loop(*fixed, step, epoch, first, last)
        slots = [
            (torch.from_numpy(ids[s, : self._counts[s]]), torch.from_numpy(places[s]), torch.from_numpy(absent[s]))
            for s in range(len(ids))
        ]
        return torch.from_numpy(columns.T), torch.from_numpy(rows), slots


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
        ids[s, : counts[s]] = _permuted(np.arange(counts[s]), n_entities, keys[1 + s], step, False)
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
    side = np.int64(np.sqrt(max(n - 1, 0))) + 1  # exact, as n < 2³¹
    return _permute_loop(places, n, side, keys, inverse)
