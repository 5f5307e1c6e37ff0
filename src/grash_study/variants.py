"""What is reduced, and what the search then picks (paper, Tab. 2): epoch, graph and combined, model by model.

Each pick is shown at full fidelity beside the best and the median of the same n trained in full, the one among them
with the best full validation, and the default configuration. Comes from the stores of several pools, goes to one page
per graph.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from grash.search.named_spaces import space_of
from grash.search.schedule import round_sizes
from grash.search.space import as_dict
from grash_study.cells import TESTED, Cell, cells_on
from grash_study.pages import Page, Rows, Value
from grash_study.plots import bar_plot
from grash_study.pool import DEFAULT
from grash_study.searches import Asked, find_record
from grash_study.store import Store
from grash_study.transfer import full_scores, full_valid

VARIANTS = ("epoch", "graph", "combined")
_NOT_ASKED = "–"
SELF_ADVERSARIAL = "paper-self-adversarial"


@dataclass(frozen=True)
class Setup:
    """One pool of the study: what differs from the settings that were given, the variants that are searched, and
    whether its n are all trained in full."""

    label: str
    changes: dict[str, Any]
    variants: tuple[str, ...]
    full: bool


def setups(models: Sequence[str], *, dim: int, large: int, full: bool, n_entities: int) -> list[Setup]:
    """Every model with all variants; combined once more with a larger dimension (0: none), RotatE's own loss too."""
    found = []
    for model in models:
        found.append(Setup(model, {"model": model}, VARIANTS, full))
        if large:
            found.append(Setup(model, {"model": model, "dim": large}, ("combined",), False))
        if model == "rotate":
            own = {"space": self_adversarial_space(model, n_entities), "label": SELF_ADVERSARIAL}
            changes = {"model": model, **own, "dim": large or dim}
            found.append(Setup("rotate, self-adversarial", changes, ("combined",), False))
    return found


def asked_searches(variants: Sequence[str], *, n: int, preset: str) -> list[Asked]:
    return [Asked(preset, n, (("variant", v),)) for v in variants]


def variant_cells(store: Store, asked: Sequence[Asked], *, n: int, full: bool) -> list[Cell]:
    """Full trainings: of the n and the default where the regret is asked for, else of the picks that are known."""
    if full:
        return cells_on("whole", 1.0, [DEFAULT, *range(n)])
    picks = {record["winner"] for a in asked if (record := find_record(store, a)) is not None}
    return cells_on("whole", 1.0, [DEFAULT, *sorted(p for p in picks if p is not None)])


def full_test(store: Store, number: int | None) -> dict[str, float] | None:
    """Test metrics of a configuration's full training; zeros if it diverged, None if there is none that worked."""
    entry = None if number is None else store.entry(number, "whole", 1.0)
    if entry is None or not entry.worked:
        return None
    return entry.test or dict.fromkeys(TESTED, 0.0)


def self_adversarial_space(model: str, n_entities: int) -> dict[str, Any]:
    """The paper's space with the loss of RotatE's authors: its margin and temperature are searched as in `default`."""
    paper, ours = as_dict(space_of("paper", model, n_entities)), as_dict(space_of("default", model, n_entities))
    searched = {name: _always(ours[name]) for name in ("margin", "temperature")}
    return {**paper, "loss": "self_adversarial", **searched}


def variants_page(lines: Sequence[tuple[Setup, Store]], *, n: int, preset: str, command: str) -> Page:
    """One table over all models and variants, and a plot of the picks."""
    meta = lines[0][1].meta
    devices = sorted({e.device for _, store in lines for e in store.entries.values()})
    rows = [_row(setup, store, a) for setup, store in lines for a in asked_searches(setup.variants, n=n, preset=preset)]
    models = "-".join(dict.fromkeys(str(store.meta["model"]) for _, store in lines))
    name = f"variants-{meta['dataset']}-{models}-d{meta['dim']}-{meta['label']}-e{meta['epochs']:g}-s{meta['seed']}"
    page = Page(
        f"{name}-{preset}", f"What is reduced, and what is then found: {meta['dataset']}", command,
        ", ".join(devices), raw=Rows(_HEADINGS, tuple(_plain(row) for row in rows)),
    )  # fmt: skip
    page.add(
        f"Searches with n = {n}, η = 4, B = 3 (preset `{preset}`, E = {meta['epochs']:g}); each pick's full training "
        f"on the test triples, beside the best (by test MRR) and the median of the same n trained in full, and beside "
        f"our default configuration, which is not one of the n. `of best` is the pick's share of the best one's test "
        f"MRR: what the search lost by choosing. `picked by full validation` is the test MRR of the one of the n whose "
        f"full training validates best: what choosing without any reduction comes to.",
        Rows(_HEADINGS, tuple(_in_words(row) for row in rows)),
    )
    shown = [(f"{r[0]} {r[1]}, d = {r[2]}", r[4], None, None) for r in rows if isinstance(r[4], float)]
    if shown:
        drawn = bar_plot(shown, title="The pick, trained in full", x_label="test MRR")
        page.add((page.name, drawn, "Test MRR of every pick"))
    return page


