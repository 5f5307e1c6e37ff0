"""Updates of the rows that a step touched, and only of those.

A row that occurs several times in a step is summed first, in the order of its occurrences, and squared after: the
same result as a dense gradient, whatever the number of threads.
Bytes for n touched rows of D floats under Adagrad: 20·n·D (gradient, row and state read, row and state written).
A table in bf16 is moved in float32 by the same rules, and its rows rounded by a step's key (`bf16_rows`).
"""

from __future__ import annotations

from collections.abc import Sequence

import numba
import numpy as np
import torch
from torch import Tensor

from grash.kernels.bf16_rows import is_bf16, round_stochastically, to_float32
from grash.kernels.device import use_torch_threads

_CHUNKS = 16


def summed_rows(ids: Sequence[Tensor], rows: Sequence[Tensor], scratch: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Parts of ids (n,) and rows (n, D) → (ids, sums) with every row's occurrences added up, part after part.

    On a CPU the ids come back distinct; `scratch`, (E,) int32 of −1 and left so, saves sorting them. On other devices
    they come back ordered and repeated, each occurrence with the whole sum, so that no size depends on the data and
    the host need not wait; writing a repeated row twice writes the same values.
    """
    _check(ids, rows)
    if rows[0].device.type != "cpu":
        return _summed_in_order(torch.cat(list(ids)), torch.cat(list(rows)))
    if scratch is None or rows[0].dtype != torch.float32:
        return summed_rows_plain(ids, rows)
    n = sum(len(part) for part in ids)
    distinct, sums = torch.empty(n, dtype=torch.int64), torch.empty((n, rows[0].shape[1]))
    count = 0
    for part, values in zip(ids, rows):
        arrays = [x.numpy() for x in (part.contiguous(), values.contiguous(), scratch, distinct, sums)]
        count = _sum_loop(*arrays, count)  # type: ignore[call-arg]
    _clear_loop(scratch.numpy(), distinct.numpy(), count)
    return distinct[:count], sums[:count]


def summed_rows_plain(ids: Sequence[Tensor], rows: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
    """The plain form of `summed_rows` on a CPU."""
    distinct, place = torch.unique(torch.cat(list(ids)), return_inverse=True)
    sums = rows[0].new_zeros(len(distinct), rows[0].shape[1])
    for part, values in zip(place.split([len(part) for part in ids]), rows):
        sums.index_add_(0, part, values)
    return distinct, sums


def _check(ids: Sequence[Tensor], rows: Sequence[Tensor]) -> None:
    for part, values in zip(ids, rows):
        if part.shape[0] != values.shape[0]:
            raise ValueError(f"ids {tuple(part.shape)} and rows {tuple(values.shape)} differ in n")


def _summed_in_order(ids: Tensor, rows: Tensor) -> tuple[Tensor, Tensor]:
    ordered, order = torch.sort(ids, stable=True)
    starts = torch.zeros_like(ordered)
    starts[1:] = ordered[1:] != ordered[:-1]
    place = torch.cumsum(starts, 0)
    # index_put with accumulate sorts and adds in a fixed order; index_add would use atomics
    sums = torch.zeros_like(rows).index_put_((place,), rows[order], accumulate=True)
    return ordered, sums.index_select(0, place)


def adagrad_update(
    table: Tensor,
    squares: Tensor,
    ids: Sequence[Tensor],
    rows: Sequence[Tensor],
    lr: float,
    eps: float,
    scratch: Tensor | None = None,
    key: int = 0,
) -> None:
    """table, squares (E, D); parts of ids and rows, and scratch, as for `summed_rows`: their sums move the table, in
    place. With `scratch`, float32 on a CPU in one loop: no sum leaves the cache. key: of a step, for rows in bf16."""
    if scratch is None or any(part.dtype != torch.float32 for part in (table, *rows)):
        adagrad_rows(table, squares, *summed_rows(ids, rows, scratch), lr, eps, key)
        return
    _check(ids, rows)
    use_torch_threads()
    places = tuple(part.contiguous().numpy() for part in ids)
    values = tuple(part.contiguous().numpy() for part in rows)
    tables = (part.numpy() for part in (table, squares, scratch))
    _adagrad_loop(*tables, places, values, np.float32(lr), np.float32(eps))  # type: ignore[call-arg]


def adagrad_rows(
    table: Tensor, squares: Tensor, ids: Tensor, rows: Tensor, lr: float, eps: float, key: int = 0
) -> None:
    """ids (n,), rows (n, D) as `summed_rows` gives them; in place."""
    grown = squares.index_select(0, ids).addcmul_(rows, rows)
    squares.index_copy_(0, ids, grown)
    moved = to_float32(table.index_select(0, ids)).addcdiv_(rows, grown.sqrt_().add_(eps), value=-lr)
    _put(table, ids, moved, key)


def row_adagrad_rows(
    table: Tensor, squares: Tensor, ids: Tensor, rows: Tensor, lr: float, eps: float, key: int = 0
) -> None:
    """Row-wise Adagrad: one accumulator per row, of the mean square; squares (E, 1)."""
    grown = squares.index_select(0, ids).add_(rows.square().mean(1, keepdim=True))
    squares.index_copy_(0, ids, grown)
    moved = to_float32(table.index_select(0, ids)).addcdiv_(rows, grown.sqrt_().add_(eps), value=-lr)
    _put(table, ids, moved, key)


def adam_rows(
    table: Tensor,
    first: Tensor,
    second: Tensor,
    ids: Tensor,
    rows: Tensor,
    lr: float,
    betas: tuple[float, float],
    eps: float,
    step: int,
    key: int = 0,
) -> None:
    """Lazy Adam: only touched rows move and decay; `step` counts from 1."""
    m = first.index_select(0, ids).lerp_(rows, 1 - betas[0])
    v = second.index_select(0, ids).mul_(betas[1]).addcmul_(rows, rows, value=1 - betas[1])
    first.index_copy_(0, ids, m)
    second.index_copy_(0, ids, v)
    size = v.sqrt_().div_((1 - betas[1] ** step) ** 0.5).add_(eps)
    moved = to_float32(table.index_select(0, ids)).addcdiv_(m, size, value=-lr / (1 - betas[0] ** step))
    _put(table, ids, moved, key)


def sgd_rows(table: Tensor, ids: Tensor, rows: Tensor, lr: float, key: int = 0) -> None:
    _put(table, ids, to_float32(table.index_select(0, ids)).add_(rows, alpha=-lr), key)


def _put(table: Tensor, ids: Tensor, moved: Tensor, key: int) -> None:
    table.index_copy_(0, ids, round_stochastically(moved, ids, key) if is_bf16(table) else moved)


@numba.njit(cache=True, parallel=True, error_model="numpy", fastmath={"contract"})
def _adagrad_loop(table, squares, scratch, ids, rows, lr, eps):  # type: ignore[no-untyped-def]
    """Chains the occurrences of each row, then walks every chain: sum, state, row. ids and rows are tuples."""
    n = 0
    for part in ids:
        n += part.shape[0]
    first, last, follows = np.empty(n, np.int64), np.empty(n, np.int64), np.empty(n, np.int64)
    parts, places = np.empty(n, np.int64), np.empty(n, np.int64)
    count = i = 0
    for p in range(len(ids)):
        for j in range(ids[p].shape[0]):
            parts[i], places[i], follows[i] = p, j, -1
            at = scratch[ids[p][j]]
            if at < 0:
                scratch[ids[p][j]] = at = count
                first[at] = i
                count += 1
            else:
                follows[last[at]] = i
            last[at] = i
            i += 1
    for c in numba.prange(_CHUNKS):  # a chunk takes every so many-th row: frequent ones come early
        g = np.empty(table.shape[1], table.dtype)
        for d in range(c, count, _CHUNKS):
            o = first[d]
            row = ids[parts[o]][places[o]]
            scratch[row] = -1
            values = rows[parts[o]][places[o]]
            for k in range(g.shape[0]):
                g[k] = values[k]
            o = follows[o]
            while o >= 0:
                values = rows[parts[o]][places[o]]
                for k in range(g.shape[0]):
                    g[k] += values[k]
                o = follows[o]
            for k in range(g.shape[0]):
                s = squares[row, k] + g[k] * g[k]
                squares[row, k] = s
                table[row, k] -= lr * g[k] / (np.sqrt(s) + eps)


@numba.njit(cache=True)
def _sum_loop(ids, rows, scratch, distinct, sums, count):  # type: ignore[no-untyped-def]
    """Adds rows to the sums of their ids; scratch[id] is where its sum stands. How many are distinct so far."""
    for i in range(ids.shape[0]):
        at = scratch[ids[i]]
        if at < 0:
            scratch[ids[i]] = count
            distinct[count] = ids[i]
            for k in range(rows.shape[1]):
                sums[count, k] = rows[i, k]
            count += 1
        else:
            for k in range(rows.shape[1]):
                sums[at, k] += rows[i, k]
    return count


@numba.njit(cache=True)
def _clear_loop(scratch, distinct, count):  # type: ignore[no-untyped-def]
    for i in range(count):
        scratch[distinct[i]] = -1
