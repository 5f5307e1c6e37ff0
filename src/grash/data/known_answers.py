"""Known answers: all true tails of (head, relation) and all true heads of (relation, tail).

Filtered ranking leaves them out, KvsAll trains on them, and negative sampling can avoid them. Per side, an index takes
4 bytes for each answer and 16 for each distinct question, and up to 100 bytes per triple while it is built. Few
questions need only the triples that answer them, which one pass finds.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numba import njit
from numpy.typing import NDArray

from grash.data.arrays import Triples, distinct
from grash.data.dataset import SPLITS, Dataset, SplitName

Ids = NDArray[np.integer]
Side = Literal["head", "tail"]

_ROWS = 1 << 20  # triples per block

CARDINALITIES = ("1-1", "1-N", "N-1", "N-N", "unseen")
MANY = 1.5  # Bordes et al. 2013: N from this mean number of tails per head (heads per tail) on


@dataclass(frozen=True, eq=False)
class AnswerIndex:
    """Answers by question. A question is an entity and a relation, with the key entity · R + relation."""

    keys: NDArray[np.int64]  # (q,) ascending
    starts: NDArray[np.int64]  # (q + 1,): question i has answers[starts[i]:starts[i + 1]]
    answers: NDArray[np.int32]  # ascending and distinct within a question
    n_relations: int

    def __len__(self) -> int:
        return len(self.keys)

    def pairs(self, known: Ids, relations: Ids) -> tuple[NDArray[np.int64], NDArray[np.int32]]:
        """Return every (row, known answer) of B questions: rows (m,) ascending in range(B), answers (m,)."""
        return expand(*self.runs(known, relations), self.answers)

    def runs(self, known: Ids, relations: Ids) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return where the answers of B questions begin in `answers`, and their number: (B,), (B,)."""
        wanted = known.astype(np.int64) * self.n_relations + relations
        position = np.searchsorted(self.keys, wanted)
        found = position < len(self.keys)
        found[found] = self.keys[position[found]] == wanted[found]
        first = np.where(found, self.starts[np.minimum(position, len(self.keys))], 0)
        count = np.where(found, self.starts[np.minimum(position + 1, len(self.keys))] - first, 0)
        return first, count


def expand(
    first: NDArray[np.int64], count: NDArray[np.int64], answers: NDArray[np.int32]
) -> tuple[NDArray[np.int64], NDArray[np.int32]]:
    """Return the concatenated runs answers[first[i] : first[i] + count[i]], with the row i of each entry."""
    rows = np.repeat(np.arange(len(count)), count)
    inside = np.arange(len(rows)) - np.repeat(np.cumsum(count) - count, count)
    return rows, answers[first[rows] + inside]


@dataclass(frozen=True, eq=False)
class KnownAnswers:
    head: AnswerIndex
    tail: AnswerIndex

    @classmethod
    def of(cls, *splits: Ids, n_relations: int, asked: Ids | None = None) -> KnownAnswers:
        """Index the answers in all given splits, each (n, 3); with `asked` (m, 3), only those to its questions."""
        return cls(
            head=_index(splits, 2, 0, n_relations, asked),
            tail=_index(splits, 0, 2, n_relations, asked),
        )

    def of_side(self, side: Side) -> AnswerIndex:
        return self.head if side == "head" else self.tail


def answer_index(dataset: Dataset, ends: NDArray[np.int64], relations: NDArray[np.int64], side: Side) -> AnswerIndex:
    """Index all answers in the dataset to some questions (end, relation).

    `side` is what is asked for: with "tail", ends (B,) are heads. Takes one pass over the triples.
    """
    known, answer = (0, 2) if side == "tail" else (2, 0)
    asked = np.zeros((len(ends), 3), np.int64)
    asked[:, known], asked[:, 1] = ends, relations
    return _index([dataset.split(split) for split in SPLITS], known, answer, dataset.n_relations, asked)


def known_relations(dataset: Dataset, head: int, tail: int) -> NDArray[np.bool_]:
    """Return which relations (R,) hold between head and tail in the dataset."""
    known = np.zeros(dataset.n_relations, bool)
    for block in _blocks([dataset.split(split) for split in SPLITS]):
        known[block[(block[:, 0] == head) & (block[:, 2] == tail), 1]] = True
    return known


