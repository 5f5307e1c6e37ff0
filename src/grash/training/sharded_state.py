"""A fresh training of one rank: its rows of the initial entity table, all relations, and optimizers for both."""

from __future__ import annotations

import math

import torch

from grash.models import model_class
from grash.training.config import TrainConfig
from grash.training.initial import initial_model
from grash.training.sharded_rows import Shard
from grash.training.state import TrainState


def fresh_shard(config: TrainConfig, n_relations: int, shard: Shard, device: torch.device) -> TrainState:
    """The rows that a training in one process would begin with (xavier_uniform: up to the last bit)."""
    nothing = torch.empty(0, dtype=torch.int64)
    own = torch.arange(shard.first, shard.last)
    law = _law_of_whole_table(config, shard.n_rows)
    entity = initial_model(law, len(own), 0, device=device, entity_keys=own, relation_keys=nothing).entity
    relation = initial_model(config, 0, n_relations, device=device, entity_keys=nothing).relation
    model = model_class(config.model)(entity, relation, reciprocal=config.reciprocal, norm=config.norm)
    return TrainState.fresh(model, config)


def _law_of_whole_table(config: TrainConfig, n_entities: int) -> TrainConfig:
    """Glorot's laws depend on the rows of a table; said with their numbers, they are the same for a part of it."""
    spread = 2.0 / (n_entities + config.dim)
    if config.init == "xavier_normal":
        return config.changed(init="normal", init_std=math.sqrt(spread))
    if config.init == "xavier_uniform":
        bound = math.sqrt(3 * spread)
        return config.changed(init="uniform", init_low=-bound, init_high=bound)
    return config
