"""The studies: which cells they need, what they find, and the pages that show it, or that it has not been run yet."""

from __future__ import annotations

import shlex
import xml.etree.ElementTree as ElementTree

import numpy as np
import polars as pl
import pytest

from grash.errors import ConfigError
from grash_study import searches as resources
from grash_study import searches as rounds
from grash_study import searches as variants
from grash_study.pages import Page, Rows, Series, bar_plot, line_plot, write_page
from grash_study.pool import DEFAULT, make_pool
from grash_study.run import run_cells
from grash_study.searches import run_searches
from grash_study.statistics import spearman
from grash_study.transfer import (
    BUDGETS,
    REDUCTIONS,
    analyze,
    check_reductions,
    differences,
    full_valid,
    transfer_cells,
    transfer_page,
)
from small_graph import grash
from study.small_study import SPACE, made_up, small_graph, small_study

EPOCHS = {"epochs": 8.0}  # so that first rounds of four have an epoch


def filled(tmp_path, *, n: int = 12, noise: float = 0.0):
    """A store in which every score is the truth, but for the noise of reduced graphs."""
    graphs, store = small_study(tmp_path, n=n)
    generator = np.random.default_rng(0)
    truth = np.linspace(0.01, 0.4, n)
    for cell in transfer_cells(n):
        mrr = float(truth[cell.number])
        seen = mrr if cell.technique == "whole" else mrr + noise * generator.normal()
        curve = tuple((m, seen * m**0.1, 1.0) for m in cell.marks)
        more = {"n_entities": round(60 * cell.fraction), "n_train": round(600 * cell.fraction)}
        store.add([made_up(cell.number, cell.technique, cell.fraction, mrr, marks=cell.marks, curve=curve, **more)])
    return graphs, store


def test_a_transfer_needs_every_technique_at_every_budget():
    cells = transfer_cells(2)
    graphs = {(c.technique, round(c.fraction, 6)) for c in cells}
    for technique in ("triples", "walk", "kgtuner", "k-core", "core-order"):
        assert {(technique, round(b, 6)) for b in BUDGETS} <= graphs
    assert ("core-order", round(0.5**0.5, 6)) in graphs and ("whole", 1.0) in graphs
    assert {c.technique for c in transfer_cells(2, reductions=("epochs",))} == {"whole"}


def test_scores_that_are_the_truth_correlate_perfectly_and_noise_lowers_that(tmp_path):
    for found in analyze(filled(tmp_path / "exact")[1], 12):
        assert found.all.rho == pytest.approx(1) and found.all.n == 12
        assert found.learning.rho == pytest.approx(1) and found.learning.n == 10  # the others are below 0.05
    noisy = {(f.reduction, f.budget): f.all.rho for f in analyze(filled(tmp_path / "noisy", noise=0.2)[1], 12)}
    assert noisy["epochs", 1 / 64] == pytest.approx(1) and noisy["triples", 1 / 64] < 0.95


def test_what_was_not_run_is_shown_as_such(tmp_path):
    _, store = small_study(tmp_path, n=6)
    store.add(made_up(i, "whole", 1.0, 0.1 * i) for i in range(6))
    page = transfer_page(store, 6, command="grash study transfer small")
    text = write_page(page, tmp_path).read_text()
    assert text.count("not run yet") > 60 and "6 of 6 configurations trained in full" in text
    assert "(not run yet)" in (tmp_path / "img" / "transfer-small-complex-d4-two-e2-s0.svg").read_text()
    costs = text.partition("## What a training costs")[2]
    assert costs.count("| triple sampling |") == costs.count("| combined |") == 1  # no line per budget
    assert f"| triple sampling | not run yet | 0 |{' not run yet |' * 6}\n" in costs and costs.count(
        "| epochs |"
    ) == len(BUDGETS)


@pytest.mark.slow
def test_the_transfer_page_shows_intervals_costs_and_plots(tmp_path):
    _, store = filled(tmp_path, noise=0.1)
    path = write_page(transfer_page(store, 12, command="grash study transfer small"), tmp_path)
    text = path.read_text()
    assert "not run yet" not in text and "| k-core |" in text and "```bash\ngrash study transfer small\n```" in text
    assert len((tmp_path / "transfer-small-complex-d4-two-e2-s0.csv").read_text().splitlines()) == 1 + len(
        REDUCTIONS
    ) * len(BUDGETS)
    for svg in (tmp_path / "img").glob("*.svg"):
        ElementTree.parse(svg)


