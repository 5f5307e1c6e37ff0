"""Whole searches over a pool as results, and their pages (paper, Tab. 2 to 4).

Each search is one record in the store of the pool; its winner is a number of the pool, because both draw the same
configurations from the same seed. Tab. 2 and 4: what searches pick by reducing epochs, the graph or both, and with how
many rounds; every pick is trained in full. Tab. 3: seconds, peak memory and model size per round and variant; the first
round is also timed with one, three and all of its trials at a time. `confirm.py` runs searches as a user does.
"""

from __future__ import annotations

import hashlib
import json
import re
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

from grash.engines.choose import choose_engine
from grash.engines.driver import Driver, reraise_interrupts
from grash.engines.memory import choose_device
from grash.engines.plan import plan_search
from grash.engines.trainer import set_threads
from grash.errors import SearchFailed
from grash.models import model_class
from grash.reduction.subgraph import Subgraph
from grash.search.graphs import SearchGraphs
from grash.search.ledger import RoundState
from grash.search.named_spaces import space_of
from grash.search.run_folder import SEARCH_FILE, RunFolder
from grash.search.schedule import round_config, round_sizes
from grash.search.settings import SearchSettings, make_settings
from grash.search.space import as_dict
from grash.search.trial import Round
from grash.training.config import TrainConfig
from grash_study.pages import Page, Rows, Value
from grash_study.pool import DEFAULT, StudyGraphs
from grash_study.run import GraphTrainer, device_name, measured_pace, peak_bytes, probed_pace, reset_peak
from grash_study.store import TESTED, Cell, Store, cells_on, short
from grash_study.transfer import full_test, full_valid

WARM_EPOCHS = 0.02  # that trials train before they are timed, to load and compile
VARIANTS = ("epoch", "graph", "combined")
_NOT_ASKED = "–"
_HEADINGS = (
    "model", "variant", "d", "pick", "test MRR", "Hits@1", "Hits@3", "Hits@10", "best of n", "of best",
    "picked by full validation", "median of n", "default", "search, s",
)  # fmt: skip
_ROUND_HEADINGS = (
    "variant", "η", "B", "rounds", "first fidelity", "pick", "test MRR", "Hits@10", "spent", "search, s",
)  # fmt: skip
_COSTS = (
    "variant", "round", "trials", "entities", "triples", "epochs", "seconds", "peak memory, MB", "model, MB",
)  # fmt: skip
AT_A_TIME = (1, 3, 0)  # 0: all


@dataclass(frozen=True)
class SearchOfPool:
    """A search over the first n configurations of a pool."""

    preset: str
    n: int
    changes: tuple[tuple[str, Any], ...] = ()  # settings on top of the preset, as (name, value)
    warm: bool = False  # train the first round's trials for a moment before, so that seconds include no start-up
    at_a_time: int | None = None  # only its first round, with so many trials at a time; 0: all

    @property
    def name(self) -> str:
        name = " ".join([self.preset, f"n={self.n}", *(f"{k}={v}" for k, v in sorted(self.changes))])
        return name if self.at_a_time is None else f"first round, {self.at_a_time or 'all'} at a time: {name}"

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


def find_record(store: Store, one: SearchOfPool) -> dict[str, Any] | None:
    """Return the record of a search if it had today's settings, and was warmed if asked."""
    record, today = store.searches.get(one.name), short(one.settings(store.meta).model_dump(mode="json"))
    found = record is not None and record["settings"] == today and (not one.warm or record.get("warmed"))
    return record if found else None


