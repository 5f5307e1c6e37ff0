"""Pool members as points, what TPE proposes among them, and draws."""

from __future__ import annotations

import numpy as np
import pytest

from grash.errors import UnknownName
from grash_study.methods import Proposer, draw, make_points, points_of
from grash_study.recorded import Recorded
from study.synthetic import make_table, pool_values


@pytest.fixture(scope="module")
def bench() -> Recorded:
    return Recorded(make_table(n=96, smooth=True))


@pytest.mark.parametrize("space", ["paper", "default"])
def test_points_are_in_the_unit_cube_and_differ(space):
    values = list(pool_values(40, space))
    points = make_points({"space": space, "model": "complex", "dim": 8, "n_entities": 20_000}, values)
    assert points.numbers.min() >= 0
    assert points.numbers.max() <= 1
    assert points.numbers.shape[1] + points.codes.shape[1] == len(points.space.searched)
    assert len(np.unique(points.features, axis=0)) == 40


def test_features_have_the_distances_of_points(bench):
    points = points_of(bench)
    for i, j in ((0, 1), (5, 40), (7, 90)):
        squares = np.square(points.numbers[i] - points.numbers[j]).sum()
        both = points.used[[i, j], points.numbers.shape[1] :].all(axis=0)  # a choice that one lacks counts half
        choices = np.where(both, points.codes[i] != points.codes[j], (points.codes[i] != points.codes[j]) / 2).sum()
        assert np.square(points.features[i] - points.features[j]).sum() == pytest.approx(squares + choices)


def test_a_parameter_that_is_not_used_is_in_the_middle(bench):
    points = points_of(bench)
    names = [n for n in points.space.searched if points.space.parameters[n].kind != "choice"]
    column = names.index("init_std")
    for i, values in enumerate(bench.table.configurations):
        assert (points.numbers[i, column] == 0.5) == (values["init"] != "normal") == (not points.used[i, column])


def test_a_member_is_nearest_to_itself_unless_it_is_taken(bench):
    points, free = points_of(bench), np.ones(96, bool)
    assert points.nearest(points.numbers[41], points.codes[41], free) == 41
    free[41] = False
    assert points.nearest(points.numbers[41], points.codes[41], free) != 41
    free[:] = False
    free[12] = True
    assert points.nearest(points.numbers[41], points.codes[41], free) == 12


def test_tpe_proposes_good_members_and_takes_what_diverged_as_the_worst(bench):
    def proposed(scores) -> list[float]:
        proposer, free, truth = Proposer(points_of(bench)), np.ones(96, bool), []
        for member in range(0, 96, 2):
            proposer.see(member, scores[member])
            free[member] = False
        for _ in range(8):
            member = proposer.propose(free)
            truth.append(bench.truth[member])
            free[member] = False
        return truth

    assert np.mean(proposed(bench.truth)) > bench.truth[1::2].mean() + 0.05
    best = bench.truth > np.median(bench.truth)
    diverged, least = (np.where(best, value, bench.truth) for value in (np.nan, -0.5))
    assert proposed(diverged) == proposed(least) != proposed(bench.truth)


@pytest.mark.parametrize("how", ["random", "portfolio", "waves"])
def test_draws_are_different_members(bench, how):
    found = draw(bench, np.random.default_rng(2), 40, how=how, scores=bench.truth)
    assert len(found) == len(set(found)) == 40
    assert found == draw(bench, np.random.default_rng(2), 40, how=how, scores=bench.truth)


@pytest.mark.parametrize(("batch", "uniform"), [(1, 0.5), (3, 0.0), (None, 1.0)])
def test_a_wave_starts_with_the_random_order_and_by_chance_continues_it(bench, batch, uniform):
    order = draw(bench, np.random.default_rng(3), 20)
    found = draw(
        bench, np.random.default_rng(3), 20, how="waves", scores=bench.truth, batch=batch, uniform=uniform
    )  # fmt: skip
    assert found[:10] == order[:10] and len(set(found)) == 20
    assert (found == order) == (uniform == 1.0)


def test_an_unknown_draw_is_refused(bench):
    with pytest.raises(UnknownName, match="no draw named 'sobol'"):
        draw(bench, np.random.default_rng(0), 4, how="sobol")
