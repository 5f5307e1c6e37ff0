"""A small part of the fuzzing of the REST service; `python tests/serve/fuzz.py 10000` runs the whole."""

from __future__ import annotations

from serve.conftest import Client
from serve.fuzz import fuzz


def test_random_requests_get_answers_or_sentences(client: Client) -> None:
    statuses = fuzz(client.port, 400, seed=1)
    assert statuses["200"] > 40 and statuses["400"] > 40 and statuses["404"] > 20
    assert client.get("/api/ask", head="Lima", relation="near").status == 200
