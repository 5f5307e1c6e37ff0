"""The named search spaces: `paper` (as published), `default`, and `wide` (also dimension, batch size, optimizer).

docs/reference/spaces.md lists their parameters and explains the choices.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from grash.errors import ConfigError, UnknownName
from grash.models import model_class
from grash.models.autograd import ScoreModel
from grash.search.space import Space, make_space, read_space

# of distance models, per side, as in the paper; 10,000 for models of dot products
MAX_NEGATIVES = {"rotate": 1_000, "transe": 1_000}  # and of every score function: no matrix product compares them
ONE_VS_ALL_ENTITIES = 50_000  # comparing with all entities then costs at most five times as much as many negatives
# Small batches are slower at first and better in the end, so only long trainings on small graphs have them (0047).
SMALL_BATCH_TRIPLES, SMALL_BATCH_EPOCHS = 200_000, 50


@dataclass(frozen=True)
class Graph:
    """What a space depends on; None where it is not known."""

    n_entities: int | None = None  # of the whole dataset
    n_train: int | None = None
    epochs: float | None = None  # of a full training
    one_vs_all: bool | None = None  # whether to compare with all entities; None: up to ONE_VS_ALL_ENTITIES

    @property
    def has_small_batches(self) -> bool:
        small = self.n_train is not None and self.n_train <= SMALL_BATCH_TRIPLES
        return small and self.epochs is not None and self.epochs >= SMALL_BATCH_EPOCHS

    @property
    def compares_all(self) -> bool:
        small = self.n_entities is not None and self.n_entities <= ONE_VS_ALL_ENTITIES
        return small if self.one_vs_all is None else self.one_vs_all


def space_of(
    given: str | Path | Mapping[str, Any] | list[Any],
    model: str,
    n_entities: int | None = None,
    *,
    n_train: int | None = None,
    epochs: float | None = None,
    one_vs_all: bool | None = None,
) -> Space:
    """Return the space of a model from its name, a YAML file, or its parameters. The rest is as in `Graph`."""
    model_class(model)
    if isinstance(given, str) and given in SPACES:
        graph = Graph(n_entities, n_train, epochs, one_vs_all)
        return make_space({"model": model, **SPACES[given](model, graph)}).verified()
    if isinstance(given, Mapping | list):
        return _for_model(make_space(given), model, "").verified()
    check_space_exists(given)
    return _for_model(read_space(Path(given)), model, str(given)).verified(source=str(given))


def check_space_exists(given: str | Path) -> None:
    """Raise an error if this is neither a named space nor a file."""
    if str(given) not in SPACES and not Path(given).exists():
        raise UnknownName("search space", str(given), hint=f"Spaces: {', '.join(SPACES)}; or give a YAML file.")


def _for_model(space: Space, model: str, source: str) -> Space:
    if "model" not in space.parameters:
        return Space({**make_space({"model": model}).parameters, **space.parameters})
    own = space.parameters["model"].values[0]
    if own != model:
        where = f"{source}: " if source else ""
        raise ConfigError(f"{where}the space is for {own}, and the search is for {model}: give --model {own}.")
    return space


def _paper(model: str, graph: Graph) -> dict[str, Any]:
    """Return the published space, the same for all graphs."""
    negatives = {"type": "int", "low": 1, "high": max_negatives(model)}
    weight = {"type": "float", "low": 1e-20, "high": 0.1, "log": True, "when": {"penalty": ["l3", "l2", "l1"]}}
    dropout = {"type": "float", "low": -0.5, "high": 0.5}
    return {
        "lr": {"type": "float", "low": 0.0003, "high": 1.0, "log": True},
        **_init({"type": "float", "low": 1e-5, "high": 1.0, "log": True}),
        "penalty": {"type": "categorical", "choices": ["none", "l3", "l2", "l1"]},
        "penalty_entity": weight,
        "penalty_relation": weight,
        "dropout_entity": dropout,
        "dropout_relation": dropout,
        "negatives_head": negatives,
        "negatives_tail": negatives,
        "penalty_weighted": True,
        "reciprocal": model_class(model).needs_reciprocal,
        "norm": 1,
        "training": "negative_sampling",
        "loss": "softmax",
        **_ALWAYS,
        "optimizer": "adagrad",
        "batch_size": 1024,
    }


def _default(model: str, graph: Graph) -> dict[str, Any]:
    """Return the default space: the ranges of published winners, and the losses and penalties that help."""
    cap, n_entities = max_negatives(model), graph.n_entities
    distance = cap < 10_000
    # no dura: the fused step does not support it, and one such trial would take longer than all others together
    powers = ["l1", "l2", "l3"] if distance else ["l2", "l3", "n3"]
    weight = {"type": "float", "low": 1e-6, "high": 1.0, "log": True, "off": 0.25, "when": {"penalty": powers}}
    most = cap if n_entities is None else max(1, min(cap, n_entities - 1))
    negatives = {"type": "int", "low": min(10, most), "high": most, "log": True, "when": _SAMPLED}
    dropout = {"type": "float", "low": 0.0, "high": 0.5, "off": 0.5}
    always_reciprocal = model == "cp" or model_class(model).needs_reciprocal
    return {
        "lr": {"type": "float", "low": 0.003, "high": 1.0, "log": True},
        **_init({"type": "float", "low": 3e-5, "high": 0.5, "log": True}),
        **(_distance_losses(model) if distance else _dot_losses(model, graph)),
        "penalty": {"type": "categorical", "choices": ["none", *powers]},
        "penalty_entity": weight,
        "penalty_relation": weight,
        "penalty_weighted": True,
        "dropout_entity": dropout,
        "dropout_relation": dropout,
        **dict.fromkeys(model_class(model).dropouts, dropout),
        "negatives_head": negatives,
        "negatives_tail": negatives,
        "reciprocal": True if always_reciprocal else {"type": "categorical", "choices": [False, True]},
        **_ALWAYS,
        "optimizer": "adagrad",
        "batch_size": {"type": "categorical", "choices": [256, 1024]} if graph.has_small_batches else 1024,
    }


def _wide(model: str, graph: Graph) -> dict[str, Any]:
    """Return the default space with dimension, batch size and optimizer searched too."""
    dims = [32, 64, 128, 256] if model in ("rescal", "tucker") else [64, 128, 256, 512]
    # Adam updates every row in every step, which is affordable only for small tables
    adam = "adam" if graph.n_entities is not None and graph.n_entities <= ONE_VS_ALL_ENTITIES else "lazy_adam"
    return {
        **_default(model, graph),
        "lr": {"type": "float", "low": 0.0003, "high": 1.0, "log": True},
        "dim": {"type": "categorical", "choices": dims},
        "batch_size": {"type": "categorical", "choices": [128, 256, 512, 1024, 2048]},
        "optimizer": {"type": "categorical", "choices": ["adagrad", adam]},
    }


def _init(std: Mapping[str, Any]) -> dict[str, Any]:
    """Return the parameters of the initial values. Uniform is U(a, 1), as in the published configurations."""
    return {
        "init": {"type": "categorical", "choices": ["xavier_normal", "xavier_uniform", "normal", "uniform"]},
        "init_std": {**std, "when": {"init": "normal"}},
        "init_low": {"type": "float", "low": -1.0, "high": -1e-5, "when": {"init": "uniform"}},
        "init_high": {"type": "fixed", "value": 1.0, "when": {"init": "uniform"}},
    }


def _dot_losses(model: str, graph: Graph) -> dict[str, Any]:
    both = {"type": "categorical", "choices": ["negative_sampling", "1vsall"]}
    found = {"training": both if graph.compares_all else "negative_sampling", "loss": "softmax"}
    if model_class(model).needs_reciprocal:  # these do not predict relations
        return found
    return found | {"relation_prediction": {"type": "float", "low": 0.025, "high": 8.0, "log": True, "off": 0.5}}


def max_negatives(model: str) -> int:
    """Return the most negatives per side. A model without matrix products is slow, so it has fewer."""
    return MAX_NEGATIVES.get(model, 1_000 if issubclass(model_class(model), ScoreModel) else 10_000)


def _distance_losses(model: str) -> dict[str, Any]:
    sharp = {"loss": "self_adversarial"}
    return {
        "training": "negative_sampling",
        "loss": {"type": "categorical", "choices": ["softmax", "self_adversarial"]},
        "margin": {"type": "float", "low": 1.0, "high": 24.0, "log": True, "when": sharp},
        "temperature": {"type": "float", "low": 0.25, "high": 2.0, "log": True, "when": sharp},
        "norm": {"type": "categorical", "choices": [1, 2]} if model == "transe" else 1,
    }


_SAMPLED = {"training": "negative_sampling"}
_ALWAYS = {
    "negatives_shared": True,
    "negatives_replacement": False,
    "negatives_sampling": "uniform",
    "negatives_filtered": False,
    "schedule": "constant",
}

SPACES: dict[str, Callable[[str, Graph], dict[str, Any]]] = {"paper": _paper, "default": _default, "wide": _wide}
