"""What the verbs of `grash study` share: options, a pool with its graphs and store, the time that is left."""

from __future__ import annotations

import re
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from grash.cli.console import command, say, show_log
from grash.cli.console import table as show_table
from grash.cli.options import READING, Source, option_name, parse_assignment, with_options
from grash.errors import ConfigError, InputError

if TYPE_CHECKING:
    from grash.data.dataset import Dataset
    from grash_study.cells import Cell
    from grash_study.compare import Comparison
    from grash_study.confirm import Candidate
    from grash_study.graphs import StudyGraphs
    from grash_study.pages import Page
    from grash_study.pool import Pool
    from grash_study.searches import Asked
    from grash_study.store import Store


UNFINISHED = 7  # exit code of a study that --max-seconds ended; the same command goes on


def _option(kind: Any, default: Any, *names: str, help: str) -> tuple[Any, Any, Any]:
    return kind, default, typer.Option(*names, help=help)


POOL: dict[str, tuple[Any, Any, Any]] = {
    "model": _option(str, "complex", "--model", "-m", help="Model of the configurations."),
    "dim": _option(int, 128, "--dim", "-d", help="Floats per entity."),
    "epochs": _option(float, 100.0, "--epochs", "-e", help="E: epochs of a full training run."),
    "space": _option(str, "paper", "--space", help="default, paper, wide, or a YAML file."),
    "seed": _option(int, 0, "--seed", help="Every random choice follows from it."),
    "fixed": _option(
        list[str] | None, None, "--set", help="A setting of the training that is not searched, name=value. Repeatable."
    ),
}
RUNNING: dict[str, tuple[Any, Any, Any]] = {
    "store": _option(Path, Path("studies"), "--store", help="Folder of results; a run goes on with what it has."),
    "out": _option(Path, Path("docs/results"), "-o", "--out", help="Folder of pages and plots."),
    "device": _option(str, "auto", "--device", help="auto, cpu, cuda or cuda:i."),
    "max_seconds": _option(
        float | None, None, "--max-seconds", help="Begin nothing that would end later; 0 only writes the page."
    ),
    "batch": _option(int, 64, "--batch", help="Configurations trained together, and written at once."),
    "plan": _option(bool, False, "--plan", help="Only say what is missing and about how long it takes."),
}


class Clock:
    """The options of a run, with less and less of --max-seconds left."""

    def __init__(self, running: dict[str, Any]) -> None:
        self.running, self.began = running, time.monotonic()

    def left(self) -> dict[str, Any]:
        if "max_seconds" not in self.running:
            return self.running
        return {**self.running, "max_seconds": max(0.0, self.running["max_seconds"] - time.monotonic() + self.began)}


