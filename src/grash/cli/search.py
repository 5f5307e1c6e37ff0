"""grash search, plan, resume, status, report and dashboard: from the plan of a search to its report."""

from __future__ import annotations

import contextlib
import time
from dataclasses import asdict
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from grash.cli import options
from grash.cli.answers import PAGES, check_out_file
from grash.cli.console import as_json, command, say, say_when_compiling, show, show_log, table, wrapped
from grash.cli.options import READING, Json, Quiet, RunFolder, Source, option_name, optional, parse_assignment
from grash.cli.query import show_relations
from grash.errors import INTERRUPTED, UNFINISHED, ConfigError
from grash.formatting import format_duration
from grash.report.live import ROUND_COLUMNS, live_display, round_cells, summary_lines
from grash.report.meaning import (
    FILTERS,
    baseline_text,
    best_per_model,
    final_stop,
    over_time,
    questions,
    settings_text,
)
from grash.report.summary import graph_of, is_abandoned, mrr_text, read_evaluation, read_state, stop_reason, summarize

if TYPE_CHECKING:
    from grash.api.search import Search, SearchResult
    from grash.data.dataset import Dataset
    from grash.search.callbacks import Callback
    from grash.search.ledger import StopReason
    from grash.search.time_limit import TimeLimit
    from grash.search.trial import TrialResult

_STOP_CODES: dict[StopReason, int] = {"interrupted": INTERRUPTED, "max_seconds": UNFINISHED}
_SETTINGS = {
    "config": optional(Path, "YAML file of settings, or a GraSH search file of LibKGE.", "--config", "-c"),
    "preset": optional(str, "default, paper or paper-text (default: default)."),
    "models": optional(str, "One model, several with commas, or auto, i.e. all (default: complex).", "--model", "-m"),
    "dim": optional(int, "Floats per entity (default: 128).", "--dim", "-d"),
    "max_epochs": optional(float, "E: epochs of a full training run (default: 100).", "--epochs", "-e"),
    "budget": optional(float, "B: cost of the search in full runs (default: 3).", "--budget", "-B"),
    "n_trials": optional(int, "n: configurations in the first round (default: 64).", "--n-trials", "-n"),
    "metric": optional(str, "Decides rounds: mrr, hits@1, hits@3, hits@10, macro-mrr or weighted-mrr (default: mrr)."),
    "max_model_size": optional(str, "Largest size of a model's tables, e.g. 200M; dimensions are lowered to fit."),
    "max_prediction_ms": optional(
        float, "Milliseconds that a question may take on this machine; dimensions are lowered to fit."
    ),
    "eta": optional(int, "η: the best 1/η advance to the next round (default: 4)."),
    "time": optional(
        str, "Time for search, final training and test, e.g. 90s, 10m or 2h; chooses settings that are not given."
    ),
    "variant": optional(str, "What is reduced: combined, graph or epoch (default: combined)."),
    "space": optional(str, "Search space: default, paper, wide, or a YAML file (default: default)."),
    "proposals": optional(str, "Source of configurations: random, sobol or portfolio (default: portfolio)."),
    "initial_configs": optional(
        list[Path], "YAML file of a configuration for the first round. Repeatable.", "--initial-config",
        metavar="<path>",
    ),
    "from_run": optional(Path, "Run folder whose best configurations enter the first round."),
    "seed": optional(int, "Seed of all random choices (default: 0)."),
    "reduction": optional(str, "Subgraphs: core-order, k-core (whole cores only) or walk (default: core-order)."),
    "degree": optional(str, "Degree in the cores: neighbors or triples (default: neighbors)."),
    "guard_rails": optional(bool, "Avoid rounds that are too small to be informative (default: on)."),
    "threads": optional(int, "CPU threads per trial; results depend on it (default: 1)."),
    "final_threads": optional(int, "CPU threads of the final training (default: as --threads)."),
    "budget_unit": optional(str, "Unit of cost: triples or scores (default: triples)."),
    "warm_start": optional(str, "weights: a trial starts with its weights of the last round (default: off)."),
    "final_train": optional(bool, "Train the winner on the full graph (default: yes)."),
    "fixed": optional(
        list[str], "A training setting that is not searched. Repeatable.", "--set", metavar="NAME=VALUE"
    ),
}  # fmt: skip
_COMMON = ("time", "config", "preset", "models", "dim", "max_epochs", "budget", "n_trials", "space", "seed")
for _name in _SETTINGS.keys() - set(_COMMON):
    _SETTINGS[_name][2].rich_help_panel = "Search, in detail"
