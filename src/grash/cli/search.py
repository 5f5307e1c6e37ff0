"""grash search, plan, resume: what a search is, what it will cost, and running it."""

from __future__ import annotations

from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from grash.cli.console import as_json, command, listen, say, table
from grash.cli.live import ROUND_COLUMNS, round_cells, summary_lines
from grash.cli.options import Json, Source, takes, takes_source_options
from grash.cli.train import assignment
from grash.errors import ConfigError

if TYPE_CHECKING:
    from grash.api.result import SearchResult
    from grash.api.search import Search
    from grash.search.trial import TrialResult
    from grash.training.config import TrainConfig


RESUMABLE = 7  # exit code of a search that was stopped and goes on with `grash resume`


def _option(*names: str, help: str) -> Any:
    return typer.Option(*names, help=help, show_default=False)


_SETTINGS: dict[str, tuple[Any, Any, Any]] = {
    "config": (
        Path | None,
        None,
        _option("--config", "-c", help="YAML file of settings, or a GraSH search file of LibKGE as it is."),
    ),
    "preset": (str | None, None, _option("--preset", help="default, paper or paper-text [default].")),
    "models": (
        str | None,
        None,
        _option("--model", "-m", help="One model, or several with commas that share rounds and budget [complex]."),
    ),
    "dim": (int | None, None, _option("--dim", "-d", help="Floats per entity [128].")),
    "max_epochs": (float | None, None, _option("--epochs", "-e", help="E: epochs of a full training run [100].")),
    "budget": (float | None, None, _option("--budget", "-B", help="B: cost of the search in full runs [3].")),
    "n_trials": (int | None, None, _option("--n-trials", "-n", help="n: configurations of the first round [64].")),
    "eta": (int | None, None, _option("--eta", help="η: one in η goes on to the next round [4].")),
    "variant": (str | None, None, _option("--variant", help="combined, graph or epoch: what is reduced [combined].")),
    "space": (str | None, None, _option("--space", help="default, paper, wide, or a YAML file [default].")),
    "proposals": (
        str | None,
        None,
        _option("--proposals", help="First round: random, sobol or portfolio [portfolio]."),
    ),
    "initial_config": (
        list[Path] | None,
        None,
        _option("--initial-config", help="A configuration (YAML) that enters the first round. Repeatable."),
    ),
    "from_run": (
        Path | None,
        None,
        _option("--from-run", help="The best configurations of an earlier search enter the first round."),
    ),
    "seed": (int | None, None, _option("--seed", help="Every random choice follows from it [0].")),
    "reduction": (
        str | None,
        None,
        _option("--reduction", help="Subgraphs: chain, or ladder of whole k-cores [chain]."),
    ),
    "degree": (str | None, None, _option("--degree", help="Cores by neighbors or triples [neighbors].")),
    "guard_rails": (
        bool | None,
        None,
        _option("--guard-rails/--no-guard-rails", help="Guard rails against too small rounds [on]."),
    ),
    "threads": (int | None, None, _option("--threads", help="CPU threads of a trial; results depend on it [1].")),
    "final_threads": (
        int | None,
        None,
        _option("--final-threads", help="CPU threads of the final training [as --threads]."),
    ),
    "budget_unit": (
        str | None,
        None,
        _option("--budget-unit", help="Unit of the budget: triples or scores [triples]."),
    ),
    "warm_start": (
        str | None,
        None,
        _option("--warm-start", help="off, or weights: survivors take their rows to the next round [off]."),
    ),
    "final_train": (
        bool | None,
        None,
        _option("--final-train/--no-final-train", help="Train the winner on the full graph [yes]."),
    ),
    "fixed": (
        list[str] | None,
        None,
        _option("--set", help="A setting of the training that is not searched, name=value. Repeatable."),
    ),
}
_RUNNING: dict[str, tuple[Any, Any, Any]] = {
    "engine": (str | None, None, _option("--engine", help="auto, sequential, processes, stacked or ray [auto].")),
    "device": (str | None, None, _option("--device", help="auto, cpu, or cuda:0,cuda:1, … [auto].")),
    "workers": (int | None, None, _option("--workers", help="Trials at a time; as many as cores or cards carry.")),
    "address": (
        str | None,
        None,
        _option("--address", help="Of a Ray cluster: HOST:PORT, or auto [one of this machine]."),
    ),
    "placement": (
        str | None,
        None,
        _option("--placement", help="Entity rows of the final model: auto, device, host or disk [auto]."),
    ),
    "trial_timeout": (
        float | None,
        None,
        _option("--trial-timeout", help="Seconds after which a trial is given up."),
    ),
}
Out = Annotated[
    Path | None,
    typer.Option("-o", "--out", help="Run folder; runs/DATASET-MODEL-search by default.", show_default=False),
]
MaxSeconds = Annotated[
    float | None, typer.Option("--max-seconds", help="Stop after that time; resume goes on.", show_default=False)
]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="No plan and no progress.")]


