"""The training loop of one rank among several: `training.loop` for one training, with decisions made by all ranks.

Ranks take the same steps, see the same losses and validate at the same steps. Their clocks and Ctrl-C differ, so every
few steps they agree whether to save or to stop, in the collective that sums the losses.

Loss and gradients of a step equal those of `training.gradients` up to rounding. Every rank draws the whole batch and
makes the queries of a slice of it. Then, for both sides together:

    rows of the slice's heads and tails ← their owners        queries, true scores → all ranks
    every rank scores all queries against the candidates it stores        loss over all ranks
    gradients of queries, summed → the rank that made them        gradients of rows → their owners, of relations → all

Rows of candidates are never sent, so many negatives, and 1vsAll, need no more communication than few.
"""

from __future__ import annotations

import functools
import logging
import math
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from grash.kernels.device import matmul_precision
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
from grash.training.distributed.communication import RowExchange, Shard, double_on_cpu
from grash.training.gradients import (
    Gradient,
    StepGradients,
    add_dura,
    penalize_rows,
    penalize_tables,
    penalizes_rows,
    relation_loss,
    relation_questions,
)
from grash.training.loop import Monitor, Training, next_stop, train_step, validate_all
from grash.training.losses import label_bce, label_divergence, margin, scaled_scores, smooth_labels

log = logging.getLogger(__name__)

_SCORES_AT_ONCE = 1 << 22  # summed at a time
_MOST_STEPS = 32  # between two agreements
_MOST_SECONDS = 1.0  # of these steps
_LONG_SAVE_SECONDS = 20.0  # a launcher may kill ranks 30 seconds after Ctrl-C


def train_distributed(training: Training, shard: Shard, *, save_every_seconds: float = 120.0) -> None:
    """Train to the end; the state then holds this rank's rows of the best validation.

    training.save and training.validate are called on all ranks together. If one rank is interrupted, all save and raise
    KeyboardInterrupt. The end is saved too, because the test that follows may fail."""
    state, monitor = training.state, Monitor([training], math.inf)
    agreement = _Agreement(shard, save_every_seconds, saved_step=state.step)
    with _interrupts_noted(agreement):
        while (stop := next_stop(training)) is not None:
            with matmul_precision(training.config.precision):
                while state.step < stop:
                    losses = _steps(training, min(stop, state.step + agreement.steps), shard)
                    total = agreement.reach(losses)
                    monitor.add(total[:, None])
                    monitor.read_all()
                    monitor.after_steps()
                    _raise_error(training)
                    agreement.save_if_due(training)
            if training.validate is not None:
                validate_all([training])
                _raise_error(training)
                agreement.reach(share=1 / 8)
                agreement.save_if_due(training)
        if state.step > agreement.saved_step:
            agreement.save(training)
        monitor.report()
        _raise_error(training)
        agreement.reach()  # Ctrl-C since the last one
        if agreement.interrupted:
            raise KeyboardInterrupt
    state.restore_best()


def distributed_step(training: Training, shard: Shard) -> Tensor:
    """Take one step and return this rank's part of its loss."""
    gradients = functools.partial(distributed_gradients, shard=shard)
    return train_step(training.state, training.batches, training.config, gradients)


def _steps(training: Training, stop: int, shard: Shard) -> Tensor:
    """Take steps up to `stop`; return this rank's parts of their losses (steps,)."""
    return torch.stack([distributed_step(training, shard) for _ in range(stop - training.state.step)])


def _raise_error(training: Training) -> None:
    if training.error is not None:
        raise training.error


