"""Where a training's entity table and its optimizer state lie. Relations always lie where the training computes.

    device   where it computes: on the card, or in a CPU's memory
    host     in host memory, whose rows the card reads and writes over the bus; for a CPU the same as `device`
    disk     in files that are mapped, for a CPU with less memory than the model
It changes the speed and no number: the same kernels and loops run over the same rows. What fits is planned in
`engines/memory`; how memory is made and walked through is in `kernels/host_rows`.
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
    """folder: where files without a name are made, for tables on disk, and for the best weights where the memory has no
    room for them; None keeps the best weights in memory."""

    kind: Kind = "device"
    folder: Path | None = None

    def __post_init__(self) -> None:
        if self.kind == "disk" and self.folder is None:
            raise ConfigError("placement=disk needs a folder for its files: give one for the model or the checkpoint.")

    @property
    def far(self) -> bool:
        return self.kind != "device"

    def rows(self, n: int, width: int, device: torch.device, *, dtype: torch.dtype = torch.float32) -> Tensor:
        """(n, width) zeros for entities."""
        if self.kind == "host":
            return host_rows(n, width, device, dtype=dtype)
        if self.kind == "disk":
            assert self.folder is not None
            return file_rows(n, width, self.folder, dtype=dtype)
        return torch.zeros(n, width, dtype=dtype, device=device)

    def kept(self, like: Tensor) -> Tensor:
        """Room for the best weights of a table, on the host."""
        if self.folder is not None:
            return file_rows(len(like), like.shape[1], self.folder, dtype=like.dtype)
        return torch.empty(like.shape, dtype=like.dtype)


def check_placement(name: str, device: torch.device) -> None:
    """Raises ConfigError for a name that is unknown or does not suit the device."""
    if name not in PLACEMENTS:
        raise ConfigError(f"placement={name!r} is unknown: give {', '.join(PLACEMENTS[:-1])} or {PLACEMENTS[-1]}.")
    if name == "disk" and device.type != "cpu":
        raise ConfigError(f"placement=disk trains on a CPU, and the device is {device}: give device=cpu, or host.")
