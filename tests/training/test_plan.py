"""The steps of a run: examples add up exactly, epochs are permutations, partial epochs are real."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from grash.training.batches import Batches, Plan, triples_on
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


def batches_of(n: int, training: str = "1vsall", **values: object) -> tuple[np.ndarray, Batches]:
    train = random_triples(0, n, 20, 3)
    config = make_config({"dim": 4, "training": training, "batch_size": 7, "epochs": 3} | values)
    return train, Batches(train, 20, 3, config, CPU)


@settings(deadline=None, max_examples=30)
@given(st.integers(1, 50), st.integers(0, 2**40))
def test_every_epoch_shows_every_triple_once_in_another_order(n: int, seed: int) -> None:
    train, batches = batches_of(n, seed=seed)
    per_epoch = batches.plan.steps_per_epoch
    orders = []
    for epoch in range(3):
        steps = range(epoch * per_epoch, (epoch + 1) * per_epoch)
        orders.append(np.concatenate([batches.positives(s).triples.numpy() for s in steps]))
        assert sorted(map(tuple, orders[-1])) == sorted(map(tuple, train))
    if n > 20:
        assert not np.array_equal(orders[0], orders[1]) and not np.array_equal(orders[0], train)


def test_any_step_can_be_made_at_any_time() -> None:
    _, batches = batches_of(40)
    later = batches.positives(5).triples
    for step in range(5):
        batches.positives(step)
    assert torch.equal(batches.positives(5).triples, later)


@pytest.mark.parametrize("reciprocal", [False, True])
def test_an_epoch_of_questions_asks_each_question_once_with_all_its_answers(reciprocal: bool) -> None:
    train, batches = batches_of(60, "kvsall", reciprocal=reciprocal)
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
    orders = [batches_of(40, training, seed=s)[1].positives(0).triples.tolist() for s in (0, 0, 1)]
    assert orders[0] == orders[1] != orders[2]


def test_triples_lie_row_after_row_whatever_their_order_was() -> None:
    columns = np.asfortranarray(np.arange(12, dtype=np.int64).reshape(4, 3))
    found = triples_on(columns, torch.device("cpu"))
    assert found.is_contiguous() and found.dtype == torch.int32 and found.tolist() == columns.tolist()
