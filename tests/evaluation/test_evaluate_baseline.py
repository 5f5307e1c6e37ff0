"""The baseline ranks as counting and sorting in Python does."""

from __future__ import annotations

from collections import Counter
from unittest import mock

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import grash
from grash.data.known_answers import KnownAnswers
from grash.evaluation import evaluate
from grash.evaluation.evaluate import frequency_ranks
from oracles import places_by_sort, random_triples


@given(
    st.integers(0, 10_000), st.integers(1, 9), st.integers(1, 3), st.integers(0, 40), st.sampled_from([0, 1 << 24]),
    st.sampled_from([1, 5, 1 << 22]), st.booleans(),
)  # fmt: skip
def test_ranks_are_those_of_a_sort_by_frequency(
    seed: int, n_entities: int, n_relations: int, n_train: int, table: int, at_once: int, filters_test: bool
) -> None:
    train = random_triples(seed, n_train, n_entities, n_relations)
    test = random_triples(seed + 1, 8, n_entities, n_relations)
    filters = [train, test] if filters_test else [train]
    known = KnownAnswers.of(*filters, n_relations=n_relations, asked=test)
    # 0: too many relations and entities for a table of counts
    with mock.patch.multiple(evaluate, _TABLE=table, _ANSWERS=at_once):
        ranks = frequency_ranks(test, train, known, n_entities=n_entities)
    facts = [tuple(row) for row in np.concatenate(filters).tolist()]
    for i, (h, r, t) in enumerate(test.tolist()):
        for side, answer, end in ((ranks.head, h, 2), (ranks.tail, t, 0)):
            asked = 2 - end
            counts = Counter(row[asked] for row in train.tolist() if row[1] == r)
            skip = {fact[asked] for fact in facts if fact[1] == r and fact[end] == test[i][end]} - {answer}
            above, ties = places_by_sort([float(counts[e]) for e in range(n_entities)], answer, skip)
            assert (side.above[i], side.ties[i]) == (above, ties)
            assert side.others[i] == n_entities - 1 - len(skip)


def test_a_worked_example() -> None:
    # tails of relation 0: entity 1 twice, entity 2 once, entities 0 and 3 never
    train = np.array([[0, 0, 1], [3, 0, 1], [0, 0, 2]], np.int32)
    test = np.array([[3, 0, 2]], np.int32)
    known = KnownAnswers.of(train, test, n_relations=1, asked=test)
    tail = frequency_ranks(test, train, known, n_entities=4).tail
    assert (tail.above[0], tail.ties[0], tail.others[0]) == (0, 0, 2)  # entity 1 is a known answer of (3, 0, ?)


@pytest.mark.slow
def test_an_evaluation_has_the_baseline_of_its_own_questions() -> None:
    model = grash.train("world", dim=8, epochs=0.2, negatives_head=20, negatives_tail=20, device="cpu")
    found = model.evaluation
    assert found["baseline"]["n"] == found["both"]["n"] and 0.05 < found["baseline"]["mrr"] < 0.08
    assert found["baseline_per_relation"].keys() == found["per_relation"].keys()
    assert model.evaluate(candidates=50).baseline is None
