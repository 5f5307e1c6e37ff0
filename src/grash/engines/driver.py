"""Drive a search: act on what `search.halving` decides, record every change, and stop or resume at any point.

On the first Ctrl-C running trials finish, then the search stops. On the second, or on the first during the final
training, trials save a checkpoint and stop at once. After that, or after kill -9, the same command resumes the search.
"""

from __future__ import annotations

import logging
import os
import platform
import signal
import socket
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import replace
from datetime import datetime, timezone
from types import FrameType
from typing import Any

import torch

from grash import __version__
from grash.engines.memory import plan_memory
from grash.errors import OutputError, SearchFailed
from grash.files import verify_folder
from grash.search.callbacks import Callback, RunningSearch, report_event
from grash.search.graphs import SearchGraphs
from grash.search.halving import RunTrials, advance
from grash.search.ledger import SCHEMA, VERSION, Event, Ledger, SearchState, StopReason, keeps_finalists
from grash.search.proposals import make_configurations
from grash.search.run_folder import BEST_FILE, RunFolder
from grash.search.schedule import fitting_trials, plan_extension, planned_sizes, round_config
from grash.search.time_limit import Choice, TimeLimit, final_seconds, plan_change, resumed_limit, rounds_end
from grash.search.trial import FINAL_VALIDATIONS, FIXED_LENGTH_SCHEDULES, MACHINE_FAULTS, Engine, Trial, TrialResult
from grash.training.config import TrainConfig, make_config
from grash.training.loop import Progress
from grash.yaml_files import matches_checksum, write_yaml

log = logging.getLogger(__name__)

_PAUSE = 0.05  # seconds before the second attempt at a trial; doubled for every further one
_interrupts: ContextVar[list[int] | None] = ContextVar("interrupts", default=None)  # for `reraise_interrupts`


