"""Products of complex rows against torch's complex numbers, gradients against autograd."""

from __future__ import annotations

import pytest
import torch

from grash.kernels.complex_product import product, product_gradient, product_gradient_plain, product_plain


def rows(n: int, width: int, seed: int, dtype: torch.dtype) -> torch.Tensor:
    return torch.randn(n, width, dtype=dtype, generator=torch.Generator().manual_seed(seed))


def as_complex(x: torch.Tensor) -> torch.Tensor:
    return torch.complex(*x.chunk(2, -1))


@pytest.mark.parametrize("conjugate", [False, True])
@pytest.mark.parametrize("shape", [(0, 4), (1, 2), (7, 6), (33, 130)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_products_and_gradients(shape, conjugate, dtype):
    a, b, upstream = (rows(*shape, seed, dtype) for seed in range(3))
    other = as_complex(b).conj() if conjugate else as_complex(b)
    wanted = as_complex(a) * other
    for call in (product, product_plain):
        found = call(a, b, conjugate=conjugate)
        assert torch.allclose(as_complex(found), wanted, atol=1e-5)
    a.requires_grad_()
    b.requires_grad_()
    (product_plain(a, b, conjugate=conjugate) * upstream).sum().backward()
    for gradient in (product_gradient, product_gradient_plain):
        for found, leaf in zip(gradient(upstream, a.detach(), b.detach(), conjugate=conjugate), (a, b)):
            assert torch.allclose(found, leaf.grad, atol=1e-5)


def test_a_view_that_is_not_contiguous_is_read_right():
    table = rows(5, 12, 0, torch.float32)
    a, b = table[:, :6], table[:, 6:]
    assert torch.equal(product(a, b), product_plain(a.contiguous(), b.contiguous()))
