"""Send a search to MLflow, Weights & Biases or TensorBoard.

`Tracker` is a callback. It puts what is new into a queue, and a thread passes it on to the store of one library, so a
slow or unreachable service neither delays nor stops the search. RUN/trackers.json records what a store has received: a
resumed search continues the same run of the tracker and adds what is missing.
"""

from __future__ import annotations

import logging
import math
import os
import queue
import re
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from grash.errors import ConfigError, InputError, did_you_mean
from grash.files import read_json, write_json
from grash.optional import optional_import
from grash.search.callbacks import Callback, RunningSearch
from grash.search.ledger import SearchState
from grash.search.trial import MACHINE_FAULTS, TrialResult

if TYPE_CHECKING:
    from grash.training.loop import Progress

SCHEMA, VERSION = "grash-trackers", 1
TRACKERS_FILE = "trackers.json"
_EVERY_SECONDS = 10.0  # between two reports of the progress of a trial
_PATIENCE = 30.0  # seconds that the end of a search waits for a store
_MAX_TEXT = 500  # characters of a parameter; MLflow refuses long ones
_log = logging.getLogger(__name__)
_KNOWN_LOCK = threading.Lock()
_SECRET = re.compile(r"//[^/@]*@")  # user and password of a URI, which no file of the run folder should have
Metrics = dict[str, float]


@dataclass(frozen=True)
class TrackedTrial:
    """A trial as trackers show it."""

    key: str  # "round-1/configuration-3" or "final-training"
    params: dict[str, Any]  # the settings of its configuration
    tags: dict[str, str]


class Store:
    """Where a tracker writes: one search, with its trials. Only the tracker's thread calls these methods."""

    name = ""

    def begin(self, folder: Path, search_id: str | None, params: dict[str, Any]) -> str:
        """Begin the run of a search, or continue that of `search_id`; return its id."""
        raise NotImplementedError

    def begin_trial(self, trial: TrackedTrial) -> None:
        """Begin a trial."""

    def log_trial(self, trial: TrackedTrial, metrics: Metrics, step: int) -> None:
        """Record metrics of a trial at a training step."""

    def end_trial(self, trial: TrackedTrial, metrics: Metrics, *, ok: bool) -> None:
        """Record the final metrics of a trial."""

    def log_search(self, metrics: Metrics, n_ended: int) -> None:
        """Record metrics of the search after this number of trials."""

    def end(self, metrics: Metrics, files: list[Path], trials: list[dict[str, Any]], *, ok: bool) -> None:
        """Record the result of the search and close everything. trials: a row for each, also of earlier processes."""


def tracker(target: str) -> Tracker:
    """Return a callback that sends a search to MLflow, Weights & Biases or TensorBoard.

    target: "mlflow", "mlflow:URI", "wandb:PROJECT", "wandb:ENTITY/PROJECT", "tensorboard" or "tensorboard:FOLDER".
    Errors of the service are logged; the search continues.
    """
    kind, _, place = target.partition(":")
    if kind not in _STORES:
        hint = did_you_mean(kind, _STORES, f" Give {', '.join(_STORES)}.")
        raise ConfigError(f"{target!r} is no tracker.{hint} An example: mlflow:sqlite:///mlflow.db.")
    return Tracker(target, _STORES[kind](place or None))


