"""Plan a search before it runs: every round with its cost, time, memory and disk space.

Seconds come from a probe on each round's own graph: a few steps of as many trials together as there will be, and a
ranking. The survivors are not known yet, so configurations of all sizes represent them.
"""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from grash.data.known_answers import KnownAnswers
from grash.engines.memory import choose_device, fits
from grash.engines.trainer import TrainingData, stacks
from grash.errors import MemoryPlanError
from grash.evaluation.ranking import Ranker
from grash.formatting import format_bytes, format_duration, html_table
from grash.kernels.device import compile_seconds, matmul_precision, n_cores
from grash.kernels.storage import Placement
from grash.search.graphs import SearchGraphs
from grash.search.halving import new_state, simulate
from grash.search.ledger import keeps_finalists
from grash.search.proposals import make_configurations, score_count
from grash.search.schedule import fitting_trials, planned_sizes, round_config
from grash.search.time_limit import LEVELS, Machine, Speed
from grash.search.trial import FINAL_VALIDATIONS, Configuration, Round, TrialResult
from grash.training.captured import uses_captured_step
from grash.training.checkpoint import TrainState
from grash.training.config import TrainConfig, make_config
from grash.training.fused import stack_states, uses_fused_step, why_not
from grash.training.initial import initial_model
from grash.training.loop import Training, steps_for

_HEADINGS = ("round", "trials", "entities", "triples", "epochs", "cost", "time")
_DETAILED_HEADINGS = (
    "round", "trials", "fidelity", "epochs", "steps", "k", "entities", "relations", "train", "of target", "valid",
    "negatives", "cost", "seconds", "memory", "disk",
)  # fmt: skip
_PROBE_SECONDS = 0.5
_SLOW_SECONDS = 2.0  # of a first step that is not repeated
_CPU_DIMS, _GPU_DIMS = (64, 256), (128, 512)  # at which speeds are measured
_STACK = 8  # trials that are measured together on a GPU
_CROWDED = 1.15  # seconds of a trial while every core has one, relative to a trial alone
_COMPILE_SECONDS = 5.0  # of kernels for stacks of other sizes than those that are measured
_START_SECONDS = 4.0  # of worker processes, which import torch
_PROBE_TRIPLES = 200  # ranked on a CPU, at most
_PROBE_SCORES = 50_000_000  # of a side, so that 2.6 million entities take a second and not ten


@dataclass(frozen=True)
class Implementation:
    """How the trials of a round are trained."""

    fused: int  # trials that the fused step can train
    unfused: int
    captured: int  # of the unfused, those whose steps are replayed from a CUDA graph
    reasons: tuple[tuple[str, int], ...]  # why not, with the number of trials
    stack_size: int  # trials that are trained together at most
    n_bytes: int  # of the largest stack


@dataclass(frozen=True)
class PlannedRound:
    """A round and what it takes; number 0 is the final training."""

    plan: Round
    n_trials: int
    steps: int  # of a typical trial
    negatives: tuple[int, int]  # smallest and largest per side among its configurations
    billed: float  # all its trials, in full runs
    n_bytes: int  # of its largest trial or stack, on the device
    disk_bytes: int
    seconds: float | None  # of all its trials, without several workers
    implementation: Implementation


