"""The Triton form of the random numbers, in Triton's interpreter."""

from __future__ import annotations

import pytest

from triton_interpreter import interpret, needs_triton

COMPARE = """
import math, torch
from grash.kernels import random as reference, random_triton as fast
cpu = torch.device("cpu")
for n in (1, 14, 14541):
    key, radix = reference.key_of("test", n), math.isqrt(max(n - 1, 0)) + 1
    places = torch.arange(min(n, 40))
    for inverse in (False, True):
        found = fast.permuted(places, n, radix, key, inverse=inverse)
        assert torch.equal(found, reference.permuted(places, n, key, inverse=inverse)), (n, inverse)
    found = fast.permuted_rows(5, min(n, 30), n, radix, key, cpu)
    assert torch.equal(found, reference.permuted_rows(5, min(n, 30), n, key, cpu)), n
rows, key = torch.tensor([0, 1, 5, 2**33 + 1, 77]), reference.key_of("bits")
strided = torch.stack([rows, rows], 1)[:, 0]
assert torch.equal(fast.random_bits(strided, 70, key), reference.random_bits(rows, 70, key))
mask = fast.keep_mask(rows, 70, round(0.3 * 2**32), 1 / 0.7, key)
assert torch.equal(mask, reference.keep_mask(rows, 70, 0.3, key))
for key in (5, 2**64 - 3):
    stored = torch.tensor([key - 2**64 if key >= 2**63 else key])
    assert reference.key_value(stored) == key
    assert torch.equal(fast.random_bits(rows, 70, stored), reference.random_bits(rows, 70, key))
    found = fast.permuted(places, 14541, 121, stored, inverse=False)
    assert torch.equal(found, reference.permuted(places, 14541, key))
    found = fast.permuted_rows(5, 30, 14541, 121, stored, cpu)
    assert torch.equal(found, reference.permuted_rows(5, 30, 14541, key, cpu))
"""


@pytest.mark.slow
@needs_triton
def test_the_triton_form_equals_the_others():
    interpret(COMPARE)
