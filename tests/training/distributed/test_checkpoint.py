"""Ranks that write to one disk: they wait for a slow one, an error on one is an error on all, nothing is left over."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest

from grash.errors import OutputError
from grash.training.distributed import checkpoint
from grash.training.distributed.checkpoint import check_shared, shared_folder, write_together
from grash.training.distributed.communication import ProcessGroup
from training.distributed.thread_group import in_threads


def test_ranks_that_wait_for_a_disk_keep_exchanging_messages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkpoint, "_POLL_SECONDS", 0.02)

    def work(group: ProcessGroup) -> int:
        messages, plain, enough = 0, group.any, threading.Event()

        def counted(flag: bool) -> bool:
            nonlocal messages
            messages += 1
            if messages > 4:
                enough.set()
            return plain(flag)

        group.any = counted  # type: ignore[method-assign]
        write_together(tmp_path, group, lambda: group.rank == 0 and enough.wait(60))
        return messages

    found = in_threads(3, work)
    assert len(set(found)) == 1 and found[0] > 4


@pytest.mark.parametrize("error", [OSError(28, "No space left"), OutputError("part", "No space left")], ids=type)
def test_an_error_on_one_rank_is_an_error_on_all(tmp_path: Path, error: Exception) -> None:
    def fail() -> None:
        raise error

    def work(group: ProcessGroup) -> str:
        with pytest.raises(OutputError) as raised:
            write_together(tmp_path, group, fail if group.rank == 1 else lambda: None)
        return raised.value.reason

    other = "another rank could not write its part"
    assert in_threads(3, work) == [other, "No space left", other]


def test_an_error_that_is_no_disk_error_keeps_its_type(tmp_path: Path) -> None:
    def work(group: ProcessGroup) -> None:
        with pytest.raises(ZeroDivisionError if group.rank == 0 else OutputError):
            write_together(tmp_path, group, lambda: print(1 // group.rank))

    in_threads(2, work)


def test_checking_a_shared_disk_leaves_no_files(tmp_path: Path) -> None:
    in_threads(3, lambda group: check_shared(tmp_path / "runs" / "m", group))
    assert list((tmp_path / "runs").iterdir()) == []


@pytest.mark.parametrize("check", [check_shared, lambda f, c: shared_folder(f, c, overwrite=True).__enter__()])
def test_a_folder_that_cannot_be_written_is_refused_on_all_ranks(tmp_path: Path, check: Any) -> None:
    (tmp_path / "file").write_text("")

    def work(group: ProcessGroup) -> str:
        with pytest.raises(OutputError) as raised:
            check(tmp_path / "file" / "m", group)
        return raised.value.reason

    first, *others = in_threads(3, work)
    assert first == "File exists" and others == ["rank 0 cannot write there"] * 2


def test_a_disk_that_some_rank_does_not_see_is_refused(tmp_path: Path) -> None:
    def work(group: ProcessGroup) -> None:
        plain = group.broadcast_text
        if group.rank == 1:
            group.broadcast_text = lambda flag="": f"{plain(flag)}, elsewhere"  # type: ignore[method-assign]
        with pytest.raises(OutputError, match="not all ranks see it"):
            check_shared(tmp_path / "m", group)

    in_threads(2, work)
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_cannot_be_finished_fails_on_all_ranks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_: Path) -> None:
        raise OSError(28, "No space left")

    monkeypatch.setattr("grash.files.sync_folder", full)

    def work(group: ProcessGroup) -> None:
        with pytest.raises(OutputError), shared_folder(tmp_path / "m", group, overwrite=False) as aside:
            (aside / str(group.rank)).touch()

    in_threads(2, work)
    assert list(tmp_path.iterdir()) == []