@dataclass(frozen=True)
class SearchPlan:
    """All rounds and the final training; it prints as a table of 80 characters, and `details` has the rest."""

    rounds: tuple[PlannedRound, ...]
    final: PlannedRound | None
    budget: float
    billed: float
    n_train: int  # of the full graph
    notes: tuple[str, ...]
    at_once: int = 1  # trials that run at the same time, except those of a stack

    @property
    def all_rounds(self) -> tuple[PlannedRound, ...]:
        """The rounds and, if there is one, the final training."""
        return self.rounds if self.final is None else (*self.rounds, self.final)

    @property
    def seconds(self) -> float | None:
        """Seconds of computing, one trial after another; None without a probe."""
        parts = [r.seconds for r in self.all_rounds]
        return None if any(p is None for p in parts) else sum(p for p in parts if p is not None)

    @property
    def wall_seconds(self) -> float | None:
        """Expected seconds from start to end, with as many trials at the same time as there are workers."""
        parts = [_wall_seconds(r, self.at_once) for r in self.all_rounds]
        start = _START_SECONDS if self.at_once > 1 else 0.0
        return None if any(p is None for p in parts) else sum((p for p in parts if p is not None), start)

    def __repr__(self) -> str:
        rounds = ", ".join(f"{r.n_trials} × {r.plan.epochs:.3g} epochs" for r in self.rounds)
        return f"SearchPlan({rounds}; {self.billed:.3g} of {self.budget:g} full runs)"

    def _repr_html_(self) -> str:
        return html_table("Plan of the search", *self._columns(), below="\n".join(_summary_lines(self)))

    def __str__(self) -> str:
        return "\n".join([*_table(*self._columns()), *_summary_lines(self)])

    def _columns(self) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
        """Return headings and rows; without a probe there is no column of times."""
        n = len(_HEADINGS) - (self.seconds is None)
        return _HEADINGS[:n], [_row(r, self.at_once)[:n] for r in self.all_rounds]

    def details(self) -> str:
        """Return a wide table with fidelity, steps, negatives, memory and disk, followed by all notes."""
        rows = [_detailed_row(r, self.n_train) for r in self.all_rounds]
        notes = [f"round {r.plan.number}: {note}" for r in self.rounds for note in r.plan.notes]
        lines = [*_table(_DETAILED_HEADINGS, rows), _cost_line(self), *_implementation_lines(self), *notes]
        return "\n".join([*lines, *self.notes, *_time_line(self)])


def plan_search(
    graphs: SearchGraphs,
    *,
    device: str = "auto",
    probe: bool = True,
    placement: str = "auto",
    folder: Path | None = None,
    at_once: int = 1,
) -> SearchPlan:
    """Return the plan if no trial fails.

    placement: where the final model's entities are stored. folder: where temporary files may be created (default: the
    working directory). at_once: trials that run at the same time.
    """
    settings, on = graphs.settings, choose_device(device)
    n_trials = fitting_trials(settings, graphs)
    notes = []
    if n_trials < settings.n_trials:
        notes.append(
            f"guard rail: {n_trials} first-round trials instead of {settings.n_trials}, so each sees one epoch of a "
            f"graph that is large enough to compare configurations"
        )
    configurations = make_configurations(settings, graphs.n_entities, n_trials, n_train=graphs.n_train)
    measured = _Measured() if probe else None
    rounds = _plan_rounds(graphs, configurations, on, measured)
    billed = sum(r.billed for r in rounds)
    if settings.variant == "epoch" and len(rounds) > 1:
        notes.append(f"survivors continue their training, so {billed:.4g} of {settings.budget:g} full runs are billed")
    final = None
    if settings.final_train:
        trained = bool(rounds) and rounds[-1].plan.to_the_end
        final, note = _plan_final(graphs, configurations, on, measured, placement, folder or Path.cwd(), trained)
        notes += note
    return SearchPlan(rounds, final, settings.budget, billed, graphs.n_train, tuple(notes), at_once)


