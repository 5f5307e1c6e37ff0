"""What tests of engines share: one thread for trials, and the plain engine's runs to compare with."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from engines.searches import small_search


@pytest.fixture
def one_thread(one_thread: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Here and in processes that are started."""
    monkeypatch.setenv("OMP_NUM_THREADS", "1")


@pytest.fixture(scope="session")
def sequential(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The run folder of the plain engine, by what is changed."""
    done: dict[str, Path] = {}

    def run(**changes: Any) -> Path:
        name = repr(sorted(changes.items()))
        if name not in done:
            done[name] = tmp_path_factory.mktemp("sequential") / "run"
            small_search(done[name], **changes).run()
        return done[name]

    return run
