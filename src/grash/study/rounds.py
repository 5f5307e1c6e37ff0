"""How many rounds pay (paper, Tab. 4): η = 2, 4, 8 and n at the same budget, and a single round at B = 1.

Comes from the searches of one store, goes to a page; every pick is trained in full.
"""

from __future__ import annotations

from collections.abc import Sequence

from grash.search.schedule import round_sizes
from grash.study.cells import Cell, cells_on
from grash.study.pages import Page, Rows, Value
from grash.study.plots import bar_plot
from grash.study.searches import Asked, find_record
from grash.study.store import Store
from grash.study.variants import full_test


def asked_searches(variants: Sequence[str], *, n: int, preset: str, budget: float = 3.0) -> list[Asked]:
    """By variant: η = 2, 4, 8, n at the budget, then η = n at a third of it."""
    found = []
    for variant in variants:
        for eta in dict.fromkeys((2, 4, 8, n)):
            found.append(Asked(preset, n, (("variant", variant), ("eta", eta), ("budget", budget))))
        found.append(Asked(preset, n, (("variant", variant), ("eta", n), ("budget", budget / 3))))
    return found


def picks(store: Store, asked: Sequence[Asked]) -> list[Cell]:
    """The full trainings of what the searches that were run have picked."""
    found = {record["winner"] for a in asked if (record := find_record(store, a)) is not None}
    return cells_on("whole", 1.0, sorted(number for number in found if number is not None))


def rounds_page(store: Store, asked: Sequence[Asked], *, command: str) -> Page:
    meta, rows = store.meta, tuple(_row(store, a) for a in asked)
    page = Page(
        f"rounds-{store.path.stem}-{asked[0].preset}", f"How many rounds pay: {meta['dataset']}", command,
        ", ".join(sorted({e.device for e in store.entries.values()})), raw=Rows(_HEADINGS, rows),
    )  # fmt: skip
    page.add(
        f"{meta['model']}, d = {meta['dim']}, `{meta['label']}` space, E = {meta['epochs']:g}, n = {asked[0].n}, "
        f"preset `{asked[0].preset}`. The fewer rounds, the dearer each; with η = n there is one. Every pick was then "
        f"trained in full.",
        Rows(_HEADINGS, rows),
    )
    shown = [(f"{r[0]}, η = {r[1]}, B = {r[2]:g}", float(r[6]), None, None) for r in rows if isinstance(r[6], float)]
    if shown:
        drawn = bar_plot(shown, title="The pick, trained in full", x_label="test MRR")
        page.add((page.name, drawn, "Test MRR of every pick"))
    return page


_HEADINGS = ("variant", "η", "B", "rounds", "first fidelity", "pick", "test MRR", "Hits@10", "spent", "search, s")


def _row(store: Store, asked: Asked) -> tuple[Value, ...]:
    given, record = dict(asked.changes), find_record(store, asked)
    head = (str(given["variant"]), int(given["eta"]), float(given["budget"]), len(round_sizes(asked.n, given["eta"])))
    if record is None:
        return (*head, *(None,) * 6)
    tested = full_test(store, record["winner"])
    return (
        *head, float(record["rounds"][0]["fidelity"]), record["winner"], None if tested is None else tested["mrr"],
        None if tested is None else tested["hits@10"], float(record["spent"]), float(record["seconds"]),
    )  # fmt: skip
