"""How and where the rows of a table are stored: in float32 or bf16; on the device, in host memory or on disk.

bf16: rows are read as float32, which is exact, and written with stochastic rounding: a number becomes one of its two
neighbors in bf16, with probabilities that keep its mean (16 random bits are added to the 16 bits that are cut off). So
updates much smaller than the precision of bf16 add up, where rounding to the nearest would lose them. The bits depend
only on a key, the row's id and the column (`random`), not on order, threads or device. A number that bf16 represents
exactly does not change.

Placement of the entity table and its optimizer state, which changes the speed but no number (`engines/memory` decides
what fits; relations are always on the device):

    device   on the training device: GPU memory, or the CPU's memory
    host     in host memory, whose rows the GPU reads and writes over the bus; on a CPU the same as `device`
    disk     in memory-mapped files, for a CPU with less memory than the model needs

Host memory is an ordinary mapping, registered with the GPU and given to torch as a CUDA tensor: kernels load and store
its rows at the same address. (The pinned memory of torch is rounded up to powers of two: 64 GiB for 44 GB.) It is
unregistered when its last tensor is gone. A file is mapped and has no name, so nothing is left behind if the process
dies.
"""

from __future__ import annotations

import mmap
import os
import tempfile
import weakref
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numba
import numpy as np
import torch
from torch import Tensor

from grash.errors import ConfigError, MemoryPlanError, OutputError
from grash.kernels.device import use_torch_threads
from grash.kernels.random import _GOLDEN, _mix_u32, _row_keys, random_bits

Kind = Literal["device", "host", "disk"]
PLACEMENTS = ("auto", "device", "host", "disk")
_PORTABLE, _MAPPED = 1, 2  # flags of cudaHostRegister
# types in the CUDA array interface, which has none for bf16: its bits are passed as integers
_TYPES = {torch.float32: "<f4", torch.bfloat16: "<i2"}


@dataclass(frozen=True)
class Placement:
    """Where entity rows are stored."""

    kind: Kind = "device"
    folder: Path | None = None  # of unnamed files: tables on disk, and best weights; None keeps the latter in memory

    def __post_init__(self) -> None:
        if self.kind == "disk" and self.folder is None:
            raise ConfigError("placement=disk needs a folder for its files: give one for the model or the checkpoint.")

    @property
    def offloaded(self) -> bool:
        """Whether entity rows are in host memory or on disk."""
        return self.kind != "device"

    def rows(self, n: int, width: int, device: torch.device, *, dtype: torch.dtype = torch.float32) -> Tensor:
        """Allocate zeros (n, width) for entities."""
        if self.kind == "host":
            return host_rows(n, width, device, dtype=dtype)
        if self.kind == "disk":
            assert self.folder is not None
            return file_rows(n, width, self.folder, dtype=dtype)
        return torch.zeros(n, width, dtype=dtype, device=device)

    def best_rows(self, table: Tensor) -> Tensor:
        """Allocate memory for the best weights of a table, on the host."""
        if self.folder is not None:
            return file_rows(len(table), table.shape[1], self.folder, dtype=table.dtype)
        return torch.empty(table.shape, dtype=table.dtype)


def check_placement(name: str, device: torch.device) -> None:
    """Raise ConfigError for a placement that is unknown or not possible on the device."""
    if name not in PLACEMENTS:
        raise ConfigError(f"placement={name!r} is unknown: give {', '.join(PLACEMENTS[:-1])} or {PLACEMENTS[-1]}.")
    if name == "disk" and device.type != "cpu":
        raise ConfigError(f"placement=disk needs device=cpu, but the device is {device}: give device=cpu, or host.")


def is_bf16(table: Tensor) -> bool:
    return table.dtype == torch.bfloat16


def to_float32(rows: Tensor) -> Tensor:
    """Return bf16 rows as float32, and all other rows unchanged."""
    return rows.float() if rows.dtype == torch.bfloat16 else rows


def gather_float32(table: Tensor, ids: list[Tensor]) -> tuple[Tensor, list[Tensor]]:
    """Return a float32 table of the rows at all ids (n,) of the list, and the ids of these rows in it."""
    places = torch.arange(sum(len(part) for part in ids), device=table.device)
    return to_float32(table.index_select(0, torch.cat(ids))), list(places.split([len(part) for part in ids]))


def round_stochastically(rows: Tensor, ids: Tensor, key: int) -> Tensor:
    """Round rows (n, D) float32 of the ids (n,) to (n, D) bf16; NaN stays NaN."""
    if rows.device.type != "cpu":
        return round_stochastically_reference(rows, random_bits(ids, rows.shape[1], key))
    out = torch.empty(rows.shape, dtype=torch.bfloat16)
    use_torch_threads()
    bits = rows.contiguous().view(torch.int32).numpy().view(np.uint32)
    places = np.ascontiguousarray(ids.numpy(), dtype=np.int64)
    _round_loop(bits, places, key & 0xFFFFFFFF, key >> 32, out.view(torch.int16).numpy().view(np.uint16))
    return out


def round_stochastically_reference(rows: Tensor, random: Tensor) -> Tensor:
    """Reference of `round_stochastically`; random (n, D) int32, of which the low 16 bits are used."""
    kept = (rows.view(torch.int32) + (random & 0xFFFF)) & -(1 << 16)
    return torch.where(torch.isnan(rows), rows, kept.view(torch.float32)).bfloat16()


@numba.njit(cache=True, parallel=True)
def _round_loop(bits, ids, k1, k2, out):  # type: ignore[no-untyped-def]
    for i in numba.prange(bits.shape[0]):
        a, b = _row_keys(ids[i], k1, k2)
        for j in range(bits.shape[1]):
            random = _mix_u32(_mix_u32(np.uint32(a + np.uint32(np.uint32(j) * np.uint32(_GOLDEN)))) ^ b)
            x = bits[i, j]
            if x & np.uint32(0x7FFFFFFF) > np.uint32(0x7F800000):
                out[i, j] = np.uint16(0x7FC0)
            else:
                out[i, j] = np.uint16(np.uint32(x + (random & np.uint32(0xFFFF))) >> np.uint32(16))


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
