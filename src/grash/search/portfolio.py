"""What is known before a search: configurations that won elsewhere, and a prior fitted to them (`portfolio.json`).

The winners are published figures; the prior is fitted to the good ones and to published tuning trials by
`tools/fit_prior.py`, per parameter and widened. Goes to `proposals.py`, which mixes both with uniform draws.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from grash.files import read_json
from grash.search.parameter import Parameter, same
from grash.search.space import Space
from grash.training.config import TrainConfig

GOOD_SHARE = 0.9  # of the best published test MRR of its model and dataset: what a winner needs to be proposed
_FILE = Path(__file__).with_name("portfolio.json")
_RELATIVES = {"cp": ("complex",), "distmult": ("complex",)}  # whose winners follow a model's own
_PRIOR_OF = {"cp": "complex"}
_SAME_RATE = {"row_adagrad": "adagrad", "lazy_adam": "adam"}
_GIVE_WAY = ("batch_size", "dim", "reciprocal", "schedule", "penalty_weighted")  # a fixed value takes their place
_LEAST_MASS = 0.02  # of the prior inside a range; with less, it has nothing to say about it


@dataclass(frozen=True)
class Winners:
    """Published configurations as points of a space, by name, the nearest first; and what was changed or left out."""

    values: dict[str, dict[str, Any]]
    notes: list[str]


def winners_in(space: Space, model: str, n_entities: int | None = None) -> Winners:
    """The shipped winners of a model that fit the space; those of datasets of similar size come first."""
    values: dict[str, dict[str, Any]] = {}
    notes: list[str] = []
    for winner in _ordered(model, n_entities):
        name = winner["name"]
        try:
            found, changes = _fitted(space, winner)
        except _OutsideError as error:
            notes.append(f"{name}: left out, {error}.")
            continue
        if found in values.values():
            notes.append(f"{name}: left out, it is the same as another.")
            continue
        values[name] = found
        if changes:
            notes.append(f"{name}: used with {', '.join(changes)}.")
    return Winners(values, notes)


def from_prior(space: Space, model: str, points: NDArray[np.float64]) -> list[dict[str, Any]]:
    """Configurations that the prior of a model gives at (count, D) points; uniform where it knows nothing."""
    laws = _shipped()["prior"].get(_PRIOR_OF.get(model, model), {})
    return [_from_prior(space, laws, dict(zip(space.searched, map(float, row)))) for row in points]


def shipped_winners() -> list[dict[str, Any]]:
    """The records of portfolio.json: name, model, dataset with its sizes, test_mrr, values."""
    return list(_shipped()["winners"])


def good_winners() -> list[dict[str, Any]]:
    """Without those that others of the same model and dataset left far behind."""
    best: dict[tuple[str, str], float] = {}
    for w in shipped_winners():
        key = (w["model"], w["dataset"])
        best[key] = max(best.get(key, 0.0), w["test_mrr"])
    return [w for w in shipped_winners() if w["test_mrr"] >= GOOD_SHARE * best[w["model"], w["dataset"]]]


@functools.cache
def _shipped() -> dict[str, Any]:
    return read_json(_FILE, schema="grash-portfolio", version=1)


def _from_prior(space: Space, laws: Mapping[str, Any], at: Mapping[str, float]) -> dict[str, Any]:
    def choose(parameter: Parameter, found: Mapping[str, Any]) -> Any:
        law = laws.get(parameter.name)
        if parameter.kind == "fixed" or law is None:
            return parameter.value(at.get(parameter.name, 0.5))
        if "given" in law:  # a good rate depends on the optimizer, whichever of them is drawn first
            other = space.parameters.get(law["given"])
            known = TrainConfig.model_fields[law["given"]].default if other is None else choose(other, found)
            law = law["laws"].get(_SAME_RATE.get(known, known), {})
        return _drawn(parameter, law, at[parameter.name])

    return space.filled(choose)


def _ordered(model: str, n_entities: int | None) -> list[dict[str, Any]]:
    """Own winners before those of relatives; then by the ratio of the graphs' sizes; then as listed."""

    def distance(winner: dict[str, Any]) -> tuple[int, float]:
        ratio = 0.0 if n_entities is None else abs(math.log(winner["n_entities"] / max(n_entities, 1)))
        return models.index(winner["model"]), ratio

    models = [model, *_RELATIVES.get(model, ())]
    return sorted((w for w in good_winners() if w["model"] in models), key=distance)


