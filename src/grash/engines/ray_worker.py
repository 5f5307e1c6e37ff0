"""A worker of engine `ray`: an actor on some node, kept while trials of its size come; the graph is mapped and torch
imported once.

Run folder and graph lie at a path that every node sees. What goes through Ray is JSON: tasks, heartbeats, results. Ray
ends an actor with its driver; should one be left behind, by a head that died, it ends itself when another driver holds
the run folder.
"""

from __future__ import annotations

import json
import os
import platform
import socket
import threading
import time
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from grash.errors import GrashError, OutputError
from grash.search.folder import LOCK_FILE, cores_place, dataset_place, read_dataset, read_settings
from grash.search.trial import Heartbeat, Task
from grash.version import __version__

if TYPE_CHECKING:
    from grash.engines.trial import TrialRunner

_LOOK = 0.5  # seconds between two looks at who holds the run folder


class RayWorker:
    """`begin` once, then `run` a task at a time. `heard` and `stop` are called beside it, in a thread of their own."""

    def __init__(self, folder: str, device: str, timeout: float | None, holder: str) -> None:
        """holder: what the lock file says while this worker's driver lives."""
        self.folder, self.device, self.timeout, self.holder = Path(folder), device, timeout, holder
        self._runner: TrialRunner | None = None
        self._heartbeat: Heartbeat | None = None
        self._stopping = threading.Event()
        self._looked = 0.0

    def begin(self) -> str:
        """Where it is and what it has, or why it cannot begin."""
        try:
            return json.dumps(self._begin())
        except Exception as error:  # whether it is the node's fault or everybody's is seen from all of them
            named = (
                str(error) if isinstance(error, GrashError) else f"{type(error).__name__}: {error}".rstrip(".") + "."
            )
            return json.dumps({"fault": named, "id": _node_id()})

    def run(self, task: str) -> str:
        """What became of a task: a result, or that it was stopped, or that the disk is full."""
        content = json.loads(task)
        given = Task(**{**content, "fractions": tuple(content["fractions"])})
        assert self._runner is not None
        self._heartbeat = None
        try:
            self._look()
            result = self._runner.run(given, self._tell)
            place = f"{socket.gethostname()}/{result.device}"
            return json.dumps({"result": replace(result, device=place).to_json()})
        except KeyboardInterrupt:
            return json.dumps({"stopped": True})
        except OutputError as error:
            return json.dumps({"full": str(self.folder), "reason": error.reason})

    def heard(self) -> str | None:
        """The last heartbeat of the running trial."""
        beat = self._heartbeat
        return None if beat is None else json.dumps(asdict(beat))

    def stop(self) -> None:
        self._stopping.set()

    def _begin(self) -> dict[str, Any]:
        settings = read_settings(self.folder)
        import torch

        from grash.engines.trial import TrialRunner
        from grash.search.graphs import SearchGraphs

        cores = cores_place(dataset_place(self.folder), settings.count)
        graphs = SearchGraphs(read_dataset(self.folder), settings, cache=cores)
        self._runner = TrialRunner(graphs, self.folder, device=self.device, timeout=self.timeout)
        return {
            "node": socket.gethostname(),
            "id": _node_id(),
            "pid": os.getpid(),
            "card_bytes": None if self.device == "cpu" else int(torch.cuda.mem_get_info(0)[1]),
            "versions": versions(),
        }

    def _tell(self, heartbeat: Heartbeat) -> None:
        self._heartbeat = heartbeat
        if self._stopping.is_set():
            raise KeyboardInterrupt
        if time.monotonic() - self._looked > _LOOK:
            self._look()

    def _look(self) -> None:
        """Ends this process if its driver does not hold the run folder any more: the next one must be alone there."""
        self._looked = time.monotonic()
        if holder_of(self.folder) not in (self.holder, None):
            os._exit(0)


def _node_id() -> str:
    """Ray's, of the node that this process is on."""
    import ray

    return str(ray.get_runtime_context().get_node_id())


def holder_of(folder: Path) -> str | None:
    """Who holds a run folder, as its lock file says it; None where that cannot be read now."""
    try:
        return (folder / LOCK_FILE).read_text(encoding="utf-8")
    except OSError:
        return None


def versions() -> dict[str, str]:
    """Of what results depend on: equal on every node."""
    import torch

    return {
        "grash": __version__,
        "torch": torch.__version__.partition("+")[0],
        "python": platform.python_version().rpartition(".")[0],
    }
