"""Knowledge graph embedding models: tables and score functions, by name in MODELS."""

from __future__ import annotations

import difflib

from grash.errors import UnknownName
from grash.models.base import KgeModel
from grash.models.complex import ComplEx
from grash.models.cp import CP
from grash.models.distmult import DistMult
from grash.models.rescal import Rescal
from grash.models.rotate import RotatE
from grash.models.transe import TransE

MODELS: dict[str, type[KgeModel]] = {m.name: m for m in (ComplEx, CP, DistMult, Rescal, RotatE, TransE)}


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
