"""optuna.log: the search as Optuna studies, for its plots, its importances and optuna-dashboard.

    NAME/overview   one trial per configuration; its value counts the rounds survived plus the place in the last one, so
                    that it compares configurations that were judged on different graphs
    NAME/round-1 …  one trial per evaluation; its value is the MRR on that round's graph

The ledger is the truth, this is a view: what is missing is added, and where the file is damaged, belongs to another
search or says what the ledger no longer says (after an extension), it is written anew aside and renamed.
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime, timedelta, timezone
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

from optuna.storages.journal import BaseJournalBackend

from grash.errors import InputError
from grash.files import atomic_file
from grash.report.importance import Points, searched
from grash.report.summary import state_of
from grash.search.ledger import LEDGER_FILE, RoundState, SearchState, read_ledger
from grash.search.trial import TrialResult

# = What each Optuna study should say of a search: pure, without Optuna. Written by `optuna_view.py`.

_SCORELESS = "FAIL"  # a machine's fault or an error says nothing about the configuration


class JournalDamaged(Exception):
    """What the file says cannot be continued: it has to be written anew."""


@dataclass(frozen=True)
class Wanted:
    """A trial as Optuna should have it: the name of its state, its value, values by step, user attributes."""

    state: str
    value: float | None = None
    steps: dict[int, float] = field(default_factory=dict)
    notes: dict[str, Any] = field(default_factory=dict)
    round: int = field(default=0, compare=False)  # in which it was decided

    @property
    def finished(self) -> bool:
        return self.state in ("COMPLETE", "FAIL")


def overview_trials(state: SearchState) -> dict[int, Wanted]:
    """One trial per configuration. Its value, once it is out or the search is decided: rounds − 1 + place in the last.

    The place is the share of the round's trials that it does not lose against: 1 for the best, 0 for one that diverged.
    """
    reached: dict[int, dict[int, float]] = {number: {} for number in state.configurations}
    judged: dict[int, list[TrialResult]] = {number: [] for number in state.configurations}
    out: set[int] = set()
    for past in state.rounds:
        if past.survivors is None:
            break
        places = _places(past)
        for number, result in past.results.items():
            reached[number][past.plan.number] = past.plan.number - 1 + places.get(number, 0.0)
            judged[number].append(result)
        out |= set(past.results) - set(past.survivors)
    decided = state.winner is not None or state.finished
    return {n: _overview(reached[n], judged[n], over=decided or n in out) for n in state.configurations}


def round_trials(past: RoundState) -> dict[int, Wanted]:
    """One trial per evaluation that has begun. A diverged one is complete with 0: the configuration is that bad."""
    found = {number: Wanted("RUNNING", notes={"status": "running"}) for number in past.running}
    for number, tries in past.attempts.items():
        if number not in found:
            found[number] = Wanted("WAITING", notes={"status": f"{tries[-1].status}, to be tried again"})
    for number, result in past.results.items():
        found[number] = _evaluated(result)
    return found


def study_notes(state: SearchState) -> dict[str, Any]:
    """Attributes of every study of the search."""
    names = ("eta", "n_trials", "max_epochs", "variant", "seed", "models")
    chosen = {name: state.settings[name] for name in names if name in state.settings}
    dataset = {f"dataset.{name}": state.dataset.get(name) for name in ("name", "fingerprint")}
    return {**chosen, "budget": state.budget, **dataset}


def _overview(steps: dict[int, float], judged: list[TrialResult], *, over: bool) -> Wanted:
    notes: dict[str, Any] = {f"mrr_r{r.round}": r.mrr for r in judged if r.mrr is not None}
    notes |= {"cost_spent": sum(r.cost for r in judged), "seconds": sum(r.seconds for r in judged)}
    if not judged:
        return Wanted("FAIL" if over else "RUNNING", notes={"status": "not judged" if over else "in the race"})
    last = judged[-1]
    notes["status"] = last.status if over else "in the race"
    if not over:
        return Wanted("RUNNING", steps=steps, notes=notes)
    scored = last.status in ("ok", "diverged")
    value = steps[max(steps)] if scored else None
    return Wanted("COMPLETE" if scored else _SCORELESS, value, steps, notes, last.round)


def _evaluated(result: TrialResult) -> Wanted:
    low, high = result.interval or (None, None)
    notes = {
        "status": result.status, "cost": result.cost, "seconds": result.seconds, "positives": result.positives,
        "peak_bytes": result.peak_bytes, "device": result.device, "low": low, "high": high,
        "message": result.message,
    }  # fmt: skip
    steps = {int(v["step"]): float(v["mrr"]) for v in result.history}
    if result.status == "ok":
        return Wanted("COMPLETE", result.mrr, steps, notes, result.round)
    if result.status == "diverged":
        return Wanted("COMPLETE", 0.0, steps, notes, result.round)
    return Wanted(_SCORELESS, None, steps, notes, result.round)


def _places(past: RoundState) -> dict[int, float]:
    order = past.best(len(past.results))
    return {number: 1 - rank / len(past.results) for rank, number in enumerate(order)}


VIEW_FILE = "optuna.log"
_LOCK_FILE = ".optuna.log.lock"
_STOPPED = Wanted("WAITING", notes={"status": "stopped"})
_log = logging.getLogger(__name__)


class OptunaView:
    """The view of a run folder. Without optuna installed it does nothing."""

    def __init__(self, run_folder: Path) -> None:
        self.folder = Path(run_folder)
        self.path = self.folder / VIEW_FILE
        self._open: _Studies | None = None
        self._points: Points | None = None
        self._there = _has_optuna()
        if not self._there:
            _log.info("Optuna is not installed, so that %s is not written: pip install 'grash[optuna]'.", self.path)

    def update(self, state: SearchState) -> None:
        """Adds what the state has and the file has not: one read and one write. Never raises: it is only a view."""
        if not self._there or not state.configurations:
            return
        try:
            with _locked(self.folder / _LOCK_FILE), _quiet():
                self._update(state)
        except Exception as error:
            self._there = False
            _log.warning("%s is not written from here on (%s); the search goes on without it.", self.path, error)

    def _update(self, state: SearchState) -> None:
        if self._points is None:
            self._points = Points(searched(state))
        try:
            if self._open is None or not self._open.journal.is_current():
                self._open = _Studies.of_file(self.path, self.folder, state)
            self._open.write(state, self._points)
        except (JournalDamaged, ValueError, KeyError, AssertionError) as error:
            _log.info("%s is written anew: %s", self.path, error)
            self._open, self._points = None, Points(searched(state))
            with atomic_file(self.path) as aside:
                _Studies.of_file(aside, self.folder, state).write(state, self._points)


class _Studies:
    """The studies of a journal, and what is known to be in them: {configuration: (trial id, what it says)}."""

    def __init__(self, journal: Any, folder: Path, identity: str) -> None:
        from optuna.storages import JournalStorage

        self.journal, self.name, self.identity = journal, folder.resolve().name, identity
        self.times = _ended_times(folder / LEDGER_FILE)
        self.storage = JournalStorage(journal)
        self.ids: dict[str, int] = {}
        self.seen: dict[str, dict[int, tuple[int, Wanted]]] = {}
        self.shape: tuple[Any, ...] = ()  # of the search when the overview was last written
        for study in self.storage.get_all_studies():
            if study.user_attrs.get("search") == identity and study.study_name.startswith(f"{self.name}/"):
                self._take_over(study.study_name, study._study_id)
        if self.storage.get_all_studies() and f"{self.name}/overview" not in self.ids:
            raise JournalDamaged("it belongs to another search")

    @classmethod
    def of_file(cls, path: Path, folder: Path, state: SearchState) -> _Studies:

        return cls(Journal(path), folder, f"{state.started_at} {state.dataset.get('fingerprint', '')}")

    def write(self, state: SearchState, points: Points) -> None:
        shape = (
            len(state.configurations), tuple(past.survivors is None for past in state.rounds), state.winner,
            state.finished, state.budget,
        )  # fmt: skip
        if shape != self.shape:
            wanted = overview_trials(state)
            self._bring("overview", wanted, state, points, metric="rung_score", notes=study_notes(state))
        for past in state.rounds:
            notes = study_notes(state) | {f"round.{k}": v for k, v in past.plan.to_json().items()}
            name = f"round-{past.plan.number}"
            self._bring(name, round_trials(past), state, points, metric="valid_mrr", notes=notes)
        self.journal.flush()
        self.shape = shape

    def _bring(
        self, name: str, wanted: dict[int, Wanted], state: SearchState, points: Points, *, metric: str,
        notes: dict[str, Any],
    ) -> None:  # fmt: skip
        """Makes a study say what is wanted of each configuration."""
        study = f"{self.name}/{name}"
        if study not in self.ids:
            self._create(study, metric, notes)
        seen = self.seen[study]
        for number, now in wanted.items():
            known = seen.get(number)
            if known is None:
                seen[number] = (self._add(study, number, now, state, points), now)
            elif known[1] != now:
                self._change(known[0], known[1], now)
                seen[number] = (known[0], now)
        for number in seen.keys() - wanted.keys():  # stopped in the middle, and not begun again yet
            trial_id, was = seen[number]
            if was != _STOPPED:
                self._change(trial_id, was, _STOPPED)
                seen[number] = (trial_id, _STOPPED)

    def _create(self, study: str, metric: str, notes: dict[str, Any]) -> None:
        from optuna.study import StudyDirection

        study_id = self.storage.create_new_study([StudyDirection.MAXIMIZE], study)
        self.ids[study], self.seen[study] = study_id, {}
        self.storage.set_study_system_attr(study_id, "study:metric_names", [metric])
        for key, value in (notes | {"search": self.identity}).items():
            self.storage.set_study_user_attr(study_id, key, value)

    def _add(self, study: str, number: int, now: Wanted, state: SearchState, points: Points) -> int:
        from optuna.trial import TrialState, create_trial

        made = state.configurations[number]
        params, distributions = points.point(made.values)
        trial = create_trial(
            state=TrialState[now.state],
            value=now.value,
            params=params,
            distributions=distributions,
            user_attrs={"config_id": number, "origin": made.origin, "model": made.values.get("model"), **now.notes},
            intermediate_values=now.steps,
        )
        if now.finished:
            trial.datetime_complete = self.times.get((now.round, number)) or datetime.now(timezone.utc)
            trial.datetime_start = trial.datetime_complete - timedelta(seconds=now.notes.get("seconds", 0.0))
        return self.storage.create_new_trial(self.ids[study], trial)

    def _change(self, trial_id: int, was: Wanted, now: Wanted) -> None:
        from optuna.trial import TrialState

        if was.finished:
            raise JournalDamaged(f"a trial ended with {was.value}, and the ledger now says {now.value}")
        for key, value in now.notes.items():
            if was.notes.get(key) != value:
                self.storage.set_trial_user_attr(trial_id, key, value)
        for step, value in now.steps.items():
            if was.steps.get(step) != value:
                self.storage.set_trial_intermediate_value(trial_id, step, value)
        if was.state != now.state:
            values = None if now.value is None else [now.value]
            self.storage.set_trial_state_values(trial_id, TrialState[now.state], values)

    def _take_over(self, study: str, study_id: int) -> None:
        self.ids[study], self.seen[study] = study_id, {}
        for trial in self.storage.get_all_trials(study_id, deepcopy=False):
            notes = {k: v for k, v in trial.user_attrs.items() if k not in ("config_id", "origin", "model")}
            said = Wanted(trial.state.name, trial.value, dict(trial.intermediate_values), notes)
            self.seen[study][trial.user_attrs["config_id"]] = (trial._trial_id, said)


def _ended_times(path: Path) -> dict[tuple[int, int], datetime]:
    """When each trial ended, from the ledger; trials that end from now on end now."""
    times: dict[tuple[int, int], datetime] = {}
    for event in read_ledger(path) if path.exists() else []:
        if event["event"] == "trial_ended":
            at = datetime.fromisoformat(event["at"].replace("Z", "+00:00"))
            times[event["result"]["round"], event["result"]["number"]] = at
    return times


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """One writer at a time: the search itself, or `grash dashboard` beside it. The lock ends with its process."""
    import fcntl

    with path.open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


@contextmanager
def _quiet() -> Iterator[None]:
    """Optuna's own lines (a study was created …) stay out of the search's output."""
    import optuna

    before = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    try:
        yield
    finally:
        optuna.logging.set_verbosity(before)


def _has_optuna() -> bool:
    from importlib.util import find_spec

    return find_spec("optuna") is not None


# = Optuna's journal file, read and written in one piece: a batch of operations costs one write and no fsync.
# =
# = The same lines as Optuna's own file backend writes, so that Optuna and optuna-dashboard read it like any journal.


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


# = optuna-dashboard on the view of a run folder, on this machine only.

HOST = "127.0.0.1"


@contextmanager
def dashboard_server(run_folder: Path, port: int) -> Iterator[WSGIServer]:
    """A server that is bound and not yet serving; the view is brought up to date first."""
    folder = Path(run_folder)
    state = state_of(folder)
    if find_spec("optuna_dashboard") is None or find_spec("optuna") is None:
        raise InputError("The dashboard needs optuna-dashboard: pip install 'grash[dashboard]'.")
    OptunaView(folder).update(state)
    if not (folder / VIEW_FILE).is_file():
        raise InputError(f"{folder} has no trials to show yet: try again when the search has proposed configurations.")
    try:
        server = make_server(HOST, port, _application(folder, state), handler_class=_Quiet)
    except (OSError, OverflowError) as error:
        raise InputError(f"Port {port} cannot be used ({error}): give another with --port.") from error
    with server:
        yield server


def note(state: SearchState) -> str:
    """What a visitor of the overview study should know, in Markdown."""
    said = (
        "One trial per configuration. Its value is the number of rounds it survived plus its place in the last one, so "
        "that configurations judged on different graphs compare; the studies of the rounds have the MRRs themselves. "
        "Configurations that are still in the race are shown as running.\n"
    )
    best = state.incumbent()
    if best is None or best.mrr is None:
        return said
    return f"{said}\n**Best so far**: configuration {best.number}, MRR {best.mrr:.4f} in round {best.round}.\n"


class _Quiet(WSGIRequestHandler):
    def log_message(self, format: str, *words: Any) -> None:
        """A line for every request would bury the address."""


def _application(folder: Path, state: SearchState) -> Any:
    import optuna
    from optuna.storages import JournalStorage
    from optuna.storages.journal import JournalFileBackend

    optuna_dashboard = import_module("optuna_dashboard")
    logging.getLogger("optuna").setLevel(logging.WARNING)
    storage = JournalStorage(JournalFileBackend(str(folder / VIEW_FILE)))
    overview = optuna.load_study(study_name=f"{folder.resolve().name}/overview", storage=storage)
    optuna_dashboard.save_note(overview, note(state))
    return optuna_dashboard.wsgi(storage)
