"""What a run will take, before anything large is allocated: one training, or several that are trained together."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch

from grash.engines.device import free_bytes
from grash.errors import MemoryPlanError
from grash.evaluation.ranking import ranking_bytes
from grash.formatting import format_bytes
from grash.kernels.pair_scores import tile_bytes
from grash.models import model_class
from grash.models.rotate import prediction_tiles
from grash.training.batches import needs_index
from grash.training.config import TrainConfig
from grash.training.fused import serves, work_bytes
from grash.training.initial import STORED
from grash.training.optimizers import state_bytes
from grash.training.placement import Placement, check_placement

_FREE_SHARE = 0.9  # of free memory that a stack may be planned for
_ANSWERS = 8  # known to the questions of a validation triple, as a first guess


@dataclass(frozen=True)
class MemoryPlan:
    """Bytes on the device, by what they are for; `host` is what the best weights take beside it. Where entities lie
    elsewhere (`placement`), tables and optimizer are those of the relations."""

    tables: int
    optimizer: int
    triples: int
    step: int
    ranking: int
    host: int
    stays: bool = False  # the step's work space while ranking, as that of the fused step does
    moving: int = 0  # a model that is made and then moved into its stack, before there is a work space
    placement: Placement = field(default_factory=Placement)
    entities: int = 0  # where the placement says
    state: int = 0  # the optimizer's for entities, likewise

    @property
    def device(self) -> int:
        """Training and ranking do not work at the same time."""
        work = self.step + self.ranking if self.stays else max(self.step, self.ranking)
        return self.tables + self.optimizer + self.triples + max(work, self.moving)

    @property
    def memory(self) -> int:
        """Bytes of host memory beside the device."""
        far = self.entities + self.state if self.placement.kind == "host" else 0
        return far + (0 if self._best_on_disk else self.host)

    @property
    def disk(self) -> int:
        """Bytes of files without a name."""
        far = self.entities + self.state if self.placement.kind == "disk" else 0
        return far + (self.host if self._best_on_disk else 0)

    @property
    def _best_on_disk(self) -> bool:
        return self.placement.folder is not None

    def sentence(self) -> str:
        parts = [f"{name} {format_bytes(value)}" for name, value in (
            ("tables", self.tables), ("optimizer", self.optimizer), ("triples", self.triples),
            ("step", self.step), ("ranking", self.ranking))]  # fmt: skip
        far = ""
        if self.placement.far:
            where = "in host memory" if self.placement.kind == "host" else "on disk"
            split = f"entities {format_bytes(self.entities)}, their optimizer state {format_bytes(self.state)}"
            far = f", {format_bytes(self.entities + self.state)} {where} ({split})"
        best = f", and {format_bytes(self.host)}{' on disk' if self._best_on_disk else ''} for the best weights"
        return f"{format_bytes(self.device)} ({', '.join(parts)}){far}{best if self.host else ''}"


def plan_memory(
    config: TrainConfig,
    n_entities: int,
    n_relations: int,
    n_train: int,
    device: torch.device,
    *,
    n_valid: int = 0,
    weights: bool = True,
) -> MemoryPlan:
    """The plan for a training of this size, all of it on this device, validated on n_valid triples. weights: those of
    the best validation are kept."""
    return plan_stack([config], n_entities, n_relations, n_train, device, n_valid=n_valid, weights=weights)


def plan_stack(
    configs: Sequence[TrainConfig],
    n_entities: int,
    n_relations: int,
    n_train: int,
    device: torch.device,
    *,
    n_valid: int = 0,
    n_filtered: int | None = None,
    placement: Placement = Placement(),  # noqa: B008, frozen
    weights: bool = True,
) -> MemoryPlan:
    """The same for trainings that are trained together: tables of one shape, a work space of the fused step for all.
    n_filtered: known answers to the questions of validation, where they have been counted. placement: of one alone."""
    config, trials = configs[0], len(configs)
    width = model_class(config.model).relation_width(config.dim)
    relations = n_relations * (2 if config.reciprocal else 1)
    entities, tables = STORED[config.storage].itemsize * n_entities * config.dim, 4 * relations * width
    places = 4 * (n_entities + relations)  # of rows, which only a CPU keeps
    state = state_bytes(config, n_entities, config.dim) - 4 * n_entities
    optimizer = state_bytes(config, relations, width) - 4 * relations + (places if device.type == "cpu" else 0)
    best = entities + tables if weights else 0
    if not placement.far:
        tables, optimizer, entities, state = tables + entities, optimizer + state, 0, 0
    triples = 12 * n_train * (3 if needs_index(config) else 1)
    fused = all(serves(c, device) for c in configs)
    step = (
        work_bytes(configs, n_entities, n_relations)
        if fused
        else max(_step_bytes(c, n_entities, relations, width, device) for c in configs)
    )
    n_filtered = _ANSWERS * n_valid if n_filtered is None else n_filtered
    ranking = ranking_bytes(n_valid, n_filtered, n_entities, config.dim, device, far=placement.far)
    moving = tables + optimizer if trials > 1 else 0
    sizes = trials * tables, trials * optimizer, triples, step, ranking, trials * best
    return MemoryPlan(*sizes, stays=fused, moving=moving, placement=placement, entities=entities, state=state)


def check_memory(plan: MemoryPlan, config: TrainConfig, device: torch.device) -> None:
    """Raises MemoryPlanError with what to change, if the plan does not fit on the device."""
    free, need = free_bytes(device), needed_bytes(plan, device)
    if need > free:
        raise MemoryPlanError(
            f"The run needs {format_bytes(need)} on {device} and {format_bytes(free)} are free: {plan.sentence()}. "
            f"Try {advice(plan, config)}."
        )


def advice(plan: MemoryPlan, config: TrainConfig, *, alone: bool = False) -> str:
    """What to change where a plan does not fit. alone: it is trained by one process, where entities may be in bf16."""
    if plan.step > plan.tables + plan.optimizer + plan.entities + plan.state:
        fewer = "fewer negatives" if config.training == "negative_sampling" else "training=negative_sampling"
        return f"a smaller batch_size or {fewer}"
    half = alone and config.storage == "float32" and config.optimizer != "adam"
    words = ", or storage=bf16, which keeps entities in half the bytes" if half else ""
    return f"a smaller dim, or optimizer=row_adagrad, which keeps one number per row{words}"


def needed_bytes(plan: MemoryPlan, device: torch.device) -> int:
    """On the device; a CPU's memory holds the best weights too."""
    return plan.device + (plan.memory if device.type == "cpu" else 0)


