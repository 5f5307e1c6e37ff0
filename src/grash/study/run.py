"""The runner: trains the cells that a store has no entry for, graph by graph, and writes what comes of them.

Results are on disk after every batch of configurations, so that a stop loses little; the same call goes on, here or on
another machine that has the store.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from grash.engines.memory import human, is_memory_error
from grash.engines.trial import is_broken
from grash.errors import ConfigError, Diverged, GrashError, InputError
from grash.models import model_class
from grash.reduction.subgraph import Subgraph
from grash.study.cells import Cell, Entry, EntryStatus, Technique, merged_marks
from grash.study.estimate import UNKNOWN, Pace
from grash.study.graphs import StudyGraphs, config_on
from grash.study.store import Store
from grash.study.train import GraphTrainer, Trained, device_words
from grash.training.config import TrainConfig

BATCH = 64
_CORES = ("chain", "ladder")
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
        if result.error is not None and is_broken(result.error):
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
        f"{failed}, best MRR {best:.4f}, {human(first.peak_bytes * first.together)}"
    )


def _reset_peak(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.init()
        torch.cuda.reset_peak_memory_stats(device)


def _peak(device: torch.device) -> int:
    return int(torch.cuda.max_memory_allocated(device)) if device.type == "cuda" else 0
