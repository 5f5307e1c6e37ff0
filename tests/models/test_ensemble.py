"""Models folded into one: its scores are the sums of theirs."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.testing import assert_close

import grash
from grash.errors import InputError
from grash.models import MODELS, KgeModel
from grash.models.base import SIDES
from grash.models.ensemble import fold_models
from grash.training.config import make_config
from grash.training.initial import initial_model
from oracles import random_triples
from small_graph import rings

ADDITIVE = [name for name, model in MODELS.items() if model.additive]
E, R = 9, 3


def model_of(name: str, dim: int, seed: int = 0, **settings: object) -> KgeModel:
    config = make_config({"model": name, "dim": dim, "seed": seed, "init": "normal", "init_std": 0.5, **settings})
    return initial_model(config, E, R)


def test_seven_models_are_additive() -> None:
    assert ADDITIVE == ["complex", "cp", "distmult", "quate", "rotate", "simple", "transe"]


@pytest.mark.parametrize("reciprocal", [False, True])
@pytest.mark.parametrize("name", ADDITIVE)
@given(sizes=st.lists(st.integers(1, 3), min_size=2, max_size=4))
def test_the_score_of_an_ensemble_is_the_sum_of_the_scores(name: str, reciprocal: bool, sizes: list[int]) -> None:
    unit = MODELS[name].dim_multiple
    members = [model_of(name, unit * n, seed, reciprocal=reciprocal) for seed, n in enumerate(sizes)]
    folded = fold_models(members)
    assert (folded.dim, folded.reciprocal, folded.norm) == (unit * sum(sizes), reciprocal, 1)
    triples = torch.from_numpy(random_triples(1, 20, E, R).astype(np.int64))
    for side in SIDES:
        wanted = sum(member.score(triples, side=side).double() for member in members)
        assert_close(folded.score(triples, side=side).double(), wanted, rtol=1e-4, atol=1e-4)
    head, tail = folded.entity[triples[:, 0]], folded.entity[triples[:, 2]]
    of_relations = sum(
        member.relation_scores(member.entity[triples[:, 0]], member.entity[triples[:, 2]], member.relation)
        for member in members
    )
    assert_close(folded.relation_scores(head, tail, folded.relation), of_relations, rtol=1e-4, atol=1e-4)


def test_two_models_worked_by_hand() -> None:
    rows = [torch.tensor([[1.0, 2.0]]), torch.tensor([[3.0, 4.0, 5.0, 6.0]])]
    members = [MODELS["complex"](part, part.clone()) for part in rows]
    assert fold_models(members).entity.tolist() == [[1, 3, 4, 2, 5, 6]]  # real parts, then imaginary parts


def test_tables_of_different_types_become_float32() -> None:
    members = [model_of("complex", 4), model_of("complex", 4, storage="bf16")]
    assert fold_models(members).entity.dtype == torch.float32
    assert fold_models([members[1], members[1]]).entity.dtype == torch.bfloat16


@pytest.mark.parametrize(
    ("members", "message"),
    [
        ([("complex", {})], "two models or more"),
        ([("rescal", {}), ("rescal", {})], "rescal cannot be folded.*complex, cp, distmult, quate, rotate"),
        ([("transe", {"norm": 2}), ("transe", {"norm": 2})], "transe with norm 2 cannot be folded"),
        ([("complex", {}), ("distmult", {})], "the same model: model 1 has complex, model 2 distmult"),
        ([("complex", {}), ("complex", {"reciprocal": True})], "the same reciprocal: model 1 has False, model 2 True"),
    ],
)
def test_what_cannot_be_folded_is_a_sentence(members: list[tuple[str, dict[str, object]]], message: str) -> None:
    with pytest.raises(InputError, match=message):
        fold_models([model_of(name, 4, **settings) for name, settings in members])


QUICK = {"dim": 8, "epochs": 4, "batch_size": 16, "training": "1vsall", "valid_every": 2, "reciprocal": True}


@pytest.mark.usefixtures("one_thread")
def test_an_ensemble_is_saved_loaded_queried_and_updated_like_any_model(tmp_path) -> None:
    graph = rings()
    members = [grash.train(graph, seed=seed, out=tmp_path / f"m{seed}", **QUICK) for seed in (0, 1)]
    folded = grash.ensemble([members[0], tmp_path / "m1"], out=tmp_path / "both", device="cpu")
    loaded = grash.load_model(tmp_path / "both", device="cpu")
    assert (loaded.members, loaded.config.dim, loaded.kge.dim) == (2, 16, 16)
    assert loaded.evaluation["both"] == folded.evaluation["both"] and loaded.evaluation["both"]["n"] == 2 * len(
        graph.test
    )
    assert "ensemble of 2" in repr(loaded) and "ensemble of 2 models" in (tmp_path / "both" / "README.md").read_text()
    question = {"head": "person 1", "relation": "next"}
    found = {answer.name: answer.score for answer in loaded.predict(**question, k=12)}
    each = [{answer.name: answer.score for answer in member.predict(**question, k=12)} for member in members]
    assert found == pytest.approx({name: each[0][name] + each[1][name] for name in found}, abs=1e-5)
    three = grash.ensemble([loaded, members[0]], evaluate=False, calibrate=False)
    assert (three.members, three.kge.dim, three.calibration) == (3, 24, None)
    assert loaded.update([("person 1", "next", "newcomer")], epochs=1, evaluate=False)[0].members == 2


def test_models_of_other_graphs_and_occupied_folders_are_refused(tmp_path) -> None:
    one = grash.train(rings(), evaluate=False, **QUICK)
    other = grash.train(grash.from_triples([("a", "r", "b"), ("b", "r", "a")], n_valid=0, n_test=0), **QUICK)
    with pytest.raises(InputError, match="trained on different ones"):
        grash.ensemble([one, other])
    (tmp_path / "taken").mkdir()
    with pytest.raises(InputError, match="taken already exists"):
        grash.ensemble([one, one], out=tmp_path / "taken")
