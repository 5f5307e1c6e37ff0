"""One trial, from task to result: the one path for every round and for the final training.

Every way it can end becomes a status (D8): ok, diverged, memory, timeout, error; `killed` is what an engine says of a
worker that is gone.
"""

from __future__ import annotations

import resource
import shutil
import time
import traceback
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch

from grash.engines.device import choose_device
from grash.engines.lineage import keep_state, take_over, take_over_rows
from grash.engines.run import Outcome, Validator, run_training
from grash.errors import Diverged, MemoryPlanError, OutputError
from grash.evaluation.evaluate import evaluate
from grash.evaluation.ranking import default_work_bytes
from grash.models.store import StoredModel, save_model
from grash.reduction.subgraph import Subgraph
from grash.search.configurations import score_count
from grash.search.graphs import SearchGraphs
from grash.search.schedule import cost_of
from grash.search.trial import Heartbeat, Result, Status, Task
from grash.training.config import TrainConfig, make_config
from grash.training.pulse import Progress
from grash.training.state import TrainState


class TrialTimeout(Exception):
    """The trial took longer than it may."""


class TrialRunner:
    """Runs the trials of one search on one device, one at a time; keeps a round's graph and filter between them."""

    def __init__(
        self, graphs: SearchGraphs, folder: Path, *, device: str = "auto", timeout: float | None = None
    ) -> None:
        self.graphs, self.settings, self.folder = graphs, graphs.settings, Path(folder)
        self.device, self.timeout = choose_device(device), timeout
        self._validator: tuple[Subgraph, Validator] | None = None

    def run(self, task: Task, tell: Callable[[Heartbeat], None]) -> Result:
        """The result of a task. An interrupt (KeyboardInterrupt, from `tell` too) passes through after saving."""
        began = time.monotonic()
        if self.device.type == "cuda":
            torch.cuda.init()  # a fresh process has no statistics to reset yet
            torch.cuda.reset_peak_memory_stats(self.device)
        try:
            result = self._train(task, self._watch(task, tell, began))
        except OutputError:
            raise  # a full disk is no fault of the trial: the search stops
        except Exception as error:
            result = self._failure(task, error)
        return replace(
            result, seconds=time.monotonic() - began, peak_bytes=_peak_bytes(self.device), device=str(self.device)
        )

    def _train(self, task: Task, watch: Callable[[Progress], None]) -> Result:
        config = make_config(task.config)
        graph = self.graphs.subgraph(task.fractions)
        place = self.folder / task.folder
        outcome = run_training(
            graph.dataset,
            config,
            device=str(self.device),
            threads=self.settings.threads,
            checkpoint=place / "checkpoint",
            watch=watch,
            keys=(torch.from_numpy(graph.entity_ids.copy()).long(), torch.from_numpy(graph.relation_ids.copy()).long()),
            validator=self._validator_of(graph, task.work_share),
            begin=self._beginning(task, graph),
            keep=(lambda state: keep_state(state, place / "state")) if task.keep else None,
            belongs_to={"trial": [task.round, task.number, list(task.fractions)]},
        )
        best = outcome.best
        assert best is not None
        done = self._result(task, "ok", config.epochs)
        done = replace(done, mrr=best.mrr, interval=outcome.interval, history=[asdict(v) for v in outcome.history])
        if task.final:
            done = replace(done, evaluation=self._save_model(outcome, config, graph))
        _forget(place)
        return done

    def _validator_of(self, graph: Subgraph, work_share: float) -> Validator:
        if self._validator is None or self._validator[0] is not graph:
            self._validator = (graph, Validator(graph.dataset, self.device, seed=self.settings.seed))
        validator = self._validator[1]
        usual = default_work_bytes(self.device)
        validator.begin(work_bytes=None if work_share == 1 else max(1 << 16, int(usual * work_share)))
        return validator

    def _beginning(self, task: Task, graph: Subgraph) -> Callable[[TrainState], None] | None:
        if task.continues is None:
            return None
        source = self.folder / task.continues
        if not task.warm:
            return lambda state: take_over(state, source)
        earlier = self.graphs.subgraph(task.fractions[:-1])
        return lambda state: take_over_rows(state, source, earlier, graph)

    def _save_model(self, outcome: Outcome, config: TrainConfig, graph: Subgraph) -> dict[str, Any]:
        """Test once (filter: train, valid, test), then the model folder with all of it."""
        dataset = graph.dataset
        found = evaluate(outcome.model, dataset, seed=config.seed).to_dict() if len(dataset.test) else {}
        history = [asdict(v) for v in outcome.history]
        stored = StoredModel(outcome.model, dataset, config.model_dump(), evaluation=found, history=history)
        save_model(stored, self.folder / "model", overwrite=True)
        return {k: v for k, v in found.items() if k != "per_relation"}

    def _watch(self, task: Task, tell: Callable[[Heartbeat], None], began: float) -> Callable[[Progress], None]:
        def watch(progress: Progress) -> None:
            if self.timeout is not None and not task.final and time.monotonic() - began > self.timeout:
                raise TrialTimeout(
                    f"It took longer than the {self.timeout:g} s that a trial may take (--trial-timeout)."
                )
            tell(
                Heartbeat(
                    task.round,
                    task.number,
                    progress.step,
                    progress.n_steps,
                    progress.best_mrr,
                    progress.seconds_left,
                )
            )

        return watch

    def _result(self, task: Task, status: Status, epoch: float) -> Result:
        """What a trial is billed that has come to this epoch: what it saw itself, not what it took over."""
        data = self.graphs.subgraph(task.fractions).dataset
        positives = max(0, round(epoch * len(data.train)) - round(task.epochs_before * len(data.train)))
        cost = 0.0 if task.final else float(cost_of(positives, self.settings, self.graphs.n_train)) * task.price
        scores = positives * score_count(make_config(task.config), data.n_entities)
        return Result(task.round, task.number, task.attempt, status, positives=positives, cost=cost, scores=scores)

    def _failure(self, task: Task, error: Exception) -> Result:
        self._validator = None
        if not _is_memory(error):
            _forget(self.folder / task.folder)
        if isinstance(error, Diverged):
            return replace(self._result(task, "diverged", error.epoch), message=str(error))
        if isinstance(error, TrialTimeout):
            return Result(task.round, task.number, task.attempt, "timeout", message=str(error))
        if _is_memory(error):
            if self.device.type == "cuda":
                torch.cuda.empty_cache()
            return Result(task.round, task.number, task.attempt, "memory", message=str(error).split("\n")[0])
        message = f"{type(error).__name__}: {error}".split("\n")[0]
        if self.device.type == "cuda" and _is_broken(error):
            return Result(task.round, task.number, task.attempt, "killed", message=message)
        trace = "".join(traceback.format_exception(error))
        return Result(task.round, task.number, task.attempt, "error", message=message, traceback=trace)


def _forget(place: Path) -> None:
    """Removes a trial's checkpoint, and its folder where nothing else is kept in it."""
    shutil.rmtree(place / "checkpoint", ignore_errors=True)
    if place.is_dir() and not any(place.iterdir()):
        place.rmdir()


def _is_memory(error: Exception) -> bool:
    known = (MemoryError, MemoryPlanError, torch.OutOfMemoryError)
    words = ("allocate memory", "out of memory", "ALLOC_FAILED")
    return isinstance(error, known) or (isinstance(error, RuntimeError) and any(w in str(error) for w in words))


def _is_broken(error: Exception) -> bool:
    """Whether the card's context is lost, so that nothing computes in this process any more: the machine's fault."""
    return isinstance(error, RuntimeError) and any(
        w in str(error) for w in ("CUDA error", "CUBLAS_STATUS", "cuDNN error")
    )


def _peak_bytes(device: torch.device) -> int:
    if device.type == "cuda":
        return int(torch.cuda.max_memory_allocated(device))
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
