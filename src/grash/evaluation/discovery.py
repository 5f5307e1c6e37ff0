"""The most probable new triples of a graph, among entities seen with each relation, or among all pairs.

`discover` asks (h, r, ?) for every head and relation, in tiles as a ranking does, and keeps the k most probable triples
of all. The probability of a triple is the smaller one of its two questions, (h, r, ?) and (?, r, t). It is exact: a
question whose last answer might be followed by others that belong to the k best is asked again for more.

Probabilities (`calibration.py`) were learnt from held-out questions, which have another answer. Here, many have none:
a country with a capital has no second one. So each is multiplied by the share of questions that have another answer
(`FurtherAnswers`, docs/decisions/0069). Most of all pairs make no sense ("the capital of a river") and were never held
out; so pairs are by default restricted to entities seen on that side of the relation in train. For the same reason, a
relation that has no loop (h, r, h) in train gets none. `precision` counts what was really found.
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
from grash.data.known_answers import AnswerIndex, KnownAnswers
from grash.errors import InputError
from grash.evaluation.answers import Questions, score_triples
from grash.evaluation.calibration import Calibration, ask
from grash.models import KgeModel
from grash.models.base import SIDES, Side

_HEADS = 256  # asked together
_ANSWERS = 16  # per question at first
_MORE = 8  # times as many the next time
_FOUND = 1 << 20  # answers asked for together, which limits the memory
_POOLED = 4  # questions with that many known answers or more are counted together

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

    def limit(self, k: int, least: float) -> float:
        """Return the probability that a triple needs to be one of the k best, which are at least `least`."""
        return max(least, float(self.probabilities[k - 1])) if len(self.triples) >= k else least


@dataclass(frozen=True, eq=False)
class FurtherAnswers:
    """How often questions with n known answers have another one, by relation; for one side. n = 0: all entities."""

    index: AnswerIndex
    shares: NDArray[np.float64]  # (_POOLED + 1, R): by n, the last row for all larger n, too

    @classmethod
    def of(cls, index: AnswerIndex, n_entities: int) -> FurtherAnswers:
        """Count, of the questions with at least n known answers, those with at least n + 1.

        Half a question of each kind is added.
        """
        n_relations, counts, relations = index.n_relations, np.diff(index.starts), index.keys % index.n_relations
        asked, further = np.zeros((2, _POOLED + 1, n_relations))
        asked[0] = n_entities
        for n in range(1, _POOLED + 1):
            asked[n] = np.bincount(relations[counts >= n], minlength=n_relations)
        further[:-1] = asked[1:]
        # a question with c answers is counted for every n from _POOLED to c, and has another one for all but the last
        further[-1] = np.bincount(relations, np.maximum(counts - _POOLED, 0), n_relations)
        asked[-1] += further[-1]
        return cls(index, (further + 0.5) / (asked + 1))

    def share(self, ends: Ids, relation: int) -> NDArray[np.float64]:
        """ends (B,) → (B,): the share of questions like (end, relation) that have another answer."""
        _, known = self.index.runs(ends, np.full(len(ends), relation, np.int64))
        return self.shares[np.minimum(known, _POOLED), relation]


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

    Their probabilities include how often questions have another answer than those in the `known` splits.
    relations: ids (default: all). like_known: only heads and tails seen on that side of the relation in train.
    """
    if not 0 <= min_probability <= 1:
        raise InputError(f"min_probability={min_probability} is not a probability: give a number from 0 to 1.")
    index = KnownAnswers.of(*(dataset.split(name) for name in known), n_relations=dataset.n_relations)
    further: dict[Side, FurtherAnswers] = {
        side: FurtherAnswers.of(index.of_side(side), dataset.n_entities) for side in SIDES
    }
    seen = SeenEntities(dataset)
    chosen = range(dataset.n_relations) if relations is None else relations
    seen.read(chosen if like_known else ())
    loops = set(dataset.train[dataset.train[:, 0] == dataset.train[:, 2], 1].tolist())
    everyone = np.arange(dataset.n_entities)
    asked = {r: seen(r, "head") if like_known else everyone for r in chosen}
    total, done, best = sum(map(len, asked.values())), 0, Discovered.none()
    for relation, heads in asked.items():
        tails = seen(relation, "tail") if like_known else None
        judge = _Judge(model, calibration, further, relation, tails, has_loops=relation in loops)
        for start in range(0, len(heads), _HEADS):
            part = heads[start : start + _HEADS]
            best = _with_answers(best, judge, part, k, min_probability)
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
        self, model: KgeModel, calibration: Calibration, further: dict[Side, FurtherAnswers], relation: int,
        tails: Ids | None, *, has_loops: bool,
    ) -> None:  # fmt: skip
        self.model, self.calibration, self.further, self.relation = model, calibration, further, relation
        self.has_loops = has_loops
        self.tails = tails  # that may be answers; None: all
        asked = np.arange(model.n_entities) if tails is None else tails
        self.head_sums = np.full(model.n_entities, np.inf)  # log-sums of (?, relation, tail) for every tail
        for start in range(0, len(asked), _HEADS):
            part = asked[start : start + _HEADS]
            self.head_sums[part] = self.ask(part, "head", 1)[3][0]

    def ask(self, ends: Ids, side: Side, k: int) -> tuple[Ids, Ids, NDArray[np.float64], NDArray[np.float64]]:
        relations = np.full(len(ends), self.relation, np.int64)
        asked = Questions(ends, relations, side, self.further[side].index.pairs)
        among = self.tails if side == "tail" else None
        return ask(self.model, asked, (self.calibration.temperature,), k=k, among=among)

    def tail_probabilities(
        self, heads: Ids, rows: Ids, scores: NDArray[np.float64], sums: NDArray[np.float64]
    ) -> NDArray[np.float64]:
        """Return (n,): the probabilities of answers with these scores (n,) to the questions (heads[rows], relation, ?).

        sums (B,): the log-sums of the questions. The best answer to a question stays the most probable one.
        """
        relations = np.full(len(scores), self.relation, np.int64)
        found = self.calibration.probabilities(scores, sums[rows], relations, "tail")
        return found * self.further["tail"].share(heads, self.relation)[rows]

    def head_probabilities(self, triples: Ids) -> NDArray[np.float64]:
        """Return (n,): the probabilities of the heads of triples as answers to (?, relation, tail)."""
        scores, tails = score_triples(self.model, triples, "head").astype(np.float64), triples[:, 2]
        found = self.calibration.probabilities(scores, self.head_sums[tails], triples[:, 1], "head")
        return found * self.further["head"].share(tails, self.relation)


