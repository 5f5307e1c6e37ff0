"""Counts against a full sort: ties, skipped candidates, tiles, near-ties, overflow."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from grash.errors import Diverged
from grash.kernels.count_above import CountBatch, FilterRuns, count_above, exact_scores, largest_row
from grash.kernels.pair_scores import Pair, pair_scores
from oracles import exact_pairs, places_by_sort

PAIRS = ["dot", "l1", "l2", "modulus"]


def runs(skips: set[tuple[int, int]], n: int) -> FilterRuns:
    pairs = sorted(skips)
    last = np.searchsorted([r for r, _ in pairs], np.arange(n), side="right").astype(np.int64)
    return FilterRuns(np.concatenate([[0], last[:-1]]), last, np.array([e for _, e in pairs], np.int32))


def counted(
    q: torch.Tensor, c: torch.Tensor, truth: list[int], skips: set[tuple[int, int]], pair: Pair, tile: int
) -> list[tuple[int, int]]:
    ids = torch.tensor(truth, dtype=torch.int64)
    batch = CountBatch.of(q, ids, exact_scores(q, c[ids], pair), runs(skips, len(q)))
    count_above(batch, c, pair, tile=tile, largest=largest_row(c, pair))
    return [*zip(*batch.counts.tolist())]


def counted_by_sort(
    q: torch.Tensor, c: torch.Tensor, truth: list[int], skips: set[tuple[int, int]], pair: Pair
) -> list[tuple[int, int]]:
    scores = exact_pairs(q, c, pair).float().tolist()
    return [places_by_sort(scores[i], t, {e for row, e in skips if row == i} - {t}) for i, t in enumerate(truth)]


@st.composite
def problems(draw: st.DrawFn) -> tuple[torch.Tensor, torch.Tensor, list[int], set[tuple[int, int]]]:
    """Draw coarse numbers: many ties, no rounding."""
    b, e, half = draw(st.integers(1, 5)), draw(st.integers(1, 12)), draw(st.integers(1, 3))
    number = st.integers(-3, 3) if draw(st.booleans()) else st.integers(-1000, 1000).map(lambda x: x / 256)
    rows = st.lists(st.lists(number, min_size=2 * half, max_size=2 * half), min_size=b + e, max_size=b + e)
    table = torch.tensor(draw(rows), dtype=torch.float32)
    truth = draw(st.lists(st.integers(0, e - 1), min_size=b, max_size=b))
    skips = draw(st.sets(st.tuples(st.integers(0, b - 1), st.integers(0, e - 1)), max_size=10))
    return table[:b], table[b:], truth, {(r, c) for r, c in skips if c != truth[r]}


@settings(deadline=None)
@given(problems(), st.sampled_from(PAIRS))
def test_counts_equal_a_full_sort_for_every_tile_size(
    problem: tuple[torch.Tensor, torch.Tensor, list[int], set[tuple[int, int]]], pair: Pair
) -> None:
    q, c, truth, skips = problem
    wanted = counted_by_sort(q, c, truth, skips, pair)
    for tile in range(1, len(c) + 2):
        assert counted(q, c, truth, skips, pair, tile) == wanted


@pytest.mark.parametrize("pair", PAIRS)
@pytest.mark.parametrize("scale", [1e-3, 1.0, 1e3])
def test_near_ties_in_float32_are_decided_exactly(pair: Pair, scale: float) -> None:
    generator = torch.Generator().manual_seed(5)
    q = torch.randn(8, 64, generator=generator) * scale
    center = torch.randn(1, 64, generator=generator) * scale
    c = center * (1 + 1e-7 * torch.randint(-3, 4, (700, 64), generator=generator))  # all within a few last bits
    truth = torch.randint(0, 700, (8,), generator=generator).tolist()
    wanted = counted_by_sort(q, c, truth, set(), pair)
    assert len({a for a, _ in wanted}) > 1
    fast = pair_scores(q, c, pair)
    naive = [int((fast[i] > fast[i, t]).sum()) for i, t in enumerate(truth)]
    assert naive != [a for a, _ in wanted]  # the fast product alone would be wrong here
    for tile in (1 << 20, 700, 333, 64):
        assert counted(q, c, truth, set(), pair, tile) == wanted


@pytest.mark.parametrize("pair", PAIRS)
def test_equal_embeddings_all_tie(pair: Pair) -> None:
    q, c = torch.full((3, 4), 0.1), torch.full((600, 4), 0.3)
    assert counted(q, c, [0, 5, 599], {(1, 7), (1, 8)}, pair, 256) == [(0, 599), (0, 597), (0, 599)]
    assert counted(torch.zeros(1, 4), torch.zeros(5, 4), [2], set(), pair, 2) == [(0, 4)]


@pytest.mark.parametrize("pair", PAIRS)
def test_numbers_of_very_different_size_are_counted(pair: Pair) -> None:
    generator = torch.Generator().manual_seed(1)
    c = torch.randn(300, 8, generator=generator) * 10.0 ** torch.randint(-6, 7, (300, 1), generator=generator)
    q = torch.randn(20, 8, generator=generator)
    truth = torch.randint(0, 300, (20,), generator=generator).tolist()
    assert counted(q, c, truth, set(), pair, 100) == counted_by_sort(q, c, truth, set(), pair)


@pytest.mark.parametrize("pair", PAIRS)
def test_scores_beyond_float32_cannot_be_ranked(pair: Pair) -> None:
    huge = torch.full((4, 4), 3e38) * torch.tensor([[1.0], [-1.0], [0.5], [1.0]])
    with pytest.raises(Diverged, match="train the model again"):
        counted(huge[:2], huge, [0, 1], set(), pair, 4)


def test_no_queries_have_no_counts() -> None:
    assert counted(torch.zeros(0, 4), torch.zeros(3, 4), [], set(), "dot", 2) == []


def test_exact_scores_do_not_depend_on_the_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    generator = torch.Generator().manual_seed(2)
    q, a = (torch.randn(50, 16, generator=generator) for _ in range(2))
    whole = exact_scores(q, a, "dot")
    monkeypatch.setattr("grash.kernels.count_above._EXACT_ELEMENTS", 48)
    assert torch.equal(exact_scores(q, a, "dot"), whole)
    assert torch.equal(whole, (q.double() * a.double()).sum(1).float())
