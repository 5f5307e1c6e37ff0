"""Thresholds of triple classification: worked by hand, and on the bundled graph."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import grash
from grash.data import candidates
from grash.data.arrays import in_blocks
from grash.errors import InputError
from grash.evaluation.classification import Thresholds, _threshold, accuracy, classified_triples
from small_graph import model_of, rings


def test_a_threshold_is_in_the_middle():
    assert _threshold(np.array([1.0, 2.0, 4.0, 5.0]), np.array([False, False, True, True])) == 3.0
    assert _threshold(np.array([1.0, 1.0]), np.array([True, True])) < 1.0


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.integers(-4, 4), st.booleans()), min_size=1, max_size=30))
def test_no_other_threshold_is_better(pairs):
    scores, right = np.array([float(s) for s, _ in pairs]), np.array([r for _, r in pairs])
    found = ((scores >= _threshold(scores, right)) == right).sum()
    assert found == max(((scores >= limit) == right).sum() for limit in [*scores, *(scores + 0.5), *(scores - 0.5)])


def test_a_relation_without_a_threshold_has_that_of_all():
    found = Thresholds(1.0, {"0": 5.0}, 0.0, 0).accept(np.array([0, 1, 0]), np.array([4.0, 4.0, 6.0]))
    assert found.tolist() == [False, True, True]


def test_triples_of_the_bundled_graph_are_told_from_corrupted_ones():
    model = grash.train("world", model="complex", dim=32, epochs=8, valid_every=4, reciprocal=True)
    thresholds = model.calibration.thresholds
    assert thresholds.accuracy > 0.75 and accuracy(thresholds, model.kge, model.dataset) > 0.75
    relations, scores, right, _ = classified_triples(model.kge, model.dataset, "test", seed=0)
    assert right.sum() == (~right).sum() > 300
    assert model.classify(model.dataset.test).mean() > 0.6
    assert model.classify([("Peru", "speaks", "Spanish")]).shape == (1,)


def test_corrupted_triples_read_train_once(monkeypatch):
    passes = []
    monkeypatch.setattr(candidates, "in_blocks", lambda *given: passes.append(1) or in_blocks(*given))
    classified_triples(model_of(rings()).kge, rings(), "valid", seed=0)
    assert len(passes) == 1 and rings().n_relations > 1


def test_a_model_without_thresholds_accepts_nothing():
    with pytest.raises(InputError, match="no thresholds"):
        model_of(rings()).classify(np.zeros((1, 3), int))
