"""A search in Python: plan it, run it, or run its trials with a trainer of one's own.

search = grash.Search("world", model="complex", n_trials=16, out="runs/world")
print(search.plan())
result = search.run()          # goes on if it was begun
result.model.predict(head="Egypt", relation="neighbour_of")
"""

from __future__ import annotations

import json
import logging
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from grash.api.dataset import Source, load_dataset
from grash.api.result import SearchResult
from grash.data.dataset import DATASET_FILE, Dataset
from grash.engines.choose import check_engine, choose_engine
from grash.engines.driver import Driver, Watch, heeded
from grash.engines.plan import SearchPlan, plan_search
from grash.errors import ConfigError, InputError
from grash.kernels.device import restore_threads
from grash.report.progress import RunFiles
from grash.search.graphs import SearchGraphs
from grash.search.halving import RunTrials
from grash.search.proposals import given_proposals
from grash.search.run_folder import (
    SEARCH_FILE,
    RunFolder,
    check_folder,
    cores_file,
    dataset_folder,
    default_folder,
    read_dataset,
    read_search,
    read_settings,
)
from grash.search.schedule import cost_of
from grash.search.settings import make_settings
from grash.search.trial import Trial, TrialResult
from grash.training.config import TrainConfig, make_config, read_config, read_yaml_mapping
from grash.training.placement import PLACEMENTS

log = logging.getLogger(__name__)