@pytest.mark.slow
def test_techniques_may_rest_on_different_configurations_and_are_compared_over_those_that_both_have(tmp_path):
    graphs, store = filled(tmp_path, noise=0.1)
    for key in [k for k, e in store.entries.items() if e.technique == "walk" and e.number > 6]:
        del store.entries[key]
    gone = next(k for k, e in store.entries.items() if (e.technique, e.number, e.fraction) == ("walk", 2, 0.5))
    del store.entries[gone]
    found = analyze(store, 12)
    assert {f.all.n for f in found if f.reduction == "walk"} == {6}
    assert {f.all.n for f in found if f.reduction == "combined"} == {12}
    pairs = differences(found, full_valid(store, 12))
    assert {c.n for (reduction, _), c in pairs.items() if reduction == "walk"} == {6}
    text = write_page(transfer_page(store, 12, command="grash"), tmp_path).read_text()
    assert "| random walk | 6 |" in text and "## Difference to combined" in text and ".parquet)" in text
    scores = pl.read_parquet(next(tmp_path.glob("transfer-*.parquet")))
    mine = scores.filter(technique="walk", budget=1 / 64, counted=1)
    rho = next(f.all.rho for f in found if (f.reduction, f.budget) == ("walk", 1 / 64))
    assert spearman(mine["score"], mine["full_valid_mrr"]).rho == pytest.approx(rho)


def test_only_series_with_intervals_are_shifted():
    def shifted(low) -> set[str]:
        series = [Series(name, ((0.1, 0.5, low, 0.6), (1.0, 0.7, low, 0.8))) for name in "ab"]
        drawn = ElementTree.fromstring(line_plot(series, title="t", x_label="x", y_label="y", log_x=True))
        svg = "{http://www.w3.org/2000/svg}"
        lines = [g for g in drawn.iter(f"{svg}g") if g.attrib.get("id", "").startswith("line2d")]
        return {
            use.attrib["x"] for g in lines for use in g.iter(f"{svg}use") if "clip-path" in str(ElementTree.tostring(g))
        }

    assert len(shifted(None)) < len(shifted(0.4))


def test_an_unknown_technique_is_named():
    assert check_reductions("epochs, core-order") == ("core-order", "epochs")
    with pytest.raises(ConfigError, match="no technique 'trees'"):
        check_reductions("trees")


def test_variants_are_shown_beside_the_best_the_median_and_the_default(tmp_path):
    graphs, store = small_study(tmp_path, n=4)
    setup = variants.Setup("complex", {}, variants.VARIANTS, True)
    asked = variants.variant_searches(setup.variants, n=4, preset="paper")
    for number, one in enumerate(asked):
        known = {"name": one.name, "settings": one.settings(store.meta).model_dump(mode="json"), "rounds": []}
        store.add_search({**known, "winner": number, "seconds": 1.5, "device": "cpu"})
    store.add(made_up(i, "whole", 1.0, 0.1 * (i + 1)) for i in range(4))
    store.add([made_up(DEFAULT, "whole", 1.0, 0.05)])
    assert {c.number for c in variants.pick_cells(store, asked, DEFAULT)} == {DEFAULT, 0, 1, 2}
    page = variants.variants_page([(setup, store)], n=4, preset="paper", command="grash study variants small")
    rows = page.raw.rows
    assert [r[4] for r in rows] == pytest.approx([0.1, 0.2, 0.3]) and {r[8] for r in rows} == {0.4}
    assert [r[9] for r in rows] == pytest.approx([0.25, 0.5, 0.75]) and rows[0][10] == 0.4
    assert rows[0][11] == pytest.approx(0.25) and rows[0][12] == 0.05
    text = write_page(page, tmp_path).read_text()
    assert "not run yet" not in text and "| 25.0% |" in text and "which is not one of the n" in text


def test_the_default_configuration_is_a_cell_of_its_own(tmp_path):
    graphs, store = small_study(tmp_path)
    config = graphs.pool.config(DEFAULT)
    assert config.lr == 0.1 and config.dim == 4 and config.epochs == 2.0
    assert run_cells(graphs, variants.pick_cells(store, [], DEFAULT), store, device="cpu")
    assert store.entry(DEFAULT, "whole", 1.0).test["mrr"] > 0


