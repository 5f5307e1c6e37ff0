"""Initial tables. A row is a function of the seed and of its entity, so that the same entity starts alike in
every subgraph and on every device; `entity_keys` names the entities of a subgraph in the full graph."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from grash.kernels.host_rows import cpu_view
from grash.kernels.random import normal, uniform
from grash.models import KgeModel, model_class
from grash.training.config import TrainConfig
from grash.training.placement import Placement

_TOGETHER = 1 << 16  # rows drawn at a time
STORED = {"float32": torch.float32, "bf16": torch.bfloat16}  # by the config's storage


def initial_model(
    config: TrainConfig,
    n_entities: int,
    n_relations: int,
    *,
    device: torch.device | str = "cpu",
    entity_keys: Tensor | None = None,
    relation_keys: Tensor | None = None,
    placement: Placement = Placement(),  # noqa: B008, frozen
) -> KgeModel:
    """A model with fresh tables: entity (E, dim), where `placement` says; relation (R or 2R, width)."""
    cls, where = model_class(config.model), torch.device(device)
    width = cls.relation_width(config.dim)
    relations = torch.arange(n_relations, device=where) if relation_keys is None else relation_keys.to(where)
    if config.reciprocal:
        relations = torch.cat([relations * 2, relations * 2 + 1])
    entity = placement.rows(n_entities, config.dim, where, dtype=STORED[config.storage])
    _fill(entity, config, entity_keys, "entities")
    if config.model == "rotate":
        phases = uniform(relations, width, config.own_key("init", "phases"))
        relation = (phases * 2 - 1) * math.pi
    else:
        relation = torch.empty(len(relations), width, device=where)
        _fill(relation, config, relations, "relations")
    return cls(entity, relation, reciprocal=config.reciprocal, norm=config.norm)


def _fill(table: Tensor, config: TrainConfig, keys: Tensor | None, name: str) -> None:
    """Draws table (n, width) in parts, since the steps of a law take several times the space of their result. Rows are
    drawn where they are computed with, in float32, and rounded to the nearest if the table is in bf16; keys (n,), by
    default their places."""
    n, width = table.shape
    spread = 2.0 / (n + width)  # Glorot and Bengio, for a table of this shape
    there, key = cpu_view(table), config.own_key("init", name)
    for first in range(0, n, _TOGETHER):
        last = min(first + _TOGETHER, n)
        some = torch.arange(first, last, device=table.device) if keys is None else keys[first:last].to(table.device)
        there[first:last].copy_(_drawn(config, some, width, key, spread).to(table.dtype), non_blocking=True)
    if there is not table:  # what is on its way from the card lands in memory that the CPU reads too
        torch.cuda.synchronize(table.device)


def _drawn(config: TrainConfig, keys: Tensor, width: int, key: int, spread: float) -> Tensor:
    if config.init == "uniform":
        return uniform(keys, width, key) * (config.init_high - config.init_low) + config.init_low
    if config.init == "normal":
        return normal(keys, width, key) * config.init_std
    if config.init == "xavier_normal":
        return normal(keys, width, key) * math.sqrt(spread)
    return (uniform(keys, width, key) * 2 - 1) * math.sqrt(3 * spread)
