"""The ledger of a search (ledger.jsonl), and the state of the search that follows from its events.

The ledger is append-only and has one writer. Every line is a JSON object with `event` and, last, `sum`: the CRC-32 of
the rest of the line, started from the sum of the line before, so a missing line is noticed like a damaged one. Opening
a ledger cuts off a last line that a crash left incomplete; any other damage is an error.
docs/reference/run-folder.md describes the events and their fields.
"""

from __future__ import annotations

import errno
import json
import logging
import math
import os
import weakref
import zlib
from collections import Counter
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from grash.errors import FormatError, InputError, OutputError
from grash.files import check_schema, sync_folder
from grash.search.trial import FIXED_LENGTH_SCHEDULES, MACHINE_FAULTS, Configuration, Round, TrialResult

SCHEMA, VERSION = "grash-ledger", 1
LEDGER_FILE = "ledger.jsonl"
FINALIST_MARGIN = 0.04  # relative to the best score of the last round (decision 0043)
# How far behind the best finalist others may be and still advance: after the first comparison, and before the last one
CLOSE_MARGINS = 0.16, 0.04  # decisions 0061 and 0062
MODEL_MARGINS = 0.32, 0.08  # the best one of a model (decision 0065)
LEADER_MARGINS = 1.0, 0.32  # the winner of the last round (decision 0065)
CLOSEST = 3  # finalists that are compared again after more epochs; more only as the best of their models
TO_THE_END = 2  # finalists that are trained in full, likewise
KEPT_BYTES = 4 << 30  # of a finalist's tables and optimizer state; a larger one is not saved, so it cannot continue
# A resumed search does not need to know what had started, and a sync takes 4 ms, half of the overhead of a trial.
_NOT_SYNCED = ("trial_started",)
Event = dict[str, Any]
Models = dict[int, str]  # by configuration
StopReason = Literal["interrupted", "max_seconds"]
_log = logging.getLogger(__name__)


class Ledger:
    """The ledger of a run folder, open for appending. The folder's lock ensures that there is one writer."""

    def __init__(self, folder: Path) -> None:
        self.path = Path(folder) / LEDGER_FILE
        self.events, self._sum = _read(self.path, repair=True) if self.path.exists() else ([], 0)
        try:
            self._file = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)
            self.close = weakref.finalize(self, os.close, self._file)  # also of a search that nobody closes
            sync_folder(self.path.parent)
        except OSError as error:
            raise OutputError(self.path, error.strerror or str(error)) from error

    def write(self, event: str, **fields: Any) -> Event:
        """Append one event and return it; it is on disk then, except for `trial_started`."""
        entry = {"event": event, **fields}
        line, total = encode(entry, self._sum)
        size = os.fstat(self._file).st_size
        try:
            written = os.write(self._file, line)
            if written < len(line):  # a disk that fills up accepts only the beginning
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            if event not in _NOT_SYNCED:
                os.fsync(self._file)
        except OSError as error:
            with suppress(OSError):  # the next line must not start in the middle of this one
                os.ftruncate(self._file, size)
            then = "The search stops here. Free some space, then continue it with `grash resume`."
            raise OutputError(self.path, error.strerror or str(error), then=then) from error
        self.events.append(entry)
        self._sum = total
        return entry


def read_ledger(path: Path, *, repair: bool = False) -> list[Event]:
    """Return all events. An incomplete last line is left out and, with `repair`, cut off the file."""
    return _read(path, repair=repair)[0]


