"""Known answers against a dictionary of sets."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from grash.data.known_answers import KnownAnswers, expand

TRIPLES = st.lists(st.tuples(st.integers(0, 6), st.integers(0, 2), st.integers(0, 6)), max_size=30)


def array(triples: list[tuple[int, int, int]]) -> np.ndarray:
    return np.array(triples, np.int32).reshape(-1, 3)


@settings(deadline=None)
@given(TRIPLES, TRIPLES, st.lists(st.tuples(st.integers(0, 8), st.integers(0, 2)), max_size=6))
def test_pairs_are_all_known_answers_and_no_others(
    one: list[tuple[int, int, int]], other: list[tuple[int, int, int]], asked: list[tuple[int, int]]
) -> None:
    known = KnownAnswers.of(array(one), array(other), n_relations=3)
    facts = {*one, *other}
    questions = np.array(asked, np.int64).reshape(-1, 2)
    for side in ("head", "tail"):
        rows, answers = known.of_side(side).pairs(*questions.T)  # type: ignore[arg-type]
        wanted = [
            (i, e)
            for i, (entity, relation) in enumerate(asked)
            for e in range(7)
            if ((entity, relation, e) if side == "tail" else (e, relation, entity)) in facts
        ]
        assert [*zip(rows.tolist(), answers.tolist())] == wanted  # ascending, without repeats


@settings(deadline=None)
@given(TRIPLES)
def test_an_index_holds_each_question_once_with_distinct_answers(triples: list[tuple[int, int, int]]) -> None:
    known = KnownAnswers.of(array(triples), n_relations=3)
    for index, column in ((known.tail, 0), (known.head, 2)):
        questions = sorted({(t[column], t[1]) for t in triples})
        assert [divmod(key, 3) for key in index.keys.tolist()] == questions
        assert len(index) == len(questions) and index.starts[-1] == len(set(triples))


def test_large_ids_do_not_overflow() -> None:
    top = 2**31 - 2
    known = KnownAnswers.of(np.array([[top, 70_000, top - 1]], np.int32), n_relations=70_001)
    rows, answers = known.tail.pairs(np.array([top, 5], np.int32), np.array([70_000, 70_000], np.int32))
    assert (rows.tolist(), answers.tolist()) == ([0], [top - 1])


def test_nothing_known_and_nothing_asked() -> None:
    known = KnownAnswers.of(n_relations=3)
    rows, answers = known.head.pairs(np.array([1, 2]), np.array([0, 1]))
    assert len(rows) == len(answers) == len(known.head) == 0
    rows, answers = KnownAnswers.of(array([(0, 0, 1)]), n_relations=1).tail.pairs(*np.empty((2, 0), np.int64))
    assert len(rows) == len(answers) == 0


def test_runs_are_laid_end_to_end() -> None:
    rows, answers = expand(np.array([3, 0, 1]), np.array([2, 0, 3]), np.array([10, 11, 12, 13, 14], np.int32))
    assert rows.tolist() == [0, 0, 2, 2, 2] and answers.tolist() == [13, 14, 11, 12, 13]


@settings(deadline=None)
@given(TRIPLES, TRIPLES)
def test_an_index_for_what_is_asked_answers_that_alike(
    facts: list[tuple[int, int, int]], asked: list[tuple[int, int, int]]
) -> None:
    whole = KnownAnswers.of(array(facts), n_relations=3)
    part = KnownAnswers.of(array(facts), n_relations=3, asked=array(asked))
    heads, relations, tails = array(asked).T
    for side, known in (("head", tails), ("tail", heads)):
        found, wanted = (index.of_side(side).pairs(known, relations) for index in (part, whole))  # type: ignore[arg-type]
        assert all(np.array_equal(a, b) for a, b in zip(found, wanted))
        assert len(part.of_side(side)) <= len(whole.of_side(side))  # type: ignore[arg-type]
