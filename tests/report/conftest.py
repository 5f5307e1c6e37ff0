"""Run folders that several tests look at; nobody changes them."""

from __future__ import annotations

from pathlib import Path

import pytest

from report.runs import MISHAPS, write_run


@pytest.fixture(scope="session")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "finished"
    write_run(folder, faults=MISHAPS)
    return folder


@pytest.fixture(scope="session")
def running(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """In the middle of round 2, two trials on their way, three models, a hostile name."""
    folder = tmp_path_factory.mktemp("runs") / "running"
    write_run(folder, n_ended=70, faults=MISHAPS, models="complex,rotate,transe", name="<script>alert(1)</script>")
    return folder


@pytest.fixture(scope="session")
def failed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "failed"
    write_run(folder, n_trials=8, faults={(1, i): ["error"] for i in range(8)})
    return folder
