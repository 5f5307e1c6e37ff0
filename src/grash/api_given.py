"""What a user gives a search becomes settings: files of settings and spaces, configurations, an earlier run."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from grash.api_result import SearchResult
from grash.errors import InputError
from grash.training.config import TrainConfig, read_config, read_yaml_mapping


def resolved_space(given: Any) -> Any:
    """A space as it is kept in search.yaml: its name, or its parameters, read now from the file that was given."""
    from grash.search.space_file import as_dict, read_space
    from grash.search.spaces import SPACES, check_there

    if isinstance(given, str | Path) and str(given) not in SPACES:
        check_there(given)
        return as_dict(read_space(Path(given)).verified(source=str(given)))
    return given


def settings_of_file(path: str | Path) -> tuple[dict[str, Any], list[str]]:
    """The settings of a YAML file of ours, or of a GraSH search file of LibKGE, and what of it was ignored."""
    from grash.search.libkge import is_libkge_search, libkge_search
    from grash.search.space_file import as_dict

    content = read_yaml_mapping(Path(path))
    if not is_libkge_search(content):
        return content, []
    read = libkge_search(content, str(path))
    settings = {"preset": "paper", **read.settings, "space": as_dict(read.space), "proposals": "random"}
    settings.pop("dataset", None)
    return settings, list(read.ignored)


def best_of_run(folder: str | Path, *, count: int = 4) -> list[dict[str, Any]]:
    """The best configurations of an earlier search, as initial ones: those of its highest rounds first."""
    state = SearchResult.load(folder).state
    chosen: list[int] = []
    for past in reversed(state.rounds):
        chosen += [number for number in past.best(len(past.results)) if number not in chosen]
    if not chosen:
        raise InputError(f"{folder} has no scored trial to take over.")
    return [initial_of(state.configurations[n].values, f"run:{Path(folder).name}") for n in chosen[:count]]


def initial_of(given: TrainConfig | Mapping[str, Any] | str | Path, origin: str | None = None) -> dict[str, Any]:
    """Values and origin of a configuration from a record, a YAML file or a mapping, less what belongs to a run."""
    if isinstance(given, str | Path):
        values, origin = _read_either(Path(given)).model_dump(exclude_unset=True), f"user:{Path(given).name}"
    elif isinstance(given, TrainConfig):
        values = given.model_dump(exclude_unset=True)
    else:
        values = dict(given)
    of_a_run = ("epochs", "valid_every", "patience", "seed", "variation", "precision", "storage")
    kept = {k: v for k, v in values.items() if k not in of_a_run}
    return {"values": json.loads(json.dumps(kept)), "origin": origin or "user"}


def _read_either(path: Path) -> TrainConfig:
    """The configuration in a YAML file of ours, or of a training of LibKGE."""
    content = read_yaml_mapping(path)
    if any("." in str(key) or isinstance(value, dict) for key, value in content.items()):
        from grash.search.libkge import read_libkge_config

        return read_libkge_config(path)
    return read_config(path)
