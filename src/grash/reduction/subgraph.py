"""Subgraph: a part of a graph as a Dataset of its own, with ids of its own that map back to the full graph.

Comes from cut.py, samples.py and walks.py; rounds of a search train on its dataset.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any, Literal

import numpy as np
from numba import njit
from numpy.typing import NDArray

from grash.data.dataset import Dataset
from grash.data.vocabulary import Vocabulary
from grash.errors import InputError
from grash.reduction.adjacency import Triples
from grash.reduction.holdout import NOTHING, Holdout, Part, split_off


@dataclass(frozen=True, eq=False)
class Subgraph:
    """A dataset with train and valid, and without test.

    entity_ids (E_i,), relation_ids (R_i,) int32: the ids in the full graph, ascending; those that occur in its
    triples. k: the core number of the outermost entity, where cores are at work. target: the fraction that was asked
    for; fraction: what train has of the full train split. whole: it is the full graph, with ids unchanged. fell_back:
    no core was small enough for the ladder, so the chain was followed further inside.
    """

    dataset: Dataset
    entity_ids: NDArray[np.int32]
    relation_ids: NDArray[np.int32]
    target: float
    fraction: float
    k: int | None = None
    whole: bool = False
    fell_back: bool = False

    def full_ids(self, split: Literal["train", "valid"]) -> Triples:
        """The triples (m, 3) of a split in ids of the full graph."""
        triples = self.dataset.split(split)
        ends, relations = self.entity_ids[triples[:, ::2]], self.relation_ids[triples[:, 1]]
        return np.stack([ends[:, 0], relations, ends[:, 1]], axis=1)


def make_subgraph(
    dataset: Dataset,
    part: Part,
    target: float | Fraction,
    *,
    k: int | None = None,
    fell_back: bool = False,
    names: bool = False,
    how: dict[str, Any],
) -> Subgraph:
    """The subgraph of a part of a dataset; with `names`, its entities and relations keep theirs, or have their ids
    in the full graph as names where that has none. O(m + E)."""
    if not len(part.train):
        raise InputError(
            f"A fraction of {float(target):g} of {len(dataset.train):,} triples leaves none to train on: "
            f"give a larger fraction."
        )
    used_entities, used_relations = used_by(dataset, part)
    entity_ids, relation_ids = (np.flatnonzero(used).astype(np.int32) for used in (used_entities, used_relations))
    new = (_new_ids(entity_ids, dataset.n_entities), _new_ids(relation_ids, dataset.n_relations))
    small = Dataset(
        train=_relabelled(part.train, *new),
        valid=_relabelled(part.valid, *new),
        test=NOTHING,
        n_entities=len(entity_ids),
        n_relations=len(relation_ids),
        entities=_names_of(dataset.entities, entity_ids, "entity") if names else None,
        relations=_names_of(dataset.relations, relation_ids, "relation") if names else None,
        name=f"{dataset.name}-{float(target):g}",
        provenance={"reduced_from": dataset.name, "fingerprint": dataset.fingerprint, **how} if names else how,
    )
    fraction = len(part.train) / len(dataset.train)
    return Subgraph(small, entity_ids, relation_ids, float(target), fraction, k, False, fell_back)


def whole_graph(
    dataset: Dataset, target: float | Fraction, holdout: Holdout, *, k: int | None, how: dict[str, Any]
) -> Subgraph:
    """The full graph with its own valid, or one split off train where it has none."""
    train, valid = dataset.train, dataset.valid
    if not len(valid):
        part = split_off(train, dataset.n_entities, dataset.n_relations, holdout)
        train, valid = part.train, part.valid
    full = replace(dataset, train=train, valid=valid, test=NOTHING, provenance={**dataset.provenance, **how})
    entity_ids, relation_ids = (np.arange(n, dtype=np.int32) for n in (dataset.n_entities, dataset.n_relations))
    fraction = len(train) / len(dataset.train) if len(dataset.train) else 1.0
    return Subgraph(full, entity_ids, relation_ids, float(target), fraction, k, whole=True)


def used_by(dataset: Dataset, part: Part) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """Which entities (E,) and relations (R,) of a dataset occur in a part of it."""
    entities, relations = np.empty(dataset.n_entities, bool), np.zeros(dataset.n_relations, bool)
    entities.fill(False)  # unlike np.zeros, in huge pages
    for triples in (part.train, part.valid):
        _mark(triples, entities, relations)
    return entities, relations


def _names_of(names: Vocabulary | None, ids: NDArray[np.int32], kind: str) -> Vocabulary:
    if names is None:
        return Vocabulary.from_names((str(i) for i in ids), kind=kind)
    return names.subset(ids)


def _new_ids(ids: NDArray[np.int32], n: int) -> NDArray[np.int32]:
    """By id in the full graph, of n: the place of those that are kept."""
    new = np.empty(n, np.int32)
    new[ids] = np.arange(len(ids), dtype=np.int32)
    return new


def _relabelled(triples: Triples, entity: NDArray[np.int32], relation: NDArray[np.int32]) -> Triples:
    small = np.empty_like(triples)
    _relabel(triples, entity, relation, small)
    return small


@njit(cache=True, nogil=True)
def _mark(triples: Triples, entities: NDArray[np.bool_], relations: NDArray[np.bool_]) -> None:
    for row in range(triples.shape[0]):
        entities[triples[row, 0]] = True
        entities[triples[row, 2]] = True
        relations[triples[row, 1]] = True


@njit(cache=True, nogil=True)
def _relabel(triples: Triples, entity: NDArray[np.int32], relation: NDArray[np.int32], small: Triples) -> None:
    for row in range(triples.shape[0]):
        small[row, 0] = entity[triples[row, 0]]
        small[row, 1] = relation[triples[row, 1]]
        small[row, 2] = entity[triples[row, 2]]
