"""A search while it runs: one table that is redrawn in a terminal, a line per change of state elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any

from grash.cli.console import say
from grash.formatting import format_duration, printable

if TYPE_CHECKING:
    from rich.console import Group
    from rich.table import Table

    from grash.search.ledger import SearchState
    from grash.training.loop import Progress

    TrialProgress = dict[tuple[int, int], Progress]  # by round and configuration
    Watch = Callable[[SearchState, TrialProgress, Sequence[str]], None]

ROUND_COLUMNS = ("round", "entities", "triples", "epochs", "done", "run", "wait", "fail", "best MRR", "cost")
_REDRAW_SECONDS = 0.25
_MOST_LINES = 4  # trials of one round on one device with their own line; more share one


@contextmanager
def live_display(quiet: bool = False) -> Iterator[Watch]:
    """Yield `watch(state, progress, devices)`, to be called whenever something may have changed; calls are cheap.

    In a terminal, a table is redrawn at the bottom and messages appear above it; elsewhere, lines are printed.
    """
    if quiet:
        yield lambda state, progress, devices: None
        return
    if not sys.stderr.isatty():
        from grash.report.progress import ProgressLines

        yield ProgressLines(say).watch
        return
    from rich.console import Console
    from rich.live import Live

    last: tuple[Any, ...] | None = None
    drawn = 0.0
    with Live(console=Console(stderr=True, highlight=False), auto_refresh=False) as live:

        def watch(state: SearchState, progress: TrialProgress, devices: Sequence[str]) -> None:
            nonlocal last, drawn
            last = (state, progress, devices)
            if time.monotonic() - drawn >= _REDRAW_SECONDS:
                live.update(draw_search(*last, now=datetime.now(timezone.utc)), refresh=True)
                drawn = time.monotonic()

        try:
            yield watch
        finally:
            if last is not None:
                live.update(draw_search(*last, now=datetime.now(timezone.utc)), refresh=True)


def draw_search(state: SearchState, progress: TrialProgress, devices: Sequence[str], *, now: datetime) -> Group:
    """Return the whole display: the table of rounds, the summary, and what runs on each device."""
    from rich.console import Group
    from rich.text import Text

    from grash.report.summary import summarize

    summary = summarize(state, now)
    lines = [*summary_lines(summary), *_device_lines(state, progress, devices)]
    return Group(_rounds_table(summary), *(Text(printable(line), no_wrap=True, overflow="ellipsis") for line in lines))


def summary_lines(summary: dict[str, Any]) -> list[str]:
    """Return best configuration, test score, budget and time as lines, also for `grash status`."""
    from grash.report.summary import mrr_text

    best, winner, budget = summary["incumbent"], summary["winner"], summary["budget"]
    lines = []
    if best is not None:
        number, higher = best["configuration"], best["higher"]
        is_winner = winner is not None and winner["configuration"] == number
        name = "winner" if is_winner else "first" if higher else "best"
        lines.append(f"{name:<8}configuration {number} ({best['values'].get('model', '')}, {best['origin']})")
        rising = f", still rising; configuration {higher['configuration']} has {higher['mrr']:.4f}" if higher else ""
        lines.append(f"{'valid':<8}{mrr_text(best['mrr'], best['interval'])} in round {best['round']}{rising}")
    if winner and winner["test"]:
        lines.append(f"{'test':<8}{mrr_text(winner['test'].get('mrr'), winner['test']['interval'])}")
    left = "" if summary["seconds_left"] is None else f", about {format_duration(summary['seconds_left'])} left"
    lines.append(f"{'budget':<8}{budget['spent']:.3g} of {budget['planned']:g} full runs")
    lines.append(f"{'time':<8}{format_duration(summary['seconds'])}{left}")
    return lines


def round_cells(entry: dict[str, Any]) -> list[str]:
    """Return the cells of a round, one per ROUND_COLUMNS."""
    plan, best = entry["plan"], entry["best"]
    sizes = [f"{plan['n_entities']:,}", f"{plan['n_train']:,}", f"{plan['epochs']:.3g}"] if plan else ["–"] * 3
    counts = [f"{entry[name]:,}" for name in ("done", "running", "waiting", "failed")]
    mrr = "–" if best is None else f"{best['mrr']:.4f}"
    return [str(entry["number"]), *sizes, *counts, mrr, f"{entry['cost']:.3g}"]


def _rounds_table(summary: dict[str, Any]) -> Table:
    from rich.box import SIMPLE_HEAD
    from rich.table import Table
    from rich.text import Text

    title = f"{summary['dataset'].get('name', '')}  {', '.join(summary['models'])}  {summary['status']}"
    drawn = Table(box=SIMPLE_HEAD, pad_edge=False, title=Text(printable(title), "bold"), title_justify="left")
    for column in ROUND_COLUMNS:
        drawn.add_column(column, justify="right", no_wrap=True)
    for entry in summary["rounds"]:
        drawn.add_row(*round_cells(entry))
    return drawn


def _device_lines(state: SearchState, progress: TrialProgress, devices: Sequence[str]) -> Iterator[str]:
    """Yield what runs on each device and its progress, or that the device is idle."""
    running: list[dict[str, Any]] = [event for r in state.rounds for event in r.running.values()]
    running += [state.final_running] if state.final_running is not None else []
    groups: dict[tuple[str, int], list[dict[str, Any]]] = {}
    for event in running:
        groups.setdefault((event.get("device", ""), event["round"]), []).append(event)
    for (device, number), events in groups.items():
        where = f"round {number}" if number else "final training"
        reports = [progress.get((number, event["number"])) for event in events]
        if len(events) <= _MOST_LINES:
            for event, report in zip(events, reports):
                yield f"{device:<7} configuration {event['number']} in {where}{_progress_text([report])}"
        else:
            yield f"{device:<7} {len(events)} trials of {where}{_progress_text(reports)}"
    for device in dict.fromkeys(devices):
        if device not in {busy for busy, _ in groups}:
            yield f"{device:<7} idle"


def _progress_text(reports: Sequence[Progress | None]) -> str:
    """Return the mean progress of trials, their best score, and the longest time left."""
    known = [report for report in reports if report is not None and report.n_steps]
    if not known:
        return ""
    done = sum(report.step / report.n_steps for report in known) / len(known)
    scores = [report.best_mrr for report in known if report.best_mrr is not None]
    score = f"  MRR {max(scores):.4f}" if scores else ""
    return f"  {done:4.0%}{score}  {format_duration(max(report.seconds_left for report in known))} left"
