"""describe: what a dataset is made of, and what in it would make results look better than they are.

Comes after prepare.py; `grash describe` prints it. Cardinalities (1-1, 1-N, N-1, N-N) are also used by
evaluation to report ranks per class. Everything is counted by sorting ids; no loop runs over triples.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from grash.data.dataset import SPLITS, Dataset
from grash.data.provenance import Reading, reading_of

# = What valid and test give away: triples that stand in train as well, reversed, or under a twin relation.
# =
# = Comes from a Dataset's three arrays; goes into describe.py. All triples are brought into one sorted order in
# = which those between the same two entities are neighbors; every count is a walk along that order.

THRESHOLD = 0.8  # Akrami et al. 2020 (SIGMOD) use 0.8 of both relations; Toutanova & Chen 2015 the same idea

_SPLITS = 3


@dataclass(frozen=True)
class RelationPair:
    """Two relations that hold between the same entities: `overlap` pairs (head, tail) have both.

    inverse: (h, first, t) goes with (t, second, h). duplicate: it goes with (h, second, t).
    """

    first: int
    second: int
    kind: Literal["inverse", "duplicate"]
    overlap: int
    share_of_first: float
    share_of_second: float


@dataclass(frozen=True)
class SplitLeakage:
    """Of the distinct triples of valid or test, how many train gives away, and by what.

    `inverse` and `duplicate`: a triple of a twin relation stands in train (`either` counts both once).
    `implied`: not `either`, but train holds a triple of a relation that is contained in this one.
    `symmetric`: the same relation stands in train the other way round; apart from the others.
    """

    triples: int
    in_train: int
    inverse: int
    duplicate: int
    either: int
    implied: int
    symmetric: int


@dataclass(frozen=True)
class Leakage:
    """`twins`: at least `threshold` of both relations overlap. `contained`: of one of them only.

    Overlaps are counted over all splits together: a random split of 80 % would otherwise put exact
    inverses right at the threshold. `symmetry`: per relation, the share of its triples (loops apart) that
    hold in both directions; None where it has none. `valid_in_test`: distinct triples that both have.
    """

    threshold: float
    twins: tuple[RelationPair, ...]
    contained: tuple[RelationPair, ...]
    valid: SplitLeakage
    test: SplitLeakage
    duplicates: tuple[int, int, int]
    symmetry: tuple[float | None, ...]
    valid_in_test: int


def find_leakage(
    splits: Sequence[NDArray[np.int32]], n_entities: int, n_relations: int, *, threshold: float = THRESHOLD
) -> Leakage:
    """Leakage from train into valid and test.

    splits: train, valid, test, each (n, 3) ids. O(n log n + Σ m²) for m relations between two entities;
    about 40 bytes per triple on top of the input.
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


@dataclass(frozen=True)
class _Order:
    """Distinct triples (m,), those between the same two entities next to each other.

    between: lower id · E + higher id. backwards: the head is the higher one. member (m, 3): in which split.
    """

    between: NDArray[np.int64]
    backwards: NDArray[np.bool_]
    loop: NDArray[np.bool_]
    relation: NDArray[np.int64]
    member: NDArray[np.bool_]


def _order(
    splits: Sequence[NDArray[np.int32]], n_entities: int, n_relations: int
) -> tuple[_Order, tuple[int, int, int]]:
    """The order, and how many rows of each split repeat an earlier row of it."""
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


def pairs_of(triples: NDArray[np.int32], n_entities: int) -> NDArray[np.int64]:
    """(n,) one number for the two entities of each triple (n, 3), whatever their order."""
    head, tail = triples[:, 0].astype(np.int64), triples[:, 2].astype(np.int64)
    return np.minimum(head, tail) * n_entities + np.maximum(head, tail)


