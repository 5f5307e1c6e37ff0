"""The best candidates against a full sort: ties, skipped candidates, lists, tiles."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from grash.kernels.count_above import FilterRuns, ListedScores, best_candidates, best_listed, exact_scores, largest_row

NO_IDS = torch.empty(0, dtype=torch.int64)


def plain_best(queries, candidates, k, pair, skips=()):
    """By scoring each pair and sorting all of them: by score, then by id."""
    found = []
    for i in range(len(queries)):
        scores = exact_scores(queries[i : i + 1].expand(len(candidates), -1), candidates, pair).tolist()
        order = sorted((j for j in range(len(candidates)) if (i, j) not in skips), key=lambda j: (-scores[j], j))
        found += [(i, j, scores[j]) for j in order[:k]]
    return found


@settings(max_examples=60, deadline=None)
@given(
    st.sampled_from(["dot", "l1", "l2", "modulus"]),
    st.integers(1, 4),
    st.integers(1, 40),
    st.integers(1, 50),
    st.integers(1, 45),
    st.booleans(),
    st.integers(0, 2**32 - 1),
)
def test_the_best_candidates_are_those_of_a_full_sort(pair, n_queries, n, k, tile, integers, seed):
    generator = np.random.default_rng(seed)
    draw = (lambda s: generator.integers(-1, 2, s)) if integers else (lambda s: generator.normal(size=s))
    queries, candidates = (torch.from_numpy(np.asarray(draw((m, 4)), np.float32)) for m in (n_queries, n))
    skips = {(int(generator.integers(n_queries)), int(generator.integers(n))) for _ in range(n // 3)}
    pairs = sorted(skips, key=lambda p: p[1])
    found = best_candidates(
        queries,
        lambda start, stop: candidates[start:stop],
        n,
        k,
        pair,
        skip_rows=torch.tensor([p[0] for p in pairs], dtype=torch.int64),
        skip_columns=torch.tensor([p[1] for p in pairs], dtype=torch.int64),
        tile=tile,
    )
    assert list(zip(*(x.tolist() for x in found))) == plain_best(queries, candidates, k, pair, skips)


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(st.integers(1, 6), st.integers(1, 60), st.integers(1, 30), st.booleans(), st.integers(0, 2**32 - 1))
def test_the_best_listed_candidates_are_those_of_a_full_sort(n_queries, n, k, integers, seed):
    generator = np.random.default_rng(seed)
    draw = (lambda s: generator.integers(-1, 2, s)) if integers else (lambda s: generator.normal(size=s))
    queries, table = (torch.from_numpy(np.asarray(draw((m, 4)), np.float32)) for m in (n_queries, n))
    lists = [np.flatnonzero(generator.random(n) < generator.random()) for _ in range(3)]
    of = generator.integers(0, 3, n_queries)  # queries may share a list
    skips = [np.flatnonzero(generator.random(n) < 0.2) for _ in range(n_queries)]
    listed, skip = runs(lists), runs(skips)
    listed = FilterRuns(listed.first[of], listed.last[of], listed.answers)
    picked, computed = ListedScores(listed), ListedScores(listed)
    computed.compute(queries, table)
    tile = int(generator.integers(1, n + 1))
    for start in range(0, n, tile):
        picked.pick(queries @ table[start : start + tile].T, start)
    np.testing.assert_allclose(picked.values, computed.values, rtol=1e-5, atol=1e-5)
    left_out = {
        (i, j) for i in range(n_queries) for j in range(n) if j not in lists[of[i]].tolist() or j in skips[i].tolist()
    }
    for scores in (picked, computed):
        found = best_listed(queries, table, scores, k, skip=skip, largest=largest_row(table, "dot"))
        assert list(zip(*(x.tolist() for x in found))) == plain_best(queries, table, k, "dot", left_out)


def test_listed_candidates_are_found_in_every_block_of_the_table():
    table = torch.from_numpy(np.random.default_rng(0).normal(size=(3000, 8)).astype(np.float32))
    ids = np.arange(0, 3000, 7)
    scores, nothing = ListedScores(runs([ids, ids[:0]])), runs([ids[:0]] * 2)
    scores.compute(table[:2], table)
    found = best_listed(table[:2], table, scores, 10, skip=nothing, largest=largest_row(table, "dot"))
    left_out = {(i, j) for i in range(2) for j in range(3000) if i or j % 7}
    assert list(zip(*(x.tolist() for x in found))) == plain_best(table[:2], table, 10, "dot", left_out)


def runs(lists):
    last = np.cumsum([len(ids) for ids in lists])
    return FilterRuns(np.append(0, last[:-1]), last, np.concatenate(lists).astype(np.int32))


def test_equal_scores_go_by_ascending_id_across_tiles():
    candidates = torch.zeros(50, 2)
    row, ids, _ = best_candidates(
        torch.ones(2, 2), lambda a, b: candidates[a:b], 50, 4, "dot",
        skip_rows=NO_IDS, skip_columns=NO_IDS, tile=7,
    )  # fmt: skip
    assert row.tolist() == [0] * 4 + [1] * 4
    assert ids.tolist() == [0, 1, 2, 3] * 2
