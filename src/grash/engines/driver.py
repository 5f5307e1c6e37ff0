"""The search, done: acts on what `next_action` decides, records every change, and can be stopped anywhere.

First Ctrl-C: running trials end, then the search stops. Second: they save and stop at once, as the final training does
at the first. Either way, and after kill -9, the same command goes on.
"""

from __future__ import annotations

import logging
import os
import platform
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import replace
from datetime import datetime, timezone
from types import FrameType
from typing import Any

import torch
import yaml

from grash import __version__
from grash.engines.memory import plan_memory
from grash.errors import OutputError, SearchFailed
from grash.files import atomic_file
from grash.search.extension import plan_extension
from grash.search.graphs import SearchGraphs
from grash.search.halving import Finish, RunTrials, TrainWinner, advance
from grash.search.ledger import SCHEMA, VERSION, Ledger, SearchState
from grash.search.proposals import make_configurations
from grash.search.run_folder import BEST_FILE, RunFolder
from grash.search.schedule import fitting_trials, round_config, round_sizes
from grash.search.trial import MACHINE_FAULTS, Engine, Trial, TrialProgress, TrialResult
from grash.training.config import TrainConfig, make_config

log = logging.getLogger(__name__)


# fmt: skip


Watch = Callable[[SearchState, dict[tuple[int, int], TrialProgress], Sequence[str]], None]
_PAUSE = 0.05  # seconds before a first look again; doubled with every attempt
_heard: ContextVar[list[int] | None] = ContextVar("heard", default=None)  # interrupts, for `interrupts_passed_on`
HORIZON = ("cosine", "linear", "plateau")  # schedules that know how long the run is: their trials start anew (D10)


@contextmanager
def interrupts_passed_on() -> Iterator[None]:
    """Raises KeyboardInterrupt at its end if a search inside was interrupted, also one that finished all the same: for
    those who would go on with something else."""
    heard: list[int] = []
    before = _heard.set(heard)
    try:
        yield
    finally:
        _heard.reset(before)
    if heard:
        raise KeyboardInterrupt


