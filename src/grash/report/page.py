"""report.html: one file that shows a search and needs no network. It can be rewritten from the ledger at any time.

The sections are filled here with plain text and tables, which the template escapes; charts come from `charts.py`.
A new column of the table of trials is one line in `_trial_columns`. comparison.html shows several searches; only their
final trainings are compared, since the rounds of two searches have different graphs.
"""

from __future__ import annotations

import logging
import math
import os
import shlex
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timezone
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from grash import __version__
from grash.data.dataset import DATASET_FILE, Dataset
from grash.data.known_answers import answer_index
from grash.files import atomic_file, read_json
from grash.formatting import format_duration, format_number
from grash.models import KgeModel
from grash.models.base import Side
from grash.models.store import load_model
from grash.report import charts
from grash.report.importance import SearchedParameter, round_correlations, searched_parameters, value_text
from grash.report.meaning import (
    FILTERS,
    baseline_text,
    best_per_model,
    changed_settings,
    final_stop,
    questions,
    relation_rows,
    weak_relations,
)
from grash.report.optuna import importances
from grash.report.summary import (
    FINAL,
    TrialSpan,
    difference,
    graph_of,
    is_abandoned,
    ranked,
    read_evaluation,
    read_state,
    summarize,
    trial_rows,
    trial_spans,
)
from grash.search.ledger import LEDGER_FILE, SearchState, read_ledger
from grash.training.config import make_config

if TYPE_CHECKING:
    from grash.evaluation.calibration import Calibration

CALIBRATION_FILE = "calibration.json"
REPORT_FILE = "report.html"
WIDTH, _HALF, _NARROW = 950, 462, 346  # px: the page, half of it, a phone
_ENOUGH = 32  # trials with a score; importances of fewer are only a hint
_SAMPLES, _ANSWERS = 6, 3  # questions of test, and the best answers to each
_MOST_BYTES = 1 << 30  # of the embeddings; the report does not load a larger model
COMPARISON_FILE = "comparison.html"
COMPARED = ("run", "dataset", "model", "trials", "epochs", "status", "valid", "test", "baseline", "cost", "time")
COMPARED_TEXTS = ("run", "dataset", "model", "status")  # the others are numbers
_MOST_RELATIONS = 40  # in a comparison: those with the most questions
_log = logging.getLogger(__name__)


def write_report(run_folder: Path, warned: set[str] | None = None) -> Path:
    """Write report.html into the run folder, whether the search is running, failed or finished.

    A chart that raises an error is left out, and the error is logged. warned: names whose error was logged already.
    """
    folder = Path(run_folder)
    state = read_state(folder)
    summary = summarize(state, datetime.now(timezone.utc), alive=not is_abandoned(folder))
    page = _render(state, summary, folder, set() if warned is None else warned)
    with atomic_file(folder / REPORT_FILE) as aside:
        aside.write_text(page, encoding="utf-8")
    return folder / REPORT_FILE


def is_current(run_folder: Path) -> bool:
    """Return whether the report of a run is newer than its search and its model."""
    folder = Path(run_folder)
    if not (folder / REPORT_FILE).is_file():
        return False
    parts = [folder / LEDGER_FILE, folder / "model"]
    changed = max((part.stat().st_mtime for part in parts if part.exists()), default=math.inf)
    return (folder / REPORT_FILE).stat().st_mtime >= changed


