"""The runner: trains the cells that a store has no entry for, graph by graph, and writes what comes of them.

Results are on disk after every batch of configurations, so that a stop loses little; the same call goes on, here or on
another machine that has the store.
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
from grash.engines.memory import choose_device, is_memory_error
from grash.engines.plan import plan_search
from grash.engines.trainer import TrainingData, run_trainings
from grash.errors import ConfigError, Diverged, GrashError, InputError
from grash.evaluation.metrics import metrics_of
from grash.evaluation.ranking import Ranker
from grash.formatting import format_bytes
from grash.models import KgeModel, model_class
from grash.reduction.subgraph import Subgraph
from grash.search.graphs import SearchGraphs
from grash.search.proposals import score_count
from grash.search.settings import SearchSettings, make_settings
from grash.training.batches import Plan as Plan_train_import
from grash.training.checkpoint import TrainState, Validation
from grash.training.config import TrainConfig
from grash.training.loop import Training
from grash_study.cells import MARKS, REGULAR, TESTED, Cell, Entry, EntryStatus, Technique, merged_marks
from grash_study.graphs import StudyGraphs, config_on
from grash_study.pool import Pool
from grash_study.store import Store

# = How long cells will take: by the pace of cells that this device has trained, else by a short probe.
# =
# = Comes from run.py, before anything runs and between its batches.

_PROBE_STEPS = 20


@dataclass(frozen=True)
class Pace:
    """Seconds per positive on graphs that this device has trained on: (train triples, seconds)."""

    known: tuple[tuple[int, float], ...]

    @classmethod
    def of(cls, store: Store, device: torch.device) -> Pace:
        mine = [e for e in store.entries.values() if e.device == device_words(device) and e.status == "ok"]
        graphs: dict[int, list[Entry]] = {}
        for entry in mine:
            graphs.setdefault(entry.n_train, []).append(entry)
        paces = ((n, sum(e.seconds for e in es), sum(e.positives for e in es)) for n, es in sorted(graphs.items()))
        return cls(tuple((n, seconds / max(1, positives)) for n, seconds, positives in paces))

    def probed(self, pool: Pool, asked: Sequence[tuple[Subgraph, Sequence[int], float]], device: torch.device) -> Pace:
        """The same, or, where nothing is known, by a probe of the smallest, a middle and the largest graph that are
        asked for (graph, configurations, share of the epochs): the configuration with the median scores, alone."""
        if self.known or not asked:
            return self
        ordered = sorted(asked, key=lambda a: len(a[0].dataset.train))
        known = {}
        for graph, numbers, upto in (ordered[0], ordered[len(ordered) // 2], ordered[-1]):
            configs = [config_on(graph, pool, n, upto) for n in numbers]
            typical = sorted(configs, key=lambda c: score_count(c, graph.dataset.n_entities))[len(configs) // 2]
            n_train = len(graph.dataset.train)
            if n_train not in known:
                seconds = _probe(GraphTrainer(graph, device=str(device)), typical)
                known[n_train] = seconds / (typical.epochs * n_train)
        return Pace(tuple(sorted(known.items())))

    def seconds(self, pool: Pool, graph: Subgraph, numbers: Sequence[int], upto: float) -> float | None:
        """Of these trainings on a graph, by the pace of the graph nearest in size; None where nothing is known."""
        if not self.known:
            return None
        n_train = len(graph.dataset.train)
        _, pace = min(self.known, key=lambda k: abs(math.log(k[0] / max(1, n_train))))
        return pace * len(numbers) * upto * pool.settings.max_epochs * n_train


UNKNOWN = Pace(())


def _probe(trainer: GraphTrainer, config: TrainConfig) -> float:
    """Seconds of one training, from two short ones: the first loads and compiles what the second needs."""
    n_train = len(trainer.graph.dataset.train)
    epochs = min(config.epochs, _PROBE_STEPS * config.batch_size / n_train)
    short = config.changed(epochs=epochs, valid_every=epochs, init="xavier_normal", lr=1e-3)  # one that cannot diverge
    trainer.train([short], [epochs])
    began = time.monotonic()
    trained = trainer.train([short], [epochs])[0]
    seconds = time.monotonic() - began
    if trained.error is not None:
        raise trained.error
    valid = trained.valid_seconds
    return max(0.0, seconds - valid) * config.epochs / epochs + valid * len(MARKS)


BATCH = 64
_CORES = ("core-order", "k-core")
_FEWEST = 4  # configurations that are worth a batch of their own when time runs out, or when nothing is known of it
Group = tuple[Technique, float, tuple[float, ...]]


@dataclass(frozen=True)
class Progress:
    """What a run of cells came to."""

    done: int  # cells that the store has now
    asked: int
    seconds: float  # of this run

    @property
    def finished(self) -> bool:
        return self.done == self.asked


def run_cells(
    graphs: StudyGraphs,
    cells: Iterable[Cell],
    store: Store,
    *,
    device: str = "auto",
    max_seconds: float | None = None,
    batch: int = BATCH,
    pace: Pace = UNKNOWN,
    say: Callable[[str], None] = lambda line: None,
) -> Progress:
    """Trains what is missing. A batch that would not end within max_seconds, by the pace so far, is not begun.

    pace: from a probe, for as long as nothing was trained on this device; without one the first batch is small.
    """
    check_batch(batch)
    began, asked = time.monotonic(), list(cells)
    for (technique, fraction, marks), numbers in missing(asked, store).items():
        if _time_left(began, max_seconds) <= 0:
            break
        store.hold()
        try:
            graph = graphs.graph(technique, fraction)
            trainer = GraphTrainer(graph, device=device)
        except InputError as error:
            say(f"{technique} {fraction:.4g}: {error}")
            store.add(Entry(n, technique, fraction, marks, "impossible", (), message=str(error)) for n in numbers)
            continue
        known = {n: known_already(store, Cell(n, technique, fraction, marks), graph) for n in numbers}
        store.add(entry for entry in known.values() if entry is not None)
        numbers = [n for n in numbers if known[n] is None]
        while numbers:
            done = Pace.of(store, trainer.device)
            expected = (done if done.known else pace).seconds(graphs.pool, graph, numbers[:batch], marks[-1])
            count = _fitting(len(numbers[:batch]), expected, _time_left(began, max_seconds), probed=not done.known)
            if not count:
                break
            chosen, numbers = numbers[:count], numbers[count:]
            for entries in run_batch(graphs, trainer, technique, fraction, marks, chosen):
                store.add(entries)
                say(_line(entries, technique, fraction, time.monotonic() - began))
    return Progress(sum(store.find(c) is not None for c in asked), len(asked), time.monotonic() - began)


def check_batch(batch: int) -> None:
    if batch < 1:
        raise ConfigError(f"A batch of {batch} configurations trains nothing: give 1 or more.")


def missing(cells: Iterable[Cell], store: Store) -> dict[Group, list[int]]:
    """Configurations that are to be trained, by graph and marks, in the order of the cells.

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


