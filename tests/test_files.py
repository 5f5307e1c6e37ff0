"""Folders that a kill left behind are restored or removed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from grash import files
from grash.errors import FormatError
from grash.files import atomic_folder, beside, repair_folder, verify_folder


def folder(path: Path, content: str, *, age: float = 0.0) -> Path:
    path.mkdir()
    (path / "state.json").write_text(content)
    for place in (path / "state.json", path):
        os.utime(place, (time.time() - age, time.time() - age))
    return path


def test_a_folder_that_was_killed_between_two_renames_is_brought_back(tmp_path: Path) -> None:
    """The newest, if there are several."""
    folder(tmp_path / ".check[1].aaa.old", "older", age=60)
    folder(tmp_path / ".check[1].bbb.old", "newer")
    repair_folder(tmp_path / "check[1]")
    assert (tmp_path / "check[1]" / "state.json").read_text() == "newer"
    assert [p.name for p in tmp_path.iterdir()] == ["check[1]"]


def test_what_is_there_stays_and_what_was_left_long_ago_goes(tmp_path: Path) -> None:
    folder(tmp_path / "check", "whole")
    folder(tmp_path / ".check.aaa.old", "old")
    folder(tmp_path / ".check.bbb.part", "left", age=7200)
    folder(tmp_path / ".check.ccc.part", "being written", age=60)
    folder(tmp_path / ".other.ddd.part", "another's", age=7200)
    repair_folder(tmp_path / "check")
    assert {p.name for p in tmp_path.iterdir()} == {"check", ".check.ccc.part", ".other.ddd.part"}
    assert (tmp_path / "check" / "state.json").read_text() == "whole"


LEFT = """
import os, sys
from pathlib import Path
from grash.files import atomic_folder

with atomic_folder(Path(sys.argv[1]), overwrite=True) as aside:
    (aside / "state.json").write_text("half")
    os._exit(9)
"""


def test_what_a_killed_process_was_writing_goes_at_once_and_what_a_living_one_writes_stays(tmp_path: Path) -> None:
    folder(tmp_path / "check", "whole")
    assert subprocess.run([sys.executable, "-c", LEFT, str(tmp_path / "check")], check=False).returncode == 9
    with atomic_folder(tmp_path / "check", overwrite=True) as ours:
        assert len(list(tmp_path.glob(".check.*.part"))) == 2
        repair_folder(tmp_path / "check")
        assert list(tmp_path.glob(".check.*.part")) == [ours]
    assert [p.name for p in tmp_path.iterdir()] == ["check"]


def test_repairing_a_missing_folder_creates_nothing(tmp_path: Path) -> None:
    repair_folder(tmp_path / "no" / "check")
    assert not list(tmp_path.iterdir())


KILLED = """
import os, sys
from pathlib import Path
from grash.files import atomic_folder

rename = Path.rename
Path.rename = lambda self, target: os._exit(9) if self.suffix == ".part" else rename(self, target)
with atomic_folder(Path(sys.argv[1]), overwrite=True) as aside:
    (aside / "state.json").write_text("after")
"""


def test_a_kill_between_the_renames_of_a_folder_loses_nothing(tmp_path: Path) -> None:
    folder(tmp_path / "check", "before")
    assert subprocess.run([sys.executable, "-c", KILLED, str(tmp_path / "check")], check=False).returncode == 9
    assert not (tmp_path / "check").exists()
    repair_folder(tmp_path / "check")
    assert (tmp_path / "check" / "state.json").read_text() == "before"


def test_a_path_beside_a_folder_has_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "m" / "part").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "m" / "part")
    assert beside(Path("runs/m"), ".checkpoint") == Path("runs/m.checkpoint")
    assert beside(Path(), ".checkpoint") == tmp_path / "m" / "part.checkpoint"
    assert beside(Path(".."), ".checkpoint") == tmp_path / "m.checkpoint"
    assert beside(Path("/"), ".checkpoint") == Path("/.checkpoint")


def test_what_was_left_of_a_folder_with_a_longer_name_is_not_taken_for_this_one(tmp_path: Path) -> None:
    left = tmp_path / ".big.grash.0123abcd-99999999-xyz.old"
    left.mkdir()
    repair_folder(tmp_path / "big")
    assert left.exists() and not (tmp_path / "big").exists()
    repair_folder(tmp_path / "big.grash")
    assert not left.exists() and (tmp_path / "big.grash").exists()


def with_checksums(path: Path, content: bytes = b"some bytes") -> Path:
    with atomic_folder(path, checksums=True) as temporary:
        (temporary / "data.bin").write_bytes(content)
        (temporary / "empty").touch()
    return path


def test_a_folder_is_compared_with_its_checksums(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Small files, files of several blocks, and a changed bit in any block."""
    verify_folder(with_checksums(tmp_path / "small"))
    monkeypatch.setattr(files, "_CHECKSUM_BLOCK", 100)
    content = bytes(range(256)) * 2
    folder = with_checksums(tmp_path / "large", content)
    verify_folder(folder)
    for place in (0, 99, 100, 350, 511):
        (folder / "data.bin").unlink()
        (folder / "data.bin").write_bytes(content[:place] + bytes([content[place] ^ 8]) + content[place + 1 :])
        os.utime(folder / "data.bin", ns=(place, place))
        with pytest.raises(FormatError, match="data.bin is damaged: its content does not match its checksum"):
            verify_folder(folder)


def test_a_large_file_is_read_once_unless_it_changes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "_CHECKSUM_BLOCK", 4)
    crc, read = files._crc, []
    monkeypatch.setattr(files, "_crc", lambda path, start: read.append(path.name) or crc(path, start))
    folder = with_checksums(tmp_path / "f")
    verify_folder(folder)
    verify_folder(folder)
    assert read.count("data.bin") == 3  # when it was written
    os.utime(folder / "data.bin", ns=(1, 1))
    verify_folder(folder)
    assert read.count("data.bin") == 6


@pytest.mark.parametrize(
    ("files", "sentence"),
    [
        ({"gone": "0"}, "gone is missing"),
        ({"../data.bin": "0"}, "data.bin is missing"),
        ({"data.bin": 3}, "does not match"),
        (["data.bin"], "no list of files"),
    ],
)
def test_a_wrong_list_of_checksums_is_an_error(tmp_path: Path, files: object, sentence: str) -> None:
    folder = with_checksums(tmp_path / "f")
    (tmp_path / "data.bin").touch()
    record = json.loads((folder / "checksums.json").read_text())
    (folder / "checksums.json").write_text(json.dumps({**record, "files": files}))
    with pytest.raises(FormatError, match=sentence):
        verify_folder(folder)


def test_a_folder_without_checksums_is_incomplete(tmp_path: Path) -> None:
    folder = with_checksums(tmp_path / "f")
    (folder / "checksums.json").unlink()
    with pytest.raises(FormatError, match="it has no checksums.json"):
        verify_folder(folder)
