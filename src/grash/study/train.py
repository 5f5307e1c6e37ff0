"""Configurations of one graph, trained and validated at given epochs: the compute of a study's cells.

Comes from run.py, which says what; the trainings themselves go the one path of every training (engines/run.py), many at
a time where that is possible.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from grash.data.known import KnownAnswers
from grash.engines.device import choose_device
from grash.engines.ground import Ground
from grash.engines.run import Job, Outcome, run_trainings
from grash.errors import Diverged, InputError
from grash.evaluation.metrics import metrics_of
from grash.evaluation.ranking import Ranker, Ranks
from grash.models import KgeModel
from grash.reduction.subgraph import Subgraph
from grash.study.cells import TESTED
from grash.training.batches import Plan
from grash.training.config import TrainConfig
from grash.training.state import Validation

Curve = tuple[tuple[float, float, float], ...]


@dataclass(frozen=True, eq=False)
class Trained:
    """What became of a training. curve: (epoch asked for, validation MRR, mean loss since the last), as far as it
    came; error: what ended it; test: metrics of the weights of the best validation, if asked for."""

    curve: Curve
    positives: int
    seconds: float = 0.0  # its part of the time that those trained with it took, without the test
    valid_seconds: float = 0.0  # one validation
    n_valid: int = 0  # validations of all that were trained with it
    together: int = 1
    test: dict[str, float] | None = None
    error: Exception | None = None


class GraphTrainer:
    """Trains on one graph: its triples, ids and filters are brought to the device once for all its configurations."""

    def __init__(self, graph: Subgraph, *, device: str = "auto", seed: int = 0) -> None:
        self.graph, self.device = graph, choose_device(device)
        data = graph.dataset
        if not len(data.valid):
            raise InputError(f"{data.name} has no validation triples to compare configurations on.")
        keys = tuple(torch.from_numpy(ids.copy()).long() for ids in (graph.entity_ids, graph.relation_ids))
        self.ground = Ground(data, self.device, keys=(keys[0], keys[1]), seed=seed)
        self._test: Ranker | None = None
        self._validated: list[float] = []  # seconds of every validation since they were last read
        self._time_validations()

    def train(self, configs: Sequence[TrainConfig], epochs: Sequence[float], *, test: bool = False) -> list[Trained]:
        """Each configuration's training to the last of `epochs`, validated after each of them."""
        found = dict(one for ended in self.train_in_turn(configs, epochs, test=test) for one in ended)
        return [found[place] for place in range(len(configs))]

    def train_in_turn(
        self, configs: Sequence[TrainConfig], epochs: Sequence[float], *, test: bool = False
    ) -> Iterator[list[tuple[int, Trained]]]:
        """The same as it comes: (place, what became of it) of those that were trained together, when these end."""
        jobs = [Job(config, valid_at=tuple(epochs), interval=False, weights=test) for config in configs]
        self._validated.clear()
        began = time.monotonic()
        for ended in run_trainings(self.ground, jobs):
            self.settle()
            spent, looks = time.monotonic() - began, self._validated.copy()
            shared: dict[str, Any] = {"seconds": spent / len(ended), "together": len(ended), "n_valid": len(looks)}
            shared["valid_seconds"] = sum(looks) / max(1, len(looks))
            outcomes = [(place, o) for place, o in ended if isinstance(o, Outcome)]
            failures = [(place, o) for place, o in ended if isinstance(o, Exception)]
            ended.clear()  # models are let go as soon as they are tested: the next stack needs their memory
            tested = self.tests([o.model for _, o in outcomes]) if test else [None] * len(outcomes)
            found = [
                (p, Trained(self._curve(configs[p], epochs, o.history), self._plan(configs[p]).total, test=t, **shared))
                for (p, o), t in zip(outcomes, tested)
            ]
            outcomes.clear()
            yield [*found, *((p, replace(self._failed(configs[p], epochs, o), **shared)) for p, o in failures)]
            self._validated.clear()
            began = time.monotonic()

    @torch.no_grad()
    def tests(self, models: Sequence[KgeModel]) -> list[dict[str, float] | None]:
        """Test metrics of models of the whole graph, filtered by train, valid and test."""
        data = self.graph.dataset
        if self._test is None:
            splits = (data.train, data.valid, data.test)
            known = KnownAnswers.of(*splits, n_relations=data.n_relations, asked=data.test)
            self._test = Ranker(data.test, known, data.n_entities, self.device)
        ranked = self._test.rank_many(models)
        found = [None if isinstance(r, Diverged) else metrics_of(r.head, r.tail).to_dict() for r in ranked]
        return [None if f is None else {name: float(f[name]) for name in TESTED} for f in found]

    def _time_validations(self) -> None:
        """From now on every ranking of the validation triples is timed, apart from the steps before it."""
        assert self.ground.validator is not None
        ranker = self.ground.validator.ranker
        begin = ranker.begin

        def timed(model: KgeModel, *, work_bytes: int | None = None) -> Callable[[], Ranks]:
            self.settle()
            began = time.monotonic()
            try:
                found = begin(model, work_bytes=work_bytes)()
            finally:
                self.settle()
                self._validated.append(time.monotonic() - began)
            return lambda: found

        ranker.begin = timed  # type: ignore[method-assign]

    def _failed(self, config: TrainConfig, epochs: Sequence[float], error: Exception) -> Trained:
        if not isinstance(error, Diverged):
            return Trained((), 0, error=error)
        history = [v for v in error.history if isinstance(v, Validation)]
        positives = round(error.epoch * self._plan(config).n_examples)
        return Trained(self._curve(config, epochs, history), positives, error=error)

    def _curve(self, config: TrainConfig, epochs: Sequence[float], history: Sequence[Validation]) -> Curve:
        """On a small graph several epochs may end with the same step, and share its validation."""
        plan, seen = self._plan(config), {v.step: v for v in history}
        steps = [(e, plan.steps_to(e)) for e in epochs]
        return tuple((e, seen[step].mrr, seen[step].loss) for e, step in steps if step in seen)

    def _plan(self, config: TrainConfig) -> Plan:
        return Plan(len(self.graph.dataset.train), config.batch_size, config.epochs)

    def settle(self) -> None:
        """Waits until the device has done all it was asked."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)


def device_words(device: torch.device) -> str:
    """The card's name, or cpu."""
    return torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu"
