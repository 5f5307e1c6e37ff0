"""Arrays on disk: written in parts, walked through in blocks without keeping their pages."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from grash.data.arrays import ArrayWriter, distinct, in_blocks, open_array


def test_an_array_is_written_in_parts(tmp_path: Path) -> None:
    parts = [np.arange(3 * n, dtype=np.int32).reshape(n, 3) for n in (4, 0, 7)]
    with ArrayWriter(tmp_path / "a.npy", np.int32, (3,)) as writer:
        for part in parts:
            writer.append(part)
    assert np.array_equal(open_array(tmp_path / "a.npy"), np.concatenate(parts))
    with pytest.raises(RuntimeError, match="stop"), ArrayWriter(tmp_path / "b.npy", np.int32) as writer:
        raise RuntimeError("stop")


def resident_file_bytes() -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("RssFile"))


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="needs Linux to see resident pages")
def test_a_walk_in_blocks_releases_its_pages(tmp_path: Path) -> None:
    values = np.arange(6 << 20, dtype=np.int32).reshape(-1, 3)
    np.save(tmp_path / "a.npy", values)
    before, most, total = resident_file_bytes(), 0, 0
    for start, block in in_blocks(open_array(tmp_path / "a.npy"), 1 << 16):
        assert np.array_equal(block, values[start : start + (1 << 16)])
        total += len(block)
        most = max(most, resident_file_bytes() - before)
    assert total == len(values) and most < values.nbytes // 4


def test_a_walk_loses_nothing_that_was_written_privately(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", np.zeros(5000, np.int32))
    private = np.load(tmp_path / "a.npy", mmap_mode="c")
    private[:] = 7
    assert all((block == 7).all() for _, block in in_blocks(private, 1000))
    assert (private == 7).all()
    assert [start for start, _ in in_blocks(np.zeros(5), 2)] == [0, 2, 4]


@given(st.lists(st.integers(-(2**63), 2**63 - 1) | st.integers(0, 5)))
def test_distinct_keys_are_those_of_numpy(keys: list[int]) -> None:
    array = np.array(keys, np.int64)
    assert np.array_equal(distinct(array.copy()), np.unique(array))
