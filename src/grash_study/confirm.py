"""Real searches with final training, several seeds each, to confirm what a table recommends, and their page.

Each search is one record in the store of the graph. It is identified by what is searched (settings, space, first
configurations), not by a candidate's name: a search is run again if a default changes, not if a name changes.

`Live` makes a method a real search: it trains what the method asks for, where `Recorded` looks it up in a table. What
was trained is in the store of a pool, so a search that was stopped continues from there.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np

from grash import __version__
from grash.data.dataset import Dataset
from grash.engines.memory import choose_device
from grash.errors import ConfigError, InputError, SearchFailed, UnknownName
from grash.search.graphs import SearchGraphs
from grash.search.ledger import LEDGER_FILE, SearchState, read_ledger
from grash.search.proposals import all_winners, make_configurations, propose, space_for
from grash.search.schedule import fitting_trials
from grash.search.settings import ALIASES, SearchSettings, make_settings
from grash.search.space import as_dict
from grash.search.trial import MACHINE_FAULTS
from grash.training.config import TrainConfig
from grash_study.methods import METHODS, Method
from grash_study.pages import Bar, Page, Rows, Value, with_interval
from grash_study.pool import StudyGraphs, dataset_meta, make_pool
from grash_study.recorded import Recorded, Scores
from grash_study.run import device_name, run_cells
from grash_study.searches import round_record, round_seconds, run_missing, search_folder
from grash_study.statistics import mean_interval
from grash_study.store import TESTED, Entry, Store, Technique, cells_on, rounded, short
from grash_study.table import GRAPHS

OpenSearch = Callable[..., Any]  # grash.Search: (dataset, out=, preset=, device=, source=, **settings)
_SET_BY_STUDY = ("models", "seed", "final_train")
_USED_BY_METHODS = ("dim", "max_epochs", "budget", "space", "fixed")
_DIGITS = 6  # of numbers in an identity: the last bits of a draw differ between machines
PRIORS = Path(__file__).with_name("priors.json")  # by family of graphs: fitted by tools/fit_prior.py without it
WITHOUT_FAMILY = "-without-family"  # the end of a preset's name
_FAMILIES = {  # graphs that share entities and relations, by the start of their name
    "freebase": ("fb13", "fb15k", "freebase"), "wikidata": ("codex", "wikidata"),
    "wordnet": ("wn11", "wn18", "wordnet"), "yago": ("yago",),
}  # fmt: skip
ALL = "all"
TECHNIQUES: dict[str, Technique] = {"kgtuner": "kgtuner", "autone": "walk"}  # the subgraphs of a method, if not cores
POOL = 128  # configurations that a method chooses from
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
class Candidate:
    """A column of the study."""

    name: str
    preset: str = "default"
    settings: dict[str, Any] = field(default_factory=dict)  # on top of the preset; a space file has been read
    text: str = ""  # the settings as they were given
    without_family: bool = False  # published winners and prior of the graph's own family are left out
    method: Method | None = None  # instead of grash's search, on a pool of POOL configurations


@dataclass(frozen=True)
class Wanted:
    """One search: of a candidate, with one model and seed."""

    candidate: Candidate
    model: str
    seed: int
    settings: SearchSettings
    name: str  # of its record in the store

    @property
    def label(self) -> str:
        return f"{self.model}, {self.candidate.name}, seed {self.seed}"


def wanted_searches(
    dataset: Dataset, candidates: Sequence[Candidate], *, models: Sequence[str], seeds: int, common: dict[str, Any]
) -> list[Wanted]:
    """Return the searches seed by seed, so that candidates can be compared at any time. common: settings of all."""
    names = [c.name for c in candidates]
    if not names or len(set(names)) < len(names) or seeds < 1:
        raise ConfigError(
            f"{len(names)} candidates ({', '.join(names)}) and {seeds} seeds: give one candidate or more, each with a "
            f"different name, and 1 seed or more."
        )
    for key in (k for given in (common, *(c.settings for c in candidates)) for k in given):
        if ALIASES.get(key, key) in _SET_BY_STUDY:
            raise ConfigError(f"{key} is set by this study for its searches: give --models and --seeds.")
    by_method = ", ".join(c.name for c in candidates if c.method is not None)
    if by_method and (unused := ", ".join(k for k in common if ALIASES.get(k, k) not in _USED_BY_METHODS)):
        raise ConfigError(
            f"{unused} would change nothing in the searches of {by_method}, which use {', '.join(_USED_BY_METHODS)} "
            f'only: leave it out, or give it to a candidate, e.g. --candidate "default: n_trials=32".'
        )
    graphs = SearchGraphs(dataset, make_settings({}))
    found = []
    for seed in range(seeds):
        for model in models:
            for candidate in candidates:
                fixed = {**common.get("fixed", {}), **candidate.settings.get("fixed", {})}
                own = {"fixed": fixed, "models": (model,), "seed": seed, "final_train": True}
                settings = make_settings({**common, **candidate.settings, **own}, preset=candidate.preset)
                if not graphs.valid_pairs_isolated:  # the setting changes nothing on this graph
                    settings = settings.model_copy(update={"last_round_holdout": "random"})
                if candidate.without_family:
                    settings = without_family(settings, graphs)
                by = f"{candidate.method.run} " if candidate.method is not None else ""
                name = f"{model} seed={seed} {by}{identity(settings, dataset.n_entities, len(dataset.train))}"
                found.append(Wanted(candidate, model, seed, settings, name))
    return found


def preset_candidate(name: str) -> Candidate:
    """Return the candidate of a preset, e.g. default, or of default-without-family."""
    preset = name.removesuffix(WITHOUT_FAMILY)
    text = "" if preset == name else "without published winners and prior of the graph's family"
    return Candidate(name, preset, text=text, without_family=preset != name)


def method_candidate(name: str) -> Candidate:
    """Return the candidate of a method, e.g. hyperband, that trains what it asks for. grash's own are real anyway."""
    known = {str(m.run): m for m in reversed(METHODS) if m.run not in ("grash", "tpe-rounds")}
    if name not in known:
        raise UnknownName("method", name, hint=f"Methods with real searches: {', '.join(reversed(known))}.")
    text = f"{known[name].name}, on {POOL} random configurations of the space"
    return Candidate(name, settings={"proposals": "random"}, text=text, method=known[name])


