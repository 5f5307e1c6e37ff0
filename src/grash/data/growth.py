"""A graph that changes: triples are added and removed, names that are known keep their ids, and the split stays.

`grow` comes before an update of a model (`engines/update.py`). Triples that valid or test hold out stay held out, also
if they are among the added ones; otherwise the test would leak into training.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from grash.data.arrays import Triples, TripleSet
from grash.data.dataset import SPLITS, Dataset, SplitName
from grash.data.iris import find_name
from grash.data.vocabulary import Vocabulary
from grash.errors import InputError
from grash.formatting import counted

_Kind = Literal["entities", "relations"]
_MAX_NAMES = 10  # new relations that are listed


@dataclass(frozen=True)
class GraphDiff:
    """What an update changes in a graph."""

    n_given: int  # triples given to add
    n_added: int  # of these, new in train
    n_known: int  # in train already
    n_held_out: int  # in valid or test already, and left there
    n_added_valid: int  # new in valid; a file adds to train only, a folder may have other splits
    n_added_test: int
    n_removed: int  # removed from train, valid or test
    n_not_found: int  # to be removed, but in no split
    n_new_entities: int
    n_new_relations: int
    new_relations: tuple[str, ...]  # names of the first ten

    def sentences(self) -> Iterator[str]:
        """Yield what changed, a sentence each."""
        yield f"New triples of train: {self.n_added:,} of {self.n_given:,}."
        if self.n_known:
            yield f"In train already: {self.n_known:,}."
        if self.n_held_out:
            yield f"In valid or test already: {self.n_held_out:,}. They stay there and are not trained on."
        if self.n_added_valid or self.n_added_test:
            yield f"New triples of valid: {self.n_added_valid:,}, of test: {self.n_added_test:,}."
        if self.n_removed or self.n_not_found:
            missing = f" To be removed, but not in the graph: {self.n_not_found:,}." if self.n_not_found else ""
            yield f"Removed triples: {self.n_removed:,}.{missing}"
        if self.n_new_entities:
            yield f"New entities: {self.n_new_entities:,}."
        if self.n_new_relations:
            listed = ", ".join(self.new_relations) + (", …" if self.n_new_relations > len(self.new_relations) else "")
            yield f"New relations: {self.n_new_relations:,} ({listed})."


@dataclass(frozen=True, eq=False)
class Growth:
    """A graph after an update: ids below those of the graph before have the same names."""

    before: Dataset
    dataset: Dataset
    added: Triples  # (n, 3) new triples of train
    diff: GraphDiff


def grow(dataset: Dataset, added: Dataset | None = None, removed: Dataset | None = None) -> Growth:
    """Return the dataset with the triples of `added`, split by split, and without those of `removed`.

    Both are matched by name (also as an export to N-Triples writes it), or by id if the graph has no names. InputError
    if nothing changes, or if a triple of the graph is in both.
    """
    if added is None and removed is None:
        raise InputError("Nothing is given: give triples to add, or triples to remove.")
    entities, relations = (_Ids(dataset, added, kind) for kind in ("entities", "relations"))
    splits = {name: np.asarray(dataset.split(name)) for name in SPLITS}
    n_removed = n_not_found = 0
    if removed is not None:
        gone = _Ids(dataset, removed, "entities"), _Ids(dataset, removed, "relations")
        ids = np.concatenate([_by_id(removed.split(name), *gone) for name in SPLITS])
        if added is not None:
            _check_disjoint(dataset, ids, np.concatenate([_by_id(added.split(s), entities, relations) for s in SPLITS]))
        splits, n_removed, n_not_found = _without(splits, ids)
    new, n_known, n_held_out = _added(splits, added, entities, relations)
    if not n_removed and not any(len(part) for part in new.values()):
        raise InputError(_nothing_new(dataset, added, n_known, n_held_out, n_not_found))
    merged = {name: np.ascontiguousarray(np.concatenate([splits[name], new[name]])) for name in SPLITS}
    n_given = 0 if added is None else sum(len(added.split(name)) for name in SPLITS)
    diff = GraphDiff(
        n_given=n_given, n_added=len(new["train"]), n_known=n_known, n_held_out=n_held_out,
        n_added_valid=len(new["valid"]), n_added_test=len(new["test"]), n_removed=n_removed, n_not_found=n_not_found,
        n_new_entities=entities.n_new, n_new_relations=relations.n_new,
        new_relations=tuple(relations.new_names[:_MAX_NAMES]),
    )  # fmt: skip
    provenance = dict(dataset.provenance)
    provenance["updates"] = [*provenance.get("updates", []), {"n_added": diff.n_added, "n_removed": n_removed}]
    grown = Dataset(
        **merged, n_entities=entities.count, n_relations=relations.count, entities=entities.vocabulary(),
        relations=relations.vocabulary(), name=dataset.name, provenance=provenance,
    )  # fmt: skip
    return Growth(dataset, grown, new["train"], diff)


class _Ids:
    """Ids of entities or relations after the update: those of before, then the new names in their order."""

    def __init__(self, dataset: Dataset, added: Dataset | None, kind: _Kind) -> None:
        self.names: Vocabulary | None = getattr(dataset, kind)
        self.count: int = getattr(dataset, f"n_{kind}")
        self.before, self.new_names = self.count, list[str]()
        self.kind = kind
        self.lookup: NDArray[np.int64] = np.empty(0, np.int64)
        if added is not None:
            self._add(dataset, added, getattr(added, kind), getattr(added, f"n_{kind}"))

    def _add(self, dataset: Dataset, added: Dataset, names: Vocabulary | None, count: int) -> None:
        if (names is None) != (self.names is None):
            unnamed = dataset.name if self.names is None else added.name
            raise InputError(f"{unnamed} has no names of {self.kind}, so the two graphs cannot be matched by name.")
        if names is None or self.names is None:
            self.lookup, self.count = np.arange(count), max(self.count, count)
            return
        used = np.zeros(count, bool)
        for split in SPLITS:
            columns = (0, 2) if self.kind == "entities" else (1,)
            for column in columns:
                used[added.split(split)[:, column]] = True
        self.lookup = np.full(count, -1, np.int64)
        for i in np.flatnonzero(used).tolist():
            name = names.name(i)
            found = find_name(name, self.names)
            if found is None:
                found = self.count
                self.count += 1
                self.new_names.append(name)
            self.lookup[i] = found

    @property
    def n_new(self) -> int:
        return self.count - self.before

    def vocabulary(self) -> Vocabulary | None:
        if self.names is None or not self.new_names:
            return self.names
        return self.names.extended(self.new_names)


def _added(
    splits: dict[SplitName, Triples], added: Dataset | None, entities: _Ids, relations: _Ids
) -> tuple[dict[SplitName, Triples], int, int]:
    """Return the new triples of each split, and how many were in train or held out already."""
    none = np.empty((0, 3), np.int32)
    if added is None:
        return dict.fromkeys(SPLITS, none), 0, 0
    train, held = TripleSet(splits["train"]), TripleSet(np.concatenate([splits["valid"], splits["test"]]))
    found: dict[SplitName, Triples] = {}
    n_known = n_held_out = 0
    for name in SPLITS:
        ids = _by_id(added.split(name), entities, relations)
        ids = ids[~TripleSet(ids).repeated] if len(ids) else none
        in_train, in_held = train.contains(ids), held.contains(ids)
        n_known, n_held_out = n_known + int(in_train.sum()), n_held_out + int((in_held & ~in_train).sum())
        found[name] = np.ascontiguousarray(ids[~in_train & ~in_held])
    return found, n_known, n_held_out


def _by_id(triples: Triples, entities: _Ids, relations: _Ids) -> Triples:
    """Return triples (n, 3) of another graph by the ids of `_Ids`."""
    heads, middle, tails = triples.T
    ids = np.stack([entities.lookup[heads], relations.lookup[middle], entities.lookup[tails]], 1)
    return np.ascontiguousarray(ids.astype(np.int32))


def _check_disjoint(dataset: Dataset, removed: Triples, added: Triples) -> None:
    """Raise InputError if a triple of the graph is both removed and added, which could move it from test to train."""
    both = removed[TripleSet(added).contains(removed)]
    old = (both < [dataset.n_entities, dataset.n_relations, dataset.n_entities]).all(1)  # others have ids by chance
    if old.any():
        n = len(np.unique(both[old], axis=0))
        raise InputError(
            f"{counted(n, 'triple')} of {dataset.name} {'is' if n == 1 else 'are'} both added and removed: take "
            f"{'it' if n == 1 else 'them'} out of one of the two."
        )


def _without(splits: dict[SplitName, Triples], removed: Triples) -> tuple[dict[SplitName, Triples], int, int]:
    """Return the splits without the removed triples, their number, and how many were in none."""
    wanted = TripleSet(removed)
    gone = {name: wanted.contains(np.ascontiguousarray(triples)) for name, triples in splits.items()}
    n_removed = sum(int(mask.sum()) for mask in gone.values())
    if n_removed and gone["train"].all():
        raise InputError("Every triple of train would be removed: nothing would be left to train on.")
    kept = {name: np.ascontiguousarray(triples[~gone[name]]) for name, triples in splits.items()}
    return kept, n_removed, len(removed) - wanted.n_repeated - n_removed


def _nothing_new(dataset: Dataset, added: Dataset | None, n_known: int, n_held_out: int, n_not_found: int) -> str:
    """Return the sentence of an update that changes nothing."""
    if added is None:
        none = (
            "The triple to remove is not" if n_not_found == 1 else f"None of the {n_not_found:,} triples to remove is"
        )
        return f"{none} in {dataset.name!r}: there is nothing to update."
    n = n_known + n_held_out
    given = f"The triple of {added.name!r} is" if n == 1 else f"All {n:,} triples of {added.name!r} are"
    held = "" if not n_held_out else ", in valid or test" if n == 1 else f", {n_held_out:,} of them in valid or test"
    return f"{given} in {dataset.name!r} already{held}: nothing to update."
