"""Trackers send a search to MLflow, Weights & Biases and TensorBoard, and never stop it."""

from __future__ import annotations

import json
import logging
import sys
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from grash.errors import ConfigError, InputError
from grash.report import trackers
from grash.report.trackers import Store, Tracker, tracker
from grash.search.callbacks import RunningSearch, report_event
from grash.search.ledger import SearchState, read_ledger
from grash.training.loop import Progress
from report.runs import write_run


class Recorded(Store):
    name = "Recorded"

    def __init__(self, failing: str = "") -> None:
        self.calls: list[tuple[Any, ...]] = []
        self.failing = failing

    def _call(self, kind: str, *arguments: Any) -> None:
        assert threading.current_thread() is not threading.main_thread()
        if kind == self.failing:
            raise ConnectionError("the server is gone")
        self.calls.append((kind, *arguments))

    def begin(self, folder: Path, search_id: str | None, params: dict[str, Any]) -> str:
        self._call("begin", search_id, params)
        return search_id or "first"

    def begin_trial(self, trial: trackers.TrackedTrial) -> None:
        self._call("begin_trial", trial.key)

    def log_trial(self, trial: trackers.TrackedTrial, metrics: dict[str, float], step: int) -> None:
        self._call("log_trial", trial.key, metrics, step)

    def end_trial(self, trial: trackers.TrackedTrial, metrics: dict[str, float], *, ok: bool) -> None:
        self._call("end_trial", trial.key, metrics, ok)

    def log_search(self, metrics: dict[str, float], n_ended: int) -> None:
        self._call("log_search", metrics, n_ended)

    def end(self, metrics: dict[str, float], files: list[Path], trials: list[dict[str, Any]], *, ok: bool) -> None:
        self._call("end", metrics, files, trials, ok)


def replay(folder: Path, tracked: Tracker, *, until: int | None = None, known: int = 0) -> SearchState:
    """Send the events of a recorded search to a tracker, as the driver does; `known` ones are of another process."""
    events = read_ledger(folder / "ledger.jsonl")
    state = SearchState.replay(events[:known])
    search = RunningSearch(folder, state, ("cpu",))
    if known:
        tracked.on_plan(search)
    for event in events[known:until]:
        state.apply(event)
        report_event([tracked], search, event)
    tracked.on_end(search)
    return state


def keys(store: Recorded, kind: str) -> list[str]:
    return [call[1] for call in store.calls if call[0] == kind]


def test_every_trial_is_sent_once_in_order(tmp_path: Path) -> None:
    write_run(tmp_path, n_trials=4)
    store = Recorded()
    state = replay(tmp_path, Tracker("recorded", store))
    ended = [f"round-{r.plan.number}/configuration-{n}" for r in state.rounds for n in r.results] + ["final-training"]
    assert sorted(keys(store, "end_trial")) == sorted(ended)
    assert store.calls[0][0] == "begin" and store.calls[-1][0] == "end" and store.calls[-1][-1] is True
    assert "test_mrr" in store.calls[-1][1]


def test_a_resumed_search_continues_its_run_and_adds_what_is_missing(tmp_path: Path) -> None:
    write_run(tmp_path, n_trials=4)
    events = read_ledger(tmp_path / "ledger.jsonl")
    ends = [i for i, event in enumerate(events) if event["event"] == "trial_ended"]
    first, second = Recorded(), Recorded()
    replay(tmp_path, Tracker("recorded", first), until=ends[1] + 1)
    replay(tmp_path, Tracker("recorded", second), known=ends[2] + 1)  # the third result was not sent
    assert second.calls[0][1] == "first"
    assert len(keys(first, "end_trial")) == 2 and len(keys(second, "end_trial")) == len(ends) - 2
    assert not set(keys(first, "end_trial")) & set(keys(second, "end_trial"))
    rows = second.calls[-1][3]  # all trials, also those that the first process sent
    assert sorted(row["trial"] for row in rows) == sorted(keys(first, "end_trial") + keys(second, "end_trial"))
    assert all(row["mrr"] > 0 and row["lr"] > 0 for row in rows)


