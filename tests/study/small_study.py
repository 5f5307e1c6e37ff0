"""A study that takes a moment: a graph of 60 entities with dense and sparse parts, and a space of two parameters."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from grash.data.dataset import Dataset
from grash_study.pool import Pool, StudyGraphs, make_pool
from grash_study.store import Cell, Entry, Store, Technique

SPACE = {
    "lr": {"type": "float", "low": 0.01, "high": 0.5, "log": True},
    "negatives_head": {"low": 2, "high": 8},
    "negatives_tail": {"low": 2, "high": 8},
    "batch_size": 64,
    "optimizer": "adagrad",
}


def small_graph(seed: int = 0) -> Dataset:
    """60 entities, the later the rarer; 3 relations; 600 train, 60 valid, 60 test triples, all different."""
    generator = np.random.default_rng(seed)
    ends = np.minimum((60 * generator.random((4000, 2)) ** 1.7).astype(int), 59)
    triples = np.unique(np.stack([ends[:, 0], generator.integers(0, 3, 4000), ends[:, 1]], 1), axis=0)
    triples = generator.permutation(triples)[:720].astype(np.int32)
    parts = (np.ascontiguousarray(triples[a:b]) for a, b in ((0, 600), (600, 660), (660, 720)))
    return Dataset(*parts, n_entities=60, n_relations=3, name="small")


def small_pool(n: int = 4, **changes: Any) -> Pool:
    given = {"dim": 4, "epochs": 2.0, "space": SPACE, "label": "two", **changes}
    return make_pool(small_graph(), n=n, **given)


def small_study(folder: Path, n: int = 4, **changes: Any) -> tuple[StudyGraphs, Store]:
    pool = small_pool(n, **changes)
    return StudyGraphs(pool), pool.store(folder)


def made_up(number: int, technique: Technique, fraction: float, mrr: float, **more: Any) -> Entry:
    """An entry whose validations all are `mrr`, without any training."""
    given: dict[str, Any] = {
        "marks": (0.5, 1.0), "status": "ok", "curve": ((0.5, mrr, 1.0), (1.0, mrr, 1.0)), "seconds": 1.0,
        "train_seconds": 0.8, "valid_seconds": 0.01, "n_entities": 60, "n_relations": 3, "n_train": 600, "n_valid": 60,
        "positives": 1200, "model_bytes": 1000, "device": "cpu",
    }  # fmt: skip
    if technique == "whole":
        given["test"] = {"mrr": mrr, "hits@1": mrr / 2, "hits@3": mrr, "hits@10": mrr}
    return Entry(number, technique, fraction, **{**given, **more})


def made_up_for(cell: Cell, mrr: float, **more: Any) -> Entry:
    """An entry that has what a cell asks for, without any training."""
    curve = tuple((m, mrr, 1.0) for m in cell.marks)
    return made_up(cell.number, cell.technique, cell.fraction, mrr, **{"marks": cell.marks, "curve": curve, **more})
