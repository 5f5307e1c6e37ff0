"""The ranks of one training, each a process with a share of the entities' rows, and how they talk to each other.

Comes from `engines/distributed`, goes to every other `sharded` file. Two operations are enough: `exchange` (to each
rank its own rows) and `gather` (everybody's rows to all). Sums are made of them, in the order of the ranks, so that
they are the same on every rank and in every run; on a CPU in float64 (`wide`), so that they are nearly always the same
for every number of ranks.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from grash.errors import GrashError


class RankLost(GrashError):
    """Another rank ended, or cannot be reached any more."""

    exit_code = 8


def wide(values: Tensor) -> Tensor:
    """What will be summed over ranks, in float64 on a CPU: rounded to float32 afterwards, the sum is the same however
    its terms were shared out, but for one in some 10⁸. Without that one bit turns into 10⁻⁴ of a loss within 100 steps
    of Adagrad, whose first update of a row is ±lr whatever the gradient."""
    return values.double() if values.device.type == "cpu" else values


class Company(ABC):
    """All `size` ranks; this process is number `rank`. Every rank makes the same calls in the same order."""

    rank: int
    size: int
    staged = False  # whether rows of a card go through the host, since ranks share it

    @abstractmethod
    def exchange(self, rows: Tensor, sent: Sequence[int], received: Sequence[int]) -> Tensor:
        """rows (Σ sent, …): the first sent[0] go to rank 0, the next to rank 1, … → (Σ received, …) in the order of
        the ranks they come from."""

    @abstractmethod
    def gather(self, values: Tensor) -> Tensor:
        """values, of one shape on all ranks → (size, …), rank after rank."""

    def total(self, values: Tensor) -> Tensor:
        """The sum over the ranks."""
        return self.gather(values).sum(0)

    def any(self, said: bool) -> bool:
        """Whether some rank says so."""
        return bool(self.gather(torch.tensor([said], dtype=torch.int32)).any())

    def text(self, said: str = "") -> str:
        """What rank 0 says."""
        content = said.encode() if self.rank == 0 else b""
        length = int(self.gather(torch.tensor([len(content)]))[0])
        padded = torch.zeros(length, dtype=torch.uint8)
        if self.rank == 0:
            padded.copy_(torch.tensor(list(content), dtype=torch.uint8))
        return bytes(self.gather(padded)[0].tolist()).decode()

    def part(self, n: int) -> slice:
        """The places among n that this rank works on: blocks of equal length, the last ones shorter or empty."""
        length = self._length(n)
        return slice(min(self.rank * length, n), min((self.rank + 1) * length, n))

    def parts(self, values: Tensor) -> list[Tensor]:
        """values (n, …) by the ranks that work on them."""
        length = self._length(len(values))
        return [values[rank * length : (rank + 1) * length] for rank in range(self.size)]

    def gather_parts(self, values: Tensor, n: int) -> Tensor:
        """values: this rank's part of (n, …), which comes back."""
        length = self._length(n)
        padded = values.new_zeros(length, *values.shape[1:])
        padded[: len(values)] = values
        return self.gather(padded).flatten(0, 1)[:n]

    def total_parts(self, values: Tensor) -> Tensor:
        """values (n, …) → this rank's part of the sum over the ranks."""
        n, length = len(values), self._length(len(values))
        padded = values.new_zeros(self.size * length, *values.shape[1:])
        padded[:n] = values
        arrived = self.exchange(padded, [length] * self.size, [length] * self.size)
        part = self.part(n)
        return arrived.unflatten(0, (self.size, length)).sum(0)[: part.stop - part.start]

    def _length(self, n: int) -> int:
        return -(-n // self.size)


class Processes(Company):
    """The processes of torch.distributed, joined already. `staged`: where ranks share a card, which NCCL refuses."""

    def __init__(self, *, staged: bool = False) -> None:
        import torch.distributed as distributed

        self.distributed, self.staged = distributed, staged
        self.rank, self.size = distributed.get_rank(), distributed.get_world_size()

    def exchange(self, rows: Tensor, sent: Sequence[int], received: Sequence[int]) -> Tensor:
        there = rows.contiguous().cpu() if self.staged else rows.contiguous()
        out = there.new_empty(sum(received), *rows.shape[1:])
        self._call(lambda: self.distributed.all_to_all_single(out, there, list(received), list(sent)))
        return out.to(rows.device)

    def gather(self, values: Tensor) -> Tensor:
        if not values.is_cuda or self.staged:  # gloo's own gather goes from rank to rank and takes twice the time
            same = values.expand(self.size, *values.shape).reshape(-1)
            return self.exchange(same, *[[values.numel()] * self.size] * 2).view(self.size, *values.shape)
        out = values.new_empty(self.size, *values.shape)
        self._call(lambda: self.distributed.all_gather_into_tensor(out, values.contiguous()))
        return out

    def _call(self, collective: Callable[[], object]) -> None:
        try:
            collective()
        except RuntimeError as error:
            raise RankLost(
                f"Rank {self.rank} of {self.size} lost the others, since one of them ended or cannot be reached "
                f"({str(error).splitlines()[0]}): the run ends here. The same command goes on from its last "
                f"checkpoint, if there is one."
            ) from error
