"""What is given to a search: configurations, spaces and options, and those that are refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from engines.searches import SPACE, essence, small_search
from grash.api.search import Search, SearchResult, best_of_run
from grash.errors import ConfigError, InputError
from grash.models import MODELS
from grash.search.proposals import make_configurations
from grash.training.config import make_config


def test_given_configurations_come_first_and_say_where_they_are_from(tmp_path: Path, finished: SearchResult) -> None:
    (tmp_path / "mine.yaml").write_text("lr: 0.2\ndropout_entity: 0.1\nnegatives_tail: 20\nepochs: 77\n")
    record = make_config({"lr": 0.3, "dropout_entity": 0.0, "negatives_tail": 7})
    values = {"lr": 0.11, "dropout_entity": 0.2, "negatives_tail": 30}
    search = small_search(
        tmp_path / "run", initial_configs=[tmp_path / "mine.yaml", record, values], from_run=finished.folder,
        n_trials=10, final_train=False,
    )  # fmt: skip
    state = search.run().state
    made = [state.configurations[n] for n in sorted(state.configurations)]
    assert [c.origin for c in made] == ["user:mine.yaml", "user", "user", *["run:run"] * 4, *["random"] * 3]
    assert [c.values["lr"] for c in made[:3]] == [0.2, 0.3, 0.11]
    assert [c.values["epochs"] for c in made] == [4.0] * 10 and [c.values["variation"] for c in made] == list(range(10))
    assert [c.values["lr"] for c in made[3:7]] == [c["values"]["lr"] for c in best_of_run(finished.folder)]
    assert made[3].values["lr"] == finished.best_config.lr
    assert [r["origin"] for r in search.result.trials()][:3] == ["user:mine.yaml", "user", "user"]


def test_a_given_configuration_outside_the_space_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="lr"):
        small_search(tmp_path / "run", initial_configs=[{"lr": 5.0, "dropout_entity": 0.0, "negatives_tail": 7}])
    with pytest.raises(ConfigError, match="is a configuration of transe, and the search is over complex"):
        small_search(tmp_path / "run", initial_configs=[{"model": "transe"}])
    assert not (tmp_path / "run").exists()


def test_nothing_is_taken_over_from_a_run_without_scores(tmp_path: Path) -> None:
    small_search(tmp_path / "run").run(max_seconds=0.0)
    with pytest.raises(InputError, match="has no scored trial: give"):
        small_search(tmp_path / "next", from_run=tmp_path / "run")
    with pytest.raises(InputError, match="has no scored trial yet"):
        _ = SearchResult.load(tmp_path / "run").best_config


def test_another_runs_configurations_enter_as_far_as_they_fit(
    tmp_path: Path, finished: SearchResult, caplog: pytest.LogCaptureFixture
) -> None:
    two = small_search(tmp_path / "two", from_run=finished.folder, n_trials=2)
    assert len(two.settings.initial) == 2
    narrow = {**SPACE, "lr": {"low": 5.0, "high": 6.0}}
    none = small_search(tmp_path / "none", from_run=finished.folder, space=narrow)
    assert none.settings.initial == () and "left out" in caplog.text


def test_a_space_file_is_kept_by_its_content(tmp_path: Path) -> None:
    file = tmp_path / "space.txt"
    file.write_text("lr: {low: 0.05, high: 0.5, log: true}\n")
    search = small_search(tmp_path / "run", space=file)
    assert search.settings.space == {"lr": {"type": "float", "low": 0.05, "high": 0.5, "log": True}}
    search.run()
    file.write_text("lr: {low: 0.9, high: 1.0}\n")
    with pytest.raises(ConfigError, match="space"):
        small_search(tmp_path / "run", space=str(file)).run()


@pytest.mark.parametrize("options", [{"trial_timeout": -1.0}, {"trial_timeout": float("nan")}])
def test_times_that_are_none_are_refused(tmp_path: Path, options: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="seconds above 0"):
        small_search(tmp_path / "run", **options)


def test_an_engine_or_a_number_of_workers_that_is_none_leaves_no_folder(tmp_path: Path) -> None:
    for wrong in ({"engine": "warp"}, {"workers": 0}):
        with pytest.raises(ConfigError):
            small_search(tmp_path / "run", **wrong).run()
    assert not (tmp_path / "run").exists()


def test_model_auto_is_every_model_that_fits(tmp_path: Path) -> None:
    found = small_search(tmp_path / "even", model="auto", dim=8)
    assert found.settings.models == tuple(MODELS)
    odd = small_search(tmp_path / "odd", model="auto", dim=7)  # pairs of floats need an even number
    assert 0 < len(odd.settings.models) < len(MODELS) and "complex" not in odd.settings.models


def test_whether_all_entities_are_compared_is_decided_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("grash.api.search.affords_one_vs_all", lambda *given: True)
    search = small_search(tmp_path / "run", n_trials=2, final_train=False)
    assert search.settings.one_vs_all is True
    search.run()
    monkeypatch.setattr("grash.api.search.affords_one_vs_all", lambda *given: False)
    again = small_search(tmp_path / "run", n_trials=2, final_train=False)
    assert again.settings.one_vs_all is True and Search.open(tmp_path / "run").settings.one_vs_all is True
    assert small_search(tmp_path / "other", one_vs_all=False).settings.one_vs_all is False


@pytest.mark.parametrize("variant", ["combined", "graph"])
def test_a_search_on_walks_has_the_same_result_in_two_parts(tmp_path: Path, variant: str) -> None:
    given = {"reduction": "walk", "variant": variant, "warm_start": "weights", "eta": 3, "final_train": False}
    whole, parts = (small_search(tmp_path / name / "run", **given) for name in ("whole", "parts"))
    whole.run()
    parts.run(max_seconds=0.0)
    Search.open(parts.folder, engine="sequential", device="cpu").run()
    assert essence(whole.folder)["results"] == essence(parts.folder)["results"]
    plans = [past.plan for past in whole.result.state.rounds]
    assert plans[0].k is None and plans[0].n_train <= plans[0].graph_fraction * len(whole.dataset.train)
    assert "walk" in whole.result.report().read_text(encoding="utf-8")


def test_a_model_size_lowers_the_dimensions_of_proposals(tmp_path: Path) -> None:
    limit = 4 * (150 * 8 + 14 * 8 * 8)  # tables of shifts(): RESCAL with dimension 8, and its reciprocal relations
    search = small_search(tmp_path / "a", model="complex,rescal", dim=64, max_model_size=limit)
    assert search.settings.max_dims == {"complex": 8, "rescal": 8}
    made = make_configurations(search.settings, 150, 6)
    assert {c.values["dim"] for c in made} == {8}
    wide = {**SPACE, "dim": {"choices": [8, 16, 64, 128]}}
    search = small_search(tmp_path / "b", model="complex", space=wide, max_model_size="22K")
    assert search.settings.max_dims["complex"] == 32
    assert {c.values["dim"] for c in make_configurations(search.settings, 150, 40)} == {8, 16}
    assert small_search(tmp_path / "c", max_model_size="1G").settings.dim == 8  # as given


@pytest.mark.parametrize(
    ("size", "message"),
    [("1K", "max_model_size=1.0 KiB is too small: complex takes .* at dimension 8"), ("10 bananas", "is not a size")],
)
def test_a_model_size_that_nothing_fits_into_is_an_error(tmp_path: Path, size: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        small_search(tmp_path / "run", max_model_size=size)


def test_a_space_of_larger_dimensions_than_the_model_size_is_an_error_before_anything_runs(tmp_path: Path) -> None:
    space = {**SPACE, "dim": {"choices": [64, 128]}}
    with pytest.raises(ConfigError, match="the space has dim=64 or more, and at most 8 is allowed"):
        small_search(tmp_path / "run", space=space, max_model_size="8K").run()
    assert not (tmp_path / "run").exists()
