"""A model and a split become an `Evaluation`: which triples, which filter, which policy, then the numbers."""

from __future__ import annotations

from typing import Literal

import numpy as np
from numpy.typing import NDArray

from grash.data.dataset import Dataset, SplitName
from grash.data.describe import CARDINALITIES, relation_cardinalities
from grash.data.known import KnownAnswers
from grash.errors import InputError
from grash.evaluation.metrics import Evaluation, grouped, metrics_of, mrr_bounds, mrr_interval
from grash.evaluation.ranking import Ranker, Ranks, rank_against_sample
from grash.models import KgeModel

Unseen = Literal["keep", "drop"]


def evaluate(
    model: KgeModel,
    dataset: Dataset,
    *,
    split: Literal["valid", "test"] = "test",
    sample: int | None = None,
    candidates: int | None = None,
    unseen: Unseen = "keep",
    detail: bool = True,
    seed: int = 0,
    work_bytes: int | None = None,
) -> Evaluation:
    """Filtered ranking of the split's triples, both slots, against all entities.

    filter: train, valid and the split itself, so test answers never influence a validation number. sample: a seeded
    sample of that many triples. candidates: rank among that many drawn entities instead (other names for the
    metrics, other meaning). unseen: triples with an entity or relation that is not in train are ranked with their
    untrained rows ("keep") or left out ("drop"); either way they are counted.
    """
    _check(split, unseen, candidates, dataset)
    triples, n_unseen = chosen_triples(dataset, split, sample, unseen, seed)
    if not len(triples):
        raise InputError(f"The {split} split of {dataset.name} has no triples to rank.")
    names: tuple[SplitName, ...] = ("train", "valid") if split == "valid" else ("train", "valid", "test")
    known = KnownAnswers.of(*(dataset.split(n) for n in names), n_relations=dataset.n_relations, asked=triples)
    device = model.entity.device
    if candidates is None:
        ranks = Ranker(triples, known, dataset.n_entities, device).rank(model, work_bytes=work_bytes)
    else:
        ranks = rank_against_sample(model, triples, known, n_candidates=candidates, seed=seed, device=device)
    return evaluation_of(
        ranks, dataset, split=split, unseen=unseen, n_unseen=n_unseen, filter=names, candidates=candidates,
        detail=detail, seed=seed,
    )  # fmt: skip


def evaluation_of(
    ranks: Ranks,
    dataset: Dataset,
    *,
    split: Literal["valid", "test"],
    unseen: Unseen,
    n_unseen: int,
    filter: tuple[SplitName, ...],
    candidates: int | None = None,
    detail: bool = True,
    seed: int,
) -> Evaluation:
    """The numbers of ranks, with what was ranked and how; with `detail`, also per relation and cardinality.

    n_unseen: triples counted as unseen. filter: the splits whose triples were no wrong answers. seed: of the interval.
    """
    optimistic, pessimistic = mrr_bounds(ranks)
    groups = {}
    if detail:
        relations = ranks.triples[:, 1]
        kinds = relation_cardinalities(dataset.train, dataset.n_relations)
        groups = {
            "per_relation": grouped(ranks, relations, relation_names(dataset)),
            "per_cardinality": grouped(ranks, kinds[relations], list(CARDINALITIES)),
        }
    return Evaluation(
        split=split,
        both=metrics_of(ranks.head, ranks.tail),
        head=metrics_of(ranks.head),
        tail=metrics_of(ranks.tail),
        mrr_interval=mrr_interval(ranks, seed=seed),
        mrr_optimistic=optimistic,
        mrr_pessimistic=pessimistic,
        n_triples=len(ranks.triples),
        n_triples_in_split=len(dataset.split(split)),
        unseen=unseen,
        n_unseen=n_unseen,
        filter=filter,
        candidates=candidates,
        **groups,  # type: ignore[arg-type]  # of two named fields
    )


def _check(split: str, unseen: str, candidates: int | None, dataset: Dataset) -> None:
    if split not in ("valid", "test"):
        raise InputError(f"split={split!r} cannot be ranked: give valid or test.")
    if unseen not in ("keep", "drop"):
        raise InputError(f"unseen={unseen!r} is unknown: give keep or drop.")
    if candidates is not None and not 1 <= candidates < dataset.n_entities:
        raise InputError(
            f"candidates={candidates} was asked for, and {dataset.name} has {dataset.n_entities:,} entities: give a "
            f"number from 1 to {dataset.n_entities - 1:,}, or leave it out to rank against all."
        )


def check_sample(n: int | None) -> None:
    if n is not None and (n < 1 or int(n) != n):
        raise InputError(f"A sample of {n} triples was asked for: give 1 or more.")


def sampled(triples: NDArray[np.int32], n: int | None, seed: int) -> NDArray[np.int32]:
    """A seeded sample of n triples in their order, or all of them."""
    check_sample(n)
    if n is None or n >= len(triples):
        return triples
    chosen = np.random.default_rng(seed).choice(len(triples), n, replace=False)
    return triples[np.sort(chosen)]


def unseen_rows(dataset: Dataset, triples: NDArray[np.int32]) -> NDArray[np.bool_]:
    """(n,) whether a triple has an entity or relation that no train triple has."""
    entity = np.zeros(dataset.n_entities, bool)
    entity[dataset.train[:, 0]] = entity[dataset.train[:, 2]] = True
    relation = np.zeros(dataset.n_relations, bool)
    relation[dataset.train[:, 1]] = True
    return ~(entity[triples[:, 0]] & relation[triples[:, 1]] & entity[triples[:, 2]])


def chosen_triples(
    dataset: Dataset, split: Literal["valid", "test"], sample: int | None, unseen: Unseen, seed: int
) -> tuple[NDArray[np.int32], int]:
    triples = dataset.split(split)
    absent = unseen_rows(dataset, triples)
    if unseen == "drop":
        return sampled(triples[~absent], sample, seed), int(absent.sum())
    triples = sampled(triples, sample, seed)
    return triples, int(unseen_rows(dataset, triples).sum())


def relation_names(dataset: Dataset) -> list[str]:
    if dataset.relations is None:
        return [str(i) for i in range(dataset.n_relations)]
    return dataset.relations.names(range(dataset.n_relations))
