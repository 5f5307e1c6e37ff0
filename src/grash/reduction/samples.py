"""Triple sampling: the plainest way to a smaller graph, for comparison (paper, Sec. 4.1).

Many entities stay, each with few triples. Gives the same record as cut.py.
"""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import NDArray

from grash.data.dataset import Dataset
from grash.reduction.holdout import Holdout, longest_part, target_of
from grash.reduction.subgraph import Subgraph, make_subgraph, whole_graph


def sample_triples(
    dataset: Dataset, fraction: float | Fraction, *, seed: int, guarded: bool = True, names: bool = False
) -> Subgraph:
    """A random part of the train triples, as large as its train part's being at most `fraction` of all allows.

    A larger fraction contains the smaller one of the same seed. `guarded`, `names`: as in cut.
    """
    n = len(dataset.train)
    enters = np.empty(n, np.int32)
    enters[np.random.default_rng(seed).permutation(n)] = np.arange(1, n + 1, dtype=np.int32)
    how = {"method": "triples", "fraction": str(fraction), "seed": seed}
    return part_in_order(dataset, enters, n, fraction, Holdout(seed, guarded), names=names, how=how)


def part_in_order(
    dataset: Dataset,
    enters: NDArray[np.int32],
    n_entered: int,
    fraction: float | Fraction,
    holdout: Holdout,
    *,
    names: bool,
    how: dict[str, Any],
) -> Subgraph:
    """The subgraph of the train triples that come in first: triple by triple, enters (n,) = 1 … n_entered or later."""
    n, target = len(dataset.train), target_of(fraction, len(dataset.train))
    if target >= n:
        return whole_graph(dataset, fraction, holdout, k=None, how={"reduction": how})
    counts = {"n_entities": dataset.n_entities, "n_relations": dataset.n_relations}
    part = longest_part(dataset.train, enters, np.arange(n_entered + 1), target, **counts, holdout=holdout)
    if len(part) == n:
        return whole_graph(dataset, fraction, holdout, k=None, how={"reduction": how})
    return make_subgraph(dataset, part, fraction, names=names, how={"reduction": how})