def _plan_rounds(
    graphs: SearchGraphs, configurations: list[Configuration], device: torch.device, measured: _Measured | None
) -> tuple[PlannedRound, ...]:
    """Plan the rounds of a search in which every trial has the same score; ties promote the first in number."""
    settings = graphs.settings

    def run_trials(round_number: int, numbers: Sequence[int]) -> list[TrialResult]:
        return [TrialResult(round_number, number, 1, "ok", mrr=0.5, positives=0) for number in numbers]

    sizes = planned_sizes(len(configurations), settings, graphs)
    state = simulate(new_state(settings, configurations, sizes), settings, graphs, run_trials)
    keeps_state = settings.variant == "epoch" or settings.warm_start != "off"
    full = [make_config(c.values) for c in configurations]
    planned = []
    for past in state.rounds:
        plan, entrants = past.plan, past.results
        configs = [round_config(config, plan, settings) for config in full]
        subgraph = graphs.subgraph(() if plan.whole else plan.fractions, plan.isolated)
        data = TrainingData(subgraph.dataset, device, seed=settings.seed)
        before = state.rounds[plan.number - 2].plan.positives if plan.continues else 0
        threads = settings.threads_of(to_the_end=plan.to_the_end)
        this = _plan_round(plan, data, configs, len(entrants), plan.positives - before, threads, measured)
        billed = plan.cost * sum(c.relative_cost for c in configurations if c.number in entrants)
        billed = 0.0 if plan.compares_finalists else billed
        is_saved = keeps_state and plan.number < len(state.sizes)
        is_saved = is_saved or plan.is_comparison and keeps_finalists(graphs.n_entities, settings.dim)
        planned.append(replace(this, billed=billed, disk_bytes=this.disk_bytes if is_saved else 0))
    return tuple(planned)