class Driver:
    """Drives one search. `watch` is told the state, the latest heartbeats and the devices."""

    def __init__(
        self,
        folder: RunFolder,
        graphs: SearchGraphs,
        engine: Engine,
        *,
        source: str = "",
        watch: Watch | None = None,
        max_seconds: float | None = None,
        placement: str = "auto",
    ) -> None:
        """placement: where the final model's entities lie."""
        self.placement = placement
        self.folder, self.graphs, self.settings, self.engine = folder, graphs, graphs.settings, engine
        self.watch = watch or (lambda state, heartbeats, devices: None)
        self.source = source
        self.ledger = Ledger(folder.path)
        self.state = SearchState.replay(self.ledger.events)
        self.before, self.began = self.state.seconds, time.monotonic()
        self.deadline = None if max_seconds is None else self.began + max_seconds
        self.heartbeats: dict[tuple[int, int], TrialProgress] = {}
        self.stopping, self.at_last = "", False

    def run(self) -> SearchState:
        """Goes on to the end, or until it is stopped (then `state.stopped` says why)."""
        self.begin()
        try:
            with self._interrupts():
                while not self.stopping:
                    match self.advance():
                        case RunTrials(number, numbers):
                            self._run_tasks([self.trial_task(number, n) for n in numbers])
                        case TrainWinner(number):
                            self.at_last = True
                            self._run_tasks([self._final_task(number)])
                        case _:
                            break
                if self.stopping and not self._is_over():
                    self._record("search_stopped", reason=self.stopping)
        except OutputError as error:
            then = "The search stops here and goes on with `grash resume`."
            raise OutputError(self.folder.path, error.reason, then=then) from error
        finally:
            self.engine.close()
            self.ledger.close()
        if self.state.failed:
            raise SearchFailed(self.state.failed)
        return self.state

    def advance(self) -> RunTrials | TrainWinner | Finish:
        """Decide and record until there are trials to run, or the search has ended."""
        return advance(self.state, self.settings, self.graphs, self._record_decision)

    def _is_over(self) -> bool:
        """Whether a search that is to stop has nothing left to run: then it finishes."""
        return len(self.state.rounds) == len(self.state.sizes) and isinstance(self.advance(), Finish)

    def begin(self) -> None:
        """The first line of a new ledger, or a line that says who goes on."""
        if self.ledger.events:
            self._record("search_resumed", host=socket.gethostname(), pid=os.getpid())
            self.folder.tidy(self.state)
            return
        dataset = self.graphs.dataset
        n_trials = fitting_trials(self.settings, self.graphs)
        self._record(
            "search_started",
            schema=SCHEMA,
            version=VERSION,
            settings=self.settings.model_dump(mode="json"),
            dataset={
                "name": dataset.name,
                "source": self.source,
                "fingerprint": dataset.fingerprint,
                "n_entities": dataset.n_entities,
                "n_relations": dataset.n_relations,
                "n_train": len(dataset.train),
                "n_valid": len(dataset.valid),
                "n_test": len(dataset.test),
            },
            sizes=round_sizes(n_trials, self.settings.eta),
            budget=self.settings.budget,
            versions={"grash": __version__, "torch": torch.__version__, "python": platform.python_version()},
        )

    def started(self, task: Trial, device: str) -> None:
        self._record("trial_started", round=task.round, number=task.number, attempt=task.attempt, device=device)

    def extend(self, **more: Any) -> None:
        """Add trials or budget (`grash.search.extension`)."""
        count = max(more.get("n_trials") or 1, len(self.state.configurations))
        costs = [c.relative_cost for c in make_configurations(self.settings, self.graphs.n_entities, count)]
        self._record("search_extended", **plan_extension(self.state, self.settings, relative_costs=costs, **more))

    def _record_decision(self, event: str, **fields: Any) -> None:
        if event == "winner_chosen":
            self._write_best(fields["number"])
        self._record(event, **fields)
        if event in ("round_closed", "search_finished"):
            self.folder.tidy(self.state)

    def _run_tasks(self, tasks: list[Trial]) -> None:
        """Runs tasks until all are settled, or the search is to stop."""
        waiting, running = list(tasks), 0
        later: list[tuple[float, Trial]] = []  # attempts after a fault, each with the time before which it waits
        while waiting or running or later:
            now = time.monotonic()  # one look: between two of them an attempt could belong to neither list
            waiting += [task for at, task in later if at <= now]
            later = [(at, task) for at, task in later if at > now]
            while waiting and not self._must_stop() and running < self.engine.n_slots:
                device = self.engine.start(waiting[0])
                if device is None:
                    break
                task = waiting.pop(0)
                self.started(task, device)
                running += 1
            if self._must_stop() and not running:
                return
            if not running:
                time.sleep(_PAUSE)
                continue
            for ended in self.engine.wait(self._hear):
                running -= 1
                if isinstance(ended, Trial):
                    continue
                self.settle(ended)
                again = self._again(tasks, ended)
                if again is not None:
                    later.append((time.monotonic() + min(5.0, _PAUSE * 2**again.attempt), again))
            self._must_stop()

    def settle(self, result: TrialResult) -> None:
        """Records how a trial ended; then its checkpoint goes, unless a machine failed it and it may go on from it."""
        self.heartbeats.pop((result.round, result.number), None)
        self._record("trial_ended", result=result.to_json())
        if result.status not in MACHINE_FAULTS:
            self.folder.remove_checkpoint(result.round, result.number)
        if result.status not in ("ok", "diverged"):
            log.warning(
                "configuration %d, round %d: %s. %s", result.number, result.round, result.status, result.message
            )

    def _again(self, tasks: list[Trial], result: TrialResult) -> Trial | None:
        """The next attempt at a task whose machine failed it, if it has one left."""
        settled = self.state.finals if result.round == 0 else self.state.rounds[result.round - 1].attempts
        if result.round == 0 and self.state.final is not None:
            return None
        if result.round > 0 and result.number in self.state.rounds[result.round - 1].results:
            return None
        task = next(t for t in tasks if (t.round, t.number) == (result.round, result.number))
        out_of_memory = sum(r.status == "out_of_memory" for r in settled[result.number])
        return replace(task, attempt=result.attempt + 1, work_share=0.5**out_of_memory)

    def trial_task(self, number: int, configuration: int) -> Trial:
        plan = self.state.rounds[number - 1].plan
        made = self.state.configurations[configuration]
        full = make_config(made.values)
        config = round_config(full, plan, self.settings)
        warm = self.settings.warm_start != "off"
        lineage = self.settings.variant == "epoch" or warm
        state = self.folder.trial(number - 1, configuration) / "state"
        has_state = number > 1 and (state / "state.json").is_file() and (warm or full.schedule not in HORIZON)
        goes_on = lineage and has_state
        return Trial(
            round=number,
            number=configuration,
            attempt=1 + len(self.state.rounds[number - 1].attempts.get(configuration, [])),
            config=config.model_dump(),
            fractions=() if plan.whole and not warm else plan.fractions,
            isolated=plan.isolated,
            relative_cost=made.relative_cost,
            continues=str(state.relative_to(self.folder.path)) if goes_on else None,
            epochs_before=self.state.rounds[number - 2].plan.epochs if goes_on and not warm else 0.0,
            warm=warm,
            keep=lineage and number < len(self.state.sizes),
            folder=str(self.folder.trial(number, configuration).relative_to(self.folder.path)),
            n_bytes=self._n_bytes(config, plan.n_entities, plan.n_relations, plan.n_train, plan.n_valid, weights=False),
        )

    def _final_task(self, number: int) -> Trial:
        config = make_config(self.state.configurations[number].values)
        data = self.graphs.dataset
        return Trial(
            round=0,
            number=number,
            attempt=1 + len(self.state.finals.get(number, [])),
            config=config.model_dump(),
            fractions=(),
            folder=str(self.folder.trial(0, number).relative_to(self.folder.path)),
            n_bytes=self._n_bytes(
                config, data.n_entities, data.n_relations, len(data.train), len(data.valid), weights=True
            ),
            final=True,
            placement=self.placement,
        )

    def _n_bytes(
        self, config: TrainConfig, n_entities: int, n_relations: int, n_train: int, n_valid: int, *, weights: bool
    ) -> int:
        device = torch.device(self.engine.devices[0])
        plan = plan_memory([config], n_entities, n_relations, n_train, device, n_valid=n_valid, keep_best=weights)
        return plan.on_device(device)

    def _write_best(self, number: int) -> None:
        config = make_config(self.state.configurations[number].values)
        head = f"# The winner of {self.folder.path.name}; train it with: grash train GRAPH --config {BEST_FILE}\n"
        with atomic_file(self.folder.path / BEST_FILE) as aside:
            aside.write_text(head + yaml.safe_dump(config.model_dump(), sort_keys=False), encoding="utf-8")

    def _hear(self, heartbeat: TrialProgress) -> None:
        self.heartbeats[heartbeat.round, heartbeat.number] = heartbeat
        self._must_stop()
        self.watch(self.state, self.heartbeats, self.engine.devices)

    def _must_stop(self) -> bool:
        if self.deadline is not None and time.monotonic() > self.deadline and not self.stopping:
            self.stopping = "max_seconds"
            self.engine.stop()
        return bool(self.stopping)

    def _record(self, event: str, **fields: Any) -> None:
        at = datetime.now(timezone.utc).isoformat(timespec="milliseconds")
        elapsed = round(self.before + time.monotonic() - self.began, 3)
        self.state.apply(self.ledger.write(event, at=at, elapsed=elapsed, **fields))
        self.watch(self.state, self.heartbeats, self.engine.devices)

    @contextmanager
    def _interrupts(self) -> Iterator[None]:
        """Ctrl-C (and SIGTERM) once: finish what runs; twice, or in the final training: save and stop now."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        heard = _heard.get()

        def pressed(number: int, frame: FrameType | None) -> None:
            if heard is not None:
                heard.append(number)
            first, self.stopping = not self.stopping, self.stopping or "interrupted"
            if self.at_last:
                if first:
                    log.warning("The final training saves a checkpoint and stops; if it is being tested, it ends.")
                self.engine.stop()
            elif first:
                log.warning("Running trials are finished first; press Ctrl-C again to stop them now.")
            else:
                self.engine.stop()

        before = {s: signal.signal(s, pressed) for s in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


# = A watcher's own errors: they stop the search and reach whoever gave the watcher, and are no trial's failure.
# =
# = Engines that train in the driver's process call the watcher from inside a training, whose errors are the trial's.


class _Slip(KeyboardInterrupt):
    """Ends what runs as Ctrl-C does, so that trainings are saved and the search can go on."""


@contextmanager
def heeded(watch: Watch | None) -> Iterator[Watch | None]:
    """The watcher to give to a search that runs inside; what it raised is raised at the end, as it was."""
    slips: list[Exception] = []

    def guarded(state: SearchState, heartbeats: dict[tuple[int, int], TrialProgress], devices: Sequence[str]) -> None:
        if slips or watch is None:
            return
        try:
            watch(state, heartbeats, devices)
        except Exception as error:
            slips.append(error)
            raise _Slip from error

    with suppress(_Slip):
        yield None if watch is None else guarded
    if slips:  # also where an engine that was stopping took the slip for the interrupt
        raise slips[0] from None
