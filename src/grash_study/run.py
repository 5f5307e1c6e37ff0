"""Train the cells that a store lacks, graph by graph, and estimate beforehand how long that takes.

Results are on disk after every batch of configurations, so a stop loses little; the same call continues, on this
machine or on another one that has the store.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from grash.data.known_answers import KnownAnswers
from grash.engines.local import lost_context
from grash.engines.memory import choose_device
from grash.engines.plan import probe_step, probe_validation
from grash.engines.trainer import TrainingData, run_trainings
from grash.errors import Diverged, GrashError, InputError, is_memory_error
from grash.evaluation.metrics import metrics_of
from grash.evaluation.ranking import Ranker
from grash.formatting import format_bytes
from grash.models import KgeModel, model_class
from grash.reduction.subgraph import Subgraph
from grash.search.proposals import score_count
from grash.training.batches import Plan as BatchPlan
from grash.training.checkpoint import TrainState, Validation
from grash.training.config import TrainConfig
from grash.training.loop import Training
from grash_study.pool import Pool, StudyGraphs, config_on
from grash_study.store import MARKS, TESTED, Cell, Entry, EntryStatus, Store, Technique, merged_marks

BATCH = 64
_CORES = ("core-order", "k-core")
_MIN_BATCH = 4  # configurations that are worth a batch when time is short or the speed is unknown
Group = tuple[Technique, float, tuple[float, ...]]
Curve = tuple[tuple[float, float, float], ...]


def run_cells(
    graphs: StudyGraphs,
    cells: Iterable[Cell],
    store: Store,
    *,
    device: str = "auto",
    max_seconds: float | None = None,
    batch: int = BATCH,
    pace: float | None = None,
    say: Callable[[str], None] = lambda line: None,
) -> bool:
    """Train what the store lacks; return whether all is there. A batch that would not end in time is not started.

    pace: seconds per positive of a probe, until something was trained on this device.
    """
    start, asked = time.monotonic(), list(cells)

    def time_left() -> float:
        return math.inf if max_seconds is None else max_seconds - (time.monotonic() - start)

    for group, numbers in missing(asked, store).items():
        technique, fraction, marks = group
        if time_left() <= 0:
            break
        store.hold()
        try:
            graph = graphs.graph(technique, fraction)
            trainer = GraphTrainer(graph, device=device)
        except InputError as error:
            say(f"{technique} {fraction:.4g}: {error}")
            store.add(Entry(n, technique, fraction, marks, "impossible", (), message=str(error)) for n in numbers)
            continue
        known = {n: _same_training(store, Cell(n, technique, fraction, marks), graph) for n in numbers}
        store.add(entry for entry in known.values() if entry is not None)
        numbers, n_train = [n for n in numbers if known[n] is None], len(graph.dataset.train)
        while numbers:
            measured = measured_pace(store, trainer.device, n_train)
            each = (measured or pace or 0.0) * marks[-1] * graphs.pool.settings.max_epochs * n_train
            count = _n_fitting(len(numbers[:batch]), each, time_left(), measured=measured is not None)
            if not count:
                break
            chosen, numbers = numbers[:count], numbers[count:]
            for entries in _run_batch(graphs.pool, trainer, group, chosen):
                store.add(entries)
                say(_progress_line(entries, time.monotonic() - start))
    return not missing(asked, store)


def missing(cells: Iterable[Cell], store: Store) -> dict[Group, list[int]]:
    """Return the configurations to train, by graph and marks, in the order of the cells.

    Cells of one configuration on one graph become one training with the marks of all of them.
    """
    wanted: dict[tuple[Technique, float], dict[int, tuple[float, ...]]] = {}
    for cell in cells:
        marks = wanted.setdefault((cell.technique, cell.fraction), {})
        marks[cell.number] = merged_marks(marks.get(cell.number, ()), cell.marks)
    groups: dict[Group, list[int]] = {}
    for (technique, fraction), marks in wanted.items():
        for number, all_marks in marks.items():
            if store.find(Cell(number, technique, fraction, all_marks)) is None:
                groups.setdefault((technique, fraction, all_marks), []).append(number)
    return groups


def plan_cells(
    graphs: StudyGraphs, cells: Iterable[Cell], store: Store, *, device: str = "auto"
) -> tuple[str, float | None]:
    """Return lines: what is missing and about how long it takes; and the pace of a probe, if one was needed."""
    pool, asked, where, probed, total = graphs.pool, list(cells), choose_device(device), None, 0.0
    lines = [f"{pool.name}: {sum(store.find(c) is not None for c in asked)} of {len(asked)} cells are there"]
    for (technique, fraction, marks), numbers in missing(asked, store).items():
        try:
            graph = graphs.graph(technique, fraction)
        except InputError as error:
            lines.append(f"  {technique} {fraction:.4g}: {error}")
            continue
        epochs, n_train = marks[-1] * pool.settings.max_epochs, len(graph.dataset.train)
        pace = measured_pace(store, where, n_train)
        if pace is None and probed is None and len(graph.dataset.valid):
            probed = probed_pace(graph, pool, numbers, where)
        seconds = (pace or probed or 0.0) * len(numbers) * epochs * n_train
        total += seconds
        lines.append(
            f"  {technique:10} {fraction:.4f}  {len(numbers):4} trainings of {epochs:.4g} epochs on "
            f"{graph.dataset.n_entities:,} entities, {n_train:,} triples: about {seconds:,.1f} s"
        )
    return "\n".join([*lines, f"about {total:,.0f} s of {device_name(where)} in all"]), probed


def measured_pace(store: Store, device: torch.device, n_train: int) -> float | None:
    """Return seconds per positive of this device's trainings on the graph nearest in size; None without any."""
    ran = [e for e in store.entries.values() if e.device == device_name(device) and e.status == "ok"]
    if not ran:
        return None
    nearest = min((e.n_train for e in ran), key=lambda n: abs(math.log(max(1, n) / max(1, n_train))))
    alike = [e for e in ran if e.n_train == nearest]
    return sum(e.seconds for e in alike) / max(1, sum(e.positives for e in alike))


