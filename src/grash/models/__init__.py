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


def model_class(name: str) -> type[KgeModel]:
    """Return the class of a model, or raise UnknownName with similar names."""
    if name not in MODELS:
        close = difflib.get_close_matches(name.lower(), MODELS, n=3, cutoff=0.5)
        raise UnknownName("model", name, close, hint=f"Models: {', '.join(MODELS)}.")
    return MODELS[name]
