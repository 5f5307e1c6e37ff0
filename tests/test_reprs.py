"""What a notebook or an interpreter shows: short texts, and tables with escaped names."""

from __future__ import annotations

import io
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

import grash
from engines.searches import small_search
from grash.api.model import DiscoveredTriple, DiscoveredTriples, Prediction
from grash.formatting import html_table
from grash.report import live

CAPTION = re.compile("<caption[^>]*><b>(.*)</b></caption>")
LISTS = ("predictions", "neighbors", "explanation", "discovered")
KINDS = ("dataset", "model", "profile", "search", "plan", "result", "evaluation", *LISTS)
EVIL = "<script>alert('a')</script>\x1b[31m"


@pytest.fixture(scope="module")
def shown(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """One of each, of a graph with a name that would act on a page or a terminal."""
    names = [f"n{i}" for i in range(30)] + [EVIL]
    triples = [(names[i], f"r{j}", names[(i * (j + 2) + j) % 31]) for i in range(31) for j in range(3)]
    graph = grash.from_triples(triples, name=EVIL, n_valid=5, n_test=5)
    model = grash.train(graph, dim=4, epochs=1, device="cpu")
    search = small_search(tmp_path_factory.mktemp("repr") / "run", n_trials=2)
    plan = search.plan(probe=False)
    return {
        "dataset": graph,
        "model": model,
        "profile": grash.describe(graph),
        "plan": plan,
        "search": search,
        "result": search.run(),
        "evaluation": model.evaluate(),
        "predictions": model.predict(head="n1", relation="r1", k=31),
        "neighbors": model.neighbors("n1", k=31),
        "explanation": model.explain(EVIL, "r1", "n2", k=3),
        "discovered": DiscoveredTriples([DiscoveredTriple(EVIL, "r1", "n2", (30, 1, 2), 0.5, 1.25)] * 30),
    }


@pytest.mark.parametrize("name", KINDS)
def test_a_repr_is_short_and_a_table_is_escaped(shown: dict[str, Any], name: str) -> None:
    text, html = repr(shown[name]), shown[name]._repr_html_()
    assert len(text) < (2500 if name in LISTS else 300), text
    assert "\x1b" not in text and "\x1b" not in html
    assert html.startswith("<table>") and "<script>" not in html
    caption = CAPTION.search(html)
    assert caption is not None and len(caption[1]) < 150  # it is on one line, and stretches the table
    if name in (*LISTS, "dataset", "profile"):
        assert "&lt;script&gt;" in html


def test_predictions_are_a_list_and_a_data_frame(shown: dict[str, Any]) -> None:
    answers = shown["predictions"]
    assert isinstance(answers, list) and answers[0].score >= answers[-1].score
    frame = pytest.importorskip("pandas") and answers.to_pandas()
    assert list(frame["name"]) == [answer.name for answer in answers] and list(frame["rank"])[:2] == [1, 2]
    assert repr(grash.Predictions()) == "no answers"


def test_discovered_triples_are_a_list_and_a_data_frame(shown: dict[str, Any]) -> None:
    found = shown["discovered"]
    assert isinstance(found, list) and repr(found).endswith("…\n30 new triples, the 10 most probable shown")
    assert repr(DiscoveredTriples(found[:1])).endswith("1 new triple") and repr(DiscoveredTriples()) == "0 new triples"
    frame = pytest.importorskip("pandas") and found.to_pandas()
    assert len(frame) == 30 and list(frame["probability"])[:2] == [0.5, 0.5]


def test_a_search_shows_whether_it_has_started(tmp_path: Path) -> None:
    search = small_search(tmp_path / "run", n_trials=2, max_epochs=1, final_train=False)
    assert "complex, n_trials=2, max_epochs=1, budget=3; " in repr(search) and "not started" in repr(search)
    search.run()
    assert "finished" in repr(search)


def test_numbers_of_a_table_are_rounded_and_missing_values_are_empty() -> None:
    assert html_table("t", (), [], below="one <line>\nanother").endswith("<p>one &lt;line&gt;<br>another</p>")
    html = html_table("t", ("a", "b", "c"), [(1234, 0.123456, None), (True, False, "x")])
    assert ">1,234<" in html and ">0.1235<" in html and ">yes<" in html and "None" not in html


@pytest.fixture
def notebook(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """A stand-in for IPython in a notebook that records what is displayed."""
    updates: list[str] = []

    class ZMQInteractiveShell:
        pass

    ipython, display = ModuleType("IPython"), ModuleType("IPython.display")
    ipython.get_ipython = ZMQInteractiveShell  # type: ignore[attr-defined]
    display.HTML = str  # type: ignore[attr-defined]
    display.display = lambda html, display_id: SimpleNamespace(update=updates.append)  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "IPython", ipython)
    monkeypatch.setitem(sys.modules, "IPython.display", display)
    yield updates


def test_a_search_and_a_training_show_their_progress_in_a_notebook(notebook: list[str], tmp_path: Path) -> None:
    small_search(tmp_path / "run", n_trials=2).run()
    assert "<pre" in notebook[-1] and "winner" in notebook[-1]
    del notebook[:]
    grash.train("world", dim=4, epochs=2, valid_every=1, device="cpu")
    assert re.search(r"epoch 2\.0/2  loss [1-9].* 0\.0 s left  best valid MRR 0\.\d", notebook[-1])
    del notebook[:]
    grash.train("world", dim=4, epochs=1, device="cpu", progress=False)
    assert notebook == []


def test_nothing_is_printed_in_a_pipe(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    small_search(tmp_path / "run", n_trials=2).run()
    grash.train("world", dim=4, epochs=1, device="cpu")
    assert capsys.readouterr() == ("", "")
    small_search(tmp_path / "lines", n_trials=2).run(progress=True)
    assert "round 1: 2 trials" in capsys.readouterr().err


def test_a_training_shows_a_line_in_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    terminal = Terminal()
    monkeypatch.setattr("sys.stderr", terminal)
    assert live.is_interactive() and not live.in_jupyter()
    grash.train("world", dim=4, epochs=2, valid_every=1, device="cpu")
    assert "epoch 2.0/2" in terminal.getvalue()


def test_answers_to_several_questions_are_shown_below_their_questions() -> None:
    graph = grash.from_triples([("a", "r", "b"), ("b", "r", EVIL), (EVIL, "r", "a")], n_valid=0, n_test=0)
    model = grash.train(graph, dim=4, epochs=1, device="cpu")
    answers = model.predict_many([("a", "r", None), (None, "r", "b")], k=2)
    assert isinstance(answers, list) and len(answers) == 2
    first, second = repr(answers).split("\n\n")
    assert (
        first.startswith("a · r · ?\n  1  ") and second.startswith("? · r · b\n  1  ") and "\x1b" not in first + second
    )
    html = answers._repr_html_()
    assert "a · r · ?" in html and "<script>" not in html and "probability" not in html
    assert repr(model.predict_many([])) == "no questions"
    assert repr(model.predict_many([("a", "r", None)] * 12, k=1)).endswith("\n\n… and 2 more questions")


def test_a_repr_shows_the_probability_and_a_table_no_empty_column() -> None:
    answers = grash.Predictions([Prediction("a", 0, 1.5, True, 0.25), Prediction("b", 1, 0.5, False, 0.125)])
    assert repr(answers) == "  1        1.5   0.250  a  (known)\n  2        0.5   0.125  b"
    assert ">known<" in answers._repr_html_() and ">probability<" in answers._repr_html_()
    neighbors = grash.Predictions([Prediction("a", 0, 1.5)])
    found = DiscoveredTriples([DiscoveredTriple("a", "r", "b", (0, 0, 1), 0.5, 1.25)])
    assert ">known<" not in neighbors._repr_html_() + found._repr_html_() and ">probability<" in found._repr_html_()


def test_counts_of_one_are_singular() -> None:
    graph = grash.from_triples([("a", "r", "a")], n_valid=0, n_test=0)
    for shown in (graph, grash.describe(graph)):
        assert "1 entity, 1 relation" in repr(shown) and "relations" not in repr(shown)


def test_reports_of_a_calibration_and_an_update_are_a_few_lines(shown: dict[str, Any]) -> None:
    model = grash.train("world", dim=16, epochs=3, device="cpu")
    model.calibrate()
    assert re.fullmatch(
        r"Calibration\([\d,]+ questions of valid; expected calibration error \d\.\d+ for first answers, .*\)",
        repr(model.calibration),
    )
    assert "calibrated" in model._repr_html_()
    assert repr(model.measure_calibration()).count("Reliability(") == 2 and len(repr(model.measure_calibration())) < 200
    assert ">share right<" in model.measure_calibration()[0]._repr_html_()
    assert ">epochs<" in model.config._repr_html_() and ">lr<" not in model.config._repr_html_()
    _, report = model.update([("Peru", "borders", "Atlantis")], epochs=0)
    lines = repr(report).splitlines()
    assert lines[1] == "New triples of train: 1 of 1." and len(lines) < 15
