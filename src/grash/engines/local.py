"""Run trials in this process: from `Trial` to `TrialResult`, for every round and for the final training.

Every way in which a trial can end becomes a status; an engine reports `killed` for a worker that died. Trials run one
after the other or stacked, as many together as fit in memory: early rounds train dozens of models of a few thousand
entities, each of which would leave a GPU idle. A trial's numbers do not depend on the others in its stack
(docs/decisions/0027).
"""

from __future__ import annotations

import gc
import logging
import resource
import shutil
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.torch
import torch
from safetensors import SafetensorError
from torch import Tensor

from grash.engines.memory import choose_device, fits, free_disk
from grash.engines.trainer import (
    Ended,
    TrainingData,
    can_stack,
    checkpoint_fits,
    run_trainings,
    set_threads,
    stack_key,
)
from grash.errors import Diverged, FormatError, GrashError, OutputError, is_memory_error
from grash.evaluation.calibration import calibrate
from grash.evaluation.evaluate import evaluate
from grash.evaluation.ranking import default_work_bytes
from grash.files import verify_folder
from grash.formatting import format_bytes
from grash.kernels.storage import to_float32
from grash.models.store import StoredModel, save_model
from grash.reduction.subgraph import Subgraph
from grash.search.graphs import SearchGraphs
from grash.search.proposals import score_count
from grash.search.run_folder import cores_file, dataset_folder, read_dataset, read_settings
from grash.search.schedule import cost_of
from grash.search.trial import Status, Trial, TrialResult
from grash.training.checkpoint import TrainState, checkpoint_step, load_state, save_state, state_tensors
from grash.training.config import TrainConfig, make_config
from grash.training.loop import Progress, Training

log = logging.getLogger(__name__)
Report = Callable[[Trial, Progress], None]
_PER_RELATION = ("per_relation", "baseline_per_relation")  # a graph can have many: only in model.json
_LOST_CONTEXT = ("CUDA error", "Triton Error [CUDA]", "CUDA driver error", "CUBLAS_STATUS", "cuDNN error")


class TrialTimeout(Exception):
    """The trial took longer than its time limit."""