def run_searches(
    graphs: StudyGraphs,
    searches: Sequence[SearchOfPool],
    store: Store,
    *,
    device: str = "auto",
    max_seconds: float | None = None,
    say: Callable[[str], None] = lambda line: None,
) -> bool:
    """Run the searches that the store lacks, as far as time allows; return whether all are there."""

    def run(one: SearchOfPool, folder: Path, left: float | None) -> tuple[dict[str, Any] | None, str]:
        record = run_search(graphs, one, folder, device=device, max_seconds=left)
        if record is None:
            return None, ""
        seconds = ", ".join(format(r["seconds"], ".1f") for r in record["rounds"])
        spent = f"{record['spent']:.3g} full runs in {record['seconds']:.1f} s"
        return record, f"{one.name}: winner {record['winner']}, {spent}, rounds {seconds} s"

    return run_missing(store, searches, partial(find_record, store), run, max_seconds=max_seconds, say=say)


def run_missing(
    store: Store,
    wanted: Sequence[Any],
    is_there: Callable[[Any], object],
    run: Callable[[Any, Path, float | None], tuple[dict[str, Any] | None, str]],
    *,
    max_seconds: float | None,
    say: Callable[[str], None],
) -> bool:
    """Run and record each that is not there, as far as time allows; return whether all are there.

    run(one, folder, seconds left): the record and a line to print; no record and no line: it was stopped before its
    end. A search without a record stays in STORE/searches, where the next call resumes it. Ctrl-C ends a search as
    usual, and is then raised.
    """
    start = time.monotonic()
    for one in (one for one in wanted if not is_there(one)):
        left = None if max_seconds is None else max_seconds - (time.monotonic() - start)
        if left is not None and left <= 0:
            break
        store.hold()
        folder = search_folder(store, one.name)
        with reraise_interrupts():
            record, line = run(one, folder, left)
            if record is not None:
                store.add_search(record)
                shutil.rmtree(folder, ignore_errors=True)
            elif not line:
                break
            say(line)
    return all(is_there(one) for one in wanted)


def plan_searches(graphs: StudyGraphs, searches: Sequence[SearchOfPool], store: Store, *, device: str = "auto") -> str:
    """Return lines: which searches are missing, and about how long they take."""
    missing = [one for one in searches if find_record(store, one) is None]
    lines = [f"{graphs.pool.name}: {len(searches) - len(missing)} of {len(searches)} searches are there"]
    if not missing:
        return lines[0]
    whole, where, numbers = graphs.graph("whole", 1.0), choose_device(device), range(graphs.pool.n)
    n_train = len(whole.dataset.train)
    pace = measured_pace(store, where, n_train) or probed_pace(whole, graphs.pool, numbers, where)
    full_run = pace * graphs.pool.settings.max_epochs * n_train
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
    content = json.dumps({**about, "warmed": one.warm}, sort_keys=True)  # another search has another folder
    with RunFolder(folder / hashlib.sha256(content.encode()).hexdigest()[:12]) as run:
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


def _search_graphs(graphs: StudyGraphs, one: SearchOfPool) -> SearchGraphs:
    """Return the graphs of a search; it shares the pool's cores if it counts degrees in the same way."""
    own = SearchGraphs(graphs.pool.dataset, one.settings(graphs.pool.meta()))
    if own.settings.degree == graphs.pool.settings.degree:
        own.share_cores(graphs.search)
    return own


@dataclass(frozen=True)
class Setup:
    """One pool of the study."""

    label: str
    changes: dict[str, Any]  # what differs from the settings that were given
    variants: tuple[str, ...]  # to search
    full: bool  # whether all its n configurations are trained in full


def setups(models: Sequence[str], *, dim: int, large: int, full: bool, n_entities: int) -> list[Setup]:
    """Return every model with all variants; combined also with a larger dimension (0: none) and RotatE's own loss."""
    found = []
    for model in models:
        found.append(Setup(model, {"model": model}, VARIANTS, full))
        if large:
            found.append(Setup(model, {"model": model, "dim": large}, ("combined",), False))
        if model == "rotate":
            own = {"space": self_adversarial_space(model, n_entities), "label": "paper-self-adversarial"}
            changes = {"model": model, **own, "dim": large or dim}
            found.append(Setup("rotate, self-adversarial", changes, ("combined",), False))
    return found


