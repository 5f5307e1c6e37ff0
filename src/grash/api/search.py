"""Plan and run a search in Python, run its trials with your own trainer, and read what is recorded of it.

search = grash.Search("world", model="complex", n_trials=16, out="runs/world")
print(search.plan())
result = search.run()          # resumes if it was started before
result.model.predict(head="Egypt", relation="neighbour_of")
"""

from __future__ import annotations

import json
import logging
import math
import weakref
from collections.abc import Iterable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from grash.api.model import Model
from grash.data.dataset import DATASET_FILE, Dataset
from grash.data.load import Source, as_dataset
from grash.engines.choose import (
    affords_one_vs_all,
    check_engine,
    choose_engine,
    fitting_models,
    largest_dims,
    only_in_this_process,
    trials_at_once,
)
from grash.engines.driver import Driver
from grash.engines.local import LocalEngine, TrialRunner
from grash.engines.memory import choose_device
from grash.engines.plan import SearchPlan, measure_machines, plan_search
from grash.engines.prediction_time import measure_predictions, prediction_notes
from grash.errors import ConfigError, GrashError, InputError
from grash.formatting import html_table, parse_size
from grash.kernels.device import restore_threads
from grash.kernels.storage import PLACEMENTS
from grash.keywords import OpenKeywords, SearchKeywords, with_keywords
from grash.optional import optional_import
from grash.report.live import is_interactive, live_display
from grash.report.progress import RunFiles
from grash.report.summary import status_of
from grash.search.callbacks import Callback, OnChange
from grash.search.graphs import SearchGraphs
from grash.search.ledger import LEDGER_FILE, RoundState, SearchState, read_ledger
from grash.search.proposals import given_proposals, scores_of_models
from grash.search.run_folder import (
    SEARCH_FILE,
    RunFolder,
    check_folder,
    check_same,
    cores_file,
    dataset_folder,
    default_folder,
    read_dataset,
    read_search,
    read_settings,
)
from grash.search.schedule import cost_of
from grash.search.settings import SearchSettings, make_settings, named_settings
from grash.search.time_limit import CHOSEN, LEVELS, Choice, TimeLimit, choose_settings, measured_models
from grash.search.trial import Trial
from grash.training.config import TrainConfig, make_config, read_config
from grash.yaml_files import read_yaml, read_yaml_mapping

if TYPE_CHECKING:
    from typing_extensions import Unpack

log = logging.getLogger(__name__)

_RUN_FIELDS = ("epochs", "valid_every", "patience", "seed", "variation", "precision", "storage")  # of no configuration

_IN_THIS_PROCESS = "trials run in this process, one after another: workers cannot import the model {}"

_OPEN_OPTIONS = ("engine", "device", "workers", "trial_timeout", "address", "placement")


