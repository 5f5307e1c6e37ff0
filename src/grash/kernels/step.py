"""The fused training step: shapes, work space, and the launches of its kernels, which are in `step_*_triton`.

A step trains T trials at once, by negative sampling with shared negatives, 1vsAll or KvsAll. The trials share the
graph, the positives and the negatives. Each has its own tables, number of negatives, learning rate, dropout and
penalty.
The kernels run in this order:

    draw      positives, negatives, queries and candidates, from a step counter on the device     step_draw_triton
    order     the occurrences of each row in the batch, to sum repeated rows in order             step_draw_triton
    score     softmax parts and gradients of the queries: for dot products without a score        step_score_triton
              matrix; for distances, which no matrix unit computes, with one of B × N floats
    triples   gradients of heads, tails and relations                                             step_update_triton
    spread    gradients of the candidates                                                         step_score_triton
              (score and spread of wide dot products in bf16, and of KvsAll: matrix products)     step_products_triton
    update    sum the occurrences, then apply Adagrad once per row                                step_update_triton

No float is added atomically, and no tile depends on T or on another trial, so a trial has the same numbers alone and in
a stack. The unfused implementation (`training/gradients`, `training/optimizers`) is the reference.

Letters: T trials; B positives, padded to full tiles; N candidates of all sides, each side padded (heads, then tails,
then relations if they are predicted); S sides; D floats per entity; P the padded D: two halves, each filled with zeros
to a power of two. In 1vsAll the candidates are all entities in the order of their ids. Without dropout heads and tails
then share one block of candidates. So do relations and their inverses, if both are predicted (with reciprocals).

KvsAll has one side, B questions instead of positives, and all entities as candidates. Its labels are a matrix of bits.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from grash.kernels.device import Card
from grash.kernels.pair_scores import Pair

Compose = Literal["product", "complex", "sum", "rotation"]
Products = Literal["bf16", "tf32", "tf32x3"]
Tables = tuple[Tensor, Tensor]  # entities (T, E, D) and relations (T, R, width)
Examples = tuple[Tensor, Tensor]  # train (n, 3) int32, twice; KvsAll: `Batches.questions_on_device`

TILE = 128  # B and N are padded to this
WINDOW = 64  # steps whose learning rates and losses are kept on the device
INTS, FLOATS = 10, 8  # settings per trial, in the order of `training/fused`
NO_ID = 2**31 - 1
LABELS = 32  # of an integer of the matrix of labels
LOWEST = -1e30  # below every score and exponent, but finite
NARROW = 256  # floats of a padded row up to which dot products need no matrix of weights
PRODUCT_CHUNK = 4096  # candidates of a part of `query_products`
MOST_WEIGHED = 1 << 19  # entities up to which 1vsAll stores its weights: 2 GiB for 1,024 positives
PENALTIES = {"none": 0, "l1": 1, "l2": 2, "l3": 3, "n3": 4}
WIDEST = 2048  # most floats of a row

# Tiles of dot products by padded width: rows that stay, rows that pass, warps, stages. Each is for GPUs with at least
# the shared memory (KiB) above it: a Hopper; an A100, and a B200, whose products also need tensor memory; RTX 30, 40,
# 50 and L4. tests/kernels/test_cards.py compiles each for these GPUs: all fit, and all but the Hopper's spill nothing.
# Wide rows in bf16 use them only if weights cannot be stored (`StepShape.by_products`).
Tile = tuple[int, int, int, int]
_SHARED_KIB = (227, 163, 99)
_TILES: dict[Products, dict[int, tuple[Tile | None, Tile | None, Tile | None]]] = {
    "bf16": {
        128: ((64, 64, 4, 3), (64, 64, 4, 3), (64, 64, 4, 3)),
        256: ((64, 64, 8, 3), (64, 64, 8, 3), (64, 64, 8, 2)),
        512: ((64, 32, 8, 2), (64, 32, 8, 2), (32, 32, 8, 2)),
        1024: ((32, 16, 8, 2), (32, 16, 8, 2), (32, 16, 8, 2)),
        2048: ((16, 16, 8, 2), (16, 16, 8, 2), None),
    },
    "tf32": {
        128: ((128, 64, 8, 2), (64, 64, 8, 2), (64, 64, 8, 2)),
        256: ((128, 32, 8, 2), (64, 32, 8, 2), (32, 32, 8, 2)),
        512: ((64, 16, 8, 2), (16, 16, 8, 2), (16, 16, 8, 2)),
    },
    "tf32x3": {128: ((128, 32, 8, 2), (32, 16, 8, 2), (32, 16, 8, 2))},
}


def dot_tile(products: Products, padded: int, card: Card) -> Tile | None:
    """Return the tile of dot products of rows of `padded` floats on this GPU; None if none fits."""
    fitting = [i for i, shared in enumerate(_SHARED_KIB) if card.shared_bytes >= 1024 * shared]
    columns = [i for i in fitting if i > 0 or card.capability[0] == 9]
    return next((tiles[columns[0]] for width, tiles in _TILES[products].items() if columns and padded <= width), None)


def widest_dot(products: Products, card: Card) -> int:
    """Return the most floats of a row for which this GPU can compute dot products; 0 if it cannot."""
    widths = [width for width in _TILES[products] if dot_tile(products, width, card)]
    return WIDEST if widths and products == "bf16" else max(widths, default=0)  # by matrix products, of any width


@dataclass(frozen=True)
class StepShape:
    """The constants compiled into the kernels, and the largest sizes in the stack."""

    trials: int
    batch: int
    n_entities: int
    n_relations: int
    dim: int
    negatives: tuple[int, int]  # largest number of head and of tail negatives of any trial
    compose: Compose
    pair: Pair
    reciprocal: bool
    dropout: bool
    rowwise: bool
    products: Products = "tf32"
    one_vs_all: bool = False  # the candidates are all entities
    kvsall: bool = False  # so they are here
    predicted: int = 0  # rows of the relations to predict; 0: relations are not predicted
    adversarial: bool = False  # some trial uses the self-adversarial loss
    bf16: bool = False  # entities are stored in bf16
    card: Card = Card()

    @property
    def rows(self) -> int:
        """B: padded number of positives."""
        return _up(self.batch, TILE)

    @property
    def sides(self) -> int:
        """S: heads, tails, and relations if they are predicted (with reciprocals in both directions); 1 in KvsAll."""
        if self.kvsall:
            return 1
        return 2 + (0 if not self.predicted else 2 if self.reciprocal else 1)

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
    def wide(self) -> int:
        """The factor by which a program processes fewer rows at once, to keep them in registers."""
        return max(1, self.padded // 256)

    @property
    def dot_tile(self) -> dict[str, int]:
        """The tile of dot products: BLOCK_M rows stay, BLOCK_N rows pass. It does not depend on the trials."""
        if self._tile is None:
            raise ValueError(f"{self.card.name} has no tile for {self.products} products of {self.padded} floats")
        return dict(zip(("BLOCK_M", "BLOCK_N", "num_warps", "num_stages"), self._tile))

    @property
    def _tile(self) -> Tile | None:
        return dot_tile(self.products, self.padded, self.card)

    @property
    def width(self) -> int:
        """Floats per relation; a rotation has D/2 phases."""
        return self.half if self.compose == "rotation" else self.dim

    @property
    def shared(self) -> bool:
        """Whether heads and tails share one block of candidates; dropout makes them differ."""
        return self.one_vs_all and not self.dropout and not self.kvsall

    @property
    def first_tail(self) -> int:
        """Position of the first tail among the N candidates."""
        return 0 if self.shared else _up(self.negatives[0], TILE)

    @property
    def first_relation(self) -> int:
        """Position of the first relation among the N candidates."""
        return self.first_tail + _up(self.negatives[1], TILE)

    @property
    def candidates(self) -> int:
        """N: padded number of candidates of all sides."""
        return self.first_relation + _up(self.predicted, TILE)

    @property
    def by_products(self) -> bool:
        """Whether the weights of the candidates are stored (`step_products_triton`); the same for every stack."""
        fits = not self.one_vs_all or self.n_entities <= MOST_WEIGHED or not self._tile
        return self.kvsall or (self.pair == "dot" and self.products == "bf16" and self.padded > NARROW and fits)

    @property
    def widest_side(self) -> int:
        """W: padded number of candidates of the side that has most."""
        return _up(max(*self.negatives, self.predicted), TILE)

    @property
    def chunk(self) -> int:
        """Smallest number of candidates that one program compares with its queries."""
        return 256 if self.pair == "dot" else 128

    def chunks(self, negatives: tuple[int, int]) -> int:
        """Return the candidates per program for a trial, which must not depend on other trials.

        About as many programs as the GPU has multiprocessors share a step of one trial (of the powers of 2 the nearest:
        128 of an H200 with 132); relations are extra.
        """
        if self.by_products:
            return PRODUCT_CHUNK
        together = max(1, 2 ** round(math.log2(self.card.multiprocessors)) * TILE // self.rows)
        return max(self.chunk, _up(-(-sum(negatives) // together), 64 if self.pair == "dot" else TILE))

    @property
    def batch_parts(self) -> int:
        """Number of parts of the batch; a candidate's gradient is summed in each part, then over the parts."""
        return 1 if self.pair == "dot" else 8


