"""Learning rates: warm-up, cosine, linear, and a plateau that equals torch's."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from grash.training.config import make_config
from grash.training.optimizers import Plateau, rate_at


def rates(epochs: list[float], plateau: Plateau | None = None, **values: object) -> list[float]:
    config = make_config({"dim": 4, "lr": 0.5, "epochs": 10.0} | values)
    return [rate_at(config, e, plateau or Plateau(0.5, 0)) for e in epochs]


def test_constant_cosine_and_linear_by_hand() -> None:
    places = [0.0, 2.5, 5.0, 10.0]
    assert rates(places) == [0.5] * 4
    assert rates(places, schedule="linear") == pytest.approx([0.5, 0.375, 0.25, 0.0])
    quarter = 0.25 * (1 + math.cos(math.pi / 4))
    assert rates(places, schedule="cosine") == pytest.approx([0.5, quarter, 0.25, 0.0])


def test_warm_up_rises_from_almost_nothing_and_joins_any_schedule() -> None:
    rising = rates([0.0, 0.5, 1.0, 2.0, 9.0], schedule="warmup", warmup_epochs=2.0)
    assert 0 < rising[0] < 0.001 and rising[1:] == pytest.approx([0.125, 0.25, 0.5, 0.5])
    both = rates([1.0, 5.0], schedule="linear", warmup_epochs=2.0)
    assert both == pytest.approx([0.5 * 0.9 * 0.5, 0.25])


@settings(deadline=None)
@given(
    st.lists(st.one_of(st.floats(0, 1), st.sampled_from([0.3, 0.3 * 1.0001, 0.30002, 0.0])), max_size=30),
    st.integers(0, 4),
    st.sampled_from([0.1, 0.5, 0.95]),
)
def test_plateau_equals_torchs_reduce_on_plateau(metrics: list[float], patience: int, factor: float) -> None:
    parameter = torch.nn.Parameter(torch.zeros(1))
    optimizer = torch.optim.SGD([parameter], lr=0.5)
    theirs = torch.optim.lr_scheduler.ReduceLROnPlateau(
        optimizer, mode="max", factor=factor, patience=patience, threshold=1e-4, threshold_mode="rel", eps=0
    )
    ours = Plateau(factor, patience)
    for metric in metrics:
        theirs.step(metric)
        ours.see(metric)
        wanted = optimizer.param_groups[0]["lr"]
        assert rates([3.0], ours, schedule="plateau") == pytest.approx([wanted])
        assert rates([3.0], ours) == [0.5]  # other schedules do not look at it
