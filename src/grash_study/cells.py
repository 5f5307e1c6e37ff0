"""A cell is one training of a study: a configuration of the pool on one graph, validated at several epochs.

Comes from the studies (transfer.py, table.py, …), which say which cells they need; goes to run.py, which trains those
that the store has no entry for. Where the learning rate is constant, the validation at a share e of the epochs is what
a shorter run would have had (but for the last step of that one, which is cut short): one training gives all shorter.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal, get_args

Technique = Literal["core-order", "isolated", "k-core", "triples", "walk", "kgtuner", "whole"]
EntryStatus = Literal["ok", "diverged", "memory", "error", "impossible"]
_TRIES = 2  # what failed so often is not tried again


def rounded(share: float) -> float:
    """A share of epochs or triples as a store writes it, so that what was read equals what was asked for."""
    return float(f"{share:.9g}")


HALVES = tuple(2.0**-i for i in range(6, -1, -1))  # 1/64 … 1
MARKS = tuple(rounded(2.0 ** (-i / 2)) for i in range(14, -1, -1))  # 1/128 … 1, and the roots between them
REGULAR = tuple(i / 10 for i in range(1, 11))  # where a full training is looked at besides, to keep its best weights
TESTED = ("mrr", "hits@1", "hits@3", "hits@10")
_CLOSE = 1e-8


@dataclass(frozen=True)
class Cell:
    """marks: ascending shares of the full epochs at which to validate; training ends at the last."""

    number: int
    technique: Technique
    fraction: float  # of the train triples; 1 for the whole graph
    marks: tuple[float, ...]


@dataclass(frozen=True)
class Entry:
    """What came of a cell. curve: (share of the epochs, validation MRR, mean training loss since the last)."""

    number: int
    technique: Technique
    fraction: float
    marks: tuple[float, ...]
    status: EntryStatus
    curve: tuple[tuple[float, float, float], ...]
    failed: float | None = None  # the share of the epochs at which it diverged
    test: dict[str, float] | None = None  # whole graph, all epochs: mrr, hits@1, hits@3, hits@10 of the best validation
    positives: int = 0
    seconds: float = 0.0  # its part of the time that those trained with it took, with validations and test
    train_seconds: float = 0.0  # its part of that without them
    valid_seconds: float = 0.0  # one validation
    model_bytes: int = 0
    peak_bytes: int = 0  # of the device, its part of the batch
    together: int = 1  # cells that were trained with it, itself too
    failures: int = 1  # how often it ended with an error, where it did
    n_entities: int = 0
    n_relations: int = 0
    n_train: int = 0
    n_valid: int = 0
    k: int | None = None
    fell_back: bool = False
    device: str = ""
    message: str = ""

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, content: dict[str, Any]) -> Entry:
        """The entry that `to_json` has written; a ValueError says what cannot be one."""
        _check(content)
        curve = tuple((float(e), float(mrr), float(loss)) for e, mrr, loss in content["curve"])
        return cls(**{**content, "marks": tuple(content["marks"]), "curve": curve})

    def valid(self, mark: float) -> float | None:
        """The validation MRR at this share of the epochs: 0 once it has diverged, None where nothing was measured."""
        if self.failed is not None and mark >= self.failed - _CLOSE:
            return 0.0
        return next((mrr for e, mrr, _ in self.curve if math.isclose(e, mark, rel_tol=_CLOSE)), None)

    def score(self, mark: float) -> float | None:
        """What a trial of a search would report that trains so far: the better of its validations at half and end."""
        end, half = self.valid(mark), self.valid(mark / 2)
        if end is None or (self.failed is not None and mark >= self.failed - _CLOSE):
            return end
        return max(end, half or 0.0)

    @property
    def worked(self) -> bool:
        return self.status in ("ok", "diverged")

    def covers(self, cell: Cell) -> bool:
        """Whether nothing that the cell asks for is missing, or cannot be had: memory may be larger elsewhere."""
        if self.status == "memory" or (self.number, self.technique) != (cell.number, cell.technique):
            return False
        if not math.isclose(self.fraction, cell.fraction, rel_tol=_CLOSE):
            return False
        if self.status in ("error", "impossible"):
            return self.status == "impossible" or self.failures >= _TRIES
        return all(has_mark(self.marks, m) for m in cell.marks)


def _check(content: dict[str, Any]) -> None:
    """Refuses what tells entries isolated, or what they came to, if it is of another kind."""
    marks = content["marks"]
    fitting = {
        "number": type(content["number"]) is int,
        "technique": content["technique"] in get_args(Technique),
        "fraction": _is_share(content["fraction"]),
        "marks": isinstance(marks, list | tuple) and len(marks) > 0 and all(_is_share(m) for m in marks),
        "status": content["status"] in get_args(EntryStatus),
    }
    for name in (name for name, fits in fitting.items() if not fits):
        raise ValueError(f"{name}={content[name]!r} is not what a training has there")


def _is_share(value: Any) -> bool:
    return type(value) in (int, float) and 0 < value <= 1 + _CLOSE


def has_mark(marks: Iterable[float], mark: float) -> bool:
    return any(math.isclose(m, mark, rel_tol=_CLOSE) for m in marks)


def merged_marks(*several: Iterable[float]) -> tuple[float, ...]:
    """All of them once, ascending; those above 1 are left out."""
    found: list[float] = []
    for mark in sorted(m for marks in several for m in marks):
        if 0 < mark <= 1 + _CLOSE and not (found and math.isclose(found[-1], mark, rel_tol=_CLOSE)):
            found.append(rounded(min(mark, 1.0)))
    return tuple(found)


def cells_on(
    technique: Technique, fraction: float, numbers: Iterable[int], *, upto: float = 1.0, also: Sequence[float] = ()
) -> list[Cell]:
    """Cells of these configurations on one graph, validated at the usual marks up to a share of the epochs.

    On the whole graph regularly too, so that the best of a full training is found.
    """
    usual = merged_marks(MARKS, REGULAR) if technique == "whole" else MARKS
    marks = merged_marks((m for m in usual if m < upto), also, (upto,))
    return [Cell(number, technique, rounded(fraction), marks) for number in numbers]
