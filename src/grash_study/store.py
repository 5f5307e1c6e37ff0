"""The results of a study: a cell is one training run, an entry its result, a store a file with one line per result.

A cell is a configuration on one graph, validated at several epochs. The learning rate is constant, so the validation
at a share e of the epochs is that of a shorter run (except for its last step, which is cut short).

The first line of a store describes what the results belong to (`Pool.meta`); then come lines of kind `cell` (an Entry)
and `search` (a record of searches.py or confirm.py). A last line that a kill cut off is ignored, and overwritten by
the next writer. One process at a time writes. Published stores are packed with xz; they can be merged into another.
"""

from __future__ import annotations

import errno
import fcntl
import json
import lzma
import math
import os
import weakref
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, TypeAdapter, ValidationError

from grash.errors import FormatError, InputError, OutputError

Technique = Literal["core-order", "isolated", "k-core", "triples", "walk", "kgtuner", "whole"]
EntryStatus = Literal["ok", "diverged", "memory", "error", "impossible"]
SCHEMA, VERSION = "grash-study", 1
_PACKED = ".xz"
_MAY_DIFFER = ("grash",)  # entries of the first line: results of an older version still count
_MAX_FAILURES = 2  # a training that failed so often is not tried again
_CLOSE = 1e-8
DIGITS = 9  # of the numbers in a store
Share = Annotated[float, Field(gt=0, le=1 + _CLOSE)]


def rounded(share: float, digits: int = DIGITS) -> float:
    """Return a share of epochs or triples as a store writes it, so that what is read equals what was asked for."""
    return float(f"{share:.{digits}g}")


HALVES = tuple(2.0**-i for i in range(6, -1, -1))  # 1/64 … 1
MARKS = tuple(rounded(2.0 ** (-i / 2)) for i in range(14, -1, -1))  # 1/128 … 1, and the roots between them
REGULAR = tuple(i / 10 for i in range(1, 11))  # more validations of a full training, to keep its best weights
TESTED = ("mrr", "hits@1", "hits@3", "hits@10")


@dataclass(frozen=True)
class Cell:
    """A training run of a study."""

    number: int
    technique: Technique
    fraction: float  # of the train triples; 1 for the whole graph
    marks: tuple[float, ...]  # ascending shares of the full epochs at which to validate; training ends at the last


@dataclass(frozen=True)
class Entry:
    """The result of a cell."""

    number: int
    technique: Technique
    fraction: Share
    marks: Annotated[tuple[Share, ...], Field(min_length=1)]
    status: EntryStatus
    curve: tuple[tuple[float, float, float], ...]  # (share of the epochs, validation MRR, mean loss since the last)
    failed: float | None = None  # share of the epochs at which it diverged
    test: dict[str, float] | None = None  # of the weights of the best validation; whole graph and all epochs only
    positives: int = 0
    seconds: float = 0.0  # its part of the batch's time, with validations and test
    train_seconds: float = 0.0  # its part without them
    valid_seconds: float = 0.0  # of one validation
    model_bytes: int = 0
    peak_bytes: int = 0  # of the device, its part of the batch
    together: int = 1  # trainings in the batch
    failures: int = 1  # how often it ended with an error, if it did
    n_entities: int = 0
    n_relations: int = 0
    n_train: int = 0
    n_valid: int = 0
    k: int | None = None
    device: str = ""
    message: str = ""

    @classmethod
    def from_json(cls, content: dict[str, Any]) -> Entry:
        """Return the entry of a line of a store; raise a ValueError that names a wrong value."""
        try:
            return _ENTRY.validate_python(content)
        except ValidationError as error:
            first = error.errors()[0]
            raise ValueError(f"{first['loc'][0]}={first['input']!r} is not valid for a training") from None

    def valid(self, mark: float) -> float | None:
        """Return the validation MRR at this share of the epochs: 0 once diverged, None if it was not validated."""
        if self.diverged_by(mark):
            return 0.0
        return next((mrr for e, mrr, _ in self.curve if rounded(e) == rounded(mark)), None)

    def score(self, mark: float) -> float | None:
        """Return the score of a trial that trains so far: the better of its validations at half and end."""
        end = self.valid(mark)
        return end if end is None or self.diverged_by(mark) else max(end, self.valid(mark / 2) or 0.0)

    def diverged_by(self, mark: float) -> bool:
        return self.failed is not None and mark >= self.failed - _CLOSE

    @property
    def worked(self) -> bool:
        return self.status in ("ok", "diverged")

    def covers(self, cell: Cell) -> bool:
        """Whether it has all that the cell asks for, or it cannot be had. Another machine may have more memory."""
        same = (self.number, self.technique, self.fraction) == (cell.number, cell.technique, cell.fraction)
        if self.status == "memory" or not same:
            return False
        if not self.worked:
            return self.status == "impossible" or self.failures >= _MAX_FAILURES
        return set(cell.marks) <= set(self.marks)


