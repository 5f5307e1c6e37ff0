"""The records of a search: configurations, rounds, tasks for an engine, what came of them; and the Engine protocol.

All are frozen and JSON-able: they are lines of the ledger, and messages between driver and workers.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import Any, Literal, Protocol

Status = Literal["ok", "diverged", "memory", "killed", "timeout", "error"]
FAULTS: tuple[Status, ...] = ("memory", "killed")  # a machine's fault, tried again; all else is the trial's own


@dataclass(frozen=True)
class Configuration:
    """One point of the space: a whole training run at full fidelity, and where it came from."""

    number: int
    values: dict[str, Any]  # every field of TrainConfig
    origin: str
    relative_cost: float = 1.0  # of a full run, in the unit of the budget

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True)
class Round:
    """What every trial of a round does: its graph, its epochs, its share of the budget. Fixed when the round opens."""

    number: int  # 1, 2, …
    n_trials: int  # that were to enter when it was planned
    share: float  # of the budget, carried surplus included
    fidelity: float  # f, the share of a full run's cost that a trial may take
    graph_fraction: float  # g, asked for
    epoch_fraction: float  # e
    fractions: tuple[float, ...]  # the graphs of this round and, for warm starts, of those before it
    whole: bool  # the full graph with the dataset's own validation triples
    k: int | None  # core number that the graph reaches down to
    n_entities: int
    n_relations: int
    n_train: int
    n_valid: int
    entity_share: float  # |E_i| / |E|, which scales the negatives
    positives: int  # that a trial sees, those of earlier rounds included where it continues
    continues: bool  # epoch variant: survivors go on from their weights
    cost: float  # billed for one trial of price 1
    notes: tuple[str, ...] = ()  # which rails acted, what was missed, and why
    trend: float = 0.0  # what a trial's rise adds to its score when the round is decided
    triple_share: float | None = None  # of the full graph's triples, where it is not the fraction asked for
    isolated: bool = False  # it holds out no triple whose two entities another one joins (0039)

    @property
    def epochs(self) -> float:
        return self.positives / self.n_train

    @classmethod
    def from_json(cls, content: dict[str, Any]) -> Round:
        return cls(**{**content, "fractions": tuple(content["fractions"]), "notes": tuple(content["notes"])})

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True)
class Trial:
    """One trial for an engine: a configuration in a round, or (round 0) the final training of the winner."""

    round: int
    number: int
    attempt: int
    config: dict[str, Any]  # TrainConfig at this fidelity
    fractions: tuple[float, ...]  # the graph; () is the whole one
    isolated: bool = False  # as in its round
    relative_cost: float = 1.0
    continues: str | None = None  # folder of that state, inside the run folder
    epochs_before: float = 0.0  # of the round that it goes on from; what it sees beyond is billed
    warm: bool = False  # rows of known entities are taken over from there, the rest is new
    keep: bool = False  # the state at the end is needed by the next round
    folder: str = ""  # inside the run folder: checkpoint and kept state
    n_bytes: int = 0  # that it is estimated to take on its device
    placement: str = "auto"  # of its entities' rows, if it is trained alone
    work_share: float = 1.0  # of the usual work space for ranking; smaller after running out of memory
    final: bool = False

    @property
    def name(self) -> str:
        return "the final training" if self.final else f"configuration {self.number} in round {self.round}"


@dataclass(frozen=True)
class TrialResult:
    """How a trial ended."""

    round: int
    number: int
    attempt: int
    status: Status
    mrr: float | None = None
    interval: tuple[float, float] | None = None  # 95 % bootstrap over validation triples
    history: list[dict[str, Any]] = field(default_factory=list)  # every validation of this round
    positives: int = 0  # seen in this round, those taken over not counted
    cost: float = 0.0  # billed, in full runs
    scores: float = 0.0  # score count times dimension: what was really computed
    seconds: float = 0.0
    peak_bytes: int = 0
    device: str = ""
    message: str = ""
    traceback: str = ""
    evaluation: dict[str, Any] | None = None  # final training: test metrics

    @property
    def rise(self) -> float:
        """How far the last validation of this round lies above the one before it; 0 if it does not."""
        seen = [float(v["mrr"]) for v in self.history[-2:]]
        return max(0.0, seen[1] - seen[0]) if len(seen) == 2 else 0.0

    @classmethod
    def from_json(cls, content: dict[str, Any]) -> TrialResult:
        interval = content.get("interval")
        return cls(**{**content, "interval": None if interval is None else (interval[0], interval[1])})

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True)
class Heartbeat:
    """A running trial's word on how far it is."""

    round: int
    number: int
    step: int
    n_steps: int
    best_mrr: float | None
    seconds_left: float


class Engine(Protocol):
    """Runs tasks, as many at a time as it has slots, and reports."""

    n_slots: int
    devices: tuple[str, ...]

    def start(self, task: Trial) -> str | None:
        """Takes a task into a free slot and says on which device; None where there is no room for it now."""

    def wait(self, tell: Callable[[Heartbeat], None]) -> list[TrialResult | Trial]:
        """What ended, after a short while at most or when something has; a Trial is one that `stop` ended unfinished."""

    def stop(self) -> None:
        """Asks running trials to save what they have and stop."""

    def close(self) -> None:
        """Ends workers; running trials are lost, what they saved is not."""
