"""Answers to files of questions: against single questions, and after an interruption."""

from __future__ import annotations

import json
import os
import threading

import numpy as np
import polars
import pytest

import grash
from grash.cli import answers as bulk
from grash.errors import InputError
from small_graph import grash as run
from small_graph import model_of, rings


@pytest.fixture
def model(tmp_path):
    made = model_of(rings())
    made.save(tmp_path / "m")
    return made


@pytest.fixture
def questions(tmp_path, model):
    names = model.dataset.entities
    rows = [
        (names.name(i % 12), "?" if i % 7 == 0 else "next", names.name(i % 5) if i % 7 == 0 else "?") for i in range(50)
    ]
    rows += [("?", "beside", names.name(i % 12)) for i in range(13)]
    path = tmp_path / "q.tsv"
    path.write_text("\n".join("\t".join(row) for row in rows) + "\n", encoding="utf-8")
    return path, [tuple(None if part == "?" else part for part in row) for row in rows]


@pytest.mark.parametrize("suffix", [".csv", ".tsv", ".jsonl", ".parquet"])
@pytest.mark.parametrize("block", [7, 1000])
def test_a_file_has_the_answers_to_single_questions(tmp_path, model, questions, monkeypatch, suffix, block):
    monkeypatch.setattr(bulk, "BLOCK", block)
    path, asked = questions
    out = tmp_path / f"a{suffix}"
    assert run("predict", tmp_path / "m", "--questions", path, "-k", 3, "-o", out, "--new-only").code == 0
    assert [p.name for p in tmp_path.iterdir() if "parts" in p.name] == []
    if suffix == ".parquet":
        found = polars.read_parquet(out)
    elif suffix == ".jsonl":
        found = polars.DataFrame([json.loads(line) for line in out.read_text().splitlines()])
    else:
        found = polars.read_csv(out, separator="," if suffix == ".csv" else "\t")
    expected = []
    for question in asked:
        for rank, answer in enumerate(model.predict(*question, k=3, new_only=True), 1):
            triple = [answer.name if part is None else part for part in question]
            side = ("head", "relation", "tail")[question.index(None)]
            expected.append((*triple, side, rank, pytest.approx(answer.score), answer.known))
    assert found.rows() == expected


def test_blocks_of_questions_without_answers_have_the_columns_of_the_others(tmp_path, model, questions, monkeypatch):
    monkeypatch.setattr(bulk, "BLOCK", 1)
    path, kept = tmp_path / "two.tsv", tmp_path / "kept.txt"
    known = model.dataset.train[model.dataset.train[:, 1] == 0][0]
    head, tail = (model.dataset.entities.name(int(i)) for i in known[[0, 2]])
    path.write_text(f"{head}\tnext\t?\n{tail}\tnext\t?\nnobody\tnext\t?\n", encoding="utf-8")
    kept.write_text(f"{tail}\n", encoding="utf-8")
    command = ("predict", tmp_path / "m", "--questions", path, "--skip-unknown", "--new-only", "--candidates", kept)
    ran = run(*command, "-o", tmp_path / "a.parquet")
    assert ran.code == 0 and "1 answer to 2 questions" in ran.err
    found = polars.read_parquet(tmp_path / "a.parquet")
    assert found.rows()[0][:5] == (tail, "next", tail, "tail", 1) and len(found) == 1
    path.write_text("nobody\tnext\t?\n", encoding="utf-8")
    ran = run(*command, "-o", tmp_path / "none.parquet")
    assert ran.code == 0 and "No answer: no question is left." in ran.err
    none = polars.read_parquet(tmp_path / "none.parquet")
    assert none.schema == found.schema and len(none) == 0


def test_a_question_without_answers_is_reported_in_a_sentence(tmp_path, model):
    head, _, tail = model.dataset.train[model.dataset.train[:, 1] == 0][0].tolist()
    (tmp_path / "kept.txt").write_text(f"{model.dataset.entities.name(tail)}\n" * 2, encoding="utf-8")
    asked = ("--head", model.dataset.entities.name(head), "--relation", "next", "--candidates", tmp_path / "kept.txt")
    for out in ((), ("-o", tmp_path / "a.csv")):
        ran = run("predict", tmp_path / "m", *asked, "--new-only", *out)
        assert ran.code == 0 and not ran.out
        assert "No answer: --new-only and --candidates leave no candidate." in ran.err
    ran = run("predict", tmp_path / "m", *asked, "-o", tmp_path / "b.csv")
    assert "1 answer to 1 question" in ran.err and "No answer" not in ran.err


