"""RotatE (Sun et al., 2019): −‖h∘e^{iθ} − t‖ over complex coordinates; a relation is D/2 phases θ.

Norm 1 sums the moduli of the coordinates (the authors' score), norm 2 is the Euclidean length. A rotation keeps
lengths, so a head query rotates the tail by −θ.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from grash.kernels.pair_scores import Pair
from grash.models.base import KgeModel, Side, halves, joined

_TILE = 1 << 24  # elements of (B, r, D/2) that relation scores use at once


class RotatE(KgeModel):
    name = "rotate"
    dim_multiple = 2
    additive = True

    @property
    def pair(self) -> Pair:
        return "modulus" if self.norm == 1 else "l2"

    @staticmethod
    def relation_width(dim: int) -> int:
        return dim // 2

    def query(self, known: Tensor, relation: Tensor, side: Side) -> Tensor:
        (re, im), (cos, sin) = halves(known), _rotation(relation, side)
        return joined(re * cos - im * sin, re * sin + im * cos)

    def query_gradient(self, upstream: Tensor, known: Tensor, relation: Tensor, side: Side) -> tuple[Tensor, Tensor]:
        (re, im), (cos, sin), (ur, ui) = halves(known), _rotation(relation, side), halves(upstream)
        for_known = joined(ur * cos + ui * sin, ui * cos - ur * sin)
        for_phase = ui * (re * cos - im * sin) - ur * (re * sin + im * cos)
        return for_known, for_phase if side == "tail" else -for_phase

    def fitted_relation(self, head: Tensor, tail: Tensor) -> Tensor:
        _, along, across = _products(head, tail)
        return torch.atan2(across.mean(0), along.mean(0))

    def relation_scores(self, head: Tensor, tail: Tensor, relations: Tensor) -> Tensor:
        squares, along, across = _products(head, tail)
        tiles = self._tiles(relations, len(head))
        return torch.cat([-self._length(_moduli(squares, along, across, phases)) for phases in tiles], 1)

    def relation_scores_gradient(
        self, upstream: Tensor, scores: Tensor, head: Tensor, tail: Tensor, relations: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        squares, along, across = _products(head, tail)
        g_squares, g_along, g_across = (torch.zeros_like(squares) for _ in range(3))
        g_phases, start = [], 0
        for phases in self._tiles(relations, len(head)):
            part = slice(start, start + len(phases))
            start += len(phases)
            moduli = _moduli(squares, along, across, phases)
            length = moduli if self.norm == 1 else -scores[:, part, None]
            # score = −Σ moduli or −√Σ moduli²; either way d score / d modulus² = −1 / (2·length)
            weight = (upstream[:, part, None] / length).masked_fill_(~(length > 0), 0).expand_as(moduli)
            cos, sin = phases.cos(), phases.sin()
            g_squares -= 0.5 * weight.sum(1)
            g_along += (weight * cos).sum(1)
            g_across += (weight * sin).sum(1)
            g_phases.append((weight * (across[:, None] * cos - along[:, None] * sin)).sum(0))
        (hr, hi), (tr, ti) = halves(head), halves(tail)
        for_head = joined(
            2 * g_squares * hr + g_along * tr + g_across * ti,
            2 * g_squares * hi + g_along * ti - g_across * tr,
        )
        for_tail = joined(
            2 * g_squares * tr + g_along * hr - g_across * hi,
            2 * g_squares * ti + g_along * hi + g_across * hr,
        )
        return for_head, for_tail, torch.cat(g_phases)

    def after_step(self) -> None:
        """Wrap the phases into [−π, π)."""
        self.relation.add_(math.pi).remainder_(2 * math.pi).sub_(math.pi)

    def _length(self, moduli: Tensor) -> Tensor:
        return moduli.sum(-1) if self.norm == 1 else moduli.square().sum(-1).sqrt()

    def _tiles(self, relations: Tensor, batch: int) -> tuple[Tensor, ...]:
        return relations.split(max(1, _TILE // max(1, batch * relations.shape[1])))


def prediction_tiles(batch: int, n_relations: int, width: int) -> int:
    """Return the floats of the tiles (B, r, D/2) that `relation_scores_gradient` holds at a time."""
    together = max(1, _TILE // max(1, batch * width))
    return math.ceil(5.25 * batch * min(together, n_relations) * width)


def _rotation(phases: Tensor, side: Side) -> tuple[Tensor, Tensor]:
    sin = phases.sin()
    return phases.cos(), sin if side == "tail" else -sin


def _products(head: Tensor, tail: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return (B, D/2) squares, along and across: |h·e^{iθ} − t|² = squares − 2·(along·cos θ + across·sin θ)."""
    (hr, hi), (tr, ti) = halves(head), halves(tail)
    return hr * hr + hi * hi + tr * tr + ti * ti, hr * tr + hi * ti, hr * ti - hi * tr


def _moduli(squares: Tensor, along: Tensor, across: Tensor, phases: Tensor) -> Tensor:
    """squares, along, across (B, D/2), phases (r, D/2) → (B, r, D/2)."""
    inner = along[:, None] * phases.cos() + across[:, None] * phases.sin()
    return (squares[:, None] - 2 * inner).clamp_min(0).sqrt()
