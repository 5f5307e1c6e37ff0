"""report.html: one file that shows a search, without a request to anywhere. Rewritten from the ledger at any time."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from grash import __version__
from grash.engines.driver import Watch
from grash.errors import GrashError, InputError
from grash.files import atomic_file
from grash.formatting import format_duration, format_number
from grash.report.charts import (
    cost_against_time,
    finalists,
    funnel,
    importance_bars,
    learning_curves,
    rank_flow,
    slices,
)
from grash.report.importance import ENOUGH, Axis, Importances, correlations, importances, ranking, searched
from grash.report.optuna import OptunaView
from grash.report.summary import (
    FINAL,
    Lines,
    abandoned,
    difference,
    final_metrics,
    state_of,
    status_of,
    summarize,
    trial_rows,
)
from grash.search.ledger import LEDGER_FILE, SearchState, read_ledger
from grash.search.trial import TrialProgress

REPORT_FILE = "report.html"
_TEMPLATE = Path(__file__).parent / "template"
_WIDE, _HALF, _NARROW = 950, 462, 346  # px: the page, half of it, a telephone


def write_report(run_folder: Path) -> Path:
    """Writes report.html into the run folder, whether the search runs, has failed or is finished."""
    folder = Path(run_folder)
    state = state_of(folder)
    summary = summarize(state, datetime.now(timezone.utc), alive=not abandoned(folder))
    page = render(state, summary, folder=str(run_folder), versions=_versions(folder))
    with atomic_file(folder / REPORT_FILE) as aside:
        aside.write_text(page, encoding="utf-8")
    return folder / REPORT_FILE


def render(state: SearchState, summary: dict[str, Any], *, folder: str, versions: dict[str, Any]) -> str:
    """The page as text; every name in it is escaped."""
    template, axes = _template(), searched(state)
    found = importances(state, axes)
    name, models = str(state.dataset.get("name", "a graph")), ", ".join(state.settings.get("models", []))
    return str(
        template.render(
            title=f"{name}: {models}",
            heading=f"{models} on {name}",
            version=__version__,
            written=datetime.now(timezone.utc).strftime("%Y-%m-%d %H:%M UTC"),
            banner=banner(summary, state),
            tiles=tiles(summary, state),
            best=best(state, axes),
            commands=commands(state, folder),
            charts=_charts(state, axes, found),
            importance_note=_importance_note(state, found),
            notes=[f"Round {p.plan.number}: {note}" for p in state.rounds for note in p.plan.notes],
            flow_sentence=flow_sentence(state),
            costs=costs(state),
            failures=failure_rows(summary),
            trials=trials(state, axes),
            settings=settings_facts(state),
            about=about_facts(state, versions),
            style=_part("style.css"),
            script=_part("page.js"),
        )
    )


def _charts(state: SearchState, axes: list[Axis], found: Importances | None) -> dict[str, Any]:
    drawn: dict[str, tuple[Callable[[int], str | None], int]] = {
        "finalists": (lambda width: finalists(state, width), _HALF),
        "funnel": (lambda width: funnel(state, width), _WIDE),
        "ranks": (lambda width: rank_flow(state, width), _WIDE),
        "importances": (lambda width: None if found is None else importance_bars(found, width), _HALF),
        "cost": (lambda width: cost_against_time(state, width), _HALF),
        "slices": (lambda width: slices(state, _by_importance(axes, found), width), _WIDE),
        "curves": (lambda width: learning_curves(state, width), _WIDE),
    }
    return {name: _chart(name, draw, width) for name, (draw, width) in drawn.items()}


def _by_importance(axes: list[Axis], found: Importances | None) -> list[Axis]:
    order = {} if found is None else found.shares
    return sorted(axes, key=lambda axis: -order.get(axis.label, 0.0))


def _chart(name: str, draw: Callable[[int], str | None], width: int) -> dict[str, Any] | None:
    """Both forms of a chart: a drawing that is scaled down to a telephone has letters too small to read."""
    from markupsafe import Markup

    wide, narrow = draw(width), draw(_NARROW)
    if wide is None or narrow is None:
        return None
    return {"name": name, "wide": Markup(wide), "narrow": Markup(narrow)}  # made by svg.py, which escapes


def _importance_note(state: SearchState, found: Importances | None) -> str:
    if found is None:
        return ""
    scored = sum(r.mrr is not None for r in state.rounds[0].results.values())
    hint = "" if scored >= ENOUGH else " With so few it is a hint at best."
    return f"{found.method}; {scored} configurations have a score.{hint} Parameters below 0.005 are left out."


def _versions(folder: Path) -> dict[str, Any]:
    first = read_ledger(folder / LEDGER_FILE)[0]
    return dict(first.get("versions", {}))


def _template() -> Any:
    try:
        from jinja2 import Environment, FileSystemLoader, StrictUndefined
    except ImportError as error:
        raise InputError("The report needs jinja2: pip install 'grash[report]'.") from error
    loader = FileSystemLoader(_TEMPLATE)
    environment = Environment(
        loader=loader, autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    return environment.get_template("report.html")


def _part(name: str) -> Any:
    """A file of ours that goes into the page as it is."""
    from markupsafe import Markup

    return Markup((_TEMPLATE / name).read_text(encoding="utf-8"))


# = The words and tables of the report; plain text that the template escapes. The charts are in `charts.py`.

Facts = list[tuple[str, str]]


def tiles(summary: dict[str, Any], state: SearchState) -> list[dict[str, str]]:
    """The headline: the score that counts, which configuration has it, what it cost, how long it took."""
    budget = summary["budget"]
    judged = sum(len(past.results) for past in state.rounds)
    failed = sum(r["failed"] for r in summary["rounds"])
    left = summary["seconds_left"]
    return [
        _score_tile(summary, state),
        _best_tile(summary),
        {
            "label": "Cost of the search",
            "value": f"{budget['spent']:.3g} of {budget['planned']:g}",
            "note": "full training runs, billed",
        },
        {
            "label": "Time",
            "value": format_duration(summary["seconds"]),
            "note": f"{judged} trials, {failed} failed"
            + ("" if left is None else f"; about {format_duration(left)} left"),
        },
    ]


def banner(summary: dict[str, Any], state: SearchState) -> dict[str, str] | None:
    """What a reader must know first, unless all went well."""
    if summary["status"] == "failed":
        return {"kind": "failed", "text": state.failed}
    if summary["status"] == "stopped":
        why = state.stopped.rstrip(".")
        return {"kind": "stopped", "text": f"The search has stopped: {why}. `grash resume` goes on with it."}
    if summary["status"] == "interrupted":
        return {"kind": "stopped", "text": "The process that ran the search has gone: `grash resume` goes on with it."}
    if summary["status"] == "finished":
        return None
    done = sum(r["done"] + r["failed"] for r in summary["rounds"])
    of = sum(r["trials"] for r in summary["rounds"])
    what = "The winner is being trained" if summary["status"] == "final training" else "The search is running"
    said = f"{what}: {done} of {of} trials had ended when this page was written."
    return {"kind": "running", "text": said}


def best(state: SearchState, axes: list[Axis]) -> dict[str, Any] | None:
    """The winner (or incumbent) beside the runner-up: a sentence on their difference, and their settings."""
    past = next((p for p in reversed(state.rounds) if ranking(p)), None)
    if past is None:
        return None
    order = ranking(past)[:3]
    made = [state.configurations[n] for n in order]
    rows = [["MRR", *(f"{past.results[n].mrr:.4f}" for n in order)]]
    rows += [["origin", *(m.origin for m in made)]]
    rows += [["model", *(str(m.values.get("model", "")) for m in made)]] if len(state.settings["models"]) > 1 else []
    for axis in axes:
        if axis.name != "model" and any(axis.counts(m.values) for m in made):
            rows.append([axis.label, *(value_words(axis, m.values) for m in made)])
    decided = state.winner is not None
    return {
        "title": f"The {'winner' if decided else 'best so far'}: configuration {order[0]}",
        "sentence": difference(past),
        "columns": [f"cfg {n}" for n in order],
        "rows": rows,
    }


def flow_sentence(state: SearchState) -> str:
    found = [text for text in correlations(state) if text is not None]
    if not found:
        return "Ranks can be compared once two rounds have three configurations in common."
    said = ", ".join(f"{text} from round {i} to {i + 1}" for i, text in enumerate(correlations(state), 1) if text)
    return f"A cheap round is of use if it ranks as the next one does: {said}."


def costs(state: SearchState) -> dict[str, Any]:
    """Billed and measured, by round and in total."""
    rows = []
    for past in state.rounds:
        rows.append([f"round {past.plan.number}", *_cost_cells(len(past.results), past.cost, past.seconds)])
    spent = sum(p.seconds for p in state.rounds)
    rows.append(["search", *_cost_cells(sum(len(p.results) for p in state.rounds), state.spent, spent)])
    if state.final is not None:
        rows.append(["final training", "1", "outside the budget", format_duration(state.final.seconds), "–"])
    columns = ["", "trials", "billed, full runs", "measured", "measured per full run"]
    return {"columns": columns, "rows": rows}


def failure_rows(summary: dict[str, Any]) -> list[dict[str, Any]]:
    return [
        {**f, "where": f"cfg {f['configuration']}, " + (f"round {f['round']}" if f["round"] else "final training")}
        for f in summary["failures"]
    ]


def trials(state: SearchState, axes: list[Axis]) -> dict[str, Any]:
    """The table of all trials: cells are (value to sort by, words)."""
    shown = [a for a in axes if a.name != "model"]
    several = len(state.settings.get("models", ())) > 1
    columns = ["round", "cfg", *(["model"] if several else []), "rank", "MRR", "low", "high", "status", "cost", "time",
               "origin", *(a.label for a in shown)]  # fmt: skip
    found = []
    for row in trial_rows(state):
        values = state.configurations[row["configuration"]].values
        cells = [
            (len(state.rounds) + 1, "final") if row["round"] == FINAL else (row["round"], row["round"]),
            (row["configuration"], row["configuration"]),
            *([(row["model"], row["model"])] if several else []),
            _cell(row["rank"], str),
            *(_cell(row[name], lambda v: f"{v:.4f}") for name in ("mrr", "low", "high")),
            (row["status"], row["status"]),
            _cell(row["cost"], format_number),
            _cell(row["seconds"], format_duration),
            (row["origin"], row["origin"]),
            *((_sort_key(a, values), value_words(a, values)) for a in shown),
        ]
        found.append({"number": row["configuration"], "best": row["configuration"] == state.winner, "cells": cells})
    return {"columns": columns, "rows": found}


def settings_facts(state: SearchState) -> Facts:
    return [(name, _setting(value)) for name, value in state.settings.items()]


def about_facts(state: SearchState, versions: dict[str, Any]) -> Facts:
    facts = [(name, _setting(value)) for name, value in state.dataset.items()]
    facts += [("begun", state.started_at), ("state", status_of(state))]
    return facts + [(f"version of {name}", str(value)) for name, value in versions.items()]


def commands(state: SearchState, folder: str) -> list[dict[str, str]]:
    """How to go on with what the search found."""
    if state.winner is None:
        return []
    source = str(state.dataset.get("source") or state.dataset.get("name", "GRAPH"))
    retrain = {
        "what": "Train the winning configuration again, on this graph or on another:",
        "code": _shell("grash", "train", source, "--config", f"{folder}/best.yaml"),
    }
    if state.final is None or state.final.status != "ok":
        return [retrain]
    model = f"{folder}/model"
    code = f'import grash\n\nmodel = grash.load_model({model!r})\nmodel.predict(head="NAME", relation="NAME", k=10)'
    return [
        {
            "what": "Ask the trained model; two of head, relation and tail are given, the third is asked for:",
            "code": _shell("grash", "predict", model) + " --head NAME --relation NAME\n"
            + _shell("grash", "evaluate", model, "--per-relation"),
        },
        {"what": "In Python:", "code": code},
        retrain,
    ]  # fmt: skip


def value_words(axis: Axis, values: dict[str, Any]) -> str:
    if not axis.counts(values):
        return "–"
    value = values[axis.name]
    if axis.is_off(value):
        return "off"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return format_number(value) if isinstance(value, int | float) and not axis.choices else str(value)


def _score_tile(summary: dict[str, Any], state: SearchState) -> dict[str, str]:
    test = final_metrics(state.final)
    if test is not None and test.get("mrr") is not None:
        low_high = f"95 % interval {test['interval'][0]:.4f} to {test['interval'][1]:.4f}" if test["interval"] else ""
        hits = f"Hits@10 {test['hits@10']:.3f}" if "hits@10" in test else ""
        return {"label": "Test MRR", "value": f"{test['mrr']:.4f}", "note": "; ".join(x for x in (low_high, hits) if x)}
    found = summary["incumbent"]
    if found is None:
        return {"label": "Best MRR so far", "value": "–", "note": "no trial has a score yet"}
    span = found["interval"]
    low_high = f"95 % interval {span[0]:.4f} to {span[1]:.4f}; " if span else ""
    note = f"{low_high}validation triples of round {found['round']}"
    if higher := found["higher"]:
        note += f"; still rising; cfg {higher['configuration']} has {higher['mrr']:.4f}"
    label = "MRR of the first so far" if higher else "Best MRR so far"
    return {"label": label, "value": f"{found['mrr']:.4f}", "note": note}


def _best_tile(summary: dict[str, Any]) -> dict[str, str]:
    found = summary["winner"] or summary["incumbent"]
    if found is None:
        return {"label": "Best", "value": "–", "note": ""}
    name = "Winner" if summary["winner"] else "Best so far"
    note = f"{found['values'].get('model', '')}, {found['origin']}"
    return {"label": name, "value": f"cfg {found['configuration']}", "note": note}


def _cost_cells(count: int, billed: float, seconds: float) -> list[str]:
    pace = format_duration(seconds / billed) if billed else "–"
    return [f"{count:,}", f"{billed:.4g}", format_duration(seconds), pace]


def _cell(value: Any, words: Callable[[Any], str]) -> tuple[Any, str]:
    return ("", "–") if value is None else (value, words(value))


def _sort_key(axis: Axis, values: dict[str, Any]) -> Any:
    if not axis.counts(values):
        return ""
    value = values[axis.name]
    return int(value) if isinstance(value, bool) else value


def _setting(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, list | tuple):
        return ", ".join(map(str, value)) or "none"
    if isinstance(value, dict):
        return ", ".join(f"{k}: {v}" for k, v in value.items()) or "none"
    return "none" if value in (None, "") else str(value)


def _shell(*words: str) -> str:
    import shlex

    return shlex.join(words)


# = The views of a running search kept up to date: the report at every barrier, Optuna's journal also in between, and a
# = line in log.txt for every change.
# =
# = The ledger stays the truth: what goes wrong here is said, and hides neither a result nor why there is none.

LOG_FILE = "log.txt"
_EVERY_SECONDS = 15.0
_log = logging.getLogger(__name__)


class Views:
    """Stands between a search and whoever watches it."""

    def __init__(self, folder: Path, watch: Watch | None = None) -> None:
        self.folder, self.watch, self.optuna = Path(folder), watch, OptunaView(folder)
        self._lines = Lines(self._log, of_nothing=False)
        self._closed, self._told = 0, time.monotonic()

    def see(self, state: SearchState, heartbeats: dict[tuple[int, int], TrialProgress], devices: Sequence[str]) -> None:
        if self.watch is not None:
            self.watch(state, heartbeats, devices)
        self._lines.watch(state, heartbeats, devices)
        closed = sum(past.survivors is not None for past in state.rounds)
        if closed == self._closed and time.monotonic() - self._told < _EVERY_SECONDS:
            return
        self.optuna.update(state)
        if closed != self._closed:
            self._report()
        self._closed, self._told = closed, time.monotonic()

    def write(self) -> None:
        """Both, from what the ledger says, if it says anything."""
        try:
            state = state_of(self.folder)
        except GrashError:
            return
        self.optuna.update(state)
        self._report()

    def _log(self, line: str) -> None:
        with suppress(OSError), (self.folder / LOG_FILE).open("a", encoding="utf-8") as file:
            file.write(f"{datetime.now().isoformat(sep=' ', timespec='seconds')}  {line}\n")

    def _report(self) -> None:
        try:
            write_report(self.folder)
        except GrashError as error:
            _log.warning("The report is not up to date: %s", error)
