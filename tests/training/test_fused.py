"""The parts of the fused step that need no GPU: what it covers, and how the work is divided."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from grash.kernels.device import Card
from grash.kernels.step import TILE, StepShape
from grash.training import fused
from grash.training.batches import Batches
from grash.training.checkpoint import TrainState
from grash.training.config import TrainConfig
from grash.training.fused import stack_states, uses_fused_step, why_not, work_bytes
from grash.training.initial import initial_model
from grash.training.loop import Training, train_stack

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
    assert "dim=7 is not even" in reasons
    assert not uses_fused_step(TrainConfig(), CPU)


CUDA = torch.device("cuda")
A100 = Card("NVIDIA A100", (8, 0), 163 << 10, 108)
RTX_4090 = Card("NVIDIA GeForce RTX 4090", (8, 9), 99 << 10, 128)
T4 = Card("Tesla T4", (7, 5), 64 << 10, 40)


@pytest.mark.parametrize(
    ("card", "settings", "reasons"),
    [
        (Card(), {"dim": 2048}, []),
        (Card(), {"dim": 2050}, ["dim=2050 is above 2048, the most of NVIDIA H200 (precision=bf16)"]),
        (Card(), {"model": "rotate", "dim": 2048}, []),
        (A100, {"dim": 512, "precision": "tf32"}, []),
        (A100, {"dim": 130, "precision": "tf32"}, []),
        (A100, {"dim": 514, "precision": "tf32"}, ["dim=514 is above 512, the most of NVIDIA A100 (precision=tf32)"]),
        (RTX_4090, {"dim": 2048}, []),
        (RTX_4090, {"dim": 514, "precision": "tf32"},
         ["dim=514 is above 512, the most of NVIDIA GeForce RTX 4090 (precision=tf32)"]),
        (RTX_4090, {"model": "transe", "dim": 2048}, []),
        (T4, {}, ["Tesla T4 has a compute capability below 8.0"]),
        (T4, {"model": "transe"}, []),
    ],
)  # fmt: skip
def test_what_a_gpu_serves_depends_on_it(monkeypatch, card, settings, reasons):
    monkeypatch.setattr(fused, "card_of", lambda device: card)
    monkeypatch.setattr(fused, "why_no_triton", lambda device: [])
    assert why_not(TrainConfig(**settings), CUDA) == reasons


def test_a_gpu_with_rocm_is_not_served(monkeypatch):
    monkeypatch.setattr(torch.version, "hip", "6.4")
    monkeypatch.setattr(fused, "card_of", lambda device: Card("AMD Instinct MI300X", (9, 4), 64 << 10, 304))
    assert "the GPU uses ROCm, for which the kernels were not tested" in why_not(TrainConfig(), CUDA)
    assert not uses_fused_step(TrainConfig(), CUDA)


def test_kernels_that_do_not_fit_are_replaced_by_the_unfused_implementation_with_one_warning(monkeypatch, caplog):
    errors = pytest.importorskip("triton.runtime.errors")
    tried = []

    def fail(steps):
        tried.append(steps)
        raise errors.OutOfResources(164_896, 101_376, "shared memory")

    monkeypatch.setattr(fused, "why_no_triton", lambda device: [])
    monkeypatch.setattr(fused, "_broken", {})
    monkeypatch.setattr(fused.FusedSteps, "load_kernels", fail)
    config = TrainConfig(dim=8, batch_size=16, epochs=2, negatives_head=3, negatives_tail=3)
    triples = np.arange(120).reshape(40, 3).astype(np.int32) % 10
    for _ in range(2):
        state = TrainState.fresh(initial_model(config, 10, 10), config)
        training = Training(config).started(state, Batches(triples, 10, 10, config, CPU))
        assert train_stack([training]) == [None] and state.step == 6
    assert len(tried) == len(caplog.records) == 1
    assert "The unfused implementation is used" in caplog.text and "OutOfResources" in caplog.text
    assert "its kernels failed on NVIDIA H200" in why_not(config, CPU)[0]
    assert why_not(config.changed(dim=16), CPU) == []


def test_other_errors_of_a_first_step_are_not_hidden(monkeypatch):
    pytest.importorskip("triton")

    def fail(steps):
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(fused, "why_no_triton", lambda device: [])
    monkeypatch.setattr(fused.FusedSteps, "load_kernels", fail)
    config = TrainConfig(dim=8, batch_size=16)
    state = TrainState.fresh(initial_model(config, 10, 10), config)
    batches = Batches(np.zeros((40, 3), np.int32), 10, 10, config, CPU)
    with pytest.raises(torch.OutOfMemoryError):
        fused.load_fused_steps([state], batches, [config])
    assert why_not(config, CPU) == []


def test_uncovered_settings_are_named():
    distances = [r for r in why_not(TrainConfig(model="transe", training="1vsall"), CPU) if "1vsall" in r]
    assert distances == ["training=1vsall with a distance model (transe) needs a score for every entity"]
    assert "relation_prediction is above 0 with model=rotate" in why_not(
        TrainConfig(model="rotate", relation_prediction=1.0), CPU
    )
    both_ways = TrainConfig(model="transe", relation_prediction=1.0, reciprocal=True)
    assert "relation_prediction is above 0 with model=transe and reciprocal" in why_not(both_ways, CPU)


def test_questions_are_covered_with_bf16_products_and_without_dropout(monkeypatch):
    monkeypatch.setattr("grash.training.fused.why_no_triton", lambda device: [])
    config = TrainConfig(training="kvsall", label_smoothing=0.1, penalty="l3", penalty_entity=0.1)
    assert why_not(config, CPU) == []
    assert why_not(config.changed(precision="tf32"), CPU) == [
        "training=kvsall with precision=tf32: its products are bf16 only"
    ]
    assert why_not(config.changed(dropout_relation=0.1), CPU) == ["training=kvsall with dropout"]


def test_the_work_space_of_questions_has_a_weight_and_a_bit_for_each_of_their_scores():
    config = TrainConfig(training="kvsall", batch_size=1024)
    one, two = (work_bytes([config], n, 30) for n in (2**17, 2**18))
    rows = 128 * (2 + 4) + 4 * 128 * 1024 // 4096  # a candidate, its gradient, its part of the queries' gradients
    tiles = 3 * 4 * 1024 // 128  # maxima, sums and costs
    assert two - one == pytest.approx(2**17 * (1024 * (2 + 1 / 8) + rows + tiles), rel=0.01)


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


def test_as_many_programs_share_a_step_as_a_gpu_has_multiprocessors():
    counts = {n: shape(card=Card(multiprocessors=n)).chunks((10_000, 10_000)) for n in (132, 108, 58, 188)}
    assert counts == {132: 1280, 108: 1280, 58: 2560, 188: 640}


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
    assert _shape([config], 10, 2, CPU)[0].pair == initial_model(config, 10, 2).pair == pair
