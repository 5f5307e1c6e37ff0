"""Measure a training step of recipes that the paper's fused step did not cover: Adam, bce, KvsAll, RESCAL, wide rows.

    python benchmarks/bench_gpu_recipes.py DATA [--only NAME …] [--kernels] [--unfused] [--ranking]

DATA holds FB15k-237/train.npy and WN18RR/train.npy. `500 + 500` and `1vsall` are what LibKGE is compared with, and with
`--ranking` the filtered ranks of FB15k-237's test set with d = 128, filters made before. Each recipe is measured as the
training loop runs it, for about a second: the seconds of a step, and the seconds of an epoch. `--unfused` also measures
`train_step`, step by step, and `--kernels` lists the kernels that take most of a step. It runs with an older source
tree, too (PYTHONPATH), to compare.
"""

from __future__ import annotations

import argparse
import logging
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from grash.data.known_answers import KnownAnswers
from grash.evaluation.ranking import Ranker
from grash.kernels.device import matmul_precision
from grash.training.batches import Batches
from grash.training.checkpoint import TrainState
from grash.training.config import TrainConfig
from grash.training.initial import initial_model
from grash.training.loop import Training, steps_for, train_step

ALL = {"training": "1vsall", "dim": 512, "reciprocal": True}
SHARED = {"dim": 128, "negatives_head": 500, "negatives_tail": 500}
KVSALL = {"training": "kvsall", "dim": 512, "reciprocal": True, "label_smoothing": 0.1}
RESCAL = {"model": "rescal", "dim": 128, "optimizer": "adam", "lr": 7e-4}
RECIPES: dict[str, dict[str, Any]] = {
    "500 + 500": SHARED,
    "1vsall": {"training": "1vsall", "dim": 512},
    "adam, 1vsall": {**ALL, "optimizer": "adam", "lr": 1e-3},
    "adam, 500 + 500": {**SHARED, "optimizer": "adam", "lr": 1e-3},
    "lazy adam, 500 + 500": {**SHARED, "optimizer": "lazy_adam", "lr": 1e-3},
    "bce, 500 + 500": {**SHARED, "loss": "bce"},
    "bce, 1vsall": {**ALL, "loss": "bce"},
    "kvsall": {**KVSALL, "penalty": "l3", "penalty_entity": 1e-9, "penalty_relation": 1e-9},
    "kvsall, d = 128": {**KVSALL, "dim": 128},
    "kvsall, bce": {**KVSALL, "loss": "bce", "optimizer": "adam", "lr": 1e-3},
    "dura, 1vsall": {**ALL, "penalty": "dura", "penalty_entity": 0.05},
    "whole tables, 500 + 500": {**SHARED, "penalty": "l3", "penalty_entity": 1e-9, "penalty_weighted": False},
    "transe, margin, 500 + 500": {**SHARED, "model": "transe", "norm": 2, "loss": "margin"},
    "d = 1,000, 500 + 500": {**SHARED, "dim": 1000},
    "d = 2,000, 500 + 500": {**SHARED, "dim": 2000},
    "d = 2,000, 1vsall": {**ALL, "dim": 2000},
    "rescal, 1vsall": {**RESCAL, "training": "1vsall", "batch_size": 512, "dropout_entity": 0.43,
                       "dropout_relation": 0.16},
    "rescal, kvsall, WN18RR": {**RESCAL, "training": "kvsall", "reciprocal": True, "batch_size": 128,
                               "penalty": "l3", "penalty_entity": 1e-14, "penalty_relation": 3e-15,
                               "penalty_weighted": False, "dropout_relation": 0.24, "label_smoothing": 0.3},
}  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("--only", nargs="*", default=list(RECIPES), choices=list(RECIPES), metavar="NAME")
    parser.add_argument("--kernels", action="store_true")
    parser.add_argument("--unfused", action="store_true")
    parser.add_argument("--ranking", action="store_true")
    parser.add_argument("--seconds", type=float, default=1.0)
    parser.add_argument("--device", default="cuda")
    args = parser.parse_args()
    torch.set_grad_enabled(False)
    logging.basicConfig(level=logging.INFO)
    device = torch.device(args.device)
    for name in args.only:
        train = np.load(args.data / ("WN18RR" if "WN18RR" in name else "FB15k-237") / "train.npy")
        config = TrainConfig(**{"batch_size": 1024, "lr": 0.1, "epochs": 10_000, **RECIPES[name]})
        with matmul_precision(config.precision):
            measure_recipe(name, config, train, device, args)

    if args.ranking:
        measure_ranking(args.data / "FB15k-237", device)