def encode(event: Event, previous_sum: int = 0) -> tuple[bytes, int]:
    """Return the line of an event, with its sum and newline, and that sum."""
    body = json.dumps(event, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode()
    total = zlib.crc32(body, previous_sum)
    return body[:-1] + f',"sum":"{total:08x}"}}\n'.encode(), total


def decode(line: bytes, previous_sum: int = 0) -> tuple[Event, int] | None:
    """Return the event of a line (without newline) and its sum; None if it is damaged or a line before is missing."""
    body, mark, rest = line.rpartition(b',"sum":"')
    total = zlib.crc32(body + b"}", previous_sum)
    if not mark or rest != f'{total:08x}"}}'.encode():
        return None
    event = json.loads(body + b"}")
    return (event, total) if isinstance(event, dict) and "event" in event else None


def _read(path: Path, *, repair: bool) -> tuple[list[Event], int]:
    """Return all events and the sum of the last one."""
    try:
        content = Path(path).read_bytes()
    except OSError as error:
        raise InputError(f"Cannot read {path}: {error.strerror or error}.") from error
    lines = content.split(b"\n")
    events: list[Event] = []
    good = total = 0
    for number, line in enumerate(lines[:-1], 1):
        decoded = decode(line, total)
        if decoded is None:
            if number == len(lines) - 1 and not lines[-1]:
                break  # the last line has its newline but is wrong: a crash interrupted the write
            raise FormatError(
                f"{path}, line {number}: the line is damaged, or a line before it is missing. Restore a copy of the "
                f"file, or keep only the lines before it (`head -n {number - 1}`) to resume from there."
            )
        event, total = decoded
        events.append(event)
        good += len(line) + 1
    for first in events[:1]:
        check_schema(first, path, schema=SCHEMA, version=VERSION)
    if good < len(content):
        _log.warning("%s: ignoring the last line, which a crash left incomplete.", path)
    if good < len(content) and repair:
        try:
            with Path(path).open("r+b") as file:
                file.truncate(good)
                os.fsync(file.fileno())
        except OSError as error:
            raise OutputError(path, error.strerror or str(error)) from error
    return events, total


@dataclass
class RoundState:
    """One round of a search so far."""

    plan: Round
    results: dict[int, TrialResult] = field(default_factory=dict)  # by configuration: the result that counts
    attempts: dict[int, list[TrialResult]] = field(default_factory=dict)  # by configuration: every attempt
    running: dict[int, Event] = field(default_factory=dict)  # by configuration: its `trial_started`
    survivors: list[int] | None = None  # best first; None while the round is open
    before: RoundState | None = field(default=None, repr=False)  # of the first and last comparison of finalists

    @property
    def cost(self) -> float:
        return math.fsum(r.cost for r in self.results.values())

    @property
    def seconds(self) -> float:
        return sum(r.seconds for attempts in self.attempts.values() for r in attempts)

    def score(self, result: TrialResult) -> float:
        """Return what ranks a trial: its MRR, or the metric of the search, plus `trend` times its rise (decision 0033).

        Of a finalist in the first comparison: its score in the last round times its MRR on the full graph, divided by
        its MRR on the last round's graph after the same number of epochs, so that a slow start cancels (decision 0043).
        Of one that was trained to the end: its best MRR, which may be that of the training that it continued (0062). If
        the time was over before one of them ended, only up to the epoch that it reached.
        """
        value = result.value or 0.0
        if self.before is None or result.number not in self.before.results:
            return value + self.plan.trend * result.rise
        earlier = self.before.results[result.number]
        if self.plan.to_the_end:
            found = [value] if self.cut_at is None else result.values_until(self.cut_at)
            if result.epochs_before:
                return max([*found, earlier.value or 0.0])
            return max(found or [result.value_at(0.0) or 0.0])
        then = earlier.value_at(self.plan.epochs)
        return self.before.score(earlier) * (value / then if then else 1.0)

    @property
    def cut_at(self) -> float | None:
        """The epoch up to which finalists are compared, if the time was over before one of them was trained."""
        return min((r.history[-1]["epoch"] for r in self.results.values() if r.out_of_time), default=None)

    def ended_at(self, number: int) -> float:
        """Return the epochs after which a training ended: as planned, or earlier if it was to be trained to the end."""
        history = self.results[number].history if self.plan.to_the_end else []
        return min(self.plan.epochs, history[-1]["epoch"]) if history else self.plan.epochs

    def best(self, count: int, among: Iterable[int] | None = None, models: Models | None = None) -> list[int]:
        """Return the best configurations, best first; `among` restricts to some that all have a result.

        models: of the configurations; every model then gets the same number of places, as far as it has trials
        (decision 0050).
        """
        results = self.results.values() if among is None else [self.results[n] for n in among]
        ordered = select_best(results, len(results), self.score)
        if models is None or count == 1:
            return ordered[:count]
        seen: Counter[str] = Counter()
        places = {}  # how many of the same model are better
        for n in ordered:
            places[n] = seen[models[n]]
            seen[models[n]] += 1
        chosen = set(sorted(ordered, key=places.__getitem__)[:count])  # stable: of equal places, the best score first
        return [n for n in ordered if n in chosen]

    def close(self, count: int, among: list[int], models: Models, leader: int | None) -> list[int]:
        """Return the configurations that may still win after a comparison on the full graph, best first: the best of
        every model and the leader of the last round unless they are far behind, then others that are close to the best.

        Only the first, if training to the end is next and all of them were better before: it would not change that.
        """
        is_first = self.plan.compares_finalists and not self.plan.continues
        best, stage = self.best(len(among), among), 0 if is_first else 1
        scores, first = {n: self.score(self.results[n]) for n in best}, {models[n]: n for n in reversed(best)}.values()

        def is_close(n: int, margins: tuple[float, float]) -> bool:
            return scores[n] >= (1 - margins[stage]) * scores[best[0]]

        kept = {n for n in first if is_close(n, MODEL_MARGINS)}
        kept.update(n for n in best if n == leader and is_close(n, LEADER_MARGINS))
        others = [n for n in best if n not in kept and is_close(n, CLOSE_MARGINS)]
        kept.update(others[: max(0, count - len(kept))])
        found = [n for n in best if n in kept]
        return found if is_first or any(self.results[n].ends_at_best for n in found) else found[:1]

    def finalists(self, count: int, among: Iterable[int], models: Models) -> list[int]:
        """Return the best configuration of every model, and those whose scores are close to the best of all."""
        best = self.best(count, among, models)
        scores = {n: self.score(self.results[n]) for n in best}
        first = {models[n]: n for n in reversed(best)}.values()
        return [n for n in best if n in first or scores[n] >= (1 - FINALIST_MARGIN) * scores[best[0]]]


@dataclass
class SearchState:
    """Everything that is known about a search: its events, applied one by one."""

    settings: dict[str, Any] = field(default_factory=dict)
    dataset: dict[str, Any] = field(default_factory=dict)  # name, fingerprint, counts
    sizes: list[int] = field(default_factory=list)  # number of trials of each round
    planned_trials: int = 1  # trials of the first round before any extension; the fidelities follow from it
    planned_sizes: list[int] = field(default_factory=list)  # `sizes` before they were changed to end in time
    budget: float = 0.0
    configurations: dict[int, Configuration] = field(default_factory=dict)  # by number
    rounds: list[RoundState] = field(default_factory=list)
    winner: int | None = None
    finals: dict[int, list[TrialResult]] = field(default_factory=dict)  # final trainings: attempts by configuration
    last_trained: int | None = None  # the configuration whose final training ended last
    final_running: Event | None = None  # `trial_started` of the final training
    finished: bool = False
    failed: str = ""  # why the search ended without a winner or a model
    stopped: StopReason | None = None  # why it stopped before its end
    started_at: str = ""
    seconds: float = 0.0  # that all drivers have run so far
    max_retries: int = 2
    time_plan: Event = field(default_factory=dict)  # `time_planned`: what a time limit chose, and the measured speeds
    time_limit: float | None = None  # value of `seconds` at which the time is over
    time_given: float = 0.0  # seconds of the time, or of the one that replaced what was left of it, if shorter
    changes: list[str] = field(default_factory=list)  # what was changed to end in time, in sentences
    changed_after: int = 0  # the round after which the rounds were changed last
    shares: dict[int, float] = field(default_factory=dict)  # by round: factor on its budget, to end in time
    final_epochs: float | None = None  # of the final training, if a time limit decides
    final_continues: bool = False  # what finalists were trained to, although a validation before was better
    final_began: float = 0.0  # value of `seconds` at which the final training started last

    @classmethod
    def replay(cls, events: Iterable[Event]) -> SearchState:
        """Return the state after these events."""
        state = cls()
        for event in events:
            state.apply(event)
        return state

    def apply(self, event: Event) -> None:
        """Update the state by one event."""
        getattr(self, f"_on_{event['event']}")(event)
        self.seconds = max(self.seconds, event.get("elapsed", 0.0))

    def entrants(self, number: int) -> list[int]:
        """Return the configurations that enter a round, best of the round before first."""
        if number == 1:
            return sorted(self.configurations)[: self.first_size]
        return self.survivors(number - 1, self.entrants(number - 1))

    @property
    def first_size(self) -> int:
        """Number of trials of the first round; there are no sizes any more if none of them ended in time."""
        return (self.sizes or self.planned_sizes)[0]

    def survivors(self, number: int, entrants: list[int]) -> list[int]:
        """Return the configurations that advance from a round whose trials have all ended, best first."""
        past = self.rounds[number - 1]
        n_survivors = self.sizes[number] if number < len(self.sizes) else 1
        models = {n: self.configurations[n].values.get("model", "") for n in entrants}
        if past.plan.is_comparison:
            next_is_last = past.plan.before_finalists or past.plan.continues
            finalists = next((r.survivors for r in self.rounds if r.plan.before_finalists), None)
            leader = finalists[0] if finalists else None
            return past.close(TO_THE_END if next_is_last else CLOSEST, entrants, models, leader)[:n_survivors]
        return (past.finalists if past.plan.before_finalists else past.best)(n_survivors, entrants, models)

    def incumbent(self) -> TrialResult | None:
        """Return the best trial of the highest round that has one."""
        past = self.last_scored()
        return None if past is None else past.results[past.best(1)[0]]

    def last_scored(self) -> RoundState | None:
        """Return the highest round that has a score, without trials whose places an extension gave to others."""
        for before, past in zip([*reversed(self.rounds[:-1]), None], reversed(self.rounds)):
            if before is not None and before.survivors is not None:
                entered = {n: past.results[n] for n in before.survivors if n in past.results}
                past = replace(past, results=entered)
            if past.best(1):
                return past
        return None

    def last_comparison(self, number: int) -> RoundState | None:
        """Return the last comparison on the full graph in which this configuration has a score; its state may be
        saved."""
        for past in reversed(self.rounds):
            if past.plan.is_comparison and number in past.best(len(past.results)):
                return past
        return None

    def continued_by_final(self, number: int) -> RoundState | None:
        """Return the comparison from whose saved state the final training of a configuration continues.

        None if it starts again: there is no such state, a validation before it was better, and those weights are not in
        it, or the learning rate depends on the length of a training. A training to the end saves its best weights, too;
        they are kept if the time is too short to start again.
        """
        last = self.last_comparison(number)
        if last is None or last.plan.to_the_end:
            return last if last is None or self.final_continues or self._is_best(last, number) else None
        fixed_length = self.configurations[number].values.get("schedule") in FIXED_LENGTH_SCHEDULES
        ends_at_best = last.results[number].ends_at_best and self._is_best(last, number)
        return last if ends_at_best and not fixed_length else None

    def _is_best(self, last: RoundState, number: int) -> bool:
        """Return whether none of the trainings that the one in the round `last` continues was better."""
        best, result = last.results[number].value or 0.0, last.results[number]
        for past in reversed(self.rounds[: last.plan.number - 1]):
            if not result.epochs_before or number not in past.results:
                break
            result = past.results[number]
            if (result.value or 0.0) > best:
                return False
        return True

    @property
    def halving_sizes(self) -> list[int]:
        """Number of trials of each round before the comparisons of finalists."""
        n_rounds, n_trials = 0, self.planned_trials
        while n_trials > 1:
            n_rounds, n_trials = n_rounds + 1, -(-n_trials // self.settings["eta"])
        return self.sizes[:n_rounds]

    def expected_cost(self, number: int) -> float:
        """Return the cost, in full trainings, that a trial of a comparison that is not open yet is expected to have.

        Finalists have a quarter of the last round's epochs, on the full graph, then three quarters more, then the rest;
        only the rest if the last round has the full graph.
        """
        halving = self.halving_sizes
        if len(self.rounds) >= len(halving):
            epochs = self.rounds[len(halving) - 1].plan.epoch_fraction
        else:
            fidelity = min(1.0, self.budget / len(halving) / halving[-1])
            partial = fidelity if self.last_is_whole else math.sqrt(fidelity)
            epochs = 1.0 if self.settings["variant"] == "graph" else partial
        return (epochs / 4, 3 * epochs / 4, 1 - epochs)[self._comparison(number)]

    def trains_to_the_end(self, number: int) -> bool:
        """Return whether a round trains finalists to the end, or is expected to when it opens."""
        if number <= len(self.rounds):
            return self.rounds[number - 1].plan.to_the_end
        second_is_full = self.settings["variant"] == "graph"
        return number > len(self.halving_sizes) and self._comparison(number) >= 2 - second_is_full

    def _comparison(self, number: int) -> int:
        """Return which comparison of finalists a round is: 0, 1, or 2 for the one that trains to the end."""
        return 2 if self.last_is_whole else number - len(self.halving_sizes) - 1

    @property
    def last_is_whole(self) -> bool:
        """Whether the last round has the full graph, or is expected to: then, one comparison is planned after it."""
        n_halving = len(self.halving_sizes)
        if len(self.rounds) >= n_halving:
            return self.rounds[n_halving - 1].plan.whole
        saved = keeps_finalists(self.dataset["n_entities"], self.settings["dim"])
        return saved and len(self.planned_sizes) == n_halving + 1

    @property
    def final(self) -> TrialResult | None:
        """The final training of the winner, unless it has to run (again)."""
        if self.winner is None or self.winner != self.last_trained:
            return None
        attempts = self.finals[self.winner]
        return attempts[-1] if attempts and self._counts(attempts) else None

    @property
    def spent(self) -> float:
        """Cost of all rounds in full trainings."""
        return math.fsum(past.cost for past in self.rounds)

    def _on_search_started(self, event: Event) -> None:
        self.settings, self.dataset = event["settings"], event["dataset"]
        self.sizes, self.budget = list(event["sizes"]), event["budget"]
        self.planned_trials = self.sizes[0] if self.sizes else 1
        self.planned_sizes = list(self.sizes)
        self.max_retries = event["settings"].get("max_retries", self.max_retries)
        self.started_at = event["at"]

    def _on_configurations_proposed(self, event: Event) -> None:
        for content in event["configurations"]:
            self.configurations[content["number"]] = Configuration(**content)

    def _on_round_opened(self, event: Event) -> None:
        plan = Round.from_json(event["plan"])
        refers = plan.compares_finalists and (plan.to_the_end or not plan.continues)
        self.rounds.append(RoundState(plan, before=self.rounds[-1] if refers else None))

    def _on_trial_started(self, event: Event) -> None:
        self.stopped = None
        if event["round"] == 0:
            self.final_running, self.final_began = event, event.get("elapsed", 0.0)
        else:
            self.rounds[event["round"] - 1].running[event["number"]] = event

    def _on_trial_ended(self, event: Event) -> None:
        result = TrialResult.from_json(event["result"])
        if result.round == 0:
            self.final_running = None
            self.finals.setdefault(result.number, []).append(result)
            self.last_trained = result.number
            return
        past = self.rounds[result.round - 1]
        past.running.pop(result.number, None)
        attempts = past.attempts.setdefault(result.number, [])
        attempts.append(result)
        if self._counts(attempts):
            past.results[result.number] = result

    def _counts(self, attempts: list[TrialResult]) -> bool:
        """Whether the last attempt counts: a machine's fault does so only when no retry is left."""
        if attempts[-1].status not in MACHINE_FAULTS:
            return True
        return sum(r.status in MACHINE_FAULTS for r in attempts) > self.max_retries

    def _on_round_closed(self, event: Event) -> None:
        self.rounds[event["round"] - 1].survivors = list(event["survivors"])

    def _on_winner_chosen(self, event: Event) -> None:
        self.winner = event["number"]

    def _on_time_planned(self, event: Event) -> None:
        self.time_plan, self.time_given = event, event["time"]
        self.time_limit = event.get("limit", event["time"])  # later, if too little was left for the smallest search

    def _on_plan_changed(self, event: Event) -> None:
        """Cut or extend what is left of a search, to end in time."""
        self.changes += event["why"]
        self.sizes = list(event.get("sizes", self.sizes))
        self.final_epochs = event.get("final_epochs", self.final_epochs)
        self.final_continues = event.get("final_continues", self.final_continues)
        self.changed_after = event["round"] - 1 if "round" in event else self.changed_after
        if "share" in event:
            self.shares.update({n: event["share"] for n in range(event["round"], len(self.sizes) + 1)})

    def _on_search_finished(self, event: Event) -> None:
        self.finished, self.failed, self.stopped = True, event.get("failed", ""), None

    def _on_search_stopped(self, event: Event) -> None:
        self.stopped = event["reason"]
        self._clear_running()

    def _on_search_resumed(self, event: Event) -> None:
        """Continue; a search that failed forgets its machine faults, so those trials run again."""
        self.stopped = None
        self.time_limit = event.get("time_limit", self.time_limit)
        if "time" in event:
            self.time_given = min(self.time_plan["time"], event["time"])
        self._clear_running()
        if not self.failed:
            return
        for attempts in self.finals.values():
            attempts[:] = [r for r in attempts if r.status not in MACHINE_FAULTS]
        for past in self.rounds:
            for n in [n for n, r in past.results.items() if r.status in MACHINE_FAULTS]:
                del past.results[n], past.attempts[n]
        self.finished, self.failed = False, ""

    def _on_search_extended(self, event: Event) -> None:
        """Add trials or survivors: closed rounds open again, with their fidelities unchanged."""
        self.sizes, self.budget = list(event["sizes"]), event["budget"]
        self.planned_sizes = list(self.sizes)
        self.settings = {**self.settings, **event["settings"]}
        self.finished, self.winner, self.failed, self.final_continues = False, None, "", False
        for past in self.rounds:
            past.survivors = None

    def _clear_running(self) -> None:
        self.final_running = None
        for past in self.rounds:
            past.running = {}


def keeps_finalists(n_entities: int, dim: int) -> bool:
    """Return whether the state of a finalist is saved: float32 rows, up to three per entity."""
    return n_entities * dim * 12 <= KEPT_BYTES


def select_best(results: Iterable[TrialResult], count: int, score: Callable[[TrialResult], float]) -> list[int]:
    """Return the configurations of the `count` best results, best first.

    Ties go to the cheaper trial, then to the one that computed fewer scores, then to the lower number.
    """
    keys = [(-score(r), r.cost, r.scores, r.number) for r in results if r.mrr is not None and r.status == "ok"]
    return [key[-1] for key in sorted(keys)[:count]]
