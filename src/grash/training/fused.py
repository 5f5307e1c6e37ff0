"""The fused training step: what `loop.train_step` does, as a few kernels replayed from a CUDA graph.

Serves negative sampling with the softmax loss and shared negatives drawn evenly without replacement (the paper's step)
for ComplEx, DistMult, TransE and RotatE under Adagrad; `fusable` says what else is in the way, and the plain path runs.
Several trials may share every launch (`kernels/step`): same graph, seed and batch size, and tables of the same shape.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from grash.kernels.random import key_of
from grash.kernels.step import PENALTIES, WINDOW, Compose, Pair, Products, StepShape, StepSpace
from grash.models.base import Slot
from grash.training.batches import Batches
from grash.training.config import TrainConfig
from grash.training.optimizers import ADAGRAD_EPS
from grash.training.penalties import complex_rows
from grash.training.pulse import undisturbed
from grash.training.rates import rate_at
from grash.training.state import TrainState

_COMPOSE: dict[str, Compose] = {"complex": "complex", "distmult": "product", "transe": "sum", "rotate": "rotation"}
_PRODUCTS: dict[str, Products] = {"float32": "tf32x3", "tf32": "tf32", "bf16": "bf16"}
Counts = tuple[int, int]
_TOGETHER = 8  # steps of the longer of the two graphs


class FusedSteps:
    """Steps of one or several trainings at once. Their tables are moved in place; `run` moves nothing else."""

    def __init__(self, states: Sequence[TrainState], batches: Batches, configs: Sequence[TrainConfig]) -> None:
        self.states, self.batches, self.configs = list(states), batches, list(configs)
        device = batches.device
        self.shape, counts, chunks, splits = _shape(configs, batches.n_entities, batches.n_relations)
        self.space = StepSpace(self.shape, splits, device)
        self.tables = _stacked([(s.model.entity, s.model.relation) for s in states])
        self.squares = _stacked(
            [(s.entity_optimizer.state["squares"], s.relation_optimizer.state["squares"]) for s in states]
        )
        plan = batches.plan
        self.plan = torch.tensor([plan.n_examples, plan.total, plan.steps_per_epoch], device=device)
        seed = configs[0].seed
        slots: tuple[Slot, Slot] = ("head", "tail")
        streams = [key_of(seed, "order"), *(key_of(seed, "negatives", slot) for slot in slots)]
        self.keys = _integers([half for key in streams for half in _halves(key)], device)
        self.trials = _integers([_integers_of(*each) for each in zip(configs, counts, chunks)], device)
        self.factors = torch.tensor([_floats_of(c) for c in configs], dtype=torch.float32, device=device)
        self.rates_change = any(c.schedule != "constant" or c.warmup_epochs for c in configs)
        if not self.rates_change:
            self.space.rates.copy_(self._rates(0, 1).expand_as(self.space.rates))
        self.graphs: dict[int, torch.cuda.CUDAGraph] = {}
        self.side = torch.cuda.Stream(device) if device.type == "cuda" else None

    def advance(self, stop: int) -> None:
        """Makes steps up to `stop`, at most as many as the host will read losses at once, and moves the states on."""
        steps = min(stop - self.states[0].step, WINDOW - len(self.states[0].unread))
        with undisturbed():
            losses = self.run(steps)
            for i, state in enumerate(self.states):
                state.step += steps
                state.unread.extend(losses[:, i].unbind())

    def run(self, steps: int) -> Tensor:
        """Makes the next `steps` ≤ WINDOW steps; their losses (steps, T), on the device. The host does not wait."""
        step = self.states[0].step
        space = self.space
        places = torch.arange(step, step + steps, device=space.clock.device) % WINDOW
        if self.rates_change:
            space.rates[places] = self._rates(step, steps).to(space.rates.device)
        space.clock.fill_(step)
        if space.clock.is_cuda:
            self._replay(steps)
        else:
            for _ in range(steps):
                self._launch()
        return space.losses[places]

    def _rates(self, step: int, steps: int) -> Tensor:
        plan = self.batches.plan
        epochs = [plan.examples_before(s) / plan.n_examples for s in range(step, step + steps)]
        rates = [[rate_at(c, e, s.plateau) for c, s in zip(self.configs, self.states)] for e in epochs]
        return torch.tensor(rates, dtype=torch.float32)

    def _launch(self) -> None:
        """One step. The two small kernels run beside others of many short programs: beside `score` and `spread`, whose
        programs all start at once, they took places and made these end late (rotate: 177 µs a step, now 140)."""
        from grash.kernels import step_distance_triton as distance
        from grash.kernels import step_dot_triton as dot
        from grash.kernels import step_draw_triton as drawing
        from grash.kernels import step_update_triton as updating
        from grash.kernels.step_ends_triton import ends

        space, plan, trials, factors = self.space, self.plan, self.trials, self.factors
        drawing.draw(space, plan, self.keys, trials, factors, self.batches.train, *self.tables)
        pair = dot if self.shape.pair == "dot" else distance
        pair.score(space, trials)
        with _beside(self.side):
            drawing.order(space)
        if self.shape.pair != "dot":
            distance.weigh(space, plan, trials)
            distance.pulls(space, trials)
        ends(space, plan, trials, factors, *self.tables)
        _join(self.side)
        pair.spread(space, trials)
        with _beside(self.side):
            updating.update_relations(space, self.tables[1], self.squares[1], ADAGRAD_EPS)
        updating.update_entities(space, plan, trials, factors, self.tables[0], self.squares[0], ADAGRAD_EPS)
        _join(self.side)

    def _replay(self, steps: int) -> None:
        while steps:
            together = _TOGETHER if steps >= _TOGETHER else 1
            if together not in self.graphs:
                self._capture(together)
            self.graphs[together].replay()
            steps -= together

    def _capture(self, together: int) -> None:
        if not self.graphs:
            # kernels are compiled by a first launch: it sees a step after the end, which has no positives
            plan, now = self.batches.plan, self.space.clock.clone()
            self.space.clock.fill_(-(-plan.total // plan.n_examples) * plan.steps_per_epoch)
            self._launch()
            self.space.clock.copy_(now)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            for _ in range(together):
                self._launch()
        self.graphs[together] = graph


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


def stack_states(states: Sequence[TrainState]) -> None:
    """Moves the trials' tables and optimizer states into one tensor each, of which they become views."""
    for name in ("entity", "relation"):
        together = torch.stack([getattr(s.model, name) for s in states])
        squares = torch.stack([getattr(s, f"{name}_optimizer").state["squares"] for s in states])
        for i, state in enumerate(states):
            setattr(state.model, name, together[i])
            getattr(state, f"{name}_optimizer").state["squares"] = squares[i]


