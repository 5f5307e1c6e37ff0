"""optuna.log: the search as Optuna studies, for Optuna's plots, importances and optuna-dashboard.

    NAME/overview   one trial per configuration; its value counts the rounds survived plus the rank in the last one,
                    which compares configurations trained on different graphs
    NAME/round-1 …  one trial per configuration in the round; its value is the MRR on the round's graph

The ledger stays the only record of a search. What is missing in optuna.log is added; if the file is damaged, belongs
to another search or contradicts the ledger (after an extension), it is rewritten.
"""

from __future__ import annotations

import errno
import fcntl
import json
import logging
import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

from grash.errors import InputError
from grash.files import atomic_file
from grash.optional import optional_import
from grash.report.importance import OptunaParameters, SearchedParameter, quiet_optuna, searched_parameters
from grash.report.summary import ranked, read_state
from grash.search.ledger import LEDGER_FILE, RoundState, SearchState, read_ledger
from grash.search.trial import TrialResult

OPTUNA_FILE = "optuna.log"
FEWEST = 8  # configurations with a score; importances of fewer are noise
_LOCK_FILE = ".optuna.log.lock"
_log = logging.getLogger(__name__)


class StaleJournal(Exception):
    """The file cannot be continued: it must be rewritten."""


@dataclass(frozen=True)
class TrialView:
    """A trial as Optuna should show it."""

    state: str  # name of an optuna.trial.TrialState
    value: float | None = None
    steps: dict[int, float] = field(default_factory=dict)  # intermediate values
    attributes: dict[str, Any] = field(default_factory=dict)
    round: int = field(default=0, compare=False)  # whose result decided it

    @property
    def finished(self) -> bool:
        return self.state in ("COMPLETE", "FAIL")


_STOPPED = TrialView("WAITING", attributes={"status": "stopped"})


class OptunaView:
    """Writes optuna.log of a run folder. Does nothing if Optuna is not installed."""

    def __init__(self, run_folder: Path) -> None:
        self.folder, self.path, self._disabled = Path(run_folder), Path(run_folder) / OPTUNA_FILE, False
        self._studies: _Studies | None = None
        self._parameters: OptunaParameters | None = None

    def update(self, state: SearchState) -> None:
        """Add what the file lacks, with one read and one write. Never raises, since the search must continue."""
        if self._disabled or not state.configurations:
            return
        try:
            with (self.folder / _LOCK_FILE).open("a") as lock, quiet_optuna():
                fcntl.flock(lock, fcntl.LOCK_EX)  # one process writes at a time: the search, or `grash dashboard`
                self._update(state)
        except Exception as error:
            self._disabled = True
            if isinstance(error, ImportError):
                _log.info("%s is not written: it needs Optuna (pip install 'grash-kge[dashboard]').", self.path)
                return
            _log.warning("%s is no longer updated (%s). The search continues.", self.path, error)
            _log.debug("Writing %s failed.", self.path, exc_info=True)

    def _update(self, state: SearchState) -> None:
        if self._parameters is None:
            self._parameters = OptunaParameters(searched_parameters(state))
        try:
            if self._studies is None or not self._studies.journal.is_current():
                self._studies = _Studies(self.path, self.folder, state)
            self._studies.write(state, self._parameters)
        except (StaleJournal, ValueError, KeyError, AssertionError) as error:
            _log.info("%s is rewritten: %s", self.path, error)
            self._studies, self._parameters = None, OptunaParameters(searched_parameters(state))
            with atomic_file(self.path) as aside:
                _Studies(aside, self.folder, state).write(state, self._parameters)


@contextmanager
def dashboard_server(run_folder: Path, port: int) -> Iterator[WSGIServer]:
    """Yield a server of optuna-dashboard, bound to this machine only and not yet serving. Updates optuna.log first."""
    folder = Path(run_folder)
    state = read_state(folder)
    optuna_dashboard = optional_import("optuna_dashboard", extra="dashboard", purpose="The dashboard")
    OptunaView(folder).update(state)
    if not (folder / OPTUNA_FILE).is_file():
        raise InputError(f"{folder} has no trials to show yet: try again when the first round has started.")
    logging.getLogger("optuna").setLevel(logging.WARNING)
    from optuna import load_study
    from optuna.storages import JournalStorage, journal

    storage = JournalStorage(journal.JournalFileBackend(str(folder / OPTUNA_FILE)))
    overview = load_study(study_name=f"{folder.resolve().name}/overview", storage=storage)
    optuna_dashboard.save_note(overview, _dashboard_note(state))
    try:
        server = make_server("127.0.0.1", port, optuna_dashboard.wsgi(storage), handler_class=_QuietHandler)
    except (OSError, OverflowError) as error:
        raise InputError(f"Port {port} cannot be used ({error}): choose another one with --port.") from error
    with server:
        yield server