class Tracker(Callback):
    """Passes a search on to a store, in a thread."""

    def __init__(self, target: str, store: Store) -> None:
        self.target, self._store = _SECRET.sub("//", target), store
        self._tasks: queue.Queue[Callable[[], None] | None] = queue.Queue()
        self._thread: threading.Thread | None = None
        self._failed = False
        self._known: dict[str, Any] = {"id": None, "trials": []}
        self._reported: dict[tuple[int, int], float] = {}  # when the progress of a trial was last sent
        self._unsent: dict[tuple[int, int], Progress] = {}  # the last progress of a trial, if it was not sent

    def on_plan(self, search: RunningSearch) -> None:
        self._known = _read_known(search.folder).get(self.target, self._known)
        self._thread = threading.Thread(target=self._work, name=f"grash-{self._store.name}", daemon=True)
        self._thread.start()
        params = {**search.state.settings, **{f"dataset.{k}": v for k, v in search.state.dataset.items()}}
        self._send(self._begin, search.folder, _scalars(params))
        for result in _counted_results(search.state):  # of an earlier process, which was killed before it sent them
            if _trial_key(result.round, result.number) not in self._known["trials"]:
                self._send(self._store.begin_trial, _trial(search.state, result.round, result.number))
                self._end_trial(search, result)

    def on_trial_start(self, search: RunningSearch, round: int, number: int) -> None:
        self._send(self._store.begin_trial, _trial(search.state, round, number))

    def on_progress(self, search: RunningSearch, round: int, number: int, progress: Progress) -> None:
        if time.monotonic() - self._reported.get((round, number), -math.inf) < _EVERY_SECONDS:
            self._unsent[round, number] = progress
            return
        self._reported[round, number] = time.monotonic()
        self._unsent.pop((round, number), None)
        self._send_progress(_trial(search.state, round, number), progress)

    def _send_progress(self, trial: TrackedTrial, progress: Progress) -> None:
        metrics = _numbers({"loss": progress.loss, "best_mrr": progress.best_mrr, "epoch": progress.epoch})
        self._send(self._store.log_trial, trial, metrics, progress.step)

    def on_trial_end(self, search: RunningSearch, result: TrialResult) -> None:
        self._end_trial(search, result)

    def on_round_end(self, search: RunningSearch, round: int) -> None:
        past = search.state.rounds[round - 1]
        best = past.results[past.survivors[0]] if past.survivors else None
        mrr = None if best is None else best.mrr
        metrics = _numbers({f"round_{round}_mrr": mrr, "spent": search.state.spent})
        self._send(self._store.log_search, metrics, _n_ended(search.state))

    def on_end(self, search: RunningSearch) -> None:
        if self._thread is None:
            return
        state, folder = search.state, search.folder
        test = _test_metrics(state.final) if state.final is not None else {}
        metrics = {**_numbers({"spent": state.spent, "seconds": state.seconds, "winner": state.winner}), **test}
        files = [folder / name for name in ("report.html", "best.yaml")]
        ok = state.finished and not state.failed
        rows = [_row(_trial(state, r.round, r.number, r), _end_metrics(r)) for r in _counted_results(state)]
        self._send(lambda: self._store.end(metrics, [f for f in files if f.is_file()], rows, ok=ok))
        self._tasks.put(None)
        self._thread.join(_PATIENCE)
        if self._thread.is_alive():
            _log.warning("%s is not up to date: it took longer than %.0f s.", self._store.name, _PATIENCE)
        self._thread = None

    def _end_trial(self, search: RunningSearch, result: TrialResult) -> None:
        trial, state = _trial(search.state, result.round, result.number, result), search.state
        last = self._unsent.pop((result.round, result.number), None)
        if last is not None and (not result.history or last.step < result.history[-1]["step"]):
            self._send_progress(trial, last)
        for entry in result.history:
            values = {"valid_mrr": entry["mrr"], "loss": entry.get("loss"), "epoch": entry["epoch"]}
            self._send(self._store.log_trial, trial, _numbers(values), int(entry["step"]))
        metrics = _end_metrics(result)

        def end() -> None:  # one task: a trial that could not be sent is not remembered
            self._store.end_trial(trial, metrics, ok=result.status == "ok")
            if result.status not in MACHINE_FAULTS:
                self._remember(search.folder, trial.key)

        self._send(end)
        self._send(self._store.log_search, _numbers({"spent": state.spent, "mrr": result.mrr}), _n_ended(state))

    def _begin(self, folder: Path, params: dict[str, Any]) -> None:
        self._known = {**self._known, "id": self._store.begin(folder, self._known["id"], params)}
        _write_known(folder, self.target, self._known)

    def _remember(self, folder: Path, key: str) -> None:
        self._known = {**self._known, "trials": [*self._known["trials"], key]}
        _write_known(folder, self.target, self._known)

    def _send(self, task: Callable[..., None], *arguments: Any) -> None:
        self._tasks.put(lambda: task(*arguments))

    def _work(self) -> None:
        """Run the tasks in their order. The first error is a warning; if the run could not begin, it is the last."""
        while (task := self._tasks.get()) is not None:
            if self._failed and self._known["id"] is None:
                continue
            try:
                task()
            except Exception as error:
                if not self._failed:
                    _log.warning("%s is not up to date (%s). The search continues.", self._store.name, error)
                    _log.debug("A call of %s failed.", self._store.name, exc_info=True)
                self._failed = True


