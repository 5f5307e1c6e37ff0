"""One step of a training whose entity rows are spread over ranks: the loss and gradients of `gradients`, in company.

Every rank draws the whole batch and asks a part of it. For all slots together:

    rows of the part's ends ← their owners       queries, true scores → everybody
    every rank scores all queries against the candidates it has        loss over the ranks (`sharded_losses`)
    gradients of queries, summed → who asked     gradients of ends → their owners, of relations → everybody

Rows of candidates never travel, so that many negatives, and 1vsAll, cost no more words than few.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from grash.kernels.pair_scores import add_row_gradients, row_scores
from grash.kernels.random import keep_mask, key_at
from grash.models.base import SLOTS, KgeModel, Slot
from grash.training.batches import Batch
from grash.training.config import TrainConfig
from grash.training.gradients import Gradient, Step
from grash.training.penalties import complex_rows, power_penalty
from grash.training.sharded_candidates import Candidates
from grash.training.sharded_company import Company, wide
from grash.training.sharded_losses import joint_reach, negative_part, positive_part, reach_of
from grash.training.sharded_rows import Route, Shard


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
    """One slot of this rank's part of a batch."""

    slot: Slot
    seen: Slot  # as the model sees it
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
    for number, slot in enumerate(tuple(batch.negatives) or SLOTS):
        ids, seen = model.asked(relations, slot)
        place = int(model.reciprocal and slot == "head")
        if place not in used:
            mine = model.relation.index_select(0, ids[part])
            used[place] = ids, Used(mine, places, config.dropout_relation, key_at(key, 2 + place))
        known, answer = (head, tail) if slot == "tail" else (tail, head)
        scored = answer
        if not batch.negatives:
            truths = batch.triples[part, 0 if slot == "head" else 2]
            scored = Used(answer.raw, truths, config.dropout_entity, key_at(key, 4 + number))
        asked.append(_ask(model, slot, seen, known, used[place][1], answer, scored))
    _compare(model, config, step, batch, asked, key, shard=shard, company=company)
    _add_penalties(config, step, [head, tail], [rows for _, rows in used.values()], len(relations))
    if config.relation_prediction:
        _predict_relations(model, config, step, head, tail, relations[part], len(relations), company)
    arrived, order = route.give_back(torch.cat([head.gradient, tail.gradient])), _batch_order(relations, route, company)
    step.entity.add(route.rows[order], arrived[order])
    for ids, its_rows in used.values():
        step.relation.add(ids, company.gather_parts(its_rows.gradient, len(relations)))
    if config.penalty != "none" and not config.penalty_weighted:
        penalise_tables(model, config, step, company)
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


def _ask(model: KgeModel, slot: Slot, seen: Slot, known: Used, relation: Used, answer: Used, scored: Used) -> _Asked:
    queries = model.query(known.values, relation.values, seen)
    truth = model.candidate(scored.values, seen)
    positive = row_scores(queries, truth, model.pair)
    return _Asked(slot, seen, known, relation, answer, scored, queries, truth, positive)


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
    said = torch.stack([torch.cat([a.queries, a.positive[:, None]], 1) for a in asked], 1)  # (part, slots, W + 1)
    heard = company.gather_parts(said, size).unbind(1)
    against = [
        Candidates(model, config, batch, a.slot, heard[n][:, :-1], shard, key_at(key, 4 + n))
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
    """Of all slots with one word."""
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


def penalise_tables(model: KgeModel, config: TrainConfig, step: Step, company: Company) -> None:
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
