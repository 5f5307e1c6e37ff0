"""Every numeric setting with extreme values, from Python, a file and the command line: a sentence, a plan or a run."""

from __future__ import annotations

import math
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import yaml

import grash as package
from grash.api.search import settings_of_file
from grash.cli.options import option_name, parse_assignment
from grash.cli.search import _SETTINGS as SEARCH_OPTIONS
from grash.cli.train import _SETTINGS as TRAIN_OPTIONS
from grash.errors import ConfigError, GrashError
from grash.search.settings import SearchSettings, make_settings
from grash.training.config import Settings, TrainConfig, make_config, read_config
from small_graph import grash, rings, write_tsv

EXTREMES = [0, -1, 2**31, 2**63, 2**64, 10**30, 1e-320, 1e308, math.nan, math.inf, -math.inf, True, "abc", "", [1], {}]
QUICK = {"dim": 4, "epochs": 1, "batch_size": 16, "negatives_head": 3, "negatives_tail": 3, "valid_every": 1}
QUICK_SEARCH = {"dim": 4, "max_epochs": 2, "n_trials": 4}


def numeric(record: type[Settings]) -> list[str]:
    return [name for name, field in record.model_fields.items() if field.annotation in (int, float, int | None)]


def bounds(record: type[Settings], name: str) -> dict[str, float]:
    found = record.model_fields[name].metadata
    return {sign: getattr(each, sign) for each in found for sign in ("ge", "gt", "le", "lt") if hasattr(each, sign)}


@pytest.fixture(autouse=True)
def no_hang() -> Iterator[None]:
    """A hang becomes a failure, with the place where it hung."""

    def stop(*_: object) -> None:
        raise AssertionError("it hangs")

    previous = signal.signal(signal.SIGALRM, stop)
    signal.alarm(120)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, previous)


