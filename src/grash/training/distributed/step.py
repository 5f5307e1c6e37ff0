"""One step of a training whose entity rows are spread over ranks: the loss and gradients of `gradients`, in company.

Every rank draws the whole batch and asks a part of it. For all sides together:

    rows of the part's ends ← their owners       queries, true scores → everybody
    every rank scores all queries against the candidates it has        loss over the ranks (`sharded_losses`)
    gradients of queries, summed → who asked     gradients of ends → their owners, of relations → everybody

Rows of candidates never travel, so that many negatives, and 1vsAll, cost no more words than few.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from grash.kernels.pair_scores import (
    Pair,
    add_row_gradients,
    loop_gradients,
    pair_gradients,
    pair_scores,
    row_gradients,
    row_scores,
    use_loops,
)
from grash.kernels.random import keep_mask, key_at
from grash.models.base import SIDES, KgeModel, Side
from grash.training.batches import Batch, Negatives, Questions
from grash.training.config import TrainConfig
from grash.training.distributed.communication import Company, wide
from grash.training.distributed.tables import Route, Shard
from grash.training.gradients import Gradient, Step
from grash.training.losses import complex_rows, power_penalty


class Used:
    """Rows (n, D) as a step uses them: `raw` as stored, `values` after dropout, `gradient` with respect to raw.
    Masks follow from places, so that a part of a batch has those of the whole."""

    def __init__(self, raw: Tensor, places: Tensor, rate: float, key: int) -> None:
        self.raw, self.gradient = raw, torch.zeros_like(raw)
        self.mask = keep_mask(places, raw.shape[1], rate, key).to(raw.dtype) if rate else None
        self.values = raw if self.mask is None else raw * self.mask

    def add(self, gradient: Tensor) -> None:
        self.gradient += gradient if self.mask is None else gradient * self.mask


@dataclass(eq=False)
class _Asked:
    """One side of this rank's part of a batch."""

    side: Side
    seen: Side  # as the model sees it
    known: Used
    relation: Used
    answer: Used
    scored: Used  # the answer as it is compared: with 1vsAll it has the mask of a candidate
    queries: Tensor
    truth: Tensor
    positive: Tensor


def sharded_gradients(
    model: KgeModel, batch: Batch, config: TrainConfig, key: int, *, shard: Shard, company: Company
) -> Step:
    """model: this rank's rows, and all relations. The gradients of the whole batch for these rows (local ids) and for
    the relations; of the loss this rank's share. Sums over the ranks equal `gradients.step_gradients`."""
    step = Step(torch.zeros((), device=model.entity.device), Gradient(), Gradient())
    part = company.part(len(batch.triples))
    route = _route(batch.triples, shard, company)
    places = torch.arange(part.start, part.stop, device=model.entity.device)
    rows = route.fetch(model.entity).split([len(places)] * 2)
    head, tail = (Used(r, places, config.dropout_entity, key_at(key, n)) for n, r in enumerate(rows))
    relations = batch.triples[:, 1]
    used: dict[int, tuple[Tensor, Used]] = {}  # of the batch the ids, of the part the rows; two with reciprocals
    asked = []
    for number, side in enumerate(tuple(batch.negatives) or SIDES):
        ids, seen = model.asked(relations, side)
        place = int(model.reciprocal and side == "head")
        if place not in used:
            mine = model.relation.index_select(0, ids[part])
            used[place] = ids, Used(mine, places, config.dropout_relation, key_at(key, 2 + place))
        known, answer = (head, tail) if side == "tail" else (tail, head)
        scored = answer
        if not batch.negatives:
            truths = batch.triples[part, 0 if side == "head" else 2]
            scored = Used(answer.raw, truths, config.dropout_entity, key_at(key, 4 + number))
        asked.append(_ask(model, side, seen, known, used[place][1], answer, scored))
    _compare(model, config, step, batch, asked, key, shard=shard, company=company)
    _add_penalties(config, step, [head, tail], [rows for _, rows in used.values()], len(relations))
    if config.relation_prediction:
        _predict_relations(model, config, step, head, tail, relations[part], len(relations), company)
    arrived, order = route.give_back(torch.cat([head.gradient, tail.gradient])), _batch_order(relations, route, company)
    step.entity.add(route.rows[order], arrived[order])
    for ids, its_rows in used.values():
        step.relation.add(ids, company.gather_parts(its_rows.gradient, len(relations)))
    if config.penalty != "none" and not config.penalty_weighted:
        penalize_tables(model, config, step, company)
    return step


