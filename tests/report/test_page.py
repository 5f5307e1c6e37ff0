"""report.html: its parts are there, names are escaped, nothing is asked of the network."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from pathlib import Path

import pytest

from grash.errors import FormatError
from grash.models import MODELS
from grash.report.page import template, write_report
from report.runs import RISING, write_run

CHARTS = {
    "finalists", "funnel", "ranks", "importances", "cost", "slices", "curves", "relations", "parallel", "progress",
    "timeline",
}  # fmt: skip
VOID = {"wbr", "meta", "link", "br", "rect", "line", "circle", "path"}


class Checker(HTMLParser):
    """Sees that elements close in order, and counts the marks of each chart."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.chart = ""
        self.marks: dict[str, int] = {}
        self.scripts = 0

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = dict(attrs)
        self.scripts += tag == "script"
        assert not any(name.startswith("on") for name in found), found
        if (found.get("id") or "").startswith("chart-"):
            self.chart = str(found["id"]).removeprefix("chart-")
            self.marks[self.chart] = 0
        if "mark" in (found.get("class") or "").split():
            self.marks[self.chart] += 1
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        if tag not in VOID:
            self.open.pop()

    def handle_endtag(self, tag: str) -> None:
        if tag not in VOID:
            assert self.open.pop() == tag


def checked(page: str) -> Checker:
    checker = Checker()
    checker.feed(page)
    checker.close()
    assert checker.open == []
    return checker


def test_a_finished_search_has_every_chart_with_marks(finished: Path) -> None:
    page = write_report(finished).read_text(encoding="utf-8")
    found = checked(page)
    assert set(found.marks) == CHARTS and all(count > 3 for count in found.marks.values())
    assert "Test MRR" in page and "The winner: configuration" in page and "grash predict" in page
    assert "Spearman" in page and "PED-ANOVA" in page and "best.yaml" in page
    assert len(page) < 1_000_000


def test_a_running_search_has_every_chart_with_marks(running: Path) -> None:
    page = write_report(running).read_text(encoding="utf-8")
    found = checked(page)
    assert set(found.marks) == CHARTS - {"relations"} and all(found.marks.values())
    assert "The search is running" in page and "best so far" in page and "grash predict" not in page


def test_names_are_escaped(running: Path, failed: Path) -> None:
    for folder in (running, failed):
        page = write_report(folder).read_text(encoding="utf-8")
        assert "<script>alert" not in page and "&lt;script&gt;alert" in page
        assert checked(page).scripts == 1


def test_long_names_are_cut_and_complete_in_their_titles() -> None:
    named = template("macros.html").module.named
    assert named("Oslo") == "Oslo" and named("<b>") == "&lt;b&gt;"
    assert named("<" * 300) == f'<span title="{"&lt;" * 300}">{"&lt;" * 39}…</span>'


def test_a_failed_search_says_why_first(failed: Path) -> None:
    page = write_report(failed).read_text(encoding="utf-8")
    checked(page)
    assert 'class="banner failed"' in page and "No trial of round 1 has a score" in page


def test_nothing_is_asked_of_the_network(finished: Path) -> None:
    page = write_report(finished).read_text(encoding="utf-8")
    assert not re.search(r"""(src|href)\s*=\s*["'](?!data:|#)""", page)
    assert "http://" not in page and "https://" not in page and "@import" not in page and "url(" not in page


@pytest.mark.parametrize("n_ended", [0, 1, 2, 63, 64, 65, 80, 83, 84])
def test_every_moment_of_a_search_can_be_shown(tmp_path: Path, n_ended: int) -> None:
    write_run(tmp_path, n_ended=n_ended)
    checked(write_report(tmp_path).read_text(encoding="utf-8"))


@pytest.mark.parametrize(
    "settings", [{"n_trials": 1}, {"n_trials": 2}, {"n_trials": 30, "eta": 2}, {"final_train": False}]
)
def test_searches_of_any_shape_can_be_shown(tmp_path: Path, settings: dict[str, object]) -> None:
    write_run(tmp_path, **settings)
    checked(write_report(tmp_path).read_text(encoding="utf-8"))


def test_an_extended_search_can_be_shown_at_any_moment(tmp_path: Path) -> None:
    run = write_run(tmp_path, n_trials=16)
    run.extend(32, 6.0)
    checked(write_report(tmp_path).read_text(encoding="utf-8"))
    run.go(n_ended=5)
    checked(write_report(tmp_path).read_text(encoding="utf-8"))
    run.go()
    checked(write_report(tmp_path).read_text(encoding="utf-8"))


def test_a_winner_with_less_mrr_than_another_is_explained(tmp_path: Path) -> None:
    write_run(tmp_path, n_trials=4, validations=RISING)
    page = write_report(tmp_path).read_text(encoding="utf-8")
    assert "MRR 0.0162 in round 1" in page and "-0.0006" not in page and " behind" not in page
    assert "Configuration 0 has 0.0006 more" in page
    assert "Configuration 2 ranks before configuration 0 (0.0168) because its MRR was still rising" in page


def test_the_lead_is_over_the_highest_other_mrr_which_may_be_third_in_rank(tmp_path: Path) -> None:
    write_run(
        tmp_path, n_trials=3, validations={(1, 0): (0.006, 0.012), (1, 1): (0.004, 0.008), (1, 2): (0.009, 0.009)}
    )
    page = write_report(tmp_path).read_text(encoding="utf-8")
    assert page.index(">#1<") < page.index(">#2<"), "configuration 1 is still rising, so it is second"
    assert "MRR 0.0120 in round 1" in page and "Next is configuration 2, 0.0030 behind" in page


def test_the_first_so_far_is_not_called_the_best_mrr_if_another_has_more(tmp_path: Path) -> None:
    write_run(tmp_path, n_trials=4, n_ended=4, validations=RISING)
    page = write_report(tmp_path).read_text(encoding="utf-8")
    assert "Best MRR so far" not in page and "still rising; configuration 0 has 0.0168" in page


def test_the_report_of_a_model_of_ones_own_says_to_register_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(MODELS, "scalede", MODELS["complex"])
    write_run(tmp_path, n_trials=4, models=["scalede"])
    write_report(tmp_path)
    monkeypatch.delitem(MODELS, "scalede")
    with pytest.raises(FormatError, match=r"the model 'scalede', which is none of .* register it first \(docs/how-to"):
        write_report(tmp_path)
