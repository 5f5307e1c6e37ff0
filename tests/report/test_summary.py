"""A search in figures: counts, incumbent, costs, time left, failures, winner."""

from __future__ import annotations

import fcntl
import json
import socket
import subprocess
import sys
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest

from grash.errors import InputError
from grash.report.summary import _LOCK_FILE, is_abandoned, read_state, summarize, trial_rows
from grash.search.run_folder import LOCK_FILE
from report.runs import BEGIN, RISING, write_run

SOON = BEGIN + timedelta(hours=1)


def test_a_finished_search_has_a_winner_with_test_metrics(finished: Path) -> None:
    summary = summarize(read_state(finished), SOON)
    assert summary["status"] == "finished" and summary["seconds_left"] is None and summary["ends_at"] is None
    assert [r["trials"] for r in summary["rounds"]] == [64, 16, 4]
    assert [(r["done"], r["failed"], r["waiting"], r["running"]) for r in summary["rounds"]] == [
        (60, 4, 0, 0), (16, 0, 0, 0), (4, 0, 0, 0),
    ]  # fmt: skip
    assert summary["winner"]["configuration"] == summary["incumbent"]["configuration"]
    low, high = summary["winner"]["test"]["interval"]
    assert low < summary["winner"]["test"]["mrr"] < high
    assert summary["budget"]["spent"] <= summary["budget"]["planned"] == 3.0
    assert summary["cost"]["measured_seconds"] > 0


def test_the_best_mrr_of_a_round_is_the_highest_and_the_incumbent_says_who_has_more(tmp_path: Path) -> None:
    summary = summarize(write_run(tmp_path, n_trials=4, validations=RISING).state, SOON)
    assert summary["rounds"][0]["best"]["configuration"] == 0 and summary["rounds"][0]["best"]["mrr"] == 0.0168
    assert summary["incumbent"]["configuration"] == 2 and summary["incumbent"]["mrr"] == 0.0162
    assert summary["incumbent"]["higher"] == {"configuration": 0, "mrr": 0.0168}
    plain = summarize(write_run(tmp_path / "plain", n_trials=4, validations=RISING, trend=0.0).state, SOON)
    assert plain["incumbent"]["configuration"] == 0 and plain["incumbent"]["higher"] is None


def test_a_running_search_knows_what_runs_and_waits(running: Path) -> None:
    summary = summarize(read_state(running), SOON)
    second, third = summary["rounds"][1:]
    assert summary["status"] == "running"
    assert (second["done"], second["running"], second["waiting"]) == (6, 2, 8)
    assert third["plan"] is None and third["waiting"] == 4
    assert summary["incumbent"]["round"] == 2 and summary["winner"] is None
    assert summary["seconds_left"] > 0 and summary["ends_at"] > SOON.isoformat()


def test_time_left_shrinks_as_the_search_goes_on(tmp_path: Path) -> None:
    run = write_run(tmp_path, n_ended=2)
    left = []
    for _ in range(20):
        summary = summarize(run.state, BEGIN + timedelta(seconds=run.elapsed))
        left.append(summary["seconds_left"])
        run.go(n_ended=4)
    assert left[0] > left[-1]
    assert all(later < earlier * 1.5 for earlier, later in zip(left, left[1:]))  # estimates may waver, not jump


def test_time_left_is_at_most_that_of_the_limit(tmp_path: Path) -> None:
    run = write_run(tmp_path, n_ended=2)
    unlimited = summarize(run.state, SOON)["seconds_left"]
    limited = replace(run.state, time_limit=run.state.seconds + unlimited / 2)
    assert summarize(limited, SOON)["seconds_left"] == pytest.approx(unlimited / 2)
    assert summarize(replace(run.state, time_limit=0.0), SOON)["seconds_left"] == 0


def test_nothing_measured_means_no_estimate(tmp_path: Path) -> None:
    run = write_run(tmp_path, n_ended=0)
    summary = summarize(run.state, SOON)
    assert summary["seconds_left"] is None and summary["incumbent"] is None


