"""Files that all ranks write together: each its own rows, into one safetensors file that is like any other.

A rank's rows are one piece of the file, so nothing is gathered anywhere, and whoever reads it (one process, or another
number of ranks) need not know who wrote it. The folder must lie on a disk that all ranks see.
"""

from __future__ import annotations

import json
import os
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, NoReturn

import torch
from safetensors import safe_open
from torch import Tensor

from grash.errors import GrashError, OutputError
from grash.files import atomic_folder
from grash.training.distributed.communication import Company

_TOGETHER = 1 << 24  # floats of rows that are written at a time
_WORD_SECONDS = 5.0  # between two words of ranks that wait for a disk


@contextmanager
def shared_folder(folder: Path, company: Company, *, overwrite: bool) -> Iterator[Path]:
    """`files.atomic_folder` for all ranks: what they write into the yielded folder becomes `folder`, or nothing does."""
    with ExitStack() as stack:
        yield _made_by_first(folder, company, stack, lambda: atomic_folder(folder, overwrite=overwrite))
        company.any(False)  # all have written
        done = stack.pop_all()
        write_together(folder, company, done.close)  # rank 0 brings it to the disk and to its name


def check_shared(folder: Path, company: Company) -> None:
    """Says before a training what saving would say: that all ranks can write beside `folder`, on the same disk."""

    def trial() -> AbstractContextManager[str]:
        folder.parent.mkdir(parents=True, exist_ok=True)
        return tempfile.TemporaryDirectory(dir=folder.parent, prefix=f".{folder.name}.", suffix=".part")

    with ExitStack() as stack:
        aside = _made_by_first(folder, company, stack, trial)
        write_together(folder, company, (aside / str(company.rank)).touch)


def write_together(path: Path, company: Company, work: Callable[[], None]) -> None:
    """Every rank does its work, which may take longer than ranks have patience with one that says nothing: meanwhile
    they exchange words. Work that fails on one rank fails on all."""
    failed: list[Exception] = []

    def attempt() -> None:
        try:
            work()
        except Exception as error:
            failed.append(error)

    thread = threading.Thread(target=attempt, daemon=True)  # an interrupt need not wait for a disk
    thread.start()
    working = True
    while working:
        thread.join(_WORD_SECONDS)
        working = company.any(thread.is_alive())
    if company.any(bool(failed)):
        _raise(path, failed)


def _made_by_first(
    folder: Path, company: Company, stack: ExitStack, make: Callable[[], AbstractContextManager[Path | str]]
) -> Path:
    """A folder that rank 0 makes and all ranks see; it lasts as long as the stack."""
    made: list[str] = []
    failed: list[Exception] = []
    if company.rank == 0:
        try:
            made.append(str(stack.enter_context(make())))
        except (GrashError, OSError) as error:
            failed.append(error)
    aside = company.text(*made)
    if not aside:
        _raise(folder, failed, other="rank 0 cannot write there")
    if company.any(not Path(aside).is_dir()):
        raise OutputError(folder, "not all ranks see it, and it must lie on a disk that they share")
    return Path(aside)


def _raise(path: Path, failed: list[Exception], *, other: str = "another rank could not write its part") -> NoReturn:
    """This rank's error as a sentence, or that another has one."""
    for error in failed:
        if isinstance(error, OSError):
            raise OutputError(path, error.strerror or str(error)) from error
        raise error
    raise OutputError(path, other)


def write_tables(path: Path, tables: Mapping[str, Tensor], spread: set[str], shard: Shard, company: Company) -> None:
    """Tables as a safetensors file: those in `spread` have this rank's rows of shard.n_rows, the others are the same on
    all ranks. All float32."""
    shapes = {name: (shard.n_rows if name in spread else len(t), t.shape[1]) for name, t in tables.items()}
    header, starts, n_bytes = _header(shapes)
    write_together(path, company, lambda: _begin(path, header, n_bytes) if company.rank == 0 else None)

    def write() -> None:
        with path.open("r+b") as file:
            for name, table in tables.items():
                if name in spread or company.rank == 0:
                    first = shard.first if name in spread else 0
                    file.seek(len(header) + starts[name] + 4 * first * table.shape[1])
                    _write_rows(file, table)
            file.flush()
            os.fsync(file.fileno())

    write_together(path, company, write)


def read_rows(path: Path, name: str, shard: Shard | None = None) -> Tensor:
    """A table of a safetensors file, or the shard's rows of it; nothing else is read."""
    with safe_open(path, framework="pt") as file:
        table = file.get_slice(name)
        n_rows = table.get_shape()[0]
        if shard is None:
            return table[:]
        if n_rows != shard.n_rows:
            raise ValueError(f"{name} has {n_rows:,} rows, and {shard.n_rows:,} are needed")
        return table[shard.first : shard.last]


def _header(shapes: Mapping[str, tuple[int, int]]) -> tuple[bytes, dict[str, int], int]:
    """The head of the file, where in the data after it each table starts, and the bytes of all."""
    entries, starts, place = {}, {}, 0
    for name, (rows, width) in shapes.items():
        starts[name], end = place, place + 4 * rows * width
        entries[name] = {"dtype": "F32", "shape": [rows, width], "data_offsets": [place, end]}
        place = end
    text = json.dumps(entries).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text, starts, place


def _begin(path: Path, header: bytes, n_bytes: int) -> None:
    with path.open("wb") as file:
        file.write(header)
        file.truncate(len(header) + n_bytes)


def _write_rows(file: BinaryIO, table: Tensor) -> None:
    for rows in table.split(max(1, _TOGETHER // max(1, table.shape[1]))):
        file.write(rows.to("cpu", torch.float32).contiguous().numpy().data)


# = Which rank has which rows of the entity table, and how rows get to the ranks that ask for them and back.
# =
# = Rows lie in blocks: rank 0 has the first E / size, rank 1 the next, … so that a rank's share is one piece of a file.
# = Every rank knows the whole batch (random numbers follow from the seed and the step), hence what each rank will ask of
# = each other: no ids are sent, only rows, and their gradients on the way back.


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
