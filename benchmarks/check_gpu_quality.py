"""Check that the fused step with bf16 products trains as well as the unfused one in float32, by validation MRR.

    python benchmarks/check_gpu_quality.py FOLDER [--epochs 4 12] [--only MODEL …] [--paths plain fused]

FOLDER holds fb15k-237 and wn18rr, each with train.npy and valid.npy, (n, 3) int32 ids. For both graphs, ComplEx (with
reciprocals and dropout), RotatE and TransE, and three seeds, the same training runs with both steps. --epochs gives the
epochs for the two graphs. Fused trainings run on the GPU, unfused ones on the CPU, one per core: 18 of them sharing a
GPU took longer. Both may run on different machines. Distances are float32 in both.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import time
from pathlib import Path
from typing import Any

import numpy as np

GRAPHS = ("fb15k-237", "wn18rr")
MODELS: dict[str, dict[str, Any]] = {
    "rotate": {"model": "rotate", "negatives_head": 200, "negatives_tail": 200},
    "transe": {"model": "transe", "negatives_head": 200, "negatives_tail": 200},
    "complex": {"model": "complex", "reciprocal": True, "dropout_entity": 0.1},
}
SEEDS = range(3)
Training = tuple[Path, str, str, int, float, str]  # folder, graph, model, seed, epochs, path


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--epochs", type=float, nargs=2, default=(4, 12))
    parser.add_argument("--only", nargs="*", default=list(MODELS))
    parser.add_argument("--paths", nargs="*", default=["plain", "fused"], choices=["plain", "fused"])
    args = parser.parse_args()
    start = time.perf_counter()
    tasks: list[list[Training]] = []
    for model in args.only:
        trainings = [(g, s, e) for g, e in zip(GRAPHS, args.epochs) for s in SEEDS]
        if "fused" in args.paths:  # one process for all: kernels are compiled once
            tasks.append([(args.folder, graph, model, seed, epochs, "fused") for graph, seed, epochs in trainings])
        if "plain" in args.paths:
            tasks += [[(args.folder, graph, model, seed, epochs, "plain")] for graph, seed, epochs in trainings]
    found: dict[tuple[str, str, int, str], float] = {}
    with multiprocessing.get_context("spawn").Pool(min(len(tasks), os.cpu_count() or 1)) as pool:
        for part in pool.imap_unordered(trained_in_turn, tasks):
            found |= part
            for key, value in part.items():
                print(*key, f"{value:.4f}", f"at {time.perf_counter() - start:.0f} s", flush=True)
    for graph in GRAPHS if len(args.paths) == 2 else ():
        for model in args.only:
            plain, fused = (np.array([found[graph, model, s, path] for s in SEEDS]) for path in ("plain", "fused"))
            print(f"{graph:10s} {model:8s} plain {_line(plain)}   fused {_line(fused)}   "
                  f"means differ by {fused.mean() - plain.mean():+.4f}, seeds spread {np.ptp(plain):.4f}")  # fmt: skip


def trained_in_turn(trainings: list[Training]) -> dict[tuple[str, str, int, str], float]:
    """(graph, model, seed, path) → MRR."""
    return {(graph, model, seed, path): _trained(folder / graph, model, seed, epochs, path)
            for folder, graph, model, seed, epochs, path in trainings}  # fmt: skip


def _trained(folder: Path, model: str, seed: int, epochs: float, path: str) -> float:
    import torch

    from grash.data.known_answers import KnownAnswers
    from grash.evaluation.metrics import mrr
    from grash.evaluation.ranking import Ranker
    from grash.training.batches import Batches
    from grash.training.checkpoint import TrainState
    from grash.training.config import TrainConfig
    from grash.training.initial import initial_model
    from grash.training.loop import Training, train_stack

    torch.set_num_threads(1)
    os.environ["GRASH_KERNELS"] = "reference" if path == "plain" else "triton"
    device = torch.device("cpu" if path == "plain" else "cuda")
    triples, valid = (np.load(folder / f"{split}.npy") for split in ("train", "valid"))
    _, n_relations, _ = (int(n) + 1 for n in triples.max(0))
    n_entities = int(max(triples[:, [0, 2]].max(), valid[:, [0, 2]].max())) + 1
    precision = "float32" if path == "plain" else "bf16"
    config = TrainConfig(**MODELS[model], seed=seed, epochs=epochs, precision=precision)
    batches = Batches(triples, n_entities, n_relations, config, device)
    state = TrainState.fresh(initial_model(config, n_entities, n_relations, device=device), config)
    [error] = train_stack([Training(config).started(state, batches)])
    if error is not None:
        raise error
    os.environ.pop("GRASH_KERNELS")
    ranker = Ranker(valid, KnownAnswers.of(triples, valid, n_relations=n_relations), n_entities, device)
    return mrr(ranker.rank(state.model))


def _line(values: np.ndarray) -> str:
    return " ".join(f"{v:.4f}" for v in values) + f" (mean {values.mean():.4f})"


if __name__ == "__main__":
    main()
