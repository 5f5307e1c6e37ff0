"""The search as Optuna studies: what they say, that plots work, that the file survives whatever happens to it."""

from __future__ import annotations

import logging
import sys
import time
import warnings
from pathlib import Path
from typing import Any

import pytest

from grash.report.optuna import OPTUNA_FILE, OptunaView
from grash.report.summary import read_state
from grash.search.ledger import SearchState, read_ledger
from report.runs import MISHAPS, write_run

optuna = pytest.importorskip("optuna", reason="the view is Optuna's")


def studies(folder: Path) -> dict[str, Any]:
    """The studies of a run folder as Optuna itself reads them, by what comes after the slash."""
    backend = optuna.storages.journal.JournalFileBackend(str(folder / OPTUNA_FILE))
    storage = optuna.storages.JournalStorage(backend)
    found = {
        s.study_name: optuna.load_study(study_name=s.study_name, storage=storage) for s in storage.get_all_studies()
    }
    assert all(name.startswith(f"{folder.name}/") for name in found)
    return {name.partition("/")[2]: study for name, study in found.items()}


def content(folder: Path) -> dict[str, list[Any]]:
    """Everything that a study says of its trials, but for times."""
    return {
        name: sorted(
            (t.user_attrs["config_id"], t.state.name, t.value, t.params, t.user_attrs, t.intermediate_values)
            for t in study.trials
        )
        for name, study in studies(folder).items()
    }


def states_of(study: Any) -> dict[str, int]:
    names = [t.state.name for t in study.trials]
    return {name: names.count(name) for name in set(names)}


def test_a_finished_search_is_an_overview_and_a_study_per_round(finished: Path) -> None:
    state = read_state(finished)
    OptunaView(finished).update(state)
    found = studies(finished)
    assert list(found) == ["overview", "round-1", "round-2", "round-3"]
    assert states_of(found["overview"]) == {"COMPLETE": 62, "FAIL": 2}
    best = found["overview"].best_trial
    assert best.user_attrs["config_id"] == state.winner and best.value == 3.0
    last = found["round-3"].best_trial
    assert last.user_attrs["config_id"] == state.winner and last.value == state.rounds[2].results[state.winner].mrr
    assert found["overview"].metric_names == ["rung_score"] and found["round-1"].metric_names == ["valid_mrr"]


def test_a_diverged_trial_is_complete_and_other_failures_are_not(finished: Path) -> None:
    OptunaView(finished).update(read_state(finished))
    trials = {t.user_attrs["config_id"]: t for t in studies(finished)["round-1"].trials}
    assert trials[5].state.name == "COMPLETE" and trials[5].value == 0.0  # diverged: as bad as can be
    assert trials[20].state.name == "FAIL" and trials[20].user_attrs["status"] == "killed"
    assert trials[31].state.name == "COMPLETE" and trials[31].value > 0  # out of memory, then well


def test_only_parameters_that_count_are_there(finished: Path) -> None:
    state = read_state(finished)
    OptunaView(finished).update(state)
    for trial in studies(finished)["round-1"].trials:
        values = state.configurations[trial.user_attrs["config_id"]].values
        on = values["penalty"] != "none"
        assert ("penalty_entity.on" in trial.params) == on
        assert ("penalty_entity" in trial.params) == (on and values["penalty_entity"] > 0)
        assert trial.params["lr"] == values["lr"]


def test_a_running_search_shows_which_configurations_are_active(running: Path) -> None:
    OptunaView(running).update(read_state(running))
    found = studies(running)
    assert states_of(found["overview"]) == {"COMPLETE": 46, "FAIL": 2, "RUNNING": 16}
    assert states_of(found["round-2"]) == {"COMPLETE": 6, "RUNNING": 2}
    assert {t.params["model"] for t in found["overview"].trials} == {"complex", "rotate", "transe"}


@pytest.mark.slow
@pytest.mark.parametrize("which", ["finished", "running"])
def test_every_plot_and_the_importances_work(which: str, request: pytest.FixtureRequest) -> None:
    pytest.importorskip("plotly")
    folder = request.getfixturevalue(which)
    OptunaView(folder).update(read_state(folder))
    from optuna import visualization as plots

    drawn = [
        plots.plot_contour, plots.plot_edf, plots.plot_intermediate_values, plots.plot_optimization_history,
        plots.plot_parallel_coordinate, plots.plot_param_importances, plots.plot_rank, plots.plot_slice,
        plots.plot_timeline,
    ]  # fmt: skip
    for name, study in studies(folder).items():
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Optuna says when few trials share a branch
            assert optuna.importance.get_param_importances(study)
            for plot in drawn:
                extra = {"params": ["lr", "negatives_tail"]} if plot in (plots.plot_contour, plots.plot_rank) else {}
                assert plot(study, **extra).data, f"{plot.__name__} of {name} is empty"


