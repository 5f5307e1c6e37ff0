"""Evaluates a model on a split: selects the triples, ranks them with a filter, and computes the metrics.

`evaluate` uses a split of the model's own dataset. `evaluate_other` uses another dataset, whose names are looked up
among the model's names.

The metrics stand beside those of a baseline without a model: it ranks the entities by how often they are the tail (or
head) of the relation in train, and ignores the other entity of the question. A model that is not clearly better has
learned little more than these counts.
"""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from grash.data.arrays import TripleSet, in_blocks
from grash.data.candidates import SeenEntities
from grash.data.dataset import Dataset, SplitName
from grash.data.iris import find_name
from grash.data.known_answers import CARDINALITIES, KnownAnswers, expand, relation_cardinalities
from grash.errors import InputError
from grash.evaluation.metrics import (
    Evaluation,
    like_known_metrics,
    metrics_by_group,
    metrics_of,
    mrr_bounds,
    mrr_interval,
)
from grash.evaluation.ranking import Ranker, Ranks, SideRanks, rank_against_sample, rank_among
from grash.models import KgeModel
from grash.models.base import Side

Split = Literal["valid", "test"]
Unseen = Literal["keep", "drop"]

_log = logging.getLogger(__name__)
_ABSENT = -1
_BLOCK = 1 << 20  # triples of train looked up or counted at a time
_TABLE = 1 << 24  # relations times entities up to which all counts are stored: 128 MiB
_ANSWERS = 1 << 22  # known answers looked up at a time, about


def evaluate(
    model: KgeModel, dataset: Dataset, *, split: Split = "test", sample: int | None = None,
    candidates: int | None = None, like_known: bool = False, unseen: Unseen = "keep", detail: bool = True,
    seed: int = 0, work_bytes: int | None = None,
) -> Evaluation:  # fmt: skip
    """Rank the triples of a split on both sides, filtered, and return the metrics.

    The filter holds train, valid and the split itself, so test answers never influence a validation number.
    sample: size of a seeded sample of the triples. candidates: rank among that many drawn entities instead of all; the
    metrics then have other names. like_known: also rank among the entities seen on that side of the relation in train,
    in `Evaluation.like_known`. unseen: triples with an entity or relation not seen in training are ranked with
    untrained rows ("keep") or left out ("drop"); their number is reported either way.
    """
    if split not in ("valid", "test"):
        raise InputError(f"split={split!r} cannot be ranked: give valid or test.")
    if unseen not in ("keep", "drop"):
        raise InputError(f"unseen={unseen!r} is unknown: give keep or drop.")
    if candidates is not None and not 1 <= candidates < dataset.n_entities:
        raise InputError(
            f"candidates={candidates} is not possible: {dataset.name} has {dataset.n_entities:,} entities. Give a "
            f"number from 1 to {dataset.n_entities - 1:,}, or leave it out to rank against all entities."
        )
    triples, n_unseen = select_triples(dataset, split, sample, unseen, seed)
    if not len(triples):
        raise InputError(f"The {split} split of {dataset.name} has no triples to rank.")
    names = _filter_splits(split)
    known = KnownAnswers.of(*(dataset.split(n) for n in names), n_relations=dataset.n_relations, asked=triples)
    device = model.entity.device
    if candidates is None:
        ranks = Ranker(triples, known, dataset.n_entities, device).rank(model, work_bytes=work_bytes)
    else:
        ranks = rank_against_sample(model, triples, known, n_candidates=candidates, seed=seed, device=device)
    result = evaluation_of(
        ranks, dataset, split=split, unseen=unseen, n_unseen=n_unseen, filter=names, candidates=candidates,
        known=known if detail else None, seed=seed,
    )  # fmt: skip
    if not like_known:
        return result
    seen = SeenEntities(dataset)
    seen.read(np.unique(triples[:, 1]).tolist())
    return replace(result, like_known=like_known_metrics(rank_among(model, triples, known, seen, device=device), seen))


