"""A space: streams by name, conditions, what lies inside, what a training would refuse."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from grash.errors import ConfigError
from grash.search.named_spaces import SPACES, space_of
from grash.search.space import Space, make_space
from grash.training.config import make_config

SMALL = {
    "lr": {"type": "float", "low": 0.001, "high": 1.0, "log": True},
    "penalty": {"type": "categorical", "choices": ["none", "l2", "n3"]},
    "penalty_entity": {"type": "float", "low": 1e-6, "high": 0.1, "log": True, "when": {"penalty": ["l2", "n3"]}},
    "negatives_head": {"type": "int", "low": 1, "high": 100},
    "batch_size": 256,
}


def points_of(space: Space, values: dict[str, Any]) -> list[float]:
    """The points that give these values; 0.5 where a parameter is not in use."""
    return [space.parameters[n].point(values[n]) if n in values else 0.5 for n in space.searched]


def small(**changes: Any) -> Space:
    return make_space({**SMALL, **changes})


def test_the_columns_are_the_searched_parameters() -> None:
    assert small().searched == ("lr", "penalty", "penalty_entity", "negatives_head")
    assert small().points(0, 5).shape == (5, 4)
    assert make_space({"lr": 0.1}).points(0, 3).shape == (3, 0)
    assert make_space({"lr": 0.1}).configuration([]) == {"lr": 0.1}


@given(st.integers(0, 2**40), st.integers(0, 20), st.integers(0, 20))
def test_more_points_begin_with_fewer(seed: int, start: int, count: int) -> None:
    space = small()
    assert np.array_equal(space.points(seed, start + count)[start:], space.points(seed, count, start=start))


def test_points_depend_on_the_name_alone() -> None:
    other = make_space({"negatives_head": SMALL["negatives_head"], "dim": 8, "lr": {"low": 0.1, "high": 0.2}})
    assert np.array_equal(small().points(3, 9)[:, 0], other.points(3, 9)[:, 1])
    assert np.array_equal(small().points(3, 9)[:, 3], other.points(3, 9)[:, 0])
    assert not np.array_equal(small().points(3, 9), small().points(4, 9))
    assert not np.array_equal(small().points(3, 9)[:, 0], small().points(3, 9)[:, 1])


def test_all_models_get_the_same_points() -> None:
    """Rates are equal; negatives are the same share of each model's cap."""
    spaces = [space_of("paper", model) for model in ("complex", "rotate", "transe")]
    rows = [[s.configuration(p) for p in s.points(2, 20)] for s in spaces]
    for complex_, rotate, transe in zip(*rows):
        assert complex_["lr"] == rotate["lr"] == transe["lr"] and complex_["init"] == transe["init"]
        assert rotate["negatives_tail"] == transe["negatives_tail"]
        assert abs(complex_["negatives_tail"] / 10 - rotate["negatives_tail"]) <= 1


def test_points_are_these() -> None:
    """Numbers that searches of today and tomorrow share."""
    assert small().points(0, 2)[:, 0] == pytest.approx([0.2370947947980967, 0.013155230948198593], abs=1e-15)


def test_what_does_not_count_is_drawn_but_not_written() -> None:
    space = small()
    off, on = space.configuration([0.5, 0.0, 0.5, 0.5]), space.configuration([0.5, 0.5, 0.5, 0.5])
    assert "penalty_entity" not in off and on["penalty_entity"] > 0
    assert {n: v for n, v in on.items() if n not in ("penalty", "penalty_entity")} == {
        n: v for n, v in off.items() if n != "penalty"
    }


def test_conditions_reach_through_others() -> None:
    space = make_space({
        "margin": {"low": 1, "high": 9, "when": {"loss": "margin"}},
        "loss": {"choices": ["bce", "margin"], "when": {"training": "negative_sampling"}},
        "training": {"choices": ["negative_sampling", "1vsall"]},
    })  # fmt: skip
    assert set(space.configuration([0.5, 0.9, 0.9])) == {"training"}
    assert set(space.configuration([0.5, 0.9, 0.1])) == {"training", "loss", "margin"}
    assert list(space.configuration([0.5, 0.9, 0.1])) == ["margin", "loss", "training"]


@pytest.mark.slow
@pytest.mark.parametrize("name", SPACES)
@given(seed=st.integers(0, 1000), model=st.sampled_from(["complex", "rotate", "transe", "cp"]))
def test_every_configuration_lies_inside_and_comes_back(name: str, seed: int, model: str) -> None:
    space = space_of(name, model, 1000)
    values = space.configuration(space.points(seed, 1)[0])
    make_config(values)
    assert space.check(values) == values
    again = space.configuration(points_of(space, values))
    assert again.keys() == values.keys()
    for key, value in values.items():
        assert (
            again[key] == pytest.approx(value, rel=1e-9, abs=1e-9) if isinstance(value, float) else again[key] == value
        )


