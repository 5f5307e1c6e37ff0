"""A served model with types, hostile names and known facts, on a real server in a thread."""

from __future__ import annotations

import http.client
import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest

import grash
from grash.api.model import Model
from small_graph import model_of

pytest.importorskip("fastapi", reason="fastapi is an extra")
from grash.serve.server import ModelServer  # noqa: E402
from grash.serve.service import Service  # noqa: E402

HOSTILE = "<img src=x onerror=document.documentElement.dataset.hacked=1>"
CITIES = ["Lima", "Cusco", "Rome", "Milan", "Bristol", "Oslo", "=2+2", "\x1b[31mred"]
COUNTRIES = ["Peru", "Italy", "United Kingdom", "Norway", HOSTILE]


def places() -> Model:
    """Cities in countries, with types; every name is on both sides of some triple."""
    facts = [(city, "located_in", COUNTRIES[i % 5]) for i, city in enumerate(CITIES)]
    facts += [(city, "rdf:type", "City") for city in CITIES] + [
        (country, "rdf:type", "Country") for country in COUNTRIES
    ]
    facts += [(CITIES[i], "near", CITIES[(i + 1) % 8]) for i in range(8)]
    graph = grash.from_triples(
        facts, valid=[("Lima", "near", "Rome")], test=[("Oslo", "located_in", "Norway")], name="places"
    )
    return model_of(graph, "complex", dim=8)


@dataclass(frozen=True)
class Reply:
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


@dataclass(frozen=True)
class Client:
    port: int

    def get(self, path: str, headers: dict[str, str] | None = None, **parameters: Any) -> Reply:
        query = urlencode({k: str(v).lower() if isinstance(v, bool) else v for k, v in parameters.items()})
        return self.send("GET", f"{path}?{query}" if query else path, None, headers)

    def post(self, path: str, content: Any, headers: dict[str, str] | None = None) -> Reply:
        body = content if isinstance(content, bytes) else json.dumps(content).encode()
        return self.send("POST", path, body, {"Content-Type": "application/json", **(headers or {})})

    def send(self, method: str, path: str, body: bytes | None = None, headers: dict[str, str] | None = None) -> Reply:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)
        try:
            connection.request(method, path, body, headers or {})
            reply = connection.getresponse()
            return Reply(reply.status, {k.lower(): v for k, v in reply.getheaders()}, reply.read())
        finally:
            connection.close()


@pytest.fixture(scope="session")
def model_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("served") / "model"
    places().save(folder)
    return folder


@contextmanager
def serving(service: Service, token: str | None = None) -> Iterator[Client]:
    server = ModelServer(lambda: service, 0, token=token)
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    try:
        while (health := Client(server.port).get("/health")).status == 503 and health.json["code"] == "loading":
            time.sleep(0.01)
        yield Client(server.port)
    finally:
        server.stop()
        thread.join(1)  # the thread ends with the process anyway; test_application.py tests that the command stops


@pytest.fixture(scope="session")
def client(model_path: Path) -> Iterator[Client]:
    with serving(Service.load(model_path, "cpu")) as served:
        yield served
