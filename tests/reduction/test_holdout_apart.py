"""Held-out triples that lie isolated, as a dataset's own valid triples may: no other triple joins their two entities."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from grash.data.dataset import Dataset
from grash.reduction import subgraph as holdout
from grash.reduction.cores import peel
from grash.reduction.subgraph import Holdout, cut, linked_again, linked_pair_share, pairs_are_isolated, split_off
from grash.search.graphs import SearchGraphs
from grash.search.settings import make_settings
from reduction.graphs import as_set, datasets, random_dataset


def pair(row: np.ndarray) -> frozenset[int]:
    return frozenset((int(row[0]), int(row[2])))


def pairs(triples: np.ndarray) -> Counter[frozenset[int]]:
    return Counter(pair(row) for row in triples)


@given(datasets())
def test_joined_rows_are_those_whose_entities_occur_together_again(dataset: Dataset) -> None:
    counts = pairs(dataset.train)
    assert linked_again(dataset.train, dataset.n_entities).tolist() == [counts[pair(r)] > 1 for r in dataset.train]


@given(datasets(), datasets())
def test_valid_lies_apart_if_it_shares_no_two_entities_with_train(one: Dataset, other: Dataset) -> None:
    n = max(one.n_entities, other.n_entities)
    assert pairs_are_isolated(one.train, other.train, n) is not bool(
        pairs(one.train).keys() & pairs(other.train).keys()
    )


@given(datasets(min_triples=10), st.booleans(), st.integers(0, 9))
def test_what_is_held_out_apart_is_joined_by_nothing_else(dataset: Dataset, guarded: bool, seed: int) -> None:
    part = split_off(dataset.train, dataset.n_entities, dataset.n_relations, Holdout(seed, guarded, isolated=True))
    assert as_set(part.train) | as_set(part.valid) == as_set(dataset.train) and len(part) == len(dataset.train)
    counts = pairs(dataset.train)
    assert all(counts[pair(row)] == 1 for row in part.valid)
    again = split_off(dataset.train, dataset.n_entities, dataset.n_relations, Holdout(seed, guarded, isolated=True))
    assert np.array_equal(part.valid, again.valid)


def test_a_graph_without_free_triples_holds_out_nothing() -> None:
    rows = np.array([(h, r, t) for h in range(5) for t in range(5, 10) for r in (0, 1)], np.int32)
    assert (
        len(split_off(rows, 10, 2, Holdout(0, isolated=True)).valid)
        == 0
        < len(split_off(rows, 10, 2, Holdout(0)).valid)
    )


@pytest.mark.parametrize("reduction", ["core-order", "k-core"])
def test_a_subgraph_stays_below_its_fraction(way: str) -> None:
    dataset = random_dataset(0, 3000, 120)
    peeling = peel(dataset.train, dataset.n_entities)
    usual, isolated = (cut(dataset, peeling, 0.5, seed=0, reduction=way, isolated=a) for a in (False, True))  # type: ignore[arg-type]
    for found, lies in ((usual, False), (isolated, True)):
        data = found.dataset
        assert (
            len(data.train) <= 1500
            and len(data.valid)
            and pairs_are_isolated(data.valid, data.train, data.n_entities) is lies
        )
    assert (
        "isolated" not in usual.dataset.provenance["reduction"] and isolated.dataset.provenance["reduction"]["isolated"]
    )


@given(datasets(), st.sampled_from([1, 2, 3, 10_000]))
def test_the_share_that_is_joined_is_that_of_rows_at_even_distances(dataset: Dataset, most: int) -> None:
    joined = linked_again(dataset.train, dataset.n_entities)[:: max(1, -(-len(dataset.train) // most))]
    assert linked_pair_share(dataset.train, dataset.n_entities, most) == (joined.mean() if len(joined) else 0.0)


def test_blocks_are_looked_up_one_after_the_other(monkeypatch: pytest.MonkeyPatch) -> None:
    dataset = random_dataset(1, 500, 60)
    n, isolated = dataset.n_entities, np.array([[60, 0, 61]], np.int32)
    whole = (
        linked_pair_share(dataset.train, n),
        pairs_are_isolated(dataset.train[-1:], dataset.train, n),
        pairs_are_isolated(isolated, isolated[:0], 62),
    )
    monkeypatch.setattr(holdout, "_BLOCK", 7)
    assert whole == (
        linked_pair_share(dataset.train, n),
        pairs_are_isolated(dataset.train[-1:], dataset.train, n),
        True,
    )
    assert whole[1] is False


def test_a_last_round_should_hold_out_apart_where_valid_does_and_a_draw_would_not() -> None:
    dataset = random_dataset(0, 3000, 120)
    joined = linked_again(dataset.train, dataset.n_entities)
    own = replace(dataset, train=dataset.train[joined], valid=dataset.train[~joined])
    other = replace(dataset, train=dataset.train[200:], valid=dataset.train[:200])
    seldom = replace(dataset, train=dataset.train[~joined][50:], valid=dataset.train[~joined][:50])
    assert [SearchGraphs(d, make_settings({})).valid_pairs_isolated for d in (own, other, seldom)] == [
        True,
        False,
        False,
    ]
