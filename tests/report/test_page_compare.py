"""Several searches on one page."""

from __future__ import annotations

import os
import re
from dataclasses import replace
from pathlib import Path

from grash.report.page import COMPARED, read_run, run_row, write_comparison
from report.runs import write_run
from report.test_page import checked
from small_graph import grash


def test_two_finished_searches_are_compared_in_results_relations_and_settings(tmp_path: Path) -> None:
    for name, seed in (("a", 0), ("b", 1)):
        write_run(tmp_path / name, n_trials=16, seed=seed)
    page = write_comparison([tmp_path / "a", tmp_path / "b"], tmp_path / "c.html").read_text(encoding="utf-8")
    assert checked(page).marks == {"tests": 4}  # wide and narrow
    assert page.count("relation 3") == 2 and ">lr</th>" in page and "cannot be compared" not in page
    assert 'href="a/report.html"' in page and 'href="b/report.html"' in page


def test_settings_and_numbers_look_as_in_the_reports(tmp_path: Path) -> None:
    for name, seed in (("a", 1), ("b", 3)):
        write_run(tmp_path / name, n_trials=16, seed=seed)
    page = write_comparison([tmp_path / "a", tmp_path / "b"], tmp_path / "c.html").read_text(encoding="utf-8")
    settings = page[page.index("Settings of the winners") :]
    assert (
        "<td>yes</td>" in settings
        and "<td>off</td>" in settings
        and "<td>True</td>" not in settings
        and "<td>0</td>" not in settings
    )
    assert re.search(r'<td data-v="0\.\d+" class="number">', page) and '<td data-v="finished">' in page


def test_the_epochs_are_those_of_the_final_training(tmp_path: Path) -> None:
    def epochs() -> str:
        return run_row(read_run(tmp_path))[COMPARED.index("epochs")]

    run = write_run(tmp_path, n_trials=4, n_ended=1, max_epochs=30.0)
    assert epochs() == "30"
    run.write("plan_changed", why=["more time is left"], final_epochs=120.0)
    assert epochs() == "120"  # planned
    run.go()
    assert run.state.final is not None
    history = [{**entry, "epoch": 2.5 * entry["epoch"]} for entry in run.state.final.history]
    run.write("trial_ended", result=replace(run.state.final, history=history).to_json())
    assert epochs() == "75"  # it stopped early


def test_searches_of_different_graphs_share_no_chart(finished: Path, running: Path, tmp_path: Path) -> None:
    for name, graph in (("a", "one"), ("b", "one"), ("c", "two")):
        write_run(tmp_path / name, n_trials=8, name=graph)
    page = write_comparison([tmp_path / name for name in "abc"], tmp_path / "c.html").read_text(encoding="utf-8")
    assert checked(page).marks == {"tests-1": 4, "tests-2": 2} and "cannot be compared" in page
    hostile = write_comparison([finished, running], tmp_path / "c.html").read_text(encoding="utf-8")
    checked(hostile)
    assert "<script>alert" not in hostile and "&lt;script&gt;alert" in hostile


def test_a_comparison_leaves_reports_that_are_up_to_date_alone(tmp_path: Path, monkeypatch) -> None:
    for name in "ab":
        write_run(tmp_path / name, n_trials=4)
    (tmp_path / "a" / "report.html").write_text("as the search wrote it")
    (tmp_path / "b" / "report.html").write_text("old")
    os.utime(tmp_path / "b" / "report.html", (1, 1))
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert grash("report", "../a", "../b").code == 0
    assert (tmp_path / "a" / "report.html").read_text() == "as the search wrote it"
    assert (tmp_path / "b" / "report.html").read_text() != "old"


def test_a_folder_with_a_report_but_without_a_search_is_refused(tmp_path: Path) -> None:
    write_run(tmp_path / "a", n_trials=4)
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "report.html").touch()
    refused = grash("report", tmp_path / "a", tmp_path / "b", "-o", tmp_path / "both.html")
    assert refused.code == 2 and f"{tmp_path / 'b'} is not a run folder of a search: it has no" in refused.err


def test_the_command_writes_the_reports_and_the_comparison(tmp_path: Path) -> None:
    for name in "ab":
        write_run(tmp_path / name, n_trials=4)
    ran = grash("report", tmp_path / "a", tmp_path / "b", "-o", tmp_path / "both.html")
    assert (ran.code, ran.out) == (0, f"{tmp_path / 'both.html'}\n") and (tmp_path / "b" / "report.html").is_file()
    refused = grash("report", tmp_path / "a", "-o", tmp_path / "one.html")
    assert refused.code == 2 and "is for several runs" in refused.err