def test_rotate_s_own_loss_is_searched_with_its_margin_and_temperature():
    space = variants.self_adversarial_space("rotate", 60)
    pool = make_pool(small_graph(), n=8, model="rotate", dim=4, epochs=1, space=space, label="own")
    values = [c.values for c in pool.configurations]
    assert {v["loss"] for v in values} == {"self_adversarial"}
    assert len({v["margin"] for v in values}) > 1 and len({v["temperature"] for v in values}) > 1
    labels = [s.label for s in variants.setups(["complex", "rotate"], dim=4, large=8, full=True, n_entities=60)]
    assert labels == ["complex", "complex", "rotate", "rotate", "rotate, self-adversarial"]


def test_rounds_compares_etas_at_one_budget_and_one_round_at_a_third(tmp_path):
    graphs, store = small_study(tmp_path, n=4, **EPOCHS)
    asked = rounds.round_searches(["epoch"], n=4, preset="paper")
    assert [(dict(a.changes)["eta"], dict(a.changes)["budget"]) for a in asked] == [(2, 3), (4, 3), (8, 3), (4, 1)]
    page = rounds.rounds_page(store, asked, command="grash study rounds small")
    assert write_page(page, tmp_path).read_text().count("not run yet") == 4 * 6 + 1
    assert run_searches(graphs, asked[:2], store, device="cpu")
    assert run_cells(graphs, rounds.pick_cells(store, asked), store, device="cpu")
    rows = rounds.rounds_page(store, asked, command="").raw.rows
    assert rows[0][3] == 2 and rows[1][3] == 1 and all(isinstance(r[6], float) for r in rows[:2]) and rows[2][6] is None


@pytest.mark.parametrize("status", ["memory", "error", "impossible"])
def test_a_pick_whose_full_training_did_not_work_has_no_score(tmp_path, status):
    _, store = small_study(tmp_path, n=4)
    asked = rounds.round_searches(["epoch"], n=4, preset="paper")
    (other,) = variants.variant_searches(["epoch"], n=4, preset="paper")
    record = {"winner": 2, "seconds": 1.5, "spent": 3.0, "rounds": [{"fidelity": 0.5}], "device": "cpu"}
    for one in (asked[0], other):
        store.add_search({"name": one.name, "settings": one.settings(store.meta).model_dump(mode="json"), **record})
    store.add([made_up(2, "whole", 1.0, 0.0, status=status, test=None, curve=())])
    setup = variants.Setup("complex", {}, ("epoch",), False)
    row = variants.variants_page([(setup, store)], n=4, preset="paper", command="").raw.rows[0]
    assert row[3:5] == (2, None)
    assert rounds.rounds_page(store, asked, command="").raw.rows[0][5:8] == (2, None, None)
    store.add([made_up(2, "whole", 1.0, 0.0, status="diverged", failed=0.1, test=None, curve=())])
    assert rounds.rounds_page(store, asked, command="").raw.rows[0][5:8] == (2, 0.0, 0.0)


def test_resources_are_those_of_every_round_and_of_more_trials_at_a_time(tmp_path):
    graphs, store = small_study(tmp_path, n=4, **EPOCHS)
    asked = variants.variant_searches(["epoch"], n=4, preset="paper", warm=True)
    assert run_searches(graphs, asked, store, device="cpu")
    assert resources.time_first_rounds(graphs, asked, store, device="cpu")
    assert [r["at_a_time"] for r in store.searches.values() if "at_a_time" in r] == [4, 3, 1]
    text = write_page(resources.resources_page(store, asked, command="grash"), tmp_path).read_text()
    assert "| epoch | all |" in text and "| epoch | 3 |" in text and "not run yet" not in text
    assert "-at-a-time.csv)" in text and "every trial's state is kept" in text and "Nothing was warmed up" not in text
    timed = next(tmp_path.glob("*-at-a-time.csv")).read_text().splitlines()
    assert len(timed) == 4 and float(timed[1].split(",")[3]) == 1.0


def test_plots_are_xml_with_text_and_a_label_for_each_series():
    series = [Series("a < b & c", ((0.1, 0.5, 0.4, 0.6), (0.5, 0.7, None, None))), Series("empty", ())]
    drawn = line_plot(series, title="ρ & more", x_label="x", y_label="y", log_x=True)
    texts = [t.text for t in ElementTree.fromstring(drawn).iter("{http://www.w3.org/2000/svg}text")]
    assert {"a < b & c", "empty (not run yet)", "ρ & more"} <= set(texts)
    assert drawn == line_plot(series, title="ρ & more", x_label="x", y_label="y", log_x=True)
    bars = bar_plot([("one", 0.5, 0.4, 0.6), ("two", 0.1, None, None)], title="bars", x_label="x", mark=0.2)
    texts = [t.text for t in ElementTree.fromstring(bars).iter("{http://www.w3.org/2000/svg}text")]
    assert {"one", "two", "+0.5000", "+0.1000"} <= set(texts)


