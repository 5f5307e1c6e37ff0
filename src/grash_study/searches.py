"""Whole searches as results of a study: run in a folder beside the store, kept in the store as one record.

Comes from variants.py, resources.py and rounds.py (confirm.py runs searches as a user does). A search's winner is a
number of the pool, since both draw the same configurations from the same seed; what it reaches in full is the pool's
cell on the whole graph.
"""

from __future__ import annotations

import re
import shutil
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from grash.engines.choose import choose_engine
from grash.engines.driver import Driver, reraise_interrupts
from grash.engines.memory import choose_device
from grash.engines.plan import plan_search
from grash.engines.trainer import set_threads
from grash.errors import FormatError, InputError, SearchFailed
from grash.files import read_json, write_json
from grash.models import model_class
from grash.reduction.subgraph import Subgraph
from grash.search.graphs import SearchGraphs
from grash.search.ledger import RoundState, SearchState
from grash.search.run_folder import SEARCH_FILE, RunFolder
from grash.search.schedule import round_config
from grash.search.settings import SearchSettings, make_settings
from grash.search.trial import Round
from grash.training.config import TrainConfig
from grash_study.graphs import StudyGraphs
from grash_study.pool import OLDER_SETTINGS, VERSION, Pool
from grash_study.run import GraphTrainer, Pace, device_words
from grash_study.store import Store, short

WARM_EPOCHS = 0.02  # so long trials train before they are timed: what is compiled and loaded once is no part of them
_ABOUT, _FILE = "grash-study-search", "study.json"


@dataclass(frozen=True)
class Asked:
    """A search over the first n configurations of a pool. changes: settings beside the preset's, as (name, value).
    warm: its first round's trials train for a moment before, so that its seconds have no start of the process in them.
    """

    preset: str
    n: int
    changes: tuple[tuple[str, Any], ...] = ()
    warm: bool = False

    @property
    def name(self) -> str:
        return " ".join([self.preset, f"n={self.n}", *(f"{k}={v}" for k, v in sorted(self.changes))])

    def settings(self, pool: Pool) -> SearchSettings:
        """The same space, model and draws as the pool's, whatever the preset says of them."""
        return self.settings_on(pool.meta())

    def settings_on(self, meta: Mapping[str, Any]) -> SearchSettings:
        """The same of a pool that a store belongs to."""
        return make_settings(
            {
                "models": (meta["model"],), "dim": meta["dim"], "max_epochs": meta["epochs"], "seed": meta["seed"],
                "space": meta["space"], "fixed": meta["fixed"], "proposals": "random", "final_train": False,
                "n_trials": self.n, **dict(self.changes),
            },
            preset=self.preset,
        )  # fmt: skip


def find_record(store: Store, asked: Asked, name: str = "") -> dict[str, Any] | None:
    """The record of a search as its settings are today, or of what `name` says was measured of it: a default may have
    changed since. Settings that a record has no word for were as before they could be set."""
    record = store.searches.get(name or asked.name)
    if record is None:
        return None
    today = short(asked.settings_on(store.meta).model_dump(mode="json"))
    then = {**OLDER_SETTINGS, **record["settings"]} if "settings" in record else {**today, **OLDER_SETTINGS}
    return record if then == today else None


def run_searches(
    graphs: StudyGraphs,
    asked: list[Asked],
    store: Store,
    *,
    device: str = "auto",
    max_seconds: float | None = None,
    say: Callable[[str], None] = lambda line: None,
) -> bool:
    """Runs those that the store lacks, as far as time allows; whether all are there then. One that is cut off, by
    max_seconds or a kill, lies in STORE/searches until the next call goes on with it. Ctrl-C ends a search as it does
    elsewhere, and is then raised."""
    began = time.monotonic()
    for one in asked:
        left = None if max_seconds is None else max_seconds - (time.monotonic() - began)
        if _is_there(store, one):
            continue
        if left is not None and left <= 0:
            return False
        store.hold()
        place = folder_of(store, one)
        with reraise_interrupts():
            record = run_search(graphs, one, place, device=device, max_seconds=left)
            if record is None:
                return False
            store.add_search(record)
            shutil.rmtree(place, ignore_errors=True)
            say(_line(one, record))
    return all(_is_there(store, one) for one in asked)


def print_searches(graphs: StudyGraphs, asked: list[Asked], store: Store, *, device: str = "auto") -> str:
    """Which searches are missing and about how long they take, by the pace of a full run; as lines."""
    missing = [one for one in asked if not _is_there(store, one)]
    lines = [f"{graphs.pool.name}: {len(asked) - len(missing)} of {len(asked)} searches are there"]
    if not missing:
        return lines[0]
    whole, where, numbers = graphs.graph("whole", 1.0), choose_device(device), range(graphs.pool.n)
    pace = Pace.of(store, where).probed(graphs.pool, [(whole, numbers, 1.0)], where)
    run = pace.seconds(graphs.pool, whole, [0], 1.0) or 0.0
    times = [one.settings(graphs.pool).budget * run for one in missing]
    lines += [f"  {one.name}: about {seconds:,.0f} s" for one, seconds in zip(missing, times)]
    return "\n".join([*lines, f"about {sum(times):,.0f} s of {device_words(where)} in all"])


def _line(asked: Asked, record: dict[str, Any]) -> str:
    return (
        f"{asked.name}: winner {record['winner']}, {record['spent']:.3g} full runs in {record['seconds']:.1f} s, "
        f"rounds {', '.join(format(r['seconds'], '.1f') for r in record['rounds'])} s"
    )


