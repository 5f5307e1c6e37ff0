"""Splits leave nothing unseen; sets of triples are exact. Both against plain Python."""

import logging

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from grash.data.arrays import TripleSet, select_rows
from grash.data.split import held_out_rows
from grash.errors import InputError

row = st.tuples(st.integers(0, 5), st.integers(0, 2), st.integers(0, 5))
graphs = st.lists(row, min_size=1, max_size=60).map(lambda rows: np.array(rows, np.int32))


def split_triples(triples, n_entities, n_relations, **options):
    """Return (train, valid, test)."""
    valid, test = held_out_rows(triples, n_entities, n_relations, **options)
    return np.delete(triples, np.concatenate((valid, test)), 0), triples[valid], triples[test]


def names_of(triples):
    return set(triples[:, [0, 2]].ravel().tolist()), set(triples[:, 1].tolist())


@settings(max_examples=200, deadline=None)
@given(graphs, st.integers(0, 20), st.integers(0, 20), st.integers(0, 5))
def test_a_split_keeps_every_triple_and_leaves_nothing_unseen(triples, valid, test, seed):
    parts = split_triples(triples, 6, 3, valid=valid, test=test, seed=seed)
    together = sorted(map(tuple, np.concatenate(parts).tolist()))
    assert together == sorted(map(tuple, triples.tolist()))
    assert names_of(parts[0]) == names_of(triples)
    assert len(parts[1]) <= valid
    assert len(parts[2]) <= test
    again = split_triples(triples, 6, 3, valid=valid, test=test, seed=seed)
    assert all(np.array_equal(a, b) for a, b in zip(parts, again))


@settings(max_examples=200, deadline=None)
@given(graphs, st.integers(0, 5))
def test_nothing_more_could_have_been_split_off(triples, seed):
    train, *_ = split_triples(triples, 6, 3, valid=100, test=100, seed=seed)
    for i in range(len(train)):
        assert names_of(np.delete(train, i, 0)) != names_of(train)


def test_sizes_are_exact_where_there_is_enough():
    random = np.random.default_rng(0)
    triples = np.stack([random.integers(0, n, 20_000) for n in (500, 7, 500)], 1).astype(np.int32)
    for valid, test in ((100, 200), (0, 5), (6000, 6000)):
        parts = split_triples(triples, 500, 7, valid=valid, test=test, seed=1)
        assert [len(p) for p in parts] == [20_000 - valid - test, valid, test]


def test_seeds_differ_and_every_triple_has_its_chance():
    triples = np.array([(i, 0, (i + k) % 50) for k in range(1, 11) for i in range(50)], np.int32)
    counts = np.zeros(500)
    for seed in range(400):
        _, valid, _ = split_triples(triples, 50, 1, valid=25, test=0, seed=seed)
        counts[[(k - 1) % 50 * 50 + h for h, _, t in valid.tolist() for k in [(t - h) % 50]]] += 1
    assert counts.sum() == 400 * 25
    assert counts.min() > 2  # 20 expected, standard deviation 4.4
    assert counts.max() < 45


def test_a_shortfall_is_shared_and_logged(caplog):
    triples = np.array([(0, 0, 1), (0, 0, 2), (1, 0, 2), (0, 0, 3), (1, 0, 3), (2, 0, 3)], np.int32)
    with caplog.at_level(logging.WARNING):
        parts = split_triples(triples, 4, 1, valid=10, test=10, seed=0)
    assert abs(len(parts[1]) - len(parts[2])) <= 1
    assert "could be split off" in caplog.text


def test_loops_count_once():
    loops = np.array([(0, 0, 0), (0, 1, 0), (0, 0, 1), (0, 1, 1)], np.int32)
    train, *_ = split_triples(loops, 2, 2, valid=4, test=0, seed=3)
    assert names_of(train) == ({0, 1}, {0, 1})


def test_marked_rows_stay():
    triples = np.array([(0, 0, 1)] * 5, np.int32)
    stay = np.array([True, True, False, False, True])
    train, valid, _ = split_triples(triples, 2, 1, valid=5, test=0, seed=0, keep=stay)
    assert (len(train), len(valid)) == (3, 2)


def test_negative_sizes_are_an_error():
    with pytest.raises(InputError, match="valid=-1"):
        split_triples(np.zeros((1, 3), np.int32), 1, 1, valid=-1, test=0, seed=0)


@settings(max_examples=200, deadline=None)
@given(graphs, graphs)
def test_a_set_of_triples_agrees_with_python(triples, others):
    seen, expected = set(), []
    for triple in map(tuple, triples.tolist()):
        expected.append(triple in seen)
        seen.add(triple)
    triple_set = TripleSet(triples)
    assert triple_set.repeated.tolist() == expected
    assert triple_set.n_repeated == sum(expected)
    assert triple_set.contains(others).tolist() == [tuple(t) in seen for t in others.tolist()]


def test_a_large_set_of_triples_agrees_with_numpy():
    random = np.random.default_rng(0)
    triples = np.stack([random.integers(0, n, 50_000) for n in (60, 5, 60)], 1).astype(np.int32)
    assert TripleSet(triples).n_repeated == len(triples) - len(np.unique(triples, axis=0))
    assert TripleSet(np.empty((0, 3), np.int32)).contains(triples[:5]).tolist() == [False] * 5


@given(graphs, st.randoms())
@settings(deadline=None)
def test_select_rows_is_boolean_indexing(triples, random):
    mask = np.array([random.random() < 0.5 for _ in triples])
    assert np.array_equal(select_rows(triples, mask), triples[mask])
