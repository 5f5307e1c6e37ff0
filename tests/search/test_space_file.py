"""Spaces as text: two wordings, one meaning; what is wrong is named, with the file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from grash.errors import ConfigError, GrashError, InputError
from grash.search.named_spaces import SPACES, space_of
from grash.search.space import as_dict, as_yaml, make_space, read_space

OPTUNA = """
lr: {type: float, low: 3e-4, high: 1.0, log: true}
negatives_head: {type: int, low: 1, high: 1000}
penalty: {type: categorical, choices: [none, l2]}
penalty_entity: {type: float, low: 1e-8, high: 0.1, log: true, when: {penalty: l2}}
reciprocal: {type: bool}
batch_size: 1024
"""
AX = """
- {name: lr, type: range, bounds: [3.0e-4, 1], log_scale: true}
- {name: negatives_head, type: range, bounds: [1, 1000], log_scale: false}
- {name: penalty, type: choice, values: [none, l2], is_ordered: true}
- {name: penalty_entity, type: range, bounds: [1e-8, 0.1], log_scale: true, when: {penalty: [l2]}}
- {name: reciprocal, type: choice, values: [false, true]}
- {name: batch_size, type: fixed, value: 1024}
"""


def written(folder: Path, text: str) -> Path:
    path = folder / "space.yaml"
    path.write_text(text, encoding="utf-8")
    return path


def test_both_wordings_mean_the_same(tmp_path: Path) -> None:
    optuna = read_space(written(tmp_path, OPTUNA))
    assert optuna == read_space(written(tmp_path, AX))
    assert optuna.parameters["lr"].low == 0.0003 and optuna.parameters["batch_size"].kind == "fixed"
    assert optuna.parameters["negatives_head"].kind == "int"


def test_pykeens_words_are_read() -> None:
    space = make_space(
        {"lr": {"type": "float", "low": 0.1, "high": 1.0, "scale": "log"}, "dim": {"type": "int", "low": 2, "high": 8}}
    )
    assert space.parameters["lr"].log and space.parameters["dim"].kind == "int"


@pytest.mark.parametrize("model", ["complex", "rotate", "transe", "rescal"])
@pytest.mark.parametrize("name", SPACES)
def test_a_space_written_and_read_is_the_same(name: str, model: str, tmp_path: Path) -> None:
    space = space_of(name, model, 500)
    assert read_space(written(tmp_path, as_yaml(space))) == space
    assert make_space(as_dict(space)) == space == space_of(as_dict(space), model)


def test_dropout_below_zero_means_none() -> None:
    """The paper's −0.5 … 0.5: the same law, point by point."""
    dropout = make_space({"dropout_entity": {"type": "float", "low": -0.5, "high": 0.5}}).parameters["dropout_entity"]
    assert (dropout.off, dropout.low, dropout.high) == (0.5, 0.0, 0.5)
    for point in (0.0, 0.2, 0.4999, 0.5, 0.6, 0.99):
        assert dropout.value(point) == pytest.approx(max(point - 0.5, 0.0))


def test_off_is_a_word_and_not_false(tmp_path: Path) -> None:
    text = "dropout_entity: {type: float, low: 0.0, high: 0.5, off: 0.25}\n"
    assert read_space(written(tmp_path, text)).parameters["dropout_entity"].off == 0.25
    assert make_space(yaml.safe_load(text)).parameters["dropout_entity"].off == 0.25