class TrialRunner:
    """Runs the trials of one search on one device; keeps a round's graph, triples and filter between them."""

    def __init__(
        self, graphs: SearchGraphs, folder: Path, *, device: str = "auto", timeout: float | None = None
    ) -> None:
        self.graphs, self.settings, self.folder = graphs, graphs.settings, Path(folder)
        self.device, self.timeout = choose_device(device), timeout
        self.stopping = False
        self._data: tuple[Subgraph, TrainingData] | None = None

    @classmethod
    def open(cls, folder: Path, *, device: str, timeout: float | None) -> TrialRunner:
        """Return the runner of a worker, which finds settings and graph in the run folder."""
        settings = read_settings(folder)
        cores = cores_file(dataset_folder(folder), settings.degree)
        graphs = SearchGraphs(read_dataset(folder), settings, cache=cores)
        return cls(graphs, folder, device=device, timeout=timeout)

    def run(self, trial: Trial, report: Report) -> TrialResult:
        """Run one trial. A KeyboardInterrupt, also from `report`, passes through after a checkpoint is saved."""
        [[result]] = self.run_many([trial], report)
        return result

    def run_many(self, trials: Sequence[Trial], report: Report) -> Iterator[list[TrialResult]]:
        """Yield results as trials end; those of trials that were trained together come together."""
        groups: dict[Any, list[Trial]] = {}
        for trial in trials:
            groups.setdefault((trial.fractions, trial.isolated, trial.work_share), []).append(trial)
        for group in groups.values():
            yield from self._run_on_graph(group, report)

    def fits(self, trials: Sequence[Trial]) -> bool:
        """Return whether memory allows to train these together, as far as they can be stacked."""
        stacks: dict[Any, list[TrainConfig]] = {}
        for trial in trials:
            config = make_config(trial.config)
            if can_stack(config, self.device):
                stacks.setdefault((trial.fractions, trial.isolated, *stack_key(config)), []).append(config)
        return all(
            len(configs) < 2 or fits(self._data_of(self.graphs.subgraph(*key[:2])).plan_memory(configs), self.device)
            for key, configs in stacks.items()
        )

    def stop(self) -> None:
        """Interrupt running trials at their next progress report."""
        self.stopping = True

    def close(self) -> None:
        """Free what the last round left on the device; the next user of the device has planned without it."""
        self._data = None

    def _run_on_graph(self, trials: list[Trial], report: Report) -> Iterator[list[TrialResult]]:
        """Run trials on one graph. Trials of a stack share its seconds."""
        began, waiting = self._start_clock(), list(trials)
        results: list[TrialResult] = []
        try:
            first = trials[0]
            set_threads(self.settings.threads_of(final=first.final, to_the_end=first.keep_best))
            graph = self.graphs.subgraph(trials[0].fractions, trials[0].isolated)
            trainings = [self._training(trial, graph, report) for trial in trials]
            share = trials[0].work_share
            work = None if share == 1 else max(1 << 16, int(default_work_bytes(self.device) * share))
            for ended in run_trainings(self._data_of(graph), trainings, work_bytes=work):
                seconds = (time.monotonic() - began) / len(ended)
                while ended:  # each is released once it has a result: the next stack needs its memory
                    i, state = ended.pop(0)
                    results.append(self._measured(self._result_of(trials[i], state, graph), seconds))
                    waiting.remove(trials[i])
                    del state
                done, results = results, []
                yield done
                began = self._start_clock()
        except OutputError:
            raise  # a full disk is not the trial's fault: the search stops
        except Exception as error:
            seconds = (time.monotonic() - began) / max(1, len(waiting))
            yield results + [self._measured(self._failure(trial, error), seconds) for trial in waiting]

    def _start_clock(self) -> float:
        if self.device.type == "cuda":
            torch.cuda.init()  # a new process has no statistics to reset yet
            torch.cuda.reset_peak_memory_stats(self.device)
        return time.monotonic()

    def _measured(self, result: TrialResult, seconds: float) -> TrialResult:
        return replace(result, seconds=seconds, peak_bytes=_peak_bytes(self.device), device=str(self.device))

    def _data_of(self, graph: Subgraph) -> TrainingData:
        if self._data is None or self._data[0] is not graph:
            self._data = None  # freed before the next one is built
            keys = tuple(torch.from_numpy(ids.copy()).long() for ids in (graph.entity_ids, graph.relation_ids))
            on_device = (keys[0].to(self.device), keys[1].to(self.device))
            self._data = (
                graph,
                TrainingData(
                    graph.dataset, self.device, keys=on_device, seed=self.settings.seed, metric=self.settings.metric
                ),
            )
        return self._data[1]

    def _training(self, trial: Trial, graph: Subgraph, report: Report) -> Training:
        folder = self.folder / trial.folder
        _discard_if_damaged(folder / "checkpoint")
        initialize, initial_step = self._initializer(trial, graph)
        deadline = None if trial.seconds_limit is None else time.monotonic() + trial.seconds_limit

        def watch(progress: Progress) -> None:
            if deadline is not None and not trial.in_full and time.monotonic() > deadline:
                raise TrialTimeout("The time for the rounds was over.")
            if self.timeout is not None and not trial.in_full and progress.seconds > self.timeout:
                raise TrialTimeout(f"It ran longer than its time limit of {self.timeout:g} s (--trial-timeout).")
            report(trial, progress)
            if self.stopping:
                raise KeyboardInterrupt

        return Training(
            make_config(trial.config),
            folder / "checkpoint",
            watch,
            initialize,
            initial_step,
            keep=(lambda state: self._keep(trial, state)) if trial.keep else None,
            belongs_to={"trial": [trial.round, trial.number, list(trial.fractions)]},
            placement=trial.placement,
            keep_best=trial.in_full,
            deadline=deadline if trial.in_full else None,
        )

    def _keep(self, trial: Trial, state: TrainState) -> None:
        """Save the state that a later training continues from. A finalist without one starts again, so a disk that is
        too full does not end the search; rounds of variant=epoch and warm starts need their states."""
        folder = self.folder / trial.folder / "state"
        needed = self.settings.variant == "epoch" or self.settings.warm_start != "off"
        n_bytes, free = state.nbytes, free_disk(folder)
        if needed or checkpoint_fits(n_bytes, free):
            save_for_next_round(state, folder, trial.keep_best)
        else:
            log.warning(
                "State of %s not saved: it needs %s, only %s is free. If its training is continued, it starts again.",
                trial.name, format_bytes(n_bytes), format_bytes(free),
            )  # fmt: skip

    def _initializer(self, trial: Trial, graph: Subgraph) -> tuple[Callable[[TrainState], None] | None, int]:
        """Return the function that fills a new state from the round before, and the step of that state."""
        if trial.continues is None:
            return None, 0
        source = self.folder / trial.continues
        if not trial.warm:
            return (lambda state: load_saved_state(state, source)), checkpoint_step(source) or 0
        earlier = self.graphs.subgraph(trial.fractions[:-1])
        return (lambda state: load_known_rows(state, source, earlier, graph)), 0

    def _result_of(self, trial: Trial, ended: Ended, graph: Subgraph) -> TrialResult:
        if isinstance(ended, Exception):
            return self._failure(trial, ended)
        try:
            return self._success(trial, ended, graph)
        except OutputError:
            raise
        except Exception as error:
            return self._failure(trial, error)

    def _success(self, trial: Trial, state: TrainState, graph: Subgraph) -> TrialResult:
        best, config = state.best_validation, make_config(trial.config)
        assert best is not None
        history = [v.to_json() for v in state.history]
        ended = history[-1]["epoch"] if trial.in_full else config.epochs  # it may have stopped early
        billed = self._billed(trial, "ok", min(ended, config.epochs))
        result = replace(billed, mrr=best.mrr, score=best.score, interval=state.interval, history=history)
        if not trial.final:
            waits = config.patience is None or state.validations_since_best < config.patience
            late = trial.seconds_limit is not None and round(ended, 2) < round(config.epochs, 2) and waits
            return replace(result, out_of_time=late)
        dataset = graph.dataset
        found = evaluate(state.model, dataset, seed=config.seed).to_dict() if len(dataset.test) else {}
        calibration = calibrate(state.model, dataset, seed=config.seed)
        stored = StoredModel(
            state.model, dataset, config.model_dump(), evaluation=found, history=history,
            calibration=None if calibration is None else calibration.to_dict(),
        )  # fmt: skip
        save_model(stored, self.folder / "model", overwrite=True)
        return replace(result, evaluation={k: v for k, v in found.items() if k not in _PER_RELATION})

    def _billed(self, trial: Trial, status: Status, epoch: float) -> TrialResult:
        """Return a result with the cost up to this epoch, without the epochs of the round that it continues."""
        data = self.graphs.subgraph(trial.fractions, trial.isolated).dataset
        positives = max(0, round(epoch * len(data.train)) - round(trial.epochs_before * len(data.train)))
        cost = float(cost_of(positives, self.settings, self.graphs.n_train)) * trial.relative_cost
        scores = positives * score_count(make_config(trial.config), data.n_entities)
        return trial.result(status, positives=positives, cost=cost if trial.billed else 0.0, scores=scores)

    def _failure(self, trial: Trial, error: Exception) -> TrialResult:
        if isinstance(error, Diverged):
            return replace(self._billed(trial, "diverged", error.epoch), message=str(error))
        if isinstance(error, TrialTimeout):
            return trial.result("timeout", message=str(error))
        self._data = None
        if is_memory_error(error):
            if self.device.type == "cuda":
                gc.collect()  # an error keeps alive what its frames held
                torch.cuda.empty_cache()
            return trial.result("out_of_memory", message=str(error).split("\n")[0])
        message = f"{type(error).__name__}: {error}".split("\n")[0]
        if self.device.type == "cuda" and lost_context(error):
            return trial.result("killed", message=message)
        return trial.result("error", message=message, traceback="".join(traceback.format_exception(error)))


