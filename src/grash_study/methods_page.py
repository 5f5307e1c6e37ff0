"""The page of a comparison: what was compared on which table, the figures, the curves, and what they cannot say.

Comes from compare.py; goes to docs/results by pages.py. What every seed picked is in a Parquet file beside it.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Literal

import numpy as np

from grash.files import atomic_file
from grash_study.compare import Comparison, Row
from grash_study.pages import Page, Rows, Value, with_interval, write_page
from grash_study.plots import Series, bar_plot, line_plot
from grash_study.recorded import Recorded
from grash_study.statistics import LEARNS, spearman
from grash_study.table_search import planned, round_scores

Kind = Literal["methods", "sweep", "settings"]
_TITLES = {
    "methods": "Methods compared on {}", "sweep": "Changes of the default search on {}",
    "settings": "The default search and the settings of `{label}` on {}",
}  # fmt: skip
_BUDGET = 3.0  # whose pages have no word for it in their names
_RAW = (
    "graph", "method", "seeds", "budget", "cost", "most_cost", "test_mrr", "test_mrr_low", "test_mrr_high",
    "of_its_best", "of_its_best_low", "of_its_best_high", "gain", "gain_low", "gain_high", "better", "worse",
    "best_left", "milliseconds", "different_picks",
)  # fmt: skip


def write_methods_page(
    found: Comparison, folder: Path, *, kind: Kind = "methods", label: str | None = None, command: str = ""
) -> Path:
    """Writes the page, its numbers and plots into a folder; gives back the page's path. label: the file of settings,
    where these are compared; it is part of the names of files, and so is a budget other than 3."""
    meta, bench = found.bench.table.meta, found.bench
    name = _file_name(found, kind, label, page_name(bench))
    page = Page(name, _TITLES[kind].format(bench.name, label=label), command, _machines([found]), raw=_raw(found))
    page.add(
        f"{meta['model']}, d = {meta['dim']}, E = {meta['epochs']:g}, space `{meta.get('label', meta['space'])}`: "
        f"{bench.n} configurations, {found.seeds:,} seeds, B = {found.budget:g} full runs. Compared with "
        f"**{found.reference}** seed by seed; what every seed picked: [{name}.parquet]({name}.parquet). "
        + caveat(str(bench.n), found.seeds),
        *found.notes,
        _figures(found),
        *_explained([found], kind),
        *([(f"{name}-curves", _curves(found), "Test MRR of the incumbent against cost")] if kind == "methods" else []),
        (f"{name}-gains", _gains(found), "Gain in test MRR over the reference"),
        "## What the rounds of the default search see here",
        f"Spearman's ρ between a round's scores and the best validation of the full trainings, over the whole pool and "
        f"over those that learn (test MRR above {LEARNS}); beside it with the test MRR. What diverges scores 0.",
        _rounds(found),
        "## How to read it",
        NOTES,
    )
    _write_seeds(found, Path(folder) / f"{name}.parquet")
    return write_page(page, folder)


def write_overview(
    several: Sequence[Comparison],
    folder: Path,
    *,
    kind: Kind = "methods",
    label: str | None = None,
    command: str = "",
) -> Path:
    """One page over several tables: every method's gain on each, and in the mean as a part of the reference's MRR."""
    names = list(dict.fromkeys(r.name for found in several for r in (*found.rows, *found.ceilings)))
    rows = [(name, *(_gain_cell(found, name) for found in several), _mean_gain(several, name)) for name in names]
    heads = ("method", *(page_name(found.bench) for found in several), "mean gain")
    raw = Rows(_RAW, tuple(row for found in several for row in _raw(found).rows))
    name = _file_name(several[0], kind, label, "overview")
    page = Page(name, _TITLES[kind].format("all tables", label=label), command, _machines(several), raw=raw)
    page.add(
        f"Test MRR of the pick at B = {several[0].budget:g}, in the mean over {several[0].seeds:,} seeds, and its gain "
        f"over **{several[0].reference}**: ▲ and ▼ where the 95 % interval lies on one side of 0. The last column is "
        f"the mean of the gains as parts of the reference's MRR. Pages of the tables: "
        + ", ".join(f"[{page_name(f.bench)}]({_file_name(f, kind, label, page_name(f.bench))}.md)" for f in several)
        + ". "
        + caveat(" or ".join(dict.fromkeys(str(f.bench.n) for f in several)), several[0].seeds),
        *(f"{page_name(found.bench)}: {note}" for found in several for note in found.notes),
        Rows(heads, tuple(rows)),
        f"The last two rows train all n configurations of **{several[0].reference}** in full; the very last is chosen "
        f"on the noise of the test triples.",
        *_explained(several, kind),
    )
    return write_page(page, folder)


def _explained(several: Sequence[Comparison], kind: Kind) -> list[str]:
    """What the names of rows mean, where they need it."""
    names = [r.name for found in several for r in found.rows]
    found = [PAPER] if any(name.startswith("paper's rules") for name in names) else []
    return [*found, *([words] if kind != "methods" and (words := legend(names)) else [])]


def _file_name(found: Comparison, kind: Kind, label: str | None, rest: str) -> str:
    named = "" if label is None else re.sub(r"[^\w.-]+", "_", label) + "-"
    return f"{kind}-{named}{rest}" + ("" if found.budget == _BUDGET else f"-b{found.budget:g}")


def _machines(several: Sequence[Comparison]) -> str:
    """Of the trainings that the tables recorded, and of the searches, whose milliseconds the page shows."""
    devices = sorted({str(found.bench.table.meta.get("device", "")) for found in several} - {""})
    trained = f"{', '.join(devices)} (the trainings) and " if devices else ""
    return f"{trained}the CPU of the machine that wrote this page (the searches)"


def page_name(bench: Recorded) -> str:
    """Of the pool: its tables differ from those of others in what they are called."""
    meta = bench.table.meta
    pool = f"{bench.name}-{meta['model']}-d{meta['dim']}-{meta.get('label', 'own')}"
    return f"{pool}-e{meta['epochs']:g}-s{meta['seed']}"


def _figures(found: Comparison) -> Rows:
    heads = ("method", "cost", "test MRR", "of its best", "gain", "better, worse", "different picks", "best left",
             "ms a search")  # fmt: skip
    rows: list[tuple[Value, ...]] = []
    for r in (*found.rows, *found.ceilings):
        itself, name = r.name == found.reference, f"*{r.name}*" if r in found.ceilings else r.name
        rows.append(
            (
                f"**{name}**" if itself else name, f"{r.cost:.2f}",
                with_interval(r.mrr, *r.mrr_interval, 4) if r.ran else "–",
                with_interval(r.found, *r.found_interval, 3) if r.ran else "–",
                "" if itself else _signed(r.gain, *r.gain_interval) if r.ran else "–",
                "" if itself else f"{r.wins:.0%}, {r.losses:.0%}" if r.ran else "–",
                r.different, " ".join(f"{k:.3f}" for k in r.kept) if r.ran else "–",
                "" if r in found.ceilings else f"{r.milliseconds:.1f}",
            )
        )  # fmt: skip
    return Rows(heads, tuple(rows))


def _gain_cell(found: Comparison, name: str) -> str:
    row = next((r for r in (*found.rows, *found.ceilings) if r.name == name), None)
    if row is None or not row.ran:
        return "–"
    low, high = row.gain_interval
    sign = "▲" if low > 0 else "▼" if high < 0 else "="
    return f"{row.mrr:.4f}" if name == found.reference else f"{row.mrr:.4f} {sign} {row.gain:+.4f}"


def _mean_gain(several: Sequence[Comparison], name: str) -> str:
    """Over the tables on which the method trained anything, if these are all."""
    rows = [
        (r, found.row(found.reference).mrr)
        for found in several
        for r in (*found.rows, *found.ceilings)
        if r.name == name and r.ran
    ]
    if len(rows) < len(several):
        return "–"
    return f"{np.mean([r.gain / max(base, 1e-12) for r, base in rows]):+.2%}"


def _signed(value: float, low: float, high: float) -> str:
    return f"{value:+.4f} [{low:+.4f}, {high:+.4f}]"


def _curves(found: Comparison) -> str:
    return line_plot(
        [Series(r.name, _points(found, r)) for r in found.rows if r.ran],
        title=f"{found.bench.name}: mean over {found.seeds:,} seeds",
        x_label="cost so far, in full runs",
        y_label="test MRR of the incumbent",
        log_x=True,
        width=900,
        height=max(420, 70 + 20 * len(found.rows)),
    )


def _points(found: Comparison, row: Row) -> tuple[tuple[float, float, None, None], ...]:
    """A line begins where all seeds have an incumbent, and ends at the cost by which every seed has its pick."""
    before = [(float(c), float(v)) for c, v in zip(found.costs, row.curve) if not math.isnan(v) and c < row.most]
    return tuple((c, v, None, None) for c, v in [*before, (row.most, row.mrr)])


def _gains(found: Comparison) -> str:
    """Beside the methods what choosing by full validation would gain; the best by test is no aim for a search."""
    shown_rows = [r for r in (*found.rows, *found.ceilings[:1]) if r.name != found.reference and r.ran]
    rows = [(r.name, r.gain, *r.gain_interval) for r in shown_rows]
    title = f"{found.bench.name}: gain over {found.reference}, paired"
    isolated = [r.name for r in found.ceilings]
    return bar_plot(rows, title=title, x_label="gain in test MRR", mark=0.0, width=860, isolated=isolated)


def _rounds(found: Comparison) -> Rows:
    """The rounds of the default search on this table, and how well their scores order the whole pool."""
    bench = found.bench
    settings = bench.settings("default", found.budget, ())
    full, everybody, learns = np.nan_to_num(bench.full_scores), np.ones(bench.n, bool), bench.truth > LEARNS
    rows: list[tuple[Value, ...]] = []
    for plan in planned(bench, settings):
        scores = np.nan_to_num(round_scores(bench, plan, settings))  # what diverges comes last, as in the search
        everyone, learning, tested = (
            spearman(scores[who], truth[who])
            for who, truth in ((everybody, full), (learns, full), (everybody, bench.truth))
        )
        rows.append(
            (
                plan.number, plan.n_trials, f"{1.0 if plan.whole else plan.graph_fraction:.3f}", f"{plan.epochs:.2f}",
                plan.n_entities, *(with_interval(c.rho, c.low, c.high) or "–" for c in (everyone, learning, tested)),
            )
        )  # fmt: skip
    heads = ("round", "trials", "graph", "epochs", "entities", "ρ, all", "ρ, those that learn", "ρ with test MRR")
    return Rows(heads, tuple(rows))


def _raw(found: Comparison) -> Rows:
    rows: list[tuple[Value, ...]] = []
    for r in (*found.rows, *found.ceilings):
        numbers: Sequence[float] = (
            r.mrr, *r.mrr_interval, r.found, *r.found_interval, r.gain, *r.gain_interval,
            r.wins, r.losses,
        )  # fmt: skip
        rounded: list[Value] = [float(f"{v:.6g}") for v in (r.cost, r.most)]
        rounded += [float(f"{v:.6g}") if r.ran else None for v in numbers]
        kept = " ".join(f"{k:.4f}" for k in r.kept) if r.ran else ""
        name, took = r.name, round(r.milliseconds, 3)
        rows.append((found.bench.name, name, found.seeds, found.budget, *rounded, kept, took, r.different))
    return Rows(_RAW, tuple(rows))


def _write_seeds(found: Comparison, path: Path) -> None:
    """A row per method and seed: what was picked, what it cost, what it comes to and what the best at hand would."""
    import polars as pl

    parts = [
        pl.DataFrame(
            {"method": [r.name] * found.seeds, "seed": range(found.seeds), "pick": r.picks, "cost": r.costs,
             "test_mrr": r.picked, "best_at_hand": r.best}
        )
        for r in (*found.rows, *found.ceilings)
    ]  # fmt: skip
    with atomic_file(path) as aside:
        pl.concat(parts).write_parquet(aside, compression="zstd")


# = What pages of comparisons say in words: what their figures mean, what they cannot say, and what each change is.
# =
# = Goes to methods_page.py.

_PENALTIES = "penalties are those of the table's trainings, scaled with the graph except in the `paper` space"
NOTES = f"""\
- *Test MRR*: of the pick, trained in full, in the mean over seeds. *Of its best*: the same over that of the best
  configuration that the method began with. *Gain*: less the reference's. *Better, worse*: shares of the seeds.
