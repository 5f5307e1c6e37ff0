"""Which rank has which rows of the entity table, and how rows get to the ranks that ask for them and back.

Rows lie in blocks: rank 0 has the first E / size, rank 1 the next, … so that a rank's share is one piece of a file.
Every rank knows the whole batch (random numbers follow from the seed and the step), hence what each rank will ask of
each other: no ids are sent, only rows, and their gradients on the way back.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from grash.training.sharded_company import Company


@dataclass(frozen=True)
class Shard:
    """The rows first…last − 1 of n_rows, which are this rank's: local row i is row first + i."""

    n_rows: int
    size: int
    rank: int

    @classmethod
    def of(cls, n_rows: int, company: Company) -> Shard:
        return cls(n_rows, company.size, company.rank)

    @property
    def block(self) -> int:
        """Rows of every rank but the last ones, which may have fewer or none."""
        return max(1, -(-self.n_rows // self.size))

    @property
    def first(self) -> int:
        return min(self.rank * self.block, self.n_rows)

    @property
    def last(self) -> int:
        return min(self.first + self.block, self.n_rows)

    def __len__(self) -> int:
        return self.last - self.first

    def owners(self, ids: Tensor) -> Tensor:
        """The ranks that have these rows."""
        return ids // self.block

    def has(self, ids: Tensor) -> Tensor:
        return (ids >= self.first) & (ids < self.last)


class Route:
    """The way of rows from their owners to those who want them. wanted: ids (n,) per rank, the same on all ranks."""

    def __init__(self, wanted: Sequence[Tensor], shard: Shard, company: Company) -> None:
        self.company = company
        owners = shard.owners(wanted[company.rank])
        self.order = torch.argsort(owners, stable=True)  # as they arrive: rank after rank
        everyone = torch.cat(list(wanted))
        counts = torch.tensor([len(part) for part in wanted], device=everyone.device)
        ranks = torch.arange(company.size, device=everyone.device)
        wanting = ranks.repeat_interleave(counts, output_size=len(everyone))
        self.asked = shard.has(everyone)  # of all that is wanted, rank after rank, what this rank has
        self.rows = everyone[self.asked] - shard.first
        per_rank = [torch.bincount(them, minlength=company.size) for them in (wanting[self.asked], owners)]
        self.sent, self.received = torch.stack(per_rank).tolist()  # the one wait for the device

    def fetch(self, table: Tensor) -> Tensor:
        """table (E_own, D) → the wanted rows (n, D)."""
        arrived = self.company.exchange(table.index_select(0, self.rows), self.sent, self.received)
        return torch.empty_like(arrived).index_copy_(0, self.order, arrived)

    def give_back(self, gradients: Tensor) -> Tensor:
        """(n, D) for the wanted rows → what arrives from all ranks for the local rows `rows`, in their order."""
        return self.company.exchange(gradients.index_select(0, self.order), self.received, self.sent)
