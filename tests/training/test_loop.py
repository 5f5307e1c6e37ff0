"""The loop: same seed same weights, resuming without a changed bit, divergence, early stopping."""

from __future__ import annotations

import itertools
import math
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from grash.data.dataset import Dataset
from grash.engines.trainer import run_training
from grash.errors import Diverged, FormatError, InputError
from grash.files import write_checksums
from grash.models import KgeModel
from grash.models.base import model_tensors
from grash.training import loop
from grash.training.batches import Batches
from grash.training.checkpoint import TrainState
from grash.training.config import TrainConfig, make_config
from grash.training.initial import initial_model
from grash.training.loop import Progress
from grash.training.optimizers import TableOptimizer
from oracles import random_triples
from training.single import train

CPU = torch.device("cpu")


def small_graph(n: int = 90) -> Dataset:
    triples = np.unique(random_triples(5, n, 15, 3), axis=0)
    triples = np.random.default_rng(0).permutation(triples)
    parts = np.split(np.ascontiguousarray(triples), [len(triples) - 20, len(triples) - 10])
    return Dataset(*(np.ascontiguousarray(p) for p in parts), n_entities=15, n_relations=3, name="small")


def settings_of(**values: Any) -> TrainConfig:
    start = {"dim": 8, "batch_size": 16, "negatives_head": 4, "negatives_tail": 4, "epochs": 3.5, "valid_every": 0.7}
    return make_config(start | {"lr": 0.05, "patience": None} | values)


def run(config: TrainConfig, checkpoint: Path | None = None, **options: Any) -> TrainState:
    return run_training(small_graph(), config, device="cpu", checkpoint=checkpoint, **options)


def same(one: TrainState, other: TrainState) -> bool:
    histories = [[(v.step, v.epoch, v.mrr, v.lr) for v in o.history] for o in (one, other)]
    first, second = model_tensors(one.model), model_tensors(other.model)
    tables = [first.keys() == second.keys(), *(torch.equal(first[name], second[name]) for name in first)]
    return all(tables) and histories[0] == histories[1] and one.step == other.step


@pytest.fixture
def eager(monkeypatch: pytest.MonkeyPatch) -> None:
    """Report to the watcher after every step."""
    clock = iter(range(10**9))
    monkeypatch.setattr(time, "monotonic", lambda: float(next(clock)))


def stopper(at: int) -> Callable[[Progress], None]:
    def watch(progress: Progress) -> None:
        if progress.step == at:
            raise KeyboardInterrupt

    return watch


VARIANTS: dict[str, dict[str, Any]] = {
    **{name: {"optimizer": name, "lr": 0.02} for name in ("adagrad", "row_adagrad", "adam", "lazy_adam", "sgd")},
    "plateau": {"schedule": "plateau", "schedule_patience": 0, "schedule_factor": 0.5},
    "cosine": {"schedule": "cosine", "warmup_epochs": 1.0},
    "dropout": {"dropout_entity": 0.3, "dropout_relation": 0.2},
    "1vsall": {"training": "1vsall", "reciprocal": True, "penalty": "n3", "penalty_entity": 0.01},
    "kvsall": {"training": "kvsall", "loss": "bce", "label_smoothing": 0.1, "optimizer": "adam", "lr": 0.01},
    "own": {"negatives_shared": False, "negatives_filtered": True, "model": "rotate", "loss": "self_adversarial"},
    "whole table": {"penalty": "l2", "penalty_weighted": False, "penalty_entity": 0.01, "model": "transe"},
    "patience": {"patience": 1, "valid_every": 0.5, "lr": 0.5},
    "conve": {"model": "conve", "training": "1vsall", "dropout_features": 0.2, "dropout_query": 0.2},
    "tucker": {"model": "tucker", "training": "kvsall", "optimizer": "adam", "lr": 0.01, "dropout_input": 0.2},
    "mure": {"model": "mure"},
    "pairre": {"model": "pairre", "optimizer": "lazy_adam", "lr": 0.02},
}


@pytest.mark.slow
@pytest.mark.parametrize("name", VARIANTS)
def test_a_stopped_run_resumes_to_the_same_bits(name: str, tmp_path: Path, eager: None) -> None:
    config = settings_of(**VARIANTS[name])
    whole = run(config)
    assert len(whole.history) > 1
    first_validation = whole.history[0].step
    for stop in {1, first_validation, first_validation + 1, whole.step}:
        folder = tmp_path / str(stop)
        with pytest.raises(KeyboardInterrupt):
            run(config, folder, watch=stopper(stop))
        assert same(run(config, folder), whole), f"stopped after step {stop} of {whole.step}"
        assert same(run(config, folder), whole), "a finished run is finished"


def test_stopping_again_and_again_changes_nothing(tmp_path: Path, eager: None) -> None:
    config = settings_of(dropout_entity=0.2, schedule="plateau", schedule_patience=0)
    whole = run(config)
    for step in range(1, whole.step + 1):
        with pytest.raises(KeyboardInterrupt):
            run(config, tmp_path / "c", watch=stopper(step))
    assert same(run(config, tmp_path / "c"), whole)


