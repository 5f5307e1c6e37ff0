"""Choose a device, and read how much memory is free or used on it."""

from __future__ import annotations

import os
from pathlib import Path

import torch

from grash.errors import ConfigError


def choose_device(name: str = "auto") -> torch.device:
    """Return the device of a name: `auto` (a GPU if there is one), `cpu`, `cuda` or `cuda:i`."""
    if name == "auto":
        return torch.device("cuda", 0) if torch.cuda.is_available() else torch.device("cpu")
    if name == "cpu":
        return torch.device("cpu")
    kind, _, index = name.partition(":")
    if kind != "cuda" or (index and not index.isdigit()):
        raise ConfigError(f"device={name!r} is unknown: give auto, cpu, cuda or cuda:0, cuda:1, …")
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if int(index or 0) >= count:
        raise ConfigError(f"device={name!r} does not exist: this machine has {count} CUDA devices. Give auto or cpu.")
    return torch.device("cuda", int(index or 0))


def free_bytes(device: torch.device) -> int:
    """Return the memory that can still be allocated."""
    if device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
        return free + torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    return min(_machine_free(), _container_free())


def used_bytes(device: torch.device) -> int:
    """Return the memory that this process uses: on the GPU, or resident."""
    if device.type == "cuda":
        return torch.cuda.memory_allocated(device)
    try:
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return 0


def _machine_free() -> int:
    try:
        for line in Path("/proc/meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    except OSError:
        pass
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def _container_free(root: Path = Path("/sys/fs/cgroup")) -> int:
    """Return what the limit of a container leaves (cgroup 2, then 1); a very large number without a limit."""
    for limit, used in (
        ("memory.max", "memory.current"),
        ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes"),
    ):
        try:
            return max(0, int((root / limit).read_text()) - int((root / used).read_text()))
        except (OSError, ValueError):  # no such file, or "max"
            continue
    return 1 << 62