_ENGINE = {
    "engine": optional(str, "auto, sequential, processes, stacked or ray (default: auto)."),
    "device": optional(str, "auto, cpu, cuda or cuda:N; several with commas (default: auto)."),
    "workers": optional(int, "Trials at a time (default: as many as fit)."),
    "address": optional(str, "Ray cluster: HOST:PORT or auto (default: start one on this machine)."),
    "placement": optional(str, "Where the final model's entities are stored, as in grash train (default: auto)."),
    "trial_timeout": optional(float, "Abort a trial after that many seconds."),
}
Out = Annotated[Path | None, typer.Option("--out", "-o", help="Run folder (default: runs/DATASET-MODEL-search).")]
Trackers = Annotated[
    list[str] | None,
    typer.Option(
        "--tracker", metavar="KIND[:PLACE]", help="Send the search to mlflow:URI, wandb:PROJECT or tensorboard:FOLDER."
    ),
]
MaxSeconds = Annotated[float | None, typer.Option(help="Stop after that time; grash resume continues.")]


def add_to(app: typer.Typer) -> None:
    panel: Any = {"rich_help_panel": "Search"}
    app.command(**panel)(options.with_options(search, asked=_SETTINGS, engine=_ENGINE, reading=READING))
    placing = {name: _ENGINE[name] for name in ("engine", "device", "workers", "placement")}
    app.command(**panel)(options.with_options(plan, asked=_SETTINGS, engine=placing, reading=READING))
    app.command(**panel)(options.with_options(resume, engine=_ENGINE))
    for each in (status, report, dashboard):
        app.command(**panel)(each)


def search(
    source: Source,
    out: Out = None,
    max_seconds: MaxSeconds = None,
    extend: Annotated[
        bool, typer.Option("--extend", help="Add to an existing search: give a larger --n-trials or --budget.")
    ] = False,
    tracker: Trackers = None,
    quiet: Quiet = False,
    json: Json = False,
    *,
    asked: dict[str, Any],
    engine: dict[str, Any],
    reading: dict[str, Any],
) -> None:
    """Search hyperparameters, then train and test the winner.

    By default, the rounds cost as much as three full training runs. Comparing the finalists and training the winner
    come on top. Ctrl-C finishes the running trials and stops; a second Ctrl-C saves them and stops at once. The same
    command, or grash resume, continues the search.
    """
    began = time.monotonic()
    from grash.api.search import Search

    show_log()
    if not quiet:
        say_when_compiling()
    trackers = _make_trackers(tracker)
    if (Path(source) / "search.yaml").is_file():
        more: dict[str, Any] = {name: asked.pop(name) for name in ("n_trials", "budget") if extend and name in asked}
        if extend and not more:
            raise ConfigError("--extend needs a larger --n-trials or --budget.")
        refused = [option_name(_SETTINGS, name) for name in asked] + [option_name(READING, name) for name in reading]
        refused += ["--out"] if out is not None else []
        if refused:
            raise ConfigError(f"{source} is a run folder with its own settings: leave out {', '.join(refused)}.")
        _run(Search.open(source, **engine), max_seconds, quiet, json, trackers, extend=more or None)
        return
    if extend:
        raise ConfigError(f"--extend needs a run folder, and {source} is none: give the folder of the search.")
    made = _make_search(source, out, asked, engine, reading, began)
    if not quiet and not made.begun:
        _show_plan(made)
    _run(made, max_seconds, quiet, json, trackers)


def plan(
    source: Source,
    out: Out = None,
    probe: Annotated[bool, typer.Option("--probe/--no-probe", help="Measure seconds on this machine.")] = True,
    verbose: Annotated[
        bool, typer.Option("--verbose", "-v", help="Also show fidelity, steps, negatives, memory, disk and all notes.")
    ] = False,
    json: Json = False,
    *,
    asked: dict[str, Any],
    engine: dict[str, Any],
    reading: dict[str, Any],
) -> None:
    """Show the rounds of a search, their cost and the time they take here; train nothing."""
    began = time.monotonic()
    show_log()
    say_when_compiling()
    made = _make_search(source, out, asked, engine, reading, began)
    if json:
        found = made.plan(probe=probe and made.choice is None)
        times = {"seconds": found.seconds, "wall_seconds": found.wall_seconds}
        as_json(asdict(found) | times | {"time": made.choice and made.choice.to_json()})
    else:
        _show_plan(made, probe=probe, verbose=verbose)


def resume(
    folder: RunFolder,
    max_seconds: MaxSeconds = None,
    more: Annotated[
        str | None, typer.Option("--time", help="New time limit of a search with --time (default: what is left).")
    ] = None,
    tracker: Trackers = None,
    quiet: Quiet = False,
    json: Json = False,
    *,
    engine: dict[str, Any],
) -> None:
    """Continue a stopped or interrupted search."""
    began = time.monotonic()
    from grash.api.search import Search
    from grash.search.time_limit import TimeLimit

    show_log()
    trackers = _make_trackers(tracker)
    limit = None if more is None else TimeLimit.of(more, began)
    _run(Search.open(folder, **engine), max_seconds, quiet, json, trackers, limit=limit)


