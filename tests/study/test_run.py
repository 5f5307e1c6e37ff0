"""The runner: trains what is missing, as a search would, and writes it down."""

from __future__ import annotations

import subprocess
import sys
from types import SimpleNamespace

import pytest

from grash.engines import trainer as runs
from grash.engines.trainer import run_training
from grash.errors import GrashError
from grash.search.graphs import SearchGraphs
from grash_study.pool import StudyGraphs, config_on
from grash_study.run import GraphTrainer, missing, plan_cells, run_cells
from grash_study.store import Cell, Store, cells_on
from study.small_study import made_up, small_pool, small_study

TECHNIQUES = ("core-order", "k-core", "triples", "walk", "kgtuner")


def test_every_technique_gives_a_graph_of_at_most_its_fraction_with_a_validation_part():
    graphs = StudyGraphs(small_pool())
    for technique in TECHNIQUES:
        graph = graphs.graph(technique, 0.5)
        assert 0 < len(graph.dataset.train) <= 300 and len(graph.dataset.valid) > 0, technique
    assert graphs.graph("whole", 1.0).dataset is graphs.pool.dataset


def test_core_order_graphs_are_those_of_a_search():
    pool = small_pool()
    ours, theirs = (
        StudyGraphs(pool).graph("core-order", 0.4),
        SearchGraphs(pool.dataset, pool.settings).subgraph((0.4,)),
    )
    assert (ours.dataset.train == theirs.dataset.train).all() and (ours.dataset.valid == theirs.dataset.valid).all()


def test_negatives_are_scaled_to_the_entities_of_the_graph():
    graphs = StudyGraphs(small_pool())
    small = graphs.graph("core-order", 0.3)
    full, scaled = graphs.pool.config(0), config_on(small, graphs.pool, 0, 0.5)
    share = small.dataset.n_entities / 60
    assert full.negatives_tail * share <= scaled.negatives_tail < full.negatives_tail * share + 1
    assert scaled.epochs == 1.0 and scaled.patience is None


def test_penalties_are_scaled_to_the_triples_of_the_graph_but_in_the_space_of_the_paper():
    fixed = {"penalty": "n3", "penalty_entity": 0.5, "penalty_relation": 0.0}
    graphs = StudyGraphs(small_pool(fixed=fixed))
    small, whole = graphs.graph("core-order", 0.3), graphs.graph("whole", 1.0)
    assert config_on(small, graphs.pool, 0, 0.5).penalty_entity == pytest.approx(0.3 * 0.5)
    assert config_on(whole, graphs.pool, 0, 0.5).penalty_entity == 0.5
    paper = small_pool(space="paper", label=None)
    assert config_on(small, paper, 0, 0.5).penalty_entity == paper.config(0).penalty_entity
    for technique in ("k-core", "kgtuner"):  # which miss what they are asked for
        graph = graphs.graph(technique, 0.6)
        share = len(graph.dataset.train) / 600
        assert share < 0.59 and config_on(graph, graphs.pool, 0, 0.5).penalty_entity == pytest.approx(share * 0.5)
    assert graphs.pool.meta()["scaled_penalties"] and not paper.meta()["scaled_penalties"]


def test_validations_of_a_longer_training_are_those_of_shorter_ones_that_end_with_a_whole_batch():
    graphs = StudyGraphs(small_pool())
    graph = graphs.graph("whole", 1.0)
    trainer = GraphTrainer(graph, device="cpu")
    config = config_on(graph, graphs.pool, 0, 1.0)
    epochs = [256 / 600, 1.0, 2.0]
    (trained,) = trainer.train([config], epochs)
    for (_, mrr, _), end in zip(trained.curve, epochs):
        alone = run_training(graph.dataset, config.changed(epochs=end, valid_every=end), device="cpu")
        assert alone.history[-1].mrr == pytest.approx(mrr, abs=1e-12)


def test_what_is_there_is_not_trained_again_and_what_is_missing_is(tmp_path):
    graphs, store = small_study(tmp_path)
    cells = [*cells_on("core-order", 0.5, range(3)), *cells_on("whole", 1.0, range(3))]
    assert run_cells(graphs, cells[:4], store, device="cpu", batch=2) and len(store.entries) == 4
    before = dict(store.entries)
    store.release()
    again = graphs.pool.store(tmp_path)
    assert missing(cells, again) == {("whole", 1.0, cells[-1].marks): [1, 2]}
    assert run_cells(graphs, cells, again, device="cpu") and len(again.entries) == 6
    assert {k: again.entries[k].curve for k in before} == {
        k: e.curve for k, e in Store.read(store.path).entries.items() if k in before
    }
    assert missing(cells, again) == {}


