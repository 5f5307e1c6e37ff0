"""Describe a dataset: counts, degrees, relation categories, and problems that make results look too good.

`grash describe` prints the profile; evaluation reports ranks per relation category (1-1, 1-N, N-1, N-N). Everything is
counted by sorting ids; no loop runs over triples.
"""

from __future__ import annotations

import json
import unicodedata
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from grash.data.arrays import Triples, used_ids
from grash.data.dataset import SPLITS, Dataset
from grash.data.known_answers import CARDINALITIES, cardinalities, relation_counts
from grash.data.leakage import THRESHOLD, Leakage, SplitLeakage, find_leakage
from grash.formatting import counted, html_table

MAX_NAMES_COMPARED = 1_000_000  # takes two or three seconds
SKIPPED = {
    "bad_lines_skipped": "lines that are not triples were left out",
    "literals_skipped": "triples with literals were skipped; keep them with --literals keep",
    "nested_triples_skipped": "triples about triples were skipped",
}
_QUANTILES = (0.0, 0.25, 0.5, 0.75, 0.9, 0.99, 1.0)
_NAMES_SHOWN = 4
_Used = tuple[NDArray[np.bool_], NDArray[np.bool_]]  # which entities (E,) and relations (R,) a split has


@dataclass(frozen=True)
class SplitProfile:
    triples: int
    duplicates: int
    entities: int
    relations: int
    unseen_entities: int  # not in train
    unseen_relations: int
    unseen_triples: int  # triples with an entity or relation that is not in train


@dataclass(frozen=True)
class DegreeProfile:
    """Train triples per entity of train; a loop counts once."""

    mean: float
    quantiles: dict[str, float]
    with_one_triple: int
    not_in_train: int
    unused: int  # entities in no triple


@dataclass(frozen=True)
class RelationProfile:
    """Counts of distinct train triples, except for `triples`; means and shares are None without any."""

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
class Reading:
    """How a source was read."""

    duplicates_dropped: int
    split_off: dict[str, int]  # triples by split
    split_seed: int | None
    read_as: dict[str, dict[str, Any]]  # by split, separator, header and columns of text files
    literals_skipped: int = 0  # RDF triples whose object is a literal
    nested_triples_skipped: int = 0  # RDF triples about triples
    bad_lines_skipped: int = 0  # lines of text that are not triples


@dataclass(frozen=True)
class Profile:
    name: str
    n_entities: int
    n_relations: int
    splits: dict[str, SplitProfile]
    degrees: DegreeProfile
    relations: tuple[RelationProfile, ...]
    leakage: Leakage
    warnings: tuple[str, ...]
    reading: Reading | None = None  # None if the dataset was not read from a source

    def __repr__(self) -> str:
        counts = f"{counted(self.n_entities, 'entity', 'entities')}, {counted(self.n_relations, 'relation')}"
        return f"Profile({self.name!r}: {counts}, {len(self.warnings)} warnings)"

    def _repr_html_(self) -> str:
        counts = f"{counted(self.n_entities, 'entity', 'entities')}, {counted(self.n_relations, 'relation')}"
        names = ("triples", "duplicates", "entities", "relations", "unseen_entities", "unseen_relations")
        rows = [(split, *(getattr(found, name) for name in names)) for split, found in self.splits.items()]
        columns = ("split", *(name.replace("_", " ") for name in names))
        return html_table(f"{self.name}: {counts}", columns, rows, below=" ".join(self.warnings))

    def to_dict(self) -> dict[str, Any]:
        """Return the profile as JSON-able dicts, lists, numbers and strings."""
        return json.loads(json.dumps(asdict(self)))


def describe(dataset: Dataset, *, threshold: float = THRESHOLD) -> Profile:
    """Return the profile of a dataset. Two relations are near-duplicates if `threshold` of both overlap."""
    triples = [dataset.split(split) for split in SPLITS]
    leakage = find_leakage(triples, dataset.n_entities, dataset.n_relations, threshold=threshold)
    used = [used_ids(part, dataset.n_entities, dataset.n_relations) for part in triples]
    splits = {
        str(split): _split_profile(dataset.split(split), mine, used[0], duplicates)
        for split, mine, duplicates in zip(SPLITS, used, leakage.duplicates)
    }
    relations = _relation_profiles(dataset, leakage)
    degrees = _degrees(dataset, used)
    return Profile(
        name=dataset.name,
        n_entities=dataset.n_entities,
        n_relations=dataset.n_relations,
        splits=splits,
        degrees=degrees,
        relations=relations,
        leakage=leakage,
        warnings=(*_warnings(splits, degrees, relations, leakage), *_name_warnings(dataset)),
        reading=reading_of(dataset.provenance),
    )


def reading_of(provenance: Mapping[str, Any]) -> Reading | None:
    """Return how a dataset was read, or None if it was not read from a source."""
    repeated = provenance.get("repeated_in_train")
    if repeated is None or "reduction" in provenance:
        return None
    split_off = provenance.get("split_off", {})
    dropped = 0 if repeated["kept"] else repeated["count"]
    skipped = {name: provenance.get(name, 0) for name in SKIPPED}
    return Reading(dropped, split_off.get("got", {}), split_off.get("seed"), provenance.get("read_as", {}), **skipped)


