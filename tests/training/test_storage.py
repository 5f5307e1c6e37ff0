"""Entities kept in bf16: updates against float32 rows that are rounded by hand, and everything that reads the table."""

from __future__ import annotations

import copy
import os
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from engines.planted import circle
from engines.searches import small_search
from grash.api.model import Model
from grash.engines.distributed import run_distributed_training
from grash.engines.trainer import TrainingData, run_training, run_trainings, stack_key
from grash.errors import ConfigError
from grash.evaluation.evaluate import evaluate
from grash.kernels import row_update
from grash.kernels.random import key_at, random_bits
from grash.models import MODELS, KgeModel
from grash.models.store import load_model
from grash.training.checkpoint import TrainState
from grash.training.config import TrainConfig, make_config
from grash.training.gradients import Gradient
from grash.training.initial import initial_model
from grash.training.loop import Training
from grash.training.optimizers import ADAGRAD_EPS, ADAM_EPS, BETAS, TableOptimizer, rounding_key
from kernels.test_storage import rounded_by_hand
from small_graph import rings
from training.distributed.thread_group import in_threads

E, D = 11, 6
BF16, FLOAT32 = torch.bfloat16, torch.float32


def config_of(**values: Any) -> TrainConfig:
    start = {"dim": 8, "batch_size": 32, "negatives_head": 10, "negatives_tail": 20, "lr": 0.3, "storage": "bf16"}
    return make_config(start | {"epochs": 6.5, "valid_every": 2, "patience": None} | values)


def same(one: TrainState, other: TrainState) -> bool:
    tables = torch.equal(one.model.entity, other.model.entity), torch.equal(one.model.relation, other.model.relation)
    return all(tables) and one.history == other.history


def floats_of(model: KgeModel) -> KgeModel:
    """The same numbers in float32."""
    other = copy.copy(model)
    other.entity = model.entity.float()
    return other


def move(kind: str, table: torch.Tensor, state: dict[str, torch.Tensor], gradient: Gradient, step: int) -> None:
    """A float32 table, by the rule of a step that touches some rows; a dense gradient by the optimizer's own."""
    if gradient.dense is not None:
        optimizer = TableOptimizer(kind, table)
        optimizer.state = state
        optimizer.update(table, gradient, 0.1, step)
        return
    ids, rows = row_update.summed_rows_reference(gradient.ids, gradient.rows)
    if kind == "adagrad":
        row_update.adagrad_rows(table, state["squares"], ids, rows, 0.1, ADAGRAD_EPS)
    elif kind == "row_adagrad":
        row_update.row_adagrad_rows(table, state["squares"], ids, rows, 0.1, ADAGRAD_EPS)
    elif kind == "lazy_adam":
        rates = TableOptimizer("lazy_adam", table).rates(0.1, step)
        row_update.adam_rows(table, state["first"], state["second"], ids, rows, rates, BETAS, ADAM_EPS)
    else:
        row_update.sgd_rows(table, ids, rows, 0.1)


def round_by_hand(table: torch.Tensor, key: int) -> None:
    """Every number by arithmetic on its bits; those that bf16 holds stay."""
    random = random_bits(torch.arange(len(table)), table.shape[1], key).tolist()
    for i, row in enumerate(table.tolist()):
        table[i] = torch.tensor([rounded_by_hand(x, r) for x, r in zip(row, random[i])])


