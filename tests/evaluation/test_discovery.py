"""New triples: against a plain loop over all triples, and on the bundled graph."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import grash
from grash.errors import InputError
from grash.evaluation import discovery
from grash.evaluation.calibration import Calibration, Reliability, Weights
from grash.evaluation.discovery import discover, precision
from grash.models import MODELS
from small_graph import grash as run
from small_graph import model_of, rings

EMPTY = Reliability((0,) * 10, (0.0,) * 10, (0.0,) * 10)
CALIBRATION = Calibration(
    "valid", 99, 2.0, 0.0, 3.0, Weights(0.2, 3.0, 0.3), {"tail 1": Weights(-1.0, 2.0, 0.0)}, EMPTY, EMPTY
)


def plain_best(model, k, least, like_known):
    """By the probability of every triple, sorted."""
    data = model.dataset
    known = {tuple(row) for split in ("train", "valid", "test") for row in data.split(split).tolist()}
    seen = [{(int(row[1]), int(row[column])) for row in data.train} for column in (0, 2)]
    rows = [
        (h, r, t)
        for r in range(data.n_relations)
        for h in range(data.n_entities)
        for t in range(data.n_entities)
        if (h, r, t) not in known and h != t and (not like_known or ((r, h) in seen[0] and (r, t) in seen[1]))
    ]
    ids = np.array(rows)
    found = np.minimum(model.probability(ids), model.probability(ids, side="head"))
    order = sorted(range(len(rows)), key=lambda i: (-found[i], rows[i][1], rows[i][0], rows[i][2]))
    return [(rows[i], found[i]) for i in order if found[i] >= least][:k]


@settings(max_examples=12, deadline=None)
@given(
    st.sampled_from(list(MODELS)), st.integers(1, 60), st.sampled_from([0.0, 0.05, 0.5]), st.booleans(),
    st.integers(1, 5), st.integers(0, 99),
)  # fmt: skip
def test_the_best_triples_are_those_of_a_plain_loop(name, k, least, like_known, n_answers, seed):
    model = model_of(rings(9), name, seed=seed)
    model.calibration = CALIBRATION
    before = discovery._ANSWERS, discovery._HEADS, discovery._FOUND
    discovery._ANSWERS, discovery._HEADS, discovery._FOUND = n_answers, 4, 8
    try:
        found = discover(model.kge, model.dataset, CALIBRATION, k=k, min_probability=least, like_known=like_known)
    finally:
        discovery._ANSWERS, discovery._HEADS, discovery._FOUND = before
    expected = plain_best(model, k, least, like_known)
    assert len({tuple(row) for row in found.triples.tolist()}) == len(found.triples)
    assert found.probabilities.tolist() == pytest.approx([p for _, p in expected], abs=1e-6)
    sure = [row for row, p in expected if all(abs(p - other) > 1e-5 for x, other in expected if x != row)]
    last = expected[-1][1] if expected else 0
    assert {row for row in sure if dict(expected)[row] > last + 1e-5} <= {tuple(row) for row in found.triples.tolist()}


@pytest.fixture(scope="module")
def world():
    return grash.train("world", model="complex", dim=32, epochs=8, valid_every=4, reciprocal=True)


def test_hidden_triples_are_found_in_the_bundled_graph(world):
    found = world.discover(k=200, hide=True)
    assert len(found) == 200 and sum(t.known for t in found) > 60
    assert [t.probability for t in found] == sorted((t.probability for t in found), reverse=True)
    hidden = discover(world.kge, world.dataset, world.calibration, k=200, known=("train",))
    assert precision(hidden, world.dataset) == sum(t.known for t in found) / 200


def test_known_triples_are_not_discovered(world):
    train = {tuple(row) for split in ("train", "valid", "test") for row in world.dataset.split(split).tolist()}
    found = world.discover("speaks", k=50, min_probability=0.01)
    assert found and not train & {t.ids for t in found}
    assert {t.relation for t in found} == {"speaks"} and min(t.probability for t in found) >= 0.01


def test_memory_does_not_grow_with_heads_or_relations(world, monkeypatch):
    ask, asked = discovery._Judge.ask, []

    def watched(judge, ends, side, k):
        found = ask(judge, ends, side, k)
        asked.append((judge.relation, ends, side, len(found[0])))
        return found

    monkeypatch.setattr(discovery._Judge, "ask", watched)
    monkeypatch.setattr(discovery, "_FOUND", 1 << 13)
    world.discover(k=10)
    counts = [n for *_, side, n in asked if side == "tail"]
    assert max(counts) <= 1 << 13 and sum(counts) < 100_000, "few questions are asked for more than 16 answers"
    asked.clear()
    pairs = discovery.discover(world.kge, world.dataset, world.calibration, k=5, relations=[0, 1], like_known=False)
    assert len(pairs.triples) == 5
    first = [next(ends for r, ends, side, _ in asked if (r, side) == (i, "tail")) for i in (0, 1)]
    assert np.shares_memory(*first), "all relations share the ids of the heads"


@pytest.mark.parametrize(
    ("given", "sentence"),
    [({"k": 0}, "k=0"), ({"min_probability": 1.5}, "min_probability=1.5"), ({"relation": "speeks"}, "speaks")],
)
def test_wrong_input_is_a_sentence(world, given, sentence):
    with pytest.raises(grash.GrashError, match=sentence):
        world.discover(**given)


def test_a_model_without_calibration_discovers_nothing():
    with pytest.raises(InputError, match="not calibrated"):
        model_of(rings()).discover()


def test_the_command_writes_files_that_grash_reads(world, tmp_path):
    world.save(tmp_path / "m")
    for name in ("a.csv", "a.nt", "a.jsonl"):
        ran = run("discover", tmp_path / "m", "-k", 30, "-o", tmp_path / name, "--measure")
        assert ran.code == 0 and "in valid or test, which were hidden" in ran.err
    read = grash.load_dataset(tmp_path / "a.nt", n_valid=0, n_test=0)
    assert len(read.train) == 30
    first = (tmp_path / "a.csv").read_text().splitlines()
    assert first[0] == "head,relation,tail,probability,score,held_out" and len(first) == 31
    assert run("discover", tmp_path / "m", "-o", tmp_path / "a.txt").code == 2


def test_discovered_ntriples_fit_their_own_graph(world, tmp_path):
    world.save(tmp_path / "m")
    assert run("discover", tmp_path / "m", "-k", 40, "-o", tmp_path / "new.nt").code == 0
    assert run("update", tmp_path / "m", tmp_path / "new.nt", "--epochs", 0, "-o", tmp_path / "now").code == 0
    now = grash.load_model(tmp_path / "now").dataset
    assert (now.n_entities, now.n_relations) == (world.dataset.n_entities, world.dataset.n_relations)
    assert len(now.train) == len(world.dataset.train) + 40
    assert world.evaluate(tmp_path / "new.nt").n_triples == 40