def _split_profile(triples: Triples, used: _Used, in_train: _Used, duplicates: int) -> SplitProfile:
    entity, relation = in_train
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


def _degrees(dataset: Dataset, used: list[_Used]) -> DegreeProfile:
    head, tail = dataset.train[:, 0], dataset.train[:, 2]
    degree = np.bincount(head, minlength=dataset.n_entities)
    degree += np.bincount(tail[head != tail], minlength=dataset.n_entities)
    in_any = used[0][0] | used[1][0] | used[2][0]
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
    pairs, heads, tails = relation_counts(dataset.train, n)
    codes = cardinalities(pairs, heads, tails)
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
    splits: dict[str, SplitProfile], degrees: DegreeProfile, relations: tuple[RelationProfile, ...], leakage: Leakage
) -> list[str]:
    found = [f"{split} is empty." for split, profile in splits.items() if not profile.triples]
    for split, profile in splits.items():
        if profile.duplicates:
            found.append(f"{profile.duplicates:,} of the {profile.triples:,} triples of {split} are duplicates.")
    for split, of_split in (("valid", leakage.valid), ("test", leakage.test)):
        profile = splits[split]
        if profile.unseen_triples:
            unseen = {"entities": profile.unseen_entities, "relations": profile.unseen_relations}
            what = " and ".join(f"{count:,} {kind}" for kind, count in unseen.items() if count)
            found.append(
                f"{what} of {split} are not in train: a model cannot learn the {profile.unseen_triples:,} {split} "
                f"triples with them."
            )
        found += _leakage_warnings(split, of_split, relations, leakage)
    if leakage.valid_in_test:
        found.append(f"{leakage.valid_in_test:,} of {leakage.valid.triples:,} valid triples are also in test.")
    if degrees.unused:
        found.append(f"{degrees.unused:,} entities occur in no triple.")
    return found


def _leakage_warnings(
    split: str, of_split: SplitLeakage, relations: tuple[RelationProfile, ...], leakage: Leakage
) -> list[str]:
    n = max(of_split.triples, 1)
    found = []
    if of_split.in_train:
        found.append(f"{of_split.in_train:,} {split} triples ({of_split.in_train / n:.1%}) are also in train.")
    if of_split.either > 0.01 * n:
        pair = leakage.twins[0]
        names = f"{relations[pair.first].name} / {relations[pair.second].name}"
        found.append(
            f"{of_split.either / n:.1%} of the {split} triples are in train under an inverse or near-duplicate "
            f"relation ({len(leakage.twins):,} such pairs, e.g. {names}): results on {split} overstate what a model "
            f"has learned."
        )
    if of_split.implied > 0.05 * n:
        found.append(
            f"Another {of_split.implied / n:.1%} of the {split} triples follow from a train triple of a relation that "
            f"is contained in theirs."
        )
    if of_split.symmetric > 0.1 * n:
        found.append(
            f"{of_split.symmetric / n:.1%} of the {split} triples are in train in the reverse direction, under the "
            f"same relation: a model of symmetric relations gets them for free."
        )
    return found


def _name_warnings(dataset: Dataset) -> list[str]:
    found = []
    if dataset.relations is not None:
        found += similar_name_warnings("relations", dataset.relations)
    if dataset.entities is not None and len(dataset.entities) <= MAX_NAMES_COMPARED:
        found += similar_name_warnings("entities", dataset.entities)
    return found


def similar_name_warnings(kind: str, names: Iterable[str]) -> list[str]:
    """Return a warning for each small difference between names that probably mean the same entity or relation."""
    found: dict[str, list[str]] = {}
    for group in _similar_names(names):
        found.setdefault(_difference(group), []).extend(group)
    warnings = []
    for difference, similar in found.items():
        shown = ", ".join(map(_quoted, similar[:_NAMES_SHOWN])) + (", …" if len(similar) > _NAMES_SHOWN else ".")
        warnings.append(f"{len(similar):,} {kind} differ only in {difference}: {shown}")
    return warnings


def _quoted(name: str) -> str:
    """Return the name in quotes, with escapes if it is not NFC, so that both forms can be distinguished."""
    return repr(name) if unicodedata.is_normalized("NFC", name) else ascii(name)


def _similar_names(names: Iterable[str]) -> list[list[str]]:
    """Return groups of different names that are equal without surrounding spaces, in one normal form and case."""
    first: dict[str, str] = {}
    groups: dict[str, dict[str, None]] = {}
    for name in names:
        key = _composed(_composed(name.strip()).casefold())
        other = first.setdefault(key, name)
        if other != name:
            groups.setdefault(key, {other: None})[name] = None
    return [list(group) for group in groups.values()]


def _difference(group: list[str]) -> str:
    """Return in words what distinguishes the names of a group."""
    functions: dict[str, Callable[[str], str]] = {
        "surrounding spaces": str.strip,
        "Unicode normal form": _composed,
        "letter case": str.casefold,
    }
    relevant = [what for what, function in functions.items() if len(set(map(function, group))) < len(group)]
    *most, last = relevant or list(functions)  # none alone is enough if names differ in several ways at once
    return f"{', '.join(most)} {'and' if relevant else 'or'} {last}" if most else last


def _composed(name: str) -> str:
    return name if name.isascii() else unicodedata.normalize("NFC", name)
