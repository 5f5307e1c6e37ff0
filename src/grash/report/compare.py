"""One page that compares several searches: results, relations and settings side by side (`grash report RUN RUN …`).

Only the final trainings are compared, since the rounds of two searches have different graphs. Searches of different
graphs share the table, not the charts.
"""

from __future__ import annotations

import os
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from grash import __version__
from grash.files import atomic_file
from grash.formatting import format_duration
from grash.report import charts
from grash.report.meaning import changed_settings
from grash.report.page import REPORT_FILE, WIDTH, draw_all, template
from grash.report.summary import is_abandoned, read_evaluation, read_state, summarize

COMPARED = ("run", "dataset", "model", "n", "E", "status", "valid", "test", "baseline", "cost", "time")
COMPARISON_FILE = "comparison.html"
_RELATIONS = 40  # with the most questions


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
        rows=[run_row(run) for run in runs],
        same_graph=len(graphs) == 1,
        charts=draw_all({"tests": (lambda width: charts.run_intervals(_tests(runs), width), WIDTH)}, set()),
        relations=_relations(runs) if len(graphs) == 1 else [],
        configured=[run["name"] for run in runs if run["values"]],
        settings=changed_settings(*(run["values"] for run in runs if run["values"])),
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
        "evaluation": read_evaluation(folder),
        "values": {} if found is None else found["values"],  # of the winner, or the best so far
    }


def run_row(run: dict[str, Any]) -> list[str]:
    """Return the cells of a run, one per COMPARED. MRRs are those of the final training."""
    summary = run["summary"]
    winner, epochs = summary["winner"] or {}, summary["max_epochs"]
    valid, test = (winner.get("final") or {}).get("valid_mrr"), (winner.get("test") or {}).get("mrr")
    baseline = (run["evaluation"].get("baseline") or {}).get("mrr")
    scores = ["–" if score is None else f"{score:.4f}" for score in (valid, test, baseline)]
    names = [run["name"], summary["dataset"].get("name", ""), ", ".join(summary["models"])]
    sizes = [str(summary["n_trials"]), "–" if epochs is None else f"{epochs:g}", summary["status"]]
    return [*names, *sizes, *scores, f"{summary['budget']['spent']:.3g}", format_duration(summary["seconds"])]


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
    names = sorted(counts, key=lambda name: -counts[name])[:_RELATIONS]
    return [(name, counts[name], [(table.get(name) or {}).get("mrr") for table in tables]) for name in names]
