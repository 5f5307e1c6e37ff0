"""Which answers are already known: all true tails of (head, relation), all true heads of (relation, tail).

Filtered ranking leaves them out, KvsAll trains on them, and negative sampling can avoid them. Per side, 4 bytes for
each answer and 16 for each distinct question; up to 100 bytes per triple while it is built. Ranking asks few of the
questions of a large graph, and then only the triples that answer those are indexed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from grash.data.dataset import SPLITS, Dataset

Ids = NDArray[np.integer]

_ROWS = 1 << 20  # triples looked at together


@dataclass(frozen=True, eq=False)
class AnswerIndex:
    """Answers by question: question i is keys[i] = known · R + relation, answered by
    answers[starts[i]:starts[i + 1]], ascending and distinct."""

    keys: NDArray[np.int64]
    starts: NDArray[np.int64]
    answers: NDArray[np.int32]
    n_relations: int

    def __len__(self) -> int:
        return len(self.keys)

    def pairs(self, known: Ids, relations: Ids) -> tuple[NDArray[np.int64], NDArray[np.int32]]:
        """For B questions, every (row, answer) that is known: rows (m,) ascending in range(B), answers (m,)."""
        return expand(*self.runs(known, relations), self.answers)

    def runs(self, known: Ids, relations: Ids) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """For B questions, where the known answers of each begin in `answers`, and how many they are: (B,), (B,)."""
        wanted = known.astype(np.int64) * self.n_relations + relations
        place = np.searchsorted(self.keys, wanted)
        found = place < len(self.keys)
        found[found] = self.keys[place[found]] == wanted[found]
        first = np.where(found, self.starts[np.minimum(place, len(self.keys))], 0)
        count = np.where(found, self.starts[np.minimum(place + 1, len(self.keys))] - first, 0)
        return first, count


def expand(
    first: NDArray[np.int64], count: NDArray[np.int64], answers: NDArray[np.int32]
) -> tuple[NDArray[np.int64], NDArray[np.int32]]:
    """Runs answers[first[i] : first[i] + count[i]] laid end to end, with the row i of each entry."""
    rows = np.repeat(np.arange(len(count)), count)
    inside = np.arange(len(rows)) - np.repeat(np.cumsum(count) - count, count)
    return rows, answers[first[rows] + inside]


@dataclass(frozen=True, eq=False)
class KnownAnswers:
    head: AnswerIndex
    tail: AnswerIndex

    @classmethod
    def of(cls, *splits: Ids, n_relations: int, asked: Ids | None = None) -> KnownAnswers:
        """The known answers of all given splits together, each (n, 3); only those to the questions of the triples
        `asked`, if given."""
        return cls(
            head=_index(splits, 2, 0, n_relations, asked),
            tail=_index(splits, 0, 2, n_relations, asked),
        )

    def of_side(self, side: Literal["head", "tail"]) -> AnswerIndex:
        return self.head if side == "head" else self.tail


def _index(splits: Sequence[Ids], known: int, answer: int, n_relations: int, asked: Ids | None) -> AnswerIndex:
    """The index of one side; `known` and `answer` are the columns of the triples."""
    wanted = None if asked is None else _Wanted.of(asked, known, n_relations)
    parts = [
        _relevant(split[start : start + _ROWS], known, answer, n_relations, wanted)
        for split in splits
        for start in range(0, len(split), _ROWS)
    ]
    keys = np.concatenate([part[0] for part in parts] or [np.empty(0, np.int64)])
    answers = np.concatenate([part[1] for part in parts] or [np.empty(0, np.int32)])
    order = np.lexsort((answers, keys))
    keys, answers = keys[order], answers[order]
    if len(keys):
        fresh = np.ones(len(keys), bool)
        fresh[1:] = (keys[1:] != keys[:-1]) | (answers[1:] != answers[:-1])
        keys, answers = keys[fresh], answers[fresh]
    unique, starts = np.unique(keys, return_index=True)
    return AnswerIndex(unique, np.append(starts, len(keys)).astype(np.int64), answers, n_relations)


@dataclass(frozen=True, eq=False)
class _Wanted:
    """Questions: sorted keys, and whether an id stands in one. Most triples of a large graph answer none of them, and a
    look at the marks is enough to see it."""

    keys: NDArray[np.int64]
    marks: NDArray[np.bool_]  # ids up to the largest one, and one more for all beyond

    @classmethod
    def of(cls, asked: Ids, known: int, n_relations: int) -> _Wanted:
        marks = np.zeros(int(asked[:, known].max(initial=-1)) + 2, bool)
        marks[asked[:, known]] = True
        return cls(np.unique(_keys(asked, known, n_relations)), marks)

    def rows(self, triples: Ids, known: int, n_relations: int) -> NDArray[np.int64]:
        """Of the triples that answer one of them."""
        rows = np.flatnonzero(self.marks.take(triples[:, known], mode="clip"))
        if not len(rows):
            return rows
        keys = _keys(triples[rows], known, n_relations)
        return rows[self.keys[np.minimum(np.searchsorted(self.keys, keys), len(self.keys) - 1)] == keys]


def _relevant(
    triples: Ids, known: int, answer: int, n_relations: int, wanted: _Wanted | None
) -> tuple[NDArray[np.int64], NDArray[np.int32]]:
    """Keys and answers of the triples, only those that are wanted if that is said."""
    if wanted is not None:
        triples = triples[wanted.rows(triples, known, n_relations)]
    return _keys(triples, known, n_relations), triples[:, answer].astype(np.int32)


def _keys(triples: Ids, known: int, n_relations: int) -> NDArray[np.int64]:
    return triples[:, known].astype(np.int64) * n_relations + triples[:, 1]


# = Known answers of a few questions, in one pass over the triples.
# =
# = `known.KnownAnswers` sorts the whole graph, which pays off for thousands of questions; prediction asks a few, and
# = on hundreds of millions of mapped triples a pass is seconds where a sort is minutes and gigabytes.

_ROWS_lookup = 1 << 22  # triples looked through together


def known_answers(
    dataset: Dataset, ends: NDArray[np.int64], relations: NDArray[np.int64], side: Literal["head", "tail"]
) -> list[NDArray[np.int64]]:
    """For each of B questions (end, relation), all answers in train, valid and test, ascending and distinct.

    side is what is asked: with "tail", ends (B,) are heads.
    """
    keys, question_of = np.unique(ends * dataset.n_relations + relations, return_inverse=True)
    if not len(keys):
        return []
    found = [_matches(dataset, part, keys, side) for part in _parts(dataset)]
    place = np.concatenate([p for p, _ in found]) if found else np.empty(0, np.int64)
    answer = np.concatenate([a for _, a in found]) if found else np.empty(0, np.int64)
    pairs = np.unique(place * dataset.n_entities + answer)  # by question, then by answer
    place, answer = np.divmod(pairs, max(dataset.n_entities, 1))
    bounds = np.searchsorted(place, np.arange(len(keys) + 1))
    return [answer[bounds[i] : bounds[i + 1]] for i in question_of]


def known_relations(dataset: Dataset, head: int, tail: int) -> NDArray[np.bool_]:
    """(R,) which relations hold between head and tail in the dataset."""
    known = np.zeros(dataset.n_relations, bool)
    for part in _parts(dataset):
        known[part[(part[:, 0] == head) & (part[:, 2] == tail), 1]] = True
    return known


def _parts(dataset: Dataset) -> list[NDArray[np.int32]]:
    splits = [dataset.split(split) for split in SPLITS]
    return [s[start : start + _ROWS_lookup] for s in splits for start in range(0, len(s), _ROWS_lookup)]


def _matches(
    dataset: Dataset, triples: NDArray[np.int32], keys: NDArray[np.int64], side: Literal["head", "tail"]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """(place in keys, answer) of the triples that answer one of the questions."""
    heads, relations, tails = triples.T
    end, answer = (heads, tails) if side == "tail" else (tails, heads)
    wanted = end.astype(np.int64) * dataset.n_relations + relations
    place = np.minimum(np.searchsorted(keys, wanted), len(keys) - 1)
    hit = keys[place] == wanted
    return place[hit], answer[hit].astype(np.int64)
