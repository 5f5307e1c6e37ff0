"""The slow truth: scores from their formulas, a step's loss for autograd, ranks by full sort. Nothing here is fast.

Written in float64 from the definitions in the docs, without looking through the source's kernels: complex numbers
are torch's own, masks of negatives are decided pair by pair, losses are torch.nn.functional's. Only the dropout
masks come from the source, since they are random numbers and no arithmetic.
"""

from __future__ import annotations

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from grash.kernels.random import keep_mask, key_at
from grash.training.batches import Batch, Questions
from grash.training.config import TrainConfig

Known = set[tuple[int, int, int]]


def score(model: str, norm: int, head: Tensor, relation: Tensor, tail: Tensor) -> Tensor:
    """The score of (head, relation, tail) rows, each (…, width) → (…)."""
    if model == "distmult":
        return (head * relation * tail).sum(-1)
    if model == "complex":
        return (as_complex(head) * as_complex(relation) * as_complex(tail).conj()).sum(-1).real
    if model == "cp":
        half = head.shape[-1] // 2
        return (head[..., :half] * relation * tail[..., half:]).sum(-1)
    if model == "rescal":
        matrix = relation.unflatten(-1, (head.shape[-1], head.shape[-1]))
        return torch.einsum("...i,...ij,...j->...", head, matrix, tail)
    if model == "transe":
        return -torch.linalg.vector_norm(head + relation - tail, ord=norm, dim=-1)
    if model == "simple":
        (h1, h2), (r1, r2), (t1, t2) = (x.chunk(2, -1) for x in (head, relation, tail))
        return ((h1 * r1 * t2).sum(-1) + (h2 * r2 * t1).sum(-1)) / 2
    if model == "quate":
        return _quaternion_score(head, relation, tail)
    if model == "mure":
        scale, shift = relation.chunk(2, -1)
        moved = scale * head[..., :-2] + shift - tail[..., :-2]
        return -moved.square().sum(-1) + head[..., -2] + tail[..., -1]
    if model == "pairre":
        first, second = relation.chunk(2, -1)
        head, tail = F.normalize(head, dim=-1), F.normalize(tail, dim=-1)
        return -torch.linalg.vector_norm(head * first - tail * second, ord=norm, dim=-1)
    assert model == "rotate"
    moved = as_complex(head) * torch.exp(1j * relation) - as_complex(tail)
    if norm == 1:
        return -moved.abs().sum(-1)
    return -torch.linalg.vector_norm(torch.view_as_real(moved).flatten(-2), dim=-1)


def _quaternion_score(head: Tensor, relation: Tensor, tail: Tensor) -> Tensor:
    """Σ over the coordinates: quaternions as 2 × 2 complex matrices, whose product is the Hamilton product."""

    def matrix(rows: Tensor) -> Tensor:
        a, b, c, d = rows.chunk(4, -1)
        first, second = torch.complex(a, b), torch.complex(c, d)
        return torch.stack([torch.stack([first, second], -1), torch.stack([-second.conj(), first.conj()], -1)], -2)

    length = relation.unflatten(-1, (4, -1)).square().sum(-2).clamp_min(1e-24).sqrt()
    product = matrix(head) @ matrix(relation / torch.cat([length] * 4, -1))
    return (product[..., 0, :] * matrix(tail)[..., 0, :].conj()).real.sum(-1).sum(-1)


def as_complex(rows: Tensor) -> Tensor:
    """(…, D) real → (…, D/2) complex: first half real, second half imaginary."""
    half = rows.shape[-1] // 2
    return torch.complex(rows[..., :half].contiguous(), rows[..., half:].contiguous())


def asked_score(config: TrainConfig, known: Tensor, relation: Tensor, candidate: Tensor, side: str) -> Tensor:
    """The score under which `side` is asked; with reciprocals the known entity is always the head."""
    if side == "tail" or config.reciprocal:
        return score(config.model, config.norm, known, relation, candidate)
    return score(config.model, config.norm, candidate, relation, known)


def step_loss(
    entity: Tensor,
    relation: Tensor,
    batch: Batch | list[Questions],
    config: TrainConfig,
    key: int,
    *,
    known: Known,
    n_relations: int,
) -> Tensor:
    """The loss of one step as a function of the two tables, to be differentiated by autograd."""
    if isinstance(batch, Batch):
        loss = _positives_loss(entity, relation, batch, config, key, known, n_relations)
    else:
        loss = _questions_loss(entity, relation, batch, config, key, n_relations)
    if config.penalty != "none" and not config.penalty_weighted:
        loss = loss + _size(entity, config, "entity") * config.penalty_entity
        loss = loss + _size(relation, config, "relation") * config.penalty_relation
    return loss