class Study:
    """One pool with its graphs and store, made from the options of a command."""

    def __init__(
        self, source: str | Dataset, n: int, pooled: dict[str, Any], running: dict[str, Any], reading: dict[str, Any],
        *, tested: bool = True,
    ) -> None:  # fmt: skip
        from grash_study.graphs import StudyGraphs
        from grash_study.run import check_batch
        from grash_study.store import Store

        check_batch(running["batch"])
        show_log()
        self.source, self.reading = source if isinstance(source, str) else source.name, reading
        dataset = load(source, reading) if isinstance(source, str) else source
        if tested and not len(dataset.test):
            raise InputError(f"{dataset.name} has no test triples, by which full trainings are compared: give some.")
        self.running, self.pooled, self._clock = running, pooled, Clock(running)
        self.pool: Pool = pool_of(dataset, n, pooled)
        self.graphs: StudyGraphs = StudyGraphs(self.pool)
        self.store: Store = Store.of(running["store"], self.pool)

    def limits(self) -> dict[str, Any]:
        """Where to compute, and how much longer."""
        return {"device": self.running["device"], "max_seconds": self._clock.left().get("max_seconds")}

    def run(self, cells: list[Cell]) -> bool:
        """Trains what is missing, after saying how long that takes; whether all is there then."""
        from grash_study.run import UNKNOWN, plan_cells, run_cells

        limits, pace = self.limits(), UNKNOWN
        if self.running["plan"] or limits["max_seconds"] != 0:
            plan = plan_cells(self.graphs, cells, self.store, device=limits["device"])
            show("\n".join(plan.lines))
            pace = plan.pace
        if self.running["plan"]:
            return False
        given = {"batch": self.running["batch"], "pace": pace, "say": show}
        ran = run_cells(self.graphs, cells, self.store, **self.limits(), **given)
        say(f"{ran.done} of {ran.asked} cells are in {self.store.path}")
        return ran.finished

    def search(self, asked: list[Asked]) -> bool:
        """Runs the searches that are missing; whether all are there then."""
        from grash_study.searches import print_searches, run_searches

        for one in asked:
            one.settings(self.pool)  # says now what is wrong with one of them, not after the others
        if self.running["plan"] or self.limits()["max_seconds"] != 0:
            show(print_searches(self.graphs, asked, self.store, device=self.running["device"]))
        if self.running["plan"]:
            return False
        return run_searches(self.graphs, asked, self.store, **self.limits(), say=show)

    def command(self, verb: str, *more: object) -> str:
        """The command that makes a page again from the same store."""
        return study_command(verb, self.source, self.pool.n, self.pooled, self.running, self.reading, *more)

    def page(self, page: Page, finished: bool) -> None:
        if self.running["plan"]:
            raise typer.Exit(0)
        put_page(page, self.running["out"], finished)


def study_command(
    verb: str, source: str, n: int, pooled: dict[str, Any], running: dict[str, Any], reading: dict[str, Any],
    *more: object,
) -> str:  # fmt: skip
    """A command as it was given, with all that its page depends on; how fast it was to run is left out."""
    given: list[object] = [w for name in POOL if name != "fixed" for w in (f"--{name}", _plain(pooled[name]))]
    given += [word for text in pooled.get("fixed", []) for word in ("--set", text)]
    return command("grash", "study", verb, source, "--n", n, *given, *running_words(running, reading), *more)


def running_words(running: dict[str, Any], reading: dict[str, Any]) -> list[object]:
    """The options of a command that say how its source is read and where results lie."""
    given: list[object] = []
    for name, value in reading.items():
        option = option_name(READING, name)
        yes_no = option if value else option.replace("--", "--no-", 1)
        given += [yes_no] if isinstance(value, bool) else [option, _plain(value)]
    places = [name for name in ("store", "out") if running[name] != RUNNING[name][1]]
    return given + [w for name in places for w in (f"--{name}", running[name])]


def put_page(page: Page, out: Path, finished: bool) -> None:
    """Writes a page and leaves; one that would replace a page made from more is an error when all has been run."""
    from grash_study.pages import write_page

    try:
        say(f"page: {write_page(page, out, refuse_less=True)}")
    except InputError as error:
        if finished:
            raise
        say(str(error))
    leave(finished)


def leave(finished: bool) -> None:
    """Ends a command whose work is not all done with a code that says so."""
    if not finished:
        say("Not all has been run: the same command goes on.")
        raise typer.Exit(UNFINISHED)


def load(source: str, reading: dict[str, Any]) -> Dataset:
    from grash.api import dataset as datasets_api

    return datasets_api.load_dataset(source, **reading)


def models_of(names: str) -> list[str]:
    """The models of an option --models."""
    found = listed(names)
    if not found:
        raise ConfigError(f"--models '{names}' names no model: give one or more, with commas, as in complex,rotate.")
    return found


def listed(names: str) -> list[str]:
    return [name.strip() for name in names.split(",") if name.strip()]


def pool_of(dataset: Dataset, n: int, given: dict[str, Any]) -> Pool:
    """The configurations that a command asks for, or what is wrong with them."""
    from grash.api.search import resolved_space
    from grash_study.pool import make_pool

    if n < 3:
        raise ConfigError(f"--n {n}: give 3 or more configurations, fewer say nothing about a ranking.")
    space, label = resolved_space(given["space"]), given.get("label")
    fixed = dict(parse_assignment(text) for text in given.get("fixed", []))
    named = {"space": space, "label": label or Path(given["space"]).stem, "fixed": fixed}
    return make_pool(dataset, n=n, **{**given, **named})


