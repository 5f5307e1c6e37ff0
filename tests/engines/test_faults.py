"""Faults of the machine, as a user meets them: little address space, clocks that jump, full disks, leaks."""

from __future__ import annotations

import errno
import gc
import json
import os
import resource
import subprocess
import sys
import time
from pathlib import Path

import pytest

from engines.searches import essence, events_of, small_search, state_of
from grash.errors import ConfigError, OutputError
from grash.files import atomic_file
from grash.search.callbacks import OnChange
from grash.search.run_folder import RunFolder
from small_graph import grash as in_this_process

ROOT = Path(__file__).resolve().parents[2]
TINY = ("--dim", "8", "--device", "cpu", "--epochs", "2")


def grash(*arguments: object, code: str = "", limits: dict[int, int] | None = None) -> subprocess.CompletedProcess[str]:
    """Run the command line in a new process, after this code and with these resource limits. `then`: another command.

    The exit code is that of the last command, or of the first one that fails.
    """
    program = f"""{code}
import sys
from itertools import groupby
from grash.cli import main
commands = [list(words) for is_then, words in groupby(sys.argv[1:], key="then".__eq__) if not is_then]
sys.exit(next(filter(None, map(main, commands)), 0))"""

    def limit() -> None:
        for name, value in (limits or {}).items():
            resource.setrlimit(name, (value, value))

    path = os.pathsep.join([str(ROOT / "src"), str(ROOT / "tests")])
    return subprocess.run(
        [sys.executable, "-c", program, *map(str, arguments)],
        env={**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=300,
        preexec_fn=limit,
    )


@pytest.mark.slow
class TestAddressSpace:
    """`ulimit -v`: below 1.15 GiB libraries abort the process or raise what only a debugger explains."""

    @pytest.mark.parametrize("gib", [0.3, 1.1])
    def test_too_little_of_it_is_a_sentence(self, tmp_path: Path, gib: float) -> None:
        ran = grash("train", "world", *TINY, "--out", tmp_path / "m", limits={resource.RLIMIT_AS: int(gib * 2**30)})
        assert ran.returncode == 3 and "Traceback" not in ran.stderr
        assert "The address space of this process is limited to" in ran.stderr and "Raise the limit." in ran.stderr

    def test_enough_of_it_is_no_fault(self, tmp_path: Path) -> None:
        options = ("world", *TINY, "--n-trials", 2, "--engine", "sequential", "--quiet", "--out", tmp_path / "run")
        ran = grash("search", *options, limits={resource.RLIMIT_AS: 2 << 30})
        assert ran.returncode == 0, ran.stderr

    def test_a_plan_that_does_not_fit_into_it_is_refused(self, tmp_path: Path) -> None:
        ran = grash("train", "world", "--dim", 150_000, "--device", "cpu", "--out", tmp_path / "m",
                    limits={resource.RLIMIT_AS: 3 << 30})  # fmt: skip
        assert ran.returncode == 3 and "is free" in ran.stderr and "Try a smaller" in ran.stderr, ran.stderr

    def test_a_library_that_cannot_be_loaded_is_explained(self) -> None:
        code = "import sys; sys.modules['torch'] = None"  # importing it raises ImportError
        ran = grash("train", "world", code=code, limits={resource.RLIMIT_AS: 4 << 30})
        assert ran.returncode == 3 and "Traceback" not in ran.stderr
        assert "The address space is limited to 4.0 GiB (ulimit -v), which may be too little." in ran.stderr


JUMPING = """
import datetime, itertools, time
jumps = itertools.cycle([0, 86400 * 400, -86400 * 800, 3, -7200, 86400 * 365 * 40])
real_time, real = time.time, datetime.datetime
time.time = lambda: max(0.0, real_time() + next(jumps))
class Jumping(real):
    @classmethod
    def now(cls, tz=None):
        return real.now(tz) + datetime.timedelta(seconds=next(jumps))
datetime.datetime = Jumping
"""


@pytest.mark.slow
class TestClock:
    """A wall clock that is set back and forth, at every reading: durations come from the monotonic clock."""

    def test_a_search_and_its_continuation_do_not_depend_on_it(self, tmp_path: Path) -> None:
        options = ("world", *TINY, "--n-trials", 4, "--engine", "sequential", "--quiet")
        assert in_this_process("search", *options, "--out", tmp_path / "a" / "run").code == 0
        began = time.monotonic()
        stopped = grash("search", *options, "--out", tmp_path / "b" / "run", "--max-seconds", 0, code=JUMPING)
        assert stopped.returncode == 7, stopped.stderr
        run = tmp_path / "b" / "run"
        ran = grash("resume", run, "then", "status", "--json", run, "then", "report", run, code=JUMPING)
        assert ran.returncode == 0, ran.stderr
        assert essence(tmp_path / "a" / "run") == essence(tmp_path / "b" / "run")
        elapsed = [event["elapsed"] for event in events_of(tmp_path / "b" / "run")]
        assert elapsed == sorted(elapsed) and elapsed[0] >= 0 and elapsed[-1] < time.monotonic() - began
        for result in state_of(tmp_path / "b" / "run").rounds[0].results.values():
            assert 0 < result.seconds < elapsed[-1]

    def test_a_checkpoint_is_resumed_whatever_the_clock_shows(self, tmp_path: Path) -> None:
        stop = """
import signal
from grash.training import loop
real_step, calls = loop.train_step, itertools.count()
loop.train_step = lambda *given: (next(calls) == 50 and signal.raise_signal(signal.SIGINT), real_step(*given))[1]
"""
        options = ("train", "world", "--dim", 8, "--epochs", 10, "--device", "cpu")
        undisturbed = in_this_process(*options, "--out", tmp_path / "a")
        assert undisturbed.code == 0 and "Resuming" not in undisturbed.err
        assert grash(*options, "--out", tmp_path / "b", code=JUMPING + stop).returncode == 130
        assert (tmp_path / "b.checkpoint").is_dir() and not (tmp_path / "b").exists()
        ran = grash(*options, "--out", tmp_path / "b", code=JUMPING)
        assert ran.returncode == 0 and "Resuming from the checkpoint" in ran.stderr, ran.stderr
        assert not (tmp_path / "b.checkpoint").exists()
        name = "embeddings.safetensors"
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes()


@pytest.mark.slow
@pytest.mark.skipif(bool(os.system("unshare -rm true 2>/dev/null")), reason="a tmpfs cannot be mounted here")
@pytest.mark.parametrize(("command", "step"), [("prepare", 5), ("train", 12), ("search", 18)])
def test_a_disk_that_is_full_at_any_write_leaves_nothing_half_written(tmp_path: Path, command: str, step: int) -> None:
    ran = subprocess.run(
        ["unshare", "-rm", sys.executable, "-m", "engines.full_disk", str(tmp_path), command, str(step)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT / "tests")])},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert ran.returncode == 0, ran.stderr
    assert json.loads(ran.stdout.splitlines()[-1])["4"] >= 3


