"""Initial tables: their distributions, and rows that depend on the entity."""

from __future__ import annotations

import math

import pytest
import torch

from grash.training.config import make_config
from grash.training.initial import initial_model

E, R, D = 3000, 4, 40


@pytest.mark.parametrize(
    ("values", "mean", "std", "bounds"),
    [
        ({"init": "normal", "init_std": 0.3}, 0.0, 0.3, None),
        ({"init": "uniform", "init_low": -0.5, "init_high": 1.0}, 0.25, 1.5 / math.sqrt(12), (-0.5, 1.0)),
        ({"init": "xavier_normal"}, 0.0, math.sqrt(2 / (E + D)), None),
        ({"init": "xavier_uniform"}, 0.0, math.sqrt(2 / (E + D)), (-math.sqrt(6 / (E + D)), math.sqrt(6 / (E + D)))),
    ],
)
def test_rows_follow_their_distribution(
    values: dict[str, object], mean: float, std: float, bounds: tuple[float, float] | None
) -> None:
    entity = initial_model(make_config({"dim": D} | values), E, R).entity.double()
    assert entity.shape == (E, D)
    assert abs(float(entity.mean()) - mean) < 5 * std / math.sqrt(E * D)
    assert float(entity.std()) == pytest.approx(std, rel=0.02)
    if bounds is not None:
        assert bounds[0] <= float(entity.min()) and float(entity.max()) <= bounds[1]


def test_phases_spread_over_the_whole_circle() -> None:
    phases = initial_model(make_config({"model": "rotate", "dim": D}), 5, 2000).relation
    assert phases.shape == (2000, D // 2) and float(phases.abs().max()) <= math.pi
    assert abs(float(phases.cos().mean())) < 0.02 and abs(float(phases.sin().mean())) < 0.02


def test_an_entity_starts_with_the_same_row_in_every_subgraph() -> None:
    config = make_config({"dim": D, "init": "normal", "reciprocal": True})
    whole = initial_model(config, 50, 6)
    entities, relations = torch.tensor([7, 3, 49]), torch.tensor([5, 2])
    part = initial_model(config, 3, 2, entity_keys=entities, relation_keys=relations)
    assert torch.equal(part.entity, whole.entity[entities])
    assert torch.equal(part.relation, whole.relation[torch.cat([relations, relations + 6])])


def test_rows_depend_on_the_seed_and_the_table() -> None:
    config = make_config({"dim": D, "init": "normal"})
    one, again, other = (initial_model(config.changed(seed=s), 9, 9) for s in (0, 0, 1))
    assert torch.equal(one.entity, again.entity) and not torch.equal(one.entity, other.entity)
    assert not torch.equal(one.entity, one.relation)