def show(lines: str) -> None:
    print(lines, flush=True)


def _plain(value: Any) -> Any:
    return f"{value:g}" if isinstance(value, float) else value


# = grash study: the paper's experiments as commands, and a table on which searches compete.
# =
# = What is measured goes into a store (a folder of .jsonl files, one per pool), which a later run, here or elsewhere, goes
# = on with; pages and tables are made from the store.

N = Annotated[int, typer.Option("--n", "-n", help="Configurations.")]
Preset = Annotated[str, typer.Option("--preset", help="Of the searches: default, paper or paper-text.")]
Which = Annotated[str, typer.Option("--variants", help="Some of epoch, graph and combined, with commas.")]


def add_to(study: typer.Typer) -> None:
    """Add the commands of a study to the group `grash study`."""
    for verb in (transfer, variants, resources, rounds, table):
        study.command()(with_options(verb, pooled=POOL, running=RUNNING, reading=READING))
    study.command()(methods)
    study.command()(with_options(confirm, running=SEARCHING, reading=READING))
    study.command()(merge)


def transfer(
    source: Source,
    n: N = 30,
    techniques: Annotated[
        str, typer.Option("--techniques", help="Some of them, with commas.")
    ] = "triples,walk,kgtuner,k-core,core-order,epochs,combined",
    **given: Any,
) -> None:
    """Which reductions foretell full training: rank correlation by technique and budget (paper, Fig. 3, Tab. 1)."""
    from grash_study.transfer import check_reductions, transfer_cells, transfer_page

    chosen = check_reductions(techniques)
    made = Study(source, n, **given)
    finished = made.run(transfer_cells(n, reductions=chosen))
    words = made.command("transfer", "--techniques", ",".join(chosen))
    made.page(transfer_page(made.store, n, command=words, reductions=chosen), finished)


def variants(
    source: Source,
    n: N = 64,
    models: Annotated[
        str, typer.Option("--models", help="Models, with commas; --model is left aside.")
    ] = "complex,rotate,transe",
    preset: Preset = "paper",
    large: Annotated[
        int, typer.Option("--large-dim", help="Dimension of one more combined search each; 0: none.")
    ] = 512,
    full: Annotated[bool, typer.Option("--full/--picks", help="Train all n in full, or only what was picked.")] = True,
    *,
    pooled: dict[str, Any],
    running: dict[str, Any],
    reading: dict[str, Any],
) -> None:
    """What is reduced, and what the search then picks, model by model; RotatE also with its own loss (Tab. 2)."""
    from grash_study import variants as study

    names = models_of(models)
    dataset, clock = load(source, reading), Clock(running)
    lines, finished = [], True
    words = study_command(
        "variants", source, n, pooled, running, reading, "--models", models, "--preset", preset, "--large-dim", large,
        "--full" if full else "--picks",
    )  # fmt: skip
    kinds = study.setups(names, dim=pooled["dim"], large=large, full=full, n_entities=dataset.n_entities)
    for setup in kinds:  # says now what is wrong with one of them, not after the others
        pool_of(dataset, n, {**pooled, **setup.changes})
    for setup in kinds:
        made = Study(dataset, n, {**pooled, **setup.changes}, clock.left(), {})
        asked = study.asked_searches(setup.variants, n=n, preset=preset)
        finished &= made.search(asked)
        finished &= made.run(study.variant_cells(made.store, asked, n=n, full=setup.full))
        lines.append((setup, made.store))
        made.store.release()
    made.page(study.variants_page(lines, n=n, preset=preset, command=words), finished)


