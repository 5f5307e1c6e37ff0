"""One step's loss and its gradients, by hand: no autograd graph, no (B, N, D) array, rows instead of tables.

Comes from `batches`, goes to `optimizers`. For each side that is asked:

    queries ← known rows, relation rows       scores ← queries × candidates       loss ← losses.side_loss
    and back the same way; `Taken` collects what arrives at the rows of a table, after dropout.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property

import torch
from torch import Tensor

from grash.kernels.bf16_rows import gather_float32, is_bf16, to_float32
from grash.kernels.complex_product import TripleBatch, both_gradients, both_queries
from grash.kernels.pair_scores import add_row_gradients, pair_gradients, pair_scores, row_gradients, row_scores
from grash.kernels.random import keep_mask, key_at
from grash.kernels.softmax_loss import mask_scores
from grash.models.base import KgeModel, Side
from grash.models.complex import ComplEx
from grash.training.batches import Batch, Negatives, Questions
from grash.training.config import TrainConfig
from grash.training.losses import complex_rows, label_loss, power_penalty, side_loss

_ENDS: tuple[Side, Side] = ("tail", "head")  # in the order of `both_queries`


@dataclass
class Gradient:
    """Of one table: rows (n, width) at ids (n,), repeated ids to be summed; or dense, all rows."""

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
class Step:
    """loss: scalar, mean over the batch, penalties included; gradients of it for both tables."""

    loss: Tensor
    entity: Gradient
    relation: Gradient


class Taken:
    """Rows of a table as a step uses them: `raw` as stored (those in bf16 as float32), `values` after dropout; ids None
    means all rows."""

    def __init__(self, table: Tensor, ids: Tensor | None, rate: float, key: int, *, by_place: bool = True) -> None:
        self.table, self.ids, self.rate, self.key, self.by_place = table, ids, rate, key, by_place
        self.gradient: Tensor | None = None
        self.raw_gradient: Tensor | None = None

    @cached_property
    def raw(self) -> Tensor:
        return to_float32(self.table if self.ids is None else self.table.index_select(0, self.ids))

    @cached_property
    def mask(self) -> Tensor | None:
        """Every occurrence has its own, or every entity has one."""
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

    def settle(self, into: Gradient) -> None:
        total = self.gradient
        if total is not None and self.mask is not None:
            total = total * self.mask
        if self.raw_gradient is not None:
            total = self.raw_gradient if total is None else total + self.raw_gradient
        if total is not None:
            into.add(self.ids, total)


def step_gradients(model: KgeModel, batch: Batch | list[Questions], config: TrainConfig, key: int) -> Step:
    """The step's loss and gradients. `key` belongs to the step; dropout follows from it."""
    if isinstance(batch, Batch):
        step = _positives(model, batch, config, key)
    else:
        step = _questions(model, batch, config, key)
    if config.penalty != "none" and not config.penalty_weighted:
        _whole_table_penalty(model, config, step)
    return step


def _positives(model: KgeModel, batch: Batch, config: TrainConfig, key: int) -> Step:
    step = Step(torch.zeros((), device=model.entity.device), Gradient(), Gradient())
    heads, relations, tails = batch.triples.T
    size = len(batch.triples)
    head = Taken(model.entity, heads, config.dropout_entity, key_at(key, 0))
    tail = Taken(model.entity, tails, config.dropout_entity, key_at(key, 1))
    relation: dict[int, Taken] = {}  # one row per positive, two with reciprocals
    sides: tuple[Side, ...] = tuple(batch.negatives) or ("head", "tail")
    if _asks_both_ends(model, batch, config):
        _compare_ends(model, config, step, batch.negatives, head, tail, relations, relation)
        sides = ()
    for number, side in enumerate(sides):
        known, answer = (head, tail) if side == "tail" else (tail, head)
        ids, seen = model.asked(relations, side)
        place = int(model.reciprocal and side == "head")
        if place not in relation:
            relation[place] = Taken(model.relation, ids, config.dropout_relation, key_at(key, 2 + place))
        negatives = batch.negatives.get(side)
        chosen = None if negatives is None or _scores_all(negatives, model) else negatives.ids.reshape(-1)
        others = Taken(model.entity, chosen, config.dropout_entity, key_at(key, 4 + number), by_place=False)
        asked = _Asked(side, seen, known, relation[place], answer, others, negatives)
        _compare(model, config, step, asked, batch.triples)
        others.settle(step.entity)
    if config.relation_prediction:
        _predict_relations(model, config, step, head, tail, relations)
    if config.penalty in ("l1", "l2", "l3", "n3") and config.penalty_weighted:
        for taken, weight, table in [
            (head, config.penalty_entity, "entity"),
            (tail, config.penalty_entity, "entity"),
            *((r, config.penalty_relation, "relation") for r in relation.values()),
        ]:
            _row_penalty(config, step, taken, weight / size, table)
    head.settle(step.entity)
    tail.settle(step.entity)
    for taken in relation.values():
        taken.settle(step.relation)
    return step