def test_tables_of_a_page_say_what_is_missing_and_keep_bars_inside_cells(tmp_path):
    rows = Rows(("a", "b"), ((1, None), ("x|y", 0.12345)))
    assert rows.markdown().splitlines()[2:] == ["| 1 | not run yet |", "| x\\|y | 0.1235 |"]
    assert rows.csv() == "a,b\n1,\nx|y,0.12345\n"
    page = Page("p", "Title", "grash", "", raw=rows)
    assert "computed on not run yet" in write_page(page, tmp_path).read_text()


@pytest.mark.slow
def test_commands_plan_run_resume_write_and_merge(tmp_path):
    folder = tmp_path / "graph"
    small_graph().save(folder)
    space = tmp_path / "two.yaml"
    space.write_text("".join(f"{k}: {v}\n" for k, v in SPACE.items() if k != "batch_size").replace("'", ""))
    common = [
        "--epochs",
        2,
        "--dim",
        4,
        "--space",
        space,
        "--device",
        "cpu",
        "--store",
        tmp_path / "s",
        "-o",
        tmp_path / "o",
    ]
    common += ["--set", "batch_size=32"]
    words = ["study", "transfer", folder, "--n", 3, "--techniques", "core-order,epochs", *common]
    planned = grash(*words, "--plan")
    assert planned.code == 0 and "0 of 21 cells are there" in planned.out and "in all" in planned.out
    stopped = grash(*words, "--max-seconds", 0)
    page = tmp_path / "o" / "transfer-small-complex-d4-two-batch_size.32-e2-s0.md"
    assert stopped.code == 7 and "not run yet" in page.read_text() and not (tmp_path / "s").exists()
    shown = page.read_text().partition("```bash\n")[2].partition("\n```")[0]
    assert shown.startswith(f"grash study transfer {folder} --n 3 ") and f"--space {space}" in shown
    before = page.read_text()
    page.unlink()
    grash(*shlex.split(shown)[1:], "--max-seconds", 0)
    assert page.read_text() == before
    ran = grash(*words)
    assert ran.code == 0 and "21 of 21 cells" in ran.err, ran.err
    again = grash(*words)
    assert again.code == 0 and " trained in " not in again.out
    merged = grash("study", "merge", tmp_path / "t", tmp_path / "s")
    assert merged.code == 0 and "21 new results" in merged.out
    made = grash("study", "table", folder, "--n", 3, *common, "--to", tmp_path / "t.parquet", "--max-seconds", 0)
    assert made.code == 7 and "3 configurations" in made.err and (tmp_path / "t.parquet").is_file()
    assert grash("study", "rounds", folder, "--n", 2, *common).code == 2


@pytest.mark.parametrize("verb", ["transfer", "variants", "resources", "rounds", "table"])
def test_every_study_takes_the_shared_options_and_those_only(verb):
    helped = grash("study", verb, "--help").out
    for option in ("--n", "--space", "--store", "--plan", "--separator", "--split-seed"):
        assert f"{option} " in helped
    assert "--given" not in helped and "--pooled" not in helped and "--reading" not in helped


def test_a_trial_costs_its_steps_and_two_validations_and_an_impossible_graph_is_shown_as_such(tmp_path):
    _, store = small_study(tmp_path, n=3)
    store.add(made_up(i, "whole", 1.0, 0.1 * (i + 1), train_seconds=8.0, valid_seconds=0.5) for i in range(3))
    store.add(made_up(i, "walk", 0.5, 0.0, status="impossible", curve=()) for i in range(3))
    found = {(f.reduction, f.budget): f for f in analyze(store, 3)}
    assert found["epochs", 0.5].cost[4] == pytest.approx(8.0 * 0.5 + 2 * 0.5)
    assert found["walk", 0.5].impossible and not found["walk", 0.25].impossible
    text = write_page(transfer_page(store, 3, command="grash"), tmp_path).read_text()
    assert text.count("no such graph") == 4 + 6
