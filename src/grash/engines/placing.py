"""Which placement a training gets: the first that fits, of those that suit the device, or the one that was asked for.

Comes from a configuration and the sizes of a graph, goes to `run` and to what the command line says before it runs.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from grash.engines.device import free_bytes
from grash.engines.memory import MemoryPlan, advice, human, needed_bytes, plan_stack
from grash.errors import MemoryPlanError
from grash.training.config import TrainConfig
from grash.training.placement import Placement, check_placement

_Planned = Callable[[TrainConfig, Placement], MemoryPlan]
_PINNED_SHARE = 0.9  # of free host memory that tables may take: what a card reads cannot be paged out


@dataclass(frozen=True)
class Placed:
    """Where a training's entities will lie, what it takes, and what would change that."""

    placement: Placement
    plan: MemoryPlan
    note: str = ""

    def sentence(self) -> str:
        return f"{self.plan.sentence()}{'. ' if self.note else ''}{self.note}"


def place_training(
    config: TrainConfig,
    n_entities: int,
    n_relations: int,
    n_train: int,
    device: torch.device,
    *,
    asked: str = "auto",
    folder: Path | None = None,
    n_valid: int = 0,
    n_filtered: int | None = None,
    weights: bool = True,
) -> Placed:
    """asked: auto, device, host or disk. folder: where files may be made. weights: the best ones are kept. Raises
    MemoryPlanError if nothing fits."""
    check_placement(asked, device)

    def planned(config: TrainConfig, way: Placement) -> MemoryPlan:
        return plan_stack(
            [config], n_entities, n_relations, n_train, device, n_valid=n_valid, n_filtered=n_filtered, placement=way,
            weights=weights,
        )  # fmt: skip

    plans = [planned(config, way) for way in _ways(asked, device, folder)]
    for plan in plans:
        if not lacks(plan, device):
            return Placed(plan.placement, plan, _note(config, plan, planned, device))
    raise MemoryPlanError(_refusal(config, plans, device))


def lacks(plan: MemoryPlan, device: torch.device) -> list[str]:
    """What there is too little of for this plan; empty if it fits."""
    found = []
    need, free = needed_bytes(plan, device), free_bytes(device)
    if need > free:
        found.append(f"{human(need)} on {device} and {human(free)} are free")
    if device.type != "cpu" and plan.memory:
        free = int(_PINNED_SHARE * free_bytes(torch.device("cpu")))
        if plan.memory > free:
            found.append(f"{human(plan.memory)} of host memory and {human(free)} can be taken")
    if plan.disk and plan.placement.folder is not None:
        free = free_disk(plan.placement.folder)
        if plan.disk > free:
            found.append(f"{human(plan.disk)} on the disk of {plan.placement.folder} and {human(free)} are free")
    return found


def _ways(asked: str, device: torch.device, folder: Path | None) -> list[Placement]:
    """In the order of their speed: best weights in memory before those on disk."""
    host = [Placement("host"), *([Placement("host", folder)] if folder is not None else [])]
    if asked == "host":
        return host
    if asked == "disk":
        return [Placement("disk", folder)]
    ways = [Placement()]
    if device.type == "cuda" and folder is not None:
        ways.append(Placement("device", folder))
    if asked == "auto":
        if device.type == "cuda":
            ways += host
        elif folder is not None:
            ways.append(Placement("disk", folder))
    return ways


def _note(config: TrainConfig, plan: MemoryPlan, planned: _Planned, device: torch.device) -> str:
    """What row-wise Adagrad and entities in bf16 would change, where the entities lie elsewhere: each alone, and both
    together where neither is enough. planned: the plan of a configuration in a placement."""
    if not plan.placement.far:
        return ""
    ways: list[tuple[str, dict[str, str]]] = []
    if config.optimizer != "row_adagrad" and plan.state:
        ways.append(("optimizer=row_adagrad, one number per row,", {"optimizer": "row_adagrad"}))
    if config.storage == "float32" and config.optimizer != "adam":
        ways.append(("storage=bf16, two bytes per float,", {"storage": "bf16"}))
    found, enough = [], False
    for words, changes in ways:
        saved, fits = _saved(config.changed(**changes), plan, planned, device)
        found.append(f"With {words} it would take {human(saved)} less{fits}")
        enough = enough or bool(fits)
    if len(ways) == 2 and not enough:
        saved, fits = _saved(config.changed(**ways[0][1], **ways[1][1]), plan, planned, device)
        if fits:
            found.append(f"With both it would take {human(saved)} less{fits}")
    return ". ".join(found)


def _saved(config: TrainConfig, plan: MemoryPlan, planned: _Planned, device: torch.device) -> tuple[int, str]:
    """Bytes of entities and their state that this configuration would take less than the plan, and whether all of it
    would fit on the device, in words."""
    lean = planned(config, plan.placement)
    fits = "" if lacks(planned(config, Placement()), device) else f", and all of it would fit on {device}"
    return plan.entities + plan.state - lean.entities - lean.state, fits


def _refusal(config: TrainConfig, plans: Sequence[MemoryPlan], device: torch.device) -> str:
    first, *others = plans
    elsewhere = "".join(f" With placement={p.placement.kind}: {'; '.join(lacks(p, device))}." for p in others[-1:])
    return (
        f"The run needs {'; '.join(lacks(first, device))}: {first.sentence()}.{elsewhere} "
        f"Try {advice(first, config, alone=True)}."
    )


def free_disk(folder: Path) -> int:
    """Of the disk on which the folder is or would be."""
    place = folder.absolute()
    while not place.exists() and place != place.parent:
        place = place.parent
    return shutil.disk_usage(place).free