def fits(plan: MemoryPlan, device: torch.device) -> bool:
    """Whether a stack may be tried."""
    return needed_bytes(plan, device) <= _FREE_SHARE * free_bytes(device)


def is_memory_error(error: Exception) -> bool:
    known = (MemoryError, MemoryPlanError, torch.OutOfMemoryError)
    words = ("allocate memory", "out of memory", "ALLOC_FAILED")
    return isinstance(error, known) or (isinstance(error, RuntimeError) and any(w in str(error) for w in words))


def _step_bytes(config: TrainConfig, n_entities: int, relations: int, width: int, device: torch.device) -> int:
    """Score matrices (scores, their exponentials, gradients), the rows of a step with their gradients, and the tiles of
    distances where no loop serves."""
    batch, dim = config.batch_size, config.dim
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
        among = relations // 2 if config.reciprocal else relations
        scores += 4 * batch * among + (prediction_tiles(batch, among, width) if config.model == "rotate" else 0)
    tables = torch.empty(0, dim), torch.empty(0, width)
    pair = model_class(config.model)(*tables, reciprocal=config.reciprocal, norm=config.norm).pair
    floats = scores + (3 + dropout) * rows * dim + 6 * batch * dim + 4 * relation_rows
    return 4 * floats + tile_bytes(batch, candidates, dim, pair, device)


# = Which placement a training gets: the first that fits, of those that suit the device, or the one that was asked for.
# =
# = Comes from a configuration and the sizes of a graph, goes to `run` and to what the command line says before it runs.

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
        found.append(f"{format_bytes(need)} on {device} and {format_bytes(free)} are free")
    if device.type != "cpu" and plan.memory:
        free = int(_PINNED_SHARE * free_bytes(torch.device("cpu")))
        if plan.memory > free:
            found.append(f"{format_bytes(plan.memory)} of host memory and {format_bytes(free)} can be taken")
    if plan.disk and plan.placement.folder is not None:
        free = free_disk(plan.placement.folder)
        if plan.disk > free:
            found.append(
                f"{format_bytes(plan.disk)} on the disk of {plan.placement.folder} and {format_bytes(free)} are free"
            )
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
        found.append(f"With {words} it would take {format_bytes(saved)} less{fits}")
        enough = enough or bool(fits)
    if len(ways) == 2 and not enough:
        saved, fits = _saved(config.changed(**ways[0][1], **ways[1][1]), plan, planned, device)
        if fits:
            found.append(f"With both it would take {format_bytes(saved)} less{fits}")
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
