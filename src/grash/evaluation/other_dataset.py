"""Evaluation on another dataset than the one a model was trained on: its names are looked up among the model's.

The ranking itself is `evaluate`; here triples are brought into the model's ids, and what cannot be is counted.
"""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from grash.data.arrays import in_blocks
from grash.data.dataset import Dataset, SplitName
from grash.data.duplicates import TripleSet
from grash.data.vocabulary import Vocabulary
from grash.errors import InputError
from grash.evaluation.evaluate import Unseen, evaluate
from grash.evaluation.metrics import Evaluation
from grash.models import KgeModel

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
