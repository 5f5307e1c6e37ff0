"""grash status and report, and what a search prints while it runs."""

from __future__ import annotations

import io
import json
import os
import re
import shlex
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, get_args

import pytest
from rich.console import Console

from grash.api.search import SearchResult
from grash.cli import main
from grash.cli.search import _STOP_CODES, _print_result
from grash.report import charts, live
from grash.report.live import draw_search, live_display
from grash.report.summary import _STOPPED_BY
from grash.search.ledger import SearchState, StopReason, read_ledger
from grash.training.loop import Progress
from report.runs import MISHAPS, RISING, write_run
from small_graph import grash, rings, write_tsv


@pytest.fixture
def run(tmp_path: Path) -> Path:
    write_run(tmp_path / "run", n_ended=18, n_trials=16, faults=MISHAPS)
    return tmp_path / "run"


def test_status_shows_rounds_best_and_failures(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["status", str(run)]) == 0
    shown = capsys.readouterr().out
    assert "yago3-10, complex: running" in shown and "best MRR" in shown and "of 3 full runs" in shown
    assert "2 diverged; first: configuration 5" in shown and "left" in shown


def test_status_as_json_is_the_summary(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["status", str(run), "--json"]) == 0
    summary = json.loads(capsys.readouterr().out)
    assert summary["rounds"][1]["done"] == 2 and summary["incumbent"]["round"] == 2


def test_status_prints_how_to_resume(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (run / ".lock").write_text("")
    assert main(["status", str(run)]) == 0
    shown = capsys.readouterr().out
    assert "interrupted" in shown and f"grash resume {run}" in shown


def test_status_without_a_run_folder_is_an_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["status", str(tmp_path)]) == 2
    assert "is not a run folder of a search" in capsys.readouterr().err


def test_report_writes_the_page_and_prints_its_path(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", str(run)]) == 0
    assert capsys.readouterr().out.strip() == str(run / "report.html")
    assert (run / "report.html").read_text(encoding="utf-8").startswith("<!doctype html>")


def test_in_a_log_every_change_of_state_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_run(tmp_path, n_trials=16, faults=MISHAPS)
    state = SearchState()
    with live_display() as watch:
        for event in read_ledger(tmp_path / "ledger.jsonl"):
            state.apply(event)
            watch(state, {}, ("cpu",))
            watch(state, {}, ("cpu",))
    lines = capsys.readouterr().err.splitlines()
    assert lines[0].startswith("round 1: 16 trials of ") and "configuration 5  diverged: " in lines[6]
    assert max(map(len, lines)) <= 100  # a longer one continues below
    lines = [line for line in lines if not line.startswith("  ")]
    assert len(lines) == (1 + 16 + 1) + (1 + 4 + 1) + 2
    assert lines[-2].startswith("the winner is configuration ") and "test MRR" in lines[-1]


def test_a_resumed_search_does_not_repeat_itself(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    state = SearchState.replay(read_ledger(run / "ledger.jsonl"))
    with live_display() as watch:
        watch(state, {}, ("cpu",))
        watch(state, {}, ("cpu",))
    assert capsys.readouterr().err == "resumes in round 2: 18 trials done so far\n"


def lines_of(folder: Path, capsys: pytest.CaptureFixture[str]) -> list[str]:
    """Lines that a search prints when it resumes in a folder."""
    state = SearchState.replay(read_ledger(folder / "ledger.jsonl"))
    with live_display() as watch:
        watch(state, {}, ("cpu",))
        watch(state, {}, ("cpu",))
    return capsys.readouterr().err.splitlines()


@pytest.mark.parametrize(
    ("n_ended", "said"),
    [(1, "resumes in round 1: 1 trial done so far"), (None, "already finished: nothing to do")],
    ids=["one trial is not several", "over"],
)
def test_a_search_prints_where_it_resumes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], n_ended: int | None, said: str
) -> None:
    write_run(tmp_path, n_ended=n_ended, n_trials=4)
    assert lines_of(tmp_path, capsys) == [said]


@pytest.mark.parametrize(("n_trials", "n_ended"), [(4, 4), (1, 0)])
def test_a_search_killed_in_its_final_training_resumes_with_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], n_trials: int, n_ended: int
) -> None:
    run = write_run(tmp_path, n_ended=n_ended, n_trials=n_trials)
    run.go(n_ended=0)
    assert run.state.winner is not None and run.state.final_running is not None
    assert lines_of(tmp_path, capsys) == ["resumes with the final training"]