def without_family(settings: SearchSettings, graphs: SearchGraphs) -> SearchSettings:
    """Return settings whose configurations come from a portfolio without the graph's own family.

    They are given as `initial`, in the same order and number. Nothing changes if the portfolio has none of the family.
    """
    family, model = family_of(graphs.dataset.name), settings.models[0]
    winners = [w for w in all_winners() if family_of(w["dataset"]) != family]
    if settings.proposals != "portfolio" or len(winners) == len(all_winners()):
        return settings
    portfolio = {"winners": winners, "prior": json.loads(PRIORS.read_text(encoding="utf-8"))[family]}
    space, n = space_for(settings, model, graphs.n_entities, graphs.n_train), fitting_trials(settings, graphs)
    proposed = propose(
        space, "portfolio", n, seed=settings.seed, model=model, n_entities=graphs.n_entities, portfolio=portfolio
    )
    given = [{"values": {**p.values, "model": model}, "origin": p.origin} for p in proposed]
    return settings.model_copy(update={"initial": (*settings.initial, *given)[:n]})


def family_of(dataset: str) -> str:
    """Return the family that a graph shares entities and relations with, or its own name."""
    name = plain_name(dataset)
    return next((f for f, starts in _FAMILIES.items() if name.startswith(starts)), name)


def plain_name(dataset: str) -> str:
    """Return the same name for FB15k-237 and fb15k_237."""
    return "".join(c for c in dataset.lower() if c.isalnum())


def identity(settings: SearchSettings, n_entities: int, n_train: int | None = None) -> str:
    """Return 12 hex digits of all that makes a search: its settings, its space, its first configurations."""
    given = settings.model_dump(mode="json")
    given["space"] = [as_dict(space_for(settings, model, n_entities, n_train)) for model in settings.models]
    drawn = [c.values for c in make_configurations(settings, n_entities, settings.n_trials, n_train=n_train)]
    content = short({"settings": given, "configurations": drawn}, _DIGITS)
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:12]


