"""Entities in bf16 on a CUDA device: the rounding of a CPU, the fused step, stacks, host memory, ranking."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from grash.data.known_answers import KnownAnswers
from grash.evaluation.ranking import Ranker
from grash.kernels.storage import Placement, cpu_view, host_rows, is_offloaded, round_stochastically, row_blocks
from grash.models import MODELS
from grash.training.batches import Batches
from grash.training.checkpoint import TrainState, state_tensors
from grash.training.config import TrainConfig
from grash.training.fused import FusedSteps, stack_states, uses_fused_step
from grash.training.initial import initial_model
from grash.training.loop import train_step

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]
CUDA = torch.device("cuda")
E, R = 301, 5
CASES: dict[str, dict[str, object]] = {
    "complex": {"reciprocal": True, "dropout_entity": 0.2},
    "odd halves": {"dim": 18, "model": "distmult", "optimizer": "row_adagrad"},
    "rotate": {"model": "rotate"},
    "all entities": {"training": "1vsall"},
    "coarse products": {"precision": "bf16"},
}


def make(**settings: object) -> tuple[TrainConfig, Batches]:
    rng = np.random.default_rng(0)
    train = np.stack([rng.integers(0, m, 900, dtype=np.int32) for m in (E, R, E)], 1)
    values = {"dim": 32, "batch_size": 128, "negatives_head": 60, "negatives_tail": 150, "init": "normal",
              "init_std": 0.3, "lr": 0.05, "epochs": 9.4, "precision": "float32", "storage": "bf16"}  # fmt: skip
    config = TrainConfig(**values | settings)
    return config, Batches(train, E, R, config, CUDA)


def fresh(config: TrainConfig, placement: Placement | None = None) -> TrainState:
    model = initial_model(config, E, R, device=CUDA, placement=placement or Placement())
    return TrainState.fresh(model, config, placement)


def test_a_card_rounds_as_a_cpu_does() -> None:
    rows = torch.randn(500, 33, generator=torch.Generator().manual_seed(0))
    rows[3, 3], rows[4, 4] = torch.nan, torch.inf
    ids, key = torch.arange(500) * 7, 2**63 + 12345
    one, other = round_stochastically(rows, ids, key), round_stochastically(rows.to(CUDA), ids.to(CUDA), key).cpu()
    assert torch.equal(one.nan_to_num(7), other.nan_to_num(7)) and other[3, 3].isnan()


@pytest.mark.parametrize("case", CASES)
def test_fused_steps_agree_with_the_unfused_step(case: str) -> None:
    config, batches = make(**CASES[case])
    assert uses_fused_step(config, CUDA)
    plain, fused = fresh(config), fresh(config)
    losses = FusedSteps([fused], batches, [config]).advance(1)
    wanted = train_step(plain, batches, config)
    coarse = config.precision == "bf16"
    assert torch.allclose(losses[0, 0], wanted, rtol=1e-3 if coarse else 1e-5)
    mine, theirs = fused.model.entity, plain.model.entity
    assert mine.dtype == torch.bfloat16
    # the same random bits: another neighbor only where the last bits before differ, or a first gradient's sign does
    assert (mine != theirs).float().mean() < (0.1 if coarse else 0.02)


@pytest.mark.parametrize("case", CASES)
def test_a_trial_is_the_same_alone_among_others_and_in_host_memory(case: str) -> None:
    config, batches = make(**CASES[case])
    configs = [config, config.changed(lr=0.2, variation=3)]
    alone, there = fresh(config), fresh(config, Placement("host"))
    assert is_offloaded(there.model.entity) and there.model.entity.dtype == torch.bfloat16
    stack = [fresh(each) for each in configs]
    stack_states(stack, n=2)
    for states, of in (([alone], configs[:1]), ([there], configs[:1]), (stack, configs)):
        FusedSteps(states, batches, of).run(20)
    for name, tensor in state_tensors(alone).items():
        assert torch.equal(tensor, state_tensors(stack[0])[name]), name
        assert torch.equal(tensor, state_tensors(there)[name]), name


def test_rows_in_host_memory_are_seen_from_both_sides() -> None:
    rows = host_rows(1000, 6, CUDA, dtype=torch.bfloat16)
    source = torch.randn(1000, 6, device=CUDA).bfloat16()
    rows.copy_(source)
    assert rows.dtype == cpu_view(rows).dtype == torch.bfloat16 and torch.equal(cpu_view(rows), source.cpu())
    assert torch.equal(torch.cat([part.clone() for _, part in row_blocks(rows, 300)]), source)


@pytest.mark.parametrize("name", ["complex", "cp", "distmult", "rescal", "rotate", "simple", "transe"])
def test_the_kernels_rank_as_the_plain_path_and_as_float32(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    generator = torch.Generator(device=CUDA).manual_seed(1)
    shapes = (3001, 10), (R, MODELS[name].relation_width(10))
    entity, relation = (torch.randn(s, generator=generator, device=CUDA) for s in shapes)
    there = host_rows(3001, 10, CUDA, dtype=torch.bfloat16)
    there.copy_(entity)
    rng = np.random.default_rng(0)
    test = np.stack([rng.integers(0, m, 500, dtype=np.int32) for m in (3001, R, 3001)], 1)
    ranker = Ranker(test, KnownAnswers.of(test, n_relations=R), 3001, CUDA)
    found = []
    for table, choice in ((entity.bfloat16(), "triton"), (there, "triton"), (entity.bfloat16(), "reference"),
                          (entity.bfloat16().float(), "triton")):  # fmt: skip
        monkeypatch.setenv("GRASH_KERNELS", choice)
        ranks = ranker.rank(MODELS[name](table, relation))
        found.append(np.stack([ranks.head.above, ranks.head.ties, ranks.tail.above, ranks.tail.ties]))
    assert all(np.array_equal(found[0], other) for other in found[1:])
