"""describe and leakage: worked by hand on small graphs, and against plain loops over sets."""

import json
from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from grash.data import leakage as leakage_module
from grash.data import profile as describe_module
from grash.data.dataset import Dataset
from grash.data.known_answers import CARDINALITIES, relation_cardinalities
from grash.data.leakage import find_leakage
from grash.data.load import load_dataset, prepare
from grash.data.profile import describe, similar_name_warnings
from grash.data.vocabulary import Vocabulary


def ids(rows) -> np.ndarray:
    return np.array(list(rows), dtype=np.int32).reshape(-1, 3)


def dataset(train=(), valid=(), test=(), *, n_entities=10, n_relations=3, **more) -> Dataset:
    return Dataset(ids(train), ids(valid), ids(test), n_entities, n_relations, **more)


# Six people: 0 is the parent of 1 and 2, 1 of 3. Relations: parent_of, child_of, likes.
PARENT, CHILD, LIKES = 0, 1, 2
FAMILY = dataset(
    train=[
        (0, PARENT, 1), (0, PARENT, 2), (1, PARENT, 3), (0, PARENT, 2),  # the last one twice
        (1, CHILD, 0), (2, CHILD, 0),
        (4, LIKES, 0), (4, LIKES, 4), (0, LIKES, 4), (4, LIKES, 1),
    ],
    valid=[(0, PARENT, 1)],
    test=[(3, CHILD, 1), (1, LIKES, 4), (5, LIKES, 0)],
    n_entities=7,
    relations=Vocabulary.from_names(["parent_of", "child_of", "likes"], kind="relation"),
    name="family",
)  # fmt: skip


def test_counts_per_split_by_hand():
    splits = describe(FAMILY).splits
    assert (splits["train"].triples, splits["train"].duplicates) == (10, 1)
    assert (splits["train"].entities, splits["train"].relations) == (5, 3)
    assert (splits["valid"].triples, splits["valid"].unseen_triples) == (1, 0)
    assert (splits["test"].unseen_entities, splits["test"].unseen_relations) == (1, 0)
    assert splits["test"].unseen_triples == 1


def test_degrees_by_hand():
    # train triples of 0: 3 parent (one repeated), 2 child, 2 likes; 4 likes itself, which counts once
    degrees = describe(FAMILY).degrees
    assert degrees.quantiles["100 %"] == 7
    assert degrees.quantiles["0 %"] == 1
    assert degrees.with_one_triple == 1
    assert degrees.not_in_train == 2
    assert degrees.unused == 1
    assert degrees.mean == pytest.approx((7 + 4 + 3 + 1 + 4) / 5)


def test_relations_by_hand():
    parent, child, likes = describe(FAMILY).relations
    assert (parent.name, parent.triples) == ("parent_of", {"train": 4, "valid": 1, "test": 0})
    assert (parent.heads, parent.tails, parent.tails_per_head, parent.heads_per_tail) == (2, 3, 1.5, 1.0)
    assert (parent.cardinality, child.cardinality) == ("1-N", "N-1")
    assert (parent.symmetry, parent.loops) == (0.0, 0.0)
    assert likes.loops == 0.25
    assert likes.symmetry == pytest.approx(4 / 5)  # 4-0 and 4-1 hold both ways over all splits, 5-0 does not


def test_leakage_by_hand():
    leakage = describe(FAMILY).leakage
    (twins,) = leakage.twins
    assert (twins.first, twins.second, twins.kind) == (PARENT, CHILD, "inverse")
    assert (twins.overlap, twins.share_of_first, twins.share_of_second) == (3, 1.0, 1.0)
    assert (leakage.test.inverse, leakage.test.either, leakage.test.duplicate) == (1, 1, 0)
    assert leakage.test.symmetric == 1
    assert (leakage.valid.in_train, leakage.valid.inverse) == (1, 1)


def test_warnings_say_what_is_wrong():
    text = "\n".join(describe(FAMILY).warnings)
    assert "1 of the 10 triples of train are duplicates" in text
    assert "1 entities of test are not in train" in text
    assert "parent_of / child_of" in text
    assert "1 valid triples (100.0%) are also in train" in text
    assert "33.3% of the test triples are in train in the reverse direction" in text


def test_what_valid_shares_with_test_is_said():
    profile = describe(dataset([(0, 0, 1)], [(1, 0, 2), (2, 0, 3)], [(1, 0, 2), (3, 0, 0)]))
    assert profile.leakage.valid_in_test == 1
    assert "1 of 2 valid triples are also in test." in profile.warnings


