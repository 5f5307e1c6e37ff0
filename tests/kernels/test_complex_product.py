"""Products of complex rows against torch's complex numbers; gradients against autograd; loops against references."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from grash.kernels.complex_product import (
    TripleBatch,
    both_gradients,
    both_gradients_reference,
    both_queries,
    both_queries_reference,
    product,
    product_gradient,
    product_gradient_reference,
    product_reference,
)


def rows(n: int, width: int, seed: int, dtype: torch.dtype) -> torch.Tensor:
    return torch.randn(n, width, dtype=dtype, generator=torch.Generator().manual_seed(seed))


def as_complex(x: torch.Tensor) -> torch.Tensor:
    return torch.complex(*x.chunk(2, -1))


@pytest.mark.parametrize("conjugate", [False, True])
@pytest.mark.parametrize("shape", [(0, 4), (1, 2), (7, 6), (33, 130)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_products_and_gradients_equal_complex_numbers_and_autograd(shape, conjugate, dtype):
    a, b, upstream = (rows(*shape, seed, dtype) for seed in range(3))
    other = as_complex(b).conj() if conjugate else as_complex(b)
    wanted = as_complex(a) * other
    for call in (product, product_reference):
        found = call(a, b, conjugate=conjugate)
        assert torch.allclose(as_complex(found), wanted, atol=1e-5)
    a.requires_grad_()
    b.requires_grad_()
    (product_reference(a, b, conjugate=conjugate) * upstream).sum().backward()
    for gradient in (product_gradient, product_gradient_reference):
        for found, leaf in zip(gradient(upstream, a.detach(), b.detach(), conjugate=conjugate), (a, b)):
            assert torch.allclose(found, leaf.grad, atol=1e-5)


def test_a_view_that_is_not_contiguous_is_read_correctly():
    table = rows(5, 12, 0, torch.float32)
    a, b = table[:, :6], table[:, 6:]
    assert torch.equal(product(a, b), product_reference(a.contiguous(), b.contiguous()))


def batch_of(n: int, dim: int, *, conjugate: bool, seed: int = 0, dtype: torch.dtype = torch.float32) -> TripleBatch:
    """Return triples among 5 entities and 6 relation rows, so that rows repeat."""
    generator = torch.Generator().manual_seed(seed)
    tables = [torch.randn(rows, dim, generator=generator, dtype=dtype) for rows in (5, 6)]
    ids = torch.randint(0, 5, (4, n), generator=generator)
    inverse = ids[2] if conjugate else ids[3] + 1
    others = torch.randint(0, 5, (2 * n,), generator=generator), torch.randint(0, 5, (n // 2,), generator=generator)
    return TripleBatch(*tables, ids[0], ids[1], ids[2], inverse, others, conjugate)


def upstream(
    batch: TripleBatch, seed: int = 1
) -> tuple[tuple[torch.Tensor, torch.Tensor], tuple[torch.Tensor, torch.Tensor]]:
    generator = torch.Generator().manual_seed(seed)
    n, dim, dtype = len(batch.heads), batch.entity.shape[1], batch.entity.dtype
    rows = torch.randn(2, n, dim, generator=generator, dtype=dtype)
    weights = torch.randn(2, n, generator=generator, dtype=dtype)
    return (rows[0], rows[1]), (weights[0], weights[1])


@given(st.integers(0, 40), st.integers(1, 40), st.booleans(), st.integers(0, 99))
def test_queries_and_gradients_of_both_sides_equal_their_references(n, half, conjugate, seed):
    batch = batch_of(n, 2 * half, conjugate=conjugate, seed=seed)
    queries, scores, rows = both_queries(batch)
    wanted, wanted_scores, wanted_rows = both_queries_reference(batch)
    assert all(torch.equal(a, b) for a, b in zip(rows, wanted_rows))
    for a, b in zip((*queries, *scores), (*wanted, *wanted_scores)):
        assert a.shape == b.shape and torch.allclose(a, b, rtol=1e-4, atol=1e-4)
    given = upstream(batch, seed)
    for a, b in zip(both_gradients(batch, queries, *given), both_gradients_reference(batch, queries, *given)):
        assert a.shape == b.shape and torch.allclose(a, b, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("conjugate", [False, True])
def test_the_reference_of_gradients_of_both_sides_equals_autograd(conjugate):
    batch = batch_of(7, 6, conjugate=conjugate, dtype=torch.float64)
    for_queries, for_scores = upstream(batch)
    rows = [
        table[ids].requires_grad_()
        for table, ids in (
            (batch.entity, batch.heads),
            (batch.entity, batch.tails),
            (batch.relation, batch.relations),
            (batch.relation, batch.inverse_relations),
        )
    ]
    head, tail, relation, inverse = rows
    queries = product_reference(head, relation), product_reference(tail, inverse, conjugate=conjugate)
    scores = (queries[0] * tail).sum(1), (queries[1] * head).sum(1)
    loss = sum((u * q).sum() for u, q in zip((*for_queries, *for_scores), (*queries, *scores)))
    loss.backward()
    found = both_gradients_reference(batch, both_queries_reference(batch)[0], for_queries, for_scores)
    wanted = [leaf.grad for leaf in rows]
    if batch.relations is batch.inverse_relations:
        wanted = [*wanted[:2], wanted[2] + wanted[3]]
    assert len(found) == len(wanted)
    for gradient, leaf in zip(found, wanted):
        torch.testing.assert_close(gradient, leaf)


def test_the_bits_do_not_depend_on_addresses_of_arrays():
    """Scores summed in the loop that writes the queries had another last bit in one of 2,000 calls."""
    start = batch_of(16, 8, conjugate=True)
    first = None
    others: list[torch.Tensor] = []
    for size in torch.randint(1, 3000, (3000,), generator=torch.Generator().manual_seed(0)).tolist():
        others = [*others[-30:], torch.empty(size)]  # to change the addresses
        batch = replace(start, entity=start.entity.clone(), relation=start.relation.clone())
        queries, scores, _ = both_queries(batch)
        found = (*queries, *scores, *both_gradients(batch, queries, *upstream(batch)))
        first = first or found
        assert all(torch.equal(a, b) for a, b in zip(first, found))
