"""The page of real searches: candidates compared seed by seed, results of others, and every pick."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from grash.search.proposals import all_winners
from grash.search.settings import SearchSettings
from grash.training.config import TrainConfig
from grash_study.confirm import Candidate, Wanted, family_of, plain_name
from grash_study.pages import INDEX, Bar, Page, Rows, Value, bar_plot, with_interval
from grash_study.statistics import mean_interval
from grash_study.store import TESTED, Store

ALL = "all"
_KNOWN = {
    "winner of this graph": "published winners of this very graph, which the portfolio proposes",
    "winner of a sibling": "published winners of a sibling of this graph, with shared entities and relations",
    "winner of another graph": "published winners of other graphs",
    "prior, fitted here too": "drawn from the prior, which is fitted to published trials and winners, some of this "
    "graph or its siblings",
    "prior": "drawn from the prior, which is fitted to published trials and winners of other graphs",
}
_LAST = 0.99  # of the epochs: if the best validation comes later, E was too small
_NOT_SHOWN = ("model", "dim", "epochs", "valid_every", "patience", "seed", "variation")  # of a pick's settings


@dataclass(frozen=True)
class Column:
    """The searches of one candidate and model."""

    candidate: Candidate
    model: str
    settings: SearchSettings
    records: dict[int, dict[str, Any]]  # by seed
    seeds: int  # that were asked for

    def values(self, name: str) -> list[float]:
        """Return a number of every record, or of its test."""
        found = (r["test"][name] if name in r["test"] else r[name] for r in self.records.values())
        return [float(v) for v in found if v is not None]


def columns_of(wanted: Sequence[Wanted], store: Store) -> list[Column]:
    """Return the columns model by model, the candidates in their order."""
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
    """Return one page for all models, with a table of differences if there are several candidates."""
    columns, first = columns_of(wanted, store), wanted[0]
    dataset, s = str(store.meta["dataset"]), first.settings
    models = list(dict.fromkeys(c.model for c in columns))
    ending = re.sub(r"[^\w.-]+", "_", label)
    name = f"confirm-{dataset}-{'-'.join(models)}-d{s.dim}-e{s.max_epochs:g}-{ending}"
    devices = sorted({r["device"] for c in columns for r in c.records.values()})
    title = f"Real searches with final training: {dataset}, {', '.join(models)}"
    page = Page(name, title, command, ", ".join(devices), raw=_raw(columns))
    seeds = "1 seed" if columns[0].seeds == 1 else f"{columns[0].seeds} seeds"
    page.add(
        f"Each search is one `grash search` at B = {s.budget:g} (E = {s.max_epochs:g}, d = {s.dim}) with the final "
        f"training of its pick, which is outside B; {seeds} each. The test triples were ranked once, by the final "
        f"model. Means over seeds with Student's 95 % interval; a search that ended without a model counts as 0. "
        f"`runs` is the cost of the search in full trainings.",
        _candidates(columns),
        "## What is found",
        _summary(columns),
        *_known_sentence(dataset, columns),
    )
    bars = _bars(dataset, columns)
    if bars:
        goals = [bar[0] for bar in bars if bar[0].endswith(", goal")]
        drawn = bar_plot(bars, title="The final model", x_label="test MRR", highlighted=goals)
        page.add((name, drawn, "Test MRR, mean over seeds"))
    if len(dict.fromkeys(c.candidate.name for c in columns)) > 1:
        about = "Test MRR minus that of the same model and seed; `all` takes every model and seed as one pair."
        page.add(f"## Against {first.candidate.name}, seed by seed", about, _differences(columns))
    page.add(*_others(dataset, columns), "## Every search", _every(dataset, columns))
    page.add("## What was picked", _picks(columns))
    return page


def differences(columns: Sequence[Column], model: str, name: str) -> list[float]:
    """Return the test MRR of a candidate minus that of the first, for every seed of both; `all`: over all models."""
    reference = columns[0].candidate.name
    found = []
    for each in dict.fromkeys(c.model for c in columns) if model == ALL else (model,):
        base, mine = (
            next(c.records for c in columns if (c.model, c.candidate.name) == (each, n)) for n in (reference, name)
        )
        found += [float(mine[s]["test"]["mrr"] - base[s]["test"]["mrr"]) for s in sorted(mine) if s in base]
    return found


def _candidates(columns: Sequence[Column]) -> Rows:
    rows = {c.candidate.name: (c.candidate.name, c.candidate.preset, c.candidate.text or "–") for c in columns}
    return Rows(("candidate", "preset", "settings on top of it"), tuple(rows.values()))


def _summary(columns: Sequence[Column]) -> Rows:
    headings = (
        "model", "candidate", "seeds", "test MRR", "lowest", "Hits@1", "Hits@3", "Hits@10", "valid MRR", "runs",
        "search, s", "final, s",
    )  # fmt: skip
    rows: list[tuple[Value, ...]] = []
    for c in columns:
        mrr = c.values("mrr")
        rest = ("hits@1", "hits@3", "hits@10", "valid", "spent", "seconds", "final_seconds")
        rows.append((
            c.model, c.candidate.name, f"{len(c.records)} of {c.seeds}", with_interval(*mean_interval(mrr), digits=4),
            min(mrr, default=None), *(mean_interval(c.values(n))[0] for n in rest),
        ))  # fmt: skip
    return Rows(headings, tuple(rows))


def _known_sentence(dataset: str, columns: Sequence[Column]) -> list[str]:
    """Return a sentence on what was known of this graph before the searches."""
    picks = [_known(c, r, dataset) for c in columns for r in c.records.values()]
    found = [
        f"{picks.count(kind)} of these {len(picks)} picks are {text}" for kind, text in _KNOWN.items() if kind in picks
    ]
    if not found:
        return []
    return [
        f"What was known before: {'; '.join(found)}. A candidate with `proposals=sobol` or `proposals=random` shows "
        f"what a search finds without that."
    ]


def _known(column: Column, record: dict[str, Any], dataset: str) -> str:
    """A candidate without the graph's family has a prior that knows nothing of it."""
    known = known_before(record["origin"], dataset)
    return "prior" if column.candidate.without_family and known.startswith("prior") else known


