"""A server with the requests of the Hugging Face Hub that push and pull make, for one model repository, in memory."""

from __future__ import annotations

import base64
import hashlib
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

COMMIT = "0123456789abcdef0123456789abcdef01234567"


class FakeHub(ThreadingHTTPServer):
    """files: by path, None while there is no repository; requests: what was asked, for the tests."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.files: dict[str, bytes] | None = None
        self.created: dict[str, Any] = {}
        self.requests: list[str] = []


class _Handler(BaseHTTPRequestHandler):
    server: FakeHub

    def log_message(self, *_: object) -> None:
        pass

    def _answer(self, status: int, content: bytes = b"", **headers: str) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)

    def _json(self, content: Any, status: int = 200) -> None:
        self._answer(status, json.dumps(content).encode(), Content_Type="application/json")

    def do_GET(self) -> None:
        self.server.requests.append(f"{self.command} {self.path}")
        path = self.path.split("?")[0]
        files = self.server.files
        if files is None or not path.startswith(("/api/models/me/world", "/me/world/resolve/")):
            self._answer(404, b"{}", X_Error_Code="RepoNotFound", X_Error_Message="Repository not found")
        elif path.startswith("/me/world/resolve/"):
            name = path.split("/", 5)[5]
            found = files.get(name)
            if found is None:
                self._answer(404, X_Error_Code="EntryNotFound")
            else:
                self._answer(200, found, ETag=f'"{hashlib.sha1(found).hexdigest()}"', X_Repo_Commit=COMMIT)
        elif "/tree/" in path:
            self._json([
                {"type": "file", "path": name, "size": len(content), "oid": hashlib.sha1(content).hexdigest()}
                for name, content in files.items()
            ])  # fmt: skip
        else:
            siblings = [{"rfilename": name, "size": len(content)} for name, content in files.items()]
            self._json({"id": "me/world", "modelId": "me/world", "sha": COMMIT, "private": True, "tags": [],
                        "siblings": siblings})  # fmt: skip

    do_HEAD = do_GET

    def do_POST(self) -> None:
        self.server.requests.append(f"{self.command} {self.path}")
        body = self._body()
        if self.path.endswith("/repos/create"):
            self.server.created = json.loads(body)
            self.server.files = self.server.files or {}
            self._json({"url": f"http://127.0.0.1:{self.server.server_port}/me/world", "id": "me/world"})
        elif "/preupload/" in self.path:
            asked = json.loads(body)["files"]
            self._json({"files": [{"path": f["path"], "uploadMode": "regular", "shouldIgnore": False} for f in asked]})
        elif "/commit/" in self.path:
            assert self.server.files is not None
            for line in body.splitlines():
                entry = json.loads(line)
                if entry["key"] == "file":
                    self.server.files[entry["value"]["path"]] = base64.b64decode(entry["value"]["content"])
            url = f"http://127.0.0.1:{self.server.server_port}/me/world/commit/{COMMIT}"
            self._json({"success": True, "commitOid": COMMIT, "commitUrl": url})
        else:
            self._json({})

    def _body(self) -> bytes:
        if "chunked" not in self.headers.get("Transfer-Encoding", ""):
            return self.rfile.read(int(self.headers.get("Content-Length", 0)))
        parts = []
        while size := int(self.rfile.readline().split(b";")[0], 16):
            parts.append(self.rfile.read(size))
            self.rfile.readline()
        self.rfile.readline()
        return b"".join(parts)


@contextmanager
def fake_hub() -> Iterator[tuple[FakeHub, str]]:
    """Yield the server and its address."""
    with FakeHub() as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        try:
            yield server, f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()