def _sorted_keys(
    splits: Sequence[NDArray[np.int32]], n_entities: int, n_relations: int
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """(between, minor) of all rows, sorted; minor = (backwards · R + relation) · 3 + split."""
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


def _starts(major: NDArray[np.int64], minor: NDArray[np.int64]) -> NDArray[np.bool_]:
    """True where (major, minor) differs from the row before."""
    first = np.ones(len(major), dtype=np.bool_)
    first[1:] = (major[1:] != major[:-1]) | (minor[1:] != minor[:-1])
    return first


def _meetings(order: _Order) -> Iterator[tuple[NDArray[np.int64], NDArray[np.int64]]]:
    """All pairs of rows (i, j), i < j, between the same two entities, in blocks of equal distance."""
    n = len(order.between)
    rows = np.arange(n - 1) if n else np.arange(0)
    step = 1
    while len(rows):
        rows = rows[rows + step < n]
        rows = rows[order.between[rows] == order.between[rows + step]]
        yield rows, rows + step
        step += 1


def _codes(
    order: _Order, i: NDArray[np.int64], j: NDArray[np.int64], n_relations: int
) -> Iterator[tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]]:
    """(i, j, code) of meetings; code = (lower relation · R + higher relation) · 2 + (1 if inverse)."""
    lower = np.minimum(order.relation[i], order.relation[j])
    higher = np.maximum(order.relation[i], order.relation[j])
    code = (lower * n_relations + higher) * 2
    yield i, j, code + (order.backwards[i] != order.backwards[j])
    loop = order.loop[i]  # a loop is its own inverse, so it counts as that too
    yield i[loop], j[loop], code[loop] + 1


