"""What was searched, and which parameters mattered."""

from __future__ import annotations

import builtins
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from grash.report.importance import correlations, importances, mean_ranks, searched, spearman
from grash.report.summary import state_of
from report.runs import write_run

scipy_stats = pytest.importorskip("scipy.stats", reason="scipy is the twin that ranks are compared with")


def test_axes_come_from_the_space(finished: Path) -> None:
    axes = {a.label: a for a in searched(state_of(finished))}
    assert list(axes) == ["lr", "penalty", "penalty_entity", "dropout_entity", "negatives_tail", "reciprocal"]
    assert (axes["lr"].low, axes["lr"].high, axes["lr"].log) == (0.003, 1.0, True)
    assert axes["negatives_tail"].whole and axes["penalty_entity"].off and axes["penalty"].choices[0] == "none"
    values = {"model": "complex", "penalty": "none"}
    assert not axes["penalty_entity"].counts(values) and axes["penalty_entity"].counts(values | {"penalty": "l2"})


def test_several_models_are_an_axis_of_their_own(running: Path) -> None:
    axes = searched(state_of(running))
    assert axes[0].label == "model" and axes[0].choices == ("complex", "rotate", "transe")


def test_a_parameter_that_differs_between_models_has_the_model_in_its_name(tmp_path: Path) -> None:
    state = write_run(tmp_path, n_ended=1, n_trials=4, models="complex,rotate,transe", space="paper").state
    labels = [a.label for a in searched(state)]
    assert "complex.negatives_tail" in labels and "rotate+transe.negatives_tail" in labels and "lr" in labels


def test_without_the_space_the_axes_follow_from_the_configurations(tmp_path: Path) -> None:
    state = write_run(tmp_path, n_ended=1, n_trials=16).state
    state.settings = {**state.settings, "space": "gone.yaml"}
    axes = {a.label: a for a in searched(state)}
    assert set(axes) == {"lr", "penalty", "penalty_entity", "dropout_entity", "negatives_tail", "reciprocal"}
    assert axes["lr"].log and axes["penalty_entity"].off and axes["reciprocal"].choices == (False, True)


def test_the_learning_rate_matters_most(finished: Path) -> None:
    pytest.importorskip("optuna")
    state = state_of(finished)
    found = importances(state, searched(state))
    assert found is not None and next(iter(found.shares)) == "lr" and "PED-ANOVA" in found.method


def test_without_optuna_importances_are_rank_correlations_and_say_so(
    finished: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = builtins.__import__

    def refuse(name: str, *rest: Any) -> Any:
        if name.partition(".")[0] == "optuna":
            raise ImportError(name)
        return real(name, *rest)

    state = state_of(finished)
    axes = searched(state)
    monkeypatch.setattr(builtins, "__import__", refuse)
    found = importances(state, axes)
    assert found is not None and "rank correlation" in found.method
    assert next(iter(found.shares)) == "lr" and all(0 <= share <= 1 for share in found.shares.values())


def test_too_few_trials_have_no_importances(tmp_path: Path) -> None:
    state = write_run(tmp_path, n_ended=5).state
    assert importances(state, searched(state)) is None


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9)), min_size=3, max_size=30))
def test_rank_correlation_equals_scipys(pairs: list[tuple[int, int]]) -> None:
    first, second = [float(a) for a, _ in pairs], [float(b) for _, b in pairs]
    assert mean_ranks(first) == pytest.approx(list(scipy_stats.rankdata(first)))
    ours = spearman(first, second)
    if len(set(first)) < 2 or len(set(second)) < 2:
        assert ours is None
    else:
        assert ours == pytest.approx(scipy_stats.spearmanr(first, second).statistic, abs=1e-9)


def test_correlations_are_over_what_two_rounds_share(finished: Path) -> None:
    first, second = correlations(state_of(finished))
    assert first is not None and first.endswith("(16)") and second is not None and second.endswith("(4)")
