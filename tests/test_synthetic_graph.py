"""Synthetic graphs: exact counts, the same graph from the same seed, hubs, and a structure that a model learns."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

import grash
import synthetic_graph as module
from grash.data.arrays import TripleSet
from grash.data.dataset import Dataset
from grash.errors import ConfigError, InputError
from synthetic_graph import GROUP_SIZE, PlantedGraph, as_lines, generate, generate_text, main, oracle_tail_mrr


def all_triples(dataset: Dataset) -> np.ndarray:
    return np.concatenate([dataset.train, dataset.valid, dataset.test])


@st.composite
def graphs(draw: st.DrawFn) -> PlantedGraph:
    n_entities = draw(st.integers(2, 300))
    n_relations = draw(st.integers(1, min(30, n_entities)))
    n_triples = n_entities + draw(st.integers(0, 3000))
    try:
        seed, noise = draw(st.integers(0, 2**40)), draw(st.sampled_from([0, 0.1, 1]))
        return PlantedGraph(n_entities, n_relations, n_triples, seed=seed, noise=noise)
    except ConfigError as error:
        assert "too many" in str(error)
        assume(False)
        raise


@pytest.mark.slow
@given(graph=graphs(), n_rows=st.integers(20, 400), held_out=st.integers(0, 40))
@settings(max_examples=60)
def test_counts_are_exact_and_triples_distinct(
    graph: PlantedGraph, n_rows: int, held_out: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    assume(graph.n_triples - graph.n_entities >= 2 * held_out)
    out = tmp_path_factory.mktemp("g") / "graph.grash"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "_BLOCK_ROWS", n_rows)
        dataset = generate(out, graph, n_valid=held_out, n_test=held_out)
    assert (len(dataset.valid), len(dataset.test)) == (held_out, held_out)
    triples = all_triples(dataset)
    assert len(triples) == graph.n_triples == len(np.unique(triples, axis=0))
    assert not (triples[:, 0] == triples[:, 2]).any()
    assert np.array_equal(np.unique(dataset.train[:, ::2]), np.arange(graph.n_entities))
    assert np.array_equal(np.unique(dataset.train[:, 1]), np.arange(graph.n_relations))
    assert Dataset.load(out).fingerprint == dataset.fingerprint


@given(graph=graphs(), cut=st.integers(0, 300))
def test_a_part_is_generated_separately(graph: PlantedGraph, cut: int) -> None:
    cut = min(cut, graph.n_entities)
    whole = graph.triples(0, graph.n_entities)
    assert np.array_equal(whole, np.concatenate([graph.triples(0, cut), graph.triples(cut, graph.n_entities)]))
    assert np.array_equal(graph.positions_of(graph.ids_of(np.arange(graph.n_entities))), np.arange(graph.n_entities))
    heads, first = np.unique(graph.positions_of(whole[:, 0]), return_index=True)
    assert np.array_equal(first, graph.first_rows(0, graph.n_entities)) and len(heads) == graph.n_entities


def test_the_same_seed_gives_the_same_graph_and_another_seed_another(tmp_path: Path) -> None:
    made = [
        generate(tmp_path / f"{i}", PlantedGraph(500, 7, 3000, seed=s)).fingerprint for i, s in enumerate((1, 1, 2))
    ]
    assert made[0] == made[1] != made[2]


def test_up_to_512_buckets_the_same_seed_gives_the_recorded_graph(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_BLOCK_ROWS", 50)  # 120 buckets
    made = generate(tmp_path / "g", PlantedGraph(500, 7, 6000, seed=5)).fingerprint
    assert made == "8f07dd4427f3c2102116e829cce9cc0723492e960b2f2fd600be34b593529a33"


def test_beyond_512_buckets_they_grow_in_size_not_in_number(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_BLOCK_ROWS", 4)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(800, hard), hard))
    try:
        dataset = generate(tmp_path / "g", PlantedGraph(500, 7, 6000, seed=5), n_valid=100, n_test=100)  # 1,500 blocks
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    triples = all_triples(dataset)
    assert len(triples) == 6000 == len(np.unique(triples, axis=0))
    assert np.array_equal(np.sort(triples, axis=0), np.sort(PlantedGraph(500, 7, 6000, seed=5).triples(0, 500), axis=0))
    heads = dataset.train[:, 0]
    assert np.count_nonzero(heads[1:] == heads[:-1]) < 0.05 * len(heads)


KILLED = """
import os, signal, sys
import synthetic_graph as module
from synthetic_graph import PlantedGraph
out, text = sys.argv[1], sys.argv[2] == "text"
module._shuffle = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
(module.generate_text if text else module.generate)(out, PlantedGraph(100, 3, 600))
"""


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["text", "folder"])
def test_the_next_call_removes_the_files_of_a_killed_one(
    tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "g"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    killed = subprocess.run([sys.executable, "-c", KILLED, str(out), kind], check=False, env=environment)
    assert killed.returncode == -9
    assert [p for p in tmp_path.iterdir() if p.is_dir()]
    monkeypatch.setattr(
        "grash.files._STALE_SECONDS", -1.0
    )  # an hour later: a folder of buckets does not name its process
    (generate_text if kind == "text" else generate)(out, PlantedGraph(100, 3, 600))
    assert not [p for p in tmp_path.iterdir() if p.is_dir() and p != out]


def test_triples_are_in_random_order(tmp_path: Path) -> None:
    train = generate(tmp_path / "g", PlantedGraph(2000, 10, 20_000)).train
    assert np.count_nonzero(train[1:, 0] == train[:-1, 0]) < 0.02 * len(train)
    halves = [len(np.unique(half[:, 0])) for half in (train[: len(train) // 2], train[len(train) // 2 :])]
    assert min(halves) > 0.9 * 2000


def test_degrees_have_a_heavy_tail_and_relations_are_skewed(tmp_path: Path) -> None:
    triples = all_triples(generate(tmp_path / "g", PlantedGraph(200_000, 300, 800_000)))
    degrees = np.sort(np.bincount(triples[:, ::2].ravel()))[::-1]
    top = degrees[: len(degrees) // 100]
    exponent = 1 + 1 / np.mean(np.log(top / top[-1]))  # Hill's estimate
    assert 2.2 < exponent < 3.2
    assert degrees[0] > 1000 * np.median(degrees)
    relations = np.sort(np.bincount(triples[:, 1]))[::-1]
    assert relations[0] > 0.1 * len(triples) and relations[-1] < 0.01 * len(triples)


def test_the_oracle_ranks_as_a_slow_one_does(tmp_path: Path) -> None:
    graph = PlantedGraph(100, 5, 600, seed=4, noise=0.2)
    dataset = generate(tmp_path / "g", graph, n_test=80)
    known = set(map(tuple, all_triples(dataset).tolist()))
    groups: dict[tuple[int, int], set[int]] = {}
    quiet = PlantedGraph(100, 5, 600, seed=4, noise=0.0)
    for h, r, t in quiet.triples(0, 100).tolist():  # without noise, almost every triple shows its group
        place, tail = graph.positions_of(np.array([h]))[0], graph.positions_of(np.array([t]))[0]
        groups.setdefault((int(place % graph.n_groups), r % graph.n_kinds), set()).add(int(tail % graph.n_groups))
    total = 0.0
    for h, r, t in dataset.test.tolist():
        place, tail = int(graph.positions_of(np.array([h]))[0]), int(graph.positions_of(np.array([t]))[0])
        (group,) = groups[place % graph.n_groups, r % graph.n_kinds]
        members = [group + graph.n_groups * j for j in range(GROUP_SIZE) if group + graph.n_groups * j < 100]
        rank = graph.n_entities / 2
        if tail in members:
            before = graph.ids_of(np.array(members[: members.index(tail)], np.int64)).tolist()
            rank = 1 + sum((h, r, m) not in known for m in before)
        total += 1 / rank
    assert oracle_tail_mrr(graph, dataset.test, TripleSet(all_triples(dataset))) == pytest.approx(total / 80)
    assert oracle_tail_mrr(graph, dataset.test[:0], TripleSet(dataset.train)) == 0.0


@pytest.mark.slow
def test_a_model_comes_near_the_mrr_of_the_oracle(tmp_path: Path) -> None:
    graph = PlantedGraph(1000, 8, 20_000, seed=3)
    dataset = generate(tmp_path / "g", graph, n_valid=500, n_test=2000)
    best = oracle_tail_mrr(graph, dataset.test, TripleSet(all_triples(dataset)))
    settings = {"training": "1vsall", "dropout_entity": 0.4, "dim": 64, "epochs": 20, "valid_every": 5}
    model = grash.train(dataset, model="complex", device="cpu", **settings)
    reached = model.evaluation["tail"]["mrr"]
    chance = np.mean(1 / np.arange(1, 1001))
    assert 10 * chance < 0.6 * best < reached < 1.1 * best


def test_lines_are_names_that_prepare_reads_back(tmp_path: Path) -> None:
    assert as_lines(np.array([[0, 10, 2147483646], [99, 7, 100]], np.int32)) == b"Q0\tP10\tQ2147483646\nQ99\tP7\tQ100\n"
    graph = PlantedGraph(300, 5, 2000, seed=9)
    generate_text(tmp_path / "g.tsv", graph)
    dataset = grash.load_dataset(tmp_path / "g.tsv", n_valid=0, n_test=0)
    assert (dataset.n_entities, dataset.n_relations, len(dataset.train)) == (300, 5, 2000)
    assert dataset.entities is not None
    ids = {int(name[1:]) for name in dataset.entities}
    assert ids == set(range(300))
    assert [p.name for p in tmp_path.iterdir()] == ["g.tsv"]


@pytest.mark.parametrize(
    ("counts", "sentence"),
    [
        ((1, 1, 5), "Give 2 to"),
        ((10, 11, 50), "1 to the number of entities"),
        ((10, 2, 9), "at least as many triples as entities"),
        ((10, 1, 80), "too many"),
    ],
)
def test_impossible_counts_are_refused(counts: tuple[int, int, int], sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        PlantedGraph(*counts)


def test_every_entity_keeps_a_train_triple(tmp_path: Path) -> None:
    graph = PlantedGraph(100, 3, 120)
    with pytest.raises(ConfigError, match="20 can be held out"):
        generate(tmp_path / "g", graph, n_valid=30, n_test=0)
    few = PlantedGraph(100, 3, 103)
    assert len(generate(tmp_path / "few", few).train) == 100


def test_the_script_writes_folders_and_files_and_overwrites_only_on_request(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sizes = ["--entities", "200", "--relations", "4", "--triples", "900"]
    for name in ("g.grash", "g.tsv"):
        main([str(tmp_path / name), *sizes])
        assert f"{name}: 200 entities, 4 relations, 900 triples" in capsys.readouterr().out
        with pytest.raises(SystemExit, match="already exists"):
            main([str(tmp_path / name), *sizes])
        main([str(tmp_path / name), *sizes, "--overwrite"])
    assert len(all_triples(Dataset.load(tmp_path / "g.grash"))) == 900
    assert len((tmp_path / "g.tsv").read_text().splitlines()) == 900
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "diary.txt").touch()
    with pytest.raises(InputError, match="not an encoded dataset"):
        generate(tmp_path / "mine", PlantedGraph(20, 2, 40), overwrite=True)
