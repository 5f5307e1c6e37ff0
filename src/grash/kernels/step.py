"""The fused training step's shapes and work space: what its kernels (`step_*_triton`) hand to one another.

A step of negative sampling with shared negatives, or of 1vsAll, for T trials at once: the same graph, positives and
negatives, each with tables, number of negatives, rate, dropout and penalty of its own. In order:

    draw      positives, negatives, queries, candidates, from a step counter on the device     step_draw_triton
    order     where each row of the batch occurs, so that repeated rows are summed in order     step_draw_triton
    score     softmax parts and gradients of queries, without a score matrix (dot products)     step_dot_triton
              or with one of B × N floats (distances, which no matrix unit computes)            step_distance_triton
    ends      what arrives at heads, tails and relations                                        step_ends_triton
    spread    gradients of the candidates                                       step_dot_triton, step_distance_triton
    update    occurrences summed, Adagrad on every row once                                     step_update_triton

No float is added atomically and no tile depends on T or on a neighbor: a trial's numbers are the same alone and
among others. The plain form is the training path itself (`training/gradients`, `training/optimizers`).

Letters: T trials, B positives padded to full tiles, N candidates of all slots (heads first, then tails, then relations
if these are predicted, each slot padded), S slots, D floats per entity, P their padded number: two halves, each filled
up with zeros to a power of two. In 1vsAll every entity is a candidate, in its own order; without dropout heads and
tails are then the same candidates, and stand there once.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

Compose = Literal["product", "complex", "sum", "rotation"]
Pair = Literal["dot", "l1", "l2", "modulus"]
Products = Literal["bf16", "tf32", "tf32x3"]

TILE = 128  # B and N are padded to this
WINDOW = 64  # steps whose rates and losses have a place on the device
INTS, FLOATS = 10, 7  # per trial, as `training/fused` lays them out
NO_ID = 2**31 - 1
PENALTIES = {"none": 0, "l1": 1, "l2": 2, "l3": 3, "n3": 4}


@dataclass(frozen=True)
class StepShape:
    """What is compiled in, and the largest sizes of the stack."""

    trials: int
    batch: int
    n_entities: int
    n_relations: int
    dim: int
    negatives: tuple[int, int]  # most heads and most tails that any trial draws
    compose: Compose
    pair: Pair
    reciprocal: bool
    dropout: bool
    rowwise: bool
    products: Products = "tf32"
    everyone: bool = False  # 1vsAll
    predicted: int = 0  # relations that are candidates too, of any trial
    adversarial: bool = False  # the self-adversarial loss in place of the softmax
    rounded: bool = False  # entities in bf16

    @property
    def rows(self) -> int:
        """B: positives, padded."""
        return _up(self.batch, TILE)

    @property
    def slots(self) -> int:
        """S: heads, tails, and relations if these are predicted."""
        return 3 if self.predicted else 2

    @property
    def half(self) -> int:
        return self.dim // 2

    @property
    def padded_half(self) -> int:
        return max(16, 1 << max(0, self.half - 1).bit_length())

    @property
    def padded(self) -> int:
        """P: floats of a row in the work space."""
        return 2 * self.padded_half

    @property
    def wide(self) -> bool:
        """Whether programs take fewer rows at once, so that registers hold them."""
        return self.padded > 256

    @property
    def width(self) -> int:
        """Floats of a relation's row: a rotation has half as many phases."""
        return self.half if self.compose == "rotation" else self.dim

    @property
    def shared(self) -> bool:
        """Whether heads and tails are one block of candidates: dropout would make them two."""
        return self.everyone and not self.dropout

    @property
    def first_tail(self) -> int:
        """Where the tails begin among the N candidates."""
        return 0 if self.shared else _up(self.negatives[0], TILE)

    @property
    def first_relation(self) -> int:
        """Where the relations begin among the N candidates."""
        return self.first_tail + _up(self.negatives[1], TILE)

    @property
    def candidates(self) -> int:
        """N: candidates of all slots, padded."""
        return self.first_relation + _up(self.predicted, TILE)

    @property
    def chunk(self) -> int:
        """Candidates that one program compares with its queries, at least."""
        return 256 if self.pair == "dot" else 128

    def chunks(self, negatives: tuple[int, int]) -> int:
        """Candidates per program for a trial with so many: a function of the trial alone. About 128 programs share
        a step of one trial (an H200 has 132 multiprocessors); relations come on top."""
        together = max(1, 128 * TILE // self.rows)
        return max(self.chunk, _up(-(-sum(negatives) // together), 64 if self.pair == "dot" else TILE))

    @property
    def spreads(self) -> int:
        """Parts of the batch over which a candidate's gradient is summed before the parts are."""
        return 1 if self.pair == "dot" else 8


class StepSpace:
    """The tensors of the step; `splits` is the most programs that share the candidates of a slot."""

    def __init__(self, shape: StepShape, splits: int, device: torch.device) -> None:
        self.shape, self.splits = shape, splits
        t, b, n, p, s = shape.trials, shape.rows, shape.candidates, shape.padded, shape.slots
        product = torch.bfloat16 if shape.products == "bf16" and shape.pair == "dot" else torch.float32

        def make(*size: int, dtype: torch.dtype = torch.float32) -> Tensor:
            return torch.zeros(size, dtype=dtype, device=device)

        integer = torch.int32
        self.clock = make(1, dtype=torch.int64)
        self.ids = make(2, 2 * b, dtype=integer)  # entities: heads, tails; relations: forward, backward
        self.order, self.start, self.count = (make(2, 2 * b, dtype=integer) for _ in range(3))
        self.places = make(2, 2 * b, dtype=integer)  # of heads and tails among the candidate heads, candidate tails
        self.truths = make(3, b, dtype=integer)  # places of the truth: heads, tails, relations
        self.negatives, self.twins, self.seen = (make(n, dtype=integer) for _ in range(3))
        self.queries = make(t, s, b, p, dtype=product)
        self.block = make(t, n, p, dtype=product)  # the candidates' rows
        self.positive, self.normalizer, self.pull = (make(t, s, b) for _ in range(3))
        self.maxima, self.sums = (make(t, s, splits, b) for _ in range(2))
        self.costs = make(t, s, splits, b) if shape.adversarial else self.sums  # the negatives' part of the loss
        self.partial = make(t, s, splits, b, p)  # gradients of the queries
        self.for_ends, self.for_relations = (make(t, 2, b, p) for _ in range(2))
        self.for_candidates = make(t, shape.spreads, n, p)
        self.row_losses = make(t, b)
        self.losses, self.rates = make(WINDOW, t), make(WINDOW, t)
        if shape.pair != "dot":
            self.slot_losses = make(t, s, b)
            self.queries_across, self.block_across = make(t, s, p, b), make(t, p, n)
            self.scores, self.scores_across = make(t, b, n), make(t, n, b)


def _up(n: int, multiple: int) -> int:
    return -(-n // multiple) * multiple