class _Agreement:
    """What all ranks do next: save, by the clock of rank 0; stop, after Ctrl-C on any rank; and how many steps to take
    before the next agreement, by the clock of rank 0."""

    def __init__(self, shard: Shard, save_every_seconds: float, *, saved_step: int) -> None:
        self.group, self.save_every_seconds, self.saved_step = shard.group, save_every_seconds, saved_step
        self.saved = self.reached = time.monotonic()
        self.save_seconds = 0.0  # of the last checkpoint
        self.ctrl_c = False  # on this rank
        self.save_due, self.interrupted, self.steps = False, False, 1

    def reach(self, losses: Tensor | None = None, *, share: float = 1.0) -> Tensor:
        """Agree with all ranks; return the sums of their losses (steps,). share: of the usual time between saves."""
        wishes = self._wishes(share)
        total = self.group.all_reduce(wishes if losses is None else torch.cat([losses, wishes.to(losses.device)]))
        save, stop, steps = total[-3:].tolist()
        self.interrupted, self.steps = stop > 0, int(steps)
        self.save_due, self.reached = save > 0 or self.interrupted, time.monotonic()
        return total[:-3]

    def _wishes(self, share: float) -> Tensor:
        """Return (3,): save, stop, number of steps; summed over ranks, a wish of one is everyone's."""
        leads, now = self.group.rank == 0, time.monotonic()
        seconds_per_step = (now - self.reached) / self.steps
        # saving takes at most a tenth of the time
        late = now - self.saved > share * max(self.save_every_seconds, 10 * self.save_seconds)
        steps = min(max(int(_MOST_SECONDS / max(seconds_per_step, 1e-9)), 1), _MOST_STEPS)
        return torch.tensor([leads and late, self.ctrl_c, steps * leads], dtype=torch.float32)

    def save_if_due(self, training: Training) -> None:
        if self.save_due:
            self.save(training)

    def save(self, training: Training) -> None:
        """Save on all ranks; then raise KeyboardInterrupt if some rank was interrupted."""
        began, before = time.monotonic(), self.save_seconds
        if training.save is not None:
            training.save(training.state)
        self.saved = self.reached = time.monotonic()
        self.save_seconds, self.save_due, self.saved_step = self.saved - began, False, training.state.step
        if self.save_seconds > _LONG_SAVE_SECONDS >= before:
            log.warning(
                "Saving a checkpoint takes %.0f s, but torchrun kills ranks 30 s after Ctrl-C by default: an "
                "interrupted run may have to resume from the checkpoint before. Set a longer shutdown timeout.",
                self.save_seconds,
            )
        if self.interrupted:
            raise KeyboardInterrupt


@contextmanager
def _interrupts_noted(agreement: _Agreement) -> Iterator[None]:
    """Note Ctrl-C instead of raising: a rank that ended at once would end the others before they have saved.

    torchrun ends all ranks at once with SIGTERM (`engines/distributed`)."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.getsignal(signal.SIGINT)

    def note(*_: object) -> None:
        agreement.ctrl_c = True

    signal.signal(signal.SIGINT, note)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def distributed_gradients(
    model: KgeModel, batch: Batch | list[Questions], config: TrainConfig, key: int, shard: Shard
) -> StepGradients:
    """Return the whole batch's gradients for this rank's rows (local ids) and for all relations, and this rank's part
    of the loss. model: this rank's rows and all relations. Summed over ranks, this is `gradients.step_gradients`."""
    step = StepGradients.zero(model)
    if isinstance(batch, Batch):
        _positives(model, batch, config, key, step, shard)
    else:
        _questions(model, batch, config, key, step, shard)
    penalize_tables(model, config, step, relations_count=shard.group.rank == 0)
    return step


class FetchedRows:
    """Rows (n, D) in a step: `raw` as stored, `values` after dropout, `gradient` with respect to raw.

    places (n,): positions in the whole batch, which decide the dropout masks."""

    def __init__(self, raw: Tensor, places: Tensor, rate: float, key: int) -> None:
        self.raw, self.gradient = raw, torch.zeros_like(raw)
        self.mask = keep_mask(places, raw.shape[1], rate, key).to(raw.dtype) if rate else None
        self.values = raw if self.mask is None else raw * self.mask

    def add(self, gradient: Tensor) -> None:
        self.gradient += gradient if self.mask is None else gradient * self.mask

    def add_raw(self, gradient: Tensor) -> None:
        self.gradient += gradient


@dataclass(eq=False)
class _Side:
    """One predicted side of this rank's slice of a batch."""

    side: Side
    seen: Side  # the side that the model predicts: always tail with reciprocals
    known: FetchedRows
    relation: FetchedRows
    answer: FetchedRows
    scored: FetchedRows  # the answer as it is scored: 1vsAll gives it the dropout mask of a candidate
    queries: Tensor
    truth: Tensor
    positive: Tensor


