"""Optimizer updates of the rows that occur in a step.

The gradients of a row that occurs several times are summed first, in the order of their occurrences, and squared after.
This gives the same result as a dense gradient, for any number of threads.
Bytes for n rows of D floats with Adagrad: 20·n·D (gradient, row and state read, row and state written).
A bf16 table is updated in float32, and its rows are rounded with the key of the step (`storage`).
"""

from __future__ import annotations

from collections.abc import Sequence

import numba
import numpy as np
import torch
from torch import Tensor

from grash.kernels.device import use_torch_threads, use_triton, why_no_triton
from grash.kernels.storage import is_bf16, round_stochastically, to_float32

_CHUNKS = 16


def runs_on_triton(table: Tensor) -> bool:
    """Return whether `row_update_triton` updates this table."""
    if table.device.type == "cpu" or table.dtype != torch.float32 or not table.is_contiguous():
        return False
    return use_triton(why_no_triton(table.device), table.device, what="the kernels of row updates")


def summed_rows(ids: Sequence[Tensor], rows: Sequence[Tensor], scratch: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Sum the rows of equal ids, part after part: ids (n,) and rows (n, D) per part → (ids, sums).

    On a CPU the returned ids are distinct; `scratch`, (E,) int32 of −1 (and −1 again afterwards), saves sorting them.
    On other devices they are sorted and repeated, each with the whole sum: no size then depends on the data, so the
    host does not wait. Writing a repeated row twice writes the same values.
    """
    _match_lengths(ids, rows)
    if rows[0].device.type != "cpu":
        return _summed_in_order(torch.cat(list(ids)), torch.cat(list(rows)))
    if scratch is None or rows[0].dtype != torch.float32:
        return summed_rows_reference(ids, rows)
    n = sum(len(part) for part in ids)
    distinct, sums = torch.empty(n, dtype=torch.int64), torch.empty((n, rows[0].shape[1]))
    count = 0
    for part, values in zip(ids, rows):
        arrays = [x.numpy() for x in (part.contiguous(), values.contiguous(), scratch, distinct, sums)]
        count = _sum_loop(*arrays, count)  # type: ignore[call-arg]
    _clear_loop(scratch.numpy(), distinct.numpy(), count)
    return distinct[:count], sums[:count]


def summed_rows_reference(ids: Sequence[Tensor], rows: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
    """Reference of `summed_rows` on a CPU."""
    distinct, place = torch.unique(torch.cat(list(ids)), return_inverse=True)
    sums = rows[0].new_zeros(len(distinct), rows[0].shape[1])
    for part, values in zip(place.split([len(part) for part in ids]), rows):
        sums.index_add_(0, part, values)
    return distinct, sums


def _match_lengths(ids: Sequence[Tensor], rows: Sequence[Tensor]) -> None:
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
    """Update table and squares (E, D) in place; ids, rows and scratch as in `summed_rows`.

    With `scratch`, float32 on a CPU is one loop: no sum leaves the cache. key: of the step, for bf16 tables.
    """
    if scratch is None or any(part.dtype != torch.float32 for part in (table, *rows)):
        adagrad_rows(table, squares, *summed_rows(ids, rows, scratch), lr, eps, key)
        return
    _match_lengths(ids, rows)
    use_torch_threads()
    places = tuple(part.contiguous().numpy() for part in ids)
    values = tuple(part.contiguous().numpy() for part in rows)
    tables = (part.numpy() for part in (table, squares, scratch))
    _adagrad_loop(*tables, places, values, np.float32(lr), np.float32(eps))  # type: ignore[call-arg]


def adagrad_rows(
    table: Tensor, squares: Tensor, ids: Tensor, rows: Tensor, lr: float, eps: float, key: int = 0
) -> None:
    """Apply Adagrad in place; ids (n,), rows (n, D) from `summed_rows`."""
    grown = squares.index_select(0, ids).addcmul_(rows, rows)
    squares.index_copy_(0, ids, grown)
    moved = to_float32(table.index_select(0, ids)).addcdiv_(rows, grown.sqrt_().add_(eps), value=-lr)
    _put(table, ids, moved, key)


def row_adagrad_rows(
    table: Tensor, squares: Tensor, ids: Tensor, rows: Tensor, lr: float, eps: float, key: int = 0
) -> None:
    """Apply row-wise Adagrad, with the mean square of a row as its only state: squares (E, 1)."""
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
    rates: tuple[float, float],
    betas: tuple[float, float],
    eps: float,
    key: int = 0,
) -> None:
    """Apply lazy Adam: only rows of the step are updated and decay.

    rates: after t steps, the learning rate divided by 1 − β₁ᵗ, and √(1 − β₂ᵗ)."""
    m = first.index_select(0, ids).lerp_(rows, 1 - betas[0])
    v = second.index_select(0, ids).mul_(betas[1]).addcmul_(rows, rows, value=1 - betas[1])
    first.index_copy_(0, ids, m)
    second.index_copy_(0, ids, v)
    size = v.sqrt_().div_(rates[1]).add_(eps)
    moved = to_float32(table.index_select(0, ids)).addcdiv_(m, size, value=-rates[0])
    _put(table, ids, moved, key)


def sgd_rows(table: Tensor, ids: Tensor, rows: Tensor, lr: float, key: int = 0) -> None:
    _put(table, ids, to_float32(table.index_select(0, ids)).add_(rows, alpha=-lr), key)


def _put(table: Tensor, ids: Tensor, moved: Tensor, key: int) -> None:
    table.index_copy_(0, ids, round_stochastically(moved, ids, key) if is_bf16(table) else moved)


@numba.njit(cache=True, parallel=True, error_model="numpy", fastmath={"contract"})
def _adagrad_loop(table, squares, scratch, ids, rows, lr, eps):  # type: ignore[no-untyped-def]
    """Link the occurrences of each row, then sum each list and update state and row. ids and rows are tuples."""
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
    for c in numba.prange(_CHUNKS):  # every _CHUNKS-th row, since frequent rows come early
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
    """Add rows to the sums of their ids, sums[scratch[id]]; return the number of distinct ids so far."""
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
