"""Loss and gradients of one step, written by hand: no autograd graph, no (B, N, D) array, rows instead of tables.
A model may leave the gradient of its query, its candidates or its comparison to autograd (`models/autograd`).

Takes a batch from `batches`, passes gradients to `optimizers`. For each predicted side (head or tail):

    queries ← known rows, relation rows       scores ← queries × candidates       loss ← losses.side_loss

and back the same way; `StepRows` collects the gradients of the rows of a table.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Protocol, TypeVar

import torch
from torch import Tensor

from grash.kernels.complex_product import TripleBatch, both_gradients, both_queries
from grash.kernels.pair_scores import Pair, add_row_gradients, pair_gradients, pair_scores, row_gradients, row_scores
from grash.kernels.random import Key, keep_mask, key_at
from grash.kernels.softmax_loss import mask_scores, runs_on_triton
from grash.kernels.storage import gather_float32, is_bf16, to_float32
from grash.models.autograd import AutogradModel
from grash.models.base import KgeModel, Side
from grash.models.complex import ComplEx
from grash.training.batches import Batch, Negatives, QuestionRuns, Questions
from grash.training.config import TrainConfig
from grash.training.losses import POWERS, complex_rows, label_loss, power_penalty, side_loss

_Rows = TypeVar("_Rows")
ROW_KEYS, MODEL_KEYS = 6, 8  # masks of a step with different keys: of rows, and inside the queries of a model
DROPOUT_KEYS = ROW_KEYS + MODEL_KEYS
_ENDS: tuple[Side, Side] = ("tail", "head")  # in the order of `both_queries`


@dataclass
class Gradient:
    """Gradient of one table: rows (n, width) at ids (n,), to be summed where ids repeat, and a dense part."""

    ids: list[Tensor] = field(default_factory=list)
    rows: list[Tensor] = field(default_factory=list)
    dense: Tensor | None = None

    def add(self, ids: Tensor | None, rows: Tensor) -> None:
        if ids is not None:
            self.ids.append(ids)
            self.rows.append(rows)
        else:
            self.dense = rows if self.dense is None else self.dense + rows


@dataclass
class StepGradients:
    """Loss of a step (a scalar: mean over the batch, plus penalties) and its gradients for both tables."""

    loss: Tensor
    entity: Gradient = field(default_factory=Gradient)
    relation: Gradient = field(default_factory=Gradient)
    weights: dict[str, Tensor] = field(default_factory=dict)  # gradients of the weights beside the tables
    statistics: dict[str, Tensor] = field(default_factory=dict)  # new values of weights that have no gradient

    @classmethod
    def zero(cls, model: KgeModel) -> StepGradients:
        return cls(torch.zeros((), device=model.entity.device))


class StepRows:
    """Rows of a table in a step: `raw` as stored (bf16 as float32), `values` after dropout. ids None: all rows.

    by_place: whether every occurrence of a row has its own dropout mask, or every id has one."""

    def __init__(self, table: Tensor, ids: Tensor | None, rate: float, key: Key, *, by_place: bool = True) -> None:
        self.table, self.ids, self.rate, self.key, self.by_place = table, ids, rate, key, by_place
        self.gradient: Tensor | None = None
        self.raw_gradient: Tensor | None = None

    @cached_property
    def raw(self) -> Tensor:
        return to_float32(self.table if self.ids is None else self.table.index_select(0, self.ids))

    @cached_property
    def mask(self) -> Tensor | None:
        if not self.rate:
            return None
        places = self.ids
        if self.by_place or places is None:
            places = torch.arange(len(self.raw), device=self.table.device)
        return keep_mask(places, self.table.shape[1], self.rate, self.key).to(self.raw.dtype)

    @cached_property
    def values(self) -> Tensor:
        return self.raw if self.mask is None else self.raw * self.mask

    def add(self, gradient: Tensor) -> None:
        self.gradient = gradient if self.gradient is None else self.gradient + gradient

    def add_raw(self, gradient: Tensor) -> None:
        """Set the gradient of the raw rows, to which dropout does not apply."""
        self.raw_gradient = gradient

    def collect(self, into: Gradient) -> None:
        """Add the gradients of these rows to those of the table."""
        total = self.gradient
        if total is not None and self.mask is not None:
            total = total * self.mask
        if self.raw_gradient is not None:
            total = self.raw_gradient if total is None else total + self.raw_gradient
        if total is not None:
            into.add(self.ids, total)


def step_gradients(
    model: KgeModel,
    batch: Batch | Sequence[Questions | QuestionRuns],
    config: TrainConfig,
    key: int | Sequence[Key],
) -> StepGradients:
    """Return the loss and gradients of a step. key: the step's random key, for dropout, or its `dropout_keys`."""
    keys = dropout_keys(key) if isinstance(key, int) else key
    if not isinstance(model, AutogradModel):
        return _gradients(model, batch, config, keys)
    model.begin_step({name: getattr(config, name) for name in model.dropouts}, keys[ROW_KEYS:])
    try:
        step = _gradients(model, batch, config, keys)
    finally:
        ended = model.end_step()
    step.weights, step.statistics = ended.gradients, ended.statistics
    return step


