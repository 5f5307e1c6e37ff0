"""Ensembles folded into one model, beside their members and beside one model of their dimension.

    python benchmarks/check_ensemble.py CoDEx-S --config benchmarks/records/2026-11-18_growth/codex-s.yaml --members 4

Trains `--members` models with consecutive seeds, folds the first 2, 4, … of them, and trains one model of the dimension
of all (and of half of all) with the same settings. Prints MRRs on valid and test, and CPU seconds of the trainings.
Datasets are read from `--data` (default: datasets).
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import grash


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("graph")
    parser.add_argument("--data", type=Path, default=Path("datasets"))
    parser.add_argument("--config", type=Path, required=True)
    parser.add_argument("--members", type=int, default=4)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0], help="first seed of each ensemble")
    given = parser.parse_args()
    dataset = grash.load_dataset(given.data / given.graph)
    print(f"{'model':30} {'dim':>5} {'valid':>6} {'test':>6} {'CPU s':>6}", flush=True)
    for seed in given.seeds:
        members = [_trained(dataset, given.config, seed * given.members + i) for i in range(given.members)]
        for i, (model, seconds) in enumerate(members):
            _show(f"seed {seed * given.members + i}", model, seconds)
        n = 2
        while n <= given.members:
            part = members[:n]
            folded = grash.ensemble([model for model, _ in part], evaluate=False, calibrate=False)
            _show(f"ensemble of {n}", folded, sum(seconds for _, seconds in part))
            _show(f"one model, seed {seed}", *_trained(dataset, given.config, seed, dim=folded.kge.dim))
            n *= 2


def _trained(dataset: grash.Dataset, config: Path, seed: int, **settings: int) -> tuple[grash.Model, float]:
    began = time.process_time()
    model = grash.train(
        dataset, config, seed=seed, progress=False, evaluate=False, calibrate=False, threads=1, **settings
    )
    return model, time.process_time() - began


def _show(what: str, model: grash.Model, seconds: float) -> None:
    valid, test = (model.evaluate(split=split).both.mrr for split in ("valid", "test"))
    print(f"{what:30} {model.kge.dim:5} {valid:6.4f} {test:6.4f} {seconds:6.1f}", flush=True)


if __name__ == "__main__":
    main()
