"""Search methods as real searches: they train what they ask for, at the cost they are billed, and do so again alike."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import partial

import numpy as np
import pytest

from grash.api.search import Search
from grash.data.dataset import Dataset
from grash.errors import ConfigError, UnknownName
from grash_study import confirm
from grash_study.confirm import (
    Asked,
    Candidate,
    Live,
    method_candidate,
    plan_wanted,
    run_method,
    run_wanted,
    store_of,
    wanted_searches,
)
from grash_study.methods import METHODS
from grash_study.recorded import Recorded
from grash_study.run import run_cells
from grash_study.store import Store
from grash_study.table import make_table, table_cells
from study.small_study import SPACE, small_graph, small_study
from study.test_confirm import COMMON

MEASURED = ("seconds", "final_seconds", "final_peak_bytes")


@pytest.fixture(autouse=True)
def small_pool(monkeypatch):
    monkeypatch.setattr(confirm, "POOL", 6)


def wanted_of(name: str, **changes):
    common = {**{key: COMMON[key] for key in ("dim", "max_epochs", "space")}, **changes}
    return wanted_searches(small_graph(), [method_candidate(name)], models=["complex"], seeds=1, common=common)[0]


def bare(record):
    return {name: value for name, value in record.items() if name not in MEASURED}


@pytest.mark.parametrize("name", ["hyperband", "kgtuner", "autone", "tpe", "random", "one-epoch"])
def test_a_method_trains_what_it_asks_for_and_its_pick_in_full(name, tmp_path):
    one = wanted_of(name)
    record = run_method(one, small_graph(), tmp_path / "one", device="cpu")
    assert record["test"]["mrr"] > 0 and not record["failed"] and record["values"]["lr"] > 0
    assert 0 < record["spent"] <= 3.0 + 1e-9 and record["seconds"] > 0 and len(record["validations"]) >= 10
    again = run_method(one, small_graph(), tmp_path / "two", device="cpu")
    continued = run_method(one, small_graph(), tmp_path / "two", device="cpu")  # nothing is trained again
    assert bare(record) == bare(again) == bare(continued)


@pytest.mark.parametrize(("name", "n"), [("kgtuner", 20), ("tpe", 8)])
def test_a_method_runs_on_a_graph_too_dense_for_the_smallest_cuts(name, n, tmp_path):
    every = np.array([(h, r, t) for h in range(n) for r in range(20) for t in range(n) if h != t], np.int32)
    every = np.random.default_rng(0).permutation(every)[:1000]
    data = Dataset(every[:900], every[900:950], every[950:], n_entities=n, n_relations=20, name="dense")
    record = run_method(wanted_of(name), data, tmp_path, device="cpu")
    assert record["test"]["mrr"] > 0 and not record["failed"]


def test_methods_of_full_runs_do_the_same_as_on_a_table_of_the_pool(tmp_path):
    graphs, store = small_study(tmp_path, 5)
    run_cells(graphs, table_cells(graphs), store, device="cpu")
    table = Recorded(make_table(store, graphs.pool, guard_rails=graphs.guard_rails()))
    for method in (m for m in METHODS if m.run in ("random", "tpe")):
        for seed in range(3):
            live = Live(graphs, store, device="cpu")
            found, simulated = method(live, seed, 3.0), method(table, seed, 3.0)
            assert found == simulated
    live = Live(graphs, store, device="cpu")
    for g, e in ((0.5, 1.0), (0.25, 0.5), (1.0, 0.5)):
        members = list(range(5))
        np.testing.assert_allclose(live.scores(g, e)[members], table.scores(g, e)[members], rtol=1e-6)


def test_what_is_not_asked_for_is_not_trained(tmp_path):
    graphs, store = small_study(tmp_path, 6)
    live = Live(graphs, store, technique="kgtuner", device="cpu")
    assert not math.isnan(live.scores(0.5, 1.0)[2]) and live.part_seen(0.5, 1.0)[2] == 1.0
    assert {(e.number, e.technique) for e in store.entries.values()} == {(2, "kgtuner")}
    assert live.shape((0.5,)).n_train <= 300 and len(live.table.entities) == len(live.fractions)
    assert Asked(lambda member: member / 2)[[1, 3]].tolist() == [0.5, 1.5]


def test_an_interrupted_search_has_the_seconds_of_all_its_trainings(tmp_path, monkeypatch):
    one, data, add, added = wanted_of("one-epoch"), small_graph(), Store.add, []

    def add_seconds(self, entries):  # every training takes a second
        new = [replace(entry, seconds=1.0) for entry in entries]
        add(self, new)
        added.extend(new)
        if new and len(added) == stop_at:
            raise KeyboardInterrupt

    monkeypatch.setattr(Store, "add", add_seconds)
    stop_at = 7  # after one of the full trainings that follow six of an epoch
    with pytest.raises(KeyboardInterrupt):
        run_method(one, data, tmp_path, device="cpu")
    assert added[-1].marks[-1] == 1
    record = run_method(one, data, tmp_path, device="cpu")
    assert record["seconds"] + record["final_seconds"] == len(added) > 7


def test_methods_are_recorded_beside_searches_and_planned(tmp_path):
    wanted, data = [wanted_of("random", max_epochs=2.0)], small_graph()
    store, open_search = store_of(tmp_path, data), partial(Search, engine="sequential")
    assert "1 of methods" in plan_wanted(data, wanted, store, open_search, device="cpu")
    lines: list[str] = []
    assert run_wanted(data, wanted, store, open_search, device="cpu", say=lines.append)
    assert "complex, random, seed 0: test MRR" in lines[0] and wanted[0].name in store_of(tmp_path, data).searches
    assert len({wanted_of(name).name for name in ("random", "tpe", "hyperband")}) == 3


def test_a_method_that_has_no_real_search_is_an_error_that_lists_the_others():
    with pytest.raises(UnknownName, match="no method named 'grash'. Methods with real searches: random, one-epoch"):
        method_candidate("grash")


def test_a_setting_that_methods_do_not_use_is_an_error_that_names_it():
    with pytest.raises(ConfigError, match="n, eta would change nothing in the searches of tpe, which use dim, max_epo"):
        wanted_of("tpe", n=4, eta=2, budget=2.0, epochs=4.0)
    assert wanted_of("tpe", budget=2.0, fixed={"lr": 0.1}).settings.budget == 2.0
    without = Candidate("default", settings={"n_trials": 4}), method_candidate("tpe")
    assert wanted_searches(small_graph(), without, models=["complex"], seeds=1, common={"dim": 4})


def test_the_space_of_a_search_is_that_of_the_pool(tmp_path):
    record = run_method(wanted_of("random"), small_graph(), tmp_path, device="cpu")
    assert set(SPACE) <= record["values"].keys() and record["values"]["batch_size"] == 64
