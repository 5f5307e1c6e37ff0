"""Triple samples and random walks: parts of train of the asked size, by the rules of each."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from grash.errors import InputError
from grash.reduction.cores import peel
from grash.reduction.sampling import cut_by_walk, kgtuner_walk, random_walks, sample_triples
from grash.reduction.subgraph import Holdout, core_order, cut, largest_part
from reduction.graphs import as_set, dataset_of, datasets, names_in, random_dataset
from reduction.test_subgraph import FRACTIONS, check_subgraph

METHODS = [sample_triples, random_walks, kgtuner_walk]


@settings(max_examples=100)
@given(datasets(min_triples=1), FRACTIONS, st.integers(0, 3), st.sampled_from(METHODS))
def test_each_method_returns_a_part_with_nothing_unseen(dataset, fraction, seed, method):
    try:
        subgraph = method(dataset, fraction, seed=seed)
    except InputError as error:
        assert "give a larger fraction" in str(error)
        return
    if subgraph.whole:
        return
    check_subgraph(dataset, subgraph)
    assert names_in(subgraph.full_ids("valid"))[0] <= names_in(subgraph.full_ids("train"))[0]
    if method is not kgtuner_walk:
        assert len(subgraph.dataset.train) <= fraction * len(dataset.train)


@pytest.mark.parametrize("method", [sample_triples, random_walks])
@pytest.mark.parametrize("fraction", [1 / 64, 1 / 8, 0.5, 0.8])
def test_the_target_is_met(method, fraction):
    dataset = random_dataset(0, 40_000, 3000)
    subgraph = method(dataset, fraction, seed=5)
    target = int(fraction * len(dataset.train))
    assert 0.99 * target <= len(subgraph.dataset.train) <= target


@pytest.mark.parametrize("method", METHODS)
def test_seeds_make_the_difference(method):
    dataset = random_dataset(0, 5000, 400)
    prints = [method(dataset, 0.2, seed=seed).dataset.fingerprint for seed in (1, 1, 2)]
    assert prints[0] == prints[1] != prints[2]


def test_larger_samples_contain_smaller_ones():
    dataset = random_dataset(0, 5000, 400)
    small, large = (sample_triples(dataset, f, seed=0, guarded=False) for f in (0.1, 0.3))
    parts = [as_set(s.full_ids("train")) | as_set(s.full_ids("valid")) for s in (small, large)]
    assert parts[0] < parts[1]


def test_one_walk_is_connected_and_of_its_length():
    dataset = random_dataset(0, 5000, 400)
    for seed in range(20):
        walk = random_walks(dataset, starts=1, length=12, seed=seed, guarded=False)
        triples = np.concatenate([walk.full_ids("train"), walk.full_ids("valid")])
        assert 1 <= len(triples) <= 12
        reached = set(triples[0, ::2].tolist())
        for _ in range(12):
            for head, _, tail in triples.tolist():
                if head in reached or tail in reached:
                    reached |= {head, tail}
        assert reached == names_in(triples)[0]


def test_steps_go_against_the_direction_of_triples_too():
    star = dataset_of([(i, 0, 0) for i in range(1, 50)], 50, 1)
    walk = random_walks(star, starts=3, length=40, seed=0)
    assert len(walk.dataset.train) > 10


def test_starts_and_steps_are_uniform():
    path = dataset_of([(0, 0, 1), (2, 0, 3)], 6, 1)  # 4 and 5 have no triple, so that no walk starts there
    counts = np.zeros(2)
    for seed in range(300):
        walk = random_walks(path, starts=1, length=1, seed=seed)
        counts[walk.entity_ids[0] // 2] += 1
    assert counts.min() > 110  # 150 expected, standard deviation 8.7


def test_kgtuner_takes_all_triples_among_its_share_of_entities():
    dataset = random_dataset(3, 6000, 800)
    for share in (0.1, 0.2, 0.5):
        walk = kgtuner_walk(dataset, share, seed=0)
        entities = set(walk.entity_ids.tolist())
        inside = {t for t in as_set(dataset.train) if t[0] in entities and t[2] in entities}
        assert as_set(walk.full_ids("train")) | as_set(walk.full_ids("valid")) == inside
        peopled = len(names_in(dataset.train)[0])
        assert 0.9 * share * peopled < len(entities) <= share * peopled + 1


def test_kgtuner_leaves_islands_that_are_used_up():
    pairs = dataset_of([(2 * i, 0, 2 * i + 1) for i in range(40)] + [(80, 0, 80)], 82, 1)
    assert kgtuner_walk(pairs, 0.5, seed=0).dataset.n_entities >= 30
    assert kgtuner_walk(pairs, 1.0, seed=0).whole


def visited_by_hand(triples, share, seed):
    """The entities on KGTuner's ten walks, step by step, and the number of walks and jumps that began."""
    neighbors = {}
    for head, _, tail in reversed(triples.tolist()):  # in which order `entity_adjacency` has them
        for one, other in ((tail, head), (head, tail)):
            found = neighbors.setdefault(one, [])
            if one != other and other not in found:
                found.append(other)
    peopled, draw = sorted(neighbors), np.random.default_rng(seed)
    visited, n_starts = set(), 0
    for walk in range(1, 11):
        here, steps, n_before, n_starts = peopled[draw.integers(0, len(peopled))], 0, len(visited), n_starts + 1
        while len(visited | {here}) < np.ceil(len(peopled) * share * walk / 10):
            visited.add(here)
            steps += 1
            if steps == 100 or not neighbors[here]:
                if len(visited) - n_before < 2 or not neighbors[here]:
                    here, n_starts = peopled[draw.integers(0, len(peopled))], n_starts + 1
                steps, n_before = 0, len(visited)
            else:
                here = neighbors[here][draw.integers(0, len(neighbors[here]))]
        visited.add(here)
    return visited, n_starts