def _differences(columns: Sequence[Column]) -> Rows:
    models = list(dict.fromkeys(c.model for c in columns))
    names = list(dict.fromkeys(c.candidate.name for c in columns))[1:]
    rows: list[tuple[Value, ...]] = []
    for model in [*models, *([ALL] if len(models) > 1 else [])]:
        for name in names:
            found = differences(columns, model, name)
            mean, low, high = mean_interval(found)
            interval = None if mean is None else "–" if low is None else f"{low:+.4f} … {high:+.4f}"
            better = f"{sum(d > 0 for d in found)} of {len(found)}" if found else None
            rows.append((model, name, None if mean is None else f"{mean:+.4f}", interval, better))
    return Rows(("model", "candidate", "test MRR, difference", "95 %", "better"), tuple(rows))


def _others(dataset: str, columns: Sequence[Column]) -> list[str | Rows]:
    """Return what others report for the models of the page; nothing if nothing is known."""
    missed = []
    for c in columns:
        aim, mean = goal(dataset, c.model), mean_interval(c.values("mrr"))[0]
        if aim is not None and mean is not None and mean < aim:
            by = f"our goal of {aim:.3f} is missed by {aim - mean:.4f} ([why]({INDEX}))"
            missed.append(f"- {c.model}, {c.candidate.name}: {by}.")
    rows: list[tuple[Value, ...]] = []
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


def _every(dataset: str, columns: Sequence[Column]) -> Rows:
    headings = (
        "model", "candidate", "seed", "test MRR", "Hits@10", "valid MRR", "best at epoch", "runs", "search, s",
        "final, s", "pick known before as",
    )  # fmt: skip
    rows: list[tuple[Value, ...]] = []
    for c in columns:
        for seed in range(c.seeds):
            r = c.records.get(seed)
            head = (c.model, c.candidate.name, str(seed))
            rows.append((*head, *(None,) * 8) if r is None else (
                *head, r["test"]["mrr"], r["test"]["hits@10"], "–" if r["valid"] is None else r["valid"],
                _best_epoch(r, c.settings.max_epochs), r["spent"], r["seconds"], r["final_seconds"],
                _known(c, r, dataset) or "–",
            ))  # fmt: skip
    return Rows(headings, tuple(rows))


