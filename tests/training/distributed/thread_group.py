"""Ranks as threads of this process that take turns: what processes do, without starting any."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import torch
from torch import Tensor

from grash.training.distributed.communication import ProcessGroup

Result = TypeVar("Result")


class _Table:
    """What lies between the ranks: one word of each, until all have spoken and all have heard."""

    def __init__(self, size: int) -> None:
        self.barrier = threading.Barrier(size, timeout=60)
        self.turn = threading.Lock()  # numba's loops are not made for several threads at once
        self.words: list[Any] = [None] * size


class Threads(ProcessGroup):
    def __init__(self, rank: int, size: int, table: _Table | None) -> None:
        self.rank, self.size, self.table = rank, size, table

    def all_to_all(self, rows: Tensor, sent: Sequence[int], received: Sequence[int]) -> Tensor:
        assert sum(sent) == len(rows)
        heard = self._say([part.clone() for part in rows.split(list(sent))])
        parts = [word[self.rank] for word in heard]
        assert [len(part) for part in parts] == list(received)
        return torch.cat(parts)

    def all_gather(self, values: Tensor) -> Tensor:
        return torch.stack(self._say(values.clone()))

    def _say(self, word: Any) -> list[Any]:
        self.table.words[self.rank] = word
        self.table.turn.release()
        try:
            self.table.barrier.wait()
            heard = list(self.table.words)
            self.table.barrier.wait()
        finally:
            self.table.turn.acquire()
        return heard


def in_threads(size: int, work: Callable[[ProcessGroup], Result]) -> list[Result]:
    """What `work` gives back on each of `size` ranks."""
    table = _Table(size)
    results: list[Any] = [None] * size
    errors: list[BaseException] = []

    def run(rank: int) -> None:
        with table.turn, torch.no_grad():
            try:
                results[rank] = work(Threads(rank, size, table))
            except threading.BrokenBarrierError:
                pass
            except BaseException as error:
                errors.append(error)
                table.barrier.abort()

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]
    return results
