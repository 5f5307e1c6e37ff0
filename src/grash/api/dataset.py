"""Load, prepare and describe graphs in Python."""

from __future__ import annotations

from pathlib import Path

from grash.data import profile as profiles
from grash.data.dataset import Dataset
from grash.data.load import Source, as_dataset, from_dataframe, from_networkx, from_triples, load_dataset, prepare
from grash.search.run_folder import SEARCH_FILE, read_dataset

__all__ = ["describe", "find_dataset", "from_dataframe", "from_networkx", "from_triples", "load_dataset", "prepare"]


def describe(dataset: Source, *, threshold: float = profiles.THRESHOLD) -> profiles.Profile:
    """Return the profile of a graph: counts, degrees, kinds of relations, and problems of the data.

    threshold: two relations are near-duplicates if that share of both overlaps.
    """
    return profiles.describe(as_dataset(dataset), threshold=threshold)


def find_dataset(source: str | Path) -> Dataset:
    """Return the graph of a model folder or of a run folder, or what `load_dataset` returns for another source."""
    folder = Path(source)
    for model in (folder, folder / "model"):
        if (model / "model.json").is_file():
            return Dataset.load(model / "dataset")
    return read_dataset(folder) if (folder / SEARCH_FILE).is_file() else load_dataset(source)