@pytest.mark.parametrize("dense", [False, True], ids=["rows", "dense"])
@pytest.mark.parametrize("kind", ["adagrad", "row_adagrad", "lazy_adam", "sgd"])
def test_an_update_is_the_float32_update_rounded_by_hand(kind: str, dense: bool) -> None:
    generator = torch.Generator().manual_seed(3)
    table = torch.randn(E, D, generator=generator).bfloat16()
    optimizer, wanted = TableOptimizer(kind, table, key=7), table.float()
    theirs = {name: tensor.clone() for name, tensor in optimizer.state.items()}
    assert all(tensor.dtype == FLOAT32 for tensor in theirs.values())
    for step in range(1, 6):
        if dense:
            gradient = Gradient(dense=torch.randn(E, D, generator=generator))
        else:
            ids = [torch.tensor([3, 3, 5, 0]), torch.tensor([5, 9])]
            gradient = Gradient(ids, [torch.randn(len(part), D, generator=generator) for part in ids])
        before = table.clone()
        optimizer.update(table, gradient, 0.1, step)
        move(kind, wanted, theirs, gradient, step)
        round_by_hand(wanted, key_at(7, step - 1))
        assert table.dtype == BF16 and torch.equal(table.float(), wanted)
        assert dense or torch.equal(table[[1, 2, 4]], before[[1, 2, 4]])
        for name, tensor in optimizer.state.items():
            assert torch.equal(tensor, theirs[name]), name


def test_dense_gradients_move_a_table_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    start = torch.randn(E, D, generator=torch.Generator().manual_seed(0)).bfloat16()
    tables, dense = [start.clone(), start.clone()], torch.ones(E, D)
    for table, together in zip(tables, (1 << 16, 4)):
        monkeypatch.setattr("grash.training.optimizers._ROWS_AT_ONCE", together)
        TableOptimizer("adagrad", table, key=1).update(table, Gradient(dense=dense.clone()), 0.01, 1)
    assert torch.equal(*tables) and not torch.equal(tables[0], start)


def test_steps_smaller_than_the_precision_add_up() -> None:
    table = torch.full((200, 8), 1.0).bfloat16()  # whose neighbor below is 2⁻⁸ away
    optimizer = TableOptimizer("sgd", table, key=rounding_key(config_of()))
    for step in range(1, 101):
        optimizer.update(table, Gradient([torch.arange(200)], [torch.full((200, 8), 1e-4)]), 1.0, step)
    assert abs(table.double().mean().item() - 0.99) < 0.0005  # to the nearest it would have stayed at 1


def test_initial_rows_are_those_of_float32_rounded_to_the_nearest() -> None:
    for init in ("xavier_normal", "uniform", "normal"):
        half, whole = (initial_model(config_of(init=init, storage=s), 30, 4) for s in ("bf16", "float32"))
        assert half.entity.dtype == BF16 and torch.equal(half.entity, whole.entity.bfloat16())
        assert torch.equal(half.relation, whole.relation)
    keys = torch.tensor([7, 3, 29])
    assert torch.equal(initial_model(config_of(init="normal"), 3, 2, entity_keys=keys).entity,
                       initial_model(config_of(init="normal"), 30, 2).entity[keys])  # fmt: skip


TRAININGS: dict[str, dict[str, Any]] = {
    "negative sampling": {},
    "1vsall": {"training": "1vsall"},
    "kvsall": {"training": "kvsall"},
    "own negatives": {"negatives_shared": False, "negatives_head": 3, "negatives_tail": 2, "dropout_entity": 0.1},
    "lazy adam": {"optimizer": "lazy_adam", "lr": 0.02, "penalty": "l3", "penalty_entity": 0.01},
    "whole table": {"penalty": "l2", "penalty_entity": 1e-4, "penalty_weighted": False},
}


@pytest.mark.parametrize("training", list(TRAININGS)[:3])
@pytest.mark.parametrize("model", MODELS)
def test_every_model_learns_with_every_training_type(model: str, training: str) -> None:
    config = config_of(
        model=model, epochs=12, valid_every=3, **TRAININGS[training] | ({"lr": 0.1} if model == "rescal" else {})
    )
    outcome = run_training(circle(), config, device="cpu")
    losses = [v.loss for v in outcome.history]
    assert outcome.model.entity.dtype == BF16 and losses[-1] < 0.8 * losses[0], losses


