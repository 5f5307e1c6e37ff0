"""Ranking on a CUDA device: the counting kernels give the ranks of the reference and of a full sort."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from grash.data.known_answers import KnownAnswers
from grash.errors import Diverged
from grash.evaluation.ranking import CudaCounts, Ranker, Ranks, ranking_bytes
from grash.models import MODELS, KgeModel

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]
CUDA = torch.device("cuda")
VARIANTS = [("complex", 1), ("distmult", 1), ("cp", 1), ("rescal", 1)]
VARIANTS += [(name, norm) for name in ("rotate", "transe") for norm in (1, 2)]


def graph(n: int, n_entities: int, n_relations: int, seed: int = 0) -> np.ndarray:
    """Some entities are in many triples, most in few."""
    rng = np.random.default_rng(seed)
    heads, tails = ((n_entities * rng.random(n) ** 2).astype(np.int32) for _ in range(2))
    return np.stack([heads, rng.integers(0, n_relations, n, dtype=np.int32), tails], 1)


def model_of(name: str, norm: int, n_entities: int, dim: int, values: str = "floats") -> KgeModel:
    generator = torch.Generator(device=CUDA).manual_seed(dim)
    shapes = (n_entities, dim), (5, MODELS[name].relation_width(dim))
    if values == "integers":
        entity, relation = (torch.randint(-3, 4, s, generator=generator, device=CUDA).float() for s in shapes)
        if name == "rotate":
            relation.zero_()
    else:
        entity, relation = (torch.randn(s, generator=generator, device=CUDA) for s in shapes)
    if values == "trained":  # sizes that differ, directions that many share
        entity *= torch.rand(n_entities, 1, generator=generator, device=CUDA) ** 4
        entity += entity[torch.arange(n_entities, device=CUDA) % 37]
    if values == "near":
        step = torch.randint(-3, 4, shapes[0], generator=generator, device=CUDA)
        entity = entity[:1] * (1 + 1e-7 * step)
    return MODELS[name](entity, relation, norm=norm)


def both_ways(model: KgeModel, monkeypatch: pytest.MonkeyPatch, n: int = 700) -> tuple[Ranks, Ranks]:
    test, train = graph(n, model.n_entities, 5, 1), graph(5 * n, model.n_entities, 5, 2)
    ranker = Ranker(test, KnownAnswers.of(train, test, n_relations=5), model.n_entities, CUDA)
    monkeypatch.setenv("GRASH_KERNELS", "triton")
    ours = ranker.rank(model)
    monkeypatch.setenv("GRASH_KERNELS", "reference")
    return ours, ranker.rank(model)


def same(one: Ranks, other: Ranks) -> bool:
    sides = ((one.head, other.head), (one.tail, other.tail))
    return all(np.array_equal(a.above, b.above) and np.array_equal(a.ties, b.ties) for a, b in sides)


@pytest.mark.parametrize("values", ["integers", "floats", "trained", "near"])
@pytest.mark.parametrize("variant", VARIANTS, ids=str)
def test_the_kernels_rank_like_the_reference(variant, values, monkeypatch):
    for n_entities, dim in ((3001, 36), (129, 6)):
        model = model_of(*variant, n_entities, dim, values)
        assert same(*both_ways(model, monkeypatch))


@pytest.mark.parametrize("dim", [1, 5, 127, 128, 257, 1023, 2047])
@pytest.mark.parametrize(
    "variant", [("distmult", 1), ("transe", 1), ("transe", 2)], ids=["distmult", "transe-1", "transe-2"]
)
def test_any_width_is_ranked(variant, dim, monkeypatch):
    assert same(*both_ways(model_of(*variant, 1000, dim), monkeypatch, 90))


@pytest.mark.parametrize("variant", VARIANTS, ids=str)
def test_ranks_of_small_integers_equal_a_full_sort(variant, monkeypatch):
    model = model_of(*variant, 500, 8, "integers")
    ours, _ = both_ways(model, monkeypatch, 60)
    triples = torch.from_numpy(ours.triples).long().cuda()
    train = graph(300, 500, 5, 2)
    known = {tuple(t) for t in np.concatenate([train, ours.triples]).tolist()}
    scores = {
        "tail": model.score_tails(triples[:, 0], triples[:, 1]).cpu().numpy(),
        "head": model.score_heads(triples[:, 1], triples[:, 2]).cpu().numpy(),
    }
    if model.pair in ("l2", "modulus"):
        pytest.skip("square roots are rounded: the reference is the truth for these")
    for side, found in (("head", ours.head), ("tail", ours.tail)):
        for i, (h, r, t) in enumerate(ours.triples.tolist()):
            truth = h if side == "head" else t
            possible = [(e, r, t) if side == "head" else (h, r, e) for e in range(500)]
            left = [scores[side][i, e] for e in range(500) if e != truth and possible[e] not in known]
            above = sum(s > scores[side][i, truth] for s in left)
            ties = sum(s == scores[side][i, truth] for s in left)
            assert (found.above[i], found.ties[i], found.others[i]) == (above, ties, len(left))


def test_a_model_whose_rows_are_all_equal_ties_everywhere(monkeypatch):
    model = model_of("distmult", 1, 20_011, 128)
    model.entity[:] = 0.1  # 14 million open pairs a side: more than the list holds
    ours, reference = both_ways(model, monkeypatch)
    assert same(ours, reference) and not ours.tail.above.any() and np.array_equal(ours.tail.ties, ours.tail.others)


def test_many_models_are_ranked_together_and_only_a_diverged_one_has_no_ranks(monkeypatch):
    models = [model_of("complex", 1, 2000, 16 * k) for k in (1, 2, 3)]
    models[1].entity[7, 3] = torch.nan
    test = graph(100, 2000, 5)
    ranker = Ranker(test, KnownAnswers.of(test, n_relations=5), 2000, CUDA)
    first, diverged, last = ranker.rank_many(models)
    assert isinstance(diverged, Diverged) and "NaN" in str(diverged)
    assert same(first, ranker.rank(models[0])) and same(last, ranker.rank(models[2]))
    models[0].entity[:] = 1e30
    with pytest.raises(Diverged, match="leave the range"):
        ranker.rank(models[0])


@pytest.mark.filterwarnings("ignore:Synchronization debug mode")
def test_ranking_waits_once(monkeypatch):
    model, test = model_of("rotate", 1, 2000, 32), graph(100, 2000, 5)
    ranker = Ranker(test, KnownAnswers.of(test, n_relations=5), 2000, CUDA)
    ranker.rank(model)
    torch.cuda.set_sync_debug_mode("error")
    try:
        counts = CudaCounts(model, ranker.queries)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert counts.read() is not None


@pytest.mark.parametrize("size", [(5000, 7800, 128), (10_000, 400_000, 128), (300, 2000, 512)])
def test_ranking_takes_the_planned_bytes(size):
    n, n_entities, dim = size
    model, test = model_of("complex", 1, n_entities, dim), graph(n, n_entities, 5)
    known = KnownAnswers.of(graph(10 * n, n_entities, 5, 3), test, n_relations=5, asked=test)
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    ranker = Ranker(test, known, n_entities, CUDA)
    ranker.rank(model)
    took = torch.cuda.max_memory_allocated() - before
    planned = ranking_bytes(n, len(known.head.answers) + len(known.tail.answers), n_entities, dim, CUDA)
    print(f"\n{size}: took {took:,}, planned {planned:,}")
    assert took <= planned * 1.05 and planned <= took * 1.15
