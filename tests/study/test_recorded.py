"""The table in the place of an engine: its scores, its graphs, and searches on it by the real decisions."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import settings as examples
from hypothesis import strategies as st

from grash.errors import ConfigError, InputError
from grash.search.schedule import MIN_VALID, cost_of, min_entities
from grash_study.methods import Method
from grash_study.recorded import Recorded
from study.synthetic import EPOCHS, make_table, score
from table_engine import bill, decide

ANY_PART = st.floats(1 / 200, 1.0)


def bench_of(**changes) -> Recorded:
    return Recorded(make_table(**changes))


@given(g=ANY_PART, e=st.floats(1 / 500, 0.999), seed=st.integers(0, 20))
def test_a_trial_scores_the_better_of_the_table_at_half_and_at_the_end(g, e, seed):
    table = make_table(n=6, seed=seed, correlation=0.5, diverged=0.3)
    found = Recorded(table).scores(g, e)
    for i in range(table.n):
        if e >= table.failed[table.neighbors(g)[0], i]:
            assert math.isnan(found[i])
        else:
            assert found[i] == pytest.approx(max(score(table, i, g, e), score(table, i, g, e / 2)), abs=1e-12)


def test_a_full_run_scores_the_best_of_all_its_validations_and_a_trial_the_better_of_two():
    table = make_table(n=4)
    table.valid[:, 7, 2] = 0.9
    bench = Recorded(table)
    assert bench.full_scores[2] == 0.9
    for g in (1 / 64, 0.5, 1.0):
        assert bench.scores(g, 1.0)[2] == max(score(table, 2, g, 1.0), score(table, 2, g, 0.5)) < 0.9
    for run in ("random", "one-epoch", "tpe", "kgtuner", "autone"):
        assert Method("it", run)(bench, 0, 9.0).pick == 2, run


@given(exponent=st.floats(-6, -1), e=st.floats(1 / 100, 1.0), seed=st.integers(0, 20))
def test_curves_between_two_graphs_are_interpolated(exponent, e, seed):
    table, g = make_table(n=5, seed=seed, correlation=0.4), 2.0**exponent
    low, high = 2.0 ** math.floor(exponent), 2.0 ** math.ceil(exponent)
    share = exponent - math.floor(exponent)
    for i in range(5):
        wanted = (1 - share) * score(table, i, low, e) + share * score(table, i, high, e)
        assert score(table, i, g, e) == pytest.approx(wanted, abs=1e-5)


def test_the_whole_graph_answers_for_itself_alone():
    table = make_table(n=5, correlation=0.2)
    bench = Recorded(table)
    for g in (0.5, 0.6, 0.8, 0.99):
        np.testing.assert_array_equal(bench.scores(g, 0.3), bench.scores(0.5, 0.3))
    assert (bench.scores(1.0, 0.3) != bench.scores(0.99, 0.3)).all()
    np.testing.assert_array_equal(bench.scores(1 / 500, 0.3), bench.scores(1 / 64, 0.3))


def test_a_divergence_between_two_graphs_is_that_of_the_nearer_one():
    table = make_table(n=3, correlation=0.3)
    table.failed[0, 1] = 0.25  # on 1/64 only
    bench = Recorded(table)
    near, far = 2**-5.8, 2**-5.2
    assert math.isnan(bench.scores(near, 0.5)[1]) and bench.part_seen(near, 0.5)[1] == 0.5
    assert bench.scores(far, 0.5)[1] == bench.scores(1 / 32, 0.5)[1] and bench.part_seen(far, 0.5)[1] == 1
    assert bench.scores(far, 0.5)[0] != bench.scores(1 / 32, 0.5)[0]


def test_epochs_at_which_a_graph_was_not_validated_are_interpolated():
    table = make_table(n=3)
    table.valid[0, 5] = np.nan
    share = (EPOCHS[5] - EPOCHS[4]) / (EPOCHS[6] - EPOCHS[4])
    wanted = (1 - share) * table.valid[0, 4] + share * table.valid[0, 6]
    np.testing.assert_allclose(Recorded(table).curves[0, 6], wanted)


def test_members_without_all_their_trainings_take_no_part():
    table = make_table(n=15)
    table.valid[2, :, 1] = np.nan
    table.test["mrr"][3] = np.nan
    bench = Recorded(table)
    assert bench.members.tolist() == [0, 2, *range(4, 15)]
    np.testing.assert_array_equal(bench.truth, table.test["mrr"][bench.members])


def test_a_rise_is_what_the_second_validation_adds_to_the_first():
    bench = bench_of(n=12)
    table, fractions = bench.table, bench.table.epoch_fractions
    g, half, whole = bench.fractions[2], 0.25, 0.5
    assert {half, whole} <= set(fractions.tolist() if hasattr(fractions, "tolist") else fractions)
    for i, member in enumerate(bench.members):
        first, second = (score(table, int(member), g, e) for e in (half, whole))
        assert bench.rises(g, whole)[i] == pytest.approx(max(0.0, second - first))
        assert bench.scores(g, whole)[i] == pytest.approx(max(first, second))


def test_a_table_with_one_whole_member_is_refused():
    table = make_table(n=3)
    table.test["mrr"][:2] = np.nan
    with pytest.raises(InputError, match="has 1 configurations that were trained on every graph"):
        Recorded(table)


@pytest.mark.parametrize("variant", ["combined", "graph", "epoch"])
@pytest.mark.parametrize("preset", ["default", "paper"])
def test_a_search_on_a_table_is_the_search_that_is_decided_from_events(variant, preset):
    bench = bench_of(n=40, correlation=0.7)
    made = bench.settings(preset, 3.0, (("variant", variant), ("n_trials", 30)))
    numbers = np.random.default_rng(1).permutation(bench.n)[: bench.n_first(made)].tolist()
    found = bench.search(numbers, made)

    def at(number: int) -> tuple[float, float]:
        plan = found.rounds[number - 1].plan
        return (1.0 if plan.whole else plan.graph_fraction), min(1.0, plan.epochs / made.max_epochs)

    def score(number: int, i: int) -> float:
        return float(bench.scores(*at(number))[numbers[i]])

    def validations(number: int, i: int) -> list[float]:
        return [score(number, i) - float(bench.rises(*at(number))[numbers[i]]), score(number, i)]

    slow = decide(made, bench, score=score, validations=validations)
    assert slow.winner == found.winner
    assert [r.plan for r in slow.rounds] == [r.plan for r in found.rounds]
    assert [r.results for r in slow.rounds] == [
        {n: replace(r, message="ok") for n, r in past.results.items()} for past in found.rounds
    ]
    assert bench.planned(made)[0] == found.rounds[0].plan


@given(seed=st.integers(0, 10**6), diverged=st.floats(0, 0.9), eta=st.integers(2, 8), budget=st.floats(0.5, 6))
@examples(max_examples=40)
def test_a_search_never_costs_more_than_its_budget(seed, diverged, eta, budget):
    bench = bench_of(n=32, seed=seed % 7, diverged=diverged, correlation=0.5)
    made = bench.settings("default", round(budget, 3), (("eta", eta),))
    numbers = np.random.default_rng(seed).permutation(bench.n)[: bench.n_first(made)].tolist()
    found = bench.search(numbers, made)
    assert found.finished
    assert bill(found, made, bench.n_train) <= made.full_budget


def test_a_diverged_trial_is_billed_for_what_it_saw():
    table = make_table(n=8)
    table.failed[:, 3] = 1e-3
    bench = Recorded(table)
    made = bench.settings("default", 3.0, (("n_trials", 8),))
    first = bench.search(range(8), made).rounds[0]
    assert first.results[3].status == "diverged"
    assert 0 < first.results[3].cost < float(cost_of(first.plan.positives, made, bench.n_train)) / 50


def test_a_search_whose_trials_all_diverge_fails_in_words():
    bench = bench_of(n=8, diverged=1.0)
    found = bench.search(range(8), bench.settings("default", 3.0, ()))
    assert found.winner is None
    assert "No trial of round 1 has a score (8 diverged)" in found.failed


def test_the_guard_rails_of_the_search_are_known_exactly():
    table = make_table()
    bench = Recorded(table)
    between = bench.smallest_fraction(min_entities(bench), MIN_VALID)
    assert 1 / 64 <= between <= 1 / 32  # 2,000 of 20,000 entities, which go by the root
    table.meta["guard_rails"] = {"n_entities": min_entities(bench), "n_valid": MIN_VALID, "fraction": 0.0123}
    assert Recorded(table).smallest_fraction(min_entities(bench), MIN_VALID) == 0.0123
    assert bench.smallest_fraction(10**9, 1) == 1.0


def test_entities_between_recorded_graphs_are_found_where_their_sizes_cross():
    bench = bench_of(n=4)
    for wanted in (2600, 5000, 14_000, 19_999):
        g = bench.smallest_fraction(wanted, 1)
        assert bench.shape((g,)).n_entities == pytest.approx(wanted, abs=2) or bench.shape((g,)).whole


def test_a_graph_that_fits_only_without_its_validation_part_is_the_whole_one():
    bench = bench_of(n=4, n_train=20_000)
    assert bench.shape((0.9,)).whole  # 4,000 of 20,000 would be held out
    assert not bench.shape((0.7,)).whole


@pytest.mark.parametrize(
    ("name", "value"),
    [("warm_start", "weights"), ("budget_unit", "scores"), ("scaled_penalties", True), ("scaled_penalties", False),
     ("reduction", "k-core"), ("degree", "triples"), ("negatives_floor", 0.5), ("guarded_split", False),
     ("space", "wide"), ("space", {"lr": 0.1}), ("proposals", "sobol"), ("proposals", "portfolio"), ("dim", 512),
     ("models", "transe"), ("model", "transe"), ("max_epochs", 400), ("fixed", {"lr": 0.1}),
     ("initial", ({"lr": 0.1},)), ("final_train", True), ("threads", 4), ("max_retries", 0)],
)  # fmt: skip
def test_what_a_table_cannot_judge_is_refused(name, value):
    for run in ("grash", "tpe-rounds"):
        with pytest.raises(ConfigError, match="cannot be judged on a table"):
            Method("it", run, {name: value})(bench_of(n=8), 0, 3.0)


@pytest.mark.parametrize("preset", ["default", "paper", "paper-text"])
def test_settings_of_trainings_in_a_preset_are_not_refused(preset):
    made = bench_of(n=8).settings(preset, 2.0, (("eta", 2), ("trend", 1.0), ("n_trials", 4), ("seed", 3)))
    assert (made.budget, made.eta, made.trend, made.n_trials, made.seed) == (2.0, 2, 1.0, 4, 3)


def test_more_trials_than_the_pool_has_are_refused():
    bench = bench_of(n=10)
    assert bench.n_first(bench.settings("default", 3.0, ())) == 10
    with pytest.raises(ConfigError, match="n_trials=20 is more than the 10 configurations"):
        bench.n_first(bench.settings("default", 3.0, (("n_trials", 20),)))
