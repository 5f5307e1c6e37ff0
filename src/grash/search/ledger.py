"""ledger.jsonl: the truth about a search. Append-only, one writer, one fsynced line per change of state.

Every line is a JSON object with `event` and, last, `sum`: the CRC-32 of the rest of the line, begun with the sum of the
line before, so that a line that is missing is noticed like one that is wrong. A last line that was torn by a crash is
cut off when the ledger is opened; damage anywhere else is refused: what follows cannot be trusted.
The events and their fields: docs/reference/run-folder.md.
"""

from __future__ import annotations

import json
import logging
import os
import zlib
from contextlib import suppress
from pathlib import Path
from typing import Any

from grash.errors import FormatError, InputError, OutputError
from grash.files import sync_folder

SCHEMA, VERSION = "grash-ledger", 1
LEDGER_FILE = "ledger.jsonl"
_SYNCED_LATER = (
    "started",
)  # nothing follows from it for one who goes on; a sync takes 4 ms, half of all that a trial costs
Event = dict[str, Any]
_log = logging.getLogger(__name__)


class Ledger:
    """The ledger of a run folder, open for appending. The folder's lock makes sure that there is one writer."""

    def __init__(self, folder: Path) -> None:
        self.path = Path(folder) / LEDGER_FILE
        self.events, self._sum = _read(self.path, repair=True) if self.path.exists() else ([], 0)
        try:
            self._file = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)
            sync_folder(self.path.parent)
        except OSError as error:
            raise OutputError(self.path, error.strerror or str(error)) from error

    def write(self, event: str, **fields: Any) -> Event:
        """Appends one event; it is on disk when this returns (that a trial has started, with the next line)."""
        entry = {"event": event, **fields}
        line, total = encode(entry, self._sum)
        size = os.fstat(self._file).st_size
        try:
            written = os.write(self._file, line)
            if written < len(line):  # a disk that fills up takes the beginning
                raise OSError(28, os.strerror(28))
            if event not in _SYNCED_LATER:
                os.fsync(self._file)
        except OSError as error:
            with suppress(OSError):  # the next line must not begin in the middle of this one
                os.ftruncate(self._file, size)
            then = "The search stops here and goes on with `grash resume` once there is room."
            raise OutputError(self.path, error.strerror or str(error), then=then) from error
        self.events.append(entry)
        self._sum = total
        return entry

    def close(self) -> None:
        os.close(self._file)


def read_ledger(path: Path, *, repair: bool = False) -> list[Event]:
    """All events. A torn last line is left out, and cut off the file with `repair`."""
    return _read(path, repair=repair)[0]


def _read(path: Path, *, repair: bool) -> tuple[list[Event], int]:
    """All events, and the sum of the last."""
    try:
        content = Path(path).read_bytes()
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror or error}.") from error
    lines = content.split(b"\n")
    events: list[Event] = []
    good = total = 0
    for number, line in enumerate(lines[:-1], 1):
        found = decode(line, total)
        if found is None:
            if number == len(lines) - 1 and not lines[-1]:
                break  # the last line is complete but wrong: torn while it was written
            raise FormatError(
                f"{path}, line {number}: the line is damaged, or one before it is missing, and what follows cannot be "
                f"trusted. Put back a copy of the file, or cut it before that line (`head -n {number - 1}`) to go on "
                f"from there."
            )
        event, total = found
        events.append(event)
        good += len(line) + 1
    _check_version(path, events)
    if good < len(content):
        _log.warning("%s: its last line was torn by a crash and is left out.", path)
        if repair:
            _truncate(path, good)
    return events, total


def encode(event: Event, before: int = 0) -> tuple[bytes, int]:
    """The line of an event, its sum and newline included, and that sum. before: the sum of the line before."""
    body = json.dumps(event, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode()
    total = zlib.crc32(body, before)
    return body[:-1] + f',"sum":"{total:08x}"}}\n'.encode(), total


def decode(line: bytes, before: int = 0) -> tuple[Event, int] | None:
    """The event of a line (without newline) and its sum; None if it is damaged or does not follow that line."""
    body, mark, rest = line.rpartition(b',"sum":"')
    total = zlib.crc32(body + b"}", before)
    if not mark or rest != f'{total:08x}"}}'.encode():
        return None
    event = json.loads(body + b"}")
    return (event, total) if isinstance(event, dict) and "event" in event else None


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
