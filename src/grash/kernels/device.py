"""Settings of a device: the current GPU, the precision of matrix products, and the number of threads."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal

import numba
import torch
from numba import config as numba_config


def set_current_device(device: torch.device) -> None:
    """Make `device` the current GPU, which Triton launches, graphs, streams and events use for tensors of any GPU."""
    if device.index is not None and device.type == "cuda":
        torch.cuda.set_device(device)


@contextmanager
def matmul_precision(precision: Literal["float32", "tf32", "bf16"]) -> Iterator[None]:
    """Set how a CUDA device multiplies float32 matrices in training; ranking always uses float32.

    tf32 rounds the factors to 10 bits of mantissa and sums in float32. Only the fused step uses bf16 (7 bits).
    """
    before = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = precision != "float32"
    try:
        yield
    finally:
        torch.backends.cuda.matmul.allow_tf32 = before


def use_torch_threads() -> None:
    """Let numba's parallel loops use as many threads as torch; call it before such a loop.

    Starting numba's threads changes the number of threads of torch's OpenMP runtime, so this restores it.
    """
    threads = torch.get_num_threads()
    _start_numba()
    if torch.get_num_threads() != threads:
        torch.set_num_threads(threads)
    numba.set_num_threads(min(threads, getattr(numba_config, "NUMBA_NUM_THREADS", 1)))


@contextmanager
def restore_threads() -> Iterator[None]:
    """Restore the number of threads of torch, and of numba if it has started, at the end."""
    threads = torch.get_num_threads()
    try:
        yield
    finally:
        torch.set_num_threads(threads)
        if _start_numba.cache_info().currsize:
            use_torch_threads()


@functools.cache
def _start_numba() -> None:
    _nothing()


@numba.njit(parallel=True, cache=True)
def _nothing() -> int:
    total = 0
    for i in numba.prange(2):
        total += i
    return total