def _plan_final(
    graphs: SearchGraphs,
    configurations: list[Configuration],
    device: torch.device,
    measured: _Measured | None,
    placement: str,
    folder: Path,
    trained: bool,
) -> tuple[PlannedRound, list[str]]:
    """Return the final training as a round of one trial outside the budget, and a note on where entities are stored
    if not everything fits on the device. trained: the last round is expected to train the winner to the end."""
    dataset, settings = graphs.dataset, graphs.settings
    configs = [make_config(c.values) for c in configurations]
    positives = round(_by_size(configs, dataset.n_entities)[len(configs) // 2].epochs * len(dataset.train))
    plan = Round(
        number=0, n_trials=1, share=1.0, fidelity=1.0, graph_fraction=1.0, epoch_fraction=1.0, fractions=(), whole=True,
        k=None, n_entities=dataset.n_entities, n_relations=dataset.n_relations, n_train=len(dataset.train),
        n_valid=len(dataset.valid), entity_share=1.0, positives=positives, continues=False, cost=1.0,
    )  # fmt: skip
    data = TrainingData(dataset, device, seed=settings.seed)
    left = 0 if trained else positives
    planned = _plan_round(plan, data, configs, 1, left, settings.threads_of(final=True), measured)
    largest = max(configs, key=lambda c: c.dim)
    try:
        chosen = data.choose_placement(largest, placement=placement, folder=folder)
    except MemoryPlanError as error:
        return planned, [f"final: it does not fit with these settings. {error}"]
    note = f"final: placement={chosen.placement.kind}, {chosen.sentence()}"
    return planned, [note] if chosen.placement.offloaded else []


class _Measured:
    """Seconds of validations that were measured for a plan: several rounds use the full graph."""

    def __init__(self) -> None:
        self._validations: dict[tuple[tuple[float, ...], bool, str, int], float] = {}

    def validation(self, plan: Round, data: TrainingData, config: TrainConfig) -> float:
        key = plan.fractions, plan.isolated, config.model, config.dim
        if key not in self._validations:
            self._validations[key] = probe_validation(data, config)
        return self._validations[key]


def _plan_round(
    plan: Round,
    data: TrainingData,
    configs: list[TrainConfig],
    n: int,
    positives: int,
    threads: int,
    measured: _Measured | None,
) -> PlannedRound:
    """Return what n trials of all sizes among the configurations take, as if their states were saved and not billed."""
    final, n_entities = plan.number == 0, data.dataset.n_entities
    memory = [data.plan_memory([c]) for c in configs]
    ordered = _by_size(configs, n_entities)
    typical, entering = ordered[len(ordered) // 2], [ordered[(2 * i + 1) * len(ordered) // (2 * n)] for i in range(n)]
    steps, implementation = -(-positives // typical.batch_size), choose_implementation(data, entering)
    negatives = [
        c for config in configs if config.training == "negative_sampling"
        for c in (config.negatives_head, config.negatives_tail)
    ]  # fmt: skip
    seconds = None
    if measured is not None:
        torch.set_num_threads(threads)
        n_validations = n * (FINAL_VALIDATIONS if final else plan.n_validations)
        each = measured.validation(plan, data, typical) if positives else 0.0
        seconds = n_validations * each + (steps * _probe_steps(data, entering) if positives else 0.0)
    return PlannedRound(
        plan,
        n_trials=n,
        steps=steps,
        negatives=(min(negatives, default=0), max(negatives, default=0)),
        billed=0.0,
        n_bytes=max(implementation.n_bytes, *(m.device for m in memory)),
        disk_bytes=n * max((2 if final or plan.to_the_end else 1) * m.tables + m.optimizer for m in memory),
        seconds=seconds,
        implementation=implementation,
    )


def choose_implementation(data: TrainingData, configs: Sequence[TrainConfig]) -> Implementation:
    """Return how the trials of a round are trained; on a CPU one by one."""
    fused, unfused = _by_implementation(configs, data.device)
    reasons = Counter(reason for config in unfused for reason in _reasons(config, data.device))
    largest = [largest_stack(data, fused)] if fused else []
    n_bytes = max(data.plan_memory(stack).device for stack in [*largest, *([c] for c in unfused)])
    stack_size = len(largest[0]) if largest else 1
    captured = sum(uses_captured_step(config, data.device) for config in unfused)
    return Implementation(len(fused), len(unfused), captured, tuple(reasons.most_common()), stack_size, n_bytes)


def _probe_steps(data: TrainingData, configs: Sequence[TrainConfig], least_seconds: float = _PROBE_SECONDS) -> float:
    """Return the seconds that a step of each of these takes, in stacks where they can be stacked."""
    fused, unfused = _by_implementation(configs, data.device)
    seconds = 0.0
    if fused:
        stack = largest_stack(data, fused)
        seconds += probe_step(data, stack, least_seconds) * len(fused) / len(stack)
    if unfused:
        seconds += probe_step(data, [unfused[len(unfused) // 2]], least_seconds) * len(unfused)
    return seconds


def largest_stack(data: TrainingData, configs: Sequence[TrainConfig]) -> list[TrainConfig]:
    """Return the largest of the stacks in which these would be trained."""
    found = stacks(data, [Training(config) for config in configs])
    return [configs[i] for i in max(found, key=len)]


@torch.no_grad()
def probe_step(data: TrainingData, configs: Sequence[TrainConfig], least_seconds: float = _PROBE_SECONDS) -> float:
    """Return the seconds of a step of all these together, measured for about half a second.

    A first step that takes long, e.g. of a score function on a CPU, is the measurement.
    """
    longer = [config.changed(epochs=1e5) for config in configs]
    device = data.device
    placement = data.choose_placement(longer[0]).placement if len(longer) == 1 else Placement()
    states = stack_states((_new_state(data, config, placement) for config in longer), n=len(longer))
    trainings = [Training(c).started(s, data.batches(c)) for s, c in zip(states, longer)]
    steps, n_steps = steps_for(trainings), trainings[0].batches.plan.n_steps
    with matmul_precision(longer[0].precision):
        began, compiled = time.monotonic(), compile_seconds()
        steps.advance(n_steps)
        _synchronize(device)
        took = time.monotonic() - began - (compile_seconds() - compiled)
        if device.type == "cpu" and took > _SLOW_SECONDS:
            return took / states[0].step
        began, first = time.monotonic(), states[0].step
        while time.monotonic() - began < least_seconds or states[0].step - first < 2:
            steps.advance(n_steps)
            _synchronize(device)
    return (time.monotonic() - began) / (states[0].step - first)


@torch.no_grad()
def probe_validation(data: TrainingData, config: TrainConfig) -> float:
    """Return the seconds of a validation; on a CPU measured on some of its triples."""
    config = config.changed(init="xavier_normal")  # other initial values could diverge at once
    placement = data.choose_placement(config).placement
    model = initial_model(config, *data.sizes, device=data.device, placement=placement)
    dataset = data.dataset
    if data.device.type != "cpu" and data.validator is not None:
        ranker = data.validator.ranker
    else:
        triples = dataset.valid[: min(_PROBE_TRIPLES, 1 + _PROBE_SCORES // dataset.n_entities)]
        known = KnownAnswers.of(dataset.train, dataset.valid, n_relations=dataset.n_relations, asked=triples)
        ranker = Ranker(triples, known, dataset.n_entities, data.device)
    ranker.rank(model)  # the first one compiles
    began = time.monotonic()
    ranker.rank(model)
    return (time.monotonic() - began) * len(dataset.valid) / max(1, len(ranker.triples))


def measure_machines(
    graphs: SearchGraphs,
    models: Sequence[str],
    *,
    device: str,
    seconds: float,
    dim: int | None = None,
    workers: int = 1,
) -> list[Machine]:
    """Return the ways in which trials could run here, with their speeds, measured on the full graph.

    seconds: about how long to measure. dim: if it is given; otherwise speeds are those of all dimensions. workers: of
    the rounds, on a CPU one per core.
    """
    on, dataset = choose_device(device), graphs.dataset
    gpu = on.type == "cuda"
    data = TrainingData(dataset, on, seed=graphs.settings.seed)
    dims = (dim, dim) if dim is not None else _GPU_DIMS if gpu else _CPU_DIMS
    stack = _STACK if gpu and workers == 1 else 1  # several devices train one trial each
    probes = {model: _probe_configs(graphs, model, dims, stack) for model in models}
    each = seconds / (4 * len(models) + 2)
    torch.set_num_threads(1)
    speeds = {model: _fit_speed(data, configs, each) for model, configs in probes.items()}
    alone = probes[models[0]][2][:1]
    max_dim = max([d for d in {level.dim for level in LEVELS} if _fits(data, alone[0].changed(dim=d))], default=1)
    if gpu:
        stacked = _probe_steps(data, probes[models[0]][2], each) / stack
        factor, start = (
            max(1.0, probe_step(data, alone, each) / stacked),
            _START_SECONDS * (workers > 1) or _COMPILE_SECONDS,
        )
        name = torch.cuda.get_device_name(on)
        return [Machine(name, speeds, factor, workers=workers, start_seconds=start, max_dim=max_dim)]
    return _cpu_machines(data, alone, speeds, workers, max_dim, each)


def _cpu_machines(
    data: TrainingData, alone: list[TrainConfig], speeds: dict[str, Speed], workers: int, max_dim: int, seconds: float
) -> list[Machine]:
    """Return a machine whose cores train one trial each, and one that trains in turn, with the faster threads."""
    one, threads = probe_step(data, alone, seconds), n_cores()
    torch.set_num_threads(threads)
    all_cores = probe_step(data, alone, seconds) if threads > 1 else one
    torch.set_num_threads(1)
    factor, threads = (all_cores / one, threads) if all_cores < 0.9 * one else (1.0, 1)
    name = f"{n_cores()} CPU cores" if n_cores() > 1 else "1 CPU core"
    faster = {model: speed.scaled(train=factor) for model, speed in speeds.items()}
    in_turn = Machine(name, faster, threads=threads, final_threads=threads, max_dim=max_dim, engine="sequential")
    if workers == 1:
        return [in_turn]
    together = {model: speed.scaled(train=_CROWDED, rank=_CROWDED) for model, speed in speeds.items()}
    several = Machine(
        name, together, factor / _CROWDED, workers=workers, threads=1, final_threads=threads,
        start_seconds=_START_SECONDS, max_dim=max_dim,
    )  # fmt: skip
    return [in_turn, several]


def _probe_configs(
    graphs: SearchGraphs, model: str, dims: tuple[int, int], count: int
) -> tuple[list[TrainConfig], list[TrainConfig], list[TrainConfig]]:
    """Return the cheapest and the most expensive configurations at one dimension, and the latter at the other.

    All have the smallest batches among them, with which a triple takes longest.
    """
    settings = graphs.settings.model_copy(update={"models": (model,), "initial": ()})
    configurations = make_configurations(settings, graphs.n_entities, 2 * _STACK, n_train=graphs.n_train)
    made = [make_config(c.values) for c in configurations]
    batch, ordered = min(c.batch_size for c in made), _by_size(made, graphs.n_entities)
    parts = ((ordered[:count], dims[0]), (ordered[-count:], dims[0]), (ordered[-count:], dims[1]))
    cheap, dear, wide = ([c.changed(dim=dim, batch_size=batch) for c in part] for part, dim in parts)
    return cheap, dear, wide


def _fit_speed(data: TrainingData, probes: Sequence[list[TrainConfig]], seconds: float) -> Speed:
    """Return the speed that explains three measurements; what would be negative is 0, and the rest larger."""
    batch, n_entities = probes[0][0].batch_size, data.dataset.n_entities
    cheap, dear, wide = (_probe_steps(data, configs, seconds) / len(configs) / batch for configs in probes)
    few, many = (sum(score_count(c, n_entities) / c.dim for c in cs) / len(cs) for cs in probes[:2])
    low, high = probes[1][0].dim, probes[2][0].dim
    per_score = max(0.0, dear - cheap) / max(1.0, many - few) / low if many > few else 0.0
    rest = max(0.0, dear - low * many * per_score), max(0.0, wide - high * many * per_score)
    per_dim = max(0.0, rest[1] - rest[0]) / (high - low) if high > low else 0.0
    positive = max(0.0, rest[0] - low * per_dim)
    rank = probe_validation(data, probes[2][0]) / max(1, len(data.dataset.valid)) / n_entities / high
    return Speed(positive, per_dim, per_score, rank)


def _fits(data: TrainingData, config: TrainConfig) -> bool:
    return fits(data.plan_memory([config], keep_best=True), data.device)


def _new_state(data: TrainingData, config: TrainConfig, placement: Placement) -> TrainState:
    model = initial_model(config, *data.sizes, device=data.device, placement=placement)
    return TrainState.fresh(model, config, placement)


def _reasons(config: TrainConfig, device: torch.device) -> list[str]:
    if os.environ.get("GRASH_KERNELS", "") == "reference":
        return ["GRASH_KERNELS=reference"]
    return why_not(config, device)


def _synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _table(headings: tuple[str, ...], rows: list[tuple[str, ...]]) -> list[str]:
    """Return the lines of a table, aligned to the right."""
    widths = [max(len(row[i]) for row in (headings, *rows)) for i in range(len(headings))]
    return ["  ".join(cell.rjust(width) for cell, width in zip(row, widths)) for row in (headings, *rows)]


def _summary_lines(plan: SearchPlan) -> list[str]:
    """Return what a reader of the short table needs to know: cost, guard rails, warnings, wall-clock time."""
    numbered = [(r.plan.number, note) for r in plan.rounds for note in r.plan.notes]
    changed = list(dict.fromkeys(str(number) for number, note in numbered if note.startswith("guard rail")))
    rounds = f"round{'s' if len(changed) > 1 else ''} {', '.join(changed)}"
    notes = [f"guard rails enlarged the graph of {rounds}; `grash plan --verbose` shows why"] if changed else []
    warnings: dict[str, list[str]] = {}
    for number, note in numbered:
        if note.startswith("warning"):
            warnings.setdefault(note, []).append(str(number))
    notes += [f"round{'s' if len(n) > 1 else ''} {', '.join(n)}: {note}" for note, n in warnings.items()]
    return [_cost_line(plan), *notes, *plan.notes, *_time_line(plan)]


def _cost_line(plan: SearchPlan) -> str:
    """Return what the rounds cost, and what comes on top of them."""
    finalists = ["comparing finalists"] * any(r.plan.compares_finalists for r in plan.rounds)
    on_top = ", ".join(finalists + ["final training"] * (plan.final is not None))
    unspent = max(0.0, plan.budget - plan.billed)
    left = f", {unspent:.2g} unspent" if unspent >= 0.005 * plan.budget else ""
    return f"cost: {plan.billed:.3g} of {plan.budget:g} full runs{left}" + (f"; on top: {on_top}" if on_top else "")


def _time_line(plan: SearchPlan) -> list[str]:
    """Return the expected wall-clock time as one line; nothing without a probe."""
    if plan.wall_seconds is None:
        return []
    trials = f"{plan.at_once} trials at a time" if plan.at_once > 1 else "one trial after another"
    if any(r.implementation.stack_size > 1 for r in plan.rounds):
        trials = "trials stacked on each GPU"
    final = ", then the final training" if plan.final is not None else ""
    return [f"about {format_duration(plan.wall_seconds)} here: {trials}{final}"]


def _wall_seconds(planned: PlannedRound, at_once: int) -> float | None:
    """Return the time of a round whose trials fill the workers again and again."""
    if planned.seconds is None:
        return None
    return planned.seconds * -(-planned.n_trials // at_once) / planned.n_trials


def implementation_sentence(choice: Implementation) -> str:
    parts = []
    if choice.fused:
        parts.append(f"{choice.fused} use the fused step, {choice.stack_size} together")
    if choice.unfused:
        why = "; ".join(f"{reason} ({count})" for reason, count in choice.reasons)
        captured = f" ({choice.captured} from a CUDA graph)" if choice.captured else ""
        parts.append(f"{choice.unfused} use the unfused implementation{captured}: {why}")
    return ", ".join(parts)


def _row(planned: PlannedRound, at_once: int) -> tuple[str, ...]:
    plan, seconds = planned.plan, _wall_seconds(planned, at_once)
    return (
        str(plan.number or "final"), f"{planned.n_trials:,}", f"{plan.n_entities:,}", f"{plan.n_train:,}",
        f"{plan.epochs:.3g}", f"{planned.billed:.3g}" if planned.billed else "on top",
        "–" if seconds is None else format_duration(seconds),
    )  # fmt: skip


def _detailed_row(planned: PlannedRound, n_train: int) -> tuple[str, ...]:
    p = planned.plan
    return (
        str(p.number or "final"), f"{planned.n_trials:,}", f"{p.fidelity:.4g}", f"{p.epochs:.3g}",
        f"{planned.steps:,}", "–" if p.k is None else str(p.k), f"{p.n_entities:,}", f"{p.n_relations:,}",
        f"{p.n_train:,}", f"{p.n_train / n_train:.4f} of {p.graph_fraction:.4f}", f"{p.n_valid:,}",
        f"{planned.negatives[0]}–{planned.negatives[1]}",
        f"{planned.billed:.4g}" if planned.billed else "on top",
        "–" if planned.seconds is None else f"{planned.seconds:,.0f}",
        format_bytes(planned.n_bytes), format_bytes(planned.disk_bytes),
    )  # fmt: skip


def _implementation_lines(plan: SearchPlan) -> list[str]:
    """Return whether trials use the fused step; one line if none does, for the same reasons, and none without CUDA."""
    choices = [planned.implementation for planned in plan.all_rounds]
    if not torch.cuda.is_available() and not any(choice.fused for choice in choices):
        return []
    reasons = {tuple(reason for reason, _ in choice.reasons) for choice in choices}
    if len(reasons) == 1 and not any(choice.fused or choice.captured for choice in choices):
        return [f"all trials use the unfused implementation: {'; '.join(*reasons)}"]
    names = [f"round {planned.plan.number}" if planned.plan.number else "final" for planned in plan.all_rounds]
    return [f"{name}: {implementation_sentence(choice)}" for name, choice in zip(names, choices)]


def _by_implementation(
    configs: Sequence[TrainConfig], device: torch.device
) -> tuple[list[TrainConfig], list[TrainConfig]]:
    """Return the configurations that the fused step can train, and the others."""
    fused = [config for config in configs if uses_fused_step(config, device)]
    return fused, [config for config in configs if not uses_fused_step(config, device)]


def _by_size(configs: list[TrainConfig], n_entities: int) -> list[TrainConfig]:
    return sorted(configs, key=lambda c: score_count(c, n_entities))
