"""Devices and their memory: what is free, what a training or a stack needs, and where its entities are stored."""

from __future__ import annotations

import functools
import logging
import math
import os
import resource
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import torch

from grash.errors import ConfigError, MemoryPlanError
from grash.evaluation.ranking import ranking_bytes
from grash.formatting import format_bytes
from grash.kernels.pair_scores import tile_bytes
from grash.kernels.storage import Placement, check_placement
from grash.models import model_class
from grash.models.autograd import AutogradModel
from grash.models.rotate import prediction_tiles
from grash.training.batches import needs_index
from grash.training.captured import uses_captured_step
from grash.training.config import TrainConfig
from grash.training.fused import uses_fused_step, work_bytes
from grash.training.initial import STORAGE_DTYPES
from grash.training.optimizers import state_bytes

log = logging.getLogger(__name__)

USABLE_SHARE = 0.9  # of free memory that trainings are planned for
_KNOWN_ANSWERS = 8  # per validation triple, as a first guess


def choose_device(name: str = "auto") -> torch.device:
    """Return the device of a name: `auto` (a GPU if there is one), `cpu`, `cuda` or `cuda:i`."""
    if name == "auto":
        if torch.cuda.is_available():
            return torch.device("cuda", 0)
        _warn_about_unused_gpu()
        return torch.device("cpu")
    if name == "cpu":
        return torch.device("cpu")
    kind, _, index = name.partition(":")
    if kind != "cuda" or (index and not index.isdigit()):
        raise ConfigError(f"device={name!r} is unknown: give auto, cpu, cuda or cuda:0, cuda:1, …")
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if int(index or 0) >= count:
        raise ConfigError(f"device={name!r} does not exist: this machine has {count} CUDA devices. Give auto or cpu.")
    return torch.device("cuda", int(index or 0))


@functools.cache
def _warn_about_unused_gpu() -> None:
    """Log once that the CPU is used although there is a GPU of Apple (mps) or Intel (xpu)."""
    for kind, found in (("Apple (mps)", torch.backends.mps.is_available()), ("Intel (xpu)", torch.xpu.is_available())):
        if found:
            log.warning("The CPU is used: grash runs on NVIDIA GPUs only, and this machine has a GPU of %s.", kind)


def total_bytes(device: torch.device) -> int:
    """Return the memory of a GPU."""
    return int(torch.cuda.get_device_properties(device).total_memory)


def free_bytes(device: torch.device) -> int:
    """Return the memory that can still be allocated."""
    if device.type == "cuda":
        free, total = torch.cuda.mem_get_info(device)
        share = getattr(torch.cuda, "get_per_process_memory_fraction", lambda _: 1.0)  # since torch 2.8
        used = torch.cuda.memory_allocated(device)
        return min(free + torch.cuda.memory_reserved(device), int(total * share(device))) - used
    return min(_machine_free(), _container_free(), _address_space_free())


def used_bytes(device: torch.device) -> int:
    """Return the memory that this process uses: on the GPU, or resident."""
    if device.type == "cuda":
        return torch.cuda.memory_allocated(device)
    try:
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return 0


@dataclass(frozen=True)
class MemoryPlan:
    """Bytes of a training or stack, by purpose.

    Where the placement stores entities elsewhere, tables and optimizer are those of the relations only.
    """

    tables: int
    optimizer: int
    triples: int
    step: int  # work space of a step
    ranking: int  # work space of a validation
    best_tables: int  # copy of the best weights, in host memory or on disk
    step_stays: bool = False  # the work space of a step stays allocated while ranking, as that of a CUDA graph does
    building: int = 0  # a model that is built and then moved into its stack, before there is a work space
    placement: Placement = field(default_factory=Placement)
    entities: int = 0  # entity table, where the placement stores it
    entity_optimizer: int = 0  # optimizer state of the entities, stored likewise
    note: str = ""  # what would change the placement

    @property
    def device(self) -> int:
        """Bytes on the device. Training and ranking do not run at the same time."""
        work = self.step + self.ranking if self.step_stays else max(self.step, self.ranking)
        return self.tables + self.optimizer + self.triples + max(work, self.building)

    @property
    def memory(self) -> int:
        """Bytes of host memory, in addition to the device."""
        return self._stored("host") + (0 if self._best_on_disk else self.best_tables)

    @property
    def disk(self) -> int:
        """Bytes of unnamed temporary files."""
        return self._stored("disk") + (self.best_tables if self._best_on_disk else 0)

    def on_device(self, device: torch.device) -> int:
        """Bytes taken from the memory of this device; a CPU's memory holds the best weights, too."""
        return self.device + (self.memory if device.type == "cpu" else 0)

    def sentence(self) -> str:
        parts = (
            ("tables", self.tables), ("optimizer", self.optimizer), ("triples", self.triples), ("step", self.step),
            ("ranking", self.ranking),
        )  # fmt: skip
        text = f"{format_bytes(self.device)} ({', '.join(f'{name} {format_bytes(n)}' for name, n in parts)})"
        if self.placement.offloaded:
            where = "in host memory" if self.placement.kind == "host" else "on disk"
            text += (
                f", {format_bytes(self.entities + self.entity_optimizer)} {where} (entities "
                f"{format_bytes(self.entities)}, their optimizer state {format_bytes(self.entity_optimizer)})"
            )
        if self.best_tables:
            text += f", and {format_bytes(self.best_tables)}{' on disk' * self._best_on_disk} for the best weights"
        return f"{text}. {self.note}" if self.note else text

    __str__ = sentence

    def _stored(self, kind: str) -> int:
        return self.entities + self.entity_optimizer if self.placement.kind == kind else 0

    @property
    def _best_on_disk(self) -> bool:
        return self.placement.folder is not None


