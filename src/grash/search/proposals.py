"""The configurations of the first round: random, from a Sobol sequence, or from the portfolio (portfolio.json).

The portfolio holds published winners and a prior, which `tools/fit_prior.py` fitted to the good winners and to
published tuning trials, per parameter and widened. Proposals of the portfolio mix both with uniform draws.

Several models share a search: configuration i has model i mod m and proposal i div m of that model, so all models get
the same points. More configurations always start with the same ones, so a search can be extended.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from numpy.typing import NDArray

from grash.errors import ConfigError
from grash.files import read_json
from grash.kernels.random import key_of
from grash.search.named_spaces import space_of
from grash.search.settings import SearchSettings
from grash.search.space import Parameter, Space, same_value
from grash.search.trial import FINAL_VALIDATIONS, Configuration
from grash.training.config import TrainConfig, make_config

FINAL_PATIENCE = 10  # half of them: with 5, trainings whose MRR still rose stopped on noise
# One in four is uniform, one in four a published winner, the rest from the prior. The first is a winner; of any two or
# more, at least a quarter is uniform.
_FIRST = ("winner", "uniform", "prior", "prior")
_THEN = ("uniform", "winner", "prior", "prior")
GOOD_SHARE = 0.9  # of the best published test MRR on its dataset, which a winner needs to be proposed
_FILE = Path(__file__).with_name("portfolio.json")
_RELATED = {"cp": ("complex",), "distmult": ("complex",)}  # models whose winners follow a model's own
_PRIOR_OF = {"cp": "complex"}
_SAME_RATE = {"row_adagrad": "adagrad", "lazy_adam": "adam"}
_REPLACEABLE = ("batch_size", "dim", "reciprocal", "schedule", "penalty_weighted")  # a fixed value may replace these
_MIN_MASS = 0.02  # of the prior inside a range; with less it is not used


@dataclass(frozen=True)
class Proposal:
    """Values for a training and their origin."""

    values: dict[str, Any]
    origin: str  # random, sobol, portfolio:NAME, prior, uniform, user:FILE or run:NAME


def make_configurations(
    settings: SearchSettings, n_entities: int, count: int, *, n_train: int | None = None
) -> list[Configuration]:
    """Return the first `count` configurations of the search. n_entities, n_train: of the dataset."""
    if settings.budget_unit == "scores" and count < settings.n_trials:  # relative costs refer to all n_trials
        return make_configurations(settings, n_entities, settings.n_trials, n_train=n_train)[:count]
    proposals = given_proposals(settings, n_entities, n_train)[:count]
    n_models, n_drawn = len(settings.models), count - len(proposals)
    drawn = {
        model: propose(
            space_for(settings, model, n_entities, n_train),
            settings.proposals,
            -(-n_drawn // n_models),
            seed=settings.seed,
            model=model,
            n_entities=n_entities,
        )  # fmt: skip
        for model in settings.models
    }
    for i in range(n_drawn):
        model = settings.models[i % n_models]
        proposals.append((model, drawn[model][i // n_models]))
    configs = [full_training(settings, model, p.values, number=i) for i, (model, p) in enumerate(proposals)]
    costs = [1.0] * len(configs)
    if settings.budget_unit == "scores":  # relative to the median
        counts = [score_count(c, n_entities) for c in configs]
        typical = median(counts[: settings.n_trials])
        costs = [c / typical for c in counts]
    return [
        Configuration(i, config.model_dump(), proposal.origin, cost)
        for i, (config, (_, proposal), cost) in enumerate(zip(configs, proposals, costs))
    ]


def space_for(settings: SearchSettings, model: str, n_entities: int, n_train: int | None = None) -> Space:
    """Return the space of one model, with the settings that the search fixes."""
    epochs, one_vs_all = None if settings.time else settings.max_epochs, settings.one_vs_all
    space = space_of(settings.space, model, n_entities, n_train=n_train, epochs=epochs, one_vs_all=one_vs_all)
    most = settings.largest_dim(model)
    fixed = settings.fixed.get("dim")
    if isinstance(fixed, int) and fixed > most:
        raise ConfigError(f"dim={fixed} is fixed, and at most {most} is allowed for {model}.")
    if "dim" not in space.searched:
        return space.with_fixed({"dim": dim_of(settings, model), **settings.fixed})
    return space.limited("dim", most).with_fixed(settings.fixed)


def dim_of(settings: SearchSettings, model: str) -> int:
    """Return the dimension of a model whose dimension is not searched."""
    return min(settings.dim, settings.largest_dim(model))


def possible_dims(settings: SearchSettings, model: str, n_entities: int, n_train: int | None = None) -> list[int]:
    """Return the dimensions that a limit may choose from, ascending: those of the space, or multiples of 8."""
    if "dim" in settings.fixed:
        return [settings.fixed["dim"]]
    space = space_for(settings, model, n_entities, n_train)
    if "dim" not in space.searched:
        return [*range(8, dim := dim_of(settings, model), 8), dim]
    searched = space.parameters["dim"]
    if searched.kind == "choice":
        return sorted(searched.values)
    low, high = int(searched.low), int(searched.high)
    return sorted({low, high, *range(-(-low // 8) * 8, high, 8)})


def full_training(settings: SearchSettings, model: str, values: dict[str, Any], *, number: int) -> TrainConfig:
    """Return these values as a training at full fidelity: E epochs, 20 validations, patience 10."""
    return make_config({
        "dim": dim_of(settings, model),
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
    """Return scores per positive times dimension: ((N_s + 1) + (N_o + 1))·d, or 2·|E|·d for 1vsAll and KvsAll."""
    if config.training == "negative_sampling":
        return float((config.negatives_head + 1 + config.negatives_tail + 1) * config.dim)
    return 2.0 * n_entities * config.dim


def scores_of_models(
    settings: SearchSettings, models: Sequence[str], n_entities: int, n_train: int
) -> dict[str, list[float]]:
    """Return the scores per positive of the first configurations of every model."""
    found = {}
    for model in models:
        own = settings.model_copy(update={"models": (model,), "initial": ()})
        made = (make_config(c.values) for c in make_configurations(own, n_entities, settings.n_trials, n_train=n_train))
        found[model] = [score_count(config, n_entities) / config.dim for config in made]
    return found


def given_proposals(
    settings: SearchSettings, n_entities: int, n_train: int | None = None
) -> list[tuple[str, Proposal]]:
    """Return (model, proposal) of the configurations that the user gave; one outside its space is an error."""
    if len(settings.initial) > settings.n_trials:
        raise ConfigError(
            f"{len(settings.initial)} configurations were given, but the first round has n_trials={settings.n_trials}: "
            f"give more trials, or fewer configurations."
        )
    proposals = []
    for entry in settings.initial:
        values, origin = dict(entry["values"]), entry["origin"]
        model = values.pop("model", settings.models[0])
        limit = settings.max_prediction_ms
        if model not in settings.models and limit is not None and not settings.largest_dim(model):
            raise ConfigError(
                f"{origin} is a configuration of {model}, which is too slow for max_prediction_ms={limit:g}: allow "
                f"more (--max-prediction-ms), or leave the configuration out."
            )
        if model not in settings.models:
            raise ConfigError(
                f"{origin} is a configuration of {model}, and the search is over {', '.join(settings.models)}: give "
                f"--model {','.join([*settings.models, model])}, or leave it out."
            )
        source = origin.partition(":")[2] or origin  # `user:FILE`, or `run:NAME` of another run
        checked = space_for(settings, model, n_entities, n_train).check(values, source=source)
        proposals.append((model, Proposal(checked, origin)))
    return proposals


def propose(
    space: Space, method: str, count: int, *, seed: int, model: str, start: int = 0, n_entities: int | None = None,
    portfolio: Mapping[str, Any] | None = None,
) -> list[Proposal]:  # fmt: skip
    """Return the proposals number start … start + count − 1 of this space, seed and model.

    n_entities: of the dataset; winners on graphs of similar size come first. portfolio: instead of portfolio.json.
    """
    if method == "random":
        return [Proposal(space.configuration(row), "random") for row in space.points(seed, count, start=start)]
    if method == "sobol":
        return [Proposal(space.configuration(row), "sobol") for row in _sobol(space, seed, start + count)[start:]]
    if method == "portfolio":
        return _portfolio(space, start + count, seed, model, n_entities, portfolio or read_portfolio())[start:]
    raise ConfigError(f"proposals={method!r} is not known: give random, sobol or portfolio.")


def _sobol(space: Space, seed: int, count: int) -> NDArray[np.float64]:
    """Return (count, D) points of a scrambled Sobol sequence. A name has the same dimension in all spaces."""
    import torch
    from torch.quasirandom import SobolEngine

    names = list(TrainConfig.model_fields)
    engine = SobolEngine(len(names), scramble=True, seed=key_of(seed, "sobol") >> 1)
    if not space.searched or not count:
        return np.empty((count, len(space.searched)))
    drawn = engine.draw(count, dtype=torch.float64).numpy()
    return drawn[:, [names.index(name) for name in space.searched]]


def _portfolio(
    space: Space, count: int, seed: int, model: str, n_entities: int | None, portfolio: Mapping[str, Any]
) -> list[Proposal]:
    fitting = winners_in(space, model, n_entities, portfolio["winners"])
    published = iter([Proposal(v, f"portfolio:{name}") for name, v in fitting.items()])
    uniform = iter([Proposal(space.configuration(row), "uniform") for row in space.points(seed, count)])
    points = space.points(seed, count, stream="prior")
    prior = iter([Proposal(v, "prior") for v in from_prior(space, model, points, portfolio["prior"])])
    winners = (proposal for source in (published, prior) for proposal in source)  # the prior when there are no more
    sources = {"winner": winners, "uniform": uniform, "prior": prior}
    return [next(sources[(_FIRST if i < len(_FIRST) else _THEN)[i % len(_THEN)]]) for i in range(count)]


def winners_in(
    space: Space, model: str, n_entities: int | None = None, winners: Sequence[dict[str, Any]] | None = None
) -> dict[str, dict[str, Any]]:
    """Return the winners of a model that fit the space, by name; those of datasets of similar size come first.

    Values outside the space are replaced by the nearest ones inside where that makes sense; other winners, and those
    that are then equal to another, are left out.
    """
    models = [model, *_RELATED.get(model, ())]  # its own winners come first

    def distance(winner: dict[str, Any]) -> tuple[int, float]:
        ratio = 0.0 if n_entities is None else abs(math.log(winner["n_entities"] / max(n_entities, 1)))
        return models.index(winner["model"]), ratio

    found: dict[str, dict[str, Any]] = {}
    for winner in sorted((w for w in good_winners(winners) if w["model"] in models), key=distance):
        with suppress(ConfigError):
            fitted = _fit(space, winner)
            if fitted not in found.values():
                found[winner["name"]] = fitted
    return found


def from_prior(
    space: Space, model: str, points: NDArray[np.float64], prior: Mapping[str, Any] | None = None
) -> list[dict[str, Any]]:
    """Return the configurations of a model's prior at (count, D) points; parameters without a prior are uniform."""
    priors = (read_portfolio()["prior"] if prior is None else prior).get(_PRIOR_OF.get(model, model), {})
    return [_configuration(space, priors, dict(zip(space.searched, map(float, row)))) for row in points]