class Search:
    """A search over a graph. All of its state is in its folder: the same call, or `Search.open`, resumes it."""

    @with_keywords(SearchKeywords)
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
        device: str = "auto",
        workers: int | None = None,
        trial_timeout: float | None = None,
        address: str | None = None,
        placement: str = "auto",
        max_model_size: str | float | None = None,
        **settings: Unpack[SearchKeywords],
    ) -> None:
        """settings: see `grash.search.settings.SearchSettings` (model, budget, n_trials, eta, variant, space, …).

        initial_configs: configurations that enter the first round. from_run: folder of an earlier search whose best
        configurations enter it, too. device: auto, or names separated by commas (cuda:0,cuda:1). address: of a Ray
        cluster, for engine="ray". placement: where the final model's entities are stored, as in `grash.train`.
        max_model_size: bytes, or "200M", that the tables of every model must fit into; lowers dimensions, as does
        `max_prediction_ms`, what a question may take on this machine. With `time` (seconds, or "90s", "10m", "2h"),
        the search, its final training and the test end that long from now: settings that are not given are chosen
        after a few seconds of measuring.
        """
        time = settings.pop("time", None)
        limit = None if time is None else TimeLimit.of(time)
        self.source = source if source is not None else "" if isinstance(dataset, Dataset) else str(dataset)
        self.dataset = as_dataset(dataset)
        initial = [initial_of(c) for c in initial_configs]
        given = {**settings, "initial": initial} if initial else dict(settings)
        if "space" in given:
            given["space"] = resolved_space(given["space"])
        if given.get("model", given.get("models")) in ("auto", ["auto"], ("auto",)):
            given.pop("model", None)
            given["models"] = self._fitting_models(given, device)
        if max_model_size is not None:
            models = make_settings({k: v for k, v in given.items() if k in ("model", "models")}).models
            models = LEVELS[-1].models if limit is not None and not {"model", "models"} & given.keys() else models
            given["max_dims"] = largest_dims(self.dataset, models, parse_size(max_model_size, "max_model_size"))
        self.engine, self.device, self.workers, self.trial_timeout = engine, device, workers, trial_timeout
        self.address, self.placement = address, placement
        self.choice: Choice | None = None  # what the time limit chose
        self.limit, found = limit, None
        if limit is not None or given.get("max_prediction_ms") is not None:  # measured once, when a search is new
            given = named_settings(given | ({} if limit is None else {"time": limit.seconds}), preset=preset)
            if found := begun_search(self.dataset, given, out):
                out, given, self.limit = *found, None
            else:
                given = self._with_predictions(given) if given.get("max_prediction_ms") is not None else given
                given = given if limit is None else self._choose(given, limit)
        self.settings = self._with_one_vs_all(make_settings(given, preset=preset), out, device)
        sizes = self.dataset.n_entities, len(self.dataset.train)
        given_proposals(self.settings, *sizes)  # raises now for what would not fit later
        if from_run is not None and not found:
            taken = self._fitting(best_of_run(from_run))[: self.settings.n_trials - len(initial)]
            self.settings = self.settings.model_copy(update={"initial": (*self.settings.initial, *taken)})
        self.folder = Path(out) if out is not None else default_folder(self.dataset, self.settings)
        if placement not in PLACEMENTS:
            raise ConfigError(f"placement={placement!r} is unknown: give {', '.join(PLACEMENTS)}.")
        if trial_timeout is not None and not trial_timeout > 0:
            raise ConfigError(f"trial_timeout={trial_timeout}: give a number of seconds above 0.")
        self._graphs: SearchGraphs | None = None
        self._asking: tuple[RunFolder, Driver] | None = None
        self._planned = False

    def _with_one_vs_all(self, settings: SearchSettings, out: str | Path | None, device: str) -> SearchSettings:
        """Decide once, when a search is new, whether its space compares with all entities of a large graph."""
        if settings.one_vs_all is not None or settings.time is not None:  # a time was chosen for without
            return settings
        if out is not None and (Path(out) / SEARCH_FILE).is_file():
            return settings.model_copy(update={"one_vs_all": read_settings(Path(out)).one_vs_all})
        afforded = affords_one_vs_all(settings, self.dataset, device)
        return settings.model_copy(update={"one_vs_all": True}) if afforded else settings

    @classmethod
    @with_keywords(OpenKeywords)
    def open(cls, folder: str | Path, **options: Unpack[OpenKeywords]) -> Search:
        """Return the search of a run folder; options: engine, device, workers, trial_timeout, address, placement."""
        if refused := [name for name in options if name not in _OPEN_OPTIONS]:
            raise ConfigError(f"{folder} is a run folder with its own settings: leave out {', '.join(refused)}.")
        settings = read_settings(Path(folder)).model_dump(mode="json")
        source = read_search(Path(folder))["dataset"]["source"]
        return cls(read_dataset(Path(folder)), out=folder, source=source, **options, **settings)

    @property
    def graphs(self) -> SearchGraphs:
        """The subgraphs of its rounds, computed when they are needed."""
        if self._graphs is None:
            encoded = dataset_folder(self.folder) if self.begun else Path(self.source or ".")
            cores = cores_file(encoded, self.settings.degree) if (encoded / DATASET_FILE).is_file() else None
            self._graphs = SearchGraphs(self.dataset, self.settings, cache=cores)
        return self._graphs

    @property
    def result(self) -> SearchResult:
        """What is recorded so far."""
        return SearchResult.load(self.folder)

    @property
    def begun(self) -> bool:
        return (self.folder / SEARCH_FILE).is_file()

    def __repr__(self) -> str:
        s = self.settings
        planned = f"{', '.join(s.models)}, n_trials={s.n_trials}, max_epochs={s.max_epochs:g}, budget={s.budget:g}"
        return f"Search({self.dataset!r}, {planned}; {str(self.folder)!r}, {self._status()})"

    def _repr_html_(self) -> str:
        given = {"dataset": self.dataset, "folder": self.folder}
        given |= self.settings.model_dump(mode="json", exclude_defaults=True)
        rows = [(name, str(value)[:80]) for name, value in given.items()]
        return html_table(f"Search, {self._status()}", ("setting", "value"), rows)

    def _status(self) -> str:
        return status_of(self.result.state) if self.begun else "not started"

    def plan(self, *, probe: bool = True) -> SearchPlan:
        """Return every round before anything runs; with `probe`, seconds from a short measurement on this machine."""
        device = "auto" if self.engine == "ray" else self.device.split(",")[0]  # a cluster's GPUs are elsewhere
        check_folder(self.folder, self.settings, self.dataset)
        models = self.settings.models
        at_once = trials_at_once(self.engine, self.device, self.workers, threads=self.settings.threads, models=models)
        with restore_threads():
            plan = plan_search(
                self.graphs, device=device, probe=probe, placement=self.placement, folder=self.folder, at_once=at_once
            )
        self._planned = True
        notes = [*plan.notes, *prediction_notes(self.settings)]
        if self.engine == "auto" and (here := only_in_this_process(models)):
            notes.append(_IN_THIS_PROCESS.format(", ".join(here)))
        return replace(plan, notes=tuple(notes))

    def run(
        self,
        *,
        callbacks: Iterable[Callback] = (),
        progress: bool | None = None,
        max_seconds: float | None = None,
        extend: Mapping[str, Any] | None = None,
        time: str | float | TimeLimit | None = None,
    ) -> SearchResult:
        """Run the search to its end, or resume it.

        callbacks: called while it runs (`grash.Callback`). An error that one raises stops the search and is raised
        here; the next `run` resumes it. progress: whether to show it (default: in terminals and notebooks).
        max_seconds: stop then, to be resumed later. extend: n_trials or budget, larger than before. time: of a search
        within a time that is resumed, replaces what is left of it.
        """
        if max_seconds is not None and not max_seconds >= 0:
            raise ConfigError(f"max_seconds={max_seconds}: give 0 or more seconds.")
        if time is not None and (self.settings.time is None or not self.begun):
            raise ConfigError("run(time=…) is for resuming a search within a time: give time to Search for a new one.")
        if extend and self.settings.time is not None:
            raise ConfigError("A search within a time has no budget to extend: start a new search with more time.")
        limit = TimeLimit.of(time) if time is not None else self.limit
        check_engine(
            self.engine, self.device, self.workers, threads=self.settings.threads, models=self.settings.models,
            address=self.address,
        )  # fmt: skip
        self._check_plan()
        with restore_threads(), RunFolder(self.folder) as folder:
            folder.open_search(self.settings, self.dataset, self.source)
            self.graphs.keep_cores(cores_file(dataset_folder(self.folder), self.settings.degree))
            engine = choose_engine(
                self.engine, self.graphs, self.folder, device=self.device, workers=self.workers,
                timeout=self.trial_timeout, address=self.address,
            )  # fmt: skip
            files = RunFiles(self.folder)
            with ExitStack() as stack:
                quiet = progress is False or (progress is None and not is_interactive())
                live = OnChange(stack.enter_context(live_display(quiet)))
                stack.callback(files.write)
                stack.callback(engine.close)
                driver = Driver(
                    folder, self.graphs, engine, source=self.source, callbacks=(files, live, *callbacks),
                    max_seconds=max_seconds, placement=self.placement, choice=self.choice, limit=limit,
                )  # fmt: skip
                stack.callback(driver.close)
                if extend:
                    driver.extend(**extend)
                return SearchResult(self.folder, driver.run())

    def ask(self) -> AskedTrial | None:
        """Return the next trial for your own trainer; None while others need their result first, or at the end."""
        driver = self._asking_driver()
        action = driver.advance()
        if action is None:
            return None
        running = driver.state.rounds[action.round - 1].running
        waiting = [n for n in action.numbers if n not in running]
        if not waiting:
            return None
        trial = driver.make_trial(action.round, waiting[0])
        driver.record_start(trial, "ask")
        dataset = self.graphs.subgraph(trial.fractions, trial.isolated).dataset
        return AskedTrial(trial, make_config(trial.config), dataset)

    def tell(self, asked: AskedTrial, mrr: float | None, *, seconds: float = 0.0, message: str = "") -> None:
        """Record the score of a trial that `ask` returned; None if its training diverged.

        All its epochs are billed, also if an engine's trial would continue from the round before: your trainer starts
        from new weights.
        """
        driver, trial = self._asking_driver(), asked.trial
        past = driver.state.rounds[trial.round - 1]
        if mrr is not None and not (isinstance(mrr, int | float) and math.isfinite(mrr)):
            raise InputError(f"mrr={mrr} of {trial.name} is no score: give a number, or None if the training diverged.")
        if trial.number in past.results:
            name = trial.name[0].upper() + trial.name[1:]
            raise InputError(f"{name} already has a result: ask for the next trial.")
        if mrr is None:
            result = trial.result("diverged")
        else:
            positives = past.plan.positives
            cost = float(cost_of(positives, self.settings, self.graphs.n_train)) * trial.relative_cost
            result = trial.result("ok", mrr=float(mrr), positives=positives, cost=cost)
        driver.record_result(replace(result, seconds=seconds, device="ask", message=message))

    def close(self) -> None:
        """Release the folder after `ask` and `tell`; the next `ask`, in any process, resumes the search."""
        if self._asking is not None:
            folder, driver = self._asking
            driver.close()
            folder.__exit__()
            self._asking = None

    def _fitting(self, entries: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """Return the configurations of another run that are in this search's space; log the others."""
        fitting = []
        for entry in entries:
            try:
                trying = self.settings.model_copy(update={"initial": (entry,)})
                given_proposals(trying, self.dataset.n_entities, len(self.dataset.train))
                fitting.append(entry)
            except ConfigError as error:
                log.warning("A configuration of the other run is left out: %s", error)
        return fitting

    def _fitting_models(self, given: Mapping[str, Any], device: str) -> tuple[str, ...]:
        """Return what --model auto stands for."""
        chosen = named_settings({k: v for k, v in given.items() if k not in ("model", "models")})
        dim = chosen.get("dim", SearchSettings.model_fields["dim"].default)
        return fitting_models(self.dataset, {"dim": dim, **chosen.get("fixed", {})}, device.split(",")[0])

    def _with_predictions(self, given: dict[str, Any]) -> dict[str, Any]:
        """Return the settings with the measured milliseconds of questions, without the models that are too slow."""
        if self.engine == "ray":
            raise ConfigError(
                "max_prediction_ms measures this machine, and engine='ray' uses others: give max_model_size instead."
            )
        settings, device = make_settings(given), choose_device(self.device.split(",")[0].strip() or "auto")
        models = settings.models
        if settings.time is not None:
            models = measured_models(settings.time, given)
            largest = max(level.dim for level in LEVELS)
            settings = settings if "dim" in given else settings.model_copy(update={"dim": largest})
        there = settings.prediction_ms  # given, perhaps also of other models
        found = {m: there[m] if m in there else measure_predictions(settings, m, self.dataset, device) for m in models}
        settings = settings.model_copy(update={"models": models, "prediction_ms": found})
        fast = tuple(model for model in models if settings.largest_dim(model))
        if not fast:
            raise ConfigError(f"No model is fast enough: {'; '.join(prediction_notes(settings))}. Allow more.")
        for slow in prediction_notes(settings, too_slow=True):
            log.warning("%s", slow)
        chosen = {"models": fast} if "models" in given else {}  # else a time chooses among them
        return {**given, **chosen, "prediction_ms": settings.prediction_ms}

    def _choose(self, given: dict[str, Any], limit: TimeLimit) -> dict[str, Any]:
        """Return the settings, with those that the time allows after measuring this machine."""
        if "budget" in given:
            raise ConfigError("time and budget were given, and the time decides the budget: leave one of them out.")
        if self.engine == "ray":
            raise ConfigError(
                "time measures this machine, and engine='ray' uses others: give epochs and trials instead."
            )
        first = make_settings(given)  # checks what is given
        fixed = {name: getattr(first, name) for name in CHOSEN if name in given}
        measured, graphs = measured_models(limit.seconds, fixed), SearchGraphs(self.dataset, first)
        models = tuple(model for model in measured if first.largest_dim(model)) or measured
        devices = check_engine(self.engine, self.device, self.workers, threads=1, models=models)
        with restore_threads():
            machines = measure_machines(
                graphs, models, device=devices[0], workers=1 if self.engine == "sequential" else len(devices),
                seconds=min(5.0, 0.04 * limit.seconds), dim=fixed.get("dim"),
            )  # fmt: skip
            sizes = graphs.sizes()
        counted = self.limit = limit.without_compiling()
        most = min(first.largest_dim(model) for model in models)
        machines = [
            replace(m, max_dim=min(m.max_dim, most))
            for m in machines
            if self.engine in ("auto", m.engine) or m.engine == "auto"
        ]
        self.choice = choose_settings(
            limit.seconds, sizes, machines, scores_of_models(first, models, sizes.n_entities, sizes.n_train), fixed,
            used=counted.seconds - counted.left, compiled=counted.began - limit.began, final_train=first.final_train,
            n_initial=len(first.initial), too_slow=set(measured) - set(models),
        )  # fmt: skip
        if self.engine == "auto":
            self.engine = self.choice.machine.engine
        return {**given, **self.choice.settings}

    def _check_plan(self) -> None:
        """Raise for what cannot be searched, before anything is written."""
        if not self.begun and not self._planned:
            self.plan(probe=False)

    def _asking_driver(self) -> Driver:
        if self._asking is None:
            if self.settings.time is not None:
                raise ConfigError(
                    "time= plans for grash's own trainings: leave it out to ask for trials and tell scores."
                )
            self.settings = self.settings.model_copy(update={"final_train": False, "finalists": 0})
            self._graphs = None  # they depend on the settings
            self._check_plan()
            folder = RunFolder(self.folder).__enter__()
            try:
                folder.open_search(self.settings, self.dataset, self.source)
                engine = LocalEngine(TrialRunner(self.graphs, self.folder, device="cpu"))  # of which it asks nothing
                driver = Driver(folder, self.graphs, engine, source=self.source)
                driver.begin()
            except BaseException:
                folder.__exit__()
                raise
            self._asking = (folder, driver)
            weakref.finalize(self, folder.__exit__)  # of a search that nobody closes
        return self._asking[1]


@dataclass(frozen=True, eq=False)
class SearchResult:
    """What is recorded of a search: the state, and the model if it has been trained."""

    folder: Path
    state: SearchState

    @classmethod
    def load(cls, folder: str | Path) -> SearchResult:
        read_search(Path(folder))
        path = Path(folder) / LEDGER_FILE
        events = read_ledger(path) if path.exists() else []
        return cls(Path(folder), SearchState.replay(events))

    def __repr__(self) -> str:
        return f"SearchResult({str(self.folder)!r}: {', '.join(self._parts())})"

    def _parts(self) -> list[str]:
        """Return status, cost, best configuration and test score."""
        best, final = self.state.incumbent(), self.state.final
        parts = [status_of(self.state), f"{self.state.spent:.3g} of {self.state.budget:g} full runs"]
        if best is not None:
            parts.append(f"configuration {best.number}: valid MRR {best.mrr:.4f} in round {best.round}")
        if final is not None and final.evaluation:
            parts.append(f"test MRR {final.evaluation['both']['mrr']:.4f}")
        return parts

    def _repr_html_(self) -> str:
        columns = ("round", "trials", "entities", "triples", "epochs", "best MRR", "cost")
        status, *found = self._parts()
        rows = [_round_row(r) for r in self.state.rounds]
        return html_table(f"Result, {status}", columns, rows, below="\n".join([*found, str(self.folder)]))

    @property
    def best_config(self) -> TrainConfig:
        """The winner, or while the search runs the best configuration so far."""
        best = self.state.incumbent()
        number = self.state.winner if self.state.winner is not None else None if best is None else best.number
        if number is None:
            raise InputError(f"{self.folder} has no scored trial yet.")
        return make_config(self.state.configurations[number].values)

    @property
    def model(self) -> Model:
        self._check_folder()
        if not (self.folder / "model" / "model.json").is_file():
            raise InputError(f"{self.folder} has no trained model: let the search finish, or train best.yaml.")
        return Model.load(self.folder / "model")

    def trials(self) -> list[dict[str, Any]]:
        """Return one row per trial and round."""
        from grash.report.summary import trial_rows

        return trial_rows(self.state)

    def trials_dataframe(self) -> Any:
        """Return the same as a polars data frame; `.to_pandas()` converts it."""
        polars = optional_import("polars", extra="parquet", purpose="A data frame of trials")
        return polars.DataFrame(self.trials(), infer_schema_length=None)

    def report(self) -> Path:
        """Write report.html again and return its path."""
        from grash.report.page import write_report

        self._check_folder()
        return write_report(self.folder)

    def _check_folder(self) -> None:
        if not self.folder.is_dir():
            raise InputError(
                f"The run folder {self.folder} was moved or deleted. KGEmbedder keeps it if out= is given; without, "
                f"its model_ is the model."
            )


def _round_row(past: RoundState) -> list[Any]:
    plan, best = past.plan, next((past.results[n].mrr for n in past.best(1)), None)
    sizes = [plan.n_entities, plan.n_train, f"{plan.epochs:.3g}"]
    return [plan.number, len(past.results), *sizes, best, f"{past.cost:.3g}"]


@dataclass(frozen=True, eq=False)
class AskedTrial:
    """A trial for your own trainer: train `config` on `dataset.train`, and tell its MRR on `dataset.valid`."""

    trial: Trial
    config: TrainConfig
    dataset: Dataset

    @property
    def round(self) -> int:
        return self.trial.round

    @property
    def number(self) -> int:
        return self.trial.number


def begun_search(dataset: Dataset, given: dict[str, Any], out: str | Path | None) -> tuple[Path, dict[str, Any]] | None:
    """Return folder and settings of a measured search that was begun with what is given; None if there is none.

    Without a folder, it is an unfinished one among the default folders.
    """
    folders = sorted(Path("runs").glob(f"{dataset.name}-*-search*".replace("/", "-"))) if out is None else [Path(out)]
    for folder in folders:
        if not (folder / SEARCH_FILE).is_file():
            continue
        try:
            there = read_settings(folder)
            now = make_settings({**there.model_dump(), **given, **_kept(there, make_settings(given))})
            fast = tuple(model for model in now.models if now.largest_dim(model))  # the others were left out there
            check_same(folder, now.model_copy(update={"models": fast}), dataset)
        except GrashError:
            if out is not None:
                raise
            continue
        if out is not None or not SearchResult.load(folder).state.finished:
            return folder, there.model_dump(mode="json")
    return None


def _kept(there: SearchSettings, asked: SearchSettings) -> dict[str, Any]:
    """Return what a begun search measured, decided, or took from another run, with what is asked for on top of it."""
    n = len(asked.initial)
    taken = there.initial[:n] == asked.initial and all(e["origin"].startswith("run:") for e in there.initial[n:])
    return {
        "prediction_ms": {model: asked.prediction_ms.get(model, ms) for model, ms in there.prediction_ms.items()},
        "one_vs_all": there.one_vs_all if asked.one_vs_all is None else asked.one_vs_all,
        "initial": there.initial if taken or not n else asked.initial,
    }


def resolved_space(given: Any) -> Any:
    """Return a space as search.yaml stores it: its name, or its parameters, read now if a file is given."""
    from grash.interop.libkge import is_libkge_search, libkge_search
    from grash.search.named_spaces import SPACES, check_space_exists
    from grash.search.space import as_dict, make_space

    if not isinstance(given, str | Path) or str(given) in SPACES:
        return given
    check_space_exists(given)
    content, source = read_yaml(Path(given)), str(given)
    if is_libkge_search(content):
        return as_dict(libkge_search(content, source).space)
    return as_dict(make_space(content, source=source).verified(source=source))


def settings_of_file(path: str | Path) -> tuple[dict[str, Any], list[str]]:
    """Return the settings of a YAML file of grash, or of a GraSH search file of LibKGE, and what was ignored."""
    from grash.interop.libkge import is_libkge_search, libkge_search
    from grash.search.space import as_dict

    content = read_yaml_mapping(Path(path))
    if not is_libkge_search(content):
        return content, []
    read = libkge_search(content, str(path))
    settings = {"preset": "paper", **read.settings, "space": as_dict(read.space), "proposals": "random"}
    settings.pop("dataset", None)
    return settings, list(read.ignored)


def best_of_run(folder: str | Path, *, count: int = 4) -> list[dict[str, Any]]:
    """Return the best configurations of an earlier search as initial ones: those of its last rounds first."""
    state = SearchResult.load(folder).state
    chosen: list[int] = []
    for past in reversed(state.rounds):
        chosen += [number for number in past.best(len(past.results)) if number not in chosen]
    if not chosen:
        raise InputError(f"{folder} has no scored trial: give the folder of a search that has finished a trial.")
    return [initial_of(state.configurations[n].values, f"run:{Path(folder).name}") for n in chosen[:count]]


def initial_of(given: TrainConfig | Mapping[str, Any] | str | Path, origin: str | None = None) -> dict[str, Any]:
    """Return values and origin of a configuration from a record, a YAML file or a mapping, without fields of a run."""
    if isinstance(given, str | Path):
        values, origin = _read_config(Path(given)).model_dump(exclude_unset=True), f"user:{Path(given).name}"
    elif isinstance(given, TrainConfig):
        values = given.model_dump(exclude_unset=True)
    else:
        values = dict(given)
    kept = {k: v for k, v in values.items() if k not in _RUN_FIELDS}
    return {"values": json.loads(json.dumps(kept)), "origin": origin or "user"}


def _read_config(path: Path) -> TrainConfig:
    """Return the configuration of a YAML file of grash, or of a training of LibKGE."""
    content = read_yaml_mapping(path)
    if any("." in str(key) or isinstance(value, dict) for key, value in content.items()):
        from grash.interop.libkge import read_libkge_config

        return read_libkge_config(path)
    return read_config(path)