def plan_memory(
    configs: Sequence[TrainConfig],
    n_entities: int,
    n_relations: int,
    n_train: int,
    device: torch.device,
    *,
    n_valid: int = 0,
    n_filtered: int | None = None,
    placement: Placement = Placement(),  # noqa: B008, frozen
    keep_best: bool = True,
) -> MemoryPlan:
    """Return the plan of trainings with these configurations that are trained together on a graph of this size.

    They have tables of one shape, and the fused step has one work space for all. n_filtered: known answers to the
    validation questions, if they have been counted. placement: of a single training. keep_best: keep the best weights.
    """
    config, n_trainings, model = configs[0], len(configs), model_class(configs[0].model)
    width, entity_width = model.relation_width(config.dim), model.entity_width(config.dim)
    relations = n_relations * (2 if config.reciprocal else 1)
    weights = sum(math.prod(weight.shape) for weight in model.weight_shapes(config.dim).values())
    entities = STORAGE_DTYPES[config.storage].itemsize * n_entities * entity_width
    tables = 4 * (relations * width + weights)
    row_index = 4 * (n_entities + relations)  # kept on a CPU only
    state = state_bytes(config, n_entities, entity_width) - 4 * n_entities
    optimizer = state_bytes(config, relations, width) - 4 * relations + (row_index if device.type == "cpu" else 0)
    optimizer += state_bytes(config, 1, weights) if weights else 0
    best = entities + tables if keep_best else 0
    if not placement.offloaded:
        tables, optimizer, entities, state = tables + entities, optimizer + state, 0, 0
    fused = all(uses_fused_step(c, device) for c in configs)
    if fused:
        step = work_bytes(configs, n_entities, n_relations, device)
    else:
        step = max(_step_bytes(c, n_entities, relations, width, device) for c in configs)
    n_filtered = _KNOWN_ANSWERS * n_valid if n_filtered is None else n_filtered
    return MemoryPlan(
        tables=n_trainings * tables,
        optimizer=n_trainings * optimizer,
        triples=12 * n_train * _triple_copies(config, device),
        step=step,
        ranking=_ranking_bytes(config, n_valid, n_filtered, n_entities, device, placement),
        best_tables=n_trainings * best,
        step_stays=fused or uses_captured_step(config, device),
        building=tables + optimizer if n_trainings > 1 else 0,
        placement=placement,
        entities=entities,
        entity_optimizer=state,
    )


def _ranking_bytes(
    config: TrainConfig, n_valid: int, n_filtered: int, n_entities: int, device: torch.device, placement: Placement
) -> int:
    """Return the work space of a validation, with candidates that are computed from the entities' rows."""
    model = model_class(config.model)
    width, copied = model.query_width(config.dim), model.query_width(config.dim) > model.entity_width(config.dim)
    ranking = ranking_bytes(n_valid, n_filtered, n_entities, width, device, offloaded=placement.offloaded)
    return ranking + (2 * 4 * n_entities * width if copied and n_valid else 0)


def _triple_copies(config: TrainConfig, device: torch.device) -> int:
    """Return how many times the training triples are stored, at most: with an index of answers, and with one on the
    device (`Batches.questions_on_device`: four numbers for each question and one for each answer)."""
    if config.training == "kvsall" and (uses_fused_step(config, device) or uses_captured_step(config, device)):
        return 7
    return 3 if needs_index(config) else 1


