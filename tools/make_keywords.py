"""Write src/grash/keywords.py from the records of settings; tests/docs/test_reference.py compares."""

from __future__ import annotations

import subprocess
import sys
import types
from dataclasses import fields
from pathlib import Path
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from grash.data.readers.source import SourceOptions
from grash.search.settings import ALIASES as SEARCH_ALIASES
from grash.search.settings import SearchSettings
from grash.training.config import ALIASES as TRAIN_ALIASES
from grash.training.config import TrainConfig

FILE = Path(__file__).parents[1] / "src" / "grash" / "keywords.py"
HEAD = '''"""Keyword arguments as types, so that editors complete them and type checkers find wrong names and values.

Written by tools/make_keywords.py from the records of settings. `with_keywords` shows the names to `help` and Jupyter.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, TypedDict, TypeVar

_F = TypeVar("_F", bound=Callable[..., Any])


def with_keywords(keywords: type) -> Callable[[_F], _F]:
    """Return a decorator that lists the keywords of a TypedDict in the signature of a function, in place of **rest."""

    def decorate(function: _F) -> _F:
        own = inspect.signature(function)
        named = [p for p in own.parameters.values() if p.kind is not p.VAR_KEYWORD]
        taken = {p.name for p in named}
        more = [
            inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=..., annotation=kind)
            for name, kind in keywords.__annotations__.items()
            if name not in taken
        ]
        function.__signature__ = own.replace(parameters=named + more)  # type: ignore[attr-defined]
        return function

    return decorate


class OpenKeywords(TypedDict, total=False):
    """Options of `grash.Search.open`: where and how the trials run."""

    engine: str
    device: str
    workers: int | None
    trial_timeout: float | None
    address: str | None
    placement: str


class EvaluateKeywords(TypedDict, total=False):
    """Options of `grash.evaluate` (docs/reference/python.md)."""

    split: Literal["valid", "test"]
    sample: int | None
    candidates: int | None
    like_known: bool
    unseen: Literal["keep", "drop"]
    detail: bool
    seed: int
    work_bytes: int | None
'''
LOOSER = {  # what is accepted beside the type of the record
    "models": "str | Sequence[str]",
    "space": "str | Path | Mapping[str, Any]",
    "fixed": "Mapping[str, Any]",
    "time": "str | float | None",
    "columns": "str | Sequence[int | str] | None",
}
SPLITTING = ("duplicates", "valid_fraction", "test_fraction", "n_valid", "n_test", "seed")


def written() -> str:
    """Return the file, formatted."""
    train = {name: field.annotation for name, field in TrainConfig.model_fields.items()}
    search = {name: field.annotation for name, field in SearchSettings.model_fields.items()}
    hints = get_type_hints(SourceOptions)
    read = {f.name: hints[f.name] for f in fields(SourceOptions)}
    split = {name: read[name] for name in SPLITTING}
    parts = [
        HEAD,
        record("SplitKeywords", "Options of `grash.from_triples`: duplicates, and splits that are missing.", split),
        record("ReadKeywords", "Options of `grash.load_dataset` (docs/how-to/own-dataset.md).", read),
        record("TrainKeywords", "Settings of a training run (docs/reference/config.md).", train, TRAIN_ALIASES),
        record("SearchKeywords", "Settings of a search (docs/reference/search.md).", search, SEARCH_ALIASES),
    ]
    text = "\n\n".join(parts)
    ruff = [sys.executable, "-m", "ruff", "format", "-q", "--stdin-filename", str(FILE), "-"]
    return subprocess.run(ruff, input=text, capture_output=True, text=True, check=True).stdout


def record(name: str, docstring: str, kinds: dict[str, Any], aliases: dict[str, str] | None = None) -> str:
    """Return the TypedDict of these names and types, and of other names for them."""
    lines = [f"    {key}: {LOOSER.get(key) or source(kind)}" for key, kind in kinds.items()]
    lines += [
        f"    {alias}: {LOOSER.get(key) or source(kinds[key])}  # {key}" for alias, key in (aliases or {}).items()
    ]
    return f'class {name}(TypedDict, total=False):\n    """{docstring}"""\n\n' + "\n".join(lines) + "\n"


def source(kind: Any) -> str:
    """Return a type as source code."""
    if get_origin(kind) is Literal:
        return f"Literal[{', '.join(map(repr, get_args(kind)))}]".replace("'", '"')
    if get_origin(kind) in (Union, types.UnionType):
        return " | ".join(source(part) for part in get_args(kind))
    if get_origin(kind) is not None:
        inner = ", ".join("..." if part is ... else source(part) for part in get_args(kind))
        return f"{get_origin(kind).__name__}[{inner}]"
    return "None" if kind is type(None) else kind.__name__ if isinstance(kind, type) else "Any"


if __name__ == "__main__":
    FILE.write_text(written(), encoding="utf-8")
