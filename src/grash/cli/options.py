"""Options that several verbs share: how a source is read, where to compute, what the output is."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

Source = Annotated[
    str,
    typer.Argument(
        help="A graph: a file, a folder with train/valid/test files, an encoded dataset, or 'world', the bundled one.",
        show_default=False,
    ),
]
ModelFolder = Annotated[Path, typer.Argument(help="A model folder, from grash train.", show_default=False)]
Json = Annotated[bool, typer.Option("--json", help="Print JSON on stdout, for machines.")]
Device = Annotated[str, typer.Option("--device", help="auto, cpu, cuda or cuda:i.")]
Threads = Annotated[int | None, typer.Option("--threads", help="CPU threads; all cores by default.")]
Count = Annotated[int, typer.Option("-k", "--degree", help="How many answers.")]

_SOURCE_OPTIONS: dict[str, tuple[Any, Any, Any]] = {
    "separator": (
        str | None,
        None,
        typer.Option("--separator", help="One character, or tab, comma, semicolon, space, whitespace; else guessed."),
    ),
    "header": (
        bool | None,
        None,
        typer.Option("--header/--no-header", help="Whether the first line names the columns; else guessed."),
    ),
    "columns": (
        str | None,
        None,
        typer.Option("--columns", help="Order of the columns, as htr, or places of head,relation,tail, as 0,2,1."),
    ),
    "literals": (
        str | None,
        None,
        typer.Option("--literals", help="RDF triples whose object is a literal: skip (default) or keep."),
    ),
    "duplicates": (
        str | None,
        None,
        typer.Option("--duplicates", help="Triples that repeat within train: drop (default) or keep."),
    ),
    "valid_fraction": (
        float | None,
        None,
        typer.Option("--valid-fraction", help="Share split off for valid where there is none (5 %, at most 10,000)."),
    ),
    "test_fraction": (
        float | None,
        None,
        typer.Option("--test-fraction", help="Share split off for test where there is none (5 %, at most 10,000)."),
    ),
    "n_valid": (int | None, None, typer.Option("--n-valid", help="Triples split off for valid, as a count.")),
    "n_test": (int | None, None, typer.Option("--n-test", help="Triples split off for test, as a count.")),
    "split_seed": (int | None, None, typer.Option("--split-seed", help="Seed of that split (0).")),
    "format": (
        str | None,
        None,
        typer.Option(
            "--format",
            help="What a file is, where its name does not say it: text, ntriples, nquads, turtle, rdfxml, parquet, "
            "npy, npz.",
        ),
    ),
}


def takes_source_options(verb: Callable[..., Any]) -> Callable[..., Any]:
    """The verb with the options of SourceOptions; it gets those that were given as the dict `reading`."""
    return takes(_SOURCE_OPTIONS, "reading", renamed={"split_seed": "seed"})(verb)


def takes(
    table: dict[str, tuple[Any, Any, Any]], into: str, *, renamed: dict[str, str] | None = None
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Adds the options of a table {name: (type, default, option)} to a verb, which gets those given as dict `into`, by
    that name or among others as **given."""
    names = {name: (renamed or {}).get(name, name) for name in table}

    def add(verb: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(verb)
        def with_options(**arguments: Any) -> Any:
            given = {names[name]: arguments.pop(name) for name in table}
            return verb(**arguments, **{into: {name: value for name, value in given.items() if value is not None}})

        own = inspect.signature(verb, eval_str=True)
        parameters = [p for p in own.parameters.values() if p.name != into and p.kind is not p.VAR_KEYWORD]
        for name, (kind, default, option) in table.items():
            annotation: Any = Annotated[kind, option]
            parameters.append(
                inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)
            )
        signature = own.replace(parameters=[p.replace(kind=inspect.Parameter.KEYWORD_ONLY) for p in parameters])
        with_options.__signature__ = signature  # type: ignore[attr-defined]
        with_options.__annotations__ = {p.name: p.annotation for p in signature.parameters.values()}
        del with_options.__wrapped__
        return with_options

    return add


def option_of(name: str) -> str:
    """The option that gives a field of SourceOptions."""
    return f"--{'split-seed' if name == 'seed' else name.replace('_', '-')}"