def _positives(model: KgeModel, batch: Batch, config: TrainConfig, key: int, step: StepGradients, shard: Shard) -> None:
    group, relations = shard.group, batch.triples[:, 1]
    size, own = len(relations), group.own_slice(len(relations))
    ends = zip(group.split(batch.triples[:, 0]), group.split(batch.triples[:, 2]))
    exchange = RowExchange([torch.cat(pair) for pair in ends], shard)
    places = torch.arange(own.start, own.stop, device=model.entity.device)
    fetched = exchange.fetch(model.entity).split([len(places)] * 2)
    head, tail = (FetchedRows(r, places, config.dropout_entity, key_at(key, n)) for n, r in enumerate(fetched))
    used: dict[int, tuple[Tensor, FetchedRows]] = {}  # ids of the batch, rows of the slice; 1: inverse relations
    sides = []
    for number, side in enumerate(tuple(batch.negatives) or SIDES):
        ids, seen = model.asked(relations, side)
        place = int(model.reciprocal and side == "head")
        if place not in used:
            mine = model.relation.index_select(0, ids[own])
            used[place] = ids, FetchedRows(mine, places, config.dropout_relation, key_at(key, 2 + place))
        known, answer = (head, tail) if side == "tail" else (tail, head)
        scored = answer
        if not batch.negatives:
            truths = batch.triples[own, 0 if side == "head" else 2]
            scored = FetchedRows(answer.raw, truths, config.dropout_entity, key_at(key, 4 + number))
        queries = model.query(known.values, used[place][1].values, seen)
        truth = model.candidate(scored.values, seen)
        positive = row_scores(queries, truth, model.pair)
        sides.append(_Side(side, seen, known, used[place][1], answer, scored, queries, truth, positive))
    _compare(model, config, step, batch, sides, key, shard)
    if penalizes_rows(config):
        penalize_rows(config, step, [head, tail], "entity", size)
        penalize_rows(config, step, [rows for _, rows in used.values()], "relation", size)
    if config.relation_prediction:
        _predict_relations(model, config, step, head, tail, relations, shard)
    arrived = exchange.return_gradients(torch.cat([head.gradient, tail.gradient]))
    order = _batch_order(relations, exchange)
    step.entity.add(exchange.rows[order], arrived[order])
    for ids, rows in used.values():
        step.relation.add(ids, group.gather_slices(rows.gradient, size))


def _batch_order(relations: Tensor, exchange: RowExchange) -> Tensor:
    """Return the order of arrived gradients in which heads, then tails follow the batch, for any number of ranks."""
    places = torch.arange(len(relations), device=relations.device)
    ends = zip(exchange.group.split(places), exchange.group.split(places + len(places)))
    return torch.argsort(torch.cat([torch.cat(pair) for pair in ends])[exchange.is_local])


def _compare(
    model: KgeModel, config: TrainConfig, step: StepGradients, batch: Batch, sides: list[_Side], key: int, shard: Shard
) -> None:
    """Add the loss of the true answers against all others, and its gradients for queries, answers and candidates."""
    size, group = len(batch.triples), shard.group
    sent = torch.stack([torch.cat([s.queries, s.positive[:, None]], 1) for s in sides], 1)  # (slice, sides, W + 1)
    received = group.gather_slices(sent, size).unbind(1)
    candidates = [
        _Candidates(model, config, batch, s.side, received[n][:, :-1], shard, key_at(key, 4 + n))
        for n, s in enumerate(sides)
    ]
    totals = _log_totals(candidates, config, shard)
    parts = []
    for own, given, total in zip(candidates, received, totals):
        loss, for_positive, for_negative = negative_part(given[:, -1], own.scores, total, config)
        step.loss = step.loss + loss / size
        for_queries = own.pass_back(for_negative.div_(size), step.entity)
        parts.append(torch.cat([for_queries, for_positive[:, None].to(for_queries.dtype) / size], 1))
    summed = group.reduce_scatter(torch.stack(parts, 1)).to(model.entity.dtype).unbind(1)
    for side, given, total in zip(sides, summed, totals):
        mine = None if total is None else total[group.own_slice(size)]
        loss, for_positive = positive_part(side.positive, mine, config)
        step.loss = step.loss + loss / size
        _pass_back(model, config, step, side, given[:, :-1].contiguous(), given[:, -1] + for_positive / size, size)


