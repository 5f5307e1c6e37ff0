"""Fold several models into one whose score is the sum of theirs: an ensemble that is queried like any model.

A score that is a sum over coordinates, such as a dot product, is the same sum over the coordinates of all models side
by side. Two ComplEx models of 256 floats become one of 512.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from grash.errors import InputError
from grash.kernels.storage import row_blocks
from grash.models import MODELS
from grash.models.base import KgeModel

_BLOCK = 1 << 16  # rows copied at a time


def fold_models(models: Sequence[KgeModel]) -> KgeModel:
    """Return one model whose scores are the sums of the scores of these, with their rows side by side.

    All need the same class and size, and either all or none have reciprocal relations.
    """
    if len(models) < 2:
        raise InputError("An ensemble needs two models or more.")
    first = models[0]
    for i, model in enumerate(models, 1):
        if not model.is_additive:
            name = f"{model.name} with norm 2" if model.additive else model.name
            raise InputError(
                f"{name} cannot be folded: its score is not a sum over coordinates. These can, the distances with "
                f"norm 1: {', '.join(name for name, each in MODELS.items() if each.additive)}."
            )
        for what in ("name", "reciprocal", "n_entities", "n_relations"):
            mine, other = getattr(first, what), getattr(model, what)
            if mine != other:
                what = "model" if what == "name" else what
                raise InputError(f"Models of an ensemble need the same {what}: model 1 has {mine}, model {i} {other}.")
    parts = first.dim_multiple
    of_relation = parts * first.relation_width(first.dim) // first.dim
    entity = _side_by_side([model.entity for model in models], parts)
    relation = _side_by_side([model.relation for model in models], of_relation)
    return type(first)(entity, relation, reciprocal=first.reciprocal, norm=first.norm)


def _side_by_side(tables: Sequence[Tensor], parts: int) -> Tensor:
    """tables (n, Dᵢ), each of `parts` equal parts → (n, Σ Dᵢ): all first parts, then all second parts, and so on.

    Tables of different types become float32.
    """
    first, widths = tables[0], [table.shape[1] // parts for table in tables]
    dtype = first.dtype if all(table.dtype == first.dtype for table in tables) else torch.float32
    joined = torch.empty(len(first), parts, sum(widths), dtype=dtype, device=first.device)
    end = 0
    for table, width in zip(tables, widths):
        begin, end = end, end + width
        for row, rows in row_blocks(table, _BLOCK):
            joined[row : row + len(rows), :, begin:end] = rows.unflatten(1, (parts, width))
    return joined.flatten(1)
