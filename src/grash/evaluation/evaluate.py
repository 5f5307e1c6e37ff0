"""A model and a split become an `Evaluation`: which triples, which filter, which policy, then the numbers."""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from grash.data.arrays import in_blocks
from grash.data.dataset import Dataset, SplitName
from grash.data.known_answers import KnownAnswers
from grash.data.profile import CARDINALITIES, relation_cardinalities
from grash.data.triple_set import TripleSet
from grash.data.vocabulary import Vocabulary
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
    """Filtered ranking of the split's triples, both sides, against all entities.

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


# = Evaluation on another dataset than the one a model was trained on: its names are looked up among the model's.
# =
# = The ranking itself is `evaluate`; here triples are brought into the model's ids, and what cannot be is counted.

_log = logging.getLogger(__name__)
_ABSENT = -1
_ROWS = 1 << 20


def evaluate_other(
    model: KgeModel,
    own: Dataset,
    other: Dataset,
    *,
    split: Literal["valid", "test"] = "test",
    unseen: Unseen = "keep",
    **options: Any,
) -> Evaluation:
    """The evaluation of `other`'s split; the filter holds what both datasets know.

    A triple with a name that the model does not have cannot be ranked: with unseen="drop" it is left out and
    counted, with "keep" it is an error.
    """
    entity, relation = _lookup(own, other, "entities"), _lookup(own, other, "relations")
    names: tuple[SplitName, ...] = ("train", "valid") if split == "valid" else ("train", "valid", "test")
    mapped = {name: _mapped(other.split(name), entity, relation) for name in names}
    chosen = mapped[split]
    usable = (chosen != _ABSENT).all(1)
    n_unknown = int((~usable).sum())
    if n_unknown and unseen == "keep":
        example = _example(other, other.split(split)[~usable][0], entity, relation)
        raise InputError(
            f"{n_unknown:,} of the {len(chosen):,} {split} triples of {other.name} have names that the model does not "
            f"know, as {example}: give unseen=drop (--unseen drop) to leave them out."
        )
    facts = [own.split(n) for n in names if n != "train"] + [mapped[n] for n in names if n != split]
    judged = Dataset(
        train=own.train,
        valid=_whole(np.concatenate(facts)),
        test=_whole(chosen),
        n_entities=own.n_entities,
        n_relations=own.n_relations,
        entities=own.entities,
        relations=own.relations,
        name=other.name,
    )
    n_trained = _count_in(own.train, judged.test)
    if n_trained:
        _log.warning(
            "%s of the %s %s triples of %s stand in the train split of the model's own dataset %s: it was trained with "
            "them, and their ranks say little of new ones.",
            f"{n_trained:,}", f"{len(chosen):,}", split, other.name, own.name,
        )  # fmt: skip
    result = evaluate(model, judged, split="test", unseen=unseen, **options)
    return replace(
        result,
        split=split,
        filter=names,
        n_triples_in_split=len(chosen),
        n_unseen=result.n_unseen + n_unknown,
        n_trained=n_trained,
    )


def _count_in(train: NDArray[np.int32], triples: NDArray[np.int32]) -> int:
    """How many of the triples stand in train, which may be far larger."""
    asked = TripleSet(triples)
    shared = [block[asked.contains(block)] for _, block in in_blocks(train, _ROWS)]
    return int(np.count_nonzero(TripleSet(np.concatenate(shared)).contains(triples))) if shared else 0


def _lookup(own: Dataset, other: Dataset, kind: Literal["entities", "relations"]) -> NDArray[np.int64]:
    """For each id of `other` the model's id, or −1."""
    ours: Vocabulary | None = getattr(own, kind)
    theirs: Vocabulary | None = getattr(other, kind)
    count = other.n_entities if kind == "entities" else other.n_relations
    limit = own.n_entities if kind == "entities" else own.n_relations
    if ours is None and theirs is None:
        ids = np.arange(count)
        return np.where(ids < limit, ids, _ABSENT)
    if ours is None or theirs is None:
        without = f"the model's dataset {own.name}" if ours is None else other.name
        raise InputError(f"{without} has no names of {kind}, so {other.name} and the model cannot be matched by name.")
    found = (ours.find(name) for name in theirs)
    return np.fromiter((_ABSENT if i is None else i for i in found), np.int64, count)


def _mapped(triples: NDArray[np.int32], entity: NDArray[np.int64], relation: NDArray[np.int64]) -> NDArray[np.int32]:
    heads, relations, tails = triples.T
    return np.stack([entity[heads], relation[relations], entity[tails]], 1).astype(np.int32)


def _whole(triples: NDArray[np.int32]) -> NDArray[np.int32]:
    """Those whose names are all known."""
    return np.ascontiguousarray(triples[(triples != _ABSENT).all(1)])


def _example(other: Dataset, triple: NDArray[np.int32], entity: NDArray[np.int64], relation: NDArray[np.int64]) -> str:
    """The first unknown name of a triple."""
    parts = (
        ("entity", other.entities, entity, triple[0]),
        ("relation", other.relations, relation, triple[1]),
        ("entity", other.entities, entity, triple[2]),
    )
    for kind, names, lookup, i in parts:
        if lookup[i] == _ABSENT:
            return f"the {kind} {i if names is None else repr(names.name(int(i)))}"
    raise ValueError("every name is known")