def _best_epoch(record: dict[str, Any], epochs: float) -> str:
    if not record["validations"]:
        return "–"
    epoch = max(record["validations"], key=lambda v: v[1])[0]
    return f"{epoch:.3g} (the last)" if epoch >= _LAST * epochs else f"{epoch:.3g}"


def _picks(columns: Sequence[Column]) -> Rows:
    rows = [
        (c.model, c.candidate.name, str(seed), r["failed"] or f"{r['winner']} ({r['origin']})", _pick_text(r["values"]))
        for c in columns
        for seed, r in sorted(c.records.items())
    ]
    headings = ("model", "candidate", "seed", "configuration", "settings that are not the training's default")
    return Rows(headings, tuple(rows))


def _pick_text(values: dict[str, Any]) -> str:
    usual = TrainConfig.model_fields
    found = {k: v for k, v in values.items() if k not in _NOT_SHOWN and (k not in usual or v != usual[k].default)}
    return ", ".join(f"{k}={v:.3g}" if isinstance(v, float) else f"{k}={v}" for k, v in found.items())


def _bars(dataset: str, columns: Sequence[Column]) -> list[Bar]:
    bars: list[Bar] = []
    for model in dict.fromkeys(c.model for c in columns):
        for c in (c for c in columns if c.model == model and c.records):
            mean, low, high = mean_interval(c.values("mrr"))
            assert mean is not None
            bars.append((f"{model}, {c.candidate.name}", mean, low, high))
        aim = goal(dataset, model)
        if aim is not None and any(c.records for c in columns if c.model == model):
            bars.append((f"{model}, goal", aim, None, None))
    return bars


def _raw(columns: Sequence[Column]) -> Rows:
    numbers = ("score", "valid", "spent", "seconds", "final_seconds", "final_peak_bytes")
    tests = (f"test_{m}" for m in TESTED)
    headings = ("model", "candidate", "seed", *tests, *numbers, "device", "failed", "configuration", "settings")
    rows: list[tuple[Value, ...]] = [
        (c.model, c.candidate.name, seed, *(r["test"][m] for m in TESTED), *(r[n] for n in numbers), r["device"],
         r["failed"], json.dumps(r["values"], sort_keys=True), json.dumps(r["settings"], sort_keys=True))
        for c in columns for seed, r in sorted(c.records.items())
    ]  # fmt: skip
    return Rows(headings, tuple(rows))


# Results that others report for published splits: test triples, filtered with train, valid and test, all entities as
# candidates, with the digits of the source.
LIBKGE = "LibKGE, its README"
SEARCHED = "LibKGE, 200 trials trained in full (Ruffinelli et al., 2020)"
CODEX = "LibKGE (Safavi and Koutra, 2020)"
KGTUNER = "KGTuner (Zhang et al., 2022)"
ROTATE = "RotatE's authors (Sun et al., 2019)"
N3 = "1vsAll with N3 (Lacroix et al., 2018)"
RELATIONS = "N3 and relation prediction (Chen et al., 2021)"
WITHOUT = "N3 without relation prediction (Chen et al., 2021)"
GRASH = "GraSH, combined (Kochsiek et al., 2022)"
SELF_ADVERSARIAL = "GraSH with a self-adversarial loss"


@dataclass(frozen=True)
class Figure:
    """A reported result; None where the source does not give it."""

    graph: str  # as `plain_name` writes it
    model: str
    source: str
    dim: int | None  # floats per entity; a complex number has two
    mrr: float
    hits1: float | None = None
    hits3: float | None = None
    hits10: float | None = None


