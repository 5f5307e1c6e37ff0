"""The views of a running search kept up to date: the report at every barrier, Optuna's journal also in between, and a
line in log.txt for every change.

The ledger stays the truth: what goes wrong here is said, and hides neither a result nor why there is none.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from contextlib import suppress
from datetime import datetime
from pathlib import Path

from grash.engines.drive import Watch
from grash.errors import GrashError
from grash.report.lines import Lines
from grash.report.optuna_view import OptunaView
from grash.report.page import write_report
from grash.report.summary import state_of
from grash.search.state import SearchState
from grash.search.trial import Heartbeat

LOG_FILE = "log.txt"
_EVERY_SECONDS = 15.0
_log = logging.getLogger(__name__)


class Views:
    """Stands between a search and whoever watches it."""

    def __init__(self, folder: Path, watch: Watch | None = None) -> None:
        self.folder, self.watch, self.optuna = Path(folder), watch, OptunaView(folder)
        self._lines = Lines(self._log, of_nothing=False)
        self._closed, self._told = 0, time.monotonic()

    def see(self, state: SearchState, heartbeats: dict[tuple[int, int], Heartbeat], devices: Sequence[str]) -> None:
        if self.watch is not None:
            self.watch(state, heartbeats, devices)
        self._lines.watch(state, heartbeats, devices)
        closed = sum(past.survivors is not None for past in state.rounds)
        if closed == self._closed and time.monotonic() - self._told < _EVERY_SECONDS:
            return
        self.optuna.update(state)
        if closed != self._closed:
            self._report()
        self._closed, self._told = closed, time.monotonic()

    def write(self) -> None:
        """Both, from what the ledger says, if it says anything."""
        try:
            state = state_of(self.folder)
        except GrashError:
            return
        self.optuna.update(state)
        self._report()

    def _log(self, line: str) -> None:
        with suppress(OSError), (self.folder / LOG_FILE).open("a", encoding="utf-8") as file:
            file.write(f"{datetime.now().isoformat(sep=' ', timespec='seconds')}  {line}\n")

    def _report(self) -> None:
        try:
            write_report(self.folder)
        except GrashError as error:
            _log.warning("The report is not up to date: %s", error)
