"""A search as it is driven: failures by kind, stops of every sort, what lies on the disk meanwhile."""

from __future__ import annotations

import itertools
import os
import signal
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from engines.searches import SPACE, essence, events_of, small_search, state_of
from grash.api.search import Search
from grash.engines import driver as drive_module
from grash.engines import local as trial_module
from grash.engines.driver import Driver, reraise_interrupts
from grash.engines.trainer import run_trainings
from grash.errors import OutputError, SearchFailed
from grash.search.callbacks import OnChange
from grash.search.ledger import SearchState
from grash.search.trial import Trial
from grash.training import loop
from grash.training.loop import Monitor, Progress

WILD = {**SPACE, "lr": {"type": "categorical", "choices": [0.3, 1e25]}}


pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(autouse=True)
def no_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    """A retry waits a little; not here."""
    monkeypatch.setattr(drive_module, "_PAUSE", 0.0)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("undisturbed") / "run"
    small_search(folder).run()
    return essence(folder)


class Sabotage:
    """run_trainings that goes wrong for some calls: `faults` by the number of the call, from 0."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, faults: dict[int, Exception] | Exception) -> None:
        self.faults, self.calls, self.work_bytes = faults, 0, []
        monkeypatch.setattr(trial_module, "run_trainings", self)

    def __call__(self, *given: Any, work_bytes: int | None) -> Any:
        self.calls += 1
        self.work_bytes.append(work_bytes)
        fault = self.faults if isinstance(self.faults, Exception) else self.faults.get(self.calls - 1)
        if fault is not None:
            raise fault
        return run_trainings(*given, work_bytes=work_bytes)


def attempts(state: SearchState) -> dict[tuple[int, int], list[str]]:
    return {
        (past.plan.number, n): [r.status for r in tries]
        for past in state.rounds
        for n, tries in past.attempts.items()
        if len(tries) > 1 or tries[0].status != "ok"
    }


@pytest.mark.slow
def test_diverged_trials_are_not_tried_again_and_what_they_did_not_use_is_carried_over(tmp_path: Path) -> None:
    state = small_search(tmp_path / "run", space=WILD, n_trials=8, final_train=False).run().state
    first, second = state.rounds[:2]
    diverged = [r for r in first.results.values() if r.status == "diverged"]
    assert 0 < len(diverged) < 8 and all(len(tries) == 1 for tries in first.attempts.values())
    assert not {r.number for r in diverged} & set(first.survivors or [])
    unused = sum(first.plan.cost - r.cost for r in diverged)
    assert second.plan.share == pytest.approx(1.0 + unused) and state.spent <= state.budget
    kept = small_search(tmp_path / "kept", space=WILD, n_trials=8, final_train=False, carry_over=False).run().state
    assert kept.rounds[1].plan.share == 1.0


def test_memory_that_runs_out_is_tried_again_with_less_work_space_and_the_same_result(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, undisturbed: dict[str, Any]
) -> None:
    full = torch.OutOfMemoryError("CUDA out of memory.")
    monkeypatch.setattr(drive_module, "_PAUSE", 0.0)
    sabotage = Sabotage(monkeypatch, {1: full, 6: full, 9: full, 14: full})
    state = small_search(tmp_path / "run").run().state
    assert essence(tmp_path / "run") == undisturbed
    second = list(state.rounds[1].results)[-1]  # tried again, it ends last
    assert attempts(state) == {(1, 1): ["out_of_memory", "out_of_memory", "ok"], (2, second): ["out_of_memory", "ok"]}
    assert [r.status for r in state.finals[state.winner]] == ["out_of_memory", "ok"]
    half, quarter = sabotage.work_bytes[6:8]
    assert half == 2 * quarter > 0 and sabotage.work_bytes[:6] == [None] * 6
    assert [sabotage.work_bytes[i] for i in (9, 11, 14, 15)] == [None, half, None, half]


def test_faults_that_outlast_their_retries_leave_no_score_and_the_search_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sabotage = Sabotage(monkeypatch, {n: MemoryError("no") for n in (0, 6, 7)})
    state = small_search(tmp_path / "run", max_retries=2).run().state
    failed = {n: r.status for n, r in state.rounds[0].results.items() if r.status != "ok"}
    assert failed == {0: "out_of_memory"} and [r.attempt for r in state.rounds[0].attempts[0]] == [1, 2, 3]
    assert state.finished and not state.failed and 0 not in (state.rounds[0].survivors or [])
    assert sabotage.calls == 6 + 2 + 3 + 2 + 1


def test_an_error_stands_in_the_ledger_with_its_traceback_and_the_search_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Sabotage(monkeypatch, {2: ValueError("seven is no color")})
    state = small_search(tmp_path / "run").run().state
    found = next(
        e["result"] for e in events_of(tmp_path / "run") if e["event"] == "trial_ended" and e["result"]["traceback"]
    )
    assert (found["number"], found["status"]) == (2, "error") and "seven is no color" in found["traceback"]
    assert state.finished and attempts(state) == {(1, 2): ["error"]}


def test_a_search_in_which_everything_fails_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Sabotage(monkeypatch, ValueError("seven is no color"))
    search = small_search(tmp_path / "run")
    with pytest.raises(SearchFailed, match=r"No trial of round 1 has a score \(6 error\).*seven is no color") as caught:
        search.run()
    assert caught.value.exit_code != 0
    state = state_of(tmp_path / "run")
    assert state.finished and state.failed and state.winner is None and len(state.rounds) == 1
    with pytest.raises(SearchFailed, match="No trial of round 1"):
        search.run()


def test_a_final_training_that_fails_is_no_success(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Sabotage(monkeypatch, {11: ValueError("seven is no color")})
    with pytest.raises(SearchFailed, match="final training failed: ValueError: seven is no color"):
        small_search(tmp_path / "run").run()
    assert state_of(tmp_path / "run").winner is not None and (tmp_path / "run" / "best.yaml").is_file()


def test_trials_that_take_too_long_have_no_score(tmp_path: Path) -> None:
    fixed = {"batch_size": 16, "negatives_head": 10}
    search = small_search(
        tmp_path / "run", fixed=fixed, max_epochs=300, trial_timeout=0.15, n_trials=2, final_train=False
    )
    with pytest.raises(SearchFailed, match=r"2 timeout.*time limit of 0.15 s"):
        search.run()


def test_a_search_stops_when_its_time_is_over_and_resumes_from_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, undisturbed: dict[str, Any]
) -> None:
    seconds = itertools.count()  # every look at the clock takes a second
    monkeypatch.setattr(drive_module, "time", SimpleNamespace(monotonic=lambda: next(seconds)))
    stops = 0
    while not (state := small_search(tmp_path / "run").run(max_seconds=25.0).state).finished:
        stops += 1
        assert state.stopped == "max_seconds" and stops < 20
        assert state_of(tmp_path / "run").stopped == state.stopped
    assert stops > 2 and essence(tmp_path / "run") == undisturbed


def test_no_time_at_all_starts_nothing(tmp_path: Path) -> None:
    state = small_search(tmp_path / "run").run(max_seconds=0.0).state
    assert state.stopped and not state.finished
    assert "trial_started" not in [e["event"] for e in events_of(tmp_path / "run")]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_first_interrupt_lets_the_running_trial_end(
    tmp_path: Path, number: signal.Signals, undisturbed: dict[str, Any]
) -> None:
    def watch(state: SearchState, *rest: Any) -> None:
        if not sent and state.rounds and 2 in state.rounds[0].running:
            sent.append(True)
            os.kill(os.getpid(), number)

    sent: list[bool] = []
    handler = signal.getsignal(number)
    state = small_search(tmp_path / "run").run(callbacks=[OnChange(watch)]).state
    assert state.stopped == "interrupted" and sorted(state.rounds[0].results) == [0, 1, 2]
    assert events_of(tmp_path / "run")[-1]["event"] == "search_stopped" and signal.getsignal(number) is handler
    assert small_search(tmp_path / "run").run().state.finished
    assert essence(tmp_path / "run") == undisturbed


@pytest.mark.slow
def test_the_second_interrupt_stops_at_once_and_what_was_done_is_saved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Longer trials, interrupted twice at a heartbeat of the second one."""
    monkeypatch.setattr(loop, "_REPORT_SECONDS", -1.0)
    long = {"max_epochs": 60, "n_trials": 3, "eta": 3, "fixed": {"batch_size": 96, "negatives_head": 10}}
    small_search(tmp_path / "a" / "run", **long).run()

    def watch(state: SearchState, progress: dict[tuple[int, int], Any], *rest: Any) -> None:
        if (1, 1) in progress and len(sent) < 2:
            sent.append(progress[1, 1])
            os.kill(os.getpid(), signal.SIGINT)

    sent: list[Any] = []
    folder = tmp_path / "b" / "run"
    state = small_search(folder, **long).run(callbacks=[OnChange(watch)]).state
    assert len(sent) == 2 and state.stopped == "interrupted" and sorted(state.rounds[0].results) == [0]
    assert sent[1].step < sent[1].n_steps
    assert (folder / "round-1" / "cfg-0001" / "checkpoint" / "state.json").is_file()
    assert small_search(folder, **long).run().state.finished
    assert essence(folder) == essence(tmp_path / "a" / "run")


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["sequential", "processes", "stacked"])
def test_one_interrupt_stops_the_final_training_at_once(
    tmp_path: Path, engine: str, caplog: pytest.LogCaptureFixture
) -> None:
    long = {"max_epochs": 60, "n_trials": 2, "budget": 1, "fixed": {"batch_size": 96, "negatives_head": 10}}
    engines = {"engine": engine, "workers": None if engine == "sequential" else 1}
    if engine == "stacked":  # the others are continued and compared in this process
        long |= engines

    def watch(state: SearchState, progress: dict[tuple[int, int], Any], *rest: Any) -> None:
        if not sent and state.final_running is not None and any(number == 0 for number, _ in progress):
            sent.append(True)
            os.kill(os.getpid(), signal.SIGINT)

    sent: list[bool] = []
    small_search(tmp_path / "a" / "run", **long).run()
    folder = tmp_path / "b" / "run"
    state = small_search(folder, **{**long, **engines}).run(callbacks=[OnChange(watch)]).state
    assert sent and state.stopped == "interrupted" and state.winner is not None and state.final is None
    assert list(folder.glob("final/*/checkpoint/state.json"))
    assert "The full training saves a checkpoint and stops" in caplog.text and "Running trials" not in caplog.text
    assert small_search(folder, **long).run().state.finished
    assert essence(folder) == essence(tmp_path / "a" / "run")


