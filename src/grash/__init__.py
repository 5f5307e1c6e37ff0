"""Good hyperparameters for knowledge graph embeddings on large graphs, and the models trained with them.

The public names, each imported when it is first used, so that `import grash` costs nothing.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from grash.errors import GrashError
from grash.version import __version__

if TYPE_CHECKING:
    from grash.api import describe, evaluate, load_model, train
    from grash.api_result import SearchResult
    from grash.api_search import Search
    from grash.data.dataset import Dataset
    from grash.data.prepare import from_triples, load_dataset, prepare
    from grash.predict import Model, Prediction
    from grash.training.config import TrainConfig

_HOMES = {
    "Dataset": "grash.data.dataset",
    "Model": "grash.predict",
    "Prediction": "grash.predict",
    "Search": "grash.api_search",
    "SearchResult": "grash.api_result",
    "TrainConfig": "grash.training.config",
    "describe": "grash.api",
    "evaluate": "grash.api",
    "from_triples": "grash.data.prepare",
    "load_dataset": "grash.data.prepare",
    "load_model": "grash.api",
    "prepare": "grash.data.prepare",
    "train": "grash.api",
}

__all__ = [
    "Dataset",
    "GrashError",
    "Model",
    "Prediction",
    "Search",
    "SearchResult",
    "TrainConfig",
    "__version__",
    "describe",
    "evaluate",
    "from_triples",
    "load_dataset",
    "load_model",
    "prepare",
    "train",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"grash has no {name!r}: it has {', '.join(__all__)}")
    value = getattr(importlib.import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
