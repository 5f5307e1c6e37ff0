"""Shipped winners and the prior: figures that fit our spaces, a prior that is what the tool makes of the data."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from grash.models import MODELS
from grash.search import proposals as portfolio
from grash.search.named_spaces import SPACES, space_of
from grash.search.proposals import all_winners, from_prior, good_winners, make_configurations, winners_in
from grash.search.settings import make_settings
from grash.search.space import make_space
from grash.training.config import make_config

ROOT = Path(__file__).parents[2]
TRIALS = ROOT.parent / "shared" / "datasets" / "tuning-trials"


@pytest.mark.parametrize("winner", all_winners(), ids=lambda w: w["name"])
def test_a_shipped_winner_is_a_training(winner: dict[str, Any]) -> None:
    make_config({"model": winner["model"], **winner["values"]})
    assert (
        winner["name"].split("-")[0] in ("grash", "libkge", "distkge", "kbc", "ssl", "rotate", "kgtuner")
        and winner["dataset"] in winner["name"]
    )
    assert 0 < winner["test_mrr"] < 1 and winner["n_entities"] > winner["n_relations"] > 0


def test_names_of_winners_are_unique_and_poor_ones_are_left_out() -> None:
    names = [w["name"] for w in all_winners()]
    assert len(set(names)) == len(names)
    good = [w["name"] for w in good_winners()]
    assert "grash-freebase-transe-epoch" in names and "grash-freebase-transe-epoch" not in good
    assert "grash-yago3-10-complex-epoch" in good


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("name", SPACES)
def test_winners_lie_in_the_space_and_differ(name: str, model: str) -> None:
    space = space_of(name, model, 10_000)
    found = list(winners_in(space, model, 10_000).values())
    for i, values in enumerate(found):
        assert space.check(values) == values and values not in found[:i]


def test_the_nearest_graph_comes_first() -> None:
    space = space_of("default", "complex", 14_000)
    first = [next(iter(winners_in(space, "complex", n))) for n in (14_000, 120_000, 10**8)]
    assert [name.split("-complex")[0] for name in first] == ["ssl-rp-fb15k-237", "grash-yago3-10", "grash-freebase"]


def test_winners_are_changed_or_left_out_where_they_do_not_fit() -> None:
    found = winners_in(space_of("default", "complex", 2_000), "complex", 2_000)
    assert "libkge-codex-m-complex" not in found  # training=kvsall
    assert found["grash-yago3-10-complex-combined"]["negatives_head"] == 1999  # instead of 3864
    assert "grash-freebase-complex-combined" not in found  # equal to another after that


def test_recipes_of_small_graphs_take_shared_negatives_where_all_entities_are_too_many() -> None:
    large, small = (winners_in(space_of("default", "complex", n), "complex", n) for n in (105_132, 14_541))
    recipe, was = large["kbc-yago3-10-complex"], small["kbc-yago3-10-complex"]
    assert (was["training"], recipe["training"]) == ("1vsall", "negative_sampling")
    assert (recipe["negatives_head"], recipe["negatives_tail"]) == (10_000, 10_000)
    same = ("penalty", "penalty_entity", "penalty_relation", "reciprocal", "lr", "init")
    assert all(recipe[name] == was[name] for name in same) and recipe["penalty"] == "n3"
    assert large["ssl-rp-codex-l-complex"]["relation_prediction"] == 0.25


def test_an_unweighted_penalty_takes_the_scale_of_the_space() -> None:
    values = winners_in(space_of("default", "complex", 40_000), "complex", 40_000)["libkge-wn18rr-complex"]
    assert values["penalty_entity"] == pytest.approx(9.04e-6 * 40_943 / 2)


def test_a_penalty_that_does_nothing_becomes_none() -> None:
    values = winners_in(space_of("default", "complex"), "complex")["grash-yago3-10-complex-combined"]
    assert values["penalty"] == "none" and "penalty_entity" not in values
    paper = winners_in(space_of("paper", "complex"), "complex")["grash-yago3-10-complex-combined"]
    assert paper["penalty_entity"] == 1.05e-16


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("name", SPACES)
def test_the_prior_stays_inside_the_space(name: str, model: str) -> None:
    space = space_of(name, model, 10_000)
    for values in from_prior(space, model, space.points(0, 100, stream="prior")):
        assert space.check(values) == values


def test_the_prior_leans_to_what_won_and_leaves_the_rest_open() -> None:
    space = space_of("paper", "complex")
    rates = np.array([v["lr"] for v in from_prior(space, "complex", space.points(0, 400, stream="prior"))])
    assert 0.08 < np.median(rates) < 0.4
    assert (rates < 0.02).any() and (rates > 0.8).any()


def test_the_rate_follows_the_optimizer() -> None:
    wide = space_of("wide", "complex", 1_000)
    drawn = from_prior(wide, "complex", wide.points(0, 400, stream="prior"))
    rates = {o: np.median([v["lr"] for v in drawn if v["optimizer"] == o]) for o in ("adagrad", "adam")}
    assert rates["adam"] < rates["adagrad"] / 10


def test_a_range_that_the_prior_does_not_reach_is_drawn_evenly() -> None:
    space = make_space({"lr": {"low": 1e-9, "high": 1e-7, "log": True}})
    (values,) = from_prior(space, "complex", np.array([[0.5]]))
    assert values["lr"] == pytest.approx(1e-8)


def fit_prior() -> Any:
    spec = importlib.util.spec_from_file_location("fit_prior", ROOT / "tools" / "fit_prior.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_shipped_file_is_as_the_tool_writes_it() -> None:
    text = (Path(portfolio.__file__).parent / "portfolio.json").read_text(encoding="utf-8")
    assert fit_prior().text_of(json.loads(text)) == text


@pytest.mark.skipif(not TRIALS.exists(), reason="the tuning trials (fb15k-237.csv, wnrr.csv) are not here")
def test_the_shipped_prior_is_fitted_to_the_trials() -> None:
    fitted = json.loads(json.dumps(fit_prior().fit(TRIALS)))
    shipped = json.loads((Path(portfolio.__file__).parent / "portfolio.json").read_text(encoding="utf-8"))["prior"]
    assert fitted.keys() == shipped.keys()
    for model, shapes in shipped.items():
        assert fitted[model].keys() == shapes.keys()
        shape, again = shapes["negatives_head"], fitted[model]["negatives_head"]
        assert again["quantiles"] == pytest.approx(shape["quantiles"], rel=1e-3, abs=1e-3)
        assert fitted[model]["init"] == shapes["init"]


def test_a_space_of_unweighted_penalties_has_winners_too() -> None:
    weighted, unweighted = space_of("default", "complex", 40_000), space_of("default", "complex", 40_000)
    unweighted = unweighted.with_fixed({"penalty_weighted": False})
    found = winners_in(unweighted, "complex", 40_000)
    assert len(found) > 5 and all(unweighted.check(values) == values for values in found.values())
    assert not any(values["penalty_weighted"] for values in found.values())
    name = "kbc-wn18rr-complex"
    penalties = [winners_in(space, "complex", 40_000)[name]["penalty_entity"] for space in (weighted, unweighted)]
    assert penalties[1] == pytest.approx(penalties[0] / (40_943 / 2))
    settings = make_settings({"fixed": {"penalty_weighted": False}, "n_trials": 16})
    assert len(make_configurations(settings, 40_000, 16)) == 16