def status(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN", help="Run folders.", show_default=False)],
    json: Json = False,
) -> None:
    """Show the state of a search: rounds, best, budget, time left.

    For several run folders, print a table with one row each. The command only reads, so it can be used at any time,
    on any machine that sees the folder.
    """
    show_log()
    found = [summarize(read_state(run), datetime.now(timezone.utc), alive=not is_abandoned(run)) for run in runs]
    if json:
        as_json(found[0] if len(runs) == 1 else [{"run": str(run), **entry} for run, entry in zip(runs, found)])
    elif len(runs) == 1:
        _print_status(found[0], runs[0])
    else:
        from grash.report.page import COMPARED, COMPARED_TEXTS, read_run, run_row

        columns = [name if name in COMPARED_TEXTS else f">{name}" for name in COMPARED]
        table(columns, [run_row(read_run(run)) for run in runs], spare=(">baseline", ">cost", ">epochs", ">trials"))


def report(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN", help="One run folder, or several to compare.")],
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="File of the comparison (default: comparison.html).")
    ] = None,
    open_it: Annotated[bool, typer.Option("--open", help="Open it in the browser.")] = False,
) -> None:
    """Write the report of a search, or compare several.

    The report, report.html in the run folder, has charts of the test, rounds, ranks, parameters and costs. A search
    also writes it after each round. Several run folders are compared on one page; their own reports are written only
    if they are missing or out of date. Both are one file that needs no network.
    """
    from grash.report.page import COMPARISON_FILE, is_current, write_comparison, write_report

    show_log()
    if len(runs) == 1 and out is not None:
        raise ConfigError(f"-o {out} is for several runs: the report of one is written into its run folder.")
    if len(runs) == 1:
        path = write_report(runs[0])
    else:
        check_out_file(out, overwrite=True, suffixes=PAGES)
        for run in runs:
            if not is_current(run):
                write_report(run)
        path = write_comparison(runs, out or Path(COMPARISON_FILE))
    show(path)
    if open_it:
        import webbrowser

        webbrowser.open(path.resolve().as_uri())


def dashboard(
    run: RunFolder,
    port: Annotated[int, typer.Option(help="Port on this machine; 0 chooses a free one.")] = 8080,
) -> None:
    """Show a search in optuna-dashboard.

    It also works while the search runs, and listens on 127.0.0.1 only. Ctrl-C stops it.
    """
    from grash.report.optuna import dashboard_server

    show_log()
    with dashboard_server(run, port) as server:
        say(f"http://127.0.0.1:{server.server_port}/dashboard  (press Ctrl-C to stop)")
        with contextlib.suppress(KeyboardInterrupt):  # the way to stop it
            server.serve_forever()
    say("Stopped.")


def _make_trackers(targets: list[str] | None) -> list[Callback]:
    """Return the callbacks of --tracker; an unknown or missing library is an error before anything runs."""
    if not targets:
        return []
    from grash.report.trackers import tracker

    return [tracker(target) for target in targets]


def _make_search(
    source: str, out: Path | None, asked: dict[str, Any], engine: dict[str, Any], reading: dict[str, Any], began: float
) -> Search:
    """Return the search that options and --config describe; options override the file. began: when its time starts."""
    from grash.api.dataset import load_dataset
    from grash.api.search import Search, settings_of_file
    from grash.search.time_limit import TimeLimit

    settings = dict(asked)
    fixed = dict(parse_assignment(text) for text in settings.pop("fixed", []))
    if (path := settings.pop("config", None)) is not None:
        from_file, ignored = settings_of_file(path)
        for line in ignored:
            say(f"ignored: {line}")
        settings = from_file | settings
        fixed = {**from_file.get("fixed", {}), **fixed}
    if fixed:
        settings["fixed"] = fixed
    if settings.get("time") is not None:
        settings["time"] = TimeLimit.of(settings["time"], began)
    dataset = load_dataset(source, **reading)
    return Search(dataset, source=source, out=out, **engine, **settings)


def _show_plan(made: Search, *, probe: bool = True, verbose: bool = False) -> None:
    """Show the plan, and of a search within a time what was chosen, instead of measuring again."""
    found = made.plan(probe=probe and made.choice is None)
    show(found.details() if verbose else found)
    for line in [] if made.choice is None else made.choice.sentences():
        show(wrapped(line))


