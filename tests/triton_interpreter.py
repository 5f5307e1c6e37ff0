"""Runs Triton kernels in Triton's interpreter, in a separate process that checks every access (`triton_checked`)."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

needs_triton = pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="Triton is not installed")


def interpret(code: str, *arguments: str) -> None:
    """Run `code` with these arguments, and fail if it fails."""
    done = run_interpreted(code, *arguments)
    assert done.returncode == 0, done.stderr[-4000:]


def run_interpreted(code: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    path = os.pathsep.join(filter(None, [str(Path(__file__).parent), os.environ.get("PYTHONPATH")]))
    environment = {**os.environ, "TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1", "PYTHONPATH": path}
    code = "import triton_checked\n" + code
    return subprocess.run([sys.executable, "-c", code, *arguments], env=environment, capture_output=True, text=True)
