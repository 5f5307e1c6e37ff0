"""grash study: the doorway to the experiments in `grash_study`, which has its own dependencies."""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec

import typer

from grash.errors import InputError

_NEEDS = ("scipy", "sklearn", "matplotlib", "polars")


def add_to(app: typer.Typer) -> None:
    study = typer.Typer(rich_markup_mode=None, no_args_is_help=True)
    study.callback()(check_dependencies)
    import_module("grash_study.cli").add_to(study)
    app.add_typer(study, name="study")


def check_dependencies() -> None:
    """Run the paper's experiments and compare search methods."""
    missing = [name for name in _NEEDS if find_spec(name) is None]
    if missing:
        raise InputError(f"grash study needs {', '.join(missing)}: pip install 'grash[study]'.")
