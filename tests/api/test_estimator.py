"""KGEmbedder follows the conventions of scikit-learn, as far as they apply to a graph."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import grash
from grash.errors import ConfigError, InputError

TRIPLES = [(f"n{i}", f"r{j}", f"n{(i * (j + 2) + j) % 40}") for i in range(40) for j in range(3)]
SMALL = {"dim": 4, "max_epochs": 2, "n_trials": 2, "engine": "sequential", "device": "cpu", "random_state": 1}


@pytest.fixture(scope="module")
def fitted() -> grash.KGEmbedder:
    return grash.KGEmbedder(**SMALL).fit(TRIPLES)


def test_it_predicts_scores_and_transforms(fitted: grash.KGEmbedder) -> None:
    answers = fitted.predict([("n1", "r0"), (None, "r1", "n2"), ("n3", None, "n4")])
    assert answers.shape == (3,) and answers[2] in ("r0", "r1", "r2") and answers[0].startswith("n")
    assert fitted.decision_function(TRIPLES[:5]).shape == (5,)
    assert fitted.transform(["n1", "n2"]).shape == (2, 4)
    assert fitted.transform([["n1"], ["n2"]]).shape == (2, 4), "a column, as in a pipeline"
    assert 0 < fitted.score(TRIPLES[:10]) <= 1
    assert fitted.result_.state.finished and fitted.dataset_.n_entities == 40


def test_the_same_random_state_gives_the_same_model_and_another_one_does_not(fitted: grash.KGEmbedder) -> None:
    again = grash.KGEmbedder(**SMALL).fit(TRIPLES)
    assert np.array_equal(again.model_.entity_embeddings, fitted.model_.entity_embeddings)
    other = grash.KGEmbedder(**{**SMALL, "random_state": 2}).fit(TRIPLES)
    assert not np.array_equal(other.model_.entity_embeddings, fitted.model_.entity_embeddings)


def test_a_run_folder_is_kept_if_it_is_given(tmp_path: Path) -> None:
    kept = grash.KGEmbedder(**SMALL, out=tmp_path / "run").fit(TRIPLES)
    assert (tmp_path / "run" / "report.html").is_file()
    assert kept.result_.model.config == kept.model_.config


def test_without_a_run_folder_the_trials_remain_and_an_error_names_model_(fitted: grash.KGEmbedder) -> None:
    assert fitted.result_.trials() and fitted.result_.best_config.model == fitted.model_.config.model
    for missing in (lambda: fitted.result_.model, fitted.result_.report):
        with pytest.raises(InputError, match=r"was moved or deleted. KGEmbedder .* its model_ is the model"):
            missing()


def test_parameters_can_be_read_changed_and_printed() -> None:
    made = grash.KGEmbedder(model="rotate", dim=8)
    assert repr(made) == "KGEmbedder(model='rotate', dim=8)" and made.set_params(dim=16).get_params()["dim"] == 16
    with pytest.raises(ConfigError, match="'dimm' is no parameter of KGEmbedder. Did you mean dim"):
        made.set_params(dimm=8)
    with pytest.raises(InputError, match="not fitted yet: call fit first"):
        made.predict([("a", "b")])


def test_the_checks_of_scikit_learn_that_apply(fitted: grash.KGEmbedder) -> None:
    """Those on parameters and cloning; the others need tables of numbers."""
    sklearn = pytest.importorskip("sklearn", reason="scikit-learn is an extra")
    from sklearn.utils import estimator_checks as checks
    from sklearn.utils.validation import check_is_fitted

    made = grash.KGEmbedder(**SMALL)
    checks.check_no_attributes_set_in_init("KGEmbedder", made)
    checks.check_get_params_invariance("KGEmbedder", made)
    copied = sklearn.base.clone(fitted)
    assert copied.get_params() == fitted.get_params() and not hasattr(copied, "model_")
    with pytest.raises((AttributeError, ValueError)):
        copied.decision_function(TRIPLES[:1])
    check_is_fitted(fitted)
    with pytest.raises(sklearn.exceptions.NotFittedError):
        check_is_fitted(copied)
