"""Other ways to a smaller graph, for comparison with cores (paper, Sec. 4.1): random triples and random walks.

`sample_triples` keeps many entities with few triples each; `random_walks` and `kgtuner_walk` sample as AutoNE and
KGTuner do. All return a Subgraph, as `subgraph.cut` does. `cut_by_walk` is KGTuner's for the rounds of a search
(`reduction: walk`).
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray

from grash.data.arrays import Integer, select_rows
from grash.data.dataset import Dataset
from grash.errors import InputError
from grash.reduction import subgraph
from grash.reduction.cores import Ids, Offsets, Triples, entity_adjacency, incident_triples
from grash.reduction.subgraph import Holdout, Subgraph, hold_out, largest_part, make_subgraph

LENGTH = 10
_NEVER = np.int32(2**31 - 1)
_STEPS_PER_TRIPLE = 100  # walks end after this many steps, even if they have found too little
_N_WALKS = 10  # of KGTuner
_HALVINGS = 12  # of the share of entities, to have a number of triples
_PATIENCE, _MIN_NEW = 100, 2  # a walk that finds fewer new entities in this many steps jumps to another entity
_log = logging.getLogger(__name__)


def sample_triples(
    dataset: Dataset, fraction: float | Fraction, *, seed: int, guarded: bool = True, names: bool = False
) -> Subgraph:
    """Return the subgraph of random train triples whose train split has at most this fraction of all.

    A larger fraction with the same seed contains the smaller one. guarded, names: as in `subgraph.cut`.
    """
    n = len(dataset.train)
    entry = np.empty(n, np.int32)
    entry[np.random.default_rng(seed).permutation(n)] = np.arange(1, n + 1, dtype=np.int32)
    holdout = Holdout(seed, guarded)
    part = largest_part(dataset, entry, np.arange(n + 1), fraction, holdout)
    provenance = {"method": "triples", "fraction": str(fraction), "seed": seed}
    return make_subgraph(dataset, part, fraction, holdout, names=names, provenance=provenance)


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
    """Return the triples of random walks of `length` steps, each from a random entity that has a triple.

    A step takes a random triple of the entity, as head or tail, to its other entity. Give either a fraction of the
    train triples, to add walks until it is reached, or the number of starts. guarded, names: as in `subgraph.cut`.
    """
    if (fraction is None) == (starts is None):
        raise InputError("Random walks need either a fraction or a number of starts: give one of them.")
    if length < 1 or (starts is not None and starts < 1):
        raise InputError(f"starts={starts} and length={length} are not possible: give 1 or more of each.")
    n = len(dataset.train)
    holdout = Holdout(seed, guarded)
    wanted = n if fraction is None else min(n, subgraph.max_triples(subgraph.max_train_triples(fraction, n)))
    max_starts = starts if starts is not None else -(-_STEPS_PER_TRIPLE * n // length)
    entry = np.full(n, _NEVER, np.int32)
    n_found = 0
    if n:
        incident = incident_triples(dataset.train, dataset.n_entities)
        candidates = np.flatnonzero(np.diff(incident.starts))
        generator = np.random.default_rng(seed)
        n_found = _walk(
            dataset.train, incident.starts, incident.neighbors, candidates, length, max_starts, wanted, entry, generator
        )
    provenance: dict[str, Any] = {"method": "walk", "length": length, "starts": starts, "seed": seed}
    if fraction is None:
        return _subgraph_of(dataset, entry != _NEVER, holdout, n_found / max(1, n), names, provenance)
    if n_found < wanted:
        _log.warning("The walks found %d of %d triples in %d steps.", n_found, wanted, _STEPS_PER_TRIPLE * n)
    part = largest_part(dataset, entry, np.arange(n_found + 1), fraction, holdout)
    provenance["fraction"] = str(fraction)
    return make_subgraph(dataset, part, fraction, holdout, names=names, provenance=provenance)


def kgtuner_walk(
    dataset: Dataset, share: float | Fraction, *, seed: int, guarded: bool = True, names: bool = False
) -> Subgraph:
    """Return all triples among this share of the entities, found by walks as in KGTuner.

    Ten walks start at random entities that have a triple and step to random neighbors; each ends when its tenth of
    the entities is found. A walk that finds fewer than 2 new ones in 100 steps jumps to a random entity.
    """
    if not 0 < share <= 1:
        raise InputError(f"share={share} of the entities is not possible: give a number above 0, up to 1.")
    among = _among_visited(dataset, seed)(float(share))
    provenance = {"method": "kgtuner", "share_of_entities": str(share), "seed": seed}
    return _subgraph_of(dataset, among, Holdout(seed, guarded), share, names, provenance)


def cut_by_walk(dataset: Dataset, fraction: float | Fraction, holdout: Holdout) -> Subgraph:
    """Return KGTuner's walk with the largest share of entities whose train part has at most this fraction of triples.

    KGTuner gives a share of entities; here it gets as many triples as a part of the core order would. Walks of
    different shares are not nested. As in `subgraph.cut`, the whole graph is returned if its train part fits.
    """
    target = subgraph.max_train_triples(fraction, len(dataset.train))
    provenance: dict[str, Any] = {"method": "kgtuner", "share_of_entities": "1.0", "seed": holdout.seed}
    if len(hold_out(dataset.train, dataset.n_entities, dataset.n_relations, holdout).train) <= target:
        return make_subgraph(dataset, None, fraction, holdout, provenance=provenance)
    among, low, high, found = _among_visited(dataset, holdout.seed), 0.0, 1.0, None
    for _ in range(_HALVINGS):
        share = (low + high) / 2
        mask = among(share)
        part = hold_out(select_rows(dataset.train, mask), dataset.n_entities, dataset.n_relations, holdout)
        if len(part.train) <= target:
            low, found = share, part if len(part.train) else found
        else:
            high = share
    if found is None:
        raise InputError(f"No walk leaves {target:,} triples of {dataset.name} or fewer: give a larger fraction.")
    provenance["share_of_entities"] = str(low)
    return make_subgraph(dataset, found, fraction, holdout, provenance=provenance)


def _among_visited(dataset: Dataset, seed: int) -> Callable[[float], NDArray[np.bool_]]:
    """Return a function: share of the entities → (n,), whether both entities of each train triple are on the walks."""
    adjacency = entity_adjacency(dataset.train, dataset.n_entities, "neighbors")
    has_triple = np.zeros(dataset.n_entities, bool)
    has_triple[dataset.train[:, ::2]] = True
    candidates = np.flatnonzero(has_triple)

    def among(share: float) -> NDArray[np.bool_]:
        goals = np.ceil(len(candidates) * share * np.arange(1, _N_WALKS + 1) / _N_WALKS).astype(np.int64)
        visited = np.zeros(dataset.n_entities, bool)
        if len(candidates):
            generator = np.random.default_rng(seed)
            _visit(adjacency.starts, adjacency.neighbors, candidates, goals, visited, generator)
        return visited[dataset.train[:, 0]] & visited[dataset.train[:, 2]]

    return among


def _subgraph_of(
    dataset: Dataset, mask: NDArray[np.bool_], holdout: Holdout, target: float | Fraction, names: bool, how: Any
) -> Subgraph:
    """Return the subgraph of the train triples where mask (n,) is true. how: as `provenance` of make_subgraph."""
    part = None
    if not mask.all():
        part = hold_out(select_rows(dataset.train, mask), dataset.n_entities, dataset.n_relations, holdout)
    return make_subgraph(dataset, part, target, holdout, names=names, provenance=how)


@njit(cache=True, nogil=True)
def _walk(
    triples: Triples, row_starts: Offsets, rows: Ids, candidates: NDArray[np.int64], length: Integer,
    max_starts: Integer, wanted: Integer, entry: Ids, generator: np.random.Generator,
) -> Integer:  # fmt: skip
    """Number the triples in the order in which they are first visited, from 1; return how many were found."""
    n_found = 0
    for _ in range(max_starts):
        entity = candidates[generator.integers(0, candidates.size)]
        for _ in range(length):
            first = row_starts[entity]
            row = rows[first + generator.integers(0, row_starts[entity + 1] - first)]
            if entry[row] == _NEVER:
                n_found += 1
                entry[row] = n_found
                if n_found == wanted:
                    return n_found
            head, tail = np.int64(triples[row, 0]), np.int64(triples[row, 2])
            entity = tail if head == entity else head
    return n_found


@njit(cache=True, nogil=True)
def _visit(
    row_starts: Offsets, neighbors: Ids, candidates: NDArray[np.int64], goals: NDArray[np.int64],
    visited: NDArray[np.bool_], generator: np.random.Generator,
) -> None:  # fmt: skip
    """Mark entities as visited; walk i ends when goals[i] are."""
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
            n_neighbors = row_starts[entity + 1] - row_starts[entity]
            if step == _PATIENCE or n_neighbors == 0:  # none: all its triples are loops
                if n_visited - n_before < _MIN_NEW or n_neighbors == 0:
                    entity = candidates[generator.integers(0, candidates.size)]
                step, n_before = 0, n_visited
            else:
                entity = np.int64(neighbors[row_starts[entity] + generator.integers(0, n_neighbors)])