def probed_pace(graph: Subgraph, pool: Pool, numbers: Sequence[int], device: torch.device) -> float:
    """Return seconds per positive of a few steps of a typical configuration, trained by itself."""
    configs = [config_on(graph, pool, n, 1.0) for n in numbers]
    typical = sorted(configs, key=lambda c: score_count(c, graph.dataset.n_entities))[len(configs) // 2]
    typical = typical.changed(init="xavier_normal", lr=1e-3)  # it cannot diverge
    data, n_train = GraphTrainer(graph, device=str(device)).training_data, len(graph.dataset.train)
    n_steps = BatchPlan(n_train, typical.batch_size, typical.epochs).n_steps
    seconds = n_steps * probe_step(data, [typical]) + len(MARKS) * probe_validation(data, typical)
    return seconds / (typical.epochs * n_train)


@dataclass(frozen=True, eq=False)
class Trained:
    """The outcome of a training."""

    curve: Curve  # (epoch, validation MRR, mean loss since the last), as far as it came
    positives: int
    train_seconds: float  # its part of the batch's time, without validations and test
    valid_seconds: float  # of one validation
    together: int  # trainings in the batch
    test: dict[str, float] | None  # of the weights of the best validation, if asked for
    error: Exception | None


class GraphTrainer:
    """Trains configurations on one graph, whose triples and filters are moved to the device once."""

    def __init__(self, graph: Subgraph, *, device: str = "auto", seed: int = 0) -> None:
        self.graph, self.device = graph, choose_device(device)
        data = graph.dataset
        if not len(data.valid):
            raise InputError(f"{data.name} has no validation triples to compare configurations on.")
        keys = tuple(torch.from_numpy(ids.copy()).long() for ids in (graph.entity_ids, graph.relation_ids))
        self.training_data = TrainingData(data, self.device, keys=(keys[0], keys[1]), seed=seed)
        self._test: Ranker | None = None
        self._validated: list[float] = []  # seconds of the validations of the current batch
        assert self.training_data.validator is not None
        self.training_data.validator.ranker.durations = self._validated

    def train(self, configs: Sequence[TrainConfig], epochs: Sequence[float], *, test: bool = False) -> list[Trained]:
        """Train each configuration to the last of `epochs`, and validate after each of them."""
        found = dict(one for ended in self.train_in_turn(configs, epochs, test=test) for one in ended)
        return [found[position] for position in range(len(configs))]

    def train_in_turn(
        self, configs: Sequence[TrainConfig], epochs: Sequence[float], *, test: bool = False
    ) -> Iterator[list[tuple[int, Trained]]]:
        """Yield (position, outcome) of the configurations that were trained together, batch by batch."""
        jobs = [Training(config, valid_at=tuple(epochs), interval=False, keep_best=test) for config in configs]
        self._validated.clear()
        start = time.monotonic()
        for ended in run_trainings(self.training_data, jobs):
            self.synchronize()
            spent, validating = time.monotonic() - start, sum(self._validated)
            shared: dict[str, Any] = {
                "train_seconds": max(0.0, spent - validating) / len(ended), "together": len(ended),
                "valid_seconds": validating / max(1, len(self._validated)),
            }  # fmt: skip
            models = {position: o.model for position, o in ended if test and isinstance(o, TrainState)}
            tested = dict(zip(models, self.tests(list(models.values()))))
            found = [(p, self._trained(configs[p], epochs, o, test=tested.get(p), **shared)) for p, o in ended]
            models.clear()  # models are freed here: the next stack needs their memory
            ended.clear()
            yield found
            self._validated.clear()
            start = time.monotonic()

    @torch.no_grad()
    def tests(self, models: Sequence[KgeModel]) -> list[dict[str, float] | None]:
        """Return the test metrics of models of the whole graph, filtered by train, valid and test."""
        data = self.graph.dataset
        if not models:
            return []
        if self._test is None:
            splits = (data.train, data.valid, data.test)
            known = KnownAnswers.of(*splits, n_relations=data.n_relations, asked=data.test)
            self._test = Ranker(data.test, known, data.n_entities, self.device)
        ranked = self._test.rank_many(models)
        found = [None if isinstance(r, Diverged) else metrics_of(r.head, r.tail).to_dict() for r in ranked]
        return [None if f is None else {name: float(f[name]) for name in TESTED} for f in found]

    def synchronize(self) -> None:
        """Wait until the device is done."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)

    def _trained(
        self, config: TrainConfig, epochs: Sequence[float], outcome: TrainState | Exception, **shared: Any
    ) -> Trained:
        """Return the outcome. On a small graph several epochs may end with the same step, and share its validation."""
        plan = BatchPlan(len(self.graph.dataset.train), config.batch_size, config.epochs)
        history, positives, error = [], 0, outcome if isinstance(outcome, Exception) else None
        if isinstance(outcome, TrainState):
            history, positives = outcome.history, plan.total
        elif isinstance(outcome, Diverged):
            history = [v for v in outcome.history if isinstance(v, Validation)]
            positives = round(outcome.epoch * plan.n_examples)
        by_step, steps = {v.step: v for v in history}, [(e, plan.steps_to(e)) for e in epochs]
        curve = tuple((e, by_step[step].mrr, by_step[step].loss) for e, step in steps if step in by_step)
        return Trained(curve, positives, error=error, **shared)


def device_name(device: torch.device) -> str:
    """Return the name of the GPU, or cpu."""
    return torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu"


def _n_fitting(count: int, each: float, left: float, *, measured: bool) -> int:
    """Return how many of a batch fit into the time left, if a training takes `each` seconds; 0.0 if nothing is known.

    Unless that was measured, a few are started if one fits: a few together take about as long as one on a GPU.
    """
    if left == math.inf or left <= 0:
        return count if left > 0 else 0
    few = min(count, _MIN_BATCH)
    fitting = min(count, int(left / each)) if each else few
    if fitting >= 1 and not measured:
        return max(fitting, few)
    return fitting if fitting >= few else 0


def _same_training(store: Store, cell: Cell, graph: Subgraph) -> Entry | None:
    """Return the entry of the same training under another name: several fractions may give the same core."""
    if cell.technique not in _CORES:
        return None
    cores = [e for e in store.entries.values() if e.number == cell.number and e.technique in _CORES]
    alike = [e for e in cores if all(getattr(e, name) == size for name, size in _sizes(graph).items())]
    renamed = (replace(e, technique=cell.technique, fraction=cell.fraction) for e in alike)
    return next((e for e in renamed if e.covers(cell)), None)


def _run_batch(pool: Pool, trainer: GraphTrainer, group: Group, numbers: Sequence[int]) -> Iterator[list[Entry]]:
    """Yield the entries of some configurations on one graph, as those that were trained together end."""
    technique, fraction, marks = group
    graph, full_epochs, device = trainer.graph, pool.settings.max_epochs, trainer.device
    configs = [config_on(graph, pool, n, marks[-1]) for n in numbers]
    test = technique == "whole" and marks[-1] == 1 and len(graph.dataset.test) > 0
    shared = {
        **_sizes(graph), "technique": technique, "fraction": fraction, "marks": marks, "device": device_name(device),
    }  # fmt: skip
    reset_peak(device)
    start = time.monotonic()
    for ended in trainer.train_in_turn(configs, [m * full_epochs for m in marks], test=test):
        for _, result in ended:
            if result.error is not None and lost_context(result.error):
                message = f"{result.error}".split("\n")[0]
                raise GrashError(
                    f"{shared['device']} failed ({message}): the results so far are in the store, and the same "
                    f"command continues."
                ) from result.error
        shared["seconds"] = (time.monotonic() - start) / len(ended)
        shared["peak_bytes"] = peak_bytes(device) // len(ended)
        yield [_entry(numbers[p], configs[p], result, shared, full_epochs) for p, result in ended]
        reset_peak(device)
        start = time.monotonic()


def _entry(number: int, config: TrainConfig, result: Trained, shared: dict[str, Any], full_epochs: float) -> Entry:
    width = model_class(config.model).relation_width(config.dim)
    relations = shared["n_relations"] * (2 if config.reciprocal else 1)
    error, failed = result.error, None
    status: EntryStatus = "ok"
    if isinstance(error, Diverged):
        failed, status = max(error.epoch / full_epochs, 1e-9), "diverged"
    elif error is not None:
        status = "memory" if is_memory_error(error) else "error"
        if status == "error" and not isinstance(error, GrashError | RuntimeError | ValueError):
            raise error  # a defect
    return Entry(
        number=number, status=status, curve=tuple((e / full_epochs, mrr, loss) for e, mrr, loss in result.curve),
        failed=failed, test=result.test, positives=result.positives, valid_seconds=result.valid_seconds,
        train_seconds=result.train_seconds, together=result.together,
        model_bytes=4 * (shared["n_entities"] * config.dim + relations * width),
        message="" if error is None else f"{type(error).__name__}: {error}".split("\n")[0], **shared,
    )  # fmt: skip


def _sizes(graph: Subgraph) -> dict[str, Any]:
    data = graph.dataset
    return {
        "n_entities": data.n_entities, "n_relations": data.n_relations, "n_train": len(data.train),
        "n_valid": len(data.valid), "k": graph.k,
    }  # fmt: skip


def _progress_line(entries: list[Entry], elapsed: float) -> str:
    first, bad = entries[0], sum(e.status != "ok" for e in entries)
    best = max((e.curve[-1][1] for e in entries if e.curve), default=0.0)
    trained = f"{len(entries)} trained in {first.seconds * len(entries):.1f} s{f', {bad} failed' if bad else ''}"
    peak = format_bytes(first.peak_bytes * first.together)
    return f"{elapsed:7.1f} s  {first.technique} {first.fraction:.4g}: {trained}, best MRR {best:.4f}, {peak}"


def reset_peak(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.init()
        torch.cuda.reset_peak_memory_stats(device)


def peak_bytes(device: torch.device) -> int:
    return int(torch.cuda.max_memory_allocated(device)) if device.type == "cuda" else 0
