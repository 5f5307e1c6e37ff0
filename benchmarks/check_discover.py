"""Hide 5 % of train, train a model without it, and count how many of the most probable new triples are hidden ones.

    python benchmarks/check_discover.py GRAPH --config FILE [-k 1000] [--all-pairs]

Valid and test are hidden, too. The result is a lower bound: a true triple that is in no split counts as wrong.
"""

import argparse
import json
import time
from dataclasses import replace
from pathlib import Path

import numpy as np

import grash
from grash.evaluation.discovery import discover, precision
from grash.training.config import read_config


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("graph")
    parser.add_argument("--config", type=Path, required=True)
    parser.add_argument("-k", type=int, default=1000)
    parser.add_argument("--all-pairs", action="store_true")
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    full = grash.load_dataset(given.graph)
    hidden = np.random.default_rng(given.seed).random(len(full.train)) < 0.05
    rest = replace(full, train=np.ascontiguousarray(full.train[~hidden]))
    model = grash.train(rest, read_config(given.config).changed(seed=given.seed))
    truth = replace(full, test=np.ascontiguousarray(np.concatenate([full.test, full.train[hidden]])))
    for like_known in (True, False) if given.all_pairs else (True,):
        began = time.monotonic()
        found = discover(model.kge, rest, model.calibration, k=given.k, like_known=like_known, known=("train",))
        seconds = time.monotonic() - began
        at = {str(k): round(precision(found.best(k), truth), 4) for k in (100, 300, given.k)}
        shares = {str(k): round(float(found.best(k).probabilities.mean()), 4) for k in (100, 300, given.k)}
        about = {"graph": full.name, "seed": given.seed, "like_known": like_known, "n_hidden": int(hidden.sum())}
        print(
            json.dumps({**about, "precision": at, "mean probability": shares, "seconds": round(seconds, 1)}), flush=True
        )


if __name__ == "__main__":
    main()
