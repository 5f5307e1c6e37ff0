"""Filtered ranks: a six-entity graph on paper, full sorts, and nothing that depends on tiles."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from grash.data.known_answers import KnownAnswers
from grash.errors import Diverged
from grash.evaluation.ranking import Ranker, Ranks, plan_tiles, rank_against_sample
from grash.models import MODELS, KgeModel
from grash.training.config import make_config
from oracles import random_triples, rank_by_sort

CPU = torch.device("cpu")
VARIANTS = [("complex", 1), ("cp", 1), ("distmult", 1), ("rescal", 1)]
VARIANTS += [(name, norm) for name in ("rotate", "transe") for norm in (1, 2)]


def ranks_of(model: KgeModel, triples: np.ndarray, *known: np.ndarray, work_bytes: int | None = None) -> Ranks:
    index = KnownAnswers.of(*known, n_relations=model.n_relations)
    return Ranker(triples, index, model.n_entities, CPU).rank(model, work_bytes=work_bytes)


# DistMult with one float: score(h, r, t) = h·r·t. Entities a…f are 0…5 with the values 1 2 3 3 5 0, relation 1.
SIX = MODELS["distmult"](torch.tensor([[1.0], [2.0], [3.0], [3.0], [5.0], [0.0]]), torch.tensor([[1.0]]))


def test_ranks_worked_by_hand() -> None:
    # (b, r, c): tails score 2·(1 2 3 3 5 0); above c stands e, beside it d. Heads: 3·(1 2 3 3 5 0); above b: c d e.
    # With (b, r, e) known, e is left out of the tails; with (d, r, c) known, d is left out of the heads.
    test = np.array([[1, 0, 2]], np.int32)
    raw = ranks_of(SIX, test, test)
    assert (raw.tail.above.tolist(), raw.tail.ties.tolist(), raw.tail.others.tolist()) == ([1], [1], [5])
    assert (raw.tail.optimistic[0], raw.tail.mean[0], raw.tail.pessimistic[0]) == (2, 2.5, 3)
    assert raw.head.mean.tolist() == [4]
    filtered = ranks_of(SIX, test, test, np.array([[1, 0, 4], [3, 0, 2]], np.int32))
    assert filtered.tail.mean.tolist() == [1.5] and filtered.head.mean.tolist() == [3]
    assert filtered.tail.others.tolist() == filtered.head.others.tolist() == [4]


def test_all_equal_scores_tie_at_the_middle() -> None:
    test = np.array([[5, 0, 2], [0, 0, 5]], np.int32)  # f is 0, so all its products are 0
    ranks = ranks_of(SIX, test, test)
    assert ranks.tail.mean.tolist()[0] == 3.5 and ranks.head.mean.tolist()[1] == 3.5
    assert ranks.tail.optimistic[0] == 1 and ranks.tail.pessimistic[0] == 6


def test_the_answer_itself_is_never_filtered_even_if_it_is_known() -> None:
    test = np.array([[1, 0, 2]], np.int32)
    both = ranks_of(SIX, test, test, test)
    assert both.tail.others.tolist() == [5]
    unknown = ranks_of(SIX, test, np.empty((0, 3), np.int32))
    assert unknown.tail.mean.tolist() == both.tail.mean.tolist()


@settings(deadline=None, max_examples=60)
@given(st.sampled_from(VARIANTS), st.booleans(), st.integers(1, 12), st.integers(0, 999), st.integers(4, 3000))
def test_ranks_equal_a_full_sort_whatever_the_work_space(
    variant: tuple[str, int], reciprocal: bool, n_entities: int, seed: int, work_bytes: int
) -> None:
    config = make_config({"model": variant[0], "norm": variant[1], "dim": 4, "reciprocal": reciprocal})
    generator = torch.Generator().manual_seed(seed)
    entity = torch.randint(-2, 3, (n_entities, 4), generator=generator).float()
    width = MODELS[config.model].relation_width(4)
    relation = torch.randint(-2, 3, (4 if reciprocal else 2, width), generator=generator).float()
    if config.model == "rotate":
        relation.zero_()
    model = MODELS[config.model](entity, relation, reciprocal=reciprocal, norm=config.norm)
    test, train = random_triples(seed, 6, n_entities, 2), random_triples(seed + 1, 15, n_entities, 2)
    known = {(h, r, t) for h, r, t in [*train.tolist(), *test.tolist()]}
    ranks = ranks_of(model, test, train, test, work_bytes=work_bytes)
    for side, found in (("head", ranks.head), ("tail", ranks.tail)):
        wanted = [rank_by_sort(config, entity, relation, tuple(t), side, known) for t in test.tolist()]
        assert [*zip(found.above.tolist(), found.ties.tolist())] == wanted


@settings(deadline=None, max_examples=25)
@given(st.sampled_from(VARIANTS), st.integers(1500, 1 << 16), st.integers(0, 99))
def test_ranks_of_floats_do_not_depend_on_the_work_space(variant: tuple[str, int], work_bytes: int, seed: int) -> None:
    name, norm = variant
    generator = torch.Generator().manual_seed(seed)
    entity = torch.randn(1100, 16, generator=generator)
    entity[::3] = entity[1]  # and many ties
    model = MODELS[name](entity, torch.randn(3, MODELS[name].relation_width(16), generator=generator), norm=norm)
    test = random_triples(seed, 40, 1100, 3)
    one, other = ranks_of(model, test, test), ranks_of(model, test, test, work_bytes=work_bytes)
    for a, b in ((one.head, other.head), (one.tail, other.tail)):
        assert np.array_equal(a.above, b.above) and np.array_equal(a.ties, b.ties)


@given(st.integers(0, 10**6), st.integers(1, 10**8), st.integers(1, 1 << 34))
def test_tiles_fit_into_the_work_space(n_queries: int, n_entities: int, work_bytes: int) -> None:
    batch, tile = plan_tiles(n_queries, n_entities, work_bytes)
    assert batch >= 1 and 1 <= tile <= n_entities
    assert 4 * batch * tile <= max(4, work_bytes)


def test_as_many_candidates_as_entities_give_the_full_ranking() -> None:
    model = MODELS["complex"](*(torch.randn(n, 8, generator=torch.Generator().manual_seed(n)) for n in (40, 3)))
    test, train = random_triples(0, 300, 40, 3), random_triples(1, 200, 40, 3)
    known = KnownAnswers.of(train, test, n_relations=3)
    full = Ranker(test, known, 40, CPU).rank(model)
    for n in (40, 1000):
        drawn = rank_against_sample(model, test, known, n_candidates=n, seed=0, device=CPU)
        for a, b in ((full.head, drawn.head), (full.tail, drawn.tail)):
            assert np.array_equal(a.mean, b.mean) and np.array_equal(a.others, b.others)


def test_fewer_candidates_are_a_seeded_share() -> None:
    model = MODELS["distmult"](*(torch.randn(n, 8, generator=torch.Generator().manual_seed(n)) for n in (40, 3)))
    test = random_triples(0, 300, 40, 3)
    known = KnownAnswers.of(test, n_relations=3)
    full = Ranker(test, known, 40, CPU).rank(model)
    one, again, other = (
        rank_against_sample(model, test, known, n_candidates=10, seed=s, device=CPU) for s in (0, 0, 1)
    )
    assert np.array_equal(one.tail.mean, again.tail.mean) and not np.array_equal(one.tail.mean, other.tail.mean)
    assert (one.tail.others <= 10).all() and (one.tail.above <= full.tail.above).all()


def test_a_model_that_diverged_has_no_ranks() -> None:
    test = np.array([[0, 0, 1]], np.int32)
    for bad in (torch.nan, torch.inf):
        model = MODELS["distmult"](torch.tensor([[1.0], [bad]]), torch.tensor([[1.0]]))
        with pytest.raises(Diverged, match="NaN or infinite"):
            ranks_of(model, test, test)
    huge = MODELS["distmult"](torch.full((3, 2), 1e30), torch.ones(1, 2))
    with pytest.raises(Diverged, match="leave the range of float32"):
        ranks_of(huge, test, test)


def test_a_graph_of_one_entity_ranks_first() -> None:
    model = MODELS["distmult"](torch.tensor([[0.5]]), torch.tensor([[1.0]]))
    ranks = ranks_of(model, np.array([[0, 0, 0]], np.int32), np.array([[0, 0, 0]], np.int32))
    assert ranks.head.mean.tolist() == ranks.tail.mean.tolist() == [1] and ranks.head.others.tolist() == [0]


def test_nothing_to_rank_gives_no_ranks() -> None:
    ranks = ranks_of(SIX, np.empty((0, 3), np.int32), np.empty((0, 3), np.int32))
    assert len(ranks.head.mean) == len(ranks.tail.mean) == 0
