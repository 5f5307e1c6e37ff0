"""Tables in files: zeros that leave nothing behind, read block by block. Tables in host memory need a GPU
(tests/gpu/test_placement)."""

from __future__ import annotations

import errno
import gc
import mmap
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from grash.errors import OutputError
from grash.kernels import storage as offloading
from grash.kernels.storage import copy_rows, cpu_view, file_rows, host_rows, is_offloaded, row_blocks

CPU = torch.device("cpu")


def test_rows_in_a_file_start_as_zeros_and_leave_nothing_behind(tmp_path: Path) -> None:
    folder = tmp_path / "created" / "here"
    rows = file_rows(1000, 7, folder)
    assert rows.shape == (1000, 7) and rows.dtype == torch.float32 and not rows.any()
    assert list(folder.iterdir()) == []
    rows[3:5] = 2.0
    part = rows[3:500]
    del rows
    gc.collect()
    assert part.sum() == 28 and is_offloaded(part)  # a view keeps the memory
    before = len(offloading._OFFLOADED)
    del part
    gc.collect()
    assert len(offloading._OFFLOADED) == before - 1


def test_only_tables_in_files_are_offloaded_on_a_cpu(tmp_path: Path) -> None:
    rows = file_rows(10, 2, tmp_path)
    assert is_offloaded(rows) and is_offloaded(rows[3:4]) and is_offloaded(rows[:, 1])
    for other in (rows.clone(), torch.zeros(10, 2), rows[:0], file_rows(0, 3, tmp_path), host_rows(4, 2, CPU)):
        assert not is_offloaded(other)
    assert cpu_view(rows) is rows


@settings(deadline=None, max_examples=30)
@given(st.integers(1, 40), st.integers(1, 45), st.booleans(), st.sampled_from([torch.float32, torch.bfloat16]))
def test_blocks_are_the_table_in_its_order(
    tmp_path_factory: pytest.TempPathFactory, n: int, k: int, in_file: bool, dtype: torch.dtype
) -> None:
    folder = tmp_path_factory.getbasetemp()
    table = file_rows(n, 3, folder, dtype=dtype) if in_file else torch.zeros(n, 3, dtype=dtype)
    assert table.dtype == dtype and table.untyped_storage().nbytes() == n * 3 * dtype.itemsize
    table.copy_(torch.arange(3.0 * n).view(n, 3))
    found = [(first, rows.clone()) for first, rows in row_blocks(table, k)]
    assert [first for first, _ in found] == list(range(0, n, k))
    assert all(len(rows) <= k for _, rows in found) and torch.equal(torch.cat([rows for _, rows in found]), table)


def test_an_empty_table_has_no_blocks() -> None:
    assert list(row_blocks(torch.zeros(0, 3), 5)) == []


def test_rows_are_copied_between_memory_and_file(tmp_path: Path) -> None:
    source = torch.randn(50, 4, generator=torch.Generator().manual_seed(0))
    stored, back = file_rows(50, 4, tmp_path), torch.empty(50, 4)
    copy_rows(source, stored)
    copy_rows(stored, back)
    assert torch.equal(stored, source) and torch.equal(back, source)


def test_a_full_disk_is_an_error_before_anything_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*given: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(offloading.os, "posix_fallocate", full)
    with pytest.raises(OutputError, match=r"No space left on device\. Tables on disk need the space"):
        file_rows(10, 10, tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_registered_host_memory_is_read_in_blocks_by_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """A checkpoint reads it like this. Without a GPU nothing is registered, and the tensor is on the CPU."""
    monkeypatch.setattr(offloading, "_register", lambda address, size: None)
    monkeypatch.setattr(offloading, "_unregister", lambda address, memory: None)
    memory = offloading._Mapped(-1, 4 * 10 * 3, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    seen = offloading._Registered(memory, (10, 3))
    offloading._OFFLOADED[memory.address()] = seen
    table = torch.frombuffer(memory, dtype=torch.float32).view(10, 3)
    table.copy_(torch.arange(30.0).view(10, 3))
    assert is_offloaded(table)
    assert torch.equal(torch.cat([rows.clone() for _, rows in row_blocks(table, 4)]), torch.arange(30.0).view(10, 3))
