"""Settings of a search: defaults as published, presets, and a sentence for each wrong entry."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import pytest

from grash.errors import ConfigError, GrashError, UnknownName
from grash.search.settings import PRESETS, SearchSettings, make_settings
from grash.training.config import make_config


def test_the_defaults_are_the_papers_numbers() -> None:
    settings = make_settings({})
    assert (settings.n_trials, settings.eta, settings.budget, settings.max_epochs) == (64, 4, 3.0, 100.0)
    assert (settings.variant, settings.dim, settings.models, settings.seed) == ("combined", 128, ("complex",), 0)
    assert settings.guard_rails and settings.carry_over and settings.reduction == "core-order" and settings.final_train


def test_the_paper_presets_are_the_paper_to_the_letter() -> None:
    paper, text = make_settings({}, preset="paper"), make_settings({}, preset="paper-text")
    assert (paper.space, paper.proposals, paper.reduction, paper.degree) == ("paper", "random", "k-core", "neighbors")
    assert (paper.guard_rails, paper.carry_over, paper.guarded_split, paper.negatives_floor) == (
        False,
        False,
        False,
        0.01,
    )
    assert (text.degree, text.negatives_floor) == ("triples", 0.0)
    assert (
        make_settings({"reduction": "core-order"}, preset="paper").reduction == "core-order"
    )  # what is given counts more


def test_other_tools_names_are_known() -> None:
    settings = make_settings({"model": "complex,rotate", "num_trials": 8, "reduction_factor": 2, "search_budget": 1})
    assert (settings.models, settings.n_trials, settings.eta, settings.budget) == (("complex", "rotate"), 8, 2, 1.0)


def test_numbers_mean_what_is_written() -> None:
    settings = make_settings({"budget": 0.1, "max_epochs": 33.3})
    assert settings.full_budget == Fraction(1, 10) and settings.full_epochs == Fraction(333, 10)


@pytest.mark.parametrize("preset", PRESETS)
def test_settings_survive_json(preset: str) -> None:
    settings = make_settings({"models": "complex,transe", "fixed": {"dim": 8}}, preset=preset)
    assert make_settings(settings.model_dump(mode="json")) == settings


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        ({"eta": 1}, "eta=1 is not valid: give 2 or more."),
        ({"eta": -3}, "eta=-3 is not valid: give 2 or more."),
        ({"n_trials": 0}, "n_trials=0 is not valid: give 1 or more."),
        ({"n": -1}, "n_trials=-1 is not valid: give 1 or more."),
        ({"budget": 0}, "budget=0 is not valid: give a larger number, above 0."),
        ({"budget": -2.5}, "budget=-2.5 is not valid: give a larger number, above 0."),
        ({"budget": float("nan")}, "budget=nan is not valid: give a number that is not infinite and not NaN."),
        ({"budget": float("inf")}, "budget=inf is not valid: give a number that is not infinite and not NaN."),
        ({"max_epochs": 0}, "max_epochs=0 is not valid: give a larger number, above 0."),
        ({"budgte": 3}, "'budgte' is not a setting of a search. Did you mean budget, budget_unit?"),
        ({"xyzzy": 3}, "'xyzzy' is not a setting of a search."),
        ({"models": "complex,complex"}, "models=complex,complex names a model twice: give each once."),
        ({"variant": "graphs"}, "variant='graphs' is not valid: give 'combined', 'graph' or 'epoch'."),
        ({"seed": -1}, "seed=-1 is not valid: give 0 or more."),
        ({"n_trials": "many"}, "n_trials='many' is not valid: give a whole number."),
    ],
)
def test_a_wrong_setting_is_a_sentence(values: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ConfigError) as caught:
        make_settings(values)
    assert str(caught.value) == sentence


@pytest.mark.parametrize(
    ("values", "preset", "sentence"),
    [
        ({}, "papper", "There is no preset named 'papper'. Presets: default, paper, paper-text."),
        ({}, "mine", "There is no preset named 'mine'. Presets: default, paper, paper-text."),
        ({"model": "complx"}, "default", "There is no model named 'complx'."),
    ],
)
def test_an_unknown_name_is_a_sentence_with_suggestions(values: dict[str, Any], preset: str, sentence: str) -> None:
    with pytest.raises(UnknownName) as caught:
        make_settings(values, preset=preset)
    assert str(caught.value).startswith(sentence)


def test_every_wrong_value_of_every_setting_is_an_error_of_ours() -> None:
    for name in SearchSettings.model_fields:
        for value in (None, object(), [], {}, "", "?", -1, 0.5, float("nan"), True, {"a": object()}):
            try:
                make_settings({name: value})
            except GrashError as error:
                assert str(error).endswith(("?", ".")), error


def test_models_are_named_in_any_case_and_settings_by_their_usual_names() -> None:
    assert make_settings({"model": "ComplEx, RotatE"}).models == ("complex", "rotate")
    config = make_config({"model": "DistMult", "learning_rate": 0.5, "embedding_dim": 32})
    assert (config.model, config.lr, config.dim) == ("distmult", 0.5, 32)
    with pytest.raises(ConfigError, match="lr is given twice, also as learning_rate"):
        make_config({"lr": 0.1, "learning_rate": 0.5})
    with pytest.raises(ConfigError, match=r"'learning_rate' is a setting of a training run.*fixed=\{'lr': …\}"):
        make_settings({"learning_rate": 0.5})


def test_a_model_that_does_not_exist_is_not_guessed_as_another() -> None:
    with pytest.raises(UnknownName, match="There is no model named 'Boxes'. Models:"):
        make_settings({"model": "Boxes"})
    with pytest.raises(UnknownName, match="Did you mean 'complex'"):
        make_settings({"model": "Complx"})
