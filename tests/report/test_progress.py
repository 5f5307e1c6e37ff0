"""The files of a run folder follow the search, and an error in them neither stops nor hides anything."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from grash.report import charts, progress
from grash.report.progress import ProgressLines, RunFiles
from grash.search.callbacks import RunningSearch, report_event
from grash.search.ledger import SearchState, read_ledger
from report.runs import MISHAPS, write_run


def replay(folder: Path, files: RunFiles) -> SearchState:
    """Show the files every state of the search in a folder."""
    state = SearchState()
    search = RunningSearch(folder, state, ("cpu",))
    for event in read_ledger(folder / "ledger.jsonl"):
        state.apply(event)
        report_event([files], search, event)
    return state


def test_a_search_writes_its_report_its_log_and_its_studies(tmp_path: Path) -> None:
    write_run(tmp_path, n_trials=4)
    replay(tmp_path, RunFiles(tmp_path))
    lines = (tmp_path / "log.txt").read_text(encoding="utf-8").splitlines()
    assert "round 1: 4 trials of" in lines[0] and "test MRR" in lines[-1]
    assert (tmp_path / "report.html").is_file() and (tmp_path / "optuna.log").is_file()


def test_many_trials_have_a_line_for_each_tenth_of_a_round_where_lines_are_printed(tmp_path: Path) -> None:
    write_run(tmp_path, n_trials=64, faults=MISHAPS)
    lines: list[str] = []
    printed, state = ProgressLines(lines.append, every_trial=False), SearchState()
    for event in read_ledger(tmp_path / "ledger.jsonl"):
        state.apply(event)
        printed.watch(state, {}, ("cpu",))
    first = [line for line in lines if line.startswith("round 1  ")]
    assert [line.split("  ")[1] for line in first] == [f"{-(-64 * i // 10)}/64" for i in range(1, 10)]
    assert all("best so far: configuration " in line for line in first) and "4 without a score" in first[-1]
    assert lines[0].startswith("round 1: 64 trials") and lines[10].startswith("round 1 done: ")
    assert "round 2  1/16  configuration " in lines[12]
    replay(tmp_path, RunFiles(tmp_path))
    log = (tmp_path / "log.txt").read_text(encoding="utf-8").splitlines()
    assert sum("  round 1  " in line for line in log) == 64


@pytest.mark.parametrize("broken", ["chart", "log", "optuna"])
def test_any_error_in_a_file_is_logged_once_and_the_search_continues(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, broken: str
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise ZeroDivisionError("a defect")

    owner, name = {
        "chart": (charts, "funnel"),
        "log": (progress, "n_entrants"),
        "optuna": (progress.OptunaView, "_update"),
    }[broken]
    monkeypatch.setattr(owner, name, fail)
    write_run(tmp_path, n_trials=16)
    files = RunFiles(tmp_path)
    with caplog.at_level(logging.DEBUG, "grash"):
        state = replay(tmp_path, files)
        files.write()
    assert state.finished
    warnings = [r for r in caplog.records if r.levelno == logging.WARNING]
    assert len(warnings) == 1 and "a defect" in warnings[0].getMessage()
    assert any(r.levelno == logging.DEBUG and r.exc_info is not None for r in caplog.records)
    assert (tmp_path / "report.html").is_file()


def test_a_broken_report_does_not_hide_the_error_of_the_search(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "write_report", lambda *_: 1 / 0)
    write_run(tmp_path, n_trials=4)
    with pytest.raises(ValueError, match="the real error"):
        try:
            raise ValueError("the real error")
        finally:
            RunFiles(tmp_path).write()