def _positives_loss(
    entity: Tensor, relation: Tensor, batch: Batch, config: TrainConfig, key: int, known: Known, n_relations: int
) -> Tensor:
    triples = batch.triples
    heads, relations, tails = triples.T
    size, n_entities = len(triples), len(entity)
    head = _dropped(entity[heads], config.dropout_entity, key_at(key, 0))
    tail = _dropped(entity[tails], config.dropout_entity, key_at(key, 1))
    total = entity.new_zeros(())
    used: dict[int, Tensor] = {}
    for number, side in enumerate(tuple(batch.negatives) or ("head", "tail")):
        inverse = int(config.reciprocal and side == "head")
        used[inverse] = relation[relations + inverse * n_relations]
        rel = _dropped(used[inverse], config.dropout_relation, key_at(key, 2 + inverse))
        given, answer = (head, tail) if side == "tail" else (tail, head)
        truth = tails if side == "tail" else heads
        negatives = batch.negatives.get(side)  # None: every entity
        ids = torch.arange(n_entities) if negatives is None else negatives.ids
        rows = _dropped(entity, config.dropout_entity, key_at(key, 4 + number))[ids]  # one mask per entity
        ids = ids.expand(size, -1)
        scores = asked_score(config, given[:, None], rel[:, None], rows, side)
        if negatives is None:
            positive = scores[torch.arange(size), truth]
        else:
            positive = asked_score(config, given, rel, answer, side)
        real = _real_negatives(triples, ids, side, known if config.negatives_filtered else set())
        total = total + _slot_loss(positive, scores, real, config) / size
        if config.penalty == "dura":
            total = total + config.penalty_entity * _dura(config, given, rel, answer, side) / size
    if config.relation_prediction:
        for inverse in range(2 if config.reciprocal else 1):
            first, second = (tail, head) if inverse else (head, tail)
            every = score(config.model, config.norm, first[:, None], relation[None], second[:, None])
            asked = F.cross_entropy(every, relations + inverse * n_relations)
            total = total + config.relation_prediction * asked
    if config.penalty in ("l1", "l2", "l3", "n3") and config.penalty_weighted:
        entities = torch.cat([entity[heads], entity[tails]])
        total = total + config.penalty_entity * _size(entities, config, "entity") / size
        total = total + config.penalty_relation * _size(torch.cat([*used.values()]), config, "relation") / size
    return total


def _questions_loss(
    entity: Tensor, relation: Tensor, groups: list[Questions], config: TrainConfig, key: int, n_relations: int
) -> Tensor:
    n_questions = sum(len(g.known) for g in groups)
    n_labels = sum(len(g.answers) for g in groups)
    total = entity.new_zeros(())
    for number, group in enumerate(groups):
        inverse = int(config.reciprocal and group.side == "head")
        row_ids = group.relations + inverse * n_relations
        given = _dropped(entity[group.known], config.dropout_entity, key_at(key, 3 * number))
        rel = _dropped(relation[row_ids], config.dropout_relation, key_at(key, 3 * number + 1))
        everyone = _dropped(entity, config.dropout_entity, key_at(key, 3 * number + 2))
        scores = asked_score(config, given[:, None], rel[:, None], everyone[None], group.side)
        labels = torch.zeros_like(scores)
        for row, answer in zip(group.rows.tolist(), group.answers.tolist()):
            labels[row, answer] = 1.0
        if config.label_smoothing:
            labels = labels * (1 - config.label_smoothing) + 1 / len(entity)
        if config.loss == "bce":
            loss = F.binary_cross_entropy_with_logits(scores + config.offset, labels, reduction="sum")
        else:
            target = labels / labels.sum(1, keepdim=True)
            loss = F.kl_div(F.log_softmax(scores, 1), target, reduction="sum")
        total = total + loss / n_questions
        if config.penalty in ("l1", "l2", "l3", "n3") and config.penalty_weighted:
            ends = torch.cat([entity[group.known[group.rows]], entity[group.answers]])
            total = total + config.penalty_entity * _size(ends, config, "entity") / n_labels
            relations = relation[row_ids[group.rows]]
            total = total + config.penalty_relation * _size(relations, config, "relation") / n_labels
    return total


def _dropped(rows: Tensor, rate: float, key: int) -> Tensor:
    if not rate:
        return rows
    return rows * keep_mask(torch.arange(len(rows)), rows.shape[1], rate, key).to(rows.dtype)


def _real_negatives(triples: Tensor, ids: Tensor, side: str, known: Known) -> Tensor:
    """(B, N) whether the entity makes a negative of the triple: it is not the answer, nor a known one."""
    real = torch.ones(ids.shape, dtype=torch.bool)
    for i, (h, r, t) in enumerate(triples.tolist()):
        for j, e in enumerate(ids[i].tolist()):
            made = (h, r, e) if side == "tail" else (e, r, t)
            real[i, j] = made != (h, r, t) and made not in known
    return real


