"""Initial tables and weights. A row depends on the seed and the entity alone, so an entity starts with the same row in
every subgraph and on every device; a weight depends on the seed and its name. Biases start at 0."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from grash.kernels.random import normal, uniform
from grash.kernels.storage import Placement, cpu_view
from grash.models import KgeModel, model_class
from grash.models.base import Weight
from grash.training.config import TrainConfig

_ROWS_AT_ONCE = 1 << 16  # drawing takes several times the memory of its result
STORAGE_DTYPES = {"float32": torch.float32, "bf16": torch.bfloat16}


def initial_model(
    config: TrainConfig,
    n_entities: int,
    n_relations: int,
    *,
    device: torch.device | str = "cpu",
    entity_keys: Tensor | None = None,
    relation_keys: Tensor | None = None,
    table_rows: int | None = None,
    placement: Placement = Placement(),  # noqa: B008, frozen
) -> KgeModel:
    """Return a model with initial tables: entity (E, dim), stored by `placement`; relation (R or 2R, width).

    entity_keys, relation_keys: ids in the full graph, of a subgraph's entities and relations. table_rows: of the whole
    entity table, if this is a part of it."""
    cls, where = model_class(config.model), torch.device(device)
    width = cls.relation_width(config.dim)
    relations = torch.arange(n_relations, device=where) if relation_keys is None else relation_keys.to(where)
    if config.reciprocal:
        relations = torch.cat([relations * 2, relations * 2 + 1])
    entity = placement.rows(n_entities, cls.entity_width(config.dim), where, dtype=STORAGE_DTYPES[config.storage])
    _fill(entity, config, entity_keys, "entities", table_rows or n_entities)
    entity[:, config.dim :] = 0
    if config.model == "rotate":
        phases = uniform(relations, width, config.own_key("init", "phases"))
        relation = (phases * 2 - 1) * math.pi
    else:
        relation = torch.empty(len(relations), width, device=where)
        _fill(relation, config, relations, "relations", len(relations))
    weights = {
        name: _weight(weight, config.own_key("init", "weights", name), where)
        for name, weight in cls.weight_shapes(config.dim).items()
    }
    return cls(entity, relation, reciprocal=config.reciprocal, norm=config.norm, weights=weights)


def _weight(weight: Weight, key: int, device: torch.device) -> Tensor:
    """Return an initial weight; Xavier (Glorot and Bengio) counts inputs and outputs as PyTorch does."""
    if weight.init in ("zeros", "ones"):
        return torch.full(weight.shape, float(weight.init == "ones"), device=device)
    rows, width = torch.arange(weight.shape[0], device=device), math.prod(weight.shape[1:])
    if weight.init == "uniform":
        return (uniform(rows, width, key) * 2 - 1).view(weight.shape)
    n_inputs, n_outputs = width, weight.shape[0] * math.prod(weight.shape[2:])
    return (normal(rows, width, key) * math.sqrt(2.0 / (n_inputs + n_outputs))).view(weight.shape)


def _fill(table: Tensor, config: TrainConfig, keys: Tensor | None, name: str, table_rows: int) -> None:
    """Fill table (n, width), drawn in float32 on its device; bf16 rounds to nearest. keys (n,): default 0…n−1."""
    n, width = table.shape
    spread = 2.0 / (table_rows + width)  # Glorot and Bengio, for a table of this shape
    target, key = cpu_view(table), config.own_key("init", name)
    for first in range(0, n, _ROWS_AT_ONCE):
        last = min(first + _ROWS_AT_ONCE, n)
        ids = torch.arange(first, last, device=table.device) if keys is None else keys[first:last].to(table.device)
        target[first:last].copy_(_draw(config, ids, width, key, spread).to(table.dtype), non_blocking=True)
    if target is not table:  # the CPU reads this memory too: wait for copies from the GPU
        torch.cuda.synchronize(table.device)


def _draw(config: TrainConfig, keys: Tensor, width: int, key: int, spread: float) -> Tensor:
    if config.init == "uniform":
        return uniform(keys, width, key) * (config.init_high - config.init_low) + config.init_low
    if config.init == "normal":
        return normal(keys, width, key) * config.init_std
    if config.init == "xavier_normal":
        return normal(keys, width, key) * math.sqrt(spread)
    return (uniform(keys, width, key) * 2 - 1) * math.sqrt(3 * spread)
