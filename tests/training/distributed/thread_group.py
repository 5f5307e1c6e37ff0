"""A process group of threads that take turns, so tests need no processes."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import torch
from torch import Tensor

from grash.training.distributed.communication import ProcessGroup

Result = TypeVar("Result")


class _Shared:
    """What the threads exchange: one value of each, kept until all have read it."""

    def __init__(self, size: int) -> None:
        self.barrier = threading.Barrier(size, timeout=60)
        self.turn = threading.Lock()  # numba's loops do not support several threads at once
        self.values_of_ranks: list[Any] = [None] * size


class Threads(ProcessGroup):
    def __init__(self, rank: int, size: int, shared: _Shared | None) -> None:
        self.rank, self.size, self.shared = rank, size, shared

    def all_to_all(self, rows: Tensor, sent: Sequence[int], received: Sequence[int]) -> Tensor:
        assert sum(sent) == len(rows)
        received_values = self._exchange([part.clone() for part in rows.split(list(sent))])
        parts = [value[self.rank] for value in received_values]
        assert [len(part) for part in parts] == list(received)
        return torch.cat(parts)

    def all_gather(self, values: Tensor) -> Tensor:
        return torch.stack(self._exchange(values.clone()))

    def _exchange(self, value: Any) -> list[Any]:
        self.shared.values_of_ranks[self.rank] = value
        self.shared.turn.release()
        try:
            self.shared.barrier.wait()
            received_values = list(self.shared.values_of_ranks)
            self.shared.barrier.wait()
        finally:
            self.shared.turn.acquire()
        return received_values


def in_threads(size: int, work: Callable[[ProcessGroup], Result]) -> list[Result]:
    """Return what `work` returns on each of `size` ranks."""
    shared = _Shared(size)
    results: list[Any] = [None] * size
    errors: list[BaseException] = []

    def run(rank: int) -> None:
        with shared.turn, torch.no_grad():
            try:
                results[rank] = work(Threads(rank, size, shared))
            except threading.BrokenBarrierError:
                pass
            except BaseException as error:
                errors.append(error)
                shared.barrier.abort()

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]
    return results
