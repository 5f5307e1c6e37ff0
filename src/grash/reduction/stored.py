"""A peeling on disk: one .npy of int32, about 4 bytes per entity, from which every subgraph can be cut.

    version, definition, k_max, E | SHA-256 of the dataset (8) | entities of each core number (k_max + 1) | order (E)

Comes from peel.py; is read again whenever the same dataset is.
"""

from __future__ import annotations

from pathlib import Path
from typing import get_args

import numpy as np
from numpy.typing import NDArray

from grash.data.arrays import open_array
from grash.data.dataset import Dataset
from grash.files import whole_file
from grash.reduction.adjacency import Count
from grash.reduction.peel import Peeling, peel

_LAYOUT = 1
_HEAD = 4 + 8


def peeling_of(dataset: Dataset, count: Count = "neighbours", cache: Path | None = None) -> Peeling:
    """The peeling of a dataset's train split: the one in the file `cache` if it is of this dataset and definition,
    else computed, and written there."""
    if cache is None:
        return peel(dataset.train, dataset.n_entities, count)
    cache = Path(cache)
    stored = _read(cache, dataset, count)
    if stored is not None:
        return stored
    peeling = peel(dataset.train, dataset.n_entities, count)
    store_peeling(dataset, peeling, cache)
    return peeling


def store_peeling(dataset: Dataset, peeling: Peeling, path: Path) -> None:
    """Writes the peeling of a dataset, for `peeling_of` to find."""
    with whole_file(path) as aside, aside.open("wb") as file:
        np.save(file, np.concatenate([_head(dataset, peeling), peeling.order]), allow_pickle=False)


def _read(path: Path, dataset: Dataset, count: Count) -> Peeling | None:
    """The peeling in a file, or None if the file is absent, damaged, or of another dataset or definition."""
    try:
        array = open_array(path)
    except (OSError, ValueError):
        return None
    if array.dtype != np.int32 or array.ndim != 1 or len(array) < _HEAD:
        return None
    k_max, n_shells = int(array[2]), int(array[2]) + 1
    order = array[_HEAD + max(0, n_shells) :]
    sizes = array[_HEAD : _HEAD + max(0, n_shells)].astype(np.int64)
    if len(order) != dataset.n_entities or k_max < 0 or (sizes < 0).any() or sizes.sum() != len(order):
        return None
    peeling = Peeling(order, np.concatenate([[0], np.cumsum(sizes)]), count)
    if not np.array_equal(array[: _HEAD + n_shells], _head(dataset, peeling)) or not _is_permutation(order):
        return None
    return peeling


def _head(dataset: Dataset, peeling: Peeling) -> NDArray[np.int32]:
    counts = [_LAYOUT, get_args(Count).index(peeling.count), peeling.k_max, dataset.n_entities]
    fingerprint = np.frombuffer(bytes.fromhex(dataset.fingerprint), "<i4")
    return np.concatenate([counts, fingerprint, np.diff(peeling.core_starts)]).astype(np.int32)


def _is_permutation(order: NDArray[np.int32]) -> bool:
    if len(order) and (order.min() < 0 or order.max() >= len(order)):
        return False
    seen = np.zeros(len(order), bool)
    seen[order] = True
    return bool(seen.all())
