"""Tables outside the memory of the device: in host memory that a GPU reads over the bus, or in a file.

Host memory is an ordinary mapping, registered with the GPU and given to torch as a CUDA tensor: kernels load and store
its rows at the same address. (The pinned memory of torch is rounded up to powers of two: 64 GiB for 44 GB.) It is
unregistered when its last tensor is gone. A file is mapped and has no name, so nothing is left behind if the process
dies. `training/placement` creates such tables.
"""

from __future__ import annotations

import mmap
import os
import tempfile
import weakref
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from grash.errors import MemoryPlanError, OutputError

_PORTABLE, _MAPPED = 1, 2  # flags of cudaHostRegister
# types in the CUDA array interface, which has none for bf16: its bits are passed as integers
_TYPES = {torch.float32: "<f4", torch.bfloat16: "<i2"}


class _Mapped(mmap.mmap):
    def address(self) -> int:
        return torch.frombuffer(self, dtype=torch.uint8).data_ptr()


class _Registered:
    """A mapping registered with the GPU; the tensors over it keep this object alive."""

    def __init__(self, memory: _Mapped, shape: tuple[int, int], typestr: str = "<f4") -> None:
        self.memory = memory
        address = memory.address()
        self.__cuda_array_interface__ = {
            "shape": shape, "typestr": typestr, "data": (address, False), "strides": None, "version": 3,
        }  # fmt: skip
        _register(address, len(memory))
        weakref.finalize(self, _unregister, address, memory).atexit = False  # mappings end with the process


# by address: mapped files (_Mapped), and host memory registered with a GPU (_Registered)
_OFFLOADED: weakref.WeakValueDictionary[int, Any] = weakref.WeakValueDictionary()


def host_rows(n: int, width: int, device: torch.device, *, dtype: torch.dtype = torch.float32) -> Tensor:
    """Return (n, width) zeros in host memory, as a tensor of `device`; for a CPU, an ordinary tensor."""
    size = n * width * dtype.itemsize
    if device.type != "cuda" or not size:
        return torch.zeros(n, width, dtype=dtype, device=device)
    memory = _Mapped(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    with suppress(AttributeError, OSError):  # large pages: fewer addresses to translate, faster to register
        memory.madvise(mmap.MADV_HUGEPAGE)
    # touch the pages with all threads; registering would do it with one
    torch.frombuffer(memory, dtype=torch.uint8)[:: mmap.PAGESIZE].zero_()
    registered = _Registered(memory, (n, width), _TYPES[dtype])
    _OFFLOADED[memory.address()] = registered
    return torch.as_tensor(registered, device=device).view(dtype)


def file_rows(n: int, width: int, folder: Path, *, dtype: torch.dtype = torch.float32) -> Tensor:
    """Return (n, width) zeros in a file without a name in `folder`, which is created if needed."""
    size = n * width * dtype.itemsize
    if not size:
        return torch.zeros(n, width, dtype=dtype)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder) as file:
            os.posix_fallocate(file.fileno(), 0, size)  # a full disk is an error here; later it would kill the process
            memory = _Mapped(file.fileno(), size)
    except OSError as error:
        raise OutputError(folder, error.strerror or str(error), then="Tables on disk need the space.") from error
    with suppress(AttributeError, OSError):  # a step reads single rows, so reading their neighbors is wasted
        memory.madvise(mmap.MADV_RANDOM)
    _OFFLOADED[memory.address()] = memory
    return torch.frombuffer(memory, dtype=dtype).view(n, width)


def is_offloaded(table: Tensor) -> bool:
    """Whether a table, or a view of one, is in a file or in host memory registered with a GPU."""
    return table.numel() > 0 and table.untyped_storage().data_ptr() in _OFFLOADED


def cpu_view(table: Tensor) -> Tensor:
    """Return a CPU tensor over a table in host memory, else the table; waits for what the GPU still writes."""
    registered = _OFFLOADED.get(table.untyped_storage().data_ptr()) if table.numel() and table.is_cuda else None
    if registered is None:
        return table
    torch.cuda.synchronize(table.device)
    whole = torch.frombuffer(registered.memory, dtype=table.dtype)
    return torch.as_strided(whole, table.shape, table.stride(), table.storage_offset())


def copy_rows(source: Tensor, target: Tensor) -> None:
    """Copy a table, on any device or offloaded, without an intermediate copy."""
    cpu_view(target).copy_(cpu_view(source))


def row_blocks(table: Tensor, block: int) -> Iterator[tuple[int, Tensor]]:
    """Yield (first row, rows) of a table (n, D), `block` rows at a time, on the table's device.

    A block is valid until the next one is requested. Offloaded tables read the next block ahead.
    """
    memory = _OFFLOADED.get(table.untyped_storage().data_ptr()) if table.numel() else None
    if table.is_cuda and memory is not None:
        yield from _copied_blocks(cpu_view(table), block, table.device)
        return
    for first in range(0, len(table), block):
        if isinstance(memory, _Mapped):
            _read_ahead(memory, table, first + block, block)
        yield first, table[first : first + block]


def _copied_blocks(host: Tensor, block: int, device: torch.device) -> Iterator[tuple[int, Tensor]]:
    """Copy blocks to two buffers on the GPU in turn, on a separate stream."""
    n, (current, side) = len(host), (torch.cuda.current_stream(device), torch.cuda.Stream(device))
    buffers = [host.new_empty((min(block, n), host.shape[1]), device=device) for _ in range(2)]
    filled, free = ([torch.cuda.Event() for _ in range(2)] for _ in range(2))

    def copy(first: int) -> None:
        i = first // block % 2
        rows = host[first : first + block]
        with torch.cuda.stream(side):
            side.wait_event(free[i])
            buffers[i][: len(rows)].copy_(rows, non_blocking=True)
            filled[i].record(side)

    for event in free:
        event.record(current)
    try:
        copy(0)
        for first in range(0, n, block):
            i = first // block % 2
            if first + block < n:
                copy(first + block)
            current.wait_event(filled[i])
            yield first, buffers[i][: min(block, n - first)]
            free[i].record(current)
    finally:  # the next user of the buffers' memory must wait for the last copy
        current.wait_stream(side)


def _read_ahead(memory: _Mapped, table: Tensor, first: int, n: int) -> None:
    """Ask the system to read n rows of a file."""
    row = table.stride(0) * table.element_size()
    begin = (table.storage_offset() * table.element_size() + first * row) // mmap.PAGESIZE * mmap.PAGESIZE
    if begin < len(memory):
        with suppress(AttributeError, OSError):
            memory.madvise(mmap.MADV_WILLNEED, begin, min(n * row, len(memory) - begin))


def _register(address: int, size: int) -> None:
    code = int(torch.cuda.cudart().cudaHostRegister(address, size, _PORTABLE | _MAPPED))
    if code:
        raise MemoryPlanError(
            f"{size:,} bytes of host memory could not be registered with the GPU (CUDA error {code}): give "
            f"placement=device, or train on a CPU (device=cpu)."
        )


def _unregister(address: int, memory: _Mapped) -> None:
    """Unregister; the argument `memory` keeps the mapping alive until now."""
    with suppress(RuntimeError):  # the context of the GPU may be lost
        torch.cuda.synchronize()
    torch.cuda.cudart().cudaHostUnregister(address)
