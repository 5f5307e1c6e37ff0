"""Probabilities of answers: how often held-out answers like this one were right.

`calibrate` asks the questions of a split, valid by default, and looks at the first ten answers of each. Every known
answer of another split is left out, so what is neither in the split nor known counts as wrong (docs/decisions/0058).
A logistic regression then turns two numbers into a probability: the score of the answer, and its share in a softmax
over all candidates. Each side of each relation has its own weights, drawn towards the mean of all relations where there
is little data. How far is learnt from how much relations differ (docs/decisions/0068). `Reliability` compares
probabilities with what was right; that of a `Calibration` is cross-fitted: the weights that judge a question were
fitted without it.

Letters: n answers, B questions, E entities.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from grash.data.dataset import SPLITS, Dataset
from grash.data.known_answers import KnownAnswers
from grash.errors import InputError
from grash.evaluation.answers import Questions, add_all_scores, best_entities, by_id, score_tile
from grash.evaluation.classification import Thresholds, fit_thresholds
from grash.evaluation.evaluate import Split
from grash.evaluation.ranking import default_work_bytes
from grash.formatting import counted, html_table
from grash.kernels.count_above import LogSums
from grash.models import KgeModel
from grash.models.base import SIDES, Side

SCHEMA, VERSION = "grash-calibration", 1
N_BINS = 10  # of equal width, for the reliability and its error
N_ANSWERS = 10  # per question
MIN_QUESTIONS = 20  # fewer held-out questions do not give a probability

_MAX_QUESTIONS = 5_000  # per side
_FEW = 250  # questions per side that the temperature is chosen with
_RANKED, _RANKED_FEW = 3, 25  # triples ranked in the time of asking for both sides of one (CPU: 1.1-3.1, 12-25)
_QUESTIONS = 256  # asked together
_FOLDS = 5
_STEPS = 500  # of a fit, at most
_PRECISE, _ROUGH = 1e-4, 1e-2  # a fit ends when no weight changes by more in a step; _ROUGH to choose the temperature
_ROUNDING = 1e-9
_LIMIT = 1e-6  # a share stays this far from 1
_TEMPERATURES = tuple(2.0**i for i in range(-3, 4))

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Reliability:
    """Probabilities against what was right, in ten bins of equal width."""

    counts: tuple[int, ...]  # answers per bin
    means: tuple[float, ...]  # their mean probability
    right: tuple[float, ...]  # the share of them that was right

    @classmethod
    def of(cls, probabilities: Floats, right: NDArray[np.bool_]) -> Reliability:
        """probabilities (n,), right (n,) → the bins."""
        bins = np.minimum((probabilities * N_BINS).astype(np.int64), N_BINS - 1)
        counts = np.bincount(bins, minlength=N_BINS)
        sums = (np.bincount(bins, weights=values, minlength=N_BINS) for values in (probabilities, right))
        means, shares = ((total / np.maximum(counts, 1)).tolist() for total in sums)
        return cls(tuple(counts.tolist()), tuple(means), tuple(shares))

    def __repr__(self) -> str:
        return f"Reliability({self.n:,} answers; expected calibration error {self.ece:.3f})"

    def _repr_html_(self) -> str:
        ends = [f"{i / N_BINS:.1f} to {(i + 1) / N_BINS:.1f}" for i in range(N_BINS)]
        rows = zip(ends, self.counts, self.means, self.right)
        return html_table(repr(self), ("probability", "answers", "mean probability", "share right"), rows)

    @property
    def n(self) -> int:
        return sum(self.counts)

    @property
    def ece(self) -> float:
        """Expected calibration error: the mean distance of probability and share right, weighted by answers."""
        gaps = (n * abs(mean - right) for n, mean, right in zip(self.counts, self.means, self.right))
        return sum(gaps) / max(1, self.n)

    def around(self, probability: float) -> tuple[int, float]:
        """Return the number of answers in the bin of a probability, and the share of them that was right."""
        i = min(int(probability * N_BINS), N_BINS - 1)
        return self.counts[i], self.right[i]


@dataclass(frozen=True)
class Weights:
    """Weights of the logistic regression."""

    bias: float
    share: float  # of a quarter of the logit of the softmax share
    score: float  # of the standardized score


@dataclass(frozen=True)
class Calibration:
    """How scores of a model become probabilities, and how well these matched held-out answers."""

    split: str  # that was asked
    n_questions: int
    temperature: float  # of the softmax
    score_mean: float  # scores are standardized with these two
    score_std: float
    weights: Weights  # of relations without questions: the mean of all relations
    of_relation: dict[str, Weights]  # of "tail 5", the side asked and the id of a relation
    first: Reliability  # of the first answers, cross-fitted
    answers: Reliability  # of the first ten answers, cross-fitted
    thresholds: Thresholds | None = None  # of triple classification

    def __repr__(self) -> str:
        errors = f"{self.first.ece:.3f} for first answers, {self.answers.ece:.3f} for the first ten"
        return f"Calibration({self.n_questions:,} questions of {self.split}; expected calibration error {errors})"

    def probabilities(self, scores: Floats, log_sums: Floats, relations: NDArray[np.integer], side: Side) -> Floats:
        """Return the probabilities (n,) of answers with these scores (n,) to questions of these relations (n,).

        log_sums (n,): `LogSums` of the question with `temperature`, which includes the answer itself.
        """
        used, places = np.unique(relations, return_inverse=True)
        rows = [self.of_relation.get(f"{side} {r}", self.weights) for r in used.tolist()]
        weights = np.array([_row(w) for w in rows]).reshape(-1, 3)[places]
        return _logistic((self._features(scores, log_sums) * weights).sum(1))

    def _features(self, scores: Floats, log_sums: Floats) -> Floats:
        return _features(scores, log_sums, self.temperature, self.score_mean, self.score_std)

    def meaning(self, probability: float) -> str:
        """Return a sentence: how many first new answers of such a probability were right."""
        n, right = self.first.around(probability)
        low = min(int(probability * N_BINS), N_BINS - 1) * 100 // N_BINS
        such = f"whose first new answer had a probability of {low} to {low + 100 // N_BINS} %"
        if n < MIN_QUESTIONS:
            return f"Too few to check it: {counted(n, 'question')} of {self.split} {such}."
        return f"Of {n:,} questions of {self.split} {such}, it was right in {100 * right:.0f} %."

    def to_dict(self) -> dict[str, Any]:
        """Return a dict for JSON."""
        errors = {"ece_first": self.first.ece, "ece_answers": self.answers.ece}
        return {"schema": SCHEMA, "version": VERSION, **errors, **asdict(self)}

    @classmethod
    def from_dict(cls, content: dict[str, Any]) -> Calibration:
        """Return the record that `to_dict` wrote; ValueError, TypeError or KeyError if it is damaged."""
        numbers = {name: float(content[name]) for name in ("temperature", "score_mean", "score_std")}
        if not all(np.isfinite(v) for v in numbers.values()) or min(numbers["temperature"], numbers["score_std"]) <= 0:
            raise ValueError(f"temperature and score_std must be above 0: {numbers}")
        return cls(
            split=str(content["split"]),
            n_questions=int(content["n_questions"]),
            **numbers,
            weights=_weights(content["weights"]),
            of_relation={str(key): _weights(value) for key, value in content["of_relation"].items()},
            first=_reliability(content["first"]),
            answers=_reliability(content["answers"]),
            thresholds=None if content.get("thresholds") is None else Thresholds.from_dict(content["thresholds"]),
        )


@torch.no_grad()
def calibrate(
    model: KgeModel, dataset: Dataset, *, split: Split = "valid", sample: int | None = None, seed: int = 0,
    temperature: float | None = None,
) -> Calibration | None:  # fmt: skip
    """Return the calibration of a model on the questions of a split; None if too few are held out or were right.

    sample: at most that many questions per side (default: 5,000), drawn with `seed`. temperature: of the softmax, e.g.
    that of the model before an update; chosen if absent.
    """
    if temperature is None:
        few = held_out_answers(model, dataset, split, sample=min(sample or _FEW, _FEW), seed=seed)
        if not _is_enough(few):
            return None
        temperature = _temperature(few, seed)
    held = held_out_answers(model, dataset, split, sample=sample, seed=seed, temperatures=(temperature,))
    if not _is_enough(held):
        return None
    mean, std = _scale(held)
    most = std / (4 * temperature)
    features = _features(held.scores, held.log_sums_at(temperature), temperature, mean, std)
    fitted = _fit(features, held.right, held.counts, held.groups, most)
    crossed = _cross_fitted(held, features, most, seed, fitted)
    return Calibration(
        split=split, n_questions=held.n_questions, temperature=temperature, score_mean=mean, score_std=std,
        weights=Weights(*fitted.everywhere.tolist()),
        of_relation={f"{SIDES[g % 2]} {g // 2}": Weights(*weights.tolist()) for g, weights in fitted.of_group.items()},
        first=Reliability.of(crossed[held.is_first], held.right[held.is_first]),
        answers=Reliability.of(crossed, held.right),
        thresholds=fit_thresholds(model, dataset, split=split, seed=seed),
    )  # fmt: skip


def ranked_meanwhile(n_triples: int) -> int:
    """Return how many triples can be ranked in the time that calibrating on a split of `n_triples` takes, about."""
    return _RANKED * min(n_triples, _MAX_QUESTIONS) + _RANKED_FEW * min(n_triples, _FEW)


def measure(
    calibration: Calibration, model: KgeModel, dataset: Dataset, *, split: Split = "test", sample: int | None = None,
    seed: int = 0,
) -> tuple[Reliability, Reliability]:  # fmt: skip
    """Return the reliability of the first and of the first ten answers on a split that the calibration did not see."""
    held = held_out_answers(model, dataset, split, sample=sample, seed=seed, temperatures=(calibration.temperature,))
    found = np.empty(len(held.scores))
    for i, side in enumerate(SIDES):
        rows = held.groups % 2 == i
        found[rows] = calibration.probabilities(
            held.scores[rows], held.log_sums_at(calibration.temperature)[rows], held.groups[rows] // 2, side
        )
    return Reliability.of(found[held.is_first], held.right[held.is_first]), Reliability.of(found, held.right)


@dataclass(frozen=True, eq=False)
class HeldOutAnswers:
    """The first ten answers of held-out questions, both sides, with what was right."""

    scores: Floats  # (n,)
    right: NDArray[np.bool_]  # (n,) whether the answer is in the split
    is_first: NDArray[np.bool_]  # (n,) whether it is the best answer of its question
    groups: NDArray[np.int64]  # (n,) relation · 2 + side
    questions: NDArray[np.int64]  # (n,) number of its question
    log_sums: Floats  # (temperatures, questions)
    temperatures: tuple[float, ...]
    n_questions: int

    @property
    def counts(self) -> Floats:
        """(n,) how much each answer counts in a regression: 1 / its rank in the list of its question."""
        places = np.arange(len(self.scores))
        return 1 / (1 + places - np.maximum.accumulate(np.where(self.is_first, places, 0)))

    def log_sums_at(self, temperature: float) -> Floats:
        """Return (n,) the log-sums of the answers' questions."""
        return self.log_sums[self.temperatures.index(temperature)][self.questions]


