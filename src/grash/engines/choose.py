"""Choose the engine of a search from the devices of this machine and the user's settings."""

from __future__ import annotations

import os
from pathlib import Path

import torch

from grash.engines.device import choose_device
from grash.engines.local import LocalEngine
from grash.engines.processes import ProcessEngine
from grash.engines.ray import RayEngine, check_ray
from grash.engines.trial import TrialRunner
from grash.errors import ConfigError
from grash.search.graphs import SearchGraphs
from grash.search.trial import Engine

ENGINES = ("auto", "sequential", "processes", "stacked", "ray")
_MPS_SLOTS = 3  # trials on a GPU whose processes can compute at the same time (MPS); the paper used three


def choose_engine(
    name: str,
    graphs: SearchGraphs,
    folder: Path,
    *,
    device: str = "auto",
    workers: int | None = None,
    timeout: float | None = None,
    address: str | None = None,
) -> Engine:
    """Return the engine: `sequential` and `stacked` run in this process, `processes` has one worker per slot, `ray`
    uses the cluster at the address. `auto` is stacked on one GPU, and processes if there are several slots.

    device: auto, or names separated by commas (cuda:0,cuda:1). workers: number of slots on all devices.
    """
    settings = graphs.settings
    slots = check_engine(name, device, workers, threads=settings.threads, address=address)
    if name == "ray":
        return RayEngine(
            folder, address=address, device=device, threads=settings.threads, workers=workers, timeout=timeout,
            final_threads=settings.threads_of(final=True),
        )  # fmt: skip
    if name == "auto":
        one_gpu = len(set(slots)) == 1 and slots[0] != "cpu" and workers is None
        name = "stacked" if one_gpu else "sequential" if len(slots) == 1 else "processes"
    if name == "stacked" and len(set(slots)) > 1:
        raise ConfigError(f"engine=stacked uses one device, but {', '.join(sorted(set(slots)))} were given: name one.")
    if name == "processes":
        return ProcessEngine(folder, slots, timeout=timeout)
    return LocalEngine(TrialRunner(graphs, folder, device=slots[0], timeout=timeout), stacked=name == "stacked")


def check_engine(name: str, device: str, workers: int | None, *, threads: int, address: str | None = None) -> list[str]:
    """Return the device of every slot; none for `ray`, which chooses them. Raise ConfigError if something is unknown."""
    if name not in ENGINES:
        raise ConfigError(f"engine={name!r} is unknown: give {', '.join(ENGINES)}.")
    if name == "ray":
        check_ray(device, workers, address)
        return []
    if address is not None:
        raise ConfigError(f"address={address!r} is the address of a Ray cluster: give engine='ray', not {name!r}.")
    return device_slots(device, workers, threads=threads)


def device_slots(device: str, workers: int | None, *, threads: int) -> list[str]:
    """Return the device of every slot."""
    if workers is not None and workers < 1:
        raise ConfigError(f"workers={workers}: give 1 or more.")
    if device == "auto":
        names = [f"cuda:{i}" for i in range(torch.cuda.device_count())] if torch.cuda.is_available() else ["cpu"]
    else:
        names = [str(choose_device(part.strip())) for part in device.split(",") if part.strip()]
    if not names:
        raise ConfigError(f"device={device!r} names no device: give auto, cpu or cuda:0,cuda:1, …")
    if names == ["cpu"]:
        per_device = max(1, _n_cores() // threads)
    else:
        per_device = _MPS_SLOTS if _mps_runs() else 1
    return [names[i % len(names)] for i in range(workers or per_device * len(names))]


def _n_cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _mps_runs() -> bool:
    return (Path(os.environ.get("CUDA_MPS_PIPE_DIRECTORY", "/tmp/nvidia-mps")) / "control").exists()
