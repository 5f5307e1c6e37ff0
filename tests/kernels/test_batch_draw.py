"""A step's draws in one loop against the same numbers one call after the other."""

from __future__ import annotations

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from grash.kernels.random import BatchDraw, key_at, permuted

KEYS = st.integers(0, 2**64 - 1)


@settings(deadline=None)
@given(st.data(), KEYS, st.lists(KEYS, min_size=1, max_size=2), st.integers(0, 2**40), st.integers(0, 2**33))
def test_one_loop_draws_what_single_calls_draw(
    data: st.DataObject, order_key: int, keys: list[int], step: int, epoch: int
) -> None:
    n_entities, n = data.draw(st.integers(1, 60)), data.draw(st.integers(1, 40))
    first = data.draw(st.integers(0, n - 1))
    last = data.draw(st.integers(first + 1, n))
    slots = [(key, data.draw(st.integers(1, n_entities)), 2 * number) for number, key in enumerate(keys)]
    train = torch.randint(n_entities, (n, 3), dtype=torch.int32, generator=torch.Generator().manual_seed(n))
    triples, rows, found = BatchDraw(train, order_key, n_entities, slots).at(step, epoch, first, last)
    order = permuted(torch.arange(first, last), n, key_at(order_key, epoch))
    assert torch.equal(triples, train[order].long()) and triples.dtype == torch.int64
    assert torch.equal(rows, torch.arange(last - first))
    for (stream, count, column), (ids, columns, absent) in zip(slots, found, strict=True):
        key = key_at(stream, step)
        assert torch.equal(ids, permuted(torch.arange(count), n_entities, key))
        places = permuted(triples[:, column], n_entities, key, inverse=True)
        assert torch.equal(columns, places.clamp_max(count - 1))
        assert torch.equal(absent, places >= count)