def work_bytes(configs: Sequence[TrainConfig], n_entities: int, n_relations: int) -> int:
    """Bytes on the device beside tables, optimizer state and triples."""
    shape, _, _, splits = _shape(configs, n_entities, n_relations)
    space = StepSpace(shape, splits, torch.device("meta"))
    return sum(t.nbytes for t in vars(space).values() if isinstance(t, Tensor))


def _shape(
    configs: Sequence[TrainConfig], n_entities: int, n_relations: int
) -> tuple[StepShape, list[Counts], list[int], int]:
    """The stack's shape; of each trial its negatives and candidates per program; the most programs of a slot."""
    first = configs[0]
    counts = [(min(c.negatives_head, n_entities), min(c.negatives_tail, n_entities)) for c in configs]
    distance: Pair = "l2" if first.norm == 2 else "l1" if first.model == "transe" else "modulus"
    shape = StepShape(
        trials=len(configs),
        batch=first.batch_size,
        n_entities=n_entities,
        n_relations=n_relations,
        dim=first.dim,
        negatives=(max(c[0] for c in counts), max(c[1] for c in counts)),
        compose=_COMPOSE[first.model],
        pair=distance if first.model in ("transe", "rotate") else "dot",
        reciprocal=first.reciprocal,
        dropout=any(c.dropout_entity or c.dropout_relation for c in configs),
        rowwise=first.optimizer == "row_adagrad",
        products=_PRODUCTS[first.precision],
    )
    chunks = [shape.chunks(c) for c in counts]
    return shape, counts, chunks, max(-(-n // chunk) for c, chunk in zip(counts, chunks) for n in c)


def _stacked(parts: Sequence[tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
    """(T, rows, width) over tensors that lie one after the other in memory, without a copy."""
    found = []
    for tensors in zip(*parts):
        first = tensors[0]
        if not all(t.is_contiguous() and t.data_ptr() == first.data_ptr() + i * first.nbytes
                   for i, t in enumerate(tensors)):  # fmt: skip
            raise ValueError("the trials' tables do not lie one after the other: call stack_states first")
        found.append(torch.as_strided(first, (len(tensors), *first.shape), (first.numel(), *first.stride())))
    return found[0], found[1]


def _integers_of(config: TrainConfig, counts: Counts, chunk: int) -> list[int]:
    thresholds = [min(round(rate * 2**32), 2**32 - 1) for rate in (config.dropout_entity, config.dropout_relation)]
    return [*counts, chunk, chunk, *_halves(config.own_key("dropout")), *thresholds,
            _penalty(config, "entity"), _penalty(config, "relation")]  # fmt: skip


def _floats_of(config: TrainConfig) -> list[float]:
    scales = [1.0 / (1.0 - rate) for rate in (config.dropout_entity, config.dropout_relation)]
    return [*scales, config.penalty_entity, config.penalty_relation]


def _penalty(config: TrainConfig, table: str) -> int:
    if not getattr(config, f"penalty_{table}"):
        return 0
    kind = PENALTIES[config.penalty]
    return PENALTIES["l3"] if config.penalty == "n3" and not complex_rows(config, table) else kind


def _halves(key: int) -> tuple[int, int]:
    return key & 0xFFFFFFFF, key >> 32


def _integers(values: Any, device: torch.device) -> Tensor:
    """32 bits each, those above 2³¹ read as negative."""
    return torch.tensor(values, dtype=torch.int64).to(torch.int32).to(device)
