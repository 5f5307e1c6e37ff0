"""Models whose gradients come from autograd: plain score functions; weights, dropout and batch normalization."""

from __future__ import annotations

import copy
import os
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from grash.data.known_answers import KnownAnswers
from grash.engines.distributed import run_distributed_training
from grash.engines.memory import plan_memory
from grash.engines.trainer import TrainingData, run_training, run_trainings
from grash.errors import ConfigError
from grash.evaluation.ranking import Ranker
from grash.kernels.random import key_of
from grash.models import MODELS, register_model
from grash.models.autograd import AutogradModel, ScoreModel
from grash.models.base import Weight, model_tensors
from grash.training.batches import Batches
from grash.training.config import make_config
from grash.training.gradients import step_gradients
from grash.training.initial import initial_model
from grash.training.loop import Training
from oracles import random_triples
from small_graph import rings
from training.distributed.thread_group import in_threads

CPU = torch.device("cpu")
E, R = 9, 2
HIDDEN = {"dropout_input": 0.2, "dropout_features": 0.3, "dropout_query": 0.2}


class Plain(ScoreModel):
    """DistMult, written as nothing but its score."""

    name = "plain"

    def formula(self, head: Tensor, relation: Tensor, tail: Tensor) -> Tensor:
        return (head * relation * tail).sum(-1)