def held_out_answers(
    model: KgeModel, dataset: Dataset, split: Split, *, sample: int | None, seed: int,
    temperatures: tuple[float, ...] = _TEMPERATURES,
) -> HeldOutAnswers:  # fmt: skip
    """Ask the distinct questions of a split; known answers of the other splits are left out."""
    if split not in ("valid", "test"):
        raise InputError(f"split={split!r} cannot be asked: give valid or test.")
    if sample is not None and sample < 1:
        raise InputError(f"sample={sample}: give 1 or more questions.")
    triples = dataset.split(split)
    others = [dataset.split(name) for name in SPLITS if name != split]
    known = KnownAnswers.of(*others, n_relations=dataset.n_relations, asked=triples)
    held = KnownAnswers.of(triples, n_relations=dataset.n_relations)
    parts: list[tuple[NDArray[Any], ...]] = []
    sums, n_questions = [np.empty((len(temperatures), 0))], 0
    for i, side in enumerate(SIDES):
        ends, relations = _questions(triples, side, sample or _MAX_QUESTIONS, seed)
        for start in range(0, len(ends), _QUESTIONS):
            asked = ends[start : start + _QUESTIONS], relations[start : start + _QUESTIONS]
            rows, ids, scores, found = ask(model, Questions(*asked, side, known.of_side(side).pairs), temperatures)
            true_rows, true_ids = held.of_side(side).pairs(*asked)
            right = np.isin(rows * dataset.n_entities + ids, true_rows * dataset.n_entities + true_ids)
            first = np.append(True, rows[1:] != rows[:-1])[: len(rows)]
            parts.append((scores, right, first, asked[1][rows] * 2 + i, rows + n_questions))
            sums.append(found)
            n_questions += len(asked[0])
    parts = parts or [(np.empty(0), *(np.empty(0, kind) for kind in (bool, bool, np.int64, np.int64)))]
    scores, right, is_first, groups, questions = (np.concatenate(column) for column in zip(*parts))
    return HeldOutAnswers(
        scores, right, is_first, groups, questions, np.concatenate(sums, 1), temperatures, n_questions
    )