class StepSpace:
    """Tensors of the step; at most `splits` programs share the candidates of a side."""

    def __init__(self, shape: StepShape, splits: int, device: torch.device) -> None:
        self.shape, self.splits = shape, splits
        t, b, n, p, s = shape.trials, shape.rows, shape.candidates, shape.padded, shape.sides
        product = torch.bfloat16 if shape.products == "bf16" and shape.pair == "dot" else torch.float32

        def make(*size: int, dtype: torch.dtype = torch.float32) -> Tensor:
            return torch.zeros(size, dtype=dtype, device=device)

        integer = torch.int32
        self.clock = make(1, dtype=torch.int64)
        self.ids = make(2, 2 * b, dtype=integer)  # entities: heads, tails; relations: r, inverse r
        self.order, self.start, self.count = (make(2, 2 * b, dtype=integer) for _ in range(3))
        self.positions = make(2, 2 * b, dtype=integer)  # of heads and tails among candidate heads and tails
        self.truths = make(4, b, dtype=integer)  # positions of the true heads, tails, relations, inverse relations
        self.negatives, self.other_positions, self.seen = (make(n, dtype=integer) for _ in range(3))
        self.queries = make(t, s, b, p, dtype=product)
        self.block = make(t, n, p, dtype=product)  # rows of the candidates
        self.positive, self.normalizer, self.for_positive = (make(t, s, b) for _ in range(3))
        self.maxima, self.sums = (make(t, s, splits, b) for _ in range(2))
        self.costs = make(t, s, splits, b) if shape.adversarial else self.sums  # the loss of the negatives
        self.partial = make(t, s, splits, b, p)  # gradients of the queries
        self.entity_gradients, self.relation_gradients = (make(t, 2, b, p) for _ in range(2))
        self.candidate_gradients = make(t, shape.batch_parts, n, p)
        self.row_losses = make(t, b)
        self.losses, self.rates = make(WINDOW, t), make(WINDOW, t)
        if shape.pair != "dot" or shape.by_products:
            self.side_losses = make(t, s, b)
        if shape.by_products:
            tiles = shape.widest_side // TILE
            self.weights = make(t, s, b, shape.widest_side, dtype=product)
            self.tile_maxima, self.tile_sums = (make(t, s, tiles, b) for _ in range(2))
            self.tile_costs = make(t, s, tiles, b) if shape.adversarial or shape.kvsall else self.tile_sums
        self.labels, self.asked, self.answered, self.answer_penalties = self.ids, self.ids, self.ids, self.row_losses
        if shape.kvsall:
            self.labels = make(b, n // LABELS, dtype=integer)  # a bit for each question and candidate
            self.asked = make(2, b, dtype=integer)  # number of labels; −1 where the relation is conjugated, else 1
            self.answered = make(n + 1, dtype=integer)  # questions that a candidate answers; last: all labels
            self.answer_penalties = make(t, n)  # of a candidate as an answer, not yet divided by the number of labels
            self.positive.fill_(LOWEST)  # a question has labels instead
            self.truths.fill_(NO_ID)
            self.ids.fill_(NO_ID)
        if shape.pair != "dot":
            self.queries_across, self.block_across = make(t, s, p, b), make(t, p, n)
            self.scores, self.scores_across = make(t, b, n), make(t, n, b)


def _up(n: int, multiple: int) -> int:
    return -(-n // multiple) * multiple


def launch_step(
    space: StepSpace, plan: Tensor, keys: Tensor, trials: Tensor, factors: Tensor, examples: Examples,
    tables: Tables, squares: Tables, eps: float, side_stream: torch.cuda.Stream | None,
) -> None:  # fmt: skip
    """Launch one step; arguments as in `step_draw_triton.draw`, `squares` is the state of Adagrad.

    Two small kernels run on `side_stream`, beside kernels of many short programs. Beside `score` and `spread`, whose
    programs all start at once, they took up multiprocessors and delayed these (RotatE: 177 µs a step, now 140).
    """
    from grash.kernels import step_draw_triton as drawing
    from grash.kernels import step_products_triton as products
    from grash.kernels import step_score_triton as scoring
    from grash.kernels import step_update_triton as updating

    shape = space.shape
    drawing.draw(space, plan, keys, trials, factors, examples, *tables)
    if shape.by_products:
        products.score_products(space, trials, factors)
    elif shape.pair == "dot":
        scoring.score_dot(space, trials, factors)
    else:
        scoring.score_distance(space, trials, factors)
    with _on_stream(side_stream):
        drawing.order(space)
    if shape.by_products:
        products.merge_products(space, plan, trials, factors)
        products.weigh_products(space, trials, factors)
        products.query_products(space, trials)
    elif shape.pair != "dot":
        scoring.weigh_distance(space, plan, trials, factors)
        scoring.query_gradient_distance(space, trials)
    gradients = updating.question_gradients if shape.kvsall else updating.triple_gradients
    gradients(space, plan, trials, factors, *tables)
    _join(side_stream)
    if shape.by_products:
        products.candidate_products(space, trials)
    elif shape.pair == "dot":
        scoring.candidate_gradient_dot(space, trials, factors)
    else:
        scoring.candidate_gradient_distance(space, trials)
    with _on_stream(side_stream):
        updating.update_relations(space, plan, trials, factors, tables[1], squares[1], eps)
    updating.update_entities(space, plan, trials, factors, keys, tables[0], squares[0], eps)
    _join(side_stream)


def dry_run_step(shape: StepShape, splits: int) -> None:
    """Launch a step of this shape on meta tensors, for `compile_ahead.dry_run`.

    The number of triples may be any: it is not compiled into the kernels.
    """
    meta, n = torch.device("meta"), shape.trials
    plan = torch.empty(3, dtype=torch.int64, device=meta)
    keys, trials, train = (torch.empty(size, dtype=torch.int32, device=meta) for size in ((4, 2), (n, INTS), (1, 3)))
    questions = torch.empty(4, 1, dtype=torch.int64, device=meta)
    examples = (questions, train) if shape.kvsall else (train, train)
    factors = torch.empty(n, FLOATS, device=meta)
    n_relations = shape.n_relations * (2 if shape.reciprocal else 1)
    entity_squares = torch.empty(n, shape.n_entities, shape.dim, device=meta)
    relation = torch.empty(n, n_relations, shape.width, device=meta)
    entity = entity_squares.to(torch.bfloat16) if shape.bf16 else entity_squares
    tables, squares = (entity, relation), (entity_squares, relation)
    launch_step(StepSpace(shape, splits, meta), plan, keys, trials, factors, examples, tables, squares, 0.0, None)


@contextmanager
def _on_stream(stream: torch.cuda.Stream | None) -> Iterator[None]:
    """Launch the body on `stream`, after what is queued so far; `_join` waits for it."""
    if stream is None:
        yield
        return
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        yield


def _join(stream: torch.cuda.Stream | None) -> None:
    if stream is not None:
        torch.cuda.current_stream().wait_stream(stream)