def self_adversarial_space(model: str, n_entities: int) -> dict[str, Any]:
    """Return the paper's space with the loss of RotatE's authors; margin and temperature are those of `default`."""
    paper, ours = as_dict(space_of("paper", model, n_entities)), as_dict(space_of("default", model, n_entities))
    searched = {n: {k: v for k, v in ours[n].items() if k != "when"} for n in ("margin", "temperature")}
    return {**paper, "loss": "self_adversarial", **searched}


def variant_searches(variants: Sequence[str], *, n: int, preset: str, warm: bool = False) -> list[SearchOfPool]:
    return [SearchOfPool(preset, n, (("variant", v),), warm=warm) for v in variants]


def round_searches(variants: Sequence[str], *, n: int, preset: str, budget: float = 3.0) -> list[SearchOfPool]:
    """Return, by variant, η = 2, 4, 8 and n at the budget, then η = n at a third of it."""
    settings = [(eta, budget) for eta in dict.fromkeys((2, 4, 8, n))] + [(n, budget / 3)]
    return [
        SearchOfPool(preset, n, (("variant", variant), ("eta", eta), ("budget", b)))
        for variant in variants
        for eta, b in settings
    ]


def pick_cells(store: Store, searches: Sequence[SearchOfPool], *more: int) -> list[Cell]:
    """Return the full trainings of what the searches picked, and of other configurations."""
    picks = {record["winner"] for one in searches if (record := find_record(store, one)) is not None}
    return cells_on("whole", 1.0, [*more, *sorted(p for p in picks if p is not None and p not in more)])


def variants_page(setups: Sequence[tuple[Setup, Store]], *, n: int, preset: str, command: str) -> Page:
    """Return a table over all models and variants, and a plot of the picks."""
    meta = setups[0][1].meta
    devices = sorted({e.device for _, store in setups for e in store.entries.values()})
    rows = [
        _variant_row(setup, store, one)
        for setup, store in setups
        for one in variant_searches(setup.variants, n=n, preset=preset)
    ]
    models = "-".join(dict.fromkeys(str(store.meta["model"]) for _, store in setups))
    name = f"variants-{meta['dataset']}-{models}-d{meta['dim']}-{meta['label']}-e{meta['epochs']:g}-s{meta['seed']}"
    raw = Rows(_HEADINGS, tuple(tuple(None if v == _NOT_ASKED else v for v in row) for row in rows))
    title = f"What is reduced, and what is then found: {meta['dataset']}"
    page = Page(f"{name}-{preset}", title, command, ", ".join(devices), raw=raw)
    page.add(
        f"Searches with n = {n}, η = 4, B = 3 (preset `{preset}`, E = {meta['epochs']:g}). Each pick's full training "
        f"on the test triples, beside the best (by test MRR) and the median of the same n trained in full, and beside "
        f"our default configuration, which is not one of the n. `of best` is the pick's share of the best test MRR: "
        f"what the search lost by choosing. `picked by full validation` is the test MRR of the one of the n whose full "
        f"training validates best: what choosing without any reduction gives.",
        Rows(_HEADINGS, tuple(_with_percent(row) for row in rows)),
    )
    _add_plot(page, [(f"{r[0]} {r[1]}, d = {r[2]}", r[4]) for r in rows])
    return page


def rounds_page(store: Store, searches: Sequence[SearchOfPool], *, command: str) -> Page:
    meta, rows = store.meta, Rows(_ROUND_HEADINGS, tuple(_round_row(store, one) for one in searches))
    name, title = f"rounds-{store.path.stem}-{searches[0].preset}", f"How many rounds pay: {meta['dataset']}"
    page = Page(name, title, command, store.devices, raw=rows)
    page.add(
        f"{meta['model']}, d = {meta['dim']}, `{meta['label']}` space, E = {meta['epochs']:g}, n = {searches[0].n}, "
        f"preset `{searches[0].preset}`. With fewer rounds, each trial of a round costs more; with η = n there is one "
        f"round. Every pick was then trained in full.",
        rows,
    )
    _add_plot(page, [(f"{r[0]}, η = {r[1]}, B = {r[2]:g}", r[6]) for r in rows.rows])
    return page