def test_a_lock_that_cannot_be_written_is_a_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*given: object) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("grash.search.run_folder.os.write", full)
    with (
        pytest.raises(OutputError, match="run could not be written: No space"),
        RunFolder(tmp_path / "run"),
    ):
        pass


def test_a_short_write_without_an_error_number_is_a_full_disk(tmp_path: Path) -> None:
    with (
        pytest.raises(OutputError, match=r"the disk may be full \(8 requested"),
        atomic_file(tmp_path / "f"),
    ):
        raise OSError("8 requested and 3 written")
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
class TestLeaks:
    """What one process holds stays the same, however many searches it runs and however they end."""

    def test_searches_in_one_process(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        (tmp_path / "temporary").mkdir()
        monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "temporary"))
        sizes = []
        for i in range(10):
            small_search(tmp_path / str(i) / "run", n_trials=2, max_epochs=2).run()
            sizes.append(held())
        files, threads, n_bytes = zip(*sizes)
        assert len(set(files[3:])) == len(set(threads[3:])) == 1
        assert n_bytes[-1] - n_bytes[5] < 4 << 20, "the first searches load libraries and fill caches"
        assert not list((tmp_path / "temporary").iterdir())

    def test_searches_that_end_in_an_error_or_are_dropped(self, tmp_path: Path) -> None:
        small_search(tmp_path / "run", n_trials=2).run()
        before, errors = held()[0], []
        for i in range(4):
            with pytest.raises(ConfigError) as caught:
                small_search(tmp_path / "run", n_trials=2).run(extend={"n_trials": 1})
            errors.append(caught)  # an error that is kept keeps the frames in which it was raised
            with pytest.raises(LookupError) as other:
                small_search(tmp_path / "watched", n_trials=2).run(callbacks=[OnChange(failing)])
            errors.append(other)
            asked = small_search(tmp_path / f"asked-{i}", n_trials=2)
            assert asked.ask() is not None
            del asked
        assert held()[0] == before


def failing(*given: object) -> None:
    raise LookupError("a mistake of the watcher")


def held() -> tuple[int, int, int]:
    """Open files, threads and resident bytes of this process."""
    gc.collect()
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    files, threads = (len(list(Path(f"/proc/self/{name}").iterdir())) for name in ("fd", "task"))
    return files, threads, pages * resource.getpagesize()
