"""ledger.jsonl: the truth about a search. Append-only, one writer, one fsynced line per change of state.

Every line is a JSON object with `event` and, last, `sum`: the CRC-32 of the rest of the line, begun with the sum of the
line before, so that a line that is missing is noticed like one that is wrong. A last line that was torn by a crash is
cut off when the ledger is opened; damage anywhere else is refused: what follows cannot be trusted.
The events and their fields: docs/reference/run-folder.md.
"""

from __future__ import annotations

import json
import logging
import math
import os
import zlib
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from grash.errors import FormatError, InputError, OutputError
from grash.files import sync_folder
from grash.search.trial import FAULTS, Configuration, Round, TrialResult

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


# = Where a search stands: a fold over the events of its ledger. Deciding and showing both start from here.


@dataclass
class RoundState:
    """One round: its plan, and for each configuration the result that counts and every attempt."""

    plan: Round
    results: dict[int, TrialResult] = field(default_factory=dict)  # settled: ok, or failed for good
    attempts: dict[int, list[TrialResult]] = field(default_factory=dict)
    running: dict[int, dict[str, Any]] = field(default_factory=dict)  # started and not ended: device, at, attempt
    survivors: list[int] | None = None  # once the round is closed

    @property
    def cost(self) -> float:
        return math.fsum(r.cost for r in self.results.values())

    def best(self, count: int, among: Iterable[int] | None = None) -> list[int]:
        """The best configurations so far; of all, or of some that all have a result."""
        results = self.results.values() if among is None else [self.results[n] for n in among]
        return select_best(results, count, self.plan.trend)

    @property
    def seconds(self) -> float:
        return sum(r.seconds for tries in self.attempts.values() for r in tries)


@dataclass
class SearchState:
    settings: dict[str, Any] = field(default_factory=dict)
    dataset: dict[str, Any] = field(default_factory=dict)  # name, fingerprint, counts
    sizes: list[int] = field(default_factory=list)  # trials that enter each round
    planned_trials: int = 1  # of the first round when the search began; fixes the fidelities
    budget: float = 0.0
    configurations: dict[int, Configuration] = field(default_factory=dict)
    rounds: list[RoundState] = field(default_factory=list)
    winner: int | None = None
    finals: dict[int, list[TrialResult]] = field(
        default_factory=dict
    )  # attempts at the final training, by configuration
    modelled: int | None = None  # the configuration that was last trained in full: whose model there is
    final_running: dict[str, Any] | None = None
    finished: bool = False
    failed: str = ""  # why the search ended without a winner
    stopped: str = ""  # why it last stopped before its end
    started_at: str = ""
    seconds: float = 0.0  # of all drivers so far, measured
    max_retries: int = 2

    @classmethod
    def replay(cls, events: Iterable[Event]) -> SearchState:
        state = cls()
        for event in events:
            state.see(event)
        return state

    def see(self, event: Event) -> None:
        """Takes one more event into account."""
        getattr(self, f"_see_{event['event']}")(event)
        self.seconds = max(self.seconds, event.get("elapsed", 0.0))

    def entrants(self, number: int) -> list[int]:
        """The configurations of a round, best of the round before first; all of them in round 1."""
        if number == 1:
            return sorted(self.configurations)[: self.sizes[0]]
        return self.rounds[number - 2].best(self.sizes[number - 1], self.entrants(number - 1))

    def incumbent(self) -> TrialResult | None:
        """The best trial of the highest round that has one."""
        for past in reversed(self.rounds):
            best = past.best(1)
            if best:
                return past.results[best[0]]
        return None

    @property
    def final(self) -> TrialResult | None:
        """The settled final training of the winner."""
        attempts = self.finals.get(self.winner, []) if self.winner is not None and self.winner == self.modelled else []
        return attempts[-1] if attempts and self._settles(attempts[-1], attempts) else None

    @property
    def spent(self) -> float:
        return math.fsum(past.cost for past in self.rounds)

    def _see_search(self, event: Event) -> None:
        self.settings, self.dataset = event["settings"], event["dataset"]
        self.sizes, self.budget = list(event["sizes"]), event["budget"]
        self.planned_trials = self.sizes[0] if self.sizes else 1
        self.max_retries = event["settings"].get("max_retries", self.max_retries)
        self.started_at = event["at"]

    def _see_proposed(self, event: Event) -> None:
        for content in event["configurations"]:
            made = Configuration(**content)
            self.configurations[made.number] = made

    def _see_round(self, event: Event) -> None:
        self.rounds.append(RoundState(Round.from_json(event["plan"])))

    def _see_started(self, event: Event) -> None:
        self.stopped = ""
        if event["round"] == 0:
            self.final_running = event
        else:
            self.rounds[event["round"] - 1].running[event["number"]] = event

    def _see_ended(self, event: Event) -> None:
        result = TrialResult.from_json(event["result"])
        if result.round == 0:
            self.final_running = None
            self.finals.setdefault(result.number, []).append(result)
            self.modelled = result.number
            return
        past = self.rounds[result.round - 1]
        past.running.pop(result.number, None)
        past.attempts.setdefault(result.number, []).append(result)
        if self._settles(result, past.attempts[result.number]):
            past.results[result.number] = result

    def _settles(self, result: TrialResult, attempts: list[TrialResult]) -> bool:
        """Machine faults are tried again; everything else, and a fault that outlasts its retries, stands."""
        return result.status not in FAULTS or sum(r.status in FAULTS for r in attempts) > self.max_retries

    def _see_closed(self, event: Event) -> None:
        self.rounds[event["round"] - 1].survivors = list(event["survivors"])

    def _see_extended(self, event: Event) -> None:
        """More trials or more survivors: rounds that were closed open again, with the fidelities that they had."""
        self.sizes, self.budget = list(event["sizes"]), event["budget"]
        self.settings = {**self.settings, **event["settings"]}
        self.finished, self.winner, self.failed = False, None, ""
        for past in self.rounds:
            past.survivors = None

    def _see_stopped(self, event: Event) -> None:
        self.stopped = event["reason"]
        self._nothing_runs()

    def _see_resumed(self, event: Event) -> None:
        """A search that failed for its machine's faults tries them again: whoever resumes it has seen to that."""
        self.stopped = ""
        self._nothing_runs()
        if not self.failed:
            return
        for attempts in self.finals.values():
            attempts[:] = [r for r in attempts if r.status not in FAULTS]
        for past in self.rounds:
            for n in [n for n, r in past.results.items() if r.status in FAULTS]:
                del past.results[n], past.attempts[n]
        self.finished, self.failed = False, ""

    def _nothing_runs(self) -> None:
        self.final_running = None
        for past in self.rounds:
            past.running = {}

    def _see_won(self, event: Event) -> None:
        self.winner = event["number"]

    def _see_finished(self, event: Event) -> None:
        self.finished, self.failed, self.stopped = True, event.get("failed", ""), ""


def select_best(results: Iterable[TrialResult], count: int, trend: float) -> list[int]:
    """The configurations of the `count` best, by MRR and by how it was still rising (docs/decisions/0033); ties go to
    the cheaper, then to the lower number (D8)."""
    found = [
        (-(r.mrr + trend * r.rise), r.cost, r.scores, r.number)
        for r in results if r.mrr is not None and r.status == "ok"
    ]  # fmt: skip
    return [key[-1] for key in sorted(found)[:count]]