def _variant_row(setup: Setup, store: Store, one: SearchOfPool) -> tuple[Value, ...]:
    record = find_record(store, one)
    pick = None if record is None else record["winner"]
    tested, default = _tested(store, pick), _tested(store, DEFAULT)
    truth, valid = full_test(store, one.n) if setup.full else {}, full_valid(store, one.n)
    best: Value = None if setup.full else _NOT_ASKED
    by_validation = middle = share = best
    if len(truth) == one.n:
        best, middle = max(truth.values()), median(truth.values())
        by_validation = truth[max(truth, key=lambda n: valid[n])]
        share = tested["mrr"] / best if tested and best else None
    return (
        setup.label, dict(one.changes)["variant"], int(store.meta["dim"]), pick,
        *(tested[m] if tested else None for m in TESTED), best, share, by_validation, middle,
        default["mrr"] if default else None, None if record is None else float(record["seconds"]),
    )  # fmt: skip


def _round_row(store: Store, one: SearchOfPool) -> tuple[Value, ...]:
    given, record = dict(one.changes), find_record(store, one)
    head = (str(given["variant"]), int(given["eta"]), float(given["budget"]), len(round_sizes(one.n, given["eta"])))
    if record is None:
        return (*head, *(None,) * 6)
    tested = _tested(store, record["winner"])
    mrr, hits = (None, None) if tested is None else (tested["mrr"], tested["hits@10"])
    fidelity = float(record["rounds"][0]["fidelity"])
    return (*head, fidelity, record["winner"], mrr, hits, float(record["spent"]), float(record["seconds"]))


def _tested(store: Store, number: int | None) -> dict[str, float] | None:
    """Return the test metrics of a full training; zeros if it diverged, None if none worked."""
    entry = None if number is None else store.entry(number, "whole", 1.0)
    if entry is None or not entry.worked:
        return None
    return entry.test or dict.fromkeys(TESTED, 0.0)


def _with_percent(row: tuple[Value, ...]) -> tuple[Value, ...]:
    i = _HEADINGS.index("of best")
    return (*row[:i], f"{row[i]:.1%}" if isinstance(row[i], float) else row[i], *row[i + 1 :])


def _add_plot(page: Page, picks: list[tuple[str, Value]]) -> None:
    bars = [(name, mrr, None, None) for name, mrr in picks if isinstance(mrr, float)]
    page.add_bars(bars, title="The pick, trained in full", x_label="test MRR", caption="Test MRR of every pick")


def time_first_rounds(
    graphs: StudyGraphs,
    searches: Sequence[SearchOfPool],
    store: Store,
    *,
    device: str = "auto",
    max_seconds: float | None = None,
    say: Callable[[str], None] = lambda line: None,
) -> bool:
    """Time the first round of each search with 1, 3 and all trials at a time; return whether all are there.

    Making the graph is not timed.
    """

    def run(one: SearchOfPool, folder: Path, left: float | None) -> tuple[dict[str, Any], str]:
        graph, plan, configs = first_trials(graphs, one)
        trainer, size = GraphTrainer(graph, device=device), one.at_a_time or len(configs)
        warm_up(trainer, plan, configs, size)
        reset_peak(trainer.device)
        begun = time.monotonic()
        failed = train_in_groups(trainer, configs, size, (plan.epochs / 2, plan.epochs))
        seconds = time.monotonic() - begun
        return {
            "name": one.name, "at_a_time": size, "trials": len(configs), "seconds": seconds, "failed": failed,
            "peak_bytes": peak_bytes(trainer.device), "device": device_name(trainer.device), "warmed": True,
            "settings": one.settings(store.meta).model_dump(mode="json"),
        }, f"{one.name}: {seconds:.1f} s"  # fmt: skip

    wanted = [replace(one, at_a_time=count) for one in searches for count in reversed(AT_A_TIME)]
    return run_missing(store, wanted, partial(find_record, store), run, max_seconds=max_seconds, say=say)


