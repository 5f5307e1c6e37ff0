"""The training configuration that an export is made from, and the settings that no other tool has."""

from __future__ import annotations

from pathlib import Path

import yaml

from grash.errors import ConfigError, FormatError, InputError
from grash.files import read_json
from grash.models.store import SCHEMA, VERSION
from grash.training.config import TrainConfig, make_config, read_config


def find_config(source: str | Path) -> tuple[TrainConfig, str | None]:
    """Return the configuration of a model folder, a run folder or a YAML file, and the name of its graph if known."""
    source = Path(source)
    if not source.is_dir():
        return read_config(source), None
    if (source / "model.json").is_file():
        record = read_json(source / "model.json", schema=SCHEMA, version=VERSION)
        try:
            return make_config(record["config"]), str(record["dataset"]["name"])
        except (ConfigError, KeyError, TypeError) as error:
            raise FormatError(f"{source} is a damaged model folder: its config is wrong ({error}).") from error
    if (source / "best.yaml").is_file():
        return read_config(source / "best.yaml"), _searched_graph(source)
    raise InputError(
        f"{source} has no configuration: give a model folder, a YAML file, or the run folder of a finished search "
        f"(with best.yaml)."
    )


def without_counterpart(config: TrainConfig) -> list[str]:
    """Return a line for each setting in use that neither PyKEEN nor LibKGE has."""
    lines = []
    if config.relation_prediction:
        lines.append(f"relation_prediction: {config.relation_prediction} has no counterpart")
    if config.precision == "tf32":  # bf16 is our default, float32 is torch's
        lines.append(f"precision: {config.precision} has no counterpart; torch's default is used")
    if config.storage != "float32":
        lines.append(f"storage: {config.storage} has no counterpart; entities are stored in float32")
    return lines


def _searched_graph(run: Path) -> str | None:
    """Return the name of the graph in search.yaml."""
    try:
        content = yaml.safe_load((run / "search.yaml").read_text(encoding="utf-8"))
        return str(content["dataset"]["name"])
    except (OSError, UnicodeDecodeError, yaml.YAMLError, KeyError, TypeError):
        return None
