"""grash study: the paper's experiments as commands, and a table on which searches compete.

What is measured goes into a store (a folder of .jsonl files, one per pool), which a later run, here or elsewhere, goes
on with; pages and tables are made from the store.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from grash.cli.options import Source, takes, takes_source_options
from grash.cli.show import say
from grash.cli.study_confirm import SEARCHING, confirm
from grash.cli.study_methods import methods
from grash.cli.study_session import POOL, RUNNING, Clock, Study, leave, load, models_of, pool_of, show, study_command

N = Annotated[int, typer.Option("--n", "-n", help="Configurations.")]
Preset = Annotated[str, typer.Option("--preset", help="Of the searches: default, paper or paper-text.")]
Which = Annotated[str, typer.Option("--variants", help="Some of epoch, graph and combined, with commas.")]


def add_to(app: typer.Typer) -> None:
    about = "The paper's experiments, and a table on which searches compete."
    study = typer.Typer(rich_markup_mode=None, no_args_is_help=True, help=about)
    for verb in (transfer, variants, resources, rounds, table):
        study.command()(takes_source_options(takes(RUNNING, "running")(takes(POOL, "pooled")(verb))))
    study.command()(methods)
    study.command()(takes_source_options(takes(SEARCHING, "running")(confirm)))
    study.command()(merge)
    app.add_typer(study, name="study")


def transfer(
    source: Source,
    n: N = 30,
    techniques: Annotated[
        str, typer.Option("--techniques", help="Some of them, with commas.")
    ] = "triples,walk,kgtuner,ladder,chain,epochs,combined",
    **given: Any,
) -> None:
    """Which reductions foretell full training: rank correlation by technique and budget (paper, Fig. 3, Tab. 1)."""
    from grash.study.transfer import check_reductions, transfer_cells, transfer_page

    chosen = check_reductions(techniques)
    made = Study(source, n, **given)
    finished = made.run(transfer_cells(n, reductions=chosen))
    words = made.command("transfer", "--techniques", ",".join(chosen))
    made.page(transfer_page(made.store, n, command=words, reductions=chosen), finished)


def variants(
    source: Source,
    n: N = 64,
    models: Annotated[
        str, typer.Option("--models", help="Models, with commas; --model is left aside.")
    ] = "complex,rotate,transe",
    preset: Preset = "paper",
    large: Annotated[
        int, typer.Option("--large-dim", help="Dimension of one more combined search each; 0: none.")
    ] = 512,
    full: Annotated[bool, typer.Option("--full/--picks", help="Train all n in full, or only what was picked.")] = True,
    *,
    pooled: dict[str, Any],
    running: dict[str, Any],
    reading: dict[str, Any],
) -> None:
    """What is reduced, and what the search then picks, model by model; RotatE also with its own loss (Tab. 2)."""
    from grash.study import variants as study

    names = models_of(models)
    dataset, clock = load(source, reading), Clock(running)
    lines, finished = [], True
    words = study_command(
        "variants", source, n, pooled, running, reading, "--models", models, "--preset", preset, "--large-dim", large,
        "--full" if full else "--picks",
    )  # fmt: skip
    kinds = study.setups(names, dim=pooled["dim"], large=large, full=full, n_entities=dataset.n_entities)
    for setup in kinds:  # says now what is wrong with one of them, not after the others
        pool_of(dataset, n, {**pooled, **setup.changes})
    for setup in kinds:
        made = Study(dataset, n, {**pooled, **setup.changes}, clock.left(), {})
        asked = study.asked_searches(setup.variants, n=n, preset=preset)
        finished &= made.search(asked)
        finished &= made.run(study.variant_cells(made.store, asked, n=n, full=setup.full))
        lines.append((setup, made.store))
        made.store.release()
    made.page(study.variants_page(lines, n=n, preset=preset, command=words), finished)


def resources(
    source: Source,
    n: N = 64,
    preset: Preset = "paper",
    which: Which = "epoch,graph,combined",
    together: Annotated[
        bool, typer.Option("--together/--no-together", help="Time the first round with 1, 3 and all trials at a time.")
    ] = True,
    **given: Any,
) -> None:
    """Seconds, peak memory and model size per round and variant, and more trials at a time (Tab. 3)."""
    from grash.study.resources import asked_searches, resources_page, time_first_rounds

    made = Study(source, n, **given, tested=False)
    asked = asked_searches(which.split(","), n=n, preset=preset)
    finished = made.search(asked)
    if finished and together:
        finished = time_first_rounds(made.graphs, asked, made.store, **made.limits(), say=show)
    timed = "--together" if together else "--no-together"
    words = made.command("resources", "--preset", preset, "--variants", which, timed)
    made.page(resources_page(made.store, asked, command=words, together=together), finished)


def rounds(
    source: Source,
    n: N = 64,
    preset: Preset = "paper",
    which: Which = "graph,combined",
    **given: Any,
) -> None:
    """How many rounds pay: η = 2, 4, 8 and n at B = 3, and one round at B = 1 (Tab. 4)."""
    from grash.study.rounds import asked_searches, picks, rounds_page

    made = Study(source, n, **given)
    asked = asked_searches(which.split(","), n=n, preset=preset)
    finished = made.search(asked)
    finished &= made.run(picks(made.store, asked))
    words = made.command("rounds", "--preset", preset, "--variants", which)
    made.page(rounds_page(made.store, asked, command=words), finished)


def table(
    source: Source,
    n: N = 128,
    to: Annotated[
        Path | None,
        typer.Option("--to", help="File to write; OUT/tables/POOL.parquet by default.", show_default=False),
    ] = None,
    **given: Any,
) -> None:
    """A table to compete on: a pool of configurations at every fidelity, with curves, costs and failures."""
    from grash.study.foretell import full_scores
    from grash.study.table import make_table, table_cells

    made = Study(source, n, **given)
    cells = table_cells(made.graphs)
    finished = made.run(cells)
    if made.running["plan"]:
        raise typer.Exit(0)
    if not finished and not full_scores(made.store, n):
        say("No table is written yet: it needs trainings on the whole graph, and none has been run.")
        leave(finished)
    path = to if to is not None else made.running["out"] / "tables" / f"{made.pool.name}.parquet"
    found = make_table(made.store, made.pool, rails=made.graphs.rails(), cells=cells)
    try:
        found.save(path)
        say(f"{path}: {found.n} configurations × {len(found.graph_fractions)} graphs")
    except ModuleNotFoundError as error:
        say(f"{error.name} is not installed here, so that no table is written: run this again where it is.")
    leave(finished)


def merge(
    into: Annotated[Path, typer.Argument(help="The store that takes the others in.", show_default=False)],
    others: Annotated[list[Path], typer.Argument(help="Stores of the same studies.", show_default=False)],
) -> None:
    """Bring results from another machine into a store: what it lacks is added."""
    from grash.study.store import merge_stores

    for name, count in merge_stores(into, *others).items():
        print(f"{into / name}: {count} results were new")
