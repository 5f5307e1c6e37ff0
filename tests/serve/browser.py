"""Chromium driven over its DevTools protocol: open pages, click, type, take pictures, and collect console messages."""

from __future__ import annotations

import base64
import json
import os
import re
import socket
import struct
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from browsers import CHROMIUM


class WebSocket:
    """As much of RFC 6455 as a local DevTools connection needs."""

    def __init__(self, address: str) -> None:
        match = re.fullmatch(r"ws://([\d.]+):(\d+)(/.*)", address)
        assert match is not None, address
        host, port, path = match.groups()
        self.socket = socket.create_connection((host, int(port)), 30)
        key = base64.b64encode(os.urandom(16)).decode()
        head = f"GET {path} HTTP/1.1\r\nHost: {host}:{port}\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
        self.socket.sendall(f"{head}Sec-WebSocket-Key: {key}\r\nSec-WebSocket-Version: 13\r\n\r\n".encode())
        self.buffer = b""
        while b"\r\n\r\n" not in self.buffer:
            self.buffer += self.socket.recv(4096)
        assert b" 101 " in self.buffer
        self.buffer = self.buffer.split(b"\r\n\r\n", 1)[1]

    def send(self, text: str) -> None:
        data, mask = text.encode(), os.urandom(4)
        size = len(data)
        length = bytes([0x80 | size]) if size < 126 else b"\xff" + struct.pack("!Q", size)
        repeated = (mask * (size // 4 + 1))[:size]
        masked = (int.from_bytes(data, "big") ^ int.from_bytes(repeated, "big")).to_bytes(size, "big")
        self.socket.sendall(b"\x81" + length + mask + masked)

    def receive(self) -> str:
        message = b""
        while True:
            first, second = self._take(2)
            size = second & 0x7F
            if size >= 126:
                size = int.from_bytes(self._take(2 if size == 126 else 8), "big")
            message += self._take(size)
            if first & 0x80:
                return message.decode()

    def _take(self, n: int) -> bytes:
        while len(self.buffer) < n:
            part = self.socket.recv(1 << 16)
            if not part:
                raise ConnectionError("the browser is gone")
            self.buffer += part
        taken, self.buffer = self.buffer[:n], self.buffer[n:]
        return taken


class Page:
    """A tab. `errors` holds console messages, exceptions and refused loads."""

    def __init__(self, address: str) -> None:
        self.web, self.last, self.session = WebSocket(address), 0, ""
        self.errors: list[str] = []
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self.session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **parameters: Any) -> Any:
        self.last += 1
        content: dict[str, Any] = {"id": self.last, "method": method, "params": parameters}
        if self.session:
            content["sessionId"] = self.session
        self.web.send(json.dumps(content))
        while True:
            message = json.loads(self.web.receive())
            self._note(message)
            if message.get("id") == self.last:
                assert "error" not in message, message
                return message["result"]

    def _note(self, message: dict[str, Any]) -> None:
        about = message.get("params", {})
        if message.get("method") == "Runtime.consoleAPICalled":
            self.errors.append(str([a.get("value") for a in about["args"]]))
        if message.get("method") == "Runtime.exceptionThrown":
            self.errors.append(json.dumps(about["exceptionDetails"])[:500])
        if message.get("method") == "Log.entryAdded":
            self.errors.append(f"{about['entry']['text']} {about['entry'].get('url', '')}")

    def open(self, address: str) -> None:
        self.run("delete document.documentElement?.dataset.ready")
        self.call("Page.navigate", url=address)
        self.wait("document.documentElement?.dataset.ready === 'yes'")

    def run(self, script: str) -> Any:
        found = self.call("Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True)
        assert "exceptionDetails" not in found, found["exceptionDetails"]
        return found["result"].get("value")

    def wait(self, condition: str, seconds: float = 60) -> None:
        deadline = time.monotonic() + seconds
        while not self.run(condition):
            assert time.monotonic() < deadline, (
                f"{condition} did not become true. {self.run('document.body.innerText')}"
            )
            time.sleep(0.03)

    def click(self, selector: str) -> None:
        """Click in the middle of an element, as a pointer does."""
        box = f"(e => (e.scrollIntoView({{block: 'center'}}), e.getBoundingClientRect().toJSON()))({selector})"
        place = self.run(box)
        where = {"x": place["x"] + place["width"] / 2, "y": place["y"] + place["height"] / 2}
        for kind in ("mousePressed", "mouseReleased"):
            self.call("Input.dispatchMouseEvent", type=kind, button="left", clickCount=1, **where)

    def type(self, text: str) -> None:
        for letter in text:
            self.call("Input.dispatchKeyEvent", type="keyDown", text=letter)
            self.call("Input.dispatchKeyEvent", type="keyUp")

    def press(self, key: str) -> None:
        codes = {"Enter": 13, "ArrowDown": 40, "Escape": 27, "Tab": 9, "/": 191}
        text = {"Enter": "\r", "/": "/"}.get(key)
        extra = {"text": text} if text else {}
        self.call("Input.dispatchKeyEvent", type="keyDown", key=key, windowsVirtualKeyCode=codes[key], **extra)
        self.call("Input.dispatchKeyEvent", type="keyUp", key=key, windowsVirtualKeyCode=codes[key])

    def size(self, width: int, height: int) -> None:
        self.call(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 500
        )

    def prefer(self, scheme: str) -> None:
        self.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])

    def picture(self, path: Path) -> None:
        path.write_bytes(base64.b64decode(self.call("Page.captureScreenshot", format="png")["data"]))


@contextmanager
def browser(profile: Path) -> Iterator[Page]:
    assert CHROMIUM is not None
    words = [
        CHROMIUM, "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run",
        "--remote-debugging-port=0", f"--user-data-dir={profile}", "about:blank",
    ]  # fmt: skip
    process = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        file, deadline = profile / "DevToolsActivePort", time.monotonic() + 60
        while not (file.is_file() and file.read_text().count("\n")):
            assert process.poll() is None and time.monotonic() < deadline
            time.sleep(0.05)
        port, path = file.read_text().split("\n")[:2]
        page = Page(f"ws://127.0.0.1:{port}{path}")
        try:
            yield page
        finally:
            page.web.socket.close()
    finally:
        process.terminate()
        process.wait(30)
