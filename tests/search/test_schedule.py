"""How many trials, at what fidelity, for how much: worked by hand, and as laws over random settings."""

from __future__ import annotations

import math
from dataclasses import replace
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import settings as examples
from hypothesis import strategies as st

from grash.data.dataset import Dataset
from grash.errors import ConfigError, InputError
from grash.search.graphs import SearchGraphs
from grash.search.ledger import SearchState
from grash.search.schedule import (
    ISOLATED_FROM,
    ISOLATED_NOTE,
    MIN_ENTITIES,
    MIN_VALID,
    Shape,
    fidelity_of,
    fitting_trials,
    min_entities,
    plan_round,
    round_config,
    round_sizes,
    scaled_negatives,
)
from grash.search.settings import SearchSettings
from grash.search.trial import Round
from grash.training.config import TrainConfig
from table_engine import NumberGraphs, bill, decide, quick_settings

VARIANTS = ("combined", "graph", "epoch")


@pytest.mark.parametrize(
    ("n", "eta", "sizes"),
    [
        (64, 4, [64, 16, 4]),
        (64, 2, [64, 32, 16, 8, 4, 2]),
        (10, 3, [10, 4, 2]),
        (5, 4, [5, 2]),
        (4, 4, [4]),
        (3, 8, [3]),
        (2, 2, [2]),
        (1, 4, []),
    ],
)
def test_rounds_shrink_to_the_ceiling_of_one_in_eta_until_one_is_left(n: int, eta: int, sizes: list[int]) -> None:
    assert round_sizes(n, eta) == sizes


