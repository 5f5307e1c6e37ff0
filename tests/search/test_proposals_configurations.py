"""From points to configurations: the same for all models, more begin with fewer, prices, and what users give."""

from __future__ import annotations

from statistics import median
from typing import Any

import pytest
from hypothesis import given
from hypothesis import settings as examples
from hypothesis import strategies as st

from grash.errors import ConfigError
from grash.search.proposals import make_configurations, score_count
from grash.search.settings import make_settings
from grash.training.config import make_config
from table_engine import quick_settings


def given_by_user(**values: Any) -> dict[str, Any]:
    return {"values": values, "origin": "user:mine.yaml"}


@pytest.mark.parametrize("proposals", ["random", "sobol", "portfolio"])
@pytest.mark.parametrize("price", ["triples", "scores"])
def test_more_configurations_begin_with_fewer(proposals: str, price: str) -> None:
    mine = given_by_user(lr=0.5, negatives_tail=20)
    settings = quick_settings(
        proposals=proposals, budget_unit=price, models="complex,transe", n_trials=9, initial=[mine]
    )
    most = make_configurations(settings, 1000, 15)
    for count in (1, 2, 5, 9, 12):
        assert make_configurations(settings, 1000, count) == most[:count]
    assert [c.number for c in most] == list(range(15))


def test_models_take_turns_and_get_the_same_points() -> None:
    settings = quick_settings(models="complex,rotate,transe", n_trials=12)
    made = make_configurations(settings, 1000, 12)
    assert [c.values["model"] for c in made[:4]] == ["complex", "rotate", "transe", "complex"]
    for i in range(0, 12, 3):
        assert len({(c.values["lr"], c.values["negatives_tail"]) for c in made[i : i + 3]}) == 1
    alone = make_configurations(quick_settings(models="rotate"), 1000, 4)
    assert [c.values["lr"] for c in alone] == [c.values["lr"] for c in made[1::3]]


def test_a_configuration_is_a_whole_training_run() -> None:
    settings = quick_settings(max_epochs=40.0, seed=5, fixed={"batch_size": 64})
    made = make_configurations(settings, 1000, 3)
    for i, configuration in enumerate(made):
        config = make_config(configuration.values)
        assert (config.epochs, config.valid_every, config.patience) == (40.0, 2.0, 10)
        assert (config.seed, config.variation, config.batch_size, config.dim) == (5, i, 64, 4)
        assert configuration.origin == "random" and configuration.relative_cost == 1.0


@given(st.integers(0, 2**31))
@examples(max_examples=10)
def test_another_seed_gives_other_points_and_the_same_seed_the_same(seed: int) -> None:
    one, again = (make_configurations(quick_settings(seed=seed), 1000, 3) for _ in range(2))
    assert one == again
    other = make_configurations(quick_settings(seed=seed + 1), 1000, 3)
    assert [c.values["lr"] for c in one] != [c.values["lr"] for c in other]


def test_prices_count_scores_in_units_of_the_median() -> None:
    settings = quick_settings(budget_unit="scores", n_trials=9)
    made = make_configurations(settings, 1000, 9)
    assert median(c.relative_cost for c in made) == 1.0 and len({c.relative_cost for c in made}) > 3
    counts = [score_count(make_config(c.values), 1000) for c in made]
    assert [c.relative_cost * median(counts) for c in made] == pytest.approx(counts)
    config = make_config({"negatives_head": 3, "negatives_tail": 7, "dim": 10})
    assert score_count(config, 1000) == (4 + 8) * 10
    assert score_count(make_config({"training": "1vsall", "dim": 10}), 1000) == 2 * 1000 * 10


def test_what_the_user_gives_comes_first_with_its_origin() -> None:
    settings = quick_settings(initial=[given_by_user(lr=0.5, negatives_tail=11)], models="complex,transe")
    made = make_configurations(settings, 1000, 3)
    assert (made[0].origin, made[0].values["lr"], made[0].values["negatives_tail"]) == ("user:mine.yaml", 0.5, 11)
    assert [c.values["model"] for c in made] == ["complex", "complex", "transe"]


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        ({"lr": 7.0, "negatives_tail": 20}, "mine.yaml: lr=7.0 is outside the space: "),
        ({"lr": 0.1, "negatives_tail": 20, "dropout_entity": 0.3}, "dropout_entity=0.3 is outside the space, which "),
        ({"lr": 0.1, "negatives_tail": 20, "learning": 1}, "learning"),
        ({"model": "rotate"}, "is a configuration of rotate, and the search is over complex: give --model complex,rot"),
    ],
)
def test_a_configuration_outside_its_space_is_refused_in_a_sentence(values: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        make_configurations(quick_settings(initial=[given_by_user(**values)]), 1000, 4)


@pytest.mark.parametrize(
    ("space", "sentence"),
    [
        ({"lr": {"low": 1.0, "high": 0.1}}, "lr"),
        ({"lrr": {"low": 0.1, "high": 1.0}}, "'lrr' is not a setting of a training. Did you mean lr"),
        ({"lr": {"low": 0.1, "high": 1.0, "when": {"penalty": ["l2"]}}}, "names 'penalty', which the space does "),
        ({"epochs": {"low": 1, "high": 10}}, "epochs is set by the search and"),
        ({"dropout_entity": {"low": 0.5, "high": 1.5}}, "dropout_entity"),
        ({}, "the space is empty"),
    ],
)  # fmt: skip
def test_an_unknown_or_contradictory_space_is_refused_in_a_sentence(space: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        make_configurations(make_settings({"space": space, "dim": 4}), 1000, 2)