PUBLISHED = (
    Figure("fb15k237", "complex", SEARCHED, 256, 0.348, 0.253, 0.384, 0.536),
    Figure("fb15k237", "complex", KGTUNER, 2000, 0.352, 0.263, None, 0.530),
    Figure("fb15k237", "complex", N3, 200, 0.35, 0.26, 0.39, 0.54),
    Figure("fb15k237", "complex", N3, 2000, 0.37, 0.27, 0.40, 0.56),
    Figure("fb15k237", "complex", RELATIONS, 2000, 0.388, 0.298, 0.425, 0.568),
    Figure("fb15k237", "rotate", LIBKGE, None, 0.333, 0.240, 0.368, 0.522),
    Figure("fb15k237", "rotate", KGTUNER, 2000, 0.338, 0.243, None, 0.527),
    Figure("fb15k237", "rotate", ROTATE, 2000, 0.337, 0.241, 0.375, 0.533),
    Figure("fb15k237", "transe", LIBKGE, None, 0.313, 0.221, 0.347, 0.497),
    Figure("fb15k237", "transe", KGTUNER, 1000, 0.327, 0.228, None, 0.522),
    Figure("wn18rr", "complex", SEARCHED, 128, 0.475, 0.438, 0.490, 0.547),
    Figure("wn18rr", "complex", KGTUNER, 2000, 0.484, 0.440, None, 0.562),
    Figure("wn18rr", "complex", N3, 200, 0.47, 0.43, None, 0.56),
    Figure("wn18rr", "complex", N3, 4000, 0.49, 0.44, None, 0.58),
    Figure("wn18rr", "complex", RELATIONS, 2000, 0.488, 0.443, None, 0.578),
    Figure("wn18rr", "rotate", LIBKGE, None, 0.478, 0.439, 0.494, 0.553),
    Figure("wn18rr", "rotate", KGTUNER, 1000, 0.480, 0.427, None, 0.582),
    Figure("wn18rr", "transe", LIBKGE, 512, 0.228, 0.053, 0.368, 0.520),
    Figure("wn18rr", "transe", KGTUNER, None, 0.233),
    Figure("codexs", "complex", CODEX, 512, 0.465, 0.372, None, 0.646),
    Figure("codexs", "complex", WITHOUT, 2000, 0.472),
    Figure("codexs", "complex", RELATIONS, 2000, 0.473),
    Figure("codexs", "transe", CODEX, 512, 0.354, 0.219, None, 0.634),
    Figure("yago310", "complex", GRASH, 128, 0.528, 0.455, None, 0.660),
    Figure("yago310", "complex", GRASH, 512, 0.552),
    Figure("yago310", "complex", LIBKGE, 128, 0.551, 0.476, 0.596, 0.682),
    Figure("yago310", "complex", N3, 2000, 0.58, 0.50, 0.62, 0.71),
    Figure("yago310", "rotate", GRASH, 512, 0.453),
    Figure("yago310", "rotate", SELF_ADVERSARIAL, 512, 0.494),
    Figure("yago310", "transe", GRASH, 128, 0.499, 0.406, None, 0.661),
)
GOALS: dict[str, dict[str, float]] = {  # test MRR of one default search at B = 3, d ≤ 512
    "fb15k237": {"complex": 0.355, "rotate": 0.338, "transe": 0.327},
    "wn18rr": {"complex": 0.484, "rotate": 0.480, "transe": 0.233},
    "codexs": {"complex": 0.470},
}


def figures(dataset: str, model: str) -> tuple[Figure, ...]:
    """Return what is reported for a graph, by its name in any spelling."""
    return tuple(f for f in PUBLISHED if (f.graph, f.model) == (plain_name(dataset), model))


def goal(dataset: str, model: str) -> float | None:
    """Return the test MRR that a default search should reach there."""
    return GOALS.get(plain_name(dataset), {}).get(model)


def known_before(origin: str, dataset: str) -> str:
    """Return what was known of this graph in a pick before the search, by the pick's origin; "" for nothing."""
    here, family = plain_name(dataset), family_of(dataset)
    if origin.startswith("portfolio:"):
        of = next((w["dataset"] for w in all_winners() if origin == f"portfolio:{w['name']}"), "")
        if plain_name(of) == here:
            return "winner of this graph"
        return "winner of a sibling" if family_of(of) == family else "winner of another graph"
    if origin != "prior":
        return ""
    return "prior, fitted here too" if any(family_of(w["dataset"]) == family for w in all_winners()) else "prior"
