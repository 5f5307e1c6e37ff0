"""What a search will be, before it runs: every round, what it costs, and what it takes in seconds, memory and disk.

Seconds come from a probe: a few steps, as many trials together as there will be, and a ranking, on each round's own
graph. Which configurations go on is not known yet: some of all sizes stand for them.
"""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from grash.data.known_answers import KnownAnswers
from grash.engines.device import choose_device
from grash.engines.trainer import TrainingData, stacks
from grash.errors import MemoryPlanError
from grash.evaluation.ranking import Ranker
from grash.formatting import format_bytes
from grash.kernels.device import matmul_precision
from grash.search.graphs import SearchGraphs
from grash.search.halving import new_state, simulate
from grash.search.ledger import RoundState, SearchState
from grash.search.proposals import make_configurations, score_count
from grash.search.schedule import fitting_trials, round_config
from grash.search.trial import Configuration, Round, TrialResult
from grash.training.checkpoint import TrainState
from grash.training.config import TrainConfig, make_config
from grash.training.fused import stack_states, uses_fused_step, why_not
from grash.training.initial import initial_model
from grash.training.loop import Training, steps_for
from grash.training.placement import Placement


@dataclass(frozen=True)
class PlannedRound:
    """A round and what it takes. negatives: (smallest, largest) per slot among its configurations."""

    plan: Round
    n_trials: int
    steps: int  # of a typical trial
    negatives: tuple[int, int]
    billed: float  # all its trials, in full runs
    n_bytes: int  # of its largest trial or stack, on the device
    disk_bytes: int
    seconds: float | None  # of all its trials on one slot
    paths: Paths


@dataclass(frozen=True)
class SearchPlan:
    """All rounds, the final training, and what acted on them."""

    rounds: tuple[PlannedRound, ...]
    final: PlannedRound | None
    budget: float
    billed: float
    n_train: int  # of the full graph
    notes: tuple[str, ...]

    def __str__(self) -> str:
        rows = [_HEADINGS, *(_cells(r, self.n_train) for r in (*self.rounds, *([self.final] if self.final else [])))]
        widths = [max(len(row[i]) for row in rows) for i in range(len(_HEADINGS))]
        lines = ["  ".join(cell.rjust(width) for cell, width in zip(row, widths)) for row in rows]
        unspent = max(0.0, self.budget - self.billed)
        lines.append(f"billed: {self.billed:.4g} of {self.budget:g} full runs, {unspent:.4g} unspent")
        if self.seconds is not None:
            lines.append(f"about {self.seconds:,.0f} s of computing on one slot, measured by a probe")
        lines += self._path_lines()
        lines += [f"round {r.plan.number}: {note}" for r in self.rounds for note in r.plan.notes]
        return "\n".join([*lines, *self.notes])

    def _path_lines(self) -> list[str]:
        """Which way trials take; one line where all are alike."""
        every = [*self.rounds, *([self.final] if self.final else [])]
        reasons = {tuple(reason for reason, _ in r.paths.reasons) for r in every}
        if len(reasons) == 1 and not any(r.paths.fused for r in every):
            return [f"all trials take the plain path: {'; '.join(*reasons)}"]
        return [f"{_name(r)}: {r.paths.sentence()}" for r in every]

    @property
    def seconds(self) -> float | None:
        parts = [r.seconds for r in (*self.rounds, self.final) if r is not None]
        return None if any(p is None for p in parts) else sum(p for p in parts if p is not None)


_HEADINGS = (
    "round", "trials", "fidelity", "epochs", "steps", "k", "entities", "relations", "train", "of target", "valid",
    "negatives", "cost", "seconds", "memory", "disk",
)  # fmt: skip


def _name(planned: PlannedRound) -> str:
    return f"round {planned.plan.number}" if planned.plan.number else "final"


def _cells(planned: PlannedRound, n_train: int) -> tuple[str, ...]:
    p = planned.plan
    return (
        str(p.number or "final"), f"{planned.n_trials:,}", f"{p.fidelity:.4g}", f"{p.epochs:.3g}",
        f"{planned.steps:,}", "–" if p.k is None else str(p.k), f"{p.n_entities:,}", f"{p.n_relations:,}",
        f"{p.n_train:,}", f"{p.n_train / n_train:.4f} of {p.graph_fraction:.4f}", f"{p.n_valid:,}",
        f"{planned.negatives[0]}–{planned.negatives[1]}",
        f"{planned.billed:.4g}" if p.number else "outside",
        "–" if planned.seconds is None else f"{planned.seconds:,.0f}",
        format_bytes(planned.n_bytes), format_bytes(planned.disk_bytes),
    )  # fmt: skip


