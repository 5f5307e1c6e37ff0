"""The configurations of the first round: random, from a Sobol sequence, or from the portfolio.

Several models share a search: configuration i has model i mod m and proposal i div m of that model, so all models get
the same points. More configurations always start with the same ones, so a search can be extended.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from statistics import median
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from grash.errors import ConfigError
from grash.kernels.random import key_of
from grash.search.named_spaces import space_of
from grash.search.portfolio import from_prior, winners_in
from grash.search.settings import SearchSettings
from grash.search.space import Space
from grash.search.trial import Configuration
from grash.training.config import TrainConfig, make_config

FINAL_VALIDATIONS = 20
FINAL_PATIENCE = 5
Method = Literal["random", "sobol", "portfolio"]
# One in four is uniform, one in four a published winner, the rest from the prior. The first is a winner; of any two or
# more, at least a quarter is uniform.
_FIRST = ("winner", "uniform", "prior", "prior")
_THEN = ("uniform", "winner", "prior", "prior")


@dataclass(frozen=True)
class Proposal:
    """Values for a training and their origin."""

    values: dict[str, Any]
    origin: str  # random, sobol, portfolio:NAME, prior, uniform, user:FILE or run:NAME


def make_configurations(settings: SearchSettings, n_entities: int, count: int) -> list[Configuration]:
    """Return the first `count` configurations of the search."""
    if settings.budget_unit == "scores" and count < settings.n_trials:  # relative costs refer to all n_trials
        return make_configurations(settings, n_entities, settings.n_trials)[:count]
    proposals = given_proposals(settings, n_entities)[:count]
    n_models, n_drawn = len(settings.models), count - len(proposals)
    drawn = {
        model: propose(
            space_for(settings, model, n_entities),
            settings.proposals,
            -(-n_drawn // n_models),
            seed=settings.seed,
            model=model,
            n_entities=n_entities,
        )
        for model in settings.models
    }
    for i in range(n_drawn):
        model = settings.models[i % n_models]
        proposals.append((model, drawn[model][i // n_models]))
    configs = [full_training(settings, model, p.values, number=i) for i, (model, p) in enumerate(proposals)]
    costs = _relative_costs(settings, configs, n_entities)
    return [
        Configuration(i, config.model_dump(), proposal.origin, cost)
        for i, (config, (_, proposal), cost) in enumerate(zip(configs, proposals, costs))
    ]


def space_for(settings: SearchSettings, model: str, n_entities: int) -> Space:
    """Return the space of one model, with the settings that the search fixes."""
    space = space_of(settings.space, model, n_entities=n_entities)
    return space.with_fixed({"dim": settings.dim, **settings.fixed} if "dim" not in space.searched else settings.fixed)


def full_training(settings: SearchSettings, model: str, values: dict[str, Any], *, number: int) -> TrainConfig:
    """Return these values as a training at full fidelity: E epochs, 20 validations, patience 5."""
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
    """Return scores per positive times dimension: ((N_s + 1) + (N_o + 1))·d, or 2·|E|·d for 1vsAll and KvsAll."""
    if config.training == "negative_sampling":
        return float((config.negatives_head + 1 + config.negatives_tail + 1) * config.dim)
    return 2.0 * n_entities * config.dim


def given_proposals(settings: SearchSettings, n_entities: int) -> list[tuple[str, Proposal]]:
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
        if model not in settings.models:
            raise ConfigError(
                f"{origin} is a configuration of {model}, and the search is over {', '.join(settings.models)}: give "
                f"--model {','.join([*settings.models, model])}, or leave it out."
            )
        proposals.append((model, given_proposal(space_for(settings, model, n_entities), values, origin)))
    return proposals


def given_proposal(space: Space, values: Mapping[str, Any], origin: str) -> Proposal:
    """Return a configuration of the user (`user:FILE`) or of another run (`run:NAME`) if it is in the space."""
    return Proposal(space.check(values, source=origin.partition(":")[2] or origin), origin)


def propose(
    space: Space, method: Method, count: int, *, seed: int, model: str, start: int = 0, n_entities: int | None = None
) -> list[Proposal]:
    """Return the proposals number start … start + count − 1 of this space, seed and model.

    n_entities: of the dataset; winners on graphs of similar size come first.
    """
    if method == "random":
        return [Proposal(space.configuration(row), "random") for row in space.points(seed, count, start=start)]
    if method == "sobol":
        return [Proposal(space.configuration(row), "sobol") for row in _sobol(space, seed, start + count)[start:]]
    if method == "portfolio":
        return _portfolio(space, start + count, seed, model, n_entities)[start:]
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


def _portfolio(space: Space, count: int, seed: int, model: str, n_entities: int | None) -> list[Proposal]:
    published = winners_in(space, model, n_entities).values
    winners = [Proposal(values, f"portfolio:{name}") for name, values in published.items()]
    uniform = [Proposal(space.configuration(row), "uniform") for row in space.points(seed, count)]
    prior = [Proposal(v, "prior") for v in from_prior(space, model, space.points(seed, count, stream="prior"))]
    proposals: list[Proposal] = []
    used = {"winner": 0, "uniform": 0, "prior": 0}
    for i in range(count):
        kind = (_FIRST if i < len(_FIRST) else _THEN)[i % len(_THEN)]
        if kind == "winner" and used["winner"] >= len(winners):
            kind = "prior"
        source = {"winner": winners, "uniform": uniform, "prior": prior}[kind]
        proposals.append(source[used[kind]])
        used[kind] += 1
    return proposals


def _relative_costs(settings: SearchSettings, configs: list[TrainConfig], n_entities: int) -> list[float]:
    """Return 1 for each, or with budget_unit=scores the score count relative to the median."""
    if settings.budget_unit == "triples":
        return [1.0] * len(configs)
    counts = [score_count(c, n_entities) for c in configs]
    reference = median(counts[: settings.n_trials])
    return [c / reference for c in counts]