@pytest.fixture(scope="module")
def graph(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tsv(rings(), tmp_path_factory.mktemp("graph") / "rings.tsv")


def is_sentence(text: str) -> bool:
    return "\n" not in text and len(text) < 400 and text.endswith((".", "?"))


@pytest.mark.parametrize("record", [SearchSettings, TrainConfig])
def test_every_number_has_a_lowest_and_a_highest_value(record: type[Settings]) -> None:
    assert len(numeric(record)) > 10
    for name in numeric(record):
        signs = bounds(record, name)
        assert {"ge", "gt"} & signs.keys() and {"le", "lt"} & signs.keys(), name


@pytest.mark.parametrize("record", [SearchSettings, TrainConfig])
def test_a_value_outside_its_range_is_a_sentence(record: type[Settings]) -> None:
    for name in numeric(record):
        signs = bounds(record, name)
        kind = int if record.model_fields[name].annotation in (int, int | None) else float
        too_low, too_high = signs.get("ge", signs.get("gt", 0)) - 1, 2 * signs.get("le", signs.get("lt", 0)) + 1
        for value in (kind(too_low), kind(too_high), 10**5000, -(10**5000), math.nan, True, "abc", "", [1], {}):
            with pytest.raises(ConfigError, match=rf"^{name}=.* is not valid: give ") as caught:
                record(**{name: value})
            assert is_sentence(str(caught.value))


@pytest.mark.parametrize("name", numeric(SearchSettings))
def test_a_search_with_an_extreme_setting_has_a_plan_or_a_sentence(tmp_path: Path, name: str) -> None:
    for i, value in enumerate([*EXTREMES, *bounds(SearchSettings, name).values()]):
        try:
            search = package.Search(rings(), out=tmp_path / str(i), **{**QUICK_SEARCH, name: value})
            assert search.plan(probe=False).rounds or name == "n_trials"
        except GrashError as error:
            assert is_sentence(str(error)), error


@pytest.mark.slow
def test_a_search_can_have_the_most_trials(tmp_path: Path) -> None:
    settings = {"dim": 4, "max_epochs": 20, "guard_rails": False, "budget": 1e6}
    search = package.Search(rings(), out=tmp_path, n_trials=5000, **settings)
    assert search.plan(probe=False).rounds[0].n_trials == 5000


@pytest.mark.parametrize("name", numeric(TrainConfig))
def test_a_training_with_an_extreme_setting_runs_or_is_a_sentence(name: str, one_thread: None) -> None:
    values = [*EXTREMES, *bounds(TrainConfig, name).values()]
    for value in values[:-1] if name == "epochs" else values:  # a million epochs take too long
        try:
            package.train(rings(), device="cpu", **{**QUICK, name: value})
        except GrashError as error:
            assert is_sentence(str(error)), error


@pytest.mark.parametrize("name", numeric(TrainConfig))
def test_a_search_with_an_extreme_fixed_setting_has_a_plan_or_a_sentence(tmp_path: Path, name: str) -> None:
    for i, value in enumerate([*EXTREMES, *bounds(TrainConfig, name).values()]):
        try:
            package.Search(rings(), out=tmp_path / str(i), fixed={name: value}, **QUICK_SEARCH).plan(probe=False)
        except GrashError as error:
            assert is_sentence(str(error)), error


@pytest.mark.parametrize("name", numeric(TrainConfig))
def test_files_and_assignments_mean_what_python_means(tmp_path: Path, name: str) -> None:
    path = tmp_path / "train.yaml"
    for value in EXTREMES:
        expected = outcome(lambda value=value: TrainConfig(**{name: value}))
        path.write_text(yaml.safe_dump({name: value}))
        assert outcome(lambda: read_config(path)) == expected, value
        text = yaml.safe_dump(value, default_flow_style=True).removesuffix("...\n")
        assert outcome(lambda text=text: make_config(dict([parse_assignment(f"{name}={text}")]))) == expected, value


@pytest.mark.parametrize("name", numeric(SearchSettings))
def test_a_file_of_a_search_means_what_python_means(tmp_path: Path, name: str) -> None:
    path = tmp_path / "search.yaml"
    for value in EXTREMES:
        path.write_text(yaml.safe_dump({name: value}))
        expected = outcome(lambda value=value: make_settings({name: value}))
        assert outcome(lambda: make_settings(settings_of_file(path)[0])) == expected, value


def outcome(make: Callable[[], Settings]) -> Settings | None:
    """The settings, or None if there is a sentence instead."""
    try:
        return make()
    except ConfigError as error:
        assert is_sentence(str(error))
        return None


@pytest.mark.slow
def test_extreme_settings_of_commands_are_planned_or_refused(graph: Path, tmp_path: Path) -> None:
    quick = ("--dim", 4, "--epochs", 2, "--n-trials", 4)
    path = tmp_path / "search.yaml"
    for name in numeric(SearchSettings):  # one value each: files and assignments mean what Python means, see above
        path.write_text(yaml.safe_dump({**QUICK_SEARCH, name: 2**64}))
        check("plan", graph, "--no-probe", "--config", path)
        for value in (-1, "abc") if name in SEARCH_OPTIONS else ():
            check("plan", graph, "--no-probe", *quick, option_name(SEARCH_OPTIONS, name), value)
    for name in numeric(TrainConfig):
        check("plan", graph, "--no-probe", *quick, "--set", f"{name}=-1")


@pytest.mark.slow
def test_extreme_settings_of_a_training_run_or_are_refused(graph: Path, tmp_path: Path) -> None:
    always = (graph, "-o", tmp_path / "m", "--overwrite", "--quiet", "--device", "cpu", "--threads", 1)
    quick = [word for name, value in QUICK.items() for word in ("--set", f"{name}={value}")]
    for name in numeric(TrainConfig):
        check("train", *always, *quick, "--set", f"{name}={2**64}")
        for value in (-1, "abc") if name in TRAIN_OPTIONS else ():
            check("train", *always, option_name(TRAIN_OPTIONS, name), value)


def check(*words: object) -> None:
    """Run a command and check that it succeeds, or ends with an error sentence."""
    ran = grash(*words)
    assert ran.code in (0, 2, 3, 5), (words, ran.code, ran.err)
    assert "Traceback" not in ran.err, (words, ran.err)
    if ran.code:
        assert "rror" in ran.err, (words, ran.err)


@pytest.mark.parametrize(
    "words",
    [
        ("plan", "--no-probe", "--dim", "9223372036854775808"),
        ("plan", "--no-probe", "--n-trials", "1000000"),
        ("plan", "--no-probe", "--epochs", "1e308"),
        ("search", "--set", f"batch_size={10**59}"),
        ("train", "--set", "valid_every=1e-320"),
        ("train", "--set", "seed=18446744073709551616"),
    ],
)
def test_an_impossible_setting_is_refused_by_the_command(
    words: tuple[str, ...], graph: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    ran = grash(words[0], graph, *words[1:])
    assert ran.code == 2 and ran.err.startswith("error: ") and ran.err.count("\n") == 1, ran.err
    assert list(tmp_path.iterdir()) == []
