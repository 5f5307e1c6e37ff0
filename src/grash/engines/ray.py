"""Trials on a Ray cluster: a worker per trial that runs at the same time, each with a share of its node by the trial's
planned memory; Ray decides where.

Workers are asked for when there is no idle one that is large enough, and ended when they are too small for what comes
next. A node or worker that dies is a killed trial, which the driver tries again (docs/decisions/0029).
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
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from grash import __version__
from grash.data.dataset import Dataset
from grash.engines.memory import MemoryPlan, plan_memory
from grash.engines.processes import Silence
from grash.errors import ConfigError, GrashError, OutputError
from grash.formatting import format_bytes
from grash.search.run_folder import LOCK_FILE, cores_file, dataset_folder, read_dataset, read_settings
from grash.search.trial import Status, Trial, TrialProgress, TrialResult
from grash.training.config import make_config
from grash.training.placement import Placement

if TYPE_CHECKING:
    from grash.engines.trial import TrialRunner

log = logging.getLogger(__name__)


# fmt: skip


_PATIENCE = 0.5  # seconds that `wait` sleeps at most; less while workers begin
_HURRY = 0.1
_AHEAD = 16  # workers that are asked for and have not begun
_PATIENT = 30.0  # seconds without a worker for a trial before that is said


@dataclass(eq=False)
class _Worker:
    share: Share
    actor: Any
    begun: Any  # what `begin` will say; None once it has
    node: str = ""
    pid: int = 0
    task: Trial | None = None
    ended: Any = None  # what `run` will say
    heard: Any = None  # what `heard` will say
    beat: TrialProgress | None = None  # the last one
    silence: Silence = field(default_factory=Silence)


class RayEngine:
    """address: HOST:PORT of the cluster's head, or None (see `connect`). devices: auto, cpu or cuda. workers:
    trials at a time, all nodes together. Needs the run folder at the same path on every node."""

    def __init__(
        self,
        folder: Path,
        *,
        address: str | None = None,
        devices: str = "auto",
        threads: int = 1,
        final_threads: int = 1,
        workers: int | None = None,
        timeout: float | None = None,
    ) -> None:
        self.folder, self.threads, self.timeout = Path(folder).resolve(), threads, timeout
        self.final_threads = final_threads
        self._ray, self._is_ours = connect(address)
        self.n_slots = workers or 1024
        self._gpu = devices == "cuda" or (devices == "auto" and any(n.gpus for n in alive_nodes(self._ray)))
        self.devices: tuple[str, ...] = (planning_device(self._gpu),)
        self._holder = holder_of(self.folder)
        self._kind = self._ray.remote(max_restarts=0, concurrency_groups={"listen": 1})(RayWorker)
        self._workers: list[_Worker] = []
        self._card_bytes: int | None = None
        self._probe: Any = None
        self._faults, self._since_room = Faults(), time.monotonic()

    def start(self, task: Trial) -> str | None:
        self._greet()
        share = self._share(task)
        if share is None:
            return None
        idle = [w for w in self._workers if w.begun is None and w.task is None and w.share.holds(share)]
        if not idle:
            self._ask(share, task)
            return None
        worker = min(idle, key=lambda w: (w.share.gpus, w.share.memory))
        worker.task, worker.silence = task, Silence()
        worker.ended = worker.actor.run.remote(json.dumps(asdict(task)))
        self._since_room = time.monotonic()
        return "cuda" if self._gpu else "cpu"

    def wait(self, tell: Callable[[TrialProgress], None]) -> list[TrialResult | Trial]:
        busy = {w.ended: w for w in self._workers if w.task is not None}
        if not busy:
            return []
        patience = _HURRY if any(w.begun is not None for w in self._workers) else _PATIENCE
        done, _ = self._ray.wait(list(busy), timeout=patience)
        ended: list[TrialResult | Trial] = [self._ended(busy[ref]) for ref in done]
        for worker in [w for w in self._workers if w.task is not None]:
            self._listen(worker, tell)
            late = worker.silence.verdict(worker.task, self.timeout)  # type: ignore[arg-type]
            if late is not None:
                ended.append(self._lost(worker, *late))
        return ended

    def stop(self) -> None:
        for worker in self._workers:
            if worker.task is not None:
                worker.actor.stop.options(concurrency_group="listen").remote()

    def close(self) -> None:
        for worker in sorted(self._workers, key=lambda w: w.begun is None):  # else those that wait for room begin
            self._end(worker)
        if self._is_ours:
            self._is_ours = False
            self._ray.shutdown()

    def _share(self, task: Trial) -> Share | None:
        """None while there is no node for it, or it is not known how large a card is."""
        nodes = self._nodes()
        if not nodes:
            self._card_bytes = None  # those that come may have other cards
        known = bool(nodes) and (not self._gpu or self._card_bytes is not None)
        if not known and not (self._look(task) and nodes):
            return None
        largest, plan, threads = max(node.memory for node in nodes), None, self.threads
        if task.final:
            threads = max(threads, min(self.final_threads, max(int(node.cpus) for node in nodes)))
            device = torch.device(self.devices[0])
            plan = plan_final(task, self._dataset, device, card_bytes=self._card_bytes)
        return share_of(task, threads, node_bytes=largest, card_bytes=self._card_bytes, plan=plan)

    def _look(self, task: Trial) -> bool:
        """Whether something has begun on a node that can take a trial, and so said how large its card is. What waits
        for such a node is a demand that Ray's autoscaler sees, of no size that a node might lack."""
        if self._probe is None:
            wanted = self._ray.remote(num_cpus=self.threads, num_gpus=int(self._gpu), max_retries=-1, **self._elsewhere)
            self._probe = wanted(card_bytes).remote(self._gpu)
        if not self._ray.wait([self._probe], timeout=0)[0]:
            self._complain(task, "a GPU" if self._gpu else f"{self.threads} CPU{'s' * (self.threads != 1)}")
            return False
        probe, self._probe = self._probe, None
        try:
            self._card_bytes = int(self._ray.get(probe)) or None
        except self._ray.exceptions.RayError as error:
            self._faults.ended(node_of(error, alive_nodes(self._ray)), cause_of(error))
            return False
        return True

    def _nodes(self) -> list[Node]:
        """On which a trial can run, less those where none could begin."""
        return self._faults.check(able_nodes(alive_nodes(self._ray), self.threads, gpu=self._gpu))

    @property
    def _elsewhere(self) -> dict[str, Any]:
        """Tells Ray which nodes to use, if some are left out: naming those it does not always heed (2.60). A node that
        joins later gets workers that are asked for then."""
        able = ", ".join(node.id for node in self._nodes())
        return {"label_selector": {"ray.io/node-id": f"in({able})"}} if self._faults.left_out else {}

    @cached_property
    def _dataset(self) -> Dataset:
        return read_dataset(self.folder)

    def _ask(self, share: Share, task: Trial) -> None:
        """A worker of this size. Those that idle, or wait for room, and are too small for it make room, as do those
        that wait for a node that is gone."""
        largest = max((node.memory for node in self._nodes()), default=0)
        for worker in [w for w in self._workers if w.task is None]:
            if not worker.share.holds(share) or (worker.begun is not None and worker.share.memory > largest):
                self._end(worker)
        self._complain(task, str(share))
        n_asked = sum(w.begun is not None for w in self._workers)
        if n_asked >= _AHEAD or len(self._workers) >= self.n_slots:
            return
        sized = self._kind.options(num_cpus=share.cpus, num_gpus=share.gpus, memory=share.memory, **self._elsewhere)
        device = "cuda:0" if self._gpu else "cpu"  # Ray shows a worker its own card only
        actor = sized.remote(str(self.folder), device, self.timeout, self._holder)
        self._workers.append(_Worker(share, actor, actor.begin.remote()))

    def _greet(self) -> None:
        """Takes in the workers that have begun. One that could not is no fault of a trial."""
        waiting = {w.begun: w for w in self._workers if w.begun is not None}
        done, _ = self._ray.wait(list(waiting), num_returns=len(waiting), timeout=0) if waiting else ([], [])
        for ref in done:
            worker, nodes = waiting[ref], alive_nodes(self._ray)
            try:
                said = json.loads(self._ray.get(ref))
                fault = said.get("fault")
                where = next((node for node in nodes if node.id == said["id"]), None)
            except self._ray.exceptions.RayError as error:
                fault, where = cause_of(error), node_of(error, nodes)
            if fault is not None:
                self._faults.ended(where, fault)
                self._end(worker)
                continue
            self._check(said)
            self._faults.began(said["id"])
            worker.begun, worker.node, worker.pid = None, said["node"], said["pid"]
            if said["card_bytes"]:
                self._card_bytes = min(said["card_bytes"], self._card_bytes or said["card_bytes"])

    def _check(self, said: dict[str, Any]) -> None:
        other = {name: version for name, version in versions().items() if said["versions"][name] != version}
        for name, version in other.items():
            raise GrashError(
                f"{name} is {said['versions'][name]} on {said['node']} and {version} here, and results may depend on "
                f"it: install the same on every node."
            )

    def _ended(self, worker: _Worker) -> TrialResult | Trial:
        task = worker.task
        assert task is not None
        try:
            message = json.loads(self._ray.get(worker.ended))
        except self._ray.exceptions.RayTaskError as error:
            return self._lost(worker, "error", str(error).strip().splitlines()[-1])
        except self._ray.exceptions.RayError as error:
            where = f"Its worker on {worker.node} (process {worker.pid})"
            return self._lost(worker, "killed", f"{where} ended unexpectedly: {cause_of(error)}")
        worker.task = worker.ended = worker.heard = None
        if "full" in message:
            then = "The search stops here and goes on with `grash resume`."
            raise OutputError(message["full"], message["reason"], then=then)
        if "stopped" in message:
            return task
        result = TrialResult.from_json(message["result"])
        if result.status == "killed":  # its card's context is lost: a fresh process gets a fresh one
            self._end(worker)
        return result

    def _listen(self, worker: _Worker, tell: Callable[[TrialProgress], None]) -> None:
        if worker.heard is None:
            worker.heard = worker.actor.heard.options(concurrency_group="listen").remote()
        elif self._ray.wait([worker.heard], timeout=0)[0]:
            with suppress(self._ray.exceptions.RayError):  # a worker that is gone is noticed by what it runs
                said = self._ray.get(worker.heard)
                beat = None if said is None else TrialProgress(**json.loads(said))
                if beat is not None and beat != worker.beat and _is_of(beat, worker.task):  # else it is an old one
                    worker.beat = beat
                    worker.silence.heard()
                    tell(beat)
            worker.heard = None

    def _lost(self, worker: _Worker, status: Status, message: str) -> TrialResult:
        task = worker.task
        assert task is not None
        self._end(worker)
        return TrialResult(task.round, task.number, task.attempt, status, message=message, device=self.devices[0])

    def _end(self, worker: _Worker) -> None:
        self._workers.remove(worker)
        with suppress(self._ray.exceptions.RayError):
            self._ray.kill(worker.actor)

    def _complain(self, task: Trial, need: str) -> None:
        """Says that a trial waits where none runs: the cluster may be full, or too small for it."""
        if any(w.task is not None for w in self._workers) or time.monotonic() - self._since_room < _PATIENT:
            return
        self._since_room = time.monotonic()
        log.warning("%s waits for %s, which no node of the Ray cluster has free (`ray status`).", task.name, need)