def _log_totals(candidates: list[_Candidates], config: TrainConfig, shard: Shard) -> list[Tensor | None]:
    """Return `log_total` of all ranks' negatives, for all sides with one collective."""
    own = [log_total(c.scores, config) for c in candidates]
    found = [total for total in own if total is not None]
    return list(torch.logsumexp(shard.group.all_gather(torch.stack(found)), 0).unbind(0)) if found else own


def _pass_back(
    model: KgeModel,
    config: TrainConfig,
    step: StepGradients,
    side: _Side,
    for_queries: Tensor,
    for_positive: Tensor,
    size: int,
) -> None:
    """Pass gradients of the slice's queries and true scores to the rows they were computed from."""
    for_truth = add_row_gradients(for_queries, side.queries, side.truth, for_positive, model.pair)
    side.scored.add(model.candidate_gradient(for_truth, side.seen))
    if side.scored is not side.answer:
        side.answer.add_raw(side.scored.gradient)
    if config.penalty == "dura":
        truth = model.candidate(side.answer.values, side.seen)
        dura_queries, dura_truth = add_dura(config, step, side.queries, truth, size)
        for_queries = for_queries + dura_queries
        side.answer.add(model.candidate_gradient(dura_truth, side.seen))
    for_known, for_relation = model.query_gradient(for_queries, side.known.values, side.relation.values, side.seen)
    side.known.add(for_known)
    side.relation.add(for_relation)


def _predict_relations(
    model: KgeModel,
    config: TrainConfig,
    step: StepGradients,
    head: FetchedRows,
    tail: FetchedRows,
    relations: Tensor,
    shard: Shard,
) -> None:
    """Add the loss of the slice's true relations; every rank stores all relations, so only sums are exchanged."""
    weight, own = config.relation_prediction / len(relations), shard.group.own_slice(len(relations))
    for first, second, ids in relation_questions(model, head, tail, relations[own]):
        loss, *given = relation_loss(model, first.values, second.values, ids, weight)
        step.loss = step.loss + loss
        for_first, for_second, for_relations = model.relation_scores_gradient(*(double_on_cpu(x) for x in given))
        first.add(for_first.to(first.raw.dtype))
        second.add(for_second.to(second.raw.dtype))
        step.relation.add(None, shard.group.all_reduce(for_relations).to(model.relation.dtype))


def _questions(
    model: KgeModel, batch: list[Questions], config: TrainConfig, key: int, step: StepGradients, shard: Shard
) -> None:
    """KvsAll: every rank makes the queries of a slice of the questions, and compares all queries with its rows."""
    n_questions, n_labels = sum(len(part.known) for part in batch), sum(len(part.answers) for part in batch)
    group, device = shard.group, model.entity.device
    for number, part in enumerate(batch):
        n, own = len(part.known), group.own_slice(len(part.known))
        keys = [key_at(key, 3 * number + i) for i in range(3)]
        ids, seen = model.asked(part.relations, part.side)
        places = torch.arange(own.start, own.stop, device=device)
        exchange = RowExchange(group.split(part.known), shard)
        known = FetchedRows(exchange.fetch(model.entity), places, config.dropout_entity, keys[0])
        relation = FetchedRows(model.relation.index_select(0, ids[own]), places, config.dropout_relation, keys[1])
        stored = torch.arange(shard.first, shard.last, device=device)
        everyone = FetchedRows(model.entity, stored, config.dropout_entity, keys[2])
        queries = group.gather_slices(model.query(known.values, relation.values, seen), n)
        candidates = model.candidate(everyone.values, seen)
        scores = pair_scores(queries, candidates, model.pair)
        loss, upstream = _label_part(scores, part, config, shard)
        step.loss = step.loss + loss / n_questions
        partial, for_candidates = _wide_gradients(queries, candidates, scores, upstream.div_(n_questions), model.pair)
        everyone.add(model.candidate_gradient(for_candidates, seen))
        for_queries = group.reduce_scatter(partial).to(queries.dtype)
        for_known, for_relation = model.query_gradient(for_queries, known.values, relation.values, seen)
        known.add(for_known)
        relation.add(for_relation)
        if penalizes_rows(config):
            per_label = torch.bincount(part.rows, minlength=n).to(model.entity.dtype)[own]
            penalize_rows(config, step, [known], "entity", n_labels, per_label)
            penalize_rows(config, step, [relation], "relation", n_labels, per_label)
            _penalize_answers(model, config, step, part.answers, n_labels, shard)
        step.entity.add(exchange.rows, exchange.return_gradients(known.gradient))
        step.entity.add(None, everyone.gradient)
        step.relation.add(ids, group.gather_slices(relation.gradient, n))


