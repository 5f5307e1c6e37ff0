"""The search space: parameters by name, the names being the settings of a training (`training/config.py`).

A configuration is made from points of [0, 1), one per searched parameter. Points come from one random stream per NAME,
so that all models, datasets and spaces get the same ones, and more configurations begin with fewer of them.
Comes from `spaces.py`, `space_file.py` or `libkge.py`, goes to `proposals.py`.
"""

from __future__ import annotations

import difflib
import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from grash.errors import ConfigError
from grash.kernels.random import key_of
from grash.search.parameter import Parameter, same
from grash.training.config import TrainConfig, make_config

SET_BY_SEARCH = ("epochs", "valid_every", "patience", "seed", "variation")
_NOT_COMPARED = (*SET_BY_SEARCH, "dim", "precision", "storage")  # of a configuration, when the space does not have them
_N_SAMPLES = 64  # configurations that are built to see whether a space contradicts itself
_N_PER_VALUE = 4


@dataclass(frozen=True)
class Space:
    """Parameters by name, in the order in which they were written."""

    parameters: dict[str, Parameter]
    searched: tuple[str, ...] = field(init=False)
    """Names of the D parameters that are not fixed: the columns of points."""

    def __post_init__(self) -> None:
        names = tuple(n for n, p in self.parameters.items() if p.kind != "fixed")
        object.__setattr__(self, "searched", names)
        for name, parameter in self.parameters.items():
            _check_name(name, parameter)
            _check_conditions(parameter, self.parameters)
        _ = self._in_turn

    def points(self, seed: int, count: int, *, start: int = 0, stream: str = "configurations") -> NDArray[np.float64]:
        """(count, D) points of [0, 1), rows start … start + count − 1 of the streams (seed, name)."""
        columns = [_uniform(key_of(seed, stream, name), start + count)[start:] for name in self.searched]
        return np.stack(columns, axis=1) if columns else np.empty((count, 0))

    def configuration(self, points: Sequence[float] | NDArray[np.float64]) -> dict[str, Any]:
        """The values at (D,) points: fixed ones included, those whose condition does not hold left out."""
        if len(points) != len(self.searched):
            raise ValueError(f"{len(points)} points were given for {len(self.searched)} searched parameters")
        at = dict(zip(self.searched, points))
        return self.filled(lambda parameter, found: parameter.value(float(at.get(parameter.name, 0.5))))

    def filled(self, choose: Callable[[Parameter, Mapping[str, Any]], Any]) -> dict[str, Any]:
        """A configuration whose values `choose(parameter, values so far)` gives, for the parameters that count."""
        found: dict[str, Any] = {}
        for parameter in self._in_turn:
            if all(n in found and any(same(found[n], v) for v in wanted) for n, wanted in parameter.when):
                found[parameter.name] = choose(parameter, found)
        return {n: found[n] for n in self.parameters if n in found}

    def unit(self, values: Mapping[str, Any]) -> NDArray[np.float64]:
        """(D,) points that give these values of this space; 0.5 where a parameter does not count."""
        return np.array([self.parameters[n].point(values[n]) if n in values else 0.5 for n in self.searched])

    def check(self, values: Mapping[str, Any], *, source: str = "") -> dict[str, Any]:
        """A configuration as this space writes it, or a sentence with the setting that lies outside.

        What is not given takes the fixed value of the space, or else the default of a training.
        """
        where = f"{source}: " if source else ""
        always = {n: p.values[0] for n, p in self.parameters.items() if p.kind == "fixed" and not p.when}
        full = make_config({**always, **values}, source=source).model_dump()

        def given(parameter: Parameter, found: Mapping[str, Any]) -> Any:
            name = parameter.name
            if parameter.kind == "fixed" and name not in values:
                return parameter.values[0]
            if not parameter.holds(full[name]):
                said = (
                    f"{name}={full[name]}" if name in values else f"{name} is not given, and its default {full[name]}"
                )
                raise ConfigError(f"{where}{said} lies outside the space: {parameter.span}.")
            return full[name]

        self._check_others(values, full, where)
        return self.filled(given)

    def fixing(self, values: Mapping[str, Any]) -> Space:
        """The same space with these settings fixed, whether it has them or not."""
        fixed = {name: Parameter(name, "fixed", values=(value,)) for name, value in values.items()}
        return Space({**self.parameters, **fixed}).verified()

    def verified(self, *, source: str = "") -> Space:
        """This space, once trainings have been made at its corners and at some points; a sentence if one is refused."""
        for points in self._corners():
            values = self.configuration(points)
            try:
                make_config(values)
            except ConfigError as error:
                where = f"{source}: " if source else ""
                raise ConfigError(f"{where}the space holds configurations that cannot be trained: {error}") from error
        return self

    def _corners(self) -> list[NDArray[np.float64]]:
        """Points at the ends of every range and at every value, the others random, and random points."""
        rows = self.points(0, _N_SAMPLES, stream="corners")
        found = list(rows)
        for column, name in enumerate(self.searched):
            parameter, ends = self.parameters[name], [0.0, 0.5, np.nextafter(1.0, 0.0)]
            if parameter.kind == "choice":
                ends = [parameter.point(value) for value in parameter.values]
            elif parameter.off:
                ends.append(parameter.off)
            for end in ends:
                for row in rows[:_N_PER_VALUE].copy():
                    self._switch_on(parameter, row)
                    row[column] = end
                    found.append(row)
        return found

    def _switch_on(self, parameter: Parameter, row: NDArray[np.float64]) -> None:
        """Moves a row (D,), in place, to where the parameter counts."""
        for other, wanted in parameter.when:
            parent = self.parameters[other]
            if parent.kind != "fixed":
                row[self.searched.index(other)] = parent.point(wanted[0])
            self._switch_on(parent, row)

    def _check_others(self, values: Mapping[str, Any], full: dict[str, Any], where: str) -> None:
        """Settings that the space does not have must be at the default of a training."""
        for name in values:
            if name in self.parameters or name in _NOT_COMPARED:
                continue
            default = TrainConfig.model_fields[name].default
            if not same(full[name], default):
                raise ConfigError(
                    f"{where}{name}={full[name]} lies outside the space, which does not have it and leaves it at "
                    f"{default}: fix it for the whole search, or add it to the space."
                )

    @functools.cached_property
    def _in_turn(self) -> tuple[Parameter, ...]:
        """The parameters, each after those that its conditions name."""
        found: dict[str, Parameter] = {}

        def visit(name: str, path: tuple[str, ...]) -> None:
            if name in path:
                raise ConfigError(f"The conditions of {' → '.join([*path, name])} go in a circle: take one away.")
            for other, _ in self.parameters[name].when:
                visit(other, (*path, name))
            found[name] = self.parameters[name]

        for name in self.parameters:
            visit(name, ())
        return tuple(found.values())


