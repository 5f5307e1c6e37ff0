"""Filtered ranks of true answers among all entities, both sides: by counting, no matrix of scores.

Comes from a model and triples, goes to `metrics`. The rank of an answer is 1 + the number of other candidates that
score higher + half of those that score the same; candidates that are known to be true are left out (the filter).
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from grash.data.known_answers import KnownAnswers, expand
from grash.errors import Diverged
from grash.kernels.count_above import NO_ORDER, Runs, count_above, count_rows, exact_scores, largest_row, serves
from grash.kernels.device import make_current
from grash.kernels.host_rows import is_far, pieces
from grash.kernels.random import key_at, key_of, permuted_rows
from grash.models import KgeModel
from grash.models.base import SIDES, Side

if TYPE_CHECKING:
    from grash.kernels.count_above_triton import Asked, Shape


_QUESTIONS = 1 << 16  # asked together
_MIN_TILE = 1024
_MAX_QUERIES = 1024
_TOGETHER = 128  # drawn candidates scored together, for each of 256 questions
_ROWS = 1 << 16  # rows of a table looked at together


@dataclass(frozen=True, eq=False)
class SlotRanks:
    """For n triples: how many candidates score above the truth, how many the same, out of how many others."""

    above: NDArray[np.int64]
    ties: NDArray[np.int64]
    others: NDArray[np.int64]

    @property
    def optimistic(self) -> NDArray[np.floating]:
        return 1.0 + self.above

    @property
    def mean(self) -> NDArray[np.floating]:
        return 1.0 + self.above + self.ties / 2

    @property
    def pessimistic(self) -> NDArray[np.floating]:
        return 1.0 + self.above + self.ties


@dataclass(frozen=True, eq=False)
class Ranks:
    """Ranks of n triples (n, 3), each by its head and by its tail."""

    triples: NDArray[np.int32]
    head: SlotRanks
    tail: SlotRanks


class Ranker:
    """Ranks the same triples under one model after another (validation), or once (test)."""

    def __init__(self, triples: NDArray[np.int32], known: KnownAnswers, n_entities: int, device: torch.device) -> None:
        make_current(device)
        self.triples, self.n_entities, self.device = np.ascontiguousarray(triples), n_entities, device
        parts = [self.triples[i : i + _QUESTIONS] for i in range(0, len(self.triples), _QUESTIONS)]
        self.questions = {s: [Question(part, known, s, device, n_entities) for part in parts] for s in SIDES}

    def rank(self, model: KgeModel, *, work_bytes: int | None = None) -> Ranks:
        """The ranks under this model. `work_bytes` bounds the score tile of the plain path; ranks do not depend on
        it."""
        return self.begin(model, work_bytes=work_bytes)()

    def rank_many(self, models: Sequence[KgeModel]) -> list[Ranks | Diverged]:
        """The ranks under each model, all of them begun before the first is read."""
        return [_or_diverged(begun) for begun in [self.begin(model) for model in models]]

    @torch.no_grad()
    def begin(self, model: KgeModel, *, work_bytes: int | None = None) -> Callable[[], Ranks]:
        """Begins, and gives what waits for the ranks. The counting kernels are under way then, and the model must stay
        as it is; on the plain path nothing happens before the ranks are asked for."""
        if not serves(model.candidate(model.entity[:0], "tail")):
            return functools.partial(self._rank_plainly, model, work_bytes)
        return functools.partial(self._read, Counting(model, [q for side in SIDES for q in self.questions[side]]))

    @torch.no_grad()
    def _read(self, counting: Counting) -> Ranks:
        found = counting.read()
        if found is None:
            raise not_finite(counting.model) or Diverged(NO_ORDER)
        n = len(found) // 2
        return self._ranks({"head": found[:n], "tail": found[n:]})

    def _ranks(self, counts: dict[Side, list[NDArray[np.int64]]]) -> Ranks:
        sides = {}
        for side, parts in counts.items():
            above, ties = np.concatenate([np.empty((2, 0), np.int64), *parts], 1)
            others = np.concatenate([np.empty(0, np.int64), *(q.others for q in self.questions[side])])
            sides[side] = SlotRanks(above, ties, others)
        return Ranks(self.triples, head=sides["head"], tail=sides["tail"])

    @torch.no_grad()
    def _rank_plainly(self, model: KgeModel, work_bytes: int | None) -> Ranks:
        far = is_far(model.entity)
        diverged = not_finite(model, entities=not far)  # which `count_far` looks at as it goes
        if diverged:
            raise diverged
        batch, tile = plan_tiles(len(self.triples), self.n_entities, work_bytes or default_work_bytes(self.device))
        if far:
            found = count_far(model, [q for s in SIDES for q in self.questions[s]], batch, tile)
            return self._ranks({"head": found[: len(found) // 2], "tail": found[len(found) // 2 :]})
        return self._ranks({s: [_count_plainly(model, q, batch, tile) for q in self.questions[s]] for s in SIDES})


def _or_diverged(begun: Callable[[], Ranks]) -> Ranks | Diverged:
    try:
        return begun()
    except Diverged as error:
        return error


def _count_plainly(model: KgeModel, question: Question, batch: int, tile: int) -> NDArray[np.int64]:
    """(2, B): above and ties, a batch of questions and a tile of candidates at a time."""
    counts = []
    largest = None
    for first in range(0, len(question), batch):
        last = min(first + batch, len(question))
        part = slice(first, last)
        queries, seen = model.queries(question.known[part], question.relations[part], question.side)
        candidates = model.candidate(model.entity, seen)
        if largest is None:
            largest = largest_row(candidates, model.pair)
        answers, skip = question.answers[part], question.runs(first, last)
        found = count_above(queries, candidates, answers, skip, model.pair, tile=tile, largest=largest)
        counts.append(torch.stack(found))
    return torch.cat(counts, 1).cpu().numpy()


def ranking_bytes(
    n_triples: int, n_filtered: int, n_entities: int, width: int, device: torch.device, *, far: bool = False
) -> int:
    """Bytes on the device that ranking n_triples takes beside the model. n_filtered: known answers to their distinct
    questions, both sides together; width: floats of a query; far: the table lies elsewhere."""
    if not n_triples:
        return 0
    if serves(torch.empty(0, width, device=device)):
        return counting_bytes(n_triples, _QUESTIONS, n_filtered, n_entities, width, far=far)
    return 2 * default_work_bytes(device)


def default_work_bytes(device: torch.device) -> int:
    """A tile that stays in a CPU's cache, or a share of a card's free memory."""
    if device.type == "cpu":
        return 8 << 20
    free, _ = torch.cuda.mem_get_info(device)
    return min(2 << 30, free // 4)


def plan_tiles(n_queries: int, n_entities: int, work_bytes: int) -> tuple[int, int]:
    """(queries, candidates) scored at a time, so that a tile of float32 scores fits into work_bytes."""
    batch = max(1, min(_MAX_QUERIES, n_queries))
    cells = max(1, work_bytes // 4)
    if cells // batch < _MIN_TILE:
        batch = max(1, cells // _MIN_TILE)
    return batch, max(1, min(n_entities, cells // batch))


@torch.no_grad()
def rank_against_sample(
    model: KgeModel,
    triples: NDArray[np.int32],
    known: KnownAnswers,
    *,
    n_candidates: int,
    seed: int,
    device: torch.device,
) -> Ranks:
    """Ranks among `n_candidates` entities drawn per question, known answers left out.

    A different quantity from ranks among all entities, and not comparable with it: its metrics carry the number
    in their names.
    """
    make_current(device)
    diverged = not_finite(model)
    if diverged:
        raise diverged
    n_candidates = min(n_candidates, model.n_entities)
    sides = {}
    for side in SIDES:
        question = Question(triples, known, side, device, model.n_entities)
        key = key_of(seed, "candidates", side)
        parts: list[list[Tensor]] = [[], [], []]
        for first in range(0, len(triples), 256):
            last = min(first + 256, len(triples))
            drawn = permuted_rows(last - first, n_candidates, model.n_entities, key_at(key, first), device)
            for store, value in zip(parts, _sampled_counts(model, question, first, last, drawn)):
                store.append(value)
        sides[side] = SlotRanks(*(_joined(p) for p in parts))
    return Ranks(np.ascontiguousarray(triples), head=sides["head"], tail=sides["tail"])


def _sampled_counts(
    model: KgeModel, question: Question, first: int, last: int, drawn: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    part = slice(first, last)
    queries, seen = model.queries(question.known[part], question.relations[part], question.side)
    answers = question.answers[part]
    real = (drawn != answers[:, None]) & ~question.knows(first, drawn)
    truth = exact_scores(queries, model.candidate(model.entity[answers], seen), model.pair)
    candidates = model.candidate(model.entity, seen)
    above, ties = torch.zeros(len(drawn), dtype=torch.int64, device=drawn.device), torch.zeros_like(answers)
    for part, genuine in zip(drawn.split(_TOGETHER, 1), real.split(_TOGETHER, 1)):
        asked = queries.repeat_interleave(part.shape[1], 0)
        scores = exact_scores(asked, candidates[part.reshape(-1)], model.pair).reshape(part.shape)
        above += ((scores > truth[:, None]) & genuine).sum(1)
        ties += ((scores == truth[:, None]) & genuine).sum(1)
    return above, ties, real.sum(1)


def not_finite(model: KgeModel, *, entities: bool = True) -> Diverged | None:
    tables = (model.entity.split(_ROWS) if entities else (), model.relation.split(_ROWS))
    if all(torch.isfinite(part).all() for table in tables for part in table):
        return None
    return Diverged("The model holds NaN or infinite numbers, so its scores have no order: train it anew.")


def _joined(parts: list[Tensor]) -> NDArray[np.int64]:
    return torch.cat(parts).cpu().numpy() if parts else np.empty(0, np.int64)


# = The questions of a ranking: of every triple what is known, what is asked, and which answers are filtered.
# =
# = Comes from triples and `data/known`, goes to `ranking`. Many triples ask the same question ("which files lie in this
# = directory?"), so known answers are kept once per distinct question: of the 10,000 test triples of DebianKG-files,
# = 695 million filtered candidates of the heads are 7 million known answers.


@dataclass(frozen=True, eq=False)
class Distinct:
    """The distinct questions as the counting kernels take them, int32 on the device."""

    asking: Tensor  # (Q,) a row of each; those that many rows ask come first
    asks: Tensor  # (B,) the number of a row's question
    order: Tensor  # (B,) rows by question
    starts: Tensor  # (Q + 1,) where a question's begin in it
    pairs: Tensor  # (2, m) a question and a known answer
    runs: Tensor  # (3, B) where the answers to a row's question begin and end in pairs; is its truth among them?


class Question:
    """The questions of one side with their filter, on the device; made once, ranked as often as one likes."""

    def __init__(
        self,
        triples: NDArray[np.int32],
        known: KnownAnswers,
        side: Side,
        device: torch.device,
        n_entities: int,
    ) -> None:
        heads, relations, tails = triples.astype(np.int64).T
        self.side, self.device, self.n_entities = side, device, n_entities
        known_ids, self.truth = (heads, tails) if side == "tail" else (tails, heads)
        self.known, self.relations, self.answers = (
            torch.from_numpy(np.ascontiguousarray(x)).to(device) for x in (known_ids, relations, self.truth)
        )
        index = known.of_side(side)
        self.asking, self.numbers = _distinct(known_ids * index.n_relations + relations)
        first, count = index.runs(known_ids[self.asking], relations[self.asking])
        self.asked, self.filtered = expand(first, count, index.answers)  # (m,) known answers, question by question
        ends = np.cumsum(count)
        self.first, self.last = (ends - count)[self.numbers], ends[self.numbers]  # (B,) where a row's answers lie
        self.truth_known = _contains(self._pairs(), self.numbers * n_entities + self.truth)
        self.others = n_entities - 1 - (self.last - self.first) + self.truth_known

    def __len__(self) -> int:
        return len(self.truth)

    def runs(self, first: int, last: int) -> Runs:
        """The filter of rows first … last; the truth may be in it, which is left out anyway."""
        return Runs(self.first[first:last], self.last[first:last], self.filtered)

    def knows(self, first: int, drawn: Tensor) -> Tensor:
        """drawn (B, n) entities for the rows from `first` on → (B, n): whether they are known answers there."""
        numbers = self.numbers[first : first + len(drawn), None]
        return torch.from_numpy(_contains(self._keys, numbers * self.n_entities + drawn.cpu().numpy())).to(drawn.device)

    @cached_property
    def _keys(self) -> NDArray[np.int64]:
        """As `_pairs`, kept: 8 bytes per known answer, which only ranking among drawn candidates needs."""
        return self._pairs()

    def _pairs(self) -> NDArray[np.int64]:
        """(m,) question and answer as one number, ascending."""
        return self.asked * self.n_entities + self.filtered

    @cached_property
    def distinct(self) -> Distinct:
        starts = np.cumsum(np.bincount(self.numbers, minlength=len(self.asking)))
        parts = (
            self.asking,
            self.numbers,
            np.argsort(self.numbers, kind="stable"),
            np.concatenate([[0], starts]),
            np.stack([self.asked, self.filtered]),
            np.stack([self.first, self.last, self.truth_known]),
        )
        return Distinct(*(torch.from_numpy(part.astype(np.int32)).to(self.device) for part in parts))


def _distinct(keys: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Of each distinct key a place, those of many first; of each place the number of its key in that order."""
    _, places, numbers, count = np.unique(keys, return_index=True, return_inverse=True, return_counts=True)
    order = np.argsort(-count, kind="stable")
    place_in = np.empty_like(order)
    place_in[order] = np.arange(len(order))
    return places[order], place_in[numbers]


