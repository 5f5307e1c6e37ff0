"""What a search takes (paper, Tab. 3): seconds, peak memory and model size per round and variant.

The first round is also timed with one, three and all of its trials at a time.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

from grash_study.pages import Page, Rows, Value, bar_plot
from grash_study.pool import StudyGraphs
from grash_study.run import GraphTrainer, device_name, peak_bytes, reset_peak
from grash_study.searches import SearchOfPool, find_record, first_trials, train_in_groups, warm_up
from grash_study.store import Store

AT_A_TIME = (1, 3, 0)  # 0: all
_HEADINGS = ("variant", "round", "trials", "entities", "triples", "epochs", "seconds", "peak memory, MB", "model, MB")


def time_first_rounds(
    graphs: StudyGraphs,
    searches: Sequence[SearchOfPool],
    store: Store,
    *,
    device: str = "auto",
    max_seconds: float | None = None,
    say: Callable[[str], None] = lambda line: None,
) -> bool:
    """Time the first round of each search with 1, 3 and all trials at a time; return whether all are there."""
    start = time.monotonic()
    for one in searches:
        for count in reversed(AT_A_TIME):
            if _timed(store, one, count) is not None:
                continue
            if max_seconds is not None and time.monotonic() - start > max_seconds:
                return False
            record = _time_first_round(graphs, one, count, device=device)
            store.add_search(record)
            say(f"{record['name']}: {record['seconds']:.1f} s")
    return all(_timed(store, one, count) is not None for one in searches for count in AT_A_TIME)


def resources_page(store: Store, searches: Sequence[SearchOfPool], *, command: str, together: bool = True) -> Page:
    """Return the page. together: with the first round's times for more trials at a time."""
    meta, rows = store.meta, tuple(row for one in searches for row in _round_rows(store, one))
    page = Page(
        f"resources-{store.path.stem}-{searches[0].preset}", f"What a search takes: {meta['dataset']}", command,
        ", ".join(sorted({r["device"] for r in store.searches.values()})), raw=Rows(_HEADINGS, rows),
    )  # fmt: skip
    page.add(
        f"{meta['model']}, d = {meta['dim']}, `{meta['label']}` space, E = {meta['epochs']:g}, n = {searches[0].n}, "
        f"preset `{searches[0].preset}`. Seconds of a round include making its graph; "
        f"peak memory is that of all trials that were trained together; the model is one trial's tables."
        f"{_notes(store, searches)}",
        Rows(_HEADINGS, rows),
    )
    shown = [(f"{r[0]}, round {r[1]}", float(r[6]), None, None) for r in rows if r[6] is not None and r[1] != "all"]
    if shown:
        drawn = bar_plot(shown, title="Seconds of a round", x_label="seconds", form=".3g")
        page.add((page.name, drawn, "Seconds by variant and round"))
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


def _time_first_round(graphs: StudyGraphs, one: SearchOfPool, count: int, *, device: str) -> dict[str, Any]:
    """Return the time of all trials of the first round, `count` at a time; it excludes making the graph."""
    graph, plan, configs = first_trials(graphs, one)
    trainer = GraphTrainer(graph, device=device)
    size = count or len(configs)
    warm_up(trainer, plan, configs, size)
    reset_peak(trainer.device)
    start = time.monotonic()
    failed = train_in_groups(trainer, configs, size, (plan.epochs / 2, plan.epochs))
    return {
        "name": _name(one, count), "at_a_time": size, "trials": len(configs), "seconds": time.monotonic() - start,
        "failed": failed, "peak_bytes": peak_bytes(trainer.device), "device": device_name(trainer.device),
        "warmed": True, "settings": one.settings(graphs.pool.meta()).model_dump(mode="json"),
    }  # fmt: skip


def _notes(store: Store, searches: Sequence[SearchOfPool]) -> str:
    """Return notes on what the seconds include."""
    notes, records = "", [record for one in searches if (record := find_record(store, one)) is not None]
    if any(dict(one.changes)["variant"] == "epoch" for one in searches):
        notes += " In `epoch` every trial's state is kept for the next round, which takes some of the seconds."
    if not all(record.get("warmed") for record in records):
        notes += " Nothing was warmed up: the first search of a process includes its start in the first round."
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
        alone = _timed(store, one, 1)
        for count in AT_A_TIME:
            record = _timed(store, one, count)
            numbers: tuple[Value, ...] = (None, None, None)
            if record is not None:
                faster = None if alone is None else alone["seconds"] / record["seconds"]
                numbers = (float(record["seconds"]), faster, record["peak_bytes"] / 1e6)
            rows.append((str(dict(one.changes)["variant"]), str(count or "all"), *numbers))
    return Rows(("variant", "at a time", "seconds", "against one", "peak memory, MB"), tuple(rows))


def _timed(store: Store, one: SearchOfPool, count: int) -> dict[str, Any] | None:
    return find_record(store, one, _name(one, count))


def _name(one: SearchOfPool, count: int) -> str:
    return f"first round, {count or 'all'} at a time: {one.name}"
