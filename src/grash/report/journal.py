"""Optuna's journal file, read and written in one piece: a batch of operations costs one write and no fsync.

The same lines as Optuna's own file backend writes, so that Optuna and optuna-dashboard read it like any journal.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from optuna.storages.journal import BaseJournalBackend

from grash.report.studies import JournalDamaged


class Journal(BaseJournalBackend):
    """Operations are kept in memory until `flush`."""

    def __init__(self, path: Path) -> None:
        self.path = Path(path)
        self._logs: list[dict[str, Any]] = []
        self._pending: list[str] = []
        content = self.path.read_bytes() if self.path.exists() else b""
        if content and not content.endswith(b"\n"):
            raise JournalDamaged("its last line is torn")
        try:
            self._logs = [json.loads(line) for line in content.splitlines()]
        except ValueError as error:
            raise JournalDamaged("a line is damaged") from error
        self._size = len(content)

    def read_logs(self, log_number_from: int) -> list[dict[str, Any]]:
        return self._logs[log_number_from:]

    def append_logs(self, logs: list[dict[str, Any]]) -> None:
        # through JSON, since what Optuna reads back are lists and numbers, not tuples and enums
        lines = [json.dumps(log, separators=(",", ":")) for log in logs]
        self._logs += [json.loads(line) for line in lines]
        self._pending += lines

    def flush(self) -> None:
        """Appends what was collected in one write."""
        if not self._pending:
            return
        content = "".join(f"{line}\n" for line in self._pending).encode()
        file = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)
        try:
            if os.write(file, content) < len(content):
                raise OSError(28, os.strerror(28))
        finally:
            os.close(file)
        self._size += len(content)
        self._pending = []

    def is_current(self) -> bool:
        """Whether the file is as this journal left it; someone else (a note in the dashboard) may have added to it."""
        return self.path.exists() and self.path.stat().st_size == self._size and not self._pending
