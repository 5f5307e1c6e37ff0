"""grash status, report, dashboard: looking at a search, while it runs and after. None of them changes it."""

from __future__ import annotations

from datetime import datetime, timezone
from pathlib import Path
from typing import Annotated, Any

import typer

from grash.cli.live import ROUND_COLUMNS, round_cells, summary_lines
from grash.cli.options import Json
from grash.cli.show import as_json, command, listen, say, table

Run = Annotated[Path, typer.Argument(help="A run folder, from grash search.", show_default=False)]
Runs = Annotated[
    list[Path], typer.Argument(metavar="RUN...", help="Run folders, from grash search.", show_default=False)
]
_COMPARED = ("run", "dataset", "model", ">n", ">E", "state", ">valid MRR", ">test MRR", ">cost", ">seconds")


def add_to(app: typer.Typer) -> None:
    for verb in (status, report, dashboard):
        app.command()(verb)


def status(runs: Runs, json: Json = False) -> None:
    """Show where a search stands: rounds, the best configuration, budget, time left, failures. Several: a row for each.

    Reads the ledger of the run folder only, so that it can be asked at any time, on any machine that sees the folder.
    """
    from grash.report.summary import abandoned, state_of, summarise

    listen()
    found = [summarise(state_of(run), datetime.now(timezone.utc), alive=not abandoned(run)) for run in runs]
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
    from grash.report.dashboard import dashboard_server

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
