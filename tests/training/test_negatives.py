"""Negatives: distinct, prefixes of more, truth and known facts masked, drawn from the right distribution."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from grash.training.batches import Batches, Negatives
from grash.training.config import make_config
from oracles import random_triples

CPU = torch.device("cpu")


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