def evaluation_of(
    ranks: Ranks, dataset: Dataset, *, split: Split, unseen: Unseen, n_unseen: int, filter: tuple[SplitName, ...],
    candidates: int | None = None, known: KnownAnswers | None, seed: int,
) -> Evaluation:  # fmt: skip
    """Compute the metrics of ranks; with the known answers, also per relation and cardinality, and a baseline.

    n_unseen: number of unseen triples. filter: splits whose triples were left out as known answers. seed: seed of the
    bootstrap interval.
    """
    optimistic, pessimistic = mrr_bounds(ranks)
    result = Evaluation(
        split=split, both=metrics_of(ranks.head, ranks.tail), head=metrics_of(ranks.head), tail=metrics_of(ranks.tail),
        mrr_interval=mrr_interval(ranks, seed=seed), mrr_optimistic=optimistic, mrr_pessimistic=pessimistic,
        n_triples=len(ranks.triples), n_triples_in_split=len(dataset.split(split)), unseen=unseen, n_unseen=n_unseen,
        filter=filter, candidates=candidates,
    )  # fmt: skip
    if known is None:
        return result
    relations, ids = ranks.triples[:, 1], range(dataset.n_relations)
    cardinalities = relation_cardinalities(dataset.train, dataset.n_relations)[relations]
    names = [str(i) for i in ids] if dataset.relations is None else dataset.relations.names(ids)
    result = replace(
        result,
        per_relation=metrics_by_group(ranks, relations, names),
        per_cardinality=metrics_by_group(ranks, cardinalities, list(CARDINALITIES)),
    )
    if candidates is not None:  # the baseline is ranked against all entities
        return result
    frequent = frequency_ranks(ranks.triples, dataset.train, known, n_entities=dataset.n_entities)
    by_relation = {name: m.mrr for name, m in metrics_by_group(frequent, relations, names).items()}
    return replace(result, baseline=metrics_of(frequent.head, frequent.tail), baseline_per_relation=by_relation)


def select_triples(
    dataset: Dataset, split: Split, sample: int | None, unseen: Unseen, seed: int
) -> tuple[NDArray[np.int32], int]:
    """Return the triples to rank, and the number of unseen ones."""
    triples = dataset.split(split)
    if unseen == "drop":
        absent = unseen_rows(dataset, triples)
        return sample_triples(triples[~absent], sample, seed), int(absent.sum())
    triples = sample_triples(triples, sample, seed)
    return triples, int(unseen_rows(dataset, triples).sum())


def unseen_rows(dataset: Dataset, triples: NDArray[np.int32]) -> NDArray[np.bool_]:
    """(n, 3) → (n,): whether a triple has an entity or relation not seen in training."""
    entity = np.zeros(dataset.n_entities, bool)
    entity[dataset.train[:, 0]] = entity[dataset.train[:, 2]] = True
    relation = np.zeros(dataset.n_relations, bool)
    relation[dataset.train[:, 1]] = True
    return ~(entity[triples[:, 0]] & relation[triples[:, 1]] & entity[triples[:, 2]])


def sample_triples(triples: NDArray[np.int32], n: int | None, seed: int) -> NDArray[np.int32]:
    """Return a seeded sample of n triples in their order, or all triples."""
    check_sample(n)
    if n is None or n >= len(triples):
        return triples
    chosen = np.random.default_rng(seed).choice(len(triples), n, replace=False)
    return triples[np.sort(chosen)]


def check_sample(n: int | None) -> None:
    """Raise an error unless n is a possible size of a sample, or None."""
    if n is not None and (n < 1 or int(n) != n):
        raise InputError(f"A sample of {n} triples is not possible: give 1 or more.")


def _filter_splits(split: Split) -> tuple[SplitName, ...]:
    return ("train", "valid") if split == "valid" else ("train", "valid", "test")


