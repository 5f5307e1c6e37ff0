"""A table: what a store has, dense, interpolated where it may be, and the same after being written."""

from __future__ import annotations

import json
import math
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from grash.errors import FormatError, InputError
from grash_study import table as planned
from grash_study.pool import DEFAULT
from grash_study.recorded import Recorded
from grash_study.run import run_cells
from grash_study.store import MARKS, rounded
from grash_study.table import GRAPHS, Table, make_table, planned_fidelities, table_cells
from grash_study.transfer import transfer_cells
from study.small_study import made_up, made_up_for, small_study
from study.synthetic import score

GUARD_RAILS = {"n_entities": 60, "n_valid": 1000, "fraction": 1.0}


def made(tmp_path, *, failed: bool = False) -> Table:
    """Two configurations on a half and on the whole graph, by hand."""
    graphs, store = small_study(tmp_path, n=2)
    sizes = {"n_entities": 30, "n_train": 300, "n_valid": 50, "n_relations": 2}
    curve = ((0.25, 0.1, 1.0), (0.5, 0.2, 1.0), (1.0, 0.3, 1.0))
    half = {"marks": (0.25, 0.5, 1.0), **sizes}
    end = {"curve": ((0.25, 0.4, 1.0),), "status": "diverged", "failed": 0.4} if failed else {"curve": curve}
    store.add([
        made_up(0, "core-order", 0.5, 0.0, curve=curve, **half),
        made_up(1, "core-order", 0.5, 0.4, **end, **half),
        made_up(0, "whole", 1.0, 0.5), made_up(1, "whole", 1.0, 0.6), made_up(DEFAULT, "whole", 1.0, 0.9),
        made_up(0, "k-core", 0.5, 0.9),
    ])  # fmt: skip
    return make_table(store, graphs.pool, guard_rails=GUARD_RAILS)


def test_the_table_has_what_the_store_has(tmp_path):
    table = made(tmp_path)
    assert table.graph_fractions == (0.5, 1.0) and table.epoch_fractions == (0.25, 0.5, 1.0) and table.n == 2
    assert table.valid[0, :, 0].tolist() == [0.1, 0.2, 0.3] and table.valid[1, 1:, 0].tolist() == [0.5, 0.5]
    assert table.test["mrr"].tolist() == [0.5, 0.6] and table.test["hits@1"].tolist() == [0.25, 0.3]
    assert table.entities.tolist() == [30, 60] and table.triples.tolist() == [300, 600]
    assert np.isinf(table.failed).all() and table.configurations[0]["dim"] == 4


def test_epochs_at_which_a_graph_was_not_validated_have_no_value_and_are_interpolated(tmp_path):
    table = made(tmp_path)
    assert np.isnan(table.valid[1, 0, 0]) and score(table, 0, 1.0, 0.25) == pytest.approx(0.25)  # half way to e = 0.5


def test_scores_are_exact_where_measured_linear_between_and_between_two_graphs(tmp_path):
    table = made(tmp_path)
    assert score(table, 0, 0.5, 0.5) == 0.2 and score(table, 0, 0.5, 0.75) == pytest.approx(0.25)
    assert score(table, 0, 0.5, 0.125) == pytest.approx(0.05)
    assert score(table, 0, 1.0, 1.0) == 0.5 and all(score(table, 0, g, 1.0) == 0.3 for g in (0.01, 0.6, 0.99))


def test_a_diverged_training_scores_nothing_after_and_its_last_validation_before(tmp_path):
    table = made(tmp_path, failed=True)
    assert table.failed[0, 1] == 0.4 and table.valid[0, :, 1].tolist() == [0.4, 0.0, 0.0]
    assert score(table, 1, 0.5, 0.39) == 0.4 and score(table, 1, 0.5, 0.4) == 0.0 and score(table, 1, 0.5, 1.0) == 0.0


def test_sizes_are_exact_at_the_table_s_graphs_and_between_them_elsewhere(tmp_path):
    table = made(tmp_path)
    half, whole, between, tiny = (table.shape(g) for g in (0.5, 1.0, 0.7, 0.1))
    assert (half.n_entities, half.n_train, half.n_valid, half.whole) == (30, 300, 50, False)
    assert (whole.n_entities, whole.n_train, whole.whole) == (60, 600, True)
    assert 300 < between.n_train < 600 and 30 < between.n_entities < 60
    assert tiny.n_train == 60


def test_a_table_is_the_same_after_being_written(tmp_path):
    for failed in (False, True):
        table = made(tmp_path / str(failed), failed=failed)
        table.save(tmp_path / "t.parquet")
        again = Table.load(tmp_path / "t.parquet")
        assert again.meta == json.loads(json.dumps(table.meta)) and again.configurations == table.configurations
        assert (again.graph_fractions, again.epoch_fractions) == (table.graph_fractions, table.epoch_fractions)
        for name in ("valid", "failed", "seconds", "entities", "relations", "triples", "n_valid"):
            np.testing.assert_array_equal(getattr(again, name), getattr(table, name), err_msg=name)
        for name, column in table.test.items():
            np.testing.assert_array_equal(again.test[name], column)


def test_polars_alone_reads_the_file(tmp_path):
    import polars as pl

    made(tmp_path, failed=True).save(tmp_path / "t.parquet")
    rows = pl.read_parquet(tmp_path / "t.parquet")
    assert {"number", "graph_fraction", "epoch_fraction", "valid_mrr", "test_mrr", "configuration"} <= set(rows.columns)
    assert json.loads(rows["configuration"][0])["model"] == "complex"
    whole = rows.filter(pl.col("graph_fraction") == 1)
    assert whole["test_mrr"].is_nan().sum() == 0
    assert rows.filter(pl.col("failed_at").is_finite())["number"].unique().to_list() == [1]


