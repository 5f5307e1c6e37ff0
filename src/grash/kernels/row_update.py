"""Updates of the rows that a step touched, and only of those.

A row that occurs several times in a step is summed first, in the order of its occurrences, and squared after: the
same result as a dense gradient, whatever the number of threads.
Bytes for n touched rows of D floats under Adagrad: 20·n·D (gradient, row and state read, row and state written).
"""

from __future__ import annotations

import torch
from torch import Tensor


def summed_rows(ids: Tensor, rows: Tensor) -> tuple[Tensor, Tensor]:
    """ids (n,), rows (n, D) → (ids, sums) with every row's occurrences added up.

    On a CPU the ids come back distinct. On other devices they come back ordered and repeated, each occurrence with
    the whole sum, so that no size depends on the data and the host need not wait; writing a repeated row twice
    writes the same values.
    """
    if ids.shape[0] != rows.shape[0]:
        raise ValueError(f"ids {tuple(ids.shape)} and rows {tuple(rows.shape)} differ in n")
    if ids.device.type == "cpu":
        distinct, place = torch.unique(ids, return_inverse=True)
        sums = torch.zeros((len(distinct), rows.shape[1]), dtype=rows.dtype)
        return distinct, sums.index_add_(0, place, rows)
    ordered, order = torch.sort(ids, stable=True)
    starts = torch.zeros_like(ordered)
    starts[1:] = ordered[1:] != ordered[:-1]
    place = torch.cumsum(starts, 0)
    # index_put with accumulate sorts and adds in a fixed order; index_add would use atomics
    sums = torch.zeros_like(rows).index_put_((place,), rows[order], accumulate=True)
    return ordered, sums.index_select(0, place)


def adagrad_rows(table: Tensor, squares: Tensor, ids: Tensor, rows: Tensor, lr: float, eps: float) -> None:
    """table, squares (E, D); ids (n,), rows (n, D) as `summed_rows` gives them; in place."""
    grown = squares.index_select(0, ids).addcmul_(rows, rows)
    squares.index_copy_(0, ids, grown)
    moved = table.index_select(0, ids).addcdiv_(rows, grown.sqrt_().add_(eps), value=-lr)
    table.index_copy_(0, ids, moved)


def row_adagrad_rows(table: Tensor, squares: Tensor, ids: Tensor, rows: Tensor, lr: float, eps: float) -> None:
    """Row-wise Adagrad: one accumulator per row, of the mean square; squares (E, 1)."""
    grown = squares.index_select(0, ids).add_(rows.square().mean(1, keepdim=True))
    squares.index_copy_(0, ids, grown)
    moved = table.index_select(0, ids).addcdiv_(rows, grown.sqrt_().add_(eps), value=-lr)
    table.index_copy_(0, ids, moved)


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
) -> None:
    """Lazy Adam: only touched rows move and decay; `step` counts from 1."""
    m = first.index_select(0, ids).lerp_(rows, 1 - betas[0])
    v = second.index_select(0, ids).mul_(betas[1]).addcmul_(rows, rows, value=1 - betas[1])
    first.index_copy_(0, ids, m)
    second.index_copy_(0, ids, v)
    size = v.sqrt_().div_((1 - betas[1] ** step) ** 0.5).add_(eps)
    moved = table.index_select(0, ids).addcdiv_(m, size, value=-lr / (1 - betas[0] ** step))
    table.index_copy_(0, ids, moved)


def sgd_rows(table: Tensor, ids: Tensor, rows: Tensor, lr: float) -> None:
    table.index_copy_(0, ids, table.index_select(0, ids).add_(rows, alpha=-lr))
