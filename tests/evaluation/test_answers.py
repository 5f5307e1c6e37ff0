"""Answers to questions by ids do not depend on how they are ranked."""

from __future__ import annotations

import numpy as np
import pytest

from grash.data.dataset import Dataset
from grash.data.known_answers import TripleIndex
from grash.evaluation.answers import Answerer
from small_graph import model_of, rings, some_calibration


def test_no_tile_of_scores_is_larger_than_planned(monkeypatch):
    from grash.kernels import count_above as kernel

    sizes = []

    def recorded(queries, candidates, pair):
        sizes.append(4 * len(queries) * len(candidates))
        return pair_scores(queries, candidates, pair)

    pair_scores = kernel.pair_scores
    monkeypatch.setattr(kernel, "pair_scores", recorded)
    monkeypatch.setattr("grash.evaluation.answers._WORK_BYTES", 1 << 20)
    triples, none = np.array([[0, 0, 1]], np.int32), np.empty((0, 3), np.int32)
    model = model_of(Dataset(triples, none, none, 20_000, 1))
    answers = model.predict_many([(i, 0, None) for i in range(300)], 2)
    assert len(answers) == 300 and max(sizes) <= 1 << 20 and sum(sizes) == 4 * 300 * 20_000


@pytest.mark.parametrize("scattered", [0, 10**9])
@pytest.mark.parametrize("calibrated", [False, True])
@pytest.mark.parametrize("new_only", [False, True])
def test_like_known_answers_do_not_depend_on_how_they_are_ranked(monkeypatch, scattered, calibrated, new_only):
    model = model_of(rings(), integers=True)
    model.calibration = some_calibration() if calibrated else None
    asked = [(f"person {i}", r, None) for i in range(12) for r in ("next", "two on", "beside")]
    asked += [(None, r, h) for h, r, _ in asked]
    options = {"like_known": True, "new_only": new_only}
    listed = model.predict_many(asked, 5, **options)
    model.triple_index = TripleIndex(model.dataset)
    assert model.predict_many(asked, 5, **options) == listed == [model.predict(*q, k=5, **options) for q in asked]
    monkeypatch.setattr("grash.evaluation.answers._SCATTERED", scattered)
    monkeypatch.setattr(Answerer, "_lists", lambda *_: False)
    for answers, wanted in zip(listed, model.predict_many(asked, 5, **options)):
        assert [(a.id, a.score, a.known) for a in answers] == [(a.id, a.score, a.known) for a in wanted]
        if calibrated:
            np.testing.assert_allclose([a.probability for a in answers], [a.probability for a in wanted], rtol=1e-6)


def test_long_lists_of_like_known_entities_are_ranked_tile_by_tile(monkeypatch):
    model = model_of(rings(), integers=True)
    asked = [(f"person {i}", "next", None) for i in range(4)]
    listed = model.predict_many(asked, 5, like_known=True)
    monkeypatch.setattr("grash.evaluation.answers._MAX_LISTED", 4)
    monkeypatch.setattr(Answerer, "_rank_listed", None)  # would keep more scores than that
    assert model.predict_many(asked, 5, like_known=True) == listed


def test_the_largest_row_is_found_again_after_a_change_of_the_table():
    model = model_of(rings(), dim=8)
    before = model.predict("person 1", "next", k=3)
    model.kge.entity.mul_(1e6)
    after = model.predict("person 1", "next", k=3)
    assert [a.id for a in after] == [a.id for a in before]
    assert model._answerer.largest("tail") == pytest.approx(float(model.kge.entity.norm(dim=1).max()))
