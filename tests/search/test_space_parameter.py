"""One hyperparameter: points become values inside it, and values become points again."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from grash.errors import ConfigError
from grash.search.space import Parameter, same_value

POINTS = st.floats(0, math.nextafter(1.0, 0.0))


@st.composite
def parameters(draw: st.DrawFn) -> Parameter:
    kind = draw(st.sampled_from(["float", "int", "choice"]))
    if kind == "choice":
        values = draw(
            st.lists(st.one_of(st.booleans(), st.integers(2, 9), st.text(max_size=3)), min_size=1, unique=True)
        )
        return Parameter("init", "choice", values=tuple(values))
    log = draw(st.booleans())
    off = draw(st.sampled_from([0.0, 0.25, 0.5]))
    if kind == "int":
        low = draw(st.integers(1 if log or off else -50, 50))
        return Parameter("dim", "int", low=low, high=low + draw(st.integers(0, 10_000)), log=log, off=off)
    low = draw(st.floats(1e-20, 1.0) if log or off else st.floats(-1.0, 1.0))
    return Parameter("lr", "float", low=low, high=low + draw(st.floats(0, 10.0)), log=log, off=off)


@given(parameters(), POINTS)
def test_every_point_gives_a_value_inside(parameter: Parameter, point: float) -> None:
    assert parameter.contains(parameter.value(point))


@given(parameters(), POINTS)
def test_a_value_has_a_point_that_gives_it_again(parameter: Parameter, point: float) -> None:
    value = parameter.value(point)
    back = parameter.point(value)
    assert 0 <= back < 1
    again = parameter.value(back)
    if parameter.kind == "float":
        assert again == pytest.approx(value, rel=1e-9, abs=1e-9 * abs(parameter.high - parameter.low))
    else:
        assert same_value(again, value)


@given(parameters(), st.floats(-1e6, 1e6))
def test_the_nearest_number_lies_inside(parameter: Parameter, value: float) -> None:
    if parameter.kind != "choice":
        assert parameter.contains(parameter.nearest(int(value) if parameter.kind == "int" else value))


def test_whole_numbers_and_choices_get_equal_shares() -> None:
    whole = Parameter("dim", "int", low=1, high=4)
    assert [whole.value(p / 8) for p in range(8)] == [1, 1, 2, 2, 3, 3, 4, 4]
    choice = Parameter("penalty", "choice", values=("none", "l2"))
    assert [choice.value(p) for p in (0.0, 0.49, 0.5, 0.99)] == ["none", "none", "l2", "l2"]


def test_a_log_scale_gives_decades_equal_shares() -> None:
    rate = Parameter("lr", "float", low=0.001, high=1.0, log=True)
    assert [rate.value(p) for p in (0, 1 / 3, 2 / 3)] == pytest.approx([0.001, 0.01, 0.1])


def test_off_is_zero_with_its_probability_and_the_rest_runs_through_the_range() -> None:
    dropout = Parameter("dropout_entity", "float", low=0.0, high=0.5, off=0.5)
    assert [dropout.value(p) for p in (0.0, 0.49, 0.5, 0.75)] == [0.0, 0.0, 0.0, 0.25]
    weight = Parameter("penalty_entity", "float", low=1e-6, high=1.0, log=True, off=0.25)
    assert weight.contains(0) and not weight.contains(1e-9) and weight.nearest(1e-9) == 0


def test_true_is_not_one() -> None:
    assert not Parameter("norm", "choice", values=(1, 2)).contains(True)
    assert Parameter("norm", "choice", values=(1, 2)).contains(1.0)
    assert not Parameter("lr", "float", low=0.1, high=2.0).contains(True)
    assert not Parameter("lr", "float", low=0.1, high=2.0).contains("0.5")
    assert not Parameter("dim", "int", low=1, high=9).contains(2.5)


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        ({"kind": "float", "low": 2.0, "high": 1.0}, r"lr: low=2 is above high=1: swap them"),
        ({"kind": "float", "low": 0.0, "high": 1.0, "log": True}, r"lr: a log scale cannot start at low=0: .*`off:"),
        (
            {"kind": "float", "low": -1.0, "high": 1.0, "log": True},
            r"lr: a log scale cannot start at low=-1: give a low",
        ),
        ({"kind": "float", "low": 0.0, "high": math.inf}, r"lr: low=0.0 and high=inf must be finite"),
        ({"kind": "int", "low": 0.5, "high": 2}, r"lr: low=0.5 and high=2 of an int must be whole numbers"),
        ({"kind": "float", "low": 0.0, "high": 1.0, "off": 1.0}, r"lr: off=1 is the probability of 0"),
        ({"kind": "float", "low": -1.0, "high": 1.0, "off": 0.5}, r"lr: low=-1 with off=0.5"),
        ({"kind": "choice"}, r"lr: it has no values"),
        ({"kind": "choice", "values": (1, 1.0)}, r"lr: 1.0 is listed twice"),
        ({"kind": "choice", "values": ([1],)}, r"lr: \[1\] is not a single value"),
    ],
)
def test_a_contradiction_gets_a_sentence(fields: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        Parameter("lr", **fields)
