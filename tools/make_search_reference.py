"""Write the tables of docs/reference/search.md from SearchSettings and its presets.

The tables are between `<!-- settings -->` or `<!-- presets -->` and `<!-- end -->`; the rest of the page is prose.
tests/docs/test_reference.py checks that they are up to date.
"""

from pathlib import Path
from typing import Any, Literal, get_args, get_origin

from grash.search.settings import PRESETS, SearchSettings

PAGE = Path(__file__).parents[1] / "docs" / "reference" / "search.md"
SIGNS = {"ge": "≥", "gt": ">", "le": "≤", "lt": "<"}
VALUES = {  # where the type is not specific enough
    "models": "names of models",
    "space": "default, paper, wide, or parameters",
    "initial": "configurations",
    "fixed": "settings of a training",
    "max_dims": "a dimension for each model",
    "prediction_ms": "milliseconds by model and dimension",
}


def filled(page: str) -> str:
    """Return the page with its tables replaced."""
    for name, table in (("settings", settings_table()), ("presets", presets_table())):
        before, mark, rest = page.partition(f"<!-- {name} -->\n")
        _, end, after = rest.partition("<!-- end -->")
        page = before + mark + table + end + after
    return page


def settings_table() -> str:
    """Return one row per setting, in the order of the record."""
    lines = ["| setting | values | default | meaning |", "|---|---|---|---|"]
    for name, field in SearchSettings.model_fields.items():
        default = word(field.get_default(call_default_factory=True))
        lines.append(f"| `{name}` | {values_of(name, field)} | {default} | {field.description} |")
    return "\n".join(lines) + "\n"


def presets_table() -> str:
    """Return one row per setting that a preset changes."""
    names = [name for name in SearchSettings.model_fields if any(name in p for p in PRESETS.values())]
    chosen = {preset: SearchSettings(**values) for preset, values in PRESETS.items()}
    lines = ["| setting | " + " | ".join(f"`{p}`" for p in chosen) + " |", "|---" * (1 + len(chosen)) + "|"]
    for name in names:
        lines.append(f"| `{name}` | " + " | ".join(word(getattr(s, name)) for s in chosen.values()) + " |")
    return "\n".join(lines) + "\n"


def values_of(name: str, field: Any) -> str:
    if name in VALUES:
        return VALUES[name]
    kind = field.annotation
    if get_origin(kind) is Literal:
        return ", ".join(get_args(kind))
    if kind in (bool, bool | None):
        return "true, false" + ("" if kind is bool else ", or none")
    kind, none = (get_args(kind)[0], ", or none") if kind in (int | None, float | None) else (kind, "")
    bounds = [f"{sign} {getattr(m, s):g}" for m in field.metadata for s, sign in SIGNS.items() if hasattr(m, s)]
    return " ".join([{int: "whole number", float: "number"}[kind], " and ".join(bounds)]) + none


def word(value: Any) -> str:
    if value is None:
        return "none"
    if isinstance(value, tuple | dict):
        return ", ".join(value) or "none"
    return str(value).lower() if isinstance(value, bool) else f"{value:g}" if isinstance(value, float) else str(value)


if __name__ == "__main__":
    PAGE.write_text(filled(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