def all_winners() -> list[dict[str, Any]]:
    """Return the records of portfolio.json: name, model, dataset with its sizes, test_mrr, values."""
    return list(read_portfolio()["winners"])


def good_winners(winners: Sequence[dict[str, Any]] | None = None) -> list[dict[str, Any]]:
    """Return the winners without those that are far below others of the same model and dataset."""
    winners = all_winners() if winners is None else winners
    best: dict[tuple[str, str], float] = {}
    for w in winners:
        key = (w["model"], w["dataset"])
        best[key] = max(best.get(key, 0.0), w["test_mrr"])
    return [w for w in winners if w["test_mrr"] >= GOOD_SHARE * best[w["model"], w["dataset"]]]


@functools.cache
def read_portfolio() -> dict[str, Any]:
    return read_json(_FILE, schema="grash-portfolio", version=1)


def _fit(space: Space, winner: Mapping[str, Any]) -> dict[str, Any]:
    """Return the winner's values in the space; a ConfigError if one of them cannot be replaced."""
    values = _comparable(space, winner)

    def choose(parameter: Parameter, _: Mapping[str, Any]) -> Any:
        name = parameter.name
        if parameter.kind == "fixed" and (name not in values or name == "model"):
            return parameter.values[0]
        value = values.get(name, TrainConfig.model_fields[name].default)
        return value if parameter.contains(value) else _nearest(parameter, value)

    return space.fill(choose)