@pytest.mark.parametrize("suffix", [".csv", ".tsv", ".jsonl", ".parquet"])
def test_an_interrupted_run_continues_where_it_stopped(tmp_path, model, questions, monkeypatch, suffix):
    monkeypatch.setattr(bulk, "BLOCK", 10)
    command = ("predict", tmp_path / "m", "--questions", questions[0], "-k", 2, "-o")
    whole, out = tmp_path / f"whole{suffix}", tmp_path / f"a{suffix}"
    assert run(*command, whole).code == 0
    answers, asked = grash.Model.answer_arrays, []

    def stopped(self, ids, *rest, **options):
        asked.append(len(ids))
        if len(asked) == 4:
            raise KeyboardInterrupt
        return answers(self, ids, *rest, **options)

    monkeypatch.setattr(grash.Model, "answer_arrays", stopped)
    first = run(*command, out)
    assert first.code == 130 and "3 of 7 parts are written" in first.err and not out.exists()
    second = run(*command, out)
    assert second.code == 0 and "3 of 7 parts are there" in second.err and "126 answers to 63 questions" in second.err
    assert len(asked) == 4 + 4
    assert out.read_bytes() == whole.read_bytes() or suffix == ".parquet"
    if suffix == ".parquet":
        assert polars.read_parquet(out).equals(polars.read_parquet(whole))


def test_parts_of_other_questions_are_not_used(tmp_path, model, questions, monkeypatch):
    monkeypatch.setattr(bulk, "BLOCK", 10)
    out = tmp_path / "a.csv"
    command = ("predict", tmp_path / "m", "--questions", questions[0], "-o", out)
    monkeypatch.setattr(bulk.AnswerParts, "join", lambda self, n: None)
    assert run(*command, "-k", 2).code == 0
    other = run(*command, "-k", 3)
    assert other.code == 2 and "has answers of an interrupted run" in other.err and "--overwrite" in other.err
    assert "7 of 7 parts are there" in run(*command, "-k", 2).err, "nothing was removed"
    again = run(*command, "-k", 3, "--overwrite")
    assert again.code == 0 and "earlier run" not in again.err


@pytest.mark.parametrize("name", ["thesis.txt", "plan.json"])
def test_a_folder_of_somebody_else_is_not_removed(tmp_path, model, questions, name):
    folder = tmp_path / "a.csv.parts"
    folder.mkdir()
    command = ("predict", tmp_path / "m", "--questions", questions[0], "-o", tmp_path / "a.csv")
    (folder / name).write_text('["mine"]')
    ran = run(*command)
    assert ran.code == 2 and "not of an earlier run" in ran.err and (folder / name).read_text() == '["mine"]'
    (folder / name).unlink()
    assert run(*command).code == 0 and not folder.exists(), "an empty folder is used"


def test_an_unknown_name_is_an_error_before_anything_is_asked(tmp_path, model, questions):
    path, _ = questions
    path.write_text(path.read_text() + "person 1\tnexxt\t?\n")
    ran = run("predict", tmp_path / "m", "--questions", path, "-o", tmp_path / "a.csv")
    assert ran.code == 2 and "line 64" in ran.err and "next" in ran.err
    assert not (tmp_path / "a.csv.parts").exists()


def test_arrays_need_one_missing_part(model):
    for rows in ([[0, 0, 0]], [[-1, -1, 0]], [[0, 0]]):
        with pytest.raises(InputError, match="−1 for the one part"):
            model.answer_arrays(np.array(rows))


def test_questions_are_kept_as_ids_and_may_come_from_a_pipe(tmp_path, model, questions):
    path, asked = questions
    found = bulk.read_question_ids(path, model, skip_unknown=False)
    assert found.dtype == np.int32 and found.shape == (len(asked), 3)
    for row, question in zip(found.tolist(), asked):
        wanted = model.query(*question)
        assert [None if i < 0 else i for i in row] == [wanted.head, wanted.relation, wanted.tail]
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    writer = threading.Thread(target=lambda: pipe.write_bytes(path.read_bytes()))
    writer.start()
    assert np.array_equal(bulk.read_question_ids(pipe, model, skip_unknown=False), found)
    writer.join()