def resources(
    source: Source,
    n: N = 64,
    preset: Preset = "paper",
    which: Which = "epoch,graph,combined",
    together: Annotated[
        bool, typer.Option("--together/--no-together", help="Time the first round with 1, 3 and all trials at a time.")
    ] = True,
    **given: Any,
) -> None:
    """Seconds, peak memory and model size per round and variant, and more trials at a time (Tab. 3)."""
    from grash_study.resources import asked_searches, resources_page, time_first_rounds

    made = Study(source, n, **given, tested=False)
    asked = asked_searches(which.split(","), n=n, preset=preset)
    finished = made.search(asked)
    if finished and together:
        finished = time_first_rounds(made.graphs, asked, made.store, **made.limits(), say=show)
    timed = "--together" if together else "--no-together"
    words = made.command("resources", "--preset", preset, "--variants", which, timed)
    made.page(resources_page(made.store, asked, command=words, together=together), finished)


def rounds(
    source: Source,
    n: N = 64,
    preset: Preset = "paper",
    which: Which = "graph,combined",
    **given: Any,
) -> None:
    """How many rounds pay: η = 2, 4, 8 and n at B = 3, and one round at B = 1 (Tab. 4)."""
    from grash_study.variants import asked_searches_rounds as asked_searches
    from grash_study.variants import picks, rounds_page

    made = Study(source, n, **given)
    asked = asked_searches(which.split(","), n=n, preset=preset)
    finished = made.search(asked)
    finished &= made.run(picks(made.store, asked))
    words = made.command("rounds", "--preset", preset, "--variants", which)
    made.page(rounds_page(made.store, asked, command=words), finished)


def table(
    source: Source,
    n: N = 128,
    to: Annotated[
        Path | None,
        typer.Option("--to", help="File to write; OUT/tables/POOL.parquet by default.", show_default=False),
    ] = None,
    **given: Any,
) -> None:
    """A table to compete on: a pool of configurations at every fidelity, with curves, costs and failures."""
    from grash_study.table import make_table, table_cells
    from grash_study.transfer import full_scores

    made = Study(source, n, **given)
    cells = table_cells(made.graphs)
    finished = made.run(cells)
    if made.running["plan"]:
        raise typer.Exit(0)
    if not finished and not full_scores(made.store, n):
        say("No table is written yet: it needs trainings on the whole graph, and none has been run.")
        leave(finished)
    path = to if to is not None else made.running["out"] / "tables" / f"{made.pool.name}.parquet"
    found = make_table(made.store, made.pool, rails=made.graphs.rails(), cells=cells)
    try:
        found.save(path)
        say(f"{path}: {found.n} configurations × {len(found.graph_fractions)} graphs")
    except ModuleNotFoundError as error:
        say(f"{error.name} is not installed here, so that no table is written: run this again where it is.")
    leave(finished)


def merge(
    into: Annotated[Path, typer.Argument(help="The store that takes the others in.", show_default=False)],
    others: Annotated[list[Path], typer.Argument(help="Stores of the same studies.", show_default=False)],
) -> None:
    """Bring results from another machine into a store: what it lacks is added."""
    from grash_study.store import merge_stores

    for name, count in merge_stores(into, *others).items():
        print(f"{into / name}: {count} results were new")


# = grash study methods: searches compete on tables, over many seeds, on one core in minutes.

DOCS = Path("docs/results")


