"""Charts of small and odd searches: labels that differ, fit, and are there."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest

from grash.report.charts import Scale, cost_against_time, rank_flow, run_intervals, ticks_of, timeline
from grash.report.summary import TrialSpan
from report.runs import write_run


@pytest.mark.parametrize("seconds", [0.02, 0.05, 0.7])
def test_times_below_a_second_have_labels_that_differ(tmp_path: Path, seconds: float) -> None:
    state = write_run(tmp_path, n_trials=4).state
    for past in state.rounds:
        past.results = {n: replace(r, seconds=seconds * (1 + n)) for n, r in past.results.items()}
    spans = [TrialSpan("cpu", 1, 0, "ok", 0.0, seconds)]
    for drawn in (cost_against_time(state, 462), timeline(state, spans, 462)):
        labels = re.findall(r">([^<>]+ s)</text>", drawn or "")
        assert len(set(labels)) == len(labels) > 1 and not any(label.startswith("0.0 ") for label in labels)


def test_ranks_are_drawn_from_the_second_round_on(tmp_path: Path) -> None:
    assert rank_flow(write_run(tmp_path / "one", n_trials=16, n_ended=9).state, 950) is None
    assert rank_flow(write_run(tmp_path / "two", n_trials=16, n_ended=17).state, 950) is not None


def test_an_axis_of_one_value_has_a_label() -> None:
    assert ticks_of(Scale(8.0, 8.0, 0.0, 100.0, log=True)) == [(8.0, "8")]


def test_long_names_of_runs_are_cut_and_short_ones_are_not() -> None:
    drawn = run_intervals([("x" * 300, 0.5, (0.4, 0.6))], 346)
    assert drawn is not None and re.search(r">…x{20,25}<", drawn)
    for n in range(1, 40):
        assert f">{'y' * n}<" in (run_intervals([("y" * n, 0.5, (0.4, 0.6))], 950) or "")
