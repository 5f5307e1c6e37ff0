"""The card that launches go to."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal

import numba
import torch
from numba import config as numba_config


def set_current_device(device: torch.device) -> None:
    """Call before work on a device. Triton's launches, graphs, streams and events take the current card, whatever card
    the tensors lie on."""
    if device.index is not None and device.type == "cuda":
        torch.cuda.set_device(device)


# = How a CUDA device multiplies float32 matrices while training; ranking never uses anything but float32.


@contextmanager
def matmul_precision(precision: Literal["float32", "tf32", "bf16"]) -> Iterator[None]:
    """tf32 rounds the factors to 10 bits of mantissa and sums in float32; bf16 (7 bits) is only the fused step's."""
    before = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = precision != "float32"
    try:
        yield
    finally:
        torch.backends.cuda.matmul.allow_tf32 = before


# = Numba's loops use as many threads as torch does.


def use_torch_threads() -> None:
    """Call before a parallel loop. Starting numba's threads sets the count of the OpenMP runtime that torch uses
    too, so torch's own count is put back."""
    threads = torch.get_num_threads()
    _start_numba()
    if torch.get_num_threads() != threads:
        torch.set_num_threads(threads)
    numba.set_num_threads(min(threads, getattr(numba_config, "NUMBA_NUM_THREADS", 1)))


@contextmanager
def restore_threads() -> Iterator[None]:
    """What is set inside ends with it: torch's number of threads, and numba's, which follows it once it has any."""
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