def add_to(app: typer.Typer) -> None:
    asks, runs = takes(_SETTINGS, "asked"), takes(_RUNNING, "running")
    app.command()(takes_source_options(runs(asks(search))))
    app.command()(takes_source_options(asks(plan)))
    app.command()(runs(resume))
    for verb in (status, report, dashboard):
        app.command()(verb)


def search(
    source: Source,
    out: Out = None,
    max_seconds: MaxSeconds = None,
    extend: Annotated[
        bool, typer.Option("--extend", help="Add to a search that was made: a larger --n-trials or --budget.")
    ] = False,
    quiet: Quiet = False,
    json: Json = False,
    *,
    asked: dict[str, Any],
    running: dict[str, Any],
    reading: dict[str, Any],
) -> None:
    """Find good hyperparameters at the cost of about three training runs, train the winner, test it, report.

    The run folder is the whole truth: the same command, or grash resume, goes on after Ctrl-C, a crash or a kill.
    Ctrl-C once finishes the running trials first; twice saves and stops at once. Defaults stand in [brackets].
    """
    from grash.api.search import Search

    listen()
    if (Path(source) / "search.yaml").is_file():
        more: dict[str, Any] = {k: asked.pop(k) for k in ("n_trials", "budget") if extend and k in asked}
        if extend and not more:
            raise ConfigError("--extend needs a larger --n-trials or --budget.")
        if out is not None:
            raise ConfigError(f"{source} is a run folder and goes on in its place: leave out -o.")
        if asked or reading:
            raise ConfigError(f"{source} is a run folder, whose settings stand: leave out {_names(asked, reading)}.")
        _run(Search.open(source, **running), max_seconds, quiet, json, extend=more or None)
        return
    if extend:
        raise ConfigError(f"--extend adds to a search that was made, and {source} is no run folder: give that.")
    made = _search(source, out, asked, running, reading)
    if not quiet and not made.begun:
        print(made.plan(), flush=True)
    _run(made, max_seconds, quiet, json)


def plan(
    source: Source,
    out: Out = None,
    probe: Annotated[bool, typer.Option("--probe/--no-probe", help="Measure seconds on this machine.")] = True,
    device: Annotated[str, typer.Option("--device", help="auto, cpu, cuda or cuda:i.")] = "auto",
    placement: Annotated[str, typer.Option("--placement", help="Of the final model, as in grash search.")] = "auto",
    json: Json = False,
    *,
    asked: dict[str, Any],
    reading: dict[str, Any],
) -> None:
    """Show every round of a search before anything runs: trials, graph, epochs, negatives, cost, seconds, memory."""
    listen()
    made = _search(source, out, asked, {"device": device, "placement": placement}, reading)
    found = made.plan(probe=probe)
    if json:
        from dataclasses import asdict

        as_json(asdict(found) | {"seconds": found.seconds})
    else:
        print(found)


def resume(
    folder: Annotated[Path, typer.Argument(help="A run folder, from grash search.", show_default=False)],
    max_seconds: MaxSeconds = None,
    quiet: Quiet = False,
    json: Json = False,
    *,
    running: dict[str, Any],
) -> None:
    """Go on with a search, from wherever it stopped. The same as grash search with its settings."""
    from grash.api.search import Search

    listen()
    _run(Search.open(folder, **running), max_seconds, quiet, json)


