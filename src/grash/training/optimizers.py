"""Optimizers and learning rates. One `TableOptimizer` per table; its state is a dictionary of tensors.

    adagrad      squares (E, D); torch's Adagrad          row_adagrad  squares (E, 1), the mean over the row
    adam         moments (E, D); every row, every step    lazy_adam    the same, but only the rows of the step
    sgd          no state

A bf16 table (`storage`) is updated in float32 and rounded stochastically; the random bits depend on `key`, the step,
the row and the column. Its optimizer state is float32.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from grash.kernels import row_update
from grash.kernels.random import key_at, key_of
from grash.kernels.storage import Placement, is_bf16, round_stochastically, to_float32
from grash.training.config import TrainConfig
from grash.training.gradients import Gradient

ADAGRAD_EPS, ADAM_EPS, BETAS = 1e-10, 1e-8, (0.9, 0.999)
_ROWS_AT_ONCE = 1 << 16  # of a bf16 table that a dense gradient updates at a time
_GAIN = 1e-4  # relative gain that ends a plateau


class TableOptimizer:
    """Updates one table. placement: of its state, by default the table's. key: of the bits that round a bf16 table."""

    def __init__(self, kind: str, table: Tensor, placement: Placement | None = None, *, key: int = 0) -> None:
        self.kind, self.key = kind, key
        self.state: dict[str, Tensor] = {}
        self._scratch: Tensor | None = None

        def zeros(width: int) -> Tensor:
            if placement is None:
                return to_float32(table[:0]).new_zeros(len(table), width)
            return placement.rows(len(table), width, table.device)

        if kind in ("adagrad", "row_adagrad"):
            self.state["squares"] = zeros(table.shape[1] if kind == "adagrad" else 1)
        elif kind in ("adam", "lazy_adam"):
            self.state = {"first": zeros(table.shape[1]), "second": zeros(table.shape[1])}

    def update(self, table: Tensor, gradient: Gradient, lr: float, step: int) -> None:
        """Update the table in place; `step` counts from 1."""
        self.apply(table, gradient, self.rates(lr, step), key_at(self.key, step - 1) if is_bf16(table) else 0)

    def rates(self, lr: float, step: int) -> tuple[float, float]:
        """Return the learning rate, which Adam divides by 1 − β₁ᵗ, and √(1 − β₂ᵗ), which only Adam uses."""
        if self.kind not in ("adam", "lazy_adam"):
            return lr, 1.0
        return lr / (1 - BETAS[0] ** step), (1 - BETAS[1] ** step) ** 0.5

    def apply(self, table: Tensor, gradient: Gradient, rates: tuple[float, float] | Tensor, key: int) -> None:
        """Update the table in place. rates: see `rates`; a tensor (2,) is read on the device. key: of a bf16 table."""
        if gradient.dense is None and not gradient.ids:
            return
        if row_update.runs_on_triton(table):
            self._apply_on_triton(table, gradient, rates)
            return
        if isinstance(rates, Tensor):
            rates = float(rates[0]), float(rates[1])
        if gradient.dense is not None or self.kind == "adam":
            self._update_dense(table, dense_gradient(gradient, table), rates, key)
            return
        lr = rates[0]
        if self.kind == "adagrad":
            parts, squares = (gradient.ids, gradient.rows), self.state["squares"]
            row_update.adagrad_update(table, squares, *parts, lr, ADAGRAD_EPS, self._scratch_of(table), key)
            return
        ids, rows = row_update.summed_rows(gradient.ids, gradient.rows, self._scratch_of(table))
        if self.kind == "row_adagrad":
            row_update.row_adagrad_rows(table, self.state["squares"], ids, rows, lr, ADAGRAD_EPS, key)
        elif self.kind == "lazy_adam":
            first, second = self.state["first"], self.state["second"]
            row_update.adam_rows(table, first, second, ids, rows, rates, BETAS, ADAM_EPS, key)
        else:
            row_update.sgd_rows(table, ids, rows, lr, key)

    def _apply_on_triton(self, table: Tensor, gradient: Gradient, rates: tuple[float, float] | Tensor) -> None:
        from grash.kernels import row_update_triton

        eps = ADAM_EPS if self.kind in ("adam", "lazy_adam") else ADAGRAD_EPS
        state = [*self.state.values()]
        if gradient.dense is None and self.kind != "adam":
            row_update_triton.update_rows(
                table, state, gradient.ids, gradient.rows, rates, self.kind, eps=eps, betas=BETAS
            )
        else:
            whole = dense_gradient(gradient, table)
            row_update_triton.update_all(table, state, whole, rates, self.kind, eps=eps, betas=BETAS)

    def release(self) -> None:
        """Free the state; the optimizer cannot be used afterwards."""
        self.state, self._scratch = {}, None

    def _scratch_of(self, table: Tensor) -> Tensor | None:
        """Return the work space of summed_rows on a CPU: 4 bytes per row, allocated at the first step."""
        if table.device.type == "cpu" and self._scratch is None:
            self._scratch = torch.full((len(table),), -1, dtype=torch.int32)
        return self._scratch

    def _update_dense(self, table: Tensor, g: Tensor, rates: tuple[float, float], key: int) -> None:
        if not is_bf16(table):
            self._update_all(table, g, self.state, rates)
            return
        for first in range(0, len(table), _ROWS_AT_ONCE):
            part = slice(first, first + _ROWS_AT_ONCE)
            moved = to_float32(table[part])
            self._update_all(moved, g[part], {name: t[part] for name, t in self.state.items()}, rates)
            ids = torch.arange(first, first + len(moved), device=table.device)
            table[part].copy_(round_stochastically(moved, ids, key))

    def _update_all(self, table: Tensor, g: Tensor, state: dict[str, Tensor], rates: tuple[float, float]) -> None:
        """Update all rows of a float32 table, given a gradient of the same shape."""
        lr, root = rates
        if self.kind == "sgd":
            table.add_(g, alpha=-lr)
        elif self.kind in ("adagrad", "row_adagrad"):
            squares = state["squares"]
            squares.add_(g.square() if self.kind == "adagrad" else g.square().mean(1, keepdim=True))
            table.addcdiv_(g, squares.sqrt().add_(ADAGRAD_EPS), value=-lr)
        else:
            first, second = state["first"], state["second"]
            first.lerp_(g, 1 - BETAS[0])
            second.mul_(BETAS[1]).addcmul_(g, g, value=1 - BETAS[1])
            size = second.sqrt().div_(root).add_(ADAM_EPS)
            table.addcdiv_(first, size, value=-lr)


