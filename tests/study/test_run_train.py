"""Trainings of a study: validated at given epochs, together or alone, and what they leave behind when they diverge."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from grash.engines.trainer import run_trainings
from grash.errors import Diverged
from grash.training.batches import Batches, Plan
from grash.training.checkpoint import TrainState
from grash.training.config import make_config
from grash.training.loop import Training, next_validation
from grash_study.pool import StudyGraphs, config_on
from grash_study.run import GraphTrainer
from study.small_study import small_graph, small_pool


def trainer_and_configs(n: int = 3, fraction: float = 0.5):
    graphs = StudyGraphs(small_pool(n))
    graph = graphs.graph("core-order", fraction)
    return GraphTrainer(graph, device="cpu"), [config_on(graph, graphs.pool, i, 1.0) for i in range(n)]


@given(st.integers(1, 200), st.integers(1, 50), st.floats(0.01, 5), st.floats(0, 6))
def test_the_step_of_an_epoch_is_within_the_run_and_has_seen_as_much(n, batch_size, epochs, epoch):
    plan = Plan(n, batch_size, epochs)
    step = plan.steps_to(epoch)
    assert 1 <= step <= plan.n_steps
    wanted = min(plan.total, max(1, round(epoch * n)))
    assert plan.examples_before(step) >= wanted and plan.examples_before(step - 1) < wanted


@given(st.lists(st.floats(0.01, 2.0), min_size=1, max_size=6))
def test_validations_are_due_at_the_given_epochs_and_at_the_end(epochs):
    data = small_graph()
    config = make_config({"epochs": 2.0, "batch_size": 64, "dim": 4, "valid_every": 0.1})
    batches = Batches(data.train, 60, 3, config, torch.device("cpu"))
    due, step = [], 0
    while step < batches.plan.n_steps:
        step = next_validation(step, batches, config, epochs)
        due.append(step)
    assert due == sorted({*(batches.plan.steps_to(e) for e in epochs), batches.plan.n_steps})


def test_trainings_together_are_those_alone():
    trainer, configs = trainer_and_configs()
    epochs = [0.1, 0.5, 1.0, 2.0]
    together = trainer.train(configs, epochs)
    alone = [trainer.train([config], epochs)[0] for config in configs]
    assert [t.curve for t in together] == [t.curve for t in alone]
    assert all([e for e, _, _ in t.curve] == epochs for t in together)


def test_epochs_that_end_with_the_same_step_share_its_validation():
    trainer, configs = trainer_and_configs(1, 0.1)
    (trained,) = trainer.train(configs, [0.01, 0.02, 2.0])
    assert len(trained.curve) == 3 and trained.curve[0][1:] == trained.curve[1][1:]


def test_a_diverged_training_keeps_the_validations_before_and_disturbs_no_other():
    trainer, configs = trainer_and_configs(2)
    wild = configs[0].changed(lr=1e15, optimizer="sgd", warmup_epochs=1e4, loss="margin", init="normal", init_std=1.0)
    epochs = [0.25, 1.0, 2.0]
    bad, good = trainer.train([wild, configs[1]], epochs)
    assert good.error is None and good.curve == trainer.train([configs[1]], epochs)[0].curve
    assert isinstance(bad.error, Diverged) and 0 < bad.error.epoch <= 2
    assert len(bad.curve) < 3 and all(e <= bad.error.epoch for e, _, _ in bad.curve)
    assert bad.positives == round(bad.error.epoch * len(trainer.graph.dataset.train))


def test_the_best_validation_is_tested():
    graphs = StudyGraphs(small_pool())
    graph = graphs.graph("whole", 1.0)
    trainer, config = GraphTrainer(graph, device="cpu"), config_on(graph, graphs.pool, 0, 1.0)
    epochs = [0.5, 1.0, 2.0]
    (trained,) = trainer.train([config], epochs, test=True)
    ((_, outcome),) = next(run_trainings(trainer.training_data, [Training(config, valid_at=tuple(epochs))]))
    assert isinstance(outcome, TrainState) and outcome.interval is not None
    assert trained.test == pytest.approx(trainer.tests([outcome.model])[0]) and trained.valid_seconds > 0