class MlflowStore(Store):
    """A run of MLflow for the search, with a nested run for each trial."""

    name = "MLflow"

    def __init__(self, uri: str | None) -> None:
        self._mlflow = optional_import("mlflow", extra="mlflow", purpose="The tracker mlflow")
        self._uri, self._experiment, self._parent = uri, "", ""
        self._client: Any = None
        self._runs: dict[str, str] = {}  # by key of the trial

    def begin(self, folder: Path, search_id: str | None, params: dict[str, Any]) -> str:
        self._client = client = self._mlflow.MlflowClient(tracking_uri=self._uri)
        name = os.environ.get("MLFLOW_EXPERIMENT_NAME", "grash")
        found = client.get_experiment_by_name(name)
        self._experiment = client.create_experiment(name) if found is None else found.experiment_id
        if search_id is not None:
            self._parent = search_id
            client.update_run(search_id, status="RUNNING")
            return search_id
        self._parent = self._create(folder.resolve().name, params, {"grash.folder": str(folder)})
        return self._parent

    def begin_trial(self, trial: TrackedTrial) -> None:
        tags = {**trial.tags, "mlflow.parentRunId": self._parent}
        self._runs[trial.key] = self._create(trial.key, trial.params, tags)

    def log_trial(self, trial: TrackedTrial, metrics: Metrics, step: int) -> None:
        self._log_metrics(self._runs[trial.key], metrics, step)

    def end_trial(self, trial: TrackedTrial, metrics: Metrics, *, ok: bool) -> None:
        run = self._runs.pop(trial.key)
        self._log_metrics(run, metrics, 0)
        self._write(run, tags=trial.tags)
        self._client.set_terminated(run, status="FINISHED" if ok else "FAILED")

    def log_search(self, metrics: Metrics, n_ended: int) -> None:
        self._log_metrics(self._parent, metrics, n_ended)

    def end(self, metrics: Metrics, files: list[Path], trials: list[dict[str, Any]], *, ok: bool) -> None:
        for run in self._runs.values():
            self._client.set_terminated(run, status="KILLED")
        self._log_metrics(self._parent, metrics, 0)
        self._client.set_terminated(self._parent, status="FINISHED" if ok else "KILLED")
        for file in files:
            self._client.log_artifact(self._parent, str(file))

    def _create(self, name: str, params: dict[str, Any], tags: Mapping[str, str]) -> str:
        run = str(self._client.create_run(self._experiment, run_name=name, tags=dict(tags)).info.run_id)
        self._write(run, params=params)
        return run

    def _log_metrics(self, run: str, metrics: Metrics, step: int) -> None:
        self._write(run, metrics=metrics, step=step)

    def _write(self, run: str, *, step: int = 0, **entries: Mapping[str, Any]) -> None:
        entities, now = self._mlflow.entities, int(time.time() * 1000)
        metrics = [entities.Metric(k, v, now, step) for k, v in entries.get("metrics", {}).items()]
        params = [entities.Param(k, str(v)) for k, v in entries.get("params", {}).items()]
        tags = [entities.RunTag(k, v) for k, v in entries.get("tags", {}).items()]
        self._client.log_batch(run, metrics=metrics, params=params, tags=tags)


class WandbStore(Store):
    """One run of Weights & Biases: a step per trial, the curves of the final training, and a table of all trials."""

    name = "Weights & Biases"

    def __init__(self, place: str | None) -> None:
        self._wandb = optional_import("wandb", extra="wandb", purpose="The tracker wandb")
        entity, _, project = (place or "grash").rpartition("/")
        self._entity, self._project = entity or None, project
        self._run: Any = None

    def begin(self, folder: Path, search_id: str | None, params: dict[str, Any]) -> str:
        settings = self._wandb.Settings(silent=True, console="off")
        self._check_login()
        self._run = self._wandb.init(
            project=self._project, entity=self._entity, name=folder.resolve().name, config=params, dir=str(folder),
            id=search_id, resume="allow", settings=settings,
        )  # fmt: skip
        self._run.define_metric("final/*", step_metric="final/step")
        self._run.define_metric("trial/*", step_metric="trial/ended")
        return str(self._run.id)

    def log_trial(self, trial: TrackedTrial, metrics: Metrics, step: int) -> None:
        if trial.tags["round"] == "0":
            self._run.log({f"final/{name}": value for name, value in metrics.items()} | {"final/step": step})

    def log_search(self, metrics: Metrics, n_ended: int) -> None:
        self._run.log({f"trial/{name}": value for name, value in metrics.items()} | {"trial/ended": n_ended})

    def end(self, metrics: Metrics, files: list[Path], trials: list[dict[str, Any]], *, ok: bool) -> None:
        columns = sorted({name for row in trials for name in row}, key=lambda name: (name != "trial", name))
        rows = [[row.get(name) for name in columns] for row in trials]
        self._run.log({"trials": self._wandb.Table(columns=columns, data=rows, allow_mixed_types=True)})
        self._run.summary.update(metrics)
        for file in files:
            self._run.save(str(file), base_path=str(file.parent), policy="now")
        self._run.finish(exit_code=0 if ok else 1)

    def _check_login(self) -> None:
        """Raise an error where wandb would ask for a key in the middle of the search."""
        if os.environ.get("WANDB_MODE", "online") == "online" and not self._wandb.login(prompt=False):
            raise InputError("nobody is logged in: run `wandb login`, or set WANDB_MODE=offline")


