"""Known answers against a dictionary of sets."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from grash.data.dataset import SPLITS, Dataset
from grash.data.known_answers import (
    KnownAnswers,
    TripleIndex,
    answer_index,
    expand,
    known_relations,
    triples_among,
    triples_with,
)
from small_graph import rings

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


def test_the_index_of_triples_finds_what_a_pass_finds():
    graph = rings()
    graph = replace(graph, train=np.concatenate([graph.train, [[3, 1, 3], [3, 0, 3]]]).astype(np.int32))
    index = TripleIndex(graph)
    ends, relations = (x.ravel() for x in np.meshgrid(np.arange(graph.n_entities), np.arange(graph.n_relations)))
    for side in ("head", "tail"):
        wanted = answer_index(graph, ends, relations, side).pairs(ends, relations)
        assert [a.tolist() for a in index.pairs(ends, relations, side)] == [a.tolist() for a in wanted]
    for entity in range(graph.n_entities):
        plain, indexed = triples_with(graph, entity), triples_with(graph, entity, index)
        for split in SPLITS:
            assert sorted(plain[split].tolist()) == sorted(indexed[split].tolist())


def test_triples_among_entities_are_those_with_both_ends_there():
    graph = rings()
    chosen = np.array([0, 1, 2, 5])
    wanted = [t for t in graph.train.tolist() if t[0] in chosen and t[2] in chosen]
    assert triples_among(graph, chosen).tolist() == wanted


@settings(max_examples=40, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 2), st.integers(0, 5)), max_size=30), st.randoms())
def test_known_answers_found_in_one_pass_are_all_of_them(triples, random):
    cut = random.randint(0, len(triples))
    array = np.array(triples, np.int32).reshape(-1, 3)
    dataset = Dataset(array[:cut].copy(), array[cut:].copy(), np.empty((0, 3), np.int32), 6, 3)
    ends, relations = np.repeat(np.arange(6), 3), np.tile(np.arange(3), 6)
    indexes = (answer_index(dataset, ends, relations, side) for side in ("head", "tail"))
    heads, tails = ([x.answers[a : a + n] for a, n in zip(*x.runs(ends, relations))] for x in indexes)
    for i, (end, relation) in enumerate(zip(ends, relations)):
        assert tails[i].tolist() == sorted({t for h, r, t in triples if (h, r) == (end, relation)})
        assert heads[i].tolist() == sorted({h for h, r, t in triples if (t, r) == (end, relation)})
    for head, tail in ((0, 0), (1, 2)):
        expected = {r for h, r, t in triples if (h, t) == (head, tail)}
        assert set(np.flatnonzero(known_relations(dataset, head, tail)).tolist()) == expected