_ENTRY = TypeAdapter(Entry)


def cells_on(
    technique: Technique, fraction: float, numbers: Iterable[int], *, upto: float = 1.0, also: Sequence[float] = ()
) -> list[Cell]:
    """Return the cells of these configurations on one graph, with the usual validations up to a share of the epochs."""
    usual = merged_marks(MARKS, REGULAR) if technique == "whole" else MARKS
    marks = merged_marks((m for m in usual if m < upto), also, (upto,))
    return [Cell(number, technique, rounded(fraction), marks) for number in numbers]


def merged_marks(*several: Iterable[float]) -> tuple[float, ...]:
    """Return all marks up to 1, each once, ascending."""
    return tuple(sorted({rounded(m) for marks in several for m in marks if 0 < rounded(m) <= 1}))


class Store:
    """The results of one pool. `entries` has the latest entry of every (configuration, technique, fraction)."""

    def __init__(self, path: Path, meta: dict[str, Any]) -> None:
        self.path, self.meta = Path(path), meta
        self.entries: dict[tuple[int, str, float], Entry] = {}
        self.searches: dict[str, dict[str, Any]] = {}
        self.seconds = 0.0  # of all trainings, with validations, tests and those that a longer one replaced
        self._size = 0  # bytes of complete lines
        self._handle: int | None = None

    @classmethod
    def at(cls, path: Path, meta: dict[str, Any]) -> Store:
        """Return the store in a file, or a new one; the file is created with the first result."""
        store = cls.read(path) if path.is_file() else cls(path, meta)
        if not store._size:  # no file, or an incomplete first line
            return cls(path, meta)
        _check_same(path, store.meta, meta)
        return store

    @classmethod
    def read(cls, path: Path) -> Store:
        """Return the store in a file, whatever it belongs to."""
        content = _content(Path(path))
        complete = content[: content.rfind(b"\n") + 1]
        store = cls(path, {})
        for number, line in enumerate(complete.splitlines(), 1):
            if not line.strip():
                continue
            try:
                store._read_line(json.loads(line))
            except (ValueError, KeyError, TypeError, AttributeError) as error:
                what = "remove that line to continue" if store.meta else "take the first line from a copy of the store"
                raise FormatError(f"{path}, line {number}, is damaged ({error}): {what}.") from error
        store._size = len(complete) if store.meta else 0
        return store

    def add(self, entries: Iterable[Entry]) -> None:
        """Append results; they are on disk when this returns."""
        new = [short(asdict(entry)) for entry in entries]
        self._append([{"kind": "cell", **content} for content in new])
        for content in new:
            self._take(Entry.from_json(content))

    def add_search(self, record: dict[str, Any]) -> None:
        """Append the record of a whole search, which its `name` identifies."""
        self._append([{"kind": "search", **short(record)}])
        self.searches[record["name"]] = short(record)

    def find(self, cell: Cell) -> Entry | None:
        """Return the entry that has all a cell asks for."""
        entry = self.entry(cell.number, cell.technique, cell.fraction)
        return entry if entry is not None and entry.covers(cell) else None

    def entry(self, number: int, technique: str, fraction: float) -> Entry | None:
        return self.entries.get((number, technique, rounded(fraction)))

    def full_trainings(self, n: int) -> dict[int, Entry]:
        """Return the complete trainings of the first n configurations on the whole graph."""
        found = {number: self.entry(number, "whole", 1.0) for number in range(n)}
        return {number: e for number, e in found.items() if e is not None and e.worked and e.marks[-1] == 1}

    @property
    def devices(self) -> str:
        return ", ".join(sorted({e.device for e in self.entries.values()}))

    def merge(self, other: Store) -> int:
        """Add the results of another store of the same study that this one lacks; return their number."""
        new = [e for key, e in other.entries.items() if _has_more(e, self.entries.get(key))]
        self.add(new)
        searches = [record for name, record in other.searches.items() if name not in self.searches]
        for record in searches:
            self.add_search(record)
        return len(new) + len(searches)

    def hold(self) -> None:
        """Keep other writers off the file until `release`, or until this store is deleted."""
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
                f"and combine both with `grash study merge`."
            ) from error
        self._handle, self._close = handle, weakref.finalize(self, os.close, handle)

    def release(self) -> None:
        """Let other writers in."""
        if self._handle is not None:
            self._handle = None
            self._close()

    def _read_line(self, content: dict[str, Any]) -> None:
        kind = content.pop("kind")
        if not self.meta:
            if kind != "study" or content["schema"] != SCHEMA:
                raise ValueError(f"it does not start a {SCHEMA}")
            if content["version"] != VERSION:
                raise ValueError(f"it has version {content['version']}, and this grash reads version {VERSION}")
            self.meta = content
        elif kind == "cell":
            self._take(Entry.from_json(content))
        elif kind == "search":
            self.searches[content["name"]] = content

    def _take(self, entry: Entry) -> None:
        key = (entry.number, entry.technique, rounded(entry.fraction))
        self.entries[key] = _combined(entry, self.entries.get(key))
        self.seconds += entry.seconds

    def _append(self, records: list[dict[str, Any]]) -> None:
        if not records:
            return
        first = [] if self._size else [{"kind": "study", **self.meta}]
        lines = "".join(json.dumps(r, ensure_ascii=False, allow_nan=False) + "\n" for r in [*first, *records]).encode()
        self.hold()
        assert self._handle is not None
        try:
            size = os.fstat(self._handle).st_size
            rest = os.pread(self._handle, max(0, size - self._size), self._size)
            if size < self._size or rest[: rest.rfind(b"\n") + 1].strip():
                raise InputError(f"{self.path} has changed since it was read: run the command again to continue.")
            os.ftruncate(self._handle, self._size)  # an incomplete line, left by a kill
            if os.pwrite(self._handle, lines, self._size) < len(lines):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            os.fsync(self._handle)
        except OSError as error:
            raise OutputError(self.path, error.strerror or str(error)) from error
        self._size += len(lines)


