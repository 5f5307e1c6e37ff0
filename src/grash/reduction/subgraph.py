"""Subgraphs: parts of a graph as datasets with their own ids, cut along the core order of the graph.

The peel order (`cores.py`) read backwards leads from the innermost core out to the whole graph. Every prefix of it is
a subgraph with all train triples among its entities. `cut` takes the largest one within a size and holds out some of
its triples for validation; the rounds of a search train on the result.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any, Literal

import numpy as np
from numba import njit
from numpy.typing import NDArray

from grash.data.arrays import TripleSet, select_rows
from grash.data.dataset import Dataset
from grash.data.leakage import pairs_of
from grash.data.split import movable_rows
from grash.data.vocabulary import Vocabulary
from grash.errors import InputError
from grash.reduction.cores import Ids, Peeling, Triples

Reduction = Literal["core-order", "k-core"]
MAX_VALID = 5000
_BLOCK = 1 << 20  # triples that are looked up at once
_NO_TRIPLES = np.empty((0, 3), np.int32)


@dataclass(frozen=True, eq=False)
class Subgraph:
    """A part of a graph, or the whole one, as a dataset with train and valid and without test."""

    dataset: Dataset
    entity_ids: Ids  # (E_i,) ids in the full graph, ascending; only entities that occur in its triples
    relation_ids: Ids  # (R_i,) likewise
    target: float  # the fraction of the train triples that was requested
    fraction: float  # the fraction that its train split has
    k: int | None = None  # core number of the outermost entity, for cuts along the core order
    whole: bool = False  # it is the full graph, with unchanged ids
    fell_back: bool = False  # with `k-core`: every core was too large, so the innermost was cut further

    def full_ids(self, split: Literal["train", "valid"]) -> Triples:
        """Return the triples (m, 3) of a split in ids of the full graph."""
        triples = self.dataset.split(split)
        ends, relations = self.entity_ids[triples[:, ::2]], self.relation_ids[triples[:, 1]]
        return np.stack([ends[:, 0], relations, ends[:, 1]], axis=1)


@dataclass(frozen=True, eq=False)
class CoreOrder:
    """The nested subgraphs of a peel order: prefix p holds the p entities that are removed last.

    Making it costs O(n + E); it takes 4 bytes per triple and 8 per entity. Make it once for several cuts.
    """

    peeling: Peeling
    entry: Ids  # (n,) the smallest prefix that contains each train triple
    n_triples: NDArray[np.int64]  # (E + 1,) number of triples of each prefix

    def core_at(self, n_triples: int) -> int:
        """Return the core number of the last entity that a prefix with this many triples needs."""
        p = max(1, int(np.searchsorted(self.n_triples, n_triples)))
        return self.peeling.core_at(len(self.peeling.order) - p) if len(self.peeling.order) else 0


@dataclass(frozen=True, eq=False)
class Holdout:
    """How validation triples are drawn: min(20 %, 5000) at random. Equal seeds and triples give equal draws."""

    seed: int
    guarded: bool = True  # leave every entity and relation at least one train triple, and draw fewer if necessary
    before: Triples | None = None  # (m, 3) triples that must stay in train
    isolated: bool = False  # draw only triples that are the one link of their entity pair


@dataclass(frozen=True, eq=False)
class Part:
    """Some of the triples of a train split, in ids of the full graph and in its order."""

    train: Triples  # (m, 3)
    valid: Triples  # (v, 3)

    def __len__(self) -> int:
        return len(self.train) + len(self.valid)


def cut(
    dataset: Dataset, peeling: Peeling, fraction: float | Fraction, *, seed: int, reduction: Reduction = "core-order",
    train_before: Triples | None = None, guarded: bool = True, isolated: bool = False, names: bool = False,
    order: CoreOrder | None = None,
) -> Subgraph:  # fmt: skip
    """Return the largest subgraph whose train split has at most this fraction of the dataset's train triples.

    reduction: `core-order` takes the longest prefix of the core order. `k-core` takes the largest k-core, as in the
    paper; if the innermost core is too large, the core order is followed inside it.
    train_before, guarded, isolated: as `before`, `guarded` and `isolated` of Holdout.
    names: keep the names of entities and relations. order: core_order(dataset, peeling), to save a pass.

    If the whole graph is small enough without its validation part, it is returned with the dataset's own valid split.
    Only train is cut: valid and test of the dataset never enter a part of it.
    """
    order = order if order is not None else core_order(dataset, peeling)
    holdout = Holdout(seed, guarded, train_before, isolated)
    entry, sizes = order.entry, order.n_triples
    if reduction == "k-core":  # prefixes that are whole cores only, innermost first
        prefixes = (len(peeling.order) - peeling.core_starts)[::-1]
        entry, sizes = np.searchsorted(prefixes, entry).astype(np.int32), sizes[prefixes]
    part = largest_part(dataset, entry, sizes, fraction, holdout)
    fell_back = part is not None and not len(part) and reduction == "k-core"
    if fell_back:
        part = largest_part(dataset, order.entry, order.n_triples, fraction, holdout)
    provenance = {
        "method": "kcore", "reduction": reduction, "degree": peeling.degree, "fraction": str(fraction), "seed": seed,
        **({"isolated": True} if isolated else {}),
    }  # fmt: skip
    k = order.core_at(len(dataset.train) if part is None else len(part))
    return make_subgraph(dataset, part, fraction, holdout, k=k, fell_back=fell_back, names=names, provenance=provenance)


def core_order(dataset: Dataset, peeling: Peeling) -> CoreOrder:
    """Return the nested subgraphs of a dataset's train split along its peel order."""
    n_entities, n_peeled = dataset.n_entities, len(peeling.order)
    if n_peeled != n_entities:
        raise InputError(f"The peeling has {n_peeled:,} entities and the dataset {n_entities:,}: peel this dataset.")
    size = np.empty(n_entities, np.int32)  # of the smallest prefix that contains the entity
    size[peeling.order] = np.arange(n_entities, 0, -1, dtype=np.int32)
    entry = np.empty(len(dataset.train), np.int32)
    n_triples = np.empty(n_entities + 1, np.int64)
    n_triples.fill(0)  # in huge pages, unlike np.zeros
    _fill_entry(dataset.train, size, entry, n_triples)
    return CoreOrder(peeling, entry, np.cumsum(n_triples, out=n_triples))


