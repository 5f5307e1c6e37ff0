"""A distributed step equals the step of one process: row exchange, losses in parts, gradients per training type."""

from __future__ import annotations

from itertools import cycle
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from grash.models import KgeModel
from grash.training.batches import Batches
from grash.training.config import TrainConfig, make_config
from grash.training.distributed.communication import ProcessGroup, RowExchange, Shard
from grash.training.distributed.loop import distributed_gradients, log_total, negative_part, positive_part
from grash.training.gradients import StepGradients, step_gradients
from grash.training.losses import side_loss
from oracles import random_triples, relative_distance
from training.distributed.thread_group import Threads, in_threads
from training.test_gradients import LOSSES, PENALTIES, TRAININGS, VARIANTS, dense, random_model, variant_settings

CPU = torch.device("cpu")


@given(
    n_rows=st.integers(1, 12),
    size=st.integers(1, 7),
    data=st.data(),
)
@settings(max_examples=40)
def test_rows_reach_the_ranks_that_need_them_and_gradients_their_owners(n_rows: int, size: int, data: Any) -> None:
    ids = st.lists(st.integers(0, n_rows - 1), max_size=9)  # repeated ids, ranks that need nothing, ranks without rows
    wanted = [torch.tensor(data.draw(ids), dtype=torch.int64) for _ in range(size)]
    table = torch.arange(2.0 * n_rows).view(n_rows, 2)
    values = [torch.full((len(w), 2), float(rank + 1)) for rank, w in enumerate(wanted)]

    def work(group: ProcessGroup) -> tuple[Tensor, Tensor]:
        shard = Shard(n_rows, group)
        route = RowExchange(wanted, shard)
        fetched = route.fetch(table[shard.first : shard.last])
        own = torch.zeros(len(shard), 2).index_add_(0, route.rows, route.return_gradients(values[group.rank]))
        return fetched, own

    found = in_threads(size, work)
    for w, (fetched, _) in zip(wanted, found):
        assert torch.equal(fetched, table[w])
    total = torch.zeros_like(table).index_add_(0, torch.cat(wanted), torch.cat(values))
    assert torch.equal(torch.cat([own for _, own in found]), total)


@given(n_rows=st.integers(0, 40), size=st.integers(1, 9))
def test_every_row_has_one_owner(n_rows: int, size: int) -> None:
    shards = [Shard(n_rows, Threads(rank, size, None)) for rank in range(size)]
    rows = [row for shard in shards for row in range(shard.first, shard.last)]
    assert rows == list(range(n_rows))
    ids = torch.arange(n_rows)
    for shard in shards:
        assert torch.equal(shard.owners(ids) == shard.group.rank, shard.has(ids))


@given(n=st.integers(0, 20), size=st.integers(1, 6))
@settings(max_examples=30)
def test_slices_are_gathered_and_reduced(n: int, size: int) -> None:
    values = torch.arange(3.0 * n).view(n, 3)

    def work(group: ProcessGroup) -> tuple[Tensor, Tensor, Tensor, str, bool]:
        part = group.own_slice(n)
        assert torch.equal(group.split(values)[group.rank], values[part])
        summed = group.reduce_scatter(values * (group.rank + 1))
        said = group.broadcast_text(f"from {group.rank} é" * 3)
        return group.gather_slices(values[part], n), summed, values[part], said, group.any(group.rank == 1)

    for whole, summed, part, said, anybody in in_threads(size, work):
        assert torch.equal(whole, values)
        assert torch.equal(summed, part * sum(range(1, size + 1)))
        assert said == "from 0 é" * 3 and anybody == (size > 1)


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("temperature", [0.0, 0.7])
def test_the_parts_of_a_loss_add_up(loss: str, temperature: float) -> None:
    config = make_config({"loss": loss, "margin": 0.5, "offset": 0.3, "temperature": temperature})
    generator = torch.Generator().manual_seed(0)
    positive = torch.randn(6, generator=generator, dtype=torch.float64)
    negative = torch.randn(6, 9, generator=generator, dtype=torch.float64)
    negative[2, 3] = negative[4] = -torch.inf
    whole, for_positive, for_negative = side_loss(positive, negative.clone(), config)
    parts = negative.split([0, 4, 5], 1)
    reaches = [log_total(part, config) for part in parts]
    reach = None if reaches[0] is None else torch.logsumexp(torch.stack(reaches), 0)
    told = [negative_part(positive, part, reach, config) for part in parts]
    own_loss, own = positive_part(positive, reach, config)
    assert torch.allclose(sum(t[0] for t in told) + own_loss, whole)
    assert torch.allclose(sum(t[1] for t in told) + own, for_positive)
    assert torch.allclose(torch.cat([t[2] for t in told], 1), for_negative)


