"""Points of the space become configurations: whole training runs, numbered, priced, with their origin.

Several models share a search: configuration i is of model i mod m, and takes the point i div m, so that all models get
the same points (D9).
"""

from __future__ import annotations

from statistics import median
from typing import Any

from grash.errors import ConfigError
from grash.search.proposals import Proposal, initial, propose
from grash.search.settings import SearchSettings
from grash.search.space import Space
from grash.search.spaces import space_of
from grash.search.trial import Configuration
from grash.training.config import TrainConfig, make_config

FINAL_VALIDATIONS = 20
FINAL_PATIENCE = 5


def make_configurations(settings: SearchSettings, n_entities: int, count: int) -> list[Configuration]:
    """The first `count` configurations of the search; more of them begin with fewer of them."""
    if (
        settings.price == "scores" and count < settings.n_trials
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
    """1 each; with --price scores, the score count in units of the median of the space's draws."""
    if settings.price == "triples":
        return [1.0] * len(configs)
    counts = [score_count(c, n_entities) for c in configs]
    reference = median(counts[: settings.n_trials])
    return [c / reference for c in counts]
