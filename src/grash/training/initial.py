"""Initial tables. A row is a function of the seed and of its entity, so that the same entity starts alike in
every subgraph and on every device; `entity_keys` names the entities of a subgraph in the full graph."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from grash.kernels.random import normal, uniform
from grash.models import KgeModel, model_class
from grash.training.config import TrainConfig

_TOGETHER = 1 << 16  # rows drawn at a time


def initial_model(
    config: TrainConfig,
    n_entities: int,
    n_relations: int,
    *,
    device: torch.device | str = "cpu",
    entity_keys: Tensor | None = None,
    relation_keys: Tensor | None = None,
) -> KgeModel:
    """A model with fresh tables: entity (E, dim), relation (R or 2R, width)."""
    cls = model_class(config.model)
    width = cls.relation_width(config.dim)
    entities = _keys(entity_keys, n_entities, device)
    relations = _keys(relation_keys, n_relations, device)
    if config.reciprocal:
        relations = torch.cat([relations * 2, relations * 2 + 1])
    entity = _rows(config, entities, config.dim, "entities")
    if config.model == "rotate":
        phases = uniform(relations, width, config.own_key("init", "phases"))
        relation = (phases * 2 - 1) * math.pi
    else:
        relation = _rows(config, relations, width, "relations")
    return cls(entity, relation, reciprocal=config.reciprocal, norm=config.norm)


def _keys(keys: Tensor | None, n: int, device: torch.device | str) -> Tensor:
    return torch.arange(n, device=device) if keys is None else keys.to(device)


def _rows(config: TrainConfig, keys: Tensor, width: int, table: str) -> Tensor:
    """(n, width), made in parts, since the steps of a law take several times the space of their result."""
    spread = 2.0 / (len(keys) + width)  # Glorot and Bengio, for a table of this shape
    rows = torch.empty(len(keys), width, device=keys.device)
    for part, some in zip(rows.split(_TOGETHER), keys.split(_TOGETHER)):
        part.copy_(_drawn(config, some, width, config.own_key("init", table), spread))
    return rows


def _drawn(config: TrainConfig, keys: Tensor, width: int, key: int, spread: float) -> Tensor:
    if config.init == "uniform":
        return uniform(keys, width, key) * (config.init_high - config.init_low) + config.init_low
    if config.init == "normal":
        return normal(keys, width, key) * config.init_std
    if config.init == "xavier_normal":
        return normal(keys, width, key) * math.sqrt(spread)
    return (uniform(keys, width, key) * 2 - 1) * math.sqrt(3 * spread)