def plan_search(
    graphs: SearchGraphs,
    *,
    device: str = "auto",
    probe: bool = True,
    placement: str = "auto",
    folder: Path | None = None,
) -> SearchPlan:
    """The plan if no trial fails; which configurations go on is not known yet, so typical ones stand for them.

    placement, folder: where the final model's entities are to lie, and where files may be made, by default here."""
    settings = graphs.settings
    where = choose_device(device)
    n_trials = fitting_trials(settings, graphs)
    notes = []
    if n_trials < settings.n_trials:
        notes.append(
            f"guard rail: {n_trials} first-round trials instead of {settings.n_trials}, so that each sees one epoch of a "
            f"graph that is large enough to judge by"
        )
    configurations = make_configurations(settings, graphs.n_entities, n_trials)
    state = _simulate(graphs, configurations)
    rounds = tuple(_planned(graphs, past, configurations, where, probe, state) for past in state.rounds)
    billed = sum(r.billed for r in rounds)
    if settings.variant == "epoch" and len(rounds) > 1:
        notes.append(
            f"survivors go on where they stand, so that {billed:.4g} of {settings.budget:g} full runs are billed"
        )
    final = _final(graphs, configurations, where, probe) if settings.final_train else None
    if final is not None:
        notes += _placement(graphs, configurations, where, placement, folder or Path.cwd())
    return SearchPlan(rounds, final, settings.budget, billed, graphs.n_train, tuple(notes))


def _simulate(graphs: SearchGraphs, configurations: list[Configuration]) -> SearchState:
    """Return the state after all rounds if every trial ends normally; equal scores promote the first in number."""

    def run_trials(number: int, configurations: Sequence[int]) -> list[TrialResult]:
        return [TrialResult(number, n, 1, "ok", mrr=0.5, positives=0) for n in configurations]

    return simulate(new_state(graphs.settings, configurations), graphs.settings, graphs, run_trials)


