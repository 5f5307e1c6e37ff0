"""Faults of the machine, as a user meets them: little address space, clocks that jump, full disks, leaks."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
TINY = ("--dim", "8", "--device", "cpu", "--epochs", "2")


def grash(*arguments: object, code: str = "", limits: dict[int, int] | None = None) -> subprocess.CompletedProcess[str]:
    """Run the command line in a new process, after this code and with these resource limits."""
    program = f"{code}\nimport sys; from grash.cli import main; sys.exit(main(sys.argv[1:]))"

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


class TestAddressSpace:
    """`ulimit -v`: below 1.15 GiB libraries abort the process or raise what only a debugger explains."""

    @pytest.mark.parametrize("gib", [0.3, 0.9, 1.1])
    def test_too_little_of_it_is_a_sentence(self, tmp_path: Path, gib: float) -> None:
        ran = grash("train", "world", *TINY, "--out", tmp_path / "m", limits={resource.RLIMIT_AS: int(gib * 2**30)})
        assert ran.returncode == 3 and "Traceback" not in ran.stderr
        assert "The address space of this process is limited to" in ran.stderr and "Raise the limit." in ran.stderr

    def test_enough_of_it_is_no_fault(self, tmp_path: Path) -> None:
        ran = grash("search", "world", *TINY, "--n-trials", 2, "--engine", "sequential", "--out", tmp_path / "run",
                    limits={resource.RLIMIT_AS: 2 << 30})  # fmt: skip
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