def _is_of(beat: TrialProgress, task: Trial | None) -> bool:
    """Whether it is of this task, and not of the worker's last one."""
    return task is not None and (beat.round, beat.number) == (task.round, task.number)


# = A Ray cluster, as engines/ray_engine.py needs it: connecting to it, its nodes, and what of them a trial gets.
# =
# = Ray is the extra `ray`, imported here when it is used.

PER_CARD = 3  # trials that share a card at most; the paper used three
_FREE_SHARE = 0.9  # of a card's memory that trials may be planned for
_ANSWER = 10.0  # seconds in which the head of a cluster must take a connection
_PROCESS_BYTES = 512 << 20  # of a worker before its first trial: an interpreter with torch, numba and Ray
_TRIES = 3  # times in a row that workers may end on a node before they have begun
_MOMENT = 5.0  # seconds within which that is one time: what befalls a node befalls all its workers
_MISSING = "engine='ray' needs Ray, which is not installed: pip install 'grash[ray]', here and on every node."


@dataclass(frozen=True)
class Share:
    """What Ray sets aside on a node for one worker."""

    cpus: int
    memory: int
    gpus: float = 0.0

    def holds(self, other: Share) -> bool:
        return self.cpus >= other.cpus and self.memory >= other.memory and self.gpus >= other.gpus

    def __str__(self) -> str:
        cards = f", {self.gpus:.2g} of a GPU" if self.gpus else ""
        return f"{self.cpus} CPU{'s' * (self.cpus != 1)}, {format_bytes(self.memory)}{cards}"


