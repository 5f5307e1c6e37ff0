"""The processes (ranks) of one distributed training, which rows each stores, and how they exchange tensors.

Entity rows are stored in blocks: rank 0 has the first E / size, rank 1 the next, and so on. Every rank can compute the
whole batch from the seed and the step, so it knows which rows each rank needs: no ids are sent, only rows and
gradients. Two collectives are enough: `all_to_all` and `all_gather`. Sums are made from them in the order of the ranks,
so every rank and every run gets the same sum.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from grash.errors import RankLost


def double_on_cpu(values: Tensor) -> Tensor:
    """Return values that will be summed over ranks, as float64 on a CPU.

    Rounded to float32 afterwards, the sum is the same for any number of ranks, except for about one in 10⁸. Without
    this, one bit grows to 10⁻⁴ of a loss within 100 steps of Adagrad, whose first update of a row is ±lr.
    """
    return values.double() if values.device.type == "cpu" else values


class ProcessGroup(ABC):
    """All `size` ranks; this process is `rank`. Every rank makes the same calls in the same order."""

    rank: int
    size: int
    via_host = False  # whether tensors of a GPU travel through host memory, because ranks share the GPU

    @abstractmethod
    def all_to_all(self, rows: Tensor, sent: Sequence[int], received: Sequence[int]) -> Tensor:
        """Send rows (Σ sent, …), the first sent[0] to rank 0 and so on; return (Σ received, …) in rank order."""

    @abstractmethod
    def all_gather(self, values: Tensor) -> Tensor:
        """Return the values of all ranks, (size, …); the shape is the same on every rank."""

    def all_reduce(self, values: Tensor) -> Tensor:
        """Return the sum over the ranks."""
        return self.all_gather(values).sum(0)

    def any(self, flag: bool) -> bool:
        """Return whether the flag is set on some rank."""
        return bool(self.all_gather(torch.tensor([flag], dtype=torch.int32)).any())

    def barrier(self) -> None:
        """Wait for all ranks."""
        self.any(False)

    def broadcast_text(self, text: str = "") -> str:
        """Return rank 0's text."""
        content = text.encode() if self.rank == 0 else b""
        length = int(self.all_gather(torch.tensor([len(content)]))[0])
        padded = torch.zeros(length, dtype=torch.uint8)
        if self.rank == 0:
            padded.copy_(torch.tensor(list(content), dtype=torch.uint8))
        return bytes(self.all_gather(padded)[0].tolist()).decode()

    def own_slice(self, n: int) -> slice:
        """Return which of n items this rank works on: blocks of equal length, the last ones shorter or empty."""
        length = self._length(n)
        return slice(min(self.rank * length, n), min((self.rank + 1) * length, n))

    def split(self, values: Tensor) -> list[Tensor]:
        """Return the slices of values (n, …) that each rank works on."""
        length = self._length(len(values))
        return [values[rank * length : (rank + 1) * length] for rank in range(self.size)]

    def gather_slices(self, values: Tensor, n: int) -> Tensor:
        """Return (n, …) from `values`, this rank's slice of it."""
        length = self._length(n)
        padded = values.new_zeros(length, *values.shape[1:])
        padded[: len(values)] = values
        return self.all_gather(padded).flatten(0, 1)[:n]

    def reduce_scatter(self, values: Tensor) -> Tensor:
        """Return this rank's slice of the sum over the ranks of values (n, …)."""
        n, length = len(values), self._length(len(values))
        padded = values.new_zeros(self.size * length, *values.shape[1:])
        padded[:n] = values
        arrived = self.all_to_all(padded, [length] * self.size, [length] * self.size)
        own = self.own_slice(n)
        return arrived.unflatten(0, (self.size, length)).sum(0)[: own.stop - own.start]

    def _length(self, n: int) -> int:
        return -(-n // self.size)


class TorchProcessGroup(ProcessGroup):
    """The initialized default group of torch.distributed. Set `via_host` where ranks share a GPU: NCCL refuses that."""

    def __init__(self, *, via_host: bool = False) -> None:
        import torch.distributed as distributed

        self.distributed, self.via_host = distributed, via_host
        self.rank, self.size = distributed.get_rank(), distributed.get_world_size()

    def all_to_all(self, rows: Tensor, sent: Sequence[int], received: Sequence[int]) -> Tensor:
        source = rows.contiguous().cpu() if self.via_host else rows.contiguous()
        out = source.new_empty(sum(received), *rows.shape[1:])
        self._call(lambda: self.distributed.all_to_all_single(out, source, list(received), list(sent)))
        return out.to(rows.device)

    def all_gather(self, values: Tensor) -> Tensor:
        if not values.is_cuda or self.via_host:  # gloo's own gather goes from rank to rank and takes twice the time
            same = values.expand(self.size, *values.shape).reshape(-1)
            return self.all_to_all(same, *[[values.numel()] * self.size] * 2).view(self.size, *values.shape)
        out = values.new_empty(self.size, *values.shape)
        self._call(lambda: self.distributed.all_gather_into_tensor(out, values.contiguous()))
        return out

    def _call(self, collective: Callable[[], object]) -> None:
        try:
            collective()
        except RuntimeError as error:
            raise RankLost(
                f"Rank {self.rank} of {self.size} lost contact with the other ranks: one of them ended or cannot be "
                f"reached ({str(error).splitlines()[0]}). The same command resumes from the last checkpoint, if there "
                f"is one."
            ) from error


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
