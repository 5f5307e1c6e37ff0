"""Files that all ranks write together: each its own rows, into one safetensors file that is like any other.

A rank's rows are one piece of the file, so nothing is gathered anywhere, and whoever reads it (one process, or another
number of ranks) need not know who wrote it. The folder must lie on a disk that all ranks see.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import BinaryIO

import torch
from safetensors import safe_open
from torch import Tensor

from grash.errors import GrashError, OutputError
from grash.files import whole_folder
from grash.training.sharded_company import Company
from grash.training.sharded_rows import Shard

_TOGETHER = 1 << 24  # floats of rows that are written at a time


@contextmanager
def shared_folder(folder: Path, company: Company, *, overwrite: bool) -> Iterator[Path]:
    """`files.whole_folder` for all ranks: what they write into the yielded folder becomes `folder`, or nothing does."""
    own: GrashError | None = None
    with ExitStack() as stack:
        aside = ""
        if company.rank == 0:
            try:
                aside = str(stack.enter_context(whole_folder(folder, overwrite=overwrite)))
            except GrashError as error:
                own = error
        aside = company.text(aside)
        if not aside:
            raise own or OutputError(folder, "rank 0 cannot write there")
        if company.any(not Path(aside).is_dir()):
            raise OutputError(folder, "not all ranks see it, and it must lie on a disk that they share")
        yield Path(aside)
        company.any(False)  # all have written
    company.any(False)  # it is there


def write_tables(path: Path, tables: Mapping[str, Tensor], spread: set[str], shard: Shard, company: Company) -> None:
    """Tables as a safetensors file: those in `spread` have this rank's rows of shard.n_rows, the others are the same on
    all ranks. All float32."""
    shapes = {name: (shard.n_rows if name in spread else len(t), t.shape[1]) for name, t in tables.items()}
    header, starts, n_bytes = _header(shapes)
    if company.rank == 0:
        _attempt(path, company, lambda: _begin(path, header, n_bytes))
    else:
        _attempt(path, company, lambda: None)

    def write() -> None:
        with path.open("r+b") as file:
            for name, table in tables.items():
                if name in spread or company.rank == 0:
                    first = shard.first if name in spread else 0
                    file.seek(len(header) + starts[name] + 4 * first * table.shape[1])
                    _write_rows(file, table)
            file.flush()
            os.fsync(file.fileno())

    _attempt(path, company, write)


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


def _attempt(path: Path, company: Company, work: Callable[[], None]) -> None:
    """Work that may fail on one rank then fails on all."""
    reason = ""
    try:
        work()
    except OSError as error:
        reason = error.strerror or str(error)
    if company.any(bool(reason)):
        raise OutputError(path, reason or "another rank could not write its rows")
