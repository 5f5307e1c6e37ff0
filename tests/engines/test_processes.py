"""Engines agree with `sequential`, and survive what can happen to workers."""

from __future__ import annotations

import json
import os
import resource
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from engines.searches import bare, essence, events_of, small_search, state_of
from grash.api import search as api_search
from grash.engines import processes
from grash.engines.choose import choose_engine, worker_devices
from grash.engines.local import LocalEngine
from grash.engines.processes import ProcessEngine
from grash.errors import ConfigError, GrashError, OutputError
from grash.kernels.device import compile_seconds, count_compiling
from grash.search.callbacks import OnChange
from grash.search.ledger import SearchState
from grash.search.trial import Trial

pytestmark = pytest.mark.usefixtures("one_thread")

# trials that last long enough (some tenths of a second) to be met while they run
LONG: dict[str, Any] = {"n_trials": 3, "eta": 3, "max_epochs": 240, "final_train": False}


@pytest.fixture
def engines(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The engines that searches of this test were given."""
    made: list[Any] = []

    def choose(*given: Any, **more: Any) -> Any:
        made.append(choose_engine(*given, **more))
        return made[-1]

    monkeypatch.setattr(api_search, "choose_engine", choose)
    return made


class TestConformance:
    """The same search, whoever runs it: equal but for times and devices, and the order in which trials end."""

    @pytest.mark.slow
    @pytest.mark.parametrize(
        ("workers", "changes"), [(1, {}), (2, {"variant": "epoch"}), (3, {"warm_start": "weights"})]
    )
    def test_processes_agree_with_sequential(
        self, tmp_path: Path, sequential: Any, workers: int, changes: dict[str, Any]
    ) -> None:
        small_search(tmp_path / "run", engine="processes", workers=workers, **changes).run()
        assert essence(tmp_path / "run") == essence(sequential(**changes))
        assert decisions(tmp_path / "run") == decisions(sequential(**changes))
        assert trials(tmp_path / "run") == trials(sequential(**changes))

    @pytest.mark.slow
    def test_an_engine_without_room_is_asked_again(self, tmp_path: Path, sequential: Any, engines: list[Any]) -> None:
        class Full(LocalEngine):
            def start(self, trial: Trial) -> str | None:
                return None if self._trials else super().start(trial)

        def full(*given: Any, **more: Any) -> Full:
            engine = Full(real(*given, **more).runner)
            engine.max_running = 3
            return engine

        search = small_search(tmp_path / "run")
        real = api_search.choose_engine
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(api_search, "choose_engine", full)
            search.run()
        assert essence(tmp_path / "run") == essence(sequential())


def decisions(folder: Path) -> list[dict[str, Any]]:
    """The events that the search decided, in order, without times."""
    kinds = (
        "search_started",
        "configurations_proposed",
        "round_opened",
        "round_closed",
        "winner_chosen",
        "search_finished",
    )
    return [
        {k: v for k, v in e.items() if k not in ("at", "elapsed")} for e in events_of(folder) if e["event"] in kinds
    ]


def trials(folder: Path) -> Counter[tuple[Any, ...]]:
    """How often every trial began and ended."""
    began = [(e["event"], e["round"], e["number"]) for e in events_of(folder) if e["event"] == "trial_started"]
    ended = [e["result"] for e in events_of(folder) if e["event"] == "trial_ended"]
    return Counter(began) + Counter(("ended", r["round"], r["number"], r["status"]) for r in ended)


def worker_of(engine: ProcessEngine, number: int) -> int:
    """Process id of the worker that runs this configuration."""
    return next(s.process.pid for s in engine._workers if s.trial is not None and s.trial.number == number)


def at_heartbeats(engines: list[Any], act: Callable[[ProcessEngine, int, int], None]) -> Callable[..., None]:
    """A watcher that acts once for every attempt of a first-round trial that has been heard of."""
    met: set[tuple[int, int]] = set()

    def watch(state: SearchState, progress: dict[tuple[int, int], Any], *rest: Any) -> None:
        for _, number in list(progress):
            running = state.rounds[0].running.get(number)
            if running is not None and (number, running["attempt"]) not in met:
                met.add((number, running["attempt"]))
                progress.pop((1, number))  # the next attempt begins unheard
                act(engines[-1], number, running["attempt"])

    return watch


@pytest.mark.slow
def test_a_killed_worker_is_replaced_and_its_trial_tried_again(
    tmp_path: Path, sequential: Any, engines: list[Any]
) -> None:
    """Configuration 0 loses its worker once, 1 more often than it may, 2 gets signals that are not meant for it."""

    def act(engine: ProcessEngine, number: int, attempt: int) -> None:
        if (number, attempt) in ((0, 1), (1, 1), (1, 2)):
            os.kill(worker_of(engine, number), signal.SIGKILL)
        elif number == 2:
            os.kill(worker_of(engine, number), signal.SIGTERM)
            os.kill(worker_of(engine, number), signal.SIGINT)

    search = small_search(tmp_path / "run", engine="processes", workers=2, max_retries=1, **LONG)
    past = search.run(callbacks=[OnChange(at_heartbeats(engines, act))]).state.rounds[0]
    statuses = {n: [r.status for r in tries] for n, tries in past.attempts.items()}
    assert statuses == {0: ["killed", "ok"], 1: ["killed", "killed"], 2: ["ok"]}
    assert past.results[1].mrr is None and "worker ended unexpectedly (exit code -9)" in past.results[1].message
    expected = state_of(sequential(**LONG)).rounds[0].results
    assert [bare(past.results[n]) for n in (0, 2)] == [bare(expected[n]) for n in (0, 2)]
    assert past.survivors == [max((0, 2), key=lambda n: (expected[n].mrr or 0) + past.plan.trend * expected[n].rise)]


@pytest.mark.slow
def test_interrupted_twice_workers_save_and_stop(tmp_path: Path, sequential: Any, engines: list[Any]) -> None:
    def act(engine: ProcessEngine, number: int, attempt: int) -> None:
        if len(sent) < 2:
            for _ in range(2):
                sent.append(number)
                os.kill(os.getpid(), signal.SIGINT)

    sent: list[int] = []
    search = small_search(tmp_path / "run", engine="processes", workers=2, **LONG)
    state = search.run(callbacks=[OnChange(at_heartbeats(engines, act))]).state
    assert state.stopped == "interrupted" and sent[0] not in state.rounds[0].results
    assert list(tmp_path.glob(f"run/round-1/cfg-000{sent[0]}/checkpoint/state.json"))
    small_search(tmp_path / "run", **LONG).run()  # in this process, from what the workers saved
    assert essence(tmp_path / "run")["results"] == essence(sequential(**LONG))["results"]


@pytest.mark.slow
def test_a_worker_that_hangs_is_ended_after_the_time_limit(
    tmp_path: Path, engines: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    def act(engine: ProcessEngine, number: int, attempt: int) -> None:
        if number == 0:
            os.kill(worker_of(engine, number), signal.SIGSTOP)
            monkeypatch.setattr(processes, "GRACE_SECONDS", -100.0)  # the driver's patience ends now

    def watch(state: SearchState, *rest: Any) -> None:
        if state.rounds and 0 in state.rounds[0].results:
            monkeypatch.setattr(processes, "GRACE_SECONDS", 100.0)
        heard(state, *rest)

    heard = at_heartbeats(engines, act)
    options: dict[str, Any] = {"engine": "processes", "workers": 1, "trial_timeout": 100.0, **LONG, "n_trials": 2}
    past = small_search(tmp_path / "run", **options).run(callbacks=[OnChange(watch)]).state.rounds[0]
    assert past.results[0].status == "timeout" and "reported nothing" in past.results[0].message
    assert past.results[1].status == "ok" and [len(tries) for tries in past.attempts.values()] == [1, 1]


@pytest.mark.slow
def test_the_time_in_which_a_worker_cuts_its_graph_is_no_time_of_the_trial(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow = (
        "import json, sys, time; sys.path[:] = json.loads(sys.argv[1]); from grash.search.graphs import SearchGraphs; "
        "cut = SearchGraphs._make_subgraph; "
        "SearchGraphs._make_subgraph = lambda *given: (time.sleep(6), cut(*given))[1]; "
    )
    monkeypatch.setattr(processes, "_START", slow + processes._START)
    monkeypatch.setattr(processes, "GRACE_SECONDS", 0.0)
    options: dict[str, Any] = {"engine": "processes", "workers": 1, "trial_timeout": 5.0, "final_train": False}
    past = small_search(tmp_path / "run", **options, n_trials=2).run().state.rounds[0]
    assert [[r.status for r in tries] for tries in past.attempts.values()] == [["ok"], ["ok"]]
    assert past.results[0].seconds > 6, "the graph was cut in less than the limit: nothing was tried here"


def test_a_silence_is_judged_from_the_last_heartbeat_on(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 1000.0
    monkeypatch.setattr(processes.time, "monotonic", lambda: now)
    one, trial, final = processes.Watchdog(), Trial(1, 0, 1, {}, ()), Trial(0, 0, 1, {}, (), final=True)
    now += 7200.0
    assert one.check(trial, 5.0) is None, "its training has not begun"
    one.progressed()
    now += 30.0
    one.progressed()
    now += 35.0
    assert one.check(trial, 5.0) is None
    now += 0.1
    why = "It reported nothing for 35 s. Its time limit is 5 s (--trial-timeout)."
    assert one.check(trial, 5.0) == ("timeout", why)
    assert one.check(final, 5.0) is None and one.check(trial, None) is None


def test_a_worker_that_never_says_a_word_is_the_machines_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 1000.0
    monkeypatch.setattr(processes.time, "monotonic", lambda: now)
    one, trial, final = processes.Watchdog(), Trial(1, 0, 1, {}, ()), Trial(0, 0, 1, {}, (), final=True)
    now += 7200.1
    lost = ("killed", "Its worker reported nothing for 7200 s, and its training had not started.")
    assert one.check(trial, None) == one.check(final, None) == one.check(trial, 5.0) == lost
    assert one.check(trial, 9000.0) is None, "where trials may take longer, so may what comes before"
    now += 1800.0
    assert one.check(trial, 9000.0) is not None


@pytest.mark.slow
def test_a_worker_that_hangs_before_its_first_heartbeat_is_ended_and_its_trial_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begin = processes._START
    monkeypatch.setattr(processes, "_START", "import time; time.sleep(600)")

    def watch(state: SearchState, *rest: Any) -> None:
        if state.rounds and state.rounds[0].attempts:
            monkeypatch.setattr(processes, "START_SECONDS", 7200.0)
        elif state.rounds and state.rounds[0].running:  # the driver's patience ends now, and the next worker begins
            monkeypatch.setattr(processes, "START_SECONDS", -1.0)
            monkeypatch.setattr(processes, "_START", begin)

    changes: dict[str, Any] = {"n_trials": 2, "final_train": False, "engine": "processes", "workers": 1}
    past = small_search(tmp_path / "run", **changes).run(callbacks=[OnChange(watch)]).state.rounds[0]
    assert [[r.status for r in tries] for tries in past.attempts.values()] == [["killed", "ok"], ["ok"]]
    assert "its training had not started" in past.attempts[0][0].message


def test_workers_that_all_hang_before_they_begin_end_the_search_with_a_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(processes, "_START", "import time; time.sleep(600)")
    monkeypatch.setattr(processes, "_WAIT_SECONDS", 0.01)
    monkeypatch.setattr(processes, "START_SECONDS", -1.0)
    with pytest.raises(
        GrashError, match=r"3 workers in a row on cpu ended before .* \(the last one reported nothing\)"
    ):
        small_search(tmp_path / "run", engine="processes", workers=1).run()


@pytest.mark.slow
def test_workers_that_cannot_begin_end_the_search_with_a_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sequential: Any
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(processes, "_START", "import sys; sys.exit(7)")
        with pytest.raises(GrashError, match=r"3 workers in a row on cpu ended before .* \(exit code 7\)"):
            small_search(tmp_path / "run", engine="processes", workers=2).run()
    small_search(tmp_path / "run").run()
    assert essence(tmp_path / "run") == essence(sequential())


@pytest.mark.slow
def test_why_a_worker_could_not_begin_is_said(tmp_path: Path) -> None:
    engine = ProcessEngine(tmp_path, ["cpu"])
    try:
        with pytest.raises(GrashError, match=r"worker on cpu could not start: .* is not the run folder of a search"):
            while True:
                engine.wait(lambda heartbeat: None)
    finally:
        engine.close()


@pytest.mark.slow
def test_a_trial_is_not_blamed_for_a_worker_that_never_began(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mark = tmp_path / "first"
    once = f"import os, pathlib; p = pathlib.Path({str(mark)!r}); p.exists() or (p.touch(), os._exit(9)); "
    monkeypatch.setattr(processes, "_START", once + processes._START)
    changes: dict[str, Any] = {"n_trials": 2, "final_train": False, "engine": "processes", "workers": 1}
    past = small_search(tmp_path / "run", **changes).run().state.rounds[0]
    assert mark.exists() and [[r.status for r in tries] for tries in past.attempts.values()] == [["ok"], ["ok"]]


@pytest.mark.slow
def test_a_disk_that_is_full_for_a_worker_stops_the_search_where_it_goes_on(tmp_path: Path, sequential: Any) -> None:
    changes: dict[str, Any] = {"variant": "epoch", "dim": 512, "n_trials": 4, "max_epochs": 1, "final_train": False}
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (300_000, limits[1]))
    try:
        with pytest.raises(OutputError, match=r"run could not be written: .* Continue it with `grash resume`\.$"):
            small_search(tmp_path / "run", engine="processes", workers=1, **changes).run()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert not state_of(tmp_path / "run").finished
    small_search(tmp_path / "run", **changes).run()
    assert essence(tmp_path / "run") == essence(sequential(**changes))


@pytest.mark.slow
def test_a_script_needs_no_main_guard(tmp_path: Path) -> None:
    """Workers know nothing of the script that began the search, and leave its input alone."""
    script = tmp_path / "script.py"
    script.write_text(
        "from pathlib import Path\n"
        "from engines.searches import small_search\n"
        f"search = small_search(Path({str(tmp_path / 'run')!r}), engine='processes', workers=1, final_train=False)\n"
        "print(search.run().state.winner, input())\n"
    )
    done = subprocess.run(
        [sys.executable, str(script)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)},
        input="read\n",
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == [str(state_of(tmp_path / "run").winner), "read"]


class Silent:
    """A worker and its pipe that do nothing."""

    def send_bytes(self, message: bytes) -> None:
        pass


def test_memory_admits_as_many_trials_at_once_as_fit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    worker = processes._Worker
    monkeypatch.setattr(ProcessEngine, "_new_worker", lambda self, device: worker(device, Silent(), Silent()))  # type: ignore[arg-type]
    monkeypatch.setattr("grash.engines.memory.free_bytes", lambda device: 1000)

    def started(engine: ProcessEngine, *sizes: int) -> list[str | None]:
        return [engine.start(Trial(1, i, 1, {}, (), n_bytes=size)) for i, size in enumerate(sizes)]

    assert started(ProcessEngine(tmp_path, ["cuda:0"] * 3), 400, 400, 400) == ["cuda:0", "cuda:0", None]
    assert started(ProcessEngine(tmp_path, ["cuda:0"] * 3), 400, 600, 500) == ["cuda:0", None, "cuda:0"]
    assert started(ProcessEngine(tmp_path, ["cuda:0", "cuda:1"]), 5000, 5000, 1) == ["cuda:0", "cuda:1", None]


def test_what_workers_compile_is_counted_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Runner:
        folder = tmp_path

        def run(self, trial: Trial, report: Any) -> Any:
            count_compiling(6.0)
            return trial.result("ok", mrr=0.5, positives=1)

    trial, before = Trial(1, 0, 1, {}, ()), compile_seconds()
    message = processes.run_trial(Runner(), trial, lambda *given: None)  # type: ignore[arg-type]
    assert message["compiled"] == pytest.approx(6.0) == compile_seconds() - before

    class Answering(Silent):
        def recv_bytes(self) -> bytes:
            return json.dumps(message).encode()

    worker = processes._Worker
    monkeypatch.setattr(ProcessEngine, "_new_worker", lambda self, device: worker(device, Silent(), Answering()))  # type: ignore[arg-type]
    engine, before = ProcessEngine(tmp_path, ["cpu"] * 3), compile_seconds()
    for each in engine._workers[:2]:
        each.trial = trial
    engine._receive(engine._workers[0], lambda *given: None)
    assert compile_seconds() - before == pytest.approx(3.0)  # two workers compiled at the same time


def test_workers_are_spread_over_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("grash.engines.choose.n_cores", lambda: 8)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert worker_devices("auto", None, threads=1) == ["cpu"] * 8
    assert worker_devices("cpu", None, threads=3) == ["cpu"] * 2
    assert worker_devices("cpu", None, threads=16) == ["cpu"]
    assert worker_devices("cpu", 5, threads=1) == ["cpu"] * 5
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr("grash.engines.choose._mps_runs", lambda: False)
    assert worker_devices("auto", None, threads=1) == ["cuda:0", "cuda:1"]
    assert worker_devices("cuda:1", 3, threads=1) == ["cuda:1"] * 3
    assert worker_devices("cuda:0, cuda:1", 3, threads=1) == ["cuda:0", "cuda:1", "cuda:0"]
    monkeypatch.setattr("grash.engines.choose._mps_runs", lambda: True)
    assert worker_devices("cuda:1", None, threads=1) == ["cuda:1"] * 3


@pytest.mark.parametrize(
    ("devices", "workers", "sentence"),
    [("cpu", 0, "workers=0: give 1 or more"), (",", None, "names no device"), ("gpu", None, "is unknown")],
)
def test_impossible_devices_and_workers_are_named(devices: str, workers: int | None, sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        worker_devices(devices, workers, threads=1)


def test_an_unknown_engine_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="engine='dask' is unknown: give auto, sequential, processes"):
        small_search(tmp_path / "run", engine="dask").run()
