"""Triton form of `row_update`: sum the gradients of each row and update it, in one kernel after a sort of the ids.

Every run of equal ids is summed in the order of its occurrences by the program of its first one, so that no float is
added atomically. Rates may be numbers, or two float32 in device memory, which a captured CUDA graph reads.
Bytes for n rows of D floats with Adam: 28·n·D (gradient, row and moments read, row and moments written).
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import triton
import triton.language as tl
from torch import Tensor

_BLOCK = 1024  # elements of a table per program
_SUMMED = 4096  # elements of a run that are added at once
_KINDS = {"add": 0, "sgd": 1, "adagrad": 2, "row_adagrad": 3, "adam": 4, "lazy_adam": 4}


def add_rows(total: Tensor, ids: Sequence[Tensor], rows: Sequence[Tensor]) -> None:
    """Add rows (n, D) to the rows of total (E, D) at ids (n,), part after part, in place."""
    _launch_rows(total, [total, total], ids, rows, (0.0, 1.0), 0.0, (0.0, 0.0), "add")


def update_rows(
    table: Tensor, state: Sequence[Tensor], ids: Sequence[Tensor], rows: Sequence[Tensor],
    rates: tuple[float, float] | Tensor, kind: str, *, eps: float, betas: tuple[float, float],
) -> None:  # fmt: skip
    """Update the rows of a float32 table at ids (n,), given parts of gradients (n, D); arguments as in `update_all`."""
    _launch_rows(table, _two(table, state), ids, rows, rates, eps, betas, kind)


def update_all(
    table: Tensor, state: Sequence[Tensor], gradient: Tensor, rates: tuple[float, float] | Tensor, kind: str,
    *, eps: float, betas: tuple[float, float],
) -> None:  # fmt: skip
    """Update a float32 table (E, D) in place, given its gradient (E, D).

    state: squares, or the two moments. rates: the learning rate, with Adam divided by 1 − β₁ᵗ, and √(1 − β₂ᵗ)."""
    if not table.numel():
        return
    if kind == "row_adagrad":
        ids = torch.arange(len(table), device=table.device)
        _launch_sorted(table, _two(table, state), ids, ids, gradient, rates, eps, betas, kind)
        return
    rate, root, stored = _parts(rates, table)
    _all[(triton.cdiv(table.numel(), _BLOCK),)](
        table, *_two(table, state), gradient.contiguous(), table.numel(), rate, root, stored, eps, *_weights(betas),
        STORED=stored is not table, KIND=_KINDS[kind], BLOCK=_BLOCK,
    )  # fmt: skip


def _two(table: Tensor, state: Sequence[Tensor]) -> list[Tensor]:
    """Return the state as two tensors; the table takes the place of what an optimizer does not have."""
    return [*state, table, table][:2]


def _launch_rows(
    table: Tensor, state: list[Tensor], ids: Sequence[Tensor], rows: Sequence[Tensor],
    rates: tuple[float, float] | Tensor, eps: float, betas: tuple[float, float], kind: str,
) -> None:  # fmt: skip
    joined = torch.cat(list(ids))
    # a radix sort of half the bits takes half the time: 2,048 numbers of 64 bits take 27 µs on an H200
    narrow = torch.int16 if len(table) < 1 << 15 else torch.int32 if len(table) < 1 << 31 else torch.int64
    ordered, order = torch.sort(joined.to(narrow), stable=True)
    _launch_sorted(table, state, ordered, order, torch.cat(list(rows)), rates, eps, betas, kind)


def _launch_sorted(
    table: Tensor, state: list[Tensor], ids: Tensor, order: Tensor, rows: Tensor,
    rates: tuple[float, float] | Tensor, eps: float, betas: tuple[float, float], kind: str,
) -> None:  # fmt: skip
    if not rows.numel():
        return
    width = table.shape[1]
    block = triton.next_power_of_2(width)
    if kind != "row_adagrad":  # which needs the mean of a whole row
        block = min(block, _BLOCK)
    rate, root, stored = _parts(rates, table)
    _rows[(len(ids), triton.cdiv(width, block))](
        table, *state, ids, order, rows, len(ids), width, rate, root, stored, eps, *_weights(betas),
        STORED=stored is not table, KIND=_KINDS[kind], **tile(block),
    )  # fmt: skip


def tile(block: int) -> dict[str, int]:
    """Return the constants of a program for `block` columns of a row: wide ones need more registers."""
    return {"BLOCK": block, "AT_ONCE": max(1, _SUMMED // block), "num_warps": 4 if block <= _BLOCK else 16}


def _weights(betas: tuple[float, float]) -> tuple[float, float, float]:
    """Return 1 − β₁, β₂ and 1 − β₂, which float32 would not compute exactly."""
    return 1 - betas[0], betas[1], 1 - betas[1]


def _parts(rates: tuple[float, float] | Tensor, other: Tensor) -> tuple[float, float, Tensor]:
    """Return rates as two scalars and, if they are in memory, as a tensor; otherwise `other`."""
    return (0.0, 1.0, rates) if isinstance(rates, Tensor) else (*rates, other)


@triton.jit(do_not_specialize=["n", "width"])
def _rows(  # type: ignore[no-untyped-def]
    table, first, second, ids, order, rows, n, width, rate, root, rates, eps, rest1, beta2, rest2,
    STORED: tl.constexpr, KIND: tl.constexpr, BLOCK: tl.constexpr, AT_ONCE: tl.constexpr,
):  # fmt: skip
    i = tl.program_id(0).to(tl.int64)
    row = tl.load(ids + i).to(tl.int64)
    if row != tl.load(ids + i - 1, mask=i > 0, other=-1).to(tl.int64):
        if STORED:
            rate, root = tl.load(rates), tl.load(rates + 1)
        columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
        live = columns < width
        total = tl.zeros((BLOCK,), tl.float32)
        begin, more = i, row >= 0
        while more:
            at = begin + tl.arange(0, AT_ONCE)
            mine = tl.load(ids + at, mask=at < n, other=-1).to(tl.int64) == row
            source = tl.load(order + at, mask=mine, other=0)
            places = source[:, None] * width + columns[None, :]
            total += tl.sum(tl.load(rows + places, mask=mine[:, None] & live[None, :], other=0.0), 0)
            begin += AT_ONCE
            more = tl.min(mine.to(tl.int32), 0) > 0
        at = row * width + columns
        _update(table, first, second, at, live, row, total, width, rate, root, eps, rest1, beta2, rest2, KIND)


@triton.jit(do_not_specialize=["n"])
def _all(  # type: ignore[no-untyped-def]
    table, first, second, gradient, n, rate, root, rates, eps, rest1, beta2, rest2,
    STORED: tl.constexpr, KIND: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    if STORED:
        rate, root = tl.load(rates), tl.load(rates + 1)
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    live = at < n
    g = tl.load(gradient + at, mask=live, other=0.0)
    _update(table, first, second, at, live, 0, g, 1, rate, root, eps, rest1, beta2, rest2, KIND)


@triton.jit
def _update(  # type: ignore[no-untyped-def]
    table, first, second, at, live, row, g, width, rate, root, eps, rest1, beta2, rest2, KIND: tl.constexpr
):
    """Update the elements `at`, given their gradient g; the kinds are those of `_KINDS`."""
    x = tl.load(table + at, mask=live, other=0.0)
    if KIND == 0:
        x += g
    elif KIND == 1:
        x -= rate * g
    elif KIND == 2:
        grown = tl.load(first + at, mask=live, other=0.0) + g * g
        tl.store(first + at, grown, mask=live)
        x -= rate * tl.div_rn(g, tl.sqrt_rn(grown) + eps)
    elif KIND == 3:
        mean = tl.sum(tl.where(live, g * g, 0.0), 0) / width
        grown_row = tl.load(first + row) + mean
        tl.store(first + row, grown_row)
        x -= rate * tl.div_rn(g, tl.zeros_like(g) + (tl.sqrt_rn(grown_row) + eps))
    else:
        m = tl.load(first + at, mask=live, other=0.0)
        m += rest1 * (g - m)
        v = tl.load(second + at, mask=live, other=0.0) * beta2 + rest2 * g * g
        tl.store(first + at, m, mask=live)
        tl.store(second + at, v, mask=live)
        x -= rate * tl.div_rn(m, tl.div_rn(tl.sqrt_rn(v), tl.zeros_like(v) + root) + eps)
    tl.store(table + at, x, mask=live)
