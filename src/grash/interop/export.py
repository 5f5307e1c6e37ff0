"""Export a model for other programs: its embeddings, the splits of its graph, or its configuration.

`embeddings.py`, `pykeen.py` and `libkge.py` know the formats. A configuration file lists the settings that the other
tool does not have.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Literal, get_args

from grash.data.dataset import SPLITS, Dataset
from grash.errors import ConfigError, InputError
from grash.files import atomic_file, atomic_folder, check_absent, write_json
from grash.interop.embeddings import WRITERS, write_splits
from grash.interop.libkge import config_to_libkge, libkge_dataset
from grash.interop.pykeen import config_to_pykeen, pykeen_dataset
from grash.models.base import KgeModel
from grash.training.config import TrainConfig

Format = Literal["npy", "word2vec", "parquet", "splits", "pykeen", "libkge"]
FORMATS: tuple[Format, ...] = get_args(Format)
CONFIG_FILES = {"pykeen": "pykeen.json", "libkge": "libkge.yaml"}
_FILES = {
    *(f"{stem}.{end}" for stem in ("entities", "relations") for end in ("npy", "tsv", "parquet")),
    "entities.txt",
    *(f"{split}.txt" for split in SPLITS),
}
_log = logging.getLogger(__name__)


def export_model(
    kge: KgeModel,
    dataset: Dataset,
    config: TrainConfig,
    folder: str | Path,
    format: Format = "npy",
    *,
    dataset_there: str | Path | None = None,
    overwrite: bool = False,
) -> list[Path]:
    """Write the folder and return its files. A folder is written completely or not at all.

    npy        entities.npy (E, D), relations.npy, entities.tsv and relations.tsv (id, tab, name; a backslash, tab or
               line end in a name is written as \\\\, \\t, \\n or \\r)
    word2vec   entities.txt: a line "E D", then the name and D numbers of each entity; spaces in names become
               underscores, and names that would become equal are an error
    parquet    entities.parquet and relations.parquet: id, name, embedding (list of float32)
    splits     train.txt, valid.txt and test.txt of the dataset: names of head, relation and tail, with tabs between;
               a name with a tab or a line end is an error
    pykeen     pykeen.json, a pipeline; settings that PyKEEN does not have are logged, and listed in the file
    libkge     libkge.yaml, a training, likewise

    dataset_there: with pykeen and libkge, the name of the graph in that tool, or for PyKEEN a folder of splits.
    """
    check_format(format, dataset_there)
    if format in CONFIG_FILES:
        there = None if dataset_there is None else str(dataset_there)
        splits = 'model.export("FOLDER", "splits")'
        path, notes = export_config(
            config, folder, format, graph=dataset.name, dataset=there, splits=splits, overwrite=overwrite
        )
        for note in notes:
            _log.warning("%s", note)
        return [path]
    if format == "splits":
        return export_splits(dataset, folder, overwrite=overwrite)
    return _write(folder, lambda temporary: WRITERS[format](kge, dataset, temporary), overwrite)


def export_splits(dataset: Dataset, folder: str | Path, *, overwrite: bool = False) -> list[Path]:
    """Write train.txt, valid.txt and test.txt of a graph and return the files."""
    return _write(folder, lambda temporary: write_splits(dataset, temporary), overwrite)


def export_config(
    config: TrainConfig,
    folder: str | Path,
    format: str,
    *,
    graph: str | None = None,
    dataset: str | None = None,
    splits: str = "grash export GRAPH -f splits -o FOLDER",
    overwrite: bool = False,
) -> tuple[Path, list[str]]:
    """Write pykeen.json or libkge.yaml into the folder; return the file and notes for the user.

    The notes list settings without a counterpart and how to give the graph to the other tool.
    graph: our name of the graph, which is translated. dataset: instead, its name in the other tool, or for PyKEEN a
    folder with train.txt, valid.txt and test.txt. splits: the command or call that writes these.
    """
    if format not in CONFIG_FILES:
        raise ConfigError(f"format={format!r} is unknown: give {' or '.join(CONFIG_FILES)}.")
    path = Path(folder) / CONFIG_FILES[format]
    if not overwrite:
        check_absent(path)
    advice = None
    if dataset is None:
        if graph is None:
            raise InputError(f"The graph is not known: give its name in {format} with --dataset (dataset=).")
        dataset, advice = (pykeen_dataset if format == "pykeen" else libkge_dataset)(graph, splits)
    if format == "pykeen":
        content, left_out = config_to_pykeen(config, dataset)
        write_json(path, content)
    else:
        text, left_out = config_to_libkge(config, dataset)
        with atomic_file(path) as temporary:
            temporary.write_text(text, encoding="utf-8")
    return path, [f"not carried over: {line}" for line in left_out] + ([advice] if advice else [])


def check_format(format: str, dataset: object = None) -> None:
    """Raise an error for an unknown format, or for a dataset that the format does not use."""
    if format not in FORMATS:
        raise ConfigError(f"format={format!r} is unknown: give {', '.join(FORMATS)}.")
    if dataset is not None and format not in CONFIG_FILES:
        raise ConfigError(f"--dataset (dataset=) is for the formats pykeen and libkge, not {format}: leave it out.")


def _write(folder: str | Path, write: Callable[[Path], None], overwrite: bool) -> list[Path]:
    folder = Path(folder)
    if overwrite and folder.exists() and not _is_export(folder):
        raise InputError(f"{folder} holds something else than an export, so it is not overwritten: give another.")
    with atomic_folder(folder, overwrite=overwrite) as temporary:
        write(temporary)
        names = sorted(path.name for path in temporary.iterdir())
    return [folder / name for name in names]


def _is_export(folder: Path) -> bool:
    return folder.is_dir() and {path.name for path in folder.iterdir()} <= _FILES