def test_what_reading_dropped_and_split_off_is_part_of_the_profile(tmp_path):
    rows = [f"e{i}\tr\te{j}\n" for i in range(8) for j in range(8)]
    (tmp_path / "g.tsv").write_text("".join(rows + rows[:5]))
    prepare(tmp_path / "g.tsv", tmp_path / "out", n_valid=3, n_test=2)
    for source, options in ((tmp_path / "g.tsv", {"n_valid": 3, "n_test": 2}), (tmp_path / "out", {})):
        reading = describe(load_dataset(source, **options)).to_dict()["reading"]
        assert (reading["duplicates_dropped"], reading["split_off"], reading["split_seed"]) == (
            5, {"valid": 3, "test": 2}, 0,
        )  # fmt: skip
        assert reading["read_as"]["train"]["separator"] == "tabs"
    assert describe(load_dataset(tmp_path / "g.tsv", duplicates="keep")).reading.duplicates_dropped == 0
    assert describe(FAMILY).reading is None


def test_names_that_are_almost_the_same_are_quoted():
    relations = ["knows", "knows ", "Likes", "likes", "caf\u00e9", "cafe\u0301", "x", "owns", "OWNS "]
    found = similar_name_warnings("relations", relations)
    assert found == [
        "2 relations differ only in surrounding spaces: 'knows', 'knows '.",
        "2 relations differ only in letter case: 'Likes', 'likes'.",
        "2 relations differ only in Unicode normal form: 'caf\u00e9', 'cafe\\u0301'.",
        "2 relations differ only in surrounding spaces, Unicode normal form or letter case: 'owns', 'OWNS '.",
    ]
    assert similar_name_warnings("entities", ["a", "a ", "A"]) == [
        "3 entities differ only in surrounding spaces and letter case: 'a', 'a ', 'A'."
    ]
    assert similar_name_warnings("entities", [f"e{i}" for i in range(100)] + ["e1"]) == []
    many = similar_name_warnings("entities", [f"{c}{i}" for i in range(10) for c in "eE"])
    assert many == ["20 entities differ only in letter case: 'e0', 'E0', 'e1', 'E1', …"]


def test_entities_beyond_a_number_are_not_compared(monkeypatch):
    names = {"entities": Vocabulary.from_names(["a", "A", "b"]), "relations": Vocabulary.from_names(["r", "r "])}
    graph = dataset([(0, 0, 1), (1, 1, 2)], n_entities=3, n_relations=2, **names)
    assert [w for w in describe(graph).warnings if "differ" in w] == [
        "2 relations differ only in surrounding spaces: 'r', 'r '.",
        "2 entities differ only in letter case: 'a', 'A'.",
    ]
    monkeypatch.setattr(describe_module, "MAX_NAMES_COMPARED", 2)
    assert len([w for w in describe(graph).warnings if "differ" in w]) == 1


def test_a_profile_is_json():
    content = json.loads(json.dumps(describe(FAMILY).to_dict()))
    assert content["leakage"]["test"]["triples"] == 3
    assert content["relations"][2]["name"] == "likes"


def test_an_empty_dataset_has_a_profile():
    profile = describe(dataset(n_entities=0, n_relations=0))
    assert profile.warnings == ("train is empty.", "valid is empty.", "test is empty.")


def test_a_planted_inverse_is_flagged_and_a_random_graph_is_not():
    random = np.random.default_rng(0)
    triples = random.integers(0, 200, (2000, 3), dtype=np.int32)
    triples[:, 1] %= 4
    inverse = triples[triples[:, 1] == 0][:, [2, 1, 0]] + np.array([0, 4, 0], np.int32)
    parts = []
    for rows in (np.unique(triples, axis=0), np.unique(np.concatenate([triples, inverse]), axis=0)):
        rows = random.permutation(rows).astype(np.int32)
        parts.append(dataset(rows[400:], rows[:200], rows[200:400], n_entities=200, n_relations=5))
    clean, planted = (describe(part) for part in parts)
    assert clean.leakage.twins == () and clean.warnings == ()
    assert [(p.first, p.second, p.kind) for p in planted.leakage.twins] == [(0, 4, "inverse")]
    assert planted.leakage.test.inverse > 40
    assert any("overstate" in warning for warning in planted.warnings)


def test_a_contained_relation_gives_away_the_one_that_contains_it_only():
    located_in, has_capital = 0, 1
    train = [(city, located_in, 9) for city in range(6)] + [(9, has_capital, 7), (9, has_capital, 0)]
    leakage = describe(dataset(train, [(7, located_in, 9)], [(9, has_capital, 5)])).leakage
    assert leakage.twins == ()
    (pair,) = leakage.contained
    assert (pair.first, pair.second, pair.kind, pair.overlap) == (located_in, has_capital, "inverse", 3)
    assert leakage.valid.implied == 1
    assert leakage.test.implied == 0


@pytest.mark.parametrize(
    ("rows", "name"),
    [
        ([(0, 0, 1), (2, 0, 3)], "1-1"),
        ([(0, 0, 1), (0, 0, 2), (0, 0, 3)], "1-N"),
        ([(1, 0, 0), (2, 0, 0), (3, 0, 0)], "N-1"),
        ([(0, 0, 1), (0, 0, 2), (3, 0, 1), (3, 0, 2)], "N-N"),
        ([(0, 0, 1), (0, 0, 1), (0, 0, 1)], "1-1"),
        ([(0, 1, 1)], "unseen"),
    ],
)
def test_cardinalities_by_hand(rows, name):
    assert CARDINALITIES[relation_cardinalities(ids(rows), 2)[0]] == name


