"""Every gradient, by hand or of `models/autograd`, against autograd on the formulas, in float64."""

from __future__ import annotations

from itertools import cycle, product
from typing import Any, get_args

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from grash.errors import ConfigError
from grash.kernels.random import key_at, key_of
from grash.models import MODELS, KgeModel
from grash.training.batches import Batch, Batches
from grash.training.config import Penalty, TrainConfig, make_config
from grash.training.gradients import Gradient, step_gradients
from grash.training.losses import POWERS
from oracles import random_triples, relative_distance, step_loss

VARIANTS = ["complex", "cp", "distmult", "rescal", "rotate-1", "rotate-2", "transe-1", "transe-2"]
BY_AUTOGRAD = ["simple", "quate", "mure", "pairre-1", "pairre-2"]
TRAININGS = {
    "shared": {"training": "negative_sampling", "negatives_shared": True},
    "own": {"training": "negative_sampling", "negatives_shared": False},
    "picked": {"training": "negative_sampling", "negatives_shared": False, "negatives_head": 9, "negatives_tail": 9},
    "1vsall": {"training": "1vsall"},
    "kvsall": {"training": "kvsall"},
}
PENALTIES = [("none", True), ("dura", True), *product(("l1", "l2", "l3", "n3"), (True, False))]
LOSSES = ["softmax", "bce", "margin", "self_adversarial"]
CPU = torch.device("cpu")


def variant_settings(variant: str) -> dict[str, Any]:
    name, _, norm = variant.partition("-")
    return {"model": name, "norm": int(norm or 1)}


def random_model(config: TrainConfig, n_entities: int, n_relations: int, seed: int, dtype: torch.dtype) -> KgeModel:
    generator = torch.Generator().manual_seed(seed)
    cls = MODELS[config.model]
    rows = n_relations * (2 if config.reciprocal else 1)
    entity = torch.randn(n_entities, cls.entity_width(config.dim), generator=generator, dtype=torch.float64)
    relation = torch.randn(rows, cls.relation_width(config.dim), generator=generator, dtype=torch.float64)
    return cls(entity.to(dtype), relation.to(dtype), reciprocal=config.reciprocal, norm=config.norm)


def dense(gradient: Gradient, table: torch.Tensor) -> torch.Tensor:
    total = torch.zeros_like(table)
    for ids, rows in zip(gradient.ids, gradient.rows):
        for i, row in zip(ids.tolist(), rows):
            total[i] += row
    return total if gradient.dense is None else total + gradient.dense


def assert_autograd_agrees(
    config: TrainConfig,
    *,
    n_entities: int = 5,
    n_relations: int = 2,
    n_triples: int = 7,
    step: int = 0,
    dtype: torch.dtype = torch.float64,
    tolerance: float = 1e-10,
) -> None:
    train = random_triples(config.seed + 17, n_triples, n_entities, n_relations)
    batches = Batches(train, n_entities, n_relations, config, CPU)
    step %= batches.plan.n_steps
    batch: Any = batches.questions(step) if config.training == "kvsall" else batches.positives(step)
    model = random_model(config, n_entities, n_relations, config.seed, dtype)
    key = key_at(key_of(config.seed, "dropout"), step)
    found = step_gradients(model, batch, config, key)

    entity = model.entity.double().requires_grad_()
    relation = model.relation.double().requires_grad_()
    known = {(h, r, t) for h, r, t in train.tolist()}
    loss = step_loss(entity, relation, batch, config, key, known=known, n_relations=n_relations)
    loss.backward()
    assert found.loss.dtype == dtype, "the loss left the tables' precision"
    assert relative_distance(found.loss, loss.detach()) < tolerance, (config, found.loss, loss)
    for name, gradient, table in (("entity", found.entity, entity), ("relation", found.relation, relation)):
        wanted = torch.zeros_like(table) if table.grad is None else table.grad
        got = dense(gradient, getattr(model, name))
        assert got.dtype == dtype
        assert relative_distance(got, wanted) < tolerance, (name, config, got, wanted)


