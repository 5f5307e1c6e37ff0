"""A search while it runs: one table that is redrawn in a terminal, a line per change of state elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any

from grash.cli.show import say

if TYPE_CHECKING:
    from rich.console import Group

    from grash.search.state import RoundState, SearchState
    from grash.search.trial import Heartbeat, Result

    Watch = Callable[[SearchState, dict[tuple[int, int], Heartbeat], Sequence[str]], None]

_REDRAW_SECONDS = 0.25


@contextmanager
def live_display(quiet: bool = False) -> Iterator[Watch]:
    """Yields `watch(state, heartbeats, devices)`, to be called whenever something may have changed; calls are cheap."""
    if quiet:
        yield lambda state, heartbeats, devices: None
    elif sys.stderr.isatty():
        with _Table() as drawn:
            yield drawn.watch
    else:
        yield _Lines().watch


class _Lines:
    """Says a round when it opens, every trial when it has ended, a round when it is closed, the winner."""

    def __init__(self) -> None:
        self._begun = False
        self._said: dict[int, set[int]] = {}  # by round, the configurations whose end was said
        self._closed: dict[int, bool] = {}
        self._winner: int | None = None
        self._final = False

    def watch(self, state: SearchState, heartbeats: dict[tuple[int, int], Heartbeat], devices: Sequence[str]) -> None:
        if not self._begun:
            self._catch_up(state)
        for past in state.rounds:
            self._say_round(state, past)
        if state.winner is not None and state.winner != self._winner:
            say(f"the winner is configuration {state.winner}")
        self._winner = state.winner
        if state.final is not None and not self._final:
            say(f"final training: {_outcome(state.final)}{_test_words(state.final)}")
            self._final = True

    def _catch_up(self, state: SearchState) -> None:
        """What an earlier driver has said is not said again."""
        self._begun = True
        done = sum(len(past.results) for past in state.rounds)
        if not done:
            return
        self._said = {past.plan.number: set(past.results) for past in state.rounds}
        self._closed = {past.plan.number: past.survivors is not None for past in state.rounds}
        self._winner, self._final = state.winner, state.final is not None
        say(f"goes on in round {len(state.rounds)}: {done} trials have ended before")

    def _say_round(self, state: SearchState, past: RoundState) -> None:
        from grash.report.summary import entering

        plan, number = past.plan, past.plan.number
        if number not in self._said:
            self._said[number], self._closed[number] = set(), False
            say(
                f"round {number}: {entering(state, number)} trials, {plan.epochs:.3g} epochs on {plan.n_entities:,} entities "
                f"and {plan.n_train:,} triples, {plan.cost:.3g} full runs each"
            )
        said = self._said[number]
        if len(said) < len(past.results):
            for n, result in past.results.items():
                if n not in said:
                    said.add(n)
                    say(f"round {number}  {len(said)}/{entering(state, number)}  cfg {n}  {_outcome(result)}")
        closed = past.survivors is not None
        if closed and not self._closed[number] and past.survivors:
            best = past.results[past.survivors[0]]
            say(f"round {number} closed: {len(past.survivors)} go on, the best is cfg {best.number}, {_score(best)}")
        self._closed[number] = closed


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

    def watch(self, state: SearchState, heartbeats: dict[tuple[int, int], Heartbeat], devices: Sequence[str]) -> None:
        self._last = (state, heartbeats, devices)
        if time.monotonic() - self._drawn < _REDRAW_SECONDS:
            return
        self._live.update(picture(*self._last, now=datetime.now(timezone.utc)), refresh=True)
        self._drawn = time.monotonic()


def picture(
    state: SearchState, heartbeats: dict[tuple[int, int], Heartbeat], devices: Sequence[str], *, now: datetime
) -> Group:
    """The whole display, for rich to print."""
    from rich.console import Group
    from rich.text import Text

    from grash.report.summary import summarise

    summary = summarise(state, now)
    lines = [Text(line, no_wrap=True, overflow="ellipsis") for line in summary_lines(summary)]
    running = [Text(line, no_wrap=True, overflow="ellipsis") for line in _device_lines(state, heartbeats, devices)]
    return Group(_rounds_table(summary), *lines, *running)


def summary_lines(summary: dict[str, Any]) -> list[str]:
    """Incumbent or winner, budget and time, in words: for the live table and for `grash status`."""
    from grash.report.svg import duration

    best, winner, budget = summary["incumbent"], summary["winner"], summary["budget"]
    lines = []
    if best is not None:
        span = f" [{best['interval'][0]:.4f}, {best['interval'][1]:.4f}]" if best["interval"] else ""
        name = "winner" if winner and winner["configuration"] == best["configuration"] else "best"
        what = f"{best['values'].get('model', '')}, {best['origin']}"
        lines.append(
            f"{name}    cfg {best['configuration']}  MRR {best['mrr']:.4f}{span} in round {best['round']}  ({what})"
        )
    if winner and winner["test"]:
        test = winner["test"]
        span = f" [{test['interval'][0]:.4f}, {test['interval'][1]:.4f}]" if test["interval"] else ""
        lines.append(f"test    MRR {test.get('mrr', 0.0):.4f}{span}")
    left = "" if summary["seconds_left"] is None else f", about {duration(summary['seconds_left'])} left"
    lines.append(f"budget  {budget['spent']:.3g} of {budget['planned']:g} full runs")
    lines.append(f"time    {duration(summary['seconds'])}{left}")
    return lines


def round_cells(entry: dict[str, Any]) -> list[object]:
    """The cells of a round in a table: plan, counts, best."""
    plan, best = entry["plan"], entry["best"]
    figures = (plan["n_entities"], plan["n_train"], f"{plan['epochs']:.3g}") if plan else (None, None, None)
    score = None if best is None else f"{best['mrr']:.4f}"
    counted = [entry[name] for name in ("done", "running", "waiting", "failed")]
    return [entry["number"], *figures, *counted, score, f"{entry['cost']:.3g}"]


ROUND_COLUMNS = (
    ">round", ">entities", ">triples", ">epochs", ">done", ">running", ">waiting", ">failed", ">best MRR", ">cost",
)  # fmt: skip


def _rounds_table(summary: dict[str, Any]) -> Any:
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    title = f"{summary['dataset'].get('name', '')}  {', '.join(summary['models'])}  {summary['status']}"
    drawn = Table(box=SIMPLE_HEAD, pad_edge=False, title=title, title_justify="left", title_style="bold")
    for column in ROUND_COLUMNS:
        drawn.add_column(column.lstrip(">"), justify="right", no_wrap=True)
    for entry in summary["rounds"]:
        cells = [
            "–" if cell is None else f"{cell:,}" if isinstance(cell, int) else str(cell) for cell in round_cells(entry)
        ]
        drawn.add_row(*cells)
    return drawn


def _device_lines(
    state: SearchState, heartbeats: dict[tuple[int, int], Heartbeat], devices: Sequence[str]
) -> Iterator[str]:
    """What runs on each device, and how far it is; idle devices too."""
    from grash.report.svg import duration

    going: list[dict[str, Any]] = [event for past in state.rounds for event in past.running.values()]
    going += [state.final_running] if state.final_running is not None else []
    busy = set()
    for event in going:
        beat = heartbeats.get((event["round"], event["number"]))
        place = f"round {event['round']}" if event["round"] else "final training"
        device = event.get("device", "")
        busy.add(device)
        far = ""
        if beat is not None and beat.n_steps:
            score = "" if beat.best_mrr is None else f"  MRR {beat.best_mrr:.4f}"
            far = f"  {beat.step / beat.n_steps:4.0%}{score}  {duration(beat.seconds_left)} left"
        yield f"{device:<7} cfg {event['number']} in {place}{far}"
    for device in dict.fromkeys(devices):
        if device not in busy:
            yield f"{device:<7} idle"


def _outcome(result: Result) -> str:
    from grash.report.svg import duration

    return f"{_score(result)}  {result.cost:.3g} full runs  {duration(result.seconds)}"


def _score(result: Result) -> str:
    if result.status != "ok" or result.mrr is None:
        return f"{result.status}: {result.message.splitlines()[0]}" if result.message else result.status
    span = f" [{result.interval[0]:.4f}, {result.interval[1]:.4f}]" if result.interval is not None else ""
    return f"MRR {result.mrr:.4f}{span}"


def _test_words(result: Result) -> str:
    from grash.report.summary import final_metrics

    test = final_metrics(result)
    return f"  test MRR {test['mrr']:.4f}" if test is not None and test.get("mrr") is not None else ""