def _nearest(parameter: Parameter, value: Any) -> Any:
    name = parameter.name
    if parameter.kind in ("float", "int"):
        return parameter.nearest(value)
    if parameter.kind == "choice" and name in ("batch_size", "dim"):
        return min(parameter.values, key=lambda v: abs(math.log(v / value)))
    if parameter.kind == "fixed" and name in _REPLACEABLE:
        return parameter.values[0]
    raise ConfigError(f"{name}={value} does not fit: {parameter.describe()}.")


def _comparable(space: Space, winner: Mapping[str, Any]) -> dict[str, Any]:
    """Return a winner's values as the space has them.

    1vsAll becomes as many negatives as the space has, if it has no 1vsAll. The penalty gets the scale of the space, or
    is left out if both weights become 0.
    """
    values = dict(winner["values"])
    training = space.parameters.get("training")
    if values.get("training") == "1vsall" and training is not None and not training.contains("1vsall"):
        values["training"] = "negative_sampling"
        most = {n: p for n, p in space.parameters.items() if n in ("negatives_head", "negatives_tail")}
        values |= {name: p.values[0] if p.kind == "fixed" else p.high for name, p in most.items()}
    if values.get("penalty", "none") == "none":
        return values
    weighted, was = space.parameters.get("penalty_weighted"), values.get("penalty_weighted", True)
    if weighted is not None and not weighted.contains(was):
        # Unweighted, a step penalizes each of E rows once; weighted, a row occurs 2B/E times in a batch, over B.
        for name, factor in (("penalty_entity", winner["n_entities"] / 2), ("penalty_relation", winner["n_relations"])):
            values[name] *= 1 / factor if was else factor
        values["penalty_weighted"] = not was
    sides = [(space.parameters.get(name), values[name]) for name in ("penalty_entity", "penalty_relation")]
    if all(parameter is not None and parameter.is_off(parameter.nearest(weight)) for parameter, weight in sides):
        values["penalty"] = "none"
    return values


