"""The questions of a ranking: of every triple what is known, what is asked, and which answers are filtered.

Comes from triples and `data/known`, goes to `ranking`. Many triples ask the same question ("which files lie in this
directory?"), so known answers are kept once per distinct question: of the 10,000 test triples of DebianKG-files,
695 million filtered candidates of the heads are 7 million known answers.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from grash.data.known import KnownAnswers, expand
from grash.kernels.count_above import Runs
from grash.models.base import Slot


@dataclass(frozen=True, eq=False)
class Distinct:
    """The distinct questions as the counting kernels take them, int32 on the device."""

    asking: Tensor  # (Q,) a row of each; those that many rows ask come first
    asks: Tensor  # (B,) the number of a row's question
    order: Tensor  # (B,) rows by question
    starts: Tensor  # (Q + 1,) where a question's begin in it
    pairs: Tensor  # (2, m) a question and a known answer
    runs: Tensor  # (3, B) where the answers to a row's question begin and end in pairs; is its truth among them?


class Question:
    """The questions of one slot with their filter, on the device; made once, ranked as often as one likes."""

    def __init__(
        self,
        triples: NDArray[np.int32],
        known: KnownAnswers,
        slot: Slot,
        device: torch.device,
        n_entities: int,
    ) -> None:
        heads, relations, tails = triples.astype(np.int64).T
        self.slot, self.device, self.n_entities = slot, device, n_entities
        known_ids, self.truth = (heads, tails) if slot == "tail" else (tails, heads)
        self.known, self.relations, self.answers = (
            torch.from_numpy(np.ascontiguousarray(x)).to(device) for x in (known_ids, relations, self.truth)
        )
        index = known.of_slot(slot)
        self.asking, self.numbers = _distinct(known_ids * index.n_relations + relations)
        first, count = index.runs(known_ids[self.asking], relations[self.asking])
        self.asked, self.filtered = expand(first, count, index.answers)  # (m,) known answers, question by question
        ends = np.cumsum(count)
        self.first, self.last = (ends - count)[self.numbers], ends[self.numbers]  # (B,) where a row's answers lie
        self.truth_known = _contains(self._pairs(), self.numbers * n_entities + self.truth)
        self.others = n_entities - 1 - (self.last - self.first) + self.truth_known

    def __len__(self) -> int:
        return len(self.truth)

    def runs(self, first: int, last: int) -> Runs:
        """The filter of rows first … last; the truth may be in it, which is left out anyway."""
        return Runs(self.first[first:last], self.last[first:last], self.filtered)

    def knows(self, first: int, drawn: Tensor) -> Tensor:
        """drawn (B, n) entities for the rows from `first` on → (B, n): whether they are known answers there."""
        numbers = self.numbers[first : first + len(drawn), None]
        return torch.from_numpy(_contains(self._keys, numbers * self.n_entities + drawn.cpu().numpy())).to(drawn.device)

    @cached_property
    def _keys(self) -> NDArray[np.int64]:
        """As `_pairs`, kept: 8 bytes per known answer, which only ranking among drawn candidates needs."""
        return self._pairs()

    def _pairs(self) -> NDArray[np.int64]:
        """(m,) question and answer as one number, ascending."""
        return self.asked * self.n_entities + self.filtered

    @cached_property
    def distinct(self) -> Distinct:
        starts = np.cumsum(np.bincount(self.numbers, minlength=len(self.asking)))
        parts = (
            self.asking,
            self.numbers,
            np.argsort(self.numbers, kind="stable"),
            np.concatenate([[0], starts]),
            np.stack([self.asked, self.filtered]),
            np.stack([self.first, self.last, self.truth_known]),
        )
        return Distinct(*(torch.from_numpy(part.astype(np.int32)).to(self.device) for part in parts))


def _distinct(keys: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Of each distinct key a place, those of many first; of each place the number of its key in that order."""
    _, places, numbers, count = np.unique(keys, return_index=True, return_inverse=True, return_counts=True)
    order = np.argsort(-count, kind="stable")
    place_in = np.empty_like(order)
    place_in[order] = np.arange(len(order))
    return places[order], place_in[numbers]


def _contains(ascending: NDArray[np.int64], wanted: NDArray[np.int64]) -> NDArray[np.bool_]:
    place = np.searchsorted(ascending, wanted)
    found = place < len(ascending)
    found[found] = ascending[place[found]] == wanted[found]
    return found
