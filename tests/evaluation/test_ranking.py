"""Filtered ranks: a six-entity graph worked by hand, full sorts, filters, and tables in memory and in a file."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from grash.data.known_answers import KnownAnswers
from grash.errors import ConfigError, Diverged
from grash.evaluation import ranking
from grash.evaluation.ranking import (
    Ranker,
    Ranks,
    SideQueries,
    default_work_bytes,
    plan_tiles,
    rank_against_sample,
    rank_among,
    ranking_bytes,
)
from grash.kernels.count_above import use_kernels, why_not
from grash.kernels.storage import file_rows
from grash.models import MODELS, KgeModel
from grash.training.config import make_config
from grash.training.initial import initial_model
from oracles import random_triples, rank_by_sort

CPU = torch.device("cpu")
VARIANTS = [("complex", 1), ("cp", 1), ("distmult", 1), ("rescal", 1)]
VARIANTS += [(name, norm) for name in ("rotate", "transe") for norm in (1, 2)]
VARIANTS += [("simple", 1), ("quate", 1), ("mure", 1), ("pairre", 1)]


def ranks_of(model: KgeModel, triples: np.ndarray, *known: np.ndarray, work_bytes: int | None = None) -> Ranks:
    index = KnownAnswers.of(*known, n_relations=model.n_relations)
    return Ranker(triples, index, model.n_entities, CPU).rank(model, work_bytes=work_bytes)


# DistMult with one float: score(h, r, t) = h·r·t. Entities a…f are 0…5 with the values 1 2 3 3 5 0, relation 1.
SIX = MODELS["distmult"](torch.tensor([[1.0], [2.0], [3.0], [3.0], [5.0], [0.0]]), torch.tensor([[1.0]]))


def test_ranks_worked_by_hand() -> None:
    # (b, r, c): tails score 2·(1 2 3 3 5 0); e is above c, d ties with c. Heads: 3·(1 2 3 3 5 0); above b: c d e.
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
def test_ranks_equal_a_full_sort_for_any_work_space(
    variant: tuple[str, int], reciprocal: bool, n_entities: int, seed: int, work_bytes: int
) -> None:
    config = make_config({"model": variant[0], "norm": variant[1], "dim": 4, "reciprocal": reciprocal})
    generator = torch.Generator().manual_seed(seed)
    width, entity_width = MODELS[config.model].relation_width(4), MODELS[config.model].entity_width(4)
    entity = torch.randint(-2, 3, (n_entities, entity_width), generator=generator).float()
    relation = torch.randint(-2, 3, (4 if reciprocal else 2, width), generator=generator).float()
    if config.model == "rotate":
        relation.zero_()
    if config.model == "quate":  # length 1 or 2
        relation = torch.eye(4)[torch.arange(len(relation)) % 4] * relation.sign().sum(1, keepdim=True).clamp(1, 2)
    if config.model == "pairre":  # lengths that keep integers
        entity = torch.eye(4)[entity[:, 0].long().abs() % 4] * 2
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
    entity = torch.randn(1100, MODELS[name].entity_width(16), generator=generator)
    entity[::3] = entity[1]  # many ties
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


def test_fewer_candidates_are_a_seeded_sample() -> None:
    model = MODELS["distmult"](*(torch.randn(n, 8, generator=torch.Generator().manual_seed(n)) for n in (40, 3)))
    test = random_triples(0, 300, 40, 3)
    known = KnownAnswers.of(test, n_relations=3)
    full = Ranker(test, known, 40, CPU).rank(model)
    one, again, other = (
        rank_against_sample(model, test, known, n_candidates=10, seed=s, device=CPU) for s in (0, 0, 1)
    )
    assert np.array_equal(one.tail.mean, again.tail.mean) and not np.array_equal(one.tail.mean, other.tail.mean)
    assert (one.tail.others <= 10).all() and (one.tail.above <= full.tail.above).all()


def test_a_diverged_model_cannot_be_ranked() -> None:
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


def test_an_empty_split_has_no_ranks() -> None:
    ranks = ranks_of(SIX, np.empty((0, 3), np.int32), np.empty((0, 3), np.int32))
    assert len(ranks.head.mean) == len(ranks.tail.mean) == 0


def test_every_ranking_is_timed_once_durations_are_collected() -> None:
    test = np.array([[1, 0, 2]], np.int32)
    ranker = Ranker(test, KnownAnswers.of(test, n_relations=1), 6, CPU)
    ranker.rank(SIX)
    ranker.durations = []
    ranks = ranker.start(SIX)
    assert len(ranker.durations) == 1 and ranks().head.mean.tolist() == ranker.rank(SIX).head.mean.tolist()
    diverged = MODELS["distmult"](SIX.entity * torch.nan, SIX.relation)
    with pytest.raises(Diverged):
        ranker.rank(diverged)
    assert len(ranker.durations) == 3 and min(ranker.durations) >= 0


def filtered(triples: np.ndarray, known: set[tuple[int, int, int]], side: str, n_entities: int) -> list[list[int]]:
    """Return, for each triple, the entities that make another known triple on this side."""
    found = []
    for h, r, t in triples.tolist():
        others = [((e, r, t) if side == "head" else (h, r, e), e) for e in range(n_entities)]
        found.append([e for triple, e in others if triple in known and e != (h if side == "head" else t)])
    return found


@settings(deadline=None, max_examples=40)
@given(st.integers(0, 25), st.integers(1, 9), st.integers(0, 99), st.booleans())
def test_every_row_has_its_filter_without_the_truth(n: int, n_entities: int, seed: int, itself: bool) -> None:
    test, train = random_triples(seed, n, n_entities, 2), random_triples(seed + 1, 30, n_entities, 2)
    splits = (train, test) if itself else (train,)
    index = KnownAnswers.of(*splits, n_relations=2)
    known = {(h, r, t) for split in splits for h, r, t in split.tolist()}
    for side in ("head", "tail"):
        queries = SideQueries(test, index, side, CPU, n_entities)  # type: ignore[arg-type]
        wanted = filtered(test, known, side, n_entities)
        assert queries.others.tolist() == [n_entities - 1 - len(w) for w in wanted]
        for first, last in ((0, n), (n // 2, n)):
            begins, ends, answers = queries.runs(first, last)
            for i, (begin, end) in enumerate(zip(begins, ends), first):
                run = answers[begin:end].tolist()
                assert run == sorted(run) and [e for e in run if e != queries.truth[i]] == wanted[i]
            drawn = torch.arange(n_entities).repeat(last - first, 1)
            known_ones = queries.is_known(first, drawn)
            for i, row in enumerate(known_ones.tolist(), first):
                assert [e for e in range(n_entities) if row[e] and e != queries.truth[i]] == wanted[i]
        distinct = queries.distinct
        asking, pairs, runs = (x.tolist() for x in (distinct.rows, distinct.known, distinct.runs))
        asks, order, starts = (x.tolist() for x in vars(distinct.index).values())
        keys = list(zip(queries.known.tolist(), queries.relations.tolist()))
        assert sorted(keys[i] for i in asking) == sorted(set(keys)) and [keys[asking[q]] for q in asks] == keys
        assert [asks[i] for i in order] == sorted(asks) and sorted(order) == list(range(n))
        count = [end - begin for begin, end in zip(starts, starts[1:])]
        assert count == sorted(count, reverse=True) and count == [asks.count(q) for q in range(len(asking))]
        for i, (begin, end, truth_known) in enumerate(zip(*runs)):
            truth = int(queries.truth[i])
            assert [e for e in pairs[1][begin:end] if e != truth] == wanted[i]
            assert truth_known == (truth in pairs[1][begin:end])
            assert set(pairs[0][begin:end]) <= {asks[i]}


def test_the_answers_of_a_query_are_stored_once() -> None:
    test = np.array([[h, 0, 7] for h in range(50)], np.int32)
    queries = SideQueries(test, KnownAnswers.of(test, n_relations=1), "head", CPU, 60)
    assert queries.distinct.known.shape == (2, 50) and len(queries.runs(0, 50).answers) == 50


def test_known_answers_are_encoded_once_and_found_for_every_row(monkeypatch: pytest.MonkeyPatch) -> None:
    test, made, pairs = random_triples(3, 600, 40, 2), [], SideQueries._pairs
    queries = SideQueries(test, KnownAnswers.of(test, n_relations=2), "tail", CPU, 40)
    monkeypatch.setattr(SideQueries, "_pairs", lambda self: made.append(self) or pairs(self))
    known, drawn = {tuple(triple) for triple in test.tolist()}, torch.arange(40).repeat(256, 1)
    for first in range(0, len(test), 256):
        rows = test[first : first + 256].tolist()
        plain = [[(h, r, e) in known for e in range(40)] for h, r, _ in rows]
        assert queries.is_known(first, drawn[: len(rows)]).tolist() == plain
    assert made == [queries]


def test_ranking_on_a_cpu_needs_two_score_tiles() -> None:
    assert ranking_bytes(100, 1000, 5000, 128, CPU) == 2 * default_work_bytes(CPU)


def test_reasons_against_the_counting_kernels_are_listed(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "the device is cpu, not cuda" in why_not(torch.zeros(1, 4))
    assert any("wider than 2048" in reason for reason in why_not(torch.zeros(1, 2049)))
    monkeypatch.setenv("GRASH_KERNELS", "triton")
    assert not use_kernels(torch.zeros(1, 4))  # required on CUDA devices only
    wide = torch.zeros(1, 2049)

    class Elsewhere:
        device, shape, dtype = torch.device("cuda"), wide.shape, wide.dtype

    with pytest.raises(ConfigError, match="rows of 2049 floats"):
        use_kernels(Elsewhere())  # type: ignore[arg-type]


OFFLOADED = [("complex", 1, 6), ("cp", 1, 10), ("rescal", 1, 3), ("transe", 1, 7), ("transe", 2, 9), ("rotate", 1, 6)]


def graph(n: int, n_entities: int, seed: int) -> np.ndarray:
    rng = np.random.default_rng(seed)
    return np.stack([rng.integers(0, m, n) for m in (n_entities, 2, n_entities)], 1).astype(np.int32)


def same_model_twice(name: str, norm: int, dim: int, folder: Path, n: int = 151) -> tuple[KgeModel, KgeModel]:
    """Return the same model twice, in memory and with its entities in a file; small integers give many ties."""
    generator = torch.Generator().manual_seed(dim)
    entity = torch.randint(-2, 3, (n, dim), generator=generator).float()
    relation = torch.randn(4, MODELS[name].relation_width(dim), generator=generator)
    there = file_rows(n, dim, folder)
    there.copy_(entity)
    return tuple(MODELS[name](table, relation, reciprocal=True, norm=norm) for table in (entity, there))


def equal(one: Ranks, other: Ranks) -> bool:
    sides = ((one.head, other.head), (one.tail, other.tail))
    return all(np.array_equal(a.above, b.above) and np.array_equal(a.ties, b.ties) for a, b in sides)


@pytest.mark.parametrize("block", [1, 7, 10_000])
@pytest.mark.parametrize("variant", OFFLOADED, ids=str)
def test_ranks_do_not_depend_on_where_the_table_is_stored(
    variant: tuple[str, int, int], block: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ranking, "_BLOCK_BYTES", block * 4 * variant[2])
    monkeypatch.setattr(ranking, "_GROUP", 20)  # several passes over the table
    n = 31 if block == 1 else 151
    here, there = same_model_twice(*variant, tmp_path, n=n)
    test, train = graph(30, n, 1), graph(400, n, 2)
    ranker = Ranker(test, KnownAnswers.of(train, test, n_relations=2), n, CPU)
    for work in (None, 1 << 12):
        assert equal(ranker.rank(here, work_bytes=work), ranker.rank(there, work_bytes=work))


@pytest.mark.parametrize("table", ["entity", "relation"])
def test_an_offloaded_model_that_is_not_finite_cannot_be_ranked(table: str, tmp_path: Path) -> None:
    _, there = same_model_twice("complex", 1, 6, tmp_path)
    getattr(there, table)[3, 2] = torch.nan
    test = graph(5, 151, 1)
    with pytest.raises(Diverged, match="train the model again"):
        Ranker(test, KnownAnswers.of(test, n_relations=2), 151, CPU).rank(there)


def test_an_empty_split_of_an_offloaded_model_has_no_ranks(tmp_path: Path) -> None:
    here, there = same_model_twice("complex", 1, 6, tmp_path)
    ranker = Ranker(np.empty((0, 3), np.int32), KnownAnswers.of(graph(9, 151, 1), n_relations=2), 151, CPU)
    assert equal(ranker.rank(here), ranker.rank(there))


@pytest.mark.parametrize("name", sorted(MODELS))
@pytest.mark.parametrize("reciprocal", [False, True])
def test_ranks_among_candidates_are_those_of_a_full_sort(name, reciprocal):
    cls, dim = MODELS[name], 8 if name == "conve" else 4
    if cls.needs_reciprocal and not reciprocal:
        pytest.skip(f"{name} has reciprocal relations")
    generator = np.random.default_rng(3)
    n_entities, n_relations = 30, 4
    triples = generator.integers(0, (n_entities, n_relations, n_entities), (60, 3)).astype(np.int32)
    sizes = (n_entities, n_relations * (2 if reciprocal else 1))
    widths = (cls.entity_width(dim), cls.relation_width(dim))
    rounds = name in ("rotate", "quate", "pairre", "conve", "tucker")  # scores of integers would not tie exactly
    draw = generator.standard_normal if rounds else lambda s: generator.integers(-2, 3, s)
    tables = [torch.from_numpy(np.asarray(draw(s), np.float32)) for s in zip(sizes, widths)]
    weights = initial_model(make_config({"model": name, "dim": dim, "reciprocal": reciprocal}), 1, 1).weights
    model = cls(*tables, reciprocal=reciprocal, weights=weights)
    known = KnownAnswers.of(triples, n_relations=n_relations)
    chosen = {(r, s): np.flatnonzero(generator.random(n_entities) < r / 3) for r in range(4) for s in ("head", "tail")}
    ranks = rank_among(model, triples[:40], known, lambda r, s: chosen[r, s], device=torch.device("cpu"))
    facts = {tuple(t) for t in triples.tolist()}
    for side, column in (("head", 0), ("tail", 2)):
        for i, triple in enumerate(triples[:40].tolist()):
            others = [[*triple[:column], int(e), *triple[column + 1 :]] for e in chosen[triple[1], side]]
            others = [t for t in others if tuple(t) not in facts]
            truth, *scores = model.score(torch.tensor([triple, *others]), side=side).tolist()
            of_side = getattr(ranks, side)
            assert of_side.others[i] == len(others)
            assert of_side.above[i] == sum(s > truth for s in scores)
            assert of_side.ties[i] == sum(s == truth for s in scores)