def _gradients(
    model: KgeModel, batch: Batch | Sequence[Questions | QuestionRuns], config: TrainConfig, keys: Sequence[Key]
) -> StepGradients:
    if isinstance(batch, Batch):
        step = _of_positives(model, batch, config, keys)
    else:
        step = _of_questions(model, batch, config, keys)
    penalize_tables(model, config, step)
    return step


def dropout_keys(key: int) -> list[int]:
    """Return the keys of a step's dropout masks."""
    return [key_at(key, i) if key else 0 for i in range(DROPOUT_KEYS)]


def _of_positives(model: KgeModel, batch: Batch, config: TrainConfig, keys: Sequence[Key]) -> StepGradients:
    step = StepGradients.zero(model)
    heads, relations, tails = batch.triples.T
    size = len(batch.triples)
    head = StepRows(model.entity, heads, config.dropout_entity, keys[0])
    tail = StepRows(model.entity, tails, config.dropout_entity, keys[1])
    relation: dict[int, StepRows] = {}  # 0: forward, 1: inverse relations (with reciprocals)
    sides: tuple[Side, ...] = tuple(batch.negatives) or ("head", "tail")
    if _predicts_both_ends(model, batch, config):
        relation = _compare_ends(model, config, step, batch, head, tail)
        sides = ()
    for number, side in enumerate(sides):
        known, answer = (head, tail) if side == "tail" else (tail, head)
        ids, seen = model.asked(relations, side)
        place = int(model.reciprocal and side == "head")
        if place not in relation:
            relation[place] = StepRows(model.relation, ids, config.dropout_relation, keys[2 + place])
        negatives = batch.negatives.get(side)
        chosen = None if negatives is None or _scores_all(negatives, model) else negatives.ids.reshape(-1)
        others = StepRows(model.entity, chosen, config.dropout_entity, keys[4 + number], by_place=False)
        asked = _Side(side, seen, known, relation[place], answer, others, negatives)
        _compare(model, config, step, asked, batch.triples)
        others.collect(step.entity)
    if config.relation_prediction:
        _predict_relations(model, config, step, head, tail, relations)
    if penalizes_rows(config):
        penalize_rows(config, step, [head, tail], "entity", size)
        penalize_rows(config, step, [*relation.values()], "relation", size)
    head.collect(step.entity)
    tail.collect(step.entity)
    for rows in relation.values():
        rows.collect(step.relation)
    return step


