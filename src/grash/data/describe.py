"""describe: what a dataset is made of, and what in it would make results look better than they are.

Comes after prepare.py; `grash describe` prints it. Cardinalities (1-1, 1-N, N-1, N-N) are also used by
evaluation to report ranks per class. Everything is counted by sorting ids; no loop runs over triples.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from grash.data.account import Reading, reading_of
from grash.data.dataset import SPLITS, Dataset
from grash.data.leakage import THRESHOLD, Leakage, SplitLeakage, find_leakage
from grash.data.lookalikes import MOST, variant_warnings

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
