"""Run trials in worker processes, one per slot, kept for the whole search: graph and torch are loaded once.

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
    from grash.training.loop import Progress

Report = Callable[[Trial, "Progress"], None]
GRACE_SECONDS = 30.0  # beyond its time limit, for a trial that reports nothing
START_SECONDS = 7200.0  # until the first report of a trial; far above the 96 s that peeling 305 million triples takes
_WAIT_SECONDS = 1.0  # at most, in `wait`
_REPORT_SECONDS = 0.5  # between two progress messages
_USABLE_SHARE = 0.9  # of a device's free memory
_MAX_FAILED_STARTS = 3  # of workers of a slot, in a row
_PR_SET_PDEATHSIG = 1
_START = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[1]); import grash.engines.processes as p; p.main(sys.argv)"
)


class Watchdog:
    """Decides when to give up a trial whose worker hangs; a worker itself ends a trial that takes too long.

    The time limit of a trial starts with its first progress report. Before that, the worker peels the graph and
    compiles kernels, which another worker would have to repeat. If that takes too long, the machine is at fault and
    the trial is tried again.
    """

    def __init__(self) -> None:
        self.since, self.started = time.monotonic(), False  # the last report, or when the worker got the trial

    def progressed(self) -> None:
        self.since, self.started = time.monotonic(), True

    def check(self, trial: Trial, timeout: float | None) -> tuple[Status, str] | None:
        """Return status and message if the trial is given up. A final training that has started has no limit."""
        silent = time.monotonic() - self.since
        if not self.started:
            limit = max(START_SECONDS, timeout or 0.0)
            message = f"Its worker reported nothing for {limit:g} s, and its training had not started."
            return ("killed", message) if silent > limit else None
        if timeout is None or trial.final or silent <= timeout + GRACE_SECONDS:
            return None
        message = (
            f"It reported nothing for {timeout + GRACE_SECONDS:g} s. Its time limit is {timeout:g} s (--trial-timeout)."
        )
        return "timeout", message


@dataclass
class _Slot:
    device: str
    process: subprocess.Popen[bytes]
    pipe: Connection
    trial: Trial | None = None
    watchdog: Watchdog = field(default_factory=Watchdog)
    ready: bool = False
    failed_starts: int = 0  # workers in a row that ended before they were ready


class ProcessEngine:
    """devices: one name per slot. A device that is named several times runs several trials at once if they fit."""

    def __init__(self, folder: Path, devices: Sequence[str], *, timeout: float | None = None) -> None:
        self.folder, self.timeout = Path(folder), timeout
        self.n_slots, self.devices = len(devices), tuple(devices)
        self._slots = [self._new_worker(device) for device in devices]
        self._free: dict[str, int] = {}

    def start(self, trial: Trial) -> str | None:
        for slot in self._slots:
            if slot.trial is None and self._has_room(slot.device, trial):
                self._give(slot, trial)
                return slot.device
        return None

    def wait(self, on_progress: Report) -> list[TrialResult | Trial]:
        ended: list[TrialResult | Trial] = []
        by_pipe = {slot.pipe: slot for slot in self._slots}
        for pipe in wait(list(by_pipe), timeout=_WAIT_SECONDS):
            ended += self._receive(by_pipe[pipe], on_progress)  # type: ignore[index]
        for slot in self._slots:
            late = None if slot.trial is None else slot.watchdog.check(slot.trial, self.timeout)
            if late is not None:
                self._count_failed_start(slot, "the last one reported nothing")
                ended.append(self._lose(slot, *late))
        return ended

    def stop(self) -> None:
        for slot in self._slots:
            if slot.trial is not None:
                _send(slot.pipe, {"stop": True})

    def close(self) -> None:
        for slot in self._slots:
            _end(slot)

    def _give(self, slot: _Slot, trial: Trial) -> None:
        slot.trial, slot.watchdog = trial, Watchdog()
        _send(slot.pipe, {"trial": trial.to_json()})

    def _receive(self, slot: _Slot, on_progress: Report) -> list[TrialResult | Trial]:
        try:
            message = json.loads(slot.pipe.recv_bytes())
        except (EOFError, OSError):
            return self._replace_dead(slot)
        if "ready" in message:
            slot.ready, slot.failed_starts = True, 0
            return []
        if "progress" in message:
            from grash.training.loop import Progress

            slot.watchdog.progressed()
            if slot.trial is not None:
                on_progress(slot.trial, Progress(**message["progress"]))
            return []
        trial, slot.trial = slot.trial, None
        if "disk_full" in message:
            raise OutputError(message["disk_full"], message["reason"])
        if "fatal" in message:
            raise GrashError(f"A worker on {slot.device} could not start: {message['fatal']}")
        if "stopped" in message:
            return [] if trial is None else [trial]
        result = TrialResult.from_json(message["result"])
        if result.status == "killed":  # the worker ends itself and must not get the next trial
            self._replace(slot)
        return [result]

    def _replace_dead(self, slot: _Slot) -> list[TrialResult | Trial]:
        """Replace a worker that has ended. If it was never ready, its trial goes to the next worker."""
        with suppress(subprocess.TimeoutExpired):
            slot.process.wait(5)
        code, trial = slot.process.returncode, slot.trial
        if slot.ready and trial is not None:
            return [self._lose(slot, "killed", f"Its worker ended unexpectedly (exit code {code}).")]
        self._count_failed_start(slot, f"exit code {code}")
        self._replace(slot)
        if trial is not None:
            self._give(slot, trial)
        return []

    def _count_failed_start(self, slot: _Slot, how: str) -> None:
        """Count a worker that was never ready; raise after too many in a row."""
        slot.failed_starts += not slot.ready
        if slot.failed_starts >= _MAX_FAILED_STARTS:
            raise GrashError(
                f"{_MAX_FAILED_STARTS} workers in a row on {slot.device} ended before they were ready ({how}): see "
                f"their output above. `--engine sequential` runs the search without workers."
            )

    def _lose(self, slot: _Slot, status: Status, message: str) -> TrialResult:
        trial = slot.trial
        assert trial is not None
        self._replace(slot)
        return trial.result(status, message=message, device=slot.device)

    def _replace(self, slot: _Slot) -> None:
        _end(slot)
        new = self._new_worker(slot.device)
        slot.process, slot.pipe, slot.trial, slot.ready = new.process, new.pipe, None, False

    def _new_worker(self, device: str) -> _Slot:
        here, there = multiprocessing.Pipe()
        arguments = (sys.path, there.fileno(), str(self.folder), device, self.timeout, os.getpid())
        process = subprocess.Popen(
            [sys.executable, "-c", _START, *(json.dumps(argument) for argument in arguments)],
            stdin=subprocess.DEVNULL,
            pass_fds=[there.fileno()],
        )
        there.close()
        return _Slot(device, process, here)

    def _has_room(self, device: str, trial: Trial) -> bool:
        """Return whether the trial fits in the device's memory with those that run there; alone it is always tried."""
        running = [s.trial.n_bytes for s in self._slots if s.device == device and s.trial is not None]
        if not running:
            self._free[device] = _free_bytes(device)
            return True
        return sum(running) + trial.n_bytes <= _USABLE_SHARE * self._free.get(device, 0)


