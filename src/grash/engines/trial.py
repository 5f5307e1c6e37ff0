"""Trials, from task to result: the one path for every round and for the final training.

Every way it can end becomes a status (D8): ok, diverged, memory, timeout, error; `killed` is what an engine says of a
worker that is gone.
"""

from __future__ import annotations

import gc
import resource
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.torch
import torch
from safetensors import SafetensorError
from torch import Tensor

from grash.engines.device import choose_device
from grash.engines.memory import fits, is_memory_error
from grash.engines.trainer import Ended, Ground, Job, Outcome, likeness, run_trainings, together, use_threads
from grash.errors import Diverged, FormatError, GrashError, OutputError
from grash.evaluation.evaluate import evaluate
from grash.evaluation.ranking import default_work_bytes
from grash.files import read_json
from grash.kernels.half_rows import wide
from grash.models.store import StoredModel, save_model
from grash.reduction.subgraph import Subgraph
from grash.search.graphs import SearchGraphs
from grash.search.proposals import score_count
from grash.search.schedule import cost_of
from grash.search.trial import Status, Trial, TrialProgress, TrialResult
from grash.training.checkpoint import SCHEMA, VERSION, TrainState, save_state, state_tensors
from grash.training.config import TrainConfig, make_config
from grash.training.loop import Progress


class TrialTimeout(Exception):
    """The trial took longer than it may."""