def _with_answers(best: Discovered, judge: _Judge, heads: Ids, k: int, least: float) -> Discovered:
    """Return the k best of `best` and of all new triples (head, relation, …) with a probability of at least `least`.

    All that is found raises the limit at once, so only questions whose last answer is above it are asked again.
    """
    most = judge.model.n_entities if judge.tails is None else len(judge.tails)
    waiting = [(heads, min(_ANSWERS, most))]
    while waiting:
        heads, n_answers = waiting.pop()
        rows, ids, scores, sums = judge.ask(heads, "tail", n_answers)
        probable = judge.tail_probabilities(heads, rows, scores, sums[0])
        loop = (heads[rows] == ids) & (not judge.has_loops)
        limit = best.limit(k, least)
        kept = np.flatnonzero((probable >= limit) & ~loop)
        triples = np.stack([heads[rows[kept]], np.full(len(kept), judge.relation), ids[kept]], 1)
        both = np.minimum(probable[kept], judge.head_probabilities(triples))
        enough = both >= limit
        found = Discovered(triples[enough], scores[kept][enough], both[enough])
        best = _joined(best, found, judge.model.n_entities).best(k) if enough.any() else best
        lowest = np.ones(len(heads))
        np.minimum.at(lowest, rows, probable)
        full = (np.bincount(rows, minlength=len(heads)) == n_answers) & (n_answers < most)
        again, more = heads[full & (lowest >= best.limit(k, least))], min(n_answers * _MORE, most)
        size = max(1, _FOUND // more)
        waiting += [(again[start : start + size], more) for start in range(0, len(again), size)]
    return best


def _joined(best: Discovered, found: Discovered, n_entities: int) -> Discovered:
    """Return the best and what was found of one relation, without triples found again."""
    same = best.triples[best.triples[:, 1] == found.triples[0, 1]]
    pairs, old = (triples[:, 0] * n_entities + triples[:, 2] for triples in (found.triples, same))
    new = ~np.isin(pairs, old)
    return Discovered(
        np.concatenate([best.triples, found.triples[new]]), np.concatenate([best.scores, found.scores[new]]),
        np.concatenate([best.probabilities, found.probabilities[new]]),
    )  # fmt: skip
