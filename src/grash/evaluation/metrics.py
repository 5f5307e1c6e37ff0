"""Metrics of ranks: MRR, mean rank, AMRI and Hits@k, per side, relation and cardinality.

Definitions, over all queries (each triple is one query for its head and one for its tail):

    mrr      mean of 1 / rank                    hits@k   share of ranks ≤ k
    mr       mean rank                           amri     1 − Σ(rank − 1) / Σ(expected rank − 1); in a random
                                                          order the expected rank is 1 + others / 2
Ties count with the mean rank; `mrr_optimistic` and `mrr_pessimistic` are the MRR under the other two policies.
The interval of the MRR is a percentile bootstrap over triples (the two queries of a triple stay together).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from functools import lru_cache
from typing import Any, Literal

import numba
import numpy as np
from numpy.typing import NDArray

from grash.data.candidates import Candidates
from grash.evaluation.ranking import Ranks, SideRanks
from grash.formatting import html_table
from grash.models.base import SIDES

# macro-mrr: the mean of the MRRs of all relations, so rare relations count as much as frequent ones. weighted-mrr: a
# question with k known answers has the weight 1 / (1 + k / MANY_ANSWERS). The more answers, the more candidates that a
# validation counts as wrong are answers of the test split, which it must not look at.
Metric = Literal["mrr", "hits@1", "hits@3", "hits@10", "macro-mrr", "weighted-mrr"]
MANY_ANSWERS = 10
HITS = (1, 3, 10, 100)
_RESAMPLES = 1000
_MAX_CACHED = 1 << 14  # triples whose resamples are cached, at most 64 MiB
_MAX_PLAIN = 1 << 17  # triples that are resampled sooner than compiled code is loaded, about


@dataclass(frozen=True)
class Metrics:
    """Means over `n` queries."""

    n: int
    mrr: float
    mr: float
    amri: float
    hits: dict[int, float]

    def to_dict(self) -> dict[str, Any]:
        values = {"n": self.n, "mrr": self.mrr, "mr": self.mr, "amri": self.amri}
        return values | {f"hits@{k}": v for k, v in self.hits.items()}


@dataclass(frozen=True)
class LikeKnownMetrics:
    """Metrics of ranks among the entities seen on that side of the relation in train; the truth is always included."""

    both: Metrics
    head: Metrics
    tail: Metrics
    n_outside: int  # questions whose true answer was not seen on that side

    def to_dict(self) -> dict[str, Any]:
        """Return a dict for JSON; the names of the metrics end in @like_known."""
        sides = {name: getattr(self, name).to_dict() for name in ("both", "head", "tail")}
        named = {s: {k if k == "n" else f"{k}@like_known": v for k, v in m.items()} for s, m in sides.items()}
        return {**named, "n_outside": self.n_outside}


@dataclass(frozen=True)
class Evaluation:
    """The result of `grash evaluate`: the metrics, and what was measured."""

    split: str
    both: Metrics
    head: Metrics
    tail: Metrics
    mrr_interval: tuple[float, float]
    mrr_optimistic: float
    mrr_pessimistic: float
    n_triples: int
    n_triples_in_split: int
    unseen: str  # keep or drop: treatment of triples with an entity or relation not seen in training
    n_unseen: int
    filter: tuple[str, ...]
    candidates: int | None = None  # None: all entities
    per_relation: dict[str, Metrics] = field(default_factory=dict)
    per_cardinality: dict[str, Metrics] = field(default_factory=dict)
    n_trained: int = 0  # triples of another dataset's split that the model was trained on
    like_known: LikeKnownMetrics | None = None  # if asked for
    baseline: Metrics | None = None  # of the most frequent answers of each relation, on the same questions
    baseline_per_relation: dict[str, float] = field(default_factory=dict)  # its MRRs

    def __repr__(self) -> str:
        low, high = self.mrr_interval
        hits = f"Hits@1 {self.both.hits[1]:.4f}, Hits@10 {self.both.hits[10]:.4f}"
        among = "" if self.candidates is None else f", among {self.candidates:,} drawn entities"
        mrr = f"MRR {self.both.mrr:.4f} [{low:.4f}, {high:.4f}]"
        return f"Evaluation({self.split}: {mrr}, {hits}, {self.n_triples:,} triples{among})"

    def _repr_html_(self) -> str:
        sides = [(name, getattr(self, name)) for name in ("both", "head", "tail")]
        sides += [("baseline", self.baseline)] if self.baseline is not None else []
        rows = [(name, m.mrr, *m.hits.values(), m.mr, m.n) for name, m in sides]
        columns = ("side", "MRR", *(f"Hits@{k}" for k in self.both.hits), "mean rank", "ranks")
        return html_table(repr(self), columns, rows)

    def to_dict(self) -> dict[str, Any]:
        """Return a dict for JSON; metrics among n drawn candidates have n in their names (mrr@1000neg)."""
        content = asdict(self)
        for name in ("both", "head", "tail"):
            content[name] = self._named(getattr(self, name).to_dict())
        content["baseline"] = None if self.baseline is None else self.baseline.to_dict()
        for name in ("per_relation", "per_cardinality"):
            content[name] = {k: self._named(m.to_dict()) for k, m in getattr(self, name).items()}
        del content["like_known"]
        if self.like_known is not None:
            content["like_known"] = self.like_known.to_dict()
        return self._named(content)

    def _named(self, content: dict[str, Any]) -> dict[str, Any]:
        if self.candidates is None:
            return content
        measured = ("mrr", "mr", "amri", "hits")
        return {f"{k}@{self.candidates}neg" if k.startswith(measured) else k: v for k, v in content.items()}


def metrics_of(*sides: SideRanks, chosen: NDArray[Any] | None = None) -> Metrics:
    """Return the metrics over the given sides together; `chosen` selects triples."""
    pick = slice(None) if chosen is None else chosen
    ranks = np.concatenate([s.mean[pick] for s in sides])
    others = np.concatenate([s.others[pick] for s in sides])
    if not len(ranks):
        return Metrics(0, 0.0, 0.0, 0.0, dict.fromkeys(HITS, 0.0))
    expected = others.sum() / 2
    return Metrics(
        n=len(ranks),
        mrr=float(np.mean(1 / ranks)),
        mr=float(np.mean(ranks)),
        amri=float(1 - (ranks - 1).sum() / expected) if expected else 1.0,
        hits={k: float(np.mean(ranks <= k)) for k in HITS},
    )


def like_known_metrics(ranks: Ranks, candidates: Candidates) -> LikeKnownMetrics:
    """Return the metrics of `rank_among`, and how many true answers were not among the candidates."""
    n_outside = 0
    for relation in np.unique(ranks.triples[:, 1]).tolist():
        triples = ranks.triples[ranks.triples[:, 1] == relation]
        for side, column in zip(SIDES, (0, 2)):
            n_outside += int((~np.isin(triples[:, column], candidates(relation, side))).sum())
    return LikeKnownMetrics(
        metrics_of(ranks.head, ranks.tail), metrics_of(ranks.head), metrics_of(ranks.tail), n_outside
    )


def mrr(ranks: Ranks) -> float:
    """Return the filtered MRR over both sides, which validation and selection use."""
    return metrics_of(ranks.head, ranks.tail).mrr


def score(ranks: Ranks, metric: Metric) -> float:
    """Return the metric that a search compares trials by; see `Metric`."""
    values = _per_triple(ranks, metric)
    return mrr(ranks) if metric == "mrr" else float(values.mean()) if len(values) else 0.0


def _per_triple(ranks: Ranks, metric: Metric) -> NDArray[np.float64]:
    """Return (n,) values whose mean is the metric over both sides."""
    if metric.startswith("hits@"):
        k = int(metric[5:])
        return ((ranks.head.mean <= k).astype(np.float64) + (ranks.tail.mean <= k)) / 2
    values = (1 / ranks.head.mean + 1 / ranks.tail.mean) / 2
    if metric == "mrr":
        return values
    if metric == "weighted-mrr":
        head, tail = (1 / (1 + side.known / MANY_ANSWERS) for side in (ranks.head, ranks.tail))
        return (head / ranks.head.mean + tail / ranks.tail.mean) * (len(values) / max(1e-300, (head + tail).sum()))
    found, of, counts = np.unique(ranks.triples[:, 1], return_inverse=True, return_counts=True)
    return values * (len(values) / max(1, len(found)) / counts[of.ravel()])


def mrr_interval(ranks: Ranks, *, seed: int, level: float = 0.95, often: bool = False) -> tuple[float, float]:
    """Return the bootstrap interval of the MRR from 1,000 resamples of the triples.

    often: as for the trials of a search, by compiled code. It is several times faster, but takes up to half a second
    to load. The bits are the same.
    """
    per_triple = _per_triple(ranks, "mrr")
    n = len(per_triple)
    if not n:
        return 0.0, 0.0
    if often and n <= _MAX_CACHED:
        means = resampled_means(per_triple, _cached_draws(seed, n))
    elif often or n > _MAX_PLAIN:
        means = np.concatenate([resampled_means(per_triple, chosen[None]) for chosen in _draws(seed, n)])
    else:
        means = np.array([_mean_in_order(per_triple[chosen]) for chosen in _draws(seed, n)])
    low, high = np.quantile(means, [(1 - level) / 2, (1 + level) / 2])
    return float(low), float(high)


@numba.njit(cache=True)
def resampled_means(values, draws):  # type: ignore[no-untyped-def]
    """values (n,), draws (R, n) indices → (R,) means, each summed in the order of its draws."""
    means = np.empty(draws.shape[0])
    for r in range(draws.shape[0]):
        # four sums at a time, since each addition waits for the one before
        a = b = c = d = 0.0
        whole = draws.shape[1] - draws.shape[1] % 4
        for i in range(0, whole, 4):
            a += values[draws[r, i]]
            b += values[draws[r, i + 1]]
            c += values[draws[r, i + 2]]
            d += values[draws[r, i + 3]]
        for i in range(whole, draws.shape[1]):
            a += values[draws[r, i]]
        means[r] = (a + b + (c + d)) / max(1, draws.shape[1])
    return means


def _mean_in_order(values: NDArray[np.float64]) -> float:
    """(n,) → (): the mean, with the bits of `resampled_means`."""
    whole = len(values) - len(values) % 4
    sums = values[:whole].reshape(-1, 4).sum(0)  # row after row
    for value in values[whole:]:
        sums[0] += value
    a, b, c, d = sums.tolist()
    return (a + b + (c + d)) / max(1, len(values))


def _draws(seed: int, n: int) -> Iterator[NDArray[np.int64]]:
    """Return the triples of each resample."""
    generator = np.random.default_rng(seed)
    return (generator.integers(0, n, n) for _ in range(_RESAMPLES))


@lru_cache(maxsize=1)
def _cached_draws(seed: int, n: int) -> NDArray[np.int32]:
    """Return `_draws`, cached: all trials of a round use the same, and drawing is most of the work."""
    return np.stack([chosen.astype(np.int32) for chosen in _draws(seed, n)])


def mrr_bounds(ranks: Ranks) -> tuple[float, float]:
    """Return the optimistic and the pessimistic MRR: all ties won, all ties lost."""
    best = np.concatenate([1 / ranks.head.optimistic, 1 / ranks.tail.optimistic])
    worst = np.concatenate([1 / ranks.head.pessimistic, 1 / ranks.tail.pessimistic])
    return (float(best.mean()), float(worst.mean())) if len(best) else (0.0, 0.0)


def metrics_by_group(ranks: Ranks, groups: NDArray[Any], names: list[str]) -> dict[str, Metrics]:
    """Return the metrics of the triples of each group; groups (n,) are indices into names."""
    order = np.argsort(groups, kind="stable")
    found, starts = np.unique(groups[order], return_index=True)
    return {
        names[group]: metrics_of(ranks.head, ranks.tail, chosen=chosen)
        for group, chosen in zip(found.tolist(), np.split(order, starts[1:]))
    }
