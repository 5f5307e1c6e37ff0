"""optuna.log: the search as Optuna studies, for its plots, its importances and optuna-dashboard.

    NAME/overview   one trial per configuration; its value counts the rounds survived plus the place in the last one, so
                    that it compares configurations that were judged on different graphs
    NAME/round-1 …  one trial per evaluation; its value is the MRR on that round's graph

The ledger is the truth, this is a view: what is missing is added, and where the file is damaged, belongs to another
search or says what the ledger no longer says (after an extension), it is written anew aside and renamed.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

from grash.files import whole_file
from grash.report.distributions import Points
from grash.report.parameters import searched
from grash.report.studies import JournalDamaged, Wanted, overview_trials, round_trials, study_notes
from grash.search.ledger import LEDGER_FILE, read_ledger
from grash.search.state import SearchState

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
            with whole_file(self.path) as aside:
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
        from grash.report.journal import Journal

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
        if event["event"] == "ended":
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
