"""The store: what a study has measured, one JSON line each, in one file per pool; grows, goes on, can be merged.

The first line says what the results belong to (`Pool.meta`); then lines of kind `cell` (an Entry) and `search` (a
SearchRecord of searches.py). A last line that was torn by a kill is ignored, and cut off by the next writer. One
process at a time writes: it holds the file from its first result to its end. Packed with `xz` it is read too, to be
merged into another: so stores are published.
"""

from __future__ import annotations

import fcntl
import json
import lzma
import os
import weakref
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from grash.errors import FormatError, InputError, OutputError
from grash_study.cells import Cell, Entry, has_mark, merged_marks, rounded
from grash_study.pool import SCHEMA, VERSION, Pool

_PACKED = ".xz"
_SAME = ("grash",)  # entries of the first line that may differ: what was measured with an older version still counts


class Store:
    """The results of one pool. `entries` has the latest entry of every (configuration, technique, fraction)."""

    def __init__(self, path: Path, meta: dict[str, Any]) -> None:
        self.path, self.meta = Path(path), meta
        self.entries: dict[tuple[int, str, float], Entry] = {}
        self.searches: dict[str, dict[str, Any]] = {}
        self._size = 0  # bytes of whole lines
        self._handle: int | None = None

    @classmethod
    def of(cls, folder: Path, pool: Pool) -> Store:
        """The store of a pool in a folder; its file begins with the first result. One of other settings is refused."""
        return cls.at(Path(folder) / f"{pool.name}.jsonl", pool.meta())

    @classmethod
    def at(cls, path: Path, meta: dict[str, Any]) -> Store:
        """The store in a file, or a new one there, of results that belong to what `meta` says."""
        store = cls.read(path) if path.is_file() else cls(path, meta)
        if not store._size:  # nothing there, or what a kill left of the first line
            return cls(path, meta)
        _check_same(path, store.meta, meta)
        return store

    @classmethod
    def read(cls, path: Path) -> Store:
        """The store in a file, without its pool."""
        content = _content(Path(path))
        whole = content[: content.rfind(b"\n") + 1]
        store = cls(path, {})
        for number, line in enumerate(whole.splitlines(), 1):
            if not line.strip():
                continue
            try:
                store._see(json.loads(line))
            except (ValueError, KeyError, TypeError, AttributeError) as error:
                what = "remove that line to go on" if store.meta else "take the first line from a copy of the store"
                raise FormatError(f"{path}, line {number}, is damaged ({error}): {what}.") from error
        store._size = len(whole) if store.meta else 0
        return store

    def add(self, entries: Iterable[Entry]) -> None:
        """Appends results; they are on disk when this returns, and here as they are there."""
        new = [short(entry.to_json()) for entry in entries]
        self._append([{"kind": "cell", **content} for content in new])
        for content in new:
            self._take(Entry.from_json(content))

    def add_search(self, record: dict[str, Any]) -> None:
        """Appends the record of a whole search; `name` tells searches isolated."""
        self._append([{"kind": "search", **short(record)}])
        self.searches[record["name"]] = short(record)

    def find(self, cell: Cell) -> Entry | None:
        """The entry that has all a cell asks for."""
        entry = self.entry(cell.number, cell.technique, cell.fraction)
        return entry if entry is not None and entry.covers(cell) else None

    def entry(self, number: int, technique: str, fraction: float) -> Entry | None:
        return self.entries.get((number, technique, rounded(fraction)))

    def of_number(self, number: int) -> list[Entry]:
        """All entries of a configuration."""
        return [entry for key, entry in self.entries.items() if key[0] == number]

    def merge(self, other: Store) -> int:
        """Takes over what another store of the same study has and this one lacks; says how many results."""
        _check_same(other.path, other.meta, self.meta)
        new = [e for key, e in other.entries.items() if _says_more(e, self.entries.get(key))]
        self.add(new)
        searches = [record for name, record in other.searches.items() if name not in self.searches]
        for record in searches:
            self.add_search(record)
        return len(new) + len(searches)

    def _see(self, content: dict[str, Any]) -> None:
        kind = content.pop("kind")
        if not self.meta:
            if kind != "study" or content["schema"] != SCHEMA:
                raise ValueError(f"it does not begin a {SCHEMA}")
            if content["version"] != VERSION:
                raise ValueError(f"it is of version {content['version']}, and this grash reads version {VERSION}")
            self.meta = content
        elif kind == "cell":
            self._take(Entry.from_json(content))
        elif kind == "search":
            self.searches[content["name"]] = content

    def _take(self, entry: Entry) -> None:
        key = (entry.number, entry.technique, rounded(entry.fraction))
        self.entries[key] = _united(entry, self.entries.get(key))

    def hold(self) -> None:
        """Keeps other writers off the file until `release`, or until this store is gone."""
        if self._handle is not None:
            return
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            handle = os.open(self.path, os.O_RDWR | os.O_CREAT, 0o666)
        except OSError as error:
            raise OutputError(self.path, error.strerror or str(error)) from error
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(handle)
            raise InputError(
                f"{self.path} is being written by another process: wait for it, or give another folder with --store "
                f"and bring both together with `grash study merge`."
            ) from error
        self._handle, self._free = handle, weakref.finalize(self, os.close, handle)

    def release(self) -> None:
        """Lets other writers in."""
        if self._handle is not None:
            self._handle = None
            self._free()

    def _append(self, records: list[dict[str, Any]]) -> None:
        if not records:
            return
        first = [] if self._size else [{"kind": "study", **self.meta}]
        lines = "".join(json.dumps(r, ensure_ascii=False, allow_nan=False) + "\n" for r in [*first, *records]).encode()
        self.hold()
        assert self._handle is not None
        try:
            self._check_unchanged(self._handle)
            os.ftruncate(self._handle, self._size)  # what a kill left of a line
            if os.pwrite(self._handle, lines, self._size) < len(lines):  # a disk that fills up takes the beginning
                with suppress(OSError):
                    os.ftruncate(self._handle, self._size)
                raise OSError(28, os.strerror(28))
            os.fsync(self._handle)
        except OSError as error:
            raise OutputError(self.path, error.strerror or str(error)) from error
        self._size += len(lines)

    def _check_unchanged(self, handle: int) -> None:
        size = os.fstat(handle).st_size
        rest = os.pread(handle, max(0, size - self._size), self._size)
        if size < self._size or rest[: rest.rfind(b"\n") + 1].strip():
            raise InputError(f"{self.path} has changed since it was read: give the command again, and it goes on.")