def test_an_interrupt_after_the_final_training_lets_the_search_finish(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, undisturbed: dict[str, Any]
) -> None:
    """It comes while the model is tested, where nothing asks whether to stop."""
    real = trial_module.evaluate

    def interrupted(*given: Any, **more: Any) -> Any:
        os.kill(os.getpid(), signal.SIGINT)
        return real(*given, **more)

    monkeypatch.setattr(trial_module, "evaluate", interrupted)
    state = small_search(tmp_path / "run").run().state
    assert state.finished and not state.stopped and events_of(tmp_path / "run")[-1]["event"] == "search_finished"
    assert essence(tmp_path / "run") == undisturbed


def test_an_interrupt_in_the_very_last_trial_lets_the_search_finish(tmp_path: Path) -> None:
    def watch(state: SearchState, *rest: Any) -> None:
        last = state.rounds[-1] if len(state.rounds) == len(state.sizes) else None
        if not sent and last and last.running and len(last.results) == state.sizes[-1] - 1:
            sent.append(True)
            os.kill(os.getpid(), signal.SIGINT)

    sent: list[bool] = []
    state = small_search(tmp_path / "run", final_train=False).run(callbacks=[OnChange(watch)]).state
    assert sent and state.finished and not state.stopped and state.winner is not None


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("place", ["the first trial", "the last one"])
def test_an_interrupt_is_passed_on_once_the_search_has_stopped_or_finished(
    tmp_path: Path, number: signal.Signals, place: str
) -> None:
    def watch(state: SearchState, *rest: Any) -> None:
        last = len(state.rounds) == len(state.sizes) and len(state.rounds[-1].results) == state.sizes[-1] - 1
        if not sent and state.rounds and state.rounds[-1].running and (place == "the first trial" or last):
            sent.append(True)
            os.kill(os.getpid(), number)

    sent: list[bool] = []
    with pytest.raises(KeyboardInterrupt), reraise_interrupts():
        state = small_search(tmp_path / "run", final_train=False).run(callbacks=[OnChange(watch)]).state
        assert state.finished == (place == "the last one")
    with reraise_interrupts():  # the next one is not told of it
        assert small_search(tmp_path / "run", final_train=False).run().state.finished