def allowed(values: dict[str, Any]) -> TrainConfig | None:
    try:
        return make_config(values)
    except ConfigError:
        return None


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("training", TRAININGS)
@pytest.mark.parametrize("variant", VARIANTS)
def test_every_combination_equals_autograd(variant: str, training: str, loss: str) -> None:
    tried, predictions = 0, cycle([0.0, 0.3, 0.0])  # a cycle of three meets every pair of the others
    for (penalty, weighted), reciprocal, dropout in product(PENALTIES, (False, True), (0.0, 0.4)):
        config = allowed(
            {"dim": 4, "batch_size": 5, "negatives_head": 3, "negatives_tail": 4, "epochs": 1, "seed": tried}
            | variant_settings(variant)
            | TRAININGS[training]
            | {"loss": loss, "offset": 0.3, "margin": 1.5, "temperature": 0.7, "reciprocal": reciprocal}
            | {
                "penalty": penalty,
                "penalty_weighted": weighted,
                "penalty_entity": 0.1,
                "penalty_relation": 0.0 if penalty == "dura" else 0.2,
            }
            | {
                "dropout_entity": dropout,
                "dropout_relation": dropout / 2,
                "relation_prediction": 0.0 if training == "kvsall" else next(predictions),
            }
        )
        if config is not None:
            assert_autograd_agrees(config)
            tried += 1
    if training == "kvsall" and loss in ("margin", "self_adversarial"):
        assert tried == 0
    else:
        assert tried >= 36, tried


def test_every_penalty_of_the_settings_is_computed_and_compared() -> None:
    assert {*get_args(Penalty)} == {*POWERS} == {penalty for penalty, _ in PENALTIES}


@pytest.mark.parametrize("training", TRAININGS)
def test_a_penalty_that_is_only_a_name_is_an_error(training: str) -> None:
    config = make_config(TRAININGS[training] | {"dim": 4, "batch_size": 5, "penalty_entity": 0.1})
    batches = Batches(random_triples(0, 7, 5, 2), 5, 2, config, CPU)
    batch: Any = batches.questions(0) if training == "kvsall" else batches.positives(0)
    unknown = config.model_copy(update={"penalty": "l4"})
    with pytest.raises(KeyError, match="l4"):
        step_gradients(random_model(config, 5, 2, 0, torch.float32), batch, unknown, 0)


@st.composite
def odd_configs(draw: st.DrawFn, variants: list[str] = VARIANTS) -> TrainConfig:  # noqa: B006, not changed
    values = variant_settings(draw(st.sampled_from(variants))) | TRAININGS[draw(st.sampled_from([*TRAININGS]))]
    kvsall = values["training"] == "kvsall"
    penalty, weighted = draw(st.sampled_from(PENALTIES))
    if penalty == "dura" and (kvsall or values["model"] in ("transe", "rotate", "mure", "pairre")):
        penalty = "l2"
    heads = draw(st.integers(0, 6))
    sampling = values["training"] == "negative_sampling"
    return make_config(
        values
        | {"loss": draw(st.sampled_from(LOSSES[:2] if kvsall else LOSSES))}
        | {"dim": draw(st.integers(1, 3)) * max(2, MODELS[values["model"]].dim_multiple)}
        | {"batch_size": draw(st.integers(1, 9)), "epochs": 2.5}
        | {"negatives_head": heads, "negatives_tail": draw(st.integers(0 if heads else 1, 6))}
        | {"negatives_replacement": draw(st.booleans()), "negatives_filtered": sampling and draw(st.booleans())}
        | {"negatives_sampling": draw(st.sampled_from(["uniform", "frequency"]))}
        | {"label_smoothing": draw(st.sampled_from([0.0, 0.1, 0.9])) if kvsall else 0.0}
        | {"offset": draw(st.floats(-3, 3)), "margin": draw(st.floats(0.1, 9)), "temperature": draw(st.floats(0, 3))}
        | {"relation_prediction": 0.0 if kvsall else draw(st.sampled_from([0.0, 0.5]))}
        | {"penalty": penalty, "penalty_weighted": weighted}
        | {"penalty_entity": draw(st.sampled_from([0.0, 0.3]))}
        | {"penalty_relation": 0.0 if penalty == "dura" else draw(st.sampled_from([0.0, 2.0]))}
        | {"dropout_entity": draw(st.sampled_from([0.0, 0.3, 0.9]))}
        | {"dropout_relation": draw(st.sampled_from([0.0, 0.5]))}
        | {"reciprocal": draw(st.booleans()), "seed": draw(st.integers(0, 2**40))}
    )  # fmt: skip