@pytest.fixture
def plain(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(MODELS, "plain", Plain)


@pytest.mark.parametrize("values", [{}, {"training": "1vsall", "reciprocal": True}, {"training": "kvsall"},
                                    {"negatives_shared": False, "relation_prediction": 0.5}])  # fmt: skip
def test_a_score_function_trains_and_ranks_like_the_model_with_gradients_by_hand(
    plain: None, values: dict[str, Any]
) -> None:
    start = {"dim": 8, "batch_size": 8, "negatives_head": 4, "negatives_tail": 4, "epochs": 3, "valid_every": 1}
    data = rings()
    ends = [run_training(data, make_config(start | values | {"model": m}), device="cpu") for m in ("plain", "distmult")]
    for name, tensor in model_tensors(ends[0].model).items():
        torch.testing.assert_close(tensor, model_tensors(ends[1].model)[name], rtol=1e-4, atol=1e-5)
    known = KnownAnswers.of(data.train, n_relations=3)
    kge = ends[1].model
    same = Plain(kge.entity, kge.relation, reciprocal=kge.reciprocal)
    ranks = [Ranker(data.test, known, 12, CPU).rank(model) for model in (same, kge)]
    assert ranks[0].tail.mean.tolist() == ranks[1].tail.mean.tolist()
    assert ranks[0].head.mean.tolist() == ranks[1].head.mean.tolist()


@pytest.mark.parametrize("values", [{}, {"training": "1vsall"}])
def test_a_formula_that_forgets_the_sum_is_a_sentence(monkeypatch: pytest.MonkeyPatch, values: dict[str, Any]) -> None:
    class NoSum(ScoreModel):
        name = "nosum"

        def formula(self, head: Tensor, relation: Tensor, tail: Tensor) -> Tensor:
            return head * relation * tail

    monkeypatch.setitem(MODELS, "nosum", NoSum)
    start = {"model": "nosum", "dim": 8, "batch_size": 8, "negatives_head": 4, "negatives_tail": 4, "epochs": 1}
    with pytest.raises(ConfigError, match="The formula of nosum returned scores of shape .*one score per triple"):
        run_training(rings(), make_config(start | values), device="cpu")


def test_a_model_without_a_name_is_a_sentence() -> None:
    class Nameless(ScoreModel):
        def formula(self, head: Tensor, relation: Tensor, tail: Tensor) -> Tensor:
            return (head * relation * tail).sum(-1)

    with pytest.raises(ConfigError, match="Nameless has no name"):
        register_model(Nameless)


def test_a_score_function_with_weights_says_what_to_derive_from() -> None:
    with pytest.raises(TypeError, match="Heavy has weights beside its tables: derive it from AutogradModel"):

        class Heavy(ScoreModel):
            name = "heavy"

            @classmethod
            def weight_shapes(cls, dim: int) -> dict[str, Weight]:
                return {"core": Weight((dim, dim))}


def tables_and_batch(name: str, **values: Any) -> tuple[AutogradModel, Any, Any]:
    config = make_config({"model": name, "dim": 8, "batch_size": 6, "init": "normal", "init_std": 1.0} | values)
    model = initial_model(config, E, R)
    assert isinstance(model, AutogradModel)
    for tensors in (vars(model), model.weights):
        tensors |= {k: v.double() for k, v in tensors.items() if isinstance(v, Tensor)}
    batches = Batches(random_triples(3, 12, E, R), E, R, config, CPU)
    return model, batches.questions(0) if config.training == "kvsall" else batches.positives(0), config


@pytest.mark.parametrize("training", ["kvsall", "1vsall", "negative_sampling"])
@pytest.mark.parametrize("name", ["conve", "tucker"])
def test_gradients_of_weights_and_tables_equal_finite_differences(name: str, training: str) -> None:
    sampled = {"negatives_head": 3, "negatives_tail": 3} if training == "negative_sampling" else {}
    model, batch, config = tables_and_batch(name, training=training, **sampled, **HIDDEN)
    key = key_of(1, "dropout")
    found = step_gradients(model, batch, config, key)
    trained = {n for n, weight in model.weight_shapes(8).items() if weight.trained}
    assert found.weights.keys() == trained and found.statistics.keys() == model.weights.keys() - trained
    generator = torch.Generator().manual_seed(0)

    def loss(name: str, change: Tensor) -> float:
        other = copy.copy(model)
        other.weights = model.weights | {name: model.weights[name] + change}
        return float(step_gradients(other, batch, config, key).loss)

    for name in trained:
        direction = torch.randn(model.weights[name].shape, generator=generator, dtype=torch.float64)
        slope = (loss(name, 1e-6 * direction) - loss(name, -1e-6 * direction)) / 2e-6
        assert float((found.weights[name] * direction).sum()) == pytest.approx(slope, rel=1e-4, abs=1e-8), name
    for table, gradient in (("entity", found.entity), ("relation", found.relation)):
        tensor = getattr(model, table)
        total = torch.zeros_like(tensor) if gradient.dense is None else gradient.dense.clone()
        for ids, rows in zip(gradient.ids, gradient.rows):
            total.index_add_(0, ids, rows)
        direction = torch.randn(tensor.shape, generator=generator, dtype=torch.float64)
        losses = []
        for sign in (1, -1):
            other = copy.copy(model)
            setattr(other, table, tensor + sign * 1e-6 * direction)
            losses.append(float(step_gradients(other, batch, config, key).loss))
        slope = (losses[0] - losses[1]) / 2e-6
        assert float((total * direction).sum()) == pytest.approx(slope, rel=1e-4, abs=1e-8), table


@pytest.mark.parametrize("name", ["conve", "tucker"])
def test_a_step_changes_no_weight_and_leaves_evaluation_as_it_was(name: str) -> None:
    """Statistics are applied with the update, so that an interrupt before it loses nothing."""
    model, batch, config = tables_and_batch(name, training="1vsall", **HIDDEN)
    triples = torch.from_numpy(random_triples(4, 20, E, R)).long()
    before, weights = model.score(triples), {n: w.clone() for n, w in model.weights.items()}
    step_gradients(model, batch, config, 5)
    assert torch.equal(model.score(triples), before) and model.step is None
    assert all(torch.equal(model.weights[n], w) for n, w in weights.items())


@pytest.mark.parametrize("name", ["conve", "tucker"])
def test_a_query_does_not_depend_on_the_others_of_its_batch(name: str) -> None:
    model = initial_model(make_config({"model": name, "dim": 32, "init": "normal", "init_std": 1.0}), 300, 3)
    triples = torch.from_numpy(random_triples(0, 60, 300, 3)).long()
    together, _ = model.queries(triples[:, 0], triples[:, 1], "tail")
    alone = torch.cat([model.queries(t[:1], t[1:2], "tail")[0] for t in triples])
    assert torch.equal(together, alone)


@pytest.mark.parametrize("name", ["conve", "tucker", "mure", "pairre"])
def test_models_trained_together_equal_those_trained_alone(name: str) -> None:
    data = rings()
    values = {"model": name, "dim": 8, "training": "1vsall", "batch_size": 8, "epochs": 3, "valid_every": 1}
    configs = [make_config(values | {"lr": lr}) for lr in (0.05, 0.02, 0.1)]
    alone = [run_training(data, config, device="cpu").model for config in configs]
    together: dict[int, Any] = {}
    for ended in run_trainings(TrainingData(data, CPU), [Training(config) for config in configs]):
        together |= dict(ended)
    for i, model in enumerate(alone):
        for tensor, same in zip(model_tensors(model).values(), model_tensors(together[i].model).values()):
            assert torch.equal(tensor, same)


def test_weights_of_other_seeds_differ_and_do_not_depend_on_the_graph() -> None:
    config = make_config({"model": "tucker", "dim": 8})
    one, other = initial_model(config, 5, 2), initial_model(config, 50, 9)
    assert torch.equal(one.weights["core"], other.weights["core"])
    assert float(one.weights["core"].abs().max()) < 1 < 2 * float(one.weights["core"].abs().max())
    assert not torch.equal(initial_model(config.changed(seed=1), 5, 2).weights["core"], one.weights["core"])


def test_the_memory_plan_counts_biases_weights_and_their_optimizer() -> None:
    plans = {name: plan_memory([make_config({"model": name, "dim": 32})], 100, 4, 500, CPU) for name in MODELS}
    assert plans["tucker"].tables - plans["distmult"].tables == 4 * (4 * 32 + 32**3 + 8 * 32)  # inverse relations too
    assert plans["tucker"].optimizer > plans["distmult"].optimizer + 4 * 32**3
    assert plans["mure"].tables - plans["distmult"].tables == 4 * (100 * 2 + 4 * 32)
    assert plans["conve"].step > plans["distmult"].step


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"model": "conve", "reciprocal": False}, "model=conve predicts only tails, so it needs reciprocal=true"),
        ({"model": "complex", "dropout_query": 0.1}, "dropout_query=0.1 has no effect in complex, only in conve, tuck"),
        ({"model": "tucker", "relation_prediction": 0.1}, "relation_prediction=0.1 does not work with model=tucker"),
        ({"model": "mure", "penalty": "dura"}, "penalty=dura is defined for dot-product models, not for mure"),
    ],
)
def test_what_a_model_cannot_do_is_refused(values: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        make_config(values)


def test_models_that_need_reciprocal_relations_have_them_by_default() -> None:
    assert make_config({"model": "conve"}).reciprocal and make_config({"model": "tucker"}).reciprocal
    assert not make_config({"model": "quate"}).reciprocal


def test_candidates_that_are_no_rows_need_the_device() -> None:
    config = make_config({"model": "mure", "dim": 8, "epochs": 1})
    with pytest.raises(ConfigError, match="placement=disk does not work with model=mure: give device"):
        run_training(rings(), config, device="cpu", placement="disk")


@pytest.mark.parametrize("name", ["conve", "simple"])
def test_several_ranks_are_refused(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(os.environ, "LOCAL_WORLD_SIZE", "2")
    config = make_config({"model": name, "dim": 8, "epochs": 1})

    def rank(group: Any) -> str:
        with pytest.raises(ConfigError) as caught:
            folders = {"out": tmp_path / "m", "checkpoint": tmp_path / "c"}
            run_distributed_training(rings(), config, group, CPU, **folders)
        return str(caught.value)

    wanted = f"model={name} can be trained in one process only: train without torchrun."
    assert in_threads(2, rank) == [wanted] * 2
