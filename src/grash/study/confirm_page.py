"""The page of real searches: candidates beside each other, seed by seed, beside what others report, with every pick.

Comes from the records of confirm.py; goes to docs/results.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from grash.search.settings import SearchSettings
from grash.study.confirm import Candidate, Wanted, picked_words
from grash.study.pages import Page, Rows, Value, with_interval
from grash.study.plots import bar_plot
from grash.study.published import figures, goal, known_before
from grash.study.statistics import mean_interval
from grash.study.store import Store

ALL = "all"
_KNOWN = {
    "winner of this graph": "published winners of this very graph, which the portfolio proposes",
    "winner of a sibling": "published winners of a sibling of this graph, with shared entities and relations",
    "winner of another graph": "published winners of other graphs",
    "prior, fitted here too": "drawn from the prior, which is fitted to published trials and winners, some of this "
    "graph or its siblings",
    "prior": "drawn from the prior, which is fitted to published trials and winners of other graphs",
}
_ENDS = 0.99  # of the epochs: a best validation after that says that E was too small for it


@dataclass(frozen=True)
class Column:
    """The searches of one candidate and model: records by seed, and how many seeds are asked for."""

    candidate: Candidate
    model: str
    settings: SearchSettings
    records: dict[int, dict[str, Any]]
    seeds: int

    def values(self, name: str) -> list[float]:
        """A number of every record, by its name in it or in its test."""
        found = (r["test"][name] if name in r["test"] else r[name] for r in self.records.values())
        return [float(v) for v in found if v is not None]


def columns_of(wanted: Sequence[Wanted], store: Store) -> list[Column]:
    """Model by model, the candidates in their order."""
    grouped: dict[tuple[str, str], list[Wanted]] = {}
    for one in wanted:
        grouped.setdefault((one.model, one.candidate.name), []).append(one)
    found = []
    for model in dict.fromkeys(one.model for one in wanted):
        for name in dict.fromkeys(one.candidate.name for one in wanted):
            mine = grouped[model, name]
            records = {one.seed: store.searches[one.name] for one in mine if one.name in store.searches}
            found.append(Column(mine[0].candidate, model, mine[0].settings, records, len(mine)))
    return found


def confirm_page(wanted: Sequence[Wanted], store: Store, *, label: str, command: str) -> Page:
    """One page for all models, with a table of differences if there are candidates to compare."""
    columns, first = columns_of(wanted, store), wanted[0]
    dataset, s = str(store.meta["dataset"]), first.settings
    models = list(dict.fromkeys(c.model for c in columns))
    ending = re.sub(r"[^\w.-]+", "_", label)
    name = f"confirm-{dataset}-{'-'.join(models)}-d{s.dim}-e{s.max_epochs:g}-{ending}"
    devices = sorted({r["device"] for c in columns for r in c.records.values()})
    title = f"Real searches with final training: {dataset}, " + ", ".join(models)
    page = Page(name, title, command, ", ".join(devices), raw=_raw(columns))
    seeds = "1 seed" if columns[0].seeds == 1 else f"{columns[0].seeds} seeds"
    page.add(
        f"Each search is one `grash search` at B = {s.budget:g} (E = {s.max_epochs:g}, d = {s.dim}) with the final "
        f"training of its pick, which is outside B; {seeds} each. The test triples were ranked once, by the final "
        f"model. Means over seeds with Student's 95 % interval; a search that ended without a model counts as 0. "
        f"`runs` is what the search was billed, in full trainings.",
        _candidates(columns),
        "## What is found",
        _summary(columns),
        *_known_here(dataset, columns),
    )
    shown = _bars(dataset, columns)
    if shown:
        page.add(
            (
                name,
                bar_plot(
                    shown,
                    title="The final model",
                    x_label="test MRR",
                    apart=[r[0] for r in shown if r[0].endswith(", goal")],
                ),
                "Test MRR, mean over seeds",
            )
        )
    if len(dict.fromkeys(c.candidate.name for c in columns)) > 1:
        about = "Test MRR less that of the same model and seed; `all` takes every model and seed as one pair."
        page.add(f"## Against {first.candidate.name}, seed by seed", about, _differences(columns))
    page.add(
        *_beside(dataset, columns), "## Every search", _every(dataset, columns), "## What was picked", _picks(columns)
    )
    return page


def differences(columns: Sequence[Column], model: str, name: str) -> list[float]:
    """Test MRR of a candidate less that of the first one, for every seed that both have; `all`: over all models."""
    reference = columns[0].candidate.name
    found = []
    for each in dict.fromkeys(c.model for c in columns) if model == ALL else (model,):
        base, mine = (
            next(c.records for c in columns if (c.model, c.candidate.name) == (each, n)) for n in (reference, name)
        )
        found += [float(mine[s]["test"]["mrr"] - base[s]["test"]["mrr"]) for s in sorted(mine) if s in base]
    return found


def _candidates(columns: Sequence[Column]) -> Rows:
    rows = {c.candidate.name: (c.candidate.name, c.candidate.preset, c.candidate.words or "–") for c in columns}
    return Rows(("candidate", "preset", "settings on top of it"), tuple(rows.values()))


def _summary(columns: Sequence[Column]) -> Rows:
    headings = ("model", "candidate", "seeds", "test MRR", "lowest", "Hits@1", "Hits@3", "Hits@10", "valid MRR",
                "runs", "search, s", "final, s")  # fmt: skip
    rows: list[tuple[Value, ...]] = []
    for c in columns:
        mrr = c.values("mrr")
        rest = ("hits@1", "hits@3", "hits@10", "valid", "spent", "seconds", "final_seconds")
        rows.append((
            c.model, c.candidate.name, f"{len(c.records)} of {c.seeds}", with_interval(*mean_interval(mrr), digits=4),
            min(mrr, default=None), *(mean_interval(c.values(n))[0] for n in rest),
        ))  # fmt: skip
    return Rows(headings, tuple(rows))


def _known_here(dataset: str, columns: Sequence[Column]) -> list[str]:
    """Says what the picks knew of this graph beforehand: a search that is handed its answer shows little."""
    picks = [known_before(r["origin"], dataset) for c in columns for r in c.records.values()]
    found = [
        f"{picks.count(kind)} of these {len(picks)} picks are {words}"
        for kind, words in _KNOWN.items()
        if kind in picks
    ]
    if not found:
        return []
    return [
        f"What was known before: {'; '.join(found)}. What a search finds without that is shown by a candidate with "
        f"`proposals=sobol` or `proposals=random`."
    ]


def _differences(columns: Sequence[Column]) -> Rows:
    models = list(dict.fromkeys(c.model for c in columns))
    names = list(dict.fromkeys(c.candidate.name for c in columns))[1:]
    rows: list[tuple[Value, ...]] = []
    for model in [*models, *([ALL] if len(models) > 1 else [])]:
        for name in names:
            found = differences(columns, model, name)
            mean, low, high = mean_interval(found)
            span = None if mean is None else "–" if low is None else f"{low:+.4f} … {high:+.4f}"
            better = f"{sum(d > 0 for d in found)} of {len(found)}" if found else None
            rows.append((model, name, None if mean is None else f"{mean:+.4f}", span, better))
    return Rows(("model", "candidate", "test MRR, difference", "95 %", "better"), tuple(rows))


def _beside(dataset: str, columns: Sequence[Column]) -> list[str | Rows]:
    """What others report for the models of the page; nothing where nothing is known."""
    rows: list[tuple[Value, ...]] = []
    missed = [words for c in columns if (words := _missed(dataset, c))]
    for model in dict.fromkeys(c.model for c in columns):
        aim = goal(dataset, model)
        if aim is not None:
            rows.append((model, "our goal for one default search", "≤ 512", f"{aim:.3f}", "", "", ""))
        for f in figures(dataset, model):
            hits = ("" if h is None else f"{h:g}" for h in (f.hits1, f.hits3, f.hits10))
            rows.append((model, f.source, "" if f.dim is None else str(f.dim), f"{f.mrr:g}", *hits))
    if not rows:
        return []
    headings = ("model", "source", "d, floats", "test MRR", "Hits@1", "Hits@3", "Hits@10")
    return ["## What others report", *(["\n".join(missed)] if missed else []), Rows(headings, tuple(rows))]


def _missed(dataset: str, column: Column) -> str:
    """By how much the mean over seeds lies below the goal; nothing where it is reached, not known or not run."""
    aim, mean = goal(dataset, column.model), mean_interval(column.values("mrr"))[0]
    if aim is None or mean is None or mean >= aim:
        return ""
    return (
        f"- {column.model}, {column.candidate.name}: our goal of {aim:.3f} is missed by {aim - mean:.4f} "
        f"([why](README.md))."
    )


def _every(dataset: str, columns: Sequence[Column]) -> Rows:
    headings = ("model", "candidate", "seed", "test MRR", "Hits@10", "valid MRR", "best at epoch", "runs", "search, s",
                "final, s", "pick known before as")  # fmt: skip
    rows: list[tuple[Value, ...]] = []
    for c in columns:
        for seed in range(c.seeds):
            r = c.records.get(seed)
            head = (c.model, c.candidate.name, str(seed))
            rows.append((*head, *(None,) * 8) if r is None else (
                *head, r["test"]["mrr"], r["test"]["hits@10"], "–" if r["valid"] is None else r["valid"],
                _best_epoch(r, c.settings.max_epochs), r["spent"], r["seconds"], r["final_seconds"],
                known_before(r["origin"], dataset) or "–",
            ))  # fmt: skip
    return Rows(headings, tuple(rows))


def _best_epoch(record: dict[str, Any], epochs: float) -> str:
    """With a note where training was still getting better at its end."""
    if not record["validations"]:
        return "–"
    epoch = max(record["validations"], key=lambda v: v[1])[0]
    return f"{epoch:.3g} (the last)" if epoch >= _ENDS * epochs else f"{epoch:.3g}"


def _picks(columns: Sequence[Column]) -> Rows:
    rows = [
        (c.model, c.candidate.name, str(seed), r["failed"] or f"{r['winner']} ({r['origin']})",
         picked_words(r["values"]))
        for c in columns for seed, r in sorted(c.records.items())
    ]  # fmt: skip
    return Rows(("model", "candidate", "seed", "configuration", "settings that are not the training's default"),
                tuple(rows))  # fmt: skip


def _bars(dataset: str, columns: Sequence[Column]) -> list[tuple[str, float, float | None, float | None]]:
    rows: list[tuple[str, float, float | None, float | None]] = []
    for model in dict.fromkeys(c.model for c in columns):
        for c in (c for c in columns if c.model == model and c.records):
            mean, low, high = mean_interval(c.values("mrr"))
            assert mean is not None
            rows.append((f"{model}, {c.candidate.name}", mean, low, high))
        aim = goal(dataset, model)
        if aim is not None and any(c.records for c in columns if c.model == model):
            rows.append((f"{model}, goal", aim, None, None))
    return rows


def _raw(columns: Sequence[Column]) -> Rows:
    numbers = ("score", "valid", "spent", "seconds", "final_seconds", "final_peak_bytes")
    tested = ("mrr", "hits@1", "hits@3", "hits@10")
    headings = ("model", "candidate", "seed", *(f"test_{m}" for m in tested), *numbers, "device", "failed",
                "configuration", "settings")  # fmt: skip
    rows: list[tuple[Value, ...]] = [
        (c.model, c.candidate.name, seed, *(r["test"][m] for m in tested), *(r[n] for n in numbers), r["device"],
         r["failed"], json.dumps(r["values"], sort_keys=True), json.dumps(r["settings"], sort_keys=True))
        for c in columns for seed, r in sorted(c.records.items())
    ]  # fmt: skip
    return Rows(headings, tuple(rows))
