"""What a running search writes: one line per change of state, and the files of its run folder.

`ProgressLines` turns states into lines, for log.txt and for output that is not a terminal. `RunFiles` calls it, and
rewrites report.html and optuna.log while the search runs.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

from grash.formatting import format_duration, printable
from grash.report.meaning import starts_again
from grash.report.optuna import OptunaView
from grash.report.page import write_report
from grash.report.summary import final_metrics, higher_than, mrr_text, n_entrants, read_state
from grash.search.callbacks import Callback, RunningSearch
from grash.search.ledger import RoundState, SearchState
from grash.search.trial import TrialResult
from grash.training.loop import Progress

if TYPE_CHECKING:
    from collections.abc import Iterator

LOG_FILE = "log.txt"
_MANY_TRIALS = 64  # of a round: their lines would hide all others
_EVERY_SECONDS = 15.0  # between two updates of optuna.log within a round
_log = logging.getLogger(__name__)


class RunFiles(Callback):
    """Keeps report.html, optuna.log and log.txt of a run folder up to date while its search runs.

    The ledger has all results, so an error here is logged once and never stops the search.
    """

    def __init__(self, folder: Path) -> None:
        self.folder, self._optuna = Path(folder), OptunaView(folder)
        self._lines = ProgressLines(self._write_log, report_finished=False)
        self._failed: set[str] = set()
        self._updated = time.monotonic()

    def on_change(self, search: RunningSearch) -> None:
        """Update log.txt at once, optuna.log every 15 seconds."""
        with self._errors_logged(LOG_FILE):
            self._lines.watch(search.state, search.progress, search.devices)
        if time.monotonic() - self._updated >= _EVERY_SECONDS:
            self._optuna.update(search.state)
            self._updated = time.monotonic()

    def on_round_end(self, search: RunningSearch, round: int) -> None:
        """Update every file."""
        self._updated = -_EVERY_SECONDS
        self.on_change(search)
        self._write_report()

    def write(self) -> None:
        """Write report.html and optuna.log from the ledger, if there is one."""
        try:
            state = read_state(self.folder)
        except Exception:  # the search failed before its first event, and its own error tells why
            _log.debug("%s has no readable ledger.", self.folder, exc_info=True)
            return
        self._optuna.update(state)
        self._write_report()

    def _write_report(self) -> None:
        with self._errors_logged("report.html"):
            write_report(self.folder, self._failed)

    def _write_log(self, line: str) -> None:
        with (self.folder / LOG_FILE).open("a", encoding="utf-8") as file:
            file.write(f"{datetime.now().isoformat(sep=' ', timespec='seconds')}  {printable(line)}\n")

    @contextmanager
    def _errors_logged(self, name: str) -> Iterator[None]:
        try:
            yield
        except Exception as error:
            if name not in self._failed:
                _log.warning("%s is not up to date (%s). The search continues.", self.folder / name, error)
                _log.debug("Writing %s failed.", name, exc_info=True)
            self._failed.add(name)


class ProgressLines:
    """Writes one line when a round starts, a trial ends, a round ends, and the winner is known and trained."""

    def __init__(self, write: Callable[[str], None], *, report_finished: bool = True, every_trial: bool = True) -> None:
        """report_finished: whether to write a line for a search that is already finished. every_trial: whether a trial
        of a round with 64 or more has its own line; else each tenth of them has one."""
        self._write, self._report_finished, self._every_trial = write, report_finished, every_trial
        self._started = False
        self._ended: dict[int, set[int]] = {}  # by round, the configurations whose result was written
        self._closed: dict[int, bool] = {}
        self._winner: int | None = None
        self._final = False
        self._changes = 0

    def watch(self, state: SearchState, heartbeats: dict[tuple[int, int], Progress], devices: Sequence[str]) -> None:
        """Write what is new since the last call."""
        if not self._started:
            self._skip_known(state)
        for change in state.changes[self._changes :]:
            self._write(f"plan changed: {change}")
        self._changes = len(state.changes)
        for round_state in state.rounds:
            self._write_round(state, round_state)
        if state.winner is not None and state.winner != self._winner:
            self._write(f"the winner is configuration {state.winner}{starts_again(state)}")
        self._winner = state.winner
        if state.final is not None and not self._final:
            test = final_metrics(state.final)
            mrr = f"  test MRR {test['mrr']:.4f}" if test is not None and test.get("mrr") is not None else ""
            self._write(f"final training: {_score_text(state.final)}  {format_duration(state.final.seconds)}{mrr}")
            self._final = True

    def _skip_known(self, state: SearchState) -> None:
        """Skip what an earlier process has written, and write where the search resumes."""
        self._started = True
        done = sum(len(r.results) for r in state.rounds)
        if not done and state.winner is None:
            return
        self._ended = {r.plan.number: set(r.results) for r in state.rounds}
        self._closed = {r.plan.number: r.survivors is not None for r in state.rounds}
        self._winner, self._final, self._changes = state.winner, state.final is not None, len(state.changes)
        if not state.finished:
            self._write(_resume_text(state, done))
        elif self._report_finished:
            self._write("already finished: nothing to do")

    def _write_round(self, state: SearchState, round_state: RoundState) -> None:
        plan, number = round_state.plan, round_state.plan.number
        n_trials = n_entrants(state, number)
        if number not in self._ended:
            self._ended[number], self._closed[number] = set(), False
            graph = f"{plan.n_entities:,} entities and {plan.n_train:,} triples"
            length = f"continued to {plan.epochs:.3g}" if plan.continues else f"of {plan.epochs:.3g}"
            trials = f"{_count_trials(n_trials)} {length} epochs"
            self._write(f"round {number}: {trials} on {graph}, {plan.cost:.3g} full runs each")
        self._write_trials(round_state, n_trials)
        survivors = round_state.survivors
        if survivors and not self._closed[number]:
            advance = f"{len(survivors)} of {n_trials} {'advances' if len(survivors) == 1 else 'advance'}"
            first = round_state.results[survivors[0]]
            text, higher = f"configuration {first.number}, {_score_text(first)}", higher_than(round_state, first)
            best = f"best: {text}"
            if higher is not None:
                best = f"first: {text}, still rising (configuration {higher.number} has {higher.mrr:.4f})"
            self._write(f"round {number} done: {advance}; {best}")
        self._closed[number] = survivors is not None

    def _write_trials(self, round_state: RoundState, n_trials: int) -> None:
        """Write a line for each trial that has ended, or one for all of them when another tenth is done."""
        results, number = round_state.results, round_state.plan.number
        ended, before = self._ended[number], len(self._ended[number])
        if not self._every_trial and n_trials >= _MANY_TRIALS:
            ended |= set(results)
            tenth = 10 * len(ended) // n_trials
            if len(ended) < n_trials and tenth > 10 * before // n_trials:
                self._write(f"round {number}  {len(ended)}/{n_trials}  {_best_so_far(round_state)}")
            return
        for n, result in results.items() if before < len(results) else ():
            if n in ended:
                continue
            ended.add(n)
            if result.status == "timeout" and not result.seconds:
                continue  # it never ran; one warning counts all of them
            done, cost = f"{len(ended)}/{n_trials}", f"{result.cost:.3g} full runs"
            score = f"{_score_text(result)}  {cost}  {format_duration(result.seconds)}"
            if result.out_of_time:
                last, epochs = result.history[-1]["epoch"], round_state.plan.epochs
                score += f"  stopped after {last:.3g} of {epochs:.3g} epochs: the time was over"
            self._write(f"round {number}  {done}  configuration {n}  {score}")


def _best_so_far(round_state: RoundState) -> str:
    """Return the best trial of an open round, and how many have no score."""
    best, results = round_state.best(len(round_state.results)), round_state.results
    without = f"  {len(results) - len(best)} without a score" if len(best) < len(results) else ""
    if not best:
        return without.strip()
    return f"best so far: configuration {best[0]}, {_score_text(results[best[0]])}{without}"


def _resume_text(state: SearchState, done: int) -> str:
    """Return where a search resumes; an extension opens the first rounds again."""
    number = next((r.plan.number for r in state.rounds if r.survivors is None), len(state.rounds) + 1)
    if number <= len(state.sizes) and state.winner is None:
        return f"resumes in round {number}: {_count_trials(done)} done so far"
    if state.settings.get("final_train", True) and state.final is None:
        return "resumes with the final training"
    return "resumes: everything is trained, only the end is missing"


def _count_trials(count: int) -> str:
    return f"{count} trial" if count == 1 else f"{count} trials"


def _score_text(result: TrialResult) -> str:
    if result.status != "ok" or result.mrr is None:
        return f"{result.status}: {result.message.splitlines()[0]}" if result.message else result.status
    decides = "" if result.score is None else f"score {result.score:.4f}  "
    return decides + mrr_text(result.mrr, result.interval)
