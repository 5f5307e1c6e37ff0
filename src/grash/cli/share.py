"""grash map: a model as a picture for others."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from grash.cli.console import show, show_log
from grash.cli.options import ModelFolder, Overwrite


def add_to(app: typer.Typer) -> None:
    app.command("map", rich_help_panel="Models")(map_entities)


def map_entities(
    model: ModelFolder,
    out: Annotated[Path, typer.Option("--out", "-o", help="Page to write.")] = Path("map.html"),
    method: Annotated[
        Literal["auto", "umap", "pca"],
        typer.Option(help="auto: UMAP if umap-learn is installed, for up to 100,000 entities; else PCA."),
    ] = "auto",
    max_points: Annotated[
        int, typer.Option(help="Of a larger graph, show the entities with most triples.")
    ] = 1_000_000,
    type_relation: Annotated[
        str | None,
        typer.Option(help="Relation from an entity to its type (default: found by its name)."),
    ] = None,
    seed: Annotated[int, typer.Option(help="Seed of UMAP.")] = 0,
    overwrite: Overwrite = False,
) -> None:
    """Write a map of the entities: one page with zoom, colors, names and search.

    Entities with similar embeddings are near each other. Open the page in a browser; it needs no network.
    """
    from grash.api.model import load_model

    show_log()
    loaded = load_model(model, device="cpu")
    where = loaded.map(
        out, method=method, max_points=max_points, type_relation=type_relation, seed=seed, overwrite=overwrite
    )
    show(where)
