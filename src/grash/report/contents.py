"""The words and tables of the report; plain text that the template escapes. The charts are in `charts.py`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from grash.report.correlation import correlations, ranking
from grash.report.lead import difference
from grash.report.parameters import Axis
from grash.report.rows import FINAL, trial_rows
from grash.report.summary import final_metrics, status_of
from grash.report.svg import duration, number
from grash.search.state import SearchState

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
            "value": duration(summary["seconds"]),
            "note": f"{judged} trials, {failed} failed" + ("" if left is None else f"; about {duration(left)} left"),
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
        rows.append(["final training", "1", "outside the budget", duration(state.final.seconds), "–"])
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
            _cell(row["cost"], number),
            _cell(row["seconds"], duration),
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
    return number(value) if isinstance(value, int | float) and not axis.choices else str(value)


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
    pace = duration(seconds / billed) if billed else "–"
    return [f"{count:,}", f"{billed:.4g}", duration(seconds), pace]


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
