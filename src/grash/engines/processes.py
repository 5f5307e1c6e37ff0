"""A worker process per slot, kept for the whole search: the graph is mapped and torch imported once.

Driver and worker exchange JSON over a pipe. A worker that dies is replaced, and its trial reported as killed; when the
driver dies, the kernel ends its workers, so that nobody writes to the run folder but the next driver. A worker is a
fresh interpreter that knows nothing of the user's script, so that a script needs no `if __name__ == "__main__"`.
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
from typing import Any

from grash.errors import GrashError, OutputError
from grash.search.trial import Status, Trial, TrialProgress, TrialResult

# = How long a driver bears that a worker says nothing about its trial.
# =
# = A worker ends a trial of its own that takes too long; this is for one that cannot, because it hangs. The time of a trial
# = runs from the first heartbeat on, where trials have a limit: what comes before (the graph is peeled and cut, kernels are
# = compiled) is no time of the trial, and another worker would have to do it again. It has a limit of its own, far above
# = what it takes (305 million triples are peeled in 96 s); beyond it is the machine's fault, and the trial is tried again.

GRACE = 30.0  # seconds beyond its limit after which a trial that says nothing is given up
UNHEARD = 7200.0  # seconds in which a worker says its first word of a trial, or more if a trial may take longer


class Silence:
    """Of the worker of one trial."""

    def __init__(self) -> None:
        self.since, self.begun = time.monotonic(), False  # the last heartbeat, or when the worker got the trial

    def heard(self) -> None:
        self.since, self.begun = time.monotonic(), True

    def verdict(self, task: Trial, timeout: float | None) -> tuple[Status, str] | None:
        """How the trial is given up and why, or None; a final training that has begun has no limit."""
        silent = time.monotonic() - self.since
        if not self.begun:
            limit = max(UNHEARD, timeout or 0.0)
            why = f"Its worker said nothing for {limit:g} s, and its training had not begun."
            return ("killed", why) if silent > limit else None
        if timeout is None or task.final or silent <= timeout + GRACE:
            return None
        return (
            "timeout",
            f"It said nothing for {timeout + GRACE:g} s, where a trial may take {timeout:g} s (--trial-timeout).",
        )


_PATIENCE = 1.0  # seconds that `wait` sleeps at most
_FREE_SHARE = 0.9
_STILLBORN = 3  # workers of a slot in a row that may end before they are ready
_PR_SET_PDEATHSIG = 1
_BEGIN = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[1]); import grash.engines.processes as p; p.main(sys.argv)"
)


@dataclass
class _Slot:
    device: str
    process: subprocess.Popen[bytes]
    pipe: Connection
    task: Trial | None = None
    silence: Silence = field(default_factory=Silence)
    ready: bool = False
    stillborn: int = 0  # workers in a row that ended before they were ready


class ProcessEngine:
    """devices: one name per slot; a device that stands there several times runs several trials at once, as many as its
    free memory admits."""

    def __init__(self, folder: Path, devices: Sequence[str], *, timeout: float | None = None) -> None:
        self.folder, self.timeout = Path(folder), timeout
        self.n_slots, self.devices = len(devices), tuple(devices)
        self._slots = [self._worker(device) for device in devices]
        self._free: dict[str, int] = {}

    def start(self, task: Trial) -> str | None:
        for slot in self._slots:
            if slot.task is None and self._has_room(slot.device, task):
                slot.task, slot.silence = task, Silence()
                _send(slot.pipe, {"task": asdict(task)})
                return slot.device
        return None

    def wait(self, tell: Callable[[TrialProgress], None]) -> list[TrialResult | Trial]:
        ended: list[TrialResult | Trial] = []
        by_pipe = {slot.pipe: slot for slot in self._slots}
        for pipe in wait(list(by_pipe), timeout=_PATIENCE):
            ended += self._hear(by_pipe[pipe], tell)  # type: ignore[index]
        for slot in self._slots:
            late = None if slot.task is None else slot.silence.verdict(slot.task, self.timeout)
            if late is not None:
                self._count_stillborn(slot, "the last one said nothing")
                ended.append(self._lost(slot, *late))
        return ended

    def stop(self) -> None:
        for slot in self._slots:
            if slot.task is not None:
                _send(slot.pipe, {"stop": True})

    def close(self) -> None:
        for slot in self._slots:
            slot.process.kill()
            slot.process.wait()
            slot.pipe.close()

    def _hear(self, slot: _Slot, tell: Callable[[TrialProgress], None]) -> list[TrialResult | Trial]:
        try:
            message = json.loads(slot.pipe.recv_bytes())
        except (EOFError, OSError):
            return self._gone(slot)
        if "ready" in message:
            slot.ready, slot.stillborn = True, 0
            return []
        if "heartbeat" in message:
            slot.silence.heard()
            tell(TrialProgress(**message["heartbeat"]))
            return []
        task, slot.task = slot.task, None
        if "full" in message:
            raise OutputError(
                message["full"], message["reason"], then="The search stops here and goes on with `grash resume`."
            )
        if "fatal" in message:
            raise GrashError(f"A worker on {slot.device} could not begin: {message['fatal']}")
        if "stopped" in message:
            return [] if task is None else [task]
        result = TrialResult.from_json(message["result"])
        if result.status == "killed":  # it ends itself, and the next task is not for it
            self._replace(slot)
        return [result]

    def _gone(self, slot: _Slot) -> list[TrialResult | Trial]:
        """A worker has ended. One that was never ready is no fault of its trial, which the next one gets."""
        with suppress(subprocess.TimeoutExpired):
            slot.process.wait(5)
        code, task = slot.process.returncode, slot.task
        if slot.ready and task is not None:
            return [self._lost(slot, "killed", f"Its worker ended unexpectedly (exit code {code}).")]
        self._count_stillborn(slot, f"exit code {code}")
        self._replace(slot)
        if task is not None:
            slot.task, slot.silence = task, Silence()
            _send(slot.pipe, {"task": asdict(task)})
        return []

    def _count_stillborn(self, slot: _Slot, how: str) -> None:
        """Counts a worker that ends now if it was never ready; too many in a row are an error of the search."""
        slot.stillborn += not slot.ready
        if slot.stillborn >= _STILLBORN:
            raise GrashError(
                f"{_STILLBORN} workers in a row on {slot.device} ended before they could begin ({how}); "
                f"what they said stands above. `--engine sequential` runs the search without workers."
            )

    def _lost(self, slot: _Slot, status: Status, message: str) -> TrialResult:
        task = slot.task
        assert task is not None
        self._replace(slot)
        return TrialResult(task.round, task.number, task.attempt, status, message=message, device=slot.device)

    def _replace(self, slot: _Slot) -> None:
        slot.process.kill()
        slot.process.wait()
        slot.pipe.close()
        fresh = self._worker(slot.device)
        slot.process, slot.pipe, slot.task, slot.ready = fresh.process, fresh.pipe, None, False

    def _worker(self, device: str) -> _Slot:
        here, there = multiprocessing.Pipe()
        words = (sys.path, there.fileno(), str(self.folder), device, self.timeout, os.getpid())
        process = subprocess.Popen(
            [sys.executable, "-c", _BEGIN, *(json.dumps(word) for word in words)],
            stdin=subprocess.DEVNULL,
            pass_fds=[there.fileno()],
        )
        there.close()
        return _Slot(device, process, here)

    def _has_room(self, device: str, task: Trial) -> bool:
        """Whether the device's memory admits the trial beside those that run there; alone it is always tried."""
        beside = [s.task.n_bytes for s in self._slots if s.device == device and s.task is not None]
        if not beside:
            self._free[device] = _free_bytes(device)
            return True
        return sum(beside) + task.n_bytes <= _FREE_SHARE * self._free.get(device, 0)