@pytest.mark.parametrize("training", list(TRAININGS)[3:])
def test_training_learns_with_other_settings_too(training: str) -> None:
    for model in ("complex", "rotate"):
        outcome = run_training(
            circle(), config_of(model=model, epochs=12, valid_every=3, **TRAININGS[training]), device="cpu"
        )
        assert outcome.model.entity.dtype == BF16 and outcome.history[-1].loss < 0.8 * outcome.history[0].loss


def test_the_first_step_sees_the_rows_of_a_float32_table() -> None:
    """Losses are those of the same numbers in float32, whichever loops make them."""
    from grash.training.batches import Batches
    from grash.training.gradients import step_gradients

    data = circle()
    for values in (*TRAININGS.values(), {"relation_prediction": 0.5, "reciprocal": True}):
        config = config_of(**values)
        batches = Batches(data.train, data.n_entities, data.n_relations, config, torch.device("cpu"))
        batch = batches.questions(0) if config.training == "kvsall" else batches.positives(0)
        half = initial_model(config, data.n_entities, data.n_relations)
        one, other = (step_gradients(model, batch, config, 5) for model in (half, floats_of(half)))
        assert torch.equal(one.loss, other.loss)
        for a, b in zip(one.entity.rows + one.relation.rows, other.entity.rows + other.relation.rows):
            assert torch.equal(a, b) and a.dtype == FLOAT32


def test_results_do_not_depend_on_threads_or_on_the_stack() -> None:
    configs = [config_of(), config_of(variation=1, lr=0.1), config_of(storage="float32")]
    ended: dict[int, Any] = {}
    for part in run_trainings(TrainingData(circle(), torch.device("cpu")), [Training(config) for config in configs]):
        ended |= dict(part)
    threads = torch.get_num_threads()
    try:
        for n in (1, 2):
            for place, config in enumerate(configs):
                assert same(run_training(circle(), config, device="cpu", threads=n), ended[place])
    finally:
        torch.set_num_threads(threads)
    assert [ended[place].model.entity.dtype for place in range(3)] == [BF16, BF16, FLOAT32]
    assert stack_key(configs[0]) == stack_key(configs[1]) != stack_key(configs[2])