def test_a_space_is_a_line_per_parameter() -> None:
    text = as_yaml(make_space(yaml.safe_load(OPTUNA)))
    assert text.splitlines()[2:4] == [
        "penalty: {type: categorical, choices: [none, l2]}",
        "penalty_entity: {type: float, low: 1.0e-08, high: 0.1, log: true, when: {penalty: [l2]}}",
    ]


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("lr: [", r"cannot be read as YAML"),
        ("lr: 0.1\nlr: 0.2\n", r"cannot be read as YAML: 'lr' occurs twice .*line 2"),
        ("", r"the space is empty: give `name: …` lines"),
        ("grash_search: {eta: 4}", r"this is a GraSH search of LibKGE, not a space: .*--config"),
        ("just words", r"the space is empty: give `name: …` lines"),
        ("- {type: range}", r"is not a parameter: in a list, each one needs a `name`"),
        ("- {name: lr, value: 1}\n- {name: lr, value: 2}", r"lr is listed twice"),
        ("lr: [0.1, 0.2]", r"lr: \[0.1, 0.2\] is not a parameter: write {type: categorical"),
        ("lr: {type: normal, low: 1, high: 2}", r"lr: type='normal' is not known: give float, int"),
        ("lr: {type: float, low: 1}", r"lr: high is missing"),
        ("lr: {type: float, low: a, high: 2}", r"lr: low='a' is not a number"),
        ("lr: {type: float, low: true, high: 2}", r"lr: low=True is not a number"),
        ("lr: {bounds: [1, 2, 3]}", r"lr: bounds=\[1, 2, 3\] must be two numbers"),
        ("lr: {low: 1, hight: 2}", r"lr: 'hight' is not known. Did you mean high"),
        ("dim: {type: int, low: 2, high: 8, step: 2}", r"dim: steps \(step\) are not supported"),
        ("init: {type: categorical, choices: normal}", r"init: choices='normal' must be a list"),
        ("init: {type: fixed}", r"init: value is missing"),
        ("lr: {low: 1, high: 2, when: penalty}", r"lr: when='penalty' must name a parameter"),
        ("lr: {low: 2, high: 1}", r"lr: low=2 is above high=1"),
        ("learning: {low: 1, high: 2}", r"'learning' is not a setting of a training"),
        ("a: 2001-99-99", r"cannot be read as YAML|not a setting"),
    ],
)
def test_a_bad_file_gets_a_sentence_with_its_name(text: str, sentence: str, tmp_path: Path) -> None:
    with pytest.raises((ConfigError, InputError), match=f"space.yaml.*{sentence}") as caught:
        read_space(written(tmp_path, text))
    assert "\n" not in str(caught.value)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="There is no file .*absent.yaml"):
        read_space(tmp_path / "absent.yaml")


WORDS = st.sampled_from(["type", "low", "high", "log", "choices", "when", "bounds", "off", "x"])
JUNK = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(-3, 3), st.floats(), st.sampled_from(["float", "l2", "1e-3", ""])),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(WORDS, inner, max_size=4)),
    max_leaves=8,
)  # fmt: skip


@given(st.dictionaries(st.sampled_from(["lr", "dim", "penalty", "epochs", "?"]), JUNK, max_size=3) | JUNK)
def test_anything_becomes_a_space_or_a_sentence(content: Any) -> None:
    try:
        space = make_space(content)
    except GrashError:
        return
    assert make_space(as_dict(space)) == space


@pytest.mark.parametrize("log", ["true", "yes", "log10", 1])
def test_a_scale_that_is_neither_true_nor_false_is_refused(log: Any) -> None:
    with pytest.raises(ConfigError, match="lr: log=.* is neither true nor false"):
        make_space({"lr": {"low": 0.001, "high": 1.0, "log": log}})


EXTREMES = [0, -1, 2**63, 10**30, 10**400, 1e-320, 1e308, float("nan"), float("inf"), True, "abc", None, [1], {}]


@pytest.mark.parametrize("key", ["low", "high", "off", "log", "choices", "value", "bounds", "when", "type"])
@pytest.mark.parametrize("name", ["lr", "dim", "batch_size", "valid_every", "dropout_entity"])
def test_an_extreme_value_in_a_space_is_a_sentence_or_a_space(name: str, key: str) -> None:
    for value in [*EXTREMES, [[0] * 100_000], ["x" * 100_000], [2, 2**64], [1e-320, 1e308]]:
        for entry in ({"low": 1, "high": 2, key: value}, {key: value}, value):
            try:
                make_space({name: entry}).verified()
            except ConfigError as error:
                assert "\n" not in str(error) and len(str(error)) < 500, str(error)[:200]
