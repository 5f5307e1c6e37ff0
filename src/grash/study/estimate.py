"""How long cells will take: by the pace of cells that this device has trained, else by a short probe.

Comes from run.py, before anything runs and between its batches.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from grash.reduction.subgraph import Subgraph
from grash.search.configurations import score_count
from grash.study.cells import MARKS, Entry
from grash.study.graphs import config_on
from grash.study.pool import Pool
from grash.study.store import Store
from grash.study.train import GraphTrainer, device_words
from grash.training.config import TrainConfig

_PROBE_STEPS = 20


@dataclass(frozen=True)
class Pace:
    """Seconds per positive on graphs that this device has trained on: (train triples, seconds)."""

    known: tuple[tuple[int, float], ...]

    @classmethod
    def of(cls, store: Store, device: torch.device) -> Pace:
        mine = [e for e in store.entries.values() if e.device == device_words(device) and e.status == "ok"]
        graphs: dict[int, list[Entry]] = {}
        for entry in mine:
            graphs.setdefault(entry.n_train, []).append(entry)
        paces = ((n, sum(e.seconds for e in es), sum(e.positives for e in es)) for n, es in sorted(graphs.items()))
        return cls(tuple((n, seconds / max(1, positives)) for n, seconds, positives in paces))

    def probed(self, pool: Pool, asked: Sequence[tuple[Subgraph, Sequence[int], float]], device: torch.device) -> Pace:
        """The same, or, where nothing is known, by a probe of the smallest, a middle and the largest graph that are
        asked for (graph, configurations, share of the epochs): the configuration with the median scores, alone."""
        if self.known or not asked:
            return self
        ordered = sorted(asked, key=lambda a: len(a[0].dataset.train))
        known = {}
        for graph, numbers, upto in (ordered[0], ordered[len(ordered) // 2], ordered[-1]):
            configs = [config_on(graph, pool, n, upto) for n in numbers]
            typical = sorted(configs, key=lambda c: score_count(c, graph.dataset.n_entities))[len(configs) // 2]
            n_train = len(graph.dataset.train)
            if n_train not in known:
                seconds = _probe(GraphTrainer(graph, device=str(device)), typical)
                known[n_train] = seconds / (typical.epochs * n_train)
        return Pace(tuple(sorted(known.items())))

    def seconds(self, pool: Pool, graph: Subgraph, numbers: Sequence[int], upto: float) -> float | None:
        """Of these trainings on a graph, by the pace of the graph nearest in size; None where nothing is known."""
        if not self.known:
            return None
        n_train = len(graph.dataset.train)
        _, pace = min(self.known, key=lambda k: abs(math.log(k[0] / max(1, n_train))))
        return pace * len(numbers) * upto * pool.settings.max_epochs * n_train


UNKNOWN = Pace(())


def _probe(trainer: GraphTrainer, config: TrainConfig) -> float:
    """Seconds of one training, from two short ones: the first loads and compiles what the second needs."""
    n_train = len(trainer.graph.dataset.train)
    epochs = min(config.epochs, _PROBE_STEPS * config.batch_size / n_train)
    short = config.changed(epochs=epochs, valid_every=epochs, init="xavier_normal", lr=1e-3)  # one that cannot diverge
    trainer.train([short], [epochs])
    began = time.monotonic()
    trained = trainer.train([short], [epochs])[0]
    seconds = time.monotonic() - began
    if trained.error is not None:
        raise trained.error
    valid = trained.valid_seconds
    return max(0.0, seconds - valid) * config.epochs / epochs + valid * len(MARKS)
