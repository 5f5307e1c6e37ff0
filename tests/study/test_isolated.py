"""Last rounds that hold out triples like the dataset's own: as a study trains them, and as a table answers for them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from grash.search import schedule
from grash.search.graphs import SearchGraphs
from grash.search.schedule import ISOLATED_FROM
from grash_study.methods import Method
from grash_study.pool import StudyGraphs, config_on
from grash_study.recorded import Recorded
from grash_study.run import run_cells
from grash_study.table import Table, make_table, table_cells
from study.small_study import made_up_for, small_pool, small_study
from study.synthetic import make_table as drawn_table
from study.synthetic import score, without

GUARD_RAILS = {"n_entities": 60, "n_valid": 1000, "fraction": 1.0}


@pytest.fixture
def deciding(monkeypatch):
    """The small graph as one whose valid lies isolated, and large enough."""
    monkeypatch.setattr(SearchGraphs, "valid_pairs_isolated", True)
    monkeypatch.setattr(schedule, "MIN_VALID", 5)


def with_isolated(**changes) -> Table:
    """Scores that say little, and beside them such of last rounds that are right; the same truth."""
    usual, right = (drawn_table(correlation=c, **changes) for c in (0.0, 1.0))
    small = [g for g, fraction in enumerate(right.graph_fractions) if fraction < ISOLATED_FROM]
    return replace(usual, isolated=without(right, small))


def test_a_study_trains_on_the_graph_of_a_last_round_with_penalties_as_they_are():
    pool = small_pool(fixed={"penalty": "n3", "penalty_entity": 0.5})
    graphs, search_graphs = StudyGraphs(pool), SearchGraphs(pool.dataset, pool.settings)
    ours, theirs = graphs.graph("isolated", 0.4), search_graphs.subgraph((0.4,), True)
    assert (ours.dataset.train == theirs.dataset.train).all() and (ours.dataset.valid == theirs.dataset.valid).all()
    core_order = graphs.graph("core-order", 0.4)
    assert {tuple(t) for t in ours.full_ids("valid")} != {tuple(t) for t in core_order.full_ids("valid")}
    assert config_on(ours, pool, 0, 0.5).penalty_entity == 0.5 > config_on(core_order, pool, 0, 0.5).penalty_entity


def test_a_table_has_larger_graphs_as_last_rounds_have_them_where_that_differs(tmp_path, deciding, monkeypatch):
    graphs, store = small_study(tmp_path, n=3)
    cells = table_cells(graphs)
    there = {way: {c.fraction for c in cells if c.technique == way} for way in ("core-order", "isolated", "whole")}
    assert there["isolated"] == {g for g in there["core-order"] if g >= ISOLATED_FROM} and len(there["isolated"]) > 1
    assert run_cells(graphs, cells, store, device="cpu", max_seconds=0) is False and not store.entries
    assert run_cells(graphs, [c for c in cells if c.number == 0 and c.fraction in (0.5, 1.0)], store, device="cpu")
    made = make_table(store, graphs.pool, guard_rails=GUARD_RAILS)
    assert made.graph_fractions == (0.5, 1.0) == made.isolated.graph_fractions
    assert (
        made.valid[0, -1, 0] != made.isolated.valid[0, -1, 0] and made.valid[1, -1, 0] == made.isolated.valid[1, -1, 0]
    )
    for name, value in (("MIN_VALID", 1000), ("ISOLATED_FROM", 1.0)):
        with monkeypatch.context() as other:
            other.setattr(schedule, name, value)
            assert not [c for c in table_cells(graphs) if c.technique == "isolated"]
    monkeypatch.setattr(SearchGraphs, "valid_pairs_isolated", False)
    assert not [c for c in table_cells(graphs) if c.technique == "isolated"]


def test_a_table_with_last_rounds_is_the_same_after_being_written(tmp_path, deciding):
    graphs, store = small_study(tmp_path, n=3)
    cells = table_cells(graphs)
    store.add(
        made_up_for(c, 0.1 * (c.number + 1) * (2 if c.technique == "isolated" else 1)) for c in cells if c.number < 2
    )
    table = make_table(store, graphs.pool, guard_rails=GUARD_RAILS)
    table.save(tmp_path / "t.parquet")
    again = Table.load(tmp_path / "t.parquet")
    assert again.configurations == table.configurations
    for mine, theirs in ((table, again), (table.isolated, again.isolated)):
        assert mine.graph_fractions == theirs.graph_fractions and mine.epoch_fractions == theirs.epoch_fractions
        for name in ("valid", "failed", "seconds", "entities", "triples", "n_valid"):
            np.testing.assert_array_equal(getattr(mine, name), getattr(theirs, name), err_msg=name)
        np.testing.assert_array_equal(mine.test["mrr"], theirs.test["mrr"])
    assert score(again.isolated, 0, 0.5, 1.0) == pytest.approx(2 * score(again, 0, 0.5, 1.0))


def test_only_the_last_round_is_decided_by_isolated_pairs():
    bench = Recorded(with_isolated(n=64))
    settings = bench.settings("default", 3.0, ())
    plans = bench.planned(settings)
    assert [p.isolated for p in plans] == [False, False, True]
    for plan in plans:
        there = bench.isolated if plan.isolated else bench
        g, e = plan.graph_fraction, plan.epochs / settings.max_epochs
        wanted = there.scores(g, e) + plan.trend * there.rises(g, e)
        np.testing.assert_array_equal(bench.round_scores(plan, settings), wanted)
    state = bench.search(range(64), settings)
    entrants = state.rounds[1].survivors
    assert state.winner == max(entrants, key=lambda i: bench.truth[i])  # the last round is right here, others are not


def test_rungs_decides_as_the_search_does_with_and_without_isolated_pairs():
    table = with_isolated(n=200, diverged=0.2)
    bench, usual = Recorded(table), Recorded(replace(table, isolated=None))
    picks = set()
    for seed in range(6):
        ours = Method("it", "grash")(bench, seed, 3.0)
        assert ours.pick == Method("it", "rungs")(bench, seed, 3.0).pick
        without = Method("it", "grash", {"last_round_holdout": "random"})(bench, seed, 3.0)
        assert without == Method("it", "grash")(usual, seed, 3.0)
        assert without.pick == Method("it", "rungs", {"isolated": False})(bench, seed, 3.0).pick
        picks |= {(ours.pick, without.pick)}
        paper = Method("it", "grash", {"preset": "paper"})
        assert paper(bench, seed, 3.0) == paper(usual, seed, 3.0)
    assert len(picks) > 1 and any(one != other for one, other in picks)


def test_hyperband_ends_in_the_last_round_of_a_search():
    table = with_isolated(n=200)
    bench, hyperband = Recorded(table), Method("it", "hyperband")
    for seed in range(4):
        finalists = hyperband(bench, seed, 3.0).levels[-1]
        assert hyperband(bench, seed, 3.0).pick == max(finalists, key=lambda i: bench.truth[i])
    few = replace(table, isolated=replace(table.isolated, n_valid=table.isolated.n_valid * 0 + 999))
    assert hyperband(Recorded(few), 0, 3.0) == hyperband(Recorded(replace(table, isolated=None)), 0, 3.0)
    assert Method("it", "rungs")(Recorded(few), 0, 3.0).pick == Method("it", "grash")(Recorded(few), 0, 3.0).pick


def test_members_that_a_last_round_lacks_take_no_part():
    table = with_isolated(n=40)
    table.isolated.valid[0, -1, 7] = np.nan
    bench = Recorded(table)
    assert 7 not in bench.members and bench.n == 39 and bench.isolated.n == 39
