"""Pool members as points, and what models of them say: densities, Gaussian processes, draws."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import settings as examples
from hypothesis import strategies as st

from grash.errors import UnknownName
from grash_study.draws import Process, draw, matern, next_member, promise, propose_in_turn
from grash_study.recorded import Recorded, points_of
from study.synthetic import make_table, pool_values


@pytest.fixture(scope="module")
def bench() -> Recorded:
    return Recorded(make_table(n=96, smooth=True))


@pytest.mark.parametrize("space", ["paper", "default"])
def test_points_lie_in_the_cube_and_tell_members_apart(space):
    values = list(pool_values(40, space))
    points = points_of({"space": space, "model": "complex", "dim": 8, "n_entities": 20_000}, values)
    assert points.numbers.min() >= 0
    assert points.numbers.max() <= 1
    assert points.numbers.shape[1] + points.codes.shape[1] == len(points.space.searched)
    assert (points.distances[~np.eye(40, dtype=bool)] > 0).all()
    np.testing.assert_allclose(points.distances, points.distances.T)
    assert points.distances.diagonal().max() == 0


def test_a_parameter_that_does_not_count_is_in_the_middle(bench):
    names = [n for n in bench.points.space.searched if bench.points.space.parameters[n].kind != "choice"]
    column = names.index("init_std")
    for i, values in enumerate(bench.table.configurations):
        assert (bench.points.numbers[i, column] == 0.5) == (values["init"] != "normal")


def test_a_good_members_neighbors_are_promising(bench):
    seen = list(range(0, 96, 2))
    rated = promise(bench.points, seen, bench.truth[seen].tolist())
    unseen = np.arange(1, 96, 2)
    order = np.argsort(-rated[unseen])
    assert bench.truth[unseen[order[:12]]].mean() > bench.truth[unseen[order[-12:]]].mean() + 0.1


def test_a_diverged_member_is_worse_than_any_other(bench):
    with_nan = promise(bench.points, [3, 5, 7], [0.2, float("nan"), 0.1], top=0.3)
    with_least = promise(bench.points, [3, 5, 7], [0.2, 0.0, 0.1], top=0.3)
    np.testing.assert_array_equal(with_nan, with_least)


def test_what_is_not_free_is_not_proposed(bench):
    free = np.zeros(96, bool)
    free[41] = True
    assert next_member(bench.points, [1, 2], [0.1, 0.2], free) == 41


@given(first=st.integers(0, 20), count=st.integers(1, 30), batch=st.integers(1, 9), uniform=st.floats(0, 1))
@examples(max_examples=30)
def test_proposals_are_different_members_and_as_many_as_asked(bench, first, count, batch, uniform):
    rng = np.random.default_rng(0)
    order = rng.permutation(96).tolist()
    asked: list[int] = []

    def score(i: int) -> float:
        asked.append(i)
        return float(bench.truth[i])

    found = propose_in_turn(bench.points, order, count, score, first=first, batch=batch, uniform=uniform, rng=rng)
    assert len(found) == len(set(found)) == count
    assert found[: min(first, count)] == order[: min(first, count)]
    assert asked == found


@pytest.mark.parametrize("how", ["random", "portfolio", "waves"])
def test_draws_are_different_members(bench, how):
    found = draw(bench, np.random.default_rng(2), 40, how=how, scores=bench.truth)
    assert len(found) == len(set(found)) == 40
    assert found == draw(bench, np.random.default_rng(2), 40, how=how, scores=bench.truth)


def test_an_unknown_draw_is_refused(bench):
    with pytest.raises(UnknownName, match="no draw named 'sobol'"):
        draw(bench, np.random.default_rng(0), 4, how="sobol")


def test_the_process_is_the_posterior_of_the_textbook():
    rng = np.random.default_rng(1)
    places, marks = rng.random((9, 3)), np.array([[0.0], [1.0]])
    far = np.sqrt(np.square(places[:, None] - places[None]).sum(axis=2))
    process = Process(far, marks)
    assert process.guess(1)[1].tolist() == [1.0] * 9
    seen = [(0, 0, 0.1), (3, 0, 0.4), (5, 1, 0.3), (7, 1, 0.35)]
    for member, graph, score in seen:
        process.see(member, graph, score)
    mean, deviation = process.guess(1)
    members, graphs = [m for m, _, _ in seen], [g for _, g, _ in seen]
    scores = np.array([s for _, _, s in seen])
    known = (scores - scores.mean()) / scores.std()
    best = None
    for length in (0.5, 1.0, 2.0):
        for reach in (0.5, 1.5):
            near, alike = matern(far / length), matern(np.abs(marks - marks.T) / reach)
            inner = near[np.ix_(members, members)] * alike[np.ix_(graphs, graphs)] + 1e-2 * np.eye(4)
            likely = -0.5 * known @ np.linalg.inv(inner) @ known - 0.5 * np.log(np.linalg.det(inner))
            cross = near[:, members] * alike[1, graphs]
            if best is None or likely > best[0]:
                inverse = np.linalg.inv(inner)
                best = (likely, cross @ inverse @ known, 1 - np.einsum("ij,jk,ik->i", cross, inverse, cross))
    np.testing.assert_allclose(mean, scores.mean() + scores.std() * best[1])
    np.testing.assert_allclose(deviation, scores.std() * np.sqrt(best[2]))
