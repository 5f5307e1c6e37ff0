"""Leakage: triples of valid and test that train contains as well, reversed, or under a near-duplicate relation.

Comes from the three arrays of a Dataset; goes into profile.py. All triples are sorted so that those between the same
two entities are neighbors; every count is a walk along that order.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from grash.data.arrays import Mask, Triples

Ids = NDArray[np.int64]

THRESHOLD = 0.8  # Akrami et al. 2020 (SIGMOD) use 0.8 of both relations; Toutanova & Chen 2015 the same idea

_SPLITS = 3


@dataclass(frozen=True)
class RelationPair:
    """Two relations that hold between the same entities."""

    first: int
    second: int
    kind: Literal["inverse", "duplicate"]  # (h, first, t) occurs with (t, second, h), or with (h, second, t)
    overlap: int  # number of pairs (head, tail) that have both
    share_of_first: float
    share_of_second: float


@dataclass(frozen=True)
class SplitLeakage:
    """How many of the distinct triples of valid or test can be derived from train."""

    triples: int
    in_train: int
    inverse: int  # train has the triple under an inverse relation
    duplicate: int  # train has it under a near-duplicate relation
    either: int  # one of the two
    implied: int  # not `either`, but train has a triple of a relation that is contained in this one
    symmetric: int  # train has it in the reverse direction under the same relation; counted separately


@dataclass(frozen=True)
class Leakage:
    """Overlaps are counted over all splits: a random split of 80 % would put exact inverses at the threshold."""

    threshold: float
    twins: tuple[RelationPair, ...]  # at least `threshold` of both relations overlap
    contained: tuple[RelationPair, ...]  # of one of them only
    valid: SplitLeakage
    test: SplitLeakage
    duplicates: tuple[int, int, int]  # repeated rows of train, valid and test
    symmetry: tuple[float | None, ...]  # by relation, share of its triples (without loops) that hold in both directions
    valid_in_test: int  # distinct triples


def find_leakage(
    splits: Sequence[Triples], n_entities: int, n_relations: int, *, threshold: float = THRESHOLD
) -> Leakage:
    """Return the leakage from train into valid and test.

    splits: train, valid, test, each (n, 3) ids. O(n log n + Σ m²) for m relations between two entities; about 40 bytes
    per triple on top of the input.
    """
    order, duplicates = _order(splits, n_entities, n_relations)
    sizes = np.bincount(order.relation, minlength=n_relations)
    codes, overlaps = _count_overlaps(order, n_relations)
    twins, contained = _classify(codes, overlaps, sizes, n_relations, threshold)
    marks = _mark(order, twins, contained, n_relations)
    return Leakage(
        threshold=threshold,
        twins=_by_overlap(twins),
        contained=_by_overlap(contained),
        valid=_split_leakage(order, marks, 1),
        test=_split_leakage(order, marks, 2),
        duplicates=duplicates,
        symmetry=_symmetry(order, codes, overlaps, n_relations),
        valid_in_test=int((order.member[:, 1] & order.member[:, 2]).sum()),
    )


def pairs_of(triples: Triples, n_entities: int) -> Ids:
    """Return one number (n,) for the two entities of each triple (n, 3), regardless of their order."""
    head, tail = triples[:, 0].astype(np.int64), triples[:, 2].astype(np.int64)
    return np.minimum(head, tail) * n_entities + np.maximum(head, tail)


@dataclass(frozen=True)
class _Order:
    """Distinct triples (m,), those between the same two entities next to each other."""

    between: Ids  # lower id · E + higher id
    backwards: Mask  # whether the head is the higher id
    loop: Mask
    relation: Ids
    member: Mask  # (m, 3): in which split


def _order(splits: Sequence[Triples], n_entities: int, n_relations: int) -> tuple[_Order, tuple[int, int, int]]:
    """Return the order, and how many rows of each split repeat an earlier row of it."""
    between, minor = _sorted_keys(splits, n_entities, n_relations)
    first = _starts(between, minor)
    repeats = np.bincount(minor[~first] % _SPLITS, minlength=_SPLITS)
    between, minor = between[first], minor[first]
    triple, split = np.divmod(minor, _SPLITS)
    first = _starts(between, triple)
    row = np.cumsum(first) - 1
    member = np.zeros((int(first.sum()), _SPLITS), dtype=np.bool_)
    member[row, split] = True
    between, triple = between[first], triple[first]
    backwards, relation = np.divmod(triple, max(n_relations, 1))
    loop = between // max(n_entities, 1) == between % max(n_entities, 1)
    duplicates = (int(repeats[0]), int(repeats[1]), int(repeats[2]))
    return _Order(between, backwards.astype(np.bool_), loop, relation, member), duplicates


def _sorted_keys(splits: Sequence[Triples], n_entities: int, n_relations: int) -> tuple[Ids, Ids]:
    """Return (between, minor) of all rows, sorted; minor = (backwards · R + relation) · 3 + split."""
    between, minor = [], []
    for split, triples in enumerate(splits):
        head, relation, tail = (triples[:, column].astype(np.int64) for column in range(3))
        between.append(pairs_of(triples, n_entities))
        minor.append(((head > tail) * n_relations + relation) * _SPLITS + split)
    major_keys, minor_keys = np.concatenate(between), np.concatenate(minor)
    minors = 2 * n_relations * _SPLITS
    if n_entities**2 * minors < 2**63:  # one sort of one key; Freebase's ids need two
        keys = major_keys * minors + minor_keys
        keys.sort()
        return keys // max(minors, 1), keys % max(minors, 1)
    order = np.lexsort((minor_keys, major_keys))
    return major_keys[order], minor_keys[order]


def _starts(major: Ids, minor: Ids) -> Mask:
    """Return True where (major, minor) differs from the row before."""
    first = np.ones(len(major), dtype=np.bool_)
    first[1:] = (major[1:] != major[:-1]) | (minor[1:] != minor[:-1])
    return first


def _row_pairs(order: _Order, n_relations: int) -> Iterator[tuple[Ids, Ids, Ids]]:
    """Yield (i, j, code) of all pairs of rows i < j between the same two entities, in blocks of equal distance.

    code = (lower relation · R + higher relation) · 2 + (1 if inverse). A loop is its own inverse, so it counts twice.
    """
    n = len(order.between)
    rows = np.arange(n - 1) if n else np.arange(0)
    step = 1
    while len(rows):
        rows = rows[rows + step < n]
        rows = rows[order.between[rows] == order.between[rows + step]]
        i, j = rows, rows + step
        lower = np.minimum(order.relation[i], order.relation[j])
        higher = np.maximum(order.relation[i], order.relation[j])
        code = (lower * n_relations + higher) * 2
        yield i, j, code + (order.backwards[i] != order.backwards[j])
        loop = order.loop[i]
        yield i[loop], j[loop], code[loop] + 1
        step += 1


def _count_overlaps(order: _Order, n_relations: int) -> tuple[Ids, Ids]:
    """Return (code, number of row pairs with it), sorted by code."""
    codes, counts = [np.zeros(0, np.int64)], [np.zeros(0, np.int64)]
    for _, _, code in _row_pairs(order, n_relations):
        distinct, count = np.unique(code, return_counts=True)
        codes.append(distinct)
        counts.append(count)
    all_codes, where = np.unique(np.concatenate(codes), return_inverse=True)
    totals = np.zeros(len(all_codes), np.int64)
    np.add.at(totals, where, np.concatenate(counts))
    return all_codes, totals


def _classify(
    codes: Ids, overlaps: Ids, sizes: Ids, n_relations: int, threshold: float
) -> tuple[list[RelationPair], list[RelationPair]]:
    """Return (twins, contained) among pairs of different relations; `first` has the lower id."""
    first, second = np.divmod(codes // 2, max(n_relations, 1))
    of_first, of_second = overlaps / sizes[first], overlaps / sizes[second]
    twins: list[RelationPair] = []
    contained: list[RelationPair] = []
    for k in np.flatnonzero((np.maximum(of_first, of_second) >= threshold) & (first != second)):
        pair = RelationPair(
            first=int(first[k]),
            second=int(second[k]),
            kind="inverse" if codes[k] % 2 else "duplicate",
            overlap=int(overlaps[k]),
            share_of_first=float(of_first[k]),
            share_of_second=float(of_second[k]),
        )
        (twins if min(pair.share_of_first, pair.share_of_second) >= threshold else contained).append(pair)
    return twins, contained


def _mark(order: _Order, twins: list[RelationPair], contained: list[RelationPair], n_relations: int) -> dict[str, Mask]:
    """Return, for each reason, which triples (m,) can be derived from train by it."""
    reasons = ("inverse", "duplicate", "implied", "symmetric")
    marks = {reason: np.zeros(len(order.between), np.bool_) for reason in reasons}
    twin_codes = _codes_of(twins, n_relations)
    # the contained relation is evidence for the one that contains it, not the other way round
    by_lower = _codes_of([p for p in contained if p.share_of_first >= p.share_of_second], n_relations)
    by_higher = _codes_of([p for p in contained if p.share_of_first < p.share_of_second], n_relations)
    in_train = order.member[:, 0]
    for i, j, code in _row_pairs(order, n_relations):
        twin = np.isin(code, twin_codes)
        inverse = code % 2 == 1
        same = order.relation[i] == order.relation[j]
        lower_first = order.relation[i] < order.relation[j]
        implies_higher, implies_lower = np.isin(code, by_lower), np.isin(code, by_higher)
        for target, source, implied in (
            (i, j, np.where(lower_first, implies_lower, implies_higher)),
            (j, i, np.where(lower_first, implies_higher, implies_lower)),
        ):
            known = in_train[source]
            marks["inverse"][target[twin & inverse & known]] = True
            marks["duplicate"][target[twin & ~inverse & known]] = True
            marks["implied"][target[implied & ~same & known]] = True
            marks["symmetric"][target[same & known]] = True
    return marks


def _codes_of(pairs: list[RelationPair], n_relations: int) -> Ids:
    codes = [(pair.first * n_relations + pair.second) * 2 + (pair.kind == "inverse") for pair in pairs]
    return np.array(codes, np.int64)


def _split_leakage(order: _Order, marks: dict[str, Mask], split: int) -> SplitLeakage:
    here = order.member[:, split]
    either = marks["inverse"] | marks["duplicate"]
    leaked = {
        "in_train": order.member[:, 0],
        "inverse": marks["inverse"],
        "duplicate": marks["duplicate"],
        "either": either,
        "implied": marks["implied"] & ~either,
        "symmetric": marks["symmetric"],
    }
    return SplitLeakage(
        triples=int(here.sum()), **{reason: int((here & mask).sum()) for reason, mask in leaked.items()}
    )


def _symmetry(order: _Order, codes: Ids, overlaps: Ids, n_relations: int) -> tuple[float | None, ...]:
    first, second = np.divmod(codes // 2, max(n_relations, 1))
    both_ways = np.zeros(n_relations)
    both_ways[first[first == second]] = 2 * overlaps[first == second]
    total = np.bincount(order.relation[~order.loop], minlength=n_relations)
    return tuple(float(b / n) if n else None for b, n in zip(both_ways, total))


def _by_overlap(pairs: list[RelationPair]) -> tuple[RelationPair, ...]:
    return tuple(sorted(pairs, key=lambda p: (-p.overlap, p.first, p.second, p.kind)))
