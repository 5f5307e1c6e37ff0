"""Unfused steps replayed from CUDA graphs: the bits of the same steps without a graph, the gradients of float64."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from grash.training.batches import Batches
from grash.training.captured import CapturedStep, CapturedSteps, uses_captured_step
from grash.training.checkpoint import TrainState
from grash.training.config import TrainConfig
from grash.training.initial import initial_model
from grash.training.loop import Training, steps_for, train_step
from training.test_captured import RECIPES

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]
CPU, CUDA = torch.device("cpu"), torch.device("cuda")
E, R = 211, 7
MORE = {
    "transe by l2": {"model": "transe", "norm": 2, "loss": "bce"},
    "rotate, margin": {"model": "rotate", "loss": "margin", "optimizer": "lazy_adam", "relation_prediction": 0.5},
    "cp, 1vsall": {"model": "cp", "training": "1vsall", "penalty": "n3", "penalty_entity": 0.1},
    "kvsall, distmult": {"model": "distmult", "training": "kvsall", "reciprocal": True, "label_smoothing": 0.3,
                         "penalty": "l3", "penalty_entity": 0.1, "dropout_entity": 0.3, "optimizer": "adam"},
    "kvsall, transe": {"model": "transe", "norm": 2, "training": "kvsall", "reciprocal": True},
}  # fmt: skip
ALL = {**RECIPES, **MORE}


def graph(n: int = 950) -> np.ndarray:
    rng = np.random.default_rng(0)
    heads, tails = (E * rng.random((2, n)) ** np.array([[3], [2]])).astype(np.int32)
    return np.stack([heads, rng.integers(0, R, n, dtype=np.int32), tails], 1)


def config_of(recipe: str) -> TrainConfig:
    values = {"dim": 24, "batch_size": 100, "negatives_head": 30, "negatives_tail": 50, "epochs": 6, "lr": 0.05,
              "init": "normal", "init_std": 0.3, "precision": "float32"}  # fmt: skip
    return TrainConfig(**values | ALL[recipe])


def started(config: TrainConfig, device: torch.device = CUDA) -> tuple[TrainState, Batches, TrainConfig]:
    there, here = (initial_model(config, E, R, device=d) for d in (device, CPU))
    for mine, first in ((there.entity, here.entity), (there.relation, here.relation)):
        mine.copy_(first)
    return TrainState.fresh(there, config), Batches(graph(), E, R, config, device), config


def tensors(state: TrainState) -> dict[str, torch.Tensor]:
    found = {"entity": state.model.entity, "relation": state.model.relation}
    for name, optimizer in (("entity", state.entity_optimizer), ("relation", state.relation_optimizer)):
        found |= {f"{name} {key}": values for key, values in optimizer.state.items()}
    return found


@pytest.mark.parametrize("recipe", ALL)
def test_replayed_steps_have_the_bits_of_steps_without_a_graph(recipe):
    config = config_of(recipe)
    replayed, plain = (CapturedStep(*started(config)) for _ in range(2))
    plain.captures = False
    n_steps = replayed.batches.plan.n_steps
    losses = []
    for step in (replayed, plain):
        with torch.no_grad():
            losses.append(torch.cat([step.take(min(20, n_steps - first)) for first in range(0, n_steps, 20)]))
    assert replayed.captures and len(replayed.graphs) == 2, "both batch sizes are captured"
    assert torch.equal(*losses)
    for name, values in tensors(replayed.state).items():
        assert torch.equal(values, tensors(plain.state)[name]), name


@pytest.mark.parametrize("recipe", ALL)
def test_a_step_has_the_gradients_of_float64(recipe):
    config = config_of(recipe)
    state, batches, _ = started(config)
    loss = CapturedStep(state, batches, config).take(1).item()
    here, there, _ = started(config, CPU)
    tables = (table.double() for table in (here.model.entity, here.model.relation))
    twin = TrainState.fresh(type(here.model)(*tables, reciprocal=config.reciprocal, norm=config.norm), config)
    before = {name: values.clone() for name, values in tensors(twin).items()}
    assert abs(loss - train_step(twin, there, config).item()) <= 1e-5 * abs(loss)
    for name, values in tensors(twin).items():
        if "adam" in config.optimizer and name in ("entity", "relation"):
            continue  # after one step, Adam moves by the sign of a gradient; its moments hold the gradient itself
        change = (values - before[name]).norm().item()
        assert (values - tensors(state)[name].to(CPU).double()).norm().item() <= 3e-4 * change + 1e-7, name


@pytest.mark.parametrize("recipe", ["adam", "bce", "rescal", "kvsall with penalties"])
def test_the_loop_captures_what_is_not_fused_and_agrees_with_ordinary_steps(recipe):
    config = config_of(recipe)
    assert uses_captured_step(config, CUDA)
    state, batches, _ = started(config)
    steps = steps_for([Training(config).started(state, batches)])
    assert isinstance(steps, CapturedSteps)
    losses = steps.advance(20)[:, 0]
    other, *rest = started(config)
    wanted = torch.stack([train_step(other, *rest) for _ in range(20)])
    assert torch.allclose(losses, wanted, rtol=1e-4)
    for name in ("entity", "relation"):
        mine, theirs = (getattr(s.model, name) for s in (state, other))
        assert (mine - theirs).norm() <= 2e-3 * theirs.norm(), name
