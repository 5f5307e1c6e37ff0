"""The subgraphs of a search, each a function of the dataset, the settings and its fraction.

They are made when a round needs them, in the driver or in a worker, and never written to disk.
"""

from __future__ import annotations

from functools import cached_property, lru_cache
from pathlib import Path

import numpy as np

from grash.data.dataset import Dataset
from grash.errors import InputError
from grash.kernels.random import key_of
from grash.reduction.cores import Peeling, cached_peeling, save_peeling
from grash.reduction.sampling import cut_by_walk
from grash.reduction.subgraph import (
    CoreOrder,
    Holdout,
    Subgraph,
    core_order,
    cut,
    holdout_size,
    linked_pair_share,
    pairs_are_isolated,
    smallest_fraction,
)
from grash.search.schedule import Shape
from grash.search.settings import SearchSettings
from grash.search.time_limit import GraphSizes

Fractions = tuple[float, ...]
MIN_LINKED_SHARE = 0.1  # with fewer train triples whose entity pair is linked again, any draw resembles valid


class SearchGraphs:
    """The graphs of all rounds. The last two are kept, so the trials of a round share one."""

    def __init__(self, dataset: Dataset, settings: SearchSettings, *, cache: Path | None = None) -> None:
        """cache: file for the peel order (`cached_peeling`)."""
        if not len(dataset.valid) or not len(dataset.train):
            raise InputError(
                f"{dataset.name} has {len(dataset.train):,} training and {len(dataset.valid):,} validation triples, "
                f"and a search needs both. Give a valid split, or train without a search: `grash train`."
            )
        self.dataset, self.settings, self.cache = dataset, settings, cache
        self.n_entities, self.n_train = dataset.n_entities, len(dataset.train)
        self._peeling: Peeling | None = None
        self._order: CoreOrder | None = None
        self._subgraph = lru_cache(maxsize=2)(self._make_subgraph)

    @property
    def peeling(self) -> Peeling:
        if self._peeling is None:
            self._peeling = cached_peeling(self.dataset, self.settings.degree, self.cache)
        return self._peeling

    @property
    def order(self) -> CoreOrder:
        if self._order is None:
            self._order = core_order(self.dataset, self.peeling)
        return self._order

    def share_cores(self, other: SearchGraphs) -> None:
        """Use the peel order of another search on the same dataset, with the same `degree`."""
        self._peeling, self._order = other.peeling, other.order

    def keep_cores(self, path: Path | None) -> None:
        """Keep the peel order in this file from now on."""
        self.cache = path
        if path is not None and self._peeling is not None and not path.exists():
            save_peeling(self.dataset, self._peeling, path)

    @cached_property
    def split_seed(self) -> int:
        return key_of(self.settings.seed, "split") >> 1

    @cached_property
    def valid_pairs_isolated(self) -> bool:
        """Whether the last round should hold out isolated pairs: valid has no others, and a random draw would."""
        valid, train, n = self.dataset.valid, self.dataset.train, self.n_entities
        return pairs_are_isolated(valid, train, n) and linked_pair_share(train, n) >= MIN_LINKED_SHARE

    def shape(self, fractions: Fractions, isolated: bool = False) -> Shape:
        """Return the sizes of a subgraph; zeros if no triple is left, which the schedule reports."""
        try:
            subgraph = self.subgraph(fractions, isolated)
        except InputError:
            return Shape(0, 0, 0, 0)
        data = subgraph.dataset
        sizes = (data.n_entities, data.n_relations, len(data.train), len(data.valid))
        return Shape(*sizes, k=subgraph.k, whole=subgraph.whole, fell_back=subgraph.fell_back)

    def smallest_fraction(self, n_entities: int, n_valid: int) -> float:
        """Return the smallest fraction whose subgraph has this many entities and validation triples.

        If only the whole graph has so many entities, and its own valid split is small, that is its largest part.
        """
        order = self.order
        found = smallest_fraction(self.dataset, order, n_entities=n_entities, n_valid=n_valid)
        parts = order.n_triples[order.n_triples < self.n_train]
        if found < 1 or len(self.dataset.valid) >= n_valid or not len(parts):
            return found
        held_out = holdout_size(int(parts[-1]))
        return found if held_out <= len(self.dataset.valid) else (int(parts[-1]) - held_out) / self.n_train

    def sizes(self) -> GraphSizes:
        """Return what of this graph decides how long a search takes."""
        triples = self.order.n_triples
        parts = [2.0 ** (-i / 2) for i in range(24, -1, -1)]
        prefixes = np.searchsorted(triples, [min(1.25 * part, 1.0) * triples[-1] for part in parts])  # with held-out
        shares = ((part, min(1.0, float(p) / self.n_entities)) for part, p in zip(parts, prefixes))
        return GraphSizes.of(self, len(self.dataset.test), shares)

    def subgraph(self, fractions: Fractions, isolated: bool = False) -> Subgraph:
        """Return the subgraph with fractions[-1] of the train triples; () is the whole graph.

        The other fractions are those of earlier rounds, for a warm start. isolated: hold out only isolated pairs.
        """
        return self._subgraph(fractions, isolated)

    def _make_subgraph(self, fractions: Fractions, isolated: bool) -> Subgraph:
        before = self._make_subgraph(fractions[:-1], False) if len(fractions) > 1 else None
        if not fractions or fractions[-1] >= 1 or (before is not None and before.whole):
            entities, relations = (np.arange(n, dtype=np.int32) for n in (self.n_entities, self.dataset.n_relations))
            return Subgraph(self.dataset, entities, relations, target=1.0, fraction=1.0, whole=True)
        seen, guarded = None if before is None else before.full_ids("train"), self.settings.guarded_split
        if self.settings.reduction == "walk":
            return cut_by_walk(self.dataset, fractions[-1], Holdout(self.split_seed, guarded, seen, isolated))
        return cut(
            self.dataset, self.peeling, fractions[-1], reduction=self.settings.reduction, seed=self.split_seed,
            guarded=guarded, isolated=isolated, order=self.order, train_before=seen,
        )  # fmt: skip
