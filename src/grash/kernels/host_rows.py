"""Tables that lie farther away than where they are computed with: in host memory that a card reaches over the bus, or
in a file. Used by whoever makes tables (`training/placement`) and by whoever walks through whole ones.

Host memory is an ordinary mapping that is registered with the card (torch's own pinned memory is rounded up to powers
of two: 64 GiB for 44 GB) and given to torch as a tensor of the card: kernels load and store its rows at the same
address, and nothing else of the program knows. It is unregistered when the last tensor over it is gone. A file is
mapped, and has no name: whatever becomes of the process, nothing is left behind.
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

_PORTABLE, _MAPPED = 1, 2  # cudaHostRegister's flags
# as the card's arrays name them; bf16 has no name there, and is seen as the integers of its bits
_NAMES = {torch.float32: "<f4", torch.bfloat16: "<i2"}


class _Mapped(mmap.mmap):
    """A mapping that can be found again by its address."""

    def address(self) -> int:
        return torch.frombuffer(self, dtype=torch.uint8).data_ptr()


class _Registered:
    """A mapping as the card sees it; torch's tensors over it hold this object."""

    def __init__(self, memory: _Mapped, shape: tuple[int, int], name: str = "<f4") -> None:
        self.memory = memory
        address = memory.address()
        self.__cuda_array_interface__ = {
            "shape": shape, "typestr": name, "data": (address, False), "strides": None, "version": 3,
        }  # fmt: skip
        _register(address, len(memory))
        weakref.finalize(self, _unregister, address, memory).atexit = False  # at the end all mappings go anyway


# by address: mappings in files, and those that a card sees
_OFFLOADED: weakref.WeakValueDictionary[int, Any] = weakref.WeakValueDictionary()


def host_rows(n: int, width: int, device: torch.device, *, dtype: torch.dtype = torch.float32) -> Tensor:
    """(n, width) zeros in host memory, as a tensor of `device`. For a CPU that is its own memory."""
    size = n * width * dtype.itemsize
    if device.type != "cuda" or not size:
        return torch.zeros(n, width, dtype=dtype, device=device)
    memory = _Mapped(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    with suppress(AttributeError, OSError):  # large pages: fewer addresses for the card to look up, quicker to register
        memory.madvise(mmap.MADV_HUGEPAGE)
    torch.frombuffer(memory, dtype=torch.uint8)[:: mmap.PAGESIZE].zero_()  # by all threads; registering has only one
    seen = _Registered(memory, (n, width), _NAMES[dtype])
    _OFFLOADED[memory.address()] = seen
    return torch.as_tensor(seen, device=device).view(dtype)


def file_rows(n: int, width: int, folder: Path, *, dtype: torch.dtype = torch.float32) -> Tensor:
    """(n, width) zeros in a file without a name in `folder`, which is made if need be."""
    size = n * width * dtype.itemsize
    if not size:
        return torch.zeros(n, width, dtype=dtype)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder) as file:
            os.posix_fallocate(file.fileno(), 0, size)  # a full disk is an error here, later it would end the process
            memory = _Mapped(file.fileno(), size)
    except OSError as error:
        raise OutputError(folder, error.strerror or str(error), then="Tables on disk need the room.") from error
    with suppress(AttributeError, OSError):  # a step reads single rows: what lies beside them would be read for nothing
        memory.madvise(mmap.MADV_RANDOM)
    _OFFLOADED[memory.address()] = memory
    return torch.frombuffer(memory, dtype=dtype).view(n, width)


def is_offloaded(table: Tensor) -> bool:
    """Whether a table, or a view of one, lies in host memory seen by a card, or in a file."""
    return table.numel() > 0 and table.untyped_storage().data_ptr() in _OFFLOADED


def cpu_view(table: Tensor) -> Tensor:
    """The table as the CPU sees it, where it lies in host memory; else itself. Waits for what the card still writes."""
    memory = _OFFLOADED.get(table.untyped_storage().data_ptr()) if table.numel() and table.is_cuda else None
    if memory is None:
        return table
    torch.cuda.synchronize(table.device)
    whole = torch.frombuffer(memory.memory, dtype=table.dtype)
    return torch.as_strided(whole, table.shape, table.stride(), table.storage_offset())


def copy_rows(source: Tensor, target: Tensor) -> None:
    """target = source, wherever they lie, without a copy in between."""
    cpu_view(target).copy_(cpu_view(source))


def row_blocks(table: Tensor, together: int) -> Iterator[tuple[int, Tensor]]:
    """(first row, rows) of a table (n, D), piece by piece, where it is computed with. A piece holds until the next one
    is asked for; while it is worked on, the next one is on its way."""
    memory = _OFFLOADED.get(table.untyped_storage().data_ptr()) if table.numel() else None
    if table.is_cuda and memory is not None:
        yield from _brought(cpu_view(table), together, table.device)
        return
    for first in range(0, len(table), together):
        if isinstance(memory, _Mapped):  # host memory, as the CPU sees it, is there
            _read_ahead(memory, table, first + together, together)
        yield first, table[first : first + together]


def _brought(host: Tensor, together: int, device: torch.device) -> Iterator[tuple[int, Tensor]]:
    """By two buffers on the card, filled in turn by a stream of their own."""
    n, (here, side) = len(host), (torch.cuda.current_stream(device), torch.cuda.Stream(device))
    buffers = [host.new_empty((min(together, n), host.shape[1]), device=device) for _ in range(2)]
    filled, free = ([torch.cuda.Event() for _ in range(2)] for _ in range(2))

    def bring(first: int) -> None:
        place = first // together % 2
        rows = host[first : first + together]
        with torch.cuda.stream(side):
            side.wait_event(free[place])
            buffers[place][: len(rows)].copy_(rows, non_blocking=True)
            filled[place].record(side)

    for event in free:
        event.record(here)
    try:
        bring(0)
        for first in range(0, n, together):
            place = first // together % 2
            if first + together < n:
                bring(first + together)
            here.wait_event(filled[place])
            yield first, buffers[place][: min(together, n - first)]
            free[place].record(here)
    finally:  # whoever gets the buffers' memory next waits for what is on its way
        here.wait_stream(side)


def _read_ahead(memory: _Mapped, table: Tensor, first: int, n: int) -> None:
    """Asks for rows of a file before they are needed."""
    row = table.stride(0) * table.element_size()
    begin = (table.storage_offset() * table.element_size() + first * row) // mmap.PAGESIZE * mmap.PAGESIZE
    if begin < len(memory):
        with suppress(AttributeError, OSError):
            memory.madvise(mmap.MADV_WILLNEED, begin, min(n * row, len(memory) - begin))


def _register(address: int, size: int) -> None:
    code = int(torch.cuda.cudart().cudaHostRegister(address, size, _PORTABLE | _MAPPED))
    if code:
        raise MemoryPlanError(
            f"{size:,} bytes of host memory could not be registered with the card (CUDA error {code}): give "
            f"placement=device, or train on a CPU (device=cpu)."
        )


def _unregister(address: int, memory: _Mapped) -> None:
    """`memory` is held until here: it must not be unmapped before."""
    with suppress(RuntimeError):  # a card whose context is lost
        torch.cuda.synchronize()
    torch.cuda.cudart().cudaHostUnregister(address)
