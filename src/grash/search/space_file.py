"""Search spaces as text: the wording of Optuna and PyKEEN (ours too), and the lists of LibKGE and Ax.

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

import difflib
import math
from collections.abc import Hashable, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from grash.errors import ConfigError, InputError
from grash.search.parameter import Parameter
from grash.search.space import Space
from grash.training.config import TrainConfig

NEGATIVE_IS_NONE = ("dropout_entity", "dropout_relation", "label_smoothing")
_TYPES = {
    **dict.fromkeys(("float", "double", "uniform"), "float"),
    **dict.fromkeys(("int", "integer"), "int"),
    **dict.fromkeys(("categorical", "choice", "cat"), "choice"),
    **dict.fromkeys(("bool", "boolean"), "bool"),
    **dict.fromkeys(("fixed", "constant"), "fixed"),
    "range": "range",
}
# LibKGE and Ax → Optuna; and `off` as a YAML 1.1 reader takes it
_WORDS: dict[Any, str] = {"log_scale": "log", "values": "choices", False: "off"}
_SAYS_NOTHING = ("is_ordered", "name", "value_type", "sort_values")
_ENTRIES = ("type", "low", "high", "bounds", "log", "scale", "choices", "value", "off", "when")


def read_space(path: Path) -> Space:
    """The space in a YAML file, in either wording."""
    return make_space(read_yaml(path), source=str(path))


def make_space(content: Any, *, source: str = "") -> Space:
    """A space from a mapping of names or a list of parameters; a wrong entry is named, with the file."""
    entries: list[tuple[str, Any]]
    if isinstance(content, Mapping) and "grash_search" in content:
        raise ConfigError(_at(source, "this is a search of LibKGE, not a space: give it to the search with --config."))
    if isinstance(content, Mapping):
        entries = [(str(name), entry) for name, entry in content.items()]
    elif isinstance(content, list):
        entries = [(_name_of(entry, source), entry) for entry in content]
    else:
        entries = []
    if not entries:
        raise ConfigError(
            _at(source, "A space is made of `name: …` lines or of a list of parameters, and none is there.")
        )
    try:
        parameters: dict[str, Parameter] = {}
        for name, entry in entries:
            if name in parameters:
                raise ConfigError(f"{name} stands there twice: keep one.")
            parameters[name] = parameter_of(name, entry)
        return Space(parameters)
    except ConfigError as error:
        raise ConfigError(_at(source, str(error))) from error


def parameter_of(name: str, entry: Any) -> Parameter:
    """One parameter from its entry; a plain value is fixed."""
    if not isinstance(entry, Mapping):
        if isinstance(entry, list):
            raise ConfigError(f"{name}: {entry!r} is not a parameter: write {{type: categorical, choices: […]}}.")
        return Parameter(name, "fixed", values=(entry,))
    entry = {_WORDS.get(key, str(key)): value for key, value in entry.items()}
    kind = _kind_of(name, entry)
    _check_entries(name, entry)
    when = _conditions(name, entry.get("when"))
    if kind == "fixed":
        return Parameter(name, "fixed", values=(_needed(name, entry, "value"),), when=when)
    if kind in ("choice", "bool"):
        choices = [False, True] if kind == "bool" else _needed(name, entry, "choices")
        if not isinstance(choices, list):
            raise ConfigError(f"{name}: choices={choices!r} must be a list.")
        return Parameter(name, "choice", values=tuple(choices), when=when)
    return _range(name, kind, entry, when)


def as_dict(space: Space) -> dict[str, Any]:
    """The space in our wording, JSON-able; `make_space` reads it."""
    return {name: _entry_of(parameter) for name, parameter in space.parameters.items()}


def as_yaml(space: Space) -> str:
    """The same as text, a line per parameter."""
    lines = (
        yaml.safe_dump({n: e}, default_flow_style=True, sort_keys=False, width=10**6) for n, e in as_dict(space).items()
    )
    return "".join(f"{line.strip()[1:-1]}\n" for line in lines)


def read_yaml(path: Path) -> Any:
    """What a YAML file holds; a key that stands there twice is refused."""
    try:
        return yaml.load(Path(path).read_text(encoding="utf-8"), Loader=_Loader)  # a SafeLoader
    except FileNotFoundError as error:
        raise InputError(f"There is no file {path}.") from error
    except (OSError, ValueError, yaml.YAMLError) as error:  # ValueError: not UTF-8, or a date that is none
        raise InputError(f"{path} cannot be read as YAML: {' '.join(str(error).split())}") from error


class _Loader(yaml.SafeLoader):
    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        names: set[str] = set()
        for key, _ in node.value:
            if key.tag == "tag:yaml.org,2002:bool":  # `off` is a word here, and false in YAML 1.1
                key.tag = "tag:yaml.org,2002:str"
            if str(key.value) in names:
                raise yaml.MarkedYAMLError(problem=f"{key.value!r} stands there twice", problem_mark=key.start_mark)
            names.add(str(key.value))
        return super().construct_mapping(node, deep)


def _kind_of(name: str, entry: Mapping[str, Any]) -> str:
    given = entry.get("type")
    if given is None:
        given = "choice" if "choices" in entry else "fixed" if "value" in entry else "range"
    if str(given).lower() not in _TYPES:
        raise ConfigError(f"{name}: type={given!r} is not known: give float, int, categorical, bool or fixed.")
    kind = _TYPES[str(given).lower()]
    if kind == "range":
        whole = TrainConfig.model_fields[name].annotation is int if name in TrainConfig.model_fields else False
        return "int" if whole else "float"
    return kind


def _check_entries(name: str, entry: Mapping[str, Any]) -> None:
    for key in entry:
        if key in ("step", "q"):
            raise ConfigError(f"{name}: steps ({key}) are not known here: list the values as choices.")
        if key not in _ENTRIES and key not in _SAYS_NOTHING:
            close = difflib.get_close_matches(key, _ENTRIES, n=1, cutoff=0.5)
            raise ConfigError(f"{name}: {key!r} is not known.{f' Did you mean {close[0]}?' if close else ''}")


def _range(name: str, kind: str, entry: Mapping[str, Any], when: Any) -> Parameter:
    if "bounds" in entry:
        bounds = entry["bounds"]
        if not isinstance(bounds, list) or len(bounds) != 2:
            raise ConfigError(f"{name}: bounds={bounds!r} must be two numbers, [low, high].")
        low, high = (_number(name, "bounds", b) for b in bounds)
    else:
        low, high = (_number(name, key, _needed(name, entry, key)) for key in ("low", "high"))
    scale = entry.get("log", entry.get("scale", False))
    if scale not in (True, False, "log", "linear") or isinstance(scale, int | float) and not isinstance(scale, bool):
        raise ConfigError(f"{name}: log={scale!r} is neither true nor false.")
    log = scale in (True, "log")
    off = _number(name, "off", entry.get("off", 0.0))
    if name in NEGATIVE_IS_NONE and low < 0 < high and not off:
        low, off = 0.0, -low / (high - low)  # the same law, point by point
    return Parameter(name, "int" if kind == "int" else "float", low=low, high=high, log=log, off=off, when=when)


def _number(name: str, key: str, value: Any) -> float:
    """A number, also one that YAML took for a word (1e-5)."""
    try:
        if isinstance(value, bool):
            raise ValueError
        number = float(value)
    except (TypeError, ValueError):
        raise ConfigError(f"{name}: {key}={value!r} is not a number.") from None
    return int(number) if math.isfinite(number) and number == int(number) and not isinstance(value, float) else number


def _needed(name: str, entry: Mapping[str, Any], key: str) -> Any:
    if key not in entry:
        raise ConfigError(f"{name}: {key} is missing.")
    return entry[key]


def _conditions(name: str, given: Any) -> tuple[tuple[str, tuple[Any, ...]], ...]:
    if given is None:
        return ()
    if not isinstance(given, Mapping) or not given:
        raise ConfigError(f"{name}: when={given!r} must name a parameter and its values, {{penalty: [l2, l3]}}.")
    return tuple((str(n), tuple(v) if isinstance(v, Sequence) and not isinstance(v, str) else (v,))
                 for n, v in given.items())  # fmt: skip


def _name_of(entry: Any, source: str) -> str:
    if not isinstance(entry, Mapping) or "name" not in entry:
        raise ConfigError(_at(source, f"{entry!r} is not a parameter: in a list, each needs a `name`."))
    return str(entry["name"])


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


def _at(source: str, sentence: str) -> str:
    return f"{source}: {sentence}" if source else sentence
