"""Placement changes no number: tables in files against tables in memory, with the unfused step and the fused kernels
(interpreted). Host memory of a GPU: tests/gpu/test_placement."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
import torch

from engines.planted import circle
from grash.engines.trainer import TrainingData, run_training, run_trainings
from grash.errors import ConfigError
from grash.evaluation.evaluate import evaluate
from grash.kernels.storage import Placement, check_placement, is_offloaded
from grash.models.store import StoredModel, load_model, save_model
from grash.training.batches import Batches
from grash.training.checkpoint import TrainState, load_state, save_state, state_tensors
from grash.training.config import TrainConfig, make_config
from grash.training.initial import initial_model
from grash.training.loop import Monitor, Training
from triton_interpreter import interpret, needs_triton

CPU = torch.device("cpu")
CASES: dict[str, dict[str, Any]] = {
    "negative sampling": {},
    "row by row": {"optimizer": "row_adagrad", "model": "rotate"},
    "lazy adam": {"optimizer": "lazy_adam", "lr": 0.01, "reciprocal": True, "dropout_entity": 0.2},
    "adam": {"optimizer": "adam", "lr": 0.01, "training": "kvsall"},
    "half precision": {"storage": "bf16"},
    "half precision, all entities": {"storage": "bf16", "training": "1vsall", "optimizer": "row_adagrad"},
    "all entities": {"training": "1vsall", "penalty": "n3", "penalty_entity": 0.02, "model": "cp"},
}


def config_of(**values: Any) -> TrainConfig:
    start = {"dim": 16, "batch_size": 32, "negatives_head": 10, "negatives_tail": 20, "lr": 0.3}
    return make_config(start | {"epochs": 8.5, "valid_every": 2, "patience": 2} | values)


def same(one: TrainState, other: TrainState) -> bool:
    tables = torch.equal(one.model.entity, other.model.entity), torch.equal(one.model.relation, other.model.relation)
    return all(tables) and one.history == other.history and one.interval == other.interval


@pytest.mark.parametrize("case", CASES)
def test_a_training_on_disk_is_the_training_in_memory(case: str, tmp_path: Path) -> None:
    config = config_of(**CASES[case])
    here = run_training(circle(), config, device="cpu", placement="device")
    there = run_training(circle(), config, device="cpu", placement="disk", checkpoint=tmp_path / "run" / "c")
    assert is_offloaded(there.model.entity) and same(here, there)
    assert list((tmp_path / "run").iterdir()) == []  # files without a name


def test_state_and_best_weights_are_stored_like_the_table(tmp_path: Path) -> None:
    for placement, far in ((Placement("disk", tmp_path), True), (Placement("host"), False), (Placement(), False)):
        model = initial_model(config_of(), 40, 5, placement=placement)
        state = TrainState.fresh(model, config_of(), placement)
        state.allocate_best()
        assert placement.best_rows(initial_model(config_of(storage="bf16"), 4, 5).entity).dtype == torch.bfloat16
        rows = [state.model.entity, *state.entity_optimizer.state.values(), state.best["entity"]]
        assert [is_offloaded(tensor) for tensor in rows] == [far] * 3
        assert not any(is_offloaded(t) for t in (state.model.relation, *state.relation_optimizer.state.values()))
        assert torch.equal(model.entity, initial_model(config_of(), 40, 5).entity)


def test_subgraphs_start_with_the_same_rows_in_every_placement(tmp_path: Path) -> None:
    keys = torch.tensor([7, 3, 39])
    here, there = (
        initial_model(config_of(), 3, 2, entity_keys=keys, placement=p)
        for p in (Placement(), Placement("disk", tmp_path))
    )
    assert torch.equal(here.entity, there.entity)


@pytest.mark.parametrize("order", [("device", "disk"), ("disk", "device"), ("disk", "disk")])
def test_a_checkpoint_of_one_placement_resumes_in_another(
    order: tuple[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config, training_data = config_of(), TrainingData(circle(), CPU)
    whole = run_training(circle(), config, device="cpu")

    def stop(progress: Any) -> None:
        if progress.step > 25:
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        clock = iter(range(10**9))
        patch.setattr(time, "monotonic", lambda: float(next(clock)))
        with pytest.raises(KeyboardInterrupt):
            list(run_trainings(training_data, [Training(config, tmp_path / "c", stop, placement=order[0])]))
    assert (tmp_path / "c" / "state.json").is_file()
    [[(_, ended)]] = run_trainings(training_data, [Training(config, tmp_path / "c", placement=order[1])])
    assert isinstance(ended, TrainState) and same(ended, whole)


def test_a_state_in_files_is_saved_and_loaded(tmp_path: Path) -> None:
    placement = Placement("disk", tmp_path)
    states = []
    for seed in (1, 2):
        config = config_of(seed=seed)
        states.append(TrainState.fresh(initial_model(config, 40, 5, placement=placement), config, placement))
    states[0].allocate_best()
    states[0].best["entity"].fill_(3.0)
    save_state(states[0], tmp_path / "c", belongs_to={})
    load_state(states[1], tmp_path / "c", belongs_to={})
    assert state_tensors(states[0]).keys() == state_tensors(states[1]).keys()
    for name, tensor in state_tensors(states[0]).items():
        assert torch.equal(tensor, state_tensors(states[1])[name]), name


def test_a_model_in_a_file_is_evaluated_and_saved_as_any_other(tmp_path: Path) -> None:
    config, data = config_of(epochs=4, valid_every=4), circle()
    here, there = (
        run_training(data, config, device="cpu", placement=p, checkpoint=tmp_path / p / "c").model
        for p in ("device", "disk")
    )
    assert evaluate(here, data).to_dict() == evaluate(there, data).to_dict()
    for place, model in (("a", here), ("b", there)):
        save_model(StoredModel(model, data, config.model_dump()), tmp_path / place)
    assert torch.equal(load_model(tmp_path / "b").model.entity, load_model(tmp_path / "a").model.entity)


def test_saving_takes_no_more_than_a_tenth_of_the_time(monkeypatch: pytest.MonkeyPatch) -> None:
    now, saved = [0.0], []
    monkeypatch.setattr(time, "monotonic", lambda: now[0])

    def save(state: TrainState) -> None:
        saved.append(now[0])
        now[0] += 50

    config, data = config_of(), circle()
    state = TrainState.fresh(initial_model(config, 40, 5), config)
    monitor = Monitor([Training(config).started(state, Batches(data.train, 40, 5, config, CPU), save=save)], 120)
    for moment in (119, 121, 171 + 130, 171 + 499, 171 + 501):
        now[0] = moment
        monitor.after_steps()
    assert saved == [121, 171 + 501]


def test_large_tables_are_not_saved_before_a_saving_is_a_tenth_of_the_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """A stack's first validation comes early, and its tables may take minutes to write."""
    now, saved = [0.0], []
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    config, data = config_of(), circle()
    state = TrainState.fresh(initial_model(config, 40, 5), config)
    batches = Batches(data.train, 40, 5, config, CPU)
    training = Training(config).started(state, batches, save=lambda s: saved.append(now[0]))
    monkeypatch.setattr(
        "grash.training.loop._DISK_BYTES_PER_SECOND", state.nbytes / 50
    )  # a saving is thought to take 50 s
    monitor = Monitor([training], 120)
    for moment in (16, 63, 499, 501):
        now[0] = moment
        monitor.after_validation()
    now[0] = 501 + 16  # it took none: an eighth of 120 s
    monitor.after_validation()
    assert saved == [501, 517]


