"""Run trials in worker processes, kept for the whole search: graph and torch are loaded once.

Driver and worker exchange JSON over a pipe. A worker that dies is replaced, and its trial is reported as killed. When
the driver dies, the kernel ends its workers, so only the next driver writes to the run folder. A worker is a new
interpreter that does not import the user's script, so scripts need no `if __name__ == "__main__"`.
"""

from __future__ import annotations

import ctypes
import json
import multiprocessing
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import TYPE_CHECKING, Any

from grash.errors import GrashError, OutputError
from grash.search.trial import Status, Trial, TrialResult

if TYPE_CHECKING:
    from grash.engines.local import TrialRunner
    from grash.training.loop import Progress

Report = Callable[[Trial, "Progress"], None]
GRACE_SECONDS = 30.0  # beyond its time limit, for a trial that reports nothing
START_SECONDS = 7200.0  # until the first report of a trial; far above the 96 s that peeling 305 million triples takes
_WAIT_SECONDS = 1.0  # at most, in `wait`
_REPORT_SECONDS = 0.5  # between two progress messages
_MAX_FAILED_STARTS = 3  # of a worker, in a row
_PR_SET_PDEATHSIG = 1
_START = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[1]); import grash.engines.processes as p; p.main(sys.argv)"
)


class Watchdog:
    """Decides when to end a trial whose worker hangs; a worker itself ends a trial that takes too long.

    The time limit of a trial starts with its first progress report. Before that, the worker peels the graph and
    compiles kernels, which another worker would have to repeat. If that takes too long, the machine is at fault and
    the trial is tried again.
    """

    def __init__(self) -> None:
        self.since, self.started = time.monotonic(), False  # the last report, or when the worker got the trial

    def progressed(self) -> None:
        self.since, self.started = time.monotonic(), True

    def check(self, trial: Trial, timeout: float | None) -> tuple[Status, str] | None:
        """Return status and message if the trial has to end. A full training that has started has no limit."""
        silent = time.monotonic() - self.since
        if not self.started:
            limit = max(START_SECONDS, timeout or 0.0)
            message = f"Its worker reported nothing for {limit:g} s, and its training had not started."
            return ("killed", message) if silent > limit else None
        if timeout is None or trial.in_full or silent <= timeout + GRACE_SECONDS:
            return None
        message = (
            f"It reported nothing for {timeout + GRACE_SECONDS:g} s. Its time limit is {timeout:g} s (--trial-timeout)."
        )
        return "timeout", message


@dataclass
class _Worker:
    device: str
    process: subprocess.Popen[bytes]
    pipe: Connection
    trial: Trial | None = None
    watchdog: Watchdog = field(default_factory=Watchdog)
    ready: bool = False
    failed_starts: int = 0  # workers in a row that ended before they were ready


class ProcessEngine:
    """devices: one name per worker. A device that is named several times runs several trials at once if they fit.

    models: from where workers import models that are not built in (`models.import_path`).
    """

    def __init__(
        self, folder: Path, devices: Sequence[str], *, timeout: float | None = None, models: Sequence[str] = ()
    ) -> None:
        self.folder, self.timeout, self.models = Path(folder), timeout, tuple(models)
        self.max_running, self.devices = len(devices), tuple(devices)
        self._workers = [self._new_worker(device) for device in devices]
        self._usable: dict[str, int] = {}  # bytes by device, before its first trial

    def start(self, trial: Trial) -> str | None:
        for worker in self._workers:
            if worker.trial is None and self._has_room(worker.device, trial):
                self._give(worker, trial)
                return worker.device
        return None

    def wait(self, on_progress: Report) -> list[TrialResult | Trial]:
        ended: list[TrialResult | Trial] = []
        by_pipe = {worker.pipe: worker for worker in self._workers}
        for pipe in wait(list(by_pipe), timeout=_WAIT_SECONDS):
            ended += self._receive(by_pipe[pipe], on_progress)  # type: ignore[index]
        for worker in self._workers:
            late = None if worker.trial is None else worker.watchdog.check(worker.trial, self.timeout)
            if late is not None:
                self._count_failed_start(worker, "the last one reported nothing")
                ended.append(self._lose(worker, *late))
        return ended

    def stop(self) -> None:
        for worker in self._workers:
            if worker.trial is not None:
                _send(worker.pipe, {"stop": True})

    def close(self) -> None:
        for worker in self._workers:
            _end(worker)

    def _give(self, worker: _Worker, trial: Trial) -> None:
        worker.trial, worker.watchdog = trial, Watchdog()
        _send(worker.pipe, {"trial": trial.to_json()})

    def _receive(self, worker: _Worker, on_progress: Report) -> list[TrialResult | Trial]:
        try:
            message = json.loads(worker.pipe.recv_bytes())
        except (EOFError, OSError):
            return self._replace_dead(worker)
        if "ready" in message:
            worker.ready, worker.failed_starts = True, 0
            return []
        if "progress" in message:
            from grash.training.loop import Progress

            worker.watchdog.progressed()
            if worker.trial is not None:
                on_progress(worker.trial, Progress(**message["progress"]))
            return []
        if "fatal" in message:
            raise GrashError(f"A worker on {worker.device} could not start: {message['fatal']}")
        from grash.kernels.device import count_compiling

        n_running = sum(other.trial is not None for other in self._workers)
        count_compiling(message.get("compiled", 0.0) / n_running)  # workers compile at the same time
        trial, worker.trial = worker.trial, None
        assert trial is not None
        ended = read_ended(trial, message)
        if isinstance(ended, TrialResult) and ended.status == "killed":  # the worker ends itself
            self._replace(worker)
        return [ended]

    def _replace_dead(self, worker: _Worker) -> list[TrialResult | Trial]:
        """Replace a worker that has ended. If it was never ready, its trial goes to the next worker."""
        with suppress(subprocess.TimeoutExpired):
            worker.process.wait(5)
        code, trial = worker.process.returncode, worker.trial
        if worker.ready and trial is not None:
            return [self._lose(worker, "killed", f"Its worker ended unexpectedly (exit code {code}).")]
        self._count_failed_start(worker, f"exit code {code}")
        self._replace(worker)
        if trial is not None:
            self._give(worker, trial)
        return []

    def _count_failed_start(self, worker: _Worker, how: str) -> None:
        """Count a worker that was never ready; raise after too many in a row."""
        worker.failed_starts += not worker.ready
        if worker.failed_starts >= _MAX_FAILED_STARTS:
            raise GrashError(
                f"{_MAX_FAILED_STARTS} workers in a row on {worker.device} ended before they were ready ({how}): see "
                f"their output above. `--engine sequential` runs the search without workers."
            )

    def _lose(self, worker: _Worker, status: Status, message: str) -> TrialResult:
        trial = worker.trial
        assert trial is not None
        self._replace(worker)
        return trial.result(status, message=message, device=worker.device)

    def _replace(self, worker: _Worker) -> None:
        _end(worker)
        new = self._new_worker(worker.device)
        worker.process, worker.pipe, worker.trial, worker.ready = new.process, new.pipe, None, False

    def _new_worker(self, device: str) -> _Worker:
        here, there = multiprocessing.Pipe()
        arguments = (sys.path, there.fileno(), str(self.folder), device, self.timeout, os.getpid(), self.models)
        process = subprocess.Popen(
            [sys.executable, "-c", _START, *(json.dumps(argument) for argument in arguments)],
            stdin=subprocess.DEVNULL,
            pass_fds=[there.fileno()],
        )
        there.close()
        return _Worker(device, process, here)

    def _has_room(self, device: str, trial: Trial) -> bool:
        """Return whether the trial fits in the device's memory with those that run there; alone it is always tried."""
        running = [s.trial.n_bytes for s in self._workers if s.device == device and s.trial is not None]
        if running:
            return sum(running) + trial.n_bytes <= self._usable.get(device, 0)
        import torch

        from grash.engines.memory import USABLE_SHARE, free_bytes

        self._usable[device] = int(USABLE_SHARE * free_bytes(torch.device(device)))
        return True


