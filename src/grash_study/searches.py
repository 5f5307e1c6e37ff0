"""Whole searches over a pool as results: each is one record in the store of the pool.

variants.py and resources.py use these; confirm.py runs searches as a user does. The winner is a number of the pool,
because both draw the same configurations from the same seed.
"""

from __future__ import annotations

import re
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
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
from grash.search.ledger import RoundState
from grash.search.run_folder import SEARCH_FILE, RunFolder
from grash.search.schedule import round_config
from grash.search.settings import SearchSettings, make_settings
from grash.search.trial import Round
from grash.training.config import TrainConfig
from grash_study.pool import StudyGraphs
from grash_study.run import GraphTrainer, Pace, device_name
from grash_study.store import BEFORE_THEY_EXISTED, VERSION, Store, short

WARM_EPOCHS = 0.02  # that trials train before they are timed, to load and compile
_SCHEMA, _FILE = "grash-study-search", "study.json"


@dataclass(frozen=True)
class SearchOfPool:
    """A search over the first n configurations of a pool."""

    preset: str
    n: int
    changes: tuple[tuple[str, Any], ...] = ()  # settings on top of the preset, as (name, value)
    warm: bool = False  # train the first round's trials for a moment before, so that seconds include no start-up

    @property
    def name(self) -> str:
        return " ".join([self.preset, f"n={self.n}", *(f"{k}={v}" for k, v in sorted(self.changes))])

    def settings(self, meta: Mapping[str, Any]) -> SearchSettings:
        """Return the settings for a pool with this `meta`: its space, model and draws, whatever the preset has."""
        return make_settings(
            {
                "models": (meta["model"],), "dim": meta["dim"], "max_epochs": meta["epochs"], "seed": meta["seed"],
                "space": meta["space"], "fixed": meta["fixed"], "proposals": "random", "final_train": False,
                "n_trials": self.n, **dict(self.changes),
            },
            preset=self.preset,
        )  # fmt: skip


def find_record(store: Store, one: SearchOfPool, name: str = "") -> dict[str, Any] | None:
    """Return the record of a search (or the one called `name`) if it had today's settings."""
    record = store.searches.get(name or one.name)
    if record is None:
        return None
    today = short(one.settings(store.meta).model_dump(mode="json"))
    known = record.get("settings", today)
    had = {**BEFORE_THEY_EXISTED, **known} if "settings" in record else {**today, **BEFORE_THEY_EXISTED}
    return record if had == today else None


def run_searches(
    graphs: StudyGraphs,
    searches: Sequence[SearchOfPool],
    store: Store,
    *,
    device: str = "auto",
    max_seconds: float | None = None,
    say: Callable[[str], None] = lambda line: None,
) -> bool:
    """Run the searches that the store lacks, as far as time allows; return whether all are there.

    A search that was cut off stays in STORE/searches, where the next call resumes it. Ctrl-C ends a search as usual,
    and is then raised.
    """
    start = time.monotonic()
    for one in searches:
        left = None if max_seconds is None else max_seconds - (time.monotonic() - start)
        if _is_there(store, one):
            continue
        if left is not None and left <= 0:
            return False
        store.hold()
        folder = search_folder(store, one.name)
        with reraise_interrupts():
            record = run_search(graphs, one, folder, device=device, max_seconds=left)
            if record is None:
                return False
            store.add_search(record)
            shutil.rmtree(folder, ignore_errors=True)
            seconds = ", ".join(format(r["seconds"], ".1f") for r in record["rounds"])
            say(
                f"{one.name}: winner {record['winner']}, {record['spent']:.3g} full runs in {record['seconds']:.1f} s, "
                f"rounds {seconds} s"
            )
    return all(_is_there(store, one) for one in searches)


def plan_searches(graphs: StudyGraphs, searches: Sequence[SearchOfPool], store: Store, *, device: str = "auto") -> str:
    """Return lines: which searches are missing, and about how long they take."""
    missing = [one for one in searches if not _is_there(store, one)]
    lines = [f"{graphs.pool.name}: {len(searches) - len(missing)} of {len(searches)} searches are there"]
    if not missing:
        return lines[0]
    whole, where, numbers = graphs.graph("whole", 1.0), choose_device(device), range(graphs.pool.n)
    pace = Pace.of(store, where).probed(graphs.pool, [(whole, numbers, 1.0)], where)
    full_run = pace.seconds(graphs.pool, whole, [0], 1.0) or 0.0
    times = [one.settings(store.meta).budget * full_run for one in missing]
    lines += [f"  {one.name}: about {seconds:,.0f} s" for one, seconds in zip(missing, times)]
    return "\n".join([*lines, f"about {sum(times):,.0f} s of {device_name(where)} in all"])


