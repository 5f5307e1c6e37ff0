"""Graphs that change: ids stay, the split stays, and every count is exact."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import grash
from grash.data.dataset import SPLITS
from grash.data.growth import grow
from grash.errors import InputError

OLD = [("a", "likes", "b"), ("b", "likes", "c"), ("c", "knows", "a"), ("a", "knows", "c")]


def graph(train, valid=None, test=None):
    return grash.from_triples(train, valid, test, n_valid=0, n_test=0)


def named(dataset, split):
    e, r = dataset.entities, dataset.relations
    return {(e.name(h), r.name(i), e.name(t)) for h, i, t in dataset.split(split).tolist()}


def test_known_names_keep_their_ids_and_new_ones_come_after():
    old = graph(OLD)
    found = grow(old, graph([("z", "likes", "a"), ("a", "sees", "y")]))
    assert list(found.dataset.entities) == [*old.entities, "z", "y"]
    assert list(found.dataset.relations) == [*old.relations, "sees"]
    assert np.array_equal(found.dataset.train[: len(OLD)], old.train)
    assert (found.diff.n_new_entities, found.diff.n_new_relations, found.diff.n_added) == (2, 1, 2)
    assert found.diff.new_relations == ("sees",)


def test_held_out_triples_stay_held_out():
    old = graph(OLD, [("b", "knows", "a")], [("c", "likes", "a")])
    given = [("b", "knows", "a"), ("c", "likes", "a"), ("a", "likes", "b"), ("a", "likes", "c")]
    found = grow(old, graph(given))
    assert named(found.dataset, "train") == {*OLD, ("a", "likes", "c")}
    assert found.diff.n_held_out == 2 and found.diff.n_known == 1 and found.diff.n_added == 1
    assert named(found.dataset, "test") == {("c", "likes", "a")}


def test_splits_of_a_folder_are_added_to_these_splits():
    found = grow(graph(OLD, [("b", "knows", "a")]), graph([("a", "likes", "c")], [("c", "likes", "b")]))
    assert named(found.dataset, "valid") == {("b", "knows", "a"), ("c", "likes", "b")}
    assert found.diff.n_added_valid == 1


def test_names_of_an_export_to_ntriples_are_known_names():
    strange = [
        ("New York", "lies in", "<b>"),
        ("100 %", "is", '\u00e9"x'),
        ("_:b", "_:r", "a:b"),
        ("x", "lies in", "a:b"),
    ]
    old = graph(strange)
    given = [
        ("urn:entity:New%20York", "urn:relation:lies%20in", "urn:entity:100%20%25"),
        ("a:b", "urn:relation:is", "x"),
    ]
    given += [("urn:entity:%C3%A9%22x", "urn:relation:_%3Ar", "urn:entity:%3Cb%3E"), ("urn:entity:%FF", "is", "x")]
    found = grow(old, graph(given), removed=graph([("urn:entity:x", "urn:relation:lies%20in", "a:b")]))
    assert list(found.dataset.entities) == [*old.entities, "urn:entity:%FF"]
    assert list(found.dataset.relations) == list(old.relations)
    assert ("New York", "lies in", "100 %") in named(found.dataset, "train") and found.diff.n_removed == 1


def test_triples_can_be_removed():
    found = grow(graph(OLD), removed=graph([OLD[0], ("x", "likes", "y")]))
    assert named(found.dataset, "train") == set(OLD[1:])
    assert (found.diff.n_removed, found.diff.n_not_found) == (1, 1)
    assert "Removed triples: 1. To be removed, but not in the graph: 1." in found.diff.sentences()
    assert "Removed triples: 1." in grow(graph(OLD), removed=graph([OLD[0]])).diff.sentences()
    assert found.dataset.n_entities == 3


@pytest.mark.parametrize(
    ("added", "removed", "sentence"),
    [
        ([OLD[0]], None, "The triple of 'unnamed' is in 'unnamed' already: nothing to update"),
        (OLD[:2], None, "All 2 triples of 'unnamed' are in 'unnamed' already: nothing to update"),
        (None, [("x", "likes", "y")], "The triple to remove is not in 'unnamed': there is nothing to update"),
        (None, [("x", "likes", "y"), ("y", "likes", "z")], "None of the 2 triples to remove is in 'unnamed'"),
        (None, OLD, "Every triple of train would be removed"),
        (None, None, "Nothing is given"),
    ],
)
def test_an_update_that_changes_nothing_is_a_sentence(added, removed, sentence):
    with pytest.raises(InputError, match=sentence):
        grow(graph(OLD), *(None if g is None else graph(g) for g in (added, removed)))


def test_a_triple_cannot_be_added_and_removed_at_once_which_would_move_it_from_test_to_train():
    old, held = graph(OLD, None, [("c", "likes", "a")]), graph([("c", "likes", "a"), ("b", "likes", "c")])
    with pytest.raises(InputError, match="1 triple of .* is both added and removed: take it out of one of the two"):
        grow(old, graph([("c", "likes", "a"), ("a", "likes", "c")]), graph([("c", "likes", "a")]))
    with pytest.raises(InputError, match="2 triples of .* are both added and removed: take them out"):
        grow(old, held, held)
    found = grow(old, graph([("a", "likes", "z")]), graph([("a", "likes", "y")]))  # z and y have the same new id
    assert (found.diff.n_added, found.diff.n_removed, found.diff.n_not_found) == (1, 0, 1)


def test_a_triple_that_is_held_out_is_named_so():
    with pytest.raises(InputError, match="The triple of 'unnamed' is in 'unnamed' already, in valid or test: nothing"):
        grow(graph(OLD[1:], OLD[:1]), graph(OLD[:1]))


def test_graphs_without_names_are_matched_by_id():
    old = grash.from_triples(np.array([[0, 0, 1], [1, 0, 2]]), ids=True, n_valid=0, n_test=0)
    found = grow(old, grash.from_triples(np.array([[4, 1, 0]]), ids=True, n_valid=0, n_test=0))
    assert (found.dataset.n_entities, found.dataset.n_relations) == (5, 2)
    with pytest.raises(InputError, match="has no names"):
        grow(old, graph(OLD))


_TRIPLE = st.tuples(st.sampled_from("abcdef"), st.sampled_from("rs"), st.sampled_from("abcdef"))


@settings(max_examples=60, deadline=None)
@given(st.lists(_TRIPLE, min_size=1, unique=True), st.lists(_TRIPLE, unique=True), st.lists(_TRIPLE, min_size=1))
def test_growing_is_set_arithmetic(train, valid, new):
    valid = [row for row in valid if row not in train]
    old = graph(train, valid or None)
    expected = (set(train) | set(new)) - set(valid)
    if expected == set(train):
        with pytest.raises(InputError, match="nothing to update"):
            grow(old, graph(new))
        return
    found = grow(old, graph(new))
    assert named(found.dataset, "train") == expected and named(found.dataset, "valid") == set(valid)
    assert found.diff.n_added == len(expected) - len(train)
    for split in SPLITS:
        assert np.array_equal(found.dataset.split(split)[: len(old.split(split))], old.split(split))
