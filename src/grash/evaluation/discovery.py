"""The most probable new triples of a graph, among entities seen with each relation, or among all pairs.

`discover` asks (h, r, ?) for every head and relation, in tiles as a ranking does, and keeps the k most probable triples
of all. The probability of a triple is the smaller one of its two questions, (h, r, ?) and (?, r, t). It is exact: a
question whose last answer might be followed by others that belong to the k best is asked again for more.

Probabilities (`calibration.py`) were learnt from held-out questions. Most of all pairs make no sense ("the capital of
a river"), were never held out, and still have a best answer with a large share; so pairs are by default restricted to
entities seen on that side of the relation in train. For the same reason, a relation that has no loop (h, r, h) in train
gets none. `precision` counts what was really found.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from grash.data.arrays import TripleSet
from grash.data.candidates import SeenEntities
from grash.data.dataset import SPLITS, Dataset, SplitName
from grash.data.known_answers import KnownAnswers
from grash.errors import InputError
from grash.evaluation.calibration import Calibration, ask
from grash.kernels.bf16_rows import to_float32
from grash.kernels.count_above import exact_scores
from grash.models import KgeModel
from grash.models.base import Side

_HEADS = 256  # asked together
_ANSWERS = 16  # per question at first
_TRIPLES = 1 << 15  # scored together
_MORE = 8  # times as many the next time

Ids = NDArray[np.int64]
Watch = Callable[[int, int], None]  # receives the questions done and their number


@dataclass(frozen=True, eq=False)
class Discovered:
    """New triples by descending probability; equal ones by relation, head and tail."""

    triples: Ids  # (n, 3)
    scores: NDArray[np.float64]  # (n,)
    probabilities: NDArray[np.float64]  # (n,)

    @classmethod
    def none(cls) -> Discovered:
        return cls(np.empty((0, 3), np.int64), np.empty(0), np.empty(0))

    def best(self, k: int) -> Discovered:
        """Return the k most probable."""
        heads, relations, tails = self.triples.T
        order = np.lexsort((tails, heads, relations, -self.probabilities))[:k]
        return Discovered(self.triples[order], self.scores[order], self.probabilities[order])


@torch.no_grad()
def discover(
    model: KgeModel,
    dataset: Dataset,
    calibration: Calibration,
    *,
    k: int = 1000,
    relations: Sequence[int] | None = None,
    min_probability: float = 0.0,
    like_known: bool = True,
    known: tuple[SplitName, ...] = SPLITS,
    watch: Watch | None = None,
) -> Discovered:
    """Return the k most probable triples that are in none of the `known` splits.

    relations: ids (default: all). like_known: only heads and tails seen on that side of the relation in train.
    """
    if k < 1:
        raise InputError(f"k={k} is not valid: give a whole number, 1 or more.")
    if not 0 <= min_probability <= 1:
        raise InputError(f"min_probability={min_probability} is not a probability: give a number from 0 to 1.")
    index = KnownAnswers.of(*(dataset.split(name) for name in known), n_relations=dataset.n_relations)
    seen = SeenEntities(dataset)
    chosen = range(dataset.n_relations) if relations is None else relations
    seen.read(chosen if like_known else ())
    loops = set(dataset.train[dataset.train[:, 0] == dataset.train[:, 2], 1].tolist())
    asked = {r: seen(r, "head") if like_known else np.arange(dataset.n_entities) for r in chosen}
    total, done, best = sum(map(len, asked.values())), 0, Discovered.none()
    for relation, heads in asked.items():
        tails = seen(relation, "tail") if like_known else None
        judge = _Judge(model, calibration, index, relation, tails, has_loops=relation in loops)
        for start in range(0, len(heads), _HEADS):
            part = heads[start : start + _HEADS]
            limit = max(min_probability, best.probabilities[-1] if len(best.triples) == k else 0.0)
            best = _joined(best, _answers(judge, part, limit)).best(k)
            done += len(part)
            if watch is not None:
                watch(done, total)
    return best


def precision(found: Discovered, dataset: Dataset, hidden: tuple[SplitName, ...] = ("valid", "test")) -> float:
    """Return the share of discovered triples that are in the hidden splits, which the discovery must not have known.

    It is a lower bound of the precision: a true triple that is in no split counts as wrong.
    """
    if not len(found.triples):
        return 0.0
    truth = TripleSet(np.ascontiguousarray(np.concatenate([dataset.split(name) for name in hidden])))
    return float(truth.contains(np.ascontiguousarray(found.triples.astype(np.int32))).mean())


class _Judge:
    """Answers and probabilities of one relation, for both of its questions."""

    def __init__(
        self, model: KgeModel, calibration: Calibration, index: KnownAnswers, relation: int, tails: Ids | None, *,
        has_loops: bool,
    ) -> None:  # fmt: skip
        self.model, self.calibration, self.index, self.relation = model, calibration, index, relation
        self.has_loops = has_loops
        self.tails = tails  # that may be answers; None: all
        asked = np.arange(model.n_entities) if tails is None else tails
        self.head_sums = np.full(model.n_entities, np.inf)  # log-sums of (?, relation, tail) for every tail
        for start in range(0, len(asked), _HEADS):
            part = asked[start : start + _HEADS]
            self.head_sums[part] = self.ask(part, "head", 1)[3][0]

    def ask(self, ends: Ids, side: Side, k: int) -> tuple[Ids, Ids, NDArray[np.float64], NDArray[np.float64]]:
        relations = np.full(len(ends), self.relation, np.int64)
        known, among = self.index.of_side(side).pairs(ends, relations), self.tails if side == "tail" else None
        temperatures = (self.calibration.temperature,)
        return ask(self.model, ends, relations, side, known, temperatures, k=k, among=among)

    def tail_probabilities(self, scores: NDArray[np.float64], sums: NDArray[np.float64]) -> NDArray[np.float64]:
        relations = np.full(len(scores), self.relation, np.int64)
        return self.calibration.probabilities(scores, sums, relations, "tail")

    def head_probabilities(self, triples: Ids) -> NDArray[np.float64]:
        """Return (n,): the probabilities of the heads of triples as answers to (?, relation, tail)."""
        device, scores = self.model.entity.device, []
        for start in range(0, len(triples), _TRIPLES):
            heads, relations, tails = torch.from_numpy(triples[start : start + _TRIPLES].T.copy()).to(device)
            queries, seen = self.model.queries(tails, relations, "head")
            rows = self.model.candidate(to_float32(self.model.entity[heads]), seen)
            scores.append(exact_scores(queries, rows, self.model.pair_of(seen)).cpu().numpy())
        found = np.concatenate(scores or [np.empty(0)]).astype(np.float64)
        return self.calibration.probabilities(found, self.head_sums[triples[:, 2]], triples[:, 1], "head")


def _answers(judge: _Judge, heads: Ids, limit: float) -> Discovered:
    """Return all new triples (head, relation, …) with a probability of at least `limit`."""
    found, n_answers = Discovered.none(), _ANSWERS
    most = judge.model.n_entities if judge.tails is None else len(judge.tails)
    while len(heads):
        rows, ids, scores, sums = judge.ask(heads, "tail", n_answers)
        probable = judge.tail_probabilities(scores, sums[0][rows])
        counts = np.bincount(rows, minlength=len(heads))
        lowest = np.ones(len(heads))
        np.minimum.at(lowest, rows, probable)
        again = (counts == n_answers) & (lowest >= limit) & (n_answers < most)
        loop = (heads[rows] == ids) & ~judge.has_loops
        kept = np.flatnonzero((probable >= limit) & ~again[rows] & ~loop)
        triples = np.stack([heads[rows[kept]], np.full(len(kept), judge.relation), ids[kept]], 1)
        both = np.minimum(probable[kept], judge.head_probabilities(triples))
        enough = both >= limit
        found = _joined(found, Discovered(triples[enough], scores[kept][enough], both[enough]))
        heads, n_answers = heads[again], n_answers * _MORE
    return found


def _joined(a: Discovered, b: Discovered) -> Discovered:
    return Discovered(
        np.concatenate([a.triples, b.triples]), np.concatenate([a.scores, b.scores]),
        np.concatenate([a.probabilities, b.probabilities]),
    )  # fmt: skip