# The slow truth: sets and loops.


def slow_overlap(triples, first, second, kind):
    pairs = {(h, t) for h, r, t in triples if r == first}
    others = {(h, t) if kind == "duplicate" else (t, h) for h, r, t in triples if r == second}
    return len(pairs & others)


def slow_leakage(train, other, everything, n_relations, threshold):
    size = [len({(h, t) for h, r, t in everything if r == k}) for k in range(n_relations)]
    counts = dict.fromkeys(["inverse", "duplicate", "either", "implied", "symmetric"], 0)
    for h, r, t in other:
        reasons = set()
        for r2, kind in product(range(n_relations), ["inverse", "duplicate"]):
            witness = (t, r2, h) if kind == "inverse" else (h, r2, t)
            if witness not in train:
                continue
            if r2 == r:
                if kind == "inverse" and h != t:
                    reasons.add("symmetric")
                continue
            overlap = slow_overlap(everything, r, r2, kind)
            of_r, of_r2 = overlap / size[r], overlap / size[r2]
            if min(of_r, of_r2) >= threshold:
                reasons |= {kind, "either"}
            elif of_r2 >= threshold:
                reasons.add("implied")
        if "either" in reasons:
            reasons.discard("implied")
        for reason in reasons:
            counts[reason] += 1
    return counts


TRIPLES = st.lists(st.tuples(st.integers(0, 4), st.integers(0, 2), st.integers(0, 4)), max_size=25)


@given(train=TRIPLES, valid=TRIPLES, test=TRIPLES, threshold=st.sampled_from([0.3, 0.5, 0.8, 1.0]))
def test_leakage_equals_the_loops(train, valid, test, threshold):
    splits = [ids(train), ids(valid), ids(test)]
    found = find_leakage(splits, 5, 3, threshold=threshold)
    everything = set(train) | set(valid) | set(test)
    assert found.valid_in_test == len(set(valid) & set(test))
    assert found.duplicates == tuple(len(rows) - len(set(rows)) for rows in (train, valid, test))
    for rows, part in ((valid, found.valid), (test, found.test)):
        slow = slow_leakage(set(train), set(rows), everything, 3, threshold)
        assert {reason: getattr(part, reason) for reason in slow} == slow
        assert part.triples == len(set(rows))
        assert part.in_train == len(set(rows) & set(train))
    for pair in (*found.twins, *found.contained):
        assert pair.overlap == slow_overlap(everything, pair.first, pair.second, pair.kind)


@given(triples=TRIPLES)
def test_symmetry_equals_the_loops(triples):
    found = find_leakage([ids(triples), ids([]), ids([])], 5, 3).symmetry
    for r in range(3):
        pairs = {(h, t) for h, k, t in triples if k == r and h != t}
        both = [pair for pair in pairs if pair[::-1] in pairs]
        assert found[r] == (pytest.approx(len(both) / len(pairs)) if pairs else None)


@given(triples=TRIPLES)
def test_cardinalities_equal_the_loops(triples):
    codes = relation_cardinalities(ids(triples), 3)
    for r in range(3):
        pairs = {(h, t) for h, k, t in triples if k == r}
        if not pairs:
            assert CARDINALITIES[codes[r]] == "unseen"
            continue
        tails, heads = (len(pairs) / len({pair[side] for pair in pairs}) for side in (0, 1))
        name = f"{'N' if heads >= 1.5 else '1'}-{'N' if tails >= 1.5 else '1'}"
        assert CARDINALITIES[codes[r]] == name


@given(train=TRIPLES, test=TRIPLES)
def test_ids_too_large_for_one_key_give_the_same(train, test):
    # 2^30 entities and 2^20 relations exceed 63 bits, so that rows are sorted by two keys
    splits = [ids(train), ids([]), ids(test)]
    major, minor = leakage_module._sorted_keys(splits, 5, 3)
    rows = [(row, split) for split, part in enumerate(splits) for row in part.tolist()]
    far = {e: e * (2**30 // 5) for e in range(5)}
    far_splits = [ids((far[h], r, far[t]) for h, r, t in part.tolist()) for part in splits]
    far_major, far_minor = leakage_module._sorted_keys(far_splits, 2**30, 2**20)
    assert len(rows) == len(major) == len(far_major)
    steps = np.diff(major) != 0
    assert np.array_equal(steps, np.diff(far_major) != 0)
    assert np.array_equal(minor % 3, far_minor % 3)


@given(triples=TRIPLES)
def test_cardinalities_of_huge_ids_are_the_same(triples):
    far = [e * ((2**31 - 2) // 4) for e in range(5)]  # 4 relations and 2^31 entities exceed 63 bits
    moved = [(far[h], r, far[t]) for h, r, t in triples]
    near = relation_cardinalities(ids(triples), 4)
    assert np.array_equal(relation_cardinalities(ids([*moved, (far[4], 3, far[4])]), 4)[:3], near[:3])