def _slot_loss(positive: Tensor, scores: Tensor, real: Tensor, config: TrainConfig) -> Tensor:
    """Summed over the batch, over the real negatives only."""
    if config.loss == "softmax":
        logits = torch.cat([positive[:, None], scores.masked_fill(~real, -torch.inf)], 1)
        return F.cross_entropy(logits, torch.zeros(len(logits), dtype=torch.int64), reduction="sum")
    rows, columns = torch.nonzero(real, as_tuple=True)
    negative = scores[rows, columns]
    if config.loss == "bce":
        logits = torch.cat([positive, negative]) + config.offset
        target = torch.cat([torch.ones_like(positive), torch.zeros_like(negative)])
        return F.binary_cross_entropy_with_logits(logits, target, reduction="sum")
    if config.loss == "margin":
        first = torch.ones_like(negative)
        return F.margin_ranking_loss(positive[rows], negative, first, config.margin, reduction="sum")
    sharp = (config.temperature * scores.detach()).masked_fill(~real, -torch.inf)
    weights = torch.softmax(sharp, 1)[rows, columns]
    against = weights * F.logsigmoid(-config.margin - negative)
    return -F.logsigmoid(config.margin + positive).sum() - against.sum()


def _size(rows: Tensor, config: TrainConfig, table: str) -> Tensor:
    """(1/p)·Σ |x|^p over the rows, over complex moduli for N3 where rows are complex."""
    if config.penalty == "n3":
        is_complex = config.model == "complex" or (config.model == "rotate" and table == "entity")
        moduli = as_complex(rows).abs() if is_complex else rows.abs()
        return moduli.pow(3).sum() / 3
    p = int(config.penalty[1])
    return rows.abs().pow(p).sum() / p


def _dura(config: TrainConfig, given: Tensor, relation: Tensor, answer: Tensor, side: str) -> Tensor:
    """Σ ‖what the known end and the relation ask for‖² + ‖answer‖²."""
    towards_tail = side == "tail" or config.reciprocal
    if config.model == "complex":
        asked = torch.view_as_real(as_complex(given) * as_complex(relation))
    elif config.model == "cp":
        half = given.shape[1] // 2
        parts = (given[:, :half], answer[:, half:]) if towards_tail else (given[:, half:], answer[:, :half])
        asked, answer = parts[0] * relation, parts[1]
    elif config.model == "rescal":
        matrix = relation.unflatten(-1, (given.shape[1], given.shape[1]))
        asked = torch.einsum("bi,bij->bj" if towards_tail else "bj,bij->bi", given, matrix)
    elif config.model in ("simple", "quate"):  # the score is linear in the answer: what it is multiplied by
        leaf = answer.detach().requires_grad_()
        total = asked_score(config, given, relation, leaf, side).sum()
        (asked,) = torch.autograd.grad(total, leaf, create_graph=True)
    else:
        asked = given * relation
    return asked.square().sum() + answer.square().sum()


def exact_pairs(queries: Tensor, candidates: Tensor, pair: str) -> Tensor:
    """(B, W), (E, W) → (B, E) float64 scores, summed without tricks."""
    q, c = queries.double()[:, None], candidates.double()[None]
    if pair == "dot":
        return (q * c).sum(-1)
    if pair == "l1":
        return -(q - c).abs().sum(-1)
    if pair == "l2":
        return -(q - c).square().sum(-1).sqrt()
    return -as_complex(q - c).abs().sum(-1)


def places_by_sort(scores: list[float], truth: int, skip: set[int]) -> tuple[int, int]:
    """(above, ties) of the true candidate, from a full sort of those that are not skipped."""
    order = sorted((s for i, s in enumerate(scores) if i == truth or i not in skip), reverse=True)
    above = order.index(scores[truth])
    return above, order.count(scores[truth]) - 1


def rank_by_sort(
    config: TrainConfig, entity: Tensor, relation: Tensor, triple: tuple[int, int, int], side: str, known: Known
) -> tuple[int, int]:
    """(above, ties) of one triple's head or tail among all entities, known answers left out."""
    h, r, t = triple
    n_relations = len(relation) // (2 if config.reciprocal else 1)
    row = relation[r + n_relations * int(config.reciprocal and side == "head")].double()
    given, truth = (entity[h], t) if side == "tail" else (entity[t], h)
    scores = asked_score(config, given.double(), row, entity.double(), side).float().tolist()
    others = {e for e in range(len(entity)) if ((h, r, e) if side == "tail" else (e, r, t)) in known}
    return places_by_sort(scores, truth, others - {truth})


def relative_distance(found: Tensor, wanted: Tensor) -> float:
    """‖found − wanted‖ / (1 + ‖wanted‖) in float64."""
    found, wanted = found.detach().double(), wanted.detach().double()
    return float((found - wanted).norm() / (1 + wanted.norm()))


def random_triples(seed: int, n: int, n_entities: int, n_relations: int) -> np.ndarray:
    """(n, 3) int32 triples, repeats allowed; every id below its count."""
    generator = np.random.default_rng(seed)
    counts = (n_entities, n_relations, n_entities)
    return np.stack([generator.integers(0, c, n) for c in counts], 1).astype(np.int32)