@pytest.mark.parametrize("placement", ["device", "disk"])
@pytest.mark.parametrize("training", ["negative sampling", "kvsall", "lazy adam"])
def test_a_stopped_training_resumes_to_the_same_bits(
    training: str, placement: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = config_of(**TRAININGS[training])
    whole = run_training(circle(), config, device="cpu")

    def stop(progress: Any) -> None:
        if progress.step > 12:
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        clock = iter(range(10**9))
        patch.setattr(time, "monotonic", lambda: float(next(clock)))
        with pytest.raises(KeyboardInterrupt):
            run_training(circle(), config, device="cpu", checkpoint=tmp_path / "c", watch=stop, placement=placement)
    assert same(run_training(circle(), config, device="cpu", checkpoint=tmp_path / "c", placement=placement), whole)


@pytest.mark.parametrize("model", MODELS)
def test_ranks_and_answers_are_those_of_the_same_numbers_in_float32(model: str, tmp_path: Path) -> None:
    data = rings()
    where = "device" if model == "mure" else "disk"
    trained = run_training(data, config_of(model=model, epochs=4), device="cpu", placement=where,
                           checkpoint=tmp_path / "c").model  # fmt: skip
    here = copy.copy(trained)
    here.entity = trained.entity.clone()
    half, far, floats = (Model(kge, data, config_of(model=model)) for kge in (here, trained, floats_of(here)))
    assert far.kge.entity.dtype == half.kge.entity.dtype == BF16
    for other in (half, far):
        for options in ({}, {"candidates": 5}):
            assert evaluate(other.kge, data, **options).to_dict() == evaluate(floats.kge, data, **options).to_dict()
        for question in (("person 1", "next", None), (None, "beside", "person 3"), ("person 1", None, "person 2")):
            assert other.predict(*question, k=5) == floats.predict(*question, k=5)
        assert np.array_equal(other.score(data.test), floats.score(data.test))
        for metric in ("cosine", "dot", "euclidean"):
            assert other.neighbors("person 1", 3, metric) == floats.neighbors("person 1", 3, metric)  # type: ignore[arg-type]
        assert np.array_equal(other.entity_embeddings, floats.entity_embeddings)
    heads, relations = torch.tensor([0, 5]), torch.tensor([1, 2])
    assert torch.equal(here.score_tails(heads, relations), floats.kge.score_tails(heads, relations))
    for form in ("npy", "word2vec", "parquet"):
        for name, one in (("half", half), ("floats", floats)):
            one.export(tmp_path / name / form, form)  # type: ignore[arg-type]
        for path in (tmp_path / "floats" / form).iterdir():
            assert path.suffix == ".parquet" or path.read_bytes() == (tmp_path / "half" / form / path.name).read_bytes()


def test_a_model_folder_keeps_two_bytes_a_float_and_gives_the_same_scores(tmp_path: Path) -> None:
    import grash

    sizes = {}
    for storage in ("bf16", "float32"):
        folder = tmp_path / storage
        model = grash.train(rings(), out=folder, dim=64, epochs=3, storage=storage, device="cpu")
        again = grash.load_model(folder)
        assert again.config.storage == storage and torch.equal(again.kge.entity, model.kge.entity)
        assert again.kge.entity.dtype == (BF16 if storage == "bf16" else FLOAT32)
        assert again.evaluate().to_dict() == model.evaluate().to_dict()
        assert np.array_equal(again.score(rings().test), model.score(rings().test))
        assert load_model(folder).model.entity.dtype == again.kge.entity.dtype
        sizes[storage] = (folder / "embeddings.safetensors").stat().st_size
    assert sizes["float32"] - sizes["bf16"] >= 2 * 12 * 64


def test_a_checkpoint_of_the_other_storage_is_another_run(tmp_path: Path) -> None:
    from grash.errors import InputError
    from grash.training.checkpoint import load_state, save_state

    half, whole = config_of(), config_of(storage="float32")
    states = [TrainState.fresh(initial_model(c, 12, 3), c) for c in (half, whole)]
    save_state(states[0], tmp_path / "c", belongs_to={"config": half.model_dump()})
    with pytest.raises(InputError, match="storage: bf16 there, float32 now"):
        load_state(states[1], tmp_path / "c", belongs_to={"config": whole.model_dump()})


@pytest.mark.parametrize("changes", [{}, {"variant": "epoch"}, {"warm_start": "weights"}], ids=str)
def test_a_search_may_fix_the_storage_of_its_trials(changes: dict[str, Any], tmp_path: Path) -> None:
    fixed = {"batch_size": 96, "negatives_head": 10, "storage": "bf16"}
    small_search(tmp_path / "s", n_trials=4, fixed=fixed, **changes).run()
    assert load_model(tmp_path / "s").model.entity.dtype == BF16


def test_unsupported_storage_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match=r"storage=bf16 does not work with optimizer=adam, .*: give lazy_adam"):
        config_of(optimizer="adam")
    with pytest.raises(ConfigError, match=r"storage='fp16' is not valid: give 'float32' or 'bf16'"):
        config_of(storage="fp16")
    monkeypatch.setitem(os.environ, "LOCAL_WORLD_SIZE", "2")

    def rank(group: Any) -> str:
        with pytest.raises(ConfigError) as caught:
            folders = {"out": tmp_path / "m", "checkpoint": tmp_path / "c"}
            run_distributed_training(circle(), config_of(), group, torch.device("cpu"), **folders)
        return str(caught.value)

    said = "storage=bf16 can be trained in one process only: give storage=float32"
    assert all(words.startswith(said) for words in in_threads(2, rank))
