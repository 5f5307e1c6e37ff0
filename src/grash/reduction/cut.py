"""From a peeling to the subgraph of a given size: by the chain, to the triple, or by the ladder of whole cores.

Comes from peel.py; goes to the rounds of a search and to `grash reduce`.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import Literal

import numpy as np

from grash.data.dataset import Dataset
from grash.reduction.adjacency import Triples
from grash.reduction.chain import Chain, chain_of, first_with
from grash.reduction.holdout import Holdout, Part, longest_part, n_valid_of, target_of
from grash.reduction.peel import Peeling
from grash.reduction.subgraph import Subgraph, make_subgraph, whole_graph

Way = Literal["chain", "ladder"]


@dataclass(frozen=True)
class _Choice:
    part: Part | None  # None: the whole graph
    k: int
    fell_back: bool = False


def cut(
    dataset: Dataset,
    peeling: Peeling,
    fraction: float | Fraction,
    *,
    seed: int,
    way: Way = "chain",
    train_before: Triples | None = None,
    guarded: bool = True,
    apart: bool = False,
    names: bool = False,
    chain: Chain | None = None,
) -> Subgraph:
    """The largest subgraph whose train part is at most this fraction of the dataset's train triples.

    `chain`: the longest prefix of the peel order read backwards; one more entity would exceed the fraction.
    `ladder`: the largest k-core, as in the paper; where even the innermost is too large, the chain within it. If the
    whole graph without a validation part is small enough, it is taken whole, with the dataset's own valid.
    Only train is cut: valid and test of the dataset never enter a part of it. min(20 %, 5000) of the triples are held
    out for validation, unless (with `guarded`) an entity or relation would be left without a train triple, or (with
    `apart`) another triple joins the same two entities; train_before (m, 3), in ids of the full graph, stay in train.
    chain: chain_of(dataset, peeling), if it is at hand.
    """
    chain = chain if chain is not None else chain_of(dataset, peeling)
    holdout = Holdout(seed, guarded, train_before, apart)
    choice = _choose(dataset, chain, fraction, way, holdout)
    how = {"method": "kcore", "way": way, "count": peeling.count, "fraction": str(fraction), "seed": seed}
    how |= {"apart": True} if apart else {}
    if choice.part is None:
        return whole_graph(dataset, fraction, holdout, k=choice.k, how={"reduction": how})
    return make_subgraph(
        dataset, choice.part, fraction, k=choice.k, fell_back=choice.fell_back, names=names, how={"reduction": how}
    )


def smallest_fraction(
    dataset: Dataset, peeling: Peeling, *, n_entities: int, n_valid: int, chain: Chain | None = None
) -> float:
    """The smallest fraction whose chain subgraph has so many entities and validation triples, or 1.0.

    Held-out triples are counted as n_valid_of(all of its triples): the guard may take some back.
    """
    chain = chain if chain is not None else chain_of(dataset, peeling)
    enough_entities = first_with(chain, dataset, n_entities)
    enough_triples = int(np.searchsorted(chain.n_triples, _fewest_with(n_valid))) if n_valid else 0
    n, p = len(dataset.train), max(enough_entities, enough_triples)
    if p >= len(chain.n_triples) or chain.n_triples[p] >= n:
        return 1.0
    size = int(chain.n_triples[p])
    return max(1, size - n_valid_of(size)) / n


def _fewest_with(n_valid: int) -> float:
    """The smallest number of triples of which so many are held out."""
    fewest = (10 * n_valid - 5 + 1) // 2
    return fewest if n_valid_of(fewest) >= n_valid else np.inf


def _choose(dataset: Dataset, chain: Chain, fraction: float | Fraction, way: Way, holdout: Holdout) -> _Choice:
    n = len(dataset.train)
    target = target_of(fraction, n)
    if target >= n:
        return _Choice(None, chain.core_at(n))
    enters, sizes = (chain.enters, chain.n_triples) if way == "chain" else _rungs(chain)
    counts = {"n_entities": dataset.n_entities, "n_relations": dataset.n_relations}
    part = longest_part(dataset.train, enters, sizes, target, **counts, holdout=holdout)
    if len(part) == n:
        return _Choice(None, chain.core_at(n))
    if way == "ladder" and not len(part):
        part = longest_part(dataset.train, chain.enters, chain.n_triples, target, **counts, holdout=holdout)
        return _Choice(part, chain.core_at(len(part)), fell_back=True)
    return _Choice(part, chain.core_at(len(part)))


def _rungs(chain: Chain) -> tuple[np.ndarray, np.ndarray]:
    """The chain with whole cores as its only steps, the innermost first: enters (n,), n_triples (k_max + 2,)."""
    prefixes = (len(chain.peeling.order) - chain.peeling.core_starts)[::-1]
    return np.searchsorted(prefixes, chain.enters).astype(np.int32), chain.n_triples[prefixes]