class TripleIndex:
    """The triples of a dataset by head and by tail, for many questions about single entities.

    Takes 8 bytes per triple and 16 per entity, and a few seconds for ten million triples; `triples_with` without it
    takes a pass over the triples for each question.
    """

    def __init__(self, dataset: Dataset) -> None:
        self._splits = [dataset.split(split) for split in SPLITS]
        self._ends = np.cumsum([len(split) for split in self._splits])
        self._by_head, self._by_tail = (_grouped(self._splits, column, dataset.n_entities) for column in (0, 2))

    def triples(self, entity: int, column: int) -> tuple[NDArray[np.int32], NDArray[np.int64]]:
        """Return the triples (n, 3) with this head (column 0) or tail (column 2), and the split of each as a number."""
        starts, rows = self._by_head if column == 0 else self._by_tail
        found = rows[starts[entity] : starts[entity + 1]].astype(np.int64)
        of_split = np.searchsorted(self._ends, found, side="right")
        firsts = self._ends - [len(split) for split in self._splits]
        parts = [split[found[of_split == i] - firsts[i]] for i, split in enumerate(self._splits)]
        return np.concatenate(parts), np.sort(of_split)

    def pairs(self, ends: Ids, relations: Ids, side: Side) -> tuple[NDArray[np.int64], NDArray[np.int32]]:
        """Return the same as `AnswerIndex.pairs` of `answer_index`."""
        known, answer = (0, 2) if side == "tail" else (2, 0)
        answers = []
        for end, relation in zip(ends.tolist(), relations.tolist()):
            triples, _ = self.triples(end, known)
            answers.append(np.unique(triples[triples[:, 1] == relation, answer]))
        return np.repeat(np.arange(len(answers)), [len(each) for each in answers]), np.concatenate(answers)


def _grouped(splits: Sequence[Ids], column: int, n_entities: int) -> tuple[NDArray[np.int64], NDArray[np.uint32]]:
    """Return the rows of all splits sorted by a column (counting sort), and where those of each entity begin."""
    starts = np.zeros(n_entities + 1, np.int64)
    for block in _blocks(splits):
        starts[1:] += np.bincount(block[:, column], minlength=n_entities)
    np.cumsum(starts, out=starts)
    rows, free, first = np.empty(int(starts[-1]), np.uint32), starts[:-1].copy(), 0
    for split in splits:
        _place_rows(np.asarray(split), column, first, free, rows)
        first += len(split)
    return starts, rows


@njit(cache=True, nogil=True)
def _place_rows(triples, column, first, free, rows):  # type: ignore[no-untyped-def]
    for i in range(len(triples)):
        entity = triples[i, column]
        rows[free[entity]] = first + i
        free[entity] += 1


def triples_with(dataset: Dataset, entity: int, index: TripleIndex | None = None) -> dict[SplitName, NDArray[np.int32]]:
    """Return the triples (n, 3) of each split that have the entity as head or tail.

    Takes one pass over the triples, or an index.
    """
    found = {}
    if index is not None:
        (heads, of_head), (tails, of_tail) = (index.triples(entity, column) for column in (0, 2))
        other = tails[:, 0] != entity  # a loop is found once
        tails, of_tail = tails[other], of_tail[other]
        return {s: np.concatenate([heads[of_head == i], tails[of_tail == i]]) for i, s in enumerate(SPLITS)}
    for split in SPLITS:
        blocks = _blocks([dataset.split(split)])
        parts = [block[(block[:, 0] == entity) | (block[:, 2] == entity)] for block in blocks]
        found[split] = np.concatenate([dataset.split(split)[:0], *parts])
    return found


def triples_among(dataset: Dataset, entities: Ids) -> NDArray[np.int32]:
    """Return the triples (n, 3) of train between some entities. Takes one pass over train."""
    marks = np.zeros(dataset.n_entities, bool)
    marks[entities] = True
    parts = [block[marks[block[:, 0]] & marks[block[:, 2]]] for block in _blocks([dataset.train])]
    return np.concatenate([dataset.train[:0], *parts])