class LocalEngine:
    """Runs trials in this process: one at a time, or with `stacked` as many together as fit into memory."""

    def __init__(self, runner: TrialRunner, *, stacked: bool = False) -> None:
        self.runner = runner
        self.max_running = 1024 if stacked else 1
        self.devices: tuple[str, ...] = (str(runner.device),)
        self._trials: list[Trial] = []  # started and not ended
        self._results: Iterator[list[TrialResult]] | None = None

    def start(self, trial: Trial) -> str | None:
        full = self._results is not None or len(self._trials) == self.max_running
        if full or not self.runner.fits([*self._trials, trial]):
            return None
        self._trials.append(trial)
        return self.devices[0]

    def wait(self, on_progress: Report) -> list[TrialResult | Trial]:
        """Return the next results; trials that are trained together end together."""
        if not self._trials:
            return []
        try:
            if self.runner.stopping:
                raise KeyboardInterrupt
            if self._results is None:
                self._results = self.runner.run_many(list(self._trials), on_progress)
            ended = next(self._results)
        except KeyboardInterrupt:
            if not self.runner.stopping:
                raise
            stopped, self._trials, self._results = self._trials, [], None
            return [*stopped]
        for result in ended:
            if result.status == "killed":  # every later trial in this process would fail
                raise GrashError(
                    f"The GPU {result.device} failed ({result.message}), and this process cannot use it any more. The "
                    f"search stops here. Continue it with `grash resume`."
                )
        keys = {(result.round, result.number) for result in ended}
        self._trials = [t for t in self._trials if (t.round, t.number) not in keys]
        if not self._trials:
            self._results = None
        return [*ended]

    def stop(self) -> None:
        self.runner.stop()

    def close(self) -> None:
        self._results = None
        self.runner.close()