def test_a_failed_search_says_why(failed: Path) -> None:
    summary = summarize(read_state(failed), SOON)
    assert summary["status"] == "failed" and "No trial of round 1 has a score" in summary["why"]
    assert summary["failures"][0]["kind"] == "error" and summary["failures"][0]["count"] == 8
    assert summary["rounds"][1]["waiting"] == 0


def test_failures_count_every_attempt_and_keep_the_first_message(finished: Path) -> None:
    kinds = {f["kind"]: f for f in summarize(read_state(finished), SOON)["failures"]}
    assert {k: f["count"] for k, f in kinds.items()} == {"killed": 3, "diverged": 2, "out_of_memory": 1, "timeout": 1}
    assert kinds["diverged"]["configuration"] == 5 and "diverged at step" in kinds["diverged"]["message"]


@pytest.mark.parametrize("n_ended", [None, 0, 1, 3, 63, 64, 80, 84])
def test_every_state_is_json(tmp_path: Path, n_ended: int | None) -> None:
    run = write_run(tmp_path, n_ended=n_ended)
    json.dumps(summarize(run.state, SOON), allow_nan=False)
    json.dumps(trial_rows(run.state), allow_nan=False)


def test_an_extended_search_counts_the_new_trials(tmp_path: Path) -> None:
    run = write_run(tmp_path, n_trials=16)
    run.extend(32, 6.0)
    summary = summarize(run.state, SOON)
    assert summary["status"] == "running" and summary["rounds"][0]["trials"] == 16
    run.go(n_ended=3)
    assert summarize(run.state, SOON)["rounds"][0]["waiting"] == 32 - 16 - 3 - 2
    trial_rows(run.state)
    run.go()
    assert summarize(run.state, SOON)["rounds"][0]["done"] == 32


def test_a_torn_last_line_is_left_out(tmp_path: Path) -> None:
    write_run(tmp_path, n_ended=5)
    path = tmp_path / "ledger.jsonl"
    whole = path.read_bytes()
    path.write_bytes(whole[:-20])
    summarize(read_state(tmp_path), SOON)
    assert path.read_bytes() == whole[:-20]  # looking changes nothing


def test_a_folder_without_ledger_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="not a run folder of a search"):
        read_state(tmp_path)
    (tmp_path / "ledger.jsonl").write_bytes(b"")
    with pytest.raises(InputError, match="has not started"):
        read_state(tmp_path)


def test_a_search_whose_process_has_gone_is_interrupted(tmp_path: Path) -> None:
    assert _LOCK_FILE == LOCK_FILE
    run = write_run(tmp_path, n_ended=5)
    assert not is_abandoned(tmp_path)  # no lock file: one cannot tell
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    here = socket.gethostname()
    for text, expected in [
        (f"process {gone.pid} on {here}\n", True),
        (f"process {gone.pid} on elsewhere\n", False),
        ("", True),
    ]:
        (tmp_path / LOCK_FILE).write_text(text)
        assert is_abandoned(tmp_path) == expected
    with (tmp_path / LOCK_FILE).open() as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        assert not is_abandoned(tmp_path)
    summary = summarize(run.state, SOON, alive=False)
    assert summary["status"] == "interrupted" and summary["seconds_left"] is None


def test_rows_have_one_line_per_trial_and_round(finished: Path) -> None:
    rows = trial_rows(read_state(finished))
    assert len(rows) == 64 + 16 + 4 + 1 and len({tuple(row) for row in rows}) == 1
    first = [r for r in rows if r["round"] == 1]
    assert sorted(r["rank"] for r in first if r["rank"] is not None) == list(range(1, 61))
    assert sum(bool(r["survived"]) for r in first) == 16
    assert rows[-1]["round"] == 0 and rows[-1]["mrr"] > 0
    assert {r["status"] for r in first} == {"ok", "diverged", "killed", "timeout"}
    assert all("config.lr" in r for r in rows)


def test_rows_become_a_data_frame(running: Path) -> None:
    polars = pytest.importorskip("polars")
    frame = polars.DataFrame(trial_rows(read_state(running)), infer_schema_length=None)
    assert len(frame) == 64 + 16 and set(frame["status"]) >= {"ok", "running", "waiting"}
