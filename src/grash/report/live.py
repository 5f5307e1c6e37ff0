"""Progress while a search or a training runs: redrawn in a terminal and in Jupyter, lines elsewhere."""

from __future__ import annotations

import io
import sys
import textwrap
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any

from grash.formatting import format_duration, format_number, printable

if TYPE_CHECKING:
    from rich.console import Group
    from rich.table import Table

    from grash.search.ledger import SearchState
    from grash.training.loop import Progress

    TrialProgress = dict[tuple[int, int], Progress]  # by round and configuration
    Watch = Callable[[SearchState, TrialProgress, Sequence[str]], None]

ROUND_COLUMNS = ("round", "entities", "triples", "epochs", "done", "run", "wait", "fail", "best MRR", "cost")
_REDRAW_SECONDS = 0.25
_BAR_WIDTH = 14
_LINE_WIDTH = 100  # of lines that are printed to a pipe or file
_MOST_LINES = 4  # trials of one round on one device with their own line; more share one


@contextmanager
def live_display(quiet: bool = False) -> Iterator[Watch]:
    """Yield `watch(state, progress, devices)`, to be called whenever something may have changed; calls are cheap.

    In a terminal, the display is redrawn at the bottom and messages appear above it; in Jupyter, it is redrawn in the
    output of the cell; elsewhere, lines are printed.
    """
    if quiet:
        yield lambda state, progress, devices: None
        return
    if not is_interactive():
        from grash.report.progress import ProgressLines

        yield ProgressLines(_print_line, every_trial=False).watch
        return
    last: tuple[Any, ...] | None = None
    drawn = 0.0
    with _redrawn() as draw:

        def watch(state: SearchState, progress: TrialProgress, devices: Sequence[str]) -> None:
            nonlocal last, drawn
            last = (state, progress, devices)
            if time.monotonic() - drawn >= _REDRAW_SECONDS:
                draw(draw_search(*last, now=datetime.now(timezone.utc)))
                drawn = time.monotonic()

        try:
            yield watch
        finally:
            if last is not None:
                draw(draw_search(*last, now=datetime.now(timezone.utc)))


@contextmanager
def training_display(epochs: float, quiet: bool = False) -> Iterator[Callable[[Progress], None] | None]:
    """Yield a function that shows the progress of a training in one line, redrawn; None where nobody would see it."""
    if quiet or not is_interactive():
        yield None
        return
    drawn = 0.0
    with _redrawn() as draw:

        def watch(progress: Progress) -> None:
            nonlocal drawn
            if time.monotonic() - drawn >= _REDRAW_SECONDS or not progress.seconds_left:
                draw(progress_line(progress, epochs))
                drawn = time.monotonic()

        yield watch


def progress_line(progress: Progress, epochs: float, memory: str = "") -> str:
    """Return epoch, loss, speed, time left, best MRR and memory in one line; a narrow terminal cuts its end."""
    speed, left = f"{format_number(progress.examples_per_second)} triples/s", format_duration(progress.seconds_left)
    best = "" if progress.best_mrr is None else f"  best valid MRR {progress.best_mrr:.4f}"
    used = f"  {memory}" if memory else ""
    return f"epoch {progress.epoch:.1f}/{epochs:g}  loss {progress.loss:.4g}  {speed}  {left} left{best}{used}"


def is_interactive() -> bool:
    """Return whether a person sees the output: a terminal, or the cell of a notebook."""
    return in_jupyter() or sys.stderr.isatty()


def in_jupyter() -> bool:
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    return type(shell).__name__ == "ZMQInteractiveShell"


@contextmanager
def _redrawn() -> Iterator[Callable[[Any], None]]:
    """Yield a function that draws a text or something of rich, in place of what it drew before."""
    from rich.console import Console
    from rich.live import Live

    if not in_jupyter():
        with Live(console=Console(stderr=True, highlight=False), auto_refresh=False) as live:
            yield lambda shown: live.update(shown, refresh=True)
        return
    from IPython.display import HTML, display

    handle = display(HTML(""), display_id=True)
    yield lambda shown: handle.update(HTML(_as_html(shown)))


