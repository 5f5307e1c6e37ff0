"""Every method on drawn tables: the rules they share, and what each does, worked by hand."""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np
import pytest
from hypothesis import given
from hypothesis import settings as examples
from hypothesis import strategies as st

from grash.errors import ConfigError, UnknownName
from grash_study import methods as rungs
from grash_study.methods import METHODS, RUNS, SWEEP, Method, read_methods
from grash_study.recorded import Recorded
from study.synthetic import make_table

ALL = {m.name: m for m in (*METHODS, *SWEEP)}


@lru_cache(maxsize=64)
def bench_of(**changes) -> Recorded:
    return Recorded(make_table(**changes))


@pytest.mark.parametrize("name", ALL)
@given(seed=st.integers(0, 10**6), noise=st.sampled_from([0.0, 0.6, 1.0]), diverged=st.sampled_from([0.0, 0.1, 0.8]))
@examples(max_examples=5)
def test_a_method_keeps_its_budget_and_its_costs_only_grow(name, seed, noise, diverged):
    bench = bench_of(n=128, correlation=noise, diverged=diverged)
    trace = ALL[name](bench, seed, 3.0)
    assert trace.cost <= (ALL[name].budget or 3.0) + 1e-9
    costs = [cost for cost, _ in trace.points]
    assert costs == sorted(costs)
    assert all(0 < cost <= trace.cost + 1e-9 for cost in costs)
    assert trace.pick == (trace.points[-1][1] if trace.points else None)
    assert len(set(trace.first)) == len(trace.first) > 0
    assert {m for _, m in trace.points} <= set(trace.first)


@pytest.mark.slow
@pytest.mark.parametrize("name", ALL)
def test_a_method_depends_on_nothing_but_its_seed(name):
    first, other = (Recorded(make_table(n=128, correlation=0.5)) for _ in range(2))
    assert ALL[name](first, 3, 3.0) == ALL[name](other, 3, 3.0)


@pytest.mark.parametrize("name", [n for n, m in ALL.items() if m.run != "autone"])  # it compares different graphs
def test_where_every_fidelity_is_right_the_best_at_hand_is_found(name):
    bench = bench_of(n=128, correlation=1.0)
    for seed in range(3):
        trace = ALL[name](bench, seed, 3.0)
        assert trace.test_mrr(bench) == bench.best_of(trace.first)


@pytest.mark.parametrize("run", RUNS)
@pytest.mark.parametrize("budget", [0.3, 1.0, 2.5, 12.0])
def test_any_budget_suits_and_is_kept(run, budget):
    bench = bench_of(n=24, correlation=0.6, diverged=0.2)
    for seed in range(3):
        assert Method("it", run)(bench, seed, budget).cost <= budget + 1e-9


def test_all_methods_of_a_seed_begin_with_the_same_order():
    bench = bench_of(n=64)
    begins = [ALL[name](bench, 7, 3.0).first[:2] for name in ("GraSH, default", "random search", "Hyperband", "TPE")]
    assert len(set(begins)) == 1


def test_a_method_may_be_a_function_of_one_s_own():
    bench, own = bench_of(n=64), RUNS["hyperband"]
    assert Method("mine", own, {"eta": 2})(bench, 3, 3.0) == Method("it", "hyperband", {"eta": 2})(bench, 3, 3.0)
    with pytest.raises(UnknownName, match="There is no method named 'hyper'. Methods: grash, .*hyperband"):
        Method("it", "hyper")(bench, 0, 3.0)


def test_random_search_makes_three_full_runs_and_takes_the_best():
    trace = ALL["random search"](bench_of(n=64, correlation=0.5), 0, 3.0)
    assert len(trace.first) == 3
    assert trace.cost == pytest.approx(3.0)


def test_what_a_diverged_run_did_not_use_buys_another():
    table = make_table(n=8)
    order = np.random.default_rng(0).permutation(8)
    table.failed[-1, order[:5]] = 0.01
    trace = ALL["random search"](Recorded(table), 0, 3.0)
    assert len(trace.first) == 7  # five cost 0.05 together, and two full runs the rest
    assert trace.cost == pytest.approx(2.05)


def test_one_epoch_leaves_the_budget_for_two_full_runs():
    trace = ALL["one epoch, then the best"](bench_of(n=128, max_epochs=50.0), 0, 3.0)
    assert [len(level) for level in trace.levels] == [52, 2]  # 52/50 + 2·49/50 = 3
    assert trace.cost == pytest.approx(3.0)
    longer = ALL["one epoch, then the best"](bench_of(n=128, max_epochs=100.0), 0, 3.0)
    assert [len(level) for level in longer.levels] == [64, 2]


def test_hyperband_has_three_brackets_that_end_in_one_round():
    trace = ALL["Hyperband"](bench_of(n=128), 0, 3.0)
    assert [len(level) for level in trace.levels] == [32, 16, 6]  # 32, 8, 2 and 8, 2 and 2
    assert trace.cost == pytest.approx(3.0)


def test_kgtuner_costs_about_twenty_as_published_and_is_cut_down_alike():
    bench = bench_of(n=128)
    published = ALL["KGTuner-style, as published"](bench, 0, 3.0)
    assert [len(level) for level in published.levels] == [50, 10]
    assert published.cost == pytest.approx(20.0)
    small = ALL["KGTuner-style"](bench, 0, 3.0)
    assert [len(level) for level in small.levels] == [5, 2]


