"""What a subgraph should be validated on: trainings of a table's configurations on one graph, ranked three ways.

    python benchmarks/check_validation.py GRAPH TABLE --graph 0.5 --epochs 0.25 [--best 40 | --numbers 43,83]

GRAPH is the dataset that the TABLE (docs/results/tables) was made of. Each configuration is trained on the chain's
graph with that fraction of the triples, for that share of the epochs, as a search would. Then it is ranked on the
triples that the subgraph holds out; on those of them that are *free*, whose two entities no other triple of its train
part joins; and on the dataset's *own* valid triples that lie inside the subgraph. Printed: MRR of the three beside what
the table has of full training, and how the three foretell that (Spearman's ρ, and the test MRR of each one's pick).
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import torch

from grash.api import load_dataset
from grash.data.dataset import Dataset
from grash.data.known import KnownAnswers
from grash.engines.run import Job, Outcome, run_trainings
from grash.evaluation.metrics import metrics_of
from grash.evaluation.ranking import Ranker
from grash.models import KgeModel
from grash.reduction.subgraph import Subgraph
from grash.study.graphs import StudyGraphs, config_on
from grash.study.pool import make_pool
from grash.study.statistics import spearman
from grash.study.table import Table
from grash.study.train import GraphTrainer

WAYS = ("held out", "free", "own")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("dataset")
    parser.add_argument("table", type=Path)
    parser.add_argument("--graph", type=float, default=0.5)
    parser.add_argument("--epochs", type=float, default=0.25)
    parser.add_argument("--best", type=int, default=40, help="so many configurations, by their test MRR")
    parser.add_argument("--numbers", default="", help="these instead, with commas")
    parser.add_argument("--device", default="auto")
    args = parser.parse_args()
    data, table = load_dataset(args.dataset), Table.load(args.table)
    meta = table.meta
    pool = make_pool(
        data, n=table.n, model=meta["model"], dim=meta["dim"], epochs=meta["epochs"], space=meta["space"],
        label=meta["label"], seed=meta["seed"], fixed=meta["fixed"],
    )  # fmt: skip
    chosen = [int(n) for n in args.numbers.split(",") if n] or list(np.argsort(-table.test["mrr"])[: args.best])
    graphs = StudyGraphs(pool)
    graph = graphs.graph("chain", args.graph)
    trainer, judges = GraphTrainer(graph, device=args.device), Judges(data, graph, args.device)
    print(f"{graph.dataset!r}; {judges.words}\n{'number':>6}  {'  '.join(f'{w:>8}' for w in WAYS)}  full valid    test")
    rows = []
    jobs = [Job(config_on(graph, pool, int(n), args.epochs), interval=False, weights=False) for n in chosen]
    for ended in run_trainings(trainer.ground, jobs):
        for place, outcome in ended:
            if isinstance(outcome, Outcome):
                number = int(chosen[place])
                full = float(np.nanmax(table.valid[-1, :, number]))
                rows.append((*judges.of(outcome.model), full, float(table.test["mrr"][number])))
                print(
                    f"{number:>6}  {'  '.join(f'{v:8.4f}' for v in rows[-1][:3])}      {full:.4f}  {rows[-1][4]:.4f}",
                    flush=True,
                )
    summary(np.array(rows))


class Judges:
    """The three sets of validation triples of a subgraph; all are filtered by its train, held-out and own triples."""

    def __init__(self, data: Dataset, graph: Subgraph, device: str) -> None:
        part, valid = graph.dataset, np.asarray(data.valid)
        entities, relations = np.full(data.n_entities, -1, np.int32), np.full(data.n_relations, -1, np.int32)
        entities[graph.entity_ids] = np.arange(part.n_entities)
        relations[graph.relation_ids] = np.arange(part.n_relations)
        own = np.stack([entities[valid[:, 0]], relations[valid[:, 1]], entities[valid[:, 2]]], 1)
        own = np.ascontiguousarray(own[(own >= 0).all(1)])
        held = np.asarray(part.valid)
        joined = np.isin(pairs(held, part.n_entities), np.unique(pairs(np.asarray(part.train), part.n_entities)))
        known = KnownAnswers.of(np.asarray(part.train), held, own, n_relations=part.n_relations)
        where = torch.device("cuda" if device == "auto" and torch.cuda.is_available() else "cpu")
        self._held, self._own = (Ranker(triples, known, part.n_entities, where) for triples in (held, own))
        self._free = ~joined
        self.words = (
            f"{len(held):,} held out, {self._free.sum():,} of them free, {len(own):,} of the dataset's own inside"
        )

    def of(self, model: KgeModel) -> tuple[float, float, float]:
        held, own = self._held.rank(model), self._own.rank(model)
        free = metrics_of(held.head, held.tail, chosen=self._free)
        return metrics_of(held.head, held.tail).mrr, free.mrr, metrics_of(own.head, own.tail).mrr


def pairs(triples: np.ndarray, n: int) -> np.ndarray:
    """One number for the two entities of each triple, whatever their order."""
    ends = triples[:, [0, 2]].astype(np.int64)
    return ends.min(1) * n + ends.max(1)


def summary(rows: np.ndarray) -> None:
    best = rows[:, 4].max()
    for i, way in enumerate(WAYS):
        rhos = [spearman(rows[:, i], rows[:, column]).rho for column in (3, 4)]
        picked = rows[rows[:, i].argmax(), 4]
        print(f"{way}: ρ {rhos[0]:.2f} with full validation, {rhos[1]:.2f} with test; picks {picked:.4f} of {best:.4f}")


if __name__ == "__main__":
    main()
