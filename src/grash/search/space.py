"""The search space: parameters by name, which are settings of a training (`training/config.py`), and its YAML format.

A configuration is made from points of [0, 1), one per searched parameter. Points come from one random stream per
parameter NAME: all models, datasets and spaces get the same ones, and more configurations start with the same ones.

A space file uses the words of Optuna and PyKEEN, or the lists of LibKGE and Ax:

    lr: {type: float, low: 0.0003, high: 1.0, log: true}
    dropout_entity: {type: float, low: 0.0, high: 0.5, off: 0.5}
    penalty: {type: categorical, choices: [none, l2, n3]}
    penalty_entity: {type: float, low: 1.0e-06, high: 0.1, log: true, when: {penalty: [l2, n3]}}
    batch_size: 1024

    - {name: lr, type: range, bounds: [0.0003, 1.0], log_scale: true}
    - {name: penalty, type: choice, values: [none, l2, n3]}
    - {name: batch_size, type: fixed, value: 1024}
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import yaml
from numpy.typing import NDArray

from grash.errors import ConfigError, did_you_mean
from grash.kernels.random import key_of
from grash.training.config import ALIASES, TrainConfig, by_setting, make_config, shown
from grash.yaml_files import read_yaml

Kind = Literal["float", "int", "choice", "fixed"]
SET_BY_SEARCH = ("epochs", "valid_every", "patience", "seed", "variation")
NEGATIVE_IS_ZERO = ("dropout_entity", "dropout_relation", "label_smoothing")  # LibKGE's ranges reach below 0

_TOLERANCE = 1e-9  # relative; bounds are written in decimals
_NOT_COMPARED = (*SET_BY_SEARCH, "dim", "precision", "storage")  # a given configuration may have these anyway
_N_SAMPLES = 64  # configurations that are made to find contradictions in a space
_N_PER_VALUE = 4
_N_VERIFIED = 100
_verified: set[str] = set()
_TYPES = {
    **dict.fromkeys(("float", "double", "uniform"), "float"),
    **dict.fromkeys(("int", "integer"), "int"),
    **dict.fromkeys(("categorical", "choice", "cat"), "choice"),
    **dict.fromkeys(("bool", "boolean"), "bool"),
    **dict.fromkeys(("fixed", "constant"), "fixed"),
    "range": "range",
}
_SYNONYMS: dict[Any, str] = {"log_scale": "log", "values": "choices", False: "off"}  # YAML 1.1 reads `off` as false
_IGNORED = ("is_ordered", "name", "value_type", "sort_values")
_KEYS = ("type", "low", "high", "bounds", "log", "scale", "choices", "value", "off", "when")


@dataclass(frozen=True)
class Parameter:
    """A hyperparameter: a range (`float`, `int`), a list of values (`choice`) or one value (`fixed`)."""

    name: str
    kind: Kind
    low: float = 0.0
    high: float = 0.0
    log: bool = False  # the range is on a logarithmic scale
    off: float = 0.0  # probability of 0 instead of a number of the range
    values: tuple[Any, ...] = ()
    when: tuple[tuple[str, tuple[Any, ...]], ...] = ()  # (other name, its values): it is used if all of these hold

    def __post_init__(self) -> None:
        if self.kind in ("float", "int"):
            self._check_range()
        else:
            self._check_values()

    def value(self, point: float) -> Any:
        """Return the value at a point of [0, 1); uniform points give uniform (or log-uniform) values."""
        if self.kind in ("choice", "fixed"):
            return self.values[min(int(point * len(self.values)), len(self.values) - 1)]
        if point < self.off:
            return 0 if self.kind == "int" else 0.0
        share = (point - self.off) / (1.0 - self.off)
        low, high = self._edges()
        value = math.exp(low + share * (high - low)) if self.log else low + share * (high - low)
        value = math.floor(value + 0.5) if self.kind == "int" else value
        return min(max(value, self._number(self.low)), self._number(self.high))

    def point(self, value: Any) -> float:
        """Return the middle of the points that give this value: `value(point(v)) == v`."""
        if self.kind in ("choice", "fixed"):
            index = next(i for i, v in enumerate(self.values) if same_value(value, v))
            return (index + 0.5) / len(self.values)
        if self.is_off(value):
            return self.off / 2
        low, high = self._edges()
        position = math.log(value) if self.log else float(value)
        share = (position - low) / (high - low) if high > low else 0.5
        return min(max(self.off + (1.0 - self.off) * share, self.off), math.nextafter(1.0, 0.0))

    def contains(self, value: Any) -> bool:
        if self.kind in ("choice", "fixed"):
            return any(same_value(value, v) for v in self.values)
        if isinstance(value, bool) or not isinstance(value, int | float):
            return False
        if self.kind == "int" and value != int(value):
            return False
        return self.is_off(value) or (
            self.low - _TOLERANCE * abs(self.low) <= value <= self.high + _TOLERANCE * abs(self.high)
        )

    def is_off(self, value: Any) -> bool:
        return bool(self.off and value == 0)

    def nearest(self, value: Any) -> Any:
        """Return the nearest number of the range; 0 for a number below it if the parameter can be off."""
        if self.off and value < self.low:
            return self._number(0)
        return self._number(min(max(value, self.low), self.high))

    def describe(self) -> str:
        """Return its values in words, for error messages."""
        if self.kind == "fixed":
            return f"it is fixed at {self.values[0]}"
        if self.kind == "choice":
            return f"it is one of {', '.join(map(str, self.values))}"
        whole = "a whole number " if self.kind == "int" else ""
        return f"it is {'0 or ' if self.off else ''}{whole}from {self.low:g} to {self.high:g}"

    def _edges(self) -> tuple[float, float]:
        """Return the ends of the interval that points are mapped to; whole numbers get half a step on both sides."""
        step = 0.5 if self.kind == "int" else 0.0
        low, high = self.low - step, self.high + step
        return (math.log(low), math.log(high)) if self.log else (low, high)

    def _number(self, value: float) -> float | int:
        return int(value) if self.kind == "int" else float(value)

    def _check_range(self) -> None:
        name, low, high = self.name, self.low, self.high
        if not (math.isfinite(low) and math.isfinite(high)):
            raise ConfigError(f"{name}: low={low} and high={high} must be finite numbers.")
        if low > high:
            raise ConfigError(f"{name}: low={low:g} is above high={high:g}: swap them.")
        if self.log and low <= 0:
            off = ", and `off: PROBABILITY` to include 0" if low == 0 else ""
            raise ConfigError(f"{name}: a log scale cannot start at low={low:g}: give a low above 0{off}.")
        if self.kind == "int" and (low != int(low) or high != int(high)):
            raise ConfigError(f"{name}: low={low:g} and high={high:g} of an int must be whole numbers.")
        if not 0 <= self.off < 1:
            raise ConfigError(f"{name}: off={self.off:g} is the probability of 0: give a number from 0 up to 1.")
        if self.off and low < 0:
            raise ConfigError(f"{name}: low={low:g} with off={self.off:g}: give a low of 0 or more.")

    def _check_values(self) -> None:
        if not self.values:
            raise ConfigError(f"{self.name}: it has no values: give at least one.")
        for i, value in enumerate(self.values):
            if isinstance(value, dict | list | tuple | set):
                raise ConfigError(
                    f"{self.name}: {shown(value)} is not a single value: give strings, numbers, true or false."
                )
            if any(same_value(value, other) for other in self.values[:i]):
                raise ConfigError(f"{self.name}: {shown(value)} is listed twice: list it once.")


def same_value(a: Any, b: Any) -> bool:
    """Return whether two settings are equal: 1 and 1.0 are, 1 and true are not."""
    return isinstance(a, bool) == isinstance(b, bool) and bool(a == b)


@dataclass(frozen=True)
class Space:
    """Parameters by name, in the order in which they were written."""

    parameters: dict[str, Parameter]

    def __post_init__(self) -> None:
        for name, parameter in self.parameters.items():
            _check_name(name, parameter)
            _check_conditions(parameter, self.parameters)
        _ = self._sorted

    @functools.cached_property
    def searched(self) -> tuple[str, ...]:
        """Names of the D parameters that are not fixed: the columns of points."""
        return tuple(n for n, p in self.parameters.items() if p.kind != "fixed")

    def points(self, seed: int, count: int, *, start: int = 0, stream: str = "configurations") -> NDArray[np.float64]:
        """Return (count, D) points of [0, 1): rows start … start + count − 1 of the streams (seed, name)."""
        generators = [np.random.Generator(np.random.Philox(key=key_of(seed, stream, n))) for n in self.searched]
        columns = [generator.random(start + count)[start:] for generator in generators]
        return np.stack(columns, axis=1) if columns else np.empty((count, 0))

    def configuration(self, points: Sequence[float] | NDArray[np.float64]) -> dict[str, Any]:
        """Return the values at (D,) points, with fixed ones and without those whose condition does not hold."""
        if len(points) != len(self.searched):
            raise ValueError(f"{len(points)} points were given for {len(self.searched)} searched parameters")
        at = dict(zip(self.searched, points))
        return self.fill(lambda parameter, values: parameter.value(float(at.get(parameter.name, 0.5))))

    def fill(self, choose: Callable[[Parameter, Mapping[str, Any]], Any]) -> dict[str, Any]:
        """Return a configuration with the values of choose(parameter, values so far), for the parameters in use."""
        values: dict[str, Any] = {}
        for parameter in self._sorted:
            if all(n in values and any(same_value(values[n], v) for v in wanted) for n, wanted in parameter.when):
                values[parameter.name] = choose(parameter, values)
        return {n: values[n] for n in self.parameters if n in values}

    def check(self, values: Mapping[str, Any], *, source: str = "") -> dict[str, Any]:
        """Return a configuration as this space writes it; raise an error that names a setting outside the space.

        Settings that are not given take the fixed value of the space, or else the default of a training.
        """
        where, values = f"{source}: " if source else "", by_setting(values, ALIASES)
        always = {n: p.values[0] for n, p in self.parameters.items() if p.kind == "fixed" and not p.when}
        full = make_config({**always, **values}, source=source).model_dump()

        def choose(parameter: Parameter, _: Mapping[str, Any]) -> Any:
            name = parameter.name
            if parameter.kind == "fixed" and name not in values:
                return parameter.values[0]
            if not parameter.contains(full[name]):
                default = "" if name in values else ", its default,"
                raise ConfigError(f"{where}{name}={full[name]}{default} is outside the space: {parameter.describe()}.")
            return full[name]

        self._check_others(values, full, where)
        return self.fill(choose)

    def with_fixed(self, values: Mapping[str, Any]) -> Space:
        """Return this space with these settings fixed, whether it has them or not."""
        fixed = {name: Parameter(name, "fixed", values=(value,)) for name, value in values.items()}
        return Space({**self.parameters, **fixed}).verified()

    def limited(self, name: str, most: float) -> Space:
        """Return this space with the values of a numeric parameter up to a limit."""
        parameter = self.parameters[name]
        if parameter.kind == "choice":
            kept = tuple(value for value in parameter.values if value <= most)
            least: Any = min(parameter.values)
            narrow = replace(parameter, values=kept) if kept else None
        else:
            least = parameter.low
            narrow = replace(parameter, high=min(parameter.high, most)) if parameter.low <= most else None
        if narrow is None:
            raise ConfigError(f"the space has {name}={least:g} or more, and at most {most:g} is allowed.")
        return Space({**self.parameters, name: narrow})

    def verified(self, *, source: str = "") -> Space:
        """Return this space if the configurations at its corners and at some random points can be trained.

        A search asks several times for the same space, and one check takes 35 ms: what passed is remembered as text.
        """
        where, text = f"{source}: " if source else "", repr(self.parameters)
        if text in _verified:
            return self
        errors = list(dict.fromkeys(self._error_at(points) for points in self._corners()))
        if errors == [""]:
            if len(_verified) == _N_VERIFIED:
                _verified.clear()
            _verified.add(text)
            return self
        if len(errors) == 1:  # the same everywhere, so it comes from settings that are fixed
            raise ConfigError(f"{where}{errors[0]}")
        error = next(filter(None, errors))
        raise ConfigError(f"{where}the space contains configurations that cannot be trained: {error}")

    def _error_at(self, points: NDArray[np.float64]) -> str:
        """Return why the configuration at (D,) points cannot be trained; empty if it can."""
        try:
            make_config(self.configuration(points))
        except ConfigError as error:
            return str(error)
        return ""

    def _corners(self) -> list[NDArray[np.float64]]:
        """Return random points, and points at the ends of every range and at every value with the others random."""
        rows = self.points(0, _N_SAMPLES, stream="corners")
        corners = list(rows)
        for column, name in enumerate(self.searched):
            parameter, ends = self.parameters[name], [0.0, 0.5, np.nextafter(1.0, 0.0)]
            if parameter.kind == "choice":
                ends = [parameter.point(value) for value in parameter.values]
            elif parameter.off:
                ends.append(parameter.off)
            for end in ends:
                for row in rows[:_N_PER_VALUE].copy():
                    self._move_into_use(parameter, row)
                    row[column] = end
                    corners.append(row)
        return corners

    def _move_into_use(self, parameter: Parameter, row: NDArray[np.float64]) -> None:
        """Change a row (D,), in place, so that the conditions of the parameter hold."""
        for other, wanted in parameter.when:
            parent = self.parameters[other]
            if parent.kind != "fixed":
                row[self.searched.index(other)] = parent.point(wanted[0])
            self._move_into_use(parent, row)

    def _check_others(self, values: Mapping[str, Any], full: dict[str, Any], where: str) -> None:
        """Check that settings which the space does not have are at the default of a training."""
        for name in values:
            if name in self.parameters or name in _NOT_COMPARED:
                continue
            default = TrainConfig.model_fields[name].default
            if not same_value(full[name], default):
                raise ConfigError(
                    f"{where}{name}={full[name]} is outside the space, which leaves it at {default}: fix it for the "
                    f"whole search, or add it to the space."
                )

    @functools.cached_property
    def _sorted(self) -> tuple[Parameter, ...]:
        """The parameters, each after those that its conditions name."""
        ordered: dict[str, Parameter] = {}

        def visit(name: str, path: tuple[str, ...]) -> None:
            if name in path:
                raise ConfigError(f"The conditions of {' → '.join([*path, name])} form a circle: remove one of them.")
            for other, _ in self.parameters[name].when:
                visit(other, (*path, name))
            ordered[name] = self.parameters[name]

        for name in self.parameters:
            visit(name, ())
        return tuple(ordered.values())


def read_space(path: Path) -> Space:
    """Return the space in a YAML file."""
    return make_space(read_yaml(path), source=str(path))


def make_space(content: Any, *, source: str = "") -> Space:
    """Return a space from a mapping of names or a list of parameters; errors name the source and the entry."""
    try:
        return Space(_parameters(content))
    except ConfigError as error:
        raise ConfigError(f"{source}: {error}" if source else str(error)) from error


def _parameters(content: Any) -> dict[str, Parameter]:
    if isinstance(content, Mapping) and "grash_search" in content:
        raise ConfigError("this is a GraSH search of LibKGE, not a space: give it with --config.")
    if not isinstance(content, Mapping | list) or not content:
        raise ConfigError("the space is empty: give `name: …` lines or a list of parameters.")
    entries = content.items() if isinstance(content, Mapping) else ((_name_of(entry), entry) for entry in content)
    parameters: dict[str, Parameter] = {}
    for name, entry in entries:
        if str(name) in parameters:
            raise ConfigError(f"{name} is listed twice: keep one.")
        parameters[str(name)] = make_parameter(str(name), entry)
    return parameters


def _name_of(entry: Any) -> str:
    if not isinstance(entry, Mapping) or "name" not in entry:
        raise ConfigError(f"{shown(entry)} is not a parameter: in a list, each one needs a `name`.")
    return str(entry["name"])


def make_parameter(name: str, entry: Any) -> Parameter:
    """Return a parameter from its entry; a plain value is fixed."""
    if not isinstance(entry, Mapping):
        if isinstance(entry, list):
            raise ConfigError(f"{name}: {shown(entry)} is not a parameter: write {{type: categorical, choices: […]}}.")
        return Parameter(name, "fixed", values=(entry,))
    entry = {_SYNONYMS.get(key, str(key)): value for key, value in entry.items()}
    kind = _kind_of(name, entry)
    _check_keys(name, entry)
    when = _conditions(name, entry.get("when"))
    if kind == "fixed":
        return Parameter(name, "fixed", values=(_needed(name, entry, "value"),), when=when)
    if kind in ("choice", "bool"):
        choices = [False, True] if kind == "bool" else _needed(name, entry, "choices")
        if not isinstance(choices, list):
            raise ConfigError(f"{name}: choices={shown(choices)} must be a list.")
        return Parameter(name, "choice", values=tuple(choices), when=when)
    return _range(name, kind, entry, when)


def as_dict(space: Space) -> dict[str, Any]:
    """Return the space as a JSON-able mapping; `make_space` reads it."""
    return {name: _entry_of(parameter) for name, parameter in space.parameters.items()}


def as_yaml(space: Space) -> str:
    """Return the space as the text of a space file, one line per parameter."""
    lines = (
        yaml.safe_dump({n: e}, default_flow_style=True, sort_keys=False, width=10**6) for n, e in as_dict(space).items()
    )
    return "".join(f"{line.strip()[1:-1]}\n" for line in lines)


def _check_name(name: str, parameter: Parameter) -> None:
    if name in SET_BY_SEARCH:
        raise ConfigError(f"{name} is set by the search and cannot be in its space: remove it.")
    if name not in TrainConfig.model_fields:
        meant = did_you_mean(name, TrainConfig.model_fields, " `grash settings` lists them all.")
        raise ConfigError(f"{shown(name)} is not a setting of a training.{meant}")
    if name == "model" and parameter.kind != "fixed":
        raise ConfigError("A space has one model: give several to the search (--model complex,rotate).")


def _check_conditions(parameter: Parameter, parameters: Mapping[str, Parameter]) -> None:
    for other, wanted in parameter.when:
        if other not in parameters:
            meant = did_you_mean(other, parameters, " Add it, or remove the condition.")
            raise ConfigError(
                f"{parameter.name}: its condition names {shown(other)}, which the space does not have.{meant}"
            )
        parent = parameters[other]
        for value in wanted:
            if parent.kind != "fixed" and not parent.contains(value):  # it may have been fixed later
                raise ConfigError(
                    f"{parameter.name}: its condition {other}={value} never holds: for {other}, {parent.describe()}."
                )


def _kind_of(name: str, entry: Mapping[str, Any]) -> str:
    given = entry.get("type")
    if given is None:
        given = "choice" if "choices" in entry else "fixed" if "value" in entry else "range"
    if str(given).lower() not in _TYPES:
        raise ConfigError(f"{name}: type={shown(given)} is not known: give float, int, categorical, bool or fixed.")
    kind = _TYPES[str(given).lower()]
    if kind != "range":
        return kind
    field = TrainConfig.model_fields.get(name)
    return "int" if field is not None and field.annotation is int else "float"


def _check_keys(name: str, entry: Mapping[str, Any]) -> None:
    for key in entry:
        if key in ("step", "q"):
            raise ConfigError(f"{name}: steps ({key}) are not supported: list the values as choices.")
        if key not in _KEYS and key not in _IGNORED:
            raise ConfigError(f"{name}: {shown(key)} is not known.{did_you_mean(key, _KEYS)}")


def _range(name: str, kind: str, entry: Mapping[str, Any], when: Any) -> Parameter:
    if "bounds" in entry:
        bounds = entry["bounds"]
        if not isinstance(bounds, list) or len(bounds) != 2:
            raise ConfigError(f"{name}: bounds={shown(bounds)} must be two numbers, [low, high].")
        low, high = (_number(name, "bounds", b) for b in bounds)
    else:
        low, high = (_number(name, key, _needed(name, entry, key)) for key in ("low", "high"))
    scale = entry.get("log", entry.get("scale", False))
    if scale not in (True, False, "log", "linear") or isinstance(scale, int | float) and not isinstance(scale, bool):
        raise ConfigError(f"{name}: log={shown(scale)} is neither true nor false.")
    log = scale in (True, "log")
    off = _number(name, "off", entry.get("off", 0.0))
    if name in NEGATIVE_IS_ZERO and low < 0 < high and not off:
        low, off = 0.0, -low / (high - low)  # the same distribution, point by point
    return Parameter(name, "int" if kind == "int" else "float", low=low, high=high, log=log, off=off, when=when)


def _number(name: str, key: str, value: Any) -> float:
    """Return a number, also from a string: YAML reads 1e-5 as one."""
    try:
        if isinstance(value, bool):
            raise ValueError
        number = float(value)
    except (TypeError, ValueError, OverflowError):
        raise ConfigError(f"{name}: {key}={shown(value)} is not a number.") from None
    return int(number) if math.isfinite(number) and number == int(number) and not isinstance(value, float) else number


def _needed(name: str, entry: Mapping[str, Any], key: str) -> Any:
    if key not in entry:
        raise ConfigError(f"{name}: {key} is missing.")
    return entry[key]


def _conditions(name: str, given: Any) -> tuple[tuple[str, tuple[Any, ...]], ...]:
    if given is None:
        return ()
    if not isinstance(given, Mapping) or not given:
        raise ConfigError(f"{name}: when={shown(given)} must name a parameter and its values, {{penalty: [l2, l3]}}.")
    return tuple(
        (str(n), tuple(v) if isinstance(v, Sequence) and not isinstance(v, str) else (v,)) for n, v in given.items()
    )


def _entry_of(parameter: Parameter) -> Any:
    entry: dict[str, Any]
    if parameter.kind == "fixed":
        if not parameter.when:
            return parameter.values[0]
        entry = {"type": "fixed", "value": parameter.values[0]}
    elif parameter.kind == "choice":
        entry = {"type": "categorical", "choices": list(parameter.values)}
    else:
        entry = {"type": parameter.kind, "low": parameter.low, "high": parameter.high}
        entry |= {"log": True} if parameter.log else {}
        entry |= {"off": parameter.off} if parameter.off else {}
    return entry | ({"when": {n: list(v) for n, v in parameter.when}} if parameter.when else {})
