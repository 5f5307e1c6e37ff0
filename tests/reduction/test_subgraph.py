"""Subgraphs by core order and by k-cores: nested, of the exact size, split without loss, mapped back."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from grash.data.dataset import Dataset
from grash.data.vocabulary import Vocabulary
from grash.errors import InputError
from grash.reduction.cores import Peeling, peel
from grash.reduction.subgraph import (
    Holdout,
    Subgraph,
    core_order,
    cut,
    hold_out,
    holdout_size,
    max_train_triples,
    max_triples,
    occurring_counts,
    smallest_fraction,
    smallest_prefix,
)
from reduction.graphs import as_set, dataset_of, datasets, names_in, random_dataset

DEGREES = st.sampled_from(["neighbors", "triples"])
FRACTIONS = st.fractions(Fraction(1, 50), Fraction(49, 50), max_denominator=60)


def peeled(dataset: Dataset, degree: str = "neighbors") -> Peeling:
    return peel(dataset.train, dataset.n_entities, degree)


def cut_or_none(*arguments, **options) -> Subgraph | None:
    try:
        return cut(*arguments, **options)
    except InputError as error:
        assert "give a larger fraction" in str(error)
        return None


def prefix(dataset: Dataset, peeling: Peeling, p: int) -> np.ndarray:
    """By the definition: the train triples among the last p entities of the peel order."""
    kept = set(peeling.order[len(peeling.order) - p :].tolist())
    return np.array([row for row in dataset.train.tolist() if row[0] in kept and row[2] in kept], np.int32).reshape(
        -1, 3
    )


def n_train_of(dataset: Dataset, peeling: Peeling, p: int, holdout: Holdout) -> int:
    part = hold_out(prefix(dataset, peeling, p), dataset.n_entities, dataset.n_relations, holdout)
    return len(part.train)


def check_subgraph(dataset: Dataset, subgraph: Subgraph) -> None:
    """It is a part of train, relabeled to the ids that occur, ascending."""
    train, valid = subgraph.full_ids("train"), subgraph.full_ids("valid")
    together = np.concatenate([train, valid])
    remaining = dataset.train.tolist()
    for row in together.tolist():
        remaining.remove(row)
    entities, relations = names_in(together)
    assert subgraph.entity_ids.tolist() == sorted(entities)
    assert subgraph.relation_ids.tolist() == sorted(relations)
    assert subgraph.entity_ids.dtype == subgraph.relation_ids.dtype == np.int32
    assert (subgraph.dataset.n_entities, subgraph.dataset.n_relations) == (len(entities), len(relations))
    assert len(subgraph.dataset.test) == 0
    assert subgraph.fraction == len(train) / len(dataset.train)


@settings(max_examples=150)
@given(datasets(), DEGREES)
def test_prefixes_are_nested_and_have_all_triples_among_their_entities(dataset, degree):
    order = core_order(dataset, peeled(dataset, degree))
    n_entities, n_relations = occurring_counts(order, dataset)
    before = np.zeros(len(dataset.train), bool)
    for p in range(dataset.n_entities + 1):
        inside = order.entry <= p
        assert (before <= inside).all()
        triples = prefix(dataset, order.peeling, p)
        assert np.array_equal(dataset.train[inside], triples)
        assert order.n_triples[p] == len(triples)
        entities, relations = names_in(triples)
        assert (n_entities[p], n_relations[p]) == (len(entities), len(relations))
        before = inside
    for n in range(dataset.n_entities + 2):
        assert smallest_prefix(order, dataset, n) == np.searchsorted(n_entities, n)


@pytest.mark.slow
@settings(max_examples=300)
@given(datasets(min_triples=1), FRACTIONS, DEGREES, st.integers(0, 3), st.booleans())
def test_one_more_entity_would_exceed_the_target(dataset, fraction, degree, seed, guarded):
    peeling, holdout = peeled(dataset, degree), Holdout(seed, guarded)
    target, n = fraction * len(dataset.train), dataset.n_entities
    subgraph = cut_or_none(dataset, peeling, fraction, seed=seed, guarded=guarded)
    if subgraph is not None and subgraph.whole:
        assert n_train_of(dataset, peeling, n, holdout) <= target
        return
    size = 0 if subgraph is None else len(subgraph.dataset.train) + len(subgraph.dataset.valid)
    prefixes = [p for p in range(n + 1) if len(prefix(dataset, peeling, p)) == size]
    assert prefixes
    assert n_train_of(dataset, peeling, prefixes[-1], holdout) <= target
    assert n_train_of(dataset, peeling, prefixes[-1] + 1, holdout) > target
    if subgraph is None:
        return
    check_subgraph(dataset, subgraph)
    assert as_set(subgraph.full_ids("train")) | as_set(subgraph.full_ids("valid")) == as_set(
        prefix(dataset, peeling, prefixes[0])
    )
    assert subgraph.k == peeling.core_numbers()[peeling.order[n - prefixes[0]]]


@settings(max_examples=200)
@given(datasets(min_triples=1), FRACTIONS, DEGREES, st.integers(0, 3))
def test_k_core_takes_the_largest_core_that_fits(dataset, fraction, degree, seed):
    peeling, holdout = peeled(dataset, degree), Holdout(seed)
    sizes = {k: dataset.n_entities - int(peeling.core_starts[k]) for k in range(peeling.k_max + 1)}
    target = fraction * len(dataset.train)
    fitting = [k for k in sizes if n_train_of(dataset, peeling, sizes[k], holdout) <= target]
    subgraph = cut_or_none(dataset, peeling, fraction, seed=seed, reduction="k-core")
    if subgraph is None:
        assert not [k for k in fitting if len(prefix(dataset, peeling, sizes[k]))]
    elif subgraph.whole:
        assert 0 in fitting
    elif subgraph.fell_back:
        assert not [k for k in fitting if len(prefix(dataset, peeling, sizes[k]))]
        prefix_cut = cut(dataset, peeling, fraction, seed=seed)
        assert np.array_equal(prefix_cut.full_ids("train"), subgraph.full_ids("train"))
    else:
        core = prefix(dataset, peeling, sizes[subgraph.k])
        assert as_set(core) == as_set(subgraph.full_ids("train")) | as_set(subgraph.full_ids("valid"))
        assert subgraph.k in fitting
        larger = [k for k in sizes if k < subgraph.k and len(prefix(dataset, peeling, sizes[k])) > len(core)]
        assert not larger or max(larger) not in fitting


@settings(max_examples=200)
@given(datasets(min_triples=1), FRACTIONS, st.integers(0, 3))
def test_no_entity_or_relation_is_left_without_a_train_triple(dataset, fraction, seed):
    subgraph = cut_or_none(dataset, peeled(dataset), fraction, seed=seed)
    assume(subgraph is not None)
    train, valid = subgraph.full_ids("train"), subgraph.full_ids("valid")
    assert names_in(np.concatenate([train, valid])) == names_in(train)
    wanted = holdout_size(len(train) + len(valid))
    if not subgraph.whole and len(valid) < wanted:  # then no further triple could have been held out
        for row in range(len(train)):
            assert names_in(np.delete(train, row, 0)) != names_in(train)


@settings(max_examples=100)
@given(datasets(min_triples=5), FRACTIONS, st.integers(0, 3), st.data())
def test_what_was_trained_on_before_stays_in_train(dataset, fraction, seed, data):
    rows = data.draw(st.lists(st.sampled_from(dataset.train.tolist()), max_size=20))
    before = np.array(rows, np.int32).reshape(-1, 3)
    for guarded in (True, False):
        subgraph = cut_or_none(dataset, peeled(dataset), fraction, seed=seed, train_before=before, guarded=guarded)
        if subgraph is not None:
            assert not as_set(subgraph.full_ids("valid")) & as_set(before)
            assert len(subgraph.dataset.train) <= fraction * len(dataset.train) or subgraph.whole


def test_the_same_seed_gives_the_same_subgraph_and_another_one_another_split():
    dataset = random_dataset(0, 8000, 900)
    peeling = peeled(dataset)
    first, again, other = (cut(dataset, peeling, 0.25, seed=seed) for seed in (0, 0, 1))
    assert first.dataset.fingerprint == again.dataset.fingerprint
    assert np.array_equal(first.entity_ids, other.entity_ids)
    assert not np.array_equal(first.dataset.valid, other.dataset.valid)


def test_fractions_give_nested_subgraphs_close_to_the_target():
    dataset = random_dataset(1, 60_000, 5000)
    order = core_order(dataset, peeled(dataset))
    before: set = set()
    for fraction in (1 / 64, 1 / 16, 1 / 4, 1 / 2):
        subgraph = cut(dataset, order.peeling, fraction, seed=0, order=order)
        triples = as_set(subgraph.full_ids("train")) | as_set(subgraph.full_ids("valid"))
        assert before < triples
        assert 0.98 * fraction < subgraph.fraction <= fraction
        before = triples


def test_the_guard_makes_the_prefix_shorter_where_little_can_be_held_out():
    star = dataset_of([(i, 0, 0) for i in range(1, 400)], 400, 1)  # no triple can be spared
    subgraph, plain = (cut(star, peeled(star), 0.5, seed=0, guarded=guarded) for guarded in (True, False))
    assert (len(subgraph.dataset.train), len(subgraph.dataset.valid)) == (199, 0)
    assert (len(plain.dataset.train), len(plain.dataset.valid)) == (199, 50)


def test_valid_and_test_of_the_full_graph_never_enter_a_part():
    rows = random_dataset(2, 3000, 300).train
    dataset = Dataset(
        np.ascontiguousarray(rows[200:]), np.ascontiguousarray(rows[:100]), np.ascontiguousarray(rows[100:200]), 300, 5
    )
    subgraph = cut(dataset, peeled(dataset), 0.4, seed=0)
    inside = as_set(subgraph.full_ids("train")) | as_set(subgraph.full_ids("valid"))
    assert inside <= as_set(dataset.train)
    whole = cut(dataset, peeled(dataset), 1.0, seed=0)
    assert whole.whole and whole.fraction == 1.0
    assert whole.dataset.train is dataset.train and whole.dataset.valid is dataset.valid
    assert len(whole.dataset.test) == 0
    assert whole.entity_ids.tolist() == list(range(300))
    assert cut(dataset, peeled(dataset), 0.85, seed=0).whole  # 80 % is what is left of all without a validation part


def test_a_whole_graph_without_a_valid_split_is_split():
    dataset = random_dataset(2, 3000, 300)
    whole = cut(dataset, peeled(dataset), 1.0, seed=0)
    assert whole.whole and len(whole.dataset.valid) == holdout_size(len(dataset.train))
    assert len(whole.dataset.train) + len(whole.dataset.valid) == len(dataset.train)
    assert names_in(whole.dataset.train) == names_in(dataset.train)
    assert cut(dataset, peeled(dataset), 1.0, seed=0).dataset.fingerprint == whole.dataset.fingerprint


def test_small_and_odd_graphs_have_an_answer():
    empty = dataset_of([], 3, 1)
    assert cut(empty, peeled(empty), 0.5, seed=0).whole
    one = dataset_of([(0, 0, 1)], 3, 1)
    assert cut(one, peeled(one), 1.0, seed=0).whole
    with pytest.raises(InputError, match="0.5 of 1 triples leaves none to train on"):
        cut(one, peeled(one), 0.5, seed=0)
    loops = dataset_of([(e, 0, e) for e in range(10)], 12, 1)
    for degree in ("neighbors", "triples"):
        subgraph = cut(loops, peeled(loops, degree), 0.5, seed=0)
        assert len(subgraph.dataset.train) == 5 and subgraph.dataset.n_entities == 5
    with pytest.raises(InputError, match="has 12 entities and the dataset 3"):
        cut(one, peeled(loops), 0.5, seed=0)


@pytest.mark.parametrize("fraction", [0.0, -1.0, float("nan"), float("inf")])
def test_an_impossible_fraction_is_refused(fraction):
    with pytest.raises(InputError, match="give a number above 0, up to 1"):
        max_train_triples(fraction, 10)


def test_targets_are_exact():
    assert [max_train_triples(f, 10) for f in (0.3, 0.7, 0.29, Fraction(3, 10), 1.0, 2.0)] == [3, 7, 2, 3, 10, 10]
    assert max_train_triples(0.57, 100) == 57  # although 0.57 * 100 is 56.99999999999999
    assert max_train_triples(1 / 3, 3) == 1
    assert max_train_triples(1 / 64, 272_115) == 4251
    assert max_train_triples(0.5, 0) == 0


@given(st.integers(1, 10**7), st.integers(1, 10**9))
def test_a_float_made_from_counts_is_read_as_these_counts(part, n):
    assume(part < n)
    assert max_train_triples(part / n, n) == part


@given(st.integers(0, 100_000))
def test_the_most_triples_that_could_fit_a_target(target):
    size = max_triples(target)
    assert size - holdout_size(size) <= target < size + 1 - holdout_size(size + 1)


@given(st.integers(0, 100_000))
def test_a_fifth_is_held_out_up_to_5000(n):
    assert holdout_size(n) == min(round(Fraction(n, 5)), 5000)


@settings(max_examples=100)
@given(datasets(min_triples=1), st.integers(0, 14), st.integers(0, 8))
def test_the_smallest_fraction_is_the_smallest(dataset, n_entities, n_valid):
    peeling = peeled(dataset)
    fraction = smallest_fraction(dataset, core_order(dataset, peeling), n_entities=n_entities, n_valid=n_valid)
    order, n = core_order(dataset, peeling), len(dataset.train)
    entities = occurring_counts(order, dataset)[0]
    good = [
        p
        for p in range(dataset.n_entities + 1)
        if entities[p] >= n_entities and holdout_size(int(order.n_triples[p])) >= n_valid and order.n_triples[p] < n
    ]
    if not good:
        assert fraction == 1.0
        return
    size = int(order.n_triples[good[0]])
    assert fraction == max(1, size - holdout_size(size)) / n
    if not (n_entities or n_valid):  # the empty prefix is enough, and no subgraph has its size
        return
    found = cut(dataset, peeling, fraction, seed=0, guarded=False)
    assert found.dataset.n_entities >= n_entities and (len(found.dataset.valid) >= n_valid or found.whole)


def test_names_follow_the_ids():
    rows = random_dataset(4, 2000, 200).train.tolist()
    vocabularies = {
        "entities": Vocabulary.from_names((f"entity ä{i}" for i in range(200)), kind="entity"),
        "relations": Vocabulary.from_names((f"r{i}" for i in range(5)), kind="relation"),
    }
    dataset = dataset_of(rows, 200, 5, **vocabularies, name="g")
    assert cut(dataset, peeled(dataset), 0.3, seed=0).dataset.entities is None
    small = cut(dataset, peeled(dataset), 0.3, seed=0, names=True)
    entities, relations = small.dataset.entities, small.dataset.relations
    assert list(entities) == [f"entity ä{i}" for i in small.entity_ids.tolist()]
    assert list(relations) == [f"r{i}" for i in small.relation_ids.tolist()]
    assert entities.id(f"entity ä{small.entity_ids[3]}") == 3 and entities.kind == "entity"
    assert small.dataset.name == "g-0.3"
    assert small.dataset.provenance["reduction"]["reduction"] == "core-order"