def methods(
    tables: Annotated[list[Path], typer.Argument(help="Tables, from grash study table.", show_default=False)],
    seeds: Annotated[int, typer.Option("--seeds", help="Searches per method and table.")] = 1000,
    budget: Annotated[float, typer.Option("--budget", "-B", help="B: cost of a search in full runs.")] = 3.0,
    sweep: Annotated[
        bool, typer.Option("--sweep", help="Compare changes of the default search instead of methods.")
    ] = False,
    settings: Annotated[
        Path | None,
        typer.Option("--settings", help="Compare the default with what a YAML file lists.", show_default=False),
    ] = None,
    out: Annotated[Path, typer.Option("-o", "--out", help="Folder of pages and plots.")] = DOCS,
) -> None:
    """Let searches choose from a table: what they pick at equal cost, with intervals, and what was lost where.

    A file for --settings is a list: - {name: more survivors, eta: 3} or - {name: ties, run: rungs, ties: 2}.
    """
    from grash_study.compare import compare
    from grash_study.methods import METHODS
    from grash_study.methods_page import Kind, write_methods_page, write_overview
    from grash_study.recorded import Recorded
    from grash_study.sweep import SWEEP, fitting, read_methods
    from grash_study.table import Table

    if sweep and settings is not None:
        raise ConfigError("--sweep and --settings each say what to compare: give one of them.")
    kind: Kind = "sweep" if sweep else "settings" if settings is not None else "methods"
    label = None if settings is None else settings.stem
    chosen = read_methods(settings) if settings is not None else SWEEP if sweep else METHODS
    given: list[object] = ["--sweep"] if sweep else ["--settings", settings] if settings is not None else []
    given += ["--out", out] if out != DOCS else []
    words = command("grash", "study", "methods", *tables, "--seeds", seeds, "--budget", f"{budget:g}", *given)
    several = []
    for path in tables:
        bench = Recorded(Table.load(path))
        found = compare(bench, fitting(chosen, bench.n, tell=say), seeds=seeds, budget=budget, tell=say)
        _show(found)
        say(f"{write_methods_page(found, out, kind=kind, label=label, command=words)}: written")
        several.append(found)
    if len(several) > 1:
        say(f"{write_overview(several, out, kind=kind, label=label, command=words)}: written")


def _show(found: Comparison) -> None:
    rows = [
        (
            r.name, f"{r.cost:.2f}", f"{r.mrr:.4f}", f"{r.mrr_interval[0]:.4f} … {r.mrr_interval[1]:.4f}",
            f"{r.found:.1%}", f"{r.gain:+.4f}", f"{r.gain_interval[0]:+.4f} … {r.gain_interval[1]:+.4f}",
        )
        if r.ran
        else (r.name, f"{r.cost:.2f}", *("–",) * 5)
        for r in found.rows
    ]  # fmt: skip
    columns = ("method", ">cost", ">test MRR", ">95 %", ">of its best", ">gain", ">95 %")
    show_table(columns, rows, title=f"{found.bench.name}, {found.seeds:,} seeds, B = {found.budget:g}")


# = grash study confirm: real searches with final training, several seeds each, candidates for a default beside each
# = other.

SEARCHING = {name: option for name, option in RUNNING.items() if name != "batch"}