def main(arguments: Sequence[str]) -> None:
    """Entry point of a worker, with the arguments of `ProcessEngine._new_worker`."""
    handle, *rest = (json.loads(argument) for argument in arguments[2:])
    work(Connection(handle), *rest)


def work(
    pipe: Connection, folder: str, device: str, timeout: float | None, driver: int, models: Sequence[str] = ()
) -> None:
    """Run a worker: receive trials, send progress and results, until the pipe closes."""
    for number in (signal.SIGINT, signal.SIGTERM):  # they reach the whole process group; the driver handles them
        signal.signal(number, signal.SIG_IGN)
    _die_with(driver)
    from grash.engines.local import TrialRunner
    from grash.models import import_model

    try:
        for path in models:
            import_model(path)
        runner = TrialRunner.open(Path(folder), device=device, timeout=timeout)
    except Exception as error:
        _send(pipe, {"fatal": str(error)})
        return
    _send(pipe, {"ready": True})
    reported = 0.0

    def report(trial: Trial, progress: Progress) -> None:
        nonlocal reported
        if pipe.poll():
            _receive(pipe)  # the only message to a busy worker is to stop
            raise KeyboardInterrupt
        if time.monotonic() - reported > _REPORT_SECONDS:
            reported = time.monotonic()
            _send(pipe, {"progress": asdict(progress)})

    while True:
        message = _receive(pipe)
        if "trial" not in message:
            continue
        reported = 0.0  # the first progress is sent at once: the time limit starts with it
        ended = run_trial(runner, Trial.from_json(message["trial"]), report)
        _send(pipe, ended)
        if ended.get("result", {}).get("status") == "killed":  # a new process gets a new context of the GPU
            return


def run_trial(runner: TrialRunner, trial: Trial, report: Report) -> dict[str, Any]:
    """Run a trial in a worker and return the message on how it ended: a result, stopped, or a full disk."""
    from grash.kernels.device import compile_seconds

    before = compile_seconds()
    try:
        result = runner.run(trial, report).to_json()
        return {"result": result, "compiled": compile_seconds() - before}
    except KeyboardInterrupt:
        return {"stopped": True}
    except OutputError as error:
        return {"disk_full": str(runner.folder), "reason": error.reason}


def read_ended(trial: Trial, message: dict[str, Any]) -> TrialResult | Trial:
    """Return what `run_trial` of a worker reported, for `Engine.wait`; raise OutputError for a full disk."""
    if "disk_full" in message:
        raise OutputError(message["disk_full"], message["reason"])
    return trial if "stopped" in message else TrialResult.from_json(message["result"])


def _send(pipe: Connection, message: dict[str, Any]) -> None:
    with suppress(OSError):  # the receiver is gone: `wait` notices a dead worker, the kernel a dead driver
        pipe.send_bytes(json.dumps(message).encode())


def _receive(pipe: Connection) -> dict[str, Any]:
    try:
        return json.loads(pipe.recv_bytes())
    except (EOFError, OSError):
        os._exit(0)  # the driver is gone


def _end(worker: _Worker) -> None:
    worker.process.kill()
    worker.process.wait()
    worker.pipe.close()


def _die_with(driver: int) -> None:
    """Ask the kernel (Linux) to end this process when its driver ends for any reason."""
    try:
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    except (OSError, AttributeError):
        return
    if os.getppid() != driver:
        os._exit(0)
