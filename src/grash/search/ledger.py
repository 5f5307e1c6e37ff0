"""ledger.jsonl: the truth about a search. Append-only, one writer, one fsynced line per change of state.

Every line is a JSON object with `event` and, last, `sum`: the CRC-32 of the rest of the line. A last line that was
torn by a crash is cut off when the ledger is opened; damage anywhere else is refused: what follows cannot be trusted.
The events and their fields: docs/reference/run-folder.md.
"""

from __future__ import annotations

import json
import logging
import os
import zlib
from pathlib import Path
from typing import Any

from grash.errors import FormatError, OutputError

SCHEMA, VERSION = "grash-ledger", 1
LEDGER_FILE = "ledger.jsonl"
Event = dict[str, Any]
_log = logging.getLogger(__name__)


class Ledger:
    """The ledger of a run folder, open for appending. The folder's lock makes sure that there is one writer."""

    def __init__(self, folder: Path) -> None:
        self.path = Path(folder) / LEDGER_FILE
        self.events = read_ledger(self.path, repair=True) if self.path.exists() else []
        try:
            self._file = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)
        except OSError as error:
            raise OutputError(self.path, error.strerror or str(error)) from error

    def write(self, event: str, **fields: Any) -> Event:
        """Appends one event; it is on disk when this returns."""
        entry = {"event": event, **fields}
        line = encode(entry)
        try:
            written = os.write(self._file, line)
            if written < len(line):  # a disk that fills up takes the beginning
                raise OSError(28, os.strerror(28))
            os.fsync(self._file)
        except OSError as error:
            then = "The search stops here and goes on with `grash resume` once there is room."
            raise OutputError(self.path, error.strerror or str(error), then=then) from error
        self.events.append(entry)
        return entry

    def close(self) -> None:
        os.close(self._file)


def read_ledger(path: Path, *, repair: bool = False) -> list[Event]:
    """All events. A torn last line is left out, and cut off the file with `repair`."""
    content = Path(path).read_bytes()
    lines = content.split(b"\n")
    events: list[Event] = []
    good = 0
    for number, line in enumerate(lines[:-1], 1):
        event = decode(line)
        if event is None:
            if number == len(lines) - 1 and not lines[-1]:
                break  # the last line is complete but wrong: torn while it was written
            raise FormatError(
                f"{path}, line {number}: the line is damaged, and what follows it cannot be trusted. Put back a copy "
                f"of the file, or cut it before that line (`head -n {number - 1}`) to go on from there."
            )
        events.append(event)
        good += len(line) + 1
    if good < len(content):
        _log.warning("%s: its last line was torn by a crash and is left out.", path)
        if repair:
            _truncate(path, good)
    _check_version(path, events)
    return events


def encode(event: Event) -> bytes:
    """The line of an event, its sum and newline included."""
    body = json.dumps(event, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return f'{body[:-1]},"sum":"{zlib.crc32(body.encode()):08x}"}}\n'.encode()


def decode(line: bytes) -> Event | None:
    """The event of a line (without newline); None if it is damaged."""
    body, mark, rest = line.rpartition(b',"sum":"')
    if not mark or rest != f'{zlib.crc32(body + b"}"):08x}"}}'.encode():
        return None
    event = json.loads(body + b"}")
    return event if isinstance(event, dict) and "event" in event else None


def _check_version(path: Path, events: list[Event]) -> None:
    if not events:
        return
    first = events[0]
    if first.get("schema") != SCHEMA:
        raise FormatError(f"{path} is no ledger of a search: its first line does not say {SCHEMA}.")
    if first.get("version") != VERSION:
        raise FormatError(
            f"{path} is a ledger of version {first.get('version')}, and this grash reads version {VERSION}: use the "
            f"grash that wrote it."
        )


def _truncate(path: Path, size: int) -> None:
    try:
        with Path(path).open("r+b") as file:
            file.truncate(size)
            os.fsync(file.fileno())
    except OSError as error:
        raise OutputError(path, error.strerror or str(error)) from error
