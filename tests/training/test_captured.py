"""A step that reads its numbers from memory, as a captured CUDA graph does, against the ordinary unfused step.

On a CPU nothing is captured, and both compute the same bits. `tests/gpu/test_captured.py` replays real graphs."""

import numpy as np
import pytest
import torch

from grash.training.batches import Batches
from grash.training.captured import CapturedStep, CapturedSteps, uses_captured_step, why_not
from grash.training.checkpoint import TrainState
from grash.training.config import TrainConfig
from grash.training.initial import initial_model
from grash.training.loop import train_step

E, R, CPU = 23, 3, torch.device("cpu")
RECIPES = {
    "adam": {"optimizer": "adam", "schedule": "cosine"},
    "lazy adam": {"optimizer": "lazy_adam", "warmup_epochs": 2},
    "bce": {"loss": "bce", "dropout_entity": 0.2, "dropout_relation": 0.1},
    "margin": {"loss": "margin", "model": "transe", "optimizer": "sgd"},
    "whole tables": {"penalty": "l3", "penalty_entity": 0.1, "penalty_relation": 0.1, "penalty_weighted": False},
    "own negatives": {"negatives_shared": False, "model": "rotate"},
    "own negatives with replacement": {"negatives_shared": False, "negatives_replacement": True},
    "1vsall": {"training": "1vsall", "penalty": "dura", "penalty_entity": 0.1, "relation_prediction": 0.5},
    "rescal": {"training": "1vsall", "model": "rescal", "dropout_entity": 0.4, "optimizer": "adam"},
    "cp": {"model": "cp", "optimizer": "row_adagrad", "reciprocal": True},
    "kvsall": {"training": "kvsall", "reciprocal": True, "label_smoothing": 0.1, "dropout_relation": 0.2},
    "kvsall with penalties": {"training": "kvsall", "reciprocal": True, "loss": "bce", "penalty": "l3",
                              "penalty_entity": 0.1, "penalty_relation": 0.1},
}  # fmt: skip


def graph(n: int = 70) -> np.ndarray:
    rng = np.random.default_rng(0)
    return np.stack([rng.integers(0, m, n) for m in (E, R, E)], 1).astype(np.int32)


def started(config: TrainConfig) -> tuple[TrainState, Batches, TrainConfig]:
    state = TrainState.fresh(initial_model(config, E, R), config)
    return state, Batches(graph(), E, R, config, CPU), config


@pytest.mark.parametrize("recipe", RECIPES)
def test_a_step_with_numbers_in_memory_equals_the_ordinary_step(recipe):
    values = {"dim": 8, "batch_size": 16, "negatives_head": 5, "negatives_tail": 7, "epochs": 3, "lr": 0.05}
    config = TrainConfig(**values | {"init": "normal", "init_std": 0.3} | RECIPES[recipe])
    state, batches, _ = started(config)
    wanted = [float(train_step(state, batches, config)) for _ in range(batches.plan.n_steps)]
    other, *rest = started(config)
    step = CapturedStep(other, *rest)
    found = [loss for n in (3, batches.plan.n_steps - 3) for loss in step.take(n).tolist()]
    assert found == wanted and other.step == state.step
    assert torch.equal(other.model.entity, state.model.entity)
    assert torch.equal(other.model.relation, state.model.relation)
    assert {16, batches.plan.n_examples % 16} == step.seen, "the last batch of an epoch is smaller"


def test_a_training_that_ends_leaves_the_others():
    config = TrainConfig(dim=8, batch_size=16, negatives_head=5, negatives_tail=7, loss="bce", epochs=2)
    states = [started(config.changed(lr=lr)) for lr in (0.1, 0.2, 0.3)]
    steps = CapturedSteps(*(list(part) for part in zip(*states)))
    assert steps.advance(4).shape == (4, 3)
    steps.remove([0])
    assert steps.advance(6).shape == (2, 2)
    assert [each[0].step for each in states] == [4, 6, 6]
    assert [step.config.lr for step in steps.steps] == [0.3, 0.2]


def test_reasons_against_a_capture_name_the_setting(monkeypatch):
    monkeypatch.setattr("grash.training.captured.why_no_triton", lambda device: ["the device is cpu, not cuda"])
    config = TrainConfig(loss="bce")
    assert why_not(config, CPU) == ["the device is cpu, not cuda"] and not uses_captured_step(config, CPU)
    for changes in (
        {"storage": "bf16"},
        {"training": "kvsall"},
        {"negatives_filtered": True},
        {"negatives_sampling": "frequency"},
        {"negatives_replacement": True},
    ):
        [reason] = why_not(config.changed(**changes), CPU)[1:]
        assert next(iter(changes.values())) in (True, *reason.replace("=", " ").split())
