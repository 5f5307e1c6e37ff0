"""A search on a table against the same search on its graph, trained: the plans, the bills and nearly the scores."""

from __future__ import annotations

import pytest

from grash.engines.driver import Driver
from grash.engines.local import LocalEngine, TrialRunner
from grash.search.graphs import SearchGraphs
from grash.search.run_folder import SEARCH_FILE, RunFolder
from grash.search.settings import make_settings
from grash_study.recorded import Recorded
from grash_study.run import run_cells
from grash_study.store import cells_on
from grash_study.table import make_table, planned_fidelities
from study.small_study import SPACE, small_study
from table_engine import without_waits

N = 6


def test_a_search_on_a_table_predicts_the_search_on_its_graph(tmp_path):
    graphs, store = small_study(tmp_path / "store", n=N, epochs=16.0)
    visited = planned_fidelities(graphs)
    cells = cells_on("whole", 1.0, range(N), also=[m for g, e in visited for m in (e / 2, e) if g == 1])
    for g, e in visited:
        cells += cells_on("core-order", g, range(N), also=(e / 2, e)) if g < 1 else []
    run_cells(graphs, cells, store, device="cpu")
    bench = Recorded(make_table(store, graphs.pool, guard_rails=graphs.guard_rails()))
    simulated = bench.search(range(N), bench.settings("default", 3.0, (("n_trials", N),)))

    settings = make_settings({
        "space": SPACE, "proposals": "random", "dim": 4, "max_epochs": 16.0, "n_trials": N, "final_train": False,
    })  # fmt: skip
    own = SearchGraphs(graphs.pool.dataset, settings)
    with RunFolder(tmp_path / "run") as folder, without_waits():
        (tmp_path / "run" / SEARCH_FILE).touch()
        engine = LocalEngine(TrialRunner(own, tmp_path / "run", device="cpu"))
        found = Driver(folder, own, engine).run()

    assert found.winner is not None
    assert len(simulated.rounds) == len(found.rounds)
    for one, other in zip(simulated.rounds, found.rounds):
        for name in ("n_trials", "fidelity", "graph_fraction", "epoch_fraction", "whole", "share"):
            assert getattr(one.plan, name) == getattr(other.plan, name)
        assert one.plan.n_train == pytest.approx(other.plan.n_train, rel=0.02)  # a store rounds fractions
    first, real = simulated.rounds[0].results, found.rounds[0].results
    for n in range(N):
        assert first[n].cost == pytest.approx(real[n].cost, rel=0.02)
        assert first[n].mrr == pytest.approx(real[n].mrr, abs=0.03)  # a trial's last step is cut short, a cell's is not