class TensorboardStore(Store):
    """Event files: a folder per trial with its curve and settings (tab HPARAMS), and a folder for the search."""

    name = "TensorBoard"

    def __init__(self, folder: str | None) -> None:
        optional_import("tensorboard", extra="tensorboard", purpose="The tracker tensorboard")
        self._folder = folder
        self._root = Path()
        self._writers: dict[str, Any] = {}

    def begin(self, folder: Path, search_id: str | None, params: dict[str, Any]) -> str:
        self._root = Path(self._folder) / folder.resolve().name if self._folder else folder / "tensorboard"
        text = "\n".join(f"| {name} | {value} |" for name, value in params.items())
        self._writer("search").add_text("settings", f"| setting | value |\n|---|---|\n{text}")
        return str(self._root)

    def log_trial(self, trial: TrackedTrial, metrics: Metrics, step: int) -> None:
        for name, value in metrics.items():
            self._writer(trial.key).add_scalar(name, value, step)

    def end_trial(self, trial: TrackedTrial, metrics: Metrics, *, ok: bool) -> None:
        writer = self._writer(trial.key)
        params = {k: v for k, v in trial.params.items() if isinstance(v, bool | int | float | str)}
        writer.add_hparams(params, {f"result/{name}": value for name, value in metrics.items()}, run_name=".")
        self._writers.pop(trial.key).close()

    def log_search(self, metrics: Metrics, n_ended: int) -> None:
        for name, value in metrics.items():
            self._writer("search").add_scalar(f"search/{name}", value, n_ended)

    def end(self, metrics: Metrics, files: list[Path], trials: list[dict[str, Any]], *, ok: bool) -> None:
        for name, value in metrics.items():
            self._writer("search").add_scalar(f"result/{name}", value, 0)
        for writer in self._writers.values():
            writer.close()

    def _writer(self, key: str) -> Any:
        if key not in self._writers:
            from torch.utils.tensorboard import SummaryWriter

            self._writers[key] = SummaryWriter(str(self._root / key))
        return self._writers[key]


_STORES: dict[str, Callable[[str | None], Store]] = {
    "mlflow": MlflowStore,
    "wandb": WandbStore,
    "tensorboard": TensorboardStore,
}


def _trial_key(round: int, number: int) -> str:
    return f"round-{round}/configuration-{number}" if round else "final-training"


def _trial(state: SearchState, round: int, number: int, result: TrialResult | None = None) -> TrackedTrial:
    made = state.configurations[number]
    tags = {"round": str(round), "configuration": str(number), "origin": made.origin}
    if result is not None:
        tags |= {"status": result.status, "device": result.device} | (
            {"message": result.message[:_MAX_TEXT]} if result.message else {}
        )
    return TrackedTrial(_trial_key(round, number), _scalars(made.values), tags)


def _scalars(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values that a tracker can show: numbers as they are, all else as a short text."""
    return {k: v if isinstance(v, bool | int | float) else str(v)[:_MAX_TEXT] for k, v in values.items()}


def _numbers(values: Mapping[str, float | None]) -> Metrics:
    return {name: float(v) for name, v in values.items() if v is not None and math.isfinite(v)}


def _end_metrics(result: TrialResult) -> Metrics:
    epochs = result.history[-1]["epoch"] if result.history else None
    fields = {"mrr": result.mrr, "cost": result.cost, "seconds": result.seconds, "epochs": epochs}
    return {**_numbers(fields), **_test_metrics(result)}


def _row(trial: TrackedTrial, metrics: Metrics) -> dict[str, Any]:
    return {"trial": trial.key, **trial.tags, **metrics, **trial.params}


def _test_metrics(result: TrialResult) -> Metrics:
    both = (result.evaluation or {}).get("both", {})
    return {f"test_{k.replace('@', '_at_')}": float(v) for k, v in both.items() if isinstance(v, int | float)}


def _n_ended(state: SearchState) -> int:
    return sum(len(past.results) for past in state.rounds) + (state.final is not None)


def _counted_results(state: SearchState) -> list[TrialResult]:
    results = [result for past in state.rounds for result in past.results.values()]
    return results + ([state.final] if state.final is not None else [])


def _read_known(folder: Path) -> dict[str, Any]:
    """Return by target what was sent; {} if nothing was, or if the file is damaged."""
    try:
        return dict(read_json(folder / TRACKERS_FILE, schema=SCHEMA, version=VERSION)["targets"])
    except Exception:
        return {}


def _write_known(folder: Path, target: str, known: dict[str, Any]) -> None:
    with _KNOWN_LOCK:  # every tracker writes from its own thread
        targets = {**_read_known(folder), target: known}
        write_json(folder / TRACKERS_FILE, {"schema": SCHEMA, "version": VERSION, "targets": targets})