def _route(triples: Tensor, shard: Shard, company: Company) -> Route:
    """For the heads and then the tails of every rank's part."""
    heads, tails = company.parts(triples[:, 0]), company.parts(triples[:, 2])
    return Route([torch.cat(ends) for ends in zip(heads, tails)], shard, company)


def _batch_order(relations: Tensor, route: Route, company: Company) -> Tensor:
    """Of the rows that arrive at this rank: heads and then tails as the batch has them, for any number of ranks."""
    places = torch.arange(len(relations), device=relations.device)
    ends = zip(company.parts(places), company.parts(places + len(places)))
    return torch.argsort(torch.cat([torch.cat(pair) for pair in ends])[route.asked])


def _ask(model: KgeModel, side: Side, seen: Side, known: Used, relation: Used, answer: Used, scored: Used) -> _Asked:
    queries = model.query(known.values, relation.values, seen)
    truth = model.candidate(scored.values, seen)
    positive = row_scores(queries, truth, model.pair)
    return _Asked(side, seen, known, relation, answer, scored, queries, truth, positive)


def _compare(
    model: KgeModel,
    config: TrainConfig,
    step: Step,
    batch: Batch,
    asked: list[_Asked],
    key: int,
    *,
    shard: Shard,
    company: Company,
) -> None:
    """The loss of the true answers against all others, and what it says about queries, answers and candidates."""
    size = len(batch.triples)
    said = torch.stack([torch.cat([a.queries, a.positive[:, None]], 1) for a in asked], 1)  # (part, sides, W + 1)
    heard = company.gather_parts(said, size).unbind(1)
    against = [
        Candidates(model, config, batch, a.side, heard[n][:, :-1], shard, key_at(key, 4 + n))
        for n, a in enumerate(asked)
    ]
    reaches = _joint_reaches(against, config, company)
    parts = []
    for candidates, told, reach in zip(against, heard, reaches):
        loss, for_positive, for_negative = negative_part(told[:, -1], candidates.scores, reach, config)
        step.loss = step.loss + loss / size
        for_queries = candidates.settle(for_negative.div_(size), step.entity)
        parts.append(torch.cat([for_queries, for_positive[:, None].to(for_queries.dtype) / size], 1))
    arrived = company.total_parts(torch.stack(parts, 1)).to(model.entity.dtype).unbind(1)
    part = company.part(size)
    for a, back, reach in zip(asked, arrived, reaches):
        loss, for_positive = positive_part(a.positive, None if reach is None else reach[part], config)
        step.loss = step.loss + loss / size
        _pass_back(model, config, step, a, back[:, :-1].contiguous(), back[:, -1] + for_positive / size, size)


def _joint_reaches(against: list[Candidates], config: TrainConfig, company: Company) -> list[Tensor | None]:
    """Of all sides with one word."""
    own = [reach_of(candidates.scores, config) for candidates in against]
    found = [reach for reach in own if reach is not None]
    if not found:
        return own
    return list(joint_reach(company.gather(torch.stack(found))).unbind(0))


def _pass_back(
    model: KgeModel,
    config: TrainConfig,
    step: Step,
    asked: _Asked,
    for_queries: Tensor,
    for_positive: Tensor,
    size: int,
) -> None:
    """From queries and true scores of the part to the rows they were made of."""
    for_truth = add_row_gradients(for_queries, asked.queries, asked.truth, for_positive, model.pair)
    asked.scored.add(model.candidate_gradient(for_truth, asked.seen))
    if asked.scored is not asked.answer:
        asked.answer.gradient += asked.scored.gradient
    if config.penalty == "dura":
        weight, truth = config.penalty_entity / size, model.candidate(asked.answer.values, asked.seen)
        step.loss = step.loss + weight * (asked.queries.square().sum() + truth.square().sum())
        for_queries = for_queries + 2 * weight * asked.queries
        asked.answer.add(model.candidate_gradient(2 * weight * truth, asked.seen))
    known, relation = asked.known, asked.relation
    for_known, for_relation = model.query_gradient(for_queries, known.values, relation.values, asked.seen)
    known.add(for_known)
    relation.add(for_relation)


