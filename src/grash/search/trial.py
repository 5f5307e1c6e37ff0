"""The records of a search: configurations, rounds, trials and their results; and the Engine protocol.

All are frozen and JSON-able: they are part of the ledger, and messages between the driver and its workers.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, Protocol

if TYPE_CHECKING:
    from typing_extensions import Self

    from grash.training.loop import Progress

Status = Literal["ok", "diverged", "out_of_memory", "killed", "timeout", "error"]
MACHINE_FAULTS: tuple[Status, ...] = ("out_of_memory", "killed")  # retried; other failures are the trial's own
FIXED_LENGTH_SCHEDULES = ("cosine", "linear", "plateau")  # depend on the length of a run, so it cannot be continued
FINAL_VALIDATIONS = 20  # of a training to the end, at equal distances
_TUPLES = ("fractions", "notes", "interval")  # fields that JSON stores as lists


class _Record:
    """A dataclass that converts to and from JSON."""

    def to_json(self) -> dict[str, Any]:
        return dict(vars(self))

    @classmethod
    def from_json(cls, content: dict[str, Any]) -> Self:
        return cls(**{n: tuple(v) if n in _TUPLES and v is not None else v for n, v in content.items()})


@dataclass(frozen=True)
class Configuration(_Record):
    """One point of the search space: the settings of a full training."""

    number: int  # 0, 1, … in the order of proposal
    values: dict[str, Any]  # every field of TrainConfig
    origin: str  # how it was proposed: random, sobol, portfolio, or a name given by the user
    relative_cost: float = 1.0  # of a full training, in the unit of the budget


@dataclass(frozen=True)
class Round(_Record):
    """The plan of a round, fixed when the round opens: its graph, its epochs and its part of the budget."""

    number: int  # 1, 2, …
    n_trials: int  # number of trials as planned, before any extension
    share: float  # budget of the round in full trainings, including what was carried over
    fidelity: float  # f: cost of a trial relative to a full training
    graph_fraction: float  # g: fraction of the training triples, as requested
    epoch_fraction: float  # e: fraction of the epochs
    fractions: tuple[float, ...]  # g of this round; with a warm start, after those of the rounds before
    whole: bool  # it uses the full graph and the dataset's own validation triples
    k: int | None  # core number down to which entities are kept
    n_entities: int
    n_relations: int
    n_train: int
    n_valid: int
    entity_share: float  # |E_i| / |E|, which scales the number of negatives
    positives: int  # training triples that a trial has seen at its end, including rounds that it continues
    continues: bool  # survivors continue from their weights (variant=epoch; finalists that are compared again)
    cost: float  # of one trial with a relative cost of 1, in full trainings
    notes: tuple[str, ...] = ()  # what the guard rails changed, and warnings
    trend: float = 0.0  # weight of the rise of the MRR in a trial's score
    triple_share: float | None = None  # n_train relative to the full graph, where it is not graph_fraction
    isolated: bool = False  # it holds out only triples that are the one link of their entity pair (decision 0039)
    before_finalists: bool = False  # the last round of halving, if the best are then compared on the full graph
    compares_finalists: bool = False  # on the full graph, outside the budget (decision 0043)
    to_the_end: bool = False  # the last comparison: finalists are trained in full (decision 0062)

    @property
    def epochs(self) -> float:
        return self.positives / self.n_train

    @property
    def finalists_follow(self) -> bool:
        """Whether the next round, if there is one, compares finalists."""
        return self.before_finalists or self.compares_finalists

    @property
    def is_comparison(self) -> bool:
        """Whether it compares configurations on the full graph, so that later trainings continue from its states."""
        return self.compares_finalists or self.before_finalists and self.whole

    @property
    def is_complete(self) -> bool:
        """Whether its trials have the full graph and all epochs, so that no later round could tell more."""
        return self.to_the_end or self.whole and self.epoch_fraction >= 1

    @property
    def n_validations(self) -> int:
        """Validations of a trial, evenly spaced, the last one at its end; of one trained to the end, about."""
        if self.to_the_end:
            return FINAL_VALIDATIONS // 2  # the others were due before
        if self.compares_finalists and not self.continues:
            return 1
        return 4 if self.compares_finalists or self.before_finalists else 2


@dataclass(frozen=True)
class Trial(_Record):
    """What to run: a configuration at the fidelity of a round, or (round 0) the final training of the winner."""

    round: int
    number: int  # of the configuration
    attempt: int  # 1, 2, …
    config: dict[str, Any]  # TrainConfig at the fidelity of the round
    fractions: tuple[float, ...]  # the graph, as in Round; () is the full graph
    isolated: bool = False  # as in Round
    relative_cost: float = 1.0  # of the configuration
    continues: str | None = None  # folder of the saved state to start from, inside the run folder
    epochs_before: float = 0.0  # epochs of that state, which were paid for in its round
    warm: bool = False  # copy the rows of known entities from that state and initialize the others
    keep: bool = False  # save the state at the end, for the next round
    keep_best: bool = False  # and its best weights, for a final training that has nothing left to train
    folder: str = ""  # for checkpoint and saved state, inside the run folder
    n_bytes: int = 0  # estimated memory on the device
    placement: str = "auto"  # of the entity embeddings, for a trial that is trained alone
    work_share: float = 1.0  # factor on the memory for ranking; halved after running out of memory
    billed: bool = True  # in the budget; the finalists' round and the final training are not
    final: bool = False
    seconds_limit: float | None = None  # a trial without a score then; the final training keeps its best weights

    @property
    def name(self) -> str:
        return "the final training" if self.final else f"configuration {self.number} in round {self.round}"

    @property
    def in_full(self) -> bool:
        """Whether it is the final training, or a finalist that is trained as the winner would be."""
        return self.final or self.keep_best

    def result(self, status: Status, **fields: Any) -> TrialResult:
        """Return the result of this attempt."""
        fields = {"epochs_before": self.epochs_before, **fields}
        return TrialResult(self.round, self.number, self.attempt, status, **fields)


@dataclass(frozen=True)
class TrialResult(_Record):
    """What came back: how a trial ended, its score and what it cost."""

    round: int
    number: int  # of the configuration
    attempt: int
    status: Status
    mrr: float | None = None  # MRR of the best validation
    interval: tuple[float, float] | None = None  # 95 % bootstrap interval of the MRR over validation triples
    history: list[dict[str, Any]] = field(default_factory=list)  # every validation in this round
    epochs_before: float = 0.0  # of the training that it continued; 0: it started from the beginning
    positives: int = 0  # training triples seen in this round
    cost: float = 0.0  # in full trainings
    scores: float = 0.0  # number of scores computed times dimension
    seconds: float = 0.0
    peak_bytes: int = 0
    device: str = ""
    message: str = ""  # why it failed
    traceback: str = ""
    evaluation: dict[str, Any] | None = None  # test metrics of the final training
    score: float | None = None  # the search's metric in the best validation, if it is not the MRR
    out_of_time: bool = False  # a finalist that should be trained to the end stopped before, since the time was over

    @property
    def value(self) -> float | None:
        """What trials are compared by."""
        return self.mrr if self.score is None else self.score

    @property
    def rise(self) -> float:
        """Increase of the score over the second half of this round; 0 if it fell or there is one validation."""
        if len(self.history) < 2:
            return 0.0
        middle, last = self.history[len(self.history) // 2 - 1], self.history[-1]
        return max(0.0, _value(last) - _value(middle))

    @property
    def ends_at_best(self) -> bool:
        """Whether no validation of this round was better than the last one."""
        return all(_value(v) <= _value(self.history[-1]) for v in self.history)

    def values_until(self, epochs: float) -> list[float]:
        """Return what the validations up to this number of epochs found."""
        return [_value(v) for v in self.history if v["epoch"] <= epochs]

    def value_at(self, epochs: float) -> float | None:
        """Return what the validation nearest to this number of epochs found; None if there was none."""
        nearest = min(self.history, key=lambda v: abs(v["epoch"] - epochs), default=None)
        return None if nearest is None else _value(nearest)


def _value(validation: dict[str, Any]) -> float:
    return float(validation.get("score", validation["mrr"]))


class Engine(Protocol):
    """Runs trials, up to `max_running` at a time."""

    max_running: int
    devices: tuple[str, ...]

    def start(self, trial: Trial) -> str | None:
        """Start a trial and return its device; return None if there is no room for it now."""

    def wait(self, on_progress: Callable[[Trial, Progress], None]) -> list[TrialResult | Trial]:
        """Wait a short time and return what has ended; a Trial is one that `stop` ended before it was complete."""

    def stop(self) -> None:
        """Make running trials save a checkpoint and stop."""

    def close(self) -> None:
        """End all workers; running trials are lost, except for their checkpoints."""
