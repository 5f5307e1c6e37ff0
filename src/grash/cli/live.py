"""A search while it runs: one table that is redrawn in a terminal, a line per change of state elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any

from grash.cli.console import say

if TYPE_CHECKING:
    from rich.console import Group

    from grash.search.ledger import SearchState
    from grash.training.loop import Progress

    Watch = Callable[[SearchState, dict[tuple[int, int], Progress], Sequence[str]], None]

_REDRAW_SECONDS = 0.25
_LINES = 4  # of trials of one round on one device; more share a line


@contextmanager
def live_display(quiet: bool = False) -> Iterator[Watch]:
    """Yields `watch(state, heartbeats, devices)`, to be called whenever something may have changed; calls are cheap."""
    if quiet:
        yield lambda state, heartbeats, devices: None
    elif sys.stderr.isatty():
        with _Table() as drawn:
            yield drawn.watch
    else:
        from grash.report.progress import ProgressLines

        yield ProgressLines(say).watch


class _Table:
    """One table at the bottom of the terminal; what is said meanwhile appears above it."""

    def __init__(self) -> None:
        from rich.console import Console
        from rich.live import Live

        self._live = Live(console=Console(stderr=True, highlight=False), auto_refresh=False)
        self._drawn = 0.0
        self._last: tuple[Any, ...] | None = None

    def __enter__(self) -> _Table:
        self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._last is not None:
            self._live.update(picture(*self._last, now=datetime.now(timezone.utc)), refresh=True)
        self._live.stop()

    def watch(self, state: SearchState, heartbeats: dict[tuple[int, int], Progress], devices: Sequence[str]) -> None:
        self._last = (state, heartbeats, devices)
        if time.monotonic() - self._drawn < _REDRAW_SECONDS:
            return
        self._live.update(picture(*self._last, now=datetime.now(timezone.utc)), refresh=True)
        self._drawn = time.monotonic()


def picture(
    state: SearchState, heartbeats: dict[tuple[int, int], Progress], devices: Sequence[str], *, now: datetime
) -> Group:
    """The whole display, for rich to print."""
    from rich.console import Group
    from rich.text import Text

    from grash.report.summary import summarize

    summary = summarize(state, now)
    lines = [Text(line, no_wrap=True, overflow="ellipsis") for line in summary_lines(summary)]
    running = [Text(line, no_wrap=True, overflow="ellipsis") for line in _device_lines(state, heartbeats, devices)]
    return Group(_rounds_table(summary), *lines, *running)


def summary_lines(summary: dict[str, Any]) -> list[str]:
    """Incumbent or winner, budget and time, in words: for the live table and for `grash status`."""
    from grash.formatting import format_duration

    best, winner, budget = summary["incumbent"], summary["winner"], summary["budget"]
    lines = []
    if best is not None:
        span = f" [{best['interval'][0]:.4f}, {best['interval'][1]:.4f}]" if best["interval"] else ""
        higher = best["higher"]
        name = (
            "winner" if winner and winner["configuration"] == best["configuration"] else "first" if higher else "best"
        )
        what = f"{best['values'].get('model', '')}, {best['origin']}"
        score = f"MRR {best['mrr']:.4f}{span} in round {best['round']}"
        if higher:
            score += f", still rising; cfg {higher['configuration']} has {higher['mrr']:.4f}"
        lines.append(f"{name:<8}cfg {best['configuration']}  {score}  ({what})")
    if winner and winner["test"]:
        test = winner["test"]
        span = f" [{test['interval'][0]:.4f}, {test['interval'][1]:.4f}]" if test["interval"] else ""
        lines.append(f"test    MRR {test.get('mrr', 0.0):.4f}{span}")
    left = "" if summary["seconds_left"] is None else f", about {format_duration(summary['seconds_left'])} left"
    lines.append(f"budget  {budget['spent']:.3g} of {budget['planned']:g} full runs")
    lines.append(f"time    {format_duration(summary['seconds'])}{left}")
    return lines


def round_cells(entry: dict[str, Any]) -> list[object]:
    """The cells of a round in a table: plan, counts, best."""
    plan, best = entry["plan"], entry["best"]
    figures = (plan["n_entities"], plan["n_train"], f"{plan['epochs']:.3g}") if plan else (None, None, None)
    score = None if best is None else f"{best['mrr']:.4f}"
    counted = [entry[name] for name in ("done", "running", "waiting", "failed")]
    return [entry["number"], *figures, *counted, score, f"{entry['cost']:.3g}"]


ROUND_COLUMNS = (
    ">round", ">entities", ">triples", ">epochs", ">done", ">run", ">wait", ">fail", ">best MRR", ">cost",
)  # fmt: skip


def _rounds_table(summary: dict[str, Any]) -> Any:
    from rich.box import SIMPLE_HEAD
    from rich.table import Table
    from rich.text import Text

    name = f"{summary['dataset'].get('name', '')}  {', '.join(summary['models'])}  {summary['status']}"
    drawn = Table(box=SIMPLE_HEAD, pad_edge=False, title=Text(name, "bold"), title_justify="left")
    for column in ROUND_COLUMNS:
        drawn.add_column(column.lstrip(">"), justify="right", no_wrap=True)
    for entry in summary["rounds"]:
        cells = [
            "–" if cell is None else f"{cell:,}" if isinstance(cell, int) else str(cell) for cell in round_cells(entry)
        ]
        drawn.add_row(*cells)
    return drawn


def _device_lines(
    state: SearchState, heartbeats: dict[tuple[int, int], Progress], devices: Sequence[str]
) -> Iterator[str]:
    """What runs on each device, and how far it is; idle devices too."""
    going: list[dict[str, Any]] = [event for past in state.rounds for event in past.running.values()]
    going += [state.final_running] if state.final_running is not None else []
    together: dict[tuple[str, int], list[dict[str, Any]]] = {}
    for event in going:
        together.setdefault((event.get("device", ""), event["round"]), []).append(event)
    for (device, number), events in together.items():
        place = f"round {number}" if number else "final training"
        beats = [heartbeats.get((number, event["number"])) for event in events]
        if len(events) <= _LINES:
            yield from (f"{device:<7} cfg {e['number']} in {place}{_far([b])}" for e, b in zip(events, beats))
        else:
            yield f"{device:<7} {len(events)} trials of {place}{_far(beats)}"
    for device in dict.fromkeys(devices):
        if device not in {busy for busy, _ in together}:
            yield f"{device:<7} idle"


def _far(heartbeats: Sequence[Progress | None]) -> str:
    """How far trials are together: their mean step, their best score, the longest time that one still takes."""
    from grash.formatting import format_duration

    heard = [beat for beat in heartbeats if beat is not None and beat.n_steps]
    if not heard:
        return ""
    done = sum(beat.step / beat.n_steps for beat in heard) / len(heard)
    scores = [beat.best_mrr for beat in heard if beat.best_mrr is not None]
    score = f"  MRR {max(scores):.4f}" if scores else ""
    return f"  {done:4.0%}{score}  {format_duration(max(beat.seconds_left for beat in heard))} left"