def test_a_model_finds_what_random_full_runs_do_not():
    bench = bench_of(n=128, smooth=True)
    tpe, random = (
        np.mean([Method(run, run, more)(bench, s, 12.0).test_mrr(bench) for s in range(40)])
        for run, more in (("tpe", {"first": 4}), ("random", {}))
    )
    assert tpe > random + 0.005


@pytest.mark.slow
def test_a_second_wave_brings_better_configurations_into_the_first_round():
    bench = bench_of(n=128, smooth=True, correlation=0.8)
    plain, waves = (
        np.mean([bench.truth[list(ALL[n](bench, s, 3.0).first)].mean() for s in range(20)])
        for n in ("default", "second wave of 1/2")
    )
    assert waves > plain + 0.02


@given(seed=st.integers(0, 1000), eta=st.integers(2, 8), n=st.integers(2, 64), epochs=st.sampled_from([20.0, 100.0]))
@examples(max_examples=60)
def test_rungs_decides_as_the_search_does(seed, eta, n, epochs):
    bench = bench_of(n=64, correlation=0.6, seed=seed % 5, max_epochs=epochs)
    real = Method("real", "grash", {"eta": eta, "n_trials": n, "carry_over": False})(bench, seed, 3.0)
    mine = Method("mine", "rungs", {"eta": eta, "n": n, "carry_over": False})(bench, seed, 3.0)
    assert mine.first == real.first
    assert mine.levels == real.levels
    assert mine.pick == real.pick


def test_rungs_has_the_epoch_variant_and_can_continue():
    bench = bench_of(n=64, correlation=0.6)
    cold = Method("cold", "rungs", {"lean": 0.0})(bench, 0, 3.0)
    on = Method("on", "rungs", {"lean": 0.0, "continues": True})(bench, 0, 3.0)
    assert cold.cost == pytest.approx(3.0)
    assert on.cost == pytest.approx(3.0)
    assert [len(level) for level in on.levels] == [64, 16, 4]


def test_ties_advance_together_and_the_next_round_pays_for_them():
    table = make_table(n=16)
    table.valid[:] = np.where(np.arange(16) < 8, 0.3, 0.1)[None, None]
    bench = Recorded(table)
    plain = Method("plain", "rungs", {"n": 16})(bench, 0, 3.0)
    tied = Method("tied", "rungs", {"n": 16, "ties": 1.0})(bench, 0, 3.0)
    assert [len(level) for level in plain.levels] == [16, 4]
    assert [len(level) for level in tied.levels] == [16, 8]
    assert tied.cost == pytest.approx(3.0)


@pytest.mark.parametrize("fidelity", [1 / 64, 1 / 16, 1 / 4, 1.0])
def test_a_fidelity_is_split_into_graph_and_epochs(fidelity):
    bench = bench_of(n=4)
    for lean in (0.0, 0.25, 0.5, 1.0):
        g, e = rungs.split(bench, fidelity, lean=lean)
        assert g * e == pytest.approx(fidelity)
        assert g == pytest.approx(fidelity**lean)


def test_the_guard_rails_of_rungs_can_be_changed():
    bench = bench_of(n=4)
    g, e = rungs.split(bench, 1 / 64, least=rungs.smallest_graph(bench, 15_000))
    assert bench.shape((g,)).n_entities >= 14_990
    assert g * e == pytest.approx(1 / 64)
    assert e * bench.max_epochs >= 1 - 1e-9


def test_wrong_rounds_are_refused_in_words():
    bench = bench_of(n=64)
    with pytest.raises(ConfigError, match="give 3 shares above 0 that sum to at most 1"):
        Method("m", "rungs", {"shares": (0.9, 0.9, 0.1)})(bench, 0, 3.0)
    with pytest.raises(ConfigError, match="2 values for 3 rounds"):
        Method("m", "rungs", {"lean": (0.5, 0.5)})(bench, 0, 3.0)


def test_a_file_lists_methods(tmp_path):
    file = tmp_path / "mine.yaml"
    file.write_text("- {name: a, eta: 3}\n- {name: b, run: rungs, sizes: [32, 8], ties: 1}\n")
    default, a, b = read_methods(file)
    assert default == SWEEP[0]
    assert a == Method("a", "grash", {"eta": 3})
    assert b == Method("b", "rungs", {"sizes": (32, 8), "ties": 1})
    for method in (a, b):
        assert method(bench_of(n=64), 0, 3.0).pick is not None


@pytest.mark.parametrize(
    ("text", "sentence"),
    [("name: a", "should be a list of methods"), ("- {eta: 3}", "give a name"),
     ("- {name: a, run: bohb}", "is not a method"),
     ("- {name: a, etta: 3}", "'etta' is not a setting. Did you mean eta")],
)  # fmt: skip
def test_a_wrong_file_of_methods_is_refused_in_words(tmp_path, text, sentence):
    file = tmp_path / "mine.yaml"
    file.write_text(text)
    with pytest.raises(ConfigError, match=sentence):
        read_methods(file)


def test_a_small_pool_has_too_few_for_some_methods():
    bench = bench_of(n=40)
    for name in ("n = 96", "rounds of 64, 8, 2"):
        with pytest.raises(ConfigError, match="more than the 40 configurations of the table"):
            ALL[name](bench, 0, 3.0)
    assert ALL["n = 32"](bench, 0, 3.0).pick is not None
    assert not math.isnan(ALL["default"](bench, 0, 3.0).cost)