def smallest_fraction(dataset: Dataset, order: CoreOrder, *, n_entities: int, n_valid: int) -> float:
    """Return the smallest fraction whose prefix has this many entities and validation triples, or 1.0.

    Validation triples are counted as holdout_size(all its triples); the guard may allow fewer.
    """
    enough_entities = smallest_prefix(order, dataset, n_entities)
    fewest = (10 * n_valid - 5 + 1) // 2 if n_valid <= MAX_VALID else np.inf  # triples of which n_valid are held out
    enough_triples = int(np.searchsorted(order.n_triples, fewest)) if n_valid else 0
    n, p = len(dataset.train), max(enough_entities, enough_triples)
    if p >= len(order.n_triples) or order.n_triples[p] >= n:
        return 1.0
    size = int(order.n_triples[p])
    return max(1, size - holdout_size(size)) / n


def smallest_prefix(order: CoreOrder, dataset: Dataset, n_entities: int) -> int:
    """Return the smallest prefix whose triples have this many entities, or E + 1 if none has.

    As `occurring_counts` would find it, but sorts only the triples of inner prefixes; finding these is one pass, O(n).
    """
    if n_entities <= 0:
        return 0
    reach = min(n_entities, dataset.n_entities)
    while True:
        rows = np.flatnonzero(order.entry <= reach)
        rows = rows[np.argsort(order.entry[rows], kind="stable")]
        _, first = np.unique(dataset.train[rows][:, [0, 2]], return_index=True)
        if len(first) >= n_entities:
            return int(order.entry[rows[np.sort(first)[n_entities - 1] // 2]])
        if reach == dataset.n_entities:
            return reach + 1
        reach = min(4 * reach, dataset.n_entities)


def occurring_counts(order: CoreOrder, dataset: Dataset) -> tuple[Ids, Ids]:
    """Return how many entities and relations the triples of each prefix have: two (E + 1,) arrays. O(n + E)."""
    never = dataset.n_entities + 1
    firsts = [np.full(n, never, np.int32) for n in (dataset.n_entities, dataset.n_relations)]
    _first_prefixes(dataset.train, order.entry, *firsts)
    counts = (np.bincount(first, minlength=never + 1)[:never] for first in firsts)
    n_entities, n_relations = (np.cumsum(count, dtype=np.int32) for count in counts)
    return n_entities, n_relations


def make_subgraph(
    dataset: Dataset, part: Part | None, target: float | Fraction, holdout: Holdout, *, k: int | None = None,
    fell_back: bool = False, names: bool = False, provenance: dict[str, Any],
) -> Subgraph:  # fmt: skip
    """Return the subgraph of a part of a dataset, or the whole graph for None. O(m + E).

    names: keep the names of entities and relations; where there are none, their ids in the full graph become names.
    """
    how = {"reduction": provenance}
    if part is None:
        return _whole_graph(dataset, target, holdout, k, how)
    if not len(part.train):
        some = f"A fraction of {float(target):g} of {len(dataset.train):,} triples"
        raise InputError(f"{some} leaves none to train on: give a larger fraction.")
    used_entities, used_relations = np.empty(dataset.n_entities, bool), np.zeros(dataset.n_relations, bool)
    used_entities.fill(False)  # in huge pages, unlike np.zeros
    for triples in (part.train, part.valid):
        _mark(triples, used_entities, used_relations)
    entity_ids, relation_ids = (np.flatnonzero(used).astype(np.int32) for used in (used_entities, used_relations))
    new_ids = (_new_ids(entity_ids, dataset.n_entities), _new_ids(relation_ids, dataset.n_relations))
    small = Dataset(
        train=_relabeled(part.train, *new_ids),
        valid=_relabeled(part.valid, *new_ids),
        test=_NO_TRIPLES,
        n_entities=len(entity_ids),
        n_relations=len(relation_ids),
        entities=_names_of(dataset.entities, entity_ids, "entity") if names else None,
        relations=_names_of(dataset.relations, relation_ids, "relation") if names else None,
        name=f"{dataset.name}-{float(target):g}",
        provenance={"reduced_from": dataset.name, "fingerprint": dataset.fingerprint, **how} if names else how,
    )
    fraction = len(part.train) / len(dataset.train)
    return Subgraph(small, entity_ids, relation_ids, float(target), fraction, k, False, fell_back)


def largest_part(
    dataset: Dataset, entry: Ids, sizes: NDArray[np.int64], fraction: float | Fraction, holdout: Holdout
) -> Part | None:
    """Return the largest prefix whose train part has at most this fraction of the train triples; None for the whole.

    entry (n,): the prefix in which each train triple comes in; sizes (P + 1,): number of triples of each prefix.
    The guard may hold out fewer triples, which makes the train part larger. The search therefore starts at the longest
    prefix that could fit. O(n), a few times.
    """
    n = len(dataset.train)
    target = max_train_triples(fraction, n)
    if target >= n:
        return None
    longest = _last(sizes, max_triples(target))
    triples = select_rows(dataset.train, entry <= longest)
    size = int(sizes[longest])
    fitting, too_large = Part(_NO_TRIPLES, _NO_TRIPLES), _next_larger(sizes, size)
    while _next_larger(sizes, len(fitting)) != too_large:
        prefix = _last(sizes, size)
        mine = triples if prefix == longest else select_rows(triples, entry[entry <= longest] <= prefix)
        part = hold_out(mine, dataset.n_entities, dataset.n_relations, holdout)
        if len(part.train) <= target:
            fitting = part
        else:
            too_large = size
        size = int(sizes[_last(sizes, target + len(part.valid))])  # what would fit if as many were held out again
        next_smaller = int(sizes[int(np.searchsorted(sizes, too_large)) - 1])
        size = min(max(size, _next_larger(sizes, len(fitting))), next_smaller)
    return None if len(fitting) == n else fitting


def hold_out(triples: Triples, n_entities: int, n_relations: int, holdout: Holdout) -> Part:
    """Split triples (m, 3) into train and valid."""
    wanted = holdout_size(len(triples))
    stay = None if holdout.before is None else TripleSet(holdout.before).contains(triples)
    if holdout.isolated:
        linked = linked_again(triples, n_entities)
        stay = linked if stay is None else stay | linked
    seed = int(np.random.SeedSequence([holdout.seed, len(triples)]).generate_state(1, np.uint64)[0])
    if holdout.guarded:
        rows = movable_rows(triples, n_entities, n_relations, wanted, seed, stay)
    else:
        free = len(triples) if stay is None else np.flatnonzero(~stay)
        rows = np.random.default_rng(seed).permutation(free)[:wanted]
    in_train = np.ones(len(triples), bool)
    in_train[rows] = False
    return Part(select_rows(triples, in_train), select_rows(triples, ~in_train))


def holdout_size(n_triples: int) -> int:
    """Return how many of this many triples are held out if nothing prevents it: min(20 %, 5000)."""
    return min((2 * n_triples + 5) // 10, MAX_VALID)


def max_train_triples(fraction: float | Fraction, n_triples: int) -> int:
    """Return the largest whole number that is at most fraction · n_triples.

    A float that is the nearest one to c / n_triples counts as exactly that: 0.3 of 10 is 3.
    """
    if not (fraction > 0 and math.isfinite(fraction)):
        raise InputError(f"fraction={fraction} is not a part of a graph: give a number above 0, up to 1.")
    if fraction >= 1:
        return n_triples
    nearest = round(fraction * n_triples)
    if n_triples and nearest / n_triples == fraction:
        return nearest
    return math.floor(Fraction(fraction) * n_triples)


def max_triples(n_train: int) -> int:
    """Return the largest number of triples of which at most n_train are left after holding out holdout_size."""
    sizes = range(n_train, n_train + MAX_VALID + 1)
    return sizes[bisect_right(sizes, n_train, key=lambda n: n - holdout_size(n)) - 1]


def linked_again(triples: Triples, n_entities: int) -> NDArray[np.bool_]:
    """Return (m,) whether another of the triples (m, 3) links the same two entities, in any direction. O(m log m)."""
    _, index, counts = np.unique(pairs_of(triples, n_entities), return_inverse=True, return_counts=True)
    return counts[index] > 1


def pairs_are_isolated(valid: Triples, train: Triples, n_entities: int) -> bool:
    """Return whether no triple of train links the two entities of a triple of valid; stops at the first that does."""
    wanted = np.unique(pairs_of(valid, n_entities))
    return not any(len(found) for found in _matches(wanted, train, n_entities))


def linked_pair_share(train: Triples, n_entities: int, most: int = 10_000) -> float:
    """Return the share of train triples whose two entities another one links too, from `most` evenly spaced ones."""
    some = np.asarray(train[:: max(1, -(-len(train) // most))])
    wanted, index = np.unique(pairs_of(some, n_entities), return_inverse=True)
    counts = np.zeros(len(wanted), np.int64)
    for found in _matches(wanted, train, n_entities):
        counts += np.bincount(found, minlength=len(wanted))
    return float((counts[index] > 1).mean()) if len(some) else 0.0


def _matches(wanted: NDArray[np.int64], train: Triples, n_entities: int) -> Iterator[NDArray[np.int64]]:
    """Yield, block by block, the positions in `wanted` (sorted, unique) of the entity pairs of train."""
    for start in range(0, len(train) if len(wanted) else 0, _BLOCK):
        pairs = pairs_of(np.asarray(train[start : start + _BLOCK]), n_entities)
        positions = np.minimum(np.searchsorted(wanted, pairs), len(wanted) - 1)
        yield positions[wanted[positions] == pairs]


def _whole_graph(
    dataset: Dataset, target: float | Fraction, holdout: Holdout, k: int | None, provenance: dict[str, Any]
) -> Subgraph:
    """Return the full graph with its own valid split, or one held out from train if it has none."""
    train, valid = dataset.train, dataset.valid
    if not len(valid):
        part = hold_out(train, dataset.n_entities, dataset.n_relations, holdout)
        train, valid = part.train, part.valid
    full = replace(dataset, train=train, valid=valid, test=_NO_TRIPLES, provenance={**dataset.provenance, **provenance})
    entity_ids, relation_ids = (np.arange(n, dtype=np.int32) for n in (dataset.n_entities, dataset.n_relations))
    fraction = len(train) / len(dataset.train) if len(dataset.train) else 1.0
    return Subgraph(full, entity_ids, relation_ids, float(target), fraction, k, whole=True)


def _names_of(names: Vocabulary | None, ids: Ids, kind: str) -> Vocabulary:
    return names.subset(ids) if names is not None else Vocabulary.from_names((str(i) for i in ids), kind=kind)


def _new_ids(ids: Ids, n: int) -> Ids:
    """Return (n,) the position in `ids` of each id that is kept; other entries are undefined."""
    new = np.empty(n, np.int32)
    new[ids] = np.arange(len(ids), dtype=np.int32)
    return new


def _last(sizes: NDArray[np.int64], n_triples: int) -> int:
    """Return the longest prefix with at most this many triples."""
    return int(np.searchsorted(sizes, n_triples, side="right")) - 1


def _next_larger(sizes: NDArray[np.int64], size: int) -> int:
    index = int(np.searchsorted(sizes, size, side="right"))
    return int(sizes[index]) if index < len(sizes) else int(sizes[-1]) + 1


@njit(cache=True, nogil=True)
def _fill_entry(train: Triples, size: Ids, entry: Ids, counts: NDArray[np.int64]) -> None:
    for row in range(train.shape[0]):
        p = max(size[train[row, 0]], size[train[row, 2]])
        entry[row] = p
        counts[p] += 1


@njit(cache=True, nogil=True)
def _first_prefixes(train: Triples, entry: Ids, entity_first: Ids, relation_first: Ids) -> None:
    for row in range(train.shape[0]):
        head, relation, tail = train[row, 0], train[row, 1], train[row, 2]
        p = entry[row]
        entity_first[head] = min(entity_first[head], p)
        entity_first[tail] = min(entity_first[tail], p)
        relation_first[relation] = min(relation_first[relation], p)


@njit(cache=True, nogil=True)
def _mark(triples: Triples, entities: NDArray[np.bool_], relations: NDArray[np.bool_]) -> None:
    for row in range(triples.shape[0]):
        entities[triples[row, 0]] = True
        entities[triples[row, 2]] = True
        relations[triples[row, 1]] = True


@njit(cache=True, nogil=True)
def _relabeled(triples: Triples, entity: Ids, relation: Ids) -> Triples:
    small = np.empty_like(triples)
    for row in range(triples.shape[0]):
        small[row, 0] = entity[triples[row, 0]]
        small[row, 1] = relation[triples[row, 1]]
        small[row, 2] = entity[triples[row, 2]]
    return small
