"""What a finished search gives: its trials, its best configuration and its model."""

from __future__ import annotations

from grash.api.search import SearchResult
from grash.training.config import make_config


def test_a_result_shows_its_trials_its_configuration_and_its_model(finished: SearchResult) -> None:
    rows = finished.trials()
    assert len(rows) == 6 + 3 + 2 + 1 and rows[-1]["round"] == 0
    state = finished.state
    best = next(r for r in rows if r["round"] == 3 and r["rank"] == 1)
    assert best["configuration"] == state.winner
    frame = finished.trials_dataframe()
    assert frame.height == 12 and frame["mrr"].max() == max(r["mrr"] for r in rows)
    assert finished.best_config.model_dump() == state.configurations[state.winner].values
    assert make_config(finished.best_config.model_dump()) == finished.best_config
    assert state.final is not None and state.final.evaluation is not None
    assert finished.model.evaluation["both"]["mrr"] == state.final.evaluation["both"]["mrr"]
    assert SearchResult.load(finished.folder).best_config == finished.best_config
    assert finished.report().is_file()


def test_the_best_yaml_is_a_configuration_to_train(finished: SearchResult) -> None:
    from grash.training.config import read_config

    assert read_config(finished.folder / "best.yaml") == finished.best_config


def test_a_run_folder_answers_like_its_model(finished: SearchResult) -> None:
    from grash.api.model import load_model

    assert load_model(finished.folder).config == finished.model.config
