"""What was searched, and which parameters mattered."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from grash.report.importance import mean_ranks, round_correlations, searched_parameters, spearman
from grash.report.optuna import OPTUNA_FILE, OptunaView, importances
from grash.report.summary import read_state
from report.runs import write_run

scipy_stats = pytest.importorskip("scipy.stats", reason="scipy is the twin that ranks are compared with")


def test_parameters_come_from_the_space(finished: Path) -> None:
    parameters = {a.label: a for a in searched_parameters(read_state(finished))}
    assert list(parameters) == ["lr", "penalty", "penalty_entity", "dropout_entity", "negatives_tail", "reciprocal"]
    assert (parameters["lr"].low, parameters["lr"].high, parameters["lr"].log) == (0.003, 1.0, True)
    assert (
        parameters["negatives_tail"].integer
        and parameters["penalty_entity"].off
        and parameters["penalty"].choices[0] == "none"
    )
    values = {"model": "complex", "penalty": "none"}
    assert not parameters["penalty_entity"].applies_to(values) and parameters["penalty_entity"].applies_to(
        values | {"penalty": "l2"}
    )


def test_several_models_are_a_parameter(running: Path) -> None:
    parameters = searched_parameters(read_state(running))
    assert parameters[0].label == "model" and parameters[0].choices == ("complex", "rotate", "transe")


def test_a_parameter_that_differs_between_models_has_the_model_in_its_name(tmp_path: Path) -> None:
    state = write_run(tmp_path, n_ended=1, n_trials=4, models="complex,rotate,transe", space="paper").state
    labels = [a.label for a in searched_parameters(state)]
    assert "complex.negatives_tail" in labels and "rotate+transe.negatives_tail" in labels and "lr" in labels


def test_the_learning_rate_matters_most(finished: Path) -> None:
    pytest.importorskip("optuna")
    state = read_state(finished)
    found = importances(state, searched_parameters(state))
    assert found is not None and next(iter(found)) == "lr"
    assert list(found.values()) == sorted(found.values(), reverse=True)


def test_the_report_and_the_dashboard_have_the_same_importances(finished: Path) -> None:
    optuna = pytest.importorskip("optuna")
    dashboard = pytest.importorskip("optuna_dashboard._importance")
    state = read_state(finished)
    OptunaView(finished).update(state)
    storage = optuna.storages.JournalStorage(optuna.storages.journal.JournalFileBackend(str(finished / OPTUNA_FILE)))
    study = optuna.load_study(study_name=f"{finished.name}/overview", storage=storage)
    shown = dashboard.get_param_importance_from_trials_cache(None, storage, study._study_id, 0, study.trials)
    ours = importances(state, searched_parameters(state))
    assert ours is not None
    for entry in shown:
        name = entry["name"].replace(".on", " (on or off)")
        assert ours[name] == pytest.approx(entry["importance"], abs=1e-9), name


def test_without_optuna_there_are_no_importances(finished: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    state = read_state(finished)
    parameters = searched_parameters(state)
    monkeypatch.setitem(sys.modules, "optuna", None)
    assert importances(state, parameters) is None


def test_too_few_trials_have_no_importances(tmp_path: Path) -> None:
    state = write_run(tmp_path, n_ended=5).state
    assert importances(state, searched_parameters(state)) is None


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
    first, second = round_correlations(read_state(finished))
    assert first is not None and first.endswith("(16)") and second is not None and second.endswith("(4)")
