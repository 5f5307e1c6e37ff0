"""Triple sampling: the plainest way to a smaller graph, for comparison (paper, Sec. 4.1).

Many entities stay, each with few triples. Gives the same record as cut.py.
"""

from __future__ import annotations

import logging
from fractions import Fraction
from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray

from grash.data.dataset import Dataset
from grash.data.interning import Whole
from grash.data.split import rows_where
from grash.errors import InputError
from grash.reduction.cores import Triples, adjacency_of, incident_rows
from grash.reduction.subgraph import (
    Holdout,
    Subgraph,
    longest_part,
    make_subgraph,
    most_triples,
    split_off,
    target_of,
    whole_graph,
)


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


# = Random walks over the triples: the ways of AutoNE and KGTuner to a smaller graph, for comparison (paper, Sec. 4.1).
# =
# = Both give the same record as cut.py.

LENGTH = 10
_NEVER = np.int32(2**31 - 1)
_STEPS_PER_TRIPLE = 100  # a walk that has found too little by then is given up
_STARTS = 10  # KGTuner's walks
_PATIENCE, _FRESH = 100, 2  # in so many steps so many new entities, or the walk goes on somewhere else
_log = logging.getLogger(__name__)


def random_walks(
    dataset: Dataset,
    fraction: float | Fraction | None = None,
    *,
    seed: int,
    length: int = LENGTH,
    starts: int | None = None,
    guarded: bool = True,
    names: bool = False,
) -> Subgraph:
    """The triples of random walks of `length` steps, each from an entity drawn uniformly (of those with a triple).

    A step takes a triple of the entity, head or tail, drawn uniformly, to its other end. Give a fraction: walks are
    added until the train part has that share of all train triples, and the last one ends in between; or the number
    of starts. `guarded`, `names`: as in cut.
    """
    _check_walks(fraction, starts, length)
    n = len(dataset.train)
    holdout = Holdout(seed, guarded)
    wanted = n if fraction is None else min(n, most_triples(target_of(fraction, n)))
    most_starts = starts if starts is not None else -(-_STEPS_PER_TRIPLE * n // length)
    enters = np.full(n, _NEVER, np.int32)
    incident = incident_rows(dataset.train, dataset.n_entities)
    generator = np.random.default_rng(seed)
    n_found = 0
    if n:
        peopled = np.flatnonzero(np.diff(incident.starts))
        n_found = _walk(
            dataset.train, incident.starts, incident.neighbors, peopled, length, most_starts, wanted, enters, generator
        )
    how = {"method": "walk", "length": length, "starts": starts, "seed": seed}
    if fraction is not None:
        if n_found < wanted:
            _log.warning("The walks found %d of %d triples in %d steps.", n_found, wanted, _STEPS_PER_TRIPLE * n)
        how["fraction"] = str(fraction)
        return part_in_order(dataset, enters, n_found, fraction, holdout, names=names, how=how)
    return _all_of(dataset, enters != _NEVER, holdout, None, names, how)


def kgtuner_walk(
    dataset: Dataset, share: float | Fraction, *, seed: int, guarded: bool = True, names: bool = False
) -> Subgraph:
    """All triples among this share of the entities, found by walks as in KGTuner.

    Ten walks start at entities drawn uniformly (of those with a triple), step to neighbors drawn uniformly, and each
    ends when its tenth of the entities has been found. A walk that finds fewer than 2 new ones in 100 steps goes on at
    an entity drawn uniformly.
    """
    if not 0 < share <= 1:
        raise InputError(f"A share of {share} of the entities is asked for: give a number above 0, up to 1.")
    adjacency = adjacency_of(dataset.train, dataset.n_entities, "neighbors")
    peopled = np.zeros(dataset.n_entities, bool)
    peopled[dataset.train[:, ::2]] = True
    candidates = np.flatnonzero(peopled)
    goals = np.ceil(len(candidates) * float(share) * np.arange(1, _STARTS + 1) / _STARTS).astype(np.int64)
    visited = np.zeros(dataset.n_entities, bool)
    if len(candidates):
        generator = np.random.default_rng(seed)
        _visit(adjacency.starts, adjacency.neighbors, candidates, goals, visited, generator)
    among = visited[dataset.train[:, 0]] & visited[dataset.train[:, 2]]
    how = {"method": "kgtuner", "share_of_entities": str(share), "seed": seed}
    return _all_of(dataset, among, Holdout(seed, guarded), share, names, how)


def _all_of(
    dataset: Dataset,
    mask: NDArray[np.bool_],
    holdout: Holdout,
    target: float | Fraction | None,
    names: bool,
    how: dict[str, Any],
) -> Subgraph:
    """The subgraph of the train triples that are marked (n,), whatever their number."""
    asked = target if target is not None else float(np.count_nonzero(mask)) / max(1, len(mask))
    if mask.all():
        return whole_graph(dataset, asked, holdout, k=None, how={"reduction": how})
    part = split_off(rows_where(dataset.train, mask), dataset.n_entities, dataset.n_relations, holdout)
    return make_subgraph(dataset, part, asked, names=names, how={"reduction": how})


def _check_walks(fraction: float | Fraction | None, starts: int | None, length: int) -> None:
    if (fraction is None) == (starts is None):
        raise InputError("Random walks need either a fraction to reach or a number of starts: give one of them.")
    if length < 1 or (starts is not None and starts < 1):
        raise InputError(f"starts={starts} walks of length={length} are asked for: give 1 or more of each.")


@njit(cache=True, nogil=True)
def _walk(
    triples: Triples,
    row_starts: NDArray[np.int64],
    rows: NDArray[np.int32],
    candidates: NDArray[np.int64],
    length: Whole,
    most_starts: Whole,
    wanted: Whole,
    enters: NDArray[np.int32],
    generator: np.random.Generator,
) -> Whole:
    """Numbers the triples in the order in which they are first walked, from 1; returns how many were found."""
    n_found = 0
    for _ in range(most_starts):
        entity = candidates[generator.integers(0, candidates.size)]
        for _ in range(length):
            first = row_starts[entity]
            row = rows[first + generator.integers(0, row_starts[entity + 1] - first)]
            if enters[row] == _NEVER:
                n_found += 1
                enters[row] = n_found
                if n_found == wanted:
                    return n_found
            head, tail = np.int64(triples[row, 0]), np.int64(triples[row, 2])
            entity = tail if head == entity else head
    return n_found


@njit(cache=True, nogil=True)
def _visit(
    row_starts: NDArray[np.int64],
    neighbors: NDArray[np.int32],
    candidates: NDArray[np.int64],
    goals: NDArray[np.int64],
    visited: NDArray[np.bool_],
    generator: np.random.Generator,
) -> None:
    """Marks entities until goals[-1] are; walk i ends when goals[i] are."""
    n_visited = 0
    for goal in goals:
        entity = candidates[generator.integers(0, candidates.size)]
        step, n_before = 0, n_visited
        while True:
            if not visited[entity]:
                visited[entity] = True
                n_visited += 1
            if n_visited >= goal:
                break
            step += 1
            n_beside = row_starts[entity + 1] - row_starts[entity]
            if step == _PATIENCE or n_beside == 0:  # an entity whose triples are all loops has nobody beside it
                if n_visited - n_before < _FRESH or n_beside == 0:
                    entity = candidates[generator.integers(0, candidates.size)]
                step, n_before = 0, n_visited
            else:
                entity = np.int64(neighbors[row_starts[entity] + generator.integers(0, n_beside)])
