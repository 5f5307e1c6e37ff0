"""Another metric than the MRR decides rounds, finalists and the best validation of a training."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from engines.searches import small_search
from grash.data.known_answers import KnownAnswers
from grash.errors import ConfigError
from grash.evaluation.metrics import metrics_of, mrr, score
from grash.evaluation.ranking import Ranker, Ranks, SideRanks
from grash.search.ledger import RoundState
from grash.search.trial import TrialResult
from search.test_several_models import searched


def ranks_of(head: list[int], tail: list[int], relations: list[int]) -> Ranks:
    def side(ranks: list[int]) -> SideRanks:
        return SideRanks(np.array(ranks, np.int64) - 1, np.zeros(len(ranks), np.int64), np.full(len(ranks), 99))

    return Ranks(np.array([[0, r, 1] for r in relations], np.int32).reshape(-1, 3), side(head), side(tail))


def test_metrics_of_four_triples_by_hand() -> None:
    ranks = ranks_of([1, 2, 4, 10], [1, 1, 2, 20], [0, 0, 0, 1])
    assert score(ranks, "mrr") == mrr(ranks) == pytest.approx((1 + 0.5 + 0.25 + 0.1 + 1 + 1 + 0.5 + 0.05) / 8)
    assert score(ranks, "hits@1") == 3 / 8 and score(ranks, "hits@3") == 5 / 8 and score(ranks, "hits@10") == 7 / 8
    first, second = (1 + 0.5 + 0.25 + 1 + 1 + 0.5) / 6, (0.1 + 0.05) / 2
    assert score(ranks, "macro-mrr") == pytest.approx((first + second) / 2)
    assert [score(ranks_of([], [], []), m) for m in ("mrr", "hits@10", "macro-mrr", "weighted-mrr")] == [0.0] * 4


@given(st.lists(st.tuples(st.integers(1, 50), st.integers(1, 50), st.integers(0, 4)), min_size=1, max_size=40))
def test_hits_are_those_of_an_evaluation_and_one_relation_has_the_same_macro_mrr(
    rows: list[tuple[int, int, int]],
) -> None:
    ranks = ranks_of([h for h, _, _ in rows], [t for _, t, _ in rows], [r for _, _, r in rows])
    found = metrics_of(ranks.head, ranks.tail)
    assert score(ranks, "hits@3") == pytest.approx(found.hits[3])
    per_relation = [
        metrics_of(ranks.head, ranks.tail, chosen=ranks.triples[:, 1] == r).mrr for r in {r for _, _, r in rows}
    ]
    assert score(ranks, "macro-mrr") == pytest.approx(np.mean(per_relation))


def test_questions_with_many_known_answers_count_less() -> None:
    """One candidate of 100 is the true answer of most questions; the head of the second triple has 30 more."""
    ranks = ranks_of([1, 4], [1, 2], [0, 1])
    head = replace(ranks.head, others=np.array([99, 69]), n_candidates=100)
    tail = replace(ranks.tail, others=np.array([99, 99]), n_candidates=100)
    weights, reciprocal = [1 / 1.1, 1 / 4.1, 1 / 1.1, 1 / 1.1], [1, 1 / 4, 1, 1 / 2]
    expected = np.average(reciprocal, weights=weights)
    assert score(Ranks(ranks.triples, head, tail), "weighted-mrr") == pytest.approx(expected)
    assert score(ranks, "weighted-mrr") == pytest.approx(mrr(ranks))  # candidates unknown: all weights are equal


def test_a_validation_knows_how_many_answers_its_questions_have() -> None:
    triples = np.array([[0, 0, 1], [0, 0, 2], [3, 0, 2], [0, 1, 2]], np.int32)
    known = KnownAnswers.of(triples, n_relations=2, asked=triples)
    ranker = Ranker(triples, known, 5, torch.device("cpu"))
    ranks = ranker.ranks_of([np.zeros((2, 4), np.int64)] * 2)
    assert ranks.head.known.tolist() == [1, 2, 2, 1] and ranks.tail.known.tolist() == [2, 2, 1, 1]


def test_the_score_decides_a_round_and_its_rise_counts() -> None:
    state = searched([0.3, 0.2], ["complex", "complex"], [2])
    plan = state.rounds[0].plan
    results = {
        0: TrialResult(1, 0, 1, "ok", mrr=0.3, score=0.5),
        1: TrialResult(1, 1, 1, "ok", mrr=0.2, score=0.6, history=[{"epoch": 1.0, "mrr": 0.1, "score": 0.4}]),
    }
    assert RoundState(plan, results).best(2) == [1, 0]
    rising = [{"epoch": 1.0, "mrr": 0.1, "score": 0.4}, {"epoch": 2.0, "mrr": 0.2, "score": 0.6}]
    assert TrialResult(1, 1, 1, "ok", mrr=0.2, score=0.6, history=rising).rise == pytest.approx(0.2)
    assert results[1].value_at(2.0) == 0.4


@pytest.mark.slow
def test_a_search_by_hits_compares_trials_and_validations_by_hits(tmp_path: Path) -> None:
    result = small_search(tmp_path / "run", metric="hits@10").run()
    first = result.state.rounds[0]
    assert all(r.score is not None and r.mrr is not None and r.score > r.mrr for r in first.results.values())
    best = max(first.results.values(), key=lambda r: first.score(r))
    assert first.survivors is not None and first.survivors[0] == best.number
    final = result.state.final
    assert final is not None and final.score == max(v["score"] for v in final.history)
    assert {row["score"] for row in result.trials() if row["round"] == 1} == {r.score for r in first.results.values()}
    assert ">score<" in result.report().read_text(encoding="utf-8")


def test_an_unknown_metric_is_an_error_that_lists_the_others(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"metric='hits@5' is not valid: .*'hits@10'.*macro-mrr"):
        small_search(tmp_path / "run", metric="hits@5")