def _render(state: SearchState, summary: dict[str, Any], folder: Path, warned: set[str]) -> str:
    """Return the page as text; every name in it is escaped."""
    parameters, events = searched_parameters(state), read_ledger(folder / LEDGER_FILE)
    versions = dict(events[0].get("versions", {}))
    shares = _attempt("importances", lambda: importances(state, parameters), warned)
    name, models = str(state.dataset.get("name", "a graph")), ", ".join(state.settings.get("models", []))
    about = [(name, _setting_text(value)) for name, value in state.dataset.items()]
    about += [("started", state.started_at), ("status", summary["status"])]
    scored = sum(r.mrr is not None for r in state.rounds[0].results.values()) if state.rounds else 0
    calibration = _attempt("calibration", lambda: _calibration(folder), warned) or None
    found = [f"{text} from round {i} to {i + 1}" for i, text in enumerate(round_correlations(state), 1) if text]
    return str(
        template("report.html").render(
            **_tested(state, folder, warned),
            per_model=best_per_model(state),
            title=f"{name}: {models}",
            heading=f"{models} on {name}",
            version=__version__,
            written=datetime.now(timezone.utc).strftime("%Y-%m-%d %H:%M UTC"),
            summary=summary,
            test=summary["winner"] and summary["winner"]["test"],
            rounds=state.rounds,
            billed=[r for r in state.rounds if not r.plan.compares_finalists],
            final=state.final,
            best=_best(state, parameters),
            folder=str(folder),
            best_file=f"{folder}/best.yaml",
            source=graph_of(folder, str(state.dataset.get("source") or "")),
            charts=_charts(state, parameters, shares or {}, calibration, folder, trial_spans(events), warned),
            calibration=calibration,
            scored=scored,
            few=scored < _ENOUGH,
            notes=_time_notes(state)
            + [f"Round {r.plan.number}: {note}" for r in state.rounds for note in r.plan.notes],
            correlations=", ".join(found),
            trials=_trials(state, parameters),
            settings=[(name, _setting_text(value)) for name, value in state.settings.items()],
            about=about + [(f"version of {name}", str(value)) for name, value in versions.items()],
        )
    )


def _time_notes(state: SearchState) -> list[str]:
    """Return the time limit and what it changed on the way."""
    if state.settings.get("time") is None:
        return []
    limit = f"The search was given {format_duration(state.settings['time'])}."
    return [limit, *(f"Changed on the way: {change}." for change in state.changes)]


def _tested(state: SearchState, folder: Path, warned: set[str]) -> dict[str, Any]:
    """Return what the final training and its test mean."""
    evaluation, final = read_evaluation(folder), state.final
    test = (evaluation.get("both") or {}).get("mrr")
    higher = test is not None and final is not None and final.mrr is not None and test > final.mrr
    config = None if state.winner is None else make_config(state.configurations[state.winner].values)
    baseline = baseline_text(evaluation)
    return {
        "tested": bool(evaluation),
        "relations": relation_rows(evaluation),
        "baseline": baseline[:1].upper() + baseline[1:],
        "weak": weak_relations(evaluation),
        "filters": FILTERS if higher else "",
        "early": final_stop(state, config) if config is not None else "",
        "samples": _attempt("samples", lambda: sample_predictions(folder / "model"), warned) or [],
        "asked": _attempt("questions", lambda: _questions(folder), warned) or [],
    }


def _questions(folder: Path) -> list[dict[str, str]]:
    graph = folder / "model" / "dataset"
    return (
        questions(Dataset.load(graph)) if (graph / DATASET_FILE).is_file() else [{"head": "NAME", "relation": "NAME"}]
    )


