"""Triples asked from both ends: the loops against their plain forms, and those against autograd."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from grash.kernels.complex_product import (
    TripleBatch,
    both_gradients,
    both_queries,
    end_gradients_plain,
    end_queries_plain,
    product_plain,
)


def ends_of(n: int, dim: int, *, conjugate: bool, seed: int = 0, dtype: torch.dtype = torch.float32) -> TripleBatch:
    """Triples among 5 entities and 6 relation rows, so that rows repeat."""
    generator = torch.Generator().manual_seed(seed)
    tables = [torch.randn(rows, dim, generator=generator, dtype=dtype) for rows in (5, 6)]
    ids = torch.randint(0, 5, (4, n), generator=generator)
    backward = ids[2] if conjugate else ids[3] + 1
    others = torch.randint(0, 5, (2 * n,), generator=generator), torch.randint(0, 5, (n // 2,), generator=generator)
    return TripleBatch(*tables, ids[0], ids[1], ids[2], backward, others, conjugate)


def upstream(
    ends: TripleBatch, seed: int = 1
) -> tuple[tuple[torch.Tensor, torch.Tensor], tuple[torch.Tensor, torch.Tensor]]:
    generator = torch.Generator().manual_seed(seed)
    n, dim, dtype = len(ends.heads), ends.entity.shape[1], ends.entity.dtype
    rows = torch.randn(2, n, dim, generator=generator, dtype=dtype)
    weights = torch.randn(2, n, generator=generator, dtype=dtype)
    return (rows[0], rows[1]), (weights[0], weights[1])


@given(st.integers(0, 40), st.integers(1, 40), st.booleans(), st.integers(0, 99))
def test_the_loops_equal_their_plain_forms(n, half, conjugate, seed):
    ends = ends_of(n, 2 * half, conjugate=conjugate, seed=seed)
    queries, scores, rows = both_queries(ends)
    wanted, wanted_scores, wanted_rows = end_queries_plain(ends)
    assert all(torch.equal(a, b) for a, b in zip(rows, wanted_rows))
    for a, b in zip((*queries, *scores), (*wanted, *wanted_scores)):
        assert a.shape == b.shape and torch.allclose(a, b, rtol=1e-4, atol=1e-4)
    given_up = upstream(ends, seed)
    for a, b in zip(both_gradients(ends, queries, *given_up), end_gradients_plain(ends, queries, *given_up)):
        assert a.shape == b.shape and torch.allclose(a, b, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("conjugate", [False, True])
def test_the_plain_gradients_equal_autograd(conjugate):
    ends = ends_of(7, 6, conjugate=conjugate, dtype=torch.float64)
    for_queries, for_scores = upstream(ends)
    rows = [
        table[ids].requires_grad_()
        for table, ids in (
            (ends.entity, ends.heads),
            (ends.entity, ends.tails),
            (ends.relation, ends.forward),
            (ends.relation, ends.backward),
        )
    ]
    head, tail, forward, backward = rows
    queries = product_plain(head, forward), product_plain(tail, backward, conjugate=conjugate)
    scores = (queries[0] * tail).sum(1), (queries[1] * head).sum(1)
    loss = sum((u * q).sum() for u, q in zip((*for_queries, *for_scores), (*queries, *scores)))
    loss.backward()
    found = end_gradients_plain(ends, end_queries_plain(ends)[0], for_queries, for_scores)
    wanted = [leaf.grad for leaf in rows]
    if ends.forward is ends.backward:
        wanted = [*wanted[:2], wanted[2] + wanted[3]]
    assert len(found) == len(wanted)
    for gradient, leaf in zip(found, wanted):
        torch.testing.assert_close(gradient, leaf)


def test_the_bits_do_not_depend_on_where_the_arrays_lie():
    """Once in some two thousand calls, scores summed in the loop that writes the queries had another last bit."""
    start = ends_of(16, 8, conjugate=True)
    first = None
    others: list[torch.Tensor] = []
    for size in torch.randint(1, 3000, (3000,), generator=torch.Generator().manual_seed(0)).tolist():
        others = [*others[-30:], torch.empty(size)]  # so that memory is laid out anew
        ends = replace(start, entity=start.entity.clone(), relation=start.relation.clone())
        queries, scores, _ = both_queries(ends)
        found = (*queries, *scores, *both_gradients(ends, queries, *upstream(ends)))
        first = first or found
        assert all(torch.equal(a, b) for a, b in zip(first, found))
