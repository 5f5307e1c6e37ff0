"""Triple classification: a triple is accepted if its score is above a threshold of its relation.

Thresholds are learnt on valid: each of its triples stands against a corrupted one, whose head or tail is another entity
seen on that side of the relation in train. A relation with few triples of valid has the threshold of all relations.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from grash.data.arrays import Triples, TripleSet
from grash.data.candidates import SeenEntities
from grash.data.dataset import SPLITS, Dataset
from grash.evaluation.answers import score_triples
from grash.evaluation.evaluate import Split, sample_triples
from grash.models import KgeModel
from grash.models.base import SIDES

_MIN_TRIPLES = 10  # of a relation with its own threshold
_MAX_TRIPLES = 5_000
_FOLDS = 5
_TRIES = 20  # draws of a corrupted triple until it is not known

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Thresholds:
    """Scores from which on triples are accepted."""

    everywhere: float  # for relations without their own
    of_relation: dict[str, float]  # by the id of the relation
    accuracy: float  # on valid and as many corrupted triples, cross-fitted
    n: int  # triples of valid

    def accept(self, relations: NDArray[np.integer], scores: Floats) -> NDArray[np.bool_]:
        """relations (n,), scores (n,) as tails → (n,): whether each triple is accepted."""
        used, places = np.unique(relations, return_inverse=True)
        limits = np.array([self.of_relation.get(str(r), self.everywhere) for r in used.tolist()])
        return scores >= limits[places] if len(scores) else np.empty(0, bool)

    @classmethod
    def from_dict(cls, content: dict[str, Any]) -> Thresholds:
        own = {str(int(name)): float(value) for name, value in content["of_relation"].items()}
        return cls(float(content["everywhere"]), own, float(content["accuracy"]), int(content["n"]))


def fit_thresholds(model: KgeModel, dataset: Dataset, *, split: Split = "valid", seed: int = 0) -> Thresholds | None:
    """Return the thresholds with the highest accuracy on a split and as many corrupted triples; None if it is small."""
    relations, scores, right, numbers = classified_triples(model, dataset, split, seed=seed)
    if len(numbers) < 2 * _MIN_TRIPLES:
        return None
    folds = np.random.default_rng(seed).integers(0, _FOLDS, numbers.max() + 1)[numbers]
    hits = 0
    for fold in range(_FOLDS):
        rest = folds != fold
        fitted = Thresholds(*_fit(relations[rest], scores[rest], right[rest]), 0.0, 0)
        hits += int((fitted.accept(relations[~rest], scores[~rest]) == right[~rest]).sum())
    return Thresholds(*_fit(relations, scores, right), hits / len(right), int(right.sum()))


def accuracy(
    thresholds: Thresholds, model: KgeModel, dataset: Dataset, *, split: Split = "test", seed: int = 0
) -> float:
    """Return the share of a split and of as many corrupted triples that is classified rightly."""
    relations, scores, right, _ = classified_triples(model, dataset, split, seed=seed)
    return float((thresholds.accept(relations, scores) == right).mean()) if len(right) else 0.0


@torch.no_grad()
def classified_triples(
    model: KgeModel, dataset: Dataset, split: Split, *, seed: int
) -> tuple[NDArray[np.int64], Floats, NDArray[np.bool_], NDArray[np.int64]]:
    """Return relations, scores, whether it is a true triple, and the number of the true triple, of both kinds."""
    triples = sample_triples(dataset.split(split), _MAX_TRIPLES, seed)
    wrong, kept = _corrupted(triples, dataset, seed)
    both = np.concatenate([triples[kept], wrong]).astype(np.int64)
    right = np.arange(len(both)) < len(kept)
    return both[:, 1], score_triples(model, both).astype(np.float64), right, np.tile(np.arange(len(kept)), 2)


def _corrupted(triples: Triples, dataset: Dataset, seed: int) -> tuple[Triples, NDArray[np.int64]]:
    """Return a corrupted triple for each triple where one was found, and the rows of these triples."""
    generator, seen = np.random.default_rng(seed), SeenEntities(dataset)
    seen.read(np.unique(triples[:, 1]).tolist())
    known = [TripleSet(np.ascontiguousarray(dataset.split(name))) for name in SPLITS if len(dataset.split(name))]
    wrong = triples.copy()
    open_rows = np.arange(len(triples))
    for _ in range(_TRIES):
        for i in open_rows.tolist():
            side = SIDES[int(generator.integers(2))]
            pool = seen(int(triples[i, 1]), side)
            wrong[i] = triples[i]
            if len(pool):
                wrong[i, 0 if side == "head" else 2] = pool[int(generator.integers(len(pool)))]
        taken = np.any([s.contains(np.ascontiguousarray(wrong[open_rows])) for s in known], axis=0)
        open_rows = open_rows[taken]
        if not len(open_rows):
            break
    kept = np.setdiff1d(np.arange(len(triples)), open_rows)
    return np.ascontiguousarray(wrong[kept]), kept


def _fit(relations: NDArray[np.int64], scores: Floats, right: NDArray[np.bool_]) -> tuple[float, dict[str, float]]:
    own = {}
    for relation in np.unique(relations).tolist():
        rows = relations == relation
        if right[rows].sum() >= _MIN_TRIPLES:
            own[str(relation)] = _threshold(scores[rows], right[rows])
    return _threshold(scores, right), own


def _threshold(scores: Floats, right: NDArray[np.bool_]) -> float:
    """Return the threshold that classifies most of these rightly, in the middle between two scores."""
    order = np.argsort(scores, kind="stable")
    values, truth = scores[order], right[order]
    hits = np.concatenate([[0], np.cumsum(~truth)]) + np.concatenate([np.cumsum(truth[::-1])[::-1], [0]])
    cut = np.concatenate([[True], values[1:] > values[:-1], [True]])  # between equal scores there is no threshold
    place = int(np.argmax(np.where(cut, hits, -1)))
    low = values[place - 1] if place else values[0] - 1.0
    high = values[place] if place < len(values) else values[-1] + 1.0
    return float(low + (high - low) / 2)
