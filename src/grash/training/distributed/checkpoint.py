"""Checkpoint and model folder of a distributed training: every rank writes its rows into the same files.

A rank's rows are one contiguous part of a safetensors file, so nothing is gathered. The files are those of a training
in one process: any number of ranks, or `grash train` alone, can read them. All ranks must share the disk.
"""

from __future__ import annotations

import json
import os
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path
from typing import Any, BinaryIO, NoReturn

import torch
from safetensors import safe_open
from torch import Tensor

from grash.data.dataset import Dataset
from grash.errors import GrashError, OutputError
from grash.files import atomic_folder, write_json
from grash.models import KgeModel
from grash.models.store import write_record
from grash.training.checkpoint import (
    TrainState,
    checkpoint_errors,
    read_record,
    restore_record,
    state_record,
    state_tensors,
)
from grash.training.config import TrainConfig
from grash.training.distributed.communication import ProcessGroup, Shard
from grash.training.initial import initial_model

_FLOATS_AT_ONCE = 1 << 24  # that are copied to the host and written at a time
_POLL_SECONDS = 5.0  # between two messages of ranks that wait for a disk


def fresh_shard(config: TrainConfig, n_relations: int, shard: Shard, device: torch.device) -> TrainState:
    """Return a new state with this rank's entity rows, all relations and their optimizers.

    The rows equal those of a training in one process."""
    own = torch.arange(shard.first, shard.last)
    model = initial_model(config, len(own), n_relations, device=device, entity_keys=own, table_rows=shard.n_rows)
    return TrainState.fresh(model, config)


def save_shard(state: TrainState, folder: Path, *, belongs_to: dict[str, Any], shard: Shard) -> None:
    """Write this rank's part of the checkpoint; the folder is replaced when all ranks have written theirs."""
    with shared_folder(folder, shard.group, overwrite=True) as temporary:
        tensors = state_tensors(state)
        _write_tables(temporary / "tensors.safetensors", tensors, {n for n in tensors if _is_sharded(n)}, shard)
        if shard.group.rank == 0:
            write_json(temporary / "state.json", state_record(state, belongs_to))


def load_shard(state: TrainState, folder: Path, *, belongs_to: dict[str, Any], shard: Shard) -> None:
    """Fill a new state with this rank's rows of a checkpoint that belongs to the same run."""
    record = read_record(folder, belongs_to)
    path = folder / "tensors.safetensors"
    with checkpoint_errors(folder):
        if record["has_best"]:
            rows = {"entity": _read_rows(path, "best.entity", shard), "relation": _read_rows(path, "best.relation")}
            state.best = rows
        for name, tensor in state_tensors(state).items():
            if not name.startswith("best."):
                stored = _read_rows(path, name, shard if _is_sharded(name) else None)
                if stored.shape != tensor.shape:
                    raise ValueError(f"{name} has shape {tuple(stored.shape)}, expected {tuple(tensor.shape)}")
                tensor.copy_(stored)
        restore_record(state, record)


def _is_sharded(name: str) -> bool:
    return name.removeprefix("best.").split(".")[0] == "entity"


def save_model_shard(
    model: KgeModel, dataset: Dataset, folder: Path, *, about: dict[str, Any], shard: Shard, overwrite: bool = False
) -> None:
    """Write this rank's part of a model folder, which appears when all ranks have written theirs.

    model: this rank's rows and all relations. about: config, evaluation and history, as in `models.store`."""
    with shared_folder(folder, shard.group, overwrite=overwrite) as temporary:
        tables = {"entity": model.entity, "relation": model.relation}
        _write_tables(temporary / "embeddings.safetensors", tables, {"entity"}, shard)

        def finish() -> None:
            if shard.group.rank == 0:
                dataset.save(temporary / "dataset")
                write_record(temporary, model, dataset, about)

        write_together(folder, shard.group, finish)


def check_shared(folder: Path, group: ProcessGroup) -> None:
    """Raise OutputError before a training starts if not all ranks can write beside `folder`, on the same disk."""

    def make() -> AbstractContextManager[str]:
        folder.parent.mkdir(parents=True, exist_ok=True)
        return tempfile.TemporaryDirectory(dir=folder.parent, prefix=f".{folder.name}.", suffix=".part")

    with ExitStack() as stack:
        temporary = _make_on_rank_0(folder, group, stack, make)
        write_together(folder, group, (temporary / str(group.rank)).touch)


