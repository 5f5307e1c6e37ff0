"""Real searches with final training, several seeds each: what a table has recommended, done as a user would do it.

Comes from the command, which says what the candidates are and how a search is opened (it lies above this layer); goes
to confirm_page.py. Each search is one record of the graph's store, which belongs to what was searched (settings, space,
first configurations) and not to a candidate's name: a default that changes is run again, a name that changes is not.
"""

from __future__ import annotations

import hashlib
import json
import re
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
from grash.search.proposals import make_configurations, space_for
from grash.search.settings import ALIASES, SearchSettings, make_settings
from grash.search.space import as_dict
from grash.search.trial import MACHINE_FAULTS
from grash.training.config import TrainConfig
from grash_study.cells import TESTED
from grash_study.pool import OLDER_SETTINGS, SCHEMA, VERSION
from grash_study.run import device_words
from grash_study.searches import round_record, round_spans
from grash_study.store import Store

OpenSearch = Callable[..., Any]  # grash.Search: (dataset, out=, preset=, device=, source=, **settings)
_OURS = ("models", "seed", "final_train")  # what the study itself says of a search
_BEFORE = {**OLDER_SETTINGS, "storage": "float32"}
_DIGITS = 6  # of numbers that tell searches isolated: the last bits of a draw differ between machines


@dataclass(frozen=True)
class Candidate:
    """A column of the study: settings on top of a preset, a space file read already. words: as they were given."""

    name: str
    preset: str = "default"
    settings: dict[str, Any] = field(default_factory=dict)
    words: str = ""


@dataclass(frozen=True)
class Wanted:
    """One search: a candidate's, with one model and seed. name: of its record in the store."""

    candidate: Candidate
    model: str
    seed: int
    settings: SearchSettings
    name: str


def wanted_searches(
    dataset: Dataset, candidates: Sequence[Candidate], *, models: Sequence[str], seeds: int, common: dict[str, Any]
) -> list[Wanted]:
    """Seed by seed, so that candidates can be compared however far the study has come. common: settings of all."""
    names = [c.name for c in candidates]
    if not names or len(set(names)) < len(names) or seeds < 1:
        raise ConfigError(
            f"{len(names)} candidates ({', '.join(names)}) and {seeds} seeds: give one candidate or more, each with a "
            f"name of its own, and 1 seed or more."
        )
    for key in (k for given in (common, *(c.settings for c in candidates)) for k in given):
        if ALIASES.get(key, key) in _OURS:
            raise ConfigError(f"{key} is what this study says itself of its searches: give --models and --seeds.")
    isolated = SearchGraphs(dataset, make_settings({})).valid_pairs_isolated
    return [
        _wanted(dataset, candidate, model, seed, common, isolated)
        for seed in range(seeds)
        for model in models
        for candidate in candidates
    ]


def store_of(folder: Path, dataset: Dataset) -> Store:
    """The store of all real searches on a graph: FOLDER/confirm-GRAPH.jsonl."""
    meta = {
        "schema": SCHEMA, "version": VERSION, "grash": __version__, "dataset": dataset.name,
        "fingerprint": dataset.unnamed_fingerprint,
        "n_entities": dataset.n_entities, "n_relations": dataset.n_relations, "n_train": len(dataset.train),
        "n_valid": len(dataset.valid), "n_test": len(dataset.test),
    }  # fmt: skip
    return Store.at(Path(folder) / f"confirm-{dataset.name}.jsonl", meta)


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
    """Runs what the store lacks, as far as time allows; whether all is there then. A search that is cut off lies in
    STORE/searches until the next call goes on with it; one that its machine failed does too. Ctrl-C ends a search as it
    does elsewhere, and is then raised."""
    began = time.monotonic()
    for one in wanted:
        left = None if max_seconds is None else max_seconds - (time.monotonic() - began)
        if one.name in store.searches:
            continue
        if left is not None and left <= 0:
            break
        store.hold()
        place = folder_of(store, one)
        with reraise_interrupts():
            state, failed = _run(opened(open_search, dataset, one, place, device=device), left)
            if state.stopped:
                break
            if failed and _faulty(state):
                say(f"{one.model}, {one.candidate.name}, seed {one.seed}: {failed} The same command tries it again.")
                continue
            record = record_of(one, state, read_ledger(place / LEDGER_FILE), device=device, failed=failed)
            store.add_search(record)
            shutil.rmtree(place, ignore_errors=True)
            say(_line(one, record))
    return all(one.name in store.searches for one in wanted)