def test_other_files_are_refused_in_a_sentence(tmp_path):
    import polars as pl

    with pytest.raises(InputError, match="There is no table"):
        Table.load(tmp_path / "none.parquet")
    pl.DataFrame({"a": [1]}).write_parquet(tmp_path / "other.parquet")
    (tmp_path / "text.parquet").write_text("no")
    for name in ("other", "text"):
        with pytest.raises(FormatError, match="is not a table of a study"):
            Table.load(tmp_path / f"{name}.parquet")


def test_graphs_on_which_another_study_trained_for_some_epochs_are_left_out(tmp_path):
    graphs, store = small_study(tmp_path, n=4)

    store.add(made_up_for(c, 0.1) for c in table_cells(graphs))
    alone = make_table(store, graphs.pool, guard_rails=GUARD_RAILS)
    shorter = transfer_cells(4, reductions=("combined",), budgets=(0.3, 0.01, 1 / 64))
    store.add(made_up_for(c, 0.1) for c in shorter)
    both = make_table(store, graphs.pool, guard_rails=GUARD_RAILS)
    assert both.graph_fractions == alone.graph_fractions and both.epoch_fractions == alone.epoch_fractions
    assert Recorded(both).n == 4


def test_a_configuration_that_was_never_run_is_in_the_file_all_the_same(tmp_path):
    graphs, store = small_study(tmp_path, n=3)
    store.add(made_up(i, "whole", 1.0, 0.1) for i in (0, 2))
    table = make_table(store, graphs.pool, guard_rails=GUARD_RAILS)
    table.save(tmp_path / "t.parquet")
    again = Table.load(tmp_path / "t.parquet")
    assert again.configurations == table.configurations and np.isnan(again.test["mrr"]).tolist() == [False, True, False]
    assert Recorded(again).members.tolist() == [0, 2]


def test_a_store_without_full_trainings_makes_no_table(tmp_path):
    graphs, store = small_study(tmp_path)
    store.add([made_up(0, "core-order", 0.5, 0.1)])
    with pytest.raises(InputError, match="no training on the whole graph"):
        make_table(store, graphs.pool, guard_rails=GUARD_RAILS)


def test_cells_of_a_table_are_the_whole_graph_halves_and_what_the_default_search_visits(tmp_path):
    graphs, store = small_study(tmp_path, n=2)
    cells = table_cells(graphs)
    fractions = {c.fraction for c in cells if c.technique == "core-order"}
    assert set(GRAPHS) <= fractions and any(c.technique == "whole" for c in cells)
    assert GRAPHS[0] == 1 / 64 and GRAPHS[-1] == pytest.approx(0.5**0.5) and len(GRAPHS) == 12
    for fraction, epochs in planned_fidelities(graphs):
        marks = next(c.marks for c in cells if c.fraction == pytest.approx(fraction))
        assert rounded(epochs) in marks and rounded(epochs / 2) in marks
    assert all(set(MARKS) <= set(c.marks) for c in cells)
    assert all(m in c.marks for c in cells if c.technique == "whole" for m in (1 / 2, 1 / 4))  # of 2 epochs
    few = [c for c in cells if c.fraction in (0.5, 1.0)]
    assert run_cells(graphs, few, store, device="cpu")
    table = make_table(store, graphs.pool, guard_rails=graphs.guard_rails())
    assert not np.isnan(table.valid[:, -1]).any() and set(table.graph_fractions) == {0.5, 1.0}


def test_planned_epochs_that_miss_a_usual_mark_by_a_hair_are_that_mark(tmp_path, monkeypatch):
    rounds = [(True, 0.015624848), (True, 0.299999), (False, 0.24999985), (False, 0.0663905), (False, 0.249)]
    plans = [SimpleNamespace(whole=w, graph_fraction=0.5, epochs=2 * e) for w, e in rounds]
    found = SimpleNamespace(rounds=[SimpleNamespace(plan=plan) for plan in plans])
    monkeypatch.setattr(planned, "plan_search", lambda *_, **__: found)
    graphs, _ = small_study(tmp_path, n=1)
    assert planned_fidelities(graphs) == [(1.0, 1 / 64), (1.0, 0.3), (0.5, 0.25), (0.5, 0.0663905), (0.5, 0.249)]
    for cell in table_cells(graphs):
        assert all(later > earlier * 1.0001 for earlier, later in zip(cell.marks, cell.marks[1:]))


@given(st.lists(st.floats(0.001, 1), min_size=2, max_size=6, unique=True), st.floats(0.001, 1))
def test_scores_are_between_those_of_the_curve(marks, epochs):
    marks = sorted(float(f"{m:.6g}") for m in {*marks, 1.0})
    values = [math.sin(5 * m) ** 2 for m in marks]
    table = Table(
        {}, [{}], (1.0,), tuple(marks), np.array(values)[None, :, None],
        np.full((1, 1), np.inf), {}, np.zeros((1, 1)), *(np.ones(1, np.int64) for _ in range(4)),
    )  # fmt: skip
    assert -1e-12 <= score(table, 0, 1.0, epochs) <= max(values) + 1e-12
    for mark, value in zip(marks, values):
        assert score(table, 0, 0.3, mark) == pytest.approx(value)
