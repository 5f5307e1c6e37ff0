"""Which engine runs a search: from the devices that are there and what the user asked for."""

from __future__ import annotations

import os
from pathlib import Path

import torch

from grash.engines.device import choose_device
from grash.engines.local import SequentialEngine, StackedEngine
from grash.engines.processes import ProcessEngine
from grash.engines.ray import check_cluster
from grash.engines.trial import TrialRunner
from grash.errors import ConfigError
from grash.search.graphs import SearchGraphs
from grash.search.trial import Engine

ENGINES = ("auto", "sequential", "processes", "stacked", "ray")
_SHARED_SLOTS = 3  # trials on a card whose processes can compute at the same time (MPS); the paper used three


def choose_engine(
    name: str,
    graphs: SearchGraphs,
    folder: Path,
    *,
    devices: str = "auto",
    workers: int | None = None,
    timeout: float | None = None,
    address: str | None = None,
) -> Engine:
    """`sequential` and `stacked` here, `processes` with one worker per slot, `ray` on the cluster at the address.
    `auto`: stacked on one card, processes where there is more than one slot.

    devices: auto, or names with commas (cuda:0,cuda:1). workers: slots in all, spread over the devices."""
    threads = graphs.settings.threads
    slots = check_engine(name, devices, workers, threads=threads, address=address)
    if name == "ray":
        from grash.engines.ray import RayEngine

        return RayEngine(
            folder, address=address, devices=devices, threads=threads, workers=workers, timeout=timeout,
            final_threads=graphs.settings.threads_of(final=True),
        )  # fmt: skip
    if name == "auto":
        one_card = len(set(slots)) == 1 and slots[0] != "cpu" and workers is None
        name = "stacked" if one_card else "sequential" if len(slots) == 1 else "processes"
    if name == "stacked" and len(set(slots)) > 1:
        raise ConfigError(f"engine=stacked uses one card, and {', '.join(sorted(set(slots)))} were given: name one.")
    if name == "processes":
        return ProcessEngine(folder, slots, timeout=timeout)
    runner = TrialRunner(graphs, folder, device=slots[0], timeout=timeout)
    return StackedEngine(runner) if name == "stacked" else SequentialEngine(runner)


def check_engine(
    name: str, devices: str, workers: int | None, *, threads: int, address: str | None = None
) -> list[str]:
    """The device of every slot, if there is such an engine and such devices; none for `ray`, which has them."""
    if name not in ENGINES:
        raise ConfigError(f"engine={name!r} is unknown: give {', '.join(ENGINES)}.")
    if name == "ray":
        check_cluster(devices, workers, address)
        return []
    if address is not None:
        raise ConfigError(f"address={address!r} is that of a Ray cluster, and engine={name!r} uses none: give ray.")
    return device_slots(devices, workers, threads=threads)


def device_slots(devices: str, workers: int | None, *, threads: int) -> list[str]:
    """The device of every slot."""
    if workers is not None and workers < 1:
        raise ConfigError(f"workers={workers}: give 1 or more.")
    if devices == "auto":
        names = [f"cuda:{i}" for i in range(torch.cuda.device_count())] if torch.cuda.is_available() else ["cpu"]
    else:
        names = [str(choose_device(part.strip())) for part in devices.split(",") if part.strip()]
    if not names:
        raise ConfigError(f"devices={devices!r} names no device: give auto, cpu or cuda:0,cuda:1, …")
    each = max(1, _cores() // threads) if names == ["cpu"] else (_SHARED_SLOTS if _shares_cards() else 1)
    count = workers or each * len(names)
    return [names[i % len(names)] for i in range(count)]


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _shares_cards() -> bool:
    place = Path(os.environ.get("CUDA_MPS_PIPE_DIRECTORY", "/tmp/nvidia-mps"))
    return (place / "control").exists()