- A dash instead of figures: the budget pays for no training of the method.
- *Different picks*: how many configurations were picked over all seeds.
- *Best left*: the best configuration still in the race at each round or stage, over the best that it began with; where
  it falls, the best was lost.
- The last two rows train all n of the reference in full. A best by test MRR is chosen on the noise of the test triples,
  and no search can have it; a best by validation is what choosing without any reduction would come to.
- All methods draw from the pool at random first, GraSH's default too: what `--proposals portfolio` adds is not in it.
- Methods that propose choose among members of the pool instead of the whole space, which takes from their reach.
- Subgraphs are cut by the chain: whole cores (`--preset paper`), walks (KGTuner, AutoNE), warm starts and a price by
  scores are not judged here, nor is noise, since each training was made once. The final training of the pick is outside
  the budget of all. In every row, the default's too, {_PENALTIES}."""
PAPER = (
    "Rows *paper's rules, chain (…)* take the rounds of the paper (no rails, carry or trend), but on a table graphs "
    "are cut along the chain instead of whole cores, and negatives and the validation split are the default's; "
    f"{_PENALTIES}."
)
_LEGEND = (
    (("n =",), "*n*: configurations of the first round (64 in the default)."),
    (("η =",), "*η*: of so many one goes on (4 in the default)."),
    (("trend",), "*trend*: that part of a trial's rise, from half of its epochs to all, is added to its score (1/2)."),
    (("rail",), "*rails*: the least of entities, validation triples and epochs that a round may have; *at … entities*: "
                "another least; *never take the whole graph*: not even where that least is most of it."),
    (("carry",), "*carry*: what a round has not spent goes to the next."),
    (("variant",), "*variant*: what is reduced; epochs alone, the graph alone, or both (`combined`, the default)."),
    (("portfolio",), "*portfolio*: the members nearest to the portfolio's proposals enter, instead of random ones."),
    (("second wave",), "*second wave of 1/4*: so many of the first round's configurations are not drawn but proposed, "
                       "by a model of the others' scores; *in eights*: eight at a time; *epoch*: with that variant."),
    (("laboratory",), "*laboratory*: halving written anew for what the search does not know, here with the same rules; "
                      "the rows after it are changes of it."),
    (("ties",), "*ties*: those within so many standard errors of the last place go on too, up to twice the places."),
    (("g = f^",), "*g = f^x*: a fidelity f takes f^x of the graph and the rest from the epochs; 0 is epochs alone, 1/2 "
                  "what `combined` does."),
    (("cold", "continued"), "*cold, continued*: survivors begin anew in the next round, or go on from their weights "
                            "and pay for what is added."),
    (("in epochs",), "*… in epochs*: these rounds reduce epochs alone, the others both."),
    (("shares",), "*shares a:b:c*: how the budget is divided among the rounds (equally in the default)."),
    (("rounds of",), "*rounds of …*: how many trials each round has (64, 16, 4 in the default)."),
)  # fmt: skip


def caveat(n: str, seeds: int) -> str:
    """What so many seeds are not. n: how many configurations a table's pool has, in words."""
    return (
        f"All seeds on a table draw from one pool of {n} configurations, each trained once: {seeds:,} seeds are not "
        f"{seeds:,} independent graphs, pools or trainings, and the intervals (95 %, over seeds) say nothing about "
        f"others; a method that draws most of the pool differs little between seeds."
    )


def legend(names: Iterable[str]) -> str:
    """A line for every word that names of changes have; nothing where they have none."""
    found = " ".join(names)
    return "\n".join(f"- {line}" for words, line in _LEGEND if any(word in found for word in words))