def confirm(
    source: Source,
    models: Annotated[
        str, typer.Option("--models", "-m", help="Models, with commas; each is searched on its own.")
    ] = "complex,rotate,transe",
    dim: Annotated[int, typer.Option("--dim", "-d", help="Floats per entity.")] = 512,
    epochs: Annotated[float, typer.Option("--epochs", "-e", help="E: epochs of a full training run.")] = 100.0,
    seeds: Annotated[int, typer.Option("--seeds", help="Searches of each: seeds 0, 1, …")] = 3,
    presets: Annotated[
        str, typer.Option("--presets", help="Presets that are searched as they are, with commas; none: ''.")
    ] = "default,paper",
    candidates: Annotated[
        list[str] | None,
        typer.Option("--candidate", help="NAME: name=value, name=value on top of a preset. Repeatable."),
    ] = None,
    common: Annotated[
        list[str] | None, typer.Option("--search", help="A setting of all searches, name=value. Repeatable.")
    ] = None,
    fixed: Annotated[
        list[str] | None,
        typer.Option("--set", help="A setting of the training that is not searched, name=value. Repeatable."),
    ] = None,
    label: Annotated[
        str | None, typer.Option("--label", help="Ends the page's name; the candidates by default.", show_default=False)
    ] = None,
    *,
    running: dict[str, Any],
    reading: dict[str, Any],
) -> None:
    """Search for real, train the pick in full and test it: several seeds each, candidates beside each other.

    --candidate "sobol: proposals=sobol" --candidate "rich: n_trials=128, space=rich.yaml, preset=default": settings of
    a search, those of a training (then fixed as --set does), and preset=NAME, on which the others come.
    """
    from functools import partial

    from grash.api.search import Search
    from grash_study.confirm import plan_wanted, run_wanted, store_of, wanted_searches
    from grash_study.confirm_page import confirm_page

    names = models_of(models)
    show_log()
    dataset = load(source, reading)
    if not len(dataset.test):
        raise InputError(f"{dataset.name} has no test triples, by which final models are compared: give some.")
    columns = [*_presets(presets), *(read_candidate(text) for text in candidates or [])]
    words = ["--models", models, "--dim", dim, "--epochs", f"{epochs:g}", "--seeds", seeds, "--presets", presets]
    words += [w for name, given in _repeated(candidates, common, fixed) for w in (name, given)]
    words += ["--label", label] if label else []
    shared = {"dim": dim, "max_epochs": epochs, **_settings(common or [], fixed or [])}
    wanted = wanted_searches(dataset, columns, models=names, seeds=seeds, common=shared)
    store, opens = store_of(running["store"], dataset), partial(Search, source=source)
    clock, device = Clock(running), running["device"]
    if running["plan"] or running.get("max_seconds") != 0:
        show(plan_wanted(dataset, wanted, store, opens, device=device))
    if running["plan"]:
        raise typer.Exit(0)
    left = clock.left().get("max_seconds")
    finished = run_wanted(dataset, wanted, store, opens, device=device, max_seconds=left, say=show)
    shown = command("grash", "study", "confirm", source, *words, *running_words(running, reading))
    usual = [
        *listed(presets),
        *(["candidates"] if candidates else []),
        *(_short(text) for text in [*(common or []), *(fixed or [])]),
    ]
    called = label or "-".join(usual)
    put_page(confirm_page(wanted, store, label=called, command=shown), running["out"], finished)


def read_candidate(text: str) -> Candidate:
    """A candidate from NAME: name=value, name=value, …; values as in YAML, so that [1, 2] is a list."""
    from grash_study.confirm import Candidate

    name, colon, rest = (part.strip() for part in text.partition(":"))
    parts = [part for part in re.split(r"[,\s]+(?=\w+=)", rest) if part]
    if not colon or not name or not parts or any("=" not in part for part in parts):
        raise ConfigError(
            f'--candidate "{text}" is no candidate: give a name and settings, as in "sobol: proposals=sobol, eta=3".'
        )
    preset = [parse_assignment(part)[1] for part in parts if part.startswith("preset=")]
    rest_parts = [part for part in parts if not part.startswith("preset=")]
    return Candidate(name, str(preset[-1]) if preset else "default", _settings(rest_parts, []), ", ".join(rest_parts))


def _presets(names: str) -> list[Candidate]:
    from grash_study.confirm import Candidate

    return [Candidate(name, name) for name in listed(names)]


def _settings(search: list[str], fixed: list[str]) -> dict[str, Any]:
    """Settings of a search; what is a setting of the training is fixed. A space file is read now."""
    from grash.api.search import resolved_space
    from grash.search.settings import ALIASES, SearchSettings
    from grash.training.config import TrainConfig

    given: dict[str, Any] = {"fixed": dict(parse_assignment(text) for text in fixed)}
    for name, value in (parse_assignment(text) for text in search):
        if name in SearchSettings.model_fields or name in ALIASES or name not in TrainConfig.model_fields:
            given[name] = resolved_space(value) if name == "space" else value
        else:
            given["fixed"][name] = value
    return given


def _short(text: str) -> str:
    """A setting name=value as names of pages have it; of a space's file only what it is called."""
    name, _, value = text.partition("=")
    return f"{name}.{Path(value).stem if name == 'space' else value}"


def _repeated(candidates: list[str] | None, common: list[str] | None, fixed: list[str] | None) -> list[tuple[str, str]]:
    several = (("--candidate", candidates), ("--search", common), ("--set", fixed))
    return [(name, text) for name, texts in several for text in texts or []]
