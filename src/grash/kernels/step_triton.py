"""Launches the kernels of one training step in order (see `step` for what each kernel does)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from grash.kernels import step_draw_triton as drawing
from grash.kernels import step_score_triton as scoring
from grash.kernels import step_update_triton as updating
from grash.kernels.step import FLOATS, INTS, StepShape, StepSpace

Tables = tuple[Tensor, Tensor]  # entities (T, E, D) and relations (T, R, width)


def launch_step(
    space: StepSpace, plan: Tensor, keys: Tensor, trials: Tensor, factors: Tensor, train: Tensor,
    tables: Tables, squares: Tables, eps: float, side_stream: torch.cuda.Stream | None,
) -> None:  # fmt: skip
    """Launch one step; arguments as in `step_draw_triton.draw`, `squares` is the state of Adagrad.

    Two small kernels run on `side_stream`, beside kernels of many short programs. Beside `score` and `spread`, whose
    programs all start at once, they took up multiprocessors and delayed these (RotatE: 177 µs a step, now 140).
    """
    is_dot = space.shape.pair == "dot"
    drawing.draw(space, plan, keys, trials, factors, train, *tables)
    if is_dot:
        scoring.score_dot(space, trials, factors)
    else:
        scoring.score_distance(space, trials, factors)
    with _on_stream(side_stream):
        drawing.order(space)
    if not is_dot:
        scoring.weigh_distance(space, plan, trials, factors)
        scoring.query_gradient_distance(space, trials)
    updating.triple_gradients(space, plan, trials, factors, *tables)
    _join(side_stream)
    if is_dot:
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
    factors = torch.empty(n, FLOATS, device=meta)
    n_relations = shape.n_relations * (2 if shape.reciprocal else 1)
    entity_squares = torch.empty(n, shape.n_entities, shape.dim, device=meta)
    relation = torch.empty(n, n_relations, shape.width, device=meta)
    entity = entity_squares.to(torch.bfloat16) if shape.bf16 else entity_squares
    tables, squares = (entity, relation), (entity_squares, relation)
    launch_step(StepSpace(shape, splits, meta), plan, keys, trials, factors, train, tables, squares, 0.0, None)


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
