"""Products of complex numbers stored in halves (first all real parts, then all imaginary parts), and their gradients.

    product(a, b) = a·b, or a·conj(b)        (B, D), (B, D) → (B, D)
One pass each; the plain forms make four and eight. They are ComplEx's queries.
"""

from __future__ import annotations

import numba
import torch
from torch import Tensor

from grash.kernels.threads import use_torch_threads


def product(a: Tensor, b: Tensor, *, conjugate: bool = False) -> Tensor:
    """a·b, or a·conj(b)."""
    if not _loops_serve(a, b):
        return product_plain(a, b, conjugate=conjugate)
    use_torch_threads()
    out = torch.empty_like(a)
    _product_loop(a.numpy(), b.numpy(), out.numpy(), -1.0 if conjugate else 1.0)
    return out


def product_plain(a: Tensor, b: Tensor, *, conjugate: bool = False) -> Tensor:
    """The plain form of `product`."""
    (ar, ai), (br, bi) = a.chunk(2, -1), b.chunk(2, -1)
    if conjugate:
        return torch.cat([ar * br + ai * bi, ai * br - ar * bi], -1)
    return torch.cat([ar * br - ai * bi, ar * bi + ai * br], -1)


def product_gradient(upstream: Tensor, a: Tensor, b: Tensor, *, conjugate: bool = False) -> tuple[Tensor, Tensor]:
    """Gradients of Σ upstream·product(a, b) for a and for b."""
    if not _loops_serve(upstream, a, b):
        return product_gradient_plain(upstream, a, b, conjugate=conjugate)
    use_torch_threads()
    for_a, for_b = torch.empty_like(a), torch.empty_like(b)
    arrays = [x.numpy() for x in (upstream, a, b, for_a, for_b)]
    _gradient_loop(*arrays, -1.0 if conjugate else 1.0)  # type: ignore[call-arg]
    return for_a, for_b


def product_gradient_plain(upstream: Tensor, a: Tensor, b: Tensor, *, conjugate: bool = False) -> tuple[Tensor, Tensor]:
    """The plain form of `product_gradient`: u·conj(b) and u·conj(a), or u·b and a·conj(u)."""
    if conjugate:
        return product_plain(upstream, b), product_plain(a, upstream, conjugate=True)
    return product_plain(upstream, b, conjugate=True), product_plain(upstream, a, conjugate=True)


def _loops_serve(*tensors: Tensor) -> bool:
    return all(t.device.type == "cpu" and t.dtype == torch.float32 and t.is_contiguous() for t in tensors)


@numba.njit(cache=True, parallel=True, fastmath={"contract"})
def _product_loop(a, b, out, sign):  # type: ignore[no-untyped-def]
    half = a.shape[1] // 2
    s = a.dtype.type(sign)
    for i in numba.prange(a.shape[0]):
        for k in range(half):
            ar, ai, br, bi = a[i, k], a[i, half + k], b[i, k], s * b[i, half + k]
            out[i, k] = ar * br - ai * bi
            out[i, half + k] = ar * bi + ai * br


@numba.njit(cache=True, parallel=True, fastmath={"contract"})
def _gradient_loop(u, a, b, for_a, for_b, sign):  # type: ignore[no-untyped-def]
    half = a.shape[1] // 2
    s = a.dtype.type(sign)
    for i in numba.prange(a.shape[0]):
        for k in range(half):
            ur, ui = u[i, k], u[i, half + k]
            ar, ai, br, bi = a[i, k], a[i, half + k], b[i, k], s * b[i, half + k]
            for_a[i, k] = ur * br + ui * bi
            for_a[i, half + k] = ui * br - ur * bi
            for_b[i, k] = ur * ar + ui * ai
            for_b[i, half + k] = s * (ui * ar - ur * ai)