def _is_there(store: Store, asked: Asked) -> bool:
    record = find_record(store, asked)
    return record is not None and (not asked.warm or bool(record.get("warmed")))


def graphs_of(graphs: StudyGraphs, asked: Asked) -> SearchGraphs:
    """The graphs of a search, with the pool's cores where it counts as the pool does."""
    mine = SearchGraphs(graphs.pool.dataset, asked.settings(graphs.pool))
    if mine.settings.degree == graphs.pool.settings.degree:
        mine.share_cores(graphs.search)
    return mine


def folder_of(store: Store, asked: Asked) -> Path:
    """Where a search lies while it runs, or waits to go on."""
    return store.path.parent / "searches" / store.path.stem / re.sub(r"[^\w.=-]+", "_", asked.name)


def run_search(
    graphs: StudyGraphs, asked: Asked, place: Path, *, device: str = "auto", max_seconds: float | None = None
) -> dict[str, Any] | None:
    """The record of a search in a folder, gone on with if it has begun; None if it was stopped before its end."""
    peeling = time.monotonic()
    mine = graphs_of(graphs, asked)
    peeling = time.monotonic() - peeling
    settings = mine.settings
    set_threads(settings.threads)
    if asked.warm:
        _warm_up(graphs, asked, device)
    about = {"settings": settings.model_dump(mode="json"), "fingerprint": graphs.pool.dataset.fingerprint}
    _begin(place, {**about, **({"warmed": True} if asked.warm else {})})
    with RunFolder(place) as folder:
        (folder.path / SEARCH_FILE).touch()
        engine = choose_engine("stacked", mine, folder.path, device=device)
        driver = Driver(folder, mine, engine, max_seconds=max_seconds)
        failed = ""
        try:
            state = driver.run()
        except SearchFailed as error:
            state, failed = driver.state, str(error)
        if state.stopped:
            return None
        spans = round_spans(driver.ledger.events)
    rounds = [round_record(past, settings, spans[past.plan.number]) for past in state.rounds]
    return {
        "name": asked.name, "settings": settings.model_dump(mode="json"), "winner": state.winner, "failed": failed,
        "spent": state.spent, "seconds": state.seconds, "rounds": rounds,
        "device": device_words(choose_device(device)), "score": _score(state), "peel_seconds": peeling,
        "warmed": asked.warm,
    }  # fmt: skip


def first_trials(graphs: StudyGraphs, asked: Asked) -> tuple[Subgraph, Round, list[TrainConfig]]:
    """The first round of a search, which depends on no result: its graph, its plan, and what its trials train."""
    mine = graphs_of(graphs, asked)
    first = plan_search(mine, device="cpu", probe=False).rounds[0]
    plan = first.plan
    configs = [round_config(graphs.pool.config(i), plan, mine.settings) for i in range(first.n_trials)]
    return mine.subgraph(() if plan.whole else plan.fractions, plan.isolated), plan, configs


def _warm_up(graphs: StudyGraphs, asked: Asked, device: str) -> None:
    """Trains the first round's trials together for a moment, on a graph of its own: the search makes it again."""
    graph, plan, configs = first_trials(graphs, asked)
    trainer, tiny = GraphTrainer(graph, device=device), min(plan.epochs, WARM_EPOCHS)
    trainer.train([c.changed(epochs=tiny, valid_every=tiny) for c in configs], (tiny,))
    trainer.settle()


def _begin(place: Path, about: dict[str, Any]) -> None:
    """A folder for a search, or the one that it has begun in; what was begun with other settings or on another graph,
    by an older grash, is removed."""
    content = {"schema": _ABOUT, "version": VERSION, **about}
    try:
        same = read_json(place / _FILE, schema=_ABOUT, version=VERSION) == content
    except (InputError, FormatError):
        same = False
    if not same:
        shutil.rmtree(place, ignore_errors=True)
        place.mkdir(parents=True)
        write_json(place / _FILE, content)


def round_record(past: RoundState, settings: SearchSettings, seconds: float) -> dict[str, Any]:
    """A round as a store keeps it."""
    plan, results = past.plan, list(past.results.values())
    width = model_class(settings.models[0]).relation_width(settings.dim)
    return {
        "number": plan.number, "trials": len(results), "fidelity": plan.fidelity, "graph": plan.graph_fraction,
        "epochs": plan.epochs, "k": plan.k, "whole": plan.whole, "n_entities": plan.n_entities,
        "n_relations": plan.n_relations, "n_train": plan.n_train, "n_valid": plan.n_valid, "cost": past.cost,
        "seconds": seconds, "peak_bytes": max((r.peak_bytes for r in results), default=0),
        "model_bytes": 4 * (plan.n_entities * settings.dim + plan.n_relations * width),
        "failed": sum(r.status != "ok" for r in results), "survivors": past.survivors,
        "scores": {str(r.number): r.mrr for r in results},
    }  # fmt: skip


def round_spans(events: list[dict[str, Any]]) -> dict[int, float]:
    """Seconds from the opening of each round to its end, the making of its graph included."""
    found: dict[int, float] = {}
    before = 0.0
    for event in events:
        if event["event"] == "round_closed":
            found[event["round"]], before = event["elapsed"] - before, event["elapsed"]
    last = max((e.get("elapsed", 0.0) for e in events), default=0.0)
    numbers = [e["plan"]["number"] for e in events if e["event"] == "round_opened"]
    return {n: found.get(n, last - before) for n in numbers}


def _score(state: SearchState) -> float | None:
    best = state.incumbent()
    return None if best is None else best.mrr
