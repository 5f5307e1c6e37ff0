"""Reasons for an answer: short paths between head and tail, similar known triples, and statistics of the relation.

Everything comes from train, without the triple itself. The support of a known triple is how far the answer's score
falls when one gradient step lowers the score of that triple by 1: a fast approximation of training again without it
(gradient similarity; Bhardwaj et al., 2021). It is evidence of what the model relies on, not a proof. Comes from a
Model, goes to `grash explain` and the page of `grash serve`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from itertools import zip_longest
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from grash.data.arrays import Triples, in_blocks
from grash.formatting import html_table, printable
from grash.kernels.pair_scores import row_gradients
from grash.kernels.storage import to_float32
from grash.models import KgeModel

Ids = tuple[int, int, int]  # head, relation, tail
Names = tuple[str, str, str]

_ROWS = 1 << 20  # triples per block
_MAX_AROUND = 4096  # triples around an end that are considered; of a larger number, an even selection
_MAX_SAME = 1 << 16  # triples of the relation that are compared; of a larger number, an even selection
_MAX_PATHS = 4096
_SIMILAR = 64  # of the triples of the relation, those nearest by embeddings


@dataclass(frozen=True)
class Reason:
    """Known triples that support an answer."""

    kind: Literal["path", "similar"]  # a path from head to tail; or a triple of the same relation with similar ends
    triples: tuple[Names, ...]
    support: float  # fall of the answer's score when that of the triple is lowered by 1; of a path, its weaker end
    n_alike: int = 1  # paths with the same relations, of which this is the best

    def text(self) -> str:
        """Return the triples in one line."""
        more = f" (and {self.n_alike - 1:,} more such paths)" if self.n_alike > 1 else ""
        return "; ".join(" · ".join(step) for step in self.triples) + more


@dataclass(frozen=True)
class TypeShare:
    """A type of the answer's head or tail, and the share of the relation's entities on that side that have it."""

    side: Literal["head", "tail"]
    type: str
    share: float


@dataclass(frozen=True)
class RelationStatistics:
    """What train knows about a relation and the two ends of an answer."""

    n_triples: int
    n_heads: int  # different heads
    n_tails: int
    head_seen: int  # triples of the relation with the answer's head
    tail_seen: int  # triples of the relation with the answer's tail
    types: tuple[TypeShare, ...] = ()  # where a relation such as rdf:type gives types


@dataclass(frozen=True, repr=False)
class Explanation:
    """The reasons for a triple, and statistics of its relation. Paths and similar triples take turns, best first."""

    head: str
    relation: str
    tail: str
    score: float
    known: bool  # whether the dataset has the triple; it is not among its own reasons
    reasons: tuple[Reason, ...]
    statistics: RelationStatistics

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    def title(self) -> str:
        """Return the triple with its score."""
        known = ", known" if self.known else ""
        return f"{self.head} · {self.relation} · {self.tail}: score {self.score:.4g}{known}"

    def rows(self) -> list[tuple[int, str, float, str]]:
        """Return number, kind, support and triples of each reason."""
        return [(i, reason.kind, reason.support, reason.text()) for i, reason in enumerate(self.reasons, 1)]

    def __repr__(self) -> str:
        lines = [f"{i:>3}  {kind:<7}  {support:>9.4g}  {text}" for i, kind, support, text in self.rows()]
        return "\n".join(printable(line) for line in (self.title(), *(lines or ["no reasons"])))

    def _repr_html_(self) -> str:
        several = len({reason.kind for reason in self.reasons}) > 1
        below = "Paths and similar triples take turns, each ordered by support." if several else ""
        return html_table(self.title(), ("", "kind", "support", "known triples"), self.rows(), below=below)


@dataclass(frozen=True)
class FoundReason:
    """A reason by ids."""

    kind: Literal["path", "similar"]
    triples: tuple[Ids, ...]
    support: float
    n_alike: int = 1


@dataclass(frozen=True, eq=False)
class Surroundings:
    """Triples of train that touch an answer, without the answer itself, each (n, 3)."""

    around_head: Triples
    around_tail: Triples
    same_relation: Triples
    statistics: RelationStatistics


def find_reasons(kge: KgeModel, train: Triples, triple: Ids, near: Surroundings, k: int) -> list[FoundReason]:
    """Return up to k reasons. Paths and similar triples take turns, each by support, so that neither hides the other.

    Of the paths with the same relations, only the best is a reason, with the number of such paths.
    """
    paths = find_paths(near, triple, train)
    similar = [_ids(row) for row in nearest_triples(kge, near.same_relation, triple).tolist()]
    needed = sorted({step for path in paths for step in path} | set(similar))
    values = dict(zip(needed, support(kge, triple, needed)))
    alike = Counter(_pattern(path) for path in paths)
    best: dict[tuple[int, ...], FoundReason] = {}
    for path in paths:
        value = min(values[path[0]], values[path[-1]])
        if _pattern(path) not in best or value > best[_pattern(path)].support:
            best[_pattern(path)] = FoundReason("path", path, value, alike[_pattern(path)])
    singles = [FoundReason("similar", (step,), values[step]) for step in similar]
    ranked = (sorted(found, key=lambda r: (-r.support, r.triples)) for found in (best.values(), singles))
    turns = (reason for pair in zip_longest(*ranked) for reason in pair if reason is not None)
    return list(turns)[:k]


def _pattern(path: tuple[Ids, ...]) -> tuple[int, ...]:
    return tuple(relation for _, relation, _ in path)


def _ids(row: list[int]) -> Ids:
    return row[0], row[1], row[2]


def surroundings(train: Triples, triple: Ids) -> Surroundings:
    """Find in one pass over train what touches the triple (h, r, t): triples with h, with t, or with r."""
    h, r, t = triple
    parts: tuple[list[Triples], ...] = ([], [], [])
    for _, block in in_blocks(train, _ROWS):
        heads, relations, tails = block.T
        for found, mask in zip(parts, ((heads == h) | (tails == h), (heads == t) | (tails == t), relations == r)):
            found.append(block[mask])
    around_head, around_tail, same = (np.concatenate([train[:0], *found]) for found in parts)
    statistics = RelationStatistics(
        n_triples=len(same),
        n_heads=len(np.unique(same[:, 0])),
        n_tails=len(np.unique(same[:, 2])),
        head_seen=int((same[:, 0] == h).sum()),
        tail_seen=int((same[:, 2] == t).sum()),
    )
    around_head, around_tail, same = (found[~(found == triple).all(1)] for found in (around_head, around_tail, same))
    close = (same[:, 0] == h) | (same[:, 2] == t)  # all of these, and a selection of the others
    same = np.concatenate([_evenly(same[close], _MAX_SAME), _evenly(same[~close], _MAX_SAME)])
    return Surroundings(_evenly(around_head, _MAX_AROUND), _evenly(around_tail, _MAX_AROUND), same, statistics)


def find_paths(near: Surroundings, triple: Ids, train: Triples) -> list[tuple[Ids, ...]]:
    """Return paths of one or two triples from head to tail, against or along their directions; of three if none."""
    h, _, t = triple
    from_head, from_tail = _by_other_end(near.around_head, h), _by_other_end(near.around_tail, t)
    paths: list[tuple[Ids, ...]] = [(step,) for step in from_head.get(t, [])]
    for middle in sorted((from_head.keys() & from_tail.keys()) - {h, t}):
        pairs = ((first, last) for first in from_head[middle] for last in from_tail[middle])
        paths += [pair for pair in pairs if pair[0] != pair[1]]  # if head is tail, one triple leads there and back
    if not paths:
        paths = list(_long_paths(from_head, from_tail, train, {h, t}))
    return paths[:_MAX_PATHS]


def type_shares(train: Triples, triple: Ids, type_relation: int) -> list[tuple[Literal["head", "tail"], int, float]]:
    """Return (side, type, share): the types of both ends, and how many of the relation's entities there have them."""
    parts = [block[(block[:, 1] == type_relation) | (block[:, 1] == triple[1])] for _, block in in_blocks(train, _ROWS)]
    found = np.concatenate([train[:0], *parts])
    typed, same = (found[found[:, 1] == r] for r in (type_relation, triple[1]))
    shares = []
    for side, column in (("head", 0), ("tail", 2)):
        seen = np.unique(same[:, column])
        for kind in np.unique(typed[typed[:, 0] == triple[column], 2]).tolist():
            have = np.intersect1d(seen, typed[typed[:, 2] == kind, 0])
            shares.append((side, kind, len(have) / max(1, len(seen))))
    return shares  # type: ignore[return-value]


