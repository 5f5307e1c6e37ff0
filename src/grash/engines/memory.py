"""What a run will take, before anything large is allocated."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from grash.engines.device import free_bytes
from grash.errors import MemoryPlanError
from grash.evaluation.ranking import default_work_bytes
from grash.models import model_class
from grash.training.config import TrainConfig
from grash.training.optimizers import state_bytes


@dataclass(frozen=True)
class MemoryPlan:
    """Bytes on the device, by what they are for; `host` is what the best weights take beside it."""

    tables: int
    optimizer: int
    triples: int
    step: int
    ranking: int
    host: int

    @property
    def device(self) -> int:
        """Training and ranking do not work at the same time."""
        return self.tables + self.optimizer + self.triples + max(self.step, self.ranking)

    def sentence(self) -> str:
        parts = [f"{name} {human(value)}" for name, value in (
            ("tables", self.tables), ("optimizer", self.optimizer), ("triples", self.triples),
            ("step", self.step), ("ranking", self.ranking))]  # fmt: skip
        return f"{human(self.device)} ({', '.join(parts)}), and {human(self.host)} for the best weights"


def plan_memory(
    config: TrainConfig, n_entities: int, n_relations: int, n_train: int, device: torch.device
) -> MemoryPlan:
    """The plan for a training of this size on this device."""
    width = model_class(config.model).relation_width(config.dim)
    relations = n_relations * (2 if config.reciprocal else 1)
    tables = 4 * (n_entities * config.dim + relations * width)
    optimizer = state_bytes(config, n_entities, config.dim) + state_bytes(config, relations, width)
    triples = 12 * n_train * (3 if config.training == "kvsall" or config.negatives_filtered else 1)
    step = _step_bytes(config, n_entities, relations, width)
    return MemoryPlan(tables, optimizer, triples, step, default_work_bytes(device) * 2, tables)


def check_memory(plan: MemoryPlan, config: TrainConfig, device: torch.device) -> None:
    """Raises MemoryPlanError with what to change, if the plan does not fit."""
    free = free_bytes(device)
    need = plan.device + (plan.host if device.type == "cpu" else 0)
    if need <= free:
        return
    largest = max(
        (plan.step, "a smaller batch_size or fewer negatives"
         if config.training == "negative_sampling" else "a smaller batch_size or training=negative_sampling"),
        (plan.tables + plan.optimizer, "a smaller dim, or optimizer=row_adagrad, which keeps one number per row"),
    )[1]  # fmt: skip
    raise MemoryPlanError(
        f"The run needs {human(need)} on {device} and {human(free)} are free: {plan.sentence()}. Try {largest}."
    )


def human(n: float) -> str:
    """Bytes as a person reads them."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if n < 1024:
            return f"{n:.0f} {unit}" if unit == "B" else f"{n:.1f} {unit}"
        n /= 1024
    return f"{n:.1f} TiB"


def _step_bytes(config: TrainConfig, n_entities: int, relations: int, width: int) -> int:
    """Score matrices (scores, their exponentials, gradients) and the rows of a step with their gradients."""
    batch, dim = config.batch_size, config.dim
    dropout = 3 if config.dropout_entity else 1
    if config.training == "negative_sampling":
        negatives = (config.negatives_head, config.negatives_tail)
        rows = 2 * batch + sum(n if config.negatives_shared else n * batch for n in negatives)
        scores = 3 * batch * max(negatives)
    else:
        rows = 2 * batch + 2 * n_entities
        scores = 4 * batch * n_entities
    if config.optimizer == "adam" or not config.penalty_weighted:
        rows += n_entities
    relation_rows = 2 * batch * width + (relations * width if config.relation_prediction else 0)
    return 4 * (scores + (3 + dropout) * rows * dim + 6 * batch * dim + 4 * relation_rows)
