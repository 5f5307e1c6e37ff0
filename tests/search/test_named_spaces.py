"""The named spaces: the paper's to the letter, with its 22 published winners inside; ours; files and mappings."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from grash.errors import ConfigError, UnknownName
from grash.models import MODELS
from grash.search.named_spaces import SPACES, space_of
from grash.search.proposals import all_winners
from grash.search.space import as_dict
from grash.training.config import make_config
from grash.training.fused import why_not
from search.test_space import points_of

PUBLISHED = [w for w in all_winners() if w["name"].startswith("grash-")]


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("name", SPACES)
@pytest.mark.parametrize("n_entities", [None, 2, 300, 10**7])
def test_every_named_space_can_be_trained_anywhere(name: str, model: str, n_entities: int | None) -> None:
    space = space_of(name, model, n_entities)
    for row in space.points(5, 50):
        assert make_config(space.configuration(row)).model == model


@pytest.mark.parametrize(
    ("model", "cap"), [("complex", 10_000), ("rotate", 1_000), ("transe", 1_000), ("pairre", 1_000)]
)
def test_the_papers_space_is_the_published_one(model: str, cap: int) -> None:
    space = as_dict(space_of("paper", model))
    weight = {"type": "float", "low": 1e-20, "high": 0.1, "log": True, "when": {"penalty": ["l3", "l2", "l1"]}}
    negatives = {"type": "int", "low": 1, "high": cap}
    none_or_half = {"type": "float", "low": 0.0, "high": 0.5, "off": 0.5}  # −0.5 … 0.5, below 0 meaning none
    assert space == {
        "model": model,
        "lr": {"type": "float", "low": 0.0003, "high": 1.0, "log": True},
        "init": {"type": "categorical", "choices": ["xavier_normal", "xavier_uniform", "normal", "uniform"]},
        "init_std": {"type": "float", "low": 1e-5, "high": 1.0, "log": True, "when": {"init": ["normal"]}},
        "init_low": {"type": "float", "low": -1.0, "high": -1e-5, "when": {"init": ["uniform"]}},
        "init_high": {"type": "fixed", "value": 1.0, "when": {"init": ["uniform"]}},
        "penalty": {"type": "categorical", "choices": ["none", "l3", "l2", "l1"]},
        "penalty_entity": weight,
        "penalty_relation": weight,
        "dropout_entity": none_or_half,
        "dropout_relation": none_or_half,
        "negatives_head": negatives,
        "negatives_tail": negatives,
        "penalty_weighted": True,
        "reciprocal": False,
        "norm": 1,
        "training": "negative_sampling",
        "loss": "softmax",
        "negatives_shared": True,
        "negatives_replacement": False,
        "negatives_sampling": "uniform",
        "negatives_filtered": False,
        "schedule": "constant",
        "optimizer": "adagrad",
        "batch_size": 1024,
    }


def test_there_are_22_published_winners() -> None:
    assert len(PUBLISHED) == 22
    assert len({(w["model"], str(w["values"])) for w in PUBLISHED}) == 20


@pytest.mark.parametrize("winner", PUBLISHED, ids=lambda w: w["name"])
def test_a_published_winner_is_a_point_of_the_papers_space(winner: dict[str, Any]) -> None:
    space = space_of("paper", winner["model"])
    values = space.check(winner["values"])
    assert all(values[n] == v for n, v in winner["values"].items() if n in values)
    assert space.configuration(points_of(space, values)) == {
        n: pytest.approx(v) if isinstance(v, float) else v for n, v in values.items()
    }


def test_small_graphs_are_also_compared_with_all_entities() -> None:
    assert space_of("default", "complex", 50_000).parameters["training"].values == ("negative_sampling", "1vsall")
    assert space_of("default", "complex", 50_001).parameters["training"].values == ("negative_sampling",)
    assert space_of("default", "rotate", 100).parameters["training"].values == ("negative_sampling",)
    assert space_of("default", "complex").parameters["training"].kind == "fixed"
    assert space_of("default", "complex", 50_001, one_vs_all=True).parameters["training"].kind == "choice"
    assert space_of("default", "complex", 100, one_vs_all=False).parameters["training"].kind == "fixed"


def test_long_trainings_on_small_graphs_also_have_small_batches() -> None:
    sizes = [(200_000, 50), (200_001, 50), (200_000, 49)]
    spaces = [space_of("default", "complex", 100, n_train=n, epochs=epochs) for n, epochs in sizes]
    assert [space.parameters["batch_size"].values for space in spaces] == [(256, 1024), (1024,), (1024,)]
    assert space_of("paper", "complex", 100, n_train=100, epochs=100).parameters["batch_size"].values == (1024,)


def test_negatives_stay_below_the_number_of_entities() -> None:
    assert space_of("default", "complex", 300).parameters["negatives_head"].high == 299
    assert space_of("default", "complex", 10**6).parameters["negatives_head"].high == 10_000
    assert space_of("default", "rotate", 10**6).parameters["negatives_tail"].high == 1_000


def test_distance_models_may_be_self_adversarial_and_others_penalised_by_n3() -> None:
    rotate, complex_ = space_of("default", "rotate"), space_of("default", "complex")
    assert rotate.parameters["loss"].values == ("softmax", "self_adversarial")
    assert dict(rotate.parameters["margin"].when) == {"loss": ("self_adversarial",)}
    assert "n3" in complex_.parameters["penalty"].values
    assert "relation_prediction" in complex_.searched and "margin" not in complex_.parameters


@pytest.mark.parametrize("name", ["paper", "default"])
@pytest.mark.parametrize("model", ["complex", "distmult", "transe", "rotate"])
def test_the_fused_step_serves_all_that_a_search_draws(name: str, model: str) -> None:
    space = space_of(name, model, 20_000)
    of_the_machine = {"the device is cpu, not cuda", "Triton is not installed"}
    for row in space.points(7, 100):
        assert (
            set(why_not(make_config({**space.configuration(row), "dim": 512}), torch.device("cpu"))) <= of_the_machine
        )


def test_the_wide_space_adds_dimension_batch_and_optimizer() -> None:
    wide, default = space_of("wide", "complex"), space_of("default", "complex")
    assert set(wide.searched) - set(default.searched) == {"dim", "batch_size", "optimizer"}


def test_a_file_becomes_the_space_of_the_model(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text("lr: {low: 0.01, high: 1.0, log: true}\nbatch_size: 256\n", encoding="utf-8")
    space = space_of(str(path), "rotate")
    assert space.configuration([0.5])["model"] == "rotate" and space == space_of(as_dict(space), "rotate")
    with pytest.raises(
        ConfigError, match="the space is for rotate, and the search is for complex: give --model rotate"
    ):
        space_of(as_dict(space), "complex")
    path.write_text("dim: {type: int, low: 2, high: 9}\n", encoding="utf-8")
    with pytest.raises(
        ConfigError, match=r"mine.yaml: the space contains .* cannot be trained: dim=\d is not possible for complex"
    ):
        space_of(path, "complex")


def test_an_unknown_space_gets_suggestions() -> None:
    with pytest.raises(
        UnknownName, match="no search space named 'papr'. Spaces: paper, default, wide; or give a YAML file"
    ):
        space_of("papr", "complex")
    with pytest.raises(UnknownName, match="no model named 'rotat'"):
        space_of("paper", "rotat")


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("name", SPACES)
def test_the_page_of_spaces_names_every_parameter(name: str, model: str) -> None:
    page = (Path(__file__).parents[2] / "docs" / "reference" / "spaces.md").read_text(encoding="utf-8")
    assert [n for n in space_of(name, model, 100).parameters if f"`{n}`" not in page] == []
