"""Core numbers against networkx, igraph and the definition; the peel order against its own law."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from grash.data.dataset import Dataset
from grash.reduction import cores as peel_module
from grash.reduction.cores import cached_peeling, entity_adjacency, incident_triples, peel
from reduction.graphs import dataset_of, datasets, random_dataset

networkx = pytest.importorskip("networkx", reason="networkx is an oracle for core numbers")
DEGREES = ("neighbors", "triples")


def cores_of_networkx(dataset: Dataset) -> list[int]:
    graph = networkx.Graph()
    graph.add_nodes_from(range(dataset.n_entities))
    graph.add_edges_from((h, t) for h, _, t in dataset.train.tolist() if h != t)
    cores = networkx.core_number(graph)
    return [cores[e] for e in range(dataset.n_entities)]


def cores_of_igraph(dataset: Dataset, degree: str) -> list[int]:
    igraph = pytest.importorskip("igraph", reason="igraph is an oracle for core numbers of multigraphs")
    graph = igraph.Graph(n=dataset.n_entities, edges=dataset.train[:, ::2].tolist())
    if degree == "neighbors":
        graph.simplify()
    return graph.coreness()


def degrees_left(triples: list[list[int]], left: set[int], degree: str) -> dict[int, int]:
    """By the definition: what every entity that is left has among those that are left."""
    inside = [(h, t) for h, _, t in triples if h in left and t in left]
    if degree == "neighbors":
        inside = list({(min(h, t), max(h, t)) for h, t in inside if h != t})
    degrees = dict.fromkeys(left, 0)
    for h, t in inside:
        degrees[h] += 1
        degrees[t] += 1
    return degrees


def check_peeling(dataset: Dataset, degree: str) -> None:
    """Every step takes an entity with the fewest left; core numbers are the largest minimum so far."""
    peeling = peel(dataset.train, dataset.n_entities, degree)
    assert sorted(peeling.order.tolist()) == list(range(dataset.n_entities))
    left, k, cores = set(range(dataset.n_entities)), 0, {}
    for entity in peeling.order.tolist():
        degrees = degrees_left(dataset.train.tolist(), left, degree)
        assert degrees[entity] == min(degrees.values())
        k = max(k, degrees[entity])
        cores[entity] = k
        left.remove(entity)
    assert peeling.core_numbers().tolist() == [cores[e] for e in range(dataset.n_entities)]
    assert peeling.k_max == max(cores.values())
    for k in range(peeling.k_max + 2):
        core = set(peeling.order[peeling.core_starts[k] :].tolist())
        assert core == {e for e in cores if cores[e] >= k}
    assert [peeling.core_at(i) for i in range(dataset.n_entities)] == [cores[e] for e in peeling.order.tolist()]


@settings(max_examples=200)
@given(datasets())
def test_core_numbers_of_neighbors_are_those_of_networkx_and_igraph(dataset):
    cores = peel(dataset.train, dataset.n_entities, "neighbors").core_numbers().tolist()
    assert cores == cores_of_networkx(dataset)
    assert cores == cores_of_igraph(dataset, "neighbors")


@settings(max_examples=200)
@given(datasets(max_entities=8))
def test_core_numbers_of_triples_are_those_of_igraph(dataset):
    cores = peel(dataset.train, dataset.n_entities, "triples").core_numbers().tolist()
    assert cores == cores_of_igraph(dataset, "triples")


@settings(max_examples=100)
@given(datasets(max_triples=100), st.sampled_from(DEGREES))
def test_every_step_takes_an_entity_that_has_the_fewest_left(dataset, degree):
    check_peeling(dataset, degree)


@pytest.mark.parametrize("degree", DEGREES)
@pytest.mark.parametrize("seed", range(3))
def test_larger_graphs_agree_with_igraph(seed, degree):
    dataset = random_dataset(seed, 4000, 600, skew=3.0)
    assert peel(dataset.train, 600, degree).core_numbers().tolist() == cores_of_igraph(dataset, degree)


@pytest.mark.parametrize("degree", DEGREES)
def test_a_graph_worked_by_hand(degree):
    # a square 0-1-2-3 with one diagonal, 4 hangs on 0 by two triples, 5 has a loop, 6 has nothing
    dataset = dataset_of([(0, 0, 1), (1, 0, 2), (2, 0, 3), (3, 0, 0), (0, 0, 2), (4, 0, 0), (0, 1, 4), (5, 0, 5)], 7, 2)
    cores = {"neighbors": [2, 2, 2, 2, 1, 0, 0], "triples": [2, 2, 2, 2, 2, 2, 0]}[degree]
    assert peel(dataset.train, 7, degree).core_numbers().tolist() == cores
    check_peeling(dataset, degree)


@pytest.mark.parametrize("degree", DEGREES)
def test_no_entities_and_no_triples_are_graphs_too(degree):
    empty = peel(np.empty((0, 3), np.int32), 0, degree)
    assert (empty.order.tolist(), empty.core_starts.tolist(), empty.core_numbers().tolist()) == ([], [0, 0], [])
    isolated = peel(np.empty((0, 3), np.int32), 4, degree)
    assert (isolated.order.tolist(), isolated.core_starts.tolist()) == ([0, 1, 2, 3], [0, 4])


def test_many_parallel_triples_make_a_deep_core():
    dataset = dataset_of([(0, 0, 1)] * 300 + [(1, 0, 2)] * 7, 4, 1)
    peeling = peel(dataset.train, 4, "triples")
    assert peeling.core_numbers().tolist() == [300, 300, 7, 0]
    assert peeling.core_starts[[0, 1, 7, 8, 300, 301]].tolist() == [0, 1, 1, 2, 2, 4]


@given(datasets(min_triples=1))
def test_rows_of_the_adjacency_hold_all_neighbors(dataset):
    triples = dataset.train.tolist()
    simple, multiple = (entity_adjacency(dataset.train, dataset.n_entities, degree) for degree in DEGREES)
    incident = incident_triples(dataset.train, dataset.n_entities)
    for entity in range(dataset.n_entities):
        beside = [t if h == entity else h for h, _, t in triples if h != t and entity in (h, t)]
        rows = [i for i, (h, _, t) in enumerate(triples) if entity in (h, t)]
        for found, wanted in ((multiple, beside), (simple, set(beside)), (incident, rows)):
            row = found.neighbors[found.starts[entity] : found.starts[entity + 1]]
            assert sorted(row.tolist()) == sorted(wanted)


def test_a_stored_peeling_is_read_and_not_computed_again(tmp_path: Path, monkeypatch):
    dataset = random_dataset(0, 500, 80)
    path = tmp_path / "cores" / "p.npy"
    for degree in DEGREES:
        written = cached_peeling(dataset, degree, path)  # the second definition replaces the first
        assert path.stat().st_size < 4 * 80 + 4 * (written.k_max + 13) + 200
        with monkeypatch.context() as patch:
            patch.setattr("grash.reduction.cores.peel", None)
            again = cached_peeling(dataset, degree, path)
        assert np.array_equal(written.order, again.order)
        assert np.array_equal(written.core_starts, again.core_starts)
        assert again.degree == degree
    assert [p.name for p in path.parent.iterdir()] == ["p.npy"]


def test_a_stored_peeling_of_another_dataset_or_a_damaged_one_is_replaced(tmp_path: Path):
    dataset, other = random_dataset(0, 500, 80), random_dataset(1, 500, 80)
    path = tmp_path / "p.npy"
    wanted = peel(dataset.train, 80).order
    cached_peeling(other, "neighbors", path)
    assert np.array_equal(cached_peeling(dataset, "neighbors", path).order, wanted)
    good = np.load(path)
    for damage in (good[:-1], good[:5], good.astype(np.int64), np.where(np.arange(len(good)) > 50, 3, good)):
        np.save(path, damage)
        assert np.array_equal(cached_peeling(dataset, "neighbors", path).order, wanted)
        assert np.array_equal(np.load(path), good)
    path.write_bytes(b"no array")
    assert np.array_equal(cached_peeling(dataset, "neighbors", path).order, wanted)


def test_the_same_graph_is_peeled_the_same_way():
    dataset = random_dataset(3, 3000, 300)
    first, second = (peel_module.peel(dataset.train, 300) for _ in range(2))
    assert np.array_equal(first.order, second.order)
