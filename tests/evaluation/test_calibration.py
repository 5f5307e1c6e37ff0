"""Probabilities: worked by hand, against a slow softmax, and on a planted graph."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import grash
from grash.api.model import Prediction, probability_meaning
from grash.cli import main
from grash.errors import FormatError, InputError
from grash.evaluation.calibration import (
    Calibration,
    HeldOutAnswers,
    Reliability,
    Weights,
    _features,
    _fit,
    _judge,
    _temperature,
    calibrate,
    held_out_answers,
)  # fmt: skip
from grash.files import write_checksums
from grash.kernels.count_above import LogSums
from grash.report.charts import reliability
from grash.serve.service import Service
from small_graph import model_of, rings

EVEN = Reliability((0,) * 10, (0.0,) * 10, (0.0,) * 10)


@pytest.fixture(scope="module")
def world():
    return grash.train("world", model="complex", dim=32, epochs=6, valid_every=3)


def test_the_error_is_the_weighted_distance_of_probability_and_share():
    found = Reliability.of(np.array([0.12, 0.14, 0.85, 1.0]), np.array([True, False, True, True]))
    assert found.counts == (0, 2, 0, 0, 0, 0, 0, 0, 1, 1)
    assert found.right[1] == 0.5 and found.means[1] == pytest.approx(0.13)
    assert found.ece == pytest.approx((2 * 0.37 + 0.15 + 0) / 4)
    assert found.around(0.11) == (2, 0.5) and found.around(1.0) == (1, 1.0)


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 5), st.integers(1, 30), st.integers(1, 31), st.floats(0.1, 10), st.integers(0, 2**32 - 1))
def test_sums_over_tiles_are_those_of_a_loop(n_queries, n, tile, temperature, seed):
    generator = np.random.default_rng(seed)
    scores = torch.from_numpy(generator.normal(scale=20, size=(n_queries, n)).astype(np.float32))
    skips = sorted(
        {(int(generator.integers(n_queries)), int(generator.integers(n))) for _ in range(n)}, key=lambda p: p[1]
    )
    columns = [torch.tensor([pair[i] for pair in skips], dtype=torch.int64) for i in (0, 1)]
    sums, before = LogSums(n_queries, (temperature, 1.0), *columns), scores.clone()
    for start in range(0, n, tile):
        sums.add(scores[:, start : start + tile], start)
    assert torch.equal(scores, before)
    for i in range(n_queries):
        kept = [float(before[i, j]) for j in range(n) if (i, j) not in set(skips)]
        expected = np.logaddexp.reduce(np.array(kept) / temperature) if kept else -np.inf
        assert float(sums.values[0, i]) == pytest.approx(expected, rel=1e-5, abs=1e-4)


def test_held_out_answers_are_those_of_a_plain_loop():
    dataset = rings()
    model = model_of(dataset)
    found = held_out_answers(model.kge, dataset, "valid", sample=None, seed=0, temperatures=(1.0,))
    known = {tuple(row) for row in np.concatenate([dataset.train, dataset.test]).tolist()}
    held = {tuple(row) for row in dataset.valid.tolist()}
    expected = []
    for side, end, answer in (("head", 2, 0), ("tail", 0, 2)):
        for question in sorted({(row[end], row[1]) for row in held}):
            triples = [[0, question[1], 0] for _ in range(dataset.n_entities)]
            for i, row in enumerate(triples):
                row[end], row[answer] = question[0], i
            scores = model.score(np.array(triples), side=side)
            kept = [i for i in range(dataset.n_entities) if tuple(triples[i]) not in known]
            order = sorted(kept, key=lambda i, scores=scores: (-scores[i], i))[:10]
            expected += [(float(scores[i]), tuple(triples[i]) in held, i == order[0]) for i in order]
    assert list(zip(found.scores.tolist(), found.right.tolist(), found.is_first.tolist())) == expected


def drawn(n_relations, n_questions, spread, seed):
    """Return features, right, counts and groups of questions with ten answers each, and their true probabilities."""
    generator = np.random.default_rng(seed)
    own = np.array([-1.0, 1.5, 0.5]) + spread * generator.normal(size=(n_relations, 3))
    groups = np.repeat(generator.integers(0, n_relations, n_questions), 10)
    features = np.concatenate([np.ones((len(groups), 1)), generator.normal(size=(len(groups), 2))], 1)
    chances = 1 / (1 + np.exp(-(features * own[groups]).sum(1)))
    return features, generator.random(len(groups)) < chances, np.ones(len(groups)), groups, chances


def distance(n_relations, n_questions, spread):
    features, right, counts, groups, chances = drawn(n_relations, n_questions, spread, 0)
    return np.abs(_judge(_fit(features, right, counts, groups, 10.0), features, groups) - chances).mean()


def test_weights_are_drawn_together_as_far_as_relations_are_alike():
    gaps = []
    for spread in (0.0, 2.0):
        features, right, counts, groups, _ = drawn(30, 900, spread, 1)
        own, mean, *_ = _fit(features, right, counts, groups, 10.0)
        gaps.append(np.std([weights - mean for weights in own.values()]))
    assert gaps[0] < 0.3 and gaps[1] > 1.2  # true: 0 and 2
    assert distance(30, 900, 0.0) < 0.03 and distance(30, 900, 2.0) < 0.06


def test_one_relation_and_few_questions_are_enough_for_weights():
    assert distance(1, 500, 0.5) < 0.03
    assert distance(20, 20, 0.5) < 0.2
    features, _, counts, groups, _ = drawn(4, 20, 0.5, 0)
    for right in (features[:, 1] > 0, features[:, 1] < 0, np.arange(200) < 1):  # told apart, the wrong way, one right
        own, mean, *_ = _fit(features, right, counts, groups, 10.0)
        assert np.isfinite(mean).all() and np.isfinite(list(own.values())).all()
    same, right = features[:, [0, 1, 1]], features[:, 1] < -0.5  # with the order kept, only the share of right is left
    found = _judge(_fit(same, right, counts, groups, 0.5), same, groups)
    assert found == pytest.approx(right.mean(), abs=0.15)


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 5), st.floats(0.1, 4), st.sampled_from([-5.0, -1.0, 0.0, 2.0]), st.integers(0, 2**32 - 1))
def test_no_fit_gives_a_better_answer_a_lower_probability(n_groups, temperature, effect, seed):
    generator = np.random.default_rng(seed)
    scores = -np.sort(-generator.normal(scale=3, size=(40, 10)), 1)
    sums = np.repeat(np.logaddexp.reduce(scores / temperature, 1), 10)
    mean, std = float(scores.mean()), float(scores.std())
    features = _features(scores.reshape(-1), sums, temperature, mean, std)
    right = generator.random(400) < 1 / (1 + np.exp(-effect * (features[:, 2] - 1)))
    groups = np.repeat(generator.integers(0, n_groups, 40), 10)
    counts = 1 / (1 + np.arange(400) % 10)
    fitted = _fit(features, right, counts, groups, std / (4 * temperature))
    for asked in (groups, np.full(400, -1)):  # a group of its own, and one that the fit has not seen
        found = _judge(fitted, features, asked).reshape(40, 10)
        assert (found[:, :-1] - found[:, 1:]).min() > -1e-9


@pytest.mark.parametrize("true", [0.25, 1.0, 4.0])
def test_the_temperature_is_that_of_the_softmax_which_drew_the_answers(true):
    """Questions differ in how far their scores are apart, so the share tells more than the score."""
    generator = np.random.default_rng(1)
    scale = true * generator.uniform(0.5, 6, (2000, 1))
    scores = -np.sort(-generator.normal(scale=scale, size=(2000, 30)), 1)
    chances = np.exp(scores / true - np.logaddexp.reduce(scores / true, 1)[:, None])
    answer = (chances.cumsum(1) < generator.random((2000, 1))).sum(1)
    place = np.tile(np.arange(10), 2000)
    temperatures = tuple(2.0**i for i in range(-3, 4))
    held = HeldOutAnswers(
        scores[:, :10].ravel(), place == np.repeat(answer, 10), place == 0, np.zeros(20_000, int),
        np.repeat(np.arange(2000), 10), np.stack([np.logaddexp.reduce(scores / t, 1) for t in temperatures]),
        temperatures, 2000,
    )  # fmt: skip
    assert _temperature(held, seed=0) == true


def test_an_answer_counts_as_one_over_its_rank():
    dataset = rings()
    found = held_out_answers(model_of(dataset).kge, dataset, "valid", sample=None, seed=0, temperatures=(1.0,))
    ranks = np.concatenate([1 + np.arange(n) for n in np.bincount(found.questions)])
    assert found.counts == pytest.approx(1 / ranks)


def test_a_record_survives_json(world):
    assert Calibration.from_dict(json.loads(json.dumps(world.calibration.to_dict()))) == world.calibration


def test_probabilities_match_what_was_right(world):
    first, answers = world.measure_calibration()
    assert first.ece < 0.09 and answers.ece < 0.03  # 800 questions: .03 would be luck
    assert world.calibration.first.ece < 0.09


def test_a_better_answer_never_has_a_lower_probability(world):
    for new_only in (False, True):
        for side in ({"tail": None}, {"head": None}):
            name = "United Kingdom"
            query = {"head": name, "relation": "neighbour_of", "tail": name} | side
            found = [a.probability for a in world.predict(**query, k=300, new_only=new_only) if not a.known]
            assert found == sorted(found, reverse=True)


def test_predict_and_probability_agree(world):
    answers = world.predict(head="Peru", relation="speaks", k=5)
    found = world.probability([("Peru", "speaks", a.name) for a in answers])
    assert found == pytest.approx([a.probability for a in answers], abs=1e-6)
    typed = {a.name: a.probability for a in world.predict(head="Peru", relation="speaks", k=5, like_known=True)}
    shared = [a for a in answers if a.name in typed]
    assert shared and [typed[a.name] for a in shared] == pytest.approx([a.probability for a in shared], abs=1e-6)


def test_relations_have_the_probability_of_their_triple(world):
    answers = world.predict(head="Peru", tail="Spanish", k=3)
    found = world.probability([("Peru", a.name, "Spanish") for a in answers])
    assert [a.probability for a in answers] == pytest.approx(found.tolist(), abs=1e-9)


def test_a_model_that_is_not_calibrated_has_no_probability():
    dataset = rings()
    model = model_of(dataset)
    assert model.calibration is None
    assert all(a.probability is None for a in model.predict(head_id=0, relation_id=0))
    with pytest.raises(InputError, match="not calibrated"):
        model.probability(np.zeros((1, 3), int))


def test_too_few_held_out_answers_give_no_calibration():
    dataset = rings()
    few = grash.data.dataset.Dataset(
        dataset.train, dataset.valid[:2], dataset.test, dataset.n_entities, dataset.n_relations
    )
    assert calibrate(model_of(few).kge, few) is None
    assert calibrate(model_of(few).kge, few, temperature=1.0) is None


def test_a_given_temperature_is_kept(world):
    found = calibrate(world.kge, world.dataset, temperature=world.calibration.temperature)
    assert found == world.calibration
    assert calibrate(world.kge, world.dataset, temperature=2.5).temperature == 2.5


def test_a_calibration_is_stored_with_the_model(world, tmp_path):
    world.save(tmp_path / "m")
    assert grash.load_model(tmp_path / "m").calibration == world.calibration
    path = tmp_path / "m" / "calibration.json"
    content = json.loads(path.read_text())
    path.write_text(json.dumps(content | {"temperature": 0}))
    with pytest.raises(FormatError, match="calibration.json is missing or damaged: write it again"):
        grash.load_model(tmp_path / "m")
    write_checksums(tmp_path / "m")
    with pytest.raises(FormatError, match="damaged calibration.json"):
        grash.load_model(tmp_path / "m")


@pytest.mark.parametrize("damage", ["a byte", "no file"])
def test_a_lost_calibration_is_written_again_and_nothing_else(world, tmp_path, damage, capsys):
    folder = tmp_path / "m"
    world.save(folder)
    path = folder / "calibration.json"
    before = json.loads(path.read_text())
    path.unlink() if damage == "no file" else path.write_text("{")
    with pytest.raises(FormatError, match="write it again with grash calibrate"):
        grash.load_model(folder)
    assert main(["calibrate", str(folder), "--device", "cpu"]) == 0
    assert json.loads(path.read_text()) == before and grash.load_model(folder).calibration == world.calibration
    (folder / "embeddings.safetensors").write_bytes(b"")
    assert main(["calibrate", str(folder), "--device", "cpu"]) == 2
    assert "embeddings.safetensors is damaged" in capsys.readouterr().err


def test_the_sentence_names_how_many_were_right():
    counts, right = (0,) * 8 + (40, 5), (0.0,) * 8 + (0.83, 1.0)
    weights = Weights(0.0, 1.0, 0.0)
    found = Calibration("valid", 45, 1.0, 0.0, 1.0, weights, {}, Reliability(counts, right, right), EVEN)
    such = "whose first new answer had a probability of"
    assert found.meaning(0.84) == f"Of 40 questions of valid {such} 80 to 90 %, it was right in 83 %."
    assert found.meaning(0.95) == f"Too few to check it: 5 questions of valid {such} 90 to 100 %."


def test_the_sentence_is_about_the_first_new_answer_or_about_the_order_of_relations():
    counts, right = (0,) * 3 + (28,) + (0,) * 5 + (40,), (0.0,) * 3 + (0.36,) + (0.0,) * 5 + (0.9,)
    model = model_of(rings())
    known, new = Prediction("a", 0, 2.0, True, 0.95), Prediction("b", 1, 1.0, False, 0.35)
    query = model.query("person 1", "next", None)
    assert probability_meaning(model, query, [known, new]) is None
    weights = Weights(0.0, 1.0, 0.0)
    model.calibration = Calibration("valid", 68, 1.0, 0.0, 1.0, weights, {}, Reliability(counts, right, right), EVEN)
    expected = "Of 28 questions of valid whose first new answer had a probability of 30 to 40 %, it was right in 36 %."
    assert probability_meaning(model, query, [known, new]) == expected
    assert Service(model).answers(query, [known, new])["meaning"] == expected
    assert probability_meaning(model, query, [known]) is None
    relation = model.query("person 1", None, "person 2")
    assert probability_meaning(model, relation, [new]) is None
    assert "meaning" not in Service(model).answers(relation, [new])
    by_score = probability_meaning(model, relation, [new, known])
    assert by_score is not None and by_score.startswith("Relations are ranked by score. A probability is that of the ")
    assert Service(model).answers(relation, [new, known])["meaning"] == by_score


def test_a_reliability_diagram_has_a_dot_per_bin():
    right = (0.05, *(0.0,) * 8, 0.9)
    drawn = reliability(Reliability((30, *(0,) * 8, 10), right, right), 462)
    assert drawn is not None and drawn.count("<circle") == 2 and "30 questions" in drawn
    assert reliability(None, 462) is None and reliability(EVEN, 462) is None