def _as_html(shown: Any) -> str:
    """Return what rich would print in a terminal of 100 columns, as HTML with escaped names."""
    from rich.console import Console

    console = Console(
        record=True, file=io.StringIO(), width=100, highlight=False, force_jupyter=False, color_system="truecolor"
    )
    console.print(shown, markup=False)
    return console.export_html(code_format='<pre style="line-height:1.3">{code}</pre>', inline_styles=True)


def _print_line(line: str) -> None:
    """Print a line of progress; a longer one continues below, indented."""
    lines = textwrap.wrap(printable(line), _LINE_WIDTH, subsequent_indent="  ", break_on_hyphens=False)
    print("\n".join(lines), file=sys.stderr, flush=True)


def draw_search(state: SearchState, progress: TrialProgress, devices: Sequence[str], *, now: datetime) -> Group:
    """Return the whole display: a bar for the search and for each round, the best so far, what runs on each device."""
    from rich.console import Group
    from rich.text import Text

    from grash.report.summary import summarize

    summary = summarize(state, now)
    lines = [line for line in summary_lines(summary) if not line.startswith(("budget", "time"))]
    best = [Text(printable(line), no_wrap=True, overflow="ellipsis", style="bold green") for line in lines]
    title = Text(printable(_title(summary)), "bold", no_wrap=True, overflow="ellipsis")
    running = _running_table(list(_running_groups(state, progress, devices)))
    return Group(title, _rounds_table(state, summary, progress), *best, running)


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
    if summary["rounds"]:
        lines.append(f"{'budget':<8}{budget['spent']:.3g} of {budget['planned']:g} full runs")
    of_time = f" of {format_duration(summary['time'])}" if summary.get("time") else ""
    lines.append(f"{'time':<8}{format_duration(summary['seconds'])}{of_time}{left}")
    lines += [f"{'changed':<8}{change}" for change in summary.get("changes", [])]
    return lines


def round_cells(entry: dict[str, Any]) -> list[str]:
    """Return the cells of a round, one per ROUND_COLUMNS."""
    plan, best = entry["plan"], entry["best"]
    sizes = [f"{plan['n_entities']:,}", f"{plan['n_train']:,}", f"{plan['epochs']:.3g}"] if plan else ["–"] * 3
    counts = [f"{entry[name]:,}" for name in ("done", "running", "waiting", "failed")]
    mrr = "–" if best is None else f"{best['mrr']:.4f}"
    cost = "on top" if plan and plan["compares_finalists"] else f"{entry['cost']:.3g}"
    return [str(entry["number"]), *sizes, *counts, mrr, cost]


def _title(summary: dict[str, Any]) -> str:
    left = "" if summary["seconds_left"] is None else f", about {format_duration(summary['seconds_left'])} left"
    name = f"{summary['dataset'].get('name', '')}, {', '.join(summary['models'])}"
    return f"{name}: {summary['status']}, {format_duration(summary['seconds'])}{left}"


