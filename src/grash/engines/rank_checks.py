"""What the ranks of one training make sure of together, before hours are spent: the same command, memory for all of
them, a disk that all see, the same checkpoint.

Comes from `distributed`. Ranks that differ in any of it would wait for each other, or train something else.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from grash.engines.device import free_bytes
from grash.engines.memory import MemoryPlan, advice, check_memory, human, needed_bytes
from grash.errors import InputError, MemoryPlanError
from grash.training.config import TrainConfig
from grash.training.sharded_company import Company


def check_alike(given: Mapping[str, Any], company: Company) -> None:
    """given: what all ranks must have been given alike, by the names that a person knows it by."""
    digests = [hashlib.sha256(json.dumps(value, sort_keys=True).encode()).digest() for value in given.values()]
    told = company.gather(torch.tensor([list(digest) for digest in digests], dtype=torch.uint8))
    differs = (told != told[0]).any(2)  # (ranks, names)
    ranks = differs.any(1).nonzero()[:, 0].tolist()
    if ranks:
        names = [name for name, other in zip(given, differs[ranks[0]].tolist()) if other]
        raise InputError(
            f"Rank {ranks[0]} differs from rank 0 in {', '.join(names)}: give every machine the same command, the same "
            f"graph and the same grash."
        )


def check_memory_of_ranks(plan: MemoryPlan, config: TrainConfig, device: torch.device, company: Company) -> None:
    """`check_memory` for all ranks that take from the same memory; nobody allocates before all have looked."""
    sharing = ranks_on(device, company)
    if sharing == 1:
        check_memory(plan, config, device)
    else:
        free, need = free_bytes(device), sharing * needed_bytes(plan, device)
        if need > free:
            raise MemoryPlanError(
                f"The {sharing} ranks that share {device} on this machine need {human(need)} together, and "
                f"{human(free)} are free; for each: {plan.sentence()}. Try {advice(plan, config)}."
            )
    company.any(False)


def ranks_on(device: torch.device, company: Company) -> int:
    """How many ranks of this machine take from the device's memory: all of them from that of a CPU."""
    shared = device.type == "cpu" or company.staged
    return int(os.environ.get("LOCAL_WORLD_SIZE", "1")) if shared else 1


def check_same_step(step: int, checkpoint: Path, company: Company) -> None:
    """All ranks go on from the same checkpoint, or all begin."""
    steps = company.gather(torch.tensor([step]))[:, 0].tolist()
    if len(set(steps)) > 1:
        rank = next(rank for rank, other in enumerate(steps) if other != steps[0])
        raise InputError(
            f"Not all ranks see {checkpoint}: rank 0 stands at step {steps[0]:,} and rank {rank} at step "
            f"{steps[rank]:,}. Give a model folder on a disk that all of them share."
        )
