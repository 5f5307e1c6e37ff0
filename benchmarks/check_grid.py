"""Train all combinations of some settings in full, and print best validation, its epoch and test MRR, best first.

    python benchmarks/check_grid.py GRAPH --set model=rotate loss=self_adversarial --grid lr=0.03,0.1 margin=6,9 …

On a GPU, combinations that can share a stack are trained together. The first line is what somebody who tunes by hand
would choose, so its test MRR is the one to compare with. A graph used for tuning confirms nothing.
"""

from __future__ import annotations

import argparse
import itertools
import time

import yaml

from grash.api.dataset import load_dataset
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
    parser.add_argument("--set", nargs="+", default=[], metavar="NAME=VALUE")
    parser.add_argument("--grid", nargs="+", default=[], metavar="NAME=VALUE,…")
    parser.add_argument("--epochs", type=float, default=100.0)
    parser.add_argument("--dim", type=int, default=512)
    parser.add_argument("--device", default="auto")
    args = parser.parse_args()
    data, device = load_dataset(args.graph), choose_device(args.device)
    known = KnownAnswers.of(data.train, data.valid, data.test, n_relations=data.n_relations, asked=data.test)
    ranker, began = Ranker(data.test, known, data.n_entities, device), time.monotonic()
    same = {"dim": args.dim, "epochs": args.epochs, "valid_every": args.epochs / 10, "patience": 3}
    same |= {name: yaml.safe_load(value) for name, _, value in (given.partition("=") for given in args.set)}
    names = [given.partition("=")[0] for given in args.grid]
    values = [[yaml.safe_load(v) for v in given.partition("=")[2].split(",")] for given in args.grid]
    points = [dict(zip(names, point)) for point in itertools.product(*values)]
    found = []
    for ended in run_trainings(
        TrainingData(data, device), [Training(TrainConfig(**{**same, **point})) for point in points]
    ):
        for place, outcome in ended:
            if isinstance(outcome, TrainState) and outcome.best_validation is not None:
                found.append(
                    (
                        outcome.best_validation.mrr,
                        outcome.best_validation.epoch,
                        mrr(ranker.rank(outcome.model)),
                        points[place],
                    )
                )
            else:
                print(f"{words(points[place])}: {outcome}")
        del ended, outcome
    print(f"{data.name}, {words(same)}: {len(points)} combinations in {time.monotonic() - began:.0f} s")
    for valid, epoch, test, point in sorted(found, key=lambda line: -line[0]):
        print(f"    valid {valid:.4f} at epoch {epoch:.4g}, test {test:.4f}: {words(point)}", flush=True)


def words(values: dict[str, object]) -> str:
    return ", ".join(f"{name}={value}" for name, value in values.items())


if __name__ == "__main__":
    main()
