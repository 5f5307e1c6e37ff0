"""Cells and entries: which training answers which question."""

from __future__ import annotations

import json
from dataclasses import asdict

from hypothesis import given
from hypothesis import strategies as st

from grash_study.store import MARKS, REGULAR, Cell, Entry, cells_on, merged_marks
from study.small_study import made_up

shares = st.lists(st.floats(1e-4, 1.0), min_size=1, max_size=8)


@given(shares, shares)
def test_merged_marks_ascend_hold_all_and_are_each_there_once(first, second):
    merged = merged_marks(first, second)
    assert list(merged) == sorted(set(merged)) and merged[-1] <= 1
    for mark in (*first, *second):
        assert any(abs(m - mark) < 1e-6 * mark for m in merged)
    assert merged_marks(merged) == merged


@given(shares)
def test_a_mark_survives_being_written_and_read(given_marks):
    for mark in merged_marks(given_marks):
        assert json.loads(json.dumps(float(f"{mark:.9g}"))) == mark


def test_a_full_training_on_the_whole_graph_also_validates_regularly():
    (whole,), (core_order,) = cells_on("whole", 1.0, [0]), cells_on("core-order", 0.5, [0])
    assert set(REGULAR) <= set(whole.marks) and set(MARKS) <= set(whole.marks)
    assert core_order.marks == MARKS


def test_a_shorter_training_has_the_marks_up_to_its_end():
    (cell,) = cells_on("core-order", 0.25, [3], upto=0.25, also=[0.2, 0.1])
    assert cell.marks[-1] == 0.25 and 0.2 in cell.marks and 0.1 in cell.marks and max(cell.marks) == 0.25


def test_more_marks_cover_fewer_and_a_longer_training_a_shorter():
    entry = made_up(0, "core-order", 0.5, 0.3)
    assert entry.covers(Cell(0, "core-order", 0.5, (0.5,))) and entry.covers(Cell(0, "core-order", 0.5, (0.5, 1.0)))
    assert not entry.covers(Cell(0, "core-order", 0.5, (0.25, 1.0)))
    assert not entry.covers(Cell(1, "core-order", 0.5, (0.5,))) and not entry.covers(Cell(0, "k-core", 0.5, (0.5,)))
    assert not entry.covers(Cell(0, "core-order", 0.25, (0.5,)))


def test_a_training_that_ran_out_of_memory_is_tried_again_and_one_with_two_errors_is_not():
    cell = Cell(0, "core-order", 0.5, (0.25, 1.0))
    assert not made_up(0, "core-order", 0.5, 0.3, status="memory").covers(cell)
    assert not made_up(0, "core-order", 0.5, 0.3, status="error").covers(cell)
    assert made_up(0, "core-order", 0.5, 0.3, status="error", failures=2).covers(cell)
    assert made_up(0, "core-order", 0.5, 0.3, status="impossible").covers(cell)


def test_the_score_is_the_better_of_the_validations_at_half_and_end():
    entry = made_up(0, "core-order", 0.5, 0.0, curve=((0.5, 0.4, 1.0), (1.0, 0.3, 1.0)))
    assert entry.score(1.0) == 0.4 and entry.valid(1.0) == 0.3
    assert entry.score(0.5) == 0.4 and entry.score(0.3) is None


def test_a_diverged_training_scores_nothing_from_there_on_and_what_it_had_before():
    entry = made_up(0, "core-order", 0.5, 0.0, status="diverged", failed=0.7, curve=((0.5, 0.4, 1.0),))
    assert entry.score(0.5) == 0.4 and entry.score(1.0) == 0.0 and entry.valid(0.7) == 0.0


def test_an_entry_is_the_same_after_json():
    entry = made_up(2, "whole", 1.0, 0.25, k=3, message="ä | b")
    assert Entry.from_json(json.loads(json.dumps(asdict(entry)))) == entry
