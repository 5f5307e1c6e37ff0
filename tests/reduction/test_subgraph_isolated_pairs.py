"""Isolated pairs: held-out triples whose two entities no other triple links, as in the valid split of some datasets."""

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
from grash.reduction.subgraph import Holdout, cut, hold_out, linked_again, linked_pair_share, pairs_are_isolated
from grash.search.graphs import SearchGraphs
from grash.search.settings import make_settings
from reduction.graphs import as_set, datasets, random_dataset


def pair(row: np.ndarray) -> frozenset[int]:
    return frozenset((int(row[0]), int(row[2])))


def pairs(triples: np.ndarray) -> Counter[frozenset[int]]:
    return Counter(pair(row) for row in triples)


@given(datasets())
def test_linked_rows_are_those_whose_entities_occur_together_again(dataset: Dataset) -> None:
    counts = pairs(dataset.train)
    assert linked_again(dataset.train, dataset.n_entities).tolist() == [counts[pair(r)] > 1 for r in dataset.train]


@given(datasets(), datasets())
def test_valid_has_isolated_pairs_if_it_shares_no_pair_with_train(one: Dataset, other: Dataset) -> None:
    n = max(one.n_entities, other.n_entities)
    assert pairs_are_isolated(one.train, other.train, n) is not bool(
        pairs(one.train).keys() & pairs(other.train).keys()
    )


@given(datasets(min_triples=10), st.booleans(), st.integers(0, 9))
def test_held_out_isolated_pairs_are_linked_by_no_other_triple(dataset: Dataset, guarded: bool, seed: int) -> None:
    part = hold_out(dataset.train, dataset.n_entities, dataset.n_relations, Holdout(seed, guarded, isolated=True))
    assert as_set(part.train) | as_set(part.valid) == as_set(dataset.train) and len(part) == len(dataset.train)
    counts = pairs(dataset.train)
    assert all(counts[pair(row)] == 1 for row in part.valid)
    again = hold_out(dataset.train, dataset.n_entities, dataset.n_relations, Holdout(seed, guarded, isolated=True))
    assert np.array_equal(part.valid, again.valid)


def test_a_graph_without_isolated_pairs_holds_out_nothing() -> None:
    rows = np.array([(h, r, t) for h in range(5) for t in range(5, 10) for r in (0, 1)], np.int32)
    assert (
        len(hold_out(rows, 10, 2, Holdout(0, isolated=True)).valid) == 0 < len(hold_out(rows, 10, 2, Holdout(0)).valid)
    )


@pytest.mark.parametrize("reduction", ["core-order", "k-core"])
def test_a_subgraph_stays_below_its_fraction(reduction: str) -> None:
    dataset = random_dataset(0, 3000, 120)
    peeling = peel(dataset.train, dataset.n_entities)
    usual, isolated = (cut(dataset, peeling, 0.5, seed=0, reduction=reduction, isolated=a) for a in (False, True))  # type: ignore[arg-type]
    for found, expected in ((usual, False), (isolated, True)):
        data = found.dataset
        assert (
            len(data.train) <= 1500
            and len(data.valid)
            and pairs_are_isolated(data.valid, data.train, data.n_entities) is expected
        )
    assert (
        "isolated" not in usual.dataset.provenance["reduction"] and isolated.dataset.provenance["reduction"]["isolated"]
    )


@given(datasets(), st.sampled_from([1, 2, 3, 10_000]))
def test_the_linked_share_is_that_of_evenly_spaced_rows(dataset: Dataset, most: int) -> None:
    linked = linked_again(dataset.train, dataset.n_entities)[:: max(1, -(-len(dataset.train) // most))]
    assert linked_pair_share(dataset.train, dataset.n_entities, most) == (linked.mean() if len(linked) else 0.0)


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


def test_a_last_round_holds_out_isolated_pairs_where_valid_does_and_a_draw_would_not() -> None:
    dataset = random_dataset(0, 3000, 120)
    linked = linked_again(dataset.train, dataset.n_entities)
    own = replace(dataset, train=dataset.train[linked], valid=dataset.train[~linked])
    other = replace(dataset, train=dataset.train[200:], valid=dataset.train[:200])
    rare = replace(dataset, train=dataset.train[~linked][50:], valid=dataset.train[~linked][:50])
    assert [SearchGraphs(d, make_settings({})).valid_pairs_isolated for d in (own, other, rare)] == [
        True,
        False,
        False,
    ]