def test_a_search_with_nothing_left_to_train_only_ends(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_run(tmp_path, n_trials=4)
    ledger = tmp_path / "ledger.jsonl"
    ledger.write_bytes(b"".join(ledger.read_bytes().splitlines(keepends=True)[:-1]))
    assert lines_of(tmp_path, capsys)[0] == "resumes: everything is trained, only the end is missing"


def test_an_extended_search_resumes_in_its_first_round(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_run(tmp_path, n_trials=16).extend(32, 6.0)
    assert lines_of(tmp_path, capsys) == ["resumes in round 1: 20 trials done so far"]


def test_a_round_decided_by_more_than_mrr_prints_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_run(tmp_path, n_trials=4, validations=RISING)
    state = SearchState()
    with live_display() as watch:
        for event in read_ledger(tmp_path / "ledger.jsonl"):
            state.apply(event)
            watch(state, {}, ("cpu",))
    lines = capsys.readouterr().err.splitlines()
    assert max(map(len, lines)) <= 100
    at = next(i for i, line in enumerate(lines) if "done:" in line)
    done = f"{lines[at]} {lines[at + 1].strip()}"
    first = "first: configuration 2, MRR 0.0162 [0.0142, 0.0182], still rising (configuration 0 has 0.0168)"
    assert done == f"round 1 done: 1 of 4 advances; {first}"
    assert main(["status", str(tmp_path)]) == 0
    shown = capsys.readouterr().out
    assert re.search(r"^ *1 .* 0\.0168 ", shown, re.M)  # the column is named best MRR
    assert "winner  configuration 2 (" in shown
    assert "valid   MRR 0.0162 [0.0142, 0.0182] in round 1, still rising; configuration 0 has 0.0168" in shown


def test_status_of_several_runs_is_one_table(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_run(tmp_path / "a", n_trials=4, max_epochs=20)
    write_run(tmp_path / "b", n_trials=16, n_ended=3, models=["rotate", "transe"], name="wn18rr")
    assert main(["status", str(tmp_path / "a"), str(tmp_path / "b")]) == 0
    head, first, second = (re.split(r" {2,}", line.strip()) for line in capsys.readouterr().out.splitlines())
    assert head == [
        "run",
        "dataset",
        "model",
        "trials",
        "epochs",
        "status",
        "valid",
        "test",
        "baseline",
        "cost",
        "time",
    ]
    assert first[:6] == [str(tmp_path / "a"), "yago3-10", "complex", "4", "20", "finished"]
    assert float(first[6]) == pytest.approx(float(first[7]) + 0.004, abs=1e-4) and "–" not in first
    assert second[1:6] == ["wn18rr", "rotate, transe", "16", "100", "running"] and second[6:8] == ["–", "–"]


def test_status_of_several_runs_as_json_is_a_list(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in "ab":
        write_run(tmp_path / name, n_trials=4, n_ended=1)
    runs = [str(tmp_path / name) for name in "ab"]
    assert main(["status", *runs, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [entry["run"] for entry in found] == runs and {entry["status"] for entry in found} == {"running"}
    assert main(["status", runs[0], str(tmp_path)]) == 2
    assert f"{tmp_path} is not a run folder of a search" in capsys.readouterr().err


def test_quiet_prints_nothing(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    state = SearchState.replay(read_ledger(run / "ledger.jsonl"))
    with live_display(quiet=True) as watch:
        watch(state, {}, ("cpu",))
    assert capsys.readouterr() == ("", "")


def test_the_table_shows_what_runs_where(run: Path) -> None:
    state = SearchState.replay(read_ledger(run / "ledger.jsonl"))
    number = next(iter(state.rounds[1].running))
    beats = {(2, number): Progress(450, 1000, 0.5, 0.1, 10.0, 35.0, 42.0, 0.31)}
    shown = drawn(state, beats, ("cuda:0", "cuda:1", "cuda:7"))
    assert re.search(rf"configuration {number}, round 2 +[━╸╺]+ +45%  MRR 0.3100  42 s left", shown)
    assert re.search(r"cuda:7  idle", shown) and "best    configuration" in shown
    assert re.search(r"^1 .* ━+ +16/16, \d failed", shown, re.M) and re.search(r"cost +[━╸╺]+ +[\d.]+ of 3 runs", shown)


def drawn(state: SearchState, beats: dict[tuple[int, int], Progress], devices: tuple[str, ...]) -> str:
    """Return the live display in a terminal of 80 characters."""
    console = Console(file=io.StringIO(), width=80)
    console.print(draw_search(state, beats, devices, now=datetime.now(timezone.utc)))
    shown = console.file.getvalue()  # type: ignore[attr-defined]
    assert "…" not in shown.partition("best  ")[0] and max(map(len, shown.splitlines())) <= 80
    return str(shown)


def test_trials_that_are_trained_together_share_a_line(run: Path) -> None:
    state = SearchState.replay(read_ledger(run / "ledger.jsonl"))
    beats = {(2, n): Progress(450, 1000, 0.5, 0.1, 10.0, 35.0, 42.0, 0.01 * n) for n in range(100, 164)}
    state.rounds[1].running = {n: {"round": 2, "number": n, "device": "cuda:0"} for n in range(100, 164)}
    shown = drawn(state, beats, ("cuda:0",))
    assert re.search(r"cuda:0  64 trials of round 2 +[━╸╺]+ +45%  MRR 1.6300  42 s left", shown) and "idle" not in shown


def test_a_terminal_is_redrawn_at_most_four_times_a_second(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    state = SearchState.replay(read_ledger(run / "ledger.jsonl"))
    drawn = []

    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    monkeypatch.setattr("sys.stderr", Terminal())
    monkeypatch.setattr(live, "draw_search", lambda *words, now: drawn.append(now) or "")
    with live_display() as watch:
        for _ in range(500):
            watch(state, {}, ("cpu",))
    assert 2 <= len(drawn) <= 4  # the first, the last, and one or two if the machine is slow


@pytest.mark.parametrize(("n_after_best", "left", "said"), [(5, 10, True), (4, 10, False), (5, 0, False)])
def test_a_final_training_that_stopped_early_prints_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], n_after_best: int, left: int, said: bool
) -> None:
    write_run(tmp_path, n_trials=16)
    state = SearchState.replay(read_ledger(tmp_path / "ledger.jsonl"))
    assert state.winner is not None and state.final is not None
    made = state.configurations[state.winner]
    n_epochs = n_after_best + 2 + left
    made = replace(made, values={**made.values, "epochs": float(n_epochs), "patience": 5})
    mrrs = [0.1, 0.3, *([0.2] * n_after_best)]
    history = [{"step": 7 * i, "epoch": float(i), "loss": 1.0, "mrr": mrr, "lr": 0.1} for i, mrr in enumerate(mrrs, 1)]
    state.configurations[state.winner] = made
    state.finals[state.winner] = [replace(state.final, history=history)]
    _print_result(SearchResult(tmp_path, state), rings())
    shown = capsys.readouterr().out
    sentence = f"training stopped at epoch 7 of {n_epochs}: no better validation since epoch 2 (valid MRR 0.3000)"
    assert (sentence in " ".join(shown.split())) is said and ("stopped" in shown) is said


def test_a_search_of_several_models_prints_the_best_of_each(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_run(tmp_path, n_trials=16, models="complex,rotate,transe")
    state = SearchState.replay(read_ledger(tmp_path / "ledger.jsonl"))
    _print_result(SearchResult(tmp_path, state), rings())
    table = capsys.readouterr().out.partition("best of each model")[2].splitlines()[2:5]
    assert {line.split()[0] for line in table} == {"complex", "rotate", "transe"}
    assert table[0].split()[1] == str(state.winner)


def test_a_search_ends_with_its_baseline_relations_and_two_questions_that_can_be_asked(tmp_path: Path) -> None:
    source = write_tsv(rings(), tmp_path / "rings.tsv")
    settings = ("-n", 2, "--epochs", 2, "--dim", 4, "--engine", "sequential", "--set", "batch_size=8", "-q")
    ran = grash("search", source, "-o", tmp_path / "run", "--n-valid", 4, "--n-test", 4, *settings)
    assert ran.code == 0 and "baseline MRR 0." in ran.out and "relation  questions     MRR" in ran.out
    assert "\x1b" not in ran.out + ran.err and "\r" not in ran.err  # no color in a pipe
    asked = [line.split(maxsplit=1)[1] for line in ran.err.splitlines() if line.startswith("  grash predict")]
    assert len(asked) == 2
    for words in asked:
        answered = grash(*shlex.split(words), "-k", 3)
        assert answered.code == 0 and answered.out.split()[0] == "rank"


def test_a_stopped_search_leaves_its_best_configuration_and_how_to_use_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ctrl-C after the first trial: best.yaml can be trained, and `predict` on the folder prints what to do."""

    @contextmanager
    def interrupting(quiet: bool = False) -> Iterator[Any]:
        def watch(state: SearchState, progress: Any, devices: Any) -> None:
            if not state.stopped and sum(len(r.results) for r in state.rounds) == 1:
                os.kill(os.getpid(), signal.SIGINT)

        yield watch

    monkeypatch.setattr("grash.cli.search.live_display", interrupting)
    write_tsv(rings(), tmp_path / "rings.tsv")
    run = tmp_path / "run"
    size = ("-n", 4, "--epochs", 2, "--dim", 4, "--no-guard-rails", "--proposals", "random")
    words = ("search", tmp_path / "rings.tsv", "-o", run, *size, "--engine", "sequential", "--device", "cpu", "-q")
    ran = grash(*words)
    assert ran.code == 130, ran.err
    train = f"grash train {run / 'dataset'} --config {run / 'best.yaml'}"
    assert f"Train it with: {train}" in ran.err and "Best so far: configuration" in ran.err
    assert f"Train the best so far with: {train}" in grash("status", run).out
    for folder in (run, run / "model"):
        asked = grash("predict", folder, "--head", "person 1", "--relation", "next")
        assert asked.code == 2 and f"{run} is a search that has not trained its model." in asked.err
        assert f"grash resume {run}, or train its best configuration so far" in asked.err
    trained = grash(*train.split()[1:], "-o", tmp_path / "m", "--device", "cpu", "-q")
    assert trained.code == 0 and (tmp_path / "m" / "model.json").is_file()
    assert (run / "best.yaml").read_text().startswith("# Best configuration so far, when it was stopped, of run.")


@pytest.mark.parametrize("broken", ["funnel", "slices"])
def test_a_broken_chart_is_named_and_the_rest_of_the_report_is_written(
    run: Path, monkeypatch: pytest.MonkeyPatch, broken: str
) -> None:
    def fail(*_: object) -> str:
        raise ZeroDivisionError("a defect")

    monkeypatch.setattr(charts, broken, fail)
    ran = grash("report", run)
    assert ran.code == 0 and ran.out.strip() == str(run / "report.html")
    assert f"warning: The chart '{broken}' of the report cannot be drawn (ZeroDivisionError('a defect'))." in ran.err
    page = (run / "report.html").read_text(encoding="utf-8")
    assert page.count("This chart could not be drawn") == 1
    assert page.count('<figure class="chart"') == 9 and "All trials" in page and page.rstrip().endswith("</html>")


def test_a_broken_chart_does_not_stop_a_search(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> str:
        raise ZeroDivisionError("a defect")

    monkeypatch.setattr(charts, "finalists", fail)
    write_tsv(rings(), tmp_path / "rings.tsv")
    size = ("-n", 2, "--epochs", 2, "--dim", 4, "--no-guard-rails", "--proposals", "random")
    words = ("search", tmp_path / "rings.tsv", "-o", tmp_path / "run", *size, "--device", "cpu", "-q")
    ran = grash(*words, "--engine", "sequential")
    assert ran.code == 0 and "winner: configuration" in ran.out
    assert ran.err.count("ZeroDivisionError('a defect')") == 1 and (tmp_path / "run" / "model").is_dir()
    assert "could not be drawn" in (tmp_path / "run" / "report.html").read_text(encoding="utf-8")


def test_every_reason_of_a_stop_has_an_exit_code_and_a_sentence() -> None:
    assert {*_STOP_CODES} == {*_STOPPED_BY} == {*get_args(StopReason)}
    assert _STOP_CODES == {"interrupted": 130, "max_seconds": 7}
