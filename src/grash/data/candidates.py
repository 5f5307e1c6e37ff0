"""Which entities may answer a question: those seen on that side of the relation in train, or those of a type.

Embeddings know no types: the best tails of `has_genre` by score may be countries. The domain (heads) and the range
(tails) of a relation are learnt from train: the entities seen there. Where the graph has type triples, such as
(Lima, rdf:type, City), a type selects its entities. Only train is read, so test answers stay unseen.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from grash.data.arrays import Triples, distinct, in_blocks
from grash.data.dataset import Dataset
from grash.errors import InputError

Ids = NDArray[np.int64]
Side = Literal["head", "tail"]
Candidates = Callable[[int, Side], Ids]  # relation, side asked for → entities, ascending and distinct

# names of relations that link an entity with its type, in the order in which they are tried
TYPE_RELATIONS = (
    "http://www.w3.org/1999/02/22-rdf-syntax-ns#type", "<http://www.w3.org/1999/02/22-rdf-syntax-ns#type>", "rdf:type",
    "http://www.wikidata.org/prop/direct/P31", "wdt:P31", "P31", "instance_of", "instance of", "type", "is_a", "isa",
)  # fmt: skip
_ROWS = 1 << 20  # triples per block


class SeenEntities:
    """The entities seen on each side of each relation in train.

    A relation is read when it is first asked for, in one pass over train, and kept: at most 16 bytes per triple in all.
    `read` reads several in one pass.
    """

    def __init__(self, dataset: Dataset) -> None:
        self._train = dataset.train
        self._found: dict[int, tuple[Ids, Ids]] = {}
        self._lock = threading.Lock()

    def __call__(self, relation: int, side: Side) -> Ids:
        """Return the entities seen on this side of the relation, ascending."""
        self.read([relation])
        return self._found[relation][side == "tail"]

    def read(self, relations: Iterable[int]) -> None:
        """Read those of these relations that were not read yet."""
        with self._lock:
            missing = np.array(sorted(set(relations) - self._found.keys()), np.int64)
            if len(missing):
                self._found.update(zip(missing.tolist(), _seen_entities(self._train, missing)))


def find_type_relation(dataset: Dataset) -> int | None:
    """Return the relation that links entities with their types, known by its name; None if there is none."""
    if dataset.relations is None:
        return None
    found = (dataset.relations.find(name) for name in TYPE_RELATIONS)
    return next((relation for relation in found if relation is not None), None)


def entities_of_type(dataset: Dataset, type_relation: int, entity_type: int) -> Ids:
    """Return the entities with this type in train, ascending; InputError if there are none."""
    triples = _triples_of(dataset.train, type_relation)
    found = np.unique(triples[triples[:, 2] == entity_type, 0]).astype(np.int64)
    if not len(found):
        names = dataset.entities, dataset.relations
        of_type, by = (str(i) if v is None else repr(v.name(i)) for v, i in zip(names, (entity_type, type_relation)))
        raise InputError(f"No entity has the type {of_type} in train: no triple has the relation {by} and this tail.")
    return found


def common_entities(first: Ids | None, second: Ids) -> Ids:
    """Return the entities in both; without a first condition, those of the second."""
    return second if first is None else np.intersect1d(first, second, assume_unique=True)


def _triples_of(train: Triples, relation: int) -> Triples:
    parts = [block[block[:, 1] == relation] for _, block in in_blocks(train, _ROWS)]
    return np.concatenate(parts) if parts else train[:0]


def _seen_entities(train: Triples, relations: Ids) -> Iterable[tuple[Ids, Ids]]:
    """Return for each of these relations, ascending, the distinct heads and tails, ascending."""
    heads, tails = [np.empty(0, np.int64)], [np.empty(0, np.int64)]  # keys: place of the relation · 2³² + entity
    for _, block in in_blocks(train, _ROWS):
        chosen = block[np.isin(block[:, 1], relations)]
        places = np.searchsorted(relations, chosen[:, 1]) << 32
        heads.append(distinct(places + chosen[:, 0]))
        tails.append(distinct(places + chosen[:, 2]))
    return zip(*(_split_keys(distinct(np.concatenate(keys)), len(relations)) for keys in (heads, tails)))


def _split_keys(keys: Ids, n: int) -> list[Ids]:
    """Return the entities of each of n places."""
    return np.split(keys & 0xFFFFFFFF, np.searchsorted(keys, np.arange(1, n) << 32))
