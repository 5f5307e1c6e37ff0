"""Search methods as real searches: `Live` trains what a method asks for, where `Recorded` looks it up in a table.

Comes from confirm.py (a candidate with a method), goes to methods.py. What was trained is in the store of a pool, so
a search that was stopped continues from there.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import cached_property
from types import SimpleNamespace
from typing import Any

import numpy as np

from grash.errors import InputError
from grash_study.pool import StudyGraphs
from grash_study.recorded import Scores
from grash_study.run import run_cells
from grash_study.store import Entry, Store, Technique, cells_on, rounded
from grash_study.table import GRAPHS

TECHNIQUES: dict[str, Technique] = {"kgtuner": "kgtuner", "autone": "walk"}  # the subgraphs of a method, if not cores


class Live:
    """A pool whose members are trained when a method asks for their scores, in place of a table (`Recorded`)."""

    valid_pairs_isolated = False  # a method validates on random triples

    def __init__(self, graphs: StudyGraphs, store: Store, *, device: str, technique: Technique = "core-order") -> None:
        pool = graphs.pool
        self.graphs, self.store, self.technique, self.device = graphs, store, technique, device
        self.n, self.members, self.max_epochs = pool.n, np.arange(pool.n), pool.settings.max_epochs
        self.n_entities, self.n_train = pool.dataset.n_entities, len(pool.dataset.train)
        self.fractions: Scores = np.array([*GRAPHS, 1.0])
        self.shape, self.smallest_fraction = graphs.search.shape, graphs.search.smallest_fraction

    @cached_property
    def table(self) -> SimpleNamespace:
        """What methods read of a table without a score: its configurations and the sizes of its graphs."""
        pool = self.graphs.pool
        entities, triples = np.array([*map(self._sizes, GRAPHS), (self.n_entities, self.n_train)]).T
        configurations = [c.values for c in pool.configurations]
        return SimpleNamespace(meta=pool.meta(), configurations=configurations, entities=entities, triples=triples)

    def _sizes(self, g: float) -> tuple[int, int]:
        """Return the entities and triples of a graph; zeros if no triple is left, as in `SearchGraphs.shape`."""
        try:
            data = self.graphs.graph(self.technique, g).dataset
        except InputError:
            return 0, 0
        return data.n_entities, len(data.train)

    def last_judge(self, g: float) -> Live:
        return self

    def scores(self, g: float, e: float) -> Asked:
        """Return the scores of members on a graph fraction after e of the epochs; NaN if diverged."""
        return Asked(lambda member: _score(self.trained(member, g, e), e))

    def part_seen(self, g: float, e: float) -> Asked:
        return Asked(lambda member: min(1.0, (self.trained(member, g, e).failed or math.inf) / e))

    @property
    def full_scores(self) -> Asked:
        """The best validations of full runs; NaN if diverged."""
        return Asked(lambda member: _best(self.trained(member, 1.0, 1.0)))

    def trained(self, member: int, g: float, e: float) -> Entry:
        """Return the training of a member, from the store or run now."""
        e, technique = rounded(e), self.technique if g < 1 else "whole"
        cells = cells_on(technique, g, [member], upto=e, also=(e / 2,))
        run_cells(self.graphs, cells, self.store, device=self.device)
        return self.store.entries[member, technique, rounded(g)]


class Asked:
    """Numbers by member, each computed when it is read, as an array of all members would have them."""

    def __init__(self, of: Callable[[int], float]) -> None:
        self.of = of

    def __getitem__(self, asked: int | Sequence[int]) -> Any:
        if isinstance(asked, int | np.integer):
            return self.of(int(asked))
        return np.array([self.of(int(member)) for member in asked])


def _score(entry: Entry, e: float) -> float:
    score = None if not entry.worked or entry.diverged_by(e) else entry.score(e)
    return math.nan if score is None else score


def _best(entry: Entry) -> float:
    return math.nan if entry.status != "ok" else max(mrr for _, mrr, _ in entry.curve)
