"""Random requests at a server: no reply may be a 500, and every refusal is JSON with a code and a sentence.

    python tests/serve/fuzz.py 10000

Requests follow the OpenAPI description with likely, unlikely and broken values, or are raw bytes that are no HTTP.
"""

from __future__ import annotations

import contextlib
import json
import random
import socket
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote_from_bytes

sys.path.insert(0, str(Path(__file__).parents[1]))
PATHS = [
    *["/api/ask"] * 3, "/api/search", "/api/explain", "/api/neighbors", "/api/facts", "/api/model", "/health",
    "/metrics",
    "/", "/docs", "/openapi.json", "/../etc/passwd", "/api/../..", "/%00", "//", "/api/ask/",
]  # fmt: skip
NAMES = [
    "Lima", "Rome", "Oslo", "near", "located_in", "City", "<img src=x>", "=2+2", "?", "", " ", "\x00", "\ud800",
    "a" * 5000, "../../etc/passwd", "Ａ", "𝔸" * 50, "\r\nX: y", "%s%n", "{{7*7}}", "-1", "1e999", "NaN", "null",
]  # fmt: skip
PARAMETERS = [
    "head",
    "relation",
    "tail",
    "k",
    "q",
    "kind",
    "entity",
    "like_known",
    "new_only",
    "answer_type",
    "format",
    "x",
]
VALUES = [
    "1",
    "0",
    "-1",
    "10",
    "1000",
    "1001",
    "9" * 40,
    "1.5",
    "true",
    "false",
    "entity",
    "relation",
    "csv",
    "json",
    "tail",
]


def request(rng: random.Random) -> bytes:
    """Return the bytes of a request."""
    if rng.random() < 0.03:
        return rng.randbytes(rng.randint(0, 300)) + b"\r\n\r\n"
    method = rng.choices(["GET", "POST", "PUT", "DELETE", "OPTIONS", "HEAD", "G ET"], [60, 30, 2, 2, 2, 3, 1])[0]
    path = rng.choice(PATHS)
    given = [f"{rng.choice(PARAMETERS)}={value(rng)}" for _ in range(rng.randint(0, 5))]
    target = f"{path}?{'&'.join(given)}" if given else path
    host = rng.choices(["localhost", "127.0.0.1:80", "evil.example", ""], [90, 5, 4, 1])[0]
    body = body_of(rng) if method == "POST" else b""
    headers = [f"Host: {host}", "Connection: close", *extra_headers(rng)]
    if body or method == "POST":
        headers.append(f"Content-Length: {len(body)}")
    return "\r\n".join([f"{method} {target} HTTP/1.1", *headers, "", ""]).encode("latin-1", "replace") + body


def value(rng: random.Random) -> str:
    if rng.random() < 0.5:
        return rng.choice(VALUES)
    raw = rng.choice(NAMES).encode("utf-8", "surrogatepass") if rng.random() < 0.9 else rng.randbytes(12)
    return quote_from_bytes(raw)


def extra_headers(rng: random.Random) -> Iterator[str]:
    if rng.random() < 0.5:
        yield rng.choice(["Content-Type: application/json", "Content-Type: text/plain", "Content-Type: x/y; charset=q"])
    if rng.random() < 0.1:
        yield rng.choice(
            ["Authorization: Bearer x", "Cookie: a=b", "Range: bytes=0-", "Accept: */*;q=x", "Expect: 100-continue"]
        )


def body_of(rng: random.Random) -> bytes:
    """Return a batch, one with wrong parts, or bytes that are no JSON."""
    kind = rng.random()
    if kind < 0.1:
        return rng.randbytes(rng.randint(0, 200))
    if kind < 0.15:
        return b'{"questions":' + b"[" * rng.randint(1, 50_000)
    anything = [None, True, 0, -1, 1.5, 10**30, "x", [], {}, [[]], "Lima", 1e308]
    questions = []
    for _ in range(rng.choice([0, 1, 2, 3, 1001])):
        parts = {part: rng.choice(NAMES) for part in ("head", "relation", "tail", "x") if rng.random() < 0.5}
        if rng.random() < 0.6:
            parts = {"head": rng.choice(["Lima", "Rome"]), "relation": "near"}
        questions.append(parts if rng.random() < 0.95 else rng.choice(anything))
    batch = {"questions": questions if rng.random() < 0.95 else rng.choice(anything)}
    for name in ("k", "like_known", "new_only", "answer_type", "x"):
        if rng.random() < 0.2:
            batch[name] = rng.choice(anything)
    return json.dumps(batch).encode()


def send(port: int, content: bytes) -> bytes:
    """Return the whole reply; nothing if the server closes the connection."""
    reply = b""
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 30) as connection:
        connection.sendall(content)
        while part := connection.recv(1 << 16):
            reply += part
    return reply


def check(content: bytes, reply: bytes) -> str:
    """Return the status; AssertionError with the request if the reply is no good one."""
    reply = reply.removeprefix(b"HTTP/1.1 100 Continue\r\n\r\n")
    if not reply:
        return "closed"
    head, _, body = reply.partition(b"\r\n\r\n")
    status = head[9:12].decode()
    assert status[0] in "24" or status == "503", (content[:500], reply[:500])
    if status[0] == "4" and b"application/json" in head and not content.startswith(b"HEAD"):
        problem = json.loads(body)
        assert problem["code"] and problem["message"], (content[:500], reply[:500])
    return status


def fuzz(port: int, n: int, seed: int = 0) -> Counter[str]:
    """Send n requests and return how often each status came back."""
    rng, statuses = random.Random(seed), Counter[str]()
    for _ in range(n):
        content = request(rng)
        statuses[check(content, send(port, content))] += 1
    return statuses


def main() -> None:
    from grash.serve import server
    from grash.serve.service import Service
    from serve.conftest import Client, places, serving

    n, began = int(sys.argv[1]), time.monotonic()
    server.HEAD_SECONDS = 1.0  # of bytes that are no complete head
    with serving(Service(places())) as served:
        found = fuzz(served.port, n)
        assert served.get("/api/ask", head="Lima", relation="near").status == 200
        print(json.dumps({"requests": n, "statuses": dict(sorted(found.items())), "threads": threading.active_count()}))
        print(Client(served.port).get("/metrics").body.decode().split("# HELP grash_questions_total")[1])
    print(f"{time.monotonic() - began:.0f} s")


if __name__ == "__main__":
    main()