class Search:
    """A search over a graph. Its folder is the whole truth about it: the same call, or `Search.open`, goes on."""

    def __init__(
        self,
        dataset: Source,
        *,
        out: str | Path | None = None,
        preset: str = "default",
        initial_configs: Iterable[TrainConfig | Mapping[str, Any] | str | Path] = (),
        from_run: str | Path | None = None,
        source: str | None = None,
        engine: str = "auto",
        devices: str = "auto",
        workers: int | None = None,
        trial_timeout: float | None = None,
        address: str | None = None,
        placement: str = "auto",
        **settings: Any,
    ) -> None:
        """settings: see `grash.search.settings.SearchSettings` (model, budget, n_trials, eta, variant, space, …).

        from_run: the best configurations of an earlier search enter the first round, beside initial_configs. address:
        of a Ray cluster, for engine="ray". placement: where the final model's entities lie, as in `grash.train`."""
        self.source = source if source is not None else "" if isinstance(dataset, Dataset) else str(dataset)
        self.dataset = dataset if isinstance(dataset, Dataset) else load_dataset(dataset)
        initial = [initial_of(c) for c in initial_configs]
        given = {**settings, "initial": initial} if initial else dict(settings)
        if "space" in given:
            given["space"] = resolved_space(given["space"])
        self.settings = make_settings(given, preset=preset)
        given_proposals(self.settings, self.dataset.n_entities)  # says now what would not fit later
        if from_run is not None:
            taken = self._fitting(best_of_run(from_run))[: self.settings.n_trials - len(initial)]
            self.settings = self.settings.model_copy(update={"initial": (*self.settings.initial, *taken)})
        self.folder = Path(out) if out is not None else default_folder(self.dataset, self.settings)
        self.engine, self.devices, self.workers, self.trial_timeout = engine, devices, workers, trial_timeout
        self.address, self.placement = address, placement
        if placement not in PLACEMENTS:
            raise ConfigError(f"placement={placement!r} is unknown: give {', '.join(PLACEMENTS)}.")
        if trial_timeout is not None and not trial_timeout > 0:
            raise ConfigError(f"trial_timeout={trial_timeout}: give a number of seconds above 0.")
        self._asked: tuple[RunFolder, Driver] | None = None
        self._planned = False

    def _fitting(self, entries: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """Those of another run's configurations that lie in this search's space; the others are named."""
        fitting = []
        for entry in entries:
            try:
                given_proposals(self.settings.model_copy(update={"initial": (entry,)}), self.dataset.n_entities)
                fitting.append(entry)
            except ConfigError as error:
                log.warning("A configuration of the other run is left out: %s", error)
        return fitting

    @classmethod
    def open(cls, folder: str | Path, **options: Any) -> Search:
        """The search of a run folder; options: engine, devices, workers, trial_timeout, address, placement."""
        settings = read_settings(Path(folder))
        search = cls(read_dataset(Path(folder)), out=folder, **options)
        search.settings, search.source = settings, read_search(Path(folder))["dataset"]["source"]
        return search

    @cached_property
    def graphs(self) -> SearchGraphs:
        encoded = dataset_folder(self.folder) if self.begun else Path(self.source or ".")
        cores = cores_file(encoded, self.settings.degree) if (encoded / DATASET_FILE).is_file() else None
        return SearchGraphs(self.dataset, self.settings, cache=cores)

    def plan(self, *, probe: bool = True) -> SearchPlan:
        """Every round before anything runs; with `probe`, seconds from a short measurement on this machine."""
        device = "auto" if self.engine == "ray" else self.devices.split(",")[0]  # a cluster's cards are elsewhere
        check_folder(self.folder, self.settings, self.dataset)
        with restore_threads():
            found = plan_search(self.graphs, device=device, probe=probe, placement=self.placement, folder=self.folder)
        self._planned = True
        return found

    def run(
        self, *, watch: Watch | None = None, max_seconds: float | None = None, extend: Mapping[str, Any] | None = None
    ) -> SearchResult:
        """Runs the search to its end, or goes on with it. extend: n_trials or budget, larger than before. What `watch`
        raises stops the search and is raised here; the next `run` goes on."""
        if max_seconds is not None and not max_seconds >= 0:
            raise ConfigError(f"max_seconds={max_seconds}: give 0 or more seconds.")
        check_engine(self.engine, self.devices, self.workers, threads=self.settings.threads, address=self.address)
        self._check_plan()
        with restore_threads(), heeded(watch) as told, RunFolder(self.folder) as folder:
            folder.open_search(self.settings, self.dataset, self.source)
            self.graphs.keep_cores(cores_file(dataset_folder(self.folder), self.settings.degree))
            engine = choose_engine(
                self.engine, self.graphs, self.folder, devices=self.devices, workers=self.workers,
                timeout=self.trial_timeout, address=self.address,
            )  # fmt: skip
            files = RunFiles(self.folder, told)
            try:
                driver = Driver(
                    folder, self.graphs, engine, source=self.source, watch=files.watch, max_seconds=max_seconds,
                    placement=self.placement,
                )  # fmt: skip
                if extend:
                    driver.extend(**extend)
                return SearchResult(self.folder, driver.run())
            finally:
                engine.close()
                files.write()

    def _check_plan(self) -> None:
        """Says what cannot be searched before anything is written."""
        if not self.begun and not self._planned:
            self.plan(probe=False)

    def ask(self) -> AskedTrial | None:
        """The next trial for a trainer of one's own; None while others must be told first, or at the end."""
        driver = self._driver()
        action = driver.advance()
        if not isinstance(action, RunTrials):
            return None
        running = driver.state.rounds[action.round - 1].running
        free = [n for n in action.numbers if n not in running]
        if not free:
            return None
        task = driver.trial_task(action.round, free[0])
        driver.started(task, "ask")
        return AskedTrial(task, make_config(task.config), self.graphs.subgraph(task.fractions, task.isolated).dataset)

    def tell(self, trial: AskedTrial, mrr: float | None, *, seconds: float = 0.0, message: str = "") -> None:
        """The score of a trial that was asked for; None says that it diverged. All its epochs are billed, also where an
        engine's trial would go on from the round before: a trainer outside begins anew."""
        driver = self._driver()
        past = driver.state.rounds[trial.task.round - 1]
        plan, name = past.plan, trial.task.name
        cost = float(cost_of(plan.positives, self.settings, self.graphs.n_train)) * trial.task.relative_cost
        if mrr is not None and not (isinstance(mrr, int | float) and math.isfinite(mrr)):
            raise InputError(f"mrr={mrr} of {name} is no score: give a number, or None if the training diverged.")
        if trial.number in past.results:
            raise InputError(f"{name[0].upper()}{name[1:]} has been told already: ask for the next trial.")
        driver.settle(
            TrialResult(
                trial.task.round,
                trial.task.number,
                trial.task.attempt,
                "diverged" if mrr is None else "ok",
                mrr=None if mrr is None else float(mrr),
                positives=0 if mrr is None else plan.positives,
                cost=0.0 if mrr is None else cost,
                seconds=seconds,
                device="ask",
                message=message,
            )
        )

    def close(self) -> None:
        """Gives the folder free after ask and tell; the next `ask`, of any process, goes on."""
        if self._asked is not None:
            folder, driver = self._asked
            driver.ledger.close()
            folder.__exit__()
            self._asked = None

    @property
    def result(self) -> SearchResult:
        """What is recorded so far."""
        return SearchResult.load(self.folder)

    @property
    def begun(self) -> bool:
        return (self.folder / SEARCH_FILE).is_file()

    def _driver(self) -> Driver:
        if self._asked is None:
            self.settings = self.settings.model_copy(update={"final_train": False})
            self.__dict__.pop("graphs", None)
            self._check_plan()
            folder = RunFolder(self.folder).__enter__()
            try:
                folder.open_search(self.settings, self.dataset, self.source)
                driver = Driver(folder, self.graphs, _NoEngine(), source=self.source)
                driver.begin()
            except BaseException:
                folder.__exit__()
                raise
            self._asked = (folder, driver)
        return self._asked[1]


@dataclass(frozen=True, eq=False)
class AskedTrial:
    """A trial for a trainer of one's own: train `config` on `dataset.train`, give its MRR on `dataset.valid`."""

    task: Trial
    config: TrainConfig
    dataset: Dataset

    @property
    def round(self) -> int:
        return self.task.round

    @property
    def number(self) -> int:
        return self.task.number


class _NoEngine:
    """Stands in where trials are asked for."""

    n_slots = 0
    devices: tuple[str, ...] = ("cpu",)

    def start(self, task: Trial) -> str | None:
        return None

    def wait(self, tell: Callable[..., None]) -> list[TrialResult | Trial]:
        return []

    def stop(self) -> None:
        pass

    def close(self) -> None:
        pass


# = What a user gives a search becomes settings: files of settings and spaces, configurations, an earlier run.


def resolved_space(given: Any) -> Any:
    """A space as it is kept in search.yaml: its name, or its parameters, read now from the file that was given."""
    from grash.search.named_spaces import SPACES, check_there
    from grash.search.space import as_dict, read_space

    if isinstance(given, str | Path) and str(given) not in SPACES:
        check_there(given)
        return as_dict(read_space(Path(given)).verified(source=str(given)))
    return given


def settings_of_file(path: str | Path) -> tuple[dict[str, Any], list[str]]:
    """The settings of a YAML file of ours, or of a GraSH search file of LibKGE, and what of it was ignored."""
    from grash.search.libkge import is_libkge_search, libkge_search
    from grash.search.space import as_dict

    content = read_yaml_mapping(Path(path))
    if not is_libkge_search(content):
        return content, []
    read = libkge_search(content, str(path))
    settings = {"preset": "paper", **read.settings, "space": as_dict(read.space), "proposals": "random"}
    settings.pop("dataset", None)
    return settings, list(read.ignored)


def best_of_run(folder: str | Path, *, count: int = 4) -> list[dict[str, Any]]:
    """The best configurations of an earlier search, as initial ones: those of its highest rounds first."""
    state = SearchResult.load(folder).state
    chosen: list[int] = []
    for past in reversed(state.rounds):
        chosen += [number for number in past.best(len(past.results)) if number not in chosen]
    if not chosen:
        raise InputError(f"{folder} has no scored trial to take over.")
    return [initial_of(state.configurations[n].values, f"run:{Path(folder).name}") for n in chosen[:count]]


def initial_of(given: TrainConfig | Mapping[str, Any] | str | Path, origin: str | None = None) -> dict[str, Any]:
    """Values and origin of a configuration from a record, a YAML file or a mapping, less what belongs to a run."""
    if isinstance(given, str | Path):
        values, origin = _read_either(Path(given)).model_dump(exclude_unset=True), f"user:{Path(given).name}"
    elif isinstance(given, TrainConfig):
        values = given.model_dump(exclude_unset=True)
    else:
        values = dict(given)
    of_a_run = ("epochs", "valid_every", "patience", "seed", "variation", "precision", "storage")
    kept = {k: v for k, v in values.items() if k not in of_a_run}
    return {"values": json.loads(json.dumps(kept)), "origin": origin or "user"}


def _read_either(path: Path) -> TrainConfig:
    """The configuration in a YAML file of ours, or of a training of LibKGE."""
    content = read_yaml_mapping(path)
    if any("." in str(key) or isinstance(value, dict) for key, value in content.items()):
        from grash.search.libkge import read_libkge_config

        return read_libkge_config(path)
    return read_config(path)