def _configuration(space: Space, priors: Mapping[str, Any], at: Mapping[str, float]) -> dict[str, Any]:
    def choose(parameter: Parameter, found: Mapping[str, Any]) -> Any:
        prior = priors.get(parameter.name)
        if parameter.kind == "fixed" or prior is None:
            return parameter.value(at.get(parameter.name, 0.5))
        if "given" in prior:  # a good learning rate depends on the optimizer, whichever is drawn first
            other = space.parameters.get(prior["given"])
            known = TrainConfig.model_fields[prior["given"]].default if other is None else choose(other, found)
            prior = prior["distributions"].get(_SAME_RATE.get(known, known), {})
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
    ends = [parameter.low, parameter.high]
    if prior["log"]:
        ends = [math.log10(end) if end > 0 else -math.inf for end in ends]
    first, last = np.interp(ends, prior["quantiles"], levels)
    if last - first < _MIN_MASS:
        return parameter.value(point)
    share = (point - off) / (1.0 - off)
    found = float(np.interp(first + share * (last - first), levels, prior["quantiles"]))
    number = 10.0**found if prior["log"] else found
    number = round(number) if parameter.kind == "int" else number
    return parameter.nearest(min(max(number, parameter.low), parameter.high))


def _choice_at(parameter: Parameter, weights: list[list[Any]], point: float) -> Any:
    """Return one of the choices; those without a prior have the mean weight of the others."""
    known = [w for value, w in weights if parameter.contains(value)]
    if not known:
        return parameter.value(point)
    mean = sum(known) / len(known)
    all_weights = [next((w for value, w in weights if same_value(value, v)), mean) for v in parameter.values]
    shares = np.cumsum(all_weights) / sum(all_weights)
    return parameter.values[min(int(np.searchsorted(shares, point, side="right")), len(all_weights) - 1)]
