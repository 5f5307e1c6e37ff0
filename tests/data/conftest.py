from __future__ import annotations

import pytest

from large_sources import shrink


@pytest.fixture
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    shrink(monkeypatch)