def _search(
    source: str, out: Path | None, asked: dict[str, Any], running: dict[str, Any], reading: dict[str, Any]
) -> Search:
    from grash.api import dataset as datasets_api
    from grash.api.search import Search, settings_of_file

    asked = dict(asked)
    preset = asked.pop("preset", None)
    settings: dict[str, Any] = {}
    if (config := asked.pop("config", None)) is not None:
        settings, ignored = settings_of_file(config)
        for line in ignored:
            say(f"ignored: {line}")
    fixed = dict(assignment(text) for text in asked.pop("fixed", None) or [])
    initial = asked.pop("initial_config", None) or []
    from_run = asked.pop("from_run", None)
    settings |= asked
    if fixed:
        settings["fixed"] = {**settings.get("fixed", {}), **fixed}
    preset = preset or settings.get("preset", "default")
    settings.pop("preset", None)
    return Search(
        datasets_api.load_dataset(source, **reading), source=source, out=out, preset=preset, initial_configs=initial,
        from_run=from_run, **running, **settings,
    )  # fmt: skip


def _run(
    made: Search, max_seconds: float | None, quiet: bool, json: bool, extend: dict[str, Any] | None = None
) -> None:
    from grash.cli.live import live_display

    if not quiet:
        say(f"run folder: {made.folder}")
    from grash.report.summary import stop_reason, summarize

    with live_display(quiet) as watch:
        result = made.run(watch=watch, max_seconds=max_seconds, extend=extend)
    if json:
        from datetime import datetime, timezone

        as_json(summarize(result.state, datetime.now(timezone.utc)))
    if result.state.stopped:
        say(f"The search has stopped. {stop_reason(result.state)}")
        say(f"Continue with: {command('grash', 'resume', made.folder)}")
        raise typer.Exit(130 if result.state.stopped == "interrupted" else RESUMABLE)
    if not json:
        _show_result(result)


def _show_result(result: SearchResult) -> None:
    state = result.state
    best = state.incumbent()
    config = result.best_config
    if state.winner is not None:
        print(f"winner: configuration {state.winner} ({state.configurations[state.winner].origin})")
    if best is not None and best.interval is not None:
        print(f"  valid MRR {best.mrr:.4f} [{best.interval[0]:.3f}, {best.interval[1]:.3f}] in round {best.round}")
    shown = config.model_dump(exclude_defaults=True, exclude={"epochs", "valid_every", "patience", "seed", "variation"})
    print("  " + ", ".join(f"{k}={v:.4g}" if isinstance(v, float) else f"{k}={v}" for k, v in shown.items()))
    print(f"billed {state.spent:.4g} of {state.budget:g} full runs in {state.seconds:,.0f} s")
    if state.final is not None and (early := _early_stop(state.final, config)):
        print(early)
    if state.final is not None and state.final.evaluation:
        both = state.final.evaluation["both"]
        low, high = state.final.evaluation["mrr_interval"]
        print(
            f"test MRR {both['mrr']:.4f} [{low:.3f}, {high:.3f}]  Hits@1 {both['hits@1']:.3f}  "
            f"Hits@10 {both['hits@10']:.3f}"
        )
    say(f"report: {result.folder / 'report.html'}")
    if (result.folder / "model").is_dir():
        ask = command("grash", "predict", result.folder / "model", "--head", "NAME", "--relation", "NAME")
        say(f"ask the model: {ask}")


def _early_stop(final: TrialResult, config: TrainConfig) -> str:
    """Where a final training ended for want of patience before its planned epochs; else nothing."""
    if final.status != "ok" or config.patience is None or not final.history:
        return ""
    best, last = max(final.history, key=lambda v: v["mrr"]), final.history[-1]
    waited = sum(v["step"] > best["step"] for v in final.history)
    if waited < config.patience or round(last["epoch"], 2) >= round(config.epochs, 2):
        return ""
    return (
        f"final training stopped at epoch {last['epoch']:.4g} of {config.epochs:g}: no better validation since epoch "
        f"{best['epoch']:.4g} (valid MRR {best['mrr']:.4f})"
    )


def _names(*given: dict[str, Any]) -> str:
    return ", ".join(f"--{name.replace('_', '-')}" for part in given for name in part)


