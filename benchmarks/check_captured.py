"""Check captured steps: the quality of fused and captured trainings, and searches with the memory of smaller GPUs.

    python benchmarks/check_captured.py FB15K-237 quality|cards [--seeds 3] [--gib 8 12 24]

quality: ComplEx by fused and by captured steps, with the same seeds: validation MRR at the end, test MRR, and seconds.
cards:   a search with an allocator limited to so many GiB: stacks of each round, peak memory, and how it ended.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path
from typing import Any

import torch

from grash.api.search import Search
from grash.data.dataset import Dataset
from grash.data.load import load_dataset
from grash.engines.trainer import run_training
from grash.evaluation.evaluate import evaluate
from grash.formatting import format_bytes
from grash.training import loop
from grash.training.config import TrainConfig

RECIPES: dict[str, dict[str, Any]] = {
    "1vsall": {"training": "1vsall", "dim": 256, "reciprocal": True, "penalty": "n3", "penalty_entity": 0.05,
               "penalty_relation": 0.05, "lr": 0.1, "epochs": 20},
    "kvsall": {"training": "kvsall", "dim": 256, "reciprocal": True, "label_smoothing": 0.1, "penalty": "n3",
               "penalty_entity": 0.01, "penalty_relation": 0.01, "lr": 0.1, "epochs": 20},
    "500 + 500": {"dim": 128, "negatives_head": 500, "negatives_tail": 500, "lr": 0.1, "epochs": 30},
}  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("graph")
    parser.add_argument("what", choices=("quality", "cards"))
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--gib", type=float, nargs="*", default=[8, 12, 24])
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--short", action="store_true", help="an epoch, to try the script")
    args = parser.parse_args()
    dataset = load_dataset(args.graph)
    quality(dataset, args) if args.what == "quality" else cards(dataset, args)


def quality(dataset: Dataset, args: argparse.Namespace) -> None:
    fused = loop.uses_fused_step
    for name, values in RECIPES.items():
        for kind in ("fused", "captured"):
            loop.uses_fused_step = fused if kind == "fused" else lambda *_: False
            for seed in range(args.seeds):
                config = TrainConfig(**values | {"seed": seed, "patience": None, "batch_size": 1024})
                if args.short:
                    config = config.changed(epochs=0.02)
                began = time.monotonic()
                state = run_training(dataset, config.changed(valid_every=config.epochs), device=args.device)
                seconds = time.monotonic() - began
                test = evaluate(state.model, dataset, split="test").to_dict()["both"]["mrr"]
                print(f"{name:10} {kind:8} seed {seed}: valid {state.history[-1].mrr:.4f}, test {test:.4f}, "
                      f"{seconds:.1f} s", flush=True)  # fmt: skip


def cards(dataset: Dataset, args: argparse.Namespace) -> None:
    for gib in args.gib:
        if args.device != "cpu":
            total = torch.cuda.get_device_properties(0).total_memory
            torch.cuda.set_per_process_memory_fraction(gib * 2**30 / total)
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats()
        with tempfile.TemporaryDirectory() as place:
            search = Search(dataset, model="complex", dim=512, max_epochs=0.1 if args.short else 20, n_trials=16,
                            out=Path(place) / "run", device=args.device)  # fmt: skip
            planned = [(r.implementation.stack_size, format_bytes(r.n_bytes)) for r in search.plan().all_rounds]
            began = time.monotonic()
            result = search.run()
            peak = torch.cuda.max_memory_reserved() if args.device != "cpu" else 0
            test = result.model.evaluation["both"]["mrr"]
            print(f"{gib:g} GiB: stacks and bytes planned {planned}; {time.monotonic() - began:.1f} s, peak "
                  f"{format_bytes(peak)}, test MRR {test:.4f}", flush=True)  # fmt: skip


if __name__ == "__main__":
    main()
