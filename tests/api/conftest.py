"""What tests of grash.Search share: one thread, and a finished search that nobody changes."""

from __future__ import annotations

import pytest

from engines.searches import small_search
from grash.api.search import SearchResult


@pytest.fixture(autouse=True)
def alone(one_thread: None) -> None:
    """Every test has one thread."""


@pytest.fixture(scope="session")
def finished(tmp_path_factory: pytest.TempPathFactory) -> SearchResult:
    return small_search(tmp_path_factory.mktemp("finished") / "run").run()
