"""Whether a GPU affords to compare with all entities of a large graph."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
import torch

from grash.engines import choose
from grash.kernels.device import Card
from grash.search.settings import make_settings
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
