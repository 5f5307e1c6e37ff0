"""grash study methods: searches compete on tables, over many seeds, on one core in minutes."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from grash.cli.show import command, say
from grash.cli.show import table as show_table
from grash.errors import ConfigError

if TYPE_CHECKING:
    from grash.study.compare import Comparison


DOCS = Path("docs/results")


def methods(
    tables: Annotated[list[Path], typer.Argument(help="Tables, from grash study table.", show_default=False)],
    seeds: Annotated[int, typer.Option("--seeds", help="Searches per method and table.")] = 1000,
    budget: Annotated[float, typer.Option("--budget", "-b", help="B: cost of a search in full runs.")] = 3.0,
    sweep: Annotated[
        bool, typer.Option("--sweep", help="Compare changes of the default search instead of methods.")
    ] = False,
    settings: Annotated[
        Path | None,
        typer.Option("--settings", help="Compare the default with what a YAML file lists.", show_default=False),
    ] = None,
    out: Annotated[Path, typer.Option("-o", "--out", help="Folder of pages and plots.")] = DOCS,
) -> None:
    """Let searches choose from a table: what they pick at equal cost, with intervals, and what was lost where.

    A file for --settings is a list: - {name: more survivors, eta: 3} or - {name: ties, run: rungs, ties: 2}.
    """
    from grash.study.compare import compare
    from grash.study.methods import METHODS
    from grash.study.methods_page import Kind, write_methods_page, write_overview
    from grash.study.recorded import Recorded
    from grash.study.sweep import SWEEP, fitting, read_methods
    from grash.study.table import Table

    if sweep and settings is not None:
        raise ConfigError("--sweep and --settings each say what to compare: give one of them.")
    kind: Kind = "sweep" if sweep else "settings" if settings is not None else "methods"
    label = None if settings is None else settings.stem
    chosen = read_methods(settings) if settings is not None else SWEEP if sweep else METHODS
    given: list[object] = ["--sweep"] if sweep else ["--settings", settings] if settings is not None else []
    given += ["--out", out] if out != DOCS else []
    words = command("grash", "study", "methods", *tables, "--seeds", seeds, "--budget", f"{budget:g}", *given)
    several = []
    for path in tables:
        bench = Recorded(Table.load(path))
        found = compare(bench, fitting(chosen, bench.n, tell=say), seeds=seeds, budget=budget, tell=say)
        _show(found)
        say(f"{write_methods_page(found, out, kind=kind, label=label, command=words)}: written")
        several.append(found)
    if len(several) > 1:
        say(f"{write_overview(several, out, kind=kind, label=label, command=words)}: written")


def _show(found: Comparison) -> None:
    rows = [
        (
            r.name, f"{r.cost:.2f}", f"{r.mrr:.4f}", f"{r.mrr_interval[0]:.4f} … {r.mrr_interval[1]:.4f}",
            f"{r.found:.1%}", f"{r.gain:+.4f}", f"{r.gain_interval[0]:+.4f} … {r.gain_interval[1]:+.4f}",
        )
        if r.ran
        else (r.name, f"{r.cost:.2f}", *("–",) * 5)
        for r in found.rows
    ]  # fmt: skip
    columns = ("method", ">cost", ">test MRR", ">95 %", ">of its best", ">gain", ">95 %")
    show_table(columns, rows, title=f"{found.bench.name}, {found.seeds:,} seeds, B = {found.budget:g}")