def store_of(folder: Path, dataset: Dataset) -> Store:
    """Return the store of all real searches on a graph: FOLDER/confirm-GRAPH.jsonl."""
    return Store.at(Path(folder) / f"confirm-{dataset.name}.jsonl", dataset_meta(dataset))


def run_wanted(
    dataset: Dataset,
    wanted: Sequence[Wanted],
    store: Store,
    open_search: OpenSearch,
    *,
    device: str = "auto",
    max_seconds: float | None = None,
    say: Callable[[str], None] = lambda line: None,
) -> bool:
    """Run what the store lacks, as far as time allows; return whether all is there.

    A search that its machine failed stays in its folder, where the next call resumes it.
    """

    def run(one: Wanted, folder: Path, left: float | None) -> tuple[dict[str, Any] | None, str]:
        if one.candidate.method is not None:
            record = run_method(one, dataset, folder, device=device)
        else:
            search, failed = opened(open_search, dataset, one, folder, device=device), ""
            try:
                state = search.run(progress=False, max_seconds=left).state
            except SearchFailed as error:
                state, failed = search.result.state, str(error)
            if state.stopped:
                return None, ""
            if failed and _machine_failed(state):
                return None, f"{one.label}: {failed} The same command tries it again."
            record = record_of(one, state, read_ledger(folder / LEDGER_FILE), device=device, failed=failed)
        return record, (
            f"{one.label}: test MRR {record['test']['mrr']:.4f}, {record['spent']:.3g} full runs in "
            f"{record['seconds']:.1f} s, final training {record['final_seconds']:.1f} s"
        ) + (f"; {record['failed']}" if record["failed"] else "")

    return run_missing(store, wanted, lambda one: one.name in store.searches, run, max_seconds=max_seconds, say=say)


def run_method(one: Wanted, dataset: Dataset, folder: Path, *, device: str) -> dict[str, Any]:
    """Return the outcome of a method that trains what it asks for, as `record_of` has it. If its pick was trained in
    full already, that is its final training."""
    s, method = one.settings, one.candidate.method
    assert method is not None and isinstance(method.run, str)
    pool = make_pool(
        dataset, n=POOL, model=one.model, dim=s.dim, epochs=s.max_epochs, space=s.space, seed=one.seed, fixed=s.fixed
    )  # fmt: skip
    store = pool.store(folder)  # of this search alone
    live = Live(StudyGraphs(pool), store, technique=TECHNIQUES.get(method.run, "core-order"), device=device)
    trace = method(cast(Recorded, live), one.seed, s.budget)
    seconds, final = store.seconds, None if trace.pick is None else live.trained(trace.pick, 1.0, 1.0)
    test = {} if final is None or final.test is None else final.test
    return {
        **_about(one, device),
        "failed": "" if test else "no configuration has a score",
        "winner": trace.pick, "origin": "random",
        "values": {} if trace.pick is None else pool.configurations[trace.pick].values,
        "spent": trace.cost, "seconds": seconds, "final_seconds": store.seconds - seconds, "score": None,
        "valid": None if final is None else max((mrr for _, mrr, _ in final.curve), default=0.0),
        "validations": [] if final is None else [[e * s.max_epochs, mrr] for e, mrr, _ in final.curve],
        "test": {m: test.get(m, 0.0) for m in TESTED}, "final_peak_bytes": 0 if final is None else final.peak_bytes,
        "rounds": [],
    }  # fmt: skip


def _about(one: Wanted, device: str) -> dict[str, Any]:
    """Return what the records of all searches begin with."""
    return {
        "name": one.name, "model": one.model, "seed": one.seed, "preset": one.candidate.preset,
        "settings": one.settings.model_dump(mode="json"), "grash": __version__,
        "device": device_name(choose_device(device)),
    }  # fmt: skip