def _contains(ascending: NDArray[np.int64], wanted: NDArray[np.int64]) -> NDArray[np.bool_]:
    place = np.searchsorted(ascending, wanted)
    found = place < len(ascending)
    found[found] = ascending[place[found]] == wanted[found]
    return found


# = Ranking by the counting kernels on CUDA: all launches are queued, the host reads once, at the end.
# =
# = Comes from `questions` and a model, goes to `ranking`. Ids and filters stay on the device between rankings; queries and
# = work space live as long as their launches.

_GATHERED = 1 << 21  # floats of rows that become queries together
_TOGETHER_counting = 6  # such blocks while they do
_ASKED = 1 << 17  # queries that meet a piece of a table that lies elsewhere


@dataclass(frozen=True, eq=False)
class _Asked:
    """A question under way: queries (Q, W), each distinct one once, where its truths stand, and where the counts go."""

    question: Question
    shape: Shape
    asked: Asked
    queries: Tensor
    seen: Side
    rows: Tensor  # (E, W) candidates with `truth` as ids, or (B, W), the truths alone
    truth: Tensor
    edges: Tensor
    out: Tensor
    open_pairs: Tensor  # (pieces, parts of a piece)


class Counting:
    """One model's answers to the questions, under way on the device. A table that lies elsewhere comes to it piece by
    piece, and each piece meets as many questions as there are, up to _ASKED queries."""

    def __init__(self, model: KgeModel, questions: Sequence[Question], shapes: Sequence[Shape] | None = None) -> None:
        from grash.kernels.count_above_triton import PART_BYTES, PIECE_BYTES, Shape

        self.model, self.questions, self.far = model, questions, is_far(model.entity)
        width = model.candidate(model.entity[:0], "tail").shape[1]
        most = PIECE_BYTES if self.far else PART_BYTES
        self.shapes = shapes or [Shape.of(len(q), model.n_entities, width, most_bytes=most) for q in questions]
        self.piece = max((s.part for s in self.shapes), default=1) if self.far else max(1, model.n_entities)
        n_pieces = -(-model.n_entities // self.piece)
        self.counters = [n_pieces * s.parts(self.piece) for s in self.shapes]
        self.numbers = torch.zeros(
            1 + sum(2 * len(q) for q in questions) + sum(self.counters), dtype=torch.int64, device=model.entity.device
        )
        bad, *rest = self.numbers.split([1, *(n for q, c in zip(questions, self.counters) for n in (2 * len(q), c))])
        bad.copy_(~torch.isfinite(model.relation).all())
        largest: dict[int, Tensor] = {}
        for group in self._groups():  # no name holds a group's queries while the next one's are made
            self._count(
                [self._ask(i, rest[2 * i].view(2, -1), rest[2 * i + 1].view(n_pieces, -1)) for i in group],
                {} if self.far else largest,
                bad,
            )

    def _groups(self) -> list[list[int]]:
        """Places of questions that are asked together: one by one, or as many as meet a piece."""
        groups: list[list[int]] = []
        for i, question in enumerate(self.questions):
            together = len(question) + sum(len(self.questions[j]) for j in groups[-1]) if groups else 0
            if self.far and groups and together <= _ASKED:
                groups[-1].append(i)
            else:
                groups.append([i])
        return groups

    def _ask(self, i: int, out: Tensor, open_pairs: Tensor) -> _Asked:
        from grash.kernels.count_above_triton import Asked

        model, question, shape = self.model, self.questions[i], self.shapes[i]
        distinct = question.distinct
        asked = Asked(distinct.asks, distinct.order, distinct.starts)
        queries, seen = _queries(model, question)
        rows, truth = model.candidate(model.entity, seen), question.answers
        if self.far:
            rows = model.candidate(model.entity[truth], seen).contiguous()
            truth = torch.arange(len(truth), device=truth.device)
        edges = queries.new_empty(3, shape.truths)
        return _Asked(question, shape, asked, queries, seen, rows, truth, edges, out, open_pairs)

    def _count(self, asked: list[_Asked], largest: dict[int, Tensor], bad: Tensor) -> None:
        """largest: sizes of candidates by where these lie, which several questions share."""
        from grash.kernels.count_above_triton import count_rows, leave_out, sizes, truths

        model, pair = self.model, self.model.pair
        for first, rows in pieces(model.entity, self.piece):
            if first:
                largest.clear()
            for a in asked:
                candidates = model.candidate(rows, a.seen)
                where = candidates.data_ptr()
                if where not in largest:
                    largest[where] = sizes(candidates, pair).max()
                truths(a.queries, a.rows, a.truth, a.asked.asks, largest[where], pair, a.edges, bad)
                open_pairs = a.open_pairs[first // self.piece]
                count_rows(a.queries, candidates, a.edges, a.asked, pair, a.shape, out=a.out, open_pairs=open_pairs)
        for a in asked:
            everyone = model.candidate(model.entity, a.seen)
            distinct = a.question.distinct
            leave_out(a.queries, everyone, a.edges, distinct.pairs, distinct.runs, pair, a.out)

    def read(self) -> list[NDArray[np.int64]] | None:
        """For each of the questions (2, B): above and ties. None if the model's scores have no order. The one wait;
        where too many pairs stayed open, those questions are counted again in smaller parts."""
        values = self.numbers.cpu().numpy()
        if values[0]:
            return None
        found, again, place = [], [], 1
        for i, (question, shape, counters) in enumerate(zip(self.questions, self.shapes, self.counters)):
            end = place + 2 * len(question)
            found.append(values[place:end].reshape(2, -1))
            place = end + counters
            if (values[end:place] > shape.room).any():
                again.append(i)
        if again:
            finer = Counting(self.model, [self.questions[i] for i in again], [self.shapes[i].finer() for i in again])
            for i, counts in zip(again, finer.read() or []):
                found[i] = counts
        return found


def counting_bytes(
    n_triples: int, together: int, n_filtered: int, n_entities: int, width: int, *, far: bool = False
) -> int:
    """Bytes on the device for the questions of both sides, at most `together` of them asked at a time, with n_filtered
    known answers of distinct questions: what stays, and what the work takes on top. far: the table lies elsewhere."""
    from grash.kernels.count_above_triton import PART_BYTES, PIECE_BYTES, Shape

    asked = min(n_triples, together)
    shape = Shape.of(asked, n_entities, width, most_bytes=PIECE_BYTES if far else PART_BYTES)
    stays = 2 * n_triples * (24 + 12 + 16) + 8 * n_filtered
    numbers = 8 * (1 + 4 * n_triples + 2 * -(-n_triples // together) * shape.parts(n_entities))
    queries = 4 * asked * width
    gathered = _TOGETHER_counting * 4 * min(_GATHERED, asked * width)
    if far:  # two pieces of the table; queries and truths of a whole group
        group = min(2 * n_triples, max(_ASKED, asked))
        queries = 2 * 4 * group * width + 2 * 4 * min(shape.part, n_entities) * width
    return stays + numbers + queries + max(gathered, shape.bytes + 4 * n_filtered)


def _queries(model: KgeModel, question: Question) -> tuple[Tensor, Side]:
    """(Q, W) contiguous, one for each distinct question, and the side whose candidates they meet."""
    rows = max(1, _GATHERED // max(model.dim, model.relation.shape[1]))
    parts = [
        model.queries(question.known[part], question.relations[part], question.side)[0].contiguous()
        for part in question.distinct.asking.split(rows)
    ]
    _, seen = model.asked(question.relations[:0], question.side)
    return parts[0] if len(parts) == 1 else torch.cat(parts), seen


# = Ranking by the plain form where the entity table lies in a file (`kernels/far_rows`): it is walked through once for
# = many questions, a piece after the other, instead of once for every batch of them.
# =
# = Comes from `questions` and a model, goes to `ranking`; on a card `counting` does the same by its kernels.

# queries that meet a piece
_PIECE_BYTES = 64 << 20


@dataclass(frozen=True, eq=False)
class _Batch:
    """Some queries (B, W) of a question, the exact scores of their truths, what is skipped, and the counts so far."""

    queries: Tensor
    seen: Side
    exact: Tensor
    truth: Tensor
    skip: Runs
    counts: Tensor  # (2, B): above and ties


def count_far(model: KgeModel, questions: Sequence[Question], batch: int, tile: int) -> list[NDArray[np.int64]]:
    """For each question (2, B): above and ties. `batch` queries meet `tile` candidates at a time."""
    found: list[list[Tensor]] = [[] for _ in questions]
    waiting: list[_Batch] = []
    for place, question in enumerate(questions):
        for first in range(0, len(question), batch):
            waiting.append(_batch(model, question, first, min(first + batch, len(question))))
            found[place].append(waiting[-1].counts)
            if sum(len(b.queries) for b in waiting) >= _ASKED:
                _walk(model, waiting, tile)
                waiting = []
    _walk(model, waiting, tile)
    return [torch.cat(parts, 1).cpu().numpy() for parts in found]


def _batch(model: KgeModel, question: Question, first: int, last: int) -> _Batch:
    part = slice(first, last)
    queries, seen = model.queries(question.known[part], question.relations[part], question.side)
    truth = question.answers[part]
    exact = exact_scores(queries, model.candidate(model.entity[truth], seen), model.pair)
    counts = torch.zeros(2, last - first, dtype=torch.int64, device=queries.device)
    return _Batch(queries, seen, exact, truth, question.runs(first, last), counts)


def _walk(model: KgeModel, batches: Sequence[_Batch], tile: int) -> None:
    """Every batch meets every piece of the table; all are looked at for what has no order."""
    if not batches:
        return
    for first, rows in pieces(model.entity, max(1, _PIECE_BYTES // (4 * model.dim))):
        if not torch.isfinite(rows).all():
            raise Diverged("The model holds NaN or infinite numbers, so its scores have no order: train it anew.")
        candidates = {seen: model.candidate(rows, seen) for seen in {b.seen for b in batches}}
        largest = {seen: largest_row(some, model.pair) for seen, some in candidates.items()}
        for b in batches:
            some, most = candidates[b.seen], largest[b.seen]
            count_rows(b.queries, some, first, b.exact, b.truth, b.skip, model.pair, tile, most, *b.counts)
