"""Scores of every kind of pair against their formulas, and gradients against autograd."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from grash.kernels import pair_scores as P
from grash.kernels.pair_scores import pair_gradients, pair_scores, row_gradients, row_scores
from live_bytes import Peak
from oracles import exact_pairs, relative_distance

PAIRS = ["dot", "l1", "l2", "modulus"]
SHAPES = [(1, 1, 2), (3, 7, 2), (17, 5, 6), (5, 33, 130), (2, 300, 10), (0, 4, 6), (4, 0, 6), (0, 0, 2)]
CLOSE = {torch.float32: 2e-6, torch.float64: 1e-13}


def drawn(shape: tuple[int, int, int], dtype: torch.dtype, seed: int = 0) -> tuple[torch.Tensor, ...]:
    generator = torch.Generator().manual_seed(seed)
    b, n, width = shape
    sizes = ((b, width), (n, width), (b, n))
    return tuple(torch.randn(s, generator=generator, dtype=torch.float64).to(dtype) for s in sizes)


def autograd(q: torch.Tensor, c: torch.Tensor, upstream: torch.Tensor, pair: str) -> tuple[torch.Tensor, ...]:
    q, c = q.double().requires_grad_(), c.double().requires_grad_()
    return torch.autograd.grad((exact_pairs(q, c, pair) * upstream.double()).sum(), (q, c))


@pytest.mark.parametrize("dtype", CLOSE)
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("pair", PAIRS)
def test_scores_and_gradients_equal_formula_and_autograd(
    pair: P.Pair, shape: tuple[int, int, int], dtype: torch.dtype
) -> None:
    q, c, upstream = drawn(shape, dtype)
    tolerance = CLOSE[dtype] * (30 if pair == "l2" else 1)
    for scores in (pair_scores(q, c, pair), P.pair_scores_reference(q, c, pair)):
        assert scores.dtype == dtype and scores.shape == shape[:2]
        assert relative_distance(scores, exact_pairs(q, c, pair)) < tolerance
    wanted = autograd(q, c, upstream, pair)
    scores = pair_scores(q, c, pair)
    for found in (pair_gradients(q, c, scores, upstream, pair), P.pair_gradients_reference(q, c, upstream, pair)):
        for got, want in zip(found, wanted):
            assert got.dtype == dtype and got.shape == want.shape
            assert relative_distance(got, want) < tolerance


@pytest.mark.parametrize("pair", PAIRS)
def test_rows_are_the_diagonal_of_pairs(pair: P.Pair) -> None:
    q, c, _ = drawn((6, 6, 8), torch.float64)
    torch.testing.assert_close(row_scores(q, c, pair), exact_pairs(q, c, pair).diagonal())
    own = torch.randn(6, 5, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    wanted = torch.stack([exact_pairs(q[i : i + 1], own[i], pair)[0] for i in range(6)])
    torch.testing.assert_close(row_scores(q[:, None], own, pair), wanted)
    upstream = torch.randn(6, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    for_query, for_own = row_gradients(q[:, None], own, upstream, pair)
    for i in range(6):
        gq, gc = autograd(q[i : i + 1], own[i], upstream[i : i + 1], pair)
        torch.testing.assert_close(for_query.expand_as(own)[i].sum(0), gq[0])
        torch.testing.assert_close(for_own[i], gc)


@pytest.mark.parametrize("dtype", CLOSE)
@pytest.mark.parametrize("pair", ["l1", "l2", "modulus"])
def test_the_gradient_of_a_zero_distance_is_zero(pair: P.Pair, dtype: torch.dtype) -> None:
    q = torch.tensor([[1.0, -2.0, 3.0, 4.0], [0.0, 0.0, 0.0, 0.0]], dtype=dtype)
    upstream = torch.tensor([[5.0, 0.0], [0.0, 7.0]], dtype=dtype)
    scores = pair_scores(q, q.clone(), pair)
    assert scores.diagonal().tolist() == [0.0, 0.0]
    for got in (
        *pair_gradients(q, q.clone(), scores, upstream, pair),
        *P.pair_gradients_reference(q, q.clone(), upstream, pair),
        *row_gradients(q, q.clone(), upstream.diagonal(), pair),
    ):
        assert got.tolist() == torch.zeros(2, 4).tolist()


@pytest.mark.parametrize("pair", PAIRS)
def test_a_repeated_candidate_gets_its_gradient_each_time(pair: P.Pair) -> None:
    q, c, upstream = drawn((4, 3, 6), torch.float32)
    twice = torch.cat([c, c])
    doubled = torch.cat([upstream, upstream], 1)
    for_q, for_c = pair_gradients(q, twice, pair_scores(q, twice, pair), doubled, pair)
    once_q, once_c = pair_gradients(q, c, pair_scores(q, c, pair), upstream, pair)
    torch.testing.assert_close(for_q, 2 * once_q)
    torch.testing.assert_close(for_c, torch.cat([once_c, once_c]))


@pytest.mark.parametrize("pair", PAIRS)
def test_masked_entries_with_upstream_zero_add_nothing(pair: P.Pair) -> None:
    q, c, upstream = drawn((4, 5, 6), torch.float32)
    upstream[1, 2] = upstream[3] = 0.0
    scores = pair_scores(q, c, pair)
    masked = scores.clone()
    masked[1, 2] = masked[3] = -torch.inf
    for got, want in zip(pair_gradients(q, c, masked, upstream, pair), pair_gradients(q, c, scores, upstream, pair)):
        assert bool(torch.isfinite(got).all())
        torch.testing.assert_close(got, want)


@settings(deadline=None)
@given(st.sampled_from(PAIRS), st.integers(1, 9), st.integers(1, 9), st.integers(1, 5), st.integers(0, 99))
def test_small_tiles_of_the_reference_give_the_same(pair: P.Pair, b: int, n: int, half: int, seed: int) -> None:
    q, c, upstream = drawn((b, n, 2 * half), torch.float64, seed)
    whole = P.pair_scores_reference(q, c, pair), *P.pair_gradients_reference(q, c, upstream, pair)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(P, "_TILE", 2 * b * 2 * half)
        tiled = P.pair_scores_reference(q, c, pair), *P.pair_gradients_reference(q, c, upstream, pair)
    for a, b_ in zip(whole, tiled):
        torch.testing.assert_close(a, b_)


@pytest.mark.parametrize("pair", ["l1", "modulus"])
def test_loops_read_views_that_are_not_contiguous(pair: P.Pair) -> None:
    q, c, upstream = drawn((5, 7, 12), torch.float32)
    q, c, upstream = q[:, ::2], c[:, ::2], upstream.T.contiguous().T
    scores = pair_scores(q, c, pair)
    assert relative_distance(scores, exact_pairs(q, c, pair)) < 1e-6
    for got, want in zip(pair_gradients(q, c, scores, upstream, pair), autograd(q, c, upstream, pair)):
        assert relative_distance(got, want) < 1e-6


def test_different_widths_are_an_error() -> None:
    with pytest.raises(ValueError, match=r"\(2, 4\).*\(3, 6\).*differ in width"):
        pair_scores(torch.zeros(2, 4), torch.zeros(3, 6), "dot")


@pytest.mark.parametrize("n", [10, 128, 500])
@pytest.mark.parametrize("pair", ["l1", "modulus"])
def test_the_reference_of_distances_takes_the_bytes_planned_for_a_gpu(
    pair: P.Pair, n: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(P, "_TILE", 1 << 19)
    q, c, upstream = drawn((256, n, 64), torch.float32)
    planned = P.tile_bytes(256, n, 64, pair, torch.device("cuda"))
    with Peak() as forward:
        P.pair_scores_reference(q, c, pair)
    with Peak() as backward:
        P.pair_gradients_reference(q, c, upstream, pair)
    small = 2 * 4 * (q.numel() + c.numel() + upstream.numel())  # results and intermediate sums
    assert planned <= max(forward.most, backward.most) <= planned + small
    assert P.tile_bytes(256, n, 64, pair, torch.device("cpu")) == 0
    assert P.tile_bytes(256, n, 64, "dot", torch.device("cuda")) == P.tile_bytes(0, n, 64, pair, q.device) == 0


def test_padded_products_equal_the_plain_ones_and_reuse_their_padding() -> None:
    q, c, upstream = drawn((7, 13, 12), torch.float32)
    scores = P._padded_product(q, c, 51)
    assert scores.stride() == (64, 1) and torch.allclose(scores, q @ c.T, atol=1e-5)
    for gradient in (upstream, scores.copy_(upstream)):
        for_queries, for_candidates = P._padded_gradients(q, c, gradient, 51)
        assert torch.allclose(for_queries, upstream @ c, atol=1e-5)
        assert torch.allclose(for_candidates, upstream.T @ q, atol=1e-5)