class _OutsideError(Exception):
    """Why a winner cannot be a point of a space."""


def _fitted(space: Space, winner: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """The winner's values in the space, and the changes that this took."""
    values = _comparable(space, winner)
    changes: list[str] = []

    def choose(parameter: Parameter, found: Mapping[str, Any]) -> Any:
        name = parameter.name
        if parameter.kind == "fixed" and (name not in values or name == "model"):
            return parameter.values[0]
        value = values.get(name, TrainConfig.model_fields[name].default)
        if parameter.holds(value):
            return value
        nearest = _nearest(parameter, value)
        if not parameter.is_off(nearest):
            changes.append(f"{name}={nearest} instead of {value}")
        return nearest

    return space.filled(choose), changes


def _nearest(parameter: Parameter, value: Any) -> Any:
    name = parameter.name
    if parameter.kind in ("float", "int"):
        return parameter.nearest(value)
    if parameter.kind == "choice" and name in ("batch_size", "dim"):
        return min(parameter.values, key=lambda v: abs(math.log(v / value)))
    if parameter.kind == "fixed" and name in _GIVE_WAY:
        return parameter.values[0]
    raise _OutsideError(f"{name}={value} does not fit: {parameter.span}")


def _comparable(space: Space, winner: Mapping[str, Any]) -> dict[str, Any]:
    """A winner's values with its penalty in the scale of the space, and none where both weights are off there."""
    values = dict(winner["values"])
    weighted = space.parameters.get("penalty_weighted")
    if weighted is not None and not weighted.holds(values.get("penalty_weighted", True)):
        # A step penalises each row of E once; weighted, a row stands on average in 2B/E places of a batch, over B.
        values["penalty_entity"] *= winner["n_entities"] / 2
        values["penalty_relation"] *= winner["n_relations"]
        values["penalty_weighted"] = True
    sides = ("penalty_entity", "penalty_relation")
    if values.get("penalty", "none") != "none" and all(_switched_off(space, s, values[s]) for s in sides):
        values["penalty"] = "none"
    return values


def _switched_off(space: Space, name: str, weight: float) -> bool:
    parameter = space.parameters.get(name)
    return parameter is not None and parameter.is_off(parameter.nearest(weight))


def _drawn(parameter: Parameter, law: Mapping[str, Any], point: float) -> Any:
    """The value at a point under a law of the prior, kept inside the parameter's values."""
    if parameter.kind == "choice":
        return _picked(parameter, law.get("weights", []), point)
    off = law.get("off", 0.0) if parameter.off else 0.0
    if "quantiles" not in law or point < off:
        return parameter.nearest(0) if "quantiles" in law else parameter.value(point)
    levels = np.linspace(0.0, 1.0, len(law["quantiles"]))
    low, high = (_scaled(bound, law["log"]) for bound in (parameter.low, parameter.high))
    first, last = np.interp([low, high], law["quantiles"], levels)
    if last - first < _LEAST_MASS:
        return parameter.value(point)
    share = (point - off) / (1.0 - off)
    found = float(np.interp(first + share * (last - first), levels, law["quantiles"]))
    number = 10.0**found if law["log"] else found
    number = round(number) if parameter.kind == "int" else number
    return parameter.nearest(min(max(number, parameter.low), parameter.high))


def _scaled(value: float, log: bool) -> float:
    if not log:
        return value
    return math.log10(value) if value > 0 else -math.inf


def _picked(parameter: Parameter, weights: list[list[Any]], point: float) -> Any:
    """One of the choices; those that the prior does not know weigh as much as the known ones on average."""
    known = [w for value, w in weights if parameter.holds(value)]
    if not known:
        return parameter.value(point)
    mean = sum(known) / len(known)
    each = [next((w for value, w in weights if same(value, v)), mean) for v in parameter.values]
    shares = np.cumsum(each) / sum(each)
    return parameter.values[min(int(np.searchsorted(shares, point, side="right")), len(each) - 1)]
