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


def add_to(app: typer.Typer) -> None:
    for verb in (status, report, dashboard):
        app.command()(verb)


def status(run: Run, json: Json = False) -> None:
    """Show where a search stands: rounds, the best configuration, budget, time left, failures.

    Reads the ledger of the run folder only, so that it can be asked at any time, on any machine that sees the folder.
    """
    from grash.report.summary import abandoned, state_of, summarise

    listen()
    summary = summarise(state_of(run), datetime.now(timezone.utc), alive=not abandoned(run))
    if json:
        as_json(summary)
        return
    words = f"{summary['dataset'].get('name', '')}, {', '.join(summary['models'])}: {summary['status']}"
    print(f"{words}\n")
    table(ROUND_COLUMNS, [round_cells(entry) for entry in summary["rounds"]])
    print()
    for line in summary_lines(summary):
        print(line)
    _print_rest(summary, run)


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