def _add_penalties(config: TrainConfig, step: Step, ends: list[Used], relations: list[Used], size: int) -> None:
    """Weighted ones, on the rows of the part as they are stored."""
    if config.penalty not in ("l1", "l2", "l3", "n3") or not config.penalty_weighted:
        return
    for rows, weight, table in (
        *((end, config.penalty_entity, "entity") for end in ends),
        *((relation, config.penalty_relation, "relation") for relation in relations),
    ):
        if weight:
            value, gradient = power_penalty(rows.raw, weight / size, config.penalty, moduli=complex_rows(config, table))
            step.loss = step.loss + value
            rows.gradient += gradient


def _predict_relations(
    model: KgeModel,
    config: TrainConfig,
    step: Step,
    head: Used,
    tail: Used,
    relations: Tensor,
    size: int,
    company: Company,
) -> None:
    """Cross-entropy of the part's true relations among all; every rank has them, so only sums are told."""
    table = model.relation[: model.n_relations]
    scores = model.relation_scores(head.values, tail.values, table)
    logs = torch.log_softmax(scores, 1)
    rows = torch.arange(len(relations), device=scores.device)
    weight = config.relation_prediction / size
    step.loss = step.loss - weight * logs[rows, relations].sum()
    upstream = logs.exp()
    upstream[rows, relations] -= 1
    given = (wide(x) for x in (upstream * weight, scores, head.values, tail.values, table))
    for_head, for_tail, for_relations = model.relation_scores_gradient(*given)
    head.add(for_head.to(head.raw.dtype))
    tail.add(for_tail.to(tail.raw.dtype))
    dense = torch.zeros_like(model.relation)
    dense[: len(for_relations)] = company.total(for_relations)
    step.relation.add(None, dense)


def penalize_tables(model: KgeModel, config: TrainConfig, step: Step, company: Company) -> None:
    """Unweighted: every rank its own rows; the relations, which all have, count once."""
    if config.penalty_entity:
        value, gradient = power_penalty(
            model.entity, config.penalty_entity, config.penalty, moduli=complex_rows(config, "entity")
        )
        step.loss = step.loss + value
        step.entity.add(None, gradient)
    if config.penalty_relation:
        value, gradient = power_penalty(
            model.relation, config.penalty_relation, config.penalty, moduli=complex_rows(config, "relation")
        )
        step.loss = step.loss + (value if company.rank == 0 else 0 * value)
        step.relation.add(None, gradient)


# = One step of KvsAll whose entity rows are spread over ranks: the step of questions of `gradients`, in company.
# =
# = As in `sharded_step` every rank makes the queries of a part of the questions and tells them to all; each compares them
# = with all of its rows, and with the labels of these.


@dataclass(frozen=True, eq=False)
class _Place:
    """Who asks, and of how many questions and labels the batch consists."""

    shard: Shard
    company: Company
    n_questions: int
    n_labels: int


def sharded_questions(
    model: KgeModel, groups: list[Questions], config: TrainConfig, key: int, *, shard: Shard, company: Company
) -> Step:
    """As `sharded_step.sharded_gradients`, for a batch of questions."""
    step = Step(torch.zeros((), device=model.entity.device), Gradient(), Gradient())
    n_questions, n_labels = sum(len(group.known) for group in groups), sum(len(group.answers) for group in groups)
    place = _Place(shard, company, n_questions, n_labels)
    for number, group in enumerate(groups):
        _ask_sharded_questions(model, group, config, [key_at(key, 3 * number + i) for i in range(3)], step, place)
    if config.penalty != "none" and not config.penalty_weighted:
        penalize_tables(model, config, step, company)
    return step