def main(words: Sequence[str]) -> None:
    """Where a worker begins: the arguments are what `ProcessEngine._worker` gives."""
    handle, folder, device, timeout, driver = (json.loads(word) for word in words[2:])
    work(Connection(handle), folder, device, timeout, driver)


def work(pipe: Connection, folder: str, device: str, timeout: float | None, driver: int) -> None:
    """The life of a worker: a task in, heartbeats and a result out, until the pipe closes."""
    for number in (signal.SIGINT, signal.SIGTERM):  # these go to the whole group, and are the driver's to handle
        signal.signal(number, signal.SIG_IGN)
    _die_with(driver)
    from grash.engines.trial import TrialRunner
    from grash.search.graphs import SearchGraphs
    from grash.search.run_folder import cores_file, dataset_folder, read_dataset, read_settings

    try:
        settings = read_settings(Path(folder))
        cores = cores_file(dataset_folder(Path(folder)), settings.degree)
        graphs = SearchGraphs(read_dataset(Path(folder)), settings, cache=cores)
        runner = TrialRunner(graphs, Path(folder), device=device, timeout=timeout)
    except Exception as error:
        _send(pipe, {"fatal": str(error)})
        return
    _send(pipe, {"ready": True})
    told = 0.0

    def tell(heartbeat: TrialProgress) -> None:
        nonlocal told
        if pipe.poll():
            _receive(pipe)  # the only message to a busy worker is: stop
            raise KeyboardInterrupt
        if time.monotonic() - told > 0.5:
            told = time.monotonic()
            _send(pipe, {"heartbeat": asdict(heartbeat)})

    while True:
        message = _receive(pipe)
        if "task" not in message:
            continue
        content = message["task"]
        task = Trial(**{**content, "fractions": tuple(content["fractions"])})
        told = 0.0  # that its training begins is said at once: its time limit runs from then on
        try:
            result = runner.run(task, tell)
            _send(pipe, {"result": result.to_json()})
            if result.status == "killed":  # its card's context is lost: a fresh process gets a fresh one
                return
        except KeyboardInterrupt:
            _send(pipe, {"stopped": True})
        except OutputError as error:
            _send(pipe, {"full": str(folder), "reason": error.reason})


def _send(pipe: Connection, message: dict[str, Any]) -> None:
    with suppress(OSError):  # whoever listens there is gone: `wait` notices a worker, the kernel a driver
        pipe.send_bytes(json.dumps(message).encode())


def _receive(pipe: Connection) -> dict[str, Any]:
    try:
        return json.loads(pipe.recv_bytes())
    except (EOFError, OSError):
        os._exit(0)  # the driver is gone


def _die_with(driver: int) -> None:
    """Asks the kernel (Linux) to end this process when its driver ends, however that happens."""
    try:
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    except (OSError, AttributeError):
        return
    if os.getppid() != driver:
        os._exit(0)


def _free_bytes(device: str) -> int:
    from grash.engines.device import choose_device, free_bytes

    return free_bytes(choose_device(device))
