"""A Ray cluster, as engines/ray_engine.py needs it: connecting to it, its nodes, and what of them a trial gets.

Ray is the extra `ray`, imported here when it is used.
"""

from __future__ import annotations

import logging
import os
import re
import socket
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from grash.data.dataset import Dataset
from grash.engines.memory import MemoryPlan, plan_stack
from grash.errors import ConfigError, GrashError
from grash.search.trial import Task
from grash.training.config import make_config
from grash.training.placement import Placement

log = logging.getLogger(__name__)
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
        return f"{self.cpus} CPU{'s' * (self.cpus != 1)}, {self.memory / 2**30:.1f} GiB{cards}"


def share_of(
    task: Task, threads: int, *, node_bytes: int, card_bytes: int | None, plan: MemoryPlan | None = None
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


def plan_final(task: Task, dataset: Dataset, device: torch.device, *, card_bytes: int | None) -> MemoryPlan:
    """What the final training takes, its entities where they are asked to lie; `auto` is on the card if they fit there.
    device: whose formula is used."""
    ways = {"device": [Placement()], "host": [Placement("host")], "disk": [Placement("disk", Path(task.folder))]}
    ways["auto"] = ways["device"] + (ways["host"] if card_bytes is not None else [])
    sizes = dataset.n_entities, dataset.n_relations, len(dataset.train)
    plans = [
        plan_stack([make_config(task.config)], *sizes, device, n_valid=len(dataset.valid), placement=way)
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
