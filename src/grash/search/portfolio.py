"""Prior knowledge about good configurations (`portfolio.json`): published winners, and a prior fitted to them.

`tools/fit_prior.py` fits the prior to the good winners and to published tuning trials, per parameter and widened.
`proposals.py` mixes both with uniform draws.
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
from grash.search.space import Parameter, Space, same_value
from grash.training.config import TrainConfig

GOOD_SHARE = 0.9  # of the best published test MRR on its dataset, which a winner needs to be proposed
_FILE = Path(__file__).with_name("portfolio.json")
_RELATED = {"cp": ("complex",), "distmult": ("complex",)}  # models whose winners follow a model's own
_PRIOR_OF = {"cp": "complex"}
_SAME_RATE = {"row_adagrad": "adagrad", "lazy_adam": "adam"}
_REPLACEABLE = ("batch_size", "dim", "reciprocal", "schedule", "penalty_weighted")  # a fixed value may replace these
_MIN_MASS = 0.02  # of the prior inside a range; with less it is not used


@dataclass(frozen=True)
class Winners:
    """Published configurations, fitted into a space."""

    values: dict[str, dict[str, Any]]  # by name; those of datasets of similar size first
    notes: list[str]  # what was changed or left out


def winners_in(space: Space, model: str, n_entities: int | None = None) -> Winners:
    """Return the winners of a model that fit the space; those of datasets of similar size come first."""
    values: dict[str, dict[str, Any]] = {}
    notes: list[str] = []
    for winner in _by_similarity(model, n_entities):
        name = winner["name"]
        try:
            fitted, changes = _fit(space, winner)
        except _OutsideError as error:
            notes.append(f"{name}: left out, {error}.")
            continue
        if fitted in values.values():
            notes.append(f"{name}: left out, it is equal to another.")
            continue
        values[name] = fitted
        if changes:
            notes.append(f"{name}: used with {', '.join(changes)}.")
    return Winners(values, notes)


def from_prior(space: Space, model: str, points: NDArray[np.float64]) -> list[dict[str, Any]]:
    """Return the configurations of a model's prior at (count, D) points; parameters without a prior are uniform."""
    priors = _portfolio()["prior"].get(_PRIOR_OF.get(model, model), {})
    return [_configuration(space, priors, dict(zip(space.searched, map(float, row)))) for row in points]


def all_winners() -> list[dict[str, Any]]:
    """Return the records of portfolio.json: name, model, dataset with its sizes, test_mrr, values."""
    return list(_portfolio()["winners"])


def good_winners() -> list[dict[str, Any]]:
    """Return the winners without those that are far below others of the same model and dataset."""
    best: dict[tuple[str, str], float] = {}
    for w in all_winners():
        key = (w["model"], w["dataset"])
        best[key] = max(best.get(key, 0.0), w["test_mrr"])
    return [w for w in all_winners() if w["test_mrr"] >= GOOD_SHARE * best[w["model"], w["dataset"]]]


@functools.cache
def _portfolio() -> dict[str, Any]:
    return read_json(_FILE, schema="grash-portfolio", version=1)


def _by_similarity(model: str, n_entities: int | None) -> list[dict[str, Any]]:
    """Return winners of the model, then of related models; within these, by the ratio of the graphs' sizes."""

    def distance(winner: dict[str, Any]) -> tuple[int, float]:
        ratio = 0.0 if n_entities is None else abs(math.log(winner["n_entities"] / max(n_entities, 1)))
        return models.index(winner["model"]), ratio

    models = [model, *_RELATED.get(model, ())]
    return sorted((w for w in good_winners() if w["model"] in models), key=distance)


class _OutsideError(Exception):
    """A winner does not fit into a space."""


