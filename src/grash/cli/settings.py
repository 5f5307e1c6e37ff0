"""grash models, settings: what can be trained, and with which settings."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, get_args, get_origin

import typer

from grash.cli.console import as_json, table
from grash.cli.options import Json

if TYPE_CHECKING:
    from pydantic.fields import FieldInfo


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


# = Every field of TrainConfig as a row: `grash settings` shows them, docs/reference/config.md holds them.

_SIGNS = {"ge": "≥", "gt": ">", "le": "≤", "lt": "<"}


@dataclass(frozen=True)
class SettingRow:
    name: str
    values: str
    default: str
    meaning: str


def setting_rows() -> list[SettingRow]:
    """One row per field of TrainConfig, in its order."""
    from grash.training.config import TrainConfig

    return [
        SettingRow(name, _values(name, field), _word(field.default), field.description or "")
        for name, field in TrainConfig.model_fields.items()
    ]


def reference_page() -> str:
    """The content of docs/reference/config.md."""
    lines = [f"| `{r.name}` | {r.values} | {r.default} | {r.meaning} |" for r in setting_rows()]
    return _PAGE.format(table="\n".join(lines))


def _values(name: str, field: FieldInfo) -> str:
    if name == "model":
        from grash.models import MODELS

        return ", ".join(MODELS)
    kind: Any = field.annotation
    none = type(None) in get_args(kind)
    if none:
        kind = next(part for part in get_args(kind) if part is not type(None))
    if get_origin(kind) is Literal:
        text = ", ".join(_word(value) for value in get_args(kind))
    elif kind is bool:
        text = "true, false"
    else:
        text = {int: "whole number", float: "number"}.get(kind, kind.__name__)
        bounds = [f"{_SIGNS[s]} {getattr(m, s):g}" for m in field.metadata for s in _SIGNS if hasattr(m, s)]
        text = " ".join([text, " and ".join(bounds)]).strip()
    return f"{text}, or none" if none else text


def _word(value: Any) -> str:
    if value is None:
        return "none"
    return str(value).lower() if isinstance(value, bool) else f"{value:g}" if isinstance(value, float) else str(value)


_PAGE = """# Settings of a training

One flat record, `grash.TrainConfig`: the same word is a line in a YAML file (`name: value`, given with
`grash train --config FILE`), an option (`--set name=value`), and a keyword of `grash.train`. `grash settings` shows
this table. Written by `python tools/make_config_reference.py`; none is written `null` in YAML and `None` in Python.

| setting | values | default | meaning |
|---|---|---|---|
{table}

Settings that contradict each other are refused with a sentence, for example `label_smoothing` without
`training: kvsall`, or `penalty: dura` with a distance model.
"""
