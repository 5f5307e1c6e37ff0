"""Points of the space become configurations: whole training runs, numbered, priced, with their origin.

Several models share a search: configuration i is of model i mod m, and takes the point i div m, so that all models get
the same points (D9).
"""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from grash.errors import ConfigError
from grash.files import read_json
from grash.kernels.random import key_of
from grash.search.named_spaces import space_of
from grash.search.settings import SearchSettings
from grash.search.space import Parameter, Space, same
from grash.search.trial import Configuration
from grash.training.config import TrainConfig, make_config

FINAL_VALIDATIONS = 20
FINAL_PATIENCE = 5


def make_configurations(settings: SearchSettings, n_entities: int, count: int) -> list[Configuration]:
    """The first `count` configurations of the search; more of them begin with fewer of them."""
    if (
        settings.budget_unit == "scores" and count < settings.n_trials
    ):  # the reference is of all draws, however few are needed
        return make_configurations(settings, n_entities, settings.n_trials)[:count]
    given = given_proposals(settings, n_entities)[:count]
    per_model = -(-(count - len(given)) // len(settings.models))
    drawn = {
        model: propose(
            space_for(settings, model, n_entities),
            settings.proposals,
            per_model,
            seed=settings.seed,
            model=model,
            n_entities=n_entities,
        )
        for model in settings.models
    }
    proposals = list(given)
    for i in range(count - len(given)):
        model = settings.models[i % len(settings.models)]
        proposals.append((model, drawn[model][i // len(settings.models)]))
    configs = [full_run(settings, model, p.values, number=i) for i, (model, p) in enumerate(proposals)]
    prices = _prices(settings, configs, n_entities)
    return [
        Configuration(i, config.model_dump(), proposal.origin, price)
        for i, (config, (_, proposal), price) in enumerate(zip(configs, proposals, prices))
    ]


def space_for(settings: SearchSettings, model: str, n_entities: int) -> Space:
    """The space of one model, without what the search fixes."""
    space = space_of(settings.space, model, n_entities=n_entities)
    return space.fixing({"dim": settings.dim, **settings.fixed} if "dim" not in space.searched else settings.fixed)


def full_run(settings: SearchSettings, model: str, values: dict[str, Any], *, number: int) -> TrainConfig:
    """The training of these values at full fidelity (D16): E epochs, validated 20 times, patience 5 of these."""
    return make_config({
        "dim": settings.dim,
        **values,
        **settings.fixed,
        "model": model,
        "epochs": settings.max_epochs,
        "valid_every": settings.max_epochs / FINAL_VALIDATIONS,
        "patience": FINAL_PATIENCE,
        "seed": settings.seed,
        "variation": number,
    })  # fmt: skip


def score_count(config: TrainConfig, n_entities: int) -> float:
    """Scores per positive times dimension: ((N_s + 1) + (N_o + 1))·d; |E|·d per direction for 1vsAll, KvsAll (D15)."""
    if config.training == "negative_sampling":
        return float((config.negatives_head + 1 + config.negatives_tail + 1) * config.dim)
    return 2.0 * n_entities * config.dim


def given_proposals(settings: SearchSettings, n_entities: int) -> list[tuple[str, Proposal]]:
    """(model, proposal) of the configurations that the user gave; one that lies outside its space is refused."""
    found = []
    if len(settings.initial) > settings.n_trials:
        raise ConfigError(
            f"{len(settings.initial)} configurations were given, and n_trials={settings.n_trials} enter the first: "
            f"give more trials, or fewer configurations."
        )
    for entry in settings.initial:
        values = dict(entry["values"])
        model = values.pop("model", settings.models[0])
        if model not in settings.models:
            raise ConfigError(
                f"{entry['origin']} is a configuration of {model}, and the search is over "
                f"{', '.join(settings.models)}: give --model {','.join([*settings.models, model])}, or leave it out."
            )
        found.append((model, initial(space_for(settings, model, n_entities), values, entry["origin"])))
    return found


def _prices(settings: SearchSettings, configs: list[TrainConfig], n_entities: int) -> list[float]:
    """1 each; with --budget-unit scores, the score count in units of the median of the space's draws."""
    if settings.budget_unit == "triples":
        return [1.0] * len(configs)
    counts = [score_count(c, n_entities) for c in configs]
    reference = median(counts[: settings.n_trials])
    return [c / reference for c in counts]


# = The configurations of the first round, each with its origin: `random`, `sobol` or `portfolio`.
# =
# = More of them always begin with fewer of them, so that a search can be extended. Comes from `space.py`.

How = Literal["random", "sobol", "portfolio"]
# One in four uniform, one in four a winner, the rest from the prior. The very first is a winner; of two or more
# proposals at least a quarter is uniform, wherever one stops.
_FIRST = ("winner", "uniform", "prior", "prior")
_THEN = ("uniform", "winner", "prior", "prior")


@dataclass(frozen=True)
class Proposal:
    """Values for a training, and where they come from: `random`, `sobol`, `portfolio:NAME`, `prior`, `uniform`,
    `user:FILE` or `run:NAME`."""

    values: dict[str, Any]
    origin: str


def propose(
    space: Space, how: How, count: int, *, seed: int, model: str, start: int = 0, n_entities: int | None = None
) -> list[Proposal]:
    """Proposals number start … start + count − 1 of this space, seed and model.

    n_entities of the dataset: winners from graphs of similar size come first.
    """
    if how == "random":
        return [Proposal(space.configuration(row), "random") for row in space.points(seed, count, start=start)]
    if how == "sobol":
        return [Proposal(space.configuration(row), "sobol") for row in _sobol(space, seed, start + count)[start:]]
    if how == "portfolio":
        return _portfolio(space, start + count, seed, model, n_entities)[start:]
    raise ConfigError(f"proposals={how!r} is not known: give random, sobol or portfolio.")


def initial(space: Space, values: Mapping[str, Any], source: str) -> Proposal:
    """A configuration given by a user (`user:FILE`) or taken from another run (`run:NAME`), if it lies in the space."""
    return Proposal(space.check(values, source=source.partition(":")[2] or source), source)


def _sobol(space: Space, seed: int, count: int) -> NDArray[np.float64]:
    """(count, D) points of a scrambled Sobol sequence. A name has its own dimension, whatever the space."""
    import torch
    from torch.quasirandom import SobolEngine

    names = list(TrainConfig.model_fields)
    engine = SobolEngine(len(names), scramble=True, seed=key_of(seed, "sobol") >> 1)
    if not space.searched or not count:
        return np.empty((count, len(space.searched)))
    drawn = engine.draw(count, dtype=torch.float64).numpy()
    return drawn[:, [names.index(name) for name in space.searched]]


def _portfolio(space: Space, count: int, seed: int, model: str, n_entities: int | None) -> list[Proposal]:
    winners = [
        Proposal(values, f"portfolio:{name}") for name, values in winners_in(space, model, n_entities).values.items()
    ]
    uniform = [Proposal(space.configuration(row), "uniform") for row in space.points(seed, count)]
    prior = [Proposal(v, "prior") for v in from_prior(space, model, space.points(seed, count, stream="prior"))]
    found: list[Proposal] = []
    used = {"winner": 0, "uniform": 0, "prior": 0}
    for i in range(count):
        kind = (_FIRST if i < len(_FIRST) else _THEN)[i % len(_THEN)]
        if kind == "winner" and used["winner"] >= len(winners):
            kind = "prior"
        source = {"winner": winners, "uniform": uniform, "prior": prior}[kind]
        found.append(source[used[kind]])
        used[kind] += 1
    return found


# = What is known before a search: configurations that won elsewhere, and a prior fitted to them (`portfolio.json`).
# =
# = The winners are published figures; the prior is fitted to the good ones and to published tuning trials by
# = `tools/fit_prior.py`, per parameter and widened. Goes to `proposals.py`, which mixes both with uniform draws.

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
        # A step penalizes each row of E once; weighted, a row stands on average in 2B/E places of a batch, over B.
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