@settings(max_examples=250, deadline=None)
@given(odd_configs(), st.integers(1, 6), st.integers(1, 3), st.integers(1, 12), st.integers(0, 99))
def test_odd_sizes_and_settings_equal_autograd(
    config: TrainConfig, n_entities: int, n_relations: int, n_triples: int, step: int
) -> None:
    assert_autograd_agrees(
        config, n_entities=n_entities, n_relations=n_relations, n_triples=n_triples, step=step, tolerance=1e-7
    )  # 1e-7: a distance that is 0 but for rounding has a direction of noise (l2 from one product)


@settings(max_examples=120, deadline=None)
@given(odd_configs(BY_AUTOGRAD), st.integers(1, 6), st.integers(1, 3), st.integers(1, 12), st.integers(0, 99))
def test_models_without_gradients_by_hand_equal_autograd_on_their_formula(
    config: TrainConfig, n_entities: int, n_relations: int, n_triples: int, step: int
) -> None:
    assert_autograd_agrees(
        config, n_entities=n_entities, n_relations=n_relations, n_triples=n_triples, step=step, tolerance=1e-7
    )


@pytest.mark.parametrize("training", TRAININGS)
@pytest.mark.parametrize("variant", [*VARIANTS, *BY_AUTOGRAD])
def test_float32_stays_close_to_autograd_in_float64(variant: str, training: str) -> None:
    values = variant_settings(variant) | TRAININGS[training] | {"dim": 8, "batch_size": 33, "epochs": 1}
    config = make_config(values | {"negatives_head": 20, "negatives_tail": 30, "penalty": "n3", "penalty_entity": 0.1})
    assert_autograd_agrees(config, n_entities=41, n_relations=5, n_triples=60, dtype=torch.float32, tolerance=3e-6)


def test_a_repeated_triple_counts_twice_in_the_batch() -> None:
    config = make_config({"dim": 4, "training": "1vsall", "batch_size": 9, "epochs": 1})
    model = random_model(config, 4, 2, 0, torch.float64)
    once = step_gradients(model, Batch(torch.tensor([[0, 1, 2], [3, 0, 1]]), {}), config, 0)
    twice = step_gradients(model, Batch(torch.tensor([[0, 1, 2], [0, 1, 2], [3, 0, 1], [3, 0, 1]]), {}), config, 0)
    torch.testing.assert_close(once.loss, twice.loss)
    torch.testing.assert_close(dense(once.entity, model.entity), dense(twice.entity, model.entity))


def test_a_graph_of_one_entity_has_nothing_to_tell_apart() -> None:
    for training in ("shared", "own", "1vsall"):
        config = make_config({"dim": 4, "batch_size": 3, "epochs": 1} | TRAININGS[training])
        batch = Batches(random_triples(0, 3, 1, 1), 1, 1, config, CPU).positives(0)
        step = step_gradients(random_model(config, 1, 1, 0, torch.float64), batch, config, 0)
        assert float(step.loss) == 0.0
        assert float(dense(step.entity, torch.zeros(1, 4, dtype=torch.float64)).abs().max()) == 0.0
