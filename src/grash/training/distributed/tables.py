"""Which rank stores which rows of the entity table, and how rows reach the ranks that need them.

Rows are stored in blocks: rank 0 has the first E / size, rank 1 the next, and so on. Every rank can compute the whole
batch from the seed and the step, so it knows which rows each rank needs: no ids are sent, only rows and gradients.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from grash.training.distributed.communication import ProcessGroup


@dataclass(frozen=True, eq=False)
class Shard:
    """The rows first…last − 1 of n_rows, stored on this rank of the group: local row i is row first + i."""

    n_rows: int
    group: ProcessGroup

    @property
    def rows_per_rank(self) -> int:
        """Rows of each rank; the last ranks may have fewer or none."""
        return max(1, -(-self.n_rows // self.group.size))

    @property
    def first(self) -> int:
        return min(self.group.rank * self.rows_per_rank, self.n_rows)

    @property
    def last(self) -> int:
        return min(self.first + self.rows_per_rank, self.n_rows)

    def __len__(self) -> int:
        return self.last - self.first

    def owners(self, ids: Tensor) -> Tensor:
        """Return the ranks that store these rows."""
        return ids // self.rows_per_rank

    def has(self, ids: Tensor) -> Tensor:
        """Return which of these rows this rank stores."""
        return (ids >= self.first) & (ids < self.last)


class RowExchange:
    """Sends rows from their owners to the ranks that need them. needed: ids (n,) per rank, the same on all ranks."""

    def __init__(self, needed: Sequence[Tensor], shard: Shard) -> None:
        self.group = group = shard.group
        owners = shard.owners(needed[group.rank])
        self.order = torch.argsort(owners, stable=True)  # of arrival: rank by rank
        ids = torch.cat(list(needed))
        counts = torch.tensor([len(part) for part in needed], device=ids.device)
        ranks = torch.arange(group.size, device=ids.device)
        needing = ranks.repeat_interleave(counts, output_size=len(ids))
        self.is_local = shard.has(ids)  # of all needed rows, rank by rank
        self.rows = ids[self.is_local] - shard.first
        per_rank = [torch.bincount(them, minlength=group.size) for them in (needing[self.is_local], owners)]
        self.sent, self.received = torch.stack(per_rank).tolist()  # the only wait for the device

    def fetch(self, table: Tensor) -> Tensor:
        """Return the needed rows (n, D) of the table, of which this rank has (E_own, D)."""
        arrived = self.group.all_to_all(table.index_select(0, self.rows), self.sent, self.received)
        return torch.empty_like(arrived).index_copy_(0, self.order, arrived)

    def return_gradients(self, gradients: Tensor) -> Tensor:
        """Send gradients (n, D) of the needed rows to their owners; return those for the local rows `rows`."""
        return self.group.all_to_all(gradients.index_select(0, self.order), self.received, self.sent)
