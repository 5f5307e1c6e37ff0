"""The launches of one step in their order, and a rehearsal of them; see `step` for what each of the kernels does."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from grash.kernels import step_draw_triton as drawing
from grash.kernels import step_score_triton as distance
from grash.kernels import step_score_triton as dot
from grash.kernels import step_update_triton as updating
from grash.kernels.step import FLOATS, INTS, StepShape, StepSpace
from grash.kernels.step_update_triton import ends

Tables = tuple[Tensor, Tensor]  # of entities (T, E, D) and of relations (T, R, width)


def launch_step(
    space: StepSpace, plan: Tensor, keys: Tensor, trials: Tensor, factors: Tensor, train: Tensor,
    tables: Tables, squares: Tables, eps: float, side: torch.cuda.Stream | None,
) -> None:  # fmt: skip
    """One step, arguments as in `step_draw_triton.draw`; squares are Adagrad's. The two small kernels run beside others
    of many short programs, on `side`: beside `score` and `spread`, whose programs all start at once, they took places
    and made these end late (rotate: 177 µs a step, now 140)."""
    dots = space.shape.pair == "dot"
    drawing.draw(space, plan, keys, trials, factors, train, *tables)
    (dot if dots else distance).score(space, trials, factors)
    with _beside(side):
        drawing.order(space)
    if not dots:
        distance.weigh(space, plan, trials, factors)
        distance.pulls(space, trials)
    ends(space, plan, trials, factors, *tables)
    _join(side)
    if dots:
        dot.spread(space, trials, factors)
    else:
        distance.spread_step_distance_triton(space, trials)
    known = space, plan, trials, factors
    with _beside(side):
        updating.update_relations(*known, tables[1], squares[1], eps)
    updating.update_entities(*known, keys, tables[0], squares[0], eps)
    _join(side)


def rehearse(shape: StepShape, splits: int) -> None:
    """Launches a step of this shape by tensors without memory (`compile_ahead.rehearsal`). How many triples there are
    compiles nothing anew."""
    meta, n = torch.device("meta"), shape.trials
    plan = torch.empty(3, dtype=torch.int64, device=meta)
    keys, trials, train = (torch.empty(size, dtype=torch.int32, device=meta) for size in ((4, 2), (n, INTS), (1, 3)))
    factors = torch.empty(n, FLOATS, device=meta)
    relations = shape.n_relations * (2 if shape.reciprocal else 1)
    squares = tuple(
        torch.empty(n, *size, device=meta) for size in ((shape.n_entities, shape.dim), (relations, shape.width))
    )
    entity = squares[0].to(torch.bfloat16) if shape.rounded else squares[0]
    space = StepSpace(shape, splits, meta)
    launch_step(space, plan, keys, trials, factors, train, (entity, squares[1]), (squares[0], squares[1]), 0.0, None)


@contextmanager
def _beside(side: torch.cuda.Stream | None) -> Iterator[None]:
    """What is launched inside runs beside what follows, until the two are joined."""
    if side is None:
        yield
        return
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        yield


def _join(side: torch.cuda.Stream | None) -> None:
    if side is not None:
        torch.cuda.current_stream().wait_stream(side)
