"""report.html: one file that shows a search and needs no network. It can be rewritten from the ledger at any time.

The sections are filled here with plain text and tables, which the template escapes; charts come from `charts.py`.
A new column of the table of trials is one line in `_trial_columns`.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from grash import __version__
from grash.errors import InputError
from grash.files import atomic_file
from grash.formatting import format_duration, format_number
from grash.report import charts
from grash.report.importance import ENOUGH, SearchedParameter, importances, round_correlations, searched_parameters
from grash.report.summary import (
    FINAL,
    difference,
    final_metrics,
    is_abandoned,
    ranked,
    read_state,
    status_of,
    summarize,
    trial_rows,
)
from grash.search.ledger import LEDGER_FILE, SearchState, read_ledger

REPORT_FILE = "report.html"
_TEMPLATE = Path(__file__).parent / "template"
_WIDE, _HALF, _NARROW = 950, 462, 346  # px: the page, half of it, a phone

Facts = list[tuple[str, str]]


def write_report(run_folder: Path) -> Path:
    """Write report.html into the run folder, whether the search is running, failed or finished."""
    folder = Path(run_folder)
    state = read_state(folder)
    summary = summarize(state, datetime.now(timezone.utc), alive=not is_abandoned(folder))
    versions = dict(read_ledger(folder / LEDGER_FILE)[0].get("versions", {}))
    page = render(state, summary, folder=str(run_folder), versions=versions)
    with atomic_file(folder / REPORT_FILE) as aside:
        aside.write_text(page, encoding="utf-8")
    return folder / REPORT_FILE


def render(state: SearchState, summary: dict[str, Any], *, folder: str, versions: dict[str, Any]) -> str:
    """Return the page as text; every name in it is escaped."""
    parameters = searched_parameters(state)
    shares = importances(state, parameters)
    name, models = str(state.dataset.get("name", "a graph")), ", ".join(state.settings.get("models", []))
    return str(
        _template().render(
            title=f"{name}: {models}",
            heading=f"{models} on {name}",
            version=__version__,
            written=datetime.now(timezone.utc).strftime("%Y-%m-%d %H:%M UTC"),
            banner=_banner(summary),
            tiles=_tiles(summary, state),
            best=_best(state, parameters),
            commands=_commands(state, folder),
            charts=_charts(state, parameters, shares or {}),
            importance_note=_importance_note(state),
            notes=[f"Round {r.plan.number}: {note}" for r in state.rounds for note in r.plan.notes],
            rank_sentence=_rank_sentence(state),
            costs=_costs(state),
            failures=_failures(summary),
            trials=_trials(state, parameters),
            settings=[(name, _setting_text(value)) for name, value in state.settings.items()],
            about=_about(state, versions),
            style=_template_file("style.css"),
            script=_template_file("page.js"),
        )
    )


def _template() -> Any:
    try:
        from jinja2 import Environment, FileSystemLoader, StrictUndefined
    except ImportError as error:
        raise InputError("The report needs jinja2, which is not installed: pip install jinja2.") from error
    loader, undefined = FileSystemLoader(_TEMPLATE), StrictUndefined
    environment = Environment(loader=loader, autoescape=True, undefined=undefined, trim_blocks=True, lstrip_blocks=True)
    return environment.get_template("report.html")


def _template_file(name: str) -> Any:
    """Return a file of the template folder, not escaped."""
    from markupsafe import Markup

    return Markup((_TEMPLATE / name).read_text(encoding="utf-8"))


def _banner(summary: dict[str, Any]) -> dict[str, str] | None:
    """Return the message at the top of the page; None for a finished search."""
    status = summary["status"]
    if status == "finished":
        return None
    if status == "failed":
        return {"kind": "failed", "text": summary["why"]}
    if status == "stopped":
        return {"kind": "stopped", "text": f"The search has stopped. {summary['why']} `grash resume` continues it."}
    if status == "interrupted":
        text = "The process that ran the search is gone. `grash resume` continues it."
        return {"kind": "stopped", "text": text}
    done = sum(r["done"] + r["failed"] for r in summary["rounds"])
    total = sum(r["trials"] for r in summary["rounds"])
    what = "The winner is being trained" if status == "final training" else "The search is running"
    return {"kind": "running", "text": f"{what}: {done} of {total} trials were done when this page was written."}


def _tiles(summary: dict[str, Any], state: SearchState) -> list[dict[str, str]]:
    """Return the headline: the score, the configuration, the cost and the time."""
    budget, left = summary["budget"], summary["seconds_left"]
    ended = sum(len(r.results) for r in state.rounds)
    failed = sum(r["failed"] for r in summary["rounds"])
    found = summary["winner"] or summary["incumbent"]
    return [
        _score_tile(summary, state),
        {
            "label": "Winner" if summary["winner"] else "Best so far",
            "value": "–" if found is None else f"#{found['configuration']}",
            "note": "" if found is None else f"{found['values'].get('model', '')}, {found['origin']}",
        },
        {
            "label": "Cost of the search",
            "value": f"{budget['spent']:.3g} of {budget['planned']:g}",
            "note": "full training runs, billed",
        },
        {
            "label": "Time",
            "value": format_duration(summary["seconds"]),
            "note": f"{ended} trials, {failed} failed"
            + ("" if left is None else f"; about {format_duration(left)} left"),
        },
    ]


def _score_tile(summary: dict[str, Any], state: SearchState) -> dict[str, str]:
    test, found = final_metrics(state.final), summary["incumbent"]
    if test is not None and test.get("mrr") is not None:
        hits = f"Hits@10 {test['hits@10']:.3f}" if "hits@10" in test else ""
        note = "; ".join(x for x in (_interval_text(test["interval"]), hits) if x)
        return {"label": "Test MRR", "value": f"{test['mrr']:.4f}", "note": note}
    if found is None:
        return {"label": "Best MRR so far", "value": "–", "note": "no trial has a score yet"}
    notes = [_interval_text(found["interval"]), f"validation triples of round {found['round']}"]
    if higher := found["higher"]:
        notes.append(f"still rising; configuration {higher['configuration']} has {higher['mrr']:.4f}")
    label = "MRR of the first so far" if higher else "Best MRR so far"
    return {"label": label, "value": f"{found['mrr']:.4f}", "note": "; ".join(note for note in notes if note)}


def _interval_text(interval: list[float] | None) -> str:
    return "" if interval is None else f"95 % interval {interval[0]:.4f} to {interval[1]:.4f}"


def _best(state: SearchState, parameters: list[SearchedParameter]) -> dict[str, Any] | None:
    """Return the settings of the best three configurations, and sentences that compare them."""
    last = next((r for r in reversed(state.rounds) if ranked(r)), None)
    if last is None:
        return None
    order = ranked(last)[:3]
    made = [state.configurations[n] for n in order]
    rows = [["MRR", *(f"{last.results[n].mrr:.4f}" for n in order)], ["origin", *(m.origin for m in made)]]
    for parameter in parameters:
        if any(parameter.applies_to(m.values) for m in made):
            rows.append([parameter.label, *(_value_text(parameter, m.values) for m in made)])
    return {
        "title": f"The {'winner' if state.winner is not None else 'best so far'}: configuration {order[0]}",
        "sentence": difference(last),
        "columns": [f"#{n}" for n in order],
        "rows": rows,
    }


def _commands(state: SearchState, folder: str) -> list[dict[str, str]]:
    """Return commands that use the winner and its model."""
    if state.winner is None:
        return []
    source = str(state.dataset.get("source") or state.dataset.get("name", "GRAPH"))
    retrain = {
        "what": "Train the winning configuration again, on this graph or on another one:",
        "code": shlex.join(["grash", "train", source, "--config", f"{folder}/best.yaml"]),
    }
    if state.final is None or state.final.status != "ok":
        return [retrain]
    model = f"{folder}/model"
    predict = f"{shlex.join(['grash', 'predict', model])} --head NAME --relation NAME"
    evaluate = shlex.join(["grash", "evaluate", model, "--per-relation"])
    python = f'import grash\n\nmodel = grash.load_model({model!r})\nmodel.predict(head="NAME", relation="NAME", k=10)'
    question = "Query the trained model: give two of head, relation and tail; it predicts the third."
    return [
        {"what": question, "code": f"{predict}\n{evaluate}"},
        {"what": "In Python:", "code": python},
        retrain,
    ]


def _charts(
    state: SearchState, parameters: list[SearchedParameter], shares: dict[str, float]
) -> dict[str, dict[str, Any] | None]:
    """Return every chart, wide and narrow: scaled down to a phone, the text of a wide one is too small."""
    from markupsafe import Markup

    by_importance = sorted(parameters, key=lambda parameter: -shares.get(parameter.label, 0.0))
    drawn: dict[str, tuple[Callable[[int], str | None], int]] = {
        "finalists": (lambda width: charts.finalists(state, width), _HALF),
        "funnel": (lambda width: charts.funnel(state, width), _WIDE),
        "ranks": (lambda width: charts.rank_flow(state, width), _WIDE),
        "importances": (lambda width: charts.importance_bars(shares, width), _HALF),
        "cost": (lambda width: charts.cost_against_time(state, width), _HALF),
        "slices": (lambda width: charts.slices(state, by_importance, width), _WIDE),
        "curves": (lambda width: charts.learning_curves(state, width), _WIDE),
    }
    found: dict[str, dict[str, Any] | None] = {}
    for name, (draw, width) in drawn.items():
        wide, narrow = draw(width), draw(_NARROW)
        drawable = wide is not None and narrow is not None
        found[name] = {"name": name, "wide": Markup(wide), "narrow": Markup(narrow)} if drawable else None
    return found


def _importance_note(state: SearchState) -> str:
    scored = sum(r.mrr is not None for r in state.rounds[0].results.values()) if state.rounds else 0
    hint = "" if scored >= ENOUGH else " This is only a hint, since there are few."
    return (
        f"PED-ANOVA (Optuna) over round 1: what distinguishes the best tenth of {scored} scored configurations.{hint} "
        f"Parameters below 0.005 are left out."
    )


def _rank_sentence(state: SearchState) -> str:
    found = [f"{text} from round {i} to {i + 1}" for i, text in enumerate(round_correlations(state), 1) if text]
    if not found:
        return "Ranks can be compared once two rounds have three configurations in common."
    return f"A cheap round is useful if it ranks configurations as the next round does: {', '.join(found)}."


def _costs(state: SearchState) -> dict[str, Any]:
    """Return billed and measured cost, by round and in total."""
    rows = [_cost_row(f"round {r.plan.number}", len(r.results), r.cost, r.seconds) for r in state.rounds]
    n_trials, seconds = sum(len(r.results) for r in state.rounds), sum(r.seconds for r in state.rounds)
    rows.append(_cost_row("search", n_trials, state.spent, seconds))
    if state.final is not None:
        rows.append(["final training", "1", "outside the budget", format_duration(state.final.seconds), "–"])
    return {"columns": ["", "trials", "billed, full runs", "measured", "measured per full run"], "rows": rows}


def _cost_row(name: str, n_trials: int, billed: float, seconds: float) -> list[str]:
    pace = format_duration(seconds / billed) if billed else "–"
    return [name, f"{n_trials:,}", f"{billed:.4g}", format_duration(seconds), pace]


def _failures(summary: dict[str, Any]) -> list[dict[str, Any]]:
    return [
        {**f, "where": f"#{f['configuration']}, " + (f"round {f['round']}" if f["round"] else "final training")}
        for f in summary["failures"]
    ]


def _trials(state: SearchState, parameters: list[SearchedParameter]) -> dict[str, Any]:
    """Return the table of all trials; a cell is (value to sort by, text)."""
    columns = _trial_columns(state, parameters)
    rows = []
    for row in trial_rows(state):
        number = row["configuration"]
        cells = [cell(row, state.configurations[number].values) for cell in columns.values()]
        rows.append({"number": number, "best": number == state.winner, "cells": cells})
    return {"columns": list(columns), "rows": rows}


Cell = Callable[[dict[str, Any], dict[str, Any]], tuple[Any, str]]


def _trial_columns(state: SearchState, parameters: list[SearchedParameter]) -> dict[str, Cell]:
    """Return the columns of the table of trials by heading; the keys of a row are those of `summary.trial_rows`."""

    def column(key: str, text: Callable[[Any], str] = str) -> Cell:
        return lambda row, values: ("", "–") if row[key] is None else (row[key], text(row[key]))

    def round_cell(row: dict[str, Any], values: dict[str, Any]) -> tuple[Any, str]:
        return (len(state.rounds) + 1, "final") if row["round"] == FINAL else (row["round"], str(row["round"]))

    def parameter_cell(parameter: SearchedParameter) -> Cell:
        return lambda row, values: (_sort_key(parameter, values), _value_text(parameter, values))

    score = "{:.4f}".format
    return {
        "round": round_cell,
        "configuration": column("configuration"),
        "rank": column("rank"),
        "MRR": column("mrr", score),
        "low": column("low", score),
        "high": column("high", score),
        "status": column("status"),
        "cost": column("cost", format_number),
        "time": column("seconds", format_duration),
        "origin": column("origin"),
        **{parameter.label: parameter_cell(parameter) for parameter in parameters},
    }


def _sort_key(parameter: SearchedParameter, values: dict[str, Any]) -> Any:
    if not parameter.applies_to(values):
        return ""
    value = values[parameter.name]
    return int(value) if isinstance(value, bool) else value


def _value_text(parameter: SearchedParameter, values: dict[str, Any]) -> str:
    if not parameter.applies_to(values):
        return "–"
    value = values[parameter.name]
    if parameter.is_off(value):
        return "off"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return format_number(value) if isinstance(value, int | float) and not parameter.choices else str(value)


def _about(state: SearchState, versions: dict[str, Any]) -> Facts:
    facts = [(name, _setting_text(value)) for name, value in state.dataset.items()]
    facts += [("started", state.started_at), ("status", status_of(state))]
    return facts + [(f"version of {name}", str(value)) for name, value in versions.items()]


def _setting_text(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, list | tuple):
        return ", ".join(map(str, value)) or "none"
    if isinstance(value, dict):
        return ", ".join(f"{k}: {v}" for k, v in value.items()) or "none"
    return "none" if value in (None, "") else str(value)