def test_an_interrupt_during_a_validation_does_not_lose_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = settings_of()
    whole = run(config)
    monkeypatch.setattr("grash.engines.trainer.score", lambda ranks, metric: (_ for _ in ()).throw(KeyboardInterrupt()))
    with pytest.raises(KeyboardInterrupt):
        run(config, tmp_path / "c")
    monkeypatch.undo()
    assert same(run(config, tmp_path / "c"), whole)


def test_ctrl_c_in_the_middle_of_an_update_waits_for_its_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = settings_of()
    whole = run(config)
    update, calls = TableOptimizer.update, []

    def pressed(self: TableOptimizer, *arguments: Any) -> None:
        calls.append(1)
        if len(calls) == 6:  # between the relations and the counter of the third step
            os.kill(os.getpid(), signal.SIGINT)
        update(self, *arguments)

    monkeypatch.setattr(TableOptimizer, "update", pressed)
    with pytest.raises(KeyboardInterrupt):
        run(config, tmp_path / "c")
    monkeypatch.undo()
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    assert same(run(config, tmp_path / "c"), whole)


def test_the_same_seed_gives_the_same_weights_and_another_seed_others() -> None:
    config = settings_of(dropout_entity=0.1)
    assert same(run(config), run(config))
    assert not torch.equal(run(config).model.entity, run(config.changed(seed=1)).model.entity)


@pytest.mark.parametrize("name", ["transe", "rotate"])
def test_the_number_of_threads_changes_no_bit_where_no_matrix_is_multiplied(name: str) -> None:
    """Dot products and l2 go through the library's matrix product, which may sum in another order."""
    before = torch.get_num_threads()
    try:
        config = settings_of(model=name, dim=32, negatives_head=10, negatives_tail=10)
        outcomes = [run(config, threads=n) for n in (1, 2)]
    finally:
        torch.set_num_threads(before)
    assert same(*outcomes)


def test_a_checkpoint_of_other_settings_is_refused_by_name(tmp_path: Path, eager: None) -> None:
    config = settings_of()
    with pytest.raises(KeyboardInterrupt):
        run(config, tmp_path / "c", watch=stopper(2))
    with pytest.raises(InputError, match=r"checkpoint of another run \(lr: 0.05 there, 0.1 now\)"):
        run(config.changed(lr=0.1), tmp_path / "c")
    with pytest.raises(InputError, match="dataset: .* there, .* now"):
        run_training(small_graph(70), config, device="cpu", checkpoint=tmp_path / "c")


