"""One step of KvsAll whose entity rows are spread over ranks: the step of questions of `gradients`, in company.

As in `sharded_step` every rank makes the queries of a part of the questions and tells them to all; each compares them
with all of its rows, and with the labels of these.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from grash.kernels.pair_scores import pair_scores
from grash.kernels.random import key_at
from grash.models.base import KgeModel
from grash.training.batches import Questions
from grash.training.config import TrainConfig
from grash.training.gradients import Gradient, Step
from grash.training.penalties import complex_rows, power_penalty
from grash.training.sharded_candidates import wide_gradients
from grash.training.sharded_company import Company
from grash.training.sharded_losses import joint_reach, wide_logsumexp
from grash.training.sharded_rows import Route, Shard
from grash.training.sharded_step import Used, penalise_tables


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
        _ask(model, group, config, [key_at(key, 3 * number + i) for i in range(3)], step, place)
    if config.penalty != "none" and not config.penalty_weighted:
        penalise_tables(model, config, step, company)
    return step


def _ask(model: KgeModel, group: Questions, config: TrainConfig, keys: list[int], step: Step, place: _Place) -> None:
    """The questions of one slot. keys: of the known entities' dropout, the relations', the candidates'."""
    shard, company, n = place.shard, place.company, len(group.known)
    ids, seen = model.asked(group.relations, group.slot)
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
        _add_penalties(model, group, config, step, known, relation, place)
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


def _add_penalties(
    model: KgeModel, group: Questions, config: TrainConfig, step: Step, known: Used, relation: Used, place: _Place
) -> None:
    """What a question knows counts once per label; answers are penalised by the ranks that have them."""
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