def merge_stores(into: Path, *others: Path) -> dict[str, int]:
    """Merges the files of other folders into those of a folder: {file: results that were new}."""
    found: dict[str, int] = {}
    for folder in others:
        files = sorted([*Path(folder).glob("*.jsonl"), *Path(folder).glob(f"*.jsonl{_PACKED}")])
        if not files:
            raise InputError(f"{folder} holds no results of a study: it has no file NAME.jsonl or NAME.jsonl{_PACKED}.")
        for file in files:
            theirs, path = Store.read(file), Path(into) / file.name.removesuffix(_PACKED)
            mine = Store.read(path) if path.is_file() else Store(path, theirs.meta)
            if not mine._size:
                mine.meta = theirs.meta
            found[path.name] = found.get(path.name, 0) + (mine.merge(theirs) if theirs._size else 0)
            mine.release()
    return found


def _content(path: Path) -> bytes:
    try:
        content = path.read_bytes()
        return lzma.decompress(content) if path.suffix == _PACKED else content
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror or error}.") from error
    except lzma.LZMAError as error:
        raise FormatError(f"{path} is damaged ({error}): take it from a copy.") from error


def _says_more(new: Entry, old: Entry | None) -> bool:
    """Whether an entry has something that the one before lacks."""
    if old is None:
        return True
    return new.worked and not (old.worked and all(has_mark(old.marks, m) for m in new.marks))


def _united(new: Entry, old: Entry | None) -> Entry:
    """What two entries of one training come to: the one that worked, or went on longer, or is the later, with the
    validations that only the other has. Errors are counted."""
    if old is None or (new.worked and not old.worked):
        return new
    if not new.worked:
        return old if old.worked else replace(new, failures=new.failures + old.failures)
    best, other = (new, old) if new.marks[-1] >= old.marks[-1] else (old, new)
    more = [p for p in other.curve if not has_mark(best.marks, p[0]) and (best.failed is None or p[0] < best.failed)]
    marks = merged_marks(best.marks, (e for e, _, _ in more))
    return replace(best, marks=marks, curve=tuple(sorted((*best.curve, *more))))


def short(content: Any) -> Any:
    """The same with floats of 9 digits: a store travels."""
    if isinstance(content, float):
        return rounded(content) if content == content and abs(content) != float("inf") else None
    if isinstance(content, dict):
        return {key: short(value) for key, value in content.items()}
    return [short(value) for value in content] if isinstance(content, list | tuple) else content


def _check_same(path: Path, there: dict[str, Any], now: dict[str, Any]) -> None:
    keys = [k for k in there.keys() | now.keys() if k not in _SAME and short(there.get(k)) != short(now.get(k))]
    if keys:
        what = "; ".join(f"{k}: {there.get(k)} there, {now.get(k)} now" for k in sorted(keys))
        raise InputError(f"{path} holds results of another study ({what}): give another folder with --store.")