def test_unsupported_placements_are_refused() -> None:
    with pytest.raises(ConfigError, match="placement='ram' is unknown: give auto, device, host or disk"):
        check_placement("ram", CPU)
    with pytest.raises(ConfigError, match="placement=disk needs device=cpu, but the device is cuda:0"):
        check_placement("disk", torch.device("cuda", 0))
    with pytest.raises(ConfigError, match="placement=disk needs a folder"):
        run_training(circle(), config_of(), device="cpu", placement="disk")
    for name in ("auto", "device", "host", "disk"):
        check_placement(name, CPU)


FUSED = """
import sys
from pathlib import Path
sys.path.insert(0, sys.argv[2])
import torch
from engines.planted import circle
from grash.engines.trainer import Validator
from grash.evaluation.evaluate import evaluate
from grash.kernels import step_draw_triton as drawing, step_update_triton as updating
from grash.training.batches import Batches
from grash.training.config import TrainConfig
from grash.training.fused import FusedSteps
from grash.training.initial import initial_model
from grash.training.loop import train_stack
from grash.kernels.storage import Placement
from grash.training.loop import Training
from grash.training.checkpoint import TrainState

# the interpreter takes its time by the program
drawing.ROWS, drawing.DRAWN, updating.ROWS, updating.LINES = 64, 128, 128, 32
data, cpu = circle(24, (1, 2)), torch.device("cpu")
config = TrainConfig(dim=8, batch_size=128, init="normal", init_std=0.3, lr=0.3, epochs=6, valid_every=2,
                     negatives_head=20, negatives_tail=20, patience=None, precision="float32")

def fused(live):
    return FusedSteps([t.state for t in live], live[0].batches, [t.config for t in live])

found = []
for placement in (Placement(), Placement("disk", Path(sys.argv[1]))):
    state = TrainState.fresh(initial_model(config, 24, 2, placement=placement), config, placement)
    training = Training(config).started(state, Batches(data.train, 24, 2, config, cpu), Validator(data, cpu))
    assert train_stack([training], make_steps=fused) == [None]
    found.append((state, evaluate(state.model, data, detail=False).both.mrr))
(here, one), (there, other) = found
assert one == other and here.history == there.history and len(here.history) == 3, (one, other)
assert torch.equal(here.model.entity, there.model.entity) and torch.equal(here.best["entity"], there.best["entity"])
assert here.history[-1].loss < 0.8 * here.history[0].loss, here.history
"""


@pytest.mark.slow
@needs_triton
def test_the_fused_step_learns_the_same_in_both(tmp_path: Path) -> None:
    interpret(FUSED, str(tmp_path), str(Path(__file__).parents[1]))