def steps_of(
    config: TrainConfig, *, size: int, n_entities: int, n_triples: int, seed: int
) -> tuple[StepGradients, list[StepGradients], KgeModel]:
    """Return the step of a random batch in one process, and that of every rank."""
    train = random_triples(seed, n_triples, n_entities, 3)
    batches = Batches(train, n_entities, 3, config, CPU)
    batch = batches.questions(0) if config.training == "kvsall" else batches.positives(0)
    model = random_model(config, n_entities, 3, seed, torch.float64)

    def work(group: ProcessGroup) -> StepGradients:
        shard = Shard(n_entities, group)
        own = type(model)(
            model.entity[shard.first : shard.last], model.relation, reciprocal=model.reciprocal, norm=model.norm
        )
        return distributed_gradients(own, batch, config, 77, shard)

    return step_gradients(model, batch, config, 77), in_threads(size, work), model


def assert_same_step(plain: StepGradients, parts: list[StepGradients], model: KgeModel) -> None:
    shards = [Shard(model.n_entities, Threads(rank, len(parts), None)) for rank in range(len(parts))]
    rows = [dense(p.entity, model.entity[s.first : s.last]) for p, s in zip(parts, shards)]
    assert float(sum(p.loss for p in parts)) == pytest.approx(float(plain.loss), rel=1e-9)
    assert relative_distance(torch.cat(rows), dense(plain.entity, model.entity)) < 1e-9
    for part in parts:
        assert relative_distance(dense(part.relation, model.relation), dense(plain.relation, model.relation)) < 1e-9
        assert torch.equal(dense(part.relation, model.relation), dense(parts[0].relation, model.relation))


NUMBERS = cycle(range(1000))
CASES = [(v, t) for v in VARIANTS for t in TRAININGS]


@pytest.mark.parametrize(("variant", "training"), CASES)
def test_a_distributed_step_equals_the_step_of_one_process(variant: str, training: str) -> None:
    """Each case with the next loss, penalty and other settings of the row."""
    for reciprocal in (False, True):
        number = next(NUMBERS)
        penalty, weighted = PENALTIES[number % len(PENALTIES)]
        asks = training == "kvsall"
        if penalty == "dura" and (asks or variant.startswith(("rotate", "transe"))):
            penalty = "n3"
        given_settings = {
            **variant_settings(variant),
            "dim": 4,
            "batch_size": 11,
            "negatives_head": 5,
            "negatives_tail": 4,
            **TRAININGS[training],
            "reciprocal": reciprocal,
            "loss": LOSSES[number % (2 if asks else 4)],
            "label_smoothing": 0.1 * asks * (number % 2),
            "penalty": penalty,
            "penalty_entity": 0.3,
            "penalty_relation": 0.0 if penalty == "dura" else 0.2,
            "penalty_weighted": weighted,
            "dropout_entity": 0.3 * (number % 3 > 0),
            "dropout_relation": 0.2 * (number % 3 > 0),
            "relation_prediction": 0.5 * (number % 2) * (not asks),
        }
        for size in (1, 3):
            assert_same_step(*steps_of(make_config(given_settings), size=size, n_entities=7, n_triples=20, seed=number))


@given(
    size=st.integers(1, 6),
    n_entities=st.integers(1, 9),
    n_triples=st.integers(1, 9),
    loss=st.sampled_from(LOSSES),
    training=st.sampled_from(["shared", "own", "1vsall", "kvsall"]),
    model=st.sampled_from(["distmult", "rescal", "complex", "transe"]),
    filtered=st.booleans(),
    sides=st.sampled_from([(3, 2), (0, 3), (4, 0)]),
)
@settings(max_examples=40)
def test_small_batches_few_rows_and_many_ranks(
    size: int,
    n_entities: int,
    n_triples: int,
    loss: str,
    training: str,
    model: str,
    filtered: bool,
    sides: tuple[int, int],
) -> None:
    config = make_config(
        {
            "model": model, "dim": 4, "batch_size": 8, **TRAININGS[training],
            "loss": "softmax" if training == "kvsall" else loss,
            "negatives_head": sides[0], "negatives_tail": sides[1],
            "negatives_filtered": filtered and training in ("shared", "own"),
        }
    )  # fmt: skip
    assert_same_step(*steps_of(config, size=size, n_entities=n_entities, n_triples=n_triples, seed=size))