def _peak_bytes(device: torch.device) -> int:
    if device.type == "cuda":
        return int(torch.cuda.max_memory_allocated(device))
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def lost_context(error: Exception) -> bool:
    """Return whether the GPU's context is lost: a fault of the machine, after which nothing computes in this process.

    CUDA and Triton raise RuntimeError for everything, so only the text of the message can tell.
    """
    return isinstance(error, RuntimeError) and any(text in str(error) for text in _LOST_CONTEXT)


def _discard_if_damaged(checkpoint: Path) -> None:
    """Remove a checkpoint whose files do not match their checksums, with a warning."""
    try:
        if checkpoint.is_dir() and any(checkpoint.iterdir()):
            verify_folder(checkpoint)
    except FormatError as error:
        log.warning("%s The checkpoint is discarded, and the trial is trained again from its start.", error)
        shutil.rmtree(checkpoint)


def save_for_next_round(state: TrainState, folder: Path, with_best: bool = False) -> None:
    """Save the state that a later round continues from, without the validations and best weights of this round, or
    with them."""
    bare = replace(state, loss_sum=0.0, loss_steps=0, seconds=0.0, interval=None)
    save_state(bare if with_best else replace(bare, history=[], best={}), folder, belongs_to={})


def load_saved_state(state: TrainState, folder: Path) -> None:
    """Continue where the earlier round stopped; the continued run equals an uninterrupted one bit for bit."""
    with _saved_state_errors(folder):
        load_state(state, folder, belongs_to={})


def load_known_rows(state: TrainState, folder: Path, earlier: Subgraph, graph: Subgraph) -> None:
    """Warm start: copy weights, and rows and optimizer state of entities and relations that the earlier graph had.

    A new entity starts at the mean of its known neighbors; a new relation keeps its initial values.
    """
    with _saved_state_errors(folder):
        verify_folder(folder)
        tensors = safetensors.torch.load_file(folder / "tensors.safetensors")
    device = state.model.entity.device
    entities = _shared_rows(earlier.entity_ids, graph.entity_ids)
    relations = _shared_rows(earlier.relation_ids, graph.relation_ids)
    if state.model.reciprocal:  # rows of inverse relations come after the others
        n_before, n_now = len(earlier.relation_ids), len(graph.relation_ids)
        relations = (
            np.concatenate([relations[0], relations[0] + n_before]),
            np.concatenate([relations[1], relations[1] + n_now]),
        )
    for name, tensor in state_tensors(state).items():
        source, target = entities if name.startswith("entity") else relations
        if name.startswith("weight"):
            tensor.copy_(tensors[name])
        elif tensor.ndim:
            tensor[torch.from_numpy(target).to(device)] = tensors[name][torch.from_numpy(source)].to(device)
    fill_new_entities(state.model.entity, graph.dataset.train, known=entities[1])


def fill_new_entities(table: Tensor, triples: np.ndarray, *, known: np.ndarray) -> None:
    """Set every row of table (E, D) that is not in `known` to the mean, over its triples, of its known neighbors.

    Rows without a known neighbor do not change.
    """
    is_known = torch.zeros(len(table), dtype=torch.bool)
    is_known[torch.from_numpy(known)] = True
    heads, tails = (torch.from_numpy(np.ascontiguousarray(triples[:, c])).long() for c in (0, 2))
    new = torch.cat([heads, tails])
    old = torch.cat([tails, heads])
    useful = ~is_known[new] & is_known[old]
    new, old = new[useful].to(table.device), old[useful].to(table.device)
    sums = torch.zeros_like(table, dtype=to_float32(table[:0]).dtype).index_add_(0, new, to_float32(table[old]))
    counts = torch.bincount(new, minlength=len(table)).to(sums.dtype)
    rows = counts > 0
    table[rows] = (sums[rows] / counts[rows, None]).to(table.dtype)


def _shared_rows(earlier: np.ndarray, now: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return (row in earlier, row in now) of the ids in both, ascending."""
    _, first, second = np.intersect1d(earlier, now, assume_unique=True, return_indices=True)
    return first, second


@contextmanager
def _saved_state_errors(folder: Path) -> Iterator[None]:
    try:
        yield
    except (GrashError, SafetensorError, OSError) as error:
        raise FormatError(f"{folder} is damaged ({error}): the trial that continues from it cannot run.") from error
