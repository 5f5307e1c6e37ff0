"""grash models and grash settings. `tools/make_config_reference.py` writes docs/reference/config.md from the rows."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, Literal, get_args, get_origin

import typer

from grash.cli.console import as_json, show, table
from grash.cli.options import Json

if TYPE_CHECKING:
    from pydantic.fields import FieldInfo

_SIGNS = {"ge": "≥", "gt": ">", "le": "≤", "lt": "<"}


def add_to(app: typer.Typer) -> None:
    app.command(rich_help_panel="More")(models)
    app.command(rich_help_panel="More")(settings)


def models(json: Json = False) -> None:
    """List the models and their score functions."""
    from grash.models import MODELS

    formulas = {name: (sys.modules[cls.__module__].__doc__ or "").split("\n\n")[0] for name, cls in MODELS.items()}
    rows = {name: " ".join(text.split()) for name, text in formulas.items()}
    if json:
        as_json(rows)
        return
    table(("model", "score of (head, relation, tail)"), list(rows.items()))
    show("\nHigher scores are more plausible. Train one with: grash train SOURCE --model NAME")


def settings(json: Json = False) -> None:
    """List the settings of a training."""
    rows = setting_rows()
    if json:
        as_json([dict(zip(("name", "values", "default", "meaning"), row)) for row in rows])
        return
    table(("setting", "values", "default", "meaning"), rows)
    show("\nGive a setting as --set name=value, or as a line `name: value` in a file for --config.")


def setting_rows() -> list[tuple[str, str, str, str]]:
    """Return name, values, default and meaning of each field of TrainConfig."""
    from grash.training.config import TrainConfig

    return [
        (name, _values(name, field), _value_text(field.default), field.description or "")
        for name, field in TrainConfig.model_fields.items()
    ]


def _values(name: str, field: FieldInfo) -> str:
    if name == "model":
        from grash.models import MODELS

        return ", ".join(MODELS)
    kind: Any = field.annotation
    none = type(None) in get_args(kind)
    if none:
        kind = next(part for part in get_args(kind) if part is not type(None))
    if get_origin(kind) is Literal:
        text = ", ".join(_value_text(value) for value in get_args(kind))
    elif kind is bool:
        text = "true, false"
    else:
        text = {int: "whole number", float: "number"}.get(kind, kind.__name__)
        bounds = [f"{_SIGNS[s]} {getattr(m, s):g}" for m in field.metadata for s in _SIGNS if hasattr(m, s)]
        text = " ".join([text, " and ".join(bounds)]).strip()
    return f"{text}, or none" if none else text


def _value_text(value: Any) -> str:
    if value is None:
        return "none"
    return str(value).lower() if isinstance(value, bool) else f"{value:g}" if isinstance(value, float) else str(value)