def test_a_search_runs_in_a_thread_that_gets_no_signals(tmp_path: Path, undisturbed: dict[str, Any]) -> None:
    thread = threading.Thread(target=small_search(tmp_path / "run").run)
    thread.start()
    thread.join()
    assert essence(tmp_path / "run") == undisturbed


@pytest.mark.slow
def test_a_full_disk_stops_a_search_where_it_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    small_search(tmp_path / "a" / "run", variant="epoch").run()
    folder, room = tmp_path / "b" / "run", 2

    def save(*given: Any) -> None:
        nonlocal room
        if room == 0:
            raise OSError(28, os.strerror(28))
        room -= 1
        real(*given)

    from grash.training.checkpoint import write_tensors as real

    monkeypatch.setattr("grash.training.checkpoint.write_tensors", save)
    with pytest.raises(OutputError, match="No space left on device"):
        small_search(folder, variant="epoch").run()
    assert sorted(state_of(folder).rounds[0].results) == [0, 1]
    room = 1000
    small_search(folder, variant="epoch").run()
    assert essence(folder) == essence(tmp_path / "a" / "run")


@pytest.mark.slow
def test_weights_of_dropped_trials_go_at_the_barrier(tmp_path: Path) -> None:
    kept: dict[int, list[str]] = {}

    def watch(state: SearchState, *rest: Any) -> None:
        if state.rounds and state.rounds[-1].running:
            there = sorted(p.name for p in tmp_path.glob(f"run/round-{len(state.rounds) - 1}/*"))
            kept.setdefault(len(state.rounds), there)

    state = small_search(tmp_path / "run", variant="epoch").run(callbacks=[OnChange(watch)]).state
    names = [[f"cfg-{n:04}" for n in sorted(past.survivors or [])] for past in state.rounds]
    assert kept == {1: [], 2: names[0], 3: names[1]}
    assert not list(tmp_path.glob("run/round-*"))


