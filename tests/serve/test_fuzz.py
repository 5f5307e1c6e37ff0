"""A small part of the fuzzing of the REST service; `python tests/serve/fuzz.py 10000` runs the whole."""

from __future__ import annotations

import pytest

from grash.serve import server
from serve.conftest import Client
from serve.fuzz import fuzz


def test_random_requests_get_answers_or_sentences(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(server, "HEAD_SECONDS", 0.3)
        statuses = fuzz(client.port, 400, seed=1)
    assert statuses["200"] > 40 and statuses["400"] > 40 and statuses["404"] > 20
    assert client.get("/api/ask", head="Lima", relation="near").status == 200