def _planned(
    graphs: SearchGraphs,
    past: RoundState,
    configurations: list[Configuration],
    device: torch.device,
    probe: bool,
    state: SearchState,
) -> PlannedRound:
    plan, settings = past.plan, graphs.settings
    configs = [round_config(make_config(c.values), plan, settings) for c in configurations]
    typical = sorted(configs, key=lambda c: score_count(c, plan.n_entities))[len(configs) // 2]
    training_data = TrainingData(
        graphs.subgraph(() if plan.whole else plan.fractions, plan.isolated).dataset, device, seed=settings.seed
    )
    memory = [training_data.plan_memory([c]) for c in configs]
    standing = _standing(configs, len(past.results), plan.n_entities)
    paths = paths_of(training_data, standing)
    lineage = settings.variant == "epoch" or settings.warm_start != "off"
    kept = max(m.tables + m.optimizer for m in memory) if lineage and plan.number < len(state.sizes) else 0
    before = state.rounds[plan.number - 2].plan.positives if plan.continues else 0
    steps = -(-(plan.positives - before) // typical.batch_size)
    seconds = None
    if probe:
        seconds = _seconds(training_data, standing, typical, steps, settings.threads, n_validations=2)
    return PlannedRound(
        plan,
        len(past.results),
        steps,
        _negatives(configs),
        plan.cost * sum(c.relative_cost for c in configurations if c.number in past.results),
        max(paths.n_bytes, *(m.device for m in memory)),
        kept * len(past.results),
        seconds,
        paths,
    )


def _final(
    graphs: SearchGraphs, configurations: list[Configuration], device: torch.device, probe: bool
) -> PlannedRound:
    """The final training as a round of one trial, outside the budget."""
    data = graphs.dataset
    configs = [make_config(c.values) for c in configurations]
    typical = sorted(configs, key=lambda c: score_count(c, data.n_entities))[len(configs) // 2]
    training_data = TrainingData(data, device, seed=graphs.settings.seed)
    memory = [training_data.plan_memory([c]) for c in configs]
    positives = round(typical.epochs * len(data.train))
    plan = Round(
        number=0, n_trials=1, share=1.0, fidelity=1.0, graph_fraction=1.0, epoch_fraction=1.0, fractions=(), whole=True,
        k=None, n_entities=data.n_entities, n_relations=data.n_relations, n_train=len(data.train),
        n_valid=len(data.valid), entity_share=1.0, positives=positives, continues=False, cost=1.0,
    )  # fmt: skip
    steps = -(-positives // typical.batch_size)
    seconds = None
    if probe:
        threads = graphs.settings.threads_of(final=True)
        seconds = _seconds(training_data, [typical], typical, steps, threads, n_validations=20)
    disk = max(2 * m.tables + m.optimizer for m in memory)
    largest = max(m.device for m in memory)
    paths = paths_of(training_data, [typical])
    return PlannedRound(plan, 1, steps, _negatives(configs), 0.0, largest, disk, seconds, paths)


def _placement(
    graphs: SearchGraphs, configurations: list[Configuration], device: torch.device, asked: str, folder: Path
) -> list[str]:
    """Where the final model's entities will lie, if not all of it fits on the device."""
    data = graphs.dataset
    configs = [make_config(c.values) for c in configurations]
    largest = max(configs, key=lambda c: c.dim)
    try:
        placed = TrainingData(data, device, seed=graphs.settings.seed).choose_placement(
            largest, placement=asked, folder=folder
        )
    except MemoryPlanError as error:
        return [f"final: it does not fit as things are. {error}"]
    return [f"final: placement={placed.placement.kind}, {placed.sentence()}"] if placed.placement.offloaded else []


def _negatives(configs: list[TrainConfig]) -> tuple[int, int]:
    drawing = [c for c in configs if c.training == "negative_sampling"]
    counts = [n for c in drawing for n in (c.negatives_head, c.negatives_tail)]
    return (min(counts), max(counts)) if counts else (0, 0)


def _standing(configs: list[TrainConfig], n: int, n_entities: int) -> list[TrainConfig]:
    """n of all sizes, for those that will be in the round."""
    ordered = sorted(configs, key=lambda c: score_count(c, n_entities))
    return [ordered[(2 * i + 1) * len(ordered) // (2 * n)] for i in range(n)]


def _seconds(
    training_data: TrainingData,
    configs: list[TrainConfig],
    typical: TrainConfig,
    steps: int,
    threads: int,
    *,
    n_validations: int,
) -> float:
    """Of these trials, by the way that they will take, and their validations."""
    torch.set_num_threads(threads)
    fused = [config for config in configs if uses_fused_step(config, training_data.device)]
    seconds = len(configs) * n_validations * probe_validation(training_data, typical)
    if fused:
        stack = largest_stack(training_data, fused)
        seconds += steps * probe_step(training_data, stack) * len(fused) / len(stack)
    plain = [config for config in configs if not uses_fused_step(config, training_data.device)]
    if plain:
        seconds += steps * probe_step(training_data, [plain[len(plain) // 2]]) * len(plain)
    return seconds


# = Which way trials of a round are trained: by the fused step or plainly and why, how many together, how fast.
# =
# = Comes from a round's graph and configurations, goes to the plan of a search (`estimate`).

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


def paths_of(training_data: TrainingData, configs: Sequence[TrainConfig]) -> Paths:
    """For the trials of a round; on a CPU they are trained one by one."""
    fused = [config for config in configs if uses_fused_step(config, training_data.device)]
    plain = [config for config in configs if not uses_fused_step(config, training_data.device)]
    reasons = Counter(reason for config in plain for reason in _reasons(config, training_data.device))
    largest = [largest_stack(training_data, fused)] if fused else []
    n_bytes = max(training_data.plan_memory(stack).device for stack in [*largest, *([c] for c in plain)])
    return Paths(len(fused), len(plain), tuple(reasons.most_common()), len(largest[0]) if largest else 1, n_bytes)


def largest_stack(training_data: TrainingData, configs: Sequence[TrainConfig]) -> list[TrainConfig]:
    """Of the stacks that these would be trained in."""
    found = stacks(training_data, [Training(config) for config in configs])
    return [configs[place] for place in max(found, key=len)]


@torch.no_grad()
def probe_step(training_data: TrainingData, configs: Sequence[TrainConfig]) -> float:
    """Seconds of a step of all these together, measured for about half a second."""
    longer = [config.changed(epochs=1e5) for config in configs]
    device, placement = training_data.device, Placement()
    if len(longer) == 1:
        placement = training_data.choose_placement(longer[0]).placement
    states = stack_states((_fresh(training_data, config, placement) for config in longer), n=len(longer))
    trainings = [Training(c).started(s, training_data.batches(c)) for s, c in zip(states, longer)]
    steps, n_steps = steps_for(trainings), trainings[0].batches.plan.n_steps
    with matmul_precision(longer[0].precision):
        steps.advance(n_steps)
        _settle(device)
        began, first = time.monotonic(), states[0].step
        while time.monotonic() - began < _PROBE_SECONDS or states[0].step - first < 2:
            steps.advance(n_steps)
            _settle(device)
    return (time.monotonic() - began) / (states[0].step - first)


@torch.no_grad()
def probe_validation(training_data: TrainingData, config: TrainConfig) -> float:
    """Seconds of one; on a CPU from some of its triples."""
    tame = config.changed(init="xavier_normal")  # one that was trained may have diverged
    placement = training_data.choose_placement(tame).placement
    model = initial_model(tame, *training_data.sizes, device=training_data.device, placement=placement)
    data = training_data.dataset
    if training_data.device.type != "cpu" and training_data.validator is not None:
        ranker = training_data.validator.ranker
    else:
        triples = data.valid[:_PROBE_TRIPLES]
        known = KnownAnswers.of(data.train, data.valid, n_relations=data.n_relations, asked=triples)
        ranker = Ranker(triples, known, data.n_entities, training_data.device)
    ranker.rank(model)  # the first one compiles
    began = time.monotonic()
    ranker.rank(model)
    return (time.monotonic() - began) * len(data.valid) / max(1, len(ranker.triples))


def _fresh(training_data: TrainingData, config: TrainConfig, placement: Placement) -> TrainState:
    model = initial_model(config, *training_data.sizes, device=training_data.device, placement=placement)
    return TrainState.fresh(model, config, placement)


def _reasons(config: TrainConfig, device: torch.device) -> list[str]:
    if os.environ.get("GRASH_KERNELS", "") == "reference":
        return ["GRASH_KERNELS=reference"]
    return why_not(config, device)


def _settle(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
