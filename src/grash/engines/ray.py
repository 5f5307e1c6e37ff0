"""Run trials on a Ray cluster: one worker (an actor) per running trial, sized by the trial's planned memory.

The engine requests a worker when no idle one is large enough, and ends workers that are too small for what comes next.
Ray chooses the node. A node or worker that dies is a killed trial, which the driver tries again (docs/decisions/0029).
Run folder and graph must be at the same path on every node; trials, progress and results travel as JSON.
"""

from __future__ import annotations

import json
import logging
import os
import platform
import re
import socket
import threading
import time
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from grash import __version__
from grash.data.dataset import Dataset
from grash.engines.memory import USABLE_SHARE, MemoryPlan, plan_memory
from grash.engines.processes import Report, Watchdog, read_ended, run_trial
from grash.errors import ConfigError, GrashError
from grash.formatting import format_bytes
from grash.kernels.storage import Placement
from grash.optional import optional_import
from grash.search.run_folder import LOCK_FILE, read_dataset
from grash.search.trial import Status, Trial, TrialResult
from grash.training.config import make_config
from grash.training.loop import Progress

if TYPE_CHECKING:
    from grash.engines.local import TrialRunner

log = logging.getLogger(__name__)

_WAIT_SECONDS = 0.5  # at most, in `wait`
_WAIT_SECONDS_STARTING = 0.1  # the same while workers start
_MAX_REQUESTED = 16  # workers that are requested and have not started
_WARN_SECONDS = 30.0  # without a worker for a trial, before a warning
TRIALS_PER_GPU = 3  # at most, if they can share it; the paper used three
_CONNECT_SECONDS = 10.0  # for the head of a cluster to accept a connection
_PROCESS_BYTES = 512 << 20  # of a worker before its first trial: an interpreter with torch, numba and Ray
_MAX_FAILED_STARTS = 3  # in a row on a node
_SAME_FAILURE_SECONDS = 5.0  # failures within it count once: what happens to a node happens to all its workers
_OWNER_SECONDS = 0.5  # between two checks of who owns the run folder


@dataclass(frozen=True)
class Resources:
    """What Ray reserves on a node for one worker."""

    cpus: int
    memory: int
    gpus: float = 0.0

    def covers(self, other: Resources) -> bool:
        return self.cpus >= other.cpus and self.memory >= other.memory and self.gpus >= other.gpus

    def __str__(self) -> str:
        gpus = f", {self.gpus:.2g} of a GPU" if self.gpus else ""
        return f"{_cpus(self.cpus)}, {format_bytes(self.memory)}{gpus}"


@dataclass(eq=False)
class _Worker:
    resources: Resources
    actor: Any
    starting: Any  # reference to what `begin` returns; None once it has started
    node: str = ""
    pid: int = 0
    trial: Trial | None = None
    result: Any = None  # reference to what `run` returns
    progress: Any = None  # reference to what `progress` returns
    last_progress: Progress | None = None
    watchdog: Watchdog = field(default_factory=Watchdog)


