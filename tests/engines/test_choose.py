"""Where trials of a model of one's own run; whether a GPU affords to compare with all entities of a large graph."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from importlib import import_module

import numpy as np
import pytest
import torch

from engines.searches import essence, small_search
from grash.engines import choose
from grash.errors import ConfigError
from grash.kernels.device import Card
from grash.models import MODELS, import_model, import_path, register_model
from grash.search.named_spaces import space_of
from grash.search.settings import make_settings
from grash.search.space import as_dict
from grash.training.config import TrainConfig


@dataclass(frozen=True)
class Sizes:
    n_entities: int
    n_train: int
    n_relations: int = 68

    @property
    def train(self) -> np.ndarray:
        return np.empty((self.n_train, 3), np.int8)


DEBIAN = Sizes(105_132, 1_611_749)


@pytest.fixture
def h200(monkeypatch):
    monkeypatch.setattr(choose, "choose_device", lambda name: torch.device("cuda", 0))
    monkeypatch.setattr(choose, "why_not", lambda config, device: [])
    monkeypatch.setattr(choose, "card_of", lambda device: Card())
    monkeypatch.setattr(choose, "total_bytes", lambda device: 139 << 30)
    monkeypatch.setattr(choose, "work_bytes", lambda configs, *sizes: 1 << 30)


def affords(sizes: Sizes, **settings: object) -> bool:
    return choose.affords_one_vs_all(make_settings({"dim": 128, "max_epochs": 20, **settings}), sizes, "auto")


@pytest.mark.parametrize(
    ("sizes", "settings", "affordable"),
    [
        (DEBIAN, {}, True),
        (DEBIAN, {"max_epochs": 400}, False),  # nine minutes each
        (DEBIAN, {"models": ("rotate", "transe")}, False),
        (DEBIAN, {"models": ("rotate", "distmult")}, True),
        (DEBIAN, {"space": "paper"}, False),
        (Sizes(50_000, 10**6), {}, False),  # by its size, on every machine
        (Sizes(6_528_162, 19_389_667), {"max_epochs": 1}, False),
    ],
)
def test_a_gpu_compares_with_all_entities_if_that_takes_two_minutes(h200, sizes, settings, affordable):
    assert affords(sizes, **settings) == affordable


def test_a_training_that_does_not_fit_is_not_affordable(h200, monkeypatch):
    monkeypatch.setattr(choose, "total_bytes", lambda device: 1 << 30)
    assert not affords(DEBIAN)


def test_a_cpu_never_affords_it(monkeypatch):
    monkeypatch.setattr(choose, "choose_device", lambda name: torch.device("cpu"))
    assert not affords(DEBIAN)


def test_the_estimate_is_proportional_to_triples_epochs_entities_and_dimension():
    config = TrainConfig(dim=128, epochs=20, training="1vsall")
    one = choose.one_vs_all_seconds(config, 1000, 10**6, Card())
    assert choose.one_vs_all_seconds(config.changed(dim=256, epochs=40), 3000, 2 * 10**6, Card()) == pytest.approx(
        24 * one
    )


@pytest.fixture
def own_model(tmp_path, monkeypatch):
    """A model in a module of the user's, beside his script."""
    (tmp_path / "models_of_mine.py").write_text(
        "from grash.models import register_model\n"
        "from grash.models.distmult import DistMult\n"
        "@register_model\n"
        "class Mine(DistMult):\n"
        "    name = 'mine'\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    yield import_module("models_of_mine").Mine
    del sys.modules["models_of_mine"], MODELS["mine"]


@pytest.fixture
def model_of_this_script(own_model, monkeypatch):
    monkeypatch.setattr(own_model, "__module__", "__main__")


def test_workers_can_import_a_model_from_its_module(own_model):
    assert import_path("mine") == "models_of_mine:Mine" and import_model("models_of_mine:Mine") is own_model
    assert choose.check_engine("auto", "cpu", 3, threads=1, models=["mine"]) == ["cpu"] * 3


def test_a_model_inside_a_function_is_only_in_this_process(own_model):
    @register_model
    class Mine(own_model):
        pass

    assert Mine.__module__ == __name__ and choose.only_in_this_process(["complex", "mine"]) == ["mine"]


def test_a_model_of_the_script_is_searched_in_this_process(model_of_this_script, monkeypatch):
    monkeypatch.setattr(choose, "n_cores", lambda: 8)
    assert choose.check_engine("auto", "cpu", None, threads=1, models=["complex"]) == ["cpu"] * 8
    assert choose.check_engine("auto", "cpu", None, threads=1, models=["complex", "mine"]) == ["cpu"]
    assert choose.trials_at_once("auto", "cpu", None, threads=1, models=["mine"]) == 1


def test_the_space_of_a_score_function_of_ones_own_has_few_negatives(own_model):
    @register_model
    class Mine(MODELS["pairre"]):
        name = "mine"

    space = space_of("default", "mine", 10**6)
    assert space.parameters["negatives_head"].high == 1_000 and "1vsall" not in str(as_dict(space))


@pytest.mark.parametrize(
    ("engine", "workers", "asked"),
    [("processes", None, "engine='processes'"), ("auto", 2, "workers=2"), ("ray", None, "engine='ray'")],
)
def test_workers_for_a_model_of_the_script_are_refused(model_of_this_script, engine, workers, asked):
    with pytest.raises(ConfigError, match=f"{asked} runs trials in other processes, .* 'mine'.* out {asked}"):
        choose.check_engine(engine, "cpu", workers, threads=1, models=["mine"])


def test_the_plan_says_why_trials_run_in_this_process(model_of_this_script, tmp_path):
    plan = small_search(tmp_path / "run", model="mine", engine="auto").plan(probe=False)
    assert plan.at_once == 1 and "workers cannot import the model mine" in str(plan)


@pytest.mark.slow
def test_workers_train_a_model_of_ones_own_as_this_process_does(own_model, tmp_path):
    for engine, workers in (("processes", 1), ("sequential", None)):
        small_search(tmp_path / engine / "run", model="mine", engine=engine, workers=workers).run()
    assert essence(tmp_path / "processes" / "run") == essence(tmp_path / "sequential" / "run")
