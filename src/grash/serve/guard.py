"""The gate in front of the application: hosts, token, size and speed of bodies, security headers, and counting.

It is an ASGI middleware without dependencies. A request that fails is answered here, with a sentence and a code in
JSON, before anything of it is parsed.
"""

from __future__ import annotations

import asyncio
import hmac
import json
import resource
import time
from collections import Counter
from pathlib import Path
from typing import Any

MAX_BODY = 1 << 20  # bytes
BODY_SECONDS = 10.0  # a slower body is refused
OPEN = ("/", "/health", "/docs", "/openapi.json")  # no data of the model: no token needed
_HOSTS = {b"127.0.0.1", b"localhost", b"[::1]"}
_BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0)
_HEADERS = [
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"x-frame-options", b"DENY"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"cache-control", b"no-store"),
]


class Metrics:
    """Counters of a server, as text for Prometheus."""

    def __init__(self) -> None:
        self.requests: Counter[tuple[str, int]] = Counter()
        self.seconds: Counter[float] = Counter()
        self.total_seconds = 0.0
        self.questions = self.batches = 0

    def count_batch(self, n_questions: int) -> None:
        self.batches += 1
        self.questions += n_questions

    def count_request(self, route: str, status: int, seconds: float) -> None:
        self.requests[route, status] += 1
        self.seconds[next((b for b in _BUCKETS if seconds <= b), float("inf"))] += 1
        self.total_seconds += seconds

    def text(self, waiting: int) -> str:
        lines = ["# HELP grash_requests_total Requests by route and status.", "# TYPE grash_requests_total counter"]
        for (route, status), n in sorted(self.requests.items()):
            lines.append(f'grash_requests_total{{route="{route}",status="{status}"}} {n}')
        lines += ["# HELP grash_request_seconds Time to answer.", "# TYPE grash_request_seconds histogram"]
        so_far = 0
        for bound in (*_BUCKETS, float("inf")):
            so_far += self.seconds[bound]
            name = "+Inf" if bound == float("inf") else f"{bound:g}"
            lines.append(f'grash_request_seconds_bucket{{le="{name}"}} {so_far}')
        lines += [f"grash_request_seconds_sum {self.total_seconds:.6f}", f"grash_request_seconds_count {so_far}"]
        for name, kind, help, value in (
            ("grash_questions_total", "counter", "Questions answered.", self.questions),
            ("grash_batches_total", "counter", "Ranking calls.", self.batches),
            ("grash_waiting_questions", "gauge", "Questions that wait for a batch.", waiting),
            ("process_cpu_seconds_total", "counter", "CPU time.", round(time.process_time(), 3)),
            ("process_resident_memory_bytes", "gauge", "Resident memory.", _resident_bytes()),
            ("process_open_fds", "gauge", "Open file handles.", _open_handles()),
        ):
            lines += [f"# HELP {name} {help}", f"# TYPE {name} {kind}", f"{name} {value}"]
        return "\n".join(lines) + "\n"


class Guard:
    """Wraps an ASGI application; see the head of this file."""

    def __init__(self, app: Any, metrics: Metrics, token: str | None) -> None:
        self._app, self._metrics = app, metrics
        self._token = None if token is None else token.encode()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        began, status = time.monotonic(), 500

        async def send_with_headers(message: Any) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                given = {name for name, _ in message.get("headers", [])}
                extra = [header for header in _HEADERS if header[0] not in given]
                message = {**message, "headers": [*message.get("headers", []), *extra]}
            await send(message)

        try:
            if (refusal := self._refusal(scope)) is not None:
                await _refuse(send_with_headers, *refusal)
                return
            if _has_body(scope):
                body = await _read(receive, _content_length(scope))
                if isinstance(body, tuple):
                    await _refuse(send_with_headers, *body)
                    return
                receive = _replayed(body, receive)
            await self._app(scope, receive, send_with_headers)
        finally:
            route = getattr(scope.get("route"), "path", None)
            self._metrics.count_request(route if isinstance(route, str) else "other", status, time.monotonic() - began)

    def _refusal(self, scope: Any) -> tuple[int, str, str] | None:
        headers = dict(reversed(scope["headers"]))
        host = (
            headers.get(b"host", b"").rsplit(b":", 1)[0] if not headers.get(b"host", b"").endswith(b"]") else b"[::1]"
        )
        if host.lower() not in _HOSTS:  # another site's name that points to this machine (DNS rebinding)
            return 400, "wrong_host", "This server answers requests to localhost and 127.0.0.1 only."
        if self._token is None or scope["path"] in OPEN:
            return None
        given = headers.get(b"authorization", b"")
        if hmac.compare_digest(given, b"Bearer " + self._token):
            return None
        what = "The token is wrong" if given.startswith(b"Bearer ") else "This server needs its token"
        return 401, "token_needed", f"{what}: send the header 'Authorization: Bearer TOKEN'."


async def _read(receive: Any, expected: int) -> bytes | tuple[int, str, str]:
    """Return the body, or the reason to refuse it. At most MAX_BODY bytes are kept."""
    too_large = (413, "body_too_large", f"The body is larger than {MAX_BODY:,} bytes: send fewer questions at a time.")
    if expected > MAX_BODY:
        return too_large
    body = bytearray()
    deadline = asyncio.get_running_loop().time() + BODY_SECONDS
    while True:
        try:
            left = deadline - asyncio.get_running_loop().time()
            message = await asyncio.wait_for(receive(), max(left, 0.001))
        except asyncio.TimeoutError:
            return 408, "too_slow", f"The body did not arrive within {BODY_SECONDS:g} seconds."
        if message["type"] == "http.disconnect":
            return bytes(body)
        body += message.get("body", b"")
        if len(body) > MAX_BODY:
            return too_large
        if not message.get("more_body", False):
            return bytes(body)


def _replayed(body: bytes, receive: Any) -> Any:
    """Return a `receive` that gives the body that was read, then what comes later."""
    sent = False

    async def again() -> Any:
        nonlocal sent
        if sent:
            return await receive()
        sent = True
        return {"type": "http.request", "body": body, "more_body": False}

    return again


async def _refuse(send: Any, status: int, code: str, message: str) -> None:
    content = json.dumps({"code": code, "message": message}).encode()
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(content)).encode())]
    if status in (408, 413):
        headers.append((b"connection", b"close"))
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": content})


def _has_body(scope: Any) -> bool:
    return any(name in (b"content-length", b"transfer-encoding") for name, _ in scope["headers"])


def _content_length(scope: Any) -> int:
    value = dict(scope["headers"]).get(b"content-length", b"0")
    return int(value) if value.isdigit() and len(value) < 20 else 0


def _resident_bytes() -> int:
    try:
        pages = Path("/proc/self/statm").read_text(encoding="ascii").split()[1]
        return int(pages) * resource.getpagesize()
    except (OSError, IndexError, ValueError):  # not Linux
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def _open_handles() -> int:
    try:
        return sum(1 for _ in Path("/proc/self/fd").iterdir())
    except OSError:
        return 0