def resources_page(store: Store, searches: Sequence[SearchOfPool], *, command: str, together: bool = True) -> Page:
    """Return the page. together: with the first round's times for more trials at a time."""
    meta, rows = store.meta, tuple(row for one in searches for row in _round_rows(store, one))
    page = Page(
        f"resources-{store.path.stem}-{searches[0].preset}", f"What a search takes: {meta['dataset']}", command,
        ", ".join(sorted({r["device"] for r in store.searches.values()})), raw=Rows(_COSTS, rows),
    )  # fmt: skip
    page.add(
        f"{meta['model']}, d = {meta['dim']}, `{meta['label']}` space, E = {meta['epochs']:g}, n = {searches[0].n}, "
        f"preset `{searches[0].preset}`. Seconds of a round include making its graph; "
        f"peak memory is that of all trials that were trained together; the model is one trial's tables."
        f"{_notes(store, searches)}",
        Rows(_COSTS, rows),
    )
    bars = [(f"{r[0]}, round {r[1]}", float(r[6]), None, None) for r in rows if r[6] is not None and r[1] != "all"]
    about = "Seconds by variant and round"
    page.add_bars(bars, title="Seconds of a round", x_label="seconds", caption=about, form=".3g")
    if together:
        timed = _together(store, searches)
        shown_rows = tuple((*r[:3], None if r[3] is None else f"{r[3]:.2f} ×", *r[4:]) for r in timed.rows)
        page.more["-at-a-time.csv"] = timed
        page.add(
            "## The first round with more trials at a time",
            "All trials of the first round, trained again in groups of this size with the same kernels.",
            Rows(timed.headings, shown_rows),
        )
    return page


def _notes(store: Store, searches: Sequence[SearchOfPool]) -> str:
    """Return notes on what the seconds include."""
    notes, records = "", [record for one in searches if (record := find_record(store, one)) is not None]
    if any(dict(one.changes)["variant"] == "epoch" for one in searches):
        notes += " In `epoch` every trial's state is kept for the next round, which takes some of the seconds."
    seconds = max((record.get("peel_seconds", 0.0) for record in records), default=0.0)
    if seconds:
        notes += f" Core numbers were computed before, once for all searches, in {seconds:.3g} s."
    return notes


def _round_rows(store: Store, one: SearchOfPool) -> list[tuple[Value, ...]]:
    record, variant = find_record(store, one), str(dict(one.changes)["variant"])
    if record is None:
        return [(variant, *(None,) * 8)]
    rows: list[tuple[Value, ...]] = [
        (variant, str(r["number"]), r["trials"], r["n_entities"], r["n_train"], float(r["epochs"]), float(r["seconds"]),
         r["peak_bytes"] / 1e6, r["model_bytes"] / 1e6)
        for r in record["rounds"]
    ]  # fmt: skip
    total = sum(r["seconds"] for r in record["rounds"])
    return [*rows, (variant, "all", sum(r["trials"] for r in record["rounds"]), "", "", "", total, "", "")]


def _together(store: Store, searches: Sequence[SearchOfPool]) -> Rows:
    rows: list[tuple[Value, ...]] = []
    for one in searches:
        alone = find_record(store, replace(one, at_a_time=1))
        for count in AT_A_TIME:
            record = find_record(store, replace(one, at_a_time=count))
            numbers: tuple[Value, ...] = (None, None, None)
            if record is not None:
                faster = None if alone is None else alone["seconds"] / record["seconds"]
                numbers = (float(record["seconds"]), faster, record["peak_bytes"] / 1e6)
            rows.append((str(dict(one.changes)["variant"]), str(count or "all"), *numbers))
    return Rows(("variant", "at a time", "seconds", "against one", "peak memory, MB"), tuple(rows))