def _fit(space: Space, winner: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """Return the winner's values in the space, and the changes that were necessary."""
    values = _comparable(space, winner)
    changes: list[str] = []

    def choose(parameter: Parameter, _: Mapping[str, Any]) -> Any:
        name = parameter.name
        if parameter.kind == "fixed" and (name not in values or name == "model"):
            return parameter.values[0]
        value = values.get(name, TrainConfig.model_fields[name].default)
        if parameter.contains(value):
            return value
        nearest = _nearest(parameter, value)
        if not parameter.is_off(nearest):
            changes.append(f"{name}={nearest} instead of {value}")
        return nearest

    return space.fill(choose), changes


def _nearest(parameter: Parameter, value: Any) -> Any:
    name = parameter.name
    if parameter.kind in ("float", "int"):
        return parameter.nearest(value)
    if parameter.kind == "choice" and name in ("batch_size", "dim"):
        return min(parameter.values, key=lambda v: abs(math.log(v / value)))
    if parameter.kind == "fixed" and name in _REPLACEABLE:
        return parameter.values[0]
    raise _OutsideError(f"{name}={value} does not fit: {parameter.describe()}")


def _comparable(space: Space, winner: Mapping[str, Any]) -> dict[str, Any]:
    """Return a winner's values with its penalty in the scale of the space, or none if both weights become 0."""
    values = dict(winner["values"])
    weighted = space.parameters.get("penalty_weighted")
    if weighted is not None and not weighted.contains(values.get("penalty_weighted", True)):
        # Unweighted, a step penalizes each of E rows once; weighted, a row occurs 2B/E times in a batch, over B.
        values["penalty_entity"] *= winner["n_entities"] / 2
        values["penalty_relation"] *= winner["n_relations"]
        values["penalty_weighted"] = True
    sides = ("penalty_entity", "penalty_relation")
    if values.get("penalty", "none") != "none" and all(_becomes_zero(space, s, values[s]) for s in sides):
        values["penalty"] = "none"
    return values


def _becomes_zero(space: Space, name: str, weight: float) -> bool:
    parameter = space.parameters.get(name)
    return parameter is not None and parameter.is_off(parameter.nearest(weight))


def _configuration(space: Space, priors: Mapping[str, Any], at: Mapping[str, float]) -> dict[str, Any]:
    def choose(parameter: Parameter, found: Mapping[str, Any]) -> Any:
        prior = priors.get(parameter.name)
        if parameter.kind == "fixed" or prior is None:
            return parameter.value(at.get(parameter.name, 0.5))
        if "given" in prior:  # a good learning rate depends on the optimizer, whichever is drawn first
            other = space.parameters.get(prior["given"])
            known = TrainConfig.model_fields[prior["given"]].default if other is None else choose(other, found)
            prior = prior["laws"].get(_SAME_RATE.get(known, known), {})
        return _value_at(parameter, prior, at[parameter.name])

    return space.fill(choose)


def _value_at(parameter: Parameter, prior: Mapping[str, Any], point: float) -> Any:
    """Return the value of a prior at a point, inside the values of the parameter."""
    if parameter.kind == "choice":
        return _choice_at(parameter, prior.get("weights", []), point)
    off = prior.get("off", 0.0) if parameter.off else 0.0
    if "quantiles" not in prior or point < off:
        return parameter.nearest(0) if "quantiles" in prior else parameter.value(point)
    levels = np.linspace(0.0, 1.0, len(prior["quantiles"]))
    low, high = (_log10(bound, prior["log"]) for bound in (parameter.low, parameter.high))
    first, last = np.interp([low, high], prior["quantiles"], levels)
    if last - first < _MIN_MASS:
        return parameter.value(point)
    share = (point - off) / (1.0 - off)
    found = float(np.interp(first + share * (last - first), levels, prior["quantiles"]))
    number = 10.0**found if prior["log"] else found
    number = round(number) if parameter.kind == "int" else number
    return parameter.nearest(min(max(number, parameter.low), parameter.high))


def _log10(value: float, log: bool) -> float:
    if not log:
        return value
    return math.log10(value) if value > 0 else -math.inf


def _choice_at(parameter: Parameter, weights: list[list[Any]], point: float) -> Any:
    """Return one of the choices; those without a prior have the mean weight of the others."""
    known = [w for value, w in weights if parameter.contains(value)]
    if not known:
        return parameter.value(point)
    mean = sum(known) / len(known)
    all_weights = [next((w for value, w in weights if same_value(value, v)), mean) for v in parameter.values]
    shares = np.cumsum(all_weights) / sum(all_weights)
    return parameter.values[min(int(np.searchsorted(shares, point, side="right")), len(all_weights) - 1)]
