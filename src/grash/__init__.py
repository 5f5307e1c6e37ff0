"""Good hyperparameters for knowledge graph embeddings on large graphs, and the models trained with them.

The public names, each imported when it is first used, so that `import grash` costs nothing.
"""

from __future__ import annotations

import importlib

from grash.errors import GrashError

TYPE_CHECKING = False  # as type checkers know it; `typing` takes longer than all other imports
__version__ = "0.1.0"

if TYPE_CHECKING:
    from typing import Any

    from grash.api.dataset import describe, from_dataframe, from_networkx, from_triples, load_dataset, prepare
    from grash.api.estimator import KGEmbedder
    from grash.api.model import Model, Prediction, Predictions, evaluate, load_model
    from grash.api.search import Search, SearchResult
    from grash.api.training import ensemble, train
    from grash.data.dataset import Dataset
    from grash.report.trackers import tracker
    from grash.search.callbacks import Callback, RunningSearch
    from grash.training.config import TrainConfig

_NAMES = {
    "grash.api.dataset": ("describe", "from_dataframe", "from_networkx", "from_triples", "load_dataset", "prepare"),
    "grash.api.estimator": ("KGEmbedder",),
    "grash.api.model": ("Model", "Prediction", "Predictions", "evaluate", "load_model"),
    "grash.api.search": ("Search", "SearchResult"),
    "grash.api.training": ("ensemble", "train"),
    "grash.data.dataset": ("Dataset",),
    "grash.report.trackers": ("tracker",),
    "grash.search.callbacks": ("Callback", "RunningSearch"),
    "grash.training.config": ("TrainConfig",),
}
_MODULES = {name: module for module, names in _NAMES.items() for name in names}

__all__ = [
    "Callback",
    "Dataset",
    "GrashError",
    "KGEmbedder",
    "Model",
    "Prediction",
    "Predictions",
    "RunningSearch",
    "Search",
    "SearchResult",
    "TrainConfig",
    "__version__",
    "describe",
    "ensemble",
    "evaluate",
    "from_dataframe",
    "from_networkx",
    "from_triples",
    "load_dataset",
    "load_model",
    "prepare",
    "tracker",
    "train",
]


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"grash has no {name!r}: it has {', '.join(__all__)}")
    value = getattr(importlib.import_module(_MODULES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
