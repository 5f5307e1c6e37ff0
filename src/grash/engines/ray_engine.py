"""Trials on a Ray cluster: a worker per trial that runs at the same time, each with a share of its node by the trial's
planned memory; Ray decides where.

Workers are asked for when there is no idle one that is large enough, and ended when they are too small for what comes
next. A node or worker that dies is a killed trial, which the driver tries again (docs/decisions/0029).
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import torch

from grash.data.dataset import Dataset
from grash.engines.ray_cluster import (
    Faults,
    Node,
    Share,
    able_nodes,
    alive_nodes,
    card_bytes,
    cause_of,
    connect,
    node_of,
    plan_final,
    planning_device,
    share_of,
)  # fmt: skip
from grash.engines.ray_worker import RayWorker, holder_of, versions
from grash.engines.silence import Silence
from grash.errors import GrashError, OutputError
from grash.search.folder import read_dataset
from grash.search.trial import Heartbeat, Result, Status, Task

log = logging.getLogger(__name__)
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
    task: Task | None = None
    ended: Any = None  # what `run` will say
    heard: Any = None  # what `heard` will say
    beat: Heartbeat | None = None  # the last one
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

    def start(self, task: Task) -> str | None:
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

    def wait(self, tell: Callable[[Heartbeat], None]) -> list[Result | Task]:
        busy = {w.ended: w for w in self._workers if w.task is not None}
        if not busy:
            return []
        patience = _HURRY if any(w.begun is not None for w in self._workers) else _PATIENCE
        done, _ = self._ray.wait(list(busy), timeout=patience)
        ended: list[Result | Task] = [self._ended(busy[ref]) for ref in done]
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

    def _share(self, task: Task) -> Share | None:
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

    def _look(self, task: Task) -> bool:
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

    def _ask(self, share: Share, task: Task) -> None:
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

    def _ended(self, worker: _Worker) -> Result | Task:
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
        result = Result.from_json(message["result"])
        if result.status == "killed":  # its card's context is lost: a fresh process gets a fresh one
            self._end(worker)
        return result

    def _listen(self, worker: _Worker, tell: Callable[[Heartbeat], None]) -> None:
        if worker.heard is None:
            worker.heard = worker.actor.heard.options(concurrency_group="listen").remote()
        elif self._ray.wait([worker.heard], timeout=0)[0]:
            with suppress(self._ray.exceptions.RayError):  # a worker that is gone is noticed by what it runs
                said = self._ray.get(worker.heard)
                beat = None if said is None else Heartbeat(**json.loads(said))
                if beat is not None and beat != worker.beat and _is_of(beat, worker.task):  # else it is an old one
                    worker.beat = beat
                    worker.silence.heard()
                    tell(beat)
            worker.heard = None

    def _lost(self, worker: _Worker, status: Status, message: str) -> Result:
        task = worker.task
        assert task is not None
        self._end(worker)
        return Result(task.round, task.number, task.attempt, status, message=message, device=self.devices[0])

    def _end(self, worker: _Worker) -> None:
        self._workers.remove(worker)
        with suppress(self._ray.exceptions.RayError):
            self._ray.kill(worker.actor)

    def _complain(self, task: Task, need: str) -> None:
        """Says that a trial waits where none runs: the cluster may be full, or too small for it."""
        if any(w.task is not None for w in self._workers) or time.monotonic() - self._since_room < _PATIENT:
            return
        self._since_room = time.monotonic()
        log.warning("%s waits for %s, which no node of the Ray cluster has free (`ray status`).", task.name, need)


def _is_of(beat: Heartbeat, task: Task | None) -> bool:
    """Whether it is of this task, and not of the worker's last one."""
    return task is not None and (beat.round, beat.number) == (task.round, task.number)