def _rounds_table(state: SearchState, summary: dict[str, Any], progress: TrialProgress) -> Table:
    """Return a row with a progress bar for each round and the final training, and one for the whole budget."""
    from rich.progress_bar import ProgressBar
    from rich.table import Table

    drawn = Table(box=None, pad_edge=False, header_style="dim")
    for name in ("round", "entities", "triples", "epochs", "MRR"):
        drawn.add_column(name, justify="left" if name == "round" else "right", no_wrap=True)
    drawn.add_column("", width=_BAR_WIDTH)
    drawn.add_column("trials", no_wrap=True)
    for entry in summary["rounds"]:
        sizes, mrr = _sizes(entry["plan"]), round_cells(entry)[-2]
        ended, total = entry["done"] + entry["failed"], entry["trials"]
        half_done = sum(share for (number, _), share in _shares(progress).items() if number == entry["number"])
        failed = f", {entry['failed']} failed" if entry["failed"] else ""
        bar = ProgressBar(total=max(1, total), completed=min(total, ended + half_done), width=_BAR_WIDTH)
        drawn.add_row(str(entry["number"]), *sizes, mrr, bar, f"{ended}/{total}{failed}")
    if state.settings.get("final_train", True):
        done = 1.0 if state.final is not None else sum(s for (number, _), s in _shares(progress).items() if not number)
        sizes, mrr = _sizes({**state.dataset, "epochs": state.settings.get("max_epochs", 0.0)}), "–"
        if state.final is not None and state.final.mrr is not None:
            mrr = f"{state.final.mrr:.4f}"
        ended = f"{int(state.final is not None)}/1"
        drawn.add_row("final", *sizes, mrr, ProgressBar(total=1, completed=done, width=_BAR_WIDTH), ended)
    spent, planned = summary["budget"]["spent"], summary["budget"]["planned"]
    bar = ProgressBar(total=planned or 1.0, completed=planned if state.finished else spent, width=_BAR_WIDTH)
    drawn.add_row("cost", "", "", "", "", bar, f"{spent:.3g} of {planned:g} runs")
    return drawn


def _sizes(plan: dict[str, Any] | None) -> list[str]:
    """Return entities, triples and epochs; of large graphs with three digits."""
    if plan is None:
        return ["–"] * 3
    counts = [plan.get(name, 0) for name in ("n_entities", "n_train")]
    return [*(f"{n:,}" if n < 1_000_000 else format_number(n) for n in counts), f"{plan['epochs']:.3g}"]


def _running_table(groups: list[tuple[str, str, list[Progress | None]]]) -> Table:
    """Return a row for each trial, or group of trials, that runs on a device."""
    from rich.progress_bar import ProgressBar
    from rich.table import Table
    from rich.text import Text

    drawn = Table.grid(padding=(0, 2, 0, 0))
    for _ in range(4):
        drawn.add_column(no_wrap=True)
    for device, what, reports in groups:
        known = [report for report in reports if report is not None and report.n_steps]
        done = sum(report.step / report.n_steps for report in known) / len(known) if known else 0.0
        bar = ProgressBar(total=1, completed=done, width=10) if reports else ""
        drawn.add_row(Text(printable(device), "cyan"), what, bar, _progress_text(known))
    return drawn


def _running_groups(
    state: SearchState, progress: TrialProgress, devices: Sequence[str]
) -> Iterator[tuple[str, str, list[Progress | None]]]:
    """Yield (device, what runs there, its progress reports); an idle device has no reports."""
    running: list[dict[str, Any]] = [event for r in state.rounds for event in r.running.values()]
    running += [state.final_running] if state.final_running is not None else []
    groups: dict[tuple[str, int], list[dict[str, Any]]] = {}
    for event in running:
        groups.setdefault((event.get("device", ""), event["round"]), []).append(event)
    for (device, number), events in groups.items():
        where = f"round {number}" if number else "final"
        reports = [progress.get((number, event["number"])) for event in events]
        if len(events) <= _MOST_LINES:
            for event, report in zip(events, reports):
                yield device, f"configuration {event['number']}, {where}", [report]
        else:
            yield device, f"{len(events)} trials of {where}", reports
    if state.finished:
        return
    begun = groups or any(r.results for r in state.rounds)
    for device in dict.fromkeys(devices):
        if device not in {busy for busy, _ in groups}:
            yield device, "idle" if begun else "starting", []


def _shares(progress: TrialProgress) -> dict[tuple[int, int], float]:
    """Return the share of each running trial that is done."""
    return {trial: report.step / report.n_steps for trial, report in progress.items() if report.n_steps}


def _progress_text(known: Sequence[Progress]) -> str:
    """Return the mean progress of trials, their best score, and the longest time left."""
    if not known:
        return ""
    done = sum(report.step / report.n_steps for report in known) / len(known)
    scores = [report.best_mrr for report in known if report.best_mrr is not None]
    score = f"  MRR {max(scores):.4f}" if scores else ""
    return f"{done:4.0%}{score}  {format_duration(max(report.seconds_left for report in known))} left"
