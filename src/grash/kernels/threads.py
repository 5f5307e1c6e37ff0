"""Numba's loops use as many threads as torch does."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from contextlib import contextmanager

import numba
import torch
from numba import config as numba_config


def use_torch_threads() -> None:
    """Call before a parallel loop. Starting numba's threads sets the count of the OpenMP runtime that torch uses
    too, so torch's own count is put back."""
    threads = torch.get_num_threads()
    _start_numba()
    if torch.get_num_threads() != threads:
        torch.set_num_threads(threads)
    numba.set_num_threads(min(threads, getattr(numba_config, "NUMBA_NUM_THREADS", 1)))


@contextmanager
def threads_put_back() -> Iterator[None]:
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
