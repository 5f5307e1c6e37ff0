"""New triples: against a plain loop over all triples, and on the bundled graph."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import grash
from grash.api.model import Model
from grash.data.dataset import SPLITS, Dataset
from grash.data.known_answers import KnownAnswers
from grash.errors import InputError
from grash.evaluation import discovery
from grash.evaluation.calibration import Calibration, Reliability, Weights
from grash.evaluation.discovery import FurtherAnswers, discover, precision
from grash.models import MODELS
from small_graph import grash as run
from small_graph import model_of, rings

EMPTY = Reliability((0,) * 10, (0.0,) * 10, (0.0,) * 10)
CALIBRATION = Calibration(
    "valid", 99, 2.0, 0.0, 3.0, Weights(0.2, 3.0, 0.3), {"tail 1": Weights(-1.0, 2.0, 0.0)}, EMPTY, EMPTY
)


def crowded(seed):
    """Nine entities with 70 random triples of three relations, some of which have many answers; a fourth has none."""
    rows = np.random.default_rng(seed).integers(0, [9, 3, 9], (70, 3))
    rows[:20, 1] = 0
    rows = np.unique(rows[rows[:, 0] != rows[:, 2]], axis=0).astype(np.int32)
    rows = np.random.default_rng(seed).permutation(rows)
    return Dataset(train=rows[10:], valid=rows[:5], test=rows[5:10], n_entities=9, n_relations=4)


def plain_share(known, relation, side, n, pooled, n_entities):
    """Of the questions of a relation with at least n known answers, the share with at least n + 1."""
    given = 0 if side == "tail" else 2
    answers = Counter(row[given] for row in known if row[1] == relation)
    if n == 0:
        return (len(answers) + 0.5) / (n_entities + 1)
    pairs = [(c >= m, c >= m + 1) for c in answers.values() for m in ([n] if n < pooled else range(pooled, c + 1))]
    return (sum(more for _, more in pairs) + 0.5) / (sum(one for one, _ in pairs) + 1)


def plain_best(model, k, least, like_known, splits=SPLITS, pooled=discovery._POOLED):
    """By the probability of every triple, sorted."""
    data = model.dataset
    known = {tuple(row) for split in splits for row in data.split(split).tolist()}
    seen = [{(int(row[1]), int(row[column])) for row in data.train} for column in (0, 2)]
    rows = [
        (h, r, t)
        for r in range(data.n_relations)
        for h in range(data.n_entities)
        for t in range(data.n_entities)
        if (h, r, t) not in known and h != t and (not like_known or ((r, h) in seen[0] and (r, t) in seen[1]))
    ]
    of_head, of_tail = (Counter((row[1], row[column]) for row in known) for column in (0, 2))
    ids = np.array(rows).reshape(-1, 3)
    asked = replace(data, valid=data.valid[:0], test=data.test[:0]) if splits == ("train",) else data
    judge = Model(model.kge, asked, model.config)
    judge.calibration = CALIBRATION
    tails = [plain_share(known, r, "tail", of_head[r, h], pooled, data.n_entities) for h, r, t in rows]
    heads = [plain_share(known, r, "head", of_tail[r, t], pooled, data.n_entities) for h, r, t in rows]
    found = np.minimum(judge.probability(ids) * tails, judge.probability(ids, side="head") * heads)
    order = sorted(range(len(rows)), key=lambda i: (-found[i], rows[i][1], rows[i][0], rows[i][2]))
    return [(rows[i], found[i]) for i in order if found[i] >= least][:k]


@settings(max_examples=24, deadline=None)
@given(
    st.sampled_from(list(MODELS)), st.integers(1, 60), st.sampled_from([0.0, 0.05, 0.3]), st.booleans(),
    st.integers(1, 5), st.integers(0, 99), st.booleans(), st.sampled_from([SPLITS, ("train",)]), st.integers(1, 4),
)  # fmt: skip
def test_the_best_triples_are_those_of_a_plain_loop(
    name, k, least, like_known, n_answers, seed, in_rings, splits, pooled
):
    model = model_of(rings(9) if in_rings else crowded(seed), name, seed=seed)
    with pytest.MonkeyPatch.context() as patch:
        for constant, value in (("_ANSWERS", n_answers), ("_HEADS", 4), ("_FOUND", 8), ("_POOLED", pooled)):
            patch.setattr(discovery, constant, value)
        found = discover(
            model.kge, model.dataset, CALIBRATION, k=k, min_probability=least, like_known=like_known, known=splits
        )
    expected = plain_best(model, k, least, like_known, splits, pooled)
    assert len({tuple(row) for row in found.triples.tolist()}) == len(found.triples)
    assert found.probabilities.tolist() == pytest.approx([p for _, p in expected], abs=1e-6)
    sure = [row for row, p in expected if all(abs(p - other) > 1e-5 for x, other in expected if x != row)]
    last = expected[-1][1] if expected else 0
    assert {row for row in sure if dict(expected)[row] > last + 1e-5} <= {tuple(row) for row in found.triples.tolist()}


def test_the_share_with_another_answer_is_counted_as_by_hand():
    counts = {0: (1, 1, 1, 1), 1: (1, 2, 3, 6)}  # answers of the heads 0 to 3; relation 2 has no triple
    rows = [(h, r, 10 + i) for r, of_heads in counts.items() for h, c in enumerate(of_heads) for i in range(c)]
    index = KnownAnswers.of(np.array(rows), n_relations=3).tail
    further = FurtherAnswers.of(index, 24)
    heads = np.array([0, 1, 2, 3, 4])
    assert further.share(heads, 0) == pytest.approx([0.5 / 5] * 4 + [4.5 / 25])
    # 3 of the 4 heads with one answer have two, 2 of 3 with two have three, 1 of 2 with three have four; from 4 on,
    # one head was asked at 4, 5 and 6, and had another answer twice
    assert further.share(heads, 1) == pytest.approx([3.5 / 5, 2.5 / 4, 1.5 / 3, 2.5 / 4, 4.5 / 25])
    assert further.share(heads, 2) == pytest.approx([0.5 / 25] * 5), "no entity has an answer"


def towns():
    """30 people, of whom the first 24 live in one of six towns each, and a model that also likes the next town."""
    people, own = np.arange(30), np.append(np.repeat(np.arange(6), [1, 2, 3, 4, 6, 8]), np.arange(6))
    rows = np.stack([people, 0 * people, 30 + own], 1)[:24].astype(np.int32)
    model = model_of(Dataset(train=rows, valid=rows[:0], test=rows[:0], n_entities=36, n_relations=1), "rescal", dim=12)
    model.kge.entity.zero_()
    model.kge.entity[people, own] = 9
    model.kge.entity[people, (own + 1) % 6] = 8
    model.kge.entity[30 + np.arange(6), 6 + np.arange(6)] = 1
    model.kge.relation.copy_(torch.eye(12).roll(6, 1).reshape(1, 144))
    assert model.score([(0, 0, 30), (0, 0, 31), (0, 0, 32)]).tolist() == [9, 8, 0]
    model.calibration = replace(CALIBRATION, temperature=1.0, of_relation={"head 0": Weights(3.0, 0.0, 0.0)})
    return model


def test_a_question_with_its_only_answer_is_not_answered_again():
    found = towns().discover(k=6, like_known=False)
    assert {t.ids for t in found} == {(24 + i, 0, 30 + i) for i in range(6)}, "they have no town yet"
    assert min(t.probability for t in found) > 0.4
    answered = towns().discover(k=20)
    assert max(t.ids[0] for t in answered) < 24 and max(t.probability for t in answered) < 0.03


@pytest.fixture(scope="module")
def world():
    return grash.train("world", model="complex", dim=32, epochs=8, valid_every=4, reciprocal=True)


def test_hidden_triples_are_found_in_the_bundled_graph(world):
    found = world.discover(k=200, hide=True)
    assert len(found) == 200 and sum(t.known for t in found) > 60
    assert [t.probability for t in found] == sorted((t.probability for t in found), reverse=True)
    hidden = discover(world.kge, world.dataset, world.calibration, k=200, known=("train",))
    assert precision(hidden, world.dataset) == sum(t.known for t in found) / 200


def test_relations_with_one_answer_get_no_second_one_in_the_bundled_graph(world):
    one = {"zone_of", "has_capital", "located_in", "in_time_zone", "in_continent", "uses_currency", "written_in"}
    assert {t.relation for t in world.discover(k=100)}.isdisjoint(one)
    assert world.discover("has_capital", k=1)[0].probability < 0.01


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


def test_the_command_reports_how_many_it_found_and_the_highest_probability(world, tmp_path):
    world.save(tmp_path / "m")
    ran = run("discover", tmp_path / "m", "-k", 30, "-o", tmp_path / "a.csv")
    assert "30 new triples" in ran.err
    highest = world.discover("has_capital", k=1)[0].probability
    ran = run("discover", tmp_path / "m", "--relation", "has_capital", "--min-probability", 0.95, "--measure")
    assert ran.code == 0 and ran.out == "head\trelation\ttail\tprobability\tscore\theld_out\n"
    assert "No new triple with a probability of at least 0.95: the highest is " in ran.err and "0 of 0" not in ran.err
    ran = run(
        "discover", tmp_path / "m", "--relation", "has_capital", "--min-probability", 0.95, "-o", tmp_path / "b.csv"
    )
    assert f"the highest is {highest:.4g}." in ran.err and "0 new triples" in ran.err


def test_discovered_ntriples_fit_their_own_graph(world, tmp_path):
    world.save(tmp_path / "m")
    assert run("discover", tmp_path / "m", "-k", 40, "-o", tmp_path / "new.nt").code == 0
    assert run("update", tmp_path / "m", tmp_path / "new.nt", "--epochs", 0, "-o", tmp_path / "now").code == 0
    now = grash.load_model(tmp_path / "now").dataset
    assert (now.n_entities, now.n_relations) == (world.dataset.n_entities, world.dataset.n_relations)
    assert len(now.train) == len(world.dataset.train) + 40
    assert world.evaluate(tmp_path / "new.nt").n_triples == 40
