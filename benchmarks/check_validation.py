"""Compare three validation sets for subgraphs: train configurations of a table on a subgraph, rank on each set.

    python benchmarks/check_validation.py GRAPH TABLE --graph 0.5 --epochs 0.25 [--best 40 | --numbers 43,83]

GRAPH is the dataset of the TABLE (docs/results/tables). Each configuration is trained as in a search, on the subgraph
with that fraction of the triples, for that fraction of the epochs. It is ranked on the triples that the subgraph holds
out; on those of them that are isolated pairs, i.e. linked by no other triple of the train part; and on the valid
triples of the dataset that are inside the subgraph. Printed: MRR of the three beside the full training in the table,
and how well each predicts it (Spearman's ρ, and the test MRR of the configuration that each would choose).
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import torch

from grash.api.dataset import load_dataset
from grash.data.dataset import Dataset
from grash.data.known_answers import KnownAnswers
from grash.data.leakage import pairs_of
from grash.engines.trainer import run_trainings
from grash.evaluation.metrics import metrics_of
from grash.evaluation.ranking import Ranker
from grash.models import KgeModel
from grash.reduction.subgraph import Subgraph
from grash.training.checkpoint import TrainState
from grash.training.loop import Training
from grash_study.pool import StudyGraphs, config_on, make_pool
from grash_study.recorded import Recorded
from grash_study.run import GraphTrainer
from grash_study.statistics import spearman
from grash_study.table import Table

WAYS = ("held out", "free", "own")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("dataset")
    parser.add_argument("table", type=Path)
    parser.add_argument("--graph", type=float, default=0.5)
    parser.add_argument("--epochs", type=float, default=0.25)
    parser.add_argument("--best", type=int, default=40, help="so many configurations, by their test MRR")
    parser.add_argument("--numbers", default="", help="these instead, with commas")
    parser.add_argument("--count", action="store_true", help="train nothing: only what the graph and the table say")
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
    graph = graphs.graph("core-order", args.graph)
    trainer, judges = GraphTrainer(graph, device=args.device), Judges(data, graph, args.device)
    print(f"{graph.dataset!r}; {judges.words}")
    predictions(table, args.best)
    if args.count:
        return
    print(f"{'number':>6}  {'  '.join(f'{w:>8}' for w in WAYS)}  full valid    test")
    rows = []
    jobs = [Training(config_on(graph, pool, int(n), args.epochs), interval=False, keep_best=False) for n in chosen]
    for ended in run_trainings(trainer.training_data, jobs):
        for place, outcome in ended:
            if isinstance(outcome, TrainState):
                number = int(chosen[place])
                full = float(np.nanmax(table.valid[-1, :, number]))
                rows.append((*judges.of(outcome.model), full, float(table.test["mrr"][number])))
                print(
                    f"{number:>6}  {'  '.join(f'{v:8.4f}' for v in rows[-1][:3])}      {full:.4f}  {rows[-1][4]:.4f}",
                    flush=True,
                )
    if len(rows) > 2:  # with fewer, ρ means nothing
        summary(np.array(rows))


class Judges:
    """The three sets of validation triples of a subgraph: all that are held out, filtered as in a search, and those
    that are isolated pairs and the dataset's own, filtered by train, held-out and own triples."""

    def __init__(self, data: Dataset, graph: Subgraph, device: str) -> None:
        part, valid = graph.dataset, np.asarray(data.valid)
        entities, relations = np.full(data.n_entities, -1, np.int32), np.full(data.n_relations, -1, np.int32)
        entities[graph.entity_ids] = np.arange(part.n_entities)
        relations[graph.relation_ids] = np.arange(part.n_relations)
        own = np.stack([entities[valid[:, 0]], relations[valid[:, 1]], entities[valid[:, 2]]], 1)
        own = np.ascontiguousarray(own[(own >= 0).all(1)])
        held = np.asarray(part.valid)
        train, n = np.asarray(part.train), part.n_entities
        known = KnownAnswers.of(train, held, own, n_relations=part.n_relations)
        usual = KnownAnswers.of(train, held, n_relations=part.n_relations)
        where = torch.device("cuda" if device == "auto" and torch.cuda.is_available() else "cpu")
        self._usual = Ranker(held, usual, n, where)
        self._held, self._own = (Ranker(triples, known, n, where) for triples in (held, own))
        self._free = ~joined(held, train, n)
        share = joined(valid, np.asarray(data.train), data.n_entities).mean()
        self.words = (
            f"{len(held):,} held out, {1 - self._free.mean():.3f} of them joined in train; {len(own):,} of the "
            f"dataset's own inside; {share:.3f} of all its own joined in train"
        )

    def of(self, model: KgeModel) -> tuple[float, float, float]:
        usual, held, own = (ranker.rank(model) for ranker in (self._usual, self._held, self._own))
        free = metrics_of(held.head, held.tail, chosen=self._free)
        return metrics_of(usual.head, usual.tail).mrr, free.mrr, metrics_of(own.head, own.tail).mrr


def joined(triples: np.ndarray, train: np.ndarray, n_entities: int) -> np.ndarray:
    """Which triples have two entities that a triple of train joins."""
    return np.isin(pairs_of(triples, n_entities), pairs_of(train, n_entities))


def predictions(table: Table, best: int) -> None:
    """Of the best configurations, by the table alone: ρ of the validation at some fidelities with that in full."""
    chosen = [int(n) for n in np.argsort(-table.test["mrr"])[:best]]
    full, recorded = [float(np.nanmax(table.valid[-1, :, n])) for n in chosen], Recorded(table)
    for graph, epochs in ((0.5, 0.5), (2**-0.5, 1.0), (1.0, 0.25)):
        rho = spearman(recorded.valid_at(graph, epochs)[chosen], full).rho
        words = f"{graph:.2f} of the graph, {epochs:g} of the epochs"
        print(f"{len(chosen)} best, {words}: ρ {rho:.2f} with full validation")


def summary(rows: np.ndarray) -> None:
    best = rows[:, 4].max()
    for i, way in enumerate(WAYS):
        rhos = [spearman(rows[:, i], rows[:, column]).rho for column in (3, 4)]
        picked = rows[rows[:, i].argmax(), 4]
        print(f"{way}: ρ {rhos[0]:.2f} with full validation, {rhos[1]:.2f} with test; picks {picked:.4f} of {best:.4f}")


if __name__ == "__main__":
    main()
