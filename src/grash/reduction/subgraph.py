"""Subgraph: a part of a graph as a Dataset of its own, with ids of its own that map back to the full graph.

Comes from cut.py, samples.py and walks.py; rounds of a search train on its dataset.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any, Literal

import numpy as np
from numba import njit
from numpy.typing import NDArray

from grash.data.dataset import Dataset
from grash.data.profile import pairs_of
from grash.data.split import movable_rows, rows_where
from grash.data.triple_set import TripleSet
from grash.data.vocabulary import Vocabulary
from grash.errors import InputError
from grash.reduction.cores import Peeling, Triples


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


# = From a peeling to the subgraph of a given size: by the chain, to the triple, or by the ladder of whole cores.
# =
# = Comes from peel.py; goes to the rounds of a search and to `grash reduce`.

Reduction = Literal["core-order", "k-core"]


@dataclass(frozen=True)
class _Choice:
    part: Part | None  # None: the whole graph
    k: int
    fell_back: bool = False


def cut(
    dataset: Dataset,
    peeling: Peeling,
    fraction: float | Fraction,
    *,
    seed: int,
    reduction: Reduction = "core-order",
    train_before: Triples | None = None,
    guarded: bool = True,
    isolated: bool = False,
    names: bool = False,
    chain: Chain | None = None,
) -> Subgraph:
    """The largest subgraph whose train part is at most this fraction of the dataset's train triples.

    `chain`: the longest prefix of the peel order read backwards; one more entity would exceed the fraction.
    `ladder`: the largest k-core, as in the paper; where even the innermost is too large, the chain within it. If the
    whole graph without a validation part is small enough, it is taken whole, with the dataset's own valid.
    Only train is cut: valid and test of the dataset never enter a part of it. min(20 %, 5000) of the triples are held
    out for validation, unless (with `guarded`) an entity or relation would be left without a train triple, or (with
    `apart`) another triple joins the same two entities; train_before (m, 3), in ids of the full graph, stay in train.
    chain: chain_of(dataset, peeling), if it is at hand.
    """
    chain = chain if chain is not None else chain_of(dataset, peeling)
    holdout = Holdout(seed, guarded, train_before, isolated)
    choice = _choose(dataset, chain, fraction, reduction, holdout)
    how = {"method": "kcore", "reduction": reduction, "degree": peeling.degree, "fraction": str(fraction), "seed": seed}
    how |= {"isolated": True} if isolated else {}
    if choice.part is None:
        return whole_graph(dataset, fraction, holdout, k=choice.k, how={"reduction": how})
    return make_subgraph(
        dataset, choice.part, fraction, k=choice.k, fell_back=choice.fell_back, names=names, how={"reduction": how}
    )


def smallest_fraction(
    dataset: Dataset, peeling: Peeling, *, n_entities: int, n_valid: int, chain: Chain | None = None
) -> float:
    """The smallest fraction whose chain subgraph has so many entities and validation triples, or 1.0.

    Held-out triples are counted as n_valid_of(all of its triples): the guard may take some back.
    """
    chain = chain if chain is not None else chain_of(dataset, peeling)
    enough_entities = first_with(chain, dataset, n_entities)
    enough_triples = int(np.searchsorted(chain.n_triples, _fewest_with(n_valid))) if n_valid else 0
    n, p = len(dataset.train), max(enough_entities, enough_triples)
    if p >= len(chain.n_triples) or chain.n_triples[p] >= n:
        return 1.0
    size = int(chain.n_triples[p])
    return max(1, size - n_valid_of(size)) / n


def _fewest_with(n_valid: int) -> float:
    """The smallest number of triples of which so many are held out."""
    fewest = (10 * n_valid - 5 + 1) // 2
    return fewest if n_valid_of(fewest) >= n_valid else np.inf


def _choose(
    dataset: Dataset, chain: Chain, fraction: float | Fraction, reduction: Reduction, holdout: Holdout
) -> _Choice:
    n = len(dataset.train)
    target = target_of(fraction, n)
    if target >= n:
        return _Choice(None, chain.core_at(n))
    enters, sizes = (chain.enters, chain.n_triples) if reduction == "core-order" else _rungs(chain)
    counts = {"n_entities": dataset.n_entities, "n_relations": dataset.n_relations}
    part = longest_part(dataset.train, enters, sizes, target, **counts, holdout=holdout)
    if len(part) == n:
        return _Choice(None, chain.core_at(n))
    if reduction == "k-core" and not len(part):
        part = longest_part(dataset.train, chain.enters, chain.n_triples, target, **counts, holdout=holdout)
        return _Choice(part, chain.core_at(len(part)), fell_back=True)
    return _Choice(part, chain.core_at(len(part)))


def _rungs(chain: Chain) -> tuple[np.ndarray, np.ndarray]:
    """The chain with whole cores as its only steps, the innermost first: enters (n,), n_triples (k_max + 2,)."""
    prefixes = (len(chain.peeling.order) - chain.peeling.core_starts)[::-1]
    return np.searchsorted(prefixes, chain.enters).astype(np.int32), chain.n_triples[prefixes]


# = The peel order read backwards: a chain of nested subgraphs, from the innermost core out to the whole graph.
# =
# = Comes from peel.py; goes to cut.py. The prefix of p entities has all train triples among them, loops and parallel ones
# = included. Counting at which p each triple comes in gives the size of every prefix at once.


@dataclass(frozen=True, eq=False)
class Chain:
    """enters (n,) int32: the smallest prefix that has a train triple. n_triples (E + 1,) int64: those of prefix p.

    Costs O(n + E) to make, 4 bytes per triple and 8 per entity to keep: make it once for several cuts.
    """

    peeling: Peeling
    enters: NDArray[np.int32]
    n_triples: NDArray[np.int64]

    def core_at(self, n_triples: int) -> int:
        """The core number of the last entity that a prefix with so many triples needs."""
        p = max(1, int(np.searchsorted(self.n_triples, n_triples)))
        return self.peeling.core_at(len(self.peeling.order) - p) if len(self.peeling.order) else 0


@dataclass(frozen=True, eq=False)
class Occurring:
    """How many entities and relations the triples of prefix p have: each (E + 1,) int32."""

    n_entities: NDArray[np.int32]
    n_relations: NDArray[np.int32]


def chain_of(dataset: Dataset, peeling: Peeling) -> Chain:
    """The chain of a dataset's train split."""
    n_entities = dataset.n_entities
    if len(peeling.order) != n_entities:
        raise InputError(
            f"The peeling is of {len(peeling.order):,} entities and the dataset has {n_entities:,}: peel this dataset."
        )
    size = np.empty(n_entities, np.int32)  # of the smallest prefix that has the entity
    size[peeling.order] = np.arange(n_entities, 0, -1, dtype=np.int32)
    enters = np.empty(len(dataset.train), np.int32)
    n_triples = np.empty(n_entities + 1, np.int64)
    n_triples.fill(0)  # unlike np.zeros, in huge pages
    _enter(dataset.train, size, enters, n_triples)
    return Chain(peeling, enters, np.cumsum(n_triples, out=n_triples))