def as_table(weight: Tensor) -> Tensor:
    """Return a weight of any shape as a view (rows, width), as optimizers need it."""
    return weight.view(len(weight), -1)


def rounding_key(config: TrainConfig) -> int:
    """Return the key of the random bits that round bf16 entities. A stack shares it: it depends on the seed alone."""
    return key_of(config.seed, "rounding")


def dense_gradient(gradient: Gradient, table: Tensor) -> Tensor:
    """Return the gradient as one tensor of the table's shape."""
    total = torch.zeros_like(table) if gradient.dense is None else gradient.dense
    if gradient.ids:
        if table.device.type == "cpu":
            for ids, rows in zip(gradient.ids, gradient.rows):
                total.index_add_(0, ids, rows)
        elif row_update.runs_on_triton(total):
            from grash.kernels import row_update_triton

            row_update_triton.add_rows(total, gradient.ids, gradient.rows)
        else:
            total.index_put_((torch.cat(gradient.ids),), torch.cat(gradient.rows), accumulate=True)
    return total


def state_bytes(config: TrainConfig, table_rows: int, width: int) -> int:
    """Return the bytes of optimizer state and work space for a table (table_rows, width)."""
    per_row = {"adagrad": width, "row_adagrad": 1, "adam": 2 * width, "lazy_adam": 2 * width, "sgd": 0}
    return 4 * table_rows * (per_row[config.optimizer] + 1)


@dataclass
class Plateau:
    """Multiplies the learning rate by `factor` after more than `patience` validations without a gain."""

    factor: float
    patience: int
    scale: float = 1.0
    best: float = -math.inf
    waited: int = 0

    def see(self, metric: float) -> None:
        if metric > self.best * (1 + _GAIN) or self.best == -math.inf:
            self.best, self.waited = metric, 0
            return
        self.waited += 1
        if self.waited > self.patience:
            self.scale, self.waited = self.scale * self.factor, 0


def rate_at(config: TrainConfig, epoch: float, plateau: Plateau) -> float:
    """Return the learning rate after `epoch` epochs: the schedule's factor times the warm-up's."""
    rate = config.lr
    if config.warmup_epochs:
        rate *= min(1.0, epoch / config.warmup_epochs) or 1e-3 / max(1.0, config.warmup_epochs)
    done = min(1.0, epoch / config.epochs)
    if config.schedule == "cosine":
        rate *= 0.5 * (1 + math.cos(math.pi * done))
    elif config.schedule == "linear":
        rate *= 1 - done
    elif config.schedule == "plateau":
        rate *= plateau.scale
    return rate