def choose_placement(
    config: TrainConfig,
    n_entities: int,
    n_relations: int,
    n_train: int,
    device: torch.device,
    *,
    placement: str = "auto",
    folder: Path | None = None,
    n_valid: int = 0,
    n_filtered: int | None = None,
    keep_best: bool = True,
) -> MemoryPlan:
    """Return the plan of a training with the first placement that fits, or raise MemoryPlanError.

    placement: auto, device, host or disk. folder: where temporary files may be created.
    """
    check_placement(placement, device)
    model = model_class(config.model)
    if model.query_width(config.dim) > model.entity_width(config.dim):  # its candidates are no rows of the table
        if placement in ("host", "disk"):
            raise ConfigError(f"placement={placement} does not work with model={config.model}: give device.")
        placement = "device"

    def planned(config: TrainConfig, where: Placement) -> MemoryPlan:
        return plan_memory(
            [config], n_entities, n_relations, n_train, device, n_valid=n_valid, n_filtered=n_filtered,
            placement=where, keep_best=keep_best,
        )  # fmt: skip

    plans = [planned(config, candidate) for candidate in _candidates(placement, device, folder)]
    for plan in plans:
        if not _shortages(plan, device):
            return replace(plan, note=_savings_note(config, plan, planned, device))
    first, *others = plans
    other = "".join(f" With placement={p.placement.kind}: {'; '.join(_shortages(p, device))}." for p in others[-1:])
    raise MemoryPlanError(
        f"The run needs {'; '.join(_shortages(first, device))}: {first.sentence()}.{other} "
        f"Try {_advice(first, config, alone=True)}."
    )


def check_memory(plan: MemoryPlan, config: TrainConfig, device: torch.device, *, n_ranks: int = 1) -> None:
    """Raise MemoryPlanError with advice if n_ranks processes with this plan do not fit on the device."""
    free, need = free_bytes(device), n_ranks * plan.on_device(device)
    if need > free:
        who = "The run needs" if n_ranks == 1 else f"The {n_ranks} ranks that share {device} on this machine need"
        where = f" on {device}" if n_ranks == 1 else " together"
        each = "" if n_ranks == 1 else " for each"
        raise MemoryPlanError(
            f"{who} {format_bytes(need)}{where}, only {format_bytes(free)} is free:{each} {plan.sentence()}. "
            f"Try {_advice(plan, config)}."
        )


def fits(plan: MemoryPlan, device: torch.device) -> bool:
    """Return whether to try a stack with this plan."""
    return plan.on_device(device) <= USABLE_SHARE * free_bytes(device)


def free_disk(folder: Path) -> int:
    """Return the free bytes of the disk on which the folder is or would be."""
    path = folder.absolute()
    while not path.exists() and path != path.parent:
        path = path.parent
    return shutil.disk_usage(path).free


def _step_bytes(config: TrainConfig, n_entities: int, relations: int, width: int, device: torch.device) -> int:
    """Return the bytes of score matrices (scores, their exponentials, gradients), of a step's rows with their
    gradients, and of tiles of distances where these are not computed in a loop."""
    cls = model_class(config.model)
    batch, dim = config.batch_size, cls.query_width(config.dim)
    dropout = 3 if config.dropout_entity else 1
    if config.training == "negative_sampling":
        negatives = (config.negatives_head, config.negatives_tail)
        rows = 2 * batch + sum(n if config.negatives_shared else n * batch for n in negatives)
        scores = 3 * batch * max(negatives)
        candidates = max(negatives) if config.negatives_shared else 0
    else:
        rows = 2 * batch + 2 * n_entities
        scores = 4 * batch * n_entities
        candidates = n_entities
    if config.optimizer == "adam" or not config.penalty_weighted:
        rows += n_entities
    if config.storage == "bf16" and (config.training != "negative_sampling" or not config.penalty_weighted):
        rows += n_entities  # all entities in float32
    relation_rows = 2 * batch * width + (relations * width if config.relation_prediction else 0)
    if config.relation_prediction:
        scores += 4 * batch * relations + (prediction_tiles(batch, relations, width) if config.model == "rotate" else 0)
    weights = {name: torch.empty(w.shape, device="meta") for name, w in cls.weight_shapes(config.dim).items()}
    tables = torch.empty(0, cls.entity_width(config.dim)), torch.empty(0, width)
    pair = cls(*tables, reciprocal=config.reciprocal, norm=config.norm, weights=weights).pair
    if issubclass(cls, AutogradModel):  # what autograd keeps of the queries, and gradients of the weights
        scores += batch * cls.query_floats(config.dim) + 2 * sum(weight.numel() for weight in weights.values())
    floats = scores + (3 + dropout) * rows * dim + 6 * batch * dim + 4 * relation_rows
    return 4 * floats + tile_bytes(batch, candidates, dim, pair, device)


