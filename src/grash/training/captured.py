"""Unfused steps replayed from a CUDA graph: what `loop.train_step` does, without the host's work per operation.

A step of the unfused implementation launches about a hundred small operations, and a GPU waits for the host most of the
time. Here the operations are captured once per batch size and replayed. What differs between two steps (positions,
random keys, learning rate) is in device memory: the host fills a window of steps ahead, and each step copies its row.
The first step of each size runs as it is, which compiles and loads what it needs. `why_not` names what cannot be
captured; a capture that fails is logged, and the same operations run without a graph.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

import torch
from torch import Tensor

from grash.kernels.device import use_triton, why_no_triton
from grash.kernels.random import key_at
from grash.models import model_class
from grash.models.autograd import AutogradModel
from grash.training.batches import Batches, Draw
from grash.training.checkpoint import TrainState
from grash.training.config import TrainConfig
from grash.training.fused import swap_remove
from grash.training.gradients import DROPOUT_KEYS, dropout_keys, step_gradients
from grash.training.optimizers import rate_at

log = logging.getLogger(__name__)

WINDOW = 64  # steps whose numbers and losses are kept on the device
_ALIGNED = 2  # int64 per number, so that Triton finds every key aligned in the same way
_FIRST, _ORDER, _KEYS = 0, 1, 2  # places of a step's numbers: position, order, then keys of negatives and dropout


def why_not(config: TrainConfig, device: torch.device) -> list[str]:
    """Return the reasons why steps of this configuration are not captured; empty if they are."""
    reasons = why_no_triton(device)
    if config.storage == "bf16":
        reasons.append("storage=bf16 rounds with keys of the host")
    if issubclass(model_class(config.model), AutogradModel):
        reasons.append(f"model={config.model} leaves gradients to autograd")
    if config.training == "kvsall" and not config.reciprocal:
        reasons.append("training=kvsall without reciprocal has sides of varying size")
    if config.training == "negative_sampling":
        if config.negatives_filtered:
            reasons.append("negatives_filtered=true looks up answers on the host")
        if config.negatives_sampling != "uniform":
            reasons.append(f"negatives_sampling={config.negatives_sampling} draws on the host")
        if config.negatives_shared and config.negatives_replacement:
            reasons.append("negatives_shared=true with negatives_replacement=true looks up repeated ids on the host")
    return reasons


def uses_captured_step(config: TrainConfig, device: torch.device) -> bool:
    """Return whether an unfused step of this configuration is captured."""
    return use_triton(why_not(config, device), device, what="a captured step") if device.type == "cuda" else False


class CapturedSteps:
    """Takes unfused steps of one or several trainings, from CUDA graphs."""

    def __init__(
        self, states: Sequence[TrainState], batches: Sequence[Batches], configs: Sequence[TrainConfig]
    ) -> None:
        self.steps = [CapturedStep(*each) for each in zip(states, batches, configs)]

    def advance(self, stop: int) -> Tensor:
        """Take steps up to `stop`, at most WINDOW, and update the states; return losses (steps, T), on the device."""
        n_steps = min(stop - self.steps[0].state.step, WINDOW)
        return torch.stack([step.take(n_steps) for step in self.steps], 1)

    def remove(self, indices: Sequence[int]) -> None:
        """Remove trainings, from the last index to the first; each time the last training takes the free index."""
        swap_remove(self.steps, indices)


class CapturedStep:
    """The captured steps of one training."""

    def __init__(self, state: TrainState, batches: Batches, config: TrainConfig) -> None:
        self.state, self.batches, self.config = state, batches, config
        device = batches.device
        self.sides = list(batches.draw_of(0).negatives)
        n_numbers = _KEYS + len(self.sides) + DROPOUT_KEYS
        self.numbers = torch.zeros(WINDOW, n_numbers, _ALIGNED, dtype=torch.int64, device=device)
        self.rates = torch.zeros(WINDOW, 4, device=device)
        self.now, self.rate = self.numbers[:1].clone(), self.rates[:1].clone()  # of the current step
        self.clock = torch.zeros(1, dtype=torch.int64, device=device)
        self.losses = torch.zeros(WINDOW, device=device)
        self.graphs: dict[int, torch.cuda.CUDAGraph] = {}
        self.seen: set[int] = set()  # batch sizes that have run
        self.captures = device.type == "cuda"

    def take(self, n_steps: int) -> Tensor:
        """Take steps, at most WINDOW, without waiting for the device; return their losses, on the device."""
        state, plan = self.state, self.batches.plan
        sizes = []
        for step in range(state.step, state.step + n_steps):
            _, first, last = plan.positions(step)
            sizes.append(last - first)
        self._fill(state.step, n_steps)
        for size in sizes:
            self._run(size)
        state.step += n_steps
        return self.losses[:n_steps].clone()

    def _fill(self, step: int, n_steps: int) -> None:
        """Copy the numbers of the next steps to the device."""
        config, state = self.config, self.state
        own = config.own_key("dropout") if config.dropout_entity or config.dropout_relation else 0
        numbers, rates = [], []
        for at in range(step, step + n_steps):
            draw = self.batches.draw_of(at)
            dropped = dropout_keys(key_at(own, at) if own else 0)
            keys = draw.order, *(draw.negatives[side] for side in self.sides), *dropped
            numbers.append([int(draw.first), *(_signed(int(key)) for key in keys)])
            lr = rate_at(config, self.batches.plan.epoch_after(at), state.plateau)
            rates.append(state.entity_optimizer.rates(lr, at + 1))
        self.numbers[:n_steps, :, 0] = self._on_device(torch.tensor(numbers))
        self.rates[:n_steps, :2] = self._on_device(torch.tensor(rates, dtype=torch.float32))
        self.clock.zero_()

    def _on_device(self, host: Tensor) -> Tensor:
        """Copy from pinned memory, so the host does not wait for the device."""
        device = self.batches.device
        return host.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else host

    def _run(self, size: int) -> None:
        if not self.captures or size not in self.seen:
            self._step(size)
            self.seen.add(size)
            return
        if size not in self.graphs:
            try:
                self.graphs[size] = self._capture(size)
            except RuntimeError as error:
                log.info("Steps are not captured: %s", " ".join(str(error).split())[:200])
                torch.cuda.synchronize()
                self.captures = False
                self._step(size)
                return
        self.graphs[size].replay()

    def _capture(self, size: int) -> torch.cuda.CUDAGraph:
        graph, others = torch.cuda.CUDAGraph(), list(self.graphs.values())
        # graphs never run at the same time and leave nothing behind, so they can share their memory
        with torch.cuda.graph(graph, pool=others[0].pool() if others else None):
            self._step(size)
        return graph

    def _step(self, size: int) -> None:
        """Take the step at the clock: `loop.train_step` with numbers from device memory."""
        state, config, model = self.state, self.config, self.state.model
        torch.index_select(self.numbers, 0, self.clock, out=self.now)
        torch.index_select(self.rates, 0, self.clock, out=self.rate)
        numbers = self.now[0, :, :1].unbind(0)
        dropped = _KEYS + len(self.sides)
        negatives = dict(zip(self.sides, numbers[_KEYS:dropped]))
        draw = Draw(size, numbers[_FIRST], numbers[_ORDER], negatives)
        kvsall = config.training == "kvsall"
        batch = [self.batches.question_runs(draw)] if kvsall else self.batches.positives(draw)
        result = step_gradients(model, batch, config, numbers[dropped:])
        rates = self.rate[0, :2]
        state.entity_optimizer.apply(model.entity, result.entity, rates, 0)
        state.relation_optimizer.apply(model.relation, result.relation, rates, 0)
        model.after_step()
        self.losses.index_copy_(0, self.clock, result.loss.reshape(1).to(self.losses.dtype))
        self.clock += 1


def _signed(key: int) -> int:
    """Return the bits of an unsigned 64-bit key as a signed integer."""
    return key - 2**64 if key >= 2**63 else key
