"""Rank correlation and its interval, against plain lists and against scipy."""

from __future__ import annotations

import math
import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from grash.report.importance import spearman as plain_spearman
from grash_study.statistics import mean_interval, spearman, student, weighted_rho

values = st.integers(0, 6).map(float)  # few, so that ties are many
pairs = st.lists(st.tuples(values, values), min_size=3, max_size=12)


@given(pairs)
def test_rho_is_that_of_the_plain_twin(given_pairs):
    a, b = map(list, zip(*given_pairs))
    found, plain = spearman(a, b, resamples=1).rho, plain_spearman(a, b)
    assert (found is None) == (plain is None)
    assert found is None or found == pytest.approx(plain, abs=1e-12)


@given(pairs, st.integers(0, 1000))
def test_a_resample_by_counts_is_the_list_with_repeats(given_pairs, seed):
    drawn = random.Random(seed).choices(range(len(given_pairs)), k=len(given_pairs))
    counts = np.bincount(drawn, minlength=len(given_pairs)).astype(float)[None]
    a, b = (np.array(side) for side in zip(*given_pairs))
    plain = plain_spearman([a[i] for i in drawn], [b[i] for i in drawn])
    found = weighted_rho(a, b, counts)[0]
    assert math.isnan(found) if plain is None else found == pytest.approx(plain, abs=1e-9)


def test_rho_agrees_with_scipy():
    stats = pytest.importorskip("scipy.stats")
    generator = np.random.default_rng(0)
    a, b = generator.normal(size=40), generator.normal(size=40).round(1)
    assert spearman(a, b).rho == pytest.approx(stats.spearmanr(a, b).statistic, abs=1e-12)


def test_perfect_order_has_an_interval_without_width_and_noise_a_wide_one():
    perfect = spearman(range(20), [x**3 for x in range(20)])
    assert (perfect.rho, perfect.low, perfect.high) == pytest.approx((1, 1, 1))
    noise = spearman(range(20), np.random.default_rng(1).normal(size=20))
    assert noise.low < noise.rho < noise.high and noise.high - noise.low > 0.3


def test_the_interval_holds_the_truth_about_as_often_as_it_says():
    generator, held = np.random.default_rng(2), 0
    for i in range(100):
        x = generator.normal(size=60)
        found = spearman(x, x + generator.normal(size=60), seed=i, resamples=400)
        held += found.low <= 0.69 <= found.high  # ρ of this noise: (6/π)·asin(1/(2√2))
    assert held >= 85


@pytest.mark.parametrize("a, b", [([1, 2], [1, 2]), ([1, 1, 1, 1], [1, 2, 3, 4]), ([], [])])
def test_too_few_pairs_or_a_constant_side_have_no_rho(a, b):
    assert spearman(a, b).rho is None and spearman(a, b).n == len(a)


@pytest.mark.parametrize(
    ("freedom", "quantile"), [(1, 12.706), (2, 4.303), (10, 2.228), (11, 2.201), (20, 2.086), (60, 2.0003)]
)
def test_student_s_quantiles_are_those_of_the_tables(freedom, quantile):
    assert student(freedom) == pytest.approx(quantile, abs=1e-3)


def test_an_interval_of_a_mean_needs_two_values():
    assert mean_interval([]) == (None, None, None) and mean_interval([0.3]) == (0.3, None, None)
    mean, low, high = mean_interval([1.0, 2.0, 3.0])
    assert (mean, low, high) == pytest.approx((2.0, 2 - 4.303 / math.sqrt(3), 2 + 4.303 / math.sqrt(3)))
    assert mean_interval([0.5, 0.5]) == (0.5, 0.5, 0.5)


def test_intervals_of_normal_draws_hold_the_truth_as_often_as_they_say():
    draws = np.random.default_rng(0).normal(size=(4000, 3))
    held = np.mean([low <= 0 <= high for _, low, high in (mean_interval(list(row)) for row in draws)])
    assert held == pytest.approx(0.95, abs=0.015)