def test_trackers_that_write_at_the_same_time_lose_nothing(tmp_path: Path) -> None:
    def remember(target: str) -> None:
        for n in range(1, 41):
            trackers._write_known(tmp_path, target, {"id": "x", "trials": [str(i) for i in range(n)]})

    threads = [threading.Thread(target=remember, args=(name,)) for name in ("mlflow", "tensorboard", "wandb")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [len(known["trials"]) for known in trackers._read_known(tmp_path).values()] == [40, 40, 40]


def test_the_last_loss_and_epoch_of_a_short_trial_are_sent(tmp_path: Path) -> None:
    state = write_run(tmp_path, n_trials=4).state
    store, search = Recorded(), RunningSearch(tmp_path, state, ("cpu",))
    tracked, result = Tracker("recorded", store), state.rounds[0].results[0]
    tracked.on_plan(search)
    del store.calls[:]
    for step in (1, 2, 3):  # within ten seconds: the first is sent at once, the last at the end of the trial
        tracked.on_progress(search, 1, 0, Progress(step, 9, step / 9, 1.0 / step, 1.0, 1.0, 1.0, None))
    tracked.on_trial_end(search, replace(result, status="diverged", history=[]))
    tracked.on_trial_end(search, replace(result, history=[{"step": 9, "epoch": 2.0, "loss": 0.25, "mrr": 0.5}]))
    tracked.on_end(search)
    sent = [call[2:] for call in store.calls if call[0] == "log_trial"][-3:]
    assert [(step, metrics["loss"]) for metrics, step in sent] == [(1, 1.0), (3, 1 / 3), (9, 0.25)]
    assert sent[-1][0] == {"valid_mrr": 0.5, "loss": 0.25, "epoch": 2.0}


@pytest.mark.parametrize("failing", ["begin", "begin_trial", "end_trial", "log_search", "end"])
def test_an_error_of_the_service_is_one_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture, failing: str) -> None:
    write_run(tmp_path, n_trials=4)
    store = Recorded(failing)
    with caplog.at_level(logging.WARNING, "grash"):
        assert replay(tmp_path, Tracker("recorded", store)).finished
    warnings = [r.getMessage() for r in caplog.records]
    assert warnings == ["Recorded is not up to date (the server is gone). The search continues."]
    assert bool(store.calls) == (failing != "begin"), "nothing can be sent to a run that does not exist"

    resumed, events = Recorded(), read_ledger(tmp_path / "ledger.jsonl")
    replay(tmp_path, Tracker("recorded", resumed), known=len(events))
    ended = [event for event in events if event["event"] == "trial_ended"]
    assert len(keys(store, "end_trial")) + len(keys(resumed, "end_trial")) == len(ended)
    assert bool(keys(resumed, "end_trial")) == (failing in ("begin", "end_trial")), "what was not sent is sent later"


def test_a_service_that_hangs_delays_the_end_by_its_patience_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    ended = threading.Event()

    class Hangs(Recorded):
        def begin(self, folder: Path, search_id: str | None, params: dict[str, Any]) -> str:
            ended.wait(60)  # longer than the search waits
            return "late"

    monkeypatch.setattr(trackers, "_PATIENCE", 0.1)
    write_run(tmp_path, n_trials=4)
    replay(tmp_path, Tracker("recorded", Hangs()))
    ended.set()
    assert "it took longer than" in caplog.text


def test_a_password_in_the_uri_is_not_written_to_the_run_folder(tmp_path: Path) -> None:
    write_run(tmp_path, n_trials=4)
    replay(tmp_path, Tracker("mlflow:https://ada:secret@127.0.0.1:5000", Recorded()))
    text = (tmp_path / "trackers.json").read_text()
    assert "secret" not in text and "mlflow:https://127.0.0.1:5000" in text


