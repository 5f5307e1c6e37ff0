"""Metrics from ranks, worked by hand, and what an evaluation says about itself."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from grash.data.dataset import Dataset
from grash.errors import InputError
from grash.evaluation.evaluate import evaluate, sample_triples
from grash.evaluation.metrics import (
    _mean_in_order,
    metrics_by_group,
    metrics_of,
    mrr,
    mrr_bounds,
    mrr_interval,
    resampled_means,
)
from grash.evaluation.ranking import Ranks, SideRanks
from grash.models import MODELS


def side(above: list[int], ties: list[int], others: list[int]) -> SideRanks:
    return SideRanks(*(np.array(x, np.int64) for x in (above, ties, others)))


# Four triples among six entities. Head ranks 1, 2.5, 4, 6; tail ranks 1, 1, 3, 2.
HEAD = side([0, 1, 3, 5], [0, 1, 0, 0], [5, 4, 5, 5])
TAIL = side([0, 0, 2, 1], [0, 0, 0, 0], [5, 5, 3, 4])
RANKS = Ranks(np.zeros((4, 3), np.int32), HEAD, TAIL)


def test_metrics_worked_by_hand() -> None:
    head = metrics_of(HEAD)
    assert head.n == 4
    assert head.mrr == pytest.approx((1 + 0.4 + 0.25 + 1 / 6) / 4)
    assert head.mr == pytest.approx(13.5 / 4)
    assert head.hits == {1: 0.25, 3: 0.5, 10: 1.0, 100: 1.0}
    # Σ(rank − 1) = 9.5; a random order has Σ others / 2 = 19 / 2
    assert head.amri == pytest.approx(1 - 9.5 / 9.5)
    both = metrics_of(HEAD, TAIL)
    assert both.n == 8 and both.mrr == pytest.approx(mrr(RANKS)) == pytest.approx((head.mrr + metrics_of(TAIL).mrr) / 2)
    assert both.amri == pytest.approx(1 - (9.5 + 3) / 18)


def test_a_tie_on_the_edge_is_no_hit() -> None:
    assert metrics_of(side([0], [1], [5])).hits[1] == 0  # rank 1.5
    assert metrics_of(side([2], [1], [5])).hits[3] == 0  # rank 3.5


def test_ties_can_be_won_or_lost() -> None:
    optimistic, pessimistic = mrr_bounds(RANKS)
    tails = 1 + 1 + 1 / 3 + 1 / 2
    assert optimistic == pytest.approx((1 + 1 / 2 + 1 / 4 + 1 / 6 + tails) / 8)
    assert pessimistic == pytest.approx((1 + 1 / 3 + 1 / 4 + 1 / 6 + tails) / 8)
    assert pessimistic < mrr(RANKS) < optimistic


def test_the_best_order_has_amri_one_and_the_worst_minus_one() -> None:
    assert metrics_of(side([0, 0], [0, 0], [5, 9])).amri == 1
    assert metrics_of(side([5, 9], [0, 0], [5, 9])).amri == -1
    assert metrics_of(side([0, 0], [5, 9], [5, 9])).amri == 0  # all tied
    assert metrics_of(side([0], [0], [0])).amri == 1  # no one else


def test_groups_take_their_own_triples() -> None:
    found = metrics_by_group(RANKS, np.array([1, 0, 1, 1]), ["born in", "knows", "unused"])
    assert set(found) == {"born in", "knows"}
    assert found["born in"].mrr == pytest.approx((0.4 + 1) / 2) and found["born in"].n == 2
    assert found["knows"].mr == pytest.approx((1 + 4 + 6 + 1 + 3 + 2) / 6)


def test_no_ranks_have_no_metrics() -> None:
    empty = side([], [], [])
    assert metrics_of(empty).n == 0
    ranks = Ranks(np.empty((0, 3), np.int32), empty, empty)
    assert mrr_interval(ranks, seed=0) == mrr_bounds(ranks) == (0.0, 0.0)


@settings(deadline=None, max_examples=20)
@given(st.lists(st.tuples(st.integers(0, 50), st.integers(0, 50)), min_size=1, max_size=40), st.integers(0, 9))
def test_the_interval_holds_the_mean_and_repeats_itself(above: list[tuple[int, int]], seed: int) -> None:
    n = len(above)
    ranks = Ranks(
        np.zeros((n, 3), np.int32),
        side([a for a, _ in above], [0] * n, [60] * n),
        side([a for _, a in above], [0] * n, [60] * n),
    )
    low, high = mrr_interval(ranks, seed=seed)
    assert low - 1e-12 <= mrr(ranks) <= high + 1e-12
    assert (low, high) == mrr_interval(ranks, seed=seed)
    narrow = mrr_interval(ranks, seed=seed, level=0.5)
    assert low <= narrow[0] <= narrow[1] <= high


def six() -> tuple[Dataset, torch.Tensor]:
    """Relation 0 is 1-1 in train, relation 1 is 1-N; entity 5 is not in train."""
    train = np.array([[0, 0, 1], [2, 0, 3], [0, 1, 1], [0, 1, 2], [0, 1, 3], [0, 1, 4]], np.int32)
    valid, test = np.array([[1, 0, 2]], np.int32), np.array([[4, 0, 0], [0, 1, 5], [3, 0, 1]], np.int32)
    return Dataset(train, valid, test, n_entities=6, n_relations=2, name="six"), torch.arange(6.0)[:, None] + 1


def model_of(entity: torch.Tensor):  # type: ignore[no-untyped-def]
    return MODELS["transe"](entity, torch.tensor([[1.0], [2.0]]))


def test_an_evaluation_says_what_was_measured() -> None:
    dataset, entity = six()
    result = evaluate(model_of(entity), dataset)
    assert (result.split, result.filter, result.unseen) == ("test", ("train", "valid", "test"), "keep")
    assert (result.n_triples, result.n_triples_in_split, result.n_unseen) == (3, 3, 1)
    assert set(result.per_relation) == {"0", "1"} and result.per_relation["1"].n == 2
    assert set(result.per_cardinality) == {"1-1", "1-N"} and result.per_cardinality["1-1"].n == 4
    assert result.both.n == 6 and result.both.mr == pytest.approx((result.head.mr + result.tail.mr) / 2)
    content = json.loads(json.dumps(result.to_dict()))
    assert content["both"]["mrr"] == result.both.mrr and "hits@10" in content["head"]
    assert evaluate(model_of(entity), dataset, detail=False).per_relation == {}


def test_test_answers_never_filter_a_validation() -> None:
    dataset, entity = six()
    result = evaluate(model_of(entity), dataset, split="valid")
    assert result.filter == ("train", "valid") and result.n_triples == 1
    # tails of (1, 0): query 2 + 1 = 3 meets entity 2 at distance 0; heads of (0, 2): entity 1 at distance 0
    assert result.both.mrr == 1.0


def test_unseen_triples_are_kept_or_dropped_and_always_counted() -> None:
    dataset, entity = six()
    dropped = evaluate(model_of(entity), dataset, unseen="drop")
    assert (dropped.n_triples, dropped.n_unseen, dropped.unseen) == (2, 1, "drop")
    assert set(dropped.per_relation) == {"0"}
    only = Dataset(dataset.train, dataset.valid, dataset.test[1:2].copy(), 6, 2, name="only unseen")
    with pytest.raises(InputError, match="test split of only unseen has no triples to rank"):
        evaluate(model_of(entity), only, unseen="drop")


def test_a_sample_is_seeded_and_in_order() -> None:
    triples = np.arange(300, dtype=np.int32).reshape(100, 3)
    one, again, other = (sample_triples(triples, 10, s) for s in (0, 0, 1))
    assert np.array_equal(one, again) and not np.array_equal(one, other)
    assert (np.diff(one[:, 0]) > 0).all() and len(one) == 10
    assert sample_triples(triples, None, 0) is triples and len(sample_triples(triples, 1000, 0)) == 100
    for n in (0, -3):
        with pytest.raises(InputError, match=f"sample of {n} triples"):
            sample_triples(triples, n, 0)
    dataset, entity = six()
    result = evaluate(model_of(entity), dataset, sample=2)
    assert (result.n_triples, result.n_triples_in_split) == (2, 3)


def test_metrics_among_drawn_candidates_cannot_be_confused() -> None:
    dataset, entity = six()
    full, drawn = evaluate(model_of(entity), dataset), evaluate(model_of(entity), dataset, candidates=5)
    content = drawn.to_dict()
    assert content["both"]["mrr@5neg"] >= full.both.mrr  # fewer to beat
    assert {"mrr@5neg", "mr@5neg", "amri@5neg", "hits@1@5neg"} <= set(content["both"])
    assert {"mrr_interval@5neg", "mrr_optimistic@5neg", "mrr_pessimistic@5neg"} <= set(content)
    flat = [*content, *(k for part in ("both", "head", "tail") for k in content[part])]
    flat += [k for group in ("per_relation", "per_cardinality") for m in content[group].values() for k in m]
    assert not any(k in ("mrr", "mr", "amri", "mrr_interval") or k.startswith("hits") and "neg" not in k for k in flat)
    for n in (0, -1, 6, 1000):
        with pytest.raises(InputError, match=f"candidates={n} is not possible"):
            evaluate(model_of(entity), dataset, candidates=n)


def test_what_cannot_be_ranked_is_said() -> None:
    dataset, entity = six()
    for options, words in (({"split": "train"}, "give valid or test"), ({"unseen": "x"}, "give keep or drop")):
        with pytest.raises(InputError, match=words):
            evaluate(model_of(entity), dataset, **options)  # type: ignore[arg-type]


@given(st.integers(1, 50), st.integers(0, 9), st.integers(0, 99))
def test_resampled_means_are_those_of_numpy(n, resamples, seed):
    generator = np.random.default_rng(seed)
    values, draws = generator.random(n), generator.integers(0, n, (resamples, n)).astype(np.int32)
    found = resampled_means(values, draws)
    assert found.shape == (resamples,)
    np.testing.assert_allclose(found, [values[chosen].mean() for chosen in draws], rtol=1e-13)
    assert found.tolist() == [_mean_in_order(values[chosen]) for chosen in draws]


@pytest.mark.parametrize("n", [2, 6, 1003])
def test_all_ways_to_resample_give_the_same_interval(n, monkeypatch):
    generator = np.random.default_rng(n)
    head, tail = (SideRanks(generator.integers(0, 50, n), np.zeros(n, int), np.full(n, 99)) for _ in range(2))
    ranks = Ranks(np.zeros((n, 3), np.int32), head, tail)
    found = mrr_interval(ranks, seed=3)
    assert found[0] < found[1] and found == mrr_interval(ranks, seed=3, often=True)
    monkeypatch.setattr("grash.evaluation.metrics._MAX_CACHED", 1)
    assert found == mrr_interval(ranks, seed=3, often=True)
    monkeypatch.setattr("grash.evaluation.metrics._MAX_PLAIN", 1)
    assert found == mrr_interval(ranks, seed=3)


def test_metrics_among_like_known_candidates_stand_beside_the_usual_ones() -> None:
    dataset, entity = six()
    usual, typed = evaluate(model_of(entity), dataset), evaluate(model_of(entity), dataset, like_known=True)
    assert replace(typed, like_known=None) == usual and usual.like_known is None
    assert typed.like_known is not None and typed.like_known.both.n == usual.both.n
    assert typed.like_known.both.mrr >= usual.both.mrr
    # heads 4 and 3 of relation 0, its tail 0, and the tail 5 of relation 1 are not in train there
    assert typed.like_known.n_outside == 4
    content = typed.to_dict()
    assert "mrr@like_known" in content["like_known"]["both"] and "mrr@like_known" not in content["both"]
    assert "like_known" not in usual.to_dict()