class TrialRunner:
    """Runs the trials of one search on one device; keeps a round's graph, triples and filter between them."""

    def __init__(
        self, graphs: SearchGraphs, folder: Path, *, device: str = "auto", timeout: float | None = None
    ) -> None:
        self.graphs, self.settings, self.folder = graphs, graphs.settings, Path(folder)
        self.device, self.timeout = choose_device(device), timeout
        self._ground: tuple[Subgraph, Ground] | None = None

    def run(self, task: Trial, tell: Callable[[TrialProgress], None]) -> TrialResult:
        """The result of a task. An interrupt (KeyboardInterrupt, from `tell` too) passes through after saving."""
        [[result]] = self.run_many([task], tell)
        return result

    def run_many(self, tasks: Sequence[Trial], tell: Callable[[TrialProgress], None]) -> Iterator[list[TrialResult]]:
        """Results as they come, those of tasks that were trained together at once."""
        alike: dict[Any, list[Trial]] = {}
        for task in tasks:
            alike.setdefault((task.fractions, task.isolated, task.work_share), []).append(task)
        for group in alike.values():
            yield from self._run_alike(group, tell)

    def fits(self, tasks: Sequence[Trial]) -> bool:
        """Whether memory admits that these are trained together, as far as they can be."""
        configs: dict[Any, list[TrainConfig]] = {}
        for task in tasks:
            config = make_config(task.config)
            if together(config, self.device):
                configs.setdefault((task.fractions, task.isolated, *likeness(config)), []).append(config)
        return all(
            len(some) < 2 or fits(self._ground_of(self.graphs.subgraph(*key[:2])).plan(some), self.device)
            for key, some in configs.items()
        )

    def _run_alike(self, tasks: list[Trial], tell: Callable[[TrialProgress], None]) -> Iterator[list[TrialResult]]:
        """Tasks on one graph. What a stack takes in seconds is shared by its trials."""
        began, waiting = self._begin(), list(tasks)
        results: list[TrialResult] = []
        try:
            use_threads(self.settings.threads_of(final=tasks[0].final))
            graph = self.graphs.subgraph(tasks[0].fractions, tasks[0].isolated)
            jobs = [self._job(task, graph, self._watch(task, tell)) for task in tasks]
            work = self._work_bytes(tasks[0].work_share)
            for ended in run_trainings(self._ground_of(graph), jobs, work_bytes=work):
                seconds = (time.monotonic() - began) / len(ended)
                while ended:  # what is settled is let go: the next stack needs its memory
                    place, outcome = ended.pop(0)
                    results.append(self._measured(self._settled(tasks[place], outcome, graph), seconds))
                    waiting.remove(tasks[place])
                    del outcome
                done, results = results, []
                yield done
                began = self._begin()
        except OutputError:
            raise  # a full disk is no fault of the trial: the search stops
        except Exception as error:
            seconds = (time.monotonic() - began) / max(1, len(waiting))
            yield results + [self._measured(self._failure(task, error), seconds) for task in waiting]

    def _begin(self) -> float:
        if self.device.type == "cuda":
            torch.cuda.init()  # a fresh process has no statistics to reset yet
            torch.cuda.reset_peak_memory_stats(self.device)
        return time.monotonic()

    def _measured(self, result: TrialResult, seconds: float) -> TrialResult:
        return replace(result, seconds=seconds, peak_bytes=_peak_bytes(self.device), device=str(self.device))

    def _job(self, task: Trial, graph: Subgraph, watch: Callable[[Progress], None]) -> Job:
        place = self.folder / task.folder
        begin, begins_at = self._beginning(task, graph)
        return Job(
            make_config(task.config),
            place / "checkpoint",
            watch,
            begin,
            begins_at,
            keep=(lambda state: keep_state(state, place / "state")) if task.keep else None,
            belongs_to={"trial": [task.round, task.number, list(task.fractions)]},
            placement=task.placement,
            weights=task.final,
        )

    def _settled(self, task: Trial, outcome: Ended, graph: Subgraph) -> TrialResult:
        if isinstance(outcome, Exception):
            return self._failure(task, outcome)
        try:
            return self._done(task, outcome, graph)
        except OutputError:
            raise
        except Exception as error:
            return self._failure(task, error)

    def _done(self, task: Trial, outcome: Outcome, graph: Subgraph) -> TrialResult:
        best, config = outcome.best, make_config(task.config)
        assert best is not None
        done = self._result(task, "ok", config.epochs)
        done = replace(done, mrr=best.mrr, interval=outcome.interval, history=[asdict(v) for v in outcome.history])
        if task.final:
            done = replace(done, evaluation=self._save_model(outcome, config, graph))
        return done

    def _ground_of(self, graph: Subgraph) -> Ground:
        if self._ground is None or self._ground[0] is not graph:
            self._ground = None  # before another one is made
            keys = tuple(torch.from_numpy(ids.copy()).long() for ids in (graph.entity_ids, graph.relation_ids))
            on_device = (keys[0].to(self.device), keys[1].to(self.device))
            self._ground = (graph, Ground(graph.dataset, self.device, keys=on_device, seed=self.settings.seed))
        return self._ground[1]

    def close(self) -> None:
        """Lets go of what the last round left on the device: whoever trains there next has planned without it."""
        self._ground = None

    def _work_bytes(self, share: float) -> int | None:
        """For ranking; None is the usual."""
        return None if share == 1 else max(1 << 16, int(default_work_bytes(self.device) * share))

    def _beginning(self, task: Trial, graph: Subgraph) -> tuple[Callable[[TrainState], None] | None, int]:
        """What fills a fresh state, and the step at which it then stands."""
        if task.continues is None:
            return None, 0
        source = self.folder / task.continues
        if not task.warm:
            return (lambda state: take_over(state, source)), kept_step(source)
        earlier = self.graphs.subgraph(task.fractions[:-1])
        return (lambda state: take_over_rows(state, source, earlier, graph)), 0

    def _save_model(self, outcome: Outcome, config: TrainConfig, graph: Subgraph) -> dict[str, Any]:
        """Test once (filter: train, valid, test), then the model folder with all of it."""
        dataset = graph.dataset
        found = evaluate(outcome.model, dataset, seed=config.seed).to_dict() if len(dataset.test) else {}
        history = [asdict(v) for v in outcome.history]
        stored = StoredModel(outcome.model, dataset, config.model_dump(), evaluation=found, history=history)
        save_model(stored, self.folder / "model", overwrite=True)
        return {k: v for k, v in found.items() if k != "per_relation"}

    def _watch(self, task: Trial, tell: Callable[[TrialProgress], None]) -> Callable[[Progress], None]:
        def watch(progress: Progress) -> None:
            if self.timeout is not None and not task.final and progress.seconds > self.timeout:
                raise TrialTimeout(
                    f"It took longer than the {self.timeout:g} s that a trial may take (--trial-timeout)."
                )
            tell(
                TrialProgress(
                    task.round,
                    task.number,
                    progress.step,
                    progress.n_steps,
                    progress.best_mrr,
                    progress.seconds_left,
                )
            )

        return watch

    def _result(self, task: Trial, status: Status, epoch: float) -> TrialResult:
        """What a trial is billed that has come to this epoch: what it saw itself, not what it took over."""
        data = self.graphs.subgraph(task.fractions, task.isolated).dataset
        positives = max(0, round(epoch * len(data.train)) - round(task.epochs_before * len(data.train)))
        cost = 0.0 if task.final else float(cost_of(positives, self.settings, self.graphs.n_train)) * task.relative_cost
        scores = positives * score_count(make_config(task.config), data.n_entities)
        return TrialResult(task.round, task.number, task.attempt, status, positives=positives, cost=cost, scores=scores)

    def _failure(self, task: Trial, error: Exception) -> TrialResult:
        if not isinstance(error, Diverged | TrialTimeout):
            self._ground = None
        broken = self.device.type == "cuda" and is_broken(error)
        if isinstance(error, Diverged):
            return replace(self._result(task, "diverged", error.epoch), message=str(error))
        if isinstance(error, TrialTimeout):
            return TrialResult(task.round, task.number, task.attempt, "timeout", message=str(error))
        if is_memory_error(error):
            if self.device.type == "cuda":
                gc.collect()  # an error holds what the frames that it came through held
                torch.cuda.empty_cache()
            return TrialResult(
                task.round, task.number, task.attempt, "out_of_memory", message=str(error).split("\n")[0]
            )
        message = f"{type(error).__name__}: {error}".split("\n")[0]
        if broken:
            return TrialResult(task.round, task.number, task.attempt, "killed", message=message)
        trace = "".join(traceback.format_exception(error))
        return TrialResult(task.round, task.number, task.attempt, "error", message=message, traceback=trace)


