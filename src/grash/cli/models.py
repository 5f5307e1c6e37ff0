"""grash models, settings: what can be trained, and with which settings."""

from __future__ import annotations

import typer

from grash.cli.options import Json
from grash.cli.settings import setting_rows
from grash.cli.show import as_json, table


def add_to(app: typer.Typer) -> None:
    app.command()(models)
    app.command()(settings)


def models(json: Json = False) -> None:
    """List the models with their score functions."""
    import sys

    from grash.models import MODELS

    rows = {name: _formula(sys.modules[cls.__module__].__doc__ or "") for name, cls in MODELS.items()}
    if json:
        as_json(rows)
        return
    table(("model", "score of (head, relation, tail)"), list(rows.items()))
    print("\nHigher scores are more plausible. Train one with: grash train SOURCE --model NAME")


def settings(json: Json = False) -> None:
    """List every setting of a training and its meaning."""
    rows = setting_rows()
    if json:
        as_json([row.__dict__ for row in rows])
        return
    table(("setting", "values", "default", "meaning"), [(r.name, r.values, r.default, r.meaning) for r in rows])
    print("\nGive them as --set name=value, or as lines `name: value` in a file for --config.")


def _formula(doc: str) -> str:
    return " ".join(doc.split("\n\n")[0].split())
