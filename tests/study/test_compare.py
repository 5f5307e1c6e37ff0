"""The comparison: means, pairs, curves against a slow twin, and the page."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from grash.errors import ConfigError
from grash_study.compare import anytime, compare, curve_points, write_methods_page, write_overview
from grash_study.methods import METHODS, SWEEP, Method, Trace, read_methods
from grash_study.recorded import Recorded
from small_graph import grash
from study.synthetic import make_table

FEW = (Method("default", "grash"), Method("random", "random"), Method("eta 2", "grash", {"eta": 2}))


@pytest.fixture(scope="module")
def bench() -> Recorded:
    return Recorded(make_table(n=80, correlation=0.6, diverged=0.1))


def test_the_figures_of_a_method_are_means_over_its_seeds(bench):
    found = compare(bench, FEW, seeds=20)
    traces = [FEW[1](bench, seed, 3.0) for seed in range(20)]
    row, base = found.row("random"), found.row("default")
    picked = [t.test_mrr(bench) for t in traces]
    best = [max(bench.truth[i] for i in t.first) for t in traces]
    assert row.mrr == pytest.approx(np.mean(picked))
    assert row.cost == pytest.approx(np.mean([t.cost for t in traces]))
    assert row.found == pytest.approx(np.mean(picked) / np.mean(best))
    assert row.gain == pytest.approx(row.mrr - base.mrr)
    assert row.mrr_interval[0] < row.mrr < row.mrr_interval[1]
    assert row.wins == np.mean([p > b for p, b in zip(picked, base.picked)])
    assert row.picks.tolist() == [bench.members[t.pick] for t in traces]


def test_the_reference_gains_nothing_over_itself(bench):
    row = compare(bench, FEW[::-1], seeds=10).row("eta 2")
    assert (row.gain, row.gain_interval, row.wins, row.losses) == (0.0, (0.0, 0.0), 0.0, 0.0)


def test_what_is_left_falls_from_round_to_round_to_what_is_picked(bench):
    row = compare(bench, FEW, seeds=30).row("default")
    assert row.kept[0] == 1.0
    assert list(row.kept) == sorted(row.kept, reverse=True)
    assert row.found <= row.kept[-1]


def test_a_curve_is_the_mean_of_what_each_seed_has_by_then(bench):
    costs = np.geomspace(0.01, 3, 23)
    traces = [FEW[0](bench, seed, 3.0) for seed in range(12)]
    found = anytime(bench, traces, costs)
    for cost, value in zip(costs, found):
        each = []
        for trace in traces:
            so_far = [member for at, member in trace.points if at <= cost * (1 + 1e-9)]
            each.append(bench.truth[so_far[-1]] if so_far else np.nan)
        np.testing.assert_allclose(value, np.mean(each))
    assert found[-1] == pytest.approx(np.mean([t.test_mrr(bench) for t in traces]))


def test_a_seed_without_a_score_counts_as_nothing_found(bench):
    nothing = Trace((), None, (1, 2), 0.1)
    assert nothing.test_mrr(bench) == 0.0
    assert anytime(bench, [nothing], np.array([1.0])).tolist() == [0.0]


def test_a_method_that_does_not_suit_a_table_is_left_out_with_the_reason(bench):
    said: list[str] = []
    wide = Method("too many", "grash", {"n_trials": 500})
    found = compare(bench, (*FEW, wide), seeds=3, say=said.append)
    assert [r.name for r in found.rows] == ["default", "random", "eta 2"]
    assert any("too many is left out. n_trials=500 is more than the 80" in s for s in said)
    with pytest.raises(ConfigError, match="n_trials=500"):
        compare(bench, (wide, *FEW), seeds=3)


@pytest.mark.parametrize(("methods", "seeds"), [(FEW, 1), ((), 5), ((FEW[0], FEW[0]), 5)])
def test_a_comparison_needs_seeds_and_methods_with_different_names(bench, methods, seeds):
    with pytest.raises(ConfigError, match="give methods with different names"):
        compare(bench, methods, seeds=seeds)


def test_the_rounds_of_the_page_are_those_of_a_search_in_which_nothing_diverges():
    bench = Recorded(make_table(n=64))
    settings = bench.settings("default", 3.0, ())
    assert bench.planned(settings) == [r.plan for r in bench.search(range(64), settings).rounds]


@pytest.mark.parametrize("variant", ["combined", "epoch", "graph"])
@pytest.mark.parametrize("carry", [True, False])
@pytest.mark.parametrize("budget", [12.0, 30.0, 60.0])
def test_the_rounds_of_the_page_carry_what_a_cap_leaves_over(variant, carry, budget):
    bench, spoiled = (Recorded(make_table(n=16, diverged=d)) for d in (0.0, 0.5))
    changes = (("variant", variant), ("carry_over", carry), ("n_trials", 16), ("eta", 2))
    settings = bench.settings("default", budget, changes)
    wanted = [r.plan for r in bench.search(range(16), settings).rounds]
    assert bench.planned(settings) == spoiled.planned(settings) == wanted


@pytest.mark.slow
def test_the_page_shows_every_method_with_its_files(bench, tmp_path):
    found = compare(bench, METHODS, seeds=4)
    path = write_methods_page(found, tmp_path, command="grash study methods drawn.parquet")
    text = path.read_text()
    for method in METHODS:
        assert f"| **{method.name}** |" in text or f"| {method.name} |" in text
    assert "GraSH, paper" not in text and "4 seeds are not 4 independent graphs" in text
    assert "grash study methods drawn.parquet" in text
    name = path.stem
    for plot in ("curves", "gains"):
        assert f"img/{name}-{plot}.svg" in text
        ElementTree.parse(tmp_path / "img" / f"{name}-{plot}.svg")
    seeds = pl.read_parquet(tmp_path / f"{name}.parquet")
    assert len(seeds) == 4 * (len(METHODS) + 2)
    figures = pl.read_csv(tmp_path / f"{name}.csv")
    assert figures["method"].to_list()[:-2] == [m.name for m in METHODS]


def test_ceilings_choose_among_what_the_reference_began_with(bench):
    found = compare(bench, FEW, seeds=6)
    firsts = [list(FEW[0](bench, seed, 3.0).first) for seed in range(6)]
    full = np.nan_to_num(bench.full_scores)
    by_validation, by_test = found.ceilings
    assert by_validation.picked.tolist() == [bench.truth[first[int(np.argmax(full[first]))]] for first in firsts]
    assert by_test.picked.tolist() == found.row("default").best.tolist()
    assert by_validation.mrr <= by_test.mrr and by_test.different <= 6


def test_a_curve_ends_at_what_its_method_has_spent(bench):
    found = compare(bench, (*FEW, Method("long", "random", budget=20.0)), seeds=4)
    for row in found.rows:
        assert curve_points(found, row)[-1][:2] == (row.most, row.mrr)
        assert all(cost <= row.most for cost, *_ in curve_points(found, row))


def test_every_row_of_the_sweep_is_explained():
    page = (Path(__file__).parents[2] / "docs" / "reference" / "methods.md").read_text(encoding="utf-8")
    section = page.partition("## Changes of the default search")[2].partition("`--settings FILE`")[0]
    terms = [term for line in section.splitlines()[4:] for term in re.split("[,;] ", line.split(" | ")[0].strip("| "))]
    known = [re.escape(term.strip()).replace("…", ".*") for term in terms if term.strip()]
    assert len(known) > 15
    for method in SWEEP[1:]:
        assert any(re.match(pattern, method.name) for pattern in known), method.name


@pytest.mark.parametrize("what", ["methods", "sweep", "settings"])
def test_the_command_reads_a_table_and_writes_its_page(what, tmp_path):
    file, mine = tmp_path / "drawn.parquet", tmp_path / "mine.yaml"
    make_table(n=20, correlation=0.7).save(file)
    mine.write_text("- {name: two, eta: 2}\n")
    more = {"methods": [], "sweep": ["--sweep"], "settings": ["--settings", mine]}[what]
    said = grash("study", "methods", file, "--seeds", 3, *more, "-o", tmp_path / "out")
    assert "drawn, 3 seeds, B = 3" in said.out
    assert len(list((tmp_path / "out").glob("*.md"))) == 1
    assert ("\ntwo " in said.out) == (what == "settings")


def test_several_tables_get_an_overview(tmp_path):
    several = [compare(Recorded(make_table(n=n, correlation=c)), FEW, seeds=6) for n, c in ((40, 0.9), (70, 0.4))]
    several[1].bench.table.meta["dataset"], several[1].bench.name = "other", "other"
    text = write_overview(several, tmp_path).read_text()
    line = next(row for row in text.splitlines() if row.startswith("| random |"))
    cells = [cell.strip() for cell in line.split("|")[2:-1]]
    for found, cell in zip(several, cells):
        row = found.row("random")
        assert cell.startswith(f"{row.mrr:.4f}")
        assert ("▼" in cell) == (row.gain_interval[1] < 0)
    mean = np.mean([f.row("random").gain / f.row("default").mrr for f in several])
    assert cells[-1] == f"{mean:+.2%}"
    assert len(pl.read_csv(tmp_path / "methods-overview.csv")) == 2 * (3 + 2)


def test_two_ways_to_say_what_is_compared_are_one_too_many(tmp_path):
    ran = grash("study", "methods", "t.parquet", "--sweep", "--settings", tmp_path / "mine.yaml")
    assert ran.code == 2 and "give one of them" in ran.err


@pytest.mark.parametrize(
    "entry, words",
    [
        ("{name: a, run: rungs, lean: half}", "lean='half' is not valid: "),
        ("{name: a, run: rungs, sizes: 5}", "sizes=5 is not valid: "),
        ("{name: a, run: rungs, sizes: [8, 0]}", "sizes=0 is not valid: "),
        ("{name: a, run: rungs, eta: 1}", "eta=1 is not valid: "),
        ("{name: a, run: rungs, guard_rails: 3}", "guard_rails=3 is not valid: "),
        ("{name: a, trend: x}", "trend='x' is not valid: "),
        ("{name: a, budget: x}", "budget='x' is not valid: "),
        ("{name: a, budget: 0}", "budget=0 is not valid: "),
        ("{name: a, run: rungs, bench: 3}", "'bench' is not a setting"),
        ("{name: a, run: [x]}", "is not a method"),
        ("3", "is not a method"),
    ],
)
def test_mistakes_in_a_file_of_settings_are_said_in_a_sentence(tmp_path, entry, words):
    (tmp_path / "mine.yaml").write_text(f"- {entry}\n")
    with pytest.raises(ConfigError, match=words):
        read_methods(tmp_path / "mine.yaml")


def test_files_of_settings_have_pages_of_their_own(tmp_path):
    table = make_table(n=16, correlation=0.6)
    table.save(tmp_path / "t.parquet")
    for name in ("one", "two"):
        (tmp_path / f"{name}.yaml").write_text("- {name: fewer, n_trials: 8}\n")
        words = ["--seeds", 3, "--settings", tmp_path / f"{name}.yaml", "-o", tmp_path / "out"]
        assert grash("study", "methods", tmp_path / "t.parquet", *words).code == 0
    names = {p.stem for p in (tmp_path / "out").glob("*.md")}
    assert names == {f"settings-{name}-drawn-complex-d8-own-e100-s0" for name in ("one", "two")}
    page = tmp_path / "out" / "settings-one-drawn-complex-d8-own-e100-s0.md"
    assert page.read_text().startswith("# The default search and the settings of `one` on drawn\n")


def test_rows_that_a_table_has_too_few_for_are_left_out_with_a_word(tmp_path):
    make_table(n=16).save(tmp_path / "t.parquet")
    (tmp_path / "mine.yaml").write_text("- {name: more, n_trials: 500}\n")
    words = ["--seeds", 2, "--settings", tmp_path / "mine.yaml", "-o", tmp_path / "out"]
    said = grash("study", "methods", tmp_path / "t.parquet", *words).err
    assert "more is left out. n_trials=500 is more than the 16 configurations of the table" in said


@pytest.mark.slow
def test_another_budget_has_pages_of_its_own(bench, tmp_path):
    for budget in (3.0, 1.0, 0.5):
        found = compare(bench, FEW, seeds=2, budget=budget)
        write_methods_page(found, tmp_path)
        write_overview([found], tmp_path)
    pools, overviews = ("methods-drawn-complex-d8-own-e100-s0", "methods-overview")
    wanted = {f"{name}{end}.md" for name in (pools, overviews) for end in ("", "-b1", "-b0.5")}
    assert {p.name for p in tmp_path.glob("*.md")} == wanted
    assert f"({pools}-b1.md)" in (tmp_path / "methods-overview-b1.md").read_text()


def test_a_method_that_the_budget_pays_nothing_of_has_dashes_and_no_line(bench, tmp_path):
    found = compare(bench, FEW, seeds=3, budget=0.5)
    assert not found.row("random").ran
    page, overview = write_methods_page(found, tmp_path), write_overview([found], tmp_path)
    assert "| random | 0.00 | – | – | – | – | 0 | – |" in page.read_text()
    assert "| random | – | – |" in overview.read_text()
    for plot in ("curves", "gains"):
        drawn = (tmp_path / "img" / f"{page.stem}-{plot}.svg").read_text()
        assert "eta 2" in drawn and "random" not in drawn
    row = pl.read_csv(page.with_suffix(".csv")).row(1, named=True)
    assert (row["method"], row["cost"], row["test_mrr"], row["gain"]) == ("random", 0.0, None, None)


def test_pages_say_what_trained_and_what_searched(bench, tmp_path):
    found = compare(bench, FEW, seeds=2)
    for path in (write_methods_page(found, tmp_path), write_overview([found], tmp_path)):
        line = path.read_text().splitlines()[2]
        assert "computed on none (the trainings) and the CPU of the machine that wrote this page (the searches)" in line
