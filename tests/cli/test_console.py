"""The progress of preparing and generating: a line that is rewritten, a line now and then, or none."""

from __future__ import annotations

import io
import re
import sys

import pytest

from grash.cli import console, main
from grash.cli.console import share_display, share_line


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def shown(monkeypatch: pytest.MonkeyPatch, stream: io.StringIO, seconds: list[float], **options: bool) -> str:
    """What stands on stderr when `watch` is called at these seconds after the start."""
    now = 100.0
    monkeypatch.setattr(console.time, "monotonic", lambda: now)
    monkeypatch.setattr(sys, "stderr", stream)
    with share_display(**options) as watch:
        for number, after in enumerate(seconds):
            now = 100.0 + after
            if watch is not None:
                watch("reading", (number + 1) / 4, 1000 * (number + 1))
    return stream.getvalue()


def test_a_line_says_what_is_done_and_how_long_it_has_taken() -> None:
    assert share_line("reading", 0.456, 12_345, 125.4) == "reading: 46%, 12,345 triples, 2 min"
    assert share_line("shuffling", 1, 0, 3) == "shuffling: 100%, 3.0 s"


def test_elsewhere_a_line_comes_every_ten_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    text = shown(monkeypatch, io.StringIO(), [1.0, 11.0, 12.0, 22.0])
    assert text.splitlines() == ["reading: 50%, 2,000 triples, 11 s", "reading: 100%, 4,000 triples, 22 s"]


def test_a_terminals_line_is_rewritten_and_taken_away(monkeypatch: pytest.MonkeyPatch) -> None:
    text = shown(monkeypatch, Terminal(), [1.0, 1.1, 2.0])
    assert text.count("\r") == 3 and "\n" not in text and text.endswith("\r\x1b[K")


def test_quiet_shows_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    assert shown(monkeypatch, Terminal(), [1.0], quiet=True) == ""


def test_sentences_are_wrapped_between_words_in_a_terminal_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "20")
    sentence, table = "  warning: one two three four five", "a table  with columns that  are wide"
    command = "Next: grash search some/long/path/of/a/graph"
    for stream, first in ((Terminal(), ["  warning: one two", "  three four five"]), (io.StringIO(), [sentence])):
        monkeypatch.setattr(sys, "stderr", stream)
        for line in (sentence, table, command):
            console.say(line)
        assert stream.getvalue().splitlines() == [*first, table, command]


def test_a_line_that_is_rewritten_is_cut_to_the_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "20")
    stream = Terminal()
    monkeypatch.setattr(sys, "stderr", stream)
    with console.status_line(keep=True) as draw:
        draw("x" * 50)
    assert "x" * 19 in stream.getvalue() and "x" * 20 not in stream.getvalue()


COLUMNS = ("name", ">triples", "license", "title")
ROWS = [("wikidata5m-transductive", 20_624_575, "CC0", "Wikidata5M, the current release"), ("nations", 1992, "", "N")]


def drawn(monkeypatch: pytest.MonkeyPatch, stream: io.StringIO, width: int, **options: tuple[str, ...]) -> list[str]:
    monkeypatch.setenv("COLUMNS", str(width))
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setattr(sys, "stdout", stream)
    console.table(COLUMNS, ROWS, **options)
    return re.sub("\x1b\\[\\d*m", "", stream.getvalue()).splitlines()


def test_a_narrow_terminal_leaves_out_spare_columns_instead_of_cutting_names(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = drawn(monkeypatch, Terminal(), 40, spare=("title", "license"))
    assert [line.split() for line in lines[:3]] == [
        ["name", "triples"],
        ["wikidata5m-transductive", "20,624,575"],
        ["nations", "1,992"],
    ]
    assert " ".join(lines[-2:]) == "A wider terminal also shows license and title."


@pytest.mark.parametrize("width", [30, 60, 70])
def test_long_texts_continue_below_and_numbers_stay_whole(monkeypatch: pytest.MonkeyPatch, width: int) -> None:
    lines = drawn(monkeypatch, Terminal(), width)
    assert "…" not in "".join(lines) and "20,624,575" in lines[1] and "wikidata5m-transductive" in lines[1]
    assert any("release" in line for line in lines[1:4])


def test_columns_with_one_name_are_both_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdout", stream := io.StringIO())
    console.table(("split", ">entities", ">unseen", ">relations", ">unseen"), [("test", 636, 3, 12, 1)])
    assert [line.split() for line in stream.getvalue().splitlines()] == [
        ["split", "entities", "unseen", "relations", "unseen"],
        ["test", "636", "3", "12", "1"],
    ]


@pytest.mark.parametrize("words", [("settings",), ("describe", "world")])
def test_what_is_listed_fits_a_terminal_of_80_characters(words, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setattr(sys, "stdout", stream := Terminal())
    assert main(list(words)) == 0
    found = re.sub("\x1b\\[\\d*m", "", stream.getvalue())
    if words == ("settings",):
        assert "\ndim = 128\n    Floats per entity embedding; a complex number counts as two. Values: whole\n" in found
    else:
        assert re.search(r"^split +triples +duplicates +entities +unseen +relations +unseen\n", found, re.MULTILINE)
        assert max(map(len, found.splitlines())) <= 80


@pytest.mark.parametrize("name", ["Bristol", "United Kingdom of Great Britain", "x" * 40])
def test_answers_to_a_file_of_questions_fit_a_terminal_of_80_characters(monkeypatch: pytest.MonkeyPatch, name) -> None:
    columns = ("head", "relation", "tail", "asked", ">rank", ">score", "known", ">probability")
    monkeypatch.setitem(globals(), "COLUMNS", columns)
    row = (name, "located_in", name, "relation", 1, -8.1234, True, "< 0.0001")
    monkeypatch.setitem(globals(), "ROWS", [row])
    lines = drawn(monkeypatch, Terminal(), 80)
    assert max(map(len, lines)) <= 80 and lines[1].split()[-4:] == ["-8.1234", "yes", "<", "0.0001"]
    assert sum(line.count("x") for line in lines[1:]) == 2 * name.count("x")
    for word in name.split() if " " in name else []:
        assert sum(line.count(word) for line in lines) == 2  # broken between words


def test_a_table_in_a_pipe_has_one_line_per_row(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(globals(), "ROWS", [*ROWS, ("x" * 500, 1, "y" * 500, "z")])
    lines = drawn(monkeypatch, io.StringIO(), 20, spare=("title", "license"))
    assert [line.split()[0] for line in lines] == ["name", "wikidata5m-transductive", "nations", "x" * 500]
    assert len(lines[2]) < 120 and lines[1].index("20,624,575") + 10 == lines[2].index("1,992") + 5
