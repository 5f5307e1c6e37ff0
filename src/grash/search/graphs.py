"""The subgraphs of a search, each a function of the dataset, the settings and its fraction: made on demand, here or in
a worker, never written to disk."""

from __future__ import annotations

from functools import cached_property, lru_cache
from pathlib import Path

import numpy as np

from grash.data.dataset import Dataset
from grash.errors import InputError
from grash.kernels.random import key_of
from grash.reduction.cores import Peeling, peeling_of, store_peeling
from grash.reduction.subgraph import (
    Chain,
    Subgraph,
    chain_of,
    cut,
    linked_pair_share,
    n_valid_of,
    pairs_are_isolated,
    smallest_fraction,
)
from grash.search.schedule import Shape
from grash.search.settings import SearchSettings

Fractions = tuple[float, ...]
OFTEN = 0.1  # of the triples: where another one joins the entities of fewer, any draw is like valid


class SearchGraphs:
    """The graph of any round. The last few are kept, so that the trials of a round share one."""

    def __init__(self, dataset: Dataset, settings: SearchSettings, *, cache: Path | None = None) -> None:
        if not len(dataset.valid) or not len(dataset.train):
            raise InputError(
                f"{dataset.name} has {len(dataset.train):,} training and {len(dataset.valid):,} validation triples, "
                f"and a search compares configurations on validation triples. If none could be held out without "
                f"leaving an entity or relation untrained, the graph is too small to search on: use `grash train`."
            )
        self.dataset, self.settings, self.cache = dataset, settings, cache
        self.n_entities, self.n_train = dataset.n_entities, len(dataset.train)
        self._kept = lru_cache(maxsize=2)(self._subgraph)

    @cached_property
    def peeling(self) -> Peeling:
        return peeling_of(self.dataset, self.settings.degree, self.cache)

    @cached_property
    def chain(self) -> Chain:
        return chain_of(self.dataset, self.peeling)

    def keep_cores(self, place: Path | None) -> None:
        """From now on the peel order is kept in that file, where it has not been written yet."""
        self.cache = place
        if place is not None and "peeling" in self.__dict__ and not place.exists():
            store_peeling(self.dataset, self.peeling, place)

    @cached_property
    def split_seed(self) -> int:
        return key_of(self.settings.seed, "split") >> 1

    @cached_property
    def valid_pairs_isolated(self) -> bool:
        """Whether a last round should hold out no triple whose two entities another one joins: the dataset's valid has
        none, and any draw would have many."""
        valid, train, n = self.dataset.valid, self.dataset.train, self.n_entities
        return pairs_are_isolated(valid, train, n) and linked_pair_share(train, n) >= OFTEN

    def shape(self, fractions: Fractions, isolated: bool = False) -> Shape:
        try:
            found = self.subgraph(fractions, isolated)
        except InputError:  # not one triple is left; the schedule says what to do
            return Shape(0, 0, 0, 0)
        data = found.dataset
        return Shape(
            n_entities=data.n_entities,
            n_relations=data.n_relations,
            n_train=len(data.train),
            n_valid=len(data.valid),
            k=found.k,
            whole=found.whole,
            fell_back=found.fell_back,
        )

    def smallest_fraction(self, n_entities: int, n_valid: int) -> float:
        """Where only the whole graph has so many, but few validation triples of its own: the largest part of it."""
        sizes = {"n_entities": n_entities, "n_valid": n_valid}
        found = smallest_fraction(self.dataset, self.peeling, **sizes, chain=self.chain)
        proper = self.chain.n_triples[self.chain.n_triples < self.n_train]
        if found < 1 or len(self.dataset.valid) >= n_valid or not len(proper):
            return found
        held_out = n_valid_of(int(proper[-1]))
        return found if held_out <= len(self.dataset.valid) else (int(proper[-1]) - held_out) / self.n_train

    def subgraph(self, fractions: Fractions, isolated: bool = False) -> Subgraph:
        """fractions[-1] of the triples; () is the whole graph. The others are the rounds before, of a warm start.
        isolated: no other triple joins the entities of one that it holds out."""
        return self._kept(fractions, isolated)

    def _subgraph(self, fractions: Fractions, isolated: bool) -> Subgraph:
        before = self._subgraph(fractions[:-1], False) if len(fractions) > 1 else None
        if not fractions or fractions[-1] >= 1 or (before is not None and before.whole):
            entities, relations = (np.arange(n, dtype=np.int32) for n in (self.n_entities, self.dataset.n_relations))
            return Subgraph(self.dataset, entities, relations, target=1.0, fraction=1.0, whole=True)
        return cut(
            self.dataset,
            self.peeling,
            fractions[-1],
            reduction=self.settings.reduction,
            seed=self.split_seed,
            guarded=self.settings.guarded_split,
            isolated=isolated,
            train_before=None if before is None else before.full_ids("train"),
            chain=self.chain,
        )
