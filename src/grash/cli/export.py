"""grash export: embeddings, splits and configurations for other programs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from grash.cli.show import listen, say
from grash.errors import ConfigError, InputError


def add_to(app: typer.Typer) -> None:
    app.command()(export)


def export(
    model: Annotated[
        Path,
        typer.Argument(help="A model folder; for a configuration also a YAML file or a search.", show_default=False),
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
    become underscores. parquet: id, name, embedding. splits: train.txt, valid.txt and test.txt of the model's graph, by
    name. pykeen: pykeen.json, a pipeline. libkge: libkge.yaml, a training. What a configuration cannot carry over is
    said, and stands in the file.
    """
    from grash import api
    from grash.data.catalog import CATALOG
    from grash.export import FORMATS
    from grash.export_config import CONFIG_FILES, export_config, find_config

    listen()
    if format not in (*FORMATS, *CONFIG_FILES):
        raise ConfigError(f"--format {format} is unknown: give {', '.join((*FORMATS, *CONFIG_FILES))}.")
    if format in CONFIG_FILES:
        config, name = find_config(model)
        if (dataset or name) is None:
            raise InputError(
                f"{model} does not say which graph it is for: give --dataset, as {format} knows the graph."
            )
        path, left_out = export_config(config, out, format, dataset=str(dataset or name), overwrite=overwrite)  # type: ignore[arg-type]
        for line in left_out:
            say(f"not carried over: {line}")
        if dataset is None and name not in CATALOG:
            say(f"{name} is no public dataset: `grash export {model} -f splits -o FOLDER` writes it, for --dataset.")
        print(path)
        return
    if dataset is not None:
        raise InputError(f"--dataset goes with --format pykeen or libkge, and {format} is given: leave it out.")
    for path in api.load_model(model, device="cpu").export(out, format, overwrite=overwrite):  # type: ignore[arg-type]
        print(path)