def main(arguments: Sequence[str]) -> None:
    """Entry point of a worker, with the arguments of `ProcessEngine._new_worker`."""
    handle, folder, device, timeout, driver = (json.loads(argument) for argument in arguments[2:])
    work(Connection(handle), folder, device, timeout, driver)


def work(pipe: Connection, folder: str, device: str, timeout: float | None, driver: int) -> None:
    """Run a worker: receive trials, send progress and results, until the pipe closes."""
    for number in (signal.SIGINT, signal.SIGTERM):  # they reach the whole process group; the driver handles them
        signal.signal(number, signal.SIG_IGN)
    _die_with(driver)
    from grash.engines.trial import TrialRunner

    try:
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
        try:
            result = runner.run(Trial.from_json(message["trial"]), report)
            _send(pipe, {"result": result.to_json()})
            if result.status == "killed":  # the GPU's context is lost: a new process gets a new one
                return
        except KeyboardInterrupt:
            _send(pipe, {"stopped": True})
        except OutputError as error:
            _send(pipe, {"disk_full": str(folder), "reason": error.reason})


def _send(pipe: Connection, message: dict[str, Any]) -> None:
    with suppress(OSError):  # the receiver is gone: `wait` notices a dead worker, the kernel a dead driver
        pipe.send_bytes(json.dumps(message).encode())


def _receive(pipe: Connection) -> dict[str, Any]:
    try:
        return json.loads(pipe.recv_bytes())
    except (EOFError, OSError):
        os._exit(0)  # the driver is gone


def _end(slot: _Slot) -> None:
    slot.process.kill()
    slot.process.wait()
    slot.pipe.close()


def _die_with(driver: int) -> None:
    """Ask the kernel (Linux) to end this process when its driver ends for any reason."""
    try:
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    except (OSError, AttributeError):
        return
    if os.getppid() != driver:
        os._exit(0)


def _free_bytes(device: str) -> int:
    from grash.engines.device import choose_device, free_bytes

    return free_bytes(choose_device(device))
