"""Where the entity table and its optimizer state are stored. Relations are always stored on the training device.

    device   on the training device: GPU memory, or the CPU's memory
    host     in host memory, whose rows the GPU reads and writes over the bus; on a CPU the same as `device`
    disk     in memory-mapped files, for a CPU with less memory than the model needs

Placement changes the speed but no number. `engines/memory` decides what fits; `kernels/host_rows` allocates.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor

from grash.errors import ConfigError
from grash.kernels.host_rows import file_rows, host_rows

Kind = Literal["device", "host", "disk"]
PLACEMENTS = ("auto", "device", "host", "disk")


@dataclass(frozen=True)
class Placement:
    """Where entity rows are stored."""

    kind: Kind = "device"
    folder: Path | None = None  # of unnamed files: tables on disk, and best weights; None keeps the latter in memory

    def __post_init__(self) -> None:
        if self.kind == "disk" and self.folder is None:
            raise ConfigError("placement=disk needs a folder for its files: give one for the model or the checkpoint.")

    @property
    def offloaded(self) -> bool:
        """Whether entity rows are in host memory or on disk."""
        return self.kind != "device"

    def rows(self, n: int, width: int, device: torch.device, *, dtype: torch.dtype = torch.float32) -> Tensor:
        """Allocate zeros (n, width) for entities."""
        if self.kind == "host":
            return host_rows(n, width, device, dtype=dtype)
        if self.kind == "disk":
            assert self.folder is not None
            return file_rows(n, width, self.folder, dtype=dtype)
        return torch.zeros(n, width, dtype=dtype, device=device)

    def best_rows(self, table: Tensor) -> Tensor:
        """Allocate memory for the best weights of a table, on the host."""
        if self.folder is not None:
            return file_rows(len(table), table.shape[1], self.folder, dtype=table.dtype)
        return torch.empty(table.shape, dtype=table.dtype)


def check_placement(name: str, device: torch.device) -> None:
    """Raise ConfigError for a placement that is unknown or not possible on the device."""
    if name not in PLACEMENTS:
        raise ConfigError(f"placement={name!r} is unknown: give {', '.join(PLACEMENTS[:-1])} or {PLACEMENTS[-1]}.")
    if name == "disk" and device.type != "cpu":
        raise ConfigError(f"placement=disk needs device=cpu, but the device is {device}: give device=cpu, or host.")
