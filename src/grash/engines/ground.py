"""What all trainings on one graph share on a device: triples, and validation with its filter.

Comes from a dataset or a round's subgraph, goes to `run`; kept as long as there are trainings on that graph.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from functools import cached_property
from pathlib import Path

import torch
from torch import Tensor

from grash.data.dataset import Dataset
from grash.data.known import KnownAnswers
from grash.engines.memory import MemoryPlan, plan_stack
from grash.engines.placing import Placed, place_training
from grash.errors import InputError
from grash.evaluation.evaluate import sampled
from grash.evaluation.metrics import mrr, mrr_interval
from grash.evaluation.ranking import Ranker, Ranks
from grash.kernels.current import make_current
from grash.models import KgeModel
from grash.training.batches import Batches, needs_index, triples_on
from grash.training.config import TrainConfig


class Validator:
    """Filtered MRR on the valid split, filtered by train and valid; remembers the ranks of the best."""

    def __init__(self, dataset: Dataset, device: torch.device, *, sample: int | None = None, seed: int = 0) -> None:
        triples = sampled(dataset.valid, sample, seed)
        known = KnownAnswers.of(dataset.train, dataset.valid, n_relations=dataset.n_relations, asked=triples)
        self.ranker = Ranker(triples, known, dataset.n_entities, device)
        self.seed = seed
        self.work_bytes: int | None = None
        self.best: tuple[float, Ranks] | None = None

    @property
    def n_filtered(self) -> int:
        """Known answers to the questions of both slots."""
        return sum(len(q.filtered) for questions in self.ranker.questions.values() for q in questions)

    def another(self, *, work_bytes: int | None = None) -> Validator:
        """For another training, with the same triples and filter."""
        fresh = copy.copy(self)
        fresh.work_bytes, fresh.best = work_bytes, None
        return fresh

    def __call__(self, model: KgeModel) -> float:
        return self.begin(model)()

    def begin(self, model: KgeModel) -> Callable[[], float]:
        """Begins, and gives what waits for the MRR."""
        begun = self.ranker.begin(model, work_bytes=self.work_bytes)

        def read() -> float:
            ranks = begun()
            found = mrr(ranks)
            if self.best is None or found > self.best[0]:
                self.best = (found, ranks)
            return found

        return read

    def remembers(self, found: float) -> bool:
        """Whether the best validation was this one, and not before an interruption."""
        return self.best is not None and self.best[0] == found

    def interval(self, model: KgeModel, found: float) -> tuple[float, float]:
        """Of the best validation; ranked again with the model, which then has its weights, if it is not remembered."""
        if self.best is None or not self.remembers(found):
            self.best = (found, self.ranker.rank(model, work_bytes=self.work_bytes))
        return mrr_interval(self.best[1], seed=self.seed)


class Ground:
    """A dataset on a device, for all trainings on it: its triples, its validation questions and their filter, each
    brought there once, when first needed. keys: ids of entities and relations in the full graph, of a subgraph."""

    def __init__(
        self,
        dataset: Dataset,
        device: torch.device,
        *,
        keys: tuple[Tensor, Tensor] | None = None,
        valid_sample: int | None = None,
        seed: int = 0,
    ) -> None:
        if not len(dataset.train):
            raise InputError(f"{dataset.name} has no training triples.")
        make_current(device)
        self.dataset, self.device, self.valid_sample, self.seed = dataset, device, valid_sample, seed
        self.keys = keys
        self.sizes = (dataset.n_entities, dataset.n_relations)

    @cached_property
    def train(self) -> Tensor:
        return triples_on(self.dataset.train, self.device)

    @cached_property
    def known(self) -> KnownAnswers:
        """The index of train, for trainings that look into it."""
        return KnownAnswers.of(self.dataset.train, n_relations=self.dataset.n_relations)

    @cached_property
    def validator(self) -> Validator | None:
        if not len(self.dataset.valid):
            return None
        return Validator(self.dataset, self.device, sample=self.valid_sample, seed=self.seed)

    def plan(self, configs: Sequence[TrainConfig], *, weights: bool = False) -> MemoryPlan:
        """What trainings with these configurations, trained together, take. weights: their best ones are kept."""
        return plan_stack(
            configs, *self.sizes, len(self.dataset.train), self.device, n_valid=self.n_valid,
            n_filtered=self._n_filtered, weights=weights,
        )  # fmt: skip

    def place(
        self, config: TrainConfig, *, asked: str = "auto", folder: Path | None = None, weights: bool = True
    ) -> Placed:
        """Where the tables of one training lie; see `place_training`."""
        return place_training(
            config, *self.sizes, len(self.dataset.train), self.device, asked=asked, folder=folder,
            n_valid=self.n_valid, n_filtered=self._n_filtered, weights=weights,
        )  # fmt: skip

    @property
    def n_valid(self) -> int:
        """Triples that a validation looks at."""
        n = len(self.dataset.valid)
        return n if self.valid_sample is None else min(n, self.valid_sample)

    @property
    def _n_filtered(self) -> int | None:
        """Counted where the validator has been made; else there will be a guess."""
        made = self.__dict__.get("validator")
        return None if made is None else made.n_filtered

    def batches(self, config: TrainConfig) -> Batches:
        known = self.known if needs_index(config) else None
        return Batches(self.dataset.train, *self.sizes, config, self.device, on_device=self.train, known=known)