@cache  # compiling one takes as long as filling it in
def template(name: str) -> Any:
    """Return a template of the pages."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent / "template"), undefined=StrictUndefined, autoescape=True,
        trim_blocks=True, lstrip_blocks=True,
    )  # fmt: skip
    environment.filters |= {"quote": shlex.quote, "python": repr, "duration": format_duration}
    return environment.get_template(name)


def _best(state: SearchState, parameters: list[SearchedParameter]) -> dict[str, Any] | None:
    """Return the settings of the best three configurations, and sentences that compare them."""
    last = state.last_scored()
    if last is None:
        return None
    order = ranked(last)[:3]
    made = [state.configurations[n] for n in order]
    rows = [["MRR", *(f"{last.results[n].mrr:.4f}" for n in order)], ["origin", *(m.origin for m in made)]]
    for parameter in parameters:
        if any(parameter.applies_to(m.values) for m in made):
            rows.append([parameter.label, *(_parameter_text(parameter, m.values) for m in made)])
    return {
        "title": f"The {'winner' if state.winner is not None else 'best so far'}: configuration {order[0]}",
        "sentence": difference(last),
        "columns": [f"#{n}" for n in order],
        "rows": rows,
    }


def _calibration(folder: Path) -> Calibration | None:
    """Return the calibration of the trained model in a run folder, if there is one."""
    path = folder / "model" / CALIBRATION_FILE
    if not path.is_file():
        return None
    from grash.evaluation.calibration import SCHEMA, VERSION, Calibration

    return Calibration.from_dict(read_json(path, schema=SCHEMA, version=VERSION))


def _charts(
    state: SearchState,
    parameters: list[SearchedParameter],
    shares: dict[str, float],
    calibration: Calibration | None,
    folder: Path,
    spans: list[TrialSpan],
    warned: set[str],
) -> dict[str, Any]:
    """Return every chart of the report."""
    relations = relation_rows(read_evaluation(folder))
    by_importance = sorted(parameters, key=lambda parameter: -shares.get(parameter.label, 0.0))
    drawn: dict[str, tuple[Callable[[int], str | None], int]] = {
        "finalists": (lambda width: charts.finalists(state, width), _HALF),
        "funnel": (lambda width: charts.funnel(state, width), WIDTH),
        "ranks": (lambda width: charts.rank_flow(state, width), WIDTH),
        "importances": (lambda width: charts.importance_bars(shares, width), _HALF),
        "cost": (lambda width: charts.cost_against_time(state, width), _HALF),
        "sizes": (lambda width: charts.size_against_score(state, width), _HALF),
        "slices": (lambda width: charts.slices(state, by_importance, width), WIDTH),
        "curves": (lambda width: charts.learning_curves(state, width), WIDTH),
        "relations": (lambda width: charts.relation_bars(relations, width), WIDTH),
        "parallel": (lambda width: charts.parallel_coordinates(state, by_importance, width), WIDTH),
        "progress": (lambda width: charts.best_so_far(state, width), WIDTH),
        "timeline": (lambda width: charts.timeline(state, spans, width), WIDTH),
        "reliability": (
            lambda width: charts.reliability(None if calibration is None else calibration.first, width),
            _HALF,
        ),
    }
    return draw_all(drawn, warned)


def draw_all(drawn: dict[str, tuple[Callable[[int], str | None], int]], warned: set[str]) -> dict[str, Any]:
    """Return charts, wide and narrow: scaled down to a phone, the text of a wide one is too small.

    A chart without marks is None; one that raised an error is False.
    """
    from markupsafe import Markup

    found: dict[str, Any] = {}
    for name, (draw, width) in drawn.items():
        both = _attempt(name, lambda draw=draw, width=width: (draw(width), draw(_NARROW)), warned)  # type: ignore[misc]
        drawn_both = {"name": name, "wide": Markup(both[0]), "narrow": Markup(both[1])} if both else False
        found[name] = None if both and None in both else drawn_both
    return found


def _attempt(name: str, compute: Callable[[], Any], warned: set[str]) -> Any:
    """Return what `compute` returns; False if it raised an error, which is logged once."""
    try:
        return compute()
    except Exception as error:
        if name not in warned:
            _log.warning("The chart %r of the report cannot be drawn (%r). The rest is written.", name, error)
            _log.debug("Drawing %s failed.", name, exc_info=True)
        warned.add(name)
        return False


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
        def cell(row: dict[str, Any], values: dict[str, Any]) -> tuple[Any, str]:
            value = values[parameter.name] if parameter.applies_to(values) else ""
            return int(value) if isinstance(value, bool) else value, _parameter_text(parameter, values)

        return cell

    score = "{:.4f}".format
    decides = [] if state.settings.get("metric", "mrr") == "mrr" else ["score"]
    return {
        "round": round_cell,
        **{name: column(name) for name in ("configuration", "rank")},
        "MRR": column("mrr", score),
        **{name: column(name, score) for name in ("low", "high", *decides)},
        "status": column("status"),
        "cost": column("cost", format_number),
        "time": column("seconds", format_duration),
        "origin": column("origin"),
        **{parameter.label: parameter_cell(parameter) for parameter in parameters},
    }


def _parameter_text(parameter: SearchedParameter, values: dict[str, Any]) -> str:
    if not parameter.applies_to(values):
        return "–"
    value = values[parameter.name]
    return "off" if parameter.is_off(value) else value_text(value)


def _setting_text(value: Any) -> str:
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value:,}"
    if isinstance(value, dict):
        value = [f"{k}: {v}" for k, v in value.items()]
    if isinstance(value, list | tuple):
        return ", ".join(map(str, value)) or "none"
    return "none" if value in (None, "") else str(value) if isinstance(value, float) else value_text(value)


@dataclass(frozen=True)
class Sample:
    """One question of the test split, filtered by the other known answers."""

    head: str  # "?" if it is asked for
    relation: str
    tail: str
    truth: str  # the answer in test
    rank: int  # of the true answer
    answers: tuple[str, ...]  # best first


def sample_predictions(model_folder: Path) -> list[Sample]:
    """Return a few questions about the relations that are most frequent in test; none for a very large model."""
    weights = Path(model_folder) / "embeddings.safetensors"
    if not weights.is_file() or weights.stat().st_size > _MOST_BYTES:
        return []
    stored = load_model(Path(model_folder), device="cpu")
    chosen = _one_per_relation(stored.dataset.test)
    sides: tuple[Side, Side] = ("tail", "head")
    return [_answer(stored.model, stored.dataset, row, sides[i % 2]) for i, row in enumerate(chosen)]


def _one_per_relation(triples: np.ndarray) -> np.ndarray:
    """(n, 3) → (m, 3): a triple in the middle of each of the most frequent relations."""
    relations, counts = np.unique(triples[:, 1], return_counts=True)
    frequent = relations[np.argsort(-counts, kind="stable")][:_SAMPLES]
    places = [np.flatnonzero(triples[:, 1] == relation) for relation in frequent]
    return triples[[found[len(found) // 2] for found in places]]


@torch.no_grad()
def _answer(model: KgeModel, dataset: Dataset, triple: np.ndarray, side: Side) -> Sample:
    head, relation, tail = (int(i) for i in triple)
    truth, end = (tail, head) if side == "tail" else (head, tail)
    asked = torch.tensor([end]), torch.tensor([relation])
    scores = (model.score_tails(*asked) if side == "tail" else model.score_heads(*reversed(asked)))[0]
    known = answer_index(dataset, np.array([end]), np.array([relation]), side).answers
    scores[torch.from_numpy(known[known != truth]).long()] = -torch.inf
    rank = 1 + int((scores > scores[truth]).sum())
    best = torch.topk(scores, min(_ANSWERS, int(torch.isfinite(scores).sum()))).indices.tolist()
    names = [str(i) if dataset.entities is None else dataset.entities.name(i) for i in (head, tail, truth, *best)]
    asked_for = {"head": 0, "tail": 1}[side]
    names[asked_for] = "?"
    relation_name = str(relation) if dataset.relations is None else dataset.relations.name(relation)
    return Sample(names[0], relation_name, names[1], names[2], rank, tuple(names[3:]))


def write_comparison(run_folders: list[Path], out: Path) -> Path:
    """Write one page about several searches, finished or not."""
    runs = [read_run(Path(folder)) for folder in run_folders]
    graphs = {run["fingerprint"] for run in runs}
    page = template("compare.html").render(
        version=__version__,
        written=datetime.now(timezone.utc).strftime("%Y-%m-%d %H:%M UTC"),
        names=[run["name"] for run in runs],
        links=[os.path.relpath(Path(f).resolve() / REPORT_FILE, Path(out).resolve().parent) for f in run_folders],
        columns=COMPARED,
        texts=COMPARED_TEXTS,
        rows=[run_row(run) for run in runs],
        same_graph=len(graphs) == 1,
        charts=_test_charts(runs),
        relations=_relations(runs) if len(graphs) == 1 else [],
        configured=[run["name"] for run in runs if run["values"]],
        settings=_changed_settings(runs),
    )
    with atomic_file(Path(out)) as aside:
        aside.write_text(page, encoding="utf-8")
    return Path(out)


def read_run(folder: Path) -> dict[str, Any]:
    """Return what the comparison needs to know about a search, as plain data."""
    state = read_state(folder)
    summary = summarize(state, datetime.now(timezone.utc), alive=not is_abandoned(folder))
    found = summary["winner"] or summary["incumbent"]
    return {
        "name": str(folder),
        "fingerprint": state.dataset.get("fingerprint", ""),
        "summary": summary,
        "epochs": _final_epochs(state),
        "evaluation": read_evaluation(folder),
        "values": {} if found is None else found["values"],  # of the winner, or the best so far
        "can_be_off": [p.name for p in searched_parameters(state) if p.off],
    }


def _final_epochs(state: SearchState) -> float | None:
    """Return after how many epochs the final training ended, or is planned to end; None without one."""
    if not state.settings.get("final_train", True):
        return None
    if state.final is not None and state.final.history:
        return float(state.final.history[-1]["epoch"])
    return state.final_epochs or state.settings.get("max_epochs")


def run_row(run: dict[str, Any]) -> list[str]:
    """Return the cells of a run, one per COMPARED. MRRs and epochs are those of the final training."""
    summary, epochs = run["summary"], run["epochs"]
    winner = summary["winner"] or {}
    valid, test = (winner.get("final") or {}).get("valid_mrr"), (winner.get("test") or {}).get("mrr")
    baseline = (run["evaluation"].get("baseline") or {}).get("mrr")
    scores = ["–" if score is None else f"{score:.4f}" for score in (valid, test, baseline)]
    names = [run["name"], summary["dataset"].get("name", ""), ", ".join(summary["models"])]
    sizes = [str(summary["n_trials"]), "–" if epochs is None else f"{epochs:.3g}", summary["status"]]
    return [*names, *sizes, *scores, f"{summary['budget']['spent']:.3g}", format_duration(summary["seconds"])]


def _test_charts(runs: list[dict[str, Any]]) -> list[tuple[str, Any]]:
    """Return the name of each graph and the chart of its runs: MRRs of different graphs cannot be compared."""
    by_graph: dict[str, list[dict[str, Any]]] = {}
    for run in runs:
        by_graph.setdefault(run["fingerprint"], []).append(run)
    found = []
    for number, its_runs in enumerate(by_graph.values(), 1):
        name = "tests" if len(by_graph) == 1 else f"tests-{number}"
        drawn = draw_all({name: (partial(charts.run_intervals, _tests(its_runs)), WIDTH)}, set())
        found.append((str(its_runs[0]["summary"]["dataset"].get("name", "")), drawn[name]))
    return found


def _changed_settings(runs: list[dict[str, Any]]) -> dict[str, list[str]]:
    """Return the settings of the winners that differ from the defaults, as the reports show them."""
    shown = [run for run in runs if run["values"]]
    off = {name for run in shown for name in run["can_be_off"]}
    found = changed_settings(*(run["values"] for run in shown)).items()
    return {name: ["off" if name in off and v == 0 else value_text(v) for v in values] for name, values in found}


def _tests(runs: list[dict[str, Any]]) -> list[tuple[str, float, tuple[float, float]]]:
    """Return name, test MRR and interval of the runs that have them."""
    found = [(run["name"], (run["summary"]["winner"] or {}).get("test")) for run in runs]
    return [
        (name, test["mrr"], tuple(test["interval"] or (test["mrr"], test["mrr"])))
        for name, test in found
        if test and test.get("mrr") is not None
    ]


def _relations(runs: list[dict[str, Any]]) -> list[tuple[str, int, list[float | None]]]:
    """Return relation, questions and the test MRR of each run; relations with the most questions first."""
    tables = [run["evaluation"].get("per_relation", {}) for run in runs]
    counts = {name: int(metrics["n"]) for table in tables for name, metrics in table.items()}
    names = sorted(counts, key=lambda name: -counts[name])[:_MOST_RELATIONS]
    return [(name, counts[name], [(table.get(name) or {}).get("mrr") for table in tables]) for name in names]