class RayEngine:
    """address: HOST:PORT of the cluster's head, or None (see `connect`). device: auto, cpu or cuda. workers: trials
    at a time on all nodes together. end_threads: of a finalist that is trained to the end."""

    def __init__(
        self,
        folder: Path,
        *,
        address: str | None = None,
        device: str = "auto",
        threads: int = 1,
        end_threads: int = 1,
        final_threads: int = 1,
        workers: int | None = None,
        timeout: float | None = None,
    ) -> None:
        self.folder, self.timeout = Path(folder).resolve(), timeout
        self.threads, self.end_threads, self.final_threads = threads, end_threads, final_threads
        self._ray, self._is_ours = connect(address)
        self.max_running = workers or 1024
        self._gpu = device == "cuda" or (device == "auto" and any(n.gpus for n in alive_nodes(self._ray)))
        # The driver plans memory for this device; without a GPU it can plan for a CPU only.
        self.devices: tuple[str, ...] = ("cuda:0" if self._gpu and torch.cuda.is_available() else "cpu",)
        self._owner = lock_owner(self.folder)
        self._actor_class = self._ray.remote(max_restarts=0, concurrency_groups={"listen": 1})(RayWorker)
        self._workers: list[_Worker] = []
        self._gpu_bytes: int | None = None
        self._probe: Any = None
        self._failed_starts, self._last_start = FailedStarts(), time.monotonic()

    def start(self, trial: Trial) -> str | None:
        self._collect_started()
        needed = self._resources(trial)
        if needed is None:
            return None
        idle = [w for w in self._workers if w.starting is None and w.trial is None and w.resources.covers(needed)]
        if not idle:
            self._request_worker(needed, trial)
            return None
        worker = min(idle, key=lambda w: (w.resources.gpus, w.resources.memory))
        worker.trial, worker.watchdog = trial, Watchdog()
        worker.result = worker.actor.run.remote(json.dumps(trial.to_json()))
        self._last_start = time.monotonic()
        return "cuda" if self._gpu else "cpu"

    def wait(self, on_progress: Report) -> list[TrialResult | Trial]:
        busy = {w.result: w for w in self._workers if w.trial is not None}
        if not busy:
            return []
        starting = any(w.starting is not None for w in self._workers)
        done, _ = self._ray.wait(list(busy), timeout=_WAIT_SECONDS_STARTING if starting else _WAIT_SECONDS)
        ended: list[TrialResult | Trial] = [self._ended(busy[ref]) for ref in done]
        for worker in list(self._workers):
            if worker.trial is None:
                continue
            self._poll_progress(worker, on_progress)
            late = worker.watchdog.check(worker.trial, self.timeout)
            if late is not None:
                ended.append(self._lose(worker, *late))
        return ended

    def stop(self) -> None:
        for worker in self._workers:
            if worker.trial is not None:
                worker.actor.stop.options(concurrency_group="listen").remote()

    def close(self) -> None:
        for worker in sorted(self._workers, key=lambda w: w.starting is None):  # or waiting ones would start now
            self._end(worker)
        if self._is_ours:
            self._is_ours = False
            self._ray.shutdown()

    def _collect_started(self) -> None:
        """Register workers that have started. One that could not start is no fault of a trial."""
        waiting = {w.starting: w for w in self._workers if w.starting is not None}
        done, _ = self._ray.wait(list(waiting), num_returns=len(waiting), timeout=0) if waiting else ([], [])
        for ref in done:
            worker, nodes = waiting[ref], alive_nodes(self._ray)
            try:
                answer = json.loads(self._ray.get(ref))
                reason = answer.get("error")
                where = next((node for node in nodes if node.id == answer["id"]), None)
            except self._ray.exceptions.RayError as error:
                reason, where = cause_of(error), node_of(error, nodes)
            if reason is not None:
                self._failed_starts.add(where, reason)
                self._end(worker)
                continue
            check_versions(answer)
            self._failed_starts.clear(answer["id"])
            worker.starting, worker.node, worker.pid = None, answer["node"], answer["pid"]
            if answer["gpu_bytes"]:
                self._gpu_bytes = min(answer["gpu_bytes"], self._gpu_bytes or answer["gpu_bytes"])

    def _resources(self, trial: Trial) -> Resources | None:
        """Return what the trial needs; None while no node can run it, or the size of a GPU is unknown."""
        nodes = self._usable_nodes()
        if not nodes:
            self._gpu_bytes = None  # new nodes may have other GPUs
        known = bool(nodes) and (not self._gpu or self._gpu_bytes is not None)
        if not known and not (self._probe_node(trial) and nodes):
            return None
        largest, plan, threads = max(node.memory for node in nodes), None, self.threads
        if trial.in_full:
            wanted = self.final_threads if trial.final else self.end_threads
            threads = max(threads, min(wanted, max(int(node.cpus) for node in nodes)))
        if trial.final:
            device = torch.device(self.devices[0])
            plan = plan_final_training(trial, self._dataset, device, gpu_bytes=self._gpu_bytes)
        return trial_resources(trial, threads, node_bytes=largest, gpu_bytes=self._gpu_bytes, plan=plan)

    def _probe_node(self, trial: Trial) -> bool:
        """Return whether a probe ran on a node that can take a trial and reported the size of its GPU.

        A waiting probe is a demand that Ray's autoscaler sees, whatever the memory of its nodes.
        """
        if self._probe is None:
            function = self._ray.remote(
                num_cpus=self.threads, num_gpus=int(self._gpu), max_retries=-1, **self._node_selector
            )(gpu_memory)
            self._probe = function.remote(self._gpu)
        if not self._ray.wait([self._probe], timeout=0)[0]:
            self._warn_waiting(trial, "a GPU" if self._gpu else _cpus(self.threads))
            return False
        probe, self._probe = self._probe, None
        try:
            self._gpu_bytes = int(self._ray.get(probe)) or None
        except self._ray.exceptions.RayError as error:
            self._failed_starts.add(node_of(error, alive_nodes(self._ray)), cause_of(error))
            return False
        return True

    def _usable_nodes(self) -> list[Node]:
        """Return the nodes that can run a trial, without those on which workers cannot start."""
        return self._failed_starts.filter(capable_nodes(alive_nodes(self._ray), self.threads, gpu=self._gpu))

    @property
    def _node_selector(self) -> dict[str, Any]:
        """Options that name the nodes to use, if some are excluded: Ray (2.60) may ignore a list of excluded nodes.
        Workers that are requested later can use nodes that join later."""
        ids = ", ".join(node.id for node in self._usable_nodes())
        return {"label_selector": {"ray.io/node-id": f"in({ids})"}} if self._failed_starts.excluded else {}

    @cached_property
    def _dataset(self) -> Dataset:
        return read_dataset(self.folder)

    def _request_worker(self, needed: Resources, trial: Trial) -> None:
        """Request a worker. First end those that are idle or waiting and too small, or wait for a node that is gone."""
        largest = max((node.memory for node in self._usable_nodes()), default=0)
        for worker in [w for w in self._workers if w.trial is None]:
            too_large = worker.starting is not None and worker.resources.memory > largest
            if not worker.resources.covers(needed) or too_large:
                self._end(worker)
        self._warn_waiting(trial, str(needed))
        n_requested = sum(w.starting is not None for w in self._workers)
        if n_requested >= _MAX_REQUESTED or len(self._workers) >= self.max_running:
            return
        device = "cuda:0" if self._gpu else "cpu"  # Ray shows a worker only its own GPU
        actor = self._actor_class.options(
            num_cpus=needed.cpus, num_gpus=needed.gpus, memory=needed.memory, **self._node_selector
        ).remote(str(self.folder), device, self.timeout, self._owner)
        self._workers.append(_Worker(needed, actor, actor.begin.remote()))

    def _ended(self, worker: _Worker) -> TrialResult | Trial:
        trial = worker.trial
        assert trial is not None
        try:
            message = json.loads(self._ray.get(worker.result))
        except self._ray.exceptions.RayTaskError as error:
            return self._lose(worker, "error", str(error).strip().splitlines()[-1])
        except self._ray.exceptions.RayError as error:
            where = f"Its worker on {worker.node} (process {worker.pid})"
            return self._lose(worker, "killed", f"{where} ended unexpectedly: {cause_of(error)}")
        worker.trial = worker.result = worker.progress = None
        ended = read_ended(trial, message)
        if isinstance(ended, Trial):
            return ended
        if ended.status == "killed":  # the GPU's context is lost: a new process gets a new one
            self._end(worker)
        return replace(ended, device=f"{worker.node}/{ended.device}")

    def _poll_progress(self, worker: _Worker, on_progress: Report) -> None:
        if worker.progress is None:
            worker.progress = worker.actor.progress.options(concurrency_group="listen").remote()
        elif self._ray.wait([worker.progress], timeout=0)[0]:
            with suppress(self._ray.exceptions.RayError):  # `_ended` notices a worker that is gone
                answer = json.loads(self._ray.get(worker.progress))
                trial = worker.trial
                if trial is not None and answer is not None and answer["trial"] == [trial.round, trial.number]:
                    progress = Progress(**answer["progress"])
                    if progress != worker.last_progress:
                        worker.last_progress = progress
                        worker.watchdog.progressed()
                        on_progress(trial, progress)
            worker.progress = None

    def _lose(self, worker: _Worker, status: Status, message: str) -> TrialResult:
        trial = worker.trial
        assert trial is not None
        self._end(worker)
        return trial.result(status, message=message, device=self.devices[0])

    def _end(self, worker: _Worker) -> None:
        self._workers.remove(worker)
        with suppress(self._ray.exceptions.RayError):
            self._ray.kill(worker.actor)

    def _warn_waiting(self, trial: Trial, need: str) -> None:
        """Warn that a trial waits while none runs: the cluster may be full, or too small for it."""
        waited = time.monotonic() - self._last_start
        if waited >= _WARN_SECONDS and not any(w.trial is not None for w in self._workers):
            self._last_start = time.monotonic()
            log.warning("%s waits for %s, which no node of the Ray cluster has free (`ray status`).", trial.name, need)


