"""grash models and grash settings; docs/reference/config.md is made from the same rows."""

from __future__ import annotations

import sys
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Literal, get_args, get_origin

import typer

from grash.cli.console import as_json, table
from grash.cli.options import Json

if TYPE_CHECKING:
    from pydantic.fields import FieldInfo


_SIGNS = {"ge": "≥", "gt": ">", "le": "≤", "lt": "<"}


@dataclass(frozen=True)
class SettingRow:
    """A field of TrainConfig as text."""

    name: str
    values: str
    default: str
    meaning: str


def add_to(app: typer.Typer) -> None:
    app.command()(models)
    app.command()(settings)


def models(json: Json = False) -> None:
    """List the models and their score functions."""
    from grash.models import MODELS

    rows = {name: _formula(sys.modules[cls.__module__].__doc__ or "") for name, cls in MODELS.items()}
    if json:
        as_json(rows)
        return
    table(("model", "score of (head, relation, tail)"), list(rows.items()))
    print("\nHigher scores are more plausible. Train one with: grash train SOURCE --model NAME")


def settings(json: Json = False) -> None:
    """List the settings of a training."""
    rows = setting_rows()
    if json:
        as_json([asdict(row) for row in rows])
        return
    table(("setting", "values", "default", "meaning"), [(r.name, r.values, r.default, r.meaning) for r in rows])
    print("\nGive a setting as --set name=value, or as a line `name: value` in a file for --config.")


def setting_rows() -> list[SettingRow]:
    """Return one row per field of TrainConfig, in order."""
    from grash.training.config import TrainConfig

    return [
        SettingRow(name, _values(name, field), _value_text(field.default), field.description or "")
        for name, field in TrainConfig.model_fields.items()
    ]


def reference_page() -> str:
    """Return the content of docs/reference/config.md."""
    lines = [f"| `{r.name}` | {r.values} | {r.default} | {r.meaning} |" for r in setting_rows()]
    return _PAGE.format(table="\n".join(lines))


def _formula(doc: str) -> str:
    return " ".join(doc.split("\n\n")[0].split())


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


_PAGE = """# Settings of a training

All settings are in one flat record, `grash.TrainConfig`. Give a setting as a line `name: value` in a YAML file
(`grash train --config FILE`), as an option (`--set name=value`), or as a keyword of `grash.train`. `grash settings`
prints this table. `none` is `null` in YAML and `None` in Python. `python tools/make_config_reference.py` writes this page.

| setting | values | default | meaning |
|---|---|---|---|
{table}

Settings that contradict each other are an error, e.g. `label_smoothing` without `training: kvsall`, or `penalty: dura`
with a distance model.
"""