def _candidates(placement: str, device: torch.device, folder: Path | None) -> list[Placement]:
    """Return the placements to try, fastest first: best weights in memory before best weights on disk."""
    host = [Placement("host"), *([Placement("host", folder)] if folder is not None else [])]
    if placement == "host":
        return host
    if placement == "disk":
        return [Placement("disk", folder)]
    found = [Placement()]
    if device.type == "cuda" and folder is not None:
        found.append(Placement("device", folder))
    if placement == "auto":
        if device.type == "cuda":
            found += host
        elif folder is not None:
            found.append(Placement("disk", folder))
    return found


def _shortages(plan: MemoryPlan, device: torch.device) -> list[str]:
    """Return a phrase for each resource of which there is too little; empty if the plan fits."""
    resources = [(plan.on_device(device), free_bytes(device), f"on {device}")]
    if device.type != "cpu" and plan.memory:  # pinned: what a GPU reads cannot be paged out
        resources.append((plan.memory, int(USABLE_SHARE * free_bytes(torch.device("cpu"))), "of host memory"))
    if plan.disk and plan.placement.folder is not None:
        folder = plan.placement.folder
        resources.append((plan.disk, free_disk(folder), f"on the disk of {folder}"))
    return [
        f"{format_bytes(need)} {where}, only {format_bytes(free)} is free"
        for need, free, where in resources
        if need > free
    ]


def _savings_note(
    config: TrainConfig,
    plan: MemoryPlan,
    planned: Callable[[TrainConfig, Placement], MemoryPlan],
    device: torch.device,
) -> str:
    """Return what row-wise Adagrad and bf16 entities would save if the entities are stored elsewhere.

    Each alone, and both together if neither alone makes the training fit on the device.
    """
    if not plan.placement.offloaded:
        return ""
    options: dict[str, dict[str, str]] = {}
    if config.optimizer != "row_adagrad" and plan.entity_optimizer:
        options["optimizer=row_adagrad (one number per row)"] = {"optimizer": "row_adagrad"}
    if config.storage == "float32" and config.optimizer != "adam":
        options["storage=bf16 (two bytes per float)"] = {"storage": "bf16"}
    if len(options) == 2:
        options["both"] = {"optimizer": "row_adagrad", "storage": "bf16"}
    sentences: list[str] = []
    enough = False
    for name, changes in options.items():
        smaller = config.changed(**changes)
        lean = planned(smaller, plan.placement)
        saved = plan.entities + plan.entity_optimizer - lean.entities - lean.entity_optimizer
        fitting = not _shortages(planned(smaller, Placement()), device)
        if name != "both" or (fitting and not enough):
            then = f", and everything would fit on {device}" if fitting else ""
            sentences.append(f"With {name} it would take {format_bytes(saved)} less{then}")
        enough = enough or fitting
    return ". ".join(sentences)


def _advice(plan: MemoryPlan, config: TrainConfig, *, alone: bool = False) -> str:
    """Return what to change if a plan does not fit. alone: one process trains, which may store entities in bf16."""
    if plan.step > plan.tables + plan.optimizer + plan.entities + plan.entity_optimizer:
        fewer = "fewer negatives" if config.training == "negative_sampling" else "training=negative_sampling"
        return f"a smaller batch_size or {fewer}"
    half = alone and config.storage == "float32" and config.optimizer != "adam"
    bf16 = ", or storage=bf16 (entities in half the bytes)" if half else ""
    return f"a smaller dim, or optimizer=row_adagrad (one number per row){bf16}"


def _machine_free() -> int:
    try:
        for line in Path("/proc/meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    except OSError:
        pass
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def _address_space_free() -> int:
    """Return what `ulimit -v` leaves; a very large number without a limit."""
    limit = resource.getrlimit(resource.RLIMIT_AS)[0]
    if limit == resource.RLIM_INFINITY:
        return 1 << 62
    return max(0, limit - int(Path("/proc/self/statm").read_text().split()[0]) * os.sysconf("SC_PAGE_SIZE"))


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