def _label_part(scores: Tensor, part: Questions, config: TrainConfig, shard: Shard) -> tuple[Tensor, Tensor]:
    """`losses.label_loss` of this rank's columns: scores (B, E_own) → its part of the sum, gradient (B, E_own)."""
    mine = torch.nonzero(shard.has(part.answers))[:, 0]
    labels = torch.zeros_like(scores)
    labels[part.rows[mine], part.answers[mine] - shard.first] = 1
    labels = smooth_labels(labels, config.label_smoothing, shard.n_rows)
    if config.loss == "bce":
        return label_bce(scores, labels, config.offset)
    counts = torch.bincount(part.rows, minlength=len(scores)).to(scores.dtype)  # labels of all ranks
    if config.label_smoothing:
        counts = (1 - config.label_smoothing) * counts + 1.0
    totals = torch.logsumexp(shard.group.all_gather(_logsumexp(scores)), 0).to(scores.dtype)
    return label_divergence(scores - totals[:, None], labels / counts[:, None])


def _penalize_answers(
    model: KgeModel, config: TrainConfig, step: StepGradients, answers: Tensor, n_labels: int, shard: Shard
) -> None:
    """Add the penalty on the answers that this rank stores."""
    if config.penalty_entity:
        own = answers[shard.has(answers)] - shard.first
        rows = FetchedRows(model.entity.index_select(0, own), own, 0.0, 0)
        penalize_rows(config, step, [rows], "entity", n_labels)
        step.entity.add(own, rows.gradient)