# = grash status, report, dashboard: looking at a search, while it runs and after. None of them changes it.

Run = Annotated[Path, typer.Argument(help="A run folder, from grash search.", show_default=False)]
Runs = Annotated[
    list[Path], typer.Argument(metavar="RUN...", help="Run folders, from grash search.", show_default=False)
]
_COMPARED = ("run", "dataset", "model", ">n", ">E", "state", ">valid MRR", ">test MRR", ">cost", ">seconds")


def status(runs: Runs, json: Json = False) -> None:
    """Show where a search stands: rounds, the best configuration, budget, time left, failures. Several: a row for each.

    Reads the ledger of the run folder only, so that it can be asked at any time, on any machine that sees the folder.
    """
    from grash.report.summary import is_abandoned, read_state, summarize

    listen()
    found = [summarize(read_state(run), datetime.now(timezone.utc), alive=not is_abandoned(run)) for run in runs]
    if json:
        as_json(found[0] if len(runs) == 1 else [{"run": str(run), **entry} for run, entry in zip(runs, found)])
    elif len(runs) == 1:
        _print_status(found[0], runs[0])
    else:
        table(_COMPARED, [_compared(entry, run) for run, entry in zip(runs, found)])


def report(
    run: Run,
    open_it: Annotated[bool, typer.Option("--open", help="Open it in the browser.")] = False,
) -> None:
    """Write report.html of a search anew: one file with charts of rounds, ranks, parameters and costs.

    A search writes it too, at the end of each round; it needs no network and can be sent to others.
    """
    from grash.report.page import write_report

    listen()
    path = write_report(run)
    print(path)
    if open_it:
        import webbrowser

        webbrowser.open(path.resolve().as_uri())


def dashboard(
    run: Run,
    port: Annotated[int, typer.Option("--port", help="Port on this machine; 0 takes a free one.")] = 8080,
) -> None:
    """Start optuna-dashboard on a search; it shows rounds that go on as they do. Ctrl-C ends it.

    It listens on 127.0.0.1 only.
    """
    from grash.report.optuna import dashboard_server

    listen()
    with dashboard_server(run, port) as server:
        say(f"http://127.0.0.1:{server.server_port}/dashboard  (Ctrl-C ends it)")
        server.serve_forever()


def _print_status(summary: dict[str, Any], run: Path) -> None:
    words = f"{summary['dataset'].get('name', '')}, {', '.join(summary['models'])}: {summary['status']}"
    print(f"{words}\n")
    table(ROUND_COLUMNS, [round_cells(entry) for entry in summary["rounds"]])
    print()
    for line in summary_lines(summary):
        print(line)
    _print_rest(summary, run)


def _compared(summary: dict[str, Any], run: Path) -> list[object]:
    """A run beside others: MRRs are those of the winner trained in full, since rounds have graphs of their own."""
    winner = summary["winner"] or {}
    models, epochs = ", ".join(summary["models"]), summary["max_epochs"]
    mrrs = [(winner.get("final") or {}).get("valid_mrr"), (winner.get("test") or {}).get("mrr")]
    return [
        str(run), summary["dataset"].get("name", ""), models, summary["n_trials"],
        None if epochs is None else f"{epochs:g}", summary["status"],
        *mrrs, f"{summary['budget']['spent']:.3g}", f"{summary['seconds']:.0f}",
    ]  # fmt: skip


def _print_rest(summary: dict[str, Any], run: Path) -> None:
    for failure in summary["failures"]:
        first = failure["message"].splitlines()[0] if failure["message"] else ""
        print(f"failed  {failure['count']} {failure['kind']}, first cfg {failure['configuration']}: {first}")
    if summary["why"]:
        print(f"\n{summary['why']}")
    if summary["status"] == "interrupted":
        print("\nThe process that ran it has gone; nothing that the ledger has is lost.")
    if summary["status"] in ("stopped", "interrupted"):
        print(f"Go on with: {command('grash', 'resume', run)}")
    elif summary["winner"] and summary["winner"]["test"]:
        print(f"The model: {Path(run) / 'model'}; its configuration: {Path(run) / 'best.yaml'}")