def _questions(
    triples: NDArray[np.int32], side: Side, sample: int, seed: int
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the known ends (B,) and relations (B,) of the distinct questions that ask for `side`, or a sample."""
    distinct = np.unique(triples[:, [0 if side == "tail" else 2, 1]].astype(np.int64), axis=0)
    if len(distinct) > sample:
        distinct = distinct[np.sort(np.random.default_rng(seed).choice(len(distinct), sample, replace=False))]
    return np.ascontiguousarray(distinct[:, 0]), np.ascontiguousarray(distinct[:, 1])


def ask(
    model: KgeModel, asked: Questions, temperatures: tuple[float, ...], *, k: int = N_ANSWERS,
    among: NDArray[np.int64] | None = None,
) -> tuple[NDArray[np.int64], NDArray[np.int64], Floats, Floats]:  # fmt: skip
    """Return row, id and score of the k best new answers to B questions, and their log-sums (temperatures, B).

    among: ids of the entities that may be answers, ascending (default: all); the log-sums are over all entities in any
    case.
    """
    queries, seen = asked.queries(model)
    known, tile = by_id(asked.known, queries.device), score_tile(queries, default_work_bytes(queries.device))
    sums = LogSums(len(queries), temperatures, *known)
    if among is not None:
        add_all_scores(model, queries, seen, sums, tile)
    now = sums if among is None else None
    found = best_entities(model, queries, seen, k, tile=tile, skip=known, among=among, sums=now)
    row, answer, score = (x.cpu().numpy() for x in found)
    return row, answer, score.astype(np.float64), sums.values.cpu().numpy()


def _is_enough(held: HeldOutAnswers) -> bool:
    return held.n_questions >= MIN_QUESTIONS <= min(held.right.sum(), (~held.right).sum())


def _temperature(held: HeldOutAnswers, seed: int) -> float:
    """Return the temperature with the smallest log loss, cross-fitted, in which answers count as in a regression."""
    (mean, std), losses, fitted = _scale(held), [], None
    for temperature in held.temperatures:
        features = _features(held.scores, held.log_sums_at(temperature), temperature, mean, std)
        most = std / (4 * temperature)
        fitted = _fit(features, held.right, held.counts, held.groups, most, fitted, _ROUGH)
        found = _cross_fitted(held, features, most, seed, fitted, _ROUGH)
        losses.append(-(held.counts * np.log(np.where(held.right, found, 1 - found))).sum())
    return held.temperatures[int(np.argmin(losses))]


def _cross_fitted(
    held: HeldOutAnswers, features: Floats, most: float, seed: int, start: _Fit, precise: float = _PRECISE
) -> Floats:
    """Return the probabilities (n,), each by weights that were fitted without the questions of its fold.

    start: where the fits begin, which changes how long they take, not where they end.
    """
    fold = np.random.default_rng(seed).integers(0, _FOLDS, held.n_questions)[held.questions]
    counts, found = held.counts, np.empty(len(features))
    for i in range(_FOLDS):
        own, others = fold == i, fold != i
        fitted = _fit(features[others], held.right[others], counts[others], held.groups[others], most, start, precise)
        found[own] = _judge(fitted, features[own], held.groups[own])
    return found


def _scale(held: HeldOutAnswers) -> tuple[float, float]:
    return float(held.scores.mean()), float(held.scores.std()) or 1.0


def _features(scores: Floats, log_sums: Floats, temperature: float, mean: float, std: float) -> Floats:
    """Return (n, 3): one, a quarter of the logit of the softmax share, the standardized score."""
    log_share = np.minimum(scores / temperature - log_sums, 0)
    logit = log_share - np.log1p(-np.minimum(np.exp(log_share), 1 - _LIMIT))
    return np.stack([np.ones(len(scores)), logit / 4, (scores - mean) / std], 1)


class _Fit(NamedTuple):
    """Logistic regressions of groups, whose weights have a normal distribution."""

    of_group: dict[int, Floats]  # weights (3,) of each group
    everywhere: Floats  # (3,) the mean, with which a better answer has no lower probability
    mean: Floats  # (3,)
    covariance: Floats  # (3, 3)


def _fit(
    features: Floats, right: NDArray[np.bool_], counts: Floats, groups: NDArray[np.int64], most: float,
    start: _Fit | None = None, precise: float = _PRECISE,
) -> _Fit:  # fmt: skip
    """Fit logistic regressions of all groups, which learn from each other; `start` saves steps.

    Each step is one of Newton's method for all groups, at most 1 long, with new estimates of the mean and the
    covariance of their weights (EM). The mean has a standard normal prior. The covariance counts one more group, which
    differs by 1 from the mean: so it is near 1 where there are few groups.
    """
    order = np.argsort(groups, kind="stable")
    x, right, counts = np.ascontiguousarray(features[order].T), right[order], counts[order]
    names, starts, sizes = np.unique(groups[order], return_index=True, return_counts=True)
    one, (rows, columns) = np.eye(3), np.triu_indices(3)
    products, terms = x[rows] * x[columns], np.empty((9, x.shape[1]))
    if start is None:
        start = _Fit({}, np.zeros(3), np.zeros(3), one)
    weights = np.array([start.of_group.get(name, start.mean) for name in names.tolist()])
    mean, covariance, before, pace = start.mean, start.covariance, np.zeros(3), 1.0
    curvatures = np.empty((len(names), 3, 3))
    for _ in range(_STEPS):
        p = _logistic(sum(values * np.repeat(w, sizes) for values, w in zip(x, weights.T)))
        np.multiply(x, counts * (p - right), out=terms[:3])
        np.multiply(products, counts * p * (1 - p), out=terms[3:])
        sums = np.add.reduceat(terms, starts, axis=1).T
        precision = np.linalg.inv(covariance)
        gradients = sums[:, :3] + (weights - mean) @ precision
        curvatures[:, rows, columns] = curvatures[:, columns, rows] = sums[:, 3:]
        curvatures += precision
        posterior = np.linalg.inv(curvatures)  # the covariance of each group's weights
        spread, steps = posterior.sum(0), (posterior @ gradients[:, :, None])[:, :, 0]
        last, weights = weights, weights - steps / np.maximum(1, np.linalg.norm(steps, axis=1, keepdims=True))
        weights = _ordered(weights, posterior, most)
        known = len(names) * precision - precision @ spread @ precision + one  # about the mean, from all answers
        change = np.linalg.solve(known, precision @ (weights - mean).sum(0) - mean)
        # groups on a bound do not follow the mean, so it may go too far, and back
        pace, before = pace / 2 if change @ before < 0 else min(1.0, 1.2 * pace), change
        mean = mean + pace * change
        gaps = weights - mean
        covariance = (gaps.T @ gaps + spread + one) / (len(names) + 1)
        if max(np.abs(weights - last).max(), np.abs(pace * change).max()) < precise:
            break
    everywhere = _ordered(mean[None], np.linalg.inv(known)[None], most)[0]
    return _Fit(dict(zip(names.tolist(), weights)), everywhere, mean, covariance)


def _ordered(weights: Floats, covariances: NDArray[np.floating], most: float) -> Floats:
    """Return the weights (G, 3) nearest to these with which a better answer to a question has no lower probability.

    The weight of the share is not negative. That of the score may be: a question with high scores everywhere is then
    less certain. It stays above −`most` times the weight of the share. covariances (G, 3, 3): their inverses
    are the metric of "nearest".
    """
    bounds = np.array([[0, 1, 0], [0, most, 1]])  # products with weights are not negative
    found = weights.copy()
    for equal in (bounds[:1], bounds[1:], bounds):  # these products become 0
        rows = (found @ bounds.T < -_ROUNDING).any(1) & (weights @ equal.T < 0).any(1)
        if not rows.any():
            continue
        ways = covariances[rows] @ equal.T
        sizes = np.linalg.solve(equal @ ways, (weights[rows] @ equal.T)[:, :, None])
        found[rows] = weights[rows] - (ways @ sizes)[:, :, 0]
    share = np.maximum(found[:, 1], 0)
    return np.stack([found[:, 0], share, np.maximum(found[:, 2], -most * share)], 1)


def _judge(fitted: _Fit, features: Floats, groups: NDArray[np.int64]) -> Floats:
    weights = np.array([fitted.of_group.get(group, fitted.everywhere) for group in groups.tolist()]).reshape(-1, 3)
    return _logistic((features * weights).sum(1))


def _logistic(x: Floats) -> Floats:
    return 1 / (1 + np.exp(-np.clip(x, -30, 30)))


def _row(weights: Weights) -> tuple[float, float, float]:
    return weights.bias, weights.share, weights.score


def _weights(content: dict[str, Any]) -> Weights:
    values = [float(content[name]) for name in ("bias", "share", "score")]
    if not np.isfinite(values).all():
        raise ValueError(f"weights are not finite: {content}")
    return Weights(*values)


def _reliability(content: dict[str, Any]) -> Reliability:
    def column(name: str, kind: type) -> Iterator[Any]:
        values = content[name]
        if len(values) != N_BINS:
            raise ValueError(f"{name} has {len(values)} bins, expected {N_BINS}")
        return (kind(value) for value in values)

    return Reliability(tuple(column("counts", int)), tuple(column("means", float)), tuple(column("right", float)))
