"""The questions of a ranking: of every triple what is known, what is asked, and which answers are filtered.

Comes from triples and `data/known`, goes to `ranking`. Many triples ask the same question ("which files lie in this
directory?"), so known answers are kept once per distinct question: of the 10,000 test triples of DebianKG-files,
695 million filtered candidates of the heads are 7 million known answers.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from grash.data.known import KnownAnswers, expand
from grash.models.base import Slot

_KEPT = 1 << 26  # filtered candidates whose order by column is kept between rankings


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
        self.slot, self.device = slot, device
        known_ids, self.truth = (heads, tails) if slot == "tail" else (tails, heads)
        self.known, self.relations, self.answers = (
            torch.from_numpy(np.ascontiguousarray(x)).to(device) for x in (known_ids, relations, self.truth)
        )
        index = known.of_slot(slot)
        _, asking, question = np.unique(
            known_ids * index.n_relations + relations, return_index=True, return_inverse=True
        )
        first, count = index.runs(known_ids[asking], relations[asking])
        rows, self.filtered = expand(first, count, index.answers)  # (m,) known answers, question by question
        self.asking = asking[rows].astype(np.int32)  # (m,) a row that asks the question
        ends = np.cumsum(count)
        self.first, self.last = (ends - count)[question], ends[question]  # (B,) where the answers of a row lie
        self.truth_known = _contains(rows * n_entities + self.filtered, question * n_entities + self.truth)
        self.others = n_entities - 1 - (self.last - self.first) + self.truth_known
        self._skips: dict[tuple[int, int], tuple[Tensor, Tensor]] = {}
        self._filter: tuple[Tensor, Tensor] | None = None

    def __len__(self) -> int:
        return len(self.truth)

    def skips(self, first: int, last: int) -> tuple[Tensor, Tensor]:
        """(row − first, column) of the filtered candidates of questions first…last, columns ascending."""
        if (first, last) in self._skips:
            return self._skips[first, last]
        part = slice(first, last)
        rows, columns = expand(self.first[part], self.last[part] - self.first[part], self.filtered)
        other = columns != self.truth[part][rows]
        rows, columns = rows[other], columns[other].astype(np.int64)
        order = np.argsort(columns, kind="stable")
        pair = (torch.from_numpy(rows[order]).to(self.device), torch.from_numpy(columns[order]).to(self.device))
        if sum(len(columns) for _, columns in self._skips.values()) + len(order) <= _KEPT:
            self._skips[first, last] = pair
        return pair

    def filter(self) -> tuple[Tensor, Tensor]:
        """The filter as the counting kernels take it, int32: pairs (2, m) of a row and a known answer; runs (3, B),
        where a row's answers begin and end, and whether its truth is among them."""
        if self._filter is None:
            pairs = np.stack([self.asking, self.filtered])
            runs = np.stack([self.first, self.last, self.truth_known]).astype(np.int32)
            self._filter = (torch.from_numpy(pairs).to(self.device), torch.from_numpy(runs).to(self.device))
        return self._filter


def _contains(ascending: NDArray[np.int64], wanted: NDArray[np.int64]) -> NDArray[np.bool_]:
    place = np.searchsorted(ascending, wanted)
    found = place < len(ascending)
    found[found] = ascending[place[found]] == wanted[found]
    return found