def test_an_unknown_or_missing_tracker_is_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match=r"'mlfow:x' is no tracker. Did you mean mlflow\?"):
        tracker("mlfow:x")
    monkeypatch.setitem(sys.modules, "mlflow", None)
    with pytest.raises(InputError, match=r"pip install 'grash-kge\[mlflow\]'"):
        tracker("mlflow")


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # MLflow uses what SQLAlchemy has deprecated
def test_mlflow_has_a_run_for_the_search_and_one_for_each_trial(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_DISABLE_TELEMETRY", "true")
    monkeypatch.chdir(tmp_path)
    mlflow = pytest.importorskip("mlflow", reason="mlflow is an extra")
    write_run(tmp_path / "run", n_trials=4)
    uri = f"sqlite:///{tmp_path}/mlflow.db"
    (tmp_path / "run" / "best.yaml").write_text("model: complex\n")
    state = replay(tmp_path / "run", tracker(f"mlflow:{uri}"))
    client = mlflow.MlflowClient(tracking_uri=uri)
    runs = client.search_runs([client.get_experiment_by_name("grash").experiment_id])
    parents = [run for run in runs if "mlflow.parentRunId" not in run.data.tags]
    assert len(parents) == 1 and parents[0].info.status == "FINISHED" and parents[0].info.run_name == "run"
    assert state.final is not None and state.final.evaluation is not None
    assert parents[0].data.metrics["test_mrr"] == pytest.approx(state.final.evaluation["both"]["mrr"])
    assert [f.path for f in client.list_artifacts(parents[0].info.run_id)] == ["best.yaml"]
    children = {run.info.run_name: run for run in runs if run.data.tags.get("mlflow.parentRunId")}
    result = state.rounds[0].results[0]
    child = children["round-1/configuration-0"]
    assert child.data.metrics["mrr"] == pytest.approx(result.mrr)
    assert child.data.params["lr"] == str(state.configurations[0].values["lr"])
    curve = client.get_metric_history(child.info.run_id, "valid_mrr")
    assert [(m.step, m.value) for m in curve] == [(v["step"], v["mrr"]) for v in result.history]


@pytest.mark.slow
def test_tensorboard_reads_the_curves_and_the_settings_back(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard", reason="tensorboard is an extra")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    write_run(tmp_path / "run", n_trials=4)
    state = replay(tmp_path / "run", tracker(f"tensorboard:{tmp_path}/logs"))
    folder = tmp_path / "logs" / "run"
    curve = EventAccumulator(str(folder / "round-1" / "configuration-0"))
    curve.Reload()
    history = state.rounds[0].results[0].history
    read = curve.Scalars("valid_mrr")
    assert [e.step for e in read] == [v["step"] for v in history]
    assert [e.value for e in read] == pytest.approx([v["mrr"] for v in history], rel=1e-6)
    assert curve.Scalars("result/mrr")[0].value == pytest.approx(state.rounds[0].results[0].mrr)
    assert "_hparams_/session_start_info" in curve.summary_metadata
    search = EventAccumulator(str(folder / "search"))
    search.Reload()
    assert search.Scalars("search/spent")[-1].value == pytest.approx(state.spent)
    assert state.final is not None and state.final.evaluation is not None
    assert search.Scalars("result/test_mrr")[0].value == pytest.approx(state.final.evaluation["both"]["mrr"])


@pytest.mark.slow
def test_wandb_keeps_an_offline_run_with_the_trials(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("WANDB_MODE", "offline"), ("WANDB_ERROR_REPORTING", "false"), ("WANDB_SILENT", "true")):
        monkeypatch.setenv(name, value)
    pytest.importorskip("wandb", reason="wandb is an extra")
    write_run(tmp_path / "run", n_trials=4)
    state = replay(tmp_path / "run", tracker("wandb:atlas"))
    (folder,) = (tmp_path / "run" / "wandb").glob("offline-run-*")
    (table,) = (folder / "files" / "media" / "table").rglob("trials*.table.json")
    content = json.loads(table.read_text())
    rows = [dict(zip(content["columns"], row)) for row in content["data"]]
    assert len(rows) == sum(len(r.results) for r in state.rounds) + 1
    first = next(row for row in rows if row["trial"] == "round-1/configuration-0")
    assert first["mrr"] == state.rounds[0].results[0].mrr and first["lr"] == state.configurations[0].values["lr"]
    assert list(folder.glob("run-*.wandb"))