def evaluate_other(
    model: KgeModel, own: Dataset, other: Dataset, *, split: Split = "test", unseen: Unseen = "keep", **options: Any
) -> Evaluation:
    """Evaluate the model of the dataset `own` on a split of `other`; the filter holds the triples of both.

    A triple with a name unknown to the model cannot be ranked: unseen="drop" leaves it out, "keep" is an error.
    """
    entity, relation = _lookup(own, other, "entities"), _lookup(own, other, "relations")
    names = _filter_splits(split)
    mapped = {name: _mapped(other.split(name), entity, relation) for name in names}
    chosen = mapped[split]
    usable = (chosen != _ABSENT).all(1)
    n_unknown = int((~usable).sum())
    if n_unknown and unseen == "keep":
        example = _example(other, other.split(split)[~usable][0], entity, relation)
        raise InputError(
            f"{n_unknown:,} of the {len(chosen):,} {split} triples of {other.name} have names unknown to the model, "
            f"e.g. {example}: give unseen=drop (--unseen drop) to leave them out."
        )
    facts = [own.split(n) for n in names if n != "train"] + [mapped[n] for n in names if n != split]
    valid, test = (np.ascontiguousarray(t[(t != _ABSENT).all(1)]) for t in (np.concatenate(facts), chosen))
    mapped_dataset = replace(own, valid=valid, test=test, name=other.name)
    n_trained = _count_in(own.train, test)
    if n_trained:
        _log.warning(
            f"{n_trained:,} of the {len(chosen):,} {split} triples of {other.name} are in the train split of "
            f"{own.name}: the model was trained on them, so their ranks say little about new triples."
        )
    result = evaluate(model, mapped_dataset, split="test", unseen=unseen, **options)
    n_unseen = result.n_unseen + n_unknown
    return replace(
        result, split=split, filter=names, n_triples_in_split=len(chosen), n_unseen=n_unseen, n_trained=n_trained
    )


def _count_in(train: NDArray[np.int32], triples: NDArray[np.int32]) -> int:
    """Count the triples that are in train, which may be much larger."""
    wanted = TripleSet(triples)
    shared = [block[wanted.contains(block)] for _, block in in_blocks(train, _BLOCK)]
    return int(np.count_nonzero(TripleSet(np.concatenate(shared)).contains(triples))) if shared else 0


def _lookup(own: Dataset, other: Dataset, kind: Literal["entities", "relations"]) -> NDArray[np.int64]:
    """Return the model's id for each id of `other`, or −1."""
    ours, theirs = getattr(own, kind), getattr(other, kind)
    limit, count = getattr(own, f"n_{kind}"), getattr(other, f"n_{kind}")
    if ours is None and theirs is None:
        ids = np.arange(count)
        return np.where(ids < limit, ids, _ABSENT)
    if ours is None or theirs is None:
        unnamed = f"the model's dataset {own.name}" if ours is None else other.name
        raise InputError(f"{unnamed} has no names of {kind}, so {other.name} and the model cannot be matched by name.")
    found = (find_name(name, ours) for name in theirs)
    return np.fromiter((_ABSENT if i is None else i for i in found), np.int64, count)


def _mapped(triples: NDArray[np.int32], entity: NDArray[np.int64], relation: NDArray[np.int64]) -> NDArray[np.int32]:
    heads, relations, tails = triples.T
    return np.stack([entity[heads], relation[relations], entity[tails]], 1).astype(np.int32)


def _example(other: Dataset, triple: NDArray[np.int32], entity: NDArray[np.int64], relation: NDArray[np.int64]) -> str:
    """Return the first unknown name of a triple."""
    parts = [("entity", other.entities, entity), ("relation", other.relations, relation)]
    kind, names, i = next((k, n, i) for (k, n, ids), i in zip([*parts, parts[0]], triple) if ids[i] == _ABSENT)
    return f"the {kind} {i if names is None else repr(names.name(int(i)))}"


def frequency_ranks(
    triples: NDArray[np.int32], train: NDArray[np.int32], known: KnownAnswers, *, n_entities: int
) -> Ranks:
    """Return the filtered ranks of triples (n, 3) if candidates are ordered by their frequency in train.

    Takes one pass over train and a sort of the triples whose relation is asked for.
    """
    sides = [_side_ranks(triples, train, known, side, n_entities) for side in ("head", "tail")]
    return Ranks(triples, *sides)