@pytest.mark.parametrize(
    ("file", "change", "sentence"),
    [
        ("tensors.safetensors", lambda b: b[: len(b) // 2], "damaged checkpoint"),
        ("tensors.safetensors", lambda b: b"", "damaged checkpoint"),
        ("tensors.safetensors", None, "damaged checkpoint"),
        ("state.json", lambda b: b[: len(b) // 2], "is damaged"),
        ("state.json", lambda b: b"\xff" + b, "is damaged"),
        ("state.json", lambda b: b"[]", "does not describe a grash-checkpoint"),
        ("state.json", lambda b: b.replace(b'"version": 1', b'"version": 99'), "of version 99"),
        ("state.json", lambda b: b.replace(b'"history"', b'"mystery"'), "damaged checkpoint"),
        ("state.json", lambda b: b.replace(b'"belongs_to"', b'"belonged"'), "does not name its run"),
        ("state.json", lambda b: b.replace(b'"plateau": {', b'"plateau": null, "rest": {'), "damaged checkpoint"),
    ],
)
def test_a_damaged_checkpoint_gets_a_clear_error(
    tmp_path: Path, eager: None, file: str, change: Callable[[bytes], bytes] | None, sentence: str
) -> None:
    with pytest.raises(KeyboardInterrupt):
        run(settings_of(), tmp_path / "c", watch=stopper(2))
    path = tmp_path / "c" / file
    if change is None:
        path.unlink()
    else:
        changed = change(path.read_bytes())
        assert changed != path.read_bytes()
        path.write_bytes(changed)
    write_checksums(tmp_path / "c")  # what checksums do not find
    with pytest.raises(FormatError, match=sentence):
        run(settings_of(), tmp_path / "c")


@pytest.mark.parametrize("file", ["tensors.safetensors", "state.json"])
def test_a_flipped_bit_in_a_checkpoint_is_noticed(tmp_path: Path, eager: None, file: str) -> None:
    with pytest.raises(KeyboardInterrupt):
        run(settings_of(), tmp_path / "c", watch=stopper(2))
    path = tmp_path / "c" / file
    whole = bytearray(path.read_bytes())
    whole[-20] ^= 1
    path.write_bytes(whole)
    with pytest.raises(FormatError, match="is damaged"):
        run(settings_of(), tmp_path / "c")


def test_a_folder_of_something_else_is_never_overwritten(tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("years of work")
    with pytest.raises(InputError, match="holds no checkpoint, so it is not overwritten"):
        run(settings_of(), tmp_path)
    assert (tmp_path / "thesis.txt").read_text() == "years of work"


@pytest.mark.parametrize(
    "values",
    [
        {"lr": 1e30, "optimizer": "sgd"},
        {"lr": 1e4, "optimizer": "sgd", "training": "1vsall", "loss": "bce"},
        {"lr": 1e4, "optimizer": "adagrad", "model": "transe", "loss": "margin"},
    ],
)
def test_divergence_is_detected_and_reported(values: dict[str, Any]) -> None:
    with pytest.raises(Diverged, match="lower learning rate|train the model again"):
        run(settings_of(epochs=20, valid_every=20, **values))


def stand_in(config: TrainConfig) -> tuple[TrainState, Batches]:
    graph = small_graph()
    state = TrainState.fresh(initial_model(config, graph.n_entities, graph.n_relations), config)
    return state, Batches(graph.train, graph.n_entities, graph.n_relations, config, CPU)


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), 5e4])
def test_a_loss_that_is_nan_or_explodes_stops_the_run(bad: float, monkeypatch: pytest.MonkeyPatch) -> None:
    losses = itertools.chain([3.0, 2.0, bad], itertools.repeat(1.0))  # which are read a little later

    def step(state: TrainState, *_: Any) -> torch.Tensor:
        state.step += 1
        return torch.tensor(next(losses))

    monkeypatch.setattr(loop, "train_step", step)
    config = settings_of()
    with pytest.raises(Diverged, match=r"diverged at step 3: the loss is .* \(it began at 3\)"):
        train(*stand_in(config), config)


def test_training_stops_when_patience_runs_out_and_keeps_the_best() -> None:
    config = settings_of(epochs=50, valid_every=1, patience=3)
    state, batches = stand_in(config)
    scores, tables = iter([0.1, 0.4, 0.3, 0.4, 0.2, 0.9]), []

    def validate(model: KgeModel) -> float:
        tables.append(model.entity.clone())
        return next(scores)

    train(state, batches, config, validate=validate)
    assert [v.mrr for v in state.history] == [0.1, 0.4, 0.3, 0.4, 0.2]  # an equal score is no gain
    assert state.best_validation is state.history[1]
    assert torch.equal(state.model.entity, tables[1]) and not torch.equal(tables[1], tables[4])


def test_without_validation_the_last_step_counts() -> None:
    config = settings_of()
    state, batches = stand_in(config)
    train(state, batches, config)
    assert state.step == batches.plan.n_steps and state.history == [] and state.best == {}


def test_validations_report_the_rate_and_the_mean_loss() -> None:
    config = settings_of(schedule="linear", epochs=2, valid_every=1)
    state, batches = stand_in(config)
    train(state, batches, config, validate=lambda model: 0.5)
    assert [v.epoch for v in state.history] == [1.0, 2.0]
    assert [v.lr for v in state.history] == pytest.approx([0.025, 0.0])
    assert all(np.isfinite(v.loss) for v in state.history)


def test_a_watcher_receives_the_progress(eager: None) -> None:
    seen: list[Progress] = []
    outcome = run(settings_of(), watch=seen.append)
    assert [p.step for p in seen] == [*range(1, outcome.step + 1), outcome.step]
    assert seen[-1].n_steps == outcome.step and seen[-1].seconds_left == 0
    assert {p.epochs for p in seen} == {seen[-1].epoch}
    assert seen[-1].epoch == pytest.approx(3.5, abs=0.01) and seen[0].best_mrr is None and seen[-1].best_mrr is not None


def test_the_last_report_is_that_of_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop, "_REPORT_SECONDS", math.inf)  # a training of less than that
    seen: list[Progress] = []
    outcome = run(settings_of(epochs=50.0, patience=1), watch=seen.append)
    assert len(seen) == 1 and outcome.step < seen[0].n_steps and seen[0].seconds_left == 0
    assert seen[0].epoch == outcome.history[-1].epoch and seen[0].loss == outcome.history[-1].loss
    assert seen[0].best_mrr == max(v.mrr for v in outcome.history)


def test_a_failing_save_keeps_the_checkpoint_before_it(
    tmp_path: Path, eager: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = settings_of()
    whole = run(config)
    with pytest.raises(KeyboardInterrupt):
        run(config, tmp_path / "c", watch=stopper(3))
    monkeypatch.setattr(
        "grash.training.checkpoint.write_json", lambda *_: (_ for _ in ()).throw(OSError(28, "No space left"))
    )
    with pytest.raises(Exception, match="could not be written: No space left"):
        run(config, tmp_path / "c", watch=stopper(5))
    monkeypatch.undo()
    assert sorted(p.name for p in tmp_path.iterdir()) == ["c"]
    assert same(run(config, tmp_path / "c"), whole)
