"""Sources larger than memory: the same dataset after kills, faults and full disks, without leftovers."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from grash.data.dataset import Dataset
from grash.data.external.spill import Spill
from grash.data.load import load_dataset, prepare
from grash.errors import FormatError, InputError, OutputError
from large_sources import check_same, large, lines, stopped


@pytest.mark.slow
def test_stopped_at_any_point_it_resumes_to_the_same_dataset(tmp_path: Path, small_blocks: None) -> None:
    (tmp_path / "g.tsv").write_text(lines(n=150))
    wanted = load_dataset(tmp_path / "g.tsv")
    at = 1
    while stopped(tmp_path / "g.tsv", tmp_path / f"{at}", at=at):
        assert not (tmp_path / f"{at}").exists()
        check_same(large(tmp_path / "g.tsv", tmp_path / f"{at}"), wanted)
        at += 3
    assert at > 15
    at = 2
    while stopped(tmp_path / "g.tsv", tmp_path / "again and again", at=at):
        at += 1
    check_same(Dataset.load(tmp_path / "again and again"), wanted)


KILLED = """
import os, signal, sys
from pathlib import Path
from grash.data.external import spill
from grash.data.external.prepare import prepare_large
from grash.data.readers import text
from grash.data.readers.source import recognize
from grash.data.readers.source import SourceOptions
text.BLOCK, text.SAMPLE, spill.COMMIT_ROWS = 3000, 100, 200
source, out, at = Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3])
def watch(*_):
    global at
    at -= 1
    if at == 0:
        os.kill(os.getpid(), signal.SIGKILL)
prepare_large(recognize(source), out, SourceOptions(), memory=1 << 20, overwrite=False, watch=watch)
"""


@pytest.mark.slow
def test_killed_repeatedly_it_ends_without_damage(tmp_path: Path) -> None:
    (tmp_path / "g.tsv").write_text(lines(n=3000, n_names=900))
    codes = []
    for at in (1, 3, 2, 6, 10_000):
        command = [sys.executable, "-c", KILLED, str(tmp_path / "g.tsv"), str(tmp_path / "out"), str(at)]
        codes.append(subprocess.run(command, check=False, env={**os.environ, "OMP_NUM_THREADS": "1"}).returncode)
        for half_made in tmp_path.glob("out.spill/*.ids"):  # more than the last commit recorded
            with half_made.open("ab") as file:
                file.write(b"torn")
    assert codes[-1] == 0 and codes.count(-signal.SIGKILL) >= 3
    check_same(Dataset.load(tmp_path / "out"), load_dataset(tmp_path / "g.tsv"))
    assert sorted(p.name for p in tmp_path.iterdir()) == ["g.tsv", "out"]


KILLED_AT = """
import os, shutil, signal, sys
from pathlib import Path
from grash.data import load as module
from grash.data.external import prepare, spill
from grash.data.dataset import Dataset
source, out, at, overwrite = Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3], sys.argv[4] == "overwrite"
def kill(*_, **__):
    os.kill(os.getpid(), signal.SIGKILL)
def half(path):
    if Path(path).name == "work":
        kill()
    delete(path)
delete, owner = spill._delete, {"complete_folder": Dataset, "remove": spill.Spill}.get(at)
if at == "half removed":
    spill._delete = half
elif at != "nowhere":
    setattr(owner, at, kill)
