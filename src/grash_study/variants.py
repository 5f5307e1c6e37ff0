"""What searches pick by reducing epochs, the graph or both (paper, Tab. 2), and with how many rounds (Tab. 4).

Every pick is trained in full. Comes from the stores of pools, goes to one page per graph.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from grash.search.named_spaces import space_of
from grash.search.schedule import round_sizes
from grash.search.space import as_dict
from grash_study.pages import Page, Rows, Value, bar_plot
from grash_study.pool import DEFAULT
from grash_study.searches import SearchOfPool, find_record
from grash_study.store import TESTED, Cell, Store, cells_on
from grash_study.transfer import full_test, full_valid

VARIANTS = ("epoch", "graph", "combined")
_NOT_ASKED = "–"
_HEADINGS = (
    "model", "variant", "d", "pick", "test MRR", "Hits@1", "Hits@3", "Hits@10", "best of n", "of best",
    "picked by full validation", "median of n", "default", "search, s",
)  # fmt: skip
_ROUND_HEADINGS = (
    "variant", "η", "B", "rounds", "first fidelity", "pick", "test MRR", "Hits@10", "spent", "search, s",
)  # fmt: skip


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
    shown = [(name, mrr, None, None) for name, mrr in picks if isinstance(mrr, float)]
    if shown:
        drawn = bar_plot(shown, title="The pick, trained in full", x_label="test MRR")
        page.add((page.name, drawn, "Test MRR of every pick"))