def check_ray(device: str, workers: int | None, address: str | None) -> None:
    """Raise ConfigError for settings that a Ray cluster cannot use, before anything is written."""
    if device not in ("auto", "cpu", "cuda"):
        raise ConfigError(f"device={device!r}: Ray chooses the GPUs of a node, so give auto, cpu or cuda.")
    if workers is not None and workers < 1:
        raise ConfigError(f"workers={workers}: give 1 or more.")
    if address is not None and address.startswith("ray://"):
        raise ConfigError(
            f"address={address!r} is the address of a Ray client. The driver of a search writes to the run folder "
            f"that the nodes use: start it on a node of the cluster, with HOST:6379 or auto."
        )
    optional_import("ray", extra="ray", purpose="engine='ray'")  # on every node


def connect(address: str | None) -> tuple[Any, bool]:
    """Return the ray module and whether it was connected here.

    Without an address: RAY_ADDRESS, or else a cluster on this machine only, which ends with the search.
    """
    import ray

    if ray.is_initialized():
        return ray, False
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # a cluster that is started here sends no statistics
    address = address or os.environ.get("RAY_ADDRESS") or "local"
    options: dict[str, Any] = {"include_dashboard": False} if address == "local" else {}
    try:
        host, _, port = address.rpartition(":")
        if host and port.isdigit():  # Ray (2.60) tries for minutes to reach an address where nothing listens
            socket.create_connection((host, int(port)), timeout=_CONNECT_SECONDS).close()
        ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR, **options)
    except (OSError, RuntimeError, ValueError) as error:
        reason = " ".join(str(error).split()).rstrip(".")
        raise GrashError(
            f"No Ray cluster could be used at {address}: {reason}. See `ray status` there. A cluster that asks for a "
            f"token needs RAY_AUTH_MODE=token here, too."
        ) from error
    return ray, True


