"""What a subgraph holds out for validation, and the longest prefix whose train part then fits a target.

Comes from chain.py, samples.py and walks.py, which say in which order triples come in; goes to subgraph.py.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from grash.data.duplicates import TripleSet
from grash.data.leakage import pairs_of
from grash.data.split import movable_rows, rows_where
from grash.errors import InputError
from grash.reduction.adjacency import Triples

MOST_VALID = 5000
_BLOCK = 1 << 20  # triples that are looked up at once
NOTHING = np.empty((0, 3), np.int32)


@dataclass(frozen=True, eq=False)
class Holdout:
    """How validation triples are drawn: min(20 %, 5000) at random.

    guarded: as many of them as can be had without leaving an entity or relation without a train triple. before
    (m, 3): triples that stay in train, whatever the draw. apart: those too whose two entities another triple joins. The
    same seed and triples give the same draw.
    """

    seed: int
    guarded: bool = True
    before: Triples | None = None
    apart: bool = False


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
    if holdout.apart:
        joined = joined_twice(triples, n_entities)
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


def joined_twice(triples: Triples, n_entities: int) -> NDArray[np.bool_]:
    """(m,) whether another of the triples (m, 3) has the same two entities, in whatever order. O(m log m)."""
    _, place, counts = np.unique(pairs_of(triples, n_entities), return_inverse=True, return_counts=True)
    return counts[place] > 1


def lie_apart(valid: Triples, train: Triples, n_entities: int) -> bool:
    """Whether no triple of valid has two entities that a triple of train joins; the first that has ends the look."""
    wanted = np.unique(pairs_of(valid, n_entities))
    return not any(len(places) for places in _places_among(wanted, train, n_entities))


def joined_share(train: Triples, n_entities: int, most: int = 10_000) -> float:
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
