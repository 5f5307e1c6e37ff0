"""Distributed ranking gives the ranks of one process, for any number of processes and rows."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from grash.data.dataset import Dataset
from grash.data.known_answers import KnownAnswers
from grash.engines.distributed import DistributedRanker, evaluate_distributed
from grash.errors import Diverged
from grash.evaluation.evaluate import evaluate
from grash.evaluation.ranking import Ranker, Ranks
from grash.models import MODELS, KgeModel
from grash.training.distributed.communication import ProcessGroup, Shard
from oracles import random_triples
from training.distributed.thread_group import in_threads

CPU = torch.device("cpu")
VARIANTS = [("complex", 1), ("distmult", 1), ("cp", 1), ("rotate", 1), ("rotate", 2), ("transe", 1), ("transe", 2)]


def model_of(name: str, norm: int, n_entities: int, *, reciprocal: bool, seed: int, integers: bool) -> KgeModel:
    generator = np.random.default_rng(seed)
    cls = MODELS[name]
    shapes = ((n_entities, 4), (3 * (1 + reciprocal), cls.relation_width(4)))
    draws = [generator.integers(-2, 3, s) if integers else generator.normal(size=s) for s in shapes]
    if name == "rotate" and integers:
        draws[1] = np.zeros(shapes[1])  # no rotation: distances of whole numbers
    tables = [torch.from_numpy(np.asarray(d, np.float32)) for d in draws]
    return cls(*tables, reciprocal=reciprocal, norm=norm)


def own_rows(model: KgeModel, shard: Shard) -> KgeModel:
    rows = model.entity[shard.first : shard.last]
    return type(model)(rows, model.relation, reciprocal=model.reciprocal, norm=model.norm)


def in_processes(size: int, model: KgeModel, triples: np.ndarray, known: KnownAnswers) -> list[Ranks]:
    def work(group: ProcessGroup) -> Ranks:
        shard = Shard(model.n_entities, group)
        return DistributedRanker(triples, known, shard, group, CPU).rank(own_rows(model, shard))

    return in_threads(size, work)


@pytest.mark.slow
@given(
    variant=st.sampled_from(VARIANTS),
    reciprocal=st.booleans(),
    n_entities=st.integers(1, 12),
    n_triples=st.integers(0, 9),
    size=st.integers(1, 5),
    seed=st.integers(0, 99),
)
@settings(max_examples=60)
def test_ranks_equal_those_of_one_process(
    variant: tuple[str, int], reciprocal: bool, n_entities: int, n_triples: int, size: int, seed: int
) -> None:
    model = model_of(*variant, n_entities, reciprocal=reciprocal, seed=seed, integers=True)
    train = random_triples(seed, 12, n_entities, 3)
    test = random_triples(seed + 1, n_triples, n_entities, 3)
    known = KnownAnswers.of(train, test, n_relations=3)
    plain = Ranker(test, known, n_entities, CPU).rank(model)
    for ranks in in_processes(size, model, test, known):
        for found, wanted in ((ranks.head, plain.head), (ranks.tail, plain.tail)):
            assert found.above.tolist() == wanted.above.tolist()
            assert found.ties.tolist() == wanted.ties.tolist()
            assert found.others.tolist() == wanted.others.tolist()


def test_batches_and_tiles_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("grash.engines.distributed.default_work_bytes", lambda _: 4 * 7 * 3)
    monkeypatch.setattr("grash.evaluation.ranking._MIN_TILE", 3)
    model = model_of("complex", 1, 50, reciprocal=False, seed=1, integers=False)
    test = random_triples(3, 40, 50, 3)
    known = KnownAnswers.of(random_triples(2, 200, 50, 3), test, n_relations=3)
    plain = Ranker(test, known, 50, CPU).rank(model)
    for ranks in in_processes(3, model, test, known):
        assert ranks.tail.mean.tolist() == plain.tail.mean.tolist()
        assert ranks.head.mean.tolist() == plain.head.mean.tolist()


def test_a_row_that_is_not_finite_is_an_error_in_all_processes() -> None:
    model = model_of("complex", 1, 9, reciprocal=False, seed=1, integers=False)
    model.entity[7, 0] = torch.nan
    test = random_triples(3, 4, 9, 3)

    def work(group: ProcessGroup) -> bool:
        shard = Shard(9, group)
        ranker = DistributedRanker(test, KnownAnswers.of(test, n_relations=3), shard, group, CPU)
        with pytest.raises(Diverged, match="NaN or infinite"):
            ranker.rank(own_rows(model, shard))
        return True

    assert all(in_threads(3, work))


def test_the_evaluation_equals_that_of_one_process() -> None:
    parts = np.split(random_triples(5, 300, 30, 3), [200, 250])
    dataset = Dataset(*(np.ascontiguousarray(p) for p in parts), 30, 3, name="drawn")
    model = model_of("transe", 1, 30, reciprocal=True, seed=4, integers=False)

    def work(group: ProcessGroup) -> object:
        shard = Shard(30, group)
        return evaluate_distributed(own_rows(model, shard), dataset, shard, group, sample=40, seed=3).to_dict()

    wanted = evaluate(model, dataset, sample=40, seed=3).to_dict()
    assert in_threads(2, work) == [wanted, wanted]
