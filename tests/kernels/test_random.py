"""Random numbers from key and position: permutations, equal forms, the right distributions."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from grash.kernels import random as R
from grash.kernels.random import (
    BatchSampler,
    keep_mask,
    key_at,
    key_of,
    normal,
    permuted,
    permuted_rows,
    random_bits,
    uniform,
)

CPU = torch.device("cpu")
KEYS = st.integers(0, 2**64 - 1)
SIZES = st.one_of(
    st.sampled_from([1, 2, 3]),
    st.integers(1, 3000),
    st.integers(1, 60).flatmap(lambda a: st.sampled_from([max(1, a * a - 1), a * a, a * a + 1])),
)


def reference(places: torch.Tensor, n: int, key: int, *, inverse: bool = False) -> torch.Tensor:
    radix = math.isqrt(n - 1) + 1
    return R.permuted_reference(places, n, radix, R._round_keys(key), inverse=inverse)


@settings(deadline=None)
@given(SIZES, KEYS)
def test_a_permutation_is_a_bijection_with_an_inverse(n: int, key: int) -> None:
    places = torch.arange(n)
    moved = permuted(places, n, key)
    assert torch.equal(moved.sort().values, places)
    assert torch.equal(permuted(moved, n, key, inverse=True), places)
    assert torch.equal(permuted(permuted(places, n, key, inverse=True), n, key), places)


@settings(deadline=None)
@given(SIZES, KEYS, st.data())
def test_fewer_places_are_a_prefix_and_shape_does_not_matter(n: int, key: int, data: st.DataObject) -> None:
    few = data.draw(st.integers(0, n))
    whole = permuted(torch.arange(n), n, key)
    assert torch.equal(permuted(torch.arange(few), n, key), whole[:few])
    one = data.draw(st.integers(0, n - 1))
    assert permuted(torch.tensor([[one]], dtype=torch.int32), n, key).tolist() == [[int(whole[one])]]


@settings(deadline=None)
@given(SIZES, KEYS, st.booleans())
def test_the_loop_and_the_reference_permute_equally(n: int, key: int, inverse: bool) -> None:
    places = torch.arange(n)
    assert torch.equal(permuted(places, n, key, inverse=inverse), reference(places, n, key, inverse=inverse))


@settings(deadline=None)
@given(st.integers(2**31 - 3, 2**31 - 1), KEYS)
def test_the_largest_sizes_are_permuted(n: int, key: int) -> None:
    places = torch.tensor([0, 1, n // 2, n - 2, n - 1])
    moved = permuted(places, n, key)
    assert moved.unique().numel() == 5 and int(moved.min()) >= 0 and int(moved.max()) < n
    assert torch.equal(moved, reference(places, n, key))
    assert torch.equal(permuted(moved, n, key, inverse=True), places)


@settings(deadline=None)
@given(st.integers(1, 400), KEYS, st.integers(0, 5), st.data())
def test_every_row_has_its_own_permutation(n: int, key: int, n_rows: int, data: st.DataObject) -> None:
    count = data.draw(st.integers(0, n))
    rows = permuted_rows(n_rows, count, n, key, CPU)
    assert rows.shape == (n_rows, count)
    assert all(len(set(row)) == count and all(0 <= e < n for e in row) for row in rows.tolist())
    radix = math.isqrt(n - 1) + 1
    keys = R._row_round_keys(n_rows, key, CPU)
    columns = [keys[:, i : i + 1] for i in range(keys.shape[1])]
    wanted = R.permuted_reference(torch.arange(count)[None].expand(n_rows, -1), n, radix, columns)
    assert torch.equal(rows, wanted)
    assert torch.equal(permuted_rows(n_rows, count // 2, n, key, CPU), rows[:, : count // 2])


def chi_square(counts: torch.Tensor, expected: float) -> float:
    return float(((counts.double() - expected) ** 2 / expected).sum())


@pytest.mark.parametrize("n", [7, 16, 101])
def test_every_entity_is_equally_likely_at_every_place(n: int) -> None:
    draws = 4000
    firsts = permuted_rows(draws, min(3, n), n, key_of("uniformity", n), CPU)
    keyed = torch.stack([permuted(torch.arange(3), n, key_at(key_of(n), i)) for i in range(draws)])
    for place in range(3):
        for column in (firsts[:, place], keyed[:, place]):
            excess = chi_square(torch.bincount(column, minlength=n), draws / n) - (n - 1)
            assert abs(excess) < 5 * math.sqrt(2 * (n - 1))


def test_pairs_of_places_are_independent() -> None:
    n, draws = 6, 9000
    rows = permuted_rows(draws, 2, n, key_of("pairs"), CPU)
    counts = torch.bincount(rows[:, 0] * n + rows[:, 1], minlength=n * n).reshape(n, n)
    assert int(counts.diagonal().sum()) == 0
    off = counts[~torch.eye(n, dtype=torch.bool)]
    assert abs(chi_square(off, draws / 30) - 29) < 5 * math.sqrt(58)


@settings(deadline=None)
@given(KEYS, st.lists(st.integers(0, 2**40), max_size=6), st.integers(0, 9))
def test_the_loop_and_the_reference_give_the_same_bits(key: int, rows: list[int], width: int) -> None:
    places = torch.tensor(rows, dtype=torch.int64)
    bits = random_bits(places, width, key)
    assert bits.dtype == torch.int32 and bits.shape == (len(rows), width)
    assert torch.equal(bits, R.bits_reference(places, width, key & 0xFFFFFFFF, key >> 32))


@settings(deadline=None)
@given(KEYS, st.integers(0, 2**31), st.integers(1, 8), st.integers(1, 8))
def test_a_number_depends_only_on_its_row_and_column(key: int, row: int, width: int, wider: int) -> None:
    alone = random_bits(torch.tensor([row]), width, key)
    among = random_bits(torch.tensor([row + 1, row, row + 2]), width + wider, key)
    assert torch.equal(alone[0], among[1, :width])


def test_uniform_numbers_are_inside_the_unit_interval_and_uniform() -> None:
    numbers = uniform(torch.arange(2000), 50, key_of("uniform"))
    assert numbers.dtype == torch.float32 and float(numbers.min()) > 0 and float(numbers.max()) < 1
    counts = torch.histc(numbers, 100, 0, 1)
    assert abs(chi_square(counts, 1000) - 99) < 5 * math.sqrt(198)
    assert abs(float(numbers.double().var()) - 1 / 12) < 2e-3


def test_the_smallest_and_largest_uniform_number_stay_inside(monkeypatch: pytest.MonkeyPatch) -> None:
    extremes = torch.tensor([[0, -1, -(2**31), 2**31 - 1]], dtype=torch.int32)
    monkeypatch.setattr(R, "random_bits", lambda rows, width, key: extremes)
    numbers = uniform(torch.arange(1), 4, 0)
    assert numbers.tolist() == [[2.0**-24, 1 - 2.0**-24, 0.5 + 2.0**-24, 0.5 - 2.0**-24]]


def test_normal_numbers_have_the_moments_of_the_normal_distribution() -> None:
    numbers = normal(torch.arange(4000), 50, key_of("normal")).double()
    n = numbers.numel()
    assert bool(torch.isfinite(numbers).all())
    for power, moment, spread in ((1, 0.0, 1.0), (2, 1.0, 2.0), (3, 0.0, 15.0), (4, 3.0, 96.0)):
        assert abs(float(numbers.pow(power).mean()) - moment) < 5 * math.sqrt(spread / n)


@pytest.mark.parametrize("rate", [0.0, 1e-9, 0.1, 0.5, 0.99])
def test_dropout_has_its_rate_and_keeps_the_mean(rate: float) -> None:
    mask = keep_mask(torch.arange(500), 400, rate, key_of("mask", rate))
    share = float((mask == 0).double().mean())
    assert abs(share - rate) <= 5 * math.sqrt(rate * (1 - rate) / mask.numel()) + 1e-6
    assert set(mask.unique().tolist()) <= {0.0, float(torch.tensor(1 / (1 - rate)))}
    bits = random_bits(torch.arange(500), 400, key_of("mask", rate)).to(torch.int64) & 0xFFFFFFFF
    assert torch.equal(mask > 0, bits >= round(rate * 2**32))


@settings(deadline=None)
@given(KEYS, st.integers(0, 2**40))
def test_keys_of_neighboring_indices_differ(key: int, index: int) -> None:
    keys = {key_at(key, index), key_at(key, index + 1), key_at(key, index + 2), key}
    assert len(keys) == 4 and all(0 <= k < 2**64 for k in keys)


def test_streams_with_different_names_differ() -> None:
    assert key_of(0, "order") != key_of(0, "init") != key_of(1, "init")
    assert key_of(1, 12) != key_of(11, 2)
    assert len({key_at(key_of("stream"), i) for i in range(10_000)}) == 10_000


@settings(deadline=None)
@given(st.data(), KEYS, st.lists(KEYS, min_size=1, max_size=2), st.integers(0, 2**40), st.integers(0, 2**33))
def test_a_batch_sampler_draws_the_numbers_of_single_calls(
    data: st.DataObject, order_key: int, keys: list[int], step: int, epoch: int
) -> None:
    n_entities, n = data.draw(st.integers(1, 60)), data.draw(st.integers(1, 40))
    first = data.draw(st.integers(0, n - 1))
    last = data.draw(st.integers(first + 1, n))
    sides = [(key, data.draw(st.integers(1, n_entities)), 2 * number) for number, key in enumerate(keys)]
    train = torch.randint(n_entities, (n, 3), dtype=torch.int32, generator=torch.Generator().manual_seed(n))
    triples, rows, found = BatchSampler(train, order_key, n_entities, sides).draw(step, epoch, first, last)
    order = permuted(torch.arange(first, last), n, key_at(order_key, epoch))
    assert torch.equal(triples, train[order].long()) and triples.dtype == torch.int64
    assert torch.equal(rows, torch.arange(last - first))
    for (stream, count, column), (ids, columns, absent) in zip(sides, found, strict=True):
        key = key_at(stream, step)
        assert torch.equal(ids, permuted(torch.arange(count), n_entities, key))
        places = permuted(triples[:, column], n_entities, key, inverse=True)
        assert torch.equal(columns, places.clamp_max(count - 1))
        assert torch.equal(absent, places >= count)
