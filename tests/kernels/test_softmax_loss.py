"""The one-pass softmax loss against its reference in float64, and its exponential."""

from __future__ import annotations

import math

import numba
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from grash.kernels.softmax_loss import _exp, mask_scores, softmax_loss, softmax_loss_reference


@numba.njit
def exps(x):  # type: ignore[no-untyped-def]
    return np.array([_exp(v) for v in x])


def test_the_exponential_is_accurate_to_float32():
    x = -np.random.default_rng(0).random(200_000).astype(np.float32) * np.float32(86.9)
    wanted = np.exp(x.astype(np.float64))
    assert np.max(np.abs(exps(x) - wanted) / wanted) < 2e-7
    assert exps(np.array([0.0, -np.inf, -200.0], np.float32)).tolist() == [1.0, 0.0, 0.0]


@given(st.integers(0, 9), st.integers(0, 40), st.floats(0.01, 60), st.integers(0, 999))
def test_the_loop_equals_the_reference(batch, n, spread, seed):
    generator = torch.Generator().manual_seed(seed)
    positive = torch.randn(batch, generator=generator) * spread
    negative = torch.randn(batch, n, generator=generator) * spread
    if n:
        negative[torch.rand(batch, n, generator=generator) < 0.3] = -math.inf  # some rows have no negatives
    found = softmax_loss(positive, negative, scale=0.25)
    wanted = softmax_loss_reference(positive.double(), negative.double(), scale=0.25)
    for a, b in zip(found, wanted):
        assert a.dtype == torch.float32 and a.shape == b.shape
        assert torch.allclose(a.double(), b, rtol=1e-5, atol=2e-6 * spread)


@pytest.mark.parametrize("bad", [math.nan, -math.nan, math.inf])
def test_a_score_that_is_not_finite_gives_such_a_loss(bad):
    negative = torch.zeros(3, 5)
    negative[1, 2] = bad
    assert not math.isfinite(softmax_loss(torch.zeros(3), negative)[0])
    assert not math.isfinite(softmax_loss(negative[:, 2], torch.zeros(3, 5))[0])


def test_strided_inputs_are_read_correctly():
    scores = torch.randn(6, 9)
    found = softmax_loss(scores[:, 0], scores[:, 1:])
    wanted = softmax_loss_reference(scores[:, 0], scores[:, 1:])
    assert all(torch.allclose(a, b, atol=1e-6) for a, b in zip(found, wanted))


def test_only_scores_that_are_not_kept_are_masked():
    scores = torch.arange(6.0).reshape(2, 3)
    mask_scores(scores, torch.tensor([0, 1, 1]), torch.tensor([2, 0, 1]), torch.tensor([False, True, False]))
    assert scores.tolist() == [[0.0, 1.0, -math.inf], [3.0, -math.inf, 5.0]]