def known_already(store: Store, cell: Cell, graph: Subgraph) -> Entry | None:
    """The entry of the same training by another name: cores are coarse, so that the ladder has one for many fractions,
    and what lies inside the innermost is the chain's."""
    if cell.technique not in _CORES:
        return None
    sizes = _sizes(graph)
    for entry in store.of_number(cell.number):
        same = entry.technique in _CORES and all(getattr(entry, n) == sizes[n] for n in sizes if n != "fell_back")
        renamed = replace(entry, technique=cell.technique, fraction=cell.fraction, fell_back=graph.fell_back)
        if same and renamed.covers(cell):
            return renamed
    return None


def run_batch(
    graphs: StudyGraphs,
    trainer: GraphTrainer,
    technique: Technique,
    fraction: float,
    marks: tuple[float, ...],
    numbers: Sequence[int],
) -> Iterator[list[Entry]]:
    """The entries of some configurations on one graph, as those that were trained together end."""
    pool, graph = graphs.pool, trainer.graph
    configs = [config_on(graph, pool, n, marks[-1]) for n in numbers]
    test = technique == "whole" and marks[-1] == 1 and len(graph.dataset.test) > 0
    shared = {
        **_sizes(graph), "technique": technique, "fraction": fraction, "marks": marks,
        "device": device_words(trainer.device),
    }  # fmt: skip
    _reset_peak(trainer.device)
    began = time.monotonic()
    for ended in trainer.train_in_turn(configs, [m * pool.settings.max_epochs for m in marks], test=test):
        _check_machine(ended, shared["device"])
        shared["seconds"] = (time.monotonic() - began) / len(ended)
        shared["peak_bytes"] = _peak(trainer.device) // len(ended)
        yield [_entry(numbers[p], configs[p], result, shared, pool.settings.max_epochs) for p, result in ended]
        _reset_peak(trainer.device)
        began = time.monotonic()