def _side_ranks(
    triples: NDArray[np.int32], train: NDArray[np.int32], known: KnownAnswers, side: Side, n_entities: int
) -> SideRanks:
    answer, index = (0 if side == "head" else 2), known.of_side(side)
    counts = _Frequencies(train, np.unique(triples[:, 1]), answer, n_entities)
    relations, answers = triples[:, 1].astype(np.int64), triples[:, answer].astype(np.int64)
    own = counts.of(relations, answers)
    above, ties = counts.above_and_ties(relations, own)
    others = np.full(len(triples), n_entities - 1)
    # the known answers of a question are looked up once, however many triples ask it
    n_relations = index.n_relations
    questions, asked = np.unique(triples[:, 2 - answer].astype(np.int64) * n_relations + relations, return_inverse=True)
    order = np.argsort(asked, kind="stable")
    first, n_known = index.runs(*np.divmod(questions, n_relations))
    ends = np.flatnonzero(np.diff(np.cumsum(n_known) // _ANSWERS, append=-1)) + 1
    for start, stop in zip([0, *ends.tolist()], ends.tolist()):
        rows, filtered = expand(first[start:stop], n_known[start:stop], index.answers)
        by_id, limit = rows * n_entities + filtered, counts.limit
        often = counts.of(questions[start + rows] % n_relations, filtered.astype(np.int64))
        by_count = np.sort(rows * limit + often)
        here = order[slice(*np.searchsorted(asked[order], (start, stop)))]
        row = asked[here] - start
        itself = _contains(by_id, row * n_entities + answers[here])
        begin, low, high, end = (
            np.searchsorted(by_count, row * limit + count) for count in (0, own[here], own[here] + 1, limit)
        )
        above[here] -= end - high
        ties[here] -= high - low - itself
        others[here] -= end - begin - itself
    return SideRanks(above, ties, others)


def _contains(ascending: NDArray[np.int64], wanted: NDArray[np.int64]) -> NDArray[np.bool_]:
    return np.append(ascending, -1)[np.searchsorted(ascending, wanted)] == wanted


class _Frequencies:
    """How often each entity answers each of some relations in train."""

    def __init__(self, train: NDArray[np.int32], relations: NDArray[np.int32], answer: int, n_entities: int) -> None:
        wanted = np.zeros(int(max(train[:, 1].max(initial=0), relations.max(initial=0))) + 1, bool)
        wanted[relations] = True
        keys = [np.empty(0, np.int64)]
        for _, block in in_blocks(train, _BLOCK):
            chosen = block[wanted[block[:, 1]]]
            keys.append(chosen[:, 1].astype(np.int64) * n_entities + chosen[:, answer])
        self.n_entities = n_entities
        found = np.concatenate(keys)  # relation · E + entity
        self.table: NDArray[np.int64] | None = None
        if (size := len(wanted) * n_entities) <= _TABLE:
            self.table = np.bincount(found, minlength=size)
            self.keys = np.flatnonzero(self.table)
            self.counts = self.table[self.keys]
        else:
            self.keys, self.counts = np.unique(found, return_counts=True)
        self.limit = int(self.counts.max(initial=0)) + 1
        self.sorted = np.sort(self.keys // n_entities * self.limit + self.counts)  # relation, then count

    def of(self, relations: NDArray[np.int64], entities: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the frequencies (n,) of entities (n,) as answers of relations (n,)."""
        wanted = relations * self.n_entities + entities
        if self.table is not None:
            return self.table[wanted]
        position = np.minimum(np.searchsorted(self.keys, wanted), max(0, len(self.keys) - 1))
        if not len(self.keys):
            return np.zeros(len(wanted), np.int64)
        return np.where(self.keys[position] == wanted, self.counts[position], 0)

    def above_and_ties(
        self, relations: NDArray[np.int64], counts: NDArray[np.int64]
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return how many entities are more frequent, and how many others are as frequent: (n,), (n,)."""
        first, last = (np.searchsorted(self.sorted, r * self.limit) for r in (relations, relations + 1))
        below, upto = (np.searchsorted(self.sorted, relations * self.limit + counts + more) for more in (0, 1))
        never = self.n_entities - (last - first)
        return last - upto, np.where(counts > 0, upto - below, never) - 1
