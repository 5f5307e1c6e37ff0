"""The fused training step: what `loop.train_step` does, as a few kernels replayed from a CUDA graph.

It covers negative sampling with shared negatives drawn uniformly without replacement (the paper's step), 1vsAll and
KvsAll, with the softmax or self-adversarial loss, for ComplEx, DistMult, TransE and RotatE with Adagrad; `why_not`
names what is not covered, and then the unfused implementation runs. Several trials can share every launch
(`kernels/step`): same graph, seed and batch size, tables of the same shape, and everything that `_shape` takes from the
first of them.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor

from grash.kernels.compile_ahead import dry_run
from grash.kernels.device import card_of, use_triton, why_no_triton
from grash.kernels.pair_scores import Pair
from grash.kernels.random import key_of
from grash.kernels.step import (
    PENALTIES,
    WIDEST,
    WINDOW,
    Compose,
    Products,
    StepShape,
    StepSpace,
    dry_run_step,
    launch_step,
    widest_dot,
)
from grash.models.base import Side
from grash.training.batches import Batches
from grash.training.checkpoint import TrainState, state_tensors
from grash.training.config import TrainConfig
from grash.training.initial import STORAGE_DTYPES
from grash.training.losses import complex_rows
from grash.training.optimizers import ADAGRAD_EPS, rate_at, rounding_key

log = logging.getLogger(__name__)

_COMPOSE: dict[str, Compose] = {"complex": "complex", "distmult": "product", "transe": "sum", "rotate": "rotation"}
_PRODUCTS: dict[str, Products] = {"float32": "tf32x3", "tf32": "tf32", "bf16": "bf16"}
Counts = tuple[int, int, int]
_GRAPH_STEPS = 8  # steps of the longer of the two CUDA graphs
_CPU = torch.device("cpu")


class FusedSteps:
    """Takes steps of one or several trainings at once. Tables and optimizer states are updated in place."""

    def __init__(self, states: Sequence[TrainState], batches: Batches, configs: Sequence[TrainConfig]) -> None:
        self.states, self.batches, self.configs = list(states), batches, list(configs)
        device = batches.device
        plan = batches.plan
        kvsall = configs[0].training == "kvsall"
        self.examples = batches.questions_on_device if kvsall else (batches.train, batches.train)
        self.plan = torch.tensor([plan.n_examples, plan.total, plan.steps_per_epoch], device=device)
        seed = configs[0].seed
        sides: tuple[Side, Side] = ("head", "tail")
        streams = [
            key_of(seed, "order"),
            *(key_of(seed, "negatives", side) for side in sides),
            rounding_key(configs[0]),
        ]
        self.keys = _integers([half for key in streams for half in _halves(key)], device)
        self.side_stream = torch.cuda.Stream(device) if device.type == "cuda" else None
        self.dropout = False
        self._allocate()

    def _allocate(self) -> None:
        """Allocate work space and settings of the present trials; CUDA graphs are captured when they are needed."""
        states, configs, device = self.states, self.configs, self.batches.device
        sizes = self.batches.n_entities, self.batches.n_relations
        self.shape, counts, chunks, splits = _shape(configs, *sizes, device, dropout=self.dropout)
        self.dropout = self.shape.dropout  # stays set when trials with dropout leave: no recompilation
        self.space = StepSpace(self.shape, splits, device)
        self.tables = _stacked([(s.model.entity, s.model.relation) for s in states])
        self.squares = _stacked(
            [(s.entity_optimizer.state["squares"], s.relation_optimizer.state["squares"]) for s in states]
        )
        self.trials = _integers([_integers_of(*each) for each in zip(configs, counts, chunks)], device)
        self.factors = torch.tensor([_floats_of(c) for c in configs], dtype=torch.float32, device=device)
        self.rates: list[float] = []  # in all entries of the window; empty while rates change
        self.graphs: dict[int, torch.cuda.CUDAGraph] = {}
        self.loaded = False

    def remove(self, indices: Sequence[int]) -> None:
        """Remove trials, from the last index to the first; each time the last trial's tables move to the free index."""
        for index in sorted(indices, reverse=True):
            if index < len(self.states) - 1:
                swap_tables(self.states[index], self.states[-1])
            swap_remove(self.states, [index])
            swap_remove(self.configs, [index])
        del self.graphs, self.space  # before new ones are allocated
        self._allocate()

    def advance(self, stop: int) -> Tensor:
        """Take steps up to `stop`, at most WINDOW, and update the states; return losses (steps, T), on the device."""
        steps = min(stop - self.states[0].step, WINDOW)
        losses = self.run(steps)
        for state in self.states:
            state.step += steps
        return losses

    def run(self, steps: int) -> Tensor:
        """Take `steps` ≤ WINDOW steps without waiting for the device; return losses (steps, T), on the device."""
        step = self.states[0].step
        space = self.space
        places = torch.arange(step, step + steps, device=space.clock.device) % WINDOW
        self._set_rates(step, steps, places)
        space.clock.fill_(step)
        if space.clock.is_cuda:
            self._replay(steps)
        else:
            for _ in range(steps):
                self._launch()
        return space.losses[places]

    def _set_rates(self, step: int, steps: int, places: Tensor) -> None:
        """Copy the learning rates of the next steps to the device, unless they are there; rates that are constant until
        the next validation fill the whole window."""
        epochs = [self.batches.plan.epoch_after(s) for s in range(step, step + steps)]
        now = [rate_at(c, epochs[0], s.plateau) for c, s in zip(self.configs, self.states)]
        if all(_steady(c, epochs[0]) for c in self.configs):
            if now != self.rates:
                self.space.rates.copy_(self._on_device([now]).expand_as(self.space.rates))
                self.rates = now
            return
        columns = [
            [rate] * steps if _steady(c, epochs[0]) else [rate_at(c, e, s.plateau) for e in epochs]
            for rate, c, s in zip(now, self.configs, self.states)
        ]
        self.space.rates[places] = self._on_device(list(zip(*columns)))
        self.rates = []

    def _on_device(self, values: Sequence[Sequence[float]]) -> Tensor:
        """Copy values to the device from pinned memory, so the host does not wait for the device."""
        host = torch.tensor(values, dtype=torch.float32)
        device = self.batches.device
        return host.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else host

    def _launch(self) -> None:
        given = self.plan, self.keys, self.trials, self.factors, self.examples
        launch_step(self.space, *given, self.tables, self.squares, ADAGRAD_EPS, self.side_stream)

    def _replay(self, steps: int) -> None:
        while steps:
            length = _GRAPH_STEPS if steps >= _GRAPH_STEPS else 1
            if length not in self.graphs:
                self._capture(length)
            self.graphs[length].replay()
            steps -= length

    def _capture(self, length: int) -> None:
        if not self.loaded:
            self.load_kernels()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            for _ in range(length):
                self._launch()
        self.graphs[length] = graph

    def load_kernels(self) -> None:
        """Compile and load the kernels of a step, without changing anything."""
        with dry_run():  # compiles them in parallel
            self._launch()
        # the first launch loads them: it runs a step after the end, without positives
        plan, now = self.batches.plan, self.space.clock.clone()
        self.space.clock.fill_(-(-plan.total // plan.n_examples) * plan.steps_per_epoch)
        self._launch()
        self.space.clock.copy_(now)
        self.loaded = True


def compile_stacks(
    stacks: Sequence[Sequence[TrainConfig]], n_entities: int, n_relations: int, device: torch.device = _CPU
) -> list[int]:
    """Start to compile, in other threads, the kernels of these stacks' steps and validations, in this order.

    Return how many kernels of each stack are not in memory yet. The fused step must apply to all of them."""
    from grash.kernels.count_above_triton import dry_run_count

    missing = []
    with dry_run() as uncompiled:
        for configs in stacks:
            before = len(uncompiled)
            shape, _, _, splits = _shape(configs, n_entities, n_relations, device)
            dry_run_step(shape, splits)
            dry_run_count(shape.dim, shape.pair, STORAGE_DTYPES[configs[0].storage])
            missing.append(len(uncompiled) - before)
    return missing


def _steady(config: TrainConfig, epoch: float) -> bool:
    """Return whether the learning rate is constant from this epoch to the next validation."""
    return config.schedule not in ("cosine", "linear") and epoch >= config.warmup_epochs


def work_bytes(configs: Sequence[TrainConfig], n_entities: int, n_relations: int, device: torch.device = _CPU) -> int:
    """Return the bytes on the device for everything except tables, optimizer state and triples."""
    shape, _, _, splits = _shape(configs, n_entities, n_relations, device)
    space = StepSpace(shape, splits, torch.device("meta"))
    return sum({id(t): t.nbytes for t in vars(space).values() if isinstance(t, Tensor)}.values())


def _shape(
    configs: Sequence[TrainConfig], n_entities: int, n_relations: int, device: torch.device, *, dropout: bool = False
) -> tuple[StepShape, list[Counts], list[int], int]:
    """Return the stack's shape, each trial's counts and candidates per program, and the most programs of a side.

    dropout: compile it even if no trial has any, which changes no bit."""
    first = configs[0]
    counts = [_counts(c, n_entities, n_relations) for c in configs]
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
        dropout=dropout or any(c.dropout_entity or c.dropout_relation for c in configs),
        rowwise=first.optimizer == "row_adagrad",
        products=_PRODUCTS[first.precision],
        one_vs_all=first.training != "negative_sampling",
        kvsall=first.training == "kvsall",
        predicted=max(c[2] for c in counts),
        adversarial=any(c.loss == "self_adversarial" for c in configs),
        bf16=first.storage == "bf16",
        card=card_of(device),
    )
    chunks = [shape.chunks(c[:2]) for c in counts]
    return shape, counts, chunks, max(-(-n // chunk) for c, chunk in zip(counts, chunks) for n in c)


def _counts(config: TrainConfig, n_entities: int, n_relations: int) -> Counts:
    """Return the numbers of candidate heads, tails and relations (with reciprocals also their inverses)."""
    heads, tails = config.negatives_head, config.negatives_tail
    if config.training != "negative_sampling":
        heads, tails = n_entities, 0 if config.training == "kvsall" else n_entities
    relations = n_relations * (2 if config.reciprocal else 1) if config.relation_prediction else 0
    return min(heads, n_entities), min(tails, n_entities), relations


def _stacked(parts: Sequence[tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
    """Return views (T, rows, width) of tensors that follow each other in memory, without a copy."""
    found = []
    for tensors in zip(*parts):
        first = tensors[0]
        if any(
            not t.is_contiguous() or t.data_ptr() != first.data_ptr() + i * first.nbytes for i, t in enumerate(tensors)
        ):
            raise ValueError("the trials' tables do not follow each other in memory: call stack_states first")
        found.append(torch.as_strided(first, (len(tensors), *first.shape), (first.numel(), *first.stride())))
    return found[0], found[1]


def _integers_of(config: TrainConfig, counts: Counts, chunk: int) -> list[int]:
    thresholds = [min(round(rate * 2**32), 2**32 - 1) for rate in (config.dropout_entity, config.dropout_relation)]
    return [*counts, chunk, *_halves(config.own_key("dropout")), *thresholds,
            _penalty(config, "entity"), _penalty(config, "relation")]  # fmt: skip


def _floats_of(config: TrainConfig) -> list[float]:
    adversarial = config.loss == "self_adversarial"
    scales = [1.0 / (1.0 - rate) for rate in (config.dropout_entity, config.dropout_relation)]
    return [*scales, config.penalty_entity, config.penalty_relation,
            config.relation_prediction, config.margin, config.temperature if adversarial else -1.0,
            config.label_smoothing]  # fmt: skip


def _penalty(config: TrainConfig, table: str) -> int:
    if not getattr(config, f"penalty_{table}"):
        return 0
    kind = PENALTIES[config.penalty]
    return PENALTIES["l3"] if config.penalty == "n3" and not complex_rows(config, table) else kind


def _halves(key: int) -> tuple[int, int]:
    return key & 0xFFFFFFFF, key >> 32


def _integers(values: Any, device: torch.device) -> Tensor:
    """Return 32-bit integers on the device; values of 2³¹ and more become negative."""
    return torch.tensor(values, dtype=torch.int64).to(torch.int32).to(device)


_OLDEST, _OLDEST_DOT = (7, 5), (8, 0)  # lowest compute capabilities; Triton's dot products use matrix units from 8.0 on
_broken: dict[tuple[Any, ...], str] = {}  # kernels that could not be compiled or loaded, and why
_COVERED: dict[str, tuple[Any, ...]] = {
    "model": tuple(_COMPOSE),
    "training": ("negative_sampling", "1vsall", "kvsall"),
    "loss": ("softmax", "self_adversarial"),
    "negatives_shared": (True,),
    "negatives_replacement": (False,),
    "negatives_sampling": ("uniform",),
    "negatives_filtered": (False,),
    "optimizer": ("adagrad", "row_adagrad"),
    "penalty": tuple(PENALTIES),
}


def why_not(config: TrainConfig, device: torch.device) -> list[str]:
    """Return the reasons why the fused step does not cover this configuration on this device; empty if it does."""
    reasons = why_no_triton(device)
    card, multiplies = card_of(device), config.model in ("complex", "distmult")
    oldest = _OLDEST_DOT if multiplies else _OLDEST
    widest = widest_dot(_PRODUCTS[config.precision], card) if multiplies else WIDEST
    if not reasons and card.capability < oldest:
        reasons.append(f"{card.name} has a compute capability below {'.'.join(map(str, oldest))}")
    elif config.dim > widest:
        reasons.append(f"dim={config.dim} is above {widest}, the most of {card.name} (precision={config.precision})")
    if config.dim % 2:
        reasons.append(f"dim={config.dim} is not even")
    for name, covered in _COVERED.items():
        if getattr(config, name) not in covered:
            reasons.append(f"{name}={getattr(config, name)} is not {' or '.join(map(str, covered))}")
    if not multiplies and config.training != "negative_sampling":
        reasons.append(
            f"training={config.training} with a distance model ({config.model}) needs a score for every entity"
        )
    if config.training == "kvsall" and config.precision != "bf16":
        reasons.append(f"training=kvsall with precision={config.precision}: its products are bf16 only")
    if config.training == "kvsall" and (config.dropout_entity or config.dropout_relation):
        reasons.append("training=kvsall with dropout")
    if config.relation_prediction and config.model == "rotate":
        reasons.append("relation_prediction is above 0 with model=rotate")
    if config.relation_prediction and config.model == "transe" and config.reciprocal:
        reasons.append("relation_prediction is above 0 with model=transe and reciprocal")
    if config.penalty != "none" and not config.penalty_weighted:
        reasons.append("penalty_weighted is false")
    if (broken := _broken.get(_kernels_of(config, device))) is not None:
        reasons.append(broken)
    return reasons


def uses_fused_step(config: TrainConfig, device: torch.device) -> bool:
    """Return whether the fused step runs: where `why_not` is empty, unless GRASH_KERNELS=reference.

    GRASH_KERNELS=triton raises ConfigError on a GPU where it does not apply."""
    reasons = why_no_triton(device) or why_not(config, device)  # without a GPU, its own limits do not matter
    return use_triton(reasons, device, what="the fused step")


def load_fused_steps(
    states: Sequence[TrainState], batches: Batches, configs: Sequence[TrainConfig]
) -> FusedSteps | None:
    """Return fused steps whose kernels are loaded; None, with a warning, if a kernel does not compile or fit.

    `why_not` then names the reason, and GRASH_KERNELS=triton raises ConfigError."""
    steps, device = FusedSteps(states, batches, configs), batches.device
    try:
        steps.load_kernels()
    except Exception as error:
        if not _is_kernel_error(error):
            raise
        name, cause = card_of(device).name, f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"
        log.warning("The unfused implementation is used, which is slower: the kernels failed on %s (%s)", name, cause)
        _broken.update({_kernels_of(config, device): f"its kernels failed on {name} ({cause})" for config in configs})
        uses_fused_step(configs[0], device)
        return None
    return steps


def _kernels_of(config: TrainConfig, device: torch.device) -> tuple[Any, ...]:
    values = (config.model, config.norm, config.training, config.dim, config.precision, config.storage)
    return card_of(device).name, *values


def _is_kernel_error(error: Exception) -> bool:
    """Return whether Triton could not compile, load or launch a kernel."""
    from triton.errors import TritonError

    return isinstance(error, TritonError) or "Triton Error" in str(error)


_ROWS_AT_ONCE = 1 << 16  # copied at a time while two slabs are exchanged


def stack_states(states: Iterable[TrainState], *, n: int) -> list[TrainState]:
    """Move the tables and optimizer states of n states into slabs (n, rows, width), of which they become views.

    The fused step needs them side by side. States are taken one after the other, so at most the whole stack and one
    model are in memory. A single state stays as it is."""
    slabs: dict[str, Tensor] = {}
    found: list[TrainState] = []
    for state in states:
        if n > 1:
            _move(state, slabs, len(found), n)
        found.append(state)
    return found


def _move(state: TrainState, slabs: dict[str, Tensor], index: int, n: int) -> None:
    """A separate function, so that no variable keeps the model's first tables when the next model is made."""
    for name, tensor in _tensors(state).items():
        if name not in slabs:
            slabs[name] = tensor.new_empty((n, *tensor.shape))
        slabs[name][index].copy_(tensor)
        _set_tensor(state, name, slabs[name][index])


def swap_tables(one: TrainState, other: TrainState) -> None:
    """Exchange the memory of two states' tensors; each state keeps its values."""
    theirs = _tensors(other)
    for name, mine in _tensors(one).items():
        for here, there in zip(mine.split(_ROWS_AT_ONCE), theirs[name].split(_ROWS_AT_ONCE)):
            copied = here.clone()
            here.copy_(there)
            there.copy_(copied)
        _set_tensor(one, name, theirs[name])
        _set_tensor(other, name, mine)


def swap_remove(items: list[Any], indices: Sequence[int]) -> None:
    """Remove items, from the last index to the first; each time the last item moves to the free index."""
    for index in sorted(indices, reverse=True):
        items[index] = items[-1]
        items.pop()


def _tensors(state: TrainState) -> dict[str, Tensor]:
    return {name: tensor for name, tensor in state_tensors(state).items() if not name.startswith("best.")}


def _set_tensor(state: TrainState, name: str, tensor: Tensor) -> None:
    table, _, key = name.partition(".")
    if not key:
        setattr(state.model, table, tensor)
    elif table == "weight":
        state.model.weights[key] = tensor
    elif table == "weight_optimizer":
        weight, _, name = key.rpartition(".")
        state.weight_optimizers[weight].state[name] = tensor
    else:
        optimizer = state.entity_optimizer if table == "entity" else state.relation_optimizer
        optimizer.state[key] = tensor
