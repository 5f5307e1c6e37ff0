"""Batches: epochs are permutations, negatives are distinct, masked and drawn from the right distribution."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from grash.training.batches import Batches, Negatives, Plan, triples_on
from grash.training.config import make_config
from grash.training.loop import next_validation
from oracles import random_triples

CPU = torch.device("cpu")
EPOCHS = st.one_of(st.floats(0.001, 9), st.integers(1, 5).map(float), st.sampled_from([2.37, 0.5, 1e-9]))


@given(st.integers(1, 60), st.integers(1, 70), EPOCHS)
def test_examples_add_up_to_exactly_what_was_asked(n: int, batch_size: int, epochs: float) -> None:
    plan = Plan(n, batch_size, epochs)
    assert plan.total == max(1, round(epochs * n))
    seen = 0
    for step in range(plan.n_steps):
        assert plan.examples_before(step) == seen
        epoch, first, last = plan.positions(step)
        assert epoch * n + first == seen and first < last <= min(n, first + batch_size)
        seen += last - first
    assert seen == plan.total == plan.examples_before(plan.n_steps)


@given(st.integers(1, 60), st.integers(1, 70), EPOCHS, st.data())
def test_steps_at_is_the_first_step_that_has_seen_enough(n: int, size: int, epochs: float, data: st.DataObject) -> None:
    plan = Plan(n, size, epochs)
    examples = data.draw(st.integers(0, plan.total))
    step = plan.steps_at(examples)
    assert plan.examples_before(step) >= examples
    assert step == 0 or plan.examples_before(step - 1) < examples


def test_a_fraction_of_an_epoch_cuts_the_last_batch() -> None:
    plan = Plan(100, 32, 2.37)
    assert (plan.total, plan.steps_per_epoch, plan.n_steps) == (237, 4, 10)
    assert [plan.positions(s)[1:] for s in (3, 7, 8, 9)] == [(96, 100), (96, 100), (0, 32), (32, 37)]


def batches_with(n: int, training: str = "1vsall", **values: object) -> tuple[np.ndarray, Batches]:
    train = random_triples(0, n, 20, 3)
    config = make_config({"dim": 4, "training": training, "batch_size": 7, "epochs": 3} | values)
    return train, Batches(train, 20, 3, config, CPU)


@settings(deadline=None, max_examples=30)
@given(st.integers(1, 50), st.integers(0, 2**40))
def test_every_epoch_shows_every_triple_once_in_another_order(n: int, seed: int) -> None:
    train, batches = batches_with(n, seed=seed)
    per_epoch = batches.plan.steps_per_epoch
    orders = []
    for epoch in range(3):
        steps = range(epoch * per_epoch, (epoch + 1) * per_epoch)
        orders.append(np.concatenate([batches.positives(s).triples.numpy() for s in steps]))
        assert sorted(map(tuple, orders[-1])) == sorted(map(tuple, train))
    if n > 20:
        assert not np.array_equal(orders[0], orders[1]) and not np.array_equal(orders[0], train)


def test_any_step_can_be_made_at_any_time() -> None:
    _, batches = batches_with(40)
    later = batches.positives(5).triples
    for step in range(5):
        batches.positives(step)
    assert torch.equal(batches.positives(5).triples, later)


@pytest.mark.parametrize("reciprocal", [False, True])
def test_an_epoch_of_questions_asks_each_question_once_with_all_its_answers(reciprocal: bool) -> None:
    train, batches = batches_with(60, "kvsall", reciprocal=reciprocal)
    asked: dict[tuple[str, int, int], set[int]] = {}
    for step in range(batches.plan.steps_per_epoch):
        groups = batches.questions(step)
        assert sum(len(g.known) for g in groups) <= 7
        for g in groups:
            for row, (known, relation) in enumerate(zip(g.known.tolist(), g.relations.tolist())):
                side = "head" if reciprocal and relation >= 3 else g.side  # an inverse relation asks for heads
                assert (side, known, relation % 3) not in asked
                asked[side, known, relation % 3] = set(g.answers[g.rows == row].tolist())
    wanted: dict[tuple[str, int, int], set[int]] = {}
    for h, r, t in train.tolist():
        wanted.setdefault(("tail", h, r), set()).add(t)
        wanted.setdefault(("head", t, r), set()).add(h)
    assert asked == wanted


@given(st.integers(1, 60), st.integers(1, 30), st.floats(0.01, 6), st.floats(0.05, 9))
@settings(deadline=None, max_examples=60)
def test_validations_come_at_multiples_and_at_the_end(n: int, size: int, epochs: float, every: float) -> None:
    config = make_config({"dim": 4, "training": "1vsall", "batch_size": size, "epochs": epochs, "valid_every": every})
    batches = Batches(random_triples(0, n, 20, 3), 20, 3, config, CPU)
    plan, steps = batches.plan, [0]
    while steps[-1] < plan.n_steps:
        steps.append(next_validation(steps[-1], batches, config))
        assert steps[-1] > steps[-2]
    wanted = {plan.n_steps}
    number = 1
    while number * every * n < plan.total:
        wanted.add(plan.steps_at(round(number * every * n)))
        number += 1
    assert set(steps[1:]) == wanted - {0}


@pytest.mark.parametrize("training", ["negative_sampling", "1vsall"])
def test_the_seed_changes_the_order(training: str) -> None:
    orders = [batches_with(40, training, seed=s)[1].positives(0).triples.tolist() for s in (0, 0, 1)]
    assert orders[0] == orders[1] != orders[2]


def test_triples_lie_row_after_row_whatever_their_order_was() -> None:
    columns = np.asfortranarray(np.arange(12, dtype=np.int64).reshape(4, 3))
    found = triples_on(columns, torch.device("cpu"))
    assert found.is_contiguous() and found.dtype == torch.int32 and found.tolist() == columns.tolist()


def batches_of(train: np.ndarray, n_entities: int, **values: Any) -> Batches:
    config = make_config({"dim": 4, "batch_size": 6, "epochs": 50} | values)
    return Batches(train, n_entities, 3, config, CPU)


def masked(negatives: Negatives, batch_size: int) -> torch.Tensor:
    """(B, N) where a step sets a score to −∞."""
    scores = torch.zeros(batch_size, negatives.ids.shape[-1])
    negatives.mask(scores)
    if negatives.real is not None and negatives.rows is not None and negatives.columns is not None:
        orders: dict[tuple[int, int], set[bool]] = {}  # which write comes last must not matter
        for r, c, real in zip(negatives.rows.tolist(), negatives.columns.tolist(), negatives.real.tolist()):
            orders.setdefault((r, c), set()).add(real)
        assert all(len(written) == 1 for written in orders.values()), "two entries meet at one place and disagree"
    return scores == -torch.inf


SAMPLING = st.fixed_dictionaries(
    {
        "negatives_shared": st.booleans(),
        "negatives_replacement": st.booleans(),
        "negatives_sampling": st.sampled_from(["uniform", "frequency"]),
        "negatives_filtered": st.booleans(),
        "seed": st.integers(0, 2**40),
    }
)


@settings(deadline=None, max_examples=150)
@given(SAMPLING, st.integers(1, 9), st.integers(1, 12), st.integers(0, 30))
def test_the_truth_and_known_facts_are_masked_and_nothing_else(
    sampling: dict[str, Any], n_entities: int, count: int, step: int
) -> None:
    train = random_triples(sampling["seed"] % 1000, 25, n_entities, 2)
    batches = batches_of(train, n_entities, negatives_head=count, negatives_tail=count, **sampling)
    batch = batches.positives(step)
    known = {(h, r, t) for h, r, t in train.tolist()} if sampling["negatives_filtered"] else set()
    for side, negatives in batch.negatives.items():
        hidden = masked(negatives, len(batch.triples))
        ids = negatives.ids.expand(len(batch.triples), -1)
        assert int(ids.min()) >= 0 and int(ids.max()) < n_entities
        for i, (h, r, t) in enumerate(batch.triples.tolist()):
            for j, e in enumerate(ids[i].tolist()):
                made = (h, r, e) if side == "tail" else (e, r, t)
                assert bool(hidden[i, j]) == (made == (h, r, t) or made in known)


@settings(deadline=None, max_examples=100)
@given(SAMPLING, st.integers(1, 15), st.integers(1, 20), st.integers(1, 20))
def test_distinct_without_replacement_and_fewer_are_a_prefix_of_more(
    sampling: dict[str, Any], n_entities: int, few: int, more: int
) -> None:
    train = random_triples(3, 25, n_entities, 2)
    few, more = min(few, more), max(few, more)
    ids = {}
    for count in (few, more):
        batch = batches_of(train, n_entities, negatives_head=count, negatives_tail=count, **sampling).positives(4)
        ids[count] = [n.ids if n.ids.dim() == 2 else n.ids[None] for n in batch.negatives.values()]
    for small, large in zip(ids[few], ids[more]):
        if sampling["negatives_replacement"]:
            assert small.shape[1] == few and large.shape[1] == more
        else:
            assert large.shape[1] == min(more, n_entities)
            assert all(len(set(row)) == len(row) for row in large.tolist())
        assert torch.equal(large[:, : small.shape[1]], small)


def test_sides_steps_and_positives_have_their_own_draws() -> None:
    train = random_triples(0, 60, 1000, 2)
    own = batches_of(train, 1000, negatives_head=20, negatives_tail=20, negatives_shared=False)
    first, second = own.positives(0), own.positives(1)
    rows = [*first.negatives["head"].ids.tolist(), *first.negatives["tail"].ids.tolist()]
    rows += second.negatives["head"].ids.tolist()
    assert len({tuple(row) for row in rows}) == len(rows) == 18
    shared = batches_of(train, 1000, negatives_head=20, negatives_tail=0).positives(0)
    assert shared.negatives["head"].ids.shape == (20,) and "tail" not in shared.negatives


@pytest.mark.parametrize("shared", [True, False])
@pytest.mark.parametrize("replacement", [True, False])
@pytest.mark.parametrize("sampling", ["uniform", "frequency"])
def test_entities_are_drawn_in_proportion(sampling: str, replacement: bool, shared: bool) -> None:
    train = np.array([[0, 0, 1]] * 10 + [[0, 0, 2]] * 4 + [[3, 0, 4]], np.int32)  # counts + 1: 15 11 5 2 2 1
    batches = batches_of(
        train, 6, negatives_head=1, negatives_tail=0, negatives_shared=shared, epochs=3000,
        negatives_replacement=replacement, negatives_sampling=sampling,
    )  # fmt: skip
    drawn = torch.cat([batches.positives(s).negatives["head"].ids.reshape(-1) for s in range(3000)])
    counts = np.bincount(drawn.numpy(), minlength=6)
    weights = np.array([15, 11, 5, 2, 2, 1]) if sampling == "frequency" else np.ones(6)
    expected = weights / weights.sum() * counts.sum()
    assert ((counts - expected) ** 2 / expected).sum() < 5 + 5 * math.sqrt(10)


def test_weighted_draws_without_replacement_follow_successive_draws() -> None:
    train = np.array([[0, 0, 1]] * 4 + [[2, 0, 2]], np.int32)  # weights 5, 5, 3
    batches = batches_of(
        train, 3, negatives_head=2, negatives_tail=0, epochs=4000, batch_size=5, negatives_sampling="frequency"
    )
    pairs = [tuple(batches.positives(s).negatives["head"].ids.tolist()) for s in range(4000)]
    both = sum(p in ((0, 2), (2, 0)) for p in pairs) / 4000
    wanted = 5 / 13 * 3 / 8 + 3 / 13 * 5 / 10
    assert abs(both - wanted) < 5 * math.sqrt(wanted / 4000)


@pytest.mark.parametrize("every", [1e-12, 1e-9, 1e-3])
def test_validations_more_often_than_steps_come_after_every_step(every: float) -> None:
    config = make_config({"dim": 4, "training": "1vsall", "batch_size": 7, "epochs": 2.5, "valid_every": every})
    batches = Batches(random_triples(0, 60, 20, 3), 20, 3, config, CPU)
    steps = [next_validation(step, batches, config) for step in range(batches.plan.n_steps)]
    assert steps == list(range(1, batches.plan.n_steps + 1))
