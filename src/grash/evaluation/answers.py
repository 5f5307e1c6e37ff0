"""Answers to questions by ids: the best entities or relations, whether they are known, and how probable they are.

`Answerer` has a model and what its answers depend on; the rest is functions of a model alone, which `calibration`,
`classification` and `discovery` share with it. Comes from ids, goes to `api/model.py`, which knows names.

Letters: n triples or answers, B questions for one side, E entities, W floats of a query, m known answers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from grash.data.candidates import SeenEntities, common_entities
from grash.data.dataset import Dataset
from grash.data.known_answers import TripleIndex, answer_index, known_relations
from grash.errors import Diverged
from grash.evaluation.ranking import NOT_FINITE, contains
from grash.kernels.count_above import (
    FilterRuns,
    ListedScores,
    LogSums,
    best_candidates,
    best_listed,
    exact_scores,
    largest_row,
)
from grash.kernels.pair_scores import pair_scores
from grash.kernels.storage import to_float32
from grash.models import KgeModel
from grash.models.base import Side

if TYPE_CHECKING:
    from grash.evaluation.calibration import Calibration

Ids = NDArray[np.int64]
Known = tuple[Ids, NDArray[np.integer]]  # (m,) row and id of each known answer of B questions, by row, then id
FindKnown = Callable[[Ids, Ids], Known]  # ends (B,), relations (B,) → their known answers
Floats = NDArray[np.float64]
Metric = Literal["cosine", "euclidean", "dot"]
METRICS: tuple[Metric, ...] = ("cosine", "euclidean", "dot")
COLUMNS: dict[Side, tuple[int, int]] = {"head": (2, 0), "tail": (0, 2)}  # of the given entity and of the answer

_WORK_BYTES = 64 << 20  # a tile of scores; with its sorting a few times that
_CACHED = 1 << 18  # scores that fit into the cache of a core
_QUERIES = 256  # asked together
_TRIPLES = 1 << 16  # scored together
_MAX_LISTED = 1 << 26  # like-known scores kept at a time: those of 256 questions for any of 6.5 million entities: 7 GB
_NONE: Known = np.empty(0, np.int64), np.empty(0, np.int64)
_SCATTERED = 4  # a row of the table that is read by its id costs as much as this many rows read in a sequence


@dataclass(frozen=True, eq=False)
class AnswerArrays:
    """Answers to many questions, by ascending question, then best first."""

    question: Ids  # (m,) number of the question
    answer: Ids  # (m,) id of the entity or relation
    score: NDArray[np.float64]  # (m,)
    known: NDArray[np.bool_]  # (m,) whether the dataset has the triple
    probability: NDArray[np.float64] | None  # (m,); None if the model is not calibrated

    @classmethod
    def joined(cls, parts: Sequence[AnswerArrays], calibrated: bool) -> AnswerArrays:
        """Return all parts by ascending question; each question is in one part."""
        empty = (np.empty(0, np.int64), np.empty(0, np.int64), np.empty(0), np.empty(0, bool))
        columns = [np.concatenate([none, *(c)]) for none, c in zip(empty, zip(*(p._columns() for p in parts)))]
        question, answer, score, known = columns or empty
        order = np.argsort(question, kind="stable")
        chances = np.concatenate([np.empty(0), *(p.probability for p in parts if p.probability is not None)])
        return cls(question[order], answer[order], score[order], known[order], chances[order] if calibrated else None)

    def moved(self, questions: Ids) -> AnswerArrays:
        """Return the answers with question i numbered questions[i]."""
        return replace(self, question=questions[self.question])

    def ranks(self) -> Ids:
        """Return (m,): the rank of each answer of its question, from 1."""
        _, first, count = np.unique(self.question, return_index=True, return_counts=True)
        return np.arange(len(self.question)) - np.repeat(first, count) + 1

    def rows(self) -> Iterable[tuple[int, int, float, bool, float | None]]:
        """Return (question, id, score, known, probability) of each answer."""
        chances = [None] * len(self.question) if self.probability is None else self.probability.tolist()
        return zip(*(column.tolist() for column in self._columns()), chances)

    def _columns(self) -> tuple[Ids, Ids, NDArray[np.float64], NDArray[np.bool_]]:
        return self.question, self.answer, self.score, self.known


@dataclass(frozen=True, eq=False)
class Questions:
    """B questions for one side."""

    ends: Ids  # (B,) the given entities
    relations: Ids  # (B,)
    side: Side  # that is asked for
    find: FindKnown

    @cached_property
    def known(self) -> Known:
        return self.find(self.ends, self.relations)

    def part(self, rows: Ids | slice) -> Questions:
        """Return the questions of some rows."""
        return Questions(self.ends[rows], self.relations[rows], self.side, self.find)

    def queries(self, model: KgeModel) -> tuple[Tensor, Side]:
        """Return the queries (B, W), and the side whose candidates they are compared with."""
        device = model.entity.device
        queries, seen = model.queries(_on(self.ends, device), _on(self.relations, device), self.side)
        if not torch.isfinite(queries).all():
            raise Diverged(NOT_FINITE)
        return queries, seen


def score_triples(model: KgeModel, triples: NDArray[np.integer], side: Side = "tail") -> NDArray[np.float32]:
    """triples (n, 3) → (n,): the exact scores that rank `side`."""
    end, answer = COLUMNS[side]
    scores = [np.empty(0, np.float32)]
    for start in range(0, len(triples), _TRIPLES):
        part = _on(triples[start : start + _TRIPLES].T, model.entity.device)
        queries, seen = model.queries(part[end], part[1], side)
        rows = model.candidate(to_float32(model.entity[part[answer]]), seen)
        scores.append(exact_scores(queries, rows, model.pair_of(seen)).cpu().numpy())
    found = np.concatenate(scores)
    if not np.isfinite(found).all():
        raise Diverged(NOT_FINITE)
    return found


def nearest_entities(model: KgeModel, entity: int, k: int, metric: Metric) -> tuple[Tensor, Tensor]:
    """Return ids and scores of the k nearest other entities by their embeddings; euclidean: minus the distance."""
    table = model.entity

    def rows(start: int, stop: int) -> Tensor:
        part = to_float32(table[start:stop])
        return torch.nn.functional.normalize(part, dim=1) if metric == "cosine" else part

    query, own = rows(entity, entity + 1), torch.tensor([entity], device=table.device)
    _, ids, scores = best_candidates(
        query, rows, len(table), k, "l2" if metric == "euclidean" else "dot",
        skip_rows=torch.zeros_like(own), skip_columns=own, tile=score_tile(query, _WORK_BYTES),
    )  # fmt: skip
    return ids, scores


def best_entities(
    model: KgeModel, queries: Tensor, seen: Side, k: int, *, skip: tuple[Tensor, Tensor] | None = None,
    among: Ids | None = None, **options: Any,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """Return row, id and score of the k best entities for each query (B, W): of all, or of those in `among`, ascending.

    skip: row and id of answers to leave out, by ascending id. options: those of `best_candidates`.
    """
    device = queries.device
    chosen = None if among is None else _on(among, device)
    rows, columns = skip or (torch.empty(0, dtype=torch.int64, device=device),) * 2
    if chosen is not None:
        places = torch.searchsorted(chosen, columns)
        inside = torch.cat([chosen, chosen.new_tensor([-1])])[places] == columns
        rows, columns = rows[inside], places[inside]

    def candidates(start: int, stop: int) -> Tensor:
        part = model.entity[start:stop] if chosen is None else model.entity[chosen[start:stop]]
        return model.candidate(to_float32(part), seen)

    n = model.n_entities if among is None else len(among)
    row, place, score = best_candidates(
        queries, candidates, n, k, model.pair_of(seen), skip_rows=rows, skip_columns=columns, **options
    )
    return row, place if chosen is None else chosen[place], score


def add_all_scores(
    model: KgeModel, queries: Tensor, seen: Side, sums: LogSums, tile: int,
    watch: Callable[[Tensor, int], None] | None = None,
) -> None:  # fmt: skip
    """Add the scores of queries (B, W) and all entities to `sums`.

    watch: receives the scores (B, n) of the entities from a number on, tile by tile.
    """
    for start in range(0, model.n_entities, tile):
        rows = model.candidate(to_float32(model.entity[start : start + tile]), seen)
        scores = pair_scores(queries, rows, model.pair_of(seen))
        sums.add(scores, start)
        if watch is not None:
            watch(scores, start)


def score_tile(queries: Tensor, work_bytes: int) -> int:
    """Return the candidates to score at a time: their scores, and their rows where these are computed, fit."""
    return max(1024, work_bytes // (4 * max(queries.shape)))


@dataclass(frozen=True, eq=False)
class Answerer:
    """A model with what its answers depend on."""

    model: KgeModel
    dataset: Dataset  # whose triples are known
    calibration: Calibration | None
    seen_entities: Callable[[], SeenEntities]
    triple_index: TripleIndex | None  # for many calls with few questions, where one pass over the triples is slow
    largest_rows: dict[Side, tuple[Any, Tensor]]  # of the table, by side, which `largest` keeps here

    @torch.no_grad()
    def answers(
        self, questions: Ids, k: int, *, new_only: bool = False, like_known: bool = False, allowed: Ids | None = None
    ) -> list[AnswerArrays]:
        """Return the k best answers to questions (n, 3), in parts; −1 is the part of a question to predict.

        new_only: without known answers. like_known: only entities seen on that side of the relation in train.
        allowed: ids of the entities that may be answers, ascending.
        """
        of_entities, found = np.flatnonzero(questions[:, 1] >= 0), []
        rows = {side: np.flatnonzero(questions[:, answer] < 0) for side, (_, answer) in COLUMNS.items()}
        whole = {s: self._asked(questions[of][:, [COLUMNS[s][0], 1]], s) for s, of in rows.items() if len(of)}
        for start in range(0, len(of_entities), _QUERIES):
            first, last = of_entities[start : start + _QUERIES][[0, -1]]
            ends = {side: np.searchsorted(rows[side], [first, last + 1]).tolist() for side in whole}
            inside = {side: slice(*of) for side, of in ends.items() if of[0] < of[1]}
            asked = [whole[side].part(of) for side, of in inside.items()]
            parts = self._best_entities(asked, k, new_only, like_known, allowed)
            found += [part.moved(rows[of.side][inside[of.side]]) for of, part in zip(asked, parts)]
        for row in np.flatnonzero(questions[:, 1] < 0).tolist():
            head, _, tail = questions[row].tolist()
            found.append(self._best_relations(head, tail, k, new_only).moved(np.array([row])))
        return found

    def answer_arrays(self, questions: Ids, k: int, **options: Any) -> AnswerArrays:
        """Return `answers` as one record; questions for the same part are asked together."""
        found = []
        for column in range(3):
            rows = np.flatnonzero(questions[:, column] < 0)
            found += [part.moved(rows) for part in self.answers(questions[rows], k, **options)]
        return AnswerArrays.joined(found, self.calibration is not None)

    @torch.no_grad()
    def probability(self, triples: Ids, side: Side) -> Floats:
        """triples (n, 3) → (n,): the probabilities of `side` as an answer. Needs a calibration."""
        end, answer = COLUMNS[side]
        scores = score_triples(self.model, triples, side).astype(np.float64)
        distinct, question = np.unique(triples[:, [end, 1]], axis=0, return_inverse=True)
        whole, found = self._asked(distinct, side), np.empty(len(triples))
        for start in range(0, len(distinct), _QUERIES):
            part = whole.part(slice(start, start + _QUERIES))
            queries, seen = part.queries(self.model)
            sums = self._new_sums(by_id(part.known, queries.device), queries)
            self._add_all(queries, seen, sums)
            rows = np.flatnonzero((question >= start) & (question < start + _QUERIES))
            found[rows] = self._judged(part, question[rows] - start, triples[rows, answer], scores[rows], sums)[1]
        return found

    def _asked(self, given: Ids, side: Side) -> Questions:
        """given (B, 2): end and relation of each question."""
        ends, relations = given.T
        if self.triple_index is not None:
            return Questions(ends, relations, side, partial(self.triple_index.pairs, side=side))
        return Questions(ends, relations, side, answer_index(self.dataset, ends, relations, side).pairs)

    def _best_entities(
        self, asked: list[Questions], k: int, new_only: bool, like_known: bool, allowed: Ids | None
    ) -> list[AnswerArrays]:
        """Return the answers to questions for heads and to questions for tails."""
        if not like_known:
            return [self._rank(part, k, new_only, allowed) for part in asked]
        seen = self.seen_entities()
        seen.read([relation for part in asked for relation in part.relations.tolist()])
        among = [
            {r: common_entities(allowed, seen(r, part.side)) for r in set(part.relations.tolist())} for part in asked
        ]
        n_listed = sum(len(ids[r]) for part, ids in zip(asked, among) for r in part.relations.tolist())
        if n_listed <= _MAX_LISTED and all(self._lists(part.side) for part in asked):
            return self._rank_listed(asked, k, new_only, among)
        return [self._rank_among(part, k, new_only, ids) for part, ids in zip(asked, among)]

    def _rank_among(self, asked: Questions, k: int, new_only: bool, among: dict[int, Ids]) -> AnswerArrays:
        """Return the k best entities of each question of those that `among` has for its relation."""
        relations = asked.relations
        # rows that are scattered in the table cost a few times more; probabilities need all scores anyway
        few = _SCATTERED * sum(map(len, among.values())) < self.model.n_entities
        if not few or self.calibration is not None:
            return self._rank(asked, k, new_only, None, lambda scores, start: _mask(scores, start, relations, among))
        places = {relation: np.flatnonzero(relations == relation) for relation in among}
        parts = [self._rank(asked.part(rows), k, new_only, among[r]).moved(rows) for r, rows in places.items()]
        return AnswerArrays.joined(parts, calibrated=False)

    def _rank(
        self, asked: Questions, k: int, new_only: bool, among: Ids | None,
        mask: Callable[[Tensor, int], None] | None = None,
    ) -> AnswerArrays:  # fmt: skip
        """Return the k best entities of each question: of all, of those in `among`, or of those that `mask` leaves."""
        queries, seen = asked.queries(self.model)
        known = by_id(asked.known if new_only or self.calibration is not None else _NONE, queries.device)
        sums = None if self.calibration is None else self._new_sums(known, queries)
        found = best_entities(
            self.model, queries, seen, k, tile=score_tile(queries, _WORK_BYTES), skip=known if new_only else None,
            among=among, sums=sums if among is None else None, largest=self.largest(seen), mask=mask,
        )  # fmt: skip
        if sums is not None and among is not None:  # the share of an answer is that among all entities
            self._add_all(queries, seen, sums)
        return self._answers(asked, *found, sums)

    def _lists(self, side: Side) -> bool:
        """Return whether `best_listed` ranks for this model: dot products with rows as they are, on a CPU."""
        _, seen = self.model.asked(torch.zeros(1, dtype=torch.int64), side)
        table = self.model.entity
        if table.device.type != "cpu" or table.dtype != torch.float32 or self.model.pair_of(seen) != "dot":
            return False
        candidate = self.model.candidate(table[:1], seen)  # CP takes a half of the row
        return candidate.data_ptr() == table.data_ptr() and candidate.shape == table[:1].shape

    def _rank_listed(
        self, asked: list[Questions], k: int, new_only: bool, among: list[dict[int, Ids]]
    ) -> list[AnswerArrays]:
        """Return the same as `_rank_among` of each part, in one pass over the table."""
        queries, sides = zip(*(part.queries(self.model) for part in asked))
        lists = FilterRuns.of([ids for of_side in among for ids in of_side.values()])
        keys = [(i, relation) for i, of_side in enumerate(among) for relation in of_side]
        place = {key: n for n, key in enumerate(keys)}
        listed = lists.take([place[i, r] for i, part in enumerate(asked) for r in part.relations.tolist()])
        ends = np.cumsum([0, *(len(part.ends) for part in asked)])
        rows = np.concatenate([part.known[0] + first for part, first in zip(asked, ends)])
        ids = np.concatenate([part.known[1] for part in asked])
        n_skipped = len(ids) if new_only else 0
        runs = np.searchsorted(rows[:n_skipped], np.arange(ends[-1] + 1))
        skip = FilterRuns(runs[:-1], runs[1:], ids[:n_skipped].astype(np.int32))
        largest = torch.stack([self.largest(seen) for seen in sides]).max()
        together, scores, sums = torch.cat(queries), ListedScores(listed), None
        if self.calibration is None:
            scores.compute(together, self.model.entity)
        else:  # probabilities need the scores of all entities anyway
            sums = self._new_sums(by_id((rows, ids), together.device), together)
            self._add_all(together, sides[0], sums, scores.pick)
        row, entity, score = best_listed(together, self.model.entity, scores, k, skip=skip, largest=largest)
        cuts = torch.searchsorted(row, torch.from_numpy(ends)).tolist()
        return [
            self._answers(part, row[a:b] - int(first), entity[a:b], score[a:b], sums, first)
            for part, first, a, b in zip(asked, ends, cuts, cuts[1:])
        ]

    def _answers(
        self, asked: Questions, row: Tensor, ids: Tensor, score: Tensor, sums: LogSums | None, first: int = 0
    ) -> AnswerArrays:
        of, entities, scores = row.cpu().numpy(), ids.cpu().numpy(), score.cpu().numpy().astype(np.float64)
        return AnswerArrays(of, entities, scores, *self._judged(asked, of, entities, scores, sums, first))

    def _judged(
        self, asked: Questions, of: Ids, ids: Ids, scores: Floats, sums: LogSums | None, first: int = 0
    ) -> tuple[NDArray[np.bool_], Floats | None]:
        """Return whether answers (n,) to the questions `of` (n,) are known and, given sums, their probabilities.

        A known one is judged as if it alone were not known. sums: those of the questions begin at `first`.
        """
        is_known = contains(asked.known[0] * self.model.n_entities + asked.known[1], of * self.model.n_entities + ids)
        if sums is None or self.calibration is None:
            return is_known, None
        own = np.where(is_known, scores / self.calibration.temperature, -np.inf)
        log_sums = np.logaddexp(sums.values[0].cpu().numpy()[first:][of], own)
        return is_known, self.calibration.probabilities(scores, log_sums, asked.relations[of], asked.side)

    def largest(self, seen: Side) -> Tensor:
        """Return the size of the largest candidate, which bounds errors; kept until the table changes."""
        table, pair = self.model.entity, self.model.pair_of(seen)
        key = table.data_ptr(), table._version
        if seen not in self.largest_rows or self.largest_rows[seen][0] != key:
            parts = [largest_row(self.model.candidate(to_float32(rows), seen), pair) for rows in table.split(_TRIPLES)]
            self.largest_rows[seen] = key, torch.stack(parts).max() if parts else table.new_zeros(())
        return self.largest_rows[seen][1]

    def _new_sums(self, known: tuple[Tensor, Tensor], queries: Tensor) -> LogSums:
        assert self.calibration is not None
        return LogSums(len(queries), (self.calibration.temperature,), *known)

    def _add_all(
        self, queries: Tensor, seen: Side, sums: LogSums, watch: Callable[[Tensor, int], None] | None = None
    ) -> None:
        tile = score_tile(queries, _WORK_BYTES)
        if queries.device.type == "cpu":  # scores stay in the cache until they are summed: a sixth less time
            tile = min(tile, max(2048, _CACHED // len(queries)))
        add_all_scores(self.model, queries, seen, sums, tile, watch)

    def _best_relations(self, head: int, tail: int, k: int, new_only: bool) -> AnswerArrays:
        n = self.dataset.n_relations
        triples = np.stack(np.broadcast_arrays(head, np.arange(n), tail), 1)
        scores, known = score_triples(self.model, triples), known_relations(self.dataset, head, tail)
        order = np.lexsort((np.arange(n), -scores))
        order = (order[~known[order]] if new_only else order)[:k]
        probable = None if self.calibration is None else self.probability(triples[order], "tail")
        return AnswerArrays(np.zeros_like(order), order, scores[order].astype(np.float64), known[order], probable)


def _mask(scores: Tensor, start: int, relations: Ids, among: dict[int, Ids]) -> None:
    """Set the scores (B, n) of the entities from `start` on to −∞ where the relation of the row does not allow them."""
    for relation, ids in among.items():
        first, last = np.searchsorted(ids, [start, start + scores.shape[1]])
        columns = torch.from_numpy(ids[first:last] - start).to(scores.device)
        for row in np.flatnonzero(relations == relation).tolist():
            kept = scores[row, columns]
            scores[row] = -torch.inf
            scores[row, columns] = kept


def by_id(known: Known, device: torch.device) -> tuple[Tensor, Tensor]:
    """Return row and id of known answers on the device, by ascending id."""
    order = np.argsort(known[1], kind="stable")
    return _on(known[0][order], device), _on(known[1][order], device)


def _on(ids: NDArray[np.integer], device: torch.device) -> Tensor:
    return torch.from_numpy(np.ascontiguousarray(ids, np.int64)).to(device)
