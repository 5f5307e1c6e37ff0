"""Files of questions and answers: one form in and out, and names that cannot act on a terminal."""

from __future__ import annotations

import ast
import csv
import io
import json
import re
import subprocess
import sys
from pathlib import Path

import polars
import pytest

import grash.cli
from grash.cli.answers import write_answers
from grash.cli.console import command, say, share_display
from small_graph import grash as run
from small_graph import model_of, rings

COLUMNS = ["head", "relation", "tail", "asked", "rank", "score", "known"]
ODD = [
    "\x1b[31mred",
    "[red]x[/red]",
    "<img src=x onerror=alert(1)>",
    "a\tb",
    'say "hi"',
    "\x9b31m",
    "a\u202eb",
    ":smile:",
]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("answers") / "m"
    model_of(rings()).save(folder)
    return folder


@pytest.fixture(scope="module")
def odd(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model whose names try to act on whatever shows them."""
    triples = [(name, "to", ODD[i - 1]) for i, name in enumerate(ODD)] + [(name, "\x1b[32mof", name) for name in ODD]
    folder = tmp_path_factory.mktemp("odd") / "m"
    model_of(grash.from_triples(triples, n_valid=0, n_test=0, name="\x1b[33mgraph")).save(folder)
    return folder


def read(path: Path) -> list[dict[str, str]]:
    if path.suffix == ".parquet":
        return [{k: str(v).lower() for k, v in row.items()} for row in polars.read_parquet(path).to_dicts()]
    if path.suffix == ".jsonl":
        rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
        return [{k: str(v).lower() for k, v in row.items()} for row in rows]
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file, delimiter="," if path.suffix == ".csv" else "\t"))


@pytest.mark.parametrize("end", ["csv", "tsv", "jsonl", "parquet"])
def test_answers_are_written_in_every_format(model: Path, tmp_path: Path, end: str) -> None:
    (tmp_path / "q.tsv").write_text("person 1\tnext\t?\n?\tnext\tperson 3\n")
    out = tmp_path / f"answers.{end}"
    ran = run("predict", model, "--questions", tmp_path / "q.tsv", "-k", 2, "-o", out)
    assert ran.code == 0 and ran.out == "" and str(out) in ran.err
    rows = read(out)
    assert [list(row) for row in rows] == [COLUMNS] * 4
    assert [(row["asked"], row["rank"]) for row in rows] == [("tail", "1"), ("tail", "2"), ("head", "1"), ("head", "2")]
    assert [row["head"] for row in rows[:2]] == ["person 1"] * 2 and [row["tail"] for row in rows[2:]] == [
        "person 3"
    ] * 2
    again = run("predict", model, "--questions", tmp_path / "q.tsv", "-o", out)
    assert again.code == 2 and "already exists" in again.err and "--overwrite" in again.err
    assert run("score", model, tmp_path / "t.tsv", "-o", tmp_path / f"s.{end}").code == 2
    (tmp_path / "t.tsv").write_text("person 1\tnext\tperson 2\n")
    assert run("score", model, tmp_path / "t.tsv", "-o", tmp_path / f"s.{end}").code == 0
    assert [list(row) for row in read(tmp_path / f"s.{end}")] == [["head", "relation", "tail", "score"]]
    assert run("neighbors", model, "person 1", "-k", 3, "-o", tmp_path / f"n.{end}").code == 0
    assert [list(row) for row in read(tmp_path / f"n.{end}")] == [["entity", "neighbor", "rank", "cosine"]] * 3
    one = run("predict", model, "--head", "person 1", "--relation", "next", "-k", 2, "-o", out, "--overwrite")
    assert one.code == 0 and read(out) == rows[:2]


def test_a_file_of_another_format_is_refused_before_anything_is_computed(model: Path, tmp_path: Path) -> None:
    ran = run("predict", tmp_path / "no model", "--head", "a", "--relation", "b", "-o", tmp_path / "answers.xlsx")
    assert ran.code == 2 and "Give a name that ends in .csv, .tsv, .jsonl, .parquet" in ran.err


@pytest.mark.parametrize("separator", ["\t", ","])
def test_a_file_with_a_header_is_read_like_one_without(model: Path, tmp_path: Path, separator: str) -> None:
    path = tmp_path / "q.txt"
    lines = [["person 1", "next", "?"], ["person 1", "?", "person 2"]]

    def asked(*header: list[str], rows: list[list[str]] = lines) -> str:
        path.write_text("".join(separator.join(row) + "\n" for row in [*header, *rows]))
        ran = run("predict", model, "--questions", path, "-k", 2)
        assert ran.code == 0, ran.err
        return ran.out

    wanted = asked()
    assert asked(["head", "relation", "tail"]) == wanted
    assert asked(["Subject", "Predicate", "Object"]) == wanted
    swapped = [["x", row[2], row[1], row[0]] for row in lines]
    assert asked(["note", "tail", "relation", "head"], rows=swapped) == wanted
    short = asked(["head", "relation"], rows=[["person 1", "next"]])
    assert short == asked(rows=[["person 1", "next"]]) and "person 1\tnext\t" in short
    path.write_text(
        separator.join(["head", "relation", "tail"]) + "\n" + separator.join(["person 1", "next", "person 2"])
    )
    assert run("score", model, path).out.splitlines()[1].startswith("person 1\tnext\tperson 2\t")


def test_answers_can_be_scored_again(model: Path, tmp_path: Path) -> None:
    words = ("predict", model, "--head", "person 1", "--relation", "next", "-k", 3)
    assert run(*words, "-o", tmp_path / "a.csv").code == 0
    assert run("score", model, tmp_path / "a.csv", "-o", tmp_path / "s.csv").code == 0
    predicted, scored = read(tmp_path / "a.csv"), read(tmp_path / "s.csv")
    assert [float(row["score"]) for row in scored] == pytest.approx(
        [float(row["score"]) for row in predicted], rel=1e-5
    )


@pytest.mark.parametrize("verb", ["predict", "neighbors", "evaluate", "score", "describe", "unknown", "json"])
def test_names_cannot_act_on_a_terminal(odd: Path, tmp_path: Path, verb: str) -> None:
    (tmp_path / "\x1b[34mblue.tsv").write_text("".join(f'"{n}","to","{ODD[0]}"\n' for n in ("[red]x[/red]", ":smile:")))
    words = {
        "predict": ("predict", odd, "--head", ODD[1], "--relation", "to"),
        "neighbors": ("neighbors", odd, ODD[-1]),
        "evaluate": ("evaluate", odd, "--dataset", tmp_path / "\x1b[34mblue.tsv", "--per-relation"),
        "score": ("score", odd, "--head", ODD[0], "--relation", "to", "--tail", "\x1b[35m"),
        "describe": ("describe", odd / "dataset"),
        "unknown": ("predict", tmp_path / "\x1b[31mnot here", "--head", "a", "--relation", "b"),
        "json": ("predict", odd, "--head", ODD[1], "--relation", "to", "--json"),
    }[verb]
    ran = run(*words)
    text = ran.out + ran.err
    assert not set(text) & {"\x1b", "\x9b", "\u202e"}, text
    assert "x1b[3" in text or "u001b[3" in text or verb == "describe"
    if verb in ("predict", "neighbors"):
        assert "[red]x[/red]" in text and "a\\tb" in text and "a\\u202eb" in text
    if verb == "json":
        assert {a["name"] for a in json.loads(ran.out)["answers"]} == set(ODD)


def test_data_for_other_programs_keeps_the_names(odd: Path, tmp_path: Path) -> None:
    assert run("predict", odd, "--head", ODD[0], "--relation", "to", "-o", tmp_path / "a.tsv").code == 0
    assert {row["tail"] for row in read(tmp_path / "a.tsv")} == set(ODD)


def test_progress_and_messages_escape_names(monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    stream = Terminal()
    monkeypatch.setattr(sys, "stderr", stream)
    say("reading \x1b[31m.tsv\nnext line")
    with share_display() as watch:
        assert watch is not None
        watch("reading \x1b[31m", 0.5, 10)
    text = stream.getvalue().replace("\x1b[K", "")
    assert "\x1b" not in text and "reading \\x1b[31m.tsv\nnext line" in text and "reading \\x1b[31m: 50%" in text


def test_a_command_with_control_characters_can_be_pasted_into_bash() -> None:
    words = ["plain", "two words", "\x1b[31m it's \\ here", "tab\there"]
    ran = subprocess.run(
        ["bash", "-c", f"printf '%s\\0' {command(*words)}"], capture_output=True, text=True, check=True
    )
    assert ran.stdout.split("\0")[:-1] == words and "\x1b" not in command(*words)


def test_only_the_console_and_files_of_answers_print() -> None:
    folder = Path(grash.cli.__file__).parent
    found = [
        f"{path.name}:{node.lineno}"
        for path in folder.glob("*.py")
        if path.name not in ("console.py", "app.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "print"
    ]
    assert found == []


def test_candidates_are_read_from_a_file_and_unknown_ones_have_a_line_number(tmp_path):
    folder, names = tmp_path / "model", tmp_path / "names.txt"
    model_of(rings()).save(folder)
    names.write_text("person 4\r\n\nperson 2\n")
    ran = run("predict", folder, "--head", "person 1", "--relation", "next", "--candidates", names, "--json")
    assert {a["name"] for a in json.loads(ran.out)["answers"]} == {"person 2", "person 4"}
    names.write_text("person 4\nperson4\n")
    ran = run("predict", folder, "--head", "person 1", "--relation", "next", "--candidates", names)
    assert ran.code == 2 and "line 2: There is no entity named 'person4'. Did you mean 'person 4'" in ran.err
    ran = run(
        "predict", folder, "--head", "person 1", "--relation", "next", "--candidates", names, "--skip-unknown", "--json"
    )
    assert [a["name"] for a in json.loads(ran.out)["answers"]] == ["person 4"]
    names.write_text("")
    ran = run("predict", folder, "--head", "person 1", "--relation", "next", "--candidates", names)
    assert ran.code == 2 and "is empty: give one entity per line" in ran.err


def test_an_error_in_the_first_answers_comes_before_the_header(tmp_path):
    folder, names, asked = tmp_path / "model", tmp_path / "names.txt", tmp_path / "q.tsv"
    model_of(rings()).save(folder)
    names.write_text("person 4\n")
    asked.write_text("person 1\t?\tperson 2\n")
    ran = run("predict", folder, "--questions", asked, "--candidates", names)
    assert (ran.code, ran.out) == (2, "") and "A question for a relation has no candidates" in ran.err


def test_like_known_metrics_have_their_own_table(tmp_path):
    folder = tmp_path / "model"
    model_of(rings()).save(folder)
    ran = run("evaluate", folder, "--like-known")
    assert ran.code == 0 and "was not seen there" in ran.out
    table = ran.out.partition("Among the entities seen on that side of the relation in train")[2].splitlines()[2]
    assert table.split() == ["predicted", "mrr", "hits@1", "hits@3", "hits@10", "mr", "amri"]
    assert "mrr@like_known" in run("evaluate", folder, "--like-known", "--json").out


def test_answers_are_a_table_in_a_terminal_and_tabs_in_a_pipe(monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    rows = [("a long name", "r", "t", 1.25, 0.5, True), ("b", "r", "t", 10.5, 1e-9, False)]
    shown = {}
    for stream in (Terminal(), io.StringIO()):
        monkeypatch.setattr(sys, "stdout", stream)
        monkeypatch.setenv("NO_COLOR", "1")
        write_answers(("head", "relation", "tail", "score", "probability", "known"), iter(rows), None)
        shown[stream.isatty()] = re.sub("\x1b\\[\\d*m", "", stream.getvalue()).splitlines()
    assert shown[False][1:] == ["a long name\tr\tt\t1.25\t0.5\ttrue", "b\tr\tt\t10.5\t1e-09\tfalse"]
    assert shown[True][1:] == [
        "a long name  r         t      1.2500       0.5000  yes",
        "b            r         t     10.5000     < 0.0001",
    ]