def check_card(result: TrialResult) -> TrialResult:
    """The result of a trial in this process, unless the card's context was lost with it: then nothing computes here any
    more, and what follows would fail with it."""
    if result.status == "killed":
        raise GrashError(
            f"The card {result.device} failed ({result.message}), and this process cannot use it any more. The search "
            f"stops here and goes on with `grash resume`."
        )
    return result


def is_broken(error: Exception) -> bool:
    """Whether the card's context is lost, so that nothing computes in this process any more: the machine's fault."""
    return isinstance(error, RuntimeError) and any(
        w in str(error)
        for w in ("CUDA error", "Triton Error [CUDA]", "CUDA driver error", "CUBLAS_STATUS", "cuDNN error")
    )


def _peak_bytes(device: torch.device) -> int:
    if device.type == "cuda":
        return int(torch.cuda.max_memory_allocated(device))
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


# = From one round to the next: a survivor's state is kept, and taken over whole or row by row.
# =
# = Whole (epoch variant): weights, optimizer state and step counter, so that the continued run equals an uninterrupted
# = one bit for bit (D10). Row by row (warm start): entities and relations that the earlier, smaller graph had keep their
# = rows; a new entity begins at the mean of its neighbors that had one, a new relation as it would have without (D11).


def keep_state(state: TrainState, folder: Path) -> None:
    """Writes what a later round goes on from: no validations, no best weights, those belong to their round."""
    bare = replace(state, history=[], best={}, unread=[], loss_sum=0.0, loss_steps=0)
    save_state(bare, folder, belongs_to={})


def take_over(state: TrainState, folder: Path) -> None:
    """Goes on where the kept state stands."""
    tensors, record = _read(folder), _record(folder)
    for name, tensor in state_tensors(state).items():
        tensor.copy_(tensors[name])
    state.step, state.first_loss = record["step"], record["first_loss"]


def kept_step(folder: Path) -> int:
    """The step at which a kept state stands; one that cannot be read says so when it is taken over."""
    try:
        return int(_record(folder)["step"])
    except (GrashError, KeyError, TypeError, ValueError):
        return 0


def take_over_rows(state: TrainState, folder: Path, earlier: Subgraph, graph: Subgraph) -> None:
    """Rows and optimizer state of what the earlier graph knew; new entities from the mean of their neighbors."""
    tensors = _read(folder)
    device = state.model.entity.device
    entities = _places(earlier.entity_ids, graph.entity_ids)
    relations = _places(earlier.relation_ids, graph.relation_ids)
    if state.model.reciprocal:  # rows of inverse relations stand after the others
        n_before, n_now = len(earlier.relation_ids), len(graph.relation_ids)
        relations = (
            np.concatenate([relations[0], relations[0] + n_before]),
            np.concatenate([relations[1], relations[1] + n_now]),
        )
    for name, tensor in state_tensors(state).items():
        source, target = entities if name.startswith("entity") else relations
        if tensor.ndim:
            tensor[torch.from_numpy(target).to(device)] = tensors[name][torch.from_numpy(source)].to(device)
    fill_new_entities(state.model.entity, graph.dataset.train, known=entities[1])


def fill_new_entities(table: Tensor, triples: np.ndarray, *, known: np.ndarray) -> None:
    """Sets every row of table (E, D) that is not in `known` to the mean, over its triples, of the other end's row where
    that end is known; rows without such a neighbor stay."""
    is_known = torch.zeros(len(table), dtype=torch.bool)
    is_known[torch.from_numpy(known)] = True
    heads, tails = (torch.from_numpy(np.ascontiguousarray(triples[:, c])).long() for c in (0, 2))
    new = torch.cat([heads, tails])
    old = torch.cat([tails, heads])
    useful = ~is_known[new] & is_known[old]
    new, old = new[useful].to(table.device), old[useful].to(table.device)
    sums = torch.zeros_like(table, dtype=wide(table[:0]).dtype).index_add_(0, new, wide(table[old]))
    counts = torch.bincount(new, minlength=len(table)).to(sums.dtype)
    rows = counts > 0
    table[rows] = (sums[rows] / counts[rows, None]).to(table.dtype)


def _places(earlier: np.ndarray, now: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(place in earlier, place in now) of the ids that both have; both ascend."""
    _, first, second = np.intersect1d(earlier, now, assume_unique=True, return_indices=True)
    return first, second


def _record(folder: Path) -> dict[str, Any]:
    return read_json(folder / "state.json", schema=SCHEMA, version=VERSION)


def _read(folder: Path) -> dict[str, Tensor]:
    try:
        return safetensors.torch.load_file(folder / "tensors.safetensors")
    except (SafetensorError, OSError) as error:
        raise FormatError(f"{folder} is damaged ({error}): the trial that goes on from it cannot run.") from error