def opened(open_search: OpenSearch, dataset: Dataset, one: Wanted, place: Path, *, device: str = "auto") -> Any:
    """The search as a user opens it, with its final training."""
    return open_search(
        dataset, out=place, preset=one.candidate.preset, device=device, **one.settings.model_dump(mode="python")
    )


def folder_of(store: Store, one: Wanted) -> Path:
    """Where a search lies while it runs, or waits to go on."""
    return store.path.parent / "searches" / store.path.stem / re.sub(r"[^\w.=-]+", "_", one.name)


def record_of(
    one: Wanted, state: SearchState, events: list[dict[str, Any]], *, device: str, failed: str = ""
) -> dict[str, Any]:
    """What a search came to, JSON-able: the pick, costs and seconds, the final model's validation and test."""
    final, spans, best = state.final, round_spans(events), state.incumbent()
    won = next((e["elapsed"] for e in events if e["event"] == "winner_chosen"), state.seconds)
    pick = None if state.winner is None else state.configurations[state.winner]
    tested = (final.evaluation or {}).get("both") if final is not None else None
    return {
        "name": one.name, "model": one.model, "seed": one.seed, "preset": one.candidate.preset,
        "settings": one.settings.model_dump(mode="json"), "grash": __version__, "failed": failed,
        "winner": state.winner, "origin": "" if pick is None else pick.origin,
        "values": {} if pick is None else pick.values, "spent": state.spent, "seconds": won,
        "final_seconds": state.seconds - won, "score": None if best is None else best.mrr,
        "valid": None if final is None else final.mrr,
        "validations": [] if final is None else [[v["epoch"], v["mrr"]] for v in final.history],
        "test": dict.fromkeys(TESTED, 0.0) if tested is None else {m: tested[m] for m in TESTED},
        "final_peak_bytes": 0 if final is None else final.peak_bytes,
        "rounds": [round_record(past, one.settings, spans[past.plan.number]) for past in state.rounds],
        "device": device_words(choose_device(device)),
    }  # fmt: skip


def identity(settings: SearchSettings, n_entities: int) -> str:
    """12 hex digits of all that makes a search: its settings, the content of its space, its first configurations."""
    given = settings.model_dump(mode="json")
    given["space"] = [as_dict(space_for(settings, model, n_entities)) for model in settings.models]
    drawn = [c.values for c in make_configurations(settings, n_entities, settings.n_trials)]
    content = _plain({"settings": given, "configurations": drawn})
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:12]


def picked_words(values: dict[str, Any]) -> str:
    """What of a configuration is not the training's default, in a line."""
    usual, run = TrainConfig.model_fields, ("model", "dim", "epochs", "valid_every", "patience", "seed", "variation")
    found = {k: v for k, v in values.items() if k not in run and (k not in usual or v != usual[k].default)}
    return ", ".join(f"{k}={v:.3g}" if isinstance(v, float) else f"{k}={v}" for k, v in found.items())


def _wanted(
    dataset: Dataset, candidate: Candidate, model: str, seed: int, common: dict[str, Any], isolated: bool
) -> Wanted:
    """isolated: whether `last_round_holdout` can change something on this graph; if not, it stays as it was before it was."""
    fixed = {**common.get("fixed", {}), **candidate.settings.get("fixed", {})}
    given = {**common, **candidate.settings, "fixed": fixed, "models": (model,), "seed": seed, "final_train": True}
    settings = make_settings(given, preset=candidate.preset)
    settings = (
        settings if isolated else settings.model_copy(update={"last_round_holdout": _BEFORE["last_round_holdout"]})
    )
    return Wanted(candidate, model, seed, settings, f"{model} seed={seed} {identity(settings, dataset.n_entities)}")


