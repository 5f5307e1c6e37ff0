"""The fused training step: what `loop.train_step` does, as a few kernels replayed from a CUDA graph.

Serves negative sampling with shared negatives drawn evenly without replacement (the paper's step) and 1vsAll, by the
softmax or the self-adversarial loss, for ComplEx, DistMult, TransE and RotatE under Adagrad; `fusable` says what is in
the way, and the plain path runs. Several trials may share every launch (`kernels/step`): same graph, seed and batch
size, tables of the same shape, and all that `_shape` takes from the first of them.
"""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor

from grash.errors import ConfigError
from grash.kernels.compile_ahead import dry_run
from grash.kernels.random import key_of
from grash.kernels.step import PENALTIES, WINDOW, Compose, Pair, Products, StepShape, StepSpace
from grash.models.base import Side
from grash.training.batches import Batches
from grash.training.checkpoint import TrainState, state_tensors
from grash.training.config import TrainConfig
from grash.training.initial import STORED
from grash.training.losses import complex_rows
from grash.training.optimizers import ADAGRAD_EPS, rate_at, rounding_key

_COMPOSE: dict[str, Compose] = {"complex": "complex", "distmult": "product", "transe": "sum", "rotate": "rotation"}
_PRODUCTS: dict[str, Products] = {"float32": "tf32x3", "tf32": "tf32", "bf16": "bf16"}
Counts = tuple[int, int, int]
_TOGETHER = 8  # steps of the longer of the two graphs


