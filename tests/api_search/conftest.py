"""What tests of grash.Search share: one thread, and a finished search that nobody changes."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from engines.searches import small_search
from grash.api_result import SearchResult


@pytest.fixture(autouse=True)
def one_thread() -> Any:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def finished(tmp_path_factory: pytest.TempPathFactory) -> SearchResult:
    return small_search(tmp_path_factory.mktemp("finished") / "run").run()