@contextmanager
def shared_folder(folder: Path, group: ProcessGroup, *, overwrite: bool) -> Iterator[Path]:
    """`files.atomic_folder` for all ranks: what they write into the yielded folder becomes `folder`, or nothing."""
    with ExitStack() as stack:
        yield _make_on_rank_0(folder, group, stack, lambda: atomic_folder(folder, overwrite=overwrite, checksums=True))
        group.barrier()  # all have written
        done = stack.pop_all()
        write_together(folder, group, done.close)  # rank 0 flushes the files and renames the folder


def _make_on_rank_0(
    folder: Path, group: ProcessGroup, stack: ExitStack, make: Callable[[], AbstractContextManager[Path | str]]
) -> Path:
    """Return a folder that rank 0 makes and all ranks see; it lasts as long as the stack."""
    made: list[str] = []
    failed: list[Exception] = []
    if group.rank == 0:
        try:
            made.append(str(stack.enter_context(make())))
        except (GrashError, OSError) as error:
            failed.append(error)
    temporary = group.broadcast_text(*made)
    if not temporary:
        _raise(folder, failed, other="rank 0 cannot write there")
    if group.any(not Path(temporary).is_dir()):
        raise OutputError(folder, "not all ranks see it; give a folder on a disk that all ranks share")
    return Path(temporary)


def write_together(path: Path, group: ProcessGroup, write: Callable[[], None]) -> None:
    """Call `write` on every rank; an error on one rank is an error on all.

    Writing may take longer than the timeout of a collective, so the ranks exchange messages while they wait."""
    failed: list[Exception] = []

    def attempt() -> None:
        try:
            write()
        except Exception as error:
            failed.append(error)

    thread = threading.Thread(target=attempt, daemon=True)  # an interrupt need not wait for a disk
    thread.start()
    writing = True
    while writing:
        thread.join(_POLL_SECONDS)
        writing = group.any(thread.is_alive())
    if group.any(bool(failed)):
        _raise(path, failed)


def _raise(path: Path, failed: list[Exception], *, other: str = "another rank could not write its part") -> NoReturn:
    """Raise this rank's error, or one that names another rank's."""
    for error in failed:
        if isinstance(error, OSError):
            raise OutputError(path, error.strerror or str(error)) from error
        raise error
    raise OutputError(path, other)


def _write_tables(path: Path, tables: Mapping[str, Tensor], sharded: set[str], shard: Shard) -> None:
    """Write float32 tables as a safetensors file: of those in `sharded` this rank has its rows, of the others all."""
    group = shard.group
    shapes = {name: (shard.n_rows if name in sharded else len(t), t.shape[1]) for name, t in tables.items()}
    header, starts, n_bytes = _safetensors_header(shapes)

    def write_header() -> None:
        if group.rank == 0:
            with path.open("wb") as file:
                file.write(header)
                file.truncate(len(header) + n_bytes)

    def write_rows() -> None:
        with path.open("r+b") as file:
            for name, table in tables.items():
                if name in sharded or group.rank == 0:
                    first = shard.first if name in sharded else 0
                    file.seek(len(header) + starts[name] + 4 * first * table.shape[1])
                    _write_rows(file, table)
            file.flush()
            os.fsync(file.fileno())

    write_together(path, group, write_header)
    write_together(path, group, write_rows)


def _safetensors_header(shapes: Mapping[str, tuple[int, int]]) -> tuple[bytes, dict[str, int], int]:
    """Return the file's header, where in the data after it each table starts, and the bytes of all tables."""
    entries, starts, n_bytes = {}, {}, 0
    for name, (rows, width) in shapes.items():
        starts[name], end = n_bytes, n_bytes + 4 * rows * width
        entries[name] = {"dtype": "F32", "shape": [rows, width], "data_offsets": [n_bytes, end]}
        n_bytes = end
    text = json.dumps(entries).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text, starts, n_bytes


def _write_rows(file: BinaryIO, table: Tensor) -> None:
    for rows in table.split(max(1, _FLOATS_AT_ONCE // max(1, table.shape[1]))):
        file.write(rows.to("cpu", torch.float32).contiguous().numpy().data)


def _read_rows(path: Path, name: str, shard: Shard | None = None) -> Tensor:
    """Read a table of a safetensors file, or only the shard's rows of it."""
    with safe_open(path, framework="pt") as file:
        table = file.get_slice(name)
        n_rows = table.get_shape()[0]
        if shard is None:
            return table[:]
        if n_rows != shard.n_rows:
            raise ValueError(f"{name} has {n_rows:,} rows, expected {shard.n_rows:,}")
        return table[shard.first : shard.last]
