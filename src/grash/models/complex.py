"""ComplEx (Trouillon et al., 2016): Re Σ h·r·conj(t) over complex coordinates."""

from __future__ import annotations

from torch import Tensor

from grash.models.base import DotModel, Slot, halves, joined


class ComplEx(DotModel):
    name = "complex"
    even = True

    def query(self, known: Tensor, relation: Tensor, slot: Slot) -> Tensor:
        return _times(known, relation, conjugate=slot == "head")

    def query_gradient(self, upstream: Tensor, known: Tensor, relation: Tensor, slot: Slot) -> tuple[Tensor, Tensor]:
        if slot == "tail":  # q = k·r
            return _times(upstream, relation, conjugate=True), _times(upstream, known, conjugate=True)
        return _times(upstream, relation), _times(known, upstream, conjugate=True)  # q = k·conj(r)

    def meeting(self, head: Tensor, tail: Tensor) -> Tensor:
        return _times(tail, head, conjugate=True)

    def meeting_gradient(self, upstream: Tensor, head: Tensor, tail: Tensor) -> tuple[Tensor, Tensor]:
        return _times(tail, upstream, conjugate=True), _times(upstream, head)


def _times(a: Tensor, b: Tensor, *, conjugate: bool = False) -> Tensor:
    """a·b, or a·conj(b), as complex numbers in halves."""
    (ar, ai), (br, bi) = halves(a), halves(b)
    if conjugate:
        return joined(ar * br + ai * bi, ai * br - ar * bi)
    return joined(ar * br - ai * bi, ar * bi + ai * br)
