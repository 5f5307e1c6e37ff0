"""Which way trials of a round are trained: by the fused step or plainly and why, how many together, how fast.

Comes from a round's graph and configurations, goes to the plan of a search (`estimate`).
"""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from grash.data.known import KnownAnswers
from grash.engines.ground import Ground
from grash.engines.run import Job, stacks
from grash.evaluation.ranking import Ranker
from grash.kernels.precision import products
from grash.training.config import TrainConfig
from grash.training.fusable import serves, why_not
from grash.training.initial import initial_model
from grash.training.loop import steps_for
from grash.training.placement import Placement
from grash.training.pulse import Training
from grash.training.stack import stack_states
from grash.training.state import TrainState

_PROBE_SECONDS = 0.5
_PROBE_TRIPLES = 200  # ranked on a CPU


@dataclass(frozen=True)
class Paths:
    """Of a round's trials: how many the fused step serves, of the others how often each reason was in the way, how many
    are trained together at most, and the bytes that a largest stack takes."""

    fused: int
    plain: int
    reasons: tuple[tuple[str, int], ...]
    together: int
    n_bytes: int

    def sentence(self) -> str:
        """As the plan of a search says it."""
        parts = []
        if self.fused:
            parts.append(f"{self.fused} by the fused step, {self.together} together")
        if self.plain:
            why = "; ".join(f"{reason} ({count})" for reason, count in self.reasons)
            parts.append(f"{self.plain} by the plain path: {why}")
        return ", ".join(parts)


def paths_of(ground: Ground, configs: Sequence[TrainConfig]) -> Paths:
    """For the trials of a round; on a CPU they are trained one by one."""
    fused = [config for config in configs if serves(config, ground.device)]
    plain = [config for config in configs if not serves(config, ground.device)]
    reasons = Counter(reason for config in plain for reason in _reasons(config, ground.device))
    largest = [largest_stack(ground, fused)] if fused else []
    n_bytes = max(ground.plan(stack).device for stack in [*largest, *([c] for c in plain)])
    return Paths(len(fused), len(plain), tuple(reasons.most_common()), len(largest[0]) if largest else 1, n_bytes)


def largest_stack(ground: Ground, configs: Sequence[TrainConfig]) -> list[TrainConfig]:
    """Of the stacks that these would be trained in."""
    found = stacks(ground, [Job(config) for config in configs])
    return [configs[place] for place in max(found, key=len)]


@torch.no_grad()
def probe_step(ground: Ground, configs: Sequence[TrainConfig]) -> float:
    """Seconds of a step of all these together, measured for about half a second."""
    longer = [config.changed(epochs=1e5) for config in configs]
    device, placement = ground.device, Placement()
    if len(longer) == 1:
        placement = ground.place(longer[0]).placement
    states = stack_states((_fresh(ground, config, placement) for config in longer), n=len(longer))
    trainings = [Training(s, ground.batches(c), c) for s, c in zip(states, longer)]
    steps, n_steps = steps_for(trainings), trainings[0].batches.plan.n_steps
    with products(longer[0].precision):
        steps.advance(n_steps)
        _settle(device)
        began, first = time.monotonic(), states[0].step
        while time.monotonic() - began < _PROBE_SECONDS or states[0].step - first < 2:
            steps.advance(n_steps)
            _settle(device)
    return (time.monotonic() - began) / (states[0].step - first)


@torch.no_grad()
def probe_validation(ground: Ground, config: TrainConfig) -> float:
    """Seconds of one; on a CPU from some of its triples."""
    tame = config.changed(init="xavier_normal")  # one that was trained may have diverged
    placement = ground.place(tame).placement
    model = initial_model(tame, *ground.sizes, device=ground.device, placement=placement)
    data = ground.dataset
    if ground.device.type != "cpu" and ground.validator is not None:
        ranker = ground.validator.ranker
    else:
        triples = data.valid[:_PROBE_TRIPLES]
        known = KnownAnswers.of(data.train, data.valid, n_relations=data.n_relations, asked=triples)
        ranker = Ranker(triples, known, data.n_entities, ground.device)
    ranker.rank(model)  # the first one compiles
    began = time.monotonic()
    ranker.rank(model)
    return (time.monotonic() - began) * len(data.valid) / max(1, len(ranker.triples))


def _fresh(ground: Ground, config: TrainConfig, placement: Placement) -> TrainState:
    model = initial_model(config, *ground.sizes, device=ground.device, placement=placement)
    return TrainState.fresh(model, config, placement)


def _reasons(config: TrainConfig, device: torch.device) -> list[str]:
    if os.environ.get("GRASH_KERNELS", "") == "reference":
        return ["GRASH_KERNELS=reference"]
    return why_not(config, device)


def _settle(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