def search_folder(store: Store, name: str) -> Path:
    """Return the folder of a search while it runs or waits to be resumed."""
    return store.path.parent / "searches" / store.path.stem / re.sub(r"[^\w.=-]+", "_", name)


def run_search(
    graphs: StudyGraphs, one: SearchOfPool, folder: Path, *, device: str = "auto", max_seconds: float | None = None
) -> dict[str, Any] | None:
    """Run or resume a search in a folder; return its record, or None if it was stopped before its end."""
    start = time.monotonic()
    own = _search_graphs(graphs, one)
    peel_seconds, settings = time.monotonic() - start, own.settings
    set_threads(settings.threads)
    if one.warm:
        graph, plan, configs = first_trials(graphs, one)
        warm_up(GraphTrainer(graph, device=device), plan, configs)
    about = {"settings": settings.model_dump(mode="json"), "fingerprint": graphs.pool.dataset.fingerprint}
    _prepare_folder(folder, {**about, **({"warmed": True} if one.warm else {})})
    with RunFolder(folder) as run:
        (run.path / SEARCH_FILE).touch()
        driver = Driver(run, own, choose_engine("stacked", own, run.path, device=device), max_seconds=max_seconds)
        failed = ""
        try:
            state = driver.run()
        except SearchFailed as error:
            state, failed = driver.state, str(error)
        if state.stopped:
            return None
        seconds = round_seconds(driver.ledger.events)
    best = state.incumbent()
    return {
        "name": one.name, "settings": about["settings"], "winner": state.winner, "failed": failed,
        "spent": state.spent, "seconds": state.seconds,
        "rounds": [round_record(past, settings, seconds[past.plan.number]) for past in state.rounds],
        "device": device_name(choose_device(device)), "score": None if best is None else best.mrr,
        "peel_seconds": peel_seconds, "warmed": one.warm,
    }  # fmt: skip


def first_trials(graphs: StudyGraphs, one: SearchOfPool) -> tuple[Subgraph, Round, list[TrainConfig]]:
    """Return the graph, the plan and the trainings of a search's first round, which depends on no result."""
    own = _search_graphs(graphs, one)
    first = plan_search(own, device="cpu", probe=False).rounds[0]
    configs = [round_config(graphs.pool.config(i), first.plan, own.settings) for i in range(first.n_trials)]
    return own.subgraph(() if first.plan.whole else first.plan.fractions, first.plan.isolated), first.plan, configs


def warm_up(trainer: GraphTrainer, plan: Round, configs: Sequence[TrainConfig], size: int | None = None) -> None:
    """Train a round's trials for a moment, `size` at a time, so that what is compiled once is not timed."""
    tiny = min(plan.epochs, WARM_EPOCHS)
    train_in_groups(trainer, [c.changed(epochs=tiny, valid_every=tiny) for c in configs], size or len(configs), (tiny,))


def train_in_groups(trainer: GraphTrainer, configs: Sequence[TrainConfig], size: int, epochs: Sequence[float]) -> int:
    """Train `size` configurations at a time; return how many failed."""
    failed = 0
    for first in range(0, len(configs), size):
        failed += sum(r.error is not None for r in trainer.train(configs[first : first + size], epochs))
    trainer.synchronize()
    return failed


def round_record(past: RoundState, settings: SearchSettings, seconds: float) -> dict[str, Any]:
    """Return a round as a store keeps it."""
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


def round_seconds(events: list[dict[str, Any]]) -> dict[int, float]:
    """Return the seconds of each round, from the end of the previous one; they include making its graph."""
    found: dict[int, float] = {}
    before = 0.0
    for event in events:
        if event["event"] == "round_closed":
            found[event["round"]], before = event["elapsed"] - before, event["elapsed"]
    last = max((e.get("elapsed", 0.0) for e in events), default=0.0)
    numbers = [e["plan"]["number"] for e in events if e["event"] == "round_opened"]
    return {n: found.get(n, last - before) for n in numbers}


def _is_there(store: Store, one: SearchOfPool) -> bool:
    record = find_record(store, one)
    return record is not None and (not one.warm or bool(record.get("warmed")))


def _search_graphs(graphs: StudyGraphs, one: SearchOfPool) -> SearchGraphs:
    """Return the graphs of a search; it shares the pool's cores if it counts degrees in the same way."""
    own = SearchGraphs(graphs.pool.dataset, one.settings(graphs.pool.meta()))
    if own.settings.degree == graphs.pool.settings.degree:
        own.share_cores(graphs.search)
    return own


def _prepare_folder(folder: Path, about: dict[str, Any]) -> None:
    """Make the folder of a search; one that was started with other settings or on another graph is replaced."""
    content = {"schema": _SCHEMA, "version": VERSION, **about}
    try:
        same = read_json(folder / _FILE, schema=_SCHEMA, version=VERSION) == content
    except (InputError, FormatError):
        same = False
    if not same:
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        write_json(folder / _FILE, content)