def _predicts_both_ends(model: KgeModel, batch: Batch, config: TrainConfig) -> bool:
    """Return whether `_compare_ends` applies: ComplEx on a CPU, no dropout, shared negatives on both sides."""
    return (
        isinstance(model, ComplEx)
        and model.entity.device.type == "cpu"
        and not (config.dropout_entity or config.dropout_relation or config.penalty == "dura")
        and len(batch.negatives) == 2
        and all(negatives.ids.dim() == 1 for negatives in batch.negatives.values())
    )


def _compare_ends(
    model: KgeModel, config: TrainConfig, step: StepGradients, batch: Batch, head: StepRows, tail: StepRows
) -> dict[int, StepRows]:
    """`_compare` for both sides at once: one compiled loop before and one after the matrix products.

    Return the rows of the relations: 0 forward, 1 inverse (with reciprocals)."""
    assert head.ids is not None and tail.ids is not None
    drawn, relations = batch.negatives, batch.triples[:, 1]
    backward, _ = model.asked(relations, "head")
    others = drawn["tail"].ids, drawn["head"].ids
    entity, places = model.entity, [head.ids, tail.ids, *others]
    if is_bf16(entity):
        entity, places = gather_float32(entity, places)
    asked = places[0], places[1], relations, backward, (places[2], places[3])
    ends = TripleBatch(entity, model.relation, *asked, conjugate=not model.reciprocal)
    queries, positive, rows = both_queries(ends)
    of_tail, of_head = (
        _compare_end(model, config, queries[end], positive[end], rows[end], drawn[side])
        for end, side in enumerate(_ENDS)
    )
    step.loss = of_tail[0] + of_head[0]
    step.entity.add(others[0], of_tail[3])
    step.entity.add(others[1], of_head[3])
    given = both_gradients(ends, queries, (of_tail[1], of_head[1]), (of_tail[2], of_head[2]))
    head.add(given[0])
    tail.add(given[1])
    ids = [relations, backward] if model.reciprocal else [relations]
    found = {place: StepRows(model.relation, each, 0.0, 0) for place, each in enumerate(ids)}
    for place, rows_of_relation in found.items():
        rows_of_relation.add(given[2 + place])
    return found