def trial_resources(
    trial: Trial, threads: int, *, node_bytes: int, gpu_bytes: int | None, plan: MemoryPlan | None = None
) -> Resources:
    """Return what a trial needs, by its planned bytes. A trial larger than every node or GPU gets a whole one.

    node_bytes: of the largest node. gpu_bytes: of the smallest GPU, None on CPUs. plan: of the final training. Memory
    is rounded up to a power of two: trials of a round differ a little and can use each other's workers.
    """
    on_device = trial.n_bytes if plan is None else plan.device
    if gpu_bytes is None:
        n_bytes, gpus = on_device + (0 if plan is None else plan.memory), 0.0
    else:
        fitting = int(USABLE_SHARE * gpu_bytes // max(1, on_device))
        gpus = 1 / max(1, min(TRIALS_PER_GPU, fitting))
        if plan is not None:
            n_bytes = plan.memory
        else:  # a table that is too large for the GPU is stored in host memory
            n_bytes = on_device // 2 if fitting else on_device
    rounded = 1 << (_PROCESS_BYTES + n_bytes - 1).bit_length()
    return Resources(threads, min(rounded, node_bytes), gpus)


def plan_final_training(trial: Trial, dataset: Dataset, device: torch.device, *, gpu_bytes: int | None) -> MemoryPlan:
    """Return the memory plan of the final training by its placement; `auto` uses the GPU if it fits there.

    device: the device to plan for.
    """
    placements = {"device": [Placement()], "host": [Placement("host")], "disk": [Placement("disk", Path(trial.folder))]}
    placements["auto"] = placements["device"] + (placements["host"] if gpu_bytes is not None else [])
    config, sizes = make_config(trial.config), (dataset.n_entities, dataset.n_relations, len(dataset.train))
    plans = [
        plan_memory([config], *sizes, device, n_valid=len(dataset.valid), placement=placement)
        for placement in placements[trial.placement]
    ]
    room = float("inf") if gpu_bytes is None else USABLE_SHARE * gpu_bytes
    return next((plan for plan in plans if plan.device <= room), plans[-1])


@dataclass(frozen=True)
class Node:
    """A node that is alive, and its total resources."""

    id: str
    name: str
    address: str
    cpus: float
    gpus: float
    memory: int


def alive_nodes(ray: Any) -> list[Node]:
    return [
        Node(
            id=node["NodeID"],
            name=node["NodeManagerHostname"],
            address=node["NodeManagerAddress"],
            cpus=node["Resources"].get("CPU", 0.0),
            gpus=node["Resources"].get("GPU", 0.0),
            memory=int(node["Resources"].get("memory", 0)),
        )
        for node in ray.nodes()
        if node["Alive"]
    ]


def capable_nodes(nodes: list[Node], threads: int, *, gpu: bool) -> list[Node]:
    """Return the nodes that can run a trial; a head that was started without CPUs cannot, however large it is."""
    return [node for node in nodes if node.cpus >= threads and (node.gpus or not gpu)]


def gpu_memory(gpu: bool) -> int:
    """Return the memory of this process's GPU, 0 without one; Ray runs it on a node that can take a trial."""
    return int(torch.cuda.mem_get_info(0)[1]) if gpu else 0


class FailedStarts:
    """Counts workers that ended before they had started, by node. A node where that happens three times in a row is
    excluded; the search ends when there is no other."""

    def __init__(self) -> None:
        self._by_node: dict[str, tuple[int, float, str]] = {}  # (times, last time, reason); unknown node: ""

    def clear(self, node_id: str) -> None:
        for known in (node_id, ""):
            self._by_node.pop(known, None)

    def add(self, node: Node | None, reason: str) -> None:
        node_id, now = "" if node is None else node.id, time.monotonic()
        times, last, _ = self._by_node.get(node_id, (0, now - _SAME_FAILURE_SECONDS, ""))
        if now - last < _SAME_FAILURE_SECONDS:
            return
        self._by_node[node_id] = (times + 1, now, reason)
        if node is not None and times + 1 == _MAX_FAILED_STARTS:
            log.warning("%s gets no more trials, because no worker could start there: %s", node.name, reason)

    @property
    def excluded(self) -> list[str]:
        """Ids of excluded nodes."""
        return [name for name, (times, _, _) in self._by_node.items() if name and times >= _MAX_FAILED_STARTS]

    def filter(self, nodes: list[Node]) -> list[Node]:
        """Return the nodes that are not excluded; raise if none is left."""
        times, _, reason = self._by_node.get("", (0, 0.0, ""))
        if times >= _MAX_FAILED_STARTS:
            raise GrashError(f"Ray's workers ended {_MAX_FAILED_STARTS} times in a row before they started: {reason}")
        left = [node for node in nodes if node.id not in self.excluded]
        if nodes and not left:
            names: dict[str, dict[str, None]] = {}
            for node in nodes:
                names.setdefault(self._by_node[node.id][2], {})[node.name] = None
            reasons = " ".join(f"On {', '.join(some)}: {reason}" for reason, some in names.items())
            raise GrashError(
                f"No worker could start on any node of the Ray cluster. {reasons} Every node needs grash, and must "
                f"see the run folder and the graph at the same path as this one (docs/how-to/a-cluster.md)."
            )
        return left


def cause_of(error: Exception) -> str:
    """Return Ray's last sentence about why an actor died."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip().startswith("The actor")]
    return lines[-1] if lines else " ".join(str(error).split())


def node_of(error: Exception, nodes: list[Node]) -> Node | None:
    """Return where something died, if Ray's message has an address that exactly one node has."""
    found = re.search(r"\bip[:=] ?([0-9a-fA-F.:]*[0-9a-fA-F])", str(error))
    matching = [node for node in nodes if found is not None and node.address == found[1]]
    return matching[0] if len(matching) == 1 else None


def versions() -> dict[str, str]:
    """Return the versions that results depend on; they must be equal on every node."""
    return {
        "grash": __version__,
        "torch": torch.__version__.partition("+")[0],
        "python": platform.python_version().rpartition(".")[0],
    }


def check_versions(answer: dict[str, Any]) -> None:
    """Raise GrashError if a worker that has started has other versions than the driver."""
    for name, version in versions().items():
        if answer["versions"][name] != version:
            raise GrashError(
                f"{name} is {answer['versions'][name]} on {answer['node']} and {version} here, and results may depend "
                f"on it: install the same version on every node."
            )


def lock_owner(folder: Path) -> str | None:
    """Return the content of the run folder's lock file, which names its owner; None if it cannot be read now."""
    try:
        return (folder / LOCK_FILE).read_text(encoding="utf-8")
    except OSError:
        return None


class RayWorker:
    """An actor on some node: `begin` once, then `run` a trial at a time; `progress` and `stop` run in another thread.

    It is kept while trials of its size come, so it loads graph and torch once. Ray ends it with its driver. If it is
    left behind by a head that died, it ends itself when another driver owns the run folder.
    """

    def __init__(self, folder: str, device: str, timeout: float | None, owner: str) -> None:
        """owner: content of the lock file while this worker's driver is alive."""
        self.folder, self.device, self.timeout, self.owner = Path(folder), device, timeout, owner
        self._runner: TrialRunner | None = None
        self._progress: dict[str, Any] | None = None
        self._stopping = threading.Event()
        self._checked = 0.0

    def begin(self) -> str:
        """Load the graph. Return where the worker is and what it has, or why it cannot start."""
        node = {"id": _node_id(), "node": socket.gethostname(), "pid": os.getpid()}
        try:
            from grash.engines.local import TrialRunner

            self._runner = TrialRunner.open(self.folder, device=self.device, timeout=self.timeout)
            return json.dumps({**node, "gpu_bytes": gpu_memory(self.device != "cpu"), "versions": versions()})
        except Exception as error:  # the driver compares all nodes to see whether this one is at fault
            named = isinstance(error, GrashError)
            reason = str(error) if named else f"{type(error).__name__}: {error}".rstrip(".") + "."
            return json.dumps({"id": node["id"], "error": reason})

    def run(self, trial: str) -> str:
        """Run a trial. Return its result, or that it was stopped, or that the disk is full."""
        assert self._runner is not None
        self._progress = None
        self._check_owner()
        return json.dumps(run_trial(self._runner, Trial.from_json(json.loads(trial)), self._report))

    def progress(self) -> str:
        """Return the last progress of the running trial."""
        return json.dumps(self._progress)

    def stop(self) -> None:
        self._stopping.set()

    def _report(self, trial: Trial, progress: Progress) -> None:
        self._progress = {"trial": [trial.round, trial.number], "progress": asdict(progress)}
        if self._stopping.is_set():
            raise KeyboardInterrupt
        if time.monotonic() - self._checked > _OWNER_SECONDS:
            self._check_owner()

    def _check_owner(self) -> None:
        """End this process if another driver owns the run folder: it must be alone there."""
        self._checked = time.monotonic()
        if lock_owner(self.folder) not in (self.owner, None):
            os._exit(0)


def _node_id() -> str:
    """Return Ray's id of the node that this process runs on."""
    import ray

    return str(ray.get_runtime_context().get_node_id())


def _cpus(n: int) -> str:
    return f"{n} CPU{'s' * (n != 1)}"
