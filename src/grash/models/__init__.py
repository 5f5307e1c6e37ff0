"""Knowledge graph embedding models: tables and score functions, by name in MODELS."""

from __future__ import annotations

import difflib
import sys
from collections.abc import Iterable
from importlib import import_module

from grash.errors import ConfigError, UnknownName
from grash.models.base import KgeModel
from grash.models.complex import ComplEx
from grash.models.conve import ConvE
from grash.models.cp import CP
from grash.models.distmult import DistMult
from grash.models.mure import MuRE
from grash.models.pairre import PairRE
from grash.models.quate import QuatE
from grash.models.rescal import Rescal
from grash.models.rotate import RotatE
from grash.models.simple import SimplE
from grash.models.transe import TransE
from grash.models.tucker import TuckER

_ALL: tuple[type[KgeModel], ...] = (
    ComplEx, ConvE, CP, DistMult, MuRE, PairRE, QuatE, Rescal, RotatE, SimplE, TransE, TuckER,
)  # fmt: skip
MODELS: dict[str, type[KgeModel]] = {model.name: model for model in _ALL}


def register_model(model: type[KgeModel]) -> type[KgeModel]:
    """Add a model of your own to this process, under its `name`.

    Raises ConfigError if the class has no name, or that of a built-in model.

    It returns the class, so it can be used as a decorator.
    """
    if not isinstance(getattr(model, "name", None), str):
        raise ConfigError(
            f"{model.__name__} has no name: add a line such as `name = {model.__name__.lower()!r}` to the class."
        )
    if model.name in {built_in.name for built_in in _ALL} and model not in _ALL:
        raise ConfigError(f"{model.name!r} is a built-in model (`grash models` lists them): choose another name.")
    MODELS[model.name] = model
    return model


def import_path(name: str) -> str | None:
    """Return where another process can import a model from, as `module:class`.

    None if only this process has it: its class is in a script, in a notebook or inside a function.
    """
    model = MODELS[name]
    module = sys.modules.get(model.__module__)
    importable = model.__module__ != "__main__" and getattr(module, "__spec__", None) is not None
    return f"{model.__module__}:{model.__name__}" if importable and vars(module).get(model.__name__) is model else None


def import_model(path: str) -> type[KgeModel]:
    """Import and register a model from where `import_path` found it."""
    module, _, name = path.partition(":")
    return register_model(getattr(import_module(module), name))


def own_models(names: Iterable[str]) -> list[str]:
    """Return those of these models that are not built in."""
    return [name for name in names if MODELS[name] not in _ALL]


def unknown_model(name: str) -> str:
    """Return the end of a sentence about a stored model whose class this process does not have."""
    return (
        f"{name!r}, which is none of {', '.join(MODELS)}. If it is a model of your own, register it first "
        f"(docs/how-to/add-a-model.md)."
    )


def model_name(given: str) -> str:
    """Return the name of a model that is given in any case, e.g. ComplEx, or raise UnknownName with similar names."""
    name = str(given).strip().lower()
    if name not in MODELS:
        close = difflib.get_close_matches(name, MODELS, n=3, cutoff=0.6)
        raise UnknownName("model", str(given), close, hint=f"Models: {', '.join(MODELS)}.")
    return name


def model_class(name: str) -> type[KgeModel]:
    """Return the class of a model, or raise UnknownName with similar names."""
    return MODELS[model_name(name)]
