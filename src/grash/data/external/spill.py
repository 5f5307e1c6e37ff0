"""The spill folder: what has been read of a source larger than memory, as append-only files and a manifest.

Written and read by names.py and prepare.py. The manifest records up to where the files are complete; anything behind
that is cut off when the folder is opened again, so the same command resumes from the last commit.

    manifest.json           the source it belongs to; the last committed state; the state at which each generation of
                            names began; at the end, the checksum of the dataset that replaces it
    SPLIT.ids               int32 (n, 3), in ids of its generation
    STEM.names, .lengths    the concatenated names of all generations (entities, relations), and their lengths, int32
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shutil
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from grash.data.arrays import Triples
from grash.data.dataset import SPLITS
from grash.data.vocabulary import SLACK, HashedFields, hashed_fields
from grash.errors import FormatError, InputError, OutputError
from grash.files import read_json, write_json

STEMS = ("entities", "relations")
MANIFEST = "manifest.json"
_SCHEMA, _VERSION = "grash-spill", 1
_NAMES = 1 << 20  # names per block


@dataclass(frozen=True)
class SpillState:
    """How much is in the spill, and where reading continues."""

    split: str | None  # being read; None after the last one
    next_byte: int = 0
    next_line: int = 1
    rows: dict[str, int] = field(default_factory=lambda: dict.fromkeys(SPLITS, 0))  # by split
    names: dict[str, int] = field(default_factory=lambda: dict.fromkeys(STEMS, 0))  # by stem
    name_bytes: dict[str, int] = field(default_factory=lambda: dict.fromkeys(STEMS, 0))
    notes: dict[str, int] = field(default_factory=dict)  # counted in the completed splits


class Spill:
    """The spill folder, locked by this process between `__enter__` and `__exit__`."""

    def __init__(self, folder: Path, belongs_to: dict[str, Any]) -> None:
        self.folder = folder
        self.belongs_to = json.loads(json.dumps(belongs_to))
        self.state = SpillState(SPLITS[0])
        self.generations: list[SpillState] = []
        self.result_checksum: str | None = None
        self.resumed = False
        self._files: dict[str, IO[bytes]] = {}

    def __enter__(self) -> Spill:
        self._lock_folder()
        try:
            self._open()
        except BaseException:
            self._close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._close()

    def add_rows(self, split: str, ids: Triples) -> None:
        self._files[f"{split}.ids"].write(ids.data)

    def add_names(self, stem: str, text: NDArray[np.uint8], lengths: NDArray[np.int32]) -> None:
        self._files[f"{stem}.names"].write(text.data)
        self._files[f"{stem}.lengths"].write(lengths.data)

    def begin_generation(self) -> None:
        """From here on, ids start from 0 again."""
        self.generations.append(self.state)

    def commit(self, state: SpillState) -> None:
        """Make everything added so far permanent."""
        for file in self._files.values():
            file.flush()
            os.fsync(file.fileno())
        self.state = state
        self._write_manifest()

    def record_result(self, description: Path) -> None:
        """Record the dataset.json of the finished dataset; only the removal of the spill remains."""
        self.result_checksum = _checksum(description)
        self._write_manifest()

    def remove_if_finished(self, description: Path) -> bool:
        """Remove the spill if the dataset of this dataset.json was made from it; return whether. Not inside `with`."""
        if not self.folder.is_dir() or not description.is_file():
            return False
        self._lock_folder()
        try:
            found = self._read_manifest()
            self.result_checksum = found.get("result_checksum") if found else None
            done = self.result_checksum is not None and self.result_checksum == _checksum(description)
            if done or not any(path.name != ".lock" for path in self.folder.iterdir()):
                self.remove()
            return done
        finally:
            self._lock.close()

    def rows(self, split: str) -> Triples:
        """Return the ids (n, 3) of a split, memory-mapped."""
        return map_rows(self.folder / f"{split}.ids", self.state.rows[split])

    def names(self, stem: str) -> Iterator[HashedFields]:
        """Yield the names of all generations, in blocks."""
        return stored_names(self.folder / stem, self.state.names[stem])

    def remove(self) -> None:
        """Delete the folder. The manifest of a finished spill goes last, so an interrupted removal is detected."""
        manifest = self.folder / MANIFEST
        if self.result_checksum is None:
            manifest.unlink(missing_ok=True)
        else:
            self._write_manifest(removing=True)
        for path in self.folder.iterdir():
            if path != manifest:
                with suppress(OSError):
                    _delete(path)
        shutil.rmtree(self.folder, ignore_errors=True)

    def _lock_folder(self) -> None:
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            self._lock = (self.folder / ".lock").open("a")
        except OSError as error:
            raise OutputError(self.folder, error.strerror or str(error)) from error
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            self._lock.close()
            raise InputError(f"{self.folder} is in use by another process. Wait for it, or stop it.") from error

    def _write_manifest(self, *, removing: bool = False) -> None:
        content = {
            "schema": _SCHEMA,
            "version": _VERSION,
            "belongs_to": self.belongs_to,
            "state": asdict(self.state),
            "generations": [asdict(state) for state in self.generations],
            "result_checksum": self.result_checksum,
            "removing": removing,
        }
        write_json(self.folder / MANIFEST, content)

    def _close(self) -> None:
        for file in self._files.values():
            file.close()
        self._lock.close()

    def _open(self) -> None:
        """Resume a spill of this source, cut off at its last commit; delete any other."""
        found = self._read_manifest()
        if found is None or found.get("removing"):
            _clear(self.folder)
        else:
            self.state = SpillState(**found["state"])
            self.generations = [SpillState(**state) for state in found["generations"]]
            self.resumed = True
        sizes = {f"{split}.ids": 12 * n for split, n in self.state.rows.items()}
        sizes |= {f"{stem}.lengths": 4 * n for stem, n in self.state.names.items()}
        sizes |= {f"{stem}.names": n for stem, n in self.state.name_bytes.items()}
        for name, size in sizes.items():
            path = self.folder / name
            if size and (not path.exists() or path.stat().st_size < size):
                raise FormatError(f"{path} is shorter than its manifest states. Delete {self.folder} and start again.")
            self._files[name] = path.open("r+b" if path.exists() else "w+b")
            self._files[name].truncate(size)
            self._files[name].seek(size)

    def _read_manifest(self) -> dict[str, Any] | None:
        if not (self.folder / MANIFEST).exists():
            return None
        found = read_json(self.folder / MANIFEST, schema=_SCHEMA, version=_VERSION)
        return found if found.get("belongs_to") == self.belongs_to else None


def stored_names(store: Path, n_names: int) -> Iterator[HashedFields]:
    """Yield the first names of the files STORE.names and STORE.lengths, in blocks."""
    with store.with_suffix(".names").open("rb") as text, store.with_suffix(".lengths").open("rb") as sizes:
        for start in range(0, n_names, _NAMES):
            lengths = np.fromfile(sizes, np.int32, min(_NAMES, n_names - start)).astype(np.int64)
            raw = np.frombuffer(text.read(int(lengths.sum())) + bytes(SLACK), np.uint8)
            yield hashed_fields(raw, np.cumsum(lengths) - lengths, lengths)


def map_rows(path: Path, n_rows: int) -> Triples:
    """Return the first rows (n, 3) of a raw int32 file, memory-mapped read-only."""
    if n_rows == 0:
        return np.empty((0, 3), np.int32)
    return np.asarray(np.memmap(path, np.int32, "r", shape=(n_rows, 3)))


def _clear(folder: Path) -> None:
    known = {f"{split}.ids" for split in SPLITS} | {f"{s}.{part}" for s in STEMS for part in ("names", "lengths")}
    known |= {MANIFEST, ".lock", "dataset", "work"}  # the last two belong to later steps
    others = [p.name for p in folder.iterdir() if p.name not in known and not p.name.endswith(".part")]
    if others:
        raise InputError(f"{folder} contains {others[0]}, which grash did not write. Move it away.")
    for path in folder.iterdir():
        if path.name != ".lock":
            _delete(path)


def _delete(path: Path) -> None:
    shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)


def _checksum(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()
