"""Stochastic rounding to bf16: against explicit arithmetic on bits, and unbiased on average."""

from __future__ import annotations

import math
import struct

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from grash.kernels.random import random_bits
from grash.kernels.storage import gather_float32, round_stochastically, round_stochastically_reference, to_float32

NUMBERS = st.floats(width=32, allow_nan=False, allow_infinity=False, min_value=-(2.0**60), max_value=2.0**60)
KEYS = st.integers(0, 2**64 - 1)


def bits_of(x: float) -> int:
    return int(struct.unpack("<I", struct.pack("<f", x))[0])


def number_of(bits: int) -> float:
    return float(struct.unpack("<f", struct.pack("<I", bits))[0])


def rounded_by_hand(x: float, random: int) -> float:
    """Round x away from 0 if the sum of the 16 bits cut off and 16 random bits overflows."""
    kept, cut = bits_of(x) >> 16, bits_of(x) & 0xFFFF
    return number_of((kept + (cut + (random & 0xFFFF) >= 1 << 16)) << 16)


@settings(deadline=None)
@given(st.lists(NUMBERS, min_size=1, max_size=12), st.integers(0, 2**31 - 2), KEYS)
def test_rounding_is_a_carry_of_random_bits(numbers: list[float], first: int, key: int) -> None:
    rows, ids = torch.tensor([numbers, numbers]), torch.tensor([first, first + 1])
    random = random_bits(ids, len(numbers), key)
    wanted = [[rounded_by_hand(x, r) for x, r in zip(numbers, line)] for line in random.tolist()]
    for found in (round_stochastically(rows, ids, key), round_stochastically_reference(rows, random)):
        assert found.dtype == torch.bfloat16 and found.tolist() == wanted


@settings(deadline=None, max_examples=30)
@given(NUMBERS.filter(lambda x: abs(x) > 1e-30), KEYS)
def test_rounding_is_unbiased(x: float, key: int) -> None:
    n = 20_000
    found = round_stochastically(torch.full((n, 1), x), torch.arange(n), key).double()
    low, high = sorted((number_of(bits_of(x) >> 16 << 16), number_of((bits_of(x) >> 16) + 1 << 16)))
    assert set(found.unique().tolist()) <= {low, high}
    assert abs(found.mean().item() - x) <= 6 * (high - low) / 2 / math.sqrt(n) + (high - low) * 2.0**-16


@given(NUMBERS, KEYS)
def test_numbers_exact_in_bf16_do_not_change(x: float, key: int) -> None:
    rows = torch.full((3, 4), x).bfloat16()
    assert torch.equal(round_stochastically(rows.float(), torch.arange(3), key), rows)


@pytest.mark.parametrize("form", ["loop", "reference"])
def test_nan_and_infinities_are_kept(form: str) -> None:
    odd = torch.tensor([[torch.nan, torch.inf, -torch.inf, -0.0]]).repeat(500, 1)
    odd[1:, 0] = (
        torch.arange(0x7FFFFFFF - 498, 0x80000000).to(torch.int32).view(torch.float32)
    )  # NaNs near the overflow
    ids = torch.arange(500)
    found = (
        round_stochastically(odd, ids, 5)
        if form == "loop"
        else round_stochastically_reference(odd, random_bits(ids, 4, 5))
    )
    assert found[:, 0].isnan().all() and torch.equal(found[:, 1:], odd[:, 1:].bfloat16())


def test_rounding_depends_only_on_key_row_and_column() -> None:
    rows, ids = torch.randn(50, 6, generator=torch.Generator().manual_seed(0)), torch.arange(50) * 3
    found, order = round_stochastically(rows, ids, 9), torch.randperm(50, generator=torch.Generator().manual_seed(1))
    assert torch.equal(round_stochastically(rows[order], ids[order], 9), found[order])
    assert torch.equal(round_stochastically(rows[:, :2], ids, 9), found[:, :2])
    assert not torch.equal(round_stochastically(rows, ids, 10), found) and not torch.equal(
        round_stochastically(rows, ids + 1, 9), found
    )


def test_rows_are_gathered_as_float32_with_new_ids() -> None:
    table = torch.randn(9, 4, generator=torch.Generator().manual_seed(0)).bfloat16()
    ids = [torch.tensor([3, 3, 8]), torch.tensor([], dtype=torch.int64), torch.tensor([0])]
    small, places = gather_float32(table, ids)
    assert small.dtype == torch.float32 and small.shape == (4, 4)
    for there, here in zip(ids, places):
        assert torch.equal(small[here], to_float32(table[there]))