def _check_machine(ended: list[tuple[int, Trained]], device: str) -> None:
    """A card that has failed computes nothing more in this process, and no configuration is to blame."""
    for _, result in ended:
        if result.error is not None and lost_context(result.error):
            message = f"{result.error}".split("\n")[0]
            raise GrashError(
                f"{device} failed ({message}): what was trained before is in the store, and the same command goes on."
            ) from result.error


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
            raise error  # a defect of ours
    return Entry(
        number=number, status=status, curve=tuple((e / full_epochs, mrr, loss) for e, mrr, loss in result.curve),
        failed=failed, test=result.test, positives=result.positives, valid_seconds=result.valid_seconds,
        train_seconds=max(0.0, result.seconds - result.valid_seconds * result.n_valid / result.together),
        together=result.together,
        model_bytes=4 * (shared["n_entities"] * config.dim + relations * width),
        message="" if error is None else f"{type(error).__name__}: {error}".split("\n")[0], **shared,
    )  # fmt: skip


def _sizes(graph: Subgraph) -> dict[str, Any]:
    data = graph.dataset
    return {
        "n_entities": data.n_entities, "n_relations": data.n_relations, "n_train": len(data.train),
        "n_valid": len(data.valid), "k": graph.k, "fell_back": graph.fell_back,
    }  # fmt: skip


def _fitting(count: int, expected: float | None, left: float, *, probed: bool) -> int:
    """As many of a batch as fit into the time that is left. A probe is of one training alone, and some together take
    about as long on a card: where one would fit, a few are begun, after which the pace is known."""
    if left <= 0:
        return 0
    if expected is None:
        return count if left == float("inf") else min(count, _FEWEST)
    if expected <= left:
        return count
    fitting = int(count * left / expected)
    if probed and fitting >= 1:
        return max(fitting, min(count, _FEWEST))
    return fitting if fitting >= _FEWEST else 0


def _time_left(began: float, max_seconds: float | None) -> float:
    return float("inf") if max_seconds is None else max_seconds - (time.monotonic() - began)


def _line(entries: list[Entry], technique: str, fraction: float, elapsed: float) -> str:
    first, bad = entries[0], sum(e.status != "ok" for e in entries)
    best = max((e.curve[-1][1] for e in entries if e.curve), default=0.0)
    failed = f", {bad} failed" if bad else ""
    return (
        f"{elapsed:7.1f} s  {technique} {fraction:.4g}: {len(entries)} trained in {first.seconds * len(entries):.1f} s"
        f"{failed}, best MRR {best:.4f}, {format_bytes(first.peak_bytes * first.together)}"
    )


