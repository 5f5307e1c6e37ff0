"""grash generate: a graph of any size with a structure that models can find."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from grash.cli.options import Json
from grash.cli.shares import share_display
from grash.cli.show import as_json, command, say


def add_to(app: typer.Typer) -> None:
    app.command()(generate)


def generate(
    out: Annotated[Path, typer.Argument(help="Folder to write, or a file, if it ends in .tsv.", show_default=False)],
    entities: Annotated[int, typer.Option("--entities", help="Entities, each of which occurs.")] = 10_000,
    relations: Annotated[int, typer.Option("--relations", help="Relations, each of which occurs.")] = 100,
    triples: Annotated[int, typer.Option("--triples", help="Distinct triples, valid and test included.")] = 100_000,
    noise: Annotated[float, typer.Option("--noise", help="Share of the triples whose tail is any entity.")] = 0.1,
    n_valid: Annotated[int | None, typer.Option("--n-valid", help="Triples of valid (5 %, at most 10,000).")] = None,
    n_test: Annotated[int | None, typer.Option("--n-test", help="Triples of test (5 %, at most 10,000).")] = None,
    seed: Annotated[int, typer.Option("--seed", help="The same seed and counts give the same graph.")] = 0,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace an encoded dataset that is there.")] = False,
    json: Json = False,
) -> None:
    """Make a graph of any size, to try things out: with hubs, frequent and rare relations, and a structure to learn.

    Entities belong to groups, and a head's group and the relation say which group the tail is in; so a good model
    ranks well, and how well the best one could is known. It is written part by part, in less than 1 GiB of memory.
    A folder becomes an encoded dataset of ids; a .tsv file holds all triples as lines of names, for grash prepare.
    """
    from grash.data.generate import check_free, generate, generate_text
    from grash.data.planted import PlantedGraph

    graph = PlantedGraph(entities, relations, triples, seed=seed, noise=noise)
    check_free(out, overwrite=overwrite)
    with share_display(quiet=json) as watch:
        if out.suffix == ".tsv":
            generate_text(out, graph, watch=watch)
        else:
            generate(out, graph, n_valid=n_valid, n_test=n_test, overwrite=overwrite, watch=watch)
    if json:
        as_json(
            {"path": str(out), "n_entities": entities, "n_relations": relations, "n_triples": triples, "seed": seed}
        )
        return
    print(f"{out}: {entities:,} entities, {relations:,} relations, {triples:,} triples")
    say(f"Next: {command('grash', 'prepare' if out.suffix == '.tsv' else 'describe', out)}")