def _asks_both_ends(model: KgeModel, batch: Batch, config: TrainConfig) -> bool:
    """Whether both sides are asked of rows as they stand in ComplEx's tables on a CPU, against shared negatives."""
    return (
        isinstance(model, ComplEx)
        and model.entity.device.type == "cpu"
        and not (config.dropout_entity or config.dropout_relation or config.penalty == "dura")
        and len(batch.negatives) == 2
        and all(negatives.ids.dim() == 1 for negatives in batch.negatives.values())
    )


def _compare_ends(
    model: KgeModel,
    config: TrainConfig,
    step: Step,
    drawn: dict[Side, Negatives],
    head: Taken,
    tail: Taken,
    relations: Tensor,
    relation: dict[int, Taken],
) -> None:
    """`_compare` of both sides at once: all that stands before and after the matrix products in a loop each."""
    assert head.ids is not None and tail.ids is not None
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
    relation[0] = Taken(model.relation, relations, 0.0, 0)
    relation[0].add(given[2])
    if model.reciprocal:
        relation[1] = Taken(model.relation, backward, 0.0, 0)
        relation[1].add(given[3])


def _compare_end(
    model: KgeModel, config: TrainConfig, queries: Tensor, positive: Tensor, rows: Tensor, negatives: Negatives
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """One side's loss and its gradients for queries, true scores and rows. Its scores end here: the other side's take
    their place, while it is still in the cache."""
    against = _Drawn(model, queries, rows, positive, negatives)
    scale = 1 / len(queries)
    loss, for_positive, for_negative = side_loss(positive, against.scores, config, scale=scale, overwrite=True)
    for_queries, for_rows = against.gradients(for_positive, for_negative)
    return loss, for_queries, for_positive, for_rows


def _scores_all(negatives: Negatives, model: KgeModel) -> bool:
    """Whether negatives of their own are cheaper picked from the scores of all entities (one product) than
    gathered row by row: (B, E) numbers against (B, N, D)."""
    if negatives.ids.dim() == 1 or model.pair not in ("dot", "l2"):
        return False
    return model.n_entities <= negatives.ids.shape[1] * model.dim // 4


@dataclass(frozen=True)
class _Asked:
    """One side of a batch of positives: what is known, what is true, and what it is compared with."""

    side: Side
    seen: Side  # as the model sees it
    known: Taken
    relation: Taken
    answer: Taken
    others: Taken
    negatives: Negatives | None


def _compare(model: KgeModel, config: TrainConfig, step: Step, asked: _Asked, triples: Tensor) -> None:
    """The loss of the true answers of one side against the others, and its gradients."""
    size, seen, negatives = len(triples), asked.seen, asked.negatives
    queries = model.query(asked.known.values, asked.relation.values, seen)
    truth = model.candidate(asked.answer.values, seen)
    candidates = model.candidate(asked.others.values, seen)
    against: _EveryoneElse | _Drawn
    if negatives is None:
        against = _EveryoneElse(model, queries, candidates, triples[:, 0 if asked.side == "head" else 2])
    else:
        against = _Drawn(model, queries, candidates, row_scores(queries, truth, model.pair), negatives)
    positive = against.positive
    loss, for_positive, for_negative = side_loss(
        positive, against.scores, config, scale=1 / size, overwrite=model.pair == "dot"
    )
    step.loss = step.loss + loss
    for_queries, for_candidates = against.gradients(for_positive, for_negative)
    asked.others.add(model.candidate_gradient(for_candidates, seen))
    if negatives is not None:
        for_truth = add_row_gradients(for_queries, queries, truth, for_positive, model.pair)
        asked.answer.add(model.candidate_gradient(for_truth, seen))
    if config.penalty == "dura":
        weight = config.penalty_entity / size
        step.loss = step.loss + weight * (queries.square().sum() + truth.square().sum())
        for_queries = for_queries + 2 * weight * queries
        asked.answer.add(model.candidate_gradient(2 * weight * truth, seen))
    for_known, for_relation = model.query_gradient(for_queries, asked.known.values, asked.relation.values, seen)
    asked.known.add(for_known)
    asked.relation.add(for_relation)


class _EveryoneElse:
    """1vsAll: the truth is scored among all entities, then taken out of the others."""

    def __init__(self, model: KgeModel, queries: Tensor, candidates: Tensor, answers: Tensor) -> None:
        self.pair, self.queries, self.candidates = model.pair, queries, candidates
        self.scores = pair_scores(queries, candidates, model.pair)
        self.place = torch.arange(len(queries), device=queries.device), answers
        self.positive = self.scores[self.place]
        self.scores[self.place] = -torch.inf

    def gradients(self, for_positive: Tensor, for_negative: Tensor) -> tuple[Tensor, Tensor]:
        if for_negative is not self.scores:
            self.scores[self.place] = self.positive
        for_negative[self.place] = for_positive
        return pair_gradients(self.queries, self.candidates, self.scores, for_negative, self.pair)


class _Drawn:
    """Negative sampling: candidates shared by the batch (N, W), or each query's own, gathered (B·N, W) or picked
    from all entities (E, W)."""

    def __init__(
        self, model: KgeModel, queries: Tensor, candidates: Tensor, positive: Tensor, negatives: Negatives
    ) -> None:
        self.positive = positive
        self.pair, self.queries, self.candidates, self.ids = model.pair, queries, candidates, negatives.ids
        self.own = negatives.ids.dim() == 2
        self.picked = self.own and _scores_all(negatives, model)
        if self.picked:
            self.all_scores = pair_scores(queries, candidates, model.pair)
            self.scores = self.all_scores.gather(1, self.ids)
        elif self.own:
            self.candidates = candidates.reshape(*self.ids.shape, -1)
            self.scores = row_scores(queries[:, None, :], self.candidates, model.pair)
        else:
            self.scores = pair_scores(queries, candidates, model.pair)
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
    model: KgeModel, config: TrainConfig, step: Step, head: Taken, tail: Taken, relations: Tensor
) -> None:
    """Cross-entropy of the true relation among all (Chen et al., 2021), without dropout on relations."""
    size = len(relations)
    table = model.relation[: model.n_relations]
    scores = model.relation_scores(head.values, tail.values, table)
    logs = torch.log_softmax(scores, 1)
    rows = torch.arange(size, device=scores.device)
    weight = config.relation_prediction / size
    step.loss = step.loss - weight * logs[rows, relations].sum()
    upstream = logs.exp()
    upstream[rows, relations] -= 1
    for_head, for_tail, for_relations = model.relation_scores_gradient(
        upstream * weight, scores, head.values, tail.values, table
    )
    head.add(for_head)
    tail.add(for_tail)
    if model.reciprocal:
        for_relations = torch.cat([for_relations, torch.zeros_like(for_relations)])
    step.relation.add(None, for_relations)


