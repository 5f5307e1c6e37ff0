"""Measure what smaller tables cost in quality: row-wise Adagrad, and entities rounded to 16 bits after every step.

    python benchmarks/check_storage.py GRAPH [--model complex] [--epochs 60] [--storage float32 stored bf16 …] …

`stored` is the setting storage=bf16. The others are simulated: updated rows are rounded to 16 bits and kept as float32,
so that every number is what such a table would hold. bf16 and fp16 round to nearest; stochastic rounds to either
neighbor in bf16 with a probability by distance, as `stored` does with other random numbers.
Prints the test MRR of every seed at the learning rate with the best validation.
"""

from __future__ import annotations

import argparse
import os
import time

import torch
from torch import Tensor

from grash.api.dataset import load_dataset
from grash.data.known_answers import KnownAnswers
from grash.engines.memory import choose_device
from grash.engines.trainer import TrainingData, run_trainings
from grash.evaluation.metrics import mrr
from grash.evaluation.ranking import Ranker
from grash.training.config import TrainConfig
from grash.training.gradients import Gradient
from grash.training.loop import Training
from grash.training.optimizers import TableOptimizer


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("graph")
    parser.add_argument("--model", default="complex")
    parser.add_argument("--epochs", type=float, default=60.0)
    parser.add_argument("--dim", type=int, default=128)
    parser.add_argument("--negatives", type=int, default=500)
    parser.add_argument("--optimizers", nargs="+", default=["adagrad", "row_adagrad"])
    parser.add_argument("--storage", nargs="+", default=list(ROUND))
    parser.add_argument("--rates", nargs="+", type=float, default=[0.03, 0.1, 0.3])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--device", default="auto")
    args = parser.parse_args()
    data, device = load_dataset(args.graph), choose_device(args.device)
    known = KnownAnswers.of(data.train, data.valid, data.test, n_relations=data.n_relations, asked=data.test)
    ranker, training_data = Ranker(data.test, known, data.n_entities, device), TrainingData(data, device)
    for optimizer in args.optimizers:
        for storage in args.storage:
            store_as(storage, data.n_entities)
            began, found = time.monotonic(), []
            for lr in args.rates:
                configs = [config_of(args, optimizer, storage, lr, seed) for seed in range(args.seeds)]
                runs = [trained(training_data, ranker, config) for config in configs]
                found.append((sum(valid for valid, _ in runs), lr, [test for _, test in runs]))
            _, lr, tests = max(found)
            print(f"{data.name} {args.model} {optimizer} {storage}: test MRR {', '.join(f'{t:.4f}' for t in tests)} "
                  f"(lr {lr:g}; {time.monotonic() - began:.0f} s)", flush=True)  # fmt: skip


def config_of(args: argparse.Namespace, optimizer: str, storage: str, lr: float, seed: int) -> TrainConfig:
    return TrainConfig(
        model=args.model, dim=args.dim, epochs=args.epochs, valid_every=args.epochs / 6, patience=None, lr=lr,
        optimizer=optimizer, negatives_head=args.negatives, negatives_tail=args.negatives, seed=seed,
        storage="bf16" if storage == "stored" else "float32",
    )  # fmt: skip


def trained(training_data: TrainingData, ranker: Ranker, config: TrainConfig) -> tuple[float, float]:
    """The best validation, and the test MRR of its weights."""
    [[(_, ended)]] = run_trainings(training_data, [Training(config)])
    if isinstance(ended, Exception):
        return 0.0, 0.0
    return max(v.mrr for v in ended.history), mrr(ranker.rank(ended.model))


def stochastic(rows: Tensor) -> Tensor:
    """Sixteen random bits below the kept ones carry into them as often as the cut part is large."""
    bits = rows.view(torch.int32)
    return ((bits + torch.randint_like(bits, 1 << 16)) & -(1 << 16)).view(torch.float32)


ROUND = {
    "float32": None,
    "stored": None,
    "bf16": lambda rows: rows.bfloat16().float(),
    "stochastic": stochastic,
    "fp16": lambda rows: rows.half().float(),
}
UPDATE = TableOptimizer.update


def store_as(storage: str, n_entities: int) -> None:
    """From now on the entities' optimizer rounds what it has moved."""
    torch.manual_seed(0)
    rounded = ROUND[storage]

    def update(self: TableOptimizer, table: Tensor, gradient: Gradient, lr: float, step: int) -> None:
        UPDATE(self, table, gradient, lr, step)
        if rounded is not None and len(table) == n_entities and gradient.ids:
            ids = torch.cat(gradient.ids).unique()
            table[ids] = rounded(table[ids])

    TableOptimizer.update = update  # type: ignore[method-assign]


if __name__ == "__main__":
    os.environ.setdefault("GRASH_KERNELS", "reference")  # the fused step updates rows itself
    main()
