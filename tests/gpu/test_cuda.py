"""A CUDA device gives the numbers of a CPU. Run `pytest tests/gpu` on a machine with a GPU; skipped elsewhere."""

import math

import numpy as np
import pytest
import torch

from grash.data.known_answers import KnownAnswers
from grash.evaluation.ranking import Ranker
from grash.kernels import random
from grash.kernels.pair_scores import pair_gradients, pair_scores, tile_bytes
from grash.training.batches import Batches
from grash.training.checkpoint import TrainState
from grash.training.config import TrainConfig
from grash.training.gradients import step_gradients
from grash.training.initial import initial_model
from grash.training.loop import train_step
from grash.training.optimizers import dense_gradient

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]
CPU, CUDA = torch.device("cpu"), torch.device("cuda")
E, R = 211, 7


def graph(n: int = 900) -> np.ndarray:
    rng = np.random.default_rng(0)
    return np.stack([rng.integers(0, E, n), rng.integers(0, R, n), rng.integers(0, E, n)], 1).astype(np.int32)


@pytest.mark.parametrize("kernels", ["reference", "triton"])
@pytest.mark.parametrize("n", [1, 2, 3, 100, 14541, 10**7])
def test_draws_are_the_same_on_both_devices(n, kernels, monkeypatch):
    monkeypatch.setenv("GRASH_KERNELS", kernels)
    key = random.key_of("test", n)
    places = torch.arange(min(n, 2000))
    for inverse in (False, True):
        here = random.permuted(places, n, key, inverse=inverse)
        assert torch.equal(here, random.permuted(places.cuda(), n, key, inverse=inverse).cpu())
    rows = (13, min(n, 50), n, key)
    assert torch.equal(random.permuted_rows(*rows, CPU), random.permuted_rows(*rows, CUDA).cpu())
    ids = torch.tensor([0, 1, 9, 2**33 + 5])
    assert torch.equal(random.random_bits(ids, 77, key), random.random_bits(ids.cuda(), 77, key).cpu())
    assert torch.equal(random.keep_mask(ids, 77, 0.3, key), random.keep_mask(ids.cuda(), 77, 0.3, key).cpu())


@pytest.mark.parametrize("model", ["complex", "cp", "distmult", "rescal", "rotate", "transe"])
@pytest.mark.parametrize("norm", [1, 2])
@pytest.mark.parametrize(
    "settings",
    [
        {"penalty": "l3", "penalty_entity": 0.01, "penalty_relation": 0.01, "dropout_entity": 0.2},
        {"negatives_shared": False, "reciprocal": True, "dropout_relation": 0.2},
        {"training": "1vsall", "relation_prediction": 0.5},
        {"training": "kvsall", "label_smoothing": 0.1, "penalty": "n3", "penalty_entity": 0.1},
    ],
)
def test_step_gradients_agree_with_the_cpu(model, norm, settings):
    config = TrainConfig(
        model=model, norm=norm, dim=12, batch_size=100, negatives_head=30, negatives_tail=50,
        init="normal", init_std=0.5, **settings,
    )  # fmt: skip
    steps = []
    for device in (CPU, CUDA):
        kge = initial_model(config, E, R, device=device)
        batches = Batches(graph(), E, R, config, device)
        batch = batches.questions(3) if config.training == "kvsall" else batches.positives(3)
        step = step_gradients(kge, batch, config, 17)
        steps.append((step.loss, dense_gradient(step.entity, kge.entity), dense_gradient(step.relation, kge.relation)))
    for here, there in zip(*steps):
        assert (here - there.cpu()).norm() <= 1e-4 * here.norm() + 1e-6


@pytest.mark.parametrize("optimizer", ["adagrad", "row_adagrad", "adam", "lazy_adam", "sgd"])
def test_twenty_steps_agree_with_the_cpu_and_repeat_exactly(optimizer):
    config = TrainConfig(dim=16, batch_size=100, negatives_head=30, negatives_tail=50, optimizer=optimizer, lr=0.05)
    tables = []
    for device in (CPU, CUDA, CUDA):
        state = TrainState.fresh(initial_model(config, E, R, device=device), config)
        batches = Batches(graph(), E, R, config, device)
        for _ in range(20):
            train_step(state, batches, config)
        tables.append(state.model.entity.cpu())
    assert (tables[0] - tables[1]).norm() <= 1e-3 * tables[0].norm()
    assert torch.equal(tables[1], tables[2])


@pytest.mark.parametrize("model", ["complex", "cp", "rescal", "rotate", "transe"])
@pytest.mark.parametrize("norm", [1, 2])
def test_ranks_equal_those_of_the_cpu(model, norm):
    triples = graph()
    known = KnownAnswers.of(triples, n_relations=R)
    config = TrainConfig(model=model, norm=norm, dim=32, init="normal", init_std=0.3)
    here = initial_model(config, E, R)
    there = type(here)(here.entity.cuda(), here.relation.cuda(), norm=norm)
    ranks = [Ranker(triples[:300], known, E, m.entity.device).rank(m) for m in (here, there)]
    for side in ("head", "tail"):
        a, b = (getattr(r, side) for r in ranks)
        # queries may differ in the last bit between devices
        assert (a.above != b.above).mean() < 0.01
        assert math.isclose((1 / a.mean).mean(), (1 / b.mean).mean(), abs_tol=1e-3)


@pytest.mark.parametrize("pair", ["dot", "l1", "l2", "modulus"])
@pytest.mark.parametrize(("b", "n", "w"), [(1024, 500, 128), (256, 3000, 64), (1024, 40, 512)])
def test_scores_and_gradients_take_the_planned_bytes(b, n, w, pair):
    torch.manual_seed(0)
    q, c, upstream = torch.randn(b, w, device=CUDA), torch.randn(n, w, device=CUDA), torch.randn(b, n, device=CUDA)
    pair_gradients(q, c, pair_scores(q, c, pair), upstream, pair)  # libraries allocate memory once
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    gradients = pair_gradients(q, c, pair_scores(q, c, pair), upstream, pair)
    torch.cuda.synchronize()
    results = 4 * 4 * b * n + sum(4 * 3 * x.numel() for x in gradients)  # scores and tensors of their size, and sums
    taken = torch.cuda.max_memory_allocated() - before
    assert taken <= 1.05 * (tile_bytes(b, n, w, pair, CUDA) + results)