def _ask_sharded_questions(
    model: KgeModel, group: Questions, config: TrainConfig, keys: list[int], step: Step, place: _Place
) -> None:
    """The questions of one side. keys: of the known entities' dropout, the relations', the candidates'."""
    shard, company, n = place.shard, place.company, len(group.known)
    ids, seen = model.asked(group.relations, group.side)
    part = company.part(n)
    places = torch.arange(part.start, part.stop, device=model.entity.device)
    route = Route(company.parts(group.known), shard, company)
    known = Used(route.fetch(model.entity), places, config.dropout_entity, keys[0])
    relation = Used(model.relation.index_select(0, ids[part]), places, config.dropout_relation, keys[1])
    own = torch.arange(shard.first, shard.last, device=model.entity.device)
    everyone = Used(model.entity, own, config.dropout_entity, keys[2])
    queries = company.gather_parts(model.query(known.values, relation.values, seen), n)
    candidates = model.candidate(everyone.values, seen)
    scores = pair_scores(queries, candidates, model.pair)
    loss, upstream = _label_part(scores, group, config, shard, company)
    step.loss = step.loss + loss / place.n_questions
    partial, for_candidates = wide_gradients(queries, candidates, scores, upstream.div_(place.n_questions), model.pair)
    everyone.add(model.candidate_gradient(for_candidates, seen))
    for_queries = company.total_parts(partial).to(queries.dtype)
    for_known, for_relation = model.query_gradient(for_queries, known.values, relation.values, seen)
    known.add(for_known)
    relation.add(for_relation)
    if config.penalty_weighted and config.penalty in ("l1", "l2", "l3", "n3"):
        _add_penalties_sharded_questions(model, group, config, step, known, relation, place)
    step.entity.add(route.rows, route.give_back(known.gradient))
    step.entity.add(None, everyone.gradient)
    step.relation.add(ids, company.gather_parts(relation.gradient, n))


def _label_part(
    scores: Tensor, group: Questions, config: TrainConfig, shard: Shard, company: Company
) -> tuple[Tensor, Tensor]:
    """`losses.label_loss` of this rank's columns: scores (B, E_own) → its share of the sum, gradient (B, E_own)."""
    mine = torch.nonzero(shard.has(group.answers))[:, 0]
    labels = torch.zeros_like(scores)
    labels[group.rows[mine], group.answers[mine] - shard.first] = 1
    counts = torch.bincount(group.rows, minlength=len(scores)).to(scores.dtype)  # of all ranks' labels
    if config.label_smoothing:
        labels = (1 - config.label_smoothing) * labels + 1.0 / shard.n_rows
        counts = (1 - config.label_smoothing) * counts + 1.0
    if config.loss == "bce":
        logits = scores + config.offset
        return F.binary_cross_entropy_with_logits(logits, labels, reduction="sum"), torch.sigmoid(logits) - labels
    target = labels / counts[:, None]
    logs = scores - joint_reach(company.gather(wide_logsumexp(scores))).to(scores.dtype)[:, None]
    return torch.xlogy(target, target).sum() - (target * logs).sum(), logs.exp() - target


def _add_penalties_sharded_questions(
    model: KgeModel, group: Questions, config: TrainConfig, step: Step, known: Used, relation: Used, place: _Place
) -> None:
    """What a question knows counts once per label; answers are penalized by the ranks that have them."""
    part = place.company.part(len(group.known))
    per_label = torch.bincount(group.rows, minlength=len(group.known)).to(model.entity.dtype)[part]
    for rows, weight, table in (
        (known, config.penalty_entity, "entity"),
        (relation, config.penalty_relation, "relation"),
    ):
        if weight:
            moduli = complex_rows(config, table)
            value, gradient = power_penalty(
                rows.raw, weight / place.n_labels, config.penalty, moduli=moduli, counts=per_label
            )
            step.loss = step.loss + value
            rows.gradient += gradient
    if config.penalty_entity:
        answers = group.answers[place.shard.has(group.answers)] - place.shard.first
        value, gradient = power_penalty(
            model.entity.index_select(0, answers),
            config.penalty_entity / place.n_labels,
            config.penalty,
            moduli=complex_rows(config, "entity"),
        )
        step.loss = step.loss + value
        step.entity.add(answers, gradient)


# = What a rank compares the queries of a whole batch with: the candidates among its own rows.
# =
# = Comes from `sharded_step`, which passes queries in and their gradients on. Three kinds: all of the rank's rows (1vsAll);
# = those negatives of the batch that it has; of each query's own negatives those that it has.


