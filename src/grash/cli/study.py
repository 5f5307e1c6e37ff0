"""grash study: the doorway to the experiments in `grash_study`, a package beside this one that the product never needs."""

from __future__ import annotations

import importlib

import typer


def add_to(app: typer.Typer) -> None:
    importlib.import_module("grash_study.cli").add_to(app)