def test_event_by_event_gives_the_same_as_all_at_once(tmp_path: Path) -> None:
    folder = tmp_path / "live"
    write_run(folder, n_trials=16, faults=MISHAPS)
    events = read_ledger(folder / "ledger.jsonl")
    view, state = OptunaView(folder), SearchState()
    for i, event in enumerate(events):
        state.apply(event)
        if i % 7 == 3:
            view = OptunaView(folder)  # the driver was killed and another one resumes
        view.update(state)
    live = content(folder)
    (folder / OPTUNA_FILE).unlink()
    OptunaView(folder).update(state)
    assert content(folder) == live


def test_nothing_new_writes_nothing(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    state = write_run(folder, n_trials=16).state
    OptunaView(folder).update(state)
    before = (folder / OPTUNA_FILE).read_bytes()
    for _ in range(2):
        OptunaView(folder).update(state)
    assert (folder / OPTUNA_FILE).read_bytes() == before


def test_a_stopped_search_leaves_nothing_running(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    run = write_run(folder, n_trials=16, n_ended=3)
    view = OptunaView(folder)
    view.update(run.state)
    assert states_of(studies(folder)["round-1"])["RUNNING"] == 2
    run.write("search_stopped", reason="interrupted")
    view.update(run.state)
    assert "RUNNING" not in states_of(studies(folder)["round-1"])
    run.write("search_resumed", host="here", pid=1)
    run.go()
    view.update(run.state)
    assert states_of(studies(folder)["round-1"]) == {"COMPLETE": 16}


def test_after_an_extension_the_file_is_rewritten(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    run = write_run(folder, n_trials=16)
    view = OptunaView(folder)
    view.update(run.state)
    run.extend(32, 6.0)
    view.update(run.state)
    assert states_of(studies(folder)["overview"]) == {"RUNNING": 16}
    run.go()
    view.update(run.state)
    assert states_of(studies(folder)["overview"]) == {"COMPLETE": 32}
    assert studies(folder)["overview"].best_trial.user_attrs["config_id"] == run.state.winner


@pytest.mark.parametrize("damage", ["torn", "garbage", "middle", "another", "foreign"])
def test_a_damaged_or_foreign_file_is_replaced(tmp_path: Path, damage: str) -> None:
    folder = tmp_path / "run"
    state = write_run(folder, n_trials=16).state
    OptunaView(folder).update(state)
    path, whole = folder / OPTUNA_FILE, content(folder)
    lines = path.read_bytes().splitlines(keepends=True)
    if damage == "torn":
        path.write_bytes(path.read_bytes()[:-9])
    elif damage == "garbage":
        path.write_bytes(b"\x00\xff not JSON\n" * 3)
    elif damage == "middle":
        path.write_bytes(b"".join([*lines[:10], b'{"op_code":99}\n', *lines[10:]]))
    elif damage == "another":
        other = tmp_path / "other" / "run"
        write_run(other, n_trials=8, seed=5, name="other")
        path.write_bytes((other / OPTUNA_FILE).read_bytes() if (other / OPTUNA_FILE).exists() else b"")
        state_other = read_state(other)
        state_other.started_at = "2020-01-01T00:00:00+00:00"
        OptunaView(other).update(state_other)
        path.write_bytes((other / OPTUNA_FILE).read_bytes())
    else:
        path.unlink()
        optuna.create_study(
            study_name="mine",
            storage=optuna.storages.JournalStorage(optuna.storages.journal.JournalFileBackend(str(path))),
        )
    OptunaView(folder).update(state)
    assert content(folder) == whole


def test_a_note_from_the_dashboard_stays(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    run = write_run(folder, n_trials=16, n_ended=3)
    view = OptunaView(folder)
    view.update(run.state)
    studies(folder)["overview"].set_user_attr("remark", "looks fine")  # another writer
    run.go()
    view.update(run.state)
    assert studies(folder)["overview"].user_attrs["remark"] == "looks fine"
    assert states_of(studies(folder)["overview"]) == {"COMPLETE": 16}


@pytest.mark.slow
def test_a_thousand_trials_take_less_than_two_seconds(tmp_path: Path) -> None:
    folder = tmp_path / "large"
    state = write_run(folder, n_trials=1000, budget=100, guard_rails=False).state
    started = time.process_time()  # one write and no fsync: there is nothing to wait for
    OptunaView(folder).update(state)
    assert time.process_time() - started < 2
    assert len(studies(folder)["round-1"].trials) == 1000


def test_without_optuna_nothing_is_written_and_logged_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setitem(sys.modules, "optuna", None)
    folder = tmp_path / "run"
    state = write_run(folder, n_trials=4).state
    with caplog.at_level(logging.INFO, "grash"):
        view = OptunaView(folder)
        for _ in range(3):
            view.update(state)
    assert not (folder / OPTUNA_FILE).exists()
    assert len([r for r in caplog.records if "needs Optuna" in r.getMessage()]) == 1


def test_a_view_that_cannot_be_written_does_not_end_the_search(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = tmp_path / "run"
    state = write_run(folder, n_trials=4).state
    (folder / OPTUNA_FILE).mkdir()
    view = OptunaView(folder)
    view.update(state)
    view.update(state)
    assert len([r for r in caplog.records if "The search continues" in r.getMessage()]) == 1