_HEADINGS = (
    "model", "variant", "d", "pick", "test MRR", "Hits@1", "Hits@3", "Hits@10", "best of n", "of best",
    "picked by full validation", "median of n", "default", "search, s",
)  # fmt: skip


def _row(line: Setup, store: Store, asked: Asked) -> tuple[Value, ...]:
    record = find_record(store, asked)
    variant = dict(asked.changes)["variant"]
    pick = None if record is None else record["winner"]
    tested = full_test(store, pick)
    truth = full_scores(store, asked.n) if line.full else {}
    whole = len(truth) == asked.n
    best: Value = max(truth.values()) if whole else None if line.full else _NOT_ASKED
    valid = full_valid(store, asked.n)
    judged: Value = truth[max(truth, key=lambda n: valid[n])] if whole else None if line.full else _NOT_ASKED
    default = full_test(store, DEFAULT)
    share: Value = tested["mrr"] / best if tested and isinstance(best, float) and best else None
    return (
        line.label, variant, int(store.meta["dim"]), pick,
        *(tested[m] if tested else None for m in TESTED),
        best, share if line.full else _NOT_ASKED, judged,
        median(truth.values()) if whole else None if line.full else _NOT_ASKED,
        default["mrr"] if default else None, None if record is None else float(record["seconds"]),
    )  # fmt: skip


def _plain(row: tuple[Value, ...]) -> tuple[Value, ...]:
    """For a CSV: numbers, and nothing where there is none."""
    return tuple(None if value == _NOT_ASKED else value for value in row)


def _in_words(row: tuple[Value, ...]) -> tuple[Value, ...]:
    place = _HEADINGS.index("of best")
    share = row[place]
    return (*row[:place], f"{share:.1%}" if isinstance(share, float) else share, *row[place + 1 :])


def _always(parameter: Any) -> Any:
    """A parameter without the condition under which it is searched."""
    return {k: v for k, v in parameter.items() if k != "when"} if isinstance(parameter, dict) else parameter


# = How many rounds pay (paper, Tab. 4): η = 2, 4, 8 and n at the same budget, and a single round at B = 1.
# =
# = Comes from the searches of one store, goes to a page; every pick is trained in full.


def asked_searches_rounds(variants: Sequence[str], *, n: int, preset: str, budget: float = 3.0) -> list[Asked]:
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
    meta, rows = store.meta, tuple(_row_rounds(store, a) for a in asked)
    page = Page(
        f"rounds-{store.path.stem}-{asked[0].preset}", f"How many rounds pay: {meta['dataset']}", command,
        ", ".join(sorted({e.device for e in store.entries.values()})), raw=Rows(_HEADINGS_rounds, rows),
    )  # fmt: skip
    page.add(
        f"{meta['model']}, d = {meta['dim']}, `{meta['label']}` space, E = {meta['epochs']:g}, n = {asked[0].n}, "
        f"preset `{asked[0].preset}`. The fewer rounds, the dearer each; with η = n there is one. Every pick was then "
        f"trained in full.",
        Rows(_HEADINGS_rounds, rows),
    )
    shown = [(f"{r[0]}, η = {r[1]}, B = {r[2]:g}", float(r[6]), None, None) for r in rows if isinstance(r[6], float)]
    if shown:
        drawn = bar_plot(shown, title="The pick, trained in full", x_label="test MRR")
        page.add((page.name, drawn, "Test MRR of every pick"))
    return page


_HEADINGS_rounds = (
    "variant",
    "η",
    "B",
    "rounds",
    "first fidelity",
    "pick",
    "test MRR",
    "Hits@10",
    "spent",
    "search, s",
)


def _row_rounds(store: Store, asked: Asked) -> tuple[Value, ...]:
    given, record = dict(asked.changes), find_record(store, asked)
    head = (str(given["variant"]), int(given["eta"]), float(given["budget"]), len(round_sizes(asked.n, given["eta"])))
    if record is None:
        return (*head, *(None,) * 6)
    tested = full_test(store, record["winner"])
    return (
        *head, float(record["rounds"][0]["fidelity"]), record["winner"], None if tested is None else tested["mrr"],
        None if tested is None else tested["hits@10"], float(record["spent"]), float(record["seconds"]),
    )  # fmt: skip
