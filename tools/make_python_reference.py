"""Write the signatures in docs/reference/python.md from the code; tests/docs/test_reference.py compares.

The page is prose. Between `<!-- NAME -->` and `<!-- end -->` are the signature and docstring of the public name NAME;
for a class, also those of its public members.
"""

import inspect
import re
import sys
import textwrap
from collections.abc import Callable
from dataclasses import is_dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

import grash
from grash.data import load as in_memory
from grash.data import profile as describe
from grash.data.readers.source import SourceOptions
from grash.errors import ConfigError
from grash.evaluation.evaluate import evaluate

PAGE = Path(__file__).parents[1] / "docs" / "reference" / "python.md"
WIDTH = 118
MARKED = re.compile(r"^<!-- (\w+) -->\n.*?^<!-- end -->$", re.MULTILINE | re.DOTALL)
INNER = {"complete_folder", "unnamed_fingerprint", "graphs", "own_key"}  # members that users do not need
CALLED = {"KGEmbedder", "Search"}  # classes that users instantiate


def filled(page: str) -> str:
    """Return the page with its signatures written again."""
    return MARKED.sub(lambda m: f"<!-- {m[1]} -->\n```pyi\n{public_name(m[1])}```\n<!-- end -->", page)


def public_name(name: str) -> str:
    """Return the stub of a public name of `grash`."""
    value = getattr(grash, name)
    return of_class(value) if inspect.isclass(value) else of_function(name, value)


def of_class(cls: type) -> str:
    """Return the stub of a class: its fields, then its public members in the order of the code."""
    parts = [docstring(cls)]
    named = cls.__annotations__ if is_dataclass(cls) else {}
    fields = {name: kind for name, kind in named.items() if not name.startswith("_")}
    parts += ["".join(f"{name}: {kind}\n" for name, kind in fields.items())]
    if cls.__name__ in CALLED:
        parts.append(of_function("__init__", vars(cls)["__init__"]))
    public = [n for n in vars(cls) if not n.startswith(("_", "model_")) and n not in INNER and n not in fields]
    parts += [of_member(name, vars(cls)[name]) for name in public if name not in getattr(cls, "model_fields", {})]
    return f"class {cls.__name__}:\n" + textwrap.indent("".join(parts), "    ")


def of_member(name: str, member: Any) -> str:
    """Return the stub of a method or property."""
    if isinstance(member, classmethod):
        return "@classmethod\n" + of_function(name, member.__func__)
    if isinstance(member, property | cached_property):
        getter = member.fget if isinstance(member, property) else member.func
        return f"{name}: {signature_of(getter).return_annotation}\n{docstring(getter)}"
    return of_function(name, member)


def of_function(name: str, function: Callable[..., Any]) -> str:
    """Return the stub of a function, with its docstring."""
    signature = signature_of(function)
    words = parameters(name, signature)
    gives = "" if name == "__init__" else f" -> {signature.return_annotation}"
    line = f"def {name}({', '.join(words)}){gives}:"
    if len(line) > WIDTH - 4:
        rows = textwrap.wrap(", ".join(w.replace(" ", "\0") for w in words), WIDTH - 8, break_on_hyphens=False)
        line = f"def {name}(\n" + "".join(f"    {row}\n" for row in rows).replace("\0", " ") + f"){gives}:"
    text = textwrap.indent(docstring(function), "    ")
    return f"{line}\n{text}" if text else f"{line} ...\n"


def signature_of(function: Any) -> inspect.Signature:
    """Return the signature of a function or class; a name of a Literal becomes the Literal."""
    names = vars(sys.modules[function.__module__])
    found = _written_signature(function)
    spelled = [p.replace(annotation=spell(p.annotation, names)) for p in found.parameters.values()]
    return found.replace(parameters=spelled, return_annotation=spell(found.return_annotation, names))


def _written_signature(function: Any) -> inspect.Signature:
    """Return the signature as it is written, with **settings instead of the names that `with_keywords` lists."""
    listed = vars(function).pop("__signature__", None) if inspect.isfunction(function) else None
    try:
        return inspect.signature(function)
    finally:
        if listed is not None:
            function.__signature__ = listed


def spell(annotation: Any, names: dict[str, Any]) -> str:
    def choices(match: re.Match[str]) -> str:
        value = names.get(match[0])
        return f"Literal[{', '.join(map(str_of, get_args(value)))}]" if get_origin(value) is Literal else match[0]

    if not isinstance(annotation, str):  # the `self` of a method has none
        return ""
    return re.sub(r"(?<!['\w])[A-Z]\w+", choices, annotation.replace("profiles.", "")).replace("'", '"')


def parameters(name: str, signature: inspect.Signature) -> list[str]:
    """Return each parameter as text, with those that `**options` accepts."""
    words: list[str] = []
    starred = False
    for p in signature.parameters.values():
        if p.kind is p.KEYWORD_ONLY and not starred:
            words, starred = [*words, "*"], True
        if p.kind is p.VAR_KEYWORD and name in OPTIONS:
            words += [*([] if starred else ["*"]), *(written(option) for option in OPTIONS[name]())]
        else:
            words.append(written(p))
    return words


def written(p: inspect.Parameter) -> str:
    """Return a parameter with its type and default."""
    stars = "**" if p.kind is p.VAR_KEYWORD else ""
    kind = "" if p.annotation in ("", "Any") or p.kind is p.VAR_KEYWORD else f": {p.annotation}"
    default = "" if p.default is p.empty else f"{' = ' if kind else '='}{str_of(p.default)}"
    return f"{stars}{p.name}{kind}{default}"


def str_of(default: Any) -> str:
    return f'"{default}"' if isinstance(default, str) else str(default)


def docstring(thing: Any) -> str:
    text = inspect.cleandoc(thing.__doc__ or "")
    return f'"""{text}"""\n' if text else ""


def reading_options() -> list[inspect.Parameter]:
    return list(signature_of(SourceOptions).parameters.values())


def splitting_options() -> list[inspect.Parameter]:
    """Return the reading options that triples in memory have, too."""
    return [p for p in reading_options() if _is_taken(p)]


def _is_taken(p: inspect.Parameter) -> bool:
    try:
        in_memory.splitting_options({p.name: p.default})
    except ConfigError:
        return False
    return True


def keywords_of(function: Callable[..., Any]) -> list[inspect.Parameter]:
    return [p for p in signature_of(function).parameters.values() if p.kind is p.KEYWORD_ONLY]


OPTIONS: dict[str, Callable[[], list[inspect.Parameter]]] = {  # of public functions that pass keywords on
    "load_dataset": reading_options,
    "from_triples": splitting_options,
    "describe": lambda: keywords_of(describe.describe),
    "evaluate": lambda: keywords_of(evaluate),
}


if __name__ == "__main__":
    PAGE.write_text(filled(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
