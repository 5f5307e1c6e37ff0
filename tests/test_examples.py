"""`make demo` runs, with a smaller search."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

DEMO = Path(__file__).parents[1] / "examples" / "demo.py"


@pytest.mark.slow
def test_the_demo_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture) -> None:
    spec = importlib.util.spec_from_file_location("demo", DEMO)
    assert spec is not None and spec.loader is not None
    demo = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(demo)
    monkeypatch.setattr(demo, "SEARCH", "--dim 8 --epochs 4 --n-trials 4 --engine sequential")
    monkeypatch.chdir(tmp_path)
    demo.demo()
    printed = capsys.readouterr().out
    assert printed.count("(true: ") > 6 and "report.html in a browser" in printed
