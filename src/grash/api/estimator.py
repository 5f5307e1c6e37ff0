"""A scikit-learn-like face of a search: `KGEmbedder(model="complex", time="5m").fit(triples).predict(questions)`.

It follows the conventions of scikit-learn (parameters in `__init__`, `fit` returns the estimator, results end in `_`)
without needing it. Everything else is in `Search` and `Model`, which it leaves in `result_` and `model_`.
"""

from __future__ import annotations

import inspect
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from grash.api.model import Model, Name
from grash.api.search import Search, SearchResult
from grash.data.dataset import Dataset
from grash.data.load import from_triples, load_dataset
from grash.errors import ConfigError, InputError, did_you_mean


class NotFitted(InputError, ValueError, AttributeError):
    """The estimator is used before `fit`; scikit-learn raises the same two built-in errors."""


class KGEmbedder:
    """Searches hyperparameters on a graph and keeps the trained winner, as an estimator.

    The parameters are those of `Search`. out: the run folder (default: a temporary one, deleted after `fit`).
    """

    dataset_: Dataset
    result_: SearchResult  # its model and report need the run folder; without `out`, its trials and settings remain
    model_: Model

    def __init__(
        self,
        model: str | Sequence[str] = "complex",
        *,
        dim: int | None = None,
        max_epochs: float | None = None,
        n_trials: int | None = None,
        budget: float | None = None,
        time: str | float | None = None,
        preset: str = "default",
        engine: str = "auto",
        device: str = "auto",
        out: str | Path | None = None,
        random_state: int | None = None,
    ) -> None:
        self.model, self.dim, self.max_epochs, self.n_trials = model, dim, max_epochs, n_trials
        self.budget, self.time, self.preset = budget, time, preset
        self.engine, self.device, self.out, self.random_state = engine, device, out, random_state

    def fit(self, X: Any, y: Any = None) -> KGEmbedder:
        """Search, train the winner and return the estimator.

        X: a Dataset, a source of `load_dataset`, or triples as `from_triples` takes them. y is ignored.
        """
        known = {"seed": self.random_state, "time": self.time}
        names = ("dim", "max_epochs", "n_trials", "budget")
        given = {**known, **{name: getattr(self, name) for name in names}}
        settings: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
        dataset = _as_graph(X)
        with tempfile.TemporaryDirectory(prefix="grash-") as temporary:
            folder = Path(temporary) / "search" if self.out is None else Path(self.out)
            search = Search(
                dataset, models=self.model, preset=self.preset, engine=self.engine, device=self.device, out=folder,
                **settings,
            )  # fmt: skip
            self.result_ = search.run()
            self.model_ = self.result_.model
        self.dataset_ = dataset
        return self

    def predict(self, X: Iterable[Sequence[Name | None]]) -> NDArray[np.object_]:
        """Return the best answer (n,) to each (head, relation), or (head, relation, tail) with one part None."""
        questions = [tuple(row) if len(row) == 3 else (*row, None) for row in X]
        answers = self._fitted().predict_many(questions, k=1)
        return np.array([found[0].name if found else None for found in answers], object)

    def decision_function(self, X: Any) -> NDArray[np.float32]:
        """Return the scores (n,) of triples; higher is more plausible."""
        return self._fitted().score(X)

    def transform(self, X: Iterable[Name]) -> NDArray[np.float32]:
        """Return the embeddings (n, D) of entities, e.g. as features of another estimator."""
        model = self._fitted()
        ids = [model.entity_id(name) for name in np.asarray(X, object).ravel().tolist()]
        return model.entity_embeddings[ids]

    def score(self, X: Any, y: Any = None) -> float:
        """Return the filtered MRR of triples whose names the model knows."""
        model = self._fitted()
        other = from_triples(X, n_valid=0, n_test=0, duplicates="keep") if not isinstance(X, Dataset) else X
        test = other.test if len(other.test) else other.train
        return model.evaluate(_only_test(other, test)).both.mrr

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """Return the parameters of `__init__`."""
        return {name: getattr(self, name) for name in _parameters()}

    def set_params(self, **params: Any) -> KGEmbedder:
        """Change parameters and return the estimator."""
        for name, value in params.items():
            if name not in _parameters():
                raise ConfigError(f"{name!r} is no parameter of KGEmbedder.{did_you_mean(name, _parameters())}")
            setattr(self, name, value)
        return self

    def __repr__(self) -> str:
        defaults = {p.name: p.default for p in inspect.signature(KGEmbedder).parameters.values()}
        changed = {name: value for name, value in self.get_params().items() if value != defaults[name]}
        return f"KGEmbedder({', '.join(f'{name}={value!r}' for name, value in changed.items())})"

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, "model_")

    def __sklearn_tags__(self) -> Any:
        """Return what scikit-learn 1.6 and later ask an estimator: it needs no target, and takes names."""
        from sklearn.utils import InputTags, Tags, TargetTags

        inputs = InputTags(two_d_array=False, string=True)
        return Tags(
            estimator_type=None, target_tags=TargetTags(required=False), input_tags=inputs, non_deterministic=False
        )

    def _fitted(self) -> Model:
        if not hasattr(self, "model_"):
            raise NotFitted("This KGEmbedder is not fitted yet: call fit first.")
        return self.model_


def _as_graph(given: Any) -> Dataset:
    if isinstance(given, Dataset):
        return given
    return load_dataset(given) if isinstance(given, str | Path) else from_triples(given)


def _only_test(graph: Dataset, test: Any) -> Dataset:
    from dataclasses import replace

    nothing = graph.train[:0]
    return replace(graph, train=nothing, valid=nothing, test=test)


def _parameters() -> list[str]:
    return list(inspect.signature(KGEmbedder).parameters)