@given(st.integers(1, 5000), st.integers(2, 70))
def test_sizes_fall_strictly_and_the_last_round_has_at_most_eta(n: int, eta: int) -> None:
    sizes = round_sizes(n, eta)
    assert all(b == -(-a // eta) < a for a, b in zip(sizes, sizes[1:]))
    assert (n == 1 and not sizes) or 2 <= sizes[-1] <= eta
    assert (len(sizes) <= 1) == (eta >= n)


@pytest.mark.parametrize("variant", VARIANTS)
def test_the_defaults_give_the_papers_rounds(variant: str) -> None:
    settings = quick_settings(variant=variant, guard_rails=False)
    state = decide(settings, NumberGraphs(settings))
    assert [(len(r.results), r.plan.n_trials, r.plan.fidelity) for r in state.rounds] == [
        (64, 64, 1 / 64),
        (16, 16, 1 / 16),
        (4, 4, 1 / 4),
    ]
    expected = {"graph": [1 / 64, 1 / 16, 1 / 4], "epoch": [1.0] * 3, "combined": [1 / 8, 1 / 4, 1 / 2]}[variant]
    assert [r.plan.graph_fraction for r in state.rounds] == expected
    assert [r.plan.epoch_fraction * r.plan.graph_fraction for r in state.rounds] == [1 / 64, 1 / 16, 1 / 4]


def test_the_epoch_variant_bills_increments_two_and_a_half_of_three() -> None:
    settings = quick_settings(variant="epoch")
    graphs = NumberGraphs(settings, n_train=64_000)
    state = decide(settings, graphs)
    assert [r.plan.positives for r in state.rounds] == [100_000, 400_000, 1_600_000]
    assert [r.plan.cost for r in state.rounds] == [1 / 64, 3 / 64, 3 / 16]
    assert bill(state, settings, graphs.n_train) == Fraction(5, 2)
    assert state.spent == pytest.approx(2.5)


@pytest.mark.parametrize("variant", ["combined", "graph"])
def test_the_other_variants_bill_all_that_their_graphs_allow(variant: str) -> None:
    settings = quick_settings(variant=variant, guard_rails=False)
    graphs = NumberGraphs(settings, n_train=64_000)
    state = decide(settings, graphs)
    assert bill(state, settings, graphs.n_train) == 3


def test_a_share_of_more_than_the_trials_cost_is_capped_at_full_runs() -> None:
    assert fidelity_of(Fraction(7), [1.0] * 4) == 1
    assert fidelity_of(Fraction(1), [1.0] * 4) == Fraction(1, 4)
    assert fidelity_of(Fraction(1), [0.5, 1.5, 2.0]) == Fraction(1, 4)


def graph_of(seed: int, n_entities: int, n_train: int, n_relations: int = 3) -> Dataset:
    """A small graph with a hub, so that cores differ."""
    random = np.random.default_rng(seed)
    drawn = (n_entities * random.random((n_train * 2, 2)) ** 2).astype(np.int32)
    relations = random.integers(0, n_relations, n_train * 2)
    triples = np.unique(np.stack([drawn[:, 0], relations, drawn[:, 1]], 1), axis=0).astype(np.int32)
    triples = np.ascontiguousarray(random.permutation(triples)[: n_train + 20])
    parts = [np.ascontiguousarray(p) for p in (triples[20:], triples[:10], triples[10:20])]
    return Dataset(parts[0], parts[1], parts[2], n_entities, n_relations, name="hub")


any_settings = st.fixed_dictionaries(
    {
        "n_trials": st.integers(1, 40),
        "eta": st.integers(2, 9),
        "budget": st.sampled_from([0.3, 1.0, 1.7, 3.0, 10.0, 33.3]) | st.floats(0.2, 20),
        "max_epochs": st.sampled_from([1.0, 10.0, 33.0, 100.0]) | st.floats(0.5, 200),
        "variant": st.sampled_from(VARIANTS),
        "carry_over": st.booleans(),
        "final_train": st.booleans(),
    }
)


def any_graphs(settings: SearchSettings) -> st.SearchStrategy[NumberGraphs]:
    return st.builds(
        NumberGraphs,
        settings=st.just(settings),
        n_train=st.integers(200_000, 10**7),
        n_entities=st.integers(500, 10**5),
        fill=st.sampled_from([1.0, 0.83, 0.5]),
    )


def check_laws(state: SearchState, settings: SearchSettings, graphs: Any) -> None:
    """What holds for every search: nothing above the budget, each trial as planned, fidelities that never fall."""
    assert bill(state, settings, graphs.n_train) <= settings.full_budget
    fidelities = [r.plan.fidelity for r in state.rounds]
    assert fidelities == sorted(fidelities)
    fractions = [r.plan.graph_fraction for r in state.rounds]
    assert fractions == sorted(fractions)
    for past in state.rounds:
        assert 0 < past.plan.fidelity <= 1 and past.plan.cost >= 0 and past.plan.positives >= 1
        assert all(r.positives >= 0 for r in past.results.values())


@given(st.data())
def test_trials_that_end_normally_execute_the_plan_and_never_more_than_the_budget(data: st.DataObject) -> None:
    settings = quick_settings(guard_rails=False, **data.draw(any_settings))
    graphs = data.draw(any_graphs(settings))
    prices = data.draw(st.none() | st.lists(st.floats(0.05, 5), min_size=40, max_size=40))
    state = decide(settings, graphs, prices=prices)
    check_laws(state, settings, graphs)
    assert [len(r.results) for r in state.rounds] == round_sizes(settings.n_trials, settings.eta)
    share, size = settings.full_budget / max(1, len(state.rounds)), settings.n_trials
    before = 0
    for past in state.rounds:
        plan = past.plan
        assert {r.positives for r in past.results.values()} == {plan.positives - (before if plan.continues else 0)}
        assert plan.positives <= plan.fidelity * settings.max_epochs * graphs.n_train * (1 + 1e-12)
        if prices is None and not settings.carry_over:
            assert plan.fidelity == float(min(Fraction(1), share / size))
        before, size = plan.positives, -(-size // settings.eta)


@given(st.data())
def test_with_rails_and_failures_the_bill_stays_within_the_budget(data: st.DataObject) -> None:
    settings = quick_settings(guard_rails=data.draw(st.booleans()), max_retries=1, **data.draw(any_settings))
    graphs = data.draw(any_graphs(settings))
    prices = data.draw(st.none() | st.lists(st.floats(0.05, 5), min_size=40, max_size=40))
    ends = st.sampled_from(
        [("diverged",), ("error",), ("timeout",), ("out_of_memory", "out_of_memory"), ("killed", "ok")]
    )
    keys = st.tuples(st.integers(1, 5), st.integers(0, 39))
    faults = data.draw(st.dictionaries(keys, ends, max_size=60))
    part = data.draw(st.fractions(0, 1, max_denominator=50))
    state = decide(settings, graphs, prices=prices, faults=faults, part_seen=part)
    assert state.finished
    check_laws(state, settings, graphs)


@given(st.data())
@examples(max_examples=25)
def test_the_laws_hold_on_real_subgraphs(data: st.DataObject) -> None:
    size = {"n_entities": data.draw(st.integers(30, 300)), "n_train": data.draw(st.integers(200, 1500))}
    dataset = graph_of(data.draw(st.integers(0, 9)), **size)
    ways = {
        "reduction": data.draw(st.sampled_from(["core-order", "k-core", "walk"])),
        "guard_rails": data.draw(st.booleans()),
    }
    settings = quick_settings(**ways, **data.draw(any_settings))
    graphs = SearchGraphs(dataset, settings)
    try:
        state = decide(settings, graphs)
    except ConfigError as error:  # a graph of a few triples can be too small for some rounds
        assert "too few to compare" in str(error) or "less than one triple" in str(error)
        return
    check_laws(state, settings, graphs)
    for past in state.rounds:
        data_there = graphs.subgraph(() if past.plan.whole else past.plan.fractions, past.plan.isolated).dataset
        assert (past.plan.n_train, past.plan.n_valid) == (len(data_there.train), len(data_there.valid))
        assert past.plan.whole or past.plan.n_train <= past.plan.graph_fraction * graphs.n_train + 1e-9


def test_a_graph_of_one_relation_is_fine() -> None:
    settings = quick_settings(n_trials=4, eta=2, guard_rails=False)
    graphs = SearchGraphs(graph_of(0, 60, 600, n_relations=1), settings)
    assert decide(settings, graphs).winner is not None


def test_rails_keep_the_graph_large_enough_and_leave_the_fidelity() -> None:
    settings = quick_settings(n_trials=16, budget=1.0)
    graphs = NumberGraphs(settings, n_train=100_000, n_entities=8_000)
    first = decide(settings, graphs).rounds[0].plan
    assert first.fidelity == 1 / 32 and first.graph_fraction == 0.25 > math.sqrt(1 / 32)
    assert first.epoch_fraction == 1 / 8 and any("rail" in note for note in first.notes)
    bare = settings.model_copy(update={"guard_rails": False})
    assert decide(bare, NumberGraphs(bare)).rounds[0].plan.graph_fraction == math.sqrt(1 / 32)


def test_rails_prefer_fewer_trials_where_an_epoch_of_the_smallest_graph_is_too_dear() -> None:
    settings = quick_settings(n_trials=64, budget=3.0, max_epochs=2.0)
    graphs = NumberGraphs(settings, n_train=100_000, n_entities=16_000)  # the smallest graph is 1/8: f must be 1/16
    assert fitting_trials(settings, graphs) == 16  # f = 3/2/16; 17 trials need a third round: f = 3/3/17
    first = decide(settings, graphs).rounds[0]
    assert len(first.results) == 16 and first.plan.epochs >= 1
    for variant in ("graph", "epoch"):
        assert fitting_trials(settings.model_copy(update={"variant": variant}), graphs) == 64


@pytest.mark.parametrize("variant", ["graph", "epoch"])
def test_in_the_other_variants_a_rail_only_warns(variant: str) -> None:
    settings = quick_settings(variant=variant, max_epochs=1.0)
    graphs = NumberGraphs(settings, n_train=100_000, n_entities=20_000)
    bare = settings.model_copy(update={"guard_rails": False})
    with_rails, without = (decide(s, graphs).rounds[0].plan for s in (settings, bare))
    assert with_rails == without and any(note.startswith("warning") for note in with_rails.notes)


def test_the_smallest_number_of_entities_is_a_hundredth_or_two_thousand_or_all() -> None:
    settings = quick_settings()
    for n, least in ((500, 500), (100_000, MIN_ENTITIES), (5_000_000, 50_000)):
        assert min_entities(NumberGraphs(settings, n_entities=n)) == least


def test_a_whole_graph_takes_the_whole_reduction_in_epochs() -> None:
    class AlmostWhole(NumberGraphs):
        def shape(self, fractions: tuple[float, ...], isolated: bool = False) -> Shape:
            return Shape(self.n_entities, 5, self.n_train, self.n_valid, whole=True)

    for variant in ("combined", "graph"):
        settings = quick_settings(variant=variant, guard_rails=False, n_trials=4, budget=3.0)
        plan = plan_round(1, Fraction(3, 4), Fraction(3), 4, settings, AlmostWhole(settings))
        assert plan.whole and plan.epoch_fraction == 0.75 and plan.cost == 0.75


def test_a_budget_too_small_for_one_step_is_refused_in_a_sentence() -> None:
    settings = quick_settings(budget=1e-6, max_epochs=1.0)
    with pytest.raises(ConfigError, match="budget=1e-06 leaves each of the 64 trials of round 1 less than one triple"):
        decide(settings, NumberGraphs(settings, n_train=1000))


def test_a_graph_too_small_for_a_validation_split_is_refused_in_a_sentence() -> None:
    settings = quick_settings(variant="graph", n_trials=64, guard_rails=False)
    with pytest.raises(ConfigError, match="The graph of round 1 has .* too few to compare configurations"):
        decide(settings, SearchGraphs(graph_of(0, 40, 200), settings))


def test_a_dataset_without_validation_triples_is_refused_in_a_sentence() -> None:
    dataset = graph_of(0, 40, 200)
    bare = Dataset(dataset.train, dataset.valid[:0], dataset.test, 40, 3, name="bare")
    with pytest.raises(InputError, match="bare has 200 training and 0 validation triples.*grash train"):
        SearchGraphs(bare, quick_settings())


def test_negatives_scale_with_the_entities_down_to_the_floor() -> None:
    settings = quick_settings(n_trials=4, eta=2, budget=2.0, guard_rails=False, variant="graph")
    plan = decide(settings, NumberGraphs(settings)).rounds[0].plan  # a quarter of the entities
    assert plan.entity_share == 0.25
    assert [scaled_negatives(n, plan, 0.0) for n in (0, 1, 4, 5, 100)] == [0, 1, 1, 2, 25]
    assert scaled_negatives(100, plan, 0.5) == 50
    assert scaled_negatives(10**9, plan, 0.0) == plan.n_entities - 1


def test_penalties_scale_with_the_triples_and_not_with_the_epochs() -> None:
    full = TrainConfig(penalty="n3", penalty_entity=0.3, penalty_relation=0.15, negatives_head=100, negatives_tail=8)

    def penalties(**given: Any) -> list[tuple[float, float]]:
        settings = quick_settings(n_trials=16, eta=4, budget=2.0, guard_rails=False, **given)
        configs = [round_config(full, r.plan, settings) for r in decide(settings, NumberGraphs(settings)).rounds]
        return [(c.penalty_entity / 0.3, c.penalty_relation / 0.15) for c in configs]

    assert penalties(variant="graph") == [pytest.approx((1 / 16, 1 / 16)), pytest.approx((1 / 4, 1 / 4))]
    assert penalties(variant="combined") == [pytest.approx((1 / 4, 1 / 4)), pytest.approx((1 / 2, 1 / 2))]
    assert penalties(variant="epoch") == penalties(variant="combined", scaled_penalties=False) == [(1, 1)] * 2


def test_penalties_scale_with_the_triples_that_a_core_has_not_with_those_asked_for() -> None:
    settings = quick_settings(reduction="k-core", guard_rails=False)
    full = TrainConfig(penalty="n3", penalty_entity=0.4)
    plans = [r.plan for r in decide(settings, NumberGraphs(settings, fill=0.3)).rounds]
    for plan in plans:
        assert plan.n_train / 100_000 < 0.4 * plan.graph_fraction
        assert round_config(full, plan, settings).penalty_entity == pytest.approx(0.4 * plan.n_train / 100_000)
    assert Round.from_json({k: v for k, v in plans[0].to_json().items() if k != "triple_share"}).triple_share is None


def test_configurations_that_the_user_gave_are_not_cut_by_a_rail() -> None:
    settings = quick_settings(n_trials=64, budget=3.0, max_epochs=2.0)
    graphs = NumberGraphs(settings, n_train=100_000, n_entities=16_000)
    assert fitting_trials(settings, graphs) == 16
    mine = tuple({"values": {"lr": 0.1}, "origin": "mine"} for _ in range(20))
    assert fitting_trials(settings.model_copy(update={"initial": mine}), graphs) == 20


def test_a_round_on_the_whole_graph_has_penalties_and_negatives_as_they_are() -> None:
    full = TrainConfig(penalty="n3", penalty_entity=0.3, negatives_head=7, epochs=50.0, patience=3)
    settings = quick_settings(n_trials=4, eta=2, budget=2.0, variant="epoch")
    plan = decide(settings, NumberGraphs(settings)).rounds[0].plan
    assert plan.whole
    for fraction in (1.0, 0.9):  # what was asked for may be less than the whole graph that was given
        config = round_config(full, replace(plan, graph_fraction=fraction), settings)
        assert (config.penalty_entity, config.negatives_head, config.patience) == (0.3, 7, None)
        assert config.epochs == 2 * config.valid_every == plan.epochs


def test_the_rail_for_validation_triples_never_leaves_fewer_of_them() -> None:
    dataset = graph_of(3, 900, 4000)
    with_rails, without = (
        decide(settings, SearchGraphs(dataset, settings)).rounds[0].plan
        for settings in (quick_settings(n_trials=8, eta=2, max_epochs=50.0, guard_rails=r) for r in (True, False))
    )
    assert len(dataset.valid) < without.n_valid < with_rails.n_valid


@pytest.mark.parametrize(("n_valid", "g"), [(1_000, 1.0), (999, 0.8)])
def test_where_a_rail_asks_for_most_of_a_graph_all_of_it_is_taken_with_its_own_validation(n_valid, g) -> None:
    settings = quick_settings(n_trials=8, eta=2, max_epochs=50.0, guard_rails=True)
    plans = [r.plan for r in decide(settings, NumberGraphs(settings, n_entities=2_500, n_valid=n_valid)).rounds]
    assert [p.graph_fraction for p in plans] == [g, g, g] and [p.whole for p in plans] == [g == 1] * 3
    assert [p.cost for p in plans] == pytest.approx([p.fidelity for p in plans])
    half = plan_round(1, Fraction(1, 8), Fraction(1), 8, settings, NumberGraphs(settings, n_entities=4_000))
    assert half.graph_fraction == 0.5 and not half.whole


@pytest.mark.parametrize("n_isolated", [None, 999, 1_000, 4_000])
@pytest.mark.parametrize("last_round_holdout", ["random", "match_valid"])
def test_the_last_round_holds_out_isolated_pairs_if_there_are_enough(n_isolated, last_round_holdout) -> None:
    settings = quick_settings(n_trials=16, eta=4, max_epochs=50.0, last_round_holdout=last_round_holdout)
    plans = [r.plan for r in decide(settings, NumberGraphs(settings, isolated=n_isolated)).rounds]
    isolated = last_round_holdout == "match_valid" and n_isolated is not None and n_isolated >= MIN_VALID
    assert [p.isolated for p in plans] == [False, isolated] and not any(p.whole for p in plans)
    assert plans[1].n_valid == (n_isolated if isolated else 5_000) and (ISOLATED_NOTE in plans[1].notes) is isolated
    full = TrainConfig(penalty="n3", penalty_entity=0.4, penalty_relation=0.2)
    weaker = [round_config(full, p, settings).penalty_entity / 0.4 for p in plans]
    assert weaker == pytest.approx([plans[0].graph_fraction, 1.0 if isolated else plans[1].graph_fraction])
    assert Round.from_json(plans[1].to_json()) == plans[1]


def test_the_whole_graph_has_a_validation_of_its_own() -> None:
    settings = quick_settings(n_trials=4, eta=4, variant="epoch", last_round_holdout="match_valid")
    [plan] = [r.plan for r in decide(settings, NumberGraphs(settings, isolated=5_000)).rounds]
    assert plan.whole and not plan.isolated


def test_the_whole_graph_is_preferred_to_isolated_pairs() -> None:
    class OrWhole(NumberGraphs):
        def shape(self, fractions: tuple[float, ...], isolated: bool = False) -> Shape:
            found = super().shape(fractions, isolated)
            return found if isolated else replace(found, whole=True)

    settings = quick_settings(n_trials=4, eta=4, guard_rails=False)
    [plan] = [r.plan for r in decide(settings, OrWhole(settings, isolated=5_000)).rounds]
    assert plan.whole and not plan.isolated and plan.graph_fraction < 1


@pytest.mark.parametrize(("budget", "isolated"), [(1.0, True), (0.9, False)])
def test_a_small_graph_holds_out_any(budget: float, isolated: bool) -> None:
    settings = quick_settings(n_trials=16, eta=16, variant="combined", guard_rails=False, budget=budget)
    [plan] = [r.plan for r in decide(settings, NumberGraphs(settings, isolated=5_000)).rounds]
    assert plan.isolated is isolated is (plan.graph_fraction >= ISOLATED_FROM)


def test_less_than_an_epoch_in_a_full_run_lowers_no_number_of_trials() -> None:
    settings = quick_settings(n_trials=8, eta=2, max_epochs=0.5, guard_rails=True)
    assert fitting_trials(settings, SearchGraphs(graph_of(0, 900, 4000), settings)) == 8
