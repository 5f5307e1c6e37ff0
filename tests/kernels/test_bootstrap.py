"""Resampled means: the loop against its reference."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from grash.kernels.bootstrap import resampled_means, resampled_means_reference


@given(st.integers(1, 50), st.integers(0, 9), st.integers(0, 99))
def test_the_loop_equals_its_reference(n, resamples, seed):
    generator = np.random.default_rng(seed)
    values, draws = generator.random(n), generator.integers(0, n, (resamples, n)).astype(np.int32)
    found = resampled_means(values, draws)
    assert found.shape == (resamples,)
    np.testing.assert_allclose(found, resampled_means_reference(values, draws).reshape(-1), rtol=1e-13)