def _reset_peak(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.init()
        torch.cuda.reset_peak_memory_stats(device)


def _peak(device: torch.device) -> int:
    return int(torch.cuda.max_memory_allocated(device)) if device.type == "cuda" else 0


# = Configurations of one graph, trained and validated at given epochs: the compute of a study's cells.
# =
# = Comes from run.py, which says what; the trainings themselves go the one path of every training (engines/run.py), many at
# = a time where that is possible.

Curve = tuple[tuple[float, float, float], ...]


@dataclass(frozen=True, eq=False)
class Trained:
    """What became of a training. curve: (epoch asked for, validation MRR, mean loss since the last), as far as it
    came; error: what ended it; test: metrics of the weights of the best validation, if asked for."""

    curve: Curve
    positives: int
    seconds: float = 0.0  # its part of the time that those trained with it took, without the test
    valid_seconds: float = 0.0  # one validation
    n_valid: int = 0  # validations of all that were trained with it
    together: int = 1
    test: dict[str, float] | None = None
    error: Exception | None = None


class GraphTrainer:
    """Trains on one graph: its triples, ids and filters are brought to the device once for all its configurations."""

    def __init__(self, graph: Subgraph, *, device: str = "auto", seed: int = 0) -> None:
        self.graph, self.device = graph, choose_device(device)
        data = graph.dataset
        if not len(data.valid):
            raise InputError(f"{data.name} has no validation triples to compare configurations on.")
        keys = tuple(torch.from_numpy(ids.copy()).long() for ids in (graph.entity_ids, graph.relation_ids))
        self.training_data = TrainingData(data, self.device, keys=(keys[0], keys[1]), seed=seed)
        self._test: Ranker | None = None
        self._validated: list[float] = []  # seconds of every validation since they were last read
        assert self.training_data.validator is not None
        self.training_data.validator.ranker.durations = self._validated

    def train(self, configs: Sequence[TrainConfig], epochs: Sequence[float], *, test: bool = False) -> list[Trained]:
        """Each configuration's training to the last of `epochs`, validated after each of them."""
        found = dict(one for ended in self.train_in_turn(configs, epochs, test=test) for one in ended)
        return [found[place] for place in range(len(configs))]

    def train_in_turn(
        self, configs: Sequence[TrainConfig], epochs: Sequence[float], *, test: bool = False
    ) -> Iterator[list[tuple[int, Trained]]]:
        """The same as it comes: (place, what became of it) of those that were trained together, when these end."""
        jobs = [Training(config, valid_at=tuple(epochs), interval=False, keep_best=test) for config in configs]
        self._validated.clear()
        began = time.monotonic()
        for ended in run_trainings(self.training_data, jobs):
            self.settle()
            spent, looks = time.monotonic() - began, self._validated.copy()
            shared: dict[str, Any] = {"seconds": spent / len(ended), "together": len(ended), "n_valid": len(looks)}
            shared["valid_seconds"] = sum(looks) / max(1, len(looks))
            outcomes = [(place, o) for place, o in ended if isinstance(o, TrainState)]
            failures = [(place, o) for place, o in ended if isinstance(o, Exception)]
            ended.clear()  # models are let go as soon as they are tested: the next stack needs their memory
            tested = self.tests([o.model for _, o in outcomes]) if test else [None] * len(outcomes)
            found = [
                (p, Trained(self._curve(configs[p], epochs, o.history), self._plan(configs[p]).total, test=t, **shared))
                for (p, o), t in zip(outcomes, tested)
            ]
            outcomes.clear()
            yield [*found, *((p, replace(self._failed(configs[p], epochs, o), **shared)) for p, o in failures)]
            self._validated.clear()
            began = time.monotonic()

    @torch.no_grad()
    def tests(self, models: Sequence[KgeModel]) -> list[dict[str, float] | None]:
        """Test metrics of models of the whole graph, filtered by train, valid and test."""
        data = self.graph.dataset
        if self._test is None:
            splits = (data.train, data.valid, data.test)
            known = KnownAnswers.of(*splits, n_relations=data.n_relations, asked=data.test)
            self._test = Ranker(data.test, known, data.n_entities, self.device)
        ranked = self._test.rank_many(models)
        found = [None if isinstance(r, Diverged) else metrics_of(r.head, r.tail).to_dict() for r in ranked]
        return [None if f is None else {name: float(f[name]) for name in TESTED} for f in found]

    def _failed(self, config: TrainConfig, epochs: Sequence[float], error: Exception) -> Trained:
        if not isinstance(error, Diverged):
            return Trained((), 0, error=error)
        history = [v for v in error.history if isinstance(v, Validation)]
        positives = round(error.epoch * self._plan(config).n_examples)
        return Trained(self._curve(config, epochs, history), positives, error=error)

    def _curve(self, config: TrainConfig, epochs: Sequence[float], history: Sequence[Validation]) -> Curve:
        """On a small graph several epochs may end with the same step, and share its validation."""
        plan, seen = self._plan(config), {v.step: v for v in history}
        steps = [(e, plan.steps_to(e)) for e in epochs]
        return tuple((e, seen[step].mrr, seen[step].loss) for e, step in steps if step in seen)

    def _plan(self, config: TrainConfig) -> Plan_train_import:
        return Plan_train_import(len(self.graph.dataset.train), config.batch_size, config.epochs)

    def settle(self) -> None:
        """Waits until the device has done all it was asked."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)


def device_words(device: torch.device) -> str:
    """The card's name, or cpu."""
    return torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu"


# = What a study still has to train, and about how long that takes: lines for a person, and the pace behind them.
# =
# = Comes from the cells of a study and its store; goes to the command, which hands the pace on to run.py.


@dataclass(frozen=True)
class Plan:
    """lines: what is missing, by graph; pace: of the trainings that are known or were probed."""

    lines: tuple[str, ...]
    pace: Pace


def plan_cells(graphs: StudyGraphs, cells: Iterable[Cell], store: Store, *, device: str = "auto") -> Plan:
    """Writes nothing; where nothing is known of this device, it is tried out for some steps."""
    asked = list(cells)
    where, groups = choose_device(device), missing(asked, store)
    lines = [f"{graphs.pool.name}: {sum(store.find(c) is not None for c in asked)} of {len(asked)} cells are there"]
    there: dict[Group, Subgraph] = {}
    for group in groups:
        try:
            there[group] = graphs.graph(group[0], group[1])
        except InputError as error:
            lines.append(f"  {group[0]} {group[1]:.4g}: {error}")
    probed = [(g, groups[k], k[2][-1]) for k, g in there.items() if len(g.dataset.valid)]
    pace = Pace.of(store, where).probed(graphs.pool, probed, where)
    total = 0.0
    for (technique, fraction, marks), graph in there.items():
        numbers, epochs = groups[technique, fraction, marks], marks[-1] * graphs.pool.settings.max_epochs
        seconds = pace.seconds(graphs.pool, graph, numbers, marks[-1]) or 0.0
        total += seconds
        lines.append(
            f"  {technique:8} {fraction:.4f}  {len(numbers):4} trainings of {epochs:.4g} epochs on "
            f"{graph.dataset.n_entities:,} entities, {len(graph.dataset.train):,} triples: about {seconds:,.1f} s"
        )
    return Plan((*lines, f"about {total:,.0f} s of {device_words(where)} in all"), pace)


# = Which fidelities our default search would visit on a graph: a table must have these cells exactly.
# =
# = Comes from pool.py and graphs.py; goes to the cells of a table.

_NEAR = 1e-4  # relative: a round's epochs come from whole positives, and miss a usual mark by a part of one


def planned_fidelities(graphs: StudyGraphs) -> list[tuple[float, float]]:
    """(graph fraction, epoch fraction) of every round of the default search (η = 4, B = 3) over this pool, with the
    default's number of trials or as many as the pool has. Epochs that miss a usual mark by a hair are that mark."""
    theirs = graphs.pool.settings
    n_trials = min(graphs.pool.n, int(SearchSettings.model_fields["n_trials"].default))
    settings = make_settings(
        {
            "models": theirs.models, "dim": theirs.dim, "max_epochs": theirs.max_epochs, "seed": theirs.seed,
            "space": theirs.space, "fixed": theirs.fixed, "n_trials": n_trials, "proposals": "random",
            "final_train": False,
        }
    )  # fmt: skip
    search = SearchGraphs(graphs.pool.dataset, settings)
    search.share_cores(graphs.search)
    rounds = [planned.plan for planned in plan_search(search, device="cpu", probe=False).rounds]
    return [_fidelity(1.0 if r.whole else r.graph_fraction, r.epochs / theirs.max_epochs) for r in rounds]


def _fidelity(graph: float, epochs: float) -> tuple[float, float]:
    usual = (*MARKS, *REGULAR) if graph == 1 else MARKS
    return graph, next((mark for mark in usual if math.isclose(mark, epochs, rel_tol=_NEAR)), epochs)
