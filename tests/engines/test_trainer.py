"""Training from end to end: planted graphs are learnt, plans that do not fit and devices that are not there."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from engines.planted import circle, classes, grid
from grash.data.dataset import Dataset
from grash.engines import memory as device_module
from grash.engines.memory import (
    _container_free,
    _warn_about_unused_gpu,
    choose_device,
    free_bytes,
    plan_memory,
    used_bytes,
)
from grash.engines.trainer import TrainingData, Validator, run_training, run_trainings
from grash.errors import ConfigError, InputError, MemoryPlanError
from grash.evaluation.evaluate import evaluate
from grash.models import MODELS
from grash.training.config import TrainConfig, make_config
from grash.training.initial import initial_model
from grash.training.loop import Training
from live_bytes import Peak
from small_graph import rings

LEARNT: dict[str, tuple[Any, dict[str, Any], float]] = {
    "complex": (circle, {"dim": 32, "training": "1vsall", "penalty": "n3", "penalty_entity": 0.02}, 0.99),
    "cp": (
        circle,
        {"dim": 64, "training": "1vsall", "reciprocal": True, "penalty": "n3", "penalty_entity": 0.05},
        0.85,
    ),
    "rescal": (
        circle,
        {"dim": 16, "training": "1vsall", "lr": 0.2, "epochs": 150, "penalty": "l2"}
        | {"penalty_entity": 0.05, "penalty_relation": 0.05},
        0.8,
    ),
    "rotate": (
        circle,
        {"dim": 32, "optimizer": "adam", "lr": 0.02, "loss": "self_adversarial", "margin": 3, "init": "uniform"}
        | {"init_low": -0.5, "init_high": 0.5, "negatives_head": 20, "negatives_tail": 20},
        0.99,
    ),
    "transe": (
        grid,
        {"dim": 16, "norm": 2, "training": "1vsall", "optimizer": "adam", "lr": 0.02, "epochs": 100},
        0.95,
    ),
    "distmult": (classes, {"dim": 32, "training": "kvsall", "lr": 0.1}, 0.9),
    "simple": (circle, {"dim": 64, "training": "1vsall", "penalty": "n3", "penalty_entity": 0.05}, 0.85),
    "quate": (circle, {"dim": 32, "training": "1vsall", "penalty": "n3", "penalty_entity": 0.02}, 0.9),
    "mure": (classes, {"dim": 16, "training": "1vsall", "optimizer": "adam", "lr": 0.02}, 0.9),
    "pairre": (classes, {"dim": 16, "optimizer": "adam", "lr": 0.05, "negatives_head": 20, "negatives_tail": 20}, 0.9),
    "tucker": (
        circle,
        {"dim": 16, "training": "kvsall", "optimizer": "adam", "lr": 0.01, "epochs": 100}
        | {"dropout_input": 0.2, "dropout_query": 0.2},
        0.9,
    ),
    "conve": (
        classes,
        {"dim": 32, "training": "1vsall", "optimizer": "adam", "lr": 0.003, "dropout_query": 0.2},
        0.75,
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", LEARNT)
def test_a_planted_graph_is_learnt(name: str) -> None:
    graph, values, wanted = LEARNT[name]
    dataset = graph()
    start = {"model": name, "batch_size": 32, "lr": 0.3, "epochs": 60, "valid_every": 20}
    outcome = run_training(dataset, make_config(start | values), device="cpu")
    found = evaluate(outcome.model, dataset, detail=False)
    untrained = 10 / dataset.n_entities  # far above what chance gives
    assert found.both.mrr > wanted > untrained
    assert found.both.amri > 0.9
    assert LEARNT.keys() == MODELS.keys()
    assert outcome.best_validation is not None and outcome.best_validation.mrr == max(v.mrr for v in outcome.history)


def tiny(train: int = 30) -> Dataset:
    whole = circle()
    return Dataset(whole.train[:train].copy(), whole.valid[:0].copy(), whole.test, 40, 5, name="tiny")


def test_training_without_valid_triples_ends_at_the_last_step() -> None:
    outcome = run_training(tiny(), make_config({"dim": 4, "epochs": 1.5, "batch_size": 8}), device="cpu")
    assert outcome.history == [] and outcome.best_validation is None and outcome.step == 6


def test_nothing_to_train_on_is_said() -> None:
    with pytest.raises(InputError, match="tiny has no training triples"):
        run_training(tiny(0), make_config({"dim": 4}), device="cpu")


def test_a_plan_that_does_not_fit_says_what_to_change(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("grash.engines.memory.free_bytes", lambda device: 1000)
    for values, advice in (
        (
            {"dim": 512, "batch_size": 1, "negatives_head": 1, "negatives_tail": 1},
            "a smaller dim, or optimizer=row_adagrad",
        ),
        ({"dim": 4, "batch_size": 4096}, "a smaller batch_size or fewer negatives"),
        ({"dim": 4, "batch_size": 4096, "training": "1vsall"}, "a smaller batch_size or training=negative_sampling"),
    ):
        with pytest.raises(MemoryPlanError, match=rf"needs .* on cpu, only 1000 B is free: .*tables .*Try {advice}"):
            run_training(tiny(), make_config(values), device="cpu")


def test_nothing_large_is_made_before_the_plan_is_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("grash.engines.trainer.initial_model", lambda *a, **k: pytest.fail("tables were made"))
    dataset = Dataset(*(np.zeros((n, 3), np.int32) for n in (1, 0, 0)), n_entities=2**31 - 1, n_relations=1)
    with pytest.raises(MemoryPlanError, match="TiB"):
        run_training(dataset, make_config({"dim": 4096}), device="cpu")


@pytest.mark.parametrize("optimizer", ["adagrad", "row_adagrad", "adam", "sgd"])
def test_tables_and_optimizer_take_what_the_plan_says(optimizer: str) -> None:
    config = make_config({"dim": 6, "model": "cp", "reciprocal": True, "optimizer": optimizer})
    plan = plan_memory([config], 100, 7, 1000, torch.device("cpu"))
    assert plan.tables == 4 * (100 * 6 + 14 * 3) == plan.best_tables
    per_table = {"adagrad": plan.tables, "row_adagrad": 4 * 114, "adam": 2 * plan.tables, "sgd": 0}
    places = 4 * 114  # where a row stands among the rows of a step
    assert plan.optimizer == per_table[optimizer] + places and plan.triples == 12_000
    assert plan.device >= plan.tables + plan.optimizer + plan.triples + plan.step


def test_the_plan_of_distances_without_a_kernel_counts_their_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    """On an H200 the plain step of RotatE took 391 MiB more than a plan without tiles said, that of TransE l1 246."""
    monkeypatch.setenv("GRASH_KERNELS", "reference")
    fixed = {"dim": 128, "batch_size": 1024, "negatives_head": 500, "negatives_tail": 500}
    elsewhere, cpu = torch.device("meta"), torch.device("cpu")  # no CPU, as a card is none
    more = {}
    for name, model, norm in (("modulus", "rotate", 1), ("l1", "transe", 1), ("l2", "transe", 2)):
        config = make_config({"model": model, "norm": norm, **fixed})
        steps = [plan_memory([config], 1000, 7, 1000, device).step for device in (elsewhere, cpu)]
        more[name] = (steps[0] - steps[1]) / 2**20
    assert more == {"modulus": 3.5 * 64, "l1": 2 * 64, "l2": 0}


@pytest.mark.slow
@pytest.mark.parametrize("model,norm", [("complex", 1), ("rotate", 1), ("rotate", 2)])
@pytest.mark.parametrize("n_relations", [30, 3000])
def test_the_plan_counts_the_scores_of_predicted_relations(model: str, norm: int, n_relations: int) -> None:
    fixed = {"model": model, "norm": norm, "dim": 32, "batch_size": 512, "negatives_head": 5, "negatives_tail": 5}
    config = make_config({**fixed, "relation_prediction": 1.0})
    steps = [
        plan_memory([c], 1000, n_relations, 9000, torch.device("cpu")).step
        for c in (config, config.changed(relation_prediction=0.0))
    ]
    kge = initial_model(config, 1000, n_relations)
    head, tail = kge.entity[:512], kge.entity[400:912]
    with Peak() as peak:
        scores = kge.relation_scores(head, tail, kge.relation)
        kge.relation_scores_gradient(scores.exp() * 0.1, scores, head, tail, kge.relation)
    small = 12 * 4 * (512 * 32 + n_relations * 32)  # rows and their gradients
    assert peak.most - small <= steps[0] - steps[1] <= 1.4 * peak.most + small + 2 * 4 * 512 * n_relations


@pytest.mark.parametrize("settings", [{"training": "kvsall"}, {"negatives_filtered": True}])
def test_trainings_on_one_graph_share_its_index(settings: dict[str, Any]) -> None:
    data = TrainingData(rings(), torch.device("cpu"))
    first, second = (data.batches(make_config({"dim": 4, "seed": seed, **settings})) for seed in (0, 1))
    assert first.known is second.known is data.known
    assert data.batches(make_config({"dim": 4})).known is None


@pytest.mark.parametrize("name", ["gpu", "cuda:", "cuda:x", "cuda:-1", "CUDA", "", "tpu:0"])
def test_an_unknown_device_is_named(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(ConfigError, match="device="):
        choose_device(name)


@pytest.mark.parametrize(("found", "kind"), [("torch.backends.mps", "Apple"), ("torch.xpu", "Intel")])
def test_a_gpu_that_is_not_used_is_named_once(
    found: str, kind: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    monkeypatch.setattr(f"{found}.is_available", lambda: True)
    _warn_about_unused_gpu.cache_clear()
    assert choose_device("auto") == choose_device("auto") == torch.device("cpu")
    [record] = caplog.records
    assert "The CPU is used" in record.getMessage() and kind in record.getMessage()
    _warn_about_unused_gpu.cache_clear()


def test_a_device_that_is_not_there_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert choose_device("auto") == choose_device("cpu") == torch.device("cpu")
    with pytest.raises(ConfigError, match=r"'cuda' does not exist: this machine has 0 CUDA devices. Give auto or cpu"):
        choose_device("cuda")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    assert choose_device("auto") == choose_device("cuda") == torch.device("cuda", 0)
    with pytest.raises(ConfigError, match=r"'cuda:1' does not exist: this machine has 1 CUDA devices"):
        choose_device("cuda:1")


def test_memory_is_measured_even_without_proc(monkeypatch: pytest.MonkeyPatch) -> None:
    cpu = torch.device("cpu")
    assert free_bytes(cpu) > 1 << 20 and used_bytes(cpu) > 1 << 20
    monkeypatch.setattr(device_module.Path, "read_text", lambda self: (_ for _ in ()).throw(OSError()))
    assert free_bytes(cpu) > 1 << 20 and used_bytes(cpu) == 0


def test_the_memory_plan_is_logged_and_nothing_is_printed(
    caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    caplog.set_level(logging.INFO, "grash")
    run_training(tiny(), make_config({"dim": 4, "epochs": 1}), device="cpu", checkpoint=tmp_path / "c")
    assert "memory on cpu" in caplog.text
    assert capsys.readouterr() == ("", "")


def test_validation_can_look_at_a_sample() -> None:
    config = make_config({"dim": 4, "epochs": 1, "valid_every": 1})
    whole, few = (run_training(circle(), config, device="cpu", valid_sample=n) for n in (None, 3))
    assert torch.equal(whole.model.entity, few.model.entity)
    assert whole.history[0].mrr != few.history[0].mrr


def test_a_containers_limit_counts(tmp_path: Path) -> None:
    assert _container_free(tmp_path) > 1 << 60
    (tmp_path / "memory.max").write_text("max\n")
    (tmp_path / "memory.current").write_text("5\n")
    assert _container_free(tmp_path) > 1 << 60
    (tmp_path / "memory.max").write_text("1000\n")
    assert _container_free(tmp_path) == 995
    (tmp_path / "memory.current").write_text("1200\n")
    assert _container_free(tmp_path) == 0


@pytest.mark.parametrize("stops", [False, True])
def test_a_trial_without_best_weights_has_the_same_scores_and_interval(tmp_path, monkeypatch, stops):
    """It overfits, so that the best validation is the first; stopped after it, its interval is in the checkpoint."""
    data = TrainingData(overfitting(), torch.device("cpu"))
    config = TrainConfig(dim=8, epochs=40, valid_every=20, lr=0.5, batch_size=64, patience=None)
    [[(_, whole)]] = run_trainings(data, [Training(config)])
    job = Training(config, tmp_path / "checkpoint", keep_best=False)
    if stops:
        looks, look = iter([False, True]), Validator.begin

        def interrupted(validator, model):
            if next(looks):
                raise KeyboardInterrupt
            return look(validator, model)

        with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
            patch.setattr(Validator, "begin", interrupted)
            list(run_trainings(data, [job]))
        assert not json.loads((tmp_path / "checkpoint" / "state.json").read_text())["has_best"]
    [[(_, lean)]] = run_trainings(data, [job])
    assert [v.mrr for v in lean.history] == [v.mrr for v in whole.history]
    assert (
        lean.best_validation == whole.best_validation == whole.history[0]
        and lean.interval == whole.interval is not None
    )
    assert not torch.equal(lean.model.entity, whole.model.entity)  # the last weights and the best


def overfitting():
    """Random triples: what is learnt of them is worth nothing for others."""
    random = np.random.default_rng(0)
    triples = np.unique(random.integers(0, [60, 3, 60], (900, 3)), axis=0).astype(np.int32)
    triples = random.permutation(triples)
    return Dataset(triples[100:].copy(), triples[:100].copy(), triples[:0].copy(), 60, 3, name="noise")


def test_a_disk_without_room_for_checkpoints_is_said_once_and_training_goes_on(tmp_path, monkeypatch, caplog):
    monkeypatch.setattr("grash.engines.trainer.free_disk", lambda folder: 1000)
    monkeypatch.setattr("grash.training.loop.Monitor._save_interval", lambda monitor: 0.0)
    config = TrainConfig(dim=8, epochs=4, valid_every=1, batch_size=64)
    with caplog.at_level(logging.WARNING):
        [[(_, ended)]] = run_trainings(
            TrainingData(overfitting(), torch.device("cpu")), [Training(config, tmp_path / "checkpoint")]
        )
    assert len(ended.history) == 4 and not (tmp_path / "checkpoint").exists()
    said = [r.message for r in caplog.records if "skipped: it needs" in r.message]
    assert len(said) == 1 and "only 1000 B is free. Training continues" in said[0]
