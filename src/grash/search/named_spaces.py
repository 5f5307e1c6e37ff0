"""The named spaces: `paper` (what GraSH published), `default` (ours), `wide` (with dimension, batch size, optimizer).

What they hold and why is in docs/reference/spaces.md. Comes from the settings of a search, goes to `proposals.py`.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from grash.errors import ConfigError, UnknownName
from grash.models import model_class
from grash.search.libkge import is_libkge_search, libkge_search
from grash.search.space import Space, make_space, read_yaml

DISTANCE_MODELS = ("rotate", "transe")
ONE_VS_ALL_ENTITIES = 50_000  # beyond, comparing with all entities costs more than many negatives do
NEGATIVES = {"dot": 10_000, "distance": 1_000}  # largest number per side, as published


def space_of(given: str | Path | Mapping[str, Any] | list[Any], model: str, n_entities: int | None = None) -> Space:
    """The space of this model: a named one, one in a YAML file (LibKGE's search files too), or its parameters.

    n_entities of the whole dataset: on small graphs `default` and `wide` also compare with all entities.
    """
    model_class(model)
    if isinstance(given, str) and given in SPACES:
        return make_space({"model": model, **SPACES[given](model, n_entities)}).verified()
    source = "" if isinstance(given, Mapping | list) else str(given)
    if isinstance(given, Mapping | list):
        space = make_space(given)
    else:
        check_there(given)
        content = read_yaml(Path(given))
        space = (
            libkge_search(content, source).space if is_libkge_search(content) else make_space(content, source=source)
        )
    return _of_model(space, model, source).verified(source=source)


def check_there(given: str | Path) -> None:
    """Raises if this is neither a named space nor a file."""
    if str(given) not in SPACES and not Path(given).exists():
        close = difflib.get_close_matches(str(given), SPACES, n=2, cutoff=0.5)
        raise UnknownName("search space", str(given), close, hint=f"Spaces: {', '.join(SPACES)}; or give a YAML file.")


def _of_model(space: Space, model: str, source: str) -> Space:
    if "model" not in space.parameters:
        return Space({**make_space({"model": model}).parameters, **space.parameters})
    own = space.parameters["model"].values[0]
    if own != model:
        where = f"{source}: " if source else ""
        raise ConfigError(f"{where}the space is of {own}, and {model} is to be searched: give --model {own}.")
    return space


def _paper(model: str, n_entities: int | None) -> dict[str, Any]:
    """The published space to the letter, whatever the graph."""
    negatives = {"type": "int", "low": 1, "high": NEGATIVES[_family(model)]}
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
        "reciprocal": False,
        "norm": 1,
        "training": "negative_sampling",
        "loss": "softmax",
        **_ALWAYS,
        "optimizer": "adagrad",
        "batch_size": 1024,
    }


def _default(model: str, n_entities: int | None) -> dict[str, Any]:
    """What was worth searching in published winners: fewer dead ranges, and the losses and penalties that help."""
    dropout = {"type": "float", "low": 0.0, "high": 0.5, "off": 0.5}
    return {
        "lr": {"type": "float", "low": 0.003, "high": 1.0, "log": True},
        **_init({"type": "float", "low": 3e-5, "high": 0.5, "log": True}),
        **(_distance_losses(model) if _family(model) == "distance" else _dot_losses(n_entities)),
        **_penalties(model),
        "dropout_entity": dropout,
        "dropout_relation": dropout,
        **_negatives(model, n_entities),
        "reciprocal": True if model == "cp" else {"type": "categorical", "choices": [False, True]},
        **_ALWAYS,
        "optimizer": "adagrad",
        "batch_size": 1024,
    }


def _wide(model: str, n_entities: int | None) -> dict[str, Any]:
    dims = [32, 64, 128, 256] if model == "rescal" else [64, 128, 256, 512]
    # Adam moves every row in every step, which only small tables can afford
    adam = "adam" if n_entities is not None and n_entities <= ONE_VS_ALL_ENTITIES else "lazy_adam"
    return {
        **_default(model, n_entities),
        "lr": {"type": "float", "low": 0.0003, "high": 1.0, "log": True},
        "dim": {"type": "categorical", "choices": dims},
        "batch_size": {"type": "categorical", "choices": [128, 256, 512, 1024, 2048]},
        "optimizer": {"type": "categorical", "choices": ["adagrad", adam]},
    }


def _init(std: Mapping[str, Any]) -> dict[str, Any]:
    """Initial laws. Uniform is U(a, 1), as in the published configurations; a symmetric law is what normal is for."""
    return {
        "init": {"type": "categorical", "choices": ["xavier_normal", "xavier_uniform", "normal", "uniform"]},
        "init_std": {**std, "when": {"init": "normal"}},
        "init_low": {"type": "float", "low": -1.0, "high": -1e-5, "when": {"init": "uniform"}},
        "init_high": {"type": "fixed", "value": 1.0, "when": {"init": "uniform"}},
    }


def _dot_losses(n_entities: int | None) -> dict[str, Any]:
    small = n_entities is not None and n_entities <= ONE_VS_ALL_ENTITIES
    both = {"type": "categorical", "choices": ["negative_sampling", "1vsall"]}
    return {
        "training": both if small else "negative_sampling",
        "loss": "softmax",
        "relation_prediction": {"type": "float", "low": 0.05, "high": 8.0, "log": True, "off": 0.5},
    }


def _distance_losses(model: str) -> dict[str, Any]:
    sharp = {"loss": "self_adversarial"}
    return {
        "training": "negative_sampling",
        "loss": {"type": "categorical", "choices": ["softmax", "self_adversarial"]},
        "margin": {"type": "float", "low": 1.0, "high": 24.0, "log": True, "when": sharp},
        "temperature": {"type": "float", "low": 0.25, "high": 2.0, "log": True, "when": sharp},
        "norm": {"type": "categorical", "choices": [1, 2]} if model == "transe" else 1,
    }


def _penalties(model: str) -> dict[str, Any]:
    # no dura: the fused step does not serve it, and a trial with it would take longer than all others together
    powers = ["l1", "l2", "l3"] if _family(model) == "distance" else ["l2", "l3", "n3"]
    weight = {"type": "float", "low": 1e-6, "high": 1.0, "log": True}
    return {
        "penalty": {"type": "categorical", "choices": ["none", *powers]},
        "penalty_entity": {**weight, "off": 0.25, "when": {"penalty": powers}},
        "penalty_relation": {**weight, "off": 0.25, "when": {"penalty": powers}},
        "penalty_weighted": True,
    }


def _negatives(model: str, n_entities: int | None) -> dict[str, Any]:
    cap = NEGATIVES[_family(model)]
    high = cap if n_entities is None else max(1, min(cap, n_entities - 1))
    number = {"type": "int", "low": min(10, high), "high": high, "log": True, "when": {"training": "negative_sampling"}}
    return {"negatives_head": number, "negatives_tail": number}


def _family(model: str) -> str:
    return "distance" if model in DISTANCE_MODELS else "dot"


_ALWAYS = {
    "negatives_shared": True,
    "negatives_replacement": False,
    "negatives_sampling": "uniform",
    "negatives_filtered": False,
    "schedule": "constant",
}

SPACES: dict[str, Callable[[str, int | None], dict[str, Any]]] = {
    "paper": _paper,
    "default": _default,
    "wide": _wide,
}