def _compare_end(
    model: KgeModel, config: TrainConfig, queries: Tensor, positive: Tensor, rows: Tensor, negatives: Negatives
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return one side's loss and its gradients for queries, true scores and rows.

    Its scores are freed here, so the other side reuses their memory while it is still in the cache."""
    against = _SampledNegatives(model, model.pair, queries, rows, positive, negatives)
    scale = 1 / len(queries)
    loss, for_positive, for_negative = side_loss(positive, against.scores, config, scale=scale, overwrite=True)
    for_queries, for_rows = against.gradients(for_positive, for_negative)
    return loss, for_queries, for_positive, for_rows


def _scores_all(negatives: Negatives, model: KgeModel) -> bool:
    """Return whether to score all entities in one product, (B, E), and pick each positive's own negatives from them,
    which is cheaper than gathering their rows, (B, N, D), if N is large."""
    if negatives.ids.dim() == 1 or model.pair not in ("dot", "l2"):
        return False
    return model.n_entities <= negatives.ids.shape[1] * model.dim // 4


@dataclass(frozen=True)
class _Side:
    """One predicted side of a batch of positives."""

    side: Side
    seen: Side  # the side that the model predicts: always tail with reciprocals
    known: StepRows
    relation: StepRows
    answer: StepRows
    others: StepRows
    negatives: Negatives | None


def _compare(model: KgeModel, config: TrainConfig, step: StepGradients, asked: _Side, triples: Tensor) -> None:
    """Add the loss of one side's true answers against the others, and its gradients."""
    size, seen, negatives = len(triples), asked.seen, asked.negatives
    pair = model.pair_of(seen)
    queries, to_rows = model.query_forward(asked.known.values, asked.relation.values, seen)
    candidates, to_others = model.candidate_forward(asked.others.values, seen)
    truth, to_answer = model.candidate_forward(asked.answer.values, seen)
    against: _AllEntities | _SampledNegatives
    if negatives is None:
        against = _AllEntities(pair, queries, candidates, triples[:, 0 if asked.side == "head" else 2])
    else:
        against = _SampledNegatives(model, pair, queries, candidates, row_scores(queries, truth, pair), negatives)
    positive = against.positive
    loss, for_positive, for_negative = side_loss(
        positive, against.scores, config, scale=1 / size, overwrite=pair == "dot"
    )
    step.loss = step.loss + loss
    for_queries, for_candidates = against.gradients(for_positive, for_negative)
    asked.others.add(to_others(for_candidates))
    if negatives is not None:
        for_truth = add_row_gradients(for_queries, queries, truth, for_positive, pair)
        asked.answer.add(to_answer(for_truth))
    if config.penalty == "dura":
        dura_queries, dura_truth = add_dura(config, step, queries, truth, size)
        for_queries = for_queries + dura_queries
        asked.answer.add(to_answer(dura_truth))
    for_known, for_relation = to_rows(for_queries)
    asked.known.add(for_known)
    asked.relation.add(for_relation)


class _AllEntities:
    """1vsAll: the true answer is scored with all entities, then masked among the negatives."""

    def __init__(self, pair: Pair, queries: Tensor, candidates: Tensor, answers: Tensor) -> None:
        self.pair, self.queries, self.candidates = pair, queries, candidates
        self.scores = pair_scores(queries, candidates, pair)
        self.place = torch.arange(len(queries), device=queries.device), answers
        self.positive = self.scores[self.place]
        self.scores[self.place] = torch.full_like(self.positive, -torch.inf)  # a number would be copied from the host

    def gradients(self, for_positive: Tensor, for_negative: Tensor) -> tuple[Tensor, Tensor]:
        if for_negative is not self.scores:
            self.scores[self.place] = self.positive
        for_negative[self.place] = for_positive
        return pair_gradients(self.queries, self.candidates, self.scores, for_negative, self.pair)


class _SampledNegatives:
    """Negative sampling: candidates shared by the batch (N, W), or each query's own: gathered (B·N, W), or picked from
    all entities (E, W)."""

    def __init__(
        self, model: KgeModel, pair: Pair, queries: Tensor, candidates: Tensor, positive: Tensor, negatives: Negatives
    ) -> None:
        self.positive = positive
        self.pair, self.queries, self.candidates, self.ids = pair, queries, candidates, negatives.ids
        self.own = negatives.ids.dim() == 2
        self.picked = self.own and _scores_all(negatives, model)
        if self.picked:
            self.all_scores = pair_scores(queries, candidates, pair)
            self.scores = self.all_scores.gather(1, self.ids)
        elif self.own:
            self.candidates = candidates.reshape(*self.ids.shape, -1)
            self.scores = row_scores(queries[:, None, :], self.candidates, pair)
        else:
            self.scores = pair_scores(queries, candidates, pair)
        if negatives.real is not None and self.scores.device.type == "cpu":
            assert negatives.rows is not None and negatives.columns is not None
            mask_scores(self.scores, negatives.rows, negatives.columns, negatives.real)
        else:
            negatives.mask(self.scores)

    def gradients(self, for_positive: Tensor, for_negative: Tensor) -> tuple[Tensor, Tensor]:
        if self.picked:
            upstream = torch.zeros_like(self.all_scores).scatter_add_(1, self.ids, for_negative)
            return pair_gradients(self.queries, self.candidates, self.all_scores, upstream, self.pair)
        if self.own:
            for_queries, rows = row_gradients(self.queries[:, None, :], self.candidates, for_negative, self.pair)
            return for_queries.sum(1), rows.reshape(-1, rows.shape[-1])
        return pair_gradients(self.queries, self.candidates, self.scores, for_negative, self.pair)


def _predict_relations(
    model: KgeModel, config: TrainConfig, step: StepGradients, head: StepRows, tail: StepRows, relations: Tensor
) -> None:
    weight = config.relation_prediction / len(relations)
    for first, second, ids in relation_questions(model, head, tail, relations):
        loss, *given = relation_loss(model, first.values, second.values, ids, weight)
        step.loss = step.loss + loss
        for_first, for_second, for_relations = model.relation_scores_gradient(*given)
        first.add(for_first)
        second.add(for_second)
        step.relation.add(None, for_relations)


def relation_questions(
    model: KgeModel, head: _Rows, tail: _Rows, relations: Tensor
) -> list[tuple[_Rows, _Rows, Tensor]]:
    """Return (first entities, second entities, true relations): (h, ?, t), and with reciprocals also (t, ?, h)."""
    asked = [(head, tail, relations)]
    return [*asked, (tail, head, relations + model.n_relations)] if model.reciprocal else asked


def relation_loss(
    model: KgeModel, head: Tensor, tail: Tensor, relations: Tensor, weight: float
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Return the weighted cross-entropy of the true relations (B,) among all rows, those of inverse relations included,
    given rows (B, D) of heads and tails (Chen et al., 2021), and the arguments of `model.relation_scores_gradient`.
    Relations have no dropout here."""
    table = model.relation
    scores = model.relation_scores(head, tail, table)
    logs = torch.log_softmax(scores, 1)
    rows = torch.arange(len(relations), device=scores.device)
    loss = -(weight * logs[rows, relations].sum())
    upstream = logs.exp()
    upstream[rows, relations] -= 1
    return loss, upstream * weight, scores, head, tail, table


def _of_questions(
    model: KgeModel, given: Sequence[Questions | QuestionRuns], config: TrainConfig, keys: Sequence[Key]
) -> StepGradients:
    step = StepGradients.zero(model)
    by_runs = runs_on_triton(model.relation)
    batch = [each if by_runs or isinstance(each, Questions) else each.as_pairs() for each in given]
    size = sum(len(questions.known) for questions in batch)
    n_labels = sum(_n_labels(questions) for questions in batch)
    for number, questions in enumerate(batch):
        ids, seen = model.asked(questions.relations, questions.side)
        known = StepRows(model.entity, questions.known, config.dropout_entity, keys[3 * number])
        relation = StepRows(model.relation, ids, config.dropout_relation, keys[3 * number + 1])
        everyone = StepRows(model.entity, None, config.dropout_entity, keys[3 * number + 2])
        pair = model.pair_of(seen)
        queries, to_rows = model.query_forward(known.values, relation.values, seen)
        candidates, to_everyone = model.candidate_forward(everyone.values, seen)
        scores = pair_scores(queries, candidates, pair)
        loss, upstream = _label_loss(scores, questions, config, size, overwrite=pair == "dot")
        step.loss = step.loss + loss
        for_queries, for_candidates = pair_gradients(queries, candidates, scores, upstream, pair)
        everyone.add(to_everyone(for_candidates))
        for_known, for_relation = to_rows(for_queries)
        known.add(for_known)
        relation.add(for_relation)
        if penalizes_rows(config):
            _penalize_questions(model, config, step, questions, (known, relation), n_labels)
        for rows, into in ((known, step.entity), (everyone, step.entity), (relation, step.relation)):
            rows.collect(into)
    return step


def _label_loss(
    scores: Tensor, questions: Questions | QuestionRuns, config: TrainConfig, size: int, *, overwrite: bool
) -> tuple[Tensor, Tensor]:
    """Return `label_loss` and its gradient, divided by `size`; `overwrite`: the gradient may overwrite the scores."""
    if isinstance(questions, QuestionRuns):
        from grash.kernels import softmax_loss_triton

        runs = questions.first, questions.count, questions.answers
        return softmax_loss_triton.label_loss(
            scores if overwrite else scores.clone(), *runs, smoothing=config.label_smoothing, offset=config.offset,
            bce=config.loss == "bce", scale=1 / size,
        )  # fmt: skip
    labels = torch.zeros_like(scores)
    labels[questions.rows, questions.answers] = 1
    loss, upstream = label_loss(scores, labels, config)
    return loss / size, upstream.div_(size)


def _penalize_questions(
    model: KgeModel,
    config: TrainConfig,
    step: StepGradients,
    questions: Questions | QuestionRuns,
    parts: tuple[StepRows, StepRows],
    n_labels: int | Tensor,
) -> None:
    """Penalize the rows of known entities and of relations (`parts`) once per label, and those of the answers."""
    known, relation = parts
    counts = None
    if isinstance(questions, QuestionRuns):
        from grash.kernels import softmax_loss_triton

        runs = questions.first, questions.count, questions.answers
        per_label, counts = questions.count, softmax_loss_triton.answer_counts(*runs, model.n_entities)
        answers = StepRows(model.entity, None, 0.0, 0)  # all entities, by how often they are answers
    else:
        per_label = torch.bincount(questions.rows, minlength=len(questions.known))
        answers = StepRows(model.entity, questions.answers, 0.0, 0)
    per_label = per_label.to(known.raw.dtype)
    penalize_rows(config, step, [known], "entity", n_labels, per_label)
    penalize_rows(config, step, [relation], "relation", n_labels, per_label)
    penalize_rows(config, step, [answers], "entity", n_labels, counts)
    answers.collect(step.entity)


def _n_labels(questions: Questions | QuestionRuns) -> int | Tensor:
    return questions.count.sum() if isinstance(questions, QuestionRuns) else len(questions.answers)


class PenalizedRows(Protocol):
    @property
    def raw(self) -> Tensor: ...
    def add_raw(self, gradient: Tensor) -> None: ...


def penalizes_rows(config: TrainConfig) -> bool:
    """Return whether the rows of a batch are penalized (dura penalizes queries and answers instead)."""
    return POWERS[config.penalty] is not None and config.penalty_weighted


def penalize_rows(
    config: TrainConfig,
    step: StepGradients,
    parts: Sequence[PenalizedRows],
    table: str,
    size: int | Tensor,
    counts: Tensor | None = None,
) -> None:
    """Add the penalty on the raw rows (n, D) of each part, divided by `size`; counts (n,): how often a row counts."""
    weight, moduli = _penalty_weight(config, table), complex_rows(config, table)
    for rows in parts if weight else ():
        value, gradient = power_penalty(rows.raw, weight / size, config.penalty, moduli=moduli, counts=counts)
        step.loss = step.loss + value
        rows.add_raw(gradient)


def add_dura(
    config: TrainConfig, step: StepGradients, queries: Tensor, truth: Tensor, size: int
) -> tuple[Tensor, Tensor]:
    """Add DURA, the squares of queries and true answers (n, D), divided by `size`; return the gradients of both."""
    weight = config.penalty_entity / size
    step.loss = step.loss + weight * (queries.square().sum() + truth.square().sum())
    return 2 * weight * queries, 2 * weight * truth


def penalize_tables(model: KgeModel, config: TrainConfig, step: StepGradients, *, relations_count: bool = True) -> None:
    """Add an unweighted penalty on whole tables, not divided. relations_count: whether relations add to the loss."""
    if config.penalty == "none" or config.penalty_weighted:
        return
    for name, table, into in (("entity", model.entity, step.entity), ("relation", model.relation, step.relation)):
        if weight := _penalty_weight(config, name):
            value, gradient = power_penalty(
                to_float32(table), weight, config.penalty, moduli=complex_rows(config, name)
            )
            step.loss = step.loss + (value if name == "entity" or relations_count else 0 * value)
            into.add(None, gradient)


def _penalty_weight(config: TrainConfig, table: str) -> float:
    return config.penalty_entity if table == "entity" else config.penalty_relation
