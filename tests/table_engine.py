"""Searches without training: graphs that are numbers, an engine that looks scores up, and a search all in memory.

`decide` folds decisions and made-up results into a state, without driver and files, for laws over many settings.
`TableEngine` stands behind the real driver and its real ledger: it bills as a training would, keeps states where it is
told to, fails as told, and ends trials in any order.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from fractions import Fraction
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

from grash.engines.driver import Driver
from grash.files import write_checksums
from grash.search.halving import simulate
from grash.search.ledger import SearchState
from grash.search.run_folder import SEARCH_FILE, RunFolder
from grash.search.schedule import Shape, cost_of, fitting_trials, planned_sizes
from grash.search.settings import SearchSettings, make_settings
from grash.search.trial import Configuration, Status, Trial, TrialResult
from grash.training.loop import Progress

Score = Callable[[int, int], float]
Faults = Mapping[tuple[int, int], Sequence[Status]]  # (round, number): how its attempts end; after them, ok
SPACE = {"lr": {"type": "float", "low": 0.01, "high": 1.0, "log": True}, "negatives_tail": {"low": 10, "high": 200}}


def quick_settings(**changes: Any) -> SearchSettings:
    """Settings of a search whose configurations are made fast."""
    return make_settings({"space": SPACE, "proposals": "random", "dim": 4, "finalists": 0, **changes})


def drawn_score(round_number: int, number: int) -> float:
    """A score that looks drawn, and is the same whenever it is asked for."""
    return random.Random(f"{round_number} {number}").random()


@dataclass(frozen=True)
class NumberGraphs:
    """Sizes of subgraphs by formula. fill: the share of the asked-for triples that a subgraph has (a ladder misses).
    apart: what subgraphs can hold out apart, None where a dataset's own valid does not lie so."""

    settings: SearchSettings
    n_train: int = 100_000
    n_entities: int = 20_000
    n_valid: int = 5_000
    fill: float = 1.0
    isolated: int | None = None

    @property
    def valid_pairs_isolated(self) -> bool:
        return self.isolated is not None

    @property
    def dataset(self) -> Any:
        return SimpleNamespace(
            name="numbers", fingerprint="f" * 64, n_entities=self.n_entities, n_relations=5, train=range(self.n_train),
            valid=range(self.n_valid), test=range(self.n_valid),
        )  # fmt: skip

    def shape(self, fractions: tuple[float, ...], isolated: bool = False) -> Shape:
        part = fractions[-1] if fractions else 1.0
        if part >= 1:
            return Shape(self.n_entities, 5, self.n_train, self.n_valid, whole=True)
        n_train = int(Fraction(part) * self.n_train * Fraction(self.fill))
        n_valid = min(n_train // 5, 5000, *([self.isolated or 0] if isolated else []))
        return Shape(max(1, int(part * self.n_entities)), 5, n_train, n_valid, k=3)

    def smallest_fraction(self, n_entities: int, n_valid: int) -> float:
        return min(1.0, max(n_entities / self.n_entities, 5 * n_valid / self.n_train))


def decide(
    settings: SearchSettings,
    graphs: Any,
    *,
    score: Score = drawn_score,
    faults: Faults | None = None,
    prices: Sequence[float] | None = None,
    state: SearchState | None = None,
    part_seen: Fraction = Fraction(1, 3),
    kept: bool = True,
    validations: Callable[[int, int], list[float]] | None = None,
) -> SearchState:
    """The end of a search (or of one that stands at `state`). Diverged trials have seen part_seen of their positives;
    without kept states, trials that would go on begin anew. validations: of a trial, none by default."""
    if state is None:
        state = SearchState()
        sizes = planned_sizes(fitting_trials(settings, graphs), settings, graphs)
        state.apply(
            {"event": "search_started", "settings": settings.model_dump(mode="json"), "dataset": {}, "sizes": sizes,
             "budget": settings.budget, "at": ""}
        )  # fmt: skip
    missing = range(len(state.configurations), state.sizes[0] if state.sizes else 1)
    made = [Configuration(i, {}, "table", 1.0 if prices is None else prices[i]) for i in missing]
    state.apply({"event": "configurations_proposed", "configurations": [c.to_json() for c in made]})

    def run_trials(number: int, numbers: Sequence[int]) -> list[TrialResult]:
        if number == 0:
            return [TrialResult(0, n, 1, "ok", mrr=0.5) for n in numbers]
        return [run_trial(number, n) for n in numbers]

    def run_trial(number: int, n: int) -> TrialResult:
        attempt = len(state.rounds[number - 1].attempts.get(n, ()))
        statuses = (faults or {}).get((number, n), ())
        status: Status = statuses[attempt] if attempt < len(statuses) else "ok"
        result = _result(state, settings, graphs, number, n, status, part_seen, score, kept)
        if validations is not None:
            marks = validations(number, n)
            epochs = state.rounds[number - 1].plan.epochs
            history = [{"epoch": (i + 1) / len(marks) * epochs, "mrr": v} for i, v in enumerate(marks)]
            result = replace(result, history=history)
        return replace(result, attempt=attempt + 1)

    return simulate(state, settings, graphs, run_trials)


def _result(
    state: SearchState, settings: SearchSettings, graphs: Any, round_number: int, number: int, status: Status,
    part_seen: Fraction, score: Score, kept: bool,
) -> TrialResult:  # fmt: skip
    """What an engine would say that does just what the round planned."""
    plan = state.rounds[round_number - 1].plan
    before = state.rounds[round_number - 2].plan.positives if plan.continues and kept else 0
    positives = plan.positives - before
    positives = positives if status == "ok" else int(positives * part_seen) if status == "diverged" else 0
    cost = cost_of(positives, settings, graphs.n_train) * Fraction(state.configurations[number].relative_cost)
    mrr = score(round_number, number) if status == "ok" else None
    cost = Fraction(0) if plan.compares_finalists else cost
    return TrialResult(
        round_number, number, 1, status, mrr=mrr, epochs_before=before / plan.n_train, positives=positives,
        cost=float(cost), message=status,
    )  # fmt: skip


def bill(state: SearchState, settings: SearchSettings, n_train: int) -> Fraction:
    """What the results of all rounds are billed, exactly."""
    return sum(
        (
            cost_of(result.positives, settings, n_train) * Fraction(state.configurations[number].relative_cost)
            for past in state.rounds
            for number, result in past.results.items()
        ),
        Fraction(0),
    )


class TableEngine:
    """An Engine that looks scores up. order: the seed of the order in which running trials end."""

    def __init__(
        self, graphs: Any, folder: Path, *, score: Score = drawn_score, faults: Faults | None = None,
        max_running: int = 1, order: int = 0,
    ) -> None:  # fmt: skip
        self.graphs, self.folder, self.score, self.faults = graphs, Path(folder), score, faults or {}
        self.max_running, self.devices = max_running, tuple(["cpu"] * max_running)
        self.ran: list[tuple[int, int, int]] = []  # (round, number, attempt)
        self._random = random.Random(order)
        self._running: list[Trial] = []
        self._stopping = False

    def start(self, trial: Trial) -> str | None:
        if len(self._running) >= self.max_running:
            return None
        self._running.append(trial)
        self.ran.append((trial.round, trial.number, trial.attempt))
        return "cpu"

    def wait(self, on_progress: Callable[[Trial, Progress], None]) -> list[TrialResult | Trial]:
        if not self._running:
            return []
        trial = self._running.pop(self._random.randrange(len(self._running)))
        on_progress(trial, Progress(1, 2, 0.5, 0.0, 1.0, 0.0, 0.0, None))
        return [trial] if self._stopping else [self._result(trial)]

    def stop(self) -> None:
        self._stopping = True

    def close(self) -> None:
        pass

    def _result(self, trial: Trial) -> TrialResult:
        statuses = self.faults.get((trial.round, trial.number), ())
        status: Status = statuses[trial.attempt - 1] if trial.attempt <= len(statuses) else "ok"
        n_train = self.graphs.shape(trial.fractions or (1.0,), trial.isolated).n_train
        whole = round(trial.config["epochs"] * n_train)
        before = json.loads((self.folder / trial.continues / "state.json").read_text()) if trial.continues else 0
        positives = whole - before if status == "ok" else (whole - before) // 3 if status == "diverged" else 0
        ended = TrialResult(
            trial.round,
            trial.number,
            trial.attempt,
            status,
            positives=positives,
            message=f"It {status}.",
            epochs_before=trial.epochs_before,
        )
        if status == "ok":
            ended = replace(ended, mrr=self.score(trial.round, trial.number), message="")
        if status == "ok" and trial.keep:
            place = self.folder / trial.folder / "state"
            place.mkdir(parents=True, exist_ok=True)
            (place / "state.json").write_text(str(whole))
            write_checksums(place)
        if trial.final:
            return replace(ended, evaluation={})
        cost = cost_of(positives, self.graphs.settings, self.graphs.n_train) * Fraction(trial.relative_cost)
        return replace(ended, cost=float(cost) if trial.billed else 0.0)


def run_search(
    path: Path, graphs: Any, *, extend: Mapping[str, Any] | None = None, max_seconds: float | None = None, **engine: Any
) -> tuple[SearchState, TableEngine]:
    """The real driver in a run folder with a table engine: begins the search there, or goes on with it."""
    with RunFolder(path) as folder:
        (path / SEARCH_FILE).touch()
        table = TableEngine(graphs, path, **engine)
        driver = Driver(folder, graphs, table, max_seconds=max_seconds)
        if extend:
            driver.extend(**extend)
        return driver.run(), table


@contextmanager
def without_waits() -> Iterator[None]:
    """Retry at once."""
    with mock.patch("grash.engines.driver._PAUSE", 0.0):
        yield


def essence(state: SearchState) -> dict[str, Any]:
    """All of a search that may not depend on who ran it, when, and in what order."""
    rounds = []
    for past in state.rounds:
        results = {n: (r.status, r.mrr, r.positives, r.cost) for n, r in sorted(past.results.items())}
        rounds.append((past.plan, results, past.survivors))
    configurations = [c.to_json() for _, c in sorted(state.configurations.items())]
    return {
        "sizes": state.sizes, "budget": state.budget, "configurations": configurations, "rounds": rounds,
        "winner": state.winner, "finished": state.finished, "failed": state.failed,
        "final": None if state.final is None else (state.final.number, state.final.mrr),
    }  # fmt: skip