def share_of(
    task: Trial, threads: int, *, node_bytes: int, card_bytes: int | None, plan: MemoryPlan | None = None
) -> Share:
    """The share for a trial, by its planned bytes. A trial that is larger than every node or card gets a whole one.

    node_bytes: of the largest node; card_bytes: of the smallest card, None where trials run on CPUs. plan: of the final
    training. Memory is rounded up to a power of two, so that the trials of a round, which differ a little, can use each
    other's workers."""
    if card_bytes is None:
        n_bytes = task.n_bytes if plan is None else plan.device + plan.memory
        return Share(threads, min(_round_up(_PROCESS_BYTES + n_bytes), node_bytes))
    n_bytes = task.n_bytes if plan is None else plan.device
    fitting = int(_FREE_SHARE * card_bytes // max(1, n_bytes))
    beside = (n_bytes // 2 if fitting else n_bytes) if plan is None else plan.memory  # too large a table lies there
    return Share(threads, min(_round_up(_PROCESS_BYTES + beside), node_bytes), 1 / max(1, min(PER_CARD, fitting)))


def plan_final(task: Trial, dataset: Dataset, device: torch.device, *, card_bytes: int | None) -> MemoryPlan:
    """What the final training takes, its entities where they are asked to lie; `auto` is on the card if they fit there.
    device: whose formula is used."""
    ways = {"device": [Placement()], "host": [Placement("host")], "disk": [Placement("disk", Path(task.folder))]}
    ways["auto"] = ways["device"] + (ways["host"] if card_bytes is not None else [])
    sizes = dataset.n_entities, dataset.n_relations, len(dataset.train)
    plans = [
        plan_memory([make_config(task.config)], *sizes, device, n_valid=len(dataset.valid), placement=way)
        for way in ways[task.placement]
    ]
    room = float("inf") if card_bytes is None else _FREE_SHARE * card_bytes
    return next((plan for plan in plans if plan.device <= room), plans[-1])


def check_cluster(devices: str, workers: int | None, address: str | None) -> None:
    """Says what cannot be before anything is written."""
    if devices not in ("auto", "cpu", "cuda"):
        raise ConfigError(f"devices={devices!r}: Ray chooses the cards of a node, so give auto, cpu or cuda.")
    if workers is not None and workers < 1:
        raise ConfigError(f"workers={workers}: give 1 or more.")
    if address is not None and address.startswith("ray://"):
        raise ConfigError(
            f"address={address!r} is that of a Ray client, and the driver of a search writes to the run folder that "
            f"the nodes use: start it on a node of the cluster, with HOST:6379 or auto."
        )
    try:
        import ray  # noqa: F401
    except ImportError as error:
        raise ConfigError(_MISSING) from error


def connect(address: str | None) -> tuple[Any, bool]:
    """Ray, and whether it was connected here. Without an address: that of RAY_ADDRESS, else a cluster of this machine
    alone, which ends with the search."""
    import ray

    if ray.is_initialized():
        return ray, False
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # a cluster that is started here reports to nobody
    place = address or os.environ.get("RAY_ADDRESS") or "local"
    options: dict[str, Any] = {"include_dashboard": False} if place == "local" else {}
    try:
        _check_answer(place)
        ray.init(address=place, log_to_driver=False, logging_level=logging.ERROR, **options)
    except (OSError, RuntimeError, ValueError) as error:
        reason = " ".join(str(error).split()).rstrip(".")
        raise GrashError(
            f"No Ray cluster could be used at {place}: {reason}. See `ray status` there; a cluster that asks for a "
            f"token needs RAY_AUTH_MODE=token here too."
        ) from error
    return ray, True


@dataclass(frozen=True)
class Node:
    """A node that lives, and what it offers in all."""

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


def able_nodes(nodes: list[Node], threads: int, *, gpu: bool) -> list[Node]:
    """Those on which a trial can run: a head that was started without CPUs takes none, however large it is."""
    return [node for node in nodes if node.cpus >= threads and (node.gpus or not gpu)]


def planning_device(gpu: bool) -> str:
    """Where the driver plans a trial's memory: without a card of its own it can plan for a CPU only."""
    return "cuda:0" if gpu and torch.cuda.is_available() else "cpu"


def card_bytes(gpu: bool) -> int:
    """Memory of the card that this process has, 0 for none; run by Ray on a node that can take a trial."""
    return int(torch.cuda.mem_get_info(0)[1]) if gpu else 0


class Faults:
    """Workers that ended before they had begun, by node: no fault of a trial. A node where that happened three times in
    a row is left out, and the search ends when there is no other."""

    def __init__(self) -> None:
        self._found: dict[str, tuple[int, float, str]] = {}  # times, when the last was, why; of no known node: ""

    def began(self, node: str) -> None:
        for known in (node, ""):
            self._found.pop(known, None)

    def ended(self, node: Node | None, reason: str) -> None:
        name, now = "" if node is None else node.id, time.monotonic()
        times, at, _ = self._found.get(name, (0, now - _MOMENT, ""))
        if now - at < _MOMENT:
            return
        self._found[name] = (times + 1, now, reason)
        if node is not None and times + 1 == _TRIES:
            log.warning("%s gets no more trials, since none could begin there: %s", node.name, reason)

    @property
    def left_out(self) -> list[str]:
        """The ids of nodes."""
        return [name for name, (times, _, _) in self._found.items() if name and times >= _TRIES]

    def check(self, nodes: list[Node]) -> list[Node]:
        """The nodes that are not left out, of those on which a trial can run."""
        times, _, reason = self._found.get("", (0, 0.0, ""))
        if times >= _TRIES:
            raise GrashError(f"{_TRIES} times in a row Ray's workers ended before they could begin: {reason}")
        left = [node for node in nodes if node.id not in self.left_out]
        if nodes and not left:
            why: dict[str, dict[str, None]] = {}
            for node in nodes:
                why.setdefault(self._found[node.id][2], {})[node.name] = None
            found = " ".join(f"On {', '.join(names)}: {reason}" for reason, names in why.items())
            raise GrashError(
                f"No trial could begin on any node of the Ray cluster. {found} Every node needs grash, and must see "
                f"the run folder and the graph at the same path as this one (docs/how-to/a-cluster.md)."
            )
        return left


def cause_of(error: Exception) -> str:
    """Ray's last sentence on why something died."""
    said = [line.strip() for line in str(error).splitlines() if line.strip().startswith("The actor")]
    return said[-1] if said else " ".join(str(error).split())


def node_of(error: Exception, nodes: list[Node]) -> Node | None:
    """Where something died, if Ray says the address and one node alone has it."""
    said = re.search(r"\bip[:=] ?([0-9a-fA-F.:]*[0-9a-fA-F])", str(error))
    found = [node for node in nodes if said is not None and node.address == said[1]]
    return found[0] if len(found) == 1 else None


def _check_answer(place: str) -> None:
    """Ray itself (2.60) tries for minutes to reach an address where nobody listens."""
    host, _, port = place.rpartition(":")
    if host and port.isdigit():
        socket.create_connection((host, int(port)), timeout=_ANSWER).close()


def _round_up(n: int) -> int:
    return 1 << (n - 1).bit_length()


# = A worker of engine `ray`: an actor on some node, kept while trials of its size come; the graph is mapped and torch
# = imported once.
# =
# = Run folder and graph lie at a path that every node sees. What goes through Ray is JSON: tasks, heartbeats, results. Ray
# = ends an actor with its driver; should one be left behind, by a head that died, it ends itself when another driver holds
# = the run folder.

_LOOK = 0.5  # seconds between two looks at who holds the run folder


class RayWorker:
    """`begin` once, then `run` a task at a time. `heard` and `stop` are called beside it, in a thread of their own."""

    def __init__(self, folder: str, device: str, timeout: float | None, holder: str) -> None:
        """holder: what the lock file says while this worker's driver lives."""
        self.folder, self.device, self.timeout, self.holder = Path(folder), device, timeout, holder
        self._runner: TrialRunner | None = None
        self._heartbeat: TrialProgress | None = None
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
        given = Trial(**{**content, "fractions": tuple(content["fractions"])})
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

        cores = cores_file(dataset_folder(self.folder), settings.degree)
        graphs = SearchGraphs(read_dataset(self.folder), settings, cache=cores)
        self._runner = TrialRunner(graphs, self.folder, device=self.device, timeout=self.timeout)
        return {
            "node": socket.gethostname(),
            "id": _node_id(),
            "pid": os.getpid(),
            "card_bytes": None if self.device == "cpu" else int(torch.cuda.mem_get_info(0)[1]),
            "versions": versions(),
        }

    def _tell(self, heartbeat: TrialProgress) -> None:
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