def measure_ranking(folder: Path, device: torch.device) -> None:
    train, valid, test = (np.load(folder / f"{split}.npy") for split in ("train", "valid", "test"))
    sizes = int(max(split[:, [0, 2]].max() for split in (train, valid, test))) + 1, int(train[:, 1].max()) + 1
    model = initial_model(TrainConfig(dim=128), *sizes, device=device)
    known = KnownAnswers.of(train, valid, test, n_relations=sizes[1])
    ranker = Ranker(test, known, sizes[0], device)
    ranker.rank(model)
    seconds = []
    for _ in range(10):
        began = time.perf_counter()
        ranker.rank(model)
        seconds.append(time.perf_counter() - began)
    print(f"ranking of {len(test):,} test triples, d = 128: {np.median(seconds):.4f} s", flush=True)


def measure_recipe(
    name: str, config: TrainConfig, train: np.ndarray, device: torch.device, args: argparse.Namespace
) -> None:
    state, batches = start(config, train, device)
    steps = steps_for([Training(config).started(state, batches)])
    kind, n_steps = type(steps).__name__, batches.plan.n_steps
    seconds = per_step(lambda: steps.advance(n_steps), state, device, args.seconds)
    if kind == "CapturedSteps" and not steps.steps[0].captures:  # type: ignore[attr-defined]
        kind = "not captured"
    epoch = seconds * batches.plan.steps_per_epoch
    print(f"{name:28} {kind:14} {1e6 * seconds:9.1f} us a step, {epoch:.4f} s an epoch", flush=True)
    if args.kernels and device.type == "cuda":
        list_kernels(lambda: steps.advance(n_steps), state)
    if args.unfused:
        state, batches = start(config, train, device)
        seconds = per_step(lambda: train_step(state, batches, config), state, device, args.seconds)
        print(f"{name:28} {'train_step':14} {1e6 * seconds:9.1f} us a step", flush=True)


def start(config: TrainConfig, train: np.ndarray, device: torch.device) -> tuple[TrainState, Batches]:
    sizes = int(train[:, [0, 2]].max()) + 1, int(train[:, 1].max()) + 1
    state = TrainState.fresh(initial_model(config, *sizes, device=device), config)
    return state, Batches(train, *sizes, config, device)


def per_step(advance: Callable[[], object], state: TrainState, device: torch.device, seconds: float) -> float:
    """Return the seconds of a step, after a warm-up that compiles and captures."""
    for _ in range(6):
        advance()
    synchronize(device)
    first, began = state.step, time.perf_counter()
    while time.perf_counter() - began < seconds:
        advance()
    synchronize(device)
    return (time.perf_counter() - began) / (state.step - first)


def list_kernels(advance: Callable[[], object], state: TrainState) -> None:
    """Print the kernels of a step by their time."""
    first = state.step
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        advance()
        torch.cuda.synchronize()
    n = state.step - first
    found = sorted(profile.key_averages(), key=lambda each: -each.self_device_time_total)
    total = sum(each.self_device_time_total for each in found) / n
    print(f"    {total:.1f} us of kernels in {sum(each.count for each in found) / n:.0f} launches")
    for each in found[:14]:
        print(f"    {each.self_device_time_total / n:8.1f} us {each.count / n:6.1f} x {each.key[:110]}")


def synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


if __name__ == "__main__":
    main()