def overview_trials(state: SearchState) -> dict[int, TrialView]:
    """Return one trial per configuration. Its value, once decided, is rounds survived plus its rank in the last.

    The rank is the share of the round's trials that are not better: 1 for the best, 0 for a diverged trial.
    """
    values: dict[int, dict[int, float]] = {number: {} for number in state.configurations}
    results: dict[int, list[TrialResult]] = {number: [] for number in state.configurations}
    out: set[int] = set()
    for r in state.rounds:
        if r.survivors is None:
            break
        ranks = {number: 1 - rank / len(r.results) for rank, number in enumerate(ranked(r))}
        for number, result in r.results.items():
            values[number][r.plan.number] = r.plan.number - 1 + ranks.get(number, 0.0)
            results[number].append(result)
        out |= set(r.results) - set(r.survivors)
    decided = state.winner is not None or state.finished
    return {n: _overview_trial(values[n], results[n], over=decided or n in out) for n in state.configurations}


def importances(state: SearchState, parameters: list[SearchedParameter]) -> dict[str, float] | None:
    """Return the importance of each parameter, largest first; None without Optuna or with too few configurations.

    It is Optuna's PED-ANOVA over the study `overview`, so `grash dashboard` shows the same numbers for it at the end
    of a search. Before, configurations that are still in the search count with their value so far.
    """
    views = {number: view for number, view in overview_trials(state).items() if view.steps and view.state != "FAIL"}
    if sum(view.attributes["status"] in ("ok", "active") for view in views.values()) < FEWEST or not parameters:
        return None
    try:
        import optuna
    except ImportError:
        return None
    points = OptunaParameters(parameters)
    with quiet_optuna(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # few trials in a branch of a condition; the page shows how many there are
        study = optuna.create_study(direction="maximize")
        for number, view in views.items():
            params, distributions = points.point(state.configurations[number].values)
            value = view.steps[max(view.steps)]
            study.add_trial(optuna.trial.create_trial(value=value, params=params, distributions=distributions))
        found = optuna.importance.get_param_importances(study)
    labels = {name: f"{name.removesuffix('.on')} (on or off)" for name in found if name.endswith(".on")}
    return {labels.get(name, name): share for name, share in sorted(found.items(), key=lambda item: -item[1])}


def round_trials(round_state: RoundState) -> dict[int, TrialView]:
    """Return one trial per configuration that has started in the round."""
    found = {number: TrialView("RUNNING", attributes={"status": "running"}) for number in round_state.running}
    for number, tries in round_state.attempts.items():
        if number not in found:
            found[number] = TrialView("WAITING", attributes={"status": f"{tries[-1].status}, will be retried"})
    return found | {number: _round_trial(result) for number, result in round_state.results.items()}


class Journal:
    """Optuna's journal file, read at once; operations are kept in memory until `flush`, which is one write, no fsync.

    The lines are those of Optuna's file backend. It has the methods of `optuna.storages.journal.BaseJournalBackend`
    and is no subclass, since Optuna is imported only when it is used.
    """

    def __init__(self, path: Path) -> None:
        self.path = Path(path)
        self._pending: list[str] = []
        content = self.path.read_bytes() if self.path.exists() else b""
        if content and not content.endswith(b"\n"):
            raise StaleJournal("its last line is incomplete")
        try:
            self._logs = [json.loads(line) for line in content.splitlines()]
        except ValueError as error:
            raise StaleJournal("a line is damaged") from error
        self._size = len(content)

    def read_logs(self, log_number_from: int) -> list[dict[str, Any]]:
        return self._logs[log_number_from:]

    def append_logs(self, logs: list[dict[str, Any]]) -> None:
        # through JSON, since Optuna reads back lists and numbers, not tuples and enums
        lines = [json.dumps(log, separators=(",", ":")) for log in logs]
        self._logs += [json.loads(line) for line in lines]
        self._pending += lines

    def flush(self) -> None:
        """Append the pending operations in one write."""
        if not self._pending:
            return
        content = "".join(f"{line}\n" for line in self._pending).encode()
        with self.path.open("ab", buffering=0) as file:
            if file.write(content) != len(content):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        self._size += len(content)
        self._pending = []

    def is_current(self) -> bool:
        """Return whether nobody else (e.g. a note in the dashboard) has changed the file."""
        return self.path.exists() and self.path.stat().st_size == self._size and not self._pending


class _Studies:
    """The studies of a journal, and what they contain: {configuration: (trial id, its view)}."""

    def __init__(self, path: Path, folder: Path, state: SearchState) -> None:
        from optuna.storages import JournalStorage

        self.journal, self.name = Journal(path), folder.resolve().name
        self.identity = f"{state.started_at} {state.dataset.get('fingerprint', '')}"
        self.end_times = _end_times(folder / LEDGER_FILE)
        self.storage = JournalStorage(self.journal)  # type: ignore[arg-type]
        self.ids: dict[str, int] = {}
        self.known: dict[str, dict[int, tuple[int, TrialView]]] = {}
        self.shape: tuple[Any, ...] = ()  # of the search when the overview was last written
        for study in self.storage.get_all_studies():
            if study.user_attrs.get("search") == self.identity and study.study_name.startswith(f"{self.name}/"):
                self._load(study.study_name, study._study_id)
        if self.storage.get_all_studies() and f"{self.name}/overview" not in self.ids:
            raise StaleJournal("it belongs to another search")

    def write(self, state: SearchState, parameters: OptunaParameters) -> None:
        """Bring all studies up to date."""
        closed = tuple(r.survivors is None for r in state.rounds)
        shape = (len(state.configurations), closed, state.winner, state.finished, state.budget)
        names = ("eta", "n_trials", "max_epochs", "variant", "seed", "models")
        attributes = {name: state.settings[name] for name in names if name in state.settings}
        attributes |= {f"dataset.{name}": state.dataset.get(name) for name in ("name", "fingerprint")}
        attributes["budget"] = state.budget
        if shape != self.shape:
            study = self._study("overview", "rung_score", attributes)
            self._sync(study, overview_trials(state), state, parameters)
        for r in state.rounds:
            plan = {f"round.{key}": value for key, value in r.plan.to_json().items()}
            study = self._study(f"round-{r.plan.number}", "valid_mrr", attributes | plan)
            self._sync(study, round_trials(r), state, parameters)
        self.journal.flush()
        self.shape = shape

    def _study(self, name: str, metric: str, attributes: dict[str, Any]) -> str:
        """Return the full name of a study, which is created if it is new."""
        from optuna.study import StudyDirection

        study = f"{self.name}/{name}"
        if study not in self.ids:
            study_id = self.storage.create_new_study([StudyDirection.MAXIMIZE], study)
            self.ids[study], self.known[study] = study_id, {}
            self.storage.set_study_system_attr(study_id, "study:metric_names", [metric])
            for key, value in (attributes | {"search": self.identity}).items():
                self.storage.set_study_user_attr(study_id, key, value)
        return study

    def _sync(self, study: str, trials: dict[int, TrialView], state: SearchState, parameters: OptunaParameters) -> None:
        known = self.known[study]
        for number, now in trials.items():
            if number not in known:
                known[number] = (self._add(study, number, now, state, parameters), now)
            elif known[number][1] != now:
                self._change(*known[number], now)
                known[number] = (known[number][0], now)
        for number in known.keys() - trials.keys():  # stopped while it ran, and not started again yet
            trial_id, before = known[number]
            if before != _STOPPED:
                self._change(trial_id, before, _STOPPED)
                known[number] = (trial_id, _STOPPED)

    def _add(self, study: str, number: int, now: TrialView, state: SearchState, parameters: OptunaParameters) -> int:
        from optuna.trial import TrialState, create_trial

        made = state.configurations[number]
        params, distributions = parameters.point(made.values)
        about = {"config_id": number, "origin": made.origin, "model": made.values.get("model")}
        trial = create_trial(
            state=TrialState[now.state], value=now.value, params=params, distributions=distributions,
            user_attrs={**about, **now.attributes}, intermediate_values=now.steps,
        )  # fmt: skip
        if now.finished:
            trial.datetime_complete = self.end_times.get((now.round, number)) or datetime.now(timezone.utc)
            trial.datetime_start = trial.datetime_complete - timedelta(seconds=now.attributes.get("seconds", 0.0))
        return self.storage.create_new_trial(self.ids[study], trial)

    def _change(self, trial_id: int, before: TrialView, now: TrialView) -> None:
        from optuna.trial import TrialState

        if before.finished:
            raise StaleJournal(f"a trial ended with {before.value}, but the ledger has {now.value}")
        for key, value in now.attributes.items():
            if before.attributes.get(key) != value:
                self.storage.set_trial_user_attr(trial_id, key, value)
        for step, value in now.steps.items():
            if before.steps.get(step) != value:
                self.storage.set_trial_intermediate_value(trial_id, step, value)
        if before.state != now.state:
            values = None if now.value is None else [now.value]
            self.storage.set_trial_state_values(trial_id, TrialState[now.state], values)

    def _load(self, study: str, study_id: int) -> None:
        self.ids[study], self.known[study] = study_id, {}
        for trial in self.storage.get_all_trials(study_id, deepcopy=False):
            attributes = {k: v for k, v in trial.user_attrs.items() if k not in ("config_id", "origin", "model")}
            view = TrialView(trial.state.name, trial.value, dict(trial.intermediate_values), attributes)
            self.known[study][trial.user_attrs["config_id"]] = (trial._trial_id, view)


def _overview_trial(values: dict[int, float], results: list[TrialResult], *, over: bool) -> TrialView:
    if not results:
        return TrialView("FAIL" if over else "RUNNING", attributes={"status": "not run" if over else "active"})
    last = results[-1]
    attributes: dict[str, Any] = {f"mrr_r{r.round}": r.mrr for r in results if r.mrr is not None}
    attributes |= {"cost_spent": sum(r.cost for r in results), "seconds": sum(r.seconds for r in results)}
    attributes["status"] = last.status if over else "active"
    if not over:
        return TrialView("RUNNING", steps=values, attributes=attributes)
    scored = last.status in ("ok", "diverged")
    value = values[max(values)] if scored else None
    return TrialView("COMPLETE" if scored else "FAIL", value, values, attributes, last.round)


def _round_trial(result: TrialResult) -> TrialView:
    """A diverged trial is complete with value 0: the configuration is that bad. Other failures say nothing about it."""
    low, high = result.interval or (None, None)
    names = ("status", "cost", "seconds", "positives", "peak_bytes", "device", "message")
    attributes = {name: getattr(result, name) for name in names} | {"low": low, "high": high}
    steps = {int(v["step"]): float(v["mrr"]) for v in result.history}
    value = {"ok": result.mrr, "diverged": 0.0}.get(result.status)
    scored = result.status in ("ok", "diverged")
    return TrialView("COMPLETE" if scored else "FAIL", value, steps, attributes, result.round)


def _end_times(path: Path) -> dict[tuple[int, int], datetime]:
    """Return when each trial ended, from the ledger."""
    times: dict[tuple[int, int], datetime] = {}
    for event in read_ledger(path) if path.exists() else []:
        if event["event"] == "trial_ended":
            at = datetime.fromisoformat(event["at"].replace("Z", "+00:00"))
            times[event["result"]["round"], event["result"]["number"]] = at
    return times


class _QuietHandler(WSGIRequestHandler):
    def log_message(self, format: str, *args: Any) -> None:
        """Print nothing: a line per request would hide the address."""


def _dashboard_note(state: SearchState) -> str:
    """Return the note of the overview study, in Markdown."""
    text = (
        "One trial per configuration. Its value is the number of rounds it survived plus its rank in the last one, "
        "which compares configurations trained on different graphs. The studies of the rounds have the MRRs. "
        "Configurations that are still in the search are shown as running.\n"
    )
    best = state.incumbent()
    if best is None or best.mrr is None:
        return text
    return f"{text}\n**Best so far**: configuration {best.number}, MRR {best.mrr:.4f} in round {best.round}.\n"
