"""The graphs of a study: a technique and a fraction of the train triples give a subgraph, as a search would cut it.

Comes from pool.py; goes to run.py. `chain` and `ladder` are the subgraphs of a search with the same settings, with the
same validation triples; `apart` is the chain's as a last round has it that holds out triples like valid; the others are
the paper's comparisons (Sec. 4.1).
"""

from __future__ import annotations

from functools import lru_cache

from grash.errors import InputError
from grash.reduction.sampling import kgtuner_walk, random_walks, sample_triples
from grash.reduction.subgraph import Subgraph, max_train_triples
from grash.search.graphs import SearchGraphs
from grash.search.schedule import MIN_VALID, min_entities, round_config
from grash.search.trial import Round
from grash.training.config import TrainConfig
from grash_study.cells import Technique
from grash_study.pool import Pool

_SMALL = 2_000_000  # train triples
_HALVINGS = 12  # of the share of entities that a walk of KGTuner's is given


class StudyGraphs:
    """Makes the graph of a cell; the last few are kept."""

    def __init__(self, pool: Pool) -> None:
        self.pool = pool
        self._chain = SearchGraphs(pool.dataset, pool.settings)
        self._ladder = SearchGraphs(pool.dataset, pool.settings.model_copy(update={"reduction": "k-core"}))
        small = len(pool.dataset.train) < _SMALL
        self.graph = lru_cache(maxsize=64 if small else 2)(self._graph)  # to plan and to run without cutting twice

    @property
    def search(self) -> SearchGraphs:
        """The graphs of a search with the pool's settings."""
        return self._chain

    def rails(self) -> dict[str, float]:
        """What the guard rails of a search ask of a graph here, and the smallest fraction that has it."""
        entities = min_entities(self._chain)
        return {
            "n_entities": entities, "n_valid": MIN_VALID,
            "fraction": self._chain.smallest_fraction(entities, MIN_VALID),
        }  # fmt: skip

    def _graph(self, technique: Technique, fraction: float) -> Subgraph:
        data, seed = self.pool.dataset, self._chain.split_seed
        if technique == "whole":
            return self._chain.subgraph(())
        if technique == "core-order":
            return self._chain.subgraph((fraction,))
        if technique == "isolated":
            return self._chain.subgraph((fraction,), True)
        if technique == "k-core":
            self._ladder.share_cores(self._chain)
            return self._ladder.subgraph((fraction,))
        if technique == "triples":
            return sample_triples(data, fraction, seed=seed)
        if technique == "walk":
            return random_walks(data, fraction, seed=seed)
        return kgtuner_graph(self.pool, fraction, seed=seed)


def kgtuner_graph(pool: Pool, fraction: float, *, seed: int) -> Subgraph:
    """KGTuner's walk with the largest share of entities (of 2¹² halvings) whose train part is at most the fraction.

    Its own setting is a share of entities; here it is bought the same number of triples as the other techniques.
    """
    data = pool.dataset
    target = max_train_triples(fraction, len(data.train))
    low, high, found = 0.0, 1.0, None
    for _ in range(_HALVINGS):
        share = (low + high) / 2
        try:
            walked = kgtuner_walk(data, share, seed=seed)
        except InputError:  # so few entities that no triple is among them
            low = share
            continue
        if len(walked.dataset.train) <= target:
            low, found = share, walked
        else:
            high = share
    if found is None:
        raise InputError(f"No walk leaves {target:,} triples of {data.name} or fewer: give a larger fraction.")
    return found


def config_on(graph: Subgraph, pool: Pool, number: int, upto: float) -> TrainConfig:
    """A configuration's training on a graph for a share of the epochs, negatives and penalties as in a search."""
    epochs = upto * pool.settings.max_epochs
    return round_config(pool.config(number), _as_round(graph, pool), pool.settings).changed(
        epochs=epochs, valid_every=epochs
    )


def _as_round(graph: Subgraph, pool: Pool) -> Round:
    data = graph.dataset
    how = data.provenance.get("reduction", {})
    share = (
        graph.target if how.get("reduction") == "core-order" else graph.fraction
    )  # but for one entity the same, as in tables
    return Round(
        number=1, n_trials=1, share=1.0, fidelity=1.0, graph_fraction=share, epoch_fraction=1.0, fractions=(),
        whole=graph.whole, k=graph.k, n_entities=data.n_entities, n_relations=data.n_relations,
        n_train=len(data.train), n_valid=len(data.valid), entity_share=data.n_entities / pool.dataset.n_entities,
        positives=len(data.train), continues=False, cost=0.0, isolated=how.get("isolated", False),
    )  # fmt: skip
