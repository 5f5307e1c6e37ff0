"""A configuration for other tools: PyKEEN (pipeline JSON) and LibKGE (YAML), with a list of what they cannot say.

Comes from a model folder, a configuration file or a search; `pykeen.py` and `libkge.py` translate. Nothing is carried
over in silence: each setting either means the same there or has a sentence in the list, which the file holds too.
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import yaml

from grash.errors import ConfigError, FormatError, InputError
from grash.files import atomic_file, check_absent, read_json, write_json
from grash.interop.libkge import config_to_libkge, libkge_dataset
from grash.interop.pykeen import config_to_pykeen, pykeen_dataset
from grash.models.store import SCHEMA, VERSION
from grash.training.config import TrainConfig, make_config, read_config

ConfigFormat = Literal["pykeen", "libkge"]
CONFIG_FILES = {"pykeen": "pykeen.json", "libkge": "libkge.yaml"}


def export_config(
    config: TrainConfig,
    folder: str | Path,
    format: ConfigFormat,
    *,
    graph: str | None = None,
    dataset: str | None = None,
    splits: str = "grash export GRAPH -f splits -o FOLDER",
    overwrite: bool = False,
) -> tuple[Path, list[str]]:
    """Writes pykeen.json or libkge.yaml into the folder; gives back the file and what there is to say: what could not
    be carried over, and how the other tool comes by the graph.

    graph: the name it has here, which is translated. dataset: instead, the graph as the other tool knows it, or for
    PyKEEN a folder with train.txt, valid.txt and test.txt. splits: how its splits are written, a command or a call.
    """
    if format not in CONFIG_FILES:
        raise ConfigError(f"format={format!r} is unknown: give {' or '.join(CONFIG_FILES)}.")
    path = Path(folder) / CONFIG_FILES[format]
    if not overwrite:
        check_absent(path)
    advice = None
    if dataset is None:
        if graph is None:
            raise InputError(
                f"It is not known which graph this is for: give dataset (--dataset), as {format} knows it."
            )
        dataset, advice = (pykeen_dataset if format == "pykeen" else libkge_dataset)(graph, splits)
    if format == "pykeen":
        content, left_out = config_to_pykeen(config, dataset)
        write_json(path, content)
    else:
        text, left_out = config_to_libkge(config, dataset)
        with atomic_file(path) as aside:
            aside.write_text(text, encoding="utf-8")
    return path, [f"not carried over: {line}" for line in left_out] + ([advice] if advice else [])


def find_config(source: str | Path) -> tuple[TrainConfig, str | None]:
    """The configuration of a model folder, a search's run folder or a YAML file, and its graph's name if known."""
    source = Path(source)
    if not source.is_dir():
        return read_config(source), None
    if (source / "model.json").is_file():
        record = read_json(source / "model.json", schema=SCHEMA, version=VERSION)
        try:
            return make_config(record["config"]), str(record["dataset"]["name"])
        except (ConfigError, KeyError, TypeError) as error:
            raise FormatError(f"{source} is a damaged model folder: its config says {error}") from error
    if (source / "best.yaml").is_file():
        return read_config(source / "best.yaml"), _searched_graph(source)
    raise InputError(
        f"{source} holds no configuration: give a model folder, a YAML file, or the run folder of a search that has "
        f"ended (with best.yaml)."
    )


def _searched_graph(run: Path) -> str | None:
    """The name of the graph in search.yaml."""
    try:
        content = yaml.safe_load((run / "search.yaml").read_text(encoding="utf-8"))
        return str(content["dataset"]["name"])
    except (OSError, UnicodeDecodeError, yaml.YAMLError, KeyError, TypeError):
        return None