class Driver:
    """Drives one search.

    placement: where the final model's entities are stored. choice: what the time limit of a new search chose.
    limit: the time, from when on it counts; of a resumed search, if it replaces what was left.
    """

    def __init__(
        self,
        folder: RunFolder,
        graphs: SearchGraphs,
        engine: Engine,
        *,
        source: str = "",
        callbacks: Sequence[Callback] = (),
        max_seconds: float | None = None,
        placement: str = "auto",
        choice: Choice | None = None,
        limit: TimeLimit | None = None,
    ) -> None:
        self.folder, self.graphs, self.settings, self.engine = folder, graphs, graphs.settings, engine
        self.source, self.placement = source, placement
        self.callbacks = callbacks
        self.ledger = Ledger(folder.path)
        self.state = SearchState.replay(self.ledger.events)
        self.choice, self.limit = choice, limit
        self.before, self.began = self.state.seconds, time.monotonic() if limit is None else limit.began
        self.deadline = None if max_seconds is None else self.began + max_seconds
        self.search = RunningSearch(folder.path, self.state, engine.devices)
        self.stopping: StopReason | None = None
        self.trains_in_full = False
        self._callback_error: Exception | None = None

    def run(self) -> SearchState:
        """Run to the end, or until the search is stopped; then `state.stopped` is the reason."""
        self.begin()
        try:
            with self._handle_interrupts():
                while not self.stopping and (action := self.advance()):
                    trials = [self.make_trial(action.round, n) for n in action.numbers]
                    self.trains_in_full = trials[0].in_full
                    self._run_trials(trials)
                if self.stopping and not self._is_over():
                    self._record("search_stopped", reason=self.stopping)
                    if self.state.winner is None and (best := self.state.incumbent()) is not None:
                        self._write_best(best.number, "Best configuration so far, when it was stopped,")
        except KeyboardInterrupt:
            if self._callback_error is None:
                raise
        except OutputError as error:
            then = "The search stops here. Continue it with `grash resume`."
            raise OutputError(self.folder.path, error.reason, then=then) from error
        finally:
            self.close()
            self._report_end()
        if self._callback_error is not None:
            raise self._callback_error from None
        if self.state.failed:
            raise SearchFailed(self.state.failed)
        return self.state

    def close(self) -> None:
        self.engine.close()
        self.ledger.close()

    def begin(self) -> None:
        """Record the start of a new search, or that it is resumed."""
        if self.ledger.events:
            self._record("search_resumed", host=socket.gethostname(), pid=os.getpid(), **self._resumed_limit())
            self.folder.tidy(self.state)
            if self.state.winner is not None:
                self._restore_best(self.state.winner)
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
            sizes=planned_sizes(n_trials, self.settings, self.graphs),
            budget=self.settings.budget,
            versions={"grash": __version__, "torch": torch.__version__, "python": platform.python_version()},
        )
        if self.choice is not None:
            self._record("time_planned", **self.choice.to_json())

    def advance(self) -> RunTrials | None:
        """Decide and record until there are trials to run, and return these; None when the search has ended."""
        return advance(self.state, self.settings, self.graphs, self._record_decision, self._plan_change)

    def extend(self, **more: Any) -> None:
        """Add trials or budget (`plan_extension`)."""
        count = max(more.get("n_trials") or 1, len(self.state.configurations))
        sizes = self.graphs.n_entities, count
        costs = [c.relative_cost for c in make_configurations(self.settings, *sizes, n_train=self.graphs.n_train)]
        self._record("search_extended", **plan_extension(self.state, self.settings, relative_costs=costs, **more))

    def make_trial(self, number: int, configuration: int) -> Trial:
        """Return the next attempt at a configuration in a round; round 0 is the final training."""
        if number == 0:
            return self._final_trial(configuration)
        plan, configured = self.state.rounds[number - 1].plan, self.state.configurations[configuration]
        full = make_config(configured.values)
        config = round_config(full, plan, self.settings)
        warm = self.settings.warm_start != "off"
        keeps_state = self.settings.variant == "epoch" or warm
        finalists = plan.compares_finalists
        saved = self.folder.trial(number - 1, configuration) / "state"
        continues = number > 1 and (saved / "state.json").is_file()
        continues = continues and (warm or plan.continues and full.schedule not in FIXED_LENGTH_SCHEDULES)
        if continues:
            verify_folder(saved)  # the round before has ended, so nothing can replace it: the search stops
        return self._trial(
            number,
            configuration,
            config,
            (plan.n_entities, plan.n_relations, plan.n_train, plan.n_valid),
            fractions=() if plan.whole and not warm else plan.fractions,
            isolated=plan.isolated,
            relative_cost=configured.relative_cost,
            continues=str(saved.relative_to(self.folder.path)) if continues else None,
            epochs_before=self.state.rounds[number - 2].plan.epochs if continues and not warm else 0.0,
            warm=warm,
            keep=plan.is_comparison
            and keeps_finalists(plan.n_entities, full.dim)
            or keeps_state
            and number < len(self.state.sizes),
            keep_best=plan.to_the_end,
            billed=not finalists,
            placement=self.placement if finalists else "auto",
        )

    def record_start(self, trial: Trial, device: str) -> None:
        self._record("trial_started", round=trial.round, number=trial.number, attempt=trial.attempt, device=device)

    def _record_late(self, waiting: list[Trial]) -> None:
        """Record that the waiting trials of a round are not run, with one warning for all."""
        number, n_late = waiting[0].round, len(waiting)
        trials = "1 trial was" if n_late == 1 else f"{n_late} trials were"
        log.warning("round %d: %s not run, because the time for the rounds was over.", number, trials)
        while waiting:
            late = waiting.pop(0).result("timeout", message="The time for the rounds was over.")
            self.record_result(late, warn=False)

    def record_result(self, result: TrialResult, *, warn: bool = True) -> None:
        """Record how a trial ended and remove its checkpoint, unless the machine failed: the next attempt needs it."""
        self.search.progress.pop((result.round, result.number), None)
        self._record("trial_ended", result=result.to_json())
        if result.status not in MACHINE_FAULTS:
            self.folder.remove_checkpoint(result.round, result.number)
        if warn and result.status not in ("ok", "diverged"):
            log.warning(
                "configuration %d, round %d: %s. %s", result.number, result.round, result.status, result.message
            )

    @property
    def _elapsed(self) -> float:
        """Seconds of the search so far; of one within a time, without compiling."""
        began = self.began if self.limit is None else self.limit.without_compiling().began
        return self.before + time.monotonic() - began

    def _plan_change(self, action: Event | RunTrials | None) -> Event | None:
        """Return what to change before an action, to end in time."""
        if self.state.time_limit is None:
            return None
        left = self.state.time_limit - self._elapsed
        found = plan_change(self.state, self.settings, self.graphs, action, left)
        return None if found is None else {"event": "plan_changed", **found}

    def _resumed_limit(self) -> dict[str, float]:
        """Return when the time of a resumed search is over, if it has one."""
        if self.limit is not None and self.state.time_limit is not None:
            return {"time_limit": self.before + self.limit.seconds, "time": self.limit.seconds}
        limit = self.state.time_limit
        return {} if limit is None else {"time_limit": resumed_limit(limit, self.before)}

    def _limited(self, trial: Trial, n_left: int) -> Trial | None:
        """Return the trial with the seconds it may take; None if the time for rounds is over.

        n_left: trials of the round that run or wait. Finalists that are trained to the end in turn share the time.
        """
        limit = self.state.time_limit
        if limit is None:
            return trial
        if trial.in_full:
            turns = -(-n_left // self.engine.max_running)
            return replace(trial, seconds_limit=final_seconds(self.state, limit - self._elapsed) / turns)
        left = rounds_end(self.state, self.settings, limit) - self._elapsed
        return replace(trial, seconds_limit=left) if left > 0 else None

    def _run_trials(self, trials: list[Trial]) -> None:
        """Run trials until all have a result, or the search has to stop."""
        waiting, running = list(trials), 0
        retries: list[tuple[float, Trial]] = []  # with the time before which each has to wait
        while waiting or running or retries:
            now = time.monotonic()  # read once, or a retry could be in neither list
            waiting += [trial for at, trial in retries if at <= now]
            retries = [(at, trial) for at, trial in retries if at > now]
            while waiting and not self._must_stop() and running < self.engine.max_running:
                limited = self._limited(waiting[0], len(waiting) + running)
                if limited is None:
                    self._record_late(waiting)
                    continue
                device = self.engine.start(limited)
                if device is None:
                    break
                self.record_start(waiting.pop(0), device)
                running += 1
            if self._must_stop() and not running:
                return
            if not running:
                time.sleep(_PAUSE)
                continue
            for ended in self.engine.wait(self._on_progress):
                running -= 1
                if isinstance(ended, Trial):
                    continue
                self.record_result(ended)
                retry = self._retry(trials, ended)
                if retry is not None:
                    retries.append((time.monotonic() + min(5.0, _PAUSE * 2**retry.attempt), retry))
            self._must_stop()

    def _retry(self, trials: list[Trial], result: TrialResult) -> Trial | None:
        """Return the next attempt at a trial that the machine failed, if it has one left."""
        if result.round == 0:
            ended = self.state.final is not None
        else:
            ended = result.number in self.state.rounds[result.round - 1].results
        if ended:
            return None
        trial = next(t for t in trials if (t.round, t.number) == (result.round, result.number))
        attempts = self._attempts(trial.round, trial.number)
        out_of_memory = sum(attempt.status == "out_of_memory" for attempt in attempts)
        return replace(trial, attempt=result.attempt + 1, work_share=0.5**out_of_memory)

    def _attempts(self, number: int, configuration: int) -> list[TrialResult]:
        """Return the attempts so far at a configuration, in a round or (0) the final training."""
        attempts = self.state.rounds[number - 1].attempts if number else self.state.finals
        return attempts.get(configuration, [])

    def _final_trial(self, number: int) -> Trial:
        config, data = make_config(self.state.configurations[number].values), self.graphs.dataset
        if (epochs := self.state.final_epochs) is not None:
            config = config.changed(epochs=epochs, valid_every=epochs / FINAL_VALIDATIONS)
        sizes = data.n_entities, data.n_relations, len(data.train), len(data.valid)
        return self._trial(
            0, number, config, sizes, fractions=(), billed=False, final=True, placement=self.placement,
            **self._saved_finalist(number, config),
        )  # fmt: skip

    def _saved_finalist(self, number: int, config: TrainConfig) -> dict[str, Any]:
        """Return the fields with which the final training continues from the winner's state among the finalists."""
        last = self.state.continued_by_final(number)
        if last is None:
            return {}
        saved = self.folder.trial(last.plan.number, number) / "state"
        if not (saved / "state.json").is_file():
            return {}
        as_planned = config.epochs == make_config(self.state.configurations[number].values).epochs
        if config.schedule in FIXED_LENGTH_SCHEDULES and not as_planned:
            return {}  # its learning rates are those of a training of another length
        verify_folder(saved)
        return {"continues": str(saved.relative_to(self.folder.path)), "epochs_before": last.ended_at(number)}

    def _trial(
        self, number: int, configuration: int, config: TrainConfig, sizes: tuple[int, int, int, int], **fields: Any
    ) -> Trial:
        """sizes: entities, relations, and triples of train and valid."""
        device = torch.device(self.engine.devices[0])
        keep_best = number == 0 or fields.get("keep_best", False)
        plan = plan_memory([config], *sizes[:3], device, n_valid=sizes[3], keep_best=keep_best)
        return Trial(
            round=number,
            number=configuration,
            attempt=1 + len(self._attempts(number, configuration)),
            config=config.model_dump(),
            folder=str(self.folder.trial(number, configuration).relative_to(self.folder.path)),
            n_bytes=plan.on_device(device),
            **fields,
        )

    def _is_over(self) -> bool:
        """Return whether a search that has to stop has nothing left to run; then it is recorded as finished."""
        known = self.state.winner is not None or len(self.state.rounds) == len(self.state.sizes)
        return known and self.advance() is None

    def _on_progress(self, trial: Trial, progress: Progress) -> None:
        self.search.progress[trial.round, trial.number] = progress
        self._must_stop()
        if self._callback_error is None:
            try:
                for callback in self.callbacks:
                    callback.on_progress(self.search, trial.round, trial.number, progress)
            except Exception as error:
                # Inside a training it would be the trial's error. It ends trainings as Ctrl-C does; `run` raises it.
                self._callback_error = error
                raise KeyboardInterrupt from error

    def _report_end(self) -> None:
        """Call `on_end` of every callback. `run` raises the first error, unless it raises another one already."""
        for callback in self.callbacks:
            try:
                callback.on_end(self.search)
            except Exception as error:
                self._callback_error = self._callback_error or error

    def _must_stop(self) -> bool:
        if self.deadline is not None and time.monotonic() > self.deadline and not self.stopping:
            self.stopping = "max_seconds"
            self.engine.stop()
        return bool(self.stopping)

    def _record_decision(self, event: str, **fields: Any) -> None:
        if event == "winner_chosen":
            self._write_best(fields["number"], "Winner")
        self._record(event, **fields)
        if event in ("round_closed", "search_finished"):
            self.folder.tidy(self.state)

    def _record(self, event: str, **fields: Any) -> None:
        at = datetime.now(timezone.utc).isoformat(timespec="milliseconds")
        entry = self.ledger.write(event, at=at, elapsed=round(self._elapsed, 3), **fields)
        self.state.apply(entry)
        if self._callback_error is None:
            report_event(self.callbacks, self.search, entry)

    def _restore_best(self, number: int) -> None:
        """Write best.yaml again if it was edited or deleted: it follows from the ledger."""
        path = self.folder.path / BEST_FILE
        if path.is_file() and not matches_checksum(path.read_bytes()):
            log.warning("%s was edited by hand: it is written again from the ledger.", path)
        self._write_best(number, "Winner")

    def _write_best(self, number: int, what: str) -> None:
        path = self.folder.path / BEST_FILE
        comment = f"{what} of {path.parent.name}. Train it with: grash train GRAPH --config {BEST_FILE}"
        write_yaml(path, make_config(self.state.configurations[number].values).model_dump(), comment=comment)

    @contextmanager
    def _handle_interrupts(self) -> Iterator[None]:
        """On SIGINT or SIGTERM finish what runs; on the second, or in a full training, save and stop now."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        received = _interrupts.get()

        def handle(number: int, frame: FrameType | None) -> None:
            if received is not None:
                received.append(number)
            first, self.stopping = not self.stopping, self.stopping or "interrupted"
            if first and self.trains_in_full:
                log.warning("The full training saves a checkpoint and stops. If it is being tested, it finishes.")
            elif first:
                log.warning("Running trials finish first. Press Ctrl-C again to stop them now.")
                return
            self.engine.stop()

        previous = {number: signal.signal(number, handle) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for number, handler in previous.items():
                signal.signal(number, handler)


@contextmanager
def reraise_interrupts() -> Iterator[None]:
    """Raise KeyboardInterrupt at the end if a search inside was interrupted, even if it then finished.

    For callers that would otherwise start the next search.
    """
    received: list[int] = []
    token = _interrupts.set(received)
    try:
        yield
    finally:
        _interrupts.reset(token)
    if received:
        raise KeyboardInterrupt