SHARES = st.sampled_from([0.05, 0.2, 0.5, 0.9, 1.0])


@settings(max_examples=100)
@given(datasets(min_triples=1), SHARES, st.integers(0, 5))
def test_kgtuner_walks_as_by_hand_and_takes_what_is_among_the_visited(dataset, share, seed):
    visited, n_starts = visited_by_hand(dataset.train, share, seed)
    peopled = names_in(dataset.train)[0]
    assert np.ceil(share * len(peopled)) <= len(visited) <= np.ceil(share * len(peopled)) + n_starts
    inside = {t for t in as_set(dataset.train) if {t[0], t[2]} <= visited}
    try:
        walk = kgtuner_walk(dataset, share, seed=seed)
    except InputError:
        assert not inside
        return
    taken = dataset.train if walk.whole else np.concatenate([walk.full_ids("train"), walk.full_ids("valid")])
    assert as_set(taken) == inside


@settings(max_examples=100)
@given(datasets(min_triples=1), FRACTIONS, st.integers(0, 3), st.booleans())
def test_a_walk_for_a_search_has_a_number_of_triples(dataset, fraction, seed, isolated):
    try:
        one, two = (cut_by_walk(dataset, fraction, Holdout(seed, isolated=isolated)) for _ in range(2))
    except InputError as error:
        assert "give a larger fraction" in str(error)
        return
    assert one.dataset.fingerprint == two.dataset.fingerprint
    order = core_order(dataset, peel(dataset.train, dataset.n_entities))
    part = largest_part(dataset, order.entry, order.n_triples, fraction, Holdout(seed, isolated=isolated))
    assert one.whole == (part is None)
    if one.whole:
        return
    check_subgraph(dataset, one)
    assert 0 < len(one.dataset.train) <= fraction * len(dataset.train) and one.k is None
    inside = {t for t in as_set(dataset.train) if {t[0], t[2]} <= set(one.entity_ids.tolist())}
    assert as_set(one.full_ids("train")) | as_set(one.full_ids("valid")) == inside


def test_walks_for_a_search_nearly_meet_their_target_and_keep_what_was_trained():
    dataset = random_dataset(0, 40_000, 3000)
    for fraction in (1 / 64, 1 / 8, 0.5):
        walk = cut_by_walk(dataset, fraction, Holdout(5))
        assert 0.85 * fraction < walk.fraction <= fraction
    before = walk.full_ids("valid")[:500]  # seen by an earlier round
    again = cut_by_walk(dataset, 0.5, Holdout(5, before=before))
    assert not as_set(again.full_ids("valid")) & as_set(before)


def test_a_walk_for_a_search_is_the_whole_graph_where_the_core_order_is():
    dataset = random_dataset(0, 5000, 400)
    dataset = replace(dataset, valid=dataset.train[:100])
    peeling = peel(dataset.train, dataset.n_entities)
    for fraction in (0.79, 0.81, 0.9, 0.99):
        walk, prefix = cut_by_walk(dataset, fraction, Holdout(5)), cut(dataset, peeling, fraction, seed=5)
        assert walk.whole == prefix.whole == (fraction > 0.8)  # 80 % is what is left without a validation part
        if walk.whole:
            assert walk.dataset.train is dataset.train and walk.dataset.valid is dataset.valid


@pytest.mark.parametrize(
    ("call", "sentence"),
    [
        (lambda d: random_walks(d, seed=0), "either a fraction or a number of starts"),
        (lambda d: random_walks(d, 0.5, starts=3, seed=0), "either a fraction or a number of starts"),
        (lambda d: random_walks(d, 0.5, length=0, seed=0), "give 1 or more of each"),
        (lambda d: kgtuner_walk(d, 1.5, seed=0), "give a number above 0, up to 1"),
        (lambda d: cut_by_walk(d, 0.0001, Holdout(0)), "No walk leaves 0 triples of unnamed or fewer: give a larger"),
        (lambda d: sample_triples(d, 0.0001, seed=0), "leaves none to train on: give a larger fraction"),
    ],
)
def test_what_cannot_be_is_said(call, sentence):
    with pytest.raises(InputError, match=sentence):
        call(random_dataset(0, 200, 40))


def test_a_walk_that_cannot_reach_its_target_says_so(caplog, monkeypatch):
    monkeypatch.setattr("grash.reduction.sampling._STEPS_PER_TRIPLE", 1)
    dataset = random_dataset(0, 3000, 400)
    walk = random_walks(dataset, 0.7, seed=0)
    assert "The walks found" in caplog.text
    assert walk.fraction < 0.7