class FusedSteps:
    """Steps of one or several trainings at once. Their tables are moved in place; `run` moves nothing else."""

    def __init__(self, states: Sequence[TrainState], batches: Batches, configs: Sequence[TrainConfig]) -> None:
        self.states, self.batches, self.configs = list(states), batches, list(configs)
        device = batches.device
        plan = batches.plan
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
        self._arrange()

    def _arrange(self) -> None:
        """Work space and settings of the trials that are there; graphs are captured when they are needed."""
        states, configs, device = self.states, self.configs, self.batches.device
        self.shape, counts, chunks, splits = _shape(
            configs, self.batches.n_entities, self.batches.n_relations, dropout=self.dropout
        )
        self.dropout = self.shape.dropout  # where those with dropout leave, nothing is compiled anew
        self.space = StepSpace(self.shape, splits, device)
        self.tables = _stacked([(s.model.entity, s.model.relation) for s in states])
        self.squares = _stacked(
            [(s.entity_optimizer.state["squares"], s.relation_optimizer.state["squares"]) for s in states]
        )
        self.trials = _integers([_integers_of(*each) for each in zip(configs, counts, chunks)], device)
        self.factors = torch.tensor([_floats_of(c) for c in configs], dtype=torch.float32, device=device)
        self.rates: list[float] = []  # that all places of the window hold; none while rates change
        self.graphs: dict[int, torch.cuda.CUDAGraph] = {}

    def leave(self, places: Sequence[int]) -> None:
        """Takes trials out: from the last place to the first, the last trial left moves its tables to the free one."""
        for place in sorted(places, reverse=True):
            if place < len(self.states) - 1:
                swap(self.states[place], self.states[-1])
            take_out(self.states, [place])
            take_out(self.configs, [place])
        del self.graphs, self.space  # before there is a new one
        self._arrange()

    def advance(self, stop: int) -> Tensor:
        """Makes steps up to `stop`, at most WINDOW, and moves the states on; their losses (steps, T), on the device."""
        steps = min(stop - self.states[0].step, WINDOW)
        losses = self.run(steps)
        for state in self.states:
            state.step += steps
        return losses

    def run(self, steps: int) -> Tensor:
        """Makes the next `steps` ≤ WINDOW steps; their losses (steps, T), on the device. The host does not wait."""
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
        """Brings the rates of the coming steps to the device, if they are not there. Rates that stay as they are until
        the next validation fill the whole window."""
        plan = self.batches.plan
        epochs = [plan.examples_before(s) / plan.n_examples for s in range(step, step + steps)]
        now = [rate_at(c, epochs[0], s.plateau) for c, s in zip(self.configs, self.states)]
        if all(_steady(c, epochs[0]) for c in self.configs):
            if now != self.rates:
                self.space.rates.copy_(self._sent([now]).expand_as(self.space.rates))
                self.rates = now
            return
        columns = [
            [rate] * steps if _steady(c, epochs[0]) else [rate_at(c, e, s.plateau) for e in epochs]
            for rate, c, s in zip(now, self.configs, self.states)
        ]
        self.space.rates[places] = self._sent(list(zip(*columns)))
        self.rates = []

    def _sent(self, values: Sequence[Sequence[float]]) -> Tensor:
        """On the device, from pinned memory: the host does not wait for what the device still has to do."""
        host = torch.tensor(values, dtype=torch.float32)
        device = self.batches.device
        return host.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else host

    def _launch(self) -> None:
        from grash.kernels.step_triton import launch_step

        given = self.plan, self.keys, self.trials, self.factors, self.batches.train
        launch_step(self.space, *given, self.tables, self.squares, ADAGRAD_EPS, self.side_stream)

    def _replay(self, steps: int) -> None:
        while steps:
            together = _TOGETHER if steps >= _TOGETHER else 1
            if together not in self.graphs:
                self._capture(together)
            self.graphs[together].replay()
            steps -= together

    def _capture(self, together: int) -> None:
        if not self.graphs:
            with dry_run():  # those of a step are compiled together
                self._launch()
            # kernels are brought to the device by a first launch: it sees a step after the end, without positives
            plan, now = self.batches.plan, self.space.clock.clone()
            self.space.clock.fill_(-(-plan.total // plan.n_examples) * plan.steps_per_epoch)
            self._launch()
            self.space.clock.copy_(now)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            for _ in range(together):
                self._launch()
        self.graphs[together] = graph


def compile_stacks(stacks: Sequence[Sequence[TrainConfig]], n_entities: int, n_relations: int) -> list[int]:
    """Begins to compile, in other threads, what these stacks will launch on the current device: their steps, in this
    order, and the validations between them. Of each stack how many of its kernels are not in memory. All are such as
    the fused step serves (`fusable`)."""
    from grash.kernels import count_above_triton as counting
    from grash.kernels import step_triton as stepping

    lacks = [0] * len(stacks)
    with dry_run() as lacking:
        for place, configs in enumerate(stacks):
            known = len(lacking)
            shape, _, _, splits = _shape(configs, n_entities, n_relations)
            stepping.dry_run_step(shape, splits)
            counting.dry_run_count(shape.dim, shape.pair, STORED[configs[0].storage])
            lacks[place] = len(lacking) - known
    return lacks


def _steady(config: TrainConfig, epoch: float) -> bool:
    """Whether the rate stays as it is from this epoch to the next validation."""
    return config.schedule not in ("cosine", "linear") and epoch >= config.warmup_epochs


def work_bytes(configs: Sequence[TrainConfig], n_entities: int, n_relations: int) -> int:
    """Bytes on the device beside tables, optimizer state and triples."""
    shape, _, _, splits = _shape(configs, n_entities, n_relations)
    space = StepSpace(shape, splits, torch.device("meta"))
    return sum({id(t): t.nbytes for t in vars(space).values() if isinstance(t, Tensor)}.values())


def _shape(
    configs: Sequence[TrainConfig], n_entities: int, n_relations: int, *, dropout: bool = False
) -> tuple[StepShape, list[Counts], list[int], int]:
    """The stack's shape; of each trial its negatives and candidates per program; the most programs of a side.
    dropout: there is code for it even if none of these has any, which changes no bit."""
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
        one_vs_all=first.training == "1vsall",
        predicted=max(c[2] for c in counts),
        adversarial=any(c.loss == "self_adversarial" for c in configs),
        bf16=first.storage == "bf16",
    )
    chunks = [shape.chunks(c[:2]) for c in counts]
    return shape, counts, chunks, max(-(-n // chunk) for c, chunk in zip(counts, chunks) for n in c)


def _counts(config: TrainConfig, n_entities: int, n_relations: int) -> Counts:
    """Candidate heads, tails and relations."""
    heads, tails = config.negatives_head, config.negatives_tail
    if config.training == "1vsall":
        heads = tails = n_entities
    return min(heads, n_entities), min(tails, n_entities), n_relations if config.relation_prediction else 0


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
    return [*counts, chunk, *_halves(config.own_key("dropout")), *thresholds,
            _penalty(config, "entity"), _penalty(config, "relation")]  # fmt: skip


def _floats_of(config: TrainConfig) -> list[float]:
    adversarial = config.loss == "self_adversarial"
    scales = [1.0 / (1.0 - rate) for rate in (config.dropout_entity, config.dropout_relation)]
    return [*scales, config.penalty_entity, config.penalty_relation,
            config.relation_prediction, config.margin, config.temperature if adversarial else -1.0]  # fmt: skip


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


# = Whether the fused step (`fused`) serves a configuration on a device, and if not, why.

_MODELS = ("complex", "distmult", "transe", "rotate")
_OLDEST = (9, 0)  # compute capability of the devices that this was tried on
_WIDEST = 512  # floats of a row whose tiles fit into a multiprocessor
_WIDEST_FLOAT32 = 128  # of three tf32 products for one
_SERVED: dict[str, tuple[Any, ...]] = {
    "model": _MODELS,
    "training": ("negative_sampling", "1vsall"),
    "loss": ("softmax", "self_adversarial"),
    "negatives_shared": (True,),
    "negatives_replacement": (False,),
    "negatives_sampling": ("uniform",),
    "negatives_filtered": (False,),
    "optimizer": ("adagrad", "row_adagrad"),
    "penalty": ("none", "l1", "l2", "l3", "n3"),
}


def why_not(config: TrainConfig, device: torch.device) -> list[str]:
    """What keeps this configuration from the fused step on this device; empty if nothing does."""
    reasons = []
    if device.type != "cuda":
        reasons.append(f"the device is {device.type}, not cuda")
    elif torch.cuda.get_device_capability(device) < _OLDEST:
        reasons.append(f"its compute capability is below {'.'.join(map(str, _OLDEST))}")
    if importlib.util.find_spec("triton") is None:
        reasons.append("Triton is not installed")
    multiplies = config.model in ("complex", "distmult")
    widest = _WIDEST_FLOAT32 if multiplies and config.precision == "float32" else _WIDEST
    if config.dim % 2 or config.dim > widest:
        reasons.append(f"dim={config.dim} is not an even number up to {widest} (precision={config.precision})")
    for name, served in _SERVED.items():
        if getattr(config, name) not in served:
            reasons.append(f"{name}={getattr(config, name)} is not {' or '.join(map(str, served))}")
    if not multiplies and config.training == "1vsall":
        reasons.append(f"training=1vsall of distances (model={config.model}) would keep a score for every entity")
    if config.relation_prediction and config.model == "rotate":
        reasons.append("relation_prediction is above 0 with model=rotate")
    if config.penalty != "none" and not config.penalty_weighted:
        reasons.append("penalty_weighted is false")
    return reasons


def serves(config: TrainConfig, device: torch.device) -> bool:
    """Whether the fused step runs; GRASH_KERNELS=reference keeps the plain one, GRASH_KERNELS=triton demands this."""
    choice = os.environ.get("GRASH_KERNELS", "")
    reasons = why_not(config, device)
    if choice == "triton" and reasons and device.type == "cuda":
        raise ConfigError(f"GRASH_KERNELS=triton, but the fused step cannot serve this: {'; '.join(reasons)}.")
    return choice != "reference" and not reasons


# = Where the trainings of a stack lie: their tables and optimizer states side by side, a slab each of one tensor.
# =
# = The fused step (`fused`) makes steps of all of them with the same launches; the loop does not care.

_ROWS = 1 << 16  # rows that lie aside while two slabs are exchanged


def stack_states(states: Iterable[TrainState], *, n: int) -> list[TrainState]:
    """The states, their tables and optimizer states moved into n slabs, (n, rows, width), of which they become views.

    They are taken one after the other: at most the whole stack and one model lie in memory. One alone stays as it is.
    """
    slabs: dict[str, Tensor] = {}
    found: list[TrainState] = []
    for state in states:
        if n > 1:
            _move(state, slabs, len(found), n)
        found.append(state)
    return found


def _move(state: TrainState, slabs: dict[str, Tensor], place: int, n: int) -> None:
    """A function of its own, so that no name holds the model's first tables when the next model is made."""
    for name, tensor in _tensors(state).items():
        if name not in slabs:
            slabs[name] = tensor.new_empty((n, *tensor.shape))
        slabs[name][place].copy_(tensor)
        _put(state, name, slabs[name][place])


def swap(one: TrainState, other: TrainState) -> None:
    """Exchanges the places of two states' tensors; the values stay with their states."""
    theirs = _tensors(other)
    for name, mine in _tensors(one).items():
        for here, there in zip(mine.split(_ROWS), theirs[name].split(_ROWS)):
            aside = here.clone()
            here.copy_(there)
            there.copy_(aside)
        _put(one, name, theirs[name])
        _put(other, name, mine)


def take_out(row: list[Any], places: Sequence[int]) -> None:
    """From the last place to the first: what stands last moves to the free place."""
    for place in sorted(places, reverse=True):
        row[place] = row[-1]
        row.pop()


def _tensors(state: TrainState) -> dict[str, Tensor]:
    return {name: tensor for name, tensor in state_tensors(state).items() if not name.startswith("best.")}


def _put(state: TrainState, name: str, tensor: Tensor) -> None:
    table, _, kept = name.partition(".")
    if not kept:
        setattr(state.model, table, tensor)
    elif table == "entity":
        state.entity_optimizer.state[kept] = tensor
    else:
        state.relation_optimizer.state[kept] = tensor