def test_checking_fills_in_what_is_fixed_and_leaves_out_what_does_not_count() -> None:
    found = small().check({"lr": "0.1", "penalty_entity": 77, "negatives_head": 5, "epochs": 3, "dim": 64, "seed": 9})
    assert found == {"lr": 0.1, "penalty": "none", "negatives_head": 5, "batch_size": 256}


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        ({"lr": 2.0}, r"lr=2.0 is outside the space: it is from 0.001 to 1"),
        ({"penalty": "l3"}, r"penalty=l3 is outside the space: it is one of none, l2, n3"),
        ({"batch_size": 512}, r"batch_size=512 is outside the space: it is fixed at 256"),
        ({"penalty": "l2"}, r"penalty_entity=0.0, its default, is outside the space"),
        (
            {},
            r"negatives_head=500, its default, is outside the space: it is a whole number from 1",
        ),
        ({"dropout_entity": 0.2}, r"dropout_entity=0.2 is outside the space, which leaves it at 0.0"),
        ({"learning_rate": 2.0}, r"lr=2.0 is outside the space"),
        ({"rate": 0.2}, r"'rate' is not a setting"),
        ({"lr": "fast"}, r"lr='fast' is not valid"),
    ],
)
def test_a_configuration_outside_gets_a_sentence(values: dict[str, Any], sentence: str) -> None:
    full = values if not values else {"negatives_head": 5, **values}
    with pytest.raises(ConfigError, match=f"mine.yaml: .*{sentence}"):
        small().check(full, source="mine.yaml")


def test_fixing_takes_a_parameter_out_of_the_search() -> None:
    space = small().with_fixed({"penalty": "none", "dim": 64})
    assert space.searched == ("lr", "penalty_entity", "negatives_head")
    assert space.configuration([0.5, 0.5, 0.5])["dim"] == 64
    assert "penalty_entity" not in space.configuration([0.5, 0.5, 0.5])
    assert np.array_equal(space.points(1, 4)[:, 0], small().points(1, 4)[:, 0])
    with pytest.raises(ConfigError, match="^dim=7 is not possible for complex"):  # not "the space contains …"
        small().with_fixed({"dim": 7})
    with pytest.raises(ConfigError, match="^lr='abc' is not valid: give a number"):
        small().with_fixed({"lr": "abc"})
    with pytest.raises(ConfigError, match="the space contains .*: label_smoothing=0.1 needs training=kvsall"):
        small(training={"choices": ["1vsall", "kvsall"]}).with_fixed({"label_smoothing": 0.1})
    with pytest.raises(ConfigError, match="'dims' is not a setting of a training. Did you mean dim"):
        small().with_fixed({"dims": 7})


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"learning_rat": 1}, r"'learning_rat' is not a setting of a training"),
        ({"droput_entity": 0.1}, r"Did you mean dropout_entity"),
        ({"epochs": 10}, r"epochs is set by the search and"),
        ({"model": {"choices": ["complex", "rotate"]}}, r"A space has one model"),
        (
            {"init_std": {"low": 0.1, "high": 1, "when": {"init": "normal"}}},
            r"names 'init', which the space does not have",
        ),
        ({"dropout_entity": {"low": 0, "high": 0.5, "when": {"penalti": "l2"}}}, r"Did you mean penalty"),
        ({"dropout_entity": {"low": 0, "high": 0.5, "when": {"penalty": "l3"}}}, r"condition penalty=l3 never holds"),
        (
            {"penalty": {"choices": ["l2", "n3"], "when": {"penalty_entity": 0.01}}},
            r"The conditions of penalty → penalty_entity → penalty form a circle",
        ),
    ],
)
def test_a_contradictory_space_gets_a_sentence(changes: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        small(**changes)


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        (
            {"dropout_entity": {"low": 0.5, "high": 1.0}},
            r"dropout_entity=(0.99\d*|1.0) is not valid: give a number less than 1",
        ),
        ({"batch_size": {"type": "float", "low": 1, "high": 9}}, r"batch_size=.* is not valid: give a whole number"),
        ({"optimizer": {"choices": ["adagrad", "adamw"]}}, r"optimizer='adamw' is not valid"),
        (
            {"training": "kvsall", "loss": {"choices": ["bce", "margin"]}},
            r"loss=margin does not work with training=kvsall",
        ),
        (
            {"negatives_head": 0, "negatives_tail": {"type": "int", "low": 0, "high": 9}},
            r".* leave nothing to learn from",
        ),
    ],
)
def test_a_space_with_values_that_no_training_takes_gets_a_sentence(changes: dict[str, Any], sentence: str) -> None:
    with pytest.raises(
        ConfigError, match=f"a.yaml: the space contains configurations that cannot be trained: {sentence}"
    ):
        small(**changes).verified(source="a.yaml")


def test_a_space_is_checked_once_and_a_wrong_one_each_time(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[dict[str, Any]] = []

    def counted(values: dict[str, Any]) -> Any:
        made.append(values)
        return make_config(values)

    monkeypatch.setattr("grash.search.space.make_config", counted)
    once = {**SMALL, "lr": {"type": "float", "low": 0.0123, "high": 0.0456}}  # no other test has it
    make_space(once).verified()
    n_made = len(made)
    assert make_space(once).verified() == make_space(once) and n_made == len(made) > 64
    wrong = make_space({**once, "schedule": "warmup"})  # without warmup_epochs
    for _ in range(2):
        with pytest.raises(ConfigError, match="schedule=warmup needs"):
            wrong.verified()


def test_a_space_whose_fixed_settings_contradict_gets_their_own_sentence() -> None:
    with pytest.raises(ConfigError, match="^a.yaml: schedule=warmup needs warmup_epochs above 0"):
        small(schedule="warmup").verified(source="a.yaml")
