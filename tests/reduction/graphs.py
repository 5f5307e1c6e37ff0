"""Small random multigraphs with loops, parallel triples and isolated entities, for the laws of reduction."""

from __future__ import annotations

import numpy as np
from hypothesis import strategies as st

from grash.data.dataset import Dataset

NOTHING = np.empty((0, 3), np.int32)


@st.composite
def datasets(draw: st.DrawFn, *, min_triples: int = 0, max_triples: int = 60, max_entities: int = 14) -> Dataset:
    n_entities = draw(st.integers(1, max_entities))
    n_relations = draw(st.integers(1, 3))
    ids = st.tuples(*(st.integers(0, n - 1) for n in (n_entities, n_relations, n_entities)))
    rows = draw(st.lists(ids, min_size=min_triples, max_size=max_triples))
    return dataset_of(rows, n_entities, n_relations)


def dataset_of(rows: list[tuple[int, int, int]], n_entities: int, n_relations: int, **more: object) -> Dataset:
    train = np.array(rows, np.int32).reshape(-1, 3)
    return Dataset(train, NOTHING, NOTHING, n_entities, n_relations, **more)  # type: ignore[arg-type]


def random_dataset(seed: int, n_triples: int, n_entities: int, n_relations: int = 5, *, skew: float = 2.0) -> Dataset:
    """Low ids have more triples; every triple once."""
    random = np.random.default_rng(seed)
    ends = (n_entities * random.random((2, n_triples)) ** skew).astype(np.int32)
    train = np.stack([ends[0], random.integers(0, n_relations, n_triples), ends[1]], 1).astype(np.int32)
    return Dataset(np.unique(train, axis=0), NOTHING, NOTHING, n_entities, n_relations)


def as_set(triples: np.ndarray) -> set[tuple[int, int, int]]:
    return set(map(tuple, triples.tolist()))


def names_in(triples: np.ndarray) -> tuple[set[int], set[int]]:
    return set(triples[:, ::2].ravel().tolist()), set(triples[:, 1].tolist())