def merge_stores(into: Path, *others: Path) -> dict[str, int]:
    """Merge the files of other folders into those of a folder; return {file: number of new results}."""
    found: dict[str, int] = {}
    for folder in others:
        files = sorted([*Path(folder).glob("*.jsonl"), *Path(folder).glob(f"*.jsonl{_PACKED}")])
        if not files:
            raise InputError(f"{folder} has no results of a study: no file NAME.jsonl or NAME.jsonl{_PACKED}.")
        for file in files:
            theirs, path = Store.read(file), Path(into) / file.name.removesuffix(_PACKED)
            n_new = Store.at(path, theirs.meta).merge(theirs) if theirs.meta else 0
            found[path.name] = found.get(path.name, 0) + n_new
    return found


def short(content: Any, digits: int = DIGITS) -> Any:
    """Return JSON-able content with floats of so many digits, to keep stores small."""
    if isinstance(content, float):
        return rounded(content, digits) if math.isfinite(content) else None
    if isinstance(content, dict):
        return {key: short(value, digits) for key, value in content.items()}
    return [short(value, digits) for value in content] if isinstance(content, list | tuple) else content


def _content(path: Path) -> bytes:
    try:
        content = path.read_bytes()
        return lzma.decompress(content) if path.suffix == _PACKED else content
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror or error}.") from error
    except lzma.LZMAError as error:
        raise FormatError(f"{path} is damaged ({error}): take it from a copy.") from error


def _has_more(new: Entry, old: Entry | None) -> bool:
    """Whether an entry has something that the existing one lacks."""
    return old is None or (new.worked and not (old.worked and set(new.marks) <= set(old.marks)))


def _combined(new: Entry, old: Entry | None) -> Entry:
    """Combine two entries of one training: the one that worked, trained longer or is later, with all validations."""
    if old is None or (new.worked and not old.worked):
        return new
    if not new.worked:
        return old if old.worked else replace(new, failures=new.failures + old.failures)
    best, other = (new, old) if new.marks[-1] >= old.marks[-1] else (old, new)
    more = [p for p in other.curve if p[0] not in best.marks and (best.failed is None or p[0] < best.failed)]
    marks = merged_marks(best.marks, (e for e, _, _ in more))
    return replace(best, marks=marks, curve=tuple(sorted((*best.curve, *more))))


def _check_same(path: Path, there: dict[str, Any], now: dict[str, Any]) -> None:
    keys = [k for k in there.keys() | now.keys() if k not in _MAY_DIFFER and short(there.get(k)) != short(now.get(k))]
    if keys:
        what = "; ".join(f"{k}: {there.get(k)} there, {now.get(k)} now" for k in sorted(keys))
        raise InputError(f"{path} has the results of another study ({what}): give another folder with --store.")