class _Candidates:
    """The candidates of one side that this rank stores: all its rows (1vsAll), those of the batch's shared negatives,
    or those of each query's own. scores (B, n): −∞ where an entry is no negative, or another rank's."""

    def __init__(
        self, model: KgeModel, config: TrainConfig, batch: Batch, side: Side, queries: Tensor, shard: Shard, key: int
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
        self.scores = self._score(negatives)
        answers = batch.triples[:, 0 if side == "head" else 2]
        if negatives is None:
            mine = torch.nonzero(shard.has(answers))[:, 0]
            self.scores[mine, answers[mine] - shard.first] = -torch.inf
        elif self.pairs is None:
            _mask_shared(self.scores, negatives, shard)

    def _score(self, negatives: Negatives | None) -> Tensor:
        if self.pairs is None:
            return pair_scores(self.queries, self.rows, self.model.pair)
        assert negatives is not None
        scores = self.rows.new_full(negatives.ids.shape, -torch.inf)
        scores[self.pairs] = row_scores(self.queries[self.pairs[0]], self.rows, self.model.pair)
        return scores

    def pass_back(self, for_negative: Tensor, into: Gradient) -> Tensor:
        """Given gradients (B, n) of the scores, add those of the candidates' rows to `into` and return this rank's part
        (B, W) of those of the queries, in float64 on a CPU."""
        pair = self.model.pair
        if self.pairs is None:
            for_queries, for_rows = _wide_gradients(self.queries, self.rows, self.scores, for_negative, pair)
        else:
            asking = self.queries[self.pairs[0]]
            per_pair, for_rows = row_gradients(asking, self.rows, for_negative[self.pairs], pair)
            # sorts and adds in a fixed order, where index_add would use atomics
            for_queries = double_on_cpu(torch.zeros_like(self.queries))
            for_queries.index_put_((self.pairs[0],), per_pair.to(for_queries.dtype), accumulate=True)
        given = self.model.candidate_gradient(for_rows, self.seen)
        into.add(self.ids, given if self.mask is None else given * self.mask)
        return for_queries


def _own_pairs(negatives: Negatives, shard: Shard) -> tuple[Tensor, Tensor]:
    """Return where the (B, N) negatives of each query are real and stored on this rank."""
    real = shard.has(negatives.ids)
    if negatives.blocked is not None:
        real &= ~negatives.blocked
    rows, columns = torch.nonzero(real, as_tuple=True)
    return rows, columns


def _mask_shared(scores: Tensor, negatives: Negatives, shard: Shard) -> None:
    """Set true answers and known facts among this rank's shared negatives to −∞."""
    assert negatives.rows is not None and negatives.columns is not None and negatives.real is not None
    mine = shard.has(negatives.ids)
    column = torch.cumsum(mine, 0) - 1  # of a negative of the batch in the scores of this rank
    out = ~negatives.real & mine[negatives.columns]
    scores[negatives.rows[out], column[negatives.columns[out]]] = -torch.inf


def _wide_gradients(
    queries: Tensor, rows: Tensor, scores: Tensor, upstream: Tensor, pair: Pair
) -> tuple[Tensor, Tensor]:
    """`pair_gradients`, with those of the queries in float64 on a CPU: other ranks' parts are added to them."""
    if queries.device.type != "cpu":
        return pair_gradients(queries, rows, scores, upstream, pair)
    if pair == "dot":
        return upstream.double() @ rows.double(), upstream.T @ queries
    if pair != "l2" and use_loops(queries):
        return loop_gradients(queries, rows, upstream, pair, torch.float64)
    doubles = [x.double() for x in (queries, rows, scores, upstream)]
    for_queries, for_rows = pair_gradients(doubles[0], doubles[1], doubles[2], doubles[3], pair)
    return for_queries, for_rows.to(rows.dtype)


def log_total(negative: Tensor, config: TrainConfig) -> Tensor | None:
    """Return log Σ exp (B,) of this rank's scores (B, n), in float64 on a CPU; None where the loss needs none."""
    if config.loss == "softmax":
        return _logsumexp(negative)
    if config.loss == "self_adversarial":
        return _logsumexp(scaled_scores(negative, config.temperature))
    return None


def _logsumexp(scores: Tensor) -> Tensor:
    """(B, n) → (B,), some rows at a time, since n may be the number of entities."""
    rows = max(1, _SCORES_AT_ONCE // max(1, scores.shape[1]))
    return torch.cat([torch.logsumexp(double_on_cpu(part), 1) for part in scores.split(rows)])


def negative_part(
    positive: Tensor, negative: Tensor, total: Tensor | None, config: TrainConfig
) -> tuple[Tensor, Tensor, Tensor]:
    """Return what this rank's negatives add to `losses.side_loss`: (loss, for_positive (B,), for_negative (B, n)).

    total (B,): `log_total` of the negatives of all ranks, where the loss needs it."""
    if config.loss == "margin":
        return margin(positive, negative, config.margin)
    zeros = torch.zeros_like(positive)
    if config.loss == "softmax":
        assert total is not None
        return zeros.sum(), zeros, (negative - _log_sum(positive, total)[:, None]).exp_()
    if config.loss == "bce":
        shifted = negative + config.offset
        return F.softplus(shifted).sum(), zeros, torch.sigmoid(shifted)
    assert total is not None
    # a question without negatives has the total −∞, and −∞ + ∞ is NaN
    scaled = scaled_scores(negative, config.temperature)
    weights = torch.exp(scaled - total.to(negative.dtype)[:, None]).nan_to_num(0.0)
    shifted = negative + config.margin
    return (weights * F.softplus(shifted)).sum(), zeros, weights * torch.sigmoid(shifted)


def positive_part(positive: Tensor, total: Tensor | None, config: TrainConfig) -> tuple[Tensor, Tensor]:
    """Return what the positives add to the loss: (loss, for_positive (B,)), on top of each rank's negatives."""
    if config.loss == "softmax":
        assert total is not None
        log_sum = _log_sum(positive, total)
        return (log_sum - positive).sum(), torch.expm1(positive - log_sum)
    if config.loss == "margin":
        return positive.new_zeros(()), torch.zeros_like(positive)
    shifted = positive + (config.offset if config.loss == "bce" else config.margin)
    return F.softplus(-shifted).sum(), torch.sigmoid(shifted) - 1


def _log_sum(positive: Tensor, total: Tensor) -> Tensor:
    """Return log Σ exp (B,) of a positive and its negatives."""
    return torch.logaddexp(positive.to(total.dtype), total).to(positive.dtype)
