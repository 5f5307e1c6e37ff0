"""The parts of the fused step that need no GPU: what it covers, and how the work is divided."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from grash.kernels.step import TILE, StepShape
from grash.training.checkpoint import TrainState
from grash.training.config import TrainConfig
from grash.training.fused import stack_states, uses_fused_step, why_not, work_bytes
from grash.training.initial import initial_model

CPU = torch.device("cpu")


def shape(**changes: object) -> StepShape:
    values = {"trials": 1, "batch": 1024, "n_entities": 100, "n_relations": 3, "dim": 128, "negatives": (500, 500),
              "compose": "complex", "pair": "dot", "reciprocal": False, "dropout": False, "rowwise": False}  # fmt: skip
    return StepShape(**{**values, **changes})


def test_a_cpu_runs_the_unfused_implementation_and_reports_why():
    config = TrainConfig(loss="margin", dim=7, model="distmult", precision="float32")
    reasons = why_not(config, CPU)
    assert reasons[0] == "the device is cpu, not cuda"
    assert "loss=margin is not softmax or self_adversarial" in reasons
    assert any(reason.startswith("dim=7 is not an even number up to 128") for reason in reasons)
    assert not uses_fused_step(TrainConfig(), CPU)


def test_uncovered_settings_are_named():
    distances = [r for r in why_not(TrainConfig(model="transe", training="1vsall"), CPU) if "1vsall" in r]
    assert distances == ["training=1vsall with a distance model (transe) needs a score for every entity"]
    assert "relation_prediction is above 0 with model=rotate" in why_not(
        TrainConfig(model="rotate", relation_prediction=1.0), CPU
    )


def test_forcing_the_kernels_does_not_affect_a_cpu(monkeypatch):
    monkeypatch.setenv("GRASH_KERNELS", "triton")
    assert not uses_fused_step(TrainConfig(loss="margin"), CPU)


@given(st.integers(1, 3000), st.integers(1, 20000), st.integers(1, 20000), st.sampled_from(["dot", "l1"]))
def test_a_trials_chunks_cover_its_negatives_and_follow_from_it_alone(batch, heads, tails, pair):
    alone = shape(batch=batch, negatives=(heads, tails), pair=pair)
    chunk = alone.chunks((heads, tails))
    assert chunk == shape(batch=batch, negatives=(20000, 20000), pair=pair, trials=64).chunks((heads, tails))
    assert chunk % 64 == 0 and chunk >= alone.chunk
    assert alone.rows % TILE == 0 and alone.rows - TILE < batch <= alone.rows
    assert alone.candidates % TILE == 0 and alone.first_tail >= heads and alone.candidates - alone.first_tail >= tails


@given(st.integers(1, 128))
def test_a_padded_row_holds_both_halves(half):
    assert half <= shape(dim=2 * half).padded_half < max(17, 2 * half)
    assert shape(dim=2 * half).padded == 2 * shape(dim=2 * half).padded_half


def test_the_work_space_grows_with_the_trials_and_not_with_the_graph():
    config = TrainConfig(negatives_head=400, negatives_tail=900)
    one, many = work_bytes([config], 10**4, 30), work_bytes([config] * 8, 10**4, 30)
    assert one < many < 8.1 * one
    assert work_bytes([config], 10**8, 30) == one


def test_the_work_space_holds_all_entities_once_and_none_of_their_scores():
    once = TrainConfig(training="1vsall", precision="float32")
    masked = once.changed(dropout_entity=0.1)
    small, large = (work_bytes([once], n, 30) for n in (10**5, 2 * 10**5))
    rows = 10**5 * (128 * 4 * 2 + 12)  # a candidate's row and gradient, and three integers
    assert large - small == pytest.approx(rows, rel=0.01)
    assert work_bytes([masked], 2 * 10**5, 30) - work_bytes([masked], 10**5, 30) == pytest.approx(2 * rows, rel=0.01)


def test_stacked_trials_share_one_tensor_and_keep_their_values():
    config = TrainConfig(dim=8)
    states = [TrainState.fresh(initial_model(config.changed(variation=i), 20, 3), config) for i in range(3)]
    before = [s.model.entity.clone() for s in states]
    stack_states(states, n=len(states))
    assert all(torch.equal(s.model.entity, b) for s, b in zip(states, before))
    starts = [s.model.entity.data_ptr() for s in states]
    assert starts[1] - starts[0] == starts[2] - starts[1] == 20 * 8 * 4


@pytest.mark.parametrize("model,pair", [("transe", "l1"), ("rotate", "modulus"), ("complex", "dot")])
def test_the_pair_is_the_models_own(model, pair):
    from grash.training.fused import _shape

    config = TrainConfig(model=model, dim=8)
    assert _shape([config], 10, 2)[0].pair == initial_model(config, 10, 2).pair == pair
