"""Real searches with final training, several seeds each, to confirm what a table recommends.

Each search is one record in the store of the graph. It is identified by what is searched (settings, space, first
configurations), not by a candidate's name: a search is run again if a default changes, not if a name changes.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import mean
from typing import Any

from grash import __version__
from grash.data.dataset import Dataset
from grash.engines.driver import reraise_interrupts
from grash.engines.memory import choose_device
from grash.errors import ConfigError, SearchFailed
from grash.search.graphs import SearchGraphs
from grash.search.ledger import LEDGER_FILE, SearchState, read_ledger
from grash.search.proposals import all_winners, make_configurations, propose, space_for
from grash.search.schedule import fitting_trials
from grash.search.settings import ALIASES, SearchSettings, make_settings
from grash.search.space import as_dict
from grash.search.trial import MACHINE_FAULTS
from grash_study.pool import dataset_meta
from grash_study.run import device_name
from grash_study.searches import round_record, round_seconds, search_folder
from grash_study.store import BEFORE_THEY_EXISTED, TESTED, Store, old_names

OpenSearch = Callable[..., Any]  # grash.Search: (dataset, out=, preset=, device=, source=, **settings)
_SET_BY_STUDY = ("models", "seed", "final_train")
_BEFORE = {**old_names(BEFORE_THEY_EXISTED), "storage": "float32"}
_DIGITS = 6  # of numbers in an identity: the last bits of a draw differ between machines
PRIORS = Path(__file__).with_name("priors.json")  # by family of graphs: fitted by tools/fit_prior.py without it
WITHOUT_FAMILY = "-without-family"  # the end of a preset's name
_FAMILIES = {  # graphs that share entities and relations, by the start of their name
    "freebase": ("fb13", "fb15k", "freebase"), "wikidata": ("codex", "wikidata"),
    "wordnet": ("wn11", "wn18", "wordnet"), "yago": ("yago",),
}  # fmt: skip
_SIMILAR = ("models", "dim", "max_epochs", "budget")  # the time of a search depends on these most


@dataclass(frozen=True)
class Candidate:
    """A column of the study."""

    name: str
    preset: str = "default"
    settings: dict[str, Any] = field(default_factory=dict)  # on top of the preset; a space file has been read
    text: str = ""  # the settings as they were given
    without_family: bool = False  # published winners and prior of the graph's own family are left out


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
                name = f"{model} seed={seed} {identity(settings, dataset.n_entities, len(dataset.train))}"
                found.append(Wanted(candidate, model, seed, settings, name))
    return found


def preset_candidate(name: str) -> Candidate:
    """Return the candidate of a preset, e.g. default, or of default-without-family."""
    preset = name.removesuffix(WITHOUT_FAMILY)
    text = "" if preset == name else "without published winners and prior of the graph's family"
    return Candidate(name, preset, text=text, without_family=preset != name)


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
    given = old_names(settings.model_dump(mode="json"))
    given["space"] = [as_dict(space_for(settings, model, n_entities, n_train)) for model in settings.models]
    drawn = [c.values for c in make_configurations(settings, n_entities, settings.n_trials, n_train=n_train)]
    content = _normalized({"settings": given, "configurations": drawn})
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

    A search that was cut off, or that its machine failed, stays in STORE/searches, where the next call resumes it.
    Ctrl-C ends a search as usual, and is then raised.
    """
    start = time.monotonic()
    for one in wanted:
        left = None if max_seconds is None else max_seconds - (time.monotonic() - start)
        if one.name in store.searches:
            continue
        if left is not None and left <= 0:
            break
        store.hold()
        folder = search_folder(store, one.name)
        with reraise_interrupts():
            state, failed = _run(opened(open_search, dataset, one, folder, device=device), left)
            if state.stopped:
                break
            if failed and _machine_failed(state):
                say(f"{one.label}: {failed} The same command tries it again.")
                continue
            record = record_of(one, state, read_ledger(folder / LEDGER_FILE), device=device, failed=failed)
            store.add_search(record)
            shutil.rmtree(folder, ignore_errors=True)
            say(
                f"{one.label}: test MRR {record['test']['mrr']:.4f}, {record['spent']:.3g} full runs in "
                f"{record['seconds']:.1f} s, final training {record['final_seconds']:.1f} s"
                f"{'; ' + failed if failed else ''}"
            )
    return all(one.name in store.searches for one in wanted)


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
        "name": one.name, "model": one.model, "seed": one.seed, "preset": one.candidate.preset,
        "settings": one.settings.model_dump(mode="json"), "grash": __version__, "failed": failed,
        "winner": state.winner, "origin": "" if pick is None else pick.origin,
        "values": {} if pick is None else pick.values, "spent": state.spent, "seconds": chosen_at,
        "final_seconds": state.seconds - chosen_at, "score": None if best is None else best.mrr,
        "valid": None if final is None else final.mrr,
        "validations": [] if final is None else [[v["epoch"], v["mrr"]] for v in final.history],
        "test": dict.fromkeys(TESTED, 0.0) if tested is None else {m: tested[m] for m in TESTED},
        "final_peak_bytes": 0 if final is None else final.peak_bytes,
        "rounds": [round_record(past, one.settings, seconds[past.plan.number]) for past in state.rounds],
        "device": device_name(choose_device(device)),
    }  # fmt: skip