def test_a_full_training_is_tested_and_a_subgraph_s_is_not(tmp_path):
    graphs, store = small_study(tmp_path)
    run_cells(graphs, [*cells_on("core-order", 0.5, [0]), *cells_on("whole", 1.0, [0])], store, device="cpu")
    whole, core_order = store.entry(0, "whole", 1.0), store.entry(0, "core-order", 0.5)
    assert set(whole.test) == {"mrr", "hits@1", "hits@3", "hits@10"} and 0 < whole.test["mrr"] <= 1
    assert core_order.test is None and core_order.n_entities < 60 and core_order.n_train <= 300
    assert core_order.positives == 2 * core_order.n_train and core_order.model_bytes == 4 * 4 * (
        core_order.n_entities + core_order.n_relations
    )


def test_batches_change_nothing(tmp_path):
    curves = []
    for batch in (1, 3):
        graphs, store = small_study(tmp_path / str(batch))
        run_cells(graphs, cells_on("core-order", 0.5, range(3)), store, device="cpu", batch=batch)
        curves.append([store.entry(i, "core-order", 0.5).curve for i in range(3)])
    assert curves[0] == curves[1]


def test_a_training_that_diverges_is_an_entry_of_its_own(tmp_path):
    space = {**{k: v for k, v in small_pool().settings.space.items() if k != "lr"}, "lr": {"low": 1e18, "high": 1e19}}
    graphs, store = small_study(tmp_path, space={**space, "optimizer": "sgd"})
    run_cells(graphs, cells_on("whole", 1.0, range(2)), store, device="cpu")
    for entry in graphs.pool.store(tmp_path).entries.values():
        assert entry.status == "diverged" and 0 < entry.failed <= 1 and entry.score(1.0) == 0.0 and entry.message
        assert entry.positives == round(entry.failed * 2 * 600)


def test_cells_of_one_graph_become_one_training(tmp_path):
    _, store = small_study(tmp_path)
    short, long = cells_on("core-order", 0.5, [0], upto=0.3), cells_on("core-order", 0.5, [0], upto=0.5)
    ((_, _, marks),) = missing([*short, *long], store)
    assert 0.3 in marks and marks[-1] == 0.5


def test_a_core_that_was_trained_under_another_fraction_is_not_trained_again(tmp_path):
    graphs, store = small_study(tmp_path)
    fractions = [f for f in (0.5, 0.51, 0.52, 0.53, 0.54, 0.55)]
    sizes = [len(graphs.graph("k-core", f).dataset.train) for f in fractions]
    first = next(i for i in range(5) if sizes[i] == sizes[i + 1])
    cells = [c for f in fractions[first : first + 2] for c in cells_on("k-core", f, range(2))]
    said: list[str] = []
    assert run_cells(graphs, cells, store, device="cpu", say=said.append)
    assert len(said) == 1 and len(store.entries) == 4


def test_no_time_is_no_training(tmp_path):
    graphs, store = small_study(tmp_path)
    cells = cells_on("core-order", 0.5, range(3))
    assert run_cells(graphs, cells, store, device="cpu", max_seconds=0) is False and not store.entries


def test_no_batch_is_begun_if_the_time_ends_while_the_graph_is_made(tmp_path, monkeypatch):
    graphs, store = small_study(tmp_path)
    clock = iter([0.0, 1.0, 200.0])  # the start, before the graph, after it
    monkeypatch.setattr("grash_study.run.time", SimpleNamespace(monotonic=lambda: next(clock)))
    assert not run_cells(graphs, cells_on("core-order", 0.5, range(3)), store, device="cpu", max_seconds=100)
    assert not store.entries and next(clock, None) is None


def test_a_batch_that_would_take_too_long_is_not_begun(tmp_path):
    graphs, store = small_study(tmp_path)
    store.add([made_up(3, "core-order", 0.25, 0.1, seconds=1e6)])
    cells = cells_on("core-order", 0.5, range(3))
    assert not run_cells(graphs, cells, store, device="cpu", max_seconds=100) and len(store.entries) == 1


