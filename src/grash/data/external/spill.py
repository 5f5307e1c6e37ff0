"""What has been read of a source that is larger than memory: ids and names in files that only grow, and a manifest.

Filled by gather.py, read by unite.py and large.py. The manifest says up to where the files are whole; whatever a kill
left behind that is cut off when the folder is opened again, so the same command goes on from the last mark.

    manifest.json           what it belongs to; the last mark; the mark at which each generation of names began;
                            at the end, the checksum of the dataset that takes its place
    SPLIT.ids               int32 (n, 3), in ids of its generation
    STEM.names, .lengths    the names of all generations (entities, relations), end to end, and their lengths, int32
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
from types import TracebackType
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from grash.data.dataset import SPLITS
from grash.data.interning import SLACK, HashedFields, hashed_fields
from grash.errors import FormatError, InputError, OutputError
from grash.files import read_json, write_json

STEMS = ("entities", "relations")
MANIFEST = "manifest.json"
_SCHEMA, _VERSION = "grash-spill", 1
_NAMES = 1 << 20  # read together


@dataclass(frozen=True)
class Mark:
    """How much is there: rows by split, names and their bytes by stem; and where reading goes on.

    split: the one being read, None when all have been. notes: counted in the splits before it.
    """

    split: str | None
    next_byte: int = 0
    next_line: int = 1
    rows: dict[str, int] = field(default_factory=lambda: dict.fromkeys(SPLITS, 0))
    names: dict[str, int] = field(default_factory=lambda: dict.fromkeys(STEMS, 0))
    name_bytes: dict[str, int] = field(default_factory=lambda: dict.fromkeys(STEMS, 0))
    notes: dict[str, int] = field(default_factory=dict)


class Spill:
    """The folder, from `__enter__` to `__exit__` in the hands of this process alone."""

    def __init__(self, folder: Path, belongs_to: dict[str, Any]) -> None:
        self.folder = folder
        self.belongs_to = json.loads(json.dumps(belongs_to))
        self.mark = Mark(SPLITS[0])
        self.generations: list[Mark] = []
        self.sealed: str | None = None
        self.resumed = False
        self._files: dict[str, IO[bytes]] = {}

    def __enter__(self) -> Spill:
        self._take()
        try:
            self._open()
        except BaseException:
            self._close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._close()

    def add_rows(self, split: str, ids: NDArray[np.int32]) -> None:
        self._files[f"{split}.ids"].write(ids.data)

    def add_names(self, stem: str, text: NDArray[np.uint8], lengths: NDArray[np.int32]) -> None:
        self._files[f"{stem}.names"].write(text.data)
        self._files[f"{stem}.lengths"].write(lengths.data)

    def begin_generation(self) -> None:
        """From here on, ids begin at 0 anew."""
        self.generations.append(self.mark)

    def commit(self, mark: Mark) -> None:
        """What was added up to a mark stays, whatever happens."""
        for file in self._files.values():
            file.flush()
            os.fsync(file.fileno())
        self.mark = mark
        self._write_manifest()

    def seal(self, description: Path) -> None:
        """Notes the dataset, by its description (dataset.json), that is put in its place next: all that is left then is
        to remove the spill."""
        self.sealed = _checksum(description)
        self._write_manifest()

    def remove_if_sealed(self, description: Path) -> bool:
        """Instead of `with`: removes the spill if the dataset of this description was made from it; says whether."""
        if not self.folder.is_dir() or not description.is_file():
            return False
        self._take()
        try:
            found = self._manifest()
            self.sealed = found.get("sealed") if found else None
            done = self.sealed is not None and self.sealed == _checksum(description)
            if done or not any(path.name != ".lock" for path in self.folder.iterdir()):
                self.remove()
            return done
        finally:
            self._lock.close()

    def rows(self, split: str) -> NDArray[np.int32]:
        """The ids (n, 3) of a split, mapped."""
        return map_rows(self.folder / f"{split}.ids", self.mark.rows[split])

    def names(self, stem: str) -> Iterator[HashedFields]:
        """The names of all generations, in blocks."""
        return stored_names(self.folder / stem, self.mark.names[stem])

    def remove(self) -> None:
        """Cut short, it is found out by the next call: the manifest of a sealed spill says so and goes last."""
        manifest = self.folder / MANIFEST
        if self.sealed is None:
            manifest.unlink(missing_ok=True)
        else:
            self._write_manifest(removing=True)
        for path in self.folder.iterdir():
            if path != manifest:
                with suppress(OSError):
                    _delete(path)
        shutil.rmtree(self.folder, ignore_errors=True)

    def _take(self) -> None:
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            self._lock = (self.folder / ".lock").open("a")
        except OSError as error:
            raise OutputError(self.folder, error.strerror or str(error)) from error
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            self._lock.close()
            raise InputError(f"{self.folder} is in use by another process: wait for it, or stop it.") from error

    def _write_manifest(self, *, removing: bool = False) -> None:
        head = {"schema": _SCHEMA, "version": _VERSION, "belongs_to": self.belongs_to}
        marks = {"mark": asdict(self.mark), "generations": [asdict(begun) for begun in self.generations]}
        write_json(self.folder / MANIFEST, {**head, **marks, "sealed": self.sealed, "removing": removing})

    def _close(self) -> None:
        for file in self._files.values():
            file.close()
        self._lock.close()

    def _open(self) -> None:
        """Takes up what belongs to this source, cut off at its mark; clears away what does not."""
        found = self._manifest()
        if found is None or found.get("removing"):
            _clear(self.folder)
        else:
            self.mark = Mark(**found["mark"])
            self.generations = [Mark(**begun) for begun in found["generations"]]
            self.resumed = True
        sizes = {f"{split}.ids": 12 * n for split, n in self.mark.rows.items()}
        sizes |= {f"{stem}.lengths": 4 * n for stem, n in self.mark.names.items()}
        sizes |= {f"{stem}.names": n for stem, n in self.mark.name_bytes.items()}
        for name, size in sizes.items():
            path = self.folder / name
            if size and (not path.exists() or path.stat().st_size < size):
                raise FormatError(f"{path} is shorter than its manifest says: delete {self.folder} and begin anew.")
            self._files[name] = path.open("r+b" if path.exists() else "w+b")
            self._files[name].truncate(size)
            self._files[name].seek(size)

    def _manifest(self) -> dict[str, Any] | None:
        if not (self.folder / MANIFEST).exists():
            return None
        found = read_json(self.folder / MANIFEST, schema=_SCHEMA, version=_VERSION)
        return found if found.get("belongs_to") == self.belongs_to else None


def stored_names(place: Path, n_names: int) -> Iterator[HashedFields]:
    """The first so many names of the files PLACE.names and PLACE.lengths, in blocks."""
    with place.with_suffix(".names").open("rb") as text, place.with_suffix(".lengths").open("rb") as sizes:
        for start in range(0, n_names, _NAMES):
            lengths = np.fromfile(sizes, np.int32, min(_NAMES, n_names - start)).astype(np.int64)
            raw = np.frombuffer(text.read(int(lengths.sum())) + bytes(SLACK), np.uint8)
            yield hashed_fields(raw, np.cumsum(lengths) - lengths, lengths)


def map_rows(path: Path, n_rows: int) -> NDArray[np.int32]:
    """The first rows (n, 3) of a file of bare int32, mapped read-only."""
    if n_rows == 0:
        return np.empty((0, 3), np.int32)
    return np.asarray(np.memmap(path, np.int32, "r", shape=(n_rows, 3)))


def _clear(folder: Path) -> None:
    known = {f"{split}.ids" for split in SPLITS} | {f"{s}.{part}" for s in STEMS for part in ("names", "lengths")}
    strangers = [p.name for p in folder.iterdir() if p.name not in known | {MANIFEST, ".lock"} and not _is_ours(p)]
    if strangers:
        raise InputError(
            f"{folder} holds {strangers[0]}, which is not ours, so nothing is written there: move it away."
        )
    for path in folder.iterdir():
        if path.name != ".lock":
            _delete(path)


def _delete(path: Path) -> None:
    shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)


def _checksum(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _is_ours(path: Path) -> bool:
    """A file that a later step left, or one that was being written when the process was killed."""
    return path.name in ("dataset", "work") or path.name.endswith(".part")
