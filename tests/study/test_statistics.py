"""Rank correlation and its interval, against scipy and against plain lists; means of a few seeds."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from grash.report.importance import spearman as plain_spearman
from grash_study.statistics import mean_interval, rho_difference, spearman

values = st.integers(0, 6).map(float)  # few, so that ties are many
pairs = st.lists(st.tuples(values, values), min_size=3, max_size=12)


@given(pairs)
def test_rho_is_that_of_the_plain_implementation(given_pairs):
    a, b = map(list, zip(*given_pairs))
    found, plain = spearman(a, b, resamples=1).rho, plain_spearman(a, b)
    assert (found is None) == (plain is None)
    assert found is None or found == pytest.approx(plain, abs=1e-12)


def test_rho_and_its_interval_are_those_of_scipy():
    generator = np.random.default_rng(0)
    a, b = generator.normal(size=40), generator.normal(size=40).round(1)
    found = spearman(a, b, resamples=4000)
    assert found.rho == pytest.approx(stats.spearmanr(a, b).statistic, abs=1e-12)
    drawn = stats.bootstrap(
        (a, b), lambda x, y: stats.spearmanr(x, y).statistic, n_resamples=1000, paired=True, vectorized=False,
        method="percentile", rng=np.random.default_rng(1),
    )  # fmt: skip
    assert (found.low, found.high) == pytest.approx(tuple(drawn.confidence_interval), abs=0.04)


def test_a_difference_is_over_the_same_resamples():
    generator = np.random.default_rng(3)
    truth = generator.normal(size=50)
    near, noise = truth + 0.1 * generator.normal(size=50), generator.normal(size=50)
    found = rho_difference(near, noise, truth)
    assert found.rho == pytest.approx(spearman(near, truth).rho - spearman(noise, truth).rho)
    assert 0 < found.low < found.rho < found.high
    same = rho_difference(near, near, truth)
    assert (same.rho, same.low, same.high) == (0.0, 0.0, 0.0)


def test_perfect_order_has_an_interval_without_width_and_noise_a_wide_one():
    perfect = spearman(range(20), [x**3 for x in range(20)])
    assert (perfect.rho, perfect.low, perfect.high) == pytest.approx((1, 1, 1))
    noise = spearman(range(20), np.random.default_rng(1).normal(size=20))
    assert noise.low < noise.rho < noise.high and noise.high - noise.low > 0.3


def test_the_interval_contains_the_truth_about_as_often_as_it_should():
    generator, held = np.random.default_rng(2), 0
    for i in range(100):
        x = generator.normal(size=60)
        found = spearman(x, x + generator.normal(size=60), seed=i, resamples=400)
        held += found.low <= 0.69 <= found.high  # ρ of this noise: (6/π)·asin(1/(2√2))
    assert held >= 85


@pytest.mark.parametrize("a, b", [([1, 2], [1, 2]), ([1, 1, 1, 1], [1, 2, 3, 4]), ([], [])])
def test_too_few_pairs_or_a_constant_side_have_no_rho(a, b):
    assert spearman(a, b).rho is None and spearman(a, b).n == len(a)


def test_an_interval_of_a_mean_needs_two_values():
    assert mean_interval([]) == (None, None, None) and mean_interval([0.3]) == (0.3, None, None)
    mean, low, high = mean_interval([1.0, 2.0, 3.0])
    assert (mean, low, high) == pytest.approx((2.0, 2 - 4.303 / math.sqrt(3), 2 + 4.303 / math.sqrt(3)), abs=1e-3)
    assert mean_interval([0.5, 0.5]) == (0.5, 0.5, 0.5)


def test_intervals_of_normal_draws_contain_the_truth_as_often_as_they_should():
    draws = np.random.default_rng(0).normal(size=(4000, 3))
    held = np.mean([low <= 0 <= high for _, low, high in (mean_interval(list(row)) for row in draws)])
    assert held == pytest.approx(0.95, abs=0.015)
