"""Which answers are already known: all true tails of (head, relation), all true heads of (relation, tail).

Filtered ranking leaves them out, KvsAll trains on them, and negative sampling can avoid them. Two sorted key
arrays and two arrays of answers, 12 bytes per triple and side; nothing is a Python object per triple.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

Ids = NDArray[np.integer]


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

    @property
    def known(self) -> NDArray[np.int64]:
        return self.keys // self.n_relations

    @property
    def relations(self) -> NDArray[np.int64]:
        return self.keys % self.n_relations

    def pairs(self, known: Ids, relations: Ids) -> tuple[NDArray[np.int64], NDArray[np.int32]]:
        """For B questions, every (row, answer) that is known: rows (m,) ascending in range(B), answers (m,)."""
        wanted = known.astype(np.int64) * self.n_relations + relations
        place = np.searchsorted(self.keys, wanted)
        found = place < len(self.keys)
        found[found] = self.keys[place[found]] == wanted[found]
        first = np.where(found, self.starts[np.minimum(place, len(self.keys))], 0)
        count = np.where(found, self.starts[np.minimum(place + 1, len(self.keys))] - first, 0)
        return expand(first, count, self.answers)


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
    def of(cls, *splits: Ids, n_relations: int) -> KnownAnswers:
        """The known answers of all given splits together, each (n, 3)."""
        triples = np.concatenate(splits) if splits else np.empty((0, 3), np.int32)
        heads, relations, tails = triples.T
        return cls(
            head=_index(tails, relations, heads, n_relations),
            tail=_index(heads, relations, tails, n_relations),
        )

    def of_slot(self, slot: Literal["head", "tail"]) -> AnswerIndex:
        return self.head if slot == "head" else self.tail


def _index(known: Ids, relations: Ids, answers: Ids, n_relations: int) -> AnswerIndex:
    keys = known.astype(np.int64) * n_relations + relations
    order = np.lexsort((answers, keys))
    keys, answers = keys[order], answers[order]
    if len(keys):
        fresh = np.ones(len(keys), bool)
        fresh[1:] = (keys[1:] != keys[:-1]) | (answers[1:] != answers[:-1])
        keys, answers = keys[fresh], answers[fresh]
    unique, starts = np.unique(keys, return_index=True)
    starts = np.append(starts, len(keys)).astype(np.int64)
    return AnswerIndex(unique, starts, answers.astype(np.int32), n_relations)