def _index(splits: Sequence[Ids], known: int, answer: int, n_relations: int, asked: Ids | None) -> AnswerIndex:
    """Return the index of one side; `known` and `answer` are columns of the triples."""
    questions = None if asked is None else _Questions.of(asked, known, n_relations)
    keys, answers = [np.empty(0, np.int64)], [np.empty(0, np.int32)]
    for block in _blocks(splits):
        if questions is not None:
            block = block[questions.answered_by(block, known, n_relations)]
        keys.append(_keys(block, known, n_relations))
        answers.append(block[:, answer].astype(np.int32))
    key, value = np.concatenate(keys), np.concatenate(answers)
    order = np.lexsort((value, key))
    key, value = key[order], value[order]
    if len(key):
        fresh = np.ones(len(key), bool)
        fresh[1:] = (key[1:] != key[:-1]) | (value[1:] != value[:-1])
        key, value = key[fresh], value[fresh]
    unique, starts = np.unique(key, return_index=True)
    return AnswerIndex(unique, np.append(starts, len(key)).astype(np.int64), value, n_relations)


@dataclass(frozen=True, eq=False)
class _Questions:
    """Sorted keys of questions, and marks of their entities, which reject most triples of a large graph quickly."""

    keys: NDArray[np.int64]
    marks: NDArray[np.bool_]  # by entity id up to the largest one, and one more for all ids beyond

    @classmethod
    def of(cls, asked: Ids, known: int, n_relations: int) -> _Questions:
        marks = np.zeros(int(asked[:, known].max(initial=-1)) + 2, bool)
        marks[asked[:, known]] = True
        return cls(distinct(_keys(asked, known, n_relations)), marks)

    def answered_by(self, triples: Ids, known: int, n_relations: int) -> NDArray[np.int64]:
        """Return the rows of the triples that answer a question."""
        rows = np.flatnonzero(self.marks.take(triples[:, known], mode="clip"))
        if not len(rows):
            return rows
        keys = _keys(triples[rows], known, n_relations)
        return rows[self.keys[np.minimum(np.searchsorted(self.keys, keys), len(self.keys) - 1)] == keys]


def _blocks(splits: Sequence[Ids]) -> list[Ids]:
    return [split[start : start + _ROWS] for split in splits for start in range(0, len(split), _ROWS)]


def _keys(triples: Ids, known: int, n_relations: int) -> NDArray[np.int64]:
    return triples[:, known].astype(np.int64) * n_relations + triples[:, 1]


def relation_cardinalities(triples: Triples, n_relations: int) -> NDArray[np.int8]:
    """Return the index into CARDINALITIES of each relation (R,), from distinct triples (n, 3), usually train.

    1-N: a head has many tails (at least MANY on average), a tail has one head. "unseen": no triple.
    """
    return cardinalities(*relation_counts(triples, n_relations))


def relation_counts(
    triples: Triples, n_relations: int
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """Return the number of distinct triples, heads and tails of each relation, (R,) each."""
    head, relation, tail = (triples[:, column].astype(np.int64) for column in range(3))
    n_entities = 1 + int(max(head.max(), tail.max())) if len(triples) else 1
    pair, n_pairs = head * n_entities + tail, n_entities**2
    if n_relations * n_pairs >= 2**63:  # number the pairs that occur
        occurring, pair = np.unique(pair, return_inverse=True)
        n_pairs = len(occurring)
    pairs = _distinct_per_relation(relation, pair, n_pairs, n_relations)
    heads = _distinct_per_relation(relation, head, n_entities, n_relations)
    tails = _distinct_per_relation(relation, tail, n_entities, n_relations)
    return pairs, heads, tails


def _distinct_per_relation(
    relation: NDArray[np.int64], item: NDArray[np.int64], n_items: int, n_relations: int
) -> NDArray[np.int64]:
    return np.bincount(distinct(relation * n_items + item) // n_items, minlength=n_relations)


def cardinalities(pairs: NDArray[np.int64], heads: NDArray[np.int64], tails: NDArray[np.int64]) -> NDArray[np.int8]:
    many_tails = pairs >= MANY * np.maximum(heads, 1)
    many_heads = pairs >= MANY * np.maximum(tails, 1)
    codes = many_tails * 1 + many_heads * 2
    return np.where(pairs == 0, CARDINALITIES.index("unseen"), codes).astype(np.int8)
