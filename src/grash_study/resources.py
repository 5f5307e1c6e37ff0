"""What a search takes (paper, Tab. 3): seconds, peak memory and model size per round and variant, and the first round
with one, three and all of its trials at a time.

Comes from the searches and timed rounds of one store, goes to a page.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import torch

from grash.training.config import TrainConfig
from grash_study.graphs import StudyGraphs
from grash_study.pages import Page, Rows, Value
from grash_study.plots import bar_plot
from grash_study.run import GraphTrainer, device_words
from grash_study.searches import WARM_EPOCHS, Asked, find_record, first_trials
from grash_study.store import Store

AT_A_TIME = (1, 3, 0)  # 0: all
_WHAT = "first round"


def asked_searches(variants: Sequence[str], *, n: int, preset: str) -> list[Asked]:
    return [Asked(preset, n, (("variant", v),), warm=True) for v in variants]


def time_first_rounds(
    graphs: StudyGraphs,
    asked: Sequence[Asked],
    store: Store,
    *,
    device: str = "auto",
    max_seconds: float | None = None,
    say: Callable[[str], None] = lambda line: None,
) -> bool:
    """Times the first round of each search with 1, 3 and all of its trials at a time; whether all is there then."""
    began = time.monotonic()
    for one in asked:
        for count in reversed(AT_A_TIME):
            if _timed(store, one, count) is not None:
                continue
            if max_seconds is not None and time.monotonic() - began > max_seconds:
                return False
            record = time_first_round(graphs, one, count, device=device)
            store.add_search(record)
            say(f"{record['name']}: {record['seconds']:.1f} s")
    return all(_timed(store, one, count) is not None for one in asked for count in AT_A_TIME)


def time_first_round(graphs: StudyGraphs, asked: Asked, count: int, *, device: str = "auto") -> dict[str, Any]:
    """Seconds of all trials of the first round, `count` at a time (0: all), without making the graph and the filter."""
    graph, plan, configs = first_trials(graphs, asked)
    trainer = GraphTrainer(graph, device=device)
    size, ends = count or len(configs), (plan.epochs / 2, plan.epochs)
    tiny = min(plan.epochs, WARM_EPOCHS)
    _in_groups(trainer, [c.changed(epochs=tiny, valid_every=tiny) for c in configs], size, (tiny,))
    if trainer.device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(trainer.device)
    began = time.monotonic()
    failed = _in_groups(trainer, configs, size, ends)
    seconds = time.monotonic() - began
    peak = torch.cuda.max_memory_allocated(trainer.device) if trainer.device.type == "cuda" else 0
    return {
        "name": _name(asked, count), "at_a_time": size, "trials": len(configs), "seconds": seconds, "failed": failed,
        "peak_bytes": peak, "device": device_words(trainer.device), "warmed": True,
        "settings": asked.settings(graphs.pool).model_dump(mode="json"),
    }  # fmt: skip


def _in_groups(trainer: GraphTrainer, configs: Sequence[TrainConfig], size: int, ends: Sequence[float]) -> int:
    """Trains so many at a time; how many failed."""
    failed = 0
    for start in range(0, len(configs), size):
        failed += sum(r.error is not None for r in trainer.train(configs[start : start + size], ends))
    trainer.settle()
    return failed


def resources_page(store: Store, asked: Sequence[Asked], *, command: str, together: bool = True) -> Page:
    """together: whether first rounds with more trials at a time are a part of the study."""
    meta, rows = store.meta, tuple(row for a in asked for row in _round_rows(store, a))
    page = Page(
        f"resources-{store.path.stem}-{asked[0].preset}", f"What a search takes: {meta['dataset']}", command,
        ", ".join(sorted({r["device"] for r in store.searches.values()})), raw=Rows(_HEADINGS, rows),
    )  # fmt: skip
    page.add(
        f"{meta['model']}, d = {meta['dim']}, `{meta['label']}` space, E = {meta['epochs']:g}, n = {asked[0].n}, "
        f"preset `{asked[0].preset}`. Seconds of a round are from its opening to its end, with the making of its "
        f"graph; peak memory is what all trials that were trained together took on the device; the model is one "
        f"trial's tables.{_kept(asked)}{_started(store, asked)}{_peeled(store, asked)}",
        Rows(_HEADINGS, rows),
    )
    shown = [(f"{r[0]}, round {r[1]}", float(r[6]), None, None) for r in rows if r[6] is not None and r[1] != "all"]
    if shown:
        drawn = bar_plot(shown, title="Seconds of a round", x_label="seconds", form=".3g")
        page.add((page.name, drawn, "Seconds by variant and round"))
    if together:
        timed = _together(store, asked)
        words = [tuple(f"{v:.2f} ×" if i == 3 and v is not None else v for i, v in enumerate(r)) for r in timed.rows]
        page.more["-at-a-time.csv"] = timed
        page.add(
            "## The first round with more trials at a time",
            "All trials of the first round, trained again in groups of this size with the same kernels.",
            Rows(timed.headings, tuple(words)),
        )
    return page


_HEADINGS = ("variant", "round", "trials", "entities", "triples", "epochs", "seconds", "peak memory, MB", "model, MB")


def _kept(asked: Sequence[Asked]) -> str:
    if not any(dict(a.changes)["variant"] == "epoch" for a in asked):
        return ""
    return " In `epoch` every trial's state is kept for the next round, which takes part of the seconds."


def _started(store: Store, asked: Sequence[Asked]) -> str:
    """Whether the start of the process is in the seconds of a search that was the first of its process."""
    found = (find_record(store, a) for a in asked)
    if all(record is None or record.get("warmed") for record in found):
        return ""
    return " Nothing was warmed up before: the first search of a process has its start in the first round's seconds."


def _peeled(store: Store, asked: Sequence[Asked]) -> str:
    """What comes before the first round of all: only the first search on a graph peels it."""
    seconds = max((find_record(store, a) or {}).get("peel_seconds", 0.0) for a in asked)
    return (
        f" Before that the graph was peeled into its cores, once for all searches, in {seconds:.3g} s."
        if seconds
        else ""
    )


def _round_rows(store: Store, asked: Asked) -> list[tuple[Value, ...]]:
    record, variant = find_record(store, asked), str(dict(asked.changes)["variant"])
    if record is None:
        return [(variant, *(None,) * 8)]
    rows: list[tuple[Value, ...]] = [
        (variant, str(r["number"]), r["trials"], r["n_entities"], r["n_train"], float(r["epochs"]), float(r["seconds"]),
         r["peak_bytes"] / 1e6, r["model_bytes"] / 1e6)
        for r in record["rounds"]
    ]  # fmt: skip
    total = sum(r["seconds"] for r in record["rounds"])
    return [*rows, (variant, "all", sum(r["trials"] for r in record["rounds"]), "", "", "", total, "", "")]


def _together(store: Store, asked: Sequence[Asked]) -> Rows:
    rows: list[tuple[Value, ...]] = []
    for one in asked:
        found = {count: _timed(store, one, count) for count in AT_A_TIME}
        alone = found[1]
        for count, record in found.items():
            words = "all" if count == 0 else str(count)
            faster = None if record is None or alone is None else alone["seconds"] / record["seconds"]
            rows.append((
                str(dict(one.changes)["variant"]), words, None if record is None else float(record["seconds"]), faster,
                None if record is None else record["peak_bytes"] / 1e6,
            ))  # fmt: skip
    return Rows(("variant", "at a time", "seconds", "against one", "peak memory, MB"), tuple(rows))


def _timed(store: Store, asked: Asked, count: int) -> dict[str, Any] | None:
    return find_record(store, asked, _name(asked, count))


def _name(asked: Asked, count: int) -> str:
    return f"{_WHAT}, {count or 'all'} at a time: {asked.name}"