class Live:
    """A pool whose members are trained when a method asks for their scores, in place of a table (`Recorded`)."""

    valid_pairs_isolated = False  # a method validates on random triples

    def __init__(self, graphs: StudyGraphs, store: Store, *, device: str, technique: Technique = "core-order") -> None:
        pool = graphs.pool
        self.graphs, self.store, self.technique, self.device = graphs, store, technique, device
        self.n, self.members, self.max_epochs = pool.n, np.arange(pool.n), pool.settings.max_epochs
        self.n_entities, self.n_train = pool.dataset.n_entities, len(pool.dataset.train)
        self.fractions: Scores = np.array([*GRAPHS, 1.0])
        self.shape, self.smallest_fraction = graphs.search.shape, graphs.search.smallest_fraction

    @cached_property
    def table(self) -> SimpleNamespace:
        """What methods read of a table without a score: its configurations and the sizes of its graphs."""
        pool = self.graphs.pool
        entities, triples = np.array([*map(self._sizes, GRAPHS), (self.n_entities, self.n_train)]).T
        configurations = [c.values for c in pool.configurations]
        return SimpleNamespace(meta=pool.meta(), configurations=configurations, entities=entities, triples=triples)

    def _sizes(self, g: float) -> tuple[int, int]:
        """Return the entities and triples of a graph; zeros if no triple is left, as in `SearchGraphs.shape`."""
        try:
            data = self.graphs.graph(self.technique, g).dataset
        except InputError:
            return 0, 0
        return data.n_entities, len(data.train)

    def last_judge(self, g: float) -> Live:
        return self

    def scores(self, g: float, e: float) -> Asked:
        """Return the scores of members on a graph fraction after e of the epochs; NaN if diverged."""
        return Asked(lambda member: _score(self.trained(member, g, e), e))

    def part_seen(self, g: float, e: float) -> Asked:
        return Asked(lambda member: min(1.0, (self.trained(member, g, e).failed or math.inf) / e))

    @property
    def full_scores(self) -> Asked:
        """The best validations of full runs; NaN if diverged."""
        return Asked(lambda member: _best(self.trained(member, 1.0, 1.0)))

    def trained(self, member: int, g: float, e: float) -> Entry:
        """Return the training of a member, from the store or run now."""
        e, technique = rounded(e), self.technique if g < 1 else "whole"
        cells = cells_on(technique, g, [member], upto=e, also=(e / 2,))
        run_cells(self.graphs, cells, self.store, device=self.device)
        return self.store.entries[member, technique, rounded(g)]


class Asked:
    """Numbers by member, each computed when it is read, as an array of all members would have them."""

    def __init__(self, of: Callable[[int], float]) -> None:
        self.of = of

    def __getitem__(self, asked: int | Sequence[int]) -> Any:
        if isinstance(asked, int | np.integer):
            return self.of(int(asked))
        return np.array([self.of(int(member)) for member in asked])


def _score(entry: Entry, e: float) -> float:
    score = None if not entry.worked or entry.diverged_by(e) else entry.score(e)
    return math.nan if score is None else score


def _best(entry: Entry) -> float:
    return math.nan if entry.status != "ok" else max(mrr for _, mrr, _ in entry.curve)


def opened(open_search: OpenSearch, dataset: Dataset, one: Wanted, folder: Path, *, device: str = "auto") -> Any:
    """Return the search as a user opens it, with its final training."""
    settings = one.settings.model_dump(mode="python")
    return open_search(dataset, out=folder, preset=one.candidate.preset, device=device, **settings)


def record_of(
    one: Wanted, state: SearchState, events: list[dict[str, Any]], *, device: str, failed: str = ""
) -> dict[str, Any]:
    """Return the outcome of a search, JSON-able: the pick, costs and seconds, the final model's validation and test."""
    final, seconds, best = state.final, round_seconds(events), state.incumbent()
    chosen_at = next((e["elapsed"] for e in events if e["event"] == "winner_chosen"), state.seconds)
    pick = None if state.winner is None else state.configurations[state.winner]
    tested = (final.evaluation or {}).get("both") if final is not None else None
    return {
        **_about(one, device), "failed": failed,
        "winner": state.winner, "origin": "" if pick is None else pick.origin,
        "values": {} if pick is None else pick.values, "spent": state.spent, "seconds": chosen_at,
        "final_seconds": state.seconds - chosen_at, "score": None if best is None else best.mrr,
        "valid": None if final is None else final.mrr,
        "validations": [] if final is None else [[v["epoch"], v["mrr"]] for v in final.history],
        "test": dict.fromkeys(TESTED, 0.0) if tested is None else {m: tested[m] for m in TESTED},
        "final_peak_bytes": 0 if final is None else final.peak_bytes,
        "rounds": [round_record(past, one.settings, seconds[past.plan.number]) for past in state.rounds],
    }  # fmt: skip