def _questions(model: KgeModel, groups: list[Questions], config: TrainConfig, key: int) -> Step:
    step = Step(torch.zeros((), device=model.entity.device), Gradient(), Gradient())
    size = sum(len(group.known) for group in groups)
    n_labels = sum(len(group.answers) for group in groups)
    for number, group in enumerate(groups):
        ids, seen = model.asked(group.relations, group.side)
        known = Taken(model.entity, group.known, config.dropout_entity, key_at(key, 3 * number))
        relation = Taken(model.relation, ids, config.dropout_relation, key_at(key, 3 * number + 1))
        everyone = Taken(model.entity, None, config.dropout_entity, key_at(key, 3 * number + 2))
        queries = model.query(known.values, relation.values, seen)
        candidates = model.candidate(everyone.values, seen)
        scores = pair_scores(queries, candidates, model.pair)
        labels = torch.zeros_like(scores)
        labels[group.rows, group.answers] = 1
        loss, upstream = label_loss(scores, labels, config)
        step.loss = step.loss + loss / size
        for_queries, for_candidates = pair_gradients(queries, candidates, scores, upstream.div_(size), model.pair)
        everyone.add(model.candidate_gradient(for_candidates, seen))
        for_known, for_relation = model.query_gradient(for_queries, known.values, relation.values, seen)
        known.add(for_known)
        relation.add(for_relation)
        if config.penalty_weighted and config.penalty in ("l1", "l2", "l3", "n3"):
            answers = Taken(model.entity, group.answers, 0.0, 0)
            per_label = torch.bincount(group.rows, minlength=len(group.known)).to(queries.dtype)
            for taken, weight, table, counts in (
                (known, config.penalty_entity, "entity", per_label),
                (relation, config.penalty_relation, "relation", per_label),
                (answers, config.penalty_entity, "entity", None),
            ):
                _row_penalty(config, step, taken, weight / n_labels, table, counts)
            answers.settle(step.entity)
        for taken, into in ((known, step.entity), (everyone, step.entity), (relation, step.relation)):
            taken.settle(into)
    return step


def _row_penalty(
    config: TrainConfig, step: Step, taken: Taken, weight: float, table: str, counts: Tensor | None = None
) -> None:
    """The weighted penalty on the raw rows; counts (n,) say how often each row's use counts."""
    if not weight:
        return
    value, gradient = power_penalty(
        taken.raw, weight, config.penalty, moduli=complex_rows(config, table), counts=counts
    )
    step.loss = step.loss + value
    taken.raw_gradient = gradient


def _whole_table_penalty(model: KgeModel, config: TrainConfig, step: Step) -> None:
    for table, weight, into, name in (
        (model.entity, config.penalty_entity, step.entity, "entity"),
        (model.relation, config.penalty_relation, step.relation, "relation"),
    ):
        if weight:
            value, gradient = power_penalty(
                to_float32(table), weight, config.penalty, moduli=complex_rows(config, name)
            )
            step.loss = step.loss + value
            into.add(None, gradient)
