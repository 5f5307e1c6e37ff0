"""grash export: embeddings, splits and configurations for other programs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from grash.cli.console import command, say, show_log
from grash.cli.options import Overwrite


def add_to(app: typer.Typer) -> None:
    app.command()(export)


def export(
    model: Annotated[
        Path,
        typer.Argument(
            help="A model folder. For a configuration also a YAML file or a run folder; for splits also a run folder "
            "or a graph.",
            show_default=False,
        ),
    ],
    out: Annotated[Path, typer.Option("--out", "-o", help="Folder to write.", show_default=False)],
    format: Annotated[str, typer.Option("--format", help="npy, word2vec, parquet, splits, pykeen or libkge.")] = "npy",
    dataset: Annotated[
        str | None,
        typer.Option("--dataset", help="pykeen, libkge: name of the graph in that library.", show_default=False),
    ] = None,
    overwrite: Overwrite = False,
) -> None:
    """Write embeddings, splits or settings for other programs.

    npy: entities.npy and relations.npy, with names in .tsv files. word2vec: entities.txt; spaces in names become
    underscores. parquet: id, name, embedding. splits: train.txt, valid.txt and test.txt with names. pykeen:
    pykeen.json, a pipeline. libkge: libkge.yaml, a training. Settings that the other library lacks are listed on
    stderr and in the file.
    """
    from grash.api.dataset import find_dataset
    from grash.api.model import load_model
    from grash.interop.config import find_config
    from grash.interop.export import CONFIG_FILES, check_format, export_config, export_splits

    show_log()
    check_format(format, dataset)
    kind: Any = format
    if format in CONFIG_FILES:
        config, graph = find_config(model)
        splits = command("grash", "export", model, "--format", "splits", "-o", "FOLDER")
        path, remarks = export_config(
            config, out, kind, graph=graph, dataset=dataset, overwrite=overwrite, splits=splits
        )
        for remark in remarks:
            say(remark)
        written = [path]
    elif format == "splits":
        written = export_splits(find_dataset(model), out, overwrite=overwrite)
    else:
        written = load_model(model, device="cpu").export(out, kind, overwrite=overwrite)
    for path in written:
        print(path)