@pytest.mark.slow
@pytest.mark.parametrize("variant", ["combined", "graph"])
def test_without_continuation_no_trial_writes_weights(tmp_path: Path, variant: str) -> None:
    seen: set[str] = set()

    def watch(*given: Any) -> None:
        seen.update(p.name for p in tmp_path.glob("run/round-*/**/*"))

    small_search(tmp_path / "run", variant=variant, final_train=False).run(callbacks=[OnChange(watch)])
    assert seen == set()


def test_a_single_configuration_is_only_trained(tmp_path: Path) -> None:
    state = small_search(tmp_path / "run", n_trials=1).run().state
    kinds = [e["event"] for e in events_of(tmp_path / "run")]
    assert kinds == [
        "search_started",
        "configurations_proposed",
        "winner_chosen",
        "trial_started",
        "trial_ended",
        "search_finished",
    ]
    assert state.winner == 0 and state.final is not None and state.spent == 0.0 and not state.rounds


@pytest.mark.slow
def test_a_finished_search_is_left_as_it_is(tmp_path: Path, undisturbed: dict[str, Any]) -> None:
    small_search(tmp_path / "run").run()
    before = [e for e in events_of(tmp_path / "run") if e["event"] != "search_resumed"]
    log = (tmp_path / "run" / "log.txt").read_bytes()
    small_search(tmp_path / "run").run()
    assert (tmp_path / "run" / "log.txt").read_bytes() == log
    assert [e for e in events_of(tmp_path / "run") if e["event"] != "search_resumed"] == before
    assert essence(tmp_path / "run") == undisturbed


