"""The Triton form of the random numbers, through Triton's interpreter where Triton is installed."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys

import pytest

COMPARE = """
import math, torch
from grash.kernels import random as plain, random_triton as fast
cpu = torch.device("cpu")
for n in (1, 2, 3, 14, 100, 14541, 10**6):
    key, side = plain.key_of("test", n), math.isqrt(max(n - 1, 0)) + 1
    walks, places = plain._walks(n, side), torch.arange(min(n, 300))
    for inverse in (False, True):
        found = fast.permuted(places, n, side, walks, key, rounds=8, inverse=inverse)
        assert torch.equal(found, plain.permuted(places, n, key, inverse=inverse)), (n, inverse)
    found = fast.permuted_rows(5, min(n, 30), n, side, walks, key, cpu, rounds=8)
    assert torch.equal(found, plain.permuted_rows(5, min(n, 30), n, key, cpu)), n
rows, key = torch.tensor([0, 1, 5, 2**33 + 1, 77]), plain.key_of("bits")
strided = torch.stack([rows, rows], 1)[:, 0]
assert torch.equal(fast.random_bits(strided, 70, key), plain.random_bits(rows, 70, key))
mask = fast.keep_mask(rows, 70, round(0.3 * 2**32), 1 / 0.7, key)
assert torch.equal(mask, plain.keep_mask(rows, 70, 0.3, key))
"""


@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="Triton is not installed")
def test_the_triton_form_equals_the_others():
    environment = {**os.environ, "TRITON_INTERPRET": "1"}
    subprocess.run([sys.executable, "-c", COMPARE], check=True, env=environment)
