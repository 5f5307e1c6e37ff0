"""Tables that nobody trained: qualities drawn, and scores at every fidelity that correlate with them as asked.

Configurations are real ones of the `paper` space, so that models of them have something to look at.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from functools import lru_cache
from typing import Any

import numpy as np

from grash.search.proposals import make_configurations
from grash.search.settings import make_settings
from grash_study.table import Table

GRAPHS = tuple(2.0**-i for i in range(6, -1, -1))
EPOCHS = tuple(2.0 ** (-i / 2) for i in range(14, -1, -1))


@lru_cache(maxsize=8)
def pool_values(n: int, space: str = "paper") -> tuple[dict[str, Any], ...]:
    settings = make_settings({"space": space, "proposals": "random", "dim": 8, "n_trials": n})
    return tuple(c.values for c in make_configurations(settings, 20_000, n))


def make_table(
    *,
    n: int = 64,
    seed: int = 0,
    correlation: float = 1.0,
    diverged: float = 0.0,
    smooth: bool = False,
    max_epochs: float = 100.0,
    n_entities: int = 20_000,
    n_train: int = 200_000,
    graphs: tuple[float, ...] = GRAPHS,
    epochs: tuple[float, ...] = EPOCHS,
) -> Table:
    """n members with different qualities in (0, 0.5). correlation: of the scores at the smallest fidelity with them,
    growing to 1 at full fidelity. diverged: the share that never gets through. smooth: quality follows the learning
    rate, so that there is something to learn from members seen."""
    rng = np.random.default_rng(seed)
    values = list(pool_values(n))
    drawn = np.array([-abs(np.log10(v["lr"]) + 1) for v in values]) if smooth else rng.normal(size=n)
    order = np.argsort(np.argsort(drawn))
    quality = 0.5 * (order + 1) / (n + 1)
    fidelity = np.sqrt(np.outer(graphs, epochs))
    right = correlation + (1 - correlation) * fidelity
    noise = rng.normal(size=n)[None, None] * 0.7 + rng.normal(size=(len(graphs), len(epochs), n)) * 0.7
    spread = quality.std()
    seen = right[:, :, None] * (quality - quality.mean()) + np.sqrt(1 - right**2)[:, :, None] * noise * spread
    valid = (quality.mean() + seen) * np.sqrt(epochs)[None, :, None]
    fails = rng.random(n) < diverged
    failed = np.where(fails[None], rng.uniform(0.001, 0.02, (len(graphs), n)), np.inf)
    valid = np.where(np.asarray(epochs)[None, :, None] >= failed[:, None], 0.0, np.clip(valid, 1e-4, 1.0))
    truth = np.where(fails, 0.0, quality)
    shares = np.asarray(graphs)
    whole = shares >= 1
    meta = {
        "dataset": "drawn", "model": "complex", "dim": 8, "epochs": max_epochs, "space": "paper", "fixed": {},
        "n_entities": n_entities, "seed": seed, "device": "none",
    }  # fmt: skip
    return Table(
        meta=meta,
        configurations=values,
        graph_fractions=tuple(graphs),
        epoch_fractions=tuple(epochs),
        valid=valid,
        failed=failed,
        test={name: truth * k for name, k in (("mrr", 1.0), ("hits@1", 0.8), ("hits@3", 1.2), ("hits@10", 1.6))},
        seconds=np.ones((len(graphs), n)),
        entities=(n_entities * np.sqrt(shares)).astype(np.int64),
        relations=np.full(len(graphs), 5, np.int64),
        triples=(n_train * shares).astype(np.int64),
        n_valid=np.where(whole, 10_000, np.minimum(5000, n_train * shares / 4)).astype(np.int64),
    )


def without(table: Table, graphs: Collection[int]) -> Table:
    """The table without some of its graphs, given by index."""
    left = [g for g in range(len(table.graph_fractions)) if g not in graphs]
    names = ("valid", "failed", "seconds", "entities", "relations", "triples", "n_valid")
    arrays = {name: getattr(table, name)[left] for name in names}
    return replace(table, graph_fractions=tuple(table.graph_fractions[g] for g in left), **arrays)


def score(table: Table, number: int, graph: float, epochs: float) -> float:
    """The validation MRR of a configuration at (g, e), one at a time, as docs/reference/tables.md explains it."""
    near, other, share = table.neighbors(graph)
    if epochs >= table.failed[near, number]:
        return 0.0
    there = _on_graph(table, near, number, epochs)
    if epochs >= table.failed[other, number]:
        return there
    return (1 - share) * there + share * _on_graph(table, other, number, epochs)


def _on_graph(table: Table, g: int, number: int, epochs: float) -> float:
    marks, values = np.asarray(table.epoch_fractions), table.valid[g, :, number]
    there = ~np.isnan(values) & (marks < table.failed[g, number])
    return float(np.interp(epochs, [0.0, *marks[there]], [0.0, *values[there]]))