def plan_wanted(
    dataset: Dataset, wanted: Sequence[Wanted], store: Store, open_search: OpenSearch, *, device: str = "auto"
) -> str:
    """Return lines: which searches are missing, and about how long they take, from records or from a probe."""
    missing: dict[tuple[str, str], list[Wanted]] = {}
    for one in (one for one in wanted if one.name not in store.searches):
        missing.setdefault((one.model, one.candidate.name), []).append(one)
    n_missing = sum(map(len, missing.values()))
    lines = [f"{store.path.stem}: {len(wanted) - n_missing} of {len(wanted)} searches are there"]
    device_text, total = device_name(choose_device(device)), 0.0
    probed: dict[str, float] = {}
    for (model, candidate), several in missing.items():
        one = several[0]
        seconds = _known_seconds(one, store, device_text)
        if seconds is None:
            key = repr(_values(one.settings.model_dump(mode="json"), _SIMILAR))
            if key not in probed:
                folder = search_folder(store, one.name)
                probed[key] = opened(open_search, dataset, one, folder, device=device).plan().seconds or 0.0
            seconds = probed[key]
        total += len(several) * seconds
        lines.append(f"  {model}, {candidate}: {len(several)} of about {seconds:,.0f} s with final training")
    return "\n".join([*lines, f"about {total:,.0f} s of {device_text} in all"] if missing else lines)


def _run(search: Any, max_seconds: float | None) -> tuple[SearchState, str]:
    """Return the state in which a search has ended, and why it failed if it did."""
    try:
        return search.run(progress=False, max_seconds=max_seconds).state, ""
    except SearchFailed as error:
        return search.result.state, str(error)


def _machine_failed(state: SearchState) -> bool:
    """Whether faults of the machine, not what was searched, may have been the reason."""
    last = state.rounds[-1].results.values() if state.rounds else ()
    return any(r.status in MACHINE_FAULTS for r in ((state.final,) if state.final is not None else last))


def _normalized(content: Any) -> Any:
    """Return content with numbers of few digits and without settings at the value they had before they existed."""
    if isinstance(content, float):
        return float(f"{content:.{_DIGITS}g}")
    if isinstance(content, dict):
        return {k: _normalized(v) for k, v in content.items() if k not in _BEFORE or v != _BEFORE[k]}
    return [_normalized(value) for value in content] if isinstance(content, list | tuple) else content


def _known_seconds(one: Wanted, store: Store, device: str) -> float | None:
    """Return the mean seconds of searches that differ in the seed only, or else of similar ones."""
    ours = one.settings.model_dump(mode="json")
    records = [r for r in store.searches.values() if r["device"] == device]
    for names in (tuple(n for n in ours if n != "seed"), _SIMILAR):
        alike = [r for r in records if _values(r["settings"], names) == _values(ours, names)]
        if alike:
            return mean(r["seconds"] + r["final_seconds"] for r in alike)
    return None


def _values(settings: dict[str, Any], names: Sequence[str]) -> list[Any]:
    return [settings.get(name) for name in names]