class Candidates:
    """Of one side. scores (B, n): −∞ where an entry is no negative, or another rank's."""

    def __init__(
        self,
        model: KgeModel,
        config: TrainConfig,
        batch: Batch,
        side: Side,
        queries: Tensor,
        shard: Shard,
        key: int,
    ) -> None:
        self.model, self.queries = model, queries.contiguous()
        self.ids: Tensor | None = None  # local rows; None: all of them
        self.pairs: tuple[Tensor, Tensor] | None = None  # (row, column) in scores of queries' own negatives
        negatives = batch.negatives.get(side)
        if negatives is not None and negatives.ids.dim() == 2:
            self.pairs = _own_pairs(negatives, shard)
            self.ids = negatives.ids[self.pairs] - shard.first
        elif negatives is not None:
            self.ids = negatives.ids[shard.has(negatives.ids)] - shard.first
        _, self.seen = model.asked(batch.triples[:0, 1], side)
        rows = model.entity if self.ids is None else model.entity.index_select(0, self.ids)
        self.mask: Tensor | None = None
        if config.dropout_entity:
            places = torch.arange(len(shard), device=rows.device) if self.ids is None else self.ids
            self.mask = keep_mask(places + shard.first, rows.shape[1], config.dropout_entity, key).to(rows.dtype)
            rows = rows * self.mask
        self.rows = model.candidate(rows, self.seen)
        self.scores = self._scored(negatives)
        answers = batch.triples[:, 0 if side == "head" else 2]
        if negatives is None:
            mine = torch.nonzero(shard.has(answers))[:, 0]
            self.scores[mine, answers[mine] - shard.first] = -torch.inf
        elif self.pairs is None:
            _leave_out(self.scores, negatives, shard)

    def settle(self, for_negative: Tensor, into: Gradient) -> Tensor:
        """(B, n) for the scores → this rank's share (B, W), `wide`, for the queries; the candidates' rows go `into` the
        entities' gradient."""
        pair = self.model.pair
        if self.pairs is None:
            for_queries, for_rows = wide_gradients(self.queries, self.rows, self.scores, for_negative, pair)
        else:
            asking = self.queries[self.pairs[0]]
            per_pair, for_rows = row_gradients(asking, self.rows, for_negative[self.pairs], pair)
            # sorts and adds in a fixed order, where index_add would use atomics
            for_queries = wide(torch.zeros_like(self.queries))
            for_queries.index_put_((self.pairs[0],), per_pair.to(for_queries.dtype), accumulate=True)
        given = self.model.candidate_gradient(for_rows, self.seen)
        into.add(self.ids, given if self.mask is None else given * self.mask)
        return for_queries

    def _scored(self, negatives: Negatives | None) -> Tensor:
        if self.pairs is None:
            return pair_scores(self.queries, self.rows, self.model.pair)
        assert negatives is not None
        scores = self.rows.new_full(negatives.ids.shape, -torch.inf)
        scores[self.pairs] = row_scores(self.queries[self.pairs[0]], self.rows, self.model.pair)
        return scores


def wide_gradients(
    queries: Tensor, rows: Tensor, scores: Tensor, upstream: Tensor, pair: Pair
) -> tuple[Tensor, Tensor]:
    """`pair_gradients`, with sums for the queries that are `wide`: other ranks' shares are added to them."""
    if queries.device.type != "cpu":
        return pair_gradients(queries, rows, scores, upstream, pair)
    if pair == "dot":
        return wide(upstream) @ wide(rows), upstream.T @ queries
    if pair != "l2" and use_loops(queries):
        return loop_gradients(queries, rows, upstream, pair, torch.float64)
    doubles = [wide(x) for x in (queries, rows, scores, upstream)]
    for_queries, for_rows = pair_gradients(doubles[0], doubles[1], doubles[2], doubles[3], pair)
    return for_queries, for_rows.to(rows.dtype)


def _own_pairs(negatives: Negatives, shard: Shard) -> tuple[Tensor, Tensor]:
    """Where the (B, N) negatives of each query are real and this rank's."""
    real = shard.has(negatives.ids)
    if negatives.blocked is not None:
        real &= ~negatives.blocked
    rows, columns = torch.nonzero(real, as_tuple=True)
    return rows, columns


