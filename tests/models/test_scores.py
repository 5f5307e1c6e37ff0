"""Scores of every model: worked by hand, against the formulas, and the three score functions agree."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from grash.errors import ConfigError, UnknownName
from grash.models import MODELS, KgeModel, model_class
from grash.training.config import TrainConfig, make_config
from grash.training.initial import initial_model
from oracles import asked_score, relative_distance, score

VARIANTS = [("complex", 1), ("cp", 1), ("distmult", 1), ("rescal", 1)]
VARIANTS += [(name, norm) for name in ("rotate", "transe") for norm in (1, 2)]
VARIANTS += [("simple", 1), ("quate", 1), ("mure", 1), ("pairre", 1), ("pairre", 2)]  # by autograd


def table_of(rows: list[list[float]]) -> torch.Tensor:
    return torch.tensor(rows, dtype=torch.float32)


# (model, norm, head, relation, tail, score), each worked on paper
BY_HAND = [
    ("distmult", 1, [1, 2], [3, 4], [5, 6], 1 * 3 * 5 + 2 * 4 * 6),
    # (1 + 2i)(3 + 4i) = −5 + 10i; times conj(5 + 6i) = 5 − 6i has the real part −25 + 60
    ("complex", 1, [1, 2], [3, 4], [5, 6], 35),
    # the inverse direction: (5 + 6i)(3 + 4i) = −9 + 38i; times 1 − 2i has the real part −9 + 76
    ("complex", 1, [5, 6], [3, 4], [1, 2], 67),
    # two complex numbers, real parts first: (1 + 3i)·2i·conj(5) + (2 + 4i)·1·conj(6 + i)
    ("complex", 1, [1, 2, 3, 4], [0, 1, 2, 0], [5, 6, 0, 1], -30 + 16),
    # head part [1], tail part of the tail [6]
    ("cp", 1, [1, 2], [3], [5, 6], 1 * 3 * 6),
    # [1 2]·[[1 2] [3 4]] = [7 10]
    ("rescal", 1, [1, 2], [1, 2, 3, 4], [5, 6], 7 * 5 + 10 * 6),
    ("transe", 1, [1, 2], [3, 4], [5, 9], -(1 + 3)),
    ("transe", 2, [1, 2], [3, 4], [7, 10], -5),
    # a quarter turn takes 1 + 2i to −2 + i; the distance to 1 + 5i is |−3 − 4i|
    ("rotate", 1, [1, 2], [math.pi / 2], [1, 5], -5),
    # two coordinates, unturned: |3 + 4i| and |5 + 12i|
    ("rotate", 1, [3, 5, 4, 12], [0, 0], [0, 0, 0, 0], -(5 + 13)),
    ("rotate", 2, [3, 5, 4, 12], [0, 0], [0, 0, 0, 0], -math.sqrt(25 + 169)),
    # ½ (1·3·6 + 2·4·5)
    ("simple", 1, [1, 2], [3, 4], [5, 6], (18 + 40) / 2),
    # (1 + 2i + 3j + 4k) ⊗ i = −2 + i + 4j − 3k, from a relation of length 2; times 5 + 6i + 7j + 8k
    ("quate", 1, [1, 2, 3, 4], [0, 2, 0, 0], [5, 6, 7, 8], -10 + 6 + 28 - 24),
    # R∘h + r − t = (3 + 5 − 1, 8 + 6 − 11); the biases are 0.5 of the head as a head, −2 of the tail as a tail
    ("mure", 1, [1, 2, 0.5, 9], [3, 4, 5, 6], [1, 11, 9, -2], -(49 + 9) + 0.5 - 2),
    # h and t have length 5 and 1: (0.6, 0.8)∘(5, 10) − (1, 0)∘(1, 7)
    ("pairre", 1, [3, 4], [5, 10, 1, 7], [1, 0], -(2 + 8)),
    ("pairre", 2, [3, 4], [5, 10, 1, 7], [1, 0], -math.sqrt(4 + 64)),
]


@pytest.mark.parametrize(("name", "norm", "head", "relation", "tail", "wanted"), BY_HAND)
def test_scores_worked_by_hand(
    name: str, norm: int, head: list[float], relation: list[float], tail: list[float], wanted: float
) -> None:
    model = MODELS[name](table_of([head, tail]), table_of([relation]), norm=norm)
    triple = torch.tensor([[0, 0, 1]])
    assert model.score(triple).tolist() == pytest.approx([wanted], abs=1e-5)
    assert model.score(triple, side="head").tolist() == pytest.approx([wanted], abs=1e-5)


def random_model(config: TrainConfig, n_entities: int, n_relations: int, seed: int) -> KgeModel:
    fresh = initial_model(config.changed(seed=seed, init="normal", init_std=1.0), n_entities, n_relations)
    fresh.entity[:, config.dim :] = torch.randn(n_entities, MODELS[config.model].n_biases)
    return MODELS[config.model](
        fresh.entity.double(), fresh.relation.double(), reciprocal=config.reciprocal, norm=config.norm
    )


@settings(deadline=None)
@given(
    st.sampled_from(VARIANTS),
    st.booleans(),
    st.integers(1, 7),
    st.integers(1, 4),
    st.integers(1, 4),
    st.integers(0, 99),
)
def test_the_three_scores_agree_with_the_formula(
    variant: tuple[str, int], reciprocal: bool, n_entities: int, n_relations: int, half: int, seed: int
) -> None:
    dim = half * max(2, MODELS[variant[0]].dim_multiple)
    config = make_config({"model": variant[0], "norm": variant[1], "dim": dim, "reciprocal": reciprocal})
    model = random_model(config, n_entities, n_relations, seed)
    assert (model.n_entities, model.n_relations, model.dim) == (n_entities, n_relations, dim)
    questions = torch.cartesian_prod(torch.arange(n_entities), torch.arange(n_relations))
    known, relations = questions.T
    every = torch.arange(n_entities)
    for side in ("head", "tail"):
        row = model.relation[relations + n_relations * int(reciprocal and side == "head")]
        wanted = asked_score(config, model.entity[known][:, None], row[:, None], model.entity[None], side)
        found = model.score_tails(known, relations) if side == "tail" else model.score_heads(relations, known)
        assert relative_distance(found, wanted) < 1e-7  # l2 from one product loses half the digits near 0
        e, q = torch.meshgrid(every, torch.arange(len(questions)), indexing="ij")
        ends = (known[q], relations[q], e) if side == "tail" else (e, relations[q], known[q])
        one_by_one = model.score(torch.stack(ends, -1).reshape(-1, 3), side=side).reshape(e.shape)
        assert relative_distance(one_by_one.T, wanted) < 1e-12


@pytest.mark.parametrize(("name", "norm"), VARIANTS)
def test_without_reciprocals_both_sides_have_the_same_score(name: str, norm: int) -> None:
    model = random_model(make_config({"model": name, "norm": norm, "dim": 8}), 5, 2, 0)
    triples = torch.cartesian_prod(torch.arange(5), torch.arange(2), torch.arange(5))
    torch.testing.assert_close(model.score(triples, side="head"), model.score(triples, side="tail"))


@pytest.mark.parametrize(("name", "norm"), VARIANTS)
def test_a_reciprocal_head_is_the_tail_of_the_inverse_relation(name: str, norm: int) -> None:
    model = random_model(make_config({"model": name, "norm": norm, "dim": 8, "reciprocal": True}), 5, 2, 0)
    inverse = score(name, norm, model.entity[3], model.relation[1 + 2], model.entity[4])
    torch.testing.assert_close(model.score(torch.tensor([[4, 1, 3]]), side="head")[0], inverse)
    assert float((model.score(torch.tensor([[4, 1, 3]])) - inverse).abs()) > 1e-6


@pytest.mark.parametrize(("name", "norm"), VARIANTS)
def test_relation_scores_equal_the_formula(name: str, norm: int) -> None:
    model = random_model(make_config({"model": name, "norm": norm, "dim": 8}), 5, 3, 0)
    found = model.relation_scores(model.entity[:4], model.entity[1:], model.relation)
    wanted = score(name, norm, model.entity[:4, None], model.relation[None], model.entity[1:, None])
    assert found.shape == (4, 3) and relative_distance(found, wanted) < 1e-7


def test_many_relations_are_scored_in_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    model = random_model(make_config({"model": "rotate", "dim": 6}), 5, 7, 0)
    upstream = torch.randn(4, 7, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    ends = model.entity[:4], model.entity[1:]

    def both() -> list[torch.Tensor]:
        scores = model.relation_scores(*ends, model.relation)
        return [scores, *model.relation_scores_gradient(upstream, scores, *ends, model.relation)]

    whole = both()
    monkeypatch.setattr("grash.models.rotate._TILE", 4 * 3 * 2)
    for a, b in zip(whole, both()):
        torch.testing.assert_close(a, b)


def test_phases_are_wrapped_after_a_step_and_then_stay() -> None:
    phases = torch.linspace(-20, 20, 1001)[:, None]
    model = MODELS["rotate"](torch.zeros(2, 2), phases.clone())
    model.after_step()
    assert float(model.relation.min()) >= -math.pi - 1e-6 and float(model.relation.max()) <= math.pi + 1e-6
    torch.testing.assert_close(model.relation.cos(), phases.cos(), atol=1e-5, rtol=0)
    torch.testing.assert_close(model.relation.sin(), phases.sin(), atol=1e-5, rtol=0)
    once = model.relation.clone()
    model.after_step()
    assert torch.equal(model.relation, once)


def test_the_dimension_counts_floats() -> None:
    widths = {"complex": 8, "cp": 4, "distmult": 8, "mure": 16, "pairre": 16, "quate": 8, "rescal": 64, "rotate": 4}
    widths |= {"simple": 8, "transe": 8, "conve": 8, "tucker": 8}
    assert widths.keys() == MODELS.keys()
    for name, width in widths.items():
        model = initial_model(make_config({"model": name, "dim": 8, "reciprocal": True}), 4, 2)
        assert model.entity.shape == (4, 8 + MODELS[name].n_biases) and model.relation.shape == (4, width)
        assert not model.entity[:, 8:].any() and model.dim == 8
    with pytest.raises(ValueError, match="needs relations"):
        MODELS["cp"](torch.zeros(3, 4), torch.zeros(2, 4))


def test_odd_dimensions_and_unknown_models_are_errors() -> None:
    for name in ("complex", "cp", "rotate"):
        with pytest.raises(ConfigError, match=f"dim=3 is not possible for {name}: give an even number"):
            make_config({"model": name, "dim": 3})
    with pytest.raises(ConfigError, match="dim=6 is not possible for quate: give a multiple of 4"):
        make_config({"model": "quate", "dim": 6})
    with pytest.raises(ConfigError, match="dim=7 is not possible for conve, which needs an image"):
        make_config({"model": "conve", "dim": 7})
    with pytest.raises(UnknownName, match="no model named 'ComplexE'.*'complex'"):
        model_class("ComplexE")
    assert make_config({"model": "transe", "dim": 3}).dim == 3
