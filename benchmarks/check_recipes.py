"""Train combinations of settings in full; compare best, last and averaged weights, and fold the models into one.

    python benchmarks/check_recipes.py GRAPH --set model=complex training=1vsall … --grid lr=0.03,0.1 … [--fold]

All combinations are trained as one stack, so they must share batch size, dimension and model. A line has validation and
test MRR of the best validation, of the last weights, of their mean over the second half of the validations, and of a
moving average (0.3 of every validation). `--fold` joins the rows of ComplEx models: the sum of their scores.
"""

from __future__ import annotations

import argparse
import itertools
import time

import torch
import yaml

from grash.api.dataset import load_dataset
from grash.data.dataset import Dataset
from grash.data.known_answers import KnownAnswers
from grash.engines.memory import choose_device
from grash.evaluation.metrics import mrr
from grash.evaluation.ranking import Ranker
from grash.models import KgeModel, model_class
from grash.training.batches import Batches
from grash.training.checkpoint import TrainState
from grash.training.config import TrainConfig
from grash.training.fused import stack_states
from grash.training.initial import initial_model
from grash.training.loop import Training, train_stack

Tables = list[torch.Tensor]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("graph")
    parser.add_argument("--set", nargs="+", default=[], metavar="NAME=VALUE")
    parser.add_argument("--grid", nargs="+", default=[], metavar="NAME=VALUE,…")
    parser.add_argument("--fold", action="store_true")
    parser.add_argument("--device", default="auto")
    args = parser.parse_args()
    data, device = load_dataset(args.graph), choose_device(args.device)
    same = {name: yaml.safe_load(value) for name, _, value in (given.partition("=") for given in args.set)}
    names = [given.partition("=")[0] for given in args.grid]
    values = [[yaml.safe_load(v) for v in given.partition("=")[2].split(",")] for given in args.grid]
    points = [dict(zip(names, point)) for point in itertools.product(*values)]
    configs = [TrainConfig(**{**same, **point, "patience": None}) for point in points]
    began, rankers = time.monotonic(), (_ranker(data, device, "valid"), _ranker(data, device, "test"))
    runs = [Averages(config, rankers[0]) for config in configs]
    _train(data, device, runs)
    for point, run in zip(points, runs):
        found = {name: [f"{mrr(r.rank(run.model(tables))):.4f}" for r in rankers] for name, tables in run.kept.items()}
        print(point, found, [f"{v:.4f}" for v in run.history])
    if args.fold:
        folded = runs[0].model(fold([run.kept["best"] for run in runs]))
        print("folded:", [f"{mrr(ranker.rank(folded)):.4f}" for ranker in rankers])
    print(f"{len(runs)} trainings in {time.monotonic() - began:.0f} s")


class Averages:
    """Validates a training, and keeps its best, last and averaged tables."""

    def __init__(self, config: TrainConfig, ranker: Ranker) -> None:
        self.config, self.ranker = config, ranker
        self.history: list[float] = []
        self.kept: dict[str, Tables] = {}

    def model(self, tables: Tables) -> KgeModel:
        return model_class(self.config.model)(*tables, reciprocal=self.config.reciprocal, norm=self.config.norm)

    def __call__(self, model: KgeModel) -> float:
        value, now = mrr(self.ranker.rank(model)), [model.entity, model.relation]
        if value > max(self.history, default=-1.0):
            self.kept["best"] = [table.clone() for table in now]
        self.history.append(value)
        self.kept["last"] = now
        self._average("moving", now, 0.3)
        in_second_half = len(self.history) - int(self.config.epochs / self.config.valid_every / 2)
        if in_second_half > 0:
            self._average("mean", now, 1 / in_second_half)
        return value

    def _average(self, name: str, now: Tables, share: float) -> None:
        before = self.kept.setdefault(name, [table.clone() for table in now])
        self.kept[name] = [table.lerp(other, share) for table, other in zip(before, now)]


def fold(parts: list[Tables]) -> Tables:
    """Return the tables of the model whose scores are the sums of these ComplEx models' scores."""
    halves = [[table.chunk(2, dim=1) for table in tables] for tables in zip(*parts)]
    return [torch.cat([half[i] for i in (0, 1) for half in table], 1).contiguous() for table in halves]


def _ranker(data: Dataset, device: torch.device, split: str) -> Ranker:
    asked = data.valid if split == "valid" else data.test
    known = [data.train, data.valid, *([data.test] if split == "test" else [])]
    return Ranker(asked, KnownAnswers.of(*known, n_relations=data.n_relations, asked=asked), data.n_entities, device)


@torch.no_grad()
def _train(data: Dataset, device: torch.device, runs: list[Averages]) -> None:
    sizes = data.n_entities, data.n_relations
    fresh = (TrainState.fresh(initial_model(r.config, *sizes, device=device), r.config) for r in runs)
    states = stack_states(fresh, n=len(runs))
    trainings = [
        Training(run.config, keep_best=False).started(state, Batches(data.train, *sizes, run.config, device), run)
        for run, state in zip(runs, states)
    ]
    for error in train_stack(trainings):
        if error is not None:
            raise error


if __name__ == "__main__":
    main()