def _count_overlaps(order: _Order, n_relations: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """(code, number of meetings with it), sorted by code."""
    codes, counts = [np.zeros(0, np.int64)], [np.zeros(0, np.int64)]
    for i, j in _meetings(order):
        for _, _, code in _codes(order, i, j, n_relations):
            distinct, count = np.unique(code, return_counts=True)
            codes.append(distinct)
            counts.append(count)
    all_codes, where = np.unique(np.concatenate(codes), return_inverse=True)
    totals = np.zeros(len(all_codes), np.int64)
    np.add.at(totals, where, np.concatenate(counts))
    return all_codes, totals


def _classify(
    codes: NDArray[np.int64],
    overlaps: NDArray[np.int64],
    sizes: NDArray[np.int64],
    n_relations: int,
    threshold: float,
) -> tuple[list[RelationPair], list[RelationPair]]:
    """(twins, contained) among pairs of different relations; `first` has the lower id."""
    first, second = np.divmod(codes // 2, max(n_relations, 1))
    of_first, of_second = overlaps / sizes[first], overlaps / sizes[second]
    found: tuple[list[RelationPair], list[RelationPair]] = ([], [])
    strong = (np.maximum(of_first, of_second) >= threshold) & (first != second)
    for k in np.flatnonzero(strong):
        kind: Literal["inverse", "duplicate"] = "inverse" if codes[k] % 2 else "duplicate"
        pair = RelationPair(
            int(first[k]), int(second[k]), kind, int(overlaps[k]), float(of_first[k]), float(of_second[k])
        )
        found[0 if min(pair.share_of_first, pair.share_of_second) >= threshold else 1].append(pair)
    return found


def _mark(
    order: _Order, twins: list[RelationPair], contained: list[RelationPair], n_relations: int
) -> dict[str, NDArray[np.bool_]]:
    """Per reason, (m,) True for triples that train gives away by it."""
    reasons = ("inverse", "duplicate", "implied", "symmetric")
    marks = {reason: np.zeros(len(order.between), np.bool_) for reason in reasons}
    twin_codes = _codes_of(twins, n_relations)
    # the contained relation is evidence for the one that contains it, not the other way round
    by_lower = _codes_of([p for p in contained if p.share_of_first >= p.share_of_second], n_relations)
    by_higher = _codes_of([p for p in contained if p.share_of_first < p.share_of_second], n_relations)
    in_train = order.member[:, 0]
    for rows, others in _meetings(order):
        for i, j, code in _codes(order, rows, others, n_relations):
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


def _codes_of(pairs: list[RelationPair], n_relations: int) -> NDArray[np.int64]:
    codes = [(pair.first * n_relations + pair.second) * 2 + (pair.kind == "inverse") for pair in pairs]
    return np.array(codes, np.int64)


def _split_leakage(order: _Order, marks: dict[str, NDArray[np.bool_]], split: int) -> SplitLeakage:
    here = order.member[:, split]
    either = marks["inverse"] | marks["duplicate"]
    return SplitLeakage(
        triples=int(here.sum()),
        in_train=int((here & order.member[:, 0]).sum()),
        inverse=int((here & marks["inverse"]).sum()),
        duplicate=int((here & marks["duplicate"]).sum()),
        either=int((here & either).sum()),
        implied=int((here & marks["implied"] & ~either).sum()),
        symmetric=int((here & marks["symmetric"]).sum()),
    )


def _symmetry(
    order: _Order, codes: NDArray[np.int64], overlaps: NDArray[np.int64], n_relations: int
) -> tuple[float | None, ...]:
    first, second = np.divmod(codes // 2, max(n_relations, 1))
    both_ways = np.zeros(n_relations)
    both_ways[first[first == second]] = 2 * overlaps[first == second]
    total = np.bincount(order.relation[~order.loop], minlength=n_relations)
    return tuple(float(b / n) if n else None for b, n in zip(both_ways, total))


def _by_overlap(pairs: list[RelationPair]) -> tuple[RelationPair, ...]:
    return tuple(sorted(pairs, key=lambda p: (-p.overlap, p.first, p.second, p.kind)))


CARDINALITIES = ("1-1", "1-N", "N-1", "N-N", "unseen")
MANY = 1.5  # Bordes et al. 2013: from this mean number of tails per head (heads per tail) on it is N

_QUANTILES = (0.0, 0.25, 0.5, 0.75, 0.9, 0.99, 1.0)


@dataclass(frozen=True)
class SplitProfile:
    """`unseen_*` count what train does not have; `unseen_triples` are the triples that touch any of it."""

    triples: int
    duplicates: int
    entities: int
    relations: int
    unseen_entities: int
    unseen_relations: int
    unseen_triples: int


@dataclass(frozen=True)
class DegreeProfile:
    """Train triples per entity that train has; a triple whose head is its tail counts once."""

    mean: float
    quantiles: dict[str, float]
    with_one_triple: int
    not_in_train: int
    unused: int


@dataclass(frozen=True)
class RelationProfile:
    """Counts are of distinct train triples, but for `triples`; shares and means are None without any."""

    id: int
    name: str
    triples: dict[str, int]
    heads: int
    tails: int
    tails_per_head: float | None
    heads_per_tail: float | None
    cardinality: str
    loops: float | None
    symmetry: float | None


@dataclass(frozen=True)
class Profile:
    """`reading` is None where the dataset was not made by reading a source."""

    name: str
    n_entities: int
    n_relations: int
    splits: dict[str, SplitProfile]
    degrees: DegreeProfile
    relations: tuple[RelationProfile, ...]
    leakage: Leakage
    warnings: tuple[str, ...]
    reading: Reading | None = None

    def to_dict(self) -> dict[str, Any]:
        """The profile as JSON-able dicts, lists, numbers and strings."""
        return _plain(asdict(self))


def describe(dataset: Dataset, *, threshold: float = THRESHOLD) -> Profile:
    """The profile of a dataset. Two relations count as twins from an overlap of `threshold` of both on."""
    leakage = find_leakage(
        [dataset.split(split) for split in SPLITS],
        dataset.n_entities,
        dataset.n_relations,
        threshold=threshold,
    )
    used = {split: _used(dataset, dataset.split(split)) for split in SPLITS}
    splits = {
        split: _split_profile(dataset.split(split), used[split], used["train"], duplicates)
        for split, duplicates in zip(SPLITS, leakage.duplicates)
    }
    relations = _relation_profiles(dataset, leakage)
    degrees = _degrees(dataset, used)
    return Profile(
        name=dataset.name,
        n_entities=dataset.n_entities,
        n_relations=dataset.n_relations,
        splits={str(split): profile for split, profile in splits.items()},
        degrees=degrees,
        relations=relations,
        leakage=leakage,
        warnings=(*_warnings(splits, degrees, relations, leakage), *_name_warnings(dataset)),
        reading=reading_of(dataset.provenance),
    )


def relation_cardinalities(triples: NDArray[np.int32], n_relations: int) -> NDArray[np.int8]:
    """Per relation the index into CARDINALITIES, (R,), from distinct triples (n, 3); give it train.

    1-N: one head has many tails (at least MANY on average), one tail has one head. "unseen": no triple.
    """
    return _cardinalities(*_relation_counts(triples, n_relations))


def _relation_counts(
    triples: NDArray[np.int32], n_relations: int
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """Distinct triples, heads and tails of each relation, (R,) each."""
    head, relation, tail = (triples[:, column].astype(np.int64) for column in range(3))
    n_entities = 1 + int(max(head.max(), tail.max())) if len(triples) else 1
    heads = _distinct_per_relation(relation, head, n_entities, n_relations)
    tails = _distinct_per_relation(relation, tail, n_entities, n_relations)
    if n_relations * n_entities**2 < 2**63:
        pairs = _distinct_per_relation(relation, head * n_entities + tail, n_entities**2, n_relations)
    else:
        order = np.lexsort((tail, head, relation))
        head, relation, tail = head[order], relation[order], tail[order]
        new = np.ones(len(order), np.bool_)
        new[1:] = (np.diff(relation) != 0) | (np.diff(head) != 0) | (np.diff(tail) != 0)
        pairs = np.bincount(relation[new], minlength=n_relations)
    return pairs, heads, tails


def _distinct_per_relation(
    relation: NDArray[np.int64], item: NDArray[np.int64], n_items: int, n_relations: int
) -> NDArray[np.int64]:
    keys = relation * n_items + item
    keys.sort()
    new = np.ones(len(keys), np.bool_)
    new[1:] = keys[1:] != keys[:-1]
    return np.bincount(keys[new] // n_items, minlength=n_relations)


def _cardinalities(pairs: NDArray[np.int64], heads: NDArray[np.int64], tails: NDArray[np.int64]) -> NDArray[np.int8]:
    many_tails = pairs >= MANY * np.maximum(heads, 1)
    many_heads = pairs >= MANY * np.maximum(tails, 1)
    codes = many_tails * 1 + many_heads * 2
    return np.where(pairs == 0, CARDINALITIES.index("unseen"), codes).astype(np.int8)


def _used(dataset: Dataset, triples: NDArray[np.int32]) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """Which entities (E,) and relations (R,) the triples have."""
    entities = np.zeros(dataset.n_entities, np.bool_)
    relations = np.zeros(dataset.n_relations, np.bool_)
    entities[triples[:, 0]] = True
    entities[triples[:, 2]] = True
    relations[triples[:, 1]] = True
    return entities, relations


def _split_profile(
    triples: NDArray[np.int32],
    used: tuple[NDArray[np.bool_], NDArray[np.bool_]],
    trained: tuple[NDArray[np.bool_], NDArray[np.bool_]],
    duplicates: int,
) -> SplitProfile:
    entity, relation = trained
    seen = entity[triples[:, 0]] & relation[triples[:, 1]] & entity[triples[:, 2]]
    return SplitProfile(
        triples=len(triples),
        duplicates=duplicates,
        entities=int(used[0].sum()),
        relations=int(used[1].sum()),
        unseen_entities=int((used[0] & ~entity).sum()),
        unseen_relations=int((used[1] & ~relation).sum()),
        unseen_triples=int((~seen).sum()),
    )


def _degrees(dataset: Dataset, used: dict[Any, tuple[NDArray[np.bool_], NDArray[np.bool_]]]) -> DegreeProfile:
    head, tail = dataset.train[:, 0], dataset.train[:, 2]
    degree = np.bincount(head, minlength=dataset.n_entities)
    degree += np.bincount(tail[head != tail], minlength=dataset.n_entities)
    in_any = used["train"][0] | used["valid"][0] | used["test"][0]
    present = degree[degree > 0]
    quantiles = np.quantile(present, _QUANTILES) if len(present) else np.zeros(len(_QUANTILES))
    return DegreeProfile(
        mean=float(present.mean()) if len(present) else 0.0,
        quantiles={f"{100 * q:g} %": float(value) for q, value in zip(_QUANTILES, quantiles)},
        with_one_triple=int((degree == 1).sum()),
        not_in_train=int((degree == 0).sum()),
        unused=int((~in_any).sum()),
    )


def _relation_profiles(dataset: Dataset, leakage: Leakage) -> tuple[RelationProfile, ...]:
    n = dataset.n_relations
    pairs, heads, tails = _relation_counts(dataset.train, n)
    codes = _cardinalities(pairs, heads, tails)
    rows = {str(s): np.bincount(dataset.split(s)[:, 1], minlength=n) for s in SPLITS}
    is_loop = dataset.train[:, 0] == dataset.train[:, 2]
    loops = np.bincount(dataset.train[is_loop, 1], minlength=n)
    return tuple(
        RelationProfile(
            id=r,
            name=dataset.relations.name(r) if dataset.relations is not None else f"relation {r}",
            triples={split: int(count[r]) for split, count in rows.items()},
            heads=int(heads[r]),
            tails=int(tails[r]),
            tails_per_head=float(pairs[r] / heads[r]) if heads[r] else None,
            heads_per_tail=float(pairs[r] / tails[r]) if tails[r] else None,
            cardinality=CARDINALITIES[codes[r]],
            loops=float(loops[r] / rows["train"][r]) if rows["train"][r] else None,
            symmetry=leakage.symmetry[r],
        )
        for r in range(n)
    )


def _warnings(
    splits: dict[Any, SplitProfile],
    degrees: DegreeProfile,
    relations: tuple[RelationProfile, ...],
    leakage: Leakage,
) -> list[str]:
    found = [f"{split} is empty." for split, profile in splits.items() if not profile.triples]
    for split, profile in splits.items():
        if profile.duplicates:
            found.append(
                f"{profile.duplicates:,} of the {profile.triples:,} lines of {split} repeat a triple that "
                f"stands there already."
            )
    for split, of_split in (("valid", leakage.valid), ("test", leakage.test)):
        profile = splits[split]
        if profile.unseen_triples:
            unseen = {"entities": profile.unseen_entities, "relations": profile.unseen_relations}
            what = " and ".join(f"{count:,} {kind}" for kind, count in unseen.items() if count)
            found.append(
                f"{what} of {split} are not in train: nothing can be learned for the "
                f"{profile.unseen_triples:,} {split} triples that need them."
            )
        found += _leakage_warnings(split, of_split, relations, leakage)
    if leakage.valid_in_test:
        found.append(f"{leakage.valid_in_test:,} of {leakage.valid.triples:,} valid triples stand in test too.")
    if degrees.unused:
        found.append(f"{degrees.unused:,} entities occur in no triple at all.")
    return found


def _name_warnings(dataset: Dataset) -> list[str]:
    """Of names that are almost the same; entities only up to a number, which takes seconds."""
    found = []
    if dataset.relations is not None:
        found += variant_warnings("relations", dataset.relations)
    if dataset.entities is not None and len(dataset.entities) <= MOST:
        found += variant_warnings("entities", dataset.entities)
    return found


def _leakage_warnings(
    split: str, of_split: SplitLeakage, relations: tuple[RelationProfile, ...], leakage: Leakage
) -> list[str]:
    n = max(of_split.triples, 1)
    found = []
    if of_split.in_train:
        found.append(f"{of_split.in_train:,} {split} triples ({of_split.in_train / n:.1%}) stand in train too.")
    if of_split.either > 0.01 * n:
        pair = leakage.twins[0]
        names = f"{relations[pair.first].name} / {relations[pair.second].name}"
        found.append(
            f"{of_split.either / n:.1%} of the {split} triples can be read off train, where they stand under "
            f"an inverse or near-duplicate relation ({len(leakage.twins):,} such pairs, as {names}): "
            f"results on {split} overstate what a model has learned."
        )
    if of_split.implied > 0.05 * n:
        found.append(
            f"A further {of_split.implied / n:.1%} of the {split} triples follow from a train triple of a "
            f"relation that is contained in theirs."
        )
    if of_split.symmetric > 0.1 * n:
        found.append(
            f"{of_split.symmetric / n:.1%} of the {split} triples stand in train the other way round, under "
            f"the same relation: a model of symmetric relations gets them for free."
        )
    return found


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    return value


# = Names that are almost the same: other ids, and most likely meant as one. Used by describe.py; changes no name.

MOST = 1_000_000  # names that are looked at: two or three seconds
_SHOWN = 4


def variant_warnings(kind: str, names: Iterable[str]) -> list[str]:
    """A sentence for each way in which some of the names differ only; `kind` is the word for several of them."""
    found: dict[str, list[str]] = {}
    for group in _alike(names):
        found.setdefault(_difference(group), []).extend(group)
    warnings = []
    for difference, alike in found.items():
        shown = ", ".join(quoted(name) for name in alike[:_SHOWN]) + (", …" if len(alike) > _SHOWN else ".")
        warnings.append(f"{len(alike):,} {kind} differ only in {difference}: {shown}")
    return warnings


def quoted(name: str) -> str:
    """The name in quotes, with whatever is not NFC written as escapes, so that both can be told apart."""
    return repr(name) if unicodedata.is_normalized("NFC", name) else ascii(name)


def _alike(names: Iterable[str]) -> list[list[str]]:
    """Groups of different names that are the same without surrounding spaces, in one normal form and case."""
    first: dict[str, str] = {}
    groups: dict[str, dict[str, None]] = {}
    for name in names:
        key = _composed(_composed(name.strip()).casefold())
        other = first.setdefault(key, name)
        if other != name:
            groups.setdefault(key, {other: None})[name] = None
    return [list(group) for group in groups.values()]


def _difference(group: list[str]) -> str:
    """What makes a difference in a group, in words."""
    ways: dict[str, Callable[[str], str]] = {
        "surrounding spaces": str.strip,
        "Unicode normal form": _composed,
        "letter case": str.casefold,
    }
    helping = [words for words, way in ways.items() if len({way(name) for name in group}) < len(group)]
    *most, last = helping or list(ways)  # none helps alone where they only differ in several ways at once
    return f"{', '.join(most)} {'and' if helping else 'or'} {last}" if most else last


def _composed(name: str) -> str:
    return name if name.isascii() else unicodedata.normalize("NFC", name)
