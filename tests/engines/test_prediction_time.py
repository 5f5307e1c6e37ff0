"""A limit on the time of a question: what is measured, what is lowered or left out, and that it is decided once."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from engines.searches import SPACE, essence, shifts, small_search
from grash.api.search import Search
from grash.engines import prediction_time
from grash.engines.prediction_time import measure_predictions, prediction_notes, probe_prediction, times_up_to
from grash.errors import ConfigError
from grash.models import MODELS
from grash.search.proposals import make_configurations, possible_dims
from grash.search.settings import make_settings
from grash.search.time_limit import Machine, Speed
from grash.training.config import make_config

CPU = torch.device("cpu")
MS_PER_FLOAT = {"complex": 0.1, "transe": 0.2, "rescal": 2.0}  # of a machine that is made up


@pytest.fixture
def speed(monkeypatch: pytest.MonkeyPatch) -> dict[str, float]:
    """Milliseconds of a question per float of the dimension, by model; a test may change them."""
    speed = dict(MS_PER_FLOAT)

    def probe(config: Any, dataset: Any, device: Any) -> float:
        return speed[config.model] * config.dim

    monkeypatch.setattr(prediction_time, "probe_prediction", probe)
    return speed


def limited(folder: Path, limit: Any = 4.0, **changes: Any) -> Search:
    return small_search(folder, **{"model": "complex,transe,rescal", "dim": 64, "max_prediction_ms": limit, **changes})


def dims_of(search: Search) -> dict[str, set[int]]:
    made = [c.values for c in make_configurations(search.settings, 150, 30)]
    return {model: {v["dim"] for v in made if v["model"] == model} for model in search.settings.models}


@given(st.lists(st.integers(1, 500), min_size=1, max_size=70, unique=True).map(sorted), st.floats(0, 600))
def test_the_largest_fast_dimension_is_measured_and_none_that_is_far_slower(dims: list[int], limit: float) -> None:
    found = times_up_to(dims, float, limit)
    fast = [dim for dim in dims if dim <= limit]
    assert max((d for d, ms in found.items() if ms <= limit), default=None) == (fast[-1] if fast else None)
    assert found.keys() <= set(dims[: 2 * len(fast) + 2]) and all(found[dim] == dim for dim in found)
    assert len(found) <= 2 * math.log2(len(dims)) + 2


def test_a_question_that_is_slow_once_is_asked_again() -> None:
    answers = iter([1.0, 90.0, 2.0, 3.0])
    assert times_up_to([8, 16, 24], lambda dim: next(answers), 5.0) == {8: 1.0, 16: 2.0, 24: 3.0}
    assert times_up_to([8, 16], lambda dim: math.inf, 5.0) == {}  # does not fit into memory


def test_dimensions_are_lowered_and_models_that_are_too_slow_left_out(
    tmp_path: Path, speed: dict[str, float], caplog: pytest.LogCaptureFixture
) -> None:
    search = limited(tmp_path / "run")
    assert dims_of(search) == {"complex": {40}, "transe": {16}}
    assert prediction_notes(search.settings) == [
        "complex: a question takes 4 ms at dim 40, 4.8 ms at dim 48 (max_prediction_ms=4)",
        "transe: a question takes 3.2 ms at dim 16, 4.8 ms at dim 24 (max_prediction_ms=4)",
        "rescal is left out: a question takes 16 ms at dim 8 (max_prediction_ms=4)",
    ]
    assert [r.message for r in caplog.records] == prediction_notes(search.settings)[2:]
    assert set(prediction_notes(search.settings)) <= set(search.plan(probe=False).notes)
    assert dims_of(limited(tmp_path / "all", 1000)) == {"complex": {64}, "transe": {64}, "rescal": {64}}


def test_a_searched_dimension_keeps_the_values_that_are_fast(tmp_path: Path, speed: dict[str, float]) -> None:
    space = {**SPACE, "dim": {"choices": [8, 16, 64, 128]}}
    assert dims_of(limited(tmp_path / "run", space=space)) == {"complex": {8, 16}, "transe": {8, 16}}
    whole = {**SPACE, "dim": {"type": "int", "low": 12, "high": 21}}
    assert max(dims_of(limited(tmp_path / "whole", model="transe", space=whole))["transe"]) <= 20


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"limit": 0.5},
            "No model is fast enough: complex is left out: a question takes 0.8 ms at dim 8 .* Allow more",
        ),
        ({"limit": 0}, "max_prediction_ms=0 is not valid"),
        ({"limit": "soon"}, "max_prediction_ms='soon' is not valid"),
        ({"engine": "ray"}, "max_prediction_ms measures this machine, and engine='ray' uses others"),
        ({"fixed": {"dim": 64}}, "No model is fast enough: complex is left out: a question takes 6.4 ms at dim 64"),
    ],
)
def test_a_limit_that_cannot_be_kept_is_a_sentence(
    tmp_path: Path, speed: dict[str, float], changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        limited(tmp_path / "run", **changes)
    assert not (tmp_path / "run").exists()


def test_a_configuration_of_a_model_that_is_too_slow_names_the_limit(tmp_path: Path, speed: dict[str, float]) -> None:
    slow = {"initial_configs": [{"model": "rescal", "lr": 0.1}]}
    with pytest.raises(ConfigError, match="of rescal, which is too slow for max_prediction_ms=4: allow more"):
        limited(tmp_path / "run", **slow)
    with pytest.raises(ConfigError, match="of rescal, and the search is over complex: give --model complex,rescal"):
        limited(tmp_path / "run", **slow, model="complex")


def test_a_fixed_dimension_above_the_model_size_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="dim=64 is fixed, and at most 8 is allowed for complex"):
        small_search(tmp_path / "run", max_model_size="8K", fixed={"dim": 64}).run()
    assert not (tmp_path / "run").exists()


def test_a_largest_dimension_of_0_that_is_given_is_a_sentence_without_a_limit(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="of rescal, and the search is over complex"):
        small_search(tmp_path / "run", max_dims={"rescal": 0}, initial_configs=[{"model": "rescal", "lr": 0.1}])
    with pytest.raises(ConfigError, match="dim=0 is not valid"):
        Search(shifts(), out=tmp_path / "run", max_dims={"complex": 0}, time=5, engine="sequential", device="cpu")


def test_a_begun_search_keeps_what_was_measured(tmp_path: Path, speed: dict[str, float]) -> None:
    search = limited(tmp_path / "run")
    search.run(max_seconds=0.0)
    speed.update(complex=1.0, transe=0.01, rescal=0.01)  # the machine has changed
    assert limited(tmp_path / "run").settings == Search.open(tmp_path / "run").settings == search.settings
    assert dims_of(limited(tmp_path / "other")) == {"transe": {64}, "rescal": {64}}  # complex takes 8 ms at dim 8
    with pytest.raises(ConfigError, match="max_prediction_ms: 4 there, 5 now"):
        limited(tmp_path / "run", 5.0)
    with pytest.raises(ConfigError, match="seed: 0 there, 1 now"):
        limited(tmp_path / "run", seed=1)


def test_measurements_that_are_given_are_not_made(tmp_path: Path, speed: dict[str, float]) -> None:
    given = {"complex": {8: 1.0, 32: 3.0, 64: 6.0}, "rescal": {8: 5.0}}
    speed.pop("complex"), speed.pop("rescal")
    search = limited(tmp_path / "run", prediction_ms=given)
    assert (
        dims_of(search) == {"complex": {32}, "transe": {16}}
        and search.settings.prediction_ms.keys() == MS_PER_FLOAT.keys()
    )


def test_measurements_of_models_that_are_not_searched_are_ignored(
    tmp_path: Path, speed: dict[str, float], caplog: pytest.LogCaptureFixture
) -> None:
    given = {"model": "complex", "dim": 8, "prediction_ms": {"transe": {8: 9.0}, "complex": {8: 1.0}}}
    search = limited(tmp_path / "run", **given)
    assert prediction_notes(search.settings) == ["complex: a question takes 1 ms at dim 8 (max_prediction_ms=4)"]
    assert not caplog.records
    search.run(max_seconds=0.0)
    assert limited(tmp_path / "run", **given).settings == search.settings
    with pytest.raises(ConfigError, match="^No model is fast enough: transe is left out: [^;]*$"):
        limited(tmp_path / "slow", **{**given, "model": "transe"})


def test_a_begun_search_without_a_folder_is_found(
    tmp_path: Path, speed: dict[str, float], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    search = limited(None)  # type: ignore[arg-type]
    search.run(max_seconds=0.0)
    speed["complex"] = 0.05
    again = limited(None)  # type: ignore[arg-type]
    assert again.folder == search.folder and again.settings == search.settings


def test_configurations_of_another_run_enter_a_begun_search_once(tmp_path: Path, speed: dict[str, float]) -> None:
    small_search(tmp_path / "before", n_trials=2, final_train=False).run()
    given = {"model": "complex", "dim": 8, "from_run": tmp_path / "before"}
    search = limited(tmp_path / "run", **given)
    search.run(max_seconds=0.0)
    assert len(search.settings.initial) == 2 and limited(tmp_path / "run", **given).settings == search.settings


def test_given_measurements_and_configurations_resume_with_the_same_call(
    tmp_path: Path, speed: dict[str, float]
) -> None:
    small_search(tmp_path / "before", n_trials=2, final_train=False).run()
    first: dict[str, Any] = {"lr": 0.1, "negatives_tail": 10, "dropout_entity": 0.1}
    given = {
        "model": "complex,transe", "dim": 8, "prediction_ms": {"complex": {8: 1.0}}, "initial_configs": [first],
        "from_run": tmp_path / "before",
    }  # fmt: skip
    search = limited(tmp_path / "run", **given)
    search.run(max_seconds=0.0)
    speed["transe"] = 0.3
    assert len(search.settings.initial) == 3 and search.settings.prediction_ms["transe"] == {8: 1.6}
    assert limited(tmp_path / "run", **given).settings == search.settings
    assert limited(tmp_path / "run", **{**given, "prediction_ms": {}}).settings == search.settings
    with pytest.raises(ConfigError, match="prediction_ms: .* there, .* now"):
        limited(tmp_path / "run", **{**given, "prediction_ms": {"complex": {8: 2.0}}})
    for others in ([{**first, "lr": 0.2}], [first, first]):
        with pytest.raises(ConfigError, match="initial: .* there, .* now"):
            limited(tmp_path / "run", **{**given, "initial_configs": others})


def test_all_settings_of_a_new_search_resume_it(
    tmp_path: Path, speed: dict[str, float], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("grash.api.search.affords_one_vs_all", lambda *_: True)
    given = limited(tmp_path / "run").settings.model_dump() | {"prediction_ms": {}, "one_vs_all": None}
    search = Search(shifts(), out=tmp_path / "run", engine="sequential", device="cpu", **given)
    search.run(max_seconds=0.0)
    assert search.settings.one_vs_all and search.settings.prediction_ms
    again = Search(shifts(), out=tmp_path / "run", engine="sequential", device="cpu", **given)
    assert again.settings == search.settings


@given(st.integers(0, 5), st.floats(1.7, 20))
def test_the_same_seed_and_limit_give_the_same_configurations(seed: int, limit: float) -> None:
    measured = {model: {dim: ms * dim for dim in range(8, 72, 8)} for model, ms in MS_PER_FLOAT.items()}
    given = {"models": ("complex", "transe"), "dim": 64, "seed": seed, "proposals": "random", "prediction_ms": measured}
    one, two = (make_settings({**given, "max_prediction_ms": limit}) for _ in range(2))
    assert make_configurations(one, 150, 20) == make_configurations(two, 150, 20)
    dims = {model: one.largest_dim(model) for model in one.models}
    free = make_configurations(make_settings(given), 150, 20)
    assert [c.values for c in make_configurations(one, 150, 20)] == [
        {**c.values, "dim": min(64, dims[c.values["model"]])} for c in free
    ]  # nothing else changes


def test_a_limit_that_nothing_exceeds_changes_no_result(tmp_path: Path, speed: dict[str, float]) -> None:
    plain, fast = (small_search(tmp_path / name / "run", n_trials=4, **more) for name, more in (
        ("plain", {}), ("fast", {"max_prediction_ms": 100.0})))  # fmt: skip
    plain.run()
    fast.run()
    assert essence(plain.folder)["results"] == essence(fast.folder)["results"]


@pytest.mark.parametrize(
    ("settings", "dims"),
    [
        ({"dim": 20}, [8, 16, 20]),
        ({"dim": 8}, [8]),
        ({"dim": 4}, [4]),
        ({"dim": 64, "fixed": {"dim": 24}}, [24]),
        ({"dim": 64, "max_dims": {"complex": 16}}, [8, 16]),
        ({"space": {"lr": 0.1, "dim": {"choices": [64, 8, 16]}}}, [8, 16, 64]),
        ({"space": {"lr": 0.1, "dim": {"type": "int", "low": 6, "high": 6}}}, [6]),
    ],
)
def test_the_dimensions_that_a_model_may_have(settings: dict[str, Any], dims: list[int]) -> None:
    assert possible_dims(make_settings(settings), "complex", 150, 700) == dims


def test_within_a_time_dimensions_up_to_its_largest_are_measured(tmp_path: Path, speed: dict[str, float]) -> None:
    given = {"space": SPACE, "proposals": "random", "engine": "sequential", "device": "cpu", "time": 30}
    search = Search(shifts(), out=tmp_path / "run", max_prediction_ms=2.5, **given)
    assert search.settings.dim == 24 and search.settings.models == ("complex",)
    assert max(search.settings.prediction_ms["complex"]) == 32
    search = Search(shifts(), out=tmp_path / "two", model="rescal,transe", max_prediction_ms=2.5, dim=64, **given)
    assert search.settings.models == ("transe",) and dims_of(search) == {"transe": {8}}


def test_within_a_time_a_model_that_is_too_slow_leaves_the_others_free(
    tmp_path: Path, speed: dict[str, float], monkeypatch: pytest.MonkeyPatch
) -> None:
    seconds = Speed(1e-3, 1e-5, 5e-8, 5e-9)  # of a machine on which 700 seconds are not enough for several models
    there = Machine("made up", dict.fromkeys(("complex", "rotate", "transe"), seconds))
    monkeypatch.setattr("grash.api.search.measure_machines", lambda *args, **options: [there])
    speed.update(complex=0.001, rotate=0.001, transe=9.0)
    given = {"space": SPACE, "proposals": "random", "engine": "sequential", "device": "cpu", "time": 700}
    usual, limited = (Search(shifts(), out=tmp_path / f"{ms}", max_prediction_ms=ms, **given) for ms in (1e5, 5.0))
    assert usual.choice is not None and limited.choice is not None
    assert limited.settings.models == usual.settings.models == ("complex",)
    assert limited.choice.given == () and limited.choice.level == usual.choice.level
    assert [note.split(":")[0] for note in prediction_notes(limited.settings)] == ["complex", "transe is left out"]
    speed.update(complex=9.0)
    assert Search(shifts(), out=tmp_path / "one", max_prediction_ms=5.0, **given).settings.models == ("rotate",)


@pytest.mark.parametrize("model", MODELS)
def test_every_model_can_be_measured(model: str, monkeypatch: pytest.MonkeyPatch) -> None:
    settings, dataset = make_settings({"models": (model,), "dim": 24, "max_prediction_ms": 1e6}), shifts()
    monkeypatch.setattr(prediction_time, "_SECONDS", 0.0)
    found = measure_predictions(settings, model, dataset, CPU)
    assert list(found) == [8, 16, 24] and all(0 < ms < 1e5 for ms in found.values())


def test_a_table_that_does_not_fit_is_not_made(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prediction_time, "free_bytes", lambda device: 4 * 150 * 16)
    assert probe_prediction(make_config({"model": "complex", "dim": 8}), shifts(), CPU) < math.inf
    assert probe_prediction(make_config({"model": "complex", "dim": 16}), shifts(), CPU) == math.inf
