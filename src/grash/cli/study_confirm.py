"""grash study confirm: real searches with final training, several seeds each, candidates for a default beside each
other."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from grash.cli.options import Source
from grash.cli.show import command, listen
from grash.cli.study_session import RUNNING, Clock, listed, load, models_of, put_page, running_words, show
from grash.cli.train import assignment
from grash.errors import ConfigError, InputError

if TYPE_CHECKING:
    from grash.study.confirm import Candidate

SEARCHING = {name: option for name, option in RUNNING.items() if name != "batch"}


def confirm(
    source: Source,
    models: Annotated[
        str, typer.Option("--models", "-m", help="Models, with commas; each is searched on its own.")
    ] = "complex,rotate,transe",
    dim: Annotated[int, typer.Option("--dim", "-d", help="Floats per entity.")] = 512,
    epochs: Annotated[float, typer.Option("--epochs", "-e", help="E: epochs of a full training run.")] = 100.0,
    seeds: Annotated[int, typer.Option("--seeds", help="Searches of each: seeds 0, 1, …")] = 3,
    presets: Annotated[
        str, typer.Option("--presets", help="Presets that are searched as they are, with commas; none: ''.")
    ] = "default,paper",
    candidates: Annotated[
        list[str] | None,
        typer.Option("--candidate", help="NAME: name=value, name=value on top of a preset. Repeatable."),
    ] = None,
    common: Annotated[
        list[str] | None, typer.Option("--search", help="A setting of all searches, name=value. Repeatable.")
    ] = None,
    fixed: Annotated[
        list[str] | None,
        typer.Option("--set", help="A setting of the training that is not searched, name=value. Repeatable."),
    ] = None,
    label: Annotated[
        str | None, typer.Option("--label", help="Ends the page's name; the candidates by default.", show_default=False)
    ] = None,
    *,
    running: dict[str, Any],
    reading: dict[str, Any],
) -> None:
    """Search for real, train the pick in full and test it: several seeds each, candidates beside each other.

    --candidate "sobol: proposals=sobol" --candidate "rich: n_trials=128, space=rich.yaml, preset=default": settings of
    a search, those of a training (then fixed as --set does), and preset=NAME, on which the others come.
    """
    from functools import partial

    from grash.api_search import Search
    from grash.study.confirm import run_wanted, store_of, wanted_searches
    from grash.study.confirm_page import confirm_page
    from grash.study.confirm_plan import plan_wanted

    names = models_of(models)
    listen()
    dataset = load(source, reading)
    if not len(dataset.test):
        raise InputError(f"{dataset.name} has no test triples, by which final models are compared: give some.")
    columns = [*_presets(presets), *(read_candidate(text) for text in candidates or [])]
    words = ["--models", models, "--dim", dim, "--epochs", f"{epochs:g}", "--seeds", seeds, "--presets", presets]
    words += [w for name, given in _repeated(candidates, common, fixed) for w in (name, given)]
    words += ["--label", label] if label else []
    shared = {"dim": dim, "max_epochs": epochs, **_settings(common or [], fixed or [])}
    wanted = wanted_searches(dataset, columns, models=names, seeds=seeds, common=shared)
    store, opens = store_of(running["store"], dataset), partial(Search, source=source)
    clock, device = Clock(running), running["device"]
    if running["plan"] or running.get("max_seconds") != 0:
        show(plan_wanted(dataset, wanted, store, opens, device=device))
    if running["plan"]:
        raise typer.Exit(0)
    left = clock.left().get("max_seconds")
    finished = run_wanted(dataset, wanted, store, opens, device=device, max_seconds=left, say=show)
    shown = command("grash", "study", "confirm", source, *words, *running_words(running, reading))
    usual = [
        *listed(presets),
        *(["candidates"] if candidates else []),
        *(_short(text) for text in [*(common or []), *(fixed or [])]),
    ]
    called = label or "-".join(usual)
    put_page(confirm_page(wanted, store, label=called, command=shown), running["out"], finished)


def read_candidate(text: str) -> Candidate:
    """A candidate from NAME: name=value, name=value, …; values as in YAML, so that [1, 2] is a list."""
    from grash.study.confirm import Candidate

    name, colon, rest = (part.strip() for part in text.partition(":"))
    parts = [part for part in re.split(r"[,\s]+(?=\w+=)", rest) if part]
    if not colon or not name or not parts or any("=" not in part for part in parts):
        raise ConfigError(
            f'--candidate "{text}" is no candidate: give a name and settings, as in "sobol: proposals=sobol, eta=3".'
        )
    preset = [assignment(part)[1] for part in parts if part.startswith("preset=")]
    rest_parts = [part for part in parts if not part.startswith("preset=")]
    return Candidate(name, str(preset[-1]) if preset else "default", _settings(rest_parts, []), ", ".join(rest_parts))


def _presets(names: str) -> list[Candidate]:
    from grash.study.confirm import Candidate

    return [Candidate(name, name) for name in listed(names)]


def _settings(search: list[str], fixed: list[str]) -> dict[str, Any]:
    """Settings of a search; what is a setting of the training is fixed. A space file is read now."""
    from grash.api_given import resolved_space
    from grash.search.settings import ALIASES, SearchSettings
    from grash.training.config import TrainConfig

    given: dict[str, Any] = {"fixed": dict(assignment(text) for text in fixed)}
    for name, value in (assignment(text) for text in search):
        if name in SearchSettings.model_fields or name in ALIASES or name not in TrainConfig.model_fields:
            given[name] = resolved_space(value) if name == "space" else value
        else:
            given["fixed"][name] = value
    return given


def _short(text: str) -> str:
    """A setting name=value as names of pages have it; of a space's file only what it is called."""
    name, _, value = text.partition("=")
    return f"{name}.{Path(value).stem if name == 'space' else value}"


def _repeated(candidates: list[str] | None, common: list[str] | None, fixed: list[str] | None) -> list[tuple[str, str]]:
    several = (("--candidate", candidates), ("--search", common), ("--set", fixed))
    return [(name, text) for name, texts in several for text in texts or []]
