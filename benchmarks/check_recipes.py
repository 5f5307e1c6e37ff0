"""Recipes of ComplEx-N3, trained in full: test MRR, best validation, seconds.

    python benchmarks/check_recipes.py GRAPH --epochs 50 --recipes 0.05 0.05:4 [--lr 0.1] [--dim 512] [--device cuda]

A recipe is λ or λ:w, as the authors of N3 and of relation prediction count them: 6λ is the penalty on entities, 3λ that
on relations, 2w the weight of the predicted relation. 1vsAll, reciprocal relations, Adagrad, batch 1,024; on a card
they are trained in stacks.
"""

from __future__ import annotations

import argparse
import time

from grash.api import load_dataset
from grash.data.known import KnownAnswers
from grash.engines.device import choose_device
from grash.engines.ground import Ground
from grash.engines.run import Job, run_trainings
from grash.evaluation.metrics import mrr
from grash.evaluation.ranking import Ranker
from grash.training.config import TrainConfig


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("graph")
    parser.add_argument("--recipes", nargs="+", default=["0.05"])
    parser.add_argument("--epochs", type=float, default=50.0)
    parser.add_argument("--lr", type=float, default=0.1)
    parser.add_argument("--dim", type=int, default=512)
    parser.add_argument("--device", default="auto")
    args = parser.parse_args()
    data, device = load_dataset(args.graph), choose_device(args.device)
    splits = (data.train, data.valid, data.test)
    known = KnownAnswers.of(*splits, n_relations=data.n_relations, asked=data.test)
    ranker, began = Ranker(data.test, known, data.n_entities, device), time.monotonic()
    jobs = [Job(config_of(recipe, args)) for recipe in args.recipes]
    for ended in run_trainings(Ground(data, device), jobs):
        for place, outcome in ended:
            if isinstance(outcome, Exception):
                print(f"{args.recipes[place]}: {outcome}")
                continue
            best = max(v.mrr for v in outcome.history)
            print(f"{args.recipes[place]}: test MRR {mrr(ranker.rank(outcome.model)):.4f}, best validation {best:.4f}, "
                  f"{time.monotonic() - began:.0f} s", flush=True)  # fmt: skip


def config_of(recipe: str, args: argparse.Namespace) -> TrainConfig:
    weight, _, relation = recipe.partition(":")
    return TrainConfig(
        model="complex", dim=args.dim, training="1vsall", reciprocal=True, batch_size=1024, lr=args.lr, init="normal",
        init_std=1e-3, penalty="n3", penalty_entity=6 * float(weight), penalty_relation=3 * float(weight),
        relation_prediction=2 * float(relation or 0), epochs=args.epochs, valid_every=args.epochs / 5, patience=None,
    )  # fmt: skip


if __name__ == "__main__":
    main()
