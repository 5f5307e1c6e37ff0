"""grash export: embeddings, splits and configurations for other programs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from grash.cli.console import command, listen, say


def add_to(app: typer.Typer) -> None:
    app.command()(export)


def export(
    model: Annotated[
        Path,
        typer.Argument(
            help="A model folder; for a configuration also a YAML file or a search, for splits also a search or a "
            "graph.",
            show_default=False,
        ),
    ],
    out: Annotated[Path, typer.Option("-o", "--out", help="Folder to write.", show_default=False)],
    format: Annotated[
        str, typer.Option("--format", "-f", help="npy (with .tsv names), word2vec, parquet, splits; pykeen, libkge.")
    ] = "npy",
    dataset: Annotated[
        str | None,
        typer.Option("--dataset", help="pykeen, libkge: the graph as that tool knows it.", show_default=False),
    ] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace an export that is there.")] = False,
) -> None:
    """Write the embeddings, or the configuration, for other programs.

    npy: entities.npy, relations.npy and .tsv files of id and name. word2vec: entities.txt, where spaces in names
    become underscores. parquet: id, name, embedding. splits: train.txt, valid.txt and test.txt of the graph, by
    name. pykeen: pykeen.json, a pipeline. libkge: libkge.yaml, a training. What a configuration cannot carry over is
    said, and stands in the file.
    """
    from grash.api import dataset as datasets_api
    from grash.api import model as model_api
    from grash.interop.config import CONFIG_FILES, export_config, find_config
    from grash.interop.embeddings import check_format, export_splits

    listen()
    check_format(format, dataset)
    if format in CONFIG_FILES:
        config, graph = find_config(model)
        path, said = export_config(
            config, out, format, graph=graph, dataset=dataset, overwrite=overwrite,  # type: ignore[arg-type]
            splits=command("grash", "export", model, "-f", "splits", "-o", "FOLDER"),
        )  # fmt: skip
        for line in said:
            say(line)
        written = [path]
    elif format == "splits":
        written = export_splits(datasets_api.find_dataset(model), out, overwrite=overwrite)
    else:
        written = model_api.load_model(model, device="cpu").export(out, format, overwrite=overwrite)  # type: ignore[arg-type]
    for path in written:
        print(path)
