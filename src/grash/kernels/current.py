"""The card that launches go to."""

from __future__ import annotations

import torch


def make_current(device: torch.device) -> None:
    """Call before work on a device. Triton's launches, graphs, streams and events take the current card, whatever card
    the tensors lie on."""
    if device.index is not None and device.type == "cuda":
        torch.cuda.set_device(device)
