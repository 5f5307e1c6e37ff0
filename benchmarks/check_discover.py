"""Hide 5 % of train, train a model without it, and count how many of the most probable new triples are hidden ones.

    python benchmarks/check_discover.py GRAPH --config FILE [-k 1000] [--all-pairs] [--hide 0]

Valid and test are hidden, too. The result is a lower bound: a true triple that is in no split counts as wrong. With
--hide 0 nothing is hidden. Either way it counts the triples that contradict a known one: a second answer to a question
of a relation and side of which less than 2 % of the questions have two answers.
"""

import argparse
import json
import time
from dataclasses import replace
from pathlib import Path

import numpy as np

import grash
from grash.data.dataset import SPLITS, Dataset, SplitName
from grash.data.known_answers import KnownAnswers
from grash.evaluation.discovery import discover, precision
from grash.training.config import read_config


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("graph")
    parser.add_argument("--config", type=Path, required=True)
    parser.add_argument("-k", type=int, default=1000)
    parser.add_argument("--all-pairs", action="store_true")
    parser.add_argument("--hide", type=float, default=0.05)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    full = grash.load_dataset(given.graph)
    hidden = np.random.default_rng(given.seed).random(len(full.train)) < given.hide
    rest = replace(full, train=np.ascontiguousarray(full.train[~hidden]))
    model = grash.train(rest, read_config(given.config).changed(seed=given.seed))
    truth = replace(full, test=np.ascontiguousarray(np.concatenate([full.test, full.train[hidden]])))
    for like_known in (True, False) if given.all_pairs else (True,):
        began = time.monotonic()
        known = ("train",) if given.hide else SPLITS
        found = discover(model.kge, rest, model.calibration, k=given.k, like_known=like_known, known=known)
        seconds = time.monotonic() - began
        at = {str(k): round(precision(found.best(k), truth), 4) for k in (100, 300, given.k)}
        shares = {str(k): round(float(found.best(k).probabilities.mean()), 4) for k in (100, 300, given.k)}
        wrong = contradicts(found.triples, rest, known)
        about = {"graph": full.name, "seed": given.seed, "like_known": like_known, "n_hidden": int(hidden.sum())}
        counts = {str(k): int(wrong[:k].sum()) for k in (10, 20, 100, given.k)}
        result = {**about, "mean probability": shares, "contradictions": counts, "seconds": round(seconds, 1)}
        print(json.dumps(result | ({"precision": at} if given.hide else {})), flush=True)


def contradicts(triples: np.ndarray, graph: Dataset, known: tuple[SplitName, ...]) -> np.ndarray:
    """Return (n,): whether a triple is a second answer to a question of a one-valued relation and side."""
    index, wrong = (
        KnownAnswers.of(*map(graph.split, known), n_relations=graph.n_relations),
        np.zeros(len(triples), bool),
    )
    for side, end in ((index.tail, triples[:, 0]), (index.head, triples[:, 2])):
        of, two = side.keys % graph.n_relations, np.diff(side.starts) > 1
        n_asked, n_two = (np.bincount(rows, minlength=graph.n_relations) for rows in (of, of[two]))
        wrong |= (n_two < 0.02 * n_asked)[triples[:, 1]] & (side.runs(end, triples[:, 1])[1] > 0)
    return wrong


if __name__ == "__main__":
    main()