def _uniform(key: int, count: int) -> NDArray[np.float64]:
    return np.random.Generator(np.random.Philox(key=key)).random(count)


def _check_name(name: str, parameter: Parameter) -> None:
    if name in SET_BY_SEARCH:
        raise ConfigError(f"{name} is set by the search itself and cannot be in its space: take it away.")
    if name not in TrainConfig.model_fields:
        close = difflib.get_close_matches(str(name), TrainConfig.model_fields, n=3, cutoff=0.5)
        meant = f" Did you mean {', '.join(close)}?" if close else " `grash settings` lists them all."
        raise ConfigError(f"{name!r} is not a setting of a training.{meant}")
    if name == "model" and parameter.kind != "fixed":
        raise ConfigError("A space is of one model: give several to the search (--model complex,rotate).")


def _check_conditions(parameter: Parameter, parameters: Mapping[str, Parameter]) -> None:
    for other, wanted in parameter.when:
        if other not in parameters:
            close = difflib.get_close_matches(str(other), parameters, n=1, cutoff=0.5)
            meant = f" Did you mean {close[0]}?" if close else " Add it, or take the condition away."
            raise ConfigError(f"{parameter.name}: its condition names {other!r}, which the space does not have.{meant}")
        parent = parameters[other]
        for value in wanted:
            if parent.kind != "fixed" and not parent.holds(value):  # a fixed one may have been fixed later
                raise ConfigError(
                    f"{parameter.name}: its condition {other}={value} never holds: of {other}, {parent.span}."
                )