def _long_paths(
    from_head: dict[int, list[Ids]],
    from_tail: dict[int, list[Ids]],
    train: Triples,
    ends: set[int],
) -> Iterable[tuple[Ids, ...]]:
    """Yield paths of three triples, found in another pass over train."""
    near_head, near_tail = (np.array(sorted(x.keys() - ends), np.int64) for x in (from_head, from_tail))
    n_found = 0
    for _, block in in_blocks(train, _ROWS):
        for a, b in ((0, 2), (2, 0)):
            mask = np.isin(block[:, a], near_head) & np.isin(block[:, b], near_tail) & (block[:, 0] != block[:, 2])
            for step in map(_ids, block[mask].tolist()):
                for first in from_head[step[a]]:
                    for last in from_tail[step[b]]:
                        n_found += 1
                        if n_found > _MAX_PATHS:
                            return
                        yield first, step, last


def _by_other_end(triples: Triples, end: int) -> dict[int, list[Ids]]:
    found: dict[int, list[Ids]] = {}
    for h, r, t in triples.tolist():
        found.setdefault(t if h == end else h, []).append((h, r, t))
    return found


def _evenly(triples: Triples, n: int) -> Triples:
    if len(triples) <= n:
        return triples
    return triples[np.linspace(0, len(triples) - 1, n).astype(np.int64)]