def test_the_plan_shows_what_is_missing_and_how_long_it_takes(tmp_path):
    graphs, store = small_study(tmp_path)
    cells = [*cells_on("core-order", 0.5, range(3)), *cells_on("whole", 1.0, range(3))]
    said, pace = plan_cells(graphs, cells, store, device="cpu")
    assert (
        pace > 0
        and "0 of 6 cells are there" in said
        and "3 trainings of 2 epochs on" in said
        and "s of cpu in all" in said
    )
    store.add([made_up(i, "whole", 1.0, 0.1, marks=cells[-1].marks, positives=1200, seconds=5.0) for i in range(3)])
    said, pace = plan_cells(graphs, cells, store, device="cpu")
    assert pace is None and "3 of 6 cells are there" in said and "whole" not in said.partition("\n")[2]


def test_without_any_pace_the_first_batch_is_small_where_time_is_short(tmp_path):
    graphs, store = small_study(tmp_path, n=12)
    cells, said = cells_on("whole", 1.0, range(12)), []
    assert run_cells(graphs, cells, store, device="cpu", max_seconds=1e9, say=said.append)
    assert [line.partition(": ")[2].split()[0] for line in said] == ["4", "8"]  # by the pace of the first four


def test_a_probed_pace_is_kept_to(tmp_path):
    graphs, store = small_study(tmp_path, n=12)
    cells = cells_on("whole", 1.0, range(12))
    assert plan_cells(graphs, cells, store, device="cpu")[1] > 0 and not store.path.exists()
    assert not run_cells(graphs, cells, store, device="cpu", max_seconds=60, pace=100.0) and not store.entries
    assert run_cells(graphs, cells, store, device="cpu", max_seconds=1e9, pace=100.0)


def fail(monkeypatch, message: str, *, after: int) -> None:
    """From the given stack on, trainings end with this error."""
    whole, calls = runs._run_stack, []

    def failing(*given):
        calls.append(given)
        if len(calls) > after:
            raise RuntimeError(message)
        return whole(*given)

    monkeypatch.setattr(runs, "_run_stack", failing)


def test_a_card_that_fails_is_no_fault_of_a_configuration(tmp_path, monkeypatch):
    graphs, store = small_study(tmp_path)
    cells = cells_on("whole", 1.0, range(4))
    with monkeypatch.context() as patch:
        fail(patch, "CUDA error: an illegal memory access was encountered", after=1)
        with pytest.raises(GrashError, match="command continues"):
            run_cells(graphs, cells, store, device="cpu", batch=2)
    assert len(store.entries) == 2 and all(e.status == "ok" for e in store.entries.values())
    assert run_cells(graphs, cells, store, device="cpu")


def test_an_error_of_a_training_is_tried_once_more(tmp_path, monkeypatch):
    graphs, store = small_study(tmp_path)
    cells = cells_on("whole", 1.0, range(2))
    with monkeypatch.context() as patch:
        fail(patch, "odd", after=0)
        assert not run_cells(graphs, cells, store, device="cpu")
        assert {e.status for e in store.entries.values()} == {"error"}
    assert run_cells(graphs, cells, store, device="cpu")
    assert {e.status for e in store.entries.values()} == {"ok"}


def test_training_and_validation_are_timed_separately(tmp_path):
    graphs, store = small_study(tmp_path)
    run_cells(graphs, cells_on("whole", 1.0, range(2)), store, device="cpu")
    for e in store.entries.values():
        assert 0 < e.train_seconds < e.train_seconds + e.valid_seconds < e.seconds and e.together == 2


def test_a_graph_too_small_for_a_technique_is_said_and_written_down(tmp_path):
    graphs, store = small_study(tmp_path)
    said: list[str] = []
    ran = run_cells(graphs, [Cell(0, "triples", 1e-5, (1.0,))], store, device="cpu", say=said.append)
    assert ran and "leaves none to train on" in said[0]
    entry = Store.read(store.path).entry(0, "triples", 1e-5)
    assert entry.status == "impossible" and "leaves none to train on" in entry.message


@pytest.mark.slow
def test_cells_are_run_without_the_extra(tmp_path):
    code = f"""
import sys
for name in ("polars", "optuna", "jinja2", "scipy", "sklearn", "matplotlib", "pyarrow", "pandas"):
    sys.modules[name] = None
sys.path[:0] = {[p for p in sys.path if p]!r}
from pathlib import Path
from study.small_study import small_study
from grash_study.store import cells_on
from grash_study.run import run_cells
from grash_study.table import make_table
graphs, store = small_study(Path({str(tmp_path)!r}))
assert run_cells(graphs, cells_on("whole", 1.0, [0]), store, device="cpu")
make_table(store, graphs.pool, guard_rails=graphs.guard_rails())
"""
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr
