"""Measure how the best penalty changes with fidelity: ComplEx-N3 with several recipes in every round of a search.

    python benchmarks/check_penalties.py GRAPH --epochs 300 --recipes 0.005 0.01 0.05 0.05:4 [--batches 1024 256] …

A recipe is λ or λ:w, as the authors of N3 and of relation prediction count them: the penalty is 6λ on entities and 3λ
on relations, and the weight of relation prediction is w. 1vsAll, reciprocal relations, Adagrad. Each line is a round
of the default search (its graph, its epochs) with the score of each recipe: the better of the validations at half time
and at the end. The last line is the full training, with its best validation and the test MRR. `--rounds 1 2` chooses
lines; 0 is the full training.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from tempfile import TemporaryDirectory

import torch

from grash.api.dataset import load_dataset
from grash.api.search import Search
from grash.data.known_answers import KnownAnswers
from grash.engines.memory import choose_device
from grash.engines.trainer import TrainingData, run_trainings
from grash.evaluation.metrics import mrr
from grash.evaluation.ranking import Ranker
from grash.training.checkpoint import TrainState
from grash.training.config import TrainConfig
from grash.training.loop import Training


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("graph")
    parser.add_argument("--recipes", nargs="+", default=["0.005", "0.01", "0.02", "0.05", "0.1"])
    parser.add_argument("--batches", nargs="+", type=int, default=[1024])
    parser.add_argument("--rounds", nargs="+", type=int, default=[1, 2, 3, 0])
    parser.add_argument("--epochs", type=float, default=300.0)
    parser.add_argument("--lr", type=float, default=0.1)
    parser.add_argument("--dim", type=int, default=512)
    parser.add_argument(
        "--isolated", action="store_true", help="hold out isolated pairs in every round, as in a last round"
    )
    parser.add_argument("--device", default="auto")
    args = parser.parse_args()
    data, device = load_dataset(args.graph), choose_device(args.device)
    with TemporaryDirectory() as place:
        search = Search(data, out=Path(place) / "run", model="complex", max_epochs=args.epochs, dim=args.dim)
        for line in search.plan(probe=False).rounds:
            plan = line.plan
            if plan.number not in args.rounds:
                continue
            part = search.graphs.subgraph(plan.fractions, args.isolated)
            keys = tuple(torch.from_numpy(ids.copy()).long() for ids in (part.entity_ids, part.relation_ids))
            training_data = TrainingData(part.dataset, device, keys=keys)  # type: ignore[arg-type]
            epochs = plan.positives / plan.n_train
            for batch in args.batches:
                show(args, training_data, batch, epochs, f"round {plan.number}: {plan.n_entities:,} entities", None)
    if 0 in args.rounds:
        known = KnownAnswers.of(data.train, data.valid, data.test, n_relations=data.n_relations, asked=data.test)
        ranker = Ranker(data.test, known, data.n_entities, device)
        show(args, TrainingData(data, device), args.batches[0], args.epochs, "full", ranker)


def show(
    args: argparse.Namespace, training_data: TrainingData, batch: int, epochs: float, what: str, ranker: Ranker | None
) -> None:
    """Trains all recipes and prints a line."""
    began, found = time.monotonic(), {}
    every = epochs / (2 if ranker is None else 20)
    jobs = [Training(config_of(args, recipe, batch, epochs, every)) for recipe in args.recipes]
    for ended in run_trainings(training_data, jobs):
        for place, outcome in ended:
            if isinstance(outcome, TrainState):
                best = f"{max(v.mrr for v in outcome.history):.4f}"
                found[place] = best if ranker is None else f"{best} (test {mrr(ranker.rank(outcome.model)):.4f})"
        del ended, outcome
    scores = ", ".join(f"{recipe}: {found.get(i, 'failed')}" for i, recipe in enumerate(args.recipes))
    print(f"{what}, {epochs:.4g} epochs, batch {batch}: {scores}; {time.monotonic() - began:.0f} s", flush=True)


def config_of(args: argparse.Namespace, recipe: str, batch: int, epochs: float, every: float) -> TrainConfig:
    weight, _, relation = recipe.partition(":")
    return TrainConfig(
        model="complex", dim=args.dim, training="1vsall", reciprocal=True, batch_size=batch, lr=args.lr, init="normal",
        init_std=1e-3, penalty="n3", penalty_entity=6 * float(weight), penalty_relation=3 * float(weight),
        relation_prediction=float(relation or 0), epochs=epochs, valid_every=every, patience=5,
    )  # fmt: skip


if __name__ == "__main__":
    main()