def nearest_triples(kge: KgeModel, triples: Triples, triple: Ids) -> Triples:
    """Return the triples whose head and tail are nearest to the given ones, by the sum of two cosines."""
    near = np.zeros(len(triples))
    for end, column in ((triple[0], 0), (triple[2], 2)):
        ids, places = np.unique(triples[:, column], return_inverse=True)
        rows = to_float32(kge.entity[torch.from_numpy(ids.astype(np.int64)).to(kge.entity.device)])
        own = to_float32(kge.entity[end : end + 1])
        near += torch.nn.functional.cosine_similarity(rows, own).cpu().numpy()[places]
    return triples[np.argsort(-near, kind="stable")[:_SIMILAR]]


def support(kge: KgeModel, triple: Ids, others: list[Ids]) -> list[float]:
    """Return how far the score of `triple` falls when a gradient step lowers the score of another by 1, for each.

    The step along the gradient g of the other score has the length 1 / |g|², so the fall is g·g' / |g|², where g' is
    the gradient of the answer's score. Only rows that both use count.
    """
    if not others:
        return []
    ids = np.array(others, np.int64).reshape(-1, 3)
    own, rows = _gradients(kge, np.array([triple], np.int64)), _gradients(kge, ids)
    products, squares = torch.zeros(len(ids)), torch.zeros(len(ids))
    for name, part in rows.items():
        squares += part.square().sum(1)
        column = {"head": 0, "tail": 2}.get(name, 1)
        for own_name in ("head", "tail") if column != 1 else (name,):
            own_id = triple[{"head": 0, "tail": 2}.get(own_name, 1)]
            shared = torch.from_numpy(ids[:, column] == own_id)
            products += torch.where(shared, part @ own[own_name][0], 0)
    return torch.where(squares > 0, products / squares, 0).tolist()


def _gradients(kge: KgeModel, triples: NDArray[np.int64]) -> dict[str, Tensor]:
    """triples (n, 3) → gradients of their scores for the rows they use: head, tail, relation, inverse; on the CPU.

    With reciprocal relations, the score is the mean of both directions.
    """
    heads, relations, tails = torch.from_numpy(triples.T.copy()).to(kge.entity.device)
    head, tail = to_float32(kge.entity[heads]), to_float32(kge.entity[tails])
    for_head, for_relation, for_tail = _one_direction(kge, head, kge.relation[relations], tail)
    found = {"head": for_head, "tail": for_tail, "relation": for_relation}
    if kge.reciprocal:
        back_tail, back_relation, back_head = _one_direction(kge, tail, kge.relation[relations + kge.n_relations], head)
        found = {"head": for_head + back_head, "tail": for_tail + back_tail}
        found |= {"relation": for_relation, "inverse": back_relation}
    return {name: part.cpu() / (2 if kge.reciprocal else 1) for name, part in found.items()}


def _one_direction(kge: KgeModel, known: Tensor, relation: Tensor, answer: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return the gradients of tail scores for known, relation and answer rows."""
    queries, to_rows = kge.query_forward(known, relation, "tail")
    candidates, to_answer = kge.candidate_forward(answer, "tail")
    ones = queries.new_ones(len(queries))
    for_query, for_candidate = row_gradients(queries, candidates, ones, kge.pair_of("tail"))
    return (*to_rows(for_query), to_answer(for_candidate))