def _run(search: Any, max_seconds: float | None) -> tuple[SearchState, str]:
    """The state in which a search has ended, and why it failed if it did."""
    try:
        return search.run(max_seconds=max_seconds).state, ""
    except SearchFailed as error:
        return search.result.state, str(error)


def _faulty(state: SearchState) -> bool:
    """Whether a machine's faults, and not what was searched, may have been the reason."""
    last = state.rounds[-1].results.values() if state.rounds else ()
    return any(r.status in MACHINE_FAULTS for r in ((state.final,) if state.final is not None else last))


def _plain(content: Any) -> Any:
    """The same with numbers of few digits, without what is as it was before it could be set."""
    if isinstance(content, float):
        return float(f"{content:.{_DIGITS}g}")
    if isinstance(content, dict):
        kept = {k: v for k, v in content.items() if k not in _BEFORE or v != _BEFORE[k]}
        return {key: _plain(value) for key, value in kept.items()}
    return [_plain(value) for value in content] if isinstance(content, list | tuple) else content


def _line(one: Wanted, record: dict[str, Any]) -> str:
    return (
        f"{one.model}, {one.candidate.name}, seed {one.seed}: test MRR {record['test']['mrr']:.4f}, "
        f"{record['spent']:.3g} full runs in {record['seconds']:.1f} s, final training {record['final_seconds']:.1f} s"
        f"{'; ' + record['failed'] if record['failed'] else ''}"
    )


# = Which real searches are missing, and about how long they take: by those that this device has run, else by a probe.
# =
# = Comes from confirm.py, before anything runs.

_LIKE = ("models", "dim", "max_epochs", "budget")  # what the time of a search depends on most


def plan_wanted(
    dataset: Dataset, wanted: Sequence[Wanted], store: Store, open_search: OpenSearch, *, device: str = "auto"
) -> str:
    """Lines for a person. Where no search of a model, dimension, E and B is known on this device, one is probed."""
    missing = [one for one in wanted if one.name not in store.searches]
    lines = [f"{store.path.stem}: {len(wanted) - len(missing)} of {len(wanted)} searches are there"]
    words, total = device_words(choose_device(device)), 0.0
    probed: dict[str, float] = {}
    for one in (one for one in missing if one.seed == min(m.seed for m in missing if _column(m) == _column(one))):
        count = sum(_column(m) == _column(one) for m in missing)
        seconds = _known(one, store, words)
        if seconds is None:
            key = repr(_of(one.settings.model_dump(mode="json"), _LIKE))
            if key not in probed:
                planned = opened(open_search, dataset, one, folder_of(store, one), device=device).plan()
                probed[key] = planned.seconds or 0.0
            seconds = probed[key]
        total += count * seconds
        lines.append(f"  {one.model}, {one.candidate.name}: {count} of about {seconds:,.0f} s with final training")
    return "\n".join([*lines, f"about {total:,.0f} s of {words} in all"] if missing else lines)


def _known(one: Wanted, store: Store, words: str) -> float | None:
    """Mean seconds of the searches that differ in the seed only, or else of those that are alike in the main."""
    ours = one.settings.model_dump(mode="json")
    mine = [r for r in store.searches.values() if r["device"] == words]
    for names in (tuple(n for n in ours if n != "seed"), _LIKE):
        alike = [r for r in mine if _of(r["settings"], names) == _of(ours, names)]
        if alike:
            return mean(r["seconds"] + r["final_seconds"] for r in alike)
    return None


def _column(one: Wanted) -> tuple[str, str]:
    return one.model, one.candidate.name


def _of(settings: dict[str, Any], names: Sequence[str]) -> list[Any]:
    return [settings.get(name) for name in names]