def occurring_in(chain: Chain, dataset: Dataset) -> Occurring:
    """The entities and relations of every prefix. O(n + E)."""
    never = dataset.n_entities + 1
    entity_first = np.full(dataset.n_entities, never, np.int32)
    relation_first = np.full(dataset.n_relations, never, np.int32)
    _first_use(dataset.train, chain.enters, entity_first, relation_first)
    return Occurring(*(_cumulated(first, never) for first in (entity_first, relation_first)))


def first_with(chain: Chain, dataset: Dataset, n_entities: int) -> int:
    """The smallest prefix whose triples have so many entities; beyond the last one if none has. As `occurring_in` would
    say, but only the triples of inner prefixes are looked at: O(n) to find them, sequentially."""
    if n_entities <= 0:
        return 0
    reach = min(n_entities, dataset.n_entities)
    while True:
        rows = np.flatnonzero(chain.enters <= reach)
        rows = rows[np.argsort(chain.enters[rows], kind="stable")]
        _, first = np.unique(dataset.train[rows][:, [0, 2]], return_index=True)
        if len(first) >= n_entities:
            return int(chain.enters[rows[np.sort(first)[n_entities - 1] // 2]])
        if reach == dataset.n_entities:
            return reach + 1
        reach = min(4 * reach, dataset.n_entities)


def _cumulated(first: NDArray[np.int32], never: int) -> NDArray[np.int32]:
    return np.cumsum(np.bincount(first, minlength=never + 1)[:never], dtype=np.int32)


@njit(cache=True, nogil=True)
def _enter(train: Triples, size: NDArray[np.int32], enters: NDArray[np.int32], counts: NDArray[np.int64]) -> None:
    for row in range(train.shape[0]):
        p = max(size[train[row, 0]], size[train[row, 2]])
        enters[row] = p
        counts[p] += 1


@njit(cache=True, nogil=True)
def _first_use(
    train: Triples, enters: NDArray[np.int32], entity_first: NDArray[np.int32], relation_first: NDArray[np.int32]
) -> None:
    for row in range(train.shape[0]):
        head, relation, tail = train[row, 0], train[row, 1], train[row, 2]
        p = enters[row]
        entity_first[head] = min(entity_first[head], p)
        entity_first[tail] = min(entity_first[tail], p)
        relation_first[relation] = min(relation_first[relation], p)


# = What a subgraph holds out for validation, and the longest prefix whose train part then fits a target.
# =
# = Comes from chain.py, samples.py and walks.py, which say in which order triples come in; goes to subgraph.py.

MOST_VALID = 5000
_BLOCK = 1 << 20  # triples that are looked up at once
NOTHING = np.empty((0, 3), np.int32)


@dataclass(frozen=True, eq=False)
class Holdout:
    """How validation triples are drawn: min(20 %, 5000) at random.

    guarded: as many of them as can be had without leaving an entity or relation without a train triple. before
    (m, 3): triples that stay in train, whatever the draw. isolated: those too whose two entities another triple joins. The
    same seed and triples give the same draw.
    """

    seed: int
    guarded: bool = True
    before: Triples | None = None
    isolated: bool = False


@dataclass(frozen=True, eq=False)
class Part:
    """Triples cut out of a train split, each (m, 3) in ids of the full graph and in its order."""

    train: Triples
    valid: Triples

    def __len__(self) -> int:
        return len(self.train) + len(self.valid)


def n_valid_of(n_triples: int) -> int:
    """How many of so many triples are held out if nothing stands against it: min(20 %, 5000)."""
    return min((2 * n_triples + 5) // 10, MOST_VALID)


def target_of(fraction: float | Fraction, n_triples: int) -> int:
    """The largest whole number that is at most fraction · n_triples.

    A float that stands for c / n_triples, being the nearest to it, counts as just that: 0.3 of 10 is 3.
    """
    if not (fraction > 0 and math.isfinite(fraction)):
        raise InputError(f"A fraction of {fraction} is no part of a graph: give a number above 0, up to 1.")
    if fraction >= 1:
        return n_triples
    nearest = round(fraction * n_triples)
    if n_triples and nearest / n_triples == fraction:
        return nearest
    return math.floor(Fraction(fraction) * n_triples)


def most_triples(target: int) -> int:
    """The largest number of triples of which at most `target` are left when n_valid_of have gone."""
    sizes = range(target, target + MOST_VALID + 1)
    return sizes[bisect_right(sizes, target, key=lambda n: n - n_valid_of(n)) - 1]


def longest_part(
    train: Triples,
    enters: NDArray[np.int32],
    sizes: NDArray[np.int64],
    target: int,
    *,
    n_entities: int,
    n_relations: int,
    holdout: Holdout,
) -> Part:
    """The longest prefix whose train part has at most `target` triples, split; one step more would exceed it.

    enters (n,): the prefix in which each triple of train (n, 3) comes in; sizes (P + 1,): how many are in prefix p.
    Held-out triples that the guard takes back lengthen the train part, so the prefix is first the longest that
    could fit, and then walked to where it does. O(n), a few times.
    """
    longest = _last(sizes, most_triples(target))
    triples = rows_where(train, enters <= longest)

    def split(size: int) -> Part:
        step = _last(sizes, size)
        mine = triples if step == longest else rows_where(triples, enters[enters <= longest] <= step)
        return split_off(mine, n_entities, n_relations, holdout)

    return _walk_to_fit(sizes, int(sizes[longest]), target, split)


def split_off(triples: Triples, n_entities: int, n_relations: int, holdout: Holdout) -> Part:
    """Triples (m, 3) without a validation part, and that part."""
    wanted = n_valid_of(len(triples))
    stay = None if holdout.before is None else TripleSet(holdout.before).contains(triples)
    if holdout.isolated:
        joined = linked_again(triples, n_entities)
        stay = joined if stay is None else stay | joined
    seed = int(np.random.SeedSequence([holdout.seed, len(triples)]).generate_state(1, np.uint64)[0])
    if holdout.guarded:
        rows = movable_rows(triples, n_entities, n_relations, wanted, seed, stay)
    else:
        free = len(triples) if stay is None else np.flatnonzero(~stay)
        rows = np.random.default_rng(seed).permutation(free)[:wanted]
    in_train = np.ones(len(triples), bool)
    in_train[rows] = False
    return Part(rows_where(triples, in_train), rows_where(triples, ~in_train))


def linked_again(triples: Triples, n_entities: int) -> NDArray[np.bool_]:
    """(m,) whether another of the triples (m, 3) has the same two entities, in whatever order. O(m log m)."""
    _, place, counts = np.unique(pairs_of(triples, n_entities), return_inverse=True, return_counts=True)
    return counts[place] > 1


def pairs_are_isolated(valid: Triples, train: Triples, n_entities: int) -> bool:
    """Whether no triple of valid has two entities that a triple of train joins; the first that has ends the look."""
    wanted = np.unique(pairs_of(valid, n_entities))
    return not any(len(places) for places in _places_among(wanted, train, n_entities))


def linked_pair_share(train: Triples, n_entities: int, most: int = 10_000) -> float:
    """The share of the train triples whose two entities another one joins, of `most` of them at even distances."""
    some = np.asarray(train[:: max(1, -(-len(train) // most))])
    wanted, asked = np.unique(pairs_of(some, n_entities), return_inverse=True)
    counts = np.zeros(len(wanted), np.int64)
    for places in _places_among(wanted, train, n_entities):
        counts += np.bincount(places, minlength=len(wanted))
    return float((counts[asked] > 1).mean()) if len(some) else 0.0


def _places_among(wanted: NDArray[np.int64], train: Triples, n_entities: int) -> Iterator[NDArray[np.int64]]:
    """Block by block, where in `wanted` (sorted, each once) the pairs of train stand that are there."""
    for start in range(0, len(train) if len(wanted) else 0, _BLOCK):
        pairs = pairs_of(np.asarray(train[start : start + _BLOCK]), n_entities)
        places = np.minimum(np.searchsorted(wanted, pairs), len(wanted) - 1)
        yield places[wanted[places] == pairs]


def _walk_to_fit(sizes: NDArray[np.int64], size: int, target: int, split: Callable[[int], Part]) -> Part:
    """The part of a size in `sizes` that fits while the next larger one does not, sought from `size` downwards."""
    fitting, too_large = Part(NOTHING, NOTHING), _next_larger(sizes, size)
    while True:
        part = split(size)
        if len(part.train) <= target:
            fitting = part
        else:
            too_large = size
        low = len(fitting)
        if _next_larger(sizes, low) == too_large:
            return fitting
        size = int(sizes[_last(sizes, target + len(part.valid))])  # as far as this many held-out ones would carry
        size = min(max(size, _next_larger(sizes, low)), _next_smaller(sizes, too_large))


def _last(sizes: NDArray[np.int64], n_triples: int) -> int:
    """The longest prefix with at most so many triples."""
    return int(np.searchsorted(sizes, n_triples, side="right")) - 1


def _next_larger(sizes: NDArray[np.int64], size: int) -> int:
    place = int(np.searchsorted(sizes, size, side="right"))
    return int(sizes[place]) if place < len(sizes) else int(sizes[-1]) + 1


def _next_smaller(sizes: NDArray[np.int64], size: int) -> int:
    return int(sizes[int(np.searchsorted(sizes, size)) - 1])