prepare.must_read_in_parts = lambda *_, **__: True
module.prepare(source, out, overwrite=overwrite)
"""


def killed_at(at: str, source: Path, out: Path, *, overwrite: bool = False) -> None:
    """Prepares a source in parts, by a process that is killed there."""
    command = [sys.executable, "-c", KILLED_AT, str(source), str(out), at, "overwrite" if overwrite else ""]
    ran = subprocess.run(command, check=False, env={**os.environ, "OMP_NUM_THREADS": "1"})
    assert ran.returncode == -signal.SIGKILL


@pytest.mark.slow
@pytest.mark.parametrize("at", ["complete_folder", "remove", "half removed"])
@pytest.mark.parametrize("kind", ["text", "array"])
def test_killed_at_its_end_the_same_call_finishes_and_leaves_no_spill(tmp_path: Path, at: str, kind: str) -> None:
    if kind == "text":
        source = tmp_path / "g.tsv"
        source.write_text(lines())
    else:
        source = tmp_path / "ids.npy"
        np.save(source, np.random.default_rng(0).integers(0, 30, (500, 3)))
    killed_at(at, source, tmp_path / "out")
    assert (tmp_path / "out").exists() == (at != "complete_folder") and (tmp_path / "out.spill").exists()
    found = prepare(source, tmp_path / "out", memory="1G")
    assert found.fingerprint == load_dataset(source).fingerprint
    assert {p.name for p in tmp_path.iterdir()} == {source.name, "out"}
    with pytest.raises(InputError, match="already exists"):
        prepare(source, tmp_path / "out")


@pytest.mark.slow
def test_an_existing_dataset_is_not_mistaken_for_the_result_of_another_source_or_call(
    tmp_path: Path,
) -> None:
    source, out = tmp_path / "g.tsv", tmp_path / "out"
    source.write_text(lines())
    killed_at("remove", source, out)
    with pytest.raises(InputError, match="already exists"):
        prepare(source, out, seed=1)
    source.write_text(lines(seed=1))
    with pytest.raises(InputError, match="already exists"):
        prepare(source, out)
    killed_at("complete_folder", source, out, overwrite=True)
    with pytest.raises(InputError, match="already exists"):
        prepare(source, out)
    check_same(prepare(source, out, overwrite=True), load_dataset(source))
    assert sorted(p.name for p in tmp_path.iterdir()) == ["g.tsv", "out"]


def test_a_half_removed_spill_starts_from_the_beginning(tmp_path: Path) -> None:
    source, out = tmp_path / "g.tsv", tmp_path / "out"
    source.write_text(lines())
    killed_at("half removed", source, out)
    for path in (tmp_path / "out.spill").glob("*.ids"):
        path.unlink()
    out.rename(tmp_path / "taken away")
    check_same(prepare(source, out), load_dataset(source))


def test_a_spill_of_another_source_starts_from_the_beginning(tmp_path: Path, small_blocks: None) -> None:
    (tmp_path / "g.tsv").write_text(lines())
    assert stopped(tmp_path / "g.tsv", tmp_path / "out", at=4)
    (tmp_path / "g.tsv").write_text(lines(seed=5))
    check_same(large(tmp_path / "g.tsv", tmp_path / "out"), load_dataset(tmp_path / "g.tsv"))


def test_a_damaged_or_foreign_spill_is_refused(tmp_path: Path, small_blocks: None) -> None:
    (tmp_path / "g.tsv").write_text(lines())
    assert stopped(tmp_path / "g.tsv", tmp_path / "out", at=4)
    (tmp_path / "out.spill" / "train.ids").write_bytes(b"")
    with pytest.raises(FormatError, match="shorter than its manifest states"):
        large(tmp_path / "g.tsv", tmp_path / "out")
    (tmp_path / "other.spill").mkdir()
    (tmp_path / "other.spill" / "thesis.tex").write_text("")
    with pytest.raises(InputError, match="thesis"):
        large(tmp_path / "g.tsv", tmp_path / "other")


def test_two_processes_cannot_use_one_spill(tmp_path: Path, small_blocks: None) -> None:
    (tmp_path / "g.tsv").write_text(lines())

    def watch(*_: object) -> None:
        with pytest.raises(InputError, match="in use by another process"):
            large(tmp_path / "g.tsv", tmp_path / "out")

    large(tmp_path / "g.tsv", tmp_path / "out", watch=watch)


def test_a_bad_source_leaves_no_files_and_its_line_is_reported(tmp_path: Path, small_blocks: None) -> None:
    (tmp_path / "bad.tsv").write_text(lines() + "node 1\trel1\n")
    with pytest.raises(InputError, match="line 401: found 2 columns"):
        large(tmp_path / "bad.tsv", tmp_path / "out")
    assert [p.name for p in tmp_path.iterdir()] == ["bad.tsv"]
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "diary.txt").touch()
    with pytest.raises(InputError, match="not an encoded dataset"):
        large(tmp_path / "bad.tsv", tmp_path / "mine", overwrite=True)


def test_it_resumes_after_a_full_disk(tmp_path: Path, small_blocks: None, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "g.tsv").write_text(lines())
    add_rows, calls = Spill.add_rows, []

    def full(self: Spill, split: str, ids: np.ndarray) -> None:
        calls.append(split)
        if len(calls) == 6:
            raise OSError(errno.ENOSPC, "No space left on device")
        add_rows(self, split, ids)

    monkeypatch.setattr(Spill, "add_rows", full)
    with pytest.raises(OutputError, match="No space left on device.*run the same command again to resume"):
        large(tmp_path / "g.tsv", tmp_path / "out")
    n_calls = len(calls)
    check_same(large(tmp_path / "g.tsv", tmp_path / "out"), load_dataset(tmp_path / "g.tsv"))
    monkeypatch.undo()
    assert n_calls == 6 and not (tmp_path / "out.spill").exists()
