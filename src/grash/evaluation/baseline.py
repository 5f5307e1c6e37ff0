"""A baseline without a model: the most frequent answers of each relation.

It ranks the entities by how often they are the tail (or head) of the relation in train, and ignores the other entity of
the question. A model that is not clearly better has learned little more than these counts. Goes into `Evaluation`.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from grash.data.arrays import in_blocks
from grash.data.known_answers import KnownAnswers
from grash.evaluation.ranking import Ranks, SideRanks
from grash.models.base import Side

_BLOCK = 1 << 20  # triples of train that are counted at a time
_TABLE = 1 << 24  # relations times entities up to which all counts are stored: 128 MiB
_QUESTIONS = 1 << 12  # whose known answers are looked up at a time


def frequency_ranks(
    triples: NDArray[np.int32], train: NDArray[np.int32], known: KnownAnswers, *, n_entities: int
) -> Ranks:
    """Return the filtered ranks of triples (n, 3) if candidates are ordered by their frequency in train.

    Takes one pass over train and a sort of the triples whose relation is asked for.
    """
    sides = [_side_ranks(triples, train, known, side, n_entities) for side in ("head", "tail")]
    return Ranks(triples, *sides)


def _side_ranks(
    triples: NDArray[np.int32], train: NDArray[np.int32], known: KnownAnswers, side: Side, n_entities: int
) -> SideRanks:
    answer = 0 if side == "head" else 2
    counts = _Frequencies(train, np.unique(triples[:, 1]), answer, n_entities)
    parts = []
    for start in range(0, len(triples), _QUESTIONS):
        part = triples[start : start + _QUESTIONS].astype(np.int64)
        relations, answers = part[:, 1], part[:, answer]
        own = counts.of(relations, answers)
        above, ties = counts.above_and_ties(relations, own)
        rows, filtered = known.of_side(side).pairs(part[:, 2 - answer], relations)
        other = filtered != answers[rows]
        rows, filtered = rows[other], filtered[other]
        theirs = counts.of(relations[rows], filtered.astype(np.int64))
        above -= np.bincount(rows[theirs > own[rows]], minlength=len(part))
        ties -= np.bincount(rows[theirs == own[rows]], minlength=len(part))
        parts.append((above, ties, n_entities - 1 - np.bincount(rows, minlength=len(part))))
    return SideRanks(*(np.concatenate(column) for column in zip(*parts)))


class _Frequencies:
    """How often each entity answers each of some relations in train."""

    def __init__(self, train: NDArray[np.int32], relations: NDArray[np.int32], answer: int, n_entities: int) -> None:
        wanted = np.zeros(int(max(train[:, 1].max(initial=0), relations.max(initial=0))) + 1, bool)
        wanted[relations] = True
        keys = [np.empty(0, np.int64)]
        for _, block in in_blocks(train, _BLOCK):
            chosen = block[wanted[block[:, 1]]]
            keys.append(chosen[:, 1].astype(np.int64) * n_entities + chosen[:, answer])
        self.n_entities = n_entities
        found = np.concatenate(keys)  # relation · E + entity
        self.table: NDArray[np.int64] | None = None
        if (size := len(wanted) * n_entities) <= _TABLE:
            self.table = np.bincount(found, minlength=size)
            self.keys = np.flatnonzero(self.table)
            self.counts = self.table[self.keys]
        else:
            self.keys, self.counts = np.unique(found, return_counts=True)
        self.limit = int(self.counts.max(initial=0)) + 1
        self.sorted = np.sort(self.keys // n_entities * self.limit + self.counts)  # relation, then count

    def of(self, relations: NDArray[np.int64], entities: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the frequencies (n,) of entities (n,) as answers of relations (n,)."""
        wanted = relations * self.n_entities + entities
        if self.table is not None:
            return self.table[wanted]
        position = np.minimum(np.searchsorted(self.keys, wanted), max(0, len(self.keys) - 1))
        if not len(self.keys):
            return np.zeros(len(wanted), np.int64)
        return np.where(self.keys[position] == wanted, self.counts[position], 0)

    def above_and_ties(
        self, relations: NDArray[np.int64], counts: NDArray[np.int64]
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return how many entities are more frequent, and how many others are as frequent: (n,), (n,)."""
        first, last = (np.searchsorted(self.sorted, r * self.limit) for r in (relations, relations + 1))
        below, upto = (np.searchsorted(self.sorted, relations * self.limit + counts + more) for more in (0, 1))
        never = self.n_entities - (last - first)
        return last - upto, np.where(counts > 0, upto - below, never) - 1
