"""Serves the page while the model is loaded: torch alone takes longer to import than a person likes to wait.

`/` is the page, `/health` reports `loading` with 503, and any other request waits for the model, or for the server to
stop without one. This module imports nothing heavy.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import json
import re
from collections.abc import Callable
from importlib.resources import files
from typing import Any

_PAUSE = 0.02  # seconds between two looks at whether the model is there


class Loading:
    """An ASGI application that passes requests to `app` once there is one; is_stopping: whether there will be none."""

    def __init__(self, is_stopping: Callable[[], bool]) -> None:
        self.app: Any = None
        self._is_stopping = is_stopping
        self._page: tuple[bytes, str] | None = None

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if self.app is None and scope["path"] == "/":
            text, policy = self._page = self._page or home_page()
            extra = [(b"content-security-policy", policy.encode())]
            await _reply(send, 200, b"text/html; charset=utf-8", text, extra)
        elif self.app is None and scope["path"] == "/health":
            content = {"status": "loading", "code": "loading", "message": "The model is being loaded: try again soon."}
            await _reply(send, 503, b"application/json", json.dumps(content).encode(), [(b"retry-after", b"1")])
        else:
            while self.app is None and not self._is_stopping():
                await asyncio.sleep(_PAUSE)
            if self.app is not None:
                await self.app(scope, receive, send)
                return
            content = {"code": "not_loaded", "message": "The server stops, and has not loaded its model."}
            await _reply(send, 503, b"application/json", json.dumps(content).encode(), [])


def home_page() -> tuple[bytes, str]:
    """Return the page and its content security policy."""
    text = files("grash.serve").joinpath("page/page.html").read_text(encoding="utf-8")
    script = files("grash").joinpath("report/template/map.js").read_text(encoding="utf-8")
    text = text.replace("/* map.js */", script)
    return text.encode(), content_security_policy(text)


def content_security_policy(page: str) -> str:
    """Return a policy that allows the scripts and styles of this page and nothing else."""
    hashes = {}
    for tag in ("script", "style"):
        found = re.findall(rf"<{tag}>(.*?)</{tag}>", page, re.DOTALL)
        digests = [base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() for text in found]
        hashes[tag] = " ".join(f"'sha256-{digest}'" for digest in digests) or "'none'"
    return (
        f"default-src 'none'; script-src {hashes['script']}; style-src {hashes['style']}; connect-src 'self'; "
        "img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )


async def _reply(send: Any, status: int, kind: bytes, body: bytes, extra: list[tuple[bytes, bytes]]) -> None:
    headers = [(b"content-type", kind), (b"content-length", str(len(body)).encode()), *extra]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