def plan_wanted(
    dataset: Dataset, wanted: Sequence[Wanted], store: Store, open_search: OpenSearch, *, device: str = "auto"
) -> str:
    """Return lines: which searches are missing, and about how long they take, by the plan of a model's first one."""
    missing = [one for one in wanted if one.name not in store.searches]
    lines = [f"{store.path.stem}: {len(wanted) - len(missing)} of {len(wanted)} searches are there"]
    total = 0.0
    if by_method := sum(one.candidate.method is not None for one in missing):
        lines.append(f"  {by_method} of methods, which take as long as their full runs")
    missing = [one for one in missing if one.candidate.method is None]
    for model in dict.fromkeys(one.model for one in missing):
        mine = [one for one in missing if one.model == model]
        first = opened(open_search, dataset, mine[0], search_folder(store, mine[0].name), device=device)
        seconds = first.plan().seconds or 0.0
        total += len(mine) * seconds
        lines.append(f"  {model}: {len(mine)} of about {seconds:,.0f} s with final training")
    if missing:
        lines.append(f"about {total:,.0f} s of {device_name(choose_device(device))} in all")
    return "\n".join(lines)


def _machine_failed(state: SearchState) -> bool:
    """Whether faults of the machine, not what was searched, may have been the reason."""
    last = state.rounds[-1].results.values() if state.rounds else ()
    return any(r.status in MACHINE_FAULTS for r in ((state.final,) if state.final is not None else last))


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
    found = []
    for model in dict.fromkeys(one.model for one in wanted):
        for name in dict.fromkeys(one.candidate.name for one in wanted):
            mine = [one for one in wanted if (one.model, one.candidate.name) == (model, name)]
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
    page.add_bars(_bars(columns), title="The final model", x_label="test MRR", caption="Test MRR, mean over seeds")
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
    rows: list[tuple[Value, ...]] = []
    for model in dict.fromkeys(c.model for c in columns):
        for f in figures(dataset, model):
            hits = ("" if h is None else f"{h:g}" for h in (f.hits1, f.hits3, f.hits10))
            rows.append((model, f.source, "" if f.dim is None else str(f.dim), f"{f.mrr:g}", *hits))
    headings = ("model", "source", "d, floats", "test MRR", "Hits@1", "Hits@3", "Hits@10")
    return ["## What others report", Rows(headings, tuple(rows))] if rows else []


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


def _bars(columns: Sequence[Column]) -> list[Bar]:
    means = [(f"{c.model}, {c.candidate.name}", *mean_interval(c.values("mrr"))) for c in columns]
    return [(name, mean, low, high) for name, mean, low, high in means if mean is not None]


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


@dataclass(frozen=True)
class Figure:
    """A result that others report (`published.json`); None where the source does not give it."""

    graph: str  # as `plain_name` writes it
    model: str
    source: str
    mrr: float
    dim: int | None = None  # floats per entity; a complex number has two
    hits1: float | None = None
    hits3: float | None = None
    hits10: float | None = None


_PUBLISHED = json.loads(Path(__file__).with_name("published.json").read_text(encoding="utf-8"))
PUBLISHED = tuple(Figure(**content) for content in _PUBLISHED["figures"])


def figures(dataset: str, model: str) -> tuple[Figure, ...]:
    """Return what is reported for a graph, by its name in any spelling."""
    return tuple(f for f in PUBLISHED if (f.graph, f.model) == (plain_name(dataset), model))


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