def _leave_out(scores: Tensor, negatives: Negatives, shard: Shard) -> None:
    """Truths and known facts among this rank's shared negatives get −∞."""
    assert negatives.rows is not None and negatives.columns is not None and negatives.real is not None
    mine = shard.has(negatives.ids)
    column = torch.cumsum(mine, 0) - 1  # of a negative of the batch in the scores of this rank
    out = ~negatives.real & mine[negatives.columns]
    scores[negatives.rows[out], column[negatives.columns[out]]] = -torch.inf


# = The losses of `losses`, where every rank has scored some of the negatives.
# =
# =     negative (B, n)   scores of this rank's negatives, −∞ where an entry is none
# =     reach (B,)        log Σ exp of the negatives of all ranks, where the loss needs it (`reach_of`, `joint_reach`);
# =                       float64 on a CPU (`sharded_company.wide`)
# = A loss falls into what each rank adds for its negatives, and what one of them adds for the positives.

_TOGETHER = 1 << 22  # scores that are summed at a time


def reach_of(negative: Tensor, config: TrainConfig) -> Tensor | None:
    """(B,) of this rank's negatives; None where the loss looks at each alone."""
    if config.loss == "softmax":
        return wide_logsumexp(negative)
    if config.loss == "self_adversarial":
        return wide_logsumexp(_sharpened(negative, config))
    return None


def wide_logsumexp(scores: Tensor) -> Tensor:
    """(B, n) → (B,), some rows at a time, since there may be as many columns as entities."""
    rows = max(1, _TOGETHER // max(1, scores.shape[1]))
    return torch.cat([torch.logsumexp(wide(part), 1) for part in scores.split(rows)])


def joint_reach(reaches: Tensor) -> Tensor:
    """(size, B) of all ranks → (B,)."""
    return torch.logsumexp(reaches, 0)


def negative_part(
    positive: Tensor, negative: Tensor, reach: Tensor | None, config: TrainConfig
) -> tuple[Tensor, Tensor, Tensor]:
    """(loss, for_positive (B,), for_negative (B, n)): what this rank's negatives add to each."""
    nothing = torch.zeros_like(positive)
    if config.loss == "softmax":
        assert reach is not None
        return nothing.sum(), nothing, (negative - _total(positive, reach)[:, None]).exp_()
    if config.loss == "bce":
        shifted = negative + config.offset
        return F.softplus(shifted).sum(), nothing, torch.sigmoid(shifted)
    if config.loss == "margin":
        short = (config.margin - positive[:, None] + negative).clamp_min(0)
        active = (short > 0).to(positive.dtype)
        return short.sum(), -active.sum(1), active
    assert reach is not None
    # a question without negatives has the reach −∞, and −∞ + ∞ is no number
    weights = torch.exp(_sharpened(negative, config) - reach.to(negative.dtype)[:, None]).nan_to_num(0.0)
    shifted = negative + config.margin
    return (weights * F.softplus(shifted)).sum(), nothing, weights * torch.sigmoid(shifted)


def positive_part(positive: Tensor, reach: Tensor | None, config: TrainConfig) -> tuple[Tensor, Tensor]:
    """(loss, for_positive (B,)): what the positives add, beside what each rank's negatives say about them."""
    if config.loss == "softmax":
        assert reach is not None
        total = _total(positive, reach)
        return (total - positive).sum(), torch.expm1(positive - total)
    if config.loss == "margin":
        return positive.new_zeros(()), torch.zeros_like(positive)
    shifted = positive + (config.offset if config.loss == "bce" else config.margin)
    return F.softplus(-shifted).sum(), torch.sigmoid(shifted) - 1


def _total(positive: Tensor, reach: Tensor) -> Tensor:
    """(B,) log Σ exp of a positive and its negatives."""
    return torch.logaddexp(positive.to(reach.dtype), reach).to(positive.dtype)


def _sharpened(negative: Tensor, config: TrainConfig) -> Tensor:
    absent = negative == -torch.inf  # the temperature may be 0, and 0·∞ is no number
    return (config.temperature * negative).masked_fill_(absent, -torch.inf)
