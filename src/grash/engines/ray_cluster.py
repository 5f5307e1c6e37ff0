"""A Ray cluster, as engines/ray_engine.py needs it: connecting to it, and what of it a trial gets.

Ray is the extra `ray`, imported here when it is used.
"""

from __future__ import annotations

import logging
import os
import socket
from dataclasses import dataclass
from typing import Any

from grash.errors import ConfigError, GrashError
from grash.search.trial import Task

PER_CARD = 3  # trials that share a card at most; the paper used three
_FREE_SHARE = 0.9  # of a card's memory that trials may be planned for
_ANSWER = 10.0  # seconds in which the head of a cluster must take a connection
_PROCESS_BYTES = 512 << 20  # of a worker before its first trial: an interpreter with torch, numba and Ray
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


def share_of(task: Task, threads: int, *, node_bytes: int, card_bytes: int | None) -> Share:
    """The share for a trial, by its planned bytes. A trial that is larger than every node or card gets a whole one.

    node_bytes: of the largest node; card_bytes: of the smallest card, None where trials run on CPUs. Memory is rounded
    up to a power of two, so that the trials of a round, which differ a little, can use each other's workers."""
    if card_bytes is None:
        return Share(threads, min(_round_up(_PROCESS_BYTES + task.n_bytes), node_bytes))
    fitting = int(_FREE_SHARE * card_bytes // max(1, task.n_bytes))
    beside = _PROCESS_BYTES + task.n_bytes // 2  # the best weights, which are at most half of what is on the card
    return Share(threads, min(_round_up(beside), node_bytes), 1 / max(1, min(PER_CARD, fitting)))


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


def alive_nodes(ray: Any) -> list[dict[str, Any]]:
    """What the nodes that live offer, by the names of Ray: CPU, GPU, memory in bytes."""
    return [node["Resources"] for node in ray.nodes() if node["Alive"]]


def node_bytes(nodes: list[dict[str, Any]], *, gpu: bool) -> int:
    """Memory of the largest node that trials can use."""
    return max((int(node.get("memory", 0)) for node in nodes if not gpu or node.get("GPU")), default=0)


def card_bytes() -> int:
    """Memory of the card that this process has; run by Ray on a node with one."""
    import torch

    return int(torch.cuda.mem_get_info(0)[1])


def _check_answer(place: str) -> None:
    """Ray itself (2.60) tries for minutes to reach an address where nobody listens."""
    host, _, port = place.rpartition(":")
    if host and port.isdigit():
        socket.create_connection((host, int(port)), timeout=_ANSWER).close()


def _round_up(n: int) -> int:
    return 1 << (n - 1).bit_length()
