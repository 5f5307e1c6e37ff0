"""Whether the fused step (`fused`) serves a configuration on a device, and if not, why."""

from __future__ import annotations

import importlib.util
import os
from typing import Any

import torch

from grash.errors import ConfigError
from grash.training.config import TrainConfig

_MODELS = ("complex", "distmult", "transe", "rotate")
_OLDEST = (9, 0)  # compute capability of the devices that this was tried on
_WIDEST = 512  # floats of a row whose tiles fit into a multiprocessor
_WIDEST_FLOAT32 = 128  # of three tf32 products for one
_SERVED: dict[str, tuple[Any, ...]] = {
    "model": _MODELS,
    "training": ("negative_sampling", "1vsall"),
    "loss": ("softmax", "self_adversarial"),
    "negatives_shared": (True,),
    "negatives_replacement": (False,),
    "negatives_sampling": ("uniform",),
    "negatives_filtered": (False,),
    "optimizer": ("adagrad", "row_adagrad"),
    "penalty": ("none", "l1", "l2", "l3", "n3"),
}


def why_not(config: TrainConfig, device: torch.device) -> list[str]:
    """What keeps this configuration from the fused step on this device; empty if nothing does."""
    reasons = []
    if device.type != "cuda":
        reasons.append(f"the device is {device.type}, not cuda")
    elif torch.cuda.get_device_capability(device) < _OLDEST:
        reasons.append(f"its compute capability is below {'.'.join(map(str, _OLDEST))}")
    if importlib.util.find_spec("triton") is None:
        reasons.append("Triton is not installed")
    multiplies = config.model in ("complex", "distmult")
    widest = _WIDEST_FLOAT32 if multiplies and config.precision == "float32" else _WIDEST
    if config.dim % 2 or config.dim > widest:
        reasons.append(f"dim={config.dim} is not an even number up to {widest} (precision={config.precision})")
    for name, served in _SERVED.items():
        if getattr(config, name) not in served:
            reasons.append(f"{name}={getattr(config, name)} is not {' or '.join(map(str, served))}")
    if not multiplies and config.training == "1vsall":
        reasons.append(f"training=1vsall of distances (model={config.model}) would keep a score for every entity")
    if config.relation_prediction and config.model == "rotate":
        reasons.append("relation_prediction is above 0 with model=rotate")
    if config.penalty != "none" and not config.penalty_weighted:
        reasons.append("penalty_weighted is false")
    return reasons


def serves(config: TrainConfig, device: torch.device) -> bool:
    """Whether the fused step runs; GRASH_KERNELS=reference keeps the plain one, GRASH_KERNELS=triton demands this."""
    choice = os.environ.get("GRASH_KERNELS", "")
    reasons = why_not(config, device)
    if choice == "triton" and reasons and device.type == "cuda":
        raise ConfigError(f"GRASH_KERNELS=triton, but the fused step cannot serve this: {'; '.join(reasons)}.")
    return choice != "reference" and not reasons
