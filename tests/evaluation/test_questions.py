"""Questions: known answers kept once, the filter of every row as before, the truth never in it."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from grash.data.known_answers import KnownAnswers
from grash.errors import ConfigError
from grash.evaluation.ranking import Question, default_work_bytes, ranking_bytes
from grash.kernels.count_above import serves, why_not
from oracles import random_triples

CPU = torch.device("cpu")


def filtered(triples: np.ndarray, known: set[tuple[int, int, int]], side: str, n_entities: int) -> list[list[int]]:
    """Of each triple the entities that would make another known triple in its side."""
    found = []
    for h, r, t in triples.tolist():
        others = [((e, r, t) if side == "head" else (h, r, e), e) for e in range(n_entities)]
        found.append([e for triple, e in others if triple in known and e != (h if side == "head" else t)])
    return found


@settings(deadline=None, max_examples=40)
@given(st.integers(0, 25), st.integers(1, 9), st.integers(0, 99), st.booleans())
def test_every_row_has_its_filter_and_the_truth_is_not_in_it(n: int, n_entities: int, seed: int, itself: bool) -> None:
    test, train = random_triples(seed, n, n_entities, 2), random_triples(seed + 1, 30, n_entities, 2)
    splits = (train, test) if itself else (train,)
    index = KnownAnswers.of(*splits, n_relations=2)
    known = {(h, r, t) for split in splits for h, r, t in split.tolist()}
    for side in ("head", "tail"):
        question = Question(test, index, side, CPU, n_entities)  # type: ignore[arg-type]
        wanted = filtered(test, known, side, n_entities)
        assert question.others.tolist() == [n_entities - 1 - len(w) for w in wanted]
        for first, last in ((0, n), (n // 2, n)):
            begins, ends, answers = question.runs(first, last)
            for i, (begin, end) in enumerate(zip(begins, ends), first):
                run = answers[begin:end].tolist()
                assert run == sorted(run) and [e for e in run if e != question.truth[i]] == wanted[i]
            drawn = torch.arange(n_entities).repeat(last - first, 1)
            known_ones = question.knows(first, drawn)
            for i, row in enumerate(known_ones.tolist(), first):
                assert [e for e in range(n_entities) if row[e] and e != question.truth[i]] == wanted[i]
        asking, asks, order, starts, pairs, runs = (x.tolist() for x in vars(question.distinct).values())
        keys = list(zip(question.known.tolist(), question.relations.tolist()))
        assert sorted(keys[i] for i in asking) == sorted(set(keys)) and [keys[asking[q]] for q in asks] == keys
        assert [asks[i] for i in order] == sorted(asks) and sorted(order) == list(range(n))
        count = [end - begin for begin, end in zip(starts, starts[1:])]
        assert count == sorted(count, reverse=True) and count == [asks.count(q) for q in range(len(asking))]
        for i, (begin, end, truth_known) in enumerate(zip(*runs)):
            truth = int(question.truth[i])
            assert [e for e in pairs[1][begin:end] if e != truth] == wanted[i]
            assert truth_known == (truth in pairs[1][begin:end])
            assert set(pairs[0][begin:end]) <= {asks[i]}


def test_a_question_that_many_ask_has_its_answers_once() -> None:
    test = np.array([[h, 0, 7] for h in range(50)], np.int32)
    question = Question(test, KnownAnswers.of(test, n_relations=1), "head", CPU, 60)
    assert question.distinct.pairs.shape == (2, 50) and len(question.runs(0, 50).answers) == 50


def test_what_is_known_is_made_once_and_looked_up_as_row_by_row(monkeypatch: pytest.MonkeyPatch) -> None:
    test, made, pairs = random_triples(3, 600, 40, 2), [], Question._pairs
    question = Question(test, KnownAnswers.of(test, n_relations=2), "tail", CPU, 40)
    monkeypatch.setattr(Question, "_pairs", lambda self: made.append(self) or pairs(self))
    known, drawn = {tuple(triple) for triple in test.tolist()}, torch.arange(40).repeat(256, 1)
    for first in range(0, len(test), 256):
        rows = test[first : first + 256].tolist()
        plain = [[(h, r, e) in known for e in range(40)] for h, r, _ in rows]
        assert question.knows(first, drawn[: len(rows)]).tolist() == plain
    assert made == [question]


def test_on_a_cpu_ranking_takes_its_score_tiles() -> None:
    assert ranking_bytes(100, 1000, 5000, 128, CPU) == 2 * default_work_bytes(CPU)


def test_what_keeps_the_counting_kernels_away_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "the device is cpu, not cuda" in why_not(torch.zeros(1, 4))
    assert any("wider than 1024" in reason for reason in why_not(torch.zeros(1, 1025)))
    monkeypatch.setenv("GRASH_KERNELS", "triton")
    assert not serves(torch.zeros(1, 4))  # demanded on CUDA devices only
    wide = torch.zeros(1, 1025)

    class Elsewhere:
        device, shape, dtype = torch.device("cuda"), wide.shape, wide.dtype

    with pytest.raises(ConfigError, match="rows of 1025 floats"):
        serves(Elsewhere())  # type: ignore[arg-type]
