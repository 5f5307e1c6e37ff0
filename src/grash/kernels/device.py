"""Devices: the GPU behind one, whether Triton's kernels run on it, the precision of products, the number of threads."""

from __future__ import annotations

import functools
import importlib.util
import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Literal

import numba
import torch
from numba import config as numba_config
from numba.core import event as numba_event

from grash.errors import ConfigError


@dataclass(frozen=True)
class Card:
    """What kernels need to know about a GPU. The default is the one on which they were tuned."""

    name: str = "NVIDIA H200"
    capability: tuple[int, int] = (9, 0)
    shared_bytes: int = 232_448  # shared memory that a program may use
    multiprocessors: int = 132


@functools.cache
def card_of(device: torch.device) -> Card:
    """Return the GPU of a CUDA device; for any other device, which can only simulate kernels, the default."""
    if device.type != "cuda":
        return Card()
    found = torch.cuda.get_device_properties(device)
    shared = getattr(found, "shared_memory_per_block_optin", found.shared_memory_per_block)  # ROCm has only the latter
    return Card(found.name, (found.major, found.minor), shared, found.multi_processor_count)


def why_no_triton(device: torch.device) -> list[str]:
    """Return the reasons why Triton's kernels cannot run on this device."""
    reasons = []
    if device.type != "cuda":
        reasons.append(f"the device is {device.type}, not cuda")
    elif torch.version.hip is not None:
        reasons.append("the GPU uses ROCm, for which the kernels were not tested")
    if not _has_triton():
        reasons.append("Triton is not installed")
    return reasons


@functools.cache
def _has_triton() -> bool:
    return importlib.util.find_spec("triton") is not None


def use_triton(reasons: Sequence[str], device: torch.device, *, what: str) -> bool:
    """Return whether Triton's kernels run: if there is no reason against it, unless GRASH_KERNELS=reference.

    GRASH_KERNELS=triton raises ConfigError on a GPU on which `what` cannot run.
    """
    choice = os.environ.get("GRASH_KERNELS", "")
    if choice not in ("", "reference", "triton"):
        raise ConfigError(f"GRASH_KERNELS={choice!r} is unknown: give reference or triton, or leave it unset.")
    if choice == "triton" and reasons and device.type == "cuda":
        raise ConfigError(f"GRASH_KERNELS=triton, but {what} cannot run: {'; '.join(reasons)}.")
    return choice != "reference" and not reasons


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


def n_cores() -> int:
    """Return the number of CPU cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


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


def compile_seconds() -> float:
    """Return how long this process has waited for compilers since the first call of this function.

    These are numba, Triton where a launch waits for its kernel, and what `count_compiling` adds. Compiled code is
    stored on disk, so this grows only in the first runs after an installation.
    """
    return _compile_timer().seconds


def count_compiling(seconds: float) -> None:
    """Add seconds of compiling that this process has waited for, e.g. of a worker."""
    _compile_timer().seconds += seconds


def call_when_compiling(tell: Callable[[], None]) -> None:
    """Call this function once, as soon as numba has compiled for more than a second."""
    _compile_timer().tell = tell


@functools.cache
def _compile_timer() -> _CompileTimer:
    timer = _CompileTimer()
    numba_event.register("numba:compile", timer)
    return timer


class _CompileTimer(numba_event.Listener):
    """Adds up the times in which numba compiles. They are nested where a loop calls another."""

    def __init__(self) -> None:
        self.seconds, self.depth, self.began = 0.0, 0, 0.0
        self.tell: Callable[[], None] | None = None

    def on_start(self, event: numba_event.Event) -> None:
        if self.depth == 0:
            self.began = time.monotonic()
        self.depth += 1

    def on_end(self, event: numba_event.Event) -> None:
        self.depth -= 1
        if self.depth == 0:
            self.seconds += time.monotonic() - self.began
            if self.tell is not None and self.seconds > 1:
                tell, self.tell = self.tell, None
                tell()


@functools.cache
def _start_numba() -> None:
    _nothing()


@numba.njit(parallel=True, cache=True)
def _nothing() -> int:
    total = 0
    for i in numba.prange(2):
        total += i
    return total