def _run(
    made: Search,
    max_seconds: float | None,
    quiet: bool,
    json: bool,
    trackers: list[Callback],
    extend: dict[str, Any] | None = None,
    limit: TimeLimit | None = None,
) -> None:
    from grash.search.callbacks import OnChange

    if not quiet:
        say(f"run folder: {made.folder}")
    with live_display(quiet) as watch:
        reported = [OnChange(watch), *trackers]
        result = made.run(callbacks=reported, progress=False, max_seconds=max_seconds, extend=extend, time=limit)
    if json:
        as_json(summarize(result.state, datetime.now(timezone.utc)))
    if result.state.stopped:
        say(f"The search has stopped. {stop_reason(result.state)}")
        say(f"Continue with: {command('grash', 'resume', made.folder)}")
        if (made.folder / "best.yaml").is_file() and (best := result.state.incumbent()) is not None:
            say(f"Best so far: configuration {best.number}, {mrr_text(best.mrr, best.interval)} in round {best.round}.")
            source = graph_of(made.folder, made.source)
            say(f"Train it with: {command('grash', 'train', source, '--config', made.folder / 'best.yaml')}")
        raise typer.Exit(_STOP_CODES[result.state.stopped])
    if not json:
        _print_result(result, made.dataset)


def _print_result(result: SearchResult, dataset: Dataset) -> None:
    state, best = result.state, result.state.incumbent()
    if state.winner is not None:
        made = state.configurations[state.winner]
        show(f"winner: configuration {state.winner} ({made.values['model']}, {made.origin})")
        show(wrapped(settings_text(made.values), indent="  "))
    if best is not None and best.interval is not None:
        show(f"  valid MRR {best.mrr:.4f} [{best.interval[0]:.3f}, {best.interval[1]:.3f}] in round {best.round}")
    of_time = "" if state.settings.get("time") is None else f" of {format_duration(state.settings['time'])}"
    show(f"cost {state.spent:.3g} of {state.budget:g} full runs in {format_duration(state.seconds)}{of_time}")
    if late := over_time(state):
        show(wrapped(late, indent="  "))
    for change in state.changes:
        show(wrapped(f"changed on the way: {change}", indent="  "))
    if len(state.settings.get("models", [])) > 1:
        show("\nbest of each model (MRRs of different rounds cannot be compared)")
        table(("model", ">configuration", ">round", ">MRR"), [tuple(e.values()) for e in best_per_model(state)])
        show()
    if state.final is not None and state.final.status == "ok":
        _print_final(result, state.final)
    say(f"report: {result.folder / 'report.html'}")
    if (result.folder / "model").is_dir():
        say("ask the model:")
        for question in questions(dataset):
            words = [word for part, name in question.items() for word in (f"--{part}", name)]
            say(f"  {command('grash', 'predict', result.folder, *words)}")


def _print_final(result: SearchResult, final: TrialResult) -> None:
    """Print what the final training and its test mean."""
    if final.mrr is not None:
        show(f"final training: valid MRR {final.mrr:.4f}")
    if early := final_stop(result.state, result.best_config):
        show(wrapped(early))
    if not final.evaluation:
        return
    both, (low, high) = final.evaluation["both"], final.evaluation["mrr_interval"]
    hits = f"Hits@1 {both['hits@1']:.3f}  Hits@10 {both['hits@10']:.3f}"
    show(f"test MRR {both['mrr']:.4f} [{low:.3f}, {high:.3f}]  {hits}")
    if baseline := baseline_text(final.evaluation):
        show(baseline)
    show_relations(read_evaluation(result.folder), result.folder)
    if final.mrr is not None and both["mrr"] > final.mrr:
        show(wrapped(FILTERS))


def _print_status(summary: dict[str, Any], run: Path) -> None:
    show(f"{summary['dataset'].get('name', '')}, {', '.join(summary['models'])}: {summary['status']}\n")
    if summary["rounds"]:
        table([f">{name}" for name in ROUND_COLUMNS], [round_cells(entry) for entry in summary["rounds"]])
        show()
    for line in summary_lines(summary):
        show(line)
    found = summary["winner"] or summary["incumbent"]
    if found is not None:
        show(f"settings\n{wrapped(settings_text(found['values']), indent=' ' * 8)}")
    for failure in summary["failures"]:
        message = failure["message"].splitlines()[0] if failure["message"] else ""
        first = f"first: configuration {failure['configuration']}: {message}"
        show(f"{'failed':<8}{failure['count']} {failure['kind']}; {first}")
    if summary["why"]:
        show(f"\n{summary['why']}")
    if summary["status"] == "interrupted":
        show("\nThe process that ran the search is gone. No finished trial is lost.")
    if summary["status"] in ("stopped", "interrupted"):
        show(f"Continue with: {command('grash', 'resume', run)}")
        if (Path(run) / "best.yaml").is_file():
            source = graph_of(run, summary["dataset"].get("source") or "")
            words = ("grash", "train", source, "--config", Path(run) / "best.yaml")
            show(f"Train the best so far with: {command(*words)}")
    elif summary["winner"] and summary["winner"]["test"]:
        show(f"Model: {Path(run) / 'model'}. Configuration: {Path(run) / 'best.yaml'}.")