@pytest.mark.slow
def test_seconds_of_all_drivers_add_up(tmp_path: Path) -> None:
    small_search(tmp_path / "run").run(max_seconds=0.02)
    first = state_of(tmp_path / "run").seconds
    began = time.monotonic()
    small_search(tmp_path / "run").run()
    wall = time.monotonic() - began
    (resumed,) = [event for event in events_of(tmp_path / "run") if event["event"] == "search_resumed"]
    assert first <= resumed["elapsed"] < state_of(tmp_path / "run").seconds <= first + wall + 0.001  # ms are rounded


@pytest.mark.slow
def test_an_extension_after_a_stop_in_the_final_training_trains_the_new_winner(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The old winner's checkpoint is there, and is none of the new one's."""
    monkeypatch.setattr(Monitor, "_save_interval", lambda self: 0.0)
    on_progress = Driver._on_progress

    def stops_at_last(self: Driver, trial: Trial, progress: Progress) -> None:
        if trial.final and not self.stopping:
            self.stopping = "interrupted"
            self.engine.stop()
        on_progress(self, trial, progress)

    with monkeypatch.context() as patch:
        patch.setattr(Driver, "_on_progress", stops_at_last)
        patch.setattr(loop, "train_step", slowly(loop.train_step))
        small_search(tmp_path / "run", n_trials=4, seed=1, max_epochs=8).run()
    stopped = state_of(tmp_path / "run")
    assert stopped.stopped and list((tmp_path / "run").glob("final/*/checkpoint/state.json"))
    Search.open(tmp_path / "run", engine="sequential", device="cpu").run(extend={"n_trials": 12})
    extended = state_of(tmp_path / "run")
    assert extended.winner != stopped.winner and extended.final is not None and extended.final.status == "ok"


def slowly(step: Any) -> Any:
    def later(*args: Any) -> Any:
        threading.Event().wait(0.002)
        return step(*args)

    return later


def test_a_watch_error_that_an_engine_took_for_an_interrupt_is_raised_at_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[SearchState] = []
    on_progress = Driver._on_progress

    def stop_first(self: Driver, trial: Trial, progress: Progress) -> None:
        self.stopping = "interrupted"
        self.engine.stop()
        on_progress(self, trial, progress)

    def watch(state: SearchState, progress: dict[tuple[int, int], Progress], *rest: Any) -> None:
        if progress:
            calls.append(state)
            raise LookupError("a mistake of the watcher")

    monkeypatch.setattr(Driver, "_on_progress", stop_first)
    monkeypatch.setattr(loop, "train_step", slowly(loop.train_step))
    with pytest.raises(LookupError, match="a mistake of the watcher") as caught:
        small_search(tmp_path / "run", max_epochs=8).run(callbacks=[OnChange(watch)])
    assert len(calls) == 2 and caught.value.__suppress_context__  # once more at the end
    assert state_of(tmp_path / "run").stopped == "interrupted"
