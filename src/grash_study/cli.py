"""The commands of `grash study`: the paper's experiments, tables, and comparisons of search methods.

Results go into a store (a folder of .jsonl files, one per pool), which a later run, on this or another machine,
continues; pages and tables are made from the store.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from grash.cli.console import command, say, show_log
from grash.cli.console import table as show_table
from grash.cli.options import READING, Options, Source, parse_assignment, with_options
from grash.errors import UNFINISHED, ConfigError, InputError

if TYPE_CHECKING:
    from grash.data.dataset import Dataset
    from grash_study.confirm import Candidate
    from grash_study.pages import Page
    from grash_study.pool import Pool
    from grash_study.searches import SearchOfPool
    from grash_study.store import Cell

_show = partial(print, flush=True)
_NOT_SHOWN = ("--device", "--max-seconds", "--batch", "--plan", "--page")  # a page does not depend on these


def _option(kind: Any, default: Any, *names: str, help: str, min: int | None = None) -> tuple[Any, Any, Any]:
    return kind, default, typer.Option(*names, help=help, min=min)


FIXED = _option(
    list[str] | None, None, "--set", help="A training setting that is not searched, name=value. Repeatable."
)
POOL: Options = {
    "model": _option(str, "complex", "--model", "-m", help="Model of the configurations."),
    "dim": _option(int, 128, "--dim", "-d", help="Floats per entity."),
    "epochs": _option(float, 100.0, "--epochs", "-e", help="E: epochs of a full training."),
    "space": _option(str, "paper", "--space", help="default, paper, wide, or a YAML file."),
    "seed": _option(int, 0, "--seed", help="Seed of all random choices."),
    "fixed": FIXED,
}
RUNNING: Options = {
    "store": _option(Path, Path("studies"), "--store", help="Folder of results; a run continues what it has."),
    "out": _option(Path, Path("results"), "-o", "--out", help="Folder of pages and plots."),
    "page": _option(
        bool, True, "--page/--no-page", help="Write the page. --no-page only runs and stores, without the extra."
    ),
    "device": _option(str, "auto", "--device", help="auto, cpu, cuda or cuda:N."),
    "max_seconds": _option(
        float | None,
        None,
        "--max-seconds",
        help="Time limit; nothing is started that would exceed it. 0 only writes the page.",
    ),
    "batch": _option(int, 64, "--batch", help="Configurations to train and store together.", min=1),
    "plan": _option(bool, False, "--plan", help="Only print what is missing and about how long it takes."),
}
SEARCHING: Options = {name: option for name, option in RUNNING.items() if name != "batch"}
N = Annotated[int, typer.Option("--n", "-n", help="Configurations.", min=3)]
Preset = Annotated[str, typer.Option("--preset", help="Preset of the searches: default, paper or paper-text.")]
Which = Annotated[str, typer.Option("--variants", help="Variants, with commas: epoch, graph, combined.")]


def add_to(app: typer.Typer) -> None:
    """Add the group `grash study`."""
    about = "Run the paper's experiments and compare search methods."
    study = typer.Typer(rich_markup_mode="markdown", no_args_is_help=True, help=about)
    for verb in (transfer, variants, resources, rounds, table):
        study.command()(with_options(verb, pooled=POOL, running=RUNNING, reading=READING))
    study.command()(methods)
    study.command()(with_options(confirm, running=SEARCHING, reading=READING))
    study.command()(merge)
    app.add_typer(study, name="study", rich_help_panel="More")


def check_extra() -> None:
    """Raise an error that names what to install, unless the packages of the extra `study` are there."""
    missing = [name for name in ("scipy", "sklearn", "matplotlib", "polars", "optuna") if find_spec(name) is None]
    if missing:
        raise InputError(f"grash study needs {', '.join(missing)}: pip install 'grash-kge[study]'.")


def transfer(
    context: typer.Context,
    source: Source,
    n: N = 30,
    techniques: Annotated[
        str, typer.Option("--techniques", help="Reductions to compare, with commas.")
    ] = "triples,walk,kgtuner,k-core,core-order,epochs,combined",
    **given: Any,
) -> None:
    """Measure how well reductions predict full training (Figure 3).

    Reports rank correlations by technique and budget, and what each costs (paper, Figure 3 and Table 1).
    """
    from grash_study.transfer import check_reductions, transfer_cells, transfer_page

    chosen = check_reductions(techniques)
    study = Study(source, n, **given)
    finished, shown = study.run(transfer_cells(n, reductions=chosen)), shown_command(context)
    _finish(study.running, finished, lambda: transfer_page(study.store, n, command=shown, reductions=chosen))


def variants(
    context: typer.Context,
    source: Source,
    n: N = 64,
    models: Annotated[
        str, typer.Option("--models", help="Models, with commas; --model is ignored.")
    ] = "complex,rotate,transe",
    preset: Preset = "paper",
    large: Annotated[
        int, typer.Option("--large-dim", help="Dimension of one more combined search each; 0: none.")
    ] = 512,
    full: Annotated[
        bool, typer.Option("--full/--picks", help="Train all n configurations in full, or only the picks.")
    ] = True,
    *,
    pooled: dict[str, Any],
    running: dict[str, Any],
    reading: dict[str, Any],
) -> None:
    """Compare reducing epochs, the graph or both (Table 2).

    Runs a search of each kind with each model, and trains what they pick in full.
    """
    from grash_study.pool import DEFAULT
    from grash_study.searches import pick_cells, setups, variant_searches, variants_page
    from grash_study.store import cells_on

    names = _models(models)
    _check_running(running)
    dataset = _load(source, reading)
    kinds = setups(names, dim=pooled["dim"], large=large, full=full, n_entities=dataset.n_entities)
    for setup in kinds:  # find mistakes in all of them before one is trained
        _pool(dataset, n, {**pooled, **setup.changes})
    found, finished = [], True
    for setup in kinds:
        study = Study(dataset, n, {**pooled, **setup.changes}, running, {})
        searches = variant_searches(setup.variants, n=n, preset=preset)
        finished &= study.search(searches)
        everything = cells_on("whole", 1.0, [DEFAULT, *range(n)])
        finished &= study.run(everything if setup.full else pick_cells(study.store, searches, DEFAULT))
        found.append((setup, study.store))
        study.store.release()
    _finish(study.running, finished, lambda: variants_page(found, n=n, preset=preset, command=shown_command(context)))


def resources(
    context: typer.Context,
    source: Source,
    n: N = 64,
    preset: Preset = "paper",
    which: Which = "epoch,graph,combined",
    together: Annotated[
        bool, typer.Option("--together/--no-together", help="Time the first round with 1, 3 and all trials at a time.")
    ] = True,
    **given: Any,
) -> None:
    """Measure seconds and memory per round (Table 3).

    Also measures the size of the models, and the first round with several trials at a time.
    """
    from grash_study.searches import resources_page, time_first_rounds, variant_searches

    study = Study(source, n, **given, tested=False)
    searches = variant_searches(which.split(","), n=n, preset=preset, warm=True)
    finished = study.search(searches)
    if finished and together:
        finished = time_first_rounds(study.graphs, searches, study.store, **study.limits(), say=_show)
    shown = shown_command(context)
    _finish(study.running, finished, lambda: resources_page(study.store, searches, command=shown, together=together))


def rounds(
    context: typer.Context,
    source: Source,
    n: N = 64,
    preset: Preset = "paper",
    which: Which = "graph,combined",
    **given: Any,
) -> None:
    """Compare numbers of rounds (Table 4).

    Runs searches with η = 2, 4, 8 and n at B = 3, and one round at B = 1.
    """
    from grash_study.searches import pick_cells, round_searches, rounds_page

    study = Study(source, n, **given)
    searches = round_searches(which.split(","), n=n, preset=preset)
    finished = study.search(searches)
    finished &= study.run(pick_cells(study.store, searches))
    _finish(study.running, finished, lambda: rounds_page(study.store, searches, command=shown_command(context)))


def table(
    source: Source,
    n: N = 128,
    to: Annotated[
        Path | None, typer.Option("--to", help="File to write (default: OUT/tables/POOL.parquet).", show_default=False)
    ] = None,
    **given: Any,
) -> None:
    """Train a pool of configurations at every fidelity.

    Writes a table with curves, costs and failures, on which grash study methods simulates searches.
    """
    from grash_study.table import make_table, table_cells

    study = Study(source, n, **given)
    cells = table_cells(study.graphs)
    finished = study.run(cells)
    if study.running["plan"]:
        raise typer.Exit(0)
    if not finished and not study.store.full_trainings(n):
        say("No table is written yet: it needs trainings on the whole graph, and there are none.")
    elif study.running["page"]:
        path = to if to is not None else study.running["out"] / "tables" / f"{study.pool.name}.parquet"
        made = make_table(study.store, study.pool, guard_rails=study.graphs.guard_rails())
        made.save(path)
        say(f"{path}: {made.n} configurations × {len(made.graph_fractions)} graphs")
    _leave(finished)


def methods(
    context: typer.Context,
    tables: Annotated[list[Path], typer.Argument(help="Tables, from grash study table.", show_default=False)],
    seeds: Annotated[int, typer.Option("--seeds", help="Searches per method and table.")] = 1000,
    budget: Annotated[float, typer.Option("--budget", "-B", help="B: cost of a search in full runs.")] = 3.0,
    sweep: Annotated[
        bool, typer.Option("--sweep", help="Compare changes of the default search instead of methods.")
    ] = False,
    settings: Annotated[
        Path | None,
        typer.Option("--settings", help="Compare the default with the list in a YAML file.", show_default=False),
    ] = None,
    out: Annotated[Path, typer.Option("-o", "--out", help="Folder of pages and plots.")] = RUNNING["out"][1],
) -> None:
    """Compare what search methods pick at equal cost, on tables.

    A file for --settings is a list: - {name: more survivors, eta: 3} or - {name: ties, run: rungs, ties: 2}.
    """
    check_extra()
    from grash_study.compare import compare, summary, write_methods_page, write_overview
    from grash_study.methods import METHODS, SWEEP, read_methods
    from grash_study.recorded import Recorded
    from grash_study.table import Table

    if sweep and settings is not None:
        raise ConfigError("--sweep and --settings both choose what to compare: give one of them.")
    kind = "sweep" if sweep else f"settings-{settings.stem}" if settings is not None else "methods"
    chosen = read_methods(settings) if settings is not None else SWEEP if sweep else METHODS
    shown = shown_command(context)
    several = []
    for path in tables:
        bench = Recorded(Table.load(path))
        found = compare(bench, chosen, seeds=seeds, budget=budget, say=say)
        main, title = summary(found), f"{bench.name}, {seeds:,} seeds, B = {budget:g}"
        show_table(main.headings[:5], [row[:5] for row in main.rows], title=title)
        say(f"page: {write_methods_page(found, out, kind=kind, command=shown)}")
        several.append(found)
    if len(several) > 1:
        say(f"page: {write_overview(several, out, kind=kind, command=shown)}")


def confirm(
    context: typer.Context,
    source: Source,
    models: Annotated[
        str, typer.Option("--models", "-m", help="Models, with commas; each is searched by itself.")
    ] = "complex,rotate,transe",
    dim: Annotated[int, typer.Option("--dim", "-d", help="Floats per entity.")] = 512,
    epochs: Annotated[float, typer.Option("--epochs", "-e", help="E: epochs of a full training.")] = 100.0,
    seeds: Annotated[int, typer.Option("--seeds", help="Searches of each: seeds 0, 1, …")] = 3,
    presets: Annotated[
        str,
        typer.Option(
            "--presets",
            help="Presets, with commas; none: ''. NAME-without-family: without winners of the graph's family.",
        ),
    ] = "default,paper",
    candidates: Annotated[
        list[str] | None,
        typer.Option("--candidate", help="NAME: name=value, name=value on top of a preset. Repeatable."),
    ] = None,
    methods: Annotated[
        str,
        typer.Option("--methods", help="Methods, with commas: hyperband, kgtuner, autone, tpe, random, one-epoch."),
    ] = "",
    common: Annotated[
        list[str] | None, typer.Option("--search", help="A setting of all searches, name=value. Repeatable.")
    ] = None,
    fixed: Annotated[list[str] | None, FIXED[2]] = None,
    label: Annotated[
        str | None,
        typer.Option("--label", help="End of the page's name (default: the candidates).", show_default=False),
    ] = None,
    *,
    running: dict[str, Any],
    reading: dict[str, Any],
) -> None:
    """Run real searches with several seeds.

    Trains what they pick in full, tests it, and compares presets and candidates.

    --candidate "sobol: proposals=sobol" --candidate "rich: n_trials=128, space=rich.yaml, preset=default": settings of
    a search, or of a training (then fixed as by --set), on top of preset=NAME.
    """
    from grash.api.search import Search
    from grash_study.confirm import (
        confirm_page,
        method_candidate,
        plan_wanted,
        preset_candidate,
        run_wanted,
        store_of,
        wanted_searches,
    )

    names, candidates, common, fixed = _models(models), candidates or [], common or [], fixed or []
    _check_running(running)
    dataset = _load(source, reading, tested=True)
    chosen = [method_candidate(name) for name in _listed(methods)]
    columns = [*map(preset_candidate, _listed(presets)), *(read_candidate(text) for text in candidates), *chosen]
    shared = {"dim": dim, "max_epochs": epochs, **_settings(common, fixed)}
    wanted = wanted_searches(dataset, columns, models=names, seeds=seeds, common=shared)
    store, open_search = store_of(running["store"], dataset), partial(Search, source=source)
    device = running["device"]
    if _plans(running):
        _show(plan_wanted(dataset, wanted, store, open_search, device=device))
    finished = not running["plan"] and run_wanted(
        dataset, wanted, store, open_search, device=device, max_seconds=_seconds_left(running), say=_show
    )
    others = ["candidates"] * bool(candidates) + ["methods"] * bool(chosen)
    usual = [*_listed(presets), *others, *map(_short, [*common, *fixed])]
    ending, shown = label or "-".join(usual), shown_command(context)
    _finish(running, finished, lambda: confirm_page(wanted, store, label=ending, command=shown))


def merge(
    into: Annotated[Path, typer.Argument(help="The store to add results to.", show_default=False)],
    others: Annotated[list[Path], typer.Argument(help="Stores of the same studies.", show_default=False)],
) -> None:
    """Add the results of other stores to a store."""
    from grash_study.store import merge_stores

    for name, count in merge_stores(into, *others).items():
        print(f"{into / name}: {count} new results")


class Study:
    """One pool with its graphs and store, from the options of a command."""

    def __init__(
        self, source: str | Dataset, n: int, pooled: dict[str, Any], running: dict[str, Any], reading: dict[str, Any],
        *, tested: bool = True,
    ) -> None:  # fmt: skip
        from grash_study.pool import StudyGraphs

        _check_running(running)
        dataset = _load(source, reading, tested=tested) if isinstance(source, str) else source
        self.running = running
        self.pool = _pool(dataset, n, pooled)
        self.graphs = StudyGraphs(self.pool)
        self.store = self.pool.store(running["store"])

    def limits(self) -> dict[str, Any]:
        """Return the device, and the seconds left."""
        return {"device": self.running["device"], "max_seconds": _seconds_left(self.running)}

    def run(self, cells: list[Cell]) -> bool:
        """Train what is missing, after printing how long that takes; return whether all is there."""
        from grash_study.run import plan_cells, run_cells

        pace = None
        if _plans(self.running):
            lines, pace = plan_cells(self.graphs, cells, self.store, device=self.running["device"])
            _show(lines)
        if self.running["plan"]:
            return False
        given = {"batch": self.running["batch"], "pace": pace, "say": _show}
        finished = run_cells(self.graphs, cells, self.store, **self.limits(), **given)
        say(f"{sum(self.store.find(c) is not None for c in cells)} of {len(cells)} cells are in {self.store.path}")
        return finished

    def search(self, searches: list[SearchOfPool]) -> bool:
        """Run the searches that are missing; return whether all are there."""
        from grash_study.searches import plan_searches, run_searches

        for one in searches:
            one.settings(self.pool.meta())  # find mistakes in all of them before one is run
        if _plans(self.running):
            _show(plan_searches(self.graphs, searches, self.store, device=self.running["device"]))
        return not self.running["plan"] and run_searches(self.graphs, searches, self.store, **self.limits(), say=_show)


def read_candidate(text: str) -> Candidate:
    """Return a candidate from NAME: name=value, name=value, …; values are YAML, so [1, 2] is a list."""
    from grash_study.confirm import Candidate

    name, colon, rest = (part.strip() for part in text.partition(":"))
    parts = [part for part in re.split(r"[,\s]+(?=\w+=)", rest) if part]
    if not colon or not name or not parts or any("=" not in part for part in parts):
        raise ConfigError(
            f'--candidate "{text}" is not a candidate: give a name and settings, e.g. "sobol: proposals=sobol, eta=3".'
        )
    preset = [parse_assignment(part)[1] for part in parts if part.startswith("preset=")]
    others = [part for part in parts if not part.startswith("preset=")]
    return Candidate(name, str(preset[-1]) if preset else "default", _settings(others, []), ", ".join(others))


def _settings(search: list[str], fixed: list[str]) -> dict[str, Any]:
    """Return settings of a search; settings of the training are fixed. A space file is read now."""
    from grash.api.search import resolved_space
    from grash.search.settings import ALIASES, SearchSettings
    from grash.training.config import TrainConfig

    given: dict[str, Any] = {"fixed": dict(parse_assignment(text) for text in fixed)}
    for name, value in map(parse_assignment, search):
        if name in SearchSettings.model_fields or name in ALIASES or name not in TrainConfig.model_fields:
            given[name] = resolved_space(value) if name == "space" else value
        else:
            given["fixed"][name] = value
    return given


def _short(text: str) -> str:
    """Return a setting name=value as in names of pages; of a space file only its stem."""
    name, _, value = text.partition("=")
    return f"{name}.{Path(value).stem if name == 'space' else value}"


def shown_command(context: typer.Context) -> str:
    """Return the command with all options that its page depends on."""
    words: list[object] = []
    for parameter in context.command.params:
        value, option = context.params[str(parameter.name)], parameter.opts[0]
        several = value if isinstance(value, list | tuple) else [value]
        if value is None or option in _NOT_SHOWN or (isinstance(value, Path) and value == parameter.default):
            continue
        if parameter.param_type_name == "argument":
            words += several
        elif isinstance(value, bool):
            words += [option] if value else parameter.secondary_opts[:1]
        else:
            words += [w for v in several for w in (option, f"{v:g}" if isinstance(v, float) else v)]
    return command("grash", "study", context.command.name, *words)


def _check_running(running: dict[str, Any]) -> None:
    """Check the options of a run, whose time starts now."""
    if "max_seconds" in running:
        running.setdefault("deadline", time.monotonic() + running["max_seconds"])
    if running["page"] and not running["plan"]:
        check_extra()
    show_log()


def _plans(running: dict[str, Any]) -> bool:
    """Return whether to print what is missing; --max-seconds 0 only writes the page."""
    return running["plan"] or running.get("max_seconds") != 0


def _seconds_left(running: dict[str, Any]) -> float | None:
    return max(0.0, running["deadline"] - time.monotonic()) if "deadline" in running else None


def _finish(running: dict[str, Any], finished: bool, make_page: Callable[[], Page]) -> None:
    """Write the page and exit."""
    from grash_study.pages import write_page

    if running["plan"]:
        raise typer.Exit(0)
    if running["page"]:
        say(f"page: {write_page(make_page(), running['out'])}")
    _leave(finished)


def _leave(finished: bool) -> None:
    if not finished:
        say("Not everything has been run: the same command continues.")
        raise typer.Exit(UNFINISHED)


def _load(source: str, reading: dict[str, Any], *, tested: bool = False) -> Dataset:
    from grash.api import dataset as datasets_api

    dataset = datasets_api.load_dataset(source, **reading)
    if tested and not len(dataset.test):
        raise InputError(f"{dataset.name} has no test triples, by which full trainings are compared: give some.")
    return dataset


def _models(names: str) -> list[str]:
    found = _listed(names)
    if not found:
        raise ConfigError(f"--models '{names}' names no model: give one or more, with commas, e.g. complex,rotate.")
    return found


def _listed(names: str) -> list[str]:
    return [name.strip() for name in names.split(",") if name.strip()]


def _pool(dataset: Dataset, n: int, given: dict[str, Any]) -> Pool:
    from grash.api.search import resolved_space
    from grash_study.pool import make_pool

    label = given.get("label") or Path(given["space"]).stem
    fixed = dict(parse_assignment(text) for text in given.get("fixed", []))
    return make_pool(dataset, n=n, **{**given, "space": resolved_space(given["space"]), "label": label, "fixed": fixed})
